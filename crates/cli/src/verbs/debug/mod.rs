//! `debug`: what is on the disk, field by field.

mod block;
mod inode;
mod log;
mod lookup;
mod part;
mod superblock;
mod trace;

use crate::context::Context;
use crate::failure::{Failure, image_name};
use crate::verb::{Command, Example, Status};
use crate::volume::{OpenArgs, device};
use anyhow::Result;
use myriad_check::find_superblock_copy;
use myriad_device::{Access, FileDevice};
use myriad_format::superblock::Superblock;
use myriad_format::{FsBlock, Geometry, header};
use part::Part;
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(clap::Args)]
pub struct Debug {
    /// Volume to look at
    image: PathBuf,
    #[command(subcommand)]
    what: What,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    open: OpenArgs,
}

#[derive(clap::Subcommand)]
enum What {
    /// The superblock and its copies, and whether each is intact
    Superblock,
    /// A block, by what its header says it is
    Block {
        /// Number of the block
        number: u64,
        /// Show the bytes only
        #[arg(long)]
        hex: bool,
        /// Show what lies on the disk, without what the log holds of the block
        #[arg(long)]
        home: bool,
    },
    /// An inode, by number or by the path of one of its names
    Inode {
        /// Inode number, or a path that begins with a slash
        inode: OsString,
    },
    /// The way to a file: each name, and the blocks that had to be read for it
    Lookup {
        /// Path in the volume
        path: OsString,
    },
    /// The log: anchors, and what a mount would replay
    Log,
}

impl Command for Debug {
    const NAME: &'static str = "debug";
    const ABOUT: &'static str = "Show any block, inode, lookup or log of a volume, field by field";
    const DETAILS: &'static str =
        "Nothing is written. Blocks are shown as a mount would see them: with what the log holds of them.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad debug vol.img superblock", "shows the superblock and its copies"),
        ("myriad debug vol.img block 1", "shows the header of the first allocation group"),
        ("myriad debug vol.img inode /etc/motd", "shows the inode of a file"),
        ("myriad debug vol.img lookup /usr/lib/x", "shows the blocks that a lookup reads"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        // A damaged superblock must not keep its copies from being shown.
        if let What::Superblock = self.what {
            let device = device::open(&self.image, Access::ReadOnly)?;
            superblock::show(context, &device, &image_name(&self.image), self.json)?;
            return Ok(context.status());
        }
        let volume = RawVolume::open(&self.image, &self.open)?;
        match &self.what {
            What::Superblock => unreachable!("handled above"),
            What::Block { number, hex, home } => {
                let block = volume.block(FsBlock(*number), *home)?;
                let parts = if *hex { Vec::new() } else { block::parts(&volume.geometry, &block) };
                self.print_block(context, &volume, &block, &parts)?;
            }
            What::Inode { inode } => inode::show(context, &volume, inode, self.json)?,
            What::Lookup { path } => lookup::show(context, volume, path, &self.open, self.json)?,
            What::Log => log::show(context, &volume, self.json)?,
        }
        Ok(context.status())
    }
}

impl Debug {
    fn print_block(&self, context: &Context, volume: &RawVolume, block: &Block, parts: &[Part]) -> Result<()> {
        let verdict = volume.verdict(block);
        let mut out = context.out();
        if self.json {
            return Ok(out.json(&json!({
                "block": block.number.0, "verdict": verdict, "from_log": block.is_overlaid,
                "parts": parts.iter().map(Part::json).collect::<Vec<_>>(), "hex": crate::show::name::hex(&block.bytes),
            }))?);
        }
        writeln!(out, "block {}: {verdict}", block.number)?;
        if block.is_overlaid {
            writeln!(out, "the log holds newer contents than the disk; shown together")?;
        }
        part::print(&mut out, parts)?;
        if parts.is_empty() {
            part::hexdump(&mut out, &block.bytes)?;
        }
        Ok(())
    }
}

/// An unmounted volume, block by block.
pub struct RawVolume {
    pub name: String,
    pub device: Arc<FileDevice>,
    pub log_device: Option<Arc<FileDevice>>,
    pub superblock: Superblock,
    pub geometry: Geometry,
    /// What the log holds, if there is one; why it cannot be read, if so.
    pub log: Result<Option<myriad_log::Recovered>>,
    /// Everything is home: the log shows the last checkpoint, and a mount leaves it alone.
    pub was_closed_cleanly: bool,
}

/// A block as read.
pub struct Block {
    pub number: FsBlock,
    pub bytes: Vec<u8>,
    pub is_overlaid: bool,
}

impl RawVolume {
    fn open(image: &std::path::Path, open: &OpenArgs) -> Result<Self> {
        let name = image_name(image);
        let device = device::open(image, Access::ReadOnly)?;
        // A copy serves where the original is damaged: seeing what is left is what this verb is for.
        let original = device::superblock(&*device, &name);
        let was_closed_cleanly = original.as_ref().is_ok_and(device::was_closed_cleanly);
        let superblock = original.or_else(|error| find_superblock_copy(&*device).ok_or(error))?;
        let log_device = open.log_device.as_deref().map(|log| device::open(log, Access::ReadOnly)).transpose()?;
        let log = device::log(&device, log_device.clone(), &superblock, &name);
        let geometry = superblock.geometry();
        Ok(Self { name, device, log_device, superblock, geometry, log, was_closed_cleanly })
    }

    /// A block as a mount would see it or, with `home`, as it lies on the disk.
    fn block(&self, number: FsBlock, home: bool) -> Result<Block> {
        let place = || format!("{}: block {number}", self.name);
        if number.0 >= self.geometry.block_count {
            let next = format!("the volume has {} blocks, from 0", self.geometry.block_count);
            return Err(Failure::usage(place(), "no such block", next).into());
        }
        let mut bytes =
            device::read_at(&*self.device, number.0 << self.geometry.block_bits, self.geometry.block_size()).map_err(
                |error| match error.kind() {
                    std::io::ErrorKind::UnexpectedEof => {
                        Failure::new(place(), "the image ends before it", crate::failure::TRUNCATED_NEXT)
                    }
                    _ => Failure::new(place(), crate::failure::host_error(&error), "see the host's log"),
                },
            )?;
        let is_overlaid = match &self.log {
            Ok(Some(log)) if !home && !self.was_closed_cleanly => log.overlay.apply(number, &mut bytes).is_some(),
            _ => false,
        };
        Ok(Block { number, bytes, is_overlaid })
    }

    /// What the block's header says of it, and whether that is true.
    fn verdict(&self, block: &Block) -> String {
        let Some(kind) = block.kind() else { return "no metadata: file data, or nothing".into() };
        let mut bytes = block.bytes.clone();
        if block.is_overlaid {
            // The checksum is that of the block before the log's changes, which have checksums of their own.
            header::reseal(&mut bytes, &self.superblock.volume(), block.number);
        }
        match header::verify(&bytes, kind, &self.superblock.volume(), block.number) {
            Ok(()) => format!("{}, intact", kind.name()),
            Err(corrupt) => format!("{}, NOT INTACT: {corrupt}", kind.name()),
        }
    }
}
