//! A frame's latch and the copies without it (`engine/src/cache/arena/latch.rs`). The frame is of two words.
//!
//! Asserted:
//!   1. A copy is one that some writer left, whole: never words of two states.
//!   2. Who copies twice does not see the older state second, and who learns of a change by other means sees it, or a later one.
//!   3. Writers exclude each other, and those who read under the latch.
//!   4. A copy comes about when nobody has the latch for change.

use super::ALL;
use crate::engine::latch::{Latch, SharedBytes};
use crate::sync::{AtomicU64, Ordering};
use crate::tool::{ROUNDS, explore, thread};
use std::sync::Arc;

struct Frame {
    latch: Latch,
    words: [AtomicU64; 2],
    /// How many changes have been told of.
    told: AtomicU64,
}

impl Frame {
    fn new() -> Arc<Self> {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        Arc::new(Self { latch: Latch::new(), words, told: AtomicU64::new(0) })
    }

    /// Makes both words one more than they were. At every other time the second is put in two parts; else those are put that differ, and it is
    /// asked which they were.
    fn change(&self) -> u64 {
        self.latch.lock_exclusive();
        let before = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        assert_eq!(before[0], before[1], "under the latch nothing is half done");
        let bytes = (before[0] + 1).to_ne_bytes();
        // SAFETY: the latch was taken for change, and is let go of below.
        let mut shared = unsafe { SharedBytes::new(&self.words) };
        if before[0] % 2 == 0 {
            shared.put(0, &[bytes, bytes].concat()[..12]);
            shared.put(12, &bytes[4..]);
        } else {
            assert_eq!(shared.put_changed(0, &[bytes, bytes]), 0b11, "who writes them home is told of both");
            assert_eq!(shared.put_changed(0, &[bytes, bytes]), 0);
        }
        // SAFETY: it was taken above.
        unsafe { self.latch.unlock_exclusive() };
        before[0] + 1
    }

    fn copy(&self) -> Option<u64> {
        let mut copy = [0_u64; 2];
        if !self.latch.try_copy(&self.words, &mut copy) {
            return None;
        }
        assert_eq!(copy[0], copy[1], "a copy is of two states");
        Some(copy[0])
    }
}

#[test]
fn a_copy_is_whole_and_none_is_older_than_the_last() {
    explore(3, || {
        let frame = Frame::new();
        let writer = {
            let frame = frame.clone();
            thread::spawn(move || {
                for _ in 0..2 * ROUNDS {
                    let changes = frame.change();
                    frame.told.store(changes, Ordering::Release);
                }
            })
        };
        let mut last = 0;
        for _ in 0..2 * ROUNDS {
            let told = frame.told.load(Ordering::Acquire);
            if let Some(copy) = frame.copy() {
                assert!(copy >= last && copy >= told, "{copy} after {last}, {told} changes told of");
                last = copy;
            }
        }
        writer.join().unwrap();
        assert_eq!(frame.copy(), Some(2 * ROUNDS));
    });
}

#[test]
fn writers_exclude_each_other_and_readers() {
    explore(ALL, || {
        let frame = Frame::new();
        let writers = [(), ()].map(|()| {
            let frame = frame.clone();
            thread::spawn(move || (0..ROUNDS).for_each(|_| _ = frame.change()))
        });
        frame.latch.lock_shared();
        let read = frame.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        assert_eq!(read[0], read[1], "under the latch nothing is half done");
        // Beside the latch, shared, nothing changes: the copy is that of the latch.
        assert_eq!(frame.copy(), Some(read[0]));
        // SAFETY: it was taken above.
        unsafe { frame.latch.unlock_shared() };
        let copy = frame.copy();
        assert!(copy.is_none_or(|copy| copy >= read[0]));
        writers.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(frame.copy(), Some(2 * ROUNDS));
    });
}
