//! A FUSE server that is a program of its own, in the foreground: mounted when it says so, gone when it has ended.

use crate::compare::kernel::{find_in_path, unmount_when_idle};
use anyhow::{Context, Result, bail, ensure};
use rustix::mount::UnmountFlags;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a mount, or the end of a server, is waited for: it may have much to write.
const WAIT: Duration = Duration::from_secs(600);
const STEP: Duration = Duration::from_millis(5);

/// A mount and its server, until it is dropped.
pub struct Served {
    child: Child,
    point: PathBuf,
}

impl Served {
    /// Starts the program, and waits until something is mounted on `point`.
    pub fn start(program: &str, arguments: &[&Path], point: &Path) -> Result<Self> {
        let found = find_in_path(program).unwrap_or_else(|| PathBuf::from(program));
        let mut command = Command::new(found);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("running {program}"))?;
        let mut served = Self { child, point: point.to_owned() };
        let start = Instant::now();
        while !is_mount_point(point)? {
            if let Some(status) = served.child.try_wait()? {
                bail!("{program} mounted nothing ({status})");
            }
            ensure!(start.elapsed() < WAIT, "{program} mounted nothing in {} s", WAIT.as_secs());
            std::thread::sleep(STEP);
        }
        Ok(served)
    }

    /// Unmounts, and waits for the server's end: what it had not written is written then.
    pub fn stop(&mut self) -> Result<()> {
        let start = Instant::now();
        while is_mount_point(&self.point)? {
            unmount_when_idle(&self.point)?;
        }
        while self.child.try_wait()?.is_none() {
            ensure!(start.elapsed() < WAIT, "the server of {} did not end", self.point.display());
            std::thread::sleep(STEP);
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("{error:#}");
            // Out of sight at least; and nobody is left to serve it.
            let _ = rustix::mount::unmount(&*self.point, UnmountFlags::DETACH);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// By device numbers: the table of mounts would have to be this thread's.
fn is_mount_point(point: &Path) -> Result<bool> {
    let parent = point.parent().with_context(|| format!("{} has no parent", point.display()))?;
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev());
    Ok(device(point).with_context(|| point.display().to_string())? != device(parent)?)
}
