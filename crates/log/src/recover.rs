//! Reading: from the anchor's tail to the last valid checkpoint, into an overlay. Trusts no byte.

use crate::anchor::{Anchor, Anchors};
use crate::checkpoint::{Link, apply_escape, padded};
use crate::overlay::{Changes, Overlay};
use crate::place::{LogError, LogPlace, POSITION_MAX, Ring, impossible};
use myriad_device::ReadRequest;
use myriad_format::log::{CHECKPOINT_MAGIC, CheckpointHeader, PendingFree, RecordHeader};
use myriad_format::{FsBlock, Lsn};
use std::collections::VecDeque;

/// What the log held.
pub struct Recovered {
    /// Changes that may not be home yet.
    pub overlay: Overlay,
    /// Frees of the last checkpoint that are in no free-space tree yet.
    pub pending: Vec<(FsBlock, u32)>,
    /// Checkpoints found.
    pub checkpoints: u64,
    /// Bytes they take.
    pub bytes: u64,
    /// Where replay started.
    pub tail: Lsn,
    /// LSN of the last checkpoint, `None` in a log just formatted.
    pub last: Option<Lsn>,
    /// LSN the next checkpoint gets.
    pub head: Lsn,
    /// Time of the last checkpoint.
    pub time: Option<i64>,
}

/// How far a log is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To where the checkpoints end: for a log that is not needed. If one of the anchors is lost it may be the one that
    /// counted, and the other leads to where a part of the ring has been written over; then as [`Reach::Ring`].
    End,
    /// To where the checkpoints end, whatever the anchors are: for a log that somebody may be writing to.
    Written,
    /// And through the rest of the ring, whether that is the end: a later checkpoint in there was written when one at the
    /// end had committed, so that one is damaged.
    Ring,
}

/// Reads a log and changes nothing: for tools. What it returns need not be durable.
pub fn recover(place: &LogPlace, reach: Reach) -> Result<Recovered, LogError> {
    Ok(Scan::run(place, reach)?.recovered)
}

/// What is wrong with one of the two anchors, if the other one counts: `Some` is damage, though it costs nothing yet.
pub fn damaged_anchor(place: &LogPlace) -> Option<&'static str> {
    let ring = place.ring().ok()?;
    Anchor::read_both(place, &ring).ok()?.damaged
}

/// A scan's result, with what appending needs.
pub(crate) struct Scan {
    pub recovered: Recovered,
    pub ring: Ring,
    pub anchor: Anchor,
    pub has_both_anchors: bool,
    /// Place and chain of the next checkpoint.
    pub next: Link,
    /// LSNs of the checkpoints found.
    pub starts: VecDeque<Lsn>,
    /// What lies at the head may be the header of an attempt that did not commit.
    pub torn_attempt: bool,
}

impl Scan {
    pub fn run(place: &LogPlace, reach: Reach) -> Result<Self, LogError> {
        let ring = place.ring()?;
        let Anchors { anchor, has_both, .. } = Anchor::read_both(place, &ring)?;
        let mut reader = Reader::new(place, ring, anchor.tail);
        let mut changes = Changes::default();
        let mut pending = Vec::new();
        let mut starts = VecDeque::new();
        let mut time = None;
        // The chain starts with the first header found.
        let mut link: Option<Link> = None;
        let mut head = anchor.tail;
        let mut torn_attempt = false;

        while head.0 < reader.end.0 {
            let unit = reader.get(head, ring.unit)?;
            let header = match Header::decode(place, unit) {
                Header::Valid(header) if expected(&header, head, link) => header,
                other => {
                    if starts.is_empty() {
                        Self::check_empty(&anchor, &other)?;
                    }
                    torn_attempt = other.may_be_attempt_at(head);
                    break;
                }
            };
            let left = reader.end.0 - head.0;
            let body_len = header.body_len.get();
            if body_len > ring.capacity || padded(body_len, ring.unit) > left {
                return Err(impossible(head, "body length", body_len));
            }
            if header.sequence.get() > POSITION_MAX {
                return Err(impossible(head, "sequence", header.sequence.get()));
            }
            let size = padded(body_len, ring.unit);
            let body_at = (head.0 - anchor.tail.0) as usize + CheckpointHeader::SIZE;
            reader.get(head, size)?;
            let next =
                Link { lsn: Lsn(head.0 + size), sequence: header.sequence.get() + 1, previous_crc: header.crc.get() };
            let body_crc = crc32c::crc32c(&reader.bytes[body_at..][..body_len as usize]);
            if body_crc != header.body_crc.get() {
                if starts.is_empty() {
                    Self::check_empty(&anchor, &Header::Valid(header))?;
                }
                torn_attempt = true;
                break;
            }
            changes.begin(head);
            let end = body_at + body_len as usize;
            apply_escape(
                &mut reader.bytes[body_at - CheckpointHeader::SIZE..end],
                ring.unit as usize,
                header.escape.get(),
            );
            let body = &reader.bytes[..end];
            parse(&header, body, body_at, ring.granule, &mut changes, &mut pending)?;
            time = Some(header.time.get());
            starts.push_back(head);
            link = Some(next);
            head = next.lsn;
        }
        if reach == Reach::Ring || reach == Reach::End && !has_both {
            check_end(place, &ring, head, reader.end)?;
        }
        place.check_known_end(head, reach)?;
        let mut bytes = reader.bytes;
        // What was read ahead of the head, and maybe of a checkpoint that does not count.
        bytes.truncate((head.0 - anchor.tail.0) as usize);
        bytes.shrink_to_fit();
        let recovered = Recovered {
            overlay: changes.into_overlay(place.block_size, bytes),
            pending,
            checkpoints: starts.len() as u64,
            bytes: head.0 - anchor.tail.0,
            tail: anchor.tail,
            last: starts.back().copied(),
            head,
            time,
        };
        let next = link.unwrap_or(Link { lsn: head, sequence: 0, previous_crc: 0 });
        Ok(Self { recovered, ring, anchor, has_both_anchors: has_both, next, starts, torn_attempt })
    }

    /// No valid checkpoint at the tail: right only in a log just formatted, whose first place held zeros (invariant 4).
    fn check_empty(anchor: &Anchor, found: &Header) -> Result<(), LogError> {
        if anchor.sequence > 1 {
            return Err(impossible(anchor.tail, "tail without a checkpoint; anchor sequence", anchor.sequence));
        }
        match found {
            // A later lap: the anchor that moved the tail since is lost.
            Header::Valid(header) if header.lsn.get() != anchor.tail.0 => {
                Err(impossible(anchor.tail, "checkpoint at the tail; its lsn", header.lsn.get()))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) enum Header {
    /// Ours and intact, but not necessarily in its place.
    Valid(CheckpointHeader),
    /// The magic is right, the rest is not.
    Damaged,
    Absent,
}

impl Header {
    pub fn decode(place: &LogPlace, bytes: &[u8]) -> Self {
        let header = *CheckpointHeader::read(bytes);
        if header.magic.get() != CHECKPOINT_MAGIC {
            return Self::Absent;
        }
        let mut unsealed = [0; CheckpointHeader::SIZE];
        unsealed.copy_from_slice(&bytes[..CheckpointHeader::SIZE]);
        CheckpointHeader::read_mut(&mut unsealed).crc = 0.into();
        if header.crc.get() != crc32c::crc32c(&unsealed) || header.volume != place.volume {
            return Self::Damaged;
        }
        Self::Valid(header)
    }

    /// Whether this could become a valid header at `head` if sectors missing now appeared. An earlier lap's header,
    /// intact, never could; it is what the head of a log that has wrapped usually finds.
    fn may_be_attempt_at(&self, head: Lsn) -> bool {
        match self {
            Self::Valid(header) => header.lsn.get() == head.0,
            Self::Damaged => true,
            Self::Absent => false,
        }
    }
}

/// Whether a header is the one that belongs at `lsn`. Without a link it is the first, exempt from the chain.
fn expected(header: &CheckpointHeader, lsn: Lsn, link: Option<Link>) -> bool {
    header.lsn.get() == lsn.0
        && link
            .is_none_or(|link| header.previous_crc.get() == link.previous_crc && header.sequence.get() == link.sequence)
}

/// Verifies a body, from `at` to the end of `bytes`, and lists its changes and pending frees. The checksums were right,
/// so anything wrong here was written by no correct engine.
pub(crate) fn parse(
    header: &CheckpointHeader,
    bytes: &[u8],
    mut at: usize,
    granule: usize,
    changes: &mut Changes,
    pending: &mut Vec<(FsBlock, u32)>,
) -> Result<(), LogError> {
    let lsn = Lsn(header.lsn.get());
    for index in 0..header.record_count.get() {
        let Some(raw) = bytes[at..].get(..RecordHeader::SIZE) else {
            return Err(impossible(lsn, "record count (the body ends first)", u64::from(index) + 1));
        };
        let raw = RecordHeader::read(raw);
        let (block, mask) = (raw.block.get(), raw.mask.get());
        if mask == 0 {
            return Err(impossible(lsn, "record without granules; its block", block));
        }
        let len = RecordHeader::SIZE + mask.count_ones() as usize * granule;
        if bytes.len() - at < len {
            return Err(impossible(lsn, "record mask (the body ends first)", mask));
        }
        changes.record(block, at);
        at += len;
    }
    // Counts have 32 bits, so neither the products nor the sum can overflow.
    let revoke_len = u64::from(header.revoke_count.get()) * size_of::<u64>() as u64;
    let pending_len = u64::from(header.pending_count.get()) * PendingFree::SIZE as u64;
    if revoke_len + pending_len != (bytes.len() - at) as u64 {
        return Err(impossible(lsn, "revokes and pending frees; their bytes", revoke_len + pending_len));
    }
    let (revokes, pendings) = bytes[at..].split_at(revoke_len as usize);
    for number in revokes.chunks_exact(size_of::<u64>()) {
        changes.revoke(u64::from_le_bytes(number.try_into().expect("chunks of 8 bytes")));
    }
    // Only the last checkpoint's count.
    pending.clear();
    for raw in pendings.chunks_exact(PendingFree::SIZE).map(PendingFree::read) {
        let (start, length) = (raw.start.get(), raw.length.get());
        if length == 0 || start.checked_add(u64::from(length)).is_none() {
            return Err(impossible(lsn, "pending free; its start", start));
        }
        pending.push((FsBlock(start), length));
    }
    Ok(())
}

/// Nothing from `head` to `end` may be the header of a later checkpoint.
fn check_end(place: &LogPlace, ring: &Ring, head: Lsn, end: Lsn) -> Result<(), LogError> {
    let mut at = head;
    let mut window = vec![0; (end.0 - head.0).min(WINDOW_BYTES_MAX) as usize];
    while at < end {
        let length = (end.0 - at.0).min(window.len() as u64) as usize;
        read_ring(place, ring, at, &mut window[..length])?;
        for unit in window[..length].chunks(ring.unit as usize) {
            if let Header::Valid(header) = Header::decode(place, unit)
                && header.lsn.get() > head.0
                && ring.offset(Lsn(header.lsn.get())) == ring.offset(at)
            {
                return Err(impossible(
                    head,
                    "end of the checkpoints, but a later one follows; its lsn",
                    header.lsn.get(),
                ));
            }
            at.0 += ring.unit;
        }
    }
    Ok(())
}

/// Reads a piece of the ring.
pub(crate) fn read_ring(place: &LogPlace, ring: &Ring, from: Lsn, buf: &mut [u8]) -> Result<(), LogError> {
    let (mut lsn, mut rest, mut requests) = (from, buf, Vec::new());
    while !rest.is_empty() {
        let size = ring.before_wrap(lsn, rest.len().min(REQUEST_BYTES) as u64);
        let (buf, after) = rest.split_at_mut(size as usize);
        requests.push(ReadRequest { offset: ring.offset(lsn), buf });
        (rest, lsn) = (after, Lsn(lsn.0 + size));
    }
    let read = place.device.read_many(&mut requests);
    read.map_err(|source| LogError::Io { op: "read", offset: ring.offset(from), source })
}

/// Largest single read request.
const REQUEST_BYTES: usize = 1 << 20;
/// The first window is one request, for a log left by a clean unmount holds one checkpoint; it doubles up to this many
/// bytes in flight.
const WINDOW_BYTES_MAX: u64 = 8 << 20;

/// Reads the ring from the tail on and keeps what it has read, at most one lap, for the overlay.
struct Reader<'a> {
    place: &'a LogPlace,
    ring: Ring,
    tail: Lsn,
    /// One lap from the tail: nothing is read beyond.
    end: Lsn,
    /// The bytes from `tail` on.
    bytes: Vec<u8>,
    window: u64,
}

impl<'a> Reader<'a> {
    fn new(place: &'a LogPlace, ring: Ring, tail: Lsn) -> Self {
        let end = Lsn(tail.0 + ring.capacity);
        Self { place, ring, tail, end, bytes: Vec::new(), window: REQUEST_BYTES as u64 }
    }

    /// `size` bytes from `lsn`, both in whole units, not beyond `end`.
    fn get(&mut self, lsn: Lsn, size: u64) -> Result<&[u8], LogError> {
        assert!(lsn >= self.tail && lsn.0 + size <= self.end.0);
        let from = (lsn.0 - self.tail.0) as usize;
        let missing = (from as u64 + size).saturating_sub(self.bytes.len() as u64);
        if missing > 0 {
            let size = missing.max(self.window).min(self.ring.capacity - self.bytes.len() as u64);
            self.window = (self.window * 2).min(WINDOW_BYTES_MAX);
            self.fill(size as usize)?;
        }
        Ok(&self.bytes[from..][..size as usize])
    }

    /// Reads `size` more bytes.
    fn fill(&mut self, size: usize) -> Result<(), LogError> {
        let len = self.bytes.len();
        self.bytes.resize(len + size, 0);
        read_ring(self.place, &self.ring, Lsn(self.tail.0 + len as u64), &mut self.bytes[len..])
    }
}
