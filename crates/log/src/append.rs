//! Writing: formatting, commits and anchors. The crash argument is in the crate's header.

use crate::anchor::{Anchor, Emptied};
use crate::checkpoint::{Checkpoint, Link, Sealed};
use crate::place::{LogError, LogPlace, POSITION_MAX, Ring, impossible};
use crate::recover::{Reach, Recovered, Scan};
use myriad_device::{WriteRequest, is_full};
use myriad_format::Lsn;
use myriad_format::log::{CHECKPOINT_MAGIC, CheckpointHeader};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes an empty log: nothing in it is valid, and each of its two anchors suffices. `first_lsn`, in whole units, is the LSN
/// of the first checkpoint; unless the volume id is new or [`erase`] has seen the ring, it must lie beyond every LSN used
/// before, and outside of what a log that is there needs: at its head. A crash in here leaves that log, or the empty one.
pub fn format(place: &LogPlace, first_lsn: Lsn) -> Result<(), LogError> {
    let ring = place.ring()?;
    if first_lsn.0 % ring.unit != 0 || first_lsn.0 > POSITION_MAX {
        return Err(LogError::Place { field: "first lsn", value: first_lsn.0 });
    }
    // A log that is there already stays what it was until the new anchor lies over the one that counts. What does not
    // count, and what lies where the first checkpoint will, goes before.
    let slot = Anchor::read(place, &ring).map_or(0, |anchor| anchor.slot);
    let anchor = Anchor { slot, sequence: 1, tail: first_lsn };
    let twin = anchor.twin();
    let zeros = vec![0; ring.unit as usize];
    let writes = [
        WriteRequest { offset: ring.offset(first_lsn), parts: &[&zeros] },
        WriteRequest { offset: twin.offset(place, &ring), parts: &[&zeros] },
    ];
    let failed = |source| LogError::Io { op: "format", offset: place.start, source };
    let device = &place.device;
    device.write_many(&writes).and_then(|()| device.flush()).map_err(failed)?;
    device.write_durable(anchor.offset(place, &ring), &anchor.encode(place, &ring)).map_err(failed)?;
    // Nothing of the old log counts any more. The twin waited for that: beside an old anchor of a higher sequence it would
    // be nothing, but beside one of sequence 1 it could be taken for the one that counts, before the place of the first
    // checkpoint is zeros.
    device.write(twin.offset(place, &ring), &twin.encode(place, &ring)).map_err(failed)?;
    if first_lsn.0 > 0 {
        // Should both anchors be lost, a search must not find what counts no more.
        erase(place)?;
    }
    device.flush().map_err(failed)
}

/// Makes a log unreadable, so that it may be written over: no anchor counts any more, and what lies in their places says so
/// ([`emptied`]). All that counts of it must be home. The one that counts goes last.
pub fn forget(place: &LogPlace, what: Emptied) -> Result<(), LogError> {
    let ring = place.ring()?;
    let failed = |source| LogError::Io { op: "erase", offset: place.start, source };
    for slot in Anchor::slots(place, &ring) {
        let done = place.device.write(place.start + slot * ring.unit, &what.encode(place, &ring));
        done.and_then(|()| place.device.flush()).map_err(failed)?;
    }
    Ok(())
}

/// What [`forget`] left where no anchor counts: the ring is not to be searched.
pub fn emptied(place: &LogPlace) -> Option<Emptied> {
    let ring = place.ring().ok()?;
    Emptied::read(place, &ring)
}

/// Erases what looks like checkpoints of this volume in a place where no log has been made yet: for a volume id that may
/// have been used here before. Their places become zeros, and so does what cannot be read; everything else stays as it is. Returns how
/// many there were.
pub fn erase(place: &LogPlace) -> Result<u64, LogError> {
    /// Read at a time.
    const WINDOW: u64 = 1 << 20;
    let ring = place.ring()?;
    let failed = |op| move |source| LogError::Io { op, offset: place.start, source };
    let zeros = vec![0; ring.unit as usize];
    let mut erased = 0;
    let mut window = vec![0; WINDOW.min(ring.capacity) as usize];
    let mut at = 0;
    while at < ring.capacity {
        let length = (ring.capacity - at).min(window.len() as u64) as usize;
        let is_read = place.read(ring.start + at, &mut window[..length]).is_ok();
        for (index, unit) in window[..length].chunks_mut(ring.unit as usize).enumerate() {
            let offset = ring.start + at + index as u64 * ring.unit;
            let is_unreadable = !is_read && place.read(offset, unit).is_err();
            let header = CheckpointHeader::read(unit);
            if is_unreadable || header.magic.get() == CHECKPOINT_MAGIC && header.volume == place.volume {
                place.device.write(offset, &zeros).map_err(failed("erase"))?;
                erased += 1;
            }
        }
        at += length as u64;
    }
    if erased > 0 {
        place.device.flush().map_err(failed("flush"))?;
    }
    Ok(erased)
}

/// An open log.
pub struct Log {
    place: LogPlace,
    ring: Ring,
    /// The anchor that is durable.
    anchor: Anchor,
    /// The promised tail.
    tail: Lsn,
    /// Place and chain of the next checkpoint.
    next: Link,
    /// LSNs of the committed checkpoints from the durable tail on.
    starts: VecDeque<Lsn>,
    poisoned: AtomicBool,
}

impl Log {
    /// Reads the log and makes ready to append. Everything it returns is durable. `reach`: [`Reach::Ring`] if what it
    /// returns is needed.
    pub fn open(place: LogPlace, reach: Reach) -> Result<(Self, Recovered), LogError> {
        // What we are about to read may still sit in a volatile cache, if a process died and not the machine. Were we
        // to believe an anchor there, write over the space it frees, and then lose power, the older anchor would name
        // checkpoints that are gone; and home writes must not overtake a commit record either. Flush, then believe.
        let flushed = place.device.flush();
        flushed.map_err(|source| LogError::Io { op: "flush", offset: place.start, source })?;
        let scan = Scan::run(&place, reach)?;
        if scan.torn_attempt {
            // A header at the head whose body is incomplete: see "Earlier torn attempt" in the crate's header. The
            // unit is outside the live part, or its header would have been the tail's.
            let offset = scan.ring.offset(scan.next.lsn);
            let erased = place.device.write_durable(offset, &vec![0; scan.ring.unit as usize]);
            erased.map_err(|source| LogError::Io { op: "write", offset, source })?;
        }
        if !scan.has_both_anchors {
            // One is lost, or was never written: a log has two, so that one bad block costs nothing.
            let twin = scan.anchor.twin();
            let (offset, bytes) = (twin.offset(&place, &scan.ring), twin.encode(&place, &scan.ring));
            let written = place.device.write_durable(offset, &bytes);
            written.map_err(|source| LogError::Io { op: "write", offset, source })?;
        }
        let log = Self {
            place,
            ring: scan.ring,
            anchor: scan.anchor,
            tail: scan.anchor.tail,
            next: scan.next,
            starts: scan.starts,
            poisoned: AtomicBool::new(false),
        };
        Ok((log, scan.recovered))
    }

    /// Size of the ring in bytes.
    pub fn capacity(&self) -> u64 {
        self.ring.capacity
    }

    /// Largest checkpoint, in bytes with header and padding: half the ring. A larger one could leave so little beside
    /// it that no checkpoint fits, and only another checkpoint lets the tail pass it.
    pub fn checkpoint_max(&self) -> u64 {
        self.ring.capacity / 2 / self.ring.unit * self.ring.unit
    }

    /// Bytes from the durable tail to the head.
    pub fn used(&self) -> u64 {
        self.next.lsn.0 - self.anchor.tail.0
    }

    /// Bytes that one checkpoint ([`Checkpoint::size`]) may take now.
    pub fn room(&self) -> u64 {
        // The durable tail, not the promised one: until an anchor with the new tail is durable, a crash brings the old
        // one back, and it must find its checkpoints.
        (self.ring.capacity - self.used()).min(self.checkpoint_max())
    }

    pub fn place(&self) -> &LogPlace {
        &self.place
    }

    /// What replay would read now, as offsets and lengths in bytes: both anchors, and the ring from the durable tail to the
    /// head and one unit beyond, where it finds no checkpoint.
    pub fn live(&self) -> Vec<(u64, u64)> {
        let length = (self.used() + self.ring.unit).min(self.ring.capacity);
        let first = self.ring.before_wrap(self.anchor.tail, length);
        let mut live = vec![
            (self.place.start, self.ring.start - self.place.start),
            (self.ring.offset(self.anchor.tail), first),
            (self.ring.start, length - first),
        ];
        live.retain(|&(_, length)| length > 0);
        live
    }

    /// LSN the next checkpoint gets.
    pub fn head(&self) -> Lsn {
        self.next.lsn
    }

    /// LSN of the last durable checkpoint.
    pub fn last(&self) -> Option<Lsn> {
        self.starts.back().copied()
    }

    /// The durable tail: no replay starts before it. Only what lies before *this* may be forgotten.
    pub fn tail(&self) -> Lsn {
        self.anchor.tail
    }

    /// The tail as last set; durable with the next commit or [`Log::write_anchor`].
    pub fn tail_promised(&self) -> Lsn {
        self.tail
    }

    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Fixes LSN, header and checksums. Takes the contents of `checkpoint` and leaves it empty; if it does not fit, it
    /// keeps them. A sealed checkpoint that is never written may be dropped.
    pub fn seal(&self, checkpoint: &mut Checkpoint, time: i64) -> Result<Sealed, LogError> {
        self.alive()?;
        assert!(checkpoint.block_size() == self.place.block_size);
        let (needed, room) = (checkpoint.size(), self.room());
        if needed > room {
            return Err(LogError::Full { needed, room });
        }
        Ok(checkpoint.seal(self.place.volume, self.next, time))
    }

    /// Writes all but the first unit. Not durable; and the commit needs no flush for the log's own sake (the body's
    /// checksum is in the header), only for the data and fresh blocks that must precede it.
    pub fn write_body(&self, sealed: &Sealed) -> Result<(), LogError> {
        self.alive()?;
        self.check_turn(sealed);
        let unit = self.ring.unit;
        let (lsn, bytes) = (Lsn(sealed.lsn().0 + unit), &sealed.bytes()[unit as usize..]);
        let (first, second) = bytes.split_at(self.ring.before_wrap(lsn, bytes.len() as u64) as usize);
        self.write(&[(self.ring.offset(lsn), first), (self.ring.start, second)], false)
    }

    /// Writes the first unit, with the anchor if the tail has moved, and flushes. Then the checkpoint is committed.
    pub fn write_commit(&mut self, sealed: &Sealed) -> Result<(), LogError> {
        self.alive()?;
        self.check_turn(sealed);
        let first = &sealed.bytes()[..self.ring.unit as usize];
        self.commit(sealed, &[(self.ring.offset(sealed.lsn()), first)])
    }

    /// Body and commit in one batch and one flush: for a checkpoint that no other write must precede.
    pub fn write_all(&mut self, sealed: &Sealed) -> Result<(), LogError> {
        self.alive()?;
        self.check_turn(sealed);
        let (lsn, bytes) = (sealed.lsn(), sealed.bytes());
        let (first, second) = bytes.split_at(self.ring.before_wrap(lsn, bytes.len() as u64) as usize);
        self.commit(sealed, &[(self.ring.offset(lsn), first), (self.ring.start, second)])
    }

    /// Promises that everything logged before `tail` is home and flushed. Takes effect as far as it can: down to the
    /// start of a checkpoint, at most that of the last durable one (its pending frees must stay findable), and never
    /// backwards. Space is released once the next commit or [`Log::write_anchor`] has made it durable.
    pub fn set_tail(&mut self, tail: Lsn) {
        let after = self.starts.partition_point(|&start| start <= tail);
        if let Some(&start) = after.checked_sub(1).and_then(|index| self.starts.get(index)) {
            self.tail = self.tail.max(start);
        }
    }

    /// Makes the promised tail durable now: when the log is full, and at unmount. Does nothing if it already is.
    pub fn write_anchor(&mut self) -> Result<(), LogError> {
        self.alive()?;
        if let Some(anchor) = self.anchor_due() {
            let bytes = anchor.encode(&self.place, &self.ring);
            self.write(&[(anchor.offset(&self.place, &self.ring), &bytes)], true)?;
            self.anchored(anchor);
        }
        Ok(())
    }

    fn alive(&self) -> Result<(), LogError> {
        if self.is_poisoned() {
            return Err(LogError::Poisoned);
        }
        // Only damage brings them here; one more, and nobody could read the log.
        let end = self.next.lsn.0 + self.ring.capacity;
        let last = self.next.sequence.max(self.anchor.sequence).max(end);
        if last >= POSITION_MAX {
            return Err(impossible(self.next.lsn, "position (none is left beyond it)", last));
        }
        Ok(())
    }

    /// The anchor to write, if the promised tail is ahead of the durable one.
    fn anchor_due(&self) -> Option<Anchor> {
        (self.tail > self.anchor.tail).then(|| self.anchor.next(self.tail))
    }

    /// Invariants 1 and 2: it was sealed for the place after the last commit, and stays outside the live part.
    fn check_turn(&self, sealed: &Sealed) {
        assert!(sealed.link == self.next, "sealed before another checkpoint committed");
        assert!(sealed.size() <= self.room(), "room never shrinks between two commits");
    }

    fn commit(&mut self, sealed: &Sealed, pieces: &[(u64, &[u8])]) -> Result<(), LogError> {
        if let Some(anchor) = self.anchor_due() {
            let bytes = anchor.encode(&self.place, &self.ring);
            let mut all = pieces.to_vec();
            all.push((anchor.offset(&self.place, &self.ring), &bytes));
            self.write(&all, true)?;
            self.anchored(anchor);
        } else {
            self.write(pieces, true)?;
        }
        self.starts.push_back(sealed.lsn());
        self.next = Link {
            lsn: Lsn(sealed.lsn().0 + sealed.size()),
            sequence: sealed.link.sequence + 1,
            previous_crc: sealed.crc,
        };
        assert!(self.used() <= self.ring.capacity);
        Ok(())
    }

    /// An anchor has become durable: what lies before its tail is free.
    fn anchored(&mut self, anchor: Anchor) {
        self.anchor = anchor;
        while self.starts.front().is_some_and(|&start| start < anchor.tail) {
            self.starts.pop_front();
        }
        assert!(self.starts.front() == Some(&anchor.tail), "the tail is a committed checkpoint");
    }

    /// Writes the pieces that are not empty, all in flight together. An error poisons the log, unless the host had no room for
    /// a write: what else arrived is part of a checkpoint that does not count yet, and the next attempt writes the same again.
    fn write(&self, pieces: &[(u64, &[u8])], durable: bool) -> Result<(), LogError> {
        let device = &self.place.device;
        let pieces: Vec<_> = pieces.iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        let Some(&&(offset, first)) = pieces.first() else { return Ok(()) };
        let failed = |source| {
            self.poisoned.store(true, Ordering::Relaxed);
            LogError::Io { op: "write", offset, source }
        };
        let written: io::Result<()> = if pieces.len() > 1 {
            let parts: Vec<[&[u8]; 1]> = pieces.iter().map(|(_, bytes)| [*bytes]).collect();
            let requests: Vec<_> =
                pieces.iter().zip(&parts).map(|((offset, _), parts)| WriteRequest { offset: *offset, parts }).collect();
            device.write_many(&requests)
        } else if durable {
            device.write_durable(offset, first)
        } else {
            device.write(offset, first)
        };
        written
            .map_err(|source| if is_full(&source) { LogError::HostFull { offset, source } } else { failed(source) })?;
        if pieces.len() > 1 && durable { device.flush().map_err(failed) } else { Ok(()) }
    }
}
