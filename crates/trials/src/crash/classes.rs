//! Which runs there are, by class. A run is named `amount/class/shape/rest` and can be made again from its name, on the volumes of
//! a row of the table of trials.

use super::base::Base;
use super::explore::Depth;
use super::plan::Bounds;
use crate::setup::Setup;
use crate::table::{Promise, Row};
use myriad_engine::{Allocation, DirHash, Discard, SyncMode};
use myriad_sim::generate::{self, Generator, Profile};
use myriad_sim::op::{Op, OpenHow, Step};
use myriad_sim::rng::Rng;
use myriad_sim::sequences::{self, Part};
use std::cell::RefCell;
use std::rc::Rc;

/// A class of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Sequences of one, two and three operations.
    One,
    Two,
    Three,
    /// Long random runs.
    Random,
    /// Random runs on a small volume that is old and almost full.
    Aged,
    /// Long random runs without a log: what check must repair.
    Unordered,
}

impl Class {
    pub const ALL: [Self; 6] = [Self::One, Self::Two, Self::Three, Self::Random, Self::Aged, Self::Unordered];

    /// The classes whose runs are made on volumes that promise this.
    pub fn of(promise: Promise) -> &'static [Self] {
        match promise {
            Promise::Prefix | Promise::Usable | Promise::Returned => {
                &[Self::One, Self::Two, Self::Three, Self::Random, Self::Aged]
            }
            Promise::Repair => &[Self::Unordered],
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Two => "two",
            Self::Three => "three",
            Self::Random => "random",
            Self::Aged => "aged",
            Self::Unordered => "unordered",
        }
    }

    pub fn sentence(self) -> &'static str {
        match self {
            Self::One => "sequences of one operation, all",
            Self::Two => "sequences of two operations",
            Self::Three => "sequences of three operations, sampled",
            Self::Random => "long random runs",
            Self::Aged => "random runs on an old, almost full volume",
            Self::Unordered => "random runs without a log, repaired",
        }
    }
}

/// Where the log lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    Inside,
    /// In order `softdep`, which has no log: changes are held back.
    Apart,
    /// As inside, and file data has checksums; in order `sync`, which can have none, it is durable when a write returns.
    Summed,
}

impl Shape {
    pub(crate) const ALL: [Self; 3] = [Self::Inside, Self::Apart, Self::Summed];

    /// The shape of a run that its seed describes.
    pub(crate) fn of_seed(seed: u64) -> Self {
        match seed % 4 {
            1 => Self::Summed,
            3 => Self::Apart,
            _ => Self::Inside,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Inside => "inside",
            Self::Apart => "apart",
            Self::Summed => "summed",
        }
    }
}

/// One run: what its name says, and the volumes that it is made on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunId {
    pub row: Row,
    /// How closely its states are looked at.
    pub amount: Amount,
    pub class: Class,
    pub shape: Shape,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Parts(Vec<Part>),
    Seed(u64),
}

impl RunId {
    pub fn name(&self) -> String {
        let what = match &self.what {
            What::Parts(parts) => parts.iter().map(|part| part.name()).collect::<Vec<_>>().join("/"),
            What::Seed(seed) => seed.to_string(),
        };
        format!("{}/{}/{}/{what}", self.amount.name(), self.class.name(), self.shape.name())
    }

    /// The run of this name on volumes of this row.
    pub fn named(row: Row, name: &str) -> Option<Self> {
        let mut parts = name.split('/');
        let amount = parts.next()?;
        let amount = Amount::ALL.into_iter().find(|known| known.name() == amount)?;
        let class = parts.next()?;
        let class = Class::of(Promise::of(row.order)).iter().copied().find(|known| known.name() == class)?;
        let shape = parts.next()?;
        let shape = Shape::ALL.into_iter().find(|known| known.name() == shape)?;
        let rest: Vec<&str> = parts.collect();
        let what = match (class, &rest[..]) {
            (Class::One | Class::Two | Class::Three, parts) => {
                What::Parts(parts.iter().map(|part| Part::named(part)).collect::<Option<_>>()?)
            }
            (_, [seed]) => What::Seed(seed.parse().ok()?),
            _ => return None,
        };
        Some(Self { row, amount, class, shape, what })
    }

    /// What the states drawn depend on.
    pub(super) fn seed(&self) -> u64 {
        match &self.what {
            What::Seed(seed) => *seed,
            What::Parts(parts) => {
                parts.iter().fold(1, |seed, part| seed * 1_000_003 + (part.operation * 16 + part.persistence) as u64)
            }
        }
    }
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// What tests do always on volumes that are not the default's: there may be many rows of these.
    Brief,
    /// What tests do always.
    Short,
    Long,
}

impl Amount {
    const ALL: [Self; 3] = [Self::Brief, Self::Short, Self::Long];

    /// How much of these a row gets.
    pub fn of(self, row: &Row) -> Self {
        if self == Self::Short && *row != Row::default() { Self::Brief } else { self }
    }

    /// So much of something, by how much is done.
    pub(crate) fn pick<T>(self, brief: T, short: T, long: T) -> T {
        match self {
            Self::Brief => brief,
            Self::Short => short,
            Self::Long => long,
        }
    }

    /// In the names of runs.
    fn name(self) -> &'static str {
        match self {
            Self::Brief => "brief",
            Self::Short => "ci",
            Self::Long => "long",
        }
    }
}

/// How many sequences there are of a class, of which `runs` takes all or some.
pub fn sequence_count(class: Class) -> Option<u64> {
    let parts = Part::COUNT as u64;
    match class {
        Class::One => Some(parts),
        Class::Two => Some(parts.pow(2)),
        Class::Three => Some(parts.pow(3)),
        _ => None,
    }
}

/// The runs of a class on volumes of a row.
pub fn runs(row: Row, class: Class, amount: Amount) -> Vec<RunId> {
    let long = amount == Amount::Long;
    let id = |shape, what| RunId { row, amount, class, shape, what };
    let seeds =
        |count: u64| -> Vec<RunId> { (1..=count).map(|seed| id(Shape::of_seed(seed), What::Seed(seed))).collect() };
    let each = |parts: Vec<Part>| Shape::ALL.map(|shape| id(shape, What::Parts(parts.clone())));
    let mut rng = Rng::new(17);
    let mut any = || Part::nth(rng.index(Part::COUNT));
    match class {
        Class::One if amount == Amount::Brief => {
            let shape = |one: usize| Shape::ALL[one % Shape::ALL.len()];
            (0..Part::COUNT).map(|one| id(shape(one), What::Parts(vec![Part::nth(one)]))).collect()
        }
        Class::One => (0..Part::COUNT).flat_map(|one| each(vec![Part::nth(one)])).collect(),
        Class::Two if long => {
            let pairs = (0..Part::COUNT).flat_map(|one| (0..Part::COUNT).map(move |two| (one, two)));
            pairs.flat_map(|(one, two)| each(vec![Part::nth(one), Part::nth(two)])).collect()
        }
        Class::Two => (0..amount.pick(60, 1000, 0)).flat_map(|_| each(vec![any(), any()])).collect(),
        Class::Three => (0..amount.pick(15, 250, 27_000)).flat_map(|_| each(vec![any(), any(), any()])).collect(),
        Class::Random => seeds(amount.pick(2, 24, 1600)),
        Class::Aged => seeds(amount.pick(1, 4, 200)),
        Class::Unordered => seeds(amount.pick(3, 6, 100)),
    }
}

const FEW: Bounds = Bounds { all_up_to: 2, sampled: 1, tears: 1, scattered: 1 };

/// How closely its states are looked at.
pub(super) fn depth(run: &RunId) -> Depth {
    let long = run.amount == Amount::Long;
    let bounds = match run.class {
        Class::One | Class::Two | Class::Three => {
            Bounds { all_up_to: if long { 8 } else { 5 }, sampled: 16, tears: if long { 24 } else { 6 }, scattered: 4 }
        }
        Class::Random | Class::Aged if long => Bounds { all_up_to: 6, sampled: 16, tears: 8, scattered: 8 },
        Class::Random | Class::Aged => Bounds { all_up_to: 4, sampled: 4, tears: 2, scattered: 3 },
        Class::Unordered => Bounds { all_up_to: 2, sampled: 1, tears: 1, scattered: 1 },
    };
    // A repair writes more than a recovery, and its states are few.
    let again_percent = if run.class == Class::Unordered { 10 } else { 2 };
    // Of the states of one operation, which are few, more are worked on: some things show only then, such as bytes behind the end of a file.
    let continue_percent = if run.class == Class::One { 12 } else { 3 };
    Depth { bounds, again: FEW, again_percent, before_percent: 10, continue_percent }
}

/// Smallest log of blocks up to 4 KiB.
const LEAST_LOG: u64 = 140 << 10;

/// A small volume with the least log there is: its tail moves and it wraps.
pub(crate) fn small(row: Row, shape: Shape) -> Setup {
    const BLOCK: u32 = 1024;
    let mut setup = Setup::of(row, BLOCK, 1 << 20);
    setup.ag_size = Some(512 << 10);
    setup.log_size = Some(LEAST_LOG);
    setup.log_device_size = (shape == Shape::Apart).then_some(LEAST_LOG);
    take_shape(&mut setup, row, shape);
    if shape == Shape::Apart {
        setup.hold_back([3, 2, 1]);
    }
    setup.options.cache_size = 1 << 20;
    setup.options.name_cache = false;
    setup
}

fn take_shape(setup: &mut Setup, row: Row, shape: Shape) {
    if matches!(Promise::of(row.order), Promise::Usable | Promise::Returned) && shape != Shape::Inside {
        // These orders use no log; a third of their volumes has one all the same, which every opening and every check reads.
        (setup.log_size, setup.log_device_size) = (Some(0), None);
    }
    setup.data_checksums = shape == Shape::Summed && row.has_checksums();
    if shape == Shape::Summed {
        setup.options.sync_mode = SyncMode::All;
    }
}

fn random_setup(row: Row, shape: Shape, seed: u64) -> Setup {
    // Each by itself, so that any two values meet; sizes in turn, so that few seeds see them all.
    let mut rng = Rng::new(seed ^ 0x005e_7095);
    let sizes = [(1024, 4 << 20), (4096, 16 << 20), (512, 4 << 20), (4096, 24 << 20), (65536, 48 << 20)];
    let (block_size, size) = sizes[(seed % 5) as usize];
    let mut setup = Setup::of(row, block_size, size);
    setup.options.cache_size = 4 << 20;
    // Hashes over directories are in memory only: they make no difference.
    setup.options.dirhash = DirHash { is_on: *rng.pick(&[None, Some(true)]), size_min: 0, ..DirHash::default() };
    // The least log there is has to move its tail all the time.
    let log_size = (34 * u64::from(block_size)).max(*rng.pick(&[LEAST_LOG, 256 << 10, 1 << 20]));
    setup.log_size = Some(log_size);
    setup.log_device_size = (shape == Shape::Apart).then_some(log_size);
    take_shape(&mut setup, row, shape);
    setup.options.discard = if rng.percent(43) { Discard::Always } else { Discard::Never };
    // Any block, or such as are several.
    setup.options.discard_piece = *rng.pick(&[1, 16 << 10]);
    // An operation takes a millisecond.
    let delays = [None, Some([30, 29, 28]), Some([3, 9, 20]), Some([5, 0, 2]), Some([1, 20, 5])];
    if let Some(delays) = *rng.pick(&delays) {
        setup.hold_back(delays);
    }
    setup.options.allocation = if rng.percent(33) { Allocation::AtWrite } else { Allocation::Delayed };
    setup
}

/// Fills the volume, and frees a part of it again in places: little is free, and that in pieces.
fn aging(seed: u64) -> Vec<Step> {
    let mut rng = Rng::new(seed ^ 0xa6ed);
    let mut steps = Vec::new();
    let how = OpenHow { write: true, create: true, mode: 0o644, ..OpenHow::default() };
    let step = |op| Step { cred: 0, op };
    let path = |number: u32| format!("old{}/f{number}", number % 4).into_bytes();
    for dir in 0..4 {
        steps.push(step(Op::Mkdir { path: format!("old{dir}").into_bytes(), mode: 0o755 }));
    }
    let mut alive: Vec<u32> = Vec::new();
    for number in 0..240 {
        steps.push(step(Op::Open { slot: 0, path: path(number), how }));
        steps.push(step(Op::Write { slot: 0, offset: 0, len: 500 + rng.index(9000), tag: 10_000 + number }));
        alive.push(number);
        if number % 8 == 0 {
            steps.push(step(Op::Sync));
        }
        if number > 80 && rng.percent(60) {
            let victim = alive.swap_remove(rng.index(alive.len()));
            steps.push(step(Op::Unlink { path: path(victim) }));
        }
    }
    for _ in 0..14 {
        let victim = alive.swap_remove(rng.index(alive.len()));
        steps.push(step(Op::Unlink { path: path(victim) }));
    }
    steps.push(step(Op::Close { slot: 0 }));
    steps.push(step(Op::Sync));
    steps
}

/// A volume that sequences start from.
type Made = ((Row, Shape), Rc<Base>);

/// The volume a run starts from. Those of sequences are made once a thread, for a clock belongs to a volume.
pub(super) fn with_base<T>(id: &RunId, run: impl FnOnce(&Base) -> Result<T, String>) -> Result<T, String> {
    match (id.class, &id.what) {
        (Class::One | Class::Two | Class::Three, _) => {
            thread_local! {
                static BASES: RefCell<Vec<Made>> = const { RefCell::new(Vec::new()) };
            }
            let key = (id.row, id.shape);
            let known = |bases: &Vec<Made>| bases.iter().find(|(known, _)| *known == key).map(|(_, base)| base.clone());
            let base = match BASES.with_borrow(known) {
                Some(base) => base,
                None => {
                    let base = Rc::new(Base::new(small(id.row, id.shape), &sequences::prelude())?);
                    BASES.with_borrow_mut(|bases| bases.push((key, base.clone())));
                    base
                }
            };
            run(&base)
        }
        (class, what) => {
            let What::Seed(seed) = what else { return Err("this class has seeds".into()) };
            let setup = match class {
                Class::Aged => small(id.row, id.shape),
                _ => random_setup(id.row, id.shape, *seed),
            };
            let before = if class == Class::Aged { aging(*seed) } else { Vec::new() };
            run(&Base::new(setup, &before)?)
        }
    }
}

/// What a run does.
pub(super) fn steps(id: &RunId, base: &Base) -> Vec<Step> {
    match (&id.what, id.class) {
        (What::Parts(parts), _) => sequences::steps(parts),
        (What::Seed(seed), Class::Aged) => {
            // About as many files as there are: each that comes finds its room where another went.
            let profile = Profile { inodes_max: base.model.inode_count(), burst_every: 0, ..Profile::crash() };
            let (mut generator, mut model) = (Generator::new(*seed, profile), base.model.clone());
            let next = |_| {
                let step = generator.next(&model);
                let _ = model.apply(&step);
                step
            };
            (0..250).map(next).collect()
        }
        (What::Seed(seed), _) => generate::run(*seed, 400, Profile::crash()).0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table;
    use myriad_engine::Order;
    use std::collections::HashSet;

    /// Shape, hashes of directories and discards came from the same bit of the seed, and block size, log and delays from the same remainder: most
    /// of their combinations never met, however many seeds there were.
    #[test]
    fn what_a_seed_draws_is_drawn_apart() {
        let row = Row { order: Order::Soft, ..Row::default() };
        let drawn = |seed| {
            let setup = random_setup(row, Shape::of_seed(seed), seed);
            let options = &setup.options;
            [
                format!("shape {:?}", Shape::of_seed(seed)),
                format!("blocks of {} in {}", setup.block_size, setup.size),
                format!("hashes {:?}", options.dirhash.is_on),
                format!("discard {:?}", options.discard),
                format!("pieces of {}", options.discard_piece),
                format!("delays {:?}", options.file_delay_ms),
                format!("allocation {:?}", options.allocation),
            ]
        };
        let all: Vec<_> = (1..=1600).map(drawn).collect();
        for one in 0..all[0].len() {
            for other in one + 1..all[0].len() {
                let values = |index: usize| all.iter().map(|drawn| &drawn[index]).collect::<HashSet<_>>();
                let pairs: HashSet<_> = all.iter().map(|drawn| (&drawn[one], &drawn[other])).collect();
                let (ones, others) = (values(one), values(other));
                assert_eq!(pairs.len(), ones.len() * others.len(), "{ones:?} and {others:?}");
            }
        }
    }

    /// A long run replayed in the short form looked at other states, and one of the short form in the long one.
    #[test]
    fn a_name_is_that_of_one_run() {
        for row in table::rows() {
            for class in Class::of(Promise::of(row.order)) {
                for amount in Amount::ALL {
                    let all = runs(row, *class, amount);
                    for run in all.iter().step_by(all.len() / 20 + 1) {
                        assert_eq!(RunId::named(row, &run.name()).as_ref(), Some(run));
                    }
                }
            }
        }
        assert_eq!(RunId::named(Row::default(), "one/inside/create+none"), None);
        assert_eq!(RunId::named(Row::default(), "ci/unordered/inside/2"), None);
    }
}
