//! A writer of small volumes that knows the format crate only: neither the engine nor the check's own code. Everything is
//! laid out at [`Builder::finish`]; before that the volume is a plain list of inodes.
#![allow(dead_code, clippy::type_complexity, clippy::map_entry)]

use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::btree::{self, ChildEntry, NodeHeader, TreeKind};
use myriad_format::dir::{self, EntryBlockHeader, EntryHeader, IndexHeader, IndexRecord};
use myriad_format::extent::Extent;
use myriad_format::group::{FIXED_BLOCKS, GroupHeader, HEADER_BLOCK, RegionSummary};
use myriad_format::inode::{BodyHeader, ChunkRecord, InodeBlockHeader, RawInode, flag, fork};
use myriad_format::superblock::{OrphanHeader, Superblock, feature, has_copy, seam};
use myriad_format::xattr::AttrBlockHeader;
use myriad_format::{
    AgBlock, AgNo, BlockKind, FileBlock, FsBlock, Geometry, Ino, Lsn, NameHasher, SLOT_SIZE, header, xattr,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::IntoBytes;

pub const VOLUME: [u8; 16] = *b"check test volum";
pub const KEY: [u8; 16] = *b"check test key 0";

/// What a volume is made of.
#[derive(Clone, Copy)]
pub struct Shape {
    pub block_size: usize,
    pub ag_blocks: u32,
    pub region_blocks: u32,
    pub block_count: u64,
    pub ag_used: u32,
    pub log_blocks: u64,
}

pub const SHAPE: Shape = Shape {
    block_size: 4096,
    ag_blocks: 1024,
    region_blocks: 256,
    block_count: 2 * 1024 + 500,
    ag_used: 2,
    log_blocks: 64,
};
/// Small blocks: two-level indexes and trees with few entries.
pub const SMALL: Shape =
    Shape { block_size: 512, ag_blocks: 4096, region_blocks: 1024, block_count: 3 * 4096, ag_used: 2, log_blocks: 160 };

pub struct Node {
    pub ino: Ino,
    pub raw: RawInode,
    body_slots: u32,
    data: Vec<u8>,
    attributes: Vec<u8>,
    /// Name, inode; an empty name is a hole of a deleted entry.
    entries: Vec<(Vec<u8>, Ino)>,
    laid_out: bool,
}

pub struct Builder {
    pub geometry: Geometry,
    pub shape: Shape,
    hasher: NameHasher,
    used: BTreeSet<u64>,
    blocks: BTreeMap<u64, Vec<u8>>,
    pub nodes: BTreeMap<u64, Node>,
    /// Chunks by group: first block, slots taken of each block.
    chunks: BTreeMap<u32, Vec<(u64, Vec<u32>)>>,
    orphans: Vec<Ino>,
    /// Blocks freed and not yet in the trees.
    pub pending: Vec<(FsBlock, u32)>,
    /// Most records of an index leaf.
    pub leaf_limit: usize,
    pub root: Ino,
    features: u64,
    /// Where the next data block is sought, by group.
    next: Vec<u64>,
}

const CHUNK_BLOCKS: u32 = 4;

impl Builder {
    pub fn new(shape: Shape) -> Self {
        let geometry = Geometry {
            block_bits: shape.block_size.trailing_zeros(),
            ag_bits: shape.ag_blocks.trailing_zeros(),
            region_bits: shape.region_blocks.trailing_zeros(),
            ag_count: shape.block_count.div_ceil(u64::from(shape.ag_blocks)) as u32,
            block_count: shape.block_count,
            chunk_blocks: CHUNK_BLOCKS,
            has_checksums: false,
        };
        let mut builder = Self {
            geometry,
            shape,
            hasher: NameHasher::new(KEY),
            used: BTreeSet::new(),
            blocks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            chunks: BTreeMap::new(),
            orphans: Vec::new(),
            pending: Vec::new(),
            leaf_limit: 12,
            root: Ino(0),
            features: 0,
            next: (0..shape.ag_used).map(|ag| (u64::from(ag) << geometry.ag_bits) + 200).collect(),
        };
        for block in 0..shape.log_blocks {
            builder.used.insert(u64::from(FIXED_BLOCKS) + block);
        }
        builder.root = builder.inode(0, 0o040755, builder.small_body());
        let root = builder.root;
        let raw = &mut builder.node(root).raw;
        raw.parent.set(root.0);
        raw.nlink.set(2);
        builder
    }

    /// Body slots that fit beside an inode in any block size.
    pub fn small_body(&self) -> u32 {
        if self.shape.block_size == 512 { 2 } else { 5 }
    }

    pub fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino.0).expect("a node of this builder")
    }

    fn take(&mut self, ag: u32, count: u32) -> FsBlock {
        let end = (u64::from(ag) << self.geometry.ag_bits) + u64::from(self.geometry.blocks_in(AgNo(ag)));
        let mut at = self.next[ag as usize];
        while (at..at + u64::from(count)).any(|block| self.used.contains(&block)) {
            at += 1;
        }
        assert!(at + u64::from(count) <= end, "the volume is too small for the test");
        self.used.extend(at..at + u64::from(count));
        // A gap after each extent, so that the trees have something to hold.
        self.next[ag as usize] = at + u64::from(count) + 1;
        FsBlock(at)
    }

    pub fn inode(&mut self, ag: u32, mode: u16, body_slots: u32) -> Ino {
        let slots = self.geometry.slots_per_block();
        let need = 1 + body_slots;
        let fits = |taken: u32| taken + need <= slots;
        let mut found = None;
        for (start, taken) in self.chunks.entry(ag).or_default().iter_mut().rev().take(4) {
            if let Some(at) = taken.iter().position(|&taken| fits(taken)) {
                found = Some((*start + at as u64, taken[at]));
                taken[at] += need;
                break;
            }
            if taken.len() < CHUNK_BLOCKS as usize {
                taken.push(1 + need);
                found = Some((*start + taken.len() as u64 - 1, 1));
                break;
            }
        }
        let (block, slot) = found.unwrap_or_else(|| {
            let start = self.take(ag, CHUNK_BLOCKS);
            self.chunks.get_mut(&ag).expect("just made").push((start.0, vec![1 + need]));
            (start.0, 1)
        });
        let ino = self.geometry.ino(FsBlock(block), slot);
        let mut raw = RawInode::zeroed();
        raw.mode.set(mode);
        raw.generation.set(7);
        raw.mtime.set(1_000_000_000);
        self.nodes.insert(
            ino.0,
            Node {
                ino,
                raw,
                body_slots,
                data: Vec::new(),
                attributes: Vec::new(),
                entries: Vec::new(),
                laid_out: false,
            },
        );
        ino
    }

    /// Gives an inode a name.
    pub fn link(&mut self, directory: Ino, name: &[u8], ino: Ino) {
        self.node(directory).entries.push((name.to_vec(), ino));
        let is_dir = self.node(ino).raw.is_dir();
        let hash = self.hasher.hash(name);
        let raw = &mut self.node(ino).raw;
        raw.parent.set(directory.0);
        raw.name_hash.set(hash);
        raw.nlink.set(if is_dir { 2 } else { raw.nlink.get() + 1 });
        if is_dir {
            let parent = &mut self.node(directory).raw;
            parent.nlink.set(parent.nlink.get() + 1);
        }
    }

    /// A deleted entry of the length that `name` would have taken.
    pub fn free_entry(&mut self, directory: Ino, name_len: usize) {
        self.node(directory).entries.push((vec![b'-'; name_len], Ino::NONE));
    }

    pub fn dir(&mut self, parent: Ino, name: &[u8], ag: u32, body_slots: u32) -> Ino {
        let ino = self.inode(ag, 0o040755, body_slots);
        self.link(parent, name, ino);
        ino
    }

    /// A regular file with extents of these lengths, one file block apart.
    pub fn file(&mut self, parent: Ino, name: &[u8], ag: u32, lengths: &[u32]) -> Ino {
        let ino = self.inode(ag, 0o100644, 0);
        self.link(parent, name, ino);
        self.fill(ino, ag, lengths);
        ino
    }

    pub fn fill(&mut self, ino: Ino, ag: u32, lengths: &[u32]) {
        let mut extents = Vec::new();
        let mut at = 0;
        for &length in lengths {
            let start = self.take(ag, length);
            extents.push(Extent { file_block: FileBlock(at), start, length, unwritten: false });
            at += u64::from(length) + 1;
        }
        let blocks: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        let size = at.saturating_sub(1) * self.shape.block_size as u64;
        let nodes = self.map(ino, &extents, ag, false);
        let raw = &mut self.node(ino).raw;
        raw.size.set(size);
        raw.set_block_total(blocks + nodes);
    }

    /// Writes a file map into the fork; blocks of its tree.
    fn map(&mut self, ino: Ino, extents: &[Extent], ag: u32, is_dir: bool) -> u64 {
        let at = if is_dir { 8 } else { 0 };
        let most = if is_dir { 1 } else { 2 };
        if extents.len() <= most {
            let raw = &mut self.node(ino).raw;
            for (index, extent) in extents.iter().enumerate() {
                raw.fork[at + index * 16..][..16].copy_from_slice(extent.encode().as_bytes());
            }
            if is_dir {
                raw.set_fork(fork::DIRECTORY, 0);
            } else {
                raw.set_fork(if extents.is_empty() { fork::NONE } else { fork::EXTENTS }, extents.len());
            }
            return 0;
        }
        let records: Vec<Vec<u8>> = extents.iter().map(|extent| extent.encode().as_bytes().to_vec()).collect();
        let mut nodes = 0;
        let (root, level) = self.tree(btree::EXTENTS, ino.0, &records, &mut |builder| {
            nodes += 1;
            builder.take(ag, 1)
        });
        let raw = &mut self.node(ino).raw;
        raw.fork[at..at + 8].copy_from_slice(&root.0.to_le_bytes());
        raw.fork[at + 8] = level;
        raw.set_fork(if is_dir { fork::DIRECTORY_TREE } else { fork::TREE }, 0);
        nodes
    }

    pub fn special(&mut self, parent: Ino, name: &[u8], mode: u16) -> Ino {
        let ino = self.inode(0, mode, 0);
        self.link(parent, name, ino);
        ino
    }

    /// A file or link whose bytes are in the body, or a link in the fork.
    pub fn inline(&mut self, parent: Ino, name: &[u8], mode: u16, bytes: &[u8]) -> Ino {
        let short = mode & 0o170000 == 0o120000 && bytes.len() <= 32;
        let body = if short { 0 } else { (BodyHeader::SIZE + bytes.len()).div_ceil(SLOT_SIZE) as u32 };
        let ino = self.inode(0, mode, body);
        self.link(parent, name, ino);
        let node = self.node(ino);
        node.raw.size.set(bytes.len() as u64);
        if short {
            node.raw.fork[..bytes.len()].copy_from_slice(bytes);
            node.raw.set_fork(fork::SHORT_LINK, 0);
        } else {
            node.data = bytes.to_vec();
            node.raw.set_fork(fork::INLINE, 0);
        }
        ino
    }

    /// A file with attributes in its body.
    pub fn with_body_attributes(&mut self, parent: Ino, name: &[u8], attributes: &[(&[u8], &[u8])]) -> Ino {
        let ino = self.inode(0, 0o100644, 2);
        self.link(parent, name, ino);
        let mut list = Vec::new();
        for (name, value) in attributes {
            xattr::push(&mut list, name, value);
            if name.starts_with(b"system.posix_acl") {
                self.features |= feature::COMPATIBLE_ACL;
                let raw = &mut self.node(ino).raw;
                raw.flags.set(raw.flags.get() | flag::HAS_ACL);
            }
        }
        self.features |= feature::COMPATIBLE_XATTR;
        let node = self.node(ino);
        node.attributes = list;
        node.raw.flags.set(node.raw.flags.get() | flag::ATTR_BODY);
        ino
    }

    /// Attributes in a chain of blocks.
    pub fn chain_attributes(&mut self, ino: Ino, attributes: &[(&[u8], &[u8])]) {
        let mut list = Vec::new();
        for (name, value) in attributes {
            xattr::push(&mut list, name, value);
        }
        let room = self.shape.block_size - AttrBlockHeader::SIZE;
        let parts: Vec<&[u8]> = list.chunks(room).collect();
        let places: Vec<FsBlock> = parts.iter().map(|_| self.take(0, 1)).collect();
        for (index, part) in parts.iter().enumerate() {
            let mut block = self.new_block(BlockKind::Attributes, ino.0, places[index]);
            let head = AttrBlockHeader::read_mut(&mut block);
            head.length.set(part.len() as u32);
            head.index.set(index as u32);
            head.next.set(places.get(index + 1).map_or(0, |block| block.0));
            block[AttrBlockHeader::SIZE..][..part.len()].copy_from_slice(part);
            self.put(places[index], block);
        }
        self.features |= feature::COMPATIBLE_XATTR;
        let raw = &mut self.node(ino).raw;
        raw.flags.set(raw.flags.get() | flag::ATTR_BLOCKS);
        raw.fork[24..].copy_from_slice(&(places[0].0 | (parts.len() as u64) << 48).to_le_bytes());
        raw.set_block_total(raw.block_total() + parts.len() as u64);
    }

    /// Blocks that are in use no more but in no tree yet.
    pub fn pend(&mut self, ag: u32, count: u32) {
        let start = self.take(ag, count);
        self.pending.push((start, count));
    }

    pub fn orphan(&mut self, ag: u32) -> Ino {
        let ino = self.inode(ag, 0o100600, 0);
        self.fill(ino, ag, &[2]);
        self.orphans.push(ino);
        ino
    }

    fn new_block(&self, kind: BlockKind, owner: u64, at: FsBlock) -> Vec<u8> {
        let mut block = vec![0; self.shape.block_size];
        header::init(&mut block, kind, VOLUME, owner, at);
        block
    }

    fn put(&mut self, at: FsBlock, mut block: Vec<u8>) {
        header::seal(&mut block, 0);
        self.blocks.insert(at.0, block);
    }

    /// Writes a tree bottom up; its root and level.
    fn tree(
        &mut self,
        kind: TreeKind,
        owner: u64,
        records: &[Vec<u8>],
        place: &mut dyn FnMut(&mut Self) -> FsBlock,
    ) -> (FsBlock, u8) {
        let key = |record: &[u8]| u64::from_le_bytes(record[..8].try_into().unwrap()) >> kind.key_shift;
        let size = self.shape.block_size;
        let mut level = 0;
        let mut items: Vec<(u64, Vec<u8>)> = records.iter().map(|record| (key(record), record.clone())).collect();
        loop {
            let max = if level == 0 { kind.leaf_max(size) } else { kind.inner_max(size) };
            // Three quarters full, but never a last node of one.
            let count = items.len().div_ceil(max * 3 / 4).max(1);
            let mut above = Vec::new();
            for part in 0..count {
                let part = &items[items.len() * part / count..items.len() * (part + 1) / count];
                let at = place(self);
                let mut block = self.new_block(kind.block, owner, at);
                let head = NodeHeader::read_mut(&mut block);
                head.level.set(level);
                head.count.set(part.len() as u16);
                let mut offset = NodeHeader::SIZE;
                for (_, item) in part {
                    block[offset..offset + item.len()].copy_from_slice(item);
                    offset += item.len();
                }
                self.put(at, block);
                let first = part.first().map_or(0, |item| item.0);
                let mut entry = ChildEntry::zeroed();
                entry.key.set(first);
                entry.child.set(at.0);
                above.push((first, entry.as_bytes().to_vec()));
                if count == 1 {
                    return (at, level as u8);
                }
            }
            items = above;
            level += 1;
        }
    }

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
        let size = self.shape.block_size;
        let packed: Vec<Vec<u8>> = entries.iter().map(|(name, ino)| self.entry_bytes(name, *ino)).collect();
        let total: usize = packed.iter().map(Vec::len).sum();
        let room = (self.node(ino).body_slots as usize * SLOT_SIZE).saturating_sub(BodyHeader::SIZE);
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

    /// Lays everything out and writes the volume.
    pub fn finish(mut self) -> Image {
        let inos: Vec<Ino> = self.nodes.values().filter(|node| node.raw.is_dir()).map(|node| node.ino).collect();
        for ino in inos {
            self.lay_out_directory(ino);
        }
        let orphan_root = self.write_orphans();
        self.write_inodes();
        let mut free_total = self.pending.iter().map(|&(_, count)| u64::from(count)).sum();
        for ag in 0..self.shape.ag_used {
            free_total += self.write_group(ag);
        }
        for ag in self.shape.ag_used..self.geometry.ag_count {
            free_total += u64::from(self.geometry.blocks_in(AgNo(ag)) - FIXED_BLOCKS);
        }
        let mut sb = Superblock::zeroed();
        sb.version.set(1);
        sb.block_bits = self.geometry.block_bits as u8;
        sb.space = seam::SPACE_BTREE;
        sb.inodes = seam::INODES_DYNAMIC;
        sb.map = seam::MAP_EXTENTS;
        sb.directory = seam::DIRECTORY_INDEXED;
        sb.lookup = seam::LOOKUP_WALK;
        sb.volume_kind = seam::VOLUME_SINGLE;
        sb.orders = 0b1001;
        sb.ag_blocks.set(self.shape.ag_blocks);
        sb.features_compatible.set(self.features);
        sb.block_count.set(self.shape.block_count);
        sb.ag_count.set(self.geometry.ag_count);
        sb.region_blocks.set(self.shape.region_blocks);
        sb.ag_high_water.set(self.shape.ag_used);
        sb.hash_key = KEY;
        sb.log_start.set(if self.shape.log_blocks > 0 { u64::from(FIXED_BLOCKS) } else { 0 });
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
        let (inode_root, inode_level) =
            self.group_tree(ag, btree::INODE_CHUNKS, &chunk_records, fixed(4), &mut reserve);
        let count = self.free_extents(ag).len();
        let nodes = |kind: TreeKind, count: usize| {
            let leaves = count.div_ceil(kind.leaf_max(self.shape.block_size) * 3 / 4);
            if leaves <= 1 { 0 } else { leaves + leaves.div_ceil(10) + 2 }
        };
        // Taken from the end of the group, where the last free extent is long: their number does not change.
        let mut spare: Vec<u32> = Vec::new();
        let need = nodes(btree::FREE_BY_START, count) + nodes(btree::FREE_BY_LENGTH, count) + 6;
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
        let (start_root, start_level) = plant(self, btree::FREE_BY_START, &by_start, fixed(2), &mut reserve);
        let (length_root, length_level) = plant(self, btree::FREE_BY_LENGTH, &by_length, fixed(3), &mut reserve);
        reserve.append(&mut spare);
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
    fn free_extents(&self, ag: u32) -> Vec<(u32, u32)> {
        let base = u64::from(ag) << self.geometry.ag_bits;
        let mut extents: Vec<(u32, u32)> = Vec::new();
        for block in FIXED_BLOCKS..self.geometry.blocks_in(AgNo(ag)) {
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

/// A volume in memory.
pub struct Image {
    pub device: Arc<MemoryDevice>,
    pub geometry: Geometry,
    pub root: Ino,
    pub log_blocks: u64,
}

impl Image {
    pub fn log_place(&self) -> myriad_log::LogPlace {
        let size = self.geometry.block_size() as u64;
        myriad_log::LogPlace {
            device: self.device.clone(),
            start: u64::from(FIXED_BLOCKS) * size,
            length: self.log_blocks * size,
            block_size: self.geometry.block_size(),
            volume: VOLUME,
        }
    }

    pub fn read(&self, block: FsBlock) -> Vec<u8> {
        let mut buf = vec![0; self.geometry.block_size()];
        self.device.read(block.0 << self.geometry.block_bits, &mut buf).unwrap();
        buf
    }

    pub fn write(&self, block: FsBlock, bytes: &[u8]) {
        self.device.write(block.0 << self.geometry.block_bits, bytes).unwrap();
    }

    /// Changes a block and seals it again.
    pub fn change(&self, block: FsBlock, f: impl FnOnce(&mut [u8])) {
        let mut bytes = self.read(block);
        f(&mut bytes);
        header::seal(&mut bytes, 0);
        self.write(block, &bytes);
    }

    /// Changes a block behind its checksum's back.
    pub fn smash(&self, block: FsBlock) {
        let mut bytes = self.read(block);
        let at = bytes.len() / 2 + 3;
        bytes[at] ^= 0x55;
        self.write(block, &bytes);
    }

    pub fn inode(&self, ino: Ino) -> RawInode {
        let (block, slot) = self.geometry.locate(ino).unwrap();
        *RawInode::read(&self.read(block)[slot as usize * SLOT_SIZE..])
    }

    pub fn change_inode(&self, ino: Ino, f: impl FnOnce(&mut RawInode)) {
        let (block, slot) = self.geometry.locate(ino).unwrap();
        self.change(block, |bytes| f(RawInode::read_mut(&mut bytes[slot as usize * SLOT_SIZE..])));
    }

    pub fn change_superblock(&self, f: impl FnOnce(&mut Superblock)) {
        self.change(FsBlock(0), |bytes| f(Superblock::read_mut(bytes)));
    }

    pub fn header_block(&self, ag: u32) -> FsBlock {
        self.geometry.fs_block(AgNo(ag), AgBlock(HEADER_BLOCK))
    }

    pub fn change_group(&self, ag: u32, f: impl FnOnce(&mut GroupHeader)) {
        self.change(self.header_block(ag), |bytes| f(GroupHeader::read_mut(bytes)));
    }

    /// Every block of a kind that belongs to `owner`.
    pub fn blocks_of(&self, kind: BlockKind, owner: u64) -> Vec<FsBlock> {
        let mut found = Vec::new();
        for block in (0..self.geometry.block_count).map(FsBlock) {
            let bytes = self.read(block);
            if header::verify(&bytes, kind, &VOLUME, block).is_ok()
                && header::verify_owner(&bytes, block, owner).is_ok()
            {
                found.push(block);
            }
        }
        found
    }
}

/// Handles into [`sample`]'s volume.
pub struct Sample {
    pub image: Image,
    pub small: Ino,
    pub tree: Ino,
    pub text: Ino,
    pub hard: Ino,
    pub sub: Ino,
    pub deep: Ino,
    pub single: Ino,
    pub big: Ino,
    pub attributes: Ino,
    pub chain: Ino,
    pub orphan: Ino,
    /// A file of `big`.
    pub leaf: Ino,
}

/// A volume with one of everything.
pub fn sample(shape: Shape) -> Sample {
    sample_later(shape, |_| {})
}

/// The same after `more` has happened.
pub fn sample_later(shape: Shape, more: impl FnOnce(&mut Builder)) -> Sample {
    let mut b = Builder::new(shape);
    let root = b.root;
    let small = b.file(root, b"small", 0, &[3, 1]);
    let tree = b.file(root, b"tree", 1, &vec![2; if shape.block_size == 512 { 150 } else { 20 }]);
    let text = b.inline(root, b"text", 0o120777, b"where/the/link/leads, rather longer than thirty-two bytes");
    b.inline(root, b"link", 0o120777, b"small");
    b.inline(root, b"long", 0o120777, b"a/target/that/is/too/long/for/the/fork/and/lives/in/the/body");
    b.special(root, b"pipe", 0o010644);
    let sub = b.dir(root, b"sub", 1, b.small_body());
    let deep = b.dir(sub, b"deep", 0, b.small_body());
    let hard = b.file(sub, b"first", 0, &[]);
    b.link(deep, b"second", hard);
    b.free_entry(deep, 5);
    b.link(deep, b"third", hard);
    let single = b.dir(root, b"single", 0, 0);
    for index in 0..7 {
        b.file(single, format!("file {index}").as_bytes(), 1, &[1]);
    }
    let big = b.dir(root, b"big", 1, 0);
    let mut leaf = Ino(0);
    for index in 0..1300 {
        let name = format!("entry number {index}");
        if (300..500).contains(&index) || index % 11 == 0 {
            b.free_entry(big, name.len());
        } else if index % 200 == 7 {
            b.dir(big, name.as_bytes(), index % 2, 0);
        } else if index < 60 {
            leaf = b.file(big, name.as_bytes(), index % 2, &[]);
        } else {
            b.link(big, name.as_bytes(), hard);
        }
    }
    b.dir(root, b"empty", 0, 0);
    let attributes =
        b.with_body_attributes(root, b"attributes", &[(b"user.a", b"1"), (b"system.posix_acl_access", b"acl")]);
    let chain = b.file(root, b"chain", 0, &[1]);
    let value = vec![b'v'; shape.block_size * 2];
    b.chain_attributes(chain, &[(b"user.long", &value), (b"user.x", b"")]);
    let orphan = b.orphan(1);
    // What happens later leaves these where they are.
    for ino in [sub, deep, single, big] {
        b.lay_out_directory(ino);
    }
    more(&mut b);
    Sample { image: b.finish(), small, tree, text, hard, sub, deep, single, big, attributes, chain, orphan, leaf }
}

impl Image {
    /// Flips bits of one byte of the device.
    pub fn device_smash(&self, offset: u64) {
        let mut byte = [0];
        self.device.read(offset, &mut byte).unwrap();
        byte[0] ^= 0x55;
        self.device.write(offset, &byte).unwrap();
    }
}
