//! `rm`: removing files and trees.

use crate::ask::Asker;
use crate::change::{Changes, TellArgs};
use crate::context::Context;
use crate::failure::{At, Failure, has_wildcards};
use crate::progress::Progress;
use crate::show::mode;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, ChangeArgs, Opened, Place, Visit, Visited, Volumes, descend};
use anyhow::Result;
use myriad_engine::{Errno, Error, FileType, Stat};

/// More operands than this are asked about by `-I`.
const MANY: usize = 3;

#[derive(clap::Args)]
pub struct Rm {
    /// Remove directories with all that is below them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Say nothing of files that do not exist, and never ask; the last of -f, -i and -I counts
    #[arg(short, long, overrides_with_all = ["ask", "ask_once", "interactive"])]
    force: bool,
    /// Ask before each file
    #[arg(short = 'i', overrides_with_all = ["force", "ask_once", "interactive"])]
    ask: bool,
    /// Ask once, before more than three files or trees are removed
    #[arg(short = 'I', overrides_with_all = ["force", "ask", "interactive"])]
    ask_once: bool,
    /// When to ask; always, if no WHEN is given
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always",
        overrides_with_all = ["force", "ask", "ask_once"])]
    interactive: Option<When>,
    /// Remove directories that are empty
    #[arg(short, long)]
    dir: bool,
    /// Taken for the sake of scripts; what is mounted inside a volume is never gone into
    #[arg(long)]
    one_file_system: bool,
    /// Taken for the sake of scripts; the root of a volume is never removed
    #[arg(long)]
    preserve_root: bool,
    #[command(flatten)]
    tell: TellArgs,
    /// Files to remove
    #[arg(required_unless_present = "force", value_name = "IMAGE:/path", value_parser = volume::place())]
    files: Vec<Place>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    #[value(alias = "no", alias = "none")]
    Never,
    Once,
    #[value(alias = "yes")]
    Always,
}

impl Command for Rm {
    const NAME: &'static str = "rm";
    const ABOUT: &'static str = "Remove files and directories";
    const DETAILS: &'static str = "Without -i or -I it never asks. An answer that begins with y is a yes, and all else, the end of \
        the input too, a no. The root of a volume cannot be removed. Interrupted, it leaves what it has not yet removed as it was.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad rm vol.img:/tmp/a vol.img:/tmp/b", "removes two files"),
        ("myriad rm -rf vol.img:/build", "removes a tree, if it is there"),
        ("myriad rm -ri vol.img:/old", "removes of a tree what is agreed to"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let changes = Changes::new(context, Self::NAME, self.tell);
        let asker = Asker::default();
        if self.when() == When::Once && (self.files.len() > MANY || self.recursive && !self.files.is_empty()) {
            let count = crate::show::name::count(self.files.len() as u64, "argument");
            let how = if self.recursive { " recursively" } else { "" };
            if !asker.ask(context, &format!("rm: remove {count}{how}"))? {
                return changes.finish(Ok(()));
            }
        }
        let asks = self.when() == When::Always;
        // A line that is drawn again and again would hide the questions.
        let progress = (!asks && changes.is_silent()).then(|| context.progress("removing"));
        let result = Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let asker = asks.then_some(&asker);
            let mut work = Removing { context, changes: &changes, asker, progress, removed: 0 };
            for file in &self.files {
                context.check()?;
                let result = volumes.get(&file.image).and_then(|volume| self.remove(&mut work, &volume, file));
                context.tolerate(result)?;
            }
            Ok(())
        });
        changes.finish(result)
    }
}

impl Rm {
    fn when(&self) -> When {
        match (self.ask, self.ask_once) {
            (true, _) => When::Always,
            (_, true) => When::Once,
            _ => self.interactive.unwrap_or(When::Never),
        }
    }

    fn remove(&self, work: &mut Removing<'_>, volume: &Opened, place: &Place) -> Result<()> {
        if place.is_root() {
            return Err(Failure::new(place, "the root of the volume cannot be removed", "name what is below it").into());
        }
        let (above, name) = place.split();
        if name == b"." {
            let what = "a directory cannot be removed as `.` or `..`";
            return Err(Failure::new(place, what, "give it its name").into());
        }
        let tree = volume.tree();
        let stat = match tree.lstat(&place.path) {
            // Of a pattern that no shell has replaced, -f tells: whoever wrote it meant files that are there.
            Err(Error::Refused(Errno::NOENT | Errno::NOTDIR)) if self.force && !has_wildcards(&place.path) => {
                return Ok(());
            }
            result => result.at(place)?,
        };
        if stat.is_dir()
            && place.path.ends_with(b"/")
            && !tree.folder(&above.path).and_then(|folder| folder.lstat(name)).at(place)?.is_dir()
        {
            let next = "without the slash the link is removed";
            return Err(Failure::new(place, "a symbolic link to a directory, not a directory", next).into());
        }
        if !stat.is_dir() {
            if work.agrees("remove", place, &stat)? {
                tree.unlink(&place.path).at(place)?;
                work.tell(place, &stat)?;
            }
        } else if self.recursive && (work.asker.is_some() || !work.changes.is_silent()) {
            descend(work.context, tree, place, false, work)?;
        } else if self.recursive {
            let before = work.removed;
            let removed = tree.remove_tree(&place.path, &mut |count| {
                work.show(before + count);
                work.context.check().is_ok()
            });
            match removed {
                Ok(count) => {
                    work.removed += count;
                    work.show(work.removed);
                }
                Err(error @ Error::Cancelled) => return Err(error).at(place),
                // It ends at what cannot go; this names that, and removes the rest.
                Err(_) => descend(work.context, tree, place, false, work)?,
            }
        } else if self.dir {
            if work.agrees("remove", place, &stat)? {
                tree.folder(&above.path).and_then(|folder| folder.rmdir(name)).at(place)?;
                work.tell(place, &stat)?;
            }
        } else {
            return Err(Failure::new(place, "a directory", "myriad rm -r removes it and all below it").into());
        }
        Ok(())
    }
}

struct Removing<'a> {
    context: &'a Context,
    changes: &'a Changes<'a>,
    /// If each file is asked about.
    asker: Option<&'a Asker>,
    /// If nothing else is said.
    progress: Option<Progress>,
    removed: u64,
}

impl Removing<'_> {
    fn agrees(&self, what: &str, place: &Place, stat: &Stat) -> Result<bool> {
        let Some(asker) = self.asker else { return Ok(true) };
        asker.ask(self.context, &format!("rm: {what} {} {}", mode::described(stat), place.quoted()))
    }

    fn show(&self, removed: u64) {
        if let Some(progress) = &self.progress {
            progress.set(removed);
        }
    }

    fn tell(&mut self, place: &Place, stat: &Stat) -> Result<()> {
        self.removed += 1;
        self.show(self.removed);
        let directory = if stat.is_dir() { "directory " } else { "" };
        let words = || format!("removed {directory}{}", place.quoted());
        self.changes.tell(place, "removed", words, |fields| {
            fields.insert("type".into(), mode::json_name(stat.file_type()).into());
        })
    }
}

impl Visit for Removing<'_> {
    fn enter(&mut self, directory: &Visited<'_, '_>) -> Result<bool> {
        let Some(asker) = self.asker else { return Ok(true) };
        let folder = directory.folder.folder(directory.name).at(directory.place)?;
        // Of an empty one it is enough to ask whether it is to go.
        if folder.names().at(directory.place)?.next().is_none() {
            return Ok(true);
        }
        let place = directory.place.quoted();
        asker.ask(self.context, &format!("rm: descend into {} {place}", mode::name(FileType::Directory)))
    }

    fn leave(&mut self, directory: &Visited<'_, '_>, is_all: bool) -> Result<bool> {
        if !is_all || !self.agrees("remove", directory.place, directory.stat)? {
            return Ok(false);
        }
        directory.folder.rmdir(directory.name).at(directory.place)?;
        self.tell(directory.place, directory.stat)?;
        Ok(true)
    }

    fn file(&mut self, file: &Visited<'_, '_>) -> Result<bool> {
        if !self.agrees("remove", file.place, file.stat)? {
            return Ok(false);
        }
        file.folder.unlink(file.name).at(file.place)?;
        self.tell(file.place, file.stat)?;
        Ok(true)
    }
}
