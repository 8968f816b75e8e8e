//! Tables of data checksums.

mod check;
mod repair;

pub(crate) use check::{check_group, read_table};
pub(crate) use repair::accept;
