//! `find`: files by what they are.

mod pattern;
mod test;

use crate::context::Context;
use crate::failure::At;
use crate::show::name::{join, last, put};
use crate::show::stat;
use crate::verb::{Command, Example, Status};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::WalkEntry;
use pattern::Pattern;
use serde_json::Map;
use std::ffi::OsString;
use std::io::Write;
use test::{Age, FileTypes, SizeTest, Tests};

pub const NAME: &str = "find";

/// Words that find(1) writes with one dash.
const WORDS: [&str; 11] =
    ["name", "iname", "path", "type", "size", "mtime", "mmin", "empty", "maxdepth", "mindepth", "print0"];

#[derive(clap::Args)]
pub struct Find {
    /// The name matches a pattern with `*`, `?` and `[...]`
    #[arg(long, value_name = "PATTERN", value_parser = pattern::parser(false))]
    name: Vec<Pattern>,
    /// As -name, but without regard to case (of ASCII letters)
    #[arg(long, value_name = "PATTERN", value_parser = pattern::parser(true))]
    iname: Vec<Pattern>,
    /// The whole path in the volume matches a pattern; `*` matches slashes too
    #[arg(long, value_name = "PATTERN", value_parser = pattern::parser(false))]
    path: Vec<Pattern>,
    /// The type is one of these letters: f, d, l, p, s, b, c
    #[arg(long = "type", value_name = "LETTERS", value_parser = FileTypes::parse)]
    types: Option<FileTypes>,
    /// The size is N units, or more (+N) or fewer (-N): c bytes, b 512 bytes, k, M, G; without a unit b; rounded up
    #[arg(long, value_name = "[+-]N[cbkMG]", allow_hyphen_values = true, value_parser = SizeTest::parse)]
    size: Vec<SizeTest>,
    /// Last changed N days ago, or more (+N) or fewer (-N)
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true, value_parser = Age::days)]
    mtime: Vec<Age>,
    /// Last changed N minutes ago, or more (+N) or fewer (-N)
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true, value_parser = Age::minutes)]
    mmin: Vec<Age>,
    /// An empty file or directory
    #[arg(long)]
    empty: bool,
    /// Go at most N directories deep; 0: the arguments only
    #[arg(long, value_name = "N")]
    maxdepth: Option<usize>,
    /// Show nothing less than N directories deep
    #[arg(long, value_name = "N")]
    mindepth: Option<usize>,
    /// End each path with a zero byte instead of a line's end, and quote nothing
    #[arg(long)]
    print0: bool,
    /// Print one JSON object a line, with all attributes
    #[arg(long, conflicts_with = "print0")]
    json: bool,
    /// Trees to search
    #[arg(required = true, value_name = "IMAGE[:/path]", value_parser = volume::place_or_root())]
    places: Vec<Place>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Find {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "Find files by name, type, size or age";
    const DETAILS: &'static str = "Shows every file of the trees that passes all tests. Tests may be written with one dash, as \
        find(1) has them. There is no -o, no parentheses and no -exec: pipe the paths (-print0) or the objects (--json) to \
        a program that decides.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad find vol.img:/src -name '*.o' -type f", "prints the object files below a directory"),
        ("myriad find vol.img -size +100M -mtime -7", "prints large files changed in the last week"),
        ("myriad find vol.img --json | jq 'select(.nlink > 1)'", "hands every file to a program"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let tests = Tests::new(&self);
        Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
            for place in &self.places {
                context.tolerate(
                    volumes.get(&place.image).and_then(|volume| self.search(context, &volume, place, &tests)),
                )?;
            }
            Ok(())
        })?;
        Ok(context.status())
    }
}

impl Find {
    fn search(&self, context: &Context, volume: &Opened, place: &Place, tests: &Tests) -> Result<()> {
        if self.maxdepth.is_some() {
            // The engine's walk cannot leave a tree out; this one asks for no more than is shown.
            let stat = volume.lstat(place)?;
            return self.descend(context, volume, place, WalkEntry { path: Vec::new(), stat }, tests);
        }
        let mut count = 0_u64;
        for entry in volume.tree().walk(&place.path).at(place)? {
            count += 1;
            if count % 1024 == 0 {
                context.check()?;
            }
            let entry = match place.step(entry) {
                Ok(entry) => entry,
                Err(error) => {
                    context.tolerate(Err(error))?;
                    continue;
                }
            };
            let depth =
                if entry.path.is_empty() { 0 } else { 1 + entry.path.iter().filter(|&&byte| byte == b'/').count() };
            self.consider(context, volume, place, &entry, depth, tests)?;
        }
        Ok(())
    }

    fn descend(&self, context: &Context, volume: &Opened, place: &Place, top: WalkEntry, tests: &Tests) -> Result<()> {
        let mut ahead = vec![(top, 0)];
        while let Some((entry, depth)) = ahead.pop() {
            context.check()?;
            self.consider(context, volume, place, &entry, depth, tests)?;
            if !entry.stat.is_dir() || self.maxdepth.is_some_and(|max| depth >= max) {
                continue;
            }
            let directory = place.below(&entry.path);
            let first = ahead.len();
            let result = volume.tree().names(&directory.path).at(&directory).and_then(|children| {
                for child in children {
                    let child = child.at(&directory)?;
                    // One that cannot be read is no reason to leave out those after it.
                    match volume.lstat(&directory.below(&child)) {
                        Ok(stat) => ahead.push((WalkEntry { path: join(&entry.path, &child), stat }, depth + 1)),
                        Err(error) => context.tolerate(Err(error))?,
                    }
                }
                Ok(())
            });
            ahead[first..].reverse();
            context.tolerate(result)?;
        }
        Ok(())
    }

    /// Prints an entry if it passes.
    fn consider(
        &self,
        context: &Context,
        volume: &Opened,
        place: &Place,
        entry: &WalkEntry,
        depth: usize,
        tests: &Tests,
    ) -> Result<()> {
        if self.mindepth.is_some_and(|min| depth < min) {
            return Ok(());
        }
        let path = join(&place.path, &entry.path);
        let name = last(&path).unwrap_or(b"/");
        if !tests.pass(name, &path, &entry.stat) {
            return Ok(());
        }
        let mut out = context.out();
        if self.json {
            let mut object = Map::new();
            put(&mut object, "path", &path);
            stat::put(&mut object, &entry.stat);
            if entry.stat.file_type() == myriad_engine::FileType::Symlink {
                let target = volume.tree().readlink(&path).at(place.below(&entry.path))?;
                put(&mut object, "target", &target);
            }
            return Ok(out.json(&object.into())?);
        }
        if self.print0 {
            out.write_all(&path)?;
            return Ok(out.write_all(b"\0")?);
        }
        out.name(&path)?;
        Ok(writeln!(out)?)
    }
}

/// Turns the words that find(1) has into the long options that the parser has.
pub fn as_long_options(arguments: Vec<OsString>) -> Vec<OsString> {
    let long = |argument: OsString| match argument.to_str().and_then(|text| text.strip_prefix('-')) {
        Some(word) if WORDS.contains(&word) => format!("--{word}").into(),
        _ => argument,
    };
    arguments.into_iter().map(long).collect()
}
