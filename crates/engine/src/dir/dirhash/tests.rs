use super::*;
use crate::dir::{self, Name};
use crate::edit::BlockStore;
use crate::error::Errno;
use crate::inode;
use crate::namei;
use crate::ops::{NewFile, Ops};
use crate::types::{Cred, MkfsOptions, Node};
use crate::volume::{Volume, testing, transact};
use myriad_device::MemoryDevice;
use myriad_format::choices::Choices;
use myriad_format::inode::{S_IFDIR, S_IFREG};
use myriad_format::{BlockKind, FileBlock};
use zerocopy::little_endian::U32;

const NAMES: u32 = 300;

fn name(i: u32) -> Vec<u8> {
    format!("{i:08}").into_bytes()
}

/// A volume of linear directories, and one with names that has a hash.
fn volume() -> (Volume, Node) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let choices = Choices { directory: Directory::Linear, ..Choices::default() };
    crate::mkfs::format(device.clone(), None, &MkfsOptions { choices, ..MkfsOptions::default() }).unwrap();
    let volume = testing::open(device);
    let cred = Cred::root();
    let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
    let root = namei::root(&volume.look()).unwrap();
    let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
    for i in 0..NAMES {
        ops.make(dir, &name(i), &NewFile { mode: S_IFREG | 0o644, ..NewFile::default() }).unwrap();
    }
    assert!(has(&volume, dir, &name(0)));
    assert_eq!(volume.dir_hashes.level().1, 1);
    (volume, dir)
}

fn count(volume: &Volume, wanted: &str) -> u64 {
    volume.counters.snapshot().into_iter().find(|(name, _)| *name == wanted).unwrap().1
}

fn has_in(volume: &Volume, dir: Node, raw: &RawInode, name: &[u8]) -> bool {
    let name = Name { bytes: name, hash: volume.hasher.hash(name) };
    dir::lookup(&volume.look(), Ino(dir.ino), raw, name).unwrap().is_some()
}

fn has(volume: &Volume, dir: Node, name: &[u8]) -> bool {
    let raw = inode::read_node(&volume.look(), dir).unwrap();
    has_in(volume, dir, &raw, name)
}

/// FFSOPT 3.5, second issue: whoever still had a directory open that had been removed was told of damage.
#[test]
fn a_directory_without_a_name_gets_no_hash() {
    let (volume, dir) = volume();
    volume.dir_hashes.drop_all();
    let mut raw = inode::read_node(&volume.look(), dir).unwrap();
    raw.nlink = U32::new(0);
    assert!(has_in(&volume, dir, &raw, &name(1)) && !has_in(&volume, dir, &raw, b"other"));
    assert_eq!(volume.dir_hashes.level(), (0, 0));
}

/// A number that another directory had is no reason to believe its hash.
#[test]
fn a_hash_is_that_of_one_generation() {
    let (volume, dir) = volume();
    let mut raw = inode::read_node(&volume.look(), dir).unwrap();
    let builds = count(&volume, "dirhash_builds");
    raw.generation = U32::new(raw.generation.get() + 1);
    assert!(has_in(&volume, dir, &raw, &name(1)));
    assert_eq!((count(&volume, "dirhash_builds"), volume.dir_hashes.level().1), (builds + 1, 1));
}

/// FFSOPT 3.5, last: dirhash finds bad hardware. What changed behind its back is found, and the directory is believed.
#[test]
fn a_hash_that_does_not_say_what_the_directory_says_is_dropped() {
    let (volume, dir) = volume();
    let cred = Cred::root();
    let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
    let entry = |number: usize| 16 + number * 24;
    let change = |f: &dyn Fn(&mut crate::edit::BlockEdit<'_>)| {
        transact(&volume, 0, |txn| {
            let raw = inode::read_node(&txn.look, dir)?;
            let Ok(crate::map::Mapping::Mapped(extent)) =
                crate::map::lookup(&mut &txn.look, &raw, Ino(dir.ino), FileBlock(0))
            else {
                panic!("it has blocks")
            };
            txn.change(extent.start, BlockKind::LinearEntries, f)
        })
        .unwrap();
    };
    let mismatches = || count(&volume, "dirhash_mismatches");
    // An entry is gone: the search says so.
    change(&|edit| edit.put(entry(3), &[0; 8]));
    assert_eq!(mismatches(), 0);
    assert!(!has(&volume, dir, &name(3)));
    assert_eq!((mismatches(), volume.dir_hashes.level()), (1, (0, 0)));
    // A change of that unit is compared with the hash: here it has a name that is not in it.
    assert!(has(&volume, dir, &name(4)) && volume.dir_hashes.level().1 == 1);
    change(&|edit| edit.put(entry(5) + 16, b"changed!"));
    ops.unlink(dir, &name(6)).unwrap();
    assert_eq!((mismatches(), volume.dir_hashes.level()), (2, (0, 0)));
    assert!(has(&volume, dir, &name(7)) && !has(&volume, dir, &name(6)) && !has(&volume, dir, &name(5)));
    assert_eq!((mismatches(), volume.dir_hashes.level().1), (2, 1));
}

/// Whoever does not come to the end of a change leaves no hash behind.
#[test]
fn a_change_that_fails_drops_the_hash() {
    let (volume, dir) = volume();
    let generation = inode::read_node(&volume.look(), dir).unwrap().generation.get();
    let level = || volume.dir_hashes.level();
    let ino = Ino(dir.ino);
    volume
        .dir_hashes
        .change(ino, generation, |change| {
            assert_eq!(change.table().map(Table::names), Some(u64::from(NAMES)));
            Ok(())
        })
        .unwrap();
    assert_eq!(level().1, 1);
    volume.dir_hashes.change(ino, generation, |_| Err::<(), _>(Errno::NOSPC.into())).unwrap_err();
    assert_eq!(level(), (0, 0));
    assert!(has(&volume, dir, &name(1)) && level().1 == 1);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        volume.dir_hashes.change(ino, generation, |_| -> Result<()> { panic!("in the middle") })
    }));
    assert!(panicked.is_err());
    assert!(has(&volume, dir, &name(1)), "it is searched");
    assert!(has(&volume, dir, &name(2)), "and the hash made anew after that");
    assert_eq!((level().1, count(&volume, "dirhash_mismatches")), (1, 0));
}

/// A hash that goes while it is looked at lives as long as somebody looks, and is charged so long.
#[test]
fn a_hash_is_charged_until_the_last_one_lets_go() {
    let (volume, dir) = volume();
    let raw = inode::read_node(&volume.look(), dir).unwrap();
    let (bytes, _) = volume.dir_hashes.level();
    let names = volume.dir_hashes.peek(Ino(dir.ino), &raw, |table| {
        volume.dir_hashes.drop_all();
        assert_eq!(volume.dir_hashes.level(), (bytes, 0));
        Ok(table.names())
    });
    assert_eq!((names, volume.dir_hashes.level()), (Some(u64::from(NAMES)), (0, 0)));
}
