//! Large directories in a small cache: what one operation touches is bounded, however many blocks the directory has.

use myriad_device::{BlockDevice, CrashImages, MemoryDevice, RecordingDevice};
use myriad_engine::{Cred, DirEntry, Fs, Node, Session, Stat};
use myriad_format::choices::Directory;
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_silent;
use std::sync::Arc;

/// Names that need more entry blocks than the smallest cache has frames, 1024: 18 fit a block.
const NAMES: u32 = 21_000;

fn name(i: u32) -> Vec<u8> {
    format!("{i:08}").into_bytes()
}

/// A volume with the smallest blocks and the smallest cache, and in it a directory `d` of many short names.
fn large_directory() -> (Devices, Fs, Session, Node) {
    directory_of(Setup::new(512, 64 << 20), (0..NAMES).map(name))
}

/// A volume with the smallest cache, and in it a directory `d` of these names, all of one file.
fn directory_of(mut setup: Setup, names: impl Iterator<Item = Vec<u8>>) -> (Devices, Fs, Session, Node) {
    setup.options.cache_size = 0;
    let device = Devices::from(Arc::new(setup.format()));
    let fs = setup.open(device.clone()).unwrap();
    let session = fs.session(Cred::root());
    let dir = session.mkdir("d", 0o755).unwrap();
    let file = session.create("f", 0o644).unwrap();
    for name in names {
        session.link_at(file, dir, &name).unwrap();
    }
    (device, fs, session, dir)
}

/// Lists a directory with attributes, `max` names at a time; each name has some.
fn list_with_attributes(session: &Session, dir: Node, max: usize) -> Vec<(DirEntry, Stat)> {
    let (mut listed, mut cookie) = (Vec::new(), 0);
    loop {
        let more = session.read_dir_plus_at(dir, cookie, max).unwrap();
        let Some((last, _)) = more.last() else { return listed };
        cookie = last.cookie;
        listed.extend(more.into_iter().map(|(entry, stat)| (entry, stat.unwrap())));
    }
}

/// An insertion went through the whole list of blocks with room, in one transaction: ENOMEM after its first change, which
/// shut the volume down.
#[test]
fn a_long_name_is_made_though_every_block_has_only_small_holes() {
    let (device, fs, session, dir) = large_directory();
    for i in (0..NAMES).step_by(3) {
        session.unlink_at(dir, &name(i)).unwrap();
    }
    fs.drop_caches().unwrap();
    let long = [b'n'; 255];
    session.mknod_at(dir, &long, 0o100644, 0).unwrap();
    session.create("still usable", 0o644).unwrap();
    assert!(session.lookup(dir, &long).is_ok());
    // The blocks that were not tried are on the list still.
    session.mknod_at(dir, b"short", 0o100644, 0).unwrap();
    fs.sync().unwrap();
    drop(session);
    fs.close().unwrap();
    check_silent(&device).unwrap();
}

/// A listing passed over all blocks of a directory in one stay inside the gate, where nothing is evicted, in search of the
/// few entries that were left: ENOMEM.
#[test]
fn a_large_directory_with_few_names_left_is_listed() {
    let (device, fs, session, dir) = large_directory();
    // One in the middle, and one whose only followers are empty blocks.
    let left = [name(NAMES / 2), name(NAMES / 2 + 1), name(NAMES * 3 / 4)];
    for i in 0..NAMES {
        if !left.contains(&name(i)) {
            session.unlink_at(dir, &name(i)).unwrap();
        }
    }
    fs.drop_caches().unwrap();
    let listed: Vec<Vec<u8>> = session.read_dir("d").unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(listed, left);
    fs.drop_caches().unwrap();
    let listed: Vec<Vec<u8>> =
        list_with_attributes(&session, dir, 2).into_iter().map(|(entry, _)| entry.name).collect();
    assert_eq!(listed, left);
    drop(session);
    fs.close().unwrap();
    check_silent(&device).unwrap();
}

/// A listing with attributes looked up each further name of a file, which in a directory that is searched from the front is to read it all.
#[test]
fn further_names_are_listed_with_attributes_in_one_pass() {
    for directory in [Directory::Slots, Directory::Linear] {
        let names = 3 * NAMES / 50;
        let mut setup = Setup::new(512, 64 << 20);
        setup.choices.directory = directory;
        setup.options.dirhash.is_on = Some(false);
        let (device, fs, session, dir) = directory_of(setup, (0..names).map(|i| [&name(i)[..], &[b'n'; 240]].concat()));
        fs.drop_caches().unwrap();
        let before = device.main.counters().reads;
        let listed = list_with_attributes(&session, dir, 100);
        let reads = device.main.counters().reads - before;
        assert_eq!(listed.len(), names as usize);
        assert!(listed.iter().all(|(_, stat)| stat.nlink == names + 1));
        assert!(reads < 8 * u64::from(names), "{directory:?}: {reads} reads for {names} names");
    }
}

/// Names that leave no room for another one in a block, and more of them than a checkpoint of the least log has room for
/// blocks that are forgotten.
const LONG_NAMES: u32 = 8600;

fn long_name(i: u32) -> Vec<u8> {
    format!("{i:0255}").into_bytes()
}

/// A closed volume with the smallest blocks and the least log, and in it a directory `d` that had `names` names, of which one
/// is left.
fn huge_directory(names: u32) -> (Setup, Arc<MemoryDevice>) {
    let mut setup = Setup::new(512, 32 << 20);
    setup.log_size = Some(34 * 4096);
    let device = Arc::new(setup.format());
    let fs = setup.open(device.clone()).unwrap();
    let session = fs.session(Cred::root());
    let dir = session.mkdir("d", 0o755).unwrap();
    let file = session.create("f", 0o644).unwrap();
    for i in 0..names {
        session.link_at(file, dir, &long_name(i)).unwrap();
    }
    // In another order than they came, so that the list of blocks with room is in none.
    for i in (1..names).map(|i| i * 7919 % names) {
        session.unlink_at(dir, &long_name(i)).unwrap();
    }
    assert!(session.stat("d").unwrap().blocks > u64::from(names));
    drop(session);
    fs.close().unwrap();
    (setup, device)
}

/// The blocks of an emptied directory were given up in one transaction, which no checkpoint could log: the volume was shut
/// down, and again after each opening.
#[test]
fn a_huge_directory_is_emptied_under_the_least_log() {
    let (setup, device) = huge_directory(LONG_NAMES);
    let fs = setup.open(device.clone()).unwrap();
    let session = fs.session(Cred::root());
    let free = fs.statfs().unwrap().free_blocks;
    session.unlink(&[b"d/", &long_name(0)[..]].concat()).unwrap();
    fs.sync().unwrap();
    assert_eq!(session.stat("d").unwrap().blocks, 0);
    assert!(fs.statfs().unwrap().free_blocks > free + u64::from(LONG_NAMES));
    // As new.
    session.create("d/again", 0o644).unwrap();
    session.unlink("d/again").unwrap();
    session.rmdir("d").unwrap();
    drop(session);
    fs.close().unwrap();
    check_silent(&Devices::from(device)).unwrap();
}

/// Between any two of the transactions that give an emptied directory's blocks up, the volume is sound, and the next opening
/// goes on.
#[test]
fn a_directory_that_was_being_emptied_is_sound_and_the_next_opening_goes_on() {
    let (setup, device) = huge_directory(1500);
    let base = Arc::new(device.clone_image());
    let recorder = Arc::new(RecordingDevice::new(device.clone_image()));
    let fs = setup.open(recorder.clone()).unwrap();
    let session = fs.session(Cred::root());
    session.unlink(&[b"d/", &long_name(0)[..]].concat()).unwrap();
    drop(session);
    fs.close().unwrap();
    let trace = recorder.take();
    let images = CrashImages::new(base, trace);
    let mut cursor = images.cursor();
    let mut sizes = std::collections::BTreeSet::new();
    loop {
        // Right behind each flush and each first write after one.
        if cursor.unflushed().len() <= 1 {
            let image = Arc::new(cursor.image());
            check_silent(&Devices::from(image.clone())).unwrap();
            let mut read_only = setup.clone();
            read_only.options.read_only = true;
            let fs = read_only.open(image.clone()).unwrap();
            let stat = fs.session(Cred::root()).stat("d").unwrap();
            sizes.insert((stat.size, stat.blocks));
            drop(fs);
            let fs = setup.open(image.clone()).unwrap();
            let stat = fs.session(Cred::root()).stat("d").unwrap();
            assert!(stat.blocks == 0 || stat.size > 0, "{} blocks without a name", stat.blocks);
            fs.close().unwrap();
            check_silent(&Devices::from(image)).unwrap();
        }
        if !cursor.advance().unwrap() {
            break;
        }
    }
    // As it was, several times in between, and as new.
    assert!(sizes.len() > 4, "{sizes:?}");
    assert!(sizes.iter().any(|&(size, blocks)| size == 0 && blocks > 0));
    assert!(sizes.contains(&(0, 0)));
}
