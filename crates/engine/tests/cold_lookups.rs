//! Names of one large directory looked up in no order while little of it is in the cache: few requests, none of them in vain, and a bad
//! place or a change beside what is asked for is in nobody's way.
//!
//! The names are hard links of a few files. So a lookup needs a leaf of the index and an entry block, and no inodes but those few.

#[path = "../../check/tests/common/worn.rs"]
mod worn;

use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Cred, Errno, Error, Fs, MkfsOptions, MountOptions, Node, Session};
use myriad_format::choices::{Choices, Directory};
use myriad_format::{BlockKind, FsBlock};
use myriad_trials::verdict::check_silent;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use worn::Worn;

const BLOCK: u64 = 4096;
/// Names of a file.
const LINKS: usize = 5_000;
/// The least there is: 1024 blocks, a quarter of them kept for operations under way.
const SMALL_CACHE: u64 = 1 << 20;

fn name(i: usize) -> Vec<u8> {
    format!("name {i:08}").into_bytes()
}

/// Numbers below `limit`, in no order; two of them are the same as often as chance has it.
fn drawn(limit: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count as u64).map(move |i| {
        let mixed = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as usize % limit
    })
}

fn open(device: Arc<dyn BlockDevice>, cache_size: u64) -> Fs {
    let options = MountOptions { background: false, seed: Some(1), cache_size, ..MountOptions::default() };
    Fs::open_device(device, None, options).unwrap()
}

/// A directory of so many names, closed.
fn with_names(directory: Directory, names: usize) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let choices = Choices { directory, ..Choices::default() };
    Fs::format_device(device.clone(), None, &MkfsOptions { choices, seed: Some(1), ..MkfsOptions::default() }).unwrap();
    let fs = open(device.clone(), 64 << 20);
    let session = fs.session(Cred::root());
    add_names(&session, session.mkdir("d", 0o755).unwrap(), names);
    drop(session);
    fs.close().unwrap();
    device.clone_image()
}

fn add_names(session: &Session, dir: Node, names: usize) {
    let mut file = None;
    for i in 0..names {
        if i % LINKS == 0 {
            file = Some(session.mknod_at(dir, &name(i), 0o100_644, 0).unwrap().node());
        } else {
            session.link_at(file.unwrap(), dir, &name(i)).unwrap();
        }
    }
}

fn directory(session: &Session) -> Node {
    session.stat("d").unwrap().node()
}

fn counter(fs: &Fs, wanted: &str) -> u64 {
    fs.counters().iter().find(|(name, _)| *name == wanted).unwrap().1
}

/// Where blocks of a kind lie.
fn blocks_of(device: &MemoryDevice, kind: BlockKind) -> Vec<FsBlock> {
    let mut bytes = vec![0; BLOCK as usize];
    let mut is_one = |&block: &FsBlock| {
        device.read(block.0 * BLOCK, &mut bytes).unwrap();
        BlockKind::of(&bytes) == Some(kind)
    };
    (0..device.size() / BLOCK).map(FsBlock).filter(|block| is_one(block)).collect()
}

/// Each lookup waited for two blocks alone: the index was read by neighbourhoods, the entries were not.
#[test]
fn a_directory_is_soon_in_the_cache() {
    for (kind, most) in [(Directory::Indexed, 30), (Directory::Tree, 30)] {
        let device = Arc::new(with_names(kind, 20_000));
        let fs = open(device.clone(), 64 << 20);
        let session = fs.session(Cred::root());
        let dir = directory(&session);
        let before = device.counters();
        drawn(20_000, 4_000).for_each(|i| assert!(session.lookup(dir, &name(i)).is_ok()));
        let after = device.counters();
        let (reads, bytes) = (after.reads - before.reads, after.read_bytes - before.read_bytes);
        assert!(reads <= most, "{kind:?}: {reads} requests");
        assert!(bytes <= 4 << 20, "{kind:?}: {bytes} bytes");
        if kind != Directory::Indexed {
            // The levels of a tree lie side by side and look like a walk.
            continue;
        }
        // A lookup of one name, with nothing cached, reads few blocks beside its own: now and then two of them look like a walk.
        for i in drawn(20_000, 20) {
            fs.drop_caches().unwrap();
            let before = device.counters();
            session.lookup(dir, &name(i)).unwrap();
            let after = device.counters();
            let (reads, bytes) = (after.reads - before.reads, after.read_bytes - before.read_bytes);
            assert!(reads <= 6 && bytes <= 12 * BLOCK, "name {i}: {reads} requests, {bytes} bytes");
        }
    }
}

/// In a cache that holds half of the directory, what is read ahead is mostly evicted before anybody asks for it.
#[test]
fn a_cache_too_small_for_the_directory_reads_little_in_vain() {
    const NAMES: usize = 100_000;
    let device = Arc::new(with_names(Directory::Indexed, NAMES));
    let fs = open(device.clone(), SMALL_CACHE);
    let session = fs.session(Cred::root());
    let dir = directory(&session);
    let mut counts = [0; 4];
    for (nth, i) in drawn(NAMES, 12_000).enumerate() {
        if nth == 2_000 {
            // Until here the cache filled.
            let read = device.counters();
            counts = [
                read.read_bytes / BLOCK,
                read.reads,
                counter(&fs, "cache_misses"),
                counter(&fs, "blocks_ahead_unused"),
            ];
        }
        assert!(session.lookup(dir, &name(i)).is_ok());
    }
    let read = device.counters();
    let after =
        [read.read_bytes / BLOCK, read.reads, counter(&fs, "cache_misses"), counter(&fs, "blocks_ahead_unused")];
    let [blocks, reads, misses, unused] = std::array::from_fn(|i| after[i] - counts[i]);
    assert!(misses > 4_000, "{misses} misses: the cache does not hold the directory");
    assert!(
        blocks < misses * 2,
        "{blocks} blocks read for {misses} misses in {reads} requests, {unused} of them evicted unused"
    );
}

/// Names of a directory that cannot be looked up, all of them asked for in no order. Others are found.
fn lost(fs: &Fs, names: usize, is_damage: impl Fn(&Error) -> bool) -> usize {
    let session = fs.session(Cred::root());
    let dir = directory(&session);
    let files: Vec<_> = (0..names).step_by(LINKS).map(|i| session.lookup(dir, &name(i)).map(|stat| stat.ino)).collect();
    let step = (names / 2 + 1..).find(|step| (2..100).all(|n| step % n > 0 || names % n > 0)).unwrap();
    (0..names)
        .map(|nth| nth * step % names)
        .filter(|&i| match session.lookup(dir, &name(i)) {
            Ok(stat) => {
                assert!(files[i / LINKS].as_ref().map_or(true, |&ino| ino == stat.ino), "name {i}");
                false
            }
            Err(error) => {
                assert!(is_damage(&error), "name {i}: {error}");
                true
            }
        })
        .count()
}

/// Nobody finds out by a lookup that a block beside what he asked for is bad.
#[test]
fn a_bad_block_takes_only_the_names_that_need_it() {
    const NAMES: usize = 10_000;
    let image = with_names(Directory::Indexed, NAMES);
    // A leaf has at most 252 records, a block of entries of 32 bytes 126.
    for (kind, most) in [(BlockKind::DirEntries, 126), (BlockKind::DirIndex, 252)] {
        let blocks = blocks_of(&image, kind);
        // The last one is no root, which lies in front.
        for &bad in [blocks[blocks.len() / 2], blocks[blocks.len() - 1]].iter() {
            let place = bad.0 * BLOCK..(bad.0 + 1) * BLOCK;
            let scratched = Worn::new(Arc::new(image.clone_image()), vec![place]);
            let lost_names = lost(&open(scratched, 64 << 20), NAMES, |error| matches!(error, Error::Io(_)));
            assert!((1..=most).contains(&lost_names), "{kind:?} {bad:?} unreadable: {lost_names} names lost");
            let damaged = Arc::new(image.clone_image());
            let mut byte = [0];
            damaged.read(bad.0 * BLOCK + 1000, &mut byte).unwrap();
            damaged.write(bad.0 * BLOCK + 1000, &[!byte[0]]).unwrap();
            let lost_names = lost(&open(damaged, 64 << 20), NAMES, |error| matches!(error, Error::Corrupt(_)));
            assert!((1..=most).contains(&lost_names), "{kind:?} {bad:?} damaged: {lost_names} names lost");
        }
    }
}

/// Blocks are freed, made anew for another directory or as file data, and change, while others read across them.
#[test]
fn what_changes_beside_what_is_asked_for_is_not_taken_from_the_device() {
    const NAMES: usize = 40_000;
    const ROUNDS: usize = 8;
    let device = Arc::new(with_names(Directory::Indexed, NAMES));
    let fs = open(device.clone(), SMALL_CACHE);
    let done = AtomicBool::new(false);
    let look_up = |thread: usize| {
        let session = fs.session(Cred::root());
        let dir = directory(&session);
        let files: Vec<_> = (0..NAMES).step_by(LINKS).map(|i| session.lookup(dir, &name(i)).unwrap().ino).collect();
        let mut from = thread;
        while !done.load(Ordering::Relaxed) {
            for i in drawn(NAMES + from, 2_000).map(|i| (i + from) % NAMES) {
                assert_eq!(session.lookup(dir, &name(i)).unwrap().ino, files[i / LINKS], "name {i}");
                match session.stat("other").and_then(|other| session.lookup(other.node(), &name(i))) {
                    Ok(_) => {}
                    Err(error) => {
                        assert!([Errno::NOENT, Errno::NOTDIR, Errno::STALE].contains(&error.errno()), "{error}")
                    }
                }
            }
            from += 7;
        }
    };
    let change = || {
        let session = fs.session(Cred::root());
        let dir = directory(&session);
        for round in 0..ROUNDS {
            // Between the blocks of the directory that is looked at: it grows as well.
            let other = session.mkdir("other", 0o755).unwrap();
            for i in 0..3_000 {
                session.mknod_at(other, &name(i), 0o100_644, 0).unwrap();
                if i % 3 == 0 {
                    let file = session.lookup(dir, &name(0)).unwrap().node();
                    session.link_at(file, dir, &name(NAMES + round * 1_000 + i / 3)).unwrap();
                }
            }
            fs.sync().unwrap();
            session.remove_tree("other", &mut |_| true).unwrap();
            fs.sync().unwrap();
        }
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|thread| drop(scope.spawn(move || look_up(thread))));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
        done.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    let session = fs.session(Cred::root());
    let dir = directory(&session);
    (0..NAMES + ROUNDS * 1_000).for_each(|i| assert!(session.lookup(dir, &name(i)).is_ok(), "name {i}"));
    drop(session);
    fs.close().unwrap();
    check_silent(&device.into()).unwrap();
}
