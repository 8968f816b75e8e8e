//! `chown`: owners and groups; `chgrp` is the same for groups alone.

use crate::change::{Changes, TellArgs};
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::owner::{self, OwnerSpec, Owners};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, ChangeArgs, Place, Reference, Tree, Visit, Visited, Volumes, descend};
use anyhow::Result;
use myriad_engine::{SetAttr, Stat};
use std::cell::RefCell;
use std::ffi::OsString;

// `-h` is about links here, as everywhere; help is `--help`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Chown {
    /// Change only files that have this owner and group; one left out may be any
    #[arg(long, value_name = "[USER][:GROUP]", value_parser = owner::parse_spec)]
    from: Option<OwnerSpec>,
    #[command(flatten)]
    how: ChownArgs,
    /// [USER][:GROUP] by names or numbers, unless an option gives it, then files, each IMAGE:/path
    #[arg(required = true, value_name = "OWNER|IMAGE:/path")]
    operands: Vec<OsString>,
}

/// What `chown` and `chgrp` share.
#[derive(clap::Args)]
pub struct ChownArgs {
    /// Change directories with all that is below them; symbolic links are changed themselves
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links themselves, not what they lead to
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Say only what was changed
    #[arg(short, long, conflicts_with = "json")]
    changes: bool,
    /// Say nothing of what cannot be changed; the exit code tells all the same
    #[arg(short = 'f', long)]
    silent: bool,
    /// Give files the owner of this one: IMAGE:/path, or a file of the host
    #[arg(long, value_name = "FILE", value_parser = volume::reference())]
    pub reference: Option<Reference>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    #[command(flatten)]
    tell: TellArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Chown {
    const NAME: &'static str = "chown";
    const ABOUT: &'static str = "Change the owner and group of files";
    const DETAILS: &'static str = "USER alone leaves the group as it is, `USER:` gives the user's own group, `:GROUP` the group alone. Names are \
        those of this host; a volume holds numbers. A symbolic link is followed without -h and -R. As by chown(2), a file loses \
        set-id bits.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad chown -R www-data: vol.img:/srv/www", "gives a tree to a user and the user's group"),
        ("myriad chown --from=root 1000:1000 vol.img:/home/eva", "changes the owner if it is root"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let (spec, files) = self.how.operands(&self.operands, owner::parse_spec)?;
        self.how.run(context, Self::NAME, &Task { spec, from: self.from.unwrap_or_default(), is_group: false }, &files)
    }
}

/// What is to become of the owners of files.
pub struct Task {
    /// Not with `--reference`.
    pub spec: Option<OwnerSpec>,
    pub from: OwnerSpec,
    /// Groups alone are changed.
    pub is_group: bool,
}

impl ChownArgs {
    /// The owner, unless `--reference` gives it, and the files.
    pub fn operands(
        &self,
        operands: &[OsString],
        parse: fn(&str) -> Result<OwnerSpec, String>,
    ) -> Result<(Option<OwnerSpec>, Vec<Place>)> {
        if self.reference.is_some() {
            return Ok((None, volume::places(operands)?));
        }
        let (spec, files) = operands.split_first().expect("the parser asks for one");
        let text = spec.to_string_lossy();
        if files.is_empty() {
            let what = format!("`{text}`: of which file?");
            return Err(Failure::usage("", what, "name files, each IMAGE:/path, after the owner").into());
        }
        let spec = parse(&text).map_err(|error| Failure::usage("", error, ""))?;
        Ok((Some(spec), volume::places(files)?))
    }

    pub fn run(self, context: &Context, name: &'static str, task: &Task, files: &[Place]) -> Result<Status> {
        let tell = TellArgs { verbose: self.tell.verbose || self.changes, ..self.tell };
        if self.silent {
            context.pass_over_errors();
        }
        let changes = Changes::new(context, name, tell);
        let result = Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let owners = RefCell::new(Owners::default());
            let spec = match (&self.reference, &task.spec) {
                (Some(reference), _) => {
                    let stat = reference.stat(volumes, true)?;
                    let mut owners = owners.borrow_mut();
                    let user = (!task.is_group).then(|| (stat.uid, owners.user(stat.uid).to_owned()));
                    OwnerSpec { user, group: Some((stat.gid, owners.group(stat.gid).to_owned())) }
                }
                (None, spec) => spec.clone().unwrap_or_default(),
            };
            let is_group = task.is_group || spec.user.is_none() && spec.group.is_some();
            let mut work = Changing { how: &self, context, changes: &changes, spec, task, is_group, owners };
            for file in files {
                context.check()?;
                let result = volumes.get(&file.image).and_then(|volume| work.operand(volume.tree(), file));
                context.tolerate(result)?;
            }
            Ok(())
        });
        changes.finish(result)
    }
}

struct Changing<'a> {
    how: &'a ChownArgs,
    context: &'a Context,
    changes: &'a Changes<'a>,
    spec: OwnerSpec,
    task: &'a Task,
    /// Only groups are spoken of.
    is_group: bool,
    owners: RefCell<Owners>,
}

impl Changing<'_> {
    fn operand(&mut self, tree: &dyn Tree, place: &Place) -> Result<()> {
        let follow = !self.how.no_dereference && !self.how.recursive;
        let stat = if follow { tree.stat(&place.path) } else { tree.lstat(&place.path) }.at(place)?;
        if self.how.recursive && stat.is_dir() {
            let context = self.context;
            return descend(context, tree, place, false, self);
        }
        self.set(place, &stat, &mut |attr| tree.set_attr(&place.path, follow, attr))
    }

    fn set(&self, place: &Place, stat: &Stat, set: &mut dyn FnMut(SetAttr) -> myriad_engine::Result<()>) -> Result<()> {
        let number = |named: &Option<(u32, String)>| named.as_ref().map(|(number, _)| *number);
        let (uid, gid) = (number(&self.spec.user), number(&self.spec.group));
        let is_meant = number(&self.task.from.user).is_none_or(|from| from == stat.uid)
            && number(&self.task.from.group).is_none_or(|from| from == stat.gid);
        if is_meant {
            set(SetAttr { uid, gid, ..SetAttr::default() }).at(place)?;
        }
        let is_changed = uid.is_some_and(|uid| uid != stat.uid) || gid.is_some_and(|gid| gid != stat.gid);
        if is_meant && is_changed {
            self.changes.tell(
                place,
                "owner",
                || self.words(place, stat),
                |fields| {
                    fields.insert("uid".into(), uid.unwrap_or(stat.uid).into());
                    fields.insert("gid".into(), gid.unwrap_or(stat.gid).into());
                    fields.insert("uid_before".into(), stat.uid.into());
                    fields.insert("gid_before".into(), stat.gid.into());
                },
            )
        } else if !self.how.changes {
            self.changes.say(|| self.retained(place, stat))
        } else {
            Ok(())
        }
    }

    /// The owner before, in the parts that were asked for.
    fn before(&self, stat: &Stat) -> String {
        let mut owners = self.owners.borrow_mut();
        match (&self.spec.user, &self.spec.group) {
            (_, None) => owners.user(stat.uid).to_owned(),
            _ if self.is_group => owners.group(stat.gid).to_owned(),
            _ => format!("{}:{}", owners.user(stat.uid).to_owned(), owners.group(stat.gid)),
        }
    }

    fn words(&self, place: &Place, stat: &Stat) -> String {
        let name = |named: &Option<(u32, String)>| named.as_ref().map_or(String::new(), |(_, name)| name.clone());
        let after = match &self.spec.group {
            None => name(&self.spec.user),
            Some((_, group)) if self.is_group => group.clone(),
            Some((_, group)) => format!("{}:{group}", name(&self.spec.user)),
        };
        let what = if self.is_group { "group" } else { "ownership" };
        format!("changed {what} of {} from {} to {after}", place.quoted(), self.before(stat))
    }

    fn retained(&self, place: &Place, stat: &Stat) -> String {
        let what = if self.is_group { "group" } else { "ownership" };
        if self.spec == OwnerSpec::default() {
            return format!("ownership of {} retained", place.quoted());
        }
        format!("{what} of {} retained as {}", place.quoted(), self.before(stat))
    }

    fn visited(&self, file: &Visited<'_, '_>) -> Result<bool> {
        let result = self.set(file.place, file.stat, &mut |attr| file.folder.set_attr(file.name, file.stat, attr));
        self.context.tolerate(result)?;
        Ok(true)
    }
}

impl Visit for Changing<'_> {
    fn enter(&mut self, _directory: &Visited<'_, '_>) -> Result<bool> {
        Ok(true)
    }

    /// Last: whoever gives a directory away may not go into it any more.
    fn leave(&mut self, directory: &Visited<'_, '_>, _is_all: bool) -> Result<bool> {
        self.visited(directory)
    }

    fn file(&mut self, file: &Visited<'_, '_>) -> Result<bool> {
        self.visited(file)
    }
}
