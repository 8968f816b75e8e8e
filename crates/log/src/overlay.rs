//! Overlay: what the log knows of each block, granule by granule, until the block has gone home.
//!
//! The log as read stays in memory, and the overlay is a list of its records, 16 bytes each, sorted by block. A block's
//! newest granules are put together when the block is asked for, once in most mounts.
//!
//! Roads not taken, measured at two million records of one granule (153 MiB; this way takes 0.22 s, most of it for
//! reading, checksums and the sort): a hash table with an arena filled record by record took another 0.2 to 0.3 s,
//! waiting for memory twice a record, and needs a secret seed, or an image could make its blocks collide; copying the
//! newest granules into an arena after the sort took another 0.2 s, mostly page faults. Memory here is the live part of
//! the log; there it was arena and log at once in the second case, and an arena with gaps in the first.
//!
//! Invariants
//!   1. `changes` ascend by block; changes of one block are in the order of the log.
//!   2. A block's records count from behind its last revoke on. A block is in the overlay if there are any: if its last
//!      change is a record. Of a block with more than `GRANULES` changes, records are left out of which newer ones have every
//!      granule, all but the first: so a read takes few steps, however often the log has the block.
//!   3. `epochs[e].blocks` is the number of blocks whose first record that counts is of epoch `e`; it is 0 for all
//!      `e < oldest`, and not 0 for `e == oldest` unless the overlay is empty.

use crate::place::granule;
use myriad_format::log::RecordHeader;
use myriad_format::unit::{self, UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, FsBlock, Lsn};
use std::ops::Range;

/// What [`Overlay::apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Granules that were overwritten.
    pub mask: u64,
    /// The oldest checkpoint with a granule of the block: replay must start no later as long as the block is not home.
    pub lsn: Lsn,
}

impl Applied {
    /// Those of some bytes of the block, which is of `block_size`, that do not come from the log, ascending.
    pub fn gaps(&self, bytes: &Range<usize>, block_size: usize) -> Vec<Range<usize>> {
        let size = granule(block_size);
        let mut gaps = Vec::new();
        for_each_run(!self.mask & granules_of(bytes, size), |first, count| {
            gaps.push((first * size).max(bytes.start)..((first + count) * size).min(bytes.end));
        });
        gaps
    }
}

/// Granules of a block.
const GRANULES: usize = 64;

/// The granules that some bytes of a block lie in.
fn granules_of(bytes: &Range<usize>, granule: usize) -> u64 {
    let (first, last) = (bytes.start / granule, (bytes.end - 1) / granule);
    u64::MAX >> (GRANULES - 1 - last) & u64::MAX << first
}

/// Blocks and their changed granules.
#[derive(Default)]
pub struct Overlay {
    granule: usize,
    /// The log as read.
    log: Vec<u8>,
    changes: Vec<Change>,
    epochs: Vec<Epoch>,
    oldest: usize,
    len: usize,
}

#[derive(Clone, Copy)]
struct Change {
    block: u64,
    /// Where the record's header lies in the log as read, in words of 8 bytes; or `REVOKE`.
    word: u32,
    /// Index of the checkpoint.
    epoch: u32,
}

impl Change {
    /// Where the record begins in the log as read; `None`: it is a revoke.
    fn record(&self) -> Option<usize> {
        (self.word != REVOKE).then_some(self.word as usize * 8)
    }
}

/// No record lies there: the largest ring has 2^29 words.
const REVOKE: u32 = u32::MAX;

/// A checkpoint that was replayed.
struct Epoch {
    lsn: Lsn,
    blocks: u32,
}

impl Overlay {
    /// Copies the block's granules over `bytes`, the block as read from home. The caller recomputes its checksum; for a block of
    /// units there is [`Self::apply_to_units`].
    pub fn apply(&self, block: FsBlock, bytes: &mut [u8]) -> Option<Applied> {
        let records = counting(self.changes_of(block));
        let first = records.first()?;
        let size = self.granule;
        assert!(bytes.len() == size * GRANULES);
        let mut done = 0;
        // The newest first, so that a block changed by every checkpoint costs no more than the granules it has.
        for change in records.iter().rev() {
            let record = &self.log[change.record().expect("behind the last revoke")..];
            let (header, granules) = (RecordHeader::read(record), &record[RecordHeader::SIZE..]);
            let mask = header.mask.get();
            for_each_run(mask & !done, |bit, run| {
                let from = rank(mask, bit) * size;
                bytes[bit * size..][..run * size].copy_from_slice(&granules[from..][..run * size]);
            });
            done |= mask;
            if done == !0 {
                break;
            }
        }
        Some(Applied { mask: done, lsn: self.lsn_of(first) })
    }

    /// As [`Self::apply`], of a block of units, with checksums where they are due: of a unit that the log changed, if it was sound
    /// before or the log has every byte of it. Another one stays what it is, damaged: its neighbours' changes do not make it right.
    pub fn apply_to_units(
        &self,
        block: FsBlock,
        kind: BlockKind,
        volume: &[u8; 16],
        bytes: &mut [u8],
    ) -> Option<Applied> {
        if !self.contains(block) {
            return None;
        }
        let is_sound =
            |(number, unit): (usize, &[u8])| unit::verify_one(unit, kind, volume, block, number as u32).is_ok();
        let were_sound: Vec<bool> = bytes.chunks_exact(UNIT_SIZE).enumerate().map(is_sound).collect();
        let applied = self.apply(block, bytes)?;
        for (number, unit) in bytes.chunks_exact_mut(UNIT_SIZE).enumerate() {
            let granules = granules_of(&(number * UNIT_SIZE..(number + 1) * UNIT_SIZE), self.granule);
            let changed = applied.mask & granules;
            if changed == granules || changed != 0 && were_sound[number] {
                let crc = unit::checksum(unit, volume, block, number as u32);
                UnitHeader::read_mut(unit).crc.set(crc);
            }
        }
        Some(applied)
    }

    pub fn contains(&self, block: FsBlock) -> bool {
        !counting(self.changes_of(block)).is_empty()
    }

    /// Blocks in it.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every block, with the LSN [`Overlay::apply`] gives; ascending, the order to write them home in.
    pub fn blocks(&self) -> impl Iterator<Item = (FsBlock, Lsn)> {
        self.blocks_from(FsBlock(0))
    }

    /// The blocks from `block` on: for a writer that takes a few at a time and removes them.
    pub fn blocks_from(&self, block: FsBlock) -> impl Iterator<Item = (FsBlock, Lsn)> {
        let start = self.changes.partition_point(|change| change.block < block.0);
        let blocks = self.changes[start..].chunk_by(|one, other| one.block == other.block);
        blocks.filter_map(|changes| counting(changes).first().map(|first| (FsBlock(first.block), self.lsn_of(first))))
    }

    /// LSN of the oldest checkpoint with a granule in here: the tail must not pass it.
    pub fn oldest(&self) -> Option<Lsn> {
        (self.len > 0).then(|| self.epochs[self.oldest].lsn)
    }

    /// Drops a block: it has gone home, or was freed. Whether it was there. Memory comes back with the last one.
    pub fn remove(&mut self, block: FsBlock) -> bool {
        let Some(first) = counting(self.changes_of(block)).first() else { return false };
        let epoch = first.epoch as usize;
        // A revoke in the last record's place hides all before it.
        let end = self.changes.partition_point(|change| change.block <= block.0);
        self.changes[end - 1].word = REVOKE;
        self.epochs[epoch].blocks -= 1;
        self.len -= 1;
        if self.len == 0 {
            *self = Self { granule: self.granule, ..Self::default() };
        }
        self.settle();
        true
    }

    fn lsn_of(&self, change: &Change) -> Lsn {
        self.epochs[change.epoch as usize].lsn
    }

    fn changes_of(&self, block: FsBlock) -> &[Change] {
        let from = &self.changes[self.changes.partition_point(|change| change.block < block.0)..];
        &from[..from.partition_point(|change| change.block == block.0)]
    }

    fn settle(&mut self) {
        while self.len > 0 && self.epochs[self.oldest].blocks == 0 {
            self.oldest += 1;
        }
    }
}

/// Of one block's changes the records that count (invariant 2).
fn counting(changes: &[Change]) -> &[Change] {
    let revoke = changes.iter().rposition(|change| change.record().is_none());
    &changes[revoke.map_or(0, |index| index + 1)..]
}

/// Leaves out records of blocks that the log has more often than they have granules: those of which newer records have every granule. The first
/// one stays, which says as of when the block is. The changes are sorted.
fn thin_out(changes: &mut Vec<Change>, log: &[u8]) {
    /// In place of a checkpoint's number; there are not so many.
    const LEFT_OUT: u32 = u32::MAX;
    let mut is_any = false;
    for block in changes.chunk_by_mut(|one, other| one.block == other.block).filter(|block| block.len() > GRANULES) {
        let first = block.len() - counting(block).len();
        let mut done = 0;
        for change in block[first..].iter_mut().skip(1).rev() {
            let record = change.record().expect("behind the last revoke");
            let mask = RecordHeader::read(&log[record..]).mask.get();
            if mask & !done == 0 {
                change.epoch = LEFT_OUT;
                is_any = true;
            }
            done |= mask;
        }
    }
    if is_any {
        changes.retain(|change| change.epoch != LEFT_OUT);
    }
}

/// The changes a scan finds, in the order of the log.
#[derive(Default)]
pub(crate) struct Changes {
    list: Vec<Change>,
    epochs: Vec<Epoch>,
}

impl Changes {
    /// Starts the next checkpoint: what follows is its.
    pub fn begin(&mut self, lsn: Lsn) {
        assert!(self.epochs.last().is_none_or(|epoch| epoch.lsn < lsn));
        self.epochs.push(Epoch { lsn, blocks: 0 });
    }

    /// A record, verified, whose header lies at byte `at` of the log as read.
    pub fn record(&mut self, block: u64, at: usize) {
        // Headers, granules and units are multiples of 8 bytes.
        assert!(at % 8 == 0 && at / 8 < REVOKE as usize);
        self.push(block, (at / 8) as u32);
    }

    pub fn revoke(&mut self, block: u64) {
        self.push(block, REVOKE);
    }

    fn push(&mut self, block: u64, word: u32) {
        // A checkpoint takes a unit, so the largest ring has 2^20 of them.
        let epoch = (self.epochs.len() - 1) as u32;
        self.list.push(Change { block, word, epoch });
    }

    /// Drops the records that `keeps` says no to. It is asked block by block. Revokes stay.
    pub fn keep_records(&mut self, mut keeps: impl FnMut(FsBlock, Lsn) -> bool) {
        self.list.sort_by_key(|change| change.block);
        let epochs = &self.epochs;
        self.list.retain(|change| {
            change.record().is_none() || keeps(FsBlock(change.block), epochs[change.epoch as usize].lsn)
        });
    }

    /// The overlay of all changes to blocks of `block_size`; `log` is the log as read.
    pub fn into_overlay(self, block_size: usize, log: Vec<u8>) -> Overlay {
        let (mut changes, mut epochs, mut len) = (self.list, self.epochs, 0);
        // Stable, for invariant 1; and it makes use of what the log has in order already.
        changes.sort_by_key(|change| change.block);
        thin_out(&mut changes, &log);
        for block in changes.chunk_by(|one, other| one.block == other.block) {
            if let Some(first) = counting(block).first() {
                epochs[first.epoch as usize].blocks += 1;
                len += 1;
            }
        }
        let mut overlay = Overlay { granule: granule(block_size), ..Overlay::default() };
        if len > 0 {
            overlay = Overlay { log, changes, epochs, len, ..overlay };
        }
        overlay.settle();
        overlay
    }
}

/// How many bits of `mask` lie below bit number `bit`.
fn rank(mask: u64, bit: usize) -> usize {
    (mask & ((1 << bit) - 1)).count_ones() as usize
}

/// Calls `run(first bit, bits)` for each run of ones, lowest first.
pub(crate) fn for_each_run(mask: u64, mut run: impl FnMut(usize, usize)) {
    let (mut rest, mut at) = (mask, 0);
    while rest != 0 {
        let skip = rest.trailing_zeros();
        let ones = (rest >> skip).trailing_ones();
        run(at + skip as usize, ones as usize);
        at += (skip + ones) as usize;
        rest = (rest >> skip).checked_shr(ones).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each read of a block took a step for every record that the log has of it.
    #[test]
    fn a_block_is_read_in_few_steps_however_often_the_log_has_it() {
        let (mut changes, mut log) = (Changes::default(), Vec::new());
        for lsn in 1..5000 {
            changes.begin(Lsn(lsn));
            changes.record(7, log.len());
            let mask: u64 = 1 << (lsn % 50);
            log.extend_from_slice(&7_u64.to_le_bytes());
            log.extend_from_slice(&mask.to_le_bytes());
            log.extend_from_slice(&lsn.to_le_bytes());
        }
        let overlay = changes.into_overlay(512, log);
        assert_eq!(overlay.changes.len(), 51);
        let mut bytes = [0; 512];
        let applied = overlay.apply(FsBlock(7), &mut bytes).unwrap();
        assert_eq!(applied, Applied { mask: (1 << 50) - 1, lsn: Lsn(1) });
        assert_eq!(u64::from_le_bytes(bytes[49 * 8..][..8].try_into().unwrap()), 4999);
    }
}
