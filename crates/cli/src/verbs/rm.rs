//! `rm`: removing files and trees.

use crate::context::Context;
use crate::failure::{At, Failure};
use crate::progress::Progress;
use crate::verb::{Command, Example, Status};
use crate::volume::{self, Access, ChangeArgs, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::{Errno, Error};

#[derive(clap::Args)]
pub struct Rm {
    /// Remove directories with all that is below them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Say nothing of files that do not exist
    #[arg(short, long)]
    force: bool,
    /// Files to remove
    #[arg(required_unless_present = "force", value_name = "IMAGE:/path", value_parser = volume::place())]
    files: Vec<Place>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Rm {
    const NAME: &'static str = "rm";
    const ABOUT: &'static str = "Remove files and directories";
    const DETAILS: &'static str = "It never asks. The root of a volume cannot be removed. Interrupted, it leaves what it has not \
        yet removed as it was.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad rm vol.img:/tmp/a vol.img:/tmp/b", "removes two files"),
        ("myriad rm -rf vol.img:/build", "removes a tree, if it is there"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let progress = context.progress("removing");
        Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let mut removed = 0;
            for file in &self.files {
                context.check()?;
                let result = volumes
                    .get(&file.image)
                    .and_then(|volume| self.remove(context, &volume, file, &progress, &mut removed));
                context.tolerate(result)?;
            }
            Ok(())
        })?;
        Ok(context.status())
    }
}

impl Rm {
    fn remove(
        &self,
        context: &Context,
        volume: &Opened,
        place: &Place,
        progress: &Progress,
        removed: &mut u64,
    ) -> Result<()> {
        if place.is_root() {
            return Err(Failure::new(place, "the root of the volume cannot be removed", "name what is below it").into());
        }
        let tree = volume.tree();
        let stat = match tree.lstat(&place.path) {
            Err(Error::Refused(Errno::NOENT | Errno::NOTDIR)) if self.force => return Ok(()),
            result => result.at(place)?,
        };
        let before = *removed;
        if !stat.is_dir() {
            tree.unlink(&place.path).at(place)?;
            *removed += 1;
        } else if self.recursive {
            *removed += tree
                .remove_tree(&place.path, &mut |count| {
                    progress.set(before + count);
                    context.check().is_ok()
                })
                .at(place)?;
        } else {
            return Err(Failure::new(place, "a directory", "myriad rm -r removes it and all below it").into());
        }
        progress.set(*removed);
        Ok(())
    }
}
