//! Myriad's engine.

#[allow(dead_code, reason = "used by the engine once it stands on it")]
mod btree;
#[allow(dead_code, reason = "used by the engine once it stands on it")]
mod edit;
mod error;
#[allow(dead_code, reason = "used by the engine once it stands on it")]
mod extent;
mod session;
#[allow(dead_code, reason = "used by the engine once it stands on it")]
mod space;
mod types;

pub use error::{Errno, Error, Result};
pub use session::*;
pub use types::*;
