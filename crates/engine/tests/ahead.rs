//! Reading ahead: fewer requests, and never a stale or an unreadable block in the way.

use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{Cred, Error, Fs, MkfsOptions, MountOptions, OpenOptions};
use myriad_trials::verdict::check_silent;
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

/// Names looked up in no order, nothing cached: what each needs lies near what others need.
#[test]
fn looks_in_no_order_read_what_lies_nearby() {
    const NAMES: usize = 20_000;
    let device = Arc::new(MemoryDevice::new(256 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions { seed: Some(1), ..MkfsOptions::default() }).unwrap();
    let fs = Fs::open_device(device.clone(), None, MountOptions { seed: Some(1), ..options(64 << 20) }).unwrap();
    let session = fs.session(Cred::root());
    let dir = session.mkdir("directory", 0o755).unwrap();
    let name = |i: usize| format!("name {i}").into_bytes();
    (0..NAMES).for_each(|i| assert!(session.mknod_at(dir, &name(i), 0o100_644, 0).is_ok()));
    fs.sync().unwrap();
    let requests = |names: &mut dyn Iterator<Item = usize>| {
        fs.drop_caches().unwrap();
        let before = device.counters();
        names.for_each(|i| assert!(session.lookup(dir, &name(i)).is_ok()));
        let after = device.counters();
        (after.reads - before.reads, after.read_bytes - before.read_bytes)
    };
    // 645 blocks of inodes, 31 in each, and some 100 of the index: 24 neighbourhoods, of each at most twice two blocks alone.
    let (reads, bytes) = requests(&mut (0..NAMES / 5).map(|i| i * 7919 % NAMES));
    assert!(reads < 150, "{reads} requests");
    assert!(bytes < 8 << 20, "{bytes} bytes");
    // One alone reads single blocks.
    let (reads, bytes) = requests(&mut [NAMES / 2].into_iter());
    assert!(reads <= 6 && bytes <= reads * 4096, "{reads} requests, {bytes} bytes");
}

/// A byte of a file's content.
fn byte(file: usize, at: usize) -> u8 {
    (file * 31 + at / 512) as u8
}

#[test]
fn content_of_small_files_comes_in_batches() {
    for data_checksums in [false, true] {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        Fs::format_device(device.clone(), None, &MkfsOptions { data_checksums, ..MkfsOptions::default() }).unwrap();
        let fs = Fs::open_device(device.clone(), None, options(64 << 20)).unwrap();
        let session = fs.session(Cred::root());
        // Of every size around blocks; the last is too large.
        let size = |file: usize| if file == 199 { 65 << 10 } else { file * 100 };
        for file in 0..200 {
            let content: Vec<u8> = (0..size(file)).map(|at| byte(file, at)).collect();
            session.open(&format!("file{file:03}"), WRITE).unwrap().write_at(&content, 0).unwrap();
        }
        drop(session);
        fs.close().unwrap();
        // One damaged block: found where its bytes are, for nothing else looks like it.
        let image = device.clone_image();
        let mut block = vec![0; 4096];
        let damaged = (0..64 << 8).map(|block| block << 12).find(|&offset| {
            image.read(offset, &mut block).unwrap();
            block.iter().enumerate().all(|(at, found)| *found == byte(150, at))
        });
        image.write(damaged.unwrap() + 8, &[!byte(150, 0)]).unwrap();
        let device = Arc::new(image);
        let fs = Fs::open_device(device.clone(), None, options(64 << 20)).unwrap();
        let session = fs.session(Cred::root());
        let entries: Vec<_> = session.read_dir("/").unwrap().map(Result::unwrap).collect();
        let before = device.counters().reads;
        session.read_ahead_files(&entries);
        let reads = device.counters().reads - before;
        assert!(reads < 30, "{reads} requests");
        // The directory's index is asked only now.
        assert!(entries.iter().all(|entry| session.stat(&entry.name).is_ok()));
        let before = device.counters().reads;
        for file in 0..199 {
            let mut content = vec![0; size(file)];
            let read = session.open(&format!("file{file:03}"), OpenOptions::READ).unwrap().read_at(&mut content, 0);
            if file == 150 && data_checksums {
                assert!(matches!(read, Err(Error::Damaged(_))), "{read:?}");
                continue;
            }
            assert_eq!(read.unwrap(), size(file));
            let damaged = usize::from(file == 150);
            let differ = content.iter().enumerate().filter(|(at, found)| **found != byte(file, *at)).count();
            assert_eq!(differ, damaged, "file {file}");
        }
        // Only damage is read again.
        assert_eq!(device.counters().reads - before, u64::from(data_checksums));
    }
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
    // Each file is written whole, with one byte all over.
    let read_files = || {
        let session = fs.session(Cred::root());
        let entries: Vec<_> = session.read_dir("/").unwrap().map(Result::unwrap).collect();
        session.read_ahead_files(&entries);
        for entry in &entries {
            let Ok(file) = session.open(&entry.name, OpenOptions::READ) else { continue };
            let mut content = vec![0; 20 << 10];
            let read = file.read_at(&mut content, 0).unwrap_or(0);
            assert!(content[..read].iter().all(|byte| *byte == content[0]));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                read_files();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for file in fs.session(Cred::root()).walk("/").unwrap() {
                        file.unwrap();
                    }
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

/// A reader of whole pages had the window after its own begun with the second page of each: twice the requests.
#[test]
fn a_window_is_read_ahead_once() {
    const SIZE: usize = 2 << 20;
    const WINDOW: usize = 128 << 10;
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let fs = Fs::open_device(device.clone(), None, options(16 << 20)).unwrap();
    fs.session(Cred::root()).open("file", WRITE).unwrap().write_at(&vec![1; SIZE], 0).unwrap();
    for piece in [4096, 1000] {
        fs.drop_caches().unwrap();
        let file = fs.session(Cred::root()).open("file", OpenOptions::READ).unwrap();
        let mut page = vec![0; piece];
        // What the map takes is not counted: the window before the first is none.
        assert_eq!(file.read_at(&mut page, 0).unwrap(), piece);
        let before = device.counters().reads;
        for offset in (piece..SIZE).step_by(piece) {
            assert!(file.read_at(&mut page, offset as u64).unwrap() > 0);
        }
        let reads = device.counters().reads - before;
        assert!(reads < (SIZE / WINDOW) as u64 + 2, "pieces of {piece}: {reads} requests");
    }
}

/// A large file that was read in order waited for the device once for each 128 KiB, which took most of the time.
#[test]
fn windows_of_a_large_file_become_longer() {
    const SIZE: usize = 8 << 20;
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    // Different in each page.
    let large: Vec<u8> = (0..SIZE).map(|i| (i >> 12 ^ i) as u8).collect();
    // A cache in which a window may be of 1 MiB, and one that is too small for that.
    for (cache, most) in [(64 << 20, 12), (8 << 20, SIZE as u64 / (128 << 10) + 2)] {
        let fs = Fs::open_device(device.clone(), None, options(cache)).unwrap();
        fs.session(Cred::root()).open("file", WRITE).unwrap().write_at(&large, 0).unwrap();
        fs.drop_caches().unwrap();
        let file = fs.session(Cred::root()).open("file", OpenOptions::READ).unwrap();
        let mut page = vec![0; 4096];
        let mut before = device.counters().reads;
        for offset in (0..SIZE).step_by(page.len()) {
            assert_eq!(file.read_at(&mut page, offset as u64).unwrap(), page.len());
            assert!(page == large[offset..][..page.len()], "at {offset}");
            if offset == 0 {
                // What the map takes is not counted.
                before = device.counters().reads;
            }
        }
        let reads = device.counters().reads - before;
        assert!(reads <= most, "a cache of {cache} bytes: {reads} requests");
        drop(file);
        fs.close().unwrap();
    }
}
