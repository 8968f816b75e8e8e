//! The walk of `find`, and the expression on every file of it.

use super::exec::{self, Batch, Exec};
use super::expression::{Action, Expression, Moment, Plan, Test};
use super::found::{Found, followed};
use super::print;
use crate::ask::Asker;
use crate::context::Context;
use crate::failure::{At, Failure, and_closed, host_error, image_name};
use crate::show::name::join;
use crate::show::owner::Owners;
use crate::volume::{Access, Folder, Opened, Place, Tree};
use anyhow::Result;
use myriad_engine::{Errno, Error, FileType, MountOptions, Stat, Time};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Files asked for at once: enough for lookups to overlap their waits.
const BATCH: usize = 256;

/// The volume that is searched, which may be closed between two files.
pub struct Searched {
    access: Access,
    options: MountOptions,
    open: Option<(PathBuf, Opened)>,
}

impl Searched {
    pub fn new(access: Access, options: MountOptions) -> Self {
        Self { access, options, open: None }
    }

    /// The volume in `image`. Nobody keeps what this returns while a command runs.
    pub fn get(&mut self, image: &Path) -> Result<Opened> {
        if let Some((path, volume)) = &self.open
            && path == image
        {
            return Ok(volume.clone());
        }
        self.close()?;
        let volume = Opened::open(image, self.access, &self.options)?;
        self.open = Some((image.to_owned(), volume.clone()));
        Ok(volume)
    }

    /// Closes what is open here, so that a command can have it.
    pub fn close(&mut self) -> Result<()> {
        self.open.take().map_or(Ok(()), |(_, volume)| volume.close())
    }
}

/// The inodes of the directories above a file.
struct Above {
    ino: u64,
    next: Option<Rc<Above>>,
}

/// A file ahead of the walk.
struct Ahead {
    below: Vec<u8>,
    stat: Stat,
    depth: usize,
    above: Option<Rc<Above>>,
    /// What is in the directory has been taken.
    is_left: bool,
}

impl Ahead {
    fn found<'a>(&'a self, start: &'a Place) -> Found<'a> {
        let path = join(&start.path, &self.below);
        let directory = self.above.as_ref().map(|above| above.ino);
        Found { start, path, below: &self.below, depth: self.depth, stat: &self.stat, directory }
    }
}

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    Stay,
    Places,
    Follow,
}

pub struct Search<'a> {
    pub context: &'a Context,
    pub plan: &'a Plan,
    pub links: Links,
    pub json: bool,
    pub now: Time,
    searched: Searched,
    owners: Owners,
    /// Files for each `-exec ... +`.
    batches: Vec<Batch>,
    asker: Asker,
    /// The directory in hand is not entered.
    prunes: bool,
    quits: bool,
}

impl<'a> Search<'a> {
    pub fn new(context: &'a Context, plan: &'a Plan, links: Links, json: bool, now: Time, searched: Searched) -> Self {
        let batches = (0..plan.batches).map(|_| Batch::default()).collect();
        Self {
            context,
            plan,
            links,
            json,
            now,
            searched,
            owners: Owners::default(),
            batches,
            asker: Asker::default(),
            prunes: false,
            quits: false,
        }
    }

    /// Puts the times and files that tests compare with in the place of their names.
    pub fn resolve(&mut self, expression: &mut Expression) -> Result<()> {
        let follows = self.links != Links::Stay;
        expression.each_test(&mut |test| {
            match test {
                Test::Newer(_, moment) => match moment {
                    Moment::At(_) => {}
                    Moment::Host(path, stamp) => {
                        let of = if follows { std::fs::metadata(&path) } else { std::fs::symlink_metadata(&path) };
                        let time = of.and_then(|metadata| stamp.of_host(&metadata)).map_err(|error| {
                            let next = "give a file of the host, or IMAGE:/path for one in a volume";
                            Failure::new(image_name(path), host_error(&error), next)
                        })?;
                        *moment = Moment::At(time);
                    }
                    Moment::Place(place, stamp) => {
                        let volume = self.searched.get(&place.image)?;
                        *moment = Moment::At(stamp.of(&look(&volume, place, follows)?));
                    }
                },
                Test::SameFile { place, ino } => {
                    let volume = self.searched.get(&place.image)?;
                    *ino = Some(look(&volume, place, follows)?.ino);
                }
                _ => {}
            }
            Ok(())
        })
    }

    /// Searches below each place, runs what waits to be run, and closes the volume.
    pub fn run(&mut self, places: &[Place], expression: &Expression) -> Result<()> {
        let mut result = Ok(());
        for place in places {
            result = result.and_then(|()| {
                let searched = self.place(place, expression);
                self.context.tolerate(searched)
            });
            if self.quits {
                break;
            }
        }
        result = result.and_then(|()| {
            let mut waiting = Vec::new();
            expression.each_command(&mut |exec| waiting.extend(exec.many.map(|number| (number, exec.clone()))));
            waiting.into_iter().try_for_each(|(number, exec)| self.run_batch(&exec, number))
        });
        and_closed(result, self.searched.close())
    }

    fn place(&mut self, start: &Place, expression: &Expression) -> Result<()> {
        let volume = self.searched.get(&start.image)?;
        if self.plan.depth_max.is_some() || self.plan.steers || self.links != Links::Stay {
            let stat = look(&volume, start, self.links != Links::Stay)?;
            drop(volume);
            return self.descend(start, stat, expression);
        }
        // The engine's own walk reads ahead, but can leave nothing out.
        for (entry, count) in volume.tree().walk(&start.path).at(start)?.zip(1_u64..) {
            if count % 1024 == 0 {
                self.context.check()?;
            }
            let entry = match start.step(entry) {
                Ok(entry) => entry,
                Err(error) => {
                    self.context.tolerate(Err(error))?;
                    continue;
                }
            };
            let depth =
                if entry.path.is_empty() { 0 } else { 1 + entry.path.iter().filter(|&&byte| byte == b'/').count() };
            let path = join(&start.path, &entry.path);
            // What asks for the directory has the walk that can stand still.
            let found = Found { start, path, below: &entry.path, depth, stat: &entry.stat, directory: None };
            self.consider(&found, expression)?;
        }
        Ok(())
    }

    /// A walk that can leave directories out, take them last, follow links, and stand while the volume is closed.
    fn descend(&mut self, start: &Place, stat: Stat, expression: &Expression) -> Result<()> {
        let mut stack = vec![Ahead { below: Vec::new(), stat, depth: 0, above: None, is_left: false }];
        while let Some(mut ahead) = stack.pop() {
            self.context.check()?;
            let is_entered = ahead.stat.is_dir() && self.plan.depth_max.is_none_or(|max| ahead.depth < max);
            self.prunes = false;
            if ahead.is_left || !is_entered || !self.plan.is_depth_first {
                self.consider(&ahead.found(start), expression)?;
                if self.quits {
                    return Ok(());
                }
                if ahead.is_left || !is_entered || self.prunes {
                    continue;
                }
            }
            let children = self.children(start, &ahead);
            let first = stack.len();
            if self.plan.is_depth_first {
                ahead.is_left = true;
                stack.push(ahead);
            }
            let first = first + usize::from(self.plan.is_depth_first);
            let result = children.map(|children| stack.extend(children));
            stack[first..].reverse();
            self.context.tolerate(result)?;
        }
        Ok(())
    }

    /// What is in a directory; what of it cannot be read is reported.
    fn children(&mut self, start: &Place, directory: &Ahead) -> Result<Vec<Ahead>> {
        let place = start.below(&directory.below);
        let above = Rc::new(Above { ino: directory.stat.ino, next: directory.above.clone() });
        let volume = self.searched.get(&start.image)?;
        let tree = volume.tree();
        let mut children = Vec::new();
        let mut names = self.folder(tree, start, &directory.below, directory.stat.ino)?.names().at(&place)?;
        loop {
            let mut batch = Vec::new();
            let mut failed = None;
            for name in names.by_ref().take(BATCH) {
                match name.at(&place) {
                    Ok(name) => batch.push(name),
                    Err(error) => failed = Some(error),
                }
            }
            let is_last = batch.is_empty() || failed.is_some();
            let paths: Vec<Vec<u8>> = batch.iter().map(|name| join(&place.path, name)).collect();
            for ((name, path), stat) in batch.iter().zip(&paths).zip(tree.lstat_many(&paths)) {
                let stat = match stat {
                    // Gone while we walked.
                    Err(Error::Refused(Errno::NOENT)) => continue,
                    Ok(stat) if self.links == Links::Follow && stat.file_type() == FileType::Symlink => {
                        followed(&volume, path).map(|target| target.unwrap_or(stat))
                    }
                    other => other,
                };
                let child = place.below(name);
                let stat = match stat.at(&child) {
                    Ok(stat) => stat,
                    Err(error) => {
                        self.context.tolerate(Err(error))?;
                        continue;
                    }
                };
                if self.links == Links::Follow && stat.is_dir() && above.has(stat.ino) {
                    let what = "a link to a directory above it, which would be searched for ever";
                    let error = Failure::new(&child, what, "it is left out");
                    self.context.tolerate(Err(error.into()))?;
                    continue;
                }
                let below = join(&directory.below, name);
                let above = Some(Rc::clone(&above));
                children.push(Ahead { below, stat, depth: directory.depth + 1, above, is_left: false });
            }
            if let Some(error) = failed {
                self.context.tolerate(Err(error))?;
            }
            if is_last {
                return Ok(children);
            }
        }
    }

    /// The directory `below` the start that was found with the inode number `ino`. While we search, somebody may put another one, or
    /// a link that leads anywhere, in its place.
    fn folder<'t>(
        &self,
        tree: &'t dyn Tree,
        start: &Place,
        below: &[u8],
        ino: u64,
    ) -> Result<Box<dyn Folder<'t> + 't>> {
        let place = start.below(below);
        let folder = if self.links == Links::Follow {
            tree.folder(&place.path)
        } else {
            let mut names = below.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
            tree.folder(&start.path).and_then(|top| names.try_fold(top, |folder, name| folder.folder(name)))
        };
        let folder = folder.at(&place)?;
        if folder.lstat(b".").at(&place)?.ino != ino {
            let what = "another directory has taken the place of the one that was found";
            return Err(Failure::new(place, what, "it is left alone").into());
        }
        Ok(folder)
    }

    /// Evaluates the expression on a file.
    fn consider(&mut self, found: &Found, expression: &Expression) -> Result<()> {
        if found.depth < self.plan.depth_min {
            return Ok(());
        }
        match self.evaluate(expression, found) {
            Ok(_) => Ok(()),
            Err(error) => self.context.tolerate(Err(error)),
        }
    }

    fn evaluate(&mut self, expression: &Expression, found: &Found) -> Result<bool> {
        Ok(match expression {
            Expression::Test(test) => self.test(test, found)?,
            Expression::Action(action) => self.act(action, found)?,
            Expression::Not(inner) => !self.evaluate(inner, found)?,
            Expression::And(parts) => {
                for part in parts {
                    if self.quits || !self.evaluate(part, found)? {
                        return Ok(false);
                    }
                }
                true
            }
            Expression::Or(parts) => {
                for part in parts {
                    if self.quits || self.evaluate(part, found)? {
                        return Ok(true);
                    }
                }
                false
            }
            Expression::List(parts) => {
                let mut last = false;
                for part in parts {
                    if self.quits {
                        break;
                    }
                    last = self.evaluate(part, found)?;
                }
                last
            }
        })
    }

    fn test(&mut self, test: &Test, found: &Found) -> Result<bool> {
        let stat = found.stat;
        let file_type = stat.file_type();
        Ok(match test {
            Test::Always(holds) => *holds,
            Test::Name(pattern) => pattern.matches(found.name()),
            Test::Path(pattern) => pattern.matches(&found.path),
            Test::Regular(regular) => regular.matches(&found.path),
            Test::Target(pattern) => {
                file_type == FileType::Symlink && {
                    let volume = self.searched.get(&found.start.image)?;
                    pattern.matches(&volume.tree().readlink(&found.path).at(found.place())?)
                }
            }
            Test::Type(types) => types.holds(file_type),
            Test::TargetType(types) => {
                let volume = self.searched.get(&found.start.image)?;
                types.holds(if self.links == Links::Follow {
                    volume.lstat(&found.place())?.file_type()
                } else {
                    found.target_type(&volume).at(found.place())?.unwrap_or(FileType::Symlink)
                })
            }
            Test::Size(size) => size.holds(stat.size),
            // The size of a directory is that of its entries; not so on a mount, whose daemon shows more.
            Test::Empty if file_type == FileType::Directory => {
                let volume = self.searched.get(&found.start.image)?;
                is_empty(&volume, &found.place())?
            }
            Test::Empty => file_type == FileType::File && stat.size == 0,
            Test::Age(stamp, age) => age.holds(stamp.of(stat), self.now),
            Test::Newer(stamp, Moment::At(time)) => stamp.of(stat) > *time,
            Test::Newer(..) => unreachable!("moments are looked up before the search"),
            Test::Permissions(permissions) => permissions.hold(stat),
            Test::Executable => stat.mode & 0o111 != 0,
            Test::Uid(bound) => bound.holds(&stat.uid.into()),
            Test::Gid(bound) => bound.holds(&stat.gid.into()),
            Test::NoUser => !self.owners.knows_user(stat.uid),
            Test::NoGroup => !self.owners.knows_group(stat.gid),
            Test::Links(bound) => bound.holds(&stat.nlink.into()),
            Test::Inode(bound) => bound.holds(&stat.ino),
            Test::SameFile { place, ino } => *ino == Some(stat.ino) && place.is_in_image_of(found.start),
        })
    }

    fn act(&mut self, action: &Action, found: &Found) -> Result<bool> {
        match action {
            Action::Print if self.json => {
                let volume = self.searched.get(&found.start.image)?;
                print::json(&mut self.context.out(), found, &volume)?;
            }
            Action::Print => {
                let mut out = self.context.out();
                out.name(&found.bytes())?;
                writeln!(out)?;
            }
            Action::Print0 => {
                let mut out = self.context.out();
                out.write_all(&found.bytes())?;
                out.write_all(b"\0")?;
            }
            Action::Printf(format) => {
                let volume = self.searched.get(&found.start.image)?;
                let owners = &mut self.owners;
                let is_terminal = self.context.out().is_terminal();
                let line = format.fill(is_terminal, |directive| print::value(directive, found, &volume, owners))?;
                self.context.out().write_all(&line)?;
            }
            Action::Ls => {
                let volume = self.searched.get(&found.start.image)?;
                print::ls(&mut self.context.out(), found, &volume, &mut self.owners, self.now)?;
            }
            Action::Delete => return self.delete(found),
            Action::Exec(exec) => return self.execute(exec, found),
            Action::Prune => self.prunes = true,
            Action::Quit => self.quits = true,
        }
        Ok(true)
    }

    fn delete(&mut self, found: &Found) -> Result<bool> {
        // It cannot go, and find(1) passes over `.` too.
        if found.place().is_root() {
            return Ok(true);
        }
        let volume = self.searched.get(&found.start.image)?;
        let gone = self.remove(volume.tree(), found);
        let is_gone = gone.is_ok();
        self.context.tolerate(gone)?;
        Ok(is_gone)
    }

    /// What goes is the name that was found, so never what a link leads to.
    fn remove(&self, tree: &dyn Tree, found: &Found) -> Result<()> {
        let place = found.place();
        let Some(directory) = found.directory else {
            let is_dir = found.stat.is_dir() && tree.lstat(&place.path).at(&place)?.is_dir();
            let gone = if is_dir { tree.rmdir(&place.path) } else { tree.unlink(&place.path) };
            return gone.at(place);
        };
        let above = &found.below[..found.below.len() - found.name().len()];
        let above = above.strip_suffix(b"/").unwrap_or(above);
        let folder = self.folder(tree, found.start, above, directory)?;
        let is_dir = found.stat.is_dir() && folder.lstat(found.name()).at(&place)?.is_dir();
        let gone = if is_dir { folder.rmdir(found.name()) } else { folder.unlink(found.name()) };
        gone.at(place)
    }

    fn execute(&mut self, exec: &Exec, found: &Found) -> Result<bool> {
        let place = found.bytes();
        if let Some(number) = exec.many {
            if self.batches[number].add(&place) {
                self.run_batch(exec, number)?;
            }
            return Ok(true);
        }
        let words = exec.words_for(&place);
        if exec.asks && !exec::is_wanted(self.context, &self.asker, &words)? {
            return Ok(false);
        }
        self.searched.close()?;
        exec::run(self.context, &words, !exec.asks)
    }

    fn run_batch(&mut self, exec: &Exec, number: usize) -> Result<()> {
        let places = self.batches[number].take();
        if places.is_empty() {
            return Ok(());
        }
        self.searched.close()?;
        if !exec::run(self.context, &exec.words_for_all(places), true)? {
            self.context.count_error();
        }
        Ok(())
    }
}

impl Above {
    fn has(&self, ino: u64) -> bool {
        let mut next = Some(self);
        while let Some(above) = next {
            if above.ino == ino {
                return true;
            }
            next = above.next.as_deref();
        }
        false
    }
}

impl Drop for Above {
    /// Not by recursion: trees may be deeper than the stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut above) = next.and_then(Rc::into_inner) {
            next = above.next.take();
        }
    }
}

/// Attributes of a place; of what a last symbolic link leads to if that is asked for and it leads anywhere.
fn look(volume: &Opened, place: &Place, follows: bool) -> Result<Stat> {
    let stat = volume.lstat(place)?;
    let target = if follows { followed(volume, &place.path).at(place)? } else { None };
    Ok(target.unwrap_or(stat))
}

fn is_empty(volume: &Opened, place: &Place) -> Result<bool> {
    Ok(volume.tree().names(&place.path).at(place)?.next().transpose().at(place)?.is_none())
}
