//! Mounting: as `fuseblk` where that can be had, by mount(2) where that is allowed, through fusermount3 otherwise.

use crate::block::{self, Parameter};
use crate::error::MountError;
use crate::helper::{HELPER, MOUNT_TABLE};
use crate::kind::{Kind, KindChoice};
use crate::mounts::{self, Entry, FS_TYPE, mounted_at};
use crate::negotiate::REQUEST_MAX;
use crate::options::Options;
use crate::transport::Device;
use crate::unmount::{How, clear_mount_point, unmount};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag of a word that the kernel knows for a mount, and whether the word sets it.
pub(crate) fn flag_of(word: &str) -> Option<(MountFlags, bool)> {
    Some(match word {
        "ro" => (MountFlags::RDONLY, true),
        "rw" => (MountFlags::RDONLY, false),
        "suid" => (MountFlags::NOSUID, false),
        "nosuid" => (MountFlags::NOSUID, true),
        "dev" => (MountFlags::NODEV, false),
        "nodev" => (MountFlags::NODEV, true),
        "exec" => (MountFlags::NOEXEC, false),
        "noexec" => (MountFlags::NOEXEC, true),
        "atime" => (MountFlags::NOATIME, false),
        "noatime" => (MountFlags::NOATIME, true),
        "diratime" => (MountFlags::NODIRATIME, false),
        "nodiratime" => (MountFlags::NODIRATIME, true),
        "relatime" => (MountFlags::RELATIME, true),
        "norelatime" => (MountFlags::RELATIME, false),
        "strictatime" => (MountFlags::STRICTATIME, true),
        "lazytime" => (MountFlags::LAZYTIME, true),
        "nolazytime" => (MountFlags::LAZYTIME, false),
        "sync" => (MountFlags::SYNCHRONOUS, true),
        "async" => (MountFlags::SYNCHRONOUS, false),
        "dirsync" => (MountFlags::DIRSYNC, true),
        _ => return None,
    })
}

/// A mount that is taken away when this goes, unless it is gone already.
pub struct MountPoint {
    path: PathBuf,
    /// As the kernel had it at first.
    entry: io::Result<Option<Entry>>,
    /// The mount is gone, and its device's number may be another one's.
    has_ended: AtomicBool,
}

impl MountPoint {
    /// Mounts, and gives the descriptor that its requests come from, and as what the kernel has it. A dead mount of ours in the
    /// way is taken away first.
    pub fn mount(path: &Path, options: &Options) -> Result<(Self, Device, Kind), MountError> {
        let path =
            clear_mount_point(path).map_err(|source| MountError::MountPoint { path: path.to_owned(), source })?;
        let mode = std::fs::metadata(&path).map_err(|source| MountError::MountPoint { path: path.clone(), source })?;
        if mode.mode() & 0o17_0000 != 0o4_0000 {
            let source = io::ErrorKind::NotADirectory.into();
            return Err(MountError::MountPoint { path, source });
        }
        let kernel = KernelOptions::new(options)?;
        let (device, kind) = mount_as_chosen(&path, options, &kernel)?;
        if rustix::process::geteuid().is_root() {
            // Slower without, and no worse.
            let _ = set_readahead(&path, options.max_readahead);
        }
        Ok((Self::of(path), device, kind))
    }

    fn of(path: PathBuf) -> Self {
        let entry = mounted_at(&path).map(|mount| mount.filter(Entry::is_ours));
        Self { path, entry, has_ended: AtomicBool::new(false) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor number of the mount's device, as mountinfo writes them.
    pub fn device(&self) -> io::Result<&str> {
        self.entry().map(|entry| &*entry.device)
    }

    /// As the kernel had the mount when it was made.
    pub fn entry(&self) -> io::Result<&Entry> {
        match &self.entry {
            Ok(Some(entry)) => Ok(entry),
            Ok(None) => Err(io::Error::new(io::ErrorKind::NotConnected, "unmounted before it was served")),
            Err(error) => Err(io::Error::new(error.kind(), format!("/proc/self/mountinfo: {error}"))),
        }
    }

    /// The mount is gone: there is nothing left to unmount.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Unmounts; `lazy` though it is in use. Nothing else: what was mounted over it, or after it had gone, stays.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        self.unmount_how(How { lazy, force: false })
    }

    /// It cannot be served any more: whoever waits for an answer gets an error instead, as far as we may see to that.
    pub fn abort(&self) {
        let _ = self.unmount_how(How { lazy: true, force: true });
    }

    fn unmount_how(&self, how: How) -> io::Result<()> {
        let entry = self.entry()?;
        if self.has_ended.load(Ordering::Relaxed) {
            return Err(Errno::INVAL.into());
        }
        let is_there =
            mounted_at(&self.path)?.is_some_and(|mount| mount.device == entry.device && mount.source == entry.source);
        // If not, a directory above it may have another name by now.
        let moved = if is_there { None } else { mounts::of(&entry.device, &entry.source)? };
        if !is_there && moved.is_none() {
            return Err(Errno::INVAL.into());
        }
        let path = moved.as_ref().map_or(&self.path, |mount| &mount.mount_point);
        block::unmount_apart(|| unmount(path, &entry.device, how))
    }
}

/// The options that the kernel, not the server, carries out.
struct KernelOptions {
    flags: MountFlags,
    /// The same in words, for fusermount3.
    words: Vec<String>,
    allow_other: bool,
    default_permissions: bool,
}

impl KernelOptions {
    fn new(options: &Options) -> Result<Self, MountError> {
        // As mount.fuse has it: an image may be a stranger's.
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
        let mut words = Vec::new();
        flags.set(MountFlags::RDONLY, options.read_only);
        if options.read_only {
            words.push("ro".to_owned());
        }
        for word in &options.kernel_options {
            let (flag, on) = match word.as_str() {
                "rw" => (MountFlags::RDONLY, options.read_only),
                word => flag_of(word).ok_or_else(|| MountError::Option {
                    option: word.into(),
                    reason: "is none that the kernel knows for a mount".into(),
                })?,
            };
            flags.set(flag, on);
            // fusermount3 sets nosuid and nodev itself and does not know all of these words.
            if !matches!(word.as_str(), "rw" | "diratime" | "nodiratime" | "relatime" | "norelatime" | "strictatime")
                && !matches!(word.as_str(), "lazytime" | "nolazytime")
            {
                words.push(word.clone());
            }
        }
        // Also for user 0 alone: the kernel lets in whoever has its numbers, and looks neither at the one that file servers
        // set (setfsuid(2)) nor at capabilities.
        let only_root = rustix::process::geteuid().is_root() && !options.allow_other;
        if options.unchecked && !only_root {
            return Err(MountError::Option {
                option: "unchecked".into(),
                reason: "is for what user 0 mounts without allow_other".into(),
            });
        }
        let default_permissions = options.default_permissions && !options.unchecked;
        Ok(Self { flags, words, allow_other: options.allow_other, default_permissions })
    }

    /// What the kernel's FUSE is told.
    fn parameters(&self, device: &Device) -> Vec<Parameter> {
        use rustix::fd::AsFd;
        let numbers = [
            ("fd", device.as_fd().as_raw_fd().to_string()),
            ("rootmode", "40000".to_owned()),
            ("user_id", rustix::process::getuid().as_raw().to_string()),
            ("group_id", rustix::process::getgid().as_raw().to_string()),
        ];
        let mut parameters: Vec<Parameter> = numbers.map(|(name, value)| (name, Some(value))).into();
        parameters.push(max_read());
        for (on, word) in [(self.allow_other, "allow_other"), (self.default_permissions, "default_permissions")] {
            parameters.extend(on.then_some((word, None)));
        }
        parameters
    }
}

/// No READ is larger than an answer's room, however many pages of the kernel's it may have.
fn max_read() -> Parameter {
    ("max_read", Some(REQUEST_MAX.to_string()))
}

/// As mount(2) and fusermount3 take it.
fn in_text((name, value): &Parameter) -> String {
    value.as_ref().map_or_else(|| (*name).to_owned(), |value| format!("{name}={value}"))
}

/// Before INIT, which only lowers it: what the kernel gives each mount, 128 KiB, is too little for requests of 1 MiB.
fn set_readahead(path: &Path, bytes: u64) -> io::Result<()> {
    let mount = mounted_at(path)?.ok_or(io::ErrorKind::NotFound)?;
    // The device of a `fuseblk` mount has settings of its own, and the mount has others beside them.
    let suffix = if mount.is_block() { "-fuseblk" } else { "" };
    std::fs::write(format!("/sys/class/bdi/{}{suffix}/read_ahead_kb", mount.device), (bytes >> 10).to_string())
}

fn mount_as_chosen(path: &Path, options: &Options, kernel: &KernelOptions) -> Result<(Device, Kind), MountError> {
    let is_root = rustix::process::geteuid().is_root();
    let because = match options.kind {
        KindChoice::Fuse => "kind=fuse was asked for".to_owned(),
        KindChoice::Auto if !is_root => "only root can mount as fuseblk".to_owned(),
        KindChoice::Auto if is_in_user_namespace() => {
            "in a user namespace nothing can be mounted as fuseblk".to_owned()
        }
        choice => {
            let device = Device::open().map_err(MountError::Device)?;
            match block::mount(&options.source, path, kernel.flags, &kernel.parameters(&device)) {
                Ok(()) => return Ok((device, Kind::FuseBlk)),
                Err(because) if choice == KindChoice::FuseBlk => return Err(MountError::FuseBlk(because)),
                Err(because) => because,
            }
        }
    };
    let direct = is_root.then(|| mount_direct(path, options, kernel));
    let device = match direct {
        // A container's root may lack the right, and yet have the helper.
        Some(Err(MountError::Mount { source, .. })) if Errno::from_io_error(&source) == Some(Errno::PERM) => None,
        direct => direct.transpose()?,
    };
    let device = device.map_or_else(|| mount_by_helper(path, options, kernel), Ok)?;
    Ok((device, Kind::Fuse { because }))
}

/// Root of a user namespace (unshare(1), containers without root) has the number 0 in it alone. The kernel lets it mount what is
/// declared to be harmless; `fuse` is, block devices are not.
fn is_in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let numbers: Vec<&str> = map.split_whitespace().collect();
    // As in the first namespace: all numbers, as themselves.
    !matches!(numbers[..], [] | ["0", "0", "4294967295"])
}

fn mount_direct(path: &Path, options: &Options, kernel: &KernelOptions) -> Result<Device, MountError> {
    let device = Device::open().map_err(MountError::Device)?;
    let c_string = |bytes: &[u8], option: &str| {
        CString::new(bytes)
            .map_err(|_| MountError::Option { option: option.into(), reason: "holds a zero byte".into() })
    };
    let source = c_string(options.source.as_bytes(), "source")?;
    let target = c_string(path.as_os_str().as_bytes(), "mount point")?;
    let data: Vec<String> = kernel.parameters(&device).iter().map(in_text).collect();
    let data = c_string(data.join(",").as_bytes(), "data")?;
    rustix::mount::mount(&*source, &*target, FS_TYPE, kernel.flags, &*data)
        .map_err(|error| MountError::Mount { path: path.to_owned(), source: error.into() })?;
    Ok(device)
}

/// fusermount3 mounts, being set-uid root, and sends the descriptor through a socket that it is given.
fn mount_by_helper(path: &Path, options: &Options, kernel: &KernelOptions) -> Result<Device, MountError> {
    let failed = |text: String| MountError::Helper(text);
    // It mounts without that table, and would then refuse to unmount.
    if !Path::new(MOUNT_TABLE).exists() {
        return Err(failed(format!("{MOUNT_TABLE} is missing")));
    }
    let io_failed = |error: io::Error| MountError::Helper(error.to_string());
    // Commas and backslashes are the helper's own.
    let mut given = b"fsname=".to_vec();
    for &byte in options.source.as_bytes() {
        given.extend(b",\\".contains(&byte).then_some(b'\\'));
        given.push(byte);
    }
    let mut words = vec!["subtype=myriad".to_owned(), in_text(&max_read())];
    for (on, word) in [(kernel.allow_other, "allow_other"), (kernel.default_permissions, "default_permissions")] {
        if on {
            words.push(word.to_owned());
        }
    }
    words.extend(kernel.words.iter().cloned());
    given.extend(format!(",{}", words.join(",")).bytes());

    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| io_failed(error.into()))?;
    let mut helper = Command::new(HELPER)
        .arg("-o")
        .arg(OsString::from_vec(given))
        .arg("--")
        .arg(path)
        // The socket is its standard input: that needs no descriptor that other children would inherit.
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoHelper)?;
    let received = receive_descriptor(&ours);
    let mut message = String::new();
    if let Some(mut stderr) = helper.stderr.take() {
        let _ = stderr.read_to_string(&mut message);
    }
    let status = helper.wait().map_err(io_failed)?;
    match received {
        Ok(Some(fd)) if status.success() => Ok(Device::from(fd)),
        Err(error) => Err(io_failed(error)),
        _ if message.trim().is_empty() => Err(failed(status.to_string())),
        _ => Err(failed(message.trim().trim_start_matches("fusermount3: ").to_owned())),
    }
}

/// The descriptor that a message brings; `None` if the other end closes without one.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let fds = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(fds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of reading the table counted as a mount that was gone.
    #[test]
    fn a_mount_that_cannot_be_looked_up_is_not_said_to_be_gone() {
        let point = |entry| MountPoint { path: "/mnt".into(), entry, has_ended: AtomicBool::new(false) };
        let said = |point: MountPoint| [point.device().unwrap_err(), point.unmount(false).unwrap_err()];
        for error in said(point(Err(Errno::MFILE.into()))) {
            assert!(error.to_string().starts_with("/proc/self/mountinfo: Too many open files"), "{error}");
        }
        for error in said(point(Ok(None))) {
            assert_eq!(error.to_string(), "unmounted before it was served");
        }
    }

    #[test]
    fn options_that_the_kernel_does_not_know_are_refused_by_name() {
        let options = Options { kernel_options: vec!["noexec".into(), "exotic".into()], ..Options::default() };
        let error = KernelOptions::new(&options).err().unwrap().to_string();
        assert!(error.contains("exotic"), "{error}");
        let options = Options { kernel_options: vec!["suid".into(), "noexec".into()], ..Options::default() };
        let kernel = KernelOptions::new(&options).unwrap();
        assert_eq!(kernel.flags, MountFlags::NODEV | MountFlags::NOEXEC);
    }
}
