//! The name cache: what a name in a directory was last found to be, without a lock.

use crate::cache::{Zeroed, prefetch};
use crate::sync::{AtomicU64, Ordering};
use myriad_format::Ino;

/// Cache of (directory, name hash) -> inode.
///
/// A fixed table of pairs of words; a reader that meets a half-written pair finds that it does not fit together and
/// misses (Hyatt's lockless hash). An entry is made under the directory's shared lock and dropped under its exclusive
/// one, so it never outlives the name.
pub(crate) struct NameCache {
    /// Pairs: key mixed with the inode number, inode number.
    words: Zeroed<AtomicU64>,
    bits: u32,
}

impl NameCache {
    /// A cache of about `names` names, 16 bytes each; 0: none.
    pub fn new(names: usize) -> std::io::Result<Self> {
        let entries = if names == 0 { 0 } else { names.next_power_of_two() };
        Ok(Self { words: Zeroed::new(entries * 2)?, bits: entries.max(1).trailing_zeros() })
    }

    /// Has the host give memory for all of it now.
    pub fn warm_up(&self) -> std::io::Result<()> {
        self.words.populate(0..self.words.len())
    }

    /// The slot, and the key that tells pairs apart: a mix of both words, wrong by chance once in 2^64.
    fn slot(&self, dir: Ino, hash: u64) -> Option<([&AtomicU64; 2], u64)> {
        if self.words.is_empty() {
            return None;
        }
        let key = (hash ^ dir.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ dir.0;
        // Two shifts, for a cache of one entry.
        let at = ((key >> 1) >> (63 - self.bits)) as usize * 2;
        Some(([&self.words[at], &self.words[at + 1]], key))
    }

    /// The inode of a name, if it is known. Unless the directory is locked, the name may be gone as this returns.
    pub fn get(&self, dir: Ino, hash: u64) -> Option<Ino> {
        let (slot, key) = self.slot(dir, hash)?;
        let ino = slot[1].load(Ordering::Relaxed);
        (ino != 0 && slot[0].load(Ordering::Relaxed) ^ ino == key).then_some(Ino(ino))
    }

    /// Starts loading what [`Self::get`] will look at.
    pub fn prefetch(&self, dir: Ino, hash: u64) {
        if let Some((slot, _)) = self.slot(dir, hash) {
            prefetch(slot[0]);
        }
    }

    /// Remembers a name. The directory is locked.
    pub fn put(&self, dir: Ino, hash: u64, ino: Ino) {
        if let Some((slot, key)) = self.slot(dir, hash) {
            slot[1].store(ino.0, Ordering::Relaxed);
            slot[0].store(key ^ ino.0, Ordering::Relaxed);
        }
    }

    /// Forgets that a name is that of `ino`. Its directory is locked exclusively. Only the word that says so alone counts:
    /// the other one may be half of another name, and complete this one once more.
    pub fn forget(&self, dir: Ino, hash: u64, ino: Ino) {
        if let Some((slot, key)) = self.slot(dir, hash)
            && slot[0].load(Ordering::Relaxed) == key ^ ino.0
        {
            slot[0].store(0, Ordering::Relaxed);
        }
    }
}
