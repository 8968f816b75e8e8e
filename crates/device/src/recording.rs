//! Records the exact sequence of what was done to a device, for crash tests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{BlockDevice, WriteRequest};

/// One thing done to a device. Offsets and lengths are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Write {
        offset: u64,
        bytes: Arc<[u8]>,
    },
    /// All events before it are durable.
    Flush,
    Discard {
        offset: u64,
        length: u64,
    },
}

/// Wraps a device and records every write, flush and discard that it served.
///
/// Changes are served one at a time: with the order of overlapping writes left to chance, the trace could not be
/// exact. A request of a batch is an event of its own; a durable write is a write, then a flush. Requests that fail
/// are not recorded.
///
/// Recorders of several devices may share a clock, which ticks once an event: the ticks say how their traces interleave.
pub struct RecordingDevice<D> {
    inner: D,
    trace: Mutex<Vec<Timed>>,
    clock: Arc<AtomicU64>,
}

/// An event, and the tick of the recorder's clock at which it was served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    pub tick: u64,
    pub event: Event,
}

impl<D: BlockDevice> RecordingDevice<D> {
    /// Records from here on; what `inner` holds now is the base of the trace.
    pub fn new(inner: D) -> Self {
        Self::with_clock(inner, Arc::default())
    }

    /// As [`RecordingDevice::new`], with a clock that other recorders share.
    pub fn with_clock(inner: D, clock: Arc<AtomicU64>) -> Self {
        Self { inner, trace: Mutex::new(Vec::new()), clock }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Events since the start or the last [`RecordingDevice::take`]; the recording starts again from nothing.
    pub fn take(&self) -> Vec<Event> {
        events(std::mem::take(&mut self.trace.lock()))
    }

    /// A copy of the events so far; bytes are shared, not copied.
    pub fn snapshot(&self) -> Vec<Event> {
        events(self.timed_snapshot())
    }

    /// As [`RecordingDevice::snapshot`], with the ticks.
    pub fn timed_snapshot(&self) -> Vec<Timed> {
        self.trace.lock().clone()
    }

    /// Events so far: after an operation has returned, a crash at this point or later must not lose it.
    pub fn event_count(&self) -> usize {
        self.trace.lock().len()
    }

    fn record<const N: usize>(&self, serve: impl FnOnce(&D) -> io::Result<()>, events: [Event; N]) -> io::Result<()> {
        let mut trace = self.trace.lock();
        serve(&self.inner)?;
        self.note(&mut trace, events);
        Ok(())
    }

    /// Under the trace's lock, so that ticks ascend.
    fn note(&self, trace: &mut Vec<Timed>, events: impl IntoIterator<Item = Event>) {
        trace.extend(events.into_iter().map(|event| Timed { tick: self.clock.fetch_add(1, Ordering::Relaxed), event }));
    }
}

fn events(trace: Vec<Timed>) -> Vec<Event> {
    trace.into_iter().map(|timed| timed.event).collect()
}

impl<D: BlockDevice> BlockDevice for RecordingDevice<D> {
    crate::pass_on!(inner: size, alignment, read, read_many, discards, counters);

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.record(|inner| inner.write(offset, buf), [Event::Write { offset, bytes: buf.into() }])
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        let mut trace = self.trace.lock();
        self.inner.write_many(writes)?;
        let event =
            |request: &WriteRequest<'_>| Event::Write { offset: request.offset, bytes: request.parts.concat().into() };
        self.note(&mut trace, writes.iter().map(event));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.record(D::flush, [Event::Flush])
    }

    fn write_durable(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let write = Event::Write { offset, bytes: buf.into() };
        self.record(|inner| inner.write_durable(offset, buf), [write, Event::Flush])
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.record(|inner| inner.discard(offset, length), [Event::Discard { offset, length }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn a_shared_clock_tells_how_traces_interleave() {
        let clock = Arc::default();
        let one = RecordingDevice::with_clock(MemoryDevice::new(100), Arc::clone(&clock));
        let other = RecordingDevice::with_clock(MemoryDevice::new(100), clock);
        one.write(0, b"a").unwrap();
        other.write_durable(0, b"b").unwrap();
        one.flush().unwrap();
        let ticks = |device: &RecordingDevice<MemoryDevice>| -> Vec<u64> {
            device.timed_snapshot().iter().map(|timed| timed.tick).collect()
        };
        assert_eq!((ticks(&one), ticks(&other)), (vec![0, 3], vec![1, 2]));
    }

    #[test]
    fn the_trace_is_what_was_done() {
        let device = RecordingDevice::new(MemoryDevice::new(100));
        let write = |offset, bytes: &[u8]| Event::Write { offset, bytes: bytes.into() };
        device.write(1, b"a").unwrap();
        device.flush().unwrap();
        device
            .write_many(&[WriteRequest { offset: 2, parts: &[b"b", b"cd"] }, WriteRequest { offset: 9, parts: &[] }])
            .unwrap();
        assert!(device.write(100, b"x").is_err());
        device.read(0, &mut [0; 10]).unwrap();
        let early = [write(1, b"a"), Event::Flush, write(2, b"bcd"), write(9, b"")];
        assert_eq!(device.snapshot(), early);
        assert_eq!(device.take(), early);
        device.write_durable(7, b"e").unwrap();
        device.discard(0, 5).unwrap();
        assert_eq!(device.event_count(), 3);
        assert_eq!(device.take(), [write(7, b"e"), Event::Flush, Event::Discard { offset: 0, length: 5 }]);
        let mut buf = [0; 8];
        device.inner().read(0, &mut buf).unwrap();
        assert_eq!(buf, *b"\0\0\0\0\0\0\0e");
    }
}
