//! A device at which somebody else does something while it is looked at.

use myriad_device::{BlockDevice, Discards};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

struct Meddled<F> {
    device: Arc<dyn BlockDevice>,
    reads: AtomicU64,
    every: u64,
    meddle: Arc<Mutex<F>>,
}

/// A device that can only be read, and before every so many reads `meddle` is done. Several devices may share that.
pub fn meddled<F: FnMut() + Send + 'static>(
    device: Arc<dyn BlockDevice>,
    every: u64,
    meddle: Arc<Mutex<F>>,
) -> Arc<dyn BlockDevice> {
    Arc::new(Meddled { device, reads: AtomicU64::new(0), every, meddle })
}

impl<F: FnMut() + Send> BlockDevice for Meddled<F> {
    myriad_device::pass_on!(device: size, alignment, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.reads.fetch_add(1, Relaxed) % self.every == self.every - 1 {
            (self.meddle.lock().unwrap())();
        }
        self.device.read(offset, buf)
    }
    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("a look writes nothing")
    }
    fn flush(&self) -> io::Result<()> {
        panic!("a look flushes nothing")
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        panic!("a look discards nothing")
    }
    fn discards(&self) -> Discards {
        Discards::Never
    }
}
