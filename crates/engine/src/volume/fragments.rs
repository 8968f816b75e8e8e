//! Space of a volume whose blocks have fragments.
//!
//! A reservation is made in whole blocks: `Totals::ready_blocks` counts only the fragments of blocks that are free as a whole. So a flush finds
//! a place for each block that its pages were promised, whatever is free in parts of other blocks, and nothing ever has to be moved to make one.
//!
//! A block of metadata is one fragment. It is put into a part of a block that is partly used. If there is none near, it breaks a whole block; if
//! whole blocks are scarce, the search for a part goes through all groups first. So n promised blocks of metadata break at most as many whole
//! blocks as n fragments fill.

use super::Volume;
use crate::counters::Count;
use crate::error::{Errno, Result};
use crate::order::Txn;
use crate::starve;
use myriad_format::{AgNo, FsBlock};
use std::sync::atomic::Ordering;

/// With so many free fragments in parts of blocks, in percent of the volume, a run that has to move takes a part of the right size; with fewer it
/// takes a whole free block, in which it can grow (FFS: from "time" to "space" at `minfree` - 2 percent, 8 being usual).
const PARTS_MANY: i64 = 6;

impl Volume {
    /// Takes one block for metadata near `goal`; ENOSPC if several must lie side by side, which parts of blocks do not promise.
    pub(super) fn allocate_fragment(&self, txn: &mut Txn<'_>, goal: FsBlock, min: u32) -> Result<(FsBlock, u32)> {
        if min > 1 {
            return Err(Errno::NOSPC.into());
        }
        if self.is_scarce()
            && self.totals.free_parts.load(Ordering::Relaxed) > 0
            && let Some(found) = self.allocate_part(txn, goal, 1, false, false)?
        {
            return Ok((found, 1));
        }
        match self.allocate_part(txn, goal, 1, true, false)? {
            Some(found) => Ok((found, 1)),
            None => Err(Errno::NOSPC.into()),
        }
    }

    /// Takes a run of `length` fragments within one block near `goal`. `moves`: it takes the place of a shorter one, and may grow again.
    pub fn allocate_run(&self, txn: &mut Txn<'_>, goal: FsBlock, length: u32, moves: bool) -> Result<FsBlock> {
        if starve::is_due() {
            return Err(Errno::NOSPC.into());
        }
        let parts = self.totals.free_parts.load(Ordering::Relaxed);
        let fresh = moves && parts < (self.geometry.block_count / 100) as i64 * PARTS_MANY;
        self.allocate_part(txn, goal, length, true, fresh)?.ok_or_else(|| Errno::NOSPC.into())
    }

    fn allocate_part(
        &self,
        txn: &mut Txn<'_>,
        goal: FsBlock,
        length: u32,
        may_break: bool,
        fresh: bool,
    ) -> Result<Option<FsBlock>> {
        for ag in self.groups_from(goal) {
            if self.has_no_whole_yet(ag) || !may_break && ag.0 >= self.high_water() {
                continue;
            }
            let near = self.near(ag, goal);
            let found = self.with_group(txn, ag, |space, txn| {
                if space.free_blocks() < length {
                    return Ok(None);
                }
                space.allocate_run(txn, near, length, may_break, fresh)
            })?;
            if let Some(start) = found {
                self.counters.add(Count::blocks_allocated, u64::from(length));
                return Ok(Some(self.geometry.fs_block(ag, start)));
            }
        }
        Ok(None)
    }

    /// Whether a group is not made yet, and has room for no whole block.
    fn has_no_whole_yet(&self, ag: AgNo) -> bool {
        ag.0 >= self.high_water() && self.geometry.usable_blocks_in(ag) == self.geometry.usable_parts_in(ag)
    }

    /// Takes up to `max` whole blocks side by side near `goal`: the first fragment, and how many fragments they have.
    pub fn allocate_whole(&self, txn: &mut Txn<'_>, goal: FsBlock, max: u32) -> Result<(FsBlock, u32)> {
        if starve::is_due() {
            return Err(Errno::NOSPC.into());
        }
        for ag in self.groups_from(goal) {
            if self.has_no_whole_yet(ag) {
                continue;
            }
            let near = self.near(ag, goal);
            let found = self.with_group(txn, ag, |space, txn| space.allocate_whole(txn, near, max))?;
            if let Some((start, length)) = found {
                self.counters.add(Count::blocks_allocated, u64::from(length));
                return Ok((self.geometry.fs_block(ag, start), length));
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Takes these fragments, which lie in one block, if all of them are free.
    pub fn take_if_free(&self, txn: &mut Txn<'_>, start: FsBlock, length: u32) -> Result<bool> {
        let (ag, at) = (self.geometry.ag_of(start), self.geometry.ag_block_of(start));
        let is_taken = self.with_group(txn, ag, |space, txn| space.take_if_free(txn, at, length))?;
        self.counters.add(Count::blocks_allocated, if is_taken { u64::from(length) } else { 0 });
        Ok(is_taken)
    }
}
