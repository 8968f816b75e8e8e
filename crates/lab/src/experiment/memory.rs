//! Memory for kernel and user space alike: the rest of the machine's is taken away, and what is left is for all.
//!
//! A limit on a group of processes (`memory.max` of a control group) is the other way, and it is not a fair one. It counts the pages of files
//! that the group touches, but a kernel's file system also lives on what nobody is charged for (buffers of its worker threads, XFS's metadata
//! buffers, loop devices), and a daemon of ours outside of the group would not be limited at all. A machine with less memory has none of these
//! questions. So pages are taken by a file in a ramfs: the kernel can neither drop nor swap them. Page cache, slabs, the daemon and
//! SQLite share what is left, as on a machine of that size.

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Less would endanger whatever else runs.
pub const LEFT_BYTES_MIN: u64 = 256 << 20;
/// What is taken at most before the machine is looked at again: others take, too.
const STEP_BYTES: u64 = 512 << 20;
/// What the machine may have more than was asked at the end of a cell: others come and go.
const SLACK_BYTES: u64 = 64 << 20;

/// What is available, in bytes, given what was taken.
type Available = dyn Fn(&File) -> Result<u64>;

/// Memory that is taken away until it is dropped.
pub struct Reserve {
    taken: File,
    left_bytes: u64,
    available: Box<Available>,
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
        let file = File::create(point.join("taken")).context("taking memory");
        // It lasts as long as the descriptor, which goes with this process, however that ends.
        rustix::mount::unmount(&point, UnmountFlags::DETACH).context("detaching the ramfs")?;
        let mut reserve = Self { taken: file?, left_bytes, available: Box::new(|_| settled_bytes()) };
        reserve.hold()?;
        Ok(reserve)
    }

    /// Takes again what others have given back. What is available then, in bytes.
    pub fn hold(&mut self) -> Result<u64> {
        let zeros = vec![0; 1 << 20];
        loop {
            let available = (self.available)(&self.taken)?;
            if available <= self.left_bytes {
                return Ok(available);
            }
            let step = (available - self.left_bytes).clamp(1 << 20, STEP_BYTES);
            for _ in 0..step >> 20 {
                self.taken.write_all(&zeros).context("taking memory")?;
            }
        }
    }

    /// Fails if the machine has more memory than [`Self::hold`] left: then something larger than its size was measured since.
    pub fn check(&self) -> Result<()> {
        let available = (self.available)(&self.taken)?;
        ensure!(
            available <= self.left_bytes + SLACK_BYTES,
            "{} MiB of memory have become available meanwhile, and {} were left: others gave theirs back. --resume measures it again",
            available >> 20,
            self.left_bytes >> 20
        );
        Ok(())
    }
}

/// What is available once the kernel has dropped what it can. Of pages and slabs that it could drop it counts only what exceeds a mark
/// of each, 90 MiB on a machine of 24 GiB: the same memory seems more when it is free.
fn settled_bytes() -> Result<u64> {
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the kernel's caches")?;
    available_bytes()
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

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
            let asked = settled_bytes().unwrap() - (128 << 20);
            let reserve = Reserve::leave(asked, folder.path()).unwrap();
            assert!(reserve.taken.metadata().unwrap().len() > 0 && reserve.left_bytes == asked);
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

    /// What others give back in the middle of a cell is heard of at its end, and taken before the next.
    #[test]
    fn what_others_give_back_is_noticed_and_taken() {
        let machine = Arc::new(AtomicU64::new(2000 << 20));
        let of_others = machine.clone();
        let available = move |taken: &File| Ok(of_others.load(Ordering::Relaxed) - taken.metadata()?.len());
        let taken = tempfile::tempfile().unwrap();
        let mut reserve = Reserve { taken, left_bytes: 1980 << 20, available: Box::new(available) };
        assert_eq!(reserve.hold().unwrap(), 1980 << 20);
        machine.fetch_add(SLACK_BYTES, Ordering::Relaxed);
        reserve.check().unwrap();
        machine.fetch_add(1 << 20, Ordering::Relaxed);
        let error = reserve.check().unwrap_err().to_string();
        assert!(error.contains("have become available"), "{error}");
        assert_eq!(reserve.hold().unwrap(), 1980 << 20);
        reserve.check().unwrap();
    }
}
