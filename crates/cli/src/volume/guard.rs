//! What is not written over unasked: a file of the host that is a volume, and at all: one that somebody has in use.
//!
//! Every verb that replaces, empties or writes over a file of the host asks here first, and again before a replacement
//! takes its name: copying may have taken long. What is new takes nobody's place and needs no leave.
//!
//! In use means what it means to an opening: an open file has it locked, or the kernel has the block device. A program
//! that has merely opened the file is not noticed.

use super::recognise::{LOG, Ours, begins_as, describe, whole};
use super::signatures;
use crate::failure::{At, Failure, host_error, image_name};
use crate::mount::control;
use anyhow::Result;
use myriad_device::InUse;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Whether the user has asked for volumes to be written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// No, and the verb has no option for it.
    Always,
    /// No, but `--force` would.
    UnlessForced,
    Forced,
}

impl Guard {
    pub fn unless(force: bool) -> Self {
        if force { Self::Forced } else { Self::UnlessForced }
    }

    /// Refuses if what `path` leads to must not be written over.
    pub fn check(self, path: &Path) -> Result<()> {
        let place = image_name(path);
        let metadata = match path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            metadata => metadata.at(&place)?,
        };
        if !metadata.file_type().is_block_device() && (!metadata.is_file() || metadata.len() == 0) {
            return Ok(());
        }
        // Not to wait, should another file have the name by now.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = File::options().read(true).custom_flags(flags.bits() as i32).open(path);
        self.judge(opened, path, &place)
    }

    /// The same for a name in a directory, which is not followed. `place` is for messages.
    pub fn check_at(self, directory: BorrowedFd<'_>, name: &[u8], place: &str) -> Result<()> {
        let fail = |errno: rustix::io::Errno| io::Error::from(errno);
        let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            stat => stat.map_err(fail).at(place)?,
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size == 0 {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(directory, name, flags, Mode::empty()).map(File::from).map_err(fail);
        let parent = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
        self.judge(opened, &parent.join(OsStr::from_bytes(name)), place)
    }

    /// The same for a file in a volume, which nobody can have in use, by how it begins.
    pub fn check_content(self, head: &[u8], place: &str) -> Result<()> {
        match begins_as(head) {
            Some(Ours::Volume) => self.ask(place, "is a Myriad volume".into(), ""),
            Some(Ours::Log(_)) => self.ask(place, format!("is {LOG}"), ""),
            None => Ok(()),
        }
    }

    fn judge(self, opened: io::Result<File>, path: &Path, place: &str) -> Result<()> {
        let file = match opened {
            // Who may not read it cannot tell what it is; who locks it shows all the same.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if myriad_device::write_locks(path).is_ok_and(|locks| !locks.is_empty()) {
                    return Err(in_use(path, place, None).into());
                }
                let what = format!("cannot be read to see whether it is a volume: {}", host_error(&error));
                return self.ask(place, what, "");
            }
            opened => opened.at(place)?,
        };
        if let Some(found) = myriad_device::holder(&file, path).at(place)? {
            return Err(in_use(path, place, Some(found)).into());
        }
        if self == Self::Forced {
            return Ok(());
        }
        let is_block_device = file.metadata().at(place)?.file_type().is_block_device();
        match describe(&file, path).at(place)? {
            Some(what) => self.ask(place, format!("is {what}"), &format!("write {place}:/ to put files into it")),
            None if is_block_device => match whole(path).ok().as_ref().and_then(|device| signatures::mark(device)) {
                Some(what) => self.ask(place, format!("holds {what}"), ""),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    fn ask(self, place: &str, what: String, instead: &str) -> Result<()> {
        let force = match self {
            Self::Forced => return Ok(()),
            Self::UnlessForced => "--force writes over it",
            Self::Always => "name another file",
        };
        let next = if instead.is_empty() { force.to_owned() } else { format!("{instead}; {force}") };
        Err(Failure::new(place, what, next).into())
    }
}

fn in_use(path: &Path, place: &str, found: Option<InUse>) -> Failure {
    let what = match (control::mount_of(path), found) {
        (Ok(Some(daemon)), _) => {
            let mount_point = image_name(&daemon.status.mount_point);
            format!("is in use: mounted on {mount_point} by process {}", daemon.status.pid)
        }
        (_, Some(found)) if found.pid() == Some(std::process::id()) => "is the volume that is read".into(),
        (_, Some(found)) => {
            let text = found.to_string();
            format!("is {}", text.strip_prefix(&format!("{}: ", found.path.display())).unwrap_or(&text))
        }
        (_, None) => "is in use by another process".into(),
    };
    let next = format!("nothing is written over it; if it is a volume, write {place}:/ to put files into it");
    Failure::new(place, what, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_engine::{Fs, MkfsOptions, MountOptions};
    use myriad_format::log::ANCHOR_MAGIC;
    use std::os::unix::fs::FileExt;

    fn said(result: Result<()>) -> String {
        result.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn volumes_are_known_by_what_is_left_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol.img");
        let options = MkfsOptions { label: "spool".into(), ..MkfsOptions::default() };
        Fs::format(&path, Some(64 << 20), &options).unwrap();
        let check = |guard: Guard| said(guard.check(&path));
        let expected = "is a Myriad volume, label spool, closed cleanly; write ";
        assert!(check(Guard::UnlessForced).contains(expected), "{}", check(Guard::UnlessForced));
        assert!(check(Guard::UnlessForced).ends_with("vol.img:/ to put files into it; --force writes over it"));
        assert!(check(Guard::Always).ends_with("name another file"));
        assert_eq!(check(Guard::Forced), "");
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[7; 100], 100).unwrap();
        assert!(check(Guard::UnlessForced).contains("its superblock damaged"));
        file.write_all_at(&[7; 4096], 0).unwrap();
        assert!(check(Guard::UnlessForced).contains("label spool, its superblock lost"));
        file.set_len(4096).unwrap();
        assert_eq!(check(Guard::UnlessForced), "", "nothing is left");
    }

    #[test]
    fn nothing_in_use_is_forced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vol.img");
        Fs::format(&path, Some(16 << 20), &MkfsOptions::default()).unwrap();
        let fs = Fs::open(&path, MountOptions::default()).unwrap();
        for guard in [Guard::Always, Guard::UnlessForced, Guard::Forced] {
            assert!(said(guard.check(&path)).contains("is the volume that is read; nothing is written over it"));
            let directory = File::open(folder.path()).unwrap();
            let refused = guard.check_at(std::os::fd::AsFd::as_fd(&directory), b"vol.img", "d/vol.img");
            assert!(said(refused).starts_with("d/vol.img: is the volume that is read"));
        }
        fs.close().unwrap();
    }

    #[test]
    fn other_files_are_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        assert_eq!(said(Guard::UnlessForced.check(&path)), "");
        for content in [vec![], b"x".to_vec(), vec![7; 300_000]] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(said(Guard::UnlessForced.check(&path)), "");
        }
        std::fs::write(&path, ANCHOR_MAGIC.to_le_bytes()).unwrap();
        assert!(said(Guard::UnlessForced.check(&path)).contains("is the log of a Myriad volume"));
    }
}
