//! A frame's latch, with the version by which readers copy a few words without taking the latch (a sequence lock).
//!
//! | the writer | the reader |
//! |---|---|
//! | 1. Takes the latch, and makes the version odd | 1. Reads the version. If it is odd, gives up |
//! | 2. Stores the words | 2. Reads the words |
//! | 3. Makes the version even, and lets the latch go | 3. Reads the version again. If it has changed, throws the words away |
//!
//! Without fences, the processor or the compiler could exchange the accesses to the words with those to the version. The writer has a
//! release fence after step 1, and its last store of the version is a release. The reader's first load is an acquire, and it has an acquire fence
//! before step 3. So a reader that sees one word of a change sees at least the odd version, and throws its copy away. And a reader that starts
//! from an even version sees all words that were stored before that version was.

use crate::sync::{AtomicU32, AtomicU64, Ordering, RawLock, RawRwLock, fence};
use zerocopy::{FromBytes, IntoBytes};

/// Zero is a free latch of version 0.
pub(crate) struct Latch {
    pub(super) lock: RawRwLock,
    /// Rises when the exclusive latch is taken, and when it is let go of: odd meanwhile.
    pub(super) version: AtomicU32,
}

impl Latch {
    #[inline]
    pub fn lock_shared(&self) {
        self.lock.lock_shared();
    }

    /// # Safety
    /// The caller took the shared latch.
    #[inline]
    pub unsafe fn unlock_shared(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.lock.unlock_shared() };
    }

    #[inline]
    pub fn lock_exclusive(&self) {
        self.lock.lock_exclusive();
        self.version.store(self.version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // Before the first change.
        fence(Ordering::Release);
    }

    /// # Safety
    /// The caller took the exclusive latch.
    #[inline]
    pub unsafe fn unlock_exclusive(&self) {
        self.version.store(self.version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        // SAFETY: the caller's promise.
        unsafe { self.lock.unlock_exclusive() };
    }

    /// Copies as many of the words as the value has. False, with `value` anything, if somebody has the latch for change, or had
    /// it meanwhile. They change the words by [`SharedBytes::put`] alone.
    #[inline]
    #[must_use]
    pub fn try_copy<T: FromBytes + IntoBytes>(&self, words: &[AtomicU64], value: &mut T) -> bool {
        let before = self.version.load(Ordering::Acquire);
        if before % 2 == 1 {
            return false;
        }
        for (bytes, word) in value.as_mut_bytes().chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        // After the last word.
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == before
    }
}

/// The bytes of a frame, for whoever has its latch for change, while others may copy them ([`Latch::try_copy`]).
pub(crate) struct SharedBytes<'a> {
    pub(super) words: &'a [AtomicU64],
}

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// Of all who change these words, only those who have the latch of their frame do, and the caller has it while this lives.
    pub unsafe fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }

    /// Stores those of some words that differ, and says which they were: bit i for the one at `offset + 8 * i`.
    #[inline]
    pub fn put_changed(&mut self, offset: usize, words: &[[u8; 8]]) -> u64 {
        assert!(offset % 8 == 0 && words.len() <= 64);
        let mut changed = 0;
        for (i, (word, bytes)) in self.words[offset / 8..][..words.len()].iter().zip(words).enumerate() {
            let new = u64::from_ne_bytes(*bytes);
            if word.load(Ordering::Relaxed) != new {
                word.store(new, Ordering::Relaxed);
                changed |= 1 << i;
            }
        }
        changed
    }

    /// Stores bytes, word by word; words of which they are a part are stored whole. Only the caller changes any of them.
    #[inline(always)]
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        if offset % 8 != 0 || !rest.is_empty() {
            return self.put_parts(offset, bytes);
        }
        for (word, bytes) in self.words[offset / 8..][..words.len()].iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// As [`Self::put`], of bytes that may begin or end in the middle of a word.
    #[inline(never)]
    fn put_parts(&mut self, offset: usize, mut bytes: &[u8]) {
        let mut at = offset / 8;
        let patch = |at: usize, from: usize, bytes: &[u8]| {
            let word = &self.words[at];
            let mut whole = word.load(Ordering::Relaxed).to_ne_bytes();
            whole[from..from + bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        };
        let within = offset % 8;
        if within > 0 {
            let (head, rest) = bytes.split_at(bytes.len().min(8 - within));
            patch(at, within, head);
            bytes = rest;
            at += 1;
        }
        let (whole, tail) = bytes.as_chunks::<8>();
        for (word, bytes) in self.words[at..at + whole.len()].iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            patch(at + whole.len(), 0, tail);
        }
    }
}
