//! `df`: how full volumes are.

use crate::context::Context;
use crate::failure::{At, image_name};
use crate::mount::control::Request;
use crate::show::name::put;
use crate::show::{size, table};
use crate::verb::{Command, Example, Status};
use crate::volume::{Access, OpenArgs, Opened};
use anyhow::Result;
use myriad_engine::StatFs;
use myriad_format::dir::NAME_MAX;
use serde_json::{Map, Value};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
// `-h` is human-readable here, as everywhere; help is `--help`.
#[command(disable_help_flag = true)]
pub struct Df {
    /// Print sizes as people read them
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Count inodes instead of space
    #[arg(short, long)]
    inodes: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Volumes to look at
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Df {
    const NAME: &'static str = "df";
    const ABOUT: &'static str = "Show how full volumes are";
    const DETAILS: &'static str = "Without -h, space is counted in KiB. Inodes are made as they are needed, so the free ones are \
        those that free space has room for.";
    const EXAMPLES: &'static [Example] =
        &[("myriad df -h vol.img", "shows space"), ("myriad df -i a.img b.img", "shows inodes of two volumes")];

    fn run(self, context: &Context) -> Result<Status> {
        let mut rows = Vec::new();
        for image in &self.images {
            let result = self.measure(context, image, &mut rows);
            context.tolerate(result)?;
        }
        if !self.json && !rows.is_empty() {
            let heading = match (self.inodes, self.human_readable) {
                (true, _) => ["Volume", "Inodes", "IUsed", "IFree", "IUse%"],
                (_, true) => ["Volume", "Size", "Used", "Avail", "Use%"],
                _ => ["Volume", "1K-blocks", "Used", "Available", "Use%"],
            };
            table::columns(&mut context.out(), &heading, 1, rows)?;
        }
        Ok(context.status())
    }
}

impl Df {
    fn measure(&self, context: &Context, image: &Path, rows: &mut Vec<Vec<String>>) -> Result<()> {
        let volume = Opened::open(image, Access::Read, &self.open.mount_options())?;
        let name = image_name(image);
        let statfs = match &volume {
            Opened::Here(volume) => volume.fs().statfs().at(&name)?,
            Opened::Mounted(mounted) => get_statfs(&mounted.daemon.ask(Request::Stats)?),
        };
        volume.close()?;
        if self.json {
            let mut object = Map::new();
            put(&mut object, "image", image.as_os_str().as_bytes());
            put_statfs(&mut object, &statfs);
            return Ok(context.out().json(&object.into())?);
        }
        let unit = u64::from(statfs.block_size);
        let (total, used, free) = if self.inodes {
            (statfs.inodes_used + statfs.inodes_free, statfs.inodes_used, statfs.inodes_free)
        } else {
            (statfs.blocks * unit, (statfs.blocks - statfs.free_blocks) * unit, statfs.available_blocks * unit)
        };
        let show = |number: u64| match (self.human_readable, self.inodes) {
            (true, _) => size::human(number),
            (_, true) => number.to_string(),
            _ => number.div_ceil(1024).to_string(),
        };
        let percent = (u128::from(used) * 100).div_ceil(u128::from((used + free).max(1)));
        rows.push(vec![name, show(total), show(used), show(free), format!("{percent}%")]);
        Ok(())
    }
}

/// Totals of a volume, in bytes and numbers of inodes.
pub fn put_statfs(object: &mut Map<String, Value>, statfs: &StatFs) {
    let unit = u64::from(statfs.block_size);
    for (key, value) in [
        ("block_size", unit),
        ("size", statfs.blocks * unit),
        ("used", (statfs.blocks - statfs.free_blocks) * unit),
        ("available", statfs.available_blocks * unit),
        ("inodes_used", statfs.inodes_used),
        ("inodes_free", statfs.inodes_free),
        ("directories", statfs.directories),
    ] {
        object.insert(key.into(), value.into());
    }
}

/// What `put_statfs` wrote.
fn get_statfs(object: &Value) -> StatFs {
    let number = |key| object.get(key).and_then(Value::as_u64).unwrap_or(0);
    let unit = number("block_size").max(1);
    StatFs {
        block_size: u32::try_from(unit).unwrap_or(u32::MAX),
        blocks: number("size") / unit,
        free_blocks: (number("size") - number("used").min(number("size"))) / unit,
        available_blocks: number("available") / unit,
        inodes_used: number("inodes_used"),
        inodes_free: number("inodes_free"),
        directories: number("directories"),
        name_max: NAME_MAX as u32,
    }
}
