//! Directories of kind `indexed`: entry blocks, the list of those with room, and the index.

mod blocks;
pub(super) mod build;
mod check;
mod index;
mod repair;

pub(super) use blocks::position;
pub(super) use check::{check, entries_again, for_each_entry, name_at};
pub(crate) use repair::Made;
pub(super) use repair::{append, runs, visit};

/// Directories of this kind may lie in the bodies of their inodes.
pub(super) const MAY_HAVE_BODY: bool = true;
