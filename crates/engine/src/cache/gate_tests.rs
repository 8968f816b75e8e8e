//! The gate with real threads. `crates/models` has it with all meetings of a few.

use super::gate::{Gate, LIGHT_MAX, LIGHT_SUM_MAX};
use crate::thread_slot::{SHARED, SLOTS, thread_slot};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Taken in turn by tests with more threads than there are slots.
static ALL_SLOTS: Mutex<()> = Mutex::new(());

#[test]
fn weights_are_those_of_who_is_inside() {
    let gate = Gate::new();
    let mut first = gate.enter(24);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _second = gate.enter(u32::MAX >> 8);
            assert_eq!(gate.weight(), 24 + u64::from(u32::MAX >> 8));
        });
    });
    first.add_weight(8);
    assert_eq!(gate.weight(), 32);
    first.sub_weight(8);
    drop(first);
    assert_eq!(gate.weight(), 0);
    drop(gate.close());
}

#[test]
fn light_weights_are_bounded_and_heavy_ones_are_counted() {
    let _turn = ALL_SLOTS.lock();
    let gate = Gate::new();
    let mut entered = gate.enter(LIGHT_MAX);
    assert_eq!(gate.heavy(), if thread_slot() == SHARED { u64::from(LIGHT_MAX) } else { 0 });
    let light = gate.weight() - gate.heavy();
    entered.add_weight(1000);
    assert_eq!(gate.weight() - gate.heavy(), light);
    entered.sub_weight(1000);
    assert_eq!(gate.weight() - gate.heavy(), light);
    drop(entered);
    let barrier = std::sync::Barrier::new(2 * SLOTS);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2 * SLOTS)
            .map(|_| {
                scope.spawn(|| {
                    let _inside = gate.enter(2 * LIGHT_MAX);
                    barrier.wait();
                    assert!(gate.weight() <= gate.heavy() + LIGHT_SUM_MAX);
                    barrier.wait();
                })
            })
            .collect();
        // The scope itself does not wait until their slots are given back.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!((gate.weight(), gate.heavy()), (0, 0));
}

#[test]
fn threads_that_live_at_the_same_time_share_no_slot_but_the_last() {
    let _turn = ALL_SLOTS.lock();
    let barrier = Arc::new(std::sync::Barrier::new(SLOTS + 8));
    let round = || {
        let threads: Vec<_> = (0..SLOTS + 8)
            .map(|_| {
                let barrier = barrier.clone();
                std::thread::spawn(move || {
                    let slot = thread_slot();
                    barrier.wait();
                    slot
                })
            })
            .collect();
        let mut slots: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        slots.sort_unstable();
        let own = slots.partition_point(|&slot| slot < SHARED);
        slots.truncate(own);
        let count = slots.len();
        slots.dedup();
        assert_eq!(slots.len(), count, "{slots:?}");
        count
    };
    // Other tests run beside this one and have some; what ended threads had is there again.
    for _ in 0..4 {
        assert!(round() > SHARED / 2);
    }
}

#[test]
fn nobody_is_inside_while_closed() {
    let gate = Arc::new(Gate::new());
    let inside = Arc::new(AtomicU32::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (gate, inside, stop) = (gate.clone(), inside.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let entered = gate.enter(3);
                    inside.fetch_add(1, Ordering::Relaxed);
                    inside.fetch_sub(1, Ordering::Relaxed);
                    drop(entered);
                }
            })
        })
        .collect();
    for _ in 0..1000 {
        let closed = gate.close();
        assert_eq!(inside.load(Ordering::Relaxed), 0);
        drop(closed);
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
}
