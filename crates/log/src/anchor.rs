//! The two anchors: which one counts, and the bytes of the next. Two that say the same are twins: either counts.

use crate::place::{LogError, LogPlace, POSITION_MAX, Ring, impossible};
use myriad_format::Lsn;
use myriad_format::log::{ANCHOR_MAGIC, ANCHOR_UNITS, AnchorBlock};

/// An anchor as read or to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// 0 or 1: which of the two places.
    pub slot: u64,
    pub sequence: u64,
    pub tail: Lsn,
}

/// What a search had found in a log that was brought home and is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// Checkpoints that were found.
    pub found: u32,
    /// Checkpoints that were damaged: at least so many.
    pub missing: u32,
    /// Time of the last one found, in nanoseconds since 1970.
    pub time: i64,
}

impl Emptied {
    /// Of a log that the volume did not need, and in which nobody searched.
    pub const NOT_NEEDED: Self = Self { found: u32::MAX, missing: 0, time: 0 };

    /// A unit of bytes that holds the mark.
    pub(crate) fn encode(self, place: &LogPlace, ring: &Ring) -> Vec<u8> {
        let raw = AnchorBlock {
            volume: place.volume,
            found: self.found.into(),
            missing: self.missing.into(),
            time: self.time.into(),
            ..AnchorBlock::zeroed()
        };
        seal(raw, ring)
    }

    /// The mark, if one of the two places holds it.
    pub(crate) fn read(place: &LogPlace, ring: &Ring) -> Option<Self> {
        let mut bytes = vec![0; ring.unit as usize];
        (0..ANCHOR_UNITS).find_map(|slot| {
            place.read(place.start + slot * ring.unit, &mut bytes).ok()?;
            let raw = intact(place, &bytes).filter(|raw| raw.sequence.get() == MARK)?;
            Some(Self { found: raw.found.get(), missing: raw.missing.get(), time: raw.time.get() })
        })
    }
}

/// The sequence of a mark.
const MARK: u64 = 0;

/// A unit of bytes that holds an anchor.
fn seal(raw: AnchorBlock, ring: &Ring) -> Vec<u8> {
    let mut bytes = vec![0; ring.unit as usize];
    *AnchorBlock::read_mut(&mut bytes) = AnchorBlock { magic: ANCHOR_MAGIC.into(), crc: 0.into(), ..raw };
    let crc = crc32c::crc32c(&bytes[..AnchorBlock::SIZE]);
    AnchorBlock::read_mut(&mut bytes).crc = crc.into();
    bytes
}

/// What lies in the place of an anchor, `None` if it was torn, never written or another volume's.
fn intact(place: &LogPlace, bytes: &[u8]) -> Option<AnchorBlock> {
    let raw = *AnchorBlock::read(bytes);
    let mut unsealed = [0; AnchorBlock::SIZE];
    unsealed.copy_from_slice(&bytes[..AnchorBlock::SIZE]);
    AnchorBlock::read_mut(&mut unsealed).crc = 0.into();
    let is_intact =
        raw.magic.get() == ANCHOR_MAGIC && raw.crc.get() == crc32c::crc32c(&unsealed) && raw.volume == place.volume;
    is_intact.then_some(raw)
}

/// Both anchors as read.
pub(crate) struct Anchors {
    /// The one that counts.
    pub anchor: Anchor,
    /// The other one is valid too.
    pub has_both: bool,
    /// What is wrong with the other one. One that was never written, or erased, is zeros and not damaged.
    pub damaged: Option<&'static str>,
}

impl Anchor {
    /// The same, in the other place.
    pub fn twin(&self) -> Self {
        Self { slot: 1 - self.slot, ..*self }
    }

    pub fn offset(&self, place: &LogPlace, ring: &Ring) -> u64 {
        place.start + self.slot * ring.unit
    }

    /// The anchor that follows this one, in the other place.
    pub fn next(&self, tail: Lsn) -> Self {
        assert!(tail > self.tail, "an anchor is only rewritten to move the tail");
        Self { sequence: self.sequence + 1, tail, ..self.twin() }
    }

    /// A unit of bytes that holds it.
    pub fn encode(&self, place: &LogPlace, ring: &Ring) -> Vec<u8> {
        let raw = AnchorBlock {
            volume: place.volume,
            sequence: self.sequence.into(),
            tail: self.tail.0.into(),
            ..AnchorBlock::zeroed()
        };
        seal(raw, ring)
    }

    /// The anchor in a place.
    fn decode(place: &LogPlace, slot: u64, bytes: &[u8]) -> Option<Self> {
        let raw = intact(place, bytes)?;
        Some(Self { slot, sequence: raw.sequence.get(), tail: Lsn(raw.tail.get()) })
    }

    /// The two places, that of the anchor that counts last. An anchor that cannot be read counts for none.
    pub fn slots(place: &LogPlace, ring: &Ring) -> [u64; 2] {
        let sequence = |slot: u64| {
            let mut bytes = vec![0; ring.unit as usize];
            let read = place.read(place.start + slot * ring.unit, &mut bytes);
            read.ok().and_then(|()| Self::decode(place, slot, &bytes)).map(|anchor| anchor.sequence)
        };
        if sequence(0) > sequence(1) { [1, 0] } else { [0, 1] }
    }

    /// The anchor that counts.
    pub fn read(place: &LogPlace, ring: &Ring) -> Result<Self, LogError> {
        Ok(Self::read_both(place, ring)?.anchor)
    }

    /// The anchor that counts, and what is to be said of the other. Each is read by itself: one that cannot be read costs the
    /// other nothing.
    pub fn read_both(place: &LogPlace, ring: &Ring) -> Result<Anchors, LogError> {
        let mut found = [None, None];
        let mut damaged = None;
        let mut unreadable = None;
        for slot in 0..ANCHOR_UNITS {
            let mut bytes = vec![0; ring.unit as usize];
            match place.read(place.start + slot * ring.unit, &mut bytes) {
                Ok(()) => {
                    found[slot as usize] = Self::decode(place, slot, &bytes);
                    if found[slot as usize].is_none() && bytes[..AnchorBlock::SIZE].iter().any(|&byte| byte != 0) {
                        damaged = Some("damaged");
                    }
                }
                Err(error) => {
                    damaged = Some("unreadable");
                    unreadable.get_or_insert(error);
                }
            }
        }
        let is_mark = |found: &Option<Self>| found.is_some_and(|anchor| anchor.sequence == MARK);
        if found.iter().any(is_mark) {
            damaged.get_or_insert("of a repair that did not end");
        }
        let has_both = found.iter().all(|found| found.is_some() && !is_mark(found));
        // Of twins the first.
        let Some(anchor) = found.into_iter().rev().flatten().max_by_key(|anchor| anchor.sequence) else {
            return Err(
                unreadable.unwrap_or_else(|| impossible(Lsn(0), "anchor pair (neither is valid) at byte", place.start))
            );
        };
        if anchor.sequence == MARK || anchor.sequence > POSITION_MAX {
            return Err(impossible(anchor.tail, "anchor sequence", anchor.sequence));
        }
        if anchor.tail.0 % ring.unit != 0 || anchor.tail.0 > POSITION_MAX {
            return Err(impossible(anchor.tail, "anchor tail", anchor.tail.0));
        }
        Ok(Anchors { anchor, has_both, damaged })
    }
}
