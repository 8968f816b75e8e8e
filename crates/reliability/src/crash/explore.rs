//! One run, and every state that losing power during it can leave.

use super::base::{Base, Follower, run_step};
use super::known::{Counts, Known};
use super::plan::{self, Bounds};
use super::trace::{Piece, Trace};
use crate::machine::{Engine, Way};
use crate::setup::{Devices, Setup};
use crate::verdict::{check_silent, repair};
use myriad_device::{BlockDevice, OverlayDevice, RecordingDevice};
use myriad_engine::{Cred, OpenOptions, Order, SetAttr};
use myriad_sim::compare::{Differ, Rules, hash, text};
use myriad_sim::crash::{Found, History};
use myriad_sim::model::Model;
use myriad_sim::op::{Answer, Kind as FileKind, Step};
use myriad_sim::rng::Rng;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// How much is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    pub bounds: Bounds,
    /// Bounds for recoveries that lose power in turn.
    pub again: Bounds,
    /// Percent of the states for which that is done.
    pub again_percent: u64,
    /// Percent that the checker looks at before recovery as well.
    pub before_percent: u64,
    /// Percent that go on working.
    pub continue_percent: u64,
}

/// A run to be crashed.
pub struct Run {
    history: History,
    trace: Trace,
    /// Hash of the base and of the operations up to each.
    beginnings: Vec<u64>,
}

/// The history of a run, fed by [`run_step`].
struct Recorded<'a> {
    history: History,
    recorders: &'a [Arc<RecordingDevice<OverlayDevice>>],
    beginnings: Vec<u64>,
}

impl Follower for Recorded<'_> {
    fn model(&self) -> &Model {
        self.history.model()
    }

    fn apply(&mut self, step: &Step) -> Answer {
        let so_far = *self.beginnings.last().expect("the base");
        self.beginnings.push(hash(so_far, format!("{step:?}").as_bytes()));
        let point = self.recorders.iter().map(|recorder| recorder.event_count()).sum();
        self.history.apply(step, point)
    }
}

/// Recorders over copies of the devices, on one clock.
fn recorders(devices: &Devices) -> Vec<Arc<RecordingDevice<OverlayDevice>>> {
    let clock = Arc::default();
    let record = |base: &Arc<dyn BlockDevice>| {
        Arc::new(RecordingDevice::with_clock(OverlayDevice::new(base.clone()), Arc::clone(&clock)))
    };
    [Some(&devices.main), devices.log.as_ref()].into_iter().flatten().map(record).collect()
}

fn recorded(recorders: &[Arc<RecordingDevice<OverlayDevice>>]) -> Devices {
    let mut devices = recorders.iter().map(|recorder| recorder.clone() as Arc<dyn BlockDevice>);
    Devices { main: devices.next().expect("a volume has a device"), log: devices.next() }
}

fn trace(bases: &Devices, recorders: &[Arc<RecordingDevice<OverlayDevice>>]) -> Trace {
    let bases = [Some(&bases.main), bases.log.as_ref()].into_iter().flatten().cloned().collect();
    Trace::new(bases, recorders.iter().map(|recorder| recorder.timed_snapshot()).collect())
}

/// Copies of the devices, so that what is done to them is not done to these.
fn fork(devices: &Devices) -> Devices {
    let fork = |device: &Arc<dyn BlockDevice>| Arc::new(OverlayDevice::new(device.clone())) as Arc<dyn BlockDevice>;
    Devices { main: fork(&devices.main), log: devices.log.as_ref().map(fork) }
}

/// Runs the steps on a recorded volume, and holds them against the model on the way.
pub fn record(base: &Base, steps: &[Step]) -> Result<Run, String> {
    let devices = base.devices();
    let recorders = recorders(&devices);
    let opened = Engine::open(&base.setup, recorded(&recorders), Way::Path);
    let mut engine = opened.map_err(|error| format!("opening: {error}"))?;
    let identity = format!("{:?}", base.setup);
    let mut follower = Recorded {
        history: History::new(base.model.clone(), 0),
        recorders: &recorders,
        beginnings: vec![hash(0, identity.as_bytes())],
    };
    let mut differ = Differ::new(Rules::from_env());
    for (index, step) in steps.iter().enumerate() {
        run_step(&mut engine, step, &mut differ, &mut follower)
            .map_err(|message| format!("step {index}:\n{message}"))?;
    }
    let Recorded { history, beginnings, .. } = follower;
    let trace = trace(&devices, &recorders);
    // What closing does is recorded no more: the run ends with the power.
    engine.close().map_err(|error| format!("closing: {error}"))?;
    Ok(Run { history, trace, beginnings })
}

/// When power is lost, and what the state is.
struct Moment {
    point: usize,
    /// Hash of the contents.
    content: u128,
    /// Hash of all else that the judgement depends on.
    key: u64,
}

/// What is shared by the runs of a class.
pub struct Explorer<'a> {
    pub depth: Depth,
    /// Contents seen, with what they were judged for.
    pub judged: &'a Known,
    /// Contents seen.
    pub contents: &'a Known,
    pub counts: &'a Counts,
}

impl Explorer<'_> {
    /// Records the steps and looks at the states that `seed` draws.
    pub fn explore(&self, base: &Base, steps: &[Step], seed: u64) -> Result<(), String> {
        Counts::add(&self.counts.runs);
        let run = record(base, steps)?;
        let mut rng = Rng::new(seed ^ 0xc4a5);
        let mut cursor = run.trace.cursor();
        // What recovery found for the contents of the last flushes.
        let mut found: HashMap<u128, Rc<Found>> = HashMap::new();
        loop {
            let (newest, answered, ends) = run.history.moment(cursor.point());
            let key = run.beginnings[newest] ^ ((answered as u64) << 1 | u64::from(ends));
            for (kind, pieces) in plan::states(&run.trace, &cursor, &self.depth.bounds, &mut rng) {
                let at = |message: String| {
                    format!(
                        "power lost after event {}, {}: {}: {message}",
                        cursor.point(),
                        kind.name(),
                        show(&run.trace, &pieces)
                    )
                };
                let content = cursor.state_hash(&pieces).map_err(|error| error.to_string())?;
                if !self.judged.insert(content ^ u128::from(key)) {
                    continue;
                }
                let is_new = self.contents.insert(content);
                if let Some(found) = found.get(&content) {
                    Counts::add(&self.counts.again);
                    run.history.judge(cursor.point(), found).map_err(at)?;
                    continue;
                }
                Counts::add(if is_new { &self.counts.states[kind as usize] } else { &self.counts.again });
                let devices = cursor.state(&pieces).map_err(|error| error.to_string())?;
                let moment = Moment { point: cursor.point(), content, key };
                if let Some(seen) = self.look(&base.setup, &run.history, &moment, &devices, &mut rng).map_err(at)? {
                    found.insert(content, Rc::new(seen));
                }
            }
            if found.len() > 2000 {
                found.clear();
            }
            if !cursor.advance().map_err(|error| error.to_string())? {
                return Ok(());
            }
        }
    }

    /// Looks at one state as its order demands; what recovery found, if the order promises what it finds.
    fn look(
        &self,
        setup: &Setup,
        history: &History,
        moment: &Moment,
        devices: &Devices,
        rng: &mut Rng,
    ) -> Result<Option<Found>, String> {
        if setup.order == Order::None {
            return self.mend(setup, moment, devices, rng).map(|()| None);
        }
        if rng.percent(self.depth.before_percent) {
            // The checker replays the log by itself: its opinion on the volume as the crash left it.
            check_silent(devices).map_err(|message| format!("before recovery: {message}"))?;
        }
        if rng.percent(self.depth.again_percent) {
            self.recover_again(setup, history, moment, devices, rng)?;
        }
        let found = recover(setup, history, moment.point, devices)?;
        if rng.percent(self.depth.continue_percent) {
            Counts::add(&self.counts.continued);
            go_on(setup, devices)?;
        }
        Ok(Some(found))
    }

    /// Recovery runs on recorders and loses power in turn.
    fn recover_again(
        &self,
        setup: &Setup,
        history: &History,
        moment: &Moment,
        devices: &Devices,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let devices = fork(devices);
        let recorders = recorders(&devices);
        let opened = Engine::open(setup, recorded(&recorders), Way::Path);
        let mut engine = opened.map_err(|error| format!("recovery: {error}"))?;
        // Recovery's home writes may be put off; a sync asks for them, and closing makes them.
        engine.fs().sync().map_err(|error| format!("sync after recovery: {error}"))?;
        engine.close().map_err(|error| error.to_string())?;
        let look = |state: &Devices| recover(setup, history, moment.point, state).map(drop);
        self.crash_again(&trace(&devices, &recorders), moment, rng, look)
            .map_err(|message| format!("recovery cut {message}"))
    }

    /// Power is lost during the work that `trace` recorded on the state of `moment`; `look` judges each state.
    fn crash_again(
        &self,
        trace: &Trace,
        moment: &Moment,
        rng: &mut Rng,
        mut look: impl FnMut(&Devices) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut cursor = trace.cursor();
        loop {
            for (kind, pieces) in plan::states(trace, &cursor, &self.depth.again, rng) {
                let change = cursor.state_hash(&pieces).map_err(|error| error.to_string())?;
                let content = moment.content.wrapping_add(change);
                if !self.judged.insert(content ^ u128::from(moment.key)) {
                    continue;
                }
                let is_new = self.contents.insert(content);
                Counts::add(if is_new { &self.counts.recoveries } else { &self.counts.again });
                let state = cursor.state(&pieces).map_err(|error| error.to_string())?;
                look(&state).map_err(|message| format!("at event {}, {}: {message}", cursor.point(), kind.name()))?;
            }
            if !cursor.advance().map_err(|error| error.to_string())? {
                return Ok(());
            }
        }
    }

    /// Order none: check can always repair, also after it was interrupted, and what is there can be read.
    fn mend(&self, setup: &Setup, moment: &Moment, devices: &Devices, rng: &mut Rng) -> Result<(), String> {
        if rng.percent(self.depth.again_percent) {
            let devices = fork(devices);
            let recorders = recorders(&devices);
            repair(&recorded(&recorders))?;
            self.crash_again(&trace(&devices, &recorders), moment, rng, repair)
                .map_err(|message| format!("repair cut {message}"))?;
        }
        repair(devices)?;
        let mut engine = Engine::open(setup, devices.clone(), Way::Path).map_err(|error| error.to_string())?;
        engine.found().map_err(|error| format!("reading the tree: {error}"))?;
        engine.close().map_err(|error| error.to_string())?;
        check_silent(devices)
    }
}

fn show(trace: &Trace, pieces: &[Piece]) -> String {
    let shown = pieces.iter().map(|piece| {
        let device = if trace.events[piece.event].device == 0 { "" } else { "log " };
        format!("{device}{} {:?}", piece.event, piece.part)
    });
    format!("[{}]", shown.collect::<Vec<_>>().join(", "))
}

/// Opens the volume, judges it, closes it, and asks the checker.
fn recover(setup: &Setup, history: &History, point: usize, devices: &Devices) -> Result<Found, String> {
    let mut engine = Engine::open(setup, devices.clone(), Way::Path).map_err(|error| format!("recovery: {error}"))?;
    let (tree, contents) = engine.found().map_err(|error| format!("reading the tree: {error}"))?;
    let found = Found { tree, contents };
    history.judge(point, &found)?;
    engine.close().map_err(|error| format!("closing after recovery: {error}"))?;
    check_silent(devices)?;
    Ok(found)
}

/// A recovered volume is as good as any: files grow by zeros, and names come and go.
fn go_on(setup: &Setup, devices: &Devices) -> Result<(), String> {
    const FILES: usize = 20;
    let mut engine = Engine::open(setup, devices.clone(), Way::Path).map_err(|error| error.to_string())?;
    let (tree, before) = engine.found().map_err(|error| error.to_string())?;
    let session = engine.fs().session(Cred::root());
    let say = |error: myriad_engine::Error| format!("going on after recovery: {error}");
    // The generator may have made the root immutable.
    session.set_attr("/", SetAttr { flags: Some(0), ..SetAttr::default() }).map_err(say)?;
    for entry in tree.iter().filter(|entry| entry.stat.kind == FileKind::File && entry.stat.flags == 0) {
        let longer = before[&entry.stat.ino].size() + 9000;
        match session.set_attr(&entry.path, SetAttr { size: Some(longer), ..SetAttr::default() }) {
            // The zeros in a last block that has a checksum go to a new block.
            Err(error) if setup.data_checksums && error.errno() == myriad_engine::Errno::NOSPC => {}
            other => _ = other.map_err(say)?,
        }
    }
    let (_, after) = engine.found().map_err(|error| error.to_string())?;
    for (ino, content) in &before {
        if after[ino].next_nonzero(content.size()).is_some() {
            let entry = tree.iter().find(|entry| entry.stat.ino == *ino).expect("it is in the tree");
            return Err(format!("{}: bytes beyond the old end are not zero", text(&entry.path)));
        }
    }
    let options = OpenOptions { write: true, create: true, mode: 0o600, ..OpenOptions::default() };
    let no_space = |error: &myriad_engine::Error| error.errno() == myriad_engine::Errno::NOSPC;
    for index in 0..FILES {
        let made = session.open(&format!("again{index}"), options).and_then(|file| file.write_at(&[1; 3000], 0));
        match made {
            Err(error) if !no_space(&error) => return Err(say(error)),
            _ => {}
        }
    }
    engine.fs().sync().map_err(say)?;
    for index in 0..FILES {
        match session.unlink(&format!("again{index}")) {
            Err(error) if error.errno() != myriad_engine::Errno::NOENT => return Err(say(error)),
            _ => {}
        }
    }
    drop(session);
    engine.close().map_err(say)?;
    check_silent(devices)
}
