//! Taking mounts away, dead ones too.

use crate::helper::HELPER;
use crate::mounts;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How hard to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Out of sight at once, gone once nobody uses it.
    pub lazy: bool,
    /// Requests that wait for the daemon fail.
    pub force: bool,
}

/// Unmounts the file system with a device number; EBUSY if somebody uses it, unless `lazy`. Only a path can be said to the
/// kernel, so what else is mounted over it by now is refused, and stays.
pub fn unmount(mount_point: &Path, device: &str, how: How) -> io::Result<()> {
    match mounts::mounted_at(mount_point)? {
        Some(mount) if mount.device == device => {}
        Some(other) => {
            let what = format!("{} ({}) is mounted over it", other.source.display(), other.fs_type);
            return Err(io::Error::other(what));
        }
        None => return Err(Errno::INVAL.into()),
    }
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, how.lazy);
    flags.set(UnmountFlags::FORCE, how.force);
    match rustix::mount::unmount(mount_point, flags) {
        Err(Errno::PERM) => by_helper(mount_point, how.lazy),
        result => Ok(result?),
    }
}

/// Users may unmount what they mounted, through fusermount3.
fn by_helper(mount_point: &Path, lazy: bool) -> io::Result<()> {
    let mut helper = Command::new(HELPER);
    helper.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mount_point);
    let output = match helper.stdin(Stdio::null()).output() {
        // Without it nobody but root may.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Errno::PERM.into()),
        output => output?,
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") { Err(Errno::BUSY.into()) } else { Err(io::Error::other(said)) }
}

/// The real path of a directory to mount on. If a daemon was killed that had mounted something of ours on it, the dead
/// mount is taken away first.
pub fn clear_mount_point(directory: &Path) -> io::Result<PathBuf> {
    let path = real_path(directory)?;
    // More than one may have died there.
    while let Some(mount) = mounts::mounted_at(&path)?.filter(|mount| mount.is_ours())
        && is_dead(&path)
    {
        // Whoever still has files of it open gets errors anyway.
        unmount(&path, &mount.device, How { lazy: true, force: false })?;
    }
    path.canonicalize()
}

/// The path without symbolic links; also of a mount point that answers with errors only.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if Errno::from_io_error(&error).is_some_and(says_dead) => {
            let absolute = std::path::absolute(path)?;
            let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Err(error) };
            Ok(parent.canonicalize()?.join(name))
        }
        result => result,
    }
}

/// Whether the server of a mount has gone. The kernel may go on to answer from what it remembers, but not this.
fn is_dead(mount_point: &Path) -> bool {
    matches!(rustix::fs::statfs(mount_point), Err(error) if says_dead(error))
}

/// Of a request that came too late, that was under way, or that lay in a ring of the server: the kernel takes that down after
/// the server itself.
fn says_dead(error: Errno) -> bool {
    matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}
