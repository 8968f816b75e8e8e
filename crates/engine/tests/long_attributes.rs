//! Lists of attributes that are long beside the cache.

use myriad_device::MemoryDevice;
use myriad_engine::{Cred, Errno, Fs, MkfsOptions, MountOptions, OpenOptions, Session};
use myriad_trials::setup::Devices;
use myriad_trials::verdict::check_silent;
use std::sync::Arc;

const VALUE: usize = 65_000;
/// With their names, nearly the longest list that there is.
const VALUES: u8 = 16;

fn name(i: u8) -> String {
    format!("trusted.{i:02}")
}

fn volume() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions { block_size: 512, ..MkfsOptions::default() }).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>, cache_size: u64) -> Fs {
    let options = MountOptions { background: false, cache_size, ..MountOptions::default() };
    Fs::open_device(device.clone(), None, options).unwrap()
}

/// Sets attributes until one is refused for lack of frames; how many were set.
fn set_all(session: &Session, path: &str) -> u8 {
    let set = |i: &u8| match session.set_xattr(path, name(*i).as_bytes(), &[*i; VALUE], Default::default()) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.errno(), Errno::NOMEM, "attribute {i}: {error}");
            false
        }
    };
    (0..VALUES).take_while(set).count() as u8
}

fn assert_set(session: &Session, path: &str, count: u8) {
    assert_eq!(session.list_xattr(path).unwrap().len(), usize::from(count));
    for i in 0..count {
        assert!(session.get_xattr(path, name(i).as_bytes()).unwrap() == [i; VALUE], "attribute {i}");
    }
}

/// A list is written anew as a whole, a frame a block. Nobody asked whether there were so many frames, and the volume was shut down in
/// the middle of the change.
#[test]
fn a_list_for_which_there_are_no_frames_is_refused() {
    let device = volume();
    // 1,747 frames; the longest list takes 2,341.
    let fs = open(&device, 1 << 20);
    let session = fs.session(Cred::root());
    for round in 0..3 {
        session.create("file", 0o644).unwrap();
        let count = set_all(&session, "file");
        assert_eq!(fs.shut_down_reason(), None);
        assert!((3..VALUES).contains(&count), "{count} attributes in round {round}");
        assert_set(&session, "file", count);
        // Less of it, then all at once.
        session.remove_xattr("file", name(0).as_bytes()).unwrap();
        session.unlink("file").unwrap();
        assert_eq!(fs.shut_down_reason(), None);
    }
    fs.sync().unwrap();
    drop(session);
    fs.close().unwrap();
    check_silent(&Devices { main: device, log: None }).unwrap();
}

/// A list that was made with a large cache was read into a small one, a frame a block: each who looked at the file got ENOMEM, and
/// whoever removed it shut the volume down.
#[test]
fn a_list_longer_than_the_cache_is_read_and_goes() {
    let device = volume();
    let fs = open(&device, 64 << 20);
    let session = fs.session(Cred::root());
    session.create("file", 0o644).unwrap();
    assert_eq!(set_all(&session, "file"), VALUES);
    drop(session);
    fs.close().unwrap();
    let fs = open(&device, 1 << 20);
    let session = fs.session(Cred::root());
    assert_set(&session, "file", VALUES);
    session.unlink("file").unwrap();
    fs.sync().unwrap();
    drop(session);
    fs.close().unwrap();
    check_silent(&Devices { main: device, log: None }).unwrap();
}

/// A crash left such a file without a name: no opening with a small cache came to its end.
#[test]
fn a_file_with_a_long_list_goes_at_the_next_opening() {
    let device = volume();
    let fs = open(&device, 64 << 20);
    let session = fs.session(Cred::root());
    let free = fs.statfs().unwrap().free_blocks;
    session.create("file", 0o644).unwrap();
    assert_eq!(set_all(&session, "file"), VALUES);
    let _file = session.open("file", OpenOptions::READ).unwrap();
    session.unlink("file").unwrap();
    fs.sync().unwrap();
    let crashed = Arc::new(device.clone_image());
    let fs = open(&crashed, 1 << 20);
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().free_blocks + 50 > free);
    fs.close().unwrap();
    check_silent(&Devices { main: crashed, log: None }).unwrap();
}

/// Each had room in the cache; both together had not.
#[test]
fn two_threads_make_long_lists() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    let fs = open(&device, 4 << 20);
    std::thread::scope(|scope| {
        for path in ["a", "b"] {
            let session = fs.session(Cred::root());
            scope.spawn(move || {
                session.create(path, 0o644).unwrap();
                for _ in 0..3 {
                    let count = set_all(&session, path);
                    assert!(count > 3, "{count}");
                    assert_set(&session, path, count);
                    for i in 0..count {
                        session.remove_xattr(path, name(i).as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fs.shut_down_reason(), None);
    fs.close().unwrap();
    check_silent(&Devices { main: device, log: None }).unwrap();
}
