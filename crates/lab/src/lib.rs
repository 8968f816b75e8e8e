//! The lab: what does a file-system idea cost, measured side by side?
//!
//! ```text
//! workloads   seed in, operations out: no clock, no I/O, the same sequence for every target
//! targets     what is measured: a volume in process, a directory through system calls, an SQLite database
//! provider    makes a target anew for each run, and takes it away
//! schedule    rounds, interleaved
//! runner      prepare a known state, run a phase, time it with its final sync, read the counters
//! slowdown    a planted slowdown: some percent more around each call of one operation
//! stats       medians and intervals: pure functions
//! report      samples into tables and JSON lines
//! compare     kernel file systems on loop devices beside a volume, interleaved; leaves nothing behind
//! mount_floor a mounted volume beside a FUSE server that does nothing
//! recovery    opening and checking volumes whose log is full
//! provenance  where a result comes from: commit, kernel, machine
//! disk        modelled devices: what the same requests take on a disk of 2001
//! tools       benchmarks of others: started, watched, held to what the target shows
//! experiment  suites, factors, cells: the verb `myriad lab`
//! interrupt   signals that ask long work to stop and to clean up
//! numbers     counts and sizes as people write them
//! cli         the verb `myriad bench`
//! ```
//!
//! Rules: device operations and blocks touched first (they are exact), seconds second; every sample is kept; a target
//! that cannot do a phase shows a dash there, never something easier.
#![forbid(unsafe_code)]

pub mod cli;
pub mod compare;
pub mod disk;
pub mod experiment;
pub mod interrupt;
pub mod mount_floor;
mod numbers;
pub mod provenance;
pub mod provider;
pub mod recovery;
pub mod report;
pub mod runner;
pub mod schedule;
pub mod slowdown;
pub mod stats;
pub mod targets;
pub mod tools;
pub mod workloads;
