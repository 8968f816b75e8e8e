//! `crate::sync` of the engine's files under shuttle, for which each access to an atomic is sequentially consistent.

pub use crate::parking::{Condvar, Mutex, MutexGuard, RawLock, RawRwLock};
pub use shuttle::hint::spin_loop;
pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
pub use shuttle::thread::{sleep, yield_now};
