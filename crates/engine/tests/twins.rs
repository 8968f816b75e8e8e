//! Names of one directory that share all 64 bits of their hash: each is its own.

use myriad_check::{Options, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions, RenameMode, Session};
use myriad_format::choices::{Choices, Directory};
use myriad_format::superblock::Superblock;
use myriad_format::{NameHasher, header};
use std::sync::Arc;

/// The key with which these names have the same hash (`check/tests/common/sample.rs` says how they were found).
const KEY: [u8; 16] = *b"check test key 0";
const TWINS: [&str; 2] = ["klfpgjlhpmnhbcjg", "ndnfkpnnimbolfgh"];

/// A volume of one group, which has no copy of its superblock, with this key.
fn volume(directory: Directory) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(12 << 20));
    let choices = Choices { directory, ..Choices::default() };
    Fs::format_device(device.clone(), None, &MkfsOptions { seed: Some(1), choices, ..MkfsOptions::default() }).unwrap();
    let mut block = vec![0; 4096];
    device.read(0, &mut block).unwrap();
    Superblock::read_mut(&mut block).hash_key = KEY;
    header::seal(&mut block, 0);
    device.write(0, &block).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> Fs {
    let options = MountOptions { cache_size: 32 << 20, background: false, ..MountOptions::default() };
    Fs::open_device(device.clone(), None, options).unwrap()
}

fn path(directory: &str, name: &str) -> String {
    format!("{directory}/{name}")
}

/// Each name leads to the file that says so, by every way to look it up, twice, for the first one may be remembered.
fn each_is_its_own(session: &Session, directory: &str, names: &[&str]) {
    for _ in 0..2 {
        for name in names {
            let file = session.open(&path(directory, name), OpenOptions::READ).unwrap();
            let mut content = [0; 16];
            assert_eq!(file.read_at(&mut content, 0).unwrap(), 16);
            assert_eq!(content, name.as_bytes(), "{directory}/{name}");
            assert_eq!(
                session.stat(&path(directory, name)).unwrap().ino,
                file.stat().unwrap().ino,
                "{directory}/{name}"
            );
        }
        let paths: Vec<String> = names.iter().map(|name| path(directory, name)).collect();
        let many = session.stat_many(&paths).into_iter().map(|stat| stat.unwrap().ino).collect::<Vec<_>>();
        let alone = paths.iter().map(|path| session.stat(path).unwrap().ino).collect::<Vec<_>>();
        assert_eq!(many, alone, "{directory}");
    }
}

#[test]
fn names_with_the_same_hash_are_told_apart() {
    told_apart(Directory::Indexed);
}

#[test]
fn names_with_the_same_hash_are_told_apart_in_linear_directories() {
    told_apart(Directory::Linear);
}

#[test]
fn names_with_the_same_hash_are_told_apart_in_slots() {
    told_apart(Directory::Slots);
}

#[test]
fn names_with_the_same_hash_are_told_apart_in_directory_trees() {
    told_apart(Directory::Tree);
}

fn told_apart(directory: Directory) {
    let hasher = NameHasher::new(KEY);
    assert_eq!(hasher.hash(TWINS[0].as_bytes()), hasher.hash(TWINS[1].as_bytes()));
    let device = volume(directory);
    let fs = open(&device);
    let session = fs.session(Cred::root());
    let create = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };
    // Where directories are indexed: in the inode, in one block, with an index; and one that gets its index later.
    let directories = [("body", 0), ("block", 60), ("index", 1000), ("later", 0)];
    for (directory, others) in directories {
        session.mkdir(directory, 0o755).unwrap();
        for other in 0..others {
            session.open(&path(directory, &format!("other {other}")), create).unwrap();
        }
        for (at, name) in TWINS.iter().enumerate() {
            // Whoever opens a name that is not there, to make it, asks for its hash first and would find its twin.
            session.create(&path(directory, name), 0o644).unwrap();
            let file = session.open(&path(directory, name), OpenOptions::READ_WRITE).unwrap();
            file.write_at(name.as_bytes(), 0).unwrap();
            // The first one is remembered before the second one comes.
            each_is_its_own(&session, directory, &TWINS[..=at]);
        }
    }
    for other in 0..1000 {
        session.open(&path("later", &format!("other {other}")), create).unwrap();
    }
    for (directory, _) in directories {
        each_is_its_own(&session, directory, &TWINS);
    }
    drop(session);
    fs.close().unwrap();
    assert!(check(device.clone(), None, &Options::default()).unwrap().is_sound());

    let fs = open(&device);
    let session = fs.session(Cred::root());
    for (directory, _) in directories {
        each_is_its_own(&session, directory, &TWINS);
        session.unlink(&path(directory, TWINS[0])).unwrap();
        assert!(session.stat(&path(directory, TWINS[0])).is_err(), "{directory}: it is gone");
        each_is_its_own(&session, directory, &TWINS[1..]);
        // The one that is left becomes the other one, and is itself again.
        for (from, to) in [(1, 0), (0, 1)] {
            let (from, to) = (path(directory, TWINS[from]), path(directory, TWINS[to]));
            session.rename(&from, &to, RenameMode::NoReplace).unwrap();
            assert!(session.stat(&to).is_ok(), "{from} is {to}");
        }
        each_is_its_own(&session, directory, &TWINS[1..]);
    }
    drop(session);
    fs.close().unwrap();
    assert!(check(device, None, &Options::default()).unwrap().is_sound());
}
