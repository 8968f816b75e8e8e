//! Mounts of type `fuseblk`: what the kernel does for a file system that lies on a block device.
//!
//! Of a mount of type `fuse` the kernel keeps sync(2) and syncfs(2) to itself, and umount(2) returns while the server still has
//! work to do. Of `fuseblk` it sends SYNCFS (since Linux 6.18) and, last of all, DESTROY, and waits for both answers.
//!
//! The type wants a block device that nobody else has. Each mount gets one for itself: a loop device over a page of memory,
//! which is never read. It is the kernel's from the moment it is mounted, and is taken apart with the mount, also if that
//! happens long after the server was killed. Not the volume's own device, if it has one: the kernel has one super block a
//! device, so two volumes on one device, or a dead mount that somebody still works in, would show the wrong tree.
//!
//! The kernel looks the device up by the path that it then shows as the source. So it is looked up by a thread whose root is a
//! file system in memory, in which a device node stands at the path of the image. Nothing of it has a name on the host, and all
//! of it goes with the thread.
#![allow(unsafe_code, reason = "ioctls of loop devices and close_range, which no crate wraps")]

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{CWD, Dev, FileType, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::thread::UnshareFlags;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use zerocopy::{FromZeros, IntoBytes};

/// A mount parameter, and what stands behind its equals sign.
pub type Parameter = (&'static str, Option<String>);

/// Mounts as `fuseblk`, with `source` shown as given. The error says what stands in the way: there is always plain `fuse`.
pub fn mount(source: &OsStr, target: &Path, flags: MountFlags, parameters: &[Parameter]) -> Result<(), String> {
    let mount = in_own_thread(|| detached(source, flags, parameters))?;
    move_mount(mount, c"", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(said("move_mount"))
}

/// Runs `work` in a thread that may change what belongs to itself alone: its root, its descriptors.
fn in_own_thread<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("myriad-mount".into()).spawn_scoped(scope, work);
        thread.map_err(|error| format!("a thread: {error}"))?.join().unwrap_or_else(|_| Err("it panicked".into()))
    })
}

fn said(what: &str) -> impl Fn(Errno) -> String {
    move |error| format!("{what}: {}", io::Error::from(error))
}

/// A mount that has no place yet. Changes the root of the thread.
fn detached(source: &OsStr, flags: MountFlags, parameters: &[Parameter]) -> Result<OwnedFd, String> {
    // Kept until the mount has it too: without a user the device takes itself apart.
    let device = LoopDevice::new(source)?;
    enter_root_with(source, device.number)?;
    let context = fsopen("fuseblk", FsOpenFlags::FSOPEN_CLOEXEC).map_err(said("fsopen"))?;
    let block_size = rustix::param::page_size().to_string();
    // As every other mount has it. Smaller blocks would have the kernel keep account of parts of pages.
    let own = [("source", source), ("subtype", "myriad".as_ref()), ("blksize", block_size.as_ref())];
    let own = own.map(|(name, value)| (name, Some(value)));
    let words = [
        (MountFlags::RDONLY, "ro"),
        (MountFlags::SYNCHRONOUS, "sync"),
        (MountFlags::DIRSYNC, "dirsync"),
        (MountFlags::LAZYTIME, "lazytime"),
    ];
    let words = words.iter().filter(|(flag, _)| flags.contains(*flag)).map(|&(_, word)| (word, None));
    let given = parameters.iter().map(|(name, value)| (*name, value.as_deref().map(OsStr::new)));
    for (name, value) in own.into_iter().chain(words).chain(given) {
        match value {
            Some(value) => fsconfig_set_string(&context, name, value),
            None => fsconfig_set_flag(&context, name),
        }
        .map_err(said(name))?;
    }
    fsconfig_create(&context).map_err(said("fuseblk"))?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(flags)).map_err(said("fsmount"))
}

/// Those flags that are the mount's and not the file system's.
fn attributes(flags: MountFlags) -> MountAttrFlags {
    let table = [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (MountFlags::NODIRATIME, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ];
    let mut attributes = MountAttrFlags::empty();
    for (flag, attribute) in table {
        attributes.set(attribute, flags.contains(flag));
    }
    // One of three; mount(2) lets the last of these win as well.
    if flags.contains(MountFlags::STRICTATIME) {
        attributes | MountAttrFlags::MOUNT_ATTR_STRICTATIME
    } else if flags.contains(MountFlags::NOATIME) {
        attributes | MountAttrFlags::MOUNT_ATTR_NOATIME
    } else {
        attributes
    }
}

/// Gives this thread a root of its own, a file system in memory, in which `source` is a node of the device.
fn enter_root_with(source: &OsStr, number: Dev) -> Result<(), String> {
    let memory = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(said("fsopen"))?;
    fsconfig_create(&memory).map_err(said("tmpfs"))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = fsmount(&memory, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(said("tmpfs"))?;
    #[expect(deprecated, reason = "its hazard is shared descriptor tables, which this flag leaves alone")]
    rustix::thread::unshare(UnshareFlags::FS).map_err(said("unshare"))?;
    rustix::process::fchdir(&root).map_err(said("fchdir"))?;
    rustix::process::chroot(".").map_err(said("chroot"))?;
    let made = match Path::new(source).parent() {
        Some(parent) => std::fs::create_dir_all(parent),
        None => Ok(()),
    };
    made.map_err(|error| format!("a node `{}`: {error}", source.display()))?;
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(CWD, source, FileType::BlockDevice, mode, number)
        .map_err(|error| said("a node of the source's name")(error))
}

/// A loop device over a page of memory, of nobody else's. It is taken apart when the last who has it open lets go.
struct LoopDevice {
    number: Dev,
    _open: OwnedFd,
}

/// How often another one may be quicker to take the device that was found to be free.
const TRIES: usize = 64;

impl LoopDevice {
    fn new(source: &OsStr) -> Result<Self, String> {
        let control = open("/dev/loop-control", OFlags::RDWR)?;
        let memory = page_of_memory(source).map_err(said("memfd_create"))?;
        for _ in 0..TRIES {
            let free = control_get_free(&control).map_err(said("/dev/loop-control"))?;
            let path = format!("/dev/loop{free}");
            let device = open(&path, OFlags::RDWR)?;
            match configure(&device, &memory) {
                Err(Errno::BUSY) => continue,
                configured => configured.map_err(said(&path))?,
            }
            // Some kernels mount no device that somebody has open for writing.
            let kept = open(&path, OFlags::RDONLY)?;
            let number = std::fs::metadata(&path).map_err(|error| format!("{path}: {error}"))?.rdev();
            return Ok(Self { number, _open: kept });
        }
        Err("/dev/loop-control: no device that stays free".into())
    }
}

fn open(path: &str, flags: OFlags) -> Result<OwnedFd, String> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(said(path))
}

/// Named after the source, for whoever looks at the list of loop devices.
fn page_of_memory(source: &OsStr) -> rustix::io::Result<OwnedFd> {
    /// The kernel's limit, less its own prefix.
    const NAME_MAX: usize = 200;
    let mut name = [b"myriad ", source.as_bytes()].concat();
    name.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    name.truncate(NAME_MAX);
    let memory = match rustix::fs::memfd_create(&*name, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => rustix::fs::memfd_create(&*name, MemfdFlags::CLOEXEC),
        memory => memory,
    }?;
    rustix::fs::ftruncate(&memory, rustix::param::page_size() as u64)?;
    Ok(memory)
}

/// `LOOP_CTL_GET_FREE` and `LOOP_CONFIGURE` of linux/loop.h; the latter is there since Linux 5.8.
const GET_FREE: libc::Ioctl = 0x4c82;
const CONFIGURE: libc::Ioctl = 0x4c0a;
/// `LO_FLAGS_AUTOCLEAR`
const AUTOCLEAR: u32 = 4;

/// `struct loop_info64`
#[derive(Clone, Copy, FromZeros, IntoBytes)]
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`
#[derive(Clone, Copy, FromZeros, IntoBytes)]
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// The number of a loop device that is free, or made for this.
fn control_get_free(control: &OwnedFd) -> rustix::io::Result<u32> {
    // SAFETY: this ioctl has no argument; the descriptor is open.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
    u32::try_from(number).map_err(|_| last_error())
}

fn configure(device: &OwnedFd, memory: &OwnedFd) -> rustix::io::Result<()> {
    let mut config = LoopConfig::new_zeroed();
    config.fd = memory.as_fd().as_raw_fd() as u32;
    config.info.flags = AUTOCLEAR;
    // SAFETY: the descriptors are open, and this ioctl reads one `loop_config` through the pointer.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) };
    if answer == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Unmounts, by a thread that has none of this process's descriptors.
///
/// The unmount of a `fuseblk` mount waits, and no signal ends the waiting, until the server has answered DESTROY or has closed
/// /dev/fuse. A thread of the server's own that waits with the server's descriptors would wait for ever once the process is
/// killed: its other threads are gone, and the descriptors stay open for the one that waits.
pub fn unmount_apart(work: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
    thread::scope(|scope| {
        let apart = || {
            drop_descriptors();
            work()
        };
        let thread = thread::Builder::new().name("myriad-unmount".into()).spawn_scoped(scope, apart)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the unmounting thread panicked")))
    })
}

/// From now on this thread has a table of descriptors for itself, with none in it but the standard ones.
fn drop_descriptors() {
    const FIRST: libc::c_uint = 3;
    const UNSHARE: libc::c_uint = 2;
    // SAFETY: the table is copied first, so no other thread loses a descriptor. This one owns none: it was just begun, and what
    // it runs opens its own. A kernel that cannot (before Linux 5.9) changes nothing.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, UNSHARE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_split_between_mount_and_file_system() {
        let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOATIME | MountFlags::SYNCHRONOUS;
        let expected =
            MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
        assert_eq!(attributes(flags), expected);
        let both = MountFlags::NOATIME | MountFlags::STRICTATIME;
        assert_eq!(attributes(both), MountAttrFlags::MOUNT_ATTR_STRICTATIME);
        assert_eq!(attributes(MountFlags::RELATIME), MountAttrFlags::empty());
    }

    /// Was every other thread's descriptor closed, this one's pipe would be too.
    #[test]
    fn only_the_thread_that_unmounts_loses_its_descriptors() {
        use std::io::{Read, Write};
        let (mut read, mut write) = io::pipe().unwrap();
        let numbers = [read.as_raw_fd(), write.as_raw_fd()];
        let seen = std::sync::Mutex::new(None);
        unmount_apart(|| {
            let is_there = |fd: &i32| Path::new(&format!("/proc/thread-self/fd/{fd}")).symlink_metadata().is_ok();
            *seen.lock().unwrap() = Some(numbers.iter().any(is_there));
            Ok(())
        })
        .unwrap();
        // A container's kernel may lack the call.
        if seen.into_inner().unwrap() == Some(true) {
            println!("skipped: this kernel has no close_range");
        }
        write.write_all(b"x").unwrap();
        read.read_exact(&mut [0]).unwrap();
    }
}
