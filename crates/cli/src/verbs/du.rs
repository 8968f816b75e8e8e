//! `du`: what trees take.

use crate::context::Context;
use crate::failure::At;
use crate::pattern::{self, Pattern};
use crate::progress::Progress;
use crate::show::name::{join, put};
use crate::show::size::{self, Unit, UnitArgs};
use crate::show::stat;
use crate::show::time::{self, Style};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::verbs::ls::sort::Clock;
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::{Stat, Time};
use serde_json::Map;
use std::collections::HashSet;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Du {
    /// Print a total only for each argument
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    summarize: bool,
    /// Print files too, not directories only
    #[arg(short, long)]
    all: bool,
    /// Print what is at most N directories below an argument
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Print the sum of all arguments too
    #[arg(short = 'c', long)]
    total: bool,
    /// Of directories, count only the files in them, not the directories
    #[arg(short = 'S', long)]
    separate_dirs: bool,
    #[command(flatten)]
    units: UnitArgs,
    /// Print sizes as people read them, by powers of 1000
    #[arg(long, overrides_with_all = ["human_readable", "kib", "mib", "block_size"])]
    si: bool,
    /// Count the bytes that files hold instead of those they take
    #[arg(long)]
    apparent_size: bool,
    /// --apparent-size, in bytes if no other unit is given
    #[arg(short, long)]
    bytes: bool,
    /// Count files instead of space
    #[arg(long)]
    inodes: bool,
    /// Count a file once for each of its names
    #[arg(short = 'l', long)]
    count_links: bool,
    /// Leave out what takes less than SIZE; with -SIZE, what takes more
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true, value_parser = Threshold::parse)]
    threshold: Option<Threshold>,
    /// Do not count what matches, nor what is below it
    #[arg(long, value_name = "PATTERN", value_parser = pattern::parser())]
    exclude: Vec<Pattern>,
    /// Print the newest time of change too, or another one of their times
    #[arg(long, value_name = "WORD", num_args = 0..=1, require_equals = true, default_missing_value = "mtime")]
    time: Option<Clock>,
    /// How times are shown: full-iso, long-iso, iso, or +FORMAT with the directives of date(1)
    #[arg(long, value_name = "STYLE", value_parser = style)]
    time_style: Option<Style>,
    /// Accepted: a volume is one file system
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// End each line with a zero byte, and quote nothing
    #[arg(short = '0', long)]
    null: bool,
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
    const DETAILS: &'static str = "Options are those of du(1). A file with several names counts once, as does one that is below several arguments. Space that inodes themselves \
        take is not counted. Paths are printed as IMAGE:/path, which other verbs take.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad du -sh vol.img", "shows what all files take together"),
        ("myriad du -h -d 1 -t 100M vol.img:/srv", "shows the directories that take more than 100 MiB"),
        ("myriad du -a --apparent-size vol.img:/srv", "shows the size of every file and directory"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        volume::look(context, self.places.iter().map(|place| &*place.image), || self.measure_all(context))?;
        Ok(context.status())
    }
}

impl Du {
    fn measure_all(&self, context: &Context) -> Result<()> {
        let mut walk = Walk::new(context, self);
        Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
            for (index, place) in self.places.iter().enumerate() {
                // Inode numbers mean something within a volume only.
                let first = self.places.iter().position(|other| other.is_in_image_of(place)).unwrap_or(index);
                let result = volumes.get(&place.image).and_then(|volume| walk.measure(&volume, place, first));
                context.tolerate(result)?;
            }
            Ok(())
        })?;
        if self.total {
            let total = walk.total;
            walk.print(None, &total)?;
        }
        Ok(())
    }
}

/// As for ls, but that `iso` has no time of day, as in du(1).
fn style(text: &str) -> Result<Style, String> {
    Style::parse(if text == "iso" { "+%Y-%m-%d" } else { text })
}

/// `--threshold`.
#[derive(Clone, Copy, Debug)]
enum Threshold {
    AtLeast(u64),
    AtMost(u64),
}

impl Threshold {
    fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix('-') {
            Some(most) => size::parse(most).map(Self::AtMost),
            None => size::parse(text).map(Self::AtLeast),
        }
    }

    fn passes(self, number: u64) -> bool {
        match self {
            Self::AtLeast(least) => number >= least,
            Self::AtMost(most) => number <= most,
        }
    }
}

/// What files take, so far.
#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: u64,
    files: u64,
    newest: Option<Time>,
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.files += other.files;
        self.newest = self.newest.max(other.newest);
    }
}

/// A directory above the file in hand.
struct Level {
    /// Relative to where the walk began.
    path: Vec<u8>,
    depth: usize,
    sum: Sum,
}

/// What one run keeps between arguments.
struct Walk<'a> {
    context: &'a Context,
    du: &'a Du,
    progress: Progress,
    /// Files that may be met again, by volume.
    seen: HashSet<(usize, u64)>,
    total: Sum,
    unit: Unit,
    style: Style,
    now: Time,
}

impl<'a> Walk<'a> {
    fn new(context: &'a Context, du: &'a Du) -> Self {
        let bytes_or_kib = Unit::of(if du.bytes || du.inodes { 1 } else { 1024 });
        Self {
            context,
            du,
            progress: context.progress("files"),
            seen: HashSet::new(),
            total: Sum::default(),
            unit: du.units.unit(du.si).unwrap_or(bytes_or_kib),
            style: du.time_style.clone().unwrap_or_else(Style::long_iso),
            now: time::now(),
        }
    }

    /// Walks a tree with one sum for each directory above the current file: memory for depth, not for size.
    fn measure(&mut self, volume: &Opened, place: &Place, image: usize) -> Result<()> {
        let du = self.du;
        let mut above: Vec<Level> = Vec::new();
        let mut excluded: Option<Vec<u8>> = None;
        let mut count = 0;
        for entry in volume.tree().walk(&place.path).at(place)? {
            count += 1;
            if count % 1024 == 0 {
                self.context.check()?;
                self.progress.set(count);
            }
            let entry = match place.step(entry) {
                Ok(entry) => entry,
                Err(error) => {
                    self.context.tolerate(Err(error))?;
                    continue;
                }
            };
            if excluded.as_ref().is_some_and(|excluded| is_below(&entry.path, excluded)) {
                continue;
            }
            if !du.exclude.is_empty() && du.excludes(&join(&place.path, &entry.path)) {
                excluded = entry.stat.is_dir().then_some(entry.path);
                if excluded.as_ref().is_some_and(Vec::is_empty) {
                    break;
                }
                continue;
            }
            while above.last().is_some_and(|level| !is_below(&entry.path, &level.path)) {
                self.close(place, &mut above)?;
            }
            // As du(1): of several arguments, none is counted again that is part of another one.
            let is_unique = du.places.len() == 1 && (entry.stat.nlink < 2 || entry.stat.is_dir());
            let is_new = du.count_links || is_unique || self.seen.insert((image, entry.stat.ino));
            if !is_new {
                excluded = entry.stat.is_dir().then_some(entry.path);
                if excluded.as_ref().is_some_and(Vec::is_empty) {
                    break;
                }
                continue;
            }
            let newest = du.time.map(|clock| clock.of(&entry.stat));
            let sum = Sum { bytes: du.bytes_of(&entry.stat), files: 1, newest };
            self.total.add(&sum);
            let depth = above.len();
            if entry.stat.is_dir() {
                above.push(Level { path: entry.path, depth, sum });
                continue;
            }
            if let Some(level) = above.last_mut() {
                level.sum.add(&sum);
            }
            // A file given by name is shown in any case, as du does.
            if du.all && du.is_shown_at(depth) || depth == 0 {
                self.print(Some((place, &entry.path)), &sum)?;
            }
        }
        while !above.is_empty() {
            self.close(place, &mut above)?;
        }
        Ok(())
    }

    /// The innermost directory is complete: shows it and adds it to the one above.
    fn close(&mut self, place: &Place, above: &mut Vec<Level>) -> Result<()> {
        let Some(level) = above.pop() else { return Ok(()) };
        if self.du.is_shown_at(level.depth) {
            self.print(Some((place, &level.path)), &level.sum)?;
        }
        if !self.du.separate_dirs
            && let Some(parent) = above.last_mut()
        {
            parent.sum.add(&level.sum);
        }
        Ok(())
    }

    /// A line; of no file, the line of the total.
    fn print(&self, file: Option<(&Place, &[u8])>, sum: &Sum) -> Result<()> {
        let number = if self.du.inodes { sum.files } else { sum.bytes };
        if self.du.threshold.is_some_and(|threshold| !threshold.passes(number)) && file.is_some() {
            return Ok(());
        }
        let mut out = self.context.out();
        if self.du.json {
            let mut object = Map::new();
            match file {
                Some((place, path)) => {
                    put(&mut object, "path", &join(&place.path, path));
                    put(&mut object, "image", place.image.as_os_str().as_bytes());
                }
                None => drop(object.insert("total".into(), true.into())),
            }
            object.insert("bytes".into(), sum.bytes.into());
            object.insert("files".into(), sum.files.into());
            if let Some(newest) = sum.newest {
                object.insert("newest_ns".into(), newest.into());
            }
            return Ok(out.json(&object.into())?);
        }
        write!(out, "{}\t", self.unit.show(number))?;
        if let Some(newest) = sum.newest {
            write!(out, "{}\t", self.style.show(newest, self.now))?;
        }
        let name = match file {
            Some((place, path)) => place.below(path).bytes(),
            None => b"total".to_vec(),
        };
        if self.du.null {
            out.write_all(&name)?;
            return Ok(out.write_all(b"\0")?);
        }
        out.name(&name)?;
        Ok(writeln!(out)?)
    }
}

impl Du {
    fn is_shown_at(&self, depth: usize) -> bool {
        let max = if self.summarize { Some(0) } else { self.max_depth };
        max.is_none_or(|max| depth <= max)
    }

    /// Whether a path or any end of it matches, as du(1) matches.
    fn excludes(&self, path: &[u8]) -> bool {
        let matches = |path: &[u8]| self.exclude.iter().any(|pattern| pattern.matches(path));
        matches(path) || (0..path.len()).any(|index| path[index] == b'/' && matches(&path[index + 1..]))
    }

    fn bytes_of(&self, stat: &Stat) -> u64 {
        match (self.apparent_size || self.bytes, stat.is_dir()) {
            (true, true) => 0,
            (true, false) => stat.size,
            (false, _) => stat::allocated(stat),
        }
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
