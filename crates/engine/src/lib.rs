//! Myriad's engine.

mod attr_list;
mod edit;
mod error;
mod perm;
mod session;
mod types;

pub use error::{Errno, Error, Result};
pub use session::*;
pub use types::*;
