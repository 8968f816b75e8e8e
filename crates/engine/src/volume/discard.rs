//! Free space goes back to the host: by itself as it becomes free, and when somebody asks for it ([`Volume::trim`]).
//!
//! ```text
//! freed -> its epoch is durable -> in the trees: young -> one checkpoint later: old -> given back, if it is free still
//! ```
//!
//! By itself. A discard costs the host some 50 microseconds of processor time, however long its range is. So what goes back is whole
//! pieces, 64 KiB at their natural place ([`MountOptions::discard_piece`]), and a piece goes back when the last block of it has
//! become free: at most one discard for each piece that was freed, and one for many that lie side by side. A file of 4 KiB
//! that is removed between others leaves its block to the host's account until its neighbours are gone, too, or until
//! somebody asks. What was freed waits for one more checkpoint, because much of it is allocated again at once, and a host
//! writes to a hole more slowly than to a block that it has already.
//!
//! Invariants
//!   1. A block is given back only while it is in a free-space tree and its group is locked: nobody can allocate it before the
//!      host has answered. Given back a moment later, it could hold its next owner's data.
//!      For the same reason nothing is given back once the volume is closed, but by the closing itself: whoever opens it next allocates as well.
//!   2. What is in a tree was freed by a durable epoch, so no state that a crash can leave refers to it.
//!
//! What waits is in memory only. After a crash, and of pieces beyond `WAITING_MAX`, it is left to `trim`.
//!
//! Not here: whether the host can do it, and what its device says of that (`myriad_device::Discards`).

use super::Volume;
use crate::cache::Sweep;
use crate::counters::Count;
use crate::error::{Errno, Error, Result};
use crate::locks::{Mutex, Rank};
use crate::order::Look;
use crate::types::{Discard, MountOptions};
use myriad_device::{BlockDevice, Discards};
use myriad_format::{AgBlock, AgNo, FsBlock, Geometry};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ranges that wait, at most: 4 MiB of them.
const WAITING_MAX: usize = 1 << 18;
/// The most that is given back at a time, in bytes: who allocates in the same group waits for it.
const STEP_BYTES: u64 = 64 << 20;

/// What waits for being given back.
pub(crate) struct ToHost {
    /// Blocks of a piece; 0 if nothing goes back by itself.
    piece: AtomicU32,
    /// Of the volume.
    block_count: u64,
    waiting: Mutex<{ Rank::Leaf as u8 }, Waiting>,
}

/// Ranges of blocks, in whole pieces. Not all of their blocks need be free.
#[derive(Default)]
struct Waiting {
    young: Vec<Range<u64>>,
    old: Vec<Range<u64>>,
}

impl ToHost {
    pub fn new(options: &MountOptions, device: &dyn BlockDevice, geometry: &Geometry) -> Self {
        let to_host = Self {
            piece: AtomicU32::new(0),
            block_count: geometry.block_count,
            waiting: Mutex::new(Waiting::default()),
        };
        to_host.set(options, device, geometry);
        to_host
    }

    /// From now on this is what goes back. What waits is forgotten if nothing does, and otherwise goes by the new size.
    pub fn set(&self, options: &MountOptions, device: &dyn BlockDevice, geometry: &Geometry) {
        let wanted = match options.discard {
            Discard::Auto => device.discards() == Discards::Always,
            Discard::Always => true,
            Discard::Never => false,
        };
        let blocks = options.discard_piece.max(1).div_ceil(geometry.block_size() as u64).next_power_of_two();
        // So that a small group has pieces at all.
        let piece = blocks.min(u64::from(geometry.ag_blocks() / 8)) as u32;
        let piece = if wanted && !options.read_only { piece } else { 0 };
        self.piece.store(piece, Ordering::Relaxed);
        if piece == 0 {
            self.forget();
        }
    }

    /// Blocks of a piece; `None` if nothing goes back by itself.
    fn piece(&self) -> Option<u32> {
        Some(self.piece.load(Ordering::Relaxed)).filter(|&piece| piece > 0)
    }

    /// Extents have been put into the trees, in the order of their places.
    pub fn note(&self, extents: &[(FsBlock, u32)]) {
        let Some(piece) = self.piece().map(u64::from) else { return };
        let young = &mut self.waiting.lock().young;
        for &(start, length) in extents {
            let end = (start.0 + u64::from(length)).next_multiple_of(piece).min(self.block_count);
            let range = start.0 / piece * piece..end;
            let has_room = young.len() < WAITING_MAX;
            match young.last_mut() {
                Some(last) if (last.start..=last.end).contains(&range.start) => last.end = last.end.max(range.end),
                _ if has_room => young.push(range),
                _ => {}
            }
        }
    }

    /// A checkpoint begins to put what was freed into the trees.
    pub fn grow_old(&self) {
        if self.piece().is_some() {
            let waiting = &mut *self.waiting.lock();
            waiting.old.append(&mut waiting.young);
            waiting.old.truncate(WAITING_MAX);
        }
    }

    fn is_empty(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.young.is_empty() && waiting.old.is_empty()
    }

    /// What is to go back next; with `all`, also what has not waited long enough.
    fn next(&self, all: bool) -> Option<Range<u64>> {
        let waiting = &mut *self.waiting.lock();
        waiting.old.pop().or_else(|| if all { waiting.young.pop() } else { None })
    }

    fn forget(&self) {
        *self.waiting.lock() = Waiting::default();
    }

    fn put_back(&self, rest: Range<u64>) {
        self.waiting.lock().old.push(rest);
    }
}

/// Blocks of a group.
type Part = Range<u32>;

impl Volume {
    /// Whether something freed waits for a checkpoint to go back to the host.
    pub fn has_to_give_back(&self) -> bool {
        self.to_host.piece().is_some()
            && self.device.discards() != Discards::Never
            && (!self.to_host.is_empty() || self.checkpointer.lock().released_blocks() > 0)
    }

    /// Gives back what has waited long enough, until the background thread has something better to do; `all`: everything. What a
    /// damaged group has is left alone: whoever needs the group is told.
    pub fn give_back(&self, all: bool) {
        let Some(piece) = self.to_host.piece() else { return };
        while let Some(range) = self.to_host.next(all) {
            if self.device.discards() == Discards::Never {
                // Found out just now, by the first one.
                return self.to_host.forget();
            }
            if self.check_not_shut_down().is_err() {
                return;
            }
            if let Ok(Some(rest)) = self.give_back_first(range, piece, all) {
                self.to_host.put_back(rest);
            }
            if !all && self.wake.is_wanted() {
                return;
            }
        }
    }

    /// Gives back the first free pieces of a range; `closes`: for the closing of the volume, after which nobody else may. Returns what is left of it.
    fn give_back_first(&self, range: Range<u64>, piece: u32, closes: bool) -> Result<Option<Range<u64>>> {
        let (ag, part) = self.part_of(&range);
        let next = self.with_free(ag, part.start, |free| {
            if !closes {
                self.check_running()?;
            }
            let first = free.start.max(part.start).next_multiple_of(piece);
            let end = free.end.min(part.end) / piece * piece;
            if first >= end {
                return Ok(free.end.clamp(part.start + 1, part.end));
            }
            self.discard(ag, first..end)
        })?;
        let next = next.unwrap_or(part.end);
        let rest = range.start + u64::from(next - part.start)..range.end;
        Ok((!rest.is_empty()).then_some(rest))
    }

    /// The group in which a range of blocks begins, and the part of the range that lies in it.
    fn part_of(&self, range: &Range<u64>) -> (AgNo, Part) {
        let ag = self.geometry.ag_of(FsBlock(range.start));
        let first = self.geometry.ag_block_of(FsBlock(range.start)).0;
        let blocks = u64::from(self.geometry.blocks_in(ag)).min(u64::from(first) + (range.end - range.start));
        (ag, first..blocks as u32)
    }

    /// Runs `f` on the first free extent of a group that ends after `from`, inside the gate and with the group locked: it stays free until `f` returns.
    /// `None` if there is none.
    fn with_free<R>(&self, ag: AgNo, from: u32, f: impl FnOnce(Part) -> Result<R>) -> Result<Option<R>> {
        // What is inside the gate cannot evict.
        if !self.cache.has_room() {
            self.cache.sweep(Sweep::ForRoom);
        }
        // Closing waits for who is inside, and whoever opens the volume next writes there.
        let look = Look::enter(self);
        {
            // One that is not made has no trees. Nobody makes it as long as we have the lock.
            let _lock = self.groups.making.lock();
            if ag.0 >= self.high_water() {
                let all = self.geometry.first_data_block(ag)..self.geometry.blocks_in(ag);
                return if all.end > from { f(all).map(Some) } else { Ok(None) };
            }
        }
        let mut group = self.group(&look, ag)?;
        let space = group.as_mut().expect("just loaded");
        let Some((start, length)) = space.free_after(&mut &look, AgBlock(from))? else { return Ok(None) };
        f(start.0..start.0 + length).map(Some)
    }

    /// Discards the first blocks of a part of a group, which are free and stay so. Returns up to where.
    fn discard(&self, ag: AgNo, part: Part) -> Result<u32> {
        let bits = self.geometry.block_bits;
        let end = part.end.min(part.start.saturating_add((STEP_BYTES >> bits) as u32));
        let offset = self.geometry.fs_block(ag, AgBlock(part.start)).0 << bits;
        let blocks = u64::from(end - part.start);
        let result = self.device.discard(offset, blocks << bits);
        result.map_err(|source| Error::io("discard", offset, source))?;
        self.counters.add(Count::blocks_discarded, blocks);
        Ok(end)
    }

    /// Gives the free extents of at least `minimum` bytes back that lie in a range of bytes, whole or in part. Returns how many
    /// bytes that were.
    pub fn trim(&self, range: Range<u64>, minimum: u64) -> Result<u64> {
        self.check_running()?;
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        // What was freed before is to be among it: durable first, and then in the trees, to which each checkpoint brings a part.
        self.commit_now()?;
        let mut waiting = u64::MAX;
        loop {
            self.commit_now()?;
            let left = self.checkpointer.lock().released_blocks();
            if left == 0 || left >= waiting {
                break;
            }
            waiting = left;
        }
        let bits = self.geometry.block_bits;
        let least = minimum.div_ceil(1 << bits);
        let mut left = range.start.div_ceil(1 << bits)..(range.end >> bits).min(self.geometry.block_count);
        if left.start >= self.geometry.block_count {
            return Err(Errno::INVAL.into());
        }
        let mut trimmed = 0;
        // Up to where an extent goes that is long enough, though what is left of it need not be.
        let mut inside = 0;
        while !left.is_empty() {
            let (ag, part) = self.part_of(&left);
            let base = left.start - u64::from(part.start);
            let next = self.with_free(ag, part.start, |free| {
                self.check_running()?;
                let cut = free.start.max(part.start)..free.end.min(part.end);
                let is_long =
                    u64::from(cut.end.saturating_sub(cut.start)) >= least || base + u64::from(cut.start) < inside;
                if cut.is_empty() || !is_long {
                    return Ok(free.end.clamp(part.start + 1, part.end));
                }
                inside = base + u64::from(cut.end);
                let end = self.discard(ag, cut.clone())?;
                trimmed += u64::from(end - cut.start) << bits;
                Ok(end)
            })?;
            if self.device.discards() == Discards::Never {
                return Err(Errno::OPNOTSUPP.into());
            }
            left.start = base + u64::from(next.unwrap_or(part.end));
        }
        Ok(trimmed)
    }
}
