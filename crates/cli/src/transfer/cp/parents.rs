//! `cp --parents`: a file keeps the directories that its operand names above it.

use super::super::batch::Meta;
use super::super::target::{Keep, Target};
use super::super::{host, path, session, volume_tree};
use super::side::Side;
use crate::context::Context;
use crate::failure::{At, Failure, errno_text};
use crate::show::name::{Shown, join};
use crate::volume::Place;
use anyhow::Result;
use myriad_engine::{Errno, Error};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The name that an operand gets below the target: its path without what stands for nothing.
pub fn name(source: &Side) -> Result<Vec<u8>> {
    let operand = source.operand();
    let given = match source {
        Side::Standard => Vec::new(),
        Side::Host(path) => path.as_os_str().as_bytes().to_vec(),
        Side::Volume(_, place) | Side::Mounted(_, place, _) => place.path.clone(),
    };
    match path::clean(&given) {
        Ok(name) if name.is_empty() => {
            Err(Failure::new(operand, "has no name of its own", "name a file, or leave out --parents").into())
        }
        Ok(name) => Ok(name),
        Err(what) => Err(Failure::new(operand, what, "leave out --parents").into()),
    }
}

/// A directory above the source: what it keeps, and the place of it as it is printed.
pub struct Parent {
    meta: Meta,
    xattrs: Vec<u8>,
    operand: Vec<u8>,
}

/// The directories that `above`, the clean path of the directory that a source is in, leads through, outermost first.
pub fn of(source: &Side, above: &[u8]) -> Result<Vec<Parent>> {
    let ends = (0..=above.len()).filter(|&end| end == above.len() || above[end] == b'/').filter(|&end| end > 0);
    let parent = |end: usize| -> Result<Parent> {
        let path = &above[..end];
        let mut xattrs = Vec::new();
        let (meta, operand) = match source {
            Side::Standard => unreachable!("it has no name"),
            Side::Volume(volume, place) => {
                let place = Place { path: join(b"/", path), ..place.clone() };
                let session = session(volume);
                let stat = session.stat(&place.path).at(&place)?;
                volume_tree::xattrs(&session, stat.node(), &mut xattrs).at(&place)?;
                (volume_tree::meta(&stat), place.bytes())
            }
            Side::Mounted(mounted, place, _) => {
                let place = Place { path: join(b"/", path), ..place.clone() };
                let found = mounted.files.host_path(&place.path, true).at(&place)?;
                (of_host(&found, &place, &mut xattrs)?, place.bytes())
            }
            Side::Host(whole) => {
                let path = if whole.is_absolute() { join(b"/", path) } else { path.to_vec() };
                (of_host(Path::new(OsStr::from_bytes(&path)), &Shown(&path), &mut xattrs)?, path)
            }
        };
        Ok(Parent { meta, xattrs, operand })
    };
    ends.map(parent).collect()
}

fn of_host(path: &Path, place: &dyn std::fmt::Display, xattrs: &mut Vec<u8>) -> Result<Meta> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(std::io::Error::from).at(place)?;
    let stat = rustix::fs::fstat(&directory).map_err(std::io::Error::from).at(place)?;
    let read = host::Xattrs::default().read(&host::Named::Open(directory.as_fd()), xattrs);
    read.map_err(Error::Refused).at(place)?;
    host::meta(&stat).ok_or(Error::Refused(Errno::INVAL)).at(place)
}

/// Directories that were made or found on the way to a file, outermost first. They get what they keep once the file is there.
pub struct Made<T: Target> {
    target: T,
    /// Each with whether it was made.
    directories: Vec<(T::Dir, bool)>,
}

impl<T: Target> Made<T> {
    /// Makes those of the directories `above` that are missing, in `top`, which prints as `place`.
    pub fn make(
        context: &Context,
        target: T,
        top: T::Dir,
        (above, parents): (&[u8], &[Parent]),
        place: &[u8],
        is_told: bool,
    ) -> Result<Self> {
        let mut directories: Vec<(T::Dir, bool)> = Vec::new();
        let mut made = place.to_vec();
        for (name, parent) in above.split(|&byte| byte == b'/').zip(parents) {
            let dir = directories.last().map_or(&top, |(dir, _)| dir);
            made = join(&made, name);
            let entered = match target.make_dir(dir, name) {
                Ok(dir) => {
                    if is_told {
                        let mut out = context.out();
                        out.name(&parent.operand)?;
                        out.write_all(b" -> ")?;
                        out.name(&made)?;
                        out.write_all(b"\n")?;
                    }
                    Ok((dir, true))
                }
                Err(Error::Refused(Errno::EXIST)) => target.open_dir(dir, name).map(|dir| (dir, false)),
                Err(error) => Err(error),
            };
            directories.push(match entered {
                Err(Error::Refused(Errno::NOTDIR | Errno::LOOP)) => {
                    let what = errno_text(Errno::NOTDIR);
                    return Err(Failure::new(Shown(&made), what, "remove it, or choose another target").into());
                }
                entered => entered.at(Shown(&made))?,
            });
        }
        Ok(Self { target, directories })
    }

    pub fn last(&self) -> Option<&T::Dir> {
        self.directories.last().map(|(dir, _)| dir)
    }

    /// Gives them their attributes: what is in them is done, so their times and modes can be what they are to be.
    pub fn finish(&self, parents: &[Parent], keep: Keep) -> Result<()> {
        for ((dir, is_new), parent) in self.directories.iter().zip(parents).rev() {
            if *is_new && keep.keeps_modes() {
                // The ones that the directory above hands down.
                self.target.drop_acls(dir).at(Shown(&parent.operand))?;
            }
            let attrs = match is_new {
                true => keep.attrs_of_new(&parent.meta, self.target.given_group(dir)),
                false => keep.attrs_of_old(&parent.meta),
            };
            self.target.finish_dir(dir, &attrs, &keep.xattrs(&parent.xattrs)).at(Shown(&parent.operand))?;
        }
        Ok(())
    }
}
