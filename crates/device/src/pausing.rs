//! A device that stops at a chosen request, so that a test decides what else happens meanwhile.

use std::io;

use parking_lot::{Condvar, Mutex};

use crate::{BlockDevice, FaultOp, ReadRequest, WriteRequest};

/// Wraps a device and holds back one chosen request, and with it the thread that asked, until it is told to go on.
///
/// The requests of a batch count one by one; the batch is held as a whole, before any of it is served. Requests of other
/// threads pass, whatever their kind.
///
/// ```text
/// test                       thread under test
/// pause_at(Write, 3)
///                            write, write, write: held
/// wait_until_held()
/// ... anything ...
/// go_on()                    served
/// ```
pub struct PausingDevice<D> {
    inner: D,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    seen: [u64; 4],
    /// Kind, and value of `seen` at which to hold.
    due: Option<(FaultOp, u64)>,
    held: bool,
}

impl<D: BlockDevice> PausingDevice<D> {
    /// Holds nothing until told to.
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Makes the `nth` request of kind `op` from now wait (1 is the next one).
    pub fn pause_at(&self, op: FaultOp, nth: u64) {
        let mut state = self.state.lock();
        let due = state.seen[op as usize].saturating_add(nth.max(1));
        state.due = Some((op, due));
    }

    /// Waits until the chosen request has come and is held, or `is_over` says that it will not come. Answers whether
    /// it is held.
    pub fn wait_until_held(&self, is_over: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        while !state.held && !is_over() {
            // Nobody announces that it is over, so look again now and then.
            self.changed.wait_for(&mut state, std::time::Duration::from_millis(1));
        }
        state.held
    }

    /// Lets the held request go, and forgets one that has not come.
    pub fn go_on(&self) {
        let mut state = self.state.lock();
        state.due = None;
        state.held = false;
        self.changed.notify_all();
    }

    /// Requests of kind `op` so far: run once without a pause, and this is the largest `nth` worth trying.
    pub fn seen(&self, op: FaultOp) -> u64 {
        self.state.lock().seen[op as usize]
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn pass(&self, op: FaultOp, count: usize) {
        let mut state = self.state.lock();
        let before = state.seen[op as usize];
        state.seen[op as usize] += count as u64;
        let due = (before + 1)..=(before + count as u64);
        if !state.due.is_some_and(|(kind, nth)| kind == op && due.contains(&nth)) {
            return;
        }
        state.due = None;
        state.held = true;
        self.changed.notify_all();
        while state.held {
            self.changed.wait(&mut state);
        }
    }
}

impl<D: BlockDevice> BlockDevice for PausingDevice<D> {
    crate::pass_on!(inner: size, alignment, discards, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.pass(FaultOp::Read, 1);
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.pass(FaultOp::Write, 1);
        self.inner.write(offset, buf)
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        self.pass(FaultOp::Write, writes.len());
        self.inner.write_many(writes)
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.pass(FaultOp::Read, reads.len());
        self.inner.read_many(reads)
    }

    fn flush(&self) -> io::Result<()> {
        self.pass(FaultOp::Flush, 1);
        self.inner.flush()
    }

    /// A write, then a flush: it can be held before either.
    fn write_durable(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write(offset, buf)?;
        self.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.pass(FaultOp::Discard, 1);
        self.inner.discard(offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn others_pass_while_one_is_held() {
        let device = PausingDevice::new(MemoryDevice::new(100));
        device.write(0, b"1").unwrap();
        device.pause_at(FaultOp::Write, 2);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                device.write(1, b"2").unwrap();
                device.write(2, b"3").unwrap();
            });
            assert!(device.wait_until_held(|| false));
            device.write(3, b"4").unwrap();
            let mut image = [0; 4];
            device.read(0, &mut image).unwrap();
            assert_eq!(image, *b"12\x004");
            device.go_on();
            thread.join().unwrap();
        });
        let mut image = [0; 4];
        device.read(0, &mut image).unwrap();
        assert_eq!((image, device.seen(FaultOp::Write)), (*b"1234", 4));
        device.pause_at(FaultOp::Flush, 1);
        assert!(!device.wait_until_held(|| true));
        device.go_on();
        device.flush().unwrap();
    }
}
