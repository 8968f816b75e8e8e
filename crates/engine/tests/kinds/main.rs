//! The kinds of directories: what each promises beyond what every directory does.

mod btree;
mod linear;
mod slots;

use myriad_device::MemoryDevice;
use myriad_engine::{Cred, Fs, Node, RenameMode, Session};
use myriad_sim::generate::{self, Profile};
use myriad_sim::rng::{self, Rng};
use myriad_trials::crash::base::Base;
use myriad_trials::crash::explore::{Depth, Explorer};
use myriad_trials::crash::known::{Counts, Known};
use myriad_trials::crash::plan::Bounds;
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_silent;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A volume with a directory `d`, and a file to be linked into it.
struct Volume {
    memory: Arc<MemoryDevice>,
    fs: Fs,
    session: Session,
    dir: Node,
    file: Node,
}

impl Volume {
    fn new(setup: &Setup) -> Self {
        Self::on(setup, setup.format())
    }

    fn on(setup: &Setup, device: MemoryDevice) -> Self {
        let memory = Arc::new(device);
        let fs = setup.open(Devices::from(memory.clone())).unwrap();
        let session = fs.session(Cred::root());
        let dir = session.mkdir("d", 0o755).unwrap();
        let file = session.create("f", 0o644).unwrap();
        Self { memory, fs, session, dir, file }
    }

    fn devices(&self) -> Devices {
        Devices::from(self.memory.clone())
    }

    fn link(&self, name: &[u8]) {
        self.session.link_at(self.file, self.dir, name).unwrap();
    }

    fn unlink(&self, name: &[u8]) {
        self.session.unlink_at(self.dir, name).unwrap();
    }

    /// Up to `max` entries from a cookie on: names and the cookies behind them.
    fn list(&self, cookie: u64, max: usize) -> Vec<(Vec<u8>, u64)> {
        let entries = self.session.read_dir_at(self.dir, cookie, max).unwrap();
        entries.into_iter().map(|entry| (entry.name, entry.cookie)).collect()
    }

    fn list_all(&self) -> Vec<(Vec<u8>, u64)> {
        let mut all: Vec<(Vec<u8>, u64)> = Vec::new();
        loop {
            let more = self.list(all.last().map_or(0, |(_, cookie)| *cookie), 50);
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }

    /// Any entry can be the one to go on from, and gives what came behind it. All names and cookies.
    fn assert_goes_on_from_any_entry(&self) -> Vec<(Vec<u8>, u64)> {
        let all = self.list_all();
        for (index, (_, cookie)) in all.iter().enumerate() {
            let rest = self.list(*cookie, usize::MAX);
            assert_eq!(rest, all[index + 1..].to_vec());
        }
        // What no listing gave is no reason for more than nothing, or some of it.
        for cookie in [1 << 62, u64::MAX, u64::MAX >> 1, 5, 77 << 32] {
            let rest = self.list(cookie, usize::MAX);
            assert!(all.ends_with(&rest), "{cookie}");
        }
        all
    }

    /// Some of `count` names are found and others are not, from the cache and from the device; a listing has all of them.
    fn assert_finds(&self, count: u32, name: impl Fn(u32) -> Vec<u8>) {
        for round in 0..2 {
            for i in [0, count / 2, count - 1, 5] {
                assert!(self.session.lookup(self.dir, &name(i)).is_ok());
            }
            assert!(self.session.lookup(self.dir, b"absent").is_err());
            if round == 0 {
                self.fs.drop_caches().unwrap();
            }
        }
        assert_eq!(self.list_all().len(), count as usize);
    }

    fn names(&self) -> BTreeSet<Vec<u8>> {
        self.list_all().into_iter().map(|(name, _)| name).collect()
    }

    fn rename(&self, from: &[u8], to: &[u8]) {
        let path = |name: &[u8]| [b"d/", name].concat();
        self.session.rename(&path(from), &path(to), RenameMode::NoReplace).unwrap();
    }

    fn count(&self, name: &str) -> u64 {
        self.fs.counters().into_iter().find(|(other, _)| *other == name).map(|(_, count)| count).unwrap()
    }

    fn close(self) {
        let devices = self.devices();
        drop(self.session);
        self.fs.close().unwrap();
        check_silent(&devices).unwrap();
    }
}

fn name(i: u32) -> Vec<u8> {
    format!("{i:08}").into_bytes()
}

/// While somebody lists a directory by a few entries at a time, others make, remove and rename names in it. Who is there all the time is
/// listed once. The names that there are in the end, of so many at first, `longer` bytes longer than three at most.
fn list_while_it_changes(volume: &Volume, seed: u64, count: usize, longer: usize) -> BTreeSet<Vec<u8>> {
    let mut rng = Rng::new(rng::seed_or(seed));
    let random_name = |rng: &mut Rng| {
        let mut name = format!("{}-", rng.below(400)).into_bytes();
        name.resize(3 + rng.index(longer), b'x');
        name
    };
    let mut names = BTreeSet::new();
    for _ in 0..count {
        let name = random_name(&mut rng);
        if names.insert(name.clone()) {
            volume.link(&name);
        }
    }
    for round in 0..60 {
        let mut throughout = names.clone();
        let mut listed: Vec<Vec<u8>> = Vec::new();
        let mut cookie = 0;
        let batch = 1 + round % 7;
        loop {
            let entries = volume.list(cookie, batch);
            let Some((_, last)) = entries.last() else { break };
            assert!(*last < 1 << 62 && *last > cookie);
            cookie = *last;
            listed.extend(entries.into_iter().map(|(name, _)| name));
            for _ in 0..rng.below(6) {
                let name = random_name(&mut rng);
                let other = names.iter().nth(rng.index(names.len().max(1))).cloned().unwrap_or_default();
                match rng.below(5) {
                    0 | 1 if names.insert(name.clone()) => volume.link(&name),
                    2 | 3 if names.remove(&other) => {
                        throughout.remove(&other);
                        volume.unlink(&other);
                    }
                    _ if names.contains(&other) && names.insert(name.clone()) => {
                        volume.rename(&other, &name);
                        names.remove(&other);
                        throughout.remove(&other);
                    }
                    _ => {}
                }
            }
        }
        for name in &throughout {
            let count = listed.iter().filter(|other| *other == name).count();
            assert_eq!(count, 1, "round {round}: {}", name.escape_ascii());
        }
    }
    assert_eq!(volume.names(), names);
    names
}

/// Names of a directory that has more blocks than the smallest cache has frames are found while the log holds what the blocks do not, and
/// without leave to write.
fn what_the_log_holds_is_found(mut setup: Setup, count: u32, name: impl Fn(u32) -> Vec<u8>) {
    setup.options.cache_size = 0;
    let volume = Volume::new(&setup);
    let changed = |i: u32| format!("changed{i}").into_bytes();
    for i in 0..count {
        volume.link(&name(i));
    }
    volume.fs.sync().unwrap();
    for i in (0..count).step_by(30) {
        volume.rename(&name(i), &changed(i));
    }
    volume.fs.sync().unwrap();
    // As if power were lost here.
    let crashed = volume.memory.clone_image();
    volume.close();
    for read_only in [true, false] {
        setup.options.read_only = read_only;
        let fs = setup.open(Arc::new(crashed.clone_image())).unwrap();
        let session = fs.session(Cred::root());
        let dir = session.stat("d").unwrap().node();
        for i in (0..count).step_by(30) {
            assert!(session.lookup(dir, &changed(i)).is_ok(), "{i}");
            assert!(session.lookup(dir, &name(i)).is_err(), "{i}");
        }
        let listed: BTreeSet<Vec<u8>> = session.read_dir("d").unwrap().map(|entry| entry.unwrap().name).collect();
        assert_eq!(listed.len(), count as usize);
        drop(session);
        fs.close().unwrap();
    }
}

/// Every state that losing power may leave in runs of random operations is recovered to one that the oracle accepts. `kind` makes the
/// set-up of a run of its seed.
fn lose_power(kind: &str, bursts: &Profile, setup: impl Fn(u32, u64, u64) -> Setup) {
    let depth = Depth {
        bounds: Bounds { all_up_to: 4, sampled: 4, tears: 2, scattered: 3 },
        again: Bounds { all_up_to: 2, sampled: 1, tears: 1, scattered: 1 },
        again_percent: 2,
        before_percent: 10,
        continue_percent: 3,
    };
    let first = rng::seed_or(1);
    let runs = if rng::is_long() { 60 } else { 6 };
    let mut distinct = 0;
    for seed in first..first + runs {
        let (block_size, size) = [(512, 4 << 20), (4096, 16 << 20), (1024, 4 << 20)][seed as usize % 3];
        let mut setup = setup(block_size, size, seed);
        setup.options.cache_size = 4 << 20;
        setup.options.name_cache = seed % 2 == 0;
        setup.log_size = Some((34 * u64::from(block_size)).max(256 << 10));
        let base = Base::new(setup, &[]).unwrap();
        let (judged, contents, counts) = (Known::default(), Known::default(), Counts::default());
        let explorer = Explorer { depth, judged: &judged, contents: &contents, counts: &counts };
        let (steps, _) = generate::run(seed, 300, bursts.clone());
        if let Err(message) = explorer.explore(&base, &steps, seed) {
            let test = format!("{kind}::power_may_be_lost_at_any_time");
            panic!("{message}\n{}", rng::replay_line("myriad-engine", &test, seed, ""));
        }
        distinct += counts.distinct();
    }
    assert!(distinct > 100 * runs, "{distinct}");
}
