//! Volumes filled to the last block, by one thread and by two.

use myriad_engine::Allocation;
use myriad_trials::full::{Filling, fill};

fn check(allocation: Allocation, block_size: u32, threads: usize) {
    for filling in Filling::ALL {
        let filled = fill(filling, allocation, block_size, threads);
        let accepted = filled.unwrap_or_else(|message| panic!("{filling:?}: {message}"));
        println!("{filling:?}: {accepted} accepted");
    }
}

#[test]
fn by_one_thread_with_delayed_allocation() {
    check(Allocation::Delayed, 1024, 1);
}

#[test]
fn by_one_thread_with_allocation_at_write() {
    check(Allocation::AtWrite, 4096, 1);
}

#[test]
fn by_two_threads() {
    check(Allocation::Delayed, 4096, 2);
}
