//! Inode locks, hashed onto stripes.

use super::Volume;
use crate::locks::{RwLockReadGuard, RwLockWriteGuard};
use myriad_format::Ino;

/// Inode locks. Inodes share a lock by hash; an operation that needs several takes them in the order of their stripes,
/// each once.
pub(super) const STRIPES: usize = 4096;

/// The locks of two inodes, which may be one.
pub type TwoLocks<'a> = (RwLockWriteGuard<'a, ()>, Option<RwLockWriteGuard<'a, ()>>);

impl Volume {
    #[inline]
    fn stripe(&self, ino: Ino) -> usize {
        (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize
    }

    /// Locks one inode to look at it.
    #[inline]
    pub fn lock_shared(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        let stripe = self.stripe(ino);
        self.stripes[stripe].read_at(stripe)
    }

    /// Locks one inode to change it.
    #[inline]
    pub fn lock_exclusive(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        let stripe = self.stripe(ino);
        self.stripes[stripe].write_at(stripe)
    }

    /// Locks several inodes to change them, in lock order, each lock once.
    pub fn lock_many(&self, inos: &[Ino]) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut stripes: Vec<usize> = inos.iter().map(|&ino| self.stripe(ino)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.stripes[stripe].write_at(stripe)).collect()
    }

    /// Locks two inodes to change them, in lock order; the second lock is `None` if they share one.
    pub fn lock_two(&self, one: Ino, other: Ino) -> TwoLocks<'_> {
        let (one, other) = (self.stripe(one), self.stripe(other));
        let lock = |stripe: usize| self.stripes[stripe].write_at(stripe);
        let first = lock(one.min(other));
        (first, (one != other).then(|| lock(one.max(other))))
    }

    /// Locks `second` while `first` is locked: `None` if that is not possible without waiting out of order, and `first`
    /// must be let go. `Some(None)`: they share a lock.
    pub fn lock_further(&self, first: Ino, second: Ino) -> Option<Option<RwLockWriteGuard<'_, ()>>> {
        let (held, wanted) = (self.stripe(first), self.stripe(second));
        if held == wanted {
            Some(None)
        } else if wanted > held {
            Some(Some(self.stripes[wanted].write_at(wanted)))
        } else {
            self.stripes[wanted].try_write_at(wanted).map(Some)
        }
    }
}
