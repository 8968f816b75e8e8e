//! A device that notes what is read from it.

use myriad_device::{BlockDevice, ReadRequest};
use myriad_format::BlockKind;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// One block that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub block: u64,
    /// By the magic number at its start: file data may look like anything.
    pub kind: Option<BlockKind>,
}

pub struct Trace<D> {
    inner: D,
    block_size: usize,
    reads: Mutex<Vec<Read>>,
}

impl<D: BlockDevice> Trace<D> {
    pub fn new(inner: D, block_size: usize) -> Arc<Self> {
        Arc::new(Self { inner, block_size, reads: Mutex::default() })
    }

    /// Blocks read since the last call, in order.
    pub fn take(&self) -> Vec<Read> {
        std::mem::take(&mut self.reads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, offset: u64, bytes: &[u8]) {
        let first = offset / self.block_size as u64;
        let blocks = bytes.chunks(self.block_size).zip(first..).map(|(bytes, block)| {
            let magic = bytes.first_chunk().map_or(0, |magic| u32::from_le_bytes(*magic));
            Read { block, kind: BlockKind::from_magic(magic) }
        });
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).extend(blocks);
    }
}

impl<D: BlockDevice> BlockDevice for Trace<D> {
    myriad_device::pass_on!(inner: size, alignment, write, write_many, flush, discard, discards, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, buf)?;
        self.note(offset, buf);
        Ok(())
    }
    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.inner.read_many(reads)?;
        for request in reads {
            self.note(request.offset, request.buf);
        }
        Ok(())
    }
}
