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
//!
//! Locking: a latch may be held while the overlay or the list of recovered frames is locked, never the state mutex.
//! Not here: what a block means, and when it may be written (`order`).

mod arena;
mod gate;
mod warm;

pub(crate) use arena::{Arena, FrameHeader, FrameRead, FrameWrite, ProcessMark, Zeroed, prefetch};
pub(crate) use gate::{Closed, Entered, Gate, thread_slot};
use warm::Warmer;

use crate::counters::{Count, Counters};
use crate::error::{Errno, Error, Result};
use crate::locks::{Mutex, MutexGuard, Rank, RwLock};
use crate::planted::{Bug, planted};
use myriad_device::BlockDevice;
use myriad_format::{BlockKind, FsBlock, header};
use myriad_log::Overlay;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bits of a frame's flags. The low 8 hold the kind: index in `BlockKind::ALL` plus 1, or `DATA`.
pub(crate) mod flag {
    pub const KIND: u32 = 0xff;
    pub const DATA: u32 = 0xff;
    /// Touched since the clock's hand last passed.
    pub const REFERENCED: u32 = 1 << 8;
    /// Allocated in the open epoch: written home whole before the commit, not logged.
    pub const FRESH: u32 = 1 << 9;
    /// Failed to load, or forgotten; waits for the next sweep.
    pub const DEAD: u32 = 1 << 10;
    pub const LOADED: u32 = 1 << 11;
    /// On the open epoch's list of changed frames.
    pub const LISTED: u32 = 1 << 12;
    /// On the checkpointer's list of frames not yet home.
    pub const AWAY: u32 = 1 << 13;
    /// File data to be written before the commit.
    pub const DATA_DIRTY: u32 = 1 << 14;
    /// Owned by one file's dirty data; not in the table.
    pub const PRIVATE: u32 = 1 << 15;
    /// File data changed again since its write began: it stays dirty when that write is done.
    pub const CHANGED_AGAIN: u32 = 1 << 16;
    /// File data that its writer will not read again: goes once it is written, unless somebody reads it first.
    pub const PASSING: u32 = 1 << 17;
}

/// Written frames that are to go, before the gate is closed for them.
const PASSING_MIN: usize = 256;

fn kind_code(kind: BlockKind) -> u32 {
    match kind {
        BlockKind::Superblock => 1,
        BlockKind::Group => 2,
        BlockKind::FreeByStart => 3,
        BlockKind::FreeByLength => 4,
        BlockKind::InodeTree => 5,
        BlockKind::Inode => 6,
        BlockKind::ExtentTree => 7,
        BlockKind::DirEntries => 8,
        BlockKind::DirIndex => 9,
        BlockKind::Attributes => 10,
        BlockKind::Orphans => 11,
        BlockKind::Checksums => 12,
    }
}

pub(crate) struct Cache {
    pub arena: Arena,
    pub gate: Gate,
    /// Open-addressing table: tag of the block in the high half, frame index + 1 in the low half, 0 for empty.
    /// Entries are added under `state` and removed only while the gate is closed.
    table: Zeroed<AtomicU64>,
    table_mask: usize,
    state: Mutex<{ Rank::Leaf as u8 }, State>,
    free_count: AtomicUsize,
    pub warm: Warmer,
    /// Written data that nobody wants to keep: goes when the gate closes next.
    passing: Mutex<{ Rank::Leaf as u8 }, Vec<u32>>,
    /// Frames kept for operations already inside the gate, which cannot evict.
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

struct State {
    /// Frames used before, the last one freed on top: its memory is the likeliest to be near the processor.
    free: Vec<u32>,
    /// Frames from here on have never been used, and the host has given no memory for them yet.
    unused: u32,
    /// At this value of `unused`, the warmer is told to go on.
    warm_at: u32,
    frames: u32,
    /// Clock hand: the next frame to consider.
    hand: u32,
}

impl State {
    fn free_count(&self) -> usize {
        self.free.len() + (self.frames - self.unused) as usize
    }
}

/// A frame found inside the gate.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    cache: &'a Cache,
    pub index: u32,
}

impl<'a> Frame<'a> {
    pub fn read(self) -> FrameRead<'a> {
        self.cache.arena.read(self.index)
    }

    pub fn write(self) -> FrameWrite<'a> {
        self.cache.arena.write(self.index)
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
        let no_memory = |source| Error::Io { op: "memory for the cache", offset: 0, source };
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
                hand: 0,
            }),
            free_count: AtomicUsize::new(frames),
            warm: Warmer::default(),
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

    /// Multiplicative hash; neighbours land in neighbouring lines only by chance, which spreads probes.
    fn hash(block: FsBlock) -> u64 {
        block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn home(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.table_mask
    }

    fn entry(hash: u64, index: u32) -> u64 {
        hash << 32 | u64::from(index + 1)
    }

    /// The frame that holds `block`, if any. Inside the gate only, or under the state mutex.
    #[inline]
    fn find(&self, block: FsBlock) -> Option<u32> {
        self.find_at(block, 0)
    }

    /// As [`Self::find`]; the frame's bytes at `offset` are on their way while its header is looked at.
    #[inline]
    fn find_at(&self, block: FsBlock, offset: usize) -> Option<u32> {
        let hash = Self::hash(block);
        let mut at = self.home(hash);
        loop {
            let entry = self.table[at].load(Ordering::Acquire);
            if entry == 0 {
                return None;
            }
            if (entry >> 32) as u32 == hash as u32 {
                let index = entry as u32 - 1;
                self.arena.prefetch(index, offset);
                let header = self.arena.header(index);
                if header.block.load(Ordering::Relaxed) == block.0
                    && header.flags.load(Ordering::Acquire) & flag::DEAD == 0
                {
                    return Some(index);
                }
            }
            at = (at + 1) & self.table_mask;
        }
    }

    /// Under the state mutex.
    fn insert(&self, block: FsBlock, index: u32) {
        let hash = Self::hash(block);
        let mut at = self.home(hash);
        while self.table[at].load(Ordering::Relaxed) != 0 {
            at = (at + 1) & self.table_mask;
        }
        self.table[at].store(Self::entry(hash, index), Ordering::Release);
    }

    /// While the gate is closed, under the state mutex. Closes the gap, so that no probe stops short.
    fn remove(&self, index: u32) {
        let block = FsBlock(self.arena.header(index).block.load(Ordering::Relaxed));
        let mut at = self.home(Self::hash(block));
        loop {
            let entry = self.table[at].load(Ordering::Relaxed);
            assert!(entry != 0, "a frame outside the table cannot be evicted");
            if entry as u32 == index + 1 {
                break;
            }
            at = (at + 1) & self.table_mask;
        }
        let mut gap = at;
        loop {
            at = (at + 1) & self.table_mask;
            let entry = self.table[at].load(Ordering::Relaxed);
            if entry == 0 {
                break;
            }
            let block = FsBlock(self.arena.header(entry as u32 - 1).block.load(Ordering::Relaxed));
            let home = self.home(Self::hash(block));
            // The entry may fill the gap if its home is not strictly between gap and its place.
            if at.wrapping_sub(home) & self.table_mask >= at.wrapping_sub(gap) & self.table_mask {
                self.table[gap].store(entry, Ordering::Relaxed);
                gap = at;
            }
        }
        self.table[gap].store(0, Ordering::Release);
    }

    fn pop_free(&self, state: &mut State) -> Result<u32> {
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

    #[inline]
    fn touch(&self, index: u32) {
        let flags = &self.arena.header(index).flags;
        if flags.load(Ordering::Relaxed) & flag::REFERENCED == 0 {
            flags.fetch_or(flag::REFERENCED, Ordering::Relaxed);
        }
    }

    /// A metadata block; read and verified if it is not here. Inside the gate.
    #[inline]
    pub fn get(&self, block: FsBlock, kind: BlockKind) -> Result<Frame<'_>> {
        self.get_at(block, kind, 0)
    }

    /// As [`Self::get`], for a caller that will look at `offset` first: the waits for header and bytes overlap.
    #[inline]
    pub fn get_at(&self, block: FsBlock, kind: BlockKind, offset: usize) -> Result<Frame<'_>> {
        self.counters.bump(Count::blocks_touched);
        if let Some(index) = self.find_at(block, offset) {
            let flags = self.arena.header(index).flags.load(Ordering::Acquire);
            if flags & (flag::KIND | flag::LOADED) == kind_code(kind) | flag::LOADED {
                self.touch(index);
                return Ok(Frame { cache: self, index });
            }
        }
        self.get_slow(block, kind)
    }

    #[cold]
    fn get_slow(&self, block: FsBlock, kind: BlockKind) -> Result<Frame<'_>> {
        loop {
            let state = self.state.lock();
            if let Some(index) = self.find(block) {
                drop(state);
                // Whoever loads it holds the latch until it is done.
                drop(self.arena.read(index));
                let header = self.arena.header(index);
                let flags = header.flags.load(Ordering::Acquire);
                if flags & flag::DEAD != 0 || flags & flag::LOADED == 0 {
                    continue;
                }
                if flags & flag::KIND != kind_code(kind) {
                    let found = u32::from_le_bytes(self.arena.read(index)[..4].try_into().expect("4 bytes"));
                    return Err(myriad_format::Corrupt::BlockKind { block, expected: kind.name(), found }.into());
                }
                return Ok(Frame { cache: self, index });
            }
            let index = self.claim(state, block, kind_code(kind))?;
            let mut bytes = self.arena.write(index);
            self.counters.bump(Count::cache_misses);
            let loaded = self.load(block, kind, &mut bytes, index);
            let set = if loaded.is_ok() { flag::LOADED } else { flag::DEAD };
            self.arena.header(index).flags.fetch_or(set, Ordering::Release);
            drop(bytes);
            loaded?;
            return Ok(Frame { cache: self, index });
        }
    }

    /// Takes a free frame for `block` and puts it in the table, not yet loaded.
    fn claim(&self, mut state: MutexGuard<'_, State>, block: FsBlock, kind: u32) -> Result<u32> {
        let index = self.pop_free(&mut state)?;
        let header = self.arena.header(index);
        header.block.store(block.0, Ordering::Relaxed);
        header.mask.store(0, Ordering::Relaxed);
        header.unhomed.store(0, Ordering::Relaxed);
        header.flags.store(kind | flag::REFERENCED, Ordering::Release);
        self.insert(block, index);
        Ok(index)
    }

    fn load(&self, block: FsBlock, kind: BlockKind, bytes: &mut [u8], index: u32) -> Result<()> {
        let offset = block.0 << self.block_bits;
        self.device.read(offset, bytes).map_err(|source| Error::Io { op: "read", offset, source })?;
        if self.has_overlay.load(Ordering::Acquire) {
            let mut overlay = self.overlay.write();
            if let Some(applied) = overlay.apply(block, bytes) {
                // A reader never brings it home: there the overlay stays, and the frame may be evicted and filled again.
                if !self.read_only {
                    overlay.remove(block);
                    let header = self.arena.header(index);
                    header.unhomed.store(applied.mask, Ordering::Relaxed);
                    header.first_lsn.store(applied.lsn.0, Ordering::Relaxed);
                    header.flags.fetch_or(flag::AWAY, Ordering::Relaxed);
                    self.recovered.lock().push(index);
                }
                drop(overlay);
                // The home copy may be torn and its checksum with it; replay has set right what was torn. Seal what
                // now stands, so that the same verification holds.
                header::seal(bytes, applied.lsn.0);
            }
        }
        if planted(Bug::TornSuperblock) && kind == BlockKind::Superblock {
            header::seal(bytes, 0);
        }
        header::verify(bytes, kind, &self.volume, block)?;
        Ok(())
    }

    /// Brings a block that the log has changes for into the cache, whatever its kind. Inside the gate.
    pub fn fetch_recovered(&self, block: FsBlock) -> Result<()> {
        // The log holds a block's first granule whenever the block was made or changed kind; if it does not, the home
        // copy tells.
        let mut bytes = myriad_device::AlignedBuf::zeroed(self.block_size());
        let offset = block.0 << self.block_bits;
        self.device.read(offset, &mut bytes).map_err(|source| Error::Io { op: "read", offset, source })?;
        if self.overlay.write().apply(block, &mut bytes).is_none() {
            return Ok(());
        }
        let magic = myriad_format::BlockHeader::read(&bytes).magic.get();
        let kind = BlockKind::from_magic(magic).ok_or(myriad_format::Corrupt::BlockKind {
            block,
            expected: "a metadata block",
            found: magic,
        })?;
        self.get(block, kind).map(|_| ())
    }

    /// Frames filled from the log since the last call.
    pub fn take_recovered(&self) -> Vec<u32> {
        std::mem::take(&mut self.recovered.lock())
    }

    pub fn has_overlay(&self) -> bool {
        self.has_overlay.load(Ordering::Relaxed)
    }

    pub fn overlay_done(&self) {
        if self.overlay.read().is_empty() {
            self.has_overlay.store(false, Ordering::Release);
        }
    }

    /// A frame for a block that is new: whatever it held does not matter. Its bytes are the caller's to fill.
    /// A frame that still holds the block (freed and allocated again) dies.
    pub fn create(&self, block: FsBlock, kind: BlockKind) -> Result<Frame<'_>> {
        self.counters.bump(Count::blocks_touched);
        self.kill(block);
        let state = self.state.lock();
        let index = self.claim(state, block, kind_code(kind) | flag::LOADED)?;
        Ok(Frame { cache: self, index })
    }

    /// Marks the frame of a block as dead, if it has one. Returns the log position its unhomed changes need.
    pub fn kill(&self, block: FsBlock) -> Option<u64> {
        let mut needed = None;
        if let Some(index) = self.find(block) {
            let bytes = self.arena.write(index);
            let header = self.arena.header(index);
            if header.unhomed.load(Ordering::Relaxed) != 0 {
                needed = Some(header.first_lsn.load(Ordering::Relaxed));
            }
            header.mask.store(0, Ordering::Relaxed);
            header.unhomed.store(0, Ordering::Relaxed);
            header.flags.fetch_and(!(flag::FRESH | flag::DATA_DIRTY | flag::CHANGED_AGAIN), Ordering::Relaxed);
            header.flags.fetch_or(flag::DEAD, Ordering::Release);
            drop(bytes);
        }
        if self.has_overlay() {
            let mut overlay = self.overlay.write();
            if overlay.contains(block) {
                // The oldest of all is exact enough: it only keeps the tail where it is for one more checkpoint.
                let oldest = overlay.oldest().map_or(0, |lsn| lsn.0);
                needed = Some(needed.map_or(oldest, |lsn: u64| lsn.min(oldest)));
                overlay.remove(block);
            }
        }
        needed
    }

    /// A clean or dirty frame of file data, if the block is here. Inside the gate.
    pub fn find_data(&self, block: FsBlock) -> Option<Frame<'_>> {
        let index = self.find(block)?;
        let flags = self.arena.header(index).flags.load(Ordering::Acquire);
        (flags & (flag::KIND | flag::LOADED) == flag::DATA | flag::LOADED).then(|| {
            self.touch(index);
            if flags & flag::PASSING != 0 {
                self.arena.header(index).flags.fetch_and(!flag::PASSING, Ordering::Relaxed);
            }
            Frame { cache: self, index }
        })
    }

    /// Puts file data just read into the cache, if there is a frame to spare. Inside the gate.
    pub fn insert_data(&self, block: FsBlock, bytes: &[u8]) {
        let state = self.state.lock();
        if state.free_count() <= self.reserve || self.find(block).is_some() {
            return;
        }
        if let Ok(index) = self.claim(state, block, flag::DATA) {
            let mut frame = self.arena.write(index);
            frame.copy_from_slice(bytes);
            self.arena.header(index).flags.fetch_or(flag::LOADED, Ordering::Release);
        }
    }

    /// A frame outside the table, for a file's dirty data. `None`: make room first.
    pub fn take_private(&self) -> Option<u32> {
        let state = self.state.lock();
        if state.free_count() <= self.reserve { None } else { self.make_private(state).ok() }
    }

    /// As [`Self::take_private`], for an operation inside the gate, which cannot make room: from the reserve if need be.
    pub fn take_private_inside(&self) -> Result<u32> {
        self.make_private(self.state.lock())
    }

    fn make_private(&self, mut state: MutexGuard<'_, State>) -> Result<u32> {
        let index = self.pop_free(&mut state)?;
        let header = self.arena.header(index);
        header.mask.store(0, Ordering::Relaxed);
        header.unhomed.store(0, Ordering::Relaxed);
        header.flags.store(flag::DATA | flag::PRIVATE, Ordering::Release);
        Ok(index)
    }

    /// Gives a private frame back.
    pub fn drop_private(&self, index: u32) {
        let mut state = self.state.lock();
        self.arena.header(index).flags.store(0, Ordering::Release);
        state.free.push(index);
        self.free_count.store(state.free_count(), Ordering::Relaxed);
    }

    /// Makes the bytes of a private frame the cached, still unwritten contents of `block`; the frame that holds them from
    /// now on. `passing`: it need not stay once it is written. `epoch` is open; inside the gate.
    pub fn publish(&self, index: u32, block: FsBlock, passing: bool, epoch: u64) -> u32 {
        if let Some(held) = self.find(block) {
            let header = self.arena.header(held);
            let mut bytes = self.arena.write(held);
            if header.flags.load(Ordering::Relaxed) & (flag::DATA_DIRTY | flag::KIND) == flag::DATA_DIRTY | flag::DATA {
                // An earlier epoch has promised to write this block before its commit, and still does: with the new
                // bytes, which are as good to it as the old ones.
                bytes.copy_from_slice(&self.arena.read_private(index));
                header.flags.fetch_or(flag::CHANGED_AGAIN, Ordering::Relaxed);
                drop(bytes);
                self.drop_private(index);
                return held;
            }
        }
        self.kill(block);
        let state = self.state.lock();
        let header = self.arena.header(index);
        header.block.store(block.0, Ordering::Relaxed);
        header.first_lsn.store(epoch, Ordering::Relaxed);
        let stay = if passing { flag::PASSING } else { flag::REFERENCED };
        header.flags.store(flag::DATA | flag::LOADED | flag::DATA_DIRTY | stay, Ordering::Release);
        self.insert(block, index);
        drop(state);
        index
    }

    /// Whether the block's contents were published in this epoch, which is open: nothing has written them yet, and no
    /// committed state knows the block. Inside the gate.
    pub fn is_unwritten_since(&self, block: FsBlock, epoch: u64) -> bool {
        self.find(block).is_some_and(|index| {
            let header = self.arena.header(index);
            let mine = flag::DATA_DIRTY | flag::DATA;
            header.flags.load(Ordering::Relaxed) & (flag::DATA_DIRTY | flag::KIND) == mine
                && header.first_lsn.load(Ordering::Relaxed) == epoch
        })
    }

    /// The data or fresh block of a frame has been written: the frame may go, unless it holds another block by now.
    pub fn written(&self, block: u64, index: u32) {
        let _latch = self.arena.write(index);
        let header = self.arena.header(index);
        if header.block.load(Ordering::Relaxed) == block
            && header.flags.load(Ordering::Relaxed) & flag::CHANGED_AGAIN == 0
        {
            let flags = header.flags.fetch_and(!flag::DATA_DIRTY, Ordering::Relaxed);
            if flags & flag::PASSING != 0 {
                self.passing.lock().push(index);
            }
        }
    }

    /// Lets go of written data that nobody wants to keep, once there is enough of it to close the gate for.
    pub fn let_pass(&self) {
        let written = {
            let mut passing = self.passing.lock();
            if passing.len() < PASSING_MIN {
                return;
            }
            std::mem::take(&mut *passing)
        };
        let closed = self.gate.close();
        let mut state = self.state.lock();
        for index in written {
            // Read, changed or forgotten since, it is no longer ours to take.
            let flags = self.arena.header(index).flags.load(Ordering::Relaxed);
            if flags & (flag::PASSING | flag::DATA_DIRTY | flag::DEAD | flag::PRIVATE) == flag::PASSING {
                self.free(&mut state, index);
            }
        }
        self.free_count.store(state.free_count(), Ordering::Relaxed);
        drop(state);
        drop(closed);
    }

    /// Takes a frame from its block. While the gate is closed, under the state mutex.
    fn free(&self, state: &mut State, index: u32) {
        self.remove(index);
        self.arena.header(index).flags.store(0, Ordering::Relaxed);
        state.free.push(index);
    }

    /// The logged changes of a frame are home, unless the frame holds another block by now.
    pub fn came_home(&self, block: u64, index: u32) {
        let _latch = self.arena.write(index);
        let header = self.arena.header(index);
        if header.block.load(Ordering::Relaxed) == block {
            header.unhomed.store(0, Ordering::Relaxed);
            header.flags.fetch_and(!flag::AWAY, Ordering::Relaxed);
        }
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
                if header.mask.load(Ordering::Relaxed) != 0 || header.unhomed.load(Ordering::Relaxed) != 0 {
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

    /// First step of a batched access: starts loading the table's line for `block`.
    pub fn prefetch_entry(&self, block: FsBlock) {
        prefetch(&self.table[self.home(Self::hash(block))]);
    }

    /// Second step, when that line has arrived: starts loading the frame's header, and its bytes at `offset`. The block
    /// is taken to be in the first frame whose tag fits; a wrong guess costs a wasted load.
    pub fn prefetch_frame(&self, block: FsBlock, offset: usize) {
        let hash = Self::hash(block);
        let mut at = self.home(hash);
        loop {
            let entry = self.table[at].load(Ordering::Relaxed);
            if entry == 0 {
                return;
            }
            if (entry >> 32) as u32 == hash as u32 {
                let index = entry as u32 - 1;
                prefetch(self.arena.header(index));
                self.arena.prefetch(index, offset);
                return;
            }
            at = (at + 1) & self.table_mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_device::MemoryDevice;

    fn cache() -> Cache {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        Cache::new(1 << 20, 12, false, device, [0; 16], Overlay::default(), Arc::new(Counters::new())).unwrap()
    }

    fn page(cache: &Cache, byte: u8) -> u32 {
        let frame = cache.take_private().unwrap();
        cache.arena.write(frame).fill(byte);
        frame
    }

    /// A block mapped in one epoch and overwritten in the next, before the first epoch's checkpoint wrote it: the first
    /// commit referred to a block that was never written, and a crash showed what the medium had held before.
    #[test]
    fn data_promised_to_a_commit_is_written_though_it_changes_again() {
        let cache = cache();
        let _inside = cache.gate.enter(0);
        let first = cache.publish(page(&cache, 1), FsBlock(100), false, 1);
        let second = cache.publish(page(&cache, 2), FsBlock(100), false, 1);
        assert_eq!(first, second, "one frame, on both lists");
        let flags = || cache.arena.header(first).flags.load(Ordering::Relaxed);
        assert_ne!(flags() & flag::DATA_DIRTY, 0);
        assert_eq!(cache.arena.read(first)[0], 2);
        // The writer begins, the data changes once more, the write ends: it is still to be written.
        cache.arena.header(first).flags.fetch_and(!flag::CHANGED_AGAIN, Ordering::Relaxed);
        cache.publish(page(&cache, 3), FsBlock(100), false, 1);
        cache.written(100, first);
        assert_ne!(flags() & flag::DATA_DIRTY, 0);
        cache.arena.header(first).flags.fetch_and(!flag::CHANGED_AGAIN, Ordering::Relaxed);
        cache.written(100, first);
        assert_eq!(flags() & flag::DATA_DIRTY, 0);
    }

    /// A long link's target was refused a frame while the reserve was full, in the middle of making the link: the volume
    /// shut down for lack of memory that was there.
    #[test]
    fn the_reserve_is_for_who_is_inside() {
        let cache = cache();
        while cache.take_private().is_some() {}
        assert!(!cache.has_room());
        let _inside = cache.gate.enter(0);
        for _ in 0..cache.reserve {
            cache.take_private_inside().unwrap();
        }
        assert!(cache.take_private_inside().is_err());
    }

    #[test]
    fn data_that_nobody_wants_to_keep_goes_once_it_is_written_unless_it_is_read() {
        let cache = cache();
        let blocks = 0..PASSING_MIN as u64;
        for block in blocks.clone() {
            let _inside = cache.gate.enter(0);
            let frame = cache.publish(page(&cache, block as u8), FsBlock(block), true, 1);
            // One is still to be written, one was read.
            if block != 5 {
                cache.written(block, frame);
            }
            assert_eq!(cache.find_data(FsBlock(7)).is_some(), block >= 7);
        }
        cache.let_pass();
        assert_eq!(cache.frame_count() - cache.free_frames(), blocks.end as usize, "too few to close the gate for");
        {
            let _inside = cache.gate.enter(0);
            let frame = cache.publish(page(&cache, 0), FsBlock(1000), true, 1);
            cache.written(1000, frame);
        }
        cache.let_pass();
        let _inside = cache.gate.enter(0);
        let left: Vec<u64> = (0..1001).filter(|&block| cache.find_data(FsBlock(block)).is_some()).collect();
        assert_eq!(left, [5, 7]);
        assert_eq!(cache.frame_count() - cache.free_frames(), 2);
    }

    #[test]
    fn evicted_blocks_leave_the_table_whole() {
        let cache = cache();
        let blocks = cache.frame_count() as u64 / 2;
        for block in 1..=blocks {
            let _inside = cache.gate.enter(0);
            cache.insert_data(FsBlock(block * 37), &[block as u8; 4096]);
        }
        {
            let _inside = cache.gate.enter(0);
            for block in (1..=blocks).step_by(3) {
                cache.kill(FsBlock(block * 37));
            }
        }
        // Dead frames go, and what is left is found behind the gaps they leave.
        cache.sweep(false);
        cache.state.lock().hand = 0;
        let _inside = cache.gate.enter(0);
        for block in 1..=blocks {
            if let Some(frame) = cache.find_data(FsBlock(block * 37)) {
                assert_ne!(block % 3, 1);
                assert_eq!(frame.read()[0], block as u8);
            }
        }
        drop(_inside);
        cache.sweep(true);
        assert_eq!(cache.free_frames(), cache.frame_count());
        assert!(cache.table.iter().all(|entry| entry.load(Ordering::Relaxed) == 0));
    }
}
