//! `cp`: between the host and volumes, in every direction.

use super::batch::Feed;
use super::host_target::HostTarget;
use super::run::{self, Options};
use super::target::{Keep, Owner};
use super::volume_target::VolumeTarget;
use super::writer::{Existing, Writer};
use super::{host_tree, path, session, volume_tree};
use crate::context::Context;
use crate::failure::{At, Failure, errno_text, image_name};
use crate::show::name;
use crate::verb::{Command, Example, Status};
use crate::volume::{Access, ChangeArgs, Opened, Place, Volume, Volumes};
use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use myriad_engine::{Errno, Error, Node};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A file of the host or of a volume.
#[derive(Clone, Debug)]
enum Operand {
    Host(PathBuf),
    Volume(Place),
}

impl Operand {
    /// What names a path in a volume is one, unless the host has a file of just that name.
    fn parse(argument: &OsStr) -> Self {
        match Place::parse(argument) {
            Ok(place) if place.image.is_file() || !Path::new(argument).exists() => Self::Volume(place),
            _ => Self::Host(argument.into()),
        }
    }

    /// The last name of it, under which it is copied into a directory.
    fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Host(path) => path.file_name().map(OsStr::as_bytes),
            Self::Volume(place) => name::last(&place.path),
        }
    }

    /// The file `name` in this directory.
    fn below(&self, name: &[u8]) -> Self {
        match self {
            Self::Host(path) => Self::Host(path.join(OsStr::from_bytes(name))),
            Self::Volume(place) => Self::Volume(place.below(name)),
        }
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(path) => f.write_str(&image_name(path)),
            Self::Volume(place) => place.fmt(f),
        }
    }
}

fn operand() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().map(|argument| Operand::parse(&argument)))
}

#[derive(clap::Args)]
pub struct Cp {
    /// Copy directories with all below them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep modes, times, and, as root or into a volume, owners
    #[arg(short, long)]
    preserve: bool,
    /// Keep everything: as -r -p, with extended attributes and ACLs, and symbolic links as such
    #[arg(short, long)]
    archive: bool,
    /// Leave files that are there as they are
    #[arg(short, long)]
    no_clobber: bool,
    /// Take the target as the new name, also if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Files to copy, then the new name or a directory that gets them; each a path of the host or IMAGE:/path
    #[arg(required = true, num_args = 2.., value_name = "FILE", value_parser = operand())]
    operands: Vec<Operand>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Cp {
    const NAME: &'static str = "cp";
    const ABOUT: &'static str = "Copy files between the host and volumes, or inside a volume";
    const DETAILS: &'static str = "A file that is there is replaced in one step, once the copy is whole; -n leaves it. Holes stay \
        holes, and files that are names of one inode stay so, with -r and -a. Without -p or -a, copies belong to you and \
        have the time of the copy. A symbolic link given as an operand is followed, unless with -r or -a.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad cp notes.txt vol.img:/docs/", "copies a file into a volume"),
        ("myriad cp -a vol.img:/docs /srv/docs", "copies a tree out of a volume, with everything"),
        ("myriad cp -r a.img:/x b.img:/y", "copies a tree from volume to volume"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let (target, sources) = self.operands.split_last().expect("the parser asks for two");
        let is_target = |image: &Path| match target {
            Operand::Volume(place) => place.image.canonicalize().ok() == image.canonicalize().ok(),
            Operand::Host(_) => false,
        };
        // A volume that is read and written is opened once, to write.
        let written = Volumes::new(Access::Change, self.change.mount_options());
        let read = Volumes::new(Access::Read, self.change.open.mount_options());
        written.finish(|written| {
            read.finish(|read| {
                let target = match target {
                    Operand::Volume(place) => Side::of(written.get(&place.image)?, place, true)?,
                    Operand::Host(path) => Side::Host(path.clone(), target.clone()),
                };
                let into = target.is_dir() && !self.no_target_directory;
                if sources.len() > 1 && !into {
                    let next = "several files can be copied to a directory only";
                    return Err(Failure::usage(&self.operands[sources.len()], "not a directory", next).into());
                }
                let mut made = HashMap::new();
                for source in sources {
                    context.check()?;
                    let operand = source;
                    let follow = !self.is_recursive();
                    let source = match source {
                        Operand::Volume(place) if is_target(&place.image) => {
                            written.get(&place.image).and_then(|volume| Side::of(volume, place, follow))
                        }
                        Operand::Volume(place) => {
                            read.get(&place.image).and_then(|volume| Side::of(volume, place, follow))
                        }
                        Operand::Host(path) => Ok(Side::Host(path.clone(), source.clone())),
                    };
                    let name = operand.name().filter(|_| into && !self.no_clobber);
                    let copied = match name.and_then(|name| made.get(name)) {
                        Some(first) => {
                            let target = self.operands[sources.len()].below(name.expect("it is what was found"));
                            Err(Failure::just_made(operand, target, first).into())
                        }
                        None => source.and_then(|from| self.copy(context, &from, &target, into)),
                    };
                    let copied =
                        copied.map(|is_made| made.extend(name.filter(|_| is_made).map(|name| (name, operand))));
                    context.tolerate(copied)?;
                }
                Ok(())
            })
        })?;
        Ok(context.status())
    }
}

/// An operand whose volume is open. A file of a volume that is mounted is one of the host.
enum Side {
    Host(PathBuf, Operand),
    Volume(Rc<Volume>, Place),
}

impl Side {
    fn of(volume: Opened, place: &Place, follow: bool) -> Result<Self> {
        Ok(match volume {
            Opened::Here(volume) => Self::Volume(volume, place.clone()),
            Opened::Mounted(mounted) => {
                Self::Host(mounted.files.host_path(&place.path, follow).at(place)?, Operand::Volume(place.clone()))
            }
        })
    }

    fn operand(&self) -> Operand {
        match self {
            Self::Host(_, operand) => operand.clone(),
            Self::Volume(_, place) => Operand::Volume(place.clone()),
        }
    }

    fn is_dir(&self) -> bool {
        match self {
            Self::Host(path, _) => path.is_dir(),
            Self::Volume(volume, place) => volume.session().stat(&place.path).is_ok_and(|stat| stat.is_dir()),
        }
    }
}

impl Cp {
    fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    /// Whether anything was made.
    fn copy(&self, context: &Context, source: &Side, target: &Side, into: bool) -> Result<bool> {
        let operand = source.operand();
        if source.is_dir() && !self.is_recursive() && !self.is_link(source) {
            return Err(Failure::new(operand, "is a directory", "copy it with -r or -a").into());
        }
        let name = match into {
            true => Some(operand.name().map(<[u8]>::to_vec).ok_or_else(|| {
                Failure::new(&operand, "has no name of its own", "give -T to copy its content into the target")
            })?),
            false => None,
        };
        self.check_apart(source, target, name.as_deref())?;
        let options = Options { doing: "copying", ..Options::default() };
        let existing = if self.no_clobber { Existing::Skip } else { Existing::Replace };
        let keep = |owner| Keep { owner, mode: self.keeps(), times: self.keeps(), xattrs: self.archive, umask: 0 };
        let (tally, result) = match target {
            Side::Volume(volume, place) => {
                let session = session(volume);
                let (dir, base, place) = match name {
                    Some(name) => {
                        let dir = volume.session().stat(&place.path).at(place)?.node();
                        (dir, Some(name), place.clone())
                    }
                    None if place.is_root() => (session.root(), None, place.clone()),
                    None => {
                        let top = super::parent(&session, place)?;
                        (top.dir, top.base, top.place)
                    }
                };
                let owner = match self.keeps() {
                    true => Owner::AsSource,
                    false => Owner::Set(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
                };
                let umask = volume.session().cred().umask;
                let target = VolumeTarget::new(session, place);
                let feed = self.feed(source)?;
                let mut writer = Writer::new(target, dir, base, Keep { umask, ..keep(Some(owner)) }, existing, false);
                run::run(context, feed, &mut writer, options)
            }
            Side::Host(path, _) => {
                let (dir, base) = match name {
                    Some(name) => (path.clone(), name),
                    None => {
                        let absolute = std::path::absolute(path).at(image_name(path))?;
                        match (absolute.parent(), absolute.file_name()) {
                            (Some(parent), Some(name)) => (parent.to_owned(), name.as_bytes().to_vec()),
                            _ => return Err(Failure::new(image_name(path), "cannot be made anew", "").into()),
                        }
                    }
                };
                let top = HostTarget::open(&dir).map_err(std::io::Error::from).at(image_name(&dir))?;
                let feed = self.feed(source)?;
                // Only root may give files away.
                let owner = (self.keeps() && rustix::process::geteuid().is_root()).then_some(Owner::AsSource);
                let umask = umask();
                let target = HostTarget::new(dir.as_os_str().as_bytes().to_vec());
                let mut writer = Writer::new(target, top, Some(base), Keep { umask, ..keep(owner) }, existing, false);
                let result = run::run(context, feed, &mut writer, options);
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask.into()));
                result
            }
        };
        if tally.skipped > 0 {
            context.note(&format!("myriad: {operand}: {} files were there already", tally.skipped));
        }
        result.map(|()| tally.entries() > 0)
    }

    fn keeps(&self) -> bool {
        self.preserve || self.archive
    }

    /// Whether the operand itself is a link that is copied as such.
    fn is_link(&self, source: &Side) -> bool {
        self.is_recursive()
            && match source {
                Side::Host(path, _) => path.is_symlink(),
                Side::Volume(volume, place) => {
                    let stat = volume.session().lstat(&place.path);
                    stat.is_ok_and(|stat| stat.file_type() == myriad_engine::FileType::Symlink)
                }
            }
    }

    fn feed(&self, source: &Side) -> Result<Feed> {
        match source {
            Side::Host(path, _) => {
                host_tree::read(path, host_tree::Options { follow: !self.is_recursive(), ..Default::default() })
            }
            Side::Volume(volume, place) => {
                let stat = match self.is_recursive() {
                    true => volume.session().lstat(&place.path).at(place)?,
                    false => volume.session().stat(&place.path).at(place)?,
                };
                Ok(volume_tree::read(|| session(volume), stat.node(), place.clone(), false))
            }
        }
    }

    /// Refuses to copy a file onto itself, or a directory into itself.
    fn check_apart(&self, source: &Side, target: &Side, name: Option<&[u8]>) -> Result<()> {
        let same = |operand: Operand| -> Result<()> {
            Err(Failure::new(
                operand,
                "source and target are the same file, or one inside the other",
                "choose another target",
            )
            .into())
        };
        match (source, target) {
            (Side::Volume(one, from), Side::Volume(other, to)) if Rc::ptr_eq(one, other) => {
                let session = one.session();
                let stat = session.stat(&from.path).or_else(|_| session.lstat(&from.path)).at(from)?;
                let to = match name {
                    Some(name) => to.below(name),
                    None => to.clone(),
                };
                if session.stat(&to.path).is_ok_and(|there| there.ino == stat.ino) {
                    return same(source.operand());
                }
                let directory = Place { path: [&b"/"[..], path::split(&to.path).0].concat(), ..to };
                if stat.is_dir()
                    && let Ok(node) = session.resolve(&directory.path)
                {
                    return match is_inside(session, node, stat.node()) {
                        Ok(true) => same(source.operand()),
                        Ok(false) => Ok(()),
                        Err(error) => Err(error).at(directory),
                    };
                }
                Ok(())
            }
            (Side::Host(from, _), Side::Host(to, _)) => {
                let to = name.map_or(to.clone(), |name| to.join(OsStr::from_bytes(name)));
                let from = from.canonicalize().at(image_name(from))?;
                let absolute = std::path::absolute(&to).at(image_name(&to))?;
                let real = to.canonicalize().or_else(|_| {
                    let parent = absolute.parent().unwrap_or(Path::new("/")).canonicalize()?;
                    Ok::<_, std::io::Error>(parent.join(absolute.file_name().unwrap_or_default()))
                });
                if real.is_ok_and(|real| real.starts_with(&from)) { same(source.operand()) } else { Ok(()) }
            }
            (Side::Host(from, _), Side::Volume(..)) if !from.exists() && !from.is_symlink() => {
                Err(Failure::new(image_name(from), errno_text(Errno::NOENT), "check the name").into())
            }
            _ => Ok(()),
        }
    }
}

/// Whether `node` is `directory` or inside it.
fn is_inside(session: &myriad_engine::Session, mut node: Node, directory: Node) -> Result<bool, Error> {
    loop {
        if node == directory {
            return Ok(true);
        }
        let parent = session.parent_of(node)?;
        if parent == node {
            return Ok(false);
        }
        node = parent;
    }
}

/// The caller's umask. Reading it means setting it, while no other thread makes files.
fn umask() -> u16 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.bits() as u16
}
