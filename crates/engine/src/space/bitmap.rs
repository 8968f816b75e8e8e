//! Free space as a bitmap in units of 512 bytes (`space=bitmap`, as FFS and simplefs have it). A bit that is set says *free*.
//!
//! The bits lie in the group's blocks of the bitmap. In memory there is only the number of bits that are set in each unit, counted when the
//! unit is first read; a search passes over units that are full.
//!
//! Invariants
//!   1. The group's `free_blocks` is the number of bits set.
//!   2. Blocks that lie at fixed places, and numbers past the end of the group, have clear bits. A search does not rely on it.
//!   3. `counted` is exact where it is known.
//!
//! No block is ever needed to record a change, so there is no reserve.

use super::fragments::Runs;
use super::pool::{Free, Pool, Wanted, unless_unreadable};
use crate::edit::{BlockRead, BlockStore, NewBlock};
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use myriad_format::bitmap::UNIT_BITS;
use myriad_format::unit::UNIT_ROOM;
use myriad_format::{AgBlock, BlockKind, Corrupt, FsBlock, header};

/// Words of a unit.
const WORDS: usize = UNIT_ROOM / 8;
/// In `counted`: not counted yet.
const UNKNOWN: u16 = u16::MAX;

/// The bits of a unit.
pub(super) type Words = [u64; WORDS];

/// A bitmap of a group, of blocks or of inodes.
pub(crate) struct Bits {
    kind: BlockKind,
    /// Group-relative first block.
    start: u32,
    /// Bits it has.
    pub(super) len: u32,
    /// How many are set in each unit, or `UNKNOWN`.
    pub(super) counted: Vec<u16>,
}

impl Bits {
    pub fn new(kind: BlockKind, start: u32, len: u32) -> Self {
        Self { kind, start, len, counted: vec![UNKNOWN; len.div_ceil(UNIT_BITS) as usize] }
    }

    /// Makes the blocks of the bitmap, all bits clear.
    pub fn init<S: BlockStore>(&mut self, pool: &Pool, store: &mut S) -> Result<()> {
        for index in 0..self.len.div_ceil(pool.geometry.bits_per_block()) {
            let block = pool.geometry.fs_block(pool.ag, AgBlock(self.start + index));
            store.init(NewBlock::free(block), self.kind, u64::from(pool.ag.0), |_| ())?;
        }
        self.counted.fill(0);
        Ok(())
    }

    /// Block of a unit, and byte in it of the unit's first bit.
    fn place(&self, pool: &Pool, unit: u32) -> (FsBlock, usize) {
        let place = pool.geometry.bit_place(unit * UNIT_BITS);
        (pool.geometry.fs_block(pool.ag, AgBlock(self.start + place.block)), place.byte)
    }

    pub(super) fn read_unit<S: BlockRead>(&self, pool: &Pool, store: &mut S, unit: u32) -> Result<Words> {
        let (block, at) = self.place(pool, unit);
        Ok(store.read(block, self.kind, |bytes| {
            header::verify_owner(bytes, block, u64::from(pool.ag.0))?;
            let words = bytes[at..at + UNIT_ROOM].chunks_exact(8);
            let mut words = words.map(|word| u64::from_le_bytes(word.try_into().expect("chunks of 8")));
            Ok::<_, Corrupt>(std::array::from_fn(|_| words.next().expect("a unit's words")))
        })??)
    }

    /// The first run of set bits from `from` on; counted only up to `want` bits.
    pub fn run_from<S: BlockRead>(&mut self, pool: &Pool, store: &mut S, from: u32, want: u32) -> Result<Option<Free>> {
        let mut start = None;
        let mut at = from;
        while at < self.len {
            let unit = at / UNIT_BITS;
            if self.counted[unit as usize] == 0 {
                if start.is_some() {
                    break;
                }
                at = (unit + 1) * UNIT_BITS;
                continue;
            }
            let words = self.read_unit(pool, store, unit)?;
            self.counted[unit as usize] = words.iter().map(|word| word.count_ones() as u16).sum();
            let end = (unit + 1) * UNIT_BITS;
            while at < end {
                let bit = at % UNIT_BITS;
                let (word, left) = (words[bit as usize / 64] >> (bit % 64), 64 - bit % 64);
                match start {
                    None if word == 0 => at += left,
                    None => {
                        at += word.trailing_zeros();
                        start = Some(at);
                    }
                    Some(first) => {
                        let ones = (!word).trailing_zeros().min(left);
                        at += ones;
                        if ones < left || at - first >= want {
                            return Ok(self.clamp(first, at, want));
                        }
                    }
                }
            }
        }
        Ok(start.and_then(|first| self.clamp(first, at, want)))
    }

    /// The run from `first` to `end`, of at most `want` bits; bits that damage has set past the last do not count.
    fn clamp(&self, first: u32, end: u32, want: u32) -> Option<Free> {
        let length = end.min(self.len).saturating_sub(first).min(want);
        (length > 0).then_some((first, length))
    }

    /// Whether a bit is set.
    pub fn is_set<S: BlockRead>(&self, pool: &Pool, store: &mut S, index: u32) -> Result<bool> {
        let words = self.read_unit(pool, store, index / UNIT_BITS)?;
        let bit = index % UNIT_BITS;
        Ok(words[bit as usize / 64] >> (bit % 64) & 1 == 1)
    }

    /// Sets or clears bits, all of which must be the opposite: false, and nothing is changed, if one is not.
    pub fn put<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        start: u32,
        length: u32,
        set: bool,
    ) -> Result<bool> {
        debug_assert!(length > 0 && start + length <= self.len);
        let end = start + length;
        let units = start / UNIT_BITS..=(end - 1) / UNIT_BITS;
        // First and last bit, in a unit, of what lies there.
        let part =
            |unit: u32| (start.max(unit * UNIT_BITS) % UNIT_BITS, (end.min((unit + 1) * UNIT_BITS) - 1) % UNIT_BITS);
        for unit in units.clone() {
            let words = self.read_unit(pool, store, unit)?;
            let (first, last) = part(unit);
            for index in first / 64..=last / 64 {
                let mask = mask(index, first, last);
                let wanted = if set { 0 } else { mask };
                if words[index as usize] & mask != wanted {
                    return Ok(false);
                }
            }
        }
        for unit in units {
            let (block, at) = self.place(pool, unit);
            let (first, last) = part(unit);
            store.change(block, self.kind, |edit| {
                for index in first / 64..=last / 64 {
                    let at = at + index as usize * 8;
                    let old = u64::from_le_bytes(edit.bytes()[at..at + 8].try_into().expect("8 bytes"));
                    let mask = mask(index, first, last);
                    let new = if set { old | mask } else { old & !mask };
                    edit.put(at, &new.to_le_bytes());
                }
            })?;
            let counted = &mut self.counted[unit as usize];
            if *counted != UNKNOWN {
                let bits = (last - first + 1) as u16;
                *counted = if set { *counted + bits } else { *counted - bits };
            }
        }
        Ok(true)
    }
}

/// The bits of word `index` of a unit that are among `first` to `last` of the unit.
fn mask(index: u32, first: u32, last: u32) -> u64 {
    let (from, to) = (first.saturating_sub(index * 64), (last - index * 64).min(63));
    (u64::MAX << from) & (u64::MAX >> (63 - to))
}

/// The bitmap of a group's blocks.
pub(super) struct Bitmap {
    pub(super) bits: Bits,
    /// Of a volume with fragments, once it was asked for.
    pub(super) runs: Option<Runs>,
}

impl Bitmap {
    /// That of a group whose counts `pool` has.
    pub fn load(pool: &Pool) -> Self {
        let start = pool.geometry.block_bitmap_start(pool.ag);
        Self { bits: Bits::new(BlockKind::BlockBitmap, start, pool.block_count), runs: None }
    }

    /// Makes the bitmap of a group, with no block free.
    pub fn create<S: BlockStore>(pool: &Pool, store: &mut S) -> Result<Self> {
        let mut bitmap = Self::load(pool);
        bitmap.bits.init(pool, store)?;
        Ok(bitmap)
    }

    /// As `Blocks::allocate_if`.
    pub fn allocate<S: BlockStore>(
        &mut self,
        pool: &mut Pool,
        store: &mut S,
        wanted: Wanted,
        is_good: impl FnOnce(&mut S, Free) -> bool,
        unreadable: &mut Option<Error>,
    ) -> Result<Option<Free>> {
        let chosen = unless_unreadable(self.choose(pool, store, wanted), unreadable)?;
        let Some((start, length)) = chosen.filter(|&chosen| is_good(store, chosen)) else { return Ok(None) };
        if !planted(Bug::DoubleAllocation) {
            pool.take(start, length)?;
            if !self.put(pool, store, start, length, false)? {
                return Err(pool.corrupt("bitmap", start));
            }
        }
        Ok(Some((start, length)))
    }

    fn choose<S: BlockRead>(&mut self, pool: &Pool, store: &mut S, wanted: Wanted) -> Result<Option<Free>> {
        let Wanted { goal, min, max } = wanted;
        let region = |block: u32| block >> pool.geometry.region_bits;
        let mut longest: Option<Free> = None;
        // From the goal to the end, then from the beginning to the goal.
        for range in [goal..pool.block_count, pool.first_block..goal] {
            let mut from = range.start;
            while from < range.end
                && let Some((start, length)) = self.bits.run_from(pool, store, from, max)?
                && start < range.end
            {
                let is_near = from == goal && region(start) == region(goal) && length >= min;
                if length == max || is_near {
                    return Ok(Some((start, length)));
                }
                if longest.is_none_or(|(_, other)| length > other) {
                    longest = Some((start, length));
                }
                from = start + length;
            }
        }
        Ok(longest.filter(|&(_, length)| length >= min))
    }

    /// Counts anew what is free.
    pub fn recount<S: BlockRead>(&mut self, pool: &mut Pool, store: &mut S) -> Result<()> {
        pool.forget();
        let mut from = pool.first_block;
        while let Some((start, length)) = self.bits.run_from(pool, store, from, u32::MAX)? {
            pool.give(start, length)?;
            from = start + length;
        }
        self.count_parts(pool, store)
    }

    /// Reads the bits of these blocks.
    pub fn read_ahead_of_free<S: BlockRead>(&self, pool: &Pool, store: &mut S, start: u32, length: u32) -> Result<()> {
        for unit in start / UNIT_BITS..=(start + length.max(1) - 1) / UNIT_BITS {
            self.bits.read_unit(pool, store, unit)?;
        }
        Ok(())
    }

    /// Makes blocks free that lie where blocks can be free. An error if one is.
    pub fn free<S: BlockStore>(&mut self, pool: &mut Pool, store: &mut S, start: u32, length: u32) -> Result<()> {
        if !self.put(pool, store, start, length, true)? {
            return Err(Corrupt::DoubleFree { ag: pool.ag, start, length }.into());
        }
        pool.give(start, length)
    }

    /// The first free extent that ends after `block`; where `block` lies in one, what of it begins there.
    pub fn free_after<S: BlockRead>(&mut self, pool: &Pool, store: &mut S, block: u32) -> Result<Option<Free>> {
        self.bits.run_from(pool, store, block.max(pool.first_block), u32::MAX)
    }

    /// Length of the longest free extent, or `enough` if there is one of as many blocks.
    pub fn longest<S: BlockRead>(&mut self, pool: &Pool, store: &mut S, enough: u32) -> Result<u32> {
        let (mut longest, mut from) = (0, pool.first_block);
        while longest < enough
            && let Some((start, length)) = self.bits.run_from(pool, store, from, enough)?
        {
            longest = longest.max(length);
            from = start + length;
        }
        Ok(longest)
    }
}
