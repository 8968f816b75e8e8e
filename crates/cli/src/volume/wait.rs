//! Waiting for volumes that somebody else has in use, where the user asked for that (`--wait`).
//!
//! It is asked for once and holds for the whole run, whatever the verb opens.

use crate::interrupt::Interrupted;
use anyhow::Result;
use std::fmt::Display;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two tries. Nobody tells when a lock is free, and a try asks who has it.
const PAUSE: Duration = Duration::from_millis(100);

static WISH: OnceLock<Wish> = OnceLock::new();

/// What the user of a verb that has the option wants.
struct Wish {
    /// `None`: not to wait.
    patience: Option<Patience>,
    is_quiet: bool,
}

/// How long to wait; `None`: as long as it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience(Option<Duration>);

/// A number of seconds; `inf` is what the option means without one.
pub fn parse(text: &str) -> Result<Patience, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds == f64::INFINITY => Some(Patience(None)),
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map(|patience| Patience(Some(patience))).ok(),
        Err(_) => None,
    }
    .ok_or_else(|| "not a number of seconds".to_owned())
}

/// The verb has the option; with patience openings wait from here on.
pub fn begin(patience: Option<Patience>, is_quiet: bool) {
    WISH.get_or_init(|| Wish { patience, is_quiet });
}

/// Whether the user may ask to wait.
pub fn is_offered() -> bool {
    WISH.get().is_some()
}

/// Whether the user wants to wait.
pub fn is_asked() -> bool {
    WISH.get().is_some_and(|wish| wish.patience.is_some())
}

/// Tries until nobody has the volume in use, or patience is at its end; the inner error says who has.
pub fn patiently<T, E: Display>(
    mut attempt: impl FnMut() -> Result<std::result::Result<T, E>>,
) -> Result<std::result::Result<T, E>> {
    let start = Instant::now();
    let mut is_told = false;
    loop {
        let refusal = match attempt()? {
            Ok(opened) => return Ok(Ok(opened)),
            Err(refusal) => refusal,
        };
        let Some(Wish { patience: Some(Patience(patience)), is_quiet }) = WISH.get() else { return Ok(Err(refusal)) };
        let rest = patience.map_or(PAUSE, |patience| patience.saturating_sub(start.elapsed()));
        if rest.is_zero() {
            return Ok(Err(refusal));
        }
        if !std::mem::replace(&mut is_told, true) && !is_quiet {
            eprintln!("myriad: {refusal}; waiting until it is done");
        }
        sleep(rest.min(PAUSE));
        if let Some(interrupted) = Interrupted::received() {
            return Err(interrupted.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_a_number_of_seconds() {
        assert_eq!(parse("inf"), Ok(Patience(None)));
        assert_eq!(parse("0"), Ok(Patience(Some(Duration::ZERO))));
        assert_eq!(parse("1.5"), Ok(Patience(Some(Duration::from_millis(1500)))));
        for text in ["", "-1", "nan", "-inf", "1s", "1e300"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
