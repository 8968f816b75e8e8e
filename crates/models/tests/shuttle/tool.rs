//! What the models ask of the tool.

use myriad_sim::rng::is_long;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
pub use shuttle::sync;
pub use shuttle::thread;
pub use shuttle::thread_local;

/// Threads that commit at the same time.
pub const COMMITTERS: usize = 5;
/// How often a thread of a model does its work over.
pub const ROUNDS: u64 = 4;

/// How many orders are drawn, by each of the two ways to draw them.
const ORDERS: usize = 2_000;
const ORDERS_LONG: usize = 500_000;
/// Of one at random, each next step is any thread's. The other way (PCT; Burckhardt and others, 2010) lets one thread run until it
/// waits, but for so many changes: faults that need few switches at the right places are found by that.
const CHANGES: usize = 3;
const SEED: u64 = 0x6d79_7269_6164;

/// Runs `model` in many orders. The first number is for loom.
pub fn explore(_: usize, model: fn()) {
    let orders = if is_long() { ORDERS_LONG } else { ORDERS };
    run(RandomScheduler::new_from_seed(SEED, orders), model);
    run(PctScheduler::new_from_seed(SEED, CHANGES, orders), model);
}

fn run(scheduler: impl Scheduler + 'static, model: fn()) {
    let mut config = shuttle::Config::new();
    // It warns of orderings that it takes for stronger: of nearly all here.
    config.silence_warnings = true;
    shuttle::Runner::new(scheduler, config).run(model);
}
