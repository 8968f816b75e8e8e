//! The thread that walks: lists directories and hands out jobs.

use super::super::batch::{Gone, Problem, Slots};
use super::super::exclude::Excludes;
use super::{Directory, Item, JOB_ITEMS, Job, Links, Mounts, Options, hidden, list, open_directory, problem};
use crate::failure::Failure;
use crate::show::name::{Shown, join};
use myriad_engine::Errno;
use rustix::fs::{AtFlags, CWD, FileType, OFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

pub struct Walker {
    place: Arc<[u8]>,
    slots: Slots,
    jobs: SyncSender<Job>,
    /// The file system that the tree begins in.
    device: u64,
    mounts: Mounts,
    follow_all: Option<Links>,
    excludes: Excludes,
    job: Option<Job>,
    number: u64,
}

/// A directory that is still to be walked: its name in the one above, and where it is if that name is a link.
type Below = (Vec<u8>, Option<PathBuf>);

/// Which directory it is, for those who follow links in circles.
type Id = (u64, u64);

impl Walker {
    pub fn new(place: Arc<[u8]>, slots: Slots, jobs: SyncSender<Job>, device: u64, options: &Options) -> Self {
        let (mounts, follow_all, excludes) = (options.mounts, options.follow_all.clone(), options.excludes.clone());
        Self { place, slots, jobs, device, mounts, follow_all, excludes, job: None, number: 0 }
    }

    pub fn walk(&mut self, top: Arc<Directory>) -> Result<(), Gone> {
        let id = rustix::fs::fstat(&top.fd).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        // Directories from the top down, each with the names of those in it that are still to be walked, the next one last.
        let (directory, below) = self.enter(top)?;
        let mut stack: Vec<(Arc<Directory>, Vec<Below>, Id)> = vec![(directory, below, id)];
        while let Some((directory, below, _)) = stack.last_mut() {
            let Some((name, real)) = below.pop() else {
                stack.pop();
                continue;
            };
            let path = join(&directory.path, &name);
            let opened = match real {
                Some(real) => open_directory(CWD, real.as_os_str().as_bytes(), OFlags::NOFOLLOW),
                None => open_directory(&directory.fd, &name, OFlags::NOFOLLOW),
            };
            let opened = opened.and_then(|fd| {
                let stat = rustix::fs::fstat(&fd)?;
                Ok(((stat.st_dev, stat.st_ino), fd))
            });
            match opened {
                Ok(((device, _), _)) if device != self.device && self.mounts == Mounts::Foreign => {
                    self.push(Item::Problem(hidden(&self.place, &path)), b"")?;
                }
                Ok(((device, _), fd)) if device != self.device && self.mounts == Mounts::Empty => {
                    self.push(Item::Directory(Arc::new(Directory { fd, path })), b"")?;
                }
                Ok((id, _)) if self.follow_all.is_some() && stack.iter().any(|(.., above)| *above == id) => {
                    let place = Shown(&join(&self.place, &path)).to_string();
                    let what = "leads back to a directory that it is in; left out";
                    self.push(Item::Problem(Problem::new(Failure::new(place, what, "").into())), b"")?;
                }
                Ok((id, fd)) => {
                    let (directory, below) = self.enter(Arc::new(Directory { fd, path }))?;
                    stack.push((directory, below, id));
                }
                Err(errno) => self.push(Item::Problem(problem(&self.place, &path, errno)), b"")?,
            }
        }
        self.send()
    }

    /// Hands out a directory and all in it but directories, which are answered.
    fn enter(&mut self, directory: Arc<Directory>) -> Result<(Arc<Directory>, Vec<Below>), Gone> {
        self.push(Item::Directory(Arc::clone(&directory)), b"")?;
        let mut below = Vec::new();
        let listed = list(&directory.fd, |listed, names| {
            for entry in listed.iter_mut() {
                let name = &names[entry.start..entry.end];
                if entry.file_type == FileType::Unknown {
                    let stat = rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW);
                    entry.file_type = stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
                }
                let is_directory = entry.file_type == FileType::Directory;
                if !self.excludes.is_empty() && self.excludes.has(&join(&directory.path, name), is_directory) {
                    continue;
                }
                if is_directory {
                    below.push((name.to_vec(), None));
                } else if let (FileType::Symlink, Some(follow)) = (entry.file_type, self.follow_all.clone()) {
                    below.extend(self.follow(&follow, join(&directory.path, name), name)?);
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

    /// Hands out what a link leads to, unless that is a directory, which is answered.
    fn follow(&mut self, follow: &Links, path: Vec<u8>, name: &[u8]) -> Result<Option<Below>, Gone> {
        let found = follow(&path).and_then(|real| {
            let stat = rustix::fs::statat(CWD, &real, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok((FileType::from_raw_mode(stat.st_mode), real))
        });
        match found {
            Ok((FileType::Directory, real)) => return Ok(Some((name.to_vec(), Some(real)))),
            Ok((_, real)) => self.push(Item::Linked(path, real), b"")?,
            Err(Errno::NOENT) => {
                let place = Shown(&join(&self.place, &path)).to_string();
                let what = "is a symbolic link that leads to nothing";
                self.push(Item::Problem(Problem::new(Failure::new(place, what, "copy it with -P").into())), b"")?;
            }
            Err(errno) => self.push(Item::Problem(problem(&self.place, &path, errno)), b"")?,
        }
        Ok(None)
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
