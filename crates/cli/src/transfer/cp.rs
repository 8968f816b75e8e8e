//! `cp`: between the host and volumes, in every direction, and to and from standard input and output.

use super::batch::Feed;
use super::destination::Destination;
use super::host_target::{HostTarget, open_directory};
use super::run::{self, Options};
use super::stream::StreamSink;
use super::target::{Keep, Owner};
use super::volume_target::VolumeTarget;
use super::writer::{Existing, Writer};
use super::{host, host_tree, path, session, volume_tree};
use crate::context::Context;
use crate::failure::{At, Failure, errno_text, image_name};
use crate::show::name;
use crate::verb::{Command, Example, Status};
use crate::volume::place::is_same_file;
use crate::volume::{Access, ChangeArgs, Guard, Mounted, Opened, Place, Tree, Volume, Volumes, guard};
use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use myriad_engine::{Errno, Error, FileType, Node, Session};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Large enough that a pipe or a device is written in few calls.
const BUFFER_SIZE: usize = 256 << 10;

/// A file of the host or of a volume, or `-`.
#[derive(Clone, Debug)]
enum Operand {
    /// Standard input, or output.
    Standard,
    Host(PathBuf),
    Volume(Place),
}

impl Operand {
    /// What names a path in a volume is one, unless the host has a file of just that name.
    fn parse(argument: &OsStr) -> Self {
        if argument == "-" {
            return Self::Standard;
        }
        match Place::parse(argument) {
            Ok(place) if place.image.is_file() || !Path::new(argument).exists() => Self::Volume(place),
            _ => Self::Host(argument.into()),
        }
    }

    /// The last name of it, under which it is copied into a directory.
    fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Standard => None,
            Self::Host(path) => path.file_name().map(OsStr::as_bytes),
            Self::Volume(place) => name::last(&place.path),
        }
    }

    /// The file `name` in this directory.
    fn below(&self, name: &[u8]) -> Self {
        match self {
            Self::Standard => Self::Standard,
            Self::Host(path) => Self::Host(path.join(OsStr::from_bytes(name))),
            Self::Volume(place) => Self::Volume(place.below(name)),
        }
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard => f.write_str("-"),
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
    /// Copy directories with all below them, and links, pipes and devices as such
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
    /// Replace a file though it is a volume; never one that is in use
    #[arg(long)]
    force: bool,
    /// Files to copy, then the new name or a directory that gets them; each a path of the host, IMAGE:/path, or `-` for standard
    /// input or output
    #[arg(required = true, num_args = 2.., value_name = "FILE", value_parser = operand())]
    operands: Vec<Operand>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Cp {
    const NAME: &'static str = "cp";
    const ABOUT: &'static str = "Copy files between the host and volumes, or inside a volume";
    const DETAILS: &'static str = "A file that is there is replaced in one step, once the copy is whole; -n leaves it. A pipe or device of \
        the host is read and written as cp(1) does: its content is copied, and it stays what it is; -r and -a copy it as such. \
        A volume is not replaced by a file without --force, and not at all while it is in use: the root of the volume is IMAGE:/. \
        Holes stay \
        holes, and files that are names of one inode stay so, with -r and -a. Without -p or -a, copies belong to you and \
        have the time of the copy. A symbolic link given as an operand is followed, unless with -r or -a.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad cp notes.txt vol.img:/docs/", "copies a file into a volume"),
        ("myriad cp -a vol.img:/docs /srv/docs", "copies a tree out of a volume, with everything"),
        ("myriad cp -r a.img:/x b.img:/y", "copies a tree from volume to volume"),
        ("pg_dump mail | myriad cp - vol.img:/dumps/mail", "copies standard input to a file of a volume"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let (target, sources) = self.operands.split_last().expect("the parser asks for two");
        // A volume that is read and written is opened once, to write.
        let written = Volumes::new(Access::Change, self.change.mount_options());
        let read = Volumes::new(Access::Read, self.change.open.mount_options());
        let is_target = |image: &Path| match target {
            Operand::Volume(place) => is_same_file(&place.image, image),
            _ => false,
        };
        written.finish(|written| {
            read.finish(|read| {
                let target = Side::of(written, target, true)?;
                let into = target.is_dir() && !self.no_target_directory;
                if sources.len() > 1 && !into {
                    let next = match &target {
                        Side::Host(path) if guard::is_volume(path) => {
                            format!("it is a Myriad volume: write {}:/ for its root", target.operand())
                        }
                        _ => "several files can be copied to a directory only".into(),
                    };
                    return Err(Failure::usage(target.operand(), "not a directory", next).into());
                }
                let mut made = HashMap::new();
                for source in sources {
                    context.check()?;
                    let name = source.name().filter(|_| into && !self.no_clobber);
                    let copied = match name.and_then(|name| made.get(name)) {
                        Some(first) => {
                            let target = target.operand().below(name.expect("it is what was found"));
                            Err(Failure::just_made(source, target, first).into())
                        }
                        None => {
                            let volumes = match source {
                                Operand::Volume(place) if is_target(&place.image) => &mut *written,
                                _ => &mut *read,
                            };
                            let side = Side::of(volumes, source, !self.is_recursive());
                            side.and_then(|from| self.copy(context, &from, &target, into))
                        }
                    };
                    let copied = copied.map(|is_made| made.extend(name.filter(|_| is_made).map(|name| (name, source))));
                    context.tolerate(copied)?;
                }
                Ok(())
            })
        })?;
        Ok(context.status())
    }
}

/// An operand whose volume is open.
enum Side {
    Standard,
    Host(PathBuf),
    Volume(Rc<Volume>, Place),
    /// A file of a volume that is mounted, and its path on the host.
    Mounted(Rc<Mounted>, Place, PathBuf),
}

impl Side {
    fn of(volumes: &mut Volumes, operand: &Operand, follow: bool) -> Result<Self> {
        let place = match operand {
            Operand::Standard => return Ok(Self::Standard),
            Operand::Host(path) if path.as_os_str().is_empty() => {
                return Err(Failure::new(operand, errno_text(Errno::NOENT), "name a file, or a directory").into());
            }
            Operand::Host(path) => return Ok(Self::Host(path.clone())),
            Operand::Volume(place) => place.clone(),
        };
        Ok(match volumes.get(&place.image)? {
            Opened::Here(volume) => Self::Volume(volume, place),
            Opened::Mounted(mounted) => {
                let path = mounted.files.host_path(&place.path, follow).at(&place)?;
                Self::Mounted(mounted, place, path)
            }
        })
    }

    fn operand(&self) -> Operand {
        match self {
            Self::Standard => Operand::Standard,
            Self::Host(path) => Operand::Host(path.clone()),
            Self::Volume(_, place) | Self::Mounted(_, place, _) => Operand::Volume(place.clone()),
        }
    }

    /// The image of its volume.
    fn image(&self) -> Option<&Path> {
        match self {
            Self::Volume(_, place) | Self::Mounted(_, place, _) => Some(&place.image),
            Self::Standard | Self::Host(_) => None,
        }
    }

    fn host_path(&self) -> Option<&Path> {
        match self {
            Self::Host(path) | Self::Mounted(_, _, path) => Some(path),
            Self::Standard | Self::Volume(..) => None,
        }
    }

    /// What it is, a link followed; `None` if nothing is there, or nobody can tell.
    fn file_type(&self) -> Option<FileType> {
        match self {
            Self::Standard => None,
            Self::Host(path) | Self::Mounted(_, _, path) => FileType::from_mode(path.metadata().ok()?.mode() as u16),
            Self::Volume(volume, place) => Some(volume.session().stat(&place.path).ok()?.file_type()),
        }
    }

    fn is_dir(&self) -> bool {
        self.file_type() == Some(FileType::Directory)
    }
}

/// Where one source goes.
enum Goal {
    Volume { session: Session, dir: Node, base: Option<Vec<u8>>, place: Place },
    Host { dir: PathBuf, base: Vec<u8> },
    Stream { output: Box<dyn Write>, place: String },
}

impl Cp {
    fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    fn guard(&self) -> Guard {
        Guard::unless(self.force)
    }

    /// Whether anything was made.
    fn copy(&self, context: &Context, source: &Side, target: &Side, into: bool) -> Result<bool> {
        let operand = source.operand();
        let is_link = self.is_link(source);
        let file_type = source.file_type().filter(|_| !is_link);
        if file_type == Some(FileType::Directory) && !self.is_recursive() {
            return Err(Failure::new(operand, "is a directory", "copy it with -r or -a").into());
        }
        let name = match into {
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
        };
        if is_content && file_type.is_some_and(|found| found != FileType::File) && source.image().is_some() {
            let next = "copy it as such with -r or -a";
            return Err(
                Failure::new(operand, "is a pipe, socket or device, without content in the volume", next).into()
            );
        }
        self.check_apart(source, target, name.as_deref())?;
        let goal = self.goal(context, target, name.as_deref(), is_content)?;
        let feed = self.feed(source, target)?;
        let options = Options { doing: "copying", ..Options::default() };
        let existing = if self.no_clobber { Existing::Skip } else { Existing::Replace };
        let keep =
            |owner| Keep { owner, mode: self.keeps(), times: self.keeps(), xattrs: self.archive, umask: umask() };
        let (tally, result) = match goal {
            Goal::Volume { session, dir, base, place } => {
                let owner = match self.keeps() {
                    true => Owner::AsSource,
                    false => Owner::Set(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
                };
                let target = VolumeTarget::new(session, place, self.guard());
                let mut writer = Writer::new(target, dir, base, keep(Some(owner)), existing, false);
                run::run(context, feed, &mut writer, options)
            }
            Goal::Host { dir, base } => {
                let top = open_directory(&dir)?;
                // Only root may give files away.
                let owner = (self.keeps() && rustix::process::geteuid().is_root()).then_some(Owner::AsSource);
                let keep = keep(owner);
                let target = HostTarget::new(dir.as_os_str().as_bytes().to_vec(), self.guard());
                let mut writer = Writer::new(target, top, Some(base), keep, existing, false);
                let result = run::run(context, feed, &mut writer, options);
                rustix::process::umask(rustix::fs::Mode::from_raw_mode(keep.umask.into()));
                result
            }
            Goal::Stream { output, place } => run::run(context, feed, &mut StreamSink::new(output, place), options),
        };
        if tally.skipped > 0 {
            context.note(&format!("myriad: {operand}: {} files were there already", tally.skipped));
        }
        result.map(|()| tally.entries() > 0)
    }

    /// `is_content`: of a single file, which goes to where a link leads, and into a pipe or device.
    fn goal(&self, context: &Context, target: &Side, name: Option<&[u8]>, is_content: bool) -> Result<Goal> {
        let follow = is_content && !self.no_clobber;
        match target {
            Side::Standard => Ok(Goal::stream(std::io::stdout(), "-".into())),
            Side::Volume(volume, place) => {
                let session = session(volume);
                let mut place = name.map_or(place.clone(), |name| place.below(name));
                if place.is_root() {
                    return Ok(Goal::Volume { dir: session.root(), session, base: None, place });
                }
                if is_content {
                    check_slash(&place, |path| session.stat(path).map(|_| ()))?;
                }
                if follow {
                    place = behind_links(&session, place)?;
                }
                let super::Top { dir, base, place } = super::parent(&session, &place)?;
                Ok(Goal::Volume { session, dir, base, place })
            }
            // What the pipes, devices and links of a volume lead to on the host is not meant.
            Side::Mounted(mounted, place, _) => {
                let place = name.map_or(place.clone(), |name| place.below(name));
                if is_content {
                    check_slash(&place, |path| mounted.files.stat(path).map(|_| ()))?;
                }
                let path = mounted.files.host_path(&place.path, follow).at(&place)?;
                if follow && path.is_symlink() {
                    return Err(dangling(&place));
                }
                Ok(Goal::host(Destination::name(&path)?, image_name(&path)))
            }
            Side::Host(path) => {
                let path = name.map_or(path.clone(), |name| path.join(OsStr::from_bytes(name)));
                let destination = if follow {
                    Destination::find(context, &path, self.guard())?
                } else {
                    if !self.no_clobber && !path.is_symlink() {
                        self.guard().check(&path)?;
                    }
                    Destination::name(&path)?
                };
                Ok(Goal::host(destination, image_name(&path)))
            }
        }
    }

    fn keeps(&self) -> bool {
        self.preserve || self.archive
    }

    /// Whether the operand itself is a link that is copied as such.
    fn is_link(&self, source: &Side) -> bool {
        self.is_recursive()
            && match source {
                Side::Standard => false,
                Side::Host(path) | Side::Mounted(_, _, path) => path.is_symlink(),
                Side::Volume(volume, place) => {
                    let stat = volume.session().lstat(&place.path);
                    stat.is_ok_and(|stat| stat.file_type() == FileType::Symlink)
                }
            }
    }

    fn feed(&self, source: &Side, target: &Side) -> Result<Feed> {
        match source {
            Side::Standard => host_tree::read_input(std::io::stdin()).at("-"),
            Side::Host(path) | Side::Mounted(_, _, path) => {
                // It would be read while it is written.
                let image = target.image().and_then(|image| rustix::fs::stat(image).ok());
                let left_out = image.map(|stat| (host::link_key(&stat), "the image of the volume that it would go to"));
                host_tree::read(
                    path,
                    host_tree::Options { follow: !self.is_recursive(), left_out, ..Default::default() },
                )
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
        let same = || -> Result<()> {
            let what = "source and target are the same file, or one inside the other";
            Err(Failure::new(source.operand(), what, "choose another target").into())
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
                    return same();
                }
                let above = match path::split(&to.path).0 {
                    b"" => b"/".to_vec(),
                    above => above.to_vec(),
                };
                let directory = Place { path: above, ..to };
                if stat.is_dir()
                    && let Ok(node) = session.resolve(&directory.path)
                {
                    return match is_inside(session, node, stat.node()) {
                        Ok(true) => same(),
                        Ok(false) => Ok(()),
                        Err(error) => Err(error).at(directory),
                    };
                }
                Ok(())
            }
            _ => {
                let Some(from) = source.host_path() else { return Ok(()) };
                let found = match from.metadata() {
                    Err(_) if from.is_symlink() && self.is_recursive() => return Ok(()),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                        let text = errno_text(Errno::NOENT);
                        return Err(Failure::new(source.operand(), text, "check the name").into());
                    }
                    found => found.at(source.operand())?,
                };
                let Some(to) = target.host_path() else {
                    let is_stdout = matches!(target, Side::Standard)
                        && found.is_file()
                        && rustix::fs::fstat(rustix::stdio::stdout())
                            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (found.dev(), found.ino()));
                    return if is_stdout { same() } else { Ok(()) };
                };
                let to = name.map_or(to.to_owned(), |name| to.join(OsStr::from_bytes(name)));
                // A device may be read and written: what it gives is not what it takes.
                let is_same = is_same_file(from, &to) && !found.file_type().is_char_device();
                // A name that is to become a link, or is one that will be replaced, is another file than what it leads to.
                let becomes_link = if to.is_symlink() { self.is_recursive() } else { self.is_link(source) };
                if is_same && !becomes_link {
                    return same();
                }
                if !found.is_dir() {
                    return Ok(());
                }
                let from = from.canonicalize().at(source.operand())?;
                let absolute = std::path::absolute(&to).at(image_name(&to))?;
                let real = to.canonicalize().or_else(|_| {
                    let parent = absolute.parent().unwrap_or(Path::new("/")).canonicalize()?;
                    Ok::<_, std::io::Error>(parent.join(absolute.file_name().unwrap_or_default()))
                });
                if real.is_ok_and(|real| real.starts_with(&from)) { same() } else { Ok(()) }
            }
        }
    }
}

impl Goal {
    fn stream(output: impl Write + 'static, place: String) -> Self {
        Self::Stream { output: Box::new(BufWriter::with_capacity(BUFFER_SIZE, output)), place }
    }

    fn host(destination: Destination, place: String) -> Self {
        match destination {
            Destination::Name(dir, base) => Self::Host { dir, base },
            Destination::Stream(file) => Self::stream(file, place),
        }
    }
}

/// A file is not made under a name with a slash behind it: that is one of a directory.
fn check_slash(place: &Place, stat: impl Fn(&[u8]) -> Result<(), Error>) -> Result<()> {
    if !place.path.ends_with(b"/") {
        return Ok(());
    }
    match stat(&place.path) {
        Err(Error::Refused(Errno::NOENT)) => {
            let next = "make it with myriad mkdir -p, or leave out the slash";
            Err(Failure::new(place, "there is no such directory", next).into())
        }
        other => other.at(place),
    }
}

fn dangling(place: &Place) -> anyhow::Error {
    let what = "a symbolic link that leads to nothing";
    Failure::new(place, what, "remove the link, or name the file that it is to lead to").into()
}

/// The place that a chain of symbolic links leads to.
fn behind_links(session: &Session, mut place: Place) -> Result<Place> {
    let named = place.clone();
    if session.lstat(&place.path).is_ok_and(|stat| stat.file_type() == FileType::Symlink) {
        // It leads somewhere, and not in a circle.
        session.stat(&place.path).map_err(|_| dangling(&named))?;
    }
    while let Ok(stat) = session.lstat(&place.path)
        && stat.file_type() == FileType::Symlink
    {
        let target = session.readlink(&place.path).at(&named)?;
        let directory = &place.path[..place.path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1)];
        place.path = if target.starts_with(b"/") { target } else { [directory, &target].concat() };
    }
    Ok(place)
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
