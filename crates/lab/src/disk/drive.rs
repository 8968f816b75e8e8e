//! A rotating disk: an arm and platters, a buffer that reads ahead, and, if it is on, a write cache.
//!
//! The drive does one thing at a time with its arm. The host waits for what it asked; between two of its requests, and while data crosses
//! the interface, the arm goes on by itself: first it reads ahead of the last read, then it writes out what the cache holds, nearest
//! first in the direction of the numbers (C-LOOK).
//!
//! Invariants
//!   1. `arm_free_ns` is when the arm has finished what it does; nothing begins before. It may lie ahead of the host's clock.
//!   2. Dirty ranges of the cache never overlap or touch: neighbours are one range.
//!   3. What the read-ahead holds of a range is dropped when the range is written.

use super::geometry::{Geometry, Place, SECTOR_BYTES};
use super::seek::SeekCurve;
use super::{Model, Request};
use std::collections::BTreeMap;

/// Seek times as makers publish them, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeks {
    pub single_us: u32,
    pub average_us: u32,
    pub full_us: u32,
}

/// What a drive is made of.
#[derive(Clone, Copy, Debug)]
pub struct Mechanics {
    pub heads: u32,
    pub cylinders: u32,
    pub zones: u32,
    /// Of the outermost and the innermost zone.
    pub sectors_per_track: (u32, u32),
    pub revolutions_per_minute: u32,
    pub read_seeks: Seeks,
    pub write_seeks: Seeks,
    pub head_switch_us: u32,
    /// Of the drive's controller, for each request.
    pub overhead_us: u32,
    pub interface_bytes_per_second: u64,
    pub buffer_bytes: u64,
    /// Ranges that the buffer remembers of what was read.
    pub segments: usize,
    /// Writes are answered from the buffer.
    pub write_cache: bool,
}

/// A range of sectors that was read, and how far the arm has read on since.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    end: u64,
    /// Up to here it reads on, unless it is called away.
    limit: u64,
}

/// The last read, if the arm still reads on behind it.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    from: u64,
    since_ns: u64,
}

pub struct Drive {
    geometry: Geometry,
    read_seek: SeekCurve,
    write_seek: SeekCurve,
    head_switch_ns: u64,
    overhead_ns: u64,
    interface_bytes_per_second: u64,
    segment_sectors: u64,
    segment_count: usize,
    /// `None`: writes go to the platters before they are answered.
    cache_sectors: Option<u64>,

    now_ns: u64,
    arm_free_ns: u64,
    /// Where the heads are: track of the last sector that passed.
    at: Place,
    /// Newest last. While `ahead` is set it is about the last of them.
    segments: Vec<Segment>,
    ahead: Option<Ahead>,
    /// Written by the host and not yet on the platters: start to end.
    dirty: BTreeMap<u64, u64>,
    dirty_sectors: u64,
    next_dirty: u64,
}

/// The arm writes out at most this many sectors before it looks for something else to do: 64 KiB.
const DESTAGE_SECTORS: u64 = 128;

impl Drive {
    pub fn new(mechanics: &Mechanics) -> Self {
        let us = |us: u32| u64::from(us) * 1000;
        let curve =
            |seeks: Seeks| SeekCurve::new(seeks.single_us, seeks.average_us, seeks.full_us, mechanics.cylinders);
        let cylinder_switch = mechanics.write_seeks.single_us.max(mechanics.head_switch_us);
        let geometry = Geometry::new(
            mechanics.heads,
            mechanics.cylinders,
            mechanics.zones,
            mechanics.sectors_per_track,
            60_000_000_000 / u64::from(mechanics.revolutions_per_minute),
            (us(mechanics.head_switch_us), us(cylinder_switch)),
        );
        let buffer_sectors = mechanics.buffer_bytes / SECTOR_BYTES;
        // Half the buffer for each, where it has both to do.
        let part = if mechanics.write_cache { buffer_sectors / 2 } else { buffer_sectors };
        Self {
            at: geometry.place(0),
            geometry,
            read_seek: curve(mechanics.read_seeks),
            write_seek: curve(mechanics.write_seeks),
            head_switch_ns: us(mechanics.head_switch_us),
            overhead_ns: us(mechanics.overhead_us),
            interface_bytes_per_second: mechanics.interface_bytes_per_second,
            segment_sectors: part / mechanics.segments as u64,
            segment_count: mechanics.segments,
            cache_sectors: mechanics.write_cache.then_some(part),
            now_ns: 0,
            arm_free_ns: 0,
            segments: Vec::new(),
            ahead: None,
            dirty: BTreeMap::new(),
            dirty_sectors: 0,
            next_dirty: 0,
        }
    }

    /// In bytes.
    pub fn capacity(&self) -> u64 {
        self.geometry.sectors() * SECTOR_BYTES
    }

    fn interface_ns(&self, sectors: u64) -> u64 {
        sectors * SECTOR_BYTES * 1_000_000_000 / self.interface_bytes_per_second
    }

    /// How long the arm takes from `start_ns` until the sectors have passed under the heads, and moves it.
    fn pass(&mut self, start_ns: u64, first: u64, sectors: u64, is_write: bool) -> u64 {
        let target = self.geometry.place(first);
        let distance = target.cylinder.abs_diff(self.at.cylinder);
        let seek_ns = match (distance, target.head == self.at.head) {
            (0, true) => 0,
            (0, false) => self.head_switch_ns,
            _ if is_write => self.write_seek.ns(distance),
            _ => self.read_seek.ns(distance),
        };
        let turn = self.geometry.revolution_ns();
        let ready_ns = start_ns + seek_ns;
        let wait_ns = (self.geometry.phase_ns(target) + turn - ready_ns % turn) % turn;
        self.at = self.geometry.place(first + sectors - 1);
        ready_ns + wait_ns + self.geometry.transfer_ns(first, sectors)
    }

    /// Ends the reading ahead at `ns`: what has passed by then stays, and the heads are there.
    fn call_away(&mut self, ns: u64) {
        let Some(ahead) = self.ahead.take() else { return };
        let segment = self.segments.last_mut().expect("what is read ahead is of the last");
        let passed =
            self.geometry.transferred(ahead.from, segment.limit - ahead.from, ns.saturating_sub(ahead.since_ns));
        segment.end = ahead.from + passed;
        if passed > 0 {
            self.at = self.geometry.place(segment.end - 1);
        }
    }

    /// Lets the arm work by itself until `ns`.
    fn idle_until(&mut self, ns: u64) {
        if self.cache_sectors.is_none() || self.dirty.is_empty() {
            return;
        }
        // Reading ahead comes first, while there is something to read ahead.
        if let Some(ahead) = self.ahead {
            let limit = self.segments.last().expect("the last read").limit;
            let done_ns = ahead.since_ns + self.geometry.transfer_ns(ahead.from, limit - ahead.from);
            if done_ns >= ns {
                return;
            }
            self.call_away(done_ns);
            self.arm_free_ns = self.arm_free_ns.max(done_ns);
        }
        while self.arm_free_ns < ns && self.destage() {}
    }

    /// Writes out the next piece of the cache; `false`: there is none.
    fn destage(&mut self) -> bool {
        let next = self.dirty.range(self.next_dirty..).next().or_else(|| self.dirty.iter().next());
        let Some((&start, &end)) = next else { return false };
        let part = (end - start).min(DESTAGE_SECTORS);
        self.call_away(self.arm_free_ns);
        self.arm_free_ns = self.pass(self.arm_free_ns, start, part, true);
        self.dirty.remove(&start);
        if start + part < end {
            self.dirty.insert(start + part, end);
        }
        self.dirty_sectors -= part;
        self.next_dirty = start + part;
        true
    }

    /// Puts a range into the cache; sectors that it did not hold before.
    fn add_dirty(&mut self, start: u64, end: u64) {
        let (mut from, mut to, mut held) = (start, end, 0);
        let touching: Vec<(u64, u64)> = self
            .dirty
            .range(..=end)
            .rev()
            .take_while(|&(_, &other_end)| other_end >= start)
            .map(|(&start, &end)| (start, end))
            .collect();
        for (other_start, other_end) in touching {
            self.dirty.remove(&other_start);
            held += other_end - other_start;
            (from, to) = (from.min(other_start), to.max(other_end));
        }
        self.dirty.insert(from, to);
        self.dirty_sectors += to - from - held;
    }

    fn is_dirty(&self, start: u64, end: u64) -> bool {
        self.dirty.range(..end).next_back().is_some_and(|(_, &dirty_end)| dirty_end > start)
    }

    fn read(&mut self, first: u64, sectors: u64) {
        let end = first + sectors;
        self.now_ns += self.overhead_ns;
        if self.dirty.range(..=first).next_back().is_some_and(|(_, &dirty_end)| dirty_end >= end) {
            self.now_ns += self.interface_ns(sectors);
            return;
        }
        // What is newer in the cache goes to its place first.
        if self.is_dirty(first, end) {
            self.call_away(self.now_ns.max(self.arm_free_ns));
            self.arm_free_ns = self.arm_free_ns.max(self.now_ns);
        }
        while self.is_dirty(first, end) {
            self.next_dirty = *self.dirty.range(..end).next_back().expect("some of it is dirty").0;
            self.destage();
        }
        if self.ahead.is_some_and(|_| self.newest().is_some_and(|newest| newest.start <= first && first < newest.limit))
        {
            self.stream(end);
        } else if !self.segments.iter().any(|segment| segment.start <= first && end <= segment.end) {
            self.read_anew(first, end);
        }
        // The medium is slower than the interface, so that only the end of the data has still to cross it.
        self.now_ns += self.interface_ns(sectors.min(16));
    }

    fn newest(&self) -> Option<&Segment> {
        self.segments.last()
    }

    /// Waits for a read that the arm is in the middle of, or close before.
    fn stream(&mut self, end: u64) {
        let (Some(ahead), Some(segment)) = (self.ahead, self.newest().copied()) else { return };
        let passes = |sector: u64| ahead.since_ns + self.geometry.transfer_ns(ahead.from, sector - ahead.from);
        let since_ns = if end <= ahead.from {
            return;
        } else if end <= segment.limit || passes(segment.limit) >= self.now_ns {
            passes(end)
        } else {
            // The buffer was full, and the arm stopped: it begins again where it stopped.
            let start_ns = self.now_ns.max(self.arm_free_ns);
            self.call_away(start_ns);
            self.arm_free_ns = self.pass(start_ns, segment.limit, end - segment.limit, false);
            self.arm_free_ns
        };
        self.now_ns = self.now_ns.max(since_ns);
        // Half of a segment for what was read, half for what will be.
        let half = self.segment_sectors / 2;
        let sectors = self.geometry.sectors();
        let segment = self.segments.last_mut().expect("it was there");
        segment.start = segment.start.max(end.saturating_sub(half));
        segment.end = end;
        segment.limit = segment.limit.max(end + half).min(sectors);
        self.ahead = Some(Ahead { from: end, since_ns });
    }

    /// Moves the arm for a read, and lets it read on.
    fn read_anew(&mut self, first: u64, end: u64) {
        let start_ns = self.now_ns.max(self.arm_free_ns);
        self.call_away(start_ns);
        self.arm_free_ns = self.pass(start_ns, first, end - first, false);
        self.now_ns = self.arm_free_ns;
        if self.segments.len() == self.segment_count {
            self.segments.remove(0);
        }
        let start = first.max(end.saturating_sub(self.segment_sectors));
        let limit = (end + self.segment_sectors).min(self.geometry.sectors());
        self.segments.push(Segment { start, end, limit });
        self.ahead = Some(Ahead { from: end, since_ns: self.arm_free_ns });
    }

    fn write(&mut self, first: u64, sectors: u64) {
        let end = first + sectors;
        self.now_ns += self.overhead_ns;
        if self.segments.iter().any(|segment| segment.start < end && first < segment.limit) {
            self.call_away(self.now_ns.max(self.arm_free_ns));
            self.segments.retain(|segment| end <= segment.start || segment.end <= first);
        }
        let Some(room) = self.cache_sectors else {
            // The data crosses the interface while the arm moves.
            let start_ns = self.now_ns.max(self.arm_free_ns);
            self.call_away(start_ns);
            self.arm_free_ns = self.pass(start_ns, first, sectors, true);
            self.now_ns = self.arm_free_ns;
            return;
        };
        self.now_ns += self.interface_ns(sectors);
        self.idle_until(self.now_ns);
        self.add_dirty(first, end);
        while self.dirty_sectors > room {
            // The reading ahead has to stop for this.
            self.call_away(self.now_ns.max(self.arm_free_ns));
            self.arm_free_ns = self.arm_free_ns.max(self.now_ns);
            self.destage();
            self.now_ns = self.arm_free_ns;
        }
    }
}

impl Model for Drive {
    /// The host sorts what it has in flight, as its driver or the drive's queue would, and joins what lies side by side.
    fn serve(&mut self, batch: &[Request]) {
        let mut sorted: Vec<Request> = batch.iter().filter(|request| request.length > 0).copied().collect();
        sorted.sort_by_key(|request| request.offset);
        let here = sorted
            .partition_point(|request| self.geometry.place(request.offset / SECTOR_BYTES).cylinder < self.at.cylinder);
        sorted.rotate_left(here);
        let mut joined: Vec<Request> = Vec::with_capacity(sorted.len());
        for request in sorted {
            match joined.last_mut() {
                Some(last) if last.is_write == request.is_write && last.end() == request.offset => {
                    last.length += request.length;
                }
                _ => joined.push(request),
            }
        }
        for request in joined {
            let first = request.offset / SECTOR_BYTES;
            let sectors = request.end().div_ceil(SECTOR_BYTES) - first;
            self.idle_until(self.now_ns);
            if request.is_write { self.write(first, sectors) } else { self.read(first, sectors) }
        }
    }

    fn flush(&mut self) {
        self.now_ns += self.overhead_ns;
        if !self.dirty.is_empty() {
            self.call_away(self.now_ns.max(self.arm_free_ns));
            self.arm_free_ns = self.arm_free_ns.max(self.now_ns);
        }
        while self.destage() {}
        if self.cache_sectors.is_some() {
            self.now_ns = self.now_ns.max(self.arm_free_ns);
        }
    }

    /// What the arm does meanwhile is worked out when the next request comes.
    fn compute(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }
}

#[cfg(test)]
mod tests;
