//! Myriad's engine.

#[allow(dead_code, reason = "used by the space and extent modules, then by the engine")]
mod btree;
mod edit;
mod error;
mod session;
#[allow(dead_code, reason = "used by the engine once it stands on it")]
mod space;
mod types;

pub use error::{Errno, Error, Result};
pub use session::*;
pub use types::*;
