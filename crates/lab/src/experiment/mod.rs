//! Experiments: a suite of workloads on several targets, with options flipped, run in random order, every sample kept.
//!
//! ```text
//! suites     the workloads of the papers and of today, by name and scale
//! factors    options as factors: which choices, and all their combinations
//! places     targets by name: what makes one anew for each cell
//! cells      what runs in which order: suite x target x combination, in every run
//! run        runs cells, checks what they did, writes samples
//! results    the file of samples, and going on where it ends
//! twins      a target against itself, and against itself with a slowdown: the noise, and what is found
//! replay     what the devices of cells were asked, recorded, and what other devices would take for it
//! rows       what a row of a table is about, and the order of rows
//! audit      how many names there should be after what a workload did, and how many there are
//! analysis   the way to the program that makes a page of samples
//! memory     takes memory away from the machine, so that kernel and user space have the same
//! cli        the verb `myriad lab`
//! ```
//!
//! Invariants
//!   1. What this build does not have is left out and said so, never replaced by something that it has.
//!   2. A sample is written only if the target holds as many names after its cell as the workload says it left.
//!   3. All samples of a cell are written at once. A file that was cut short loses the last cell, and nothing else.

mod analysis;
mod audit;
mod cells;
pub mod cli;
mod factors;
mod memory;
mod places;
mod replay;
mod results;
mod rows;
mod run;
mod suites;
mod twins;

pub use audit::Ledger;
pub use cells::{Cell, Combination, cells};
pub use factors::{Absent, Factor, factors};
pub use places::{Place, Places};
pub use results::{Header, Line};
pub use run::{Experiment, Outcome};
pub use suites::{Item, SUITES, Scale, Suite, Work};
pub use twins::Twin;
