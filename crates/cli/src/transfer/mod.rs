//! Files in and out of volumes: the verbs `import`, `export`, `cp` and `verify`.
//!
//! ```text
//! sources                      sinks
//! host_tree    \             / writer -> volume_target
//! volume_tree   > batches ->   writer -> host_target
//! archive      /   (run)     \ archive, stream
//! ```
//!
//! A source has threads of its own; the sink runs on the main thread, so both cores work. `batch` is what travels between
//! them, `run` the loop that moves it. `verify` compares two trees and uses none of this. `destination` says what a name
//! on the host means that a single file is to go to, and `cp` is a folder of its own.
//!
//! What is left out and what is replaced: `exclude` has the patterns, `existing` says what happens to a file that is there, `delete`
//! removes what `import --delete` does not find in the source, `dry` is a target for a dry run, and `link` has the links that `cp -l` and
//! `cp -s` make instead of copies.
//!
//! Not here: what a volume is. These verbs know the engine by its API only.

mod acl;
mod archive;
pub(crate) mod batch;
pub(crate) mod compress;
mod cp;
mod delete;
mod destination;
mod dry;
mod exclude;
mod existing;
mod export;
mod holes;
mod host;
mod host_target;
mod host_tree;
mod import;
mod link;
pub(crate) mod path;
mod run;
mod stream;
pub(crate) mod tar;
mod target;
mod verify;
mod volume_target;
mod volume_tree;
mod writer;

pub use cp::Cp;
pub use export::Export;
pub use import::Import;
pub use verify::Verify;

use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::{name, owner};
use crate::volume::{Guard, Live, Place, Tree, Volume};
use anyhow::Result;
use batch::{Entry, Wanted};
use exclude::Excludes;
use existing::Existing;
use myriad_engine::{Cred, Errno, Error, FileType, Node, Session};
use run::{Done, Outcome, Tally};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use target::Owner;

/// What to do about files that are there.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
struct ExistingArgs {
    /// Leave files that are there as they are, also incomplete ones; the summary counts those that differ in type, size or time
    #[arg(long, conflicts_with = "replacing")]
    skip_existing: bool,
    /// Replace files that are there, each in one step once its replacement is whole
    #[arg(long, group = "replacing")]
    replace: bool,
    /// Replace files that are there and differ in type, size, time, mode or owner; contents and attributes are not compared
    #[arg(short, long, group = "replacing")]
    update: bool,
    /// With --replace or --update, replace a file though it is a volume; never one that is in use
    #[arg(long, requires = "replacing")]
    force: bool,
}

impl ExistingArgs {
    fn existing(self) -> Existing {
        match self {
            Self { skip_existing: true, .. } => Existing::Skip,
            Self { replace: true, .. } => Existing::Replace,
            Self { update: true, .. } => Existing::Differing,
            _ => Existing::Refuse,
        }
    }

    fn guard(self) -> Guard {
        Guard::unless(self.force)
    }
}

/// Which files import and export take, and what they tell of each.
#[derive(clap::Args, Clone, Debug, Default)]
struct SelectArgs {
    /// Leave out files that match, and what is below them; may be given several times; see the description
    #[arg(long, value_name = "PATTERN", value_parser = exclude::parser())]
    exclude: Vec<exclude::Pattern>,
    /// Change nothing; print what would be made, or removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print each file that is made, or removed
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
}

/// A paragraph about `--exclude`.
const PATTERNS: &str = "A pattern of --exclude is compared with the name of a file; one with a slash in it with as many names from \
    the end of its path, and one that begins with a slash with the whole path from the source's top. A slash at its end: \
    directories only. `*` and `?` match any bytes, or one, but no slash; `**` any, slashes too; `[a-z]` one of a set, `[!a-z]` \
    one that is not; `\\` takes the meaning from the next byte.";

impl SelectArgs {
    fn excludes(&self) -> Excludes {
        Excludes::new(&self.exclude)
    }

    /// What a source reads when nothing is made of it: no content.
    fn wanted(&self) -> Option<Wanted> {
        self.dry_run.then(|| -> Wanted { Arc::new(|_, _| false) })
    }

    fn tells(&self, report: ReportArgs) -> bool {
        self.verbose || self.dry_run && !report.json
    }

    /// The verb's word for what was done: `did`, or another one where only what differs was of interest.
    fn done(&self, did: &'static str, existing: ExistingArgs) -> Done {
        Done { did: if existing.update { "updated" } else { did }, is_dry: self.dry_run }
    }
}

/// Prints a file that was made, on standard output unless that is the archive.
fn tell_made(context: &Context, path: &[u8], entry: &Entry, outcome: Outcome, is_archive: bool) -> Result<()> {
    if outcome == Outcome::Merged || path.is_empty() {
        return Ok(());
    }
    tell_path(context, b"", path, entry.meta.file_type() == FileType::Directory, is_archive)
}

fn tell_path(context: &Context, what: &[u8], path: &[u8], is_directory: bool, is_archive: bool) -> Result<()> {
    let slash: &[u8] = if is_directory { b"/" } else { b"" };
    let line = [what, path, slash].concat();
    if is_archive {
        context.note(&name::Shown(&line).to_string());
        return Ok(());
    }
    let mut out = context.out();
    out.name(&line)?;
    Ok(out.write_all(b"\n")?)
}

/// What import and export say at the end, and what they mind.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
struct ReportArgs {
    /// Count files that may not be read instead of reporting each as an error
    #[arg(long)]
    skip_unreadable: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// A session that passes all checks and gives modes in full.
fn session(volume: &Volume) -> Session {
    volume.fs().session(Cred { umask: 0, ..Cred::root() })
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    owner::parse(text)
}

/// An owner given on the command line, or the source's.
fn owner_or_source(owner: Option<(u32, u32)>) -> Owner {
    owner.map_or(Owner::AsSource, |(uid, gid)| Owner::Set(uid, gid))
}

/// Where a transfer begins in a volume: a directory, and the name in it that is the beginning, unless that is the
/// directory itself.
struct Top {
    dir: Node,
    base: Option<Vec<u8>>,
    /// The place of `dir`.
    place: Place,
}

/// The directory `place`, or, if there is nothing yet, the directory it is to be in.
fn top(session: &Session, place: &Place) -> Result<Top> {
    match session.stat(&place.path) {
        Ok(stat) if stat.is_dir() => Ok(Top { dir: stat.node(), base: None, place: place.clone() }),
        Ok(_) => Err(Failure::new(place, "is not a directory", "name a directory, or a name that is free").into()),
        Err(Error::Refused(Errno::NOENT)) => parent(session, place),
        Err(error) => Err(error).at(place),
    }
}

/// The same below a mount: the directory's path on the host, and the name.
fn top_mounted(files: &Live, place: &Place) -> Result<(PathBuf, Option<Vec<u8>>)> {
    match files.stat(&place.path) {
        Ok(stat) if stat.is_dir() => Ok((files.host_path(&place.path, true).at(place)?, None)),
        Ok(_) => Err(Failure::new(place, "is not a directory", "name a directory, or a name that is free").into()),
        Err(Error::Refused(Errno::NOENT)) => {
            let path = files.host_path(&place.path, false).at(place)?;
            match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => Ok((parent.to_owned(), Some(name.as_bytes().to_vec()))),
                _ => Err(Failure::new(place, "has no name of its own", "name a file").into()),
            }
        }
        Err(error) => Err(error).at(place),
    }
}

/// The directory that `place` is in.
fn parent(session: &Session, place: &Place) -> Result<Top> {
    let Some(base) = name::last(&place.path) else {
        return Err(Failure::new(place, "has no name of its own", "name a file").into());
    };
    let end = place.path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let trimmed = &place.path[..end];
    let directory = match path::split(trimmed).0 {
        b"" => b"/".to_vec(),
        directory => directory.to_vec(),
    };
    let up = Place { image: place.image.clone(), path: directory };
    match session.stat(&up.path) {
        Ok(stat) if stat.is_dir() => Ok(Top { dir: stat.node(), base: Some(base.to_vec()), place: up }),
        Ok(_) => Err(Failure::new(up, "is not a directory", "").into()),
        Err(Error::Refused(Errno::NOENT)) => {
            Err(Failure::new(up, crate::failure::errno_text(Errno::NOENT), "make it with myriad mkdir -p").into())
        }
        Err(error) => Err(error).at(up),
    }
}

/// Says what was done: in words on standard error, for programs on standard output.
fn summarize(context: &Context, verb: &str, done: Done, tally: &Tally, json: bool) -> Result<()> {
    if json {
        context.out().json(&tally.json(verb))?;
    } else if tally.is_complete || !tally.is_empty() {
        // Of a run that did nothing at all, what ended it says everything.
        let rest = if tally.is_complete { "" } else { "; not complete" };
        context.note(&format!("myriad: {}{rest}", tally.text(done)));
    }
    Ok(())
}
