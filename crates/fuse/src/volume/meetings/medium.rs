//! What the volume of a meeting lies on.

use myriad_device::{BlockDevice, MemoryDevice, OverlayDevice, WriteRequest};
use myriad_engine::schedule;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// A device in memory. It remembers what it held at its last flush, and at each request another thread may go on.
pub(super) struct Medium {
    now: OverlayDevice,
    flushed: Mutex<OverlayDevice>,
}

impl Medium {
    pub fn new(base: MemoryDevice) -> Self {
        let now = OverlayDevice::new(Arc::new(base));
        let flushed = Mutex::new(now.fork());
        Self { now, flushed }
    }

    /// What a power cut may leave: all that was written, or only what was flushed.
    pub fn after_power_cut(&self) -> [OverlayDevice; 2] {
        [self.now.fork(), self.flushed.lock().fork()]
    }
}

impl BlockDevice for Medium {
    myriad_device::pass_on!(now: size, alignment, discards, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        schedule::pause();
        self.now.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        schedule::pause();
        self.now.write(offset, buf)
    }
    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        schedule::pause();
        self.now.write_many(writes)
    }
    fn flush(&self) -> io::Result<()> {
        schedule::pause();
        self.now.flush()?;
        *self.flushed.lock() = self.now.fork();
        Ok(())
    }
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        schedule::pause();
        self.now.discard(offset, length)
    }
}
