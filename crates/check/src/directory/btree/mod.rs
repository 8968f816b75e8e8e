//! Directories of kind `btree`: entries in the body of the inode, or in the leaves of a tree.

mod check;
mod repair;

pub(super) use check::{check, entries_again, for_each_entry};
pub(super) use repair::{append, runs, visit};

/// Directories of this kind may lie in the bodies of their inodes.
pub(super) const MAY_HAVE_BODY: bool = true;
