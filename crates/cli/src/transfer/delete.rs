//! What `import --delete` removes from the target: what the source has not, and what is in its way. It goes before anything
//! is brought: that makes room, and directories get their times last.
//!
//! A file is removed only when the source has been asked for it by its name and has none: what cannot be read there, what
//! is excluded, and what is mounted inside where that is left out, stays in the target.

use super::exclude::Excludes;
use crate::context::Context;
use crate::failure::At;
use crate::show::name::join;
use crate::volume::{Place, Tree};
use anyhow::Result;
use myriad_engine::{Errno, Error};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Is told of a path that goes, and whether it is that of a directory.
pub type Tell<'a> = &'a dyn Fn(&[u8], bool) -> Result<()>;

pub struct Deletion<'a> {
    pub tree: &'a dyn Tree,
    /// The directory of the target that is as the source is to be.
    pub top: &'a Place,
    pub source: &'a Path,
    pub excludes: &'a Excludes,
    /// The only file system of the source that counts.
    pub device: Option<u64>,
    pub is_dry: bool,
    pub tell: Option<Tell<'a>>,
}

/// What the source says of a file of the target.
enum Verdict {
    Stays,
    /// It is a directory in both.
    Descend,
    /// The source has none of that name, or a directory where this is none, or the other way round.
    Goes,
}

impl Deletion<'_> {
    /// How many files were removed, also if not all could be.
    pub fn run(&self, context: &Context) -> (u64, Result<()>) {
        let mut removed = 0;
        let result = self.walk(context, &mut removed);
        (removed, result)
    }

    fn walk(&self, context: &Context, removed: &mut u64) -> Result<()> {
        match self.tree.stat(&self.top.path) {
            Err(Error::Refused(Errno::NOENT)) => return Ok(()),
            found => found.at(self.top)?,
        };
        let mut directories = vec![Vec::new()];
        while let Some(directory) = directories.pop() {
            context.check()?;
            let place = self.top.below(&directory);
            // All of them first: the directory is changed meanwhile.
            let names = self.tree.names(&place.path).and_then(Iterator::collect::<Result<Vec<_>, Error>>).at(&place)?;
            for name in names {
                let path = join(&directory, &name);
                let place = self.top.below(&path);
                let is_directory = match self.tree.lstat(&place.path) {
                    Err(Error::Refused(Errno::NOENT)) => continue,
                    found => found.at(&place)?.is_dir(),
                };
                match self.judge(&path, is_directory) {
                    Verdict::Stays => {}
                    Verdict::Descend => directories.push(path),
                    Verdict::Goes => {
                        let result = self.remove(context, &path, is_directory, removed);
                        context.tolerate(result)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn judge(&self, path: &[u8], is_directory: bool) -> Verdict {
        if self.excludes.has(path, is_directory) {
            return Verdict::Stays;
        }
        match self.source.join(OsStr::from_bytes(path)).symlink_metadata() {
            Ok(found) if self.device.is_some_and(|device| device != found.dev()) => Verdict::Stays,
            Ok(found) if self.excludes.has(path, found.is_dir()) => Verdict::Stays,
            Ok(found) if found.is_dir() != is_directory => Verdict::Goes,
            Ok(_) if is_directory => Verdict::Descend,
            Ok(_) => Verdict::Stays,
            Err(error) if error.kind() == ErrorKind::NotFound => Verdict::Goes,
            Err(_) => Verdict::Stays,
        }
    }

    fn remove(&self, context: &Context, path: &[u8], is_directory: bool, removed: &mut u64) -> Result<()> {
        let place = self.top.below(path);
        if is_directory && self.excludes.is_empty() && self.tell.is_none() && !self.is_dry {
            let so_far = *removed;
            let mut progress = |count| {
                *removed = so_far + count;
                context.check().is_ok()
            };
            return self.tree.remove_tree(&place.path, &mut progress).map(|count| *removed = so_far + count).at(place);
        }
        let mut files = vec![(path.to_vec(), is_directory)];
        if is_directory {
            files.clear();
            for step in self.tree.walk(&place.path).at(&place)? {
                let entry = place.step(step)?;
                files.push((join(path, &entry.path), entry.stat.is_dir()));
            }
        }
        // What is excluded keeps the directories that it is in.
        let is_kept = |file: &[u8], is_directory| self.excludes.covers(file, is_directory);
        let kept: Vec<Vec<u8>> =
            files.iter().filter(|(file, is_dir)| is_kept(file, *is_dir)).map(|(file, _)| file.clone()).collect();
        for (file, is_directory) in files.iter().rev() {
            context.check()?;
            let holds = |other: &Vec<u8>| other.strip_prefix(&file[..]).is_some_and(|rest| rest.starts_with(b"/"));
            if is_kept(file, *is_directory) || kept.iter().any(holds) {
                continue;
            }
            let place = self.top.below(file);
            match (self.is_dry, is_directory) {
                (true, _) => {}
                (false, true) => drop(self.tree.remove_tree(&place.path, &mut |_| true).at(&place)?),
                (false, false) => self.tree.unlink(&place.path).at(&place)?,
            }
            *removed += 1;
            if let Some(tell) = self.tell {
                tell(file, *is_directory)?;
            }
        }
        Ok(())
    }
}
