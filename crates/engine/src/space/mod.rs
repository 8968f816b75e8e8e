//! Space of one allocation group: free extents in two B+ trees, by start and by length; inodes in `inodes`.
//!
//! `AgSpace` mirrors the group's header block. Every operation that changes the mirror writes it back before it
//! returns, so a mirror can be dropped and loaded again at any time between operations.
//!
//! Invariants
//!   1. Both trees hold the same extents; no two of them touch or overlap.
//!   2. `free_blocks` is the sum of the lengths in either tree plus `reserve_count`. A region's `free_blocks` is the part
//!      of the same blocks, reserve included, that lies in the region.
//!   3. Before an operation changes the trees, the reserve holds every node the operation may need, or the trees are
//!      empty and need none. So freeing never fails for lack of space.
//!   4. A node freed by the free-space trees goes to the reserve and from there only into the same trees, which log it
//!      (`NodeSource::LOGGED`): the committed state may still use the block. What the reserve cannot hold, and the nodes
//!      freed by the inode tree, are handed out by `take_released` and must wait like file blocks for the checkpoint.
//!   5. The fixed blocks of the trees never enter the trees; a tree that moved away leaves its one in the reserve.
//!
//! `allocate` and its kin return `None` for lack of space and have changed nothing then. After `Corrupt` or `Io` in the
//! middle of a change the mount has to shut down.
//!
//! Locking: the group's lock is held around every call.
//! Not here: which group to use, and when freed blocks are safe to be free again (limbo): both are the engine's.

mod inodes;
#[cfg(test)]
mod tests;

use crate::btree::Tree;
use crate::edit::{BlockRead, BlockStore, NodeSource};
use crate::error::{Result, refuse};
use crate::planted::{Bug, planted};
use inodes::Hints;
use myriad_format::btree::{FREE_BY_LENGTH, FREE_BY_START, INODE_CHUNKS, LEVEL_MAX};
use myriad_format::checksum::ChecksumHeader;
use myriad_format::group::{
    FIRST_BY_LENGTH_BLOCK, FIRST_BY_START_BLOCK, FIRST_INODE_TREE_BLOCK, FIXED_BLOCKS, GroupHeader, HEADER_BLOCK,
    RESERVE_MAX, RegionSummary,
};
use myriad_format::{AgBlock, AgNo, BlockHeader, BlockKind, Corrupt, FsBlock, Geometry, header};
use rustix::io::Errno;
use std::ops::ControlFlow;

/// Free extents looked at on each side of the goal before locality is given up. XFS steps at most 10 inode chunks to
/// either side; the same bound here keeps an allocation in a fragmented group at a few microseconds.
const NEAR_STEPS: usize = 10;

/// Blocks the reserve may hold beyond its need before a checkpoint trims it: one split's worth, so that a tree at the edge
/// of a level does not trade blocks with the trees at every checkpoint.
const TRIM_SLACK: usize = 4;

/// A free extent: group-relative start, length.
type Free = (u32, u32);

#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Region {
    free_blocks: u32,
    directories: u32,
}

/// The counts of free blocks, and the blocks held back for nodes of the free-space trees.
struct Pool {
    geometry: Geometry,
    ag: AgNo,
    free_blocks: u32,
    regions: Vec<Region>,
    reserve: [u32; RESERVE_MAX],
    reserve_count: usize,
    /// Blocks on their way to the engine's limbo.
    released: Vec<FsBlock>,
}

impl Pool {
    /// Parts of `length` blocks from `start` by region.
    fn parts(&self, start: u32, length: u32) -> impl Iterator<Item = (usize, u32)> + use<> {
        let bits = self.geometry.region_bits;
        let end = start + length;
        (start >> bits..=(end - 1) >> bits).map(move |region| {
            let from = start.max(region << bits);
            let to = u64::from(end).min((u64::from(region) + 1) << bits) as u32;
            (region as usize, to - from)
        })
    }

    /// Counts blocks as used.
    fn take(&mut self, start: u32, length: u32) -> Result<()> {
        let sound = self.free_blocks >= length
            && self.parts(start, length).all(|(region, part)| self.regions[region].free_blocks >= part);
        if !sound {
            return Err(self.corrupt("free_blocks", self.free_blocks));
        }
        self.free_blocks -= length;
        for (region, part) in self.parts(start, length) {
            self.regions[region].free_blocks -= part;
        }
        Ok(())
    }

    /// Counts blocks as free.
    fn give(&mut self, start: u32, length: u32) -> Result<()> {
        let limit = self.geometry.region_blocks();
        if self.parts(start, length).any(|(region, part)| self.regions[region].free_blocks > limit - part) {
            return Err(self.corrupt("free_blocks", self.free_blocks));
        }
        self.free_blocks += length;
        for (region, part) in self.parts(start, length) {
            self.regions[region].free_blocks += part;
        }
        Ok(())
    }

    /// Puts a block, counted as free, into the reserve. When that is full, one block leaves for limbo; not a fixed one,
    /// which could never come back.
    fn stow(&mut self, mut block: u32) -> Result<()> {
        if self.reserve_count < RESERVE_MAX {
            self.reserve[self.reserve_count] = block;
            self.reserve_count += 1;
            return Ok(());
        }
        if block < FIXED_BLOCKS
            && let Some(place) = self.reserve.iter_mut().find(|place| **place >= FIXED_BLOCKS)
        {
            std::mem::swap(place, &mut block);
        }
        self.take(block, 1)?;
        self.released.push(self.geometry.fs_block(self.ag, AgBlock(block)));
        Ok(())
    }

    /// Group-relative address of a node of one of our trees.
    fn own(&self, block: FsBlock) -> Result<u32> {
        let at = self.geometry.ag_block_of(block);
        if self.geometry.ag_of(block) != self.ag || at.0 <= HEADER_BLOCK {
            return Err(Corrupt::TreeNode { block, field: "group", value: u64::from(self.ag.0) }.into());
        }
        Ok(at.0)
    }

    #[cold]
    fn corrupt(&self, field: &'static str, value: u32) -> crate::error::Error {
        Corrupt::Group { ag: self.ag, field, value: u64::from(value) }.into()
    }
}

impl<S: BlockStore> NodeSource<S> for Pool {
    const LOGGED: bool = true;

    fn allocate(&mut self, _store: &mut S) -> Result<FsBlock> {
        let Some(last) = self.reserve_count.checked_sub(1) else { return refuse(Errno::NOSPC) };
        let block = self.reserve[last];
        self.take(block, 1)?;
        self.reserve_count = last;
        Ok(self.geometry.fs_block(self.ag, AgBlock(block)))
    }

    fn free(&mut self, _store: &mut S, block: FsBlock) -> Result<()> {
        let block = self.own(block)?;
        self.give(block, 1)?;
        self.stow(block)
    }
}

/// Space and inodes of one allocation group.
pub(crate) struct AgSpace {
    geometry: Geometry,
    ag: AgNo,
    block_count: u32,
    /// The first block that can be free.
    first_block: u32,
    by_start: Tree,
    by_length: Tree,
    inode_tree: Tree,
    pool: Pool,
    inode_blocks: u32,
    inodes_used: u32,
    directories: u32,
    /// Bit i: part i of the table of checksums has been made.
    checksums_made: u64,
    hints: Hints,
    /// In the volume's list of groups that the next checkpoint looks at.
    pub is_listed: bool,
}

impl AgSpace {
    /// Writes the header and trees of a group of which nothing is used but its fixed blocks and the extents `used`
    /// (start, length; sorted, apart).
    pub fn init_group<S: BlockStore>(store: &mut S, ag: AgNo, used: &[(u32, u32)]) -> Result<Self> {
        let geometry = store.geometry();
        let block_count = geometry.blocks_in(ag);
        let first_block = geometry.first_data_block(ag);
        assert!(block_count > first_block);
        let at = |block: u32| geometry.fs_block(ag, AgBlock(block));
        let owner = u64::from(ag.0);
        let mut space = Self {
            geometry,
            ag,
            block_count,
            first_block,
            by_start: Tree::create_at(FREE_BY_START, owner, store, at(FIRST_BY_START_BLOCK))?,
            by_length: Tree::create_at(FREE_BY_LENGTH, owner, store, at(FIRST_BY_LENGTH_BLOCK))?,
            inode_tree: Tree::create_at(INODE_CHUNKS, owner, store, at(FIRST_INODE_TREE_BLOCK))?,
            pool: Pool {
                geometry,
                ag,
                free_blocks: 0,
                regions: vec![Region::default(); regions_of(&geometry, ag)],
                reserve: [0; RESERVE_MAX],
                reserve_count: 0,
                released: Vec::new(),
            },
            inode_blocks: 0,
            inodes_used: 0,
            directories: 0,
            checksums_made: 0,
            hints: Hints::new(regions_of(&geometry, ag)),
            is_listed: false,
        };
        let regions = space.pool.regions.len() as u32;
        store.init(at(HEADER_BLOCK), BlockKind::Group, owner, |edit| {
            let head = GroupHeader::read_mut(edit.range_mut(0, GroupHeader::SIZE));
            head.ag.set(ag.0);
            head.block_count.set(block_count);
            head.region_count.set(regions);
        })?;
        let mut next = first_block;
        for &(start, length) in used.iter().chain([&(block_count, 0)]) {
            assert!(start >= next && start + length <= block_count, "used extents are sorted, apart, and in the group");
            if start > next {
                space.free(store, AgBlock(next), start - next)?;
            }
            next = start + length;
        }
        space.refill(store)?;
        space.save(store)?;
        Ok(space)
    }

    /// Reads and checks the group's header.
    pub fn load<S: BlockRead>(store: &mut S, ag: AgNo) -> Result<Self> {
        let geometry = store.geometry();
        let block_count = geometry.blocks_in(ag);
        let region_count = regions_of(&geometry, ag);
        let at = |block: u32| geometry.fs_block(ag, AgBlock(block));
        let owner = u64::from(ag.0);
        store.read(at(HEADER_BLOCK), BlockKind::Group, |bytes| {
            header::verify_owner(bytes, at(HEADER_BLOCK), owner)?;
            let head = GroupHeader::read(bytes);
            let check = |field, value: u32, sound: bool| {
                if sound { Ok(value) } else { Err(Corrupt::Group { ag, field, value: u64::from(value) }) }
            };
            let tree = |kind, field, root: u32, level: u8| {
                check(field, root, root > HEADER_BLOCK && root < block_count)?;
                check("level", u32::from(level), u16::from(level) <= LEVEL_MAX)?;
                Ok::<_, Corrupt>(Tree { kind, root: at(root), level: u16::from(level), owner })
            };
            check("ag", head.ag.get(), head.ag.get() == ag.0)?;
            check("block_count", head.block_count.get(), head.block_count.get() == block_count)?;
            check("region_count", head.region_count.get(), head.region_count.get() as usize == region_count)?;
            let reserve_count = head.reserve_count.get();
            check("reserve_count", reserve_count, reserve_count as usize <= RESERVE_MAX)?;
            let mut reserve = [0; RESERVE_MAX];
            for index in 0..reserve_count as usize {
                let block = head.reserve[index].get();
                let fits = block > HEADER_BLOCK && block < block_count && !reserve[..index].contains(&block);
                reserve[index] = check("reserve", block, fits)?;
            }
            let regions: Vec<Region> = (0..region_count)
                .map(|index| RegionSummary::read(&bytes[region_offset(index)..]))
                .map(|raw| Region { free_blocks: raw.free_blocks.get(), directories: raw.directories.get() })
                .collect();
            for region in &regions {
                check("region free_blocks", region.free_blocks, region.free_blocks <= geometry.region_blocks())?;
            }
            let sum: u64 = regions.iter().map(|region| u64::from(region.free_blocks)).sum();
            let free_blocks = head.free_blocks.get();
            check("free_blocks", free_blocks, u64::from(free_blocks) == sum && free_blocks >= reserve_count)?;
            // Only so far that the sums made with them cannot overflow; whether they are right is the check's to find out.
            let (inode_blocks, inodes_used) = (head.inode_blocks.get(), head.inodes_used.get());
            check("inode_blocks", inode_blocks, inode_blocks <= block_count)?;
            check("inodes_used", inodes_used, inodes_used <= u32::MAX / 2)?;
            check("directories", head.directories.get(), head.directories.get() <= u32::MAX / 2)?;
            Ok(Self {
                geometry,
                ag,
                block_count,
                first_block: geometry.first_data_block(ag),
                by_start: tree(FREE_BY_START, "by_start_root", head.by_start_root.get(), head.by_start_level)?,
                by_length: tree(FREE_BY_LENGTH, "by_length_root", head.by_length_root.get(), head.by_length_level)?,
                inode_tree: tree(INODE_CHUNKS, "inode_root", head.inode_root.get(), head.inode_level)?,
                pool: Pool {
                    geometry,
                    ag,
                    free_blocks,
                    regions,
                    reserve,
                    reserve_count: reserve_count as usize,
                    released: Vec::new(),
                },
                inode_blocks,
                inodes_used,
                directories: head.directories.get(),
                checksums_made: head.checksums_made.get(),
                hints: Hints::new(region_count),
                is_listed: false,
            })
        })?
    }

    /// Writes the mirror to the header block, touching only words that differ.
    fn save<S: BlockStore>(&self, store: &mut S) -> Result<()> {
        let block = self.geometry.fs_block(self.ag, AgBlock(HEADER_BLOCK));
        store.change(block, BlockKind::Group, |edit| {
            let mut image = [0; GroupHeader::SIZE];
            image.copy_from_slice(&edit.bytes()[..GroupHeader::SIZE]);
            let head = GroupHeader::read_mut(&mut image);
            let relative = |tree: &Tree| self.geometry.ag_block_of(tree.root).0;
            head.free_blocks.set(self.pool.free_blocks);
            head.by_start_root.set(relative(&self.by_start));
            head.by_length_root.set(relative(&self.by_length));
            head.inode_root.set(relative(&self.inode_tree));
            head.by_start_level = self.by_start.level as u8;
            head.by_length_level = self.by_length.level as u8;
            head.inode_level = self.inode_tree.level as u8;
            head.inode_blocks.set(self.inode_blocks);
            head.inodes_used.set(self.inodes_used);
            head.directories.set(self.directories);
            head.checksums_made.set(self.checksums_made);
            head.reserve_count.set(self.pool.reserve_count as u32);
            for (place, &block) in head.reserve.iter_mut().zip(&self.pool.reserve[..self.pool.reserve_count]) {
                place.set(block);
            }
            for at in (BlockHeader::SIZE..GroupHeader::SIZE).step_by(8) {
                if edit.bytes()[at..at + 8] != image[at..at + 8] {
                    edit.put(at, &image[at..at + 8]);
                }
            }
            for (index, region) in self.pool.regions.iter().enumerate() {
                let at = region_offset(index);
                let raw = RegionSummary::read(&edit.bytes()[at..]);
                if raw.free_blocks.get() != region.free_blocks || raw.directories.get() != region.directories {
                    let raw = RegionSummary::read_mut(edit.range_mut(at, RegionSummary::SIZE));
                    raw.free_blocks.set(region.free_blocks);
                    raw.directories.set(region.directories);
                }
            }
        })
    }

    /// Free blocks, the reserve included.
    pub fn free_blocks(&self) -> u32 {
        self.pool.free_blocks
    }

    /// Blocks that can be allocated: the free ones but for the reserve.
    pub fn available(&self) -> u32 {
        self.pool.free_blocks.saturating_sub(self.pool.reserve_count as u32)
    }

    /// Free blocks and directories of the region that holds `at`.
    pub fn region(&self, at: AgBlock) -> (u32, u32) {
        let region = self.pool.regions[self.region_index(at)];
        (region.free_blocks, region.directories)
    }

    #[cfg(test)]
    pub fn region_count(&self) -> usize {
        self.pool.regions.len()
    }

    #[cfg(test)]
    pub fn inode_blocks(&self) -> u32 {
        self.inode_blocks
    }

    pub fn inodes_used(&self) -> u32 {
        self.inodes_used
    }

    pub fn directories(&self) -> u32 {
        self.directories
    }

    /// Blocks that the group's trees no longer use, since the last call. They are neither free nor in use: the caller
    /// treats them like freed file blocks. To be called at every checkpoint; it also lets go of what the reserve holds
    /// beyond its need, so that blocks freed by shrinking trees become free extents again.
    pub fn take_released<S: BlockStore>(&mut self, store: &mut S) -> Result<Vec<FsBlock>> {
        let need = self.reserve_need();
        if self.pool.reserve_count > need + TRIM_SLACK {
            for index in (0..self.pool.reserve_count).rev() {
                let block = self.pool.reserve[index];
                if self.pool.reserve_count > need && block >= FIXED_BLOCKS {
                    self.pool.take(block, 1)?;
                    self.pool.reserve_count -= 1;
                    self.pool.reserve.swap(index, self.pool.reserve_count);
                    self.pool.released.push(self.geometry.fs_block(self.ag, AgBlock(block)));
                }
            }
            self.save(store)?;
        }
        Ok(std::mem::take(&mut self.pool.released))
    }

    /// Whether [`Self::take_released`] or [`Self::release_empty_chunks`] may have something to do. Only what changes the group can make
    /// it so.
    pub fn has_to_give_back(&self) -> bool {
        !self.pool.released.is_empty()
            || self.has_empty_chunks()
            || self.pool.reserve_count > self.reserve_need() + TRIM_SLACK
    }

    /// What [`Self::take_released`] would hand out, from a mirror about to be dropped.
    pub fn abandon(&mut self) -> Vec<FsBlock> {
        std::mem::take(&mut self.pool.released)
    }

    /// Length of the longest free extent.
    pub fn longest<S: BlockRead>(&self, store: &mut S) -> Result<u32> {
        let Some(record) = self.by_length.last(store)? else { return Ok(0) };
        Ok(self.decode_by_length(&record)?.1)
    }

    /// Counts a directory whose inode is at `at` in or out.
    pub fn count_directory<S: BlockStore>(&mut self, store: &mut S, at: AgBlock, appears: bool) -> Result<()> {
        let region = self.region_index(at);
        let step = |count: u32| if appears { count.checked_add(1) } else { count.checked_sub(1) };
        let (Some(here), Some(all)) = (step(self.pool.regions[region].directories), step(self.directories)) else {
            return Err(self.pool.corrupt("directories", self.directories));
        };
        self.pool.regions[region].directories = here;
        self.directories = all;
        self.save(store)
    }

    /// Allocates `min` to `max` blocks. In this order: what is free at `goal` or right after it, if that is enough for
    /// `min`; `max` blocks from the nearest of a few free extents on either side; the smallest free extent of at least
    /// `max` blocks; the longest one.
    pub fn allocate<S: BlockStore>(
        &mut self,
        store: &mut S,
        goal: AgBlock,
        min: u32,
        max: u32,
    ) -> Result<Option<(AgBlock, u32)>> {
        assert!(min > 0 && min <= max && goal.0 < self.block_count);
        self.refill(store)?;
        let found = match self.at_goal(store, goal.0, min, max)? {
            Some(found) => Some(found),
            None => match self.nearest(store, goal.0, max)? {
                Some(found) => Some(found),
                None => self.by_size(store, min, max)?,
            },
        };
        let Some((extent, start, length)) = found else { return Ok(None) };
        if !planted(Bug::DoubleAllocation) {
            self.carve(store, extent, start, length)?;
        }
        self.save(store)?;
        Ok(Some((AgBlock(start), length)))
    }

    /// Makes the parts of the table of checksums that its blocks `first` to `last` belong to, where they have not been made
    /// yet: no committed state knows them.
    pub fn make_checksums<S: BlockStore>(&mut self, store: &mut S, first: u32, last: u32) -> Result<()> {
        let (geometry, ag) = (self.geometry, self.ag);
        for part in geometry.checksum_part_of(ag, first)..=geometry.checksum_part_of(ag, last) {
            if self.checksums_made >> part & 1 == 1 {
                continue;
            }
            for index in geometry.checksum_part(ag, part) {
                let block = geometry.fs_block(ag, AgBlock(FIXED_BLOCKS + index));
                store.init(block, BlockKind::Checksums, u64::from(ag.0), |edit| {
                    let head = ChecksumHeader::read_mut(edit.range_mut(0, ChecksumHeader::SIZE));
                    head.first.set(index * geometry.checksums_per_block());
                })?;
            }
            self.checksums_made |= 1 << part;
            self.save(store)?;
        }
        Ok(())
    }

    /// Makes blocks free. The checkpoint that freed them must be durable: from here on they can be allocated and
    /// overwritten.
    pub fn free<S: BlockStore>(&mut self, store: &mut S, start: AgBlock, length: u32) -> Result<()> {
        let start = start.0;
        let double = Corrupt::DoubleFree { ag: self.ag, start, length };
        let end = match start.checked_add(length) {
            Some(end) if length > 0 && start >= self.first_block && end <= self.block_count => end,
            _ => return Err(double.into()),
        };
        if self.pool.reserve[..self.pool.reserve_count].iter().any(|&block| block >= start && block < end) {
            return Err(double.into());
        }
        self.refill(store)?;
        let left = self.floor(store, start)?;
        let right = self.ceiling(store, start)?;
        if left.is_some_and(|left| left.0 + left.1 > start) || right.is_some_and(|right| right.0 < end) {
            return Err(double.into());
        }
        let left = left.filter(|left| left.0 + left.1 == start);
        let right = right.filter(|right| right.0 == end);
        self.pool.give(start, length)?;
        match (left, right) {
            (None, None) => self.add(store, (start, length))?,
            (Some(left), None) => self.reshape(store, left, (left.0, left.1 + length))?,
            (None, Some(right)) => self.reshape(store, right, (start, length + right.1))?,
            (Some(left), Some(right)) => {
                self.drop(store, right)?;
                self.reshape(store, left, (left.0, left.1 + length + right.1))?;
            }
        }
        self.save(store)
    }

    /// The first free extent that ends after `block`. The reserve is not looked at.
    pub fn free_after<S: BlockRead>(&self, store: &mut S, block: AgBlock) -> Result<Option<(AgBlock, u32)>> {
        let around = self.floor(store, block.0)?.filter(|extent| extent.0 + extent.1 > block.0);
        let found = if around.is_some() { around } else { self.ceiling(store, block.0)? };
        Ok(found.map(|(start, length)| (AgBlock(start), length)))
    }

    /// Visits the free extents in order of their start. The reserve is not among them.
    #[cfg(test)]
    pub fn for_each_free<S: BlockRead>(&self, store: &mut S, mut f: impl FnMut(AgBlock, u32)) -> Result<()> {
        let mut result = Ok(());
        self.by_start.for_each_from(store, 0, |record| match self.decode_by_start(record) {
            Ok((start, length)) => {
                f(AgBlock(start), length);
                ControlFlow::Continue(())
            }
            Err(error) => {
                result = Err(error);
                ControlFlow::Break(())
            }
        })?;
        Ok(result?)
    }

    fn region_index(&self, at: AgBlock) -> usize {
        assert!(at.0 < self.block_count);
        (at.0 >> self.geometry.region_bits) as usize
    }

    fn at_goal<S: BlockRead>(&self, store: &mut S, goal: u32, min: u32, max: u32) -> Result<Option<(Free, u32, u32)>> {
        let around = self.floor(store, goal)?.filter(|extent| extent.0 + extent.1 > goal);
        let around = around.map(|extent| (extent, goal, (extent.0 + extent.1 - goal).min(max)));
        if around.is_some_and(|(_, _, length)| length == max) {
            return Ok(around);
        }
        let after = self.ceiling(store, goal)?.map(|extent| (extent, extent.0, extent.1.min(max)));
        // "Right after" is within the goal's region: further away, any place is as good as any other.
        let region = |block: u32| block >> self.geometry.region_bits;
        let after = after.filter(|&(_, start, _)| region(start) == region(goal));
        if after.is_some_and(|(_, _, length)| length == max) {
            return Ok(after);
        }
        Ok([around, after].into_iter().flatten().find(|&(_, _, length)| length >= min))
    }

    /// `want` blocks from the nearest of the extents around `goal` that has as many.
    fn nearest<S: BlockRead>(&self, store: &mut S, goal: u32, want: u32) -> Result<Option<(Free, u32, u32)>> {
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
        let decode = |word: u64| self.decode_by_start(&word.to_le_bytes());
        // From the left, its end is nearest; from the right, its start.
        let left = left.map(decode).transpose()?.map(|extent| (extent, extent.0 + extent.1 - want, want));
        let right = right.map(decode).transpose()?.map(|extent| (extent, extent.0, want));
        Ok([left, right].into_iter().flatten().min_by_key(|&(_, start, _)| start.abs_diff(goal)))
    }

    fn by_size<S: BlockRead>(&self, store: &mut S, min: u32, max: u32) -> Result<Option<(Free, u32, u32)>> {
        let record = match self.by_length.ceiling(store, key(max, 0))? {
            Some(record) => Some(record),
            None => self.by_length.last(store)?,
        };
        let Some(record) = record else { return Ok(None) };
        let extent = self.decode_by_length(&record)?;
        Ok((extent.1 >= min).then(|| (extent, extent.0, extent.1.min(max))))
    }

    /// Takes `length` blocks at `start` out of the free extent `extent`.
    fn carve<S: BlockStore>(&mut self, store: &mut S, extent: Free, start: u32, length: u32) -> Result<()> {
        self.pool.take(start, length)?;
        let before = start - extent.0;
        let after = extent.1 - before - length;
        match (before, after) {
            (0, 0) => self.drop(store, extent),
            (0, _) => self.reshape(store, extent, (start + length, after)),
            (_, 0) => self.reshape(store, extent, (extent.0, before)),
            _ => {
                self.reshape(store, extent, (extent.0, before))?;
                self.add(store, (start + length, after))
            }
        }
    }

    /// Most nodes that one operation can need: it may insert one extent into the tree by start and two into that by
    /// length, and an insertion may split every level and add one.
    fn reserve_need(&self) -> usize {
        let (start, length) = (usize::from(self.by_start.level), usize::from(self.by_length.level));
        ((start + 2) + 2 * (length + 2)).min(RESERVE_MAX)
    }

    /// Fills the reserve up to what the next operation may need. The blocks come from the end of the shortest free
    /// extent, which stays the shortest and in its place by start: so refilling itself needs no node.
    fn refill<S: BlockStore>(&mut self, store: &mut S) -> Result<()> {
        while self.pool.reserve_count < self.reserve_need() {
            let Some(record) = self.by_length.first(store)? else { break };
            let (start, length) = self.decode_by_length(&record)?;
            let count = length.min((self.reserve_need() - self.pool.reserve_count) as u32);
            let rest = length - count;
            if rest == 0 {
                self.drop(store, (start, length))?;
            } else {
                self.reshape(store, (start, length), (start, rest))?;
            }
            for block in start + rest..start + length {
                self.pool.stow(block)?;
            }
            self.save(store)?;
        }
        Ok(())
    }

    // The tree by length changes first: should it lack the extent that the tree by start has, nothing has changed yet.

    fn add<S: BlockStore>(&mut self, store: &mut S, new: Free) -> Result<()> {
        self.by_length.insert(store, &mut self.pool, &by_length(new))?;
        self.by_start.insert(store, &mut self.pool, &by_start(new))
    }

    fn drop<S: BlockStore>(&mut self, store: &mut S, old: Free) -> Result<()> {
        let found = self.by_length.remove(store, &mut self.pool, key(old.1, old.0))?;
        Self::expect(found, &self.by_length, old)?;
        let found = self.by_start.remove(store, &mut self.pool, key(old.0, old.1))?;
        Ok(Self::expect(found, &self.by_start, old)?)
    }

    fn reshape<S: BlockStore>(&mut self, store: &mut S, old: Free, new: Free) -> Result<()> {
        let found = self.by_length.rekey(store, &mut self.pool, key(old.1, old.0), &by_length(new))?;
        Self::expect(found, &self.by_length, old)?;
        let found = self.by_start.rekey(store, &mut self.pool, key(old.0, old.1), &by_start(new))?;
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
    fn floor<S: BlockRead>(&self, store: &mut S, block: u32) -> Result<Option<Free>> {
        let Some(record) = self.by_start.floor(store, key(block, u32::MAX))? else { return Ok(None) };
        Ok(Some(self.decode_by_start(&record)?))
    }

    /// The free extent that starts first after `block`.
    fn ceiling<S: BlockRead>(&self, store: &mut S, block: u32) -> Result<Option<Free>> {
        let Some(record) = self.by_start.ceiling(store, key(block, u32::MAX))? else { return Ok(None) };
        Ok(Some(self.decode_by_start(&record)?))
    }

    fn decode_by_start(&self, record: &[u8]) -> std::result::Result<Free, Corrupt> {
        let word = word(record);
        self.check_free(&self.by_start, ((word >> 32) as u32, word as u32))
    }

    fn decode_by_length(&self, record: &[u8]) -> std::result::Result<Free, Corrupt> {
        let word = word(record);
        self.check_free(&self.by_length, (word as u32, (word >> 32) as u32))
    }

    fn check_free(&self, tree: &Tree, extent: Free) -> std::result::Result<Free, Corrupt> {
        let (start, length) = extent;
        if start < self.first_block || length == 0 || start.checked_add(length).is_none_or(|end| end > self.block_count)
        {
            return Err(Corrupt::TreeNode { block: tree.root, field: "extent", value: key(start, length) });
        }
        Ok(extent)
    }
}

fn regions_of(geometry: &Geometry, ag: AgNo) -> usize {
    geometry.blocks_in(ag).div_ceil(geometry.region_blocks()) as usize
}

fn region_offset(index: usize) -> usize {
    GroupHeader::SIZE + index * RegionSummary::SIZE
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
