//! Source and sink: an archive, compressed or not, in a file or a pipe.

use super::batch::{Batch, Body, Entry, Feed, Gauge, Record};
use super::compress::{Compression, Encoder, decoder};
use super::run::{Fault, Outcome, Sink};
use super::tar;
use super::target::Owner;
use crate::failure::At;
use crate::interrupt::Interrupted;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Starts to read an archive; `name` is for messages. `size`: of the stream, where it is known. `is_pipe`: reading may wait
/// for ever.
pub fn read(input: impl Read + Send + 'static, name: String, size: Option<u64>, is_pipe: bool) -> Feed {
    let (slots, mut feed) = Feed::new();
    let gauge = Arc::new(Gauge::default());
    gauge.set_total(size.unwrap_or(0));
    feed.position = Some(Arc::clone(&gauge));
    feed.name = Some(name);
    feed.is_unordered = true;
    feed.joins = !is_pipe;
    let mut outlet = slots.open().expect("the feed is in our hands");
    feed.spawn(move || {
        // The sink has gone: nobody is left to tell.
        let _ = match decoder(Counted { input, gauge, done: 0 }) {
            Ok(decoder) => tar::read(decoder, &mut outlet),
            Err(error) => {
                let error = Err::<(), _>(error).at("archive").expect_err("an error stays one");
                outlet.push(Record::Broken(error)).and_then(|()| outlet.flush())
            }
        };
    });
    feed
}

/// Says how much of a stream was read.
struct Counted<R> {
    input: R,
    gauge: Arc<Gauge>,
    done: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.done += count as u64;
        self.gauge.set_done(self.done);
        Ok(count)
    }
}

/// Takes what an archive would hold, and writes none.
#[derive(Default)]
pub struct Listing {
    pub left_out: u64,
}

impl Sink for Listing {
    fn entry(&mut self, _: &Batch, entry: &Entry) -> Result<Outcome, Fault> {
        if tar::takes(entry) {
            return Ok(Outcome::Done);
        }
        self.left_out += 1;
        Ok(Outcome::Skipped)
    }

    fn data(&mut self, _: u64, _: &[u8]) -> Result<(), Fault> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn spoil(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn finish(&mut self, _: bool) -> Result<(), Fault> {
        Ok(())
    }

    fn belated(&mut self) -> Vec<anyhow::Error> {
        Vec::new()
    }

    fn lost(&self) -> Option<String> {
        None
    }

    fn is_ready(&self) -> bool {
        false
    }
}

/// Writes an archive.
pub struct ArchiveSink<W: Write> {
    writer: Option<tar::Writer<Encoder<W>>>,
    owner: Option<Owner>,
    /// The name of the archive, for messages.
    place: String,
    is_in_file: bool,
    pub left_out: u64,
    output: Option<W>,
}

impl<W: Write> ArchiveSink<W> {
    pub fn new(output: W, compression: Compression, owner: Option<Owner>, place: String) -> io::Result<Self> {
        let writer = Some(tar::Writer::new(Encoder::new(output, compression)?));
        Ok(Self { writer, owner, place, is_in_file: false, left_out: 0, output: None })
    }

    /// The stream, once the archive is whole.
    pub fn into_output(self) -> Option<W> {
        self.output
    }

    /// Whatever fails here makes the rest of the archive worthless. A reader that went away keeps its own error.
    fn write(&mut self, work: impl FnOnce(&mut tar::Writer<Encoder<W>>) -> io::Result<()>) -> Result<(), Fault> {
        let writer = self.writer.as_mut().expect("finished once only");
        work(writer).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Fault::Fatal(error.into()),
            _ => Fault::Fatal(Err::<(), _>(error).at(&self.place).expect_err("an error stays one")),
        })
    }
}

impl<W: Write> Sink for ArchiveSink<W> {
    fn entry(&mut self, batch: &Batch, entry: &Entry) -> Result<Outcome, Fault> {
        if !tar::takes(entry) {
            self.left_out += 1;
            return Ok(Outcome::Skipped);
        }
        let owner = self.owner;
        self.write(|writer| match owner {
            Some(Owner::Set(uid, gid)) => writer.entry(batch, entry, Some((uid, gid))),
            _ => writer.entry(batch, entry, None),
        })?;
        self.is_in_file = matches!(entry.body, Body::Parts(_));
        Ok(Outcome::Done)
    }

    fn data(&mut self, _: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.write(|writer| writer.data(bytes))
    }

    fn end(&mut self) -> Result<(), Fault> {
        self.is_in_file = false;
        Ok(())
    }

    fn spoil(&mut self) -> Result<(), Fault> {
        while std::mem::take(&mut self.is_in_file) {
            // The rest may be long.
            if let Some(interrupted) = Interrupted::received() {
                return Err(Fault::Fatal(interrupted.into()));
            }
            let mut is_padded = false;
            self.write(|writer| writer.spoil().map(|done| is_padded = done))?;
            self.is_in_file = !is_padded;
        }
        Ok(())
    }

    fn finish(&mut self, is_cut_short: bool) -> Result<(), Fault> {
        let writer = self.writer.take().expect("finished once only");
        if is_cut_short {
            // Nothing more: an end mark would make it look whole.
            writer.into_output().abandon();
            return Ok(());
        }
        let output = writer.finish().and_then(Encoder::finish).and_then(|mut output| output.flush().map(|()| output));
        match output {
            Ok(output) => {
                self.output = Some(output);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Fault::Fatal(error.into())),
            Err(error) => Err(Fault::Fatal(Err::<(), _>(error).at(&self.place).expect_err("an error stays one"))),
        }
    }

    fn belated(&mut self) -> Vec<anyhow::Error> {
        Vec::new()
    }

    fn lost(&self) -> Option<String> {
        None
    }

    fn is_ready(&self) -> bool {
        self.is_in_file
    }

    fn keeps_parts(&self) -> bool {
        false
    }
}
