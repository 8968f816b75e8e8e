//! What of a frame its block's home does not have, and since when: two words of the frame's header.

use myriad_format::Lsn;
use std::sync::atomic::{AtomicU64, Ordering};

/// A frame of metadata has changes of closed epochs here. While any are not home, it is not evicted. A frame of file data has the
/// epoch in which it got its block. No frame is both, so they share a word. Changes only under the exclusive latch or by
/// the checkpointer.
pub(crate) struct Unhomed {
    /// Metadata: granules that closed epochs changed and that are not home. All of them if there is no log to have them.
    granules: AtomicU64,
    /// Metadata: the log position from which `granules` can be replayed; meaningless when that is 0. Data: an epoch.
    since: AtomicU64,
}

impl Unhomed {
    pub fn is_any(&self) -> bool {
        self.granules.load(Ordering::Relaxed) != 0
    }

    pub fn clear(&self) {
        self.granules.store(0, Ordering::Relaxed);
    }

    /// The log has these granules too, at `lsn`.
    pub fn add_logged(&self, granules: u64, lsn: Lsn) {
        let before = self.granules.load(Ordering::Relaxed);
        if before == 0 {
            self.since.store(lsn.0, Ordering::Relaxed);
        }
        debug_assert!(self.since.load(Ordering::Relaxed) <= lsn.0, "logged in the order of the log");
        self.granules.store(before | granules, Ordering::Relaxed);
    }

    /// The log position from which changes that are not home can be replayed, if there are any; position 0 if no log has them
    /// ([`Self::set_whole`]).
    #[inline]
    pub fn logged_from(&self) -> Option<Lsn> {
        self.is_any().then(|| Lsn(self.since.load(Ordering::Relaxed)))
    }

    /// The whole block waits to be written home, or for what it depends on, and no log has it.
    pub fn set_whole(&self) {
        self.granules.store(u64::MAX, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
    }

    /// File data got its block in this epoch.
    pub fn publish(&self, epoch: u64) {
        self.since.store(epoch, Ordering::Relaxed);
    }

    pub fn is_published_in(&self, epoch: u64) -> bool {
        self.since.load(Ordering::Relaxed) == epoch
    }
}
