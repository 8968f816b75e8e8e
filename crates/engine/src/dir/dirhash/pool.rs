//! The hashes that there are, and the memory that they may have together.
//!
//! All hashes stand in one list. A new one comes to its end, with a *score* of [`SCORE_INIT`]. A lookup adds one to the score, up to
//! [`SCORE_MAX`], and moves the hash past its neighbour towards the end, if that one's score is no higher. To get memory for
//! another hash, one is taken from the score of the hash at the head; when it has none left, that hash is dropped, and the next
//! one is at the head. If the head has some left, there is no memory for the other hash this time.
//!
//! So with more directories in use than there is memory for, a hash is made at one access in eight at most, and the other
//! accesses search their directory: where each would make a hash and drop another, all would be slower than without any
//! (Dowse and Malone 2002, 3.4).
//!
//! Invariants
//!   1. `Meter` has the sum of what all hashes were charged, those among them that somebody still uses after they were dropped.
//!   2. A directory has one hash at most.
//!
//! Locking: the pool's lock comes last. Under it nobody begins to use a hash; so one that only the pool knows is nobody's else.

use super::table::Table;
use crate::locks::{Rank, RwLock};
use myriad_format::Ino;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Score of a new hash. It bounds what thrashing costs to one hash made in eight accesses. From FreeBSD's dirhash (DH_SCOREINIT).
pub(super) const SCORE_INIT: u8 = 8;
/// The highest score: what was in use long ago is not kept for ever. From FreeBSD's dirhash (DH_SCOREMAX).
const SCORE_MAX: u8 = 64;

/// Bytes that hashes have, all together.
#[derive(Clone, Default)]
pub(super) struct Meter(Arc<AtomicU64>);

impl Meter {
    pub fn used(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A hash of the pool.
pub(super) struct Hash {
    /// None: it was dropped in the middle of a change, or could not be made.
    pub table: RwLock<{ Rank::DirHash as u8 }, Option<Table>>,
    charge: u64,
    meter: Meter,
}

impl Drop for Hash {
    fn drop(&mut self) {
        let had = self.meter.0.fetch_sub(self.charge, Ordering::Relaxed);
        debug_assert!(had >= self.charge, "the meter has the sum of all charges");
    }
}

/// What a hash is charged beside its tables.
pub(super) const STRUCTURE: u64 = (size_of::<Hash>() + size_of::<Node>()) as u64;

/// A hash in the list.
struct Node {
    dir: Ino,
    generation: u32,
    hash: Arc<Hash>,
    score: u8,
    before: u32,
    after: u32,
}

/// Neither before nor after there is one.
const END: u32 = u32::MAX;

pub(super) struct Pool {
    nodes: Vec<Option<Node>>,
    /// Numbers of nodes that are free.
    idle: Vec<u32>,
    by_dir: HashMap<Ino, u32>,
    head: u32,
    tail: u32,
    meter: Meter,
}

impl Pool {
    pub fn new(meter: Meter) -> Self {
        Self { nodes: Vec::new(), idle: Vec::new(), by_dir: HashMap::new(), head: END, tail: END, meter }
    }

    pub fn len(&self) -> usize {
        self.by_dir.len()
    }

    fn node(&mut self, number: u32) -> &mut Node {
        self.nodes[number as usize].as_mut().expect("numbers in the list are those of nodes")
    }

    fn link(&mut self, before: u32, after: u32) {
        match before {
            END => self.head = after,
            before => self.node(before).after = after,
        }
        match after {
            END => self.tail = before,
            after => self.node(after).before = before,
        }
    }

    /// The hash of a directory, if it has one. `is_lookup`: it is worth more from now on.
    pub fn find(&mut self, dir: Ino, generation: u32, is_lookup: bool) -> Option<Arc<Hash>> {
        let number = *self.by_dir.get(&dir)?;
        if self.node(number).generation != generation {
            // It was another directory's, which is gone.
            self.remove(number);
            return None;
        }
        if is_lookup {
            self.raise(number);
        }
        Some(Arc::clone(&self.node(number).hash))
    }

    fn raise(&mut self, number: u32) {
        let (before, after, score) = (self.node(number).before, self.node(number).after, self.node(number).score);
        if after != END && self.node(after).score <= score {
            let behind = self.node(after).after;
            self.link(before, after);
            self.link(after, number);
            self.link(number, behind);
        }
        self.node(number).score = (score + 1).min(SCORE_MAX);
    }

    /// Puts a hash of so many bytes into the pool.
    pub fn add(&mut self, dir: Ino, generation: u32, charge: u64) -> Arc<Hash> {
        self.forget(dir);
        self.meter.0.fetch_add(charge, Ordering::Relaxed);
        let hash = Arc::new(Hash { table: RwLock::new(None), charge, meter: self.meter.clone() });
        let node = Node { dir, generation, hash: Arc::clone(&hash), score: SCORE_INIT, before: END, after: END };
        let number = self.idle.pop().unwrap_or(self.nodes.len() as u32);
        match self.nodes.get_mut(number as usize) {
            Some(place) => *place = Some(node),
            None => self.nodes.push(Some(node)),
        }
        let tail = self.tail;
        self.link(tail, number);
        self.link(number, END);
        let other = self.by_dir.insert(dir, number);
        debug_assert!(other.is_none(), "a directory has one hash at most");
        hash
    }

    /// Drops a hash.
    fn remove(&mut self, number: u32) {
        let node = self.nodes[number as usize].take().expect("numbers in the list are those of nodes");
        self.link(node.before, node.after);
        self.by_dir.remove(&node.dir);
        self.idle.push(number);
    }

    /// Drops the hash of a directory, if it has one.
    pub fn forget(&mut self, dir: Ino) {
        if let Some(&number) = self.by_dir.get(&dir) {
            self.remove(number);
        }
    }

    /// As [`Self::forget`], if it is still this one.
    pub fn forget_only(&mut self, dir: Ino, hash: &Arc<Hash>) {
        if let Some(&number) = self.by_dir.get(&dir)
            && Arc::ptr_eq(&self.node(number).hash, hash)
        {
            self.remove(number);
        }
    }

    /// Makes room for so many bytes, by the rules above; how many hashes were dropped, and whether there is room.
    pub fn make_room(&mut self, bytes: u64, limit: u64) -> (u64, bool) {
        let mut dropped = 0;
        let mut at = self.head;
        while self.meter.used().saturating_add(bytes) > limit {
            if at == END {
                return (dropped, false);
            }
            let node = self.node(at);
            let after = node.after;
            // What somebody uses would stay in memory: it is not asked.
            if Arc::strong_count(&node.hash) == 1 {
                node.score -= 1;
                if node.score > 0 {
                    return (dropped, false);
                }
                self.remove(at);
                dropped += 1;
            }
            at = after;
        }
        (dropped, true)
    }

    /// Drops hashes from the head on, whatever their scores, until all others have no more than so many bytes.
    pub fn shrink(&mut self, limit: u64) -> u64 {
        let mut dropped = 0;
        while self.meter.used() > limit && self.head != END {
            let head = self.head;
            self.remove(head);
            dropped += 1;
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 100;

    fn pool() -> (Pool, Meter) {
        let meter = Meter::default();
        (Pool::new(meter.clone()), meter)
    }

    impl Pool {
        fn order(&self) -> Vec<u64> {
            let mut order = Vec::new();
            let (mut at, mut before) = (self.head, END);
            while at != END {
                let node = self.nodes[at as usize].as_ref().unwrap();
                assert_eq!(node.before, before);
                order.push(node.dir.0);
                (before, at) = (at, node.after);
            }
            assert_eq!((self.tail, order.len()), (before, self.by_dir.len()));
            order
        }

        fn look(&mut self, dir: u64) -> bool {
            self.find(Ino(dir), 1, true).is_some()
        }

        fn score(&mut self, dir: u64) -> u8 {
            let number = self.by_dir[&Ino(dir)];
            self.node(number).score
        }
    }

    #[test]
    fn a_lookup_moves_a_hash_past_one_that_is_worth_no_more() {
        let (mut pool, _) = pool();
        (1..=3).for_each(|dir| drop(pool.add(Ino(dir), 1, BYTES)));
        assert_eq!(pool.order(), [1, 2, 3]);
        assert!(pool.look(1));
        assert_eq!((pool.order(), pool.score(1)), (vec![2, 1, 3], 9));
        assert!(pool.look(2) && pool.look(2));
        // The first time the other one was worth more.
        assert_eq!((pool.order(), pool.score(2)), (vec![1, 2, 3], 10));
        assert!(pool.look(3) && !pool.look(4));
        assert_eq!(pool.order(), [1, 2, 3]);
        (0..100).for_each(|_| assert!(pool.look(1)));
        assert_eq!((pool.order(), pool.score(1)), (vec![2, 3, 1], SCORE_MAX));
        assert!(pool.find(Ino(2), 2, true).is_none(), "another directory has the number now");
        assert_eq!(pool.order(), [3, 1]);
    }

    /// FFSOPT 3.4: two directories that do not fit together, and an access to the one without a hash each time.
    #[test]
    fn a_hash_is_made_at_one_access_in_eight() {
        let (mut pool, meter) = pool();
        let (mut made, mut dropped) = (0, 0);
        for access in 0..800 {
            let dir = 1 + access % 2;
            if pool.look(dir) {
                continue;
            }
            let (gone, has_room) = pool.make_room(BYTES, BYTES);
            dropped += gone;
            if has_room {
                pool.add(Ino(dir), 1, BYTES);
                made += 1;
            }
            assert!(meter.used() <= BYTES);
        }
        // One of the two keeps its hash: it gains as often as it loses.
        assert_eq!((made, dropped), (1, 0));
        for access in 10..810 {
            if pool.make_room(BYTES, BYTES).1 {
                pool.add(Ino(access), 1, BYTES);
                made += 1;
            }
        }
        assert!((90..=101).contains(&made), "{made}: each access was to another directory");
    }

    #[test]
    fn what_is_in_use_is_not_dropped_and_not_forgotten() {
        let (mut pool, meter) = pool();
        let used = pool.add(Ino(1), 1, BYTES);
        drop(pool.add(Ino(2), 1, BYTES));
        let tries = (0..20).filter(|_| !pool.make_room(BYTES, 2 * BYTES).1).count();
        assert_eq!((tries, pool.order()), (7, vec![1]));
        // What it was charged is given back when the last one lets go.
        pool.forget(Ino(1));
        assert_eq!((pool.len(), meter.used()), (0, BYTES));
        assert_eq!(pool.make_room(BYTES, BYTES), (0, false));
        drop(used);
        assert_eq!(meter.used(), 0);
        assert_eq!(pool.make_room(BYTES, BYTES), (0, true));
    }

    #[test]
    fn a_lower_limit_holds_at_once() {
        let (mut pool, meter) = pool();
        (1..=5).for_each(|dir| drop(pool.add(Ino(dir), 1, BYTES)));
        assert_eq!((pool.shrink(2 * BYTES), meter.used(), pool.order()), (3, 2 * BYTES, vec![4, 5]));
        assert_eq!((pool.shrink(0), meter.used()), (2, 0));
        // Numbers are used again.
        drop(pool.add(Ino(7), 1, BYTES));
        assert_eq!((pool.nodes.len(), pool.order()), (5, vec![7]));
        let old = pool.add(Ino(7), 2, BYTES);
        let new = pool.add(Ino(7), 3, BYTES);
        pool.forget_only(Ino(7), &old);
        assert_eq!(pool.len(), 1);
        pool.forget_only(Ino(7), &new);
        assert_eq!(pool.len(), 0);
    }
}
