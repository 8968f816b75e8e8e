//! `umount`: the end of a mount.

use crate::context::Context;
use crate::failure::{At, Failure, host_error, image_name, is_host_full};
use crate::mount::closing::Closing;
use crate::mount::control::{self, Daemon, await_reply};
use crate::mount::users;
use crate::status::Status;
use crate::verb::{self, Command as _, Example};
use crate::volume::place::is_same_file;
use anyhow::Result;
use myriad_fuse::mounts::{self, Entry};
use myriad_fuse::{How, real_path, unmount};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often to look for what nobody tells.
const POLL: Duration = Duration::from_millis(10);
/// How long a mount that is in use is tried again: a `df` that looks at that moment is gone by then.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// After how long to say what is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct Umount {
    /// Directories that volumes are mounted on, or volumes
    #[arg(required = true, value_name = "DIRECTORY|IMAGE")]
    targets: Vec<PathBuf>,
    /// Take it out of sight at once and do not wait for who uses it; it ends when nobody does any more
    #[arg(short, long)]
    lazy: bool,
    /// Let requests fail that the daemon does not answer, and lose what was not synced if the host has no room for it
    #[arg(short, long)]
    force: bool,
    /// Nothing: there is no table to leave alone
    #[arg(short = 'n', hide = true)]
    no_table: bool,
    /// Nothing: a mount that cannot be ended stays as it is
    #[arg(short = 'r', hide = true)]
    read_only: bool,
    /// Nothing
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    /// Type of the file system
    #[arg(short = 't', hide = true)]
    file_system: Option<String>,
    /// The process of another that is not to wait for the kernel
    #[arg(long, hide = true)]
    apart: bool,
}

impl verb::Command for Umount {
    const NAME: &'static str = "umount";
    const ABOUT: &'static str = "Unmount volumes";
    const DETAILS: &'static str = "Returns when the daemon has closed its image, so that it may be copied, checked or mounted \
        elsewhere. A mount that stays in use for a second is refused, naming the processes that use it. umount(8) does the \
        same where umount.fuse.myriad and umount.fuseblk.myriad are installed.";
    const EXAMPLES: &'static [Example] = &[
        ("myriad umount /mnt", "unmounts what is mounted there"),
        ("myriad umount vol.img", "unmounts a volume, wherever it is mounted"),
        ("myriad umount --lazy /mnt", "takes a mount that is in use out of sight"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        for target in &self.targets {
            context.check()?;
            context.tolerate(self.unmount(context, target))?;
        }
        Ok(context.status())
    }
}

impl Umount {
    fn unmount(&self, context: &Context, target: &Path) -> Result<()> {
        let (mount, daemon) = self.find(target)?;
        let place = image_name(&mount.mount_point);
        if self.lazy && !self.force && !self.apart && detach_apart(context, &mount)? {
            return Ok(());
        }
        if let Some(daemon) = daemon.as_ref().filter(|_| !self.lazy && !self.force) {
            check_host(context, daemon)?;
        }
        // Before, because its daemon may be gone right after.
        let watch = match &daemon {
            Some(daemon) if !self.lazy => daemon.watch()?,
            _ => None,
        };
        // A daemon that nobody here can ask, or that has no room for one more who waits, shows by its lock that it has closed the image.
        let closing = match &watch {
            None if !self.lazy && !self.force => Closing::of(&mount).ok(),
            _ => None,
        };
        let how = How { lazy: self.lazy, force: self.force };
        unmount_patiently(context, &mount, how)?.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => busy(&mount),
            Some(Errno::PERM) => Failure::new(&place, "only root or who mounted it may unmount it", "use sudo"),
            _ => Failure::new(&place, host_error(&error), ""),
        })?;
        let (Some(watch), Some(daemon)) = (watch, daemon) else {
            match closing {
                Some(closing) => return await_closing(context, &mount, &closing),
                None if self.lazy || self.force => return Ok(()),
                None => {
                    let what = "unmounted, but whether its daemon has closed the volume cannot be told";
                    context.note(&format!("myriad: {place}: {what}"));
                    return Ok(());
                }
            }
        };
        match await_reply(watch, || context.check())? {
            Some(Ok(_)) => Ok(()),
            Some(Err(what)) => Err(Failure::new(image_name(&daemon.status.image), what, NEXT).into()),
            None => {
                let what = format!("process {} ended before it had closed the volume", daemon.status.pid);
                Err(Failure::new(image_name(&daemon.status.image), what, NEXT).into())
            }
        }
    }

    /// The mount that is meant, and its daemon if that is there and listens to us.
    fn find(&self, target: &Path) -> Result<(Entry, Option<Daemon>)> {
        let path = real_path(target).at(image_name(target))?;
        if let Some(mount) = mounts::mounted_at(&path).at("/proc/self/mountinfo")? {
            if !mount.is_ours() {
                let what = format!("not a Myriad volume but {} is mounted there", mount.fs_type);
                return Err(Failure::new(image_name(target), what, "use umount(8)").into());
            }
            let daemon = self.daemon_of(&mount)?;
            return Ok((mount, daemon));
        }
        if self.lazy || self.force {
            // Its daemon may not answer, so the kernel is asked.
            if let Some(mount) = the_only(target, mounts_of(&path)?, |mount| mount)? {
                let daemon = self.daemon_of(&mount)?;
                return Ok((mount, daemon));
            }
        }
        let mut mounts = Vec::new();
        for daemon in control::of_image(&path)? {
            if let Some(mount) = daemon.mount()? {
                mounts.push((mount, daemon));
            }
        }
        match the_only(target, mounts, |(mount, _)| mount)? {
            Some((mount, daemon)) => Ok((mount, Some(daemon))),
            None => {
                let not_mounted = || Failure::new(image_name(target), "not mounted", "myriad mount shows what is");
                let error = control::inside_mount(target).unwrap_or_else(not_mounted);
                Err(control::or_elsewhere(&path, error.into()))
            }
        }
    }

    fn daemon_of(&self, mount: &Entry) -> Result<Option<Daemon>> {
        if self.lazy {
            // It is not waited for.
            return Ok(None);
        }
        match control::of_mount(mount) {
            // Of one that does not answer nothing is expected.
            Err(_) if self.force => Ok(None),
            daemon => daemon,
        }
    }
}

/// The mounts of an image, whose path is a real one, that the kernel has; a volume that is bound to several places is the oldest one's.
fn mounts_of(image: &Path) -> Result<Vec<Entry>> {
    let mut ours: Vec<Entry> = Vec::new();
    for mount in mounts::mounts().at("/proc/self/mountinfo")? {
        if mount.is_ours() && ours.iter().all(|other| other.device != mount.device) {
            ours.push(mount);
        }
    }
    // By name first: another image may lie on a mount whose daemon does not answer, and to look at it there would wait for that.
    let is_named = |mount: &Entry| mount.source == image;
    let has_names = ours.iter().any(is_named);
    ours.retain(|mount| if has_names { is_named(mount) } else { is_same_file(&mount.source, image) });
    Ok(ours)
}

/// The mount of an image if it has one; of several it takes a directory to say which is meant.
fn the_only<T>(image: &Path, mut found: Vec<T>, mount: impl Fn(&T) -> &Entry) -> Result<Option<T>> {
    if found.len() <= 1 {
        return Ok(found.pop());
    }
    let at: Vec<String> = found.iter().map(|found| image_name(&mount(found).mount_point)).collect();
    let what = format!("mounted more than once: on {}", at.join(", "));
    Err(Failure::new(image_name(image), what, "name a directory").into())
}

/// Unmounts. One that is in use is tried again for a while: somebody may just be passing by.
fn unmount_patiently(context: &Context, mount: &Entry, how: How) -> Result<io::Result<()>> {
    let start = Instant::now();
    loop {
        match unmount(&mount.mount_point, &mount.device, how) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) && start.elapsed() < BUSY_FOR => {
                context.check()?;
                thread::sleep(POLL);
            }
            // Its daemon was faster: after --force its requests fail, and it takes the mount away itself.
            Err(_) if !is_mounted(mount)? => return Ok(Ok(())),
            result => return Ok(result),
        }
    }
}

fn is_mounted(mount: &Entry) -> Result<bool> {
    Ok(mounts::of(&mount.device, &mount.source).at("/proc/self/mountinfo")?.is_some())
}

/// Takes a mount out of sight by a process of its own; false if that could not. The kernel has the last who leaves a mount wait for the
/// daemon, and lets no signal end that wait: where the daemon is stopped, it is the other process that waits.
fn detach_apart(context: &Context, mount: &Entry) -> Result<bool> {
    let program = std::env::current_exe().at("myriad")?;
    let mut process = Command::new(&program);
    process.args([Umount::NAME, "--lazy", "--apart", "--"]).arg(&mount.mount_point);
    process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = process.spawn().at(image_name(&program))?;
    let start = Instant::now();
    loop {
        if let Some(status) = process.try_wait().at(image_name(&program))? {
            return Ok(status.success());
        }
        if start.elapsed() > TOLD_AFTER && !is_mounted(mount)? {
            let what = "out of sight; its daemon is still closing the volume, or does not answer";
            context.note(&format!("myriad: {}: {what}", image_name(&mount.mount_point)));
            return Ok(true);
        }
        context.check()?;
        thread::sleep(POLL);
    }
}

/// Returns when the image of a mount that is gone has been closed. Of a daemon that was killed it may be somebody else's
/// lock that is waited for.
fn await_closing(context: &Context, mount: &Entry, closing: &Closing<'_>) -> Result<()> {
    let start = Instant::now();
    let mut is_told = false;
    while closing.is_under_way().at("/proc/locks")? {
        context.check()?;
        if start.elapsed() > TOLD_AFTER && !is_told {
            is_told = true;
            let (place, image) = (image_name(&mount.mount_point), image_name(&mount.source));
            context
                .note(&format!("myriad: {place}: unmounted; waiting for who has {image} open for writing to close it"));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// What there is to do about a volume that was not closed.
const NEXT: &str = "the next mount recovers it; what was synced is there";

/// Refuses to end a mount while the host has no room for the image: what was not synced would be lost. Any other error of syncing shows when it is closed.
fn check_host(context: &Context, daemon: &Daemon) -> Result<()> {
    match daemon.sync(Ok(()), || context.check()) {
        Err(error) if is_host_full(&error) => {
            let what = "the host's file system has no room for the image, and what was not synced would be lost";
            let next = "make room there, or lose it with --force";
            Err(Failure::new(image_name(&daemon.status.image), what, next).into())
        }
        _ => context.check(),
    }
}

fn busy(mount: &Entry) -> Failure {
    let users = users::users(mount);
    let what = match users.is_empty() {
        true => "in use, by a process of another user or by something mounted inside".to_owned(),
        false => format!("in use by {}", users::list_users(&users)),
    };
    Failure::new(image_name(&mount.mount_point), what, "end that, or unmount with --lazy")
}
