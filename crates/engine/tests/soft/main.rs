//! Order `softdep`: states that power loss leaves, made on purpose. Each test tells a story of a few operations, and looks at what may be found after any
//! sectors of what was in flight have arrived; some go on from there, as a user does who has not run the check.

mod background;
mod exchange;
#[path = "../recorded/mod.rs"]
mod recorded;
mod removed;
mod shown;
mod taken;
#[path = "../../../check/tests/common/worn.rs"]
mod worn;

use myriad_check::{Options, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Clock, Cred, Error, OpenOptions, Order, RenameMode, Session, XattrMode};
use myriad_format::dir::EntryHeader;
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::superblock::Superblock;
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Ino, header};
use myriad_sim::rng::Rng;
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_usable;
use recorded::{State, Volume, each_window, names};
use std::sync::Arc;

fn setup(block_size: u32, size: u64) -> Setup {
    recorded::setup(Order::Soft, block_size, size)
}

/// Power loss left a file with one name and two links, as it may. The next rename of it took the second link for a second name, and let the
/// old name go before the new one was there.
#[test]
fn links_too_many_are_no_names() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.mkdir("d", 0o755).unwrap();
    volume.session.write("f", b"content").unwrap();
    let mut looked_at = 0;
    for state in volume.states(|session| session.rename("f", "d/g", RenameMode::Replace).unwrap()) {
        let again = state.open(&setup);
        if !again.session.exists("f").unwrap()
            || again.session.stat("f").unwrap().nlink < 2
            || again.session.exists("d/g").unwrap()
        {
            continue;
        }
        looked_at += 1;
        for second in again.states(|session| session.rename("f", "d/g", RenameMode::Replace).unwrap()) {
            second.check();
            let last = second.open(&setup);
            let found = ["f", "d/g"].map(|name| last.session.read(name).ok());
            let is_there = found.iter().flatten().any(|content| content == b"content");
            assert!(is_there, "{} and then {}: {found:?}", state.what, second.what);
        }
    }
    assert!(looked_at > 0);
}

/// A directory moves out of its parent, and the parent moves into it. The identities of the two reached the device one without the other: each
/// said that it was in the other one, neither name in the root counted, and both were lost with all they had.
#[test]
fn directories_that_change_places_stay_in_the_tree() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    let session = &volume.session;
    session.mkdir("a", 0o755).unwrap();
    for i in 0..4 {
        session.create(&format!("between{i}"), 0o644).unwrap();
    }
    session.mkdir("a/b", 0o755).unwrap();
    session.write("a/b/file", b"content").unwrap();
    let states = volume.states(|session| {
        session.rename("a/b", "b", RenameMode::Replace).unwrap();
        session.rename("a", "b/a", RenameMode::Replace).unwrap();
    });
    for state in states {
        state.check();
        let after = state.open(&setup);
        let root = names(&after.session, "/");
        assert!(root.iter().any(|name| name == "a" || name == "b"), "{}: {root:?}", state.what);
    }
}

/// An ACL that gives one user what the group may not have. The mode, whose group bits are the ACL's mask, reached the device before the block
/// that the ACL lies in: after a crash the group had what was meant for the user.
#[test]
fn a_mode_does_not_show_without_its_acl() {
    const ACL: &[u8] = b"system.posix_acl_access";
    // Tag, permissions, identifier: the owner rw-, user 1000 rwx, the group ---, mask rwx, others ---.
    let entries = [(1_u16, 6_u16, u32::MAX), (2, 7, 1000), (4, 0, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend(tag.to_le_bytes().into_iter().chain(permissions.to_le_bytes()).chain(id.to_le_bytes()));
    }
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.create("f", 0o600).unwrap();
    let mut shown = [0; 2];
    for state in volume.states(|session| session.set_xattr("f", ACL, &acl, XattrMode::Set).unwrap()) {
        state.check();
        let after = state.open(&setup);
        let has_acl = after.session.get_xattr("f", ACL).is_ok();
        let mode = after.session.stat("f").unwrap().mode & 0o777;
        assert_eq!(mode, if has_acl { 0o670 } else { 0o600 }, "{}: ACL {has_acl}", state.what);
        shown[usize::from(has_acl)] += 1;
    }
    assert!(shown.iter().all(|&count| count > 0), "{shown:?}");
}

/// A file moved into a new directory, whose own name came late: its parent had to grow by a block that a block of pointers leads to. The file's
/// old name went when the new one lasted, in a directory that nothing named.
#[test]
fn a_name_in_a_directory_without_one_does_not_last() {
    let setup = setup(512, 8 << 20);
    let volume = Volume::new(&setup);
    let session = &volume.session;
    session.mkdir("d", 0o755).unwrap();
    session.create("other", 0o644).unwrap();
    session.write("f", b"content").unwrap();
    for i in 0..28 {
        session.link("other", &format!("d/{i:0>200}")).unwrap();
    }
    // Inodes of its group are there.
    session.mkdir("d/before", 0o755).unwrap();
    let new = format!("d/{:0>220}", "new");
    let states = volume.states(|session| {
        let size = session.stat("d").unwrap().size;
        session.mkdir(&new, 0o755).unwrap();
        assert!(session.stat("d").unwrap().size > size);
        session.rename("f", &format!("{new}/f"), RenameMode::Replace).unwrap();
    });
    for state in states {
        state.check();
        let after = state.open(&setup);
        let found = ["f", &format!("{new}/f")].map(|name| after.session.read(name).ok());
        assert!(found.iter().flatten().any(|content| content == b"content"), "{}: lost", state.what);
    }
}

/// A name went, and came back as another file's elsewhere in its directory, since the old entry had to keep its place: a crash found both.
#[test]
fn a_name_that_comes_back_is_there_once() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    let session = &volume.session;
    session.mkdir("d", 0o755).unwrap();
    session.write("d/x", b"old").unwrap();
    session.write("d/other", b"new").unwrap();
    session.mkdir("d/dir", 0o755).unwrap();
    let look = |states: Vec<State>| {
        for state in states {
            state.check();
            let after = state.open(&setup);
            let mut found = names(&after.session, "d");
            let all = found.len();
            found.dedup();
            assert_eq!(found.len(), all, "{}: {found:?}", state.what);
        }
    };
    look(volume.states(|session| {
        session.rename("d/x", "d/y", RenameMode::Replace).unwrap();
        session.link("d/other", "d/x").unwrap();
    }));
    // Back and forth.
    look(volume.states(|session| {
        session.rename("d/dir", "d/dir2", RenameMode::Replace).unwrap();
        session.rename("d/dir2", "d/dir", RenameMode::Replace).unwrap();
    }));
}

/// Two files change names by way of a third one. Each of the two names waits for the other file's, and nothing may have to be let go.
#[test]
fn files_that_change_names_are_both_there() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("a", b"content of a").unwrap();
    volume.session.write("b", b"content of b").unwrap();
    let states = volume.states(|session| {
        for (from, to) in [("a", "t"), ("b", "a"), ("t", "b")] {
            session.rename(from, to, RenameMode::Replace).unwrap();
        }
    });
    let forced = volume.fs.counters().into_iter().find(|(name, _)| *name == "soft_forced").unwrap();
    assert_eq!(forced.1, 0);
    for state in states {
        state.check();
        let after = state.open(&setup);
        let found = ["a", "b", "t"].map(|name| after.session.read(name).unwrap_or_default());
        assert!([b"content of a", b"content of b"].iter().all(|&wanted| found.iter().any(|content| content == wanted)));
    }
}

/// The count of directories is a hint, and opening did not count them anew: removing what was there made it less than nothing, which was
/// taken for damage in the middle of a change. And a rename took a long way to the root for a circle.
#[test]
fn a_count_of_directories_that_is_too_low_refuses_nothing() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    let chain: Vec<String> =
        (1..=6).map(|depth| (1..=depth).map(|i| i.to_string()).collect::<Vec<_>>().join("/")).collect();
    for path in &chain {
        volume.session.mkdir(path, 0o755).unwrap();
    }
    let states = volume.states(|session| chain.iter().rev().for_each(|path| session.rmdir(path).unwrap()));
    for state in states {
        let after = state.open(&setup);
        if !after.session.exists(&chain[5]).unwrap() {
            continue;
        }
        after.session.mkdir("x", 0o755).unwrap();
        let moved = format!("{}/x", chain[5]);
        let renamed = after.session.rename("x", &moved, RenameMode::Replace);
        assert!(renamed.is_ok(), "{}: {renamed:?}", state.what);
        for path in [&moved].into_iter().chain(chain.iter().rev()) {
            let removed = after.session.rmdir(path);
            assert!(removed.is_ok(), "{}: {path}: {removed:?}", state.what);
        }
        after.fs.sync().unwrap();
    }
}

/// A directory's other name counted as not there, but not on the way to what lies in it.
#[test]
fn no_path_leads_through_a_second_name() {
    each_second_name(|setup, state| {
        let after = state.open(setup);
        after.session.create("b/y/file", 0o644).unwrap();
        for path in ["a/x", "a/x/", "a/x/file", "a/x/.."] {
            let found = after.session.exists(path);
            assert!(matches!(found, Ok(false)), "{}: {path}: {found:?}", state.what);
        }
        assert!(after.session.read_dir("a/x").is_err());
        assert!(after.session.exists("b/y/file").unwrap());
    });
}

/// A directory's other name counts as not there after a crash. It stood in the way of a new file of that name, and of the removal of what
/// was empty without it.
#[test]
fn a_second_name_of_a_directory_is_in_nobodys_way() {
    each_second_name(|setup, state| {
        let after = state.open(setup);
        let made = after.session.mkdir("a/x", 0o755);
        assert!(made.is_ok(), "{}: {made:?}", state.what);
        let after = state.open(setup);
        let renamed = after.session.rename("b/y", "a/x", RenameMode::Replace);
        assert!(renamed.is_ok(), "{}: {renamed:?}", state.what);
        let after = state.open(setup);
        assert!(names(&after.session, "a").is_empty());
        let removed = after.session.rmdir("a");
        assert!(removed.is_ok(), "{}: {removed:?}", state.what);
    });
}

/// A second name is still there when the volume is open: whoever makes that very name takes it away, whatever he makes.
#[test]
fn a_second_name_makes_way_for_a_new_one() {
    type Make = fn(&Session) -> Result<(), Error>;
    let ways: [Make; 6] = [
        |session| session.mkdir("a/x", 0o755).map(drop),
        |session| session.write("a/x", b"new"),
        |session| session.symlink(b"target", "a/x").map(drop),
        |session| session.link("file", "a/x").map(drop),
        |session| session.rename("file", "a/x", RenameMode::Replace),
        |session| session.rename("b/y", "a/x", RenameMode::NoReplace),
    ];
    each_second_name(|setup, state| {
        for (number, make) in ways.iter().enumerate() {
            let after = state.open(setup);
            let what = format!("{}, way {number}", state.what);
            assert!(!after.session.exists("a/x").unwrap(), "{what}");
            make(&after.session).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(after.session.lstat("a/x").is_ok(), "{what}");
            assert_eq!(after.session.exists("b/y").unwrap(), number != 5, "{what}");
            after.fs.close().unwrap();
            let devices = Devices::from(Arc::new(after.device.inner().clone_image()));
            check_usable(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            // As many names as were made.
            assert_eq!(entries_named(after.device.inner(), "x"), 1, "{what}");
        }
    });
}

/// Of a volume that is closed soon after the crash, and of one that a thread looks through, no second name is left.
#[test]
fn no_second_name_outlives_an_opening() {
    each_second_name(|setup, state| {
        for background in [false, true] {
            let mut setup = setup.clone();
            setup.options.background = background;
            let after = state.open(&setup);
            assert!(after.session.exists("b/y").unwrap());
            after.fs.close().unwrap();
            assert_eq!(entries_named(after.device.inner(), "x"), 0, "{}, threads: {background}", state.what);
        }
    });
}

/// An opening after a crash reads as many blocks of a large tree as of a small one.
#[test]
fn an_opening_after_a_crash_reads_no_tree() {
    let read = |directories: usize| {
        let setup = setup(4096, 64 << 20);
        let volume = Volume::new(&setup);
        for dir in 0..directories {
            volume.session.mkdir(&format!("d{dir}"), 0o755).unwrap();
            volume.session.mkdir(&format!("d{dir}/below"), 0o755).unwrap();
            volume.session.write(&format!("d{dir}/file"), b"content").unwrap();
        }
        volume.fs.sync().unwrap();
        let image = volume.device.inner().clone_image();
        let after = Volume::open(&setup, image);
        assert!(after.fs.has_leftovers(), "no crash");
        let read = recorded::counter(&after.fs, "cache_misses");
        assert!(after.session.exists(&format!("d{}/below", directories - 1)).unwrap());
        // Whoever removes a directory waits until all were looked at.
        after.session.rmdir("d0/below").unwrap();
        let all = recorded::counter(&after.fs, "cache_misses");
        assert!(all - read >= directories as u64 / 2, "{all} blocks, {read} by the opening");
        read
    };
    let (few, many) = (read(50), read(1000));
    println!("{few} blocks of a tree of 100 directories, {many} of one of 2000");
    assert!(many <= few, "{few} and {many} blocks");
}

/// When the directory went, its other name stayed: of an inode that was not there, and then of whatever was given its number.
#[test]
fn a_second_name_goes_with_its_directory() {
    each_second_name(|setup, state| remove_directory(&state.open(setup), &state.what));
}

/// The volume was opened in order `log` after the crash, and power was lost again before anybody had looked for second names. The next opening saw
/// that the last order was `log`, which leaves none, and did not look for them.
#[test]
fn a_second_name_goes_after_a_crash_in_another_order() {
    let with_log = Setup { log_size: Some(2 << 20), ..setup(1024, 16 << 20) };
    each_second_name_of(&with_log, |setup, state| {
        let mut logged = setup.clone();
        logged.options.order = Some(Order::Log);
        let between = state.open(&logged);
        between.session.create("changed", 0o644).unwrap();
        between.fs.sync().unwrap();
        let image = between.device.inner().clone_image();
        for setup in [&logged, setup] {
            remove_directory(&Volume::open(setup, image.clone_image()), &format!("{}, then a crash", state.what));
        }
    });
}

/// Removes the directory that has two names, and has its inode given to others.
fn remove_directory(after: &Volume, what: &str) {
    after.session.rmdir("b/y").unwrap();
    after.fs.sync().unwrap();
    for i in 0..10 {
        after.session.write(&format!("new{i}"), b"new").unwrap();
    }
    after.fs.sync().unwrap();
    let found = after.session.read("a/x");
    assert!(found.is_err(), "{what}: a file has a name that nobody gave it: {found:?}");
    let devices = Devices::from(Arc::new(after.device.inner().clone_image()));
    check_usable(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// A write of a directory's inode was lost: its identity says a name that is gone. So its only name counts as a second one, and after the next
/// crash that was taken away, with all that lies below.
#[test]
fn the_only_name_of_a_directory_is_no_second_one() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    let session = &volume.session;
    session.mkdir("a", 0o755).unwrap();
    session.mkdir("b", 0o755).unwrap();
    // Nothing else that changes lies in the sector of its inode.
    (0..4).for_each(|i| session.create(&format!("before{i}"), 0o644).map(drop).unwrap());
    let x = Ino(session.mkdir("a/x", 0o755).unwrap().ino());
    (0..4).for_each(|i| session.create(&format!("after{i}"), 0o644).map(drop).unwrap());
    session.write("a/x/file", b"content").unwrap();
    volume.fs.sync().unwrap();
    let before = volume.device.inner().clone_image();
    session.rename("a/x", "b/y", RenameMode::Replace).unwrap();
    volume.fs.sync().unwrap();
    let image = Arc::new(volume.device.inner().clone_image());
    let mut block = [0; 4096];
    image.read(0, &mut block).unwrap();
    let geometry = Superblock::read(&block).geometry();
    let (place, slot) = geometry.locate(x).unwrap();
    let at = (place.0 << geometry.block_bits) + (geometry.inode_offset(slot) / UNIT_SIZE * UNIT_SIZE) as u64;
    let mut lost = [0; UNIT_SIZE];
    before.read(at, &mut lost).unwrap();
    image.write(at, &lost).unwrap();
    let state = State { image: image.clone_image(), what: "a lost write".into() };
    let after = state.open(&setup);
    assert!(!after.session.exists("b/y").unwrap());
    after.fs.close().unwrap();
    assert_eq!(entries_named(after.device.inner(), "y"), 1);
    let image = Arc::new(after.device.inner().clone_image());
    let options = Options { repair: true, threads: 1, ..Options::default() };
    assert!(check(image.clone(), None, &options).unwrap().is_sound());
    let mended = Volume::open(&setup, image.clone_image());
    assert_eq!(mended.session.read("b/y/file").ok().as_deref(), Some(&b"content"[..]));
}

/// How many entries of directories have a name, whether or not they count.
fn entries_named(image: &MemoryDevice, name: &str) -> usize {
    let mut bytes = vec![0; image.size() as usize];
    image.read(0, &mut bytes).unwrap();
    let is_named = |entry: &[u8]| {
        let header = EntryHeader::read(entry);
        header.ino.get() != 0
            && usize::from(header.name_len) == name.len()
            && entry[EntryHeader::SIZE..].starts_with(name.as_bytes())
    };
    let units = bytes.chunks_exact(UNIT_SIZE).filter(|unit| BlockKind::of(unit) == Some(BlockKind::LinearEntries));
    let entries = units.flat_map(|unit| {
        let mut at = UnitHeader::SIZE;
        std::iter::from_fn(move || {
            let entry = unit.get(at..at + EntryHeader::SIZE).map(|_| &unit[at..])?;
            at += usize::from(EntryHeader::read(entry).length.get()).max(EntryHeader::SIZE);
            Some(entry)
        })
    });
    entries.filter(|entry| is_named(entry)).count()
}

/// Hands on each state in which a directory that was renamed has its old name still, beside its own.
fn each_second_name(look: impl Fn(&Setup, &State)) {
    each_second_name_of(&setup(1024, 8 << 20), look);
}

fn each_second_name_of(setup: &Setup, look: impl Fn(&Setup, &State)) {
    let volume = Volume::new(setup);
    let session = &volume.session;
    session.mkdir("a", 0o755).unwrap();
    session.mkdir("b", 0o755).unwrap();
    session.mkdir("a/x", 0o755).unwrap();
    session.write("file", b"content").unwrap();
    // A reader takes nothing away.
    let mut reading = setup.clone();
    reading.options.read_only = true;
    let mut met = 0;
    for state in volume.states(|session| session.rename("a/x", "b/y", RenameMode::Replace).unwrap()) {
        let after = state.open(&reading);
        if after.session.exists("b/y").unwrap() && entries_named(&state.image, "x") == 1 {
            met += 1;
            look(setup, &state);
        }
    }
    assert!(met > 0, "no state has both names");
}

/// Bytes behind a file's end, of a write whose size was lost in a crash, showed when the file grew later.
#[test]
fn bytes_of_a_write_that_was_lost_do_not_come_back() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("f", [b'a'; 100]).unwrap();
    let append = |session: &Session, len: usize, byte: u8| {
        let file = session.open("f", OpenOptions { read: true, write: true, ..OpenOptions::default() }).unwrap();
        let size = file.stat().unwrap().size;
        file.write_at(&vec![byte; len], size).unwrap();
    };
    let mut looked_at = 0;
    for state in volume.states(|session| append(session, 300, b'b')) {
        let after = state.open(&setup);
        if after.session.stat("f").unwrap().size != 100 {
            continue;
        }
        looked_at += 1;
        for second in after.states(|session| append(session, 100, b'c')) {
            let last = second.open(&setup).session.read("f").unwrap();
            assert!(
                !last.contains(&b'b'),
                "{} and then {}: {:?}",
                state.what,
                second.what,
                String::from_utf8_lossy(&last)
            );
        }
    }
    assert!(looked_at > 0);
}

/// Files that take every block of a group of 1024, none of which is so large that a part of it would begin in another group.
const FILLING: usize = 10;

/// Takes every block of the groups that are made.
fn fill_made_groups(volume: &Volume, setup: &Setup) {
    let options = OpenOptions { read: true, write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    let mut files = (0..FILLING).map(|i| volume.session.open(&format!("big{i}"), options).unwrap());
    let mut file = files.next().unwrap();
    loop {
        volume.fs.sync().unwrap();
        let mut block = vec![0; setup.block_size as usize];
        volume.device.read(0, &mut block).unwrap();
        let superblock = Superblock::decode(&block, FsBlock(0)).unwrap();
        let mut free = 0;
        for ag in (0..superblock.ag_high_water.get()).map(AgNo) {
            let header = superblock.geometry().fs_block(ag, AgBlock(HEADER_BLOCK));
            volume.device.read(header.0 * u64::from(setup.block_size), &mut block).unwrap();
            free += GroupHeader::read(&block).free_blocks.get();
        }
        if free == 0 {
            return;
        }
        let blocks = if free > 20 { 12 } else { 1 };
        let mut end = file.stat().unwrap().size;
        if free > 20 && end >= u64::from(100 * setup.block_size) {
            (file, end) = (files.next().unwrap(), 0);
        }
        file.write_at(&vec![7; (blocks * setup.block_size) as usize], end).unwrap();
    }
}

/// A volume whose made groups are full, and on it a file `f` with attributes.
fn with_full_groups() -> (Setup, Volume) {
    let mut setup = setup(1024, 16 << 20);
    setup.ag_size = Some(1 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("f", b"content").unwrap();
    volume.session.set_xattr("f", b"user.small", b"x", XattrMode::Set).unwrap();
    fill_made_groups(&volume, &setup);
    (setup, volume)
}

/// Attributes in a group that was never used before showed before the volume said that the group was made: who used it next gave the block
/// to somebody else.
#[test]
fn attributes_in_a_new_group_wait_for_it() {
    let (_, volume) = with_full_groups();
    let set = |session: &Session| session.set_xattr("f", b"user.big", &[b'x'; 600], XattrMode::Set).unwrap();
    volume.states(set).iter().for_each(State::check);
}

/// A directory gave up its last block and got another one in its place, in a group that was never used before. Its size was the same, so names
/// in the new block were taken to last before any pointer led there, and the old names went.
#[test]
fn a_name_in_a_block_that_is_not_mapped_yet_does_not_last() {
    let mut setup = setup(1024, 16 << 20);
    setup.ag_size = Some(1 << 20);
    let volume = Volume::new(&setup);
    let session = &volume.session;
    session.create("other", 0o644).unwrap();
    for i in 0..FILLING {
        session.create(&format!("big{i}"), 0o644).unwrap();
    }
    let long = |i: usize| format!("{i:0>100}");
    for i in 0..5 {
        session.link("other", &long(i)).unwrap();
    }
    session.write("f", b"content").unwrap();
    // The root has one unit in its last block.
    let size = || session.stat("/").unwrap().size;
    let mut count = 5;
    while size() <= 1024 {
        session.link("other", &long(count)).unwrap();
        count += 1;
    }
    assert_eq!(size(), 1024 + 512);
    fill_made_groups(&volume, &setup);
    // The last unit is free, and nothing of it lasts.
    session.unlink(&long(count - 1)).unwrap();
    session.unlink(&long(count - 2)).unwrap();
    let states = volume.states(|session| {
        session.link("other", &long(20)).unwrap();
        assert_eq!(size(), 1024);
        session.rename("f", &long(21), RenameMode::Replace).unwrap();
        assert_eq!(size(), 1024 + 512);
    });
    for state in states {
        state.check();
        let after = state.open(&setup);
        let found = ["f", &long(21)].map(|name| after.session.read(name).ok());
        assert!(found.iter().flatten().any(|content| content == b"content"), "{}: lost", state.what);
    }
}

/// A directory shrank, and power failed when its size had arrived and its block of pointers had not: a block was mapped behind its end. When it
/// grew again that was taken for damage, in the middle of a change.
#[test]
fn a_directory_grows_over_what_is_left_behind_its_end() {
    let setup = setup(512, 8 << 20);
    let volume = volume_with_long_names(&setup, 32, (0..1).chain(27..32));
    for state in volume.states(|session| session.link("other", &long_name(0)).unwrap()) {
        grows_by(&setup, &state, 27..32);
    }
}

/// A name of a directory that leaves room for one more in its unit.
fn long_name(i: usize) -> String {
    format!("d/{i:0>200}")
}

/// A volume with a directory that had so many long names; some of them are gone, which lasts.
fn volume_with_long_names(setup: &Setup, count: usize, gone: impl IntoIterator<Item = usize>) -> Volume {
    let volume = Volume::new(setup);
    let session = &volume.session;
    session.mkdir("d", 0o755).unwrap();
    session.create("other", 0o644).unwrap();
    for i in 0..count {
        session.link("other", &long_name(i)).unwrap();
    }
    volume.fs.sync().unwrap();
    for i in gone {
        session.unlink(&long_name(i)).unwrap();
    }
    volume
}

/// Of a state that power loss has left the directory takes these names, and nothing is damaged.
fn grows_by(setup: &Setup, state: &State, names: std::ops::Range<usize>) {
    state.check();
    let after = state.open(setup);
    for i in names {
        let linked = after.session.link("other", &long_name(i));
        assert!(linked.is_ok(), "{}: {i}: {linked:?}", state.what);
    }
    after.fs.sync().unwrap();
    let devices = Devices::from(Arc::new(after.device.inner().clone_image()));
    drop(after);
    check_usable(&devices).unwrap();
}

/// A directory lost its last block of names, with the block of pointers to it, and got others before anything was written. Power failed when the inode had
/// arrived that leads to the new block of pointers, and what that one leads to had not: the directory had a hole, in which nothing could be looked for.
#[test]
fn a_directory_that_shrank_and_grew_has_no_hole() {
    let setup = setup(512, 8 << 20);
    let volume = volume_with_long_names(&setup, 26, [0, 24, 25]);
    // As many as there were, no more.
    let states = volume.states(|session| (100..103).for_each(|i| session.link("other", &long_name(i)).unwrap()));
    for state in states {
        grows_by(&setup, &state, 200..230);
    }
}

/// A file was cut to nothing and written again, in whole blocks, and another file was synced whose inode lies beside. The inode was written with
/// its new size, and with pointers to the old blocks, since what is in the new ones did not last yet.
#[test]
fn a_file_that_is_written_again_is_old_or_new() {
    let setup = setup(1024, 8 << 20);
    for (blocks, is_beside) in [(2, true), (2, false), (4, true), (4, false)] {
        let volume = Volume::new(&setup);
        volume.session.write("f", vec![b'o'; 3 << 10]).unwrap();
        volume.session.write("beside", b"content").unwrap();
        let states = volume.states(|session| {
            session.write("f", vec![b'n'; blocks << 10]).unwrap();
            let beside = session.open("beside", OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
            beside.write_at(b"other content", 0).unwrap();
            if is_beside {
                beside.sync().unwrap();
            }
        });
        for state in states {
            state.check();
            let found = state.open(&setup).session.read("f").unwrap();
            let is_old = found == vec![b'o'; 3 << 10];
            assert!(is_old || !found.contains(&b'o'), "{}: {} bytes, of both contents", state.what, found.len());
        }
    }
}

/// A file was cut, and power failed when its size had arrived and its block of pointers had not. When it grew again, what had been cut off came
/// back.
#[test]
fn what_was_cut_off_does_not_come_back() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("f", vec![b'x'; 20 << 10]).unwrap();
    let resize = |session: &Session, size: u64| {
        let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
        session.open("f", options).unwrap().truncate(size).unwrap();
    };
    for state in volume.states(|session| resize(session, 14 << 10)) {
        let after = state.open(&setup);
        if after.session.stat("f").unwrap().size != 14 << 10 {
            continue;
        }
        resize(&after.session, 20 << 10);
        let content = after.session.read("f").unwrap();
        assert!(content[14 << 10..].iter().all(|&byte| byte == 0), "{}", state.what);
    }
}

/// A volume on which power was lost in order `softdep` was opened in another one, and closed. From then on nobody knew of its directories' second
/// names, which were taken for damage.
#[test]
fn a_second_name_is_none_in_another_order_either() {
    let setup = setup(1024, 16 << 20);
    let volume = Volume::new(&setup);
    let session = &volume.session;
    session.mkdir("a", 0o755).unwrap();
    session.mkdir("b", 0o755).unwrap();
    session.mkdir("a/x", 0o755).unwrap();
    let mut other = setup.clone();
    other.options.order = Some(Order::None);
    for state in volume.states(|session| session.rename("a/x", "b/y", RenameMode::Replace).unwrap()) {
        let devices = Devices::from(Arc::new(state.image.clone_image()));
        for _ in 0..2 {
            let fs = other.open(devices.clone()).unwrap();
            let session = fs.session(Cred::root());
            for name in ["a/x", "b/y"] {
                let found = session.exists(name);
                assert!(found.is_ok(), "{}: {name}: {found:?}", state.what);
            }
            session.create("changed", 0o644).ok();
            drop(session);
            fs.close().unwrap();
        }
    }
}

/// A file was renamed and got its old name again. Nothing of its inode had changed, so no image of it was made, which should have shown one more link;
/// the names waited for that, until they were let go without.
#[test]
fn a_file_that_gets_its_old_name_again() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.mkdir("d", 0o755).unwrap();
    // Its inode is alone in its block.
    for i in 0..12 {
        volume.session.create(&format!("before{i}"), 0o644).unwrap();
    }
    volume.session.write("f", b"content").unwrap();
    for i in 0..4 {
        volume.session.create(&format!("after{i}"), 0o644).unwrap();
    }
    let states = volume.states(|session| {
        session.rename("f", "d/f", RenameMode::Replace).unwrap();
        session.rename("d/f", "f", RenameMode::Replace).unwrap();
    });
    let forced = volume.fs.counters().into_iter().find(|(name, _)| *name == "soft_forced").unwrap();
    assert_eq!(forced.1, 0);
    for state in states {
        state.check();
        let after = state.open(&setup);
        let found = ["f", "d/f"].map(|name| after.session.read(name).ok());
        assert!(found.iter().flatten().any(|content| content == b"content"), "{}: lost", state.what);
    }
}

/// A damaged bitmap called the place of a file free. The next file was made over it, and the first one's name led to that.
#[test]
fn a_place_that_is_not_empty_is_not_given_away() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("f", b"content").unwrap();
    let ino = Ino(volume.session.stat("f").unwrap().ino);
    volume.fs.close().unwrap();
    let image = volume.device.inner().clone_image();
    let mut block = vec![0; 1024];
    image.read(0, &mut block).unwrap();
    let (geometry, id) = (Superblock::read(&block).geometry(), Superblock::read(&block).header.volume);
    let (table, slot) = geometry.locate(ino).unwrap();
    let ag = geometry.ag_of(table);
    let place = geometry.bit_place(geometry.table_index(table, slot).unwrap());
    let bitmap = geometry.fs_block(ag, AgBlock(geometry.inode_bitmap_start(ag) + place.block));
    image.read(bitmap.0 * 1024, &mut block).unwrap();
    assert_eq!(block[place.byte] >> place.bit & 1, 0, "it is taken");
    block[place.byte] |= 1 << place.bit;
    header::seal_at(&mut block, &id, bitmap, 0);
    image.write(bitmap.0 * 1024, &block).unwrap();
    let after = Volume::open(&setup, image);
    let made = after.session.write("g", b"other");
    assert!(matches!(made, Err(Error::Corrupt(_))), "{made:?}");
    assert_eq!(after.session.read("f").unwrap(), b"content");
}

/// Threads change names while rounds are written, so that what a round shows is not as it is any more. Among others, a name that came back was there twice,
/// and a new directory whose first block had to wait had a size and no block.
#[test]
fn threads_change_names_while_rounds_are_written() {
    let mut setup = setup(1024, 16 << 20);
    setup.options.clock = Clock::System;
    setup.options.background = true;
    setup.options.commit_interval_ms = 5;
    let volume = Volume::new(&setup);
    (0..4).for_each(|d| volume.session.mkdir(&format!("d{d}"), 0o755).map(drop).unwrap());
    volume.fs.sync().unwrap();
    let base = volume.device.inner().clone_image();
    volume.device.take();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = &volume.fs;
            scope.spawn(move || change_names(&fs.session(Cred::root()), &mut Rng::new(thread)));
        }
    });
    volume.fs.sync().unwrap();
    each_window(&base, &volume.device.take(), &mut |durable, window, number| {
        let mut rng = Rng::new(number);
        for percent in [10, 30, 50, 70, 90, 97] {
            let image = durable.clone_image();
            for (at, sector) in window.iter().filter(|_| rng.percent(percent)) {
                image.write(*at, sector).unwrap();
            }
            State { image, what: format!("flush {number}, and {percent} % of what was in flight") }.check();
        }
    });
}

fn change_names(session: &Session, rng: &mut Rng) {
    for _ in 0..700 {
        let mut file = || format!("d{}/f{}", rng.below(4), rng.below(20));
        let (a, b) = (file(), file());
        let mut dir = || format!("d{}/s{}", rng.below(4), rng.below(6));
        let (c, d) = (dir(), dir());
        let done = match rng.below(9) {
            0 => session.write(&a, vec![1; 100 + rng.below(9000) as usize]),
            1 => session.link(&a, &b),
            2 => session.unlink(&a),
            3 => session.mkdir(&c, 0o755).map(drop),
            4 => session.rename(&c, &d, RenameMode::Replace),
            5 => session.rename(&a, &format!("{c}/x{}", rng.below(5)), RenameMode::Replace),
            6 => match rng.below(3) {
                0 => session.rename(&a, &b, RenameMode::Exchange),
                1 => session.rename(&c, &d, RenameMode::Exchange),
                _ => session.rename(&a, &d, RenameMode::Exchange),
            },
            _ => session.rename(&a, &b, RenameMode::Replace),
        };
        assert!(matches!(done, Ok(()) | Err(Error::Refused(_))), "{done:?}");
    }
}

/// A directory could not be read while second names were looked for, and could again later. The directory of which it had such a name was removed, and a file
/// got its number: the name that was left was the file's, and whoever removed it removed the file.
#[test]
fn a_second_name_that_could_not_be_read_is_nobodys() {
    each_second_name(|setup, state| {
        let a = state.open(setup).session.stat("a").unwrap().ino;
        let size = state.image.size();
        let mut unit = [0; UNIT_SIZE];
        let bad = (0..size).step_by(UNIT_SIZE).find(|&at| {
            state.image.read(at, &mut unit).unwrap();
            BlockKind::of(&unit) == Some(BlockKind::LinearEntries) && UnitHeader::read(&unit).owner.get() == a
        });
        let start = bad.expect("the block of a directory") / 1024 * 1024;
        let bad = start..start + 1024;
        let device = worn::Worn::new(Arc::new(state.image.clone_image()), vec![bad]);
        let fs = setup.open(device.clone()).unwrap();
        let session = fs.session(Cred::root());
        let moved = session.stat("b/y").unwrap().ino;
        session.mkdir("other", 0o755).unwrap();
        // Whoever removes a directory waits for the search.
        session.rmdir("other").unwrap();
        assert!(!fs.may_have_second_names());
        device.heal();
        session.rmdir("b/y").unwrap();
        fs.sync().unwrap();
        for i in 0..100 {
            session.write(&format!("f{i}"), b"content").unwrap();
            fs.sync().unwrap();
            assert_ne!(session.stat(&format!("f{i}")).unwrap().ino, moved, "{}", state.what);
        }
        drop(session);
        fs.close().unwrap();
        // The next opening can read it.
        let fs = setup.open(device).unwrap();
        assert!(fs.may_have_second_names(), "{}", state.what);
    });
}

/// Names that a rename has left, one after the other, filled a batch of a listing by themselves: nothing of it was left to show, and that was taken for the end
/// of the directory. A program that copied it left out what came behind, and said nothing.
#[test]
fn a_listing_does_not_end_where_second_names_are() {
    each_second_name(|setup, state| {
        let after = state.open(setup);
        let made = ["one", "two"];
        made.iter().for_each(|name| after.session.write(&format!("a/{name}"), b"content").unwrap());
        assert!(!after.session.exists("a/x").unwrap());
        after.fs.sync().unwrap();
        let mut reader = setup.clone();
        reader.options.read_only = true;
        let beside = Volume::open(&reader, after.device.inner().clone_image());
        for session in [&after.session, &beside.session] {
            let dir = session.stat("a").unwrap().node();
            let mut listed = [Vec::new(), Vec::new()];
            let mut cookie = 0;
            while let Some(entry) = session.read_dir_at(dir, cookie, 1).unwrap().pop() {
                cookie = entry.cookie;
                listed[0].push(entry.name);
            }
            cookie = 0;
            while let Some((entry, stat)) = session.read_dir_plus_at(dir, cookie, 1).unwrap().pop() {
                assert!(stat.is_some());
                cookie = entry.cookie;
                listed[1].push(entry.name);
            }
            for mut names in listed {
                names.sort();
                assert_eq!(names, made.map(|name| name.as_bytes().to_vec()), "{}", state.what);
            }
        }
    });
}

/// A commit of many rounds keeps others out from some round on, and ended without giving back what the last rounds had freed. On a full volume, who
/// wanted space was told that there is none, while 500 blocks waited.
#[test]
fn what_the_last_rounds_free_is_there_at_once() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    let session = &volume.session;
    // Directories that move into each other: each waits for the one that it moves into.
    let dirs: Vec<String> = (0..12).map(|i| format!("d{i}")).collect();
    dirs.iter().for_each(|dir| session.mkdir(dir, 0o755).map(drop).unwrap());
    let big = format!("{}/big", dirs.last().unwrap());
    session.write(&big, vec![b'x'; 500 << 10]).unwrap();
    ["small", "new"].iter().for_each(|name| session.write(name, vec![b'x'; 40 << 10]).unwrap());
    let rest = session.open("rest", OpenOptions::CREATE).unwrap();
    let mut end = 0;
    while let Ok(written @ 1..) = rest.write_at(&[b'x'; 16 << 10], end) {
        end += written as u64;
    }
    session.unlink("small").unwrap();
    volume.fs.sync().unwrap();
    let mut path = dirs[0].clone();
    for dir in &dirs[1..] {
        path = format!("{path}/{dir}");
        session.rename(dir, &path, RenameMode::Replace).unwrap();
    }
    session.rename("new", &format!("{path}/big"), RenameMode::Replace).unwrap();
    let free = volume.fs.statfs().unwrap().free_blocks;
    session.write("last", vec![b'y'; 200 << 10]).unwrap_or_else(|error| panic!("{free} blocks: {error}"));
}
