//! Entries of a directory, as bytes: in the body of its inode or in an entry block.
//!
//! Entries never move. A removed one becomes a free entry, joined with free neighbours; a new one takes the space after
//! the last entry or the first free entry that is long enough.

use crate::dir::NewEntry;
use crate::dir::hints::Filled;
use crate::dir::place::Place;
use crate::edit::BlockEdit;
use crate::error::Result;
use myriad_format::Ino;
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader, EntryHeader, entry_size};
use std::mem::offset_of;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

/// Where the header of an entry block says how far it is filled: two numbers side by side.
const TAIL: usize = offset_of!(EntryBlockHeader, tail);
const _: () = assert!(offset_of!(EntryBlockHeader, live) == TAIL + size_of::<U32>());

/// Says in the header of an entry block how far it is filled. No more of it counts as changed than these two numbers.
pub(super) fn set_filled(edit: &mut BlockEdit<'_>, filled: Filled) {
    let fields = [ENTRIES_OFFSET + filled.used, filled.live].map(|field| U32::new(field as u32));
    edit.put(TAIL, fields.as_bytes());
}

/// One entry, free or live, found in a run of entries.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    /// Offset in the entry block (for a body: in the block it would be in).
    pub offset: usize,
    pub header: &'a EntryHeader,
    pub name: &'a [u8],
}

/// Iterates over the entries in `bytes`, the first of which has offset `ENTRIES_OFFSET`. Damage ends the iteration with
/// an error.
pub(crate) struct Entries<'a> {
    bytes: &'a [u8],
    at: usize,
    place: Place,
}

impl<'a> Entries<'a> {
    pub fn new(bytes: &'a [u8], place: Place) -> Self {
        Self::from(bytes, 0, place)
    }

    /// As [`Self::new`], from the entry on that begins `at` bytes behind the first one.
    fn from(bytes: &'a [u8], at: usize, place: Place) -> Self {
        Self { bytes, at, place }
    }

    /// The entries of a whole entry block.
    pub fn of_block(block: &'a [u8], place: Place) -> Result<Self> {
        let tail = EntryBlockHeader::read(block).tail.get() as usize;
        if tail < ENTRIES_OFFSET || tail > block.len() {
            return Err(place.corrupt(TAIL, "tail", tail as u64));
        }
        Ok(Self::new(&block[ENTRIES_OFFSET..tail], place))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.bytes[self.at..];
        if rest.is_empty() {
            return None;
        }
        let offset = ENTRIES_OFFSET + self.at;
        if rest.len() < EntryHeader::SIZE {
            self.at = self.bytes.len();
            return Some(Err(self.place.corrupt(offset, "room", rest.len() as u64)));
        }
        let header = EntryHeader::read(rest);
        let length = usize::from(header.length.get());
        // A free entry has no name, whatever its length byte says.
        let name_len = if header.ino.get() == 0 { 0 } else { usize::from(header.name_len) };
        if length < EntryHeader::SIZE + name_len || length % 8 != 0 || length > rest.len() || length == 0 {
            self.at = self.bytes.len();
            return Some(Err(self.place.corrupt(offset, "length", length as u64)));
        }
        self.at += length;
        Some(Ok(Entry { offset, header, name: &rest[EntryHeader::SIZE..EntryHeader::SIZE + name_len] }))
    }
}

/// Looks for a name among entries, by tag first, so that most names are never compared; hands others with that tag to `other`.
pub(crate) fn find<'a>(
    entries: Entries<'a>,
    tag: u32,
    name: &[u8],
    mut other: impl FnMut(&Entry<'a>),
) -> Result<Option<Entry<'a>>> {
    for entry in entries {
        let entry = entry?;
        if entry.header.tag.get() == tag && entry.header.ino.get() != 0 {
            if entry.name == name {
                return Ok(Some(entry));
            }
            other(&entry);
        }
    }
    Ok(None)
}

/// The live entry at a position of a block, checked.
pub(crate) fn at<'a>(block: &'a [u8], offset: usize, place: Place) -> Result<Entry<'a>> {
    let tail = (EntryBlockHeader::read(block).tail.get() as usize).min(block.len());
    at_bytes(&block[..tail], offset, place)
}

fn at_bytes<'a>(bytes: &'a [u8], offset: usize, place: Place) -> Result<Entry<'a>> {
    if offset < ENTRIES_OFFSET || offset + EntryHeader::SIZE > bytes.len() {
        return Err(place.corrupt(offset, "position", offset as u64));
    }
    let header = EntryHeader::read(&bytes[offset..]);
    let length = usize::from(header.length.get());
    let name_len = usize::from(header.name_len);
    if length < EntryHeader::SIZE + name_len || offset + length > bytes.len() || header.ino.get() == 0 {
        return Err(place.corrupt(offset, "length", length as u64));
    }
    let name = &bytes[offset + EntryHeader::SIZE..offset + EntryHeader::SIZE + name_len];
    Ok(Entry { offset, header, name })
}

/// Writes an entry that takes `length` bytes.
fn write_entry(edit: &mut BlockEdit<'_>, at: usize, length: usize, entry: &NewEntry<'_>) {
    let mut header = EntryHeader::zeroed();
    header.ino = U64::new(entry.ino.0);
    header.length = U16::new(length as u16);
    header.name_len = entry.name.bytes.len() as u8;
    header.file_type = entry.file_type;
    header.tag = U32::new(entry.name.tag());
    edit.put(at, header.as_bytes());
    edit.put(at + EntryHeader::SIZE, entry.name.bytes);
}

/// Where a run of entries lies in a block open for change: `base` is the block offset of what has entry offset
/// `ENTRIES_OFFSET`, and `used` bytes of it hold entries.
pub(crate) struct Run {
    pub base: usize,
    pub used: usize,
    /// Bytes that entries may fill.
    pub capacity: usize,
}

/// Where [`insert`] would put an entry: its offset in the run, and the length of the free entry that it replaces. Without one it goes behind
/// the last entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    pub at: usize,
    pub hole: Option<usize>,
}

/// Looks for room for `size` bytes. `live` is the number of bytes in live entries: without enough free ones, the holes
/// are not searched. No hole that begins before `from`, where an entry begins, is known to be as long.
pub(crate) fn fit(bytes: &[u8], run: &Run, size: usize, live: usize, from: usize, place: Place) -> Result<Option<Fit>> {
    if run.used + size <= run.capacity {
        return Ok(Some(Fit { at: run.used, hole: None }));
    }
    if live + size > run.capacity {
        return Ok(None);
    }
    let from = if from <= run.used { from } else { 0 };
    for entry in Entries::from(&bytes[run.base..run.base + run.used], from, place) {
        let entry = entry?;
        let length = usize::from(entry.header.length.get());
        if entry.header.ino.get() == 0 && length >= size {
            return Ok(Some(Fit { at: entry.offset - ENTRIES_OFFSET, hole: Some(length) }));
        }
    }
    Ok(None)
}

/// Writes an entry where `fit` found room. Returns the bytes it takes and the new `used`.
pub(crate) fn insert(edit: &mut BlockEdit<'_>, run: &Run, fit: &Fit, entry: &NewEntry<'_>) -> (usize, usize) {
    let size = entry_size(entry.name.bytes.len());
    let Some(hole) = fit.hole else {
        write_entry(edit, run.base + fit.at, size, entry);
        return (size, run.used + size);
    };
    // A rest too short to be an entry stays with this one.
    let rest = hole - size;
    let taken = if rest >= EntryHeader::SIZE { size } else { hole };
    if taken < hole {
        write_free(edit, run.base + fit.at + taken, rest);
    }
    write_entry(edit, run.base + fit.at, taken, entry);
    (taken, run.used)
}

fn write_free(edit: &mut BlockEdit<'_>, at: usize, length: usize) {
    let mut header = EntryHeader::zeroed();
    header.length = U16::new(length as u16);
    edit.put(at, header.as_bytes());
}

/// Frees the live entry at `at` (offset in the run), joining it with a free entry behind it. Returns its length and the
/// new `used`, which shrinks when the entry was the last. Free entries before it stay their own: finding them would
/// need a scan; the next search for room passes over both.
pub(crate) fn remove(edit: &mut BlockEdit<'_>, run: &Run, at: usize) -> (usize, usize) {
    let length = usize::from(EntryHeader::read(&edit.bytes()[run.base + at..]).length.get());
    let end = at + length;
    if end == run.used {
        // Nothing behind: the space is virgin again.
        return (length, at);
    }
    let mut joined = length;
    // A block whose entries do not fill it to its tail is damaged: nothing behind is believed.
    if end + EntryHeader::SIZE <= run.used {
        let next = EntryHeader::read(&edit.bytes()[run.base + end..]);
        if next.ino.get() == 0 && end + usize::from(next.length.get()) <= run.used {
            joined += usize::from(next.length.get());
        }
    }
    if at + joined == run.used {
        return (length, at);
    }
    write_free(edit, run.base + at, joined);
    (length, run.used)
}

/// Makes the live entry at `at` name another inode: one atomic change of one entry.
pub(crate) fn replace(edit: &mut BlockEdit<'_>, at: usize, ino: Ino, file_type: u8) {
    edit.put(at, &ino.0.to_le_bytes());
    edit.put(at + 11, &[file_type]);
}
