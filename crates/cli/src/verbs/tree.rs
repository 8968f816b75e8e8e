//! `tree`: directories and all that is below them, drawn.

use crate::context::Context;
use crate::failure::At;
use crate::output::Output;
use crate::pattern::Pattern;
use crate::show::color::{Colors, Marks};
use crate::show::name::{count, join, masked, put, quoted};
use crate::show::owner::Owners;
use crate::show::time::{self, Style};
use crate::show::{mode, size, stat};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::verbs::ls::sort::{Clock, Order};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use myriad_engine::{FileType, Stat};
use serde_json::{Map, Value};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Files asked for at once: enough for lookups to overlap their waits.
const BATCH: usize = 256;

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Tree {
    /// Show names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// Show directories only
    #[arg(short = 'd')]
    directories: bool,
    /// Show the whole path of each file, IMAGE:/path
    #[arg(short = 'f')]
    full_path: bool,
    /// Draw no lines
    #[arg(short = 'i')]
    plain: bool,
    /// Go at most N directories deep
    #[arg(short = 'L', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    level: Option<u64>,
    /// Leave out what matches; several patterns with `|` between them
    #[arg(short = 'I', value_name = "PATTERN", value_parser = patterns())]
    ignore: Vec<Vec<Pattern>>,
    /// Of files, show only those that match
    #[arg(short = 'P', value_name = "PATTERN", value_parser = patterns())]
    only: Vec<Vec<Pattern>>,
    /// Show type and permissions
    #[arg(short = 'p')]
    permissions: bool,
    /// Show the owner
    #[arg(short = 'u')]
    user: bool,
    /// Show the group
    #[arg(short = 'g')]
    group: bool,
    /// Show sizes in bytes
    #[arg(short = 's')]
    size: bool,
    /// Show sizes as people read them
    #[arg(short = 'h')]
    human_readable: bool,
    /// Likewise, by powers of 1000
    #[arg(long)]
    si: bool,
    /// Show the time of last change, or with -c of the attributes
    #[arg(short = 'D')]
    date: bool,
    /// How -D shows times: a format with the directives of date(1)
    #[arg(long, value_name = "FORMAT", value_parser = |text: &str| Style::parse(&format!("+{text}")))]
    timefmt: Option<Style>,
    /// Show inode numbers
    #[arg(long)]
    inodes: bool,
    /// Marks after names: `/` directory, `=` socket, `|` FIFO, `*` program
    #[arg(short = 'F')]
    classify: bool,
    /// Names in double quotes
    #[arg(short = 'Q')]
    quote: bool,
    /// Sort by time of last change, oldest first
    #[arg(short = 't', overrides_with_all = ["change_time", "unsorted", "by_version", "sort"])]
    by_time: bool,
    /// Sort by time of the last change of attributes, oldest first
    #[arg(short = 'c', overrides_with_all = ["by_time", "unsorted", "by_version", "sort"])]
    change_time: bool,
    /// Do not sort
    #[arg(short = 'U', overrides_with_all = ["by_time", "change_time", "by_version", "sort"])]
    unsorted: bool,
    /// Sort by numbers in names: a9 before a10
    #[arg(short = 'v', overrides_with_all = ["by_time", "change_time", "unsorted", "sort"])]
    by_version: bool,
    /// Sort by something else than the name
    #[arg(long, value_name = "WORD", overrides_with_all = ["by_time", "change_time", "unsorted", "by_version"])]
    sort: Option<Order>,
    /// Turn the order around
    #[arg(short)]
    reverse: bool,
    /// Directories before files
    #[arg(long)]
    dirsfirst: bool,
    /// Do not count at the end
    #[arg(long)]
    noreport: bool,
    /// Colour names by type, as `ls --color` does
    #[arg(short = 'C', overrides_with = "no_color")]
    color: bool,
    /// Do not colour names, as without -C
    #[arg(short = 'n', overrides_with = "color")]
    no_color: bool,
    /// Accepted: a volume is one file system
    #[arg(short = 'x')]
    one_file_system: bool,
    /// Print one JSON value of nested objects, as tree(1) does
    #[arg(short = 'J', conflicts_with = "json")]
    nested_json: bool,
    /// Print one JSON object a line, with all attributes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Directories to draw
    #[arg(required = true, value_name = "IMAGE[:/path]", value_parser = volume::place_or_root())]
    places: Vec<Place>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Tree {
    const NAME: &'static str = "tree";
    const ABOUT: &'static str = "Draw directories and what is below them";
    const DETAILS: &'static str = "Options are those of tree(1). Names are sorted by their bytes; control characters in them are \
        shown as their numbers in octal. The line at the end counts the directories given too, and links to directories as directories.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad tree vol.img:/etc", "draws a tree"),
        ("myriad tree -d -L 2 vol.img", "draws the directories of the first two levels"),
        ("myriad tree -ph --dirsfirst -I '*.o|*.a' vol.img:/src", "shows permissions and sizes, and leaves files out"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        volume::look(context, self.places.iter().map(|place| &*place.image), || self.draw(context))?;
        Ok(context.status())
    }
}

impl Tree {
    fn draw(&self, context: &Context) -> Result<()> {
        let mut drawing = Drawing {
            context,
            tree: self,
            colors: (self.color && !self.no_color).then(Colors::from_environment),
            owners: Owners::default(),
            now: time::now(),
            directories: 0,
            files: 0,
        };
        let result = Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
            if self.nested_json {
                writeln!(context.out(), "[")?;
            }
            for (index, place) in self.places.iter().enumerate() {
                if self.nested_json && index > 0 {
                    writeln!(context.out(), ",")?;
                }
                let drawn = volumes.get(&place.image).and_then(|volume| drawing.draw(&volume, place));
                drawing.tolerate(place, drawn)?;
            }
            Ok(())
        });
        result?;
        drawing.report()
    }
}

/// Parser of patterns with `|` between them.
fn patterns() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().map(|text| {
        let text = text.into_vec();
        text.split(|&byte| byte == b'|').map(|part| Pattern::new(part.to_vec(), false)).collect::<Vec<_>>()
    }))
}

/// A file of a directory.
struct Item {
    name: Vec<u8>,
    place: Place,
    stat: Stat,
    /// What a symbolic link holds, and leads to if it leads anywhere.
    target: Option<(Vec<u8>, Option<Stat>)>,
}

impl Item {
    /// A directory, or a link to one.
    fn counts_as_directory(&self) -> bool {
        self.stat.is_dir() || matches!(&self.target, Some((_, Some(target))) if target.is_dir())
    }
}

struct Drawing<'a> {
    context: &'a Context,
    tree: &'a Tree,
    colors: Option<Colors>,
    owners: Owners,
    now: i64,
    directories: u64,
    files: u64,
}

impl Drawing<'_> {
    /// A place that cannot be drawn is told of, and the others follow. Where `-J` has it there is an object all the same.
    fn tolerate(&self, place: &Place, drawn: Result<()>) -> Result<()> {
        let Err(error) = drawn else { return Ok(()) };
        let mut object = Map::new();
        put(&mut object, "name", &place.bytes());
        object.insert("error".into(), format!("{error:#}").into());
        self.context.tolerate(Err(error))?;
        if self.tree.nested_json {
            writeln!(self.context.out(), "  {}", Value::from(object))?;
        }
        Ok(())
    }

    /// A stack, not recursion: trees may be deeper than ours.
    fn draw(&mut self, volume: &Opened, place: &Place) -> Result<()> {
        let stat = volume.tree().stat(&place.path).at(place)?;
        let top = Item { name: place.bytes(), place: place.clone(), stat, target: None };
        let mut levels = Vec::new();
        // Whether the file above at each depth is the last one of its directory.
        let mut lasts: Vec<bool> = Vec::new();
        let mut next = Some(top);
        loop {
            let Some(item) = next.take() else {
                let Some(level): Option<&mut std::vec::IntoIter<Item>> = levels.last_mut() else { return Ok(()) };
                next = level.next();
                let is_last = level.len() == 0;
                match &next {
                    Some(_) => *lasts.last_mut().expect("a mark for each level") = is_last,
                    None => {
                        levels.pop();
                        lasts.pop();
                        self.close(levels.len(), levels.last().is_none_or(|level| level.len() == 0))?;
                    }
                }
                continue;
            };
            self.context.check()?;
            let depth = lasts.len() as u64;
            let is_entered = item.stat.is_dir() && self.tree.level.is_none_or(|max| depth < max);
            let children = if is_entered {
                match self.children(volume, &item.place) {
                    Ok(children) => children,
                    Err(error) => {
                        self.context.tolerate(Err(error))?;
                        Vec::new()
                    }
                }
            } else {
                Vec::new()
            };
            let is_last = lasts.last().copied().unwrap_or(true);
            if item.counts_as_directory() {
                self.directories += 1;
            } else {
                self.files += 1;
            }
            self.line(&item, &lasts, !children.is_empty(), is_last)?;
            if !children.is_empty() {
                levels.push(children.into_iter());
                lasts.push(false);
            }
        }
    }

    /// What is in a directory and to be shown, sorted.
    fn children(&self, volume: &Opened, directory: &Place) -> Result<Vec<Item>> {
        let tree = volume.tree();
        let matches = |patterns: &[Vec<Pattern>], name: &[u8]| patterns.iter().flatten().any(|one| one.matches(name));
        let mut names = Vec::new();
        for name in tree.names(&directory.path).at(directory)? {
            let name = name.at(directory)?;
            if (self.tree.all || !name.starts_with(b".")) && !matches(&self.tree.ignore, &name) {
                names.push(name);
            }
        }
        let mut items = Vec::new();
        for batch in names.chunks(BATCH) {
            self.context.check()?;
            let paths: Vec<Vec<u8>> = batch.iter().map(|name| join(&directory.path, name)).collect();
            for (name, stat) in batch.iter().zip(tree.lstat_many(&paths)) {
                let place = directory.below(name);
                let stat = match stat.at(&place) {
                    Ok(stat) => stat,
                    Err(error) => {
                        self.context.tolerate(Err(error))?;
                        continue;
                    }
                };
                let is_link = stat.file_type() == FileType::Symlink;
                let target = if is_link {
                    Some((tree.readlink(&place.path).at(&place)?, tree.stat(&place.path).ok()))
                } else {
                    None
                };
                let item = Item { name: name.clone(), place, stat, target };
                let is_directory = item.counts_as_directory();
                let is_wanted = self.tree.only.is_empty() || is_directory || matches(&self.tree.only, name);
                if is_wanted && (is_directory || !self.tree.directories) {
                    items.push(item);
                }
            }
        }
        self.tree.sort(&mut items);
        Ok(items)
    }

    /// One file. `has_children`: what is in it follows.
    fn line(&mut self, item: &Item, lasts: &[bool], has_children: bool, is_last: bool) -> Result<()> {
        let context = self.context;
        let mut out = context.out();
        if self.tree.json {
            let mut object = Map::new();
            put(&mut object, "path", &item.place.path);
            put(&mut object, "image", item.place.image.as_os_str().as_bytes());
            object.insert("depth".into(), lasts.len().into());
            stat::put(&mut object, &item.stat);
            if let Some((target, _)) = &item.target {
                put(&mut object, "target", target);
            }
            return Ok(out.json(&object.into())?);
        }
        if self.tree.nested_json {
            let object = Value::from(self.object(item)).to_string();
            write!(out, "{:1$}{2}", "", 2 + 2 * lasts.len(), &object[..object.len() - 1])?;
            let end = match (has_children, is_last) {
                (true, _) => ",\"contents\":[",
                (false, true) => "}",
                (false, false) => "},",
            };
            return Ok(writeln!(out, "{end}")?);
        }
        if !self.tree.plain && !lasts.is_empty() {
            for is_last in &lasts[..lasts.len() - 1] {
                write!(out, "{}", if *is_last { "    " } else { "│\u{a0}\u{a0} " })?;
            }
            write!(out, "{}", if is_last { "└── " } else { "├── " })?;
        }
        let facts = self.facts(&item.stat);
        if !facts.is_empty() {
            write!(out, "[{}]  ", facts.join(" "))?;
        }
        self.name(&mut out, item)?;
        Ok(writeln!(out)?)
    }

    fn name(&mut self, out: &mut Output, item: &Item) -> Result<()> {
        let name = if self.tree.full_path { item.place.bytes() } else { item.name.clone() };
        let target_stat = item.target.as_ref().and_then(|(_, stat)| stat.as_ref());
        let (before, after) = match &mut self.colors {
            Some(colors) => colors.around(&item.name, &item.stat, target_stat),
            None => Default::default(),
        };
        write!(out, "{before}{}{after}", self.text(&name))?;
        let marks = if self.tree.classify { Marks::Classify } else { Marks::None };
        match &item.target {
            None => write!(out, "{}", marks.of(&item.stat))?,
            Some((target, stat)) => {
                write!(out, " -> {}{}", self.text(target), stat.as_ref().map_or("", |stat| marks.of(stat)))?;
            }
        }
        Ok(())
    }

    fn text(&self, name: &[u8]) -> String {
        if self.tree.quote { quoted(name) } else { masked(name) }
    }

    /// What is asked for of a file besides its name, each in its column.
    fn facts(&mut self, stat: &Stat) -> Vec<String> {
        let tree = self.tree;
        let mut facts = Vec::new();
        if tree.inodes {
            facts.push(format!("{:>7}", stat.ino));
        }
        if tree.permissions {
            facts.push(mode::string(stat.file_type(), stat.mode));
        }
        if tree.user {
            facts.push(format!("{:<8}", self.owners.user(stat.uid)));
        }
        if tree.group {
            facts.push(format!("{:<8}", self.owners.group(stat.gid)));
        }
        if tree.si {
            facts.push(format!("{:>4}", size::human_si(stat.size)));
        } else if tree.human_readable {
            facts.push(format!("{:>4}", size::human(stat.size)));
        } else if tree.size {
            facts.push(format!("{:>11}", stat.size));
        }
        if tree.date {
            facts.push(self.date(stat));
        }
        facts
    }

    fn date(&self, stat: &Stat) -> String {
        self.tree.timefmt.clone().unwrap_or_default().show(self.tree.clock().of(stat), self.now)
    }

    /// The object of `-J`, without what is in it.
    fn object(&mut self, item: &Item) -> Map<String, Value> {
        let tree = self.tree;
        let kind = match item.stat.file_type() {
            FileType::Directory => "directory",
            FileType::File => "file",
            FileType::Symlink => "link",
            FileType::Fifo => "fifo",
            FileType::Socket => "socket",
            FileType::CharDevice => "char",
            FileType::BlockDevice => "block",
        };
        let mut object = Map::new();
        object.insert("type".into(), kind.into());
        let name = if tree.full_path { item.place.bytes() } else { item.name.clone() };
        put(&mut object, "name", &name);
        if let Some((target, _)) = &item.target {
            put(&mut object, "target", target);
        }
        let mut add = |key: &str, value: Value| drop(object.insert(key.into(), value));
        if tree.inodes {
            add("inode", item.stat.ino.into());
        }
        if tree.permissions {
            add("mode", format!("{:04o}", item.stat.mode & 0o7777).into());
            add("prot", mode::string(item.stat.file_type(), item.stat.mode).into());
        }
        if tree.user {
            add("user", self.owners.user(item.stat.uid).into());
        }
        if tree.group {
            add("group", self.owners.group(item.stat.gid).into());
        }
        if tree.size || tree.human_readable || tree.si {
            add("size", item.stat.size.into());
        }
        if tree.date {
            let date = self.date(&item.stat);
            object.insert("time".into(), date.into());
        }
        object
    }

    /// The end of a directory in `-J`.
    fn close(&self, depth: usize, is_last: bool) -> Result<()> {
        if self.tree.nested_json {
            let comma = if is_last { "" } else { "," };
            writeln!(self.context.out(), "{:1$}]}}{comma}", "", 2 + 2 * depth)?;
        }
        Ok(())
    }

    fn report(&self) -> Result<()> {
        let tree = self.tree;
        let mut out = self.context.out();
        if tree.nested_json {
            if !tree.noreport {
                let files = if tree.directories { String::new() } else { format!(",\"files\":{}", self.files) };
                writeln!(out, ",\n  {{\"type\":\"report\",\"directories\":{}{files}}}", self.directories)?;
            }
            return Ok(writeln!(out, "]")?);
        }
        if tree.noreport || tree.json {
            return Ok(());
        }
        write!(out, "\n{}", count(self.directories, "directory"))?;
        if !tree.directories {
            write!(out, ", {}", count(self.files, "file"))?;
        }
        Ok(writeln!(out)?)
    }
}

impl Tree {
    fn clock(&self) -> Clock {
        if self.change_time { Clock::Change } else { Clock::Modify }
    }

    fn order(&self) -> Order {
        let given = [
            (self.by_time || self.change_time, Order::Time),
            (self.unsorted, Order::None),
            (self.by_version, Order::Version),
        ];
        given.into_iter().find_map(|(given, order)| given.then_some(order)).or(self.sort).unwrap_or(Order::Name)
    }

    fn sort(&self, items: &mut [Item]) {
        let (order, clock) = (self.order(), self.clock());
        items.sort_by(|a, b| {
            let by = order.compare(clock, (&a.name, &a.stat), (&b.name, &b.stat));
            // tree(1) has the oldest first.
            if order == Order::Time {
                clock.of(&a.stat).cmp(&clock.of(&b.stat)).then_with(|| a.name.cmp(&b.name))
            } else {
                by
            }
        });
        if self.reverse {
            items.reverse();
        }
        if self.dirsfirst && order != Order::None {
            items.sort_by_key(|item| !item.counts_as_directory());
        }
    }
}
