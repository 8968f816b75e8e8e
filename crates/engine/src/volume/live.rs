//! Options that change while the volume is open.
//!
//! `Live` has each of them as it is now. What is asked on every read or write lies beside that as an atomic; placement, dirhash and
//! discard keep their own part where they use it. [`Volume::tune`] changes all of these, one caller at a time, so that they agree
//! when it returns. An operation that runs meanwhile goes by the old or by the new value; each value is safe with any other, at
//! any moment.

use super::{Volume, transact};
use crate::counters::Count;
use crate::edit::BlockStore;
use crate::error::{Error, Result};
use crate::locks::{Rank, RwLock};
use crate::options::{Options, Row, Value};
use crate::order::soft::Delays;
use crate::placement::usual_policy;
use crate::types::{AccessTimes, Allocation, Clock, MountOptions, SyncMode};
use myriad_format::superblock::Superblock;
use myriad_format::{BlockKind, FsBlock};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What stays as it was when the volume was opened.
pub(crate) struct Opened {
    pub read_only: bool,
    pub background: bool,
    pub seed: Option<u64>,
    pub clock: Clock,
}

impl Opened {
    pub fn new(options: &MountOptions) -> Self {
        let MountOptions { read_only, background, seed, clock, .. } = options;
        Self { read_only: *read_only, background: *background, seed: *seed, clock: clock.clone() }
    }
}

/// What can change.
pub(crate) struct Live {
    /// As the volume was opened, but for what was changed since.
    now: RwLock<{ Rank::Leaf as u8 }, MountOptions>,
    label: RwLock<{ Rank::Leaf as u8 }, String>,
    /// Held by who changes any of it; taken before all other locks.
    turn: parking_lot::Mutex<()>,
    commit_interval_ms: AtomicU64,
    /// 0: none.
    dir_limit: AtomicU64,
    moves_atime: AtomicBool,
    /// Whoever serves the volume shows it for reading only.
    holds_atime: AtomicBool,
    allocates_at_write: AtomicBool,
    syncs_data: AtomicBool,
}

impl Live {
    pub fn new(options: &MountOptions, superblock: &Superblock) -> Self {
        let live = Self {
            now: RwLock::new(options.clone()),
            label: RwLock::new(String::new()),
            turn: parking_lot::Mutex::new(()),
            commit_interval_ms: AtomicU64::new(0),
            dir_limit: AtomicU64::new(0),
            moves_atime: AtomicBool::new(false),
            holds_atime: AtomicBool::new(false),
            allocates_at_write: AtomicBool::new(false),
            syncs_data: AtomicBool::new(false),
        };
        live.set(options);
        live.take_label(superblock);
        live
    }

    /// Takes the label from the superblock; once more when the log has been laid over it.
    pub fn take_label(&self, superblock: &Superblock) {
        let end = superblock.label.iter().position(|&byte| byte == 0).unwrap_or(superblock.label.len());
        *self.label.write() = String::from_utf8_lossy(&superblock.label[..end]).into_owned();
    }

    fn set(&self, options: &MountOptions) {
        self.commit_interval_ms.store(options.commit_interval_ms, Ordering::Relaxed);
        self.dir_limit.store(options.dir_limit.unwrap_or(0), Ordering::Relaxed);
        self.moves_atime.store(options.atime != AccessTimes::Never && !options.read_only, Ordering::Relaxed);
        self.allocates_at_write.store(options.allocation == Allocation::AtWrite, Ordering::Relaxed);
        self.syncs_data.store(options.sync_mode == SyncMode::All, Ordering::Relaxed);
        *self.now.write() = options.clone();
    }

    /// All of them.
    pub fn now(&self) -> MountOptions {
        self.now.read().clone()
    }

    pub fn label(&self) -> String {
        self.label.read().clone()
    }

    /// In milliseconds; 0: changes wait for a sync.
    pub fn commit_interval_ms(&self) -> u64 {
        self.commit_interval_ms.load(Ordering::Relaxed)
    }

    /// How long changes are held back, where that is asked for.
    pub fn delays(&self) -> Option<Delays> {
        Delays::of(&self.now.read())
    }

    /// Most names of a directory, of a kind that counts them.
    pub fn dir_limit(&self) -> Option<u64> {
        Some(self.dir_limit.load(Ordering::Relaxed)).filter(|&most| most > 0)
    }

    /// Whether any access time moves.
    #[inline]
    pub fn moves_atime(&self) -> bool {
        self.moves_atime.load(Ordering::Relaxed) && !self.holds_atime.load(Ordering::Relaxed)
    }

    pub fn hold_atime(&self, hold: bool) {
        self.holds_atime.store(hold, Ordering::Relaxed);
    }

    /// When access times move, and whether those of directories do.
    pub fn access_times(&self) -> (AccessTimes, bool) {
        let now = self.now.read();
        (now.atime, now.dir_atime)
    }

    /// Order `sync`: whether operations on file data are durable when they return.
    #[inline]
    pub fn syncs_data(&self) -> bool {
        self.syncs_data.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn allocates_at_write(&self) -> bool {
        self.allocates_at_write.load(Ordering::Relaxed)
    }
}

impl Volume {
    /// Options of the volume as they are.
    pub fn all_options(&self) -> Options {
        let mut mount = self.live.now();
        mount.order = Some(self.order);
        let block = self.geometry.block_size() as u64;
        let sb = &self.superblock;
        let mut options = Options { mount, ..Options::default() };
        let mkfs = &mut options.mkfs;
        mkfs.choices = sb.choices().expect("checked when the volume was opened");
        mkfs.block_size = (block as u32) << self.geometry.fragment_bits;
        mkfs.fragments = self.geometry.fragments();
        mkfs.ag_size = Some(u64::from(sb.ag_blocks.get()) * block);
        mkfs.region_size = u64::from(sb.region_blocks.get()) * block;
        if self.geometry.has_table() {
            mkfs.bytes_per_inode = self.geometry.bytes_per_inode();
        }
        mkfs.log_size = Some(sb.log_blocks.get() * block);
        mkfs.log_device = options.mount.log_device.clone().filter(|_| self.log_is_external);
        mkfs.data_checksums = self.geometry.has_checksums;
        mkfs.label = self.live.label();
        mkfs.order = self.order;
        mkfs.spreads_directories = usual_policy(sb) == crate::types::PlacementPolicy::Rotor;
        options
    }

    /// Changes options, all of which `tune` can change. What the volume keeps is durable then.
    pub fn tune(&self, changes: &[(&'static Row, Value)]) -> Result<()> {
        let Some((first, _)) = changes.first() else { return Ok(()) };
        if self.options.read_only {
            let reason = "the volume is open for reading only, and none of what tune changes has an effect then";
            return Err(Error::bad_option(first.name, reason));
        }
        let _turn = self.live.turn.lock();
        let before = self.all_options();
        let mut after = before.clone();
        for (row, value) in changes {
            assert!(row.when.by_tune(), "{} is refused where it is read", row.name);
            row.set(&mut after, value.clone());
        }
        // First what can fail.
        Delays::check(&after.mount, self.order)?;
        if after.mkfs.label != before.mkfs.label {
            self.set_label(&before.mkfs.label, &after.mkfs.label)?;
        }
        let mut options = after.mount;
        // As it was asked for, not as it came to be.
        options.order = self.live.now.read().order;
        let policy = *options.placement.get_or_insert_with(|| usual_policy(&self.superblock));
        self.live.set(&options);
        if let Some(soft) = &self.soft {
            soft.set_limit(&options);
        }
        self.placement.set_policy(policy, options.dirpref);
        self.counters.add(Count::dirhash_recycled, self.dir_hashes.set(&options));
        self.to_host.set(&options, &*self.device, &self.geometry);
        if options.dir_cache_limit() != before.mount.dir_cache_limit() {
            self.cache.bound_directories(options.dir_cache_limit());
        }
        self.wake.look_again();
        Ok(())
    }

    /// Gives the volume another label, or leaves it its own if the host has no room to make that durable.
    fn set_label(&self, before: &str, label: &str) -> Result<()> {
        self.write_label(label)?;
        self.commit_now().inspect_err(|_| {
            // After an error here the label may be either: the volume is shut down, or nothing has room, or a block cannot be read.
            let _ = self.write_label(before);
        })?;
        *self.live.label.write() = label.to_owned();
        Ok(())
    }

    /// The copies of the superblock keep the label that mkfs gave the volume.
    fn write_label(&self, label: &str) -> Result<()> {
        let mut bytes = [0; 64];
        bytes[..label.len()].copy_from_slice(label.as_bytes());
        transact(self, 0, |txn| {
            txn.change(FsBlock(0), BlockKind::Superblock, |edit| edit.put(offset_of!(Superblock, label), &bytes))
        })
    }
}
