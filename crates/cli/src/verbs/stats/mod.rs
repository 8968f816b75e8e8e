//! `stats`: the live figures of a mounted volume, or a census of one that is not.

mod census;
mod live;

use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::interrupt::Interrupted;
use crate::mount::control::{self, Daemon, Request};
use crate::status::Status;
use crate::verb::{Command, Example};
use crate::volume::OpenArgs;
use anyhow::Result;
use myriad_fuse::mounts::{self, Entry};
use myriad_fuse::real_path;
use signal_hook::consts::SIGINT;
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Stats {
    /// Directory that a volume is mounted on, or a volume
    #[arg(value_name = "DIRECTORY|IMAGE")]
    target: PathBuf,
    /// Show too what the engine counted
    #[arg(long)]
    counters: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show the figures of a mount once, not every second
    #[arg(long, help_heading = MOUNTED)]
    once: bool,
    /// Show them so often
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval, help_heading = MOUNTED)]
    interval: Duration,
    /// Print them in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "counters"], help_heading = MOUNTED)]
    prometheus: bool,
    /// Print a line for every request of the kernel, until interrupted
    #[arg(long, conflicts_with_all = ["json", "counters", "prometheus", "once"], help_heading = MOUNTED)]
    log: bool,
    #[command(flatten)]
    open: OpenArgs,
}

const MOUNTED: &str = "Mounted volumes";

impl Command for Stats {
    const NAME: &'static str = "stats";
    const ABOUT: &'static str = "Show what a mount does, or what a volume holds";
    const DETAILS: &'static str = "Of a mounted volume: requests by kind with their rates and latencies, cache, log, and what is not \
        yet written; on a terminal anew every second until Ctrl-C, elsewhere once. Latencies are told by powers of two: p99 is a time \
        within which 99 of 100 requests were answered.\n\n\
        Of a volume that is not mounted: a walk over all of it. Metadata is all space in use that is neither allocated to \
        files nor the log: inodes, directories, free-space trees, tables of checksums, fixed blocks. (Extent trees and \
        attribute blocks of files count as allocated to them.)";
    const EXAMPLES: &'static [Example] = &[
        ("myriad stats /mnt", "shows what a mount does, every second"),
        ("myriad stats --prometheus vol.img", "prints the figures of a mounted volume for a collector"),
        ("myriad stats --log /mnt | grep LOOKUP", "shows each request as it comes"),
        ("myriad stats --json vol.img | jq .metadata_per_file", "prints the bytes of metadata per file"),
    ];

    fn run(self, context: &Context) -> Result<Status> {
        match (self.daemon()?, self.log) {
            (Some(daemon), true) => follow_requests(context, &daemon),
            (Some(daemon), false) => self.live(context, &daemon),
            (None, _) if self.log || self.prometheus || self.once => {
                Err(Failure::new(image_name(&self.target), "not mounted", "myriad mount mounts it").into())
            }
            (None, _) => self.census(context),
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.1..=86400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("`{text}` is not a number of seconds from 0.1 to 86400"))
}

impl Stats {
    /// Who serves the target, if it is mounted.
    fn daemon(&self) -> Result<Option<Daemon>> {
        let place = image_name(&self.target);
        let path = real_path(&self.target).at(&place)?;
        let Some(mount) = mounts::mounted_at(&path).at("/proc/self/mountinfo")?.filter(Entry::is_ours) else {
            return match control::inside_mount(&self.target).filter(|_| path.is_dir()) {
                Some(failure) => Err(failure.into()),
                None => control::mount_of(&path),
            };
        };
        match control::of_mount(&mount)? {
            Some(daemon) => Ok(Some(daemon)),
            None => Err(Failure::new(place, "its daemon has gone, or is another user's", "mount it again").into()),
        }
    }
}

fn follow_requests(context: &Context, daemon: &Daemon) -> Result<Status> {
    let (_, mut stream) = daemon.follow(Request::Log)?;
    // Short, so that a signal is seen.
    stream.get_ref().set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut bytes = vec![0; 64 << 10];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(Status::OK),
            Ok(count) => {
                let mut out = context.out();
                out.write_all(&bytes[..count])?;
                // Whoever watches wants to see a request when it comes.
                out.flush()?;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).at(image_name(&daemon.status.mount_point)),
        }
        if is_told_to_end(context)? {
            return Ok(Status::OK);
        }
    }
}

/// Whether the user has seen enough: Ctrl-C is how what goes on for ever is ended. Other signals are errors, as elsewhere.
fn is_told_to_end(context: &Context) -> Result<bool> {
    match Interrupted::received() {
        Some(Interrupted(signal)) if i32::from(signal) == SIGINT => Ok(true),
        _ => context.check().map(|()| false),
    }
}
