//! Scrub: reads all file data, in the order of its blocks, and says which files are damaged.
//!
//! The passes before have noted which blocks hold file data, a bit a block; whose they are is not remembered. Only when
//! some cannot be believed are the inodes walked once more for their owners, and directories for their paths
//! (`owners`). So a scrub takes little memory however many files there are, and a disk is read from its start to its end.

use crate::blocks::PAGE_BLOCKS;
use crate::context::{Context, SlotTable, in_parallel};
use crate::directory::Directories;
use crate::findings::number;
use crate::io::Damage;
use crate::owners;
use crate::report::{Place, Scrub};
use myriad_device::AlignedBuf;
use myriad_format::FsBlock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;
/// Blocks remembered as damaged; the rest are counted. A device that is failing as a whole must not take all memory.
const DAMAGED_MAX: usize = 1 << 20;

/// What is wrong with a block of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Unreadable(String),
}

impl Fault {
    pub fn number(&self) -> u32 {
        match self {
            Self::Unreadable(_) => number::DATA_UNREADABLE,
        }
    }

    pub fn sentence(&self) -> String {
        match self {
            Self::Unreadable(error) => format!("the device cannot read the contents: {error}"),
        }
    }
}

/// Damaged blocks by number.
#[derive(Default)]
struct Faults {
    kept: BTreeMap<FsBlock, Fault>,
    count: u64,
}

/// Reads all data that the passes before have noted.
pub(crate) fn scrub(context: &Context<'_>, slots: &SlotTable, directories: &Directories) -> Scrub {
    let Some(data) = &context.data else { return Scrub::default() };
    let geometry = &context.geometry;
    let faults = Mutex::new(Faults::default());
    let total = context.data_blocks.load(Relaxed);
    let done = AtomicU64::new(0);
    // Units of one page of the bit map, which lie in one group or hold several: any cut serves.
    let units = geometry.block_count.div_ceil(PAGE_BLOCKS);
    in_parallel(context.threads, units, |unit| {
        let start = FsBlock(unit * PAGE_BLOCKS);
        let length = PAGE_BLOCKS.min(geometry.block_count - start.0);
        let mut buffer = None;
        let mut go_on = true;
        data.for_each_run(start, length, |start, length| {
            let buffer = buffer.get_or_insert_with(|| AlignedBuf::zeroed(READ_BYTES.max(geometry.block_size())));
            let per_read = (buffer.len() / geometry.block_size()) as u64;
            let mut at = 0;
            while at < length && go_on {
                let count = per_read.min(length - at);
                let bytes = &mut buffer[..count as usize * geometry.block_size()];
                read_run(context, start.offset_by(at), bytes, &faults);
                at += count;
                let done = done.fetch_add(count, Relaxed) + count;
                go_on = context.tick_scrub(done, total);
            }
            go_on
        });
        go_on
    });
    let faults = faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    let untold = faults.count - faults.kept.len() as u64;
    if untold > 0 {
        context.report(number::DATA_UNREADABLE, Place::Volume, format!("{untold} more blocks of data are damaged"));
    }
    if !faults.kept.is_empty() {
        owners::report(context, slots, directories, &faults.kept);
    }
    Scrub { data_blocks: done.into_inner(), damaged_blocks: faults.count }
}

/// Reads a run; block by block when that fails, to name the one that cannot be read.
fn read_run(context: &Context<'_>, start: FsBlock, bytes: &mut [u8], faults: &Mutex<Faults>) {
    if context.reader.read_device(start, bytes).is_ok() {
        return;
    }
    for (index, bytes) in bytes.chunks_exact_mut(context.geometry.block_size()).enumerate() {
        let block = start.offset_by(index as u64);
        let Err(damage) = context.reader.read_device(block, bytes) else { continue };
        let error = match damage {
            Damage::Unreadable { error, .. } => error.to_string(),
            Damage::Corrupt(corrupt) => corrupt.to_string(),
        };
        let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.count += 1;
        if faults.kept.len() < DAMAGED_MAX {
            faults.kept.insert(block, Fault::Unreadable(error));
        }
    }
}
