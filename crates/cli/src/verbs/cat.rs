//! `cat`: contents of files, byte for byte, or with what cannot be seen made visible.

use crate::context::Context;
use crate::failure::{At, Failure};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use std::io::Write;

/// Large enough that a request costs little beside its bytes, small enough for the processor's cache.
const CHUNK_SIZE: usize = 1 << 20;

#[derive(clap::Args)]
pub struct Cat {
    /// Number all lines
    #[arg(short = 'n', long)]
    number: bool,
    /// Number lines that are not empty
    #[arg(short = 'b', long)]
    number_nonblank: bool,
    /// Show one empty line for several
    #[arg(short, long)]
    squeeze_blank: bool,
    /// Show `$` at the end of each line
    #[arg(short = 'E', long)]
    show_ends: bool,
    /// Show tabs as `^I`
    #[arg(short = 'T', long)]
    show_tabs: bool,
    /// Show other control characters as `^X`, and bytes from 128 on as `M-x`
    #[arg(short = 'v', long)]
    show_nonprinting: bool,
    /// -vET
    #[arg(short = 'A', long)]
    show_all: bool,
    /// -vE
    #[arg(short = 'e')]
    ends: bool,
    /// -vT
    #[arg(short = 't')]
    tabs: bool,
    /// Accepted: nothing is kept back
    #[arg(short = 'u')]
    unbuffered: bool,
    /// Files to write to standard output, one after the other
    #[arg(required = true, value_name = "IMAGE:/path", value_parser = volume::place())]
    files: Vec<Place>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Cat {
    const NAME: &'static str = "cat";
    const ABOUT: &'static str = "Write files to standard output";
    const DETAILS: &'static str = "Symbolic links are followed. Without options that show something else, the bytes are written exactly as they are, to a \
         terminal too.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad cat vol.img:/etc/motd", "shows a file"),
        ("myriad cat -A vol.img:/etc/fstab", "shows where its tabs and the ends of its lines are"),
        ("myriad cat vol.img:/log/1 vol.img:/log/2 | gzip > log.gz", "joins two files"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let mut visible = self.visible();
        Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
            for file in &self.files {
                let copied = volumes.get(&file.image).and_then(|volume| copy(context, &volume, file, visible.as_mut()));
                context.tolerate(copied)?;
            }
            if let Some(visible) = &mut visible {
                context.out().write_all(&visible.rest())?;
            }
            Ok(())
        })?;
        Ok(context.status())
    }
}

impl Cat {
    /// What changes the bytes, if something does.
    fn visible(&self) -> Option<Visible> {
        let visible = Visible {
            numbers: self.number || self.number_nonblank,
            numbers_text_only: self.number_nonblank,
            squeezes: self.squeeze_blank,
            ends: self.show_ends || self.show_all || self.ends,
            tabs: self.show_tabs || self.show_all || self.tabs,
            nonprinting: self.show_nonprinting || self.show_all || self.ends || self.tabs,
            ..Visible::default()
        };
        (visible != Visible::default()).then_some(visible)
    }
}

/// Makes bytes visible, across the borders of files and of pieces.
#[derive(Debug, Default, PartialEq, Eq)]
struct Visible {
    numbers: bool,
    numbers_text_only: bool,
    squeezes: bool,
    ends: bool,
    tabs: bool,
    nonprinting: bool,
    /// Lines numbered so far.
    number: u64,
    is_in_line: bool,
    was_blank: bool,
    /// A carriage return that may turn out to stand before the line's end.
    has_return: bool,
}

impl Visible {
    fn bytes(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(bytes.len() + bytes.len() / 8);
        for &byte in bytes {
            if std::mem::take(&mut self.has_return) {
                shown.extend(if byte == b'\n' { &b"^M"[..] } else { b"\r" });
            }
            if byte == b'\n' && !self.is_in_line {
                if self.squeezes && self.was_blank {
                    continue;
                }
                self.was_blank = true;
                if self.numbers && !self.numbers_text_only {
                    self.count(&mut shown);
                }
            } else if !self.is_in_line {
                self.was_blank = false;
                self.is_in_line = true;
                if self.numbers {
                    self.count(&mut shown);
                }
            }
            match byte {
                b'\n' => {
                    self.is_in_line = false;
                    if self.ends {
                        shown.push(b'$');
                    }
                    shown.push(b'\n');
                }
                b'\r' if self.ends && !self.nonprinting => self.has_return = true,
                b'\t' if self.tabs => shown.extend(b"^I"),
                b'\t' => shown.push(b'\t'),
                _ if self.nonprinting => show(&mut shown, byte),
                _ => shown.push(byte),
            }
        }
        shown
    }

    fn count(&mut self, shown: &mut Vec<u8>) {
        self.number += 1;
        shown.extend(format!("{:>6}\t", self.number).as_bytes());
    }

    /// What was kept back until the end.
    fn rest(&mut self) -> Vec<u8> {
        if std::mem::take(&mut self.has_return) { b"\r".to_vec() } else { Vec::new() }
    }
}

/// One byte as `cat -v` shows it.
fn show(shown: &mut Vec<u8>, byte: u8) {
    if byte >= 128 {
        shown.extend(b"M-");
    }
    match byte & 127 {
        low @ 0..32 => shown.extend([b'^', low + 64]),
        127 => shown.extend(b"^?"),
        plain => shown.push(plain),
    }
}

fn copy(context: &Context, volume: &Opened, place: &Place, mut visible: Option<&mut Visible>) -> Result<()> {
    let file = volume.tree().open(&place.path).at(place)?;
    if let Opened::Mounted(mounted) = volume {
        // It would grow by what is read of it.
        let path = mounted.files.host_path(&place.path, true).at(place)?;
        let input = rustix::fs::stat(&path).map_err(std::io::Error::from).at(place)?;
        let output = rustix::fs::fstat(rustix::stdio::stdout());
        if output.is_ok_and(|output| (output.st_dev, output.st_ino) == (input.st_dev, input.st_ino)) {
            let next = "redirect standard output elsewhere";
            return Err(Failure::new(place, "standard output is that file", next).into());
        }
    }
    let mut chunk = vec![0; CHUNK_SIZE];
    let mut offset = 0;
    loop {
        context.check()?;
        let length = file.read_at(&mut chunk, offset).at(place)?;
        if length == 0 {
            return Ok(());
        }
        match &mut visible {
            Some(visible) => context.out().write_all(&visible.bytes(&chunk[..length]))?,
            None => context.out().write_all(&chunk[..length])?,
        }
        offset += length as u64;
    }
}
