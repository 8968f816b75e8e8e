//! A copy-on-write device: changes in memory over a base that is never written.

use std::io;
use std::sync::Arc;

use crate::error::{check_end, check_request};
use crate::sparse::{Base, CHUNK_SIZE, Sparse};
use crate::{BlockDevice, Counters, DeviceCounters, Discards};

/// Changes in memory over a shared base; dropped, they are gone. A recovery can run on one, be recorded, be thrown
/// away, and run again from the same state.
///
/// The base must not change while overlays on it live. Errors are the base's, and those of the range.
pub struct OverlayDevice {
    base: Arc<dyn BlockDevice>,
    changes: Sparse,
    counters: Counters,
}

impl OverlayDevice {
    /// An overlay with no changes: it reads as the base does, and has its size and alignment.
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self { base, changes: Sparse::new(), counters: Counters::default() }
    }

    /// An independent overlay in the same state, with counters at zero. It shares the changes made so far, so it
    /// costs about a microsecond however many they are.
    pub fn fork(&self) -> Self {
        Self { base: Arc::clone(&self.base), changes: self.changes.share(), counters: Counters::default() }
    }

    /// Bytes of memory that differ, or may differ, from the base.
    pub fn changed_bytes(&self) -> u64 {
        (self.changes.chunk_count() * CHUNK_SIZE) as u64
    }

    /// Writes bytes that need no alignment: a torn write ends at a sector of the medium, not of the device.
    pub(crate) fn patch(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check_end(self.size(), offset, bytes.len() as u64)?;
        self.changes.write(self.base(), offset, bytes)
    }

    fn base(&self) -> Base<'_> {
        Base { device: Some(&*self.base), size: self.base.size() }
    }
}

impl BlockDevice for OverlayDevice {
    fn size(&self) -> u64 {
        self.base.size()
    }

    fn alignment(&self) -> usize {
        self.base.alignment()
    }

    fn take_units(&self, unit: usize) -> io::Result<bool> {
        self.base.take_units(unit)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_request(self, offset, buf.len() as u64)?;
        self.changes.read(self.base(), offset, buf)?;
        self.counters.read(1, buf.len() as u64);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        check_request(self, offset, buf.len() as u64)?;
        self.changes.write(self.base(), offset, buf)?;
        self.counters.write(1, buf.len() as u64);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.counters.flush();
        Ok(())
    }

    /// Hides the base's bytes with zeros, from the first to the last whole sector of the range.
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        check_end(self.size(), offset, length)?;
        let alignment = self.alignment() as u64;
        let start = offset.next_multiple_of(alignment);
        let end = (offset + length) & !(alignment - 1);
        if start < end {
            self.changes.erase(self.base(), start, end - start)?;
        }
        self.counters.discard();
        Ok(())
    }

    /// Zeros take as much memory as anything else.
    fn discards(&self) -> Discards {
        Discards::OnRequest
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, WriteRequest};

    fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xEE; len];
        device.read(offset, &mut buf).unwrap();
        buf
    }

    #[test]
    fn changes_stay_in_the_overlay() {
        let base: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&[1; 10_000]));
        let overlay = OverlayDevice::new(Arc::clone(&base));
        overlay.write(9_990, &[2; 10]).unwrap();
        overlay.write(4096, &[3; 4096]).unwrap();
        overlay.discard(0, 100).unwrap();
        let forked = overlay.fork();
        forked.discard(0, 8192).unwrap();
        forked.write_many(&[WriteRequest { offset: 10, parts: &[b"a", b"bc"] }]).unwrap();
        assert_eq!(read(&*base, 0, 10_000), [1; 10_000]);

        let image = read(&overlay, 0, 10_000);
        assert_eq!((image[99], image[100], image[4095], image[4096], image[9_990]), (0, 1, 1, 3, 2));
        assert_eq!(overlay.changed_bytes(), 3 * 4096);
        let image = read(&forked, 0, 10_000);
        assert_eq!(image[9..14], *b"\0abc\0");
        assert_eq!((image[4096], image[8191], image[8192], image[9_999]), (0, 0, 1, 2));
    }

    #[test]
    fn a_sector_device_below_sees_only_aligned_reads() {
        let base = MemoryDevice::with_alignment(512 * 9, 512);
        base.write(0, &[1; 512 * 9]).unwrap();
        let overlay = OverlayDevice::new(Arc::new(base));
        overlay.write(512 * 8, &[2; 512]).unwrap();
        overlay.write(512, &[2; 512]).unwrap();
        overlay.discard(700, 2000).unwrap();
        assert!(overlay.write(1, &[0; 512]).is_err());
        assert!(overlay.write(512 * 9, &[0; 512]).is_err());
        let image = read(&overlay, 0, 512 * 9);
        assert!(image.chunks(512).all(|sector| sector.iter().all(|&byte| byte == sector[0])));
        let sectors: Vec<u8> = image.chunks(512).map(|sector| sector[0]).collect();
        assert_eq!(sectors, [1, 2, 0, 0, 0, 1, 1, 1, 2]);
    }
}
