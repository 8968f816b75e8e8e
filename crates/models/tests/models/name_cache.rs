//! The name cache (`engine/src/name_cache.rs`), of one entry, for which all names compete.
//!
//! A directory has a lock, a name, and the inode of that name or 0. As in the engine, a name is put into the cache by who found it
//! under the shared lock, and forgotten by who removed it under the exclusive one. Meanwhile other threads put names of other
//! directories. One of these is of the same inode, so an entry half of one name and half of the other looks whole.
//!
//! Asserted:
//!   1. Under a directory's lock, shared or not, the cache says of its name what the directory says, or nothing.
//!   2. Without the lock, it says what the name was at some time since the reader last knew: no inode of another name, and none
//!      that was forgotten before.

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
        let names = NameCache::new(1).unwrap();
        let (inode, replaced) = (AtomicU64::new(OLD), AtomicU64::new(0));
        let volume = Self { names, lock: RawRwLock::new(), inode, replaced };
        assert_eq!(volume.find(), OLD);
        Arc::new(volume)
    }

    /// Finds the name, as `namei::step` does.
    fn find(&self) -> u64 {
        self.lock.lock_shared();
        let inode = get(&self.inode);
        match self.names.get(DIRECTORY, HASH) {
            Some(known) => assert_eq!(known.0, inode, "the cache says of a locked directory what it is not"),
            None if inode != 0 => self.names.put(DIRECTORY, HASH, Ino(inode)),
            None => (),
        }
        // SAFETY: it was taken above.
        unsafe { self.lock.unlock_shared() };
        inode
    }

    /// Makes the name that of `new`, or of nothing, as an unlink or a rename does.
    fn replace(&self, new: u64) {
        self.lock.lock_exclusive();
        let old = get(&self.inode);
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
