//! The kernel's FUSE protocol as bytes: every structure, number and flag of it that we use, declared once.
//!
//! Names are those of linux/fuse.h without their prefix. Protocol 7.45; what is newer than a kernel is not asked of it.
//! Not here: what a request means (`request`), which flags we want (`negotiate`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 45;
/// Oldest protocol served: Linux 5.4. All that is newer is negotiated by flags.
pub const MINOR_MIN: u32 = 31;

pub const ROOT: u64 = 1;

/// Declares structures that are laid out as the kernel's C compiler does it; a hole between fields does not compile.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type,)*
        }
    )*};
}

wire! {
    /// Begins every request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        /// Length of what follows the arguments, in units of 8 bytes.
        total_extlen: u16,
        padding: u16,
    }
    /// Begins every answer.
    OutHeader { len: u32, error: i32, unique: u64, }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    StatxTime { sec: i64, nsec: u32, reserved: i32, }
    Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime, ctime: StatxTime,
        mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
    KStatFs {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    ForgetIn { nlookup: u64, }
    ForgetOne { nodeid: u64, nlookup: u64, }
    BatchForgetIn { count: u32, dummy: u32, }
    GetAttrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    SetAttrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { newdir: u64, }
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    LinkIn { oldnodeid: u64, }
    OpenIn { flags: u32, open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteOut { size: u32, padding: u32, }
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    SetXattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    GetXattrIn { size: u32, padding: u32, }
    GetXattrOut { size: u32, padding: u32, }
    AccessIn { mask: u32, padding: u32, }
    InterruptIn { unique: u64, }
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    FsTrimRange { start: u64, len: u64, minlen: u64, }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut { offset: u64, }
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut { bytes_copied: u64, }
    SyncFsIn { padding: u64, }
    /// Followed by the name, padded to 8 bytes.
    DirentHeader { ino: u64, off: u64, namelen: u32, kind: u32, }
    NotifyInvalInodeOut {
        ino: u64,
        /// Negative: attributes only.
        off: i64,
        len: i64,
    }
    /// Followed by the name and a NUL.
    NotifyInvalEntryOut { parent: u64, namelen: u32, flags: u32, }
    /// `struct fsxattr` of linux/fs.h.
    FsXattr { xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, pad: [u8; 8], }
}

const _: () = {
    assert!(size_of::<InHeader>() == 40);
    assert!(size_of::<InitOut>() == 64);
    assert!(size_of::<Attr>() == 88);
    assert!(size_of::<EntryOut>() == 128);
    assert!(size_of::<Statx>() == 256);
    assert!(size_of::<StatxOut>() == 288);
    assert!(size_of::<KStatFs>() == 80);
    assert!(size_of::<SetAttrIn>() == 88);
    assert!(size_of::<WriteIn>() == 40);
};

/// Numbers of requests, with their names.
macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        #[allow(dead_code, reason = "some are only named, in statistics")]
        pub mod opcode {
            $(pub const $name: u32 = $number;)*
        }

        /// What linux/fuse.h calls a request.
        pub fn opcode_name(opcode: u32) -> Option<&'static str> {
            match opcode {
                $($number => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9, UNLINK = 10,
    RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20,
    SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28,
    RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36,
    BMAP = 37, DESTROY = 38, IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43,
    READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SETUPMAPPING = 48, REMOVEMAPPING = 49,
    SYNCFS = 50, TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
}

/// Requests have numbers below this.
pub const OPCODE_LIMIT: usize = 64;

/// Flags of INIT; those from bit 32 on travel in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of `SetAttrIn::valid`.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Only of regular files, with the kernel's own cache of writes: then it keeps their times.
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of an answer to OPEN and CREATE.
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `OpenIn::open_flags`: set-id bits go with O_TRUNC.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;

/// `Statx::mask`: all that stat(2) knows.
pub const STATX_BASIC_STATS: u32 = 0x7ff;
pub const STATX_BTIME: u32 = 0x800;

pub const WRITE_CACHE: u32 = 1 << 0;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// `OutHeader::error` of a message that answers no request: attributes of an inode are no longer what they were.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// The same: what a name means is not known any more.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// `NotifyInvalEntryOut::flags`: the name is to be looked up before it is trusted again. Without it, it is dropped at once, with what is
/// mounted below it.
pub const EXPIRE_ONLY: u32 = 1 << 0;
/// The minor version of the protocol from which kernels know that (Linux 6.2). Earlier ones do not look at the flags.
pub const EXPIRE_ONLY_SINCE: u32 = 38;

/// ioctl(2) numbers that reach us.
pub mod ioctl {
    pub const GETFLAGS: u32 = 0x8008_6601;
    pub const SETFLAGS: u32 = 0x4008_6602;
    pub const GETFLAGS_32: u32 = 0x8004_6601;
    pub const SETFLAGS_32: u32 = 0x4004_6602;
    pub const FSGETXATTR: u32 = 0x801c_581f;
    pub const FSSETXATTR: u32 = 0x401c_5820;
    pub const SHUTDOWN: u32 = 0x8004_587d;
    pub const FITRIM: u32 = 0xc018_5879;
}

/// `IoctlIn::flags`: a program of 32 bits asks, or the kernel has 32 itself.
pub const IOCTL_32BIT: u32 = 1 << 3;

/// What the shutdown ioctl is to make durable first (`FSOP_GOING_FLAGS_...`).
pub mod going {
    pub const FLUSH_ALL: u32 = 0;
    /// What has been done to names and attributes.
    pub const FLUSH_LOG: u32 = 1;
    pub const FLUSH_NOTHING: u32 = 2;
}

impl From<&Attr> for Statx {
    /// What both have: all but the time of creation, the attributes and device numbers.
    fn from(attr: &Attr) -> Self {
        let time = |sec: u64, nsec| StatxTime { sec: sec as i64, nsec, reserved: 0 };
        Self {
            mask: STATX_BASIC_STATS,
            blksize: attr.blksize,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode as u16,
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.atime, attr.atimensec),
            ctime: time(attr.ctime, attr.ctimensec),
            mtime: time(attr.mtime, attr.mtimensec),
            ..Self::default()
        }
    }
}

/// A directory entry's length, padded.
pub fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}
