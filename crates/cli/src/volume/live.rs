//! A volume that a daemon has mounted: its files as the kernel shows them below the mount point.
//!
//! Every path is resolved by the kernel as if the mount's root were the root of all (openat2(2), RESOLVE_IN_ROOT): an
//! absolute symbolic link or `..` in the volume leads to the same file as when this process has the volume open, and
//! never to one of the host. What is mounted inside is not entered.
//!
//! The kernel checks the caller's permissions here, and knows neither generations nor inode flags: both are zero.

use super::tree::{Folder, Names, OpenWrite, ReadAt, Step, Tree, WriteAt};
use crate::limits;
use myriad_engine::{Errno, Error, FileType, RenameMode, Result, SetAttr, SetTime, Stat, WalkEntry, WalkError};
use rustix::fs::{AtFlags, CWD, Dir, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Room for the names of extended attributes: the kernel's own limit.
const XATTR_LIST_MAX: usize = 64 << 10;

pub struct Live {
    root: OwnedFd,
}

impl Live {
    /// The file system mounted at `mount_point`, if its device number is `device`; ENXIO if another one is.
    pub fn open(mount_point: &Path, device: &str) -> Result<Self> {
        // For walks and removals.
        limits::raise_open_files();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(mount_point, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&root)?.st_dev;
        // Something else may have been mounted on top of it, or it has gone since its daemon was asked.
        if format!("{}:{}", rustix::fs::major(found), rustix::fs::minor(found)) != device {
            return Err(Errno::NXIO.into());
        }
        Ok(Self { root })
    }

    /// The number of its device, which all its files have.
    pub fn device(&self) -> Result<u64> {
        Ok(rustix::fs::fstat(&self.root)?.st_dev)
    }

    /// The path on the host of a file: without symbolic links, but for a last one that is not to be followed.
    pub fn host_path(&self, path: &[u8], follow: bool) -> Result<PathBuf> {
        match self.find(path, follow) {
            Ok(file) => path_of(&file),
            Err(Error::Refused(Errno::NOENT)) => {
                let (directory, name) = self.parent(path)?;
                Ok(path_of(&directory)?.join(OsStr::from_bytes(name)))
            }
            Err(error) => Err(error),
        }
    }

    /// The path on the host of a file that is there, without symbolic links.
    pub fn existing_path(&self, path: &[u8]) -> Result<PathBuf> {
        path_of(&self.find(path, true)?)
    }

    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self { root: rustix::io::fcntl_dupfd_cloexec(&self.root, 0)? })
    }

    /// Sends what the kernel has gathered to the daemon.
    pub fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(self.open_in_root(b"/", READ_DIRECTORY)?)?)
    }

    fn open_in_root(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        open_below(&self.root, path, flags, ResolveFlags::IN_ROOT)
    }

    /// A file, opened for nothing but to be named.
    fn find(&self, path: &[u8], follow: bool) -> Result<OwnedFd> {
        let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
        self.open_in_root(path, flags)
    }

    /// The directory that a path's last name is in, and that name. The calls that make, rename or remove a name never
    /// take `.` or `..` for one, so what they are given cannot lead out of the directory.
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8])> {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let directory = if path[..start].is_empty() { b"/" } else { &path[..start] };
        // Slashes at the end stay with the name: they say that it has to be a directory.
        let name = if path[start..end].is_empty() { b"." } else { &path[start..] };
        Ok((self.open_in_root(directory, OFlags::PATH | OFlags::DIRECTORY)?, name))
    }
}

/// Opens a path below a directory, not crossing into another mount.
fn open_below(directory: impl AsFd, path: &[u8], flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd> {
    // The kernel takes a mode only where a file may be made.
    let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o666) } else { Mode::empty() };
    let resolve = resolve | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(&directory, path, flags | OFlags::CLOEXEC, mode, resolve) {
            // A rename somewhere made it unsure whether `..` stayed inside.
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
            Ok(file) => return Ok(file),
        }
    }
}

/// A name in a directory, which is not followed.
fn open_name(directory: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
    open_below(directory, name, flags | OFlags::NOFOLLOW, ResolveFlags::BENEATH)
}

/// The path on the host of an open file; ENXIO if that leads to another one. Of a mount that was detached while somebody uses it, the kernel tells the
/// path below the mount's root, as if that were the host's.
fn path_of(file: &OwnedFd) -> Result<PathBuf> {
    let path = rustix::fs::readlink(proc_path(file), Vec::new())?;
    let path = PathBuf::from(OsStr::from_bytes(path.as_bytes()));
    let identity = |file: &OwnedFd| rustix::fs::fstat(file).map(|found| (found.st_dev, found.st_ino));
    let there = rustix::fs::open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    match there.and_then(|there| identity(&there)) {
        Ok(found) if found == identity(file)? => Ok(path),
        _ => Err(Errno::NXIO.into()),
    }
}

/// For calls that take no descriptor of a file that is only named (O_PATH). It leads to a symbolic link itself.
pub fn proc_path(file: impl AsFd) -> PathBuf {
    Path::new("/proc/self/fd").join(file.as_fd().as_raw_fd().to_string())
}

pub(super) fn stat_of(file: impl AsFd) -> Result<Stat> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let raw: Statx = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, mask)?;
    FileType::from_mode(raw.stx_mode).ok_or(Error::Refused(Errno::INVAL))?;
    let time = |time: StatxTimestamp| time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec));
    Ok(Stat {
        ino: raw.stx_ino,
        generation: 0,
        mode: raw.stx_mode,
        nlink: raw.stx_nlink,
        uid: raw.stx_uid,
        gid: raw.stx_gid,
        rdev: rustix::fs::makedev(raw.stx_rdev_major, raw.stx_rdev_minor),
        size: raw.stx_size,
        blocks: raw.stx_blocks,
        atime: time(raw.stx_atime),
        mtime: time(raw.stx_mtime),
        ctime: time(raw.stx_ctime),
        btime: time(raw.stx_btime),
        flags: 0,
    })
}

/// Changes mode, owner and times of a file that may be only named.
fn set_attr_of(file: &OwnedFd, attr: SetAttr) -> Result<()> {
    let SetAttr { mode, uid, gid, size, atime, mtime, flags } = attr;
    assert!(size.is_none() && flags.is_none(), "these need a file that is open");
    if uid.is_some() || gid.is_some() {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        rustix::fs::chownat(file, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    // After the owner, with whom set-id bits go.
    if let Some(mode) = mode {
        rustix::fs::chmod(proc_path(file), Mode::from_raw_mode(mode.into()))?;
    }
    if atime.is_some() || mtime.is_some() {
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        rustix::fs::utimensat(CWD, proc_path(file), &times, AtFlags::empty())?;
    }
    Ok(())
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(time)) => {
            Timespec { tv_sec: time.div_euclid(1_000_000_000), tv_nsec: time.rem_euclid(1_000_000_000) }
        }
    }
}

/// Names in an open directory, without "." and "..".
fn list(directory: OwnedFd) -> Result<impl Iterator<Item = Result<Vec<u8>>>> {
    Ok(Dir::new(directory)?.filter_map(|entry| match entry {
        Ok(entry) => {
            let name = entry.file_name().to_bytes();
            (name != b"." && name != b"..").then(|| Ok(name.to_vec()))
        }
        Err(errno) => Some(Err(errno.into())),
    }))
}

const READ_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

impl Tree for Live {
    fn stat(&self, path: &[u8]) -> Result<Stat> {
        stat_of(&self.find(path, true)?)
    }

    fn lstat(&self, path: &[u8]) -> Result<Stat> {
        stat_of(&self.find(path, false)?)
    }

    fn lstat_many(&self, paths: &[Vec<u8>]) -> Vec<Result<Stat>> {
        paths.iter().map(|path| self.lstat(path)).collect()
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(self.find(path, false)?, "", Vec::new())?.into_bytes())
    }

    fn list_xattr(&self, path: &[u8], follow: bool) -> Result<Vec<Vec<u8>>> {
        let file = self.find(path, follow)?;
        let mut names = vec![0; XATTR_LIST_MAX];
        match rustix::fs::listxattr(proc_path(&file), &mut names[..]) {
            Ok(length) => names.truncate(length),
            // A mount that keeps none.
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
        Ok(names.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    fn names(&self, path: &[u8]) -> Result<Box<dyn Iterator<Item = Result<Vec<u8>>>>> {
        Ok(Box::new(list(self.open_in_root(path, READ_DIRECTORY)?)?))
    }

    fn walk(&self, path: &[u8]) -> Result<Box<dyn Iterator<Item = Step>>> {
        let stat = self.lstat(path)?;
        let mut walk = Walk { levels: Vec::new(), failed: None };
        if stat.is_dir() {
            walk.descend(self.open_in_root(path, READ_DIRECTORY), Vec::new());
        }
        Ok(Box::new(std::iter::once(Ok(WalkEntry { path: Vec::new(), stat })).chain(walk)))
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn ReadAt>> {
        let refuse_others = |stat: Stat| match stat.file_type() {
            FileType::File => Ok(()),
            FileType::Directory => Err(Error::Refused(Errno::ISDIR)),
            // What stands behind a FIFO, socket or device is not the volume's.
            _ => Err(Error::Refused(Errno::NXIO)),
        };
        refuse_others(self.stat(path)?)?;
        // Not to wait, should another file have the name by now.
        let file = self.open_in_root(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        refuse_others(stat_of(&file)?)?;
        Ok(Box::new(File::from(file)))
    }

    fn mkdir(&self, path: &[u8], mode: u16) -> Result<()> {
        let (directory, name) = self.parent(path)?;
        Ok(rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(mode.into()))?)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        let (directory, name) = self.parent(path)?;
        Ok(rustix::fs::symlinkat(target, directory, name)?)
    }

    fn link(&self, source: &[u8], target: &[u8]) -> Result<()> {
        let (from, to) = (self.parent(source)?, self.parent(target)?);
        Ok(rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())?)
    }

    fn rename(&self, source: &[u8], target: &[u8], mode: RenameMode) -> Result<()> {
        let (from, to) = (self.parent(source)?, self.parent(target)?);
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
            RenameMode::Whiteout => RenameFlags::WHITEOUT,
            RenameMode::NoReplaceWhiteout => RenameFlags::NOREPLACE | RenameFlags::WHITEOUT,
        };
        Ok(rustix::fs::renameat_with(from.0, from.1, to.0, to.1, flags)?)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        let (directory, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        let (directory, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)
    }

    fn remove_tree(&self, path: &[u8], progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        let (directory, name) = self.parent(path)?;
        remove_directory(&directory, name, progress)
    }

    fn set_attr(&self, path: &[u8], follow: bool, attr: SetAttr) -> Result<()> {
        set_attr_of(&self.find(path, follow)?, attr)
    }

    fn open_write(&self, path: &[u8], how: OpenWrite) -> Result<Box<dyn WriteAt>> {
        match self.stat(path) {
            Ok(stat) if stat.is_dir() => return Err(Errno::ISDIR.into()),
            // What stands behind a FIFO, socket or device is not the volume's.
            Ok(stat) if stat.file_type() != FileType::File => return Err(Errno::NXIO.into()),
            Err(Error::Refused(Errno::NOENT)) if how.create => {}
            other => drop(other?),
        }
        // Not to wait, should another file have the name by now.
        let mut flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        flags.set(OFlags::CREATE, how.create);
        flags.set(OFlags::APPEND, how.append);
        flags.set(OFlags::TRUNC, how.truncate);
        Ok(Box::new(File::from(self.open_in_root(path, flags)?)))
    }

    fn folder(&self, path: &[u8]) -> Result<Box<dyn Folder<'_> + '_>> {
        Ok(Box::new(LiveFolder { directory: self.open_in_root(path, OFlags::PATH | OFlags::DIRECTORY)? }))
    }
}

struct LiveFolder {
    directory: OwnedFd,
}

impl<'t> Folder<'t> for LiveFolder {
    fn names(&self) -> Result<Names<'t>> {
        // All at once: what the kernel lists of a directory that changes meanwhile nobody says.
        let names = list(open_name(&self.directory, b".", READ_DIRECTORY)?)?.collect::<Result<Vec<_>>>()?;
        Ok(Box::new(names.into_iter().map(Ok)))
    }

    fn lstat(&self, name: &[u8]) -> Result<Stat> {
        stat_of(&open_name(&self.directory, name, OFlags::PATH)?)
    }

    fn folder(&self, name: &[u8]) -> Result<Box<dyn Folder<'t> + 't>> {
        Ok(Box::new(Self { directory: open_name(&self.directory, name, OFlags::PATH | OFlags::DIRECTORY)? }))
    }

    fn set_attr(&self, name: &[u8], judged: &Stat, attr: SetAttr) -> Result<()> {
        let file = open_name(&self.directory, name, OFlags::PATH)?;
        let found = stat_of(&file)?;
        let of = |stat: &Stat| (stat.ino, stat.mode, stat.uid, stat.gid);
        if of(&found) != of(judged) {
            return Err(Errno::STALE.into());
        }
        set_attr_of(&file, attr)
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?)
    }

    fn rmdir(&self, name: &[u8]) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, name, AtFlags::REMOVEDIR)?)
    }

    fn remove_tree(&self, name: &[u8], progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        remove_directory(&self.directory, name, progress)
    }
}

impl WriteAt for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        loop {
            match FileExt::write_at(self, bytes, offset) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO).into()),
            }
        }
    }

    fn set_size(&self, size: u64) -> Result<()> {
        Ok(rustix::fs::ftruncate(self, size)?)
    }

    fn stat(&self) -> Result<Stat> {
        stat_of(self.as_fd())
    }
}

impl ReadAt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        loop {
            match FileExt::read_at(self, buf, offset) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO).into()),
            }
        }
    }
}

/// A directory that is being walked. Its names are read whole before the first is visited, so that whoever walks may
/// change it.
struct Level {
    directory: OwnedFd,
    path: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
}

impl Level {
    fn new(directory: OwnedFd, path: Vec<u8>) -> Result<Self> {
        let listed = open_name(&directory, b".", READ_DIRECTORY)?;
        let names = list(listed)?.collect::<Result<Vec<_>>>()?.into_iter();
        Ok(Self { directory, path, names })
    }
}

/// One open directory for each level: paths may be longer than the kernel takes in one call.
struct Walk {
    levels: Vec<Level>,
    /// Told after the directory itself, which could not be listed.
    failed: Option<WalkError>,
}

impl Walk {
    fn descend(&mut self, directory: Result<OwnedFd>, path: Vec<u8>) {
        match directory.and_then(|directory| Level::new(directory, path.clone())) {
            Ok(level) => self.levels.push(level),
            // Gone while we walked.
            Err(Error::Refused(Errno::NOENT | Errno::STALE)) => {}
            Err(error) => self.failed = Some(WalkError { path, error }),
        }
    }
}

impl Iterator for Walk {
    type Item = Step;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        loop {
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let mut path = level.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            match open_name(&level.directory, &name, OFlags::PATH).and_then(|file| stat_of(&file)) {
                Ok(stat) => {
                    if stat.is_dir() {
                        let directory = open_name(&level.directory, &name, READ_DIRECTORY);
                        self.descend(directory, path.clone());
                    }
                    return Some(Ok(WalkEntry { path, stat }));
                }
                // Gone while we walked.
                Err(Error::Refused(Errno::NOENT | Errno::STALE)) => {}
                Err(error) => return Some(Err(WalkError { path, error })),
            }
        }
    }
}

/// A directory that is being emptied, and the directories in it that were not empty.
struct Emptying {
    directory: OwnedFd,
    name: Vec<u8>,
    full: Vec<Vec<u8>>,
}

/// Removes a directory and all below it: how many files that were.
fn remove_directory(parent: &OwnedFd, name: &[u8], progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
    let mut removed = 0;
    remove_content(open_name(parent, name, READ_DIRECTORY)?, &mut removed, progress)?;
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
    Ok(removed + 1)
}

fn remove_content(top: OwnedFd, removed: &mut u64, progress: &mut dyn FnMut(u64) -> bool) -> Result<()> {
    let full = remove_plain(&top, removed, progress)?;
    // A stack, not recursion: trees may be deeper than ours.
    let mut above = vec![Emptying { directory: top, name: Vec::new(), full }];
    while let Some(level) = above.last_mut() {
        if let Some(name) = level.full.pop() {
            let directory = open_name(&level.directory, &name, READ_DIRECTORY)?;
            let full = remove_plain(&directory, removed, progress)?;
            above.push(Emptying { directory, name, full });
        } else {
            let empty = above.pop().expect("it was looked at above");
            if let Some(level) = above.last() {
                rustix::fs::unlinkat(&level.directory, &empty.name[..], AtFlags::REMOVEDIR)?;
                count(removed, progress)?;
            }
        }
    }
    Ok(())
}

/// Removes everything in a directory that goes at once; the names of the directories that do not.
fn remove_plain(directory: &OwnedFd, removed: &mut u64, progress: &mut dyn FnMut(u64) -> bool) -> Result<Vec<Vec<u8>>> {
    let mut full = Vec::new();
    let names = list(open_name(directory, b".", READ_DIRECTORY)?)?.collect::<Result<Vec<_>>>()?;
    for name in names {
        match rustix::fs::unlinkat(directory, &name[..], AtFlags::empty()) {
            Err(Errno::ISDIR) => match rustix::fs::unlinkat(directory, &name[..], AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) => {
                    full.push(name);
                    continue;
                }
                result => result?,
            },
            result => result?,
        }
        count(removed, progress)?;
    }
    Ok(full)
}

fn count(removed: &mut u64, progress: &mut dyn FnMut(u64) -> bool) -> Result<()> {
    *removed += 1;
    if progress(*removed) { Ok(()) } else { Err(Error::Cancelled) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount was detached while files were copied into it, and its paths became the host's: `/etc` of the volume was `/etc` of the host from
    /// then on. Here a file that has lost its name stands for that.
    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        let host = tempfile::tempdir().unwrap();
        let path = host.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, "first").unwrap();
        let file = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(path_of(&file).unwrap(), path);
        std::fs::rename(&path, host.path().join("kept")).unwrap();
        assert_eq!(path_of(&file).unwrap(), path.with_file_name("kept"));
        std::fs::remove_file(host.path().join("kept")).unwrap();
        assert!(matches!(path_of(&file), Err(Error::Refused(Errno::NXIO))));
        // Where the kernel says that it lies, there is another one.
        std::fs::write(host.path().join("kept (deleted)"), "second").unwrap();
        assert!(matches!(path_of(&file), Err(Error::Refused(Errno::NXIO))));
    }

    /// A mode was worked out for one file, and given to another one that had been put into its place meanwhile.
    #[test]
    fn what_was_judged_is_what_is_changed() {
        let host = tempfile::tempdir().unwrap();
        let path = |name: &str| host.path().join(name);
        let mode = |name: &str| rustix::fs::stat(path(name)).unwrap().st_mode & 0o7777;
        for name in ["judged", "other"] {
            std::fs::write(path(name), name).unwrap();
            rustix::fs::chmod(path(name), Mode::from_raw_mode(0o644)).unwrap();
        }
        let directory = rustix::fs::open(host.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let folder = LiveFolder { directory };
        let judged = folder.lstat(b"judged").unwrap();
        let attr = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let is_stale = |result: Result<()>| matches!(result, Err(Error::Refused(Errno::STALE)));
        assert!(is_stale(folder.set_attr(b"other", &judged, attr)));
        rustix::fs::chmod(path("judged"), Mode::from_raw_mode(0o600)).unwrap();
        assert!(is_stale(folder.set_attr(b"judged", &judged, attr)), "another mode by now");
        assert_eq!((mode("judged"), mode("other")), (0o600, 0o644));
        let judged = folder.lstat(b"judged").unwrap();
        folder.set_attr(b"judged", &judged, attr).unwrap();
        assert_eq!(mode("judged"), 0o755);
    }
}
