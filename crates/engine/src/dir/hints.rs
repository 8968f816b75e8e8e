//! What is remembered of directories in memory, and may be lost at any time: the unit at which the next lookup in a directory without an
//! index begins, and the block to which a name was added last.

use crate::locks::{Mutex, Rank};
use myriad_format::inode::RawInode;
use myriad_format::{FileBlock, FsBlock, Ino};
use std::sync::atomic::{AtomicU64, Ordering};

/// Directories of which it is remembered where the last lookup succeeded. Two may share a place, and take it from each other:
/// that costs time.
const HINTS: usize = 1024;

/// Where lookups in directories begin: for each the unit of the last hit. A hint may be wrong, or another directory's, at any
/// time.
pub(crate) struct Hints(Box<[AtomicU64]>);

impl Hints {
    pub fn new() -> Self {
        Self((0..HINTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// The place of a directory, and what its word has above the number of a unit, which has 30 bits.
    fn place(&self, dir: Ino, raw: &RawInode) -> (&AtomicU64, u64) {
        let hash = (dir.0 ^ u64::from(raw.generation.get()).rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (&self.0[(hash >> 54) as usize % HINTS], hash << 10 >> 30 << 30)
    }

    pub fn get(&self, dir: Ino, raw: &RawInode) -> u64 {
        let (word, whose) = self.place(dir, raw);
        let word = word.load(Ordering::Relaxed);
        if word >> 30 << 30 == whose { word & ((1 << 30) - 1) } else { 0 }
    }

    pub fn put(&self, dir: Ino, raw: &RawInode, unit: u64) {
        let (word, whose) = self.place(dir, raw);
        let new = whose | unit;
        // Written only when it changes: others look at it as well.
        if word.load(Ordering::Relaxed) != new {
            word.store(new, Ordering::Relaxed);
        }
    }
}

/// Directories of which it is remembered where the last addition went. Two that share a place take it from each other.
const LAST_BLOCKS: usize = 256;

/// Where in the volume the block of each directory lies to which a name was added last. Most names go where the one before went, and
/// the map of a large directory is a tree. What is here is so: whoever unmaps blocks of a directory has it forgotten.
pub(crate) struct LastBlocks(Box<[Mutex<{ Rank::Leaf as u8 }, LastBlock>]>);

#[derive(Clone, Copy)]
struct LastBlock {
    dir: Ino,
    generation: u32,
    block: FileBlock,
    at: FsBlock,
}

impl LastBlocks {
    pub fn new() -> Self {
        let none = LastBlock { dir: Ino::NONE, generation: 0, block: FileBlock(0), at: FsBlock::NONE };
        Self((0..LAST_BLOCKS).map(|_| Mutex::new(none)).collect())
    }

    fn place(&self, dir: Ino) -> &Mutex<{ Rank::Leaf as u8 }, LastBlock> {
        &self.0[(dir.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % LAST_BLOCKS]
    }

    /// Where `block` of a directory lies, if that is remembered.
    pub fn get(&self, dir: Ino, raw: &RawInode, block: FileBlock) -> Option<FsBlock> {
        let last = *self.place(dir).lock();
        (last.dir == dir && last.generation == raw.generation.get() && last.block == block).then_some(last.at)
    }

    pub fn put(&self, dir: Ino, raw: &RawInode, block: FileBlock, at: FsBlock) {
        *self.place(dir).lock() = LastBlock { dir, generation: raw.generation.get(), block, at };
    }

    /// Blocks of the directory are about to be unmapped.
    pub fn forget(&self, dir: Ino) {
        let mut last = self.place(dir).lock();
        if last.dir == dir {
            last.dir = Ino::NONE;
        }
    }
}
