//! Errors: the caller's, the device's, the volume's. Our own mistakes are assertions, never an `Error`.

use myriad_device::OpenError;
use myriad_format::superblock::SuperblockError;
use myriad_format::{Corrupt, FsBlock, Incompatible, Ino};
use std::io;

pub use rustix::io::Errno;

/// What an operation answers.
pub type Result<T> = std::result::Result<T, Error>;

/// A block of file data whose checksum is not that of what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ino:?}: the data at byte {offset} ({block:?}): checksum {stored:#010x} stored, {computed:#010x} computed")]
pub struct DamagedData {
    pub ino: Ino,
    /// Where in the file the block begins, in bytes.
    pub offset: u64,
    pub block: FsBlock,
    pub stored: u32,
    pub computed: u32,
}

/// Why an operation failed; [`Error::errno`] is what a system call would have said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller asked for something POSIX says to refuse.
    #[error("{0}")]
    Refused(Errno),
    /// The device failed a request.
    #[error("device {op} at byte {offset}: {source}")]
    Io { op: &'static str, offset: u64, source: io::Error },
    /// The host has no room for what is to be written: its file system, or a quota there, is full. The volume goes on, with
    /// everything that was done to it in memory; what failed can be tried again once there is room.
    #[error(
        "the host's file system has no room for the image: {0}; make room there, and what failed can be tried again"
    )]
    HostFull(io::Error),
    /// The volume holds something no correct engine writes.
    #[error("{0}; run myriad fsck")]
    Corrupt(#[from] Corrupt),
    /// File data is not what was written; the rest of the file can be read.
    #[error("{0}; restore the file from a copy; myriad fsck --scrub lists all that is damaged")]
    Damaged(DamagedData),
    /// The volume is sound but needs what this build lacks.
    #[error("{0}")]
    Incompatible(#[from] Incompatible),
    /// The image is not a Myriad volume.
    #[error("not a Myriad volume")]
    Foreign,
    /// The image ends before its volume does.
    #[error("the image is truncated: {found} of {needed} bytes are there; get a whole copy")]
    Truncated { found: u64, needed: u64 },
    /// What changed the volume last did so without a log, or was a repair, and did not come to its end.
    #[error(
        "the volume was not closed cleanly by a writer without a log (order=none), or by a repair, and may not be sound; run \
         myriad fsck -p before it is changed, or open it read-only"
    )]
    Unchecked,
    /// An option that cannot be honoured: which, and why.
    #[error("option {option}: {reason}")]
    Option { option: &'static str, reason: String },
    /// Somebody else has the volume open.
    #[error("{0}")]
    InUse(String),
    /// The image cannot be opened or made: it is missing, say (ENOENT), or may not be read (EACCES).
    #[error("{0}")]
    Open(OpenError),
    /// An earlier metadata write or sync failed; all changes are refused until the next mount.
    #[error(
        "the volume was shut down after an earlier device error; reads go on, changes are refused until it is opened again"
    )]
    Shutdown,
    /// Somebody has closed the volume for all who have it.
    #[error("the volume was closed; reads go on, changes are refused until it is opened again")]
    Closed,
    /// Long work was cancelled by its caller.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// The errno a system call would return.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(errno) => *errno,
            Self::Io { .. } | Self::Damaged(_) | Self::Shutdown => Errno::IO,
            Self::HostFull(_) => Errno::NOSPC,
            Self::Corrupt(_) | Self::Unchecked => Errno::UCLEAN,
            Self::Incompatible(_) | Self::Foreign | Self::Truncated { .. } => Errno::INVAL,
            Self::Option { .. } => Errno::INVAL,
            Self::InUse(_) | Self::Open(OpenError::InUse(_)) => Errno::BUSY,
            Self::Open(OpenError::Unsuitable { .. }) => Errno::INVAL,
            Self::Open(OpenError::Io { source, .. }) => Errno::from_io_error(source).unwrap_or(Errno::IO),
            Self::Closed => Errno::BADF,
            Self::Cancelled => Errno::INTR,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// A refusal becomes what a system call would have answered, with `raw_os_error`. All others keep their message, and are the inner
/// error of one whose kind is that of their errno.
///
/// ```
/// use myriad_engine::{Fs, MountOptions};
/// use std::io;
///
/// fn open() -> io::Result<Fs> {
///     Ok(Fs::open("missing.img".as_ref(), MountOptions::default())?)
/// }
/// let error = open().err().expect("there is no such image");
/// assert_eq!(error.kind(), io::ErrorKind::NotFound);
/// assert!(error.to_string().starts_with("missing.img: "));
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match &error {
            Error::Refused(errno) => (*errno).into(),
            Error::Io { source, .. } => Self::new(source.kind(), error),
            _ => Self::new(Self::from(error.errno()).kind(), error),
        }
    }
}

impl From<SuperblockError> for Error {
    fn from(error: SuperblockError) -> Self {
        match error {
            SuperblockError::Foreign => Self::Foreign,
            SuperblockError::Corrupt(corrupt) => Self::Corrupt(corrupt),
            SuperblockError::Incompatible(incompatible) => Self::Incompatible(incompatible),
        }
    }
}

/// Shorthand for a refusal.
pub(crate) fn refuse<T>(errno: Errno) -> Result<T> {
    Err(Error::Refused(errno))
}
