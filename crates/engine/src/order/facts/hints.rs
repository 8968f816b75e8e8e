//! Changes that are no facts: hints and values. A block in which nothing else is new may be written later, together with more.

use super::{Fact, between};
use myriad_format::BlockKind;
use myriad_format::inode::RawInode;
use myriad_format::superblock::Superblock;
use myriad_format::table::{INODE_SIZE, UNIT_INODES};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};

/// Whether a block differs from what lasts of it only in what no operation promises: counts that are made anew after a crash, and bits of
/// what was given back. `None`: the block is new.
pub(in crate::order) fn has_only_hints(kind: BlockKind, old: Option<&[u8]>, new: &[u8]) -> bool {
    let Some(old) = old else { return false };
    match kind {
        BlockKind::Superblock => {
            let without_counts = |bytes| {
                let mut superblock = *Superblock::read(bytes);
                superblock.free_blocks = Default::default();
                superblock.free_parts = Default::default();
                superblock.inodes_used = Default::default();
                superblock.directories = Default::default();
                superblock.next_generation = Default::default();
                superblock
            };
            without_counts(old) == without_counts(new)
        }
        BlockKind::Group => !has_fact(kind, &old[..UNIT_SIZE], &new[..UNIT_SIZE], |_| true),
        BlockKind::BlockBitmap | BlockKind::InodeBitmap => {
            let mut units = old.chunks_exact(UNIT_SIZE).zip(new.chunks_exact(UNIT_SIZE));
            !units.any(|(old, new)| has_fact(kind, old, new, |fact| matches!(fact, Fact::Taken { .. })))
        }
        _ => false,
    }
}

fn has_fact(kind: BlockKind, old: &[u8], new: &[u8], wanted: fn(&Fact) -> bool) -> bool {
    let mut has_any = false;
    between(kind, Some(old), new, &mut |fact| has_any |= wanted(&fact));
    has_any
}

/// Whether a block differs from what lasts of it in nothing but values and the places of entries. `None`: the block is new.
pub(in crate::order) fn has_only_values(kind: BlockKind, old: Option<&[u8]>, new: &[u8]) -> bool {
    let Some(old) = old else { return false };
    let mut units = old.chunks_exact(UNIT_SIZE).zip(new.chunks_exact(UNIT_SIZE));
    match kind {
        BlockKind::InodeTable => units.all(|(old, new)| old == new || without_values(old) == without_values(new)),
        BlockKind::LinearEntries => !units.any(|(old, new)| has_fact(kind, old, new, |_| true)),
        _ => false,
    }
}

/// Whether a block differs from what lasts of it only where nothing is: in bytes of names or inodes that came and went. `None`: the block is new.
pub(in crate::order) fn has_only_remains(kind: BlockKind, old: Option<&[u8]>, new: &[u8]) -> bool {
    let Some(old) = old else { return false };
    match kind {
        BlockKind::InodeTable => {
            let mut units = old.chunks_exact(UNIT_SIZE).zip(new.chunks_exact(UNIT_SIZE));
            units.all(|(old, new)| old == new || without_remains(old) == without_remains(new))
        }
        BlockKind::LinearEntries => has_only_values(kind, Some(old), new),
        _ => false,
    }
}

fn without_remains(unit: &[u8]) -> [u8; UNIT_SIZE] {
    let mut bytes: [u8; UNIT_SIZE] = unit.try_into().expect("a unit");
    for inode in bytes[UnitHeader::SIZE..].chunks_exact_mut(INODE_SIZE) {
        if RawInode::read(inode).mode.get() == 0 {
            inode.fill(0);
        }
    }
    bytes
}

fn without_values(unit: &[u8]) -> [u8; UNIT_SIZE] {
    let mut bytes: [u8; UNIT_SIZE] = unit.try_into().expect("a unit");
    for index in 0..UNIT_INODES as usize {
        let inode = RawInode::read_mut(&mut bytes[UnitHeader::SIZE + index * INODE_SIZE..]);
        inode.blocks = Default::default();
        (inode.mtime, inode.ctime, inode.atime) = Default::default();
        if !inode.is_dir() {
            inode.size = Default::default();
        }
    }
    bytes
}
