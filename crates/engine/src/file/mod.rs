//! File data: dirty pages of open files, reads, writes, truncation, allocation.
//!
//! A write goes into *pages*: private frames of the cache, one for each block of the file, which belong to the file. A page gets no block yet, only
//! the promise of one (delayed allocation, XFS96 6.1). A *flush* takes blocks from the record of free space, maps them, and sets size and times, all
//! in one transaction; then it hands the pages to that transaction's epoch. The checkpoint writes these pages before its commit
//! record. So a crash leaves neither a block that belongs to nothing nor a size without its data.
//!
//! ```text
//! clean -> dirty (pages, promises) -> flushed (mapped, pages ordered before the commit) -> durable
//!             `-> discarded: truncated, or the file is gone; the promises go back
//! ```
//!
//! Invariants
//!   1. While `OpenFile::ahead` is set, size and times in memory are the file's; the inode gets them at the flush.
//!   2. A dirty page has the promise of one block, or its block is mapped already and stays where it is. All dirty pages together have
//!      promises for all nodes of the file's map that their flush may need.
//!   3. After a crash, the bytes past the end of the file in its last block may be anything. An operation that makes the file longer writes zeros
//!      over them first.
//!
//! A program may cut a file to nothing and write it again. After a crash the file then has its old or its new content, never
//! none: if the map fits the inode, the inode keeps the old extents until the flush that brings the new content. If the map does not fit, the thread
//! that writes flushes before it returns, until the epoch closes in which the first new content came (`OpenFile::writes_through`). Until then,
//! rewriting a large file piece by piece costs a transaction for each piece. The checkpoint cannot flush in the thread's place: it may not wait for a
//! data lock, because the thread that holds one may be waiting for the checkpoint. Nor can an orphan take over the old map, because the
//! nodes of a map name their file.
//!
//! Locking: a file's data lock is taken outside the gate, and held across reads of the device.

mod cut;
mod delalloc;
mod fragments;
mod in_order;
mod load;
mod part;
mod read;
mod resize;
mod runs;
#[cfg(test)]
mod tests;

pub(crate) use delalloc::{
    Page, ToMap, bound_ordered, discard, fill, flush, flush_all, flush_due, flush_idle, flush_idle_for_room, map_pages,
    mark_dead, publish_pages, write,
};
pub(crate) use part::frames_of_run;
pub(crate) use read::read;
pub(crate) use resize::{allocate, seek, truncate};
pub(crate) use runs::for_each_run;

use self::cut::{Cut, CutWord};
use self::in_order::{InOrder, WINDOW_MAX};
use crate::locks::{Mutex, Rank, RwLock};
use crate::map;
use crate::schedule;
use crate::types::{Keeper, Node, Stat};
use myriad_device::BufferPool;
use myriad_format::{FileBlock, Ino};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Files that a checkpoint has shown empty and that nobody has open: of how many it is remembered that they were cut.
const BARE_MAX: usize = 1024;
/// Buffers for reading ahead that are kept for the next time.
const READ_BUFFERS: usize = 2;

/// What windows of files are read into, before they are in the cache.
pub(crate) fn read_buffers() -> BufferPool {
    BufferPool::new(READ_BUFFERS, WINDOW_MAX as usize)
}

/// A file that somebody has open, or whose data is not flushed yet, or that was cut to nothing not long ago.
pub(crate) struct OpenFile {
    pub ino: Ino,
    pub generation: u32,
    /// Open handles. Changes under the inode's lock.
    pub opens: AtomicU32,
    /// The inode is freed or about to be: dirty data has nowhere to go.
    pub dead: AtomicBool,
    /// Made without a name, and may still get one.
    pub linkable: AtomicBool,
    /// What a truncation to nothing has left in the inode.
    cut: CutWord,
    /// In `OpenFiles::cut`.
    lingers: AtomicBool,
    /// What is remembered of its reads.
    in_order: InOrder,
    /// Copies of `FileData`'s size and times for stat, valid while `ahead`.
    pub ahead: AtomicBool,
    /// When memory got ahead, by the volume's ticks.
    pub ahead_since: AtomicI64,
    pub size: AtomicU64,
    pub mtime: AtomicI64,
    pub ctime: AtomicI64,
    /// Dirty pages, and `FileData::emptied`, for the same purpose.
    pub pages: AtomicU64,
    pub emptied: AtomicBool,
    /// Held alone by an append in several parts, shared by one in one.
    appending: RwLock<{ Rank::Append as u8 }, ()>,
    pub data: RwLock<{ Rank::FileData as u8 }, FileData>,
}

/// Blocks with content past the size of a file: power loss may have left some, or a truncation, because the host had no room for what it takes to
/// free them, or something could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rest {
    #[default]
    None,
    Some,
    /// Nobody has looked yet. Who only reads need not.
    Unknown,
}

/// What the data lock guards.
#[derive(Default)]
pub(crate) struct FileData {
    /// Dirty pages: file block -> private frame.
    pub pages: BTreeMap<u64, u32>,
    /// Blocks promised to `pages`, nodes included.
    pub promised: u64,
    pub nodes: map::Promised,
    /// With fragments: the flush makes the run of this fragment's file block long enough to include it.
    pub reach: Option<FileBlock>,
    /// The file's size; loaded from the inode at the first use.
    pub size: u64,
    pub loaded: bool,
    /// A truncation to nothing that has not reached the inode: its extents are void.
    pub emptied: bool,
    pub rest: Rest,
    /// A flush in parts has mapped pages past the size that the inode has until the last part.
    pub mapped_past: bool,
    /// On the list of files to flush.
    pub listed: bool,
    /// The last writer will not read what it wrote: its pages need not stay once they are written.
    pub passing: bool,
}

impl OpenFile {
    fn new(ino: Ino, generation: u32) -> Self {
        Self {
            ino,
            generation,
            opens: AtomicU32::new(0),
            dead: AtomicBool::new(false),
            linkable: AtomicBool::new(false),
            cut: CutWord::new(),
            lingers: AtomicBool::new(false),
            in_order: InOrder::default(),
            ahead: AtomicBool::new(false),
            ahead_since: AtomicI64::new(0),
            size: AtomicU64::new(0),
            mtime: AtomicI64::new(0),
            ctime: AtomicI64::new(0),
            pages: AtomicU64::new(0),
            emptied: AtomicBool::new(false),
            appending: RwLock::new(()),
            data: RwLock::new(FileData::default()),
        }
    }

    pub fn node(&self) -> Node {
        Node { ino: self.ino.0, generation: self.generation }
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Notes what a truncation to nothing leaves in the inode. Under the data lock.
    fn note_cut(&self, bare: bool) {
        self.cut.set(if bare { Cut::Bare } else { Cut::Whole });
    }

    /// Notes that a flush has brought content, and with it, if `emptied`, the cut itself. Under the data lock and inside
    /// the gate, so that the epoch stays open.
    fn note_content(&self, epoch: u64, emptied: bool) {
        if emptied || self.cut.get() == Cut::Bare {
            self.cut.set(Cut::Filled(epoch));
        }
    }

    /// Whether whoever changes the content must flush before he returns, `epoch` being open. A checkpoint that shows that the file was
    /// cut to nothing must show what had been written by then. It cannot see to that itself: it may not wait for the
    /// data lock. Under soft updates a round may show less of it than that, but no old content in the new size (`Judge::judge_inode`).
    fn writes_through(&self, epoch: u64) -> bool {
        match self.cut.get() {
            Cut::Whole => false,
            Cut::Bare => true,
            Cut::Filled(filled) => filled >= epoch,
        }
    }
}

const SHARDS: usize = 64;

/// All open files by inode number.
pub(crate) struct OpenFiles {
    shards: Box<[Shard]>,
    /// Files with unflushed data, in the order in which they became dirty.
    pub dirty: Mutex<{ Rank::Leaf as u8 }, Vec<Arc<OpenFile>>>,
    /// Pages dirty in all files.
    pub dirty_pages: AtomicU64,
    /// A write has taken its bytes, and the host had no room to bring dirty data back within bounds: no write takes more before it has.
    pub is_over_bound: AtomicBool,
    flushes: OwnLine,
    /// Gone files whose pages are still to be discarded.
    dead: Mutex<{ Rank::Leaf as u8 }, HashMap<u64, Arc<OpenFile>>>,
    /// Files whose entries stayed, when they were neither open nor dirty, for what a cut had left; oldest first.
    cut: Mutex<{ Rank::Leaf as u8 }, VecDeque<Arc<OpenFile>>>,
    /// Who keeps files without a name alive besides open handles.
    pub keeper: OnceLock<Arc<dyn Keeper>>,
}

/// Away from what is written all the time: everybody reads it.
#[derive(Default)]
#[repr(align(64))]
struct OwnLine(AtomicU64);

#[derive(Default)]
#[repr(align(64))]
struct Shard {
    /// Entries in `files`, readable without its lock.
    count: AtomicU32,
    files: Mutex<{ Rank::Leaf as u8 }, HashMap<u64, Arc<OpenFile>>>,
}

impl Shard {
    /// Apart from the look at the count, which most who ask need no more than.
    #[inline(never)]
    fn find(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        self.files.lock().get(&ino.0).cloned()
    }
}

impl OpenFiles {
    pub fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            dirty: Mutex::new(Vec::new()),
            dirty_pages: AtomicU64::new(0),
            is_over_bound: AtomicBool::new(false),
            flushes: OwnLine::default(),
            dead: Mutex::new(HashMap::new()),
            cut: Mutex::new(VecDeque::new()),
            keeper: OnceLock::new(),
        }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[(ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize]
    }

    /// The file, if it is open or dirty.
    #[inline]
    pub fn find(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        let shard = self.shard(ino);
        if shard.count.load(Ordering::Acquire) == 0 { None } else { shard.find(ino) }
    }

    /// Whether somebody has it open. The inode is locked: shared, nobody closes it for the last time meanwhile.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.find(ino).is_some_and(|file| file.opens.load(Ordering::Acquire) > 0)
    }

    /// Whether a file that lost its last name lives on: somebody has it open, or the keeper holds it, which then counts as
    /// a handle. It is asked in any case, for who has the file open may close it soon. The inode is locked exclusively.
    pub fn is_kept(&self, ino: Ino, generation: u32) -> bool {
        if let Some(keeper) = self.keeper.get() {
            // First, so that whoever releases it, perhaps before the keeper has answered, finds it open.
            let file = self.open(ino, generation);
            if !keeper.hold(Node { ino: ino.0, generation }) {
                // If nobody else has it open, the entry goes with the inode.
                file.opens.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.is_open(ino)
    }

    /// Whether [`Self::is_kept`] may answer yes.
    pub fn may_be_kept(&self, ino: Ino) -> bool {
        self.keeper.get().is_some() || self.is_open(ino)
    }

    /// Tells the keeper, if there is one, as [`Keeper::attributes_changed`] says.
    #[cold]
    pub fn tell_changed(&self, node: Node) {
        if let Some(keeper) = self.keeper.get() {
            keeper.attributes_changed(node);
        }
    }

    /// Opens: makes the entry if it is missing. The inode is locked.
    pub fn open(&self, ino: Ino, generation: u32) -> Arc<OpenFile> {
        let shard = self.shard(ino);
        let mut files = shard.files.lock();
        let file = files.entry(ino.0).or_insert_with(|| {
            shard.count.fetch_add(1, Ordering::AcqRel);
            Arc::new(OpenFile::new(ino, generation))
        });
        debug_assert_eq!(file.generation, generation, "no entry outlives its inode");
        file.opens.fetch_add(1, Ordering::AcqRel);
        file.clone()
    }

    /// Drops the entry of a file that is neither open nor dirty, `epoch` being open. Whoever opens it next must know what
    /// a cut has left: with that, it stays until a checkpoint has been made ([`Self::forget_cut`]).
    pub fn forget_if_idle(&self, file: &Arc<OpenFile>, epoch: u64) {
        self.forget_or_linger(file, || file.writes_through(epoch));
    }

    /// `lingers` is asked when nobody can change the answer: as long as the shard is locked, nobody opens the file.
    fn forget_or_linger(&self, file: &Arc<OpenFile>, lingers: impl FnOnce() -> bool) {
        {
            let shard = self.shard(file.ino);
            let mut files = shard.files.lock();
            let same = files.get(&file.ino.0).is_some_and(|entry| Arc::ptr_eq(entry, file));
            if !same || file.opens.load(Ordering::Acquire) > 0 || file.ahead.load(Ordering::Acquire) {
                return;
            }
            if !lingers() {
                files.remove(&file.ino.0);
                shard.count.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
        if !file.lingers.swap(true, Ordering::AcqRel) {
            self.cut.lock().push_back(file.clone());
        }
    }

    /// After a checkpoint, `epoch` being open: drops the entries of files whose content it has since they were cut, and
    /// of those that are empty the oldest beyond [`BARE_MAX`].
    pub fn forget_cut(&self, epoch: u64) {
        let mut done = Vec::new();
        {
            let mut cut = self.cut.lock();
            let mut surplus = cut.len().saturating_sub(BARE_MAX);
            cut.retain(|file| {
                let was = file.cut.get();
                let stays = match was {
                    Cut::Whole => false,
                    Cut::Bare => surplus == 0,
                    Cut::Filled(filled) => filled >= epoch,
                };
                if !stays {
                    surplus = surplus.saturating_sub(1);
                    done.push((file.clone(), was));
                }
                stays
            });
        }
        for (file, was) in done {
            schedule::pause();
            // First: whoever closes it from now on lists it again.
            file.lingers.store(false, Ordering::Release);
            // It may have been cut again since it was looked at.
            self.forget_or_linger(&file, || file.cut.get() != was && file.writes_through(epoch));
        }
    }

    /// Takes the entry of a file whose inode is being freed. The inode is locked exclusively, nobody has it open.
    pub fn take(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        let shard = self.shard(ino);
        if shard.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let file = shard.files.lock().remove(&ino.0);
        if let Some(file) = &file {
            debug_assert_eq!(file.opens.load(Ordering::Acquire), 0, "nobody has open what is freed");
            shard.count.fetch_sub(1, Ordering::AcqRel);
        }
        file
    }

    pub fn keep_dead(&self, file: Arc<OpenFile>) {
        self.dead.lock().insert(file.ino.0, file);
    }

    pub fn take_dead(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        self.dead.lock().remove(&ino.0)
    }

    /// Handles open on the whole volume.
    pub fn open_handles(&self) -> u64 {
        let open = |shard: &Shard| -> u64 {
            shard.files.lock().values().map(|file| u64::from(file.opens.load(Ordering::Relaxed))).sum()
        };
        self.shards.iter().map(open).sum()
    }

    /// Whether memory is ahead of any file's inode.
    pub fn has_ahead(&self) -> bool {
        let is_ahead = |file: &Arc<OpenFile>| file.ahead.load(Ordering::Acquire);
        self.shards.iter().any(|shard| shard.files.lock().values().any(is_ahead))
    }

    /// Flushes that have brought an inode up to date.
    #[inline]
    pub fn flushes(&self) -> u64 {
        self.flushes.0.load(Ordering::Acquire)
    }

    /// An inode has caught up with memory. Before that is said of its file.
    pub fn note_flush(&self) {
        self.flushes.0.fetch_add(1, Ordering::Release);
    }

    /// Puts what memory knows better than the inode into `stat`, if it does. Blocks promised count as the file's, or
    /// programs would take it for one without data.
    #[inline]
    pub fn overlay_stat(&self, stat: &mut Stat, block_bits: u32) -> bool {
        let Some(file) = self.find(Ino(stat.ino)) else { return false };
        let is_ahead = file.generation == stat.generation && file.ahead.load(Ordering::Acquire);
        if is_ahead {
            stat.size = file.size.load(Ordering::Relaxed);
            stat.mtime = file.mtime.load(Ordering::Relaxed);
            stat.ctime = file.ctime.load(Ordering::Relaxed).max(stat.ctime);
            // Pages may lie over blocks that are mapped: with those, the file is at most as large as its size says.
            let unit = 1 << (block_bits - 9);
            let mapped = if file.emptied.load(Ordering::Relaxed) { 0 } else { stat.blocks };
            let most = mapped.max(stat.size.div_ceil(unit << 9).saturating_mul(unit));
            stat.blocks = most.min(mapped + file.pages.load(Ordering::Relaxed) * unit);
        }
        is_ahead
    }

    /// Of a file whose inode memory is ahead of: what its pages hold, in sectors of 512 bytes.
    pub fn unflushed_sectors(&self, node: Node, block_bits: u32) -> Option<u64> {
        let file = self.find(Ino(node.ino)).filter(|file| file.ahead.load(Ordering::Acquire))?;
        Some(file.pages.load(Ordering::Relaxed) << (block_bits - 9))
    }

    pub fn set_mtime(&self, ino: Ino, time: i64) {
        if let Some(file) = self.find(ino) {
            file.mtime.store(time, Ordering::Relaxed);
        }
    }

    pub fn set_ctime(&self, ino: Ino, time: i64) {
        if let Some(file) = self.find(ino) {
            file.ctime.store(time, Ordering::Relaxed);
        }
    }
}
