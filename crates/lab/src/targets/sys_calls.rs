//! Any directory through system calls, as a good C program makes them: relative to a directory it holds open, `mknod` for
//! an empty file (one call instead of open and close), `getdents64` with a big buffer, and `rm`'s order of removal.

use super::{Counters, Target, Usage, Worker, push_path};
use crate::workloads::plan::PathZ;
use anyhow::{Context, Result, ensure};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// How to empty the caches below a directory.
pub type DropCaches = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// Name of a block device in /sys/class/block, as it is now.
pub type DeviceName = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// What serves a directory, where nothing but its end makes durable what is in it.
pub trait Serving: Send + Sync {
    /// Begins to serve, unless it does.
    fn start(&self) -> Result<()>;
    /// Ends, if it serves, and all is durable.
    fn stop(&self) -> Result<()>;
}

/// `f_type` of FUSE mounts.
const FUSE_SUPER_MAGIC: rustix::fs::FsWord = 0x6573_5546;

pub struct SysCalls {
    root: PathBuf,
    /// Reads and writes inside a file go past the page cache.
    direct: bool,
    drop_caches: DropCaches,
    /// Of a directory that is not there without it. A sync ends it; who needs the directory next starts it, outside of what is measured.
    server: Option<Box<dyn Serving>>,
    /// A sync took the caches along, and nobody has read all again or asked for empty ones since.
    lost_caches: AtomicBool,
    table_bytes_per_inode: u64,
    /// The block device that counts; `None`: the one below `root`, if there is one.
    device: Option<DeviceName>,
    /// What keeps `root` there: a temporary folder, a mount.
    _guard: Option<Guard>,
}

/// Something that goes when the target goes.
pub type Guard = Box<dyn std::any::Any + Send + Sync>;

impl SysCalls {
    /// Works in `root`, which exists and is empty. Nothing in here keeps a descriptor between phases, so the file system
    /// may be unmounted and mounted again meanwhile.
    pub fn new(root: &Path, direct: bool) -> Self {
        Self {
            root: root.to_owned(),
            direct,
            drop_caches: Box::new(drop_kernel_caches),
            server: None,
            lost_caches: AtomicBool::new(false),
            table_bytes_per_inode: 0,
            device: None,
            _guard: None,
        }
    }

    pub fn with_guard(self, guard: Guard) -> Self {
        Self { _guard: Some(guard), ..self }
    }

    /// Counts requests of this block device.
    pub fn with_device(self, device: DeviceName) -> Self {
        Self { device: Some(device), ..self }
    }

    /// With a better way to empty the caches than asking the kernel to drop all of its own.
    pub fn with_drop_caches(self, drop_caches: DropCaches) -> Self {
        Self { drop_caches, ..self }
    }

    /// For a file system that passes no sync on. Caches are empty once it has ended.
    pub fn with_server(self, server: Box<dyn Serving>) -> Self {
        Self { server: Some(server), ..self }
    }

    pub fn with_table_bytes_per_inode(self, table_bytes_per_inode: u64) -> Self {
        Self { table_bytes_per_inode, ..self }
    }

    fn worker(&self) -> Result<SysCallsWorker> {
        let root = self.open_root()?;
        Ok(SysCallsWorker { root, entered: None, file: None, direct: self.direct, buffers: Vec::new() })
    }

    /// Has the directory be there.
    fn serve(&self) -> Result<()> {
        self.server.as_ref().map_or(Ok(()), |server| server.start())
    }

    /// Sees every name with its attributes, and reads every file: what can be in memory is there.
    pub fn read_all(&self) -> Result<()> {
        let mut buffer = vec![0; READ_ALL_REQUEST_BYTES];
        let mut worker = self.worker()?;
        let root = self.open_root()?;
        worker.read_below(&root, &mut buffer)
    }

    fn open_root(&self) -> Result<OwnedFd> {
        self.serve()?;
        open_directory(rustix::fs::CWD, &self.root).with_context(|| format!("opening {}", self.root.display()))
    }
}

impl Target for SysCalls {
    fn with_worker(&self, work: &mut dyn FnMut(&mut dyn Worker) -> Result<()>) -> Result<()> {
        work(&mut self.worker()?)
    }

    fn sync(&self) -> Result<()> {
        match &self.server {
            Some(server) => {
                self.lost_caches.store(true, Ordering::Relaxed);
                server.stop()
            }
            None => sync_all(&self.open_root()?),
        }
    }

    fn drop_caches(&self) -> Result<()> {
        self.sync()?;
        self.lost_caches.store(false, Ordering::Relaxed);
        match &self.server {
            Some(server) => server.start(),
            None => (self.drop_caches)(),
        }
    }

    fn begin(&self, _changes: bool) -> Result<()> {
        self.serve()
    }

    fn warm_up(&self) -> Result<()> {
        if self.lost_caches.swap(false, Ordering::Relaxed) {
            self.read_all()?;
        }
        Ok(())
    }

    fn counters(&self) -> Result<Counters> {
        let device = self.device.as_ref().map_or_else(|| device_of(&self.root), |name| name());
        Ok(device.and_then(|device| device_counters(&device)).unwrap_or_default())
    }

    fn usage(&self) -> Result<Usage> {
        self.serve()?;
        let statfs = rustix::fs::statvfs(&self.root).context("statvfs")?;
        let used_bytes = (statfs.f_blocks - statfs.f_bfree) * statfs.f_frsize;
        Ok(Usage { used_bytes, table_bytes_per_inode: self.table_bytes_per_inode })
    }

    fn names(&self) -> Result<u64> {
        let root = self.open_root()?;
        let mut worker = self.worker()?;
        // ext4 makes it, and nobody else does.
        let spare = rustix::fs::statat(&root, c"lost+found", AtFlags::SYMLINK_NOFOLLOW).is_ok();
        Ok(worker.find_below(&root)? - u64::from(spare))
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

/// Makes all of the file system durable that a directory is the root of.
fn sync_all(root: impl AsFd) -> Result<()> {
    // The kernel passes no syncfs on to a mount of type `fuse`; an fsync of a mount's root makes all of our volumes durable.
    if rustix::fs::fstatfs(&root).context("statfs")?.f_type == FUSE_SUPER_MAGIC {
        rustix::fs::fsync(&root).context("fsync of the root")?;
    }
    rustix::fs::syncfs(&root).context("syncfs")
}

fn drop_kernel_caches() -> Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cold phases need root: writing /proc/sys/vm/drop_caches")
}

/// Removes a directory with all below it, if it is there.
pub fn remove_all(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The block device below a path, by its name in /sys/class/block. By mount table, because btrfs' st_dev is not a device.
fn device_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let (_, source) = mount_of(&mount_table()?, &path)?;
    let device = Path::new(&source).canonicalize().ok()?;
    device.starts_with("/dev").then(|| device.file_name()?.to_str().map(str::to_owned))?
}

/// What a folder lies on: `ext4 on /dev/sda1`.
pub fn lies_on(folder: &Path) -> Option<String> {
    let (kind, source) = mount_of(&mount_table()?, &folder.canonicalize().ok()?)?;
    Some(format!("{kind} on {source}"))
}

/// Of this thread, which may have a mount namespace of its own.
fn mount_table() -> Option<String> {
    std::fs::read_to_string("/proc/thread-self/mountinfo").ok()
}

/// Type and source of the last mount on the longest mount point above `path`.
fn mount_of(mountinfo: &str, path: &Path) -> Option<(String, String)> {
    let mut best: Option<(usize, (&str, &str))> = None;
    for line in mountinfo.lines() {
        let Some((mount, filesystem)) = line.split_once(" - ") else { continue };
        let (Some(point), Some((kind, rest))) = (mount.split(' ').nth(4), filesystem.split_once(' ')) else { continue };
        let source = rest.split(' ').next().unwrap_or_default();
        let point = point.replace("\\040", " ");
        if path.starts_with(&point) && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), (kind, source)));
        }
    }
    best.map(|(_, (kind, source))| (kind.to_owned(), source.to_owned()))
}

/// What a block device was asked since it is there.
pub fn device_counters(device: &str) -> Option<Counters> {
    parse_device_stat(&std::fs::read_to_string(format!("/sys/class/block/{device}/stat")).ok()?)
}

/// Fields as in the kernel's Documentation/block/stat.rst; sectors there are always of 512 bytes.
fn parse_device_stat(stat: &str) -> Option<Counters> {
    let fields: Vec<u64> = stat.split_whitespace().map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let field = |index: usize| fields.get(index).copied();
    Some(Counters {
        reads: Some(field(0)?),
        read_bytes: Some(field(2)? * 512),
        writes: Some(field(4)?),
        written_bytes: Some(field(6)? * 512),
        flushes: field(15),
        ..Counters::default()
    })
}

const READ_ALL_REQUEST_BYTES: usize = 1 << 20;
/// What glibc gives `readdir`.
const DIRENT_BUFFER_BYTES: usize = 32 << 10;
/// From this many entries on, `rm` removes in the order of inode numbers (fts' FTS_INODE_SORT_DIR_ENTRIES_THRESHOLD).
const SORT_ENTRIES_MIN: usize = 10_000;

type DirentBuffer = Vec<MaybeUninit<u8>>;

struct SysCallsWorker {
    root: OwnedFd,
    /// Path of the directory that `enter` opened, and the directory.
    entered: Option<(Vec<u8>, OwnedFd)>,
    file: Option<OwnedFd>,
    direct: bool,
    /// Spare directory buffers, one a level.
    buffers: Vec<DirentBuffer>,
}

fn open_directory(parent: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(parent, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// One call may take less than all of it.
fn write_all(file: impl AsFd, mut content: &[u8]) -> Result<()> {
    while !content.is_empty() {
        let written = rustix::io::write(&file, content)?;
        ensure!(written > 0, "{} bytes could not be written", content.len());
        content = &content[written..];
    }
    Ok(())
}

fn file_mode() -> Mode {
    Mode::from_raw_mode(0o644)
}

impl SysCallsWorker {
    /// The directory to name `path` from, and its name there.
    fn at<'a>(&self, path: PathZ<'a>) -> (&OwnedFd, &'a CStr) {
        if let Some((entered, directory)) = &self.entered
            && let Some(name) = path.below(entered)
        {
            return (directory, name.c_str());
        }
        (&self.root, path.c_str())
    }

    fn open_at(&self, path: PathZ, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let (directory, name) = self.at(path);
        rustix::fs::openat(directory, name, flags | OFlags::CLOEXEC, file_mode())
    }

    fn take_buffer(&mut self) -> DirentBuffer {
        self.buffers.pop().unwrap_or_else(|| vec![MaybeUninit::uninit(); DIRENT_BUFFER_BYTES])
    }

    /// Calls `each` with every entry's name but `.` and `..`, its type and inode number.
    fn for_entries(
        &mut self,
        directory: &OwnedFd,
        mut each: impl FnMut(&mut Self, &CStr, FileType, u64) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = self.take_buffer();
        let mut entries = RawDir::new(directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                let file_type = match entry.file_type() {
                    // Not every server says (fuse2fs).
                    FileType::Unknown => {
                        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                        FileType::from_raw_mode(stat.st_mode)
                    }
                    known => known,
                };
                each(self, name, file_type, entry.ino())?;
            }
        }
        self.buffers.push(buffer);
        Ok(())
    }

    fn walk_below(&mut self, directory: &OwnedFd) -> Result<u64> {
        let mut count = 0;
        self.for_entries(directory, |worker, name, file_type, _| {
            let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            std::hint::black_box(stat.st_size);
            count += 1;
            if file_type == FileType::Directory {
                count += worker.walk_below(&open_directory(directory, name)?)?;
            }
            Ok(())
        })?;
        Ok(count)
    }

    fn read_below(&mut self, directory: &OwnedFd, buffer: &mut [u8]) -> Result<()> {
        self.for_entries(directory, |worker, name, file_type, _| {
            std::hint::black_box(rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_size);
            match file_type {
                FileType::Directory => worker.read_below(&open_directory(directory, name)?, buffer)?,
                FileType::RegularFile => {
                    let file = rustix::fs::openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                    while rustix::io::read(&file, &mut *buffer)? > 0 {}
                }
                _ => {}
            }
            Ok(())
        })
    }

    fn find_below(&mut self, directory: &OwnedFd) -> Result<u64> {
        let mut count = 0;
        self.for_entries(directory, |worker, name, file_type, _| {
            count += 1;
            if file_type == FileType::Directory {
                count += worker.find_below(&open_directory(directory, name)?)?;
            }
            Ok(())
        })?;
        Ok(count)
    }

    fn remove_below(&mut self, directory: &OwnedFd) -> Result<u64> {
        let mut entries: Vec<(u64, FileType, CString)> = Vec::new();
        self.for_entries(directory, |_, name, file_type, ino| {
            entries.push((ino, file_type, name.to_owned()));
            Ok(())
        })?;
        if entries.len() > SORT_ENTRIES_MIN {
            entries.sort_unstable_by_key(|entry| entry.0);
        }
        let mut count = entries.len() as u64;
        for (_, file_type, name) in &entries {
            let flags = if *file_type == FileType::Directory {
                count += self.remove_below(&open_directory(directory, name)?)?;
                AtFlags::REMOVEDIR
            } else {
                AtFlags::empty()
            };
            rustix::fs::unlinkat(directory, name, flags)?;
        }
        Ok(count)
    }
}

impl Worker for SysCallsWorker {
    fn enter(&mut self, directory: PathZ) -> Result<()> {
        let opened = open_directory(&self.root, directory.c_str())?;
        self.entered = Some((directory.bytes().to_vec(), opened));
        Ok(())
    }

    fn create(&mut self, path: PathZ) -> Result<()> {
        let (directory, name) = self.at(path);
        Ok(rustix::fs::mknodat(directory, name, FileType::RegularFile, file_mode(), 0)?)
    }

    fn mkdir(&mut self, path: PathZ) -> Result<()> {
        let (directory, name) = self.at(path);
        Ok(rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o755))?)
    }

    fn unlink(&mut self, path: PathZ) -> Result<()> {
        let (directory, name) = self.at(path);
        Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
    }

    fn rmdir(&mut self, path: PathZ) -> Result<()> {
        let (directory, name) = self.at(path);
        Ok(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)
    }

    fn rename(&mut self, source: PathZ, target: PathZ) -> Result<()> {
        let (source_directory, source) = self.at(source);
        let (target_directory, target) = self.at(target);
        Ok(rustix::fs::renameat(source_directory, source, target_directory, target)?)
    }

    fn stat(&mut self, path: PathZ) -> Result<u64> {
        let (directory, name) = self.at(path);
        Ok(rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_size as u64)
    }

    fn stat_missing(&mut self, path: PathZ) -> Result<()> {
        let (directory, name) = self.at(path);
        match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => anyhow::bail!("{} should be missing", path.display()),
        }
    }

    fn list(&mut self, directory: PathZ) -> Result<u64> {
        let mut count = 0;
        let directory = self.open_at(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.for_entries(&directory, |_, name, _, _| {
            std::hint::black_box(name);
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    fn names(&mut self, directory: PathZ, paths: &mut Vec<u8>) -> Result<()> {
        let opened = self.open_at(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.for_entries(&opened, |_, name, _, _| {
            push_path(paths, directory, name.to_bytes());
            Ok(())
        })
    }

    fn list_stat(&mut self, directory: PathZ) -> Result<u64> {
        let mut count = 0;
        let directory = self.open_at(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.for_entries(&directory, |_, name, _, _| {
            let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            std::hint::black_box(stat.st_size);
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    fn walk(&mut self, directory: PathZ) -> Result<u64> {
        let directory = self.open_at(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        std::hint::black_box(rustix::fs::fstat(&directory)?.st_size);
        Ok(1 + self.walk_below(&directory)?)
    }

    fn find(&mut self, directory: PathZ) -> Result<u64> {
        let directory = self.open_at(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(1 + self.find_below(&directory)?)
    }

    fn remove_tree(&mut self, directory: PathZ) -> Result<u64> {
        let opened = self.open_at(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let count = self.remove_below(&opened)?;
        self.entered = None;
        rustix::fs::unlinkat(&self.root, directory.c_str(), AtFlags::REMOVEDIR)?;
        Ok(count + 1)
    }

    fn write_file(&mut self, path: PathZ, content: &[u8], sync: bool) -> Result<()> {
        let file = self.open_at(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        write_all(&file, content).with_context(|| path.display().into_owned())?;
        if sync {
            rustix::fs::fsync(&file)?;
        }
        Ok(())
    }

    fn read_file(&mut self, path: PathZ, buf: &mut [u8]) -> Result<usize> {
        let file = self.open_at(path, OFlags::RDONLY)?;
        let mut length = 0;
        // A short read is the end of a regular file, but a buffer filled to the brim may not be.
        while length < buf.len() {
            match rustix::io::read(&file, &mut buf[length..])? {
                0 => break,
                read => length += read,
            }
        }
        Ok(length)
    }

    fn open(&mut self, path: PathZ, new: bool) -> Result<()> {
        let mut flags = OFlags::RDWR;
        flags.set(OFlags::CREATE | OFlags::EXCL, new);
        flags.set(OFlags::DIRECT, self.direct);
        self.file = match self.open_at(path, flags) {
            // It can be read all the same.
            Err(Errno::ROFS) if !new => Some(self.open_at(path, flags.difference(OFlags::ACCMODE))?),
            opened => Some(opened?),
        };
        Ok(())
    }

    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        let file = self.file.as_ref().context("no file is open")?;
        let wanted = buf.len();
        let read = rustix::io::pread(file, buf, offset)?;
        ensure!(read == wanted, "{read} of {wanted} bytes read at {offset}");
        Ok(())
    }

    fn write_at(&mut self, content: &[u8], offset: u64) -> Result<()> {
        let file = self.file.as_ref().context("no file is open")?;
        let written = rustix::io::pwrite(file, content, offset)?;
        ensure!(written == content.len(), "{written} of {} bytes written at {offset}", content.len());
        Ok(())
    }

    fn link(&mut self, path: PathZ, name: PathZ) -> Result<()> {
        let (source_directory, source) = self.at(path);
        let (target_directory, target) = self.at(name);
        Ok(rustix::fs::linkat(source_directory, source, target_directory, target, AtFlags::empty())?)
    }

    fn utime(&mut self, path: PathZ) -> Result<()> {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        let (directory, name) = self.at(path);
        Ok(rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn append(&mut self, path: PathZ, content: &[u8]) -> Result<()> {
        let file = self.open_at(path, OFlags::WRONLY | OFlags::APPEND)?;
        write_all(&file, content).with_context(|| path.display().into_owned())
    }

    fn create_sized(&mut self, path: PathZ, size: u64) -> Result<()> {
        let file = self.open_at(path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        Ok(rustix::fs::ftruncate(&file, size)?)
    }

    fn settle(&mut self) -> Result<()> {
        match &self.file {
            Some(file) => Ok(rustix::fs::fdatasync(file)?),
            None => sync_all(&self.root),
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.file = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::inotify;
    use std::sync::{Arc, Mutex};

    #[test]
    fn mounts_of_a_table() {
        let table = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                     30 22 0:40 / /tmp/a\\040b rw,noatime shared:1 - btrfs /dev/loop3 rw\n\
                     31 22 0:41 / /tmp/a\\040bc rw - tmpfs tmpfs rw\n\
                     32 30 7:4 / /tmp/a\\040b rw - xfs /dev/loop4 rw\n";
        let mount = |path: &str| mount_of(table, Path::new(path)).map(|(kind, source)| format!("{kind} on {source}"));
        assert_eq!(mount("/etc").as_deref(), Some("ext4 on /dev/vda"));
        assert_eq!(mount("/tmp/a b/c").as_deref(), Some("xfs on /dev/loop4"));
        assert_eq!(mount("/tmp/a bc").as_deref(), Some("tmpfs on tmpfs"));
    }

    #[test]
    fn device_stat() {
        let line = " 100 5 800 20 300 7 2400 90 0 80 120 4 0 1024 3 9 30\n";
        let counters = parse_device_stat(line).unwrap();
        assert_eq!((counters.reads, counters.read_bytes), (Some(100), Some(800 * 512)));
        assert_eq!((counters.writes, counters.written_bytes), (Some(300), Some(2400 * 512)));
        assert_eq!((counters.flushes, counters.blocks_touched), (Some(9), None));
        assert_eq!(parse_device_stat("1 2 x"), None);
    }

    /// Says what it is told to do.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<(bool, Vec<&'static str>)>>);

    impl Told {
        fn to(&self, runs: bool, word: &'static str) -> Result<()> {
            let mut told = self.0.lock().unwrap();
            if told.0 != runs {
                told.0 = runs;
                told.1.push(word);
            }
            Ok(())
        }

        fn take(&self) -> Vec<&'static str> {
            std::mem::take(&mut self.0.lock().unwrap().1)
        }
    }

    impl Serving for Told {
        fn start(&self) -> Result<()> {
            self.to(true, "start")
        }

        fn stop(&self) -> Result<()> {
            self.to(false, "stop")
        }
    }

    /// The sync after a phase of fuse2fs ended the server and started another one, and the phase was charged for both.
    #[test]
    fn a_sync_only_ends_a_server() {
        let folder = tempfile::tempdir().unwrap();
        let told = Told::default();
        let target = SysCalls::new(folder.path(), false).with_server(Box::new(told.clone()));
        target.begin(true).unwrap();
        assert_eq!(told.take(), ["start"]);
        target.with_worker(&mut |_| Ok(())).unwrap();
        assert!(told.take().is_empty());
        target.sync().unwrap();
        assert_eq!(told.take(), ["stop"]);
        // Whoever looks at the directory finds it served.
        assert_eq!(target.names().unwrap(), 0);
        assert_eq!(told.take(), ["start"]);
        target.drop_caches().unwrap();
        assert_eq!(told.take(), ["stop", "start"]);
        target.sync().unwrap();
        target.usage().unwrap();
        assert_eq!(told.take(), ["stop", "start"]);
        Box::new(target).close().unwrap();
        assert_eq!(told.take(), ["stop"]);
    }

    /// All of a tree is read after a sync took the caches along, once, and not where empty ones were asked for.
    #[test]
    fn what_a_sync_lost_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        let file = folder.path().join("d/f");
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
        let target = SysCalls::new(folder.path(), false).with_server(Box::new(Told::default()));
        let accesses = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&accesses, &file, inotify::WatchFlags::ACCESS).unwrap();
        let is_read = || {
            target.warm_up().unwrap();
            rustix::io::read(&accesses, &mut [0; 4096]).is_ok()
        };
        assert!(!is_read(), "nothing was lost");
        target.sync().unwrap();
        assert!(is_read());
        assert!(!is_read());
        target.sync().unwrap();
        target.drop_caches().unwrap();
        assert!(!is_read(), "the next phase wants empty caches");
    }
}
