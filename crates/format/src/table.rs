//! The inode table of a group (`inodes=static`): inodes of 248 bytes, two a unit, at places that mkfs fixed.
//!
//! The group's header counts how many blocks of the table have been initialised (`inode_blocks`), from the first one on; what lies past them was never written.
//! An inode of the table is a [`crate::inode::RawInode`] and 15 pointers, which `map=blockmap` uses. It has no body: a file's attributes and a long link's target lie in blocks.
//!
//! The inode number is the block and a slot, as of other inodes; the slot is 4 times the unit plus 1 or 2.

use crate::group::FIXED_BLOCKS;
use crate::inode::{BODY_SLOTS_MAX, RawInode};
use crate::unit::{UNIT_SIZE, UnitHeader};
use crate::{AgBlock, AgNo, BlockKind, FsBlock, Geometry, Ino, SLOT_SIZE};

/// Inodes of a unit.
pub const UNIT_INODES: u32 = 2;
/// Slots that a unit takes of an inode's number; its inodes have the second and the third.
pub const UNIT_SLOTS: u32 = 4;
/// Bytes of an inode of the table.
pub const INODE_SIZE: usize = 248;
/// Where the pointers of an inode begin, counted from the inode.
pub const POINTERS_OFFSET: usize = RawInode::SIZE;
/// Pointers of an inode: direct ones, then one to a block of pointers, to one of such blocks, and to one of those.
pub const POINTERS: usize = (INODE_SIZE - POINTERS_OFFSET) / 8;
/// Direct pointers among them.
pub const DIRECT: usize = POINTERS - 3;

/// Least and most blocks of a group for which its table has one block.
pub const EVERY_MIN: u32 = 4;
pub const EVERY_MAX: u32 = 1 << 16;
/// Bytes of the volume for which there is one inode, where a table has a block for each block of the group.
pub const BYTES_PER_INODE_UNIT: u64 = UNIT_SIZE as u64 / UNIT_INODES as u64;

const _: () = assert!(UnitHeader::SIZE + UNIT_INODES as usize * INODE_SIZE == UNIT_SIZE && POINTERS == 15);

impl Geometry {
    #[inline]
    pub fn has_table(&self) -> bool {
        self.table_every != 0
    }

    /// Bytes of the volume for which there is one inode in a table.
    pub fn bytes_per_inode(&self) -> u64 {
        u64::from(self.table_every) * BYTES_PER_INODE_UNIT
    }

    /// Blocks of a group's inode table; 0 on a volume without.
    pub fn table_blocks(&self, ag: AgNo) -> u32 {
        if self.has_table() { self.blocks_in(ag).div_ceil(self.table_every) } else { 0 }
    }

    /// Inodes of a block of the table.
    pub fn table_inodes_per_block(&self) -> u32 {
        self.units_per_block() * UNIT_INODES
    }

    /// Inodes of a group's table.
    pub fn table_inodes(&self, ag: AgNo) -> u32 {
        self.table_blocks(ag) * self.table_inodes_per_block()
    }

    /// Group-relative first block of a group's inode table.
    pub fn table_start(&self, ag: AgNo) -> u32 {
        self.inode_bitmap_start(ag) + self.inode_bitmap_blocks(ag)
    }

    /// The group's first block that lies at no fixed place: past its fixed blocks, table of checksums, bitmaps and inode table.
    #[inline]
    pub fn first_data_block(&self, ag: AgNo) -> u32 {
        if self.has_bitmap || self.has_table() {
            self.table_start(ag) + self.table_blocks(ag)
        } else {
            FIXED_BLOCKS + self.checksum_blocks(ag)
        }
    }

    /// Group-relative block and slot of inode `index` of a group's table.
    pub fn table_place(&self, ag: AgNo, index: u32) -> (AgBlock, u32) {
        let each = self.table_inodes_per_block();
        let (block, in_block) = (index / each, index % each);
        (AgBlock(self.table_start(ag) + block), in_block / UNIT_INODES * UNIT_SLOTS + 1 + in_block % UNIT_INODES)
    }

    /// Which inode of its group's table has this place; `None` if none has.
    pub fn table_index(&self, block: FsBlock, slot: u32) -> Option<u32> {
        let (ag, at) = (self.ag_of(block), self.ag_block_of(block).0);
        let block = at.checked_sub(self.table_start(ag)).filter(|&block| block < self.table_blocks(ag))?;
        let (unit, half) = (slot / UNIT_SLOTS, (slot % UNIT_SLOTS).checked_sub(1).filter(|&half| half < UNIT_INODES)?);
        (unit < self.units_per_block()).then(|| block * self.table_inodes_per_block() + unit * UNIT_INODES + half)
    }

    /// What a block of inodes is.
    #[inline]
    pub fn inode_kind(&self) -> BlockKind {
        if self.has_table() { BlockKind::InodeTable } else { BlockKind::Inode }
    }

    /// What the units of a block are that lies in its group's fixed place for them; `None` elsewhere.
    pub fn units_at(&self, block: FsBlock) -> Option<BlockKind> {
        if block.0 >= self.block_count {
            return None;
        }
        let (ag, at) = (self.ag_of(block), self.ag_block_of(block).0);
        let lies_in = |start: u32, blocks: u32| (start..start + blocks).contains(&at);
        [
            (self.block_bitmap_start(ag), self.block_bitmap_blocks(ag), BlockKind::BlockBitmap),
            (self.inode_bitmap_start(ag), self.inode_bitmap_blocks(ag), BlockKind::InodeBitmap),
            (self.table_start(ag), self.table_blocks(ag), BlockKind::InodeTable),
        ]
        .into_iter()
        .find_map(|(start, blocks, kind)| lies_in(start, blocks).then_some(kind))
    }

    /// Byte of its block at which the inode in a slot begins.
    #[inline]
    pub fn inode_offset(&self, slot: u32) -> usize {
        if self.has_table() {
            debug_assert!((1..=2).contains(&(slot % 4)));
            (slot / 4) as usize * UNIT_SIZE + UnitHeader::SIZE + ((slot % 4) as usize - 1) * INODE_SIZE
        } else {
            slot as usize * SLOT_SIZE
        }
    }

    /// Bytes that an inode has in its place. Those of a table have pointers behind what every inode has.
    pub fn inode_bytes(&self) -> usize {
        if self.has_table() { INODE_SIZE } else { RawInode::SIZE }
    }

    /// Slots of the largest body: what the format allows and a block has beside its header and the inode. Inodes of a table have
    /// no slots beside them.
    pub fn body_slots_max(&self) -> u32 {
        if self.has_table() { 0 } else { (BODY_SLOTS_MAX as u32).min(self.slots_per_block() - 2) }
    }

    /// Where the pointers behind an inode lie: block, and byte of the first one. `None` if there are none, or no such inode.
    pub fn pointers_place(&self, ino: Ino) -> Option<(FsBlock, usize)> {
        let (block, slot) = self.locate(ino).filter(|_| self.has_table())?;
        Some((block, self.inode_offset(slot) + POINTERS_OFFSET))
    }

    /// Inodes that the volume's tables have room for; `None` where an inode is made of free blocks.
    pub fn inodes_max(&self) -> Option<u64> {
        let last = AgNo(self.ag_count - 1);
        let before = u64::from(last.0) * u64::from(self.table_inodes(AgNo(0)));
        self.has_table().then(|| before + u64::from(self.table_inodes(last)))
    }

    /// The slots of a block in which inodes begin, or may.
    pub fn inode_slots(&self) -> impl Iterator<Item = u32> + use<> {
        let has_table = self.has_table();
        (1..self.slots_per_block()).filter(move |slot| !has_table || matches!(slot % 4, 1 | 2))
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::Geometry;

    /// Of a volume with bitmaps and tables.
    pub fn geometry(block_bits: u32) -> Geometry {
        Geometry {
            block_bits,
            ag_bits: 12,
            region_bits: 10,
            ag_count: 3,
            block_count: 4096 * 2 + 100,
            chunk_blocks: 8,
            has_checksums: false,
            bodies_follow: false,
            has_bitmap: true,
            table_every: 32,
            map: crate::choices::Map::Blocks,
            fragment_bits: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What depends on where inodes lie is asked here and nowhere else.
    #[test]
    fn inodes_of_a_table_have_pointers_and_no_bodies_and_others_have_the_reverse() {
        for (block_bits, body_slots_max) in [(9, 2), (12, 7), (16, 7)] {
            let table = testing::geometry(block_bits);
            let chunks = Geometry { table_every: 0, ..table };
            let ino = table.ino(table.fs_block(AgNo(1), AgBlock(table.table_start(AgNo(1)))), 1);
            assert_eq!((table.inode_bytes(), chunks.inode_bytes()), (INODE_SIZE, RawInode::SIZE));
            assert_eq!(table.body_slots_max(), 0);
            // The header's slot and one inode are beside the body.
            assert_eq!(chunks.body_slots_max(), body_slots_max);
            let (block, at) = table.pointers_place(ino).unwrap();
            assert_eq!((block, at), (table.locate(ino).unwrap().0, UnitHeader::SIZE + RawInode::SIZE));
            assert!(chunks.locate(ino).is_some() && chunks.pointers_place(ino).is_none());
            let all: u64 = (0..3).map(|ag| u64::from(table.table_inodes(AgNo(ag)))).sum();
            assert_eq!((table.inodes_max(), chunks.inodes_max()), (Some(all), None));
        }
    }

    #[test]
    fn every_inode_has_a_place_and_a_number_of_its_own() {
        for block_bits in [9, 12, 16] {
            let geometry = testing::geometry(block_bits);
            for ag in (0..geometry.ag_count).map(AgNo) {
                let inodes = geometry.table_inodes(ag);
                assert!(inodes >= geometry.blocks_in(ag) / 32 * 2);
                let mut last = None;
                for index in 0..inodes {
                    let (at, slot) = geometry.table_place(ag, index);
                    let block = geometry.fs_block(ag, at);
                    assert!(at.0 < geometry.first_data_block(ag));
                    let ino = geometry.ino(block, slot);
                    assert!(last < Some(ino), "{index}");
                    last = Some(ino);
                    assert_eq!(geometry.locate(ino), Some((block, slot)));
                    assert_eq!(geometry.table_index(block, slot), Some(index));
                    assert!(geometry.pointers_place(ino).is_some_and(|place| place.0 == block));
                    let offset = geometry.inode_offset(slot);
                    assert!(offset % UNIT_SIZE >= UnitHeader::SIZE && offset % UNIT_SIZE + INODE_SIZE <= UNIT_SIZE);
                }
                let start = geometry.fs_block(ag, AgBlock(geometry.table_start(ag)));
                for (block, slot) in [(start, 3), (start, 0), (FsBlock(start.0 - 1), 1)] {
                    assert_eq!(geometry.table_index(block, slot), None);
                    assert!(
                        block != start || geometry.locate(Ino(start.0 << (block_bits - 7) | u64::from(slot))).is_none()
                    );
                }
            }
        }
    }
}
