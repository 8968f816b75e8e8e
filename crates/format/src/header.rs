//! The header at the start of every metadata block but those of units (`unit`): what it is, whose, where, as of when, and whether it is
//! intact.

use crate::kind::{self, BlockKind};
use crate::on_disk::on_disk;
use crate::{Corrupt, FsBlock, unit};
use zerocopy::little_endian::{U32, U64};

on_disk! {
    /// Start of every metadata block that is not made of units.
    pub struct BlockHeader: 48 {
        /// Kind of block, see `BlockKind`.
        0 => magic: U32,
        /// CRC32C of the whole block (the superblock: of its first 512 bytes) with this field taken as zero.
        4 => crc: U32,
        /// The volume's UUID: a block left over from an earlier mkfs is never believed.
        8 => volume: [u8; 16],
        /// Inode number of the file or directory, or number of the allocation group, that the block belongs to.
        24 => owner: U64,
        /// The block's own address: a misdirected write is found.
        32 => address: U64,
        /// A log position: of the oldest checkpoint whose changes were not home before; of the log's head for blocks written
        /// from a copy of the whole; 0 without a log, and in the superblock as mkfs, opening and closing write it.
        40 => lsn: U64,
    }
}

/// Whether a metadata block is made of units.
#[inline]
fn is_of_units(block: &[u8]) -> bool {
    kind::is_of_units(kind::magic_of(block))
}

/// CRC32C of `bytes`, a whole metadata block, with its checksum field taken as zero.
pub fn checksum(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[8..])
}

/// Starts a metadata block: header filled in, the rest zero. The checksum comes with [`seal`], at the write.
pub fn init(block: &mut [u8], kind: BlockKind, volume: [u8; 16], owner: u64, address: FsBlock) {
    if kind.is_of_units() {
        return unit::init(block, kind, owner);
    }
    block.fill(0);
    let header = BlockHeader::read_mut(block);
    header.magic = U32::new(kind.magic());
    header.volume = volume;
    header.owner = U64::new(owner);
    header.address = U64::new(address.0);
}

/// Sets the checksum of a metadata block of any kind, and its LSN if it has one: the last step before it is written.
pub fn seal_at(block: &mut [u8], volume: &[u8; 16], address: FsBlock, lsn: u64) {
    if is_of_units(block) { unit::seal(block, volume, address) } else { seal(block, lsn) }
}

/// As [`seal_at`], but the LSN stays as it is: after a change that has no place in the log.
pub fn reseal(block: &mut [u8], volume: &[u8; 16], address: FsBlock) {
    let lsn = BlockHeader::read(block).lsn.get();
    seal_at(block, volume, address, lsn);
}

/// Sets LSN and checksum of a block that has a header.
pub fn seal(block: &mut [u8], lsn: u64) {
    debug_assert!(!is_of_units(block), "units are sealed one by one");
    let kind = BlockKind::of(block);
    let len = kind.map_or(block.len(), |kind| kind.checked_len(block.len()));
    BlockHeader::read_mut(block).lsn = U64::new(lsn);
    let crc = checksum(&block[..len]);
    BlockHeader::read_mut(block).crc = U32::new(crc);
}

/// Verifies a block just read: kind, checksum, volume and address. The owner is the caller's to compare.
pub fn verify(block: &[u8], kind: BlockKind, volume: &[u8; 16], address: FsBlock) -> Result<(), Corrupt> {
    if kind.is_of_units() {
        return unit::verify(block, kind, volume, address);
    }
    let header = BlockHeader::read(block);
    if header.magic.get() != kind.magic() {
        return Err(Corrupt::BlockKind { block: address, expected: kind.name(), found: header.magic.get() });
    }
    let computed = checksum(&block[..kind.checked_len(block.len())]);
    if header.crc.get() != computed {
        return Err(Corrupt::BlockCrc { block: address, stored: header.crc.get(), computed });
    }
    if header.volume != *volume {
        return Err(Corrupt::BlockVolume { block: address });
    }
    if header.address.get() != address.0 {
        return Err(Corrupt::BlockAddress { block: address, stored: header.address.get() });
    }
    Ok(())
}

/// The LSN of a metadata block, if its kind has one.
pub fn lsn_of(block: &[u8]) -> Option<u64> {
    (!is_of_units(block)).then(|| BlockHeader::read(block).lsn.get())
}

/// Compares the owner of a verified block.
#[inline]
pub fn verify_owner(block: &[u8], address: FsBlock, owner: u64) -> Result<(), Corrupt> {
    if is_of_units(block) {
        return unit::verify_owner(block, address, owner);
    }
    let stored = BlockHeader::read(block).owner.get();
    if stored != owner {
        return Err(Corrupt::BlockOwner { block: address, stored, expected: owner });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_damage_is_found() {
        let volume = [7; 16];
        let mut block = vec![0; 4096];
        init(&mut block, BlockKind::Group, volume, 3, FsBlock(9));
        seal(&mut block, 5);
        let check = |block: &[u8], at| verify(block, BlockKind::Group, &volume, FsBlock(at));
        assert_eq!(check(&block, 9), Ok(()));
        assert!(matches!(check(&block, 10), Err(Corrupt::BlockAddress { .. })));
        assert!(matches!(verify(&block, BlockKind::Inode, &volume, FsBlock(9)), Err(Corrupt::BlockKind { .. })));
        assert!(matches!(verify(&block, BlockKind::Group, &[8; 16], FsBlock(9)), Err(Corrupt::BlockVolume { .. })));
        assert!(matches!(verify_owner(&block, FsBlock(9), 4), Err(Corrupt::BlockOwner { .. })));
        for at in [0, 4, 40, 47, 48, 4095] {
            let mut torn = block.clone();
            torn[at] ^= 1;
            assert!(check(&torn, 9).is_err(), "byte {at}");
        }
    }
}
