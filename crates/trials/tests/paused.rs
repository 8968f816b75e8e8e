//! The checkpointer is held at each of its requests while other threads work.

use myriad_sim::rng;
use myriad_trials::crash::known::{Counts, Known};
use myriad_trials::paused::{hold_everywhere, holds};
use myriad_trials::table;

#[test]
fn operations_beside_a_held_checkpoint() {
    let first = rng::seed_or(1);
    let runs = if rng::number("MYRIAD_SEED").is_some() {
        1
    } else if rng::is_long() {
        60
    } else {
        3
    };
    let (contents, counts) = (Known::default(), Counts::default());
    for row in table::asked().into_iter().filter(holds) {
        let runs = if row.is_default() || rng::is_long() { runs } else { 1 };
        for seed in first..first + runs {
            let held = hold_everywhere(row, seed, &contents, &counts).unwrap_or_else(|message| panic!("{message}"));
            assert!(held > 4, "{}: a checkpoint has more requests than {held}", row.name());
        }
    }
    println!("{} states", counts.distinct());
}
