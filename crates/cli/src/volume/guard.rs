//! What is not written over unasked: a file of the host that is a volume, and at all: one that somebody has in use.
//!
//! Every verb that replaces, empties or writes over a file of the host asks here first, and again before a replacement
//! takes its name: copying may have taken long. What is new takes nobody's place and needs no leave.
//!
//! In use means what it means to an opening: an open file has it locked, or the kernel has the block device. A program
//! that has merely opened the file is not noticed.

use super::Place;
use super::device::volume_state;
use crate::failure::{At, Failure, host_error, image_name};
use crate::mount::control;
use crate::show::name::Shown;
use crate::verbs::mkfs::existing;
use anyhow::Result;
use myriad_check::find_superblock_copy;
use myriad_device::{Access, DirectIo, FileDevice, FileOptions, InUse, IoBackend};
use myriad_format::log::{ANCHOR_MAGIC, AnchorBlock};
use myriad_format::superblock::{Superblock, SuperblockError};
use myriad_format::{BlockKind, FsBlock};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Least size of a file that can have a copy of the superblock: one group of 64 blocks of 512 bytes, and more.
const COPY_MIN: u64 = 64 * 512;

/// What a log on a device of its own is called.
const LOG: &str = "the log of a Myriad volume";

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
            None if is_block_device => match whole(path).ok().as_ref().and_then(|device| existing::mark(device)) {
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

/// Bytes at the beginning of a file that say whether it is ours.
pub const HEAD_SIZE: usize = Superblock::SIZE;

/// What the first bytes of a file say that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    Volume,
    /// The log of this volume, on a device of its own; zero where the bytes do not reach so far.
    Log([u8; 16]),
}

pub fn begins_as(head: &[u8]) -> Option<Ours> {
    if head.starts_with(&BlockKind::Superblock.magic().to_le_bytes()) {
        return Some(Ours::Volume);
    }
    let is_log = head.starts_with(&ANCHOR_MAGIC.to_le_bytes());
    let volume = if head.len() < AnchorBlock::SIZE { [0; 16] } else { AnchorBlock::read(head).volume };
    is_log.then_some(Ours::Log(volume))
}

/// What a file is, if it is a volume or a part of one: in words that follow "is".
pub fn describe(file: &File, path: &Path) -> io::Result<Option<String>> {
    let mut head = [0; HEAD_SIZE];
    let mut length = 0;
    while length < head.len() {
        match file.read_at(&mut head[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let ours = begins_as(&head);
    if ours == Some(Ours::Volume) {
        return Ok(Some(match Superblock::decode(&head, FsBlock(0)) {
            Ok(superblock) => named(&superblock, volume_state(&superblock)),
            Err(SuperblockError::Incompatible(_)) => "a Myriad volume of another version".into(),
            Err(_) => "a Myriad volume, its superblock damaged".into(),
        }));
    }
    if ours.is_some() {
        return Ok(Some(LOG.into()));
    }
    let size = io::Seek::seek(&mut &*file, io::SeekFrom::End(0))?;
    if size <= COPY_MIN {
        return Ok(None);
    }
    let copy = whole(path).ok().and_then(|device| find_superblock_copy(&device));
    Ok(copy.map(|superblock| named(&superblock, "its superblock lost")))
}

fn named(superblock: &Superblock, state: &str) -> String {
    let label = superblock.label.split(|&byte| byte == 0).next().unwrap_or_default();
    match label {
        b"" => format!("a Myriad volume, {state}"),
        label => format!("a Myriad volume, label {}, {state}", Shown(label)),
    }
}

/// A file as a device, to look at.
fn whole(path: &Path) -> Result<FileDevice, myriad_device::OpenError> {
    let options = FileOptions { direct: DirectIo::Never, backend: IoBackend::Threads, ..FileOptions::default() };
    FileDevice::open_with(path, Access::ReadOnly, &options)
}

/// Whether a path leads to a volume, as far as one can see: for a better word about something else.
pub fn is_volume(path: &Path) -> bool {
    let is_candidate = path.metadata().is_ok_and(|found| found.is_file() || found.file_type().is_block_device());
    is_candidate && File::open(path).and_then(|file| describe(&file, path)).is_ok_and(|found| found.is_some())
}

/// The volume that an argument begins with, if it names no file itself: a colon follows, but no slash.
pub fn volume_without_slash(argument: &[u8]) -> Option<PathBuf> {
    let colons = argument.iter().enumerate().filter(|(_, byte)| **byte == b':');
    let mut images = colons.map(|(at, _)| PathBuf::from(OsStr::from_bytes(&argument[..at])));
    images.find(|image| is_volume(image))
}

/// The place in a volume that is meant by an argument which leaves out the colon, or the slash after it.
pub fn meant(argument: &[u8]) -> Option<String> {
    let path = Path::new(OsStr::from_bytes(argument));
    let image = volume_without_slash(argument).or_else(|| {
        path.ancestors().find(|above| above.is_file()).filter(|above| is_volume(above)).map(Path::to_owned)
    })?;
    let rest = &argument[image.as_os_str().len()..];
    let rest = rest.strip_prefix(b":").unwrap_or(rest);
    let rest = rest.iter().position(|&byte| byte != b'/').map_or(&b""[..], |start| &rest[start..]);
    Some(format!("{}:/{}", image_name(&image), if rest.is_empty() { String::new() } else { Shown(rest).to_string() }))
}

/// The place in a volume that is meant by an argument which should name one: as `meant`, or by its path below a mount point.
pub fn meant_in(argument: &OsStr) -> Option<String> {
    meant(argument.as_bytes()).or_else(|| below_mount(Path::new(argument)))
}

/// The place in a mounted volume that a path of the host leads to; the last name need not exist, and is not followed as long as it
/// lies in a mount itself.
pub fn below_mount(path: &Path) -> Option<String> {
    let find = |path: &Path, skipped| {
        // A relative path's first name is in the current directory.
        let named = |above: &Path| if above.as_os_str().is_empty() { PathBuf::from(".") } else { above.to_owned() };
        let above = path.ancestors().skip(skipped).find(|above| named(above).is_dir())?;
        let (mount_point, below) = control::below_mount(&named(above))?;
        // Component by component: an empty rest is to add no slash.
        let below: PathBuf = below.components().chain(path.strip_prefix(above).ok()?.components()).collect();
        Some(format!("{}:/{}", image_name(&mount_point), in_volume(&below)))
    };
    match path.is_symlink() {
        true => find(path, 1).or_else(|| find(path, 0)),
        false => find(path, 0),
    }
}

fn in_volume(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { image_name(path) }
}

/// An error of the host about a path that nothing has; it says so if a place in a volume is meant.
pub fn unreachable_name(path: &Path, error: io::Error) -> anyhow::Error {
    let is_candidate = matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::NotFound);
    if let Ok(place) = Place::parse(path.as_os_str())
        && is_candidate
        && place.image.exists()
    {
        let what = "a path in a volume, where the volume itself is to be named";
        return Failure::new(image_name(path), what, format!("write {}", image_name(&place.image))).into();
    }
    match meant(path.as_os_str().as_bytes()).filter(|_| is_candidate) {
        Some(meant) => {
            let what = format!("{}, but a Myriad volume has the first part of that name", host_error(&error));
            Failure::new(image_name(path), what, format!("write {meant}")).into()
        }
        None if error.kind() == io::ErrorKind::NotFound => {
            Failure::new(image_name(path), host_error(&error), "check the name; myriad mkfs makes a volume").into()
        }
        None => Err::<(), _>(error).at(image_name(path)).expect_err("an error stays one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_engine::{Fs, MkfsOptions, MountOptions};

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
