//! What can go wrong beside the host's own errors.
//!
//! Opening and locking answer with [`OpenError`], because a user has to be told who is in the way. Requests answer
//! with `io::Error`, as the trait says; [`RangeError`] and [`ForkedChild`] travel inside one.

use crate::BlockDevice;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a device could not be opened, created or locked.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody else holds the volume.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// The options ask for what this file cannot give.
    #[error("{}: {reason}", path.display())]
    Unsuitable { path: PathBuf, reason: String },
    /// The host refused; `action` says what was being done ("open", "lock").
    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },
}

impl OpenError {
    pub(crate) fn io(path: &Path, action: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.to_owned(), action, source: source.into() }
    }

    pub(crate) fn unsuitable(path: &Path, reason: impl Into<String>) -> Self {
        Self::Unsuitable { path: path.to_owned(), reason: reason.into() }
    }
}

/// Keeps the meaning as the kind: `ResourceBusy`, `InvalidInput`, or the host's own.
impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::InUse(_) => io::ErrorKind::ResourceBusy,
            OpenError::Unsuitable { .. } => io::ErrorKind::InvalidInput,
            OpenError::Io { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

/// Whether a request failed because the host has no room for it: its file system or thin pool is full, or a quota or the limit of file
/// sizes (`ulimit -f`) is reached. What had been written before is still there, and the same write may succeed once there is room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// The error of a flush: what the host had taken and then found no room for is lost, so it is none that [`is_full`] knows.
pub(crate) fn of_flush(error: io::Error) -> io::Error {
    if is_full(&error) { io::Error::other(format!("at a flush, after it had taken the data: {error}")) } else { error }
}

/// The volume is open elsewhere in a way that excludes what was asked for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct InUse {
    pub path: PathBuf,
    /// Found by looking through `/proc`, so absent when the holder is another user's process or in another container.
    pub holder: Option<Holder>,
}

impl InUse {
    /// Process id of the holder, where it is a process and could be found.
    pub fn pid(&self) -> Option<u32> {
        match self.holder {
            Some(Holder::Process { pid, .. }) => Some(pid),
            _ => None,
        }
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: in use", self.path.display())?;
        match &self.holder {
            Some(Holder::Process { pid, command: Some(command) }) => write!(f, " by process {pid} ({command})"),
            Some(Holder::Process { pid, command: None }) => write!(f, " by process {pid}"),
            Some(Holder::Loop { node }) => write!(f, " through {}", node.display()),
            Some(Holder::Mount { at }) => write!(f, ": the kernel has it mounted at {}", at.display()),
            None => write!(f, " by another process"),
        }
    }
}

/// Who has a volume in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A process; `command` is the kernel's short name for it.
    Process { pid: u32, command: Option<String> },
    /// The kernel: the block device is mounted as one of its file systems.
    Mount { at: PathBuf },
    /// Whoever has a loop device over the file.
    Loop { node: PathBuf },
}

/// A request that no device of this size and alignment could serve. All numbers are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("{length} bytes at offset {offset} reach past the end of the device, {size} bytes")]
    PastEnd { offset: u64, length: u64, size: u64 },
    #[error("{length} bytes at offset {offset} are not aligned to {alignment} bytes")]
    Unaligned { offset: u64, length: u64, alignment: usize },
}

impl From<RangeError> for io::Error {
    fn from(error: RangeError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// A device that was opened before a `fork` was used in the child, which has neither its threads nor its rings, and
/// shares its lock with the parent: two writers on one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device was opened by process {owner_pid} and cannot be used in its forked child {pid}; open it again there")]
pub struct ForkedChild {
    pub owner_pid: u32,
    pub pid: u32,
}

impl From<ForkedChild> for io::Error {
    fn from(error: ForkedChild) -> Self {
        Self::other(error)
    }
}

/// Refuses a request that is unaligned or reaches past the end. Zero bytes are a request like any other.
pub(crate) fn check_range(size: u64, alignment: usize, offset: u64, length: u64) -> Result<(), RangeError> {
    check_end(size, offset, length)?;
    let mask = alignment as u64 - 1;
    if (offset | length) & mask != 0 {
        return Err(RangeError::Unaligned { offset, length, alignment });
    }
    Ok(())
}

/// As [`check_range`], by what the device says of itself.
pub(crate) fn check_request(device: &dyn BlockDevice, offset: u64, length: u64) -> io::Result<()> {
    Ok(check_range(device.size(), device.alignment(), offset, length)?)
}

/// The half of [`check_range`] that a discard is held to.
pub(crate) fn check_end(size: u64, offset: u64, length: u64) -> Result<(), RangeError> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(RangeError::PastEnd { offset, length, size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_held_to_size_and_alignment() {
        let check = |offset, length| check_range(8192, 512, offset, length);
        assert_eq!(check(0, 8192), Ok(()));
        assert_eq!(check(8192, 0), Ok(()));
        assert!(matches!(check(8192, 512), Err(RangeError::PastEnd { .. })));
        assert!(matches!(check(u64::MAX - 511, 512), Err(RangeError::PastEnd { .. })));
        assert!(matches!(check(1, 512), Err(RangeError::Unaligned { .. })));
        assert!(matches!(check(512, 511), Err(RangeError::Unaligned { .. })));
        assert_eq!(io::Error::from(check(1, 1).unwrap_err()).kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn messages_name_the_thing_and_the_holder() {
        let in_use = |holder| InUse { path: "a.img".into(), holder }.to_string();
        let process = Holder::Process { pid: 7, command: Some("myriad".into()) };
        assert_eq!(in_use(Some(process)), "a.img: in use by process 7 (myriad)");
        assert_eq!(in_use(None), "a.img: in use by another process");
    }
}
