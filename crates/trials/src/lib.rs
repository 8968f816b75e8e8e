//! Trials: the engine under power cuts, failing devices, full volumes and hostile images, judged by `sim`'s model and by
//! `check`.
//!
//! ```text
//! table      which volumes: every set of choices in this build, with every order
//!
//! model      the same operations on the engine and on the model
//! crash      every state that losing power can leave
//! fault      every request of a run fails, is short, or lies
//! paused     a checkpoint held in the middle while other threads work
//! schedules  threads that meet in the same files, in an order that a seed decides
//! full       volumes filled to the last block
//! hostile    volumes damaged on purpose, by somebody who knows the format
//! damage     each field of each structure at its limits, each block torn or gone
//! planted    bugs on purpose, and who finds them
//! replay     one run again, by its name
//! report     all of it, in numbers
//!
//! setup, machine, nodes, convert, tree     a volume in memory, and the engine as a machine that runs `sim`'s steps
//! verdict                                  what the checker says; panics as errors
//! ```
//!
//! For tests, for `fuzz/` and for `scripts/reliability` only; nothing that is shipped depends on it.
//!
//! It is a crate of its own above the engine because `sim` must not know the engine, and because the report is a command with
//! options that ends after a given time, which a test program cannot be. The engine's tests have it as a dev-dependency. Cargo
//! allows that circle, since the engine linked here is built without its tests; but crates with such a circle cannot be published
//! one by one.

#![forbid(unsafe_code)]

mod convert;
pub mod crash;
pub mod damage;
pub mod fault;
pub mod full;
pub mod hostile;
pub mod machine;
pub mod model;
mod nodes;
pub mod paused;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod replay;
pub mod report;
pub mod schedules;
pub mod setup;
pub mod table;
pub mod tree;
pub mod verdict;
