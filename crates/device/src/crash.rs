//! The images a power cut can leave behind, from a base image and a trace of what was done to it.
//!
//! ```text
//! point            0        1       2        3       4        5
//! trace              write    write    flush    write   write
//! at point 5       |----- durable, all of it -----|-- unflushed: any subset, one of them torn --|
//! ```
//!
//! Point p is a crash after the first p events: what had returned before the last flush is there, of what came after
//! it anything may be. A discard is unflushed work like a write: its range holds zeros or the old bytes.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::{BlockDevice, Event, OverlayDevice};

/// What disks write as one; no tear is inside it.
const SECTOR_SIZE: u64 = 512;

/// A base image, a trace recorded on top of it, and so every state between.
///
/// Clones share both. Errors of the methods are `InvalidInput` for a point or tear that is not in the trace, and the
/// base's own.
#[derive(Clone)]
pub struct CrashImages {
    base: Arc<dyn BlockDevice>,
    trace: Arc<[Event]>,
}

/// One write of which only a part arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Index into the trace.
    pub event: usize,
    /// Where it tore, in bytes from the start of the write: one of [`CrashImages::tears`].
    pub at_bytes: usize,
    /// The part that arrived.
    pub side: TornSide,
}

/// The part of a torn write that reached the medium; disks write the end first, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TornSide {
    Head,
    Tail,
}

impl CrashImages {
    /// `base` is the device as it was when the recording began, and must not change from here on:
    /// `MemoryDevice::clone_image` makes such a copy for nothing.
    pub fn new(base: Arc<dyn BlockDevice>, trace: impl Into<Arc<[Event]>>) -> Self {
        Self { base, trace: trace.into() }
    }

    /// The trace, whose indexes points and tears refer to.
    pub fn trace(&self) -> &[Event] {
        &self.trace
    }

    /// The last crash point, after all events. Points count from 0, the base itself.
    pub fn point_max(&self) -> usize {
        self.trace.len()
    }

    /// Indexes of the events that are not sure to be there at `point`: all since the last flush before it. None of
    /// them is a flush. A `point` past the last counts as the last.
    pub fn unflushed(&self, point: usize) -> Range<usize> {
        let point = point.min(self.point_max());
        let flush = self.trace[..point].iter().rposition(|event| *event == Event::Flush);
        flush.map_or(0, |index| index + 1)..point
    }

    /// All places where a write can tear, in bytes from its start: the sector boundaries inside it. Empty for what
    /// is not a write.
    pub fn tears(&self, event: usize) -> impl Iterator<Item = usize> + use<> {
        let (offset, len) = match self.trace.get(event) {
            Some(Event::Write { offset, bytes }) => (*offset, bytes.len()),
            _ => (0, 0),
        };
        let first = SECTOR_SIZE - offset % SECTOR_SIZE;
        (first as usize..len).step_by(SECTOR_SIZE as usize)
    }

    /// The image after the first `point` events, in order. Costs the bytes of those events; a [`PrefixCursor`] visits
    /// all points at the cost of the last.
    pub fn prefix(&self, point: usize) -> io::Result<OverlayDevice> {
        let mut cursor = self.cursor();
        cursor.advance_to(point)?;
        Ok(cursor.image())
    }

    /// As [`PrefixCursor::subset`], at `point`.
    pub fn subset(
        &self,
        point: usize,
        keep: impl IntoIterator<Item = bool>,
        torn: Option<Torn>,
    ) -> io::Result<OverlayDevice> {
        let mut cursor = self.cursor();
        cursor.advance_to(point)?;
        cursor.subset(keep, torn)
    }

    /// A cursor at point 0.
    pub fn cursor(&self) -> PrefixCursor {
        let start = OverlayDevice::new(Arc::clone(&self.base));
        PrefixCursor { durable: start.fork(), reached: start, durable_point: 0, point: 0, images: self.clone() }
    }

    /// The bits of `mask`, lowest first, as the `keep` of a subset of up to 64 events.
    pub fn mask(mask: u64) -> impl Iterator<Item = bool> {
        (0..u64::BITS).map(move |bit| mask >> bit & 1 == 1)
    }
}

/// Walks a trace forward, making images at each point. A step costs the bytes of its event; an image costs about a
/// microsecond, a subset the bytes of the events kept.
pub struct PrefixCursor {
    images: CrashImages,
    /// All events before `point`.
    reached: OverlayDevice,
    /// All events before `durable_point`, which follows the last flush before `point`.
    durable: OverlayDevice,
    durable_point: usize,
    point: usize,
}

impl PrefixCursor {
    /// Where the cursor stands: the number of events applied.
    pub fn point(&self) -> usize {
        self.point
    }

    /// Indexes of the events since the last flush before this point.
    pub fn unflushed(&self) -> Range<usize> {
        self.durable_point..self.point
    }

    /// Applies the next event. Answers false at the end of the trace.
    pub fn advance(&mut self) -> io::Result<bool> {
        let Some(event) = self.images.trace.get(self.point) else { return Ok(false) };
        apply(&self.reached, event)?;
        self.point += 1;
        if *event == Event::Flush {
            self.durable = self.reached.fork();
            self.durable_point = self.point;
        }
        Ok(true)
    }

    /// Moves forward to `point`; a point behind the cursor or past the trace is `InvalidInput`.
    pub fn advance_to(&mut self, point: usize) -> io::Result<()> {
        if !(self.point..=self.images.point_max()).contains(&point) {
            let (from, to) = (self.point, self.images.point_max());
            return Err(invalid(format!("crash point {point} is not within {from} to {to}")));
        }
        while self.point < point {
            self.advance()?;
        }
        Ok(())
    }

    /// The image with all events before this point, in order: a crash of the program, not of the power.
    pub fn image(&self) -> OverlayDevice {
        self.reached.fork()
    }

    /// The durable image and those unflushed events for which `keep` says true, in order. `keep` has one answer for
    /// each index of [`PrefixCursor::unflushed`]; where it ends early the rest is lost. The event of `torn` arrives in
    /// part, whatever `keep` says of it.
    pub fn subset(&self, keep: impl IntoIterator<Item = bool>, torn: Option<Torn>) -> io::Result<OverlayDevice> {
        if let Some(torn) = torn {
            self.check_torn(torn)?;
        }
        let image = self.durable.fork();
        let mut keep = keep.into_iter().fuse();
        for index in self.unflushed() {
            let kept = keep.next().unwrap_or(false);
            let event = &self.images.trace[index];
            match (torn, event) {
                (Some(torn), Event::Write { offset, bytes }) if torn.event == index => match torn.side {
                    TornSide::Head => image.patch(*offset, &bytes[..torn.at_bytes])?,
                    TornSide::Tail => image.patch(offset + torn.at_bytes as u64, &bytes[torn.at_bytes..])?,
                },
                _ if kept => apply(&image, event)?,
                _ => {}
            }
        }
        // The counters start at zero, as for every image.
        Ok(image.fork())
    }

    fn check_torn(&self, torn: Torn) -> io::Result<()> {
        let unflushed = self.unflushed();
        if !unflushed.contains(&torn.event) {
            return Err(invalid(format!("torn event {} is not among the unflushed {unflushed:?}", torn.event)));
        }
        if !self.images.tears(torn.event).any(|at_bytes| at_bytes == torn.at_bytes) {
            return Err(invalid(format!("event {} cannot tear at byte {}", torn.event, torn.at_bytes)));
        }
        Ok(())
    }
}

fn apply(image: &OverlayDevice, event: &Event) -> io::Result<()> {
    match event {
        Event::Write { offset, bytes } => image.patch(*offset, bytes),
        Event::Flush => Ok(()),
        Event::Discard { offset, length } => image.discard(*offset, *length),
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, RecordingDevice};

    /// Eight sectors, each shown by the one letter it is full of.
    fn show(image: &dyn BlockDevice) -> String {
        let mut bytes = vec![0; 8 * 512];
        image.read(0, &mut bytes).unwrap();
        bytes
            .chunks(512)
            .map(|sector| {
                assert!(sector.iter().all(|&byte| byte == sector[0]));
                if sector[0] == 0 { '-' } else { char::from(sector[0]) }
            })
            .collect()
    }

    fn put(device: &dyn BlockDevice, sector: u64, text: &str) {
        let bytes: Vec<u8> = text.bytes().flat_map(|letter| [letter; 512]).collect();
        device.write(sector * 512, &bytes).unwrap();
    }

    /// 0 write, 1 write, 2 flush, 3 write, 4 discard, 5 write, 6 flush.
    fn sample() -> CrashImages {
        let device = RecordingDevice::new(MemoryDevice::new(8 * 512));
        put(device.inner(), 0, "abcdefgh");
        let base = device.inner().clone_image();
        put(&device, 0, "A");
        put(&device, 1, "B");
        device.flush().unwrap();
        put(&device, 1, "1234");
        device.discard(2 * 512, 512).unwrap();
        put(&device, 6, "GH");
        device.flush().unwrap();
        CrashImages::new(Arc::new(base), device.take())
    }

    #[test]
    fn every_prefix() {
        let images = sample();
        let expected = ["abcdefgh", "Abcdefgh", "ABcdefgh", "ABcdefgh", "A1234fgh", "A1-34fgh", "A1-34fGH", "A1-34fGH"];
        assert_eq!(images.point_max() + 1, expected.len());
        let mut cursor = images.cursor();
        for (point, expected) in expected.into_iter().enumerate() {
            assert_eq!(cursor.point(), point);
            assert_eq!(show(&cursor.image()), expected);
            assert_eq!(show(&images.prefix(point).unwrap()), expected);
            assert_eq!(cursor.unflushed(), images.unflushed(point));
            assert_eq!(cursor.advance().unwrap(), point < images.point_max());
        }
        assert!(images.prefix(8).is_err());
        assert!(cursor.advance_to(3).is_err());
    }

    #[test]
    fn unflushed_work_survives_in_any_subset() {
        let images = sample();
        let check = |point, mask, expected: &str| {
            let image = images.subset(point, CrashImages::mask(mask), None).unwrap();
            assert_eq!(show(&image), expected, "point {point} mask {mask:#b}");
        };
        assert_eq!(images.unflushed(2), 0..2);
        check(2, 0b00, "abcdefgh");
        check(2, 0b10, "aBcdefgh");
        assert_eq!(images.unflushed(3), 3..3);
        check(3, 0, "ABcdefgh");
        assert_eq!(images.unflushed(6), 3..6);
        check(6, 0b000, "ABcdefgh");
        check(6, 0b010, "AB-defgh");
        check(6, 0b101, "A1234fGH");
        check(6, 0b111, "A1-34fGH");
        check(7, 0b000, "A1-34fGH");
        // An answer for each event, and no more, is enough; a missing one means lost.
        assert_eq!(show(&images.subset(6, [true], None).unwrap()), "A1234fgh");
    }

    #[test]
    fn one_write_tears_between_sectors() {
        let images = sample();
        assert_eq!(images.tears(3).collect::<Vec<_>>(), [512, 1024, 1536]);
        assert_eq!(images.tears(0).count(), 0);
        assert_eq!(images.tears(4).count(), 0);
        let check = |event, at_bytes, side, expected: &str| {
            let torn = Torn { event, at_bytes, side };
            let image = images.subset(6, [false, false, true], Some(torn)).unwrap();
            assert_eq!(show(&image), expected);
        };
        check(3, 512, TornSide::Head, "A1cdefGH");
        check(3, 1536, TornSide::Head, "A123efGH");
        check(3, 1536, TornSide::Tail, "ABcd4fGH");
        check(5, 512, TornSide::Head, "ABcdefGh");
        for (event, at_bytes) in [(3, 100), (3, 0), (3, 2048), (4, 512), (0, 512), (6, 512), (99, 512)] {
            let torn = Torn { event, at_bytes, side: TornSide::Head };
            assert!(images.subset(6, [], Some(torn)).is_err());
        }
    }

    #[test]
    fn tears_follow_the_device_sectors_not_the_write() {
        let trace = vec![Event::Write { offset: 500, bytes: vec![7; 600].into() }];
        let images = CrashImages::new(Arc::new(MemoryDevice::new(4096)), trace);
        assert_eq!(images.tears(0).collect::<Vec<_>>(), [12, 524]);
    }

    #[test]
    fn a_torn_sector_needs_no_alignment() {
        let device = RecordingDevice::new(MemoryDevice::with_alignment(16384, 4096));
        let base = device.inner().clone_image();
        device.write(4096, &[1; 8192]).unwrap();
        let images = CrashImages::new(Arc::new(base), device.take());
        let torn = Torn { event: 0, at_bytes: 4608, side: TornSide::Head };
        let image = images.subset(1, [], Some(torn)).unwrap();
        let mut bytes = vec![0; 16384];
        image.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == u8::from((4096..8704).contains(&at))));
    }

    /// Recovery runs on an image, is recorded in turn, and is crashed as well.
    #[test]
    fn recovery_can_be_recorded_and_thrown_away() {
        let images = sample();
        let crashed = Arc::new(images.prefix(4).unwrap());
        let recovery = RecordingDevice::new(crashed.fork());
        put(&recovery, 5, "X");
        recovery.flush().unwrap();
        put(&recovery, 6, "Y");
        let again = CrashImages::new(Arc::clone(&crashed) as Arc<dyn BlockDevice>, recovery.take());
        assert_eq!(show(&again.subset(3, [false], None).unwrap()), "A1234Xgh");
        assert_eq!(show(&again.prefix(3).unwrap()), "A1234XYh");
        assert_eq!(show(&*crashed), "A1234fgh");
    }

    /// Making a state must not cost what the trace has touched so far, or long traces become quadratic.
    #[test]
    fn images_are_cheap() {
        let trace: Vec<Event> =
            (0..20_000_u64).map(|index| Event::Write { offset: index * 4096, bytes: vec![1; 4096].into() }).collect();
        let images = CrashImages::new(Arc::new(MemoryDevice::new(1 << 30)), trace);
        let mut cursor = images.cursor();
        let mut checked = 0;
        while cursor.advance().unwrap() {
            let image = cursor.image();
            image.write(0, b"recovered").unwrap();
            checked += 1;
        }
        assert_eq!(checked, 20_000);
        assert_eq!(cursor.image().changed_bytes(), 20_000 * 4096);
    }
}
