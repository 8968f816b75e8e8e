//! `readlink`: what symbolic links hold, and where paths lead.

use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::name::put;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::{Errno, Error, FileType};
use serde_json::Map;
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Links on one path: as many as the engine follows.
const LINKS_MAX: usize = 40;

#[derive(clap::Args)]
pub struct Readlink {
    /// Print where the path leads, without links, `.` and `..`; its last name need not exist
    #[arg(short = 'f', long, overrides_with_all = ["canonicalize_existing", "canonicalize_missing"])]
    canonicalize: bool,
    /// Likewise; the whole path has to exist
    #[arg(short = 'e', long, overrides_with_all = ["canonicalize", "canonicalize_missing"])]
    canonicalize_existing: bool,
    /// Likewise; nothing of the path has to exist
    #[arg(short = 'm', long, overrides_with_all = ["canonicalize", "canonicalize_existing"])]
    canonicalize_missing: bool,
    /// No line's end after the only answer
    #[arg(short, long)]
    no_newline: bool,
    /// End each answer with a zero byte, and quote nothing
    #[arg(short, long)]
    zero: bool,
    /// Say nothing of what is no link or leads nowhere; only the exit code tells. So does --quiet
    #[arg(short, long)]
    silent: bool,
    /// Accepted: errors are told unless -s or -q is given
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object a line
    #[arg(long, conflicts_with_all = ["no_newline", "zero"])]
    json: bool,
    /// Links, or paths, to look at
    #[arg(required = true, value_name = "IMAGE:/path", value_parser = volume::place_or_root())]
    files: Vec<Place>,
    #[command(flatten)]
    open: OpenArgs,
}

/// What has to exist of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    AllButLast,
    All,
    Nothing,
}

impl Command for Readlink {
    const NAME: &'static str = "readlink";
    const ABOUT: &'static str = "Show what symbolic links hold, and where paths lead";
    const DETAILS: &'static str = "Without an option, prints the target of each link as it was written. With -f, -e or -m, prints \
        IMAGE:/path of the file, as the other verbs take it; links never lead out of the volume.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad readlink vol.img:/etc/mtab", "prints the target of a link"),
        ("myriad readlink -f vol.img:/usr/bin/vi", "prints the file that a path leads to, through all links"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let needs = match (self.canonicalize, self.canonicalize_existing, self.canonicalize_missing) {
            (true, ..) => Some(Needs::AllButLast),
            (_, true, _) => Some(Needs::All),
            (.., true) => Some(Needs::Nothing),
            _ => None,
        };
        volume::look(context, self.files.iter().map(|file| &*file.image), || {
            Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
                for file in &self.files {
                    context.check()?;
                    match volumes.get(&file.image).and_then(|volume| self.show(context, &volume, file, needs)) {
                        Err(_) if self.silent || context.is_quiet() => context.count_error(),
                        result => context.tolerate(result)?,
                    }
                }
                Ok(())
            })
        })?;
        Ok(context.status())
    }
}

impl Readlink {
    fn show(&self, context: &Context, volume: &Opened, place: &Place, needs: Option<Needs>) -> Result<()> {
        let answer = match needs {
            Some(needs) => Place { path: resolve(volume, place, needs)?, ..place.clone() }.bytes(),
            None if volume.lstat(place)?.file_type() != FileType::Symlink => {
                return Err(Failure::new(place, "not a symbolic link", "-f shows where any path leads").into());
            }
            None => volume.tree().readlink(&place.path).at(place)?,
        };
        let mut out = context.out();
        if self.json {
            let mut object = Map::new();
            put(&mut object, "path", &place.path);
            put(&mut object, "image", place.image.as_os_str().as_bytes());
            let path_start = place.image.as_os_str().len() + 1;
            match needs {
                Some(_) => put(&mut object, "resolved", &answer[path_start..]),
                None => put(&mut object, "target", &answer),
            }
            return Ok(out.json(&object.into())?);
        }
        if self.zero {
            out.write_all(&answer)?;
            return Ok(out.write_all(b"\0")?);
        }
        out.name(&answer)?;
        if self.no_newline && self.files.len() == 1 {
            return Ok(());
        }
        Ok(writeln!(out)?)
    }
}

/// The path of the file that a place leads to, without symbolic links, `.` and `..`.
fn resolve(volume: &Opened, place: &Place, needs: Needs) -> Result<Vec<u8>> {
    let names = |path: &[u8]| {
        let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        names.map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let mut ahead: VecDeque<Vec<u8>> = names(&place.path).into();
    let mut found: Vec<Vec<u8>> = Vec::new();
    let path_of = |found: &[Vec<u8>]| [b"/", found.join(&b'/').as_slice()].concat();
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        if name == b".." {
            found.pop();
            continue;
        }
        found.push(name);
        let path = path_of(&found);
        let stat = match volume.tree().lstat(&path) {
            Ok(stat) => stat,
            Err(Error::Refused(Errno::NOENT | Errno::NOTDIR)) if needs == Needs::Nothing => continue,
            Err(Error::Refused(Errno::NOENT)) if needs == Needs::AllButLast && ahead.is_empty() => continue,
            Err(error) => return Err(error).at(place),
        };
        if stat.file_type() == FileType::Symlink {
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::Refused(Errno::LOOP)).at(place);
            }
            let target = volume.tree().readlink(&path).at(place)?;
            found.pop();
            if target.starts_with(b"/") {
                found.clear();
            }
            for name in names(&target).into_iter().rev() {
                ahead.push_front(name);
            }
        } else if !stat.is_dir() && !ahead.is_empty() && needs != Needs::Nothing {
            return Err(Error::Refused(Errno::NOTDIR)).at(place);
        }
    }
    Ok(path_of(&found))
}
