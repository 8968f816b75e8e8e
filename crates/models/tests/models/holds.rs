//! A frame that is taken from one block and given to another (`engine/src/cache/holds.rs`), while somebody who knows it from before asks what it
//! holds. The frame's data is of one word, and so is each block of the device.
//!
//! Asserted:
//!   1. The end of a write of the old block does not make the new block's data count as written: no data is lost.
//!   2. A write of the old block writes what that block held, or nothing.
//!   3. An operation that met the old block in the frame does not take the new one for it.
//!
//! A page that is private has the old block's number here, as it had in the engine. There it has none by now, which is a second line: with it alone the
//! first two would hold as well, because the page is filled under the latch.
//!
//! Shuttle and loom have seen all three fail with the number loaded before the flags. Loom alone has seen all three fail with the flags loaded relaxed, and
//! the first two with the flags stored relaxed. (The third holds then, because the frame that it asks for has `LOADED` only by a later release.)

use super::get;
use crate::engine::latch::Latch;
use crate::engine::{flag, holds, unwritten};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::tool::{explore, thread};
use std::sync::Arc;

const OLD: u64 = 0;
const NEW: u64 = 1;
const PAGE: u64 = 7;
/// Flags of a block of inodes, by `kind_code`.
const LOADED_INODES: u32 = 3 | flag::LOADED;
const UNWRITTEN_DATA: u32 = flag::DATA | flag::LOADED | flag::DATA_DIRTY;

struct Frame {
    latch: Latch,
    block: AtomicU64,
    flags: AtomicU32,
    data: AtomicU64,
    device: [AtomicU64; 2],
}

impl Frame {
    /// A frame that holds the old block, whose data is 1.
    fn new(flags: u32) -> Arc<Self> {
        Arc::new(Self {
            latch: Latch::new(),
            block: AtomicU64::new(OLD),
            flags: AtomicU32::new(flags),
            data: AtomicU64::new(1),
            device: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    fn under_latch<R>(&self, work: impl FnOnce() -> R) -> R {
        self.latch.lock_exclusive();
        let result = work();
        // SAFETY: it was taken above.
        unsafe { self.latch.unlock_exclusive() };
        result
    }

    /// As `Cache::kill`.
    fn kill(&self) {
        self.under_latch(|| {
            self.flags.fetch_and(!(flag::FRESH | flag::DATA_DIRTY | flag::CHANGED_AGAIN), Ordering::Relaxed);
            self.flags.fetch_or(flag::DEAD, Ordering::Release);
        });
    }

    /// A sweep takes the frame, a file gets it for a page, and the page becomes the new block's content.
    fn publish_anew(&self) {
        self.flags.store(0, Ordering::Relaxed);
        self.flags.store(flag::DATA | flag::PRIVATE, Ordering::Release);
        self.under_latch(|| self.data.store(PAGE, Ordering::Relaxed));
        holds::give(&self.block, &self.flags, NEW, UNWRITTEN_DATA);
    }

    /// As `Cache::is_to_be_written`.
    fn is_to_be_written(&self, block: u64) -> bool {
        let asked = flag::DATA_DIRTY | flag::DEAD | flag::PRIVATE;
        holds::is_still(&self.block, &self.flags, block, asked, flag::DATA_DIRTY)
    }

    /// As `Volume::write_data`.
    fn write(&self, block: u64) {
        self.latch.lock_shared();
        let copy = self.is_to_be_written(block).then(|| {
            unwritten::begin_write(&self.flags);
            get(&self.data)
        });
        // SAFETY: it was taken above.
        unsafe { self.latch.unlock_shared() };
        if let Some(copy) = copy {
            self.device[block as usize].store(copy, Ordering::Relaxed);
            self.written(block);
        }
    }

    /// As `Cache::written`.
    fn written(&self, block: u64) {
        self.under_latch(|| {
            if self.is_to_be_written(block) {
                unwritten::end_write(&self.flags);
            }
        });
    }
}

#[test]
fn the_end_of_an_old_write_takes_no_new_data_for_written() {
    explore(3, || {
        let frame = Frame::new(LOADED_INODES | flag::DATA_DIRTY);
        let operations = {
            let frame = frame.clone();
            thread::spawn(move || {
                frame.kill();
                frame.publish_anew();
            })
        };
        // The checkpointer has written an image of the old block, which was fresh.
        frame.written(OLD);
        operations.join().unwrap();
        // The next checkpoint writes what it has been promised.
        frame.write(NEW);
        assert_eq!(get(&frame.device[NEW as usize]), PAGE, "data that counts as written is not on the device");
    });
}

#[test]
fn new_data_is_not_written_in_the_old_place() {
    explore(3, || {
        // An earlier checkpoint has written the data, so that the frame could be evicted; a later one has it on its list, too.
        let frame = Frame::new(flag::DATA | flag::LOADED);
        let operations = {
            let frame = frame.clone();
            thread::spawn(move || frame.publish_anew())
        };
        frame.write(OLD);
        operations.join().unwrap();
        assert_eq!(get(&frame.device[OLD as usize]), 0, "another block's data lies there");
        frame.write(NEW);
        assert_eq!(get(&frame.device[NEW as usize]), PAGE);
    });
}

#[test]
fn a_frame_is_not_taken_for_the_block_that_it_held() {
    explore(3, || {
        // Evicted before the operation entered the gate: it remembers the frame, and nobody has given it away yet.
        let frame = Frame::new(0);
        let other = {
            let frame = frame.clone();
            thread::spawn(move || {
                // As `Cache::claim`, and what fills the frame.
                holds::give(&frame.block, &frame.flags, NEW, 3 | flag::REFERENCED);
                frame.under_latch(|| {
                    frame.data.store(PAGE, Ordering::Relaxed);
                    frame.flags.fetch_or(flag::LOADED, Ordering::Release);
                });
            })
        };
        // As `Cache::still_in`.
        let asked = flag::KIND | flag::LOADED | flag::DEAD | flag::PRIVATE;
        let is_still = |block| holds::is_still(&frame.block, &frame.flags, block, asked, LOADED_INODES);
        assert!(!is_still(OLD), "it holds another block");
        other.join().unwrap();
        assert!(is_still(NEW) && get(&frame.data) == PAGE);
    });
}
