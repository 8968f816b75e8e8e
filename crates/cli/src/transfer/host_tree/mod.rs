//! Source: a tree of the host.
//!
//! One thread walks, several read. The walker lists directories, depth first, and hands out jobs of some files each;
//! every job has a slot of the queue, so that files are read at the same time and arrive in order. A reader takes one
//! file after the other: open, stat, attributes, content, five system calls for a small file.

mod reader;
mod walker;

use super::batch::{Body, Entry, Feed, Gauge, Gone, LinkKey, Meta, Outlet, Problem, Record, Wanted};
use super::exclude::Excludes;
use super::host;
use super::host_target::led_out;
use crate::failure::{At, Failure, errno_text, image_name};
use crate::limits;
use crate::show::name::{Shown, join};
use myriad_engine::Errno;
use reader::Reader;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use walker::Walker;

/// Files of one job: enough that handing it out costs little beside them.
const JOB_ITEMS: usize = 64;
/// Entries of a directory that are sorted together. On ext4 and its kin the order of inode numbers is that of the disk,
/// and the order of the directory is random.
const LISTED: usize = 8192;
/// Threads that read: one a core while the files are cached, more to have requests in flight while they are not.
const READERS: usize = 4;

/// What is asked of a stream at a time: pipes give no more.
const STREAM_SIZE: usize = 64 << 10;

/// What becomes of that which is mounted inside a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mounts {
    /// It is taken.
    #[default]
    Enter,
    /// The directory that it is mounted on comes without it.
    Empty,
    /// The tree is a volume's, and what is mounted there hides files of the volume: that is a problem.
    Foreign,
}

/// Which part of a tree, and how.
#[derive(Clone, Default)]
pub struct Options {
    pub mounts: Mounts,
    /// Of a volume that is mounted: if the tree begins on another device, somebody has put that in the way.
    pub device: Option<u64>,
    /// If the beginning itself is a symbolic link, take what it refers to.
    pub follow: bool,
    /// Take what the symbolic links below the beginning refer to.
    pub follow_all: Option<Links>,
    /// If the beginning is a pipe or a device, take what comes out of it.
    pub streams: bool,
    /// Files that are names of one inode come as such.
    pub links: bool,
    /// Count the entries ahead of the work, so that progress can tell the time left.
    pub count: bool,
    /// A file to leave out, and what it is called when that is told: what the tree goes to.
    pub left_out: Option<LeftOut>,
    pub excludes: Excludes,
    /// Whose content is read; `None`: all.
    pub wanted: Option<Wanted>,
}

/// Where a symbolic link of the tree leads, which lies at a path below the beginning: a path of the host without links.
pub type Links = Arc<dyn Fn(&[u8]) -> Result<PathBuf, Errno> + Send + Sync>;

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
    /// What a symbolic link at this path leads to, which is no directory.
    Linked(Vec<u8>, PathBuf),
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
    limits::raise_open_files();
    let place: Arc<[u8]> = root.as_os_str().as_bytes().into();
    let fail = |errno| anyhow::Error::from(Failure::new(Shown(&place), errno_text(errno), ""));
    let flags = if options.follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = rustix::fs::statat(CWD, root, flags).map_err(fail)?;
    let check_device = |stat: &Stat| match options.device {
        Some(device) if device != stat.st_dev => Err(led_out(image_name(root))),
        _ => Ok(()),
    };
    check_device(&stat)?;
    let (slots, mut feed) = Feed::new();
    let claims = Arc::new(Claims::default());
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        let mut reader = Reader::new(&place, &options, &claims);
        let mut outlet = slots.open().expect("the feed is in our hands");
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if options.streams && FileType::from_raw_mode(stat.st_mode) != FileType::Symlink || is_file && options.follow {
            read_content(&mut feed, root.to_owned(), &stat, reader, outlet);
            return Ok(feed);
        }
        let real = if options.follow { root.canonicalize().at(Shown(&place))? } else { root.to_owned() };
        let root = &*real;
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
    check_device(&rustix::fs::fstat(&fd).map_err(fail)?)?;
    let top = Arc::new(Directory { fd, path: Vec::new() });
    if options.count {
        let (fd, gauge) = (open_directory(&top.fd, b".", OFlags::empty()).map_err(fail)?, Arc::clone(&feed.count));
        feed.spawn(move || count(fd, &gauge));
    }
    let (jobs, received) = sync_channel(READERS);
    let received = Arc::new(Mutex::new(received));
    for _ in 0..READERS {
        let reader = Reader::new(&place, &options, &claims);
        let received = Arc::clone(&received);
        feed.spawn(move || read_jobs(&received, reader));
    }
    feed.spawn(move || {
        let _ = Walker::new(place, slots, jobs, stat.st_dev, &options).walk(top);
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
    rest_of_stream(file, (place, b""), outlet)
}

/// What follows the entry of a stream.
fn rest_of_stream(file: &OwnedFd, (place, path): (&[u8], &[u8]), outlet: &mut Outlet) -> Result<(), Gone> {
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
            Err(errno) => return outlet.push(Record::Spoiled(problem(place, path, errno))),
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

fn problem(place: &[u8], path: &[u8], errno: Errno) -> Problem {
    let is_unreadable = matches!(errno, Errno::ACCESS | Errno::PERM);
    Problem { error: Failure::new(Shown(&join(place, path)), errno_text(errno), "").into(), is_unreadable }
}

/// Something hides what the volume has at a path.
fn hidden(place: &[u8], path: &[u8]) -> Problem {
    let place = Shown(&join(place, path)).to_string();
    let what = "something is mounted on it; what the volume has there is left out";
    Problem::new(Failure::new(place, what, "unmount that, or do this while the volume is not mounted").into())
}

fn read_jobs(jobs: &Mutex<Receiver<Job>>, mut reader: Reader) {
    loop {
        let Ok(mut job) = jobs.lock().expect("nobody panics holding it").recv() else { return };
        for (index, item) in job.items.drain(..).enumerate() {
            reader.position = (job.number, index);
            let result = match item {
                Item::Directory(directory) => reader.directory(&directory, &mut job.outlet),
                Item::Linked(path, real) => reader.linked(&path, &real, &mut job.outlet),
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

fn entry(meta: Meta, link: Option<LinkKey>, body: Body) -> Entry {
    Entry { path: Default::default(), meta, xattrs: Default::default(), link, body }
}
