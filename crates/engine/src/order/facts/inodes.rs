//! Facts of a unit of an inode table: two inodes, each with its pointers.
//!
//! Of an inode, owner, mode, times and a file's size are values: they depend on nothing. So is the identity of a file, which nobody has
//! to believe. The count of blocks is a hint. What the fork holds follows from the pointers and attributes, or was there from the
//! inode's beginning.

use super::Fact;
use super::pointers::{put, word};
use myriad_format::inode::{RawInode, flag, fork};
use myriad_format::table::{INODE_SIZE, POINTERS, POINTERS_OFFSET, UNIT_INODES};
use myriad_format::unit::UnitHeader;
use std::mem::offset_of;
use std::ops::Range;

/// What of an inode is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::order) enum Part {
    /// All: it begins.
    Born,
    /// It ends, and its slot is empty.
    Died,
    Links {
        old: u32,
        new: u32,
    },
    /// Of a directory: which of its names is its own, and in which directory it is.
    Identity,
    /// Where its attributes lie, and what flags say of them. Whoever may do what by an ACL depends on mode and owner as well: an image that
    /// has the attributes as they last has those as they last, too, and all flags that users set.
    Attributes,
    /// Flags that keep users from it.
    Guards {
        old: u32,
        new: u32,
    },
    /// What its fork says, of an inode that is not mapped by pointers alone: extents, or the index of a directory. That goes together
    /// with changes elsewhere, so no volume that is written without a log has it.
    Fork,
    /// Of a directory, which holds entries up to there.
    Size {
        old: u64,
        new: u64,
    },
}

/// Bytes of the identity.
const IDENTITY: Range<usize> = offset_of!(RawInode, parent)..offset_of!(RawInode, project);
/// Flags that belong to attributes.
const ATTRIBUTE_FLAGS: u32 = flag::ATTR_BLOCKS | flag::ATTR_BODY | flag::HAS_ACL;
/// Those of them that keep users from a file.
const GUARDS: u32 = flag::IMMUTABLE | flag::APPEND;

/// Where the inodes of a unit begin.
fn places() -> impl Iterator<Item = usize> {
    (0..UNIT_INODES as usize).map(|index| UnitHeader::SIZE + index * INODE_SIZE)
}

fn raw(unit: &[u8], at: usize) -> &RawInode {
    RawInode::read(&unit[at..])
}

/// Whether its fork says no more than whether there are pointers.
fn is_by_pointers(inode: &RawInode) -> bool {
    matches!(inode.fork_code(), fork::BLOCKS | fork::NONE)
}

fn is_used(inode: &RawInode) -> bool {
    inode.mode.get() != 0
}

/// The words of an inode's pointers, given its bytes; all 0 if it has none.
pub(in crate::order) fn pointers_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let inode = RawInode::read(bytes);
    let has_any = is_used(inode) && inode.fork_code() == fork::BLOCKS;
    (0..POINTERS).map(move |index| if has_any { word(bytes, POINTERS_OFFSET + index * 8) } else { 0 })
}

pub(super) fn between(old: &[u8], new: &[u8], f: &mut dyn FnMut(Fact)) {
    for at in places() {
        between_inodes(&old[at..at + INODE_SIZE], &new[at..at + INODE_SIZE], at, f);
    }
}

fn between_inodes(old: &[u8], new: &[u8], at: usize, f: &mut dyn FnMut(Fact)) {
    let (was, is) = (RawInode::read(old), RawInode::read(new));
    let mut tell = |part| f(Fact::Inode { at, part });
    if is_used(was) && (!is_used(is) || was.generation != is.generation) {
        tell(Part::Died);
    }
    if is_used(is) && (!is_used(was) || was.generation != is.generation) {
        tell(Part::Born);
    } else if is_used(is) {
        if was.nlink != is.nlink {
            tell(Part::Links { old: was.nlink.get(), new: is.nlink.get() });
        }
        if is.is_dir() && old[IDENTITY] != new[IDENTITY] {
            tell(Part::Identity);
        }
        if is.is_dir() && was.size != is.size {
            tell(Part::Size { old: was.size.get(), new: is.size.get() });
        }
        let flags = |of| was.flags.get() & of != is.flags.get() & of;
        if flags(ATTRIBUTE_FLAGS) || was.attribute_root() != is.attribute_root() {
            tell(Part::Attributes);
        } else if was.fork != is.fork || was.fork_kind != is.fork_kind && !(is_by_pointers(was) && is_by_pointers(is)) {
            tell(Part::Fork);
        }
        if flags(GUARDS) {
            tell(Part::Guards { old: was.flags.get() & GUARDS, new: is.flags.get() & GUARDS });
        }
    }
    for (index, (old, new)) in pointers_of(old).zip(pointers_of(new)).enumerate() {
        if old != new {
            f(Fact::Pointer { at: at + POINTERS_OFFSET + index * 8, inode: Some(at), old, new });
        }
    }
}

pub(super) fn undo(image: &mut [u8], old: &[u8], at: usize, part: Part) {
    let all = at..at + INODE_SIZE;
    match part {
        Part::Born | Part::Died => image[all.clone()].copy_from_slice(&old[all]),
        Part::Identity => {
            let range = at + IDENTITY.start..at + IDENTITY.end;
            image[range.clone()].copy_from_slice(&old[range]);
        }
        Part::Attributes => {
            // What lay where the root is now has moved: all of the fork, and what it leads to, goes back.
            let (was, is) = (*raw(old, at), RawInode::read_mut(&mut image[at..]));
            is.fork_kind = was.fork_kind;
            is.fork = was.fork;
            const FLAGS: u32 = ATTRIBUTE_FLAGS | flag::USER;
            is.flags.set(is.flags.get() & !FLAGS | was.flags.get() & FLAGS);
            (is.mode, is.uid, is.gid) = (was.mode, was.uid, was.gid);
            let pointers = at + POINTERS_OFFSET..at + INODE_SIZE;
            image[pointers.clone()].copy_from_slice(&old[pointers]);
        }
        Part::Fork => {
            let (was, is) = (*raw(old, at), RawInode::read_mut(&mut image[at..]));
            (is.fork, is.fork_kind) = (was.fork, was.fork_kind);
        }
        Part::Links { old, .. } => RawInode::read_mut(&mut image[at..]).nlink.set(old),
        Part::Guards { old, .. } => {
            let is = RawInode::read_mut(&mut image[at..]);
            is.flags.set(is.flags.get() & !GUARDS | old);
        }
        Part::Size { old, .. } => RawInode::read_mut(&mut image[at..]).size.set(old),
    }
}

/// Sets a pointer of the inode at `inode` to what it was.
pub(super) fn undo_pointer(image: &mut [u8], inode: usize, at: usize, old: u64) {
    let is = RawInode::read_mut(&mut image[inode..]);
    if old != 0 && is.fork_code() != fork::BLOCKS {
        // Nothing is mapped any more, and its pointers mean nothing.
        is.set_fork(fork::BLOCKS, 0);
        is.fork[..8].fill(0);
        image[inode + POINTERS_OFFSET..inode + INODE_SIZE].fill(0);
    }
    put(image, at, old);
}

/// The fork of an inode says that there are pointers if, and only if, there is one.
pub(super) fn settle(image: &mut [u8]) {
    for at in places() {
        let bytes = &mut image[at..at + INODE_SIZE];
        let has_any = (0..POINTERS).any(|index| word(bytes, POINTERS_OFFSET + index * 8) != 0);
        let inode = RawInode::read_mut(bytes);
        let code = inode.fork_code();
        if !is_used(inode) || (code != fork::BLOCKS && code != fork::NONE) {
            continue;
        }
        if code == fork::BLOCKS && !has_any {
            inode.set_fork(fork::NONE, 0);
        }
    }
}

/// What of an inode differs that is neither a value nor a hint, once all facts of a change are undone.
#[cfg(any(debug_assertions, test))]
pub(super) fn unexplained(old: &[u8], undone: &[u8]) -> Option<String> {
    if old[..4] != undone[..4] || old[8..UnitHeader::SIZE] != undone[8..UnitHeader::SIZE] {
        return Some("the unit's header".into());
    }
    places().find_map(|at| {
        let (was, is) = (raw(old, at), raw(undone, at));
        if !is_used(was) {
            return is_used(is).then(|| "an inode in an empty slot".into());
        }
        // Values and hints are taken from what was.
        let mut same = *is;
        same.mode.set(is.mode.get() & 0o170000 | was.mode.get() & 0o7777);
        same.flags.set(is.flags.get() & !free_flags() | was.flags.get() & free_flags());
        (same.uid, same.gid, same.blocks) = (was.uid, was.gid, was.blocks);
        (same.mtime, same.ctime, same.atime, same.btime) = (was.mtime, was.ctime, was.atime, was.btime);
        if !was.is_dir() {
            same.size = was.size;
            (same.parent, same.name_hash, same.entry_position) = (was.parent, was.name_hash, was.entry_position);
        }
        if is_by_pointers(was) && is_by_pointers(is) {
            // It follows from the pointers, which are compared.
            same.fork_kind = was.fork_kind;
        }
        if same != *was {
            return Some(format!("an inode that was {was:?}, undone: {is:?}"));
        }
        let (old, undone) = (&old[at..at + INODE_SIZE], &undone[at..at + INODE_SIZE]);
        (!pointers_of(old).eq(pointers_of(undone))).then(|| "pointers of an inode".into())
    })
}

/// Flags that are values.
#[cfg(any(debug_assertions, test))]
fn free_flags() -> u32 {
    flag::USER & !GUARDS | flag::HASH_TWINS
}
