//! What the parts of one run share.

use crate::failure::{self, Kind, NotClosed, ToldBefore};
use crate::interrupt::{self, Interrupted};
use crate::output::Output;
use crate::progress::Progress;
use crate::status::Status;
use indicatif::{MultiProgress, ProgressDrawTarget};
use serde_json::json;
use std::cell::{Cell, RefCell, RefMut};
use std::io::{IsTerminal, Write};

pub struct Context {
    quiet: bool,
    /// Errors and notes are lines of JSON.
    json: bool,
    shows_progress: bool,
    errors: Cell<u64>,
    /// Errors that do not end the run are counted only.
    passes_over_errors: Cell<bool>,
    out: RefCell<Output>,
    /// What is kept back of the rest: see `hold`.
    held: RefCell<Option<Held>>,
    bars: MultiProgress,
}

/// What a run has said on standard error that may not be true.
struct Held {
    lines: Vec<String>,
    /// Errors before it.
    errors: u64,
}

impl Context {
    pub fn new(quiet: bool) -> Self {
        interrupt::watch();
        let shows_progress = std::io::stderr().is_terminal() && !quiet;
        let target = if shows_progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self {
            quiet,
            json: false,
            shows_progress,
            errors: Cell::new(0),
            passes_over_errors: Cell::new(false),
            out: RefCell::new(Output::stdout()),
            held: RefCell::new(None),
            bars: MultiProgress::with_draw_target(target),
        }
    }

    /// Whether the run was asked for JSON, so that errors are to be JSON as well.
    pub fn with_json(self, json: bool) -> Self {
        Self { json, ..self }
    }

    /// Standard output. Not to be held across a call that may use it too.
    pub fn out(&self) -> RefMut<'_, Output> {
        self.out.borrow_mut()
    }

    /// Tells of an error and remembers it for the exit code; the run goes on.
    pub fn report(&self, error: &anyhow::Error) {
        if let Some(NotClosed { work, closing }) = error.downcast_ref() {
            self.report(work);
            return self.report(closing);
        }
        self.count_error();
        if error.is::<ToldBefore>() {
            return;
        }
        if self.json {
            self.say(&failure::json(error).to_string());
        } else {
            self.say(&format!("myriad: {error:#}"));
        }
    }

    /// From here on errors that do not end the run show in the exit code alone.
    pub fn pass_over_errors(&self) {
        self.passes_over_errors.set(true);
    }

    /// Remembers, for the exit code, an error that the user did not want to be told of, or that another program has told of.
    pub fn count_error(&self) {
        self.errors.set(self.errors.get() + 1);
    }

    /// Errors so far that did not end the run.
    pub fn errors(&self) -> u64 {
        self.errors.get()
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether anybody sees how far the work is.
    pub fn shows_progress(&self) -> bool {
        self.shows_progress
    }

    /// Tells something that the user did not ask for, unless `--quiet`.
    pub fn note(&self, text: &str) {
        if self.quiet {
            return;
        }
        if self.json {
            self.say(&json!({ "note": text.strip_prefix("myriad: ").unwrap_or(text) }).to_string());
        } else {
            self.say(text);
        }
    }

    /// A line on standard error. If that is closed, nobody wants to know.
    fn say(&self, line: &str) {
        if let Some(held) = &mut *self.held.borrow_mut() {
            held.lines.push(line.to_owned());
            return;
        }
        self.bars.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }

    /// Keeps back whatever is said from here on, until it is known to be true.
    pub fn hold(&self) {
        self.out().doubt();
        *self.held.borrow_mut() = Some(Held { lines: Vec::new(), errors: self.errors.get() });
    }

    /// What was kept back is true.
    pub fn release(&self) -> anyhow::Result<()> {
        self.out().settle(true)?;
        let held = self.held.take();
        held.into_iter().flat_map(|held| held.lines).for_each(|line| self.say(&line));
        Ok(())
    }

    /// What was kept back is not true: it was never said.
    pub fn forget(&self) {
        let _ = self.out().settle(false);
        if let Some(held) = self.held.take() {
            self.errors.set(held.errors);
        }
    }

    /// A question on standard error, in words; the answer comes on the same line.
    pub fn prompt(&self, question: &str) {
        self.bars.suspend(|| {
            let _ = write!(std::io::stderr(), "{question}");
        });
    }

    /// Goes on with the next operand after an error, except one that ends the run.
    pub fn tolerate(&self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        self.tolerated(result).map(|_| ())
    }

    /// As `tolerate`, of an operand that there is more to do with; `None` if it is the next one's turn.
    pub fn tolerated<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        match result {
            Err(error) if failure::kind(&error) == Kind::Error => {
                if self.passes_over_errors.get() {
                    self.count_error();
                } else {
                    self.report(&error);
                }
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Whether long work should go on: an error once SIGINT or SIGTERM has come.
    pub fn check(&self) -> anyhow::Result<()> {
        Interrupted::check()
    }

    /// A line of progress on standard error, if that is a terminal, until it is dropped.
    pub fn progress(&self, what: &'static str) -> Progress {
        Progress::new(&self.bars, what)
    }

    /// How a run that came to its end exits: 1 if something was reported on the way.
    pub fn status(&self) -> Status {
        Status(u8::from(self.errors.get() > 0))
    }
}
