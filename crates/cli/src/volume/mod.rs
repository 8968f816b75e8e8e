//! Volumes from the command line: places in them, opening them, and the bytes of their devices.

mod arguments;
pub mod device;
pub mod guard;
mod live;
mod open;
pub(crate) mod place;
mod tree;

pub use arguments::{ChangeArgs, OpenArgs, place, place_or_root};
pub use guard::Guard;
pub use live::Live;
pub use open::{Access, Mounted, Opened, Volume, Volumes};
pub use place::Place;
pub use tree::{ReadAt, Step, Tree};
