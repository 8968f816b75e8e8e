//! `ls`: directories.

use crate::context::Context;
use crate::failure::At;
use crate::output::Output;
use crate::show::name::{Shown, join, put};
use crate::show::owner::Owners;
use crate::show::{mode, size, stat, time};
use crate::verb::{Command, Example, Status};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::{FileType, Stat};
use serde_json::Map;
use std::cmp::Reverse;
use std::io::{self, Write};
use term_grid::{Direction, Filling, Grid, GridOptions};

/// Files asked for at once: enough for lookups to overlap their waits.
const BATCH: usize = 256;

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Ls {
    /// Show type, permissions, links, owner, group, size and time of last change
    #[arg(short = 'l', long = "long")]
    long: bool,
    /// Show names that begin with a dot, and `.` and `..`
    #[arg(short, long)]
    all: bool,
    /// Show names that begin with a dot
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// Show directories themselves, not what is in them
    #[arg(short, long)]
    directory: bool,
    /// Show the directories below too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    /// One name a line; so it is in any case when the output is not a terminal
    #[arg(short = '1')]
    one: bool,
    /// With -l: sizes as people read them
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// With -l: owner and group by number
    #[arg(short, long)]
    numeric: bool,
    /// Sort by time of last change, newest first
    #[arg(short = 't', group = "sort")]
    by_time: bool,
    /// Sort by size, largest first
    #[arg(short = 'S', group = "sort")]
    by_size: bool,
    /// Do not sort: the order of the directory
    #[arg(short = 'U', group = "sort")]
    unsorted: bool,
    /// Turn the order around
    #[arg(short, long)]
    reverse: bool,
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
    const DETAILS: &'static str = "Names are sorted by their bytes, as ls does in the C locale. On a terminal, names with control \
        characters are shown in the form $'...', which shells turn back into the same bytes.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad ls vol.img", "lists the root directory"),
        ("myriad ls -la vol.img:/home", "lists a directory with attributes"),
        ("myriad ls -R --json vol.img:/ | jq -r .path", "prints the path of every file"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let mut listing =
            Listing { context, owners: Owners::numeric(self.numeric), now: time::now(), ls: &self, shown: 0 };
        Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
            // As ls does: first the files, together; then each directory under its name.
            let mut directories = Vec::new();
            let mut files: Vec<(Opened, Vec<Item>)> = Vec::new();
            for place in &self.places {
                let result = volumes.get(&place.image).and_then(|volume| {
                    let stat = self.stat_operand(&volume, place)?;
                    let item = Item { name: place.path.clone(), path: place.path.clone(), stat };
                    if stat.is_dir() && !self.directory {
                        directories.push((volume, place));
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
                self.sort(items);
                listing.print(volume, items, false)?;
                listing.shown += 1;
            }
            for (volume, place) in directories {
                listing.tree(&volume, place, self.places.len() > 1 || self.recursive)?;
            }
            Ok(())
        })?;
        Ok(context.status())
    }
}

/// One line of a listing.
struct Item {
    /// As it is shown.
    name: Vec<u8>,
    /// As it is found.
    path: Vec<u8>,
    stat: Stat,
}

impl Ls {
    /// A symbolic link given by name is followed to a directory, unless attributes are asked for.
    fn stat_operand(&self, volume: &Opened, place: &Place) -> Result<Stat> {
        let link = volume.lstat(place)?;
        if link.file_type() == FileType::Symlink && !self.long && !self.directory {
            return Ok(volume.tree().stat(&place.path).unwrap_or(link));
        }
        Ok(link)
    }

    fn is_shown(&self, name: &[u8]) -> bool {
        self.all || self.almost_all || !name.starts_with(b".")
    }

    fn sort(&self, items: &mut [Item]) {
        if self.by_time {
            items.sort_by(|a, b| (Reverse(a.stat.mtime), &a.name).cmp(&(Reverse(b.stat.mtime), &b.name)));
        } else if self.by_size {
            items.sort_by(|a, b| (Reverse(a.stat.size), &a.name).cmp(&(Reverse(b.stat.size), &b.name)));
        } else if !self.unsorted {
            items.sort_by(|a, b| a.name.cmp(&b.name));
        }
        if self.reverse {
            items.reverse();
        }
    }
}

/// What one run of `ls` keeps between directories.
struct Listing<'a> {
    context: &'a Context,
    ls: &'a Ls,
    owners: Owners,
    now: i64,
    /// Directories shown so far.
    shown: usize,
}

impl Listing<'_> {
    /// A directory and, with -R, those below it: each before its content, in the order shown.
    fn tree(&mut self, volume: &Opened, top: &Place, with_heading: bool) -> Result<()> {
        let mut ahead = vec![top.path.clone()];
        while let Some(path) = ahead.pop() {
            self.context.check()?;
            let place = Place { path, ..top.clone() };
            let result = self.directory(volume, &place, with_heading).map(|below| {
                if self.ls.recursive {
                    ahead.extend(below.into_iter().rev());
                }
            });
            self.context.tolerate(result)?;
        }
        Ok(())
    }

    /// Shows one directory; the paths of the directories in it.
    fn directory(&mut self, volume: &Opened, place: &Place, with_heading: bool) -> Result<Vec<Vec<u8>>> {
        let items = self.read(volume, place)?;
        if with_heading && !self.ls.json {
            let mut out = self.context.out();
            if self.shown > 0 {
                writeln!(out)?;
            }
            out.name(&place.path)?;
            writeln!(out, ":")?;
        }
        self.shown += 1;
        self.print(volume, &items, true)?;
        let is_below = |item: &Item| item.stat.is_dir() && item.name != b"." && item.name != b"..";
        Ok(items.into_iter().filter(is_below).map(|item| item.path).collect())
    }

    /// A directory's entries with their attributes, sorted.
    fn read(&self, volume: &Opened, place: &Place) -> Result<Vec<Item>> {
        let tree = volume.tree();
        let mut names = Vec::new();
        for name in tree.names(&place.path).at(place)? {
            let name = name.at(place)?;
            if self.ls.is_shown(&name) {
                names.push(name);
            }
        }
        let mut items = Vec::with_capacity(names.len() + 2);
        if self.ls.all {
            let this = tree.stat(&place.path).at(place)?;
            let above = tree.stat(&join(&place.path, b"..")).at(place)?;
            for (name, stat) in [(&b"."[..], this), (b"..", above)] {
                items.push(Item { name: name.to_vec(), path: join(&place.path, name), stat });
            }
        }
        for batch in names.chunks(BATCH) {
            self.context.check()?;
            let paths: Vec<Vec<u8>> = batch.iter().map(|name| join(&place.path, name)).collect();
            for ((name, path), stat) in batch.iter().zip(&paths).zip(tree.lstat_many(&paths)) {
                match stat.at(Place { path: path.clone(), ..place.clone() }) {
                    Ok(stat) => items.push(Item { name: name.clone(), path: path.clone(), stat }),
                    Err(error) => self.context.report(&error),
                }
            }
        }
        self.ls.sort(&mut items);
        Ok(items)
    }

    fn print(&mut self, volume: &Opened, items: &[Item], with_total: bool) -> Result<()> {
        let mut out = self.context.out();
        if self.ls.json {
            return self.print_json(&mut out, volume, items);
        }
        if self.ls.long {
            if with_total {
                writeln!(out, "total {}", self.size(items.iter().map(|item| stat::allocated(&item.stat)).sum(), 1024))?;
            }
            return Ok(self.print_long(&mut out, volume, items)?);
        }
        if self.ls.one || !out.is_terminal() {
            let width = items.iter().map(|item| digits(item.stat.ino)).max().unwrap_or(0);
            for item in items {
                if self.ls.inode {
                    write!(out, "{:>width$} ", item.stat.ino)?;
                }
                out.name(&item.name)?;
                writeln!(out)?;
            }
            return Ok(());
        }
        let cells = items.iter().map(|item| self.cell(item)).collect();
        let width =
            rustix::termios::tcgetwinsize(rustix::stdio::stdout()).map_or(80, |size| usize::from(size.ws_col).max(1));
        let options = GridOptions { filling: Filling::Spaces(2), direction: Direction::TopToBottom, width };
        Ok(write!(out, "{}", Grid::new(cells, options))?)
    }

    /// A name, with its inode number if that is asked for, as a cell of the grid.
    fn cell(&self, item: &Item) -> String {
        let name = Shown(&item.name);
        if self.ls.inode { format!("{} {name}", item.stat.ino) } else { name.to_string() }
    }

    fn size(&self, bytes: u64, unit: u64) -> String {
        if self.ls.human_readable { size::human(bytes) } else { bytes.div_ceil(unit).to_string() }
    }

    fn print_long(&mut self, out: &mut Output, volume: &Opened, items: &[Item]) -> io::Result<()> {
        let rows: Vec<[String; 6]> = items.iter().map(|item| self.row(item)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        for (item, [ino, links, user, group, size, time]) in items.iter().zip(&rows) {
            if self.ls.inode {
                write!(out, "{ino:>0$} ", widths[0])?;
            }
            let mode = mode::string(item.stat.file_type(), item.stat.mode);
            write!(out, "{mode} {links:>0$} {user:<1$} {group:<2$} ", widths[1], widths[2], widths[3])?;
            write!(out, "{size:>0$} {time} ", widths[4])?;
            out.name(&item.name)?;
            if item.stat.file_type() == FileType::Symlink {
                match volume.tree().readlink(&item.path) {
                    Ok(target) => {
                        write!(out, " -> ")?;
                        out.name(&target)?;
                    }
                    Err(error) => {
                        let error = Err::<(), _>(error).at(Shown(&item.path)).expect_err("an error stays one");
                        self.context.report(&error);
                    }
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    fn row(&mut self, item: &Item) -> [String; 6] {
        let size = match stat::device(&item.stat) {
            Some((major, minor)) => format!("{major}, {minor}"),
            None => self.size(item.stat.size, 1),
        };
        [
            item.stat.ino.to_string(),
            item.stat.nlink.to_string(),
            self.owners.user(item.stat.uid).to_owned(),
            self.owners.group(item.stat.gid).to_owned(),
            size,
            time::short(item.stat.mtime, self.now),
        ]
    }

    fn print_json(&self, out: &mut Output, volume: &Opened, items: &[Item]) -> Result<()> {
        for item in items {
            let mut object = Map::new();
            put(&mut object, "path", &item.path);
            put(&mut object, "name", &item.name);
            stat::put(&mut object, &item.stat);
            if item.stat.file_type() == FileType::Symlink {
                let target = volume.tree().readlink(&item.path).at(Shown(&item.path))?;
                put(&mut object, "target", &target);
            }
            out.json(&object.into())?;
        }
        Ok(())
    }
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}
