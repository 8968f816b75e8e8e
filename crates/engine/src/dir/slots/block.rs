//! A block of slots, as bytes.
//!
//! A walk begins at slot 0 and goes on by runs. Slot 0 may be free; every other slot that a run leads to is in use, and the last
//! run ends where the block does. Slots that a run leads past are free, and nobody looks at them.

use crate::dir::NewEntry;
use crate::dir::place::Place;
use crate::edit::BlockEdit;
use crate::error::Result;
use myriad_format::Ino;
use myriad_format::slots::{SlotBlockHeader, SlotHeader, SlotLayout, tag_of};
use std::mem::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U64};

const NAMES: usize = offset_of!(SlotBlockHeader, names);
const RUN: usize = offset_of!(SlotHeader, run);
const FILE_TYPE: usize = offset_of!(SlotHeader, file_type);

/// A slot that a walk comes to. Only slot 0 may be free.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub number: usize,
    /// In its block.
    pub offset: usize,
    pub header: &'a SlotHeader,
    /// Empty for a free slot.
    pub name: &'a [u8],
}

impl Slot<'_> {
    pub fn is_used(&self) -> bool {
        self.header.ino.get() != 0
    }

    fn run(&self) -> usize {
        usize::from(self.header.run)
    }

    /// Free slots that its run leads past.
    pub fn skips(&self) -> usize {
        self.run() - 1
    }
}

/// Where a new name goes in a block: the slot, and the one before it whose run ends there from then on. None: slot 0 is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Free {
    pub slot: usize,
    pub before: Option<usize>,
}

/// Slot 0 of an empty block.
pub(super) const FIRST: Free = Free { slot: 0, before: None };

/// Slots in use, as the block counts them.
pub(super) fn names(block: &[u8]) -> u32 {
    SlotBlockHeader::read(block).names.get()
}

/// The slots that a walk comes to. Damage ends it with an error.
#[inline]
pub(super) fn walk(block: &[u8], layout: SlotLayout, place: Place) -> impl Iterator<Item = Result<Slot<'_>>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        (next < layout.slots).then(|| {
            let slot = slot_at(block, layout, next, place);
            next = slot.as_ref().map_or(layout.slots, |slot| next + slot.run());
            slot
        })
    })
}

/// Refuses a block that is not empty, though the counts of its extent say so.
pub(super) fn check_empty(block: &[u8], layout: SlotLayout, place: Place) -> Result<()> {
    let slot = slot_at(block, layout, 0, place)?;
    if slot.is_used() || slot.run() != layout.slots {
        return Err(place.corrupt(slot.offset, "run of an empty block", slot.run() as u64));
    }
    match names(block) {
        0 => Ok(()),
        names => Err(place.corrupt(NAMES, "names of an empty block", u64::from(names))),
    }
}

#[inline(always)]
fn slot_at(block: &[u8], layout: SlotLayout, number: usize, place: Place) -> Result<Slot<'_>> {
    let offset = layout.offset(number);
    let header = SlotHeader::read(&block[offset..]);
    let run = usize::from(header.run);
    if run == 0 || number + run > layout.slots {
        return Err(place.corrupt(offset, "run", run as u64));
    }
    if header.ino.get() == 0 {
        if number > 0 {
            return Err(place.corrupt(offset, "run that leads to a free slot", number as u64));
        }
        return Ok(Slot { number, offset, header, name: &[] });
    }
    let name_len = usize::from(header.name_len);
    if name_len == 0 {
        return Err(place.corrupt(offset, "name_len", 0));
    }
    Ok(Slot { number, offset, header, name: &block[offset + SlotHeader::SIZE..][..name_len] })
}

/// The room that a walk has come to first, if this slot of it is that: the slot itself, or the one behind it.
pub(super) fn free_at(slot: &Slot<'_>) -> Option<Free> {
    match slot.number {
        number if slot.is_used() => (slot.run() > 1).then_some(Free { slot: number + 1, before: Some(number) }),
        number => Some(Free { slot: number, before: None }),
    }
}

/// Writes an entry into the room that a walk of the block has come to first.
pub(super) fn insert(edit: &mut BlockEdit<'_>, layout: SlotLayout, free: Free, entry: &NewEntry<'_>) {
    let run_of = |edit: &BlockEdit<'_>, slot: usize| edit.bytes()[layout.offset(slot) + RUN];
    let run = match free.before {
        Some(before) => {
            let run = run_of(edit, before) - 1;
            edit.put(layout.offset(before) + RUN, &[1]);
            run
        }
        None => run_of(edit, free.slot),
    };
    let mut header = SlotHeader::zeroed();
    header.ino = U64::new(entry.ino.0);
    header.run = run;
    header.name_len = entry.name.bytes.len() as u8;
    header.file_type = entry.file_type;
    header.tag = U16::new(tag_of(entry.name.hash));
    let at = layout.offset(free.slot);
    edit.put(at, header.as_bytes());
    edit.put(at + SlotHeader::SIZE, entry.name.bytes);
    let names = names(edit.bytes()) + 1;
    edit.put(NAMES, &names.to_le_bytes());
}

/// Frees a slot, whose run the slot before it gets; slot 0 keeps its own. How many slots are left in use.
pub(super) fn remove(edit: &mut BlockEdit<'_>, layout: SlotLayout, number: usize, place: Place) -> Result<u32> {
    let mut before: Option<(usize, usize)> = None;
    let mut found = None;
    for slot in walk(edit.bytes(), layout, place) {
        let slot = slot?;
        if slot.number == number {
            found = Some(slot.run());
            break;
        }
        before = Some((slot.number, slot.run()));
    }
    let at = layout.offset(number);
    let run = found.ok_or_else(|| place.corrupt(at, "slot", number as u64))?;
    edit.put(at, &[0; 8]);
    if let Some((before, its)) = before {
        edit.put(layout.offset(before) + RUN, &[(its + run) as u8]);
    }
    let left = names(edit.bytes()).saturating_sub(1);
    edit.put(NAMES, &left.to_le_bytes());
    Ok(left)
}

/// Makes a slot name another inode.
pub(super) fn replace(edit: &mut BlockEdit<'_>, layout: SlotLayout, number: usize, ino: Ino, file_type: u8) {
    let at = layout.offset(number);
    edit.put(at, &ino.0.to_le_bytes());
    edit.put(at + FILE_TYPE, &[file_type]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::Name;
    use myriad_format::{FileBlock, FsBlock};

    const PLACE: Place = Place { dir: Ino(7), block: FileBlock(1) };

    fn entry(name: &[u8], ino: u64) -> NewEntry<'_> {
        NewEntry { name: Name { bytes: name, hash: ino * 3 }, ino: Ino(ino), file_type: 8 }
    }

    /// The lowest free slot gets a name, and after each step a walk meets what is in use and nothing else, but for slot 0.
    #[test]
    fn runs_lead_to_the_slots_in_use_at_every_step() {
        let mut state = 1_u64;
        for block_size in [512, 1024, 4096, 65536] {
            let layout = SlotLayout::new(block_size);
            let mut bytes = vec![0; block_size];
            layout.init(&mut bytes, [1; 16], 7, FsBlock(9));
            check_empty(&bytes, layout, PLACE).unwrap();
            let mut model: Vec<Option<u64>> = vec![None; layout.slots];
            for step in 1..3000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = (state >> 33) as usize;
                let mut mask = 0;
                let mut edit = BlockEdit::new(&mut bytes, &mut mask);
                // Fills and empties by turns.
                let wants_more = random % 100 < if step / 500 % 2 == 0 { 70 } else { 30 };
                if wants_more {
                    let free = walk(edit.bytes(), layout, PLACE).find_map(|slot| free_at(&slot.unwrap()));
                    assert_eq!(free.map(|free| free.slot), model.iter().position(Option::is_none));
                    let Some(free) = free else { continue };
                    let name = vec![b'n'; 1 + random / 128 % 255];
                    insert(&mut edit, layout, free, &entry(&name, step));
                    model[free.slot] = Some(step);
                } else {
                    let used: Vec<usize> = (0..layout.slots).filter(|&slot| model[slot].is_some()).collect();
                    let Some(&slot) = used.get(random / 128 % used.len().max(1)) else { continue };
                    assert_eq!(remove(&mut edit, layout, slot, PLACE).unwrap() as usize, used.len() - 1);
                    model[slot] = None;
                }
                let met: Vec<(usize, u64)> = walk(&bytes, layout, PLACE)
                    .map(|slot| slot.unwrap())
                    .filter(Slot::is_used)
                    .map(|slot| (slot.number, slot.header.ino.get()))
                    .collect();
                let expected = model.iter().enumerate().filter_map(|(slot, ino)| ino.map(|ino| (slot, ino)));
                assert_eq!(met, expected.collect::<Vec<_>>());
                assert_eq!(names(&bytes) as usize, met.len());
                let ends: usize = walk(&bytes, layout, PLACE).map(|slot| slot.unwrap().run()).sum();
                assert_eq!(ends, layout.slots);
            }
        }
    }

    /// A fresh block that never reached the disk has runs of 0, on which a walk would stay for ever.
    #[test]
    fn impossible_runs_are_damage() {
        let layout = SlotLayout::new(4096);
        let mut sound = vec![0; 4096];
        layout.init(&mut sound, [1; 16], 7, FsBlock(9));
        let mut mask = 0;
        insert(&mut BlockEdit::new(&mut sound, &mut mask), layout, FIRST, &entry(b"a", 1));
        insert(&mut BlockEdit::new(&mut sound, &mut mask), layout, Free { slot: 1, before: Some(0) }, &entry(b"b", 2));
        for (slot, run) in [(0, 0), (0, 16), (0, 2), (1, 15), (1, 0), (1, 13)] {
            let mut bytes = sound.clone();
            bytes[layout.offset(slot) + RUN] = run;
            assert!(walk(&bytes, layout, PLACE).any(|slot| slot.is_err()), "run {run} of slot {slot}");
        }
        assert!(walk(&sound, layout, PLACE).all(|slot| slot.is_ok()));
        assert!(check_empty(&sound, layout, PLACE).is_err());
    }
}
