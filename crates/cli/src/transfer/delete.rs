//! What `import --delete` removes from the target: what the source has not, and what is in its way. It goes before anything
//! is brought: that makes room, and directories get their times last.
//!
//! A file is removed only when the source has been asked for it by its name and has none: what cannot be read there, what
//! is excluded, and what is mounted inside where that is left out, stays in the target. The source is asked through directories that
//! are open, so one that gets another name meanwhile is not taken for one that has lost its files.

use super::exclude::Excludes;
use crate::context::Context;
use crate::failure::{At, image_name};
use crate::show::name::join;
use crate::volume::{Place, Tree};
use anyhow::Result;
use myriad_engine::{Errno, Error};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::os::fd::{AsFd, OwnedFd};
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
        let top = rustix::fs::open(self.source, READ_NAMES, Mode::empty());
        let top = top.map_err(std::io::Error::from).at(image_name(self.source))?;
        let mut directories = vec![Vec::new()];
        while let Some(directory) = directories.pop() {
            context.check()?;
            // What is below a directory that cannot be asked stays.
            let Ok(source) = open_below(&top, &directory) else { continue };
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
                match self.judge(&source, &name, &path, is_directory) {
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

    /// About the file at `path`, which has the name `name` in `source`, a directory of the source.
    fn judge(&self, source: &OwnedFd, name: &[u8], path: &[u8], is_directory: bool) -> Verdict {
        if self.excludes.has(path, is_directory) {
            return Verdict::Stays;
        }
        let found = match rustix::fs::statat(source, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => return Verdict::Goes,
            Err(_) => return Verdict::Stays,
        };
        let is_directory_there = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        if self.device.is_some_and(|device| device != found.st_dev) || self.excludes.has(path, is_directory_there) {
            return Verdict::Stays;
        }
        match (is_directory_there, is_directory) {
            (true, true) => Verdict::Descend,
            (false, false) => Verdict::Stays,
            _ => Verdict::Goes,
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
                (false, true) => match self.tree.rmdir(&place.path) {
                    // Somebody has made a file in it since it was listed.
                    Err(Error::Refused(Errno::NOTEMPTY)) => continue,
                    removed => removed.at(&place)?,
                },
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

/// Names can be asked for in a directory that may not be listed.
const READ_NAMES: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn open_below(top: impl AsFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { &b"."[..] } else { path };
    rustix::fs::openat(top, path, READ_NAMES | OFlags::NOFOLLOW, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::exclude::Pattern;
    use crate::volume::Volume;
    use myriad_engine::{Fs, OpenOptions, Session};
    use std::cell::Cell;

    const DIRECTORIES: u32 = 8;

    fn put(session: &Session, path: &str) {
        let create = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
        session.open(path, create).unwrap();
    }

    /// Removes from a volume what a directory of the host lacks. Both have [`DIRECTORIES`] directories, each with a file `kept`; the volume
    /// has a directory `gone` with a file `file` in each. `meanwhile` is called once, after the first file was removed.
    fn delete(excludes: &Excludes, meanwhile: impl Fn(&Path, &Session)) -> Volume {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        let volume = Volume::new(Fs::in_memory(16 << 20).unwrap(), Path::new("vol.img"));
        let session = volume.session();
        for number in 0..DIRECTORIES {
            std::fs::create_dir_all(source.join(number.to_string())).unwrap();
            std::fs::write(source.join(format!("{number}/kept")), []).unwrap();
            session.mkdir(&format!("/{number}"), 0o755).unwrap();
            session.mkdir(&format!("/{number}/gone"), 0o755).unwrap();
            put(session, &format!("/{number}/gone/file"));
            put(session, &format!("/{number}/kept"));
        }
        let is_first = Cell::new(true);
        let tell = |_: &[u8], _: bool| {
            if is_first.replace(false) {
                meanwhile(&source, session);
            }
            Ok(())
        };
        let top = Place { image: "vol.img".into(), path: b"/".to_vec() };
        let tell: Option<Tell<'_>> = Some(&tell);
        let deletion =
            Deletion { tree: &volume, top: &top, source: &source, excludes, device: None, is_dry: false, tell };
        let context = Context::new(true);
        let (removed, result) = deletion.run(&context);
        result.unwrap();
        assert!(removed >= 1 && !is_first.get());
        for number in 0..DIRECTORIES {
            assert!(session.lstat(&format!("/{number}/kept")).is_ok(), "{number}: the source had it");
        }
        volume
    }

    fn count(volume: &Volume, name: &str) -> usize {
        (0..DIRECTORIES).filter(|number| volume.session().lstat(&format!("/{number}/{name}")).is_ok()).count()
    }

    /// Whether a file was still in the source, its path was asked, which led nowhere once a directory above the file had another name.
    #[test]
    fn a_source_that_moves_away_is_not_an_empty_one() {
        let none = Excludes::default();
        let volume = delete(&none, |source, _| std::fs::rename(source, source.with_extension("moved")).unwrap());
        assert_eq!(count(&volume, "gone"), 0, "they are removed all the same");
        let volume = delete(&none, |source, _| {
            for number in 0..DIRECTORIES {
                std::fs::rename(source.join(number.to_string()), source.join(format!("{number}-moved"))).unwrap();
            }
        });
        assert_eq!(count(&volume, "gone"), DIRECTORIES as usize - 1, "all but that which was being looked at");
    }

    /// A directory went with all that was in it by then.
    #[test]
    fn what_is_made_in_a_directory_that_goes_stays() {
        let objects = Pattern::new(b"*.o".to_vec()).unwrap();
        let volume = delete(&Excludes::new(&[objects]), |_, session| {
            for number in 0..DIRECTORIES {
                put(session, &format!("/{number}/gone/new.o"));
            }
        });
        assert_eq!(count(&volume, "gone/new.o"), DIRECTORIES as usize);
        assert_eq!(count(&volume, "gone/file"), 0);
    }
}
