//! Memory is bounded by the cache, whatever a volume holds. A process of its own, for its peak is looked at.

use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions};

const MIB: u64 = 1 << 20;

/// The most memory that this process ever had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// `MountOptions::cache_size` says what a volume may take beside its cache.
#[test]
fn a_volume_takes_no_more_than_it_says() {
    const CACHE: u64 = 32 * MIB;
    const LOG: u64 = 32 * MIB;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Fs::format(&image, Some(8 << 30), &MkfsOptions { log_size: Some(LOG), ..MkfsOptions::default() }).unwrap();
    let before = peak();
    let fs = Fs::open(&image, MountOptions { cache_size: CACHE, ..MountOptions::default() }).unwrap();
    let session = fs.session(Cred::root());
    // Some 50 MiB of inodes and directories of their own, then a directory of many names.
    for dir in 0..12_000 {
        session.mkdir(&format!("d{dir}"), 0o755).unwrap();
        for i in 0..5 {
            session.create(&format!("d{dir}/f{i}"), 0o644).unwrap();
        }
    }
    for i in 0..100_000 {
        session.create(&format!("d0/g{i}"), 0o644).unwrap();
    }
    let peak_of_making = peak() - before;
    assert!(peak_of_making > CACHE, "{} MiB: more was cached than fits", peak_of_making / MIB);
    // Of the log's bytes, of new blocks and of those that are changed again and again there are copies.
    let most = CACHE + CACHE / 4 + LOG / 2 + 16 * MIB;
    assert!(peak_of_making < most - CACHE / 8, "{} MiB of making", peak_of_making / MIB);
    for i in 0..100_000 {
        session.unlink(&format!("d0/g{}", i * 7919 % 100_000)).unwrap();
    }
    fs.sync().unwrap();
    let peak = peak() - before;
    assert!(peak < most, "{} MiB", peak / MIB);
}
