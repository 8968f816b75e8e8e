//! Nodes of the B+ trees: free space by start and by length, inode chunks, extents of a file.
//!
//! A leaf holds fixed-size records whose first 8 bytes, shifted right by the tree's `key_shift`, are the key. An inner
//! node holds `ChildEntry`s; an entry's key is at most the smallest key below it and greater than all keys to its left
//! (the first entry of a node counts as minus infinity). Records and entries are sorted and packed from byte 64.

use crate::BlockKind;
use crate::on_disk::on_disk;
use zerocopy::little_endian::{U16, U32, U64};

on_disk! {
    /// Start of a tree node. Its records or entries follow.
    pub struct NodeHeader: 64 {
        0 => header: crate::header::BlockHeader,
        /// 0 for a leaf.
        48 => level: U16,
        /// Records or entries in use.
        50 => count: U16,
        52 => reserved: U32,
        56 => reserved2: U64,
    }
}

on_disk! {
    /// Entry of an inner node.
    pub struct ChildEntry: 16 {
        0 => key: U64,
        /// Volume block of the child.
        8 => child: U64,
    }
}

/// What distinguishes one kind of tree from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeKind {
    pub block: BlockKind,
    /// Bytes of a leaf record.
    pub record_size: usize,
    /// The key is the record's first 8 bytes (little-endian) shifted right by this.
    pub key_shift: u32,
}

/// Free extents by start: one u64, start in the high and length in the low 32 bits.
pub const FREE_BY_START: TreeKind = TreeKind { block: BlockKind::FreeByStart, record_size: 8, key_shift: 0 };
/// Free extents by length: one u64, length in the high and start in the low 32 bits.
pub const FREE_BY_LENGTH: TreeKind = TreeKind { block: BlockKind::FreeByLength, record_size: 8, key_shift: 0 };
/// Inode chunks: `inode::ChunkRecord` by first block of the chunk.
pub const INODE_CHUNKS: TreeKind =
    TreeKind { block: BlockKind::InodeTree, record_size: crate::inode::ChunkRecord::SIZE, key_shift: 0 };
/// Extents of a file or directory: `extent::RawExtent` by file block (the high 54 bits of its first word).
pub const EXTENTS: TreeKind =
    TreeKind { block: BlockKind::ExtentTree, record_size: crate::extent::RawExtent::SIZE, key_shift: 10 };

impl TreeKind {
    /// Records that fit a leaf.
    pub fn leaf_max(&self, block_size: usize) -> usize {
        (block_size - NodeHeader::SIZE) / self.record_size
    }

    /// Entries that fit an inner node.
    pub fn inner_max(&self, block_size: usize) -> usize {
        (block_size - NodeHeader::SIZE) / ChildEntry::SIZE
    }
}

/// Levels above the leaves that no sound tree exceeds; a deeper one is damage, not data.
pub const LEVEL_MAX: u16 = 15;
