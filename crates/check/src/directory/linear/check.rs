//! The check of directories of kind `linear`: each unit by itself, and whether a name is there twice.
//!
//! Names are compared with each other by their hashes, which are held in memory, for so many at a time (`HELD_MAX`).

use crate::context::Context;
use crate::directory::entries::{self, Entry, parse};
use crate::directory::names::{At, Names, Sums, covered, find_block, report_bad_entry, report_equal_hashes};
use crate::findings::number;
use crate::io::{Damage, Reader};
use crate::map::for_each_extent;
use crate::report::Place;
use myriad_format::extent::Extent;
use myriad_format::inode::{RawInode, fork};
use myriad_format::unit::{UNIT_SIZE, UnitHeader, verify_one};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino, header};
use std::sync::atomic::Ordering::Relaxed;

/// Hashes of names held at a time, each with the place of its entry. The directory is read once more for each further part.
const HELD_MAX: usize = if cfg!(debug_assertions) { 1 << 10 } else { 1 << 20 };

/// Checks a directory whose blocks have been claimed; how many blocks its size needs, and whether all of it could be read.
pub(in crate::directory) fn check(
    names: &Names<'_>,
    ino: Ino,
    raw: &RawInode,
    extents: &[Extent],
    sums: &mut Sums,
) -> (u64, bool) {
    let context = names.context;
    let place = Place::Inode(ino);
    let size = raw.size.get();
    if raw.fork_code() != fork::NONE && !raw.is_dir_in_blocks() {
        context.damage(place, Corrupt::Inode { ino, field: "fork_kind", value: u64::from(raw.fork_kind) }.into());
        return (0, false);
    }
    if let Some(root) = raw.index_root() {
        context.damage(place, Corrupt::Inode { ino, field: "index root", value: root.0 }.into());
    }
    let block_size = context.reader.block_size();
    let needed = size.div_ceil(block_size as u64);
    let mapped: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
    if size % UNIT_SIZE as u64 != 0 || mapped != needed || covered(extents) != needed {
        let message = format!("size {size} is not that of units in the {mapped} blocks of the directory");
        // A block behind the end is empty yet, or has been emptied.
        if size % UNIT_SIZE as u64 == 0 && mapped > needed && covered(extents) == mapped {
            context.report_leftover(number::INODE_SIZE, place, message);
        } else {
            context.report(number::INODE_SIZE, place, message);
        }
    }
    let units = size / UNIT_SIZE as u64;
    let mut is_whole = true;
    let mut hashes = Hashes { held: Vec::new(), count: 0, part: None };
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
    let parts = hashes.count.div_ceil(HELD_MAX).next_power_of_two();
    if parts == 1 {
        hashes.compare(context, ino, raw, extents);
        return (needed, is_whole);
    }
    for part in 0..parts as u64 {
        let mut hashes = Hashes { held: Vec::new(), count: 0, part: Some((part, parts as u64)) };
        for_each_unit(context, ino, extents, needed, |unit, bytes| {
            for entry in parse(bytes.unwrap_or_default()).map_while(Result::ok).filter(|entry| !entry.ino.is_none()) {
                if unit < units {
                    hashes.add(context.hasher.hash(entry.name), at(unit, &entry).place);
                }
            }
        });
        hashes.compare(context, ino, raw, extents);
    }
    (needed, is_whole)
}

/// Hashes of names, and where each is: of all names, or of those whose hash belongs to a part.
struct Hashes {
    held: Vec<(u64, u64)>,
    count: usize,
    /// Which, of how many.
    part: Option<(u64, u64)>,
}

impl Hashes {
    fn add(&mut self, hash: u64, place: u64) {
        self.count += 1;
        match self.part {
            Some((part, parts)) if hash % parts == part => self.held.push((hash, place)),
            None if self.count <= HELD_MAX => self.held.push((hash, place)),
            _ => {}
        }
    }

    fn compare(mut self, context: &Context<'_>, ino: Ino, raw: &RawInode, extents: &[Extent]) {
        self.held.sort_unstable();
        for pair in self.held.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            let [a, b] = [pair[0].1, pair[1].1].map(|place| name_at(context, ino, extents, place));
            if let (Some(a), Some(b)) = (a, b) {
                report_equal_hashes(context, ino, raw, &a, &b);
            }
        }
    }
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
    if reader.read_raw(block, buf)? {
        // The checksums are for the block before the log's granules; everything else must hold already.
        header::reseal(buf, &reader.volume, block);
    }
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
    ino: Ino,
    raw: &RawInode,
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
pub(crate) fn for_each_entry(context: &Context<'_>, ino: Ino, raw: &RawInode, f: &mut dyn FnMut(&Entry<'_>)) {
    entries_again(context, ino, raw, Some(map_again(context, ino, raw)), &mut |entry, _| f(entry));
}
