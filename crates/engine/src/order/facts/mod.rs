//! Facts: what a change of a unit means.
//!
//! A mask says *where* a block changed; an order that writes without a log must know *what* the change was and what it points to. A
//! [`Fact`] says that. Nobody tells facts on the way: they are found where old bytes meet new ones, by comparing a unit as it was
//! with the unit as it is ([`between`]). So they are net: an entry that was set and cleared is no fact, and an inode that was written
//! three times is one.
//!
//! ```text
//! entries   a name names an inode, another one, or none
//! inodes    an inode begins, ends, has other links, another identity, other attributes, another size
//! pointers  a block of a file begins or ends, in an inode or in a block of pointers
//! bits      blocks or inodes are taken or given back
//! marks     tables that are initialised, groups that are made
//! ```
//!
//! Each fact can be undone in a copy of the new bytes ([`undo`]); that is how soft updates write a block before all of its changes are
//! safe. What no fact says is a *value*, such as a mode or a time, which depends on nothing and may always be written, or a *hint*, such
//! as a count, which may be wrong after a crash.
//!
//! Only kinds that change by one sector have facts ([`has_facts`]): a block of a tree changes together with others, and no order of
//! writes makes that safe without a log.
//!
//! The **oracle** ([`check_explained`]) runs in builds with debug assertions, with every order: it undoes all facts of a change in the
//! new bytes and wants the old ones back, but for values and hints. So no operation changes anything that the facts do not know.

mod bits;
mod entries;
mod hints;
mod inodes;
mod marks;
mod pointers;

pub(in crate::order) use entries::{Named, live};
pub(in crate::order) use hints::{has_only_hints, has_only_remains, has_only_values};
pub(in crate::order) use inodes::{Part, pointers_of};

use myriad_format::BlockKind;
use myriad_format::unit::UNIT_SIZE;

/// What a change of a unit means. `at` is a byte of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::order) enum Fact {
    /// The name with this tag names another inode than before; `at` is its entry, which stays as long as it may have to be undone.
    /// `None`: the entry is gone, its bytes are another's.
    Entry { at: Option<usize>, tag: u32, old: Option<Named>, new: Option<Named> },
    /// Something of the inode at `at` is new.
    Inode { at: usize, part: Part },
    /// A pointer leads elsewhere: the words of it, 0 for nowhere. `inode`: it is one of the inode that begins there.
    Pointer { at: usize, inode: Option<usize>, old: u64, new: u64 },
    /// Bits of a bitmap that were set, and are not: in the word at `at`.
    Taken { at: usize, bits: u64 },
    /// Bits of a bitmap that are set now.
    Given { at: usize, bits: u64 },
    /// So many blocks of the group's inode table are initialised.
    Initialised { old: u32, new: u32 },
    /// So many groups are made.
    Made { old: u32, new: u32 },
}

/// Whether changes of blocks of this kind are facts.
pub(in crate::order) fn has_facts(kind: BlockKind) -> bool {
    matches!(
        kind,
        BlockKind::LinearEntries
            | BlockKind::InodeTable
            | BlockKind::Pointers
            | BlockKind::BlockBitmap
            | BlockKind::InodeBitmap
            | BlockKind::Group
            | BlockKind::Superblock
    )
}

/// The units of a block that can have facts: of a block that is not made of units only what its first sector holds.
pub(in crate::order) fn units_of(kind: BlockKind, block_size: usize) -> usize {
    if kind.is_of_units() { block_size / UNIT_SIZE } else { 1 }
}

/// Hands the facts of a unit to `f`, from its bytes before and after. `None`: it is new, as if it had held nothing.
pub(in crate::order) fn between(kind: BlockKind, old: Option<&[u8]>, new: &[u8], f: &mut dyn FnMut(Fact)) {
    let nothing = [0; UNIT_SIZE];
    let old = old.unwrap_or(&nothing);
    if old == new {
        return;
    }
    match kind {
        BlockKind::LinearEntries => entries::between(old, new, f),
        BlockKind::InodeTable => inodes::between(old, new, f),
        BlockKind::Pointers => pointers::between(old, new, f),
        BlockKind::BlockBitmap | BlockKind::InodeBitmap => bits::between(old, new, f),
        BlockKind::Group => marks::between_groups(old, new, f),
        BlockKind::Superblock => marks::between_superblocks(old, new, f),
        _ => {}
    }
}

/// Takes a fact back in `image`, a copy of the unit as it is. `old` is the unit as it was, `None` if it is new.
pub(in crate::order) fn undo(image: &mut [u8], old: Option<&[u8]>, fact: &Fact) {
    let nothing = [0; UNIT_SIZE];
    let old = old.unwrap_or(&nothing);
    match *fact {
        Fact::Entry { at, old, .. } => entries::undo(image, at, old),
        Fact::Inode { at, part } => inodes::undo(image, old, at, part),
        Fact::Pointer { at, inode: Some(inode), old, .. } => inodes::undo_pointer(image, inode, at, old),
        Fact::Pointer { at, inode: None, old, .. } => pointers::put(image, at, old),
        Fact::Taken { at, bits } | Fact::Given { at, bits } => bits::flip(image, at, bits),
        Fact::Initialised { old, .. } => marks::put_initialised(image, old),
        Fact::Made { old, .. } => marks::put_made(image, old),
    }
}

/// Puts right in an image what the facts that were undone in it imply.
pub(in crate::order) fn settle(kind: BlockKind, image: &mut [u8]) {
    if kind == BlockKind::InodeTable {
        inodes::settle(image);
    }
}

/// Panics if something of a block has changed of which no fact tells. `old` is the block before the change.
#[cfg(any(debug_assertions, test))]
pub(in crate::order) fn check_explained(kind: BlockKind, block: myriad_format::FsBlock, old: &[u8], new: &[u8]) {
    if !has_facts(kind) {
        return;
    }
    let units = old.chunks_exact(UNIT_SIZE).zip(new.chunks_exact(UNIT_SIZE));
    for (number, (old, new)) in units.take(units_of(kind, old.len())).enumerate().filter(|(_, (old, new))| old != new) {
        let mut facts = Vec::new();
        between(kind, Some(old), new, &mut |fact| facts.push(fact));
        let mut undone = new.to_vec();
        facts.iter().rev().for_each(|fact| undo(&mut undone, Some(old), fact));
        settle(kind, &mut undone);
        let why = match kind {
            BlockKind::LinearEntries => entries::unexplained(old, new, &undone),
            BlockKind::InodeTable => inodes::unexplained(old, &undone),
            BlockKind::Group | BlockKind::Superblock => None,
            _ => (old != undone).then(|| "bytes that are no part of it".into()),
        };
        if let Some(why) = why {
            panic!("{} {}, unit {number}: changed without a fact: {why}; facts: {facts:?}", kind.name(), block.0);
        }
    }
}

#[cfg(test)]
mod tests;
