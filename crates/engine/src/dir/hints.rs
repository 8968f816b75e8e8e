//! What is remembered of directories in memory, and may be lost at any time: the unit at which the next lookup in a directory without an
//! index begins, and the block to which a name was added last.

use crate::locks::{Mutex, Rank};
use myriad_format::inode::RawInode;
use myriad_format::{FileBlock, FsBlock, Ino};
use std::sync::OnceLock;
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

/// Blocks of directories of which it is remembered where they lie.
const PLACES: usize = 4096;
/// That many have memory together, once one of them is needed: a volume with small directories needs none.
const PLACES_TOGETHER: usize = 64;

/// Where blocks of directories lie in the volume, for the map of a large directory is a tree: of each directory the block to which a name
/// was added last, since most names go where the one before went; and of all together those in which names were found. What is here
/// is so: whoever unmaps blocks of a directory has it forgotten.
pub(crate) struct LastBlocks {
    last: Box<[Mutex<{ Rank::Leaf as u8 }, LastBlock>]>,
    places: Box<[OnceLock<Places>]>,
    /// How often blocks of any directory were unmapped: what was noted before the last time counts no more.
    unmapped: AtomicU64,
}

type Places = Box<[Mutex<{ Rank::Leaf as u8 }, Lies>; PLACES_TOGETHER]>;

/// Where a block of a directory lies.
#[derive(Clone, Copy)]
struct Lies {
    dir: Ino,
    generation: u32,
    block: FileBlock,
    at: FsBlock,
    /// [`LastBlocks::unmapped`] as it was.
    unmapped: u64,
}

#[derive(Clone, Copy)]
struct LastBlock {
    dir: Ino,
    generation: u32,
    block: FileBlock,
    at: FsBlock,
    passed: Passed,
}

/// What the header of an entry block says of its entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Filled {
    /// Bytes up to the end of the last entry.
    pub used: usize,
    /// Bytes of live entries.
    pub live: usize,
}

/// A part of an entry block in which no free entry is long enough: a search for the first one that is goes on behind it. It counts only
/// while the block's header says what it said then: a device that lost a write gives back an older block, in which nothing was passed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Passed {
    /// Where the part ends and an entry begins, in bytes behind the first entry.
    until: usize,
    /// Free entries in it have fewer bytes.
    size: usize,
    /// What the block's header said.
    filled: Filled,
}

impl Passed {
    /// Where to begin to look for a free entry of `size` bytes in a block whose header says this.
    pub fn all_shorter(self, size: usize, filled: Filled) -> usize {
        if size >= self.size && filled == self.filled { self.until } else { 0 }
    }
}

impl LastBlocks {
    pub fn new() -> Self {
        let passed = Passed::default();
        let none = LastBlock { dir: Ino::NONE, generation: 0, block: FileBlock(0), at: FsBlock::NONE, passed };
        Self {
            last: (0..LAST_BLOCKS).map(|_| Mutex::new(none)).collect(),
            places: (0..PLACES / PLACES_TOGETHER).map(|_| OnceLock::new()).collect(),
            unmapped: AtomicU64::new(0),
        }
    }

    /// Where it is remembered where a block of a directory lies: the places that it is among, and its number there. Neighbouring blocks have
    /// neighbouring places.
    #[inline]
    fn lies(&self, dir: Ino, block: FileBlock) -> (&OnceLock<Places>, usize) {
        let place = (dir.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52).wrapping_add(block.0) as usize % PLACES;
        (&self.places[place / PLACES_TOGETHER], place % PLACES_TOGETHER)
    }

    /// Where a block of a directory lies, if that is remembered. The directory is locked.
    #[inline]
    pub fn find(&self, dir: Ino, raw: &RawInode, block: FileBlock) -> Option<FsBlock> {
        let unmapped = self.unmapped.load(Ordering::Relaxed);
        let (places, place) = self.lies(dir, block);
        let lies = *places.get()?[place].lock();
        let is_it = lies.dir == dir && lies.block == block && lies.generation == raw.generation.get();
        (is_it && lies.unmapped == unmapped).then_some(lies.at)
    }

    /// Remembers where a block of a directory lies. The directory is locked.
    pub fn note(&self, dir: Ino, raw: &RawInode, block: FileBlock, at: FsBlock) {
        // As it is while the directory is locked: none of its blocks is unmapped meanwhile.
        let unmapped = self.unmapped.load(Ordering::Relaxed);
        let (places, place) = self.lies(dir, block);
        let nowhere = Lies { dir: Ino::NONE, generation: 0, block: FileBlock(0), at: FsBlock::NONE, unmapped: 0 };
        let places = places.get_or_init(|| Box::new(std::array::from_fn(|_| Mutex::new(nowhere))));
        *places[place].lock() = Lies { dir, generation: raw.generation.get(), block, at, unmapped };
    }

    fn place(&self, dir: Ino) -> &Mutex<{ Rank::Leaf as u8 }, LastBlock> {
        &self.last[(dir.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % LAST_BLOCKS]
    }

    /// Where `block` of a directory lies, and what of it was passed over, if that is remembered.
    pub fn get(&self, dir: Ino, raw: &RawInode, block: FileBlock) -> Option<(FsBlock, Passed)> {
        let last = *self.place(dir).lock();
        (last.dir == dir && last.generation == raw.generation.get() && last.block == block)
            .then_some((last.at, last.passed))
    }

    /// Whether it is remembered where the directory last got a name.
    #[inline]
    pub fn knows(&self, dir: Ino, raw: &RawInode) -> bool {
        let last = self.place(dir).lock();
        last.dir == dir && last.generation == raw.generation.get()
    }

    pub fn put(&self, dir: Ino, raw: &RawInode, block: FileBlock, at: FsBlock) {
        let passed = Passed::default();
        *self.place(dir).lock() = LastBlock { dir, generation: raw.generation.get(), block, at, passed };
    }

    /// The first free entry of `size` bytes in the block at `at`, in which a directory last got a name, begins at `until` and has been taken;
    /// the block's header now says `filled`.
    pub fn pass(&self, dir: Ino, at: FsBlock, until: usize, size: usize, filled: Filled) {
        let mut last = self.place(dir).lock();
        if last.dir == dir && last.at == at {
            last.passed = Passed { until, size, filled };
        }
    }

    /// The entry that begins at `hole` of the block at `at` of a directory has become free; the block's header now says `filled`. In a block
    /// without live entries the next entry is the first one.
    pub fn has_hole(&self, dir: Ino, at: FsBlock, hole: usize, filled: Filled) {
        let mut last = self.place(dir).lock();
        if last.dir == dir && last.at == at {
            if filled.live == 0 || hole < last.passed.until {
                last.passed = Passed::default();
            } else {
                last.passed.filled = filled;
            }
        }
    }

    /// Blocks of the directory, which is locked exclusively, are about to be unmapped.
    pub fn forget(&self, dir: Ino) {
        self.unmapped.fetch_add(1, Ordering::Relaxed);
        let mut last = self.place(dir).lock();
        if last.dir == dir {
            last.dir = Ino::NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(generation: u32) -> RawInode {
        let mut raw = RawInode::zeroed();
        raw.generation.set(generation);
        raw
    }

    #[test]
    fn where_blocks_lie_is_forgotten_when_any_are_unmapped() {
        let known = LastBlocks::new();
        let (dir, raw) = (Ino(77), inode(5));
        let find = |dir, raw: &RawInode, block| known.find(dir, raw, FileBlock(block));
        for block in 0..PLACES as u64 {
            known.note(dir, &raw, FileBlock(block), FsBlock(1000 + block));
        }
        for block in 0..PLACES as u64 {
            assert_eq!(find(dir, &raw, block), Some(FsBlock(1000 + block)));
            assert_eq!(find(dir, &inode(6), block), None, "the directory that had the number before");
            assert_eq!(find(Ino(78), &raw, block), None);
            assert_eq!(find(dir, &raw, block + PLACES as u64), None, "a block with the same place");
        }
        known.forget(Ino(1));
        assert!((0..PLACES as u64).all(|block| find(dir, &raw, block).is_none()));
        known.note(dir, &raw, FileBlock(3), FsBlock(9));
        assert_eq!(find(dir, &raw, 3), Some(FsBlock(9)));
    }

    #[test]
    fn what_was_passed_over_counts_until_an_entry_there_goes() {
        let known = LastBlocks::new();
        let (dir, raw, block) = (Ino(77), inode(5), FileBlock(3));
        let at = FsBlock(9);
        let filled = |live| Filled { used: 900, live };
        let begins =
            |size: usize, live| known.get(dir, &raw, block).map(|(_, passed)| passed.all_shorter(size, filled(live)));
        assert_eq!(begins(32, 800), None);
        known.put(dir, &raw, block, at);
        assert_eq!(begins(32, 800), Some(0));
        known.pass(dir, at, 640, 32, filled(800));
        assert_eq!((begins(24, 800), begins(32, 800), begins(40, 800)), (Some(0), Some(640), Some(640)));
        // The block is another than it was.
        assert_eq!(begins(32, 768), Some(0));
        // Behind it, and in another block.
        known.has_hole(dir, at, 640, filled(768));
        known.has_hole(dir, FsBlock(10), 0, filled(0));
        assert_eq!(begins(32, 768), Some(640));
        known.has_hole(dir, at, 632, filled(736));
        assert_eq!(begins(32, 736), Some(0));
        // The block's entries begin anew.
        known.pass(dir, at, 640, 32, filled(800));
        known.has_hole(dir, at, 800, filled(0));
        assert_eq!(begins(32, 0), Some(0));
    }
}
