//! What a verb that changes files says of each: nothing, words as GNU's tools print with -v, or lines of JSON.
//!
//! The JSON has one shape for all these verbs: an object with `change` is about one file, and the last one, without it,
//! sums up. `docs/json.md` lists the fields.

use crate::context::Context;
use crate::failure::{Kind, kind};
use crate::show::name::put;
use crate::status::Status;
use crate::volume::Place;
use anyhow::Result;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

/// Of verbs that have nothing to say in words.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct JsonArgs {
    /// Print a line of JSON for each file that was changed, and one that sums up; errors are lines of JSON as well
    #[arg(long)]
    pub json: bool,
}

/// Of verbs that can say what they did.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct TellArgs {
    /// Say what was done to each file
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    #[command(flatten)]
    pub json: JsonArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Silent,
    Words,
    Json,
}

/// The changes of one run.
pub struct Changes<'c> {
    context: &'c Context,
    verb: &'static str,
    how: How,
    changed: Cell<u64>,
    start: Instant,
}

impl<'c> Changes<'c> {
    pub fn new(context: &'c Context, verb: &'static str, tell: TellArgs) -> Self {
        let how = match (tell.json.json, tell.verbose) {
            (true, _) => How::Json,
            (_, true) => How::Words,
            _ => How::Silent,
        };
        Self { context, verb, how, changed: Cell::new(0), start: Instant::now() }
    }

    /// Nobody wants to hear of single files.
    pub fn is_silent(&self) -> bool {
        self.how == How::Silent
    }

    /// The file at `place` was changed, in one way or the other.
    pub fn tell(
        &self,
        place: &Place,
        change: &str,
        words: impl FnOnce() -> String,
        fields: impl FnOnce(&mut Map<String, Value>),
    ) -> Result<()> {
        self.changed.set(self.changed.get() + 1);
        if self.how == How::Json {
            let mut object = Map::new();
            object.insert("verb".into(), self.verb.into());
            object.insert("change".into(), change.into());
            put(&mut object, "image", place.image.as_os_str().as_bytes());
            put(&mut object, "path", &place.path);
            fields(&mut object);
            return Ok(self.context.out().json(&object.into())?);
        }
        self.say(words)
    }

    /// Something of a file that is no change.
    pub fn say(&self, words: impl FnOnce() -> String) -> Result<()> {
        if self.how == How::Words {
            writeln!(self.context.out(), "{}", words())?;
        }
        Ok(())
    }

    /// Sums up, if the run was one, and says how it went.
    pub fn finish(self, result: Result<()>) -> Result<Status> {
        let ended = result.as_ref().err().map(kind);
        if self.how == How::Json && !matches!(ended, Some(Kind::Usage | Kind::Pipe)) {
            let mut object = Map::new();
            object.insert("verb".into(), self.verb.into());
            object.insert("changed".into(), self.changed.get().into());
            object.insert("errors".into(), (self.context.errors() + u64::from(ended.is_some())).into());
            object.insert("complete".into(), ended.is_none().into());
            object.insert("seconds".into(), self.start.elapsed().as_secs_f64().into());
            self.context.out().json(&object.into())?;
        }
        result.map(|()| self.context.status())
    }
}
