//! Group commit: whoever wants a sync waits for the checkpoint that is being made, and then usually finds its changes durable.
//!
//! An operation changes things inside the gate, and so belongs to the epoch that is open meanwhile. An epoch ends behind the closed
//! gate. So if a thread asks for the open epoch's number after its operation, it gets that of the operation's epoch or a later one;
//! and once this epoch is durable, so is the operation.

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
