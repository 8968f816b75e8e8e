//! Directories of kind `slots`: slots of one size, in extents that count what they hold.

mod check;
mod repair;

pub(super) use check::{check, entries_again, for_each_entry};
pub(super) use repair::{append, runs, visit};

/// Directories of this kind lie in blocks alone.
pub(super) const MAY_HAVE_BODY: bool = false;
