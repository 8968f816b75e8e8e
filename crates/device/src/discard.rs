//! BLKDISCARD, which rustix leaves out.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

/// `_IO(0x12, 119)` of linux/fs.h. (libc's headers lack it.)
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Discards a range of a block device, in bytes, in whole sectors.
pub(crate) fn discard_device(file: &File, position: u64, length: u64) -> Result<(), Errno> {
    let range = [position, length];
    // SAFETY: the descriptor is open, and the request reads two u64 through the pointer.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if answer == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
