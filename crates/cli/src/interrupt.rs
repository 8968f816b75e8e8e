//! SIGINT, SIGTERM, and SIGHUP, which a terminal sends as it closes: the first one asks long work to stop at its next step, so
//! that the volume is closed; a second one ends the process at once, which for the volume is no worse than a power cut.
//!
//! SIGXFSZ, of a write past the limit of file sizes, is passed over: the write fails with EFBIG, which is told of like any other error.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{SigId, flag};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The user asked us to stop, by this signal.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted; the volume was closed cleanly, and what had been done stays done")]
pub struct Interrupted(pub u8);

/// Number of the signal that came; 0 for none.
static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// What ends the process at the second signal.
static ABRUPT: Mutex<Vec<SigId>> = Mutex::new(Vec::new());

/// The signals that end work gently. Not SIGHUP where it is to be ignored: by nohup(1), a run goes on when its terminal closes.
pub fn signals() -> impl Iterator<Item = i32> {
    let hangs_up = !is_ignored(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangs_up.then_some(SIGHUP))
}

/// Whether this process was started, or has decided, to pass over a signal.
fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

/// `SigIgn:\t0000000000001001`: a bit a signal, the first one's lowest.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Watches for the signals from here on.
pub fn watch() {
    let signal = SIGNAL.get_or_init(Arc::default);
    let seen = Arc::new(AtomicBool::new(false));
    // A handler that does nothing, and not SIG_IGN, which programs that are started from here would inherit.
    flag::register(SIGXFSZ, Arc::default()).expect("this signal may be handled by any process");
    for number in signals() {
        // In this order: the first signal finds `seen` false and passes, the second one finds it true.
        let registered = flag::register_conditional_shutdown(number, 128 + number, Arc::clone(&seen)).and_then(|id| {
            flag::register(number, Arc::clone(&seen))?;
            flag::register_usize(number, Arc::clone(signal), number as usize)?;
            Ok(id)
        });
        let id = registered.expect("these signals may be handled by any process");
        ABRUPT.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }
}

/// From here on a second signal does not end the process either: for work that has more to clean up than a volume, or has
/// a volume that others use.
pub fn never_abruptly() {
    for id in ABRUPT.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        signal_hook::low_level::unregister(id);
    }
}

impl Interrupted {
    /// The signal that came, if one did.
    pub fn received() -> Option<Self> {
        match SIGNAL.get()?.load(Ordering::Relaxed) {
            0 => None,
            number => Some(Self(number as u8)),
        }
    }

    /// Whether long work should go on: an error once a signal has come.
    pub fn check() -> anyhow::Result<()> {
        Self::received().map_or(Ok(()), |interrupted| Err(interrupted.into()))
    }

    /// For work that was cancelled: by which signal.
    pub fn latest() -> Self {
        Self::received().unwrap_or(Self(SIGINT as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_as_the_kernel_writes_them() {
        let status = "Name:\tmyriad\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\tffffffffffffffff\n";
        assert!(ignores(status, SIGHUP));
        assert!(!ignores(status, SIGINT) && !ignores(status, SIGTERM));
        assert!(!ignores("", SIGHUP) && !ignores("SigIgn:\tx", SIGHUP));
    }
}
