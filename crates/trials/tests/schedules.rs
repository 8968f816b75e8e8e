//! Threads that meet in the same files, in orders drawn from seeds: on all rows, and by other seeds than those of the report.

use myriad_sim::rng;
use myriad_trials::schedules::meet_all;
use myriad_trials::table;
use std::sync::atomic::AtomicU64;

#[test]
fn threads_that_meet_in_files_lose_nothing() {
    let first = rng::seed_or(100_001);
    let runs = if rng::number("MYRIAD_SEED").is_some() {
        1
    } else if rng::is_long() {
        20_000
    } else {
        40
    };
    let states = AtomicU64::new(0);
    for row in table::asked() {
        let runs = if row.is_default() || rng::is_long() { runs } else { runs.min(3) };
        if let Some(message) = meet_all(row, first..first + runs, 2, &states, || false) {
            panic!("{message}");
        }
    }
    println!("{runs} meetings of the default, {} states after power loss", states.into_inner());
}
