//! How the background thread is woken.
//!
//! What it is asked for is noted under the lock under which it looks before it waits, so nothing is asked for in vain. What it takes is all that has been
//! asked for by then; what comes while it works, it finds when it looks again.

use crate::sync::{Condvar, Mutex};
use std::time::Duration;

/// What the background thread is told.
#[derive(Clone, Copy, Default)]
pub(crate) struct Told {
    /// A checkpoint is due.
    pub wanted: bool,
    /// Dirty data is to be flushed before it.
    pub flush: bool,
    /// Some of what soft updates hold is to be written.
    pub shed: bool,
    /// It is to end. That stays.
    pub stop: bool,
}

pub(crate) struct Wake {
    told: Mutex<Told>,
    changed: Condvar,
}

impl Wake {
    pub fn new() -> Self {
        Self { told: Mutex::new(Told::default()), changed: Condvar::new() }
    }

    pub fn ask(&self, flush: bool) {
        let mut told = self.told.lock();
        told.flush |= flush;
        if !told.wanted {
            told.wanted = true;
            self.changed.notify_one();
        }
    }

    pub fn ask_to_shed(&self) {
        let mut told = self.told.lock();
        if !told.shed {
            told.shed = true;
            self.changed.notify_one();
        }
    }

    pub fn stop(&self) {
        let mut told = self.told.lock();
        told.stop = true;
        self.changed.notify_one();
    }

    /// The interval has changed: the thread may be waiting by the old one.
    pub fn look_again(&self) {
        let _told = self.told.lock();
        self.changed.notify_one();
    }

    /// Whether the thread should leave what can wait.
    pub fn is_wanted(&self) -> bool {
        let told = self.told.lock();
        told.wanted || told.stop
    }

    /// For the background thread: waits until it is told something, at most for `interval`, if that says anything, and takes what it was told. And
    /// whether the interval passed.
    pub fn wait(&self, interval: impl Fn() -> Option<Duration>) -> (Told, bool) {
        let mut told = self.told.lock();
        let mut timed_out = false;
        while !told.wanted && !told.shed && !told.stop && !timed_out {
            // It may change while we wait: we are woken then.
            match interval() {
                None => self.changed.wait(&mut told),
                Some(interval) => timed_out = self.changed.wait_for(&mut told, interval).timed_out(),
            }
        }
        let taken = *told;
        *told = Told { stop: taken.stop, ..Told::default() };
        (taken, timed_out)
    }
}
