//! The name cache (`engine/src/name_cache.rs`), of one entry, for which all names compete.
//!
//! A directory has a lock, a name, and the inode of that name or 0. As in the engine, a name is put into the cache by who found it, or
//! found that it is not there, under the shared lock; it is forgotten by who removed it, and no longer absent for who adds it, under the
//! exclusive one. Meanwhile other threads put names of other directories. One of these is of the same inode, so an entry half
//! of one name and half of the other looks whole.
//!
//! Asserted:
//!   1. Under a directory's lock, shared or not, the cache says of its name what the directory says, or nothing.
//!   2. Without the lock, it says what the name was at some time since the reader last knew: no inode of another name, none
//!      that was forgotten before, and not that it is absent once it has been added.
//!   3. Who is told without the lock that a name is absent, and then asks whether the way to the directory has changed, hears of each
//!      change that came before the name was removed.

use super::get;
use crate::engine::name_cache::NameCache;
use crate::sync::{AtomicU64, Ordering, RawLock, RawRwLock};
use crate::tool::{ROUNDS, explore, thread};
use myriad_format::Ino;
use std::sync::Arc;

struct Volume {
    names: NameCache,
    lock: RawRwLock,
    /// What the name is, by the blocks of the directory.
    inode: AtomicU64,
    /// Whether it is not `OLD` any more.
    replaced: AtomicU64,
    /// How often the directory has been moved.
    moves: AtomicU64,
}

const DIRECTORY: Ino = Ino(10);
/// Other directories, and the inodes of their names.
const OTHERS: [(Ino, u64); 2] = [(Ino(11), 6), (Ino(12), OLD)];
const HASH: u64 = 0x1234_5678;
const OLD: u64 = 5;
const NEW: u64 = 7;

impl Volume {
    /// The name is that of `OLD`, and known.
    fn new() -> Arc<Self> {
        let names = NameCache::new(1, 1).unwrap();
        let (inode, replaced, moves) = (AtomicU64::new(OLD), AtomicU64::new(0), AtomicU64::new(0));
        let volume = Self { names, lock: RawRwLock::new(), inode, replaced, moves };
        assert_eq!(volume.find(), OLD);
        Arc::new(volume)
    }

    /// Finds the name, as `namei::step` does.
    fn find(&self) -> u64 {
        self.lock.lock_shared();
        let inode = get(&self.inode);
        match self.names.get(DIRECTORY, HASH) {
            Some(known) => assert_eq!(known.0, inode, "the cache says of a locked directory what it is not"),
            None if self.names.is_absent(DIRECTORY, HASH) => {
                assert_eq!(inode, 0, "what a locked directory has is absent")
            }
            None if inode != 0 => self.names.put(DIRECTORY, HASH, Ino(inode)),
            None => self.names.put_absent(DIRECTORY, HASH),
        }
        // SAFETY: it was taken above.
        unsafe { self.lock.unlock_shared() };
        inode
    }

    /// Makes the name that of `new`, or of nothing, as a create, an unlink or a rename does.
    fn replace(&self, new: u64) {
        self.lock.lock_exclusive();
        let old = get(&self.inode);
        if old == 0 {
            self.names.appears(DIRECTORY, HASH);
        }
        self.inode.store(new, Ordering::Relaxed);
        if old != 0 {
            self.names.forget(DIRECTORY, HASH, Ino(old));
        }
        // SAFETY: it was taken above.
        unsafe { self.lock.unlock_exclusive() };
    }

    /// A thread that finds the name of another directory, which it alone uses.
    fn find_other(self: &Arc<Self>, (other, inode): (Ino, u64)) -> thread::JoinHandle<()> {
        let volume = self.clone();
        thread::spawn(move || {
            for _ in 0..ROUNDS {
                volume.names.put(other, HASH, Ino(inode));
                volume.names.put_absent(other, !HASH);
            }
        })
    }
}

/// Nobody else uses the directory, so its lock is left out.
#[test]
fn what_was_forgotten_does_not_come_back() {
    explore(4, || {
        let volume = Volume::new();
        let others = OTHERS.map(|other| volume.find_other(other));
        for _ in 0..ROUNDS {
            volume.names.forget(DIRECTORY, HASH, Ino(OLD));
            assert_eq!(volume.names.get(DIRECTORY, HASH), None, "it was forgotten, and nobody has put it since");
            volume.names.put(DIRECTORY, HASH, Ino(OLD));
        }
        others.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn who_reads_without_the_lock_gets_what_the_name_was() {
    explore(2, || {
        let volume = Volume::new();
        let replacing = {
            let volume = volume.clone();
            thread::spawn(move || {
                volume.replace(NEW);
                volume.replaced.store(1, Ordering::Release);
                assert_eq!(volume.find(), NEW);
            })
        };
        let other = volume.find_other(OTHERS[0]);
        for _ in 0..2 * ROUNDS {
            let replaced = volume.replaced.load(Ordering::Acquire);
            match volume.names.get(DIRECTORY, HASH).map(|ino| ino.0) {
                Some(OLD) => assert_eq!(replaced, 0, "it was forgotten before"),
                Some(known) => assert_eq!(known, NEW, "no inode that the name ever had"),
                None => (),
            }
        }
        replacing.join().unwrap();
        other.join().unwrap();
    });
}

/// Readers share the lock, and put the same name at the same time.
#[test]
fn a_locked_directory_has_the_name_that_is_known() {
    explore(4, || {
        let volume = Volume::new();
        let replacing = {
            let volume = volume.clone();
            thread::spawn(move || (0..ROUNDS).for_each(|round| volume.replace(if round % 2 == 0 { NEW } else { OLD })))
        };
        let finding = {
            let volume = volume.clone();
            thread::spawn(move || (0..ROUNDS).for_each(|_| _ = volume.find()))
        };
        (0..2 * ROUNDS).for_each(|_| _ = volume.find());
        replacing.join().unwrap();
        finding.join().unwrap();
    });
}

/// One thread makes and removes the name; others look for it meanwhile.
#[test]
fn a_locked_directory_has_no_name_that_is_absent() {
    explore(4, || {
        let volume = Volume::new();
        volume.replace(0);
        assert_eq!(volume.find(), 0);
        let making = {
            let volume = volume.clone();
            thread::spawn(move || (0..ROUNDS).for_each(|round| volume.replace(if round % 2 == 0 { NEW } else { 0 })))
        };
        let other = volume.find_other(OTHERS[0]);
        (0..2 * ROUNDS).for_each(|_| _ = volume.find());
        making.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn what_has_been_added_is_not_absent() {
    explore(3, || {
        let volume = Volume::new();
        volume.replace(0);
        assert_eq!(volume.find(), 0);
        let adding = {
            let volume = volume.clone();
            thread::spawn(move || {
                volume.replace(NEW);
                volume.replaced.store(1, Ordering::Release);
            })
        };
        let other = volume.find_other(OTHERS[0]);
        for _ in 0..2 * ROUNDS {
            let added = volume.replaced.load(Ordering::Acquire);
            if volume.names.is_absent(DIRECTORY, HASH) {
                assert_eq!(added, 0, "it was added before");
            }
        }
        adding.join().unwrap();
        other.join().unwrap();
    });
}

/// A directory that has the name is moved away, and then loses it. Who looks for the name by the old path must not be told that it is
/// absent, for it never was at that path: another directory is there now, which has it too.
#[test]
fn who_is_told_that_a_name_is_absent_hears_of_moves_before() {
    explore(3, || {
        let volume = Volume::new();
        let moving = {
            let volume = volume.clone();
            thread::spawn(move || {
                // As `paths_changed`.
                volume.moves.fetch_add(1, Ordering::Release);
                volume.replace(0);
                assert_eq!(volume.find(), 0);
            })
        };
        for _ in 0..ROUNDS {
            // As `Session::lstat_inside`.
            let before = volume.moves.load(Ordering::Acquire);
            let is_absent = volume.names.is_absent(DIRECTORY, HASH);
            if is_absent && volume.moves.load(Ordering::Acquire) == before {
                assert_eq!(before, 1, "it was moved before it lost the name");
            }
        }
        moving.join().unwrap();
    });
}
