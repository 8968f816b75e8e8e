//! The file that a verb takes times, bits, an owner or a size from: in a volume, or on the host.

use super::live::stat_of;
use super::{Place, Volumes};
use crate::failure::{At, Failure, host_error, image_name};
use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use myriad_engine::Stat;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub enum Reference {
    Volume(Place),
    Host(PathBuf),
}

impl Reference {
    /// What names a path in a volume is one, unless the host has a file of just that name.
    fn parse(argument: &OsStr) -> Self {
        match Place::parse(argument) {
            Ok(place) if place.image.is_file() || !Path::new(argument).exists() => Self::Volume(place),
            _ => Self::Host(argument.into()),
        }
    }

    /// Its attributes; of a last symbolic link what it leads to, if `follow`.
    pub fn stat(&self, volumes: &mut Volumes, follow: bool) -> Result<Stat> {
        match self {
            Self::Volume(place) if follow => volumes.get(&place.image)?.tree().stat(&place.path).at(place),
            Self::Volume(place) => volumes.get(&place.image)?.lstat(place),
            Self::Host(path) => {
                let flags = OFlags::PATH | OFlags::CLOEXEC | if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
                let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
                    let next = "give a file of the host, or IMAGE:/path for one in a volume";
                    Failure::new(image_name(path), host_error(&errno.into()), next)
                })?;
                stat_of(file).at(image_name(path))
            }
        }
    }
}

/// Parser of an argument `FILE`: a path of the host or `IMAGE:/path`.
pub fn reference() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().map(|argument| Reference::parse(&argument)))
}
