//! `debug`: what is on the disk, field by field.

mod block;
mod inode;
mod log;
mod lookup;
mod map;
mod part;
mod raw;
mod superblock;
mod trace;

use crate::context::Context;
use crate::failure::image_name;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{OpenArgs, device};
use anyhow::Result;
use myriad_device::Access;
use myriad_format::FsBlock;
use part::Part;
use raw::{Block, RawVolume};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

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
    /// Where directories, inodes and data lie, as text and as a picture
    Map(map::MapArgs),
}

impl Command for Debug {
    const NAME: &'static str = "debug";
    const ABOUT: &'static str = "Show any block, inode, lookup, log or the layout of a volume";
    const DETAILS: &'static str = "Nothing is written but the pictures of `map`. Blocks are shown as a mount would see them: with what the log holds of them.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad debug vol.img superblock", "shows the superblock and its copies"),
        ("myriad debug vol.img block 1", "shows the header of the first allocation group"),
        ("myriad debug vol.img inode /etc/motd", "shows the inode of a file"),
        ("myriad debug vol.img lookup /usr/lib/x", "shows the blocks that a lookup reads"),
        ("myriad debug vol.img map --out map.svg --out map.png", "draws where everything lies"),
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
            What::Map(args) => map::show(context, volume, args, &self.open, self.json)?,
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
