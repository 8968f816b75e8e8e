//! Volumes from the command line: places in them, opening them, and the bytes of their devices.
//!
//! ```text
//! place      IMAGE:/path
//! arguments  places and the options of every verb that opens a volume
//! open       opens volumes, each once; wait: until somebody else has closed one; beside: while somebody else is changing one
//! tree       what verbs ask of files: of the engine (open), or of the kernel below a mount point (live)
//! canonical  where a path leads, and the way from one to another
//! descend    a tree visited by directories that are held open
//! guard      files of the host that are not written over unasked
//! recognise  what a file of the host is: a volume, or what is left of one
//! signatures marks of other file systems on a device
//! meant      places in volumes that are meant by paths of the host
//! backup     backups of what is replaced
//! reference  a file that attributes are taken from, of a volume or of the host
//! device     the bytes of a volume, for verbs that look below the engine
//! ```

mod arguments;
mod backup;
mod beside;
mod canonical;
mod descend;
pub mod device;
pub mod guard;
mod live;
pub mod meant;
mod open;
pub(crate) mod place;
pub mod recognise;
mod reference;
pub mod signatures;
mod tree;
pub mod wait;

pub use arguments::{ChangeArgs, OpenArgs, place, place_or_root, places};
pub use backup::BackupArgs;
pub use beside::look;
pub use canonical::{canonical, way};
pub use descend::{Visit, Visited, descend, descend_in};
pub use device::check_is_image;
pub use guard::Guard;
pub use live::{Live, proc_path};
pub use open::{Access, Mounted, Opened, Volume, Volumes, umask};
pub use place::Place;
pub use reference::{Reference, reference};
pub use tree::{Folder, Names, OpenWrite, ReadAt, Step, Tree, WriteAt};
