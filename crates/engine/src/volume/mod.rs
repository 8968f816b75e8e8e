//! An open volume: what all operations share.

mod admission;
mod commit;
mod discard;
mod fragments;
mod groups;
mod inode_locks;
mod live;
mod orphans;
mod second_names;
mod superblock;
mod syncer;
mod transfer;

pub(crate) use admission::{MAP_BLOCKS, OPERATION_BLOCKS, Share, transact, transact_giving};
pub(crate) use inode_locks::TwoLocks;

use crate::cache::{Cache, Closed};
use crate::counters::Counters;
use crate::dir::dirhash::DirHashes;
use crate::error::{DamagedData, Error, Result};
use crate::file::OpenFiles;
use crate::locks::{Mutex, Rank, RwLock};
use crate::name_cache::NameCache;
use crate::order::checkpointer::Checkpointer;
use crate::order::soft::{Delays, Soft};
use crate::order::{Cost, OpenEpoch};
use crate::placement::{Placement, usual_policy};
use crate::space::AgSpace;
use crate::types::{Clock, MountOptions, Order, StatFs, Time};
use inode_locks::STRIPES;
use myriad_device::BlockDevice;
use myriad_format::choices::Choices;
use myriad_format::group::RESERVE_MAX;
use myriad_format::inode::generation_at;
use myriad_format::superblock::{Superblock, state};
use myriad_format::{AgNo, Corrupt, FsBlock, Geometry, Ino, NameHasher, SLOT_BITS};
use myriad_log::{Log, LogError, LogPlace, Reach};
pub(crate) use orphans::{Orphans, Reason};
use parking_lot::Condvar;
use second_names::SecondNames;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use superblock::rand_seed;

/// Names that the name cache holds: 2 MiB of them stay in the processor's cache, where finding out that a name is not
/// among them costs little.
const NAMES_MAX: usize = 1 << 17;
/// Dirty data that the background thread begins to write, in bytes: enough for long requests, little enough that a
/// disk is busy while a tree is still being filled.
const DIRTY_SOFT_BYTES: u64 = 64 << 20;
/// Metadata blocks at which a checkpoint is due that it has to copy whole, in bytes, on a large cache: so many new ones, and so
/// many that must go home and are changed again. Enough for long writes to the device.
const IMAGES_SOFT_BYTES: u64 = 64 << 20;
/// Part of the log, in bytes, for each block that one transaction overwrites out of place: what it frees, maps and notes
/// takes a third of that in the worst case, and a transaction must fit the half of the log that a checkpoint may take.
const OVERWRITE_LOG_BYTES: u64 = 1024;

/// Exact counts of the whole volume.
pub(crate) struct Totals {
    /// Free, limbo included.
    pub free_blocks: AtomicI64,
    /// Free and in a group's trees: what can be allocated now.
    pub ready_blocks: AtomicI64,
    /// Free, in blocks of fragments that are partly used: what is promised does not count on them.
    pub free_parts: AtomicI64,
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
    /// What stays as it was when the volume was opened; what can change is in `live`.
    pub options: live::Opened,
    pub live: live::Live,
    pub counters: Arc<Counters>,
    pub device: Arc<dyn BlockDevice>,
    pub superblock: Superblock,
    pub choices: Choices,
    pub root: Ino,
    pub log_is_external: bool,
    pub recovered: bool,
    pub epoch: OpenEpoch,
    /// What orders `sync` and `softdep` keep beside it.
    pub soft: Option<Soft>,
    /// It may be written in order `sync` or `softdep`, now, or before it was opened in another one: what that leaves, only the check takes away.
    pub may_have_leftovers: bool,
    pub totals: Totals,
    /// Blocks that can be allocated while nothing is: all but the log and what lies at a fixed place.
    pub usable_blocks: u64,
    pub placement: Placement,
    pub names: NameCache,
    pub dir_hints: crate::dir::hints::Hints,
    pub dir_hashes: DirHashes,
    pub last_blocks: crate::dir::hints::LastBlocks,
    pub files: OpenFiles,
    pub orphans: Orphans,
    pub second_names: SecondNames,
    pub checkpointer: Mutex<{ Rank::Checkpointer as u8 }, Checkpointer>,
    /// Wakes the background thread.
    pub wake: (parking_lot::Mutex<Wake>, Condvar),
    /// Rises with every change that may make a resolved directory path mean something else.
    pub namespace_generation: AtomicU64,
    /// Generation of the next inode made. It goes on from what earlier openings gave, or begins with the time, in units of
    /// about a millisecond, if that is ahead: what was given and lost in a crash is mostly not given again.
    pub generations: AtomicU32,
    /// What it was when the volume was opened: as long as none was given, the superblock need not hear of it.
    first_generation: AtomicU32,
    pub rename_lock: Mutex<{ Rank::Rename as u8 }, ()>,
    /// File data has been written that no flush has covered yet.
    pub data_unflushed: AtomicBool,
    /// Who is told of each read of damaged data.
    pub on_damage: OnceLock<Box<dyn Fn(DamagedData) + Send + Sync>>,
    /// Whether the last checkpoint found no room on the host, and who is told when that changes.
    host_full: AtomicBool,
    pub on_host_full: OnceLock<Box<dyn Fn(bool) + Send + Sync>>,
    /// All compatible feature bits; the superblock follows at the next commit.
    pub features: AtomicU64,
    /// What a crash has left behind, as the superblock is to say it.
    pub leftovers: AtomicU8,
    groups: Box<[Mutex<{ Rank::Group as u8 }, Option<Box<AgSpace>>>]>,
    /// Free space that is to go back to the host.
    pub to_host: discard::ToHost,
    /// Groups that have something to give back at the next checkpoint, which would else have to look at all of them while the
    /// gate is closed: there may be very many.
    giving_groups: Mutex<{ Rank::Leaf as u8 }, Vec<u32>>,
    /// Blocks let go by groups whose mirror was dropped.
    stray_blocks: Mutex<{ Rank::Leaf as u8 }, Vec<FsBlock>>,
    /// By how many inodes the headers of such groups lag behind.
    inodes_ahead: Mutex<{ Rank::Leaf as u8 }, Vec<(u32, i64)>>,
    high_water: AtomicU32,
    high_water_lock: Mutex<{ Rank::NewGroup as u8 }, ()>,
    stripes: Box<[RwLock<{ Rank::Inode as u8 }, ()>]>,
    /// Why changes are refused: bits of [`end`].
    ended: AtomicU8,
    shut_down_reason: Mutex<{ Rank::Leaf as u8 }, String>,
    /// At which a checkpoint is due, and at which operations wait for one.
    epoch_soft: Cost,
    epoch_hard: Cost,
    /// Bytes of log that one part of a long work may cost: what puts freed blocks into the trees, or empties a directory.
    pub part_max: u64,
    /// Pages of dirty data at which the background thread begins to write, and at which writers wait.
    pub dirty_data_soft: u64,
    pub dirty_data_max: u64,
    /// Pages that one transaction may put into the place of mapped blocks.
    pub overwrite_pages_max: usize,
}

/// Why a volume was shut down when something of it did not come to its end.
pub(crate) const PANICKED: &str =
    "a panic in the middle of a change or a checkpoint: a mistake in this program; open the volume again";

/// What ends all changes of a volume.
mod end {
    /// An error in the middle of a change, or in a checkpoint.
    pub const SHUT_DOWN: u8 = 1;
    /// It was closed. Set behind the closed gate.
    pub const CLOSED: u8 = 2;
}

/// What the background thread is told.
#[derive(Default)]
pub(crate) struct Wake {
    /// A checkpoint is due.
    pub wanted: bool,
    /// Dirty data is to be flushed before it.
    pub flush: bool,
    /// Some of what soft updates hold is to be written.
    pub shed: bool,
    pub stop: bool,
}

impl Volume {
    /// Puts a volume together. `log` is where its log lies, if it has one.
    pub fn assemble(
        device: Arc<dyn BlockDevice>,
        log: Option<LogPlace>,
        superblock: Superblock,
        mut options: MountOptions,
    ) -> Result<Self> {
        let geometry = superblock.geometry();
        let choices = superblock.choices()?;
        let policy = *options.placement.get_or_insert_with(|| usual_policy(&superblock));
        let order = match options.order {
            Some(order) => order,
            // Decoding has refused what this version does not write.
            None => Order::of_code(superblock.last_order.get()),
        };
        order.check(&choices, superblock.geometry().has_checksums)?;
        Delays::check(&options, order)?;
        if order == Order::Log && log.is_none() {
            return Err(Error::Option {
                option: "order",
                reason: "this volume has no log; use order=none, or make it anew with a log".into(),
            });
        }
        if !options.read_only && superblock.needs_check(true) {
            return Err(Error::Unchecked);
        }
        if !options.read_only && superblock.needs_check(false) {
            // What the log has, it had when nothing had been changed without it.
            let found = log.as_ref().map(|place| myriad_log::recover(place, Reach::Ring)).transpose();
            if found.map_err(log_open_error)?.is_none_or(|found| found.checkpoints == 0) {
                return Err(Error::Unchecked);
            }
        }
        let counters = Arc::new(Counters::new());
        let log_is_external = superblock.log_device != [0; 16];
        let mut pending = Vec::new();
        let mut overlay = myriad_log::Overlay::default();
        let mut opened = None;
        let mut recovered = false;
        if let Some(place) = log {
            // A volume closed cleanly has everything home; its log still shows the last checkpoint.
            let is_needed = superblock.state.get() == state::IN_USE;
            let reach = if is_needed { Reach::Ring } else { Reach::End };
            let found = if options.read_only {
                // Opening the log for appending would erase a torn attempt.
                myriad_log::recover(&place, reach).map_err(log_open_error)?
            } else {
                let (log, found) = Log::open(place, reach).map_err(log_open_error)?;
                opened = Some(log);
                found
            };
            if is_needed {
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
        cache.bound_directories(options.dir_cache_limit());
        let log_capacity = opened.as_ref().map_or(u64::MAX / 2, Log::capacity);
        let checkpointer = Checkpointer::new(opened, pending, geometry.block_size());
        let seed = options.seed.unwrap_or_else(|| rand_seed(&superblock));
        let frames = cache.frame_count() as u64;
        let usable: u64 = (0..geometry.ag_count).map(|ag| u64::from(geometry.usable_blocks_in(AgNo(ag)))).sum();
        let generation = generation_at(now(&options.clock));
        let for_log = if log_is_external { 0 } else { superblock.log_blocks.get() };
        let soft = |bytes: u64| (frames / 16).min(bytes >> geometry.block_bits);
        let epoch_most = |log_part: u64, times: u64| {
            // Of a small cache most is hot soon: more of them, or there are checkpoints all the time.
            let hot_blocks = times * (frames / 8).min(IMAGES_SOFT_BYTES >> geometry.block_bits);
            Cost {
                log_bytes: log_capacity / log_part,
                fresh_blocks: times * soft(IMAGES_SOFT_BYTES),
                again_blocks: hot_blocks,
                hot_blocks,
                // Nearly so many that a checkpoint brings all of them home.
                away_blocks: frames / 4,
            }
        };
        let hasher = NameHasher::new(superblock.hash_key);
        let names_max = if options.name_cache { NAMES_MAX.min(cache.frame_count()) } else { 0 };
        let to_host = discard::ToHost::new(&options, &*device, &geometry);
        let key = crate::random::secret(options.seed)?;
        let dir_hashes = DirHashes::new(choices.directory, hasher, key, &options, counters.clone());
        Ok(Self {
            to_host,
            geometry,
            choices,
            hasher,
            order,
            counters,
            device,
            root: Ino(superblock.root_ino.get()),
            log_is_external,
            recovered,
            epoch: OpenEpoch::new(geometry.granule_size()),
            soft: order.goes_by_rounds().then(|| Soft::new(geometry.block_size(), &options)),
            may_have_leftovers: Order::Soft.check(&choices, geometry.has_checksums).is_ok(),
            totals: Totals {
                free_blocks: AtomicI64::new(0),
                ready_blocks: AtomicI64::new(0),
                free_parts: AtomicI64::new(0),
                reserved_blocks: AtomicI64::new(0),
                inodes_used: AtomicI64::new(0),
                directories: AtomicI64::new(0),
            },
            usable_blocks: usable.saturating_sub(for_log),
            placement: Placement::new(&geometry, policy, options.dirpref, seed),
            names: NameCache::new(names_max, options.name_cache_absent).map_err(|source| Error::Io {
                op: "memory for the name cache",
                offset: 0,
                source,
            })?,
            dir_hints: crate::dir::hints::Hints::new(),
            dir_hashes,
            last_blocks: crate::dir::hints::LastBlocks::new(),
            files: OpenFiles::new(),
            orphans: Orphans::default(),
            second_names: SecondNames::default(),
            checkpointer: Mutex::new(checkpointer),
            wake: (parking_lot::Mutex::new(Wake::default()), Condvar::new()),
            namespace_generation: AtomicU64::new(1),
            generations: AtomicU32::new(generation),
            first_generation: AtomicU32::new(generation),
            rename_lock: Mutex::new(()),
            data_unflushed: AtomicBool::new(false),
            on_damage: OnceLock::new(),
            host_full: AtomicBool::new(false),
            on_host_full: OnceLock::new(),
            features: AtomicU64::new(superblock.features_compatible.get()),
            leftovers: AtomicU8::new(superblock.leftovers),
            groups: (0..geometry.ag_count).map(|_| Mutex::new(None)).collect(),
            giving_groups: Mutex::new(Vec::new()),
            stray_blocks: Mutex::new(Vec::new()),
            inodes_ahead: Mutex::new(Vec::new()),
            high_water: AtomicU32::new(superblock.ag_high_water.get()),
            high_water_lock: Mutex::new(()),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            ended: AtomicU8::new(0),
            shut_down_reason: Mutex::new(String::new()),
            epoch_soft: epoch_most(12, 1),
            epoch_hard: epoch_most(8, 2),
            part_max: (log_capacity / 16).min((frames << geometry.block_bits) / 8),
            dirty_data_soft: soft(DIRTY_SOFT_BYTES),
            dirty_data_max: frames / 4,
            overwrite_pages_max: (log_capacity / OVERWRITE_LOG_BYTES).min(frames / 32).max(64) as usize,
            cache,
            options: live::Opened::new(&options),
            live: live::Live::new(&options, &superblock),
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
        let parts = most(superblock.free_parts.get(), self.geometry.block_count);
        self.totals.free_parts.store(parts, Ordering::Relaxed);
        self.totals.ready_blocks.store(free - held - pending - parts, Ordering::Relaxed);
        self.totals.inodes_used.store(most(superblock.inodes_used.get(), slots), Ordering::Relaxed);
        self.totals.directories.store(most(superblock.directories.get(), slots), Ordering::Relaxed);
        self.high_water.store(superblock.ag_high_water.get(), Ordering::Relaxed);
        // They wrap around, in 50 days of time.
        let (given, by_time) = (superblock.next_generation.get(), self.generations.load(Ordering::Relaxed));
        if given != 0 && given.wrapping_sub(by_time) < 1 << 31 {
            self.generations.store(given, Ordering::Relaxed);
            self.first_generation.store(given, Ordering::Relaxed);
        }
        self.features.store(superblock.features_compatible.get(), Ordering::Relaxed);
    }

    pub fn now(&self) -> Time {
        now(&self.options.clock)
    }

    /// The time by a clock that nobody sets.
    pub fn ticks(&self) -> Time {
        self.options.clock.ticks()
    }

    /// Refuses all changes from now on; reads go on.
    #[cold]
    pub fn shut_down(&self, why: &dyn std::fmt::Display) {
        if self.ended.fetch_or(end::SHUT_DOWN, Ordering::SeqCst) & end::SHUT_DOWN == 0 {
            *self.shut_down_reason.lock() = why.to_string();
        }
    }

    /// Runs what must not end halfway: a panic in it shuts the volume down before anybody gets at a lock that the caller holds.
    pub fn unbroken<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Dropped by a panic only.
        struct Broken<'a>(&'a Volume);

        impl Drop for Broken<'_> {
            fn drop(&mut self) {
                self.0.shut_down(&PANICKED);
            }
        }

        let broken = Broken(self);
        let result = work();
        std::mem::forget(broken);
        result
    }

    /// Whether operations may change anything. Who is inside the gate and was told yes may go on: the volume is not
    /// closed before he has left.
    #[inline]
    pub fn check_running(&self) -> Result<()> {
        match self.ended.load(Ordering::Relaxed) {
            0 => Ok(()),
            end::CLOSED => Err(Error::Closed),
            _ => Err(Error::Shutdown),
        }
    }

    /// For who makes checkpoints, also the last ones, after which the volume is closed.
    pub fn check_not_shut_down(&self) -> Result<()> {
        if self.is_shut_down() { Err(Error::Shutdown) } else { Ok(()) }
    }

    fn is_shut_down(&self) -> bool {
        self.ended.load(Ordering::Relaxed) & end::SHUT_DOWN != 0
    }

    /// Whether it was closed, and nothing went wrong with that.
    pub fn is_closed(&self) -> bool {
        self.ended.load(Ordering::Relaxed) == end::CLOSED
    }

    /// Refuses all operations that change anything from now on. The gate is closed, so none is half done.
    pub fn refuse_changes(&self, _: &Closed<'_>) {
        self.ended.fetch_or(end::CLOSED, Ordering::SeqCst);
    }

    /// The volume could not be closed for lack of room on the host: it goes on.
    pub fn accept_changes(&self) {
        self.ended.fetch_and(!end::CLOSED, Ordering::SeqCst);
    }

    /// Notes whether the host had room for what a checkpoint wrote. Under the checkpointer's lock.
    pub fn note_host_full(&self, is_full: bool) {
        if self.host_full.load(Ordering::Relaxed) != is_full {
            self.host_full.store(is_full, Ordering::Relaxed);
            if let Some(tell) = self.on_host_full.get() {
                tell(is_full);
            }
        }
    }

    pub fn is_host_full(&self) -> bool {
        self.host_full.load(Ordering::Relaxed)
    }

    /// Why the volume was shut down, if it was.
    pub fn shut_down_reason(&self) -> Option<String> {
        self.is_shut_down().then(|| self.shut_down_reason.lock().clone())
    }

    pub fn log_error(&self, error: LogError) -> Error {
        log_open_error(error)
    }

    /// Inodes that can be made while so many blocks are free.
    pub(super) fn inodes_free(&self, free_blocks: u64) -> u64 {
        let geometry = &self.geometry;
        if !geometry.has_table() {
            return free_blocks * u64::from(geometry.slots_per_block() - 1);
        }
        let last = AgNo(geometry.ag_count - 1);
        let full = u64::from(last.0) * u64::from(geometry.table_inodes(AgNo(0)));
        let used = self.totals.inodes_used.load(Ordering::Relaxed).max(0) as u64;
        (full + u64::from(geometry.table_inodes(last))).saturating_sub(used)
    }

    pub fn statfs(&self) -> StatFs {
        let free =
            self.totals.free_blocks.load(Ordering::Relaxed) - self.totals.reserved_blocks.load(Ordering::Relaxed);
        let free = free.max(0) as u64;
        StatFs {
            block_size: self.geometry.block_size() as u32,
            blocks: self.geometry.block_count,
            free_blocks: free,
            available_blocks: self.available_blocks(),
            inodes_used: self.totals.inodes_used.load(Ordering::Relaxed) as u64,
            inodes_free: self.inodes_free(free),
            directories: self.totals.directories.load(Ordering::Relaxed) as u64,
            name_max: myriad_format::dir::NAME_MAX as u32,
        }
    }
}

fn now(clock: &Clock) -> Time {
    match clock {
        Clock::System => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
            now.tv_sec * 1_000_000_000 + now.tv_nsec
        }
        Clock::Manual(time) => time.load(Ordering::Relaxed),
    }
}

pub(crate) fn log_open_error(error: LogError) -> Error {
    match error {
        LogError::Corrupt(corrupt) => corrupt.into(),
        LogError::HostFull { source, .. } => Error::HostFull(source),
        other => Error::Io { op: "log", offset: 0, source: std::io::Error::other(other.to_string()) },
    }
}

/// Volumes for tests that look inside.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::file::OpenFile;
    use crate::namei;
    use crate::ops::{NewFile, Ops};
    use crate::types::{Cred, MkfsOptions};
    use myriad_device::AlignedBuf;
    use myriad_format::inode::S_IFREG;

    /// A new volume on a device, with nothing going on behind the test's back.
    pub fn volume(device: Arc<dyn BlockDevice>) -> Volume {
        crate::mkfs::format(device.clone(), None, &MkfsOptions::default()).unwrap();
        open(device)
    }

    /// What a device holds, before anything is made of what its log says.
    pub fn open(device: Arc<dyn BlockDevice>) -> Volume {
        let mut block = AlignedBuf::zeroed(4096);
        device.read(0, &mut block).unwrap();
        let superblock = Superblock::decode(&block, FsBlock(0)).unwrap();
        let options = MountOptions { background: false, cache_size: 8 << 20, ..MountOptions::default() };
        let log = crate::mkfs::log_place(&superblock, &device, None).unwrap();
        let volume = Volume::assemble(device, log, superblock, options).unwrap();
        volume.load_totals(&superblock);
        volume
    }

    /// A new regular file in the root directory, open.
    pub fn new_file(volume: &Volume, name: &[u8]) -> Arc<OpenFile> {
        let ops = Ops { volume, cred: &Cred::root(), caller: &Cred::root() };
        let root = namei::root(&volume.look()).unwrap();
        let stat = ops.make(root, name, &NewFile { mode: S_IFREG | 0o644, ..NewFile::default() }).unwrap();
        volume.files.open(Ino(stat.ino), stat.generation)
    }
}
