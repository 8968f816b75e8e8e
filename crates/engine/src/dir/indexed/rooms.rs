//! Entry blocks with room for more: the list of them, which begins at the index root, and the blocks that are added to it.
//!
//! The list leads from block to block in one direction. A block is on it or not, never twice: an insertion takes a block off that
//! has no room for its name, a removal puts one on that has a quarter free. Not here: where in a block an entry goes ([`entries`]).

use super::entries::Run;
use super::entry_block;
use crate::dir::BlockSource;
use crate::dir::place::Place;
use crate::edit::{BlockStore, NewBlock};
use crate::error::Result;
use crate::map::{self, Mapping};
use crate::order::{Look, Txn};
use crate::volume::Share;
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader, IndexHeader, LIST_END};
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino, header};
use std::mem::offset_of;
use zerocopy::little_endian::U32;

/// Fields that are changed by themselves: of an entry block, which comes after it in the list of those with room; of the index root, the
/// first of that list, and how many entry blocks there are.
pub(super) const NEXT_ROOM: usize = offset_of!(EntryBlockHeader, next_room);
pub(super) const ROOM_HEAD: usize = offset_of!(IndexHeader, room_head);
pub(super) const ENTRY_BLOCKS: usize = offset_of!(IndexHeader, entry_blocks);

/// Blocks with room that an insertion tries before it adds one. Their room may be holes too small for its name, and the
/// list as long as the directory; inside the gate nothing can be evicted for what it would read.
pub(super) const ROOM_TRIES: u32 = 8;

/// Entry blocks of the largest directory: the last position must fit 32 bits, and the map must reach as far.
pub(super) fn entry_blocks_max(look: &Look<'_>) -> u64 {
    let geometry = &look.volume.geometry;
    ((u64::from(u32::MAX) * 8) >> geometry.block_bits).min(map::directory_blocks_max(geometry))
}

/// The run of entries of a block, of which they may fill `limit` bytes, and how many bytes of it live entries have.
pub(super) fn run_of(bytes: &[u8], at: FsBlock, limit: usize, place: Place) -> Result<(Run, usize)> {
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

/// The block that a link of the list names: the index root's `room_head`, or `next_room` of a block on the list. `None` at its end. A head of 0,
/// which check reports, ends the list as well.
pub(super) fn room_block(link: u32) -> Option<FileBlock> {
    if link == LIST_END { None } else { link.checked_sub(1).map(|block| FileBlock(block.into())) }
}

/// Puts a block, which lies at `at`, at the head of the list of blocks with room, unless it is on it.
pub(super) fn list_room(txn: &mut Txn<'_>, root: FsBlock, block: FileBlock, at: FsBlock) -> Result<()> {
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
pub(super) fn add_entry_block(
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
    let left = entry_blocks_max(&txn.look).saturating_sub(block.0);
    if left == 0 {
        return Err(Corrupt::DirIndex { ino: dir, block: root, field: "entry_blocks", value: block.0 }.into());
    }
    let at = match map::lookup(&mut &txn.look, raw, dir, block)? {
        Mapping::Mapped(extent) => extent.start.offset_by(block.0 - extent.file_block.0),
        Mapping::Hole { .. } => {
            let previous = entry_block(&txn.look, dir, raw, FileBlock(block.0 - 1))?;
            let run = u64::from(made / 8).clamp(1, 64).min(left) as u32;
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
