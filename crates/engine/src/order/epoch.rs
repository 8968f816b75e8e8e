//! Epochs: what operations change between two checkpoints, while it gathers and on its way to the device.

use super::Txn;
use super::group_commit::EpochNumber;
use super::log::{EpochCost, Forgotten};
use super::orphan_list::OrphanList;
use crate::cache::Closed;
use crate::error::Result;
use crate::locks::{Mutex, Rank};
use crate::volume::Volume;
use myriad_format::FsBlock;
use myriad_log::Sealed;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the operations since the last checkpoint have changed.
pub(crate) struct OpenEpoch {
    /// Frames changed, a list a thread slot.
    pub(super) dirty: Box<[Mutex<{ Rank::Leaf as u8 }, Vec<u32>>]>,
    pub freed: Mutex<{ Rank::Freed as u8 }, Freed>,
    /// File data that must be on the device before the commit: block and frame.
    pub ordered: Mutex<{ Rank::Leaf as u8 }, Vec<(u64, u32)>>,
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
            dirty: (0..64).map(|_| Mutex::new(Vec::new())).collect(),
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
    /// File data: block and frame.
    pub ordered: Vec<(u64, u32)>,
}

/// A closed epoch on its way to the device. It stays when the host has no room for a write of it, and is written again.
pub(super) struct Pending {
    pub number: u64,
    pub freed: Freed,
    /// File data: block and frame, sorted.
    pub ordered: Vec<(u64, u32)>,
    /// Order `none`: changed blocks and their frames, sorted.
    pub home: Vec<(u64, u32)>,
    /// Order `log`: the checkpoint, once it has its place in the log, and the length of its body.
    pub sealed: Option<Sealed>,
    pub body_len: u64,
    /// Order `log`: what was written before the commit record needs a flush of its own.
    pub has_unflushed: bool,
}

/// Ends the open epoch behind the closed gate, and begins the next one.
/// Freed extents that are `waiting` for the trees, and those of this epoch, count in the next one as long as they wait: each
/// checkpoint names them, and whoever frees faster than they are put into the trees is held up.
pub(super) fn close_epoch<'a>(
    volume: &'a Volume,
    closed: &'a Closed<'a>,
    waiting: usize,
    orphan_list: &mut OrphanList,
) -> Result<ClosedEpoch> {
    // Whoever was inside while the gate was being closed may have ended in the middle of his changes.
    volume.check_not_shut_down()?;
    let mut txn = Txn::behind(volume, closed);
    // Without a checkpoint nothing says when a list and what it lists are as of the same moment: the check finds what soft updates leave.
    let orphans = if volume.soft.is_some() { BTreeSet::new() } else { volume.orphans.numbers() };
    let prepared =
        orphan_list.write(&mut txn, orphans).and_then(|()| volume.prepare_capture(&mut txn, orphan_list.root()));
    txn.finish(prepared)?;
    let epoch = &volume.epoch;
    let waiting = waiting + epoch.freed.lock().limbo.len();
    epoch.cost.reset(waiting);
    epoch.ordered_count.store(0, Ordering::Relaxed);
    Ok(ClosedEpoch {
        number: epoch.number.advance(closed),
        dirty: epoch.take_dirty(),
        freed: std::mem::take(&mut *epoch.freed.lock()),
        ordered: {
            let mut ordered = std::mem::take(&mut *epoch.ordered.lock());
            ordered.sort_unstable();
            ordered.dedup();
            ordered
        },
    })
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
