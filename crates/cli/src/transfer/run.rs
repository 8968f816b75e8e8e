//! The work between a source and a sink, on the main thread: takes batches, finds hard links, counts, tells of what went
//! wrong, and stops for signals.

use super::batch::{Batch, Body, Entry, Feed, LinkKey, Next, Problem, Record};
use super::exclude::Excludes;
use super::tar::pax;
use crate::context::Context;
use crate::failure::{Failure, is_host_full};
use crate::show::name::{Shown, count};
use crate::show::{date, size};
use anyhow::Result;
use myriad_engine::FileType;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Errors that are told one by one; beyond, they are only counted.
const TOLD_MAX: u64 = 20;
/// Entries between looks at the clock.
const STEP: u64 = 256;

/// Where the files of a transfer go.
pub trait Sink {
    /// Takes an entry. After one with `Body::Parts`, `data` and `end` or `spoil` follow if `is_ready` says so.
    fn entry(&mut self, batch: &Batch, entry: &Entry) -> Result<Outcome, Fault>;
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault>;
    fn end(&mut self) -> Result<(), Fault>;
    /// The rest of the data will not come: the file in progress must go.
    fn spoil(&mut self) -> Result<(), Fault>;
    /// Ends the work. `is_cut_short`: more was to come, and what there is must not pass for the whole.
    fn finish(&mut self, is_cut_short: bool) -> Result<(), Fault>;
    /// The name under which what the last entry replaced is kept, in the same directory.
    fn backup(&self) -> Option<&[u8]> {
        None
    }
    /// Errors about entries that were taken before, as when a directory is left.
    fn belated(&mut self) -> Vec<anyhow::Error>;
    /// Attributes that could not be kept, in words.
    fn lost(&self) -> Option<String>;
    fn is_ready(&self) -> bool;
    /// Whether a path of the source has something in its place.
    fn has(&self, _path: &[u8]) -> bool {
        false
    }
    /// Whether what was taken stays when the work ends early. A part of an archive or of a stream is worth nothing.
    fn keeps_parts(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Done, and what was there was removed, not written anew.
    Replaced,
    /// A directory that was there, and gets attributes that differ, as far as those are compared.
    Merged,
    /// What was there stays, and looks like this entry: an earlier run has made it.
    Same,
    /// As `Same`, as far as that can be said where no times are kept: it may be another file of that size.
    Alike,
    /// What was there stays, and does not look like it.
    Skipped,
}

impl Outcome {
    fn is_done(self) -> bool {
        matches!(self, Self::Done | Self::Replaced | Self::Merged)
    }
}

/// What went wrong in a sink.
#[derive(Debug)]
pub enum Fault {
    /// This entry only.
    Entry(anyhow::Error),
    /// The user did not want this entry to replace what is there.
    Declined,
    /// The next one would fail too.
    Fatal(anyhow::Error),
}

/// What a summary calls that which was done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub did: &'static str,
    /// Nothing was done: it is what would have been.
    pub is_dry: bool,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Tally {
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub hard_links: u64,
    pub others: u64,
    /// Of regular files, holes not counted.
    pub bytes: u64,
    /// Were there already.
    pub skipped: u64,
    /// Of those, by no wish about each, the ones that do not look like their sources: they may be incomplete.
    pub differing: u64,
    /// The path of the first one.
    pub first_differing: Vec<u8>,
    /// Sockets, on their way into an archive.
    pub left_out: u64,
    /// Were in the target, and not in the source.
    pub deleted: u64,
    pub unreadable: u64,
    pub errors: u64,
    pub is_complete: bool,
    pub elapsed: Duration,
    /// How far transfers came that ended early.
    pub stops: Vec<Stop>,
}

/// A transfer that ended early.
#[derive(Clone, Debug)]
pub struct Stop {
    doing: &'static str,
    /// The path of the last entry that was done.
    after: String,
    is_host_full: bool,
}

impl Tally {
    /// Of what counted as skipped these were no files that an archive has, and nothing is there in their place.
    pub fn leave_out(&mut self, sockets: u64) {
        self.left_out = sockets;
        self.skipped -= sockets;
        self.differing -= sockets;
    }

    /// Of several transfers, one after the other.
    pub fn add(&mut self, other: &Self) {
        let Self { files, directories, symlinks, hard_links, others, bytes, skipped, left_out, .. } = other;
        self.files += files;
        self.directories += directories;
        self.symlinks += symlinks;
        self.hard_links += hard_links;
        self.others += others;
        self.bytes += bytes;
        self.skipped += skipped;
        self.left_out += left_out;
        if self.differing == 0 {
            self.first_differing.clone_from(&other.first_differing);
        }
        self.differing += other.differing;
        self.deleted += other.deleted;
        self.unreadable += other.unreadable;
        self.errors += other.errors;
        self.is_complete &= other.is_complete;
        self.elapsed += other.elapsed;
        self.stops.extend_from_slice(&other.stops);
    }

    /// Says how far transfers came that ended early: once the volume is closed, for until then what they made need not be there.
    /// `unclosed`: what kept it from being closed.
    pub fn tell_stops(&self, context: &Context, unclosed: Option<&anyhow::Error>) {
        for stop in &self.stops {
            let Stop { doing, after, .. } = stop;
            let left = if stop.is_host_full || unclosed.is_some_and(is_host_full) {
                "what of that is there, myriad ls shows; do it again once the host has room"
            } else if unclosed.is_some() {
                "what of that is there, myriad ls shows"
            } else {
                "that and all before it, in the order of the source, is there; the rest is not, and nothing that was there is lost"
            };
            context.note(&format!("myriad: {doing} stopped after {after}: {left}"));
        }
    }

    /// Nothing was done, and nothing is there to be told of.
    pub fn is_empty(&self) -> bool {
        self.entries() + self.skipped + self.left_out + self.deleted + self.unreadable + self.errors == 0
    }

    /// Nothing of what was done is there, or nothing is known of it.
    pub fn forget_done(&mut self) {
        for number in [
            &mut self.files,
            &mut self.directories,
            &mut self.symlinks,
            &mut self.hard_links,
            &mut self.others,
            &mut self.bytes,
            &mut self.deleted,
        ] {
            *number = 0;
        }
        self.is_complete = false;
    }

    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.hard_links + self.others
    }

    fn count(&mut self, entry: &Entry) {
        let counter = match (&entry.body, entry.meta.file_type()) {
            (Body::HardLink(_), _) => &mut self.hard_links,
            (_, FileType::File) => &mut self.files,
            (_, FileType::Directory) => &mut self.directories,
            (_, FileType::Symlink) => &mut self.symlinks,
            _ => &mut self.others,
        };
        *counter += 1;
    }

    pub fn json(&self, verb: &str) -> Value {
        let mut object = Map::new();
        object.insert("verb".into(), verb.into());
        for (key, value) in [
            ("files", self.files),
            ("directories", self.directories),
            ("symlinks", self.symlinks),
            ("hard_links", self.hard_links),
            ("others", self.others),
            ("bytes", self.bytes),
            ("skipped", self.skipped),
            ("differing", self.differing),
            ("left_out", self.left_out),
            ("deleted", self.deleted),
            ("unreadable", self.unreadable),
            ("errors", self.errors),
        ] {
            object.insert(key.into(), value.into());
        }
        object.insert("complete".into(), self.is_complete.into());
        object.insert("seconds".into(), json!(self.elapsed.as_secs_f64()));
        object.into()
    }

    /// In words: `imported 1234 entries (1000 files, ...), 12M in 0.5 s`.
    pub fn text(&self, Done { did, is_dry }: Done) -> String {
        let parts = [
            (self.files, "file"),
            (self.directories, "directory"),
            (self.symlinks, "symbolic link"),
            (self.hard_links, "hard link"),
            (self.others, "special file"),
        ];
        let parts: Vec<String> =
            parts.into_iter().filter(|(number, _)| *number > 0).map(|(number, what)| count(number, what)).collect();
        let seconds = self.elapsed.as_secs_f64();
        let (would, deleted) = if is_dry { ("would have ", "would be deleted") } else { ("", "deleted") };
        let mut text = format!("{would}{did} {}", count(self.entries(), "entry"));
        if self.entries() > 0 {
            text += &format!(" ({})", parts.join(", "));
        }
        text += &format!(", {} in {seconds:.2} s", size::human(self.bytes));
        let unlike =
            format!("of them unlike the source in type, size or time (first {})", Shown(&self.first_differing));
        let rest = [
            (self.skipped, "there already"),
            (self.differing, &*unlike),
            (self.left_out, "left out: sockets"),
            (self.deleted, deleted),
            (self.unreadable, "unreadable"),
            (self.errors, "failed"),
        ];
        let rest: Vec<String> = rest
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, what)| format!("{number} {what}"))
            .collect();
        if rest.is_empty() { text } else { format!("{text}; {}", rest.join(", ")) }
    }
}

/// Tells of an entry that was taken: its path, what became of it, and the name under which what it replaced is kept.
pub type Tell<'a> = &'a dyn Fn(&[u8], &Entry, Outcome, Option<&[u8]>) -> Result<()>;

/// How a transfer treats what goes wrong, and what it tells.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    /// What the user may not read is counted, and is no error.
    pub skip_unreadable: bool,
    /// Word for messages: `importing`.
    pub doing: &'static str,
    /// The source may have times that a volume does not hold: those are told of.
    pub has_any_times: bool,
    /// For a user who wants to see each file that is made.
    pub tell: Option<Tell<'a>>,
}

/// What is said of a further name of a file that is not there under the first one, and what to do: another file is there, or none.
const TAKEN: (&str, &str) = ("another file has the first of its names, and was left as it is", "copy it by itself");
const LOST: (&str, &str) = ("could not be had under the first of its names", "see the error about that one");

/// Inodes that were seen, for those that may have more names.
type Links = HashMap<LinkKey, FirstName>;

/// What the target has under the first name of a file.
enum FirstName {
    /// The file: further names become links to this one.
    Made(Box<[u8]>),
    /// What was there, and may be another file.
    Unsure,
    /// Another file, which stays there.
    Taken,
}

/// Why the target does not have a file of an archive, or has another one under its name.
#[derive(Clone, Copy)]
enum Untaken {
    Excluded,
    /// What was there stays.
    Existing,
    Failed,
}

/// A file whose data is not all there yet.
struct Coming {
    path: Vec<u8>,
    /// Under which further names of it come.
    link: Option<LinkKey>,
    /// Of data so far.
    bytes: u64,
    has_clamped_times: bool,
}

struct Run<'a> {
    context: &'a Context,
    options: Options<'a>,
    tally: Tally,
    links: Links,
    /// Of an archive, which names files by their paths only, those that were not taken. What has such a name in the target is
    /// another file, which gets no further names.
    untaken: Option<HashMap<Box<[u8]>, Untaken>>,
    /// The file that the sink has begun, and does not count before it is whole.
    coming: Option<Coming>,
    /// Whether the content of the last entry was taken.
    is_taken: bool,
    /// What errors of the source begin with.
    name: Option<String>,
    /// What the source gives and the sink does not get.
    excludes: Excludes,
    /// The last path that is done, for what is said of an interruption.
    last: Vec<u8>,
    /// Files whose times are past what a volume holds, and the path of the first one.
    clamped: u64,
    first_clamped: Vec<u8>,
}

/// Moves everything from the source to the sink. The sink is finished in any case, and all problems are told; an error
/// is one that ended the work, after the tally was taken.
pub fn run(context: &Context, mut feed: Feed, sink: &mut dyn Sink, options: Options<'_>) -> (Tally, Result<()>) {
    let start = Instant::now();
    let mut run = Run {
        context,
        options,
        tally: Tally::default(),
        links: Links::new(),
        untaken: feed.is_unordered.then(HashMap::new),
        coming: None,
        is_taken: false,
        name: feed.name.clone(),
        excludes: feed.excludes.clone(),
        last: Vec::new(),
        clamped: 0,
        first_clamped: Vec::new(),
    };
    let result = run.pump(&mut feed, sink);
    // Whoever counts the entries need not go on.
    feed.count.set_done(u64::MAX);
    feed.finish();
    let finished = sink.finish(result.is_err()).map_err(|fault| match fault {
        Fault::Entry(error) | Fault::Fatal(error) => error,
        Fault::Declined => unreachable!("only about entries is the user asked"),
    });
    let result = result.and(finished);
    run.belated(sink);
    let Run { mut tally, last, clamped, first_clamped, .. } = run;
    if clamped > 0 {
        let (held, first) = (date::range(), Shown(&first_clamped));
        let files = if clamped == 1 { "1 file has times".into() } else { format!("{clamped} files have times") };
        context.note(&format!(
            "myriad: {files} past what a volume holds, {held}, and got the nearest; the first is {first}"
        ));
    }
    if let Some(lost) = sink.lost() {
        context.note(&format!("myriad: {lost}"));
    }
    if tally.errors > TOLD_MAX {
        context.note(&format!("myriad: {} more errors like these", tally.errors - TOLD_MAX));
    }
    tally.is_complete = result.is_ok();
    tally.elapsed = start.elapsed();
    if result.is_err() && !sink.keeps_parts() {
        tally.forget_done();
    }
    if let Err(error) = &result
        && tally.entries() > 0
        && !last.is_empty()
    {
        let (doing, after) = (options.doing, Shown(&last).to_string());
        tally.stops.push(Stop { doing, after, is_host_full: is_host_full(error) });
    }
    (tally, result)
}

impl Run<'_> {
    fn pump(&mut self, feed: &mut Feed, sink: &mut dyn Sink) -> Result<()> {
        let progress = self.context.progress(self.options.doing);
        let mut steps = 0;
        loop {
            self.context.check()?;
            let mut batch = match feed.next() {
                Next::Batch(batch) => batch,
                Next::Waiting => continue,
                Next::End => return Ok(()),
            };
            let mut records = std::mem::take(&mut batch.records);
            for record in records.drain(..) {
                self.record(&mut batch, record, sink)?;
                steps += 1;
                if steps % STEP == 0 {
                    self.context.check()?;
                    let done = self.tally.entries() + self.tally.skipped;
                    match (&feed.position, feed.count.total()) {
                        (Some(position), _) if position.total().is_some() => {
                            progress.set_of(position.done(), position.total().expect("just asked"));
                        }
                        (_, Some(total)) => progress.set_of(done, total.max(done)),
                        _ => progress.set(done),
                    }
                }
            }
            // The list has room already: keep it.
            batch.records = records;
            feed.recycle(batch);
        }
    }

    fn record(&mut self, batch: &mut Batch, record: Record, sink: &mut dyn Sink) -> Result<()> {
        match record {
            Record::Entry(mut entry) => {
                self.is_taken = false;
                if self.excludes.covers(batch.get(entry.path), entry.meta.file_type() == FileType::Directory) {
                    return Ok(());
                }
                if let Some(key) = entry.link
                    && !self.link(batch, &mut entry, key, sink)
                {
                    return Ok(());
                }
                if let Body::HardLink(source) = entry.body
                    && let Some(why) = self.untaken(batch.get(source))
                {
                    self.refuse_link(batch.get(entry.path), batch.get(source), why);
                    return Ok(());
                }
                let outcome = sink.entry(batch, &entry);
                self.belated(sink);
                let is_declined = matches!(outcome, Err(Fault::Declined));
                let outcome = if is_declined { Some(Outcome::Skipped) } else { self.tolerate(outcome)? };
                let is_done = outcome.is_some_and(Outcome::is_done);
                self.is_taken = is_done && !matches!(entry.body, Body::HardLink(_));
                let why_not = match outcome {
                    None => Some(Untaken::Failed),
                    Some(Outcome::Skipped | Outcome::Alike) => Some(Untaken::Existing),
                    Some(_) => None,
                };
                self.note_taken(
                    batch.get(entry.path),
                    why_not.filter(|_| entry.meta.file_type() != FileType::Directory),
                );
                let Some(outcome) = outcome else { return Ok(()) };
                let path = batch.get(entry.path);
                let times = [Some(entry.meta.mtime), entry.meta.atime];
                let has_clamped_times = self.options.has_any_times && times.into_iter().flatten().any(pax::is_clamped);
                let link = entry.link.filter(|_| !matches!(entry.body, Body::HardLink(_)));
                let is_coming = is_done && sink.is_ready();
                if is_coming {
                    self.coming = Some(Coming { path: path.to_vec(), link, bytes: 0, has_clamped_times });
                } else if is_done {
                    self.tally.count(&entry);
                    self.tally.bytes += match entry.body {
                        Body::Whole(data) => data.len() as u64,
                        Body::Unread => entry.meta.size,
                        _ => 0,
                    };
                    self.note_done(path, has_clamped_times);
                } else {
                    if entry.meta.file_type() != FileType::Directory {
                        self.tally.skipped += 1;
                        if outcome == Outcome::Skipped && !is_declined {
                            if self.tally.differing == 0 {
                                self.tally.first_differing = path.to_vec();
                            }
                            self.tally.differing += 1;
                        }
                    }
                    self.note_done(path, false);
                }
                if let Some(key) = link.filter(|_| !is_coming) {
                    let first = match outcome {
                        Outcome::Alike => FirstName::Unsure,
                        Outcome::Skipped => FirstName::Taken,
                        _ => FirstName::Made(path.into()),
                    };
                    self.links.insert(key, first);
                }
                if let Some(tell) = self.options.tell.filter(|_| is_done) {
                    tell(path, &entry, outcome, sink.backup())?;
                }
            }
            Record::Data { offset, bytes } if sink.is_ready() => {
                let bytes = batch.get(bytes);
                let result = sink.data(offset, bytes);
                let is_taken = self.tolerate(result)?.is_some();
                if let Some(coming) = self.coming.as_mut().filter(|_| is_taken) {
                    coming.bytes += bytes.len() as u64;
                } else {
                    self.spoil(sink)?;
                }
            }
            Record::End if sink.is_ready() => {
                let result = sink.end();
                let coming = self.coming.take();
                let is_whole = self.tolerate(result)?.is_some();
                let Some(coming) = coming else { return Ok(()) };
                if !is_whole {
                    self.note_taken(&coming.path, Some(Untaken::Failed));
                    return Ok(());
                }
                self.tally.files += 1;
                self.tally.bytes += coming.bytes;
                self.note_done(&coming.path, coming.has_clamped_times);
                self.links.extend(coming.link.map(|key| (key, FirstName::Made(coming.path.into_boxed_slice()))));
            }
            Record::Data { .. } | Record::End => {}
            Record::Spoiled(problem) => {
                self.problem(problem);
                if sink.is_ready() {
                    self.spoil(sink)?;
                }
            }
            Record::Changed(problem) if self.is_taken => self.problem(problem),
            Record::Changed(_) => {}
            Record::Problem(problem) => self.problem(problem),
            Record::Broken(error) => return Err(self.named(error)),
        }
        Ok(())
    }

    fn note_done(&mut self, path: &[u8], has_clamped_times: bool) {
        if has_clamped_times {
            if self.clamped == 0 {
                self.first_clamped = path.to_vec();
            }
            self.clamped += 1;
        }
        self.last.clear();
        self.last.extend_from_slice(path);
    }

    /// The rest of the file that was coming will not come.
    fn spoil(&mut self, sink: &mut dyn Sink) -> Result<()> {
        if let Some(coming) = self.coming.take() {
            self.note_taken(&coming.path, Some(Untaken::Failed));
        }
        let spoiled = sink.spoil();
        self.tolerate(spoiled).map(drop)
    }

    /// Turns a further name of a file into a hard link. `false`: the file could not be had under its first name, and
    /// this one came without content.
    fn link(&mut self, batch: &mut Batch, entry: &mut Entry, key: LinkKey, sink: &dyn Sink) -> bool {
        let known = self.links.get(&key);
        if let Some(FirstName::Made(first)) = known {
            entry.body = Body::HardLink(batch.add(first));
        } else if matches!(entry.body, Body::HardLink(_)) {
            let (what, next) = match known {
                Some(FirstName::Unsure) if sink.has(batch.get(entry.path)) => {
                    self.tally.skipped += 1;
                    return false;
                }
                Some(FirstName::Unsure) => (
                    "the first of its names was there, and without times nothing says whether it is this file's",
                    "give -p, or copy it by itself",
                ),
                Some(_) => TAKEN,
                None => LOST,
            };
            let error = Failure::new(Shown(batch.get(entry.path)), what, next);
            self.problem(Problem::new(error.into()));
            return false;
        }
        true
    }

    /// Why a file of an archive is not what the target has under its name.
    fn untaken(&self, path: &[u8]) -> Option<Untaken> {
        let untaken = self.untaken.as_ref()?;
        if self.excludes.covers(path, false) {
            return Some(Untaken::Excluded);
        }
        untaken.get(path).copied()
    }

    /// Whether the last entry at a path was taken; one archive may have several.
    fn note_taken(&mut self, path: &[u8], why_not: Option<Untaken>) {
        let Some(untaken) = &mut self.untaken else { return };
        match why_not {
            Some(why) => {
                untaken.insert(path.into(), why);
            }
            None => {
                untaken.remove(path);
            }
        }
    }

    /// A further name of a file that was not taken.
    fn refuse_link(&mut self, path: &[u8], source: &[u8], why: Untaken) {
        let excluded = format!("is a further name of {}, which is left out", Shown(source));
        let (what, next) = match why {
            Untaken::Excluded => (&*excluded, "leave out this one as well, or neither"),
            Untaken::Existing => TAKEN,
            Untaken::Failed => LOST,
        };
        self.problem(Problem::new(Failure::new(Shown(path), what, next).into()));
        self.note_taken(path, Some(why));
    }

    fn problem(&mut self, problem: Problem) {
        if problem.is_unreadable {
            self.tally.unreadable += 1;
            if self.options.skip_unreadable {
                return;
            }
        }
        let error = self.named(problem.error);
        self.error(&error);
    }

    fn named(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.name {
            Some(name) => error.context(name.clone()),
            None => error,
        }
    }

    fn belated(&mut self, sink: &mut dyn Sink) {
        for error in sink.belated() {
            self.error(&error);
        }
    }

    fn error(&mut self, error: &anyhow::Error) {
        self.tally.errors += 1;
        if self.tally.errors <= TOLD_MAX {
            self.context.report(error);
        }
    }

    fn tolerate<T>(&mut self, result: Result<T, Fault>) -> Result<Option<T>> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(Fault::Entry(error)) => {
                self.error(&error);
                Ok(None)
            }
            Err(Fault::Declined) => Ok(None),
            Err(Fault::Fatal(error)) => Err(error),
        }
    }
}
