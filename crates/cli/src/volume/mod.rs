//! Volumes from the command line: places in them, opening them, and the bytes of their devices.

mod arguments;
mod backup;
mod canonical;
mod descend;
pub mod device;
pub mod guard;
mod live;
mod open;
pub(crate) mod place;
mod tree;
pub mod wait;

pub use arguments::{ChangeArgs, OpenArgs, place, place_or_root, places};
pub use backup::BackupArgs;
pub use canonical::canonical;
pub use descend::{Visit, Visited, descend};
pub use guard::Guard;
pub use live::Live;
pub use open::{Access, Mounted, Opened, Volume, Volumes, check_is_image, umask};
pub use place::Place;
pub use tree::{Folder, Names, OpenWrite, ReadAt, Step, Tree, WriteAt};
