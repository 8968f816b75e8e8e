//! `cat`: contents of files, byte for byte.

use crate::context::Context;
use crate::failure::{At, Failure};
use crate::verb::{Command, Example, Status};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use std::io::Write;

/// Large enough that a request costs little beside its bytes, small enough for the processor's cache.
const CHUNK_SIZE: usize = 1 << 20;

#[derive(clap::Args)]
pub struct Cat {
    /// Files to write to standard output, one after the other
    #[arg(required = true, value_name = "IMAGE:/path", value_parser = volume::place())]
    files: Vec<Place>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Cat {
    const NAME: &'static str = "cat";
    const ABOUT: &'static str = "Write files to standard output";
    const DETAILS: &'static str =
        "Symbolic links are followed. The bytes are written exactly as they are, to a terminal too.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad cat vol.img:/etc/motd", "shows a file"),
        ("myriad cat vol.img:/log/1 vol.img:/log/2 | gzip > log.gz", "joins two files"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
            for file in &self.files {
                context.tolerate(volumes.get(&file.image).and_then(|volume| copy(context, &volume, file)))?;
            }
            Ok(())
        })?;
        Ok(context.status())
    }
}

fn copy(context: &Context, volume: &Opened, place: &Place) -> Result<()> {
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
        context.out().write_all(&chunk[..length])?;
        offset += length as u64;
    }
}
