//! The same operations on the engine and on `sim::Model`: same answers, same trees, and a checker with nothing to say.

use crate::machine::{Engine, Way};
use crate::setup::{Devices, Setup, let_root_shrink, statfs_but_root};
use crate::table::Row;
use crate::verdict::{catch, check_silent, quietly};
use myriad_engine::{Allocation, DirCache, DirHash, Discard, PlacementPolicy, StatFs};
use myriad_sim::compare::Differ;
use myriad_sim::generate::{self, Profile};
use myriad_sim::model::Model;
use myriad_sim::op::*;
use myriad_sim::rng::Rng;
use myriad_sim::shrink;

/// Steps between two comparisons of the whole tree.
const TREE_EVERY: usize = 250;
/// Steps of a run.
pub const RUN: usize = 5000;
const SHRINK_RUNS: usize = 600;
/// Bytes of the volume.
pub const VOLUME_SIZE: u64 = 512 << 20;

/// A run of [`RUN`] steps on a volume of this row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    pub row: Row,
    pub block_size: u32,
    pub way: Way,
    pub seed: u64,
}

impl Compared {
    const WAYS: [(&str, Way); 3] = [("path", Way::Path), ("node", Way::Node), ("mixed", Way::Mixed)];

    pub fn name(&self) -> String {
        let (way, _) = Self::WAYS.into_iter().find(|(_, way)| *way == self.way).expect("all have names");
        format!("model/{}/{way}/{}", self.block_size, self.seed)
    }

    pub fn named(row: Row, name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.split('/').collect();
        let ["model", block_size, way, seed] = parts[..] else { return None };
        let (_, way) = Self::WAYS.into_iter().find(|(known, _)| *known == way)?;
        let block_size: u32 = block_size.parse().ok()?;
        Some(Self { row, block_size, way, seed: seed.parse().ok()? })
    }

    /// Runs it; a failure comes with the fewest steps that still fail, and the line that replays it.
    pub fn run(&self) -> Result<(), String> {
        let mut setup = Setup::of(self.row, self.block_size, VOLUME_SIZE);
        vary(&mut setup, self.seed);
        let (steps, _) = generate::run(self.seed, RUN, Profile::default());
        let Err(message) = compare(&setup, self.way, &steps) else { return Ok(()) };
        let fails = |steps: &[Step]| compare(&setup, self.way, steps).is_err();
        let small = quietly(|| shrink::shrink(&steps, SHRINK_RUNS, fails));
        let last = quietly(|| compare(&setup, self.way, &small)).err().unwrap_or_default();
        Err(format!(
            "{message}\n{}\nshrunk to {} steps: {last}\n{}",
            self.row.replay_line(&self.name()),
            small.len(),
            shrink::show(&small)
        ))
    }
}

/// Options of a run that its seed decides: what must make no difference.
fn vary(setup: &mut Setup, seed: u64) {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let options = &mut setup.options;
    options.allocation = *rng.pick(&[Allocation::Delayed, Allocation::AtWrite]);
    options.placement = Some(*rng.pick(&[PlacementPolicy::DirPref, PlacementPolicy::Rotor]));
    options.name_cache = rng.percent(70);
    options.background = rng.percent(30);
    options.cache_size = *rng.pick(&[8 << 20, 64 << 20]);
    if rng.percent(30) {
        options.dir_cache = DirCache::Bounded;
        options.dir_cache_size = *rng.pick(&[None, Some(0)]);
    }
    options.discard = if rng.percent(20) { Discard::Always } else { Discard::Never };
    options.discard_piece = 1;
    setup.data_checksums = rng.percent(40)
        && Row { choices: setup.choices, order: setup.order, fragments: setup.fragments }.has_checksums();
    setup.vary_log(&mut rng);
    setup.options.dirhash = DirHash {
        is_on: *rng.pick(&[None, Some(true), Some(false)]),
        // The second is too little for two hashes.
        memory_max: *rng.pick(&[2 << 20, 9 << 10]),
        size_min: *rng.pick(&[0, 1024, 2560]),
        checks: true,
    };
    if rng.percent(50) {
        setup.hold_back([(); 3].map(|()| rng.below(40)));
    }
}

fn look_at_closed(devices: &Devices) {
    if let Err(message) = check_silent(devices) {
        panic!("after closing: {message}");
    }
}

/// Runs the steps on a fresh volume and on the model.
fn compare(setup: &Setup, way: Way, steps: &[Step]) -> Result<(), String> {
    catch(|| {
        let device = setup.format_devices();
        let mut engine = Engine::open(setup, device.clone(), way).map_err(|error| error.to_string())?;
        engine.on_remount = Some(look_at_closed);
        let fresh = settled(&engine)?;
        let mut model = engine.fresh_model().map_err(|error| error.to_string())?;
        let mut differ = Differ::new(setup.rules());
        for (index, step) in steps.iter().enumerate() {
            let at = |message: String| format!("step {index}:\n{}{message}", shrink::show(std::slice::from_ref(step)));
            let got = engine.run(step, model.next_clock()).map_err(|error| at(error.to_string()))?;
            let expected = model.apply(step);
            differ.answer(&model, step, &expected, &got).map_err(at)?;
            compare_named(&mut engine, &model, &mut differ, step).map_err(at)?;
            if index % TREE_EVERY == TREE_EVERY - 1 || index + 1 == steps.len() || step.op == Op::Remount {
                let tree = engine.tree().map_err(|error| at(error.to_string()))?;
                differ.tree(&model, &tree).map_err(at)?;
                engine.check_walk(&tree).map_err(at)?;
            }
        }
        remove_all(&mut engine, &model)?;
        let left = settled(&engine)?;
        match engine.fs().counters().into_iter().find(|(name, _)| *name == "dirhash_mismatches") {
            Some((_, 0)) => {}
            other => return Err(format!("a hash did not say what its directory says: {other:?}")),
        }
        if (left.free_blocks, left.inodes_used, left.directories)
            != (fresh.free_blocks, fresh.inodes_used, fresh.directories)
        {
            return Err(format!("a volume that is empty again is not as it was:\n{fresh:?}\n{left:?}"));
        }
        engine.close().map_err(|error| error.to_string())?;
        check_silent(&device)
    })
}

/// The names of a change as both sides see them now, so that a wrong change is found at once.
fn compare_named(engine: &mut Engine, model: &Model, differ: &mut Differ, step: &Step) -> Result<(), String> {
    if !step.op.is_change() {
        return Ok(());
    }
    for path in step.op.paths() {
        let look = Step { cred: 0, op: Op::Stat { path: path.to_vec(), follow: false } };
        let expected = model.clone().apply(&look);
        let got = engine.run(&look, model.clock()).map_err(|error| error.to_string())?;
        differ.answer(model, &look, &expected, &got).map_err(|message| format!("afterwards, lstat: {message}"))?;
    }
    Ok(())
}

/// Totals once nothing is pending: freed blocks come back when the checkpoint that freed them is done.
pub fn settled(engine: &Engine) -> Result<StatFs, String> {
    let_root_shrink(engine.fs()).map_err(|error| error.to_string())?;
    for _ in 0..2 {
        engine.fs().sync().map_err(|error| error.to_string())?;
    }
    statfs_but_root(engine.fs()).map_err(|error| error.to_string())
}

/// Removes everything but the root, and what hangs on the root itself.
fn remove_all(engine: &mut Engine, model: &Model) -> Result<(), String> {
    let mut run = |op| match engine.run(&Step { cred: 0, op }, model.clock()) {
        Ok(Ok(_)) => Ok(()),
        other => Err(format!("removing everything: {other:?}")),
    };
    for slot in (0..SLOTS).filter(|&slot| model.handle(slot).is_some()) {
        run(Op::Close { slot })?;
    }
    let tree = model.names();
    for entry in tree.iter().filter(|entry| entry.stat.flags != 0) {
        let path = if entry.path.is_empty() { b"/".to_vec() } else { entry.path.clone() };
        run(Op::SetAttr { path, change: Change::Flags(0) })?;
    }
    for name in tree[0].xattrs.keys() {
        run(Op::RemoveXattr { path: b"/".into(), name: name.clone() })?;
    }
    let session = engine.root();
    for entry in tree.iter().filter(|entry| !entry.path.is_empty() && !entry.path.contains(&b'/')) {
        let removed = session.remove_tree(&entry.path, &mut |_| true).map_err(|error| error.to_string())?;
        let inside = |other: &&myriad_sim::compare::TreeEntry| {
            other.path == entry.path || other.path.starts_with(&[&entry.path[..], b"/"].concat())
        };
        let expected = tree.iter().filter(inside).count() as u64;
        if removed != expected {
            return Err(format!("remove_tree says {removed} of {expected}"));
        }
    }
    Ok(())
}
