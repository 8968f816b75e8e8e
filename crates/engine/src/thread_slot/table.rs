//! Which slots are taken.

use crate::sync::{AtomicU64, Ordering};

/// Slots below `SHARED`, each of one thread at a time, and the slot `SHARED`, of all for whom there is none of those.
pub(crate) struct Table<const SHARED: usize> {
    /// Bit N: some living thread has slot N to itself.
    pub taken: AtomicU64,
}

impl<const SHARED: usize> Table<SHARED> {
    pub const NONE_TAKEN: u64 = 1 << SHARED;

    /// What a slot's last thread did there is before what its next thread does: the gate's counters are left by a plain store.
    pub fn take(&self) -> usize {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let free = taken.trailing_ones() as usize;
            if free >= SHARED {
                return SHARED;
            }
            match self.taken.compare_exchange_weak(taken, taken | 1 << free, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return free,
                Err(now) => taken = now,
            }
        }
    }

    /// By the thread that took it, which does not use it again. The shared one, and what is no slot, is nobody's to give back.
    pub fn give_back(&self, slot: usize) {
        if slot < SHARED {
            self.taken.fetch_and(!(1 << slot), Ordering::AcqRel);
        }
    }
}
