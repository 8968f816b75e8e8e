//! A writer of small volumes that knows the format crate only: neither the engine nor the check's own code. Everything is
//! laid out at [`Builder::finish`]; before that the volume is a plain list of inodes.

use myriad_format::btree::{self, ChildEntry, NodeHeader, TreeKind};
use myriad_format::choices::{Choices, Inodes, MYRIAD, Space};
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::inode::{BodyHeader, RawInode, flag, fork};
use myriad_format::superblock::feature;
use myriad_format::xattr::AttrBlockHeader;
use myriad_format::{AgNo, BlockKind, FileBlock, FsBlock, Geometry, Ino, NameHasher, SLOT_SIZE, header, xattr};
use std::collections::{BTreeMap, BTreeSet};
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
    pub choices: Choices,
    /// With inode tables: blocks of a group for which its table has one.
    pub table_every: u32,
}

impl Shape {
    /// The same with other choices of where free blocks and inodes are recorded.
    pub const fn with(self, space: Space, inodes: Inodes) -> Self {
        Self { choices: Choices { space, inodes, ..self.choices }, ..self }
    }

    /// The same with each choice of what records free blocks and inodes.
    pub fn every_record(self) -> impl Iterator<Item = Self> {
        RECORDS.into_iter().map(move |(space, inodes)| self.with(space, inodes))
    }

    pub fn has_table(&self) -> bool {
        self.choices.inodes == Inodes::Static
    }
}

/// What can be chosen for free blocks and inodes.
pub const RECORDS: [(Space, Inodes); 4] = [
    (Space::Trees, Inodes::Dynamic),
    (Space::Bitmap, Inodes::Dynamic),
    (Space::Trees, Inodes::Static),
    (Space::Bitmap, Inodes::Static),
];

pub const SHAPE: Shape = Shape {
    block_size: 4096,
    ag_blocks: 1024,
    region_blocks: 256,
    block_count: 2 * 1024 + 500,
    ag_used: 2,
    log_blocks: 64,
    choices: MYRIAD.choices,
    table_every: 16,
};
/// Small blocks: two-level indexes and trees with few entries.
pub const SMALL: Shape = Shape {
    block_size: 512,
    ag_blocks: 4096,
    region_blocks: 1024,
    block_count: 3 * 4096,
    ag_used: 2,
    log_blocks: 160,
    choices: MYRIAD.choices,
    table_every: 16,
};

pub struct Node {
    pub ino: Ino,
    pub raw: RawInode,
    pub(super) body_slots: u32,
    pub(super) data: Vec<u8>,
    pub(super) attributes: Vec<u8>,
    /// Name, inode; an empty name is a hole of a deleted entry.
    pub(super) entries: Vec<(Vec<u8>, Ino)>,
    pub(super) laid_out: bool,
}

pub struct Builder {
    pub geometry: Geometry,
    pub shape: Shape,
    pub(super) hasher: NameHasher,
    pub(super) used: BTreeSet<u64>,
    pub(super) blocks: BTreeMap<u64, Vec<u8>>,
    pub nodes: BTreeMap<u64, Node>,
    /// Inodes of each group's table.
    pub(super) tables: BTreeMap<u32, u32>,
    /// Chunks by group: first block, slots taken of each block.
    pub(super) chunks: BTreeMap<u32, Vec<(u64, Vec<u32>)>>,
    /// What the list of orphans names.
    pub orphans: Vec<Ino>,
    /// Blocks freed and not yet in the trees.
    pub pending: Vec<(FsBlock, u32)>,
    /// Most records of an index leaf.
    pub leaf_limit: usize,
    /// How much of a tree's nodes is filled.
    pub filled_quarters: usize,
    pub root: Ino,
    /// Blocks left free after each extent, so that the trees have something to hold.
    pub gap: u64,
    pub(super) features: u64,
    /// Where the next data block is sought, by group.
    pub(super) next: Vec<u64>,
}

pub(super) const CHUNK_BLOCKS: u32 = 4;

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
            bodies_follow: false,
            has_bitmap: shape.choices.space == Space::Bitmap,
            table_every: if shape.has_table() { shape.table_every } else { 0 },
            map: shape.choices.map,
            fragment_bits: 0,
        };
        let mut builder = Self {
            geometry,
            shape,
            hasher: NameHasher::new(KEY),
            used: BTreeSet::new(),
            blocks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            tables: BTreeMap::new(),
            chunks: BTreeMap::new(),
            orphans: Vec::new(),
            pending: Vec::new(),
            leaf_limit: 12,
            filled_quarters: 3,
            root: Ino(0),
            gap: 1,
            features: 0,
            next: (0..shape.ag_used)
                .map(|ag| {
                    (u64::from(ag) << geometry.ag_bits) + u64::from(geometry.first_data_block(AgNo(ag)) + 8).max(200)
                })
                .collect(),
        };
        let log_start = u64::from(geometry.first_data_block(AgNo(0)));
        builder.used.extend(log_start..log_start + shape.log_blocks);
        builder.root = builder.inode(0, 0o040755, builder.small_body());
        let root = builder.root;
        let raw = &mut builder.node(root).raw;
        raw.parent.set(root.0);
        raw.nlink.set(2);
        builder
    }

    /// Body slots that fit beside an inode in any block size.
    pub fn small_body(&self) -> u32 {
        match self.shape.block_size {
            _ if self.shape.has_table() => 0,
            512 => 2,
            _ => 5,
        }
    }

    pub fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino.0).expect("a node of this builder")
    }

    pub(super) fn take(&mut self, ag: u32, count: u32) -> FsBlock {
        let end = (u64::from(ag) << self.geometry.ag_bits) + u64::from(self.geometry.blocks_in(AgNo(ag)));
        let mut at = self.next[ag as usize];
        while (at..at + u64::from(count)).any(|block| self.used.contains(&block)) {
            at += 1;
        }
        assert!(at + u64::from(count) <= end, "the volume is too small for the test");
        self.used.extend(at..at + u64::from(count));
        self.next[ag as usize] = at + u64::from(count) + self.gap;
        FsBlock(at)
    }

    /// A place in the group's table.
    fn place_in_table(&mut self, ag: u32) -> (FsBlock, u32) {
        let count = self.tables.entry(ag).or_default();
        assert!(*count < self.geometry.table_inodes(AgNo(ag)), "the table is too small for the test");
        let (block, slot) = self.geometry.table_place(AgNo(ag), *count);
        *count += 1;
        (self.geometry.fs_block(AgNo(ag), block), slot)
    }

    /// Slots in a chunk of the group.
    fn place_in_chunk(&mut self, ag: u32, body_slots: u32) -> (FsBlock, u32) {
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
        (FsBlock(block), slot)
    }

    pub fn inode(&mut self, ag: u32, mode: u16, body_slots: u32) -> Ino {
        let (block, slot) = match self.shape.has_table() {
            true => self.place_in_table(ag),
            false => self.place_in_chunk(ag, body_slots),
        };
        let ino = self.geometry.ino(block, slot);
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

    /// A directory for strays that a repair takes.
    pub fn lost_and_found(&mut self, body_slots: u32) -> Ino {
        let home = self.dir(self.root, b"lost+found", 0, body_slots);
        self.node(home).raw.mode.set(0o040700);
        home
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

    /// Gives a file all that is free in a group but its last blocks. The nodes of its map are in another group.
    pub fn fill_up(&mut self, ino: Ino, ag: u32, last: u32, nodes_ag: u32) {
        let base = u64::from(ag) << self.geometry.ag_bits;
        let end = self.geometry.blocks_in(AgNo(ag)) - last;
        let mut extents = Vec::new();
        let mut at = 0;
        for (start, length) in self.free_extents(ag) {
            let length = length.min(end.saturating_sub(start));
            if length > 0 {
                let start = base + u64::from(start);
                self.used.extend(start..start + u64::from(length));
                extents.push(Extent { file_block: FileBlock(at), start: FsBlock(start), length, unwritten: false });
                at += u64::from(length);
            }
        }
        let size = at * self.shape.block_size as u64;
        let nodes = self.map(ino, &extents, nodes_ag, false);
        let raw = &mut self.node(ino).raw;
        raw.size.set(size);
        raw.set_block_total(at + nodes);
    }

    /// Writes a file map into the fork; blocks of its tree.
    pub(super) fn map(&mut self, ino: Ino, extents: &[Extent], ag: u32, is_dir: bool) -> u64 {
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
        let body = if short || self.shape.has_table() {
            0
        } else {
            (BodyHeader::SIZE + bytes.len()).div_ceil(SLOT_SIZE) as u32
        };
        let ino = self.inode(0, mode, body);
        self.link(parent, name, ino);
        let node = self.node(ino);
        node.raw.size.set(bytes.len() as u64);
        if short {
            node.raw.fork[..bytes.len()].copy_from_slice(bytes);
            node.raw.set_fork(fork::SHORT_LINK, 0);
        } else if self.shape.has_table() {
            self.fill(ino, 0, &[1]);
            let mut block = bytes.to_vec();
            block.resize(self.shape.block_size, 0);
            self.node(ino).raw.size.set(bytes.len() as u64);
            let fork = self.node(ino).raw.fork;
            let extent = Extent::decode(RawExtent::read(&fork), &self.geometry, ino).unwrap();
            self.blocks.insert(extent.start.0, block);
        } else {
            let node = self.node(ino);
            node.data = bytes.to_vec();
            node.raw.set_fork(fork::INLINE, 0);
        }
        ino
    }

    /// A file with attributes in its body, or in blocks where inodes have no bodies.
    pub fn with_body_attributes(&mut self, parent: Ino, name: &[u8], attributes: &[(&[u8], &[u8])]) -> Ino {
        let ino = self.inode(0, 0o100644, 2);
        self.link(parent, name, ino);
        self.body_attributes(ino, attributes);
        ino
    }

    /// Attributes in the body.
    pub fn body_attributes(&mut self, ino: Ino, attributes: &[(&[u8], &[u8])]) {
        if self.shape.has_table() {
            return self.chain_attributes(ino, attributes);
        }
        let mut list = Vec::new();
        for (name, value) in attributes {
            xattr::push(&mut list, name, value);
            self.note_acl(ino, name);
        }
        self.features |= feature::COMPATIBLE_XATTR;
        let node = self.node(ino);
        node.attributes = list;
        node.raw.flags.set(node.raw.flags.get() | flag::ATTR_BODY);
    }

    fn note_acl(&mut self, ino: Ino, name: &[u8]) {
        if name.starts_with(b"system.posix_acl") {
            self.features |= feature::COMPATIBLE_ACL;
            let raw = &mut self.node(ino).raw;
            raw.flags.set(raw.flags.get() | flag::HAS_ACL);
        }
    }

    /// Attributes in a chain of blocks.
    pub fn chain_attributes(&mut self, ino: Ino, attributes: &[(&[u8], &[u8])]) {
        let mut list = Vec::new();
        for (name, value) in attributes {
            xattr::push(&mut list, name, value);
            self.note_acl(ino, name);
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

    pub(super) fn new_block(&self, kind: BlockKind, owner: u64, at: FsBlock) -> Vec<u8> {
        let mut block = vec![0; self.shape.block_size];
        header::init(&mut block, kind, VOLUME, owner, at);
        block
    }

    pub(super) fn put(&mut self, at: FsBlock, mut block: Vec<u8>) {
        header::seal_at(&mut block, &VOLUME, at, 0);
        self.blocks.insert(at.0, block);
    }

    /// Writes a tree bottom up; its root and level.
    pub(super) fn tree(
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
            // Never a last node of one.
            let count = items.len().div_ceil(max * self.filled_quarters / 4).max(1);
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
}
