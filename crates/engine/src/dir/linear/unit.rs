//! Entries of a linear directory, as bytes of a unit.
//!
//! The entries of a unit fill it: the length of one leads to the next, and the last one ends where the unit ends. What an
//! entry has beyond the bytes that it needs is its *slack*; of a free entry all is slack. A new entry takes the slack of one
//! entry, or that of several, which are moved together for it. An entry never leaves its unit.

use crate::dir::NewEntry;
use crate::dir::place::Place;
use crate::edit::BlockEdit;
use crate::error::Result;
use crate::order::Look;
use myriad_format::Ino;
use myriad_format::dir::{EntryHeader, entry_size};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use std::ops::Range;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

/// One entry, free or live.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    /// In its block.
    pub offset: usize,
    pub header: &'a EntryHeader,
    /// Empty for a free entry.
    pub name: &'a [u8],
}

impl Entry<'_> {
    pub fn is_live(&self) -> bool {
        self.header.ino.get() != 0
    }

    /// Whether it is the entry of an inode, under a name with this hash.
    pub fn names(&self, look: &Look<'_>, hash: u64, ino: Ino) -> bool {
        self.header.ino.get() == ino.0 && look.volume.hasher.hash(self.name) == hash
    }

    pub fn length(&self) -> usize {
        usize::from(self.header.length.get())
    }

    pub fn end(&self) -> usize {
        self.offset + self.length()
    }

    /// Bytes that it must have.
    pub fn needs(&self) -> usize {
        if self.is_live() { entry_size(self.name.len()) } else { 0 }
    }

    pub fn slack(&self) -> usize {
        self.length() - self.needs()
    }
}

/// The entries of the unit that begins at `at` of a block. Damage ends the iteration with an error.
pub(super) fn entries<'a>(
    block: &'a [u8],
    at: usize,
    place: Place,
) -> impl Iterator<Item = Result<Entry<'a>>> + use<'a> {
    let end = at + UNIT_SIZE;
    let mut next = at + UnitHeader::SIZE;
    std::iter::from_fn(move || {
        (next < end).then(|| {
            let entry = entry_at(&block[..end], next, place);
            next = entry.as_ref().map_or(end, Entry::end);
            entry
        })
    })
}

/// The entry at `offset` of what ends where its unit does.
pub(super) fn entry_at(unit: &[u8], offset: usize, place: Place) -> Result<Entry<'_>> {
    let rest = &unit[offset..];
    if rest.len() < EntryHeader::SIZE {
        return Err(place.corrupt(offset, "room", rest.len() as u64));
    }
    let header = EntryHeader::read(rest);
    let length = usize::from(header.length.get());
    if length < EntryHeader::SIZE || length % 8 != 0 || length > rest.len() {
        return Err(place.corrupt(offset, "length", length as u64));
    }
    if header.ino.get() == 0 {
        return Ok(Entry { offset, header, name: &[] });
    }
    let name_len = usize::from(header.name_len);
    if name_len == 0 || entry_size(name_len) > length {
        return Err(place.corrupt(offset, "name_len", name_len as u64));
    }
    Ok(Entry { offset, header, name: &rest[EntryHeader::SIZE..][..name_len] })
}

/// What [`insert`] did.
pub(super) struct Inserted {
    /// Where the new entry lies in the block.
    pub offset: usize,
    /// Whether entries were moved.
    pub moved: bool,
}

/// Writes `new` behind the entries of a range of a unit, which it moves together for that, and makes it end where the range
/// ends. There is room, as a search has found. Tells `on_move` of each entry that is moved: its name, from where and where to.
pub(super) fn insert(
    edit: &mut BlockEdit<'_>,
    range: Range<usize>,
    new: &NewEntry<'_>,
    place: Place,
    on_move: &mut dyn FnMut(&[u8], usize, usize),
) -> Result<Inserted> {
    let start = range.start;
    let mut bytes = [0; UNIT_SIZE];
    let old = &edit.bytes()[range.clone()];
    bytes[..old.len()].copy_from_slice(old);
    let (mut to, mut moved) = (0, false);
    let mut at = start;
    while at < range.end {
        let entry = entry_at(&edit.bytes()[..range.end], at, place)?;
        at = entry.end();
        if entry.is_live() {
            let size = entry.needs();
            bytes[to..to + size].copy_from_slice(&edit.bytes()[entry.offset..][..size]);
            EntryHeader::read_mut(&mut bytes[to..]).length = U16::new(size as u16);
            if entry.offset != start + to {
                moved = true;
                on_move(entry.name, entry.offset, start + to);
            }
            to += size;
        }
    }
    let length = length_of(&range) - to;
    assert!(length >= entry_size(new.name.bytes.len()), "a search has found room");
    let mut header = EntryHeader::zeroed();
    header.ino = U64::new(new.ino.0);
    header.length = U16::new(length as u16);
    header.name_len = new.name.bytes.len() as u8;
    header.file_type = new.file_type;
    header.tag = U32::new(new.name.tag());
    bytes[to..to + EntryHeader::SIZE].copy_from_slice(header.as_bytes());
    bytes[to + EntryHeader::SIZE..][..new.name.bytes.len()].copy_from_slice(new.name.bytes);
    // Only what differs is marked: the log copies what is marked.
    for word in (0..length_of(&range)).step_by(8) {
        if edit.bytes()[start + word..start + word + 8] != bytes[word..word + 8] {
            edit.put(start + word, &bytes[word..word + 8]);
        }
    }
    Ok(Inserted { offset: start + to, moved })
}

fn length_of(range: &Range<usize>) -> usize {
    range.end - range.start
}

/// Frees the entry at `offset` of a block: the one before it gets its bytes. The first of a unit has none before it, and
/// becomes a free one. So does one that `keeps_place`.
pub(super) fn remove(edit: &mut BlockEdit<'_>, offset: usize, keeps_place: bool, place: Place) -> Result<()> {
    let at = offset / UNIT_SIZE * UNIT_SIZE;
    let mut before: Option<Entry<'_>> = None;
    let mut found = None;
    for entry in entries(edit.bytes(), at, place) {
        let entry = entry?;
        if entry.offset == offset {
            let joined = before.map(|before| (before.offset, (before.length() + entry.length()) as u16));
            found = Some(joined);
            break;
        }
        before = Some(entry);
    }
    let joined = found.ok_or_else(|| place.corrupt(offset, "position", offset as u64))?;
    edit.put(offset, &[0; 8]);
    if let Some((before, sum)) = joined.filter(|_| !keeps_place) {
        edit.put(before + std::mem::offset_of!(EntryHeader, length), &sum.to_le_bytes());
    }
    Ok(())
}

/// Makes the entry at `offset` name another inode.
pub(super) fn replace(edit: &mut BlockEdit<'_>, offset: usize, ino: Ino, file_type: u8) {
    edit.put(offset, &ino.0.to_le_bytes());
    edit.put(offset + std::mem::offset_of!(EntryHeader, file_type), &[file_type]);
}
