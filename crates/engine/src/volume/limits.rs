//! How much may gather before something of it is written, and before operations wait for that. Fixed when a volume is opened, by the
//! size of its cache and of its log.
//!
//! A checkpoint must fit the room that the log has by then. Half of the ring is the most that one may take (`Log::checkpoint_max`), but only a
//! quarter is always there. `make_log_room` begins to bring blocks home when more than half is in use; blocks that change in every epoch go home only
//! at the end of the checkpoint that began with so little room. So a checkpoint may find half in use, and take S; the next one finds 1/2 + S in use, and must
//! fit 1/2 - S. It leaves S + 1/4 at most. So S may be a quarter:
//!
//! | part of the log | for |
//! |---|---|
//! | 1/8 | what the open epoch has, and what long works inside the gate have asked for: `epoch_max`. An operation that finds more waits |
//! | 1/16 | what `release_blocks` puts into the trees of free space: `part_log_bytes_max` an epoch |
//! | 1/16 | operations that were let in before it was so much; the totals, and headers of groups |
//!
//! The last row is what keeps looking cheap. An operation looks at the sum before it enters, and adds what it has changed when it ends. So each of those
//! inside may come on top, with what it takes: mostly one or two KiB, a few blocks if a tree is split. Long works have asked. Of the
//! largest log that mkfs makes by itself, 128 MiB, 64 threads have 128 KiB each; of one of 4 MiB, 4 KiB. In the least log, 32 units of 4 KiB, it is 8 KiB for
//! all of them: only the half of the ring that is mostly free helps there, if several split trees at the same time.

use crate::order::Cost;

/// Dirty data that the background thread begins to write, in bytes: enough for long requests, little enough that a
/// disk is busy while a tree is still being filled.
const DIRTY_SOFT_BYTES: u64 = 64 << 20;
/// Metadata blocks at which a checkpoint is due that it has to copy whole, in bytes, on a large cache: so many new ones, and so
/// many that must go home and are changed again. Enough for long writes to the device.
const IMAGES_SOFT_BYTES: u64 = 64 << 20;
/// Blocks that one step of a long work changes as a whole at worst: a leaf of a file's map, and one of either tree of free space, with
/// what leads to them.
const STEP_BLOCKS: u64 = 4;

pub(crate) struct Limits {
    /// What an epoch may cost until a checkpoint is due.
    pub epoch_due: Cost,
    /// What an epoch may cost until operations wait for a checkpoint.
    pub epoch_max: Cost,
    /// Bytes of log that one part of a long work may cost: what flushes a file, puts freed blocks into the trees, or empties a directory.
    pub part_log_bytes_max: u64,
    /// Bytes of log that a step of such a work takes at most, mostly. A part ends before the step that might be one too many.
    pub step_log_bytes: u64,
    /// Pages of dirty data at which the background thread begins to write.
    pub dirty_pages_due: u64,
    /// Pages of dirty data at which writers wait.
    pub dirty_pages_max: u64,
    /// Runs of pages that one transaction of a flush begins with; with checksums, pages. More hardly fit what it may take of the log.
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
        let part_log_bytes_max = part_of_log(16).min((frames << block_bits) / 8);
        // Of a leaf that is changed somewhere, half is moved.
        let runs_max = part_log_bytes_max >> (block_bits - 1);
        let limits = Self {
            epoch_due: epoch(12, 1),
            epoch_max: epoch(8, 2),
            part_log_bytes_max,
            step_log_bytes: (STEP_BLOCKS << block_bits).min(part_log_bytes_max / 2),
            dirty_pages_due: part_of_cache(DIRTY_SOFT_BYTES),
            dirty_pages_max: frames / 4,
            overwrite_pages_max: runs_max.min(frames / 32).max(64) as usize,
        };
        // What is due begins before anybody has to wait for it.
        assert!(limits.dirty_pages_due <= limits.dirty_pages_max);
        assert!(limits.epoch_due.log_bytes <= limits.epoch_max.log_bytes);
        limits
    }
}
