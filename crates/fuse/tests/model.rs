//! The same operations on a mount, through system calls, and on the model: same answers, same trees.

mod common;

use common::{Mounted, mounted_with};
use myriad_engine::{MkfsOptions, MountOptions};
use myriad_fuse::Options;
use myriad_sim::host::{Traits, check};
use myriad_sim::rng;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

fn run(test: &str, mount: &Mounted, runs: u64, count: usize) {
    // The engine's clock is the coarse one, which stands still for several steps.
    let traits =
        Traits { fine_times: false, zeroes_ranges: true, kernel_knows_flags: false, size_max: i64::MAX as u64 };
    let (runs, count) = if rng::is_long() { (60, 5000) } else { (runs, count) };
    check("myriad-fuse", &format!("model::{test}"), &mount.root(), traits, runs, count);
}

#[test]
fn as_most_mount_it() {
    skip_without_mounts!();
    let mount = mounted_with(Options { acl: Some(true), ..Options::default() });
    run("as_most_mount_it", &mount, 6, 1000);
    mount.unmount();
}

#[test]
fn with_opens_asked_for() {
    skip_without_mounts!();
    let mount = mounted_with(Options { acl: Some(true), no_open: false, ..Options::default() });
    run("with_opens_asked_for", &mount, 3, 1000);
    mount.unmount();
}

#[test]
fn blocks_of_512_bytes() {
    skip_without_mounts!();
    let mkfs = MkfsOptions { block_size: 512, ..MkfsOptions::default() };
    let mount = Mounted::new(
        &mkfs,
        MountOptions::default(),
        Options { acl: Some(true), allow_other: true, ..Options::default() },
    );
    run("blocks_of_512_bytes", &mount, 3, 1000);
    mount.unmount();
}

/// An answer to one thread that a change by another overtook was kept for as long as the kernel was allowed to.
#[test]
fn attributes_are_not_older_than_the_last_change() {
    skip_without_mounts!();
    let mount = mounted_with(Options { threads: 4, ..Options::default() });
    let (all, dir) = (mount.path("all"), mount.path("all/dir"));
    std::fs::create_dir_all(&dir).unwrap();
    let rounds = if rng::is_long() { 1_000_000 } else { 20_000 };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            // Listing tells of the directory, again and again.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::fs::read_dir(&all).unwrap().for_each(drop);
                }
            });
        }
        let outcome = std::panic::catch_unwind(|| {
            // While the kernel takes new attributes, it may show older ones for a moment.
            let links = || std::fs::metadata(&dir).unwrap().nlink();
            let soon = |expected| (0..100).any(|_| links() == expected);
            for round in 0..rounds {
                std::fs::create_dir(dir.join("below")).unwrap();
                assert!(soon(3), "round {round}: {}", links());
                std::fs::remove_dir(dir.join("below")).unwrap();
                assert!(soon(2), "round {round}: {}", links());
            }
        });
        done.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    mount.unmount();
}
