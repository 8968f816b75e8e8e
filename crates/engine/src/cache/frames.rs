//! Free frames: taking one, and eviction, which makes them.

use super::directories::{Directories, holds_directory};
use super::{Cache, flag};
use crate::counters::Count;
use crate::error::{Errno, Result};
use myriad_device::BlockSet;
use std::sync::atomic::Ordering;

/// Frames that an operation may take inside the gate without having asked for them. The reserve has so many for several at a time.
pub(crate) const FRAMES_UNASKED: usize = 64;

/// What of the free frames is left to others by who asks for many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// All of the reserve.
    Reserve,
    /// Half of the reserve: for who works to make room.
    HalfOfReserve,
}

/// What a sweep evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Frames not touched lately, a batch of 1/32 of the cache.
    ForRoom,
    /// As many, or one more than this if that is more.
    ForFrames(usize),
    /// All that may go.
    Everything,
}

pub(super) struct State {
    /// Frames used before, the last one freed on top: its memory is the likeliest to be near the processor.
    pub free: Vec<u32>,
    /// Frames from here on have never been used, and the host has given no memory for them yet.
    pub unused: u32,
    /// At this value of `unused`, the warmer is told to go on.
    pub warm_at: u32,
    pub frames: u32,
    /// Of the free frames, those that operations inside the gate have asked for.
    pub asked: usize,
    /// Clock hand: the next frame to consider.
    pub hand: u32,
    /// Blocks of metadata that were freed and have not been made anew as metadata. What the device has of them may be inodes as they were
    /// before their end.
    pub barred: BlockSet,
    pub directories: Directories,
    /// Blocks evicted in this sweep that were read ahead and never asked for.
    pub unused_ahead: usize,
}

impl State {
    pub fn free_count(&self) -> usize {
        self.free.len() + (self.frames - self.unused) as usize
    }

    /// Free frames that nobody has asked for.
    pub fn unasked_count(&self) -> usize {
        self.free_count().saturating_sub(self.asked)
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
        self.note_room(state);
        Ok(index)
    }

    /// Takes a frame from its block. While the gate is closed, under the state mutex.
    pub(super) fn free(&self, state: &mut State, index: u32) {
        self.remove(index);
        let flags = self.arena.header(index).flags.swap(0, Ordering::Relaxed);
        if holds_directory(flags) {
            state.directories.count -= 1;
            if flags & flag::DEAD == 0 {
                self.counters.bump(Count::dir_cache_evictions);
            }
        }
        if flags & (flag::AHEAD | flag::REFERENCED | flag::DEAD) == flag::AHEAD {
            state.unused_ahead += 1;
        }
        state.free.push(index);
    }

    /// To be called whenever that changed which an operation looks at before it begins. Under the state mutex.
    pub(super) fn note_room(&self, state: &State) {
        let room = if state.directories.wants_sweep() { 0 } else { state.unasked_count() };
        self.room.store(room, Ordering::Relaxed);
    }

    /// Whether an operation may go in: enough free frames for all those inside, and a pool of directories that is not full. If not,
    /// a sweep comes first.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.has_room_for(0)
    }

    /// Whether so many blocks more find frames that are not kept for operations under way.
    #[inline]
    pub(super) fn has_room_for(&self, blocks: usize) -> bool {
        self.room.load(Ordering::Relaxed) > self.reserve + blocks
    }

    /// Whether there are enough free frames, whatever directories have of the others.
    pub fn has_free_frames(&self) -> bool {
        self.spare_frames() > 0
    }

    /// Free frames that operations already inside the gate do not need.
    pub fn spare_frames(&self) -> usize {
        self.state.lock().unasked_count().saturating_sub(self.reserve)
    }

    /// Keeps free frames for an operation inside the gate, until it says [`Self::asked_end`] on its way out. False, with none kept, if
    /// that does not leave enough for others. What it has taken by then counts twice, so others rather ask for a sweep too early.
    pub fn ask(&self, frames: usize, leaving: Leaving) -> bool {
        let left = match leaving {
            Leaving::Reserve => self.reserve,
            Leaving::HalfOfReserve => self.reserve / 2,
        };
        let mut state = self.state.lock();
        let fits = state.unasked_count() >= left + frames;
        if fits {
            state.asked += frames;
            self.note_room(&state);
        }
        fits
    }

    /// The operation that asked for so many frames needs no more of them.
    pub fn asked_end(&self, frames: usize) {
        let mut state = self.state.lock();
        state.asked -= frames;
        self.note_room(&state);
    }

    /// The most frames that one operation may ask for. More would leave the others nothing that may stay.
    pub fn ask_max(&self) -> usize {
        (self.frame_count() - self.reserve) / 2
    }

    pub fn free_frames(&self) -> usize {
        self.state.lock().free_count()
    }

    /// Whether nothing speaks against taking a frame from its block. While the gate is closed.
    pub(super) fn is_evictable(&self, index: u32) -> bool {
        let header = self.arena.header(index);
        let flags = header.flags.load(Ordering::Relaxed);
        if flags & flag::KIND == 0 || flags & (flag::PRIVATE | flag::LISTED | flag::DATA_DIRTY) != 0 {
            return false;
        }
        flags & flag::DEAD != 0 || header.mask.load(Ordering::Relaxed) == 0 && !header.unhomed.is_any()
    }

    /// Whether a frame was touched since the clock's hand last passed, as it does now. Dead ones were not.
    pub(super) fn pass_by(&self, index: u32) -> bool {
        let flags = &self.arena.header(index).flags;
        if flags.load(Ordering::Relaxed) & (flag::DEAD | flag::REFERENCED) != flag::REFERENCED {
            return false;
        }
        flags.fetch_and(!(flag::REFERENCED | flag::AHEAD), Ordering::Relaxed);
        true
    }

    /// Evicts clean frames, dead ones first come. Outside the gate. Returns how many frames became free.
    pub fn sweep(&self, sweep: Sweep) -> usize {
        let everything = sweep == Sweep::Everything;
        let closed = self.gate.close();
        let mut state = self.state.lock();
        assert_eq!(state.asked, 0, "who has asked for frames is inside the gate");
        self.counters.bump(Count::cache_sweeps);
        // Frames never used hold nothing to evict.
        let frames = state.unused;
        let batch = (self.arena.len() / 32).max(64);
        let want = match sweep {
            Sweep::ForRoom => self.reserve + batch,
            Sweep::ForFrames(frames) => self.reserve + batch.max(frames + 1),
            Sweep::Everything => usize::MAX,
        };
        state.unused_ahead = 0;
        let mut freed = if everything { 0 } else { self.sweep_directories(&mut state) };
        let leaves_directories = !everything && state.directories.is_bounded();
        for _ in 0..frames * 2 {
            if state.free_count() >= want {
                break;
            }
            let index = state.hand;
            state.hand = if index + 1 >= frames { 0 } else { index + 1 };
            let flags = self.arena.header(index).flags.load(Ordering::Relaxed);
            if leaves_directories && flags & flag::DEAD == 0 && holds_directory(flags) {
                continue;
            }
            if self.is_evictable(index) && (everything || !self.pass_by(index)) {
                self.free(&mut state, index);
                freed += 1;
            }
        }
        self.counters.add(Count::cache_evictions, freed as u64);
        if everything {
            self.forget_ahead();
        } else {
            self.judge_ahead(freed, state.unused_ahead);
        }
        self.forget_freed_directories(&mut state);
        self.note_room(&state);
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
