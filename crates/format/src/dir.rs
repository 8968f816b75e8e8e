//! Directories of kind `indexed`: entries that never move, and an index from name hash to entry and inode.
//!
//! Entries lie in entry blocks at file blocks 0, 1, ... of the directory; a small directory keeps the same bytes in its
//! inode's body. An entry's position is its byte offset in the directory divided by 8 (for a directory in the body: the
//! offset it would have in entry block 0); it is the readdir cookie.
//!
//! The index is an extendible hash (Fagin et al. 1979). Nodes hold `block size / 8` pointers of 6 bytes; the low `depth`
//! bits of the hash choose the pointer, so doubling the table changes nothing but `depth`: a pointer that is 0 stands
//! for the one with its top bit cleared. Leaves hold lines of four records; bits of the hash choose the line.
//!
//! Directories of kind `linear` have the same entries, in units (`unit`) of kind `LinearEntries`: the directory's size says
//! how many units it has, and the entries of a unit fill it to its last byte. There is no index, and nothing lies in the
//! inode's body.

use crate::on_disk::on_disk;
use crate::unit::{UNIT_ROOM, UNIT_SIZE, UnitHeader};
use zerocopy::little_endian::{U16, U32, U64};

on_disk! {
    /// Start of a directory entry; the name follows, padded to a multiple of 8 bytes.
    pub struct EntryHeader: 16 {
        /// 0 for a free entry.
        0 => ino: U64,
        /// Bytes to the next entry, a multiple of 8, at least 16.
        8 => length: U16,
        /// 1 to 255; 0 for a free entry.
        10 => name_len: u8,
        /// `mode >> 12` of the inode.
        11 => file_type: u8,
        /// Low 32 bits of the name's hash.
        12 => tag: U32,
    }
}

on_disk! {
    /// Start of an entry block. Entries fill it from byte 64 to `tail` without gaps.
    pub struct EntryBlockHeader: 64 {
        0 => header: crate::header::BlockHeader,
        /// Offset of the first byte never used.
        48 => tail: U32,
        /// Bytes of live entries.
        52 => live: U32,
        /// List of blocks with room, in a directory with an index: 0 not on it, `LIST_END` the last, else file block + 1
        /// of the next.
        56 => next_room: U32,
        60 => reserved: U32,
    }
}

on_disk! {
    /// Start of an index block: a node (level 1 and up) or a leaf (level 0).
    pub struct IndexHeader: 64 {
        0 => header: crate::header::BlockHeader,
        48 => level: u8,
        /// Root: hash bits in use. Leaf: hash bits that all its records share.
        49 => depth: u8,
        50 => reserved: U16,
        /// Root only: head of the list of entry blocks with room (file block + 1; `LIST_END` when empty).
        52 => room_head: U32,
        /// Root only: entry blocks made. Blocks mapped past them hold nothing yet.
        56 => entry_blocks: U32,
        60 => reserved2: U32,
    }
}

on_disk! {
    /// Record of an index leaf. In the first record of a line, the top bit of `ino` says that the line has overflowed
    /// into the next one.
    pub struct IndexRecord: 16 {
        /// Low 32 bits of the name's hash.
        0 => tag: U32,
        /// Position of the entry, in units of 8 bytes.
        4 => position: U32,
        /// 0 for an empty record.
        8 => ino: U64,
    }
}

/// End of the list of entry blocks with room.
pub const LIST_END: u32 = u32::MAX;
/// Bytes before the first entry of a block.
pub const ENTRIES_OFFSET: usize = EntryBlockHeader::SIZE;
/// Records in a line of 64 bytes.
pub const LINE_RECORDS: usize = 4;
/// Bytes of a line.
pub const LINE_SIZE: usize = LINE_RECORDS * IndexRecord::SIZE;
/// Top bit of a line's first `ino`: the line has overflowed.
pub const OVERFLOWED: u64 = 1 << 63;
/// Bytes of a pointer in an index node.
pub const POINTER_SIZE: usize = 6;
/// Most hash bits in use: the tag has 32, and some must remain to tell names apart.
pub const DEPTH_MAX: u8 = 30;
/// Longest name.
pub const NAME_MAX: usize = 255;
/// A directory gets an index when its entries outgrow one block or this many bytes, whichever is less: below that, a
/// scan over the tags costs no more than the index would, and the index two more blocks.
pub const UNINDEXED_MAX: usize = 4096;

/// Units of the largest linear directory: a listing's cookie has a unit's number above the 32 bits of a tag, and is below 2^62.
pub const UNITS_MAX: u64 = (1 << 30) - 1;

/// Makes a unit of a linear directory one free entry.
pub fn clear_unit(unit: &mut [u8]) {
    unit[UnitHeader::SIZE..UNIT_SIZE].fill(0);
    EntryHeader::read_mut(&mut unit[UnitHeader::SIZE..]).length = U16::new(UNIT_ROOM as u16);
}

/// Bytes of an entry with a name of `name_len` bytes.
#[inline]
pub const fn entry_size(name_len: usize) -> usize {
    (EntryHeader::SIZE + name_len).next_multiple_of(8)
}

/// log2 of the pointers in an index node.
pub fn node_bits(block_bits: u32) -> u32 {
    block_bits - 3
}

/// Lines in an index leaf.
#[inline]
pub fn leaf_lines(block_size: usize) -> usize {
    (block_size - IndexHeader::SIZE) / LINE_SIZE
}

/// The line of a leaf where the search for `tag` starts: a multiplicative hash, since all tags of a leaf share their
/// low bits.
#[inline]
pub fn home_line(tag: u32, lines: usize) -> usize {
    ((u64::from(tag.wrapping_mul(0x9e37_79b1)) * lines as u64) >> 32) as usize
}

/// Reads pointer `index` of an index node.
#[inline]
pub fn pointer(node: &[u8], index: usize) -> u64 {
    let at = IndexHeader::SIZE + index * POINTER_SIZE;
    let mut bytes = [0; 8];
    bytes[..POINTER_SIZE].copy_from_slice(&node[at..at + POINTER_SIZE]);
    u64::from_le_bytes(bytes)
}

/// Byte offset of pointer `index` in an index node, and the pointer's bytes.
#[inline]
pub fn encode_pointer(index: usize, block: u64) -> (usize, [u8; POINTER_SIZE]) {
    debug_assert!(block < 1 << 48);
    let mut bytes = [0; POINTER_SIZE];
    bytes.copy_from_slice(&block.to_le_bytes()[..POINTER_SIZE]);
    (IndexHeader::SIZE + index * POINTER_SIZE, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_sizes() {
        for (len, size) in [(1, 24), (8, 24), (9, 32), (255, 272)] {
            assert_eq!(entry_size(len), size);
        }
    }

    #[test]
    fn nodes_hold_their_pointers() {
        for bits in 9..=16 {
            let size = 1_usize << bits;
            assert!(IndexHeader::SIZE + (POINTER_SIZE << node_bits(bits)) <= size);
        }
        let mut node = vec![0; 512];
        let (at, bytes) = encode_pointer(63, 0x1234_5678_9abc);
        node[at..at + 6].copy_from_slice(&bytes);
        assert_eq!(pointer(&node, 63), 0x1234_5678_9abc);
    }

    #[test]
    fn lines_are_in_range() {
        for tag in [0, 1, u32::MAX, 0x8000_0000] {
            assert!(home_line(tag, 63) < 63);
        }
    }
}
