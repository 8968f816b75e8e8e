//! `ls`: directories.
//!
//! ```text
//! sort.rs     orders
//! listing.rs  which files, directory by directory
//! print.rs    the forms in which they are shown
//! ```

mod listing;
mod print;
pub mod sort;

use crate::context::Context;
use crate::failure::At;
use crate::pattern::{self, Pattern};
use crate::show::color::{Marks, When};
use crate::show::size::Unit;
use crate::show::time::Style;
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use listing::Listing;
use myriad_engine::{FileType, Stat};
use sort::{Clock, Order};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Ls {
    /// Show type, permissions, links, owner, group, size and time of last change
    #[arg(short = 'l', long = "long", overrides_with_all = ["columns", "across", "commas"])]
    long: bool,
    /// As -l, without the owner
    #[arg(short = 'g')]
    no_owner: bool,
    /// As -l, without the group
    #[arg(short = 'o')]
    no_group_long: bool,
    /// With -l: without the group
    #[arg(short = 'G', long)]
    no_group: bool,
    /// Names in columns, sorted downwards; so it is in any case on a terminal
    #[arg(short = 'C', overrides_with_all = ["long", "across", "commas", "one"])]
    columns: bool,
    /// Names in columns, sorted across
    #[arg(short = 'x', overrides_with_all = ["long", "columns", "commas", "one"])]
    across: bool,
    /// Names with commas between them
    #[arg(short = 'm', overrides_with_all = ["long", "columns", "across", "one"])]
    commas: bool,
    /// One name a line; so it is in any case when the output is not a terminal
    #[arg(short = '1', overrides_with_all = ["columns", "across", "commas"])]
    one: bool,
    /// One of these by name
    #[arg(long, value_name = "WORD", conflicts_with_all = ["long", "columns", "across", "commas", "one"])]
    format: Option<Form>,
    /// Columns of the output, 0 for any number; without it those of the terminal
    #[arg(short, long, value_name = "COLUMNS")]
    width: Option<usize>,
    /// Show names that begin with a dot, and `.` and `..`
    #[arg(short, long)]
    all: bool,
    /// Show names that begin with a dot
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// Leave out names that end in `~`
    #[arg(short = 'B', long)]
    ignore_backups: bool,
    /// Leave out names that match
    #[arg(short = 'I', long, value_name = "PATTERN", value_parser = pattern::parser())]
    ignore: Vec<Pattern>,
    /// Leave out names that match, unless -a or -A is given
    #[arg(long, value_name = "PATTERN", value_parser = pattern::parser())]
    hide: Vec<Pattern>,
    /// Show directories themselves, not what is in them
    #[arg(short, long)]
    directory: bool,
    /// Show the directories below too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show what symbolic links lead to instead of them
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Likewise, for links that are given as places only
    #[arg(short = 'H', long = "dereference-command-line")]
    dereference_places: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    /// Show the space that each file takes, in KiB
    #[arg(short, long)]
    size: bool,
    /// With -l and -s: sizes as people read them
    #[arg(short = 'h', long, overrides_with_all = ["si", "block_size"])]
    human_readable: bool,
    /// Likewise, by powers of 1000
    #[arg(long, overrides_with_all = ["human_readable", "block_size"])]
    si: bool,
    /// With -l and -s: sizes in units of SIZE, such as 1M
    #[arg(long, value_name = "SIZE", value_parser = Unit::parse, overrides_with_all = ["human_readable", "si"])]
    block_size: Option<Unit>,
    /// Space in KiB, as without it
    #[arg(short = 'k', long)]
    kibibytes: bool,
    /// With -l: owner and group by number; implies -l
    #[arg(short, long = "numeric-uid-gid", visible_alias = "numeric")]
    numeric: bool,
    /// -l with --time-style=full-iso
    #[arg(long)]
    full_time: bool,
    /// How times are shown: full-iso, long-iso, iso, locale, or +FORMAT with the directives of date(1)
    #[arg(long, value_name = "STYLE", value_parser = Style::parse)]
    time_style: Option<Style>,
    /// Show this time with -l; sort by it with -t, or without -l
    #[arg(long, value_name = "WORD", overrides_with_all = ["change_time", "access_time"])]
    time: Option<Clock>,
    /// --time=ctime
    #[arg(short = 'c', overrides_with_all = ["time", "access_time"])]
    change_time: bool,
    /// --time=atime
    #[arg(short = 'u', overrides_with_all = ["time", "change_time"])]
    access_time: bool,
    /// Sort by something else than the name
    #[arg(long, value_name = "WORD", overrides_with_all = ["by_time", "by_size", "unsorted", "by_extension", "by_version"])]
    sort: Option<Order>,
    /// Sort by time of last change, newest first
    #[arg(short = 't', overrides_with_all = ["sort", "by_size", "unsorted", "by_extension", "by_version"])]
    by_time: bool,
    /// Sort by size, largest first
    #[arg(short = 'S', overrides_with_all = ["sort", "by_time", "unsorted", "by_extension", "by_version"])]
    by_size: bool,
    /// Do not sort: the order of the directory
    #[arg(short = 'U', overrides_with_all = ["sort", "by_time", "by_size", "by_extension", "by_version"])]
    unsorted: bool,
    /// Sort by extension
    #[arg(short = 'X', overrides_with_all = ["sort", "by_time", "by_size", "unsorted", "by_version"])]
    by_extension: bool,
    /// Sort by numbers in names: a9 before a10
    #[arg(short = 'v', overrides_with_all = ["sort", "by_time", "by_size", "unsorted", "by_extension"])]
    by_version: bool,
    /// -a and -U, without colours
    #[arg(short = 'f')]
    raw: bool,
    /// Turn the order around
    #[arg(short, long)]
    reverse: bool,
    /// Directories before files
    #[arg(long)]
    group_directories_first: bool,
    /// Marks after names: `/` directory, `@` symbolic link, `|` FIFO, `=` socket, `*` program
    #[arg(short = 'F', long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    classify: Option<When>,
    /// As -F, without `*`
    #[arg(long)]
    file_type: bool,
    /// `/` after directories
    #[arg(short = 'p')]
    slash: bool,
    /// Marks by name
    #[arg(long, value_name = "WORD", conflicts_with_all = ["classify", "file_type", "slash"])]
    indicator_style: Option<Marks>,
    /// Colour names by type, with the colours of LS_COLORS
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    color: Option<When>,
    /// Names in double quotes, with the escapes of C
    #[arg(short = 'Q', long, overrides_with_all = ["escape", "literal"])]
    quote_name: bool,
    /// Names with the escapes of C
    #[arg(short = 'b', long, overrides_with_all = ["quote_name", "literal"])]
    escape: bool,
    /// Names as they are, as without -Q and -b
    #[arg(short = 'N', long, overrides_with_all = ["quote_name", "escape"])]
    literal: bool,
    /// Print one JSON object a line, with all attributes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: (),
    /// Directories, or files, to show
    #[arg(required = true, value_name = "IMAGE[:/path]", value_parser = volume::place_or_root())]
    places: Vec<Place>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Ls {
    const NAME: &'static str = "ls";
    const ABOUT: &'static str = "List directories";
    const DETAILS: &'static str = "Options are those of ls(1). Names are sorted by their bytes, as ls does in the C locale. On a \
        terminal, names with control characters are shown in the form $'...', which shells turn back into the same bytes. Files given \
        as places, and the headings of directories, are shown as IMAGE:/path, which other verbs take.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad ls vol.img", "lists the root directory"),
        ("myriad ls -la vol.img:/home", "lists a directory with attributes"),
        ("myriad ls -lhS --group-directories-first vol.img:/srv", "lists a directory, the largest files first"),
        ("myriad ls -R --json vol.img:/ | jq -r .path", "prints the path of every file"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let form = self.form(context.out().is_terminal());
        volume::look(context, self.places.iter().map(|place| &*place.image), || self.list(context, form))?;
        Ok(context.status())
    }
}

/// Files asked for at once: enough for lookups to overlap their waits.
const BATCH: usize = 256;

/// One line of a listing.
struct Item {
    /// As it is shown.
    name: Vec<u8>,
    place: Place,
    stat: Stat,
}

/// How names are laid out.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    #[value(alias = "verbose")]
    Long,
    #[value(name = "single-column")]
    One,
    #[value(name = "vertical")]
    Columns,
    #[value(alias = "horizontal")]
    Across,
    Commas,
}

impl Ls {
    fn list(&self, context: &Context, form: Form) -> Result<()> {
        let mut listing = Listing::new(context, self, form);
        Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
            // As ls does: first the files, together; then each directory under its name.
            let mut directories = Vec::new();
            let mut files: Vec<(Opened, Vec<Item>)> = Vec::new();
            for place in &self.places {
                let result = volumes.get(&place.image).and_then(|volume| {
                    let stat = self.stat_operand(&volume, place)?;
                    let item = Item { name: place.bytes(), place: place.clone(), stat };
                    if stat.is_dir() && !self.directory {
                        directories.push((volume, item));
                    } else if let Some((_, items)) = files.iter_mut().find(|(known, _)| known.is_same(&volume)) {
                        items.push(item);
                    } else {
                        files.push((volume, vec![item]));
                    }
                    Ok(())
                });
                context.tolerate(result)?;
            }
            for (volume, items) in &mut files {
                self.sort(volume, items);
                listing.files(volume, items)?;
            }
            let (order, clock) = (self.order(), self.clock());
            directories.sort_by(|(_, one), (_, other)| {
                order.compare(clock, (&one.name, &one.stat), (&other.name, &other.stat))
            });
            if self.reverse {
                directories.reverse();
            }
            for (volume, Item { place, .. }) in directories {
                listing.tree(&volume, &place, self.places.len() > 1 || self.recursive)?;
            }
            Ok(())
        })
    }

    fn form(&self, is_terminal: bool) -> Form {
        let is_long = self.long || self.no_owner || self.no_group_long || self.numeric || self.full_time;
        if let Some(form) = self.format {
            return form;
        }
        let given = [
            (self.columns, Form::Columns),
            (self.across, Form::Across),
            (self.commas, Form::Commas),
            (is_long, Form::Long),
            (self.one || !is_terminal, Form::One),
        ];
        given.into_iter().find_map(|(given, form)| given.then_some(form)).unwrap_or(Form::Columns)
    }

    fn clock(&self) -> Clock {
        match (self.change_time, self.access_time) {
            (true, _) => Clock::Change,
            (_, true) => Clock::Access,
            _ => self.time.unwrap_or(Clock::Modify),
        }
    }

    fn order(&self) -> Order {
        let given = [
            (self.raw, Order::None),
            (self.by_time, Order::Time),
            (self.by_size, Order::Size),
            (self.unsorted, Order::None),
            (self.by_extension, Order::Extension),
            (self.by_version, Order::Version),
        ];
        let given = given.into_iter().find_map(|(given, order)| given.then_some(order)).or(self.sort);
        let has_clock = self.change_time || self.access_time || self.time.is_some();
        given.unwrap_or(if has_clock && self.form(false) != Form::Long { Order::Time } else { Order::Name })
    }

    fn marks(&self, is_terminal: bool) -> Marks {
        match self.classify {
            Some(when) if when.holds(is_terminal) => Marks::Classify,
            _ if self.file_type => Marks::FileType,
            _ if self.slash => Marks::Slash,
            _ => self.indicator_style.unwrap_or(Marks::None),
        }
    }

    /// A symbolic link given by name is followed to a directory, unless attributes are asked for.
    fn stat_operand(&self, volume: &Opened, place: &Place) -> Result<Stat> {
        let link = volume.lstat(place)?;
        if link.file_type() != FileType::Symlink {
            return Ok(link);
        }
        if self.dereference || self.dereference_places {
            return volume.tree().stat(&place.path).at(place);
        }
        let shows_links = self.form(false) == Form::Long || self.directory || self.marks(false) == Marks::Classify;
        let target = if shows_links { None } else { volume.tree().stat(&place.path).ok() };
        Ok(target.filter(Stat::is_dir).unwrap_or(link))
    }

    fn is_shown(&self, name: &[u8]) -> bool {
        let shows_hidden = self.all || self.almost_all || self.raw;
        let hides = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (shows_hidden || !name.starts_with(b".") && !hides(&self.hide))
            && !(self.ignore_backups && name.ends_with(b"~"))
            && !hides(&self.ignore)
    }

    fn sort(&self, volume: &Opened, items: &mut [Item]) {
        let (order, clock) = (self.order(), self.clock());
        items.sort_by(|a, b| order.compare(clock, (&a.name, &a.stat), (&b.name, &b.stat)));
        if self.reverse {
            items.reverse();
        }
        if self.group_directories_first && order != Order::None {
            items.sort_by_cached_key(|item| !leads_to_directory(volume, item));
        }
    }
}

/// Whether a file is a directory, or a symbolic link to one.
fn leads_to_directory(volume: &Opened, item: &Item) -> bool {
    item.stat.is_dir()
        || item.stat.file_type() == FileType::Symlink
            && volume.tree().stat(&item.place.path).is_ok_and(|stat| stat.is_dir())
}
