//! The kinds of directories: what each promises beyond what every directory does.

mod btree;
mod linear;
mod slots;

use myriad_device::MemoryDevice;
use myriad_engine::{Cred, Fs, Node, Session};
use myriad_sim::generate::{self, Profile};
use myriad_sim::rng;
use myriad_trials::crash::base::Base;
use myriad_trials::crash::explore::{Depth, Explorer};
use myriad_trials::crash::known::{Counts, Known};
use myriad_trials::crash::plan::Bounds;
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_silent;
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
