//! Source: a tree of the host.
//!
//! One thread walks, several read. The walker lists directories, depth first, and hands out jobs of some files each;
//! every job has a slot of the queue, so that files are read at the same time and arrive in order. A reader takes one
//! file after the other: open, stat, attributes, content, five system calls for a small file.

use super::batch::{
    Body, Entry, Feed, Gauge, Gone, LinkKey, Meta, Outlet, PART_SIZE, Problem, Record, Segment, Slots, Span, WHOLE_MAX,
};
use super::host::{self, Named, Xattrs};
use crate::failure::{Failure, errno_text};
use crate::show::name::{Shown, join};
use myriad_engine::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// Files of one job: enough that handing it out costs little beside them.
const JOB_ITEMS: usize = 64;
/// Entries of a directory that are sorted together. On ext4 and its kin the order of inode numbers is that of the disk,
/// and the order of the directory is random.
const LISTED: usize = 8192;
/// Threads that read: one a core while the files are cached, more to have requests in flight while they are not.
const READERS: usize = 4;

/// What is asked of a stream at a time: pipes give no more.
const STREAM_SIZE: usize = 64 << 10;

/// Which part of a tree, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Do not enter what is mounted inside.
    pub one_file_system: bool,
    /// If the beginning itself is a symbolic link, take what it refers to.
    pub follow: bool,
    /// Count the entries ahead of the work, so that progress can tell the time left.
    pub count: bool,
    /// A file to leave out, and what it is called when that is told: what the tree goes to.
    pub left_out: Option<LeftOut>,
}

type LeftOut = (LinkKey, &'static str);

struct Directory {
    fd: OwnedFd,
    /// Relative to the beginning.
    path: Vec<u8>,
}

enum Item {
    /// The directory itself.
    Directory(Arc<Directory>),
    /// A name in it: a range of the job's names.
    Name(Arc<Directory>, usize, usize),
    Problem(Problem),
}

struct Job {
    number: u64,
    outlet: Outlet,
    items: Vec<Item>,
    names: Vec<u8>,
}

/// The place of each inode's first name in the order of the jobs, for inodes that have several.
type Claims = Mutex<HashMap<LinkKey, (u64, usize)>>;

/// Opens a tree, or a single file, and starts to read it.
pub fn read(root: &Path, options: Options) -> anyhow::Result<Feed> {
    host::raise_file_limit();
    let place: Arc<[u8]> = root.as_os_str().as_bytes().into();
    let fail = |errno| anyhow::Error::from(Failure::new(Shown(&place), errno_text(errno), ""));
    let flags = if options.follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = rustix::fs::statat(CWD, root, flags).map_err(fail)?;
    let (slots, mut feed) = Feed::new();
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        let mut reader = Reader {
            place: Arc::clone(&place),
            left_out: options.left_out,
            claims: Arc::default(),
            xattrs: Xattrs::default(),
            position: (0, 0),
        };
        let mut outlet = slots.open().expect("the feed is in our hands");
        if options.follow {
            read_content(&mut feed, root.to_owned(), &stat, reader, outlet);
            return Ok(feed);
        }
        let parent = root.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        let name = root.file_name().map(ToOwned::to_owned).ok_or_else(|| fail(Errno::NOENT))?;
        let fd = open_directory(CWD, parent.as_os_str().as_bytes(), OFlags::empty()).map_err(fail)?;
        feed.spawn(move || {
            let directory = Directory { fd, path: Vec::new() };
            // The sink has gone: nobody is left to tell.
            let _ = reader.name(&directory, name.as_bytes(), true, &mut outlet).and_then(|()| outlet.flush());
        });
        return Ok(feed);
    }
    let flags = if options.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let fd = open_directory(CWD, root.as_os_str().as_bytes(), flags).map_err(fail)?;
    let top = Arc::new(Directory { fd, path: Vec::new() });
    if options.count {
        let (fd, gauge) =
            (open_directory(CWD, root.as_os_str().as_bytes(), flags).map_err(fail)?, Arc::clone(&feed.count));
        feed.spawn(move || count(fd, &gauge));
    }
    let (jobs, received) = sync_channel(READERS);
    let received = Arc::new(Mutex::new(received));
    let claims = Arc::new(Claims::default());
    for _ in 0..READERS {
        let (received, place, claims) = (Arc::clone(&received), Arc::clone(&place), Arc::clone(&claims));
        let reader = Reader { place, left_out: options.left_out, claims, xattrs: Xattrs::default(), position: (0, 0) };
        feed.spawn(move || read_jobs(&received, reader));
    }
    feed.spawn(move || {
        let device = options.one_file_system.then_some(stat.st_dev);
        let mut walker = Walker { place, slots, jobs, device, job: None, number: 0 };
        let _ = walker.walk(top);
    });
    Ok(feed)
}

/// Reads the content of what a path leads to: of a file, or whatever comes out of a pipe or device until its end.
fn read_content(feed: &mut Feed, root: PathBuf, stat: &Stat, mut reader: Reader, mut outlet: Outlet) {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // Opening a pipe waits for somebody to write to it.
    feed.joins = is_file;
    let wait = if is_file { OFlags::NONBLOCK } else { OFlags::empty() };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | wait;
    feed.spawn(move || {
        let opened = rustix::fs::open(&root, flags, Mode::empty());
        let opened = opened.and_then(|file| rustix::fs::fstat(&file).map(|stat| (file, stat)));
        // The sink has gone: nobody is left to tell.
        let _ = match opened {
            Ok((file, stat)) => reader.open_file(file, &stat, is_file, &mut outlet),
            Err(errno) => outlet.push(Record::Problem(problem(&reader.place, b"", errno))),
        }
        .and_then(|()| outlet.flush());
    });
}

/// Reads a stream to its end: the content of a file that its reader makes, with the mode of any new file.
pub fn read_input(input: impl AsFd) -> std::io::Result<Feed> {
    let file = input.as_fd().try_clone_to_owned()?;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let meta = Meta {
        mode: myriad_engine::FileType::File.mode_bits() | 0o666,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        size: 0,
        mtime: host::time(now.tv_sec, now.tv_nsec as u64),
        atime: None,
    };
    let (slots, mut feed) = Feed::new();
    let mut outlet = slots.open().expect("the feed is in our hands");
    feed.joins = false;
    feed.spawn(move || {
        // The sink has gone: nobody is left to tell.
        let _ = stream(&file, meta, b"standard input", &mut outlet).and_then(|()| outlet.flush());
    });
    Ok(feed)
}

/// A file of all that a stream gives until its end, however much that is. What comes is handed on as it comes.
fn stream(file: &OwnedFd, meta: Meta, place: &[u8], outlet: &mut Outlet) -> Result<(), Gone> {
    outlet.push(Record::Entry(entry(meta, None, Body::Parts(Vec::new()))))?;
    let mut offset = 0;
    loop {
        let start = outlet.batch.bytes.len();
        outlet.batch.bytes.resize(start + STREAM_SIZE, 0);
        let result = rustix::io::read(file, &mut outlet.batch.bytes[start..]);
        outlet.batch.bytes.truncate(start + result.unwrap_or(0));
        match result {
            Ok(0) => return outlet.push(Record::End),
            Ok(_) => {
                let bytes = outlet.batch.since(start);
                outlet.push(Record::Data { offset, bytes })?;
                offset += bytes.len() as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return outlet.push(Record::Spoiled(problem(place, b"", errno))),
        }
    }
}

fn open_directory(parent: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// A directory entry as listed: type, and a range of the names.
struct Listed {
    ino: u64,
    file_type: FileType,
    start: usize,
    end: usize,
}

/// Lists a directory in portions, each sorted by inode number.
fn list(
    directory: &OwnedFd,
    mut portion: impl FnMut(&mut Vec<Listed>, &[u8]) -> Result<(), Gone>,
) -> Result<Result<(), Errno>, Gone> {
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    let (mut listed, mut names) = (Vec::new(), Vec::new());
    let mut result = Ok(());
    loop {
        let is_end = match entries.next() {
            Some(Ok(entry)) => {
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    let start = names.len();
                    names.extend_from_slice(name);
                    let end = names.len();
                    listed.push(Listed { ino: entry.ino(), file_type: entry.file_type(), start, end });
                }
                false
            }
            Some(Err(errno)) => {
                result = Err(errno);
                true
            }
            None => true,
        };
        if listed.len() == LISTED || is_end {
            listed.sort_unstable_by_key(|entry| entry.ino);
            portion(&mut listed, &names)?;
            listed.clear();
            names.clear();
        }
        if is_end {
            return Ok(result);
        }
    }
}

/// Counts the entries of a tree, for the time left.
fn count(root: OwnedFd, gauge: &Gauge) {
    let mut total = 1;
    let mut stack = vec![root];
    while let Some(directory) = stack.pop() {
        let mut below = Vec::new();
        let result = list(&directory, |listed, names| {
            total += listed.len() as u64;
            let directories = listed.iter().filter(|entry| entry.file_type == FileType::Directory);
            below.extend(directories.map(|entry| names[entry.start..entry.end].to_vec()));
            // All read before we had counted: no need any more.
            if gauge.done() == u64::MAX { Err(Gone) } else { Ok(()) }
        });
        if result.is_err() {
            return;
        }
        stack.extend(below.iter().filter_map(|name| open_directory(&directory, name, OFlags::NOFOLLOW).ok()));
    }
    gauge.set_total(total);
}

struct Walker {
    place: Arc<[u8]>,
    slots: Slots,
    jobs: SyncSender<Job>,
    /// The only file system to be in.
    device: Option<u64>,
    job: Option<Job>,
    number: u64,
}

impl Walker {
    fn walk(&mut self, top: Arc<Directory>) -> Result<(), Gone> {
        // Directories from the top down, each with the names of those in it that are still to be walked, the next one last.
        let mut stack = vec![self.enter(top)?];
        while let Some((directory, below)) = stack.last_mut() {
            let Some(name) = below.pop() else {
                stack.pop();
                continue;
            };
            let path = join(&directory.path, &name);
            let opened = open_directory(&directory.fd, &name, OFlags::NOFOLLOW)
                .and_then(|fd| Ok((rustix::fs::fstat(&fd)?.st_dev, fd)));
            match opened {
                Ok((device, _)) if self.device.is_some_and(|only| only != device) => {}
                Ok((_, fd)) => {
                    let entered = self.enter(Arc::new(Directory { fd, path }))?;
                    stack.push(entered);
                }
                Err(errno) => self.push(Item::Problem(problem(&self.place, &path, errno)), b"")?,
            }
        }
        self.send()
    }

    /// Hands out a directory and all in it but directories, which are answered.
    fn enter(&mut self, directory: Arc<Directory>) -> Result<(Arc<Directory>, Vec<Vec<u8>>), Gone> {
        self.push(Item::Directory(Arc::clone(&directory)), b"")?;
        let mut below = Vec::new();
        let listed = list(&directory.fd, |listed, names| {
            for entry in listed.iter_mut() {
                let name = &names[entry.start..entry.end];
                if entry.file_type == FileType::Unknown {
                    let stat = rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW);
                    entry.file_type = stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
                }
                if entry.file_type == FileType::Directory {
                    below.push(name.to_vec());
                } else {
                    self.push(Item::Name(Arc::clone(&directory), 0, 0), name)?;
                }
            }
            Ok(())
        })?;
        if let Err(errno) = listed {
            self.push(Item::Problem(problem(&self.place, &directory.path, errno)), b"")?;
        }
        below.reverse();
        Ok((directory, below))
    }

    fn push(&mut self, item: Item, name: &[u8]) -> Result<(), Gone> {
        if self.job.is_none() {
            self.number += 1;
            let outlet = self.slots.open()?;
            self.job =
                Some(Job { number: self.number, outlet, items: Vec::with_capacity(JOB_ITEMS), names: Vec::new() });
        }
        let job = self.job.as_mut().expect("there is one now");
        let start = job.names.len();
        job.names.extend_from_slice(name);
        job.items.push(match item {
            Item::Name(directory, ..) => Item::Name(directory, start, job.names.len()),
            item => item,
        });
        if job.items.len() == JOB_ITEMS { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), Gone> {
        match self.job.take() {
            Some(job) => self.jobs.send(job).map_err(|_| Gone),
            None => Ok(()),
        }
    }
}

fn problem(place: &[u8], path: &[u8], errno: Errno) -> Problem {
    let is_unreadable = matches!(errno, Errno::ACCESS | Errno::PERM);
    Problem { error: Failure::new(Shown(&join(place, path)), errno_text(errno), "").into(), is_unreadable }
}

fn read_jobs(jobs: &Mutex<Receiver<Job>>, mut reader: Reader) {
    loop {
        let Ok(mut job) = jobs.lock().expect("nobody panics holding it").recv() else { return };
        for (index, item) in job.items.drain(..).enumerate() {
            reader.position = (job.number, index);
            let result = match item {
                Item::Directory(directory) => reader.directory(&directory, &mut job.outlet),
                Item::Name(directory, start, end) => {
                    reader.name(&directory, &job.names[start..end], false, &mut job.outlet)
                }
                Item::Problem(problem) => job.outlet.push(Record::Problem(problem)),
            };
            if result.is_err() {
                return;
            }
        }
        if job.outlet.flush().is_err() {
            return;
        }
    }
}

/// Reads files, one after the other.
struct Reader {
    /// Where the tree is, for messages.
    place: Arc<[u8]>,
    left_out: Option<LeftOut>,
    claims: Arc<Claims>,
    xattrs: Xattrs,
    /// Of the file in hand, in the order of the whole.
    position: (u64, usize),
}

impl Reader {
    fn directory(&mut self, directory: &Directory, outlet: &mut Outlet) -> Result<(), Gone> {
        let start = outlet.batch.bytes.len();
        let result = rustix::fs::fstat(&directory.fd).and_then(|stat| {
            self.xattrs.read(&Named::Open(directory.fd.as_fd()), &mut outlet.batch.bytes)?;
            host::meta(&stat).ok_or(Errno::INVAL)
        });
        match result {
            Ok(meta) => {
                let xattrs = outlet.batch.since(start);
                let path = outlet.batch.add(&directory.path);
                outlet.push(Record::Entry(Entry { path, meta, xattrs, link: None, body: Body::None }))
            }
            Err(errno) => outlet.push(Record::Problem(problem(&self.place, &directory.path, errno))),
        }
    }

    /// The file `name`, which is not a directory. `is_root`: it is all there is, and has no path of its own.
    fn name(&mut self, directory: &Directory, name: &[u8], is_root: bool, outlet: &mut Outlet) -> Result<(), Gone> {
        let mark = outlet.batch.bytes.len();
        // The path goes first into the arena, and stays there if the rest fails.
        if !is_root {
            outlet.batch.add(&directory.path);
            if !directory.path.is_empty() {
                outlet.batch.add(b"/");
            }
            outlet.batch.add(name);
        }
        let path = outlet.batch.since(mark);
        // For messages.
        let whole_path = || if is_root { Vec::new() } else { join(&directory.path, name) };
        let opened = match self.open(directory, name, outlet) {
            // The name was another file's the next moment: that one it is.
            Err(Errno::STALE) => self.open(directory, name, outlet),
            opened => opened,
        };
        self.push(opened, path, &whole_path, outlet)
    }

    /// A file that is open, and is all there is. `is_file`: its size says how much there is to read.
    fn open_file(&mut self, file: OwnedFd, stat: &Stat, is_file: bool, outlet: &mut Outlet) -> Result<(), Gone> {
        if !is_file || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let Some(meta) = host::meta(stat) else {
                return outlet.push(Record::Problem(problem(&self.place, b"", Errno::INVAL)));
            };
            let mode = meta.mode & 0o777 | myriad_engine::FileType::File.mode_bits();
            return stream(&file, Meta { mode, rdev: 0, size: 0, ..meta }, &self.place, outlet);
        }
        let path = outlet.batch.since(outlet.batch.bytes.len());
        let opened = match self.left_out {
            Some((key, _)) if key == host::link_key(stat) => Ok(Opened::LeftOut),
            _ => self.content(file, stat, outlet),
        };
        self.push(opened, path, &Vec::new, outlet)
    }

    /// Hands on a file that was opened, and its content.
    fn push(
        &mut self,
        opened: Result<Opened, Errno>,
        path: Span,
        whole_path: &dyn Fn() -> Vec<u8>,
        outlet: &mut Outlet,
    ) -> Result<(), Gone> {
        match opened {
            Ok(Opened::Done(mut entry)) => {
                entry.path = path;
                outlet.push(Record::Entry(entry))
            }
            Ok(Opened::Changed(mut entry)) => {
                entry.path = path;
                outlet.push(Record::Entry(entry))?;
                outlet.push(Record::Changed(self.changed(&whole_path())))
            }
            Ok(Opened::Parts(mut entry, file, segments, before)) => {
                entry.path = path;
                outlet.push(Record::Entry(entry))?;
                match self.parts(&file, &segments, outlet)? {
                    Ok(()) if has_changed(&file, &before) => {
                        outlet.push(Record::End)?;
                        outlet.push(Record::Changed(self.changed(&whole_path())))
                    }
                    Ok(()) => outlet.push(Record::End),
                    Err(errno) => outlet.push(Record::Spoiled(problem(&self.place, &whole_path(), errno))),
                }
            }
            Ok(Opened::LeftOut) => {
                let place = Shown(&join(&self.place, &whole_path())).to_string();
                let what = format!("is {}; left out", self.left_out.map_or("", |(_, what)| what));
                outlet.push(Record::Problem(Problem::new(Failure::new(place, what, "").into())))
            }
            Err(errno) => outlet.push(Record::Problem(problem(&self.place, &whole_path(), errno))),
        }
    }

    fn changed(&self, path: &[u8]) -> Problem {
        let place = Shown(&join(&self.place, path)).to_string();
        let what = "changed while it was read; what was read may be older in one part than in another";
        Problem::new(Failure::new(place, what, "").into())
    }

    /// ESTALE: the name was given to another file between two calls.
    fn open(&mut self, directory: &Directory, name: &[u8], outlet: &mut Outlet) -> Result<Opened, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        // Opening is the test for a regular file, too: device nodes must not be opened for a look, so ask first where
        // the type is not plain from the directory. `statat` costs less than the failed open.
        let stat = rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return self.other(directory, name, &stat, outlet);
        }
        if self.left_out.is_some_and(|(key, _)| key == host::link_key(&stat)) {
            // It would be read while it is written, and grow by what is read.
            return Ok(Opened::LeftOut);
        }
        let file = match rustix::fs::openat(&directory.fd, name, flags | OFlags::NOATIME, Mode::empty()) {
            // Only the owner and root may ask not to be noted as a reader.
            Err(Errno::PERM) => rustix::fs::openat(&directory.fd, name, flags, Mode::empty())?,
            other => other?,
        };
        // Content and attributes are to be one file's: who swaps names must not get a secret file's content with his own
        // file's mode.
        let opened = rustix::fs::fstat(&file)?;
        if host::link_key(&opened) != host::link_key(&stat) {
            return Err(Errno::STALE);
        }
        self.content(file, &opened, outlet)
    }

    /// What an open regular file holds.
    fn content(&mut self, file: OwnedFd, stat: &Stat, outlet: &mut Outlet) -> Result<Opened, Errno> {
        let link = (stat.st_nlink > 1).then(|| host::link_key(stat));
        // Not before the file is open: by a claim on what the name no longer leads to, all further names would come without
        // content.
        if let Some(key) = link
            && self.is_later_name(key)
        {
            let meta = host::meta(stat).ok_or(Errno::INVAL)?;
            // The sink knows the first name.
            let body = Body::HardLink(outlet.batch.since(outlet.batch.bytes.len()));
            return Ok(Opened::Done(entry(meta, link, body)));
        }
        let start = outlet.batch.bytes.len();
        self.xattrs.read(&Named::Open(file.as_fd()), &mut outlet.batch.bytes)?;
        let xattrs = outlet.batch.since(start);
        let mut meta = host::meta(stat).ok_or(Errno::INVAL)?;
        let segments = match host::may_have_holes(stat) {
            true => host::segments(&file, meta.size),
            false => vec![Segment { offset: 0, length: meta.size }],
        };
        let is_dense = matches!(segments[..], [Segment { offset: 0, length }] if length == meta.size);
        if meta.size > WHOLE_MAX || !is_dense {
            let mut entry = entry(meta, link, Body::Parts(segments.clone()));
            entry.xattrs = xattrs;
            return Ok(Opened::Parts(entry, file, segments, Box::new(*stat)));
        }
        let start = outlet.batch.bytes.len();
        outlet.batch.bytes.resize(start + meta.size as usize, 0);
        let mut end = start;
        // What was cut off meanwhile is cut off; what was appended is not there yet.
        while end < outlet.batch.bytes.len() {
            match rustix::io::read(&file, &mut outlet.batch.bytes[end..]) {
                Ok(0) => break,
                Ok(count) => end += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        outlet.batch.bytes.truncate(end);
        meta.size = (outlet.batch.bytes.len() - start) as u64;
        let mut entry = entry(meta, link, Body::Whole(outlet.batch.since(start)));
        entry.xattrs = xattrs;
        Ok(if has_changed(&file, stat) { Opened::Changed(entry) } else { Opened::Done(entry) })
    }

    /// Links, FIFOs, sockets and device nodes.
    fn other(&mut self, directory: &Directory, name: &[u8], stat: &Stat, outlet: &mut Outlet) -> Result<Opened, Errno> {
        let meta = host::meta(stat).ok_or(Errno::INVAL)?;
        let start = outlet.batch.bytes.len();
        self.xattrs.read(&Named::In(directory.fd.as_fd(), name), &mut outlet.batch.bytes)?;
        let xattrs = outlet.batch.since(start);
        let body = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&directory.fd, name, Vec::new())?;
                Body::Symlink(outlet.batch.add(target.to_bytes()))
            }
            // Became one since it was listed.
            FileType::Directory => return Err(Errno::ISDIR),
            _ => Body::None,
        };
        let link = (stat.st_nlink > 1).then(|| host::link_key(stat));
        Ok(Opened::Done(Entry { xattrs, ..entry(meta, link, body) }))
    }

    /// Whether a name in front of this one has been seen, which has the content. A reader ahead of us in time may be
    /// behind us in order: then the content comes with this name, and the sink drops the other one's.
    fn is_later_name(&self, key: LinkKey) -> bool {
        let mut claims = self.claims.lock().expect("nobody panics holding it");
        let first = claims.entry(key).or_insert(self.position);
        if *first < self.position {
            return true;
        }
        *first = self.position;
        false
    }

    fn parts(&self, file: &OwnedFd, segments: &[Segment], outlet: &mut Outlet) -> Result<Result<(), Errno>, Gone> {
        for segment in segments {
            let end = segment.offset + segment.length;
            let mut offset = segment.offset;
            while offset < end {
                let start = outlet.batch.bytes.len();
                let length = (end - offset).min(PART_SIZE as u64) as usize;
                outlet.batch.bytes.resize(start + length, 0);
                let result = rustix::io::pread(file, &mut outlet.batch.bytes[start..], offset);
                outlet.batch.bytes.truncate(start + result.unwrap_or(0));
                match result {
                    // It was cut off while we read.
                    Ok(0) => return Ok(Err(Errno::IO)),
                    Ok(_) => {
                        let bytes = outlet.batch.since(start);
                        outlet.push(Record::Data { offset, bytes })?;
                        offset += bytes.len() as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => return Ok(Err(errno)),
                }
            }
        }
        Ok(Ok(()))
    }
}

enum Opened {
    Done(Entry),
    /// Done, and the file changed while its content was read.
    Changed(Entry),
    /// To be read part by part; the file's attributes before that.
    Parts(Entry, OwnedFd, Vec<Segment>, Box<Stat>),
    /// The one that is left out.
    LeftOut,
}

/// Whether a file is no longer what it was, as far as anybody can tell: every change sets its change time.
fn has_changed(file: &OwnedFd, before: &Stat) -> bool {
    let version = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec, stat.st_size);
    rustix::fs::fstat(file).map_or(true, |after| version(&after) != version(before))
}

fn entry(meta: Meta, link: Option<LinkKey>, body: Body) -> Entry {
    Entry { path: Default::default(), meta, xattrs: Default::default(), link, body }
}
