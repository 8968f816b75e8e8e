//! `mkdir`: directories.

use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::mode;
use crate::verb::{Command, Example, Status};
use crate::volume::{self, Access, ChangeArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::{Errno, Error};

#[derive(clap::Args)]
pub struct Mkdir {
    /// Make missing directories above it too, and accept one that exists
    #[arg(short, long)]
    parents: bool,
    /// Permission bits in octal, whatever the umask says; without it 0777 less the umask
    #[arg(short, long, value_name = "MODE", value_parser = mode::parse)]
    mode: Option<u16>,
    /// Directories to make
    #[arg(required = true, value_name = "IMAGE:/path", value_parser = volume::place())]
    directories: Vec<Place>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Mkdir {
    const NAME: &'static str = "mkdir";
    const ABOUT: &'static str = "Make directories";
    const DETAILS: &'static str = "They belong to the user who runs the command.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad mkdir -p vol.img:/srv/mail/new", "makes a directory and those above it"),
        ("myriad mkdir -m 700 vol.img:/private", "makes a directory that only its owner may enter"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            for directory in &self.directories {
                context.tolerate(volumes.get(&directory.image).and_then(|volume| self.make(&volume, directory)))?;
            }
            Ok(())
        })?;
        Ok(context.status())
    }
}

impl Mkdir {
    fn make(&self, volume: &Opened, place: &Place) -> Result<()> {
        if self.parents {
            return self.make_all(volume, place);
        }
        match self.make_one(volume, &place.path, true) {
            Err(Error::Refused(Errno::NOENT)) => {
                let next = "mkdir -p makes the directories above it too";
                Err(Failure::new(place, crate::failure::errno_text(Errno::NOENT), next).into())
            }
            other => other.at(place),
        }
    }

    fn make_all(&self, volume: &Opened, place: &Place) -> Result<()> {
        let length = place.path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        // The root itself is always there: `length` is 0, and nothing is to be done.
        let is_end = |end: &usize| *end == length || place.path[*end] == b'/' && place.path[*end - 1] != b'/';
        for end in (1..=length).filter(is_end) {
            let path = &place.path[..end];
            match self.make_one(volume, path, end == length) {
                Err(Error::Refused(Errno::EXIST)) if volume.tree().stat(path).is_ok_and(|stat| stat.is_dir()) => (),
                result => result.at(Place { path: path.to_vec(), ..place.clone() })?,
            }
        }
        Ok(())
    }

    fn make_one(&self, volume: &Opened, path: &[u8], is_last: bool) -> myriad_engine::Result<()> {
        volume.tree().mkdir(path, self.mode.filter(|_| is_last))
    }
}
