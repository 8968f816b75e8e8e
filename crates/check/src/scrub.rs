//! Scrub: reads all file data, in the order of its blocks, compares it with its checksums if the volume has them, and says
//! which files are damaged.
//!
//! The passes before have noted which blocks hold file data, a bit a block; whose they are is not remembered. Only when
//! some cannot be believed are the inodes walked once more for their owners, and directories for their paths
//! (`owners`). So a scrub takes little memory however many files there are, and a disk is read from its start to its end.
//!
//! A scrub of a moment (`online`) meets blocks that were freed since. Data with checksums is never overwritten in its place, so a
//! block holds what it held at the moment until it is freed and something else takes it. From then on it does not fit the
//! moment's checksum, though nothing is damaged. So the writer records the numbers of freed blocks before they may be used again,
//! 16 bytes a run of blocks (`engine/src/order/moment.rs`). The scrub reads a block, then looks into the records, and passes over
//! what was freed by then (`Scrub::freed_blocks`). So it reports only what was damaged at the moment, whatever the load, and
//! nothing waits for it. Contents that were removed before it came to them it cannot judge.
//!
//! Rejected for that: before-images of freed data, which would fill their room within seconds of a busy volume; holding freed
//! blocks back until the scrub has passed, which would fill the volume; reading again what does not fit, because a freed block
//! stays wrong. Snapshots in the format would undo this.

use crate::blocks::PAGE_BLOCKS;
use crate::checksums::read_table;
use crate::context::{Context, in_parallel};
use crate::directory::Directories;
use crate::fault::Fault;
use crate::findings::number;
use crate::inodes::Run;
use crate::io::Damage;
use crate::owners;
use crate::report::{Place, Scrub};
use myriad_device::AlignedBuf;
use myriad_format::{FsBlock, checksum};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;
/// Blocks remembered as damaged; the rest are counted. A device that is failing as a whole must not take all memory.
const DAMAGED_MAX: usize = 1 << 20;

/// What was found so far.
#[derive(Default)]
struct Found {
    kept: Mutex<BTreeMap<FsBlock, Fault>>,
    damaged: AtomicU64,
    compared: AtomicU64,
    freed: AtomicU64,
}

impl Found {
    fn add(&self, block: FsBlock, fault: Fault) {
        self.damaged.fetch_add(1, Relaxed);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < DAMAGED_MAX {
            kept.insert(block, fault);
        }
    }
}

/// Reads all data that the passes before have noted. Blocks whose contents are not those of their checksums, besides.
pub(crate) fn scrub(context: &Context<'_>, runs: &[Run], directories: &Directories) -> (Scrub, Vec<FsBlock>) {
    let Some(data) = &context.data else { return Default::default() };
    let geometry = &context.geometry;
    let found = Found::default();
    let total = context.data_blocks.load(Relaxed);
    let done = AtomicU64::new(0);
    // Units of one page of the bit map; a group may have several, and several may share one.
    let units = geometry.block_count.div_ceil(PAGE_BLOCKS);
    in_parallel(context.threads, units, |unit| {
        let start = FsBlock(unit * PAGE_BLOCKS);
        let length = PAGE_BLOCKS.min(geometry.block_count - start.0);
        let mut reading: Option<Reading<'_>> = None;
        let mut go_on = true;
        data.for_each_run(start, length, |start, length| {
            let reading = reading.get_or_insert_with(|| Reading::new(context, &found));
            let mut at = 0;
            while at < length && go_on {
                let count = reading.blocks_max().min(length - at);
                reading.read_run(start.offset_by(at), count);
                at += count;
                let done = done.fetch_add(count, Relaxed) + count;
                go_on = context.tick_scrub(done, total);
            }
            go_on
        });
        go_on
    });
    let faults = found.kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    let scrub = Scrub {
        data_blocks: done.into_inner(),
        compared_blocks: found.compared.into_inner(),
        damaged_blocks: found.damaged.into_inner(),
        freed_blocks: found.freed.into_inner(),
    };
    let untold = scrub.damaged_blocks - faults.len() as u64;
    if untold > 0 {
        context.report(number::DATA_UNREADABLE, Place::Volume, format!("{untold} more blocks of data are damaged"));
    }
    if !faults.is_empty() {
        owners::report(context, runs, directories, &faults);
    }
    (scrub, faults.into_iter().filter(|(_, fault)| *fault == Fault::Checksum).map(|(block, _)| block).collect())
}

/// What one thread reads with.
struct Reading<'a> {
    context: &'a Context<'a>,
    found: &'a Found,
    /// As long as the longest read so far: a small volume is scrubbed in less time than a megabyte is cleared.
    buffer: AlignedBuf,
    /// The block of a table at hand; empty bytes: it cannot be believed, which its group's pass has reported.
    table: (FsBlock, Vec<u8>),
}

impl<'a> Reading<'a> {
    fn new(context: &'a Context<'a>, found: &'a Found) -> Self {
        Self { context, found, buffer: AlignedBuf::zeroed(0), table: (FsBlock::NONE, Vec::new()) }
    }

    fn blocks_max(&self) -> u64 {
        (READ_BYTES / self.context.geometry.block_size()).max(1) as u64
    }

    /// Reads a run and compares what is still of the moment.
    fn read_run(&mut self, start: FsBlock, count: u64) {
        let block_size = self.context.geometry.block_size();
        let mut unreadable = self.fill(start, count);
        // Only now: what was freed after this was still itself when it was read.
        let freed = match self.context.moment.map_or(Ok(Vec::new()), |moment| moment.freed_since(start.0, count)) {
            Ok(freed) => freed,
            // Most likely the moment is over, and with it all that is said of it.
            Err(error) => {
                unreadable = (0..count).map(|index| (start.offset_by(index), error.to_string())).collect();
                Vec::new()
            }
        };
        self.found.freed.fetch_add(freed.len() as u64, Relaxed);
        for index in 0..count {
            let block = start.offset_by(index);
            let range = index as usize * block_size..(index as usize + 1) * block_size;
            if freed.binary_search(&block.0).is_ok() {
                continue;
            }
            if let Some(error) = unreadable.get(&block) {
                self.found.add(block, Fault::Unreadable(error.clone()));
                continue;
            }
            if let Some(stored) = self.checksum(block) {
                self.found.compared.fetch_add(1, Relaxed);
                if checksum::of(&self.buffer[range]) != stored {
                    self.found.add(block, Fault::Checksum);
                }
            }
        }
    }

    /// Reads a run; block by block when that fails, to tell which cannot be read.
    fn fill(&mut self, start: FsBlock, count: u64) -> BTreeMap<FsBlock, String> {
        let block_size = self.context.geometry.block_size();
        let reader = &self.context.reader;
        let length = count as usize * block_size;
        if self.buffer.len() < length {
            self.buffer = AlignedBuf::zeroed(length.next_power_of_two());
        }
        let bytes = &mut self.buffer[..length];
        if reader.read_device(start, bytes).is_ok() {
            return BTreeMap::new();
        }
        let read = |(index, bytes): (usize, &mut [u8])| {
            let block = start.offset_by(index as u64);
            let error = match reader.read_device(block, bytes).err()? {
                Damage::Unreadable { error, .. } => error.to_string(),
                Damage::Corrupt(corrupt) => corrupt.to_string(),
            };
            Some((block, error))
        };
        bytes.chunks_mut(block_size).enumerate().filter_map(read).collect()
    }

    /// The checksum of a block, if there is one.
    fn checksum(&mut self, block: FsBlock) -> Option<u32> {
        let geometry = &self.context.geometry;
        if !geometry.has_checksums {
            return None;
        }
        let (table, index) = geometry.checksum_of(block);
        if self.table.0 != table {
            let mut bytes = self.context.reader.new_buffer();
            if read_table(&self.context.reader, table, &mut bytes).is_err() {
                bytes.clear();
            }
            self.table = (table, bytes);
        }
        (!self.table.1.is_empty()).then(|| checksum::read(&self.table.1, index))
    }
}
