//! Marks: what is only believed up to a count, or if a bit says so. The count rises once what it tells of is durable.
//!
//! All else in the header of a group and in the superblock is a hint, written at once or set by mkfs.

use super::Fact;
use myriad_format::group::GroupHeader;
use myriad_format::superblock::Superblock;

pub(super) fn between_groups(old: &[u8], new: &[u8], f: &mut dyn FnMut(Fact)) {
    let blocks = |unit| GroupHeader::read(unit).inode_blocks.get();
    if blocks(old) != blocks(new) {
        f(Fact::Initialised { old: blocks(old), new: blocks(new) });
    }
}

pub(super) fn between_superblocks(old: &[u8], new: &[u8], f: &mut dyn FnMut(Fact)) {
    let groups = |unit| Superblock::read(unit).ag_high_water.get();
    if groups(old) != groups(new) {
        f(Fact::Made { old: groups(old), new: groups(new) });
    }
}

pub(super) fn put_initialised(image: &mut [u8], blocks: u32) {
    GroupHeader::read_mut(image).inode_blocks.set(blocks);
}

pub(super) fn put_made(image: &mut [u8], groups: u32) {
    Superblock::read_mut(image).ag_high_water.set(groups);
}
