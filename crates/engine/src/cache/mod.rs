//! The cache: every block the engine reads or changes, metadata and file data, under one memory limit.
//!
//! ```text
//! absent -> loading -> clean -> changed -> logged, not home -> clean
//!              |         ^`- evicted here only        |
//!              `-> dead  `------ dead (forgotten) <---'
//! ```
//!
//! Invariants
//!   1. A live block has at most one frame; a dead frame may linger beside it until the next sweep.
//!   2. Frames are taken away only while the gate is closed, so a frame found inside the gate stays valid until the
//!      operation leaves. Lookups take no lock and no pin.
//!   3. Metadata was verified after the read that filled it, or lies under the replayed log.
//!   4. A frame with changes of the open epoch, or with logged changes not yet home, is never evicted.
//!   5. With `dircache=bounded`, live blocks of directories are evicted within their own pool only (`directories`).
//!
//! Locking: a latch may be held while the overlay or the list of recovered frames is locked, never the state mutex.
//! Not here: what a block means, and when it may be written (`order`).

mod ahead;
mod arena;
mod data;
mod directories;
pub(crate) mod flag;
mod frames;
mod gate;
mod holds;
mod load;
mod table;
mod unhomed;
pub(crate) mod unwritten;
mod warm;

use ahead::{Neighbourhoods, Streams};
pub(crate) use arena::{Arena, FrameHeader, FrameRead, FrameWrite, Place, ProcessMark, SharedBytes, Zeroed, prefetch};
use directories::Directories;
use frames::State;
pub(crate) use frames::{FRAMES_UNASKED, Leaving, Sweep};
pub(crate) use gate::{Closed, Entered, Gate, LIGHT_SUM_MAX};
use warm::Warmer;

use crate::counters::{Count, Counters};
use crate::error::{Error, Result};
use crate::locks::{Mutex, MutexGuard, Rank, RwLock};
use crate::schedule;
use myriad_device::{BlockDevice, BlockSet};
use myriad_format::{BlockKind, FsBlock, Lsn};
use myriad_log::Overlay;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// A kind as the flags of a frame hold it.
#[inline(always)]
pub(crate) fn kind_code(kind: BlockKind) -> u32 {
    kind.index() + 1
}

pub(crate) struct Cache {
    pub arena: Arena,
    pub gate: Gate,
    /// Open-addressing table: tag of the block in the high half, frame index + 1 in the low half, 0 for empty.
    /// Entries are added under `state` and removed only while the gate is closed.
    table: Zeroed<AtomicU64>,
    table_mask: usize,
    state: Mutex<{ Rank::Leaf as u8 }, State>,
    /// Free frames; 0 also while the pool of directories has to be swept. Either way an operation sweeps before it begins, and
    /// has to look at one word only.
    room: AtomicUsize,
    pub warm: Warmer,
    streams: Streams,
    neighbourhoods: Neighbourhoods,
    /// Much of what the last sweep evicted had been read ahead in vain.
    ahead_is_unused: AtomicBool,
    /// Written data that nobody wants to keep, and what was overwritten: goes when the gate closes next.
    passing: Mutex<{ Rank::Leaf as u8 }, Vec<u32>>,
    /// Frames kept for operations already inside the gate, which cannot evict. Each takes [`FRAMES_UNASKED`] of them at most, or has
    /// asked.
    reserve: usize,
    pub device: Arc<dyn BlockDevice>,
    pub volume: [u8; 16],
    block_bits: u32,
    read_only: bool,
    /// What the log holds and the home blocks do not, after a recovery.
    pub overlay: RwLock<{ Rank::Overlay as u8 }, Overlay>,
    has_overlay: AtomicBool,
    /// Frames filled from the overlay that the checkpointer has not yet listed as away.
    recovered: Mutex<{ Rank::Leaf as u8 }, Vec<u32>>,
    pub counters: Arc<Counters>,
}

/// The frame that holds what a block is to be written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Placed {
    pub block: u64,
    pub frame: u32,
}

/// A frame found inside the gate.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    place: Place<'a>,
    pub index: u32,
}

impl<'a> Frame<'a> {
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(self) -> FrameRead<'a> {
        self.place.read()
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(self) -> FrameWrite<'a> {
        self.place.write()
    }

    /// Copies what lies at `offset`: without the latch, unless somebody changes the frame just now.
    #[inline]
    pub fn copy<T: FromBytes + IntoBytes>(self, offset: usize, value: &mut T) {
        if !self.place.try_copy(offset, value) {
            self.copy_latched(offset, value);
        }
    }

    #[cold]
    fn copy_latched<T: FromBytes + IntoBytes>(self, offset: usize, value: &mut T) {
        value.as_mut_bytes().copy_from_slice(&self.read()[offset..offset + size_of::<T>()]);
    }
}

impl Cache {
    /// A cache of `cache_size` bytes, headers and table included.
    pub fn new(
        cache_size: u64,
        block_bits: u32,
        read_only: bool,
        device: Arc<dyn BlockDevice>,
        volume: [u8; 16],
        overlay: Overlay,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let per_frame = (1_u64 << block_bits) + 64 + 24;
        let frames = (cache_size / per_frame).clamp(1024, u64::from(u32::MAX) / 2) as usize;
        let no_memory = |source| Error::host("memory for the cache", source);
        let arena = Arena::new(frames, block_bits).map_err(no_memory)?;
        let table_len = (frames * 2).next_power_of_two();
        Ok(Self {
            arena,
            gate: Gate::new(),
            table: Zeroed::new(table_len).map_err(no_memory)?,
            table_mask: table_len - 1,
            state: Mutex::new(State {
                free: Vec::new(),
                unused: 0,
                warm_at: warm::BEGIN,
                frames: frames as u32,
                asked: 0,
                hand: 0,
                barred: BlockSet::default(),
                directories: Directories::default(),
                unused_ahead: 0,
            }),
            room: AtomicUsize::new(frames),
            warm: Warmer::default(),
            streams: Streams::new(),
            neighbourhoods: Neighbourhoods::new(frames, block_bits),
            ahead_is_unused: AtomicBool::new(false),
            passing: Mutex::new(Vec::new()),
            reserve: (frames / 16).max(256),
            device,
            volume,
            block_bits,
            read_only,
            has_overlay: AtomicBool::new(!overlay.is_empty()),
            overlay: RwLock::new(overlay),
            recovered: Mutex::new(Vec::new()),
            counters,
        })
    }

    pub fn block_size(&self) -> usize {
        1 << self.block_bits
    }

    pub fn frame_count(&self) -> usize {
        self.arena.len()
    }

    /// A metadata block; read and verified if it is not here. Inside the gate.
    #[inline]
    pub fn get(&self, block: FsBlock, kind: BlockKind) -> Result<Frame<'_>> {
        self.get_at(block, kind, 0)
    }

    /// As [`Self::get`], for a caller that will look at `offset` first: the waits for header and bytes overlap.
    #[inline(always)]
    pub fn get_at(&self, block: FsBlock, kind: BlockKind, offset: usize) -> Result<Frame<'_>> {
        // Here, where most callers' kind is a constant.
        self.get_coded(block, kind, kind_code(kind), offset)
    }

    /// The frame in which a block of this kind was found before, if it is there still. Whoever asks is inside the gate.
    #[inline(always)]
    pub fn still_in(&self, index: u32, block: FsBlock, code: u32) -> Option<Frame<'_>> {
        let place = self.arena.place(index);
        let header = place.header();
        let asked = flag::KIND | flag::LOADED | flag::DEAD | flag::PRIVATE;
        holds::is_still(&header.block, &header.flags, block.0, asked, code | flag::LOADED)
            .then_some(Frame { place, index })
    }

    /// As [`Self::get_at`], with the kind as the flags of a frame hold it.
    #[inline]
    pub fn get_coded(&self, block: FsBlock, kind: BlockKind, code: u32, offset: usize) -> Result<Frame<'_>> {
        match self.find_loaded(block, code, offset) {
            Some(index) => Ok(self.frame(index)),
            None => self.load_kind(block, kind),
        }
    }

    /// The frame of this number, which the caller has found inside the gate.
    #[inline]
    pub fn frame(&self, index: u32) -> Frame<'_> {
        Frame { place: self.arena.place(index), index }
    }

    /// As [`Self::get`], when [`Self::find_loaded`] has found nothing.
    #[cold]
    pub fn load_kind(&self, block: FsBlock, kind: BlockKind) -> Result<Frame<'_>> {
        loop {
            let mut state = self.state.lock();
            if let Some(index) = self.find(block) {
                drop(state);
                // Whoever loads it holds the latch until it is done.
                drop(self.arena.read(index));
                let header = self.arena.header(index);
                let flags = header.flags.load(Ordering::Acquire);
                if flags & flag::DEAD != 0 || flags & flag::LOADED == 0 {
                    continue;
                }
                if flags & (flag::KIND | flag::DATA_DIRTY) == flag::DATA {
                    // Read as data by somebody who looked without a lock, from what the map had been. The device knows.
                    schedule::pause();
                    self.kill_read_data(index, block);
                    continue;
                }
                if flags & flag::KIND != kind_code(kind) {
                    let found = u32::from_le_bytes(self.arena.read(index)[..4].try_into().expect("4 bytes"));
                    return Err(myriad_format::Corrupt::BlockKind { block, expected: kind.name(), found }.into());
                }
                return Ok(self.frame(index));
            }
            if state.barred.contains(block.0) {
                return Err(myriad_format::Corrupt::BlockKind { block, expected: kind.name(), found: 0 }.into());
            }
            let index = self.claim(&mut state, block, kind_code(kind))?;
            drop(state);
            let mut bytes = self.arena.write(index);
            self.counters.bump(Count::cache_misses);
            if kind.is_of_directory() {
                self.counters.bump(Count::dir_cache_misses);
            }
            let mut ahead = None;
            let unfilled = Unfilled(self.arena.header(index));
            let loaded = self.load(block, kind, &mut bytes, index, &mut ahead);
            std::mem::forget(unfilled);
            let set = if loaded.is_ok() { flag::LOADED } else { flag::DEAD };
            self.arena.header(index).flags.fetch_or(set, Ordering::Release);
            drop(bytes);
            if let Some(run) = ahead {
                self.insert_along(block, kind, &run);
            }
            loaded?;
            return Ok(self.frame(index));
        }
    }

    /// Takes a free frame for `block` and puts it in the table, not yet loaded.
    fn claim(&self, state: &mut State, block: FsBlock, kind: u32) -> Result<u32> {
        let index = self.pop_free(state)?;
        if directories::holds_directory(kind) {
            self.add_directory(state, index);
        }
        let header = self.arena.header(index);
        header.mask.store(0, Ordering::Relaxed);
        header.unhomed.clear();
        holds::give(&header.block, &header.flags, block.0, kind | flag::REFERENCED);
        self.insert(block, index);
        Ok(index)
    }

    /// Puts what was read of a block into the cache if it is not there and there is a frame to spare: that frame. Inside
    /// the gate.
    fn insert_read(&self, block: FsBlock, kind: u32, bytes: &[u8]) -> Option<u32> {
        let mut state = self.state.lock();
        let is_barred = kind != flag::DATA && state.barred.contains(block.0);
        // Nobody waits for it: it is no reason for a pool to hold more than it may.
        let is_full = directories::holds_directory(kind) && state.directories.is_full();
        if is_barred || is_full || state.unasked_count() <= self.reserve || self.find(block).is_some() {
            return None;
        }
        let index = self.claim(&mut state, block, kind).ok()?;
        drop(state);
        self.arena.write(index).copy_from_slice(bytes);
        self.arena.header(index).flags.fetch_or(flag::LOADED, Ordering::Release);
        Some(index)
    }

    /// A frame for a block that is new: whatever it held does not matter. Its bytes are the caller's to fill, who then says
    /// that they are: until then nobody else reads them. A frame that still holds the block (freed and allocated again)
    /// dies.
    pub fn create(&self, block: FsBlock, kind: BlockKind) -> Result<Frame<'_>> {
        self.counters.bump(Count::blocks_touched);
        let mut state = self.bury(block);
        let index = self.claim(&mut state, block, kind_code(kind))?;
        // Without a frame it is not made anew.
        state.barred.remove(block.0);
        drop(state);
        Ok(self.frame(index))
    }

    /// Kills the frame of a block of metadata that is freed, as [`Self::kill`] does, and bars the block: until it is made anew it is not read as
    /// metadata. What the device has there may be older than what the frame had, whatever became of the block in between: inodes that were given
    /// back, and whose block was something else for a while.
    pub fn forget(&self, block: FsBlock) -> Option<Lsn> {
        // First: whoever read it from the device before has a frame, which is killed; whoever finds that frame dead finds the bar.
        self.state.lock().barred.insert(block.0, 1, |_, _| {});
        schedule::pause();
        self.kill(block)
    }

    /// Kills the frame of a block; until the state is let go of, there is none. Whoever looks without a lock, or reads ahead,
    /// may read the block from the device once more after its frame was killed.
    fn bury(&self, block: FsBlock) -> MutexGuard<'_, State> {
        loop {
            self.kill(block);
            let state = self.state.lock();
            if self.find(block).is_none() {
                return state;
            }
        }
    }

    /// Marks a frame as dead that holds file data of a block as it was read. Since the caller looked, the block may have got another frame, with
    /// data that is not written yet or as metadata that is new: of that one nothing is touched.
    fn kill_read_data(&self, index: u32, block: FsBlock) {
        let bytes = self.arena.write(index);
        let header = self.arena.header(index);
        let asked = flag::KIND | flag::DATA_DIRTY | flag::PRIVATE;
        if header.block.load(Ordering::Relaxed) == block.0 && header.flags.load(Ordering::Relaxed) & asked == flag::DATA
        {
            header.flags.fetch_or(flag::DEAD, Ordering::Release);
        }
        drop(bytes);
    }

    /// Marks the frame of a block as dead, if it has one. Returns the log position its unhomed changes need.
    pub fn kill(&self, block: FsBlock) -> Option<Lsn> {
        let mut needed = None;
        if let Some(index) = self.find(block) {
            let bytes = self.arena.write(index);
            let header = self.arena.header(index);
            needed = header.unhomed.logged_from();
            header.mask.store(0, Ordering::Relaxed);
            header.unhomed.clear();
            let clear = !(flag::FRESH | flag::DATA_DIRTY | flag::CHANGED_AGAIN);
            header.flags.fetch_and(clear, Ordering::Relaxed);
            header.flags.fetch_or(flag::DEAD, Ordering::Release);
            drop(bytes);
        }
        if self.has_overlay() {
            let mut overlay = self.overlay.write();
            if overlay.contains(block) {
                // The oldest of all is exact enough: it only keeps the tail where it is for one more checkpoint.
                needed = needed.into_iter().chain(overlay.oldest()).min();
                overlay.remove(block);
            }
        }
        needed
    }

    /// The logged changes of a frame are home, unless the frame holds another block by now.
    pub fn came_home(&self, block: u64, index: u32) {
        let _latch = self.arena.write(index);
        let header = self.arena.header(index);
        if header.block.load(Ordering::Relaxed) == block {
            header.unhomed.clear();
            header.flags.fetch_and(!flag::AWAY, Ordering::Relaxed);
        }
    }
}

/// A frame that somebody is filling; dropped in place by a panic only: whoever wants the block begins anew, and does not wait for
/// ever.
struct Unfilled<'a>(&'a FrameHeader);

impl Drop for Unfilled<'_> {
    fn drop(&mut self) {
        self.0.flags.fetch_or(flag::DEAD, Ordering::Release);
    }
}

#[cfg(test)]
mod gate_tests;
#[cfg(test)]
mod tests;
