//! Linear directories by their hashes (dirhash): one unit is looked at where a search looks at all.
//!
//! A hash says where a name lies, and in which unit there is room for one: the fullest that has enough, as the paper has it
//! (Dowse and Malone 2002, 3.3). Without one the first fit is taken. Both are sound, and a directory may be changed by either in turn.
//!
//! Not here: when there is a hash (`dir::dirhash`). Where there is none, each function answers `None`, and its caller searches.

use super::room::{RoomFound, room_in};
use super::unit::{Entry, entry_at};
use super::{ENTRIES_MAX, Unit, entry_block, split, units, visit};
use crate::counters::Count;
use crate::dir::dirhash::{Change, FreeSpace, Kept, Noted, Shape, Summarised, Table, Useless, WORD};
use crate::dir::place::Place;
use crate::dir::{Name, Search, Seen, Spot};
use crate::error::Result;
use crate::order::Look;
use myriad_format::inode::RawInode;
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, Corrupt, Ino};

/// Units that are tried for a name of those with enough free bytes, the fullest first. A unit may have too little room in one piece after
/// all, between entries that keep their place (order `softdep`), or it may have the name's tag.
const ROOM_TRIES: usize = 8;

/// Units that are looked at before the directory grows, of those that are charged for entries whose names have gone. Growth makes room for
/// some twenty names, so that is three looks a name. They take turns: all have been looked at before a directory of `n` such units has
/// grown by `n / 64`.
const CHARGED_TRIES: usize = 64;

/// A position in words, as a hash has it.
pub(super) fn position_of(spot: Spot) -> u32 {
    (spot.at / WORD as u64) as u32
}

fn unit_of(position: u32) -> u64 {
    u64::from(position) / (UNIT_SIZE / WORD) as u64
}

/// All of a directory, for whoever makes its hash.
struct Whole<'w, 'v> {
    look: &'w Look<'v>,
    dir: Ino,
    raw: &'w RawInode,
}

impl Summarised for Whole<'_, '_> {
    fn shape(&self) -> Result<Shape> {
        Ok(Shape {
            pieces: units(self.raw),
            entries_max: ENTRIES_MAX,
            piece_size: UNIT_SIZE as u64,
            sums_free: true,
            keeps_gone: self.look.volume.soft.is_some(),
        })
    }

    fn each(&self, f: &mut dyn FnMut(Noted<'_>) -> Kept) -> Result<Kept> {
        let mut kept = Ok(());
        visit(self.look, self.dir, self.raw, 0..units(self.raw), &mut |unit| {
            for entry in unit.entries() {
                let entry = entry?;
                let piece = unit.number;
                kept = match entry.is_live() {
                    true => {
                        let (position, words) = (unit.position(&entry), entry.needs() / WORD);
                        f(Noted::Name { name: entry.name, position, words, piece })
                    }
                    false if unit.is_held(self.look, &entry) => {
                        f(Noted::Gone { tag: entry.header.tag.get(), words: entry.length() / WORD, piece })
                    }
                    false => Ok(()),
                };
                if kept.is_err() {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        Ok(kept)
    }
}

/// Looks at a unit.
fn with_unit<R>(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    number: u64,
    f: impl FnOnce(Unit<'_>) -> Result<R>,
) -> Result<R> {
    let (block, at) = split(look, number);
    let place = Place { dir, block };
    if number >= units(raw) {
        return Err(place.corrupt(at, "unit behind the directory's end", number));
    }
    let fs_block = entry_block(look, dir, raw, block)?;
    look.read(fs_block, BlockKind::LinearEntries, |bytes| {
        let owner = UnitHeader::read(&bytes[at..]).owner.get();
        if owner != dir.0 {
            return Err(Corrupt::BlockOwner { block: fs_block, stored: owner, expected: dir.0 }.into());
        }
        f(Unit { number, block: bytes, at, place, fs_block })
    })?
}

/// The entry at a position of its unit, which must be a live one.
fn live_entry<'u>(unit: &Unit<'u>, position: u32) -> Result<Entry<'u>> {
    let offset = unit.at + position as usize * WORD % UNIT_SIZE;
    let entry = entry_at(&unit.block[..unit.at + UNIT_SIZE], offset, unit.place)?;
    if !entry.is_live() || offset < unit.at + UnitHeader::SIZE {
        return Err(unit.place.corrupt(offset, "entry that a hash has", 0));
    }
    Ok(entry)
}

/// Looks a name up; as [`super::search`] where it is not there.
pub(super) fn search(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Option<Search> {
    let volume = look.volume;
    let hashes = &volume.dir_hashes;
    let whole = Whole { look, dir, raw };
    hashes.look(dir, raw, &whole, |table| {
        let (mut hit, mut twin, mut compared) = (None, None, 0);
        let passed = table.find(hashes.home(name.hash), |position, is_expected| {
            compared += 1;
            with_unit(look, dir, raw, unit_of(position), |unit| {
                let entry = live_entry(&unit, position)?;
                if entry.header.tag.get() != name.tag() {
                    return Ok(false);
                }
                if entry.name == name.bytes {
                    hit = Some(super::hit_of(unit.number, &entry));
                    table.found(position, entry.needs() / WORD);
                    volume.counters.add(Count::dirhash_expected, u64::from(is_expected));
                    return Ok(true);
                }
                if volume.hasher.hash(entry.name) == name.hash {
                    twin = Some(Ino(entry.header.ino.get()));
                }
                Ok(false)
            })
        })?;
        volume.counters.add(Count::dirhash_probes, passed);
        volume.counters.add(Count::dir_tags_compared, compared);
        volume.counters.bump(if hit.is_some() { Count::dirhash_hits } else { Count::dirhash_misses });
        let is_held = hit.is_none() && table.may_hold(name.tag(), |tag, unit| holds(look, dir, raw, tag, unit));
        Ok(Search { hit, twin, seen: Seen::Linear(super::Seen { room: None, is_held }) })
    })
}

/// The unit in which a name with this hash names an inode.
pub(super) fn unit_of_name(look: &Look<'_>, dir: Ino, raw: &RawInode, hash: u64, ino: Ino) -> Option<Option<u64>> {
    let hashes = &look.volume.dir_hashes;
    hashes.look(dir, raw, &Whole { look, dir, raw }, |table| {
        let mut found = None;
        table.find(hashes.home(hash), |position, _| {
            let names = |unit: Unit<'_>| Ok(live_entry(&unit, position)?.names(look, hash, ino));
            if with_unit(look, dir, raw, unit_of(position), names)? {
                found = Some(unit_of(position));
            }
            Ok(found.is_some())
        })?;
        Ok(found)
    })
}

/// Whether an entry with a tag keeps its place in a unit though its name has gone.
fn holds(look: &Look<'_>, dir: Ino, raw: &RawInode, tag: u32, unit: u32) -> bool {
    let (block, at) = split(look, unit.into());
    entry_block(look, dir, raw, block)
        .and_then(|block| look.holds_entry_of(block, at / UNIT_SIZE, tag))
        .is_ok_and(|is_held| is_held)
}

/// Tells the hash that the entry of a name that has gone keeps its place, and all its words: its slack is nobody else's. The order goes by
/// tags, so what the same name left in the unit before, and was let go of, is kept once more as well.
pub(super) fn keep(
    look: &Look<'_>,
    dir: Ino,
    raw: &RawInode,
    tag: u32,
    unit: u64,
    change: &mut Change<'_>,
) -> Result<()> {
    if change.table().is_none() {
        return Ok(());
    }
    let left_it = |entry: &Entry<'_>| !entry.is_live() && entry.header.name_len > 0 && entry.header.tag.get() == tag;
    let words = with_unit(look, dir, raw, unit, |unit| words_of(&unit, left_it))?;
    change.tell(|_, table| table.gone_from(tag, words, unit, |tag, unit| holds(look, dir, raw, tag, unit)));
    Ok(())
}

/// Words that entries of a unit keep whose names have gone.
fn kept_words(look: &Look<'_>, unit: &Unit<'_>) -> Result<usize> {
    words_of(unit, |entry| unit.is_held(look, entry))
}

/// Words of the entries of a unit that are such.
fn words_of(unit: &Unit<'_>, is_such: impl Fn(&Entry<'_>) -> bool) -> Result<usize> {
    let mut words = 0;
    for entry in unit.entries() {
        let entry = entry?;
        if is_such(&entry) {
            words += entry.length() / WORD;
        }
    }
    Ok(words)
}

/// Puts right what the hash charges a unit for, if that is anything, by looking at the unit.
pub(super) fn recharge(look: &Look<'_>, dir: Ino, raw: &RawInode, unit: u64, change: &mut Change<'_>) -> Result<()> {
    if change.table().is_some_and(|table| table.free().charged(unit as u32) > 0) {
        let words = with_unit(look, dir, raw, unit, |unit| kept_words(look, &unit))?;
        change.tell(|_, table| table.recharge(unit, words));
    }
    Ok(())
}

/// Where there is room for a name that a search by the hash did not find. The directory is locked exclusively: what is learned of entries
/// that the order has let go of goes into the hash.
pub(super) fn room(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>) -> Result<Option<RoomFound>> {
    look.volume.dir_hashes.change(dir, raw.generation.get(), |change| {
        let mut found = None;
        change.tell(|_, table| {
            found = room_by(look, dir, raw, name, table);
            // What is wrong with the directory, the search will say; or the hash is.
            if found.is_some() { Ok(()) } else { Err(Useless::Wrong) }
        });
        Ok(found)
    })
}

/// `None`: the directory cannot be read, or the hash is wrong.
fn room_by(look: &Look<'_>, dir: Ino, raw: &RawInode, name: Name<'_>, table: &mut Table) -> Option<RoomFound> {
    if table.free().charged_units() > 0 && !look.has_changed(dir) {
        table.nothing_waits();
    }
    let used = used_units(look, dir, raw, table)?;
    let needed = myriad_format::dir::entry_size(name.bytes.len());
    let room_of = |unit: &Unit<'_>| {
        let found = room_in(look, unit, name.tag(), needed, |_| false)?.filter(|found| !found.has_tag);
        let range = found.and_then(|found| found.in_entry.or(found.in_unit));
        Ok(range.map(|range| (unit.number, range)))
    };
    for number in candidates(table.free(), needed / WORD) {
        let range = with_unit(look, dir, raw, number, |unit| room_of(&unit)).ok()?;
        if range.is_some() {
            return Some(RoomFound { range, used });
        }
    }
    for _ in 0..CHARGED_TRIES.min(table.free().charged_units() as usize) {
        // Each look may take frames, and nothing is evicted while somebody is inside the gate.
        let Some(number) = table.next_charged().filter(|_| look.volume.cache.has_room()) else { break };
        look.volume.counters.bump(Count::dirhash_recharges);
        let seen = with_unit(look, dir, raw, number, |unit| Ok((kept_words(look, &unit)?, room_of(&unit)?)));
        let (kept, range) = seen.ok()?;
        table.recharge(number, kept).ok()?;
        if range.is_some() {
            return Some(RoomFound { range, used });
        }
    }
    Some(RoomFound { range: None, used })
}

/// Units that are tried for an entry of so many words. Those that are tried in vain stay the fullest, so the first that would take any
/// name follows, and the last one: a directory that has grown does not grow again before that is full.
fn candidates(free: &FreeSpace, words: usize) -> impl Iterator<Item = u64> {
    let fullest = free.candidates(words).take(ROOM_TRIES);
    let roomy = free.candidates(FreeSpace::LARGEST).next();
    let last = free.units().checked_sub(1).filter(|&last| usize::from(free.words_of(last)) >= words);
    fullest.chain(roomy).chain(last).map(u64::from)
}

/// Units up to the last one that has a name, or an entry that keeps its place; or more, for an operation looks at few of them: what it does
/// not come to, a later one truncates.
fn used_units(look: &Look<'_>, dir: Ino, raw: &RawInode, table: &mut Table) -> Option<u64> {
    for _ in 0..CHARGED_TRIES {
        let used = table.free().used();
        let last = used.checked_sub(1).filter(|&last| table.free().is_only_charged(last));
        let Some(last) = last.filter(|_| look.volume.cache.has_room()) else {
            return Some(used.into());
        };
        // No name is in it. The order may have let go of the entries that it is charged for.
        let kept = with_unit(look, dir, raw, last.into(), |unit| kept_words(look, &unit)).ok()?;
        table.recharge(last.into(), kept).ok()?;
        if kept > 0 {
            return Some(used.into());
        }
    }
    Some(table.free().used().into())
}

/// How many names the directory has, if it has a hash.
pub(super) fn names(look: &Look<'_>, dir: Ino, raw: &RawInode) -> Option<u64> {
    look.volume.dir_hashes.peek(dir, raw, |table| Ok(table.names()))
}

/// Compares a unit that has changed with the hash.
pub(super) fn check(look: &Look<'_>, dir: Ino, raw: &RawInode, number: u64, change: &mut Change<'_>) {
    if change.table().is_none() || !look.volume.dir_hashes.checks() {
        return;
    }
    let says = with_unit(look, dir, raw, number, |unit| {
        let (mut names, mut free) = (Vec::new(), (UNIT_SIZE - UnitHeader::SIZE) / WORD);
        let kept = kept_words(look, &unit)?;
        for entry in unit.entries() {
            let entry = entry?;
            if entry.is_live() {
                names.push((look.volume.dir_hashes.home_of(entry.name), unit.position(&entry)));
                free -= entry.needs() / WORD;
            }
        }
        Ok((names, free, kept))
    });
    // What cannot be read is found by whoever has to.
    if let Ok((names, free, kept)) = says {
        change.tell(|_, table| table.agrees(names.into_iter(), number, free, kept));
    }
}
