//! The two trees of a group's free extents, and its reserve (`space=btree`).

mod check;
mod repair;

pub(super) use check::read;
pub(super) use repair::{FreeTrees, free_nodes, pop};
