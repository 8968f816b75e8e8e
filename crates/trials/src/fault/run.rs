//! One run with one fault.
//!
//! A device that *tells* (an errno, half a request): the answer is the model's or an error of the device, no change is
//! accepted after a shutdown, and what a healthy device then shows is what the crash oracle allows: nothing that was
//! promised is lost, the checker is silent.
//!
//! A host that is *full* (ENOSPC of a write) costs nothing: the engine says so, goes on in memory, and what failed may be tried
//! again and then be good. It has not shut the volume down.
//!
//! A device that *panics* stands for a mistake of the engine's own at that place: the same, and nobody who comes after it is told
//! that what it ended is durable.
//!
//! Space that *runs out*: the nth allocation of blocks or of an inode is refused, or all from the nth on, wherever in an
//! operation it is. The answer is the model's, an error, or a shutdown; what is refused has not happened, but for what
//! `may_be_half_done` names; the rest is as above.
//!
//! A device that *lies* answers well and does wrong. Metadata and log have checksums and addresses, file data has
//! checksums on some volumes and neither on the others (nor have targets of links too long for an inode), and a block that
//! was not written is a good block of an earlier time. So:
//!
//! | lie | answers | afterwards, on the medium as it is |
//! |---|---|---|
//! | read corrupted, misdirected, not done | the model's, or an error; bytes of files may be wrong | sound, names of some moment of the run |
//! | the same in a run that begins with a log to be replayed | any: its last checkpoint may be taken for its end, and a block that it has changes of is read without its checksum | as of a lost write |
//! | write corrupted | as above | names of some moment, or damage that the checker finds and repairs |
//! | of data with checksums: any of these two | as above, but no wrong byte | no wrong byte; the checker finds and, told to take the data as it is, repairs |
//! | write misdirected, lost; flush lost | any: what was not written is old, and nobody can tell | no panic; the checker repairs, the engine reads |
//!
//! All this is said of volumes that promise a prefix. One that only promises to be repairable gives the same answers and errors
//! while it is open; afterwards, and after a loss of power, the checker repairs it and the engine reads it, and if nobody lied it
//! is sound already unless it wants to be checked.
//!
//! After a flush that failed or was lost, with all after it, or a write on a full host, power is lost as well, and some of what was not flushed with it: what
//! is promised until a flush fails is there all the same.

use crate::crash::base::{Base, short_write};
use crate::crash::explore::{fork, trace};
use crate::crash::plan::{self, Bounds};
use crate::machine::{Engine, Way};
use crate::setup::Devices;
use crate::table::Promise;
use crate::tree::ReadError;
use crate::verdict::{check_silent, check_usable, finds, repair};
use myriad_device::{
    BlockDevice, FAULT_PANIC, FaultDevice, FaultKind, FaultOp, FaultSpan, OverlayDevice, RecordingDevice,
};
use myriad_engine::{Error, starve};
use myriad_sim::compare::{Differ, Rules};
use myriad_sim::crash::{Found, History};
use myriad_sim::errno::Errno;
use myriad_sim::model::Body;
use myriad_sim::op::*;
use myriad_sim::rng::Rng;
use myriad_sim::shrink;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Longest target of a link that is sure to lie in the inode's body, under a checksum, whatever else is in the block.
const TARGET_IN_BODY: usize = 32;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A request of a device: of the log's own instead of the volume's, if `on_log`.
    Request { on_log: bool, op: FaultOp, nth: u64, span: FaultSpan, kind: FaultKind },
    /// There is no space for what is allocated: blocks, or an inode.
    Space { nth: u64, span: FaultSpan },
}

/// How much may be wrong afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    None,
    /// What was read was not what is there.
    Read,
    /// What is there has a wrong checksum.
    Visible,
    /// What is there is old.
    Invisible,
}

impl Fault {
    fn lie(&self) -> Lie {
        let Self::Request { op, kind, .. } = *self else { return Lie::None };
        match (kind, op) {
            (FaultKind::Fail(_) | FaultKind::Short | FaultKind::Panic, _) => Lie::None,
            (_, FaultOp::Read) => Lie::Read,
            (FaultKind::Corrupted { .. }, FaultOp::Write) => Lie::Visible,
            _ => Lie::Invisible,
        }
    }
}

/// What came of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The engine answered an error.
    Error,
    /// Nobody noticed, and nothing was wrong.
    Harmless,
    /// The engine noticed nothing; the checker did, and repaired.
    Checker,
    /// Only a file's bytes, or the age of what was not written, can be wrong.
    Unnoticed,
}

impl Outcome {
    pub const ALL: [Self; 4] = [Self::Error, Self::Harmless, Self::Checker, Self::Unnoticed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "an error of the engine",
            Self::Harmless => "no harm",
            Self::Checker => "found and repaired by check",
            Self::Unnoticed => "not to be seen: file data, or old blocks",
        }
    }
}

/// What a run asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Reads, writes and flushes of the volume's device, then of the log's.
    pub requests: [[u64; 3]; 2],
    pub allocations: u64,
}

pub const OPS: [FaultOp; 3] = [FaultOp::Read, FaultOp::Write, FaultOp::Flush];

type Device = FaultDevice<RecordingDevice<OverlayDevice>>;

/// Whether the error is one that a failing device may cause.
fn is_expected(error: &Error, lie: Lie) -> bool {
    matches!(error, Error::Io(_) | Error::HostFull(_) | Error::Shutdown)
        || lie != Lie::None
            && matches!(
                error,
                Error::Corrupt(_)
                    | Error::Damaged(_)
                    | Error::Foreign
                    | Error::Incompatible(_)
                    | Error::Option(_)
                    // The superblock that says that the volume was closed is not there.
                    | Error::Unchecked
            )
}

/// A read that fails loses nothing, so what asked for it may be tried again.
fn is_read(error: &Error) -> bool {
    matches!(error, Error::Io(failed) if failed.op == "read")
}

/// Runs what the device may unwind at a request of kind `op`; that it has is an error of the device like any other.
fn unwound<T>(op: FaultOp, work: impl FnOnce() -> myriad_engine::Result<T>) -> myriad_engine::Result<T> {
    let op = if op == FaultOp::Read { "read" } else { "write" };
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| match payload.downcast_ref::<&str>() {
        Some(&FAULT_PANIC) => Err(Error::io(op, 0, std::io::Error::other(FAULT_PANIC))),
        _ => resume_unwind(payload),
    })
}

/// Allocations are refused as long as it is there.
struct Starving {
    refused: Range<u64>,
}

impl Starving {
    fn begin(refused: Range<u64>) -> Self {
        starve::refuse(refused.clone());
        Self { refused }
    }

    /// Whether one has been.
    fn struck(&self) -> bool {
        self.refused.start > 0 && starve::seen() >= self.refused.start
    }

    fn end(&self) {
        starve::refuse(0..0);
    }
}

impl Drop for Starving {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether an operation that is refused for lack of space, on a volume that goes on, may be in effect, all of it or in part:
/// a range of zeros whose blocks are refused though they were promised, or a write that flushes before it returns, one with
/// O_SYNC or to a file that was cut to nothing. All others are not.
fn may_be_half_done(step: &Step) -> bool {
    use AllocateHow::{Punch, Zero};
    matches!(step.op, Op::Write { .. } | Op::Allocate { how: Punch | Zero { .. }, .. })
}

/// What may have been made durable, in part, when a run ends by a failure.
const SYNC: Step = Step { cred: 0, op: Op::Sync };

struct Rig {
    devices: Vec<Arc<Device>>,
    starving: Starving,
    lie: Lie,
    /// Which kind of request the fault strikes.
    op: FaultOp,
    history: History,
    /// The engine said that something is wrong.
    told: bool,
    /// It said that the host has no room.
    host_was_full: bool,
    /// Bytes of files were not what they should be.
    wrong_bytes: bool,
    /// File data has checksums: bytes that are wrong must not be handed out, unless old ones stand in for all others.
    vouched: bool,
    /// What of the volume's answers is held against the model's.
    rules: Rules,
}

/// Runs the steps with a fault, then looks at the volume as the device has it.
pub fn run(base: &Base, steps: &[Step], fault: Option<Fault>) -> Result<(Seen, Outcome), String> {
    let images = base.devices();
    let clock = Arc::default();
    let wrap = |image: &Arc<dyn BlockDevice>| {
        let recording = RecordingDevice::with_clock(OverlayDevice::new(image.clone()), Arc::clone(&clock));
        Arc::new(FaultDevice::new(recording))
    };
    let devices: Vec<Arc<Device>> = [Some(&images.main), images.log.as_ref()].into_iter().flatten().map(wrap).collect();
    let mut refused = 0..0;
    match fault {
        Some(Fault::Request { on_log, op, nth, span, kind }) => {
            devices[usize::from(on_log)].inject(op, nth, span, kind);
        }
        Some(Fault::Space { nth, span }) => {
            refused = nth..if span == FaultSpan::Once { nth + 1 } else { u64::MAX };
        }
        None => {}
    }
    let lie = match fault.map_or(Lie::None, |fault| fault.lie()) {
        // A last checkpoint that is misread while the log is replayed looks like its end: what is there is old. And as long as the log has
        // changes of a block, the block is read without its checksum, since power may have torn it: what is misread then stays.
        Lie::Read if !base.is_closed => Lie::Invisible,
        lie => lie,
    };
    let history = History::new(base.model.clone(), 0);
    let starving = Starving::begin(refused);
    let mut rig = Rig {
        devices,
        starving,
        lie,
        op: if let Some(Fault::Request { op, .. }) = fault { op } else { FaultOp::Read },
        history,
        told: false,
        host_was_full: false,
        wrong_bytes: false,
        vouched: base.setup.data_checksums && lie != Lie::Invisible,
        rules: base.setup.rules(),
    };
    match unwound(rig.op, || Engine::open(&base.setup, rig.faulty(), Way::Path)) {
        Ok(engine) => rig.run_steps(engine, steps)?,
        Err(error) if is_expected(&error, lie) => rig.told = true,
        Err(error) => return Err(format!("opening: {error}")),
    }
    let mut seen = Seen::default();
    for (device, seen) in rig.devices.iter().zip(&mut seen.requests) {
        *seen = OPS.map(|op| device.seen(op));
    }
    seen.allocations = starve::seen();
    rig.starving.end();
    let outcome = rig.look(base, fault)?;
    Ok((seen, outcome))
}

impl Rig {
    fn faulty(&self) -> Devices {
        let mut devices = self.devices.iter().map(|device| device.clone() as Arc<dyn BlockDevice>);
        Devices { main: devices.next().expect("a volume has a device"), log: devices.next() }
    }

    /// The devices as they are, working well from here on.
    fn healthy(&self) -> Devices {
        let mut images =
            self.devices.iter().map(|device| Arc::new(device.inner().inner().fork()) as Arc<dyn BlockDevice>);
        Devices { main: images.next().expect("a volume has a device"), log: images.next() }
    }

    fn point(&self) -> usize {
        self.devices.iter().map(|device| device.inner().event_count()).sum()
    }

    fn apply(&mut self, step: &Step) -> Answer {
        let point = self.point();
        self.history.apply(step, point)
    }

    fn apply_failed(&mut self, step: &Step) {
        let point = self.point();
        self.history.apply_failed(step, point);
    }

    fn run_steps(&mut self, mut engine: Engine, steps: &[Step]) -> Result<(), String> {
        let mut differ = Differ::new(self.rules);
        for (index, step) in steps.iter().enumerate() {
            let at = |message: String| format!("step {index}:\n{}{message}", shrink::show(std::slice::from_ref(step)));
            let clock = self.history.model().next_clock();
            let left = match unwound(self.op, || engine.run(step, clock)) {
                Ok(Err(Errno::NOSPC)) if self.starving.struck() => self.starved(engine, step),
                Ok(got) => self.answered(engine, step, &got, &mut differ),
                Err(error) if is_expected(&error, self.lie) => self.failed(engine, step, &error),
                Err(error) => Err(format!("not an error of the device: {error}")),
            };
            match left.map_err(at)? {
                Some(left) => engine = left,
                None => return Ok(()),
            }
        }
        match unwound(self.op, || engine.close()) {
            Err(error) if !self.may_say(&error) => return Err(format!("closing: {error}")),
            Err(_) => {
                self.told = true;
                // Closing may have made durable what nobody had asked for yet.
                self.apply_failed(&SYNC);
            }
            Ok(()) => {
                let _ = self.apply(&SYNC);
            }
        }
        Ok(())
    }

    /// A step was refused for lack of space. The engine, if the run goes on.
    fn starved(&mut self, mut engine: Engine, step: &Step) -> Result<Option<Engine>, String> {
        self.told = true;
        if step.op == Op::Remount {
            // Closing could not flush all; it may have made durable what it could.
            self.apply_failed(&SYNC);
            return Ok(None);
        }
        if engine.fs().shut_down_reason().is_some() {
            // Half of the operation stands in memory, and no checkpoint has what it changed.
            after_failure(engine, step, &Error::Shutdown)?;
            if !self.is_one_piece(step) {
                self.apply_failed(step);
            }
            self.apply_failed(&SYNC);
            return Ok(None);
        }
        if may_be_half_done(step) {
            // Closing may make durable what there is of it.
            let closed = engine.close();
            self.apply_failed(step);
            self.apply_failed(&SYNC);
            return match closed {
                Err(error) if !self.may_say(&error) => Err(format!("closing: {error}")),
                _ => Ok(None),
            };
        }
        if let Op::Open { slot, .. } | Op::OpenTmpfile { slot, .. } = step.op {
            // What was in the slot was closed first.
            let _ = self.apply(&Step { cred: 0, op: Op::Close { slot } });
        }
        Ok(Some(engine))
    }

    /// A step was answered: compares the answer with the model's. The engine, if the run goes on.
    fn answered(
        &mut self,
        engine: Engine,
        step: &Step,
        got: &Answer,
        differ: &mut Differ,
    ) -> Result<Option<Engine>, String> {
        // What follows the byte that could not be had is not written, and the count says so.
        let short = self.told_or_struck().then(|| short_write(step, got)).flatten();
        let step = short.as_ref().unwrap_or(step);
        let expected = self.apply(step);
        let compared = differ.answer(self.history.model(), step, &expected, got);
        match (self.lie, compared) {
            (_, Ok(())) => {}
            (Lie::None, Err(message)) => return Err(message),
            (_, Err(message)) if self.vouched => return Err(message),
            // No checksum covers them.
            (_, Err(_)) if matches!((&step.op, got), (Op::Read { .. }, Ok(_))) => self.wrong_bytes = true,
            // A hole and zeros are the same to the oracle, not to the seek.
            (_, Err(_)) if matches!(step.op, Op::SeekData { .. } | Op::SeekHole { .. }) => self.wrong_bytes = true,
            // An old block was read, or a wrong target was followed; from here on the model knows nothing of this volume.
            (_, Err(_)) if self.lie == Lie::Invisible || self.has_targets() => {
                give_up(engine);
                return Ok(None);
            }
            (_, Err(message)) => return Err(message),
        }
        Ok(Some(engine))
    }

    /// A step failed, as the device may make it. The engine, if the run goes on.
    fn failed(&mut self, engine: Engine, step: &Step, error: &Error) -> Result<Option<Engine>, String> {
        self.told = true;
        self.host_was_full |= matches!(error, Error::HostFull(_));
        if step.op == Op::Remount {
            // The volume is closed, or was never opened again; what closing wrote counts.
            self.apply_failed(&SYNC);
            return Ok(None);
        }
        if self.lie != Lie::None {
            self.apply_failed(step);
            self.apply_failed(&SYNC);
            give_up(engine);
            return Ok(None);
        }
        if !step.op.is_change() {
            return Ok(Some(engine));
        }
        // A read that failed before anything was changed leaves no trace: the run goes on, and would show one.
        let is_down = engine.fs().shut_down_reason().is_some();
        if is_read(error) && self.is_one_piece(step) && !is_down {
            return Ok(Some(engine));
        }
        // What trying again and closing write may be a checkpoint with or without the operation: whether it is in effect is open
        // from here on, but not whether it was promised.
        after_failure(engine, step, error)?;
        self.apply_failed(step);
        self.apply_failed(&SYNC);
        Ok(None)
    }

    /// Whether the error is one that the device may cause, or says that there is no space after there was none.
    fn may_say(&self, error: &Error) -> bool {
        let is_starved = self.starving.struck() && error.errno() == myriad_engine::Errno::NOSPC;
        is_starved || is_expected(error, self.lie)
    }

    fn told_or_struck(&self) -> bool {
        self.told || self.starving.struck() || self.devices.iter().any(|device| device.struck() > 0)
    }

    /// Whether there are links whose targets lie in blocks, like a file's data.
    fn has_targets(&self) -> bool {
        let in_blocks = |body: &Body| matches!(body, Body::Link(target) if target.len() > TARGET_IN_BODY);
        self.history.model().inodes().any(|(_, inode)| in_blocks(&inode.body))
    }

    /// Whether the operation is one transaction, so that it happens or does not. A sync first flushes; what changes a
    /// size, or removes a file, may free what it cut off in several.
    fn is_one_piece(&self, step: &Step) -> bool {
        match &step.op {
            Op::Sync | Op::Fsync { .. } | Op::Write { .. } | Op::Truncate { .. } | Op::Allocate { .. } => false,
            Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } | Op::Close { .. } => false,
            Op::SetAttr { change, .. } | Op::HandleSetAttr { change, .. } => !matches!(change, Change::Size(_)),
            // The slot's file is closed first, and may have to go.
            Op::Open { slot, how, .. } => !how.truncate && self.history.model().handle(*slot).is_none(),
            Op::OpenTmpfile { slot, .. } => self.history.model().handle(*slot).is_none(),
            _ => true,
        }
    }

    /// The volume on the medium as it is.
    fn look(&self, base: &Base, fault: Option<Fault>) -> Result<Outcome, String> {
        let outcome = self.judge(base, &self.healthy())?;
        let is_flush = matches!(fault, Some(Fault::Request { op: FaultOp::Flush, .. }));
        if is_flush || self.host_was_full {
            self.lose_power(base)?;
        }
        Ok(outcome)
    }

    /// A device whose flush failed, or was none, or that had no room, loses power: of what it was given since the last one that it served, some
    /// arrived.
    fn lose_power(&self, base: &Base) -> Result<(), String> {
        const BOUNDS: Bounds = Bounds { all_up_to: 1, sampled: 2, tears: 1, scattered: 1 };
        const STATES_MAX: usize = 8;
        let trace = trace(&base.devices(), self.devices.iter().map(|device| device.inner()));
        let mut cursor = trace.cursor();
        while cursor.advance().map_err(|error| error.to_string())? {}
        let mut rng = Rng::new(cursor.point() as u64);
        let mut states = plan::states(&trace, &cursor, &BOUNDS, &mut rng);
        while states.len() > STATES_MAX {
            states.swap_remove(rng.index(states.len()));
        }
        for (kind, pieces) in states {
            let state = cursor.state(&pieces).map_err(|error| error.to_string())?;
            self.judge(base, &state).map_err(|message| format!("then power was lost, {}: {message}", kind.name()))?;
        }
        Ok(())
    }

    /// Looks at the volume as these devices have it.
    fn judge(&self, base: &Base, devices: &Devices) -> Result<Outcome, String> {
        let healthy = fork(devices);
        let noticed = if self.told { Outcome::Error } else { Outcome::Harmless };
        match Promise::of(base.setup.order) {
            Promise::Prefix => {}
            Promise::Usable | Promise::Returned => return self.use_at_once(base, devices, noticed),
            Promise::Repair => return self.mend(base, devices, noticed),
        }
        if self.lie == Lie::None {
            self.hold_to(base, &healthy, check_silent, History::judge)?;
            return Ok(noticed);
        }
        let sound = check_silent(&healthy);
        if let Err(message) = &sound {
            if self.lie == Lie::Read {
                return Err(format!("a wrong read has damaged the volume: {message}"));
            }
            let torn = finds(&healthy, myriad_check::number::SUPERBLOCK);
            if torn && Engine::open(&base.setup, fork(devices), Way::Path).is_ok() {
                return Err(format!("a volume with a damaged superblock was opened: {message}"));
            }
            // The engine tells, or shows what it can; it never fails in another way.
            match self.read(base, &fork(devices)) {
                Err(message) if message.starts_with("panic") => return Err(message),
                _ => {}
            }
            repair(&healthy)?;
        }
        let found = self.read(base, &healthy)?;
        // A target too long for the inode's body lies in blocks like a file's data.
        let in_blocks = |target: &Vec<u8>| target.len() > TARGET_IN_BODY;
        let has_targets = found.tree.iter().any(|entry| entry.target.as_ref().is_some_and(in_blocks));
        if sound.is_ok() && self.lie != Lie::Invisible && !has_targets && !self.history.was(&found) {
            return Err("the checker is silent, but the names are those of no moment of the run".into());
        }
        Ok(match (sound, self.told, self.lie) {
            (_, true, _) => Outcome::Error,
            (Err(_), ..) => Outcome::Checker,
            (Ok(()), false, Lie::Invisible) => Outcome::Unnoticed,
            _ if self.wrong_bytes || self.history.judge(self.point(), &found).is_err() => Outcome::Unnoticed,
            _ => Outcome::Harmless,
        })
    }

    /// A volume whose device did not lie keeps what its order promises: the check says so before it is opened and after, and the history
    /// of what was found in it.
    fn hold_to(
        &self,
        base: &Base,
        devices: &Devices,
        check: fn(&Devices) -> Result<(), String>,
        judge: impl Fn(&History, usize, &Found) -> Result<(), String>,
    ) -> Result<(), String> {
        check(devices).map_err(|message| format!("before the opening: {message}"))?;
        let found = self.read(base, devices)?;
        judge(&self.history, self.point(), &found)?;
        check(devices)
    }

    /// A volume that promises to be usable at once, unless its device lied.
    fn use_at_once(&self, base: &Base, devices: &Devices, noticed: Outcome) -> Result<Outcome, String> {
        let healthy = fork(devices);
        if self.lie == Lie::None {
            let judge = |history: &History, point, found: &Found| base.setup.judge_usable(history, point, found);
            self.hold_to(base, &healthy, check_usable, judge)?;
            return Ok(noticed);
        }
        let sound = check_usable(&healthy);
        self.repair_and_read(base, &healthy, &sound, noticed)
    }

    /// A volume that promises no more than to be repairable.
    fn mend(&self, base: &Base, devices: &Devices, noticed: Outcome) -> Result<Outcome, String> {
        let healthy = fork(devices);
        let sound = check_silent(&healthy);
        match base.setup.open(fork(devices)) {
            Ok(_) if self.lie == Lie::None => {
                sound.clone().map_err(|why| format!("may be changed, though nobody has checked it: {why}"))?;
            }
            _ => {}
        }
        self.repair_and_read(base, &healthy, &sound, noticed)
    }

    /// Repaired, the volume can be read. If nobody had told of the damage before the check did, that is the outcome.
    fn repair_and_read(
        &self,
        base: &Base,
        devices: &Devices,
        sound: &Result<(), String>,
        noticed: Outcome,
    ) -> Result<Outcome, String> {
        repair(devices)?;
        self.read(base, devices)?;
        Ok(if !self.told && sound.is_err() { Outcome::Checker } else { noticed })
    }

    fn read(&self, base: &Base, devices: &Devices) -> Result<Found, String> {
        let opened = Engine::open(&base.setup, devices.clone(), Way::Path);
        let mut engine = opened.map_err(|error| format!("recovery: {error}"))?;
        let (tree, contents) = engine.found().map_err(|error| format!("reading the tree: {error}"))?;
        engine.close().map_err(|error| format!("closing after recovery: {error}"))?;
        Ok(Found { tree, contents })
    }
}

/// Ends a run on a device that lied, in whatever way it ends; what is on the medium is looked at afterwards.
fn give_up(mut engine: Engine) {
    let _ = engine.found();
    let _ = engine.close();
}

/// Reads go on or fail for the device's sake; once the volume has said shutdown it stays so, and closing is safe.
fn after_failure(mut engine: Engine, step: &Step, error: &Error) -> Result<(), String> {
    let expected = |error: &Error| is_expected(error, Lie::None);
    match engine.found() {
        Err(ReadError::Engine(error)) if expected(&error) => {}
        // The operation that failed in the middle stands half done in memory, and only there.
        Err(ReadError::Engine(Error::Corrupt(_) | Error::Damaged(_))) if engine.fs().shut_down_reason().is_some() => {}
        Err(error) => return Err(format!("reading after the failure: {error}")),
        Ok(_) => {}
    }
    let probe = |engine: &mut Engine, name: &[u8]| {
        engine.run(&Step { cred: 0, op: Op::Mkdir { path: name.into(), mode: 0o755 } }, 0)
    };
    let sync = engine.run(&Step { cred: 0, op: Op::Sync }, 0);
    if matches!(sync, Err(Error::Shutdown)) {
        for name in [b"after1", b"after2"] {
            match probe(&mut engine, name) {
                Err(Error::Shutdown) => {}
                other => return Err(format!("a change after shutdown: {other:?}")),
            }
        }
    } else if matches!(error, Error::HostFull(_)) {
        if let Some(reason) = engine.fs().shut_down_reason() {
            return Err(format!("shut down by a full host: {reason}"));
        }
    } else if matches!(step.op, Op::Sync | Op::Fsync { .. }) && sync.is_ok() && !is_read(error) {
        return Err("a failed sync was tried again and called good".into());
    }
    match engine.close() {
        Err(error) if !expected(&error) => Err(format!("closing: {error}")),
        _ => Ok(()),
    }
}
