//! Where one source of `cp` goes.

use super::super::destination::Destination;
use super::super::existing::Look;
use super::super::host_target::found as found_on_host;
use super::super::volume_target::found as found_in_volume;
use super::super::{Top, parent, session};
use super::side::Side;
use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::show::name::join;
use crate::volume::{Guard, Place, Tree};
use anyhow::Result;
use myriad_engine::{Errno, Error, FileType, Node, Session};
use rustix::fs::{AtFlags, CWD};
use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Large enough that a pipe or a device is written in few calls.
const BUFFER_SIZE: usize = 256 << 10;

/// What a goal is looked for with.
#[derive(Clone, Copy)]
pub struct Wish {
    /// The content of a single file is to go there, and not what it is.
    pub is_content: bool,
    /// What is there is not written into: a link, pipe or device makes room or stays, but is not followed.
    pub replaces_names: bool,
    /// What is there stays.
    pub spares: bool,
    pub guard: Guard,
}

/// Where one source goes.
pub enum Goal {
    Volume { session: Session, dir: Node, base: Option<Vec<u8>>, place: Place },
    Host { dir: PathBuf, base: Vec<u8> },
    Stream { output: Box<dyn Write>, place: String },
}

impl Goal {
    /// The content of a single file goes to where a link leads, and into a pipe or device.
    pub fn find(context: &Context, target: &Side, name: Option<&[u8]>, wish: Wish) -> Result<Self> {
        let Wish { is_content, .. } = wish;
        let follow = is_content && !wish.spares && !wish.replaces_names;
        match target {
            Side::Standard => Ok(Self::stream(std::io::stdout(), "-".into())),
            Side::Volume(volume, place) => {
                let session = session(volume);
                let mut place = name.map_or(place.clone(), |name| place.below(name));
                if place.is_root() {
                    return Ok(Self::Volume { dir: session.root(), session, base: None, place });
                }
                // A directory that is there, without a name to be made by.
                if !is_content && name.is_none() && target.operand().ends_in_dots() {
                    let dir = session.resolve(&place.path).at(&place)?;
                    return Ok(Self::Volume { session, dir, base: None, place });
                }
                if is_content {
                    check_slash(&place, |path| session.stat(path).map(|_| ()))?;
                }
                if follow {
                    place = behind_links(&session, place)?;
                }
                let Top { dir, base, place } = parent(&session, &place)?;
                Ok(Self::Volume { session, dir, base, place })
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
                Ok(Self::host(Destination::name(&path)?, image_name(&path)))
            }
            Side::Host(path) => {
                let path = name.map_or(path.clone(), |name| path.join(OsStr::from_bytes(name)));
                let destination = if follow {
                    Destination::find(context, &path, wish.guard)?
                } else {
                    if !wish.spares && !path.is_symlink() {
                        wish.guard.check(&path)?;
                    }
                    match name {
                        None if target.operand().ends_in_dots() => {
                            Destination::name(&path.canonicalize().at(image_name(&path))?)?
                        }
                        _ => Destination::name(&path)?,
                    }
                };
                Ok(Self::host(destination, image_name(&path)))
            }
        }
    }

    /// Looks for files that are there, by their paths from where the source begins; `None` for what has none.
    pub fn look(&self) -> Option<Look> {
        match self {
            Self::Volume { session, base, place, .. } => {
                let session = session.fs().session(myriad_engine::Cred::root());
                let top = join(&place.path, base.as_deref().unwrap_or_default());
                Some(Box::new(move |path| Some(found_in_volume(&session.lstat(&join(&top, path)).ok()?))))
            }
            Self::Host { dir, base } => {
                let top = join(dir.as_os_str().as_bytes(), base);
                let stat = move |path: &[u8]| rustix::fs::statat(CWD, join(&top, path), AtFlags::SYMLINK_NOFOLLOW);
                Some(Box::new(move |path| found_on_host(&stat(path).ok()?).ok()))
            }
            Self::Stream { .. } => None,
        }
    }

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
