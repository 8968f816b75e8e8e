//! The memory behind the cache: frames of one block each in one huge-page mapping, a header of one cache line a frame.
//!
//! This is the engine's only unsafe module. Its invariant: a frame's bytes are reached only through its latch.

#![allow(unsafe_code)]

use parking_lot::RawRwLock;
use parking_lot::lock_api::RawRwLock as _;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// One frame's state. `mask`, `unhomed` and `first_lsn` change only under the exclusive latch or by the checkpointer.
#[repr(align(64))]
pub(crate) struct FrameHeader {
    latch: RawRwLock,
    /// The block it holds.
    pub block: AtomicU64,
    /// Bits of `flag`.
    pub flags: AtomicU32,
    /// Granules changed in the open epoch.
    pub mask: AtomicU64,
    /// Granules logged and not yet written home.
    pub unhomed: AtomicU64,
    /// Log position from which `unhomed` can be replayed; meaningless when that is 0.
    pub first_lsn: AtomicU64,
}

pub(crate) struct Arena {
    memory: NonNull<u8>,
    map_len: usize,
    block_bits: u32,
    headers: Box<[FrameHeader]>,
}

// SAFETY: `memory` is owned by the arena and only reached through latches, which order accesses between threads.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `frames` frames of `1 << block_bits` bytes. Memory is taken from the host as frames are first used.
    pub fn new(frames: usize, block_bits: u32) -> std::io::Result<Self> {
        let map_len = frames << block_bits;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let memory = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                map_len,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE,
            )
        }?;
        // Huge pages halve the cost of a random access; a host that has none keeps small ones.
        // SAFETY: the range is the mapping just made; the advice does not change its contents.
        let _ = unsafe { rustix::mm::madvise(memory, map_len, rustix::mm::Advice::LinuxHugepage) };
        let memory = NonNull::new(memory.cast()).ok_or_else(|| std::io::Error::other("mapping at address 0"))?;
        let headers = (0..frames)
            .map(|_| FrameHeader {
                latch: RawRwLock::INIT,
                block: AtomicU64::new(0),
                flags: AtomicU32::new(0),
                mask: AtomicU64::new(0),
                unhomed: AtomicU64::new(0),
                first_lsn: AtomicU64::new(0),
            })
            .collect();
        Ok(Self { memory, map_len, block_bits, headers })
    }

    pub fn len(&self) -> usize {
        self.headers.len()
    }

    pub fn header(&self, index: u32) -> &FrameHeader {
        &self.headers[index as usize]
    }

    fn frame(&self, index: u32) -> *mut u8 {
        assert!((index as usize) < self.headers.len());
        // SAFETY: the index was just checked, so the result lies inside the mapping.
        unsafe { self.memory.as_ptr().add((index as usize) << self.block_bits) }
    }

    /// Takes the frame's latch for reading.
    pub fn read(&self, index: u32) -> FrameRead<'_> {
        self.header(index).latch.lock_shared();
        FrameRead { arena: self, index }
    }

    /// Takes the frame's latch for change.
    pub fn write(&self, index: u32) -> FrameWrite<'_> {
        self.header(index).latch.lock_exclusive();
        FrameWrite { arena: self, index }
    }

    /// Starts loading the cache lines at `offset` of a frame into the processor's cache.
    pub fn prefetch(&self, index: u32, offset: usize) {
        debug_assert!(offset < 1 << self.block_bits);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing the program can see, and the address lies inside the mapping.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.frame(index).add(offset).cast());
        }
    }

    /// Starts loading a frame's header.
    pub fn prefetch_header(&self, index: u32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `prefetch`.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(self.header(index)).cast());
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length, and no guard outlives the arena it borrows.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.map_len) };
    }
}

/// A frame's bytes under the shared latch.
pub(crate) struct FrameRead<'a> {
    arena: &'a Arena,
    index: u32,
}

impl Deref for FrameRead<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the frame lies inside the mapping, and the shared latch keeps writers out while `self` lives.
        unsafe { std::slice::from_raw_parts(self.arena.frame(self.index), 1 << self.arena.block_bits) }
    }
}

impl Drop for FrameRead<'_> {
    fn drop(&mut self) {
        // SAFETY: `Arena::read` took the shared latch.
        unsafe { self.arena.header(self.index).latch.unlock_shared() };
    }
}

/// A frame's bytes under the exclusive latch.
pub(crate) struct FrameWrite<'a> {
    arena: &'a Arena,
    index: u32,
}

impl Deref for FrameWrite<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the frame lies inside the mapping, and the exclusive latch keeps everyone else out.
        unsafe { std::slice::from_raw_parts(self.arena.frame(self.index), 1 << self.arena.block_bits) }
    }
}

impl DerefMut for FrameWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the frame lies inside the mapping, and the exclusive latch keeps everyone else out.
        unsafe { std::slice::from_raw_parts_mut(self.arena.frame(self.index), 1 << self.arena.block_bits) }
    }
}

impl Drop for FrameWrite<'_> {
    fn drop(&mut self) {
        // SAFETY: `Arena::write` took the exclusive latch.
        unsafe { self.arena.header(self.index).latch.unlock_exclusive() };
    }
}
