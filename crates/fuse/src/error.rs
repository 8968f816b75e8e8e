//! What can go wrong with a mount. Each message names the mount point or the thing, and the next step.

use crate::helper::MOUNT_TABLE;
use std::io;
use std::path::PathBuf;

/// Why a volume could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("{}: {source}; the mount point must be a directory that can be searched", .path.display())]
    MountPoint { path: PathBuf, source: io::Error },
    #[error("/dev/fuse: {}; {}", .0, for_device(.0))]
    Device(io::Error),
    #[error("mounting on {}: {source}", .path.display())]
    Mount { path: PathBuf, source: io::Error },
    #[error("changing the mount on {}: {source}", .path.display())]
    Remount { path: PathBuf, source: io::Error },
    #[error("fusermount3: {0}; install fuse3, or mount as root")]
    NoHelper(io::Error),
    /// It says itself what is in its way.
    #[error("fusermount3: {}{}", .0, for_helper(.0))]
    Helper(String),
    #[error("the kernel's FUSE protocol is {major}.{minor}; 7.31 or later is needed (Linux 5.4)")]
    Protocol { major: u32, minor: u32 },
    #[error("as fuseblk: {0}; leave out kind=fuseblk, or mount as root where there are loop devices")]
    FuseBlk(String),
    #[error("FUSE over io_uring: {0}; choose the classic transport")]
    Ring(String),
    #[error("option {option}: {reason}")]
    Option { option: String, reason: String },
}

/// What helps where /dev/fuse cannot be opened.
fn for_device(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "this user needs permission to read and write it: as root, chmod 666 /dev/fuse"
        }
        _ => "load the kernel's module `fuse` or give the container the device",
    }
}

/// What helps beside what the helper says itself.
fn for_helper(said: &str) -> &'static str {
    if said.contains(MOUNT_TABLE) {
        "; as root: ln -s /proc/self/mounts /etc/mtab"
    } else if said.contains("/dev/fuse: Permission denied") {
        "; as root: chmod 666 /dev/fuse"
    } else {
        ""
    }
}

/// Why serving ended other than by an unmount and a clean close.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("/dev/fuse: {0}")]
    Device(io::Error),
    /// The mount is gone, but the volume was not closed cleanly; its next opening recovers it.
    #[error("closing the volume: {0}")]
    Close(myriad_engine::Error),
}
