//! Pass "names": a directory's entries and what leads to them, and every name against its inode.
//!
//! Each kind of directory that a volume may have is a folder here, as in the engine: it finds the entries, and judges what
//! holds them. What an entry says is judged here.

/// Calls what the folder of this kind of directory has under a name.
macro_rules! of_kind {
    ($kind:expr, $($call:tt)+) => {
        match $kind {
            Directory::Indexed => crate::directory::indexed::$($call)+,
            Directory::Linear => crate::directory::linear::$($call)+,
            Directory::Slots => crate::directory::slots::$($call)+,
            Directory::Tree => crate::directory::btree::$($call)+,
            other => unreachable!("directory={} is refused where the superblock is read", other.name()),
        }
    };
}

mod btree;
pub(crate) mod entries;
mod fix;
mod hashes;
mod indexed;
mod linear;
mod names;
mod repair;
mod slots;

/// Most blocks that any kind of directory maps ahead of its growth.
const AHEAD_MAX: u64 = 64;

pub(crate) use indexed::Made;
pub(crate) use names::{Directories, Names};

use crate::attributes::check_attributes;
use crate::context::{Context, for_repair};
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
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// A directory, as its inode has it.
#[derive(Clone, Copy)]
pub(crate) struct Dir<'a> {
    pub ino: Ino,
    pub raw: &'a RawInode,
    /// Data in its body.
    pub body: &'a [u8],
}

/// What the check of a directory found besides findings.
#[derive(Default)]
struct Checked {
    /// How many of its blocks hold entries.
    made: u64,
    /// All of it could be read.
    is_whole: bool,
    /// Blocks that are its own and not in its map.
    unmapped: u64,
}

/// Whether directories of a kind may lie in the bodies of their inodes.
pub(crate) fn may_have_body(kind: Directory) -> bool {
    of_kind!(kind, MAY_HAVE_BODY)
}

/// Hands the live entries of a directory to `f`; what cannot be read is left out.
pub(crate) fn for_each_entry(context: &Context<'_>, dir: Dir<'_>, f: &mut dyn FnMut(&Entry<'_>)) {
    of_kind!(context.directory_kind(), for_each_entry(context, dir, f));
}

/// Hands `f` the names that a directory has for inodes, of those that the identities of these describe. It is gone through once, however many they are.
pub(crate) fn names_of(
    context: &Context<'_>,
    dir: Dir<'_>,
    wanted: &BTreeMap<Ino, RawInode>,
    f: &mut dyn FnMut(Ino, Vec<u8>),
) {
    if context.directory_kind() == Directory::Indexed {
        // Its entries stay where the identity says that they are.
        for (&ino, raw) in wanted {
            if let Some(name) = indexed::name_at(context, dir, ino, raw.entry_position.get()) {
                f(ino, name);
            }
        }
        return;
    }
    for_each_entry(context, dir, &mut |entry| {
        if wanted.get(&entry.ino).is_some_and(|raw| context.hasher.hash(entry.name) == raw.name_hash.get()) {
            f(entry.ino, entry.name.to_vec());
        }
    });
}

impl Names<'_> {
    pub fn check_directory(&self, dir: Dir<'_>, attributes: &[u8]) {
        let context = self.context;
        let Dir { ino, raw, .. } = dir;
        let mut sums = Sums::default();
        let mut extents: Vec<Extent> = Vec::new();
        let mut blocks = check_attributes(context, ino, raw, attributes);
        let map = check_map(context, ino, raw, |extent| extents.push(extent));
        blocks += map.blocks;
        for _ in extents.iter().filter(|extent| extent.unwritten) {
            context.report(number::EXTENT, Place::Inode(ino), "a directory has an unwritten extent");
        }
        let checked: Checked = of_kind!(context.directory_kind(), check(self, dir, &extents, &mut sums));
        blocks += checked.unmapped;
        if self.has_more && !(checked.is_whole && map.is_sound) {
            let mut left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
            left_out.insert(ino, (extents, checked.made));
        }
        check_blocks(context, ino, raw, blocks);
        context.entries.fetch_add(sums.count, Relaxed);
        self.count_directory(ino, sums);
    }

    /// As [`Self::check_directory`] of one that has been checked, for the names of inodes whose slots were not at hand then.
    pub fn check_part(&self, dir: Dir<'_>) {
        let (context, ino) = (self.context, dir.ino);
        let own = self.slots.find(ino);
        let mut sums = Sums::default();
        let mut check = |entry: &Entry<'_>, at: At| {
            let is_subdirectory = own.is_some() && self.directories.index(entry.ino).is_some();
            sums.subdirectories = sums.subdirectories.saturating_add(u32::from(is_subdirectory));
            sums.count += 1;
            if self.slots.covers(entry.ino) {
                self.check_target(ino, entry, at, context.hasher.hash(entry.name));
            }
        };
        let left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner).get(&ino).cloned();
        of_kind!(context.directory_kind(), entries_again(context, dir, left_out, &mut check));
        self.count_directory(ino, sums);
    }

    /// Takes what the entries of a directory come to into its links, if its slot is at hand.
    fn count_directory(&self, ino: Ino, Sums { count, subdirectories }: Sums) {
        let Some(slot) = self.slots.find(ino) else { return };
        let has_links = slot.state() & slot_bit::NO_LINKS == 0;
        // An orphan keeps no link, not even its own two.
        slot.found(if has_links { 2 } else { 0 } + subdirectories);
        if !has_links && slot.state() & slot_bit::ORPHAN != 0 && count > 0 {
            // The next opening frees it, and does not look for names.
            let (place, message) = (Place::Inode(ino), format!("is in the list of orphans, and holds {count} names"));
            match self.context.may_have_leftovers() {
                true => self.context.report_leftover(number::ORPHAN, place, message, for_repair),
                false => self.context.report(number::ORPHAN, place, message),
            }
        }
    }
}
