//! fusermount3, which mounts and unmounts for users who may not do so themselves.

/// Its name, looked up in PATH.
pub(crate) const HELPER: &str = "fusermount3";
/// Where it looks up what it is to unmount. A system has none until it was started once.
pub(crate) const MOUNT_TABLE: &str = "/etc/mtab";
