//! Blocks made of units: 512 bytes each, sealed one by one.
//!
//! A device writes 512 bytes as one, and a block may be torn between two of them. The log heals a torn block; orders without a log have nothing
//! to heal it with. So the structures that such orders use, those of FFS, are made of units: each says what it is and whose, and has a checksum of
//! its own, so that a torn block costs at most the units whose change was under way, never their neighbours.
//!
//! A block of units has no [`crate::BlockHeader`]. All its units are of one kind, and begin with the magic number of that kind. What a header says of
//! volume and address is in the checksum's seed: a unit of another volume, or one that a misdirected write brought, has a wrong checksum.

use crate::choices::Map;
use crate::kind::BlockKind;
use crate::on_disk::on_disk;
use crate::{Corrupt, FsBlock, Geometry};
use zerocopy::little_endian::{U32, U64};

/// Bytes of a unit: what a device writes as one.
pub const UNIT_SIZE: usize = 512;
/// Bytes of a unit that its structure has.
pub const UNIT_ROOM: usize = UNIT_SIZE - UnitHeader::SIZE;

on_disk! {
    /// Start of a unit.
    pub struct UnitHeader: 16 {
        /// Kind of the unit, a `BlockKind`.
        0 => magic: U32,
        /// CRC32C of the volume's UUID, the block's number (8 bytes), the unit's number in it (4), then the unit with this field taken as zero.
        4 => crc: U32,
        /// Whose it is: number of the group, or inode number.
        8 => owner: U64,
    }
}

/// The checksum of a unit of a block.
pub fn checksum(unit: &[u8], volume: &[u8; 16], block: FsBlock, number: u32) -> u32 {
    let mut seed = [0; 28];
    seed[..16].copy_from_slice(volume);
    seed[16..24].copy_from_slice(&block.0.to_le_bytes());
    seed[24..].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&seed);
    let crc = crc32c::crc32c_append(crc, &unit[..4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &unit[8..])
}

/// Starts a block of units: their headers filled in, the rest zero.
pub(crate) fn init(bytes: &mut [u8], kind: BlockKind, owner: u64) {
    bytes.fill(0);
    for unit in bytes.chunks_exact_mut(UNIT_SIZE) {
        let header = UnitHeader::read_mut(unit);
        header.magic = U32::new(kind.magic());
        header.owner = U64::new(owner);
    }
}

/// Sets the checksum of each unit of a block.
pub(crate) fn seal(bytes: &mut [u8], volume: &[u8; 16], block: FsBlock) {
    for (number, unit) in bytes.chunks_exact_mut(UNIT_SIZE).enumerate() {
        let crc = checksum(unit, volume, block, number as u32);
        UnitHeader::read_mut(unit).crc = U32::new(crc);
    }
}

/// Verifies a unit: kind and checksum, and with that volume and address. The owner is the caller's to compare.
pub fn verify_one(unit: &[u8], kind: BlockKind, volume: &[u8; 16], block: FsBlock, number: u32) -> Result<(), Corrupt> {
    let header = UnitHeader::read(unit);
    if header.magic.get() != kind.magic() {
        return Err(Corrupt::BlockKind { block, expected: kind.name(), found: header.magic.get() });
    }
    let computed = checksum(unit, volume, block, number);
    if header.crc.get() != computed {
        return Err(Corrupt::UnitCrc { block, unit: number, stored: header.crc.get(), computed });
    }
    Ok(())
}

/// The kind of the units of a block, though its first one may be damaged: a log can have changes of the others. What lies in its group's fixed place
/// is known by that. Elsewhere it is what the first bytes say of `laid`, the block with the log's changes; or where they say nothing, what the first unit
/// is that was right in `home`, the block without them. `None`: it has no units.
pub fn kind_of(geometry: &Geometry, volume: &[u8; 16], block: FsBlock, home: &[u8], laid: &[u8]) -> Option<BlockKind> {
    let told = BlockKind::of(laid).filter(|kind| kind.is_of_units());
    if let Some(kind) = geometry.units_at(block).or(told) {
        return Some(kind);
    }
    if BlockKind::of(laid).is_some() {
        return None;
    }
    home.chunks_exact(UNIT_SIZE).enumerate().find_map(|(number, unit)| {
        let may_be = |kind: &BlockKind| match kind {
            BlockKind::Pointers => geometry.map == Map::Blocks,
            kind => *kind == BlockKind::LinearEntries,
        };
        let kind = BlockKind::of(unit).filter(may_be)?;
        verify_one(unit, kind, volume, block, number as u32).is_ok().then_some(kind)
    })
}

/// Verifies all units of a block; the error is that of the first one that is wrong.
pub(crate) fn verify(bytes: &[u8], kind: BlockKind, volume: &[u8; 16], block: FsBlock) -> Result<(), Corrupt> {
    bytes
        .chunks_exact(UNIT_SIZE)
        .enumerate()
        .try_for_each(|(number, unit)| verify_one(unit, kind, volume, block, number as u32))
}

/// Compares the owner that each unit of a verified block says it has.
pub(crate) fn verify_owner(bytes: &[u8], block: FsBlock, owner: u64) -> Result<(), Corrupt> {
    match bytes.chunks_exact(UNIT_SIZE).map(|unit| UnitHeader::read(unit).owner.get()).find(|&stored| stored != owner) {
        Some(stored) => Err(Corrupt::BlockOwner { block, stored, expected: owner }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AgBlock, AgNo, header};

    const KIND: BlockKind = BlockKind::BlockBitmap;
    const VOLUME: [u8; 16] = [7; 16];

    #[test]
    fn the_first_unit_need_not_say_what_its_block_is() {
        let geometry = Geometry { map: Map::Blocks, ..crate::table::testing::geometry(12) };
        let ag = AgNo(1);
        let [bitmap, inodes, table, free] = [
            geometry.block_bitmap_start(ag),
            geometry.inode_bitmap_start(ag),
            geometry.table_start(ag),
            geometry.first_data_block(ag),
        ]
        .map(|at| geometry.fs_block(ag, AgBlock(at)));
        let zeros = vec![0; 4096];
        let kind = |block, bytes: &[u8]| kind_of(&geometry, &VOLUME, block, bytes, bytes);
        assert_eq!(kind(bitmap, &zeros), Some(BlockKind::BlockBitmap));
        assert_eq!(kind(inodes, &zeros), Some(BlockKind::InodeBitmap));
        assert_eq!(kind(table, &zeros), Some(BlockKind::InodeTable));
        assert_eq!(kind(FsBlock(table.0 - geometry.ag_blocks() as u64), &zeros), Some(BlockKind::InodeTable));
        assert_eq!(kind(free, &zeros), None);
        assert_eq!(kind(geometry.fs_block(ag, AgBlock(1)), &zeros), None);
        for units in [BlockKind::Pointers, BlockKind::LinearEntries] {
            let mut block = vec![0; 4096];
            header::init(&mut block, units, VOLUME, 3, free);
            header::seal_at(&mut block, &VOLUME, free, 5);
            block[..3 * UNIT_SIZE].fill(0);
            assert_eq!(kind(free, &block), Some(units));
            assert_eq!(kind(FsBlock(free.0 + 1), &block), None, "they are another block's");
            block[..4].copy_from_slice(&BlockKind::Attributes.magic().to_le_bytes());
            assert_eq!(kind(free, &block), None);
        }
    }

    #[test]
    fn damage_of_a_unit_is_found_and_its_neighbours_are_sound() {
        let mut block = vec![0; 4096];
        header::init(&mut block, KIND, VOLUME, 3, FsBlock(9));
        block[700] = 1;
        header::seal_at(&mut block, &VOLUME, FsBlock(9), 5);
        let check = |bytes: &[u8], at| header::verify(bytes, KIND, &VOLUME, FsBlock(at));
        assert_eq!(check(&block, 9), Ok(()));
        assert!(matches!(check(&block, 10), Err(Corrupt::UnitCrc { unit: 0, .. })), "another block");
        assert!(header::verify(&block, KIND, &[8; 16], FsBlock(9)).is_err(), "another volume");
        assert!(matches!(header::verify_owner(&block, FsBlock(9), 4), Err(Corrupt::BlockOwner { .. })));
        assert_eq!(header::verify_owner(&block, FsBlock(9), 3), Ok(()));
        for at in [0, 4, 8, 15, 16, 511] {
            let mut torn = block.clone();
            torn[3 * UNIT_SIZE + at] ^= 1;
            assert!(check(&torn, 9).is_err(), "byte {at}");
            for (number, unit) in torn.chunks(UNIT_SIZE).enumerate() {
                let sound = verify_one(unit, KIND, &VOLUME, FsBlock(9), number as u32).is_ok();
                assert_eq!(sound, number != 3, "byte {at}, unit {number}");
            }
        }
        // Two units that changed places.
        let mut moved = block.clone();
        moved.copy_within(UNIT_SIZE..2 * UNIT_SIZE, 0);
        assert!(check(&moved, 9).is_err());
    }
}
