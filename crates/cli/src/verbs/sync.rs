//! `sync`: what volumes hold made durable.

use crate::change::{Changes, JsonArgs, TellArgs};
use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::mount::control::{self, Daemon};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::{Live, Place, check_is_image, recognise};
use anyhow::Result;
use myriad_engine::{Errno, Error};
use myriad_fuse::mounts::{self, Entry};
use myriad_fuse::real_path;
use std::fs::File;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Sync {
    #[command(flatten)]
    json: JsonArgs,
    /// Volumes, or directories that volumes are mounted on; without any, all that this user has mounted
    #[arg(value_name = "IMAGE|DIRECTORY")]
    targets: Vec<PathBuf>,
}

impl Command for Sync {
    const NAME: &'static str = "sync";
    const ABOUT: &'static str = "Make durable what was written to volumes";
    const DETAILS: &'static str = "Of a mounted volume: the kernel sends its daemon all that programs have written there, and the daemon commits \
        it; when this returns, no crash costs any of it. That is more than sync(1) does where a volume is mounted as type \
        `fuse`, of which sync(2) and syncfs(2) tell the daemon nothing.\n\n\
        Of an image that is not mounted: the host writes to its disk what it keeps in memory of the image file (fsync(2)). The \
        verbs and the library have done so before they close a volume; a copy made by another program may need it. What a \
        program that has the volume open keeps in its own memory only that program can make durable.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad sync /mnt", "makes a mounted volume durable"),
        ("cp backup.img vol.img && myriad sync vol.img", "makes a copy of an image durable"),
        ("myriad sync", "makes all mounted volumes of this user durable"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        let changes = Changes::new(context, Self::NAME, TellArgs { json: self.json, verbose: false });
        let work = || {
            if self.targets.is_empty() {
                for daemon in control::all() {
                    context.check()?;
                    let Some(daemon) = context.tolerated(daemon)? else { continue };
                    let synced = sync_mounted(context, &changes, &daemon);
                    // One that has gone since it was found has nothing left to sync.
                    if synced.is_ok() || !daemon.has_gone()? {
                        context.tolerate(synced)?;
                    }
                }
            }
            for target in &self.targets {
                context.check()?;
                context.tolerate(sync(context, &changes, target))?;
            }
            Ok(())
        };
        let result = work();
        changes.finish(result)
    }
}

fn sync(context: &Context, changes: &Changes<'_>, target: &Path) -> Result<()> {
    let place = image_name(target);
    let path = real_path(target).at(&place)?;
    let daemon = match mounts::mounted_at(&path).at("/proc/self/mountinfo")?.filter(Entry::is_ours) {
        None => control::mount_of(&path)?,
        Some(mount) => match control::of_mount(&mount)? {
            Some(daemon) => Some(daemon),
            None => {
                return Err(Failure::new(place, "its daemon has gone, or is another user's", "mount it again").into());
            }
        },
    };
    if let Some(daemon) = daemon {
        return sync_mounted(context, changes, &daemon);
    }
    check_is_image(&path)?;
    if !recognise::is_volume(&path) {
        let next = "name a volume, or a directory that one is mounted on";
        return Err(Failure::new(place, "not a Myriad volume", next).into());
    }
    File::open(&path).and_then(|file| file.sync_all()).at(place)?;
    tell(changes, target)
}

fn sync_mounted(context: &Context, changes: &Changes<'_>, daemon: &Daemon) -> Result<()> {
    let status = &daemon.status;
    let place = image_name(&status.mount_point);
    let kept_back = match seen(daemon)? {
        Some(files) => files.sync(),
        None if daemon.is_mounted()? || daemon.is_elsewhere()? => {
            let what = "cannot be seen from here, so what the kernel keeps back of it was not synced";
            context.note(&format!("myriad: {place}: {what}; run myriad sync where it can be seen"));
            Ok(())
        }
        // Unmounted, and still in use: the kernel has nothing that it could be asked for.
        None => Ok(()),
    };
    daemon.sync(kept_back, || context.check())?;
    tell(changes, &status.image)
}

/// The files of a mount, unless it is in another mount namespace, or something else is mounted over it.
fn seen(daemon: &Daemon) -> Result<Option<Live>> {
    let Some(mount) = daemon.mount()? else { return Ok(None) };
    match Live::open(&mount.mount_point, &mount.device) {
        Err(Error::Refused(Errno::NXIO | Errno::NOENT | Errno::NOTDIR)) => Ok(None),
        files => files.map(Some).at(image_name(&mount.mount_point)),
    }
}

fn tell(changes: &Changes<'_>, image: &Path) -> Result<()> {
    let root = Place { image: image.to_owned(), path: b"/".to_vec() };
    changes.tell(&root, "synced", String::new, |_| {})
}
