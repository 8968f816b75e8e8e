//! `-exec` and `-ok`: commands about what was found.

use crate::ask::Asker;
use crate::context::Context;
use crate::failure::{Failure, host_error};
use crate::limits;
use crate::show::name::Shown;
use anyhow::Result;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Stdio};

/// Bytes of names in one command: what xargs(1) hands over, and far below what any kernel takes.
const BATCH_BYTES: usize = 128 << 10;

/// The words of a command, without the `{}` before `+`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    pub words: Vec<OsString>,
    /// With `+`, one run for many files: which of the batches collects them.
    pub many: Option<usize>,
    pub asks: bool,
}

/// Files that wait for their command.
#[derive(Default)]
pub struct Batch {
    places: Vec<OsString>,
    bytes: usize,
}

impl Batch {
    /// Adds a file; whether it is time to run the command.
    pub fn add(&mut self, place: &[u8]) -> bool {
        self.bytes += place.len() + 1;
        self.places.push(OsString::from_vec(place.to_vec()));
        self.bytes >= BATCH_BYTES
    }

    pub fn take(&mut self) -> Vec<OsString> {
        self.bytes = 0;
        std::mem::take(&mut self.places)
    }
}

impl Exec {
    /// The command about one file.
    pub fn words_for(&self, place: &[u8]) -> Vec<OsString> {
        self.words.iter().map(|word| filled(word, place)).collect()
    }

    /// The command about many files.
    pub fn words_for_all(&self, places: Vec<OsString>) -> Vec<OsString> {
        self.words.iter().cloned().chain(places).collect()
    }
}

/// A word with `place` for each `{}`.
fn filled(word: &OsStr, place: &[u8]) -> OsString {
    let mut bytes = Vec::new();
    let mut rest = word.as_bytes();
    while let Some(at) = rest.windows(2).position(|pair| pair == b"{}") {
        bytes.extend(&rest[..at]);
        bytes.extend(place);
        rest = &rest[at + 2..];
    }
    bytes.extend(rest);
    OsString::from_vec(bytes)
}

/// Runs a command; whether it exited with 0. One that cannot be started is reported.
pub fn run(context: &Context, words: &[OsString], has_input: bool) -> Result<bool> {
    // What was printed before comes before what the command prints.
    context.out().flush()?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    if !has_input {
        command.stdin(Stdio::null());
    }
    let status = match limits::as_given(|| command.spawn()).and_then(|mut process| process.wait()) {
        Ok(status) => status,
        Err(error) => {
            let what = format!("cannot be run: {}", host_error(&error));
            context.report(&Failure::new(Shown(words[0].as_bytes()), what, "check its name and PATH").into());
            return Ok(false);
        }
    };
    context.check()?;
    Ok(status.success())
}

/// Asks whether to run a command.
pub fn is_wanted(context: &Context, asker: &Asker, words: &[OsString]) -> Result<bool> {
    let shown: Vec<String> = words.iter().map(|word| Shown(word.as_bytes()).to_string()).collect();
    asker.ask(context, &format!("< {} > ", shown.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stand_for_braces() {
        let fill = |word| filled(OsStr::new(word), b"v.img:/a b");
        assert_eq!(fill("{}"), "v.img:/a b");
        assert_eq!(fill("x{}y{}"), "xv.img:/a byv.img:/a b");
        assert_eq!(fill("{"), "{");
    }

    #[test]
    fn batches_are_bounded() {
        let mut batch = Batch::default();
        let count = (1..).find(|_| batch.add(&[b'x'; 99])).unwrap();
        assert_eq!(count, BATCH_BYTES.div_ceil(100));
        assert_eq!(batch.take().len(), count);
        assert!(!batch.add(b"x"));
    }
}
