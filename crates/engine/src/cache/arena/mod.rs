//! The memory behind the cache: frames of one block each in one huge-page mapping, a header of one cache line a frame.
//!
//! This module is the engine's only unsafe code. Its invariants: a frame's bytes are reached only through its latch, or copied
//! without it and thrown away if its version says that they were changed meanwhile (a sequence lock, `latch.rs`); memory that is
//! zero is a valid value of everything kept in [`Zeroed`] slices; and where somebody may copy, whoever has the latch changes
//! bytes through [`SharedBytes`] only, so that both sides are atomic words.
//!
//! The copy without the latch is for a stat by path alone (`inode::read_into`). Taking and leaving the latch are two locked
//! instructions on a line that all who look at inodes of the block write; without them two threads that stat 20 files of one
//! directory took 32 to 35 ns a stat instead of 44 to 96, and one thread 63 instead of 66. Other operations read an inode under
//! the latch, because copying it word by word first made unlinking slower by 6 %. Only blocks of inodes are changed word by word,
//! so `BlockEdit` hands out no `&mut [u8]` of them; other blocks, which nobody copies, are changed by plain stores. Their readers
//! would have to put up with bytes of two states. A processor on which copying words costs more than the latch would undo this.
//! (Entering the gate by plain stores, with a barrier by membarrier(2) when it closes, gained nothing.) The tests of this module
//! pass under Miri, which reports the race if the stores are plain.

#![allow(unsafe_code)]

mod latch;

use super::unhomed::Unhomed;
use crate::locks::{Held, Rank};
use latch::Latch;
pub(crate) use latch::SharedBytes;
use parking_lot::RawRwLock;
use parking_lot::lock_api::RawRwLock as _;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// A slice of zeros in huge pages of its own: a random access to a big table costs half as much with them. Memory is
/// taken from the host as it is first used.
pub(crate) struct Zeroed<T> {
    memory: NonNull<T>,
    len: usize,
}

/// Types of which zeroed memory is a valid value.
///
/// # Safety
/// All bytes zero must be a valid value of the type.
pub(crate) unsafe trait ZeroIsValid {}

// SAFETY: an atomic integer is its integer.
unsafe impl ZeroIsValid for AtomicU64 {}
// SAFETY: bytes.
unsafe impl ZeroIsValid for u8 {}
// SAFETY: atomics, and a latch whose initial state is zero, which the assertion below holds to.
unsafe impl ZeroIsValid for FrameHeader {}

// SAFETY: a raw lock is one atomic word.
const _: () = assert!(unsafe { std::mem::transmute::<RawRwLock, usize>(RawRwLock::INIT) } == 0);

// SAFETY: the slice owns its memory; access between threads is as safe as the type's own.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T: ZeroIsValid> Zeroed<T> {
    pub fn new(len: usize) -> std::io::Result<Self> {
        let memory = map((len * size_of::<T>()).max(1))?;
        let memory = NonNull::new(memory.cast()).ok_or_else(|| std::io::Error::other("mapping at address 0"))?;
        Ok(Self { memory, len })
    }

    /// Has the host give memory for a range of values now, rather than at their first use.
    pub fn populate(&self, range: std::ops::Range<usize>) -> std::io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len);
        const PAGE: usize = 4096;
        let (start, end) = (range.start * size_of::<T>() / PAGE * PAGE, range.end * size_of::<T>());
        if start < end {
            // SAFETY: the range lies inside the mapping, whose values the advice does not change.
            unsafe {
                let at = self.memory.as_ptr().cast::<u8>().add(start);
                rustix::mm::madvise(at.cast(), end - start, rustix::mm::Advice::LinuxPopulateWrite)?;
            }
        }
        Ok(())
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` values, zero or written since, for as long as `self` lives; pages are aligned
        // for any type.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        let bytes = (self.len * size_of::<T>()).max(1);
        // SAFETY: the mapping was made in `new` with this length, and no borrow of it outlives `self`.
        unsafe { unmap(self.memory.as_ptr().cast(), bytes) };
    }
}

/// Memory of zeros, in pages of its own, huge ones where the host has them.
#[cfg(not(miri))]
fn map(bytes: usize) -> std::io::Result<*mut u8> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let memory = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE,
        )
    }?;
    // A host without huge pages keeps small ones.
    // SAFETY: the range is the mapping just made; the advice does not change its contents.
    let _ = unsafe { rustix::mm::madvise(memory, bytes, rustix::mm::Advice::LinuxHugepage) };
    Ok(memory.cast())
}

/// Gives memory back.
///
/// # Safety
/// It is what [`map`] gave for so many bytes, and nobody refers to it.
#[cfg(not(miri))]
unsafe fn unmap(memory: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { rustix::mm::munmap(memory.cast(), bytes) };
}

/// Miri has no mappings: memory of its allocator.
#[cfg(miri)]
fn map(bytes: usize) -> std::io::Result<*mut u8> {
    // SAFETY: the size is not 0.
    Ok(unsafe { std::alloc::alloc_zeroed(std::alloc::Layout::from_size_align(bytes, 4096).expect("it fits memory")) })
}

#[cfg(miri)]
unsafe fn unmap(memory: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise, and the layout of `map`.
    unsafe { std::alloc::dealloc(memory, std::alloc::Layout::from_size_align(bytes, 4096).expect("it was there")) };
}

/// Tells the process that made it from its forked children, by a page that the kernel hands to a child empty: asking for
/// the process's number would be a system call for each read and write.
pub(crate) struct ProcessMark {
    page: Zeroed<AtomicU64>,
    /// A kernel that cannot do so (before 4.14) has to be asked.
    pid: Option<u32>,
}

impl ProcessMark {
    pub fn new() -> std::io::Result<Self> {
        let page: Zeroed<AtomicU64> = Zeroed::new(1)?;
        // SAFETY: the mapping is ours, and a child that finds zeros finds a valid value.
        let wiped = unsafe {
            rustix::mm::madvise(
                page.memory.as_ptr().cast(),
                size_of::<AtomicU64>(),
                rustix::mm::Advice::LinuxWipeOnFork,
            )
        };
        page[0].store(1, Ordering::Relaxed);
        Ok(Self { page, pid: wiped.is_err().then(std::process::id) })
    }

    /// Whether this is the process that made the mark.
    #[inline]
    pub fn is_ours(&self) -> bool {
        match self.pid {
            None => self.page[0].load(Ordering::Relaxed) != 0,
            Some(pid) => pid == std::process::id(),
        }
    }
}

/// A header is one cache line.
const _: () = assert!(size_of::<FrameHeader>() == 64);

/// One frame's state. `mask` and `unhomed` change only under the exclusive latch or by the checkpointer.
#[repr(align(64))]
pub(crate) struct FrameHeader {
    latch: Latch,
    /// The block it holds.
    pub block: AtomicU64,
    /// Bits of `flag`.
    pub flags: AtomicU32,
    /// Granules changed in the open epoch.
    pub mask: AtomicU64,
    /// What of it the block's home does not have.
    pub unhomed: Unhomed,
}

pub(crate) struct Arena {
    memory: Zeroed<u8>,
    block_bits: u32,
    headers: Zeroed<FrameHeader>,
}

impl Arena {
    /// Reserves `frames` frames of `1 << block_bits` bytes.
    pub fn new(frames: usize, block_bits: u32) -> std::io::Result<Self> {
        Ok(Self { memory: Zeroed::new(frames << block_bits)?, block_bits, headers: Zeroed::new(frames)? })
    }

    pub fn len(&self) -> usize {
        self.headers.len()
    }

    /// Has the host give memory for frames and their headers.
    pub fn populate(&self, frames: std::ops::Range<u32>) -> std::io::Result<()> {
        let range = frames.start as usize..frames.end as usize;
        self.headers.populate(range.clone())?;
        self.memory.populate(range.start << self.block_bits..range.end << self.block_bits)
    }

    pub fn header(&self, index: u32) -> &FrameHeader {
        &self.headers[index as usize]
    }

    /// A frame: whoever has found it can read, change or copy it.
    #[inline]
    pub fn place(&self, index: u32) -> Place<'_> {
        let header = &self.headers[index as usize];
        // SAFETY: there are as many frames as headers, of which the index was just checked to be one: the result lies inside the mapping.
        let bytes = unsafe { self.memory.memory.as_ptr().add((index as usize) << self.block_bits) };
        Place { header, bytes, len: 1 << self.block_bits }
    }

    /// Takes the frame's latch for reading.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self, index: u32) -> FrameRead<'_> {
        self.place(index).read()
    }

    /// As [`Self::read`], of a private frame, by whoever has its file locked; also under another frame's latch. The
    /// only one who may have this frame's is the checkpointer, who comes to what the frame held before it was private:
    /// he waits for no latch meanwhile, so he may be waited for.
    pub fn read_private(&self, index: u32) -> FrameRead<'_> {
        let place = self.place(index);
        place.header.latch.lock_shared();
        FrameRead { place, _held: Held::tried(Rank::Latch, 0) }
    }

    /// Takes the frame's latch for change.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self, index: u32) -> FrameWrite<'_> {
        self.place(index).write()
    }
}

/// Starts loading the cache line of a value into the processor's cache.
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing the program can see, and the address is that of a live value.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Where a frame's header and bytes lie, worked out once for all that an operation does with the frame.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    header: &'a FrameHeader,
    /// The first of `len` bytes, which lie inside the arena's mapping; `header` is borrowed from the same arena, so the mapping lives
    /// as long as this.
    bytes: *mut u8,
    len: usize,
}

impl<'a> Place<'a> {
    #[inline]
    pub fn header(self) -> &'a FrameHeader {
        self.header
    }

    /// As [`Arena::read`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(self) -> FrameRead<'a> {
        let held = Held::wait(Rank::Latch, 0);
        self.header.latch.lock_shared();
        FrameRead { place: self, _held: held }
    }

    /// As [`Arena::write`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(self) -> FrameWrite<'a> {
        let held = Held::wait(Rank::Latch, 0);
        self.header.latch.lock_exclusive();
        FrameWrite { place: self, _held: held }
    }

    /// Copies what lies at `offset`, a multiple of 8, without the latch, so that readers write to no line that others read.
    /// False, with `value` anything, if somebody has the latch for change, or had it meanwhile. Of frames only that hold a block
    /// which is changed by [`SharedBytes`], for as long as the caller keeps the frame from being given to another.
    #[inline]
    #[must_use]
    pub fn try_copy<T: FromBytes + IntoBytes>(self, offset: usize, value: &mut T) -> bool {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        assert!(offset.is_multiple_of(8) && offset + size_of::<T>() <= self.len);
        // SAFETY: the range was just checked to lie inside the frame, whose memory is aligned for words and lives as long
        // as the arena. Whoever changes it meanwhile does so by the same atomic words, and what was read is used only if the
        // version says that nobody did.
        let words: &[AtomicU64] =
            unsafe { std::slice::from_raw_parts(self.bytes.add(offset).cast(), size_of::<T>() / 8) };
        self.header.latch.try_copy(words, value)
    }

    /// Starts loading the cache line at `offset` of a frame into the processor's cache.
    #[inline]
    pub fn prefetch(self, offset: usize) {
        debug_assert!(offset < self.len);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing the program can see, and the address lies inside the mapping.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.bytes.add(offset).cast());
        }
    }
}

/// A frame's bytes under the shared latch.
pub(crate) struct FrameRead<'a> {
    place: Place<'a>,
    _held: Held,
}

impl Deref for FrameRead<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the frame lies inside the mapping, and the shared latch keeps writers out while `self` lives.
        unsafe { std::slice::from_raw_parts(self.place.bytes, self.place.len) }
    }
}

impl Drop for FrameRead<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `Arena::read` took the shared latch.
        unsafe { self.place.header.latch.unlock_shared() };
    }
}

/// A frame's bytes under the exclusive latch.
pub(crate) struct FrameWrite<'a> {
    place: Place<'a>,
    _held: Held,
}

impl<'a> FrameWrite<'a> {
    #[inline]
    pub fn header(&self) -> &'a FrameHeader {
        self.place.header
    }
}

impl Deref for FrameWrite<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the frame lies inside the mapping, and the exclusive latch keeps everyone else out.
        unsafe { std::slice::from_raw_parts(self.place.bytes, self.place.len) }
    }
}

impl DerefMut for FrameWrite<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the frame lies inside the mapping, and the exclusive latch keeps everyone else out.
        unsafe { std::slice::from_raw_parts_mut(self.place.bytes, self.place.len) }
    }
}

impl FrameWrite<'_> {
    /// The bytes of a block that others may copy without the latch.
    #[inline]
    pub fn share(&mut self) -> SharedBytes<'_> {
        // SAFETY: the frame lies inside the mapping, is aligned for words, and lives as long as the arena. For as long as
        // `self` is borrowed nobody has its bytes otherwise but by atomic words, or to look ([`SharedBytes::get`]).
        let words = unsafe { std::slice::from_raw_parts(self.place.bytes.cast(), self.place.len / 8) };
        // SAFETY: `self` is the exclusive latch.
        unsafe { SharedBytes::new(words) }
    }
}

impl SharedBytes<'_> {
    #[inline]
    pub fn get(&self) -> &[u8] {
        // SAFETY: the same memory as bytes. Only `put` changes it, which nobody can call while `self` is borrowed; what others do
        // meanwhile is to read.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len() * 8) }
    }
}

impl Drop for FrameWrite<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `Arena::write` took the exclusive latch.
        unsafe { self.place.header.latch.unlock_exclusive() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// The checkpointer may still come to a frame that it has written, though the frame is somebody's own by now.
    #[test]
    fn a_private_frame_is_waited_for() {
        let arena = Arena::new(2, 12).unwrap();
        std::thread::scope(|scope| {
            let mut late = arena.write(1);
            let reader = scope.spawn(|| {
                let _published = arena.write(0);
                arena.read_private(1)[0]
            });
            // Long enough for the reader to come, who would not find the latch free.
            for _ in 0..100 {
                if reader.is_finished() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            late[0] = 7;
            drop(late);
            assert_eq!(reader.join().unwrap(), 7);
        });
    }

    #[test]
    fn bytes_of_any_place_and_length_are_put() {
        let arena = Arena::new(1, 9).unwrap();
        let mut expected = [0; 512];
        for (round, (offset, length)) in [
            (0, 8),
            (8, 128),
            (3, 2),
            (5, 3),
            (5, 4),
            (15, 1),
            (17, 30),
            (500, 12),
            (511, 1),
            (512, 0),
            (7, 0),
            (0, 512),
        ]
        .into_iter()
        .enumerate()
        {
            let bytes: Vec<u8> = (0..length).map(|at| (round * 16 + at) as u8).collect();
            expected[offset..offset + length].copy_from_slice(&bytes);
            let mut frame = arena.write(0);
            frame.share().put(offset, &bytes);
            assert_eq!(frame.share().get(), expected);
            assert_eq!(*frame, expected);
        }
    }

    /// Whoever copies without the latch gets what one writer left, or nothing.
    #[test]
    fn a_copy_is_whole_or_none() {
        // Miri lets another thread go on after a hundred steps or so: few copies of many words would come to their end.
        const LEN: usize = if cfg!(miri) { 16 } else { 512 };
        let (least, different) = if cfg!(miri) { (20, 3) } else { (100_000, 50) };
        let arena = Arena::new(2, 12).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    arena.write(1).share().put(512, &[round as u8; LEN]);
                }
            });
            let (mut copied, mut values) = (0, std::collections::HashSet::new());
            while copied < least || values.len() < different {
                let mut copy = [1_u8; LEN];
                assert!(arena.place(0).try_copy(512, &mut copy) && copy == [0; LEN]);
                if !arena.place(1).try_copy(512, &mut copy) {
                    continue;
                }
                if copy.iter().any(|byte| *byte != copy[0]) {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{copy:?}");
                }
                copied += 1;
                values.insert(copy[0]);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
