//! What `import --delete` removes from the target: what the source has not, and what is in its way. It goes before anything
//! is brought: that makes room, and directories get their times last.
//!
//! A file is removed only when the source has been asked for it by its name and has none: what cannot be read there, what
//! is excluded, and what is mounted inside where that is left out, stays in the target. The source is asked through directories that
//! are open, so one that gets another name meanwhile is not taken for one that has lost its files. In the target, too, names are
//! listed and removed in directories that are held open: whoever may change a mounted volume could put a link to the files of
//! somebody else in the place of a directory.

use super::exclude::Excludes;
use crate::context::Context;
use crate::failure::{At, image_name};
use crate::show::name::join;
use crate::volume::{Folder, Place, Tree, Visit, Visited, descend_in};
use anyhow::Result;
use myriad_engine::{Errno, Error};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
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

/// Whether what is in the source can take the place of something else: a file can be read, a directory listed.
fn is_readable(source: &OwnedFd, name: &[u8], file_type: FileType) -> bool {
    if !matches!(file_type, FileType::RegularFile | FileType::Directory) {
        return true;
    }
    // Not to wait, should another file have the name by now.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(source, name, flags, Mode::empty()) else { return false };
    match file_type {
        FileType::Directory => Dir::new(file).is_ok_and(|names| names.take(1).all(|name| name.is_ok())),
        _ => rustix::io::read(&file, &mut [0; 1]).is_ok(),
    }
}

/// A directory of the target, held open.
struct Level<'t> {
    folder: Box<dyn Folder<'t> + 't>,
    /// Below the top.
    path: Vec<u8>,
    /// Directories in it that both have and that nobody has looked at yet.
    left: Vec<Vec<u8>>,
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
        let source = rustix::fs::open(self.source, READ_NAMES, Mode::empty());
        let source = source.map_err(std::io::Error::from).at(image_name(self.source))?;
        let top = self.tree.folder(&self.top.path).at(self.top)?;
        // A stack, not recursion: trees may be deeper than ours.
        let mut levels = vec![self.look(context, &source, top, Vec::new(), removed)?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.left.pop() else {
                levels.pop();
                continue;
            };
            let path = join(&level.path, &name);
            let folder = level.folder.folder(&name).at(self.top.below(&path));
            let below = folder.and_then(|folder| self.look(context, &source, folder, path, removed));
            levels.extend(context.tolerated(below)?);
        }
        Ok(())
    }

    /// Removes from a directory of the target, `path` below the top, what the one of the source has not.
    fn look<'t>(
        &self,
        context: &Context,
        source: &OwnedFd,
        folder: Box<dyn Folder<'t> + 't>,
        path: Vec<u8>,
        removed: &mut u64,
    ) -> Result<Level<'t>> {
        context.check()?;
        let mut level = Level { folder, path, left: Vec::new() };
        // What is below a directory that cannot be asked stays.
        let Ok(source) = open_below(source, &level.path) else { return Ok(level) };
        // All of them first: the directory is changed meanwhile.
        let names = level.folder.names().and_then(Iterator::collect::<Result<Vec<_>, Error>>);
        for name in names.at(self.top.below(&level.path))? {
            let path = join(&level.path, &name);
            let place = self.top.below(&path);
            let stat = match level.folder.lstat(&name) {
                Err(Error::Refused(Errno::NOENT)) => continue,
                found => found.at(&place)?,
            };
            match self.judge(&source, &name, &path, stat.is_dir()) {
                Verdict::Stays => {}
                Verdict::Descend => level.left.push(name),
                Verdict::Goes => {
                    let file = Visited { folder: &*level.folder, name: &name, place: &place, stat: &stat };
                    let result = self.remove(context, &file, removed);
                    context.tolerate(result)?;
                }
            }
        }
        Ok(level)
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
            _ if is_readable(source, name, FileType::from_raw_mode(found.st_mode)) => Verdict::Goes,
            _ => Verdict::Stays,
        }
    }

    fn remove(&self, context: &Context, file: &Visited<'_, '_>, removed: &mut u64) -> Result<()> {
        let Visited { folder, name, place, stat } = *file;
        if stat.is_dir() && self.excludes.is_empty() && self.tell.is_none() && !self.is_dry {
            let so_far = *removed;
            let mut progress = |count| {
                *removed = so_far + count;
                context.check().is_ok()
            };
            return folder.remove_tree(name, &mut progress).map(|count| *removed = so_far + count).at(place);
        }
        let mut removal = Removal { deletion: self, removed };
        if stat.is_dir() {
            return descend_in(context, folder, name, place, &mut removal);
        }
        removal.file(file).map(drop)
    }

    /// The path below the top of a file of the target.
    fn path_of<'p>(&self, place: &'p Place) -> &'p [u8] {
        let path = &place.path[self.top.path.len()..];
        path.strip_prefix(b"/").unwrap_or(path)
    }
}

/// The removal of what the source has not, file by file. What is excluded keeps the directories that it is in.
struct Removal<'a> {
    deletion: &'a Deletion<'a>,
    removed: &'a mut u64,
}

impl Removal<'_> {
    fn tell(&mut self, file: &Visited<'_, '_>) -> Result<bool> {
        *self.removed += 1;
        if let Some(tell) = self.deletion.tell {
            tell(self.deletion.path_of(file.place), file.stat.is_dir())?;
        }
        Ok(true)
    }
}

impl Visit for Removal<'_> {
    fn enter(&mut self, directory: &Visited<'_, '_>) -> Result<bool> {
        Ok(!self.deletion.excludes.has(self.deletion.path_of(directory.place), true))
    }

    fn leave(&mut self, directory: &Visited<'_, '_>, is_all: bool) -> Result<bool> {
        if !is_all {
            return Ok(false);
        }
        if !self.deletion.is_dry {
            match directory.folder.rmdir(directory.name) {
                // Somebody has made a file in it since it was listed.
                Err(Error::Refused(Errno::NOTEMPTY)) => return Ok(false),
                removed => removed.at(directory.place)?,
            }
        }
        self.tell(directory)
    }

    fn file(&mut self, file: &Visited<'_, '_>) -> Result<bool> {
        if self.deletion.excludes.has(self.deletion.path_of(file.place), false) {
            return Ok(false);
        }
        if !self.deletion.is_dry {
            file.folder.unlink(file.name).at(file.place)?;
        }
        self.tell(file)
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
    use myriad_engine::{Fs, OpenOptions, RenameMode, Session};
    use std::cell::Cell;

    const DIRECTORIES: u32 = 8;

    /// A directory of the target went to make way for a file that could then not be read.
    #[test]
    fn what_cannot_be_read_takes_no_place() {
        let open = |path: &str| rustix::fs::open(path, READ_NAMES, Mode::empty()).unwrap();
        let process = open("/proc/self");
        assert!(is_readable(&process, b"status", FileType::RegularFile));
        assert!(is_readable(&process, b"fd", FileType::Directory));
        // Nothing is mapped at address 0: reading it is an I/O error.
        assert!(!is_readable(&process, b"mem", FileType::RegularFile));
        assert!(!is_readable(&process, b"none", FileType::Directory));
        assert!(is_readable(&process, b"none", FileType::Symlink));
    }

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

    /// The directories of the target were gone into by their paths, and a link in the place of one led to another's files.
    #[test]
    fn a_link_in_the_place_of_a_directory_is_not_followed() {
        let volume = delete(&Excludes::default(), |_, session| {
            session.mkdir("/victim", 0o755).unwrap();
            put(session, "/victim/kept");
            put(session, "/victim/precious");
            for number in 0..DIRECTORIES {
                let (path, moved) = (format!("/{number}"), format!("/{number}-moved"));
                session.rename(&path, &moved, RenameMode::NoReplace).unwrap();
                session.symlink(b"/victim", &path).unwrap();
            }
        });
        assert!(volume.session().lstat("/victim/precious").is_ok());
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
