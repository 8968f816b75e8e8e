//! Changing how the kernel has a mount, by mount(2) with MS_REMOUNT. The server has no part in that, but for `sync`, and
//! is told of it by [`crate::Handle::remounted`].

use crate::error::MountError;
use crate::mount_point::flag_of;
use crate::mounts::Entry;
use rustix::mount::MountFlags;
use std::fs::File;

/// Whether [`remount`] knows a word: the others stay as they are for as long as the mount lives.
pub fn can_remount(word: &str) -> bool {
    // The kernel would pass over `dirsync`; access times are the server's.
    flag_of(word).is_some() && word != "dirsync" && !word.ends_with("atime")
}

/// Changes a mount by words that the kernel knows (`ro`, `noexec`, ...). What none of them speaks of stays; of two that
/// contradict each other the later one counts. What has been written is durable when a mount becomes read-only.
pub fn remount<'a>(mount: &'a Entry, words: impl Iterator<Item = &'a str>) -> Result<(), MountError> {
    let path = || mount.mount_point.clone();
    let flags = flags(mount, words)?;
    rustix::mount::mount_remount(&mount.mount_point, flags, "")
        .map_err(|error| MountError::Remount { path: path(), source: error.into() })?;
    if flags.contains(MountFlags::RDONLY) {
        // The kernel has sent what it kept; an fsync of the root has the server make everything durable.
        let synced = File::open(&mount.mount_point).and_then(|root| root.sync_all());
        synced.map_err(|source| MountError::Remount { path: path(), source })?;
    }
    Ok(())
}

fn flags<'a>(mount: &'a Entry, words: impl Iterator<Item = &'a str>) -> Result<MountFlags, MountError> {
    let mut flags = MountFlags::empty();
    // Read-only is a mount whose super block is, or that is itself; the words say only what they want changed.
    let now = mount.options.iter().map(String::as_str).filter(|&word| word != "rw");
    for (word, on) in now.filter_map(flag_of) {
        flags.set(word, on);
    }
    for word in words {
        let (flag, on) = flag_of(word).ok_or_else(|| MountError::Option {
            option: word.into(),
            reason: "cannot be changed while it is mounted".into(),
        })?;
        flags.set(flag, on);
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_spoken_of_stays() {
        let entry = |options: &str| Entry {
            id: 1,
            device: "0:1".into(),
            mount_point: "/mnt".into(),
            fs_type: "fuse.myriad".into(),
            source: "/a.img".into(),
            options: options.split(',').map(str::to_owned).collect(),
        };
        let read = MountFlags::RDONLY;
        let kept = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RELATIME;
        for (now, words, expected) in [
            ("rw,nosuid,nodev,relatime,rw,user_id=0", vec!["ro"], kept | read),
            ("ro,nosuid,nodev,relatime,rw,user_id=0", vec!["noexec"], kept | read | MountFlags::NOEXEC),
            ("rw,nosuid,nodev,relatime,ro,user_id=0", vec![], kept | read),
            ("ro,nosuid,nodev,relatime,ro", vec!["ro", "rw"], kept),
            ("rw,nosuid,nodev,noexec,relatime,rw", vec!["exec", "suid"], MountFlags::NODEV | MountFlags::RELATIME),
        ] {
            assert_eq!(flags(&entry(now), words.iter().copied()).unwrap(), expected, "{now} {words:?}");
        }
        let error = flags(&entry("rw"), ["allow_other"].into_iter()).unwrap_err().to_string();
        assert!(error.contains("allow_other") && error.contains("cannot be changed"), "{error}");
    }
}
