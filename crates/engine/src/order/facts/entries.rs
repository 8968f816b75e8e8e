//! Facts of a unit of a linear directory: what its names name.
//!
//! Entries of a unit are told apart by tag and name; no two that are there have the same tag. Where they lie in the unit, and how the
//! slack between them is shared out, is a hint.

use super::Fact;
use myriad_format::Ino;
use myriad_format::dir::{EntryHeader, entry_size};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use std::mem::offset_of;

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::order) struct Named {
    pub ino: Ino,
    pub file_type: u8,
}

/// An entry of a unit, live or not.
pub(in crate::order) struct Entry<'a> {
    pub at: usize,
    pub tag: u32,
    pub name: &'a [u8],
    /// `None`: it is free.
    pub named: Option<Named>,
}

/// The entries of a unit that have, or had, a name. Ends at the first one that is damaged: nobody changes a unit with such.
fn entries(unit: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut next = UnitHeader::SIZE;
    std::iter::from_fn(move || {
        while next + EntryHeader::SIZE <= UNIT_SIZE {
            let at = next;
            let header = EntryHeader::read(&unit[at..]);
            let (length, name_len) = (usize::from(header.length.get()), usize::from(header.name_len));
            if length < EntryHeader::SIZE || at + length > UNIT_SIZE {
                return None;
            }
            next = at + length;
            // A new name may have taken the place of one that is gone, but for its header.
            if name_len > 0 && entry_size(name_len) <= length {
                let ino = Ino(header.ino.get());
                let named = (ino.0 != 0).then_some(Named { ino, file_type: header.file_type });
                let name = &unit[at + EntryHeader::SIZE..][..name_len];
                return Some(Entry { at, tag: header.tag.get(), name, named });
            }
        }
        None
    })
}

/// The entries of a unit that name something.
pub(in crate::order) fn live(unit: &[u8]) -> impl Iterator<Item = (Entry<'_>, Named)> {
    entries(unit).filter_map(|entry| entry.named.map(|named| (entry, named)))
}

pub(super) fn between(old: &[u8], new: &[u8], f: &mut dyn FnMut(Fact)) {
    let was: Vec<(Entry<'_>, Named)> = live(old).collect();
    let mut is_found = vec![false; was.len()];
    for entry in entries(new) {
        let is_same = |other: &Entry<'_>| other.tag == entry.tag && other.name == entry.name;
        // Damage may have made a name there twice: each stands for itself.
        let same = was.iter().zip(&is_found).position(|((other, _), is_found)| !is_found && is_same(other));
        // A name that went and came back lies twice in a unit: its old entry, which is free, and the new one. The live one counts.
        if entry.named.is_none() && entries(new).any(|other| other.named.is_some() && other.name == entry.name) {
            continue;
        }
        let before = same.map(|index| {
            is_found[index] = true;
            was[index].1
        });
        if before != entry.named {
            f(Fact::Entry { at: Some(entry.at), tag: entry.tag, old: before, new: entry.named });
        }
    }
    for ((entry, named), _) in was.iter().zip(is_found).filter(|(_, is_found)| !is_found) {
        f(Fact::Entry { at: None, tag: entry.tag, old: Some(*named), new: None });
    }
}

pub(super) fn undo(image: &mut [u8], at: Option<usize>, old: Option<Named>) {
    let Some(at) = at else { return };
    let header = EntryHeader::read_mut(&mut image[at..]);
    header.ino.set(old.map_or(0, |named| named.ino.0));
    if let Some(named) = old {
        header.file_type = named.file_type;
    }
}

/// What of a change of a unit is no fact: anything but names, and a unit that its entries do not fill.
#[cfg(any(debug_assertions, test))]
pub(super) fn unexplained(old: &[u8], new: &[u8], undone: &[u8]) -> Option<String> {
    if old[..4] != new[..4] || old[8..UnitHeader::SIZE] != new[8..UnitHeader::SIZE] {
        return Some("the unit's header".into());
    }
    let mut at = UnitHeader::SIZE;
    while at < UNIT_SIZE {
        let length = usize::from(EntryHeader::read(new.get(at..at + EntryHeader::SIZE)?).length.get());
        if length < EntryHeader::SIZE || length % 8 != 0 {
            return Some(format!("an entry of {length} bytes at {at}"));
        }
        at += length;
    }
    if at != UNIT_SIZE {
        return Some(format!("entries of {at} bytes"));
    }
    // Names of which nothing is left cannot be undone.
    let known = |unit: &[u8]| {
        let mut names: Vec<(Vec<u8>, Named)> = live(unit).map(|(entry, named)| (entry.name.to_vec(), named)).collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        names
    };
    let there: Vec<Vec<u8>> = entries(new).map(|entry| entry.name.to_vec()).collect();
    let expected: Vec<_> = known(old).into_iter().filter(|(name, _)| there.contains(name)).collect();
    let found = known(undone);
    (expected != found).then(|| format!("names {found:?}, undone from {expected:?}"))
}

const _: () = assert!(offset_of!(EntryHeader, ino) == 0);
