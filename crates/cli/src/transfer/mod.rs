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
//! on the host means that a single file is to go to.
//!
//! Not here: what a volume is. These verbs know the engine by its API only.

mod archive;
pub(crate) mod batch;
pub(crate) mod compress;
mod cp;
mod destination;
mod export;
mod host;
mod host_target;
mod host_tree;
mod import;
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
use myriad_engine::{Cred, Errno, Error, Node, Session};
use run::Tally;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use target::Owner;
use writer::Existing;

/// What to do about files that are there.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
struct ExistingArgs {
    /// Leave files that are there as they are
    #[arg(long, conflicts_with = "replace")]
    skip_existing: bool,
    /// Replace files that are there, each in one step once its replacement is whole
    #[arg(long)]
    replace: bool,
    /// With --replace, replace a file though it is a volume; never one that is in use
    #[arg(long, requires = "replace")]
    force: bool,
}

impl ExistingArgs {
    fn existing(self) -> Existing {
        match (self.skip_existing, self.replace) {
            (true, _) => Existing::Skip,
            (_, true) => Existing::Replace,
            _ => Existing::Refuse,
        }
    }

    fn guard(self) -> Guard {
        Guard::unless(self.force)
    }
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
fn summarize(context: &Context, verb: &str, done: &str, tally: &Tally, json: bool) -> Result<()> {
    if json {
        context.out().json(&tally.json(verb))?;
    } else {
        context.note(&format!("myriad: {}", tally.text(done)));
    }
    Ok(())
}
