//! How much may wait: the memory of what soft updates hold is bounded, as McKusick and Ganger bound the number of their structures (`max_softdeps`).
//!
//! ```text
//! above half of the limit    the background thread is woken, and writes what is oldest
//! above the limit            who begins an operation that changes anything waits until all that was changed before lasts
//! ```
//!
//! Counted are the shadows with all that lies in them, what is known of names that have changed, and the lists of what was freed; and what the next
//! round may add to a shadow: the words of an image that it undoes, and names in it that were not looked at yet. Images are made of frames and shadows while they
//! are written, a few MiB at a time; those are not counted. Frames of the cache that have to stay have a limit of their own. Operations that have begun
//! are not stopped: what is held may exceed the limit by what those change that run at the same time.

use super::{Freed, Soft, State};
use crate::types::MountOptions;
use std::sync::atomic::Ordering;

/// Bytes that the map takes for a shadow or a ghost beside itself: a key and a reference in nodes that are two thirds full, and what the allocator adds.
const ENTRY: u64 = size_of::<(u64, usize)>() as u64 * 3 / 2 + 16;
/// Bytes of a block in the list of those of directories, in such nodes.
const LISTED: u64 = size_of::<(u64, u64)>() as u64 * 3 / 2;
/// Unless an option says otherwise, at most.
const USUAL_MAX: u64 = 256 << 20;

/// The limit of an opening.
pub(super) fn limit_of(options: &MountOptions) -> u64 {
    options.softdep_memory.unwrap_or((options.cache_size / 4).min(USUAL_MAX))
}

/// So many frames of the cache may have to stay there: a quarter.
pub(super) fn frames_limit(options: &MountOptions, block_size: usize) -> u64 {
    (options.cache_size / 4) / block_size as u64
}

impl Freed {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        let lists = size_of_val(&self.extents[..]) + size_of_val(&self.inodes[..]) + size_of_val(&self.from[..]);
        (size_of::<Self>() + lists) as u64
    }
}

impl State {
    /// Bytes that are held.
    fn bytes(&self) -> u64 {
        let entries = (self.shadows.len() + self.ghosts.len()) as u64 * ENTRY + self.directories.len() as u64 * LISTED;
        let lists = self.freed_bytes + (self.stale.len() * size_of::<u64>()) as u64;
        entries + self.memory + self.pending.memory() + lists
    }
}

impl Soft {
    pub fn set_limit(&self, options: &MountOptions) {
        self.limit.store(limit_of(options), Ordering::Relaxed);
    }

    /// Notes how much is held. The state has changed, and is still locked.
    pub(super) fn weigh(&self, state: &State) {
        let bytes = state.bytes();
        self.bytes.store(bytes, Ordering::Relaxed);
        self.bytes_peak.fetch_max(bytes, Ordering::Relaxed);
        let held = bytes + state.reserve;
        self.held.store(held, Ordering::Relaxed);
        self.frames.store(state.shadows.len() as u64, Ordering::Relaxed);
        self.held_peak.fetch_max(held, Ordering::Relaxed);
    }

    /// Whether so much is held that some of it should be written.
    #[inline]
    pub fn is_much(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed) / 2
            || self.frames.load(Ordering::Relaxed) > self.frames_limit / 2
    }

    /// Whether nobody may add to it.
    pub fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed)
            || self.frames.load(Ordering::Relaxed) > self.frames_limit
    }
}
