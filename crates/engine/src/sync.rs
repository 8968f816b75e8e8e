//! What the structures that threads share without a lock are built from: atomics, fences, locks, and ways to wait.
//!
//! Here these are the standard library's and parking_lot's, by another name. The files that take them from here are compiled a second
//! time by `crates/models`, where `crate::sync` has those of loom or of shuttle instead, which run every meeting of a few threads, or
//! very many. So such a file names nothing of `std::sync` or `parking_lot` itself, has its unit tests in another file, and of the
//! engine uses only what `crates/models/tests/engine/mod.rs` lists.

pub(crate) use parking_lot::lock_api::RawRwLock as RawLock;
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RawRwLock};
pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::thread::{sleep, yield_now};
