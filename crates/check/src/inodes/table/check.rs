//! The check of a group's inode table, and of the bitmap of its inodes; how a table is read, and what of it can be derived.

use crate::bitmap::{self, Bitmap};
use crate::context::Context;
use crate::findings::number;
use crate::inodes::facts::{Block, GroupFacts, for_each_block, take_inode, take_run};
use crate::io::Reader;
use crate::report::Place;
use crate::slots::{Slots, bad_inode, inode_at, inodes_of};
use crate::table::SlotInfo;
use myriad_format::choices::Map;
use myriad_format::group::GroupHeader;
use myriad_format::inode::{RawInode, flag, fork};
use myriad_format::table::{INODE_SIZE, POINTERS_OFFSET, UNIT_INODES};
use myriad_format::{AgBlock, AgNo, BlockKind, Corrupt, FsBlock, Geometry, Ino};
use std::io;
use std::ops::Range;

/// Blocks of the table that are looked at together.
const RUN_BLOCKS: u32 = 64;

/// A block of a group's table.
pub(crate) fn block_at(geometry: &Geometry, ag: AgNo, index: u32) -> FsBlock {
    geometry.fs_block(ag, AgBlock(geometry.table_start(ag) + index))
}

/// The inodes of a unit, counted through the table.
fn inodes_of_unit(geometry: &Geometry, block: u32, unit: u32) -> Range<u32> {
    let first = block * geometry.table_inodes_per_block() + unit * UNIT_INODES;
    first..first + UNIT_INODES
}

/// Verifies a block of a table; `is_read`: `buf` has it as it is on the device.
pub(crate) fn read_block<'a>(reader: &Reader, block: FsBlock, is_read: bool, buf: &'a mut [u8]) -> Block<'a> {
    let owner = u64::from(reader.geometry.ag_of(block).0);
    let found = match is_read {
        true => reader.settle_units(block, BlockKind::InodeTable, owner, buf),
        false => reader.read_units(block, BlockKind::InodeTable, owner, buf),
    };
    Block { bytes: Some(buf), bad_units: found.bad, damage: found.why }
}

/// Checks a group's table, and its bitmap.
pub(crate) fn check_group(context: &Context<'_>, ag: AgNo, header: &GroupHeader, facts: &mut GroupFacts) {
    let place = Place::Group(ag);
    let geometry = &context.geometry;
    let bad = |field, value: u32| {
        let corrupt = Corrupt::Group { ag, field, value: u64::from(value) };
        context.report(corrupt.number(), place, corrupt.to_string());
    };
    for (field, value) in [("inode_root", header.inode_root.get()), ("inode_level", u32::from(header.inode_level))] {
        if value != 0 {
            bad(field, value);
        }
    }
    let blocks = geometry.table_blocks(ag);
    if header.inode_blocks.get() > blocks {
        bad("inode_blocks", header.inode_blocks.get());
    }
    let initialised = header.inode_blocks.get().min(blocks);
    facts.inode_blocks = u64::from(header.inode_blocks.get());
    let mut expected = Bitmap::new(geometry.table_inodes(ag));
    expected.set(0..geometry.table_inodes(ag), true);
    let mut unknown = Vec::new();
    for first in (0..initialised).step_by(RUN_BLOCKS as usize) {
        let run = first..(first + RUN_BLOCKS).min(initialised);
        check_run(context, ag, run, &mut expected, &mut unknown, facts);
    }
    check_bitmap(context, ag, expected, unknown);
}

/// Checks some blocks of a table. Their inodes that are in use are not `expected` to be free; those in units that cannot be
/// believed are `unknown`.
fn check_run(
    context: &Context<'_>,
    ag: AgNo,
    run: Range<u32>,
    expected: &mut Bitmap,
    unknown: &mut Vec<Range<u32>>,
    facts: &mut GroupFacts,
) {
    let geometry = &context.geometry;
    let slots = geometry.slots_per_block() as usize;
    let start = block_at(geometry, ag, run.start);
    let mut infos = vec![SlotInfo::default(); run.len() * slots];
    let mut known = 0_u64;
    for_each_block(&context.reader, read_block, start, run.len(), |index, Block { bytes, bad_units, damage }| {
        let block = start.offset_by(index as u64);
        known |= u64::from(damage.is_empty()) << index;
        damage.into_iter().for_each(|damage| context.damage(Place::Block(block), damage));
        unknown.extend(bad_units.into_iter().map(|unit| inodes_of_unit(geometry, run.start + index as u32, unit)));
        let Some(bytes) = bytes else { return };
        let infos = &mut infos[index * slots..][..slots];
        let Slots { inodes, stray, .. } = inodes_of(geometry, bytes);
        for slot in inodes.iter().map(|(slot, _)| *slot).chain(stray.iter().copied()) {
            let number = geometry.table_index(block, slot).expect("it lies in the table");
            expected.set(number..number + 1, false);
        }
        for slot in stray {
            let (ino, mode) = (geometry.ino(block, slot), inode_at(geometry, bytes, slot).mode.get());
            context.damage(Place::Inode(ino), bad_inode(ino, "mode", u64::from(mode)).into());
        }
        for (slot, _) in inodes {
            let ino = geometry.ino(block, slot);
            let raw = inode_at(geometry, bytes, slot);
            if let Err(corrupt) = raw.check(ino) {
                context.damage(Place::Inode(ino), corrupt.into());
                continue;
            }
            if let Err(corrupt) = check_fixed(ino, raw, pointers(geometry, bytes, slot)) {
                context.damage(Place::Inode(ino), corrupt.into());
            }
            take_inode(context, (block, slot), raw, (&[], &[]), infos, facts);
        }
    });
    take_run(context, start, known, &infos, facts);
}

/// The bytes behind an inode of a table that pointers have.
fn pointers<'a>(geometry: &Geometry, block: &'a [u8], slot: u32) -> &'a [u8] {
    &block[geometry.inode_offset(slot)..][POINTERS_OFFSET..INODE_SIZE]
}

/// Checks what only an inode of a table has, or only others have.
fn check_fixed(ino: Ino, raw: &RawInode, pointers: &[u8]) -> Result<(), Corrupt> {
    let bad = |field, value| Err(bad_inode(ino, field, value));
    if raw.body_slots != 0 {
        return bad("body_slots", u64::from(raw.body_slots));
    }
    if raw.body_first.get() != 0 {
        return bad("body_first", u64::from(raw.body_first.get()));
    }
    if raw.fork_code() == fork::INLINE {
        return bad("fork_kind", u64::from(raw.fork_kind));
    }
    if raw.has_flag(flag::ATTR_BODY) {
        return bad("flags", u64::from(raw.flags.get()));
    }
    if raw.fork_code() <= fork::DIRECTORY_TREE
        && let Some(word) = pointers.chunks_exact(8).find(|word| *word != [0; 8])
    {
        return bad("pointers", u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    Ok(())
}

/// Compares the bitmap of a group's inodes with its table.
fn check_bitmap(context: &Context<'_>, ag: AgNo, mut expected: Bitmap, unknown: Vec<Range<u32>>) {
    let place = Place::Group(ag);
    let geometry = &context.geometry;
    let bits = bitmap::Place::of_inodes(geometry, ag);
    let mut found = bitmap::read(&context.reader, &bits, |block, damage| context.damage(Place::Block(block), damage));
    if found.is_past_end {
        let message = format!("the bitmap of inodes calls some free past its {} inodes", bits.count);
        context.report(number::INODE_BITMAP, place, message);
    }
    for range in unknown.into_iter().chain(found.lost) {
        expected.set(range.clone(), false);
        found.bits.set(range, false);
    }
    let differing = expected.differing(&found.bits);
    let first = |is_free| differing.iter().copied().find(|&number| found.bits.is_free(number) == is_free);
    for (is_free, what) in [(true, "are in use and called free"), (false, "are called used, and are not")] {
        if let Some(first) = first(is_free) {
            let count = differing.iter().filter(|&&number| found.bits.is_free(number) == is_free).count();
            let (at, slot) = geometry.table_place(ag, first);
            let ino = geometry.ino(geometry.fs_block(ag, at), slot);
            let message = format!("{count} inodes {what}, the first is {ino}");
            if is_free {
                context.report(number::INODE_BITMAP, place, message);
            } else {
                context.report_leftover(number::INODE_BITMAP, place, message, |all| {
                    let unused = differing.iter().filter(|&&number| !found.bits.is_free(number));
                    all.places.extend(unused.map(|&number| {
                        let (at, slot) = geometry.table_place(ag, number);
                        geometry.ino(geometry.fs_block(ag, at), slot)
                    }));
                });
            }
        }
    }
}

/// Blocks of a group's table that were initialised, for a repair: as many as the header says, and all up to the last one that
/// has a sound unit.
pub(crate) fn initialised(reader: &Reader, ag: AgNo, header: Option<&GroupHeader>) -> u32 {
    let counted = header.map_or(0, |header| header.inode_blocks.get().min(reader.geometry.table_blocks(ag)));
    sound_behind(reader, ag, counted).last().map_or(counted, |last| last + 1)
}

/// Blocks of a group's table, from number `counted` on, that have a sound unit.
pub(crate) fn sound_behind(reader: &Reader, ag: AgNo, counted: u32) -> Vec<u32> {
    let geometry = &reader.geometry;
    let blocks = geometry.table_blocks(ag);
    let units = geometry.units_per_block() as usize;
    let mut found = Vec::new();
    for first in (counted..blocks).step_by(RUN_BLOCKS as usize) {
        let start = block_at(geometry, ag, first);
        let mut bytes = vec![0; (blocks - first).min(RUN_BLOCKS) as usize * reader.block_size()];
        let whole = reader.read_device(start, &mut bytes).is_ok();
        for (index, buf) in (0..).zip(bytes.chunks_exact_mut(reader.block_size())) {
            let block = read_block(reader, start.offset_by(u64::from(index)), whole, buf);
            if block.bad_units.len() < units {
                found.push(first + index);
            }
        }
    }
    found
}

/// What a repair makes of fields that only an inode of a table has to have, or only others may have. False: it had to change
/// some.
pub(crate) fn mend_fixed(map: Map, raw: &mut RawInode, pointers: &mut [u8]) -> bool {
    // A map of another kind than the volume's is given up, and its pointers with it.
    let is_foreign = raw.fork_code() == fork::BLOCKS && map != Map::Blocks;
    if !is_foreign && check_fixed(Ino::NONE, raw, pointers).is_ok() {
        return true;
    }
    raw.body_slots = 0;
    raw.body_first.set(0);
    raw.flags.set(raw.flags.get() & !flag::ATTR_BODY);
    if raw.fork_code() == fork::INLINE {
        raw.set_fork(fork::NONE, 0);
        raw.size.set(0);
    }
    if raw.fork_code() <= fork::DIRECTORY_TREE || is_foreign {
        pointers.fill(0);
    }
    false
}

/// Writes the bitmap of a group's inodes from those that are in use.
pub(crate) fn write_bitmap(
    reader: &Reader,
    ag: AgNo,
    used: impl Iterator<Item = Ino>,
) -> Result<(), (FsBlock, io::Error)> {
    let geometry = &reader.geometry;
    let place = bitmap::Place::of_inodes(geometry, ag);
    let mut bits = Bitmap::new(place.count);
    bits.set(0..place.count, true);
    for (block, slot) in used.filter_map(|ino| geometry.locate(ino)) {
        let number = geometry.table_index(block, slot).expect("an inode of the table");
        bits.set(number..number + 1, false);
    }
    bitmap::write(reader, &place, &bits)
}
