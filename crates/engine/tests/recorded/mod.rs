//! Volumes of profile ffs whose writes are recorded, and the states that power loss can leave of them.

#![allow(dead_code)] // each suite uses its part

use myriad_device::{BlockDevice, Event, MemoryDevice, RecordingDevice};
use myriad_engine::{Clock, Cred, Fs, Order, Session};
use myriad_format::BlockKind;
use myriad_format::choices::PROFILES;
use myriad_sim::rng::Rng;
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::table::Row;
use myriad_trials::verdict::check_usable;
use std::collections::BTreeMap;
use std::sync::Arc;

const SECTOR: usize = 512;

/// Sectors, by the offset of each.
pub type Sectors = BTreeMap<u64, Vec<u8>>;

pub fn setup(order: Order, block_size: u32, size: u64) -> Setup {
    let ffs = PROFILES.iter().find(|profile| profile.name == "ffs").expect("a profile of the table");
    Setup::of(Row { choices: ffs.choices, order, fragments: 1 }, block_size, size)
}

/// The engine's counter of this name.
pub fn counter(fs: &Fs, name: &str) -> u64 {
    fs.counters().into_iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Kinds of the blocks that were written at once, and data.
pub fn kinds(bytes: &[u8], block_size: usize) -> impl Iterator<Item = &'static str> {
    bytes.chunks(block_size).map(|block| BlockKind::of(block).map_or("data", BlockKind::name))
}

/// An open volume whose writes are recorded.
pub struct Volume {
    pub device: Arc<RecordingDevice<MemoryDevice>>,
    pub fs: Fs,
    pub session: Session,
}

impl Volume {
    pub fn open(setup: &Setup, image: MemoryDevice) -> Self {
        let device = Arc::new(RecordingDevice::new(image));
        let fs = setup.open(device.clone()).unwrap();
        let session = fs.session(Cred::root());
        Self { device, fs, session }
    }

    pub fn new(setup: &Setup) -> Self {
        Self::open(setup, setup.format())
    }

    /// Kinds of blocks that were written since, and flushes.
    pub fn traffic(&self) -> (BTreeMap<&'static str, usize>, usize) {
        let block_size = self.fs.info().block_size as usize;
        let (mut blocks, mut flushes) = (BTreeMap::new(), 0);
        for event in self.device.take() {
            match event {
                Event::Write { bytes, .. } => {
                    kinds(&bytes, block_size).for_each(|kind| *blocks.entry(kind).or_default() += 1)
                }
                Event::Flush => flushes += 1,
                Event::Discard { .. } => {}
            }
        }
        (blocks, flushes)
    }

    /// Does `work` on what is durable, syncs, and returns the states that power loss can leave in between.
    pub fn states(&self, work: impl FnOnce(&Session)) -> Vec<State> {
        self.fs.sync().unwrap();
        let base = self.device.inner().clone_image();
        self.device.take();
        work(&self.session);
        self.fs.sync().unwrap();
        states(&base, &self.device.take())
    }
}

/// An image that power loss may leave.
pub struct State {
    pub image: MemoryDevice,
    /// Flushes before it, and the sectors that arrived since.
    pub what: String,
}

impl State {
    pub fn check(&self) {
        let devices = Devices::from(Arc::new(self.image.clone_image()));
        check_usable(&devices).unwrap_or_else(|error| panic!("{}: {error}", self.what));
    }

    pub fn open(&self, setup: &Setup) -> Volume {
        Volume::open(setup, self.image.clone_image())
    }
}

/// Hands on what was durable before each flush, the sectors in flight then, and the number of the flush.
pub fn each_window(base: &MemoryDevice, events: &[Event], look: &mut dyn FnMut(&MemoryDevice, &Sectors, u64)) {
    let durable = base.clone_image();
    let mut window = Sectors::new();
    let mut flushes = 0;
    for event in events.iter().chain([&Event::Flush]) {
        match event {
            Event::Write { offset, bytes } => {
                let sectors = bytes.chunks(SECTOR).enumerate();
                window.extend(sectors.map(|(index, sector)| (offset + (index * SECTOR) as u64, sector.to_vec())));
            }
            Event::Flush => {
                let mut old = vec![0; SECTOR];
                window.retain(|&at, new| {
                    durable.read(at, &mut old).unwrap();
                    old != *new
                });
                look(&durable, &window, flushes);
                window.iter().for_each(|(&at, sector)| durable.write(at, sector).unwrap());
                window.clear();
                flushes += 1;
            }
            Event::Discard { .. } => {}
        }
    }
}

/// All subsets of few sectors, some of many.
pub fn states(base: &MemoryDevice, events: &[Event]) -> Vec<State> {
    let (mut states, mut rng) = (Vec::new(), Rng::new(1));
    each_window(base, events, &mut |durable, window, flushes| {
        let count = window.len();
        let mut masks: Vec<Vec<bool>> = Vec::new();
        if count <= 9 {
            masks.extend((0..1_u32 << count).map(|mask| (0..count).map(|i| mask >> i & 1 == 1).collect()));
        } else {
            for one in 0..count {
                masks.push((0..count).map(|i| i == one).collect());
                masks.push((0..count).map(|i| i != one).collect());
            }
            masks.extend((0..100).map(|_| (0..count).map(|_| rng.percent(50)).collect()));
        }
        for mask in masks {
            let image = durable.clone_image();
            let mut sectors = Vec::new();
            for ((&at, sector), _) in window.iter().zip(mask).filter(|(_, arrived)| *arrived) {
                image.write(at, sector).unwrap();
                sectors.push(at / SECTOR as u64);
            }
            states.push(State { image, what: format!("flush {flushes}, and sectors {sectors:?}") });
        }
    });
    states
}

pub fn names(session: &Session, path: &str) -> Vec<String> {
    let mut names: Vec<String> = session
        .read_dir(path)
        .unwrap()
        .map(|entry| String::from_utf8_lossy(&entry.unwrap().name).into_owned())
        .filter(|name| name != "." && name != "..")
        .collect();
    names.sort();
    names
}

/// Three threads work on a volume with three directories, `d0` to `d2`, and power is lost so many times while they do. `look` is given what
/// each thread says, how many events there were until then, the state that is left, and the volume opened from it.
pub fn lose_power_beside<T: Send>(
    mut setup: Setup,
    (seed, times): (u64, u32),
    work: impl Fn(&Volume, u64) -> T + Sync,
    look: impl Fn(&[T], usize, &State, &Volume),
) {
    setup.options.clock = Clock::System;
    let volume = Volume::new(&setup);
    (0..3).for_each(|d| volume.session.mkdir(&format!("d{d}"), 0o755).map(drop).unwrap());
    volume.fs.sync().unwrap();
    let base = volume.device.inner().clone_image();
    volume.device.take();
    let (volume, work) = (&volume, &work);
    let said: Vec<T> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || work(volume, thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let events = volume.device.snapshot();
    println!("seed {seed}, {} events", events.len());
    let mut rng = Rng::new(seed);
    for _ in 0..times {
        let point = 1 + rng.index(events.len());
        let state = cut(&base, &events[..point], &mut rng);
        state.check();
        look(&said, point, &state, &state.open(&setup));
    }
}

/// What was flushed among the events, and any sectors of the rest.
pub fn cut(base: &MemoryDevice, events: &[Event], rng: &mut Rng) -> State {
    let image = base.clone_image();
    let flushed = events.iter().rposition(|event| *event == Event::Flush).map_or(0, |at| at + 1);
    for (index, event) in events.iter().enumerate() {
        let Event::Write { offset, bytes } = event else { continue };
        for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
            if index < flushed || rng.percent(50) {
                image.write(offset + (sector * SECTOR) as u64, bytes).unwrap();
            }
        }
    }
    State { image, what: format!("{} events", events.len()) }
}
