//! After a crash, blocks that only the log knows go home when the log wants room, however few frames the cache has.

use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, Order, Session, SetAttr};
use myriad_trials::setup::Devices;
use myriad_trials::verdict::check_silent;
use std::sync::Arc;

/// Files in a directory, and between two of which one is changed: so that each change is in an inode block of its own.
const FILES: usize = 1000;
const APART: usize = 32;
const LOG: u64 = 1 << 20;

fn open(device: Arc<dyn BlockDevice>, cache_size: u64) -> Fs {
    let options = MountOptions { background: false, order: Some(Order::Log), cache_size, ..MountOptions::default() };
    Fs::open_device(device, None, options).expect("open")
}

/// A volume that lost power with blocks of `dirs` directories changed in the log alone: at least until the log is so full.
fn crashed(dirs: usize, changed: impl Fn(usize) -> bool, log_used: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions { log_size: Some(LOG), ..MkfsOptions::default() }).unwrap();
    let fs = open(device.clone(), 64 << 20);
    let session = fs.session(Cred::root());
    for dir in 0..dirs {
        session.mkdir(&format!("{dir}"), 0o755).unwrap();
        for file in 0..FILES {
            session.create(&format!("{dir}/{file}"), 0o644).unwrap();
        }
    }
    fs.drop_caches().unwrap();
    for round in 0_u16.. {
        (0..dirs).filter(|&dir| changed(dir)).for_each(|dir| change(&fs, &session, dir, round));
        fs.sync().unwrap();
        if fs.levels().log_used.unwrap() >= log_used {
            break;
        }
    }
    let crashed = Arc::new(device.clone_image());
    drop(session);
    fs.close().unwrap();
    crashed
}

/// Changes files of a directory, each in another inode block.
fn change(fs: &Fs, session: &Session, dir: usize, round: u16) {
    for file in (0..FILES).step_by(APART) {
        let mode = Some(0o600 + round % 64);
        let changed = session.set_attr(&format!("{dir}/{file}"), SetAttr { mode, ..SetAttr::default() });
        changed.unwrap_or_else(|error| panic!("round {round}, {dir}/{file}: {error} ({:?})", fs.shut_down_reason()));
    }
}

/// What the log had was brought into the cache before what is home could give way to it. In a cache of a thousand blocks there was no frame for it then, and that
/// shut the volume down.
#[test]
fn a_small_cache_is_enough_for_what_the_log_has() {
    let (dirs, left) = (80, 20);
    // A little less than the half from which on it wants room.
    let device = crashed(dirs, |dir| dir < left, LOG * 44 / 100);
    let fs = open(device.clone(), 1 << 20);
    let session = fs.session(Cred::root());
    for round in 0..8 {
        for dir in left..dirs {
            change(&fs, &session, dir, 10 + round);
        }
    }
    fs.sync().unwrap();
    drop(session);
    fs.close().unwrap();
    check_silent(&Devices::from(device.clone())).unwrap();
    let fs = open(device, 1 << 20);
    assert!(!fs.info().recovered, "it was closed cleanly");
    let session = fs.session(Cred::root());
    for dir in left..dirs {
        for file in (0..FILES).step_by(APART) {
            assert_eq!(session.stat(&format!("{dir}/{file}")).unwrap().mode & 0o777, 0o600 + 17);
        }
    }
}

/// While each checkpoint found most frames away from home, it left what only the log knew where it was. That held the log's tail until the log was full,
/// and that shut the volume down.
#[test]
fn what_the_log_has_goes_home_though_each_checkpoint_is_crowded() {
    // Each checkpoint finds the blocks of one half away: more than a third of the cache, and both halves fit into it.
    let half = 11;
    let dirs = 1 + 2 * half;
    // What the first directory has in the log is never looked at again.
    let device = crashed(dirs, |dir| dir == 0, 0);
    let fs = open(device.clone(), 1 << 20);
    let session = fs.session(Cred::root());
    for round in 0..200 {
        let first = 1 + usize::from(round % 2) * half;
        (first..first + half).for_each(|dir| change(&fs, &session, dir, round));
        fs.sync().unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    drop(session);
    fs.close().unwrap();
    check_silent(&Devices::from(device)).unwrap();
}
