//! Whether directories may have a second name, which a rename has left that power loss cut short on a volume of order `softdep`. Such names are looked for
//! after the opening (`ops/leftovers.rs`); until all directories have been looked at, some operations wait, or look for themselves.

use crate::locks::{Mutex, MutexGuard, Rank};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(crate) struct SecondNames {
    may_be: AtomicBool,
    search: Mutex<{ Rank::SecondNames as u8 }, ()>,
}

impl SecondNames {
    /// Whether there may be any.
    #[inline]
    pub fn may_be(&self) -> bool {
        self.may_be.load(Ordering::Acquire)
    }

    /// The last opening ended by a crash.
    pub fn begin(&self) {
        self.may_be.store(true, Ordering::Release);
    }

    /// Held by who looks for all of them. `None`: somebody has done so.
    pub fn search(&self) -> Option<MutexGuard<'_, ()>> {
        let guard = self.search.lock();
        self.may_be().then_some(guard)
    }

    /// There are none any more, and none will come.
    pub fn end(&self, _: MutexGuard<'_, ()>) {
        self.may_be.store(false, Ordering::Release);
    }
}
