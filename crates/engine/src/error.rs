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

/// A request that the device failed, or another thing of the host's that was needed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", self.task())]
pub struct IoError {
    /// What was being done: "read", say.
    pub op: &'static str,
    /// Where on the device, in bytes; `None` if it was at no one place there.
    pub offset: Option<u64>,
    pub source: io::Error,
}

impl IoError {
    /// What was being done, and where.
    pub fn task(&self) -> String {
        match self.offset {
            Some(offset) => format!("device {} at byte {offset}", self.op),
            None => self.op.to_owned(),
        }
    }
}

/// An image that is shorter than its volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the image is truncated: {found} of {needed} bytes are there; get a whole copy")]
pub struct Truncated {
    pub found: u64,
    pub needed: u64,
}

/// An option that cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("option {option}: {reason}")]
pub struct BadOption {
    pub option: &'static str,
    pub reason: String,
}

/// Why an operation failed; [`Error::errno`] is what a system call would have said.
///
/// All that takes more than a word is boxed, because nearly every function of the engine answers a `Result`: one of two words comes
/// back in registers, a larger one by way of memory, with all that it holds.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller asked for something POSIX says to refuse.
    #[error("{0}")]
    Refused(Errno),
    /// The device failed a request, or the host did not give what was needed.
    #[error(transparent)]
    Io(Box<IoError>),
    /// The host has no room for what is to be written: its file system, or a quota there, is full. The volume goes on, with
    /// everything that was done to it in memory; what failed can be tried again once there is room.
    #[error(
        "the host's file system has no room for the image: {0}; make room there, and what failed can be tried again"
    )]
    HostFull(io::Error),
    /// The volume holds something no correct engine writes.
    #[error("{0}; run myriad fsck")]
    Corrupt(Box<Corrupt>),
    /// File data is not what was written; the rest of the file can be read.
    #[error("{0}; restore the file from a copy; myriad fsck --scrub lists all that is damaged")]
    Damaged(Box<DamagedData>),
    /// The volume is sound but needs what this build lacks.
    #[error("{0}")]
    Incompatible(Box<Incompatible>),
    /// The image is not a Myriad volume.
    #[error("not a Myriad volume")]
    Foreign,
    /// The image ends before its volume does.
    #[error(transparent)]
    Truncated(Box<Truncated>),
    /// The volume lies on a device whose sectors are larger than its blocks, in bytes. In a file it can be opened.
    #[error("the volume's blocks have {block} bytes, and the device takes no less than {sector}; copy it into a file")]
    Sectors { block: u32, sector: u32 },
    /// What changed the volume last did so without a log, or was a repair, and did not come to its end.
    #[error(
        "the volume was not closed cleanly by a writer without a log (order=none), or by a repair, and may not be sound; run \
         myriad fsck -p before it is changed, or open it read-only"
    )]
    Unchecked,
    /// An option that cannot be honoured: which, and why.
    #[error(transparent)]
    Option(Box<BadOption>),
    /// Somebody else has the volume open.
    #[error("{0}")]
    InUse(Box<String>),
    /// The image cannot be opened or made: it is missing, say (ENOENT), or may not be read (EACCES).
    #[error("{0}")]
    Open(Box<OpenError>),
    /// An error or a panic in the middle of a change or in a checkpoint, or [`crate::Fs::shut_down`], has ended all changes until the
    /// next opening. [`crate::Fs::shut_down_reason`] says which.
    #[error(
        "the volume was shut down after an earlier error; reads go on, changes are refused until it is opened again"
    )]
    Shutdown,
    /// Somebody has closed the volume for all who have it.
    #[error("the volume was closed; reads go on, changes are refused until it is opened again")]
    Closed,
    /// Long work was cancelled by its caller.
    #[error("cancelled")]
    Cancelled,
}

const _: () = assert!(size_of::<Result<()>>() <= 16);

impl Error {
    /// The device failed at `op`, at byte `offset`.
    pub fn io(op: &'static str, offset: u64, source: io::Error) -> Self {
        Self::Io(Box::new(IoError { op, offset: Some(offset), source }))
    }

    /// The host failed at `op`, or the device did so at no one place: `op` says all of what it was.
    pub fn host(op: &'static str, source: io::Error) -> Self {
        Self::Io(Box::new(IoError { op, offset: None, source }))
    }

    /// `option` cannot be honoured, for that reason.
    pub fn bad_option(option: &'static str, reason: impl Into<String>) -> Self {
        Self::Option(Box::new(BadOption { option, reason: reason.into() }))
    }

    /// Somebody else has the volume: who.
    pub fn in_use(holder: impl Into<String>) -> Self {
        Self::InUse(Box::new(holder.into()))
    }

    /// The errno a system call would return.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(errno) => *errno,
            Self::Io(_) | Self::Damaged(_) | Self::Shutdown => Errno::IO,
            Self::HostFull(_) => Errno::NOSPC,
            Self::Corrupt(_) | Self::Unchecked => Errno::UCLEAN,
            Self::Incompatible(_) | Self::Foreign | Self::Truncated(_) | Self::Sectors { .. } | Self::Option(_) => {
                Errno::INVAL
            }
            Self::InUse(_) => Errno::BUSY,
            Self::Open(error) => match &**error {
                OpenError::InUse(_) => Errno::BUSY,
                OpenError::Unsuitable { .. } => Errno::INVAL,
                OpenError::Io { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            },
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

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(Box::new(corrupt))
    }
}

impl From<Incompatible> for Error {
    fn from(incompatible: Incompatible) -> Self {
        Self::Incompatible(Box::new(incompatible))
    }
}

impl From<Truncated> for Error {
    fn from(truncated: Truncated) -> Self {
        Self::Truncated(Box::new(truncated))
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
            Error::Io(failed) => Self::new(failed.source.kind(), error),
            _ => Self::new(Self::from(error.errno()).kind(), error),
        }
    }
}

impl From<SuperblockError> for Error {
    fn from(error: SuperblockError) -> Self {
        match error {
            SuperblockError::Foreign => Self::Foreign,
            SuperblockError::Corrupt(corrupt) => corrupt.into(),
            SuperblockError::Incompatible(incompatible) => incompatible.into(),
        }
    }
}

/// Shorthand for a refusal.
pub(crate) fn refuse<T>(errno: Errno) -> Result<T> {
    Err(Error::Refused(errno))
}
