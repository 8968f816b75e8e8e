//! Volumes of every row of the table of trials filled to the last block, by one thread and by two.

use myriad_engine::Allocation;
use myriad_sim::rng;
use myriad_trials::full::{Filling, fill};
use myriad_trials::table;

fn check(allocation: Allocation, block_size: u32, threads: usize) {
    // By two threads on all; the report has fillings by one.
    let rows = table::asked().into_iter().filter(|row| row.is_default() || threads > 1 || rng::is_long());
    for (number, row) in rows.enumerate() {
        // The short form fills a volume that is not the default in one way, another one for each row.
        let all = &Filling::ALL[..];
        let fillings = if row.is_default() || rng::is_long() { all } else { &all[number % all.len()..][..1] };
        for &filling in fillings {
            let filled = fill(row, filling, allocation, block_size, threads);
            let accepted = filled.unwrap_or_else(|message| panic!("{}, {filling:?}: {message}", row.name()));
            println!("{}, {filling:?}: {accepted} accepted", row.name());
        }
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
