//! Myriad's engine.

mod attr_list;
mod btree;
mod cache;
mod counters;
mod dir;
mod edit;
mod error;
mod extent;
mod file;
mod inode;
mod mkfs;
mod namei;
mod ops;
mod order;
mod perm;
mod placement;
mod session;
mod space;
mod types;
mod volume;
mod xattr;

pub use error::{Errno, Error, Result};
pub use session::*;
pub use types::*;
