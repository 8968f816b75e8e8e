//! File data that changes while it is being written (`engine/src/cache/unwritten.rs`), under a frame's latch. The data is of one word.
//!
//! Asserted:
//!   1. What is no longer to be written is on the device as it is in the frame: no change is lost.
//!   2. Who changes data that an earlier epoch has promised to write need not promise it again: it is written, and ends as written.
//!   3. A flag that somebody sets meanwhile without the latch stays set.
//!
//! Shuttle has seen each of these fail: `end_write` that looks at no flag; `begin_write` that takes nothing away, or is called once the latch is let
//! go; `change_again` that sets nothing; any of the three by a load and a store.

use super::{add, get};
use crate::engine::latch::Latch;
use crate::engine::{flag, unwritten};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::tool::{ROUNDS, explore, thread};
use std::sync::Arc;

struct Frame {
    latch: Latch,
    flags: AtomicU32,
    data: AtomicU64,
    device: AtomicU64,
}

impl Frame {
    fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// As `Cache::publish`, of a block that has a frame. Whether the data is to be written once more.
    fn change(&self) -> bool {
        self.latch.lock_exclusive();
        let is_promised = unwritten::is_unwritten(self.flags());
        add(&self.data, 1);
        if is_promised {
            unwritten::change_again(&self.flags);
        } else {
            self.flags.fetch_or(flag::DATA_DIRTY, Ordering::Relaxed);
        }
        // SAFETY: it was taken above.
        unsafe { self.latch.unlock_exclusive() };
        !is_promised
    }

    /// As `Volume::write_data`.
    fn write(&self) {
        self.latch.lock_shared();
        let is_unwritten = unwritten::is_unwritten(self.flags());
        if is_unwritten {
            unwritten::begin_write(&self.flags);
        }
        let copy = get(&self.data);
        // SAFETY: it was taken above.
        unsafe { self.latch.unlock_shared() };
        if !is_unwritten {
            return;
        }
        self.device.store(copy, Ordering::Relaxed);
        self.latch.lock_exclusive();
        unwritten::end_write(&self.flags);
        self.assert_written();
        // SAFETY: it was taken above.
        unsafe { self.latch.unlock_exclusive() };
    }

    /// Under the latch, or when nobody else is there.
    fn assert_written(&self) {
        let is_unwritten = unwritten::is_unwritten(self.flags());
        assert!(is_unwritten || get(&self.device) == get(&self.data), "a change is lost");
    }
}

#[test]
fn what_changes_while_it_is_written_is_written_again() {
    explore(3, || {
        let frame = Arc::new(Frame {
            latch: Latch::new(),
            flags: AtomicU32::new(flag::DATA | flag::LOADED | flag::DATA_DIRTY),
            data: AtomicU64::new(1),
            device: AtomicU64::new(0),
        });
        let changing = {
            let frame = frame.clone();
            thread::spawn(move || (0..ROUNDS).map(|_| u64::from(frame.change())).sum::<u64>())
        };
        let reading = {
            let frame = frame.clone();
            thread::spawn(move || _ = frame.flags.fetch_or(flag::REFERENCED, Ordering::Relaxed))
        };
        (0..ROUNDS).for_each(|_| frame.write());
        let promises = changing.join().unwrap();
        reading.join().unwrap();
        frame.assert_written();
        assert_ne!(frame.flags() & flag::REFERENCED, 0, "another flag is lost");
        if unwritten::is_unwritten(frame.flags()) {
            // The commit that was promised this, at the latest.
            frame.write();
        }
        assert!(!unwritten::is_unwritten(frame.flags()) && promises <= ROUNDS);
        assert_eq!(get(&frame.device), 1 + ROUNDS);
    });
}
