//! A number for each thread, small and its own as long as it lives, for what is kept a copy a thread: the gate's counters, an epoch's
//! lists, the counters of paths.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that there are. The last one is shared by all threads that come when the others are taken.
pub(crate) const SLOTS: usize = 64;
pub(crate) const SHARED: usize = SLOTS - 1;

/// Slots that some living thread has to itself.
static TAKEN: AtomicU64 = AtomicU64::new(1 << SHARED);

/// Not yet known.
const UNSET: usize = usize::MAX;

thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(UNSET) };
    static TENANT: Tenant = const { Tenant };
}

/// Gives a thread's slot back when the thread ends.
struct Tenant;

impl Drop for Tenant {
    fn drop(&mut self) {
        let slot = SLOT.replace(SHARED);
        if slot < SHARED {
            TAKEN.fetch_and(!(1 << slot), Ordering::AcqRel);
        }
    }
}

/// The calling thread's number among `SLOTS`, for anything else kept a copy a thread.
#[inline]
pub(crate) fn thread_slot() -> usize {
    let slot = SLOT.get();
    if slot == UNSET { take_slot() } else { slot }
}

#[cold]
fn take_slot() -> usize {
    let mut taken = TAKEN.load(Ordering::Relaxed);
    let slot = loop {
        let free = taken.trailing_ones() as usize;
        if free >= SHARED {
            break SHARED;
        }
        match TAKEN.compare_exchange_weak(taken, taken | 1 << free, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break free,
            Err(now) => taken = now,
        }
    };
    // A thread that is ending already has nobody to give the slot back.
    if TENANT.try_with(|_| SLOT.set(slot)).is_err() {
        if slot < SHARED {
            TAKEN.fetch_and(!(1 << slot), Ordering::AcqRel);
        }
        SLOT.set(SHARED);
        return SHARED;
    }
    slot
}
