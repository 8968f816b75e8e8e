//! The check of directories of kind `linear`: each unit by itself, and whether a name is there twice.

use crate::context::{Context, for_repair};
use crate::directory::entries::{self, Entry, parse};
use crate::directory::hashes::Hashes;
use crate::directory::names::{At, Names, Sums, covered, find_block, is_in_blocks_alone, report_bad_entry};
use crate::directory::{Checked, Dir};
use crate::findings::number;
use crate::io::{Damage, Reader};
use crate::map::for_each_extent;
use crate::report::Place;
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::unit::{UNIT_SIZE, UnitHeader, verify_one};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino};
use std::sync::atomic::Ordering::Relaxed;

/// Checks a directory whose blocks have been claimed.
pub(in crate::directory) fn check(names: &Names<'_>, dir: Dir<'_>, extents: &[Extent], sums: &mut Sums) -> Checked {
    let context = names.context;
    let Dir { ino, raw, .. } = dir;
    let place = Place::Inode(ino);
    let size = raw.size.get();
    if !is_in_blocks_alone(context, ino, raw) {
        return Checked::default();
    }
    let block_size = context.reader.block_size();
    let needed = size.div_ceil(block_size as u64);
    let mapped: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
    if size % UNIT_SIZE as u64 != 0 || mapped != needed || covered(extents) != needed {
        let message = format!("size {size} is not that of units in the {mapped} blocks of the directory");
        // A block behind the end is empty yet, or has been emptied. There may be holes between such blocks: of a block of pointers
        // some units may have been written and others not.
        if size % UNIT_SIZE as u64 == 0 && mapped > needed && covered(extents) >= needed {
            context.report_leftover(number::INODE_SIZE, place, message, for_repair);
        } else {
            context.report(number::INODE_SIZE, place, message);
        }
    }
    let units = size / UNIT_SIZE as u64;
    let mut is_whole = true;
    let mut hashes = Hashes::new();
    for_each_unit(context, ino, extents, needed, |unit, bytes| {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(damage) => {
                is_whole = false;
                return context.damage(place, damage);
            }
        };
        let mut tags = Vec::new();
        for entry in parse(bytes) {
            match entry {
                Err(bad) => {
                    let (block, offset) = place_of(unit, bad.offset, block_size);
                    report_bad_entry(context, ino, block, offset, &bad);
                }
                Ok(entry) if entry.ino.is_none() => {}
                Ok(entry) => {
                    let at = at(unit, &entry);
                    let entry_place = Place::Entry { directory: ino, position: at.place };
                    if unit >= units {
                        let message = format!("{} lies in unit {unit}, of {units}", entry.name.escape_ascii());
                        context.report(number::ENTRY_BLOCK, entry_place, message);
                        continue;
                    }
                    if tags.contains(&entry.tag) {
                        let name = entry.name.escape_ascii();
                        let message = format!("{name}: another name of unit {unit} has tag {:#x} as well", entry.tag);
                        context.report(number::UNIT_TAGS, entry_place, message);
                    }
                    tags.push(entry.tag);
                    let hash = context.hasher.hash(entry.name);
                    hashes.add(hash, at.place);
                    names.check_name(ino, &entry, at, hash, sums);
                }
            }
        }
    });
    let name = |place| name_at(context, ino, extents, place);
    hashes.compare(context, ino, raw, name, |hashes| {
        for_each_unit(context, ino, extents, needed, |unit, bytes| {
            for entry in parse(bytes.unwrap_or_default()).map_while(Result::ok).filter(|entry| !entry.ino.is_none()) {
                if unit < units {
                    hashes.add(context.hasher.hash(entry.name), at(unit, &entry).place);
                }
            }
        });
    });
    Checked { made: needed, is_whole, unmapped: 0 }
}

/// Where an entry lies: its offset in the directory, in words of 8 bytes. Identities say nothing of it.
fn at(unit: u64, entry: &Entry<'_>) -> At {
    At { place: (unit * UNIT_SIZE as u64 + UnitHeader::SIZE as u64 + u64::from(entry.offset)) / 8, position: 0 }
}

/// The file block, and the offset there, of a byte of the entries of a unit.
fn place_of(unit: u64, offset: u32, block_size: usize) -> (FileBlock, u32) {
    let byte = unit * UNIT_SIZE as u64 + UnitHeader::SIZE as u64 + u64::from(offset);
    (FileBlock(byte / block_size as u64), (byte % block_size as u64) as u32)
}

/// The name of the entry at a place.
fn name_at(context: &Context<'_>, ino: Ino, extents: &[Extent], place: u64) -> Option<Vec<u8>> {
    let byte = place * 8;
    let block_size = context.reader.block_size() as u64;
    let block = find_block(extents, byte / block_size)?;
    let mut buf = context.reader.new_buffer();
    let units = read_units(&context.reader, ino, block, &mut buf).ok()?;
    let unit = units.into_iter().nth((byte % block_size) as usize / UNIT_SIZE)?.ok()?;
    let offset = (byte as usize % UNIT_SIZE).checked_sub(UnitHeader::SIZE)?;
    entries::name_at(unit, offset).map(<[u8]>::to_vec)
}

/// Reads an entry block: of each of its units the entries, or why it is not believed.
pub(crate) fn read_units<'b>(
    reader: &Reader,
    ino: Ino,
    block: FsBlock,
    buf: &'b mut [u8],
) -> Result<Vec<Result<&'b [u8], Damage>>, Damage> {
    reader.read_raw_units(block, BlockKind::LinearEntries, buf)?;
    Ok(units_of(reader, ino, block, buf))
}

/// Of each unit of a block the entries, or why it is not believed.
pub(crate) fn units_of<'b>(reader: &Reader, ino: Ino, block: FsBlock, buf: &'b [u8]) -> Vec<Result<&'b [u8], Damage>> {
    let judge = |(number, unit): (usize, &'b [u8])| {
        verify_one(unit, BlockKind::LinearEntries, &reader.volume, block, number as u32)?;
        let stored = UnitHeader::read(unit).owner.get();
        if stored != ino.0 {
            return Err(Damage::Corrupt(Corrupt::BlockOwner { block, stored, expected: ino.0 }));
        }
        Ok(&unit[UnitHeader::SIZE..])
    };
    buf.chunks_exact(UNIT_SIZE).enumerate().map(judge).collect()
}

/// Hands the units of the first `needed` blocks to `f`: number, and the entries or why they are not believed.
pub(crate) fn for_each_unit(
    context: &Context<'_>,
    ino: Ino,
    extents: &[Extent],
    needed: u64,
    mut f: impl FnMut(u64, Result<&[u8], Damage>),
) {
    let mut buf = context.reader.new_buffer();
    let per_block = (buf.len() / UNIT_SIZE) as u64;
    for extent in extents.iter().filter(|extent| !extent.unwritten && extent.file_block.0 < needed) {
        let length = u64::from(extent.length).min(needed - extent.file_block.0);
        for offset in 0..length {
            let first = (extent.file_block.0 + offset) * per_block;
            match read_units(&context.reader, ino, extent.start.offset_by(offset), &mut buf) {
                Ok(units) => (first..).zip(units).for_each(|(unit, bytes)| f(unit, bytes)),
                Err(damage) => f(first, Err(damage)),
            }
            if context.cancelled.load(Relaxed) {
                return;
            }
        }
    }
}

/// Hands the entries of a directory that has been checked to `f`. `left_out`: what of its map is believed, if not all of it
/// could be read.
pub(in crate::directory) fn entries_again(
    context: &Context<'_>,
    Dir { ino, raw, .. }: Dir<'_>,
    left_out: Option<(Vec<Extent>, u64)>,
    f: &mut dyn FnMut(&Entry<'_>, At),
) {
    let is_told = left_out.is_some();
    let (extents, needed) = left_out.unwrap_or_else(|| map_again(context, ino, raw));
    let units = raw.size.get() / UNIT_SIZE as u64;
    for_each_unit(context, ino, &extents, needed, |unit, bytes| match bytes {
        Ok(bytes) if unit < units => {
            parse(bytes).flatten().filter(|entry| !entry.ino.is_none()).for_each(|entry| f(&entry, at(unit, &entry)));
        }
        Err(damage) if !is_told => context.damage(Place::Inode(ino), damage),
        _ => {}
    });
}

/// Extents of a directory that was checked, and how many blocks its size needs.
fn map_again(context: &Context<'_>, ino: Ino, raw: &RawInode) -> (Vec<Extent>, u64) {
    let mut extents = Vec::new();
    for_each_extent(&context.reader, ino, raw, |extent| extents.push(extent));
    (extents, raw.size.get().div_ceil(context.reader.block_size() as u64))
}

/// Hands the live entries of a directory that was checked to `f`; what cannot be read is left out.
pub(in crate::directory) fn for_each_entry(context: &Context<'_>, dir: Dir<'_>, f: &mut dyn FnMut(&Entry<'_>)) {
    entries_again(context, dir, Some(map_again(context, dir.ino, dir.raw)), &mut |entry, _| f(entry));
}
