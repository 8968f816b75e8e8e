//! What the pass over names needs from directories of every kind: which directory names which inode, and a comparison of each entry with the
//! inode that it names.

use super::entries::{BadEntry, Entry};
use crate::context::{Context, for_repair};
use crate::findings::number;
use crate::report::Place;
use crate::slots::inode_at;
use crate::table::{SlotTable, identity_digest, slot_bit};
use myriad_format::extent::Extent;
use myriad_format::inode::{RawInode, flag, fork};
use myriad_format::{Corrupt, FileBlock, FsBlock, Ino};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The directories of the volume and where each was found named.
pub(crate) struct Directories {
    pub inos: Vec<Ino>,
    /// The directory that names it; 0 until found. Of several the one that its identity says, whichever was met first: a second name, which a crash
    /// may leave, counts as not there, and two of them can make a circle.
    parents: Vec<AtomicU64>,
}

impl Directories {
    pub fn new(inos: Vec<Ino>) -> Self {
        let parents = inos.iter().map(|_| AtomicU64::new(0)).collect();
        Self { inos, parents }
    }

    pub fn index(&self, ino: Ino) -> Option<usize> {
        self.inos.binary_search(&ino).ok()
    }

    pub fn parent(&self, index: usize) -> Ino {
        Ino(self.parents[index].load(Relaxed))
    }

    /// Notes that `parent` names the directory; `false` if another entry did already.
    fn name(&self, index: usize, parent: Ino) -> bool {
        self.parents[index].compare_exchange(0, parent.0, Relaxed, Relaxed).is_ok()
    }

    /// Notes that `parent` has the name that the directory's identity says.
    fn name_as_own(&self, index: usize, parent: Ino) {
        self.parents[index].store(parent.0, Relaxed);
    }
}

/// What a directory's pass needs.
pub(crate) struct Names<'a> {
    pub context: &'a Context<'a>,
    pub slots: &'a SlotTable<'a>,
    pub directories: &'a Directories,
    /// Names of inodes whose slots are not at hand will be compared later.
    pub has_more: bool,
    /// Entry blocks of directories of which something had to be left out, which was told: extents and how many hold entries.
    pub left_out: &'a Mutex<HashMap<Ino, (Vec<Extent>, u64)>>,
}

/// What the entries of a directory come to.
#[derive(Default)]
pub(super) struct Sums {
    pub count: u64,
    pub subdirectories: u32,
}

/// Where an entry lies: for messages, and as the identity of what it names says it.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub place: u64,
    pub position: u32,
}

impl Names<'_> {
    /// One live entry against the inode it names.
    pub(super) fn check_name(&self, ino: Ino, entry: &Entry<'_>, at: At, hash: u64, sums: &mut Sums) {
        let context = self.context;
        let place = Place::Entry { directory: ino, position: at.place };
        sums.count += 1;
        let name = entry.name.escape_ascii();
        if entry.tag != hash as u32 {
            let message = format!("{name}: tag {:#x} stored, {:#x} computed", entry.tag, hash as u32);
            context.report(number::ENTRY_TAG, place, message);
        }
        if let Some(index) = self.directories.index(entry.ino) {
            sums.subdirectories = sums.subdirectories.saturating_add(1);
            let is_root = entry.ino.0 == context.superblock.root_ino.get();
            if is_root || !self.directories.name(index, ino) {
                let message = format!("{name} is one more name of directory {}", entry.ino);
                if is_root {
                    context.report(number::DIRECTORY_TWICE, place, message);
                } else {
                    context.report_leftover(number::DIRECTORY_TWICE, place, message, for_repair);
                }
            }
        }
        if self.slots.covers(entry.ino) {
            self.check_target(ino, entry, at, hash);
        }
    }

    /// One live entry against the slot that it names, which is at hand if it exists.
    pub(super) fn check_target(&self, ino: Ino, entry: &Entry<'_>, at: At, hash: u64) {
        let context = self.context;
        let place = Place::Entry { directory: ino, position: at.place };
        let name = entry.name.escape_ascii();
        let Some(slot) = self.slots.find(entry.ino) else {
            context.report(number::NO_INODE, place, format!("{name} names inode {}, which does not exist", entry.ino));
            return;
        };
        if slot.file_type() != entry.file_type {
            let message =
                format!("{name} has type {}, its inode {} has {}", entry.file_type, entry.ino, slot.file_type());
            context.report(number::ENTRY_TYPE, place, message);
        }
        let directory = self.directories.index(entry.ino);
        if directory.is_none() {
            slot.found(1);
        }
        if slot.identity() == identity_digest(ino.0, hash, at.position) {
            slot.set(slot_bit::IDENTITY);
            if let Some(index) = directory {
                self.directories.name_as_own(index, ino);
            }
        } else if slot.file_type() != 4 {
            self.check_stale_identity(ino, entry, at, hash);
        }
    }

    /// A file's identity may describe a name that is gone, for it had several; but not this entry at a wrong place.
    fn check_stale_identity(&self, ino: Ino, entry: &Entry<'_>, at: At, hash: u64) {
        let Some((block, slot)) = self.context.geometry.locate(entry.ino) else { return };
        let mut buf = self.context.reader.new_buffer();
        if self.context.reader.read_inodes(block, &mut buf).is_err() {
            return;
        }
        let raw = inode_at(&self.context.geometry, &buf, slot);
        if raw.parent.get() == ino.0 && raw.name_hash.get() == hash {
            let place = Place::Entry { directory: ino, position: at.place };
            let name = entry.name.escape_ascii();
            let message = format!("inode {} says that {name} is at position {}", entry.ino, raw.entry_position);
            self.context.report(number::IDENTITY, place, message);
        }
    }
}

/// Reports an entry that is impossible, at an offset of a block.
pub(super) fn report_bad_entry(context: &Context<'_>, ino: Ino, block: FileBlock, offset: u32, bad: &BadEntry) {
    let corrupt = Corrupt::DirEntry { ino, block, offset, field: bad.field, value: bad.value };
    context.damage(Place::Inode(ino), corrupt.into());
}

/// Two names whose hashes are equal are the same one twice, or twins, which a flag must say.
pub(super) fn report_equal_hashes(context: &Context<'_>, ino: Ino, raw: &RawInode, a: &[u8], b: &[u8]) {
    if a == b {
        context.report(number::ENTRY_TWICE, Place::Inode(ino), format!("holds {} twice", a.escape_ascii()));
    } else if !raw.has_flag(flag::HASH_TWINS) {
        let message = format!("{} and {} share their hash; no flag says so", a.escape_ascii(), b.escape_ascii());
        context.report(number::TWINS, Place::Inode(ino), message);
    }
}

/// Whether a directory has all its entries in the blocks of its map, as those without index have, or none at all; anything else is
/// damage, and reported. False: it has entries nowhere.
pub(super) fn is_in_blocks_alone(context: &Context<'_>, ino: Ino, raw: &RawInode) -> bool {
    let place = Place::Inode(ino);
    if raw.fork_code() != fork::NONE && !raw.is_dir_in_blocks() {
        context.damage(place, Corrupt::Inode { ino, field: "fork_kind", value: u64::from(raw.fork_kind) }.into());
        return false;
    }
    if let Some(root) = raw.index_root() {
        context.damage(place, Corrupt::Inode { ino, field: "index root", value: root.0 }.into());
    }
    true
}

/// How many blocks the extents map from file block 0 on without a hole.
pub(crate) fn covered(extents: &[Extent]) -> u64 {
    extents.iter().fold(0, |end, extent| if extent.file_block.0 == end { extent.end().0 } else { end })
}

/// The volume block that holds a file block.
pub(crate) fn find_block(extents: &[Extent], file_block: u64) -> Option<FsBlock> {
    let after = extents.partition_point(|extent| extent.file_block.0 <= file_block);
    let extent = extents[..after].last()?;
    let offset = file_block - extent.file_block.0;
    (offset < u64::from(extent.length)).then(|| extent.start.offset_by(offset))
}
