//! Directories of kind `indexed`: entry blocks, the list of those with room, and the index.

mod blocks;
pub(super) mod build;
mod check;
mod index;
mod repair;

pub(super) use blocks::position;
pub(super) use check::{check, entries_again};
