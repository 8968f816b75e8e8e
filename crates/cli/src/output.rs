//! Standard output: raw bytes for a pipe, nothing that could steer a terminal for a terminal.

use crate::failure::{Failure, host_error, host_next};
use crate::show::name::{Shown, needs_quotes};
use serde_json::Value;
use std::io::{self, BufWriter, IsTerminal, LineWriter, Seek, Write};
use tempfile::SpooledTempFile;

/// What errors are said to be of.
const PLACE: &str = "standard output";

/// What is kept back stays in memory up to here, and goes to a temporary file beyond.
const HELD_MAX: usize = 16 << 20;

pub struct Output {
    writer: Box<dyn Write>,
    is_terminal: bool,
    /// What is kept back, if it is.
    held: Option<SpooledTempFile>,
    /// It is kept back until it is known to be true, whatever a verb lets go.
    is_doubtful: bool,
}

impl Output {
    pub fn stdout() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        let writer: Box<dyn Write> = if is_terminal {
            Box::new(LineWriter::new(stdout))
        } else {
            Box::new(BufWriter::with_capacity(64 << 10, stdout))
        };
        Self { writer, is_terminal, held: None, is_doubtful: false }
    }

    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// A file name: exactly its bytes, but on a terminal in quotes if it holds control characters.
    pub fn name(&mut self, name: &[u8]) -> io::Result<()> {
        if self.is_terminal && needs_quotes(name) { write!(self, "{}", Shown(name)) } else { self.write_all(name) }
    }

    /// One JSON value on a line of its own.
    pub fn json(&mut self, value: &Value) -> io::Result<()> {
        serde_json::to_writer(&mut *self, value)?;
        self.write_all(b"\n")
    }

    /// Keeps back what is written from here on, if a pipe would get it: its reader might be a verb that wants the volume
    /// which is still open here.
    pub fn hold(&mut self) {
        let is_pipe = rustix::fs::fstat(rustix::stdio::stdout())
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Fifo);
        if is_pipe && !self.is_doubtful {
            self.held = Some(tempfile::spooled_tempfile(HELD_MAX));
        }
    }

    /// Keeps back all that is written from here on, until `settle`.
    pub fn doubt(&mut self) {
        self.held = Some(tempfile::spooled_tempfile(HELD_MAX));
        self.is_doubtful = true;
    }

    /// What was kept back is true, and let go; or it is not, and forgotten.
    pub fn settle(&mut self, is_true: bool) -> io::Result<()> {
        self.is_doubtful = false;
        if is_true {
            return self.release();
        }
        self.held = None;
        Ok(())
    }

    /// Lets go what was kept back.
    pub fn release(&mut self) -> io::Result<()> {
        if self.is_doubtful {
            return Ok(());
        }
        let Some(mut held) = self.held.take() else { return Ok(()) };
        held.rewind()?;
        io::copy(&mut held, &mut self.writer).map_err(named)?;
        Ok(())
    }

    /// Writes what is left. An error here is the last chance to hear of a full disk behind the redirection.
    pub fn finish(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(named)
    }

    /// It takes no more: what it holds and what comes is dropped, for whoever has told of the error and has more to do than to write here.
    pub fn give_up(&mut self) {
        self.writer = Box::new(io::sink());
    }
}

/// An error of writing there, with the name of what it is about. It stays of its kind, for a reader that went away is no error to tell of.
pub fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Failure::new(PLACE, host_error(&error), host_next(&error)))
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.held {
            Some(held) => held.write(bytes),
            None => self.writer.write(bytes).map_err(named),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(named)
    }
}
