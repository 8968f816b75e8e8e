//! What a truncation to nothing has left in a file's inode, in one word.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The inode has content, or never had any: a checkpoint may show it as it is.
    Whole,
    /// The inode is empty because the file was cut.
    Bare,
    /// Since it was cut, new content came; first in this epoch.
    Filled(u64),
}

/// It changes under the file's data lock.
pub(super) struct CutWord(AtomicU64);

// No epoch has these numbers: the first is 1.
const WHOLE: u64 = 0;
const BARE: u64 = u64::MAX;

impl CutWord {
    pub const fn new() -> Self {
        Self(AtomicU64::new(WHOLE))
    }

    pub fn get(&self) -> Cut {
        match self.0.load(Ordering::Relaxed) {
            WHOLE => Cut::Whole,
            BARE => Cut::Bare,
            epoch => Cut::Filled(epoch),
        }
    }

    pub fn set(&self, cut: Cut) {
        let word = match cut {
            Cut::Whole => WHOLE,
            Cut::Bare => BARE,
            Cut::Filled(epoch) => {
                debug_assert!(epoch != WHOLE && epoch != BARE);
                epoch
            }
        };
        self.0.store(word, Ordering::Relaxed);
    }
}
