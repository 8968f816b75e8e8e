//! The search: what the ring still holds when the anchors do not lead through it.
//!
//! [`recover`](crate::recover()) gives up where an anchor pair is lost, or where a checkpoint that had committed is
//! damaged. The ring may hold whole checkpoints all the same, and each of them says its place, its number and its
//! predecessor. So every unit is looked at, and all whole checkpoints of this life of the log, within one lap of the
//! newest, are laid over one another as replay would.
//!
//! What can be believed of them, if `t` is the durable tail and `x` the oldest one found:
//!   1. *No gap, and `x <= t`.* Replay from `x` does more than replay from `t`, which is harmless (the crate's header,
//!      "Anchor lost"): every revoke since `x` is among them.
//!   2. *A gap.* What is newer than the gap is laid over as ever: it is the newest there is of its granules, and whatever
//!      was freed after it is revoked after it. What is older may have been freed, and used again, by what is missing. So
//!      an old record counts only for a block that still says at home that it is that block ([`Home`]).
//!   3. *Home is newer.* A sound block says how new it is. A record older than that is in it already, or its block was
//!      written by somebody who had replayed the record: a repair that was cut short marks so what it has brought home.
//!   4. *An earlier life.* [`format()`](crate::format()) erases the headers it leaves behind, and its first checkpoint has
//!      number 0: nothing older than that is of this life.

use crate::anchor::Anchor;
use crate::checkpoint::{apply_escape, padded};
use crate::overlay::{Changes, Overlay};
use crate::place::{LogError, LogPlace, POSITION_MAX, Ring};
use crate::recover::{Header, parse, read_ring};
use myriad_format::log::CheckpointHeader;
use myriad_format::{FsBlock, Lsn};

/// What a block holds at home, for the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// The block, sound, with this LSN in its header.
    Sound(Lsn),
    /// Its header says that it is the block; its checksum is wrong.
    Torn,
    /// Anything else: file data, another's block, or nothing that can be read.
    Other,
}

/// What a search found: at least one checkpoint.
pub struct Found {
    /// Changes that may not be home yet.
    pub overlay: Overlay,
    /// Frees of the last checkpoint.
    pub pending: Vec<(FsBlock, u32)>,
    /// Checkpoints found.
    pub checkpoints: u64,
    /// Checkpoints that are damaged and were needed, or may have been: at least so many.
    pub missing: u64,
    /// LSN behind the last one found.
    pub head: Lsn,
    /// Time of the last one found.
    pub time: i64,
}

/// Headers that were found, and places where one may have been.
struct Units {
    /// By ascending place in the ring.
    headers: Vec<CheckpointHeader>,
    /// Places in the ring of what cannot be read, is all zeros, or is a header with a wrong checksum; ascending.
    suspects: Vec<u64>,
    /// Those of them that cannot be read, ascending.
    unreadable: Vec<u64>,
}

impl Units {
    /// Whether a header was found among the units that the body behind this one takes. Then the body is not whole, for none of its units
    /// begins as a header does. The bodies of all others lie apart from each other, so to read them takes one lap, whatever the headers say.
    fn has_header_inside(&self, header: &CheckpointHeader, ring: &Ring) -> bool {
        let place = |header: &CheckpointHeader| header.lsn.get() % ring.capacity;
        let at = place(header);
        let next = match self.headers.get(self.headers.partition_point(|other| place(other) <= at)) {
            Some(next) => place(next),
            None => place(&self.headers[0]) + ring.capacity,
        };
        next < at + padded(header.body_len.get(), ring.unit)
    }
}

/// Searches the ring and changes nothing. `home_of` says what a block holds at home. `None`: no checkpoint is whole.
pub fn search(place: &LogPlace, mut home_of: impl FnMut(FsBlock) -> Home) -> Result<Option<Found>, LogError> {
    let ring = place.ring()?;
    let units = look_at_units(place, &ring);
    let mut whole = whole_checkpoints(place, &ring, &units);
    let Some((newest, _)) = whole.first() else { return Ok(None) };
    let (time, head) = (newest.time.get(), end_of(newest, &ring));
    whole.reverse();
    let first = &whole[0].0;
    let is_old = head < place.known_end;
    let missing = missing_before(place, &ring, &units, first, head)
        + whole.windows(2).map(|pair| pair[1].0.sequence.get() - pair[0].0.sequence.get() - 1).sum::<u64>()
        + u64::from(is_end_unreadable(&ring, &units, head) || is_old);
    // LSN behind the last gap: what is older is believed of blocks that say who they are, and of no other. A log that ends too soon has a gap there.
    let is_gap = |pair: &&[(CheckpointHeader, Vec<u8>)]| pair[1].0.sequence.get() > pair[0].0.sequence.get() + 1;
    let sure = if is_old { head.0 } else { whole.windows(2).rfind(is_gap).map_or(0, |pair| pair[1].0.lsn.get()) };

    let (mut changes, mut pending, mut log) = (Changes::default(), Vec::new(), Vec::new());
    let checkpoints = whole.len() as u64;
    for (header, bytes) in whole {
        let at = log.len();
        log.extend_from_slice(&bytes);
        let end = at + CheckpointHeader::SIZE + header.body_len.get() as usize;
        apply_escape(&mut log[at..end], ring.unit as usize, header.escape.get());
        changes.begin(Lsn(header.lsn.get()));
        parse(&header, &log[..end], at + CheckpointHeader::SIZE, ring.granule, &mut changes, &mut pending)?;
    }
    let mut known = None;
    changes.keep_records(|block, lsn| {
        let home = match known {
            Some((of, home)) if of == block => home,
            _ => home_of(block),
        };
        known = Some((block, home));
        match home {
            Home::Sound(newest) => lsn >= newest,
            Home::Torn => true,
            Home::Other => lsn.0 >= sure,
        }
    });
    let overlay = changes.into_overlay(place.block_size, log);
    if is_old {
        // Somebody may have them by now.
        pending.clear();
    }
    Ok(Some(Found { overlay, pending, checkpoints, missing, head, time }))
}

fn end_of(header: &CheckpointHeader, ring: &Ring) -> Lsn {
    Lsn(header.lsn.get() + padded(header.body_len.get(), ring.unit))
}

/// Looks at the first bytes of every unit. What cannot be read is passed over, a unit at a time.
fn look_at_units(place: &LogPlace, ring: &Ring) -> Units {
    /// Read at a time.
    const WINDOW: u64 = 1 << 20;
    let mut units = Units { headers: Vec::new(), suspects: Vec::new(), unreadable: Vec::new() };
    let mut window = vec![0; WINDOW.min(ring.capacity) as usize];
    let mut at = 0;
    while at < ring.capacity {
        let length = (ring.capacity - at).min(window.len() as u64) as usize;
        let is_read = place.read(ring.start + at, &mut window[..length]).is_ok();
        for unit in window[..length].chunks_mut(ring.unit as usize) {
            if !is_read && place.read(ring.start + at, unit).is_err() {
                units.unreadable.push(at);
                units.suspects.push(at);
            } else {
                match Header::decode(place, unit) {
                    Header::Valid(header) if is_in_place(&header, ring, at) => units.headers.push(header),
                    Header::Valid(_) => {}
                    Header::Damaged => units.suspects.push(at),
                    Header::Absent if unit.iter().all(|&byte| byte == 0) => units.suspects.push(at),
                    Header::Absent => {}
                }
            }
            at += ring.unit;
        }
    }
    units
}

/// Whether behind the last whole checkpoint there is one that cannot be read: at its header, or in its body. One that can be
/// read and is not whole is an attempt that did not commit, as far as anybody can tell.
fn is_end_unreadable(ring: &Ring, units: &Units, head: Lsn) -> bool {
    let is_unreadable = |lsn: u64| units.unreadable.binary_search(&(lsn % ring.capacity)).is_ok();
    let next = units.headers.iter().find(|header| header.lsn.get() == head.0);
    let end = next.map_or(head.0 + 1, |header| end_of(header, ring).0);
    (head.0..end).step_by(ring.unit as usize).any(is_unreadable)
}

fn is_in_place(header: &CheckpointHeader, ring: &Ring, at: u64) -> bool {
    let (lsn, body_len) = (header.lsn.get(), header.body_len.get());
    lsn % ring.capacity == at
        && lsn <= POSITION_MAX
        && header.sequence.get() <= POSITION_MAX
        && body_len <= ring.capacity
        && padded(body_len, ring.unit) <= ring.capacity
}

/// The whole checkpoints of the ring's newest lap with their bytes, newest first, as far back as they are of one life.
fn whole_checkpoints(place: &LogPlace, ring: &Ring, units: &Units) -> Vec<(CheckpointHeader, Vec<u8>)> {
    let mut headers = units.headers.clone();
    headers.sort_unstable_by_key(|header| std::cmp::Reverse(header.lsn.get()));
    let mut whole: Vec<(CheckpointHeader, Vec<u8>)> = Vec::new();
    let mut head = None;
    for header in headers {
        let end = end_of(&header, ring);
        if units.has_header_inside(&header, ring) {
            continue;
        }
        if let Some((later, _)) = whole.last() {
            let links = later.previous_crc.get() == header.crc.get();
            let is_next = end.0 == later.lsn.get();
            let steps = later.sequence.get().checked_sub(header.sequence.get());
            let follows = match steps {
                None | Some(0) => false,
                Some(1) => is_next && links,
                // At least a unit for each that is missing; numbers that somebody made up may be of any size.
                Some(steps) => later.lsn.get().checked_sub(end.0).is_some_and(|room| steps - 1 <= room / ring.unit),
            };
            if !follows {
                continue;
            }
        }
        if head.is_some_and(|head: Lsn| head.0 - header.lsn.get() > ring.capacity) {
            break;
        }
        let mut bytes = vec![0; (end.0 - header.lsn.get()) as usize];
        if read_ring(place, ring, Lsn(header.lsn.get()), &mut bytes).is_err() {
            continue;
        }
        let body = &bytes[CheckpointHeader::SIZE..][..header.body_len.get() as usize];
        if crc32c::crc32c(body) != header.body_crc.get() {
            continue;
        }
        head.get_or_insert(end);
        let is_first = header.sequence.get() == 0;
        whole.push((header, bytes));
        if is_first {
            break;
        }
    }
    whole
}

/// Checkpoints that preceded the oldest one found and are damaged, as far as that can be told from those that were written
/// over.
fn missing_before(place: &LogPlace, ring: &Ring, units: &Units, first: &CheckpointHeader, head: Lsn) -> u64 {
    let lsn = first.lsn.get();
    if first.sequence.get() == 0 || Anchor::read(place, ring).is_ok_and(|anchor| lsn <= anchor.tail.0) {
        return 0;
    }
    // Since the place of the one before was last written, nothing has been written there: had its header lain here, it
    // would be found.
    let lap = head.0.saturating_sub(ring.capacity);
    let is_suspect = |at: u64| units.suspects.binary_search(&(at % ring.capacity)).is_ok();
    let is_one_lost = (lap..lsn).step_by(ring.unit as usize).any(is_suspect);
    if lap == 0 { first.sequence.get() } else { u64::from(is_one_lost) }
}
