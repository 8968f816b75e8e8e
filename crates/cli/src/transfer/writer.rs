//! Sink: makes the files of a transfer in a target, a volume or a file system of the host.
//!
//! Invariants
//!   1. Everything made is below the directory where the writer began: paths are taken one name at a time, and a name
//!      that is a symbolic link is no directory.
//!   2. What was there is there until something whole takes its place: a replacement is made under another name, then
//!      renamed.
//!   3. A directory gets its times, owner and attributes when it is left, after its content; all that are open are left
//!      at the end, also after an interruption.
//!   4. Where modes are kept, nothing new has an ACL that the source has not, though its directory has a default ACL.

use super::acl;
use super::batch::{Batch, Body, Entry, Meta};
use super::existing::{Existing, Rules};
use super::holes::{Holes, has_zeros, write_sparsely, write_zeros};
use super::link::Link;
use super::path;
use super::run::{Fault, Outcome, Sink};
use super::target::{Attrs, Found, Keep, Owner, Target};
use crate::failure::{At, Failure, errno_text};
use crate::show::size;
use myriad_engine::{Errno, Error, FileType};
use std::collections::HashMap;

/// First part of names that replacements have while they are made.
const TEMPORARY: &str = ".myriad-new-";

/// A directory from where the writer began down to where it is.
struct Frame<D> {
    dir: D,
    /// Length of its path.
    end: usize,
    /// The group that it gives to what is made in it.
    group: Option<u32>,
    /// What is made in it gets an ACL.
    hands_down_acl: bool,
    /// It was not there before.
    is_new: bool,
    leave: Leave,
}

/// What to do when a directory is left.
enum Leave {
    Nothing,
    Finish { attrs: Attrs, xattrs: Vec<u8> },
}

/// The file whose data is coming.
struct Open<F> {
    file: F,
    size: u64,
    attrs: Attrs,
    xattrs: Vec<u8>,
    name: Vec<u8>,
    /// Where it is made, if it is to have its name only when it is whole.
    temporary: Option<Vec<u8>>,
    /// It is to take the place of something.
    is_replacement: bool,
    /// The name that the other is to have then.
    backup: Option<Vec<u8>>,
    /// Where the next data begins if there is no hole before it.
    written: u64,
}

pub struct Writer<'a, T: Target> {
    target: T,
    keep: Keep,
    rules: Rules<'a>,
    /// Name of the beginning of the transfer in the first directory; `None`: it is that directory.
    base: Option<Vec<u8>>,
    /// Path of the last frame.
    current: Vec<u8>,
    frames: Vec<Frame<T::Dir>>,
    open: Option<Open<T::File>>,
    /// Directories that have their attributes and may be entered again, by inode, and whether they are new; for archives only.
    finished: Option<HashMap<u64, bool>>,
    temporaries: u64,
    /// The name under which what the last entry replaced is kept.
    backup: Option<Vec<u8>>,
    /// What was wrong with directories that were left: no fault of the entry in hand.
    belated: Vec<anyhow::Error>,
}

impl<'a, T: Target> Writer<'a, T> {
    pub fn new(
        target: T,
        top: T::Dir,
        base: Option<Vec<u8>>,
        keep: Keep,
        rules: impl Into<Rules<'a>>,
        is_unordered: bool,
    ) -> Self {
        let (group, hands_down_acl) = (given_group(&target, &top, keep), target.hands_down_acl(&top));
        Self {
            target,
            keep,
            rules: rules.into(),
            base,
            current: Vec::new(),
            frames: vec![Frame { dir: top, end: 0, group, hands_down_acl, is_new: false, leave: Leave::Nothing }],
            open: None,
            finished: is_unordered.then(HashMap::new),
            temporaries: 0,
            backup: None,
            belated: Vec::new(),
        }
    }

    /// The path in the first directory.
    fn full(&self, path: &[u8]) -> Vec<u8> {
        match &self.base {
            Some(base) => crate::show::name::join(base, path),
            None => path.to_vec(),
        }
    }

    fn top(&self) -> &T::Dir {
        &self.last_frame().dir
    }

    fn last_frame(&self) -> &Frame<T::Dir> {
        self.frames.last().expect("the first frame stays")
    }

    /// Goes to a directory, which need not exist.
    fn enter(&mut self, directory: &[u8]) -> Result<(), Fault> {
        if self.current == directory {
            return Ok(());
        }
        while !is_below(directory, &self.current) {
            self.leave()?;
        }
        let mut rest = &directory[self.current.len()..];
        while !rest.is_empty() {
            rest = rest.strip_prefix(b"/").unwrap_or(rest);
            let name = rest.split(|&byte| byte == b'/').next().expect("split gives one part at least");
            rest = &rest[name.len()..];
            let (dir, is_new, leave) = match self.target.open_dir(self.top(), name) {
                Ok(dir) => {
                    let (is_new, leave) = self.reentered(&dir);
                    (dir, is_new, leave)
                }
                // Archives may leave directories out.
                Err(Error::Refused(Errno::NOENT)) => {
                    let made = self.make_dir(name);
                    let attrs = Attrs { mode: Some(0o755 & !self.keep.modes.mask()), ..Attrs::default() };
                    let made = made.map_err(|error| self.fault(directory, error))?;
                    (made, true, Leave::Finish { attrs, xattrs: Vec::new() })
                }
                Err(error) => return Err(self.fault(directory, error)),
            };
            self.push(dir, name, is_new, leave);
        }
        Ok(())
    }

    fn push(&mut self, dir: T::Dir, name: &[u8], is_new: bool, leave: Leave) {
        if !self.current.is_empty() {
            self.current.push(b'/');
        }
        self.current.extend_from_slice(name);
        let (group, hands_down_acl) = (given_group(&self.target, &dir, self.keep), self.target.hands_down_acl(&dir));
        self.frames.push(Frame { dir, end: self.current.len(), group, hands_down_acl, is_new, leave });
    }

    /// Makes a directory. What is then made in it is not to have the ACLs either that it does not keep.
    fn make_dir(&self, name: &[u8]) -> Result<T::Dir, Error> {
        let frame = self.last_frame();
        let dir = self.target.make_dir(&frame.dir, name)?;
        if frame.hands_down_acl && self.keep.keeps_modes() {
            self.target.drop_acls(&dir)?;
        }
        Ok(dir)
    }

    /// Whether a directory that is there is new all the same, and what it gets when it is left: one that got its times and is entered again
    /// must get them again.
    fn reentered(&self, dir: &T::Dir) -> (bool, Leave) {
        let Some(finished) = &self.finished else { return (false, Leave::Nothing) };
        let Ok(found) = self.target.stat_dir(dir) else { return (false, Leave::Nothing) };
        let Some(&is_new) = finished.get(&found.ino) else { return (false, Leave::Nothing) };
        let attrs = Attrs { times: Some((found.atime, found.mtime)), ..Attrs::default() };
        (is_new, Leave::Finish { attrs, xattrs: Vec::new() })
    }

    /// Leaves the last directory. An error is one that ends the work.
    fn leave(&mut self) -> Result<(), Fault> {
        let frame = self.frames.pop().expect("the first one is never left");
        let result = self.settle(&frame);
        let result = result.or_else(|error| match self.fault(&self.current, error) {
            Fault::Entry(error) => {
                self.belated.push(error);
                Ok(())
            }
            fatal => Err(fatal),
        });
        self.current.truncate(self.frames.last().map_or(0, |parent| parent.end));
        result
    }

    fn settle(&mut self, frame: &Frame<T::Dir>) -> Result<(), Error> {
        let Leave::Finish { attrs, xattrs } = &frame.leave else { return Ok(()) };
        if self.rules.is_dry {
            return Ok(());
        }
        self.target.finish_dir(&frame.dir, attrs, xattrs)?;
        if let Some(finished) = &mut self.finished {
            finished.insert(self.target.stat_dir(&frame.dir)?.ino, frame.is_new);
        }
        Ok(())
    }

    /// An error about a path in the first directory, and whether it concerns more than this file.
    fn fault(&self, path: &[u8], error: Error) -> Fault {
        let is_fatal = !matches!(error, Error::Refused(errno) if !FATAL.contains(&errno));
        let place = self.target.place(path);
        let error = match error {
            Error::Refused(Errno::NOTDIR | Errno::LOOP) => {
                Failure::new(place, "is there, and is not a directory", "remove it, or choose another target").into()
            }
            Error::Refused(Errno::XDEV) => {
                let next = "unmount that first, or choose another target";
                Failure::new(place, "something else is mounted there, or above it", next).into()
            }
            error => match (&error, self.target.room()) {
                (Error::Refused(Errno::NOSPC), Some(room)) => {
                    let what = format!("{}: {} are left in the volume", errno_text(Errno::NOSPC), size::exact(room));
                    Failure::new(place, what, "remove files, or copy all of it to a larger volume").into()
                }
                (&Error::Refused(errno @ (Errno::NOSPC | Errno::DQUOT)), None) => {
                    let next = "make room there, or choose another target";
                    Failure::new(place, errno_text(errno), next).into()
                }
                _ => Err::<(), _>(error).at(place).expect_err("an error stays one"),
            },
        };
        if is_fatal { Fault::Fatal(error) } else { Fault::Entry(error) }
    }

    fn directory(&mut self, path: &[u8], meta: &Meta, xattrs: &[u8]) -> Result<Outcome, Fault> {
        let keeps = |writer: &Self| writer.rules.existing == Existing::Skip || !writer.keep.changes_old();
        if path.is_empty() {
            self.enter(b"")?;
            if keeps(self) {
                return Ok(Outcome::Skipped);
            }
            let attrs = self.keep.attrs_of_old(meta);
            let outcome = self.merged(meta, &attrs);
            self.frames[0].leave = Leave::Finish { attrs, xattrs: xattrs.to_vec() };
            return Ok(outcome);
        }
        let (parent, name) = path::split(path);
        // Archives may name a directory after what is in it.
        if is_below(&self.current, path) {
            self.enter(path)?;
        } else {
            self.enter(parent)?;
            let (dir, is_new, leave) = match self.make_dir(name) {
                Ok(dir) => (dir, true, Leave::Nothing),
                Err(Error::Refused(Errno::EXIST)) => {
                    let dir = self.target.open_dir(self.top(), name).map_err(|error| self.fault(path, error))?;
                    let (is_new, leave) = self.reentered(&dir);
                    (dir, is_new, leave)
                }
                Err(error) => return Err(self.fault(path, error)),
            };
            self.push(dir, name, is_new, leave);
        }
        let Frame { is_new, group, .. } = *self.last_frame();
        if !is_new && keeps(self) {
            return Ok(Outcome::Skipped);
        }
        let attrs = if is_new { self.keep.attrs_of_new(meta, group) } else { self.keep.attrs_of_old(meta) };
        let outcome = if is_new { Outcome::Done } else { self.merged(meta, &attrs) };
        let frame = self.frames.last_mut().expect("the first frame stays");
        frame.leave = Leave::Finish { attrs, xattrs: xattrs.to_vec() };
        Ok(outcome)
    }

    /// What becomes of the directory that was entered, which was there. One in sync gets its attributes all the same when
    /// it is left, for what happens in it meanwhile changes its times; but it is not counted.
    fn merged(&self, meta: &Meta, attrs: &Attrs) -> Outcome {
        let is_spared = |found: Found| self.rules.existing.spares(&found, meta, attrs);
        match self.rules.existing {
            Existing::Differing if self.target.stat_dir(self.top()).is_ok_and(is_spared) => Outcome::Same,
            _ => Outcome::Merged,
        }
    }

    /// Makes something that is not a directory, by `make`, which gets the name to make it under, and the attributes; an
    /// existing file is treated as the user wants.
    fn place(
        &mut self,
        path: &[u8],
        meta: &Meta,
        kind: Kind<'_>,
        make: impl Fn(&T, &T::Dir, &[u8], &Attrs) -> Result<Option<T::File>, Error>,
    ) -> Result<Placed<T::File>, Fault> {
        let (parent, name) = path::split(path);
        self.enter(parent)?;
        let frame = self.last_frame();
        let mut attrs = self.keep.attrs_of_new(meta, frame.group);
        attrs.drops_acl = frame.hands_down_acl && self.keep.keeps_modes();
        // A file that a killed run had begun would be newer than its source: it gets its name when it is whole.
        let is_held_back =
            self.rules.existing == Existing::Older && kind == Kind::Plain && meta.file_type() == FileType::File;
        let made = match is_held_back {
            true => Err(Error::Refused(Errno::EXIST)),
            false => make(&self.target, self.top(), name, &attrs),
        };
        match made {
            Ok(file) => {
                let (is_replacement, is_rewritten) = (false, false);
                return Ok(Placed::Made { file, attrs, temporary: None, backup: None, is_replacement, is_rewritten });
            }
            Err(Error::Refused(Errno::EXIST)) => {}
            Err(error) => return Err(self.fault(path, error)),
        }
        if self.rules.existing == Existing::Skip {
            return Ok(Placed::Skipped);
        }
        let found = self.target.find(self.top(), name).map_err(|error| self.fault(path, error))?;
        let may_stay = match kind {
            _ if self.rules.existing != Existing::Differing => true,
            Kind::Plain => true,
            Kind::Symlink(target) => self.target.leads_to(self.top(), name, target),
            // A name of another file than the one it should be is never what would come.
            Kind::HardLink => false,
        };
        if may_stay && found.is_some_and(|found| self.rules.existing.spares(&found, meta, &attrs)) {
            return Ok(Placed::Spared);
        }
        let is_replacement = found.is_some() || !is_held_back;
        let mut backup = None;
        if is_replacement {
            self.check_room_for(path, meta.file_type(), found)?;
            let names = || self.target.names(self.top());
            backup = self.rules.backups.name_for(name, names).map_err(|error| self.fault(path, error))?;
            if backup.is_none() {
                self.inherit(&mut attrs, meta, name, found);
            }
        }
        loop {
            self.temporaries += 1;
            let temporary = format!("{TEMPORARY}{}-{}", std::process::id(), self.temporaries).into_bytes();
            self.target.set_replacing(is_replacement);
            let made = make(&self.target, self.top(), &temporary, &attrs);
            self.target.set_replacing(false);
            let is_rewritten = kind != Kind::HardLink && is_file(meta, found);
            match made {
                Ok(None) => {
                    self.replace(path, &temporary, name, backup.as_deref())?;
                    let temporary = None;
                    return Ok(Placed::Made { file: None, attrs, temporary, backup, is_replacement, is_rewritten });
                }
                Ok(file) => {
                    let temporary = Some(temporary);
                    return Ok(Placed::Made { file, attrs, temporary, backup, is_replacement, is_rewritten });
                }
                Err(Error::Refused(Errno::EXIST)) => {}
                Err(error) => return Err(self.fault(path, error)),
            }
        }
    }

    /// Refuses if the file at a name may not make room, or the user does not want it to.
    fn check_room_for(&self, path: &[u8], file_type: FileType, found: Option<Found>) -> Result<(), Fault> {
        let name = path::split(path).1;
        let place = self.target.place(path);
        if self.rules.existing == Existing::Refuse {
            let next = match self.rules.linking {
                Some(_) => "give -f to replace it, or -n to leave it",
                None => {
                    "give --update, --replace or --skip-existing, which keeps incomplete files too, or choose another target"
                }
            };
            return Err(Fault::Entry(Failure::new(place, "is there already", next).into()));
        }
        if found.is_some_and(|found| found.file_type == FileType::Directory) {
            let next = "remove it first: a directory is never replaced by what is none";
            return Err(Fault::Entry(Failure::new(place, "is a directory", next).into()));
        }
        let special = |found: Found| match found.file_type {
            FileType::CharDevice | FileType::BlockDevice => Some("is a device node"),
            FileType::Fifo => Some("is a pipe"),
            FileType::Socket => Some("is a socket"),
            FileType::File | FileType::Directory | FileType::Symlink => None,
        };
        let makes_room = self.rules.removes || self.rules.backups.is_asked();
        let is_other = |found: &Found| found.file_type != file_type && !makes_room;
        if let Some(what) = found.filter(is_other).and_then(special) {
            // What others read and write there would never reach them again.
            let next = "remove it first: it is replaced by its like only";
            return Err(Fault::Entry(Failure::new(place, what, next).into()));
        }
        self.target.check_replaced(self.top(), name, &place).map_err(Fault::Entry)?;
        match &self.rules.ask {
            Some(ask) if !ask(&place).map_err(Fault::Fatal)? => Err(Fault::Declined),
            _ => Ok(()),
        }
    }

    /// A file that is written anew keeps its mode and owner, as far as those of the source are not to be kept. It loses its ACL, and no user or group
    /// gets more than they had by it.
    fn inherit(&self, attrs: &mut Attrs, meta: &Meta, name: &[u8], found: Option<Found>) {
        let Some(found) = found.filter(|_| is_file(meta, found) && !self.rules.removes) else { return };
        attrs.drops_acl = self.last_frame().hands_down_acl;
        if !self.keep.keeps_modes() {
            attrs.mode = Some(found.mode & 0o777);
            attrs.narrow(self.target.acl(self.top(), name).as_deref().and_then(acl::group_bits));
        }
        let owner = Some((found.uid, found.gid));
        match self.keep.owner {
            Some(Owner::AsSource | Owner::Set(..)) => {}
            Some(Owner::New(..)) => attrs.owner = owner,
            // Only root can have another one's file stay his.
            None if rustix::process::geteuid().is_root() => attrs.owner = owner,
            None => {}
        }
    }

    /// Of a file that stays: whether it looks like the one that was to come. It may be the part of it that a run has left which was
    /// killed; and further names that follow must not become names of another file.
    fn skipped(&self, path: &[u8], meta: &Meta) -> Outcome {
        let is_alike = |found: Found| {
            found.file_type == meta.file_type() && (found.size == meta.size || meta.file_type() != FileType::File)
        };
        match self.target.find(self.top(), path::split(path).1) {
            // A copy that does not keep times has its own.
            Ok(Some(found)) if is_alike(found) && !self.keep.times => Outcome::Alike,
            Ok(Some(found)) if is_alike(found) && found.mtime == meta.mtime => Outcome::Same,
            _ => Outcome::Skipped,
        }
    }

    /// Puts a replacement in its place; what has that gets the name `backup`, if it is to be kept.
    fn replace(&self, path: &[u8], temporary: &[u8], name: &[u8], backup: Option<&[u8]>) -> Result<(), Fault> {
        // Again: while the copy was made, somebody may have begun to use what is there.
        let checked = self.target.check_replaced(self.top(), name, &self.target.place(path)).map_err(Fault::Entry);
        let (target, top) = (&self.target, self.top());
        let replaced = checked.and_then(|()| {
            let moved = backup.map_or(Ok(()), |backup| target.rename(top, name, backup));
            let renamed = moved.and_then(|()| {
                target.rename(top, temporary, name).inspect_err(|_| {
                    // The error in hand says more than one about this: the file is there under its other name.
                    let _ = backup.map_or(Ok(()), |backup| target.rename(top, backup, name));
                })
            });
            renamed.map_err(|error| self.fault(path, error))
        });
        replaced.inspect_err(|_| {
            // It stays under its other name only if that cannot be removed either.
            let _ = self.target.unlink(self.top(), temporary);
        })
    }

    fn hard_link(&mut self, path: &[u8], source: &[u8], meta: &Meta) -> Result<Outcome, Fault> {
        let (parent, name) = path::split(path);
        self.enter(parent)?;
        let (directory, source_name) = path::split(source);
        let elsewhere = match directory == self.current {
            true => None,
            false => Some(self.resolve(directory).map_err(|error| self.fault(source, error))?),
        };
        let from = (elsewhere.as_ref().unwrap_or(self.top()), source_name);
        if self.rules.existing != Existing::Refuse {
            // Two names of one file already, as after an earlier run: renaming one to the other would do nothing.
            let id = |found: Option<Found>| found.map(|found| (found.device, found.ino));
            let there = self.target.find(self.top(), name).map_err(|error| self.fault(path, error))?;
            let source = self.target.find(from.0, from.1).map_err(|error| self.fault(source, error))?;
            if there.is_some() && id(there) == id(source) {
                return Ok(Outcome::Same);
            }
        }
        match self.target.link(from, (self.top(), name)) {
            Ok(()) => Ok(Outcome::Done),
            Err(Error::Refused(Errno::EXIST)) => self.link_over(path, elsewhere, source_name, meta),
            // The directory that it is to be in was just entered.
            Err(Error::Refused(Errno::NOENT)) => {
                let what = format!("would be a name of {}, which is not there", self.target.place(source));
                Err(Fault::Entry(Failure::new(self.target.place(path), what, "see whether the source has it").into()))
            }
            Err(error) => Err(self.fault(path, error)),
        }
    }

    /// A hard link at a name that is taken.
    fn link_over(
        &mut self,
        path: &[u8],
        elsewhere: Option<T::Dir>,
        source: &[u8],
        meta: &Meta,
    ) -> Result<Outcome, Fault> {
        let placed = self.place(path, meta, Kind::HardLink, |target, dir, name, _| {
            target.link((elsewhere.as_ref().unwrap_or(dir), source), (dir, name)).map(|()| None)
        })?;
        Ok(self.outcome(&placed, path, meta))
    }

    fn outcome(&self, placed: &Placed<T::File>, path: &[u8], meta: &Meta) -> Outcome {
        match placed {
            Placed::Made { backup: Some(_), .. } => Outcome::Done,
            Placed::Made { is_replacement: true, is_rewritten, .. }
                if self.rules.removes || !is_rewritten && self.rules.linking.is_none() =>
            {
                Outcome::Replaced
            }
            Placed::Made { .. } => Outcome::Done,
            Placed::Spared => Outcome::Same,
            Placed::Skipped => self.skipped(path, meta),
        }
    }

    /// A file whose zeros become holes.
    fn sparse(&mut self, path: &[u8], meta: &Meta, data: &[u8], xattrs: &[u8]) -> Result<Outcome, Fault> {
        let make = |target: &T, dir: &T::Dir, name: &[u8], _: &Attrs| target.make_file(dir, name).map(Some);
        let placed = self.place(path, meta, Kind::Plain, make)?;
        let outcome = self.outcome(&placed, path, meta);
        self.note_backup(&placed);
        if let Placed::Made { file: Some(file), attrs, temporary, backup, is_replacement, .. } = placed {
            let (name, xattrs) = (path::split(path).1.to_vec(), xattrs.to_vec());
            let size = meta.size;
            self.open = Some(Open { file, size, attrs, xattrs, name, temporary, is_replacement, backup, written: 0 });
            let written = self.data(0, data);
            if written.is_err() {
                self.spoil()?;
            }
            written.and_then(|()| self.end())?;
        }
        Ok(outcome)
    }

    /// A link to a file of the source, in the place of a copy.
    fn link_entry(&mut self, path: &[u8], link: &Link, meta: &Meta) -> Result<Outcome, Fault> {
        // What is there already may be the file itself.
        let is_there = std::cell::Cell::new(false);
        let placed = match link {
            Link::Hard(source, follow) => self.place(path, meta, Kind::HardLink, |target, dir, name, _| {
                is_there.set(!target.link_path(source, *follow, (dir, name))?);
                Ok(None)
            })?,
            Link::Symbolic(text) => {
                let meta = Meta { mode: FileType::Symlink.mode_bits() | 0o777, ..*meta };
                self.place(path, &meta, Kind::Symlink(text), |target, dir, name, attrs| {
                    target.make_symlink(dir, name, text, attrs, b"").map(|()| None)
                })?
            }
        };
        self.note_backup(&placed);
        Ok(if is_there.get() { Outcome::Same } else { self.outcome(&placed, path, meta) })
    }

    /// Remembers, for whoever tells of this entry, under which name what it replaced is kept.
    fn note_backup(&mut self, placed: &Placed<T::File>) {
        if let Placed::Made { backup, .. } = placed {
            self.backup.clone_from(backup);
        }
    }

    /// A file whose content was not read, because what is there seemed to be spared.
    fn unread(&mut self, path: &[u8], meta: &Meta) -> Result<Outcome, Fault> {
        let (parent, name) = path::split(path);
        self.enter(parent)?;
        let attrs = self.keep.attrs(meta);
        match self.target.find(self.top(), name).map_err(|error| self.fault(path, error))? {
            Some(_) if self.rules.existing == Existing::Skip => Ok(self.skipped(path, meta)),
            Some(found) if self.rules.existing.spares(&found, meta, &attrs) => Ok(Outcome::Same),
            _ => {
                let what = "changed after it was compared with its source";
                Err(Fault::Entry(Failure::new(self.target.place(path), what, "run it again").into()))
            }
        }
    }

    /// Opens a directory by its path, beside the frames.
    fn resolve(&self, directory: &[u8]) -> Result<T::Dir, Error> {
        let known = self.frames.iter().rev().find(|frame| is_below(directory, &self.current[..frame.end]));
        let known = known.expect("everything is below the first frame");
        let mut names = directory[known.end..].split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        names.try_fold(known.dir.clone(), |dir, name| self.target.open_dir(&dir, name))
    }
}

/// The group that what is made in a directory gets from it, unless all that is new has what the source has.
fn given_group<T: Target>(target: &T, dir: &T::Dir, keep: Keep) -> Option<u32> {
    keep.inherits().then(|| target.given_group(dir)).flatten()
}

/// Refusals that the next file would meet too.
const FATAL: &[Errno] = &[Errno::NOSPC, Errno::DQUOT, Errno::IO, Errno::ROFS, Errno::NOMEM];

enum Placed<F> {
    Made {
        file: Option<F>,
        attrs: Attrs,
        /// The name that it has until its data is all there.
        temporary: Option<Vec<u8>>,
        /// The name that what it replaces gets.
        backup: Option<Vec<u8>>,
        is_replacement: bool,
        /// It has content of its own, as what it replaces: one file was written anew.
        is_rewritten: bool,
    },
    /// What was there stays, and will do in its place.
    Spared,
    Skipped,
}

/// What is to be made, as far as it matters for what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'a> {
    Plain,
    /// With this target.
    Symlink(&'a [u8]),
    /// A further name of a file.
    HardLink,
}

/// Whether both are regular files.
fn is_file(meta: &Meta, found: Option<Found>) -> bool {
    meta.file_type() == FileType::File && found.is_some_and(|found| found.file_type == FileType::File)
}

/// Whether `path` is `directory` or below it.
fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

impl<T: Target> Sink for Writer<'_, T> {
    fn entry(&mut self, batch: &Batch, entry: &Entry) -> Result<Outcome, Fault> {
        let path = self.full(batch.get(entry.path));
        let meta = &entry.meta;
        let file_type = meta.file_type();
        let xattrs = self.keep.xattrs(batch.get(entry.xattrs));
        let xattrs = &xattrs[..];
        if path.is_empty() && file_type != FileType::Directory {
            let what = "a directory, whose place no file can take";
            return Err(Fault::Entry(Failure::new(self.target.place(b""), what, "name a file in it").into()));
        }
        self.backup = None;
        if let Some(linking) = self.rules.linking.as_ref().filter(|_| file_type != FileType::Directory) {
            let link = linking.of(batch.get(entry.path), &path);
            return self.link_entry(&path, &link, meta);
        }
        let placed = match &entry.body {
            Body::None if file_type == FileType::Directory => return self.directory(&path, meta, xattrs),
            Body::None => self.place(&path, meta, Kind::Plain, |target, dir, name, attrs| {
                target.make_node(dir, name, meta, attrs, xattrs).map(|()| None)
            })?,
            Body::Symlink(link) => {
                self.place(&path, meta, Kind::Symlink(batch.get(*link)), |target, dir, name, attrs| {
                    target.make_symlink(dir, name, batch.get(*link), attrs, xattrs).map(|()| None)
                })?
            }
            Body::HardLink(source) => {
                let source = self.full(batch.get(*source));
                return self.hard_link(&path, &source, meta);
            }
            Body::Whole(data) if self.rules.holes == Holes::Always && has_zeros(batch.get(*data)) => {
                return self.sparse(&path, meta, batch.get(*data), xattrs);
            }
            Body::Whole(data) => self.place(&path, meta, Kind::Plain, |target, dir, name, attrs| {
                target.make_whole(dir, name, batch.get(*data), attrs, xattrs).map(|()| None)
            })?,
            Body::Parts(_) => {
                self.place(&path, meta, Kind::Plain, |target, dir, name, _| target.make_file(dir, name).map(Some))?
            }
            Body::Unread if self.rules.is_dry => self.place(&path, meta, Kind::Plain, |target, dir, name, attrs| {
                target.make_whole(dir, name, b"", attrs, b"").map(|()| None)
            })?,
            Body::Unread => return self.unread(&path, meta),
        };
        let outcome = self.outcome(&placed, &path, meta);
        self.note_backup(&placed);
        if let Placed::Made { file: Some(file), attrs, temporary, backup, is_replacement, .. } = placed {
            let name = path::split(&path).1.to_vec();
            let xattrs = xattrs.to_vec();
            let size = meta.size;
            self.open = Some(Open { file, size, attrs, xattrs, name, temporary, is_replacement, backup, written: 0 });
        }
        Ok(outcome)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let open = self.open.as_ref().expect("data comes after its entry was taken");
        let written = match self.rules.holes {
            Holes::Auto => self.target.write(&open.file, offset, bytes),
            Holes::Always => write_sparsely(&self.target, &open.file, offset, bytes),
            Holes::Never => write_zeros(&self.target, &open.file, open.written..offset)
                .and_then(|()| self.target.write(&open.file, offset, bytes)),
        };
        written.map_err(|error| {
            let path = crate::show::name::join(&self.current, &open.name);
            self.fault(&path, error)
        })?;
        // A pipe does not say beforehand how much will come.
        let end = offset + bytes.len() as u64;
        let open = self.open.as_mut().expect("it was there a moment ago");
        open.written = end;
        open.size = open.size.max(end);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let open = self.open.take().expect("data comes after its entry");
        let Open { file, size, attrs, xattrs, name, temporary, is_replacement, backup, written } = open;
        let path = crate::show::name::join(&self.current, &name);
        self.target.set_replacing(is_replacement);
        let filled = match self.rules.holes {
            Holes::Never => write_zeros(&self.target, &file, written..size),
            Holes::Auto | Holes::Always => Ok(()),
        };
        let finished = filled.and_then(|()| self.target.finish_file(file, size, &attrs, &xattrs));
        self.target.set_replacing(false);
        if let Err(error) = finished {
            let _ = self.target.unlink(self.top(), temporary.as_deref().unwrap_or(&name));
            return Err(self.fault(&path, error));
        }
        match temporary {
            Some(temporary) => self.replace(&path, &temporary, &name, backup.as_deref()),
            None => Ok(()),
        }
    }

    fn spoil(&mut self) -> Result<(), Fault> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let name = open.temporary.unwrap_or(open.name);
        drop(open.file);
        // If even this fails, the volume or the host is in a state that the next error tells of.
        let _ = self.target.unlink(self.top(), &name);
        Ok(())
    }

    fn finish(&mut self, _: bool) -> Result<(), Fault> {
        self.spoil()?;
        let mut result = Ok(());
        while self.frames.len() > 1 {
            result = result.and(self.leave());
        }
        let first = self.frames.pop().expect("the first frame stays");
        let settled = self.settle(&first).map_err(|error| self.fault(b"", error));
        self.frames.push(Frame { leave: Leave::Nothing, ..first });
        // Who keeps modes keeps what they are with an ACL.
        let lost = self.target.lost();
        let acls = lost.acls.told("access control lists").filter(|_| self.keep.keeps_modes());
        let xattrs = lost.xattrs.told("extended attributes").filter(|_| self.keep.needs_xattrs);
        for (what, kept) in [(lost.owners.told("owners"), "owners"), (acls, "modes"), (xattrs, "extended attributes")] {
            let Some(what) = what else { continue };
            let next = format!("choose a target that has them, or do not keep {kept}");
            self.belated.push(Failure::new(self.target.place(b""), what, next).into());
        }
        result.and(settled)
    }

    fn backup(&self) -> Option<&[u8]> {
        self.backup.as_deref()
    }

    fn belated(&mut self) -> Vec<anyhow::Error> {
        std::mem::take(&mut self.belated)
    }

    fn lost(&self) -> Option<String> {
        self.target.lost().xattrs.told("extended attributes").filter(|_| !self.keep.needs_xattrs)
    }

    fn is_ready(&self) -> bool {
        self.open.is_some()
    }

    fn has(&self, path: &[u8]) -> bool {
        let path = self.full(path);
        let (parent, name) = path::split(&path);
        let found = self.resolve(parent).and_then(|dir| self.target.find(&dir, name));
        found.is_ok_and(|found| found.is_some())
    }
}
