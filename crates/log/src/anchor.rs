//! The two anchors: which one counts, and the bytes of the next.

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

impl Anchor {
    pub fn offset(&self, place: &LogPlace, ring: &Ring) -> u64 {
        place.start + self.slot * ring.unit
    }

    /// The anchor that follows this one, in the other place.
    pub fn next(&self, tail: Lsn) -> Self {
        assert!(tail > self.tail, "an anchor is only rewritten to move the tail");
        Self { slot: 1 - self.slot, sequence: self.sequence + 1, tail }
    }

    /// A unit of bytes that holds it.
    pub fn encode(&self, place: &LogPlace, ring: &Ring) -> Vec<u8> {
        let mut bytes = vec![0; ring.unit as usize];
        *AnchorBlock::read_mut(&mut bytes) = AnchorBlock {
            magic: ANCHOR_MAGIC.into(),
            volume: place.volume,
            sequence: self.sequence.into(),
            tail: self.tail.0.into(),
            ..AnchorBlock::zeroed()
        };
        let crc = crc32c::crc32c(&bytes[..AnchorBlock::SIZE]);
        AnchorBlock::read_mut(&mut bytes).crc = crc.into();
        bytes
    }

    /// The anchor in a place, `None` if it was torn, never written or another volume's.
    fn decode(place: &LogPlace, slot: u64, bytes: &[u8]) -> Option<Self> {
        let raw = *AnchorBlock::read(bytes);
        let mut unsealed = [0; AnchorBlock::SIZE];
        unsealed.copy_from_slice(&bytes[..AnchorBlock::SIZE]);
        AnchorBlock::read_mut(&mut unsealed).crc = 0.into();
        let intact =
            raw.magic.get() == ANCHOR_MAGIC && raw.crc.get() == crc32c::crc32c(&unsealed) && raw.volume == place.volume;
        intact.then(|| Self { slot, sequence: raw.sequence.get(), tail: Lsn(raw.tail.get()) })
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
        let mut bytes = vec![0; (ANCHOR_UNITS * ring.unit) as usize];
        place.read(place.start, &mut bytes)?;
        let anchor = bytes
            .chunks_exact(ring.unit as usize)
            .zip(0..)
            .filter_map(|(bytes, slot)| Self::decode(place, slot, bytes))
            .max_by_key(|anchor| anchor.sequence)
            .ok_or_else(|| impossible(Lsn(0), "anchor pair (neither is valid) at byte", place.start))?;
        if anchor.sequence == 0 || anchor.sequence > POSITION_MAX {
            return Err(impossible(anchor.tail, "anchor sequence", anchor.sequence));
        }
        if anchor.tail.0 % ring.unit != 0 || anchor.tail.0 > POSITION_MAX {
            return Err(impossible(anchor.tail, "anchor tail", anchor.tail.0));
        }
        Ok(anchor)
    }
}
