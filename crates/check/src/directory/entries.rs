//! Packed directory entries, as in an entry block or an inode's body.

use myriad_format::dir::{EntryHeader, entry_size};
use myriad_format::{Ino, NameHasher};

/// An entry; free when `ino` is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// Bytes from the start of the entries.
    pub offset: u32,
    pub length: u16,
    pub ino: Ino,
    pub name: &'a [u8],
    pub file_type: u8,
    pub tag: u32,
}

/// What is impossible about an entry, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadEntry {
    pub offset: u32,
    pub field: &'static str,
    pub value: u64,
}

/// Iterates over packed entries; ends after the first bad one.
pub(crate) fn parse(bytes: &[u8]) -> impl Iterator<Item = Result<Entry<'_>, BadEntry>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes.len() {
            return None;
        }
        let result = entry_at(bytes, at);
        at = result.as_ref().map_or(bytes.len(), |entry| at + usize::from(entry.length));
        Some(result)
    })
}

/// The entry at an offset.
pub(crate) fn entry_at(bytes: &[u8], at: usize) -> Result<Entry<'_>, BadEntry> {
    let bad = |field, value| Err(BadEntry { offset: at as u32, field, value });
    let length = length_at(bytes, at)?;
    let rest = &bytes[at..];
    let header = EntryHeader::read(rest);
    let name_len = usize::from(header.name_len);
    let ino = Ino(header.ino.get());
    if ino.is_none() {
        return Ok(Entry { offset: at as u32, length: length as u16, ino, name: &[], file_type: 0, tag: 0 });
    }
    if name_len == 0 || entry_size(name_len) > length {
        return bad("name_len", name_len as u64);
    }
    let name = &rest[EntryHeader::SIZE..][..name_len];
    if !is_name(name) {
        return bad("name", u64::from(name[0]));
    }
    let (file_type, tag) = (header.file_type, header.tag.get());
    Ok(Entry { offset: at as u32, length: length as u16, ino, name, file_type, tag })
}

/// Bytes of the entry at an offset: where the next one begins, whatever else is wrong with it.
pub(crate) fn length_at(bytes: &[u8], at: usize) -> Result<usize, BadEntry> {
    let bad = |field, value| Err(BadEntry { offset: at as u32, field, value });
    let rest = &bytes[at..];
    if rest.len() < EntryHeader::SIZE {
        return bad("room", rest.len() as u64);
    }
    let length = usize::from(EntryHeader::read(rest).length.get());
    if length % 8 != 0 || length < EntryHeader::SIZE || length > rest.len() {
        return bad("length", length as u64);
    }
    Ok(length)
}

/// Where entries go on behind one whose length is impossible: at the next one that has a name and that name's tag.
pub(crate) fn next_entry(bytes: &[u8], at: usize, hasher: &NameHasher) -> Option<usize> {
    // What lies between becomes a free entry, and needs room for its header.
    let mut offsets = (at + EntryHeader::SIZE..bytes.len()).step_by(8);
    offsets.find(|&at| {
        entry_at(bytes, at).is_ok_and(|entry| !entry.ino.is_none() && entry.tag == hasher.hash(entry.name) as u32)
    })
}

/// Name of the entry at an offset, if one can be read there.
pub(crate) fn name_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    if at >= bytes.len() {
        return None;
    }
    entry_at(bytes, at).ok().map(|entry| entry.name)
}

/// Whether a name that is not empty may be one of an entry.
pub(crate) fn is_name(name: &[u8]) -> bool {
    name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}
