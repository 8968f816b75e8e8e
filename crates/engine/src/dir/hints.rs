//! Where lookups in directories without an index begin.

use myriad_format::Ino;
use myriad_format::inode::RawInode;
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
