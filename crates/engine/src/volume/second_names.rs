//! Whether directories of this volume may have a second name. On a volume of order `sync` or `softdep`, a rename that a power loss cut short leaves the
//! directory under its old and its new name.
//!
//! A thread looks for such names after the opening (`ops/leftovers.rs`). Until it has looked at all directories, operations that could be led astray
//! wait for it, or look at the name in question themselves.

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

    /// The last opening ended by a crash, and that or an earlier one may have left some.
    pub fn begin(&self) {
        self.may_be.store(true, Ordering::Release);
    }

    /// Held by who looks for all of them. `None`: somebody has done so.
    pub fn search(&self) -> Option<MutexGuard<'_, ()>> {
        let guard = self.search.lock();
        self.may_be().then_some(guard)
    }

    /// There are none any more, and none will come, but for what could not be read ([`Volume::may_have_unread_names`](super::Volume::may_have_unread_names)):
    /// nobody waits for that.
    pub fn end(&self, _: MutexGuard<'_, ()>) {
        self.may_be.store(false, Ordering::Release);
    }
}
