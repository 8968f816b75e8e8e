//! Free frames: taking one, and eviction, which makes them.

use super::{Cache, flag};
use crate::counters::Count;
use crate::error::{Errno, Result};
use myriad_device::BlockSet;
use std::sync::atomic::Ordering;

pub(super) struct State {
    /// Frames used before, the last one freed on top: its memory is the likeliest to be near the processor.
    pub free: Vec<u32>,
    /// Frames from here on have never been used, and the host has given no memory for them yet.
    pub unused: u32,
    /// At this value of `unused`, the warmer is told to go on.
    pub warm_at: u32,
    pub frames: u32,
    /// Clock hand: the next frame to consider.
    pub hand: u32,
    /// Blocks of inodes that were given back and have not been made anew as metadata. What the device has of them may be
    /// older than their inodes' end.
    pub barred: BlockSet,
}

impl State {
    pub fn free_count(&self) -> usize {
        self.free.len() + (self.frames - self.unused) as usize
    }
}

impl Cache {
    pub(super) fn pop_free(&self, state: &mut State) -> Result<u32> {
        let index = match state.free.pop() {
            Some(index) => index,
            None if state.unused < state.frames => {
                state.unused += 1;
                if state.unused == state.warm_at {
                    state.warm_at = self.warm.go_on(state.unused, state.frames, self.block_bits);
                }
                state.unused - 1
            }
            None => return Err(Errno::NOMEM.into()),
        };
        self.free_count.store(state.free_count(), Ordering::Relaxed);
        Ok(index)
    }

    /// Takes a frame from its block. While the gate is closed, under the state mutex.
    pub(super) fn free(&self, state: &mut State, index: u32) {
        self.remove(index);
        self.arena.header(index).flags.store(0, Ordering::Relaxed);
        state.free.push(index);
    }

    /// Whether an operation may go in: enough free frames for all those inside.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.free_count.load(Ordering::Relaxed) > self.reserve
    }

    pub fn free_frames(&self) -> usize {
        self.free_count.load(Ordering::Relaxed)
    }

    /// Evicts clean frames not touched lately, dead ones first come: a batch of 1/32 of the cache. Outside the gate.
    /// Returns how many frames became free.
    pub fn sweep(&self, everything: bool) -> usize {
        let closed = self.gate.close();
        let mut state = self.state.lock();
        self.counters.bump(Count::cache_sweeps);
        // Frames never used hold nothing to evict.
        let frames = state.unused;
        let want = if everything { usize::MAX } else { self.reserve + (self.arena.len() / 32).max(64) };
        let mut freed = 0;
        for _ in 0..frames * 2 {
            if state.free_count() >= want {
                break;
            }
            let index = state.hand;
            state.hand = if index + 1 >= frames { 0 } else { index + 1 };
            let header = self.arena.header(index);
            let flags = header.flags.load(Ordering::Relaxed);
            if flags & flag::KIND == 0 || flags & (flag::PRIVATE | flag::LISTED | flag::DATA_DIRTY) != 0 {
                continue;
            }
            if flags & flag::DEAD == 0 {
                if header.mask.load(Ordering::Relaxed) != 0 || header.unhomed.is_any() {
                    continue;
                }
                if flags & flag::REFERENCED != 0 && !everything {
                    header.flags.fetch_and(!flag::REFERENCED, Ordering::Relaxed);
                    continue;
                }
            }
            self.free(&mut state, index);
            freed += 1;
        }
        self.counters.add(Count::cache_evictions, freed as u64);
        self.free_count.store(state.free_count(), Ordering::Relaxed);
        drop(state);
        drop(closed);
        freed
    }

    /// Has the host give memory for frames before they are taken, and with the first of them for the table. Stops short
    /// when the cache is about to go, or the host knows no such request.
    pub fn warm_up(&self, frames: std::ops::Range<u32>) -> std::io::Result<()> {
        if frames.start == 0 {
            self.table.populate(0..self.table.len())?;
        }
        // A huge page at a time.
        let step = ((2 << 20) >> self.block_bits).max(1);
        for start in frames.clone().step_by(step) {
            if self.warm.is_stopped() {
                break;
            }
            self.arena.populate(start..frames.end.min(start + step as u32))?;
        }
        Ok(())
    }
}
