//! `mkdir`: directories.

use crate::change::{Changes, TellArgs};
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::mode_change::ModeChange;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, ChangeArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::{Errno, Error, SetAttr};

#[derive(clap::Args)]
pub struct Mkdir {
    /// Make missing directories above it too, and accept one that exists
    #[arg(short, long)]
    parents: bool,
    /// Permission bits, in octal or as a change of a=rwx (u=rwx,go=), whatever the umask says; without it 0777 less the umask
    #[arg(short, long, value_name = "MODE", value_parser = ModeChange::parse, allow_hyphen_values = true)]
    mode: Option<ModeChange>,
    #[command(flatten)]
    tell: TellArgs,
    /// Directories to make
    #[arg(required = true, value_name = "IMAGE:/path", value_parser = volume::place())]
    directories: Vec<Place>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Mkdir {
    const NAME: &'static str = "mkdir";
    const ABOUT: &'static str = "Make directories";
    const DETAILS: &'static str = "They belong to the user who runs the command. The directories above that -p makes have mode 0777 \
        less the umask, and their owner may write and search them; --mode is for the last one.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad mkdir -p vol.img:/srv/mail/new", "makes a directory and those above it"),
        ("myriad mkdir -m u=rwx,go= vol.img:/private", "makes a directory that only its owner may enter"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let changes = Changes::new(context, Self::NAME, self.tell);
        let umask = volume::umask();
        let result = Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            for directory in &self.directories {
                context.check()?;
                let result = volumes.get(&directory.image).and_then(|volume| {
                    let work = Making { changes: &changes, volume: &volume, umask };
                    self.make(&work, directory)
                });
                context.tolerate(result)?;
            }
            Ok(())
        });
        changes.finish(result)
    }
}

struct Making<'a> {
    changes: &'a Changes<'a>,
    volume: &'a Opened,
    umask: u16,
}

impl Mkdir {
    fn make(&self, work: &Making<'_>, place: &Place) -> Result<()> {
        if self.parents {
            return self.make_all(work, place);
        }
        match work.volume.tree().mkdir(&place.path, self.first_mode(work.umask)) {
            Err(Error::Refused(Errno::NOENT)) => {
                let next = "mkdir -p makes the directories above it too";
                Err(Failure::new(place, crate::failure::errno_text(Errno::NOENT), next).into())
            }
            other => {
                other.at(place)?;
                self.finish(work, place)
            }
        }
    }

    fn make_all(&self, work: &Making<'_>, place: &Place) -> Result<()> {
        let tree = work.volume.tree();
        let length = place.path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        // The root itself is always there: `length` is 0, and nothing is to be done.
        let is_end = |end: &usize| *end == length || place.path[*end] == b'/' && place.path[*end - 1] != b'/';
        for end in (1..=length).filter(is_end) {
            let is_last = end == length;
            let part = Place { path: place.path[..end].to_vec(), ..place.clone() };
            match tree.mkdir(&part.path, if is_last { self.first_mode(work.umask) } else { 0o777 }) {
                Err(Error::Refused(Errno::EXIST)) if tree.stat(&part.path).is_ok_and(|stat| stat.is_dir()) => {}
                result => {
                    result.at(&part)?;
                    if is_last {
                        self.finish(work, &part)?;
                    } else {
                        work.finish_parent(&part)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What it is made with, so that nobody gets in before its mode is what it is to be.
    fn first_mode(&self, umask: u16) -> u16 {
        self.mode.as_ref().map_or(0o777, |mode| mode.apply(0o777, true, umask) & 0o777)
    }

    fn finish(&self, work: &Making<'_>, place: &Place) -> Result<()> {
        if let Some(change) = &self.mode {
            // It may have setgid from the directory above.
            let inherited = work.volume.lstat(place)?.mode & 0o6000;
            let mode = Some(change.apply(0o777 | inherited, true, work.umask));
            work.volume.tree().set_attr(&place.path, false, SetAttr { mode, ..SetAttr::default() }).at(place)?;
        }
        work.tell(place)
    }
}

impl Making<'_> {
    /// Further directories are to be made in it.
    fn finish_parent(&self, place: &Place) -> Result<()> {
        if self.umask & 0o300 != 0 {
            let mode = Some(self.volume.lstat(place)?.mode & 0o7777 | 0o300);
            self.volume.tree().set_attr(&place.path, false, SetAttr { mode, ..SetAttr::default() }).at(place)?;
        }
        self.tell(place)
    }

    fn tell(&self, place: &Place) -> Result<()> {
        let words = || format!("mkdir: created directory {}", place.quoted());
        self.changes.tell(place, "created", words, |fields| {
            fields.insert("type".into(), "directory".into());
        })
    }
}
