//! What was done to the devices of a volume, in one order, and the states that losing power can leave.
//!
//! Each device has a volatile cache of its own: at any moment all that it flushed is there, and of what came after its
//! last flush anything may be, whatever the other device has done since. `myriad_device::CrashImages` does the same for
//! one device; here two are cut at the same moment, and each state has a hash, so that none is looked at twice.
//!
//! States are counted by their contents. n writes without a flush have 2^n subsets, and runs that begin alike lead to the same
//! states again and again, so a number of states says something only if each is another one. The hash of a state is the sum, over
//! all sectors that differ from the base, of a mixture of device, sector and contents: it is kept up to date event by event, and
//! a subset costs what it contains. A state that was seen before is judged again only if the judgement may differ (other
//! operations so far, or another moment). For all this the engine must write the same in every run, so the nonce of a mount comes
//! from the seed. Two states that differ in bytes that nobody reads count as two.

use crate::setup::Devices;
use myriad_device::{BlockDevice, Event, OverlayDevice, Timed};
use myriad_sim::compare::hash;
use myriad_sim::model::content::first_not_zero;
use myriad_sim::pattern::mix;
use myriad_sim::rng::Rng;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// What disks write as one.
pub const SECTOR: usize = 512;

/// One event, on one of the devices.
pub struct Traced {
    /// 0: the volume's, 1: the log's.
    pub device: usize,
    pub event: Event,
    /// Hashes of the sectors that it leaves, of a discard zeros; and the number of the first of them.
    sectors: Vec<u64>,
    first: u64,
}

/// A recording of all devices of a volume.
pub struct Trace {
    bases: Vec<Arc<dyn BlockDevice>>,
    pub events: Vec<Traced>,
}

/// A write or a discard that reached the medium, or the part of it that did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the event.
    pub event: usize,
    pub part: Part,
}

/// Sectors of a write or of a discard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// The first so many.
    Head(usize),
    /// All but the first so many.
    Tail(usize),
    /// Each or not, by this seed.
    Scattered(u64),
}

impl Part {
    fn arrived(&self, count: usize) -> Vec<bool> {
        match *self {
            Self::Whole => vec![true; count],
            Self::Head(head) => (0..count).map(|index| index < head).collect(),
            Self::Tail(head) => (0..count).map(|index| index >= head).collect(),
            Self::Scattered(seed) => {
                let mut rng = Rng::new(seed);
                (0..count).map(|_| rng.percent(50)).collect()
            }
        }
    }
}

impl Traced {
    /// Has this part of it reach an image.
    fn apply(&self, image: &OverlayDevice, part: &Part) -> io::Result<()> {
        match (&self.event, part) {
            (Event::Flush, _) => return Ok(()),
            (Event::Write { offset, bytes }, Part::Whole) => return image.write(*offset, bytes),
            (Event::Discard { offset, length }, Part::Whole) => return image.discard(*offset, *length),
            _ => {}
        }
        for (index, _) in part.arrived(self.sectors.len()).into_iter().enumerate().filter(|(_, arrived)| *arrived) {
            let at = (self.first + index as u64) * SECTOR as u64;
            match &self.event {
                Event::Write { bytes, .. } => image.write(at, &bytes[index * SECTOR..][..SECTOR])?,
                _ => image.discard(at, SECTOR as u64)?,
            }
        }
        Ok(())
    }
}

impl Trace {
    /// From what the recorders of the devices saw, on the clock they share, since the devices were as `bases`.
    pub fn new(bases: Vec<Arc<dyn BlockDevice>>, recorded: Vec<Vec<Timed>>) -> Self {
        let mut merged: Vec<(u64, usize, Event)> = recorded
            .into_iter()
            .enumerate()
            .flat_map(|(device, events)| events.into_iter().map(move |timed| (timed.tick, device, timed.event)))
            .collect();
        merged.sort_by_key(|(tick, ..)| *tick);
        let traced = |(_, device, event): (u64, usize, Event)| {
            let (first, sectors) = match &event {
                Event::Write { offset, bytes } => {
                    assert!(offset % SECTOR as u64 == 0 && bytes.len() % SECTOR == 0, "the engine writes sectors");
                    (offset / SECTOR as u64, bytes.chunks(SECTOR).map(sector_hash).collect())
                }
                Event::Discard { offset, length } => {
                    // Of a sector of which it covers a part nothing goes.
                    let (first, end) = (offset.div_ceil(SECTOR as u64), (offset + length) / SECTOR as u64);
                    (first, vec![0; end.saturating_sub(first) as usize])
                }
                Event::Flush => (0, Vec::new()),
            };
            Traced { device, event, sectors, first }
        };
        Self { bases, events: merged.into_iter().map(traced).collect() }
    }

    /// Sectors that the event writes or discards.
    pub fn sector_count(&self, event: usize) -> usize {
        self.events[event].sectors.len()
    }

    /// A cursor before the first event.
    pub fn cursor(&self) -> Cursor<'_> {
        let reached: Vec<OverlayDevice> = self.bases.iter().map(|base| OverlayDevice::new(base.clone())).collect();
        Cursor {
            durable: reached.iter().map(OverlayDevice::fork).collect(),
            reached,
            unflushed: Vec::new(),
            point: 0,
            durable_hashes: HashMap::new(),
            durable_sum: 0,
            trace: self,
        }
    }
}

fn sector_hash(bytes: &[u8]) -> u64 {
    if first_not_zero(bytes).is_none() { 0 } else { hash(1, bytes) | 1 }
}

/// What a sector with these contents adds to the hash of its state.
fn weight(device: usize, sector: u64, content: u64) -> u128 {
    let place = mix(sector << 1 | device as u64);
    u128::from(mix(place ^ content)) << 64 | u128::from(mix(place.rotate_left(32) ^ mix(content)))
}

/// Walks a trace forward and makes states at each point.
pub struct Cursor<'a> {
    trace: &'a Trace,
    /// All events before `point`.
    reached: Vec<OverlayDevice>,
    /// What is sure to be there.
    durable: Vec<OverlayDevice>,
    /// Hash of each sector that was ever flushed differently from the base.
    durable_hashes: HashMap<(usize, u64), u64>,
    durable_sum: u128,
    /// Events that are not sure to be there.
    unflushed: Vec<usize>,
    point: usize,
}

impl Cursor<'_> {
    pub fn point(&self) -> usize {
        self.point
    }

    /// Events since the last flush of their device, oldest first.
    pub fn unflushed(&self) -> &[usize] {
        &self.unflushed
    }

    /// Applies the next event. False at the end of the trace.
    pub fn advance(&mut self) -> io::Result<bool> {
        let Some(traced) = self.trace.events.get(self.point) else { return Ok(false) };
        let device = &traced.device;
        match &traced.event {
            Event::Flush => {
                let of_device = |event: &usize| self.trace.events[*event].device == *device;
                let (flushed, rest): (Vec<usize>, Vec<usize>) =
                    self.unflushed.iter().partition(|event| of_device(event));
                self.unflushed = rest;
                let pieces: Vec<Piece> = flushed.into_iter().map(|event| Piece { event, part: Part::Whole }).collect();
                for ((device, sector), content) in self.changes(&pieces)? {
                    let old = self.content(device, sector)?;
                    self.durable_sum = self
                        .durable_sum
                        .wrapping_add(weight(device, sector, content))
                        .wrapping_sub(weight(device, sector, old));
                    self.durable_hashes.insert((device, sector), content);
                }
                self.durable[*device] = self.reached[*device].fork();
            }
            _ => {
                traced.apply(&self.reached[*device], &Part::Whole)?;
                self.unflushed.push(self.point);
            }
        }
        self.point += 1;
        Ok(true)
    }

    /// Everything before this point, as pieces.
    pub fn all(&self) -> Vec<Piece> {
        self.unflushed.iter().map(|&event| Piece { event, part: Part::Whole }).collect()
    }

    /// The state in which of the unflushed events these arrived, in the order of the trace.
    pub fn state(&self, pieces: &[Piece]) -> io::Result<Devices> {
        let images: Vec<OverlayDevice> = self.durable.iter().map(OverlayDevice::fork).collect();
        for piece in pieces {
            let traced = &self.trace.events[piece.event];
            traced.apply(&images[traced.device], &piece.part)?;
        }
        let mut images = images.into_iter().map(|image| Arc::new(image) as Arc<dyn BlockDevice>);
        Ok(Devices { main: images.next().expect("a volume has a device"), log: images.next() })
    }

    /// Hash of that state's contents: equal contents, equal hash, however they came about.
    pub fn state_hash(&self, pieces: &[Piece]) -> io::Result<u128> {
        let mut sum = self.durable_sum;
        for ((device, sector), content) in self.changes(pieces)? {
            let old = self.content(device, sector)?;
            sum = sum.wrapping_add(weight(device, sector, content)).wrapping_sub(weight(device, sector, old));
        }
        Ok(sum)
    }

    /// Sectors that the pieces leave changed, and their hashes.
    fn changes(&self, pieces: &[Piece]) -> io::Result<HashMap<(usize, u64), u64>> {
        let mut changes = HashMap::new();
        for Piece { event, part } in pieces {
            let Traced { device, sectors, first, .. } = &self.trace.events[*event];
            let arrived = part.arrived(sectors.len()).into_iter().zip(sectors).zip(*first..);
            changes.extend(
                arrived
                    .filter(|((arrived, _), _)| *arrived)
                    .map(|((_, content), sector)| ((*device, sector), *content)),
            );
        }
        Ok(changes)
    }

    /// Hash of a sector as flushed.
    fn content(&self, device: usize, sector: u64) -> io::Result<u64> {
        if let Some(content) = self.durable_hashes.get(&(device, sector)) {
            return Ok(*content);
        }
        let mut bytes = [0; SECTOR];
        self.trace.bases[device].read(sector * SECTOR as u64, &mut bytes)?;
        Ok(sector_hash(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_device::{MemoryDevice, RecordingDevice};
    use std::collections::{HashMap, HashSet};

    fn put(device: &dyn BlockDevice, sector: u64, text: &str) {
        let bytes: Vec<u8> = text.bytes().flat_map(|letter| [letter; SECTOR]).collect();
        device.write(sector * SECTOR as u64, &bytes).unwrap();
    }

    fn show(device: &Arc<dyn BlockDevice>) -> String {
        let mut bytes = vec![0; 6 * SECTOR];
        device.read(0, &mut bytes).unwrap();
        bytes.chunks(SECTOR).map(|sector| if sector[0] == 0 { '-' } else { char::from(sector[0]) }).collect()
    }

    /// Two devices: 0 and 1 write, 1 flushes, both write.
    fn sample() -> Trace {
        let clock = Arc::default();
        let one = RecordingDevice::with_clock(MemoryDevice::new(6 * SECTOR as u64), Arc::clone(&clock));
        let other = RecordingDevice::with_clock(MemoryDevice::new(6 * SECTOR as u64), clock);
        let bases: Vec<Arc<dyn BlockDevice>> =
            vec![Arc::new(one.inner().clone_image()), Arc::new(other.inner().clone_image())];
        put(&one, 0, "ab");
        put(&other, 0, "x");
        other.flush().unwrap();
        put(&one, 1, "B");
        put(&other, 1, "yz");
        Trace::new(bases, vec![one.timed_snapshot(), other.timed_snapshot()])
    }

    #[test]
    fn each_device_is_at_its_own_point() {
        let trace = sample();
        let mut cursor = trace.cursor();
        while cursor.advance().unwrap() {}
        assert_eq!(cursor.unflushed(), [0, 3, 4]);
        let mut seen = HashSet::new();
        for mask in 0..8 {
            let pieces: Vec<Piece> = cursor
                .all()
                .into_iter()
                .enumerate()
                .filter(|(bit, _)| mask >> bit & 1 == 1)
                .map(|(_, piece)| piece)
                .collect();
            let devices = cursor.state(&pieces).unwrap();
            seen.insert(format!("{} {}", show(&devices.main), show(&devices.log.unwrap())));
        }
        let expected = ["------", "ab----", "-B----", "aB----"]
            .map(|main| ["x-----", "xyz---"].map(|log| format!("{main} {log}")));
        assert_eq!(seen, expected.into_iter().flatten().collect());
    }

    /// Three sectors are flushed, and discarded.
    fn discarded() -> Trace {
        let device = RecordingDevice::new(MemoryDevice::new(6 * SECTOR as u64));
        let base: Arc<dyn BlockDevice> = Arc::new(device.inner().clone_image());
        put(&device, 1, "abc");
        device.flush().unwrap();
        device.discard(SECTOR as u64, 3 * SECTOR as u64).unwrap();
        Trace::new(vec![base], vec![device.timed_snapshot()])
    }

    /// A discard arrived as a whole or not at all, though nobody promises that of it.
    #[test]
    fn a_discard_arrives_in_parts() {
        let trace = discarded();
        assert_eq!(trace.sector_count(2), 3);
        let mut cursor = trace.cursor();
        while cursor.advance().unwrap() {}
        for (part, expected) in [(Part::Whole, "------"), (Part::Head(1), "--bc--"), (Part::Tail(1), "-a----")] {
            let pieces = [Piece { event: 2, part }];
            assert_eq!(show(&cursor.state(&pieces).unwrap().main), expected, "{pieces:?}");
        }
    }

    #[test]
    fn equal_contents_have_equal_hashes_and_no_others() {
        hashes_of(&sample());
        hashes_of(&discarded());
    }

    /// Looks at all states of a trace.
    fn hashes_of(trace: &Trace) {
        let mut cursor = trace.cursor();
        let mut by_content: HashMap<String, u128> = HashMap::new();
        let mut hashes = HashSet::new();
        loop {
            let all = cursor.all();
            for mask in 0..1_u32 << all.len() {
                for part in [Part::Whole, Part::Head(1), Part::Tail(1), Part::Scattered(7)] {
                    let kept = all.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
                    let pieces: Vec<Piece> =
                        kept.map(|(_, piece)| Piece { event: piece.event, part: part.clone() }).collect();
                    let devices = cursor.state(&pieces).unwrap();
                    let shown = [Some(&devices.main), devices.log.as_ref()].map(|device| device.map(show));
                    let content = format!("{shown:?}");
                    let hash = cursor.state_hash(&pieces).unwrap();
                    assert_eq!(*by_content.entry(content).or_insert(hash), hash);
                    hashes.insert(hash);
                }
            }
            if !cursor.advance().unwrap() {
                break;
            }
        }
        assert_eq!(hashes.len(), by_content.len());
        assert!(hashes.len() > 5);
    }
}
