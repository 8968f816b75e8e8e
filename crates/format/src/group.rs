//! The header of an allocation group.

use crate::on_disk::on_disk;
use zerocopy::little_endian::{U32, U64};

/// Blocks at the start of each group that are never free: superblock or its copy, group header, the first blocks of
/// the two free-space trees and of the inode tree.
pub const FIXED_BLOCKS: u32 = 5;
/// Group-relative addresses of the fixed blocks. The trees may move away from theirs; the blocks stay reserved.
pub const HEADER_BLOCK: u32 = 1;
pub const FIRST_BY_START_BLOCK: u32 = 2;
pub const FIRST_BY_LENGTH_BLOCK: u32 = 3;
pub const FIRST_INODE_TREE_BLOCK: u32 = 4;
/// Places in the reserve list.
pub const RESERVE_MAX: usize = 24;

on_disk! {
    /// Block 1 of a group. The summaries of its placement regions follow, 8 bytes each.
    /// Invariants: `free_blocks` is the sum of the lengths in either free-space tree plus `reserve_count`, and also the
    /// sum over the regions.
    pub struct GroupHeader: 208 {
        0 => header: crate::header::BlockHeader,
        48 => ag: U32,
        52 => block_count: U32,
        56 => free_blocks: U32,
        /// Root blocks of the trees, group-relative.
        60 => by_start_root: U32,
        64 => by_length_root: U32,
        68 => inode_root: U32,
        /// Levels of the trees below the root: 0 when the root is a leaf.
        72 => by_start_level: u8,
        73 => by_length_level: u8,
        74 => inode_level: u8,
        75 => reserved_level: u8,
        /// Inode blocks in chunks, inodes in use, directories among them.
        76 => inode_blocks: U32,
        80 => inodes_used: U32,
        84 => directories: U32,
        /// Root reserved for shared blocks; 0.
        88 => refcount_root: U32,
        /// Of the free blocks, those beside used ones in a block of fragments; 0 on a volume without fragments.
        92 => free_parts: U32,
        /// Blocks held back for the free-space trees' own growth, so that freeing never needs to allocate.
        96 => reserve_count: U32,
        100 => region_count: U32,
        /// Bit i: part i of the table of checksums has been made. 0 on a volume without.
        104 => checksums_made: U64,
        112 => reserve: [U32; 24],
    }
}

on_disk! {
    /// Summary of a placement region, read by dirpref.
    pub struct RegionSummary: 8 {
        0 => free_blocks: U32,
        4 => directories: U32,
    }
}
