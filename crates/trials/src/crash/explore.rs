//! One run, and every state that losing power during it can leave.

use super::background::{give_back, give_back_in_log};
use super::base::{Base, Follower, run_step};
use super::known::{Counts, Known};
use super::plan::{self, Bounds};
use super::trace::{Piece, Trace};
use crate::machine::{Engine, Way};
use crate::setup::{Devices, Setup};
use crate::table::Promise;
use crate::verdict::{check_closed, check_silent, check_usable, grow, mend_usable, repair};
use myriad_check::Totals;
use myriad_device::{BlockDevice, OverlayDevice, RecordingDevice};
use myriad_engine::{Cred, Error, OpenOptions, SetAttr};
use myriad_sim::compare::{Differ, TreeEntry, hash, text};
use myriad_sim::crash::{Found, History};
use myriad_sim::model::Model;
use myriad_sim::op::{Answer, Kind as FileKind, Step};
use myriad_sim::pattern::mix;
use myriad_sim::rng::Rng;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

/// What the recorders of a volume's devices and of its log's have seen.
pub(crate) fn trace<'a>(bases: &Devices, recorders: impl Iterator<Item = &'a RecordingDevice<OverlayDevice>>) -> Trace {
    let bases = [Some(&bases.main), bases.log.as_ref()].into_iter().flatten().cloned().collect();
    Trace::new(bases, recorders.map(RecordingDevice::timed_snapshot).collect())
}

/// Copies of the devices, so that what is done to them is not done to these.
pub(crate) fn fork(devices: &Devices) -> Devices {
    let fork = |device: &Arc<dyn BlockDevice>| Arc::new(OverlayDevice::new(device.clone())) as Arc<dyn BlockDevice>;
    Devices { main: fork(&devices.main), log: devices.log.as_ref().map(fork) }
}

/// Runs the steps on a recorded volume, and holds them against the model on the way.
pub fn record(base: &Base, steps: &[Step]) -> Result<Run, String> {
    // Runs share a base and its clock. Opening writes the time, which is not to be that of the run before.
    base.setup.time.store(base.model.next_clock(), Ordering::Relaxed);
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
    let mut differ = Differ::new(base.setup.rules());
    for (index, step) in steps.iter().enumerate() {
        run_step(&mut engine, step, &mut differ, &mut follower)
            .map_err(|message| format!("step {index}:\n{message}"))?;
    }
    let Recorded { history, beginnings, .. } = follower;
    let trace = trace(&devices, recorders.iter().map(AsRef::as_ref));
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

/// What is done with a state, beside recovering it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extras {
    /// The checker looks at it before.
    before: bool,
    /// Recovery, or repair, loses power in turn.
    again: bool,
    /// The recovered volume is worked on.
    continues: bool,
    /// Files grow in it, and power is lost meanwhile.
    grows: bool,
}

impl Moment {
    /// Drawn by what the state is and what it is judged for, not by when its turn comes: of all runs that come to a state
    /// only the first looks at it, and a run that is replayed alone has to do with it what was done then.
    fn extras(&self, depth: &Depth) -> Extras {
        // What the moment does not matter for is done at the first look at the contents, or never.
        let mut drawn = Rng::new(self.content as u64 ^ (self.content >> 64) as u64);
        let (before, continues) = (drawn.percent(depth.before_percent), drawn.percent(depth.continue_percent));
        let grows = drawn.percent(GROWS_PERCENT);
        Extras { before, again: self.rng().percent(depth.again_percent), continues, grows }
    }

    fn rng(&self) -> Rng {
        Rng::new(self.key ^ mix(self.content as u64 ^ (self.content >> 64) as u64))
    }

    fn is_new(&self, judged: &Known) -> bool {
        judged.insert(self.content ^ u128::from(self.key))
    }
}

/// What was found in a state: it depends on the contents alone, and is judged for each moment that leaves them.
struct Seen {
    opened: Found,
    /// After a repair, if there was anything to repair.
    mended: Option<Found>,
}

impl Seen {
    fn judge(&self, setup: &Setup, history: &History, point: usize) -> Result<(), String> {
        let judge = |found: &Found| match Promise::of(setup.order) {
            Promise::Usable | Promise::Returned => setup.judge_usable(history, point, found),
            Promise::Prefix | Promise::Repair => history.judge(point, found),
        };
        judge(&self.opened).map_err(|message| format!("opened: {message}"))?;
        self.mended.as_ref().map_or(Ok(()), judge).map_err(|message| format!("repaired: {message}"))
    }
}

/// Percent of the states of orders without a log in which files grow.
const GROWS_PERCENT: u64 = 10;
/// States of recoveries are told apart from those of runs: less is done with them.
const AGAIN: u64 = 0xa6a1_5a1e;
/// When recoveries happen: a minute after any run, and the same for all.
const LATER: i64 = 60_000_000_000;

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
        base.setup.time.store(LATER, Ordering::Relaxed);
        let judge = |point: usize, seen: &Seen| seen.judge(&base.setup, &run.history, point);
        self.visit(&run, seed, judge, |moment, extras, devices| {
            self.look(&base.setup, &run.history, moment, extras, devices)
        })
    }

    /// Makes the states of a run and calls `look` for each that is new. What it answers is taken for what is found in a state
    /// of the same contents at another moment, which `judge` then judges.
    fn visit(
        &self,
        run: &Run,
        seed: u64,
        judge: impl Fn(usize, &Seen) -> Result<(), String>,
        mut look: impl FnMut(&Moment, Extras, &Devices) -> Result<Option<Seen>, String>,
    ) -> Result<(), String> {
        let mut rng = Rng::new(seed ^ 0xc4a5);
        let mut cursor = run.trace.cursor();
        // What was found for the contents of the last flushes.
        let mut found: HashMap<u128, Rc<Seen>> = HashMap::new();
        loop {
            let point = cursor.point();
            let (newest, answered, ends) = run.history.moment(point);
            let key = run.beginnings[newest] ^ ((answered as u64) << 1 | u64::from(ends));
            for (kind, pieces) in plan::states(&run.trace, &cursor, &self.depth.bounds, &mut rng) {
                let at = |message: String| {
                    format!("power lost after event {point}, {}: {}: {message}", kind.name(), show(&run.trace, &pieces))
                };
                let content = cursor.state_hash(&pieces).map_err(|error| error.to_string())?;
                let moment = Moment { point, content, key };
                if !moment.is_new(self.judged) {
                    continue;
                }
                let is_new = self.contents.insert(content);
                let extras = moment.extras(&self.depth);
                // A recovery that loses power is judged for this moment, too.
                if let Some(found) = found.get(&content).filter(|_| !extras.again) {
                    Counts::add(&self.counts.again);
                    judge(point, found).map_err(at)?;
                    continue;
                }
                Counts::add(if is_new { &self.counts.states[kind as usize] } else { &self.counts.again });
                let devices = cursor.state(&pieces).map_err(|error| error.to_string())?;
                if let Some(seen) = look(&moment, extras, &devices).map_err(at)? {
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

    /// Looks at one state as its order demands; what was found, if the order promises what that is.
    fn look(
        &self,
        setup: &Setup,
        history: &History,
        moment: &Moment,
        extras: Extras,
        devices: &Devices,
    ) -> Result<Option<Seen>, String> {
        match Promise::of(setup.order) {
            Promise::Repair => return self.mend(setup, moment, extras, devices).map(|()| None),
            Promise::Prefix => {}
            Promise::Usable | Promise::Returned => {
                return self.use_at_once(setup, history, moment, extras, devices).map(Some);
            }
        }
        if extras.before {
            // The checker replays the log by itself: its opinion on the volume as the crash left it.
            check_silent(devices).map_err(|message| format!("before recovery: {message}"))?;
        }
        if extras.again {
            self.recover_again(setup, history, moment, devices)?;
        }
        let found = recover(setup, history, moment.point, devices)?;
        if extras.continues {
            Counts::add(&self.counts.continued);
            go_on(setup, devices, check_silent)?;
        }
        Ok(Some(Seen { opened: found, mended: None }))
    }

    /// [`Promise::Usable`], [`Promise::Returned`]: the check finds leftovers at most; what is there is judged, and again when a repair has taken them away.
    /// A volume on which the check finds nothing at all is one that a repair leaves as it is.
    fn use_at_once(
        &self,
        setup: &Setup,
        history: &History,
        moment: &Moment,
        extras: Extras,
        devices: &Devices,
    ) -> Result<Seen, String> {
        let judge = |state: &Devices| judge_usable(setup, history, moment.point, state);
        let mended = fork(devices);
        let has_leftovers = mend_usable(&mended).map_err(|message| format!("before the opening: {message}"))?;
        let used = fork(devices);
        let opened = judge(&used).map_err(|message| format!("opened: {message}"))?;
        check_closed(&used).map_err(|message| format!("closed again: {message}"))?;
        if extras.continues {
            Counts::add(&self.counts.continued);
            go_on(setup, &fork(devices), check_closed)?;
            let given = fork(devices);
            let is_all = give_back(setup, &given).map_err(|message| format!("given back in use: {message}"))?;
            let verdict = if is_all { check_silent } else { check_closed };
            verdict(&given).and_then(|()| judge(&given)).map_err(|message| format!("given back in use: {message}"))?;
            if setup.has_log() {
                let (setup, given) = (setup.at_once(), fork(devices));
                let in_log = |message: String| format!("given back in order log: {message}");
                let is_all = give_back_in_log(&setup, &given).map_err(in_log)?;
                let verdict = if is_all { check_silent } else { check_closed };
                let judge = |state: &Devices| judge_usable(&setup, history, moment.point, state);
                verdict(&given).and_then(|()| judge(&given)).map_err(in_log)?;
            }
        }
        if extras.again {
            let given = fork(devices);
            let recorders = recorders(&given);
            give_back(setup, &recorded(&recorders)).map_err(|message| format!("given back in use: {message}"))?;
            let look = |state: &Devices| {
                check_usable(state)?;
                judge(state).map(drop)
            };
            self.crash_again(&trace(&given, recorders.iter().map(AsRef::as_ref)), moment, look)
                .map_err(|message| format!("giving back cut {message}"))?;
            self.repair_again(setup, history, moment, devices)?;
        }
        if extras.grows {
            self.grow_again(setup, moment, devices, &opened.tree)?;
        }
        let mut seen = Seen { opened, mended: None };
        if has_leftovers {
            seen.mended = Some(judge(&mended).map_err(|message| format!("repaired: {message}"))?);
            check_silent(&mended).map_err(|message| format!("repaired: {message}"))?;
        }
        Ok(seen)
    }

    /// Files grow in their last blocks, and power is lost meanwhile. A crash may have left bytes there of a write whose size never arrived: they come into
    /// view only as zeros. Of many files it takes some, others in another state: each may make several new states.
    fn grow_again(&self, setup: &Setup, moment: &Moment, devices: &Devices, tree: &[TreeEntry]) -> Result<(), String> {
        const FILES: u64 = 16;
        let (mut rng, count) = (moment.rng(), tree.len() as u64);
        let tree: Vec<TreeEntry> = tree.iter().filter(|_| rng.below(count) < FILES).cloned().collect();
        let grown = fork(devices);
        let recorders = recorders(&grown);
        let opened = Engine::open(setup, recorded(&recorders), Way::Path);
        let mut engine = opened.map_err(|error| format!("opening: {error}"))?;
        grow_in_last_blocks(setup, &engine, &tree)?;
        engine.close().map_err(|error| format!("closing: {error}"))?;
        let look = |state: &Devices| {
            check_usable(state)?;
            let mut engine = Engine::open(setup, state.clone(), Way::Path).map_err(|error| error.to_string())?;
            grow_in_last_blocks(setup, &engine, &tree)?;
            engine.close().map_err(|error| error.to_string())
        };
        self.crash_again(&trace(&grown, recorders.iter().map(AsRef::as_ref)), moment, look)
            .map_err(|message| format!("growing cut {message}"))
    }

    /// A repair runs on recorders and loses power in turn; the next one has to end what it began.
    fn repair_again(&self, setup: &Setup, history: &History, moment: &Moment, devices: &Devices) -> Result<(), String> {
        let mended = fork(devices);
        let recorders = recorders(&mended);
        repair(&recorded(&recorders))?;
        let look = |state: &Devices| {
            repair(state)?;
            judge_usable(setup, history, moment.point, state).map(drop)
        };
        self.crash_again(&trace(&mended, recorders.iter().map(AsRef::as_ref)), moment, look)
            .map_err(|message| format!("repair cut {message}"))
    }

    /// Recovery runs on recorders and loses power in turn.
    fn recover_again(
        &self,
        setup: &Setup,
        history: &History,
        moment: &Moment,
        devices: &Devices,
    ) -> Result<(), String> {
        let devices = fork(devices);
        let recorders = recorders(&devices);
        let opened = Engine::open(setup, recorded(&recorders), Way::Path);
        let mut engine = opened.map_err(|error| format!("recovery: {error}"))?;
        // Recovery's home writes may be put off; a sync asks for them, and closing makes them.
        engine.fs().sync().map_err(|error| format!("sync after recovery: {error}"))?;
        engine.close().map_err(|error| error.to_string())?;
        let look = |state: &Devices| recover(setup, history, moment.point, state).map(drop);
        self.crash_again(&trace(&devices, recorders.iter().map(AsRef::as_ref)), moment, look)
            .map_err(|message| format!("recovery cut {message}"))
    }

    /// Power is lost during the work that `trace` recorded on the state of `moment`; `look` judges each state.
    fn crash_again(
        &self,
        trace: &Trace,
        moment: &Moment,
        mut look: impl FnMut(&Devices) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut rng = moment.rng();
        let mut cursor = trace.cursor();
        loop {
            for (kind, pieces) in plan::states(trace, &cursor, &self.depth.again, &mut rng) {
                let change = cursor.state_hash(&pieces).map_err(|error| error.to_string())?;
                let cut = Moment { content: moment.content.wrapping_add(change), key: moment.key ^ AGAIN, ..*moment };
                if !cut.is_new(self.judged) {
                    continue;
                }
                let is_new = self.contents.insert(cut.content);
                Counts::add(if is_new { &self.counts.recoveries } else { &self.counts.again });
                let state = cursor.state(&pieces).map_err(|error| error.to_string())?;
                look(&state).map_err(|message| format!("at event {}, {}: {message}", cursor.point(), kind.name()))?;
            }
            if !cursor.advance().map_err(|error| error.to_string())? {
                return Ok(());
            }
        }
    }

    /// [`Promise::Repair`]: check can always repair, and what is there can be read; a repair that was cut short costs nothing that it
    /// would have kept.
    fn mend(&self, setup: &Setup, moment: &Moment, extras: Extras, devices: &Devices) -> Result<(), String> {
        match setup.open(fork(devices)) {
            Err(Error::Unchecked) => {}
            // Closed cleanly, or not yet opened.
            _ => check_silent(devices).map_err(|why| format!("may be changed, though nobody has checked it: {why}"))?,
        }
        if extras.again {
            let devices = fork(devices);
            let recorders = recorders(&devices);
            let totals = repair(&recorded(&recorders))?;
            let trace = trace(&devices, recorders.iter().map(AsRef::as_ref));
            let whole = Kept::read(setup, &recorded(&recorders), totals)?;
            let look = |state: &Devices| Kept::read(setup, state, repair(state)?)?.costs_nothing(&whole);
            self.crash_again(&trace, moment, look).map_err(|message| format!("repair cut {message}"))?;
        }
        let totals = repair(devices)?;
        let kept = Kept::read(setup, devices, totals)?;
        check_silent(devices)?;
        if extras.continues && setup.has_log() {
            Counts::add(&self.counts.continued);
            let in_log = |message: String| format!("in order log: {message}");
            give_back_in_log(setup, devices).and_then(|_| check_silent(devices)).map_err(in_log)?;
            Kept::read(setup, devices, totals)?.costs_nothing(&kept).map_err(in_log)?;
        }
        Ok(())
    }
}

/// Digest of a file's contents, target of a link, attributes.
type Contents = (Option<u64>, Option<Vec<u8>>, BTreeMap<Vec<u8>, Vec<u8>>);

/// What a repair has left.
struct Kept {
    totals: Totals,
    /// What is where. What was moved to a lost+found counts among the totals: which strays lead to others may be another time.
    paths: BTreeMap<Vec<u8>, Contents>,
}

impl Kept {
    fn read(setup: &Setup, devices: &Devices, totals: Totals) -> Result<Self, String> {
        let mut engine = Engine::open(setup, devices.clone(), Way::Path).map_err(|error| error.to_string())?;
        let (tree, _) = engine.found().map_err(|error| format!("reading the tree: {error}"))?;
        engine.close().map_err(|error| error.to_string())?;
        let entries = tree.into_iter().filter(|entry| !entry.path.starts_with(b"lost+found"));
        Ok(Self {
            totals,
            paths: entries.map(|entry| (entry.path, (entry.content, entry.target, entry.xattrs))).collect(),
        })
    }

    /// Nothing of `whole` is missing.
    fn costs_nothing(&self, whole: &Self) -> Result<(), String> {
        let missing = whole.paths.iter().find(|(path, contents)| self.paths.get(*path) != Some(contents));
        if let Some((path, _)) = missing {
            return Err(format!("{} is lost or changed", path.escape_ascii()));
        }
        let counts = |totals: &Totals| [totals.entries, totals.directories, totals.inodes];
        let (left, wanted) = (counts(&self.totals), counts(&whole.totals));
        if left.iter().zip(&wanted).any(|(left, wanted)| left < wanted) {
            return Err(format!(
                "of entries, directories and inodes there are {left:?}, with a whole repair {wanted:?}"
            ));
        }
        Ok(())
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

/// Opens a volume that promises to be usable at once, judges it, and closes it; what it found.
fn judge_usable(setup: &Setup, history: &History, point: usize, devices: &Devices) -> Result<Found, String> {
    let mut engine = Engine::open(setup, devices.clone(), Way::Path).map_err(|error| format!("opening: {error}"))?;
    let (mut tree, contents) = engine.found().map_err(|error| format!("reading the tree: {error}"))?;
    // What has no name, or lost it, is where the repair puts it.
    tree.retain(|entry| !entry.path.starts_with(b"lost+found"));
    let found = Found { tree, contents };
    setup.judge_usable(history, point, &found)?;
    grow_in_last_blocks(setup, &engine, &found.tree)?;
    engine.close().map_err(|error| format!("closing: {error}"))?;
    Ok(found)
}

/// Makes each file as long as the last block that it had in `tree`: from the end that it had there on all is zeros, also where it is longer by
/// now. That takes no room, so it is done in each state.
fn grow_in_last_blocks(setup: &Setup, engine: &Engine, tree: &[TreeEntry]) -> Result<(), String> {
    let block = u64::from(setup.block_size);
    let session = engine.root();
    for entry in tree.iter().filter(|entry| entry.stat.kind == FileKind::File && entry.stat.flags == 0) {
        let (end, name) = (entry.stat.size.next_multiple_of(block), text(&entry.path));
        let say = |error: Error| format!("{name}: growing in its last block: {error}");
        if let Some(at) = grow(&session, &entry.path, entry.stat.size, end).map_err(say)? {
            return Err(format!("{name}: grown in its last block, byte {at} is not zero"));
        }
    }
    Ok(())
}

/// A recovered volume is as good as any: files grow by zeros, and names come and go.
fn go_on(setup: &Setup, devices: &Devices, judge: fn(&Devices) -> Result<(), String>) -> Result<(), String> {
    const FILES: usize = 20;
    let mut engine = Engine::open(setup, devices.clone(), Way::Path).map_err(|error| error.to_string())?;
    let (tree, contents) = engine.found().map_err(|error| error.to_string())?;
    let session = engine.fs().session(Cred::root());
    let say = |error: myriad_engine::Error| format!("going on after recovery: {error}");
    // The generator may have made the root immutable.
    session.set_attr("/", SetAttr { flags: Some(0), ..SetAttr::default() }).map_err(say)?;
    for entry in tree.iter().filter(|entry| entry.stat.kind == FileKind::File && entry.stat.flags == 0) {
        let end = contents[&entry.stat.ino].size();
        match grow(&session, &entry.path, end, end + 9000) {
            Ok(None) => {}
            Ok(Some(at)) => return Err(format!("{}: grown, byte {at} is not zero", text(&entry.path))),
            // The zeros in a last block that has a checksum go to a new block.
            Err(error) if setup.data_checksums && error.errno() == myriad_engine::Errno::NOSPC => {}
            Err(error) => return Err(say(error)),
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
    judge(devices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::classes::{Shape, small};
    use crate::table::Row;
    use myriad_sim::sequences::{self, Part};
    use std::collections::BTreeSet;

    const DEPTH: Depth = Depth {
        bounds: Bounds { all_up_to: 3, sampled: 4, tears: 2, scattered: 2 },
        again: Bounds { all_up_to: 2, sampled: 1, tears: 1, scattered: 1 },
        again_percent: 100,
        before_percent: 20,
        continue_percent: 20,
    };

    /// A state, what it is judged for, and what is done with it.
    type Look = (u128, u64, Extras);

    /// What runs share that do not know of each other's names.
    #[derive(Default)]
    struct Shared {
        judged: Known,
        contents: Known,
        counts: Counts,
    }

    impl Shared {
        /// Explores the sequence; `fails` are the states, each with what it is judged for, at which the judge fails.
        /// Answers the looks, and the failure.
        fn explore(&self, base: &Base, names: [&str; 2], fails: &[(u128, u64)]) -> (Vec<Look>, Result<(), String>) {
            let explorer =
                Explorer { depth: DEPTH, judged: &self.judged, contents: &self.contents, counts: &self.counts };
            let parts = names.map(|name| Part::named(name).unwrap());
            let run = record(base, &sequences::steps(&parts)).unwrap();
            let mut looks = Vec::new();
            let judge = |point: usize, seen: &Seen| seen.judge(&base.setup, &run.history, point);
            let explored = explorer.visit(&run, 1, judge, |moment, extras, devices| {
                if fails.contains(&(moment.content, moment.key)) {
                    return Err("planted".into());
                }
                looks.push((moment.content, moment.key, extras));
                let opened = recover(&base.setup, &run.history, moment.point, devices)?;
                Ok(Some(Seen { opened, mended: None }))
            });
            (looks, explored)
        }
    }

    /// What was done beside recovering: what depends on the contents alone, and what on the moment, too.
    fn deeds(looks: &[Look]) -> BTreeSet<(u128, u64, &'static str)> {
        let of = |(content, key, extras): &Look| {
            let deeds = [
                (extras.before, 0, "before"),
                (extras.continues, 0, "continued"),
                (extras.grows, 0, "grown"),
                (extras.again, *key, "again"),
            ];
            deeds.into_iter().filter(|(is_done, ..)| *is_done).map(|(_, key, name)| (*content, key, name)).collect()
        };
        looks.iter().flat_map(|look| -> Vec<_> { of(look) }).collect()
    }

    /// A run that failed among others did not fail when it was replayed: what was done with a state was drawn when its turn
    /// came, and alone a run has to look at states that others had looked at before it.
    #[test]
    fn alone_a_run_fails_as_among_others() {
        const FIRST: [&str; 2] = ["create+fsync", "write-extend+fsync"];
        const SECOND: [&str; 2] = ["create+fsync", "replace-by-rename+sync"];
        let base = Base::new(small(Row::default(), Shape::Inside), &sequences::prelude()).unwrap();
        let both = Shared::default();
        let before = both.explore(&base, FIRST, &[]).0;
        let among = both.explore(&base, SECOND, &[]).0;
        let alone = Shared::default().explore(&base, SECOND, &[]).0;
        assert!(alone.len() > among.len(), "the runs have states in common");
        assert!(deeds(&among).is_subset(&deeds(&alone)), "what was done is done alone, too");
        let together = deeds(&before).union(&deeds(&among)).copied().collect();
        assert!(deeds(&alone).is_subset(&together), "and nothing else is, but what the first run had done");

        let &(content, key, _) = among.iter().rfind(|(.., extras)| extras.again).unwrap();
        let both = Shared::default();
        both.explore(&base, FIRST, &[(content, key)]).1.unwrap();
        let failure = both.explore(&base, SECOND, &[(content, key)]).1.unwrap_err();
        assert_eq!(Shared::default().explore(&base, SECOND, &[(content, key)]).1, Err(failure));
    }
}
