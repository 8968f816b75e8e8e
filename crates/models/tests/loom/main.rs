//! The models under loom, which runs every interleaving of the threads up to a bound of switches, and lets each load return
//! every value that the memory model allows. `docs/design/concurrency-models.md` says which faults it has found, and which not.

#[path = "../engine/mod.rs"]
mod engine;
#[path = "../models/mod.rs"]
mod models;
#[path = "../engine/parking.rs"]
mod parking;
mod sync;
mod tool;

use engine::{cache, locks, planted, schedule, thread_slot};
