//! How much may wait: the memory of what soft updates hold is bounded, as McKusick and Ganger bound the number of their structures (`max_softdeps`).
//!
//! ```text
//! above half of the limit    the background thread is woken, and writes what is oldest
//! above the limit            who begins an operation that changes anything waits until all that was changed before lasts
//! ```
//!
//! Counted is what a block with a shadow takes at most: its shadow, the image of it that a round keeps until it lasts, and the copy of that which is
//! written. Its frame is one of the cache. What is freed and waits counts as what its lists take. Operations that have begun are not
//! stopped: what is held may exceed the limit by what those change that run at the same time.

use super::{Freed, Soft, State};
use crate::types::MountOptions;
use std::sync::atomic::Ordering;

/// Copies of a block of which something waits.
const COPIES: u64 = 3;
/// Bytes of what is remembered of a block beside them, or of a file of several names.
const ENTRY: u64 = 64;
/// Unless an option says otherwise, at most.
const USUAL_MAX: u64 = 256 << 20;

/// The limit of an opening.
pub(super) fn limit_of(options: &MountOptions) -> u64 {
    options.softdep_memory.unwrap_or((options.cache_size / 4).min(USUAL_MAX))
}

impl Freed {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        let lists = size_of_val(&self.extents[..]) + size_of_val(&self.inodes[..]) + size_of_val(&self.from[..]);
        (size_of::<Self>() + lists) as u64
    }
}

impl State {
    /// Bytes that are held, or will be while what waits is written.
    fn held(&self, block_size: usize) -> u64 {
        let blocks = (self.shadows.len() + self.ghosts.len()) as u64;
        blocks * (COPIES * block_size as u64 + ENTRY) + self.freed_bytes + self.unsure.len() as u64 * ENTRY
    }
}

impl Soft {
    pub fn set_limit(&self, options: &MountOptions) {
        self.limit.store(limit_of(options), Ordering::Relaxed);
    }

    /// Notes how much is held. The state has changed, and is still locked.
    pub(super) fn weigh(&self, state: &State) {
        let held = state.held(self.block_size);
        self.held.store(held, Ordering::Relaxed);
        self.held_peak.fetch_max(held, Ordering::Relaxed);
    }

    /// Whether so much is held that some of it should be written.
    #[inline]
    pub fn is_much(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed) / 2
    }

    /// Whether nobody may add to it.
    pub fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed)
    }
}
