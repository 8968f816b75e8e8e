//! `stat`: all attributes of files.

use crate::context::Context;
use crate::failure::At;
use crate::output::Output;
use crate::show::name::{self, put};
use crate::show::owner::Owners;
use crate::show::{mode, stat, time};
use crate::verb::{Command, Example, Status};
use crate::volume::{self, Access, OpenArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::FileType;
use serde_json::{Map, Value};
use std::io::{self, Write};

#[derive(clap::Args)]
pub struct Stat {
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print one JSON object a line
    #[arg(long)]
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
    const EXAMPLES: &'static [Example] = &[
        ("myriad stat vol.img:/etc/motd", "shows the attributes of a file"),
        ("myriad stat --json vol.img:/a | jq .mtime_ns", "prints one of them"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let mut owners = Owners::default();
        Volumes::new(Access::Read, self.open.mount_options()).finish(|volumes| {
            for file in &self.files {
                let result = volumes.get(&file.image).and_then(|volume| self.show(context, &volume, file, &mut owners));
                context.tolerate(result)?;
            }
            Ok(())
        })?;
        Ok(context.status())
    }
}

impl Stat {
    fn show(&self, context: &Context, volume: &Opened, place: &Place, owners: &mut Owners) -> Result<()> {
        let tree = volume.tree();
        let stat = if self.dereference { tree.stat(&place.path).at(place)? } else { volume.lstat(place)? };
        let is_link = stat.file_type() == FileType::Symlink;
        let target = if is_link { Some(tree.readlink(&place.path).at(place)?) } else { None };
        let attributes = tree.list_xattr(&place.path, self.dereference).at(place)?;
        let mut out = context.out();
        if !self.json {
            return Ok(human(&mut out, place, &stat, target.as_deref(), &attributes, owners)?);
        }
        let mut object = Map::new();
        put(&mut object, "path", &place.path);
        stat::put(&mut object, &stat);
        if let Some(target) = target {
            put(&mut object, "target", &target);
        }
        let attributes =
            attributes.iter().map(|name| String::from_utf8_lossy(name).into_owned().into()).collect::<Vec<Value>>();
        object.insert("xattrs".into(), attributes.into());
        Ok(out.json(&object.into())?)
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
    out.name(&place.path)?;
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
