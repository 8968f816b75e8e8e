//! `crate::sync` of the engine's files under loom.
//!
//! Loom takes a sequentially consistent load or store for one that acquires or releases: it lets a load miss a store that is before it
//! in the one order of all such accesses. The gate depends on that order, so the models of the gate failed though it is right. But
//! loom knows sequentially consistent *fences*. If thread A stores one word and then loads another, and thread B the other way round,
//! then a fence between the two accesses of each makes at least one of them see the other's store. So here is a fence at each such
//! access. There are two places for it: in front of what loads, or behind what stores. Each model runs with both, one after the other
//! ([`Fences`]). With fences in front of loads alone, nobody would notice a store that is weaker than it should be; with fences
//! behind stores alone, nobody would notice such a load.
//!
//! That is weaker than the language, where the one order also holds for loads of one thread after each other: a structure that needs
//! this would fail here though it is right. And it is stronger in that a fence also orders the relaxed accesses around it.

pub use crate::parking::{Condvar, Mutex, MutexGuard, RawLock, RawRwLock};
use loom::sync::atomic;
pub use loom::sync::atomic::{Ordering, fence};
pub use loom::thread::yield_now;
use std::cell::Cell;

/// Where a sequentially consistent access has its fence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fences {
    BeforeLoads,
    AfterStores,
}

// The standard library's, not loom's: loom runs all threads of a model on one thread of the host, and other models on others.
thread_local! {
    static FENCES: Cell<Fences> = const { Cell::new(Fences::BeforeLoads) };
}

pub fn set_fences(fences: Fences) {
    FENCES.set(fences);
}

fn fence_at(here: Fences, order: Ordering) {
    if order == Ordering::SeqCst && here == FENCES.get() {
        fence(Ordering::SeqCst);
    }
}

fn before_load(order: Ordering) {
    fence_at(Fences::BeforeLoads, order);
}

fn after_store(order: Ordering) {
    fence_at(Fences::AfterStores, order);
}

macro_rules! atomics {
    ($($name:ident: $value:ty),*) => { $(
        pub struct $name(atomic::$name);

        impl $name {
            pub fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                before_load(order);
                self.0.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order);
                after_store(order);
            }
        }
    )* };
}

atomics!(AtomicBool: bool, AtomicU32: u32, AtomicU64: u64);

impl AtomicU32 {
    pub fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
        before_load(order);
        let before = self.0.fetch_or(value, order);
        after_store(order);
        before
    }

    pub fn fetch_and(&self, value: u32, order: Ordering) -> u32 {
        before_load(order);
        let before = self.0.fetch_and(value, order);
        after_store(order);
        before
    }
}

impl AtomicU64 {
    pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        before_load(order);
        let before = self.0.fetch_add(value, order);
        after_store(order);
        before
    }

    pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        before_load(order);
        let before = self.0.fetch_sub(value, order);
        after_store(order);
        before
    }

    pub fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        before_load(order);
        let before = self.0.fetch_and(value, order);
        after_store(order);
        before
    }

    pub fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange_weak(current, new, success, failure)
    }
}

pub fn spin_loop() {
    yield_now();
}

pub fn sleep(_: std::time::Duration) {
    yield_now();
}
