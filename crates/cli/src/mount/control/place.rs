//! Where sockets lie, and what they are called.

use crate::failure::{At, Failure, image_name};
use anyhow::Result;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_socket, socket_with};
use rustix::process::geteuid;
use std::fs::{DirBuilder, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A daemon that is alive answers at once; one that does not is stuck.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Names another directory, for hosts on which the usual one cannot be made.
const VARIABLE: &str = "MYRIAD_RUNTIME_DIR";

/// Where root's daemons listen.
const SYSTEM: &str = "/run/myriad";

const SUFFIX: &str = ".sock";

/// Where this user's daemons listen.
pub fn own_directory() -> PathBuf {
    if let Some(directory) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return directory.into();
    }
    let user = geteuid();
    if user.is_root() && is_roots("/run") {
        return SYSTEM.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()) {
        Some(directory) => Path::new(&directory).join("myriad"),
        None => format!("/tmp/myriad-{}", outer_id(user.as_raw())).into(),
    }
}

/// Not in a user namespace of somebody's own: there he is root, and the system's directories are nobody's.
fn is_roots(directory: &str) -> bool {
    std::fs::metadata(directory).is_ok_and(|found| found.uid() == 0)
}

/// What a user is called outside of his user namespace, if he is its root.
fn outer_id(user: u32) -> u32 {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut fields = map.split_whitespace().map(|field| field.parse::<u32>().ok());
    match (fields.next().flatten(), fields.next().flatten()) {
        (Some(0), Some(outer)) if user == 0 => outer,
        _ => user,
    }
}

/// Where to look for daemons: this user's, then root's.
pub fn directories() -> Vec<PathBuf> {
    let own = own_directory();
    let is_system = own == Path::new(SYSTEM);
    std::iter::once(own).chain((!is_system).then(|| SYSTEM.into())).collect()
}

/// Whether sockets in a directory can only be this user's or root's. In one of somebody else's, as anybody may make in /tmp, he could have us
/// wait for him.
fn is_trusted(directory: &Path) -> bool {
    let is_of = |found: &Metadata| found.is_dir() && (found.uid() == 0 || found.uid() == geteuid().as_raw());
    std::fs::symlink_metadata(directory).is_ok_and(|found| is_of(&found) && found.mode() & 0o022 == 0)
}

/// Connects to whoever listens there; EAGAIN if he lets nobody in for as long as [`PATIENCE`].
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    connect_within(socket, PATIENCE)
}

fn connect_within(socket: &Path, patience: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The kernel waits so long, too, for room among those who wait to be let in.
    set_socket_timeout(&stream, Timeout::Send, Some(patience))?;
    set_socket_timeout(&stream, Timeout::Recv, Some(patience))?;
    connect_socket(&stream, &address)?;
    Ok(stream.into())
}

/// Makes the directory for this user's daemons. Nobody else may put anything into it, or take it away from under us.
pub fn make_directory() -> Result<PathBuf> {
    let directory = own_directory();
    let next = format!("name another directory for control sockets in {VARIABLE}");
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .map_err(|error| Failure::new(image_name(&directory), crate::failure::host_error(&error), &*next))?;
    let metadata = std::fs::symlink_metadata(&directory).at(image_name(&directory))?;
    let is_ours = metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if !is_ours {
        return Err(Failure::new(image_name(&directory), "not a directory that only you may change", next).into());
    }
    Ok(directory)
}

/// What the sockets of an image's daemons are called, but for the rest of the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName(String);

impl ImageName {
    pub fn of(image: &Path) -> std::io::Result<Self> {
        Ok(Self::from_metadata(&image.metadata()?))
    }

    fn from_metadata(metadata: &Metadata) -> Self {
        // A block device is the same one by whichever of its nodes.
        Self(match metadata.file_type().is_block_device() {
            true => format!("dev{:x}", metadata.rdev()),
            false => format!("{:x}-{:x}", metadata.dev(), metadata.ino()),
        })
    }

    /// Name of this process's socket for the volume at `offset`.
    pub fn socket(&self, offset: u64) -> String {
        format!("{}-at{offset:x}-{}{SUFFIX}", self.0, std::process::id())
    }

    /// Removes the sockets of this user's daemons that were killed: nobody listens on them. (A daemon listens before its
    /// socket has its name.)
    pub fn clear_left_behind(&self, directory: &Path) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let is_of = entry.file_name().to_str().is_some_and(|name| self.is_of(name));
            if is_of && connect(&entry.path()).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                // Left where it is, it does no harm.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn is_of(&self, socket: &str) -> bool {
        socket.strip_prefix(&*self.0).is_some_and(|rest| rest.starts_with("-at") && rest.ends_with(SUFFIX))
    }
}

/// The process that has made a socket, by the name it gave it.
pub fn pid_of(socket: &Path) -> Option<u32> {
    socket.file_name()?.to_str()?.strip_suffix(SUFFIX)?.rsplit('-').next()?.parse().ok()
}

/// The sockets in all directories, of one image or of all.
pub fn sockets(image: Option<&ImageName>) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    for directory in directories().into_iter().filter(|directory| is_trusted(directory)) {
        // Not there, or not ours to read: then there is nothing for us.
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.ends_with(SUFFIX)) else { continue };
            if image.is_none_or(|image| image.is_of(name)) {
                sockets.push(entry.path());
            }
        }
    }
    sockets.sort();
    sockets
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen, socket};

    /// The kernel has who connects wait for room among those who wait to be let in: for ever, if nobody is.
    #[test]
    fn nobody_waits_for_ever_to_be_let_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("full.sock");
        let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let _waiting = connect(&path).unwrap();
        let refused = connect_within(&path, Duration::from_millis(50)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::WouldBlock, "{refused}");
    }

    #[test]
    fn an_image_has_one_name_by_all_its_paths() {
        let directory = tempfile::tempdir().unwrap();
        let (image, other) = (directory.path().join("a.img"), directory.path().join("b.img"));
        std::fs::write(&image, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::fs::hard_link(&image, directory.path().join("link")).unwrap();
        let name = ImageName::of(&image).unwrap();
        assert_eq!(name, ImageName::of(&directory.path().join("link")).unwrap());
        assert_ne!(name, ImageName::of(&other).unwrap());
        assert!(name.is_of(&name.socket(0)) && name.is_of(&name.socket(512)));
        assert_eq!(pid_of(&directory.path().join(name.socket(512))), Some(std::process::id()));
        assert_eq!(pid_of(Path::new("/run/odd.sock")), None);
        assert!(!ImageName("1-2".into()).is_of(&ImageName("1-23".into()).socket(0)));
    }
}
