//! Entries are added: into the inode's body, into the one block of a small directory, into blocks with room and the index.

use super::entries::{self, Entries, Run};
use super::rooms::{NEXT_ROOM, ROOM_HEAD, ROOM_TRIES, add_entry_block, list_room, room_block, run_of};
use super::{Room, entry_block, index, index_root, is_in_body, position_of, set_index_root};
use crate::counters::Count;
use crate::dir::hints::{Filled, Passed};
use crate::dir::place::Place;
use crate::dir::{BlockSource, NewEntry, is_in_blocks};
use crate::edit::{BlockStore, NewBlock};
use crate::error::{Error, Result};
use crate::inode;
use crate::map;
use crate::order::{Look, Txn};
use crate::placement;
use crate::planted::{Bug, planted};
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader, IndexHeader, LIST_END, UNINDEXED_MAX, entry_size};
use myriad_format::extent::Extent;
use myriad_format::fork::Fork;
use myriad_format::inode::RawInode;
use myriad_format::{BlockKind, FileBlock, FsBlock, Ino};
use zerocopy::little_endian::U64;

/// Bytes of entries that a body may hold: what the largest body has room for, and no more than an entry block, which
/// takes them over one day.
fn body_max(look: &Look<'_>) -> usize {
    inode::body_capacity_max(look.volume).min(look.volume.cache.block_size() - ENTRIES_OFFSET)
}

/// Bytes of entries that a block without an index may hold.
fn unindexed_max(block_size: usize) -> usize {
    block_size.min(UNINDEXED_MAX)
}

#[inline]
pub(super) fn insert_entry(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &mut RawInode,
    entry: &NewEntry<'_>,
    room: &Room,
) -> Result<u32> {
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
        entries::insert(edit, &run, &entries::Fit { at: used, hole: None }, entry);
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
    let live = raw.size.get() as usize;
    txn.init(NewBlock::free(block), BlockKind::DirEntries, dir.0, |edit| {
        edit.put(ENTRIES_OFFSET, &data);
        entries::set_filled(edit, Filled { used: data.len(), live });
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
    let (mut tried, mut met_damage) = (0, false);
    let (leaf, mut known_head) = room.index.unzip();
    let position = loop {
        let head = match known_head.take() {
            Some(head) => head,
            None => txn.look.read(root, BlockKind::DirIndex, |bytes| IndexHeader::read(bytes).room_head.get())?,
        };
        let Some(block) = room_block(head).filter(|_| tried < ROOM_TRIES) else {
            add_entry_block(txn, source, dir, raw, root)?;
            tried = 0;
            continue;
        };
        tried += 1;
        match insert_in_block(txn, dir, raw, block, usize::MAX, entry) {
            Ok(Some(position)) => break position,
            Ok(None) => {}
            // The transaction has changed something already. A new block goes before the one that cannot be read.
            Err(Error::Corrupt(_) | Error::Io(_)) if !met_damage => {
                met_damage = true;
                add_entry_block(txn, source, dir, raw, root)?;
                continue;
            }
            Err(error) => return Err(error),
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
    let done = txn.change(at, BlockKind::DirEntries, |edit| {
        let place = Place { dir, block };
        let (run, live) = run_of(edit.bytes(), at, limit, place)?;
        let from = passed.all_shorter(size, Filled { used: run.used, live });
        let fit = entries::fit(edit.bytes(), &run, size, live, from, place)?;
        debug_assert_eq!(
            fit,
            entries::fit(edit.bytes(), &run, size, live, 0, place)?,
            "what is passed over is too short"
        );
        let Some(fit) = fit else { return Ok::<_, Error>(None) };
        let (taken, used) = entries::insert(edit, &run, &fit, entry);
        let filled = Filled { used, live: live + taken };
        if fit.hole.is_some() {
            last.pass(dir, at, fit.at, size, filled);
        }
        entries::set_filled(edit, filled);
        Ok(Some((fit.at, taken)))
    })??;
    Ok(done.map(|(offset, taken)| {
        add_size(raw, taken);
        position_of(&txn.look, block, ENTRIES_OFFSET + offset)
    }))
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
    list_room(txn, root, FileBlock(0), at)?;
    Ok(root)
}
