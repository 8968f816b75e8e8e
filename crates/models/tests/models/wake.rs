//! How the background thread is woken (`engine/src/volume/wake.rs`). It waits without an interval, so a wake-up that is lost is a deadlock.
//!
//! Asserted:
//!   1. What is asked for is done, and so is what was asked for together with it: who asks for a checkpoint that flushes first gets that.
//!   2. A change of the interval is seen, though the thread waits by the old one.
//!   3. The thread ends once it is told to, and what it is told after that changes nothing.
//!
//! Shuttle has seen each of these fail: `ask`, `ask_to_shed`, `stop` or `look_again` that wakes nobody; `look_again` without the lock; a `wait` that lets
//! the lock go between its look and the wait, or between what it returns and what it clears, or that clears `stop`.

use super::ALL;
use crate::engine::wake::Wake;
use crate::sync::{AtomicU64, Ordering};
use crate::tool::{ROUNDS, explore, thread};
use std::sync::Arc;
use std::time::Duration;

struct Volume {
    wake: Wake,
    /// Checkpoints with a flush, and how often something was shed, as they were asked for and as they were done: the number of those
    /// asked for is taken before the work is.
    asked: [AtomicU64; 2],
    done: [AtomicU64; 2],
}

impl Volume {
    fn new() -> Arc<Self> {
        let numbers = || std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Self { wake: Wake::new(), asked: numbers(), done: numbers() })
    }

    fn ask(&self, what: usize) {
        self.asked[what].fetch_add(1, Ordering::Relaxed);
        if what == 0 { self.wake.ask(true) } else { self.wake.ask_to_shed() }
    }

    fn is_all_done(&self) -> bool {
        let number = |of: &AtomicU64| of.load(Ordering::Relaxed);
        self.asked.iter().zip(&self.done).all(|(asked, done)| number(asked) == number(done))
    }

    /// The background thread, until both have asked for all that they want, and that is done.
    fn work(&self) {
        while !(self.is_all_done() && self.asked.iter().all(|asked| asked.load(Ordering::Relaxed) == ROUNDS)) {
            let (told, timed_out) = self.wake.wait(|| None);
            assert!(!timed_out && (told.wanted || told.shed), "woken for nothing");
            assert_eq!(told.wanted, told.flush, "each that is asked for here flushes");
            for (what, is_asked) in [told.flush, told.shed].into_iter().enumerate() {
                if is_asked {
                    self.done[what].store(self.asked[what].load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        }
    }
}

#[test]
fn what_is_asked_for_is_done() {
    explore(4, || {
        let volume = Volume::new();
        let asking = [0, 1].map(|what| {
            let volume = volume.clone();
            thread::spawn(move || (0..ROUNDS).for_each(|_| volume.ask(what)))
        });
        volume.work();
        asking.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_new_interval_is_seen() {
    explore(ALL, || {
        let volume = Volume::new();
        let interval = Arc::new(AtomicU64::new(0));
        let background = {
            let (volume, interval) = (volume.clone(), interval.clone());
            thread::spawn(move || {
                let now = || Some(interval.load(Ordering::Relaxed)).filter(|&now| now > 0).map(Duration::from_millis);
                assert!(volume.wake.wait(now).1, "it has passed");
            })
        };
        interval.store(1, Ordering::Relaxed);
        volume.wake.look_again();
        background.join().unwrap();
    });
}

#[test]
fn who_is_told_to_end_ends() {
    explore(ALL, || {
        let volume = Volume::new();
        let background = {
            let volume = volume.clone();
            thread::spawn(move || while !volume.wake.wait(|| None).0.stop {})
        };
        let asking = {
            let volume = volume.clone();
            thread::spawn(move || volume.wake.ask(false))
        };
        volume.wake.stop();
        background.join().unwrap();
        asking.join().unwrap();
        assert!(volume.wake.is_wanted() && volume.wake.wait(|| None).0.stop, "that stays");
    });
}
