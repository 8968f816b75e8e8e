//! The forms in which `ls` shows files.

use super::{Form, Item, Ls};
use crate::context::Context;
use crate::failure::At;
use crate::output::Output;
use crate::show::color::{Colors, Marks};
use crate::show::name::{Shown, columns, escaped, put, quoted};
use crate::show::owner::Owners;
use crate::show::size::Unit;
use crate::show::time::{self, Style};
use crate::show::{mode, stat};
use crate::volume::Opened;
use anyhow::Result;
use myriad_engine::{FileType, Stat};
use serde_json::Map;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use term_grid::{Direction, Filling, Grid, GridOptions};

/// Columns where nobody says how many there are.
const WIDTH: usize = 80;

pub struct Printer<'a> {
    context: &'a Context,
    ls: &'a Ls,
    form: Form,
    marks: Marks,
    colors: Option<Colors>,
    style: Style,
    /// Of sizes, and of space.
    units: (Unit, Unit),
    owners: Owners,
    now: i64,
}

/// What a symbolic link holds, and leads to if it leads anywhere.
struct Target {
    text: Vec<u8>,
    stat: Option<Stat>,
}

/// A file as text.
struct Row {
    mode: String,
    links: String,
    user: String,
    group: String,
    size: String,
    time: String,
}

impl<'a> Printer<'a> {
    pub fn new(context: &'a Context, ls: &'a Ls, form: Form) -> Self {
        let is_terminal = context.out().is_terminal();
        let has_colors = !ls.raw && ls.color.is_some_and(|when| when.holds(is_terminal));
        let style = match (&ls.time_style, ls.full_time) {
            (Some(style), _) => style.clone(),
            (None, true) => Style::full_iso(),
            (None, false) => Style::default(),
        };
        let units = match (ls.human_readable, ls.si, &ls.block_size) {
            (true, ..) => (Unit::Human, Unit::Human),
            (_, true, _) => (Unit::Si, Unit::Si),
            (.., Some(unit)) => (unit.clone(), if ls.kibibytes { Unit::of(1024) } else { unit.clone() }),
            _ => (Unit::of(1), Unit::of(1024)),
        };
        Self {
            context,
            ls,
            form,
            marks: ls.marks(is_terminal),
            colors: has_colors.then(Colors::for_terminal).flatten(),
            style,
            units,
            owners: Owners::numeric(ls.numeric),
            now: time::now(),
        }
    }

    /// A name as it is asked for, before the terminal is thought of.
    pub fn quoted(&self, name: &[u8]) -> Vec<u8> {
        match (self.ls.quote_name, self.ls.escape) {
            (true, _) => quoted(name).into_bytes(),
            (_, true) => escaped(name, |c| c == ' ').into_bytes(),
            _ => name.to_vec(),
        }
    }

    /// A name as text that shows no control characters, for output that is made of text.
    fn text(&self, name: &[u8]) -> String {
        Shown(&self.quoted(name)).to_string()
    }

    /// Shows files; `with_total` before them, where that is usual, the space that they take.
    pub fn print(&mut self, volume: &Opened, items: &[Item], with_total: bool) -> Result<()> {
        let context = self.context;
        let mut out = context.out();
        if self.ls.json {
            return print_json(&mut out, volume, items);
        }
        if with_total && (self.form == Form::Long || self.ls.size) {
            let total = items.iter().map(|item| stat::allocated(&item.stat)).fold(0, u64::saturating_add);
            writeln!(out, "total {}", self.units.1.show(total))?;
        }
        let frills = Frills::of(self.ls, &self.units.1, items, self.form != Form::Commas);
        match self.form {
            Form::Long => self.print_long(&mut out, volume, items, &frills),
            Form::One => {
                for item in items {
                    out.write_all(frills.text(&item.stat).as_bytes())?;
                    self.name(&mut out, volume, item)?;
                    writeln!(out)?;
                }
                Ok(())
            }
            Form::Commas => self.print_commas(&mut out, volume, items, &frills),
            Form::Columns | Form::Across => {
                let mut cells = Vec::with_capacity(items.len());
                for item in items {
                    let name = self.cell(volume, item)?;
                    cells.push(format!("{}{name}", frills.text(&item.stat)));
                }
                let is_across = self.form == Form::Across;
                let direction = if is_across { Direction::LeftToRight } else { Direction::TopToBottom };
                let options = GridOptions { filling: Filling::Spaces(2), direction, width: self.width() };
                Ok(write!(out, "{}", Grid::new(cells, options))?)
            }
        }
    }

    /// Columns of the output.
    fn width(&self) -> usize {
        let asked = || std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let there = || rustix::termios::tcgetwinsize(rustix::stdio::stdout()).map(|size| usize::from(size.ws_col)).ok();
        match self.ls.width {
            Some(0) => usize::MAX,
            Some(width) => width,
            None => asked().filter(|&width| width > 0).or_else(there).filter(|&width| width > 0).unwrap_or(WIDTH),
        }
    }

    /// A name with what stands around it.
    fn cell(&mut self, volume: &Opened, item: &Item) -> Result<String> {
        let name = self.text(&item.name);
        let target = self.target_if_wanted(volume, item)?;
        let (before, after) = self.color(item, target.as_ref());
        Ok(format!("{before}{name}{after}{}", self.marks.of(&item.stat)))
    }

    fn name(&mut self, out: &mut Output, volume: &Opened, item: &Item) -> Result<()> {
        let target = self.target_if_wanted(volume, item)?;
        let (before, after) = self.color(item, target.as_ref());
        write!(out, "{before}")?;
        out.name(&self.quoted(&item.name))?;
        Ok(write!(out, "{after}{}", self.marks.of(&item.stat))?)
    }

    /// Where a link leads, if its colour depends on that.
    fn target_if_wanted(&self, volume: &Opened, item: &Item) -> Result<Option<Target>> {
        if self.colors.is_some() { target(volume, item) } else { Ok(None) }
    }

    fn color(&mut self, item: &Item, target: Option<&Target>) -> (String, &'static str) {
        let stat = target.and_then(|target| target.stat.as_ref());
        self.colors.as_mut().map_or_else(Default::default, |colors| colors.around(&item.name, &item.stat, stat))
    }

    fn row(&mut self, item: &Item) -> Row {
        let stat = &item.stat;
        let size = match stat::device(stat) {
            Some((major, minor)) => format!("{major}, {minor}"),
            None => self.units.0.show(stat.size),
        };
        Row {
            mode: mode::string(stat.file_type(), stat.mode),
            links: stat.nlink.to_string(),
            user: self.owners.user(stat.uid).to_owned(),
            group: self.owners.group(stat.gid).to_owned(),
            size,
            time: self.style.show(self.ls.clock().of(stat), self.now),
        }
    }

    fn print_commas(&mut self, out: &mut Output, volume: &Opened, items: &[Item], frills: &Frills) -> Result<()> {
        let width = self.width();
        let mut column = 0;
        for (index, item) in items.iter().enumerate() {
            let before = frills.text(&item.stat);
            let name = if out.is_terminal() {
                self.text(&item.name).chars().count()
            } else {
                columns(&self.quoted(&item.name))
            };
            let length = before.len() + name + self.marks.of(&item.stat).len();
            if index > 0 {
                let fits = column + length + 2 < width;
                write!(out, ",{}", if fits { " " } else { "\n" })?;
                column = if fits { column + 2 } else { 0 };
            }
            column += length;
            out.write_all(before.as_bytes())?;
            self.name(out, volume, item)?;
        }
        if !items.is_empty() {
            writeln!(out)?;
        }
        Ok(())
    }

    fn print_long(&mut self, out: &mut Output, volume: &Opened, items: &[Item], frills: &Frills) -> Result<()> {
        let rows: Vec<Row> = items.iter().map(|item| self.row(item)).collect();
        let width = |text: fn(&Row) -> &str| rows.iter().map(|row| text(row).chars().count()).max().unwrap_or(0);
        let (links, user) = (width(|row| &row.links), width(|row| &row.user));
        let (group, size) = (width(|row| &row.group), width(|row| &row.size));
        let times = width(|row| &row.time);
        for (item, row) in items.iter().zip(&rows) {
            write!(out, "{}{} {:>links$} ", frills.text(&item.stat), row.mode, row.links)?;
            if !self.ls.no_owner {
                write!(out, "{} ", aligned(&row.user, user))?;
            }
            if !self.ls.no_group && !self.ls.no_group_long {
                write!(out, "{} ", aligned(&row.group, group))?;
            }
            write!(out, "{:>size$} {:>times$} ", row.size, row.time)?;
            let is_link = item.stat.file_type() == FileType::Symlink;
            let target = match if is_link { target(volume, item) } else { Ok(None) } {
                Ok(target) => target,
                Err(error) => {
                    self.context.report(&error);
                    None
                }
            };
            let (before, after) = self.color(item, target.as_ref());
            write!(out, "{before}")?;
            out.name(&self.quoted(&item.name))?;
            write!(out, "{after}")?;
            match &target {
                Some(target) => self.print_target(out, target)?,
                None => write!(out, "{}", self.marks.of(&item.stat))?,
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// What comes after the name of a link: the target, coloured and marked as what it is.
    fn print_target(&mut self, out: &mut Output, target: &Target) -> io::Result<()> {
        let colors = self.colors.as_mut().filter(|colors| colors.looks_at_targets());
        let (before, after) = match (colors, &target.stat) {
            (Some(colors), Some(stat)) => colors.around(&target.text, stat, None),
            (Some(colors), None) => colors.around_missing(),
            (None, _) => Default::default(),
        };
        write!(out, " -> {before}")?;
        out.name(&self.quoted(&target.text))?;
        let stat = target.stat.as_ref().filter(|_| self.marks != Marks::Slash);
        write!(out, "{after}{}", stat.map_or("", |stat| self.marks.of(stat)))
    }
}

/// An owner in its column: names to the left, numbers to the right.
fn aligned(owner: &str, width: usize) -> String {
    let is_number = owner.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { format!("{owner:>width$}") } else { format!("{owner:<width$}") }
}

/// What stands before names: inode numbers and space, in columns of one width.
struct Frills {
    ino: Option<usize>,
    blocks: Option<(usize, Unit)>,
}

impl Frills {
    fn of(ls: &Ls, unit: &Unit, items: &[Item], is_aligned: bool) -> Self {
        let widest = |text: &dyn Fn(&Stat) -> String| {
            if is_aligned { items.iter().map(|item| text(&item.stat).len()).max().unwrap_or(0) } else { 0 }
        };
        Self {
            ino: ls.inode.then(|| widest(&|stat| stat.ino.to_string())),
            blocks: ls.size.then(|| (widest(&|stat| unit.show(stat::allocated(stat))), unit.clone())),
        }
    }

    fn text(&self, stat: &Stat) -> String {
        let ino = self.ino.map(|width| format!("{:>width$} ", stat.ino));
        let blocks = self.blocks.as_ref().map(|(width, unit)| format!("{:>width$} ", unit.show(stat::allocated(stat))));
        ino.unwrap_or_default() + &blocks.unwrap_or_default()
    }
}

/// Where a symbolic link leads; nothing of other files.
fn target(volume: &Opened, item: &Item) -> Result<Option<Target>> {
    if item.stat.file_type() != FileType::Symlink {
        return Ok(None);
    }
    let text = volume.tree().readlink(&item.place.path).at(&item.place)?;
    Ok(Some(Target { text, stat: volume.tree().stat(&item.place.path).ok() }))
}

fn print_json(out: &mut Output, volume: &Opened, items: &[Item]) -> Result<()> {
    for item in items {
        let mut object = Map::new();
        put(&mut object, "path", &item.place.path);
        put(&mut object, "name", &item.name);
        put(&mut object, "image", item.place.image.as_os_str().as_bytes());
        stat::put(&mut object, &item.stat);
        if let Some(target) = target(volume, item)? {
            put(&mut object, "target", &target.text);
        }
        out.json(&object.into())?;
    }
    Ok(())
}
