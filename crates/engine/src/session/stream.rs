//! An open file as the standard library knows files: `Read`, `Write`, `Seek`, and `FileExt` of Unix.
//!
//! Each handle has a position of its own, which only these traits move; `read_at` and `write_at` leave it alone. As with
//! `std::fs::File`, a reference to a file will do, so several threads may use one handle: each call takes what follows the last one.
//! The position is locked for as long as a call takes.

use super::File;
use crate::error::Errno;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

impl Read for &File {
    /// From the position on; 0 at the end of the file.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let count = File::read_at(self, buf, *position)?;
        *position += count as u64;
        Ok(count)
    }
}

impl Write for &File {
    /// From the position on; to the end, if it was opened to append.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let count = File::write_at(self, buf, *position)?;
        *position = if self.options.append { self.stat()?.size } else { *position + count as u64 };
        Ok(count)
    }

    /// Does nothing: nothing is gathered here. [`File::sync`] makes it durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    /// Positions past the end are allowed; those before the start are EINVAL.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let target = match to {
            SeekFrom::Start(target) => Some(target),
            SeekFrom::Current(offset) => position.checked_add_signed(offset),
            SeekFrom::End(offset) => self.stat()?.size.checked_add_signed(offset),
        };
        *position = target.filter(|&target| i64::try_from(target).is_ok()).ok_or(Errno::INVAL)?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

/// For `read_exact_at` and `write_all_at`, and for what is written for any file.
impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(File::read_at(self, buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Ok(File::write_at(self, buf, offset)?)
    }
}
