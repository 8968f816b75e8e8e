//! Directories of kind `slots`: slots of one size, in extents that count what they hold.

mod check;
mod repair;

pub(crate) use check::for_each_entry;
pub(super) use check::{check, entries_again};
