//! Power cuts: runs are recorded, every state that they can leave on the medium is made, recovered by the engine, held
//! against the oracle (`sim::crash`) and looked at by the checker.
//!
//! ```text
//! base      volumes that runs start from
//! trace     a recording of all devices of a volume; states, each with a hash of its contents
//! plan      which states are made
//! explore   one run: record, make states, judge
//! known     states seen, and counts
//! classes   which runs there are
//! campaign  many of them, on several threads
//! ```

mod background;
pub mod base;
pub mod campaign;
pub mod classes;
pub mod explore;
pub mod known;
pub mod plan;
pub mod trace;
