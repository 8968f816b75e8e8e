//! A number for each thread, small and its own as long as it lives, for what is kept a copy a thread: the gate's counters, an epoch's
//! lists, the counters of paths.

mod table;

use crate::sync::AtomicU64;
use std::cell::Cell;
pub(crate) use table::Table;

/// Numbers that there are. The last one is shared by all threads that come when the others are taken.
pub(crate) const SLOTS: usize = 64;
pub(crate) const SHARED: usize = SLOTS - 1;

static TABLE: Table<SHARED> = Table { taken: AtomicU64::new(Table::<SHARED>::NONE_TAKEN) };

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
        TABLE.give_back(SLOT.replace(SHARED));
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
    let slot = TABLE.take();
    // A thread that is ending already has nobody to give the slot back.
    if TENANT.try_with(|_| SLOT.set(slot)).is_err() {
        TABLE.give_back(slot);
        SLOT.set(SHARED);
        return SHARED;
    }
    slot
}
