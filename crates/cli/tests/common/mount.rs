//! Mounts that a test makes, and that are gone when it ends, however it ends.

#[path = "../../../fuse/tests/common/for_all.rs"]
pub mod for_all;

use super::Place;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// As what the kernel may have a mount of ours.
pub const TYPES: [&str; 2] = ["fuse.myriad", "fuseblk.myriad"];

/// A place with a directory `mnt` to mount on.
pub struct MountPlace {
    pub place: Place,
}

impl std::ops::Deref for MountPlace {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl MountPlace {
    /// With a volume `vol.img`; `None`, and a line that says why, where nothing can be mounted.
    pub fn with_volume(size: u64) -> Option<Self> {
        if let Some(reason) = why_not() {
            println!("skipped: {reason}");
            return None;
        }
        let place = Place::with_volume(size);
        std::fs::create_dir(place.path("mnt")).expect("a directory");
        Some(Self { place })
    }

    /// As [`Self::with_volume`], made with the words that [`mkfs_words`] has.
    pub fn with_chosen_volume(size: u64) -> Option<Self> {
        let place = Self::with_volume(size)?;
        place.line(&format!("mkfs --quiet --force {} vol.img", mkfs_words())).ok();
        Some(place)
    }

    /// Mounts `vol.img` on `mnt`.
    #[track_caller]
    pub fn mount(&self, options: &str) {
        self.line(&format!("mount vol.img mnt {options}")).ok();
    }

    #[track_caller]
    pub fn umount(&self) {
        self.line("umount mnt").ok();
    }

    pub fn mounted(&self, name: &str) -> PathBuf {
        self.path("mnt").join(name)
    }

    /// What `myriad mount` says of the mount on `mnt`; root sees those of others, too.
    #[track_caller]
    pub fn status(&self) -> Value {
        let here = self.path("mnt").canonicalize().expect("it is mounted");
        let said = self.line("mount --json").ok();
        let mounts = said.lines().into_iter().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut ours = mounts.filter(|mount| mount["mount_point"].as_str() == here.to_str());
        ours.next().unwrap_or_else(|| panic!("not mounted: {said:?}"))
    }

    #[track_caller]
    pub fn daemon(&self) -> i32 {
        i32::try_from(self.status()["pid"].as_u64().expect("a process")).expect("a process")
    }

    /// The line of /proc/mounts for a directory here: source, type, options.
    pub fn mount_line(&self, name: &str) -> Option<Vec<String>> {
        let wanted = self.path(name).canonicalize().unwrap_or_else(|_| self.path(name));
        let table = std::fs::read_to_string("/proc/mounts").expect("a table");
        let lines = table.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let mut found = lines.filter(|fields| fields[1].as_bytes() == wanted.as_os_str().as_bytes());
        found.next_back().map(|fields| vec![fields[0].clone(), fields[2].clone(), fields[3].clone()])
    }
}

impl Drop for MountPlace {
    fn drop(&mut self) {
        let top = self.path("").canonicalize().expect("it is still there");
        // A test may be in a mount namespace of its own.
        let table = std::fs::read("/proc/thread-self/mounts").unwrap_or_default();
        let table = String::from_utf8_lossy(&table);
        let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        for point in points.filter(|point| point.starts_with(&top)) {
            // Its daemon goes with it.
            let _ = Command::new("umount").arg("-l").arg(point).status();
        }
    }
}

/// Further words for mkfs, by which `scripts/suites` and `scripts/kills` choose their volumes.
pub fn mkfs_words() -> String {
    std::env::var("MYRIAD_MKFS").unwrap_or_default()
}

/// By the system call: a bare system has no program `kill`.
#[track_caller]
pub fn kill(pid: i32, signal: Signal) {
    try_kill(pid, signal).unwrap_or_else(|error| panic!("process {pid}: {error}"));
}

/// For a process that may have ended before.
pub fn try_kill(pid: i32, signal: Signal) -> rustix::io::Result<()> {
    kill_process(Pid::from_raw(pid).expect("a process"), signal)
}

/// Waits for what happens by itself; a test that waits too long has failed.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn is_alive(pid: i32) -> bool {
    // A zombie is a process that nobody has waited for: its parent went before it, and init may take its time.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

/// Why nothing can be mounted here.
fn why_not() -> Option<&'static str> {
    static REASON: OnceLock<Option<&str>> = OnceLock::new();
    *REASON.get_or_init(|| {
        let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        if device.is_err() {
            return Some("/dev/fuse cannot be opened, so nothing can be mounted");
        }
        // Root of a container may have the device and yet not the right.
        let place = Place::with_volume(16 << 20);
        std::fs::create_dir(place.path("mnt")).expect("a directory");
        let answer = place.line("mount vol.img mnt");
        if answer.code == 0 {
            place.line("umount mnt").ok();
            return None;
        }
        let is_refusal =
            ["not permitted", "Permission denied", "fusermount3"].iter().any(|word| answer.err.contains(word));
        assert!(is_refusal, "{answer:?}");
        Some("this user may not mount")
    })
}
