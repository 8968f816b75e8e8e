//! The extents of a directory of slots: which of their blocks have names, and new extents.

use super::block;
use crate::counters::Count;
use crate::dir::place::Place;
use crate::dir::{BlockSource, is_in_blocks, may_have_blocks};
use crate::edit::{BlockStore, NewBlock};
use crate::error::{Errno, Error, Result};
use crate::map::{self, Mapping};
use crate::order::{Look, Txn};
use crate::placement;
use myriad_format::extent::Extent;
use myriad_format::fork::Fork;
use myriad_format::inode::RawInode;
use myriad_format::slots::{DirExtent, EXTENT_BLOCKS, ExtentsHeader, SlotLayout};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino, header};
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

const EXTENTS: usize = offset_of!(ExtentsHeader, extents);

/// What a visit comes to, in the order of the blocks of slots.
pub(super) enum Visited<'a> {
    /// Blocks without names, by their numbers; they were not looked at.
    Empty(Range<u64>),
    /// A block that has names: its number, and its bytes.
    Names(u64, &'a [u8]),
}

pub(super) fn layout(look: &Look<'_>) -> SlotLayout {
    SlotLayout::new(look.volume.cache.block_size())
}

/// Whether a directory has blocks. One that lies anywhere else is damaged.
fn has_blocks(dir: Ino, raw: &RawInode) -> Result<bool> {
    if is_in_blocks(raw) {
        return Ok(true);
    }
    match Fork::decode(raw, dir)? {
        Fork::None => Ok(false),
        _ => Err(Corrupt::Inode { ino: dir, field: "fork_kind", value: u64::from(raw.fork_kind) }.into()),
    }
}

/// The extent of the map that has a file block.
fn mapped(look: &Look<'_>, dir: Ino, raw: &RawInode, block: FileBlock) -> Result<Extent> {
    match map::lookup(&mut &*look, raw, dir, block)? {
        Mapping::Mapped(extent) => Ok(extent),
        Mapping::Hole { .. } => Err(Place { dir, block }.corrupt(0, "block", 0)),
    }
}

/// The volume block of a file block.
pub(super) fn fs_block(look: &Look<'_>, dir: Ino, raw: &RawInode, block: u64) -> Result<FsBlock> {
    let extent = mapped(look, dir, raw, FileBlock(block))?;
    Ok(extent.start.offset_by(block - extent.file_block.0))
}

/// Hands blocks of one kind from a file block on to `f`, each with its distance from the first, until it returns false.
/// They go past the cache when frames are few: inside the gate nothing leaves it.
fn pass_over(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    blocks: Range<u64>,
    kind: BlockKind,
    f: &mut dyn FnMut(u64, &[u8]) -> Result<bool>,
) -> Result<bool> {
    let mut at = blocks.start;
    while at < blocks.end {
        let extent = mapped(look, dir, raw, FileBlock(at))?;
        let skipped = at - extent.file_block.0;
        let count = (u64::from(extent.length) - skipped).min(blocks.end - at);
        let start = extent.start.offset_by(skipped);
        let goes_on = look.volume.cache.pass_over(start, count, kind, &mut |i, bytes| {
            header::verify_owner(bytes, start.offset_by(i), dir.0)?;
            f(at - blocks.start + i, bytes)
        })?;
        if !goes_on {
            return Ok(false);
        }
        at += count;
    }
    Ok(true)
}

/// How many extents a directory has, and the records of those of its first span.
fn first_span(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Result<(u64, Vec<DirExtent>)> {
    let (mut extents, mut records) = (0, Vec::new());
    if has_blocks(dir, raw)? {
        let layout = layout(look);
        pass_over(look, dir, raw, 0..1, BlockKind::DirExtents, &mut |_, bytes| {
            extents = u64::from(ExtentsHeader::read(bytes).extents.get());
            if extents > layout.extents_max() || !may_have_blocks(look, layout.file_blocks(extents)) {
                return Err(Place { dir, block: FileBlock(0) }.corrupt(EXTENTS, "extents", extents));
            }
            records = records_in(bytes, layout, 0..extents.min(layout.extents), dir)?;
            Ok(true)
        })?;
    }
    Ok((extents, records))
}

/// How many extents a directory has.
pub(super) fn count(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Result<u64> {
    Ok(first_span(look, dir, raw)?.0)
}

/// Reads the blocks that say how many extents a directory has, and what this one has: if it is the next one, as far as they are there.
pub(super) fn read_record(look: &Look<'_>, dir: Ino, raw: &RawInode, extent: u64) -> Result<()> {
    if !has_blocks(dir, raw)? {
        return Ok(());
    }
    let layout = layout(look);
    let (block, _) = layout.record_of(extent);
    look.read(fs_block(look, dir, raw, 0)?, BlockKind::DirExtents, |_| ())?;
    match map::lookup(&mut &*look, raw, dir, FileBlock(block))? {
        Mapping::Hole { .. } => Ok(()),
        Mapping::Mapped(extent) => {
            look.read(extent.start.offset_by(block - extent.file_block.0), BlockKind::DirExtents, |_| ())
        }
    }
}

/// Refuses a directory of which not so many extents are mapped, or anything where a further one would be.
pub(super) fn check_end(look: &Look<'_>, dir: Ino, raw: &RawInode, extents: u64) -> Result<()> {
    let end = layout(look).file_blocks(extents);
    if end > 0 {
        mapped(look, dir, raw, FileBlock(end - 1))?;
    }
    let mut next = FileBlock(end);
    while next.0 <= end + EXTENT_BLOCKS {
        match map::lookup(&mut &*look, raw, dir, next)? {
            Mapping::Hole { until } => next = until,
            Mapping::Mapped(_) => return Err(Place { dir, block: FileBlock(0) }.corrupt(EXTENTS, "extents", extents)),
        }
    }
    Ok(())
}

/// The records of some extents of a span, from the block that has them.
fn records_in(bytes: &[u8], layout: SlotLayout, extents: Range<u64>, dir: Ino) -> Result<Vec<DirExtent>> {
    let (block, at) = layout.record_of(extents.start);
    let len = (extents.end - extents.start) as usize * DirExtent::SIZE;
    let rooms = bytes[at..at + len].chunks_exact(DirExtent::SIZE).enumerate();
    let read = |(index, bytes)| {
        let record = *DirExtent::read(bytes);
        let (names, blocks) = (u64::from(record.names.get()), u64::from(record.used.count_ones()));
        if names > blocks * layout.slots as u64 || names < blocks {
            let place = Place { dir, block: FileBlock(block) };
            return Err(place.corrupt(at + index * DirExtent::SIZE, "names", names));
        }
        Ok(record)
    };
    rooms.map(read).collect()
}

/// Visits blocks of slots from a number on, until `f` returns false. How many extents the directory has.
pub(super) fn visit(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    from: u64,
    f: &mut dyn FnMut(Visited<'_>) -> Result<bool>,
) -> Result<u64> {
    let layout = layout(look);
    let (extents, mut records) = first_span(look, dir, raw)?;
    let mut extent = from / EXTENT_BLOCKS;
    while extent < extents {
        let span = extent / layout.extents * layout.extents;
        let end = (span + layout.extents).min(extents);
        if span > 0 {
            let (block, _) = layout.record_of(span);
            pass_over(look, dir, raw, block..block + 1, BlockKind::DirExtents, &mut |_, bytes| {
                records = records_in(bytes, layout, span..end, dir)?;
                Ok(true)
            })?;
        }
        for (extent, record) in (extent..end).zip(&records[(extent - span) as usize..]) {
            let first = extent * EXTENT_BLOCKS;
            let blocks = first.max(from)..first + EXTENT_BLOCKS;
            if !visit_extent(look, dir, raw, record, blocks, f)? {
                return Ok(extents);
            }
        }
        extent = end;
    }
    Ok(extents)
}

/// Visits some blocks of one extent: those that have names are read, those between them are not.
fn visit_extent(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    record: &DirExtent,
    blocks: Range<u64>,
    f: &mut dyn FnMut(Visited<'_>) -> Result<bool>,
) -> Result<bool> {
    let layout = layout(look);
    let is_used = |block: &u64| record.used >> (block % EXTENT_BLOCKS) & 1 == 1;
    let mut at = blocks.start;
    while at < blocks.end {
        let has_names = is_used(&at);
        let run = (at..blocks.end).take_while(|block| is_used(block) == has_names).count() as u64;
        let goes_on = if has_names {
            let file_block = layout.file_block(at);
            pass_over(look, dir, raw, file_block..file_block + run, BlockKind::DirSlots, &mut |i, bytes| {
                let names = block::names(bytes);
                // What a removal takes away is there to be taken.
                if names == 0 || names > u32::from(record.names.get()) {
                    let place = Place { dir, block: FileBlock(file_block + i) };
                    return Err(place.corrupt(0, "names", u64::from(names)));
                }
                f(Visited::Names(at + i, bytes))
            })?
        } else {
            look.volume.counters.add(Count::dir_blocks_skipped, run);
            f(Visited::Empty(at..at + run))?
        };
        if !goes_on {
            return Ok(false);
        }
        at += run;
    }
    Ok(true)
}

/// Counts a name that a block of slots has got (`by` is 1) or lost (-1); `names` are left in the block.
pub(super) fn count_name(
    txn: &mut Txn<'_>,
    dir: Ino,
    raw: &RawInode,
    slot_block: u64,
    by: i16,
    names: u32,
) -> Result<()> {
    let layout = layout(&txn.look);
    let (block, at) = layout.record_of(slot_block / EXTENT_BLOCKS);
    let index = fs_block(&txn.look, dir, raw, block)?;
    let bit = 1 << (slot_block % EXTENT_BLOCKS);
    txn.change(index, BlockKind::DirExtents, |edit| {
        let mut record = *DirExtent::read(&edit.bytes()[at..]);
        // A search has looked at the record, and refused one with nothing to take away.
        record.names = U16::new(record.names.get().saturating_add_signed(by));
        record.used = if names == 0 { record.used & !bit } else { record.used | bit };
        edit.put(at, record.as_bytes());
    })
}

/// Adds an extent of empty blocks at the end of a directory, and a block for its record and those of others if need be.
pub(super) fn add(txn: &mut Txn<'_>, dir: Ino, raw: &mut RawInode, extent: u64) -> Result<()> {
    let layout = layout(&txn.look);
    let volume = txn.volume();
    let begins_span = extent % layout.extents == 0;
    let end = layout.file_blocks(extent + 1);
    let mut at = end - EXTENT_BLOCKS - u64::from(begins_span);
    let mut near = match at {
        0 => volume.block_of(dir),
        _ => fs_block(&txn.look, dir, raw, at - 1)?.offset_by(1),
    };
    let mut source = BlockSource::new(placement::beside(volume, dir));
    while at < end {
        let want = (end - at) as u32;
        // Side by side, as in the paper; but space in pieces is no reason to refuse what there is space for.
        let (start, length) = match volume.allocate_extent(txn, near, want, want) {
            Err(Error::Refused(Errno::NOSPC)) => volume.allocate_extent(txn, near, 1, want)?,
            other => other?,
        };
        for (file_block, block) in (at..).zip((0..u64::from(length)).map(|i| start.offset_by(i))) {
            if layout.slot_block(file_block).is_none() {
                txn.init(NewBlock::free(block), BlockKind::DirExtents, dir.0, |_| ())?;
            } else {
                txn.init(NewBlock::free(block), BlockKind::DirSlots, dir.0, |edit| {
                    let len = edit.bytes().len();
                    layout.clear(edit.range_mut(0, len));
                })?;
            }
        }
        let extent = Extent { file_block: FileBlock(at), start, length, unwritten: false };
        map::insert(txn, &mut source, raw, dir, extent)?;
        near = start.offset_by(u64::from(length));
        at += u64::from(length);
    }
    source.settle(raw);
    set_count(txn, dir, raw, extent + 1)
}

/// Sets how many extents a directory has, which it says in its first block.
pub(super) fn set_count(txn: &mut Txn<'_>, dir: Ino, raw: &RawInode, extents: u64) -> Result<()> {
    let first = fs_block(&txn.look, dir, raw, 0)?;
    txn.change(first, BlockKind::DirExtents, |edit| edit.put(EXTENTS, &(extents as u32).to_le_bytes()))
}
