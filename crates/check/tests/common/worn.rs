//! A medium with places that cannot be read.

#![allow(dead_code)] // each suite uses its part

use myriad_device::{BlockDevice, MemoryDevice};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// What is written can be read again.
pub struct Worn {
    inner: Arc<MemoryDevice>,
    bad: Mutex<Vec<Range<u64>>>,
    /// What has been read, by offset and length.
    pub reads: Mutex<Vec<(u64, u64)>>,
}

impl Worn {
    pub fn new(inner: Arc<MemoryDevice>, bad: Vec<Range<u64>>) -> Arc<Self> {
        Arc::new(Self { inner, bad: Mutex::new(bad), reads: Mutex::default() })
    }

    /// From now on everything can be read.
    pub fn heal(&self) {
        self.bad.lock().unwrap().clear();
    }
}

impl BlockDevice for Worn {
    myriad_device::pass_on!(inner: size, alignment, flush, discard, discards, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        if self.bad.lock().unwrap().iter().any(|bad| bad.start < end && bad.end > offset) {
            return Err(io::Error::other("scratched"));
        }
        self.reads.lock().unwrap().push((offset, buf.len() as u64));
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        self.bad.lock().unwrap().retain(|bad| bad.start < offset || bad.end > end);
        self.inner.write(offset, buf)
    }
}
