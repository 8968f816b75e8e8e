//! The allocation groups together: the volume takes space and inodes from them, gives space and inodes back, and keeps its totals.
//!
//! The blocks that an epoch freed are put into the free-space trees a part at a time (`release_blocks`), because that can take far more log
//! than freeing them did. An extent costs 16 bytes of log in the epoch that frees it. To put it into the trees changes a leaf in each of
//! the two, and moves what follows in the leaf: up to 1.3 KiB each at 4 KiB a block, where the freed extents lie apart. A checkpoint may take half of
//! the log. 25,000 such extents at once would take more than half of the largest default log, and the volume would shut down.
//!
//! So the releases of an epoch end after a sixteenth of the log. The rest waits: every checkpoint names it as pending, and it
//! counts as log that the open epoch takes (`close_epoch`). From an eighth of the log on, operations wait until enough is in the trees. A
//! thread that waits for space makes these checkpoints itself (`find_space`). Order `none` has no log, and keeps to an eighth of the cache.
//!
//! What else could have been: to bound how much an epoch may free does not help, because the cost depends on where the extents lie, which only
//! the trees know. To log changes of these trees as operations would be a second format, for this one case. If the trees were not logged
//! but made anew from what is in use, none of this would be needed. `tests/scattered.rs` fails without it.

use super::Volume;
use crate::cache::{FRAMES_UNASKED, Sweep};
use crate::counters::Count;
use crate::edit::BlockRead;
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::locks::{Mutex, MutexGuard, Rank};
use crate::order::{Look, Txn};
use crate::space::AgSpace;
use crate::space::pool::unless_unreadable;
use crate::starve;
use crate::types::Time;
use myriad_format::group::{FIXED_BLOCKS, RESERVE_MAX};
use myriad_format::inode::RawInode;
use myriad_format::{AgBlock, AgNo, BlockKind, Corrupt, FsBlock, Geometry, Ino};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// How long searches pass over a group whose header could not be read, if another group has room; and how long soft updates do not ask again for a block
/// that could not be read. A medium may try for seconds before it answers, inside the gate and under the group's lock, or behind the closed gate. Long
/// enough that this is a tenth of the time at most, short enough for whoever has plugged a cable in again.
pub(crate) const UNREADABLE_FOR: Time = 30_000_000_000;

/// The groups in memory. A group is read when it is first asked for, and may be dropped again when nothing of it is under way.
pub(super) struct Groups {
    /// What each group has, as its blocks say it; `None` until it was read.
    pub mirrors: Box<[Mutex<{ Rank::Group as u8 }, Option<Box<AgSpace>>>]>,
    /// Groups that have something to give back at the next checkpoint, which would else have to look at all of them while the
    /// gate is closed: there may be very many.
    pub giving: Mutex<{ Rank::Leaf as u8 }, Vec<u32>>,
    /// Blocks let go by groups whose mirror was dropped.
    pub stray_blocks: Mutex<{ Rank::Leaf as u8 }, Vec<FsBlock>>,
    /// By how many inodes the headers of such groups lag behind: group and count.
    pub inodes_ahead: Mutex<{ Rank::Leaf as u8 }, Vec<(u32, i64)>>,
    /// Chunks of such groups that may have no inode left: group and first block.
    pub empty_chunks: Mutex<{ Rank::Leaf as u8 }, Vec<(u32, u32)>>,
    /// Groups that were made; those behind them have never been written. It rises under `making` alone.
    pub high_water: AtomicU32,
    pub making: Mutex<{ Rank::NewGroup as u8 }, ()>,
    /// Groups whose header could not be read, and when that was last tried.
    unreadable: Mutex<{ Rank::Leaf as u8 }, BTreeMap<u32, Time>>,
}

/// What a search for space has met among the groups.
#[derive(Default)]
struct Search {
    /// Why something could not be read.
    unreadable: Option<Error>,
    /// Whether it has passed over a group without asking the device.
    has_passed: bool,
    /// Whether it asks also for headers that could not be read lately: no other group has a single block.
    asks_all: bool,
}

/// Blocks that go past the cache once frames are few. Nobody may change them meanwhile.
struct PastCache<'a>(&'a Look<'a>);

impl BlockRead for PastCache<'_> {
    fn geometry(&self) -> Geometry {
        self.0.volume.geometry
    }

    fn read<R>(&mut self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.0.volume.cache.read_past(block, kind, f)
    }
}

impl Groups {
    pub fn new(count: u32, high_water: u32) -> Self {
        Self {
            mirrors: (0..count).map(|_| Mutex::new(None)).collect(),
            giving: Mutex::new(Vec::new()),
            stray_blocks: Mutex::new(Vec::new()),
            inodes_ahead: Mutex::new(Vec::new()),
            empty_chunks: Mutex::new(Vec::new()),
            high_water: AtomicU32::new(high_water),
            making: Mutex::new(()),
            unreadable: Mutex::new(BTreeMap::new()),
        }
    }
}

impl Volume {
    pub fn block_of(&self, ino: Ino) -> FsBlock {
        self.geometry.locate(ino).map_or(FsBlock(u64::from(FIXED_BLOCKS)), |(block, _)| block)
    }

    pub fn high_water(&self) -> u32 {
        self.groups.high_water.load(Ordering::Relaxed)
    }

    /// Runs `f` on a group's space, under its lock, and carries what changed over to the totals.
    pub fn with_group<R>(
        &self,
        txn: &mut Txn<'_>,
        ag: AgNo,
        f: impl FnOnce(&mut AgSpace, &mut Txn<'_>) -> Result<R>,
    ) -> Result<R> {
        if ag.0 >= self.high_water() {
            self.raise_high_water(txn, ag)?;
        }
        let mut group = self.group(&txn.look, ag)?;
        self.in_group(&mut group, txn, ag, f)
    }

    /// What a group's space says, or `None` if its header cannot be read, also if that was tried lately.
    pub fn with_group_if_readable<R>(
        &self,
        txn: &mut Txn<'_>,
        ag: AgNo,
        f: impl FnOnce(&AgSpace) -> R,
    ) -> Result<Option<R>> {
        self.with_readable_group(txn, ag, &mut Search::default(), |space, _, _| Ok(Some(f(space))))
    }

    /// As [`Self::with_group`], for a search: a group of which the header cannot be read has nothing.
    fn with_readable_group<R>(
        &self,
        txn: &mut Txn<'_>,
        ag: AgNo,
        search: &mut Search,
        f: impl FnOnce(&mut AgSpace, &mut Txn<'_>, &mut Option<Error>) -> Result<Option<R>>,
    ) -> Result<Option<R>> {
        if ag.0 >= self.high_water() {
            self.raise_high_water(txn, ag)?;
        }
        let mut group = self.groups.mirrors[ag.0 as usize].lock();
        if group.is_none() && !self.load_readable(txn, ag, &mut group, search)? {
            return Ok(None);
        }
        self.in_group(&mut group, txn, ag, |space, txn| f(space, txn, &mut search.unreadable))
    }

    /// Reads a group for a search, unless that was tried lately in vain; whether it is there.
    #[cold]
    fn load_readable(
        &self,
        txn: &mut Txn<'_>,
        ag: AgNo,
        group: &mut Option<Box<AgSpace>>,
        search: &mut Search,
    ) -> Result<bool> {
        let tried = self.groups.unreadable.lock().get(&ag.0).copied();
        if !search.asks_all && tried.is_some_and(|at| self.ticks() - at < UNREADABLE_FOR) {
            search.has_passed = true;
            return Ok(false);
        }
        let loaded = unless_unreadable(self.load_group(&txn.look, ag, group).map(Some), &mut search.unreadable)?;
        let mut unreadable = self.groups.unreadable.lock();
        if loaded.is_some() {
            unreadable.remove(&ag.0);
        } else {
            unreadable.insert(ag.0, self.ticks());
        }
        Ok(loaded.is_some())
    }

    /// As [`Self::with_group`], of a group that is loaded and locked.
    fn in_group<R>(
        &self,
        group: &mut Option<Box<AgSpace>>,
        txn: &mut Txn<'_>,
        ag: AgNo,
        f: impl FnOnce(&mut AgSpace, &mut Txn<'_>) -> Result<R>,
    ) -> Result<R> {
        let space = group.as_mut().expect("just loaded");
        let measure = |space: &AgSpace| {
            let (free, parts, ready) = (space.free_blocks(), space.free_parts(), space.available());
            [free, parts, ready, space.inodes_used(), space.directories()].map(i64::from)
        };
        let before = measure(space);
        let result = f(space, txn);
        if result.is_err() {
            // The mirror may be half changed. The blocks are not, or the transaction's end shuts the volume down: load it
            // again from them. What earlier operations let go still waits for the checkpoint.
            self.groups.stray_blocks.lock().append(&mut space.abandon());
            let empty = space.take_empty_chunks().into_iter().map(|start| (ag.0, start));
            self.groups.empty_chunks.lock().extend(empty);
            let ahead = space.inodes_ahead();
            if ahead != 0 {
                self.groups.inodes_ahead.lock().push((ag.0, ahead));
            }
            *group = None;
            return result;
        }
        if !space.is_listed && space.wants_checkpoint() {
            space.is_listed = true;
            self.groups.giving.lock().push(ag.0);
        }
        let after = measure(space);
        let totals = &self.totals;
        for (total, (after, before)) in
            [&totals.free_blocks, &totals.free_parts, &totals.ready_blocks, &totals.inodes_used, &totals.directories]
                .into_iter()
                .zip(after.into_iter().zip(before))
        {
            if after != before {
                total.fetch_add(after - before, Ordering::Relaxed);
            }
        }
        result
    }

    /// Groups that have something to give back, each once, in the order of their numbers.
    pub(super) fn giving_groups(&self) -> Vec<u32> {
        let mut giving = self.groups.giving.lock().clone();
        giving.sort_unstable();
        // A mirror that was dropped and loaded again does not know that its group is listed.
        giving.dedup();
        giving
    }

    /// A group, locked, which is read if it was not yet.
    pub fn group(&self, look: &Look<'_>, ag: AgNo) -> Result<MutexGuard<'_, Option<Box<AgSpace>>>> {
        let mut group = self.groups.mirrors[ag.0 as usize].lock();
        if group.is_none() {
            self.load_group(look, ag, &mut group)?;
        }
        Ok(group)
    }

    /// Reads a group past the cache once frames are few: a search in the middle of an operation may come by all of them.
    fn load_group(&self, look: &Look<'_>, ag: AgNo, group: &mut Option<Box<AgSpace>>) -> Result<()> {
        let mut space = AgSpace::load(&mut PastCache(look), ag)?;
        for (_, inodes) in self.groups.inodes_ahead.lock().extract_if(.., |(other, _)| *other == ag.0) {
            space.count_ahead(inodes);
        }
        for (_, start) in self.groups.empty_chunks.lock().extract_if(.., |(other, _)| *other == ag.0) {
            space.note_empty_chunk(start);
        }
        *group = Some(Box::new(space));
        Ok(())
    }

    /// Whether a group's header has been read; it stays in memory then.
    pub fn is_group_loaded(&self, ag: AgNo) -> bool {
        self.groups.mirrors[ag.0 as usize].lock().is_some()
    }

    /// The group of the inode that begins in a slot of a block, locked so that it stays there; `None` if none does.
    pub fn group_of_inode(
        &self,
        look: &Look<'_>,
        block: FsBlock,
        slot: u32,
    ) -> Result<Option<MutexGuard<'_, Option<Box<AgSpace>>>>> {
        let ag = self.geometry.ag_of(block);
        if ag.0 >= self.high_water() {
            return Ok(None);
        }
        let mut group = self.group(look, ag)?;
        let space = group.as_mut().expect("just loaded");
        Ok(space.holds_inode(&mut &*look, self.geometry.ag_block_of(block), slot)?.then_some(group))
    }

    /// Makes the groups up to `ag`, which have never been used.
    fn raise_high_water(&self, txn: &mut Txn<'_>, ag: AgNo) -> Result<()> {
        let _lock = self.groups.making.lock();
        for number in self.high_water()..=ag.0 {
            let ag = AgNo(number);
            let virgin = i64::from(self.geometry.usable_blocks_in(ag));
            let virgin_parts = i64::from(self.geometry.usable_parts_in(ag));
            let space = AgSpace::init_group(txn, ag, &[])?;
            self.totals.free_blocks.fetch_add(i64::from(space.free_blocks()) - virgin, Ordering::Relaxed);
            // All of them count as ready already, but for what the group may hold back.
            debug_assert!(i64::from(space.available()) >= virgin - virgin_parts - i64::from(self.group_reserve_max()));
            *self.groups.mirrors[number as usize].lock() = Some(Box::new(space));
            self.groups.high_water.store(number + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Makes group 0 of a new volume, in which `used` (start, length) is taken.
    pub fn init_first_group(&self, txn: &mut Txn<'_>, used: &[(u32, u32)]) -> Result<()> {
        let space = AgSpace::init_group(txn, AgNo(0), used)?;
        self.totals.free_blocks.fetch_add(i64::from(space.free_blocks()), Ordering::Relaxed);
        self.totals.free_parts.fetch_add(i64::from(space.free_parts()), Ordering::Relaxed);
        self.totals.ready_blocks.fetch_add(i64::from(space.available()), Ordering::Relaxed);
        *self.groups.mirrors[0].lock() = Some(Box::new(space));
        self.groups.high_water.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Groups in the order in which an allocation near `goal` tries them: its own, those after it, those before it.
    pub(super) fn groups_from(&self, goal: FsBlock) -> impl Iterator<Item = AgNo> {
        let count = self.geometry.ag_count;
        let first = self.geometry.ag_of(goal).0.min(count - 1);
        (first..first + count).map(move |ag| AgNo(if ag < count { ag } else { ag - count }))
    }

    /// Free blocks that a group may hold back to record changes of what is free. A bitmap needs none.
    fn group_reserve_max(&self) -> u32 {
        if self.geometry.has_bitmap { 0 } else { RESERVE_MAX as u32 }
    }

    /// The most that all groups may hold back.
    pub(super) fn held_by_groups(&self) -> i64 {
        i64::from(self.geometry.ag_count) * i64::from(self.group_reserve_max())
    }

    /// Whether a group has no room for so many blocks in one piece even while it is empty.
    #[inline]
    fn is_too_small(&self, ag: AgNo, blocks: u32) -> bool {
        let taken = self.geometry.first_data_block(ag) + self.group_reserve_max();
        self.geometry.blocks_in(ag) < taken.saturating_add(blocks)
    }

    /// The block of a group at which to look for space near `goal`. The group is not too small.
    #[inline]
    pub(super) fn near(&self, ag: AgNo, goal: FsBlock) -> AgBlock {
        if ag == self.geometry.ag_of(goal) {
            AgBlock(self.geometry.ag_block_of(goal).0.min(self.geometry.blocks_in(ag) - 1))
        } else {
            AgBlock(self.geometry.first_data_block(ag))
        }
    }

    /// Allocates `min` to `max` contiguous blocks near `goal`. ENOSPC only if no group has `min`; a group that is not made yet
    /// need not have more than fit beside the largest reserve. A group whose records of free blocks cannot be read is passed over as if it were full:
    /// operations allocate in the middle of their changes, and one damaged block is not to shut the volume down each time. That it cannot be read is the
    /// error if no group has a single block; who asks for more is told ENOSPC, and asks for less.
    pub fn allocate_extent(&self, txn: &mut Txn<'_>, goal: FsBlock, min: u32, max: u32) -> Result<(FsBlock, u32)> {
        if self.geometry.fragments() > 1 {
            if starve::is_due() {
                return Err(Errno::NOSPC.into());
            }
            return self.allocate_fragment(txn, goal, min);
        }
        self.allocate_readable(txn, goal, min, |space, txn, near, unreadable| {
            space.allocate(txn, near, min, max, unreadable)
        })
    }

    /// As [`Self::allocate_extent`], for data: where it has checksums, in no place of which the table of them cannot be read. For more than one
    /// block, that too is ENOSPC: fewer may be free elsewhere.
    pub fn allocate_data(&self, txn: &mut Txn<'_>, goal: FsBlock, min: u32, max: u32) -> Result<(FsBlock, u32)> {
        if !self.geometry.has_checksums {
            return self.allocate_extent(txn, goal, min, max);
        }
        self.allocate_readable(txn, goal, min, |space, txn, near, unreadable| {
            space.allocate_data(txn, near, min, max, unreadable)
        })
    }

    /// What `take` takes, from the first group with at least `min` blocks that can be read; if none has a single block, why one could not be.
    #[inline(always)]
    fn allocate_readable(
        &self,
        txn: &mut Txn<'_>,
        goal: FsBlock,
        min: u32,
        mut take: impl FnMut(&mut AgSpace, &mut Txn<'_>, AgBlock, &mut Option<Error>) -> Result<Option<(AgBlock, u32)>>,
    ) -> Result<(FsBlock, u32)> {
        let mut search = Search::default();
        loop {
            let found = self.allocate_from(goal, min, |ag, near| {
                self.with_readable_group(txn, ag, &mut search, |space, txn, unreadable| {
                    if space.available() < min { Ok(None) } else { take(space, txn, near, unreadable) }
                })
            });
            match (found, search) {
                // Whoever wants more than one block in one piece asks again for single ones.
                (Err(Error::Refused(Errno::NOSPC)), Search { has_passed: true, .. }) if min == 1 => {
                    search = Search { asks_all: true, ..Search::default() };
                }
                (Err(Error::Refused(Errno::NOSPC)), Search { unreadable: Some(error), .. }) if min == 1 => {
                    return Err(error);
                }
                (found, _) => return found,
            }
        }
    }

    #[inline(always)]
    fn allocate_from(
        &self,
        goal: FsBlock,
        min: u32,
        mut allocate: impl FnMut(AgNo, AgBlock) -> Result<Option<(AgBlock, u32)>>,
    ) -> Result<(FsBlock, u32)> {
        if starve::is_due() {
            return Err(Errno::NOSPC.into());
        }
        for ag in self.groups_from(goal) {
            // One that is made knows what it has. To make one only to find that out could end with the making of all, in one
            // transaction.
            let least = if ag.0 < self.high_water() { 1 } else { min };
            if self.is_too_small(ag, least) {
                continue;
            }
            let near = self.near(ag, goal);
            if let Some((start, length)) = allocate(ag, near)? {
                self.counters.add(Count::blocks_allocated, u64::from(length));
                return Ok((self.geometry.fs_block(ag, start), length));
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Allocates an inode slot near `near`.
    pub fn allocate_inode(&self, txn: &mut Txn<'_>, near: FsBlock) -> Result<Ino> {
        // All groups would be read to find that out, each for itself, and nothing that is read inside the gate leaves the cache.
        if starve::is_due() || self.table_inodes_free() == Some(0) {
            return Err(Errno::NOSPC.into());
        }
        for grow in [true, false] {
            for ag in self.groups_from(near) {
                if self.is_too_small(ag, 1) || (!grow && ag.0 >= self.high_water()) {
                    continue;
                }
                let at = self.near(ag, near);
                if let Some((block, slot)) =
                    self.with_group(txn, ag, |space, txn| space.allocate_inode(txn, at, grow))?
                {
                    self.counters.bump(Count::inodes_allocated);
                    return Ok(self.geometry.ino(self.geometry.fs_block(ag, block), slot));
                }
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Reads what [`Self::free_inode`] has to read besides the inode itself, where it may be that nobody has read it yet.
    pub fn read_ahead_of_inode(&self, txn: &mut Txn<'_>, ino: Ino, raw: &RawInode) -> Result<()> {
        let (block, slot) = self.geometry.locate(ino).ok_or(Corrupt::NoInode { ino })?;
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        let group = self.group(&txn.look, ag)?;
        self.read_of_group(&group, txn, at, slot, raw)
    }

    #[inline]
    fn read_of_group(
        &self,
        group: &Option<Box<AgSpace>>,
        txn: &mut Txn<'_>,
        at: AgBlock,
        slot: u32,
        raw: &RawInode,
    ) -> Result<()> {
        let space = group.as_ref().expect("just loaded");
        space.read_header(txn, Some(self.epoch.current()))?;
        space.read_ahead_of_inode(txn, at, slot, 1 + u32::from(raw.body_slots))
    }

    /// Gives an inode's slot and body back. Its blocks have been freed already. False, with nothing changed, if something that has to be read
    /// for that cannot be, or finds no frame.
    pub fn free_inode(&self, txn: &mut Txn<'_>, ino: Ino, raw: &RawInode) -> Result<bool> {
        let (block, slot) = self.geometry.locate(ino).ok_or(Corrupt::NoInode { ino })?;
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        let mut group = match self.group(&txn.look, ag) {
            Err(Error::Corrupt(_) | Error::Io(_) | Error::Refused(Errno::NOMEM)) => return Ok(false),
            group => group?,
        };
        match self.read_of_group(&group, txn, at, slot, raw) {
            Err(Error::Corrupt(_) | Error::Io(_) | Error::Refused(Errno::NOMEM)) => return Ok(false),
            read => read?,
        }
        inode::clear(txn, ino)?;
        let body = (raw.body_slots > 0).then(|| (u32::from(raw.body_first.get()), u32::from(raw.body_slots)));
        let is_dir = raw.is_dir();
        self.counters.bump(Count::inodes_freed);
        let stays_taken = is_dir && self.may_have_unread_names();
        if stays_taken {
            self.note_stranded_inode();
        }
        let must_wait = stays_taken || txn.inode_free(ino);
        self.in_group(&mut group, txn, ag, |space, txn| {
            if is_dir {
                space.count_directory(txn, at, false)?;
            }
            if must_wait { Ok(()) } else { space.free_inode(txn, at, slot, body) }
        })?;
        Ok(true)
    }

    /// Gives back the place of an inode, which is empty.
    pub fn free_place(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
        let (block, slot) = self.geometry.locate(ino).ok_or(Corrupt::NoInode { ino })?;
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        if txn.inode_free(ino) {
            return Ok(());
        }
        self.with_group(txn, ag, |space, txn| space.free_inode(txn, at, slot, None))
    }

    pub fn count_directory(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
        let block = self.block_of(ino);
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        self.with_group(txn, ag, |space, txn| space.count_directory(txn, at, true))
    }

    /// Takes from the count of directories of the region of a block what is too many.
    pub fn correct_directories(&self, txn: &mut Txn<'_>, block: FsBlock, surplus: i64) -> Result<()> {
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        self.with_group(txn, ag, |space, txn| space.correct_directories(txn, at, surplus))
    }

    /// Takes `count` consecutive slots for the body of an inode, in its block; the first of them, if there is room.
    pub fn allocate_body(&self, txn: &mut Txn<'_>, ino: Ino, count: u32) -> Result<Option<u32>> {
        let (block, slot) = self.geometry.locate(ino).ok_or(Corrupt::NoInode { ino })?;
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        self.with_group(txn, ag, |space, txn| space.allocate_body(txn, at, slot, count))
    }

    pub fn free_body(&self, txn: &mut Txn<'_>, block: FsBlock, first: u32, count: u32) -> Result<()> {
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        self.with_group(txn, ag, |space, txn| space.free_body(txn, at, first, count))
    }

    /// What has to be read of a group before something of it changes. What was read wrong once, by the device, or not at all, may be right the next time.
    fn read_twice(
        &self,
        txn: &mut Txn<'_>,
        ag: AgNo,
        read: impl Fn(&AgSpace, &mut Txn<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut read = || {
            let group = self.group(&txn.look, ag)?;
            let space = group.as_ref().expect("just loaded");
            space.read_header(txn, Some(self.epoch.current()))?;
            read(space, txn)
        };
        match read() {
            Err(Error::Corrupt(_) | Error::Io(_)) => read(),
            done => done,
        }
    }

    /// Whether the slot of an inode can be given back, as far as that can be read.
    pub fn can_release(&self, txn: &mut Txn<'_>, ag: AgNo, at: AgBlock, slot: u32) -> Result<bool> {
        match self.read_twice(txn, ag, |space, txn| space.read_ahead_of_inode(txn, at, slot, 1)) {
            Err(Error::Corrupt(_) | Error::Io(_)) => Ok(false),
            read => read.map(|()| true),
        }
    }

    /// Whether what a group's free blocks are recorded in is sound, as far as has to be read to make these free.
    fn can_free(&self, txn: &mut Txn<'_>, ag: AgNo, start: AgBlock, length: u32) -> Result<bool> {
        match self.read_twice(txn, ag, |space, txn| space.read_ahead_of_free(txn, start, length)) {
            Err(Error::Corrupt(_)) => Ok(false),
            // No log knows of these blocks, and all that waits to be written would be lost for them.
            Err(Error::Io(_)) if self.soft.is_some() => {
                self.note_leftovers();
                Ok(false)
            }
            // Perhaps it can be read the next time: then the log still knows of these blocks.
            read => read.map(|()| true),
        }
    }

    /// Puts blocks that a durable epoch freed into the trees of their groups. They have been counted as free since then. Those of which
    /// the group is damaged are set aside: they belong to nobody until a repair finds them.
    /// Returns how many of the extents, from the first on, and the bytes of log that this took: where they lie apart, each changes a leaf of
    /// either tree, and what all of them change might fit neither a checkpoint, of which it may take `most` bytes of log, nor the cache.
    pub fn release_blocks(&self, released: &[(FsBlock, u32)], most: u64) -> Result<(usize, u64)> {
        /// Extents that one transaction gives back, and frames for one of them: it may be in a group of its own, and bring in its header
        /// and what finds free space in it.
        const BATCH: usize = 32;
        const FRAMES: usize = 8;
        let (mut done, mut cost) = (0, 0);
        while done < released.len() && cost + self.limits.step_log_bytes <= most {
            // What is inside the gate cannot evict.
            if !self.cache.has_room() {
                self.cache.sweep(Sweep::ForRoom);
                // What has changed goes home first, and the rest comes with the next checkpoint.
                if self.cache.free_frames() < FRAMES * BATCH || done > 0 && !self.cache.has_free_frames() {
                    break;
                }
            }
            let mut batch = &released[done..][..BATCH.min(released.len() - done)];
            let mut txn = Txn::enter(self);
            // Operations that were let in take frames of the reserve as well. So few extents need not ask.
            while !txn.may_take(FRAMES * batch.len()) {
                batch = &batch[..batch.len() / 2];
            }
            let mut count = 0;
            let (mut is_over, mut is_out_of_frames) = (false, false);
            let result = batch.iter().try_for_each(|&(start, length)| {
                is_over |= count > 0 && cost + txn.log_cost() + self.limits.step_log_bytes > most;
                if is_over {
                    return Ok(());
                }
                let ag = self.geometry.ag_of(start);
                let at = self.geometry.ag_block_of(start);
                // Pointers that were freed without having been followed.
                if !self.geometry.is_data_range(start, u64::from(length)) {
                    return Err(Corrupt::DoubleFree { ag, start: at.0, length }.into());
                }
                let is_readable = match self.can_free(&mut txn, ag, at, length) {
                    // Nothing of it has changed. It comes with another checkpoint.
                    Err(Error::Refused(Errno::NOMEM)) => {
                        (is_over, is_out_of_frames) = (true, true);
                        return Ok(());
                    }
                    is_readable => is_readable?,
                };
                if is_readable {
                    match self.with_group(&mut txn, ag, |space, txn| space.free(txn, at, length)) {
                        Err(Error::Refused(Errno::NOMEM)) if !txn.has_changed() => {
                            (is_over, is_out_of_frames) = (true, true);
                            return Ok(());
                        }
                        freed => freed?,
                    }
                } else {
                    self.counters.add(Count::blocks_stranded, u64::from(length));
                }
                count += 1;
                self.totals.free_blocks.fetch_sub(i64::from(length), Ordering::Relaxed);
                Ok(())
            });
            cost += txn.log_cost();
            txn.finish(result)?;
            batch = &batch[..count];
            done += count;
            self.to_host.note(batch);
            if is_out_of_frames {
                break;
            }
        }
        Ok((done, cost))
    }

    /// Gives back the blocks of inode chunks that have no inode left.
    pub fn release_empty_chunks(&self) -> Result<()> {
        /// Chunks that one transaction gives up, and frames for one of them: it may be in a leaf of its own, which is joined with another one.
        const BATCH: usize = 256;
        const FRAMES: usize = 4;
        for number in self.giving_groups() {
            let empty =
                self.groups.mirrors[number as usize].lock().as_ref().is_some_and(|space| space.has_empty_chunks());
            let was_empty = || self.groups.empty_chunks.lock().iter().any(|&(ag, _)| ag == number);
            if !empty && !was_empty() {
                continue;
            }
            loop {
                if !self.cache.has_room() {
                    self.cache.sweep(Sweep::ForRoom);
                    if self.cache.free_frames() < FRAMES_UNASKED {
                        // They are there for the next checkpoint as well.
                        return Ok(());
                    }
                }
                let mut txn = Txn::enter(self);
                let mut chunks = BATCH;
                while !txn.may_take(FRAMES * chunks) {
                    chunks /= 2;
                }
                let mut freed = Vec::new();
                let result = self.with_group(&mut txn, AgNo(number), |space, txn| {
                    space.release_empty_chunks(txn, chunks, &mut freed)?;
                    Ok(space.has_empty_chunks())
                });
                for &(start, length) in &freed {
                    txn.block_free(start, length);
                    self.counters.add(Count::chunk_blocks_freed, u64::from(length));
                }
                let result = match result {
                    // They are there for the next checkpoint as well.
                    Err(Error::Refused(Errno::NOMEM)) if !txn.has_changed() => Ok(false),
                    result => result,
                };
                if !txn.finish(result)? {
                    break;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namei;
    use crate::ops::{NewFile, Ops};
    #[cfg(debug_assertions)]
    use crate::schedule;
    use crate::types::{Clock, Cred, MkfsOptions, MountOptions};
    use crate::volume::{testing, transact};
    use crate::{checksums, file};
    use myriad_check::{Options, check};
    use myriad_device::{BlockDevice, FaultDevice, FaultOp, MemoryDevice};
    use myriad_format::BlockKind;
    use myriad_format::group::{FIRST_BY_LENGTH_BLOCK, FIRST_BY_START_BLOCK, GroupHeader, HEADER_BLOCK};
    use myriad_format::inode::S_IFREG;
    use myriad_format::superblock::state;
    use std::sync::Arc;
    use std::sync::atomic::AtomicI64;

    /// What the header of group 0 says, and its mirror.
    fn inodes_used(volume: &Volume) -> (u32, u32) {
        let look = volume.look();
        let header = volume.geometry.fs_block(AgNo(0), AgBlock(HEADER_BLOCK));
        let read = |bytes: &[u8]| GroupHeader::read(bytes).inodes_used.get();
        let written = look.read(header, BlockKind::Group, read).unwrap();
        let group = volume.group(&look, AgNo(0)).unwrap();
        (written, group.as_ref().unwrap().inodes_used())
    }

    /// Of the inodes that an epoch makes, only the first one is written into the group's header at once. A mirror that is dropped
    /// meanwhile, for somebody was refused, does not take the others with it.
    #[test]
    fn inodes_by_which_a_header_lags_outlive_its_mirror() {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let volume = testing::volume(device.clone());
        volume.write_superblock(state::IN_USE).unwrap();
        volume.commit_now().unwrap();
        let (before, _) = inodes_used(&volume);
        let files: Vec<_> = (0..5).map(|i| testing::new_file(&volume, format!("{i}").as_bytes())).collect();
        assert_eq!(inodes_used(&volume), (before + 1, before + 5));
        for _ in 0..2 {
            let refused =
                transact(&volume, 0, |txn| volume.with_group(txn, AgNo(0), |_, _| Err::<(), _>(Errno::NOSPC.into())));
            assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
            assert!(volume.check_running().is_ok());
        }
        // The checkpoint finds no mirror, and makes one.
        volume.commit_now().unwrap();
        assert_eq!(inodes_used(&volume), (before + 5, before + 5));
        assert_eq!(volume.totals.inodes_used.load(Ordering::Relaxed), i64::from(before) + 5);
        let report = check(Arc::new(device.clone_image()), None, &Options::default()).unwrap();
        assert!(report.is_sound(), "{:#?}", report.findings);
        drop(files);
    }

    /// Chunks that had become empty were forgotten with the mirror of their group: their blocks were for inodes only, from then on.
    #[test]
    fn empty_chunks_outlive_the_mirror_of_their_group() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
        let name = |i: usize| format!("{i}").into_bytes();
        let ops = Ops { volume: &volume, cred: &Cred::root(), caller: &Cred::root() };
        let root = namei::root(&volume.look()).unwrap();
        let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
        (0..600).for_each(|i| _ = ops.make(root, &name(i), &new).unwrap());
        volume.commit_now().unwrap();
        (0..600).for_each(|i| ops.unlink(root, &name(i)).unwrap());
        let refused =
            transact(&volume, 0, |txn| volume.with_group(txn, AgNo(0), |_, _| Err::<(), _>(Errno::NOSPC.into())));
        assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
        volume.commit_now().unwrap();
        volume.commit_now().unwrap();
        let freed = volume.counters.snapshot().into_iter().find(|(name, _)| *name == "chunk_blocks_freed").unwrap().1;
        assert!(freed > 0);
    }

    /// A batch of freed blocks may lie in as many groups, and bring in what each has. It took frames of the reserve for that without asking,
    /// while operations that were let in by then took theirs: who came last found none in the middle of a change.
    #[test]
    #[cfg(debug_assertions)]
    fn blocks_of_many_groups_are_freed_beside_operations_that_take_the_reserve() {
        const GROUPS: u32 = 34;
        for seed in 0..6 {
            let options = MkfsOptions { ag_size: Some(1 << 20), ..MkfsOptions::default() };
            let device = Arc::new(MemoryDevice::new(u64::from(GROUPS) << 20));
            crate::mkfs::format(device.clone(), None, &options).unwrap();
            let volume = testing::open_with(device, 0);
            let take = |ag| {
                let goal = volume.geometry.fs_block(ag, AgBlock(volume.geometry.first_data_block(ag)));
                transact(&volume, 1, |txn| volume.allocate_extent(txn, goal, 1, 1)).unwrap()
            };
            let freed: Vec<_> = (0..GROUPS).map(AgNo).map(take).collect();
            volume.commit_now().unwrap();
            volume.checkpointer.lock().bring_home(&volume).unwrap();
            volume.cache.sweep(Sweep::Everything);
            volume.totals.free_blocks.fetch_add(freed.len() as i64, Ordering::Relaxed);
            let mut held = Vec::new();
            while volume.cache.spare_frames() > 20 {
                held.push(volume.cache.take_private().unwrap());
            }
            let release = || {
                let (done, _) = volume.release_blocks(&freed, u64::MAX).unwrap();
                assert!(done > 0, "seed {seed}");
            };
            let operate = || {
                let txn = volume.begin(0).unwrap();
                let taken: Vec<_> = (0..FRAMES_UNASKED - 4)
                    .map(|_| {
                        schedule::pause();
                        volume.cache.take_private_inside().unwrap_or_else(|error| panic!("seed {seed}: {error}"))
                    })
                    .collect();
                taken.into_iter().for_each(|frame| volume.cache.drop_private(frame));
                txn.finish(Ok(())).unwrap();
            };
            let mut jobs: Vec<Box<dyn FnOnce() + Send + '_>> = vec![Box::new(release)];
            jobs.extend((0..4).map(|_| Box::new(operate) as Box<dyn FnOnce() + Send + '_>));
            schedule::run(schedule::Turns { seed, one_in: 2 }, jobs);
            held.into_iter().for_each(|frame| volume.cache.drop_private(frame));
            volume.check_running().unwrap();
        }
    }

    /// A search took a frame for each header of a full group, in the middle of an operation: the last one was gone before it found room.
    #[test]
    fn a_search_goes_by_full_groups_in_few_frames() {
        const GROUPS: u32 = 34;
        const FRAMES: usize = 12;
        let options = MkfsOptions { ag_size: Some(1 << 20), ..MkfsOptions::default() };
        let device = Arc::new(MemoryDevice::new(u64::from(GROUPS) << 20));
        crate::mkfs::format(device.clone(), None, &options).unwrap();
        let take = |volume: &Volume, most| transact(volume, 1, |txn| volume.allocate_extent(txn, FsBlock(0), 1, most));
        let full = testing::open(device.clone());
        let mut last = take(&full, 1).unwrap();
        while let Ok((start, length)) = take(&full, 256) {
            last = (start, length);
        }
        let (ag, at) = (full.geometry.ag_of(last.0), full.geometry.ag_block_of(last.0));
        transact(&full, 0, |txn| full.with_group(txn, ag, |space, txn| space.free(txn, at, last.1))).unwrap();
        full.checkpointer.lock().settle(&full).unwrap();
        drop(full);
        let volume = testing::open_with(device, 0);
        assert!((0..GROUPS - 1).all(|ag| !volume.is_group_loaded(AgNo(ag))));
        let mut held = Vec::new();
        let found = transact(&volume, 1, |txn| {
            while volume.cache.free_frames() > FRAMES {
                held.push(volume.cache.take_private_inside()?);
            }
            volume.allocate_extent(txn, FsBlock(0), 1, 1)
        });
        held.into_iter().for_each(|frame| volume.cache.drop_private(frame));
        let passed = volume.geometry.ag_of(found.unwrap().0).0 as usize;
        assert!(passed > FRAMES, "it has looked at {passed} groups only");
        volume.check_running().unwrap();
    }

    /// A damaged tree of free blocks was met by operations that had changed something before: the volume was shut down, though other groups had room, and
    /// so it was each time that it was opened.
    #[test]
    fn a_group_whose_free_blocks_cannot_be_read_is_passed_over() {
        let device = Arc::new(MemoryDevice::new(32 << 20));
        let options = MkfsOptions { ag_size: Some(8 << 20), ..MkfsOptions::default() };
        crate::mkfs::format(device.clone(), None, &options).unwrap();
        let volume = testing::open(device.clone());
        assert_eq!(volume.geometry.ag_count, 4);
        let file = testing::new_file(&volume, b"file");
        assert_eq!(volume.geometry.ag_of(volume.block_of(file.ino)), AgNo(0));
        volume.checkpointer.lock().settle(&volume).unwrap();
        for tree in [FIRST_BY_START_BLOCK, FIRST_BY_LENGTH_BLOCK] {
            volume.cache.sweep(Sweep::Everything);
            let at = volume.geometry.fs_block(AgNo(0), AgBlock(tree)).0 << volume.geometry.block_bits;
            let mut sound = [0; 4096];
            device.read(at, &mut sound).unwrap();
            device.write(at, &[0xee; 4096]).unwrap();
            // The block comes after a change of the same transaction.
            let (start, _) = transact(&volume, 1, |txn| {
                let mut raw = inode::read(&txn.look, file.ino)?;
                raw.mtime.set(1);
                inode::write(txn, file.ino, &raw)?;
                volume.allocate_extent(txn, volume.block_of(file.ino), 1, 4)
            })
            .unwrap();
            assert_eq!(volume.geometry.ag_of(start), AgNo(1));
            assert!(volume.check_running().is_ok());
            device.write(at, &sound).unwrap();
        }
    }

    /// Each allocation near a group whose header cannot be read asked the device for it once more, while others waited for the group's lock and the next checkpoint
    /// for the gate. On a medium that tries for seconds that was a hang.
    #[test]
    fn a_header_that_cannot_be_read_is_not_asked_for_by_each_allocation() {
        for group_count in [4, 1] {
            let device = Arc::new(FaultDevice::new(MemoryDevice::new(group_count * (8 << 20))));
            let options = MkfsOptions { ag_size: Some(8 << 20), ..MkfsOptions::default() };
            crate::mkfs::format(device.clone(), None, &options).unwrap();
            let time = Arc::new(AtomicI64::new(1 << 60));
            let clock = Clock::Manual(time.clone());
            let volume = testing::open_as(
                device.clone(),
                MountOptions { cache_size: 8 << 20, clock, ..MountOptions::default() },
            );
            assert_eq!(u64::from(volume.geometry.ag_count), group_count);
            let at = volume.geometry.fs_block(AgNo(0), AgBlock(HEADER_BLOCK)).0 << volume.geometry.block_bits;
            let mut sound = [0; 4096];
            device.read(at, &mut sound).unwrap();
            device.write(at, &[0xee; 4096]).unwrap();
            let take = || {
                let taken = transact(&volume, 1, |txn| volume.allocate_extent(txn, volume.block_of(volume.root), 1, 1));
                taken.map(|(start, _)| volume.geometry.ag_of(start).0).map_err(|error| error.errno())
            };
            if group_count == 1 {
                // Nobody else has room: it is asked each time.
                assert_eq!((take(), take()), (Err(Errno::UCLEAN), Err(Errno::UCLEAN)));
                device.write(at, &sound).unwrap();
                assert_eq!(take(), Ok(0));
                continue;
            }
            assert_eq!(take(), Ok(1));
            let reads = device.seen(FaultOp::Read);
            (0..100).for_each(|_| assert_eq!(take(), Ok(1)));
            // More in one piece than any group has: single blocks are asked for next.
            let many = |txn: &mut Txn<'_>| volume.allocate_extent(txn, volume.block_of(volume.root), 1 << 20, 1 << 20);
            assert_eq!(transact(&volume, 1, many).unwrap_err().errno(), Errno::NOSPC);
            assert_eq!(device.seen(FaultOp::Read), reads);
            device.write(at, &sound).unwrap();
            assert_eq!(take(), Ok(1));
            time.fetch_add(UNREADABLE_FOR, Ordering::Relaxed);
            assert_eq!(take(), Ok(0));
        }
    }

    /// The only long run of free blocks was one whose checksums could not be read. That was the end of the flush, though there was room for
    /// its data in pieces.
    #[test]
    fn data_goes_in_pieces_where_its_checksums_can_be_read() {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let options = MkfsOptions { data_checksums: true, ..MkfsOptions::default() };
        crate::mkfs::format(device.clone(), None, &options).unwrap();
        let volume = testing::open(device.clone());
        assert_eq!(volume.geometry.ag_count, 1);
        let (ag, at) = (AgNo(0), |block| volume.geometry.fs_block(AgNo(0), AgBlock(block)));
        let file = testing::new_file(&volume, b"file");
        let table = volume.geometry.checksum_of(at(2000)).0;
        transact(&volume, 1, |txn| checksums::store(txn, at(2000), &[0])).unwrap();
        transact(&volume, 1, |txn| {
            let mut taken = Vec::new();
            let mut next =
                || volume.with_group(txn, ag, |space, txn| space.allocate(txn, AgBlock(0), 1, 4096, &mut None));
            while let Some(found) = next()? {
                taken.push(found);
            }
            for block in taken.iter().flat_map(|&(start, length)| start.0..start.0 + length) {
                // One in two, and the run.
                if block % 2 == 0 || volume.geometry.checksum_of(at(block)).0 == table {
                    volume.with_group(txn, ag, |space, txn| space.free(txn, AgBlock(block), 1))?;
                }
            }
            Ok(())
        })
        .unwrap();
        volume.checkpointer.lock().settle(&volume).unwrap();
        volume.cache.sweep(Sweep::Everything);
        device.write(table.0 << volume.geometry.block_bits, &[0xee; 4096]).unwrap();
        let content = [7; 4 * 4096];
        file::write(&volume, &Cred::root(), &file, &content, 0, false, false).unwrap();
        file::flush(&volume, &file).unwrap();
        volume.commit_now().unwrap();
        let mut read = [0; 4 * 4096];
        assert_eq!(file::read(&volume, &file, &mut read, 0, false).unwrap(), read.len());
        assert!(read == content);
    }
}
