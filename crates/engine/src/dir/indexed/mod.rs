//! Directories of kind `indexed`.
//!
//! ```text
//! empty --> in the inode's body --> one entry block --> entry blocks and an index
//!   ^______________|____________________|__________________|   (when the last entry goes)
//! ```
//!
//! A directory of many blocks gives them up in several transactions once its last entry has gone ([`give_up_part`]). Between
//! two of them it is a directory like any other, which has no entries and may get some.
//!
//! A directory of one entry block, of which at most `UNINDEXED_MAX` bytes are used, has no index. A lookup compares tags of 4
//! bytes in a block that is in the cache, and reads a name only where a tag is the same. An index would cost every creation and
//! removal one more block and one more record of the log, and most directories have fewer than fifty entries. The insertion that
//! outgrows the block builds the index from it.
//!
//! Entries are the truth and never move, so their position is a readdir cookie that stays valid; the index only finds
//! them. A hit of the index is confirmed by the inode's identity (its parent and the full hash of its name), which the
//! caller is about to read anyway; by the entry's name where that cannot decide: hard links, directories in which two
//! names share 64 hash bits, and every operation that touches the entry in any case.
//!
//! Here: names are found, and an entry is removed or made to name another inode. `entries` has the run of entries in one block or
//! body, `rooms` the list of blocks with room, `index` the index, `insert` what a new name changes, `shrink` what the last entry
//! leaves, `list` listings, `hashed` the same directories with their hashes in memory.

mod entries;
mod hashed;
mod index;
mod insert;
mod list;
mod rooms;
mod shrink;
#[cfg(test)]
mod tests;

pub(crate) use list::list;
pub(crate) use shrink::{clear, give_up_emptied, give_up_part, has_idle_blocks, is_large, read_index};

use super::hints::Filled;
use super::place::Place;
use super::{Found, Hit, Name, NewEntry, Probe, Search, Spot, is_in_blocks};
use crate::counters::Count;
use crate::edit::BlockStore;
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::map::{self, Mapping};
use crate::order::{Look, Txn};
use crate::volume::Reason;
use entries::{Entries, Run};
use insert::insert_entry;
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader, EntryHeader, NAME_MAX, entry_size};
use myriad_format::fork::Fork;
use myriad_format::inode::{RawInode, flag, fork};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino, header};
use rooms::{ROOM_TRIES, entry_blocks_max, list_room, room_block, run_of};
use zerocopy::little_endian::U64;

/// Bytes that the longest entry takes at most, with a rest that was too short to be an entry of its own.
const ENTRY_LEN_MAX: u64 = (entry_size(NAME_MAX) + EntryHeader::SIZE) as u64;

/// What a search saw on its way: the index, if there is one, and no hash in memory was asked instead.
pub(crate) struct Seen {
    index: Option<SeenIndex>,
}

#[derive(Clone, Copy)]
struct SeenIndex {
    /// The leaf where the name belongs.
    leaf: FsBlock,
    root: index::Root,
}

/// Where an entry goes. Without an index, its block is small and looked at once more.
pub(crate) struct Room {
    /// The leaf of the index where the name belongs, and the head of the list of blocks with room.
    index: Option<(FsBlock, u32)>,
}

/// An entry found, in the volume's block `at`, or in the inode's body ([`FsBlock::NONE`]). Its position says where in the block.
fn hit(ino: Ino, position: u32, at: FsBlock) -> Hit {
    Hit { ino, spot: Spot::new(at.0), position }
}

/// The index root of a directory in blocks, or none.
fn index_root(raw: &RawInode) -> Option<FsBlock> {
    raw.index_root()
}

/// As [`index_root`], of any directory.
fn index_root_in(raw: &RawInode) -> Option<FsBlock> {
    is_in_blocks(raw).then(|| index_root(raw)).flatten()
}

fn set_index_root(raw: &mut RawInode, root: FsBlock) {
    raw.set_index_root(root);
}

fn is_in_body(raw: &RawInode) -> bool {
    raw.fork_code() == fork::INLINE
}

/// The volume block of an entry block.
fn entry_block(look: &Look<'_>, dir: Ino, raw: &RawInode, block: FileBlock) -> Result<FsBlock> {
    match map::lookup(&mut &*look, raw, dir, block)? {
        Mapping::Mapped(extent) => Ok(extent.start.offset_by(block.0 - extent.file_block.0)),
        Mapping::Hole { .. } => Err(Corrupt::DirEntry { ino: dir, block, offset: 0, field: "block", value: 0 }.into()),
    }
}

/// File block and offset of a position.
fn split_position(look: &Look<'_>, position: u32) -> (FileBlock, usize) {
    let bytes = u64::from(position) * 8;
    let bits = look.volume.geometry.block_bits;
    (FileBlock(bytes >> bits), (bytes & ((1 << bits) - 1)) as usize)
}

fn position_of(look: &Look<'_>, block: FileBlock, offset: usize) -> u32 {
    (((block.0 << look.volume.geometry.block_bits) + offset as u64) / 8) as u32
}

/// Looks a name up, to read. With an index, a record whose inode's identity matches is taken at its word.
pub(crate) fn lookup(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Option<Found>> {
    let unread = |hit: Option<Hit>| hit.map(|hit| Found { ino: hit.ino, raw: None });
    if look.volume.dir_hashes.is_on()
        && let Some(search) = hashed::search(look, dir, raw, name)
    {
        return Ok(unread(search.hit));
    }
    let Some(root) = index_root_in(raw) else {
        return Ok(unread(scan(look, dir, raw, name)?.hit));
    };
    if raw.has_flag(flag::HASH_TWINS) {
        return Ok(unread(search_index(look, dir, raw, name)?.hit));
    }
    let mut records = [index::Record { tag: 0, position: 0, ino: Ino::NONE }; 4];
    let leaf = index::find_leaf(look, dir, root, name.tag())?;
    let count = index::find_in(look, dir, leaf, name.tag(), &mut records)?;
    for record in &records[..count.min(records.len())] {
        let child = inode::read(look, record.ino)?;
        if child.parent.get() == dir.0 && child.name_hash.get() == name.hash {
            return Ok(Some(Found { ino: record.ino, raw: Some(child) }));
        }
    }
    if count == 0 {
        return Ok(None);
    }
    // A hard link under another name than its identity, or a false hit of the tag: the entry decides.
    look.volume.counters.bump(Count::dir_index_false_hits);
    Ok(unread(find_entry(look, dir, raw, name, leaf)?.0))
}

/// Looks a name up, to change: exact, by the entry itself, and tells of twins.
pub(crate) fn search(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    if look.volume.dir_hashes.is_on()
        && let Some(mut search) = hashed::search(look, dir, raw, name)
    {
        if let (Some(hit), Some(root)) = (&mut search.hit, index_root(raw)) {
            // Whoever takes the entry away changes its record as well, and must not find that it cannot be read when the entry is gone.
            hit.spot.leaf = index::find_leaf(look, dir, root, name.tag())?;
            index::check_leaf(look, dir, hit.spot.leaf)?;
        }
        return Ok(search);
    }
    search_index(look, dir, raw, name)
}

/// A search by the index on disk, or through the one block of a directory without one.
#[inline]
fn search_index(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    let Some(root) = index_root_in(raw) else {
        return scan(look, dir, raw, name);
    };
    let (leaf, root) = index::find_leaf_and_root(look, dir, root, name.tag())?;
    let (hit, twin) = find_entry(look, dir, raw, name, leaf)?;
    Ok(Search { hit, twin, seen: super::Seen::Indexed(Seen { index: Some(SeenIndex { leaf, root }) }) })
}

/// The entry of a name that belongs in this leaf of the index, and what another name with the same hash names.
#[inline]
fn find_entry(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    name: Name<'_>,
    leaf: FsBlock,
) -> Result<(Option<Hit>, Option<Ino>)> {
    let mut twin = None;
    let none = index::Record { tag: 0, position: 0, ino: Ino::NONE };
    let mut few = [none; 4];
    let count = index::find_in(look, dir, leaf, name.tag(), &mut few)?;
    let mut many = Vec::new();
    let records = if count <= few.len() {
        &few[..count]
    } else {
        many.resize(count, none);
        let count = index::find_in(look, dir, leaf, name.tag(), &mut many)?;
        &many[..count.min(many.len())]
    };
    for record in records {
        let (block, offset) = split_position(look, record.position);
        let places = &look.volume.last_blocks;
        let at = match places.find(dir, raw, block) {
            Some(at) => at,
            None => {
                let at = entry_block(look, dir, raw, block)?;
                places.note(dir, raw, block, at);
                at
            }
        };
        debug_assert!(
            entry_block(look, dir, raw, block).map_or(true, |now| now == at),
            "what is remembered of a directory's map is so"
        );
        let (same, hash) = entry_is(look, at, offset, Place { dir, block }, name)?;
        if same {
            let spot = Spot { at: at.0, leaf };
            return Ok((Some(Hit { ino: record.ino, spot, position: record.position }), twin));
        }
        if hash == name.hash {
            twin = Some(record.ino);
        }
    }
    Ok((None, twin))
}

/// Whether the entry at `offset` of block `at` has this name; and the hash of the name it has.
fn entry_is(look: &Look<'_>, at: FsBlock, offset: usize, place: Place, name: Name<'_>) -> Result<(bool, u64)> {
    look.read(at, BlockKind::DirEntries, |bytes| {
        header::verify_owner(bytes, at, place.dir.0)?;
        let entry = entries::at(bytes, offset, place)?;
        if entry.name == name.bytes { Ok((true, name.hash)) } else { Ok((false, look.volume.hasher.hash(entry.name))) }
    })?
}

/// A search without an index.
fn scan(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    look.volume.counters.bump(Count::dir_scans);
    let place = Place { dir, block: FileBlock(0) };
    let mut twin = None;
    let mut other = |entry: &entries::Entry<'_>| {
        if look.volume.hasher.hash(entry.name) == name.hash {
            twin = Some(Ino(entry.header.ino.get()));
        }
    };
    let hit = |entry: Option<entries::Entry<'_>>, at: FsBlock| {
        entry.map(|entry| hit(Ino(entry.header.ino.get()), (entry.offset / 8) as u32, at))
    };
    let hit = match Fork::decode(raw, dir)? {
        Fork::Inline => inode::read_body(look, dir, raw, |data, _| {
            entries::find(Entries::new(data, place), name.tag(), name.bytes, &mut other)
                .map(|entry| hit(entry, FsBlock::NONE))
        })??,
        _ if is_in_blocks(raw) => {
            let block = entry_block(look, dir, raw, FileBlock(0))?;
            look.read(block, BlockKind::DirEntries, |bytes| {
                header::verify_owner(bytes, block, dir.0)?;
                entries::find(Entries::of_block(bytes, place)?, name.tag(), name.bytes, &mut other)
                    .map(|entry| hit(entry, block))
            })??
        }
        _ => None,
    };
    Ok(Search { hit, twin, seen: super::Seen::Indexed(Seen { index: None }) })
}

/// What is no longer needed is given up when the last entry goes.
pub(crate) fn trim(_txn: &mut Txn<'_>, _dir: Ino, _raw: &mut RawInode, _place: &super::Place) -> Result<()> {
    Ok(())
}

/// An entry keeps its position. Those of a body may all have gone into a block meanwhile.
pub(crate) fn again(look: &Look<'_>, dir: Ino, raw: &RawInode, _name: Name<'_>, hit: Hit) -> Result<Hit> {
    if hit.spot.at != FsBlock::NONE.0 || !is_in_blocks(raw) {
        // Its record may be in another leaf.
        return Ok(Hit { spot: Spot::new(hit.spot.at), ..hit });
    }
    let (block, _) = split_position(look, hit.position);
    Ok(Hit { spot: Spot::new(entry_block(look, dir, raw, block)?.0), ..hit })
}

/// Where the index holds `name`, if there is one: leaf and offset in it.
pub(crate) fn probe(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Option<Probe>> {
    match index_root_in(raw) {
        Some(root) if !raw.has_flag(flag::HASH_TWINS) => index::place(look, dir, root, name.tag()).map(Some),
        _ => Ok(None),
    }
}

/// The first inode that a leaf has for `name`: a guess, which the inode's identity confirms.
pub(crate) fn guess(look: &Look<'_>, dir: Ino, probe: Probe, name: Name<'_>) -> Result<Option<Ino>> {
    let mut records = [index::Record { tag: 0, position: 0, ino: Ino::NONE }; 1];
    let count = index::find_in(look, dir, probe.block, name.tag(), &mut records)?;
    Ok((count > 0).then_some(records[0].ino))
}

/// Refuses a name for which a directory of the largest size has no room.
pub(crate) fn prepare(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    name: Name<'_>,
    seen: super::Seen,
) -> Result<super::Place> {
    let super::Seen::Indexed(Seen { mut index }) = seen else { unreachable!("a search of this directory") };
    if index.is_none()
        && let Some(root) = index_root_in(raw)
    {
        // The hash in memory knew that the name is not there.
        let (leaf, root) = index::find_leaf_and_root(look, dir, root, name.tag())?;
        index::check_leaf(look, dir, leaf)?;
        index = Some(SeenIndex { leaf, root });
    }
    let Some(SeenIndex { leaf, root }) = index else {
        return Ok(super::Place::Indexed(Room { index: None }));
    };
    let room = super::Place::Indexed(Room { index: Some((leaf, root.room_head)) });
    if u64::from(root.entry_blocks) < entry_blocks_max(look) {
        // All of the map may be in the inode; where the directory has got a name lately, it has been read.
        if raw.fork_code() != fork::DIRECTORY && !look.volume.last_blocks.knows(dir, raw) {
            read_end(look, dir, raw, root)?;
        }
        return Ok(room);
    }
    // No block can be added: one that an insertion tries must do.
    let mut next = root.room_head;
    for _ in 0..ROOM_TRIES {
        let Some(block) = room_block(next) else { break };
        let at = entry_block(look, dir, raw, block)?;
        let fits = look.read(at, BlockKind::DirEntries, |bytes| {
            next = EntryBlockHeader::read(bytes).next_room.get();
            let (run, live) = run_of(bytes, at, usize::MAX, Place { dir, block })?;
            entries::fit(bytes, &run, entry_size(name.bytes.len()), live, 0, Place { dir, block })
        })??;
        if fits.is_some() {
            return Ok(room);
        }
    }
    Err(Errno::NOSPC.into())
}

/// Reads of a directory's map what adding an entry block reads: by the time when an insertion finds that it needs a block, the operation has taken an inode.
#[cold]
fn read_end(look: &Look<'_>, dir: Ino, raw: &RawInode, root: index::Root) -> Result<()> {
    let end = FileBlock(u64::from(root.entry_blocks));
    map::lookup(&mut &*look, raw, dir, end)?;
    // Behind a block that is not there nothing is added.
    entry_block(look, dir, raw, FileBlock(end.0.saturating_sub(1))).map(drop)
}

/// Adds an entry whose name is not there; returns its position.
pub(crate) fn insert(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &mut RawInode,
    entry: &NewEntry<'_>,
    place: &super::Place,
) -> Result<u32> {
    let super::Place::Indexed(room) = place else { unreachable!("a search of this directory") };
    if txn.volume().dir_hashes.is_on() {
        return hashed::insert(txn, dir, raw, entry, |txn, raw| insert_entry(txn, dir, raw, entry, room));
    }
    insert_entry(txn, dir, raw, entry, room)
}

/// Removes the entry at a position. The last entry takes all blocks with it. If they are many, it puts the directory on the
/// list of orphans, and they are given up after the transaction.
pub(crate) fn remove(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, name: Name<'_>, hit: Hit) -> Result<()> {
    if txn.volume().dir_hashes.is_on() {
        return hashed::remove(txn, dir, raw, name, hit, |txn, raw| remove_entry(txn, dir, raw, name, hit));
    }
    remove_entry(txn, dir, raw, name, hit)
}

#[inline]
fn remove_entry(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, name: Name<'_>, hit: Hit) -> Result<()> {
    let position = hit.position;
    let (block, offset) = split_position(&txn.look, position);
    if !is_in_blocks(raw) {
        let (length, used) = inode::change_body(txn, dir, raw, |edit, base, used| {
            entries::remove(edit, &Run { base, used, capacity: used }, offset - ENTRIES_OFFSET)
        })?;
        raw.size = U64::new(raw.size.get().saturating_sub(length as u64));
        let used = if raw.size.get() == 0 { 0 } else { used };
        inode::resize_body(txn, dir, raw, used)?;
        if used == 0 {
            Fork::None.encode(raw);
        }
        return Ok(());
    }
    let root = index_root(raw);
    let at = FsBlock(hit.spot.at);
    let place = Place { dir, block };
    // Only of the last one it has to be known before how long it is.
    if raw.size.get() <= ENTRY_LEN_MAX && !is_large(raw) {
        let entry_len = txn.look.read(at, BlockKind::DirEntries, |bytes| {
            entries::at(bytes, offset, place).map(|entry| u64::from(entry.header.length.get()))
        })??;
        if raw.size.get() <= entry_len {
            raw.size = U64::new(0);
            return super::clear(txn, dir, raw);
        }
    }
    let block_size = txn.volume().cache.block_size();
    let (length, lists, filled) = txn.change(at, BlockKind::DirEntries, |edit| {
        // It lies before the tail and in the block.
        entries::at(edit.bytes(), offset, place)?;
        let header = *EntryBlockHeader::read(edit.bytes());
        let used = (header.tail.get() as usize).min(block_size) - ENTRIES_OFFSET;
        let run = Run { base: ENTRIES_OFFSET, used, capacity: used };
        let (length, used) = entries::remove(edit, &run, offset - ENTRIES_OFFSET);
        let live = (header.live.get() as usize).saturating_sub(length);
        // An empty block starts afresh: free entries that were never joined vanish.
        let used = if live == 0 { 0 } else { used };
        let filled = Filled { used, live };
        entries::set_filled(edit, filled);
        let free = (block_size - ENTRIES_OFFSET).saturating_sub(live);
        let lists = header.next_room.get() == 0 && free >= block_size / 4;
        Ok::<_, Error>((length, lists, filled))
    })??;
    raw.size = U64::new(raw.size.get().saturating_sub(length as u64));
    txn.volume().last_blocks.has_hole(dir, at, offset - ENTRIES_OFFSET, filled);
    if let Some(root) = root {
        if !index::update(txn, dir, (root, hit.spot.leaf), name.tag(), position, None)? {
            return Err(Corrupt::DirIndex { ino: dir, block: root, field: "record", value: u64::from(position) }.into());
        }
        if lists {
            list_room(txn, root, block, at)?;
        }
    }
    if has_idle_blocks(raw) {
        txn.volume().orphans.note(dir, Reason::Emptied);
    }
    Ok(())
}

/// A search has read what the entry and its record need. The last entry takes all blocks with it.
pub(crate) fn read_ahead_of_remove(look: &Look<'_>, dir: Ino, raw: &RawInode, _hit: Hit) -> Result<()> {
    let may_be_last = raw.size.get() <= ENTRY_LEN_MAX && !is_large(raw);
    if may_be_last { super::read_ahead_of_clear(look, dir, raw) } else { Ok(()) }
}

/// Makes an entry name another inode.
pub(crate) fn replace(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &RawInode,
    name: Name<'_>,
    hit: Hit,
    ino: Ino,
    file_type: u8,
) -> Result<()> {
    let position = hit.position;
    let (_, offset) = split_position(&txn.look, position);
    if !is_in_blocks(raw) {
        return inode::change_body(txn, dir, raw, |edit, base, _| {
            entries::replace(edit, base + offset - ENTRIES_OFFSET, ino, file_type);
        });
    }
    let at = FsBlock(hit.spot.at);
    txn.change(at, BlockKind::DirEntries, |edit| entries::replace(edit, offset, ino, file_type))?;
    if let Some(root) = index_root(raw)
        && !index::update(txn, dir, (root, hit.spot.leaf), name.tag(), position, Some(ino))?
    {
        return Err(Corrupt::DirIndex { ino: dir, block: root, field: "record", value: u64::from(position) }.into());
    }
    Ok(())
}

pub(crate) fn is_empty(_look: &Look<'_>, _dir: Ino, raw: &RawInode) -> Result<bool> {
    Ok(raw.size.get() == 0)
}
