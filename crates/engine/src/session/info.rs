//! What an open volume tells of itself.

use super::Fs;
use crate::error::Result;
use crate::order::soft::Soft;
use crate::types::*;
use myriad_format::superblock::feature;
use std::sync::atomic::Ordering;

impl Fs {
    /// Sizes and counts of the volume, as statfs(2): blocks of [`StatFs::block_size`] bytes, inodes, directories.
    pub fn statfs(&self) -> Result<StatFs> {
        Ok(self.volume().statfs())
    }

    /// Bytes of the largest file that this volume's map can hold. A write beyond that gets EFBIG.
    pub fn file_size_max(&self) -> u64 {
        crate::map::size_max(&self.volume().geometry)
    }

    /// Whether `stat.blocks` is an estimate: the file has data that has no blocks yet, some of it perhaps over blocks
    /// that are there. For a file whose data is all new, the number is right but for the blocks of a long map.
    pub fn are_blocks_estimated(&self, stat: &Stat) -> bool {
        let block_bits = self.volume().geometry.block_bits;
        self.volume().files.unflushed_sectors(stat.node(), block_bits).is_some_and(|sectors| sectors != stat.blocks)
    }

    /// Whether some file has had an access control list.
    pub fn has_acls(&self) -> bool {
        self.has_feature(feature::COMPATIBLE_ACL)
    }

    /// Whether some file has had an extended attribute.
    pub fn has_xattrs(&self) -> bool {
        self.has_feature(feature::COMPATIBLE_XATTR)
    }

    /// Whether some file has been immutable or append-only.
    pub fn has_flagged(&self) -> bool {
        self.has_feature(feature::COMPATIBLE_FLAGGED)
    }

    fn has_feature(&self, bit: u64) -> bool {
        let volume = self.volume();
        let bits = volume.superblock.features_compatible.get() | volume.features.load(Ordering::Relaxed);
        bits & bit != 0
    }

    /// Every counter with its name, in a fixed order; the device's own (`device_...`) last. With orders `sync` and `softdep` there are also
    /// those of dependencies (`soft_...`), of each kind five: total, now, peak, written, rolled back.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.volume().counters.snapshot();
        all.extend(self.volume().soft.iter().flat_map(Soft::counters));
        let device = self.volume().device.counters();
        all.extend([
            ("device_reads", device.reads),
            ("device_read_bytes", device.read_bytes),
            ("device_writes", device.writes),
            ("device_written_bytes", device.written_bytes),
            ("device_flushes", device.flushes),
            ("device_discards", device.discards),
        ]);
        all
    }

    /// What `info` shows.
    pub fn info(&self) -> VolumeInfo {
        let volume = self.volume();
        let sb = &volume.superblock;
        let block = u64::from(volume.statfs().block_size);
        VolumeInfo {
            uuid: sb.header.volume,
            label: volume.live.label(),
            block_size: block as u32,
            block_count: sb.block_count.get(),
            ag_size: u64::from(sb.ag_blocks.get()) * block,
            ag_count: sb.ag_count.get(),
            region_size: u64::from(sb.region_blocks.get()) * block,
            log_size: sb.log_blocks.get() * block,
            log_external: volume.log_is_external,
            order: volume.order,
            read_only: volume.options.read_only,
            recovered: volume.recovered,
            is_check_asked_for: volume.is_check_asked_for(),
            made: sb.made_time.get(),
            cache_size: volume.live.now().cache_size,
        }
    }

    /// How full memory and log are at this moment.
    pub fn levels(&self) -> Levels {
        let volume = self.volume();
        let block = volume.cache.block_size() as u64;
        let frames = volume.cache.frame_count() as u64;
        Levels {
            cache_size: frames * block,
            cache_used: frames.saturating_sub(volume.cache.free_frames() as u64) * block,
            dirty_data: volume.files.dirty_pages.load(Ordering::Relaxed) * block,
            dirty_log: volume.epoch.cost.log_bytes(),
            dircache_used: volume.cache.directory_bytes(),
            dirhash_used: volume.dir_hashes.level().0,
            dirhash_count: volume.dir_hashes.level().1,
            // A checkpoint in progress has it: not worth waiting for.
            log_used: volume.checkpointer.try_lock().and_then(|checkpointer| checkpointer.log_used()),
        }
    }

    /// Why the volume refuses changes, if an earlier device error shut it down.
    pub fn shut_down_reason(&self) -> Option<String> {
        self.volume().shut_down_reason()
    }
}

/// How full memory and log are at a moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Room for cached blocks, and how much of it holds some.
    pub cache_size: u64,
    pub cache_used: u64,
    /// File data that is in memory only.
    pub dirty_data: u64,
    /// What the changes of metadata since the last checkpoint will take in the log.
    pub dirty_log: u64,
    /// Blocks of directories in the cache, those of freed ones that no sweep has met yet included.
    pub dircache_used: u64,
    /// What the hashes of directories have, and how many there are.
    pub dirhash_used: u64,
    pub dirhash_count: u64,
    /// Of the log, what a recovery would read; `None` without a log, and while a checkpoint is being written.
    pub log_used: Option<u64>,
}

/// Facts about an open volume.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    pub uuid: [u8; 16],
    pub label: String,
    /// Bytes.
    pub block_size: u32,
    pub block_count: u64,
    /// Bytes of an allocation group, and how many there are.
    pub ag_size: u64,
    pub ag_count: u32,
    /// Bytes of a placement region.
    pub region_size: u64,
    /// Bytes; 0 without a log.
    pub log_size: u64,
    /// The log lies on a device of its own.
    pub log_external: bool,
    pub order: Order,
    pub read_only: bool,
    /// Opening found a log to replay.
    pub recovered: bool,
    /// A background check found damage, and nobody has checked the volume since. The log alone may have that.
    pub is_check_asked_for: bool,
    pub made: Time,
    /// Bytes of memory for cached blocks.
    pub cache_size: u64,
}
