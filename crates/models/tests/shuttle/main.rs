//! The models under shuttle, which runs threads in orders drawn from a seed, many times. More threads that do more fit than under
//! loom, but each access to memory sees the last one before it. `docs/design/concurrency-models.md` says which faults it has found,
//! and which not.

#[path = "../engine/mod.rs"]
mod engine;
#[path = "../models/mod.rs"]
mod models;
#[path = "../engine/parking.rs"]
mod parking;
mod sync;
mod tool;

use engine::{cache, locks, planted, schedule, thread_slot};
