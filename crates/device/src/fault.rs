//! A device that fails or lies where a test says so.

use std::io;
use std::ops::Range;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::error::of_flush;
use crate::{BlockDevice, ReadRequest, WriteRequest};

/// What disks write as one: a short or corrupted request is so by whole sectors.
const SECTOR_SIZE: usize = 512;

/// The kinds of request that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultOp {
    Read,
    Write,
    Flush,
    Discard,
}

/// How long a fault lasts once it has struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSpan {
    Once,
    Forever,
}

/// What happens to a request that a fault strikes. The first two tell; the others answer as if all were well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Answers this errno and does nothing.
    Fail(i32),
    /// Serves the first half, in whole sectors, and answers EIO. A flush or discard does nothing.
    Short,
    /// One byte of a sector of the request, counted round, arrives inverted; of a read, in the buffer only. A flush or discard is
    /// lost.
    Corrupted { sector: u64 },
    /// Served so many bytes further on, around the device's end. A flush or discard is lost.
    Misdirected { bytes: u64 },
    /// Nothing is done; a read leaves its buffer as it was.
    Lost,
    /// Nothing is done, and the caller is unwound: what a mistake in the middle of the caller's own work would do.
    Panic,
}

/// What [`FaultKind::Panic`] unwinds with.
pub const FAULT_PANIC: &str = "a fault that panics";

fn panic() -> ! {
    // Without the hook, which would print what is meant to be.
    std::panic::resume_unwind(Box::new(FAULT_PANIC))
}

/// Wraps a device and fails chosen requests.
///
/// Each request of a batch counts; those before one that is told to have failed are served, those after it are not. A
/// durable write counts as a write and then a flush, so it can fail with its bytes written. To record what was served,
/// wrap the recorder: `FaultDevice<RecordingDevice<D>>`.
pub struct FaultDevice<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: [u64; 4],
    faults: Vec<Fault>,
    /// Where the host has no room, in bytes.
    full: Option<Range<u64>>,
    struck: u64,
}

struct Fault {
    op: FaultOp,
    /// Value of `seen` at which it strikes.
    due: u64,
    span: FaultSpan,
    kind: FaultKind,
}

impl State {
    /// Counts one request and says what befalls it.
    fn strike(&mut self, op: FaultOp) -> Option<FaultKind> {
        self.seen[op as usize] += 1;
        let seen = self.seen[op as usize];
        let is_due = |fault: &&Fault| {
            fault.op == op && (fault.due == seen || fault.span == FaultSpan::Forever && fault.due < seen)
        };
        let kind = self.faults.iter().find(is_due)?.kind;
        self.struck += 1;
        Some(kind)
    }
}

/// The first half of a request, in whole sectors.
fn half(len: usize) -> usize {
    len / 2 / SECTOR_SIZE * SECTOR_SIZE
}

/// Where in a request the one byte is that arrives inverted: behind what headers have, so that only whole checksums notice.
fn corrupted_at(len: usize, sector: u64) -> Option<usize> {
    let sectors = len.div_ceil(SECTOR_SIZE).max(1);
    let at = (sector % sectors as u64) as usize * SECTOR_SIZE + 300;
    len.checked_sub(1).map(|last| last.min(at))
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl<D: BlockDevice> FaultDevice<D> {
    /// Fails nothing until told to.
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Makes the `nth` request of kind `op` from now fail with `errno` (1 is the next one, and so is 0), and all
    /// after it if `span` says so. Faults add up; where two meet, the one set first counts.
    pub fn fail(&self, op: FaultOp, nth: u64, span: FaultSpan, errno: i32) {
        self.inject(op, nth, span, FaultKind::Fail(errno));
    }

    /// As [`FaultDevice::fail`], for any kind of fault.
    pub fn inject(&self, op: FaultOp, nth: u64, span: FaultSpan, kind: FaultKind) {
        let mut state = self.state.lock();
        let due = state.seen[op as usize].saturating_add(nth.max(1));
        state.faults.push(Fault { op, due, span, kind });
    }

    /// From now on a write that touches any of these bytes answers ENOSPC and does nothing: there the image has a hole, and the host is full.
    pub fn fill(&self, bytes: Range<u64>) {
        self.state.lock().full = Some(bytes);
    }

    /// Takes back all faults.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.faults.clear();
        state.full = None;
    }

    /// Requests of kind `op` so far, failed ones included: run once without faults, and this is the largest `nth`
    /// worth trying.
    pub fn seen(&self, op: FaultOp) -> u64 {
        self.state.lock().seen[op as usize]
    }

    /// Requests that a fault has struck so far.
    pub fn struck(&self) -> u64 {
        self.state.lock().struck
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The device below.
    pub fn into_inner(self) -> D {
        self.inner
    }

    fn strike(&self, op: FaultOp) -> Option<FaultKind> {
        self.state.lock().strike(op)
    }

    fn strike_write(&self, offset: u64, len: usize) -> Option<FaultKind> {
        let mut state = self.state.lock();
        let kind = state.strike(FaultOp::Write);
        let is_full = |full: &Range<u64>| offset < full.end && full.start < offset + len as u64;
        if kind.is_none() && state.full.as_ref().is_some_and(is_full) {
            state.struck += 1;
            return Some(FaultKind::Fail(Errno::NOSPC.raw_os_error()));
        }
        kind
    }

    fn elsewhere(&self, offset: u64, bytes: u64, len: usize) -> u64 {
        let room = self.inner.size().saturating_sub(len as u64) + 1;
        let unit = self.inner.alignment() as u64;
        offset.wrapping_add(bytes) % room / unit * unit
    }

    fn serve_write(&self, kind: Option<FaultKind>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match kind {
            None => self.inner.write(offset, bytes),
            Some(FaultKind::Fail(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(FaultKind::Short) => {
                self.inner.write(offset, &bytes[..half(bytes.len())])?;
                Err(eio())
            }
            Some(FaultKind::Corrupted { sector }) => {
                let mut bytes = bytes.to_vec();
                if let Some(at) = corrupted_at(bytes.len(), sector) {
                    bytes[at] ^= 0xff;
                }
                self.inner.write(offset, &bytes)
            }
            Some(FaultKind::Misdirected { bytes: by }) => {
                self.inner.write(self.elsewhere(offset, by, bytes.len()), bytes)
            }
            Some(FaultKind::Lost) => Ok(()),
            Some(FaultKind::Panic) => panic(),
        }
    }

    fn serve_read(&self, kind: Option<FaultKind>, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match kind {
            None => self.inner.read(offset, buf),
            Some(FaultKind::Fail(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(FaultKind::Short) => {
                let len = half(buf.len());
                self.inner.read(offset, &mut buf[..len])?;
                Err(eio())
            }
            Some(FaultKind::Corrupted { sector }) => {
                self.inner.read(offset, buf)?;
                if let Some(at) = corrupted_at(buf.len(), sector) {
                    buf[at] ^= 0xff;
                }
                Ok(())
            }
            Some(FaultKind::Misdirected { bytes }) => self.inner.read(self.elsewhere(offset, bytes, buf.len()), buf),
            Some(FaultKind::Lost) => Ok(()),
            Some(FaultKind::Panic) => panic(),
        }
    }

    /// What becomes of a request without bytes: `None` if it is to be served.
    fn refuse(&self, op: FaultOp) -> Option<io::Result<()>> {
        self.strike(op).map(|kind| match kind {
            FaultKind::Fail(errno) => Err(io::Error::from_raw_os_error(errno)),
            FaultKind::Short => Err(eio()),
            FaultKind::Corrupted { .. } | FaultKind::Misdirected { .. } | FaultKind::Lost => Ok(()),
            FaultKind::Panic => panic(),
        })
    }
}

impl<D: BlockDevice> BlockDevice for FaultDevice<D> {
    crate::pass_on!(inner: size, alignment, discards, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.serve_read(self.strike(FaultOp::Read), offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.serve_write(self.strike_write(offset, buf.len()), offset, buf)
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        let mut served = 0;
        for (index, request) in writes.iter().enumerate() {
            let len = request.parts.iter().map(|part| part.len()).sum();
            let Some(kind) = self.strike_write(request.offset, len) else { continue };
            self.inner.write_many(&writes[served..index])?;
            self.serve_write(Some(kind), request.offset, &request.parts.concat())?;
            served = index + 1;
        }
        self.inner.write_many(&writes[served..])
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let mut served = 0;
        for index in 0..reads.len() {
            let Some(kind) = self.strike(FaultOp::Read) else { continue };
            self.inner.read_many(&mut reads[served..index])?;
            let request = &mut reads[index];
            self.serve_read(Some(kind), request.offset, request.buf)?;
            served = index + 1;
        }
        self.inner.read_many(&mut reads[served..])
    }

    fn flush(&self) -> io::Result<()> {
        self.refuse(FaultOp::Flush).map_or_else(|| self.inner.flush(), |refused| refused.map_err(of_flush))
    }

    fn write_durable(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let written = self.strike_write(offset, buf.len());
        if written.is_none() && self.state.lock().faults.is_empty() {
            self.state.lock().seen[FaultOp::Flush as usize] += 1;
            return self.inner.write_durable(offset, buf);
        }
        self.serve_write(written, offset, buf)?;
        self.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.refuse(FaultOp::Discard).unwrap_or_else(|| self.inner.discard(offset, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const EIO: i32 = libc::EIO;

    fn errno(result: io::Result<()>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }

    #[test]
    fn the_nth_request_fails_once_or_for_ever() {
        let device = FaultDevice::new(MemoryDevice::new(100));
        device.flush().unwrap();
        device.fail(FaultOp::Flush, 2, FaultSpan::Once, EIO);
        let outcomes: Vec<_> = (0..4).map(|_| errno(device.flush())).collect();
        assert_eq!(outcomes, [None, Some(EIO), None, None]);
        device.fail(FaultOp::Write, 2, FaultSpan::Forever, libc::ENOSPC);
        let outcomes: Vec<_> = (0..4).map(|index| errno(device.write(index, b"x"))).collect();
        assert_eq!(outcomes, [None, Some(libc::ENOSPC), Some(libc::ENOSPC), Some(libc::ENOSPC)]);
        device.read(0, &mut [0]).unwrap();
        device.fail(FaultOp::Read, 1, FaultSpan::Once, EIO);
        assert_eq!(errno(device.read(0, &mut [0])), Some(EIO));
        device.fail(FaultOp::Discard, 1, FaultSpan::Once, EIO);
        assert_eq!(errno(device.discard(0, 1)), Some(EIO));
        device.clear();
        device.write(9, b"y").unwrap();
        assert_eq!((device.seen(FaultOp::Write), device.seen(FaultOp::Flush)), (5, 5));
        // The failed ones never reached the device.
        assert_eq!((device.counters().writes, device.counters().flushes), (2, 4));
    }

    #[test]
    fn a_batch_stops_at_its_failing_request() {
        let device = FaultDevice::new(MemoryDevice::new(100));
        let parts: [&[u8]; 1] = [b"x"];
        let batch: Vec<_> = (0..4).map(|offset| WriteRequest { offset, parts: &parts }).collect();
        device.fail(FaultOp::Write, 3, FaultSpan::Once, EIO);
        assert_eq!(errno(device.write_many(&batch)), Some(EIO));
        let mut image = [0; 4];
        device.read(0, &mut image).unwrap();
        assert_eq!(image, *b"xx\0\0");
        device.write_many(&batch).unwrap();

        device.fail(FaultOp::Read, 2, FaultSpan::Once, EIO);
        let (mut first, mut second) = ([0; 2], [0; 2]);
        let mut reads = [ReadRequest { offset: 0, buf: &mut first }, ReadRequest { offset: 2, buf: &mut second }];
        assert_eq!(errno(device.read_many(&mut reads)), Some(EIO));
        assert_eq!((first, second), (*b"xx", [0; 2]));
    }

    #[test]
    fn a_durable_write_can_fail_at_its_flush() {
        let device = FaultDevice::new(MemoryDevice::new(100));
        device.fail(FaultOp::Flush, 1, FaultSpan::Once, EIO);
        assert_eq!(errno(device.write_durable(0, b"x")), Some(EIO));
        let mut image = [0];
        device.read(0, &mut image).unwrap();
        assert_eq!(image, *b"x");
        device.write_durable(0, b"y").unwrap();
    }

    #[test]
    fn lies_are_answered_with_ok() {
        let image = |device: &FaultDevice<MemoryDevice>| {
            let mut image = vec![0; 4096];
            device.inner().read(0, &mut image).unwrap();
            image
        };
        let write = |kind| {
            let device = FaultDevice::new(MemoryDevice::new(4096));
            device.inject(FaultOp::Write, 1, FaultSpan::Once, kind);
            let parts: [&[u8]; 1] = [&[1; 1024]];
            let outcome = device.write_many(&[WriteRequest { offset: 512, parts: &parts }]);
            assert_eq!(device.struck(), 1);
            (errno(outcome), image(&device))
        };
        let ones = |image: &[u8]| image.iter().filter(|&&byte| byte == 1).count();
        let (outcome, after) = write(FaultKind::Short);
        assert_eq!((outcome, ones(&after[512..1024]), ones(&after)), (Some(EIO), 512, 512));
        let (outcome, after) = write(FaultKind::Corrupted { sector: 0 });
        assert_eq!((outcome, ones(&after), after[512 + 300]), (None, 1023, 0xfe));
        let (outcome, after) = write(FaultKind::Misdirected { bytes: 1024 });
        assert_eq!((outcome, ones(&after[1536..2560]), ones(&after)), (None, 1024, 1024));
        let (outcome, after) = write(FaultKind::Lost);
        assert_eq!((outcome, ones(&after)), (None, 0));

        let device = FaultDevice::new(MemoryDevice::from_bytes(&[3; 4096]));
        let mut buf = [0; 1024];
        device.inject(FaultOp::Read, 1, FaultSpan::Once, FaultKind::Corrupted { sector: 0 });
        device.read(0, &mut buf).unwrap();
        assert_eq!(buf.iter().filter(|&&byte| byte != 3).count(), 1);
        device.inject(FaultOp::Read, 1, FaultSpan::Once, FaultKind::Lost);
        device.read(0, &mut buf[..1]).unwrap();
        device.inject(FaultOp::Flush, 1, FaultSpan::Once, FaultKind::Lost);
        device.write_durable(0, &[4; 512]).unwrap();
        assert_eq!((device.counters().flushes, device.seen(FaultOp::Flush)), (0, 1));
    }
}
