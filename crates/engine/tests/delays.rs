//! Order `softdep` with changes held back by kind: what is written when, counted on the device. The clock is the test's.

mod recorded;

use myriad_device::{Event, MemoryDevice};
use myriad_engine::{
    Allocation, Clock, Cred, Error, Fs, MountOptions, OpenOptions, Order, RenameMode, XattrMode, options,
};
use myriad_sim::rng::{self, Rng};
use myriad_trials::setup::Setup;
use recorded::{Volume, states};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK: usize = 4096;
const SECOND: i64 = 1_000_000_000;
const ENTRIES: &str = "entries of a linear directory";

/// As FreeBSD holds changes back.
fn setup() -> Setup {
    let mut setup = recorded::setup(Order::Soft, BLOCK as u32, 16 << 20);
    setup.hold_back([30_000, 29_000, 28_000]);
    setup
}

struct Timed {
    setup: Setup,
    volume: Volume,
    now: i64,
}

impl Timed {
    /// A volume with some directories and files, on which everything lasts.
    fn new(setup: Setup) -> Self {
        let volume = Volume::new(&setup);
        for dir in ["first", "other"] {
            volume.session.mkdir(dir, 0o755).unwrap();
            (0..40).for_each(|i| volume.session.write(&format!("{dir}/{i}"), b"content").unwrap());
        }
        volume.fs.sync().unwrap();
        volume.device.take();
        let mut timed = Self { setup, volume, now: 0 };
        timed.set(1000 * SECOND);
        timed
    }

    fn set(&mut self, now: i64) {
        self.now = now;
        self.setup.time.store(now, Ordering::Relaxed);
    }

    /// A second later: kinds of blocks that the visit writes.
    fn visit(&mut self) -> BTreeMap<&'static str, usize> {
        self.set(self.now + SECOND);
        assert!(self.volume.fs.write_due().unwrap());
        self.written()
    }

    /// Kinds of blocks that were written since.
    fn written(&self) -> BTreeMap<&'static str, usize> {
        self.volume.traffic().0
    }

    /// The next visits, and what they write: by the second from now.
    fn visits(&mut self, count: usize) -> BTreeMap<usize, BTreeMap<&'static str, usize>> {
        let all: Vec<_> = (1..=count).map(|second| (second, self.visit())).collect();
        all.into_iter().filter(|(_, blocks)| !blocks.is_empty()).collect()
    }

    /// The volume as it is after a loss of power now.
    fn after_power_loss(&self) -> Volume {
        let image = self.volume.device.inner().clone_image();
        let state = recorded::State { image, what: "power lost".into() };
        state.check();
        state.open(&self.setup)
    }

    fn counter(&self, name: &str) -> u64 {
        recorded::counter(&self.volume.fs, name)
    }
}

/// Metadata, directories and data of a file, each at its time; and all of it lasts then.
#[test]
fn each_kind_has_its_second() {
    let mut timed = Timed::new(setup());
    timed.volume.session.write("first/new", vec![7; 2 * BLOCK]).unwrap();
    let visits = timed.visits(120);
    println!("{visits:?}");
    let seconds_of = |kind: &str| -> Vec<usize> {
        visits.iter().filter(|(_, blocks)| blocks.contains_key(kind)).map(|(&second, _)| second).collect()
    };
    assert_eq!(visits.keys().next(), Some(&28), "{visits:?}");
    assert_eq!(seconds_of("bitmap of inodes"), [28]);
    assert_eq!(seconds_of(ENTRIES), [29]);
    assert_eq!((seconds_of("data"), visits[&30]["data"]), (vec![30], 2));
    assert_eq!(seconds_of("bitmap of blocks"), [30]);
    // The bit and the inode, the pointers of the data.
    assert_eq!(seconds_of("inode table"), [28, 30]);
    let after = timed.after_power_loss();
    assert_eq!(after.session.read("first/new").unwrap(), vec![7; 2 * BLOCK]);
}

/// Behind the closed gate a visit compares what is due, and what has changed since the last one, however much else waits.
#[test]
fn a_visit_looks_at_what_is_due_alone() {
    let compared = |waiting: usize| {
        let mut setup = Setup { size: 64 << 20, ..setup() };
        setup.options.cache_size = 64 << 20;
        let mut timed = Timed::new(setup);
        (0..waiting).for_each(|i| timed.volume.session.mkdir(&format!("d{i}"), 0o755).map(drop).unwrap());
        // With a block that is due go new blocks of inodes. These have been there.
        (0..waiting).for_each(|i| timed.volume.session.create(&format!("d{i}/old"), 0o644).map(drop).unwrap());
        timed.volume.fs.sync().unwrap();
        (0..waiting).for_each(|i| timed.volume.session.unlink(&format!("d{i}/old")).unwrap());
        timed.volume.fs.sync().unwrap();
        timed.volume.session.create("first/due", 0o644).unwrap();
        timed.set(timed.now + 20 * SECOND);
        (0..waiting).for_each(|i| timed.volume.session.create(&format!("d{i}/young"), 0o644).map(drop).unwrap());
        // The bit and the inode are due, and with the first round what has changed is looked at once.
        timed.set(timed.now + 7 * SECOND);
        timed.visit();
        let before = timed.counter("soft_units_compared");
        assert!(before as usize >= waiting, "{before} units for {waiting} names");
        for _ in 0..10 {
            timed.visit();
        }
        assert!(timed.after_power_loss().session.exists("first/due").unwrap());
        assert!(!timed.after_power_loss().session.exists("d0/young").unwrap());
        timed.counter("soft_units_compared") - before
    };
    let (few, many) = (compared(10), compared(600));
    println!("{few} units compared while 10 names wait, {many} while 600 do");
    // Bits and inodes beside those that are due.
    assert!(few > 0 && many <= few + 100, "{few} units, {many} units");
}

/// Files that are created and removed before anything of them is due, among others that stay: nothing of theirs is ever written. Their parent's times
/// are, once.
#[test]
fn files_that_come_and_go_are_never_written() {
    for pairs in [1, 200] {
        let mut timed = Timed::new(setup());
        for pair in 0..pairs {
            let path = format!("first/gone{pair}");
            timed.volume.session.write(&path, vec![1; 3 * BLOCK]).unwrap();
            timed.volume.session.unlink(&path).unwrap();
            if pair % 20 == 19 {
                assert!(timed.visit().is_empty(), "{pair} pairs");
            }
        }
        let mut all: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, blocks) in timed.visits(120) {
            blocks.into_iter().for_each(|(kind, count)| *all.entry(kind).or_default() += count);
        }
        println!("{pairs} pairs: {all:?}");
        for kind in ["data", "bitmap of blocks", "bitmap of inodes", "block pointers", ENTRIES] {
            assert_eq!(all.get(kind), None, "{pairs} pairs: {all:?}");
        }
        assert!(all["inode table"] <= 1, "{pairs} pairs: {all:?}");
        // What is left of it in memory goes with the next sync.
        timed.volume.fs.sync().unwrap();
        timed.after_power_loss();
    }
}

/// Files made one a second are written one a second.
#[test]
fn writes_are_spread() {
    let mut timed = Timed::new(setup());
    let mut by_second = Vec::new();
    for second in 0..90 {
        timed.volume.session.write(&format!("first/f{second}"), vec![3; BLOCK]).unwrap();
        let blocks = timed.visit();
        by_second.push(blocks.get("data").copied().unwrap_or(0));
    }
    assert!(by_second[..29].iter().all(|&count| count == 0), "{by_second:?}");
    assert!(by_second[31..].iter().all(|&count| count == 1), "{by_second:?}");
}

/// Fsync and sync wait for nothing.
#[test]
fn a_sync_takes_what_is_not_due() {
    let mut timed = Timed::new(setup());
    let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let file = timed.volume.session.open("first/synced", options).unwrap();
    file.write_at(&[5; BLOCK], 0).unwrap();
    timed.volume.session.create("other/waits", 0o644).unwrap();
    timed.visit();
    file.sync().unwrap();
    let after = timed.after_power_loss();
    assert_eq!(after.session.read("first/synced").unwrap(), [5; BLOCK]);
    assert!(!after.session.exists("other/waits").unwrap());
    timed.volume.fs.sync().unwrap();
    assert!(timed.after_power_loss().session.exists("other/waits").unwrap());
    // Nothing is left that would be due later, and nothing is written twice.
    timed.written();
    assert_eq!(timed.visits(100), BTreeMap::new());
}

/// A name waits for content that is newer each time it becomes due. What waits for twice the longest delay is written all the same.
#[test]
fn nothing_waits_for_ever() {
    for (allocation, is_overdue) in [(Allocation::Delayed, false), (Allocation::AtWrite, true)] {
        let mut setup = setup();
        setup.options.allocation = allocation;
        let mut timed = Timed::new(setup);
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        timed.volume.session.write("first/victim", b"old").unwrap();
        timed.volume.fs.sync().unwrap();
        let file = timed.volume.session.open("first/victim.new", options).unwrap();
        file.write_at(&[1; BLOCK], 0).unwrap();
        timed.volume.session.rename("first/victim.new", "first/victim", RenameMode::Replace).unwrap();
        let mut replaced_at = None;
        for second in 1..=100_u64 {
            // The file grows all the time.
            file.write_at(&[1; BLOCK], second * BLOCK as u64).unwrap();
            timed.visit();
            let content = timed.after_power_loss().session.read("first/victim").unwrap();
            assert!(content == b"old" || content.len() >= BLOCK, "{} bytes", content.len());
            if content != b"old" && replaced_at.is_none() {
                replaced_at = Some(second);
            }
        }
        let overdue = timed.counter("soft_overdue");
        println!("{allocation:?}: after {replaced_at:?} s, {overdue} visits that wrote everything");
        assert!(replaced_at.is_some_and(|second| second <= 62), "{replaced_at:?}");
        assert_eq!(overdue > 0, is_overdue, "{overdue}");
    }
}

/// Files come all the time, and new blocks of the inode table with them: each file is there half a minute later, though there are always
/// younger ones.
#[test]
fn what_is_due_lasts_while_more_comes() {
    let mut timed = Timed::new(setup());
    for second in 0..80 {
        (0..20).for_each(|i| timed.volume.session.create(&format!("other/s{second}-{i}"), 0o644).map(drop).unwrap());
        timed.visit();
        if second % 10 == 9 {
            let after = timed.after_power_loss();
            let names = recorded::names(&after.session, "other");
            for due in 0..(second - 30).max(0) {
                assert!(names.contains(&format!("s{due}-0")), "second {second}: s{due}-0 is not there");
            }
        }
    }
    assert_eq!(timed.counter("soft_overdue"), 0);
}

/// Two names that are exchanged show together, and no round of a part of what waits does that: once they are due everything is written. It never was, if
/// data was held back until a sync, and nothing in the directories showed that was done later.
#[test]
fn an_exchange_becomes_due() {
    for delays in [[0, 29_000, 28_000], [30_000, 29_000, 28_000]] {
        let mut setup = setup();
        setup.hold_back(delays);
        let mut timed = Timed::new(setup);
        timed.volume.session.write("first/a", b"a").unwrap();
        timed.volume.session.write("other/b", b"b").unwrap();
        timed.volume.fs.sync().unwrap();
        timed.volume.session.rename("first/a", "other/b", RenameMode::Exchange).unwrap();
        let is_exchanged = |timed: &Timed| {
            let after = timed.after_power_loss();
            ["first/a", "other/b"].map(|path| after.session.read(path).unwrap()) == [b"b", b"a"]
        };
        timed.visits(27);
        assert!(!is_exchanged(&timed), "{delays:?}");
        timed.visits(2);
        assert!(is_exchanged(&timed), "{delays:?}");
        assert_eq!(timed.counter("soft_overdue"), 0, "{delays:?}");
        timed.written();
        assert_eq!(timed.visits(100), BTreeMap::new(), "{delays:?}");
    }
}

/// Delay 0 is "until a sync", also of what others wait for.
#[test]
fn a_delay_of_nothing_waits_for_a_sync() {
    let mut timed = Timed::new(setup());
    let changes = options::read_for_tune(["dirdelay=0", "metadelay=2"]).unwrap();
    timed.volume.fs.tune(&changes).unwrap();
    timed.volume.session.create("first/new", 0o644).unwrap();
    timed.volume.session.unlink("first/3").unwrap();
    let visits = timed.visits(1000);
    assert!(visits.values().all(|blocks| !blocks.contains_key(ENTRIES)), "{visits:?}");
    assert_eq!(timed.counter("soft_overdue"), 0);
    assert!(visits.contains_key(&2), "{visits:?}");
    // From now on they are due.
    timed.volume.fs.tune(&options::read_for_tune(["dirdelay=1"]).unwrap()).unwrap();
    assert!(timed.visit().contains_key(ENTRIES));
    let after = timed.after_power_loss();
    assert!(after.session.exists("first/new").unwrap() && !after.session.exists("first/3").unwrap());
}

/// A clock that goes back holds nothing back for longer.
#[test]
fn a_clock_that_goes_back_holds_nothing_back() {
    let mut timed = Timed::new(setup());
    timed.volume.session.write("first/new", b"x").unwrap();
    timed.set(10 * SECOND);
    timed.visit();
    assert_eq!(timed.after_power_loss().session.read("first/new").unwrap(), b"x");
}

/// The delays are for this order only, and say so.
#[test]
fn other_orders_refuse_delays() {
    for order in [Order::Sync, Order::None] {
        let setup = Setup { order, ..recorded::setup(order, BLOCK as u32, 16 << 20) };
        let device = Arc::new(setup.format());
        let with = |options: MountOptions| Fs::open_device(device.clone(), None, options);
        let delayed = MountOptions { dir_delay_ms: Some(5), ..setup.options.clone() };
        let Err(Error::Option(bad)) = with(delayed) else { panic!("it was taken") };
        assert_eq!(bad.option, "dirdelay");
        assert!(bad.reason.contains("order=softdep") && bad.reason.contains(order.name()), "{bad}");
        let fs = with(setup.options.clone()).unwrap();
        for setting in ["filedelay=1", "dirdelay=1", "metadelay=0"] {
            let refused = fs.tune(&options::read_for_tune([setting]).unwrap());
            let Err(Error::Option(bad)) = refused else { panic!("{setting} was taken") };
            assert!(setting.starts_with(bad.option), "{setting}: {bad}");
        }
        assert!(!fs.write_due().unwrap());
        fs.tune(&options::read_for_tune(["filedelay=auto"]).unwrap()).unwrap();
    }
}

/// The background thread visits by itself.
#[test]
fn the_background_thread_visits() {
    let mut setup = setup();
    (setup.options.background, setup.options.clock) = (true, Clock::System);
    setup.hold_back([20, 15, 10]);
    let volume = Volume::open(&setup, setup.format());
    volume.session.write("file", b"content").unwrap();
    let lasts = || {
        let image: MemoryDevice = volume.device.inner().clone_image();
        let state = recorded::State { image, what: "while it is written".into() };
        state.open(&setup).session.read("file").is_ok_and(|content| content == b"content")
    };
    let is_there = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        lasts()
    });
    assert!(is_there, "nothing happened in 10 s");
}

/// A file whose content had been written over in place, and which a rename then put in the place of another one, showed there with what it
/// had before that: names become due before data.
#[test]
fn a_file_shows_in_anothers_place_with_what_was_written_over_it() {
    let mut timed = Timed::new(setup());
    timed.volume.session.write("first/new", [1; BLOCK]).unwrap();
    timed.volume.fs.sync().unwrap();
    let file = timed.volume.session.open("first/new", OpenOptions::READ_WRITE).unwrap();
    file.write_at(&[2; BLOCK], 0).unwrap();
    timed.volume.session.rename("first/new", "first/0", RenameMode::Replace).unwrap();
    let mut last = Vec::new();
    for second in 1..=70 {
        timed.visit();
        last = timed.after_power_loss().session.read("first/0").unwrap();
        assert!(last == b"content" || last == [2; BLOCK], "second {second}: {} bytes of {}", last.len(), last[0]);
    }
    assert!(last == [2; BLOCK]);
}

/// A link lost its target: an attribute took its place in the inode, and showed before the block with the target was written.
#[test]
fn a_link_keeps_its_target_while_an_attribute_takes_its_place() {
    for is_removed in [false, true] {
        let mut timed = Timed::new(setup());
        let (volume, target) = (&timed.volume, [b't'; 28]);
        volume.session.symlink(&target, "first/link").unwrap();
        volume.session.set_xattr("first/0", b"user.x", b"value", XattrMode::Set).unwrap();
        volume.fs.sync().unwrap();
        let node = volume.session.lstat("first/link").unwrap().node();
        volume.session.set_xattr_node(node, b"trusted.x", &[3; 600], XattrMode::Set).unwrap();
        if is_removed {
            volume.session.remove_xattr_node(node, b"trusted.x").unwrap();
        }
        for second in 1..=70 {
            timed.visit();
            let found = timed.after_power_loss().session.readlink("first/link");
            assert_eq!(found.ok().as_deref(), Some(&target[..]), "second {second}");
        }
        let after = timed.after_power_loss();
        let node = after.session.lstat("first/link").unwrap().node();
        assert_eq!(after.session.get_xattr_node(node, b"trusted.x").is_ok(), !is_removed);
    }
}

/// Any operations, with visits at any times, and clocks that jump: what power loss may leave is usable, and has what was synced.
#[test]
fn power_loss_between_visits() {
    let first = rng::seed_or(1);
    for seed in first..first + 6 {
        let mut setup = recorded::setup(Order::Soft, 1024, 4 << 20);
        let mut rng = Rng::new(seed);
        setup.hold_back([(); 3].map(|()| rng.below(8) * 1000));
        let mut timed = Timed::new(setup);
        timed.volume.session.write("synced", b"synced").unwrap();
        timed.volume.fs.sync().unwrap();
        let base = timed.volume.device.inner().clone_image();
        timed.volume.device.take();
        let session = timed.volume.fs.session(Cred::root());
        for number in 0..60 {
            let path = |rng: &mut Rng| format!("{}/f{}", ["first", "other"][rng.index(2)], rng.below(6));
            let (one, two) = (path(&mut rng), path(&mut rng));
            let _ = match rng.below(9) {
                0 | 1 => session.write(&one, vec![number as u8 + 1; 1 + rng.index(6000)]),
                2 => session.create(&one, 0o644).map(drop),
                3 => session.unlink(&one),
                4 => session.rename(&one, &two, RenameMode::Replace),
                5 => session.link(&one, &two),
                6 => session.mkdir(&format!("{one}d"), 0o755).map(drop),
                7 => session.set_xattr(&one, b"user.x", &vec![3; 1 + rng.index(900)], XattrMode::Set),
                _ => session.rmdir(&format!("{one}d")),
            };
            if rng.percent(60) {
                let step = [1, 2, 5, 30, -20][rng.index(5)] * SECOND;
                timed.set(timed.now + step);
                timed.volume.fs.write_due().unwrap();
            }
        }
        let events = timed.volume.device.take();
        assert!(events.iter().any(|event| matches!(event, Event::Write { .. })), "seed {seed}");
        let all = states(&base, &events);
        // Some of very many.
        let step = all.len() / 400 + 1;
        for state in all.into_iter().skip(rng.index(step)).step_by(step) {
            let state = recorded::State { what: format!("seed {seed}: {}", state.what), ..state };
            state.check();
            let after = state.open(&timed.setup);
            assert_eq!(after.session.read("synced").unwrap(), b"synced", "{}", state.what);
        }
    }
}
