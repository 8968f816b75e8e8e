//! Power is lost after every write, and in any order that the device allows; the volume is opened, and the oracle of
//! `sim::crash` judges what is there. Then the checker, and for a sample the recovery is interrupted as well.
//!
//! `MYRIAD_SEED` replays a run; `MYRIAD_LONG=1` makes many more.

mod common;

use common::{Engine, Setup, Way, catch, check_silent, quietly, repair};
use myriad_device::{BlockDevice, CrashImages, Event, MemoryDevice, OverlayDevice, RecordingDevice, Torn, TornSide};
use myriad_engine::{Allocation, Cred, OpenOptions, Order, SetAttr};
use myriad_sim::compare::{Differ, Rules, text};
use myriad_sim::crash::{Found, History};
use myriad_sim::generate::{self, Profile};
use myriad_sim::model::Model;
use myriad_sim::op::*;
use myriad_sim::rng::{self, Rng};
use myriad_sim::shrink;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A run to be crashed: the history for the oracle, and every state the device can have had.
struct Run {
    history: History,
    images: CrashImages,
}

/// One state of the device after losing power.
#[derive(Clone, Debug)]
struct State {
    /// Events that had been issued.
    point: usize,
    /// Unflushed events that arrived, as a mask drawn from this seed; `None`: all.
    subset: Option<Subset>,
}

#[derive(Clone, Debug)]
struct Subset {
    keep: Vec<bool>,
    torn: Option<Torn>,
}

fn setup(block_size: u32, order: Order, seed: u64) -> Setup {
    let mut setup = Setup::new(block_size, 24 << 20);
    setup.order = order;
    setup.options.order = Some(order);
    setup.options.cache_size = 16 << 20;
    // A small log, so that its tail moves and it wraps.
    let least = if seed % 2 == 0 { 1 << 20 } else { 256 << 10 };
    setup.log_size = Some((34 * u64::from(block_size)).max(least));
    setup.options.allocation = if seed % 3 == 0 { Allocation::AtWrite } else { Allocation::Delayed };
    setup
}

/// Runs the steps on a recorded volume, and holds them against the model on the way.
fn record(setup: &Setup, steps: &[Step]) -> Result<Run, String> {
    let device = Arc::new(RecordingDevice::new(setup.format()));
    let base: MemoryDevice = device.inner().clone_image();
    let mut engine = Engine::open(setup, device.clone(), Way::Path).map_err(|error| error.to_string())?;
    let mut history = History::new(engine.fresh_model().map_err(|error| error.to_string())?, 0);
    let mut differ = Differ::new(Rules::from_env());
    for (index, step) in steps.iter().enumerate() {
        let at = |message: String| format!("step {index}:\n{}{message}", shrink::show(std::slice::from_ref(step)));
        let got = engine.run(step, history.model().next_clock()).map_err(|error| at(error.to_string()))?;
        let expected = history.apply(step, device.event_count());
        differ.answer(history.model(), step, &expected, &got).map_err(at)?;
    }
    let trace = device.snapshot();
    // What closing does is recorded no more: the run ends with the power.
    engine.close().map_err(|error| error.to_string())?;
    Ok(Run { history, images: CrashImages::new(Arc::new(base), trace) })
}

/// The states to look at: every prefix; before every flush and at some other points, subsets of what was unflushed, some
/// with a torn write. `limit` bounds each of the two kinds; a longer trace is sampled.
fn states(images: &CrashImages, rng: &mut Rng, limit: usize) -> Vec<State> {
    let points = images.point_max() + 1;
    let stride = points.div_ceil(limit).max(1);
    let mut states: Vec<State> = (0..points).step_by(stride).map(|point| State { point, subset: None }).collect();
    // Before a flush the most is in flight.
    let flushes = (1..points).filter(|&point| images.trace().get(point) == Some(&Event::Flush));
    let mut choices: Vec<usize> = flushes.collect();
    choices.extend((0..points / 8).map(|_| rng.index(points)));
    choices.retain(|&point| !images.unflushed(point).is_empty());
    if choices.is_empty() {
        return states;
    }
    let each = limit.div_ceil(choices.len()).max(1);
    for point in choices {
        let unflushed = images.unflushed(point);
        let count = unflushed.len();
        let all = if count < 16 { (1_usize << count) - 1 } else { usize::MAX };
        // All subsets if there are few, then the same with a torn write each.
        let few = all.saturating_mul(2) < each;
        for sample in 0..each.min(all.saturating_mul(2).saturating_add(2)) {
            let keep: Vec<bool> = match rng.below(5) {
                _ if few => (0..count).map(|bit| sample >> bit & 1 == 1).collect(),
                0 => vec![false; count],
                1 => {
                    let lost = rng.index(count);
                    (0..count).map(|index| index != lost).collect()
                }
                2 => {
                    let kept = rng.index(count);
                    (0..count).map(|index| index == kept).collect()
                }
                _ => (0..count).map(|_| rng.percent(50)).collect(),
            };
            let torn = (if few { sample > all } else { rng.percent(40) }).then(|| {
                let event = unflushed.start + rng.index(count);
                let tears: Vec<usize> = images.tears(event).collect();
                let side = *rng.pick(&[TornSide::Head, TornSide::Tail]);
                (!tears.is_empty()).then(|| Torn { event, at_bytes: *rng.pick(&tears), side })
            });
            states.push(State { point, subset: Some(Subset { keep, torn: torn.flatten() }) });
        }
    }
    states.sort_by_key(|state| state.point);
    states
}

/// Each state's image, in order of points; states that are the same bytes, judged at the same time, come once.
fn each_image(
    run: &Run,
    states: &[State],
    mut look: impl FnMut(&State, OverlayDevice) -> Result<(), String>,
) -> Result<(), String> {
    let mut cursor = run.images.cursor();
    let mut seen = HashSet::new();
    for state in states {
        cursor.advance_to(state.point).map_err(|error| error.to_string())?;
        let unflushed = cursor.unflushed();
        let (arrived, torn): (Vec<usize>, _) = match &state.subset {
            None => (unflushed.collect(), None),
            Some(Subset { keep, torn }) => {
                let kept = unflushed.zip(keep).filter(|(_, kept)| **kept).map(|(index, _)| index);
                (kept.collect(), *torn)
            }
        };
        let torn_key = torn.map(|torn| (torn.event, torn.at_bytes, torn.side == TornSide::Head));
        if !seen.insert((cursor.unflushed().start, arrived, torn_key, run.history.answered(state.point))) {
            continue;
        }
        let image = match &state.subset {
            None => cursor.image(),
            Some(Subset { keep, torn }) => {
                cursor.subset(keep.iter().copied(), *torn).map_err(|error| error.to_string())?
            }
        };
        look(state, image).map_err(|message| format!("state {state:?}: {message}"))?;
    }
    Ok(())
}

/// What an opened volume holds.
fn found(engine: &Engine) -> Result<Found, String> {
    let (tree, contents) = engine.found().map_err(|error| format!("reading the tree: {error}"))?;
    Ok(Found { tree, contents })
}

/// Opens the volume, judges it, closes it, and asks the checker.
fn recover(setup: &Setup, history: &History, point: usize, device: Arc<dyn BlockDevice>) -> Result<(), String> {
    let engine = Engine::open(setup, device.clone(), Way::Path);
    let mut engine = engine.map_err(|error| format!("recovery: {error}"))?;
    history.judge(point, &found(&engine)?)?;
    engine.close().map_err(|error| format!("closing after recovery: {error}"))?;
    check_silent(&device)
}

/// A recovered volume is as good as any: files grow by zeros, and names come and go.
fn go_on(setup: &Setup, device: Arc<dyn BlockDevice>) -> Result<(), String> {
    let mut engine = Engine::open(setup, device.clone(), Way::Path).map_err(|error| error.to_string())?;
    let before = found(&engine)?;
    let session = engine.fs().session(Cred::root());
    let say = |error: myriad_engine::Error| format!("going on after recovery: {error}");
    // The generator may have made the root immutable.
    session.set_attr("/", SetAttr { flags: Some(0), ..SetAttr::default() }).map_err(say)?;
    for entry in before.tree.iter().filter(|entry| entry.stat.kind == Kind::File && entry.stat.flags == 0) {
        let longer = before.contents[&entry.stat.ino].size() + 9000;
        session.set_attr(&entry.path, SetAttr { size: Some(longer), ..SetAttr::default() }).map_err(say)?;
    }
    let after = found(&engine)?;
    for (ino, content) in &before.contents {
        if after.contents[ino].next_nonzero(content.size()).is_some() {
            let entry = before.tree.iter().find(|entry| entry.stat.ino == *ino).expect("it is in the tree");
            return Err(format!("{}: bytes beyond the old end are not zero", text(&entry.path)));
        }
    }
    let options = OpenOptions { write: true, create: true, mode: 0o600, ..OpenOptions::default() };
    for index in 0..40 {
        session.open(&format!("again{index}"), options).and_then(|file| file.write_at(&[1; 5000], 0)).map_err(say)?;
    }
    engine.fs().sync().map_err(say)?;
    for index in 0..40 {
        session.unlink(&format!("again{index}")).map_err(say)?;
    }
    drop(session);
    engine.close().map_err(say)?;
    check_silent(&device)
}

/// Recovery runs on a recorded image and loses power in turn.
fn recover_twice(
    setup: &Setup,
    history: &History,
    point: usize,
    image: &OverlayDevice,
    counter: &AtomicU64,
) -> Result<(), String> {
    let base: Arc<dyn BlockDevice> = Arc::new(image.fork());
    let device = Arc::new(RecordingDevice::new(image.fork()));
    let mut engine = Engine::open(setup, device.clone(), Way::Path).map_err(|error| format!("recovery: {error}"))?;
    // Recovery's home writes may be put off; a sync asks for them.
    engine.fs().sync().map_err(|error| format!("sync after recovery: {error}"))?;
    let trace = device.snapshot();
    engine.close().map_err(|error| error.to_string())?;
    let images = CrashImages::new(base, trace);
    let mut cursor = images.cursor();
    loop {
        for (kind, image) in [("all", cursor.image()), ("flushed", cursor.durable_image())] {
            counter.fetch_add(1, Ordering::Relaxed);
            recover(setup, history, point, Arc::new(image))
                .map_err(|message| format!("recovery cut at event {} ({kind}): {message}", cursor.point()))?;
        }
        if !cursor.advance().map_err(|error| error.to_string())? {
            return Ok(());
        }
    }
}

/// Records the steps and looks at the states that `seed` draws; counts them.
fn crash(setup: &Setup, steps: &[Step], seed: u64, limit: usize, counter: &AtomicU64) -> Result<(), String> {
    catch(|| {
        let run = record(setup, steps)?;
        let mut rng = Rng::new(seed ^ 0xc4a5);
        let states = states(&run.images, &mut rng, limit);
        each_image(&run, &states, |state, image| {
            counter.fetch_add(1, Ordering::Relaxed);
            if rng.percent(10) {
                // The checker replays the log by itself: its opinion on the volume as the crash left it.
                let device: Arc<dyn BlockDevice> = Arc::new(image.fork());
                check_silent(&device).map_err(|message| format!("before recovery: {message}"))?;
            }
            if rng.percent(4) {
                recover_twice(setup, &run.history, state.point, &image, counter)?;
            }
            let device: Arc<dyn BlockDevice> = Arc::new(image);
            recover(setup, &run.history, state.point, device.clone())?;
            if rng.percent(6) { go_on(setup, device) } else { Ok(()) }
        })
    })
}

/// `runs` runs on two threads; a failure is shrunk and replayable.
fn check(
    test: &str,
    order: Order,
    runs: u64,
    look: impl Fn(&Setup, &[Step], u64, &AtomicU64) -> Result<(), String> + Sync,
) {
    const STEPS: usize = 400;
    let runs = if rng::is_long() { runs * 20 } else { runs };
    let first = rng::seed_or(1);
    let runs = if rng::number("MYRIAD_SEED").is_some() { 1 } else { runs };
    let next = AtomicU64::new(first);
    let counter = AtomicU64::new(0);
    let run_one = |seed: u64| {
        let block_size = [4096, 512, 4096, 65536, 1024][seed as usize % 5];
        let setup = setup(block_size, order, seed);
        let (steps, _) = generate::run(seed, STEPS, Profile::crash());
        let Err(message) = look(&setup, &steps, seed, &counter) else { return Ok(()) };
        let again = |steps: &[Step]| look(&setup, steps, seed, &AtomicU64::new(0));
        let small = quietly(|| shrink::shrink(&steps, 150, |steps| again(steps).is_err()));
        let last = quietly(|| again(&small)).err().unwrap_or_default();
        Err(format!(
            "blocks of {block_size}: {message}\n{}\nshrunk to {} steps: {last}\n{}",
            rng::replay_line("myriad-engine", &format!("crash::{test}"), seed, ""),
            small.len(),
            shrink::show(&small)
        ))
    };
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + runs {
                return Ok(());
            }
            if let Err(message) = run_one(seed) {
                next.store(first + runs, Ordering::Relaxed);
                return Err(message);
            }
        }
    };
    let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("panics are caught")).collect()
    });
    println!("{test}: {} states", counter.load(Ordering::Relaxed));
    for outcome in outcomes {
        outcome.unwrap_or_else(|message| panic!("{message}"));
    }
}

/// Order log: a prefix of the operations, each block old, new or zero, check silent.
#[test]
fn log_keeps_a_prefix() {
    check("log_keeps_a_prefix", Order::Log, 80, |setup, steps, seed, counter| crash(setup, steps, seed, 400, counter));
}

/// Order none promises only that check can repair.
#[test]
fn none_can_be_repaired() {
    check("none_can_be_repaired", Order::None, 10, |setup, steps, seed, counter| {
        catch(|| {
            let run = record(setup, steps)?;
            let mut rng = Rng::new(seed ^ 0xc4a5);
            each_image(&run, &states(&run.images, &mut rng, 60), |_, image| {
                counter.fetch_add(1, Ordering::Relaxed);
                let device: Arc<dyn BlockDevice> = Arc::new(image);
                repair(&device)?;
                // What is there can be read.
                let mut engine = Engine::open(setup, device.clone(), Way::Path).map_err(|error| error.to_string())?;
                found(&engine)?;
                engine.close().map_err(|error| error.to_string())?;
                check_silent(&device)
            })
        })
    });
}

/// The enumeration itself: on a trace made by hand, every prefix, every subset of the little that is unflushed, and torn
/// writes come, each once.
#[test]
fn states_cover_prefixes_subsets_and_tears() {
    const BLOCK: usize = 4096;
    let device = RecordingDevice::new(MemoryDevice::new(1 << 20));
    let base = device.inner().clone_image();
    for index in 0..9_u8 {
        device.write(u64::from(index) * BLOCK as u64, &[index + 1; BLOCK]).unwrap();
        if index % 3 == 2 {
            device.flush().unwrap();
        }
    }
    let images = CrashImages::new(Arc::new(base), device.take());
    let run = Run { history: History::new(Model::new(0), 0), images };
    let mut rng = Rng::new(1);
    let states = states(&run.images, &mut rng, 400);
    let mut seen = HashSet::new();
    let mut torn = 0;
    each_image(&run, &states, |_, image| {
        let mut bytes = vec![0; 9 * BLOCK];
        image.read(0, &mut bytes).unwrap();
        let is_torn = bytes.chunks(BLOCK).any(|block| block.iter().any(|&byte| byte != block[0]));
        torn += usize::from(is_torn);
        // Which blocks arrived; what was flushed before a later write must have.
        let arrived: Vec<bool> = bytes.chunks(BLOCK).map(|block| block[0] != 0 && block[BLOCK - 1] != 0).collect();
        let touched: Vec<bool> = bytes.chunks(BLOCK).map(|block| block.iter().any(|&byte| byte != 0)).collect();
        for group in 0..3 {
            if touched[(group + 1) * 3..].contains(&true) {
                assert!(arrived[..(group + 1) * 3].iter().all(|&there| there), "{arrived:?}");
            }
        }
        if !is_torn {
            seen.insert(arrived);
        }
        Ok(())
    })
    .unwrap();
    // Three groups of three writes: all subsets of each, of which the full one is the next group's empty one.
    assert_eq!(seen.len(), 3 * 7 + 1);
    assert!(torn > 20, "{torn} torn states");
}
