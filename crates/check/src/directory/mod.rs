//! Pass "names": a directory's entries and what leads to them, and every name against its inode.
//!
//! Each kind of directory that a volume may have is a folder here, as in the engine: it finds the entries, and judges what
//! holds them. What an entry says is judged here.

pub(crate) mod btree;
pub(crate) mod entries;
mod fix;
mod hashes;
mod indexed;
pub(crate) mod linear;
mod names;
mod repair;
pub(crate) mod slots;

pub(crate) use names::{Directories, Names};

use crate::attributes::check_attributes;
use crate::findings::number;
use crate::inodes::check_blocks;
use crate::map::check_map;
use crate::report::Place;
use crate::table::slot_bit;
use entries::Entry;
use myriad_format::Ino;
use myriad_format::choices::Directory;
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use names::{At, Sums};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

impl Names<'_> {
    pub fn check_directory(&self, ino: Ino, raw: &RawInode, data: &[u8], attributes: &[u8]) {
        let context = self.context;
        let mut sums = Sums::default();
        let mut extents: Vec<Extent> = Vec::new();
        let mut blocks = check_attributes(context, ino, raw, attributes);
        let map = check_map(context, ino, raw, |extent| extents.push(extent));
        blocks += map.blocks;
        for _ in extents.iter().filter(|extent| extent.unwritten) {
            context.report(number::EXTENT, Place::Inode(ino), "a directory has an unwritten extent");
        }
        // Of each: how many of its blocks hold entries, and whether all of it could be read.
        let (made, is_whole) = match context.directory_kind() {
            Directory::Linear => linear::check(self, ino, raw, &extents, &mut sums),
            Directory::Slots => slots::check(self, ino, raw, &extents, &mut sums),
            Directory::Tree => btree::check(self, ino, raw, data, &extents, &mut sums),
            _ => indexed::check(self, ino, raw, data, &extents, &mut blocks, &mut sums),
        };
        if self.has_more && !(is_whole && map.is_sound) {
            let mut left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
            left_out.insert(ino, (extents, made));
        }
        check_blocks(context, ino, raw, blocks);
        context.entries.fetch_add(sums.count, Relaxed);
        self.count_directory(ino, sums.subdirectories);
    }

    /// As [`Self::check_directory`] of one that has been checked, for the names of inodes whose slots were not at hand then.
    pub fn check_part(&self, ino: Ino, raw: &RawInode, data: &[u8]) {
        let context = self.context;
        let own = self.slots.find(ino);
        let mut subdirectories = 0_u32;
        let mut check = |entry: &Entry<'_>, at: At| {
            let is_subdirectory = own.is_some() && self.directories.index(entry.ino).is_some();
            subdirectories = subdirectories.saturating_add(u32::from(is_subdirectory));
            if self.slots.covers(entry.ino) {
                self.check_target(ino, entry, at, context.hasher.hash(entry.name));
            }
        };
        let left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner).get(&ino).cloned();
        match context.directory_kind() {
            Directory::Linear => linear::entries_again(context, ino, raw, left_out, &mut check),
            Directory::Slots => slots::entries_again(context, ino, raw, left_out, &mut check),
            Directory::Tree => btree::entries_again(context, ino, raw, data, left_out, &mut check),
            _ => indexed::entries_again(context, ino, raw, data, left_out, &mut check),
        }
        self.count_directory(ino, subdirectories);
    }

    fn count_directory(&self, ino: Ino, subdirectories: u32) {
        if let Some(slot) = self.slots.find(ino) {
            // An orphan keeps no link, not even its own two.
            let own = if slot.state() & slot_bit::NO_LINKS != 0 { 0 } else { 2 };
            slot.found(own + subdirectories);
        }
    }
}
