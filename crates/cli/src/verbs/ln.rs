//! `ln`: further names, and symbolic links.

use crate::ask::Asker;
use crate::change::{Changes, TellArgs};
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::name::{self, put};
use crate::show::quoted::Quoted;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, BackupArgs, ChangeArgs, Guard, Opened, Place, Volumes, canonical, way};
use anyhow::Result;
use myriad_engine::{Errno, Error, FileType, RenameMode};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

#[derive(clap::Args)]
pub struct Ln {
    /// Make symbolic links, each of which holds TARGET as it is written
    #[arg(short, long)]
    symbolic: bool,
    /// Replace files that have the new name, each in one step; the last of -f and -i counts
    #[arg(short, long, overrides_with = "interactive")]
    force: bool,
    /// Ask before a file is replaced
    #[arg(short, long, overrides_with = "force")]
    interactive: bool,
    /// Take a new name that is a symbolic link to a directory as a plain file
    #[arg(short, long)]
    no_dereference: bool,
    /// With -s, have the link lead to TARGET, IMAGE:/path, from where it is
    #[arg(short, long, requires = "symbolic")]
    relative: bool,
    /// Make all links in this directory
    #[arg(short, long, value_name = "IMAGE:/path", value_parser = volume::place(), conflicts_with = "no_target_directory")]
    target_directory: Option<Place>,
    /// Take the new name as such, also if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    #[command(flatten)]
    backups: BackupArgs,
    #[command(flatten)]
    tell: TellArgs,
    /// Files to link, each IMAGE:/path or, with -s, any text; then, without -t, the new name or a directory that gets them
    #[arg(required = true, value_name = "TARGET")]
    operands: Vec<OsString>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Ln {
    const NAME: &'static str = "ln";
    const ABOUT: &'static str = "Give files further names, or make symbolic links";
    const DETAILS: &'static str = "The last operand is the new name, IMAGE:/path, or a directory in which each link gets the last name of \
        its target. An existing file is replaced only with -f, -i or a backup. A symbolic link given as target is linked itself. \
        An answer that begins with y is a yes, and all else, the end of the input too, a no.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad ln vol.img:/a vol.img:/b", "makes /b another name of the file /a"),
        ("myriad ln -s ../lib vol.img:/usr/lib", "makes a symbolic link that leads to ../lib"),
        ("myriad ln -sfn v2 vol.img:/srv/current", "lets a symbolic link lead elsewhere, in one step"),
        ("myriad ln -sr vol.img:/lib/a vol.img:/bin/", "makes the symbolic link /bin/a to ../lib/a"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let (link, targets) = match (&self.target_directory, self.operands.split_last()) {
            (Some(directory), _) => (directory.clone(), &*self.operands),
            (None, Some((link, targets))) if !targets.is_empty() => (parse(link, "")?, targets),
            (None, _) => {
                let next = "name the new name or a directory after it, or before it with -t";
                return Err(
                    Failure::usage(Quoted(self.operands[0].as_bytes()), "where is the link to be?", next).into()
                );
            }
        };
        let targets = targets.iter().map(|target| self.target(target, &link)).collect::<Result<Vec<_>>>()?;
        let changes = Changes::new(context, Self::NAME, self.tell);
        let result = Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let volume = volumes.get(&link.image)?;
            let tree = volume.tree();
            let is_link = || tree.lstat(&link.path).is_ok_and(|stat| stat.file_type() == FileType::Symlink);
            let into = !self.no_target_directory
                && tree.stat(&link.path).is_ok_and(|stat| stat.is_dir())
                && !(self.no_dereference && is_link());
            if (targets.len() > 1 || self.target_directory.is_some()) && !into {
                let next = "several links, and all with -t, can be made in a directory only";
                return Err(Failure::usage(&link, "not a directory", next).into());
            }
            let (asker, made) = (Asker::default(), HashMap::new());
            let mut work = Linking { context, changes: &changes, volume: &volume, asker, into, made };
            for target in &targets {
                context.check()?;
                context.tolerate(self.link_one(&mut work, target, &link))?;
            }
            Ok(())
        });
        changes.finish(result)
    }
}

/// What is linked.
#[derive(Clone)]
enum Target {
    /// As the symbolic link is to hold it.
    Text(Vec<u8>),
    File(Place),
}

impl Target {
    fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => name::last(text),
            Self::File(place) => name::last(&place.path),
        }
    }

    fn quoted(&self) -> String {
        match self {
            Self::Text(text) => Quoted(text).to_string(),
            Self::File(place) => place.quoted(),
        }
    }
}

struct Linking<'a> {
    context: &'a Context,
    changes: &'a Changes<'a>,
    volume: &'a Opened,
    asker: Asker,
    /// The new name is a directory that gets the links.
    into: bool,
    /// The names that this run has made, each with what it leads to.
    made: HashMap<Vec<u8>, String>,
}

fn parse(operand: &OsStr, next: &str) -> Result<Place> {
    Ok(Place::parse(operand).map_err(|error| Failure::usage("", error.to_string(), next))?)
}

impl Ln {
    /// What an operand means. A file must be of the same volume as the link.
    fn target(&self, operand: &OsStr, link: &Place) -> Result<Target> {
        if self.symbolic && !self.relative {
            return Ok(Target::Text(operand.as_bytes().to_vec()));
        }
        let next =
            if self.relative { "without -r the target may be any text" } else { "with -s the target may be any text" };
        let target = parse(operand, next)?;
        if !target.is_in_image_of(link) {
            let what = format!("not on the same volume as {link}");
            return Err(Failure::usage(&target, what, "use ln -s, or copy it with myriad cp").into());
        }
        Ok(Target::File(target))
    }

    fn link_one(&self, work: &mut Linking<'_>, target: &Target, link: &Place) -> Result<()> {
        let link = match target.name() {
            Some(name) if work.into => link.below(name),
            _ => link.clone(),
        };
        let (volume, tree) = (work.volume, work.volume.tree());
        if let (Target::File(file), false) = (target, self.symbolic)
            && volume.lstat(file)?.is_dir()
        {
            let next = "make a symbolic link to it with ln -s";
            return Err(Failure::new(file, "is a directory, which can have one name only", next).into());
        }
        if let Some(first) = work.made.get(&link.path) {
            return Err(Failure::just_made(target.quoted(), &link, first).into());
        }
        let held = match target {
            Target::File(file) if self.symbolic => Target::Text(relative(volume, file, &link)?),
            target => target.clone(),
        };
        let make = |path: &[u8]| match &held {
            Target::Text(text) => tree.symlink(text, path),
            Target::File(file) => tree.link(&file.path, path),
        };
        let mut backup = None;
        match tree.lstat(&link.path) {
            Ok(existing) if !existing.is_dir() && (self.force || self.interactive || self.backups.is_asked()) => {
                let source = match target {
                    Target::File(file) => Some(file),
                    Target::Text(_) => None,
                };
                if let Some(file) = source.filter(|file| volume.is_same_name(file, &link)) {
                    let what = format!("is {link} itself");
                    return Err(Failure::new(file, what, "choose another name").into());
                }
                if self.interactive && !work.asker.ask(work.context, &format!("ln: replace {}", link.quoted()))? {
                    return Ok(());
                }
                volume.check_replaced(&link, Guard::Always)?;
                backup = self.backups.keep(volume, &link, source)?;
                match &backup {
                    Some(kept) => {
                        if let Err(error) = make(&link.path) {
                            BackupArgs::undo(volume, kept, &link)?;
                            return Err(error).at(&link);
                        }
                    }
                    None => replace(volume, &link, &make)?,
                }
            }
            _ => make(&link.path).at(&link)?,
        }
        work.tell(&held, &link, backup.as_ref())?;
        work.made.insert(link.path, target.quoted());
        Ok(())
    }
}

/// Makes the link under another name first, so that there is no moment without the one or the other.
fn replace(volume: &Opened, link: &Place, make: &dyn Fn(&[u8]) -> myriad_engine::Result<()>) -> Result<()> {
    let (directory, _) = link.split();
    let mut number = std::process::id();
    let other = loop {
        let other = directory.below(format!(".myriad-ln-{number}").as_bytes());
        match make(&other.path) {
            Err(Error::Refused(Errno::EXIST)) => number = number.wrapping_add(1),
            result => break result.at(link).map(|()| other)?,
        }
    };
    let renamed = volume.tree().rename(&other.path, &link.path, RenameMode::Replace).at(link);
    // There still, if both are names of one file or the rename was refused.
    match volume.tree().unlink(&other.path) {
        Err(Error::Refused(Errno::NOENT)) => renamed,
        unlinked => renamed.and(unlinked.at(&other)),
    }
}

/// The way from the directory of `link` to `target`, both without links.
fn relative(volume: &Opened, target: &Place, link: &Place) -> Result<Vec<u8>> {
    let tree = volume.tree();
    let (directory, _) = link.split();
    let (from, to) = (canonical(tree, &directory.path).at(&directory)?, canonical(tree, &target.path).at(target)?);
    Ok(way(&from, &to))
}

impl Linking<'_> {
    fn tell(&self, target: &Target, link: &Place, backup: Option<&Place>) -> Result<()> {
        let words = || {
            let kept = backup.map_or(String::new(), |backup| format!("{} ~ ", backup.quoted()));
            let arrow = if matches!(target, Target::Text(_)) { "->" } else { "=>" };
            format!("{kept}{} {arrow} {}", link.quoted(), target.quoted())
        };
        let (change, held) = match target {
            Target::Text(text) => ("created", text),
            Target::File(place) => ("linked", &place.path),
        };
        self.changes.tell(link, change, words, |fields| {
            if matches!(target, Target::Text(_)) {
                fields.insert("type".into(), "symbolic_link".into());
            }
            put(fields, "target", held);
            if let Some(backup) = backup {
                put(fields, "backup", &backup.path);
            }
        })
    }
}
