//! `mv`: other names and other directories.

use crate::ask::Asker;
use crate::change::{Changes, TellArgs};
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::name::{self, put};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::place::PlaceError;
use crate::volume::{Access, BackupArgs, ChangeArgs, Guard, Opened, Place, Volumes, meant};
use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use myriad_engine::{Errno, Error, RenameMode, Stat};
use std::collections::HashMap;

#[derive(clap::Args)]
pub struct Mv {
    /// Never ask; the last of -f, -i and -n counts
    #[arg(short = 'f', overrides_with_all = ["interactive", "no_clobber"])]
    never_ask: bool,
    /// Ask before a file is replaced
    #[arg(short, long, overrides_with_all = ["never_ask", "no_clobber"])]
    interactive: bool,
    /// Leave a target that exists as it is
    #[arg(short, long, overrides_with_all = ["never_ask", "interactive"], conflicts_with_all = ["backup", "backup_plain", "suffix"])]
    no_clobber: bool,
    /// What to replace: `older` files only, if no WHICH is given
    #[arg(long, value_enum, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "older")]
    update: Option<Update>,
    /// As --update
    #[arg(short = 'u', conflicts_with = "update")]
    update_plain: bool,
    /// Exchange source and target, in one step
    #[arg(long, conflicts_with_all = ["no_clobber", "interactive", "update", "update_plain", "backup", "backup_plain", "suffix"])]
    exchange: bool,
    /// Move all files into this directory
    #[arg(short, long, value_name = "IMAGE:/path", value_parser = place(), conflicts_with_all = ["no_target_directory", "exchange"])]
    target_directory: Option<Place>,
    /// Replace a target that is an empty directory instead of moving into it
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// As -f, and replace a file though it is a volume; never one that is in use
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    backups: BackupArgs,
    #[command(flatten)]
    tell: TellArgs,
    /// Files to move, then, without -t, the new name or a directory that gets them
    #[arg(required = true, value_name = "IMAGE:/path", value_parser = place())]
    places: Vec<Place>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Update {
    /// Everything, as without the option
    All,
    /// Nothing, as -n
    None,
    /// Nothing, and a target that is there is an error
    NoneFail,
    /// Files that are older than what is moved there
    Older,
}

impl Command for Mv {
    const NAME: &'static str = "mv";
    const ABOUT: &'static str = "Rename files, or move them to another directory";
    const DETAILS: &'static str = "Each move is one atomic step: there is no moment at which the file has no name, or a \
        replaced target is half gone. Moving to another volume is copying: use myriad cp, then rm. A target is replaced \
        unasked without -i. An answer that begins with y is a yes, and all else, the end of the input too, a no.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad mv vol.img:/draft vol.img:/final", "renames a file, replacing what had the name"),
        ("myriad mv vol.img:/a vol.img:/b vol.img:/dir", "moves two files into a directory"),
        ("myriad mv -vn -t vol.img:/dir vol.img:/a", "moves a file unless there is one of its name, and says so"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let (target, sources) = match (&self.target_directory, self.places.split_last()) {
            (Some(directory), _) => (directory, &*self.places),
            (None, Some((target, sources))) if !sources.is_empty() => (target, sources),
            (None, _) => {
                let next = "name the new name or a directory after it, or before it with -t";
                return Err(Failure::usage(&self.places[0], "where is it to go?", next).into());
            }
        };
        for source in sources {
            if !source.is_in_image_of(target) {
                let what = format!("not on the same volume as {target}");
                return Err(
                    Failure::usage(source, what, "copy it with myriad cp, then remove it with myriad rm").into()
                );
            }
        }
        let changes = Changes::new(context, Self::NAME, self.tell);
        let result = Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let volume = volumes.get(&target.image)?;
            let is_dir = volume.tree().stat(&target.path).is_ok_and(|stat| stat.is_dir());
            let into = is_dir && !self.no_target_directory && !self.exchange;
            if (sources.len() > 1 || self.target_directory.is_some()) && !into {
                let next = "several files, and all with -t, can be moved to a directory only";
                return Err(Failure::usage(target, "not a directory", next).into());
            }
            let asker = Asker::default();
            let mut work =
                Moving { context, changes: &changes, volume: &volume, asker: &asker, into, made: HashMap::new() };
            for source in sources {
                context.check()?;
                context.tolerate(self.move_one(&mut work, source, target))?;
            }
            Ok(())
        });
        changes.finish(result)
    }
}

struct Moving<'a> {
    context: &'a Context,
    changes: &'a Changes<'a>,
    volume: &'a Opened,
    asker: &'a Asker,
    /// The target is a directory that gets the files.
    into: bool,
    /// The names in it that this run has given, each with what was moved there.
    made: HashMap<Vec<u8>, &'a Place>,
}

impl Mv {
    fn move_one<'a>(&self, work: &mut Moving<'a>, source: &'a Place, target: &Place) -> Result<()> {
        let volume = work.volume;
        let target = match name::last(&source.path) {
            Some(name) if work.into => target.below(name),
            Some(_) => target.clone(),
            None => {
                return Err(Failure::new(
                    source,
                    "has no name of its own that could be moved",
                    "name what is below it",
                )
                .into());
            }
        };
        // So that an error about the source names the source.
        let stat = volume.lstat(source)?;
        if let Some(first) = work.made.get(&target.path) {
            return Err(Failure::just_made(source, &target, first).into());
        }
        let mut backup = None;
        // What is wrong with the target the rename says.
        if let (false, Ok(existing)) = (self.exchange, volume.tree().lstat(&target.path)) {
            if !self.may_replace(work, (source, &stat), (&target, &existing))? {
                return Ok(());
            }
            volume.check_replaced(&target, Guard::unless(self.force))?;
            backup = self.backups.keep(volume, &target, Some(source))?;
        }
        let mode = match (self.keeps_all(), self.exchange) {
            (true, _) => RenameMode::NoReplace,
            (_, true) => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        let names = format!("{source} to {target}");
        let renamed = volume.tree().rename(&source.path, &target.path, mode);
        if let (Err(_), Some(backup)) = (&renamed, &backup) {
            BackupArgs::undo(volume, backup, &target)?;
        }
        match renamed {
            Err(Error::Refused(Errno::INVAL)) => {
                Err(Failure::new(names, "a directory cannot be moved into itself", "choose another target").into())
            }
            // Somebody was faster.
            Err(Error::Refused(Errno::EXIST)) if self.keeps_all() && self.update != Some(Update::NoneFail) => {
                return Ok(());
            }
            result => result.at(names),
        }?;
        work.tell(source, &target, if self.exchange { "exchanged" } else { "renamed" }, backup.as_ref())?;
        work.made.insert(target.path, source);
        Ok(())
    }

    /// Whether nothing is to be replaced.
    fn keeps_all(&self) -> bool {
        self.no_clobber || matches!(self.update, Some(Update::None | Update::NoneFail))
    }

    /// Whether a target that is there may go.
    fn may_replace(&self, work: &Moving<'_>, source: (&Place, &Stat), target: (&Place, &Stat)) -> Result<bool> {
        // Two names of one file too: a rename would leave both.
        if source.1.ino == target.1.ino {
            let what = format!("is the same file as {}", target.0);
            return Err(Failure::new(source.0, what, "choose another name, or remove one of the two").into());
        }
        let update = if self.update_plain { Update::Older } else { self.update.unwrap_or(Update::All) };
        match update {
            Update::NoneFail => return Err(Error::from(Errno::EXIST)).at(target.0),
            Update::None => return Ok(false),
            Update::Older if target.1.mtime >= source.1.mtime => return Ok(false),
            _ if self.no_clobber => return Ok(false),
            _ => {}
        }
        let fits = source.1.is_dir() == target.1.is_dir();
        if !self.interactive || self.force || !fits {
            return Ok(true);
        }
        work.asker.ask(work.context, &format!("mv: overwrite {}", target.0.quoted()))
    }
}

/// Parser of an argument `IMAGE:/path`, for people who want to move a file out of a volume, or into it.
fn place() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().try_map(|argument| match Place::parse(&argument) {
        Err(error @ PlaceError::NoPath { .. }) if meant::meant_in(&argument).is_none() => {
            Err(format!("{error}; between the host and a volume, copy it with myriad cp, then remove it where it was"))
        }
        place => place.map_err(|error| error.to_string()),
    }))
}

impl Moving<'_> {
    fn tell(&self, source: &Place, target: &Place, change: &str, backup: Option<&Place>) -> Result<()> {
        let words = || {
            let kept = backup.map_or(String::new(), |backup| format!(" (backup: {})", backup.quoted()));
            let arrow = if change == "exchanged" { "<->" } else { "->" };
            format!("{change} {} {arrow} {}{kept}", source.quoted(), target.quoted())
        };
        self.changes.tell(target, change, words, |fields| {
            put(fields, "path_before", &source.path);
            if let Some(backup) = backup {
                put(fields, "backup", &backup.path);
            }
        })
    }
}
