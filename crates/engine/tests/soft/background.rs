//! What power loss leaves is given back while the volume is in use: a check looks at a held moment, others go on, and then the volume is told
//! what was found.

use super::{State, Volume, each_second_name, names, setup};
use myriad_check::{Online, Options, Report, check, check_moment, number};
use myriad_device::BlockDevice;
use myriad_engine::{Error, Fs, GivenBack, HeldMoment, Keeper, Node, OpenOptions, Order, RenameMode, Session};
use myriad_format::BlockKind;
use myriad_format::unit::UNIT_SIZE;
use myriad_sim::rng::{self, Rng, is_long};
use myriad_trials::setup::Setup;
use myriad_trials::verdict::check_usable;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// A moment of a volume, and what a check of it says.
fn look(fs: &Fs) -> (HeldMoment, Report) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(64 << 20).unwrap();
    let held = fs.hold_moment(file).unwrap();
    let options = Options { threads: 1, leftovers: true, ..Options::default() };
    match check_moment(&held.moment().unwrap(), &options).unwrap() {
        Online::Checked(report) => (held, *report),
        Online::GivenUp(why) => panic!("given up: {why}"),
    }
}

/// Checks, and gives back what was found.
fn give_back(fs: &Fs) -> GivenBack {
    let (held, report) = look(fs);
    assert_eq!(report.damage_count, 0, "{:?}", report.findings);
    fs.give_back(held, &report.leftovers).unwrap()
}

/// Closed, and then looked at without anybody who writes.
fn close_and_check(volume: Volume) -> Report {
    let Volume { device, fs, session } = volume;
    drop(session);
    fs.close().unwrap();
    check(Arc::new(device.inner().clone_image()), None, &Options { threads: 1, ..Options::default() }).unwrap()
}

/// Files, directories and names that come, go and move.
fn story(session: &Session, rng: &mut Rng, steps: u32) {
    let name = |rng: &mut Rng| match rng.below(3) {
        0 => format!("d{}", rng.below(3)),
        1 => format!("f{}", rng.below(12)),
        _ => format!("d{}/f{}", rng.below(3), rng.below(12)),
    };
    for _ in 0..steps {
        let (one, other) = (name(rng), name(rng));
        // Refusals do not matter.
        let _ = match rng.below(10) {
            0..=2 => session.write(&one, vec![b'x'; rng.below(20_000) as usize]),
            3 => session.mkdir(&one, 0o755).map(drop),
            4 => session.link(&one, &other).map(drop),
            5 => session.rename(&one, &other, RenameMode::Replace),
            6 => session.rmdir(&one),
            _ => session.unlink(&one),
        };
    }
}

/// All that can be seen of a tree.
fn tree(session: &Session, path: &str, seen: &mut Vec<(String, u32, Vec<u8>)>) {
    for name in names(session, path) {
        let path = format!("{}/{name}", path.trim_end_matches('/'));
        let stat = session.stat(&path).unwrap();
        match session.read(&path) {
            Ok(content) => seen.push((path, stat.nlink, content)),
            Err(_) => {
                seen.push((path.clone(), stat.nlink, Vec::new()));
                tree(session, &path, seen);
            }
        }
    }
}

/// Remembers which inodes it was told of, as a mount does to have its kernel ask for their attributes again.
#[derive(Default)]
struct Told(Mutex<HashSet<Node>>);

impl Keeper for Told {
    fn hold(&self, _: Node) -> bool {
        false
    }

    fn attributes_changed(&self, _: Node) {}

    fn given_back(&self, node: Node) {
        self.0.lock().unwrap().insert(node);
    }
}

/// Whatever a crash leaves is given back, with others at work between the look and that, and after it the check has nothing to say.
///
/// A mount was not told whose links had become fewer. Its kernel remembered too many; so it kept a file whose last name was removed,
/// as one that has another name, and the file's space did not come back for as long as the kernel had memory to spare.
#[test]
fn all_that_a_crash_leaves_is_given_back_in_use() {
    let seeds = rng::number("MYRIAD_SEED").map_or(1..=if is_long() { 100 } else { 6 }, |seed| seed..=seed);
    let mut all = GivenBack::default();
    for seed in seeds {
        println!("MYRIAD_SEED={seed} replays it");
        let setup = setup(1024, 8 << 20);
        let volume = Volume::new(&setup);
        let mut rng = Rng::new(seed);
        story(&volume.session, &mut rng, 60);
        let states = volume.states(|session| story(session, &mut Rng::new(seed + 100), 25));
        let every = if is_long() { 1 } else { states.len() / 60 + 1 };
        for state in states.into_iter().step_by(every) {
            let given = after(&setup, &state, seed);
            all.blocks += given.blocks;
            all.inodes += given.inodes;
            all.links += given.links;
        }
    }
    assert!(all.blocks > 0 && all.inodes > 0 && all.links > 0, "there was little to be given back: {all:?}");
}

/// Directories were removed while somebody had them open, and power was lost when the inode of one said so on the device, and the names in it were there still.
/// It has no links, and counts those of its directories: a check took that for damage, and the volume was not opened for changes again. And nothing could be
/// removed from it.
#[test]
fn directories_that_were_held_open_when_they_were_removed_are_given_back() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.mkdir("d", 0o755).unwrap();
    (0..5).for_each(|i| volume.session.mkdir(&format!("d/{i}"), 0o755).map(drop).unwrap());
    volume.session.write("d/f", b"content").unwrap();
    let states = volume.states(|session| {
        let held = session.open("d", OpenOptions::READ).unwrap();
        session.unlink("d/f").unwrap();
        (0..5).for_each(|i| session.rmdir(&format!("d/{i}")).unwrap());
        session.rmdir("d").unwrap();
        session.create("g", 0o644).unwrap();
        session.open("g", OpenOptions::READ).unwrap().sync().unwrap();
        drop(held);
    });
    for state in states {
        let volume = state.open(&setup);
        let given = give_back(&volume.fs);
        assert_eq!(given.left, 0, "{}", state.what);
        let report = close_and_check(volume);
        assert_eq!(report.finding_count, 0, "{}: {:?}", state.what, report.findings);
    }
}

fn after(setup: &Setup, state: &State, seed: u64) -> GivenBack {
    let what = &state.what;
    let volume = state.open(setup);
    assert!(volume.fs.has_leftovers(), "{what}");
    let told = Arc::new(Told::default());
    volume.fs.set_keeper(told.clone());
    let mut before = Vec::new();
    tree(&volume.session, "/", &mut before);
    let (held, report) = look(&volume.fs);
    assert_eq!(report.damage_count, 0, "{what}: {:?}", report.findings);
    // What was found is not what is there any more.
    let is_busy = seed % 2 == 0;
    if is_busy {
        story(&volume.session, &mut Rng::new(seed + 200), 40);
        volume.fs.sync().unwrap();
        story(&volume.session, &mut Rng::new(seed + 300), 40);
        before.clear();
        tree(&volume.session, "/", &mut before);
    }
    let mut given = volume.fs.give_back(held, &report.leftovers).unwrap();
    if is_busy && given.left > 0 {
        // What had changed in between is found as it is now.
        given = give_back(&volume.fs);
    }
    assert!(given.left <= report.leftovers.others, "{what}: {given:?} of {:?}", report.leftovers);
    let mut now = Vec::new();
    tree(&volume.session, "/", &mut now);
    // Contents and names are as they were; links are as many as there are names.
    let contents = |all: &[(String, u32, Vec<u8>)]| -> Vec<_> {
        all.iter().map(|(path, _, content)| (path.clone(), content.clone())).collect()
    };
    assert_eq!(contents(&now), contents(&before), "{what}");
    for ((path, links, _), (_, links_before, _)) in now.iter().zip(&before) {
        let node = volume.session.stat(path).unwrap().node();
        assert!(
            links == links_before || told.0.lock().unwrap().contains(&node),
            "{what}: {path} had {links_before} links"
        );
    }
    assert_eq!(volume.fs.has_leftovers(), given.left > 0, "{what}");
    let has_others = given.left > 0;
    let last = close_and_check(volume);
    if !has_others {
        assert_eq!(last.findings, [], "{what}: after {given:?}");
    }
    given
}

/// A directory has a link less once the second name of one in it is taken away, and a mount is told.
#[test]
fn a_mount_is_told_of_the_directory_of_a_second_name() {
    each_second_name(|setup, state| {
        let volume = state.open(setup);
        let told = Arc::new(Told::default());
        volume.fs.set_keeper(told.clone());
        let before = volume.session.stat("a").unwrap();
        // It waits until none is left.
        drop(look(&volume.fs));
        assert_eq!(volume.session.stat("a").unwrap().nlink, before.nlink - 1, "{}", state.what);
        assert!(told.0.lock().unwrap().contains(&before.node()), "{}", state.what);
    });
}

/// Power loss left a directory that nothing names, with a file that was made in it and has another name elsewhere. Its name there goes with the
/// directory, and a link with it. A mount was not told: its kernel went on with one link too many.
#[test]
fn a_mount_is_told_of_a_file_that_had_a_name_in_a_directory_without_one() {
    let setup = setup(512, 8 << 20);
    let volume = Volume::new(&setup);
    let session = &volume.session;
    session.mkdir("d", 0o755).unwrap();
    session.create("other", 0o644).unwrap();
    // The next long name in `d` comes late: it takes a block that a block of pointers leads to.
    for i in 0..28 {
        session.link("other", &format!("d/{i:0>200}")).unwrap();
    }
    // Inodes of its group are there.
    session.mkdir("d/before", 0o755).unwrap();
    let new = format!("d/{:0>220}", "new");
    let mut looked_at = 0;
    let states = volume.states(|session| {
        session.mkdir(&new, 0o755).unwrap();
        session.create(&format!("{new}/f"), 0o644).unwrap();
        session.link(&format!("{new}/f"), "f").unwrap();
    });
    for state in states {
        let volume = state.open(&setup);
        let Ok(before) = volume.session.stat("f") else { continue };
        let (held, report) = look(&volume.fs);
        let links = &report.leftovers.links;
        // The file has no link too many: it has two names.
        let has_two_names = before.nlink == 2 && !links.iter().any(|link| link.ino.0 == before.ino);
        if !has_two_names || !links.iter().any(|link| link.is_nameless) {
            continue;
        }
        looked_at += 1;
        let told = Arc::new(Told::default());
        volume.fs.set_keeper(told.clone());
        volume.fs.give_back(held, &report.leftovers).unwrap();
        assert_eq!(volume.session.stat("f").unwrap().nlink, 1, "{}", state.what);
        assert!(told.0.lock().unwrap().contains(&before.node()), "{}", state.what);
        // Of `d` a block may last that its size does not cover yet.
        let findings = close_and_check(volume).findings;
        assert!(findings.iter().all(|finding| finding.is_leftover), "{}: {findings:?}", state.what);
    }
    assert!(looked_at > 0, "no state has such a directory");
}

/// A file without a name that somebody has open is his, be it never so nameless at the moment.
#[test]
fn an_open_file_without_a_name_is_no_leftover() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("f", b"still read").unwrap();
    let file = volume.session.open("f", OpenOptions { read: true, write: true, ..OpenOptions::default() }).unwrap();
    volume.session.unlink("f").unwrap();
    let (held, report) = look(&volume.fs);
    assert_eq!(report.leftovers.links.len(), 1, "{:?}", report.findings);
    let given = volume.fs.give_back(held, &report.leftovers).unwrap();
    assert_eq!(given, GivenBack::default());
    let mut content = [0; 10];
    file.read_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"still read");
    drop(file);
    assert_eq!(close_and_check(volume).findings, []);
}

/// Knows one node, as a mount knows what its kernel has not forgotten: it holds that once.
struct Knows(Mutex<Option<Node>>);

impl Keeper for Knows {
    fn hold(&self, node: Node) -> bool {
        self.0.lock().unwrap().take_if(|known| *known == node).is_some()
    }

    fn attributes_changed(&self, _: Node) {}

    fn given_back(&self, _: Node) {}
}

/// A crash had left a file with one name and two links. A program opened it on a mount, which makes no handle, and removed its name: a link
/// was left, so nobody asked the mount whether to keep the file. Giving back took that link, and freed the file under the program.
#[test]
fn what_loses_its_last_link_is_kept_for_whoever_holds_it() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.mkdir("d", 0o755).unwrap();
    volume.session.write("f", b"still read").unwrap();
    let mut looked_at = 0;
    for state in volume.states(|session| session.rename("f", "d/g", RenameMode::Replace).unwrap()) {
        for goes_before in [false, true] {
            let Volume { device, fs, session } = state.open(&setup);
            if !session.exists("f").unwrap() || session.stat("f").unwrap().nlink < 2 || session.exists("d/g").unwrap() {
                continue;
            }
            let what = format!("{}, {} the look", state.what, if goes_before { "before" } else { "after" });
            looked_at += 1;
            let node = session.stat("f").unwrap().node();
            fs.set_keeper(Arc::new(Knows(Mutex::new(Some(node)))));
            let remove = || session.unlink("f").unwrap();
            if goes_before {
                remove();
            }
            let (held, report) = look(&fs);
            if !goes_before {
                remove();
            }
            fs.give_back(held, &report.leftovers).unwrap();
            let mut content = [0; 10];
            let opened = session.open_node(node, OpenOptions::READ).unwrap_or_else(|error| panic!("{what}: {error}"));
            opened.read_at(&mut content, 0).unwrap();
            assert_eq!(&content, b"still read", "{what}");
            assert_eq!(opened.stat().unwrap().nlink, 0, "{what}");
            drop(opened);
            fs.release(node);
            assert!(session.stat_node(node).is_err(), "{what}: it is not freed");
            assert_eq!(close_and_check(Volume { device, fs, session }).findings, [], "{what}");
        }
    }
    assert!(looked_at > 1, "no state has links too many");
}

/// Power goes while something is given back: what lasts is as usable as before, and the next check gives back the rest.
#[test]
fn power_may_go_while_it_is_given_back() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    story(&volume.session, &mut Rng::new(3), 60);
    let states = volume.states(|session| story(session, &mut Rng::new(103), 25));
    let mut looked_at = 0;
    for state in states.into_iter().step_by(40) {
        let again = state.open(&setup);
        let mut before = Vec::new();
        tree(&again.session, "/", &mut before);
        let given = std::cell::Cell::new(GivenBack::default());
        let fs = again.fs.clone();
        for second in again.states(|_| given.set(give_back(&fs))).into_iter().step_by(9) {
            second.check();
            let last = second.open(&setup);
            assert!(last.fs.has_leftovers());
            let mut now = Vec::new();
            tree(&last.session, "/", &mut now);
            let shown = |all: &[(String, u32, Vec<u8>)]| -> Vec<_> {
                all.iter().map(|(path, _, content)| (path.clone(), content.clone())).collect()
            };
            assert_eq!(shown(&now), shown(&before), "{} and then {}", state.what, second.what);
            let rest = give_back(&last.fs);
            let report = close_and_check(last);
            assert!(
                rest.left > 0 || report.is_sound(),
                "{} and then {}: {:?}",
                state.what,
                second.what,
                report.findings
            );
            looked_at += 1;
        }
    }
    assert!(looked_at > 20, "{looked_at} states");
}

/// A check in the background found what power loss never leaves. The volume says so until a check has looked at all of it.
#[test]
fn damage_asks_for_a_check() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.session.write("f", b"content").unwrap();
    volume.fs.sync().unwrap();
    // The unit of the inode table that has the root.
    let image = volume.device.inner();
    let mut unit = [0; UNIT_SIZE];
    let offsets = (0..8_u64 << 20).step_by(UNIT_SIZE);
    let at = offsets.into_iter().find(|&at| {
        image.read(at, &mut unit).unwrap();
        BlockKind::of(&unit) == Some(BlockKind::LinearEntries)
    });
    let at = at.expect("the root has an entry");
    unit[100] ^= 1;
    image.write(at, &unit).unwrap();
    let (held, report) = look(&volume.fs);
    assert!(report.damage_count > 0);
    drop(held);
    volume.fs.ask_for_check().unwrap();
    // It goes on being used until it is closed.
    let Volume { device, fs, session } = volume;
    session.write("g", b"more").unwrap();
    drop(session);
    fs.close().unwrap();
    let image = Arc::new(device.inner().clone_image());
    assert!(matches!(setup.open(image.clone()).map(drop), Err(Error::Unchecked)));
    let repaired = check(image.clone(), None, &Options { threads: 1, repair: true, ..Options::default() }).unwrap();
    assert!(repaired.is_sound(), "{:?}", repaired.remaining);
    let fs = setup.open(image.clone()).unwrap();
    assert!(!fs.has_leftovers());
    fs.close().unwrap();
    check_usable(&(image as Arc<dyn BlockDevice>).into()).unwrap();
}

/// Without damage a check lets a volume that asked for one be changed again.
#[test]
fn a_check_that_finds_nothing_is_enough() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.fs.ask_for_check().unwrap();
    let Volume { device, fs, session } = volume;
    drop(session);
    fs.close().unwrap();
    let image = Arc::new(device.inner().clone_image());
    assert!(matches!(setup.open(image.clone()).map(drop), Err(Error::Unchecked)));
    let looked = check(image.clone(), None, &Options { threads: 1, ..Options::default() }).unwrap();
    assert!(looked.is_sound());
    assert!(matches!(setup.open(image.clone()).map(drop), Err(Error::Unchecked)), "a look alone changes nothing");
    check(image.clone(), None, &Options { threads: 1, repair: true, ..Options::default() }).unwrap();
    setup.open(image).unwrap();
}

/// What was left over was given back, and with it went that somebody had asked for a check: the next opening changed a volume known to be damaged.
#[test]
fn a_check_is_asked_for_until_it_has_been_made() {
    let setup = setup(1024, 8 << 20);
    let volume = Volume::new(&setup);
    volume.fs.ask_for_check().unwrap();
    assert_eq!(give_back(&volume.fs).left, 0);
    assert!(volume.fs.has_leftovers());
    let Volume { device, fs, session } = volume;
    drop(session);
    fs.close().unwrap();
    let image = Arc::new(device.inner().clone_image());
    assert!(matches!(setup.open(image).map(drop), Err(Error::Unchecked)));
}

/// Power was lost in order `softdep`, and the volume was opened in order `log`. A check of a moment did not read the log: it found what the opening had
/// found, also when it had been given back since. The second look took a link of a file again, which was its last, and freed blocks that were free.
#[test]
fn what_was_given_back_in_the_log_is_not_found_again() {
    let seeds = rng::number("MYRIAD_SEED").map_or(1..=if is_long() { 40 } else { 2 }, |seed| seed..=seed);
    let mut all = GivenBack::default();
    for seed in seeds {
        println!("MYRIAD_SEED={seed} replays it");
        let mut setup = setup(1024, 8 << 20);
        setup.log_size = Some(512 << 10);
        let volume = Volume::new(&setup);
        story(&volume.session, &mut Rng::new(seed), 60);
        let states = volume.states(|session| story(session, &mut Rng::new(seed + 100), 25));
        setup.options.order = Some(Order::Log);
        let every = if is_long() { 1 } else { states.len() / 60 + 1 };
        for state in states.into_iter().step_by(every) {
            let what = &state.what;
            let volume = state.open(&setup);
            let once = |seed: u64| {
                let (held, report) = look(&volume.fs);
                assert_eq!(report.damage_count, 0, "{what}: {:?}", report.findings);
                // What is free by now is taken.
                story(&volume.session, &mut Rng::new(seed), 20);
                let shown = || {
                    let mut all = Vec::new();
                    tree(&volume.session, "/", &mut all);
                    all.into_iter().map(|(path, _, content)| (path, content)).collect::<Vec<_>>()
                };
                let before = shown();
                let given = volume.fs.give_back(held, &report.leftovers).unwrap();
                assert_eq!(shown(), before, "{what}: after {given:?}");
                given
            };
            let given = once(seed + 200);
            let again = once(seed + 300);
            assert_eq!((again.blocks, again.inodes, again.links), (0, 0, 0), "{what}: after {given:?}");
            all.blocks += given.blocks;
            all.inodes += given.inodes;
            all.links += given.links;
            let last = close_and_check(volume);
            assert!(last.is_sound() || again.left > 0 && last.damage_count == 0, "{what}: {:?}", last.findings);
        }
    }
    assert!(all.blocks > 0 && all.inodes > 0 && all.links > 0, "there was little to be given back: {all:?}");
}

/// Where the superblock at home cannot be read, a copy counts, and that may name an older order: the look passed over the log, and saw the volume as it was
/// when it was opened.
#[test]
fn a_copy_of_the_superblock_does_not_say_which_order_is_in_force() {
    let mut setup = setup(1024, 8 << 20);
    (setup.ag_size, setup.log_size) = (Some(2 << 20), Some(512 << 10));
    setup.options.order = Some(Order::Log);
    let volume = Volume::new(&setup);
    for i in 0..20 {
        volume.session.mkdir(&format!("d{i}"), 0o755).unwrap();
    }
    volume.fs.sync().unwrap();
    volume.device.inner().write(0, &[0; UNIT_SIZE]).unwrap();
    let (_held, report) = look(&volume.fs);
    assert!(report.findings.iter().all(|finding| finding.number == number::SUPERBLOCK), "{:?}", report.findings);
    assert_eq!(report.totals.directories, 21);
}
