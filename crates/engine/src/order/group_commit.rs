//! Group commit: a thread that wants to sync waits for the checkpoint that another thread is making, and then usually finds that its own
//! changes are durable.
//!
//! Why one number is enough: an operation makes its changes inside the gate, so they belong to the epoch that is open at that time, and an
//! epoch ends only while the gate is closed. A thread that asks for the number of the open epoch after its operation gets that epoch's number or
//! a later one. Once the epoch of that number is durable, so is the operation.
//!
//! For example, thread A changes a file in epoch 7 and asks: it gets 7. While B writes epoch 6, A waits; then A closes and writes epoch 7. Thread C,
//! whose changes are in epoch 7 as well, waits for A and finds 7 durable: it writes nothing.

use crate::cache::Closed;
use crate::locks::{Mutex, Rank};
use crate::sync::{AtomicU64, Ordering};

/// Number of the open epoch: those below are closed.
pub(crate) struct EpochNumber(AtomicU64);

impl EpochNumber {
    /// The first epoch is open.
    pub fn new() -> Self {
        Self(AtomicU64::new(1))
    }

    /// It stays the same for whoever is inside the gate.
    pub fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Ends the open epoch, whose number this is, and begins the next one.
    pub fn advance(&self, _: &Closed<'_>) -> u64 {
        self.0.fetch_add(1, Ordering::Release)
    }
}

/// Waits until `epoch` is durable, and has the checkpoint run if nobody else did. The checkpointer says below which number epochs are
/// durable; one run of it makes the open epoch durable, and all before it. Whether it ran.
pub(crate) fn commit_through<C, E>(
    checkpointer: &Mutex<{ Rank::Checkpointer as u8 }, C>,
    epoch: u64,
    durable: impl FnOnce(&C) -> u64,
    run: impl FnOnce(&mut C) -> Result<(), E>,
) -> Result<bool, E> {
    let mut checkpointer = checkpointer.lock();
    if durable(&checkpointer) > epoch {
        return Ok(false);
    }
    run(&mut checkpointer)?;
    Ok(true)
}
