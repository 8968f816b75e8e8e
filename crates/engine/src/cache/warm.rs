//! Frames whose memory the host has given before they are used.
//!
//! The host clears a page of memory when it is first touched. That took a quarter of the time of creating files in a fresh cache. A thread of
//! its own (`Volume::keep_warm`) touches frames a little ahead of the operations that take them. It begins once operations have taken more than
//! a few frames, stays ahead by as many as were used so far, and never by more than [`AHEAD_MAX`].

use parking_lot::{Condvar, Mutex};

/// Frames used before it begins.
pub(super) const BEGIN: u32 = 64;
/// Bytes to be ahead by, at least and at most.
const AHEAD_MIN: u64 = 4 << 20;
const AHEAD_MAX: u64 = 32 << 20;

#[derive(Default)]
pub(crate) struct Warmer {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default)]
struct Wanted {
    /// Frames before this one are to be warm.
    frames: u32,
    stop: bool,
}

impl Warmer {
    /// `unused` frames of `frames` have been taken: goes on from there. Returns at which number it wants to hear again.
    pub(super) fn go_on(&self, unused: u32, frames: u32, block_bits: u32) -> u32 {
        let ahead = (u64::from(unused) << block_bits).clamp(AHEAD_MIN, AHEAD_MAX) >> block_bits;
        // A small cache is not filled for the sake of a few frames.
        let ahead = ahead.clamp(1, u64::from(frames / 16).max(1)) as u32;
        self.wanted.lock().frames = unused.saturating_add(ahead).min(frames);
        self.changed.notify_one();
        unused.saturating_add(ahead.div_ceil(2))
    }

    /// Waits for frames beyond `done` to be wanted; up to which, or `None` at the end.
    pub fn next(&self, done: u32) -> Option<u32> {
        let mut wanted = self.wanted.lock();
        while !wanted.stop && wanted.frames <= done {
            self.changed.wait(&mut wanted);
        }
        (!wanted.stop).then_some(wanted.frames)
    }

    pub fn is_stopped(&self) -> bool {
        self.wanted.lock().stop
    }

    pub fn stop(&self) {
        self.wanted.lock().stop = true;
        self.changed.notify_one();
    }
}
