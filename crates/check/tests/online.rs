//! A look at a moment is a look at a copy of the device made at that moment, whatever the writer does meanwhile.

mod common;

use common::meddled;
use myriad_check::{FileRange, Online, Options, Report, Scrub, check, check_moment};
use myriad_device::{BlockDevice, MemoryDevice, Moment};
use myriad_engine::{Clock, Cred, Fs, MkfsOptions, MountOptions, OpenOptions, Order, RenameMode, Session, XattrMode};
use myriad_format::choices::PROFILES;
use myriad_format::{BlockHeader, BlockKind};
use myriad_sim::rng::{is_long, number};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

const SIZE: u64 = 24 << 20;
const ROOM: u64 = 64 << 20;

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// The seeds to run, and how to run one again.
fn seeds(count: u64) -> Vec<u64> {
    let count = if is_long() { 20 * count } else { count };
    number("MYRIAD_SEED").map_or_else(|| (1..=count).collect(), |seed| vec![seed])
}

struct Replay(&'static str, u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("replay: MYRIAD_SEED={} cargo test -p myriad-check --test online {}", self.1, self.0);
        }
    }
}

/// One change under a directory; refusals, for want of space too, do not matter.
fn change(session: &Session, top: &str, random: &mut Random) {
    let directory = |random: &mut Random| format!("{top}/d{}", random.below(5));
    let name = |random: &mut Random| {
        let number = random.below(300);
        format!("{}/{}{number}", directory(random), "x".repeat(number as usize % 50))
    };
    let path = name(random);
    let options = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    match random.below(20) {
        0..=6 => {
            // Not what others wrote before: what is found in the wrong place is not right by chance.
            let bytes = vec![random.below(256) as u8; random.below(6000) as usize];
            let _ = session.open(&*path, options).and_then(|file| file.write_at(&bytes, random.below(3) * 8192));
        }
        7 => {
            // So many extents that they need a tree.
            if let Ok(file) = session.open(&*path, options) {
                for index in 0..60 {
                    let _ = file.write_at(b"x", index * 16384);
                    let _ = file.sync_data();
                }
            }
        }
        8..=11 => drop(session.unlink(&*path)),
        12..=13 => drop(session.rename(&*path, &*name(random), RenameMode::Replace)),
        14 => drop(session.link(&*path, &*name(random))),
        15 => drop(session.set_xattr(&*path, b"user.note", &vec![7; random.below(3000) as usize], XattrMode::Set)),
        16 => drop(session.symlink(&vec![b'y'; random.below(300) as usize + 1], &*path)),
        17..=18 => drop(session.mkdir(&*directory(random), 0o755)),
        // Directory, inode and extent blocks by the dozen become something else.
        _ if random.below(4) > 0 => (),
        _ => drop(session.remove_tree(&*directory(random), &mut |_| true)),
    }
}

fn file(room: u64) -> File {
    let path = std::env::temp_dir().join(format!("myriad-online-{}-{:p}", std::process::id(), &room));
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("it has no name");
    file.set_len(room).expect("a size");
    file
}

/// A volume in use, its log on a device of its own or not.
struct Volume {
    device: Arc<MemoryDevice>,
    log: Option<Arc<MemoryDevice>>,
    fs: Fs,
}

fn shared(device: &Arc<MemoryDevice>) -> Arc<dyn BlockDevice> {
    device.clone()
}

impl Volume {
    fn new(block_size: u32, is_log_external: bool, options: MountOptions) -> Self {
        Self::with(MkfsOptions { block_size, ..MkfsOptions::default() }, is_log_external, options)
    }

    fn with(mkfs: MkfsOptions, is_log_external: bool, options: MountOptions) -> Self {
        let device = Arc::new(MemoryDevice::new(SIZE));
        let log = is_log_external.then(|| Arc::new(MemoryDevice::new(256 << 10)));
        let has_log = mkfs.order == Order::Log;
        let mkfs = MkfsOptions {
            ag_size: Some(8 << 20),
            log_size: (has_log && !is_log_external).then_some(256 << 10),
            seed: Some(1),
            ..mkfs
        };
        Fs::format_device(device.clone(), log.as_ref().map(shared), &mkfs).expect("mkfs");
        let fs = Fs::open_device(device.clone(), log.as_ref().map(shared), options).expect("the volume opens");
        Self { device, log, fs }
    }

    fn copy(&self) -> Report {
        let log = self.log.as_ref().map(|log| Arc::new(log.clone_image()) as Arc<dyn BlockDevice>);
        check(Arc::new(self.device.clone_image()), log, &options()).expect("a report")
    }
}

fn options() -> Options<'static> {
    Options { threads: 2, scrub: true, ..Options::default() }
}

/// As much was read as of the copy; what was given back before it was read, has not been compared.
fn assert_same_data(looked: &Report, expected: &Report) {
    let (Scrub { freed_blocks, compared_blocks, .. }, expected) = (looked.scrub.unwrap(), expected.scrub.unwrap());
    assert_eq!(looked.scrub.unwrap().data_blocks, expected.data_blocks);
    if expected.compared_blocks > 0 {
        assert_eq!(compared_blocks + freed_blocks, expected.compared_blocks);
    }
}

/// One thread in all, and the same in every run.
fn quiet() -> MountOptions {
    MountOptions {
        cache_size: 16 << 20,
        commit_interval_ms: 0,
        seed: Some(1),
        background: false,
        clock: Clock::Manual(Arc::default()),
        ..MountOptions::default()
    }
}

/// Looks at moments of a volume that changes at every read; `damage` it before each. Returns how much was changed.
fn beside_changes(volume: &Volume, random: Random, mut damage: impl FnMut(&Volume), moments: u32) -> (u64, u64) {
    let session = volume.fs.session(Cred::root());
    let random = Arc::new(Mutex::new(random));
    for _ in 0..3000 {
        change(&session, "", &mut random.lock().unwrap());
    }
    let (mut changes, mut findings) = (0, 0);
    for _ in 0..moments {
        volume.fs.sync().expect("a sync");
        damage(volume);
        let file = file(ROOM);
        let held = volume.fs.hold_moment(file.try_clone().unwrap()).expect("a moment");
        let expected = volume.copy();
        let (fs, random, session) = (volume.fs.clone(), random.clone(), volume.fs.session(Cred::root()));
        let done = Arc::new(AtomicU64::new(0));
        let count = done.clone();
        let meddle = Arc::new(Mutex::new(move || {
            let random = &mut random.lock().unwrap();
            for _ in 0..20 {
                change(&session, "", random);
                count.fetch_add(1, Relaxed);
            }
            // A damaged volume may have shut down.
            let _ = fs.sync();
        }));
        let meddled = |device| meddled(device, 1, meddle.clone());
        let block_size = volume.fs.info().block_size as usize;
        let log = volume.log.as_ref().map(|log| meddled(log.clone()));
        let moment = Moment::new(file, block_size, meddled(volume.device.clone()), log).expect("a moment");
        let report = match check_moment(&moment, &options()).expect("a report") {
            Online::Checked(report) => report,
            Online::GivenUp(why) => panic!("given up: {why}"),
        };
        drop(held);
        assert_eq!(report.findings, expected.findings);
        assert_eq!((report.finding_count, report.totals), (expected.finding_count, expected.totals));
        assert_same_data(&report, &expected);
        changes += done.load(Relaxed);
        findings += report.finding_count;
    }
    (changes, findings)
}

fn sound(name: &'static str, mkfs: &MkfsOptions, is_log_external: bool) {
    let try_seed = |seed: u64| {
        let _replay = Replay(name, seed);
        let volume = Volume::with(mkfs.clone(), is_log_external, quiet());
        let (changes, findings) = beside_changes(&volume, Random::new(seed), |_| (), 3);
        assert_eq!(findings, 0);
        assert!(changes > 1000, "{changes} changes: the looks were too short to say anything");
        let counters = volume.fs.counters();
        let kept = counters.iter().find(|(name, _)| *name == "before_images").unwrap().1;
        assert!(kept > 100, "{kept} images: nothing was written over");
        volume.fs.clone().close().expect("it closes");
    };
    // Each is one thread's work for long.
    for pair in seeds(2).chunks(2) {
        thread::scope(|scope| pair.iter().for_each(|&seed| drop(scope.spawn(move || try_seed(seed)))));
    }
}

#[test]
fn changes_do_not_show_4k() {
    sound("changes_do_not_show_4k", &MkfsOptions::default(), false);
}

#[test]
fn changes_do_not_show_512() {
    sound("changes_do_not_show_512", &MkfsOptions { block_size: 512, ..MkfsOptions::default() }, false);
}

#[test]
fn changes_do_not_show_log_apart() {
    sound("changes_do_not_show_log_apart", &MkfsOptions::default(), true);
}

/// As `mkfs --profile ffs` makes it: no log, and each block goes straight to its place.
fn ffs(block_size: u32) -> MkfsOptions {
    let profile = PROFILES.iter().find(|profile| profile.name == "ffs").expect("a profile");
    MkfsOptions { choices: profile.choices, order: Order::Soft, block_size, ..MkfsOptions::default() }
}

#[test]
fn changes_do_not_show_softdep() {
    sound("changes_do_not_show_softdep", &ffs(4096), false);
}

#[test]
fn changes_do_not_show_softdep_512() {
    sound("changes_do_not_show_softdep_512", &ffs(512), false);
}

#[test]
fn changes_do_not_show_data_checksums() {
    let mkfs = MkfsOptions { data_checksums: true, ..MkfsOptions::default() };
    sound("changes_do_not_show_data_checksums", &mkfs, false);
}

/// Writes blocks that all begin with `pattern`, and makes them durable; where they are on the device.
fn put(volume: &Volume, path: &str, pattern: &[u8; 8], blocks: usize) -> Vec<u64> {
    let options = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    let file = volume.fs.session(Cred::root()).open(path, options).unwrap();
    file.write_at(&pattern.repeat(blocks * 512), 0).unwrap();
    file.sync().unwrap();
    let mut block = [0; 4096];
    let begins = |&at: &u64| {
        volume.device.read(at, &mut block).unwrap();
        block.starts_with(pattern)
    };
    (0..SIZE).step_by(4096).filter(begins).collect()
}

/// What lies damaged at the moment is named. What nobody has any more when it is read is passed over, be it damaged or
/// something else by now.
#[test]
fn damaged_data_is_named_unless_it_is_gone() {
    let volume = Volume::with(MkfsOptions { data_checksums: true, ..MkfsOptions::default() }, false, quiet());
    let session = volume.fs.session(Cred::root());
    let stays = put(&volume, "/stays", b"stays...", 3);
    let goes = put(&volume, "/goes", b"goes....", 2);
    let shrinks = put(&volume, "/shrinks", b"shrinks.", 4);
    let again = put(&volume, "/again", b"again...", 2);
    for at in [stays[1], goes[0], shrinks[3], again[0]] {
        let mut block = [0; 4096];
        volume.device.read(at, &mut block).unwrap();
        block[77] ^= 4;
        volume.device.write(at, &block).unwrap();
    }
    let held = volume.fs.hold_moment(file(ROOM)).unwrap();
    assert_eq!(volume.copy().scrub.unwrap().damaged_blocks, 4);
    session.unlink("/goes").unwrap();
    let write = |path| session.open(path, OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
    write("/shrinks").truncate(4096).unwrap();
    write("/again").write_at(&[1; 8192], 0).unwrap();
    volume.fs.sync().unwrap();
    // Everything that is free is written over.
    for number in 0.. {
        let options = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
        let filler = session.open(&*format!("/filler {number}"), options);
        let is_full = filler.and_then(|filler| filler.write_at(&[2; 1 << 20], 0)).is_err();
        volume.fs.sync().unwrap();
        if is_full {
            break;
        }
    }
    let Ok(Online::Checked(report)) = check_moment(&held.moment().unwrap(), &options()) else { panic!("no report") };
    let found: Vec<_> = report.findings.into_iter().filter_map(|finding| finding.file).collect();
    assert_eq!(found, [FileRange { path: Some(b"/stays".to_vec()), offset: 4096, length: 4096 }]);
    let Scrub { data_blocks, compared_blocks, damaged_blocks, freed_blocks } = report.scrub.unwrap();
    assert_eq!((data_blocks, compared_blocks, damaged_blocks, freed_blocks), (11, 4, 1, 7));
    drop(held);
    drop(session);
    volume.fs.close().unwrap();
    assert_eq!(check(volume.device, None, &options()).unwrap().finding_count, 1);
}

/// Blocks that every epoch changes hold the log's tail, and go home from an image of their own.
#[test]
fn blocks_that_are_never_left_alone_do_not_show() {
    let volume = Volume::new(4096, false, quiet());
    let session = volume.fs.session(Cred::root());
    session.create("/before", 0o644).unwrap();
    volume.fs.drop_caches().unwrap();
    let held = volume.fs.hold_moment(file(ROOM)).unwrap();
    let expected = volume.copy();
    for number in 0..200 {
        session.create(&*format!("/after {number}"), 0o644).unwrap();
        volume.fs.sync().unwrap();
    }
    let looked = check_moment(&held.moment().unwrap(), &options());
    let Ok(Online::Checked(report)) = looked else { panic!("{looked:?}") };
    assert_eq!((report.findings, report.totals), (vec![], expected.totals));
}

/// The writer has the blocks in its cache, and goes on; some it mends by writing them home. What counts is the device.
#[test]
fn damage_is_found_as_on_a_copy() {
    for seed in seeds(3) {
        let _replay = Replay("damage_is_found_as_on_a_copy", seed);
        let volume = Volume::new(4096, false, quiet());
        let mut random = Random::new(seed ^ 77);
        let damage = |volume: &Volume| {
            let mut block = vec![0; 4096];
            let mut left = 6;
            while left > 0 {
                // The superblock apart, with which everything else would be lost.
                let at = (1 + random.below(SIZE / 4096 - 1)) * 4096;
                volume.device.read(at, &mut block).unwrap();
                let kind = BlockKind::from_magic(BlockHeader::read(&block).magic.get());
                if kind.is_some_and(|kind| kind != BlockKind::Superblock) {
                    let byte = 48 + random.below(4000) as usize;
                    block[byte] ^= 0x40;
                    volume.device.write(at, &block).unwrap();
                    left -= 1;
                }
            }
        };
        let (_, findings) = beside_changes(&volume, Random::new(seed), damage, 3);
        assert!(findings > 0);
    }
}

#[test]
fn threads_change_while_checks_follow_each_other() {
    let log = |block_size, data_checksums| MkfsOptions { block_size, data_checksums, ..MkfsOptions::default() };
    for (seed, mkfs) in [(1, log(4096, false)), (2, log(512, true)), (3, log(4096, true)), (4, ffs(1024))] {
        let (block_size, has_log) = (mkfs.block_size, mkfs.order == Order::Log);
        let options = MountOptions { cache_size: 8 << 20, commit_interval_ms: 20, ..MountOptions::default() };
        let volume = Volume::with(mkfs, false, options);
        let (stop, changes, during) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (stop, changes, session) = (&stop, &changes, volume.fs.session(Cred::root()));
                scope.spawn(move || {
                    let top = format!("/t{thread}");
                    session.mkdir(&*top, 0o755).unwrap();
                    let mut random = Random::new(seed * 100 + thread);
                    while !stop.load(Relaxed) {
                        change(&session, &top, &mut random);
                        changes.fetch_add(1, Relaxed);
                    }
                });
            }
            // Whoever fails must not leave the others running.
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..8 {
                    let enough = changes.load(Relaxed) + 500;
                    while changes.load(Relaxed) < enough {
                        std::thread::yield_now();
                    }
                    let held = volume.fs.hold_moment(file(ROOM)).expect("a moment");
                    let before = changes.load(Relaxed);
                    match check_moment(&held.moment().unwrap(), &self::options()).expect("a report") {
                        // Without a log nothing lists a file that has lost its name and is about to be freed.
                        Online::Checked(report) => {
                            let wrong: Vec<_> =
                                report.findings.iter().filter(|found| has_log || !found.is_leftover).collect();
                            assert!(wrong.is_empty(), "block size {block_size}: {wrong:?}");
                        }
                        Online::GivenUp(why) => panic!("given up: {why}"),
                    }
                    during.fetch_add(changes.load(Relaxed) - before, Relaxed);
                }
            }));
            stop.store(true, Relaxed);
            checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        assert!(during.into_inner() > 0, "nothing was changed during the looks");
        volume.fs.close().expect("it closes");
        assert_eq!(check(volume.device, None, &self::options()).unwrap().findings, []);
    }
}

#[test]
fn a_moment_that_outgrows_its_room_says_nothing() {
    let volume = Volume::new(4096, false, quiet());
    let session = volume.fs.session(Cred::root());
    let mut random = Random::new(9);
    for _ in 0..500 {
        change(&session, "", &mut random);
    }
    let held = volume.fs.hold_moment(file(2 << 20)).expect("a moment");
    let moment = held.moment().unwrap();
    while moment.given_up().unwrap().is_none() {
        for _ in 0..50 {
            change(&session, "", &mut random);
        }
        // Everything goes home.
        volume.fs.drop_caches().unwrap();
    }
    let looked = check_moment(&moment, &options()).expect("no error of the device");
    assert!(
        matches!(&looked, Online::GivenUp(why) if why.contains("more was written over than fits 2 MiB")),
        "{looked:?}"
    );
    // The volume goes on, and so does the next moment.
    drop(held);
    let next = volume.fs.hold_moment(file(ROOM)).expect("a moment");
    assert!(
        matches!(check_moment(&next.moment().unwrap(), &options()), Ok(Online::Checked(report)) if report.is_sound())
    );
}

#[test]
fn one_moment_at_a_time_until_it_is_dropped_or_the_volume_closed() {
    let volume = Volume::new(4096, false, quiet());
    volume.fs.session(Cred::root()).create("/a", 0o644).unwrap();
    let held = volume.fs.hold_moment(file(ROOM)).unwrap();
    let refused = volume.fs.hold_moment(file(ROOM)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("somebody else holds a moment"), "{refused}");
    drop(held);
    let held = volume.fs.hold_moment(file(ROOM)).expect("the first has gone");
    let moment = held.moment().unwrap();
    volume.fs.close().unwrap();
    assert!(matches!(check_moment(&moment, &options()), Ok(Online::GivenUp(why)) if why == "the volume was closed"));

    let device = Arc::new(MemoryDevice::new(SIZE));
    let mkfs = MkfsOptions { order: Order::None, ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    let fs = Fs::open_device(device, None, quiet()).unwrap();
    let refused = fs.hold_moment(file(ROOM)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("without an order of writes"), "{refused}");
}
