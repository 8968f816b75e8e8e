//! Where in a linear directory there is room for a name.

use super::Unit;
use super::unit::Entry;
use crate::counters::Count;
use crate::error::Result;
use crate::order::Look;
use std::ops::Range;

/// Room in a directory.
pub(super) struct RoomFound {
    /// The entries of a unit that have room, if there are any.
    pub range: Option<(u64, Range<usize>)>,
    /// Units that are in use.
    pub used: u64,
}

/// What a search saw of room on its way through all units.
#[derive(Default)]
pub(super) struct RoomSeen {
    /// The first entry whose own slack suffices, and the first range of entries of one unit whose slack does together.
    in_entry: Option<(u64, Range<usize>)>,
    in_unit: Option<(u64, Range<usize>)>,
    /// Units up to the last one with an entry.
    used: u64,
}

impl RoomSeen {
    /// Takes down what a unit has.
    pub fn note(&mut self, unit: u64, room: RoomIn) {
        if room.has_entry {
            self.used = unit + 1;
        }
        if !room.has_tag {
            let here = |range| (unit, range);
            self.in_entry = self.in_entry.take().or(room.in_entry.map(here));
            self.in_unit = self.in_unit.take().or(room.in_unit.map(here));
        }
    }

    pub fn found(self) -> RoomFound {
        RoomFound { range: self.in_entry.or(self.in_unit), used: self.used }
    }
}

/// What one unit has for a new entry.
#[derive(Default)]
pub(super) struct RoomIn {
    /// An entry has the name's tag, or keeps the place of one that had it.
    pub has_tag: bool,
    pub has_entry: bool,
    /// An entry that has gone and keeps its place has the tag.
    pub is_held: bool,
    /// The first entry whose own slack suffices, and the first entries that have as much together.
    pub in_entry: Option<Range<usize>>,
    pub in_unit: Option<Range<usize>>,
}

/// Looks for room in a unit, for an entry of `needed` bytes with this tag. Hands entries that have the tag to `f`, and stops if it
/// returns true.
pub(super) fn room_in(
    look: &Look<'_>,
    unit: &Unit<'_>,
    tag: u32,
    needed: usize,
    mut f: impl FnMut(&Entry<'_>) -> bool,
) -> Result<Option<RoomIn>> {
    let mut room = RoomIn::default();
    // From the first entry with slack on.
    let mut gathered: Option<(usize, usize)> = None;
    let mut compared = 0;
    for entry in unit.entries() {
        let entry = entry?;
        if entry.is_live() {
            compared += 1;
            room.has_entry = true;
            if entry.header.tag.get() == tag {
                if f(&entry) {
                    look.volume.counters.add(Count::dir_tags_compared, compared);
                    return Ok(None);
                }
                room.has_tag = true;
            }
        }
        if unit.is_held(look, &entry) {
            // Neither its bytes nor its tag can be another's, and it does not move.
            room.has_entry = true;
            let is_same = entry.header.tag.get() == tag;
            room.has_tag |= is_same;
            room.is_held |= is_same;
            gathered = None;
            continue;
        }
        let slack = entry.slack();
        if slack >= needed && room.in_entry.is_none() {
            room.in_entry = Some(entry.offset..entry.end());
        }
        if slack > 0 || gathered.is_some() {
            let (from, sum) = gathered.unwrap_or((entry.offset, 0));
            gathered = Some((from, sum + slack));
            if sum + slack >= needed && room.in_unit.is_none() {
                room.in_unit = Some(from..entry.end());
            }
        }
    }
    look.volume.counters.add(Count::dir_tags_compared, compared);
    Ok(Some(room))
}
