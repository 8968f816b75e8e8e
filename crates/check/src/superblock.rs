//! The superblock, or the best copy of it.

use crate::io::read_at;
use crate::options::CheckError;
use myriad_device::BlockDevice;
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::superblock::{Superblock, SuperblockError, has_copy};
use myriad_format::{
    AG_BLOCKS_MIN, AG_COUNT_MAX, AgBlock, AgNo, BLOCK_BITS_MAX, BLOCK_BITS_MIN, BlockHeader, BlockKind, Corrupt,
    FsBlock,
};

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
                find_superblock_copy(device).ok_or_else(|| match (unreadable, &damage) {
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
        let (blocks, block_size) = (geometry.block_count, geometry.block_size());
        return Err(CheckError::CutShort { blocks, block_size, size: device.size() });
    }
    Ok((superblock, damage))
}

/// The copy of a superblock to go by where the superblock itself is lost: in any group that has one, whatever the sizes of
/// blocks and groups. They are powers of two and a copy says its own address, so there are few places to look at, and nothing
/// that lies elsewhere, as in a file that holds an image, is taken for one.
///
/// A volume made over another leaves copies of that where its own groups have none. So the volume counts that has the first
/// group; if none or both have, the one made last, which may have used no other. Of one volume the first copy counts: the
/// one in group 1 cannot be outdone by what somebody wrote into a file.
pub fn find_superblock_copy(device: &dyn BlockDevice) -> Option<Superblock> {
    let smallest = AG_BLOCKS_MIN.trailing_zeros() + BLOCK_BITS_MIN;
    let mut bytes = vec![0; Superblock::SIZE];
    let mut best: Option<(Superblock, Groups)> = None;
    for ag in copies(AG_COUNT_MAX) {
        let offsets = (smallest..u64::BITS).map_while(|bits| u64::from(ag).checked_mul(1 << bits));
        for offset in offsets.take_while(|&offset| offset < device.size()) {
            if read_at(device, offset, &mut bytes).is_err() {
                continue;
            }
            let Some(found) = copy_at(&bytes, ag, offset) else { continue };
            let groups = groups_of(device, &found, ag);
            let rank = |copy: &Superblock, groups| (groups == Groups::First, copy.made_time.get(), groups);
            let is_better = best.as_ref().is_none_or(|(best, best_groups)| match best.volume() == found.volume() {
                true => groups > *best_groups,
                false => rank(&found, groups) > rank(best, *best_groups),
            });
            if is_better {
                best = Some((found, groups));
            }
        }
    }
    best.map(|(superblock, _)| superblock)
}

/// The copy of group `ag` at a byte of the device, if the bytes there are one, whatever the size of a block.
fn copy_at(bytes: &[u8], ag: u32, offset: u64) -> Option<Superblock> {
    (BLOCK_BITS_MIN..=BLOCK_BITS_MAX).find_map(|block_bits| {
        let superblock = Superblock::decode(bytes, FsBlock(offset >> block_bits)).ok()?;
        let geometry = superblock.geometry();
        let is_there = geometry.block_bits == block_bits
            && ag < geometry.ag_count
            && geometry.fs_block(AgNo(ag), AgBlock(0)).0 << block_bits == offset;
        is_there.then_some(superblock)
    })
}

/// Which groups say that they are of the volume that a copy describes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Groups {
    None,
    Some,
    First,
}

/// Asks the first group, the second, and that of the copy.
fn groups_of(device: &dyn BlockDevice, superblock: &Superblock, copy: u32) -> Groups {
    let geometry = superblock.geometry();
    let mut bytes = vec![0; GroupHeader::SIZE];
    let mut is_its_own = |ag| {
        let block = geometry.fs_block(AgNo(ag), AgBlock(HEADER_BLOCK));
        let is_read = read_at(device, block.0 << geometry.block_bits, &mut bytes).is_ok();
        let header = BlockHeader::read(&bytes);
        let is_group = header.magic.get() == BlockKind::Group.magic() && header.volume == superblock.volume();
        // Of groups of another size the volume had before it was made anew, or somebody wrote into a file.
        is_read && is_group && GroupHeader::read(&bytes).block_count.get() == geometry.blocks_in(AgNo(ag))
    };
    match is_its_own(0) {
        true => Groups::First,
        false if is_its_own(1) || is_its_own(copy) => Groups::Some,
        false => Groups::None,
    }
}

/// Whether a copy describes the same volume: all that does not change while it is in use.
pub(crate) fn describes_same(a: &Superblock, b: &Superblock) -> bool {
    let fixed = |s: &Superblock| {
        let sizes = (s.block_bits, s.ag_blocks.get(), s.region_blocks.get());
        let seams = (s.space, s.inodes, s.map, s.directory, s.lookup, s.volume_kind, s.table_every.get());
        let log = (s.log_start.get(), s.log_blocks.get(), s.log_device);
        (s.volume(), sizes, seams, log, s.hash_key, s.root_ino.get(), s.geometry().has_checksums)
    };
    fixed(a) == fixed(b)
}

/// Groups with a copy of the superblock, ascending, without a look at all the others.
pub(crate) fn copies(ag_count: u32) -> impl Iterator<Item = u32> {
    let mut groups = vec![1_u32];
    for base in [3_u32, 5, 7] {
        let mut power = base;
        while power < ag_count {
            groups.push(power);
            let Some(next) = power.checked_mul(base) else { break };
            power = next;
        }
    }
    groups.sort_unstable();
    debug_assert!(groups.iter().all(|&ag| has_copy(AgNo(ag))));
    groups.into_iter().filter(move |&ag| ag < ag_count)
}
