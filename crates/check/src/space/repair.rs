//! Repair, last part: inode trees or bitmaps of inodes, free space, headers, and the superblock's counts. All of it is
//! derived from the owners of blocks.
//!
//! A new inode tree never lies where the old one does, and is durable before the header names it. So power lost in
//! between leaves the old tree or the new one whole. A mixture of the two could look sound and lack chunks; and a
//! search of the group, which would take a tree's place, also finds inodes that were removed long ago. Trees of free
//! space are derived anew each time, and nothing is believed of the old ones.

use super::trees::{FreeTrees, free_nodes, pop};
use super::{Counted, bitmap, free_by_region};
use crate::context::is_tree_block;
use crate::inodes::ChunkRecords;
use crate::options::CheckError;
use crate::repair::build::{Fill, node_count, write, write_tree, written};
use crate::repair::volume::{Repair, state};
use myriad_format::btree::INODE_CHUNKS;
use myriad_format::choices::{Inodes, Space};
use myriad_format::group::{
    FIRST_BY_START_BLOCK, FIRST_INODE_TREE_BLOCK, FIXED_BLOCKS, GroupHeader, HEADER_BLOCK, RESERVE_MAX, RegionSummary,
};
use myriad_format::inode::ChunkRecord;
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, header};

/// Headers that wait for one flush: a block of memory each.
const HEADERS_AT_ONCE: usize = 256;

/// A group's inode tree that has been written, and what there is for its trees of free space.
struct Nodes {
    /// Of the inode tree, group-relative; 0 without.
    root: u32,
    level: u8,
    inode_blocks: u32,
    /// Free extents, group-relative, ascending.
    free: Vec<(u32, u32)>,
    places: Vec<FsBlock>,
    fill: Fill,
}

impl Repair<'_> {
    pub(crate) fn write_groups(&mut self) -> Result<(), CheckError> {
        let mut free = Counted::default();
        let mut headers = Vec::new();
        for ag in (0..self.ag_used).map(AgNo) {
            let (header, of_group) = self.write_group(ag)?;
            free.blocks += of_group.blocks;
            free.parts += of_group.parts;
            headers.push((ag, header));
            if headers.len() == HEADERS_AT_ONCE || ag.0 + 1 == self.ag_used {
                self.flush()?;
                for (ag, mut header) in headers.drain(..) {
                    write(&self.reader, self.geometry.fs_block(ag, AgBlock(HEADER_BLOCK)), &mut header)?;
                }
            }
            self.tick("repairing space", u64::from(ag.0) + 1, u64::from(self.ag_used), 0.8, 1.0);
        }
        for ag in self.ag_used..self.geometry.ag_count {
            free.blocks += u64::from(self.geometry.usable_blocks_in(AgNo(ag)));
            free.parts += u64::from(self.geometry.usable_parts_in(AgNo(ag)));
        }
        let used = self.items.iter().filter(|item| item.state & state::GONE == 0);
        let (inodes, directories) =
            used.fold((0, 0), |(all, dirs), item| (all + 1, dirs + u64::from(item.file_type == 4)));
        self.superblock.free_blocks.set(free.blocks);
        self.superblock.free_parts.set(free.parts);
        self.superblock.inodes_used.set(inodes);
        self.superblock.directories.set(directories);
        Ok(())
    }

    /// Writes what a group says of its inodes and free blocks; the header that is to name it, and what is free.
    fn write_group(&mut self, ag: AgNo) -> Result<(Vec<u8>, Counted), CheckError> {
        let first = self.geometry.fs_block(ag, AgBlock(0));
        let blocks = self.geometry.blocks_in(ag);
        let checksums_made = self.mend_table(ag)?;
        let mut nodes = self.inode_tree(ag)?;
        let mut free = std::mem::take(&mut nodes.free);
        let trees = match self.choices.space {
            Space::Trees => self.write_free_trees(ag, &mut free, &mut nodes.places, nodes.fill)?,
            Space::Bitmap => {
                written(&self.reader, bitmap::write(&self.reader, ag, &free))?;
                FreeTrees::default()
            }
        };
        let inode_blocks = match self.choices.inodes {
            Inodes::Static => self.write_inode_bitmap(ag)?,
            Inodes::Dynamic | Inodes::Bucket => nodes.inode_blocks,
        };

        let regions = blocks.div_ceil(self.geometry.region_blocks());
        let by_region = free_by_region(&free, &trees.reserve, self.geometry.region_bits, regions as usize);
        let mut directories = vec![0_u32; regions as usize];
        let mut used = 0;
        for item in self.items_in(ag) {
            used += 1;
            if item.file_type == 4 {
                let at = self.geometry.ag_block_of(self.block_of(item)).0;
                directories[(at >> self.geometry.region_bits) as usize] += 1;
            }
        }
        let counted = Counted::of(&self.geometry, &free, &trees.reserve);

        let at = first.offset_by(u64::from(HEADER_BLOCK));
        let mut buf = self.reader.new_buffer();
        header::init(&mut buf, BlockKind::Group, self.reader.volume, u64::from(ag.0), at);
        let head = GroupHeader::read_mut(&mut buf);
        head.ag.set(ag.0);
        head.block_count.set(blocks);
        head.free_blocks.set(counted.blocks as u32);
        head.free_parts.set(counted.parts as u32);
        (head.by_start_level, head.by_length_level) = (trees.by_start.1, trees.by_length.1);
        head.by_start_root.set(trees.by_start.0);
        head.by_length_root.set(trees.by_length.0);
        head.inode_root.set(nodes.root);
        head.inode_level = nodes.level;
        head.inode_blocks.set(inode_blocks);
        head.inodes_used.set(used);
        head.directories.set(directories.iter().sum());
        head.region_count.set(regions);
        head.checksums_made.set(checksums_made);
        head.reserve_count.set(trees.reserve.len() as u32);
        for (place, &block) in head.reserve.iter_mut().zip(&trees.reserve) {
            place.set(block);
        }
        for (index, (&free, &directories)) in by_region.iter().zip(&directories).enumerate() {
            let summary = RegionSummary::read_mut(&mut buf[GroupHeader::SIZE + index * RegionSummary::SIZE..]);
            summary.free_blocks.set(free);
            summary.directories.set(directories);
        }
        Ok((buf, counted))
    }

    /// Whether one of a group's first blocks is made for a node of its trees.
    fn is_for_trees(&self, at: u32) -> bool {
        if at == FIRST_INODE_TREE_BLOCK { !self.geometry.has_table() } else { !self.geometry.has_bitmap }
    }

    /// Writes a group's inode tree, if it has one, and takes what its trees of free space need, if it has those.
    fn inode_tree(&mut self, ag: AgNo) -> Result<Nodes, CheckError> {
        let first = self.geometry.fs_block(ag, AgBlock(0));
        let blocks = self.geometry.blocks_in(ag);
        let block_size = self.reader.block_size();
        let (has_chunks, has_trees) = (!self.geometry.has_table(), !self.geometry.has_bitmap);
        let inodes = if has_chunks { self.chunk_records(ag)? } else { ChunkRecords::default() };

        // Nodes come from the fixed blocks first, then from the group. How many the free-space trees need depends on what is
        // free, which taking them changes: take until there are enough.
        let (mut old_fixed, mut old): (Vec<_>, Vec<_>) = self
            .inode_trees
            .range(first..first.offset_by(u64::from(blocks)))
            .partition(|&&node| is_tree_block(self.geometry.ag_block_of(node)));
        let fixed = (FIRST_BY_START_BLOCK..FIXED_BLOCKS).rev().filter(|&at| self.is_for_trees(at));
        let fixed = fixed.map(|at| first.offset_by(u64::from(at)));
        let fixed: Vec<FsBlock> = fixed.filter(|block| !old_fixed.contains(block)).collect();
        let mut places = fixed.clone();
        let mut fill = Fill::Ample;
        let mut is_forgotten = false;
        let mut free;
        loop {
            // The old tree's blocks are free as soon as the header names the new one, and not yet.
            for &node in &old {
                self.blocks.release(node, 1);
            }
            free = self.free_extents(ag);
            for &node in &old {
                self.blocks.claim(node, 1);
            }
            let chunks = inodes.records.len() / ChunkRecord::SIZE;
            let inode_nodes = if has_chunks { node_count(INODE_CHUNKS, chunks, block_size, fill) } else { 0 };
            let nodes = inode_nodes + if has_trees { free_nodes(&free, block_size, fill) } else { 0 };
            let missing = nodes.saturating_sub(places.len());
            if missing == 0 {
                // Where all that is free are single blocks, each one that was taken made the trees smaller. Of what
                // they do not need now the reserve can have so many; of more than that a half goes back, for it makes
                // the trees larger again.
                let surplus = places.len() - nodes;
                if surplus + old_fixed.len() <= RESERVE_MAX {
                    break;
                }
                // Blocks that were taken stand before the fixed ones.
                let given_back: Vec<FsBlock> = places.drain(..surplus / 2).collect();
                self.release(given_back.into_iter().map(|block| (block, 1)));
                continue;
            }
            for taken in 0..missing {
                match self.take(Some(ag)) {
                    Ok(block) => places.insert(0, block),
                    Err(_) if fill == Fill::Ample => {
                        // Once more, with full nodes.
                        fill = Fill::Full;
                        let given_up = std::mem::replace(&mut places, fixed.clone());
                        self.release(
                            given_up.into_iter().filter(|block| !fixed.contains(block)).map(|block| (block, 1)),
                        );
                        break;
                    }
                    Err(error) if !is_forgotten && old_fixed.len() + old.len() < missing - taken => return Err(error),
                    Err(error) => {
                        places.push(old_fixed.pop().or_else(|| old.pop()).ok_or(error)?);
                        if !std::mem::replace(&mut is_forgotten, true) {
                            self.forget_header(ag)?;
                        }
                    }
                }
            }
        }
        for node in old {
            self.blocks.release(node, 1);
        }
        // Without trees of free space there is no reserve for what is left over, and the fixed blocks hold nothing.
        if has_trees {
            for node in old_fixed {
                places.insert(0, node);
            }
        }
        let (mut root, mut level) = (0, 0);
        if has_chunks {
            let node;
            (node, level) =
                write_tree(&self.reader, INODE_CHUNKS, u64::from(ag.0), &inodes.records, fill, &mut || {
                    pop(&mut places)
                })?;
            root = self.geometry.ag_block_of(node).0;
        }
        Ok(Nodes { root, level, inode_blocks: inodes.blocks, free, places, fill })
    }

    /// Where a group is too full for two inode trees, the new one has to be written over the old one, and no header may name a
    /// mixture. Until it names the new one, a search has to find the group's inodes.
    fn forget_header(&mut self, ag: AgNo) -> Result<(), CheckError> {
        write(&self.reader, self.geometry.fs_block(ag, AgBlock(HEADER_BLOCK)), &mut self.reader.new_buffer())?;
        self.flush()
    }

    /// Free extents of a group, group-relative, ascending.
    fn free_extents(&self, ag: AgNo) -> Vec<(u32, u32)> {
        let first = self.geometry.fs_block(ag, AgBlock(0));
        let mut extents = Vec::new();
        self.blocks.for_each_gap(first, u64::from(self.geometry.blocks_in(ag)), |start, length| {
            extents.push(((start.0 - first.0) as u32, length as u32));
            true
        });
        extents
    }
}
