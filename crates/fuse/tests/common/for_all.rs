//! /dev/fuse for every user, as distributions have it, for one thread and the processes that it starts.

use rustix::fs::{self as unix, CWD, FileType, Mode};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount};
use rustix::thread::UnshareFlags;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why users cannot mount by fusermount3.
pub fn why_no_helper() -> Option<&'static str> {
    if std::process::Command::new("fusermount3").arg("-V").output().is_err() {
        return Some("fusermount3 is missing");
    }
    // A bare system has none until its first start.
    let has_table = Path::new("/etc/mtab").exists();
    (!has_table).then_some("/etc/mtab is missing, which fusermount3 reads; as root: ln -s /proc/self/mounts /etc/mtab")
}

/// Leaves for a mount namespace in which /dev/fuse may be opened by all, whatever its mode on this host; `folder` is for
/// its making. All of it, and what is mounted there, goes with the thread and its processes.
pub fn let_all_mount(folder: &Path) -> Result<(), String> {
    let metadata = std::fs::metadata("/dev/fuse").map_err(|error| format!("/dev/fuse: {error}"))?;
    let place = folder.join("device");
    std::fs::create_dir(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let node = place.join("fuse");
    let leave = || -> rustix::io::Result<()> {
        #[expect(deprecated, reason = "its hazard is shared descriptor tables, which a mount namespace leaves alone")]
        rustix::thread::unshare(UnshareFlags::NEWNS)?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        // The folder's own file system may allow no devices.
        mount("none", &place, "tmpfs", MountFlags::empty(), c"mode=755")?;
        unix::mknodat(CWD, &node, FileType::CharacterDevice, Mode::from_raw_mode(0o666), metadata.rdev())?;
        // Whatever the umask.
        unix::chmod(&node, Mode::from_raw_mode(0o666))?;
        mount_bind(&node, "/dev/fuse")?;
        // The folder can be removed before the thread ends.
        unmount(&place, UnmountFlags::DETACH)
    };
    leave().map_err(|error| format!("no mount namespace with a /dev/fuse for all: {error}"))
}
