//! How much may gather before something of it is written, and before operations wait for that. Fixed when a volume is opened, by the
//! size of its cache and of its log.

use crate::order::Cost;

/// Dirty data that the background thread begins to write, in bytes: enough for long requests, little enough that a
/// disk is busy while a tree is still being filled.
const DIRTY_SOFT_BYTES: u64 = 64 << 20;
/// Metadata blocks at which a checkpoint is due that it has to copy whole, in bytes, on a large cache: so many new ones, and so
/// many that must go home and are changed again. Enough for long writes to the device.
const IMAGES_SOFT_BYTES: u64 = 64 << 20;
/// Part of the log, in bytes, for each block that one transaction overwrites out of place: what it frees, maps and notes
/// takes a third of that in the worst case, and a transaction must fit the half of the log that a checkpoint may take.
const OVERWRITE_LOG_BYTES: u64 = 1024;

pub(crate) struct Limits {
    /// What an epoch may cost until a checkpoint is due.
    pub epoch_due: Cost,
    /// What an epoch may cost until operations wait for a checkpoint.
    pub epoch_max: Cost,
    /// Bytes of log that one part of a long work may cost: what puts freed blocks into the trees, or empties a directory.
    pub part_log_bytes_max: u64,
    /// Pages of dirty data at which the background thread begins to write.
    pub dirty_pages_due: u64,
    /// Pages of dirty data at which writers wait.
    pub dirty_pages_max: u64,
    /// Pages that one transaction may put into the place of mapped blocks.
    pub overwrite_pages_max: usize,
}

impl Limits {
    /// Of a volume with so many frames in its cache, of blocks of `1 << block_bits` bytes, and with a log that holds so many bytes
    /// if it has one.
    pub fn new(frames: u64, block_bits: u32, log_capacity: Option<u64>) -> Self {
        // Without a log there is no end to it.
        let part_of_log = |part: u64| log_capacity.map_or(u64::MAX, |capacity| capacity / part);
        let part_of_cache = |bytes: u64| (frames / 16).min(bytes >> block_bits);
        let epoch = |log_part: u64, times: u64| {
            // Of a small cache most is hot soon: more of them, or there are checkpoints all the time.
            let hot_blocks = times * (frames / 8).min(IMAGES_SOFT_BYTES >> block_bits);
            Cost {
                log_bytes: part_of_log(log_part),
                fresh_blocks: times * part_of_cache(IMAGES_SOFT_BYTES),
                again_blocks: hot_blocks,
                hot_blocks,
                // Nearly so many that a checkpoint brings all of them home.
                away_blocks: frames / 4,
            }
        };
        let limits = Self {
            epoch_due: epoch(12, 1),
            epoch_max: epoch(8, 2),
            part_log_bytes_max: part_of_log(16).min((frames << block_bits) / 8),
            dirty_pages_due: part_of_cache(DIRTY_SOFT_BYTES),
            dirty_pages_max: frames / 4,
            overwrite_pages_max: part_of_log(OVERWRITE_LOG_BYTES).min(frames / 32).max(64) as usize,
        };
        // What is due begins before anybody has to wait for it.
        assert!(limits.dirty_pages_due <= limits.dirty_pages_max);
        assert!(limits.epoch_due.log_bytes <= limits.epoch_max.log_bytes);
        limits
    }
}
