//! Which block a frame holds, for whoever knows the frame from before.
//!
//! A frame changes its block without its latch. The checkpointer has lists of frames and stands outside the gate; an operation guesses that a block is
//! where it last met it. Both find in the header whether the frame is still the block's. So
//!
//! | who gives the frame to a block | who asks |
//! |---|---|
//! | 1. Stores the number | 1. Loads the flags (acquire) |
//! | 2. Stores flags by which the frame is in use (release) | 2. Loads the number |
//!
//! Whoever finds the flags of a use finds its number, or that of a later use. If the number were loaded first, the frame could get another block between the
//! two loads: the old number and the new flags would pass for one use. The order of the loads does not keep the flags of one use from being met with the number
//! of a later one that has the same flags: then the frame is the later block's, and whoever asks for that block is right.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Gives a frame, which nobody finds yet, to `block`: from here on it is in use, with these flags.
#[inline(always)]
pub(crate) fn give(holds: &AtomicU64, flags: &AtomicU32, block: u64, in_use: u32) {
    holds.store(block, Ordering::Relaxed);
    flags.store(in_use, Ordering::Release);
}

/// Whether a frame holds `block`, and of the flags in `asked` has those that are `wanted`: some that a frame has only in use. It stays so
/// inside the gate, because no frame is freed there; and under the latch, if the frame is `DATA_DIRTY`, because `Cache::kill` takes the latch
/// and nothing else takes such a frame away.
#[inline(always)]
pub(crate) fn is_still(holds: &AtomicU64, flags: &AtomicU32, block: u64, asked: u32, wanted: u32) -> bool {
    let found = flags.load(Ordering::Acquire);
    holds.load(Ordering::Relaxed) == block && found & asked == wanted
}
