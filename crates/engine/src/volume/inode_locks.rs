//! Inode locks, hashed onto stripes.

use super::Volume;
use crate::locks::{RwLockReadGuard, RwLockWriteGuard};
use myriad_format::Ino;

/// Inode locks. Inodes share a lock by hash; an operation that needs several takes them in the order of their stripes,
/// each once.
pub(super) const STRIPES: usize = 4096;

/// The locks of two inodes, which may be one.
pub type TwoLocks<'a> = (RwLockWriteGuard<'a, ()>, Option<RwLockWriteGuard<'a, ()>>);

/// The locks of several inodes, each with its stripe.
pub struct ManyLocks<'a>([Option<(usize, RwLockWriteGuard<'a, ()>)>; 6]);

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
    pub fn lock_many(&self, inos: [Option<Ino>; 4]) -> ManyLocks<'_> {
        let mut stripes = inos.map(|ino| ino.map_or(STRIPES, |ino| self.stripe(ino)));
        // Mostly two of one directory, and none beside: by hand, for a sort of any four takes longer than the locks.
        for end in 1..stripes.len() {
            for at in (1..=end).rev() {
                if stripes[at - 1] <= stripes[at] {
                    break;
                }
                stripes.swap(at - 1, at);
            }
        }
        let mut locks = ManyLocks([const { None }; 6]);
        let mut last = STRIPES;
        for (place, stripe) in locks.0.iter_mut().zip(stripes) {
            if stripe < STRIPES && stripe != last {
                *place = Some((stripe, self.stripes[stripe].write_at(stripe)));
                last = stripe;
            }
        }
        locks
    }

    /// Locks a further inode beside those of [`Self::lock_many`], up to two. False if that is not possible without waiting out of
    /// order.
    pub fn lock_also<'a>(&'a self, locks: &mut ManyLocks<'a>, ino: Ino) -> bool {
        let wanted = self.stripe(ino);
        let held = || locks.0.iter().flatten().map(|(stripe, _)| *stripe);
        if held().any(|stripe| stripe == wanted) {
            return true;
        }
        let is_last = held().all(|stripe| stripe < wanted);
        let lock = &self.stripes[wanted];
        let Some(guard) = (if is_last { Some(lock.write_at(wanted)) } else { lock.try_write_at(wanted) }) else {
            return false;
        };
        let place = locks.0.iter_mut().find(|place| place.is_none()).expect("two more than lock_many takes");
        *place = Some((wanted, guard));
        true
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
