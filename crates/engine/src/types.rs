//! Plain data in and out of the API.

use crate::error::{Errno, Error, Result};
use myriad_format::choices::Choices;
pub use myriad_format::choices::Order;
use myriad_format::dir::NAME_MAX;

/// Who asks. Operations check permissions for these credentials as POSIX says; user 0 passes all checks but execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cred {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Bits removed from the mode of new files (unless a default ACL decides).
    pub umask: u16,
}

impl Cred {
    /// User 0, umask 022.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), umask: 0o022 }
    }

    /// Whether permission checks are passed.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether `gid` is the group or a supplementary one.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A time in nanoseconds since 1970, negative before.
pub type Time = i64;

/// An inode as a caller holds it. Opaque: its number is what `stat` reports, but only a `Node` that came from a lookup is
/// promised to mean the same file. A stale one (file gone, slot reused) answers ESTALE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(crate) ino: u64,
    pub(crate) generation: u32,
}

impl Node {
    /// The inode number, as in `Stat::ino`.
    pub fn ino(self) -> u64 {
        self.ino
    }

    /// Tells apart the files that had this number one after the other, as in `Stat::generation`.
    pub fn generation(self) -> u32 {
        self.generation
    }

    /// A node that was taken apart: for who hands its parts to others and gets them back.
    pub fn from_parts(ino: u64, generation: u32) -> Self {
        Self { ino, generation }
    }
}

/// File types, as in `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    Fifo = 1,
    CharDevice = 2,
    Directory = 4,
    BlockDevice = 6,
    File = 8,
    Symlink = 10,
    Socket = 12,
}

impl FileType {
    /// From `mode` (type and permission bits).
    pub fn from_mode(mode: u16) -> Option<Self> {
        Self::from_code((mode >> 12) as u8)
    }

    /// From a directory entry's type code, `mode >> 12`.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::File,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// As in a directory entry, `mode >> 12`.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The type bits of `mode`.
    pub fn mode_bits(self) -> u16 {
        u16::from(self as u8) << 12
    }
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub ino: u64,
    pub generation: u32,
    /// Type and permission bits.
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a device node, as in `makedev(3)`'s 64-bit form.
    pub rdev: u64,
    /// Bytes; for a directory, bytes of its live entries.
    pub size: u64,
    /// Units of 512 bytes, as in stat(2).
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Time of creation.
    pub btime: Time,
    /// `flag::IMMUTABLE`, `APPEND`, `NODUMP`, `NOATIME` of `myriad_format::inode`.
    pub flags: u32,
}

impl Stat {
    /// A place to put attributes into.
    pub(crate) const NONE: Self = Self {
        ino: 0,
        generation: 0,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        btime: 0,
        flags: 0,
    };

    /// From the type bits of `mode`.
    pub fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode).expect("stat comes from a checked inode")
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Whether it is flagged so that its content may only be added to (chattr(1), `a`).
    pub fn is_append_only(&self) -> bool {
        self.flags & myriad_format::inode::flag::APPEND != 0
    }

    /// The file that these are attributes of.
    pub fn node(&self) -> Node {
        Node { ino: self.ino, generation: self.generation }
    }
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub ino: u64,
    pub file_type: FileType,
    /// Where to go on after this entry: stays valid whatever is made or removed in the directory.
    pub cookie: u64,
}

/// Attributes to change; `None` leaves one as it is. `ctime` always becomes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits only (07777).
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// New size of a regular file.
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// User-settable inode flags (see `Stat::flags`).
    pub flags: Option<u32>,
}

/// A time to set: the distinction matters for permission (owner or root may set any, a writer may set now).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(Time),
}

/// A file to make whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateWith<'a> {
    /// Type and permission bits, before umask and default ACL; no type is a regular file.
    pub mode: u16,
    /// Of a device node.
    pub rdev: u64,
    /// Data of a regular file, target of a symbolic link.
    pub content: &'a [u8],
    /// To be set once it is there; no size.
    pub attr: SetAttr,
    /// The content need not stay in the cache (see [`OpenOptions::dont_cache`]).
    pub dont_cache: bool,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    pub read: bool,
    pub write: bool,
    /// Every write goes to the end.
    pub append: bool,
    pub truncate: bool,
    /// Make the file if it is missing.
    pub create: bool,
    /// With `create`: fail if it exists.
    pub exclusive: bool,
    /// Fail with ELOOP if the last component is a symbolic link.
    pub no_follow: bool,
    /// Each write returns only when durable: data and size (O_DSYNC), or all of the inode (O_SYNC).
    pub sync: bool,
    /// What is read or written through this handle need not stay in the cache: it is used once, or somebody else caches
    /// it (Linux's RWF_DONTCACHE).
    pub dont_cache: bool,
    /// Reading leaves the access time as it is (O_NOATIME).
    pub no_atime: bool,
    /// Permission bits of a new file, before umask or default ACL.
    pub mode: u16,
}

/// What a further name may be given to ([`Session::link_with`](crate::Session::link_with)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRules {
    /// A file without a name may get its first one.
    pub unnamed: bool,
    /// Who does not own the file must be allowed to read and write it, as Linux has it with fs.protected_hardlinks.
    pub protected: bool,
}

impl OpenOptions {
    /// To read what is there.
    pub const READ: Self = Self {
        read: true,
        write: false,
        append: false,
        truncate: false,
        create: false,
        exclusive: false,
        no_follow: false,
        sync: false,
        dont_cache: false,
        no_atime: false,
        mode: 0,
    };
    /// To read and write what is there.
    pub const READ_WRITE: Self = Self { write: true, ..Self::READ };
    /// To write a file anew, which is made if it is missing (with permissions 666, but for what the umask takes away).
    pub const CREATE: Self = Self { read: false, write: true, create: true, truncate: true, mode: 0o666, ..Self::READ };
}

/// What rename may do with its target (renameat2(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replace an existing target.
    #[default]
    Replace,
    /// Fail with EEXIST if the target exists.
    NoReplace,
    /// Exchange source and target.
    Exchange,
    /// As `Replace`, and leave a whiteout under the old name: a character device 0/0 without permissions, with which an
    /// overlay file system says that a name is not there.
    Whiteout,
    /// As `NoReplace`, and leave a whiteout.
    NoReplaceWhiteout,
}

impl RenameMode {
    /// Whether a target that exists is refused.
    pub fn keeps_target(self) -> bool {
        matches!(self, Self::NoReplace | Self::NoReplaceWhiteout)
    }

    pub fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::NoReplaceWhiteout)
    }
}

/// What allocate does (fallocate(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Allocate, and extend the size if the range ends past it.
    Extend,
    /// Allocate; the size stays.
    KeepSize,
    /// Give the blocks back; the range reads as zero and the size stays.
    Punch,
    /// The range reads as zero and stays allocated; size extended if `Zero { keep_size: false }` ends past it.
    Zero { keep_size: bool },
}

/// How setxattr treats an existing attribute (setxattr(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum XattrMode {
    #[default]
    Set,
    /// Fail with EEXIST if it exists.
    Create,
    /// Fail with ENODATA if it does not.
    Replace,
}

/// Totals of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    pub block_size: u32,
    pub blocks: u64,
    /// Not allocated and not reserved by delayed allocation.
    pub free_blocks: u64,
    /// Of these, what one new file can be given ([`crate::File::allocate`], data to write): without the blocks held back for removals and for
    /// what the engine writes itself, and those that the nodes of the file's map take.
    pub available_blocks: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes that free space has room for.
    pub inodes_free: u64,
    pub directories: u64,
    pub name_max: u32,
}

/// What order `sync` has on the device when an operation returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Names, links and attributes. File data, and sizes with it, are written later, as with the other orders: what FFS calls a normal
    /// mount.
    Metadata,
    /// File data and sizes as well.
    All,
}

/// Placement of directories (seam "placement").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// By region, as [`DirPref`] says.
    DirPref,
    /// Each in the next allocation group in turn that has room (XFS).
    Rotor,
}

/// What [`PlacementPolicy::DirPref`] goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirPref {
    pub version: DirPrefVersion,
    pub rule: DirPrefRule,
    /// Bytes that a file is expected to have, at most 2^40.
    pub average_file_size: u64,
    /// Files that a directory is expected to have, at most 2^20; 0: no expectation.
    pub average_files_per_dir: u64,
}

impl Default for DirPref {
    /// As newfs(8) of FreeBSD has them.
    fn default() -> Self {
        Self {
            version: DirPrefVersion::New,
            rule: DirPrefRule::Orlov,
            average_file_size: 16384,
            average_files_per_dir: 64,
        }
    }
}

/// Which of the two policies that FFS called dirpref one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirPrefVersion {
    /// Near the parent (Orlov 2001).
    New,
    /// In the region with the fewest directories among those with at least average free space (FFS before 2001).
    Old,
}

/// What dirhash goes by: hashes in memory over directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirHash {
    /// `None`: where directories are linear.
    pub is_on: Option<bool>,
    /// Bytes that all hashes may have together; 0: there are none.
    pub memory_max: u64,
    /// Bytes of the smallest directory that gets one.
    pub size_min: u64,
    /// Whether each block that changes is compared with the hash. Builds with debug assertions always do that.
    pub checks: bool,
}

impl Default for DirHash {
    /// As FreeBSD has them.
    fn default() -> Self {
        Self { is_on: None, memory_max: 2 << 20, size_min: 2560, checks: false }
    }
}

/// How dirpref's limits follow from averages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirPrefRule {
    /// Of 2001: a region may have a quarter of its size less free than the average, and directories in a row that fit an empty one.
    Orlov,
    /// Of FreeBSD 9.3: three quarters of the average free, and directories in a row that fit the average free space.
    FreeBsd9,
}

/// When file blocks are chosen (seam "block allocation").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    AtWrite,
    Delayed,
}

/// When access times move. Looking names up never moves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    Never,
    /// If they are not later than the last change, or are a day old.
    Relative,
    /// At each read.
    Strict,
}

/// Which part of the cache blocks of directories may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirCache {
    /// A pool of their own, of limited size.
    Bounded,
    /// All of it, with all other blocks.
    Unified,
}

/// Whether space goes back to the host when it becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// If the volume lies in a sparse image, or in memory. Not on a block device, and not in an image that had no holes when it
    /// was opened: that was allocated in full on purpose.
    Auto,
    Always,
    /// Only when somebody asks for it ([`Fs::trim`](crate::Fs::trim)).
    Never,
}

/// Options of one opening of a volume.
#[derive(Clone, Debug)]
pub struct MountOptions {
    pub read_only: bool,
    /// `None`: the volume's last order.
    pub order: Option<Order>,
    /// What order `sync` makes durable before an operation returns.
    pub sync_mode: SyncMode,
    /// Where new directories go; `None`: as mkfs noted, by the profile.
    pub placement: Option<PlacementPolicy>,
    pub dirpref: DirPref,
    pub allocation: Allocation,
    /// Most names of a directory, where its kind counts them: that of `directory=slots`.
    pub dir_limit: Option<u64>,
    /// Whether the name cache is used.
    pub name_cache: bool,
    /// Size of its table of missing names: the table of known names divided by this, rounded down to a power of two; 0: none.
    pub name_cache_absent: u64,
    /// Hashes in memory over directories.
    pub dirhash: DirHash,
    /// Memory for cached blocks, in bytes; at least 1024 blocks. Default: a quarter of the machine's memory, at most 4 GiB.
    /// While changes are made durable there are copies beside it: of changed bytes, at most half the log; of blocks allocated
    /// since the last time, at most an eighth of the cache and 128 MiB; and where log or cache are short of room, of blocks that
    /// are changed again and again, at most a quarter of the cache and some 128 MiB. After a crash the live part of the log is
    /// kept as well, until what it holds is home. All else takes some 16 MiB, and some 100 bytes for each open file.
    pub cache_size: u64,
    /// Which part of the cache blocks of directories may have.
    pub dir_cache: DirCache,
    /// Of which size their pool is if it is bounded, in bytes: at least 32 blocks, at most half of the cache. `None`: a twentieth of
    /// `cache_size`. Blocks that have changed, and those that operations under way have brought in, may exceed it for a while.
    pub dir_cache_size: Option<u64>,
    /// Longest time a change stays in memory only, in milliseconds; 0: until a sync or until memory or log ask for it.
    pub commit_interval_ms: u64,
    /// Order `softdep`: how long data of files, directories and other metadata are held back, in milliseconds; 0: until a sync. If
    /// none is given, everything is written at that interval; else one that is not given is that interval.
    pub file_delay_ms: Option<u64>,
    pub dir_delay_ms: Option<u64>,
    pub meta_delay_ms: Option<u64>,
    /// Order `softdep`: memory for changes that are not durable, beside the cache, in bytes. Past half of it the oldest are written; past all of it
    /// operations wait. `None`: a quarter of `cache_size`, at most 256 MiB.
    pub softdep_memory: Option<u64>,
    /// Whether space goes back to the host when it becomes free: some checkpoints later, without anybody waiting for it.
    pub discard: Discard,
    /// The least that goes back by itself, in bytes, rounded up to a power of two: a piece at a multiple of its size, once all of it is
    /// free. Each costs the host about as much as a write.
    pub discard_piece: u64,
    /// When reading moves access times.
    pub atime: AccessTimes,
    /// Whether those of directories move, too.
    pub dir_atime: bool,
    /// Path of the device that holds the log, for a volume made with one.
    pub log_device: Option<std::path::PathBuf>,
    /// Seed of placement decisions that are random by design; `None`: from the system.
    pub seed: Option<u64>,
    /// Whether a thread of its own makes checkpoints. Without it they happen inside the operations that need them, so
    /// that a run on one thread is deterministic.
    pub background: bool,
    /// Where times come from.
    pub clock: Clock,
}

/// Where times come from.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's coarse clock (a few milliseconds of resolution).
    #[default]
    System,
    /// A clock that a test moves: nanoseconds since 1970.
    Manual(std::sync::Arc<std::sync::atomic::AtomicI64>),
}

impl Clock {
    /// A time that only goes on, whoever sets the system's clock; a test's own goes as the test has it.
    pub(crate) fn ticks(&self) -> Time {
        match self {
            Self::System => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
                now.tv_sec * 1_000_000_000 + now.tv_nsec
            }
            Self::Manual(time) => time.load(std::sync::atomic::Ordering::Relaxed),
        }
    }
}

impl MountOptions {
    /// Bytes of the pool for blocks of directories; `None`: they have no pool.
    pub(crate) fn dir_cache_limit(&self) -> Option<u64> {
        let size = self.dir_cache_size.unwrap_or(self.cache_size / 20);
        (self.dir_cache == DirCache::Bounded).then_some(size)
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            order: None,
            sync_mode: SyncMode::Metadata,
            placement: None,
            dirpref: DirPref::default(),
            allocation: Allocation::Delayed,
            dir_limit: None,
            name_cache: true,
            name_cache_absent: 16,
            dirhash: DirHash::default(),
            cache_size: default_cache_size(),
            dir_cache: DirCache::Unified,
            dir_cache_size: None,
            commit_interval_ms: 5000,
            file_delay_ms: None,
            dir_delay_ms: None,
            meta_delay_ms: None,
            softdep_memory: None,
            discard: Discard::Auto,
            discard_piece: 64 << 10,
            atime: AccessTimes::Never,
            dir_atime: true,
            log_device: None,
            seed: None,
            background: true,
            clock: Clock::System,
        }
    }
}

/// A quarter of the machine's memory, or of what this process may map (`ulimit -v`), at most 4 GiB.
pub fn default_cache_size() -> u64 {
    let info = rustix::system::sysinfo();
    let total = info.totalram as u64 * u64::from(info.mem_unit);
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    (total.min(limit.unwrap_or(total)) / 4).clamp(16 << 20, 4 << 30)
}

/// Options of mkfs. `Default` is what `myriad mkfs` does without options, but that user 0 owns the root directory.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// What is chosen at the seams that are fixed when a volume is made.
    pub choices: Choices,
    /// Bytes, a power of two from 512 to 65536.
    pub block_size: u32,
    /// With `map=blockmap`: into how many fragments, of at least 512 bytes, a block can be divided: 1, 2, 4 or 8. The block of all else, and
    /// the unit in which room is counted, is a fragment then.
    pub fragments: u32,
    /// Bytes of an allocation group, a power of two; `None`: by the volume's size, at most 1 GiB.
    pub ag_size: Option<u64>,
    /// Bytes of a placement region, a power of two.
    pub region_size: u64,
    /// With `inodes=static`: bytes of the volume for which there is one inode, a power of two from 1 KiB to 16 MiB. What there is then is
    /// all there will be.
    pub bytes_per_inode: u64,
    /// Bytes of the log; 0: no log (then only `Order::None`); `None`: by the volume's size.
    pub log_size: Option<u64>,
    /// Keep the log on this device instead.
    pub log_device: Option<std::path::PathBuf>,
    /// Checksums of file data, verified whenever it is read from the device. What overwrites goes to new blocks.
    pub data_checksums: bool,
    /// Have the host give all of its room to the image file at once, so that the volume never meets a full host.
    pub preallocate: bool,
    /// Up to 63 bytes.
    pub label: String,
    /// Order that a mount uses unless told otherwise.
    pub order: Order,
    /// Whether new directories go to the allocation groups in turn unless an opening says otherwise; else near their parents.
    pub spreads_directories: bool,
    /// Volume UUID and hash key; `None`: random. Tests fix them.
    pub seed: Option<u64>,
    /// Where the root directory's times come from.
    pub clock: Clock,
    /// Owner and mode of the root directory.
    pub root_uid: u32,
    pub root_gid: u32,
    pub root_mode: u16,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            choices: Choices::default(),
            block_size: 4096,
            fragments: 1,
            ag_size: None,
            region_size: 32 << 20,
            bytes_per_inode: 8192,
            log_size: None,
            log_device: None,
            data_checksums: false,
            preallocate: false,
            label: String::new(),
            order: Order::Log,
            spreads_directories: false,
            seed: None,
            clock: Clock::System,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o755,
        }
    }
}

/// Checks one path component: 1 to 255 bytes, no slash, no NUL, not "." or "..".
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Error::Refused(Errno::NOENT));
    }
    if name.len() > NAME_MAX {
        return Err(Error::Refused(Errno::NAMETOOLONG));
    }
    if name == b"." || name == b".." || has_slash_or_nul(name) {
        return Err(Error::Refused(Errno::INVAL));
    }
    Ok(())
}

/// Eight bytes at a time. Names are short: to find out which of its ways suits the length takes `memchr` longer than the way itself.
fn has_slash_or_nul(name: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    // The top bit of some byte, if one of the word's bytes is 0: only that borrows, or one above it.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & TOPS;
    let (words, rest) = name.as_chunks::<8>();
    let found = words
        .iter()
        .map(|bytes| u64::from_ne_bytes(*bytes))
        .fold(0, |found, word| found | zeros(word) | zeros(word ^ (ONES * u64::from(b'/'))));
    found != 0 || rest.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Who keeps files alive that have neither name nor handle: a mount, for the inodes that its kernel knows.
pub trait Keeper: Send + Sync {
    /// Asked when a file loses its last link: with its last name, or where what a crash had left is given back. True, if it begins to hold
    /// it: it counts as open until [`crate::Fs::release`], which another thread may call before this returns. False, if it does not know
    /// it, or holds it already. Called with the inode locked; must not call the volume.
    fn hold(&self, node: Node) -> bool;

    /// An inode has other attributes than the result of the operation says: a change of content took set-id bits away, which nobody asked
    /// for by name; or a file lost a name and the operation failed afterwards, so that its caller takes the file for unchanged. Whoever
    /// remembers the attributes drops them. Called before the operation returns, with nothing locked.
    fn attributes_changed(&self, node: Node);

    /// An inode has fewer links, or another number of blocks, since what a crash had left was given back: whoever remembers its
    /// attributes drops them. Called with nothing locked. Of a file, by the thread in [`crate::Fs::give_back`]; of a directory, which has lost a
    /// second name of another one, also in the middle of an operation that makes a name there, or that removes or moves a directory.
    fn given_back(&self, node: Node);
}

/// What was given back of what a crash had left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// Blocks that were nobody's.
    pub blocks: u64,
    /// Inodes that nothing named, and places that were called used. Their blocks are not counted in `blocks`.
    pub inodes: u64,
    /// Inodes that had more links than names.
    pub links: u64,
    /// What only a check of the closed volume puts right.
    pub left: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_or_nul_is_found_wherever_it_is() {
        // What is one more or less than either, and what has the top bit, borrows and carries in the word.
        for filler in [1, b'.', b'0', b'a', 0x80, 0xaf, 0xff] {
            for length in 1..40 {
                let mut name = vec![filler; length];
                assert!(!has_slash_or_nul(&name));
                for at in 0..length {
                    for bad in [0, b'/'] {
                        name[at] = bad;
                        assert!(has_slash_or_nul(&name), "{bad} at {at} of {length} times {filler}");
                    }
                    name[at] = filler;
                }
            }
        }
    }
}
