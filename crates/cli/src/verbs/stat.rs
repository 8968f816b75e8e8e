//! `stat`: all attributes of files, and of volumes as file systems.

use crate::context::Context;
use crate::failure::At;
use crate::output::Output;
use crate::show::directive::{Directive, Format, Letter, Value};
use crate::show::name::{self, put};
use crate::show::owner::Owners;
use crate::show::quoted::Quoted;
use crate::show::statfs::put_statfs;
use crate::show::{mode, stat, time};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::{FileType, StatFs, Time};
use serde_json::{Map, Value as Json};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

/// What `--terse` prints.
const TERSE: &[u8] = b"%n %s %b %f %u %g %D %i %h %t %T %X %Y %Z %W %o";

#[derive(clap::Args)]
pub struct Stat {
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Show the volume that the file is in, as a file system
    #[arg(short = 'f', long)]
    file_system: bool,
    /// Print a line by a format (below)
    #[arg(short = 'c', long, value_name = "FORMAT", overrides_with = "printf")]
    format: Option<OsString>,
    /// As --format, with escapes such as \n, and no line's end of its own
    #[arg(long, value_name = "FORMAT", overrides_with = "format")]
    printf: Option<OsString>,
    /// Print the numbers in one line
    #[arg(short, long, conflicts_with_all = ["format", "printf", "file_system"])]
    terse: bool,
    /// Print one JSON object a line
    #[arg(long, conflicts_with_all = ["format", "printf", "terse"])]
    json: bool,
    /// Files to look at
    #[arg(required = true, value_name = "IMAGE:/path", value_parser = volume::place_or_root())]
    files: Vec<Place>,
    #[command(flatten)]
    open: OpenArgs,
}

impl Command for Stat {
    const NAME: &'static str = "stat";
    const ABOUT: &'static str = "Show all attributes of files";
    const DETAILS: &'static str = "Directives of formats, as stat(1) has them: %n IMAGE:/path, %N in quotes and with a link's target, \
        %F type, %f %a %A mode in hexadecimal, octal and as ls has it, %u %U %g %G owner and group, %s size, %b blocks of %B bytes, \
        %o block size of the volume, %h names, %i inode, %m image, %d %D device (0), %r %R %t %T of a device node: number, in \
        hexadecimal, major, minor (%Hr %Lr in decimal), %w %x %y %z time made, read, changed, attributes changed, %W %X %Y %Z in \
        seconds (%.3Y with three digits of the fraction).\n\n\
        With -f: %n, %s %S block size, %b blocks, %f free ones, %a those that files can still get, %c inodes, %d free ones, %l longest name, %T type.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad stat vol.img:/etc/motd", "shows the attributes of a file"),
        ("myriad stat -c '%a %s %n' vol.img:/a vol.img:/b", "prints mode, size and name of two files"),
        ("myriad stat --json vol.img:/a | jq .mtime_ns", "prints one of them"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let format = self.parse_format()?;
        volume::look(context, self.files.iter().map(|file| &*file.image), || {
            let mut owners = Owners::default();
            Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
                for file in &self.files {
                    let result = volumes.get(&file.image).and_then(|volume| {
                        if self.file_system {
                            self.show_volume(context, &volume, file, format.as_ref())
                        } else {
                            self.show(context, &volume, file, format.as_ref(), &mut owners)
                        }
                    });
                    context.tolerate(result)?;
                }
                Ok(())
            })
        })?;
        Ok(context.status())
    }
}

impl Stat {
    fn parse_format(&self) -> Result<Option<Format>> {
        let (text, with_escapes) = match (&self.format, &self.printf, self.terse) {
            (Some(format), ..) => (format.as_bytes(), false),
            (_, Some(format), _) => (format.as_bytes(), true),
            (.., true) => (TERSE, false),
            _ => return Ok(None),
        };
        let letters = if self.file_system { "abcdflnsST" } else { "aAbBdDfFgGhimnNorRstTuUwWxXyYzZ" };
        let letter = |c: char| match c {
            'H' | 'L' if !self.file_system => Letter::WithNext,
            c if letters.contains(c) => Letter::Alone,
            _ => Letter::Unknown,
        };
        let format = Format::parse(text, with_escapes, letter, |pair| matches!(pair, "Hd" | "Ld" | "Hr" | "Lr"));
        match format {
            Ok(format) => Ok(Some(format)),
            Err(what) => Err(crate::failure::Failure::usage("stat", what, "").into()),
        }
    }

    fn show(
        &self,
        context: &Context,
        volume: &Opened,
        place: &Place,
        format: Option<&Format>,
        owners: &mut Owners,
    ) -> Result<()> {
        let tree = volume.tree();
        let stat = if self.dereference { tree.stat(&place.path).at(place)? } else { volume.lstat(place)? };
        let is_link = stat.file_type() == FileType::Symlink;
        let target = if is_link { Some(tree.readlink(&place.path).at(place)?) } else { None };
        if let Some(format) = format {
            let block_size = if format.has("o") { volume.statfs()?.block_size } else { 0 };
            let is_terminal = context.out().is_terminal();
            let line = format.fill(is_terminal, |directive| {
                Ok::<_, anyhow::Error>(value(directive, place, &stat, target.as_deref(), block_size, owners))
            })?;
            return self.print(&mut context.out(), &line);
        }
        let attributes = tree.list_xattr(&place.path, self.dereference).at(place)?;
        let mut out = context.out();
        if !self.json {
            return Ok(human(&mut out, place, &stat, target.as_deref(), &attributes, owners)?);
        }
        let mut object = Map::new();
        put(&mut object, "path", &place.path);
        put(&mut object, "image", place.image.as_os_str().as_bytes());
        stat::put(&mut object, &stat);
        if let Some(target) = target {
            put(&mut object, "target", &target);
        }
        let attributes =
            attributes.iter().map(|name| String::from_utf8_lossy(name).into_owned().into()).collect::<Vec<Json>>();
        object.insert("xattrs".into(), attributes.into());
        Ok(out.json(&object.into())?)
    }

    /// What was made by a format. Only `--printf` says itself where lines end.
    fn print(&self, out: &mut Output, line: &[u8]) -> Result<()> {
        out.write_all(line)?;
        if self.printf.is_none() {
            writeln!(out)?;
        }
        Ok(())
    }

    fn show_volume(&self, context: &Context, volume: &Opened, place: &Place, format: Option<&Format>) -> Result<()> {
        // The file has to be there, as for stat(1).
        volume.lstat(place)?;
        let statfs = volume.statfs()?;
        let mut out = context.out();
        if let Some(format) = format {
            let is_terminal = out.is_terminal();
            let line = format
                .fill(is_terminal, |directive| Ok::<_, anyhow::Error>(volume_value(directive, place, &statfs)))?;
            return self.print(&mut out, &line);
        }
        if self.json {
            let mut object = Map::new();
            put(&mut object, "path", &place.path);
            put(&mut object, "image", place.image.as_os_str().as_bytes());
            put_statfs(&mut object, &statfs);
            object.insert("name_max".into(), statfs.name_max.into());
            return Ok(out.json(&object.into())?);
        }
        write!(out, "  File: ")?;
        out.name(&place.bytes())?;
        writeln!(out, "\n    Namelen: {:<7} Type: myriad", statfs.name_max)?;
        writeln!(out, "Block size: {}", statfs.block_size)?;
        let StatFs { blocks, free_blocks: free, available_blocks: available, .. } = statfs;
        writeln!(out, "Blocks: Total: {blocks:<10} Free: {free:<10} Available: {available}")?;
        let inodes = statfs.inodes_used + statfs.inodes_free;
        Ok(writeln!(out, "Inodes: Total: {inodes:<10} Free: {}", statfs.inodes_free)?)
    }
}

/// What a directive stands for.
fn value(
    directive: &Directive,
    place: &Place,
    stat: &myriad_engine::Stat,
    target: Option<&[u8]>,
    block_size: u32,
    owners: &mut Owners,
) -> Value {
    let (major, minor) = stat::device(stat).unwrap_or((0, 0));
    // A dot alone asks for all digits.
    let digits = directive.precision.map_or(0, |digits| digits.unwrap_or(9));
    let seconds = |at: Time| Value::Digits(time::seconds(at, digits));
    match directive.letters.as_str() {
        "a" => Value::Octal((stat.mode & 0o7777).into()),
        "A" => Value::text(mode::string(stat.file_type(), stat.mode)),
        "b" => Value::Number(stat.blocks),
        "B" => Value::Number(stat::BLOCK_UNIT),
        "d" | "Hd" | "Ld" => Value::Number(0),
        "D" => Value::Hex(0),
        "f" => Value::Hex(stat.mode.into()),
        "F" => Value::text(type_name(stat)),
        "g" => Value::Number(stat.gid.into()),
        "G" => Value::text(owners.group(stat.gid)),
        "h" => Value::Number(stat.nlink.into()),
        "i" => Value::Number(stat.ino),
        "m" => Value::Text(place.image.as_os_str().as_bytes().to_vec()),
        "N" => {
            let name = Quoted(&place.bytes()).to_string();
            Value::text(target.map_or(name.clone(), |target| format!("{name} -> {}", Quoted(target))))
        }
        "o" => Value::Number(block_size.into()),
        "r" => Value::Number(if stat::device(stat).is_some() { stat.rdev } else { 0 }),
        "R" => Value::Hex(if stat::device(stat).is_some() { stat.rdev } else { 0 }),
        "Hr" => Value::Number(major.into()),
        "Lr" => Value::Number(minor.into()),
        "s" => Value::Number(stat.size),
        "t" => Value::Hex(major.into()),
        "T" => Value::Hex(minor.into()),
        "u" => Value::Number(stat.uid.into()),
        "U" => Value::text(owners.user(stat.uid)),
        "w" => Value::text(time::full(stat.btime)),
        "W" => seconds(stat.btime),
        "x" => Value::text(time::full(stat.atime)),
        "X" => seconds(stat.atime),
        "y" => Value::text(time::full(stat.mtime)),
        "Y" => seconds(stat.mtime),
        "z" => Value::text(time::full(stat.ctime)),
        "Z" => seconds(stat.ctime),
        _ => Value::Text(place.bytes()),
    }
}

/// What a directive stands for with `-f`.
fn volume_value(directive: &Directive, place: &Place, statfs: &StatFs) -> Value {
    match directive.letters.as_str() {
        "a" => Value::Number(statfs.available_blocks),
        "f" => Value::Number(statfs.free_blocks),
        "b" => Value::Number(statfs.blocks),
        "c" => Value::Number(statfs.inodes_used + statfs.inodes_free),
        "d" => Value::Number(statfs.inodes_free),
        "l" => Value::Number(statfs.name_max.into()),
        "s" | "S" => Value::Number(statfs.block_size.into()),
        "T" => Value::text("myriad"),
        _ => Value::Text(place.bytes()),
    }
}

/// The words of stat(1), which tells empty files and special files apart.
fn type_name(stat: &myriad_engine::Stat) -> &'static str {
    match stat.file_type() {
        FileType::File if stat.size == 0 => "regular empty file",
        FileType::CharDevice => "character special file",
        FileType::BlockDevice => "block special file",
        other => mode::name(other),
    }
}

fn human(
    out: &mut Output,
    place: &Place,
    stat: &myriad_engine::Stat,
    target: Option<&[u8]>,
    attributes: &[Vec<u8>],
    owners: &mut Owners,
) -> io::Result<()> {
    write!(out, "  File: ")?;
    out.name(&place.bytes())?;
    if let Some(target) = target {
        write!(out, " -> ")?;
        out.name(target)?;
    }
    let file_type = stat.file_type();
    writeln!(out, "\n  Size: {:<15} Allocated: {:<15} {}", stat.size, stat::allocated(stat), mode::name(file_type))?;
    write!(out, " Inode: {:<15} Links: {}", stat.ino, stat.nlink)?;
    if let Some((major, minor)) = stat::device(stat) {
        write!(out, "  Device type: {major},{minor}")?;
    }
    let permissions = mode::string(file_type, stat.mode);
    let user = owners.user(stat.uid).to_owned();
    writeln!(
        out,
        "\nAccess: ({:04o}/{permissions})  Uid: ({}/{})  Gid: ({}/{})",
        stat.mode & 0o7777,
        stat.uid,
        user,
        stat.gid,
        owners.group(stat.gid)
    )?;
    for (label, at) in [("Access", stat.atime), ("Modify", stat.mtime), ("Change", stat.ctime), (" Birth", stat.btime)]
    {
        writeln!(out, "{label}: {}", time::full(at))?;
    }
    if !attributes.is_empty() {
        let shown: Vec<String> = attributes.iter().map(|attribute| name::Shown(attribute).to_string()).collect();
        writeln!(out, "Xattrs: {}", shown.join(" "))?;
    }
    Ok(())
}
