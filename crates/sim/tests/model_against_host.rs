//! The model against the host's own file systems: on a directory of /tmp and on /dev/shm.

use myriad_sim::host::{Traits, check};
use myriad_sim::rng;
use std::path::Path;

/// ext4 with blocks of 4 KiB; tmpfs allows more, but no generated size lies between.
const SIZE_MAX: u64 = (1 << 44) - 4096;

fn size_of_run() -> (u64, usize) {
    if rng::is_long() { (60, 5000) } else { (20, 1500) }
}

#[test]
fn on_disk() {
    let (runs, count) = size_of_run();
    let traits = Traits { fine_times: true, zeroes_ranges: true, kernel_knows_flags: true, size_max: SIZE_MAX };
    check("myriad-sim", "model_against_host::on_disk", Path::new("/tmp"), traits, runs, count);
}

#[test]
fn on_tmpfs() {
    let (runs, count) = size_of_run();
    let traits = Traits { fine_times: false, zeroes_ranges: false, kernel_knows_flags: true, size_max: SIZE_MAX };
    check("myriad-sim", "model_against_host::on_tmpfs", Path::new("/dev/shm"), traits, runs, count);
}
