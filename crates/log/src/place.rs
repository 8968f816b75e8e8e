//! Where a log lies, the arithmetic of its ring, and what can go wrong.

use crate::recover::Reach;
use myriad_device::BlockDevice;
use myriad_format::log::{ANCHOR_UNITS, unit};
use myriad_format::{Corrupt, Lsn};
use std::io;
use std::sync::Arc;

/// Fewest units in a ring: two checkpoints of one unit each, and as much again to let the tail lag behind.
pub const RING_UNITS_MIN: u64 = 4;
/// Largest ring: far more than half a second reads, which is what a log should hold. The overlay keeps one lap in
/// memory at most, and counts its words in 32 bits.
pub const RING_BYTES_MAX: u64 = 4 << 30;
/// No LSN or sequence read from the disk may exceed this: a volume that writes 100 GB/s gets there in a year and a
/// half, and sums with it cannot overflow.
pub const POSITION_MAX: u64 = 1 << 62;

/// Where a log lies. `start` and `length` are in bytes and include the anchors.
#[derive(Clone)]
pub struct LogPlace {
    pub device: Arc<dyn BlockDevice>,
    pub start: u64,
    pub length: u64,
    pub block_size: usize,
    pub volume: [u8; 16],
    /// Where the log ended when the volume was opened or closed. If it is needed and ends before, it is an older copy, or has lost what followed. If it
    /// is not needed, because the volume was closed, it ends there. Not asked of a log that somebody may be writing to. 0: nobody knows.
    pub known_end: Lsn,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("log: {op} at byte {offset} failed: {source}")]
    Io { op: &'static str, offset: u64, source: io::Error },
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The caller's description of the log cannot be right for this device.
    #[error("log place: {field} cannot be {value}")]
    Place { field: &'static str, value: u64 },
    /// The checkpoint does not fit: move the tail (and [`crate::Log::write_anchor`]), or make it smaller.
    #[error("log full: the checkpoint needs {needed} bytes, {room} are free")]
    Full { needed: u64, room: u64 },
    /// The host has no room for a write. Nothing is lost: the same checkpoint may be written again.
    #[error("log: no room on the host for a write at byte {offset}: {source}")]
    HostFull { offset: u64, source: io::Error },
    /// An earlier write or flush failed: what the disk holds is unknown until the next open.
    #[error("log: an earlier write failed; nothing more is written")]
    Poisoned,
}

pub(crate) fn impossible(lsn: Lsn, field: &'static str, value: u64) -> LogError {
    LogError::Corrupt(Corrupt::Log { lsn, field, value })
}

/// The ring's sizes, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    /// Byte of the device where the ring starts.
    pub start: u64,
    pub capacity: u64,
    pub unit: u64,
    pub granule: usize,
}

impl Ring {
    /// Byte of the device where `lsn` lives.
    pub fn offset(&self, lsn: Lsn) -> u64 {
        self.start + lsn.0 % self.capacity
    }

    /// How many of `length` bytes from `lsn` come before the ring wraps.
    pub fn before_wrap(&self, lsn: Lsn, length: u64) -> u64 {
        length.min(self.capacity - lsn.0 % self.capacity)
    }
}

impl LogPlace {
    pub(crate) fn ring(&self) -> Result<Ring, LogError> {
        let refuse = |field, value| Err(LogError::Place { field, value });
        let block_size = self.block_size as u64;
        if !self.block_size.is_power_of_two() || !(512..=65536).contains(&self.block_size) {
            return refuse("block size", block_size);
        }
        let unit = unit(self.block_size) as u64;
        let alignment = self.device.alignment().max(1) as u64;
        if unit % alignment != 0 {
            return refuse("device alignment", alignment);
        }
        let end = self.start.checked_add(self.length);
        if self.start % alignment != 0 || end.is_none_or(|end| end > self.device.size()) {
            return refuse("start", self.start);
        }
        let units = self.length / unit;
        if units < ANCHOR_UNITS + RING_UNITS_MIN || self.length > RING_BYTES_MAX {
            return refuse("length", self.length);
        }
        Ok(Ring {
            start: self.start + ANCHOR_UNITS * unit,
            capacity: (units - ANCHOR_UNITS) * unit,
            unit,
            granule: granule(self.block_size),
        })
    }

    /// Refuses a log that the volume has known to end elsewhere: to begin with, an older copy of it.
    pub(crate) fn check_known_end(&self, end: Lsn, reach: Reach) -> Result<(), LogError> {
        let is_known = match reach {
            Reach::Ring => end >= self.known_end,
            Reach::End => end == self.known_end || self.known_end.0 == 0,
            Reach::Written => true,
        };
        if is_known { Ok(()) } else { Err(Corrupt::LogEnd { end, known: self.known_end }.into()) }
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), LogError> {
        self.device.read(offset, buf).map_err(|source| LogError::Io { op: "read", offset, source })
    }
}

/// Granule of a block in bytes, as `Geometry::granule_size`.
pub(crate) fn granule(block_size: usize) -> usize {
    (block_size / 64).max(8)
}
