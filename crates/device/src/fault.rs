//! A device that fails where a test says so.

use std::io;

use parking_lot::Mutex;

use crate::{BlockDevice, DeviceCounters, ReadRequest, WriteRequest};

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

/// Wraps a device and fails chosen requests with a chosen errno.
///
/// A failed request does not reach the device below. Each request of a batch counts; those before the one that fails
/// are served, it and those after it are not. A durable write counts as a write and then a flush, so it can fail with
/// its bytes written. To record what was served, wrap the recorder: `FaultDevice<RecordingDevice<D>>`.
pub struct FaultDevice<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: [u64; 4],
    faults: Vec<Fault>,
}

struct Fault {
    op: FaultOp,
    /// Value of `seen` at which it strikes.
    due: u64,
    span: FaultSpan,
    errno: i32,
}

impl State {
    /// Counts one request and says whether it fails.
    fn strike(&mut self, op: FaultOp) -> io::Result<()> {
        self.seen[op as usize] += 1;
        let seen = self.seen[op as usize];
        let struck = self.faults.iter().position(|fault| {
            fault.op == op && (fault.due == seen || fault.span == FaultSpan::Forever && fault.due < seen)
        });
        match struck {
            Some(index) => Err(io::Error::from_raw_os_error(self.faults[index].errno)),
            None => Ok(()),
        }
    }

    /// Counts requests up to the first that fails; answers how many are to be served, and the failure.
    fn strike_many(&mut self, op: FaultOp, count: usize) -> (usize, io::Result<()>) {
        for index in 0..count {
            if let Err(error) = self.strike(op) {
                return (index, Err(error));
            }
        }
        (count, Ok(()))
    }
}

impl<D: BlockDevice> FaultDevice<D> {
    /// Fails nothing until told to.
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Makes the `nth` request of kind `op` from now fail with `errno` (1 is the next one, and so is 0), and all
    /// after it if `span` says so. Faults add up; where two meet, the one set first gives the errno.
    pub fn fail(&self, op: FaultOp, nth: u64, span: FaultSpan, errno: i32) {
        let mut state = self.state.lock();
        let due = state.seen[op as usize].saturating_add(nth.max(1));
        state.faults.push(Fault { op, due, span, errno });
    }

    /// Takes back all faults.
    pub fn clear(&self) {
        self.state.lock().faults.clear();
    }

    /// Requests of kind `op` so far, failed ones included: run once without faults, and this is the largest `nth`
    /// worth trying.
    pub fn seen(&self, op: FaultOp) -> u64 {
        self.state.lock().seen[op as usize]
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The device below.
    pub fn into_inner(self) -> D {
        self.inner
    }

    fn strike(&self, op: FaultOp) -> io::Result<()> {
        self.state.lock().strike(op)
    }
}

impl<D: BlockDevice> BlockDevice for FaultDevice<D> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.strike(FaultOp::Read)?;
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.strike(FaultOp::Write)?;
        self.inner.write(offset, buf)
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        let (served, outcome) = self.state.lock().strike_many(FaultOp::Write, writes.len());
        self.inner.write_many(&writes[..served])?;
        outcome
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
        let (served, outcome) = self.state.lock().strike_many(FaultOp::Read, reads.len());
        self.inner.read_many(&mut reads[..served])?;
        outcome
    }

    fn flush(&self) -> io::Result<()> {
        self.strike(FaultOp::Flush)?;
        self.inner.flush()
    }

    fn write_durable(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.strike(FaultOp::Write)?;
        if let Err(error) = self.strike(FaultOp::Flush) {
            self.inner.write(offset, buf)?;
            return Err(error);
        }
        self.inner.write_durable(offset, buf)
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.strike(FaultOp::Discard)?;
        self.inner.discard(offset, length)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
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
}
