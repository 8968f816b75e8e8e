//! Devices that fail, devices that lie, and space that runs out: in a run of operations the nth request of one kind goes
//! wrong, or the nth allocation is refused, for every n.
//!
//! ```text
//! run       one run with one fault, and what may come of it
//! campaign  every fault of many runs, on several threads
//! ```

pub mod campaign;
pub mod run;
