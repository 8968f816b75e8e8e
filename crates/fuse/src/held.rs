//! Files without a name that the kernel still uses: their space comes back a moment after they were removed.
//!
//! To a program, a file's space is free when `unlink` has returned and nobody has the file open. Through FUSE it is free
//! later: the kernel tells of the last close (RELEASE) and of having dropped the inode (FORGET) without waiting for either,
//! and hands out up to eight other requests before a FORGET. On a full volume, `rm old && cp new .` could fail for that, as
//! it does on no local file system. So a request that finds no space waits a little, if a file was removed just now.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A file removed longer ago than this is one that a program has open.
const RECENT: Duration = Duration::from_secs(1);
/// Most that one request waits. When all serving threads wait, nobody reads the FORGET, and this ends it.
const PATIENCE: Duration = Duration::from_millis(500);

pub struct Held {
    count: AtomicU64,
    began: Instant,
    /// When the latest one lost its name: milliseconds after `began`.
    latest: AtomicU64,
    /// How many were let go of.
    released: Mutex<u64>,
    one_more: Condvar,
}

impl Held {
    pub fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            began: Instant::now(),
            latest: AtomicU64::new(0),
            released: Mutex::default(),
            one_more: Condvar::new(),
        }
    }

    fn elapsed_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// A file is without a name, and the kernel has it.
    pub fn add(&self) {
        self.latest.store(self.elapsed_ms(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The engine has let go of one.
    pub fn remove(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        *self.released.lock() += 1;
        self.one_more.notify_all();
    }

    fn may_soon_release(&self) -> bool {
        let age = self.elapsed_ms().saturating_sub(self.latest.load(Ordering::Relaxed));
        self.count.load(Ordering::Relaxed) > 0 && u128::from(age) < RECENT.as_millis()
    }

    /// Does `again` what found no space, when space may have come back; until it says that it found some, or no more is to be
    /// expected soon.
    pub fn retry(&self, mut again: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let is_last = !self.may_soon_release();
            let seen = *self.released.lock();
            // At least once: the last one may have been let go of since.
            // Others may let files go for as long as they please.
            if again() || is_last || Instant::now() >= deadline {
                return;
            }
            let mut released = self.released.lock();
            while *released == seen {
                if self.one_more.wait_until(&mut released, deadline).timed_out() {
                    return;
                }
            }
        }
    }
}
