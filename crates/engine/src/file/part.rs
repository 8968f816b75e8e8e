//! How many of a file's dirty pages go in one transaction of its flush, and how many frames of the cache and how much of the log that may take.

use crate::volume::Volume;
use myriad_format::Geometry;

/// Frames that a flush may take for each run of pages: leaves of the file's map and of what finds free space, and what splits of these
/// add.
const RUN_FRAMES: usize = 4;
/// Blocks that it may change for each run of pages: a leaf of the file's map, and one of either tree of free space.
const RUN_CHANGED: u64 = 3;
/// Pages of a run of which one may lie apart on the volume: a guess. Where free space lies in smaller pieces, the part ends early.
const PAGES_APART: u64 = 4;
/// Blocks that it may change besides: the inode's, and a group's header.
const FLUSH_CHANGED: u64 = 2;
/// Frames that it may take besides: for the inode, for nodes above the leaves, and for headers of groups.
const FLUSH_FRAMES: usize = 16;
/// Bytes of a leaf that is half full for each of its entries.
const HALF_ENTRY: usize = 64;

/// Frames that a transaction may take for the maps of pages in so many runs. They may get blocks in as many pieces as half leaves have
/// entries for.
fn frames_of_runs(geometry: &Geometry, pages: usize, runs: usize) -> usize {
    FLUSH_FRAMES + runs * RUN_FRAMES + pages * HALF_ENTRY / geometry.block_size()
}

/// As many, for the pages of a new file.
pub(crate) fn frames_of_run(geometry: &Geometry, pages: u64) -> usize {
    frames_of_runs(geometry, pages as usize, 1)
}

/// Bytes of log that a transaction is to ask for, for so many runs.
fn log_of_runs(volume: &Volume, pages: usize, runs: usize) -> u64 {
    let blocks = FLUSH_CHANGED + runs as u64 * RUN_CHANGED + pages as u64 / PAGES_APART;
    (blocks << volume.geometry.block_bits).min(volume.limits.part_log_bytes_max)
}

/// The first of a file's dirty pages, as many as go in one transaction, the frames that it may take, and the bytes of log that it asks for.
pub(super) struct Part {
    pub pages: usize,
    pub frames: usize,
    pub log_bytes: u64,
}

/// The first part of these dirty blocks, which are in order. It takes `frames_max` at most, but for blocks that must go together. If
/// the file was `emptied`, all go together with the cut; they are new and overwrite nothing.
pub(super) fn part_of(volume: &Volume, blocks: impl Iterator<Item = u64>, emptied: bool, frames_max: usize) -> Part {
    let geometry = &volume.geometry;
    let mut room = if emptied { usize::MAX } else { volume.limits.overwrite_pages_max };
    let frames_max = if emptied { usize::MAX } else { frames_max };
    let frames = |pages, runs| frames_of_runs(geometry, pages, runs);
    let (mut pages, mut runs) = (0, 0);
    let mut last: Option<u64> = None;
    for block in blocks {
        // What a file block holds goes together: its flush may move it.
        let bits = geometry.fragment_bits;
        let is_bound = last.is_some_and(|last| last >> bits == block >> bits);
        let continues = is_bound || last.is_some_and(|last| last + 1 == block);
        // Data with checksums overwrites nothing in place: what each page replaces may lie anywhere.
        let left = room.checked_sub(usize::from(!continues || geometry.has_checksums));
        let runs_after = runs + usize::from(!continues);
        let fits = left.is_some() && (frames(pages + 1, runs_after) <= frames_max || is_bound);
        if pages > 0 && !fits {
            break;
        }
        room = left.unwrap_or(0);
        (pages, runs) = (pages + 1, runs_after);
        last = Some(block);
    }
    Part { pages, frames: frames(pages, runs), log_bytes: log_of_runs(volume, pages, runs) }
}
