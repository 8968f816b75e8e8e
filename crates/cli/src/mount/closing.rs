//! Whether an image is still open for writing, for whoever cannot ask its daemon: root about a user's, a user whose runtime
//! directory was another one when he mounted.
//!
//! A daemon has a lock of its own on the image for as long as it may write there, and the kernel shows all locks to
//! everybody (/proc/locks). Who holds one it does not show: volumes side by side in one image are told apart by the bytes
//! that are locked, and which of them was meant, by which lock goes.

use myriad_device::{WriteLock, write_locks};
use myriad_fuse::mounts::{self, Entry};
use std::collections::BTreeSet;
use std::io;

type Locked = BTreeSet<WriteLock>;

/// A mount and the writers of its image, before it is unmounted.
pub struct Closing<'a> {
    mount: &'a Entry,
    locked: Locked,
    /// Other mounts of the image: of volumes beside this one.
    beside: Vec<Entry>,
}

impl<'a> Closing<'a> {
    pub fn of(mount: &'a Entry) -> io::Result<Self> {
        let mut locked = write_locks(&mount.source)?;
        let mounts: Vec<Entry> = mounts::mounts()?.into_iter().filter(Entry::is_ours).collect();
        // One that was given another name than its image's may be of any image.
        let may_be_of_image = |other: &&Entry| other.source == mount.source || !other.source.exists();
        let others = mounts.iter().filter(|other| other.device != mount.device).filter(may_be_of_image);
        if locked.len() <= others.map(|other| &other.device).collect::<BTreeSet<_>>().len() {
            // They may be the others', and this mount's daemon one that was killed: that would be waiting for ever.
            locked.clear();
        }
        let beside = mounts.into_iter().filter(|other| other.source == mount.source && other.device != mount.device);
        Ok(Self { mount, locked, beside: beside.collect() })
    }

    /// Whether the volume may still be open, of a mount that is gone. It is not if one of the writers has gone, and if the
    /// image has been mounted again since. One that is still mounted in another place stays open.
    pub fn is_under_way(&self) -> io::Result<bool> {
        let of_image = |other: &Entry| other.is_ours() && other.source == self.mount.source;
        let has_new_mount = mounts::mounts()?.iter().any(|other| of_image(other) && !self.beside.contains(other));
        Ok(!has_new_mount && are_there(&self.locked, &write_locks(&self.mount.source)?))
    }
}

/// Of an image that nobody wrote to, nobody goes.
fn are_there(before: &Locked, now: &Locked) -> bool {
    !before.is_empty() && before.is_subset(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_device::{Access, FileDevice, FileOptions};

    #[test]
    fn writers_are_seen_by_their_locks() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        std::fs::write(&image, [0; 1 << 16]).unwrap();
        let open = |offset| {
            let options = FileOptions { offset, length: Some(1 << 15), ..FileOptions::default() };
            FileDevice::open_with(&image, Access::ReadWrite, &options).unwrap()
        };
        let (one, other) = (open(0), open(1 << 15));
        let now = || write_locks(&image).unwrap();
        one.lock_shared().unwrap();
        assert!(now().is_empty() && !are_there(&now(), &now()), "a reader is none");
        one.lock_exclusive().unwrap();
        other.lock_exclusive().unwrap();
        let both = now();
        assert!(both.len() == 2 && are_there(&both, &now()));
        other.unlock().unwrap();
        assert!(!are_there(&both, &now()));
        let rest = now();
        assert!(are_there(&rest, &now()));
        drop(one);
        assert!(!are_there(&rest, &now()));
    }
}
