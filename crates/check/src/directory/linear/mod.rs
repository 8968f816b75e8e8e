//! Directories of kind `linear`: units of 512 bytes, each with a checksum of its own, filled by their entries.

mod check;
mod repair;

pub(super) use check::{check, entries_again, for_each_entry};
pub(super) use repair::{append, runs, visit};

/// Directories of this kind lie in blocks alone.
pub(super) const MAY_HAVE_BODY: bool = false;
