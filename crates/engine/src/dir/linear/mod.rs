//! Directories of kind `linear`, those of FFS: entries one after the other, searched from the front.
//!
//! A directory is a sequence of units of 512 bytes (`myriad_format::unit`), as many as its size says, in entry blocks at file
//! blocks 0, 1, ...; it has no index, and nothing in its inode's body. The rules are those of FreeBSD's `ufs_lookup.c`
//! (McKusick and others 1984; Dowse and Malone 2002, 3.3). Where the directory has a hash in memory (`hashed.rs`), it is asked
//! instead; these are the rules without one:
//!
//! - **Lookup** begins at the unit where the last one of this directory succeeded, and wraps around. So who stats what a
//!   listing gave looks at about one unit for each name. All other searches begin at unit 0.
//! - **A new name** goes (a) into the first entry anywhere whose own slack suffices; else (b) into the first unit of which
//!   the slack of all entries together suffices: entries from the first that has slack on are moved together, until there is
//!   enough, and the new one comes behind them; else (c) into a new unit.
//! - **Removal** gives an entry's bytes to the one before it in its unit. The first of a unit stays, free.
//! - **Unused units** at the end are dropped after a name was added, never by a removal or a rename: who adds a name has
//!   looked at all units. (A hash knows them without a look. So where there is one a removal drops them as well, which the paper
//!   only proposes; but not in order `softdep`, in which entries that have gone keep their places for a while.)
//!
//! Invariants
//!   1. The lengths of a unit's entries sum to what the unit has. An entry never leaves its unit.
//!   2. No two entries of a unit have the same tag, since a name goes into no unit that has its tag. So the number of its
//!      unit and its tag say which entry it is, for as long as it is there: that is the cookie of a listing, which shows the
//!      entries of a unit in the order of their tags.
//!   3. Blocks are mapped from file block 0 on, as many as the size needs. Units of the last block behind the size are free.
//!
//! A directory may be larger than the cache, and a search goes through all of it inside the gate, where nothing is evicted:
//! `Cache::pass_over` reads such blocks past the cache. Not here: the hash of a name is kept (its low half, the tag) for two
//! reasons only, that most names are never compared, and the cookies; FFS has neither, and its cookies are offsets, which
//! compaction may move past who lists.

mod hashed;
mod room;
mod unit;

use super::dirhash::{Change, WORD};
use super::place::Place;
use super::{
    BlockSource, Found, Hit, Listed, Name, NewEntry, Probe, Search, Spot, cut, is_in_blocks, is_shown, may_have_blocks,
    type_of,
};
use crate::counters::Count;
use crate::edit::{BlockStore, NewBlock};
use crate::error::{Errno, Result};
use crate::map::{self, Mapping};
use crate::order::{Look, Txn};
use crate::placement;
use myriad_format::dir::{clear_unit, entry_size};
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::unit::{UNIT_ROOM, UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino};
use room::{RoomFound, RoomSeen, room_in};
use std::ops::Range;
use unit::{Entry, entries};
use zerocopy::little_endian::U64;

/// Units of the largest directory. Tests are to come there.
const UNITS_MAX: u64 = if cfg!(test) { 512 } else { myriad_format::dir::UNITS_MAX };

/// Blocks that a listing looks at in one stay inside the gate, where nothing can be evicted for what it reads: a directory
/// that had many names has as many units, which may all be free.
const LISTED_BLOCKS: u64 = 64;

/// Blocks that a directory gives up in one transaction. Tests are to come there with small directories.
const GIVEN_UP_MAX: u64 = if cfg!(debug_assertions) { 8 } else { 64 };

/// Entries of the shortest names that a unit has room for.
const ENTRIES_MAX: u64 = (UNIT_ROOM / entry_size(1)) as u64;

/// What a search for a name learned.
pub(crate) struct Seen {
    /// What it saw of room, if it went through all units. In a box: searches of other kinds carry the place for it along.
    room: Option<Box<RoomSeen>>,
    /// An entry of the name has gone, and keeps its place.
    pub is_held: bool,
}

/// Where an entry goes.
#[derive(Clone)]
pub(crate) struct Room {
    unit: u64,
    /// In its block, whole entries.
    range: Range<usize>,
    /// Units that are to stay once the entry is there.
    used: u64,
}

impl Room {
    pub fn unit(&self) -> u64 {
        self.unit
    }
}

fn units(raw: &RawInode) -> u64 {
    raw.size.get() / UNIT_SIZE as u64
}

/// Units in a block.
fn per_block(look: &Look<'_>) -> u64 {
    (look.volume.cache.block_size() / UNIT_SIZE) as u64
}

/// The file block of a unit, and where in it the unit begins.
fn split(look: &Look<'_>, unit: u64) -> (FileBlock, usize) {
    let per_block = per_block(look);
    (FileBlock(unit / per_block), (unit % per_block) as usize * UNIT_SIZE)
}

fn spot_of(unit: u64, offset: usize) -> Spot {
    Spot::new(unit * UNIT_SIZE as u64 + (offset % UNIT_SIZE) as u64)
}

pub(crate) fn unit_of_spot(spot: Spot) -> u64 {
    spot.at / UNIT_SIZE as u64
}

/// The file block of an entry, and its offset there.
fn split_spot(look: &Look<'_>, spot: Spot) -> (FileBlock, usize) {
    let (block, at) = split(look, unit_of_spot(spot));
    (block, at + spot.at as usize % UNIT_SIZE)
}

/// The extent that has an entry block.
fn extent_of(look: &Look<'_>, dir: Ino, raw: &RawInode, block: FileBlock) -> Result<Extent> {
    if !is_in_blocks(raw) {
        return Err(Corrupt::Inode { ino: dir, field: "fork_kind", value: u64::from(raw.fork_kind) }.into());
    }
    match map::lookup(&mut &*look, raw, dir, block)? {
        Mapping::Mapped(extent) => Ok(extent),
        Mapping::Hole { .. } => Err(Place { dir, block }.corrupt(0, "block", 0)),
    }
}

/// The volume block of an entry block.
fn entry_block(look: &Look<'_>, dir: Ino, raw: &RawInode, block: FileBlock) -> Result<FsBlock> {
    let extent = extent_of(look, dir, raw, block)?;
    Ok(extent.start.offset_by(block.0 - extent.file_block.0))
}

/// A unit of a directory, in its block.
#[derive(Clone, Copy)]
struct Unit<'a> {
    number: u64,
    block: &'a [u8],
    /// Where it begins in the block.
    at: usize,
    /// For messages.
    place: Place,
    fs_block: FsBlock,
}

impl<'a> Unit<'a> {
    /// Whether an entry whose name has gone must keep its place for now.
    fn is_held(&self, look: &Look<'_>, entry: &Entry<'_>) -> bool {
        !entry.is_live()
            && entry.header.name_len > 0
            && look.holds_entry(self.fs_block, self.at / UNIT_SIZE, self.bytes(), entry.header.tag.get())
    }

    fn bytes(&self) -> &'a [u8] {
        &self.block[self.at..self.at + UNIT_SIZE]
    }

    fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>>> + use<'a> {
        entries(self.block, self.at, self.place)
    }

    /// Where an entry of it lies in the directory, in words.
    fn position(&self, entry: &Entry<'_>) -> u32 {
        hashed::position_of(spot_of(self.number, entry.offset))
    }
}

/// Hands units to `f`, until it returns false.
fn visit(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    units: Range<u64>,
    f: &mut dyn FnMut(Unit<'_>) -> Result<bool>,
) -> Result<()> {
    let per_block = per_block(look);
    let end = units.end.div_ceil(per_block);
    if !may_have_blocks(look, raw.size.get().div_ceil(look.volume.cache.block_size() as u64)) {
        return Err(Corrupt::Inode { ino: dir, field: "size", value: raw.size.get() }.into());
    }
    let mut block = units.start / per_block;
    while block < end {
        let extent = extent_of(look, dir, raw, FileBlock(block))?;
        let skipped = block - extent.file_block.0;
        let count = (u64::from(extent.length) - skipped).min(end - block);
        let start = extent.start.offset_by(skipped);
        let goes_on = look.volume.cache.pass_over(start, count, BlockKind::LinearEntries, &mut |i, bytes| {
            let place = Place { dir, block: FileBlock(block + i) };
            let first = (block + i) * per_block;
            for unit in units.start.max(first)..units.end.min(first + per_block) {
                let at = (unit - first) as usize * UNIT_SIZE;
                let owner = UnitHeader::read(&bytes[at..]).owner.get();
                if owner != dir.0 {
                    return Err(
                        Corrupt::BlockOwner { block: start.offset_by(i), stored: owner, expected: dir.0 }.into()
                    );
                }
                if !f(Unit { number: unit, block: bytes, at, place, fs_block: start.offset_by(i) })? {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        if !goes_on {
            break;
        }
        block += count;
    }
    Ok(())
}

/// Looks for a name in some units; where it is.
fn find(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>, units: Range<u64>) -> Result<Option<(u64, Hit)>> {
    let mut hit = None;
    let mut compared = 0;
    visit(look, dir, raw, units, &mut |unit| {
        for entry in unit.entries() {
            let entry = entry?;
            compared += u64::from(entry.is_live());
            if entry.is_live() && entry.header.tag.get() == name.tag() && entry.name == name.bytes {
                hit = Some((unit.number, hit_of(unit.number, &entry)));
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    look.volume.counters.add(Count::dir_tags_compared, compared);
    Ok(hit)
}

fn hit_of(unit: u64, entry: &Entry<'_>) -> Hit {
    Hit { ino: Ino(entry.header.ino.get()), spot: spot_of(unit, entry.offset), position: 0 }
}

pub(crate) fn lookup(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Option<Found>> {
    if let Some(search) = hashed::search(look, dir, raw, name) {
        return Ok(search.hit.map(|hit| Found { ino: hit.ino, raw: None }));
    }
    look.volume.counters.bump(Count::dir_scans);
    let hints = &look.volume.dir_hints;
    let all = units(raw);
    let start = Some(hints.get(dir, raw)).filter(|&unit| unit < all).unwrap_or(0);
    let mut hit = find(look, dir, raw, name, start..all)?;
    if hit.is_none() && start > 0 {
        hit = find(look, dir, raw, name, 0..start)?;
    }
    Ok(hit.map(|(unit, hit)| {
        hints.put(dir, raw, unit);
        Found { ino: hit.ino, raw: None }
    }))
}

pub(crate) fn search(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    let search = match hashed::search(look, dir, raw, name) {
        Some(search) => search,
        None => scan(look, dir, raw, name)?,
    };
    if let Some(hit) = &search.hit {
        read_unit(look, dir, raw, unit_of_spot(hit.spot))?;
    }
    Ok(search)
}

/// Reads the block of a unit that is about to change: a search may have read it past the cache, and by the time of the change it is too late for an
/// error.
fn read_unit(look: &Look<'_>, dir: Ino, raw: &RawInode, unit: u64) -> Result<()> {
    let (block, _) = split(look, unit);
    look.read(entry_block(look, dir, raw, block)?, BlockKind::LinearEntries, |_| ())
}

/// The unit in which a name with this hash names an inode.
pub(crate) fn unit_of_name(look: &Look<'_>, dir: Ino, raw: &RawInode, hash: u64, ino: Ino) -> Result<Option<u64>> {
    if let Some(unit) = hashed::unit_of_name(look, dir, raw, hash, ino) {
        return Ok(unit);
    }
    look.volume.counters.bump(Count::dir_scans);
    let mut found = None;
    visit(look, dir, raw, 0..units(raw), &mut |unit| {
        for entry in unit.entries() {
            if entry?.names(look, hash, ino) {
                found = Some(unit.number);
            }
        }
        Ok(found.is_none())
    })?;
    Ok(found)
}

/// Block and byte of the entry with this hash that names an inode, if it lies in one of these units. There need not be so many.
pub(crate) fn place_of(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    hash: u64,
    ino: Ino,
    among: Range<u64>,
) -> Result<Option<(FsBlock, usize)>> {
    let mut place = None;
    let all = units(raw);
    visit(look, dir, raw, among.start.min(all)..among.end.min(all), &mut |unit| {
        for entry in unit.entries() {
            let entry = entry?;
            if entry.names(look, hash, ino) {
                place = Some((unit.fs_block, entry.offset));
            }
        }
        Ok(place.is_none())
    })?;
    Ok(place)
}

/// A search through all units.
fn scan(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    look.volume.counters.bump(Count::dir_scans);
    let needed = entry_size(name.bytes.len());
    let mut seen = RoomSeen::default();
    let (mut hit, mut twin, mut is_held) = (None, None, false);
    visit(look, dir, raw, 0..units(raw), &mut |unit| {
        let room = room_in(look, &unit, name.tag(), needed, |entry| {
            if entry.name == name.bytes {
                hit = Some(hit_of(unit.number, entry));
            } else if look.volume.hasher.hash(entry.name) == name.hash {
                twin = Some(Ino(entry.header.ino.get()));
            }
            hit.is_some()
        })?;
        let Some(room) = room else { return Ok(false) };
        is_held |= room.is_held;
        seen.note(unit.number, room);
        Ok(true)
    })?;
    Ok(Search { hit, twin, seen: super::Seen::Linear(Seen { room: Some(Box::new(seen)), is_held }) })
}

/// Refuses a name for which a directory of the largest size has no room.
pub(crate) fn prepare(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    name: Name<'_>,
    seen: super::Seen,
) -> Result<super::Place> {
    let super::Seen::Linear(seen) = seen else { unreachable!("a search of this directory") };
    let RoomFound { range, used } = match seen.room {
        Some(seen) => seen.found(),
        None => match hashed::room(look, dir, raw, name)? {
            Some(found) => found,
            // The hash that was asked for the name has gone since.
            None => {
                let super::Seen::Linear(Seen { room, .. }) = scan(look, dir, raw, name)?.seen else {
                    unreachable!("a search of this directory")
                };
                room.expect("it went through all units").found()
            }
        },
    };
    let room = |unit, range| super::Place::Linear(Room { unit, range, used: used.max(unit + 1) });
    if let Some((unit, range)) = range {
        read_unit(look, dir, raw, unit)?;
        return Ok(room(unit, range));
    }
    let unit = units(raw);
    let (block, at) = split(look, unit);
    if unit >= UNITS_MAX || block.0 >= map::directory_blocks_max(&look.volume.geometry) {
        return Err(Errno::NOSPC.into());
    }
    if at > 0 {
        // Its block is there.
        let fs_block = entry_block(look, dir, raw, block)?;
        look.read(fs_block, BlockKind::LinearEntries, |bytes| {
            match entries(bytes, at, Place { dir, block }).find(|entry| !matches!(entry, Ok(entry) if !entry.is_live()))
            {
                None => Ok(()),
                Some(Err(error)) => Err(error),
                Some(Ok(entry)) => {
                    let value = entry.header.ino.get();
                    Err(Place { dir, block }.corrupt(entry.offset, "inode number behind the directory's end", value))
                }
            }
        })??;
    } else if block.0 > 0 {
        // What a new block will ask of the map, before anything has changed: with a hash, nobody has looked at its end.
        entry_block(look, dir, raw, FileBlock(block.0 - 1))?;
        map::lookup(&mut &*look, raw, dir, block)?;
        if look.volume.may_have_leftovers {
            map::read_ahead(&mut &*look, raw, dir, block)?;
        }
    }
    Ok(room(unit, at + UnitHeader::SIZE..at + UNIT_SIZE))
}

pub(crate) fn insert(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &mut RawInode,
    entry: &NewEntry<'_>,
    place: &super::Place,
) -> Result<u32> {
    let super::Place::Linear(Room { unit, range, .. }) = place else { unreachable!("a search of this directory") };
    let (block, at) = split(&txn.look, *unit);
    let words = entry_size(entry.name.bytes.len()) / WORD;
    txn.volume().dir_hashes.change(dir, raw.generation.get(), |change| {
        if *unit == units(raw) {
            raw.size = U64::new((unit + 1) * UNIT_SIZE as u64);
            if at == 0 {
                add_block(txn, dir, raw, block)?;
            }
            change.tell(|_, table| table.grown());
        }
        let fs_block = entry_block(&txn.look, dir, raw, block)?;
        // The room may be that of entries that the order has let go of since the unit was charged for them.
        hashed::recharge(&txn.look, dir, raw, *unit, change)?;
        let position = |offset| hashed::position_of(spot_of(*unit, offset));
        let inserted = txn.change(fs_block, BlockKind::LinearEntries, |edit| {
            unit::insert(edit, range.clone(), entry, Place { dir, block }, &mut |name, from, to| {
                change.tell(|hashes, table| table.moved(hashes.home_of(name), position(from), position(to)));
            })
        })??;
        let new = position(inserted.offset);
        change.tell(|hashes, table| table.added(hashes.home(entry.name.hash), new, words, *unit));
        hashed::check(&txn.look, dir, raw, *unit, change);
        txn.volume().counters.add(Count::dir_compactions, u64::from(inserted.moved));
        Ok(0)
    })
}

/// Maps a new block at the end, all of whose units are free.
fn add_block(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, block: FileBlock) -> Result<()> {
    let volume = txn.volume();
    if volume.may_have_leftovers && is_in_blocks(raw) {
        // Power loss may have left some behind its end.
        cut(txn, dir, raw, block)?;
    }
    let near = match block.0 {
        0 => volume.block_of(dir),
        _ => entry_block(&txn.look, dir, raw, FileBlock(block.0 - 1))?.offset_by(1),
    };
    let (start, length) = volume.allocate_extent(txn, near, 1, 1)?;
    txn.init(NewBlock::free(start), BlockKind::LinearEntries, dir.0, |edit| {
        let len = edit.bytes().len();
        edit.range_mut(0, len).chunks_exact_mut(UNIT_SIZE).for_each(clear_unit);
    })?;
    let mut source = BlockSource::new(placement::beside(volume, dir));
    map::insert(txn, &mut source, raw, dir, Extent { file_block: block, start, length, unwritten: false })?;
    source.settle(raw);
    Ok(())
}

pub(crate) fn trim(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, place: &super::Place) -> Result<()> {
    let super::Place::Linear(Room { used, .. }) = place else { unreachable!("a search of this directory") };
    if *used >= units(raw) {
        return Ok(());
    }
    txn.volume().dir_hashes.change(dir, raw.generation.get(), |change| truncate(txn, dir, raw, *used, change))
}

/// Drops units behind `used`, none of which has an entry. If the map cannot be read, they stay: no name is in the way, and the entry that was added
/// or removed before is.
fn truncate(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, used: u64, change: &mut Change<'_>) -> Result<()> {
    let per_block = per_block(&txn.look);
    let (blocks, needed) = (units(raw).div_ceil(per_block), used.div_ceil(per_block));
    let kept = needed.max(blocks.saturating_sub(GIVEN_UP_MAX));
    if kept < blocks && map::read_ahead(txn, raw, dir, FileBlock(kept)).is_err() {
        return Ok(());
    }
    txn.volume().counters.bump(Count::dir_trims);
    // What one transaction may not give up stays for the next one.
    raw.size = U64::new(if kept > needed { kept * per_block } else { used } * UNIT_SIZE as u64);
    if kept < blocks {
        cut(txn, dir, raw, FileBlock(kept))?;
    }
    change.tell(|_, table| table.truncated(units(raw)));
    change.has_size(raw.size.get());
    Ok(())
}

/// Compaction moves an entry, but not out of its unit.
pub(crate) fn again(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>, hit: Hit) -> Result<Hit> {
    let unit = unit_of_spot(hit.spot);
    match find(look, dir, raw, name, unit..unit + 1)? {
        Some((_, hit)) => Ok(hit),
        None => {
            let (block, at) = split(look, unit);
            Err(Place { dir, block }.corrupt(at, "entries: one is gone; unit", unit))
        }
    }
}

pub(crate) fn remove(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, name: Name<'_>, hit: Hit) -> Result<()> {
    let (block, offset) = split_spot(&txn.look, hit.spot);
    let unit = unit_of_spot(hit.spot);
    let (position, words) = (hashed::position_of(hit.spot), entry_size(name.bytes.len()) / WORD);
    txn.volume().dir_hashes.change(dir, raw.generation.get(), |change| {
        let at = entry_block(&txn.look, dir, raw, block)?;
        let keeps_place = txn.look.keeps_entry(at, offset / UNIT_SIZE, name.tag())?;
        if keeps_place && !txn.look.has_changed(dir) {
            change.tell(|_, table| {
                table.nothing_waits();
                Ok(())
            });
        }
        txn.change(at, BlockKind::LinearEntries, |edit| {
            unit::remove(edit, offset, keeps_place, Place { dir, block })
        })??;
        change.tell(|hashes, table| table.removed(hashes.home(name.hash), position, words, unit));
        match keeps_place {
            true => hashed::keep(&txn.look, dir, raw, name.tag(), unit, change)?,
            // The free bytes go to the entry before. Soft updates may still hold that entry, so its unit is charged anew.
            false => hashed::recharge(&txn.look, dir, raw, unit, change)?,
        }
        hashed::check(&txn.look, dir, raw, unit, change);
        if txn.volume().soft.is_some() {
            return Ok(());
        }
        match change.table().map(|table| u64::from(table.free().used())) {
            Some(used) if used < units(raw) => truncate(txn, dir, raw, used, change),
            _ => Ok(()),
        }
    })
}

/// A search has read it.
pub(crate) fn read_ahead_of_remove(_look: &Look<'_>, _dir: Ino, _raw: &RawInode, _hit: Hit) -> Result<()> {
    Ok(())
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
    let (block, offset) = split_spot(&txn.look, hit.spot);
    let at = entry_block(&txn.look, dir, raw, block)?;
    txn.change(at, BlockKind::LinearEntries, |edit| unit::replace(edit, offset, ino, file_type))
}

pub(crate) fn is_empty(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Result<bool> {
    if let Some(names) = hashed::names(look, dir, raw) {
        return Ok(names == 0);
    }
    let mut is_empty = true;
    visit(look, dir, raw, 0..units(raw), &mut |unit| {
        for entry in unit.entries() {
            is_empty &= !entry?.is_live();
        }
        Ok(is_empty)
    })?;
    Ok(is_empty)
}

pub(crate) fn is_large(raw: &RawInode) -> bool {
    is_in_blocks(raw) && raw.block_total() > GIVEN_UP_MAX
}

/// It keeps its units until a name is added.
pub(crate) fn has_idle_blocks(_raw: &RawInode) -> bool {
    false
}

pub(crate) fn give_up_emptied(_txn: &mut Txn<'_>, _dir: Ino, _raw: &mut RawInode, _listed: &mut u32) -> Result<bool> {
    Ok(true)
}

pub(crate) fn give_up_part(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<bool> {
    let blocks = raw.size.get().div_ceil(txn.volume().cache.block_size() as u64);
    if !is_large(raw) || blocks == 0 {
        return Ok(true);
    }
    let kept = blocks.saturating_sub(GIVEN_UP_MAX);
    raw.size = U64::new(kept << txn.volume().geometry.block_bits);
    cut(txn, dir, raw, FileBlock(kept))?;
    Ok(false)
}

pub(crate) fn clear(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<()> {
    if is_in_blocks(raw) {
        cut(txn, dir, raw, FileBlock(0))?;
    }
    raw.size = U64::new(0);
    Ok(())
}

/// Lists units in their order, and the entries of each by their tags. A cookie is the number of a unit above the first tag
/// that is still to come.
pub(crate) fn list(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    cookie: u64,
    f: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Option<u64>> {
    let (first, all) = (cookie >> 32, units(raw));
    if first >= all {
        return Ok(None);
    }
    let end = all.min((first / per_block(look) + LISTED_BLOCKS) * per_block(look));
    let mut is_full = false;
    visit(look, dir, raw, first..end, &mut |unit| {
        let mut listed = Vec::new();
        for entry in unit.entries() {
            let entry = entry?;
            let cookie_of = (unit.number << 32) + u64::from(entry.header.tag.get());
            if entry.is_live() && cookie_of >= cookie {
                listed.push((cookie_of, entry));
            }
        }
        listed.sort_unstable_by_key(|(cookie, entry)| (*cookie, entry.offset));
        for (cookie, entry) in listed {
            if !is_shown(entry.name) {
                return Err(unit.place.corrupt(entry.offset, "name", u64::from(entry.name[0])));
            }
            let file_type = type_of(entry.header.file_type, |value| unit.place.corrupt(entry.offset, "type", value))?;
            let ino = Ino(entry.header.ino.get());
            if !f(Listed { name: entry.name, ino, file_type, cookie: cookie + 1 }) {
                is_full = true;
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    Ok((!is_full && end < all).then_some(end << 32))
}

/// There is nothing that would guess: a name that the name cache does not know is looked for.
pub(crate) fn probe(_look: &Look<'_>, _dir: Ino, _raw: &RawInode, _name: Name<'_>) -> Result<Option<Probe>> {
    Ok(None)
}

pub(crate) fn guess(_look: &Look<'_>, _dir: Ino, _probe: Probe, _name: Name<'_>) -> Result<Option<Ino>> {
    Ok(None)
}
