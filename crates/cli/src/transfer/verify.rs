//! `verify`: compares a tree of a volume with one of the host, file by file.
//!
//! Workers take jobs from one stack: a directory is listed on both sides, its names are compared, and what both have
//! becomes further jobs. So all cores compare, on trees of every shape, and few directories are in memory at a time.

use super::host::{self, Named, Xattrs};
use super::{session, volume_tree};
use crate::context::Context;
use crate::failure::{At, Failure, errno_text, image_name};
use crate::interrupt::Interrupted;
use crate::limits;
use crate::show::name::{Shown, join, put};
use crate::show::size;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, OpenArgs, Place, Volume};
use anyhow::Result;
use myriad_engine::{Errno, Error, FileType, Node, OpenOptions, Session, Stat};
use myriad_format::xattr::AttrIter;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Files of one job.
const JOB_NAMES: usize = 128;
/// Contents are compared in pieces of this size: two of them fit the processor's second cache.
const PIECE_SIZE: usize = 128 << 10;
/// Threads: one a core while all is cached, a second one while the other waits for the device.
const WORKERS: usize = 8;

#[derive(clap::Args)]
pub struct Verify {
    #[arg(value_name = "IMAGE[:/path]", value_parser = volume::place_or_root())]
    /// Directory of a volume
    volume: Place,
    /// Directory of the host to compare it with
    directory: PathBuf,
    /// Do not compare these attributes
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    ignore: Vec<Aspect>,
    /// Print at most so many differences, and count the rest
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    max: u64,
    /// Leave out what is mounted inside the directory
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Leave out what you may not read on the host, and count it
    #[arg(long)]
    skip_unreadable: bool,
    /// Print one JSON object per difference, then the summary
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Aspect {
    Mode,
    Owner,
    /// Times of modification
    Time,
    Xattrs,
    /// Which names are one file
    Links,
}

impl Command for Verify {
    const NAME: &'static str = "verify";
    const ABOUT: &'static str = "Compare a directory of a volume with one of the host";
    const DETAILS: &'static str = "Compares names, types, contents, modes, owners, times of modification, targets of symbolic \
        links, device numbers, extended attributes and ACLs, and which names are hard links of one another. Access times \
        and holes are not compared. Neither side is changed.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad verify vol.img:/share /usr/share", "checks an import against its source"),
        ("myriad verify --ignore owner,xattrs vol.img:/www /srv/www", "compares with a copy made without root"),
    ];
    const EXIT: &'static [(u8, &'static str)] = &[
        (0, "The two are the same."),
        (1, "They differ, or something could not be read; the output says what and where."),
        (2, "The command line was wrong; nothing was done."),
        (130, "Interrupted (SIGINT; 143: SIGTERM, 129: SIGHUP)."),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let volume = Volume::open(&self.volume.image, Access::Read, &self.open.mount_options())?;
        let result = self.compare(context, &volume);
        let closed = volume.close();
        let summary = result?;
        closed?;
        let is_same = summary.differences == 0 && summary.errors == 0;
        if self.json {
            context.out().json(&summary.json())?;
        } else {
            context.note(&format!("myriad: {}", summary.text()));
        }
        Ok(if is_same { context.status() } else { Status(1) })
    }
}

/// What workers send to the main thread.
enum Finding {
    Difference { path: Vec<u8>, what: &'static str, detail: String },
    Error(anyhow::Error),
}

#[derive(Debug, Default)]
struct Summary {
    files: u64,
    bytes: u64,
    differences: u64,
    errors: u64,
    unreadable: u64,
    elapsed: Duration,
}

impl Summary {
    fn json(&self) -> Value {
        json!({
            "verb": "verify",
            "entries": self.files,
            "bytes": self.bytes,
            "differences": self.differences,
            "errors": self.errors,
            "unreadable": self.unreadable,
            "seconds": self.elapsed.as_secs_f64(),
        })
    }

    fn text(&self) -> String {
        let verdict = match self.differences {
            0 => "no differences".to_owned(),
            1 => "1 difference".to_owned(),
            count => format!("{count} differences"),
        };
        let mut text = format!(
            "compared {} entries, {} in {:.2} s: {verdict}",
            self.files,
            size::human(self.bytes),
            self.elapsed.as_secs_f64()
        );
        for (count, what) in [(self.unreadable, "could not be read"), (self.errors, "errors")] {
            if count > 0 {
                text += &format!("; {count} {what}");
            }
        }
        text
    }
}

/// A directory of the host.
struct Directory {
    fd: OwnedFd,
    path: Vec<u8>,
    /// In the volume.
    node: Node,
}

enum Job {
    /// A directory in `0`, by its name on both sides.
    Directory(Arc<Directory>, Vec<u8>, Stat),
    /// The first directory of all.
    Top(OwnedFd, Stat),
    /// Names that both sides have.
    Names(Arc<Directory>, Vec<Vec<u8>>),
}

/// Jobs to do, the newest first, and how many are not finished.
#[derive(Default)]
struct Jobs {
    stack: Mutex<(Vec<Job>, usize)>,
    changed: Condvar,
    stop: AtomicBool,
}

impl Jobs {
    fn push(&self, job: Job) {
        let mut stack = self.stack.lock().expect("nobody panics holding it");
        stack.0.push(job);
        stack.1 += 1;
        drop(stack);
        self.changed.notify_one();
    }

    /// A job, or `None` when all are finished.
    fn take(&self) -> Option<Job> {
        let mut stack = self.stack.lock().expect("nobody panics holding it");
        loop {
            if stack.1 == 0 || self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(job) = stack.0.pop() {
                return Some(job);
            }
            stack = self.changed.wait(stack).expect("nobody panics holding it");
        }
    }

    fn finished(&self) {
        let mut stack = self.stack.lock().expect("nobody panics holding it");
        stack.1 -= 1;
        let is_last = stack.1 == 0;
        drop(stack);
        if is_last {
            self.changed.notify_all();
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // Under the lock, so that nobody is between its look and its sleep.
        let _stack = self.stack.lock().expect("nobody panics holding it");
        self.changed.notify_all();
    }
}

/// Inodes that have several names, paired as their first names were.
#[derive(Default)]
struct Pairs {
    to_host: HashMap<u64, (u64, u64)>,
    to_volume: HashMap<(u64, u64), u64>,
}

/// What all workers share.
struct Shared<'a> {
    options: &'a Verify,
    jobs: Jobs,
    pairs: Mutex<Pairs>,
    files: AtomicU64,
    bytes: AtomicU64,
    unreadable: AtomicU64,
    device: u64,
}

impl Verify {
    fn compare(&self, context: &Context, volume: &Volume) -> Result<Summary> {
        limits::raise_open_files();
        let start = Instant::now();
        let place = image_name(&self.directory);
        let stat = volume.session().stat(&self.volume.path).at(&self.volume)?;
        if !stat.is_dir() {
            return Err(Failure::new(&self.volume, "is not a directory", "name a directory").into());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&self.directory, flags, Mode::empty()).map_err(std::io::Error::from).at(&place)?;
        let device = rustix::fs::fstat(&fd).map_err(std::io::Error::from).at(&place)?.st_dev;
        let shared = Shared {
            options: self,
            jobs: Jobs::default(),
            pairs: Mutex::default(),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            device,
        };
        shared.jobs.push(Job::Top(fd, stat));
        let mut summary = Summary::default();
        let result = std::thread::scope(|scope| {
            let (sender, findings) = channel();
            for _ in 0..WORKERS {
                let worker = Worker {
                    shared: &shared,
                    session: session(volume),
                    findings: sender.clone(),
                    xattrs: Xattrs::default(),
                    buffers: (vec![0; PIECE_SIZE], vec![0; PIECE_SIZE]),
                };
                scope.spawn(move || worker.run());
            }
            drop(sender);
            let progress = context.progress("comparing");
            loop {
                let result = match findings.recv_timeout(Duration::from_millis(100)) {
                    Ok(finding) => self.tell(context, finding, &mut summary),
                    Err(RecvTimeoutError::Timeout) => Ok(()),
                    // Workers that a signal stopped have gone without a word.
                    Err(RecvTimeoutError::Disconnected) => return context.check(),
                };
                progress.set(shared.files.load(Ordering::Relaxed));
                if let Err(error) = result.and_then(|()| context.check()) {
                    shared.jobs.stop();
                    return Err(error);
                }
            }
        });
        result?;
        summary.files = shared.files.into_inner();
        summary.bytes = shared.bytes.into_inner();
        summary.unreadable = shared.unreadable.into_inner();
        summary.elapsed = start.elapsed();
        Ok(summary)
    }

    fn tell(&self, context: &Context, finding: Finding, summary: &mut Summary) -> Result<()> {
        use std::io::Write;
        match finding {
            Finding::Difference { path, what, detail } => {
                summary.differences += 1;
                if summary.differences > self.max {
                    if summary.differences == self.max + 1 {
                        context.note("myriad: further differences are counted only; --max shows more");
                    }
                    return Ok(());
                }
                let mut out = context.out();
                if self.json {
                    let mut object = Map::new();
                    put(&mut object, "path", &path);
                    object.insert("what".into(), what.into());
                    object.insert("detail".into(), detail.into());
                    out.json(&object.into())?;
                } else {
                    let path: &[u8] = if path.is_empty() { b"." } else { &path };
                    out.name(path)?;
                    writeln!(out, ": {what}{}{detail}", if detail.is_empty() { "" } else { ": " })?;
                }
            }
            Finding::Error(error) => {
                summary.errors += 1;
                if summary.errors <= self.max {
                    context.report(&error);
                }
            }
        }
        Ok(())
    }

    fn compares(&self, aspect: Aspect) -> bool {
        !self.ignore.contains(&aspect)
    }
}

struct Worker<'a> {
    shared: &'a Shared<'a>,
    session: Session,
    findings: Sender<Finding>,
    xattrs: Xattrs,
    buffers: (Vec<u8>, Vec<u8>),
}

/// Why a file could not be compared.
enum Trouble {
    Volume(Error),
    Host(Errno),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Volume(error)
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self::Host(errno)
    }
}

impl Worker<'_> {
    fn run(mut self) {
        while let Some(job) = self.shared.jobs.take() {
            match job {
                Job::Top(fd, stat) => self.enter(fd, Vec::new(), &stat),
                Job::Directory(parent, name, stat) => {
                    let path = join(&parent.path, &name);
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    match rustix::fs::openat(&parent.fd, &name[..], flags, Mode::empty()) {
                        Ok(fd) => self.enter(fd, path, &stat),
                        Err(errno) => self.trouble(&path, errno.into()),
                    }
                }
                Job::Names(directory, names) => self.names(&directory, names),
            }
            self.shared.jobs.finished();
        }
    }

    fn differ(&self, path: &[u8], what: &'static str, detail: String) {
        // The main thread goes only after an error, which it tells.
        let _ = self.findings.send(Finding::Difference { path: path.to_vec(), what, detail });
    }

    fn trouble(&self, path: &[u8], trouble: Trouble) {
        let options = self.shared.options;
        let error = match trouble {
            Trouble::Volume(error) => {
                let place = Place { path: join(&options.volume.path, path), ..options.volume.clone() };
                Err::<(), _>(error).at(place).expect_err("an error stays one")
            }
            Trouble::Host(errno) => {
                if matches!(errno, Errno::ACCESS | Errno::PERM) {
                    self.shared.unreadable.fetch_add(1, Ordering::Relaxed);
                    if options.skip_unreadable {
                        return;
                    }
                }
                use std::os::unix::ffi::OsStrExt;
                let place = join(options.directory.as_os_str().as_bytes(), path);
                Failure::new(Shown(&place), errno_text(errno), "").into()
            }
        };
        let _ = self.findings.send(Finding::Error(error));
    }

    /// Compares a directory's own attributes and its names.
    fn enter(&mut self, fd: OwnedFd, path: Vec<u8>, stat: &Stat) {
        let directory = Arc::new(Directory { fd, path, node: stat.node() });
        if let Err(trouble) = self.try_enter(&directory, stat) {
            self.trouble(&directory.path, trouble);
        }
    }

    fn try_enter(&mut self, directory: &Arc<Directory>, stat: &Stat) -> Result<(), Trouble> {
        let host = rustix::fs::fstat(&directory.fd)?;
        if self.shared.options.one_file_system && host.st_dev != self.shared.device {
            return Ok(());
        }
        self.shared.files.fetch_add(1, Ordering::Relaxed);
        self.attributes(&directory.path, stat, &host, &Named::Open(directory.fd.as_fd()))?;
        let mut names: BTreeMap<Vec<u8>, (bool, Option<FileType>)> = BTreeMap::new();
        let mut buffer = Vec::with_capacity(64 << 10);
        let mut entries = RawDir::new(&directory.fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.insert(name.to_vec(), (true, None));
            }
        }
        let mut cookie = 0;
        loop {
            let entries = self.session.read_dir_at(directory.node, cookie, 1024)?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in entries {
                names.entry(entry.name).or_default().1 = Some(entry.file_type);
            }
        }
        let mut both = Vec::with_capacity(JOB_NAMES);
        for (name, (on_host, in_volume)) in names {
            let path = join(&directory.path, &name);
            match (on_host, in_volume) {
                (true, Some(_)) => {
                    both.push(name);
                    if both.len() == JOB_NAMES {
                        let names = std::mem::replace(&mut both, Vec::with_capacity(JOB_NAMES));
                        self.shared.jobs.push(Job::Names(Arc::clone(directory), names));
                    }
                }
                (true, None) => self.only_on_host(directory, &name, &path),
                (false, _) => self.differ(&path, "only in the volume", String::new()),
            }
        }
        if !both.is_empty() {
            self.shared.jobs.push(Job::Names(Arc::clone(directory), both));
        }
        Ok(())
    }

    /// A name the volume lacks; where unreadable files were skipped, this may be one of them.
    fn only_on_host(&self, directory: &Directory, name: &[u8], path: &[u8]) {
        let options = self.shared.options;
        if let Ok(stat) = rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            if options.one_file_system && stat.st_dev != self.shared.device {
                return;
            }
            let can_be_opened =
                matches!(FileType::from_mode(stat.st_mode as u16), Some(FileType::File | FileType::Directory));
            if options.skip_unreadable && can_be_opened {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                if let Err(errno @ (Errno::ACCESS | Errno::PERM)) =
                    rustix::fs::openat(&directory.fd, name, flags, Mode::empty())
                {
                    return self.trouble(path, errno.into());
                }
            }
        }
        self.differ(path, "only on the host", String::new());
    }

    fn names(&mut self, directory: &Arc<Directory>, names: Vec<Vec<u8>>) {
        for name in names {
            if self.shared.jobs.stop.load(Ordering::Relaxed) {
                return;
            }
            let path = join(&directory.path, &name);
            if let Err(trouble) = self.name(directory, name, &path) {
                self.trouble(&path, trouble);
            }
        }
    }

    fn name(&mut self, directory: &Arc<Directory>, name: Vec<u8>, path: &[u8]) -> Result<(), Trouble> {
        let stat = self.session.lookup(directory.node, &name)?;
        let host = rustix::fs::statat(&directory.fd, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
        let host_type = FileType::from_mode(host.st_mode as u16);
        if host_type == Some(FileType::Directory) && stat.is_dir() {
            self.shared.jobs.push(Job::Directory(Arc::clone(directory), name, stat));
            return Ok(());
        }
        self.shared.files.fetch_add(1, Ordering::Relaxed);
        if host_type != Some(stat.file_type()) {
            let shown = |kind| crate::show::mode::name(kind);
            let detail = format!(
                "{} in the volume, {} on the host",
                shown(stat.file_type()),
                host_type.map_or("unknown", shown)
            );
            self.differ(path, "type", detail);
            return Ok(());
        }
        if self.shared.options.compares(Aspect::Links) {
            self.links(path, &stat, &host);
        }
        match stat.file_type() {
            FileType::File => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = match rustix::fs::openat(&directory.fd, &name[..], flags | OFlags::NOATIME, Mode::empty()) {
                    // Only the owner and root may ask not to be noted as a reader.
                    Err(Errno::PERM) => rustix::fs::openat(&directory.fd, &name[..], flags, Mode::empty())?,
                    other => other?,
                };
                self.attributes(path, &stat, &host, &Named::Open(file.as_fd()))?;
                if stat.size == host.st_size as u64 {
                    self.contents(path, &stat, &file)?;
                } else {
                    self.differ(path, "size", both(stat.size, host.st_size));
                }
                return Ok(());
            }
            FileType::Symlink => {
                let target = self.session.readlink_node(stat.node())?;
                let host_target = rustix::fs::readlinkat(&directory.fd, &name[..], Vec::new())?;
                if target != host_target.to_bytes() {
                    self.differ(path, "target", both(Shown(&target), Shown(host_target.to_bytes())));
                }
            }
            FileType::CharDevice | FileType::BlockDevice if stat.rdev != host.st_rdev => {
                self.differ(path, "device number", both(stat.rdev, host.st_rdev));
            }
            _ => {}
        }
        self.attributes(path, &stat, &host, &Named::In(directory.fd.as_fd(), &name))
    }

    fn attributes(&mut self, path: &[u8], stat: &Stat, host: &rustix::fs::Stat, file: &Named) -> Result<(), Trouble> {
        let options = self.shared.options;
        let host_mode = host.st_mode as u16 & 0o7777;
        // A symbolic link has no mode of its own.
        if options.compares(Aspect::Mode) && stat.file_type() != FileType::Symlink && stat.mode & 0o7777 != host_mode {
            self.differ(
                path,
                "mode",
                both(format_args!("{:04o}", stat.mode & 0o7777), format_args!("{host_mode:04o}")),
            );
        }
        if options.compares(Aspect::Owner) && (stat.uid, stat.gid) != (host.st_uid, host.st_gid) {
            let volume = format!("{}:{}", stat.uid, stat.gid);
            self.differ(path, "owner", both(volume, format_args!("{}:{}", host.st_uid, host.st_gid)));
        }
        let mtime = host::time(host.st_mtime, host.st_mtime_nsec);
        if options.compares(Aspect::Time) && stat.mtime != mtime {
            let shown = |time| crate::show::time::full(time);
            self.differ(path, "time", both(shown(stat.mtime), shown(mtime)));
        }
        if options.compares(Aspect::Xattrs) {
            let (mut in_volume, mut on_host) = (Vec::new(), Vec::new());
            volume_tree::xattrs(&self.session, stat.node(), &mut in_volume)?;
            self.xattrs.read(file, &mut on_host)?;
            let map =
                |list| -> BTreeMap<_, _> { AttrIter::new(list).map(|entry| entry.expect("just packed")).collect() };
            let (in_volume, on_host) = (map(&in_volume), map(&on_host));
            for (name, value) in &in_volume {
                match on_host.get(name) {
                    None => self.differ(path, "attribute", format!("{} only in the volume", Shown(name))),
                    Some(other) if other != value => self.differ(path, "attribute", format!("{} differs", Shown(name))),
                    Some(_) => {}
                }
            }
            for name in on_host.keys().filter(|name| !in_volume.contains_key(*name)) {
                self.differ(path, "attribute", format!("{} only on the host", Shown(name)));
            }
        }
        Ok(())
    }

    fn links(&self, path: &[u8], stat: &Stat, host: &rustix::fs::Stat) {
        // Only the number of names below the directories compared could be compared, and that is what pairs tell.
        if stat.nlink == 1 && host.st_nlink == 1 {
            return;
        }
        let key = (host.st_dev, host.st_ino);
        let mut pairs = self.shared.pairs.lock().expect("nobody panics holding it");
        let to_host = *pairs.to_host.entry(stat.ino).or_insert(key);
        let to_volume = *pairs.to_volume.entry(key).or_insert(stat.ino);
        drop(pairs);
        if to_host != key {
            self.differ(path, "hard links", "one file in the volume with names that are two on the host".into());
        }
        if to_volume != stat.ino {
            self.differ(path, "hard links", "one file on the host with names that are two in the volume".into());
        }
    }

    fn contents(&mut self, path: &[u8], stat: &Stat, host: &OwnedFd) -> Result<(), Trouble> {
        if stat.size == 0 {
            return Ok(());
        }
        let file = self.session.open_node(stat.node(), OpenOptions { dont_cache: true, ..OpenOptions::READ })?;
        let mut offset = 0;
        while offset < stat.size {
            if Interrupted::received().is_some() {
                return Ok(());
            }
            let length = (stat.size - offset).min(PIECE_SIZE as u64) as usize;
            let (one, other) = (&mut self.buffers.0[..length], &mut self.buffers.1[..length]);
            let count = file.read_at(one, offset)?;
            let mut filled = 0;
            while filled < count {
                match rustix::io::pread(host, &mut other[filled..count], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(more) => filled += more,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            if one[..count] != other[..filled] {
                let differs = one.iter().zip(&*other).take(filled).position(|(one, other)| one != other);
                let at = offset + differs.unwrap_or(filled) as u64;
                self.differ(path, "content", format!("from byte {at}"));
                return Ok(());
            }
            if count == 0 {
                self.differ(path, "content", format!("the volume's ends at byte {offset}, before its size"));
                return Ok(());
            }
            offset += count as u64;
            self.shared.bytes.fetch_add(count as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn both(volume: impl std::fmt::Display, host: impl std::fmt::Display) -> String {
    format!("{volume} in the volume, {host} on the host")
}
