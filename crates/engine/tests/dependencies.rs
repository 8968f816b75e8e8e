//! Order `softdep`, counted: dependencies of each kind under the names of McKusick and Ganger, and what a sync and an fsync write.

mod recorded;

use myriad_device::Event;
use myriad_engine::{OpenOptions, Order, RenameMode};
use myriad_format::BlockKind;
use recorded::Volume;
use std::collections::BTreeMap;

const BLOCK: usize = 4096;
const KINDS: [&str; 13] = [
    "pagedep",
    "inodedep",
    "bmsafemap",
    "newblk",
    "allocdirect",
    "indirdep",
    "allocindir",
    "diradd",
    "mkdir",
    "dirrem",
    "newdirblk",
    "freeblks",
    "freefile",
];

fn volume() -> Volume {
    let volume = Volume::new(&recorded::setup(Order::Soft, BLOCK as u32, 16 << 20));
    // Blocks and inodes that the root and its first names take are there from now on.
    volume.session.mkdir("first", 0o755).unwrap();
    volume.session.write("first/file", b"content").unwrap();
    volume.fs.sync().unwrap();
    volume
}

/// A counter of a kind.
fn count(volume: &Volume, kind: &str, what: &str) -> u64 {
    let name = format!("soft_{kind}_{what}");
    volume.fs.counters().into_iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Does `work` and syncs: how many of each kind were written, of those that any were, and how many rolled back.
fn written(volume: &Volume, work: impl FnOnce()) -> BTreeMap<&'static str, (u64, u64)> {
    let counts = || KINDS.map(|kind| (count(volume, kind, "written"), count(volume, kind, "rolled_back")));
    let before = counts();
    work();
    volume.fs.sync().unwrap();
    for kind in KINDS {
        assert_eq!(count(volume, kind, "now"), 0, "{kind} after a sync");
        assert_eq!(count(volume, kind, "total"), count(volume, kind, "written"), "{kind}: nothing was left out");
        assert!(count(volume, kind, "peak") <= count(volume, kind, "total"), "{kind}");
    }
    let differences = KINDS.into_iter().zip(before.into_iter().zip(counts()));
    let counted = differences.map(|(kind, (before, after))| (kind, (after.0 - before.0, after.1 - before.1)));
    counted.filter(|(_, counts)| *counts != (0, 0)).collect()
}

/// Kinds of blocks that were written since, and flushes.
fn traffic(volume: &Volume) -> (BTreeMap<&'static str, usize>, usize) {
    let (mut blocks, mut flushes) = (BTreeMap::new(), 0);
    for event in volume.device.take() {
        match event {
            Event::Write { bytes, .. } => {
                for block in bytes.chunks(BLOCK) {
                    *blocks.entry(BlockKind::of(block).map_or("data", BlockKind::name)).or_default() += 1;
                }
            }
            Event::Flush => flushes += 1,
            Event::Discard { .. } => {}
        }
    }
    (blocks, flushes)
}

/// Each operation has the structures that soft updates keep for it. What a round cannot show yet is rolled back in it.
#[test]
fn dependencies_of_each_operation() {
    let volume = volume();
    let session = &volume.session;
    // Names wait two rounds for their inodes, and those one round for their bits.
    let counted = written(&volume, || (0..10).for_each(|i| session.create(&format!("f{i}"), 0o644).map(drop).unwrap()));
    let expected = [("bmsafemap", (1, 0)), ("diradd", (10, 20)), ("inodedep", (10, 10)), ("pagedep", (1, 2))];
    assert_eq!(counted, BTreeMap::from(expected), "creations");
    assert_eq!(count(&volume, "diradd", "peak"), 10);

    let counted = written(&volume, || session.mkdir("d", 0o755).map(drop).unwrap());
    assert_eq!((counted["mkdir"], counted["diradd"]), ((1, 2), (1, 2)), "{counted:?}");
    // Of the parent the link, in the first round.
    assert_eq!(counted["inodedep"], (2, 1), "{counted:?}");

    let counted = written(&volume, || session.write("f0", vec![1; 3 * BLOCK]).unwrap());
    assert_eq!((counted["newblk"], counted["allocdirect"]), ((3, 0), (3, 3)), "{counted:?}");

    let counted = written(&volume, || session.write("f1", vec![1; 20 * BLOCK]).unwrap());
    // Fifteen pointers lie in the inode; those of the other blocks in a block of pointers, to which the first indirect one leads.
    assert_eq!(counted["indirdep"].0, 1, "{counted:?}");
    assert_eq!(counted["allocdirect"].0 + counted["allocindir"].0, 21, "{counted:?}");

    let counted = written(&volume, || session.rename("f2", "moved", RenameMode::Replace).unwrap());
    assert_eq!((counted["diradd"].0, counted["dirrem"].0), (1, 1), "{counted:?}");

    let counted = written(&volume, || session.unlink("f0").unwrap());
    let expected =
        [("dirrem", (1, 0)), ("freeblks", (1, 0)), ("freefile", (1, 0)), ("inodedep", (1, 1)), ("pagedep", (1, 0))];
    assert_eq!(counted, BTreeMap::from(expected), "a removal");
}

/// Of a file that comes and goes before anything is written there is no dependency, and nothing of it is written, however often.
#[test]
fn files_that_come_and_go_cost_nothing() {
    for pairs in [1, 200] {
        let volume = volume();
        let counted = written(&volume, || {
            volume.device.take();
            for _ in 0..pairs {
                volume.session.write("gone", vec![1; 3 * BLOCK]).unwrap();
                volume.session.unlink("gone").unwrap();
            }
        });
        // Blocks and inodes that never were on the device are given back without waiting for it.
        let rest: Vec<_> = counted.keys().filter(|kind| !kind.starts_with("free")).collect();
        assert!(rest.is_empty(), "{counted:?}");
        let (blocks, _) = traffic(&volume);
        for kind in ["data", "bitmap of blocks", "bitmap of inodes", "block pointers"] {
            assert_eq!(blocks.get(kind), None, "{pairs} pairs: {blocks:?}");
        }
        // The directory's times, and the place where the name was.
        assert_eq!(blocks.get("inode table"), Some(&1), "{pairs} pairs: {blocks:?}");
        assert!(
            blocks.get("entries of a linear directory").is_none_or(|&count| count == 1),
            "{pairs} pairs: {blocks:?}"
        );
    }
}

/// The new name of a file with data, in a new directory: three rounds, each with a flush.
#[test]
fn flushes_of_an_fsync() {
    let volume = volume();
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    volume.session.mkdir("d", 0o755).unwrap();
    let file = volume.session.open("d/f", options).unwrap();
    file.write_at(&[1; BLOCK], 0).unwrap();
    volume.device.take();
    file.sync().unwrap();
    let (blocks, flushes) = traffic(&volume);
    assert_eq!(flushes, 3, "{blocks:?}");
    file.write_at(&[2; BLOCK], 0).unwrap();
    file.sync().unwrap();
    let (blocks, flushes) = traffic(&volume);
    assert_eq!((flushes, blocks.get("data")), (1, Some(&1)), "{blocks:?}");
}

/// What is held for changes that wait: copies of blocks, some 200 bytes for each change where directories are full of them.
#[test]
fn memory_of_what_waits() {
    let volume = volume();
    const FILES: u64 = 2000;
    (0..FILES).for_each(|i| volume.session.create(&format!("first/{i}"), 0o644).map(drop).unwrap());
    volume.fs.sync().unwrap();
    let bytes = volume.fs.counters().into_iter().find(|(name, _)| *name == "soft_bytes_peak").unwrap().1;
    // A bit, an inode and a name each.
    assert!(bytes > 0 && bytes / (3 * FILES) <= 256, "{bytes} bytes");
}
