//! Reading ahead: blocks of inodes, directories and small files that will be asked for soon, in fewer and larger requests.
//!
//! Three ways lead here. A miss close behind an earlier one (`Streams`) reads on from there, further each time, as a walk
//! through a tree visits inodes in the order in which they were made. The third miss in a neighbourhood (`Neighbourhoods`) reads
//! all of it, for looks at names in no order will want the rest; and where a directory was missed often, the first one does. And whoever
//! knows the blocks it is about to read (`Cache::fetch`) gets all that are missing in one batch.
//!
//! What was read beside the blocks asked for is kept only if it verifies as metadata at its own address. That it is in use
//! is not known, nor needed: a frame of a freed block dies, as any other, when the block is allocated again.
//! It is current, though it was read without a latch: a block can only change in the cache, and nothing leaves the
//! cache while the reader is inside the gate, so one that is not there at the end was not there in between.
//!
//! Why it matters: a cold walk of the kernel source waited 5300 times for one block, some 90 us each, which was two thirds of a
//! `find`; read ahead, it waits 830 times. Asking the inode tree which blocks are in use would lock its group in places where any
//! lock may be held already. A thread that reads ahead would compete for the processors with those it works for. If frames could
//! leave the cache while an operation is inside the gate, what was read could be out of date, and none of this would be right.
//! ext4 reads 128 KiB of its inode table at the first miss. Here blocks of inodes may have data between them, and of a large
//! volume few names may be wanted: so a miss reads one block, until others nearby show that the rest is wanted. That is the rule of one
//! who rents skis until the rents have cost as much as a pair: to read a neighbourhood takes about as long as one or two misses
//! (docs/design/directories.md has the figures), so whatever comes, it takes no more than twice what the better choice would have taken.
//!
//! A cache too small for what is looked at loses what is read ahead before it is asked for. So each sweep counts what of this it
//! evicts unasked for, and when that is much, neighbourhoods are left alone until the next one (`Cache::judge_ahead`).

use super::{Cache, flag, kind_code};
use crate::counters::Count;
use myriad_device::{AlignedBuf, ReadRequest};
use myriad_format::{BlockHeader, BlockKind, FsBlock, checksum, header};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Walks remembered at a time: several threads, each in a directory here and its inodes there.
const STREAMS: usize = 16;
/// A miss this many blocks past where a walk is expected still belongs to it.
const REACH: u64 = 8;
/// The most that one miss reads, in bytes.
const WINDOW_BYTES: u64 = 256 << 10;
/// A neighbourhood, in bytes: aligned, and read as a whole.
const NEIGHBOURHOOD_BYTES: u64 = 128 << 10;
/// Neighbourhoods remembered at most.
const NEIGHBOURHOODS_MAX: usize = 1 << 14;
/// So many misses in a neighbourhood are read alone. One lookup may miss two of a kind, the directory's and the file's.
const LONE_NEAR: u64 = 2;
/// Binary logarithm of the neighbourhoods in a district, in which directories are remembered: 4 MiB.
const DISTRICT_BITS: u32 = 5;
/// Districts remembered at least.
const DISTRICTS_MIN: usize = 16;
/// Misses of directories in a district before each reads its neighbourhood. Half as many as there are neighbourhoods: then every second
/// one that is read would have been missed again, as far as chance goes.
const LONE_IN_DISTRICT: u64 = 1 << (DISTRICT_BITS - 1);
/// After these and as many misses as there are neighbourhoods, all of the district was read: further ones are the first of new ones.
const MISSES_IN_DISTRICT: u64 = LONE_IN_DISTRICT + (1 << DISTRICT_BITS);
/// Bits of a word that count misses.
const MISSES_BITS: u32 = 6;
const _: () = assert!(MISSES_IN_DISTRICT <= UNREADABLE && LONE_NEAR < UNREADABLE, "the bits do");
/// In place of a count of misses: something of the neighbourhood cannot be read, so it is not asked for as a whole.
const UNREADABLE: u64 = (1 << MISSES_BITS) - 1;
/// What part of a window must be in use by walks or lookups: where less is, file data lies between the directory's blocks.
const YIELD_MIN: u64 = 4;
/// What part of evicted frames may have been read ahead in vain before neighbourhoods are left alone.
const UNUSED_MAX: usize = 4;
/// Blocks that a batch reads in between, rather than make two requests.
const GAP_BYTES: u64 = 16 << 10;
/// The most that a batch asks for, in bytes: nobody closes the gate meanwhile.
const BATCH_BYTES: usize = 4 << 20;
/// Bits of a stream's word that hold the binary logarithm of its window.
const WINDOW_BITS: u32 = 8;

/// Where walks go on: for each the block after the last one read, and how many were read, in one word.
pub(crate) struct Streams {
    streams: [AtomicU64; STREAMS],
    /// The next one to be given to another walk.
    hand: AtomicUsize,
}

impl Streams {
    pub fn new() -> Self {
        Self { streams: [const { AtomicU64::new(0) }; STREAMS], hand: AtomicUsize::new(0) }
    }

    /// How many blocks from `block` on to read, up to `max`: 1 on the first miss of a walk, then 4 times as many each time.
    /// Two threads may take each other for one walk: then too much is read, or too little.
    fn window(&self, block: FsBlock, max: u64) -> u64 {
        let word = |next: u64, window: u64| next << WINDOW_BITS | u64::from(window.ilog2());
        for stream in &self.streams {
            let old = stream.load(Ordering::Relaxed);
            let (next, window) = (old >> WINDOW_BITS, 1_u64 << (old & ((1 << WINDOW_BITS) - 1)));
            if old != 0 && (next..next + REACH).contains(&block.0) {
                let window = (window * 4).min(max);
                stream.store(word(block.0 + window, window), Ordering::Relaxed);
                return window;
            }
        }
        let stream = self.hand.fetch_add(1, Ordering::Relaxed) % STREAMS;
        self.streams[stream].store(word(block.0 + 1, 1), Ordering::Relaxed);
        1
    }
}

/// Where single blocks were missing lately.
pub(crate) struct Neighbourhoods {
    /// Each neighbourhood has a word for inodes and one for directories; others have the same. It is the neighbourhood's number, what of
    /// it, and how many misses there were.
    words: Box<[AtomicU64]>,
    /// The same of districts, for directories only: blocks of inodes lie among those of data.
    districts: Box<[AtomicU64]>,
    /// Binary logarithm of a neighbourhood's blocks.
    bits: u32,
}

impl Neighbourhoods {
    /// Of a cache of so many frames. No more are remembered than it can hold: what a small cache has no room for is not worth reading.
    pub fn new(frames: usize, block_bits: u32) -> Self {
        let bits = (NEIGHBOURHOOD_BYTES >> block_bits).max(1).ilog2();
        let count = (frames >> bits).clamp(1, NEIGHBOURHOODS_MAX);
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { words: words(count * 2), districts: words((count >> DISTRICT_BITS).max(DISTRICTS_MIN)), bits }
    }

    /// The neighbourhood of a block that is missing, if it is worth reading: its first block, and how many it has.
    fn around(&self, block: FsBlock, kind: BlockKind) -> Option<(FsBlock, u64)> {
        let number = block.0 >> self.bits;
        let is_inode = matches!(kind, BlockKind::Inode | BlockKind::InodeTable);
        let near = note_miss(&self.words, number << 1 | u64::from(is_inode), LONE_NEAR + 1);
        let is_dense =
            !is_inode && note_miss(&self.districts, number >> DISTRICT_BITS, MISSES_IN_DISTRICT) > LONE_IN_DISTRICT;
        let is_wanted = near != UNREADABLE && (near > LONE_NEAR || is_dense);
        (is_wanted && self.bits > 0).then(|| (FsBlock(number << self.bits), 1 << self.bits))
    }

    /// Reading the neighbourhood of this block was in vain: misses in its district are counted anew.
    fn was_in_vain(&self, block: FsBlock) {
        word_of(&self.districts, block.0 >> self.bits >> DISTRICT_BITS).store(0, Ordering::Relaxed);
    }

    /// Something of the neighbourhood of this block cannot be read. That is known until others have taken its words, or nothing is in the cache any more.
    fn cannot_be_read(&self, block: FsBlock) {
        let number = block.0 >> self.bits;
        for number in [number << 1, number << 1 | 1] {
            word_of(&self.words, number).store(number << MISSES_BITS | UNREADABLE, Ordering::Relaxed);
        }
    }

    /// Nothing is in the cache any more, and what was missing says nothing of what will be.
    pub fn forget(&self) {
        self.words.iter().chain(&self.districts).for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

fn word_of(words: &[AtomicU64], number: u64) -> &AtomicU64 {
    &words[(number % words.len() as u64) as usize]
}

/// Counts a miss of what has this number; the how many-th it is, after the `last` one from 1 on; or [`UNREADABLE`], which stays.
fn note_miss(words: &[AtomicU64], number: u64, last: u64) -> u64 {
    let word = word_of(words, number);
    let old = word.load(Ordering::Relaxed);
    if old == (number << MISSES_BITS | UNREADABLE) {
        return UNREADABLE;
    }
    let nth = if old >> MISSES_BITS == number { (old & ((1 << MISSES_BITS) - 1)) + 1 } else { 1 };
    word.store((number << MISSES_BITS) | (nth % last), Ordering::Relaxed);
    nth
}

/// Blocks read together, the one that was asked for among them.
pub(super) struct Run {
    pub start: FsBlock,
    pub bytes: AlignedBuf,
}

impl Cache {
    /// Reads a block that was asked for with others: those behind it, if it is part of a walk, or those around it. Inside the gate.
    /// `None`: it is to be read alone, also where that much could not be read.
    pub(super) fn read_along(&self, block: FsBlock, kind: BlockKind) -> Option<Run> {
        if self.has_overlay() || !self.has_room() {
            return None;
        }
        let window = if kind.is_of_a_walk() { self.streams.window(block, WINDOW_BYTES >> self.block_bits) } else { 1 };
        let (start, count) = match window {
            1 if kind.is_of_a_lookup() && self.has_use_for_neighbours() => self.neighbourhoods.around(block, kind)?,
            _ => (block, window),
        };
        let count = count.min((self.device.size() >> self.block_bits).saturating_sub(start.0));
        // A number that a hostile image made up may lie beyond the end of the device, and its neighbours before it.
        if count <= 1 || block.0 - start.0 >= count {
            return None;
        }
        let mut bytes = AlignedBuf::zeroed((count as usize) << self.block_bits);
        if self.device.read(start.0 << self.block_bits, &mut bytes).is_err() {
            // A bad place nearby: the next misses are not to meet it again.
            match window {
                1 => self.neighbourhoods.cannot_be_read(block),
                _ => self.neighbourhoods.was_in_vain(block),
            }
            return None;
        }
        Some(Run { start, bytes })
    }

    /// Whether a neighbourhood would find frames, and keep them until it is asked for.
    fn has_use_for_neighbours(&self) -> bool {
        self.has_room_for(1 << self.neighbourhoods.bits) && !self.ahead_is_unused.load(Ordering::Relaxed)
    }

    /// Puts what is of use of a run into the cache that was read for one block of it. No latch is held.
    pub(super) fn insert_along(&self, block: FsBlock, kind: BlockKind, run: &Run) {
        let count = (run.bytes.len() >> self.block_bits) as u64;
        let found = self.insert_run(run.start, &run.bytes);
        if kind.is_of_directory() && found < count / YIELD_MIN {
            self.neighbourhoods.was_in_vain(block);
        }
    }

    /// Nothing is in the cache any more, and what was read ahead before says nothing of what will be.
    pub(super) fn forget_ahead(&self) {
        self.neighbourhoods.forget();
        self.ahead_is_unused.store(false, Ordering::Relaxed);
    }

    /// Decides, after a sweep that evicted so many frames, and so many of them unasked for after they were read ahead, whether
    /// neighbourhoods are worth reading.
    pub(super) fn judge_ahead(&self, evicted: usize, unused: usize) {
        self.counters.add(Count::blocks_ahead_unused, unused as u64);
        // A sweep that found nothing to evict says nothing of that.
        if evicted > 0 {
            self.ahead_is_unused.store(unused > evicted / UNUSED_MAX, Ordering::Relaxed);
        }
    }

    /// Has those of `blocks` that are missing read, in one batch; errors are left to whoever asks for the block. Inside the
    /// gate.
    pub fn fetch(&self, blocks: &mut Vec<FsBlock>) {
        blocks.retain(|block| self.find(*block).is_none());
        blocks.sort_unstable();
        for (start, bytes) in self.read_runs(blocks) {
            self.insert_run(start, &bytes);
        }
    }

    /// As [`Self::fetch`], for blocks of file data, each with its checksum if there is one: what differs from it is not kept.
    pub fn fetch_data(&self, wanted: &mut Vec<(FsBlock, Option<u32>)>) {
        wanted.retain(|(block, _)| self.find(*block).is_none());
        wanted.sort_unstable();
        let blocks: Vec<FsBlock> = wanted.iter().map(|(block, _)| *block).collect();
        let mut wanted = wanted.iter();
        for (start, bytes) in self.read_runs(&blocks) {
            let end = start.0 + (bytes.len() >> self.block_bits) as u64;
            while let Some((block, stored)) = wanted.as_slice().first().filter(|(block, _)| block.0 < end) {
                let at = ((block.0 - start.0) << self.block_bits) as usize;
                let bytes = &bytes[at..at + self.block_size()];
                if stored.is_none_or(|stored| checksum::of(bytes) == stored) {
                    self.insert_ahead(*block, flag::DATA, bytes);
                }
                wanted.next();
            }
        }
    }

    /// Reads the first of these blocks (sorted), and few others between them, in one batch; nothing if any of it fails.
    fn read_runs(&self, blocks: &[FsBlock]) -> Vec<(FsBlock, AlignedBuf)> {
        // One alone is read as well when it is asked for, and a walk noticed by it.
        if blocks.len() < 2 || self.has_overlay() || !self.has_room() {
            return Vec::new();
        }
        let blocks = &blocks[..blocks.len().min(BATCH_BYTES >> self.block_bits)];
        let (gap, most) = (GAP_BYTES >> self.block_bits, WINDOW_BYTES >> self.block_bits);
        let mut runs: Vec<(FsBlock, AlignedBuf)> = blocks
            .chunk_by(|a, b| b.0 - a.0 <= gap.max(1) && a.0 / most == b.0 / most)
            .map(|run| (run[0], run[run.len() - 1].0 - run[0].0 + 1))
            .map(|(start, len)| (start, AlignedBuf::zeroed((len as usize) << self.block_bits)))
            .collect();
        let mut reads: Vec<ReadRequest<'_>> =
            runs.iter_mut().map(|(start, buf)| ReadRequest { offset: start.0 << self.block_bits, buf }).collect();
        match self.device.read_many(&mut reads) {
            Ok(()) => runs,
            Err(_) => Vec::new(),
        }
    }

    /// Puts what is metadata of walks and lookups among blocks just read, from `start` on, into the cache; how many there are, with those
    /// that were there. No latch is held.
    fn insert_run(&self, start: FsBlock, bytes: &[u8]) -> u64 {
        let mut found = 0;
        for (block, bytes) in (start.0..).map(FsBlock).zip(bytes.chunks_exact(self.block_size())) {
            if self.find(block).is_some() {
                found += 1;
                continue;
            }
            let kind = BlockKind::from_magic(BlockHeader::read(bytes).magic.get())
                .filter(|kind| kind.is_of_a_walk() || kind.is_of_a_lookup());
            if let Some(kind) = kind
                && header::verify(bytes, kind, &self.volume, block).is_ok()
            {
                self.insert_ahead(block, kind_code(kind), bytes);
                found += 1;
            }
        }
        found
    }

    /// Puts a block just read into the cache if it is not there. It is the first to go if nobody asks for it.
    fn insert_ahead(&self, block: FsBlock, kind: u32, bytes: &[u8]) {
        if let Some(index) = self.insert_read(block, kind, bytes) {
            let flags = &self.arena.header(index).flags;
            flags.fetch_or(flag::AHEAD, Ordering::Relaxed);
            flags.fetch_and(!flag::REFERENCED, Ordering::Relaxed);
            self.counters.bump(Count::blocks_read_ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_are_told_from_looks_here_and_there() {
        let streams = Streams::new();
        let window = |block| streams.window(FsBlock(block), 64);
        for i in 0..1000 {
            assert_eq!(window(i * 7919 % 100_003 * 100), 1, "look {i}");
        }
        // Two walks by turns; the second passes over a block now and then.
        for (first, second, expected) in
            [(5, 9000, 1), (6, 9002, 4), (10, 9007, 16), (26, 9023, 64), (90, 9090, 64), (154, 9154, 64)]
        {
            assert_eq!((window(first), window(second)), (expected, expected), "blocks {first} and {second}");
        }
        // Backwards is no walk, and neither is the same block again.
        assert_eq!((window(4), window(3), window(2), window(2)), (1, 1, 1, 1));
    }

    #[test]
    fn the_third_miss_nearby_reads_the_neighbourhood() {
        let near = Neighbourhoods::new(4096, 12);
        let around = |block| near.around(FsBlock(block), BlockKind::Inode);
        assert_eq!((around(70), around(90), around(3000), around(64)), (None, None, None, Some((FsBlock(64), 32))));
        assert_eq!((around(71), around(72)), (None, None), "it was read: others in it are counted anew");
        assert_eq!(near.around(FsBlock(73), BlockKind::DirIndex), None, "directories are counted apart");
        // Looks here and there, more than are remembered, each nearby earlier ones: one block each.
        assert!((0..3).all(|_| (100..1000).all(|i| around(i * 32).is_none())));
        near.forget();
        assert_eq!((around(70), around(71)), (None, None), "after the cache was emptied all is counted anew");
        // Blocks as large as a neighbourhood have no neighbours.
        let near = Neighbourhoods::new(4096, 17);
        assert!((0..4).all(|_| near.around(FsBlock(7), BlockKind::Inode).is_none()));
    }

    /// Where a sector was bad, every third miss read all of the neighbourhood in vain.
    #[test]
    fn a_neighbourhood_that_cannot_be_read_is_left_alone() {
        let near = Neighbourhoods::new(1 << 16, 12);
        let around = |block, kind| near.around(FsBlock(block), kind);
        (0..LONE_IN_DISTRICT).for_each(|i| assert!(around(64 + i * 32, BlockKind::DirIndex).is_none()));
        assert!(around(64, BlockKind::DirIndex).is_some(), "a dense district");
        near.cannot_be_read(FsBlock(70));
        let kinds = [BlockKind::DirIndex, BlockKind::Inode];
        assert!((0..20).all(|i| kinds.iter().all(|&kind| around(64 + i, kind).is_none())));
        assert!(around(96, BlockKind::DirIndex).is_some(), "its neighbour");
        near.forget();
        assert_eq!([70, 71, 72].map(|block| around(block, BlockKind::Inode).is_some()), [false, false, true]);
    }

    #[test]
    fn where_a_directory_was_missed_often_the_first_miss_reads_the_neighbourhood() {
        let near = Neighbourhoods::new(1 << 16, 12);
        // The district from 4 MiB on, a miss in each of its neighbourhoods, and in some of them once more.
        let miss = |i: u64, kind| near.around(FsBlock(1024 + i % 32 * 32 + i), kind);
        let read = |i: u64| Some((FsBlock((1024 + i % 32 * 32 + i) & !31), 32));
        let lone = LONE_IN_DISTRICT;
        for i in 0..lone {
            let kind = if i % 2 == 0 { BlockKind::DirEntries } else { BlockKind::DirIndex };
            assert_eq!(miss(i, kind), None, "miss {i}");
        }
        assert_eq!(near.around(FsBlock(9000), BlockKind::DirIndex), None, "another district");
        assert_eq!(miss(lone, BlockKind::Inode), None, "inodes are not counted with it");
        assert!((lone..MISSES_IN_DISTRICT).all(|i| miss(i % 32, BlockKind::DirEntries) == read(i % 32)));
        near.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        assert!((0..lone).all(|i| miss(i, BlockKind::DirIndex).is_none()), "all of it was read: they are counted anew");
        assert_eq!(miss(lone, BlockKind::DirIndex), read(lone));
        near.was_in_vain(FsBlock(1024));
        near.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        assert!((0..lone).all(|i| miss(i, BlockKind::DirIndex).is_none()), "nothing of use was read");
    }
}
