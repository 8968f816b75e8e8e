//! Blocks made of units: 512 bytes each, sealed one by one.
//!
//! A device writes 512 bytes as one, and a block may be torn between two of them. The log heals a torn block; orders without a log have nothing
//! to heal it with. So the structures that such orders use, those of FFS, are made of units: each says what it is and whose, and has a checksum of
//! its own, so that a torn block costs at most the units whose change was under way, never their neighbours.
//!
//! A block of units has no [`crate::BlockHeader`]. All its units are of one kind, and begin with the magic number of that kind. What a header says of
//! volume and address is in the checksum's seed: a unit of another volume, or one that a misdirected write brought, has a wrong checksum.

use crate::kind::BlockKind;
use crate::on_disk::on_disk;
use crate::{Corrupt, FsBlock};
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
    use crate::header;

    const KIND: BlockKind = BlockKind::BlockBitmap;
    const VOLUME: [u8; 16] = [7; 16];

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
