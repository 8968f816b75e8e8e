//! `cp`: between the host and volumes, in every direction, and to and from standard input and output.
//!
//! ```text
//! options   what the options mean together
//! side      operands, and those whose volume is open
//! apart     what must not be copied: a file onto itself
//! goal      where one source goes
//! parents   the directories above a source, with --parents
//! ```

mod apart;
mod goal;
mod options;
mod parents;
mod side;

use super::batch::{Entry, Feed, Meta, Wanted};
use super::existing::{self, Existing, Rules};
use super::holes::Holes;
use super::host_target::{HostTarget, open_directory};
use super::host_tree::Mounts;
use super::link::Linking;
use super::run::{self, Done, Options, Outcome, Tally};
use super::stream::StreamSink;
use super::target::{Keep, Owner};
use super::volume_target::VolumeTarget;
use super::writer::Writer;
use super::{host, host_tree, path, session, summarize, volume_tree};
use crate::ask::Asker;
use crate::context::Context;
use crate::failure::{self, At, Failure, Kind};
use crate::show::name::join;
use crate::show::quoted::Quoted;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::place::is_same_file;
use crate::volume::{Access, BackupArgs, ChangeArgs, Volumes, canonical, recognise};
use anyhow::Result;
use goal::{Goal, Wish};
use myriad_engine::{Errno, Error, FileType};
use options::{Follow, FollowArgs, KeepArgs, LinkArgs, Links, ReplaceArgs};
use parents::Made;
use side::{Operand, Side, operand};
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

#[derive(clap::Args)]
pub struct Cp {
    /// Copy directories with all below them, and links, pipes and devices as such
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    // Before what it looks at, too, and what is taken from the parser's answers when it is read.
    #[command(flatten)]
    follow: FollowArgs,
    #[command(flatten)]
    keep: KeepArgs,
    #[command(flatten)]
    replace: ReplaceArgs,
    #[command(flatten)]
    links: LinkArgs,
    /// Copy each operand to its whole path below the target directory, and make the directories on the way
    #[arg(long, conflicts_with = "no_target_directory")]
    parents: bool,
    /// Take the target as the new name, also if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Copy all operands into this directory
    #[arg(short, long, value_name = "DIRECTORY", value_parser = operand(), conflicts_with = "no_target_directory")]
    target_directory: Option<Operand>,
    /// Leave out what is mounted inside a source; the directory that it is mounted on comes empty
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Which zeros are not stored
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", hide_default_value = true)]
    sparse: Holes,
    /// Whether copies share their blocks with the source: they never do, so `always` is refused; `auto` and `never` copy
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always", value_parser = ["auto", "always", "never"])]
    reflink: Option<String>,
    /// Print each file that is made, and what from
    #[arg(short, long)]
    verbose: bool,
    /// Print the summary as JSON
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
    /// Files to copy, then the new name or a directory that gets them; each a path of the host, IMAGE:/path, or `-` for standard
    /// input or output
    #[arg(required = true, value_name = "FILE", value_parser = operand())]
    operands: Vec<Operand>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Cp {
    const NAME: &'static str = "cp";
    const ABOUT: &'static str = "Copy files between the host and volumes, or inside a volume";
    const DETAILS: &'static str = "Options mean what they mean to cp(1). A file that is there is replaced in one step, once the \
        copy is whole, and keeps its mode and owner unless those of the source are kept; -n and -u leave it. With -u a new \
        file, too, has its name only once it is whole: a part that a killed run left would be newer than its source. A pipe or device of \
        the host is read and written as cp(1) does: its content is copied, and it stays what it is; -r and -a copy it as such. \
        A volume is not replaced by a file without --force, and not at all while it is in use: the root of the volume is IMAGE:/. \
        Holes stay holes. Files that are names of one inode stay so below one operand, with -a, -d or --preserve=links. Without -p \
        or -a, copies belong to you and have the time of the copy. Symbolic links are followed, unless with -r, -a, -d or -P: \
        then they are copied as such, with -H but for those that are operands; -L follows all, inside a volume never out of it. \
        Links that -l and -s make take the place of a file that is there only with -f, -i, -b or --remove-destination.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad cp notes.txt vol.img:/docs/", "copies a file into a volume"),
        ("myriad cp -a vol.img:/docs /srv/docs", "copies a tree out of a volume, with everything"),
        ("myriad cp -r a.img:/x b.img:/y", "copies a tree from volume to volume"),
        ("myriad cp -uv -t vol.img:/docs *.txt", "copies those that are newer than their copies, and prints which"),
        (
            "myriad cp -al vol.img:/srv vol.img:/srv.old",
            "makes a second tree of the same files, which takes no room for contents",
        ),
        ("pg_dump mail | myriad cp - vol.img:/dumps/mail", "copies standard input to a file of a volume"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let (target, sources) = match (&self.target_directory, self.operands.split_last()) {
            (Some(target), _) => (target, &self.operands[..]),
            (None, Some((target, sources))) if !sources.is_empty() => (target, sources),
            (None, _) => {
                let next = "name a target, or give it with -t";
                return Err(Failure::usage(&self.operands[0], "is to be copied nowhere", next).into());
            }
        };
        if self.reflink.as_deref() == Some("always") {
            let what = "a volume has no files that share blocks";
            return Err(Failure::usage("--reflink", what, "give --reflink=auto, or leave it out").into());
        }
        self.replace.check()?;
        let answers = self.answers(sources)?;
        // A volume that is read and written is opened once, to write.
        let written = Volumes::new(Access::Change, self.change.mount_options());
        let read = Volumes::new(Access::Read, self.change.open.mount_options());
        let is_target = |image: &Path| match target {
            Operand::Volume(place) => is_same_file(&place.image, image),
            _ => false,
        };
        let mut total = Tally { is_complete: true, ..Tally::default() };
        let mut has_begun = false;
        let done = written.finish(|written| {
            read.finish(|read| {
                let target = Side::of(written, target, true)?;
                let into = target.is_dir() && !self.no_target_directory;
                self.check_target(&target, into, sources.len())?;
                has_begun = true;
                let mut made = HashMap::new();
                for source in sources {
                    context.check()?;
                    let name = source.name().filter(|_| into && self.replace.existing() != Existing::Skip);
                    let name = name.map(|name| if self.parents { source.bytes() } else { name.to_vec() });
                    let copied = match name.as_ref().and_then(|name| made.get(name)) {
                        Some(first) => {
                            let target = target.operand().below(name.as_ref().expect("it is what was found"));
                            Err(Failure::just_made(source, target, first).into())
                        }
                        None => {
                            let volumes = match source {
                                Operand::Volume(place) if is_target(&place.image) => &mut *written,
                                _ => &mut *read,
                            };
                            let side = Side::of(volumes, source, self.follow() != Follow::Never);
                            side.and_then(|from| self.copy(context, answers.as_ref(), &from, &target, into))
                        }
                    };
                    let copied = copied.and_then(|(tally, result)| {
                        made.extend(name.filter(|_| tally.entries() > 0).map(|name| (name, source)));
                        total.add(&tally);
                        result
                    });
                    total.errors += u64::from(copied.is_err());
                    context.tolerate(copied)?;
                }
                Ok(())
            })
        });
        // Errors of single operands are none of these: the volume could not be closed, and what of it is durable only it knows.
        let is_lost = |error: &&anyhow::Error| failure::kind(error) == Kind::Error;
        let lost = done.as_ref().err().filter(|_| matches!(target, Operand::Volume(_))).filter(is_lost);
        total.tell_stops(context, lost);
        if self.json && has_begun {
            total.is_complete = done.is_ok();
            if lost.is_some() {
                total.forget_done();
            }
            summarize(context, Self::NAME, Done { did: "copied", is_dry: false }, &total, true)?;
        }
        done?;
        Ok(context.status())
    }
}

impl Cp {
    fn is_recursive(&self) -> bool {
        self.recursive || self.keep.is_archive()
    }

    fn follow(&self) -> Follow {
        // As with cp(1): what symbolic links lead to gets the further names.
        self.follow.follow(self.is_recursive() && self.links.asked() != Some(Links::Hard))
    }

    fn existing(&self) -> Existing {
        if self.links.asked().is_some() { self.replace.existing_for_links() } else { self.replace.existing() }
    }

    /// Who answers questions, if some are to be asked.
    fn answers(&self, sources: &[Operand]) -> Result<Option<Rc<Asker>>> {
        if !self.replace.interactive {
            return Ok(None);
        }
        if sources.iter().any(|source| matches!(source, Operand::Standard)) {
            let what = "standard input cannot be copied and answer what -i asks";
            return Err(Failure::usage("-", what, "leave out -i").into());
        }
        Ok(Some(Rc::new(Asker::default())))
    }

    fn check_target(&self, target: &Side, into: bool, sources: usize) -> Result<()> {
        if into || sources == 1 && self.target_directory.is_none() && !self.parents {
            return Ok(());
        }
        let next = match target {
            Side::Host(path) if recognise::is_volume(path) => {
                format!("it is a Myriad volume: write {}:/ for its root", target.operand())
            }
            _ if self.parents => "with --parents the target is a directory that is there".into(),
            _ if sources == 1 => "give -t a directory that is there".into(),
            _ => "several files can be copied to a directory only".into(),
        };
        Err(Failure::usage(target.operand(), "not a directory", next).into())
    }

    fn copy(
        &self,
        context: &Context,
        answers: Option<&Rc<Asker>>,
        source: &Side,
        target: &Side,
        into: bool,
    ) -> Result<(Tally, Result<()>)> {
        let operand = source.operand();
        let is_link = self.follow() == Follow::Never && source.is_link();
        let file_type = source.file_type().filter(|_| !is_link);
        if file_type == Some(FileType::Directory) && !self.is_recursive() {
            return Err(Failure::new(operand, "is a directory", "copy it with -r or -a").into());
        }
        if self.links.asked().is_some() && !source.is_beside(target) {
            let what = format!("is not in the same volume as {}", target.operand());
            return Err(Failure::usage(operand, what, "leave out -l or -s to copy it").into());
        }
        // As with cp(1), what is named by dots comes into the directory itself.
        let merges = into && !self.parents && operand.ends_in_dots();
        if merges {
            source.check_there()?;
        }
        let name = match into {
            true if self.parents => Some(parents::name(source)?),
            true if merges => None,
            true => Some(operand.name().map(<[u8]>::to_vec).ok_or_else(|| {
                let next = match source {
                    Side::Standard => "give the name of the new file as the target",
                    _ => "give -T to copy its content into the target",
                };
                Failure::new(&operand, "has no name of its own", next)
            })?),
            false => None,
        };
        // The rest is copied as what it is.
        let is_content = match file_type {
            Some(FileType::File) => true,
            Some(FileType::Directory) => false,
            Some(_) => !self.is_recursive(),
            None => !is_link,
        } && self.links.asked().is_none();
        if is_content && file_type.is_some_and(|found| found != FileType::File) && source.image().is_some() {
            let next = "copy it as such with -r or -a";
            return Err(
                Failure::new(operand, "is a pipe, socket or device, without content in the volume", next).into()
            );
        }
        let is_directory = file_type == Some(FileType::Directory);
        // A further name of a file may be one that it has.
        if is_directory || self.links.asked() != Some(Links::Hard) {
            apart::check_apart(source, target, name.as_deref(), self.follow() == Follow::Never)?;
        }
        if !is_directory {
            self.check_backup(source, target, name.as_deref())?;
        }
        let told = match &name {
            Some(name) => target.operand().bytes_below(name),
            None if merges => target.operand().bytes_below(b"."),
            None => target.operand().bytes(),
        };
        let tell = |path: &[u8], entry: &Entry, outcome: Outcome, backup: Option<&[u8]>| {
            Self::tell(context, (&operand, &told), path, entry, (outcome, backup))
        };
        let tell: Option<run::Tell<'_>> = if self.verbose { Some(&tell) } else { None };
        let options = Options { doing: "copying", tell, ..Options::default() };
        if let Some(name) = name.as_deref().filter(|_| self.parents) {
            return self.transfer_with_parents(context, answers, (source, target), name, options);
        }
        let wish = Wish {
            is_content,
            replaces_names: self.replace.remove_destination
                || self.replace.backups.is_asked()
                || self.links.asked().is_some(),
            spares: self.existing() == Existing::Skip,
            guard: self.replace.guard(),
        };
        let goal = Goal::find(context, target, name.as_deref(), wish)?;
        self.transfer(context, answers, (source, target), goal, options)
    }

    /// Refuses if what is in the way would be kept under the name of the source.
    fn check_backup(&self, source: &Side, target: &Side, name: Option<&[u8]>) -> Result<()> {
        let operand = target.operand();
        let Some(last) = name.or(operand.name()).filter(|_| source.file_type().is_some()) else { return Ok(()) };
        // Of numbered ones none is replaced.
        let Ok(Some(kept)) = self.replace.backups.name_for(last, || Ok::<_, anyhow::Error>(Vec::new())) else {
            return Ok(());
        };
        let checked = match name {
            Some(_) => apart::check_apart(source, target, Some(&kept), false),
            None => apart::check_apart(source, &target.beside(&kept), None, false),
        };
        checked.map_err(|_| BackupArgs::would_take_name(source.operand()))
    }

    /// Makes the directories above `name` first; they get what they keep last.
    fn transfer_with_parents(
        &self,
        context: &Context,
        answers: Option<&Rc<Asker>>,
        (source, target): (&Side, &Side),
        name: &[u8],
        options: Options<'_>,
    ) -> Result<(Tally, Result<()>)> {
        let (above, base) = path::split(name);
        let base = base.to_vec();
        // Of what is not there nothing is made.
        if let Side::Volume(volume, place) = source {
            volume.session().lstat(&place.path).at(place)?;
        }
        let parents = parents::of(source, above)?;
        let place = target.operand().bytes();
        match target {
            Side::Standard => Err(Failure::usage("-", "is no directory", "leave out --parents").into()),
            Side::Volume(volume, directory) => {
                let top = session(volume).stat(&directory.path).at(directory)?.node();
                let made = VolumeTarget::new(session(volume), directory.clone(), self.replace.guard());
                let made = Made::make(context, made, top, (above, &parents), &place, self.verbose)?;
                let dir = *made.last().unwrap_or(&top);
                let place = directory.below(above);
                let goal = Goal::Volume { session: session(volume), dir, base: Some(base), place };
                let keep = self.keep_in_volume(umask());
                let done = self.transfer(context, answers, (source, target), goal, options);
                let finished = made.finish(&parents, keep);
                done.map(|(tally, result)| (tally, result.and(finished)))
            }
            Side::Host(directory) | Side::Mounted(_, _, directory) => {
                let mask = umask();
                let made = self.host_target(target, place.clone())?;
                let top = open_directory(directory, target.device_at(directory)?)?;
                let made = Made::make(context, made, top, (above, &parents), &place, self.verbose);
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask.into()));
                let made = made?;
                let goal = Goal::Host { dir: directory.join(std::ffi::OsStr::from_bytes(above)), base };
                let done = self.transfer(context, answers, (source, target), goal, options);
                let finished = made.finish(&parents, self.keep_on_host(mask));
                done.map(|(tally, result)| (tally, result.and(finished)))
            }
        }
    }

    /// Prints a file as cp(1) does: all that are made, and no directory that was there.
    fn tell(
        context: &Context,
        (source, target): (&Operand, &[u8]),
        path: &[u8],
        entry: &Entry,
        (outcome, backup): (Outcome, Option<&[u8]>),
    ) -> Result<()> {
        if outcome == Outcome::Merged {
            return Ok(());
        }
        debug_assert!(outcome != Outcome::Replaced || entry.meta.file_type() != FileType::Directory);
        let (from, to) = (source.bytes_below(path), join(target, path));
        let mut out = context.out();
        if outcome == Outcome::Replaced {
            writeln!(out, "removed {}", Quoted(&to))?;
        }
        let kept = backup.map_or(String::new(), |name| {
            let directory = to.iter().rposition(|&byte| byte == b'/').map_or(&b""[..], |slash| &to[..=slash]);
            format!(" (backup: {})", Quoted(&join(directory, name)))
        });
        Ok(writeln!(out, "{} -> {}{kept}", Quoted(&from), Quoted(&to))?)
    }

    fn keep_in_volume(&self, mask: u16) -> Keep {
        let caller = Owner::New(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        self.keep.keep(Some(if self.keep.owner() { Owner::AsSource } else { caller }), mask)
    }

    /// Only root may give files away.
    fn keep_on_host(&self, mask: u16) -> Keep {
        let may_give = self.keep.owner() && rustix::process::geteuid().is_root();
        self.keep.keep(may_give.then_some(Owner::AsSource), mask)
    }

    fn host_target(&self, target: &Side, path: Vec<u8>) -> Result<HostTarget> {
        let guard = self.replace.guard();
        Ok(match target.device()? {
            Some(device) => HostTarget::of_mount(path, guard, device),
            None => HostTarget::new(path, guard),
        })
    }

    fn transfer(
        &self,
        context: &Context,
        answers: Option<&Rc<Asker>>,
        (source, target): (&Side, &Side),
        goal: Goal,
        options: Options<'_>,
    ) -> Result<(Tally, Result<()>)> {
        let mask = umask();
        let keep = match &goal {
            Goal::Volume { .. } => self.keep_in_volume(mask),
            _ => self.keep_on_host(mask),
        };
        let linking = self.links.asked().map(|links| self.linking(links, source, &goal)).transpose()?;
        let feed = self.feed(source, target, &goal, keep)?;
        Ok(match goal {
            Goal::Volume { session, dir, base, place } => {
                let target = VolumeTarget::new(session, place, self.replace.guard());
                let rules = self.rules(context, answers, linking);
                let mut writer = Writer::new(target, dir, base, keep, rules, false);
                run::run(context, feed, &mut writer, options)
            }
            Goal::Host { dir, base } => {
                let top = open_directory(&dir, target.device_at(&dir)?)?;
                let target = self.host_target(target, dir.as_os_str().as_bytes().to_vec())?;
                let rules = self.rules(context, answers, linking);
                let mut writer = Writer::new(target, top, Some(base), keep, rules, false);
                let result = run::run(context, feed, &mut writer, options);
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask.into()));
                result
            }
            Goal::Stream { output, place } => run::run(context, feed, &mut StreamSink::new(output, place), options),
        })
    }

    /// What links are to lead to, and from where.
    fn linking(&self, links: Links, source: &Side, goal: &Goal) -> Result<Linking> {
        let follow = self.follow() != Follow::Never;
        if links == Links::Hard {
            let source = match source {
                Side::Volume(_, place) => place.path.clone(),
                Side::Host(path) | Side::Mounted(_, _, path) => path.as_os_str().as_bytes().to_vec(),
                Side::Standard => unreachable!("it lies in no volume"),
            };
            return Ok(Linking::Hard { source, follow });
        }
        match (source, goal) {
            (Side::Volume(volume, place), Goal::Volume { place: target, .. }) => {
                let real = |path: &[u8]| canonical(&**volume, path).at(place);
                let source = match place.split() {
                    _ if source.is_dir() => real(&place.path)?,
                    (directory, name) => join(&real(&directory.path)?, name),
                };
                Ok(Linking::Symbolic { source, target: real(&target.path)? })
            }
            (Side::Host(path) | Side::Mounted(_, _, path), Goal::Host { dir, .. }) => {
                let real = |path: &Path| {
                    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
                    path.canonicalize().at(source.operand()).map(|path| path.into_os_string().into_encoded_bytes())
                };
                let from = match (path.parent(), path.file_name()) {
                    (Some(directory), Some(name)) if !source.is_dir() => join(&real(directory)?, name.as_bytes()),
                    _ => real(path)?,
                };
                Ok(Linking::Symbolic { source: from, target: real(dir)? })
            }
            _ => unreachable!("both lie in one volume"),
        }
    }

    fn rules<'a>(&self, context: &'a Context, answers: Option<&Rc<Asker>>, linking: Option<Linking>) -> Rules<'a> {
        let ask = answers.map(Rc::clone).map(|answers| -> existing::Ask<'a> {
            Box::new(move |place| answers.ask(context, &format!("myriad cp: overwrite {}", Quoted(place.as_bytes()))))
        });
        Rules {
            existing: self.existing(),
            ask,
            removes: self.replace.remove_destination,
            backups: self.replace.backups.clone(),
            linking,
            is_dry: false,
            holes: self.sparse,
        }
    }

    fn feed(&self, source: &Side, target: &Side, goal: &Goal, keep: Keep) -> Result<Feed> {
        let follow = self.follow();
        let makes_links = self.links.asked().is_some();
        let links = self.keep.links() && !makes_links;
        let wanted = match makes_links {
            true => Some(Arc::new(|_: &[u8], _: &Meta| false) as Wanted),
            false => goal.look().and_then(|look| existing::wanted(self.replace.existing(), keep, look)),
        };
        match source {
            Side::Standard => host_tree::read_input(std::io::stdin()).at("-"),
            Side::Host(path) | Side::Mounted(_, _, path) => {
                if let Side::Mounted(mounted, ..) = source {
                    keep.check_mount(&mounted.daemon.status)?;
                }
                // It would be read while it is written.
                let image = target.image().and_then(|image| rustix::fs::stat(image).ok());
                let left_out = image.map(|stat| (host::link_key(&stat), "the image of the volume that it would go to"));
                let options = host_tree::Options {
                    mounts: match source {
                        _ if self.one_file_system => Mounts::Empty,
                        Side::Mounted(..) => Mounts::Foreign,
                        _ => Mounts::Enter,
                    },
                    device: source.device()?,
                    // Of a file that is to be linked nothing is read.
                    follow: follow != Follow::Never && (!makes_links || source.is_link()),
                    follow_all: (follow == Follow::Always).then(|| follow_links(source, path)).transpose()?,
                    streams: !self.is_recursive() && !makes_links,
                    links,
                    left_out,
                    wanted,
                    ..Default::default()
                };
                host_tree::read(path, options)
            }
            Side::Volume(volume, place) => {
                let stat = match follow {
                    Follow::Never => volume.session().lstat(&place.path).at(place)?,
                    Follow::Operands | Follow::Always => volume.session().stat(&place.path).at(place)?,
                };
                let options =
                    volume_tree::Options { follow_all: follow == Follow::Always, links, wanted, ..Default::default() };
                Ok(volume_tree::read(|| session(volume), stat.node(), place.clone(), options))
            }
        }
    }
}

/// Where the symbolic links below a source lead: on a mounted volume, to files of the volume only.
fn follow_links(source: &Side, path: &Path) -> Result<host_tree::Links> {
    if let Side::Mounted(mounted, place, _) = source {
        let (files, place) = (mounted.files.try_clone().at(place)?, place.clone());
        return Ok(Arc::new(move |path| match files.existing_path(&join(&place.path, path)) {
            Err(Error::Refused(errno)) => Err(errno),
            found => found.map_err(|_| Errno::IO),
        }));
    }
    let top = path.to_owned();
    let real = move |path: &[u8]| top.join(std::ffi::OsStr::from_bytes(path)).canonicalize();
    Ok(Arc::new(move |path| real(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))))
}

/// The caller's umask. Reading it means setting it, while no other thread makes files.
fn umask() -> u16 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.bits() as u16
}
