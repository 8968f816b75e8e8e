//! Entries and index of a directory.

use super::builder::Builder;
use myriad_format::choices::Directory;
use myriad_format::dir::{self, EntryBlockHeader, EntryHeader, IndexHeader, IndexRecord};
use myriad_format::dir_tree::{self, DirNodeHeader, DirTreeChild, DirTreeEntry};
use myriad_format::extent::Extent;
use myriad_format::inode::{BodyHeader, fork};
use myriad_format::slots::{
    DirExtent, EXTENT_BLOCKS, ExtentsHeader, SLOT_BYTES, SlotBlockHeader, SlotHeader, SlotLayout,
};
use myriad_format::unit::{UNIT_ROOM, UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, FileBlock, FsBlock, Ino, SLOT_SIZE};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::IntoBytes;

/// Keys of a node, each with the bytes of its entry.
type Contents = Vec<(u64, Vec<u8>)>;

fn is_hole(entry: &[u8]) -> bool {
    DirTreeEntry::read(entry).ino.get() == 0
}

/// Writes a node of a directory tree; `child` is the first of its children, and then the one behind the last.
fn write_node(block: &mut [u8], level: u8, contents: &Contents, child: &mut u32) {
    let (mut heap, mut live, mut count) = (block.len(), 0, 0);
    for (key, bytes) in contents {
        if level > 0 {
            let record = DirTreeChild::read_mut(&mut block[dir_tree::NODE_OFFSET + count * DirTreeChild::SIZE..]);
            record.key.set(if count == 0 { 0 } else { *key });
            record.child.set(*child);
            *child += 1;
            count += 1;
            continue;
        }
        heap -= bytes.len();
        if is_hole(bytes) {
            block[heap..heap + bytes.len()].fill(0xee);
            continue;
        }
        block[heap..heap + bytes.len()].copy_from_slice(bytes);
        let at = dir_tree::NODE_OFFSET + count * dir_tree::OFFSET_SIZE;
        block[at..at + dir_tree::OFFSET_SIZE].copy_from_slice(&(heap as u16).to_le_bytes());
        live += bytes.len() as u32;
        count += 1;
    }
    let head = DirNodeHeader::read_mut(block);
    head.level = level;
    head.count.set(count as u16);
    if level == 0 {
        head.heap.set(heap as u32);
        head.live.set(live);
    }
}

impl Builder {
    fn entry_bytes(&self, name: &[u8], ino: Ino) -> Vec<u8> {
        let length = dir::entry_size(name.len());
        let mut bytes = vec![0; length];
        let head = EntryHeader::read_mut(&mut bytes);
        head.length.set(length as u16);
        if !ino.is_none() {
            head.ino.set(ino.0);
            head.name_len = name.len() as u8;
            head.file_type = (self.nodes[&ino.0].raw.mode.get() >> 12) as u8;
            head.tag.set(self.hasher.hash(name) as u32);
            bytes[EntryHeader::SIZE..][..name.len()].copy_from_slice(name);
        }
        bytes
    }

    /// Gives a directory its blocks; it gets no more names.
    pub fn lay_out_directory(&mut self, ino: Ino) {
        if std::mem::replace(&mut self.node(ino).laid_out, true) {
            return;
        }
        let ag = self.geometry.ag_of(self.geometry.locate(ino).unwrap().0).0;
        let entries = std::mem::take(&mut self.node(ino).entries);
        if entries.is_empty() {
            self.node(ino).body_slots = 0;
            return;
        }
        match self.shape.choices.directory {
            Directory::Linear => return self.lay_out_linear(ino, ag, &entries),
            Directory::Slots => return self.lay_out_slots(ino, ag, &entries),
            Directory::Tree => return self.lay_out_tree(ino, ag, &entries),
            _ => {}
        }
        let size = self.shape.block_size;
        let packed: Vec<Vec<u8>> = entries.iter().map(|(name, ino)| self.entry_bytes(name, *ino)).collect();
        let total: usize = packed.iter().map(Vec::len).sum();
        let attributes = self.node(ino).attributes.len();
        let room = (self.node(ino).body_slots as usize * SLOT_SIZE).saturating_sub(BodyHeader::SIZE + attributes);
        let inline = total <= room;
        // Blocks of entries: (bytes, live).
        let mut blocks: Vec<(Vec<u8>, u32)> = vec![(Vec::new(), 0)];
        let mut records: Vec<(u32, u32, Ino)> = Vec::new();
        let mut live = 0;
        for ((name, target), bytes) in entries.iter().zip(&packed) {
            if !inline && blocks.last().unwrap().0.len() + bytes.len() > size - dir::ENTRIES_OFFSET {
                blocks.push((Vec::new(), 0));
            }
            let file_block = blocks.len() - 1;
            let block = blocks.last_mut().unwrap();
            let position = ((file_block * size + dir::ENTRIES_OFFSET + block.0.len()) / 8) as u32;
            block.0.extend_from_slice(bytes);
            if target.is_none() {
                continue;
            }
            block.1 += bytes.len() as u32;
            live += bytes.len() as u64;
            let hash = self.hasher.hash(name);
            records.push((hash as u32, position, *target));
            let raw = &mut self.node(*target).raw;
            if raw.parent.get() == ino.0 && raw.name_hash.get() == hash {
                raw.entry_position.set(position);
            }
        }
        self.node(ino).raw.size.set(live);
        if inline {
            let node = self.node(ino);
            node.data = blocks.remove(0).0;
            node.raw.set_fork(fork::INLINE, 0);
            return;
        }
        self.node(ino).body_slots = 0;
        let mut total_blocks = 0;
        let index_root = if blocks.len() == 1 { FsBlock(0) } else { self.take(ag, 1) };
        // Runs of entry blocks become extents of at most two.
        let kept: Vec<usize> = (0..blocks.len()).collect();
        let with_room: Vec<usize> =
            if blocks.len() == 1 { Vec::new() } else { kept.iter().copied().filter(|block| block % 2 == 0).collect() };
        let mut extents: Vec<Extent> = Vec::new();
        for &file_block in &kept {
            let joins = extents.last().is_some_and(|last| last.end().0 == file_block as u64 && last.length < 2);
            if joins && self.used.insert(extents.last().unwrap().start.0 + 1) {
                extents.last_mut().unwrap().length += 1;
            } else {
                let start = self.take(ag, 1);
                extents.push(Extent { file_block: FileBlock(file_block as u64), start, length: 1, unwritten: false });
            }
            let last = extents.last().unwrap();
            let at = last.start.offset_by(file_block as u64 - last.file_block.0);
            let mut block = self.new_block(BlockKind::DirEntries, ino.0, at);
            let (bytes, live) = &blocks[file_block];
            let head = EntryBlockHeader::read_mut(&mut block);
            head.tail.set((dir::ENTRIES_OFFSET + bytes.len()) as u32);
            head.live.set(*live);
            if let Some(place) = with_room.iter().position(|&block| block == file_block) {
                let near = |place: Option<&usize>| place.map_or(dir::LIST_END, |&block| block as u32 + 1);
                head.next_room.set(near(with_room.get(place + 1)));
            }
            block[dir::ENTRIES_OFFSET..][..bytes.len()].copy_from_slice(bytes);
            self.put(at, block);
            total_blocks += 1;
        }
        total_blocks += self.map(ino, &extents, ag, true);
        if !index_root.is_none() {
            let head = with_room.first().map_or(dir::LIST_END, |&block| block as u32 + 1);
            total_blocks += self.index(ino, ag, index_root, &records, head, blocks.len() as u32);
        }
        let raw = &mut self.node(ino).raw;
        raw.fork[..8].copy_from_slice(&index_root.0.to_le_bytes());
        raw.set_block_total(total_blocks + raw.block_total());
    }

    /// Gives a directory units of 512 bytes. A hole goes to the entry before it; the first of a unit is free now and then.
    fn lay_out_linear(&mut self, ino: Ino, ag: u32, entries: &[(Vec<u8>, Ino)]) {
        // Of each unit: entries without gaps, and what the last of them has beyond what it needs.
        let mut units: Vec<Vec<u8>> = vec![Vec::new()];
        let mut lasts = vec![0];
        let mut tags = BTreeSet::new();
        for (name, target) in entries {
            let bytes = self.entry_bytes(name, *target);
            let tag = self.hasher.hash(name) as u32;
            if units.last().unwrap().len() + bytes.len() > UNIT_ROOM || tags.contains(&tag) {
                units.push(Vec::new());
                lasts.push(0);
                tags.clear();
            }
            tags.insert(tag);
            let (unit, last) = (units.last_mut().unwrap(), lasts.last_mut().unwrap());
            if target.is_none() && !unit.is_empty() {
                let head = EntryHeader::read_mut(&mut unit[*last..]);
                head.length.set(head.length.get() + bytes.len() as u16);
                unit.resize(unit.len() + bytes.len(), 0xee);
            } else {
                *last = unit.len();
                unit.extend_from_slice(&bytes);
            }
        }
        for (unit, &last) in units.iter_mut().zip(&lasts) {
            EntryHeader::read_mut(&mut unit[last..]).length.set((UNIT_ROOM - last) as u16);
            unit.resize(UNIT_ROOM, 0xee);
        }
        let size = units.len() * UNIT_SIZE;
        let mut extents: Vec<Extent> = Vec::new();
        for (file_block, units) in units.chunks(self.shape.block_size / UNIT_SIZE).enumerate() {
            let at = self.take(ag, 1);
            extents.push(Extent { file_block: FileBlock(file_block as u64), start: at, length: 1, unwritten: false });
            let mut block = self.new_block(BlockKind::LinearEntries, ino.0, at);
            for (index, unit) in block.chunks_exact_mut(UNIT_SIZE).enumerate() {
                match units.get(index) {
                    Some(bytes) => unit[UnitHeader::SIZE..].copy_from_slice(bytes),
                    None => dir::clear_unit(unit),
                }
            }
            self.put(at, block);
        }
        self.node(ino).body_slots = 0;
        let blocks = extents.len() as u64 + self.map(ino, &extents, ag, true);
        let raw = &mut self.node(ino).raw;
        raw.size.set(size as u64);
        raw.set_block_total(blocks + raw.block_total());
    }

    /// Gives a directory extents of slots; a hole is a free one.
    fn lay_out_slots(&mut self, ino: Ino, ag: u32, entries: &[(Vec<u8>, Ino)]) {
        let layout = SlotLayout::new(self.shape.block_size);
        let per_extent = layout.slots * EXTENT_BLOCKS as usize;
        let extents = entries.len().div_ceil(per_extent) as u64;
        let mut map: Vec<Extent> = Vec::new();
        let mut records: Vec<(FsBlock, Vec<u8>)> = Vec::new();
        let mut names = 0;
        for extent in 0..extents {
            let (record_block, record_at) = layout.record_of(extent);
            if record_block == layout.file_block(extent * EXTENT_BLOCKS) - 1 {
                let at = self.take(ag, 1);
                map.push(Extent { file_block: FileBlock(record_block), start: at, length: 1, unwritten: false });
                let mut block = self.new_block(BlockKind::DirExtents, ino.0, at);
                ExtentsHeader::read_mut(&mut block).extents.set(if extent == 0 { extents as u32 } else { 0 });
                records.push((at, block));
            }
            let start = self.take(ag, EXTENT_BLOCKS as u32);
            let file_block = FileBlock(layout.file_block(extent * EXTENT_BLOCKS));
            map.push(Extent { file_block, start, length: EXTENT_BLOCKS as u32, unwritten: false });
            for number in extent * EXTENT_BLOCKS..(extent + 1) * EXTENT_BLOCKS {
                let at = start.offset_by(number % EXTENT_BLOCKS);
                let mut block = self.new_block(BlockKind::DirSlots, ino.0, at);
                // The slot that the run before leads past others to, from the last one back.
                let mut next = layout.slots;
                let first = number as usize * layout.slots;
                let mut used = 0;
                for slot in (0..layout.slots).rev() {
                    let (name, target) = entries.get(first + slot).cloned().unwrap_or((Vec::new(), Ino(0)));
                    if target.is_none() && slot > 0 {
                        continue;
                    }
                    let bytes = &mut block[layout.offset(slot)..][..SLOT_BYTES];
                    let head = SlotHeader::read_mut(bytes);
                    head.run = (next - slot) as u8;
                    next = slot;
                    if target.is_none() {
                        continue;
                    }
                    let hash = self.hasher.hash(&name);
                    head.ino.set(target.0);
                    head.name_len = name.len() as u8;
                    head.tag.set(hash as u16);
                    let raw = &mut self.node(target).raw;
                    head.file_type = (raw.mode.get() >> 12) as u8;
                    if raw.parent.get() == ino.0 && raw.name_hash.get() == hash {
                        raw.entry_position.set((first + slot) as u32);
                    }
                    bytes[SlotHeader::SIZE..][..name.len()].copy_from_slice(&name);
                    used += 1;
                }
                SlotBlockHeader::read_mut(&mut block).names.set(used);
                self.put(at, block);
                let record = DirExtent::read_mut(&mut records.last_mut().unwrap().1[record_at..]);
                record.names.set(record.names.get() + used as u16);
                record.used |= u8::from(used > 0) << (number % EXTENT_BLOCKS);
                names += u64::from(used);
            }
        }
        records.into_iter().for_each(|(at, block)| self.put(at, block));
        self.node(ino).body_slots = 0;
        let blocks = layout.file_blocks(extents) + self.map(ino, &map, ag, true);
        let raw = &mut self.node(ino).raw;
        raw.size.set(names * SLOT_BYTES as u64);
        raw.set_block_total(blocks + raw.block_total());
    }

    /// Gives a directory a tree, or its body. A hole is a free entry of a body, and a hole of a leaf.
    fn lay_out_tree(&mut self, ino: Ino, ag: u32, entries: &[(Vec<u8>, Ino)]) {
        let mut numbers: BTreeMap<u32, u16> = BTreeMap::new();
        // By their keys; what has no name lies behind the entry before it.
        let mut packed: Vec<(u64, Vec<u8>)> = Vec::new();
        for (name, target) in entries {
            let mut bytes = vec![0; dir_tree::tree_entry_size(name.len())];
            let head = DirTreeEntry::read_mut(&mut bytes);
            head.name_len = name.len() as u8;
            let mut key = packed.last().map_or(0, |last| last.0);
            if !target.is_none() {
                let tag = self.hasher.hash(name) as u32;
                let number = numbers.entry(tag).or_default();
                head.ino.set(target.0);
                head.number.set(*number);
                head.file_type = (self.nodes[&target.0].raw.mode.get() >> 12) as u8;
                head.tag.set(tag);
                key = dir_tree::key(tag, *number);
                *number += 3;
                bytes[DirTreeEntry::SIZE..].copy_from_slice(name);
            }
            packed.push((key, bytes));
        }
        let total: usize = packed.iter().map(|(_, bytes)| bytes.len()).sum();
        let attributes = self.node(ino).attributes.len();
        let room = (self.node(ino).body_slots as usize * SLOT_SIZE).saturating_sub(BodyHeader::SIZE + attributes);
        if total <= room {
            let node = self.node(ino);
            node.data = packed.into_iter().flat_map(|(_, bytes)| bytes).collect();
            node.raw.size.set(total as u64);
            node.raw.set_fork(fork::INLINE, 0);
            return;
        }
        self.node(ino).body_slots = 0;
        // One hole before an entry, not so many that a leaf has nothing else.
        packed.sort();
        packed.dedup_by(|later, earlier| later.0 == earlier.0 && is_hole(&later.1) && is_hole(&earlier.1));
        let levels = self.tree_levels(packed);
        let mut extents: Vec<Extent> = Vec::new();
        let all: usize = levels.iter().map(Vec::len).sum();
        let places: Vec<FsBlock> = (0..all).map(|_| self.take(ag, 1)).collect();
        for (file_block, &start) in places.iter().enumerate() {
            extents.push(Extent { file_block: FileBlock(file_block as u64), start, length: 1, unwritten: false });
        }
        // The root is file block 0; the nodes of a level are numbered behind those of the level above.
        let mut first = 0;
        for (below, level) in levels.iter().rev().enumerate() {
            let first_child = (first + level.len()) as u32;
            let mut child = first_child;
            for (index, (_, contents)) in level.iter().enumerate() {
                let at = places[first + index];
                let mut block = self.new_block(BlockKind::DirTree, ino.0, at);
                let height = levels.len() - 1 - below;
                write_node(&mut block, height as u8, contents, &mut child);
                self.put(at, block);
            }
            first += level.len();
        }
        let blocks = extents.len() as u64 + self.map(ino, &extents, ag, true);
        let size = all * self.shape.block_size;
        let raw = &mut self.node(ino).raw;
        raw.size.set(size as u64);
        raw.set_block_total(blocks + raw.block_total());
    }

    /// The nodes of a tree, leaves first: of each its key, and what it holds with the keys of that.
    fn tree_levels(&self, packed: Vec<(u64, Vec<u8>)>) -> Vec<Vec<(u64, Contents)>> {
        let size = self.shape.block_size;
        let mut leaves: Vec<(u64, Contents)> = Vec::new();
        let mut used = usize::MAX;
        for (key, bytes) in packed {
            let takes = bytes.len() + dir_tree::OFFSET_SIZE;
            if used.saturating_add(takes) > dir_tree::leaf_room(size) {
                leaves.push((key, Vec::new()));
                used = 0;
            }
            used += takes;
            leaves.last_mut().unwrap().1.push((key, bytes));
        }
        let mut levels = vec![leaves];
        while levels.last().unwrap().len() > 1 {
            let below = levels.last().unwrap();
            let above = below
                .chunks(dir_tree::fan_out(size) - 1)
                .map(|nodes| (nodes[0].0, nodes.iter().map(|(key, _)| (*key, Vec::new())).collect()));
            levels.push(above.collect());
        }
        levels
    }

    /// Writes an index by inserting record after record; its blocks.
    fn index(
        &mut self,
        ino: Ino,
        ag: u32,
        root: FsBlock,
        records: &[(u32, u32, Ino)],
        room_head: u32,
        made: u32,
    ) -> u64 {
        let mut depth = 0_u8;
        let mut leaves: BTreeMap<u32, (u8, Vec<(u32, u32, Ino)>)> = BTreeMap::from([(0, (0, Vec::new()))]);
        for &record in records {
            let mut number = record.0 & ((1 << depth) - 1);
            while !leaves.contains_key(&number) {
                number &= !(1 << (31 - number.leading_zeros()));
            }
            leaves.get_mut(&number).unwrap().1.push(record);
            let mut full = number;
            while leaves[&full].1.len() > self.leaf_limit {
                let (old, content) = leaves.remove(&full).unwrap();
                depth = depth.max(old + 1);
                let twin = full | 1 << old;
                let (high, low): (Vec<_>, Vec<_>) = content.into_iter().partition(|record| record.0 >> old & 1 == 1);
                let next = if high.len() > low.len() { twin } else { full };
                leaves.insert(full, (old + 1, low));
                leaves.insert(twin, (old + 1, high));
                full = next;
            }
        }
        let bits = dir::node_bits(self.geometry.block_bits);
        let root_level = u32::from(depth).div_ceil(bits).max(1);
        let mut nodes: BTreeMap<(u32, u32), (FsBlock, Vec<u8>)> = BTreeMap::new();
        let mut made_blocks = 0;
        for (&number, (leaf_depth, content)) in &leaves {
            let at = self.take(ag, 1);
            made_blocks += 1;
            let mut block = self.new_block(BlockKind::DirIndex, ino.0, at);
            IndexHeader::read_mut(&mut block).depth = *leaf_depth;
            for &(tag, position, target) in content {
                let lines = dir::leaf_lines(self.shape.block_size);
                let mut line = dir::home_line(tag, lines);
                'search: loop {
                    for slot in 0..dir::LINE_RECORDS {
                        let offset = IndexHeader::SIZE + line * dir::LINE_SIZE + slot * IndexRecord::SIZE;
                        let record = IndexRecord::read_mut(&mut block[offset..]);
                        let bit = record.ino.get() & dir::OVERFLOWED;
                        if record.ino.get() == bit {
                            record.tag.set(tag);
                            record.position.set(position);
                            record.ino.set(target.0 | bit);
                            break 'search;
                        }
                    }
                    let first = IndexRecord::read_mut(&mut block[IndexHeader::SIZE + line * dir::LINE_SIZE..]);
                    first.ino.set(first.ino.get() | dir::OVERFLOWED);
                    line = (line + 1) % lines;
                }
            }
            self.put(at, block);
            // The way from the leaf to the root.
            let mut child = at;
            for level in 1..=root_level {
                let place = number >> (bits * (level - 1)) & ((1 << bits) - 1);
                let prefix = if level == root_level { 0 } else { number >> (bits * level) };
                let key = (level, prefix);
                if !nodes.contains_key(&key) {
                    let at = if level == root_level { root } else { self.take(ag, 1) };
                    made_blocks += 1;
                    let mut node = self.new_block(BlockKind::DirIndex, ino.0, at);
                    IndexHeader::read_mut(&mut node).level = level as u8;
                    nodes.insert(key, (at, node));
                }
                let (at, node) = nodes.get_mut(&key).unwrap();
                let (offset, bytes) = dir::encode_pointer(place as usize, child.0);
                node[offset..offset + bytes.len()].copy_from_slice(&bytes);
                child = *at;
            }
        }
        for ((level, _), (at, mut node)) in nodes {
            if level == root_level {
                let head = IndexHeader::read_mut(&mut node);
                head.depth = depth;
                head.room_head.set(room_head);
                head.entry_blocks.set(made);
            }
            self.put(at, node);
        }
        made_blocks
    }
}
