//! `trim`: free space goes back to the host.

use crate::context::Context;
use crate::failure::{At, Failure, and_closed, image_name};
use crate::mount::control::{self, Daemon, Request};
use crate::show::name::put;
use crate::show::size;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{Access, OpenArgs, Volume};
use anyhow::Result;
use myriad_engine::{Discard, Errno, Error, Fs, MountOptions};
use serde_json::Map;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Trim {
    /// Leave free extents alone that are shorter
    #[arg(short, long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    minimum: u64,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Volumes, or directories that they are mounted on
    #[arg(required = true, value_name = "IMAGE|DIRECTORY")]
    targets: Vec<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Trim {
    const NAME: &'static str = "trim";
    const ABOUT: &'static str = "Give a volume's free space back to the host";
    const DETAILS: &'static str = "Of an image file, free space becomes holes, which take no space on the host; a block device is \
        told what it need not keep. An image with holes is trimmed by itself as files go, in pieces of 64K and more; trim also \
        gives back what is shorter, what was freed before a crash, and what such an image held before there was a volume in \
        it.\n\nAn image that was allocated in full on purpose has holes afterwards, too, and from its next opening on is trimmed \
        by itself.\n\nOf a mounted volume the daemon is asked, and others may go on using it; fstrim(8) on the mount does the same \
        for root. What is told is how much was free, whether or not the host had space for it.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad trim vol.img", "gives back all free space of a volume"),
        ("myriad trim --minimum 1M /mnt", "gives back what is free in pieces of 1 MiB and more of a mounted one"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        for target in &self.targets {
            context.check()?;
            context.tolerate(self.trim(context, target))?;
        }
        Ok(context.status())
    }
}

impl Trim {
    fn trim(&self, context: &Context, target: &Path) -> Result<()> {
        let (image, trimmed) = match control::of_target(target)? {
            Some(daemon) => (daemon.status.image.clone(), self.ask(context, &daemon)?),
            None => {
                let options = MountOptions { discard: Discard::Never, ..self.open.mount_options() };
                let volume = Volume::open(target, Access::Change, &options)?;
                let trimmed = trim_volume(volume.fs(), self.minimum).at(volume.name());
                // Closed whatever came of it.
                let closed = volume.close();
                let trimmed = and_closed(trimmed, closed)?;
                (target.to_owned(), trimmed)
            }
        };
        let name = image_name(target);
        let Some(trimmed) = trimmed else {
            let next =
                "keep the image on a file system that makes holes in files, or the volume on a device with discard";
            return Err(Failure::new(name, "the host takes no space back here", next).into());
        };
        // A device's space is its own.
        let metadata = std::fs::metadata(&image).ok().filter(std::fs::Metadata::is_file);
        let taken = metadata.map(|metadata| metadata.blocks() * 512);
        if self.json {
            let mut object = Map::new();
            put(&mut object, "target", target.as_os_str().as_bytes());
            object.insert("trimmed".into(), trimmed.into());
            object.insert("image_bytes".into(), taken.into());
            return Ok(context.out().json(&object.into())?);
        }
        let taken = taken.map(|bytes| format!("; the image takes {}", size::human(bytes))).unwrap_or_default();
        Ok(writeln!(context.out(), "{name}: {} given back{taken}", size::exact(trimmed))?)
    }

    fn ask(&self, context: &Context, daemon: &Daemon) -> Result<Option<u64>> {
        let value = daemon.ask_for_long(Request::Trim { minimum: self.minimum }, || context.check())?;
        Ok(value.get("trimmed").and_then(serde_json::Value::as_u64))
    }
}

/// How many bytes were given back; `None` if the host takes none.
pub fn trim_volume(fs: &Fs, minimum: u64) -> myriad_engine::Result<Option<u64>> {
    match fs.trim(0..u64::MAX, minimum) {
        Err(Error::Refused(Errno::OPNOTSUPP)) => Ok(None),
        trimmed => trimmed.map(Some),
    }
}
