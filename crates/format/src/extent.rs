//! Extents: runs of file blocks on runs of volume blocks.
//!
//! A record has 16 bytes, so that an inode holds two and a block of 4 KiB 252. 54 bits of file block address 2^63 bytes at any
//! block size, so no offset that a program may use is refused for lack of bits; 48 would have made files of 128 PiB at 512 bytes
//! a block. 47 bits of start are 64 PiB at 512 bytes a block and 512 PiB at 4 KiB. 22 bits of length are 16 GiB at 4 KiB; a
//! longer run takes more records. Of the five flags one is used. The key of the extent tree is word 0 shifted right by 10.

use crate::on_disk::on_disk;
use crate::{Corrupt, FileBlock, FsBlock, Geometry, Ino};
use zerocopy::little_endian::U64;

on_disk! {
    /// One extent. Word 0: file block (high 54 bits), high 10 bits of the start. Word 1: low 37 bits of the start, then
    /// length (22 bits, in blocks), then flags (5 bits). 54 bits of blocks of 512 bytes make files of 2^63 bytes.
    pub struct RawExtent: 16 {
        0 => word0: U64,
        8 => word1: U64,
    }
}

/// Allocated but reads as zero.
pub const UNWRITTEN: u8 = 1;
/// Longest extent, in blocks.
pub const LENGTH_MAX: u32 = (1 << 22) - 1;
/// File blocks an extent can address.
pub const FILE_BLOCK_MAX: u64 = (1 << 54) - 1;

const START_LOW_BITS: u32 = 37;
const FLAG_BITS: u32 = 5;
const FLAG_MASK: u64 = (1 << FLAG_BITS) - 1;

/// A decoded extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub file_block: FileBlock,
    pub start: FsBlock,
    /// In blocks, at least 1.
    pub length: u32,
    pub unwritten: bool,
}

impl Extent {
    pub fn encode(&self) -> RawExtent {
        let flags = if self.unwritten { UNWRITTEN } else { 0 };
        RawExtent {
            word0: U64::new(self.file_block.0 << 10 | self.start.0 >> START_LOW_BITS),
            word1: U64::new(
                self.start.0 << (64 - START_LOW_BITS) | u64::from(self.length) << FLAG_BITS | u64::from(flags),
            ),
        }
    }

    /// Decodes an extent of `ino`; one that points outside a group's data or has unknown flags is damage.
    pub fn decode(raw: &RawExtent, geometry: &Geometry, ino: Ino) -> Result<Self, Corrupt> {
        let (word0, word1) = (raw.word0.get(), raw.word1.get());
        let extent = Self {
            file_block: FileBlock(word0 >> 10),
            start: FsBlock((word0 & 0x3ff) << START_LOW_BITS | word1 >> (64 - START_LOW_BITS)),
            length: (word1 >> FLAG_BITS) as u32 & LENGTH_MAX,
            unwritten: word1 & u64::from(UNWRITTEN) != 0,
        };
        let sound = word1 & FLAG_MASK & !u64::from(UNWRITTEN) == 0
            && geometry.is_data_range(extent.start, u64::from(extent.length))
            && extent.file_block.0 + u64::from(extent.length) <= FILE_BLOCK_MAX + 1;
        if !sound {
            return Err(Corrupt::Extent { ino, word0, word1 });
        }
        Ok(extent)
    }

    /// First file block after the extent.
    pub fn end(&self) -> FileBlock {
        FileBlock(self.file_block.0 + u64::from(self.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_into_two_words() {
        let geometry = Geometry {
            block_bits: 12,
            ag_bits: 20,
            region_bits: 15,
            ag_count: 1 << 20,
            block_count: 1 << 40,
            chunk_blocks: 8,
            has_checksums: false,
            bodies_follow: true,
            has_bitmap: false,
            table_every: 0,
            map: crate::choices::Map::Extents,
            fragment_bits: 0,
        };
        let extent = Extent {
            file_block: FileBlock((1 << 53) + 5),
            start: FsBlock((1 << 39) + 1234),
            length: 77,
            unwritten: true,
        };
        let raw = extent.encode();
        assert_eq!(Extent::decode(&raw, &geometry, Ino(1)), Ok(extent));
        let mut bad = raw;
        bad.word1 = U64::new(raw.word1.get() | 0x10);
        assert!(Extent::decode(&bad, &geometry, Ino(1)).is_err());
    }
}
