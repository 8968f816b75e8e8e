//! A part of a file mapped into memory, shared with all who have the file.

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;

pub struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; bytes are only copied, a byte at a time, by volatile accesses.
unsafe impl Send for Map {}

impl Map {
    /// The first `len` bytes, which the file has for as long as the map is used.
    pub fn new(file: impl AsFd, len: usize) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
        Ok(Self { base: NonNull::new(base.cast()).expect("nothing is mapped at address 0"), len })
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        // SAFETY: within the mapping. Other processes may write there at the same time, so each access is volatile and
        // no reference is made.
        (offset..offset + len).map(|at| unsafe { self.base.as_ptr().add(at).read_volatile() }).collect()
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        for (at, &byte) in bytes.iter().enumerate() {
            // SAFETY: as in `read`.
            unsafe { self.base.as_ptr().add(offset + at).write_volatile(byte) };
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// What was stored is in the file's own place when this returns.
    pub fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: the whole mapping, which stays as it is.
        unsafe { msync(self.base.as_ptr().cast::<c_void>(), self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping, for `read` copies.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
        unmapped.expect("it was mapped");
    }
}
