//! States that were looked at, and how many of each kind there were.

use super::plan::Kind;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const SHARDS: usize = 16;

/// The keys are hashes already.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }
}

type Keys = HashSet<u128, BuildHasherDefault<KeyHasher>>;

/// A set of hashes that threads share.
pub struct Known {
    shards: [Mutex<Keys>; SHARDS],
}

impl Default for Known {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Known {
    /// Whether it is new.
    pub fn insert(&self, key: u128) -> bool {
        let shard = &self.shards[(key >> 64) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner).insert(key)
    }

    pub fn len(&self) -> u64 {
        let len = |shard: &Mutex<Keys>| shard.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
        self.shards.iter().map(len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What was done for one class of workloads.
#[derive(Default)]
pub struct Counts {
    pub runs: AtomicU64,
    /// Distinct states, by `Kind`.
    pub states: [AtomicU64; Kind::ALL.len()],
    /// States of recoveries that lost power in turn; distinct.
    pub recoveries: AtomicU64,
    /// Recovered volumes that were worked on.
    pub continued: AtomicU64,
    /// States whose contents had been seen, judged again for a later moment.
    pub again: AtomicU64,
}

impl Counts {
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn distinct(&self) -> u64 {
        let states: u64 = self.states.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        states + self.recoveries.load(Ordering::Relaxed)
    }
}
