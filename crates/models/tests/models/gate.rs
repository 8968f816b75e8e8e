//! The gate (`engine/src/cache/gate.rs`), and the slots that threads have there (`engine/src/thread_slot/table.rs`).
//!
//! Asserted:
//!   1. While the gate is closed nobody is inside: no operation is half done.
//!   2. Who closes it sees what was done inside before, and who enters later sees what was done while it was closed. Two who
//!      close it take turns.
//!   3. Everybody who wants in or wants to close gets there: no deadlock, no lost wake-up.
//!   4. Of two who reserve space and then look, at least one sees both; a reservation is seen until what became of it is.
//!   5. All this holds for threads that share a slot, and for those that come to a slot after its last thread.

use super::{ALL, add, get, spawn};
use crate::engine::gate::{Gate, LIGHT_MAX};
use crate::sync::{AtomicU64, Ordering};
use crate::thread_slot::{SHARED, Table};
use crate::tool::{ROUNDS, explore};
use std::sync::Arc;

/// What one operation changes, in two parts.
struct Changed {
    first: AtomicU64,
    second: AtomicU64,
}

struct Volume {
    gate: Gate,
    changed: [Changed; 2],
}

impl Volume {
    fn new() -> Arc<Self> {
        let changed = || Changed { first: AtomicU64::new(0), second: AtomicU64::new(0) };
        Arc::new(Self { gate: Gate::new(), changed: [changed(), changed()] })
    }

    /// An operation of thread `number`.
    fn operate(&self, number: usize) {
        // Without a weight: in the shared slot that would be added to one sum more, whose fences would hide a leaving that orders nothing.
        let _inside = self.gate.enter(0);
        add(&self.changed[number].first, 1);
        add(&self.changed[number].second, 1);
    }

    /// What a checkpoint does: it looks at everything, and changes it.
    fn checkpoint(&self) {
        let _closed = self.gate.close();
        for changed in &self.changed {
            assert_eq!(get(&changed.first), get(&changed.second), "an operation is half done");
            add(&changed.first, 100);
            add(&changed.second, 100);
        }
    }

    /// Once all have ended.
    fn expect(&self, number: usize, operations: u64, checkpoints: u64) {
        let changed = &self.changed[number];
        let sums = (get(&changed.first), get(&changed.second));
        let expected = operations + 100 * checkpoints;
        assert_eq!(sums, (expected, expected), "a change was lost");
    }
}

/// Two threads with these slots operate while a third one makes a checkpoint.
fn two_inside(slots: [usize; 2]) {
    let volume = Volume::new();
    let threads = [0, 1].map(|number| {
        let volume = volume.clone();
        spawn(slots[number], move || (0..ROUNDS).for_each(|_| volume.operate(number)))
    });
    (0..ROUNDS).for_each(|_| volume.checkpoint());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(volume.gate.weight(), 0);
    (0..2).for_each(|number| volume.expect(number, ROUNDS, ROUNDS));
}

#[test]
fn nobody_is_inside_while_closed() {
    explore(3, || two_inside([0, 1]));
}

#[test]
fn nobody_is_inside_while_closed_in_the_shared_slot() {
    explore(3, || two_inside([SHARED, SHARED]));
}

#[test]
fn who_enters_again_is_seen_again() {
    explore(5, || {
        let volume = Volume::new();
        let thread = {
            let volume = volume.clone();
            spawn(0, move || (0..2 * ROUNDS).for_each(|_| volume.operate(0)))
        };
        (0..2 * ROUNDS).for_each(|_| volume.checkpoint());
        thread.join().unwrap();
        volume.expect(0, 2 * ROUNDS, 2 * ROUNDS);
    });
}

#[test]
fn two_who_close_take_turns() {
    explore(4, || {
        let volume = Volume::new();
        let operating = {
            let volume = volume.clone();
            spawn(0, move || (0..ROUNDS).for_each(|_| volume.operate(0)))
        };
        let closing = {
            let volume = volume.clone();
            spawn(1, move || (0..ROUNDS).for_each(|_| volume.checkpoint()))
        };
        (0..ROUNDS).for_each(|_| volume.checkpoint());
        operating.join().unwrap();
        closing.join().unwrap();
        volume.expect(0, ROUNDS, 2 * ROUNDS);
    });
}

/// The first thread ends, and the second gets its slot; or both live at the same time, and one of them is in the shared slot.
#[test]
fn a_slot_goes_from_thread_to_thread() {
    explore(3, || {
        let volume = Volume::new();
        let table = Arc::new(Table::<SHARED> { taken: AtomicU64::new(Table::<SHARED>::NONE_TAKEN) });
        assert_eq!(table.take(), 0, "the thread of the checkpoint has the other one");
        let threads = [0, 1].map(|number| {
            let (volume, table) = (volume.clone(), table.clone());
            crate::tool::thread::spawn(move || {
                let slot = table.take();
                crate::thread_slot::set_thread_slot(slot);
                (0..ROUNDS).for_each(|_| volume.operate(number));
                table.give_back(slot);
            })
        });
        (0..ROUNDS).for_each(|_| volume.checkpoint());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((volume.gate.weight(), table.take()), (0, 1), "nobody is inside, and the slot is free");
        (0..2).for_each(|number| volume.expect(number, ROUNDS, ROUNDS));
    });
}

/// As `Volume::begin_scarce` takes space, of which there is enough for one.
fn reserve(slots: [usize; 2], blocks: u32, reserved: fn(&Gate) -> u64) {
    let gate = Arc::new(Gate::new());
    let ready = Arc::new(AtomicU64::new(u64::from(blocks)));
    let threads = [0, 1].map(|number| {
        let (gate, ready) = (gate.clone(), ready.clone());
        spawn(slots[number], move || {
            let _inside = gate.enter(blocks);
            let under_way = reserved(&gate);
            if ready.load(Ordering::SeqCst) >= under_way {
                let before = ready.fetch_sub(u64::from(blocks), Ordering::Relaxed);
                assert!(before >= u64::from(blocks), "two have taken the same space");
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((gate.weight(), gate.heavy()), (0, 0));
}

#[test]
fn two_who_reserve_see_each_other() {
    explore(ALL, || reserve([0, 1], 10, Gate::weight));
}

/// By the sum alone, which has all that is in the shared slot.
#[test]
fn two_who_reserve_in_the_shared_slot_see_each_other() {
    explore(ALL, || reserve([SHARED, SHARED], 10, Gate::heavy));
}

/// By the sum alone, which has what is beyond a light weight.
#[test]
fn two_who_reserve_much_see_each_other() {
    explore(ALL, || {
        reserve([0, 1], 3 * LIGHT_MAX, |gate| gate.heavy() + u64::from(LIGHT_MAX));
    });
}
