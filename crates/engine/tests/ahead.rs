//! Reading ahead of metadata: fewer requests, and never a stale or an unreadable block in the way.

use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions};
use myriad_reliability::verdict::check_silent;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
const DIRECTORIES: usize = 100;
const FILES: usize = 60;

fn options(cache_size: u64) -> MountOptions {
    MountOptions { background: false, commit_interval_ms: 0, cache_size, ..MountOptions::default() }
}

/// Directories too big for their inodes, each with files.
fn with_tree() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let fs = Fs::open_device(device.clone(), None, options(64 << 20)).unwrap();
    let session = fs.session(Cred::root());
    for directory in 0..DIRECTORIES {
        session.mkdir(&format!("directory{directory}"), 0o755).unwrap();
        for file in 0..FILES {
            session.open(&format!("directory{directory}/some longish name {file}"), WRITE).unwrap();
        }
    }
    drop(session);
    fs.close().unwrap();
    device.clone_image()
}

/// Files, and names that could not be read, in a walk of the whole volume.
fn walk(fs: &Fs) -> (usize, usize) {
    let walk = fs.session(Cred::root()).walk("/").unwrap();
    walk.fold((0, 0), |(read, failed), file| if file.is_ok() { (read + 1, failed) } else { (read, failed + 1) })
}

const ALL: usize = 1 + DIRECTORIES + DIRECTORIES * FILES;

#[test]
fn a_walk_takes_few_requests() {
    let device = Arc::new(with_tree());
    let fs = Fs::open_device(device.clone(), None, options(64 << 20)).unwrap();
    let before = device.counters().reads;
    assert_eq!(walk(&fs), (ALL, 0));
    let reads = device.counters().reads - before;
    let ahead = fs.counters().iter().find(|(name, _)| *name == "blocks_read_ahead").unwrap().1;
    // An entry block a directory, 31 inodes a block: some 300, and directories lie apart.
    assert!(ahead > 250, "{ahead} blocks read ahead");
    assert!(reads < 100, "{reads} requests");
}

/// A large request may meet a bad place that nobody asked for.
#[test]
fn a_request_that_fails_is_made_again_for_the_block_asked_for() {
    let image = with_tree();
    let (mut unharmed, mut harmed) = (0, 0);
    for nth in 1.. {
        let device = Arc::new(FaultDevice::new(image.clone_image()));
        let fs = Fs::open_device(device.clone(), None, options(64 << 20)).unwrap();
        device.fail(FaultOp::Read, device.seen(FaultOp::Read) + nth, FaultSpan::Once, 5);
        let (read, failed) = walk(&fs);
        if device.struck() == 0 {
            break;
        }
        if failed == 0 {
            assert_eq!(read, ALL, "read {nth}");
            unharmed += 1;
        } else {
            harmed += 1;
        }
    }
    assert!(unharmed > 5 && harmed < unharmed, "{unharmed} walks unharmed, {harmed} harmed");
}

/// Blocks are freed, made anew as something else and change, while others read across them into a cache that holds few.
#[test]
fn what_changes_meanwhile_is_not_taken_from_the_device() {
    let device = Arc::new(with_tree());
    // The least there is.
    let fs = Fs::open_device(device.clone(), None, options(1 << 20)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(walk(&fs).1, 0);
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let session = fs.session(Cred::root());
            for round in 0..6_u8 {
                for directory in 0..DIRECTORIES {
                    let path = format!("directory{directory}");
                    match (directory + usize::from(round)) % 3 {
                        0 => {
                            session.remove_tree(&path, &mut |_| true).unwrap();
                            session.open(&path, WRITE).unwrap().write_at(&[round; 20 << 10], 0).unwrap();
                        }
                        1 => {
                            session.remove_tree(&path, &mut |_| true).unwrap();
                            session.mkdir(&path, 0o755).unwrap();
                            for file in 0..FILES {
                                session.open(&format!("{path}/another name, of round {round}: {file}"), WRITE).unwrap();
                            }
                        }
                        _ => {}
                    }
                }
                fs.sync().unwrap();
            }
        }));
        done.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    assert_eq!(walk(&fs).1, 0);
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}
