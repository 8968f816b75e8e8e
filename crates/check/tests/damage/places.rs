//! Where in a sample volume damage can be done.

use crate::common::{Image, Sample};
use myriad_format::btree::NodeHeader;
use myriad_format::dir::{EntryHeader, IndexHeader, IndexRecord, OVERFLOWED};
use myriad_format::extent::RawExtent;
use myriad_format::inode::{RawInode, fork};
use myriad_format::{AgBlock, BlockHeader, BlockKind, FsBlock, Ino, SLOT_SIZE, header};

/// Index root of a directory in blocks.
pub fn index_root(s: &Sample, ino: Ino) -> FsBlock {
    FsBlock(u64::from_le_bytes(s.image.inode(ino).fork[..8].try_into().unwrap()))
}

pub fn index_leaf(s: &Sample) -> FsBlock {
    let blocks = s.image.blocks_of(BlockKind::DirIndex, s.big.0);
    *blocks
        .iter()
        .find(|&&block| IndexHeader::read(&s.image.read(block)).level == 0 && record_at(s, block).is_some())
        .unwrap()
}

/// Byte offset of a leaf's first record in use that is not the first of its line.
pub fn record_at(s: &Sample, leaf: FsBlock) -> Option<usize> {
    let bytes = s.image.read(leaf);
    (IndexHeader::SIZE..bytes.len())
        .step_by(16)
        .find(|&at| IndexRecord::read(&bytes[at..]).ino.get() & !OVERFLOWED != 0)
}

pub fn entry_block(s: &Sample, ino: Ino) -> FsBlock {
    s.image.blocks_of(BlockKind::DirEntries, ino.0)[0]
}

/// Changes the first live entry of a directory in blocks.
pub fn change_entry(s: &Sample, ino: Ino, f: fn(&mut EntryHeader, &mut [u8])) {
    s.image.change(entry_block(s, ino), |bytes| {
        let mut at = 64;
        while EntryHeader::read(&bytes[at..]).ino.get() == 0 {
            at += usize::from(EntryHeader::read(&bytes[at..]).length.get());
        }
        let (head, rest) = bytes[at..].split_at_mut(EntryHeader::SIZE);
        f(EntryHeader::read_mut(head), rest);
    });
}

pub fn node_of(s: &Sample, kind: BlockKind, owner: u64) -> FsBlock {
    s.image.blocks_of(kind, owner)[0]
}

pub fn change_node(s: &Sample, kind: BlockKind, owner: u64, f: fn(&mut NodeHeader, &mut [u8])) {
    s.image.change(node_of(s, kind, owner), |bytes| {
        let (head, rest) = bytes.split_at_mut(NodeHeader::SIZE);
        f(NodeHeader::read_mut(head), rest);
    });
}

pub fn inode_block(s: &Sample, ino: Ino) -> FsBlock {
    s.image.geometry.locate(ino).unwrap().0
}

/// A block of the same group that holds nothing and was never written.
pub fn free_block_before(image: &Image, block: FsBlock) -> FsBlock {
    let geometry = &image.geometry;
    let ag = geometry.ag_of(block);
    let first = geometry.fs_block(ag, AgBlock(geometry.first_data_block(ag)));
    let log = image.log_place();
    let is_log = |at: u64| (log.start..log.start + log.length).contains(&(at << geometry.block_bits));
    let is_free = |at: &FsBlock| !is_log(at.0) && image.read(*at).iter().all(|&byte| byte == 0);
    (first.0..block.0).map(FsBlock).find(is_free).expect("a free block below")
}

/// Writes what a block of inodes holds to another place, as if it had lain there once and been written last at `lsn`.
pub fn plant_inodes(image: &Image, block: FsBlock, place: FsBlock, lsn: u64) {
    let mut bytes = image.read(block);
    let head = BlockHeader::read_mut(&mut bytes);
    head.address.set(place.0);
    head.owner.set(u64::from(image.geometry.ag_of(place).0));
    header::seal(&mut bytes, lsn);
    image.write(place, &bytes);
}

/// Lets the first extent of `small` lie on a block.
pub fn give_to_file(s: &Sample, block: FsBlock) {
    s.image.change_inode(s.small, |raw| {
        let extent = RawExtent::read_mut(&mut raw.fork);
        extent.word0.set(extent.word0.get() & !0x3ff | block.0 >> 37);
        extent.word1.set(block.0 << 27 | extent.word1.get() & ((1 << 27) - 1));
    });
}

pub fn first_extent(raw: &RawInode) -> FsBlock {
    let extent = RawExtent::read(&raw.fork);
    FsBlock((extent.word0.get() & 0x3ff) << 37 | extent.word1.get() >> 27)
}

pub fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Block of the entry of `child` in a directory, offset of the entries in it, offset of the entry from there.
pub fn locate_entry(s: &Sample, directory: Ino, raw: &RawInode, child: Ino) -> (FsBlock, usize, usize) {
    let (block, first) = if raw.fork_code() == fork::INLINE {
        (s.image.geometry.locate(directory).unwrap().0, usize::from(raw.body_first.get()) * SLOT_SIZE + 8)
    } else {
        (entry_block(s, directory), 64)
    };
    let bytes = s.image.read(block);
    let mut at = 0;
    while EntryHeader::read(&bytes[first + at..]).ino.get() != child.0 {
        at += usize::from(EntryHeader::read(&bytes[first + at..]).length.get());
    }
    (block, first, at)
}
