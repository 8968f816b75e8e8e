//! Reliability: the engine under power cuts, failing devices and full volumes, judged by `sim`'s model and by `check`.
//!
//! ```text
//! setup, machine     a volume in memory, and the engine as a machine that runs `sim`'s steps
//! verdict            what the checker says; panics as errors
//! ```
//!
//! For tests and for `scripts/reliability` only; nothing that is shipped depends on it.

#![forbid(unsafe_code)]

mod convert;
pub mod crash;
pub mod fault;
pub mod full;
pub mod machine;
mod nodes;
pub mod setup;
pub mod tree;
pub mod verdict;
