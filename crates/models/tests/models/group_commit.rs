//! Group commit (`engine/src/order/group_commit.rs`) through the gate. The checkpointer is the model's own: it takes what was changed
//! behind the closed gate, and writes it after that, which may fail once for want of room.
//!
//! Asserted:
//!   1. Once `commit_through` of an operation's epoch has answered OK, what the operation did is on the device, and stays there.
//!   2. At most one checkpoint is being made.
//!   3. An epoch does not end while somebody is inside.
//!   4. Nobody waits for ever. Who finds his epoch durable makes no checkpoint.

use super::{ALL, add, get, spawn};
use crate::engine::gate::Gate;
use crate::engine::group_commit::{EpochNumber, commit_through};
use crate::locks::{Mutex, Rank};
use crate::sync::{AtomicU64, Ordering, yield_now};
use crate::thread_slot::SHARED;
use crate::tool::{COMMITTERS as THREADS, ROUNDS, explore};
use std::sync::Arc;

struct Checkpointer {
    /// Epochs below this one are durable.
    durable: u64,
    /// A closed epoch that is not, and what was changed until it ended.
    pending: Option<(u64, [u64; THREADS])>,
    /// Whether the next write fails.
    is_full: bool,
    runs: u64,
}

struct HostFull;

struct Volume {
    gate: Gate,
    epoch: EpochNumber,
    checkpointer: Mutex<{ Rank::Checkpointer as u8 }, Checkpointer>,
    /// How many operations each thread has done, in memory and on the device.
    changed: [AtomicU64; THREADS],
    device: [AtomicU64; THREADS],
    running: AtomicU64,
}

impl Volume {
    fn new(is_full: bool) -> Arc<Self> {
        let numbers = || std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Self {
            gate: Gate::new(),
            epoch: EpochNumber::new(),
            checkpointer: Mutex::new(Checkpointer { durable: 1, pending: None, is_full, runs: 0 }),
            changed: numbers(),
            device: numbers(),
            running: AtomicU64::new(0),
        })
    }

    fn operate(&self, thread: usize) {
        let _inside = self.gate.enter(0);
        let epoch = self.epoch.current();
        add(&self.changed[thread], 1);
        assert_eq!(self.epoch.current(), epoch, "an epoch ended while somebody was inside");
    }

    /// As `Volume::commit_now`.
    fn commit_now(&self) -> Result<bool, HostFull> {
        let epoch = self.epoch.current();
        let run = |checkpointer: &mut Checkpointer| {
            assert!(checkpointer.durable <= epoch, "a checkpoint of what is durable");
            checkpointer.run(self)
        };
        commit_through(&self.checkpointer, epoch, |checkpointer| checkpointer.durable, run)
    }

    /// Operations that are committed each, as `File::sync` does.
    fn work(&self, thread: usize) {
        for done in 1..=ROUNDS {
            self.operate(thread);
            if self.commit_now().is_err() {
                assert!(self.commit_now().is_ok(), "only one write fails");
            }
            assert_eq!(get(&self.device[thread]), done, "it is on the device");
        }
    }
}

impl Checkpointer {
    fn run(&mut self, volume: &Volume) -> Result<(), HostFull> {
        assert_eq!(get(&volume.running), 0, "two checkpoints at the same time");
        volume.running.store(1, Ordering::Relaxed);
        self.runs += 1;
        let result = self.run_both(volume);
        volume.running.store(0, Ordering::Relaxed);
        result
    }

    /// What failed before, and then the open epoch.
    fn run_both(&mut self, volume: &Volume) -> Result<(), HostFull> {
        if self.pending.is_some() {
            self.finish(volume)?;
        }
        let closed = volume.gate.close();
        let changed = volume.changed.each_ref().map(get);
        self.pending = Some((volume.epoch.advance(&closed), changed));
        drop(closed);
        self.finish(volume)
    }

    fn finish(&mut self, volume: &Volume) -> Result<(), HostFull> {
        yield_now();
        if std::mem::take(&mut self.is_full) {
            return Err(HostFull);
        }
        let (number, changed) = self.pending.take().expect("an epoch is closed");
        for (device, changed) in volume.device.iter().zip(changed) {
            assert!(get(device) <= changed, "what was durable is there");
            device.store(changed, Ordering::Relaxed);
        }
        self.durable = number + 1;
        Ok(())
    }
}

fn commit_each(is_full: bool) {
    let volume = Volume::new(is_full);
    let threads: [_; THREADS] = std::array::from_fn(|thread| {
        let volume = volume.clone();
        spawn(thread.min(SHARED), move || volume.work(thread))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let runs = volume.checkpointer.lock().runs;
    assert!(runs <= THREADS as u64 * ROUNDS + u64::from(is_full), "{runs} checkpoints");
}

#[test]
fn who_commits_finds_his_changes_durable() {
    explore(ALL, || commit_each(false));
}

#[test]
fn a_checkpoint_that_failed_is_made_again() {
    explore(5, || commit_each(true));
}
