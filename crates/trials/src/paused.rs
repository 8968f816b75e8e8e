//! A checkpoint held in the middle while other threads go on working, and then power is lost.
//!
//! ```text
//! threads 0, 1   ops, ops                 ops, ops, ops                  ops
//! syncing                  sync --- held at its nth request ---- let go      sync
//! ```
//!
//! Each thread works in a directory of its own, so what may be found there is a prefix of its own operations, no older
//! than those that had been answered when a sync began that has been answered: `sim::crash` judges each by itself. The
//! order in which the threads get along is the host's, so a failure need not come again with the same seed, and what it
//! shrinks to failed at least once; the states made of a trace are the same for the same trace.

use crate::crash::base::Base;
use crate::crash::classes::{Shape, small};
use crate::crash::known::{Counts, Known};
use crate::crash::plan::{self, Bounds};
use crate::crash::trace::Trace;
use crate::machine::{Engine, Way};
use crate::setup::{Devices, Setup};
use crate::table::{Promise, Row};
use crate::verdict::{catch, check_silent, quietly};
use myriad_device::{FaultOp, OverlayDevice, PausingDevice, RecordingDevice};
use myriad_engine::Fs;
use myriad_sim::compare::{Differ, Rules};
use myriad_sim::crash::{Found, History};
use myriad_sim::errno::Errno;
use myriad_sim::generate::{Generator, Profile};
use myriad_sim::model::Model;
use myriad_sim::op::*;
use myriad_sim::rng::Rng;
use myriad_sim::shrink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const THREADS: usize = 2;
/// Operations of each thread before, beside and after the checkpoint that is held.
const BEFORE: usize = 40;
const BESIDE: usize = 30;
const AFTER: usize = 10;
/// How long operations may go on beside a held checkpoint before it is let go: some may have to wait for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs that shrinking a failure may take: threads wait for each other in each.
const SHRINK_RUNS: usize = 60;

const BOUNDS: Bounds = Bounds { all_up_to: 4, sampled: 6, tears: 3, scattered: 3 };

type Device = PausingDevice<RecordingDevice<OverlayDevice>>;

/// A checkpoint that is held: at its `nth` request of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    pub row: Row,
    pub seed: u64,
    pub op: FaultOp,
    pub nth: u64,
}

impl Hold {
    const OPS: [(&str, FaultOp); 2] = [("write", FaultOp::Write), ("flush", FaultOp::Flush)];

    pub fn name(&self) -> String {
        let (op, _) = Self::OPS.into_iter().find(|(_, op)| *op == self.op).expect("a checkpoint writes and flushes");
        format!("held/{}/{op}/{}", self.seed, self.nth)
    }

    pub fn named(row: Row, name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.split('/').collect();
        let ["held", seed, op, nth] = parts[..] else { return None };
        let (_, op) = Self::OPS.into_iter().find(|(name, _)| *name == op)?;
        holds(&row).then_some(Self { row, seed: seed.parse().ok()?, op, nth: nth.parse().ok()? })
    }

    /// Holds it, and loses power.
    pub fn run(&self) -> Result<(), String> {
        let looked = Looked { contents: &Known::default(), counts: &Counts::default(), judge: recover };
        self.attempt(&base(self.row, self.seed)?, &script(self.seed), &looked).map(drop)
    }

    /// As [`hold`]; a failure comes shrunk, with the line that replays it.
    fn attempt(&self, base: &Base, all: &[Timed], looked: &Looked<'_>) -> Result<u64, String> {
        let go = |steps: &[Timed], looked: &Looked<'_>| {
            let mut requests = 0;
            catch(|| hold(base, steps, self, looked).map(|seen| requests = seen)).map(|()| requests)
        };
        let message = match go(all, looked) {
            Ok(requests) => return Ok(requests),
            Err(message) => message,
        };
        let (contents, counts) = (Known::default(), Counts::default());
        let again = |steps: &[Timed]| go(steps, &Looked { contents: &contents, counts: &counts, judge: looked.judge });
        let small = quietly(|| shrink::shrink(all, SHRINK_RUNS, |steps| again(steps).is_err()));
        let last = quietly(|| again(&small)).err().unwrap_or_else(|| "does not fail each time".into());
        Err(format!(
            "held at {:?} {}: {message}\n{}\nshrunk to {} steps: {last}\n{}",
            self.op,
            self.nth,
            self.row.replay_line(&self.name()),
            small.len(),
            small.iter().map(Timed::show).collect::<String>()
        ))
    }
}

/// When a step comes: before the checkpoint that is held, beside it, or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    Beside,
    After,
}

/// A step of one of the threads.
#[derive(Clone)]
struct Timed {
    when: When,
    thread: usize,
    step: Step,
}

impl Timed {
    fn show(&self) -> String {
        let step = shrink::show(std::slice::from_ref(&self.step));
        format!("    {:?}, thread {}:{}", self.when, self.thread, step.trim_start_matches("   "))
    }
}

/// What all threads do.
fn script(seed: u64) -> Vec<Timed> {
    let profile =
        Profile { confined: true, sync_percent: 0, burst_every: 60, burst_max: 30, flags: false, ..Profile::crash() };
    let mut script = Vec::new();
    for thread in 0..THREADS {
        let mut generator = Generator::new(seed * 10 + thread as u64, profile.clone());
        let mut model = Model::new(0);
        for (when, count) in [(When::Before, BEFORE), (When::Beside, BESIDE), (When::After, AFTER)] {
            for _ in 0..count {
                let mut step = generator.next(&model);
                // A synced write would wait for the checkpoint that is held.
                if let Op::Open { how, .. } = &mut step.op {
                    how.sync = false;
                }
                let _ = model.apply(&step);
                script.push(Timed { when, thread, step });
            }
        }
    }
    script
}

/// One thread's view: its directory, and what may be found there.
struct Worker<'a> {
    thread: usize,
    script: &'a [Timed],
    engine: Engine,
    history: History,
    differ: Differ,
    device: Arc<Device>,
}

fn dir(thread: usize) -> String {
    format!("t{thread}")
}

/// Whether volumes of this row have checkpoints, of which something is promised.
pub fn holds(row: &Row) -> bool {
    Promise::of(row.order) == Promise::Prefix
}

fn setup(row: Row, seed: u64) -> Setup {
    let mut setup = small(row, if seed % 2 == 0 { Shape::Summed } else { Shape::Inside });
    setup.size = 4 << 20;
    setup.ag_size = Some(1 << 20);
    setup
}

impl Worker<'_> {
    fn run(&mut self, when: When) -> Result<(), String> {
        let own = self.script.iter().filter(|timed| (timed.when, timed.thread) == (when, self.thread));
        for Timed { step, .. } in own {
            let at = |message: String| format!("{}{message}", shrink::show(std::slice::from_ref(step)));
            let got = self.engine.run(step, 0).map_err(|error| at(error.to_string()))?;
            let expected = self.history.apply(step, self.device.inner().event_count());
            // The model's root is a directory like others here, which refuses for other reasons.
            let is_root = |path: &[u8]| path.split(|&byte| byte == b'/').all(|part| part.is_empty() || part == b".");
            let names_root = step.op.paths().iter().any(|path| is_root(path)) || expected == Err(Errno::BUSY);
            if !(names_root && expected.is_err() && got.is_err()) {
                self.differ.answer(self.history.model(), step, &expected, &got).map_err(at)?;
            }
        }
        Ok(())
    }
}

/// Syncs; what each thread had been answered when it began is durable from here on.
fn sync(fs: &Fs, device: &Device, begun: [usize; THREADS], workers: &mut [Worker<'_>]) -> Result<(), String> {
    fs.sync().map_err(|error| error.to_string())?;
    let point = device.inner().event_count();
    workers.iter_mut().zip(begun).for_each(|(worker, index)| worker.history.promise(index, point));
    Ok(())
}

/// Holds the checkpoint while these steps are done. Answers the requests that it makes of that kind: beyond those nothing
/// is held, and nothing is looked at.
fn hold(base: &Base, script: &[Timed], Hold { seed, op, nth, .. }: &Hold, looked: &Looked<'_>) -> Result<u64, String> {
    let (seed, op, nth) = (*seed, *op, *nth);
    let main = base.devices().main;
    let recording = RecordingDevice::new(OverlayDevice::new(main.clone()));
    let device = Arc::new(PausingDevice::new(recording));
    let devices = Devices::from(device.clone());
    let fs = base.setup.open(devices.clone()).map_err(|error| error.to_string())?;
    let mut workers: Vec<Worker<'_>> = (0..THREADS)
        .map(|thread| {
            let mut history = History::new(Model::new(0), 0);
            history.checkpoints_beside();
            Worker {
                thread,
                script,
                engine: Engine::on(&base.setup, devices.clone(), fs.clone(), Way::Path, dir(thread).as_bytes()),
                history,
                differ: Differ::new(Rules { times: false, ..base.setup.rules() }),
                device: device.clone(),
            }
        })
        .collect();
    workers.iter_mut().try_for_each(|worker| worker.run(When::Before))?;

    let begun: [usize; THREADS] = std::array::from_fn(|thread| workers[thread].history.len());
    let before = device.seen(op);
    device.pause_at(op, nth);
    let is_over = AtomicBool::new(false);
    let mut held = false;
    let (synced, worked) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            let synced = fs.sync().map_err(|error| error.to_string());
            let point = device.inner().event_count();
            is_over.store(true, Ordering::Release);
            synced.map(|()| (point, device.seen(op)))
        });
        held = device.wait_until_held(|| is_over.load(Ordering::Acquire));
        let (done, waiting) = std::sync::mpsc::channel();
        let working: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let done = done.clone();
                scope.spawn(move || {
                    let result = worker.run(When::Beside);
                    // Nobody listens any more if it took long.
                    let _ = done.send(());
                    result
                })
            })
            .collect();
        for _ in 0..THREADS {
            if waiting.recv_timeout(PATIENCE).is_err() {
                break;
            }
        }
        device.go_on();
        let worked: Vec<_> = working
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a panic beside the checkpoint".into())))
            .collect();
        (syncing.join().unwrap_or_else(|_| Err("a panic in the checkpoint".into())), worked)
    });
    worked.into_iter().collect::<Result<Vec<()>, String>>()?;
    let (point, after) = synced?;
    workers.iter_mut().zip(begun).for_each(|(worker, index)| worker.history.promise(index, point));
    if held {
        workers.iter_mut().try_for_each(|worker| worker.run(When::After))?;
        let begun = std::array::from_fn(|thread| workers[thread].history.len());
        sync(&fs, &device, begun, &mut workers)?;
        let trace = Trace::new(vec![main], vec![device.inner().timed_snapshot()]);
        let histories: Vec<History> = workers.into_iter().map(|worker| worker.history).collect();
        fs.close().map_err(|error| error.to_string())?;
        looked.crash(&base.setup, &trace, &histories, seed)?;
    }
    Ok(after - before)
}

/// What was looked at.
struct Looked<'a> {
    contents: &'a Known,
    counts: &'a Counts,
    /// Judges a state.
    judge: fn(&Setup, &[History], usize, &Devices) -> Result<(), String>,
}

impl Looked<'_> {
    fn crash(&self, setup: &Setup, trace: &Trace, histories: &[History], seed: u64) -> Result<(), String> {
        let mut rng = Rng::new(seed);
        let mut cursor = trace.cursor();
        loop {
            for (kind, pieces) in plan::states(trace, &cursor, &BOUNDS, &mut rng) {
                let content = cursor.state_hash(&pieces).map_err(|error| error.to_string())?;
                let is_new = self.contents.insert(content);
                Counts::add(if is_new { &self.counts.states[kind as usize] } else { &self.counts.again });
                let devices = cursor.state(&pieces).map_err(|error| error.to_string())?;
                (self.judge)(setup, histories, cursor.point(), &devices).map_err(|message| {
                    format!("power lost after event {}, {}: {message}", cursor.point(), kind.name())
                })?;
            }
            if !cursor.advance().map_err(|error| error.to_string())? {
                return Ok(());
            }
        }
    }
}

fn recover(setup: &Setup, histories: &[History], point: usize, devices: &Devices) -> Result<(), String> {
    let fs = setup.open(devices.clone()).map_err(|error| format!("recovery: {error}"))?;
    for (thread, history) in histories.iter().enumerate() {
        let engine = Engine::on(setup, devices.clone(), fs.clone(), Way::Path, dir(thread).as_bytes());
        let (tree, contents) = engine.found().map_err(|error| format!("reading the tree: {error}"))?;
        history.judge(point, &Found { tree, contents }).map_err(|message| format!("thread {thread}: {message}"))?;
    }
    fs.close().map_err(|error| format!("closing after recovery: {error}"))?;
    check_silent(devices)
}

/// The volume with a directory for each thread.
fn base(row: Row, seed: u64) -> Result<Base, String> {
    let made = (0..THREADS).map(|thread| Step { cred: 0, op: Op::Mkdir { path: dir(thread).into(), mode: 0o755 } });
    Base::new(setup(row, seed), &made.collect::<Vec<_>>())
}

/// Holds a checkpoint of a volume of this row at each of its writes and flushes in turn.
pub fn hold_everywhere(row: Row, seed: u64, contents: &Known, counts: &Counts) -> Result<u64, String> {
    let (base, script) = (base(row, seed)?, script(seed));
    let looked = Looked { contents, counts, judge: recover };
    let mut held = 0;
    for (_, op) in Hold::OPS {
        for nth in 1.. {
            if nth > (Hold { row, seed, op, nth }).attempt(&base, &script, &looked)? {
                break;
            }
            Counts::add(&counts.runs);
            held += 1;
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any failure has a line that replays it and few steps; that of a held checkpoint had neither.
    #[test]
    fn a_failure_is_named_and_shrunk() {
        let no_links = |_: &Setup, histories: &[History], _, _: &Devices| {
            let mut inodes = histories.iter().flat_map(|history| history.model().inodes());
            if inodes.any(|(_, inode)| inode.kind == Kind::Symlink) { Err("a link".into()) } else { Ok(()) }
        };
        let looked = Looked { contents: &Known::default(), counts: &Counts::default(), judge: no_links };
        let row = Row::default();
        let hold = Hold { row, seed: 1, op: FaultOp::Write, nth: 2 };
        let failure = hold.attempt(&base(row, 1).unwrap(), &script(1), &looked).unwrap_err();
        assert!(
            failure.contains("replay: scripts/reliability --choices order=log --replay held/1/write/2\nshrunk to "),
            "{failure}"
        );
        assert!(failure.contains("a link\n    ") && failure.contains(" Symlink {"), "{failure}");
        assert!(failure.lines().count() < 8, "{failure}");
        assert_eq!(Hold::named(row, "held/1/write/2"), Some(hold));
    }
}
