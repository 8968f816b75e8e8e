//! Who may open a volume at the same time: one writer, or any number of readers.
//!
//! Open-file-description locks, because they belong to the open file and not to the process: two opens in one process
//! exclude each other, closing some other descriptor of the file releases nothing, and a killed holder leaves nothing
//! behind. A forked child shares its parent's lock; `ForkedChild` keeps it from using the device.
//!
//! Such a lock has no owner that the kernel would tell. So on a conflict the holder is looked for among all processes'
//! descriptors: slow, a few milliseconds, and only ever done to explain a refusal.
//!
//! A loop device and the file that it lies on are two nodes, and a lock on the one says nothing to who opens the other. So whoever locks a loop device locks
//! the file behind it as well, and whoever locks a file alone looks for loop devices over it that are in use ([`crate::loops`]).
//!
//! Locks have ranges. A volume in a window of a file (`offset=`, `sizelimit=`) locks the bytes of the window, so two volumes side
//! by side in one image can be mounted at the same time. Two windows that overlap exclude each other, whichever way they were
//! given. Without `sizelimit=` window and lock reach to the end of the file.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Holder, InUse, OpenError};
use crate::loops;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    Shared,
    Exclusive,
    Unlocked,
}

/// Bytes of the file that a lock covers, so that volumes side by side in one file do not exclude each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockRange {
    pub start: u64,
    /// Zero reaches to the end of the file, however long it becomes.
    pub length: u64,
}

impl LockRange {
    pub(crate) fn overlaps(self, start: u64, last: u64) -> bool {
        let own_last = match self.length {
            0 => u64::MAX,
            length => self.start.saturating_add(length - 1),
        };
        self.start <= last && start <= own_last
    }
}

/// Takes, changes or gives up this open file's lock, without waiting.
pub(crate) fn set_lock(file: &File, path: &Path, range: LockRange, kind: LockKind) -> Result<(), OpenError> {
    let lock_type = match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Unlocked => libc::F_UNLCK,
    };
    let (Ok(start), Ok(length)) = (i64::try_from(range.start), i64::try_from(range.length)) else {
        return Err(OpenError::unsuitable(path, "the volume lies beyond what a file can hold"));
    };
    let request = libc::flock {
        l_type: lock_type as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        // The kernel insists on zero for this kind of lock.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the command reads one `flock` through the pointer.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) };
    if answer == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => {
            let holder = find_lock_holder(file, range, kind);
            Err(InUse { path: path.to_owned(), holder }.into())
        }
        _ => Err(OpenError::io(path, "lock", error)),
    }
}

/// Whoever has a file in use as volumes are used: by a lock of an open file on any part of it or, for a block device, by the
/// kernel's claim. Asking changes nothing and takes nothing; `file` is open for reading.
pub fn holder(file: &File, path: &Path) -> io::Result<Option<InUse>> {
    let metadata = file.metadata()?;
    let everything = LockRange { start: 0, length: 0 };
    if is_locked(file)? {
        let holder = find_lock_holder(file, everything, LockKind::Exclusive);
        return Ok(Some(InUse { path: path.to_owned(), holder }));
    }
    if metadata.is_file() {
        return find_loop(file, path, everything);
    }
    if !metadata.file_type().is_block_device() {
        return Ok(None);
    }
    if let Some(behind) = loops::behind(metadata.rdev(), false)
        && is_locked(&behind.file)?
    {
        let holder = find_lock_holder(&behind.file, everything, LockKind::Exclusive);
        return Ok(Some(InUse { path: path.to_owned(), holder }));
    }
    Ok(is_claimed(path)?.then(|| InUse { path: path.to_owned(), holder: find_mount(metadata.rdev()) }))
}

/// Whether the kernel, or a program, has a block device to itself. The claim that asks lasts no longer than its descriptor.
pub(crate) fn is_claimed(path: &Path) -> io::Result<bool> {
    match fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(true),
        claim => claim.map(|_| false),
    }
}

/// Takes the exclusive lock of a regular file, which nobody uses through a loop device.
pub(crate) fn lock_alone(file: &File, path: &Path, range: LockRange) -> Result<(), OpenError> {
    set_lock(file, path, range, LockKind::Exclusive)?;
    let found = find_loop(file, path, range).map_err(|error| OpenError::io(path, "find loop devices over", error));
    found.and_then(|in_use| in_use.map_or(Ok(()), |in_use| Err(in_use.into()))).inspect_err(|_| {
        // It is refused in any case; closing gives up what this does not.
        let _ = set_lock(file, path, range, LockKind::Unlocked);
    })
}

/// A loop device in use over a part of a file.
fn find_loop(file: &File, path: &Path, range: LockRange) -> io::Result<Option<InUse>> {
    let found = loops::over(file, range)?;
    Ok(found.map(|(device, node)| {
        let holder = find_mount(device).unwrap_or(Holder::Loop { node });
        InUse { path: path.to_owned(), holder: Some(holder) }
    }))
}

/// Whether an open file has a lock on this one, which is not locked by that.
fn is_locked(file: &File) -> io::Result<bool> {
    let mut request = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the command reads and writes one `flock` through the pointer.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut request) };
    if answer != 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            // A file system without locks: nobody has one.
            Some(libc::EINVAL | libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP) => Ok(false),
            _ => Err(error),
        };
    }
    // Locks of processes, which have their number here, are not those that devices take.
    Ok(request.l_type != libc::F_UNLCK as libc::c_short && request.l_pid == -1)
}

/// Looks for a process with a lock on the same file that conflicts.
fn find_lock_holder(file: &File, range: LockRange, wanted: LockKind) -> Option<Holder> {
    let own = file.metadata().ok()?;
    let own_process = std::process::id();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Unreadable means gone, or another user's.
        let Ok(descriptors) = fs::read_dir(process.path().join("fdinfo")) else { continue };
        for descriptor in descriptors.flatten() {
            let name = descriptor.file_name();
            if pid == own_process && name.to_str() == Some(&file.as_raw_fd().to_string()) {
                continue;
            }
            let Ok(info) = fs::read_to_string(descriptor.path()) else { continue };
            if !info.lines().any(|line| conflicts(line, own.ino(), range, wanted)) {
                continue;
            }
            // Only now: a look at every file that is open anywhere could hang on a dead server.
            let Ok(other) = fs::metadata(process.path().join("fd").join(&name)) else { continue };
            if (other.dev(), other.ino()) == (own.dev(), own.ino()) {
                let command = fs::read_to_string(process.path().join("comm")).ok();
                return Some(Holder::Process { pid, command: command.map(|name| name.trim_end().to_owned()) });
            }
        }
    }
    None
}

/// A record lock as the kernel shows it, such as `1: OFDLCK  ADVISORY  WRITE -1 fe:00:1234 0 EOF`: in `/proc/locks`, and
/// behind `lock:` in a process's `fdinfo`.
struct RecordLock<'l> {
    /// Held by an open file (`OFDLCK`), or by a process (`POSIX`).
    is_of_file: bool,
    is_write: bool,
    /// Device and inode number. Some file systems have two device numbers, and `stat` tells the other one.
    inode: &'l str,
    first: u64,
    last: u64,
}

impl<'l> RecordLock<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, kind @ ("OFDLCK" | "POSIX"), _, mode, _, inode, first, last] = fields[..] else { return None };
        let last = if last == "EOF" { u64::MAX } else { last.parse().ok()? };
        let (is_of_file, is_write) = (kind == "OFDLCK", mode == "WRITE");
        Some(Self { is_of_file, is_write, inode, first: first.parse().ok()?, last })
    }

    fn is_on(&self, ino: u64) -> bool {
        self.inode.rsplit(':').next().and_then(|number| number.parse().ok()) == Some(ino)
    }
}

/// Whether a line of `fdinfo` is a record lock on inode number `ino` that is in the way of ours.
fn conflicts(line: &str, ino: u64, range: LockRange, wanted: LockKind) -> bool {
    let Some(lock) = line.strip_prefix("lock:").and_then(RecordLock::parse) else { return false };
    lock.is_on(ino) && (wanted == LockKind::Exclusive || lock.is_write) && range.overlaps(lock.first, lock.last)
}

/// A lock for writing that an open file has, of whatever process: which one the kernel does not tell everybody.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteLock {
    inode: String,
    first: u64,
    last: u64,
}

/// The locks for writing that open files have on a file. A file with the same inode number on another file system may be
/// taken for it, its locks only for those of an inode of their own.
pub fn write_locks(path: &Path) -> io::Result<BTreeSet<WriteLock>> {
    let ino = fs::metadata(path)?.ino();
    let table = fs::read_to_string("/proc/locks")?;
    let locks = table.lines().filter_map(RecordLock::parse);
    let locks = locks.filter(|lock| lock.is_of_file && lock.is_write && lock.is_on(ino));
    Ok(locks.map(|lock| WriteLock { inode: lock.inode.to_owned(), first: lock.first, last: lock.last }).collect())
}

/// Where the kernel has a block device mounted, for a device that is busy.
pub(crate) fn find_mount(device: u64) -> Option<Holder> {
    let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let found = fields.next()? == numbers;
        let at = fields.nth(1)?;
        found.then(|| Holder::Mount { at: PathBuf::from(at) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, FileDevice};

    #[test]
    fn a_holder_is_found_without_a_lock_of_ones_own() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        temporary.as_file().set_len(1 << 20).unwrap();
        let ask = || holder(&File::open(temporary.path()).unwrap(), temporary.path()).unwrap();
        assert_eq!(ask(), None);
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let device = FileDevice::open(temporary.path(), access).unwrap();
            assert_eq!(ask(), None, "a file that is open is not in use by that alone");
            match access {
                Access::ReadOnly => device.lock_shared().unwrap(),
                Access::ReadWrite => device.lock_exclusive().unwrap(),
            }
            assert_eq!(ask().expect("somebody").pid(), Some(std::process::id()));
            assert_eq!(ask().expect("asking has changed nothing").pid(), Some(std::process::id()));
        }
        assert_eq!(ask(), None);
    }

    /// One that waits holds nothing.
    #[test]
    fn those_who_wait_for_a_lock_have_none() {
        let lock = RecordLock::parse("7: OFDLCK ADVISORY  WRITE -1 fe:00:1234 0 EOF").unwrap();
        assert!(lock.is_of_file && lock.is_write && lock.is_on(1234) && !lock.is_on(123));
        assert!(RecordLock::parse("7: -> OFDLCK ADVISORY  WRITE -1 fe:00:1234 0 EOF").is_none());
    }

    #[test]
    fn lock_lines_are_read_as_the_kernel_writes_them() {
        let check = |line, start, length, wanted| conflicts(line, 1234, LockRange { start, length }, wanted);
        let write = "lock:\t1: OFDLCK  ADVISORY  WRITE -1 fe:00:1234 0 EOF";
        assert!(check(write, 0, 0, LockKind::Shared));
        assert!(check(write, 1 << 40, 1, LockKind::Exclusive));
        let read = "lock:\t1: POSIX  ADVISORY  READ 77 fe:00:1234 1000 1999";
        assert!(!check(read, 0, 0, LockKind::Shared));
        assert!(check(read, 0, 0, LockKind::Exclusive));
        assert!(check(read, 1999, 1, LockKind::Exclusive));
        assert!(!check(read, 0, 1000, LockKind::Exclusive));
        assert!(!check(read, 2000, 0, LockKind::Exclusive));
        assert!(!conflicts(write, 1235, LockRange { start: 0, length: 0 }, LockKind::Exclusive));
        for other in ["", "pos:\t0", "lock:", "lock:\t1: FLOCK  ADVISORY  WRITE 77 fe:00:1234 0 EOF"] {
            assert!(!check(other, 0, 0, LockKind::Exclusive));
        }
    }
}
