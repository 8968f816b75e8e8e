//! `mv`: other names and other directories.

use crate::context::Context;
use crate::failure::{At, Failure};
use crate::show::name;
use crate::verb::{Command, Example, Status};
use crate::volume::{self, Access, ChangeArgs, Guard, Opened, Place, Volumes};
use anyhow::Result;
use myriad_engine::{Errno, Error, RenameMode};
use std::collections::HashMap;

#[derive(clap::Args)]
pub struct Mv {
    /// Leave a target that exists as it is, and say so
    #[arg(short, long)]
    no_clobber: bool,
    /// Exchange source and target, in one step
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
    /// Replace a target that is an empty directory instead of moving into it
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Replace a file though it is a volume; never one that is in use
    #[arg(long)]
    force: bool,
    /// Files to move, then the new name or a directory that gets them
    #[arg(required = true, num_args = 2.., value_name = "IMAGE:/path", value_parser = volume::place())]
    places: Vec<Place>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Command for Mv {
    const NAME: &'static str = "mv";
    const ABOUT: &'static str = "Rename files, or move them to another directory";
    const DETAILS: &'static str = "Each move is one atomic step: there is no moment at which the file has no name, or a \
        replaced target is half gone. Moving to another volume is copying: use myriad cp, then rm.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad mv vol.img:/draft vol.img:/final", "renames a file, replacing what had the name"),
        ("myriad mv vol.img:/a vol.img:/b vol.img:/dir", "moves two files into a directory"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let (target, sources) = self.places.split_last().expect("the parser asks for two");
        for source in sources {
            if !source.is_in_image_of(target) {
                let what = format!("not on the same volume as {target}");
                return Err(
                    Failure::usage(source, what, "copy it with myriad cp, then remove it with myriad rm").into()
                );
            }
        }
        Volumes::new(Access::Change, self.change.mount_options()).finish(|volumes| {
            let volume = volumes.get(&target.image)?;
            let is_dir = volume.tree().stat(&target.path).is_ok_and(|stat| stat.is_dir());
            let into = is_dir && !self.no_target_directory && !self.exchange;
            if sources.len() > 1 && !into {
                return Err(Failure::usage(
                    target,
                    "not a directory",
                    "several files can be moved to a directory only",
                )
                .into());
            }
            let mut made = HashMap::new();
            for source in sources {
                context.check()?;
                context.tolerate(self.move_one(&volume, source, target, into, &mut made))?;
            }
            Ok(())
        })?;
        Ok(context.status())
    }
}

impl Mv {
    /// `made`: the names in the directory that this run has given, each with what was moved there.
    fn move_one<'p>(
        &self,
        volume: &Opened,
        source: &'p Place,
        target: &Place,
        into: bool,
        made: &mut HashMap<Vec<u8>, &'p Place>,
    ) -> Result<()> {
        let target = match name::last(&source.path) {
            Some(name) if into => target.below(name),
            Some(_) => target.clone(),
            None => {
                return Err(Failure::new(
                    source,
                    "has no name of its own that could be moved",
                    "name what is below it",
                )
                .into());
            }
        };
        // So that an error about the source names the source.
        volume.lstat(source)?;
        if let Some(first) = made.get(&target.path) {
            return Err(Failure::just_made(source, &target, first).into());
        }
        let mode = match (self.no_clobber, self.exchange) {
            (true, _) => RenameMode::NoReplace,
            (_, true) => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        if mode == RenameMode::Replace {
            volume.check_replaced(&target, Guard::unless(self.force))?;
        }
        let names = format!("{source} to {target}");
        match volume.tree().rename(&source.path, &target.path, mode) {
            Err(Error::Refused(Errno::INVAL)) => {
                Err(Failure::new(names, "a directory cannot be moved into itself", "choose another target").into())
            }
            result => result.at(names),
        }?;
        made.insert(target.path, source);
        Ok(())
    }
}
