//! `ln`: further names, and symbolic links.

use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::name;
use crate::verb::{Command, Example, Status};
use crate::volume::{Access, ChangeArgs, Place, Volumes};
use anyhow::Result;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

#[derive(clap::Args)]
pub struct Ln {
    /// Make a symbolic link that holds TARGET as it is written
    #[arg(short, long)]
    symbolic: bool,
    /// The file to link, IMAGE:/path; with -s any text
    target: OsString,
    /// The new name, or a directory that gets it
    #[arg(value_name = "IMAGE:/path", value_parser = crate::volume::place())]
    link: Place,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Ln {
    const NAME: &'static str = "ln";
    const ABOUT: &'static str = "Give a file another name, or make a symbolic link";
    const DETAILS: &'static str =
        "An existing file is never replaced. A symbolic link given as target is linked itself.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad ln vol.img:/a vol.img:/b", "makes /b another name of the file /a"),
        ("myriad ln -s ../lib vol.img:/usr/lib", "makes a symbolic link that leads to ../lib"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let source = if self.symbolic { None } else { Some(self.source()?) };
        Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let volume = volumes.get(&self.link.image)?;
            let tree = volume.tree();
            let is_dir = tree.stat(&self.link.path).is_ok_and(|stat| stat.is_dir());
            let target = source.as_ref().map_or(self.target.as_bytes(), |source| &source.path);
            let link = match name::last(target) {
                Some(name) if is_dir => self.link.below(name),
                _ => self.link.clone(),
            };
            match &source {
                Some(source) => {
                    if volume.lstat(source)?.is_dir() {
                        let next = "make a symbolic link to it with ln -s";
                        return Err(Failure::new(source, "is a directory, which can have one name only", next).into());
                    }
                    tree.link(&source.path, &link.path).at(&link)
                }
                None => tree.symlink(target, &link.path).at(&link),
            }
        })?;
        Ok(context.status())
    }
}

impl Ln {
    /// The file to link, which must be of the same volume.
    fn source(&self) -> Result<Place> {
        let source = Place::parse(&self.target)
            .map_err(|error| Failure::usage("", error.to_string(), "with -s the target may be any text"))?;
        if !source.is_in_image_of(&self.link) {
            let what = format!("not on the same volume as {}", self.link);
            return Err(Failure::usage(&source, what, "use ln -s, or copy it with myriad cp").into());
        }
        Ok(source)
    }
}
