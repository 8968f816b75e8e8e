//! Sink: the bytes of one regular file, in order, to whatever takes bytes: standard output, a pipe, a device.

use super::batch::{Batch, Body, Entry};
use super::run::{Fault, Outcome, Sink};
use crate::failure::{At, Failure};
use crate::interrupt::Interrupted;
use myriad_engine::FileType;
use std::io::{ErrorKind, Write};

/// What a hole is written from.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

pub struct StreamSink<W: Write> {
    output: W,
    /// The name of the output, for messages.
    place: String,
    /// Size of the file whose data is coming.
    size: Option<u64>,
    written: u64,
}

impl<W: Write> StreamSink<W> {
    pub fn new(output: W, place: String) -> Self {
        Self { output, place, size: None, written: 0 }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.output.write_all(bytes).map_err(|error| self.fault(error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// A reader that went away keeps its own error.
    fn fault(&self, error: std::io::Error) -> Fault {
        match error.kind() {
            ErrorKind::BrokenPipe => Fault::Fatal(error.into()),
            _ => Fault::Fatal(Err::<(), _>(error).at(&self.place).expect_err("an error stays one")),
        }
    }

    fn fill(&mut self, end: u64) -> Result<(), Fault> {
        while self.written < end {
            if let Some(interrupted) = Interrupted::received() {
                return Err(Fault::Fatal(interrupted.into()));
            }
            let length = (end - self.written).min(ZEROS.len() as u64);
            self.write(&ZEROS[..length as usize])?;
        }
        Ok(())
    }
}

impl<W: Write> Sink for StreamSink<W> {
    fn entry(&mut self, batch: &Batch, entry: &Entry) -> Result<Outcome, Fault> {
        match &entry.body {
            Body::Whole(bytes) => self.write(batch.get(*bytes))?,
            Body::Parts(_) => self.size = Some(entry.meta.size),
            _ => {
                debug_assert_ne!(entry.meta.file_type(), FileType::File);
                let what = "takes the content of a single file only";
                return Err(Fault::Entry(Failure::new(&self.place, what, "name a directory").into()));
            }
        }
        Ok(Outcome::Done)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.fill(offset)?;
        self.write(bytes)
    }

    fn end(&mut self) -> Result<(), Fault> {
        match self.size.take() {
            Some(size) => self.fill(size),
            None => Ok(()),
        }
    }

    fn spoil(&mut self) -> Result<(), Fault> {
        // What was written stays written; the error that spoilt it was told.
        self.size = None;
        Ok(())
    }

    fn finish(&mut self, _: bool) -> Result<(), Fault> {
        self.output.flush().map_err(|error| self.fault(error))
    }

    fn belated(&mut self) -> Vec<anyhow::Error> {
        Vec::new()
    }

    fn lost(&self) -> Option<String> {
        None
    }

    fn is_ready(&self) -> bool {
        self.size.is_some()
    }

    fn keeps_parts(&self) -> bool {
        false
    }
}
