//! What the maker of checkpoints keeps from one to the next: plain state, without the code that makes them.
//!
//! A volume owns its checkpointer, so the state lies below the volume and knows nothing of it. What is done with it lies above: `checkpoint`,
//! the orders, and `moment` add their functions to [`Checkpointer`].

use super::epoch::Freed;
use super::images::Images;
use super::orphan_list::OrphanList;
use super::soft::Round;
use crate::cache::Placed;
use myriad_device::{AlignedBuf, BeforeImages};
use myriad_format::{FsBlock, Lsn};
use myriad_log::{Checkpoint, Log, Sealed};
use std::collections::BTreeSet;

/// What only the maker of checkpoints touches. Its lock does not remember a panic of who had it: what changes something here for
/// others to go on from runs in [`Volume::unbroken`].
pub(crate) struct Checkpointer {
    pub(super) log: Option<Log>,
    pub(super) builder: Checkpoint,
    /// Frames with logged changes not yet home.
    pub(super) away: Vec<u32>,
    /// Fresh blocks, copied while the gate was closed. Their frames stay until they are home.
    pub(super) fresh: Images,
    /// Blocks that go home once their epoch is durable.
    pub(super) hot: Images,
    /// Which blocks with logged changes are to go home, as there is little room in the log or the cache.
    pub(super) homing: Homing,
    /// Through which file data and blocks that go home are written.
    pub(super) staging: AlignedBuf,
    /// Extents freed by a durable epoch that have not reached the trees yet.
    pub(super) released: Vec<(FsBlock, u32)>,
    /// An epoch, and the bytes of its log that putting them there has taken.
    pub(super) release_cost: (u64, u64),
    /// Epochs below this one are durable.
    pub durable: u64,
    /// Order `sync`: of epochs below this one all that their operations promise is durable.
    pub returned: u64,
    /// Oldest log position that blocks forgotten in the epoch being committed still need.
    pub(super) needed: Option<Lsn>,
    pub orphan_list: OrphanList,
    /// A closed epoch that is not durable.
    pub(super) pending: Option<Pending>,
    /// Orders `sync` and `softdep`: a round that is not durable.
    pub(super) round: Option<Round>,
    /// The volume is closed: there are no further checkpoints.
    pub(super) is_closed: bool,
    /// Order `softdep`: a moment that begins once nothing waits to be written.
    pub(super) to_hold: Option<BeforeImages>,
    /// A committed state that somebody reads, and how many there were.
    pub(super) held: Option<Held>,
    pub(super) moments: u64,
}

/// Blocks that are to go home, by the log position from which their changes can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Homing {
    None,
    Before(Lsn),
    All,
}

impl Homing {
    pub fn includes(self, lsn: Lsn) -> bool {
        match self {
            Self::None => false,
            Self::Before(before) => lsn < before,
            Self::All => true,
        }
    }
}

/// A closed epoch on its way to the device. It stays when the host has no room for a write of it, and is written again.
pub(super) struct Pending {
    pub number: u64,
    pub freed: Freed,
    /// File data, sorted.
    pub ordered: Vec<Placed>,
    /// Order `none`: changed blocks, sorted.
    pub home: Vec<Placed>,
    /// Order `log`: the checkpoint, once it has its place in the log, and the length of its body.
    pub sealed: Option<Sealed>,
    pub body_len: u64,
    /// Order `log`: what was written before the commit record needs a flush of its own.
    pub has_unflushed: bool,
}

/// What the checkpointer has of a moment.
pub(super) struct Held {
    pub number: u64,
    pub images: BeforeImages,
    /// As [`super::moment::HeldMoment::nameless`].
    pub nameless: BTreeSet<u64>,
}

impl Checkpointer {
    pub fn new(log: Option<Log>, pending: Vec<(FsBlock, u32)>, block_size: usize) -> Self {
        Self {
            log,
            builder: Checkpoint::new(block_size),
            away: Vec::new(),
            fresh: Images::new(block_size),
            hot: Images::new(block_size),
            homing: Homing::None,
            staging: AlignedBuf::default(),
            released: pending,
            release_cost: (0, 0),
            durable: 1,
            returned: 1,
            needed: None,
            orphan_list: OrphanList::default(),
            pending: None,
            round: None,
            is_closed: false,
            to_hold: None,
            held: None,
            moments: 0,
        }
    }

    /// Blocks freed durably that are in no tree yet.
    pub fn released_blocks(&self) -> u64 {
        self.released.iter().map(|&(_, length)| u64::from(length)).sum()
    }

    /// Whether the last checkpoint or round did not come to its end: the host had no room for it.
    pub fn is_cut_short(&self) -> bool {
        self.pending.is_some() || self.round.is_some()
    }

    /// Bytes of the log that recovery would read.
    pub fn log_used(&self) -> Option<u64> {
        self.log.as_ref().map(Log::used)
    }

    /// Whether some logged change is not home yet, or blocks wait for the trees.
    pub(super) fn is_settled(&self) -> bool {
        self.away.is_empty() && self.released.is_empty()
    }
}
