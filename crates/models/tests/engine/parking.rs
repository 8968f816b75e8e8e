//! The locks of parking_lot, as far as the engine's files use them, made from the tool's, which are like the standard library's.

use crate::tool::sync as inner;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const NO_PANIC: &str = "no thread of a model panics and goes on";

pub struct Mutex<T>(inner::Mutex<T>);

/// The tool's guard. None only while its thread waits on a condition.
pub struct MutexGuard<'a, T>(Option<inner::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(inner::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect(NO_PANIC)))
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("its thread does not wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("its thread does not wait")
    }
}

pub struct Condvar(inner::Condvar);

impl Condvar {
    pub fn new() -> Self {
        Self(inner::Condvar::new())
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect("its thread does not wait");
        guard.0 = Some(self.0.wait(held).expect(NO_PANIC));
    }

    /// In a model an interval has passed at once.
    pub fn wait_for<T>(&self, _: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
        WaitTimeoutResult
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

pub struct WaitTimeoutResult;

impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        true
    }
}

/// The trait by which parking_lot's raw locks are taken.
pub trait RawLock {
    fn lock_shared(&self);
    fn lock_exclusive(&self);
    /// # Safety
    /// The caller has the lock, shared.
    unsafe fn unlock_shared(&self);
    /// # Safety
    /// The caller has the lock to himself.
    unsafe fn unlock_exclusive(&self);
}

/// How many share it; `EXCLUSIVE`: somebody has it to himself.
pub struct RawRwLock {
    holders: inner::Mutex<u32>,
    freed: inner::Condvar,
}

const EXCLUSIVE: u32 = u32::MAX;

impl RawRwLock {
    pub fn new() -> Self {
        Self { holders: inner::Mutex::new(0), freed: inner::Condvar::new() }
    }

    /// Waits until the holders are such that they can become what is returned.
    fn take(&self, with: impl Fn(u32) -> Option<u32>) {
        let mut holders = self.holders.lock().expect(NO_PANIC);
        loop {
            match with(*holders) {
                Some(now) => {
                    *holders = now;
                    return;
                }
                None => holders = self.freed.wait(holders).expect(NO_PANIC),
            }
        }
    }

    fn give(&self, without: impl Fn(u32) -> u32) {
        let mut holders = self.holders.lock().expect(NO_PANIC);
        *holders = without(*holders);
        self.freed.notify_all();
    }
}

impl RawLock for RawRwLock {
    fn lock_shared(&self) {
        self.take(|holders| (holders != EXCLUSIVE).then(|| holders + 1));
    }

    fn lock_exclusive(&self) {
        self.take(|holders| (holders == 0).then_some(EXCLUSIVE));
    }

    unsafe fn unlock_shared(&self) {
        self.give(|holders| holders - 1);
    }

    unsafe fn unlock_exclusive(&self) {
        self.give(|_| 0);
    }
}
