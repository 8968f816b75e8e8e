//! Large directories in a small cache: what one operation touches is bounded, however many blocks the directory has.

use myriad_engine::{Cred, Fs, Node, Session};
use myriad_reliability::setup::{Devices, Setup};
use myriad_reliability::verdict::check_silent;
use std::sync::Arc;

/// Names that need more entry blocks than the smallest cache has frames, 1024: 18 fit a block.
const NAMES: u32 = 21_000;

fn name(i: u32) -> Vec<u8> {
    format!("{i:08}").into_bytes()
}

/// A volume with the smallest blocks and the smallest cache, and in it a directory `d` of many short names.
fn large_directory() -> (Devices, Fs, Session, Node) {
    let mut setup = Setup::new(512, 64 << 20);
    setup.options.cache_size = 0;
    let device = Devices::from(Arc::new(setup.format()));
    let fs = setup.open(device.clone()).unwrap();
    let session = fs.session(Cred::root());
    let dir = session.mkdir("d", 0o755).unwrap();
    let file = session.create("f", 0o644).unwrap();
    for i in 0..NAMES {
        session.link_at(file, dir, &name(i)).unwrap();
    }
    (device, fs, session, dir)
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
    let (mut listed, mut cookie) = (Vec::new(), 0);
    loop {
        let more = session.read_dir_plus_at(dir, cookie, 2).unwrap();
        let Some((last, _)) = more.last() else { break };
        cookie = last.cookie;
        assert!(more.iter().all(|(_, stat)| stat.is_some()));
        listed.extend(more.into_iter().map(|(entry, _)| entry.name));
    }
    assert_eq!(listed, left);
    drop(session);
    fs.close().unwrap();
    check_silent(&device).unwrap();
}
