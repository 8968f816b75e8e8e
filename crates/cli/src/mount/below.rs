//! Which mount a path of the host lies in.

use myriad_fuse::{mounts, real_path};
use std::path::{Path, PathBuf};

/// The mount of ours that a directory of the host lies in, and its path there.
pub fn below_mount(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let path = real_path(directory).ok()?;
    let mounts = mounts::mounts().ok()?;
    let mount = path.ancestors().find_map(|above| mounts.iter().rfind(|mount| mount.mount_point == above))?;
    let below = path.strip_prefix(&mount.mount_point).ok()?.to_owned();
    mount.is_ours().then(|| (mount.mount_point.clone(), below))
}
