//! `du`: what trees take.

use crate::context::Context;
use crate::failure::At;
use crate::progress::Progress;
use crate::show::name::{join, put};
use crate::show::{size, stat};
use crate::verb::{Command, Example, Status};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::Stat;
use serde_json::Map;
use std::collections::HashSet;
use std::io::Write;

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Du {
    /// Print a total only for each argument
    #[arg(short, long, conflicts_with = "all")]
    summarize: bool,
    /// Print files too, not directories only
    #[arg(short, long)]
    all: bool,
    /// Print sizes as people read them
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Count the bytes that files hold instead of those they take
    #[arg(long)]
    apparent_size: bool,
    /// Print in bytes; without it in KiB
    #[arg(short, long)]
    bytes: bool,
    /// Print one JSON object a line, in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Trees to measure
    #[arg(required = true, value_name = "IMAGE[:/path]", value_parser = volume::place_or_root())]
    places: Vec<Place>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Du {
    const NAME: &'static str = "du";
    const ABOUT: &'static str = "Show how much space trees take";
    const DETAILS: &'static str =
        "A file with several names counts once. Space that inodes themselves take is not counted.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad du -sh vol.img", "shows what all files take together"),
        ("myriad du -a --apparent-size vol.img:/srv", "shows the size of every file and directory"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let progress = context.progress("files");
        let mut seen = HashSet::new();
        Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
            for place in &self.places {
                let result = volumes
                    .get(&place.image)
                    .and_then(|volume| self.measure(context, &volume, place, &progress, &mut seen));
                context.tolerate(result)?;
            }
            Ok(())
        })?;
        Ok(context.status())
    }
}

/// What a directory and all below it take, so far.
struct Sum {
    /// Relative to where the walk began.
    path: Vec<u8>,
    bytes: u64,
    files: u64,
}

impl Du {
    /// Walks a tree with one sum for each directory above the current file: memory for depth, not for size.
    fn measure(
        &self,
        context: &Context,
        volume: &Opened,
        place: &Place,
        progress: &Progress,
        seen: &mut HashSet<u64>,
    ) -> Result<()> {
        let mut above: Vec<Sum> = Vec::new();
        let mut count = 0;
        for entry in volume.tree().walk(&place.path).at(place)? {
            count += 1;
            if count % 1024 == 0 {
                context.check()?;
                progress.set(count);
            }
            let entry = match place.step(entry) {
                Ok(entry) => entry,
                Err(error) => {
                    context.tolerate(Err(error))?;
                    continue;
                }
            };
            while above.last().is_some_and(|sum| !is_below(&entry.path, &sum.path)) {
                self.close(context, place, &mut above)?;
            }
            let is_new = entry.stat.nlink < 2 || entry.stat.is_dir() || seen.insert(entry.stat.ino);
            let bytes = if is_new { self.bytes(&entry.stat) } else { 0 };
            if entry.stat.is_dir() {
                above.push(Sum { path: entry.path, bytes, files: 1 });
                continue;
            }
            if let Some(sum) = above.last_mut() {
                sum.bytes += bytes;
                sum.files += 1;
            }
            // A file given by name is shown in any case, as du does.
            if self.all || above.is_empty() {
                self.print(context, place, &Sum { path: entry.path, bytes, files: 1 })?;
            }
        }
        while !above.is_empty() {
            self.close(context, place, &mut above)?;
        }
        Ok(())
    }

    /// The innermost directory is complete: shows it and adds it to the one above.
    fn close(&self, context: &Context, place: &Place, above: &mut Vec<Sum>) -> Result<()> {
        let Some(sum) = above.pop() else { return Ok(()) };
        if !self.summarize || above.is_empty() {
            self.print(context, place, &sum)?;
        }
        if let Some(parent) = above.last_mut() {
            parent.bytes += sum.bytes;
            parent.files += sum.files;
        }
        Ok(())
    }

    fn bytes(&self, stat: &Stat) -> u64 {
        match (self.apparent_size, stat.is_dir()) {
            (true, true) => 0,
            (true, false) => stat.size,
            (false, _) => stat::allocated(stat),
        }
    }

    fn print(&self, context: &Context, place: &Place, sum: &Sum) -> Result<()> {
        let path = join(&place.path, &sum.path);
        let mut out = context.out();
        if self.json {
            let mut object = Map::new();
            put(&mut object, "path", &path);
            object.insert("bytes".into(), sum.bytes.into());
            object.insert("files".into(), sum.files.into());
            return Ok(out.json(&object.into())?);
        }
        let shown = match (self.human_readable, self.bytes) {
            (true, _) => size::human(sum.bytes),
            (_, true) => sum.bytes.to_string(),
            _ => sum.bytes.div_ceil(1024).to_string(),
        };
        write!(out, "{shown}\t")?;
        out.name(&path)?;
        Ok(writeln!(out)?)
    }
}

/// Whether `path` lies below `directory`, both relative to the start of the walk, which is empty.
fn is_below(path: &[u8], directory: &[u8]) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_means_by_whole_names() {
        for (path, directory, below) in [("a/b", "a", true), ("ab", "a", false), ("a", "a", false), ("x", "", true)] {
            assert_eq!(is_below(path.as_bytes(), directory.as_bytes()), below, "{path} {directory}");
        }
    }
}
