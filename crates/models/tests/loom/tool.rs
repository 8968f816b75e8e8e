//! What the models ask of the tool.

use crate::models::ALL;
use crate::sync::{Fences, set_fences};
pub use loom::sync;
pub use loom::thread;
pub use loom::thread_local;
use myriad_sim::rng::is_long;

/// Threads that commit at the same time.
pub const COMMITTERS: usize = 2;
/// How often a thread of a model does its work over.
pub const ROUNDS: u64 = 1;

/// Runs `model` in every way in which its threads can meet, if they are stopped where they could go on at most `preemptions` times
/// in a run, and once more in the long form. Without such a bound the larger models would take days, and most faults show with two or
/// three.
pub fn explore(preemptions: usize, model: fn()) {
    let more = if is_long() { 1 } else { 0 };
    for fences in [Fences::BeforeLoads, Fences::AfterStores] {
        set_fences(fences);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = (preemptions != ALL).then(|| preemptions + more);
        builder.max_branches = 100_000;
        builder.check(model);
    }
}
