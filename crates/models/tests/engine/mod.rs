//! Files of the engine, compiled once more, with the atomics and locks of the tool that runs the models (`crate::sync`).
//!
//! These are the engine's own files, not copies: a model that passes says something about them. What they use of the engine
//! besides is here, in as few lines as they need: locks without ranks, no schedule, three slots, memory of the allocator.

// What a file has besides, models need not use.
#![allow(dead_code)]

#[path = "../../../engine/src/cache/flag.rs"]
pub mod flag;
#[path = "../../../engine/src/cache/gate.rs"]
pub mod gate;
#[path = "../../../engine/src/order/group_commit.rs"]
pub mod group_commit;
#[path = "../../../engine/src/cache/holds.rs"]
pub mod holds;
#[path = "../../../engine/src/cache/arena/latch.rs"]
pub mod latch;
#[path = "../../../engine/src/name_cache.rs"]
pub mod name_cache;
#[path = "../../../engine/src/thread_slot/table.rs"]
pub mod table;
#[path = "../../../engine/src/cache/unwritten.rs"]
pub mod unwritten;
#[path = "../../../engine/src/volume/wake.rs"]
pub mod wake;

use crate::sync::{AtomicU32, RawRwLock};

impl latch::Latch {
    /// In the engine it comes into being as zeros of a mapping.
    pub fn new() -> Self {
        Self { lock: RawRwLock::new(), version: AtomicU32::new(0) }
    }
}

pub mod cache {
    use crate::sync::AtomicU64;

    pub(crate) use super::gate::Closed;

    /// The engine's is a mapping.
    pub struct Zeroed<T>(Vec<T>);

    impl Zeroed<AtomicU64> {
        pub fn new(len: usize) -> std::io::Result<Self> {
            Ok(Self((0..len).map(|_| AtomicU64::new(0)).collect()))
        }

        pub fn populate(&self, _: std::ops::Range<usize>) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<T> std::ops::Deref for Zeroed<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }

    pub fn prefetch<T>(_: &T) {}
}

/// The order of locks is the business of debug builds of the engine.
pub mod locks {
    use crate::sync;

    #[repr(u8)]
    pub enum Rank {
        Checkpointer,
        Gate,
    }

    pub struct Held;

    impl Held {
        pub fn wait(_: Rank, _: usize) -> Self {
            Self
        }

        pub fn lend(&self, f: impl FnOnce()) {
            f();
        }
    }

    pub struct Mutex<const RANK: u8, T>(sync::Mutex<T>);

    impl<const RANK: u8, T> Mutex<RANK, T> {
        pub fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub fn lock(&self) -> sync::MutexGuard<'_, T> {
            self.0.lock()
        }
    }
}

/// Bugs on purpose are for the engine's tests.
pub mod planted {
    pub enum Bug {
        ChangedAgainForgotten,
    }

    pub fn planted(_: Bug) -> bool {
        false
    }
}

/// No test with turns is running.
pub mod schedule {
    pub fn is_on() -> bool {
        false
    }

    pub fn wait_for_others() {}

    pub fn acquire<G>(_: impl Fn() -> Option<G>, wait: impl FnOnce() -> G) -> G {
        wait()
    }
}

/// The engine has 64 slots, and finds a thread's own in a thread-local variable. Here a model says which one a thread has.
pub mod thread_slot {
    pub(crate) use super::table::Table;

    pub const SLOTS: usize = 3;
    pub const SHARED: usize = SLOTS - 1;

    crate::tool::thread_local! {
        static SLOT: std::cell::Cell<usize> = std::cell::Cell::new(usize::MAX);
    }

    pub fn set_thread_slot(slot: usize) {
        SLOT.with(|own| own.set(slot));
    }

    pub fn thread_slot() -> usize {
        let slot = SLOT.with(std::cell::Cell::get);
        assert!(slot < SLOTS, "a model's thread has its slot before it enters");
        slot
    }
}
