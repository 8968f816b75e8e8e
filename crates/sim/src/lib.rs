//! Simulation: what the file system is compared with, and what it is fed.
//!
//! - [`model`]: a complete POSIX file system in plain maps, written from POSIX, the man pages and Linux' order of checks.
//! - [`op`]: operations and answers as plain data, shared by the model and by adapters for what is under test.
//! - [`generate`]: seeded operations; [`shrink`]: the fewest of them that still fail; [`threads`]: many runs on several threads.
//! - [`compare`]: answers and whole trees held against each other.
//! - [`crash`]: what may be found on a volume after power was lost; [`usable`]: the same without a log.
//! - [`host`]: the model held against a directory of the host, through system calls.
//!
//! Architecture invariant: this crate does not know the engine. Everything here is deterministic: same seed, same run
//! (the host aside).

#![forbid(unsafe_code)]

pub mod compare;
pub mod crash;
pub mod errno;
pub mod generate;
pub mod host;
pub mod model;
pub mod op;
pub mod pattern;
pub mod rng;
pub mod sequences;
pub mod shrink;
pub mod threads;
pub mod usable;

pub use errno::Errno;
