//! What the volume of a meeting lies on.

use myriad_device::{BlockDevice, DeviceCounters, Discards, OverlayDevice, WriteRequest};
use myriad_engine::Errno;
use myriad_engine::schedule;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A device that knows what it had at its last flush, and at each request of which another thread may go on.
pub(super) struct Medium {
    pub inner: OverlayDevice,
    pub durable: Mutex<OverlayDevice>,
    /// Writes to come for which the host has no room, and how many there were.
    pub refused: AtomicU32,
    pub refusals: AtomicU64,
}

impl Medium {
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        let inner = OverlayDevice::new(base);
        let durable = Mutex::new(inner.fork());
        Self { inner, durable, refused: AtomicU32::new(0), refusals: AtomicU64::new(0) }
    }

    pub fn has_room(&self) -> io::Result<()> {
        let taken = self.refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if taken.is_err() {
            return Ok(());
        }
        self.refusals.fetch_add(1, Ordering::Relaxed);
        Err(Errno::NOSPC.into())
    }

    /// What losing power now may leave: all that was written, and only what was flushed.
    pub fn after_power_cut(&self) -> [OverlayDevice; 2] {
        [self.inner.fork(), self.durable.lock().expect("no panic under it").fork()]
    }
}

impl BlockDevice for Medium {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn alignment(&self) -> usize {
        self.inner.alignment()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        schedule::pause();
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        schedule::pause();
        self.has_room()?;
        self.inner.write(offset, buf)
    }
    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        schedule::pause();
        self.has_room()?;
        self.inner.write_many(writes)
    }
    fn flush(&self) -> io::Result<()> {
        schedule::pause();
        self.inner.flush()?;
        *self.durable.lock().expect("no panic under it") = self.inner.fork();
        Ok(())
    }
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        schedule::pause();
        self.inner.discard(offset, length)
    }
    fn discards(&self) -> Discards {
        self.inner.discards()
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}
