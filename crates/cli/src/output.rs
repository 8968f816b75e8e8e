//! Standard output: raw bytes for a pipe, nothing that could steer a terminal for a terminal.

use crate::show::name::{Shown, needs_quotes};
use serde_json::Value;
use std::io::{self, BufWriter, IsTerminal, LineWriter, Write};

pub struct Output {
    writer: Box<dyn Write>,
    is_terminal: bool,
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
        Self { writer, is_terminal }
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
        serde_json::to_writer(&mut self.writer, value)?;
        self.write_all(b"\n")
    }

    /// Writes what is left. An error here is the last chance to hear of a full disk behind the redirection.
    pub fn finish(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
