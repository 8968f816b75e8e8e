//! Block devices: the one seam between Myriad and whatever stores its bytes.

#![deny(unsafe_code)]

use std::io;

/// A store of bytes addressed by offset, read and written in whole sectors.
///
/// Offsets and lengths are in bytes. Every implementation accepts requests aligned to [`BlockDevice::alignment`]
/// (512 or 4096 for direct I/O, 1 for memory) with buffers of any alignment; `AlignedBuf` avoids a bounce copy.
///
/// Ordering: a write that has returned may still sit in a volatile cache; only [`BlockDevice::flush`] makes all
/// returned writes durable. Nothing orders two writes without a flush between them.
pub trait BlockDevice: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Smallest unit of offset and length, in bytes.
    fn alignment(&self) -> usize;
    /// Fills `buf` from `offset`. A read past the end is an error, never short.
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes `buf` at `offset`.
    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()>;
    /// Writes many extents, all in flight together; returns when all have been written, or with the first error.
    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        for request in writes {
            let mut offset = request.offset;
            for part in request.parts {
                self.write(offset, part)?;
                offset += part.len() as u64;
            }
        }
        Ok(())
    }
    /// Reads many extents, all in flight together.
    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
        for request in reads {
            self.read(request.offset, request.buf)?;
        }
        Ok(())
    }
    /// Makes every write that has returned durable.
    fn flush(&self) -> io::Result<()>;
    /// Writes and makes durable this write and all writes that returned before it (write, then flush, unless the
    /// device can do better).
    fn write_durable(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write(offset, buf)?;
        self.flush()
    }
    /// Tells the host that a range is no longer needed (hole punch or discard); reads of it return zeros or old
    /// bytes afterwards. A host that cannot do it answers `Ok` and does nothing.
    fn discard(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Requests served since the device was opened.
    fn counters(&self) -> DeviceCounters;
}

/// One vectored write: `parts` land one after the other from `offset`.
pub struct WriteRequest<'a> {
    pub offset: u64,
    pub parts: &'a [&'a [u8]],
}

/// One read of a batch.
pub struct ReadRequest<'a> {
    pub offset: u64,
    pub buf: &'a mut [u8],
}

/// What a device has served: exact, and therefore what benchmarks compare first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
}
