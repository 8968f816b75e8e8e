//! Myriad's engine.

mod edit;
mod error;
mod session;
mod types;

pub use error::{Errno, Error, Result};
pub use session::*;
pub use types::*;
