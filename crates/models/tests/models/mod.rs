//! The models: a few threads that use one structure of the engine at the same time, and what must hold whatever way they meet.

mod gate;
mod group_commit;
mod holds;
mod latch;
mod name_cache;
mod unwritten;
mod wake;

use crate::sync::{AtomicU64, Ordering};
use crate::thread_slot::set_thread_slot;
use crate::tool::thread;

/// For loom: threads may be stopped any number of times (`tool::explore`).
pub const ALL: usize = usize::MAX;

/// A thread of a model that has this slot at the gate.
fn spawn(slot: usize, work: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        set_thread_slot(slot);
        work();
    })
}

/// Adds by a load and a store that order nothing: for cells that only one thread at a time may touch. If two do so after all, or one
/// of them does not see what was stored last, then the sum in the end is too small.
fn add(cell: &AtomicU64, number: u64) {
    cell.store(cell.load(Ordering::Relaxed) + number, Ordering::Relaxed);
}

fn get(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}
