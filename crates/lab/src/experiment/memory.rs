//! Memory for kernel and user space alike: the rest of the machine's is taken away, and what is left is for all.
//!
//! A limit on a group of processes (`memory.max` of a control group) is the other way, and it is not a fair one. It counts the pages of files
//! that the group touches, but a kernel's file system also lives on what nobody is charged for (buffers of its worker threads, XFS's metadata
//! buffers, loop devices), and a daemon of ours outside of the group would not be limited at all. A machine with less memory has none of these
//! questions. So pages are taken by a file in a ramfs: the kernel can neither drop nor swap them. Page cache, slabs, the daemon and
//! SQLite share what is left, as on a machine of that size.

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags};
use std::io::Write;
use std::path::Path;

/// Less would endanger whatever else runs.
pub const LEFT_BYTES_MIN: u64 = 256 << 20;
const STEP_BYTES: u64 = 16 << 20;
/// What the machine may have more or less than was asked: others come and go.
const SLACK_BYTES: u64 = 64 << 20;

/// Memory that is taken away until it is dropped.
pub struct Reserve {
    _taken: std::fs::File,
    left_bytes: u64,
}

impl Reserve {
    /// Leaves so many bytes available. In the calling thread's mount namespace, below `folder`.
    pub fn leave(left_bytes: u64, folder: &Path) -> Result<Self> {
        let available = available_bytes()?;
        ensure!(
            available > left_bytes,
            "only {} MiB of memory are available, and --memory is to leave {}",
            available >> 20,
            left_bytes >> 20
        );
        let point = folder.join("reserve");
        std::fs::create_dir_all(&point)?;
        rustix::mount::mount("ramfs", &point, "ramfs", MountFlags::empty(), c"").context("mounting a ramfs")?;
        let file = std::fs::File::create(point.join("taken")).context("taking memory");
        // It lasts as long as the descriptor, which goes with this process, however that ends.
        rustix::mount::unmount(&point, UnmountFlags::DETACH).context("detaching the ramfs")?;
        let mut file = file?;
        let zeros = vec![0; 1 << 20];
        // Steps, because taking pages makes the kernel give up others: only the sum tells.
        while available_bytes()? > left_bytes {
            let step = (available_bytes()?.saturating_sub(left_bytes)).clamp(1 << 20, STEP_BYTES);
            for _ in 0..step >> 20 {
                file.write_all(&zeros).context("taking memory")?;
            }
        }
        Ok(Self { _taken: file, left_bytes })
    }

    /// Fails if the machine has more memory by now than it was left: then something larger than its size would be measured.
    pub fn check(&self) -> Result<u64> {
        let available = available_bytes()?;
        ensure!(
            available <= self.left_bytes + SLACK_BYTES,
            "{} MiB of memory have become available, and {} were left: others gave theirs back. Start again on a quiet machine",
            available >> 20,
            self.left_bytes >> 20
        );
        Ok(available)
    }
}

/// The kernel's own estimate: what is free, and what it could drop.
fn available_bytes() -> Result<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    parse_available(&table).context("/proc/meminfo has no MemAvailable")
}

fn parse_available(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::kernel::enter_mount_namespace;

    #[test]
    fn the_kernels_table() {
        let table = "MemTotal:       24683920 kB\nMemFree:        19434400 kB\nMemAvailable:   23707904 kB\n";
        assert_eq!(parse_available(table), Some(23_707_904 << 10));
        assert_eq!(parse_available("MemFree: 1 kB\n"), None);
    }

    /// Taken from the machine, so that all see less; and given back. By what a ramfs holds, because others take and give meanwhile.
    #[test]
    fn what_is_taken_is_gone_for_all_until_it_is_given_back() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: memory can only be taken by root");
        }
        std::thread::spawn(|| {
            enter_mount_namespace().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let before = available_bytes().unwrap();
            let asked = before - (128 << 20);
            let reserve = Reserve::leave(asked, folder.path()).unwrap();
            let taken = reserve._taken.metadata().unwrap().len();
            assert!(taken > 0 && reserve.left_bytes == asked);
            // Nothing but the descriptor keeps it.
            let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            assert!(!mounts.contains(folder.path().to_str().unwrap()), "{mounts}");
            drop(reserve);
            let error = Reserve::leave(u64::MAX, folder.path()).map(drop).unwrap_err().to_string();
            assert!(error.contains("are available"), "{error}");
        })
        .join()
        .unwrap();
    }
}
