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

mod entries;
mod hashed;
mod index;

use super::hints::Passed;
use super::place::Place;
use super::{
    BlockSource, Found, Hit, Listed, Name, NewEntry, Probe, Search, Spot, free_blocks, is_in_blocks, is_shown, type_of,
};
use crate::counters::Count;
use crate::edit::{BlockStore, NewBlock};
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::map::{self, FILE_END, Mapping};
use crate::order::{Look, Txn};
use crate::placement;
use crate::planted::{Bug, planted};
use crate::volume::{Reason, Share};
use entries::{Entries, Run};
use myriad_format::dir::{
    ENTRIES_OFFSET, EntryBlockHeader, EntryHeader, IndexHeader, LIST_END, NAME_MAX, UNINDEXED_MAX, entry_size,
};
use myriad_format::extent::Extent;
use myriad_format::fork::Fork;
use myriad_format::inode::{RawInode, flag, fork};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino, header};
use std::mem::offset_of;
use zerocopy::little_endian::{U32, U64};

/// Fields that are changed by themselves: of an entry block, which comes after it in the list of those with room; of the index root, the
/// first of that list, and how many entry blocks there are.
const NEXT_ROOM: usize = offset_of!(EntryBlockHeader, next_room);
const ROOM_HEAD: usize = offset_of!(IndexHeader, room_head);
const ENTRY_BLOCKS: usize = offset_of!(IndexHeader, entry_blocks);
/// Blocks with room that an insertion tries before it adds one. Their room may be holes too small for its name, and the
/// list as long as the directory; inside the gate nothing can be evicted for what it would read.
const ROOM_TRIES: u32 = 8;

/// Bytes that the longest entry takes at most, with a rest that was too short to be an entry of its own.
const ENTRY_LEN_MAX: u64 = (entry_size(NAME_MAX) + EntryHeader::SIZE) as u64;

/// Blocks that a listing looks at in one stay inside the gate, where nothing can be evicted for what it reads: a directory
/// that had many names has as many blocks, which may all be empty.
const LISTED_BLOCKS: u64 = 64;

/// Blocks that an empty directory gives up in the transaction that empties or removes it. Of one with more, as many at most are
/// changed in each of several. Tests are to come there with small directories.
const GIVEN_UP_MAX: u64 = if cfg!(debug_assertions) { 8 } else { 64 };

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

/// Bytes of entries that a body may hold: what the largest body has room for, and no more than an entry block, which
/// takes them over one day.
fn body_max(look: &Look<'_>) -> usize {
    inode::body_capacity_max(look.volume).min(look.volume.cache.block_size() - ENTRIES_OFFSET)
}

/// Bytes of entries that a block without an index may hold.
fn unindexed_max(block_size: usize) -> usize {
    block_size.min(UNINDEXED_MAX)
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
    let count = index::find(look, dir, root, name.tag(), &mut records)?;
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
    Ok(unread(search_index(look, dir, raw, name)?.hit))
}

/// Looks a name up, to change: exact, by the entry itself, and tells of twins.
pub(crate) fn search(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    if look.volume.dir_hashes.is_on()
        && let Some(search) = hashed::search(look, dir, raw, name)
    {
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
    let mut twin = None;
    let (leaf, root) = index::find_leaf_and_root(look, dir, root, name.tag())?;
    let seen = super::Seen::Indexed(Seen { index: Some(SeenIndex { leaf, root }) });
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
        debug_assert_eq!(at, entry_block(look, dir, raw, block)?, "what is remembered of a directory's map is so");
        let (same, hash) = entry_is(look, at, offset, Place { dir, block }, name)?;
        if same {
            let spot = Spot { at: at.0, leaf };
            return Ok(Search { hit: Some(Hit { ino: record.ino, spot, position: record.position }), twin, seen });
        }
        if hash == name.hash {
            twin = Some(record.ino);
        }
    }
    Ok(Search { hit: None, twin, seen })
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
        index = Some(SeenIndex { leaf, root });
    }
    let Some(SeenIndex { leaf, root }) = index else {
        return Ok(super::Place::Indexed(Room { index: None }));
    };
    let room = super::Place::Indexed(Room { index: Some((leaf, root.room_head)) });
    if u64::from(root.entry_blocks) < entry_blocks_max(look) {
        return Ok(room);
    }
    // No block can be added: one that an insertion tries must do.
    let mut next = root.room_head;
    for _ in 0..ROOM_TRIES {
        if next == LIST_END || next == 0 {
            break;
        }
        let block = FileBlock(u64::from(next - 1));
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

/// Entry blocks of the largest directory: the last position must fit 32 bits, and the map must reach as far.
fn entry_blocks_max(look: &Look<'_>) -> u64 {
    let geometry = &look.volume.geometry;
    (u64::from(u32::MAX) * 8).min(map::size_max(geometry)) >> geometry.block_bits
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

#[inline]
fn insert_entry(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, entry: &NewEntry<'_>, room: &Room) -> Result<u32> {
    if !is_in_blocks(raw) {
        if let Some(position) = insert_in_body(txn, dir, raw, entry)? {
            return Ok(position);
        }
        body_to_block(txn, dir, raw)?;
    }
    let mut source = BlockSource::new(placement::beside(txn.volume(), dir));
    let position = insert_in_blocks(txn, &mut source, dir, raw, entry, room)?;
    source.settle(raw);
    Ok(position)
}

fn add_size(raw: &mut RawInode, bytes: usize) {
    raw.size = U64::new(raw.size.get() + bytes as u64);
}

fn insert_in_body(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, entry: &NewEntry<'_>) -> Result<Option<u32>> {
    let place = Place { dir, block: FileBlock(0) };
    let size = entry_size(entry.name.bytes.len());
    let live = raw.size.get() as usize;
    if live + size > body_max(&txn.look) {
        return Ok(None);
    }
    let (used, holes) = if is_in_body(raw) {
        inode::read_body(&txn.look, dir, raw, |data, _| (data.len(), live < data.len()))?
    } else {
        (0, false)
    };
    if holes {
        // Free entries first: growing a body may mean moving it.
        let found = inode::change_body(txn, dir, raw, |edit, base, used| {
            let run = Run { base, used, capacity: used };
            let fit = entries::fit(edit.bytes(), &run, size, live, 0, place)?;
            Ok::<_, Error>(fit.map(|fit| (fit.at, entries::insert(edit, &run, &fit, entry).0)))
        })??;
        if let Some((at, taken)) = found {
            add_size(raw, taken);
            return Ok(Some(((ENTRIES_OFFSET + at) / 8) as u32));
        }
    }
    if used + size > body_max(&txn.look) || !inode::resize_body(txn, dir, raw, used + size)? {
        return Ok(None);
    }
    Fork::Inline.encode(raw);
    inode::change_body(txn, dir, raw, |edit, base, _| {
        let run = Run { base, used, capacity: used + size };
        entries::insert(edit, &run, &entries::Fit { at: used, hole: 0 }, entry);
    })?;
    add_size(raw, size);
    Ok(Some(((ENTRIES_OFFSET + used) / 8) as u32))
}

/// Moves the entries of a body into entry block 0. Their positions stay what they are.
fn body_to_block(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<()> {
    txn.volume().counters.bump(Count::dir_to_block);
    let data =
        if is_in_body(raw) { inode::read_body(&txn.look, dir, raw, |data, _| data.to_vec())? } else { Vec::new() };
    let mut source = BlockSource::new(placement::beside(txn.volume(), dir));
    let (block, _) = txn.volume().allocate_extent(txn, source.goal, 1, 1)?;
    let live = raw.size.get() as u32;
    txn.init(NewBlock::free(block), BlockKind::DirEntries, dir.0, |edit| {
        edit.put(ENTRIES_OFFSET, &data);
        let header = EntryBlockHeader::read_mut(edit.range_mut(0, EntryBlockHeader::SIZE));
        header.tail = U32::new((ENTRIES_OFFSET + data.len()) as u32);
        header.live = U32::new(live);
    })?;
    if is_in_body(raw) {
        inode::resize_body(txn, dir, raw, 0)?;
    }
    Fork::None.encode(raw);
    let extent = Extent { file_block: FileBlock(0), start: block, length: 1, unwritten: false };
    map::insert(txn, &mut source, raw, dir, extent)
}

fn insert_in_blocks(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    dir: Ino,
    raw: &mut RawInode,
    entry: &NewEntry<'_>,
    room: &Room,
) -> Result<u32> {
    let root = match index_root(raw) {
        Some(root) => root,
        None => {
            let limit = unindexed_max(txn.volume().cache.block_size());
            if let Some(position) = insert_in_block(txn, dir, raw, FileBlock(0), limit, entry)? {
                return Ok(position);
            }
            build_index(txn, source, dir, raw)?
        }
    };
    let mut root = root;
    let mut tried = 0;
    let (leaf, mut known_head) = room.index.unzip();
    let position = loop {
        let head = match known_head.take() {
            Some(head) => head,
            None => txn.look.read(root, BlockKind::DirIndex, |bytes| IndexHeader::read(bytes).room_head.get())?,
        };
        if head == LIST_END || head == 0 || tried == ROOM_TRIES {
            add_entry_block(txn, source, dir, raw, root)?;
            tried = 0;
            continue;
        }
        tried += 1;
        let block = FileBlock(u64::from(head - 1));
        if let Some(position) = insert_in_block(txn, dir, raw, block, usize::MAX, entry)? {
            break position;
        }
        // No room for this name: off the list until removals make room.
        let at = entry_block(&txn.look, dir, raw, block)?;
        let next = txn.change(at, BlockKind::DirEntries, |edit| {
            let next = EntryBlockHeader::read(edit.bytes()).next_room.get();
            edit.put(NEXT_ROOM, &0_u32.to_le_bytes());
            next
        })?;
        let next = if next == 0 { LIST_END } else { next };
        txn.change(root, BlockKind::DirIndex, |edit| edit.put(ROOM_HEAD, &next.to_le_bytes()))?;
    };
    let record = index::Record { tag: entry.name.tag(), position, ino: entry.ino };
    if !planted(Bug::IndexForgotten) {
        index::insert(txn, source, dir, &mut root, record, leaf)?;
    }
    set_index_root(raw, root);
    Ok(position)
}

/// Tries to put an entry into one block, of which entries may fill `limit` bytes.
fn insert_in_block(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &mut RawInode,
    block: FileBlock,
    limit: usize,
    entry: &NewEntry<'_>,
) -> Result<Option<u32>> {
    let last = &txn.volume().last_blocks;
    let (at, passed) = match last.get(dir, raw, block) {
        Some(known) => known,
        None => {
            let at = entry_block(&txn.look, dir, raw, block)?;
            last.put(dir, raw, block, at);
            (at, Passed::default())
        }
    };
    let size = entry_size(entry.name.bytes.len());
    let from = passed.all_shorter(size);
    let done = txn.change(at, BlockKind::DirEntries, |edit| {
        let place = Place { dir, block };
        let (run, live) = run_of(edit.bytes(), at, limit, place)?;
        let fit = entries::fit(edit.bytes(), &run, size, live, from, place)?;
        debug_assert_eq!(
            fit,
            entries::fit(edit.bytes(), &run, size, live, 0, place)?,
            "what is passed over is too short"
        );
        let Some(fit) = fit else { return Ok::<_, Error>(None) };
        if fit.hole > 0 {
            last.pass(dir, block, fit.at, size);
        }
        let (taken, used) = entries::insert(edit, &run, &fit, entry);
        let fields = edit.range_mut(48, 8);
        fields[..4].copy_from_slice(&((ENTRIES_OFFSET + used) as u32).to_le_bytes());
        fields[4..].copy_from_slice(&((live + taken) as u32).to_le_bytes());
        Ok(Some((fit.at, taken)))
    })??;
    Ok(done.map(|(offset, taken)| {
        add_size(raw, taken);
        position_of(&txn.look, block, ENTRIES_OFFSET + offset)
    }))
}

/// The run of entries of a block, of which they may fill `limit` bytes, and how many bytes of it live entries have.
fn run_of(bytes: &[u8], at: FsBlock, limit: usize, place: Place) -> Result<(Run, usize)> {
    let Place { dir, block } = place;
    header::verify_owner(bytes, at, dir.0)?;
    let header = EntryBlockHeader::read(bytes);
    let (tail, live) = (header.tail.get() as usize, header.live.get() as usize);
    if tail < ENTRIES_OFFSET || tail > bytes.len() {
        return Err(Corrupt::DirEntry { ino: dir, block, offset: 48, field: "tail", value: tail as u64 }.into());
    }
    let capacity = bytes.len().min(limit) - ENTRIES_OFFSET;
    Ok((Run { base: ENTRIES_OFFSET, used: tail - ENTRIES_OFFSET, capacity }, live))
}

/// Makes the index of a directory that outgrows its one entry block.
fn build_index(txn: &mut Txn<'_>, source: &mut BlockSource, dir: Ino, raw: &mut RawInode) -> Result<FsBlock> {
    txn.volume().counters.bump(Count::dir_to_index);
    let place = Place { dir, block: FileBlock(0) };
    let at = entry_block(&txn.look, dir, raw, FileBlock(0))?;
    let records = txn.look.read(at, BlockKind::DirEntries, |bytes| {
        let mut records = Vec::new();
        for entry in Entries::of_block(bytes, place)? {
            let entry = entry?;
            if entry.header.ino.get() != 0 {
                records.push(index::Record {
                    tag: entry.header.tag.get(),
                    position: (entry.offset / 8) as u32,
                    ino: Ino(entry.header.ino.get()),
                });
            }
        }
        Ok::<_, Error>(records)
    })??;
    let root = index::create(txn, source, dir, &records)?;
    set_index_root(raw, root);
    // Without an index its entries may fill 4 KiB only; larger blocks have room left.
    list_room(txn, dir, raw, root, FileBlock(0))?;
    Ok(root)
}

/// Puts a block at the head of the list of blocks with room, unless it is on it.
fn list_room(txn: &mut Txn<'_>, dir: Ino, raw: &RawInode, root: FsBlock, block: FileBlock) -> Result<()> {
    let at = entry_block(&txn.look, dir, raw, block)?;
    let head = txn.look.read(root, BlockKind::DirIndex, |bytes| IndexHeader::read(bytes).room_head.get())?;
    let listed = txn.change(at, BlockKind::DirEntries, |edit| {
        if EntryBlockHeader::read(edit.bytes()).next_room.get() != 0 {
            return true;
        }
        edit.put(NEXT_ROOM, &head.to_le_bytes());
        false
    })?;
    if !listed {
        let code = block.0 as u32 + 1;
        txn.change(root, BlockKind::DirIndex, |edit| edit.put(ROOM_HEAD, &code.to_le_bytes()))?;
    }
    Ok(())
}

/// Adds an empty entry block at the head of the list. Blocks are taken in runs that grow with the directory, so that a
/// directory of millions has few extents.
fn add_entry_block(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    dir: Ino,
    raw: &mut RawInode,
    root: FsBlock,
) -> Result<()> {
    let (head, made) = txn.look.read(root, BlockKind::DirIndex, |bytes| {
        let header = IndexHeader::read(bytes);
        (header.room_head.get(), header.entry_blocks.get())
    })?;
    let block = FileBlock(u64::from(made));
    let volume = txn.volume();
    if made == 0 {
        return Err(Corrupt::DirIndex { ino: dir, block: root, field: "entry_blocks", value: 0 }.into());
    }
    // `prepare` has refused, unless a hole that it counted on was none: a block whose count of live bytes is damaged.
    if block.0 >= entry_blocks_max(&txn.look) {
        return Err(Corrupt::DirIndex { ino: dir, block: root, field: "entry_blocks", value: block.0 }.into());
    }
    let at = match map::lookup(&mut &txn.look, raw, dir, block)? {
        Mapping::Mapped(extent) => extent.start.offset_by(block.0 - extent.file_block.0),
        Mapping::Hole { .. } => {
            let previous = entry_block(&txn.look, dir, raw, FileBlock(block.0 - 1))?;
            let run = (made / 8).clamp(1, 64);
            // The operation has reserved one; without room for the run, one will do.
            let want = if txn.try_reserve(u64::from(run - 1), Share::Common) { run } else { 1 };
            let (start, length) = volume.allocate_extent(txn, previous.offset_by(1), 1, want)?;
            let extent = Extent { file_block: block, start, length, unwritten: false };
            map::insert(txn, source, raw, dir, extent)?;
            start
        }
    };
    txn.init(NewBlock::free(at), BlockKind::DirEntries, dir.0, |edit| {
        let header = EntryBlockHeader::read_mut(edit.range_mut(0, EntryBlockHeader::SIZE));
        header.tail = U32::new(ENTRIES_OFFSET as u32);
        header.next_room = U32::new(head);
    })?;
    txn.change(root, BlockKind::DirIndex, |edit| {
        edit.put(ROOM_HEAD, &(made + 1).to_le_bytes());
        edit.put(ENTRY_BLOCKS, &(made + 1).to_le_bytes());
    })
}

/// Whether the blocks of a directory are too many to be given up in one transaction.
pub(crate) fn is_large(raw: &RawInode) -> bool {
    is_in_blocks(raw) && raw.block_total() > GIVEN_UP_MAX
}

/// Whether a directory without entries has blocks that it is to give up.
pub(crate) fn has_idle_blocks(raw: &RawInode) -> bool {
    is_in_blocks(raw) && raw.size.get() == 0
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
    let (length, lists, is_empty) = txn.change(at, BlockKind::DirEntries, |edit| {
        // It lies before the tail and in the block.
        entries::at(edit.bytes(), offset, place)?;
        let header = *EntryBlockHeader::read(edit.bytes());
        let used = (header.tail.get() as usize).min(block_size) - ENTRIES_OFFSET;
        let run = Run { base: ENTRIES_OFFSET, used, capacity: used };
        let (length, used) = entries::remove(edit, &run, offset - ENTRIES_OFFSET);
        let live = (header.live.get() as usize).saturating_sub(length);
        // An empty block starts afresh: free entries that were never joined vanish.
        let used = if live == 0 { 0 } else { used };
        let fields = edit.range_mut(48, 8);
        fields[..4].copy_from_slice(&((ENTRIES_OFFSET + used) as u32).to_le_bytes());
        fields[4..].copy_from_slice(&(live as u32).to_le_bytes());
        let free = (block_size - ENTRIES_OFFSET).saturating_sub(live);
        Ok::<_, Error>((length, header.next_room.get() == 0 && free >= block_size / 4, live == 0))
    })??;
    raw.size = U64::new(raw.size.get().saturating_sub(length as u64));
    txn.volume().last_blocks.has_hole(dir, block, offset - ENTRIES_OFFSET, is_empty);
    if let Some(root) = root {
        if !index::update(txn, dir, (root, hit.spot.leaf), name.tag(), position, None)? {
            return Err(Corrupt::DirIndex { ino: dir, block: root, field: "record", value: u64::from(position) }.into());
        }
        if lists {
            list_room(txn, dir, raw, root, block)?;
        }
    }
    if has_idle_blocks(raw) {
        txn.volume().orphans.note(dir, Reason::Emptied);
    }
    Ok(())
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

/// One of the small changes by which an empty directory becomes smaller. It is a sound directory before and after each.
enum Shrinking {
    /// The index loses a leaf.
    Leaf(index::Merge),
    /// The last entry blocks go, down to so many.
    Blocks { left: u32, gone: Vec<FsBlock> },
    /// The first block on the list of those with room is taken off it.
    Unlist { block: FsBlock, next: u32 },
}

/// The next change that makes an empty directory smaller, or none: the rest is [`clear`]'s. Only looks.
///
/// First the index goes, down to one leaf. Entry blocks go from the end, each once it is off the list of those with room; that
/// is a list in one direction, so it is taken apart from its head.
fn next_shrinking(look: &Look<'_>, dir: Ino, raw: &RawInode, root: FsBlock) -> Result<Option<Shrinking>> {
    if let Some(merge) = index::last_leaf(look, dir, root)? {
        return Ok(Some(Shrinking::Leaf(merge)));
    }
    let (head, made) = look.read(root, BlockKind::DirIndex, |bytes| {
        let header = IndexHeader::read(bytes);
        (header.room_head.get(), header.entry_blocks.get())
    })?;
    if made <= 1 {
        return Ok(None);
    }
    let is_unlisted = head == LIST_END || head == 0;
    let next_room = |block: u32| -> Result<(FsBlock, u32)> {
        let block = FileBlock(u64::from(block));
        let at = entry_block(look, dir, raw, block)?;
        look.read(at, BlockKind::DirEntries, |bytes| {
            header::verify_owner(bytes, at, dir.0)?;
            let header = EntryBlockHeader::read(bytes);
            let live = header.live.get();
            if live != 0 {
                // The directory's size says that there is none.
                return Err(Corrupt::DirEntry { ino: dir, block, offset: 52, field: "live", value: live.into() }.into());
            }
            Ok((at, header.next_room.get()))
        })?
    };
    if is_unlisted || next_room(made - 1)?.1 == 0 {
        let left = if is_unlisted { made.saturating_sub(GIVEN_UP_MAX as u32).max(1) } else { made - 1 };
        let gone = (left..made).map(|block| entry_block(look, dir, raw, FileBlock(u64::from(block))));
        return Ok(Some(Shrinking::Blocks { left, gone: gone.collect::<Result<_>>()? }));
    }
    let (block, next) = next_room(head - 1)?;
    if next == 0 {
        return Err(Corrupt::DirIndex { ino: dir, block: root, field: "room_head", value: u64::from(head) }.into());
    }
    Ok(Some(Shrinking::Unlist { block, next }))
}

fn shrink(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    dir: Ino,
    raw: &mut RawInode,
    root: FsBlock,
    step: Shrinking,
) -> Result<()> {
    match step {
        Shrinking::Leaf(merge) => index::merge(txn, source, merge),
        Shrinking::Blocks { left, gone } => {
            txn.change(root, BlockKind::DirIndex, |edit| edit.put(ENTRY_BLOCKS, &left.to_le_bytes()))?;
            for block in gone {
                txn.forget(block);
            }
            txn.volume().last_blocks.forget(dir);
            // With those mapped behind, which have never been used.
            let mut extents = Vec::new();
            let behind = FileBlock(u64::from(left))..FILE_END;
            let more = map::remove(txn, source, raw, dir, behind, 1 << 20, &mut extents)?;
            debug_assert!(more.is_none(), "blocks are mapped in runs");
            for (start, length) in extents {
                txn.block_free(start, length);
            }
            Ok(())
        }
        Shrinking::Unlist { block, next } => {
            txn.change(block, BlockKind::DirEntries, |edit| edit.put(NEXT_ROOM, &0_u32.to_le_bytes()))?;
            txn.change(root, BlockKind::DirIndex, |edit| edit.put(ROOM_HEAD, &next.to_le_bytes()))
        }
    }
}

pub(crate) fn is_empty(_look: &Look<'_>, _dir: Ino, raw: &RawInode) -> Result<bool> {
    Ok(raw.size.get() == 0)
}

pub(crate) fn give_up_emptied(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, listed: &mut u32) -> Result<bool> {
    if raw.size.get() == 0 {
        let is_done = give_up_part(txn, dir, raw)?;
        if is_done {
            super::clear(txn, dir, raw)?;
        }
        return Ok(is_done);
    }
    let next = list_rooms(txn, dir, raw, *listed)?;
    *listed = next.unwrap_or(0);
    Ok(next.is_none())
}

/// Gives up as many blocks of a directory without entries as are good for one transaction. True when the rest fits a transaction.
pub(crate) fn give_up_part(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<bool> {
    let mut source = BlockSource::new(placement::beside(txn.volume(), dir));
    let mut is_done = false;
    for steps in 0..GIVEN_UP_MAX {
        let root = if is_large(raw) { index_root(raw) } else { None };
        let next = match root {
            Some(root) => next_shrinking(&txn.look, dir, raw, root).map(|next| next.map(|step| (root, step))),
            None => Ok(None),
        };
        match next {
            Ok(Some((root, step))) => shrink(txn, &mut source, dir, raw, root, step)?,
            Ok(None) => {
                is_done = true;
                break;
            }
            // It is the first thing that the next transaction finds.
            Err(_) if steps > 0 => break,
            Err(error) => return Err(error),
        }
        // What is taken counts among the inode's blocks at once: it says when there are few.
        std::mem::replace(&mut source, BlockSource::new(placement::beside(txn.volume(), dir))).settle(raw);
        if txn.is_long() {
            break;
        }
    }
    Ok(is_done)
}

/// Puts entry blocks with room back on the list, from a block on; where to go on, if there are more. For a directory that got
/// entries before it had given up all its blocks.
fn list_rooms(txn: &mut Txn<'_>, dir: Ino, raw: &RawInode, from: u32) -> Result<Option<u32>> {
    let Some(root) = index_root_in(raw) else { return Ok(None) };
    let made = txn.look.read(root, BlockKind::DirIndex, |bytes| IndexHeader::read(bytes).entry_blocks.get())?;
    let block_size = txn.volume().cache.block_size();
    let until = made.min(from.saturating_add(GIVEN_UP_MAX as u32));
    for number in from..until {
        let block = FileBlock(u64::from(number));
        let found = entry_block(&txn.look, dir, raw, block).and_then(|at| {
            txn.look.read(at, BlockKind::DirEntries, |bytes| {
                header::verify_owner(bytes, at, dir.0)?;
                let header = EntryBlockHeader::read(bytes);
                let free = (block_size - ENTRIES_OFFSET).saturating_sub(header.live.get() as usize);
                Ok(header.next_room.get() == 0 && free >= block_size / 4)
            })?
        });
        match found {
            Ok(true) => list_room(txn, dir, raw, root, block)?,
            Ok(false) => {}
            Err(_) if number > from => return Ok(Some(number)),
            Err(error) => return Err(error),
        }
    }
    Ok((until < made).then_some(until))
}

pub(crate) fn clear(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<()> {
    debug_assert_eq!(raw.size.get(), 0);
    if is_in_body(raw) {
        inode::resize_body(txn, dir, raw, 0)?;
    }
    if is_in_blocks(raw) {
        txn.volume().counters.bump(Count::dir_to_inline);
        let mut source = BlockSource::new(placement::beside(txn.volume(), dir));
        if let Some(root) = index_root(raw) {
            let mut blocks = Vec::new();
            index::for_each_block(&txn.look, dir, root, &mut |block| blocks.push(block))?;
            for block in blocks {
                source.free(txn, block);
            }
        }
        free_blocks(txn, &mut source, dir, raw, FileBlock(0))?;
        source.settle(raw);
    }
    Ok(())
}

/// Lists entries in the order of their positions. A cookie is the position behind an entry.
pub(crate) fn list(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    cookie: u64,
    f: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Option<u64>> {
    let place = Place { dir, block: FileBlock(0) };
    let mut visit = |run: Entries<'_>, block: FileBlock| -> Result<bool> {
        for entry in run {
            let entry = entry?;
            let position = u64::from(position_of(look, block, entry.offset));
            if entry.header.ino.get() == 0 || position < cookie {
                continue;
            }
            let place = Place { dir, block };
            if !is_shown(entry.name) {
                let first = entry.name.first().copied().unwrap_or(0);
                return Err(place.corrupt(entry.offset, "name", u64::from(first)));
            }
            let more = f(Listed {
                name: entry.name,
                ino: Ino(entry.header.ino.get()),
                file_type: type_of(entry.header.file_type, |value| place.corrupt(entry.offset, "type", value))?,
                cookie: position + (entry_size(entry.name.len()) / 8) as u64,
            });
            if !more {
                return Ok(false);
            }
        }
        Ok(true)
    };
    if !is_in_blocks(raw) {
        if is_in_body(raw) {
            inode::read_body(look, dir, raw, |data, _| visit(Entries::new(data, place), FileBlock(0)))??;
        }
        return Ok(None);
    }
    let blocks = match index_root(raw) {
        Some(root) => look.read(root, BlockKind::DirIndex, |bytes| IndexHeader::read(bytes).entry_blocks.get())?,
        None => 1,
    };
    let first = cookie.saturating_mul(8) >> look.volume.geometry.block_bits;
    for number in first..u64::from(blocks) {
        let block = FileBlock(number);
        if number - first == LISTED_BLOCKS {
            return Ok(Some(u64::from(position_of(look, block, 0))));
        }
        let at = entry_block(look, dir, raw, block)?;
        let more = look.read(at, BlockKind::DirEntries, |bytes| {
            header::verify_owner(bytes, at, dir.0)?;
            visit(Entries::of_block(bytes, Place { dir, block })?, block)
        })??;
        if !more {
            break;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namei;
    use crate::ops::{NewFile, Ops};
    use crate::types::{Cred, LinkRules, Node, RenameMode};
    use crate::volume::transact;
    use crate::volume::{Volume, testing};
    use myriad_check::{Options as CheckOptions, check};
    use myriad_device::MemoryDevice;
    use myriad_format::inode::{S_IFDIR, S_IFREG};
    use myriad_format::superblock::state;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    /// Sets how many entry blocks the index root of a directory says there are, and counts them among its blocks.
    fn claim_blocks(volume: &Volume, dir: Node, blocks: u32) {
        let ino = Ino(dir.ino);
        transact(volume, 0, |txn| {
            let mut raw = inode::read(&txn.look, ino)?;
            let root = index_root(&raw).unwrap();
            txn.change(root, BlockKind::DirIndex, |edit| edit.put(ENTRY_BLOCKS, &blocks.to_le_bytes()))?;
            raw.add_blocks(i64::from(blocks));
            inode::write(txn, ino, &raw)
        })
        .unwrap();
    }

    /// The limit was met after blocks had been tried and an inode allocated: ENOSPC, and the volume shut down.
    #[test]
    fn a_directory_of_the_largest_size_refuses_names_and_the_volume_goes_on() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let root = namei::root(&volume.look()).unwrap();
        let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
        let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
        let other = ops.make(root, b"other", &new).unwrap().node();
        let name = |i: u32| format!("{i:08}").into_bytes();
        for i in 0..1000 {
            ops.link(other, dir, &name(i), LinkRules::default()).unwrap();
        }
        // Of no block two neighbours: each has room, but none for a long name.
        for i in (0..1000).step_by(3) {
            ops.unlink(dir, &name(i)).unwrap();
        }
        let largest = entry_blocks_max(&volume.look()) as u32;
        claim_blocks(&volume, dir, largest);
        let long = [b'n'; 255];
        let refused = |result: Result<()>| {
            assert_eq!(result.unwrap_err().errno(), Errno::NOSPC);
            assert!(volume.check_running().is_ok());
        };
        let used = volume.totals.inodes_used.load(Ordering::Relaxed);
        refused(ops.make(dir, &long, &new).map(drop));
        assert_eq!(volume.totals.inodes_used.load(Ordering::Relaxed), used);
        refused(ops.link(other, dir, &long, LinkRules::default()).map(drop));
        refused(ops.rename((root, b"other"), (dir, &long), RenameMode::Replace, (false, false)));
        // What fits is made still, until nothing does.
        let mut made = 0;
        let full = loop {
            match ops.make(dir, &name(2000 + made), &new) {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(full.errno(), Errno::NOSPC);
        assert!(made > 300, "{made}");
        assert!(volume.check_running().is_ok());
        ops.unlink(dir, &name(1)).unwrap();
    }

    /// A volume with a directory of many names, and of long ones.
    struct Emptied {
        device: Arc<MemoryDevice>,
        volume: Volume,
        root: Node,
        dir: Node,
    }

    const LONG_NAMES: u32 = 700;

    fn long_name(i: u32) -> Vec<u8> {
        format!("{i:0255}").into_bytes()
    }

    impl Emptied {
        /// As the removal of the last entry leaves it, with some of its blocks given up.
        fn after(parts: u32) -> (Self, bool) {
            let device = Arc::new(MemoryDevice::new(64 << 20));
            let volume = testing::volume(device.clone());
            volume.write_superblock(state::IN_USE).unwrap();
            let cred = Cred::root();
            let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
            let root = namei::root(&volume.look()).unwrap();
            let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
            let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
            let other = ops.make(root, b"other", &new).unwrap().node();
            for i in 0..LONG_NAMES {
                ops.link(other, dir, &long_name(i), LinkRules::default()).unwrap();
            }
            for i in (1..LONG_NAMES).map(|i| i * 37 % LONG_NAMES) {
                ops.unlink(dir, &long_name(i)).unwrap();
            }
            let last = long_name(0);
            let name = Name { bytes: &last, hash: volume.hasher.hash(&last) };
            let ino = Ino(dir.ino);
            transact(&volume, 0, |txn| {
                let mut raw = inode::read(&txn.look, ino)?;
                let hit = search(&txn.look, ino, &raw, name)?.hit.unwrap();
                remove(txn, ino, &mut raw, name, hit)?;
                let mut file = inode::read(&txn.look, hit.ino)?;
                file.nlink = U32::new(file.nlink.get() - 1);
                inode::write(txn, hit.ino, &file)?;
                inode::write(txn, ino, &raw)
            })
            .unwrap();
            assert!(volume.orphans.has(ino, Reason::Emptied));
            let mut done = false;
            for _ in 0..parts {
                done = transact(&volume, 0, |txn| {
                    let mut raw = inode::read(&txn.look, ino)?;
                    let done = give_up_emptied(txn, ino, &mut raw, &mut 0)?;
                    inode::write(txn, ino, &raw)?;
                    Ok(done)
                })
                .unwrap();
            }
            (Self { device, volume, root, dir }, done)
        }

        fn assert_sound(&self) {
            self.volume.commit_now().unwrap();
            let report = check(Arc::new(self.device.clone_image()), None, &CheckOptions::default()).unwrap();
            assert!(report.is_sound(), "{:#?}", report.findings);
        }
    }

    /// Where the block lies to which a name was added last is remembered, and forgotten when the directory gives it up.
    #[test]
    fn a_block_given_up_is_remembered_no_more() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(64 << 20)));
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let root = namei::root(&volume.look()).unwrap();
        let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
        let file = ops.make(root, b"f", &NewFile { mode: S_IFREG | 0o644, ..NewFile::default() }).unwrap().node();
        let remembered = |block: u32| {
            let look = volume.look();
            let raw = inode::read_node(&look, dir).unwrap();
            let known = volume.last_blocks.get(Ino(dir.ino), &raw, FileBlock(block.into()));
            let at = known.map(|(at, _)| at);
            at.map(|at| entry_block(&look, Ino(dir.ino), &raw, FileBlock(block.into())).is_ok_and(|block| block == at))
        };
        // One block, which goes with the last entry, and many, which go by and by.
        for (names, last) in [(10, 0), (LONG_NAMES, (LONG_NAMES - 1) / 14)] {
            for i in 0..names {
                ops.link(file, dir, &long_name(i), LinkRules::default()).unwrap();
            }
            assert_eq!(remembered(last), Some(true), "block {last}");
            for i in 0..names {
                ops.unlink(dir, &long_name(i)).unwrap();
            }
            assert_eq!(ops.stat_node(dir).unwrap().blocks, 0);
            assert_eq!(remembered(last), None, "block {last}");
        }
    }

    /// Whoever makes entries in a directory that is giving up its blocks, or removes it, need not wait, and loses nothing.
    #[test]
    fn a_directory_that_gives_up_its_blocks_is_a_directory() {
        let cred = Cred::root();
        let mut parts = 0;
        loop {
            let (emptied, done) = Emptied::after(parts);
            emptied.assert_sound();
            let Emptied { volume, dir, .. } = &emptied;
            let ops = Ops { volume, cred: &cred, caller: &cred };
            let blocks = ops.stat_node(*dir).unwrap().blocks;
            assert_eq!(done, blocks == 0);
            let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
            for i in 0..50 {
                ops.make(*dir, format!("{i}").as_bytes(), &new).unwrap();
            }
            emptied.assert_sound();
            // It is left with what it has, on the list of blocks with room.
            crate::ops::reclaim_orphans(volume).unwrap();
            assert!(volume.orphans.numbers().is_empty());
            let kept = ops.stat_node(*dir).unwrap().blocks;
            assert!(kept + 4 >= blocks, "{kept} of {blocks} blocks after {parts} parts");
            for i in 0..LONG_NAMES / 2 {
                ops.make(*dir, &long_name(i), &new).unwrap();
            }
            let grown = ops.stat_node(*dir).unwrap().blocks;
            assert!(parts > 0 || grown <= kept, "{grown} of {kept} blocks");
            assert!(ops.lookup(*dir, b"7").is_ok());
            emptied.assert_sound();

            let (emptied, _) = Emptied::after(parts);
            let Emptied { volume, .. } = &emptied;
            let ops = Ops { volume, cred: &cred, caller: &cred };
            ops.rmdir(emptied.root, b"d").unwrap();
            assert!(volume.orphans.numbers().is_empty());
            assert_eq!(ops.stat_node(emptied.dir).unwrap_err().errno(), Errno::STALE);
            assert_eq!(ops.lookup(emptied.root, b"d").unwrap_err().errno(), Errno::NOENT);
            emptied.assert_sound();
            if done {
                break;
            }
            parts += 1;
        }
        assert!(parts > 3, "{parts}");
    }
}
