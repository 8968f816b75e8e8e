//! Overlay: what the log knows of each block, granule by granule, until the block has gone home.
//!
//! A table of open addressing, one slot a block, and an arena for the granules. A block's granules lie together, in the
//! order of their bits, in a piece of the smallest power of two that holds them; a piece that is outgrown goes to its
//! size's free list. So the arena is at most four times the granules, whatever a hostile log does to it.
//!
//! Invariants
//!   1. A slot is taken if and only if its mask is not zero; a taken slot is reachable from its block's first slot
//!      without crossing a free one.
//!   2. The piece of a slot holds `mask.count_ones().next_power_of_two()` granules.
//!   3. `epochs[e].blocks` is the number of slots whose epoch is `e`, and it is 0 for all `e < oldest`.

use crate::place::granule;
use crate::recover::Record;
use myriad_format::{FsBlock, Lsn};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// Sizes of pieces: 1, 2, ... 64 granules.
const PIECE_SIZES: usize = 7;
/// Slots of the first table.
const SLOTS_MIN: usize = 1024;
/// Records whose slots are touched before the first of them is worked on, so that their cache misses overlap: ten to
/// fifteen misses fit in flight (ENGINE.md, 1), and what the later ones of a batch wait for is there by then.
const TOUCH_BATCH: usize = 32;

/// What [`Overlay::apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Granules that were overwritten.
    pub mask: u64,
    /// The oldest checkpoint with a granule of the block: replay must start no later as long as the block is not home.
    pub lsn: Lsn,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    block: u64,
    mask: u64,
    /// First granule of the piece, counted in granules from the arena's start.
    piece: u32,
    /// The checkpoint that first logged the block since it was last revoked.
    epoch: u32,
}

/// A checkpoint that was replayed.
struct Epoch {
    lsn: Lsn,
    blocks: u32,
}

/// Blocks and their changed granules. See the module's header.
pub struct Overlay {
    granule: usize,
    slots: Vec<Slot>,
    len: usize,
    /// Block numbers come from the disk; with a known hash an image could make every one collide and the mount
    /// take for ever. The seed changes the table's order only, and no method shows that.
    seed: u64,
    arena: Vec<u8>,
    free: [Vec<u32>; PIECE_SIZES],
    epochs: Vec<Epoch>,
    oldest: usize,
}

impl Overlay {
    pub(crate) fn new(block_size: usize) -> Self {
        Self {
            granule: granule(block_size),
            slots: Vec::new(),
            len: 0,
            seed: RandomState::new().hash_one(0u64),
            arena: Vec::new(),
            free: Default::default(),
            epochs: Vec::new(),
            oldest: 0,
        }
    }

    /// Copies the block's granules over `bytes`, the block as read from home. The caller recomputes its checksum.
    pub fn apply(&self, block: FsBlock, bytes: &mut [u8]) -> Option<Applied> {
        assert!(bytes.len() == self.granule * 64);
        let slot = self.slots[self.find(block)?];
        let mut source = slot.piece as usize * self.granule;
        for_each_run(slot.mask, |bit, run| {
            let size = run * self.granule;
            bytes[bit * self.granule..][..size].copy_from_slice(&self.arena[source..][..size]);
            source += size;
        });
        Some(Applied { mask: slot.mask, lsn: self.epochs[slot.epoch as usize].lsn })
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
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (FsBlock, Lsn)> + use<> {
        let taken = self.slots.iter().filter(|slot| slot.mask != 0);
        let mut all: Vec<_> =
            taken.map(|slot| (FsBlock(slot.block), self.epochs[slot.epoch as usize].lsn)).collect();
        all.sort_unstable();
        all.into_iter()
    }

    /// LSN of the oldest checkpoint with a granule in here: the tail must not pass it.
    pub fn oldest(&self) -> Option<Lsn> {
        (self.len > 0).then(|| self.epochs[self.oldest].lsn)
    }

    /// Drops a block: it has gone home, or was freed. Whether it was there.
    pub fn remove(&mut self, block: FsBlock) -> bool {
        let Some(mut hole) = self.find(block) else { return false };
        let slot = self.slots[hole];
        self.free[piece_size(slot.mask)].push(slot.piece);
        self.len -= 1;
        self.epochs[slot.epoch as usize].blocks -= 1;
        while self.oldest + 1 < self.epochs.len() && self.epochs[self.oldest].blocks == 0 {
            self.oldest += 1;
        }
        // Closes the hole by moving up what may move: a slot whose first choice lies cyclically in (hole, next] stays.
        let last = self.slots.len() - 1;
        let mut next = (hole + 1) & last;
        while self.slots[next].mask != 0 {
            let first = self.first_slot(self.slots[next].block);
            if next.wrapping_sub(first) & last >= next.wrapping_sub(hole) & last {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & last;
        }
        self.slots[hole] = Slot::default();
        if self.len == 0 {
            // Everything is home: give the memory back.
            (self.slots, self.arena, self.free) = Default::default();
        }
        true
    }

    /// Bytes the granules take.
    #[cfg(test)]
    pub(crate) fn arena_len(&self) -> usize {
        self.arena.len()
    }

    /// Starts the next checkpoint: records inserted from here on are its.
    pub(crate) fn begin(&mut self, lsn: Lsn) {
        assert!(self.epochs.last().is_none_or(|epoch| epoch.lsn < lsn));
        self.epochs.push(Epoch { lsn, blocks: 0 });
        if self.len == 0 {
            self.oldest = self.epochs.len() - 1;
        }
    }

    /// Applies the records of a checkpoint in order; `body` holds their granules.
    pub(crate) fn insert_all(&mut self, records: &[Record], body: &[u8]) {
        for batch in records.chunks(TOUCH_BATCH) {
            self.reserve(batch.len());
            let mut touched = 0;
            for record in batch {
                let slot = self.slots[self.first_slot(record.block)];
                touched |= self.arena.get((slot.piece as usize + rank(slot.mask, record.mask & record.mask.wrapping_neg())) * self.granule).copied().unwrap_or(0);
            }
            std::hint::black_box(touched);
            for record in batch {
                let size = record.mask.count_ones() as usize * self.granule;
                self.insert(record.block, record.mask, &body[record.at..][..size]);
            }
        }
    }

    fn insert(&mut self, block: u64, mask: u64, granules: &[u8]) {
        let last = self.slots.len() - 1;
        let mut index = self.first_slot(block);
        while self.slots[index].mask != 0 && self.slots[index].block != block {
            index = (index + 1) & last;
        }
        let old = self.slots[index];
        if old.mask == 0 {
            let piece = self.take_piece(piece_size(mask));
            self.arena[piece as usize * self.granule..][..granules.len()].copy_from_slice(granules);
            let epoch = self.epochs.len() - 1;
            self.epochs[epoch].blocks += 1;
            self.slots[index] = Slot { block, mask, piece, epoch: epoch as u32 };
            self.len += 1;
            return;
        }
        let union = old.mask | mask;
        let grows = piece_size(union) != piece_size(old.mask);
        let piece = if grows { self.take_piece(piece_size(union)) } else { old.piece };
        self.merge(old, piece, mask, granules);
        if grows {
            self.free[piece_size(old.mask)].push(old.piece);
        }
        (self.slots[index].mask, self.slots[index].piece) = (union, piece);
    }

    /// Fills `piece` with the granules of `old` and, over them, those of a record. Works from the highest bit down, so
    /// that in place a granule only ever moves up, to where all that has not moved yet lies below. What lies between
    /// two granules of the record moves in one copy.
    fn merge(&mut self, old: Slot, piece: u32, mask: u64, granules: &[u8]) {
        let size = self.granule;
        let (source, target) = (old.piece as usize * size, piece as usize * size);
        let union = old.mask | mask;
        let (mut old_end, mut union_end) = (old.mask.count_ones() as usize, union.count_ones() as usize);
        let mut granules_end = granules.len();
        let mut rest = mask;
        while rest != 0 {
            let bit = 1 << (63 - rest.leading_zeros());
            let (from, to) = (rank(old.mask, bit), rank(union, bit));
            let above = from + usize::from(old.mask & bit != 0);
            self.move_granules(source, target, above..old_end, to + 1);
            debug_assert!(old_end - above == union_end - (to + 1));
            granules_end -= size;
            self.arena[target + to * size..][..size].copy_from_slice(&granules[granules_end..][..size]);
            (old_end, union_end) = (from, to);
            rest &= !bit;
        }
        self.move_granules(source, target, 0..old_end, 0);
    }

    /// Moves granules `range` of the piece at byte `source` to place `to` of the piece at byte `target`.
    fn move_granules(&mut self, source: usize, target: usize, range: Range<usize>, to: usize) {
        let (from, to) = (source + range.start * self.granule, target + to * self.granule);
        if from != to && !range.is_empty() {
            self.arena.copy_within(from..from + range.len() * self.granule, to);
        }
    }

    fn take_piece(&mut self, size: usize) -> u32 {
        self.free[size].pop().unwrap_or_else(|| {
            let piece = self.arena.len() / self.granule;
            self.arena.resize(self.arena.len() + (self.granule << size), 0);
            // `RING_BYTES_MAX` bounds the granules a log can hold.
            u32::try_from(piece).expect("the arena of the largest log has fewer than 2^32 granules")
        })
    }

    fn first_slot(&self, block: u64) -> usize {
        // A folded multiplication with a secret: each half depends on every bit of the block.
        let product = u128::from(block ^ self.seed) * u128::from(self.seed | 1 | 1 << 63);
        ((product >> 64) as u64 ^ product as u64) as usize & (self.slots.len() - 1)
    }

    fn find(&self, block: FsBlock) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let mut index = self.first_slot(block.0);
        while self.slots[index].mask != 0 {
            if self.slots[index].block == block.0 {
                return Some(index);
            }
            index = (index + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// Makes room for `more` blocks; the table stays at most two thirds full.
    fn reserve(&mut self, more: usize) {
        let needed = (self.len + more) * 3 / 2;
        if needed < self.slots.len() {
            return;
        }
        let size = (needed + 1).next_power_of_two().max(SLOTS_MIN);
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); size]);
        for slot in old.into_iter().filter(|slot| slot.mask != 0) {
            let mut index = self.first_slot(slot.block);
            while self.slots[index].mask != 0 {
                index = (index + 1) & (size - 1);
            }
            self.slots[index] = slot;
        }
    }
}

/// log2 of the granules in the piece for `mask`.
fn piece_size(mask: u64) -> usize {
    mask.count_ones().next_power_of_two().trailing_zeros() as usize
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
