//! The name cache: what a name in a directory was last found to be, without a lock.
//!
//! | table | an entry says | words | who answers by it |
//! |---|---|---|---|
//! | `known` | this name is that of this inode | two | everybody; who has no lock asks the inode whether it is still called so |
//! | `absent` | there is no such name | one | everybody; who has no lock makes sure that the way to the directory is still the same |
//!
//! Invariants
//!   1. An entry is made under the directory's shared lock, by who has just searched the directory.
//!   2. A name is dropped from `known` by who removes it ([`NameCache::forget`]), and from `absent` by who adds it
//!      ([`NameCache::appears`], before its entry is there), under the directory's exclusive lock. So under either lock an entry is
//!      true, and an entry that was dropped before a call began is not seen in it.
//!   3. A name is in one of the tables at most.
//!
//! Names that are not there are asked for again and again: a shell looks for a program in each directory of its path, a compiler for
//! a header. FFS keeps both sorts in one table and bounds the second one, so that a program that asks for ever new names does not drive
//! out those that exist (Dowse and Malone 2002, 3.1; FreeBSD's `vfs.ncnegfactor`, 16). Here each sort has a table of its own, so
//! the bound needs no counting. A missing name has no inode to remember, and nothing that could contradict its entry: it is one
//! word, so no reader meets half of one.
//!
//! Two names of a directory that share all 64 bits of their hash would share an entry. The hash is keyed, so that nobody can look for
//! such names; in a directory that has two of them (`HASH_TWINS`) nothing is remembered.

use crate::cache::{Zeroed, prefetch};
use crate::sync::{AtomicU64, Ordering};
use myriad_format::Ino;

/// Cache of (directory, name hash) -> inode, or nothing.
pub(crate) struct NameCache {
    /// Pairs: key mixed with the inode number, inode number. A reader that meets a half-written pair finds that it does not fit
    /// together and misses (Hyatt's lockless hash).
    known: Zeroed<AtomicU64>,
    known_bits: u32,
    /// Keys.
    absent: Zeroed<AtomicU64>,
    absent_bits: u32,
}

/// The place that a key has among `1 << bits`. Two shifts, for a table of one.
#[inline]
fn place(key: u64, bits: u32) -> usize {
    ((key >> 1) >> (63 - bits)) as usize
}

/// Tells names apart, wrong by chance once in 2^64.
#[inline]
fn key(dir: Ino, hash: u64) -> u64 {
    (hash ^ dir.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ dir.0
}

impl NameCache {
    /// A cache of about `names` names, 16 bytes each; 0: none. It has room for as many names divided by `absent_share` that are not
    /// there, 8 bytes each; 0: none.
    pub fn new(names: usize, absent_share: u64) -> std::io::Result<Self> {
        let entries = if names == 0 { 0 } else { names.next_power_of_two() };
        let absent = match entries.checked_div(usize::try_from(absent_share).unwrap_or(usize::MAX)) {
            None | Some(0) => 0,
            Some(share) => 1 << share.ilog2(),
        };
        Ok(Self {
            known: Zeroed::new(entries * 2)?,
            known_bits: entries.max(1).trailing_zeros(),
            absent: Zeroed::new(absent)?,
            absent_bits: absent.max(1).trailing_zeros(),
        })
    }

    /// Has the host give memory for all of it now.
    pub fn warm_up(&self) -> std::io::Result<()> {
        self.known.populate(0..self.known.len())?;
        self.absent.populate(0..self.absent.len())
    }

    /// Forgets everything. Nobody has to hold a lock: an entry that is not there says nothing, and as in [`Self::forget`] the word that says so
    /// alone goes. A name that is remembered meanwhile may stay.
    pub fn clear(&self) {
        let pairs = self.known.iter().step_by(2);
        for word in pairs.chain(self.absent.iter()) {
            // What was never used takes no memory yet.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// The pair of a name, and the key that tells pairs apart.
    #[inline]
    fn pair(&self, dir: Ino, hash: u64) -> Option<([&AtomicU64; 2], u64)> {
        if self.known.is_empty() {
            return None;
        }
        let key = key(dir, hash);
        let at = place(key, self.known_bits) * 2;
        Some(([&self.known[at], &self.known[at + 1]], key))
    }

    /// The inode of a name, if it is known. Unless the directory is locked, the name may be gone as this returns.
    #[inline]
    pub fn get(&self, dir: Ino, hash: u64) -> Option<Ino> {
        let (pair, key) = self.pair(dir, hash)?;
        let ino = pair[1].load(Ordering::Relaxed);
        (ino != 0 && pair[0].load(Ordering::Relaxed) ^ ino == key).then_some(Ino(ino))
    }

    /// Starts loading what [`Self::get`] will look at.
    pub fn prefetch(&self, dir: Ino, hash: u64) {
        if let Some((pair, _)) = self.pair(dir, hash) {
            prefetch(pair[0]);
        }
    }

    /// Remembers a name. The directory is locked.
    pub fn put(&self, dir: Ino, hash: u64, ino: Ino) {
        if let Some((pair, key)) = self.pair(dir, hash) {
            pair[1].store(ino.0, Ordering::Relaxed);
            pair[0].store(key ^ ino.0, Ordering::Relaxed);
        }
    }

    /// Forgets that a name is that of `ino`. Its directory is locked exclusively. Only the word that says so alone counts:
    /// the other one may be half of another name, and complete this one once more.
    #[inline]
    pub fn forget(&self, dir: Ino, hash: u64, ino: Ino) {
        if let Some((pair, key)) = self.pair(dir, hash)
            && pair[0].load(Ordering::Relaxed) == key ^ ino.0
        {
            pair[0].store(0, Ordering::Relaxed);
        }
    }

    /// The word of a name that is not there. A key of 0 would be that of every empty word.
    #[inline]
    fn word(&self, dir: Ino, hash: u64) -> Option<(&AtomicU64, u64)> {
        let key = key(dir, hash);
        (!self.absent.is_empty() && key != 0).then(|| (&self.absent[place(key, self.absent_bits)], key))
    }

    /// Whether a name is known not to be in a directory. Unless the directory is locked, it may be there as this returns. The directory
    /// may be at another path, too, when the name was remembered; but then whoever looks for changes of paths after this finds
    /// those that came before.
    #[inline]
    pub fn is_absent(&self, dir: Ino, hash: u64) -> bool {
        self.word(dir, hash).is_some_and(|(word, key)| word.load(Ordering::Acquire) == key)
    }

    /// Remembers that a name is not there. The directory is locked.
    pub fn put_absent(&self, dir: Ino, hash: u64) {
        if let Some((word, key)) = self.word(dir, hash) {
            word.store(key, Ordering::Release);
        }
    }

    /// A name is about to be there. Its directory is locked exclusively.
    pub fn appears(&self, dir: Ino, hash: u64) {
        if let Some((word, key)) = self.word(dir, hash)
            && word.load(Ordering::Relaxed) == key
        {
            word.store(0, Ordering::Relaxed);
        }
    }
}
