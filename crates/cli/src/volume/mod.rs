//! Volumes from the command line: places in them, opening them, and the bytes of their devices.

mod arguments;
pub mod device;
mod open;
pub(crate) mod place;

pub use arguments::{ChangeArgs, OpenArgs, OrderName, place, place_or_root};
pub use open::{Access, Volume, Volumes};
pub use place::Place;
