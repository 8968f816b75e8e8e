//! What tests of the check share: volumes written without the engine, and devices with somebody at them.
#![allow(dead_code, unused_imports, clippy::type_complexity, clippy::map_entry)]

mod builder;
mod directories;
mod finish;
mod image;
mod log;
mod meddled;
mod sample;
mod worn;

pub use builder::{Builder, RECORDS, SHAPE, SMALL, Shape, VOLUME};
pub use image::Image;
pub use log::{Logged, write_log};
pub use meddled::meddled;
pub use sample::{Sample, chain, sample, sample_later};
pub use worn::Worn;
