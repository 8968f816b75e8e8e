//! The check of directories of kind `slots`: a slot is in use if its inode number is not 0, and all else must follow from that.

use crate::context::Context;
use crate::directory::entries::{BadEntry, Entry, is_name};
use crate::directory::hashes::Hashes;
use crate::directory::names::{At, Names, Sums, covered, find_block, is_in_blocks_alone, report_bad_entry};
use crate::directory::{Checked, Dir};
use crate::findings::number;
use crate::io::Damage;
use crate::map::for_each_extent;
use crate::report::Place;
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::slots::{
    DirExtent, EXTENT_BLOCKS, ExtentsHeader, SLOT_BYTES, SlotBlockHeader, SlotHeader, SlotLayout,
};
use myriad_format::{BlockKind, FileBlock, FsBlock, Ino, NameHasher};
use std::sync::atomic::Ordering::Relaxed;

/// Slots in use of a block: number, and the entry with the hash of its name, or what is impossible about it.
pub(crate) fn used_slots<'b>(
    hasher: &NameHasher,
    layout: SlotLayout,
    block: &'b [u8],
) -> impl Iterator<Item = (usize, Result<(Entry<'b>, u64), BadEntry>)> {
    let header = move |slot: usize| SlotHeader::read(&block[layout.offset(slot)..]);
    (0..layout.slots).filter(move |&slot| header(slot).ino.get() != 0).map(move |slot| {
        let (header, offset) = (header(slot), layout.offset(slot));
        let name = &block[offset + SlotHeader::SIZE..][..usize::from(header.name_len)];
        let bad = |field, value| Err(BadEntry { offset: offset as u32, field, value });
        if name.is_empty() {
            return (slot, bad("name_len", 0));
        }
        if !is_name(name) {
            return (slot, bad("name", u64::from(name[0])));
        }
        let hash = hasher.hash(name);
        // As long as that of entries of other kinds: right, if the half that a slot has is right.
        let tag = hash as u32 & 0xffff_0000 | u32::from(header.tag.get());
        let (ino, file_type) = (Ino(header.ino.get()), header.file_type);
        (slot, Ok((Entry { offset: offset as u32, length: SLOT_BYTES as u16, ino, name, file_type, tag }, hash)))
    })
}

/// The run that a slot must have: up to the next one in use. None: nothing leads to it, and its run means nothing.
pub(crate) fn run_of(layout: SlotLayout, block: &[u8], slot: usize) -> Option<u8> {
    let is_used = |slot: usize| SlotHeader::read(&block[layout.offset(slot)..]).ino.get() != 0;
    let next = || (slot + 1..layout.slots).find(|&next| is_used(next)).unwrap_or(layout.slots);
    (slot == 0 || is_used(slot)).then(|| (next() - slot) as u8)
}

/// Checks a directory whose blocks have been claimed.
pub(in crate::directory) fn check(names: &Names<'_>, dir: Dir<'_>, extents: &[Extent], sums: &mut Sums) -> Checked {
    let context = names.context;
    let Dir { ino, raw, .. } = dir;
    let place = Place::Inode(ino);
    if !is_in_blocks_alone(context, ino, raw) {
        return Checked::default();
    }
    let layout = SlotLayout::new(context.reader.block_size());
    let mapped: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
    let whole = layout.extents_in(mapped).filter(|_| covered(extents) == mapped);
    if whole.is_none_or(|whole| whole > layout.extents_max()) {
        context.report(
            number::SLOT_COUNTS,
            place,
            format!("the {mapped} blocks of the directory are not those of whole extents"),
        );
    }
    let mut judge = Judge { context, ino, layout, whole, span: None, sum: None, is_whole: true };
    let mut hashes = Hashes::new();
    let before = sums.count;
    for_each_block(context, extents, |file_block, block, buf| {
        let Some(slot_block) = layout.slot_block(file_block) else { return judge.begin_span(file_block, block, buf) };
        if let Err(damage) = context.reader.read(block, BlockKind::DirSlots, ino.0, buf) {
            judge.is_whole = false;
            context.damage(place, damage);
            return judge.count(slot_block, None);
        }
        let first = slot_block * layout.slots as u64;
        let mut count = 0;
        for (slot, entry) in used_slots(&context.hasher, layout, buf) {
            count += 1;
            match entry {
                Err(bad) => report_bad_entry(context, ino, FileBlock(file_block), bad.offset, &bad),
                Ok((entry, hash)) => {
                    let at = at(first + slot as u64);
                    hashes.add(hash, at.place);
                    names.check_name(ino, &entry, at, hash, sums);
                }
            }
        }
        judge.judge_block(file_block, buf, count);
        judge.count(slot_block, Some(count));
    });
    let is_whole = judge.is_whole;
    let found = sums.count - before;
    if is_whole && raw.size.get() != found * SLOT_BYTES as u64 {
        let message = format!("size {} is not that of the slots of {found} names", raw.size.get());
        context.report(number::INODE_SIZE, place, message);
    }
    let name = |place| name_at(context, ino, extents, layout, place);
    hashes.compare(context, ino, raw, name, |hashes| {
        for_each_name(context, ino, extents, |_, hash, at| hashes.add(hash, at.place), |_| ());
    });
    Checked { made: mapped, is_whole, unmapped: 0 }
}

/// Holds the counts of a directory to the names that are found.
struct Judge<'a> {
    context: &'a Context<'a>,
    ino: Ino,
    layout: SlotLayout,
    /// Extents that are mapped, if they are whole.
    whole: Option<u64>,
    /// The records at hand, with their file block; none if they could not be read.
    span: Option<(u64, Vec<u8>)>,
    /// What the extent at hand has been found to hold so far; none if that cannot be known.
    sum: Option<DirExtent>,
    is_whole: bool,
}

impl Judge<'_> {
    fn report(&self, number: u32, message: String) {
        self.context.report(number, Place::Inode(self.ino), message);
    }

    fn begin_span(&mut self, file_block: u64, block: FsBlock, buf: &mut [u8]) {
        self.span = None;
        if let Err(damage) = self.context.reader.read(block, BlockKind::DirExtents, self.ino.0, buf) {
            self.is_whole = false;
            return self.context.damage(Place::Inode(self.ino), damage);
        }
        let said = u64::from(ExtentsHeader::read(buf).extents.get());
        let should = if file_block == 0 { self.whole } else { Some(0) };
        if should.is_some_and(|should| should != said) {
            let message = format!("block {file_block} says that there are {said} extents, not {}", should.unwrap_or(0));
            self.report(number::SLOT_COUNTS, message);
        }
        if let Some(whole) = self.whole {
            let span = file_block / self.layout.span_blocks() * self.layout.extents;
            for extent in span.max(whole)..span + self.layout.extents {
                let record = DirExtent::read(&buf[self.layout.record_of(extent).1..]);
                if record.names.get() != 0 || record.used != 0 {
                    let message = format!("extent {extent} does not exist, and is said to have names");
                    self.report(number::SLOT_COUNTS, message);
                }
            }
        }
        self.span = Some((file_block, buf.to_vec()));
    }

    /// The header and the runs of a block of slots, of which `count` are in use.
    fn judge_block(&self, file_block: u64, block: &[u8], count: u32) {
        let said = SlotBlockHeader::read(block).names.get();
        if said != count {
            self.report(number::ENTRY_BLOCK, format!("block {file_block} counts {said} names, and has {count}"));
        }
        for slot in 0..self.layout.slots {
            let run = SlotHeader::read(&block[self.layout.offset(slot)..]).run;
            if let Some(should) = run_of(self.layout, block, slot).filter(|should| *should != run) {
                let message = format!("block {file_block}: the run of slot {slot} is {run}, not {should}");
                self.report(number::SLOT_RUNS, message);
            }
        }
    }

    /// Counts the names of a block of slots, if it could be read; with the last one of an extent its record is judged.
    fn count(&mut self, slot_block: u64, count: Option<u32>) {
        if self.whole.is_none() {
            return;
        }
        let (extent, block) = (slot_block / EXTENT_BLOCKS, slot_block % EXTENT_BLOCKS);
        let sum = if block == 0 { Some(DirExtent::zeroed()) } else { self.sum };
        self.sum = sum.zip(count).map(|(mut sum, count)| {
            sum.names.set(sum.names.get() + count as u16);
            sum.used |= u8::from(count > 0) << block;
            sum
        });
        let (file_block, at) = self.layout.record_of(extent);
        let records = self.span.as_ref().filter(|(first, _)| *first == file_block && block + 1 == EXTENT_BLOCKS);
        let Some((sum, (_, bytes))) = self.sum.zip(records) else { return };
        let record = DirExtent::read(&bytes[at..]);
        if (record.names, record.used) != (sum.names, sum.used) {
            let message = format!(
                "extent {extent} is said to have {} names in blocks {:#010b}, and has {} in {:#010b}",
                record.names, record.used, sum.names, sum.used
            );
            self.report(number::SLOT_COUNTS, message);
        }
    }
}

/// Where a slot lies: its number, also as identities say it.
fn at(number: u64) -> At {
    At { place: number, position: number as u32 }
}

/// The name in the slot with a number.
fn name_at(context: &Context<'_>, ino: Ino, extents: &[Extent], layout: SlotLayout, number: u64) -> Option<Vec<u8>> {
    let slots = layout.slots as u64;
    let block = find_block(extents, layout.file_block(number / slots))?;
    let mut buf = context.reader.new_buffer();
    context.reader.read(block, BlockKind::DirSlots, ino.0, &mut buf).ok()?;
    let (_, entry) = used_slots(&context.hasher, layout, &buf).find(|(slot, _)| *slot as u64 == number % slots)?;
    Some(entry.ok()?.0.name.to_vec())
}

/// Hands the blocks of a directory to `f`: file block, place, and a buffer to read it into.
fn for_each_block(context: &Context<'_>, extents: &[Extent], mut f: impl FnMut(u64, FsBlock, &mut [u8])) {
    let mut buf = context.reader.new_buffer();
    for extent in extents.iter().filter(|extent| !extent.unwritten) {
        for offset in 0..u64::from(extent.length) {
            f(extent.file_block.0 + offset, extent.start.offset_by(offset), &mut buf);
            if context.cancelled.load(Relaxed) {
                return;
            }
        }
    }
}

/// Hands the names of a directory to `f`, each with its hash and its place, and blocks that cannot be read to `damaged`.
fn for_each_name(
    context: &Context<'_>,
    ino: Ino,
    extents: &[Extent],
    mut f: impl FnMut(&Entry<'_>, u64, At),
    mut damaged: impl FnMut(Damage),
) {
    let layout = SlotLayout::new(context.reader.block_size());
    for_each_block(context, extents, |file_block, block, buf| {
        let Some(slot_block) = layout.slot_block(file_block) else { return };
        if let Err(damage) = context.reader.read(block, BlockKind::DirSlots, ino.0, buf) {
            return damaged(damage);
        }
        for (slot, entry) in used_slots(&context.hasher, layout, buf) {
            if let Ok((entry, hash)) = entry {
                f(&entry, hash, at(slot_block * layout.slots as u64 + slot as u64));
            }
        }
    });
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
    let extents = left_out.map_or_else(|| map_again(context, ino, raw), |(extents, _)| extents);
    for_each_name(
        context,
        ino,
        &extents,
        |entry, _, at| f(entry, at),
        |damage| {
            if !is_told {
                context.damage(Place::Inode(ino), damage);
            }
        },
    );
}

/// Extents of a directory that was checked.
fn map_again(context: &Context<'_>, ino: Ino, raw: &RawInode) -> Vec<Extent> {
    let mut extents = Vec::new();
    for_each_extent(&context.reader, ino, raw, |extent| extents.push(extent));
    extents
}

/// Hands the live entries of a directory that was checked to `f`; what cannot be read is left out.
pub(in crate::directory) fn for_each_entry(context: &Context<'_>, dir: Dir<'_>, f: &mut dyn FnMut(&Entry<'_>)) {
    let extents = map_again(context, dir.ino, dir.raw);
    for_each_name(context, dir.ino, &extents, |entry, _, _| f(entry), |_| ());
}
