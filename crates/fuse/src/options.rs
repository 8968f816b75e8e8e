//! How a volume is mounted and served.

use crate::kind::KindChoice;
use std::ffi::OsString;
use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

/// How to mount and serve. `Default` is what most want.
pub struct Options {
    /// Shown in /proc/mounts exactly as given.
    pub source: OsString,
    pub read_only: bool,
    /// As which type the kernel has it, and with it whether sync(2) reaches us and umount(2) waits for us.
    pub kind: KindChoice,
    /// Users other than the one who mounted may use the mount.
    pub allow_other: bool,
    /// The kernel checks permissions by the attributes it has; no request is sent for it. Without it (and without `acl`) names
    /// are asked for at each step of a path, whatever `entry_timeout` says; and FIFOs, sockets and devices, which the kernel opens by itself,
    /// are open to everybody.
    pub default_permissions: bool,
    /// Whoever the kernel lets in may do everything: what user 0 mounts without `allow_other` alone. Saves a GETATTR of the
    /// directory after each change of it, with kernels that ask. Processes of user 0 with another number for files
    /// (setfsuid(2)), or without capabilities, have all its rights then.
    pub unchecked: bool,
    /// Show every file as owned by this user.
    pub uid: Option<u32>,
    /// Show every file as owned by this group.
    pub gid: Option<u32>,
    /// Show every file with the permissions 0777 without these bits, as libfuse does. The kernel checks what is shown.
    pub umask: Option<u16>,
    /// How long the kernel may use a name without asking again.
    pub entry_timeout: Duration,
    /// How long the kernel may use attributes without asking again.
    pub attr_timeout: Duration,
    pub transport: TransportChoice,
    /// Threads of the classic transport; 0: by the number of cores. The ring has two for each processor that
    /// the machine may have.
    pub threads: usize,
    /// Serving threads run on their caller's processor, with the right to (CAP_SYS_NICE): wake-ups are near then.
    pub beside: bool,
    /// The most that the kernel reads ahead for a sequential reader, in bytes. Takes the right to change the mount's device in
    /// sysfs (root); without it, the kernel's 128 KiB stay.
    pub max_readahead: u64,
    /// Have the kernel open files without asking.
    pub no_open: bool,
    /// Extended attributes are refused, and then not asked for again.
    pub no_xattr: bool,
    /// The kernel keeps written data and sends it later. Takes the classic transport.
    pub writeback: bool,
    /// Reads and writes bypass the kernel's page cache. Opens are asked for then.
    pub direct_io: bool,
    /// Serve access control lists though the volume holds none yet: costs a GETXATTR for each inode that somebody else than its
    /// owner uses, and at each path through a root of somebody else's. `None`: if the kernel checks permissions, and who mounts
    /// owns the root and shares the mount with nobody.
    pub acl: Option<bool>,
    /// `nosuid`, `nodev`, `noexec`, `noatime` and the like: handed to the kernel. `sync` and `dirsync` are carried out here as
    /// well, and access times by the engine.
    pub kernel_options: Vec<String>,
    /// A line for every request.
    pub request_log: Option<Box<dyn Write + Send>>,
    /// Whether the root has the hidden directory `.myriad`, with live statistics.
    pub stats_dir: bool,
}

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// The ring where the kernel offers it, else classic.
    #[default]
    Auto,
    /// Reads and writes of /dev/fuse.
    Classic,
    /// FUSE over io_uring.
    Ring,
}

impl FromStr for TransportChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "classic" => Ok(Self::Classic),
            "ring" => Ok(Self::Ring),
            _ => Err(format!("{text} is none of auto, classic, ring")),
        }
    }
}

/// All changes to a mounted volume go through its one server, so the kernel's copies of names and attributes never age.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl Default for Options {
    fn default() -> Self {
        Self {
            source: OsString::from("myriad"),
            read_only: false,
            kind: KindChoice::Auto,
            allow_other: false,
            default_permissions: true,
            unchecked: false,
            uid: None,
            gid: None,
            umask: None,
            entry_timeout: NEVER,
            attr_timeout: NEVER,
            transport: TransportChoice::Auto,
            threads: 0,
            beside: true,
            max_readahead: 4 << 20,
            no_open: true,
            no_xattr: false,
            writeback: false,
            direct_io: false,
            acl: None,
            kernel_options: Vec::new(),
            request_log: None,
            stats_dir: true,
        }
    }
}
