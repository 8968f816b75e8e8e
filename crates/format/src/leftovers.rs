//! What soft updates leave behind in a crash, as a check finds it and a volume in use gives it back.
//!
//! Nothing of this lies on a device: it is how the check, which never calls the engine, tells it. Each is as of the moment that was
//! checked, and says no more than that something is in use for nothing or is counted too high. So whoever gives it back takes away a
//! difference, whatever has been added to the same counts since.

use crate::{FsBlock, Ino};

/// All that one check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Blocks that are neither free nor anybody's: start and length.
    pub blocks: Vec<(FsBlock, u32)>,
    /// Inodes that are called used, and whose places are empty.
    pub places: Vec<Ino>,
    /// Inodes that have more links than names.
    pub links: Vec<SurplusLinks>,
    /// Inodes that do not have as many blocks as they say.
    pub block_counts: Vec<BlockCount>,
    /// Regions, by their first blocks, whose summaries count more directories than there are, and how many more.
    pub directories: Vec<(FsBlock, i64)>,
    /// Findings of other kinds, which only a repair of the unmounted volume puts right.
    pub others: u64,
}

/// An inode that has more links than names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurplusLinks {
    pub ino: Ino,
    pub generation: u32,
    /// How many are too many.
    pub count: u32,
    /// Nothing names it.
    pub is_nameless: bool,
}

/// An inode that does not have as many blocks as it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCount {
    pub ino: Ino,
    pub generation: u32,
    pub said: u64,
    pub found: u64,
}
