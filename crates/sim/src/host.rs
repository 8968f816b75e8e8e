//! The model against a directory of the host: through system calls, so that the kernel is the independent opinion, or a
//! mount is held against the model.
//!
//! Each user is a thread with its own credentials, umask and root directory (`unshare(CLONE_FS)`, `chroot`), so paths,
//! permissions and ACLs are the kernel's own doing. Which operations moved an mtime or ctime is compared, too, where
//! timestamps are fine enough to tell.

use crate::compare::{ContentDigest, Differ, Rules, TreeEntry, join};
use crate::errno::Errno;
use crate::generate::{Generator, Profile};
use crate::model::Model;
use crate::op::*;
use crate::{pattern, rng, shrink};
use rustix::fd::OwnedFd;
use rustix::fs::{self as unix, AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, XattrFlags};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that acts as one user, below one directory.
struct Actor {
    jobs: Sender<Job>,
}

impl Actor {
    fn start(root: &Path, cred: Cred) -> Result<Self, String> {
        let (jobs, todo): (Sender<Job>, Receiver<Job>) = channel();
        let (ready, is_ready) = channel();
        let root = root.to_owned();
        std::thread::spawn(move || {
            let became = become_user(&root, &cred);
            let works = became.is_ok();
            ready.send(became).expect("the test waits");
            if works {
                todo.iter().for_each(|job| job());
            }
        });
        is_ready.recv().expect("the thread answers").map_err(|error| error.to_string())?;
        Ok(Self { jobs })
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let job = Box::new(move || done.send(work()).expect("the test waits"));
        self.jobs.send(job).expect("the thread lives");
        result.recv().expect("no panic on the thread")
    }
}

fn become_user(root: &Path, cred: &Cred) -> rustix::io::Result<()> {
    use rustix::process::{Gid, Uid};
    use rustix::thread as threads;
    #[allow(deprecated, reason = "CLONE_FS unshares no file descriptor table, which is what the deprecation is about")]
    threads::unshare(threads::UnshareFlags::FS)?;
    rustix::process::chroot(root)?;
    rustix::process::chdir("/")?;
    rustix::process::umask(Mode::from_raw_mode(u32::from(cred.umask)));
    let groups: Vec<Gid> = cred.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
    threads::set_thread_groups(&groups)?;
    let (uid, gid) = (Uid::from_raw(cred.uid), Gid::from_raw(cred.gid));
    threads::set_thread_res_gid(gid, gid, gid)?;
    threads::set_thread_res_uid(uid, uid, uid)
}

type Slots = Arc<Mutex<Vec<Option<Arc<OwnedFd>>>>>;

fn no_files() -> Slots {
    Arc::new(Mutex::new((0..SLOTS).map(|_| None).collect()))
}

/// Runs operations as whoever the caller is, below the caller's own root directory, and has the files that they opened.
pub struct Direct {
    slots: Slots,
}

impl Default for Direct {
    fn default() -> Self {
        Self { slots: no_files() }
    }
}

impl Direct {
    pub fn run(&self, op: Op) -> Answer {
        perform(&self.slots, op).map_err(|errno| Errno(errno.raw_os_error()))
    }
}

struct Host {
    root: PathBuf,
    actors: Vec<Actor>,
    slots: Slots,
    /// Who opened what is in a slot.
    owners: Vec<usize>,
    /// Renames can leave whiteouts, which not every kind of file system has.
    leaves_whiteouts: bool,
}

/// Tries it in an empty directory, which is empty again afterwards.
fn leaves_whiteouts(root: &Path) -> rustix::io::Result<bool> {
    let (source, target) = (root.join("probe"), root.join("probed"));
    unix::mknodat(CWD, &source, unix::FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    let renamed = unix::renameat_with(CWD, &source, CWD, &target, RenameFlags::WHITEOUT);
    unix::unlink(&source)?;
    if renamed.is_ok() {
        unix::unlink(&target)?;
    }
    Ok(renamed.is_ok())
}

impl Host {
    fn start(root: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(root).map_err(|error| error.to_string())?;
        // The root's own mode, whatever the test's umask.
        unix::chmod(root, Mode::from_raw_mode(0o755)).map_err(|error| error.to_string())?;
        let actors: Result<Vec<_>, _> = users().into_iter().map(|cred| Actor::start(root, cred)).collect();
        let leaves_whiteouts = leaves_whiteouts(root).map_err(|error| error.to_string())?;
        let owners = vec![0; SLOTS];
        Ok(Self { root: root.to_owned(), actors: actors?, slots: no_files(), owners, leaves_whiteouts })
    }

    /// What the kernel does in its own way: linking by descriptor is for the one who opened it, tmpfs has no zeroing of
    /// ranges, and seeking in directories is each file system's affair.
    fn adapt(&self, model: &Model, step: &Step, traits: Traits) -> Step {
        let mut step = step.clone();
        match &mut step.op {
            Op::LinkFile { slot, .. } => step.cred = self.owners[*slot],
            // Flags are set through an open file, so only where the super-user may open one.
            Op::SetAttr { path, change: Change::Flags(flags) } => {
                if !traits.kernel_knows_flags {
                    *flags &= !(flag::IMMUTABLE | flag::APPEND);
                }
                let ino = model.find(path);
                let is_open = (0..SLOTS).any(|slot| model.handle(slot).is_some_and(|handle| Some(handle.ino) == ino));
                let has_flags = |ino| matches!(model.inode(ino).kind, Kind::File | Kind::Directory);
                if is_open || !ino.is_some_and(has_flags) {
                    step.op = Op::Stat { path: path.clone(), follow: true };
                }
                step.cred = 0;
            }
            Op::SeekData { slot, .. } | Op::SeekHole { slot, .. }
                if model.handle(*slot).is_some_and(|handle| model.inode(handle.ino).is_dir()) =>
            {
                step.op = Op::HandleStat { slot: *slot };
            }
            Op::Allocate { how: how @ AllocateHow::Zero { .. }, .. } if !traits.zeroes_ranges => {
                *how = AllocateHow::Punch
            }
            Op::Rename { how, .. } if how.leaves_whiteout() && !self.leaves_whiteouts => *how = RenameHow::Replace,
            _ => {}
        }
        step
    }

    fn run(&mut self, step: &Step) -> Answer {
        if let Op::Open { slot, .. } | Op::OpenTmpfile { slot, .. } = step.op {
            self.owners[slot] = step.cred;
        }
        let cred = match handle_slot(&step.op) {
            Some(slot) => self.owners[slot],
            None => step.cred,
        };
        let (slots, op) = (Arc::clone(&self.slots), step.op.clone());
        self.actors[cred].run(move || perform(&slots, op)).map_err(|errno| Errno(errno.raw_os_error()))
    }

    fn tree(&self) -> io::Result<Vec<TreeEntry>> {
        let mut out = Vec::new();
        add_tree(&self.root, Vec::new(), &mut out)?;
        Ok(out)
    }
}

fn handle_slot(op: &Op) -> Option<usize> {
    match op {
        Op::HandleStat { slot }
        | Op::Read { slot, .. }
        | Op::Write { slot, .. }
        | Op::Truncate { slot, .. }
        | Op::Allocate { slot, .. }
        | Op::SeekData { slot, .. }
        | Op::SeekHole { slot, .. }
        | Op::HandleSetAttr { slot, .. }
        | Op::Fsync { slot, .. } => Some(*slot),
        _ => None,
    }
}

fn mode_of(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode))
}

fn time_of(set: Option<SetTime>) -> unix::Timespec {
    const NS: i64 = 1_000_000_000;
    match set {
        None => unix::Timespec { tv_sec: 0, tv_nsec: unix::UTIME_OMIT },
        Some(SetTime::Now) => unix::Timespec { tv_sec: 0, tv_nsec: unix::UTIME_NOW },
        Some(SetTime::At(time)) => unix::Timespec { tv_sec: time.div_euclid(NS), tv_nsec: time.rem_euclid(NS) as _ },
    }
}

fn stat_of(stat: &unix::Stat) -> Stat {
    let mode = stat.st_mode as u16;
    let ns = |sec: i64, nsec: u64| sec.wrapping_mul(1_000_000_000).wrapping_add(nsec as i64);
    let mtime = ns(stat.st_mtime, stat.st_mtime_nsec);
    Stat {
        ino: stat.st_ino,
        kind: Kind::from_mode(mode).expect("the kernel knows its types"),
        mode: mode & 0o7777,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev,
        size: stat.st_size as u64,
        atime: 0,
        mtime,
        ctime: ns(stat.st_ctime, stat.st_ctime_nsec),
        btime: 0,
        flags: 0,
    }
}

fn perform(slots: &Slots, op: Op) -> rustix::io::Result<Value> {
    let fd = |slot: usize| slots.lock().unwrap()[slot].clone().ok_or(rustix::io::Errno::BADF);
    let put = |slot: usize, fd: OwnedFd| slots.lock().unwrap()[slot] = Some(Arc::new(fd));
    let none = |()| Value::None;
    Ok(match op {
        Op::Create { path, mode } => {
            // As a node, so that no open file is needed; open(2) has checks of its own.
            none(unix::mknodat(CWD, path, unix::FileType::RegularFile, mode_of(mode), 0)?)
        }
        Op::Mkdir { path, mode } => none(unix::mkdir(path, mode_of(mode))?),
        Op::Mknod { path, kind, mode, rdev } => {
            let kind = unix::FileType::from_raw_mode(u32::from(kind.mode_bits()));
            none(unix::mknodat(CWD, path, kind, mode_of(mode), rdev)?)
        }
        Op::Symlink { target, path } => none(unix::symlink(target, path)?),
        Op::Readlink { path } => Value::Bytes(unix::readlink(path, Vec::new())?.into_bytes()),
        Op::Link { source, target } => none(unix::linkat(CWD, source, CWD, target, AtFlags::empty())?),
        Op::Unlink { path } => none(unix::unlink(path)?),
        Op::Rmdir { path } => none(unix::rmdir(path)?),
        Op::Rename { source, target, how } => {
            let flags = match how {
                RenameHow::Replace => RenameFlags::empty(),
                RenameHow::NoReplace => RenameFlags::NOREPLACE,
                RenameHow::Exchange => RenameFlags::EXCHANGE,
                RenameHow::Whiteout => RenameFlags::WHITEOUT,
                RenameHow::NoReplaceWhiteout => RenameFlags::NOREPLACE | RenameFlags::WHITEOUT,
            };
            none(unix::renameat_with(CWD, source, CWD, target, flags)?)
        }
        Op::Stat { path, follow } => Value::Stat(stat_of(&if follow { unix::stat(path)? } else { unix::lstat(path)? })),
        Op::Access { path, mask } => none(unix::access(path, unix::Access::from_bits_retain(u32::from(mask)))?),
        Op::ReadDir { path } => {
            let dir = unix::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            let mut entries = Vec::new();
            for entry in unix::Dir::new(dir)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes().to_vec();
                let kind = Kind::from_mode(entry.file_type().as_raw_mode() as u16).expect("a known type");
                if name != b"." && name != b".." {
                    entries.push(Entry { name, ino: entry.ino(), kind });
                }
            }
            Value::Entries(entries)
        }
        Op::SetAttr { path, change } => {
            match change {
                Change::Mode(mode) => unix::chmod(&path[..], mode_of(mode))?,
                Change::Owner { uid, gid } => {
                    let (uid, gid) = (uid.map(unix::Uid::from_raw), gid.map(unix::Gid::from_raw));
                    unix::chown(&path[..], uid, gid)?;
                }
                Change::Size(size) => {
                    let file = std::ffi::OsStr::from_bytes(&path);
                    truncate(file, size)?;
                }
                Change::Times { atime, mtime } => {
                    let times = unix::Timestamps { last_access: time_of(atime), last_modification: time_of(mtime) };
                    unix::utimensat(CWD, &path[..], &times, AtFlags::empty())?;
                }
                Change::Flags(flags) => set_flags(Path::new(std::ffi::OsStr::from_bytes(&path)), flags)?,
            }
            Value::Stat(stat_of(&unix::stat(path)?))
        }
        Op::GetXattr { path, name } => {
            let mut value = vec![0; 65536];
            let len = unix::getxattr(path, name, &mut value[..])?;
            value.truncate(len);
            Value::Bytes(value)
        }
        Op::SetXattr { path, name, value, how } => {
            let flags = match how {
                XattrHow::Set => XattrFlags::empty(),
                XattrHow::Create => XattrFlags::CREATE,
                XattrHow::Replace => XattrFlags::REPLACE,
            };
            none(unix::setxattr(path, name, &value, flags)?)
        }
        Op::ListXattr { path } => {
            let mut list = vec![0; 65536];
            let len = unix::listxattr(path, &mut list[..])?;
            list.truncate(len);
            let names = list.split(|&byte| byte == 0).filter(|name| !name.is_empty());
            Value::Names(names.map(<[u8]>::to_vec).collect())
        }
        Op::RemoveXattr { path, name } => none(unix::removexattr(path, name)?),
        Op::Open { slot, path, how } => {
            slots.lock().unwrap()[slot] = None;
            let mut flags = match (how.read, how.write) {
                (true, true) => OFlags::RDWR,
                (false, true) => OFlags::WRONLY,
                _ => OFlags::RDONLY,
            };
            flags |= OFlags::NONBLOCK;
            for (wanted, flag) in [
                (how.append, OFlags::APPEND),
                (how.truncate, OFlags::TRUNC),
                (how.create, OFlags::CREATE),
                (how.exclusive, OFlags::EXCL),
                (how.no_follow, OFlags::NOFOLLOW),
            ] {
                flags |= if wanted { flag } else { OFlags::empty() };
            }
            let file = unix::open(path, flags, mode_of(how.mode))?;
            let kind = unix::FileType::from_raw_mode(unix::fstat(&file)?.st_mode);
            if !matches!(kind, unix::FileType::RegularFile | unix::FileType::Directory) {
                return Err(rustix::io::Errno::NXIO);
            }
            put(slot, file);
            Value::None
        }
        Op::OpenTmpfile { slot, path, mode } => {
            slots.lock().unwrap()[slot] = None;
            put(slot, unix::open(path, OFlags::RDWR | OFlags::TMPFILE, mode_of(mode))?);
            Value::None
        }
        Op::LinkFile { slot, path } => {
            let file = fd(slot)?;
            none(unix::linkat(&*file, c"", CWD, path, AtFlags::EMPTY_PATH)?)
        }
        Op::Close { slot } => {
            slots.lock().unwrap()[slot].take().ok_or(rustix::io::Errno::BADF)?;
            Value::None
        }
        Op::HandleStat { slot } => Value::Stat(stat_of(&unix::fstat(&*fd(slot)?)?)),
        Op::Read { slot, offset, len } => {
            let mut bytes = vec![0; len];
            let len = rustix::io::pread(&*fd(slot)?, &mut bytes[..], offset)?;
            bytes.truncate(len);
            Value::Bytes(bytes)
        }
        Op::Write { slot, offset, len, tag } => {
            let bytes = pattern::bytes(tag, offset, len);
            Value::Count(rustix::io::pwrite(&*fd(slot)?, &bytes, offset)? as u64)
        }
        Op::Truncate { slot, size } => none(unix::ftruncate(&*fd(slot)?, size)?),
        Op::Allocate { slot, how, offset, len } => {
            let flags = match how {
                AllocateHow::Extend => FallocateFlags::empty(),
                AllocateHow::KeepSize => FallocateFlags::KEEP_SIZE,
                AllocateHow::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                AllocateHow::Zero { keep_size: false } => FallocateFlags::ZERO_RANGE,
                AllocateHow::Zero { keep_size: true } => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            };
            none(unix::fallocate(&*fd(slot)?, flags, offset, len)?)
        }
        Op::SeekData { slot, offset } => Value::Position(unix::seek(&*fd(slot)?, unix::SeekFrom::Data(offset))?),
        Op::SeekHole { slot, offset } => Value::Position(unix::seek(&*fd(slot)?, unix::SeekFrom::Hole(offset))?),
        Op::HandleSetAttr { slot, change } => {
            let file = fd(slot)?;
            match change {
                Change::Mode(mode) => unix::fchmod(&*file, mode_of(mode))?,
                Change::Owner { uid, gid } => {
                    unix::fchown(&*file, uid.map(unix::Uid::from_raw), gid.map(unix::Gid::from_raw))?;
                }
                Change::Times { atime, mtime } => {
                    let times = unix::Timestamps { last_access: time_of(atime), last_modification: time_of(mtime) };
                    unix::futimens(&*file, &times)?;
                }
                Change::Size(_) | Change::Flags(_) => unreachable!("not generated for open files"),
            }
            Value::Stat(stat_of(&unix::fstat(&*file)?))
        }
        Op::Fsync { slot, .. } => fd(slot).map(|_| Value::None)?,
        Op::Sync => Value::None,
        Op::Remount => {
            slots.lock().unwrap().fill(None);
            Value::None
        }
    })
}

use std::os::unix::ffi::OsStrExt;

/// truncate(2), which rustix leaves out; the standard library has only the open file's. Through /proc it is the same
/// checks but for the walk, so the walk is made here.
fn truncate(path: &std::ffi::OsStr, size: u64) -> rustix::io::Result<()> {
    let stat = unix::stat(path)?;
    match unix::FileType::from_raw_mode(stat.st_mode) {
        unix::FileType::RegularFile => {}
        unix::FileType::Directory => return Err(rustix::io::Errno::ISDIR),
        _ => return Err(rustix::io::Errno::INVAL),
    }
    let file = unix::open(path, OFlags::WRONLY, Mode::empty())?;
    unix::ftruncate(&file, size)
}

const FLAGS: [(u32, IFlags); 4] = [
    (flag::IMMUTABLE, IFlags::IMMUTABLE),
    (flag::APPEND, IFlags::APPEND),
    (flag::NODUMP, IFlags::NODUMP),
    (flag::NOATIME, IFlags::NOATIME),
];

fn set_flags(path: &Path, flags: u32) -> rustix::io::Result<()> {
    let file = unix::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let mut theirs = unix::ioctl_getflags(&file)?;
    for (ours, flag) in FLAGS {
        theirs.set(flag, flags & ours != 0);
    }
    unix::ioctl_setflags(&file, theirs)
}

/// Removes the tree, immutable files and all.
pub fn remove(path: &Path) -> io::Result<()> {
    let Ok(stat) = unix::lstat(path) else { return Ok(()) };
    let kind = unix::FileType::from_raw_mode(stat.st_mode);
    if matches!(kind, unix::FileType::RegularFile | unix::FileType::Directory) {
        // Not every file system has flags.
        let _ = set_flags(path, 0);
    }
    if kind == unix::FileType::Directory {
        for entry in std::fs::read_dir(path)? {
            remove(&entry?.path())?;
        }
        return std::fs::remove_dir(path);
    }
    std::fs::remove_file(path)
}

/// Appends what is at `path` below `root`, and all below it.
pub fn add_tree(root: &Path, path: Vec<u8>, out: &mut Vec<TreeEntry>) -> io::Result<()> {
    use std::os::unix::ffi::OsStringExt;
    let at = root.join(std::ffi::OsStr::from_bytes(&path));
    let stat = stat_of(&unix::lstat(&at)?);
    let mut xattrs = BTreeMap::new();
    if stat.kind != Kind::Symlink {
        let mut list = vec![0; 65536];
        let len = unix::listxattr(&at, &mut list[..])?;
        for name in list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; 65536];
            let len = unix::getxattr(&at, name, &mut value[..])?;
            value.truncate(len);
            xattrs.insert(name.to_vec(), value);
        }
    }
    let content = (stat.kind == Kind::File).then(|| digest(&at, stat.size)).transpose()?;
    let target = (stat.kind == Kind::Symlink).then(|| std::fs::read_link(&at)).transpose()?;
    let target = target.map(|target| target.into_os_string().into_vec());
    out.push(TreeEntry { path: path.clone(), stat, target, xattrs, content });
    if stat.kind == Kind::Directory {
        for entry in std::fs::read_dir(&at)? {
            add_tree(root, join(&path, entry?.file_name().as_bytes()), out)?;
        }
    }
    Ok(())
}

fn digest(path: &Path, size: u64) -> io::Result<u64> {
    let file = std::fs::File::open(path)?;
    let mut digest = ContentDigest::default();
    let mut at = 0;
    while at < size {
        let data = match unix::seek(&file, unix::SeekFrom::Data(at)) {
            Ok(data) => data & !4095,
            Err(_) => break,
        };
        let mut bytes = vec![0; 65536];
        let len = rustix::io::pread(&file, &mut bytes[..], data)?;
        digest.add(data, &bytes[..len]);
        at = data + len as u64;
    }
    Ok(digest.finish())
}

/// How the file system at hand differs from others.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// Timestamps tell two operations apart.
    pub fine_times: bool,
    /// fallocate(2) can zero ranges.
    pub zeroes_ranges: bool,
    /// The kernel knows immutable and append-only inodes: elsewhere, a server refuses what the kernel has let through, so
    /// other errors go first.
    pub kernel_knows_flags: bool,
    /// Largest size of a file.
    pub size_max: u64,
}

/// mtime and ctime of each living inode: which of them moved tells whether both sides agree on that.
type Stamps = BTreeMap<u64, (i64, i64)>;

fn run(root: &Path, steps: &[Step], traits: Traits) -> Result<(), String> {
    remove(root).map_err(|error| error.to_string())?;
    let mut host = Host::start(root)?;
    let mut model = Model::new(0);
    let protected = std::fs::read_to_string("/proc/sys/fs/protected_hardlinks");
    model.protected_hardlinks = protected.is_ok_and(|value| value.trim() != "0");
    model.size_max = traits.size_max;
    let mut differ = Differ::new(Rules { times: false, flags: false, ..Rules::ALL });
    let (mut ours, mut theirs) = (Stamps::new(), Stamps::new());
    for (index, step) in steps.iter().enumerate() {
        let step = &host.adapt(&model, step, traits);
        let at = |message: String| format!("step {index}: {}{message}", shrink::show(std::slice::from_ref(step)));
        let expected = model.apply(step);
        let got = host.run(step);
        // Setting attributes without the right to look at the result: the model gives it, the host cannot.
        let unseen = matches!((&step.op, &expected, &got), (Op::SetAttr { .. }, Ok(_), Err(Errno::ACCES)));
        // The kernel has more rules about devices and sockets, and somebody behind some of them.
        let special = matches!((&step.op, &expected, &got), (Op::Open { .. }, Err(Errno::NXIO), Err(_)));
        if !unseen && !special {
            differ.answer(&model, step, &expected, &got).map_err(at)?;
        }
        {
            let (mut ours_now, mut theirs_now) = (Stamps::new(), Stamps::new());
            for entry in model.names() {
                ours_now.insert(entry.stat.ino, (entry.stat.mtime, entry.stat.ctime));
                let stat = unix::lstat(root.join(std::ffi::OsStr::from_bytes(&entry.path)));
                let stat = stat_of(&stat.map_err(|error| at(error.to_string()))?);
                theirs_now.insert(entry.stat.ino, (stat.mtime, stat.ctime));
                let moved = |before: &Stamps, now: &Stamps| {
                    let (before, now) = (before.get(&entry.stat.ino)?, now[&entry.stat.ino]);
                    Some((before.0 != now.0, before.1 != now.1))
                };
                let (a, b) = (moved(&ours, &ours_now), moved(&theirs, &theirs_now));
                // Some times of tmpfs come from the coarse clock, which stands still for several steps.
                let (a, b) = match (a, b) {
                    (Some(a), Some(b)) if !traits.fine_times => (a, (a.0 || b.0, a.1 || b.1)),
                    (Some(a), Some(b)) => (a, b),
                    _ => continue,
                };
                if a != b && !is_exempt(step, &got) {
                    let path = entry.path.escape_ascii();
                    return Err(at(format!("{path}: (mtime, ctime) moved: expected {a:?}, got {b:?}")));
                }
            }
            (ours, theirs) = (ours_now, theirs_now);
        }
        if index % 50 == 49 || index + 1 == steps.len() {
            let tree = host.tree().map_err(|error| at(error.to_string()))?;
            differ.tree(&model, &tree).map_err(at)?;
        }
    }
    drop(host);
    remove(root).map_err(|error| error.to_string())
}

/// Where file systems differ about times: a truncation or ACL that changes nothing, preallocation, times set to what
/// they were; a whiteout that ext4 has made and taken back.
fn is_exempt(step: &Step, answer: &Answer) -> bool {
    match &step.op {
        Op::SetAttr { change, .. } | Op::HandleSetAttr { change, .. } => {
            matches!(change, Change::Size(_) | Change::Times { .. })
        }
        Op::SetXattr { name, .. } | Op::RemoveXattr { name, .. } => name.starts_with(b"system."),
        Op::Allocate { .. } => true,
        Op::Rename { how, .. } => how.leaves_whiteout() && answer.is_err(),
        _ => false,
    }
}

/// Runs the generator's operations on the model and below `base`, and panics, with a replay line and a small run that
/// shows it, where they differ. `test` names the test to replay. Skipped, saying why, where users or chroot cannot be had.
pub fn check(package: &str, test: &str, base: &Path, traits: Traits, runs: u64, count: usize) {
    let root = base.join(format!("myriad-model-{}", std::process::id()));
    if let Err(reason) = run(&root, &[], traits) {
        let base = base.display();
        println!("skipped: {base} cannot be used for this ({reason}); it needs root, chroot and a local file system");
        return;
    }
    let first = rng::seed_or(1);
    for seed in first..first + runs {
        let profile = Profile { burst_every: 2000, burst_max: 200, huge: false, ..Profile::default() };
        let mut generator = Generator::new(seed, profile);
        let mut model = Model::new(0);
        model.protected_hardlinks = true;
        let mut steps = Vec::new();
        while steps.len() < count {
            let step = generator.next(&model);
            let _ = model.apply(&step);
            steps.push(step);
        }
        let Err(message) = run(&root, &steps, traits) else { continue };
        let small = shrink::shrink(&steps, 400, |steps| run(&root, steps, traits).is_err());
        let last = run(&root, &small, traits).err().unwrap_or_default();
        let _ = remove(&root);
        panic!(
            "{}: {message}\n{}\nshrunk to {} steps: {last}\n{}",
            base.display(),
            rng::replay_line(package, test, seed, ""),
            small.len(),
            shrink::show(&small)
        );
    }
}
