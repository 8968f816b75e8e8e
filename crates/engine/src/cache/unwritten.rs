//! File data that changes while it is being written.
//!
//! A frame of file data that is to be written before a commit is `DATA_DIRTY`. It is written from a copy, beside which it may change again. So
//!
//! | who writes it | who changes it |
//! |---|---|
//! | 1. Under the latch, shared: takes `CHANGED_AGAIN` away, and copies the bytes | Under the latch, alone: changes the bytes, and sets `CHANGED_AGAIN` |
//! | 2. Writes the copy | |
//! | 3. Under the latch, alone: takes `DATA_DIRTY` away, unless it finds `CHANGED_AGAIN` | |
//!
//! What is no longer `DATA_DIRTY` is on the device as it is. Other flags of the frame change at the same time, some without the latch.

use super::flag;
use crate::planted::{Bug, planted};
use crate::sync::{AtomicU32, Ordering};

/// Whether these are the flags of file data that is still to be written.
#[inline]
pub(crate) fn is_unwritten(flags: u32) -> bool {
    flags & (flag::DATA_DIRTY | flag::KIND) == flag::DATA_DIRTY | flag::DATA
}

/// The bytes are about to be copied, to be written. The latch is held.
#[inline]
pub(crate) fn begin_write(flags: &AtomicU32) {
    flags.fetch_and(!flag::CHANGED_AGAIN, Ordering::Relaxed);
}

/// The bytes of a frame that is still to be written have changed. The latch is held for change.
#[inline]
pub(crate) fn change_again(flags: &AtomicU32) {
    flags.fetch_or(flag::CHANGED_AGAIN, Ordering::Relaxed);
}

/// The copy has been written; the flags as they were, if that is what the frame holds. The latch is held for change.
#[inline]
pub(crate) fn end_write(flags: &AtomicU32) -> Option<u32> {
    let has_changed = flags.load(Ordering::Relaxed) & flag::CHANGED_AGAIN != 0;
    (!has_changed || planted(Bug::ChangedAgainForgotten)).then(|| flags.fetch_and(!flag::DATA_DIRTY, Ordering::Relaxed))
}
