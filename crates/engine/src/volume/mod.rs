//! An open volume: the state that all operations share, put together by [`Volume::assemble`].
//!
//! Its parts have files of their own: `opening` says whether a volume may be opened and reads its log, `limits` how much may gather before something
//! is written, `groups` has the allocation groups, `inode_locks` the locks of inodes, `orphans` the list of orphans, `live` the options that change
//! while the volume is open, `end` why changes are refused. Its actions: `admission` lets operations begin, `commit` asks for checkpoints,
//! `syncer` writes what soft updates hold back, `transfer` reads and writes the device, `discard` gives free space back to the host.

mod admission;
mod commit;
mod discard;
mod end;
mod fragments;
mod groups;
mod inode_locks;
mod limits;
mod live;
mod opening;
mod orphans;
mod second_names;
mod superblock;
mod syncer;
mod transfer;
mod wake;

pub(crate) use admission::{
    FramesWanted, MAP_BLOCKS, OPERATION_BLOCKS, Share, transact, transact_giving, transact_reaching,
};
pub(crate) use end::PANICKED;
pub(crate) use groups::UNREADABLE_FOR;
pub(crate) use inode_locks::TwoLocks;

use crate::cache::Cache;
use crate::counters::Counters;
use crate::dir::dirhash::DirHashes;
use crate::error::{DamagedData, Error, Result};
use crate::file::{self, OpenFiles};
use crate::locks::{Mutex, Rank, RwLock};
use crate::name_cache::NameCache;
use crate::order::checkpointer::Checkpointer;
use crate::order::soft::Soft;
use crate::order::{self, OpenEpoch};
use crate::placement::{Placement, usual_policy};
use crate::types::{Clock, MountOptions, Order, StatFs, Time};
use end::{End, Opener};
use groups::Groups;
use inode_locks::STRIPES;
use limits::Limits;
use myriad_device::{BlockDevice, BufferPool};
use myriad_format::choices::Choices;
use myriad_format::inode::generation_at;
use myriad_format::superblock::Superblock;
use myriad_format::{Geometry, Ino, NameHasher, SLOT_BITS};
use myriad_log::{Log, LogError, LogPlace};
use opening::{RecoveredLog, check_opening, finish_exchange, recover_log};
pub(crate) use orphans::{Orphans, Reason};
use second_names::SecondNames;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use superblock::rand_seed;
use wake::Wake;

/// Names that the name cache holds: 2 MiB of them stay in the processor's cache, where finding out that a name is not
/// among them costs little.
const NAMES_MAX: usize = 1 << 17;
/// Counts of the whole volume. All are exact but `ready_blocks`, which may be too low.
pub(crate) struct Totals {
    /// Free, limbo included.
    pub free_blocks: AtomicI64,
    /// Free, and recorded so in its group: what can be allocated now. What each group holds back is not known when a volume is opened: each
    /// then counts with the most that it may hold ([`Volume::held_by_groups`]).
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
    /// LSN at which the log ends; 0 without one.
    pub log_end: AtomicU64,
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
    /// For reading ahead.
    pub read_buffers: BufferPool,
    pub orphans: Orphans,
    pub second_names: SecondNames,
    pub checkpointer: Mutex<{ Rank::Checkpointer as u8 }, Checkpointer>,
    /// For the operation that has room made for many frames (`with_frames`): two would take it from each other.
    pub frames_turn: Mutex<{ Rank::ManyFrames as u8 }, ()>,
    /// Wakes the background thread.
    pub wake: Wake,
    /// Rises with every change that may make a resolved directory path mean something else.
    pub namespace_generation: AtomicU64,
    /// Generation of the next inode made. It goes on from what earlier openings gave, or begins with the time, in units of
    /// about a millisecond, if that is ahead: what was given and lost in a crash is mostly not given again.
    pub generations: AtomicU32,
    /// What it was when the volume was opened: as long as none was given, the superblock need not hear of it.
    first_generation: AtomicU32,
    pub rename_lock: Mutex<{ Rank::Rename as u8 }, ()>,
    /// How often directories have got another parent. Rises under the rename lock, once they say so themselves.
    pub directory_moves: AtomicU64,
    /// For the rename that walks up a long way (`ops/ancestors.rs`), while others moved directories: they wait for it.
    pub moves_turn: Mutex<{ Rank::MovesTurn as u8 }, ()>,
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
    /// How often something has been left behind since the volume was opened.
    pub left_behind: AtomicU64,
    groups: Groups,
    /// Free space that is to go back to the host.
    pub to_host: discard::ToHost,
    stripes: Box<[RwLock<{ Rank::Inode as u8 }, ()>]>,
    /// Whether changes are refused, and why.
    end: End,
    opener: Opener,
    pub limits: Limits,
}

impl Volume {
    /// Puts a volume together. `log` is where its log lies, if it has one.
    pub fn assemble(
        device: Arc<dyn BlockDevice>,
        log: Option<LogPlace>,
        mut superblock: Superblock,
        mut options: MountOptions,
    ) -> Result<Self> {
        let geometry = superblock.geometry();
        let choices = superblock.choices()?;
        let policy = *options.placement.get_or_insert_with(|| usual_policy(&superblock));
        let order = options.order.unwrap_or(superblock.order());
        check_opening(order, &choices, log.as_ref(), &superblock, &options)?;
        let device = finish_exchange(device, &mut superblock, options.read_only)?;
        let counters = Arc::new(Counters::new());
        let log_is_external = superblock.has_external_log();
        let RecoveredLog { log, pending, overlay, recovered } = recover_log(log, &superblock, options.read_only)?;
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
        let log_capacity = log.as_ref().map(Log::capacity);
        let log_end = log.as_ref().map_or(0, |log| log.head().0);
        let checkpointer = Checkpointer::new(log, pending, geometry.block_size());
        let seed = options.seed.unwrap_or_else(|| rand_seed(&superblock));
        let frames = cache.frame_count() as u64;
        let generation = generation_at(now(&options.clock));
        let for_log = if log_is_external { 0 } else { superblock.log_blocks.get() };
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
            log_end: AtomicU64::new(log_end),
            recovered,
            epoch: OpenEpoch::new(geometry.granule_size()),
            soft: order.goes_by_rounds().then(|| Soft::new(geometry.block_size(), &options)),
            may_have_leftovers: order::check(Order::Soft, &choices, geometry.has_checksums).is_ok(),
            totals: Totals {
                free_blocks: AtomicI64::new(0),
                ready_blocks: AtomicI64::new(0),
                free_parts: AtomicI64::new(0),
                reserved_blocks: AtomicI64::new(0),
                inodes_used: AtomicI64::new(0),
                directories: AtomicI64::new(0),
            },
            usable_blocks: geometry.usable_blocks().saturating_sub(for_log),
            placement: Placement::new(&geometry, policy, options.dirpref, seed),
            names: NameCache::new(names_max, options.name_cache_absent)
                .map_err(|source| Error::host("memory for the name cache", source))?,
            dir_hints: crate::dir::hints::Hints::new(),
            dir_hashes,
            last_blocks: crate::dir::hints::LastBlocks::new(),
            files: OpenFiles::new(),
            read_buffers: file::read_buffers(),
            orphans: Orphans::default(),
            second_names: SecondNames::default(),
            checkpointer: Mutex::new(checkpointer),
            frames_turn: Mutex::new(()),
            wake: Wake::new(),
            namespace_generation: AtomicU64::new(1),
            generations: AtomicU32::new(generation),
            first_generation: AtomicU32::new(generation),
            rename_lock: Mutex::new(()),
            directory_moves: AtomicU64::new(0),
            moves_turn: Mutex::new(()),
            data_unflushed: AtomicBool::new(false),
            on_damage: OnceLock::new(),
            host_full: AtomicBool::new(false),
            on_host_full: OnceLock::new(),
            features: AtomicU64::new(superblock.features_compatible.get()),
            leftovers: AtomicU8::new(superblock.leftovers),
            left_behind: AtomicU64::new(0),
            groups: Groups::new(geometry.ag_count, superblock.ag_high_water.get()),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            end: End::default(),
            opener: Opener::new()?,
            limits: Limits::new(frames, geometry.block_bits, log_capacity),
            cache,
            options: live::Opened::new(&options),
            live: live::Live::new(&options, &superblock),
            superblock,
        })
    }

    /// What the rounds of orders `sync` and `softdep` work on. Only for these orders: the others have none.
    pub(crate) fn soft(&self) -> &Soft {
        self.soft.as_ref().expect("an order that writes in rounds")
    }

    /// Takes the totals from the superblock as recovered. Pending blocks are free, but not in any tree yet.
    pub fn load_totals(&self, superblock: &Superblock) {
        // A count beyond what there is room for is as wrong as any other wrong count, but must not overflow.
        let most = |count: u64, most: u64| count.min(most) as i64;
        let slots = self.geometry.block_count << (self.geometry.block_bits - SLOT_BITS);
        let free = most(superblock.free_blocks.get(), self.geometry.block_count);
        let pending = self.checkpointer.lock().released_blocks() as i64;
        let held = self.held_by_groups();
        self.totals.free_blocks.store(free, Ordering::Relaxed);
        let parts = most(superblock.free_parts.get(), self.geometry.block_count);
        self.totals.free_parts.store(parts, Ordering::Relaxed);
        self.totals.ready_blocks.store(free - held - pending - parts, Ordering::Relaxed);
        self.totals.inodes_used.store(most(superblock.inodes_used.get(), slots), Ordering::Relaxed);
        self.totals.directories.store(most(superblock.directories.get(), slots), Ordering::Relaxed);
        self.groups.high_water.store(superblock.ag_high_water.get(), Ordering::Relaxed);
        // They wrap around, in 50 days of time.
        let (given, by_time) = (superblock.next_generation.get(), self.generations.load(Ordering::Relaxed));
        if given != 0 && given.wrapping_sub(by_time) < 1 << 31 {
            self.generations.store(given, Ordering::Relaxed);
            self.first_generation.store(given, Ordering::Relaxed);
        }
        self.features.store(superblock.features_compatible.get(), Ordering::Relaxed);
        self.leftovers.store(superblock.leftovers, Ordering::Relaxed);
    }

    #[inline]
    pub fn now(&self) -> Time {
        now(&self.options.clock)
    }

    /// The time by a clock that nobody sets.
    pub fn ticks(&self) -> Time {
        self.options.clock.ticks()
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

    pub fn log_error(&self, error: LogError) -> Error {
        log_open_error(error)
    }

    /// Free inodes of all tables; `None` where inodes are made of blocks.
    pub(super) fn table_inodes_free(&self) -> Option<u64> {
        let used = self.totals.inodes_used.load(Ordering::Relaxed).max(0) as u64;
        self.geometry.inodes_max().map(|most| most.saturating_sub(used))
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
            inodes_free: self.table_inodes_free().unwrap_or(free * u64::from(self.geometry.slots_per_block() - 1)),
            directories: self.totals.directories.load(Ordering::Relaxed) as u64,
            name_max: myriad_format::dir::NAME_MAX as u32,
        }
    }
}

#[inline]
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
        LogError::Io { op: "read", offset, source } => Error::io("read of the log", offset, source),
        LogError::Io { op: "flush", source, .. } => Error::host("device flush of the log", source),
        LogError::Io { offset, source, .. } => Error::io("write to the log", offset, source),
        other => Error::host("use of the log", std::io::Error::other(other.to_string())),
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
    use myriad_format::FsBlock;
    use myriad_format::inode::S_IFREG;

    /// A new volume on a device, with nothing going on behind the test's back.
    pub fn volume(device: Arc<dyn BlockDevice>) -> Volume {
        crate::mkfs::format(device.clone(), None, &MkfsOptions::default()).unwrap();
        open(device)
    }

    /// What a device holds, before anything is made of what its log says.
    pub fn open(device: Arc<dyn BlockDevice>) -> Volume {
        open_with(device, 8 << 20)
    }

    /// As [`open`], with a cache of so many bytes, or the smallest that there is.
    pub fn open_with(device: Arc<dyn BlockDevice>, cache_size: u64) -> Volume {
        open_as(device, MountOptions { cache_size, ..MountOptions::default() })
    }

    /// As [`open`], with these options.
    pub fn open_as(device: Arc<dyn BlockDevice>, options: MountOptions) -> Volume {
        let mut block = AlignedBuf::zeroed(4096);
        device.read(0, &mut block).unwrap();
        let superblock = Superblock::decode(&block, FsBlock(0)).unwrap();
        let options = MountOptions { background: false, ..options };
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
