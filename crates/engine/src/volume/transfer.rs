//! Reading and writing the device; blocks that lie side by side go in one request.

use super::Volume;
use crate::cache::{Cache, Placed, unwritten};
use crate::error::{Error, Result};
use myriad_device::{AlignedBuf, ReadRequest, WriteRequest, is_full};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Largest write to the device, in bytes.
const WRITE_MAX: usize = 1 << 20;

impl Volume {
    pub fn io_error(&self, op: &'static str, offset: u64, source: std::io::Error) -> Error {
        Error::io(op, offset, source)
    }

    pub fn write_error(&self, offset: u64, source: std::io::Error) -> Error {
        if is_full(&source) { Error::HostFull(source) } else { self.io_error("write", offset, source) }
    }

    pub fn device_flush(&self) -> Result<()> {
        self.device.flush().map_err(|source| Error::host("device flush", source))
    }

    pub fn write_requests(&self, requests: &[WriteRequest<'_>]) -> Result<()> {
        let offset = requests.first().map_or(0, |request| request.offset);
        self.device.write_many(requests).map_err(|source| self.write_error(offset, source))
    }

    pub fn read_device(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        let offset = requests.first().map_or(0, |request| request.offset);
        self.device.read_many(requests).map_err(|source| self.io_error("read", offset, source))
    }

    /// Which of `count` blocks (sorted) go in one request each: neighbours, as far as a request reaches.
    pub fn write_runs(&self, count: usize, block_of: impl Fn(usize) -> u64) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let mut start = 0;
        for i in 1..=count {
            let is_long = (i - start) << self.geometry.block_bits >= WRITE_MAX;
            if i == count || block_of(i) != block_of(i - 1) + 1 || is_long {
                runs.push(start..i);
                start = i;
            }
        }
        runs
    }

    /// Writes the images of `blocks` (sorted), which lie one after the other in `buffer`: neighbours in one request.
    pub fn write_blocks(&self, blocks: &[Placed], buffer: &[u8]) -> Result<()> {
        let bits = self.geometry.block_bits;
        let runs = self.write_runs(blocks.len(), |i| blocks[i].block);
        let parts: Vec<[&[u8]; 1]> = runs.iter().map(|run| [&buffer[run.start << bits..run.end << bits]]).collect();
        let requests: Vec<WriteRequest<'_>> = runs
            .iter()
            .zip(&parts)
            .map(|(run, parts)| WriteRequest { offset: blocks[run.start].block << bits, parts })
            .collect();
        if requests.is_empty() { Ok(()) } else { self.write_requests(&requests) }
    }

    /// How many of `count` blocks are written at a time, for which `staging` has room now.
    pub fn stage(&self, staging: &mut AlignedBuf, count: usize) -> usize {
        let block_size = self.cache.block_size();
        let per_batch = (8 * WRITE_MAX / block_size).min(count).max(1);
        if staging.len() < per_batch * block_size {
            *staging = AlignedBuf::zeroed(per_batch * block_size);
        }
        per_batch
    }

    /// Writes frames of file data (sorted by block), unless they were freed meanwhile. They go through `staging`,
    /// which grows to what it has to hold: memory used before need not be cleared by the host.
    pub fn write_data(&self, frames: &[Placed], staging: &mut AlignedBuf) -> Result<()> {
        let block_size = self.cache.block_size();
        self.data_unflushed.store(true, Ordering::Release);
        for batch in frames.chunks(self.stage(staging, frames.len())) {
            let mut written = Vec::with_capacity(batch.len());
            for &placed in batch {
                let bytes = self.cache.arena.read(placed.frame);
                let header = self.cache.arena.header(placed.frame);
                if !Cache::is_to_be_written(header, placed.block) {
                    continue;
                }
                unwritten::begin_write(&header.flags);
                let at = written.len() * block_size;
                staging[at..at + block_size].copy_from_slice(&bytes);
                written.push(placed);
            }
            self.write_blocks(&written, &staging[..written.len() * block_size])?;
            for Placed { block, frame } in written {
                self.cache.written(block, frame);
            }
        }
        Ok(())
    }
}
