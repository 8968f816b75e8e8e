//! Names that all threads fight for: whatever the interleaving, an answer must be one that some order allows, and what
//! is there in the end must be what was made less what was removed.

use crate::worker::{Outcome, Tally};
use myriad_sim::pattern;
use myriad_sim::rng::Rng;
use rustix::fs::{self as unix, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Made, linked, renamed and removed by anybody.
pub const NAMES: [&str; 6] = ["x0", "x1", "x2", "x3", "x4", "x5"];
/// Always there, replaced as a whole by anybody.
pub const REPLACED: [&str; 3] = ["r0", "r1", "r2"];
/// Moved between two directories by anybody; the last is a directory itself.
pub const MOVED: [&str; 3] = ["m0", "m1", "m2"];
pub const SIDES: [&str; 2] = ["left", "right"];
/// Names whose making is a lock; each guards the counter of the same name.
pub const LOCKS: [&str; 3] = ["create", "mkdir", "link"];

pub fn lock_name(lock: &str) -> String {
    format!("lock-{lock}")
}

pub fn counter_name(lock: &str) -> String {
    format!("counter-{lock}")
}

/// What a writer puts in the place of a name: who, which version, how long, and bytes that follow from them.
pub fn whole(writer: u32, version: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = [writer, version, len as u32].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(pattern::bytes(writer << 24 | version, 0, len));
    bytes
}

fn read_whole(bytes: &[u8]) -> Option<(u32, u32)> {
    let word = |index: usize| Some(u32::from_le_bytes(bytes.get(index * 4..index * 4 + 4)?.try_into().ok()?));
    let (writer, version, len) = (word(0)?, word(1)?, word(2)?);
    (len < 1 << 20 && bytes == whole(writer, version, len as usize)).then_some((writer, version))
}

pub struct Contested {
    thread: usize,
    rng: Rng,
    pub tally: Tally,
    version: u32,
    /// The newest version of each writer that this thread has seen under each replaced name.
    seen: HashMap<(usize, u32), u32>,
}

/// Whether it succeeded; an errno that no interleaving allows is a failure.
fn judge<T>(what: &str, result: rustix::io::Result<T>, allowed: &[Errno]) -> Result<Option<T>, String> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(errno) if allowed.contains(&errno) => Ok(None),
        Err(errno) => Err(format!("{what}: {errno:?} ({errno}), and only {allowed:?} can be")),
    }
}

fn create_new(path: &str) -> rustix::io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    unix::open(path, flags, Mode::from_raw_mode(0o644)).map(File::from)
}

impl Contested {
    pub fn new(thread: usize, rng: Rng) -> Result<Self, String> {
        let seat = Self::seat(thread);
        create_new(&seat).map_err(|error| format!("{seat}: {error}"))?;
        Ok(Self { thread, rng, tally: Tally::default(), version: 0, seen: HashMap::new() })
    }

    /// A file of this thread's own, to link from.
    fn seat(thread: usize) -> String {
        format!("seat{thread}")
    }

    pub fn step(&mut self) -> Outcome {
        match self.rng.below(100) {
            0..60 => self.fight(),
            60..72 => self.replace(),
            72..84 => self.look(),
            84..92 => self.lock(),
            _ => self.carry(),
        }
    }

    fn made(&mut self, what: &str, count: i64) {
        self.tally.add(what, count);
    }

    fn fight(&mut self) -> Outcome {
        let name = *self.rng.pick(&NAMES);
        let other = *self.rng.pick(&NAMES);
        let mode = Mode::from_raw_mode(0o755);
        let what = |does: &str| format!("{does} {name}");
        match self.rng.below(13) {
            0..2 => {
                if let Some(mut file) = judge(&what("create"), create_new(name), &[Errno::EXIST])? {
                    self.made("files", 1);
                    // Whoever removes it meanwhile, this is the same file.
                    let bytes = whole(self.thread as u32, self.version, self.rng.index(6000));
                    file.write_all(&bytes).map_err(|error| format!("write {name}: {error}"))?;
                    let mut back = vec![0; bytes.len()];
                    file.read_exact_at(&mut back, 0).map_err(|error| format!("read {name}: {error}"))?;
                    if back != bytes {
                        return Err(format!("{name}, just made, has other bytes than were written"));
                    }
                }
            }
            2..4 => {
                if judge(&what("mkdir"), unix::mkdir(name, mode), &[Errno::EXIST])?.is_some() {
                    self.made("directories", 1);
                }
            }
            4 => {
                if judge(&what("symlink"), unix::symlink("to", name), &[Errno::EXIST])?.is_some() {
                    self.made("files", 1);
                }
            }
            5 => {
                let linked = unix::linkat(CWD, name, CWD, other, AtFlags::empty());
                if judge(&what("link"), linked, &[Errno::NOENT, Errno::EXIST, Errno::PERM])?.is_some() {
                    self.made("files", 1);
                }
            }
            6..8 => {
                let unlinked = unix::unlink(name);
                if judge(&what("unlink"), unlinked, &[Errno::NOENT, Errno::ISDIR])?.is_some() {
                    self.made("files", -1);
                }
            }
            8..10 => {
                let removed = unix::rmdir(name);
                if judge(&what("rmdir"), removed, &[Errno::NOENT, Errno::NOTDIR])?.is_some() {
                    self.made("directories", -1);
                }
            }
            10 => {
                let moved = unix::renameat_with(CWD, name, CWD, other, RenameFlags::NOREPLACE);
                judge(&what("rename"), moved, &[Errno::NOENT, Errno::EXIST])?;
            }
            11 => {
                let exchanged = unix::renameat_with(CWD, name, CWD, other, RenameFlags::EXCHANGE);
                judge(&what("exchange"), exchanged, &[Errno::NOENT])?;
            }
            _ => {
                let target = unix::readlink(name, Vec::new());
                if let Some(target) = judge(&what("readlink"), target, &[Errno::NOENT, Errno::INVAL])?
                    && target.as_bytes() != b"to"
                {
                    return Err(format!("the link {name} leads to {target:?}"));
                }
                if let Some(stat) = judge(&what("stat"), unix::lstat(name), &[Errno::NOENT])?
                    && !matches!(
                        FileType::from_raw_mode(stat.st_mode),
                        FileType::RegularFile | FileType::Directory | FileType::Symlink
                    )
                {
                    return Err(format!("{name} has the mode {:o}", stat.st_mode));
                }
            }
        }
        Ok(())
    }

    /// Writes a file aside and renames it over a name, as programs replace their files.
    fn replace(&mut self) -> Outcome {
        let name = *self.rng.pick(&REPLACED);
        self.version += 1;
        let aside = format!("aside{}", self.thread);
        let bytes = whole(self.thread as u32, self.version, self.rng.index(20_000));
        let syncs = self.rng.percent(5);
        let replace = || -> std::io::Result<()> {
            let mut file = create_new(&aside)?;
            file.write_all(&bytes)?;
            if syncs {
                file.sync_all()?;
            }
            fs::rename(&aside, name)
        };
        replace().map_err(|error| format!("replacing {name}: {error}"))
    }

    /// A replaced name is always there, whole, and no older than it was.
    fn look(&mut self) -> Outcome {
        let index = self.rng.index(REPLACED.len());
        let name = REPLACED[index];
        let bytes = fs::read(name).map_err(|error| format!("reading {name}, which is always there: {error}"))?;
        let Some((writer, version)) = read_whole(&bytes) else {
            return Err(format!("{name} has {} bytes that nobody wrote as one", bytes.len()));
        };
        let newest = self.seen.entry((index, writer)).or_default();
        if version < *newest {
            return Err(format!("{name} was version {newest} of thread {writer}, and is {version} now"));
        }
        *newest = version;
        Ok(())
    }

    /// Whoever makes the name is alone until it is removed, and counts.
    fn lock(&mut self) -> Outcome {
        let kind = *self.rng.pick(&LOCKS);
        let (name, counter, seat) = (lock_name(kind), counter_name(kind), Self::seat(self.thread));
        let taken = match kind {
            "create" => create_new(&name).map(drop),
            "mkdir" => unix::mkdir(&name, Mode::from_raw_mode(0o700)),
            _ => unix::linkat(CWD, &seat, CWD, &name, AtFlags::empty()),
        };
        if judge(&format!("{kind} {name}"), taken, &[Errno::EXIST])?.is_none() {
            return Ok(());
        }
        let failed = |what: &'static str| move |error: std::io::Error| format!("{what} under {kind}: {error}");
        count_up(&counter).map_err(failed("counting"))?;
        let names = |expected: u64| match fs::metadata(&seat).map_err(failed("stat"))?.nlink() {
            found if found == expected => Ok(()),
            found => Err(format!("{seat} has {found} names, and {expected} were made")),
        };
        if kind == "link" {
            names(2)?;
        }
        let left = if kind == "mkdir" { fs::remove_dir(&name) } else { fs::remove_file(&name) };
        left.map_err(failed("removing the name that only the holder has"))?;
        if kind == "link" {
            names(1)?;
        }
        self.made(kind, 1);
        Ok(())
    }

    /// A thing is in one of two directories, and moved by whoever finds it.
    fn carry(&mut self) -> Outcome {
        let name = *self.rng.pick(&MOVED);
        let to_right = self.rng.percent(50);
        let [source, target] = if to_right { SIDES } else { [SIDES[1], SIDES[0]] };
        let moved = unix::rename(format!("{source}/{name}"), format!("{target}/{name}"));
        if judge(&format!("moving {name} {target}"), moved, &[Errno::NOENT])?.is_some() {
            self.made(name, if to_right { 1 } else { -1 });
        }
        Ok(())
    }
}

/// Reads a number, and writes one more: right only as long as nobody else does.
pub fn count_up(path: &str) -> std::io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 0)?;
    file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0)
}
