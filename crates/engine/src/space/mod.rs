//! Space of one allocation group: which of its blocks are free, as `trees` or `bitmap` records it (seam "space"), and how many of its inodes are
//! used (`inodes` says where they lie).
//!
//! `AgSpace` mirrors the group's header block. Every operation that changes the mirror writes it back before it returns, so between
//! operations a mirror can be dropped, and loaded again later. One field may lag behind: the number of inodes used. Nearly every operation on
//! names changes it and nothing else in the header, so only the first one in an epoch writes it to the header; the checkpoint that ends the epoch
//! writes it once more ([`AgSpace::catch_up`]). Because the first one has put the header among the epoch's changed blocks, the header stays in the
//! cache until then, and the checkpoint changes only granules that are marked already. When a mirror is dropped, the difference is handed on
//! ([`AgSpace::inodes_ahead`]).
//!
//! A region's `free_blocks` is the part of the group's free blocks that lies in the region.
//!
//! `allocate` and the functions like it return `None` for lack of space, and have changed nothing then. After `Corrupt` or `Io` in the
//! middle of a change the volume has to shut down.
//!
//! Locking: the group's lock is held around every call.
//! Not here: which group to use, and when freed blocks may be used again (limbo). Both are `volume/groups.rs`'s.

pub(crate) mod bitmap;
pub(crate) mod blocks;
mod fragments;
pub(crate) mod pool;
#[cfg(test)]
mod tests;
mod trees;

use crate::edit::{BlockRead, BlockStore, NewBlock};
use crate::error::{Error, Result};
use crate::inodes::Inodes;
use blocks::Blocks;
use myriad_format::checksum::ChecksumHeader;
use myriad_format::group::{FIXED_BLOCKS, GroupHeader, HEADER_BLOCK, RegionSummary};
use myriad_format::{AgBlock, AgNo, BlockHeader, BlockKind, Corrupt, FsBlock, Geometry, header};
use pool::{Pool, Region, regions_of, unless_unreadable};
use std::collections::BTreeSet;

/// Space and inodes of one allocation group.
pub(crate) struct AgSpace {
    blocks: Blocks,
    inodes: Inodes,
    inodes_used: u32,
    /// What the header says of them, and the epoch in which it was written last; `None`: not since the mirror was loaded.
    inodes_written: u32,
    written_in: Option<u64>,
    directories: u32,
    /// Bit i: part i of the table of checksums has been made.
    checksums_made: u64,
    /// In the volume's list of groups that the next checkpoint looks at.
    pub is_listed: bool,
}

impl AgSpace {
    /// Writes the header of a group of which nothing is used but what lies at fixed places and the extents `used`
    /// (start, length; sorted, apart), and makes what records its space and inodes.
    pub fn init_group<S: BlockStore>(store: &mut S, ag: AgNo, used: &[(u32, u32)]) -> Result<Self> {
        let pool = Pool::new(store.geometry(), ag);
        let (block_count, first_block) = (pool.block_count, pool.first_block);
        assert!(block_count > first_block);
        let block = pool.geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
        let regions = pool.regions.len() as u32;
        let blocks = Blocks::create(pool, store)?;
        let inodes = Inodes::create(&blocks.pool, store)?;
        let mut space = Self {
            blocks,
            inodes,
            inodes_used: 0,
            inodes_written: 0,
            written_in: None,
            directories: 0,
            checksums_made: 0,
            is_listed: false,
        };
        store.init(NewBlock::free(block), BlockKind::Group, u64::from(ag.0), |edit| {
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
        space.blocks.prepare(store)?;
        space.save(store)?;
        Ok(space)
    }

    /// Reads and checks the group's header.
    pub fn load<S: BlockRead>(store: &mut S, ag: AgNo) -> Result<Self> {
        let geometry = store.geometry();
        let block_count = geometry.blocks_in(ag);
        let region_count = regions_of(&geometry, ag);
        let block = geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
        store.read(block, BlockKind::Group, |bytes| {
            header::verify_owner(bytes, block, u64::from(ag.0))?;
            let head = GroupHeader::read(bytes);
            let check = |field, value: u32, sound: bool| {
                if sound { Ok(value) } else { Err(Corrupt::Group { ag, field, value: u64::from(value) }) }
            };
            check("ag", head.ag.get(), head.ag.get() == ag.0)?;
            check("block_count", head.block_count.get(), head.block_count.get() == block_count)?;
            check("region_count", head.region_count.get(), head.region_count.get() as usize == region_count)?;
            let regions: Vec<Region> = (0..region_count)
                .map(|index| RegionSummary::read(&bytes[region_offset(index)..]))
                .map(|raw| Region { free_blocks: raw.free_blocks.get(), directories: raw.directories.get() })
                .collect();
            for region in &regions {
                check("region free_blocks", region.free_blocks, region.free_blocks <= geometry.region_blocks())?;
            }
            let sum: u64 = regions.iter().map(|region| u64::from(region.free_blocks)).sum();
            let free_blocks = head.free_blocks.get();
            check("free_blocks", free_blocks, u64::from(free_blocks) == sum)?;
            let free_parts = if geometry.fragments() > 1 { head.free_parts.get() } else { 0 };
            let whole = free_blocks.checked_sub(free_parts);
            check("free_parts", free_parts, whole.is_some_and(|whole| whole % geometry.fragments() == 0))?;
            // Only so far that the sums made with them cannot overflow; whether they are right is the check's to find out.
            let inodes_used = head.inodes_used.get();
            check("inodes_used", inodes_used, inodes_used <= u32::MAX / 2)?;
            check("directories", head.directories.get(), head.directories.get() <= u32::MAX / 2)?;
            let mut pool = Pool::new(geometry, ag);
            pool.free_blocks = free_blocks;
            pool.free_parts = free_parts;
            pool.regions = regions;
            Ok(Self {
                inodes: Inodes::load(&pool, head)?,
                blocks: Blocks::load(pool, head)?,
                inodes_used,
                inodes_written: inodes_used,
                written_in: None,
                directories: head.directories.get(),
                checksums_made: head.checksums_made.get(),
                is_listed: false,
            })
        })?
    }

    /// Writes the mirror to the header block, touching only words that differ.
    fn save<S: BlockStore>(&mut self, store: &mut S) -> Result<()> {
        (self.inodes_written, self.written_in) = (self.inodes_used, store.epoch());
        let pool = &self.blocks.pool;
        let block = pool.geometry.fs_block(pool.ag, AgBlock(HEADER_BLOCK));
        store.change(block, BlockKind::Group, |edit| {
            let mut image = [0; GroupHeader::SIZE];
            image.copy_from_slice(&edit.bytes()[..GroupHeader::SIZE]);
            let head = GroupHeader::read_mut(&mut image);
            self.blocks.save(head);
            self.inodes.save(pool, head);
            head.inodes_used.set(self.inodes_used);
            head.directories.set(self.directories);
            head.checksums_made.set(self.checksums_made);
            edit.put_changed(BlockHeader::SIZE, &image[BlockHeader::SIZE..]);
            for (index, region) in pool.regions.iter().enumerate() {
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

    /// As [`Self::save`], when nothing has changed but how many inodes are used.
    fn save_count<S: BlockStore>(&mut self, store: &mut S) -> Result<()> {
        let epoch = store.epoch();
        if epoch.is_some() && epoch == self.written_in { Ok(()) } else { self.save(store) }
    }

    /// By how many used inodes the header lags behind.
    pub fn inodes_ahead(&self) -> i64 {
        i64::from(self.inodes_used) - i64::from(self.inodes_written)
    }

    /// Counts inodes by which a header lags whose mirror was dropped and loaded again.
    pub fn count_ahead(&mut self, inodes: i64) {
        self.inodes_used = self.inodes_used.saturating_add_signed(inodes as i32);
    }

    /// Writes what lags behind, at the end of an epoch.
    pub fn catch_up<S: BlockStore>(&mut self, store: &mut S) -> Result<()> {
        if self.inodes_ahead() == 0 { Ok(()) } else { self.save(store) }
    }

    /// Free blocks, those held back included.
    pub fn free_blocks(&self) -> u32 {
        self.blocks.pool.free_blocks
    }

    /// Of these, fragments of blocks that are partly used.
    pub fn free_parts(&self) -> u32 {
        self.blocks.pool.free_parts
    }

    /// Blocks that can be promised: the free ones but for those held back, and for parts of blocks.
    pub fn available(&self) -> u32 {
        let pool = &self.blocks.pool;
        (pool.free_blocks - pool.free_parts).saturating_sub(self.blocks.reserved())
    }

    /// Free blocks and directories of the region that holds `at`.
    pub fn region(&self, at: AgBlock) -> (u32, u32) {
        let pool = &self.blocks.pool;
        let region = pool.regions[pool.region_index(at)];
        (region.free_blocks, region.directories)
    }

    pub fn inodes_used(&self) -> u32 {
        self.inodes_used
    }

    pub fn directories(&self) -> u32 {
        self.directories
    }

    /// Counts anew what the bitmaps say is free.
    pub fn recount<S: BlockStore>(&mut self, store: &mut S) -> Result<()> {
        self.blocks.recount(store)?;
        if let Some(used) = self.inodes.recount(&self.blocks.pool, store)? {
            self.inodes_used = used;
        }
        self.save(store)
    }

    /// Blocks that the group's trees no longer use, since the last call. They are neither free nor in use: the caller
    /// treats them like freed file blocks. To be called at every checkpoint; it also lets go of what is held back
    /// beyond its need, so that blocks freed by shrinking trees become free extents again.
    pub fn take_released<S: BlockStore>(&mut self, store: &mut S) -> Result<Vec<FsBlock>> {
        if self.blocks.is_to_be_trimmed() {
            self.blocks.trim()?;
            self.save(store)?;
        }
        Ok(std::mem::take(&mut self.blocks.pool.released))
    }

    /// Whether [`Self::take_released`], [`Self::release_empty_chunks`] or [`Self::catch_up`] may have something to do. Only what changes
    /// the group can make it so.
    pub fn wants_checkpoint(&self) -> bool {
        self.blocks.is_to_be_trimmed()
            || !self.blocks.pool.released.is_empty()
            || self.has_empty_chunks()
            || self.inodes_ahead() != 0
    }

    /// What [`Self::take_released`] would hand out, from a mirror about to be dropped.
    pub fn abandon(&mut self) -> Vec<FsBlock> {
        std::mem::take(&mut self.blocks.pool.released)
    }

    /// The chunks that may have no inode left, of a mirror about to be dropped.
    pub fn take_empty_chunks(&mut self) -> BTreeSet<u32> {
        self.inodes.take_empty()
    }

    /// Notes a chunk of a mirror that was dropped.
    pub fn note_empty_chunk(&mut self, start: u32) {
        self.inodes.note_empty(start);
    }

    /// Counts a directory whose inode is at `at` in or out.
    pub fn count_directory<S: BlockStore>(&mut self, store: &mut S, at: AgBlock, appears: bool) -> Result<()> {
        let region = self.blocks.pool.region_index(at);
        // Of a group with a table it is a hint: power loss without a log may have left it too low.
        let least = if self.blocks.pool.geometry.has_table() { Some(0) } else { None };
        let step = |count: u32| if appears { count.checked_add(1) } else { count.checked_sub(1).or(least) };
        let here = step(self.blocks.pool.regions[region].directories);
        let (Some(here), Some(all)) = (here, step(self.directories)) else {
            return Err(self.blocks.pool.corrupt("directories", self.directories));
        };
        self.blocks.pool.regions[region].directories = here;
        self.directories = all;
        self.save(store)
    }

    /// Takes from the count of directories of the region of `at` what is too many.
    pub fn correct_directories<S: BlockStore>(&mut self, store: &mut S, at: AgBlock, surplus: i64) -> Result<()> {
        let region = self.blocks.pool.region_index(at);
        let less = |count: u32| u32::try_from(i64::from(count) - surplus).unwrap_or(0);
        self.blocks.pool.regions[region].directories = less(self.blocks.pool.regions[region].directories);
        self.directories = less(self.directories);
        self.save(store)
    }

    /// Allocates `min` to `max` blocks. First what is free at `goal` or right after it, if that is enough for `min`; then, as the record of
    /// free blocks finds them, `max` blocks near `goal`, anywhere, or the longest extent. What has to be read for that is read before the first change.
    /// If it cannot be read, that is the error in `unreadable`, and there are none.
    pub fn allocate<S: BlockStore>(
        &mut self,
        store: &mut S,
        goal: AgBlock,
        min: u32,
        max: u32,
        unreadable: &mut Option<Error>,
    ) -> Result<Option<(AgBlock, u32)>> {
        let is_ready = self.read_header(store, store.epoch()).map(Some);
        if unless_unreadable(is_ready, unreadable)?.is_none() {
            return Ok(None);
        }
        let found = self.blocks.allocate(store, goal, min, max, unreadable)?;
        self.save(store)?;
        Ok(found)
    }

    /// As [`Self::allocate`], for data: what of the table of checksums is to be changed with it is read before the blocks are taken, too.
    pub fn allocate_data<S: BlockStore>(
        &mut self,
        store: &mut S,
        goal: AgBlock,
        min: u32,
        max: u32,
        unreadable: &mut Option<Error>,
    ) -> Result<Option<(AgBlock, u32)>> {
        let is_ready = self.read_header(store, store.epoch()).map(Some);
        if unless_unreadable(is_ready, unreadable)?.is_none() {
            return Ok(None);
        }
        let (geometry, ag, made) = (self.blocks.pool.geometry, self.blocks.pool.ag, self.checksums_made);
        let mut unknown = None;
        let is_good = |store: &mut S, (start, length): (u32, u32)| {
            let read = read_checksums(&geometry, ag, made, store, AgBlock(start), length);
            read.map_err(|error| unknown = Some(error)).is_ok()
        };
        let held = self.blocks.reserved();
        let found = self.blocks.allocate_if(store, goal, min, max, is_good, unreadable)?;
        *unreadable = unknown.or(unreadable.take());
        if found.is_some() || self.blocks.reserved() != held {
            self.save(store)?;
        }
        Ok(found)
    }

    /// Reads the checksums of blocks, as far as their parts of the table have been made.
    pub fn read_checksums<S: BlockRead>(&self, store: &mut S, start: AgBlock, length: u32) -> Result<()> {
        let pool = &self.blocks.pool;
        read_checksums(&pool.geometry, pool.ag, self.checksums_made, store, start, length)
    }

    /// Makes the parts of the table of checksums that its blocks `first` to `last` belong to, where they have not been made
    /// yet: no committed state knows them.
    pub fn make_checksums<S: BlockStore>(&mut self, store: &mut S, first: u32, last: u32) -> Result<()> {
        let (geometry, ag) = (self.blocks.pool.geometry, self.blocks.pool.ag);
        for part in geometry.checksum_part_of(ag, first)..=geometry.checksum_part_of(ag, last) {
            if self.checksums_made >> part & 1 == 1 {
                continue;
            }
            for index in geometry.checksum_part(ag, part) {
                let block = geometry.fs_block(ag, AgBlock(FIXED_BLOCKS + index));
                store.init(NewBlock::free(block), BlockKind::Checksums, u64::from(ag.0), |edit| {
                    let head = ChecksumHeader::read_mut(edit.range_mut(0, ChecksumHeader::SIZE));
                    head.first.set(index * geometry.checksums_per_block());
                })?;
            }
            self.checksums_made |= 1 << part;
            self.save(store)?;
        }
        Ok(())
    }

    /// Reads what [`Self::free`] has to read.
    pub fn read_ahead_of_free<S: BlockRead>(&self, store: &mut S, start: AgBlock, length: u32) -> Result<()> {
        self.blocks.read_ahead_of_free(store, start, length)
    }

    /// Makes blocks free. The checkpoint that freed them must be durable: from here on they can be allocated and
    /// overwritten.
    pub fn free<S: BlockStore>(&mut self, store: &mut S, start: AgBlock, length: u32) -> Result<()> {
        self.blocks.free(store, start, length)?;
        self.save(store)
    }

    /// The first free extent that ends after `block`. What is held back is not looked at.
    pub fn free_after<S: BlockRead>(&mut self, store: &mut S, block: AgBlock) -> Result<Option<(AgBlock, u32)>> {
        self.blocks.free_after(store, block)
    }

    /// Takes an inode: near `near` if there is one; else, if `grow`, in room made for it near there; else anywhere in the group.
    pub fn allocate_inode<S: BlockStore>(
        &mut self,
        store: &mut S,
        near: AgBlock,
        grow: bool,
    ) -> Result<Option<(AgBlock, u32)>> {
        // It may have been read past the cache, and it is changed last.
        self.read_header(store, store.epoch())?;
        if let Some(found) = self.inodes.allocate_hinted(&self.blocks.pool, store, near)? {
            self.inodes_used += 1;
            self.save_count(store)?;
            return Ok(Some(found));
        }
        let found = self.inodes.allocate(&mut self.blocks, store, near, grow)?;
        self.inodes_used += u32::from(found.is_some());
        self.save(store)?;
        Ok(found)
    }

    /// Takes `count` consecutive free slots of an inode block, behind slot `inode`, for the body of that inode; the first of them.
    pub fn allocate_body<S: BlockStore>(
        &mut self,
        store: &mut S,
        block: AgBlock,
        inode: u32,
        count: u32,
    ) -> Result<Option<u32>> {
        self.inodes.allocate_body(&mut self.blocks, store, block, inode, count)
    }

    /// Reads the header, where it may not be in the cache, so that a change finds it.
    #[inline]
    pub fn read_header<S: BlockRead>(&self, store: &mut S, epoch: Option<u64>) -> Result<()> {
        if epoch.is_some() && epoch == self.written_in { Ok(()) } else { self.read_old_header(store) }
    }

    #[cold]
    fn read_old_header<S: BlockRead>(&self, store: &mut S) -> Result<()> {
        let pool = &self.blocks.pool;
        let block = pool.geometry.fs_block(pool.ag, AgBlock(HEADER_BLOCK));
        Ok(store.read(block, BlockKind::Group, |bytes| header::verify_owner(bytes, block, u64::from(pool.ag.0)))??)
    }

    /// Reads what [`Self::free_inode`] has to read besides the inode's block, where it may be that nobody has read it yet. With its body
    /// the inode has so many `slots`.
    #[inline]
    pub fn read_ahead_of_inode<S: BlockRead>(
        &self,
        store: &mut S,
        block: AgBlock,
        slot: u32,
        slots: u32,
    ) -> Result<()> {
        self.inodes.read_ahead(&self.blocks.pool, store, block, slot, slots)
    }

    /// Gives back an inode's slot and the `body` (first slot, number of slots) it had.
    pub fn free_inode<S: BlockStore>(
        &mut self,
        store: &mut S,
        block: AgBlock,
        slot: u32,
        body: Option<(u32, u32)>,
    ) -> Result<()> {
        if self.inodes_used == 0 {
            return Err(self.blocks.pool.corrupt("inodes_used", 0));
        }
        self.inodes.free(&mut self.blocks, store, block, slot, body)?;
        self.inodes_used -= 1;
        // The records of blocks and inodes are where they were.
        self.save_count(store)
    }

    /// Gives back the slots of a body.
    pub fn free_body<S: BlockStore>(&mut self, store: &mut S, block: AgBlock, first: u32, count: u32) -> Result<()> {
        self.inodes.free_body(&mut self.blocks, store, block, first, count)
    }

    /// Whether chunks may have become empty.
    pub fn has_empty_chunks(&self) -> bool {
        self.inodes.has_empty_chunks()
    }

    /// Removes up to `max` chunks that have no used slot; their blocks are added to `freed` and are the caller's to
    /// free once that is durable.
    pub fn release_empty_chunks<S: BlockStore>(
        &mut self,
        store: &mut S,
        max: usize,
        freed: &mut Vec<(FsBlock, u32)>,
    ) -> Result<()> {
        self.inodes.release_empty(&mut self.blocks, store, max, freed)?;
        self.save(store)
    }

    /// Whether an inode begins in a slot of a block that is one of inodes and has been made that, and is in use.
    pub fn holds_inode<S: BlockRead>(&mut self, store: &mut S, block: AgBlock, slot: u32) -> Result<bool> {
        self.inodes.holds(&self.blocks.pool, store, block, slot)
    }
}

/// Reads the checksums of blocks where their parts of the table, which are bits of `made`, have been made.
fn read_checksums<S: BlockRead>(
    geometry: &Geometry,
    ag: AgNo,
    made: u64,
    store: &mut S,
    start: AgBlock,
    length: u32,
) -> Result<()> {
    let table = |block: u32| geometry.checksum_of(geometry.fs_block(ag, AgBlock(block))).0;
    for block in (table(start.0).0..=table(start.0 + length - 1).0).map(FsBlock) {
        let part = geometry.checksum_part_of(ag, geometry.ag_block_of(block).0 - FIXED_BLOCKS);
        if made >> part & 1 == 1 {
            store.read(block, BlockKind::Checksums, |bytes| header::verify_owner(bytes, block, u64::from(ag.0)))??;
        }
    }
    Ok(())
}

fn region_offset(index: usize) -> usize {
    GroupHeader::SIZE + index * RegionSummary::SIZE
}
