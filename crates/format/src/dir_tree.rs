//! Directories of kind `btree`: entries in the leaves of a B+ tree, in the order of the hash of their names.
//!
//! The key of an entry is its tag, the low 32 bits of its name's hash, above a number that tells names with one tag apart. So
//! keys differ, and an entry keeps its key as long as it is there: that is the cookie of a listing.
//!
//! The nodes are the file blocks of the directory, the root is file block 0. A small directory has its entries in its inode's
//! body, one after the other.

use crate::on_disk::on_disk;
use zerocopy::little_endian::{U16, U32, U64};

on_disk! {
    /// Start of a node. In a leaf the offsets of its entries follow, 2 bytes each, in the order of their keys, and the entries
    /// lie between `heap` and the end of the block. In an inner node its children follow.
    pub struct DirNodeHeader: 64 {
        0 => header: crate::header::BlockHeader,
        /// 0 for a leaf.
        48 => level: u8,
        49 => reserved: u8,
        /// Entries, or children.
        50 => count: U16,
        /// Leaf: where the lowest of its entries begins; the block size if there is none. Else 0.
        52 => heap: U32,
        /// Leaf: bytes of its entries. Else 0.
        56 => live: U32,
        60 => reserved2: U32,
    }
}

on_disk! {
    /// Start of an entry; the name follows, without padding.
    pub struct DirTreeEntry: 16 {
        /// In a body 0 for a free entry.
        0 => ino: U64,
        /// Tells names with one tag apart.
        8 => number: U16,
        /// 1 to 255; of a free entry how many bytes follow, 0 to 255.
        10 => name_len: u8,
        /// `mode >> 12` of the inode.
        11 => file_type: u8,
        /// Low 32 bits of the name's hash.
        12 => tag: U32,
    }
}

on_disk! {
    /// A child of an inner node.
    pub struct DirTreeChild: 12 {
        /// At most the least key below it, and greater than all keys to its left; 0 of the first child.
        0 => key: U64,
        /// File block.
        8 => child: U32,
    }
}

/// Bytes before what a node holds.
pub const NODE_OFFSET: usize = DirNodeHeader::SIZE;
/// Bytes of the offset of an entry in a leaf.
pub const OFFSET_SIZE: usize = 2;
/// Highest level of a root: eight levels in all. Splits halve nodes, so with 512-byte blocks that is more than 18^7 leaves.
pub const LEVEL_MAX: u8 = 7;
/// Bits of the number that tells names with one tag apart.
pub const NUMBER_BITS: u32 = 16;

/// The key of an entry.
pub fn key(tag: u32, number: u16) -> u64 {
    u64::from(tag) << NUMBER_BITS | u64::from(number)
}

/// Bytes of an entry, its offset in a leaf not included.
pub fn tree_entry_size(name_len: usize) -> usize {
    DirTreeEntry::SIZE + name_len
}

/// Bytes that a leaf has for entries and their offsets.
pub fn leaf_room(block_size: usize) -> usize {
    block_size - NODE_OFFSET
}

/// Children that an inner node may have.
pub fn fan_out(block_size: usize) -> usize {
    (block_size - NODE_OFFSET) / DirTreeChild::SIZE
}

/// The offset of entry `index` of a leaf. What is asked for lies in the block.
pub fn offset_at(node: &[u8], index: usize) -> usize {
    let at = NODE_OFFSET + index * OFFSET_SIZE;
    usize::from(u16::from_le_bytes([node[at], node[at + 1]]))
}

/// The child `index` of an inner node. What is asked for lies in the block.
pub fn child_at(node: &[u8], index: usize) -> &DirTreeChild {
    DirTreeChild::read(&node[NODE_OFFSET + index * DirTreeChild::SIZE..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::NAME_MAX;

    #[test]
    fn the_longest_entry_fits_the_smallest_leaf_and_the_last_offset_its_two_bytes() {
        assert!(tree_entry_size(NAME_MAX) + OFFSET_SIZE <= leaf_room(512));
        assert!((1 << 16) - tree_entry_size(1) <= usize::from(u16::MAX));
        assert_eq!(fan_out(512), 37);
        assert_eq!(fan_out(4096), 336);
    }

    #[test]
    fn keys_are_in_the_order_of_tags_and_below_what_a_cookie_may_be() {
        assert!(key(1, u16::MAX) < key(2, 0));
        assert_eq!(key(u32::MAX, u16::MAX) + 1, 1 << 48);
    }
}
