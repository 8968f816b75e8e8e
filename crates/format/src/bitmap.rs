//! Bitmaps of a group: of its blocks (`space=bitmap`) and of the inodes of its table (`inodes=static`).
//!
//! A bitmap lies in units of 512 bytes, each with 3968 bits; bit i of unit u of the bitmap is number u * 3968 + i. A bit that is set says *free*. What does not
//! exist, past the end of the group or of its table, and the blocks that are never free, have clear bits.
//!
//! After the fixed blocks and the table of checksums of a group follow, where the volume has them: its bitmap of blocks, its bitmap of inodes, its inode
//! table (`table`).

use crate::unit::{UNIT_ROOM, UNIT_SIZE, UnitHeader};
use crate::{AgNo, Geometry};

/// Bits of a unit.
pub const UNIT_BITS: u32 = UNIT_ROOM as u32 * 8;

/// Most blocks that the bitmaps of a group have: they are made in one transaction.
pub const BLOCKS_MAX: u32 = 256;

/// Where a bit lies: block of the bitmap, byte in the block, bit in the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitPlace {
    pub block: u32,
    pub byte: usize,
    pub bit: u32,
}

impl Geometry {
    /// Units of a block.
    pub fn units_per_block(&self) -> u32 {
        (self.block_size() / UNIT_SIZE) as u32
    }

    /// Bits that one block of a bitmap holds.
    pub fn bits_per_block(&self) -> u32 {
        self.units_per_block() * UNIT_BITS
    }

    /// Where bit `index` of a bitmap lies.
    pub fn bit_place(&self, index: u32) -> BitPlace {
        let (block, in_block) = (index / self.bits_per_block(), index % self.bits_per_block());
        let (unit, bit) = (in_block / UNIT_BITS, in_block % UNIT_BITS);
        let byte = unit as usize * UNIT_SIZE + UnitHeader::SIZE + bit as usize / 8;
        BitPlace { block, byte, bit: bit % 8 }
    }

    /// Blocks of a group's bitmap of blocks; 0 on a volume without.
    pub fn block_bitmap_blocks(&self, ag: AgNo) -> u32 {
        if self.has_bitmap { self.blocks_in(ag).div_ceil(self.bits_per_block()) } else { 0 }
    }

    /// Group-relative first block of a group's bitmap of blocks.
    pub fn block_bitmap_start(&self, ag: AgNo) -> u32 {
        crate::group::FIXED_BLOCKS + self.checksum_blocks(ag)
    }

    /// Blocks of a group's bitmap of inodes; 0 on a volume without.
    pub fn inode_bitmap_blocks(&self, ag: AgNo) -> u32 {
        self.table_inodes(ag).div_ceil(self.bits_per_block())
    }

    /// Group-relative first block of a group's bitmap of inodes.
    pub fn inode_bitmap_start(&self, ag: AgNo) -> u32 {
        self.block_bitmap_start(ag) + self.block_bitmap_blocks(ag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::testing::geometry;

    #[test]
    fn every_bit_has_a_place_of_its_own_outside_the_headers() {
        for block_bits in [9, 12, 16] {
            let geometry = geometry(block_bits);
            let mut last = None;
            for index in 0..3 * geometry.bits_per_block() {
                let place = geometry.bit_place(index);
                let now = (place.block, place.byte, place.bit);
                assert!(last < Some(now), "{index}");
                last = Some(now);
                assert!(place.byte % UNIT_SIZE >= UnitHeader::SIZE && place.byte < geometry.block_size());
            }
            assert_eq!(last.unwrap().0, 2);
        }
    }
}
