//! Locks that know their place in the lock order. Builds with debug assertions stop at the first acquisition out of it,
//! whether or not anybody would have waited; others pay nothing.
//!
//! A thread may wait for a lock only if it holds none of the same rank or a later one. Exceptions: inode locks are taken
//! several at once, in the order of their stripes; a private frame's latch is taken under another's
//! (`Arena::read_private`); and what is only tried, not waited for, may be tried at any time.
//! Being inside the gate counts as holding it, and so does having closed it. So what is inside the gate never waits for
//! what is outside: a file's data lock, or a checkpoint.
//!
//! Where a lock is let go, a test may have another thread go on (`schedule`).
//!
//! Not here: locks that go with a condition variable (the gate's own, the background thread's). They are held for a look
//! at a flag.

use crate::schedule;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Every lock of the engine, outermost first. ARCHITECTURE.md has the same list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Rank {
    /// Moving directories: held by a rename whose long way up was in vain, until it has ended.
    MovesTurn,
    /// Held by the one operation that has room made for many frames, until its end.
    ManyFrames,
    /// Looking at all directories for second names after a crash.
    SecondNames,
    /// Appending to a file: held by who does so in several parts, each of which takes the data lock.
    Append,
    /// A file's data lock; held across reads of the device.
    FileData,
    /// Held across a whole checkpoint.
    Checkpointer,
    /// Inside the gate, or having closed it.
    Gate,
    Rename,
    /// Inode locks by stripe.
    Inode,
    /// The hash of a directory (dirhash): held while the directory's entries are looked at or changed by it.
    DirHash,
    /// Making groups that have never been used.
    NewGroup,
    /// One group's space.
    Group,
    /// What the open epoch gave up.
    Freed,
    /// A frame's latch.
    Latch,
    /// What the log holds and the home blocks do not.
    Overlay,
    /// Held for a few instructions; nothing is waited for under it.
    Leaf,
}

/// A place in the order, held. Zero-sized without debug assertions.
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    lock: (Rank, usize),
    /// It belongs to the thread that took it.
    _thread: PhantomData<*const ()>,
}

// Gone where a thread-local of somebody else, dropped after it, uses the engine: nothing is checked then.
#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::RefCell<Vec<(Rank, usize)>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Held {
    /// Before waiting for a lock. `key` orders locks of rank `Inode` among themselves.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn wait(rank: Rank, key: usize) -> Self {
        #[cfg(debug_assertions)]
        let _ = HELD.try_with(|held| {
            for &(other, other_key) in held.borrow().iter() {
                let later = rank > other || rank == other && rank == Rank::Inode && key > other_key;
                assert!(later, "lock order: {rank:?} {key} waited for while {other:?} {other_key} is held");
            }
        });
        Self::tried(rank, key)
    }

    /// After a lock was got without waiting.
    #[inline]
    pub fn tried(rank: Rank, key: usize) -> Self {
        #[cfg(debug_assertions)]
        {
            let _ = HELD.try_with(|held| held.borrow_mut().push((rank, key)));
            // Who wants a frame's latch waits for it as the host has it, so whoever has one goes on.
            if rank == Rank::Latch {
                schedule::keep_turn();
            }
        }
        #[cfg(not(debug_assertions))]
        let _ = (rank, key);
        Self {
            #[cfg(debug_assertions)]
            lock: (rank, key),
            _thread: PhantomData,
        }
    }

    /// Gives the place up while `f` runs, and takes it again. No lock of a later rank is held. The caller then waits for the lock once more.
    pub fn lend(&self, f: impl FnOnce()) {
        #[cfg(debug_assertions)]
        {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                held.retain(|lock| *lock != self.lock);
                assert!(
                    held.iter().all(|lock| lock.0 < self.lock.0),
                    "what was locked after it is held still: {held:?}"
                );
            });
            // Also if `f` ends by a panic.
            let _again = Again(self);
            f();
        }
        #[cfg(not(debug_assertions))]
        f();
    }
}

/// A place that was given up: taken again when this is dropped.
#[cfg(debug_assertions)]
struct Again<'a>(&'a Held);

#[cfg(debug_assertions)]
impl Drop for Again<'_> {
    fn drop(&mut self) {
        let _ = HELD.try_with(|held| held.borrow_mut().push(self.0.lock));
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let at = held.iter().rposition(|lock| *lock == self.lock).expect("what is let go was held");
            held.swap_remove(at);
        });
        let rank = self.lock.0;
        if rank == Rank::Latch {
            schedule::let_turn_go();
        }
        schedule::may_switch(if rank <= Rank::Inode { 1 } else { 8 });
    }
}

/// A guard of parking_lot's, with its place in the order.
pub(crate) struct Guard<G> {
    guard: G,
    /// After the guard: the place is given up when the lock is.
    _held: Held,
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

pub(crate) type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;
pub(crate) type RwLockReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;
pub(crate) type RwLockWriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;

/// The rank that a lock's type names.
const fn rank(number: u8) -> Rank {
    const ALL: [Rank; 16] = [
        Rank::MovesTurn,
        Rank::ManyFrames,
        Rank::SecondNames,
        Rank::Append,
        Rank::FileData,
        Rank::Checkpointer,
        Rank::Gate,
        Rank::Rename,
        Rank::Inode,
        Rank::DirHash,
        Rank::NewGroup,
        Rank::Group,
        Rank::Freed,
        Rank::Latch,
        Rank::Overlay,
        Rank::Leaf,
    ];
    let rank = ALL[number as usize];
    assert!(rank as u8 == number);
    rank
}

/// parking_lot's mutex, with a rank: `Mutex<{ Rank::Group as u8 }, T>`.
#[derive(Default)]
pub(crate) struct Mutex<const RANK: u8, T>(parking_lot::Mutex<T>);

impl<const RANK: u8, T> Mutex<RANK, T> {
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::wait(const { rank(RANK) }, 0);
        Guard { guard: schedule::acquire(|| self.0.try_lock(), || self.0.lock()), _held: held }
    }

    /// Whether somebody has it just now.
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    /// Does not wait, so it may be out of order.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.0.try_lock()?;
        Some(Guard { guard, _held: Held::tried(const { rank(RANK) }, 0) })
    }
}

/// parking_lot's reader-writer lock, with a rank.
#[derive(Default)]
pub(crate) struct RwLock<const RANK: u8, T>(parking_lot::RwLock<T>);

impl<const RANK: u8, T> RwLock<RANK, T> {
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.read_at(0)
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.write_at(0)
    }

    /// As [`Self::read`], for one of several locks of a rank.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read_at(&self, key: usize) -> RwLockReadGuard<'_, T> {
        let held = Held::wait(const { rank(RANK) }, key);
        Guard { guard: schedule::acquire(|| self.0.try_read(), || self.0.read()), _held: held }
    }

    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write_at(&self, key: usize) -> RwLockWriteGuard<'_, T> {
        let held = Held::wait(const { rank(RANK) }, key);
        Guard { guard: schedule::acquire(|| self.0.try_write(), || self.0.write()), _held: held }
    }

    /// Does not wait, so it may be out of order.
    #[inline]
    pub fn try_write_at(&self, key: usize) -> Option<RwLockWriteGuard<'_, T>> {
        let guard = self.0.try_write()?;
        Some(Guard { guard, _held: Held::tried(const { rank(RANK) }, key) })
    }

    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.try_write_at(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(debug_assertions)]
    use std::sync::Mutex as Plain;

    fn gate() -> crate::cache::Gate {
        crate::cache::Gate::new()
    }

    #[test]
    fn the_order_and_its_exceptions_are_allowed() {
        let data: RwLock<{ Rank::FileData as u8 }, ()> = RwLock::default();
        let other: RwLock<{ Rank::FileData as u8 }, ()> = RwLock::default();
        let stripe: RwLock<{ Rank::Inode as u8 }, ()> = RwLock::default();
        let group: Mutex<{ Rank::Group as u8 }, ()> = Mutex::default();
        let held = data.read();
        let gate = gate();
        let inside = gate.enter(0);
        let first = stripe.read_at(3);
        let second = stripe.read_at(7);
        drop(first);
        assert!(other.try_write().is_some());
        let last = group.lock();
        // In any order of letting go.
        drop(inside);
        drop(second);
        drop(last);
        drop(held);
        drop(data.write());
    }

    #[test]
    #[should_panic(expected = "lock order: FileData 0 waited for while Gate 0 is held")]
    fn inside_the_gate_nobody_waits_for_a_data_lock() {
        let data: RwLock<{ Rank::FileData as u8 }, ()> = RwLock::default();
        let gate = gate();
        let _inside = gate.enter(0);
        let _data = data.read();
    }

    #[test]
    #[should_panic(expected = "lock order: Checkpointer 0 waited for while Gate 0 is held")]
    fn inside_the_gate_nobody_waits_for_a_checkpoint() {
        let checkpointer: Mutex<{ Rank::Checkpointer as u8 }, ()> = Mutex::default();
        let gate = gate();
        let _inside = gate.enter(0);
        let _checkpointer = checkpointer.lock();
    }

    #[test]
    #[should_panic(expected = "lock order: Gate 0 waited for while Gate 0 is held")]
    fn nobody_enters_twice() {
        let gate = gate();
        let _inside = gate.enter(0);
        let _again = gate.enter(0);
    }

    #[test]
    #[should_panic(expected = "lock order: Inode 3 waited for while Inode 7 is held")]
    fn stripes_are_taken_in_their_order() {
        let stripe: RwLock<{ Rank::Inode as u8 }, ()> = RwLock::default();
        let _first = stripe.read_at(7);
        let _second = stripe.read_at(3);
    }

    #[test]
    #[should_panic(expected = "lock order: Latch 0 waited for while Latch 0 is held")]
    fn one_latch_at_a_time() {
        let arena = crate::cache::Arena::new(2, 12).unwrap();
        let _first = arena.read(0);
        let _second = arena.read(1);
    }

    /// What three threads did that take turns, in which order.
    #[cfg(debug_assertions)]
    fn order(seed: u64) -> Vec<usize> {
        let seen = Plain::new(Vec::new());
        let lock: Mutex<{ Rank::Group as u8 }, u64> = Mutex::new(0);
        let gate = gate();
        let job = |number: usize| {
            let (seen, lock, gate) = (&seen, &lock, &gate);
            Box::new(move || {
                for round in 0..50 {
                    if round % 10 == 0 {
                        drop(gate.close());
                    }
                    let inside = gate.enter(1);
                    let mut held = lock.lock();
                    let before = *held;
                    // Others may run here, and find the lock taken.
                    schedule::pause();
                    *held = before + 1;
                    drop(held);
                    drop(inside);
                    seen.lock().unwrap().push(number);
                }
            }) as Box<dyn FnOnce() + Send>
        };
        schedule::run(schedule::Turns { seed, one_in: 3 }, (0..3).map(job).collect());
        assert_eq!(*lock.lock(), 150);
        seen.into_inner().unwrap()
    }

    #[test]
    #[cfg(debug_assertions)]
    fn the_same_seed_gives_the_same_order_and_another_another() {
        let first = order(7);
        assert_eq!(first, order(7));
        assert_ne!(first, order(8));
        assert_ne!(first[..50], [0; 50], "they take turns");
    }
}
