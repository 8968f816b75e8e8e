//! Fragments of blocks in a group's bitmap: which blocks are free as a whole, and runs of free fragments in those that are partly used.
//!
//! A bit stands for a fragment. The fragments of a block lie side by side in one byte of the bitmap, so a look at a block is a look at a
//! byte. What FFS keeps in the header of a cylinder group (`cg_frsum`: how many runs of free fragments there are of each length) is counted
//! when it is first asked for, and kept in memory from then on; it costs a look at all bits of the group once.
//!
//! Invariants
//!   1. The group's `free_parts` is the number of free fragments in blocks of which not all are free.
//!   2. `runs`, where it is known, has each run of such a block.
//!   3. No run that is handed out crosses a block.

use super::AgSpace;
use super::bitmap::{Bitmap, Bits};
use super::pool::{Free, Pool};
use crate::edit::{BlockRead, BlockStore};
use crate::error::Result;
use myriad_format::AgBlock;
use myriad_format::bitmap::UNIT_BITS;
use myriad_format::pointers::mask;
use std::ops::Range;

/// The most fragments of a block.
const MOST: usize = 1 << myriad_format::pointers::FRAGMENT_BITS_MAX;

/// How many runs of free fragments of each length partly used blocks have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs([u32; MOST]);

impl Runs {
    /// Counts the runs of a block in or out; those of one that is free as a whole do not count.
    fn count(&mut self, geometry: &myriad_format::Geometry, free: u8, appear: bool) {
        if free == mask(0, geometry.fragments()) {
            return;
        }
        for (_, length) in runs(free) {
            let count = &mut self.0[length as usize];
            *count = if appear { *count + 1 } else { *count - 1 };
        }
    }

    /// Length of the shortest run of at least `length`.
    fn fit(&self, length: u32) -> Option<u32> {
        (length..MOST as u32).find(|&length| self.0[length as usize] > 0)
    }
}

/// The runs of set bits: start and length.
fn runs(free: u8) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = u32::from(free) >> at;
        if left == 0 {
            return None;
        }
        let start = at + left.trailing_zeros();
        let length = (!(u32::from(free) >> start)).trailing_zeros();
        at = start + length;
        Some((start, length))
    })
}

/// What of a block counts as part of one.
fn parts_of(free: u8, fragments: u32) -> u32 {
    if free == mask(0, fragments) { 0 } else { free.count_ones() }
}

impl Bits {
    /// The free fragments of the block at `base`.
    fn of_block<S: BlockRead>(&self, pool: &Pool, store: &mut S, base: u32) -> Result<u8> {
        let words = self.read_unit(pool, store, base / UNIT_BITS)?;
        Ok(fragments_at(pool, self.len, &words, base))
    }

    /// Looks at the blocks that have bits in `range` and any free fragment, until `f` finds something.
    fn find<S: BlockRead, R>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        range: Range<u32>,
        mut f: impl FnMut(u32, u8) -> Option<R>,
    ) -> Result<Option<R>> {
        let fragments = pool.geometry.fragments();
        let mut at = range.start / fragments * fragments;
        while at < range.end {
            let unit = at / UNIT_BITS;
            let unit_end = (unit + 1) * UNIT_BITS;
            if self.counted[unit as usize] == 0 {
                at = unit_end;
                continue;
            }
            let words = self.read_unit(pool, store, unit)?;
            self.counted[unit as usize] = words.iter().map(|word| word.count_ones() as u16).sum();
            while at < unit_end.min(range.end) {
                if words[(at % UNIT_BITS) as usize / 64] >> (at % 64) == 0 {
                    at = (at / 64 + 1) * 64;
                    continue;
                }
                let free = fragments_at(pool, self.len, &words, at);
                if free != 0
                    && let Some(found) = f(at, free)
                {
                    return Ok(Some(found));
                }
                at += fragments;
            }
        }
        Ok(None)
    }
}

/// The free fragments of the block at `base`, given the bits of its unit; bits that damage has set where no block is free do not count.
fn fragments_at(pool: &Pool, len: u32, words: &super::bitmap::Words, base: u32) -> u8 {
    let fragments = pool.geometry.fragments();
    let free = (words[(base % UNIT_BITS) as usize / 64] >> (base % 64)) as u8;
    let from = pool.first_block.saturating_sub(base).min(fragments);
    let end = len.saturating_sub(base).min(fragments);
    if from < end { free & mask(from, end) } else { 0 }
}

impl Bitmap {
    /// As [`Bits::put`], and what is counted of fragments follows.
    pub(super) fn put<S: BlockStore>(
        &mut self,
        pool: &mut Pool,
        store: &mut S,
        start: u32,
        length: u32,
        set: bool,
    ) -> Result<bool> {
        let fragments = pool.geometry.fragments();
        if fragments == 1 {
            return self.bits.put(pool, store, start, length, set);
        }
        // Between these, blocks are free as a whole or not at all, before and after.
        let (first, last) = (start / fragments * fragments, (start + length - 1) / fragments * fragments);
        let edges = [Some(first), (last != first).then_some(last)];
        let mut before = [0; 2];
        for (free, base) in before.iter_mut().zip(edges) {
            *free = base.map_or(Ok(0), |base| self.bits.of_block(pool, store, base))?;
        }
        if !self.bits.put(pool, store, start, length, set)? {
            return Ok(false);
        }
        for (before, base) in before.into_iter().zip(edges) {
            let Some(base) = base else { continue };
            let after = self.bits.of_block(pool, store, base)?;
            pool.free_parts = (pool.free_parts + parts_of(after, fragments))
                .checked_sub(parts_of(before, fragments))
                .ok_or_else(|| pool.corrupt("free_parts", base))?;
            if let Some(runs) = &mut self.runs {
                runs.count(&pool.geometry, before, false);
                runs.count(&pool.geometry, after, true);
            }
        }
        Ok(true)
    }

    /// Counts anew what lies in partly used blocks.
    pub(super) fn count_parts<S: BlockRead>(&mut self, pool: &mut Pool, store: &mut S) -> Result<()> {
        if pool.geometry.fragments() == 1 {
            return Ok(());
        }
        let (mut runs, mut parts) = (Runs::default(), 0);
        let (geometry, all) = (pool.geometry, pool.first_block..pool.block_count);
        self.bits.find(pool, store, all, |_, free| {
            runs.count(&geometry, free, true);
            parts += parts_of(free, geometry.fragments());
            None::<()>
        })?;
        pool.free_parts = parts;
        self.runs = Some(runs);
        Ok(())
    }

    /// The shortest run of at least `length` fragments of a partly used block; of several the first at or after `goal`.
    fn part<S: BlockRead>(&mut self, pool: &Pool, store: &mut S, goal: u32, length: u32) -> Result<Option<u32>> {
        if pool.free_parts < length {
            return Ok(None);
        }
        let runs_now = match self.runs {
            Some(known) => known,
            None => {
                let mut counted = Runs::default();
                let (geometry, all) = (pool.geometry, pool.first_block..pool.block_count);
                self.bits.find(pool, store, all, |_, free| {
                    counted.count(&geometry, free, true);
                    None::<()>
                })?;
                self.runs = Some(counted);
                counted
            }
        };
        let Some(fit) = runs_now.fit(length) else { return Ok(None) };
        let whole = mask(0, pool.geometry.fragments());
        let mut is_fit = |base: u32, free: u8| {
            let mut fits = runs(free).filter(|&(_, length)| free != whole && length == fit);
            fits.next().map(|(start, _)| base + start)
        };
        for range in [goal..pool.block_count, pool.first_block..goal] {
            if let Some(start) = self.bits.find(pool, store, range, &mut is_fit)? {
                return Ok(Some(start));
            }
        }
        Ok(None)
    }

    /// Up to `max` whole blocks side by side: first those at `goal`, then as many as are asked for, then the longest run. In fragments.
    fn whole<S: BlockRead>(&mut self, pool: &Pool, store: &mut S, goal: u32, max: u32) -> Result<Option<Free>> {
        if pool.free_blocks == pool.free_parts {
            return Ok(None);
        }
        let fragments = pool.geometry.fragments();
        let (full, goal) = (mask(0, fragments), goal / fragments * fragments);
        let mut best: Option<Free> = None;
        for range in [goal..pool.block_count, pool.first_block..goal] {
            let mut run: Option<Free> = None;
            let found = self.bits.find(pool, store, range, |base, free| {
                let longer = run.filter(|&(start, length)| free == full && start + length == base);
                if longer.is_none()
                    && let Some(ended) = run.take()
                {
                    if ended.0 == goal {
                        return Some(ended);
                    }
                    if best.is_none_or(|(_, length)| ended.1 > length) {
                        best = Some(ended);
                    }
                }
                if free == full {
                    run = Some(longer.map_or((base, fragments), |(start, length)| (start, length + fragments)));
                }
                run.filter(|&(_, length)| length / fragments >= max)
            })?;
            if found.is_some() {
                return Ok(found);
            }
            if let Some(ended) = run
                && (ended.0 == goal || best.is_none_or(|(_, length)| ended.1 > length))
            {
                best = Some(ended);
                if ended.0 == goal {
                    break;
                }
            }
        }
        Ok(best)
    }

    /// Takes what was found.
    fn take<S: BlockStore>(&mut self, pool: &mut Pool, store: &mut S, start: u32, length: u32) -> Result<()> {
        pool.take(start, length)?;
        if self.put(pool, store, start, length, false)? { Ok(()) } else { Err(pool.corrupt("bitmap", start)) }
    }
}

impl AgSpace {
    /// Takes a run of `length` fragments within one block near `goal`. From a partly used block where there is such a run, the shortest;
    /// else, with `may_break`, from a block that is free as a whole. With `fresh` first from such a block, so that the run can grow.
    pub fn allocate_run<S: BlockStore>(
        &mut self,
        store: &mut S,
        goal: AgBlock,
        length: u32,
        may_break: bool,
        fresh: bool,
    ) -> Result<Option<AgBlock>> {
        let (bitmap, pool) = self.blocks.fragments();
        let goal = goal.0.max(pool.first_block);
        let mut found = None;
        for is_part in [!fresh, fresh] {
            found = match is_part {
                true => bitmap.part(pool, store, goal, length)?,
                false if may_break => bitmap.whole(pool, store, goal, 1)?.map(|(start, _)| start),
                false => None,
            };
            if found.is_some() {
                break;
            }
        }
        if let Some(start) = found {
            bitmap.take(pool, store, start, length)?;
            self.save(store)?;
        }
        Ok(found.map(AgBlock))
    }

    /// Takes up to `max` whole blocks side by side near `goal`; how many fragments those are.
    pub fn allocate_whole<S: BlockStore>(
        &mut self,
        store: &mut S,
        goal: AgBlock,
        max: u32,
    ) -> Result<Option<(AgBlock, u32)>> {
        let (bitmap, pool) = self.blocks.fragments();
        let found = bitmap.whole(pool, store, goal.0.max(pool.first_block), max)?;
        if let Some((start, length)) = found {
            bitmap.take(pool, store, start, length)?;
            self.save(store)?;
        }
        Ok(found.map(|(start, length)| (AgBlock(start), length)))
    }

    /// Takes fragments, which lie in one block, if all of them are free.
    pub fn take_if_free<S: BlockStore>(&mut self, store: &mut S, start: AgBlock, length: u32) -> Result<bool> {
        let (bitmap, pool) = self.blocks.fragments();
        let base = start.0 / pool.geometry.fragments() * pool.geometry.fragments();
        let wanted = mask(start.0 - base, start.0 - base + length);
        let is_free = bitmap.bits.of_block(pool, store, base)? & wanted == wanted;
        if is_free {
            bitmap.take(pool, store, start.0, length)?;
            self.save(store)?;
        }
        Ok(is_free)
    }
}
