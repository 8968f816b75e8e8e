//! The superblock, or the best copy of it.

use crate::io::read_at;
use crate::run::CheckError;
use myriad_device::BlockDevice;
use myriad_format::group::HEADER_BLOCK;
use myriad_format::superblock::{Superblock, SuperblockError};
use myriad_format::{AG_BLOCKS_MIN, AgBlock, AgNo, BlockHeader, BlockKind, Corrupt, FsBlock};

/// log2 of the smallest and largest block.
const BLOCK_BITS_MIN: u32 = 9;
const BLOCK_BITS_MAX: u32 = 16;

/// The superblock, and what is wrong with the one in block 0 if a copy had to stand in.
pub(crate) fn find(device: &dyn BlockDevice) -> Result<(Superblock, Option<Corrupt>), CheckError> {
    if device.size() < Superblock::SIZE as u64 {
        return Err(CheckError::Foreign);
    }
    let mut bytes = vec![0; Superblock::SIZE];
    let unreadable = read_at(device, 0, &mut bytes).err();
    let (superblock, damage) = match Superblock::decode(&bytes, FsBlock(0)) {
        Ok(superblock) => (superblock, None),
        Err(SuperblockError::Incompatible(incompatible)) => return Err(incompatible.into()),
        Err(error) => {
            let damage = match error {
                SuperblockError::Corrupt(corrupt) => corrupt,
                _ => {
                    let found = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
                    Corrupt::BlockKind { block: FsBlock(0), expected: BlockKind::Superblock.name(), found }
                }
            };
            (
                find_copy(device).ok_or_else(|| match (unreadable, &damage) {
                    (Some(source), _) => CheckError::Io { op: "read", offset: 0, source },
                    (None, Corrupt::BlockKind { .. }) => CheckError::Foreign,
                    _ => CheckError::Superblock(damage.to_string()),
                })?,
                Some(damage),
            )
        }
    };
    let geometry = superblock.geometry();
    let bytes = geometry.block_count.checked_mul(geometry.block_size() as u64);
    if bytes.is_none_or(|bytes| bytes > device.size()) {
        return Err(CheckError::Superblock(format!(
            "the volume has {} blocks of {} bytes, the device {} bytes: it was cut short",
            geometry.block_count,
            geometry.block_size(),
            device.size()
        )));
    }
    Ok((superblock, damage))
}

/// A copy in group 1, at whatever distance: blocks and groups are powers of two, so there are few places to look. What an
/// earlier volume has left there counts only if there is no other: the groups of this one are not its own.
fn find_copy(device: &dyn BlockDevice) -> Option<Superblock> {
    let mut bytes = vec![0; Superblock::SIZE];
    let mut left = None;
    let mut offset = u64::from(AG_BLOCKS_MIN) << BLOCK_BITS_MIN;
    while offset < device.size() {
        if read_at(device, offset, &mut bytes).is_ok() {
            for block_bits in BLOCK_BITS_MIN..=BLOCK_BITS_MAX {
                if let Ok(superblock) = Superblock::decode(&bytes, FsBlock(offset >> block_bits))
                    && u32::from(superblock.block_bits) == block_bits
                    && u64::from(superblock.ag_blocks.get()) << block_bits == offset
                {
                    if has_its_groups(device, &superblock) {
                        return Some(superblock);
                    }
                    left.get_or_insert(superblock);
                }
            }
        }
        offset = offset.checked_mul(2)?;
    }
    left
}

/// Whether the first group, or the one of the copy, says that it is this volume's.
fn has_its_groups(device: &dyn BlockDevice, superblock: &Superblock) -> bool {
    let geometry = superblock.geometry();
    let mut bytes = vec![0; size_of::<BlockHeader>()];
    (0..2).any(|ag| {
        let block = geometry.fs_block(AgNo(ag), AgBlock(HEADER_BLOCK));
        let is_read = read_at(device, block.0 << geometry.block_bits, &mut bytes).is_ok();
        let header = BlockHeader::read(&bytes);
        is_read && header.magic.get() == BlockKind::Group.magic() && header.volume == superblock.volume()
    })
}

/// Whether a copy describes the same volume: all that does not change while it is in use.
pub(crate) fn describes_same(a: &Superblock, b: &Superblock) -> bool {
    let fixed = |s: &Superblock| {
        let sizes = (s.block_bits, s.ag_blocks.get(), s.region_blocks.get());
        let seams = (s.space, s.inodes, s.map, s.directory, s.lookup, s.volume_kind);
        let log = (s.log_start.get(), s.log_blocks.get(), s.log_device);
        (s.volume(), sizes, seams, log, s.hash_key, s.root_ino.get(), s.geometry().has_checksums)
    };
    fixed(a) == fixed(b)
}
