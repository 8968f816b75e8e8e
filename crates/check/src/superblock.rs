//! The superblock, or the copy of it to go by.
//!
//! Whoever may write a file can write a copy into it, at a place where one could lie: of a volume of his own, or of this one with groups of another size.
//! Nothing in a copy tells that: its UUID can be seen, its times can be chosen, and headers of groups can be written as well. But block 1 is never a file's.
//! So a copy counts by itself only if the header of group 0 lies there and tells of the same volume and as many blocks. With the same blocks
//! and groups the copy lies at a fixed place, too. Where it confirms none, somebody has to name the copy (`Options::superblock`).

use crate::io::read_at;
use crate::options::CheckError;
use myriad_device::BlockDevice;
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::superblock::{Superblock, SuperblockError, has_copy};
use myriad_format::{
    AG_BLOCKS_MIN, AG_COUNT_MAX, AgBlock, AgNo, BLOCK_BITS_MAX, BLOCK_BITS_MIN, BlockKind, Corrupt, FsBlock,
};
use std::fmt;

/// The superblock, and what is wrong with the one in block 0 if a copy had to stand in: the one at byte `named`, or one that is vouched for.
pub(crate) fn find(device: &dyn BlockDevice, named: Option<u64>) -> Result<(Superblock, Option<Corrupt>), CheckError> {
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
                copy_to_go_by(device, named)?.ok_or_else(|| match (unreadable, &damage) {
                    (Some(source), _) => CheckError::Io { op: "read", offset: 0, source },
                    (None, Corrupt::BlockKind { .. }) => CheckError::Foreign,
                    _ => CheckError::Superblock(damage.to_string()),
                })?,
                Some(damage),
            )
        }
    };
    let geometry = superblock.geometry();
    // Where it cannot be, all requests for blocks are made wider, but those for the log are not.
    let takes_blocks = device.take_units(geometry.block_size());
    if !takes_blocks.map_err(|source| CheckError::Io { op: "read", offset: 0, source })?
        && superblock.log_blocks.get() > 0
        && !superblock.has_external_log()
    {
        return Err(CheckError::Sectors { block: geometry.block_size(), sector: device.alignment() });
    }
    let bytes = geometry.block_count.checked_mul(geometry.block_size() as u64);
    if bytes.is_none_or(|bytes| bytes > device.size()) {
        let (blocks, block_size) = (geometry.block_count, geometry.block_size());
        return Err(CheckError::CutShort { blocks, block_size, size: device.size() });
    }
    Ok((superblock, damage))
}

/// Copies of which none is vouched for.
#[derive(Debug)]
pub struct Copies {
    /// One of each volume that they tell of, in the order in which they were found.
    pub list: Vec<CopyFound>,
}

/// A copy of a superblock.
#[derive(Debug)]
pub struct CopyFound {
    /// The first byte of the device at which a copy lies that tells of this volume.
    pub offset: u64,
    pub label: String,
    pub blocks: u64,
    pub block_size: usize,
    pub ag_blocks: u32,
}

impl fmt::Display for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Of more than these somebody has made most up.
        const SHOWN_MAX: usize = 32;
        write!(f, "it is lost, and the header of group 0 confirms no copy of it; there is")?;
        for (index, copy) in self.list.iter().take(SHOWN_MAX).enumerate() {
            let CopyFound { offset, label, blocks, block_size, ag_blocks } = copy;
            let and = if index > 0 { "," } else { "" };
            write!(f, "{and} one at byte {offset}, of {blocks} blocks of {block_size} bytes in groups of {ag_blocks}")?;
            if !label.is_empty() {
                write!(f, ", label {}", label.escape_debug())?;
            }
        }
        match self.list.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

/// A copy of the superblock for somebody who only looks: one that is vouched for, or the likeliest. No repair may go by the latter.
pub fn find_superblock_copy(device: &dyn BlockDevice) -> Option<Superblock> {
    let copies = find_copies(device);
    let rank = |copy: &&Copy| {
        let superblock = &copy.superblock;
        (is_vouched_for(device, superblock), has_group(device, superblock, copy.ag), superblock.made_time.get())
    };
    // Of those that are equal the first one.
    copies.iter().rev().max_by_key(rank).map(|copy| copy.superblock)
}

/// The copy that a repair goes by; `None` if there is none at all.
fn copy_to_go_by(device: &dyn BlockDevice, named: Option<u64>) -> Result<Option<Superblock>, CheckError> {
    if let Some(offset) = named {
        let copy = copy_at(device, offset).ok_or(CheckError::NoCopy(offset))?;
        return Ok(Some(copy.superblock));
    }
    let copies = find_copies(device);
    let vouched = copies.iter().find(|copy| is_vouched_for(device, &copy.superblock));
    if vouched.is_some() || copies.is_empty() {
        return Ok(vouched.map(|copy| copy.superblock));
    }
    let shown = |Copy { superblock, offset, .. }: &Copy| {
        let geometry = superblock.geometry();
        let label = superblock.label.split(|&byte| byte == 0).next().unwrap_or_default();
        CopyFound {
            offset: *offset,
            label: String::from_utf8_lossy(label).into_owned(),
            blocks: geometry.block_count,
            block_size: geometry.block_size(),
            ag_blocks: superblock.ag_blocks.get(),
        }
    };
    Err(CheckError::Unconfirmed(Copies { list: copies.iter().map(shown).collect() }))
}

/// A copy, which group it is in by its own word, and where it lies.
struct Copy {
    superblock: Superblock,
    ag: AgNo,
    offset: u64,
}

/// The first copy of each volume that copies tell of, whatever the sizes of blocks and groups. These are powers of two and a copy says its own
/// address, so there are few places to look at.
fn find_copies(device: &dyn BlockDevice) -> Vec<Copy> {
    let smallest = AG_BLOCKS_MIN.trailing_zeros() + BLOCK_BITS_MIN;
    let mut found: Vec<Copy> = Vec::new();
    for ag in copies(AG_COUNT_MAX) {
        let offsets = (smallest..u64::BITS).map_while(|bits| u64::from(ag).checked_mul(1 << bits));
        for offset in offsets.take_while(|&offset| offset < device.size()) {
            let Some(copy) = copy_at(device, offset) else { continue };
            let is_same = |other: &Copy| {
                let (one, other) = (&copy.superblock, &other.superblock);
                describes_same(one, other) && one.geometry() == other.geometry()
            };
            if !found.iter().any(is_same) {
                found.push(copy);
            }
        }
    }
    found
}

/// The copy at a byte of the device, if the bytes there are one, whatever the size of a block.
fn copy_at(device: &dyn BlockDevice, offset: u64) -> Option<Copy> {
    let mut bytes = vec![0; Superblock::SIZE];
    read_at(device, offset, &mut bytes).ok()?;
    (BLOCK_BITS_MIN..=BLOCK_BITS_MAX).find_map(|block_bits| {
        let block = FsBlock(offset >> block_bits);
        let superblock = Superblock::decode(&bytes, block).ok()?;
        let geometry = superblock.geometry();
        let ag = AgNo(u32::try_from(block.0 >> geometry.ag_bits).ok()?);
        let is_there = geometry.block_bits == block_bits
            && has_copy(ag)
            && ag.0 < geometry.ag_count
            && geometry.fs_block(ag, AgBlock(0)).0 << block_bits == offset;
        is_there.then_some(Copy { superblock, ag, offset })
    })
}

/// Whether the header of group 0, which lies in no file, tells of the volume that a copy describes.
fn is_vouched_for(device: &dyn BlockDevice, superblock: &Superblock) -> bool {
    let geometry = superblock.geometry();
    // Where blocks are smaller than the copy says, what it takes for block 1 may be a file's. A superblock's own block has zeros behind it.
    let is_any = |bits: u32| {
        group_header(device, 1 << bits).is_some_and(|header| header.header.address.get() == u64::from(HEADER_BLOCK))
    };
    !(BLOCK_BITS_MIN..geometry.block_bits).any(is_any) && has_group(device, superblock, AgNo(0))
}

/// Whether a group has a header of the volume that a copy describes, and is as long as that has it. Of groups of another size the volume had before
/// it was made anew, or somebody wrote into a file.
fn has_group(device: &dyn BlockDevice, superblock: &Superblock, ag: AgNo) -> bool {
    let geometry = superblock.geometry();
    let block = geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
    group_header(device, block.0 << geometry.block_bits).is_some_and(|header| {
        header.header.volume == superblock.volume() && header.block_count.get() == geometry.blocks_in(ag)
    })
}

/// What lies at a byte, if it says that it is the header of a group; its checksum may be wrong.
fn group_header(device: &dyn BlockDevice, offset: u64) -> Option<GroupHeader> {
    let mut bytes = vec![0; GroupHeader::SIZE];
    read_at(device, offset, &mut bytes).ok()?;
    let header = *GroupHeader::read(&bytes);
    (header.header.magic.get() == BlockKind::Group.magic()).then_some(header)
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
