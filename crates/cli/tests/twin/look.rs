//! What there is to see of a file, in words that are equal on both sides if the file is.

use rustix::fd::AsFd;
use rustix::fs::{self as unix, FileType, IFlags, Mode, OFlags};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

/// Flags of inodes that users set; file systems have more of their own.
pub const FLAGS: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND).union(IFlags::NODUMP).union(IFlags::NOATIME);

/// All attributes but times, inode number, and how much space a file or directory takes.
pub fn attributes(stat: &unix::Stat) -> String {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let mut said = format!("{kind:?} {:04o} {}:{} x{}", stat.st_mode & 0o7777, stat.st_uid, stat.st_gid, stat.st_nlink);
    match kind {
        FileType::CharacterDevice | FileType::BlockDevice => write!(said, " {:x}", stat.st_rdev),
        FileType::RegularFile | FileType::Symlink => write!(said, " {} bytes", stat.st_size),
        _ => Ok(()),
    }
    .expect("memory");
    said
}

pub fn is_directory(file: impl AsFd) -> rustix::io::Result<bool> {
    Ok(FileType::from_raw_mode(unix::fstat(file)?.st_mode) == FileType::Directory)
}

/// Contents: where zeros are, how long the rest is, and a hash of it all.
#[derive(Default)]
pub struct Describe {
    runs: Vec<(bool, u64)>,
    /// Zeros not yet known to be a run of their own.
    zeros: u64,
    hasher: DefaultHasher,
}

/// Fewer zeros are data.
const ZEROS: u64 = 16;

impl Describe {
    fn run(&mut self, is_data: bool, len: u64) {
        match self.runs.last_mut() {
            Some((last, total)) if *last == is_data => *total += len,
            _ if len > 0 => self.runs.push((is_data, len)),
            _ => {}
        }
    }

    pub fn zeros(&mut self, len: u64) {
        self.zeros += len;
    }

    pub fn add(&mut self, _at: u64, bytes: &[u8]) {
        for piece in bytes.chunks(512) {
            if piece.iter().all(|&byte| byte == 0) {
                self.zeros += piece.len() as u64;
                continue;
            }
            for &byte in piece {
                if byte == 0 {
                    self.zeros += 1;
                    continue;
                }
                self.settle();
                self.run(true, 1);
                self.hasher.write_u8(byte);
            }
        }
    }

    /// Zeros that data follows.
    fn settle(&mut self) {
        let zeros = std::mem::take(&mut self.zeros);
        self.run(zeros < ZEROS, zeros);
        if zeros > 0 {
            self.hasher.write_u64(zeros);
        }
    }

    pub fn finish(mut self) -> String {
        let zeros = std::mem::take(&mut self.zeros);
        self.run(false, zeros);
        let total: u64 = self.runs.iter().map(|(_, len)| len).sum();
        let mut said = format!("{total} bytes");
        for (is_data, len) in self.runs.iter().take(8) {
            write!(said, " {}{len}", if *is_data { '+' } else { '0' }).expect("memory");
        }
        let _ = write!(said, " #{:08x}", self.hasher.finish() as u32);
        said
    }
}

/// Beginnings of data and holes, as SEEK_DATA and SEEK_HOLE find them.
fn ranges(file: impl AsFd) -> rustix::io::Result<(Vec<(u64, u64)>, u64)> {
    let size = unix::fstat(&file)?.st_size as u64;
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let from = match unix::seek(&file, unix::SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => break,
            other => other?,
        };
        let to = unix::seek(&file, unix::SeekFrom::Hole(from))?;
        found.push((from, to));
        at = to;
    }
    Ok((found, size))
}

pub fn extents(file: impl AsFd) -> rustix::io::Result<String> {
    let place = unix::tell(&file)?;
    let (found, size) = ranges(&file)?;
    unix::seek(&file, unix::SeekFrom::Start(place))?;
    let said: Vec<String> = found.iter().map(|(from, to)| format!("{from}..{to}")).collect();
    Ok(format!("{size} bytes, data [{}]", said.join(", ")))
}

/// Contents as a program copies them that passes over holes.
pub fn by_holes(file: impl AsFd) -> rustix::io::Result<String> {
    let (found, size) = ranges(&file)?;
    let mut describe = Describe::default();
    let mut at = 0;
    let mut buffer = vec![0; 1 << 16];
    for (from, to) in found {
        describe.zeros(from - at);
        at = from;
        while at < to {
            let want = buffer.len().min((to - at) as usize);
            let count = rustix::io::pread(&file, &mut buffer[..want], at)?;
            if count == 0 {
                break;
            }
            describe.add(at, &buffer[..count]);
            at += count as u64;
        }
    }
    describe.zeros(size.saturating_sub(at));
    Ok(describe.finish())
}

/// Contents as they are read.
fn contents(path: &Path) -> rustix::io::Result<String> {
    let file = unix::open(path, OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC, Mode::empty())?;
    let mut describe = Describe::default();
    let mut buffer = vec![0; 1 << 16];
    let mut at = 0;
    loop {
        let count = rustix::io::pread(&file, &mut buffer[..], at)?;
        if count == 0 {
            return Ok(describe.finish());
        }
        describe.add(at, &buffer[..count]);
        at += count as u64;
    }
}

pub fn attribute(path: impl AsRef<Path>, name: &str) -> rustix::io::Result<String> {
    let mut value = vec![0; 65536];
    let len = unix::lgetxattr(path.as_ref(), name, &mut value[..])?;
    value.truncate(len);
    Ok(value.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub fn attribute_names(path: impl AsRef<Path>) -> rustix::io::Result<Vec<String>> {
    let mut list = vec![0; 65536];
    let len = unix::llistxattr(path.as_ref(), &mut list[..])?;
    let names = list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    Ok(names)
}

pub fn list(path: &str) -> rustix::io::Result<String> {
    let directory = unix::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in unix::Dir::new(directory)? {
        let entry = entry?;
        names.push(format!("{} {:?}", entry.file_name().to_string_lossy(), entry.file_type()));
    }
    names.sort();
    Ok(names.join(", "))
}

/// A time that a program has set is itself; others are now.
fn time(seconds: i64, nanoseconds: u64) -> String {
    if (1_000_000_000..1 << 32).contains(&seconds) { "now".into() } else { format!("{seconds}.{nanoseconds:09}") }
}

/// Every file below `top`, a line for each path: all that can be seen, and which paths are one file.
pub fn tree(top: &Path) -> Result<BTreeMap<String, String>, String> {
    let mut lines = BTreeMap::new();
    let mut first = BTreeMap::new();
    add(top, Path::new(""), &mut lines, &mut first)?;
    Ok(lines)
}

fn add(
    top: &Path,
    path: &Path,
    lines: &mut BTreeMap<String, String>,
    first: &mut BTreeMap<u64, String>,
) -> Result<(), String> {
    let at = if path.as_os_str().is_empty() { top.to_owned() } else { top.join(path) };
    let shown = path.display().to_string();
    let failed = |what: &'static str| {
        let shown = shown.clone();
        move |error: rustix::io::Errno| format!("{what} {shown}: {error}")
    };
    let stat = unix::lstat(&at).map_err(failed("lstat"))?;
    let mut line = attributes(&stat);
    let _ = write!(line, " modified {}", time(stat.st_mtime, stat.st_mtime_nsec));
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::Directory {
        let one = first.entry(stat.st_ino).or_insert_with(|| shown.clone());
        if *one != shown {
            let _ = write!(line, " is {one}");
        }
    }
    for name in attribute_names(&at).map_err(failed("listxattr"))? {
        let value = attribute(&at, &name).unwrap_or_else(|error| error.to_string());
        let _ = write!(line, " {name}={value}");
    }
    if matches!(kind, FileType::RegularFile | FileType::Directory) {
        let file = unix::open(&at, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed("open"))?;
        let flags = unix::ioctl_getflags(&file).map_err(failed("flags"))? & FLAGS;
        if !flags.is_empty() {
            let _ = write!(line, " flags {:x}", flags.bits());
        }
        if kind == FileType::RegularFile {
            let read = contents(&at).map_err(failed("read"))?;
            let copied = by_holes(&file).map_err(failed("seek"))?;
            let _ = write!(line, " has {read}");
            if read != copied {
                let _ = write!(line, ", a copy has {copied}");
            }
        }
    }
    if kind == FileType::Symlink {
        let target = unix::readlink(&at, Vec::new()).map_err(failed("readlink"))?;
        let _ = write!(line, " to {target:?}");
    }
    lines.insert(shown.clone(), line);
    if kind == FileType::Directory {
        // In an order of their own, for it decides which name of a file comes first.
        let names = std::fs::read_dir(&at).and_then(|entries| {
            let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
            names.sort();
            Ok(names)
        });
        for name in names.map_err(|error| format!("{shown}: {error}"))? {
            let below = if path.as_os_str().is_empty() { name.into() } else { path.join(&name) };
            add(top, &below, lines, first)?;
        }
    }
    Ok(())
}

/// Times of the files that these names are of, by name and inode: modification, change, access.
pub type Stamps = BTreeMap<(&'static str, u64), [i128; 3]>;

pub fn stamps(top: &Path, paths: &[&'static str]) -> Stamps {
    let nanoseconds = |seconds: i64, nanoseconds: u64| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    let one = |path: &&'static str| {
        let stat = unix::lstat(top.join(path)).ok()?;
        let times = [
            nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
            nanoseconds(stat.st_atime, stat.st_atime_nsec),
        ];
        Some(((*path, stat.st_ino), times))
    };
    paths.iter().filter_map(one).collect()
}

/// Which times of which names moved.
pub fn moved(before: &Stamps, after: &Stamps) -> BTreeMap<&'static str, [bool; 3]> {
    let of = |(key, now): (&(&'static str, u64), &[i128; 3])| {
        let then = before.get(key)?;
        Some((key.0, std::array::from_fn(|at| then[at] != now[at])))
    };
    after.iter().filter_map(of).collect()
}
