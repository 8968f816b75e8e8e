//! Checksums of file data: a table in each group, a CRC32C for each of the group's blocks.
//!
//! The table follows the group's fixed blocks. Its blocks are metadata like any other; they are made when the first file
//! block that they speak of is written, a 64th of the table at a time (`GroupHeader::checksums_made`).

use crate::group::FIXED_BLOCKS;
use crate::on_disk::on_disk;
use crate::{AgBlock, AgNo, FsBlock, Geometry};
use std::ops::Range;
use zerocopy::little_endian::U32;

/// Parts of a group's table that are made at once: the bits of `GroupHeader::checksums_made`.
pub const PARTS: u32 = 64;
/// Largest table of a group, in blocks: what one transaction makes of it at once must be little.
pub const TABLE_BLOCKS_MAX: u32 = 16 * PARTS;

on_disk! {
    /// A block of the table of checksums. The checksums follow, 4 bytes each, of neighbouring blocks of the group.
    pub struct ChecksumHeader: 64 {
        0 => header: crate::header::BlockHeader,
        /// Group-relative block that the first checksum is of.
        48 => first: U32,
        52 => reserved: [u8; 12],
    }
}

/// CRC32C of a block of file data, all of it: also what lies past the end of the file.
pub fn of(block: &[u8]) -> u32 {
    crc32c::crc32c(block)
}

/// Checksum number `index` of a block of the table.
pub fn read(table: &[u8], index: u32) -> u32 {
    let at = offset(index);
    u32::from_le_bytes(table[at..at + 4].try_into().expect("four bytes"))
}

/// Byte of a block of the table at which checksum number `index` lies.
pub fn offset(index: u32) -> usize {
    ChecksumHeader::SIZE + index as usize * 4
}

impl Geometry {
    /// Checksums that one block of the table holds.
    pub fn checksums_per_block(&self) -> u32 {
        ((self.block_size() - ChecksumHeader::SIZE) / 4) as u32
    }

    /// Blocks of a group's table of checksums; 0 on a volume without.
    #[inline]
    pub fn checksum_blocks(&self, ag: AgNo) -> u32 {
        if self.has_checksums { self.blocks_in(ag).div_ceil(self.checksums_per_block()) } else { 0 }
    }

    /// Where the checksum of a block lies: block of the table, and number in it.
    pub fn checksum_of(&self, block: FsBlock) -> (FsBlock, u32) {
        let per_block = self.checksums_per_block();
        let at = self.ag_block_of(block).0;
        (self.fs_block(self.ag_of(block), AgBlock(FIXED_BLOCKS + at / per_block)), at % per_block)
    }

    /// Blocks of the group's table, counted from its start, that part `part` consists of; none past its end.
    pub fn checksum_part(&self, ag: AgNo, part: u32) -> Range<u32> {
        let blocks = self.checksum_blocks(ag);
        let each = blocks.div_ceil(PARTS);
        (part * each).min(blocks)..((part + 1) * each).min(blocks)
    }

    /// The part of the group's table that block `index` of it belongs to.
    pub fn checksum_part_of(&self, ag: AgNo, index: u32) -> u32 {
        index / self.checksum_blocks(ag).div_ceil(PARTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_a_place_of_its_own_in_its_groups_table() {
        for (block_bits, ag_bits, block_count) in
            [(9, 16, (1 << 17) + 64), (12, 18, (1 << 19) + 1000), (16, 10, 1 << 12)]
        {
            let geometry = Geometry {
                block_bits,
                ag_bits,
                region_bits: ag_bits,
                ag_count: u64::div_ceil(block_count, 1 << ag_bits) as u32,
                block_count,
                chunk_blocks: 8,
                has_checksums: true,
                bodies_follow: true,
                has_bitmap: false,
                table_every: 0,
                map: crate::choices::Map::Extents,
                fragment_bits: 0,
            };
            let mut last = None;
            for block in (0..block_count).map(FsBlock) {
                let (table, index) = geometry.checksum_of(block);
                assert!(last < Some((table, index)));
                last = Some((table, index));
                assert!(offset(index) + 4 <= geometry.block_size());
                let (ag, at) = (geometry.ag_of(table), geometry.ag_block_of(table).0);
                assert_eq!(ag, geometry.ag_of(block));
                assert!((FIXED_BLOCKS..geometry.first_data_block(ag)).contains(&at));
                let part = geometry.checksum_part_of(ag, at - FIXED_BLOCKS);
                assert!(part < PARTS && geometry.checksum_part(ag, part).contains(&(at - FIXED_BLOCKS)));
            }
            let ag = AgNo(0);
            let parts: u32 = (0..PARTS).map(|part| geometry.checksum_part(ag, part).len() as u32).sum();
            assert_eq!(parts, geometry.checksum_blocks(ag));
        }
    }
}
