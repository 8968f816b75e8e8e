//! Blocks of directories in the cache: how many frames hold one, and the pool of limited size that `dircache=bounded` has for them.
//!
//! FFS kept directories in memory of their own, of which there was little; vmiodir let them have whatever the page cache could give
//! (Dowse and Malone 2002, 2.3). `unified`, the default, is the latter: blocks of directories compete for all frames. With `bounded`
//! they have a pool. They take frames as any other block does, and the pool says which of them go: its own clock, over its own
//! frames, whenever it is nearly full. The sweep of the other frames leaves live directories alone, so neither takes memory from the
//! other.
//!
//! Nothing is evicted inside the gate, and neither is what has changed and is not home. So the pool may hold more than its limit for
//! a while: a block that an operation needs comes in all the same (`dir_cache_over` counts these), and a sweep that finds nothing to
//! evict waits until a sixteenth of the pool more has come in. Nobody ever waits for the pool, so it cannot be part of a deadlock.
//!
//! Blocks that map a directory's blocks, and entries that lie in the inode, are not of the pool: by their kind they are nobody's.

use super::frames::State;
use super::{Cache, Sweep, flag};
use crate::counters::Count;
use myriad_format::BlockKind;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// The least blocks that a pool is limited to: what one operation has under way fits.
const LIMIT_MIN: usize = 32;

/// Bit by bit, whether a kind as a frame's flags hold it is a directory's.
const KINDS: u32 = {
    let mut kinds = 0;
    let mut i = 0;
    while i < BlockKind::ALL.len() {
        let kind = BlockKind::ALL[i];
        if kind.is_of_directory() {
            kinds |= 1 << (kind.index() + 1);
        }
        i += 1;
    }
    kinds
};
const _: () = assert!(BlockKind::ALL.len() < 31, "a bit each");

/// What counts a look at a block, by its kind as a frame's flags hold it: a load is cheaper there than a question.
pub(super) static ASKED: [Count; BlockKind::ALL.len() + 1] = {
    let mut asked = [Count::blocks_touched; BlockKind::ALL.len() + 1];
    let mut kind = 0;
    while kind < asked.len() {
        if holds_directory(kind as u32) {
            asked[kind] = Count::dir_cache_hits;
        }
        kind += 1;
    }
    asked
};

/// Whether a frame of these flags holds, or held until it died, a block of a directory.
#[inline]
pub(super) const fn holds_directory(flags: u32) -> bool {
    let kind = flags & flag::KIND;
    kind < u32::BITS && KINDS >> kind & 1 != 0
}

#[derive(Default)]
pub(super) struct Directories {
    /// Frames that hold blocks of directories, dead ones that no sweep has met yet included.
    pub count: usize,
    /// `None`: all frames are theirs.
    pool: Option<Pool>,
}

struct Pool {
    /// Frames that it may have.
    limit: usize,
    /// Those that it has; the clock's hand is at the front, and what it passed goes to the back.
    frames: VecDeque<u32>,
    /// With so many frames it is swept before an operation begins.
    sweep_at: usize,
}

impl Pool {
    /// What a sweep leaves free beyond what operations inside the gate may need meanwhile, which is as much again.
    fn margin(&self) -> usize {
        (self.limit / 16).max(1)
    }

    /// Sets at how many frames the next sweep is due, after a sweep that left `count`.
    fn set_sweep(&mut self, count: usize) {
        let full = self.limit - self.margin();
        // What could not be evicted now can as little be a moment later.
        self.sweep_at = if count < full { full } else { count + self.margin() };
    }
}

impl Directories {
    pub fn is_bounded(&self) -> bool {
        self.pool.is_some()
    }

    pub fn is_full(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| self.count >= pool.limit)
    }

    pub fn wants_sweep(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| self.count >= pool.sweep_at)
    }
}

impl Cache {
    /// Gives blocks of directories a pool of so many bytes, at least 32 blocks and at most half of the cache; `None`: all of the
    /// cache. Outside the gate.
    pub fn bound_directories(&self, bytes: Option<u64>) {
        let mut state = self.state.lock();
        state.directories.pool = bytes.map(|bytes| {
            let most = (self.arena.len() / 2).max(LIMIT_MIN);
            let limit = usize::try_from(bytes >> self.block_bits).unwrap_or(usize::MAX).clamp(LIMIT_MIN, most);
            let holds = |&index: &u32| holds_directory(self.arena.header(index).flags.load(Ordering::Relaxed));
            let frames: VecDeque<u32> = (0..state.unused).filter(holds).collect();
            let mut pool = Pool { limit, frames, sweep_at: 0 };
            pool.set_sweep(0);
            pool
        });
        self.note_room(&state);
        let wants_sweep = state.directories.wants_sweep();
        drop(state);
        if wants_sweep {
            self.sweep(Sweep::ForRoom);
        }
    }

    /// Bytes of directories in the cache.
    pub fn directory_bytes(&self) -> u64 {
        (self.state.lock().directories.count as u64) << self.block_bits
    }

    /// Notes that a frame is to hold a block of a directory. Under the state mutex.
    #[cold]
    pub(super) fn add_directory(&self, state: &mut State, index: u32) {
        let directories = &mut state.directories;
        if directories.is_full() {
            self.counters.bump(Count::dir_cache_over);
        }
        directories.count += 1;
        if let Some(pool) = &mut directories.pool {
            pool.frames.push_back(index);
            if directories.wants_sweep() {
                self.note_room(state);
            }
        }
    }

    /// Evicts blocks of directories, if their pool is nearly full, until it has room again. While the gate is closed. How many went.
    pub(super) fn sweep_directories(&self, state: &mut State) -> usize {
        let Some(mut pool) = state.directories.pool.take() else { return 0 };
        let enough = if state.directories.count < pool.limit - pool.margin() {
            usize::MAX
        } else {
            pool.limit - 2 * pool.margin()
        };
        let mut freed = 0;
        for _ in 0..pool.frames.len() * 2 {
            if state.directories.count <= enough {
                break;
            }
            let Some(index) = pool.frames.pop_front() else { break };
            if self.is_evictable(index) && !self.pass_by(index) {
                self.free(state, index);
                freed += 1;
            } else {
                pool.frames.push_back(index);
            }
        }
        pool.set_sweep(state.directories.count);
        state.directories.pool = Some(pool);
        freed
    }

    /// Takes frames from the pool that others than its own sweep took from their blocks. While the gate is closed.
    pub(super) fn forget_freed_directories(&self, state: &mut State) {
        let Directories { count, pool } = &mut state.directories;
        if let Some(pool) = pool {
            if pool.frames.len() > *count {
                pool.frames.retain(|&index| holds_directory(self.arena.header(index).flags.load(Ordering::Relaxed)));
            }
            assert_eq!(pool.frames.len(), *count, "a frame of a directory is in the pool once");
        }
    }
}
