//! A planted slowdown: some percent more around each call of one operation. It shows whether the statistics find a difference that is known
//! to be there.
//!
//! The driver measures each call and then waits, busy, for that share of what the call took. Reading the clock costs time too, so what a slowed
//! run is compared with reads it just as often: that is a slowdown of 0 %. A wait ends up to one reading of the clock late. The next wait is
//! shorter by as much, so that the sum over a phase is the share that was asked for, and at most one reading more.

use crate::workloads::plan::Verb;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What is to be planted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    pub verb: Verb,
    pub percent: f64,
}

impl Slowdown {
    /// OPERATION:PERCENT, as in `create:5%`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, percent) = text.split_once(':').ok_or("write OPERATION:PERCENT, as in create:5%")?;
        let known = Verb::OPERATIONS.iter().find(|(known, _)| *known == name);
        let (_, verb) = known.ok_or_else(|| {
            let names: Vec<&str> = Verb::OPERATIONS.iter().map(|(name, _)| *name).collect();
            format!("`{name}` is no operation; there are {}", names.join(", "))
        })?;
        match percent.strip_suffix('%').unwrap_or(percent).parse() {
            Ok(percent) if percent > 0.0 && percent <= PERCENT_MOST => Ok(Self { verb: *verb, percent }),
            _ => Err(format!("`{percent}`: write a number above 0, at most {PERCENT_MOST}, as in {name}:5%")),
        }
    }

    /// The same clock readings and no wait: what a slowed run is compared with.
    pub fn none(self) -> Self {
        Self { percent: 0.0, ..self }
    }

    pub fn operation(self) -> &'static str {
        self.verb.name().expect("only counted operations are parsed")
    }
}

impl std::fmt::Display for Slowdown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}%", self.operation(), self.percent)
    }
}

const PERCENT_MOST: f64 = 1000.0;

/// What a slowdown came to in one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slowed {
    pub operation: String,
    pub percent: f64,
    /// Calls of the target; a batch of paths is one.
    pub calls: u64,
    /// What they took without the waits.
    pub took_ns: u64,
    /// The waits.
    pub added_ns: u64,
}

impl Slowed {
    /// Of two threads.
    pub fn with(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            took_ns: self.took_ns + other.took_ns,
            added_ns: self.added_ns + other.added_ns,
            ..self
        }
    }
}

/// Nanoseconds since some fixed point.
pub trait Clock {
    fn now_ns(&mut self) -> u64;
}

pub struct WallClock(Instant);

impl WallClock {
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for WallClock {
    fn now_ns(&mut self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).expect("a phase takes less than five centuries")
    }
}

/// Waits after the calls of one thread.
pub struct Padding<C> {
    slowdown: Slowdown,
    clock: C,
    calls: u64,
    took_ns: u64,
    added_ns: u64,
}

impl<C: Clock> Padding<C> {
    pub fn new(slowdown: Slowdown, clock: C) -> Self {
        Self { slowdown, clock, calls: 0, took_ns: 0, added_ns: 0 }
    }

    pub fn is_of(&self, verb: Verb) -> bool {
        self.slowdown.verb == verb
    }

    /// Makes the call, then waits for its share.
    pub fn around<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = self.clock.now_ns();
        let done = call();
        let end = self.clock.now_ns();
        self.calls += 1;
        self.took_ns += end - start;
        let owed_ns = self.owed_ns().saturating_sub(self.added_ns);
        if owed_ns > 0 {
            let mut waited_ns = 0;
            while waited_ns < owed_ns {
                waited_ns = self.clock.now_ns() - end;
            }
            self.added_ns += waited_ns;
        }
        done
    }

    /// Of all calls so far.
    fn owed_ns(&self) -> u64 {
        (self.took_ns as f64 * self.slowdown.percent / 100.0) as u64
    }

    pub fn slowed(self) -> Slowed {
        assert!(self.added_ns >= self.owed_ns(), "each call was followed by its wait");
        Slowed {
            operation: self.slowdown.operation().to_owned(),
            percent: self.slowdown.percent,
            calls: self.calls,
            took_ns: self.took_ns,
            added_ns: self.added_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Each reading takes 25 ns; calls move it on by what they take.
    struct Manual<'a>(&'a Cell<u64>);

    impl Clock for Manual<'_> {
        fn now_ns(&mut self) -> u64 {
            self.0.set(self.0.get() + 25);
            self.0.get()
        }
    }

    fn pad(percent: f64, calls: u64, took_ns: u64) -> Slowed {
        let time = Cell::new(0);
        let mut padding = Padding::new(Slowdown { verb: Verb::Create, percent }, Manual(&time));
        for call in 0..calls {
            assert_eq!(padding.around(|| (time.set(time.get() + took_ns), call).1), call);
        }
        let slowed = padding.slowed();
        // Beside calls and waits there is the reading before each call, in a slowed run and in any other.
        assert_eq!(time.get(), slowed.took_ns + slowed.added_ns + 25 * calls);
        slowed
    }

    /// Waits of 5 ns cannot be made one by one where a reading takes 25: their sum is right all the same.
    #[test]
    fn the_waits_of_a_phase_are_the_share_that_was_asked_for() {
        for took_ns in [75, 975, 1_000_000] {
            let slowed = pad(5.0, 10_000, took_ns);
            let owed_ns = slowed.took_ns / 20;
            assert_eq!((slowed.calls, slowed.took_ns), (10_000, 10_000 * (took_ns + 25)));
            assert!((owed_ns..owed_ns + 25).contains(&slowed.added_ns), "{slowed:?}");
        }
    }

    #[test]
    fn nothing_is_added_to_what_is_compared_with() {
        let slowed = pad(0.0, 1_000, 975);
        assert_eq!((slowed.took_ns, slowed.added_ns), (1_000_000, 0));
    }

    #[test]
    fn threads_are_added_up() {
        let both = pad(10.0, 10, 975).with(pad(10.0, 30, 975));
        assert_eq!((both.calls, both.took_ns, both.added_ns), (40, 40_000, 4_000));
    }

    #[test]
    fn slowdowns_as_people_write_them() {
        let five = Slowdown { verb: Verb::Create, percent: 5.0 };
        assert_eq!((Slowdown::parse("create:5%"), Slowdown::parse("create:5")), (Ok(five), Ok(five)));
        assert_eq!((five.to_string(), five.none().to_string()), ("create:5%".to_owned(), "create:0%".to_owned()));
        let refused = |text: &str| Slowdown::parse(text).unwrap_err();
        assert!(refused("creat:5%").contains("`creat` is no operation; there are create, mkdir"));
        assert!(refused("enter:5%").contains("`enter` is no operation"));
        assert!(refused("create").contains("OPERATION:PERCENT"));
        for percent in ["0", "-5%", "1001%", "much", "NaN", "inf", "", "5%%"] {
            assert!(refused(&format!("create:{percent}")).contains("as in create:5%"), "{percent}");
        }
    }
}
