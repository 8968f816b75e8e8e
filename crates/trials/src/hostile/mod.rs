//! Hostile images: volumes that somebody damaged on purpose, and knew the format.
//!
//! ```text
//! bases      sound volumes, small, with every structure between them, some of them crashed
//! fields     where the fields of a block are, by the declarations in `myriad-format`
//! log_image  the same for the log, and its chain of checksums
//! mutate     damage, with its checksums made right: a seed in, an image out
//! device     a device that counts, and notes what must not happen
//! exercise   open, walk, read, change, check, repair
//! run        many of them, counted; a panic or a hang is a failure with the number of its mutant
//! ```

pub mod bases;
pub mod device;
pub mod exercise;
mod fields;
pub mod log_image;
pub mod mutate;
mod run;

pub use fields::{Field, fields_of};
pub use log_image::LogImage;
pub use run::{Config, Failure, Summary, run};

use myriad_engine::Result;
