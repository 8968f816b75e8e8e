//! Directories of kind `btree`: entries in the body of the inode, or in the leaves of a tree.

mod check;
mod repair;

pub(crate) use check::for_each_entry;
pub(super) use check::{check, entries_again};
