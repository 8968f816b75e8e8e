//! Operands of `cp`: files of the host or of a volume, and those whose volume is open.

use crate::failure::{At, Failure, errno_text, image_name};
use crate::show::name::{self, join};
use crate::volume::{Mounted, Opened, Place, Volume, Volumes};
use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use myriad_engine::{Errno, FileType};
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A file of the host or of a volume, or `-`.
#[derive(Clone, Debug)]
pub enum Operand {
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

    /// As it was given.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Standard => b"-".to_vec(),
            Self::Host(path) => path.as_os_str().as_bytes().to_vec(),
            Self::Volume(place) => [place.image.as_os_str().as_bytes(), b":", &place.path].concat(),
        }
    }

    /// As it was given, with a path below it.
    pub fn bytes_below(&self, path: &[u8]) -> Vec<u8> {
        join(&self.bytes(), path)
    }

    /// The last name of it, under which it is copied into a directory.
    pub fn name(&self) -> Option<&[u8]> {
        self.path().and_then(name::last)
    }

    /// Whether it ends in `.` or `..`: what stands for a directory, and is no name that a copy could have.
    pub fn ends_in_dots(&self) -> bool {
        let last = self.path().and_then(|path| path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()));
        matches!(last, Some(b"." | b".."))
    }

    /// The path of it, on the host or in its volume.
    fn path(&self) -> Option<&[u8]> {
        match self {
            Self::Standard => None,
            // Not by the components of a path, of which a dot at the end is none.
            Self::Host(path) => Some(path.as_os_str().as_bytes()),
            Self::Volume(place) => Some(&place.path),
        }
    }

    /// The file `name` in this directory.
    pub fn below(&self, name: &[u8]) -> Self {
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

pub fn operand() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().map(|argument| Operand::parse(&argument)))
}

/// An operand whose volume is open.
pub enum Side {
    Standard,
    Host(PathBuf),
    Volume(Rc<Volume>, Place),
    /// A file of a volume that is mounted, and its path on the host.
    Mounted(Rc<Mounted>, Place, PathBuf),
}

impl Side {
    pub fn of(volumes: &mut Volumes, operand: &Operand, follow: bool) -> Result<Self> {
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

    pub fn operand(&self) -> Operand {
        match self {
            Self::Standard => Operand::Standard,
            Self::Host(path) => Operand::Host(path.clone()),
            Self::Volume(_, place) | Self::Mounted(_, place, _) => Operand::Volume(place.clone()),
        }
    }

    /// The file `name` beside it, in the same directory.
    pub fn beside(&self, name: &[u8]) -> Self {
        match self {
            Self::Standard => Self::Standard,
            Self::Host(path) => Self::Host(path.with_file_name(OsStr::from_bytes(name))),
            Self::Volume(volume, place) => Self::Volume(Rc::clone(volume), place.split().0.below(name)),
            Self::Mounted(mounted, place, path) => {
                let path = path.with_file_name(OsStr::from_bytes(name));
                Self::Mounted(Rc::clone(mounted), place.split().0.below(name), path)
            }
        }
    }

    /// Whether both lie on one file system, of which the files may have further names there.
    pub fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Volume(one, _), Self::Volume(other, _)) => Rc::ptr_eq(one, other),
            (Self::Mounted(one, ..), Self::Mounted(other, ..)) => Rc::ptr_eq(one, other),
            (Self::Host(_), Self::Host(_)) => true,
            _ => false,
        }
    }

    /// The file or device in which its volume lies.
    pub fn image(&self) -> Option<&Path> {
        match self {
            Self::Volume(_, place) => Some(&place.image),
            Self::Mounted(mounted, ..) => Some(mounted.image()),
            Self::Standard | Self::Host(_) => None,
        }
    }

    pub fn host_path(&self) -> Option<&Path> {
        match self {
            Self::Host(path) | Self::Mounted(_, _, path) => Some(path),
            Self::Standard | Self::Volume(..) => None,
        }
    }

    /// Of a file of a volume that is mounted: the number of its device.
    pub fn device(&self) -> Result<Option<u64>> {
        match self {
            Self::Mounted(mounted, place, _) => Ok(Some(mounted.files.device().at(place)?)),
            Self::Standard | Self::Host(_) | Self::Volume(..) => Ok(None),
        }
    }

    /// The number of the device that a directory must have in which files of this side are made. The root of a mount has its own name in one of the
    /// host's.
    pub fn device_at(&self, directory: &Path) -> Result<Option<u64>> {
        if let Self::Mounted(mounted, place, _) = self
            && mounted.files.existing_path(b"/").at(place)?.parent() == Some(directory)
        {
            return Ok(None);
        }
        self.device()
    }

    /// What it is, a link followed; `None` if nothing is there, or nobody can tell.
    pub fn file_type(&self) -> Option<FileType> {
        match self {
            Self::Standard => None,
            Self::Host(path) | Self::Mounted(_, _, path) => FileType::from_mode(path.metadata().ok()?.mode() as u16),
            Self::Volume(volume, place) => Some(volume.session().stat(&place.path).ok()?.file_type()),
        }
    }

    /// An error if nothing is there, a link followed, or nobody can tell.
    pub fn check_there(&self) -> Result<()> {
        match self {
            Self::Standard => Ok(()),
            Self::Host(path) | Self::Mounted(_, _, path) => path.metadata().map(drop).at(self.operand()),
            Self::Volume(volume, place) => volume.session().stat(&place.path).map(drop).at(place),
        }
    }

    pub fn is_dir(&self) -> bool {
        self.file_type() == Some(FileType::Directory)
    }

    /// Whether the operand itself is a symbolic link.
    pub fn is_link(&self) -> bool {
        match self {
            Self::Standard => false,
            Self::Host(path) | Self::Mounted(_, _, path) => path.is_symlink(),
            Self::Volume(volume, place) => {
                volume.session().lstat(&place.path).is_ok_and(|stat| stat.file_type() == FileType::Symlink)
            }
        }
    }
}
