//! Epochs: the changes that operations make between two checkpoints.
//!
//! One epoch is open and gathers changes; there may be one more that is closed and on its way to the device. Every operation adds to the open
//! epoch what it changed when its transaction ends.

use super::group_commit::EpochNumber;
use super::log::cost::EpochCost;
use super::log::forgotten::Forgotten;
use crate::cache::{Closed, Placed};
use crate::locks::{Mutex, Rank};
use crate::thread_slot::SLOTS;
use myriad_format::FsBlock;
use std::sync::atomic::AtomicU64;

/// What the operations since the last checkpoint have changed.
pub(crate) struct OpenEpoch {
    /// Frames changed, a list a thread slot.
    pub(super) dirty: Box<[Mutex<{ Rank::Leaf as u8 }, Vec<u32>>]>,
    pub freed: Mutex<{ Rank::Freed as u8 }, Freed>,
    /// File data that must be on the device before the commit.
    pub ordered: Mutex<{ Rank::Leaf as u8 }, Vec<Placed>>,
    /// How many those are, readable without the lock.
    pub ordered_count: AtomicU64,
    /// What all this will take of the log and the next checkpoint.
    pub cost: EpochCost,
    number: EpochNumber,
}

/// What an epoch gave up.
#[derive(Default)]
pub(crate) struct Freed {
    /// Extents freed: not in the trees until the epoch is durable.
    pub limbo: Vec<(FsBlock, u32)>,
    /// Metadata blocks forgotten: what the log is to know of them.
    pub forgotten: Forgotten,
}

impl OpenEpoch {
    pub fn new(granule_size: usize) -> Self {
        Self {
            dirty: (0..SLOTS).map(|_| Mutex::new(Vec::new())).collect(),
            freed: Mutex::new(Freed::default()),
            ordered: Mutex::new(Vec::new()),
            ordered_count: AtomicU64::new(0),
            cost: EpochCost::new(granule_size),
            number: EpochNumber::new(),
        }
    }

    /// Number of the open epoch. It stays the same for whoever is inside the gate.
    pub fn current(&self) -> u64 {
        self.number.current()
    }

    /// Begins the next epoch, and gives the number of the one that ends.
    pub(super) fn advance(&self, closed: &Closed<'_>) -> u64 {
        self.number.advance(closed)
    }

    /// Takes all lists of changed frames. While the gate is closed.
    pub fn take_dirty(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for list in &self.dirty {
            all.append(&mut list.lock());
        }
        all
    }

    /// Whether anything waits for a checkpoint.
    pub fn is_empty(&self) -> bool {
        self.dirty.iter().all(|list| list.lock().is_empty())
            && self.freed.lock().limbo.is_empty()
            && self.ordered.lock().is_empty()
    }
}

/// What an epoch changed, taken when it closed.
pub(super) struct ClosedEpoch {
    pub number: u64,
    pub dirty: Vec<u32>,
    pub freed: Freed,
    /// File data, sorted.
    pub ordered: Vec<Placed>,
}

/// Joins extents that touch.
pub(super) fn join_neighbours(extents: &mut Vec<(FsBlock, u32)>) {
    extents.sort_unstable();
    extents.dedup_by(|next, joined| {
        let touches = joined.0.0 + u64::from(joined.1) == next.0.0 && joined.1.checked_add(next.1).is_some();
        if touches {
            joined.1 += next.1;
        }
        touches
    });
}
