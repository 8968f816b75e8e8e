//! Operations and answers as plain data.
//!
//! A [`Step`] is one operation by one user. Open files are in numbered slots; an operation on an empty slot answers
//! EBADF, and opening into a slot closes what was there first, whether the opening succeeds or not.

use crate::errno::Errno;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cred {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub umask: u16,
}

impl Cred {
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), umask: 0o022 }
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The users of generated runs; `Step::cred` is an index into this.
pub fn users() -> Vec<Cred> {
    vec![
        Cred::root(),
        Cred { uid: 1000, gid: 1000, groups: vec![100], umask: 0o002 },
        Cred { uid: 1001, gid: 1001, groups: vec![100, 200], umask: 0o077 },
        Cred { uid: 1002, gid: 200, groups: vec![], umask: 0 },
    ]
}

/// Open files a run may have at once.
pub const SLOTS: usize = 8;

/// File types; the numbers are `mode >> 12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Fifo = 1,
    CharDevice = 2,
    Directory = 4,
    BlockDevice = 6,
    File = 8,
    Symlink = 10,
    Socket = 12,
}

impl Kind {
    /// The type bits of a mode.
    pub fn mode_bits(self) -> u16 {
        (self as u16) << 12
    }

    pub fn from_mode(mode: u16) -> Option<Self> {
        use Kind::*;
        [Fifo, CharDevice, Directory, BlockDevice, File, Symlink, Socket]
            .into_iter()
            .find(|kind| *kind as u16 == mode >> 12)
    }
}

/// User-settable inode flags.
pub mod flag {
    pub const IMMUTABLE: u32 = 1;
    pub const APPEND: u32 = 2;
    pub const NODUMP: u32 = 4;
    pub const NOATIME: u32 = 8;
}

/// What rename may do with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameHow {
    Replace,
    NoReplace,
    Exchange,
    /// Leaves a character device 0/0 under the old name.
    Whiteout,
    NoReplaceWhiteout,
}

impl RenameHow {
    pub fn keeps_target(self) -> bool {
        matches!(self, Self::NoReplace | Self::NoReplaceWhiteout)
    }

    pub fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::NoReplaceWhiteout)
    }
}

/// How setxattr treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrHow {
    Set,
    Create,
    Replace,
}

/// What allocate does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateHow {
    Extend,
    KeepSize,
    Punch,
    Zero { keep_size: bool },
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenHow {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub truncate: bool,
    pub create: bool,
    pub exclusive: bool,
    pub no_follow: bool,
    pub sync: bool,
    pub mode: u16,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(i64),
}

/// One system call's worth of attribute change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Mode(u16),
    Owner {
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Size(u64),
    /// Not both `None`.
    Times {
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    },
    Flags(u32),
}

pub type PathBytes = Vec<u8>;

/// One operation. Paths start at the root, with or without a leading slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create {
        path: PathBytes,
        mode: u16,
    },
    Mkdir {
        path: PathBytes,
        mode: u16,
    },
    Mknod {
        path: PathBytes,
        kind: Kind,
        mode: u16,
        rdev: u64,
    },
    Symlink {
        target: PathBytes,
        path: PathBytes,
    },
    Readlink {
        path: PathBytes,
    },
    Link {
        source: PathBytes,
        target: PathBytes,
    },
    Unlink {
        path: PathBytes,
    },
    Rmdir {
        path: PathBytes,
    },
    Rename {
        source: PathBytes,
        target: PathBytes,
        how: RenameHow,
    },
    Stat {
        path: PathBytes,
        follow: bool,
    },
    Access {
        path: PathBytes,
        mask: u8,
    },
    ReadDir {
        path: PathBytes,
    },
    SetAttr {
        path: PathBytes,
        change: Change,
    },
    GetXattr {
        path: PathBytes,
        name: Vec<u8>,
    },
    SetXattr {
        path: PathBytes,
        name: Vec<u8>,
        value: Vec<u8>,
        how: XattrHow,
    },
    ListXattr {
        path: PathBytes,
    },
    RemoveXattr {
        path: PathBytes,
        name: Vec<u8>,
    },
    Open {
        slot: usize,
        path: PathBytes,
        how: OpenHow,
    },
    OpenTmpfile {
        slot: usize,
        path: PathBytes,
        mode: u16,
    },
    /// Names the open file; permissions are those of the step's user.
    LinkFile {
        slot: usize,
        path: PathBytes,
    },
    Close {
        slot: usize,
    },
    HandleStat {
        slot: usize,
    },
    Read {
        slot: usize,
        offset: u64,
        len: usize,
    },
    /// Writes `pattern::bytes(tag, ...)`; for a file opened to append, the pattern is that of `offset`, too.
    Write {
        slot: usize,
        offset: u64,
        len: usize,
        tag: u32,
    },
    Truncate {
        slot: usize,
        size: u64,
    },
    Allocate {
        slot: usize,
        how: AllocateHow,
        offset: u64,
        len: u64,
    },
    SeekData {
        slot: usize,
        offset: u64,
    },
    SeekHole {
        slot: usize,
        offset: u64,
    },
    HandleSetAttr {
        slot: usize,
        change: Change,
    },
    Fsync {
        slot: usize,
        data_only: bool,
    },
    /// Everything durable, as syncfs.
    Sync,
    /// All files closed, volume closed and opened again.
    Remount,
}

/// One operation by one user (`users()[cred]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub cred: usize,
    pub op: Op,
}

/// Attributes of a file. Blocks are left out: they are the implementation's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub ino: u64,
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
    pub flags: u32,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub ino: u64,
    pub kind: Kind,
}

/// What an operation gives back when it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    None,
    Stat(Stat),
    Bytes(Vec<u8>),
    Count(u64),
    /// Where seeking ended.
    Position(u64),
    Names(Vec<Vec<u8>>),
    Entries(Vec<Entry>),
}

pub type Answer = Result<Value, Errno>;

/// The paths of an operation, shared or to be changed, as it is given.
macro_rules! paths_of {
    ($op:expr) => {
        match $op {
            Op::Link { source, target } | Op::Rename { source, target, .. } => vec![source, target],
            Op::Create { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Mknod { path, .. }
            | Op::Symlink { path, .. }
            | Op::Readlink { path }
            | Op::Unlink { path }
            | Op::Rmdir { path }
            | Op::Stat { path, .. }
            | Op::Access { path, .. }
            | Op::ReadDir { path }
            | Op::SetAttr { path, .. }
            | Op::GetXattr { path, .. }
            | Op::SetXattr { path, .. }
            | Op::ListXattr { path }
            | Op::RemoveXattr { path, .. }
            | Op::Open { path, .. }
            | Op::OpenTmpfile { path, .. }
            | Op::LinkFile { path, .. } => vec![path],
            _ => Vec::new(),
        }
    };
}

impl Op {
    /// The paths that it names.
    pub fn paths(&self) -> Vec<&[u8]> {
        paths_of!(self)
    }

    /// The same, to be changed. What a symbolic link says is no path of the operation.
    pub fn paths_mut(&mut self) -> Vec<&mut Vec<u8>> {
        paths_of!(self)
    }

    /// Whether it may change the volume.
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            Self::Readlink { .. }
                | Self::Stat { .. }
                | Self::Access { .. }
                | Self::ReadDir { .. }
                | Self::GetXattr { .. }
                | Self::ListXattr { .. }
                | Self::HandleStat { .. }
                | Self::Read { .. }
                | Self::SeekData { .. }
                | Self::SeekHole { .. }
        )
    }
}
