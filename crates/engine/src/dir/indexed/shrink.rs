//! A directory without entries gives up its blocks, in as many transactions as they need.
//!
//! Each transaction does some small changes, after each of which the directory is sound: a directory without entries, which may get
//! some before the next. [`clear`] ends it, once so few blocks are left that one transaction can free them.

use super::rooms::{ENTRY_BLOCKS, NEXT_ROOM, ROOM_HEAD, list_room, room_block};
use super::{entry_block, index, index_root, index_root_in, is_in_body};
use crate::cache::FRAMES_UNASKED;
use crate::counters::Count;
use crate::dir::{self, BlockSource, free_blocks, is_in_blocks};
use crate::edit::BlockStore;
use crate::error::Result;
use crate::inode;
use crate::map::{self, FILE_END};
use crate::order::{Look, Txn};
use crate::placement;
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader, IndexHeader};
use myriad_format::inode::RawInode;
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino, header};

/// Blocks that an empty directory gives up in the transaction that empties or removes it. Of one with more, as many at most are
/// changed in each of several. Tests are to come there with small directories.
const GIVEN_UP_MAX: u64 = if cfg!(debug_assertions) { 8 } else { 64 };

/// Frames that one of the changes may bring in: two leaves of the index, what leads to them, and a node of the map.
const STEP_FRAMES: usize = 4;

/// How many of the changes a transaction has frames for, which has changed nothing yet.
fn steps_max(txn: &mut Txn<'_>) -> u64 {
    let most = GIVEN_UP_MAX as usize;
    let steps = if txn.may_take(STEP_FRAMES * most) { most } else { FRAMES_UNASKED / STEP_FRAMES };
    steps as u64
}

/// Whether the blocks of a directory are too many to be given up in one transaction.
pub(crate) fn is_large(raw: &RawInode) -> bool {
    is_in_blocks(raw) && raw.block_total() > GIVEN_UP_MAX
}

/// Whether a directory without entries has blocks that it is to give up.
pub(crate) fn has_idle_blocks(raw: &RawInode) -> bool {
    is_in_blocks(raw) && raw.size.get() == 0
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
    let next_room = |block: FileBlock| -> Result<(FsBlock, u32)> {
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
    let give_up = |left: u32| {
        map::read_ahead(&mut &*look, raw, dir, FileBlock(u64::from(left)))?;
        let gone = (left..made).map(|block| entry_block(look, dir, raw, FileBlock(u64::from(block))));
        Ok(Some(Shrinking::Blocks { left, gone: gone.collect::<Result<_>>()? }))
    };
    let Some(first) = room_block(head) else {
        return give_up(made.saturating_sub(GIVEN_UP_MAX as u32).max(1));
    };
    if next_room(FileBlock(u64::from(made - 1)))?.1 == 0 {
        return give_up(made - 1);
    }
    let (block, next) = next_room(first)?;
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
            map::remove_all(txn, source, raw, dir, behind, &mut extents)?;
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

/// Gives up blocks of a directory that was emptied, as many as are good for one transaction; true when it is done. If it has names again, the blocks without any
/// get onto the list of blocks with room instead: those before `listed` are on it.
pub(crate) fn give_up_emptied(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, listed: &mut u32) -> Result<bool> {
    if raw.size.get() == 0 {
        // Giving up takes them off the list.
        *listed = 0;
        let is_done = dir::give_up_part(txn, dir, raw)?;
        if is_done {
            dir::clear(txn, dir, raw)?;
        }
        return Ok(is_done);
    }
    let next = list_rooms(txn, dir, raw, *listed)?;
    *listed = next.unwrap_or(0);
    Ok(next.is_none())
}

/// Gives up as many blocks of a directory without entries as are good for one transaction. True, with nothing changed, when the rest fits a
/// transaction.
pub(crate) fn give_up_part(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode) -> Result<bool> {
    let mut source = BlockSource::new(placement::beside(txn.volume(), dir));
    for steps in 0..steps_max(txn) {
        let root = if is_large(raw) { index_root(raw) } else { None };
        let next = match root {
            Some(root) => next_shrinking(&txn.look, dir, raw, root).map(|next| next.map(|step| (root, step))),
            None => Ok(None),
        };
        match next {
            Ok(Some((root, step))) => shrink(txn, &mut source, dir, raw, root, step)?,
            Ok(None) => return Ok(steps == 0),
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
    Ok(false)
}

/// Puts entry blocks with room back on the list, from a block on; where to go on, if there are more. For a directory that got
/// entries before it had given up all its blocks.
fn list_rooms(txn: &mut Txn<'_>, dir: Ino, raw: &RawInode, from: u32) -> Result<Option<u32>> {
    let Some(root) = index_root_in(raw) else { return Ok(None) };
    let made = txn.look.read(root, BlockKind::DirIndex, |bytes| IndexHeader::read(bytes).entry_blocks.get())?;
    let block_size = txn.volume().cache.block_size();
    let until = made.min(from.saturating_add(steps_max(txn) as u32));
    for number in from..until {
        let block = FileBlock(u64::from(number));
        let found = entry_block(&txn.look, dir, raw, block).and_then(|at| {
            txn.look.read(at, BlockKind::DirEntries, |bytes| {
                header::verify_owner(bytes, at, dir.0)?;
                let header = EntryBlockHeader::read(bytes);
                let free = (block_size - ENTRIES_OFFSET).saturating_sub(header.live.get() as usize);
                Ok((header.next_room.get() == 0 && free >= block_size / 4).then_some(at))
            })?
        });
        match found {
            Ok(Some(at)) => list_room(txn, root, block, at)?,
            Ok(None) => {}
            Err(_) if number > from => return Ok(Some(number)),
            Err(error) => return Err(error),
        }
    }
    Ok((until < made).then_some(until))
}

/// Reads the blocks of the index, if there is one.
pub(crate) fn read_index(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Result<()> {
    match index_root(raw) {
        Some(root) => index::for_each_block(look, dir, root, &mut |_| {}),
        None => Ok(()),
    }
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
