//! Chunks of inode blocks, and the tree of a group that records them (`inodes=dynamic`).

mod check;
mod repair;

pub(super) use check::{check_group, read_block};
pub(crate) use repair::ChunkRecords;
