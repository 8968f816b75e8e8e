//! Directories of kind `linear`: units of 512 bytes, each with a checksum of its own, filled by their entries.

mod check;
mod repair;

pub(crate) use check::for_each_entry;
pub(super) use check::{check, entries_again};
