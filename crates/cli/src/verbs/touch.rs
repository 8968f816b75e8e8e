//! `touch`: times of files, and new files.

use crate::change::{Changes, JsonArgs, TellArgs};
use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::{date, time};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, ChangeArgs, OpenWrite, Place, Reference, Volumes};
use anyhow::Result;
use myriad_engine::{Errno, Error, SetAttr, SetTime, Stat, Time};

// `-h` is about links here, as everywhere; help is `--help`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Touch {
    /// Set the time of access only, unless -m is given too
    #[arg(short = 'a')]
    access: bool,
    /// Set the time of modification only, unless -a is given too
    #[arg(short = 'm')]
    modification: bool,
    /// Which time to set, as -a and -m
    #[arg(long = "time", value_enum, value_name = "WHICH")]
    which: Option<Which>,
    /// Make no files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Set the times of a symbolic link itself
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// This time instead of now, as date(1) reads it: `2026-11-23 14:00`, `2 days ago`, `@86400`; with -r from the times of FILE
    #[arg(short, long, value_name = "DATE", conflicts_with = "stamp", allow_hyphen_values = true)]
    date: Option<String>,
    /// This time instead of now
    #[arg(short = 't', value_name = "[[CC]YY]MMDDhhmm[.ss]", conflicts_with = "reference")]
    stamp: Option<String>,
    /// The times of this file instead of now: IMAGE:/path, or a file of the host
    #[arg(short, long, value_name = "FILE", value_parser = volume::reference())]
    reference: Option<Reference>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    #[command(flatten)]
    json: JsonArgs,
    /// Files whose times to set
    #[arg(required = true, value_name = "IMAGE:/path", value_parser = volume::place())]
    files: Vec<Place>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    #[value(alias = "atime", alias = "use")]
    Access,
    #[value(alias = "mtime")]
    Modify,
}

impl Command for Touch {
    const NAME: &'static str = "touch";
    const ABOUT: &'static str = "Set the times of files, and make files that are missing";
    const DETAILS: &'static str = "A file that is missing is made, empty, and belongs to the user who runs the command, with mode 0666 less the \
        umask. Dates are of the user's time zone (TZ). A volume holds times from 1677 to 2262; a date beyond is refused.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad touch vol.img:/stamp", "makes a file, or sets its times to now"),
        ("myriad touch -d '2026-11-23 14:00' vol.img:/a", "sets both times"),
        ("myriad touch -m -r vol.img:/a vol.img:/b", "gives /b the time of modification of /a"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let changes = Changes::new(context, Self::NAME, TellArgs { json: self.json, verbose: false });
        let result = Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let times = self.times(volumes)?;
            for file in &self.files {
                context.check()?;
                context.tolerate(self.touch(&changes, volumes, file, times))?;
            }
            Ok(())
        });
        changes.finish(result)
    }
}

impl Touch {
    /// The times to set.
    fn times(&self, volumes: &mut Volumes) -> Result<SetAttr> {
        let wrong = |error: String| Failure::usage("", error, "");
        let reference: Option<Stat> = match &self.reference {
            Some(reference) => Some(reference.stat(volumes, !self.no_dereference)?),
            None => None,
        };
        let time = |of_reference: fn(&Stat) -> Time| -> Result<SetTime> {
            let base = reference.as_ref().map(of_reference);
            Ok(match (&self.date, &self.stamp, base) {
                (Some(text), _, base) => SetTime::At(date::parse(text, base.unwrap_or_else(time::now)).map_err(wrong)?),
                (_, Some(text), _) => SetTime::At(date::parse_stamp(text, time::now()).map_err(wrong)?),
                (.., Some(base)) => SetTime::At(base),
                _ => SetTime::Now,
            })
        };
        let access = self.access || self.which == Some(Which::Access);
        let modification = self.modification || self.which == Some(Which::Modify);
        let all = !access && !modification;
        Ok(SetAttr {
            atime: if all || access { Some(time(|stat| stat.atime)?) } else { None },
            mtime: if all || modification { Some(time(|stat| stat.mtime)?) } else { None },
            ..SetAttr::default()
        })
    }

    fn touch(&self, changes: &Changes<'_>, volumes: &mut Volumes, place: &Place, times: SetAttr) -> Result<()> {
        let volume = volumes.get(&place.image)?;
        let tree = volume.tree();
        let follow = !self.no_dereference;
        let is_made = match tree.set_attr(&place.path, follow, times) {
            Err(Error::Refused(Errno::NOENT)) if self.no_create => return Ok(()),
            // No link is there whose times could be set.
            Err(Error::Refused(Errno::NOENT)) if follow => {
                tree.open_write(&place.path, OpenWrite { create: true, ..OpenWrite::default() }).at(place)?;
                tree.set_attr(&place.path, follow, times).at(place)?;
                true
            }
            result => {
                result.at(place)?;
                false
            }
        };
        if changes.is_silent() {
            return Ok(());
        }
        let stat = if follow { tree.stat(&place.path).at(place)? } else { volume.lstat(place)? };
        changes.tell(place, if is_made { "created" } else { "touched" }, String::new, |fields| {
            fields.insert("atime_ns".into(), stat.atime.into());
            fields.insert("mtime_ns".into(), stat.mtime.into());
        })
    }
}
