//! Each kind of request, by the system calls that send it.

mod asked;
mod attributes;
#[path = "../common/mod.rs"]
mod common;
mod content;
mod names;
mod space;

use common::{Mounted, mounted_with};
use myriad_fuse::Options;
use rustix::fs::{self as unix, Mode, OFlags};
use std::path::Path;

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<rustix::fd::OwnedFd> {
    unix::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
}

fn read_write() -> OFlags {
    OFlags::RDWR | OFlags::CREATE
}

/// The same things on a mount whose kernel opens by itself, and on one that asks.
fn both(test: impl Fn(Mounted)) {
    for no_open in [true, false] {
        test(mounted_with(Options { no_open, ..Options::default() }));
    }
}
