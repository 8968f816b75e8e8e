//! Directories of kind `btree`: entries in the leaves of a B+ tree, in the order of the hash of their names, as XFS had them in 1996.
//!
//! ```text
//! empty --> in the inode's body --> a tree of one leaf --> a tree of several levels
//!   ^_______________|_______________________|                       |
//!                                           ^_______________________|
//! ```
//!
//! The key of an entry is its tag, 32 bits of the hash of its name, and a number that tells names with one tag apart. A name gets
//! its number when it is added, and keeps it: so keys differ, a tree is one of keys that differ, and a listing goes on at a key
//! whatever was split, merged or moved meanwhile. Names with one tag lie side by side, maybe in several leaves; a lookup looks
//! at all of them until one has the name.
//!
//! What differs from 1996, and why: the hash is keyed, so that nobody can choose names that lie side by side (anybody can make that of
//! 1996 collide: it rotates and XORs); nodes have no neighbours noted (`tree`); a node that is given up leaves no hole in the
//! directory; inner nodes lead by whole keys, so that a run of equal tags need not be searched for one entry.
//!
//! Invariants
//!   1. Keys of a directory differ, and each leaf has those between the keys by which its parents lead to it and to the next.
//!   2. The directory's size is that of its nodes. They are file blocks 0, 1, ...; each but the root is the child of one other.
//!   3. No node but the root of an empty directory is empty, and a root has more than one child. A directory whose last entry
//!      goes has no blocks.
//!
//! An entry moves with its leaf, so no inode remembers where its name is: the position that goes with its identity is 0.

mod body;
mod node;
#[cfg(test)]
mod tests;
mod tree;

use super::{
    BlockSource, Found, Hit, Listed, Name, NewEntry, Probe, Search, Spot, cut, is_in_blocks, is_shown, type_of,
};
use crate::counters::Count;
use crate::edit::BlockStore;
use crate::error::{Errno, Error, Result};
use crate::order::{Look, Txn};
use crate::placement;
use crate::xattr;
use body::is_in_body;
use myriad_format::dir_tree::{NUMBER_BITS, OFFSET_SIZE, key, leaf_room, tree_entry_size};
use myriad_format::inode::RawInode;
use myriad_format::{BlockKind, FileBlock, Ino};
use node::{Entry, entry_bytes};
use tree::{AHEAD_MAX, Change, Path, Removal, Tree, nodes};
use zerocopy::little_endian::U64;

/// Most names that may share a tag. Tests are to come there.
const NUMBERS: u32 = if cfg!(test) { 200 } else { 1 << NUMBER_BITS };

/// Leaves that a listing looks at in one stay inside the gate, where nothing can be evicted for what it reads.
const LISTED_LEAVES: usize = 64;

/// Blocks that a directory gives up in one transaction.
const GIVEN_UP_MAX: u64 = 256;

/// What a search saw on its way, if it did not find the name.
pub(crate) struct Seen {
    /// The number that a new name with this tag gets; none is left if it is `None`.
    number: Option<u16>,
    /// The way to the only leaf that the search looked at, if there was but one: there the name goes.
    leaf: Option<Leaf>,
}

/// The way to a leaf, and how many bytes of it are in use.
struct Leaf {
    path: Path,
    used: usize,
}

/// Where an entry goes.
pub(crate) struct Room {
    number: u16,
    path: Option<Path>,
}

fn tree(dir: Ino, raw: &RawInode) -> Tree<'_> {
    Tree { dir, raw }
}

fn change<'t, 'v>(txn: &'t mut Txn<'v>, dir: Ino, raw: &'t mut RawInode) -> Change<'t, 'v> {
    let source = BlockSource::new(placement::beside(txn.volume(), dir));
    Change { txn, dir, raw, source }
}

/// Adds what a change took to the inode's count of blocks.
fn settle(change: Change<'_, '_>) {
    let Change { source, raw, .. } = change;
    source.settle(raw);
}

fn hit_of(entry: &Entry<'_>) -> Hit {
    Hit { ino: entry.ino(), spot: Spot::new(entry.key()), position: 0 }
}

/// Hands the entries with the tag of a name to `f`, in the order of their numbers, until it returns false; their leaf, if
/// there is but one where they can be.
fn each_with_tag(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    tag: u32,
    f: &mut dyn FnMut(&Entry<'_>) -> bool,
) -> Result<Option<Leaf>> {
    if !is_in_blocks(raw) {
        body::each(look, dir, raw, &mut |entry| Ok(entry.header.tag.get() != tag || f(entry)))?;
        return Ok(None);
    }
    let tree = tree(dir, raw);
    let (mut from, last) = (key(tag, 0), key(tag, u16::MAX));
    let mut is_sole = true;
    loop {
        let (path, (goes_on, used)) = tree.descend_and(look, from, &mut |leaf| {
            for index in leaf.lower_bound(from)?..leaf.count {
                let entry = leaf.entry(index)?;
                if entry.key() > last || !f(&entry) {
                    return Ok((false, leaf.used()));
                }
            }
            Ok((true, leaf.used()))
        })?;
        match path.end {
            Some(next) if goes_on && next <= last => from = next,
            _ => return Ok(Some(Leaf { path, used }).filter(|_| is_sole)),
        }
        is_sole = false;
    }
}

pub(crate) fn lookup(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Option<Found>> {
    let mut found = None;
    each_with_tag(look, dir, raw, name.tag(), &mut |entry| {
        if entry.name == name.bytes {
            found = Some(Found { ino: entry.ino(), raw: None });
        }
        found.is_none()
    })?;
    Ok(found)
}

pub(crate) fn search(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    let (mut hit, mut twin) = (None, None);
    // Numbers ascend in a tree, and come in any order in a body.
    let mut numbers = Vec::new();
    let leaf = each_with_tag(look, dir, raw, name.tag(), &mut |entry| {
        if entry.name == name.bytes {
            hit = Some(hit_of(entry));
            return false;
        }
        if look.volume.hasher.hash(entry.name) == name.hash {
            twin = Some(entry.ino());
        }
        numbers.push(u32::from(entry.header.number.get()));
        true
    })?;
    numbers.sort_unstable();
    // Behind the last one, where the way has led; or, once there is none left, the first gap.
    let behind = numbers.last().map_or(0, |last| last + 1);
    let (number, leaf) = match numbers.iter().zip(0..).find(|(number, expected)| *number != expected) {
        _ if behind < NUMBERS => (Some(behind), leaf),
        Some((_, gap)) => (Some(gap), None),
        None => (None, None),
    };
    Ok(Search { hit, twin, seen: super::Seen::Tree(Seen { number: number.map(|number| number as u16), leaf }) })
}

/// Refuses a name for which a directory of the largest size has no room, or whose tag too many others have.
pub(crate) fn prepare(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    name: Name<'_>,
    seen: super::Seen,
) -> Result<super::Place> {
    let super::Seen::Tree(Seen { number, leaf }) = seen else { unreachable!("a search of this directory") };
    let number = number.ok_or(Error::from(Errno::NOSPC))?;
    if !is_in_blocks(raw) {
        return Ok(super::Place::Tree(Room { number, path: None }));
    }
    let tree = tree(dir, raw);
    let Leaf { path, used } = match leaf {
        Some(leaf) => leaf,
        None => {
            let (path, used) = tree.descend_and(look, key(name.tag(), number), &mut |leaf| Ok(leaf.used()))?;
            Leaf { path, used }
        }
    };
    let block_size = look.volume.cache.block_size();
    let needed = tree_entry_size(name.bytes.len()) + OFFSET_SIZE;
    let fits = used + needed <= leaf_room(block_size);
    if !fits {
        if !tree.may_split(look, &path) {
            return Err(Errno::NOSPC.into());
        }
        // By the time when the leaf is split, the operation has taken an inode.
        tree.read_end(look)?;
    }
    Ok(super::Place::Tree(Room { number, path: Some(path) }))
}

pub(crate) fn insert(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &mut RawInode,
    entry: &NewEntry<'_>,
    place: &super::Place,
) -> Result<u32> {
    let super::Place::Tree(room) = place else { unreachable!("a search of this directory") };
    let bytes = entry_bytes(entry, room.number);
    let key = key(entry.name.tag(), room.number);
    if !is_in_blocks(raw) {
        if body::insert(txn, dir, raw, &bytes)? {
            return Ok(0);
        }
        body_to_leaf(txn, dir, raw)?;
    }
    let path = match &room.path {
        Some(path) => path.clone(),
        None => tree(dir, raw).descend(&txn.look, key)?,
    };
    let mut change = change(txn, dir, raw);
    change.insert(path, key, &bytes)?;
    settle(change);
    Ok(0)
}

/// Moves the entries of a body, or none, into a leaf, which becomes the root.
fn body_to_leaf(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<()> {
    txn.volume().counters.bump(Count::dir_to_block);
    let entries = body::sorted(&txn.look, dir, raw)?;
    body::clear(txn, dir, raw)?;
    raw.size = U64::new(0);
    let mut change = change(txn, dir, raw);
    change.add_node(|edit| node::write_leaf(edit, &entries))?;
    settle(change);
    Ok(())
}

/// What is not needed is given up by each removal.
pub(crate) fn trim(_txn: &mut Txn<'_>, _dir: Ino, _raw: &mut RawInode, _place: &super::Place) -> Result<()> {
    Ok(())
}

/// A hit is known by its key, which stays.
pub(crate) fn again(_look: &Look<'_>, _dir: Ino, _raw: &RawInode, _name: Name<'_>, hit: Hit) -> Result<Hit> {
    Ok(hit)
}

/// Refuses a directory with more blocks than its nodes and its attributes can have, before a change that gives up all behind the nodes: that
/// would be too many for one transaction.
fn check_blocks(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Result<()> {
    let block_size = look.volume.cache.block_size();
    let nodes = 2 * nodes(raw, block_size) + AHEAD_MAX + u64::from(u8::MAX);
    if raw.block_total() > nodes + xattr::blocks_of(raw, block_size) {
        return Err(myriad_format::Corrupt::Inode { ino: dir, field: "blocks", value: raw.block_total() }.into());
    }
    Ok(())
}

/// What the removal of an entry changes, and the way to it; `None` instead: it is the last one, and takes all blocks with it.
fn removal(look: &Look<'_>, dir: Ino, raw: &RawInode, key: u64) -> Result<Option<(Path, Removal)>> {
    check_blocks(look, dir, raw)?;
    let tree = tree(dir, raw);
    let (path, _) = tree.descend_and(look, key, &mut |leaf| leaf.find(key))?;
    if let Some(removal) = tree.removal(look, &path, key)? {
        return Ok(Some((path, removal)));
    }
    // All nodes are those on the way to it.
    if nodes(raw, look.volume.cache.block_size()) != path.steps.len() as u64 {
        return Err(myriad_format::Corrupt::Inode { ino: dir, field: "size", value: raw.size.get() }.into());
    }
    Ok(None)
}

pub(crate) fn remove(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, _name: Name<'_>, hit: Hit) -> Result<()> {
    let key = hit.spot.at;
    if !is_in_blocks(raw) {
        return body::remove(txn, dir, raw, key);
    }
    let Some((path, removal)) = removal(&txn.look, dir, raw, key)? else {
        return super::clear(txn, dir, raw);
    };
    let mut change = change(txn, dir, raw);
    change.remove(&path, key, &removal)?;
    settle(change);
    Ok(())
}

pub(crate) fn read_ahead_of_remove(look: &Look<'_>, dir: Ino, raw: &RawInode, hit: Hit) -> Result<()> {
    if !is_in_blocks(raw) {
        return Ok(());
    }
    match removal(look, dir, raw, hit.spot.at)? {
        Some(_) => Ok(()),
        None => super::read_ahead_of_clear(look, dir, raw),
    }
}

pub(crate) fn replace(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &RawInode,
    _name: Name<'_>,
    hit: Hit,
    ino: Ino,
    file_type: u8,
) -> Result<()> {
    let key = hit.spot.at;
    if !is_in_blocks(raw) {
        return body::replace(txn, dir, raw, key, ino, file_type);
    }
    let leaf = tree(dir, raw).descend(&txn.look, key)?.leaf();
    txn.change(leaf.block, BlockKind::DirTree, |edit| node::replace(edit, leaf, key, ino, file_type))?
}

pub(crate) fn is_empty(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Result<bool> {
    if is_in_blocks(raw) && nodes(raw, look.volume.cache.block_size()) > 0 {
        let tree = tree(dir, raw);
        let root = tree.place(look, 0)?;
        return tree.read(look, root, |node| Ok(node.count == 0));
    }
    let mut is_empty = true;
    body::each(look, dir, raw, &mut |_| {
        is_empty = false;
        Ok(false)
    })?;
    Ok(is_empty)
}

/// A directory without entries has no blocks, unless a repair or a stranger made it.
pub(crate) fn is_large(raw: &RawInode) -> bool {
    is_in_blocks(raw) && raw.block_total() > GIVEN_UP_MAX
}

pub(crate) fn has_idle_blocks(_raw: &RawInode) -> bool {
    false
}

pub(crate) fn give_up_emptied(_txn: &mut Txn<'_>, _dir: Ino, _raw: &mut RawInode, _listed: &mut u32) -> Result<bool> {
    Ok(true)
}

pub(crate) fn give_up_part(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<bool> {
    let blocks = nodes(raw, txn.volume().cache.block_size());
    if !is_large(raw) || blocks <= 1 {
        return Ok(true);
    }
    // Nothing but the root is of use.
    let kept = blocks.saturating_sub(GIVEN_UP_MAX).max(1);
    raw.size = U64::new(kept << txn.volume().geometry.block_bits);
    cut(txn, dir, raw, FileBlock(kept))?;
    Ok(false)
}

pub(crate) fn clear(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<()> {
    if is_in_body(raw) {
        body::clear(txn, dir, raw)?;
    }
    if is_in_blocks(raw) {
        cut(txn, dir, raw, FileBlock(0))?;
    }
    raw.size = U64::new(0);
    Ok(())
}

/// Lists entries in the order of their keys. A cookie is the key behind an entry's.
pub(crate) fn list(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    cookie: u64,
    f: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Option<u64>> {
    let mut show = |entry: &Entry<'_>, bad: &dyn Fn(&'static str, u64) -> Error| {
        if !is_shown(entry.name) {
            return Err(bad("name", u64::from(entry.name.first().copied().unwrap_or(0))));
        }
        let file_type = type_of(entry.header.file_type, |value| bad("type", value))?;
        Ok(f(Listed { name: entry.name, ino: entry.ino(), file_type, cookie: entry.key() + 1 }))
    };
    if !is_in_blocks(raw) {
        for bytes in body::sorted(look, dir, raw)? {
            let entry = Entry::at(&bytes, 0).expect("it was read so");
            if entry.key() >= cookie && !show(&entry, &|field, value| body::corrupt(dir, 0, field, value))? {
                break;
            }
        }
        return Ok(None);
    }
    let tree = tree(dir, raw);
    let mut from = cookie;
    for _ in 0..LISTED_LEAVES {
        let (path, goes_on) = tree.descend_and(look, from, &mut |leaf| {
            let mut least = from;
            for index in leaf.lower_bound(from)?..leaf.count {
                let entry = leaf.entry(index)?;
                // Whoever went on from a key that is out of order would go round for ever.
                if entry.key() < least {
                    return Err(leaf.place.corrupt_entry(entry.offset, "key", entry.key()));
                }
                least = entry.key() + 1;
                if !show(&entry, &|field, value| leaf.place.corrupt_entry(entry.offset, field, value))? {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        match path.end {
            Some(next) if goes_on => from = next,
            _ => return Ok(None),
        }
    }
    Ok(Some(from))
}

/// There is nothing that would guess: a name that the name cache does not know is looked for.
pub(crate) fn probe(_look: &Look<'_>, _dir: Ino, _raw: &RawInode, _name: Name<'_>) -> Result<Option<Probe>> {
    Ok(None)
}

pub(crate) fn guess(_look: &Look<'_>, _dir: Ino, _probe: Probe, _name: Name<'_>) -> Result<Option<Ino>> {
    Ok(None)
}
