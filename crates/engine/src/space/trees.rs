//! Free space as two B+ trees, by start and by length (`space=btree`; Sweeney et al. 1996, 5.2).
//!
//! Invariants
//!   1. Both trees hold the same extents; no two of them touch or overlap.
//!   2. The group's `free_blocks` is the sum of the lengths in either tree plus the blocks of the reserve.
//!   3. Before an operation changes the trees, the reserve holds every node the operation may need, or the trees are
//!      empty and need none. So freeing never fails for lack of space.
//!   4. A node freed by these trees goes to the reserve and from there only into the same trees, as a block that
//!      is reused (`NewBlock::reused`): the committed state may still use it. What the reserve cannot hold is handed out by
//!      `AgSpace::take_released` and must wait like file blocks for the checkpoint.
//!   5. The fixed blocks of the trees never enter the trees; a tree that moved away leaves its one in the reserve.

use super::pool::{Free, Pool, Wanted, unless_unreadable};
use crate::btree::Tree;
use crate::edit::{BlockRead, BlockStore, NewBlock, NodeSource};
use crate::error::{Error, Result, refuse};
use crate::planted::{Bug, planted};
use myriad_format::btree::{FREE_BY_LENGTH, FREE_BY_START, LEVEL_MAX};
use myriad_format::group::{
    FIRST_BY_LENGTH_BLOCK, FIRST_BY_START_BLOCK, FIXED_BLOCKS, GroupHeader, HEADER_BLOCK, RESERVE_MAX,
};
use myriad_format::{AgBlock, Corrupt, FsBlock};
use rustix::io::Errno;
use std::ops::ControlFlow;

/// Free extents looked at on each side of the goal before locality is given up. XFS steps at most 10 inode chunks to
/// either side; the same bound here keeps an allocation in a fragmented group at a few microseconds.
const NEAR_STEPS: usize = 10;

/// Blocks the reserve may hold beyond its need before a checkpoint trims it: one split's worth, so that a tree at the edge
/// of a level does not trade blocks with the trees at every checkpoint.
pub(super) const TRIM_SLACK: usize = 4;

/// Blocks held back for nodes of the trees. They count as free.
pub(super) struct Reserve {
    pub blocks: [u32; RESERVE_MAX],
    pub count: usize,
}

impl Reserve {
    /// Puts a block, counted as free, into the reserve. When that is full, one block leaves for limbo; not a fixed one,
    /// which could never come back.
    fn stow(&mut self, pool: &mut Pool, mut block: u32) -> Result<()> {
        if self.count < RESERVE_MAX {
            self.blocks[self.count] = block;
            self.count += 1;
            return Ok(());
        }
        if block < FIXED_BLOCKS
            && let Some(place) = self.blocks.iter_mut().find(|place| **place >= FIXED_BLOCKS)
        {
            std::mem::swap(place, &mut block);
        }
        pool.take(block, 1)?;
        pool.released.push(pool.geometry.fs_block(pool.ag, AgBlock(block)));
        Ok(())
    }
}

/// Where nodes of the trees come from and go to.
struct Nodes<'a> {
    pool: &'a mut Pool,
    reserve: &'a mut Reserve,
}

impl<S: BlockStore> NodeSource<S> for Nodes<'_> {
    fn allocate(&mut self, _store: &mut S) -> Result<NewBlock> {
        let Some(last) = self.reserve.count.checked_sub(1) else { return refuse(Errno::NOSPC) };
        let block = self.reserve.blocks[last];
        self.pool.take(block, 1)?;
        self.reserve.count = last;
        Ok(NewBlock::reused(self.pool.geometry.fs_block(self.pool.ag, AgBlock(block))))
    }

    fn free(&mut self, _store: &mut S, block: FsBlock) -> Result<()> {
        let block = self.pool.own(block)?;
        self.pool.give(block, 1)?;
        self.reserve.stow(self.pool, block)
    }
}

/// The trees of a group. The group's counts come as `pool`.
pub(super) struct Trees {
    pub by_start: Tree,
    pub by_length: Tree,
    pub reserve: Reserve,
}

impl Trees {
    /// Makes empty trees.
    pub fn create<S: BlockStore>(pool: &Pool, store: &mut S) -> Result<Self> {
        let at = |block: u32| NewBlock::free(pool.geometry.fs_block(pool.ag, AgBlock(block)));
        let owner = u64::from(pool.ag.0);
        Ok(Self {
            by_start: Tree::create_at(FREE_BY_START, owner, store, at(FIRST_BY_START_BLOCK))?,
            by_length: Tree::create_at(FREE_BY_LENGTH, owner, store, at(FIRST_BY_LENGTH_BLOCK))?,
            reserve: Reserve { blocks: [0; RESERVE_MAX], count: 0 },
        })
    }

    /// Those that a group's header names, whose counts `pool` has.
    pub fn load(pool: &Pool, head: &GroupHeader) -> std::result::Result<Self, Corrupt> {
        let check = |field, value: u32, sound: bool| {
            if sound { Ok(value) } else { Err(Corrupt::Group { ag: pool.ag, field, value: u64::from(value) }) }
        };
        let tree = |kind, field, root: u32, level: u8| {
            check(field, root, root > HEADER_BLOCK && root < pool.block_count)?;
            check("level", u32::from(level), u16::from(level) <= LEVEL_MAX)?;
            let root = pool.geometry.fs_block(pool.ag, AgBlock(root));
            Ok::<_, Corrupt>(Tree { kind, root, level: u16::from(level), owner: u64::from(pool.ag.0) })
        };
        let count = head.reserve_count.get();
        check("reserve_count", count, count as usize <= RESERVE_MAX)?;
        let mut blocks = [0; RESERVE_MAX];
        for index in 0..count as usize {
            let block = head.reserve[index].get();
            let fits = block > HEADER_BLOCK && block < pool.block_count && !blocks[..index].contains(&block);
            blocks[index] = check("reserve", block, fits)?;
        }
        check("free_blocks", pool.free_blocks, pool.free_blocks >= count)?;
        Ok(Self {
            by_start: tree(FREE_BY_START, "by_start_root", head.by_start_root.get(), head.by_start_level)?,
            by_length: tree(FREE_BY_LENGTH, "by_length_root", head.by_length_root.get(), head.by_length_level)?,
            reserve: Reserve { blocks, count: count as usize },
        })
    }

    /// Writes them into an image of the group's header.
    pub fn save(&self, pool: &Pool, head: &mut GroupHeader) {
        let relative = |tree: &Tree| pool.geometry.ag_block_of(tree.root).0;
        head.by_start_root.set(relative(&self.by_start));
        head.by_length_root.set(relative(&self.by_length));
        head.by_start_level = self.by_start.level as u8;
        head.by_length_level = self.by_length.level as u8;
        head.reserve_count.set(self.reserve.count as u32);
        for (place, &block) in head.reserve.iter_mut().zip(&self.reserve.blocks[..self.reserve.count]) {
            place.set(block);
        }
    }

    /// Whether [`Self::trim`] would do something.
    pub fn is_to_be_trimmed(&self) -> bool {
        self.reserve.count > self.reserve_need() + TRIM_SLACK
    }

    /// Lets go of what the reserve holds beyond its need, so that blocks freed by shrinking trees become free extents again.
    pub fn trim(&mut self, pool: &mut Pool) -> Result<()> {
        let need = self.reserve_need();
        for index in (0..self.reserve.count).rev() {
            let block = self.reserve.blocks[index];
            if self.reserve.count > need && block >= FIXED_BLOCKS {
                pool.take(block, 1)?;
                self.reserve.count -= 1;
                self.reserve.blocks.swap(index, self.reserve.count);
                pool.released.push(pool.geometry.fs_block(pool.ag, AgBlock(block)));
            }
        }
        Ok(())
    }

    /// Length of the longest free extent.
    pub fn longest<S: BlockRead>(&self, pool: &Pool, store: &mut S) -> Result<u32> {
        let Some(record) = self.by_length.last(store)? else { return Ok(0) };
        Ok(self.decode_by_length(pool, &record)?.1)
    }

    /// Keeps a fixed block that a tree of the group no longer uses, for nodes of these trees.
    pub fn keep_node<S: BlockStore>(&mut self, pool: &mut Pool, store: &mut S, block: FsBlock) -> Result<()> {
        Nodes { pool, reserve: &mut self.reserve }.free(store, block)
    }

    /// As `Blocks::allocate_if`.
    pub fn allocate<S: BlockStore>(
        &mut self,
        pool: &mut Pool,
        store: &mut S,
        wanted: Wanted,
        is_good: impl FnOnce(&mut S, Free) -> bool,
        unreadable: &mut Option<Error>,
    ) -> Result<Option<Free>> {
        // It may have begun: what it has kept is kept.
        if unless_unreadable(self.refill(pool, store).map(Some), unreadable)?.is_none() {
            return Ok(None);
        }
        let found = unless_unreadable(self.choose(pool, store, wanted), unreadable)?;
        let Some((extent, start, length)) = found.filter(|&(_, start, length)| is_good(store, (start, length))) else {
            return Ok(None);
        };
        let is_ready = self.read_ahead_of_carve(store, extent, start, length).map(Some);
        if unless_unreadable(is_ready, unreadable)?.is_none() {
            return Ok(None);
        }
        if !planted(Bug::DoubleAllocation) {
            self.carve(pool, store, extent, start, length)?;
        }
        Ok(Some((start, length)))
    }

    /// Chooses blocks for an allocation: a free extent, and which part of it.
    fn choose<S: BlockRead>(&self, pool: &Pool, store: &mut S, wanted: Wanted) -> Result<Option<(Free, u32, u32)>> {
        let Wanted { goal, min, max } = wanted;
        if let Some(found) = self.at_goal(pool, store, goal, min, max)? {
            return Ok(Some(found));
        }
        match self.nearest(pool, store, goal, max)? {
            Some(found) => Ok(Some(found)),
            None => self.by_size(pool, store, min, max),
        }
    }

    /// Reads what [`Self::carve`] has to read.
    fn read_ahead_of_carve<S: BlockRead>(&self, store: &mut S, extent: Free, start: u32, length: u32) -> Result<()> {
        let before = (extent.0, start - extent.0);
        let after = (start + length, extent.0 + extent.1 - start - length);
        // What is left of it stays where it is in the tree by start, or goes where the leaf after begins.
        self.read_ahead_of_drop(store, extent)?;
        for rest in [before, after].into_iter().filter(|rest| rest.1 > 0) {
            self.by_start.get(store, key(rest.0, rest.1))?;
            self.by_length.get(store, key(rest.1, rest.0))?;
        }
        Ok(())
    }

    /// Reads what [`Self::free`] has to read: of both trees the nodes that change, and those that may be joined with them.
    pub fn read_ahead_of_free<S: BlockRead>(&self, pool: &Pool, store: &mut S, start: u32, length: u32) -> Result<()> {
        if (self.by_start.level, self.by_length.level) == (0, 0) {
            // As in most groups: a block each.
            return self.by_start.leaf_count(store).and_then(|_| self.by_length.leaf_count(store)).map(drop);
        }
        let (mut first, mut end) = (start, start + length);
        let joined = [self.floor(pool, store, start)?, self.ceiling(pool, store, start)?];
        for other in joined.into_iter().flatten() {
            if other.0 + other.1 == start || other.0 == start + length {
                (first, end) = (first.min(other.0), end.max(other.0 + other.1));
                self.read_ahead_of_drop(store, other)?;
            }
        }
        self.by_start.get(store, key(first, end - first))?;
        self.by_length.get(store, key(end - first, first))?;
        self.read_ahead_of_refill(pool, store)
    }

    /// Reads what [`Self::refill`] has to read of the extents that it takes from, as the trees are now.
    fn read_ahead_of_refill<S: BlockRead>(&self, pool: &Pool, store: &mut S) -> Result<()> {
        let mut missing = self.reserve_need().saturating_sub(self.reserve.count) as u32;
        let mut at = 0;
        while missing > 0
            && let Some(record) = self.by_length.ceiling(store, at)?
        {
            let extent = self.decode_by_length(pool, &record)?;
            let count = extent.1.min(missing);
            self.read_ahead_of_take(store, extent, count)?;
            missing -= count;
            at = word(&record) + 1;
        }
        Ok(())
    }

    /// Reads what taking `count` blocks from the end of a free extent has to read. An error if the tree by start lacks it.
    fn read_ahead_of_take<S: BlockRead>(&self, store: &mut S, extent: Free, count: u32) -> Result<()> {
        if count == extent.1 {
            return self.read_ahead_of_drop(store, extent);
        }
        // What is left of it stays where it is in that tree.
        let found = self.by_start.get(store, key(extent.0, extent.1))?.is_some();
        Ok(Self::expect(found, &self.by_start, extent)?)
    }

    /// Reads what [`Self::drop`] has to read of both trees. An error if one of them lacks the extent.
    fn read_ahead_of_drop<S: BlockRead>(&self, store: &mut S, extent: Free) -> Result<()> {
        let found = self.by_start.read_ahead_of_remove(store, key(extent.0, extent.1))?;
        Self::expect(found, &self.by_start, extent)?;
        let found = self.by_length.read_ahead_of_remove(store, key(extent.1, extent.0))?;
        Ok(Self::expect(found, &self.by_length, extent)?)
    }

    /// Makes blocks free that lie where blocks can be free. An error if one is.
    pub fn free<S: BlockStore>(&mut self, pool: &mut Pool, store: &mut S, start: u32, length: u32) -> Result<()> {
        let double = Corrupt::DoubleFree { ag: pool.ag, start, length };
        let end = start + length;
        if self.reserve.blocks[..self.reserve.count].iter().any(|&block| block >= start && block < end) {
            return Err(double.into());
        }
        self.refill(pool, store)?;
        let left = self.floor(pool, store, start)?;
        let right = self.ceiling(pool, store, start)?;
        if left.is_some_and(|left| left.0 + left.1 > start) || right.is_some_and(|right| right.0 < end) {
            return Err(double.into());
        }
        let left = left.filter(|left| left.0 + left.1 == start);
        let right = right.filter(|right| right.0 == end);
        pool.give(start, length)?;
        match (left, right) {
            (None, None) => self.add(pool, store, (start, length)),
            (Some(left), None) => self.reshape(pool, store, left, (left.0, left.1 + length)),
            (None, Some(right)) => self.reshape(pool, store, right, (start, length + right.1)),
            (Some(left), Some(right)) => {
                self.drop(pool, store, right)?;
                self.reshape(pool, store, left, (left.0, left.1 + length + right.1))
            }
        }
    }

    /// The first free extent that ends after `block`. The reserve is not looked at.
    pub fn free_after<S: BlockRead>(&self, pool: &Pool, store: &mut S, block: u32) -> Result<Option<Free>> {
        let around = self.floor(pool, store, block)?.filter(|extent| extent.0 + extent.1 > block);
        if around.is_some() { Ok(around) } else { self.ceiling(pool, store, block) }
    }

    fn at_goal<S: BlockRead>(
        &self,
        pool: &Pool,
        store: &mut S,
        goal: u32,
        min: u32,
        max: u32,
    ) -> Result<Option<(Free, u32, u32)>> {
        let around = self.floor(pool, store, goal)?.filter(|extent| extent.0 + extent.1 > goal);
        let around = around.map(|extent| (extent, goal, (extent.0 + extent.1 - goal).min(max)));
        if around.is_some_and(|(_, _, length)| length == max) {
            return Ok(around);
        }
        let after = self.ceiling(pool, store, goal)?.map(|extent| (extent, extent.0, extent.1.min(max)));
        // "Right after" is within the goal's region: further away, any place is as good as any other.
        let region = |block: u32| block >> pool.geometry.region_bits;
        let after = after.filter(|&(_, start, _)| region(start) == region(goal));
        if after.is_some_and(|(_, _, length)| length == max) {
            return Ok(after);
        }
        Ok([around, after].into_iter().flatten().find(|&(_, _, length)| length >= min))
    }

    /// `want` blocks from the nearest of the extents around `goal` that has as many.
    fn nearest<S: BlockRead>(
        &self,
        pool: &Pool,
        store: &mut S,
        goal: u32,
        want: u32,
    ) -> Result<Option<(Free, u32, u32)>> {
        let scan = |found: &mut Option<u64>, steps: &mut usize, record: &[u8]| {
            *steps += 1;
            if word(record) as u32 >= want {
                *found = Some(word(record));
            }
            if found.is_some() || *steps == NEAR_STEPS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let (mut left, mut steps) = (None, 0);
        if goal > 0 {
            self.by_start.for_each_back_from(store, key(goal, 0) - 1, |record| scan(&mut left, &mut steps, record))?;
        }
        let (mut right, mut steps) = (None, 0);
        self.by_start.for_each_from(store, key(goal, 0), |record| scan(&mut right, &mut steps, record))?;
        let decode = |word: u64| self.decode_by_start(pool, &word.to_le_bytes());
        // From the left, its end is nearest; from the right, its start.
        let left = left.map(decode).transpose()?.map(|extent| (extent, extent.0 + extent.1 - want, want));
        let right = right.map(decode).transpose()?.map(|extent| (extent, extent.0, want));
        Ok([left, right].into_iter().flatten().min_by_key(|&(_, start, _)| start.abs_diff(goal)))
    }

    fn by_size<S: BlockRead>(
        &self,
        pool: &Pool,
        store: &mut S,
        min: u32,
        max: u32,
    ) -> Result<Option<(Free, u32, u32)>> {
        let record = match self.by_length.ceiling(store, key(max, 0))? {
            Some(record) => Some(record),
            None => self.by_length.last(store)?,
        };
        let Some(record) = record else { return Ok(None) };
        let extent = self.decode_by_length(pool, &record)?;
        Ok((extent.1 >= min).then(|| (extent, extent.0, extent.1.min(max))))
    }

    /// Takes `length` blocks at `start` out of the free extent `extent`.
    fn carve<S: BlockStore>(
        &mut self,
        pool: &mut Pool,
        store: &mut S,
        extent: Free,
        start: u32,
        length: u32,
    ) -> Result<()> {
        pool.take(start, length)?;
        let before = start - extent.0;
        let after = extent.1 - before - length;
        match (before, after) {
            (0, 0) => self.drop(pool, store, extent),
            (0, _) => self.reshape(pool, store, extent, (start + length, after)),
            (_, 0) => self.reshape(pool, store, extent, (extent.0, before)),
            _ => {
                self.reshape(pool, store, extent, (extent.0, before))?;
                self.add(pool, store, (start + length, after))
            }
        }
    }

    /// Most nodes that one operation can need: it may insert one extent into the tree by start and two into that by
    /// length, and an insertion may split every level and add one.
    pub fn reserve_need(&self) -> usize {
        let (start, length) = (usize::from(self.by_start.level), usize::from(self.by_length.level));
        ((start + 2) + 2 * (length + 2)).min(RESERVE_MAX)
    }

    /// Fills the reserve up to what the next operation may need. The blocks come from the end of the shortest free
    /// extent, which stays the shortest and in its place by start: so refilling itself needs no node. Of all extents that it takes
    /// from it reads both trees before it changes one: it is the first change of an operation, which what cannot be read refuses.
    pub fn refill<S: BlockStore>(&mut self, pool: &mut Pool, store: &mut S) -> Result<()> {
        self.read_ahead_of_refill(pool, store)?;
        while self.reserve.count < self.reserve_need() {
            let Some(record) = self.by_length.first(store)? else { break };
            let (start, length) = self.decode_by_length(pool, &record)?;
            let count = length.min((self.reserve_need() - self.reserve.count) as u32);
            let rest = length - count;
            // Taking the extents before has made leaves smaller, which now may join others.
            self.read_ahead_of_take(store, (start, length), count)?;
            if rest == 0 {
                self.drop(pool, store, (start, length))?;
            } else {
                self.reshape(pool, store, (start, length), (start, rest))?;
            }
            for block in start + rest..start + length {
                self.reserve.stow(pool, block)?;
            }
        }
        Ok(())
    }

    // The tree by length changes first: should it lack the extent that the tree by start has, nothing has changed yet.

    fn add<S: BlockStore>(&mut self, pool: &mut Pool, store: &mut S, new: Free) -> Result<()> {
        self.by_length.insert(store, &mut Nodes { pool, reserve: &mut self.reserve }, &by_length(new))?;
        self.by_start.insert(store, &mut Nodes { pool, reserve: &mut self.reserve }, &by_start(new))
    }

    fn drop<S: BlockStore>(&mut self, pool: &mut Pool, store: &mut S, old: Free) -> Result<()> {
        let found = self.by_length.remove(store, &mut Nodes { pool, reserve: &mut self.reserve }, key(old.1, old.0))?;
        Self::expect(found, &self.by_length, old)?;
        let found = self.by_start.remove(store, &mut Nodes { pool, reserve: &mut self.reserve }, key(old.0, old.1))?;
        Ok(Self::expect(found, &self.by_start, old)?)
    }

    fn reshape<S: BlockStore>(&mut self, pool: &mut Pool, store: &mut S, old: Free, new: Free) -> Result<()> {
        let found = self.by_length.rekey(
            store,
            &mut Nodes { pool, reserve: &mut self.reserve },
            key(old.1, old.0),
            &by_length(new),
        )?;
        Self::expect(found, &self.by_length, old)?;
        let found = self.by_start.rekey(
            store,
            &mut Nodes { pool, reserve: &mut self.reserve },
            key(old.0, old.1),
            &by_start(new),
        )?;
        Ok(Self::expect(found, &self.by_start, old)?)
    }

    /// The trees hold the same extents, or the group is damaged.
    fn expect(found: bool, tree: &Tree, extent: Free) -> std::result::Result<(), Corrupt> {
        if found {
            return Ok(());
        }
        Err(Corrupt::TreeNode { block: tree.root, field: "missing extent", value: key(extent.0, extent.1) })
    }

    /// The free extent that starts at `block` or last before it.
    fn floor<S: BlockRead>(&self, pool: &Pool, store: &mut S, block: u32) -> Result<Option<Free>> {
        let Some(record) = self.by_start.floor(store, key(block, u32::MAX))? else { return Ok(None) };
        Ok(Some(self.decode_by_start(pool, &record)?))
    }

    /// The free extent that starts first after `block`.
    fn ceiling<S: BlockRead>(&self, pool: &Pool, store: &mut S, block: u32) -> Result<Option<Free>> {
        let Some(record) = self.by_start.ceiling(store, key(block, u32::MAX))? else { return Ok(None) };
        Ok(Some(self.decode_by_start(pool, &record)?))
    }

    fn decode_by_start(&self, pool: &Pool, record: &[u8]) -> std::result::Result<Free, Corrupt> {
        let word = word(record);
        self.check_free(pool, &self.by_start, ((word >> 32) as u32, word as u32))
    }

    fn decode_by_length(&self, pool: &Pool, record: &[u8]) -> std::result::Result<Free, Corrupt> {
        let word = word(record);
        self.check_free(pool, &self.by_length, (word as u32, (word >> 32) as u32))
    }

    fn check_free(&self, pool: &Pool, tree: &Tree, extent: Free) -> std::result::Result<Free, Corrupt> {
        let (start, length) = extent;
        if start < pool.first_block || length == 0 || start.checked_add(length).is_none_or(|end| end > pool.block_count)
        {
            return Err(Corrupt::TreeNode { block: tree.root, field: "extent", value: key(start, length) });
        }
        Ok(extent)
    }
}

fn key(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn by_start((start, length): Free) -> [u8; 8] {
    key(start, length).to_le_bytes()
}

fn by_length((start, length): Free) -> [u8; 8] {
    key(length, start).to_le_bytes()
}

fn word(record: &[u8]) -> u64 {
    u64::from_le_bytes(record[..8].try_into().expect("eight bytes"))
}
