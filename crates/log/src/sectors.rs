//! Single sectors of a volume that is written without a log: units, and the superblock. Each is changed at its place; which ones, and to what, the
//! caller knows.

use crate::place::LogError;
use myriad_device::{AlignedBuf, BlockDevice};
use myriad_format::superblock::{Superblock, SuperblockError};
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{BlockKind, Corrupt, FsBlock, Geometry, header};

/// Reads a unit of a block. It is not verified.
pub fn read_unit(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    block: FsBlock,
    number: u32,
) -> Result<[u8; UNIT_SIZE], LogError> {
    let (_, sector, within) = sector_of(device, geometry, block, number)?;
    let mut bytes = [0; UNIT_SIZE];
    bytes.copy_from_slice(&sector[within..][..UNIT_SIZE]);
    Ok(bytes)
}

/// Writes units of blocks, durably; what else lies in their sectors stays. Each is given with its block and its number there, sealed.
pub fn write_units(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    units: &[(FsBlock, u32, [u8; UNIT_SIZE])],
) -> Result<(), LogError> {
    for (block, number, bytes) in units {
        let (offset, mut sector, within) = sector_of(device, geometry, *block, *number)?;
        sector[within..][..UNIT_SIZE].copy_from_slice(bytes);
        device.write(offset, &sector).map_err(|source| LogError::Io { op: "write", offset, source })?;
    }
    device.flush().map_err(|source| LogError::Io { op: "flush", offset: 0, source })
}

/// The sectors of the device that a unit lies in: where they begin, what they hold, and where in them the unit begins.
fn sector_of(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    block: FsBlock,
    number: u32,
) -> Result<(u64, AlignedBuf, usize), LogError> {
    let length = device.alignment().max(UNIT_SIZE);
    let at = (block.0 << geometry.block_bits) + u64::from(number) * UNIT_SIZE as u64;
    let within = at % length as u64;
    let offset = at - within;
    let mut sector = AlignedBuf::zeroed(length);
    device.read(offset, &mut sector).map_err(|source| LogError::Io { op: "read", offset, source })?;
    Ok((offset, sector, within as usize))
}

/// Changes the superblock on the device, durably; all else in it stays as it is there. One that is damaged, or of another volume, is left alone: sealed
/// anew, it would count.
pub fn change_superblock(
    device: &dyn BlockDevice,
    volume: [u8; 16],
    change: impl FnOnce(&mut Superblock),
) -> Result<(), LogError> {
    let mut sector = AlignedBuf::zeroed(device.alignment().max(Superblock::SIZE));
    device.read(0, &mut sector).map_err(|source| LogError::Io { op: "read", offset: 0, source })?;
    let block = FsBlock(0);
    let found = Superblock::read(&sector).header.magic.get();
    match Superblock::decode(&sector, block) {
        Ok(superblock) if superblock.volume() == volume => {}
        Ok(_) => return Err(Corrupt::BlockVolume { block }.into()),
        Err(SuperblockError::Corrupt(corrupt)) => return Err(corrupt.into()),
        Err(SuperblockError::Foreign | SuperblockError::Incompatible(_)) => {
            return Err(Corrupt::BlockKind { block, expected: BlockKind::Superblock.name(), found }.into());
        }
    }
    change(Superblock::read_mut(&mut sector));
    header::seal(&mut sector, 0);
    device.write_durable(0, &sector).map_err(|source| LogError::Io { op: "write", offset: 0, source })
}
