//! The options of a check, its progress, and the reasons for which it could not be made.

use crate::superblock::Copies;
use std::io;
use std::sync::OnceLock;

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    pub phase: &'static str,
    /// From 0 to 1, over all phases. A repair ends at less if it finds less to do.
    pub fraction: f64,
}

/// Options of a check.
#[derive(Clone)]
pub struct Options<'a> {
    /// Put right what can be put right. Without it nothing is written.
    pub repair: bool,
    /// Read all file data too.
    pub scrub: bool,
    /// With `repair` and `scrub`: take contents that differ from their checksums as they are.
    pub accept_contents: bool,
    /// With `repair`: leave a volume alone whose metadata cannot all be read, or whose log is needed and damaged. What a repair
    /// drops for that reason, another cable may bring back.
    pub leave_unreadable: bool,
    /// With `repair`: begin a new log on the log device, though it holds none of this volume that can be read.
    pub new_log: bool,
    /// Where the superblock is lost: the byte of the device at which the copy lies to go by. Without it only a copy counts of whose volume the
    /// header of group 0 is.
    pub superblock: Option<u64>,
    pub threads: usize,
    /// Inode slots (of 128 bytes) whose table is held in memory, 9 bytes each; those of one group in any case. A volume with more
    /// has its directories read once for each so many. Of a file there are 1 to 8.
    pub slots_max: u64,
    /// Findings kept in the report; the rest are counted.
    pub findings_max: usize,
    /// Tell what power loss has left behind in a form that a volume in use can give back ([`crate::Report::leftovers`]).
    pub leftovers: bool,
    /// Called now and then, from any thread; `false` cancels. Repair cannot be cancelled once it writes.
    pub progress: Option<&'a (dyn Fn(Progress) -> bool + Sync)>,
    /// Time for what repair makes, in nanoseconds since 1970.
    pub now: i64,
}

impl Default for Options<'_> {
    fn default() -> Self {
        // Asking opens files of the host: longer than it takes to read a small volume.
        static THREADS: OnceLock<usize> = OnceLock::new();
        let ask = || std::thread::available_parallelism().map_or(1, usize::from).min(16);
        Self {
            repair: false,
            scrub: false,
            accept_contents: false,
            leave_unreadable: false,
            new_log: false,
            superblock: None,
            threads: *THREADS.get_or_init(ask),
            slots_max: 1 << 23,
            findings_max: 1000,
            leftovers: false,
            progress: None,
            now: 0,
        }
    }
}

/// Why a volume could not be checked at all.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error("not a Myriad volume")]
    Foreign,
    /// Neither the superblock nor a copy of it can be believed.
    #[error("superblock: {0}")]
    Superblock(String),
    /// There are copies of a superblock, and nothing where no file lies says which one is the volume's.
    #[error("superblock: {0}")]
    Unconfirmed(Copies),
    /// The copy of the superblock that was named is none.
    #[error("no copy of a superblock lies at byte {0}")]
    NoCopy(u64),
    #[error("the volume has {blocks} blocks of {block_size} bytes, the device {size} bytes: it was cut short")]
    CutShort { blocks: u64, block_size: usize, size: u64 },
    /// It has a log in blocks that are smaller than the device's sectors.
    #[error("its blocks have {block} bytes, and the device takes no less than {sector}")]
    Sectors { block: usize, sector: usize },
    #[error(transparent)]
    Incompatible(#[from] myriad_format::Incompatible),
    #[error("the volume keeps its log on another device: name it")]
    NoLogDevice,
    /// The log device is another's, or its log is lost; repair would write over it.
    #[error("the log device holds no log of this volume that can be read")]
    ForeignLog,
    /// The log device has the volume's log as of another moment; repair would write over it.
    #[error("the log device holds a log of another state of this volume, or the end of its log is lost")]
    OtherLog,
    /// The log is not where the superblock says, or cannot be read through this device.
    #[error("{0}")]
    Log(String),
    #[error("device {op} at byte {offset}: {source}")]
    Io { op: &'static str, offset: u64, source: io::Error },
    /// Repair found no way to go on; what it has written so far does no harm.
    #[error("cannot repair: {0}")]
    Repair(String),
    /// The same, on a volume that is too full for what has to be written anew.
    #[error("cannot repair: no free block is left for what has to be written anew")]
    NoRoom,
    /// Nothing was changed.
    #[error("cancelled")]
    Cancelled,
    /// The volume was repaired, and the look at what is left was cancelled.
    #[error("repaired, and cancelled before a second look told what is left")]
    Unverified,
}
