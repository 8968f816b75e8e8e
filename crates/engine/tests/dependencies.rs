//! Order `softdep`, counted: dependencies of each kind under the names of McKusick and Ganger, and what a sync and an fsync write.

mod recorded;

use myriad_device::Event;
use myriad_engine::schedule::{self, Turns};
use myriad_engine::{Cred, File, OpenOptions, Order, RenameMode};
use myriad_sim::rng::Rng;
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::mend_usable;
use recorded::{Volume, counter, lose_power_beside};
use std::collections::BTreeMap;
use std::sync::Arc;

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

fn setup() -> Setup {
    recorded::setup(Order::Soft, BLOCK as u32, 16 << 20)
}

fn volume() -> Volume {
    let volume = Volume::new(&setup());
    // Blocks and inodes that the root and its first names take are there from now on.
    volume.session.mkdir("first", 0o755).unwrap();
    volume.session.write("first/file", b"content").unwrap();
    volume.fs.sync().unwrap();
    volume
}

/// A counter of a kind.
fn count(volume: &Volume, kind: &str, what: &str) -> u64 {
    counter(&volume.fs, &format!("soft_{kind}_{what}"))
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
        let (blocks, _) = volume.traffic();
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
    let (blocks, flushes) = volume.traffic();
    assert_eq!(flushes, 3, "{blocks:?}");
    file.write_at(&[2; BLOCK], 0).unwrap();
    file.sync().unwrap();
    let (blocks, flushes) = volume.traffic();
    assert_eq!((flushes, blocks.get("data")), (1, Some(&1)), "{blocks:?}");
}

/// What is held at most for changes that wait: 256 bytes for each, whether they lie side by side or each alone in its block.
#[test]
fn memory_of_what_waits() {
    const EACH: u64 = 256;
    let held = |volume: &Volume, what: &str, changes: u64| {
        volume.fs.sync().unwrap();
        let (bytes, held) = (counter(&volume.fs, "soft_bytes_peak"), counter(&volume.fs, "soft_held_peak"));
        println!("{what}: {changes} changes, {} bytes each, {} against the limit", bytes / changes, held / changes);
        assert!(bytes > 0 && bytes <= EACH * changes, "{what}: {bytes} bytes for {changes} changes");
        let now = ["soft_bytes_now", "soft_held_now"].map(|name| counter(&volume.fs, name));
        assert_eq!(now, [0, 0], "{what}: nothing waits after a sync");
    };
    for block in [4096, 16384, 65536] {
        // Side by side: a bit, an inode and a name each.
        const FILES: u64 = 2000;
        let volume = Volume::new(&recorded::setup(Order::Soft, block, 64 << 20));
        volume.session.mkdir("first", 0o755).unwrap();
        volume.fs.sync().unwrap();
        (0..FILES).for_each(|i| volume.session.create(&format!("first/{i}"), 0o644).map(drop).unwrap());
        held(&volume, &format!("blocks of {block}, creations in one directory"), 3 * FILES);
    }
    // Each alone in its block: a link of a file far from the next one, in a directory of its own; then a name less, and a link less.
    const APART: u64 = 300;
    let setup = recorded::setup(Order::Soft, BLOCK as u32, 64 << 20);
    let inodes_per_block = (BLOCK / 512 * 2) as u64;
    let volume = Volume::new(&setup);
    let session = &volume.session;
    session.mkdir("files", 0o755).unwrap();
    (0..APART * inodes_per_block).for_each(|i| session.create(&format!("files/{i}"), 0o644).map(drop).unwrap());
    (0..APART).for_each(|i| session.mkdir(&format!("d{i}"), 0o755).map(drop).unwrap());
    volume.fs.close().unwrap();
    let volume = Volume::open(&setup, volume.device.inner().clone_image());
    let link = |i| volume.session.link(&format!("files/{}", i * inodes_per_block), &format!("d{i}/name"));
    (0..APART).for_each(|i| link(i).map(drop).unwrap());
    held(&volume, "links apart", 2 * APART);
    volume.fs.close().unwrap();
    let volume = Volume::open(&setup, volume.device.inner().clone_image());
    (0..APART).for_each(|i| volume.session.unlink(&format!("d{i}/name")).unwrap());
    held(&volume, "removals apart", 2 * APART);
}

/// An fsync of one file writes what that file needs, up to the root, and nothing of a thousand other changes.
#[test]
fn an_fsync_writes_what_its_file_needs() {
    const OTHERS: u64 = 1000;
    let setup = Setup {
        ag_size: Some(64 << 20),
        region_size: Some(64 << 20),
        size: 64 << 20,
        bytes_per_inode: 16 << 10,
        ..setup()
    };
    let volume = Volume::new(&setup);
    volume.session.mkdir("first", 0o755).unwrap();
    let session = &volume.session;
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    // Blocks of the inode table that were never used go along with the first of them that is needed. These have been.
    (0..4 * OTHERS).for_each(|i| session.create(&format!("first/{i}"), 0o644).map(drop).unwrap());
    volume.fs.sync().unwrap();
    (0..4 * OTHERS).for_each(|i| session.unlink(&format!("first/{i}")).unwrap());
    volume.fs.sync().unwrap();
    volume.device.take();
    for d in 0..10 {
        session.mkdir(&format!("o{d}"), 0o755).unwrap();
        (0..OTHERS / 10).for_each(|i| session.create(&format!("o{d}/{i}"), 0o644).map(drop).unwrap());
    }
    assert!(volume.device.take().iter().all(|event| matches!(event, Event::Flush)), "they wait");
    session.mkdir("a", 0o755).unwrap();
    session.mkdir("a/b", 0o755).unwrap();
    let file = session.open("a/b/f", options).unwrap();
    file.write_at(&[1; 3 * BLOCK], 0).unwrap();
    volume.device.take();
    file.sync().unwrap();
    let (blocks, flushes) = volume.traffic();
    println!("{blocks:?}, {flushes} flushes");
    assert_eq!(blocks["data"], 3);
    assert!(flushes <= 5, "{flushes} flushes");
    // The root, a, b and the file: their blocks of inodes in up to three rounds, and the names of three directories.
    assert!(blocks["inode table"] <= 8, "{blocks:?}");
    assert!(blocks["entries of a linear directory"] <= 8, "{blocks:?}");
    let all: usize = blocks.values().sum();
    assert!(all <= 25, "{blocks:?}");
    let fell_back = |volume: &Volume| volume.fs.counters().into_iter().find(|(name, _)| *name == "soft_fsyncs_of_all");
    assert_eq!(fell_back(&volume), Some(("soft_fsyncs_of_all", 0)));

    // What it promises is there, and the others are not.
    let state = recorded::State { image: volume.device.inner().clone_image(), what: "after the fsync".into() };
    state.check();
    let after = state.open(&setup);
    assert_eq!(after.session.read("a/b/f").unwrap(), [1; 3 * BLOCK]);
    let others = (0..10).filter(|d| after.session.exists(&format!("o{d}/0")).unwrap()).count();
    assert_eq!(others, 0);

    // Under another name, and overwritten.
    session.rename("a/b/f", "a/g", RenameMode::Replace).unwrap();
    file.write_at(&[2; BLOCK], 0).unwrap();
    volume.device.take();
    file.sync().unwrap();
    let (blocks, _) = volume.traffic();
    assert!(blocks.values().sum::<usize>() <= 12, "{blocks:?}");
    assert_eq!(fell_back(&volume), Some(("soft_fsyncs_of_all", 0)));
    let state = recorded::State { image: volume.device.inner().clone_image(), what: "after the second".into() };
    state.check();
    let after = state.open(&setup);
    assert_eq!(after.session.read("a/g").unwrap()[..BLOCK], [2; BLOCK]);

    // Its directory has another name: the file lasts as it is, and is not reached by its path yet.
    session.rename("a", "c", RenameMode::Replace).unwrap();
    file.sync().unwrap();
    let state = recorded::State { image: volume.device.inner().clone_image(), what: "the directory moved".into() };
    state.check();
    assert!(state.open(&setup).session.exists("c/g").unwrap());
    session.rename("c", "a", RenameMode::Replace).unwrap();

    // Which of two names a file was left with, its inode does not say: then all is made durable.
    session.link("a/g", "o1/second").unwrap();
    session.unlink("a/g").unwrap();
    file.sync().unwrap();
    assert_eq!(fell_back(&volume), Some(("soft_fsyncs_of_all", 1)));
    let state = recorded::State { image: volume.device.inner().clone_image(), what: "after the third".into() };
    let after = state.open(&setup);
    assert!(after.session.exists("o1/second").unwrap() && after.session.exists("o9/0").unwrap());
}

/// A file lost the name that its inode says, and lives on by another one, as Maildir and git leave theirs. Then the directory of that other name was
/// renamed: an fsync of the file looked for the name that was gone, found it durable, and returned before the file could be found by its path.
#[test]
fn an_fsync_looks_for_a_name_that_its_file_has() {
    for (is_opened_again, is_old_directory_removed) in [(false, false), (true, false), (true, true)] {
        let what = format!("opened again: {is_opened_again}, old directory removed: {is_old_directory_removed}");
        let mut volume = volume();
        let session = &volume.session;
        session.mkdir("old", 0o755).unwrap();
        session.mkdir("new", 0o755).unwrap();
        session.write("old/name", b"content").unwrap();
        volume.fs.sync().unwrap();
        session.link("old/name", "new/name").unwrap();
        session.unlink("old/name").unwrap();
        if is_old_directory_removed {
            session.rmdir("old").unwrap();
        }
        volume.fs.sync().unwrap();
        if is_opened_again {
            volume.fs.close().unwrap();
            volume = Volume::open(&setup(), volume.device.inner().clone_image());
        }
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let file = volume.session.open("new/name", options).unwrap();
        volume.session.rename("new", "moved", RenameMode::Replace).unwrap();
        file.sync().unwrap();
        let state = recorded::State { image: volume.device.inner().clone_image(), what };
        state.check();
        let after = state.open(&setup());
        assert_eq!(after.session.read("moved/name").ok().as_deref(), Some(&b"content"[..]), "{}", state.what);
        assert_eq!(counter(&volume.fs, "soft_fsyncs_of_all"), 1, "{}", state.what);
        // Once it has been renamed, its inode says its name again.
        volume.session.rename("moved/name", "moved/again", RenameMode::Replace).unwrap();
        file.sync().unwrap();
        assert_eq!(counter(&volume.fs, "soft_fsyncs_of_all"), 1, "{}", state.what);
    }
}

/// While a new file was synced, another thread gave it a name in a new directory and took its first one away. The fsync had looked for that one, and
/// ended once the file lasted in a directory that nothing named yet: the parent of that had to grow, which takes a round more. An fsync that looked again when
/// its rounds had ended could find a third name, which the file was given by then.
#[test]
fn an_fsync_looks_again_for_the_name_of_its_file() {
    let setup = recorded::setup(Order::Soft, 512, 8 << 20);
    for (seed, is_renamed) in (0..100).map(|seed| (seed, seed % 2 == 1)) {
        let volume = Volume::new(&setup);
        let session = &volume.session;
        session.mkdir("d", 0o755).unwrap();
        session.create("other", 0o644).unwrap();
        (0..28).for_each(|i| session.link("other", &format!("d/{i:0>200}")).unwrap());
        // Inodes of its group are there.
        session.mkdir("d/before", 0o755).unwrap();
        volume.fs.sync().unwrap();
        let dir = format!("d/{:0>220}", "new");
        session.mkdir(&dir, 0o755).unwrap();
        let [path, third] = ["f", "g"].map(|name| format!("{dir}/{name}"));
        let file = session.open("f", OpenOptions::CREATE).unwrap();
        file.write_at(b"content", 0).unwrap();
        let mut synced = None;
        let sync = || {
            file.sync().unwrap();
            synced = Some(volume.device.inner().clone_image());
        };
        let rename = || {
            let session = volume.fs.session(Cred::root());
            session.link("f", &path).unwrap();
            session.unlink("f").unwrap();
            if is_renamed {
                session.rename(&path, &third, RenameMode::Replace).unwrap();
            }
        };
        schedule::run(Turns { seed, one_in: 4 }, vec![Box::new(sync), Box::new(rename)]);
        let after = Volume::open(&setup, synced.unwrap());
        let found = ["f", &path, &third].map(|path| after.session.read(path).ok());
        assert!(found.iter().flatten().any(|content| content == b"content"), "seed {seed}: {found:?}");
    }
}

/// Each fsync that makes everything durable is counted once: two that share rounds were one.
#[test]
fn fsyncs_of_everything_are_counted_one_by_one() {
    for seed in 0..20 {
        let volume = volume();
        let files = ["a", "b"].map(|name| {
            let file = volume.session.open(name, OpenOptions::CREATE).unwrap();
            volume.session.link(name, &format!("{name}2")).unwrap();
            file
        });
        let sync = |file: &File| file.sync().unwrap();
        let jobs = files.iter().map(|file| Box::new(move || sync(file)) as Box<dyn FnOnce() + Send>);
        schedule::run(Turns { seed, one_in: 2 }, jobs.collect());
        assert_eq!(counter(&volume.fs, "soft_fsyncs_of_all"), 2, "seed {seed}");
    }
}

/// A directory moved to another parent, and a file in it was synced under its new path. Power was lost while the old name lasted as well, as it
/// may. A repair kept the name that it met first, the old one, and the path that had been synced was gone.
#[test]
fn a_repair_keeps_the_path_that_was_synced() {
    let volume = volume();
    let session = &volume.session;
    for dir in ["old", "new", "old/d", "old/d/below"] {
        session.mkdir(dir, 0o755).unwrap();
    }
    session.write("old/d/f", b"content").unwrap();
    volume.fs.sync().unwrap();
    session.rename("old/d", "new/e", RenameMode::Replace).unwrap();
    session.open("new/e/f", OpenOptions { write: true, ..OpenOptions::default() }).unwrap().sync().unwrap();
    let image = Arc::new(volume.device.inner().clone_image());
    assert!(mend_usable(&Devices::from(image.clone())).unwrap(), "it has both names");
    let after = Volume::open(&setup(), image.clone_image());
    assert_eq!(after.session.read("new/e/f").ok().as_deref(), Some(&b"content"[..]));
    assert!(after.session.exists("new/e/below").unwrap() && !after.session.exists("old/d").unwrap());
    recorded::State { image: image.clone_image(), what: "repaired".into() }.check();
}

/// Threads sync files of theirs, in directories that they have just made, while all of them change other things. What an fsync was answered for is
/// there, wherever the power is lost after that.
#[test]
fn what_threads_have_synced_is_there() {
    lose_power_beside(setup(), (9, 40), sync_files, |synced, point, state, after| {
        for (_, path) in synced.iter().flatten().filter(|(end, _)| *end <= point) {
            let found = after.session.read(path).unwrap_or_else(|error| panic!("{}: {path}: {error}", state.what));
            assert_eq!(found, path.repeat(900).into_bytes(), "{}: {path}", state.what);
        }
    });
}

/// Makes files, each in a new directory, moves some of them, syncs them; events when that had been answered, and the path.
fn sync_files(volume: &Volume, thread: u64) -> Vec<(usize, String)> {
    let session = volume.fs.session(Cred::root());
    let mut rng = Rng::new(thread);
    let mut synced = Vec::new();
    for number in 0..30 {
        let mine = format!("d{}/t{thread}-{number}", rng.below(3));
        session.mkdir(&mine, 0o755).unwrap();
        let path = format!("{mine}/f");
        let file = if rng.percent(50) {
            session.write(&format!("{mine}/first"), path.repeat(900)).unwrap();
            session.rename(&format!("{mine}/first"), &path, RenameMode::Replace).unwrap();
            session.open(&path, OpenOptions { write: true, ..OpenOptions::default() }).unwrap()
        } else {
            session.write(&path, path.repeat(900)).unwrap();
            session.open(&path, OpenOptions { write: true, ..OpenOptions::default() }).unwrap()
        };
        file.sync().unwrap();
        synced.push((volume.device.event_count(), path));
        // Others that nobody asks for.
        let other = format!("d{}/o{thread}-{}", rng.below(3), rng.below(4));
        let _ = session.mkdir(&other, 0o755);
        let _ = session.write(&format!("{other}/x"), [1; 5000]);
        let _ = session.rename(&other, &format!("d{}/o{thread}-{}", rng.below(3), rng.below(4)), RenameMode::Replace);
        let _ = session.unlink(&format!("{other}/x"));
    }
    synced
}
