//! Page-aligned byte buffers: what direct I/O wants to be handed.
//!
//! Invariants of [`AlignedBuf`], which its unsafe blocks lean on
//!   1. `pointer` came from the global allocator with `layout(capacity)`, or is dangling when `capacity` is 0.
//!   2. All `capacity` bytes are initialised: they were allocated zeroed and nothing writes uninitialised bytes.
//!   3. `len <= capacity`.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use parking_lot::Mutex;

/// Alignment in bytes of every [`AlignedBuf`]. No host asks direct I/O for more than a page.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// Only for the address of an empty buffer.
#[repr(align(4096))]
struct Page;

const _: () = assert!(align_of::<Page>() == BUFFER_ALIGNMENT);

/// An owned byte buffer that starts on a page boundary.
///
/// Like a `Vec<u8>` it aborts when memory runs out; unlike one it never grows.
pub struct AlignedBuf {
    pointer: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: the buffer owns its bytes alone; the pointer is shared with nobody, as in `Box<[u8]>`.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference only reads, as in `Box<[u8]>`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    ///
    /// # Panics
    /// When `len` rounded up to a page exceeds `isize::MAX`, as `Vec::with_capacity` does.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { pointer: NonNull::<Page>::dangling().cast(), len: 0, capacity: 0 };
        }
        let capacity = len.next_multiple_of(BUFFER_ALIGNMENT);
        let layout = Self::layout(capacity);
        // SAFETY: `capacity` is at least `len`, which is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(pointer) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { pointer, len, capacity }
    }

    /// A buffer holding a copy of `bytes`.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Bytes that [`AlignedBuf::resize`] can reach without a new allocation: a multiple of [`BUFFER_ALIGNMENT`].
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length to `len` bytes, so that one allocation can serve many requests. Bytes that come into view
    /// keep what they last held; they are not cleared. Answers false, and changes nothing, when `len` exceeds the
    /// capacity.
    #[must_use]
    pub fn resize(&mut self, len: usize) -> bool {
        let fits = len <= self.capacity;
        if fits {
            self.len = len;
        }
        fits
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, BUFFER_ALIGNMENT).expect("buffer size fits in isize")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.capacity != 0 {
            // SAFETY: invariant 1; the buffer is owned and being dropped, so nothing uses the bytes afterwards.
            unsafe { dealloc(self.pointer.as_ptr(), Self::layout(self.capacity)) }
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: invariants 1 to 3; an empty buffer's dangling pointer is not null and is aligned.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::from_slice(self)
    }
}

impl From<&[u8]> for AlignedBuf {
    fn from(bytes: &[u8]) -> Self {
        Self::from_slice(bytes)
    }
}

impl Default for AlignedBuf {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl PartialEq for AlignedBuf {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).field("capacity", &self.capacity).finish()
    }
}

/// Buffers waiting to be used again, so that a bounce copy costs no page faults.
///
/// Holds at most `count_max` buffers of at most `size_max` bytes each; what does not fit is freed.
#[derive(Debug)]
pub struct BufferPool {
    idle: Mutex<Vec<AlignedBuf>>,
    count_max: usize,
    size_max: usize,
}

impl BufferPool {
    /// An empty pool that will keep `count_max` buffers of up to `size_max` bytes.
    pub fn new(count_max: usize, size_max: usize) -> Self {
        Self { idle: Mutex::new(Vec::new()), count_max, size_max }
    }

    /// A buffer of `len` bytes of unspecified (but initialised) contents.
    pub fn take(&self, len: usize) -> AlignedBuf {
        let mut idle = self.idle.lock();
        let found = idle.iter().rposition(|buffer| buffer.capacity() >= len);
        if let Some(mut buffer) = found.map(|index| idle.swap_remove(index)) {
            let fits = buffer.resize(len);
            assert!(fits);
            return buffer;
        }
        drop(idle);
        AlignedBuf::zeroed(len)
    }

    /// Gives a buffer back for a later [`BufferPool::take`].
    pub fn put(&self, buffer: AlignedBuf) {
        let mut idle = self.idle.lock();
        if idle.len() < self.count_max && (1..=self.size_max).contains(&buffer.capacity()) {
            idle.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_on_a_page_and_hold_zeros() {
        for len in [0, 1, 511, 4096, 4097, 1 << 20] {
            let buffer = AlignedBuf::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().addr() % BUFFER_ALIGNMENT, 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn resize_stays_within_the_allocation() {
        let mut buffer = AlignedBuf::from_slice(b"abc");
        assert!(buffer.resize(4096));
        assert_eq!(&buffer[..4], b"abc\0");
        assert!(!buffer.resize(4097));
        assert_eq!(buffer.len(), 4096);
        assert!(buffer.resize(2));
        assert_eq!(&buffer[..], b"ab");
        assert_eq!(buffer.clone(), buffer);
    }

    #[test]
    fn pool_reuses_what_fits_and_keeps_no_more_than_told() {
        let pool = BufferPool::new(1, 8192);
        let first = pool.take(8000);
        let address = first.as_ptr().addr();
        pool.put(first);
        pool.put(AlignedBuf::zeroed(100));
        assert_eq!(pool.idle.lock().len(), 1);
        let second = pool.take(10);
        assert_eq!((second.as_ptr().addr(), second.len()), (address, 10));
        pool.put(AlignedBuf::zeroed(100_000));
        assert_eq!(pool.idle.lock().len(), 0);
    }

    #[test]
    fn buffers_cross_threads() {
        let buffer = AlignedBuf::from_slice(&[7; 100]);
        let sum = std::thread::scope(|scope| scope.spawn(|| buffer.iter().map(|&b| u64::from(b)).sum::<u64>()).join());
        assert_eq!(sum.unwrap(), 700);
    }
}
