//! A device in memory. Nothing in it is ever volatile or durable: a flush only counts.

use std::io;

use crate::error::{check_end, check_request};
use crate::sparse::{Base, CHUNK_SIZE, Sparse};
use crate::{BlockDevice, Counters, DeviceCounters, Discards, ReadRequest, WriteRequest};

/// A sparse device in memory: chunks are allocated when first written, so its size costs nothing.
///
/// Reads of bytes never written give zeros. No request fails but for its range.
pub struct MemoryDevice {
    bytes: Sparse,
    size: u64,
    alignment: usize,
    counters: Counters,
}

impl MemoryDevice {
    /// A device of `size` zero bytes, with an alignment of one byte.
    pub fn new(size: u64) -> Self {
        Self { bytes: Sparse::new(), size, alignment: 1, counters: Counters::default() }
    }

    /// A device that refuses what is not aligned to `alignment` bytes, as direct I/O does. `alignment` is rounded up
    /// to a power of two, `size` down to a multiple of it.
    pub fn with_alignment(size: u64, alignment: usize) -> Self {
        let alignment = alignment.checked_next_power_of_two().unwrap_or(1);
        Self { alignment, ..Self::new(size & !(alignment as u64 - 1)) }
    }

    /// A device holding a copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let device = Self::new(bytes.len() as u64);
        device.bytes.write(device.base(), 0, bytes).expect("zeros cannot fail to be read");
        device
    }

    /// An independent copy with counters at zero. It shares memory with this one until either is written, so it
    /// costs about a microsecond whatever the image holds. Writes running at the same time may be in it in part.
    pub fn clone_image(&self) -> Self {
        Self { bytes: self.bytes.share(), size: self.size, alignment: self.alignment, counters: Counters::default() }
    }

    /// Bytes of memory that hold contents, shared or not.
    pub fn allocated_bytes(&self) -> u64 {
        (self.bytes.chunk_count() * CHUNK_SIZE) as u64
    }

    fn base(&self) -> Base<'static> {
        Base { device: None, size: self.size }
    }
}

impl BlockDevice for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_request(self, offset, buf.len() as u64)?;
        self.bytes.read(self.base(), offset, buf)?;
        self.counters.read(1, buf.len() as u64);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        check_request(self, offset, buf.len() as u64)?;
        self.bytes.write(self.base(), offset, buf)?;
        self.counters.write(1, buf.len() as u64);
        Ok(())
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        for request in writes {
            check_request(self, request.offset, request.len_bytes())?;
        }
        for request in writes {
            let mut offset = request.offset;
            for part in request.parts {
                self.bytes.write(self.base(), offset, part)?;
                offset += part.len() as u64;
            }
            self.counters.write(1, request.len_bytes());
        }
        Ok(())
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
        for request in reads.iter() {
            check_request(self, request.offset, request.buf.len() as u64)?;
        }
        reads.iter_mut().try_for_each(|request| self.read(request.offset, request.buf))
    }

    fn flush(&self) -> io::Result<()> {
        self.counters.flush();
        Ok(())
    }

    /// Drops the chunks; the range then reads as zeros.
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        check_end(self.size, offset, length)?;
        self.bytes.erase(self.base(), offset, length)?;
        self.counters.discard();
        Ok(())
    }

    fn discards(&self) -> Discards {
        Discards::Always
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIB: u64 = 1 << 40;

    fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xEE; len];
        device.read(offset, &mut buf).unwrap();
        buf
    }

    #[test]
    fn sixteen_tebibytes_cost_what_is_written() {
        let device = MemoryDevice::new(16 * TIB);
        assert_eq!(read(&device, 16 * TIB - 10, 10), [0; 10]);
        assert_eq!(device.allocated_bytes(), 0);
        for group in 0..1000 {
            device.write(group * (16 << 30) + 5, b"group").unwrap();
        }
        device.write(16 * TIB - 4, b"last").unwrap();
        assert_eq!(device.allocated_bytes(), 1001 * 4096);
        assert_eq!(read(&device, 999 * (16 << 30) + 4, 7), b"\0group\0");
        assert_eq!(read(&device, 16 * TIB - 4, 4), b"last");
        device.discard(0, 16 * TIB).unwrap();
        assert_eq!(device.allocated_bytes(), 0);
        assert_eq!(read(&device, 16 * TIB - 4, 4), [0; 4]);
    }

    #[test]
    fn past_the_end_is_refused() {
        let device = MemoryDevice::new(1000);
        for (offset, len) in [(1000, 1), (999, 2), (u64::MAX, 1), (0, 1001)] {
            let mut buf = vec![0; len];
            assert_eq!(device.read(offset, &mut buf).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert!(device.write(offset, &buf).is_err());
            assert!(device.discard(offset, len as u64).is_err());
        }
        device.write(1000, &[]).unwrap();
        assert_eq!(device.counters(), DeviceCounters { writes: 1, ..Default::default() });
    }

    #[test]
    fn alignment_is_enforced_where_asked() {
        let device = MemoryDevice::with_alignment(10_000, 512);
        assert_eq!((device.size(), device.alignment()), (9728, 512));
        assert!(device.write(1, &[0; 512]).is_err());
        assert!(device.write(512, &[0; 511]).is_err());
        device.write(512, &[0; 512]).unwrap();
        let parts: [&[u8]; 2] = [&[1; 500], &[2; 12]];
        device.write_many(&[WriteRequest { offset: 1024, parts: &parts }]).unwrap();
        assert_eq!(read(&device, 1024, 512)[498..502], [1, 1, 2, 2]);
    }

    #[test]
    fn a_batch_with_one_bad_request_writes_nothing() {
        let device = MemoryDevice::new(100);
        let bad = [WriteRequest { offset: 0, parts: &[b"x"] }, WriteRequest { offset: 100, parts: &[b"x"] }];
        assert!(device.write_many(&bad).is_err());
        assert_eq!(read(&device, 0, 1), [0]);
    }

    #[test]
    fn copies_are_independent() {
        let device = MemoryDevice::from_bytes(&[1; 10_000]);
        let copy = device.clone_image();
        copy.write(4000, &[2; 200]).unwrap();
        device.write(0, &[3]).unwrap();
        device.discard(8192, 1808).unwrap();
        assert_eq!(read(&device, 3999, 3), [1; 3]);
        assert_eq!(read(&copy, 3999, 3), [1, 2, 2]);
        assert_eq!((read(&device, 0, 1), read(&copy, 0, 1)), (vec![3], vec![1]));
        assert_eq!((read(&device, 9999, 1), read(&copy, 9999, 1)), (vec![0], vec![1]));
    }

    #[test]
    fn discard_zeroes_exactly_its_range() {
        let device = MemoryDevice::from_bytes(&[1; 20_000]);
        device.discard(100, 50).unwrap();
        device.discard(4000, 9000).unwrap();
        let image = read(&device, 0, 20_000);
        for (offset, &byte) in image.iter().enumerate() {
            let gone = (100..150).contains(&offset) || (4000..13_000).contains(&offset);
            assert_eq!(byte, u8::from(!gone), "at {offset}");
        }
        assert_eq!(device.allocated_bytes(), 3 * 4096);
        assert_eq!(device.counters().discards, 2);
    }

    #[test]
    fn threads_write_side_by_side() {
        let device = MemoryDevice::new(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let device = &device;
                scope.spawn(move || {
                    for turn in 0..256_u64 {
                        device.write(turn * 4096 + u64::from(thread) * 1024, &[thread + 1; 1024]).unwrap();
                    }
                });
            }
        });
        let image = read(&device, 0, 1 << 20);
        assert!(image.iter().enumerate().all(|(offset, &byte)| byte as usize == offset / 1024 % 4 + 1));
    }
}
