//! A device that counts and watches: what a volume asks of it is bounded, and what it may not do is noted.

use myriad_device::{BlockDevice, MemoryDevice};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// An image in memory under watch.
pub struct Watched {
    image: MemoryDevice,
    may_write: bool,
    /// Requests left before every further one fails.
    left: AtomicU64,
    exhausted: AtomicBool,
    wrote_unasked: AtomicBool,
    /// First write outside the image: offset and length.
    outside: [AtomicU64; 2],
}

impl Watched {
    /// Allows `requests` requests in all; writes only if `may_write`.
    pub fn new(image: MemoryDevice, may_write: bool, requests: u64) -> Self {
        Self {
            image,
            may_write,
            left: AtomicU64::new(requests),
            exhausted: AtomicBool::new(false),
            wrote_unasked: AtomicBool::new(false),
            outside: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// The image as it is now.
    pub fn into_image(self) -> MemoryDevice {
        self.image
    }

    /// What was done that must not be, if anything.
    pub fn complaint(&self) -> Option<String> {
        let (offset, length) = (self.outside[0].load(Relaxed), self.outside[1].load(Relaxed));
        if self.exhausted.load(Relaxed) {
            Some("more device requests than any sound volume of this size needs".to_owned())
        } else if self.wrote_unasked.load(Relaxed) {
            Some("wrote to a volume that was only to be read".to_owned())
        } else if length > 0 {
            Some(format!("write of {length} bytes at {offset}, outside the image"))
        } else {
            None
        }
    }

    fn count(&self) -> io::Result<()> {
        match self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => {
                self.exhausted.store(true, Relaxed);
                Err(io::Error::other("too many requests"))
            }
        }
    }

    fn changes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.count()?;
        if !self.may_write {
            self.wrote_unasked.store(true, Relaxed);
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        if offset.checked_add(length).is_none_or(|end| end > self.image.size()) {
            self.outside[0].store(offset, Relaxed);
            self.outside[1].store(length.max(1), Relaxed);
        }
        Ok(())
    }
}

impl BlockDevice for Watched {
    myriad_device::pass_on!(image: size, alignment, discards, counters);

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.count()?;
        self.image.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.changes(offset, buf.len() as u64)?;
        self.image.write(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.count()?;
        self.image.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.changes(offset, length)?;
        self.image.discard(offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_not_be_done_is_noted() {
        let image = MemoryDevice::new(4096);
        let reader = Watched::new(image.clone_image(), false, 3);
        reader.read(0, &mut [0; 512]).unwrap();
        assert_eq!(reader.complaint(), None);
        assert!(reader.write(0, &[1; 512]).is_err());
        assert!(reader.complaint().is_some_and(|what| what.contains("only to be read")));

        let writer = Watched::new(image.clone_image(), true, 2);
        writer.write(0, &[1; 512]).unwrap();
        assert_eq!(writer.complaint(), None);
        assert!(writer.write(4095, &[1; 2]).is_err());
        assert!(writer.complaint().is_some_and(|what| what.contains("outside")));
        assert!(writer.flush().is_err());
        assert!(writer.complaint().is_some_and(|what| what.contains("more device requests")));
    }
}
