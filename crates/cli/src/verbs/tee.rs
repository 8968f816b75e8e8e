//! `tee`: standard input to files and to standard output.

use crate::change::{Changes, JsonArgs, TellArgs};
use crate::context::Context;
use crate::failure::At;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, ChangeArgs, OpenWrite, Place, Volumes, WriteAt};
use anyhow::Result;
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// As much as a pipe of Linux holds.
const CHUNK_SIZE: usize = 64 << 10;

/// How long a signal may go unseen while nothing comes.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct Tee {
    /// Add to the files what comes, instead of replacing what they hold
    #[arg(short, long)]
    append: bool,
    #[command(flatten)]
    json: JsonArgs,
    /// Files to write
    #[arg(value_name = "IMAGE:/path", value_parser = volume::place())]
    files: Vec<Place>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Tee {
    const NAME: &'static str = "tee";
    const ABOUT: &'static str = "Copy standard input to files and to standard output";
    const DETAILS: &'static str = "Files that are missing are made; the others are emptied first, without -a, but for one that is a volume itself: that is refused. A file that can no longer be written is \
        told of, and the others get the rest; so is standard output, unless its reader went away: that ends the run. With --json standard output is not a copy, but says what was written.";
    const EXAMPLES: &'static [Example] = &[
        ("make 2>&1 | myriad tee vol.img:/build.log", "keeps what a command prints, and shows it"),
        ("date | myriad tee -a vol.img:/log >/dev/null", "adds a line to a file"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let changes = Changes::new(context, Self::NAME, TellArgs { json: self.json, verbose: false });
        let result = Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let mut files = Vec::new();
            for place in &self.files {
                let how = OpenWrite { create: true, append: self.append, truncate: !self.append };
                let opened = volumes.get(&place.image).and_then(|volume| {
                    if !self.append {
                        volume.check_cut(place)?;
                    }
                    let file = volume.tree().open_write(&place.path, how).at(place)?;
                    // With `append` each write finds the end by itself.
                    Ok(Writing { place, file, offset: 0, is_well: true })
                });
                match opened {
                    Ok(file) => files.push(file),
                    Err(error) => context.tolerate(Err(error))?,
                }
            }
            let copied = self.copy(context, &mut files);
            for file in files.iter().filter(|file| file.is_well) {
                changes.tell(file.place, "written", String::new, |fields| {
                    fields.insert("bytes".into(), file.offset.into());
                    fields.insert("appended".into(), self.append.into());
                })?;
            }
            copied
        });
        changes.finish(result)
    }
}

struct Writing<'a> {
    place: &'a Place,
    file: Box<dyn WriteAt>,
    /// Bytes written so far.
    offset: u64,
    is_well: bool,
}

impl Tee {
    fn copy(&self, context: &Context, files: &mut [Writing<'_>]) -> Result<()> {
        let chunks = read_chunks();
        let mut writes_out = !self.json.json;
        loop {
            context.check()?;
            let chunk = match chunks.recv_timeout(PATIENCE) {
                Ok(chunk) => chunk.at("standard input")?,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            if writes_out {
                let written = {
                    let mut out = context.out();
                    // Whoever watches wants to see it as it comes.
                    out.write_all(&chunk).and_then(|()| out.flush())
                };
                if context.tolerated(written.map_err(Into::into))?.is_none() {
                    writes_out = false;
                    context.out().give_up();
                }
            }
            for file in files.iter_mut().filter(|file| file.is_well) {
                if let Err(error) = file.write(&chunk) {
                    file.is_well = false;
                    context.tolerate(Err(error))?;
                }
            }
        }
    }
}

impl Writing<'_> {
    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let count = self.file.write_at(bytes, self.offset).at(self.place)?;
            self.offset += count as u64;
            bytes = &bytes[count..];
        }
        Ok(())
    }
}

/// Standard input, read by a thread of its own: a read that waits goes on waiting when a signal comes.
fn read_chunks() -> Receiver<io::Result<Vec<u8>>> {
    let (sender, chunks) = sync_channel(4);
    let work = move || {
        let mut input = io::stdin().lock();
        loop {
            let mut chunk = vec![0; CHUNK_SIZE];
            let read = match input.read(&mut chunk) {
                Ok(0) => return,
                Ok(count) => {
                    chunk.truncate(count);
                    Ok(chunk)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_end = read.is_err();
            if sender.send(read).is_err() || is_end {
                return;
            }
        }
    };
    std::thread::Builder::new().name("input".into()).spawn(work).expect("the host has room for a thread");
    chunks
}
