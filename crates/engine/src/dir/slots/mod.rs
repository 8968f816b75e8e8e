//! Directories of kind `slots`, those of simplefs: slots of one size in extents of eight blocks, which count their names.
//!
//! `myriad_format::slots` has the layout. The rules are the paper's:
//!
//! - **A lookup** goes through the blocks from the first one on. The counts of the extents say which blocks have names, and only
//!   those are read; in a block, runs lead from one slot in use to the next.
//! - **A new name** goes into the first block that has a free slot: into slot 0 if that is free, else behind the first slot whose
//!   run has free ones. When all extents are full, the directory gets a further extent, all of it at once.
//! - **Removal** gives a slot's run to the one before it. Extents stay as long as the directory does.
//!
//! Invariants
//!   1. A slot never moves. Its number is the position of its entry, and the cookie of a listing is that of the next slot.
//!   2. A slot is in use if its inode number is not 0. Runs, counts of blocks and counts of extents follow from that, and the
//!      directory's size is that of its names' slots.
//!   3. Blocks are mapped from file block 0 on, in whole extents.
//!
//! What the paper's directories have and these do not: eight blocks that lie side by side at any price, and a limit of 30,600
//! names, which the option `dirlimit` brings back.
//!
//! A directory may be larger than the cache, and a search goes through all that has names inside the gate, where nothing is
//! evicted: what it reads then goes past the cache (`Cache::pass_over`).

mod block;
mod extents;

use super::place::Place;
use super::{Found, Hit, Listed, Name, NewEntry, Probe, Search, Spot, cut, is_in_blocks, is_shown, type_of};
use crate::counters::Count;
use crate::edit::BlockStore;
use crate::error::{Errno, Result};
use crate::map;
use crate::order::{Look, Txn};
use block::{FIRST, Free, Slot};
use extents::{Visited, fs_block, layout, visit};
use myriad_format::inode::RawInode;
use myriad_format::slots::{EXTENT_BLOCKS, SLOT_BYTES, SlotLayout, tag_of};
use myriad_format::{BlockKind, FileBlock, Ino, header};
use std::ops::ControlFlow;
use zerocopy::little_endian::U64;

/// Blocks with names that a listing looks at in one stay inside the gate, where nothing can be evicted for what it reads.
const LISTED_BLOCKS: u64 = 64;

/// Extents that a directory gives up in one transaction. Tests are to come there with small directories.
const GIVEN_UP_MAX: u64 = if cfg!(debug_assertions) { 1 } else { 8 };

/// Extents of the largest directory. Tests of this crate are to come there.
fn extents_max(layout: SlotLayout) -> u64 {
    if cfg!(test) { 3 } else { layout.extents_max() }
}

/// What a search for a name saw on its way.
pub(crate) struct Seen {
    /// The first free slot.
    free: Option<Room>,
    /// Extents that the directory has, if all of them were seen.
    extents: u64,
}

/// Where an entry goes.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// Number of the block of slots.
    block: u64,
    free: Free,
    state: State,
}

/// What a search knows of the block that a name is to go into.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has names, and was looked at.
    Seen,
    /// The counts say that it is empty.
    Empty,
    /// It is in an extent that is to be added.
    New,
}

/// The block of a spot, and the slot there.
fn split(look: &Look<'_>, spot: Spot) -> (u64, usize) {
    let slots = layout(look).slots as u64;
    (spot.at / slots, (spot.at % slots) as usize)
}

/// The number of a slot, counted through the directory.
fn number_of(look: &Look<'_>, block: u64, slot: usize) -> u64 {
    block * layout(look).slots as u64 + slot as u64
}

fn place_of(look: &Look<'_>, dir: Ino, block: u64) -> Place {
    Place { dir, block: FileBlock(layout(look).file_block(block)) }
}

fn hit_of(look: &Look<'_>, block: u64, slot: &Slot<'_>) -> Hit {
    let number = number_of(look, block, slot.number);
    Hit { ino: Ino(slot.header.ino.get()), spot: Spot::new(number), position: number as u32 }
}

/// Walks a block that has names until `f` breaks, and counts the free slots that it did not look at.
fn walk<T>(
    look: &Look<'_>,
    dir: Ino,
    number: u64,
    bytes: &[u8],
    mut f: impl FnMut(&Slot<'_>) -> Result<ControlFlow<T>>,
) -> Result<Option<T>> {
    let mut skipped = 0;
    let mut found = None;
    for slot in block::walk(bytes, layout(look), place_of(look, dir, number)) {
        let slot = slot?;
        skipped += slot.skips() as u64;
        if let ControlFlow::Break(value) = f(&slot)? {
            found = Some(value);
            break;
        }
    }
    look.volume.counters.add(Count::dir_slots_skipped, skipped);
    Ok(found)
}

pub(crate) fn lookup(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Option<Found>> {
    Ok(scan(look, dir, raw, name)?.hit.map(|hit| Found { ino: hit.ino, raw: None }))
}

pub(crate) fn search(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    let search = scan(look, dir, raw, name)?;
    if let Some(hit) = &search.hit {
        read_ahead(look, dir, raw, split(look, hit.spot).0)?;
    }
    Ok(search)
}

/// A search through all blocks that have names.
fn scan(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Search> {
    look.volume.counters.bump(Count::dir_scans);
    let tag = tag_of(name.hash);
    let (mut hit, mut twin, mut room) = (None, None, None);
    let mut compared = 0;
    let extents = visit(look, dir, raw, 0, &mut |visited| {
        let (number, bytes) = match visited {
            Visited::Empty(blocks) => {
                room.get_or_insert(Room { block: blocks.start, free: FIRST, state: State::Empty });
                return Ok(true);
            }
            Visited::Names(number, bytes) => (number, bytes),
        };
        let has_room = room.is_some();
        let mut free = None;
        hit = walk(look, dir, number, bytes, |slot| {
            if !has_room && free.is_none() {
                free = block::free_at(slot);
            }
            compared += u64::from(slot.is_used());
            if slot.header.tag.get() == tag && slot.is_used() {
                if slot.name == name.bytes {
                    return Ok(ControlFlow::Break(hit_of(look, number, slot)));
                }
                if look.volume.hasher.hash(slot.name) == name.hash {
                    twin = Some(Ino(slot.header.ino.get()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        room = room.or(free.map(|free| Room { block: number, free, state: State::Seen }));
        Ok(hit.is_none())
    })?;
    look.volume.counters.add(Count::dir_tags_compared, compared);
    Ok(Search { hit, twin, seen: super::Seen::Slots(Seen { free: room, extents }) })
}

/// Refuses a name beyond the limit that the volume was opened with, and one for which a directory of the largest size has no room.
pub(crate) fn prepare(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    _name: Name<'_>,
    seen: super::Seen,
) -> Result<super::Place> {
    let super::Seen::Slots(Seen { free, extents }) = seen else { unreachable!("a search of this directory") };
    let layout = layout(look);
    if look.volume.live.dir_limit().is_some_and(|most| raw.size.get() / SLOT_BYTES as u64 >= most) {
        // The paper's answer.
        return Err(Errno::MLINK.into());
    }
    let Some(room) = free else {
        let end = layout.file_blocks(extents + 1);
        if extents >= extents_max(layout) || end > map::directory_blocks_max(&look.volume.geometry) {
            return Err(Errno::NOSPC.into());
        }
        extents::check_end(look, dir, raw, extents)?;
        extents::read_record(look, dir, raw, extents)?;
        return Ok(super::Place::Slots(Room { block: extents * EXTENT_BLOCKS, free: FIRST, state: State::New }));
    };
    if room.state == State::Empty {
        let at = fs_block(look, dir, raw, layout.file_block(room.block))?;
        let place = place_of(look, dir, room.block);
        look.read(at, BlockKind::DirSlots, |bytes| {
            header::verify_owner(bytes, at, dir.0)?;
            block::check_empty(bytes, layout, place)
        })??;
    }
    read_ahead(look, dir, raw, room.block)?;
    Ok(super::Place::Slots(room))
}

/// Reads what a name that comes into a block of slots, or goes from it, changes: a search may have read it past the cache, and by the time of the change it
/// is too late for an error.
fn read_ahead(look: &Look<'_>, dir: Ino, raw: &RawInode, number: u64) -> Result<()> {
    look.read(fs_block(look, dir, raw, layout(look).file_block(number))?, BlockKind::DirSlots, |_| ())?;
    extents::read_record(look, dir, raw, number / EXTENT_BLOCKS)
}

pub(crate) fn insert(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &mut RawInode,
    entry: &NewEntry<'_>,
    place: &super::Place,
) -> Result<u32> {
    let super::Place::Slots(room) = *place else { unreachable!("a search of this directory") };
    let layout = layout(&txn.look);
    if room.state == State::New {
        extents::add(txn, dir, raw, room.block / EXTENT_BLOCKS)?;
    }
    let at = fs_block(&txn.look, dir, raw, layout.file_block(room.block))?;
    let names = txn.change(at, BlockKind::DirSlots, |edit| {
        block::insert(edit, layout, room.free, entry);
        block::names(edit.bytes())
    })?;
    extents::count_name(txn, dir, raw, room.block, 1, names)?;
    raw.size = U64::new(raw.size.get().saturating_add(SLOT_BYTES as u64));
    Ok(number_of(&txn.look, room.block, room.free.slot) as u32)
}

/// Extents stay as long as the directory does.
pub(crate) fn trim(_txn: &mut Txn<'_>, _dir: Ino, _raw: &mut RawInode, _place: &super::Place) -> Result<()> {
    Ok(())
}

/// A slot never moves.
pub(crate) fn again(_look: &Look<'_>, _dir: Ino, _raw: &RawInode, _name: Name<'_>, hit: Hit) -> Result<Hit> {
    Ok(hit)
}

pub(crate) fn remove(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, _name: Name<'_>, hit: Hit) -> Result<()> {
    let (number, slot) = split(&txn.look, hit.spot);
    let layout = layout(&txn.look);
    let place = place_of(&txn.look, dir, number);
    let at = fs_block(&txn.look, dir, raw, layout.file_block(number))?;
    let left = txn.change(at, BlockKind::DirSlots, |edit| block::remove(edit, layout, slot, place))??;
    extents::count_name(txn, dir, raw, number, -1, left)?;
    raw.size = U64::new(raw.size.get().saturating_sub(SLOT_BYTES as u64));
    Ok(())
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
    let (number, slot) = split(&txn.look, hit.spot);
    let layout = layout(&txn.look);
    let at = fs_block(&txn.look, dir, raw, layout.file_block(number))?;
    txn.change(at, BlockKind::DirSlots, |edit| block::replace(edit, layout, slot, ino, file_type))
}

pub(crate) fn is_empty(_look: &Look<'_>, _dir: Ino, raw: &RawInode) -> Result<bool> {
    Ok(raw.size.get() == 0)
}

pub(crate) fn is_large(raw: &RawInode) -> bool {
    is_in_blocks(raw) && raw.block_total() > (GIVEN_UP_MAX + 1) * EXTENT_BLOCKS
}

/// It keeps its extents.
pub(crate) fn has_idle_blocks(_raw: &RawInode) -> bool {
    false
}

pub(crate) fn give_up_emptied(_txn: &mut Txn<'_>, _dir: Ino, _raw: &mut RawInode, _listed: &mut u32) -> Result<bool> {
    Ok(true)
}

pub(crate) fn give_up_part(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<bool> {
    let extents = extents::count(&txn.look, dir, raw)?;
    if !is_large(raw) || extents <= GIVEN_UP_MAX {
        return Ok(true);
    }
    extents::check_end(&txn.look, dir, raw, extents)?;
    let kept = extents - GIVEN_UP_MAX;
    let from = FileBlock(layout(&txn.look).file_blocks(kept));
    map::read_ahead(txn, raw, dir, from)?;
    extents::set_count(txn, dir, raw, kept)?;
    cut(txn, dir, raw, from)?;
    Ok(false)
}

pub(crate) fn clear(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<()> {
    if is_in_blocks(raw) {
        cut(txn, dir, raw, FileBlock(0))?;
    }
    raw.size = U64::new(0);
    Ok(())
}

/// Lists slots in their order. A cookie is the number of the first slot that is still to come.
pub(crate) fn list(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    cookie: u64,
    f: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Option<u64>> {
    let slots = layout(look).slots as u64;
    let (mut looked_at, mut next) = (0, None);
    visit(look, dir, raw, cookie / slots, &mut |visited| {
        let Visited::Names(number, bytes) = visited else { return Ok(true) };
        if looked_at == LISTED_BLOCKS {
            next = Some(number * slots);
            return Ok(false);
        }
        looked_at += 1;
        let is_full = walk(look, dir, number, bytes, |slot| {
            let position = number_of(look, number, slot.number);
            if !slot.is_used() || position < cookie {
                return Ok(ControlFlow::Continue(()));
            }
            let place = place_of(look, dir, number);
            if !is_shown(slot.name) {
                return Err(place.corrupt(slot.offset, "name", u64::from(slot.name[0])));
            }
            let file_type = type_of(slot.header.file_type, |value| place.corrupt(slot.offset, "type", value))?;
            let ino = Ino(slot.header.ino.get());
            let goes_on = f(Listed { name: slot.name, ino, file_type, cookie: position + 1 });
            Ok(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(is_full.is_none())
    })?;
    Ok(next)
}

/// There is nothing that would guess: a name that the name cache does not know is looked for.
pub(crate) fn probe(_look: &Look<'_>, _dir: Ino, _raw: &RawInode, _name: Name<'_>) -> Result<Option<Probe>> {
    Ok(None)
}

pub(crate) fn guess(_look: &Look<'_>, _dir: Ino, _probe: Probe, _name: Name<'_>) -> Result<Option<Ino>> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namei;
    use crate::ops::{NewFile, Ops};
    use crate::types::{Cred, LinkRules, MkfsOptions, RenameMode};
    use crate::volume::testing;
    use myriad_device::MemoryDevice;
    use myriad_format::choices::{Choices, Directory};
    use myriad_format::inode::{S_IFDIR, S_IFREG};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_directory_of_the_largest_size_refuses_names_and_the_volume_goes_on() {
        let choices = Choices { directory: Directory::Slots, ..Choices::default() };
        let device = Arc::new(MemoryDevice::new(16 << 20));
        crate::mkfs::format(device.clone(), None, &MkfsOptions { choices, ..MkfsOptions::default() }).unwrap();
        let volume = testing::open(device);
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let root = namei::root(&volume.look()).unwrap();
        let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
        let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
        let other = ops.make(root, b"other", &new).unwrap().node();
        let name = |i: u32| format!("{i:08}").into_bytes();
        // Three extents of eight blocks with 15 slots.
        for i in 0..360 {
            ops.link(other, dir, &name(i), LinkRules::default()).unwrap();
        }
        let refused = |result: Result<()>| {
            assert_eq!(result.unwrap_err().errno(), Errno::NOSPC);
            assert!(volume.check_running().is_ok());
        };
        let used = volume.totals.inodes_used.load(Ordering::Relaxed);
        refused(ops.make(dir, b"new", &new).map(drop));
        assert_eq!(volume.totals.inodes_used.load(Ordering::Relaxed), used);
        refused(ops.link(other, dir, b"new", LinkRules::default()).map(drop));
        refused(ops.rename((root, b"other"), (dir, b"new"), RenameMode::Replace, (false, false)));
        ops.unlink(dir, &name(200)).unwrap();
        ops.make(dir, b"new", &new).unwrap();
    }
}
