//! Devices that fail and devices that lie: in a run of operations the nth request of one kind goes wrong, for every n.
//!
//! ```text
//! run       one run with one fault, and what may come of it
//! campaign  every fault of many runs, on several threads
//! ```

pub mod campaign;
pub mod run;
