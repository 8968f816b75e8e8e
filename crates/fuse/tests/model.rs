//! The same operations on a mount, through system calls, and on the model: same answers, same trees.

mod common;

use common::{Mounted, mounted_with};
use myriad_engine::{MkfsOptions, MountOptions};
use myriad_fuse::Options;
use myriad_sim::host::{Traits, check};
use myriad_sim::rng;

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
    let mount = mounted_with(Options { acl: true, ..Options::default() });
    run("as_most_mount_it", &mount, 6, 1000);
    mount.unmount();
}

#[test]
fn with_opens_asked_for() {
    skip_without_mounts!();
    let mount = mounted_with(Options { acl: true, no_open: false, ..Options::default() });
    run("with_opens_asked_for", &mount, 3, 1000);
    mount.unmount();
}

#[test]
fn blocks_of_512_bytes() {
    skip_without_mounts!();
    let mkfs = MkfsOptions { block_size: 512, ..MkfsOptions::default() };
    let mount =
        Mounted::new(&mkfs, MountOptions::default(), Options { acl: true, allow_other: true, ..Options::default() });
    run("blocks_of_512_bytes", &mount, 3, 1000);
    mount.unmount();
}
