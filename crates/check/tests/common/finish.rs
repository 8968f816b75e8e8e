//! The end of building: orphans, inode blocks, groups and superblock, from what the builder has gathered.

use super::builder::{Builder, CHUNK_BLOCKS, KEY, VOLUME};
use super::image::Image;
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::btree::{self, TreeKind};
use myriad_format::choices::{Inodes, Space};
use myriad_format::group::{GroupHeader, HEADER_BLOCK, RegionSummary};
use myriad_format::inode::{BodyHeader, ChunkRecord, InodeBlockHeader, RawInode};
use myriad_format::superblock::{OrphanHeader, Superblock, has_copy, state};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Ino, Lsn, SLOT_SIZE, header};
use std::collections::BTreeSet;
use std::sync::Arc;
use zerocopy::IntoBytes;

impl Builder {
    /// Lays everything out and writes the volume.
    pub fn finish(mut self) -> Image {
        let inos: Vec<Ino> = self.nodes.values().filter(|node| node.raw.is_dir()).map(|node| node.ino).collect();
        for ino in inos {
            self.lay_out_directory(ino);
        }
        let orphan_root = self.write_orphans();
        match self.shape.choices.inodes {
            Inodes::Static => self.write_tables(),
            _ => self.write_inodes(),
        }
        let mut free_total = self.pending.iter().map(|&(_, count)| u64::from(count)).sum();
        for ag in 0..self.shape.ag_used {
            free_total += self.write_group(ag);
        }
        for ag in self.shape.ag_used..self.geometry.ag_count {
            free_total += u64::from(self.geometry.usable_blocks_in(AgNo(ag)));
        }
        let mut sb = Superblock::zeroed();
        sb.version.set(1);
        sb.block_bits = self.geometry.block_bits as u8;
        sb.set_choices(&self.shape.choices);
        sb.table_every.set(self.geometry.table_every);
        sb.orders = 0b1001;
        sb.ag_blocks.set(self.shape.ag_blocks);
        sb.features_compatible.set(self.features);
        sb.block_count.set(self.shape.block_count);
        sb.ag_count.set(self.geometry.ag_count);
        sb.region_blocks.set(self.shape.region_blocks);
        sb.ag_high_water.set(self.shape.ag_used);
        sb.hash_key = KEY;
        sb.log_start.set(if self.shape.log_blocks > 0 {
            u64::from(self.geometry.first_data_block(AgNo(0)))
        } else {
            0
        });
        sb.log_blocks.set(self.shape.log_blocks);
        sb.root_ino.set(self.root.0);
        sb.orphan_root.set(orphan_root);
        sb.free_blocks.set(free_total);
        sb.inodes_used.set(self.nodes.len() as u64);
        sb.directories.set(self.nodes.values().filter(|node| node.raw.is_dir()).count() as u64);
        sb.chunk_blocks.set(CHUNK_BLOCKS);
        let device = Arc::new(MemoryDevice::new(self.shape.block_count * self.shape.block_size as u64));
        let image = Image { device, geometry: self.geometry, root: self.root, log_blocks: self.shape.log_blocks };
        for ag in (0..self.shape.ag_used).filter(|&ag| has_copy(AgNo(ag))) {
            let at = self.geometry.fs_block(AgNo(ag), AgBlock(0));
            let mut copy = sb;
            copy.header.magic.set(BlockKind::Superblock.magic());
            copy.header.volume = VOLUME;
            copy.header.address.set(at.0);
            let mut block = vec![0; self.shape.block_size];
            block[..Superblock::SIZE].copy_from_slice(copy.as_bytes());
            header::seal(&mut block, 0);
            self.blocks.insert(at.0, block);
        }
        for (at, block) in &self.blocks {
            image.device.write(at << self.geometry.block_bits, block).unwrap();
        }
        if self.shape.log_blocks > 0 {
            myriad_log::format(&image.log_place(), Lsn(0)).unwrap();
        }
        image
    }

    fn write_orphans(&mut self) -> u64 {
        if self.orphans.is_empty() {
            return 0;
        }
        let at = self.take(0, 1);
        let mut block = self.new_block(BlockKind::Orphans, 0, at);
        OrphanHeader::read_mut(&mut block).count.set(self.orphans.len() as u32);
        for (index, ino) in self.orphans.iter().enumerate() {
            block[OrphanHeader::SIZE + index * 8..][..8].copy_from_slice(&ino.0.to_le_bytes());
        }
        self.put(at, block);
        at.0
    }

    fn write_inodes(&mut self) {
        let slots = self.geometry.slots_per_block();
        for (&ag, chunks) in &self.chunks.clone() {
            for (start, taken) in chunks {
                for index in 0..taken.len() {
                    let at = FsBlock(start + index as u64);
                    let mut block = self.new_block(BlockKind::Inode, u64::from(ag), at);
                    let mut used = BTreeSet::from([0]);
                    for slot in 1..slots {
                        let Some(node) = self.nodes.get(&self.geometry.ino(at, slot).0) else { continue };
                        used.insert(slot);
                        let mut raw = node.raw;
                        let has_body = node.body_slots > 0 && !(node.data.is_empty() && node.attributes.is_empty());
                        if has_body {
                            raw.body_slots = node.body_slots as u8;
                            raw.body_first.set(slot as u16 + 1);
                            let body = &mut block[(slot as usize + 1) * SLOT_SIZE..];
                            let head = BodyHeader::read_mut(body);
                            head.data_len.set(node.data.len() as u16);
                            head.attr_len.set(node.attributes.len() as u16);
                            body[BodyHeader::SIZE..][..node.data.len()].copy_from_slice(&node.data);
                            body[BodyHeader::SIZE + node.data.len()..][..node.attributes.len()]
                                .copy_from_slice(&node.attributes);
                            used.extend(slot + 1..=slot + node.body_slots);
                        }
                        block[slot as usize * SLOT_SIZE..][..SLOT_SIZE].copy_from_slice(raw.as_bytes());
                    }
                    let head = InodeBlockHeader::read_mut(&mut block);
                    head.slot_count.set(slots as u16);
                    head.free_count.set((slots as usize - used.len()) as u16);
                    for slot in (1..slots).filter(|slot| !used.contains(slot)) {
                        head.free_mask[slot as usize / 8] |= 1 << (slot % 8);
                    }
                    self.put(at, block);
                }
            }
        }
    }

    fn write_tables(&mut self) {
        for (&ag, &count) in &self.tables.clone() {
            for index in 0..count.div_ceil(self.geometry.table_inodes_per_block()) {
                let at = self.geometry.fs_block(AgNo(ag), AgBlock(self.geometry.table_start(AgNo(ag)) + index));
                let mut block = self.new_block(BlockKind::InodeTable, u64::from(ag), at);
                for slot in self.geometry.inode_slots() {
                    if let Some(node) = self.nodes.get(&self.geometry.ino(at, slot).0) {
                        block[self.geometry.inode_offset(slot)..][..RawInode::SIZE]
                            .copy_from_slice(node.raw.as_bytes());
                    }
                }
                self.put(at, block);
            }
        }
    }

    /// Writes a bitmap whose set bits are the numbers that are free.
    fn write_bitmap(&mut self, kind: BlockKind, ag: u32, start: u32, blocks: u32, free: impl Iterator<Item = u32>) {
        let first = self.geometry.fs_block(AgNo(ag), AgBlock(start));
        let places = (0..u64::from(blocks)).map(|index| first.offset_by(index));
        let mut bitmap: Vec<Vec<u8>> = places.map(|at| self.new_block(kind, u64::from(ag), at)).collect();
        for number in free {
            let place = self.geometry.bit_place(number);
            bitmap[place.block as usize][place.byte] |= 1 << place.bit;
        }
        for (index, block) in bitmap.into_iter().enumerate() {
            self.put(first.offset_by(index as u64), block);
        }
    }

    /// Writes what a group's header says of a table: how many of its blocks are initialised.
    fn write_inode_bitmap(&mut self, ag: u32) -> u32 {
        let geometry = self.geometry;
        let count = self.tables.get(&ag).copied().unwrap_or(0);
        let (start, blocks) = (geometry.inode_bitmap_start(AgNo(ag)), geometry.inode_bitmap_blocks(AgNo(ag)));
        self.write_bitmap(BlockKind::InodeBitmap, ag, start, blocks, count..geometry.table_inodes(AgNo(ag)));
        count.div_ceil(geometry.table_inodes_per_block())
    }

    /// Writes a group's trees and header; its free blocks.
    fn write_group(&mut self, ag: u32) -> u64 {
        let base = u64::from(ag) << self.geometry.ag_bits;
        let fixed = |block: u32| FsBlock(base + u64::from(block));
        let mut chunk_records = Vec::new();
        let mut inode_blocks = 0;
        for (start, taken) in self.chunks.get(&ag).cloned().unwrap_or_default() {
            let mut record = ChunkRecord::zeroed();
            record.start.set(start - base);
            record.count = CHUNK_BLOCKS as u8;
            record.initialised = taken.len() as u8;
            for index in 0..taken.len() {
                let head = InodeBlockHeader::read(&self.blocks[&(start + index as u64)]);
                let free = head.free_count.get();
                record.free_mask.set(record.free_mask.get() | u64::from(free > 0) << index);
                let used = u32::from(free) < self.geometry.slots_per_block() - 1;
                record.used_mask.set(record.used_mask.get() | u64::from(used) << index);
            }
            inode_blocks += CHUNK_BLOCKS;
            chunk_records.push(record.as_bytes().to_vec());
        }
        chunk_records.sort_by_key(|record| u64::from_le_bytes(record[..8].try_into().unwrap()));
        // The first node of a tree of one is at its fixed block; others are taken, and the fixed block goes to the reserve.
        let mut reserve: Vec<u32> = Vec::new();
        let (mut inode_root, mut inode_level) = (fixed(0), 0);
        match self.shape.has_table() {
            true => inode_blocks = self.write_inode_bitmap(ag),
            false => {
                (inode_root, inode_level) =
                    self.group_tree(ag, btree::INODE_CHUNKS, &chunk_records, fixed(4), &mut reserve);
            }
        }
        let has_trees = self.shape.choices.space == Space::Trees;
        if !has_trees {
            reserve.clear();
        }
        let count = self.free_extents(ag).len();
        let nodes = |kind: TreeKind, count: usize| {
            let leaves = count.div_ceil(kind.leaf_max(self.shape.block_size) * 3 / 4);
            if leaves <= 1 { 0 } else { leaves + leaves.div_ceil(10) + 2 }
        };
        // Taken from the end of the group, where the last free extent is long: their number does not change.
        let mut spare: Vec<u32> = Vec::new();
        let need = nodes(btree::FREE_BY_START, count) + nodes(btree::FREE_BY_LENGTH, count) + 6;
        let need = if has_trees { need } else { 0 };
        let mut end = base + u64::from(self.geometry.blocks_in(AgNo(ag)));
        while spare.len() < need {
            end -= 1;
            assert!(self.used.insert(end), "the end of the group is free");
            spare.push((end - base) as u32);
        }
        let free = self.free_extents(ag);
        let pack = |high: u32, low: u32| (u64::from(high) << 32 | u64::from(low)).to_le_bytes().to_vec();
        let by_start: Vec<Vec<u8>> = free.iter().map(|&(start, length)| pack(start, length)).collect();
        let mut lengths: Vec<(u32, u32)> = free.iter().map(|&(start, length)| (length, start)).collect();
        lengths.sort_unstable();
        let by_length: Vec<Vec<u8>> = lengths.iter().map(|&(length, start)| pack(length, start)).collect();
        let mut plant =
            |builder: &mut Self, kind: TreeKind, records: &[Vec<u8>], at: FsBlock, reserve: &mut Vec<u32>| {
                if records.len() <= kind.leaf_max(builder.shape.block_size) * 3 / 4 {
                    return builder.tree(kind, u64::from(ag), records, &mut |_| at);
                }
                reserve.push((at.0 - base) as u32);
                builder.tree(kind, u64::from(ag), records, &mut |_| FsBlock(base + u64::from(spare.pop().unwrap())))
            };
        let none = (fixed(0), 0);
        let [(start_root, start_level), (length_root, length_level)] = match has_trees {
            true => [
                plant(self, btree::FREE_BY_START, &by_start, fixed(2), &mut reserve),
                plant(self, btree::FREE_BY_LENGTH, &by_length, fixed(3), &mut reserve),
            ],
            false => [none; 2],
        };
        reserve.append(&mut spare);
        if !has_trees {
            let (start, blocks) =
                (self.geometry.block_bitmap_start(AgNo(ag)), self.geometry.block_bitmap_blocks(AgNo(ag)));
            let numbers = free.iter().flat_map(|&(start, length)| start..start + length);
            self.write_bitmap(BlockKind::BlockBitmap, ag, start, blocks, numbers);
        }
        assert!(reserve.len() <= 24);

        let at = fixed(HEADER_BLOCK);
        let mut block = self.new_block(BlockKind::Group, u64::from(ag), at);
        let blocks = self.geometry.blocks_in(AgNo(ag));
        let regions = blocks.div_ceil(self.shape.region_blocks);
        let mut summaries = vec![(0_u32, 0_u32); regions as usize];
        for block in free.iter().flat_map(|&(start, length)| start..start + length).chain(reserve.iter().copied()) {
            summaries[(block / self.shape.region_blocks) as usize].0 += 1;
        }
        let (mut inodes, mut directories) = (0, 0);
        for node in self.nodes.values() {
            let (block, _) = self.geometry.locate(node.ino).unwrap();
            if self.geometry.ag_of(block).0 == ag {
                inodes += 1;
                if node.raw.is_dir() {
                    directories += 1;
                    summaries[(self.geometry.ag_block_of(block).0 / self.shape.region_blocks) as usize].1 += 1;
                }
            }
        }
        let free_blocks: u32 = free.iter().map(|extent| extent.1).sum::<u32>() + reserve.len() as u32;
        let head = GroupHeader::read_mut(&mut block);
        head.ag.set(ag);
        head.block_count.set(blocks);
        head.free_blocks.set(free_blocks);
        head.by_start_root.set((start_root.0 - base) as u32);
        head.by_start_level = start_level;
        head.by_length_root.set((length_root.0 - base) as u32);
        head.by_length_level = length_level;
        head.inode_root.set((inode_root.0 - base) as u32);
        head.inode_level = inode_level;
        head.inode_blocks.set(inode_blocks);
        head.inodes_used.set(inodes);
        head.directories.set(directories);
        head.reserve_count.set(reserve.len() as u32);
        head.region_count.set(regions);
        for (place, &block) in head.reserve.iter_mut().zip(&reserve) {
            place.set(block);
        }
        for (index, &(free, directories)) in summaries.iter().enumerate() {
            let summary = RegionSummary::read_mut(&mut block[GroupHeader::SIZE + index * RegionSummary::SIZE..]);
            summary.free_blocks.set(free);
            summary.directories.set(directories);
        }
        self.put(at, block);
        u64::from(free_blocks)
    }

    fn group_tree(
        &mut self,
        ag: u32,
        kind: TreeKind,
        records: &[Vec<u8>],
        at: FsBlock,
        reserve: &mut Vec<u32>,
    ) -> (FsBlock, u8) {
        if records.len() <= kind.leaf_max(self.shape.block_size) * 3 / 4 {
            return self.tree(kind, u64::from(ag), records, &mut |_| at);
        }
        reserve.push(self.geometry.ag_block_of(at).0);
        self.tree(kind, u64::from(ag), records, &mut |builder| builder.take(ag, 1))
    }

    /// Start and length, group-relative.
    pub(super) fn free_extents(&self, ag: u32) -> Vec<(u32, u32)> {
        let base = u64::from(ag) << self.geometry.ag_bits;
        let mut extents: Vec<(u32, u32)> = Vec::new();
        for block in self.geometry.first_data_block(AgNo(ag))..self.geometry.blocks_in(AgNo(ag)) {
            if self.used.contains(&(base + u64::from(block))) {
                continue;
            }
            match extents.last_mut() {
                Some((start, length)) if *start + *length == block => *length += 1,
                _ => extents.push((block, 1)),
            }
        }
        extents
    }
}
