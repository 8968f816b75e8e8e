//! What a directory sees made and removed, told by the kernel (inotify): for programs that remove again what they make, so that nothing
//! shows afterwards. It costs each of their operations some tenths of a microsecond, on all targets alike.
//!
//! A directory that is made is watched as well, but not before its news has come: of what lives in it for a millisecond, some may be
//! missed. Names that come into it before its watch are found by one look at it, so names are kept and
//! each counts once. A name that is made again after its removal counts again.

use anyhow::{Context, Result};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Files that came and went. Of directories only what happened in them counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub made: u64,
    pub removed: u64,
    /// There may have been more than this: the kernel's queue was full, or a directory came.
    pub more: bool,
}

pub struct Watch {
    inotify: OwnedFd,
    buffer: Box<[MaybeUninit<u8>]>,
    directories: HashMap<i32, PathBuf>,
    /// Directory and name.
    there: HashSet<(i32, Vec<u8>)>,
    /// The first directory, if what happens right in it does not count.
    apart: Option<i32>,
    seen: Seen,
}

/// An event that says something about names.
enum Change {
    Made { directory: i32, name: Vec<u8>, is_directory: bool },
    Removed { directory: i32, name: Vec<u8>, is_directory: bool },
    Lost,
}

impl Watch {
    /// With `here`, files right in `directory` count, and not only those in directories that are made in it.
    pub fn new(directory: &Path, here: bool) -> Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).context("inotify")?;
        let buffer = vec![MaybeUninit::uninit(); 64 << 10].into();
        let (directories, there) = (HashMap::new(), HashSet::new());
        let mut made = Self { inotify, buffer, directories, there, apart: None, seen: Seen::default() };
        let first = made.add(directory)?;
        made.apart = (!here).then_some(first);
        Ok(made)
    }

    /// Watches a directory, and finds what is in it already.
    fn add(&mut self, directory: &Path) -> Result<i32> {
        let flags = WatchFlags::CREATE | WatchFlags::DELETE;
        let watch = inotify::add_watch(&self.inotify, directory, flags)
            .with_context(|| format!("watching {}", directory.display()))?;
        self.directories.insert(watch, directory.to_owned());
        for entry in directory.read_dir().with_context(|| format!("reading {}", directory.display()))? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                self.made(watch, entry.file_name().as_bytes().to_vec());
            }
        }
        Ok(watch)
    }

    fn made(&mut self, directory: i32, name: Vec<u8>) {
        if self.apart != Some(directory) {
            self.seen.made += u64::from(self.there.insert((directory, name)));
        }
    }

    /// The next change in the queue; `None`: it is empty.
    fn next(reader: &mut Reader<'_, &OwnedFd>) -> Result<Option<Change>> {
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error).context("reading what inotify saw"),
            };
            let (flags, directory) = (event.events(), event.wd());
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                return Ok(Some(Change::Lost));
            }
            let Some(name) = event.file_name().map(|name| name.to_bytes().to_vec()) else { continue };
            let is_directory = flags.contains(ReadFlags::ISDIR);
            if flags.contains(ReadFlags::CREATE) {
                return Ok(Some(Change::Made { directory, name, is_directory }));
            }
            if flags.contains(ReadFlags::DELETE) {
                return Ok(Some(Change::Removed { directory, name, is_directory }));
            }
        }
    }

    /// Takes what has come: often, for the kernel keeps no more than some ten thousand events.
    pub fn take(&mut self) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut changes = Vec::new();
        let inotify = self.inotify.try_clone().context("a second descriptor of inotify's")?;
        let mut reader = Reader::new(&inotify, &mut buffer);
        while let Some(change) = Self::next(&mut reader)? {
            changes.push(change);
        }
        self.buffer = buffer;
        for change in changes {
            match change {
                Change::Lost => self.seen.more = true,
                Change::Made { directory, name, is_directory: false } => self.made(directory, name),
                Change::Made { directory, name, is_directory: true } => {
                    self.seen.more = true;
                    let Some(parent) = self.directories.get(&directory) else { continue };
                    let path = parent.join(std::ffi::OsStr::from_bytes(&name));
                    // One that is gone by now held nothing that counts.
                    if path.is_dir() {
                        self.add(&path)?;
                    }
                }
                Change::Removed { is_directory: true, .. } => {}
                Change::Removed { directory, name, is_directory: false } => {
                    if self.apart != Some(directory) {
                        self.there.remove(&(directory, name));
                        self.seen.removed += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// What it saw in all.
    pub fn end(mut self) -> Result<Seen> {
        self.take()?;
        Ok(self.seen)
    }
}

impl Seen {
    /// Whether it agrees with what a program says: to the file, or, where some may have been missed, with nothing that the program does
    /// not know of.
    pub fn check(self, made: u64, removed: u64) -> Result<()> {
        if self.more {
            anyhow::ensure!(
                self.made <= made && self.removed <= removed && self.made > 0 && self.removed > 0,
                "it says {made} files made and {removed} removed, and the target shows {} and {}: it did not do what it was asked",
                self.made,
                self.removed
            );
            return Ok(());
        }
        super::as_shown("files made", made, self.made)?;
        super::as_shown("files removed", removed, self.removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_is_counted_in_directories_that_come_too() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(folder.path(), false).unwrap();
        std::fs::write(folder.path().join("not counted"), b"x").unwrap();
        for round in 0..2 {
            let inner = folder.path().join("inner");
            std::fs::create_dir(&inner).unwrap();
            for name in 0..50 {
                std::fs::write(inner.join(name.to_string()), b"x").unwrap();
            }
            watch.take().unwrap();
            std::fs::write(inner.join("late"), b"x").unwrap();
            std::fs::remove_dir_all(&inner).unwrap();
            watch.take().unwrap();
            assert_eq!(watch.seen, Seen { made: 51 * (round + 1), removed: 51 * (round + 1), more: true });
        }
        let seen = watch.end().unwrap();
        seen.check(102, 102).unwrap();
        assert!(seen.check(103, 102).is_ok() && seen.check(102, 101).is_err());
        let exact = Seen { more: false, ..seen };
        assert!(exact.check(102, 102).is_ok() && exact.check(103, 102).is_err() && exact.check(102, 103).is_err());
        assert!(Seen::default().check(1, 1).unwrap_err().to_string().contains("did not do what it was asked"));
        assert!(Seen { more: true, ..Seen::default() }.check(1, 1).is_err());
    }
}
