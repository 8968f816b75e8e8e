//! What the parts of one run share.

use crate::interrupt::{self, Interrupted};
use crate::output::Output;
use crate::progress::Progress;
use crate::verb::Status;
use indicatif::{MultiProgress, ProgressDrawTarget};
use std::cell::{Cell, RefCell, RefMut};
use std::io::{IsTerminal, Write};

pub struct Context {
    quiet: bool,
    shows_progress: bool,
    failed: Cell<bool>,
    out: RefCell<Output>,
    bars: MultiProgress,
}

impl Context {
    pub fn new(quiet: bool) -> Self {
        interrupt::watch();
        let shows_progress = std::io::stderr().is_terminal() && !quiet;
        let target = if shows_progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self {
            quiet,
            shows_progress,
            failed: Cell::new(false),
            out: RefCell::new(Output::stdout()),
            bars: MultiProgress::with_draw_target(target),
        }
    }

    /// Standard output. Not to be held across a call that may use it too.
    pub fn out(&self) -> RefMut<'_, Output> {
        self.out.borrow_mut()
    }

    /// Tells of an error and remembers it for the exit code; the run goes on.
    pub fn report(&self, error: &anyhow::Error) {
        self.failed.set(true);
        self.say(&format!("myriad: {error:#}"));
    }

    /// Remembers for the exit code that something failed which another program has told of.
    pub fn note_failure(&self) {
        self.failed.set(true);
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
        if !self.quiet {
            self.say(text);
        }
    }

    /// A line on standard error. If that is closed, nobody wants to know.
    fn say(&self, line: &str) {
        self.bars.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }

    /// Goes on with the next operand after an error, except one that ends the run.
    pub fn tolerate(&self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        match result {
            Err(error) if crate::failure::kind(&error) == crate::failure::Kind::Error => {
                self.report(&error);
                Ok(())
            }
            other => other,
        }
    }

    /// Whether long work should go on: an error once SIGINT or SIGTERM has come.
    pub fn check(&self) -> anyhow::Result<()> {
        Interrupted::received().map_or(Ok(()), |interrupted| Err(interrupted.into()))
    }

    /// A line of progress on standard error, if that is a terminal, until it is dropped.
    pub fn progress(&self, what: &'static str) -> Progress {
        Progress::new(&self.bars, what)
    }

    /// How a run that came to its end exits: 1 if something was reported on the way.
    pub fn status(&self) -> Status {
        Status(u8::from(self.failed.get()))
    }
}
