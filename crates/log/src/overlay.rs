//! Overlay: what the log knows of each block, granule by granule, until the block has gone home.
//!
//! Built in two steps. The scan only lists the changes, 16 bytes for each record and revoke. Then the list is sorted
//! by block and each block's granules are copied out of the log, the newest of each, into an arena without gaps. A hash
//! table filled record by record was tried: it waits for one miss in the table and one in the arena per record, and took
//! three times as long at two million records; it also needs a secret seed, or an image could make its blocks collide.
//!
//! Invariants
//!   1. `entries` ascend by block; an entry with an empty mask has been removed.
//!   2. An entry's granules lie together in the arena, in the order of their bits.
//!   3. `epochs[e].blocks` is the number of entries left whose epoch is `e`; it is 0 for all `e < oldest`, and not 0
//!      for `e == oldest` unless the overlay is empty.

use crate::place::granule;
use myriad_format::log::RecordHeader;
use myriad_format::{FsBlock, Lsn};

/// Records touched ahead of the one being copied, so that their cache misses overlap (ENGINE.md, 1: ten to fifteen fit
/// in flight).
const TOUCH_AHEAD: usize = 32;

/// What [`Overlay::apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Granules that were overwritten.
    pub mask: u64,
    /// The oldest checkpoint with a granule of the block: replay must start no later as long as the block is not home.
    pub lsn: Lsn,
}

/// Blocks and their changed granules.
#[derive(Default)]
pub struct Overlay {
    granule: usize,
    entries: Vec<Entry>,
    /// Entries not removed.
    len: usize,
    arena: Vec<u8>,
    epochs: Vec<Epoch>,
    oldest: usize,
}

struct Entry {
    block: u64,
    mask: u64,
    /// Place in the arena, in granules. 32 bits do: there are no more granules than the largest log holds.
    piece: u32,
    /// The first checkpoint that logged the block since it was last revoked.
    epoch: u32,
}

/// A checkpoint that was replayed.
struct Epoch {
    lsn: Lsn,
    blocks: u32,
}

impl Overlay {
    /// Copies the block's granules over `bytes`, the block as read from home. The caller recomputes its checksum.
    pub fn apply(&self, block: FsBlock, bytes: &mut [u8]) -> Option<Applied> {
        let entry = &self.entries[self.find(block)?];
        assert!(bytes.len() == self.granule * 64);
        let mut source = entry.piece as usize * self.granule;
        for_each_run(entry.mask, |bit, run| {
            let size = run * self.granule;
            bytes[bit * self.granule..][..size].copy_from_slice(&self.arena[source..][..size]);
            source += size;
        });
        Some(Applied { mask: entry.mask, lsn: self.epochs[entry.epoch as usize].lsn })
    }

    pub fn contains(&self, block: FsBlock) -> bool {
        self.find(block).is_some()
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
        let left = self.entries.iter().filter(|entry| entry.mask != 0);
        left.map(|entry| (FsBlock(entry.block), self.epochs[entry.epoch as usize].lsn))
    }

    /// The first block from `block` on: for a writer that takes a few at a time and removes them.
    pub fn next_from(&self, block: FsBlock) -> Option<FsBlock> {
        let from = self.entries.partition_point(|entry| entry.block < block.0);
        self.entries[from..].iter().find(|entry| entry.mask != 0).map(|entry| FsBlock(entry.block))
    }

    /// LSN of the oldest checkpoint with a granule in here: the tail must not pass it.
    pub fn oldest(&self) -> Option<Lsn> {
        (self.len > 0).then(|| self.epochs[self.oldest].lsn)
    }

    /// Drops a block: it has gone home, or was freed. Whether it was there. Memory comes back with the last one.
    pub fn remove(&mut self, block: FsBlock) -> bool {
        let Some(index) = self.find(block) else { return false };
        self.entries[index].mask = 0;
        self.epochs[self.entries[index].epoch as usize].blocks -= 1;
        self.len -= 1;
        if self.len == 0 {
            *self = Self { granule: self.granule, ..Self::default() };
        } else {
            self.settle();
        }
        true
    }

    fn settle(&mut self) {
        while self.len > 0 && self.epochs[self.oldest].blocks == 0 {
            self.oldest += 1;
        }
    }

    fn find(&self, block: FsBlock) -> Option<usize> {
        let index = self.entries.binary_search_by_key(&block.0, |entry| entry.block).ok()?;
        (self.entries[index].mask != 0).then_some(index)
    }

    /// Bytes the granules take.
    #[cfg(test)]
    pub(crate) fn arena_len(&self) -> usize {
        self.arena.len()
    }
}

/// The changes a scan finds, in order.
#[derive(Default)]
pub(crate) struct Changes {
    list: Vec<Change>,
    epochs: Vec<Epoch>,
}

struct Change {
    block: u64,
    /// Where the record's header lies in the scanned bytes, in words of 8; or `REVOKE`.
    word: u32,
    epoch: u32,
}

/// No record lies there: the largest ring has 2^29 words.
const REVOKE: u32 = u32::MAX;

impl Changes {
    /// Starts the next checkpoint: what follows is its.
    pub fn begin(&mut self, lsn: Lsn) {
        assert!(self.epochs.last().is_none_or(|epoch| epoch.lsn < lsn));
        self.epochs.push(Epoch { lsn, blocks: 0 });
    }

    /// A record, verified, whose header lies at byte `at` of the scanned bytes.
    pub fn record(&mut self, block: u64, at: usize) {
        // Headers, granules and units all are multiples of 8 bytes.
        assert!(at % 8 == 0 && at / 8 < REVOKE as usize);
        self.list.push(Change { block, word: (at / 8) as u32, epoch: self.epoch() });
    }

    pub fn revoke(&mut self, block: u64) {
        self.list.push(Change { block, word: REVOKE, epoch: self.epoch() });
    }

    fn epoch(&self) -> u32 {
        // At most one for each unit of the ring.
        (self.epochs.len() - 1) as u32
    }

    /// The overlay of all changes; `log` is what was scanned.
    pub fn into_overlay(mut self, block_size: usize, log: &[u8]) -> Overlay {
        // Stable: a block's changes stay in the order of the log.
        self.list.sort_by_key(|change| change.block);
        let mut overlay = Overlay { granule: granule(block_size), epochs: self.epochs, ..Overlay::default() };
        let mut touched = 0;
        let mut done = 0;
        for changes in self.list.chunk_by(|one, other| one.block == other.block) {
            if touched < done + changes.len() {
                touch(&self.list[touched.max(done)..], log);
                touched = touched.max(done) + TOUCH_AHEAD;
            }
            done += changes.len();
            let revoke = changes.iter().rposition(|change| change.word == REVOKE);
            let valid = &changes[revoke.map_or(0, |index| index + 1)..];
            if !valid.is_empty() {
                overlay.push(valid, log);
            }
        }
        overlay.settle();
        overlay
    }
}

/// Reads a byte of each of the next records.
fn touch(changes: &[Change], log: &[u8]) {
    let bytes = changes.iter().take(TOUCH_AHEAD).filter_map(|change| log.get(change.word as usize * 8 + 16));
    std::hint::black_box(bytes.fold(0, |sum, byte| sum | byte));
}

impl Overlay {
    /// Adds a block: its records in the order of the log.
    fn push(&mut self, changes: &[Change], log: &[u8]) {
        let size = self.granule;
        let record = |change: &Change| {
            let bytes = &log[change.word as usize * 8..];
            (RecordHeader::read(bytes).mask.get(), &bytes[RecordHeader::SIZE..])
        };
        let union = changes.iter().fold(0, |union, change| union | record(change).0);
        let start = self.arena.len();
        let mut missing = union;
        for change in changes.iter().rev() {
            let (mask, granules) = record(change);
            if missing == union && mask == union {
                // The newest record has it all, as when there is only one: a single copy.
                self.arena.extend_from_slice(&granules[..union.count_ones() as usize * size]);
                break;
            }
            if missing == union {
                self.arena.resize(start + union.count_ones() as usize * size, 0);
            }
            let mut take = mask & missing;
            missing &= !mask;
            while take != 0 {
                let bit = take & take.wrapping_neg();
                let (from, to) = (rank(mask, bit) * size, start + rank(union, bit) * size);
                self.arena[to..to + size].copy_from_slice(&granules[from..from + size]);
                take ^= bit;
            }
            if missing == 0 {
                break;
            }
        }
        let epoch = changes[0].epoch;
        self.epochs[epoch as usize].blocks += 1;
        self.len += 1;
        self.entries.push(Entry { block: changes[0].block, mask: union, piece: (start / size) as u32, epoch });
    }
}

/// How many bits of `mask` lie below `bit`.
fn rank(mask: u64, bit: u64) -> usize {
    (mask & (bit - 1)).count_ones() as usize
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
