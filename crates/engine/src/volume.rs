//! An open volume: what all operations share. Space by group, totals, reservations, and the device.

use crate::cache::{Cache, flag};
use crate::counters::{Count, Counters};
use crate::edit::BlockStore;
use crate::error::{DamagedData, Errno, Error, Result};
use crate::file::OpenFiles;
use crate::inode;
use crate::locks::{Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::namei::NameCache;
use crate::order::checkpoint::Checkpointer;
use crate::order::{Look, OpenEpoch, Txn};
use crate::placement::Placement;
use crate::space::AgSpace;
use crate::types::{Clock, MountOptions, Order, StatFs, Time};
use myriad_device::{AlignedBuf, BlockDevice, ReadRequest, WriteRequest};
use myriad_format::group::{FIXED_BLOCKS, RESERVE_MAX};
use myriad_format::inode::RawInode;
use myriad_format::superblock::{OrphanHeader, Superblock, feature, seam};
use myriad_format::{AgBlock, AgNo, BlockKind, Corrupt, FsBlock, Geometry, Ino, NameHasher, SLOT_BITS, header};
use myriad_log::{Log, LogError, LogPlace};
use parking_lot::Condvar;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use zerocopy::little_endian::{I64, U32, U64};

/// Inode locks. Inodes share a lock by hash; an operation that needs several takes them in the order of their numbers,
/// each once.
const STRIPES: usize = 4096;
/// Names that the name cache holds: 2 MiB of them stay in the processor's cache, where finding out that a name is not
/// among them costs little.
const NAMES_MAX: usize = 1 << 17;
/// Dirty data that the background thread begins to write, in bytes: enough for long requests, little enough that a
/// disk is busy while a tree is still being filled.
const DIRTY_SOFT_BYTES: u64 = 64 << 20;
/// Largest write to the device, in bytes.
const WRITE_MAX: usize = 1 << 20;
/// Blocks that one operation may allocate for metadata: directory, index, extent tree, attributes.
pub(crate) const OPERATION_BLOCKS: u64 = 24;
/// Nodes that one change in the middle of a file's map may need: two more extents, each of which may split every level
/// of a tree of three and add one.
pub(crate) const MAP_BLOCKS: u64 = 8;
/// Part of the log, in bytes, for each block that one transaction overwrites out of place: what it frees, maps and notes
/// takes a third of that in the worst case, and a transaction must fit the half of the log that a checkpoint may take.
const OVERWRITE_LOG_BYTES: u64 = 1024;
/// With more blocks than this to spare, an operation need not look at what others have reserved: it is more than 300
/// of them can ask for at once.
const PLENTY: i64 = 8192;

/// How deep an operation may reach into the free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Down to the blocks held back.
    Common,
    /// Down to the last one: it gives space back, and may need a little for that.
    Last,
}

/// Exact counts of the whole volume.
pub(crate) struct Totals {
    /// Free, limbo included.
    pub free_blocks: AtomicI64,
    /// Free and in a group's trees: what can be allocated now.
    pub ready_blocks: AtomicI64,
    /// Promised to delayed allocation.
    pub reserved_blocks: AtomicI64,
    pub inodes_used: AtomicI64,
    pub directories: AtomicI64,
}

pub(crate) struct Volume {
    pub cache: Cache,
    pub geometry: Geometry,
    pub hasher: NameHasher,
    pub order: Order,
    pub options: MountOptions,
    pub counters: Arc<Counters>,
    pub device: Arc<dyn BlockDevice>,
    pub superblock: Superblock,
    pub root: Ino,
    /// Bytes of a granule.
    pub granule: u64,
    pub log_is_external: bool,
    pub recovered: bool,
    pub epoch: OpenEpoch,
    pub totals: Totals,
    pub placement: Placement,
    pub names: NameCache,
    pub files: OpenFiles,
    /// Inodes without a name that live on while somebody has them open, or whose blocks are still being freed.
    pub orphans: Mutex<{ Rank::Leaf as u8 }, BTreeSet<u64>>,
    /// Blocks of the orphan list as last written, and the list.
    orphan_blocks: Mutex<{ Rank::OrphanList as u8 }, (Vec<FsBlock>, BTreeSet<u64>)>,
    pub checkpointer: Mutex<{ Rank::Checkpointer as u8 }, Checkpointer>,
    /// Wakes the background thread.
    pub wake: (parking_lot::Mutex<Wake>, Condvar),
    /// Rises with every change that may make a resolved directory path mean something else.
    pub namespace_generation: AtomicU64,
    pub rename_lock: Mutex<{ Rank::Rename as u8 }, ()>,
    /// File data has been written that no flush has covered yet.
    pub data_unflushed: AtomicBool,
    /// Who is told of each read of damaged data.
    pub on_damage: OnceLock<Box<dyn Fn(DamagedData) + Send + Sync>>,
    /// Feature bits set since the superblock was last written.
    pub features: AtomicU64,
    groups: Box<[Mutex<{ Rank::Group as u8 }, Option<Box<AgSpace>>>]>,
    /// Blocks let go by groups whose mirror was dropped.
    stray_blocks: Mutex<{ Rank::Leaf as u8 }, Vec<FsBlock>>,
    high_water: AtomicU32,
    high_water_lock: Mutex<{ Rank::NewGroup as u8 }, ()>,
    stripes: Box<[RwLock<{ Rank::Inode as u8 }, ()>]>,
    shut_down: AtomicBool,
    shut_down_reason: Mutex<{ Rank::Leaf as u8 }, String>,
    /// Log bytes of an epoch at which a checkpoint is due, and at which operations wait for one.
    log_soft: u64,
    log_hard: u64,
    /// Pages of dirty data at which the background thread begins to write, and at which writers wait.
    pub dirty_data_soft: u64,
    pub dirty_data_max: u64,
    /// Pages that one transaction may put into the place of mapped blocks.
    pub overwrite_pages_max: usize,
}

/// What the background thread is told.
#[derive(Default)]
pub(crate) struct Wake {
    /// A checkpoint is due.
    pub wanted: bool,
    /// Dirty data is to be flushed before it.
    pub flush: bool,
    pub stop: bool,
}

impl Volume {
    /// Puts a volume together. `log` is where its log lies, if it has one.
    pub fn assemble(
        device: Arc<dyn BlockDevice>,
        log: Option<LogPlace>,
        superblock: Superblock,
        options: MountOptions,
    ) -> Result<Self> {
        let geometry = superblock.geometry();
        let order = match options.order {
            Some(order) => order,
            None if superblock.last_order.get() == u32::from(seam::ORDER_LOG) => Order::Log,
            None => Order::None,
        };
        if order == Order::Log && log.is_none() {
            return Err(Error::Option {
                option: "order",
                reason: "this volume has no log; use order=none, or make it anew with a log".into(),
            });
        }
        let counters = Arc::new(Counters::new());
        let log_is_external = superblock.log_device != [0; 16];
        let mut pending = Vec::new();
        let mut overlay = myriad_log::Overlay::default();
        let mut opened = None;
        let mut recovered = false;
        if let Some(place) = log {
            let found = if options.read_only {
                // Opening the log for appending would erase a torn attempt.
                myriad_log::recover(&place).map_err(log_open_error)?
            } else {
                let (log, found) = Log::open(place).map_err(log_open_error)?;
                opened = Some(log);
                found
            };
            // A volume closed cleanly has everything home; its log still shows the last checkpoint.
            if superblock.state.get() == seam::STATE_IN_USE {
                recovered = found.checkpoints > 0;
                overlay = found.overlay;
            }
            pending = found.pending;
            // The log knows blocks, but not the volume's size.
            if let Some(&(start, length)) =
                pending.iter().find(|&&(start, length)| !geometry.is_data_range(start, u64::from(length)))
            {
                let value = start.0.saturating_add(u64::from(length));
                return Err(Corrupt::Log { lsn: found.head, field: "pending free; its end", value }.into());
            }
        }
        let cache = Cache::new(
            options.cache_size,
            geometry.block_bits,
            options.read_only,
            device.clone(),
            superblock.volume(),
            overlay,
            counters.clone(),
        )?;
        let log_capacity = opened.as_ref().map_or(u64::MAX / 2, Log::capacity);
        let checkpointer = Checkpointer::new(opened, pending, geometry.block_size());
        let seed = options.seed.unwrap_or_else(|| rand_seed(&superblock));
        let frames = cache.frame_count() as u64;
        Ok(Self {
            geometry,
            hasher: NameHasher::new(superblock.hash_key),
            order,
            counters,
            device,
            root: Ino(superblock.root_ino.get()),
            granule: geometry.granule_size() as u64,
            log_is_external,
            recovered,
            epoch: OpenEpoch::new(),
            totals: Totals {
                free_blocks: AtomicI64::new(0),
                ready_blocks: AtomicI64::new(0),
                reserved_blocks: AtomicI64::new(0),
                inodes_used: AtomicI64::new(0),
                directories: AtomicI64::new(0),
            },
            placement: Placement::new(&geometry, options.dirpref, seed),
            names: NameCache::new(if options.name_cache { NAMES_MAX.min(cache.frame_count()) } else { 0 })
                .map_err(|source| Error::Io { op: "memory for the name cache", offset: 0, source })?,
            files: OpenFiles::new(),
            orphans: Mutex::new(BTreeSet::new()),
            orphan_blocks: Mutex::new((Vec::new(), BTreeSet::new())),
            checkpointer: Mutex::new(checkpointer),
            wake: (parking_lot::Mutex::new(Wake::default()), Condvar::new()),
            namespace_generation: AtomicU64::new(1),
            rename_lock: Mutex::new(()),
            data_unflushed: AtomicBool::new(false),
            on_damage: OnceLock::new(),
            features: AtomicU64::new(superblock.features_compatible.get()),
            groups: (0..geometry.ag_count).map(|_| Mutex::new(None)).collect(),
            stray_blocks: Mutex::new(Vec::new()),
            high_water: AtomicU32::new(superblock.ag_high_water.get()),
            high_water_lock: Mutex::new(()),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            shut_down: AtomicBool::new(false),
            shut_down_reason: Mutex::new(String::new()),
            log_soft: log_capacity / 12,
            log_hard: log_capacity / 8,
            dirty_data_soft: (frames / 16).min(DIRTY_SOFT_BYTES >> geometry.block_bits),
            dirty_data_max: frames / 4,
            overwrite_pages_max: (log_capacity / OVERWRITE_LOG_BYTES).min(frames / 32).max(64) as usize,
            cache,
            options,
            superblock,
        })
    }

    /// Takes the totals from the superblock as recovered. Pending blocks are free, but not in any tree yet.
    pub fn load_totals(&self, superblock: &Superblock) {
        // A count beyond what there is room for is as wrong as any other wrong count, but must not overflow.
        let most = |count: u64, most: u64| count.min(most) as i64;
        let slots = self.geometry.block_count << (self.geometry.block_bits - SLOT_BITS);
        let free = most(superblock.free_blocks.get(), self.geometry.block_count);
        let pending = self.checkpointer.lock().released_blocks() as i64;
        let held = i64::from(superblock.ag_count.get()) * RESERVE_MAX as i64;
        self.totals.free_blocks.store(free, Ordering::Relaxed);
        self.totals.ready_blocks.store(free - held - pending, Ordering::Relaxed);
        self.totals.inodes_used.store(most(superblock.inodes_used.get(), slots), Ordering::Relaxed);
        self.totals.directories.store(most(superblock.directories.get(), slots), Ordering::Relaxed);
        self.high_water.store(superblock.ag_high_water.get(), Ordering::Relaxed);
        self.features.store(superblock.features_compatible.get(), Ordering::Relaxed);
    }

    pub fn now(&self) -> Time {
        match &self.options.clock {
            Clock::System => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
                now.tv_sec * 1_000_000_000 + now.tv_nsec
            }
            Clock::Manual(time) => time.load(Ordering::Relaxed),
        }
    }

    // ---- errors ----

    /// Refuses all changes from now on; reads go on.
    #[cold]
    pub fn shut_down(&self, error: &Error) {
        if !self.shut_down.swap(true, Ordering::SeqCst) {
            *self.shut_down_reason.lock() = error.to_string();
        }
    }

    #[inline]
    pub fn check_running(&self) -> Result<()> {
        if self.shut_down.load(Ordering::Relaxed) { Err(Error::Shutdown) } else { Ok(()) }
    }

    /// Why the volume was shut down, if it was.
    pub fn shut_down_reason(&self) -> Option<String> {
        self.shut_down.load(Ordering::Relaxed).then(|| self.shut_down_reason.lock().clone())
    }

    pub fn log_error(&self, error: LogError) -> Error {
        log_open_error(error)
    }

    // ---- entering ----

    /// Begins an operation that changes metadata and may allocate up to `blocks` blocks, which are reserved until its end:
    /// waits for room in cache, log and volume; ENOSPC if there is none. 0 blocks: it allocates nothing.
    #[inline]
    pub fn begin(&self, blocks: u64) -> Result<Txn<'_>> {
        self.begin_with(blocks, Share::Common)
    }

    /// As [`Self::begin`], for an operation that gives space back, or has a promise for what it takes: it works on a full
    /// volume.
    pub fn begin_giving(&self, blocks: u64) -> Result<Txn<'_>> {
        self.begin_with(blocks, Share::Last)
    }

    #[inline]
    fn begin_with(&self, blocks: u64, share: Share) -> Result<Txn<'_>> {
        self.check_running()?;
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        if !self.cache.has_room() || self.epoch.log_bytes.load(Ordering::Relaxed) > self.log_soft {
            self.throttle()?;
        }
        let txn = Txn::reserving(self, blocks);
        if blocks == 0 || self.has_plenty() {
            return Ok(txn);
        }
        drop(txn);
        self.begin_scarce(blocks, share)
    }

    /// Each who wants space reserves it first and then looks whether all reservations together fit: two who look at the
    /// same time see each other.
    #[cold]
    fn begin_scarce(&self, blocks: u64, share: Share) -> Result<Txn<'_>> {
        for attempt in 0..3 {
            let txn = Txn::reserving(self, blocks);
            if self.has_spare(share) {
                return Ok(txn);
            }
            drop(txn);
            match attempt {
                0 => self.find_space(blocks, share)?,
                // Promises are for the worst case: once the data has its blocks, more may fit. Who has a promise himself
                // is a flush.
                1 if share == Share::Common && self.has_promises() => {
                    crate::file::flush_idle(self)?;
                    self.find_space(blocks, share)?;
                }
                _ => break,
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Begins an operation that only looks.
    #[inline]
    pub fn look(&self) -> Look<'_> {
        if !self.cache.has_room() {
            self.make_room_quietly();
        }
        Look::enter(self)
    }

    /// Free blocks that neither a promise nor an operation under way counts on, less those that `share` leaves.
    fn spare_blocks(&self, share: Share) -> i64 {
        // In this order: a reservation becomes an allocation or a promise before it ends, and is at worst seen twice.
        let ready = self.totals.ready_blocks.load(Ordering::SeqCst);
        let left = match share {
            Share::Common => self.held_back() + self.orphan_list_blocks() as i64,
            Share::Last => 0,
        };
        ready - self.totals.reserved_blocks.load(Ordering::SeqCst) - self.cache.gate.weight() as i64 - left
    }

    /// Whether all reservations, the caller's included, can be met.
    pub fn has_spare(&self, share: Share) -> bool {
        self.has_plenty() || self.spare_blocks(share) >= 0
    }

    fn has_plenty(&self) -> bool {
        let promised = self.totals.reserved_blocks.load(Ordering::SeqCst);
        self.totals.ready_blocks.load(Ordering::SeqCst) - promised > PLENTY
    }

    /// Blocks that the next checkpoint may need for the list of orphans.
    fn orphan_list_blocks(&self) -> usize {
        self.orphans.lock().len().div_ceil(self.orphans_per_block())
    }

    fn orphans_per_block(&self) -> usize {
        (self.cache.block_size() - OrphanHeader::SIZE) / 8
    }

    /// Blocks that only operations which give back may dip into: splitting an extent can need a node.
    fn held_back(&self) -> i64 {
        (self.geometry.block_count / 64).min(256) as i64
    }

    /// Blocks that making a file may take: its directory's, and a chunk of inodes.
    pub fn blocks_to_create(&self) -> u64 {
        OPERATION_BLOCKS + u64::from(self.geometry.chunk_blocks)
    }

    #[cold]
    fn throttle(&self) -> Result<()> {
        if !self.cache.has_room() {
            self.make_room()?;
        }
        if self.epoch.log_bytes.load(Ordering::Relaxed) > self.log_soft {
            self.wake_background(false);
            if !self.options.background || self.epoch.log_bytes.load(Ordering::Relaxed) > self.log_hard {
                self.counters.bump(Count::log_stalls);
                self.commit_through(self.epoch.current())?;
            }
        }
        Ok(())
    }

    /// Evicts; when nothing can be evicted, makes a checkpoint and brings blocks home first.
    fn make_room(&self) -> Result<()> {
        for round in 0..8 {
            self.cache.sweep(false);
            if self.cache.has_room() {
                return Ok(());
            }
            if self.options.read_only || self.check_running().is_err() {
                break;
            }
            if round > 0 {
                crate::file::flush_idle(self)?;
            }
            self.commit_now()?;
            let mut checkpointer = self.checkpointer.lock();
            checkpointer.bring_home(self)?;
        }
        if self.cache.free_frames() > 64 { Ok(()) } else { Err(Errno::NOMEM.into()) }
    }

    pub fn make_room_quietly(&self) {
        // A failure shows in what needs the room.
        let _ = self.cache.sweep(false);
        if !self.cache.has_room() && !self.options.read_only {
            let _ = self.make_room();
        }
    }

    /// Waits for limbo to let go of its blocks, until there are `blocks` to spare or no more come.
    #[cold]
    fn find_space(&self, blocks: u64, share: Share) -> Result<()> {
        for _ in 0..3 {
            let before = self.totals.ready_blocks.load(Ordering::Relaxed);
            self.commit_now()?;
            self.checkpointer.lock().release_now(self)?;
            let after = self.totals.ready_blocks.load(Ordering::Relaxed);
            if after <= before || self.spare_blocks(share) >= blocks as i64 {
                break;
            }
        }
        Ok(())
    }

    /// Promises `blocks` to a file's dirty data; ENOSPC if they are not there.
    pub fn reserve(&self, blocks: u64, share: Share) -> Result<()> {
        for attempt in 0..2 {
            self.totals.reserved_blocks.fetch_add(blocks as i64, Ordering::SeqCst);
            if self.has_spare(share) {
                return Ok(());
            }
            self.totals.reserved_blocks.fetch_sub(blocks as i64, Ordering::SeqCst);
            if attempt == 0 {
                self.find_space(blocks, share)?;
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Whether dirty data holds promises. They are for the worst case: once the data has its blocks, more may fit.
    pub fn has_promises(&self) -> bool {
        self.totals.reserved_blocks.load(Ordering::Relaxed) > 0
    }

    pub fn unreserve(&self, blocks: u64) {
        self.totals.reserved_blocks.fetch_sub(blocks as i64, Ordering::Relaxed);
    }

    // ---- durability ----

    /// Makes everything that was done before the call durable.
    pub fn commit_now(&self) -> Result<()> {
        self.commit_through(self.epoch.current())
    }

    /// Waits until `epoch` is durable, making the checkpoint if nobody else does.
    pub fn commit_through(&self, epoch: u64) -> Result<()> {
        let mut checkpointer = self.checkpointer.lock();
        if checkpointer.durable > epoch {
            return self.check_running();
        }
        checkpointer.run(self)
    }

    pub fn wake_background(&self, flush: bool) {
        if self.options.background {
            let mut wake = self.wake.0.lock();
            wake.flush |= flush;
            if !wake.wanted {
                wake.wanted = true;
                self.wake.1.notify_one();
            }
        }
    }

    /// Has the host give memory ahead of its use, until the volume closes (`cache/warm.rs`).
    pub fn keep_warm(&self) {
        let mut done = 0;
        while let Some(frames) = self.cache.warm.next(done) {
            // A host that does not know the request gives memory at the first use, as ever.
            if (done == 0 && self.names.warm_up().is_err()) || self.cache.warm_up(done..frames).is_err() {
                return;
            }
            done = frames;
        }
    }

    /// What a checkpoint writes itself, behind the closed gate: totals and the orphan list.
    pub fn prepare_capture(&self, txn: &mut Txn<'_>) -> Result<()> {
        self.write_orphans(txn)?;
        for block in std::mem::take(&mut *self.stray_blocks.lock()) {
            txn.block_free(block, 1);
        }
        // Blocks that the groups' trees let go are neither free nor used until they are in limbo.
        for group in &self.groups[..self.high_water() as usize] {
            let released = match group.lock().as_mut() {
                Some(space) => {
                    let before = space.free_blocks();
                    let released = space.take_released(txn)?;
                    self.totals
                        .free_blocks
                        .fetch_add(i64::from(space.free_blocks()) - i64::from(before), Ordering::Relaxed);
                    released
                }
                None => continue,
            };
            for block in released {
                txn.block_free(block, 1);
            }
        }
        let free = self.totals.free_blocks.load(Ordering::Relaxed) as u64;
        let inodes = self.totals.inodes_used.load(Ordering::Relaxed) as u64;
        let directories = self.totals.directories.load(Ordering::Relaxed) as u64;
        let orphan_root = self.orphan_blocks.lock().0.first().map_or(0, |block| block.0);
        let high_water = self.high_water.load(Ordering::Relaxed);
        let features = self.features.load(Ordering::Relaxed);
        let order = match self.order {
            Order::None => seam::ORDER_NONE,
            Order::Log => seam::ORDER_LOG,
        };
        txn.change(FsBlock(0), BlockKind::Superblock, |edit| {
            let mut new = *Superblock::read(edit.bytes());
            new.free_blocks = U64::new(free);
            new.inodes_used = U64::new(inodes);
            new.directories = U64::new(directories);
            new.orphan_root = U64::new(orphan_root);
            new.ag_high_water = U32::new(high_water);
            new.features_compatible = U64::new(features);
            new.last_order = U32::new(u32::from(order));
            if new != *Superblock::read(edit.bytes()) {
                // Fields from the high-water mark to the order; everything else stays as mkfs wrote it.
                let bytes = zerocopy::IntoBytes::as_bytes(&new);
                edit.put(64, &bytes[64..72]);
                edit.put(104, &bytes[104..108]);
                edit.put(168, &bytes[168..204]);
            }
        })
    }

    /// Writes the list of orphans if it has changed.
    fn write_orphans(&self, txn: &mut Txn<'_>) -> Result<()> {
        let orphans = self.orphans.lock().clone();
        let mut written = self.orphan_blocks.lock();
        if written.1 == orphans {
            return Ok(());
        }
        for block in std::mem::take(&mut written.0) {
            txn.forget(block);
            txn.block_free(block, 1);
        }
        let per_block = self.orphans_per_block();
        let list: Vec<u64> = orphans.iter().copied().collect();
        let mut next = 0;
        let mut blocks = Vec::new();
        for part in list.chunks(per_block).rev() {
            let (block, _) = self.allocate_extent(txn, FsBlock(u64::from(FIXED_BLOCKS)), 1, 1)?;
            txn.init(block, BlockKind::Orphans, 0, |edit| {
                let raw = OrphanHeader::read_mut(edit.range_mut(0, OrphanHeader::SIZE));
                raw.count = U32::new(part.len() as u32);
                raw.next = U64::new(next);
                for (i, ino) in part.iter().enumerate() {
                    edit.put(OrphanHeader::SIZE + i * 8, &ino.to_le_bytes());
                }
            })?;
            next = block.0;
            blocks.push(block);
        }
        blocks.reverse();
        *written = (blocks, orphans);
        Ok(())
    }

    /// Reads the orphan list as the last checkpoint wrote it.
    pub fn load_orphans(&self, superblock: &Superblock) -> Result<()> {
        let mut next = superblock.orphan_root.get();
        let mut blocks = Vec::new();
        let mut met = BTreeSet::new();
        let mut orphans = BTreeSet::new();
        let look = self.look();
        while next != 0 {
            let block = FsBlock(next);
            let bad = |field, value| Corrupt::Orphans { block, field, value };
            if !self.geometry.is_data_range(block, 1) || !met.insert(block) {
                return Err(bad("next", next).into());
            }
            next = look.read(block, BlockKind::Orphans, |bytes| {
                let raw = OrphanHeader::read(bytes);
                let count = raw.count.get() as usize;
                if count > (bytes.len() - OrphanHeader::SIZE) / 8 {
                    return Err(bad("count", count as u64));
                }
                for i in 0..count {
                    let at = OrphanHeader::SIZE + i * 8;
                    orphans.insert(u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")));
                }
                Ok(raw.next.get())
            })??;
            blocks.push(block);
        }
        *self.orphans.lock() = orphans.clone();
        *self.orphan_blocks.lock() = (blocks, orphans);
        Ok(())
    }

    // ---- inode locks ----

    fn stripe(&self, ino: Ino) -> usize {
        (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize
    }

    /// Locks one inode to look at it.
    #[inline]
    pub fn lock_shared(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        let stripe = self.stripe(ino);
        self.stripes[stripe].read_at(stripe)
    }

    /// Locks one inode to change it.
    #[inline]
    pub fn lock_exclusive(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        let stripe = self.stripe(ino);
        self.stripes[stripe].write_at(stripe)
    }

    /// Locks several inodes to change them, in lock order, each lock once.
    pub fn lock_many(&self, inos: &[Ino]) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut stripes: Vec<usize> = inos.iter().map(|&ino| self.stripe(ino)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.stripes[stripe].write_at(stripe)).collect()
    }

    /// Locks `second` while `first` is locked: `None` if that is not possible without waiting out of order, and `first`
    /// must be let go. `Some(None)`: they share a lock.
    pub fn lock_further(&self, first: Ino, second: Ino) -> Option<Option<RwLockWriteGuard<'_, ()>>> {
        let (held, wanted) = (self.stripe(first), self.stripe(second));
        if held == wanted {
            Some(None)
        } else if wanted > held {
            Some(Some(self.stripes[wanted].write_at(wanted)))
        } else {
            self.stripes[wanted].try_write_at(wanted).map(Some)
        }
    }

    // ---- space ----

    pub fn block_of(&self, ino: Ino) -> FsBlock {
        self.geometry.locate(ino).map_or(FsBlock(u64::from(FIXED_BLOCKS)), |(block, _)| block)
    }

    pub fn high_water(&self) -> u32 {
        self.high_water.load(Ordering::Relaxed)
    }

    /// Runs `f` on a group's space, under its lock, and carries what changed over to the totals.
    pub fn with_group<R>(
        &self,
        txn: &mut Txn<'_>,
        ag: AgNo,
        f: impl FnOnce(&mut AgSpace, &mut Txn<'_>) -> Result<R>,
    ) -> Result<R> {
        if ag.0 >= self.high_water() {
            self.raise_high_water(txn, ag)?;
        }
        let mut group = self.group(txn, ag)?;
        let space = group.as_mut().expect("just loaded");
        let measure = |space: &AgSpace| {
            [space.free_blocks(), space.available(), space.inodes_used(), space.directories()].map(i64::from)
        };
        let before = measure(space);
        let result = f(space, txn);
        if result.is_err() {
            // The mirror may be half changed. The blocks are not, or the transaction's end shuts the volume down: load it
            // again from them. What earlier operations let go still waits for the checkpoint.
            self.stray_blocks.lock().append(&mut space.abandon());
            *group = None;
            return result;
        }
        let after = measure(space);
        let totals = &self.totals;
        for (total, (after, before)) in
            [&totals.free_blocks, &totals.ready_blocks, &totals.inodes_used, &totals.directories]
                .into_iter()
                .zip(after.into_iter().zip(before))
        {
            if after != before {
                total.fetch_add(after - before, Ordering::Relaxed);
            }
        }
        result
    }

    fn group(&self, txn: &mut Txn<'_>, ag: AgNo) -> Result<MutexGuard<'_, Option<Box<AgSpace>>>> {
        let mut group = self.groups[ag.0 as usize].lock();
        if group.is_none() {
            *group = Some(Box::new(AgSpace::load(txn, ag)?));
        }
        Ok(group)
    }

    /// Makes the groups up to `ag`, which have never been used.
    fn raise_high_water(&self, txn: &mut Txn<'_>, ag: AgNo) -> Result<()> {
        let _lock = self.high_water_lock.lock();
        for number in self.high_water()..=ag.0 {
            let ag = AgNo(number);
            let virgin = i64::from(self.geometry.blocks_in(ag).saturating_sub(self.geometry.first_data_block(ag)));
            let space = AgSpace::init_group(txn, ag, &[])?;
            self.totals.free_blocks.fetch_add(i64::from(space.free_blocks()) - virgin, Ordering::Relaxed);
            *self.groups[number as usize].lock() = Some(Box::new(space));
            self.high_water.store(number + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Makes group 0 of a new volume, in which `used` (start, length) is taken.
    pub fn init_first_group(&self, txn: &mut Txn<'_>, used: &[(u32, u32)]) -> Result<()> {
        let space = AgSpace::init_group(txn, AgNo(0), used)?;
        self.totals.free_blocks.fetch_add(i64::from(space.free_blocks()), Ordering::Relaxed);
        self.totals.ready_blocks.fetch_add(i64::from(space.available()), Ordering::Relaxed);
        *self.groups[0].lock() = Some(Box::new(space));
        self.high_water.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Groups in the order in which an allocation near `goal` tries them: its own, those after it, those before it.
    fn groups_from(&self, goal: FsBlock) -> impl Iterator<Item = AgNo> {
        let count = self.geometry.ag_count;
        let first = self.geometry.ag_of(goal).0.min(count - 1);
        (0..count).map(move |i| AgNo((first + i) % count))
    }

    fn is_too_small(&self, ag: AgNo) -> bool {
        self.geometry.blocks_in(ag) <= self.geometry.first_data_block(ag) + RESERVE_MAX as u32
    }

    /// The block of a group at which to look for space near `goal`. The group is not too small.
    fn near(&self, ag: AgNo, goal: FsBlock) -> AgBlock {
        let first = self.geometry.first_data_block(ag);
        let at = if ag == self.geometry.ag_of(goal) { self.geometry.ag_block_of(goal).0 } else { first };
        AgBlock(at.clamp(first, self.geometry.blocks_in(ag) - 1))
    }

    /// Allocates `min` to `max` contiguous blocks near `goal`. ENOSPC only if no group has `min`.
    pub fn allocate_extent(&self, txn: &mut Txn<'_>, goal: FsBlock, min: u32, max: u32) -> Result<(FsBlock, u32)> {
        for ag in self.groups_from(goal) {
            if self.is_too_small(ag) {
                continue;
            }
            let near = self.near(ag, goal);
            let found = self.with_group(txn, ag, |space, txn| {
                if space.available() < min { Ok(None) } else { space.allocate(txn, near, min, max) }
            })?;
            if let Some((start, length)) = found {
                self.counters.add(Count::blocks_allocated, u64::from(length));
                return Ok((self.geometry.fs_block(ag, start), length));
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Allocates an inode slot near `near`.
    pub fn allocate_inode(&self, txn: &mut Txn<'_>, near: FsBlock) -> Result<Ino> {
        for grow in [true, false] {
            for ag in self.groups_from(near) {
                if self.is_too_small(ag) || (!grow && ag.0 >= self.high_water()) {
                    continue;
                }
                let at = self.near(ag, near);
                if let Some((block, slot)) =
                    self.with_group(txn, ag, |space, txn| space.allocate_inode(txn, at, grow))?
                {
                    self.counters.bump(Count::inodes_allocated);
                    return Ok(self.geometry.ino(self.geometry.fs_block(ag, block), slot));
                }
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Gives an inode's slot and body back. Its blocks have been freed already.
    pub fn free_inode(&self, txn: &mut Txn<'_>, ino: Ino, raw: &RawInode) -> Result<()> {
        let (block, slot) = self.geometry.locate(ino).ok_or(Corrupt::NoInode { ino })?;
        inode::clear(txn, ino)?;
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        let body = (raw.body_slots > 0).then(|| (u32::from(raw.body_first.get()), u32::from(raw.body_slots)));
        let is_dir = raw.is_dir();
        self.counters.bump(Count::inodes_freed);
        self.with_group(txn, ag, |space, txn| {
            if is_dir {
                space.count_directory(txn, at, false)?;
            }
            space.free_inode(txn, at, slot, body)
        })
    }

    pub fn count_directory(&self, txn: &mut Txn<'_>, ino: Ino) -> Result<()> {
        let block = self.block_of(ino);
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        self.with_group(txn, ag, |space, txn| space.count_directory(txn, at, true))
    }

    pub fn allocate_body(&self, txn: &mut Txn<'_>, block: FsBlock, count: u32) -> Result<Option<u32>> {
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        self.with_group(txn, ag, |space, txn| space.allocate_body(txn, at, count))
    }

    pub fn free_body(&self, txn: &mut Txn<'_>, block: FsBlock, first: u32, count: u32) -> Result<()> {
        let (ag, at) = (self.geometry.ag_of(block), self.geometry.ag_block_of(block));
        self.with_group(txn, ag, |space, txn| space.free_body(txn, at, first, count))
    }

    /// Puts blocks that a durable epoch freed into the trees of their groups. They have been counted as free since then.
    pub fn release_blocks(&self, released: &[(FsBlock, u32)]) -> Result<()> {
        // Each free may touch a leaf of either tree, and what is inside the gate cannot evict.
        for batch in released.chunks(64) {
            if !self.cache.has_room() {
                self.cache.sweep(false);
            }
            let mut txn = Txn::enter(self);
            let result = batch.iter().try_for_each(|&(start, length)| {
                let ag = self.geometry.ag_of(start);
                let at = self.geometry.ag_block_of(start);
                // Pointers that were freed without having been followed.
                if !self.geometry.is_data_range(start, u64::from(length)) {
                    return Err(Corrupt::DoubleFree { ag, start: at.0, length }.into());
                }
                self.with_group(&mut txn, ag, |space, txn| space.free(txn, at, length))?;
                self.totals.free_blocks.fetch_sub(i64::from(length), Ordering::Relaxed);
                Ok(())
            });
            txn.finish(result)?;
            if self.options.discard {
                for &(start, length) in batch {
                    let bits = self.geometry.block_bits;
                    // A host that cannot punch holes is no reason to fail.
                    let _ = self.device.discard(start.0 << bits, u64::from(length) << bits);
                }
            }
        }
        Ok(())
    }

    /// Gives back the blocks of inode chunks that have no inode left.
    pub fn release_empty_chunks(&self) -> Result<()> {
        for number in 0..self.high_water() {
            let empty = self.groups[number as usize].lock().as_ref().is_some_and(|space| space.has_empty_chunks());
            if !empty {
                continue;
            }
            loop {
                if !self.cache.has_room() {
                    self.cache.sweep(false);
                }
                let mut txn = Txn::enter(self);
                let mut freed = Vec::new();
                let result = self.with_group(&mut txn, AgNo(number), |space, txn| {
                    space.release_empty_chunks(txn, 256, &mut freed)?;
                    Ok(space.has_empty_chunks())
                });
                for &(start, length) in &freed {
                    txn.block_free(start, length);
                    self.counters.add(Count::chunk_blocks_freed, u64::from(length));
                }
                if !txn.finish(result)? {
                    break;
                }
            }
        }
        Ok(())
    }

    pub fn statfs(&self) -> StatFs {
        let free =
            self.totals.free_blocks.load(Ordering::Relaxed) - self.totals.reserved_blocks.load(Ordering::Relaxed);
        let free = free.max(0) as u64;
        StatFs {
            block_size: self.geometry.block_size() as u32,
            blocks: self.geometry.block_count,
            free_blocks: free,
            inodes_used: self.totals.inodes_used.load(Ordering::Relaxed) as u64,
            inodes_free: free * u64::from(self.geometry.slots_per_block() - 1),
            directories: self.totals.directories.load(Ordering::Relaxed) as u64,
            name_max: myriad_format::dir::NAME_MAX as u32,
        }
    }

    // ---- device ----

    pub fn io_error(&self, op: &'static str, offset: u64, source: std::io::Error) -> Error {
        Error::Io { op, offset, source }
    }

    pub fn device_flush(&self) -> Result<()> {
        self.device.flush().map_err(|source| self.io_error("flush", 0, source))
    }

    pub fn write_requests(&self, requests: &[WriteRequest<'_>]) -> Result<()> {
        let offset = requests.first().map_or(0, |request| request.offset);
        self.device.write_many(requests).map_err(|source| self.io_error("write", offset, source))
    }

    pub fn read_device(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        let offset = requests.first().map_or(0, |request| request.offset);
        self.device.read_many(requests).map_err(|source| self.io_error("read", offset, source))
    }

    /// Writes the images of `blocks` (sorted), which lie one after the other in `buffer`: neighbours in one request.
    pub fn write_blocks(&self, blocks: &[(u64, u32)], buffer: &[u8]) -> Result<()> {
        let bits = self.geometry.block_bits;
        let mut parts: Vec<(u64, &[u8])> = Vec::new();
        let mut start = 0;
        for i in 1..=blocks.len() {
            let contiguous =
                i < blocks.len() && blocks[i].0 == blocks[i - 1].0 + 1 && ((i - start) << bits) < WRITE_MAX;
            if !contiguous {
                parts.push((blocks[start].0 << bits, &buffer[start << bits..i << bits]));
                start = i;
            }
        }
        let slices: Vec<[&[u8]; 1]> = parts.iter().map(|&(_, bytes)| [bytes]).collect();
        let requests: Vec<WriteRequest<'_>> =
            parts.iter().zip(&slices).map(|(&(offset, _), slice)| WriteRequest { offset, parts: slice }).collect();
        if requests.is_empty() { Ok(()) } else { self.write_requests(&requests) }
    }

    /// Writes frames of file data (block, frame; sorted), unless they were freed meanwhile. They go through `staging`,
    /// which grows to what it has to hold: memory used before need not be cleared by the host.
    pub fn write_data(&self, frames: &[(u64, u32)], staging: &mut AlignedBuf) -> Result<()> {
        let block_size = self.cache.block_size();
        let per_batch = (8 * WRITE_MAX / block_size).max(1);
        self.data_unflushed.store(true, Ordering::Release);
        let needed = per_batch.min(frames.len()) * block_size;
        if staging.len() < needed {
            *staging = AlignedBuf::zeroed(needed);
        }
        for batch in frames.chunks(per_batch) {
            let mut written = Vec::with_capacity(batch.len());
            for &(block, index) in batch {
                let bytes = self.cache.arena.read(index);
                let header = self.cache.arena.header(index);
                let flags = header.flags.load(Ordering::Relaxed);
                if flags & flag::DATA_DIRTY == 0 || header.block.load(Ordering::Relaxed) != block {
                    continue;
                }
                header.flags.fetch_and(!flag::CHANGED_AGAIN, Ordering::Relaxed);
                let at = written.len() * block_size;
                staging[at..at + block_size].copy_from_slice(&bytes);
                written.push((block, index));
            }
            self.write_blocks(&written, &staging[..written.len() * block_size])?;
            for (block, index) in written {
                self.cache.written(block, index);
            }
        }
        Ok(())
    }

    /// Writes the superblock in place, with this state and mount record, durably.
    pub fn write_superblock(&self, state: u32) -> Result<()> {
        let look = Look::enter(self);
        let mut image = AlignedBuf::zeroed(self.cache.block_size());
        let frame = self.cache.get(FsBlock(0), BlockKind::Superblock)?;
        {
            let mut bytes = frame.write();
            let raw = Superblock::read_mut(&mut bytes);
            raw.state = U32::new(state);
            if state == seam::STATE_IN_USE {
                raw.mount_machine = machine_id();
                raw.mount_boot = boot_id();
                raw.mount_pid = U32::new(std::process::id());
                // Another number than the last mount's; with a seed the same in every run.
                raw.mount_nonce = U64::new(match self.options.seed {
                    Some(seed) => raw.mount_nonce.get().wrapping_add(seed | 1),
                    None => rand_seed(raw),
                });
                raw.mount_time = I64::new(self.now());
            }
            image.copy_from_slice(&bytes);
        }
        drop(look);
        header::seal(&mut image, 0);
        self.device.write_durable(0, &image).map_err(|source| self.io_error("write", 0, source))
    }

    /// Notes that the volume has attributes (and ACLs): a mount may then no longer answer "none" unasked.
    pub fn note_features(&self, acl: bool) {
        let bits = feature::COMPATIBLE_XATTR | if acl { feature::COMPATIBLE_ACL } else { 0 };
        if self.features.load(Ordering::Relaxed) & bits != bits {
            self.features.fetch_or(bits, Ordering::Relaxed);
        }
    }
}

pub(crate) fn log_open_error(error: LogError) -> Error {
    match error {
        LogError::Corrupt(corrupt) => corrupt.into(),
        other => Error::Io { op: "log", offset: 0, source: std::io::Error::other(other.to_string()) },
    }
}

fn id_from(path: &str) -> [u8; 16] {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (pair[0] << 4 | pair[1]) as u8;
    }
    id
}

fn machine_id() -> [u8; 16] {
    id_from("/etc/machine-id")
}

fn boot_id() -> [u8; 16] {
    id_from("/proc/sys/kernel/random/boot_id")
}

/// A number that differs from one mount to the next.
fn rand_seed(superblock: &Superblock) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write(&superblock.header.volume);
    hasher.finish()
}

/// Volumes for tests that look inside.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::types::MkfsOptions;

    /// A new volume on a device, with nothing going on behind the test's back.
    pub fn volume(device: Arc<dyn BlockDevice>) -> Volume {
        crate::mkfs::format(device.clone(), None, &MkfsOptions::default()).unwrap();
        let mut block = AlignedBuf::zeroed(4096);
        device.read(0, &mut block).unwrap();
        let superblock = Superblock::decode(&block, FsBlock(0)).unwrap();
        let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
        let log = crate::mkfs::log_place(&superblock, &device, None).unwrap();
        let volume = Volume::assemble(device, log, superblock, options).unwrap();
        volume.load_totals(&superblock);
        volume
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_device::MemoryDevice;

    fn volume() -> Volume {
        testing::volume(Arc::new(MemoryDevice::new(16 << 20)))
    }

    /// Space was looked at when an operation began and taken later: threads that began together on a full volume each saw
    /// the same last blocks, and the one that came last found none in the middle of its change.
    #[test]
    fn who_begins_has_reserved() {
        let volume = volume();
        let spare = volume.spare_blocks(Share::Common) as u64;
        let held_back = volume.held_back() as u64;
        let first = volume.begin(spare - 10).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut second = volume.begin(10).unwrap();
                let refused = !second.try_reserve(1, Share::Common) && !second.try_reserve(held_back + 1, Share::Last);
                refused && second.try_reserve(held_back, Share::Last)
            });
            assert!(other.join().unwrap());
        });
        drop(first);
        assert_eq!(volume.spare_blocks(Share::Common) as u64, spare);
        drop(volume.begin(spare).unwrap());
    }

    #[test]
    fn promises_and_operations_share_what_there_is() {
        let volume = volume();
        let spare = volume.spare_blocks(Share::Common) as u64;
        volume.reserve(spare - 24, Share::Common).unwrap();
        let mut operation = volume.begin(24).unwrap();
        assert!(!operation.try_reserve(1, Share::Common));
        drop(operation);
        assert!(matches!(volume.begin(25).err(), Some(Error::Refused(Errno::NOSPC))));
        volume.unreserve(1);
        volume.begin(25).unwrap();
    }
}
