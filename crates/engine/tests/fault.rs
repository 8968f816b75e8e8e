//! The nth read, write or flush fails, for every n: an error or a shutdown, never a panic and never damage. Afterwards,
//! on a healthy device, the volume recovers, the crash oracle accepts it, and the checker has nothing to say.

mod common;

use common::{Engine, Setup, Way, catch, check_silent, quietly};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice, RecordingDevice};
use myriad_engine::{Error, Fs};
use myriad_sim::compare::{Differ, Rules};
use myriad_sim::crash::{Found, History};
use myriad_sim::generate::{self, Profile};
use myriad_sim::model::Model;
use myriad_sim::op::*;
use myriad_sim::{rng, shrink};
use std::sync::Arc;

const EIO: i32 = 5;

#[derive(Clone, Copy, Debug)]
struct Fault {
    op: FaultOp,
    nth: u64,
    span: FaultSpan,
}

type Device = FaultDevice<RecordingDevice<MemoryDevice>>;

/// Whether the error is one that a failing device may cause.
fn is_expected(error: &Error) -> bool {
    matches!(error, Error::Io { .. } | Error::Shutdown)
}

/// A read that fails loses nothing, so what asked for it may be tried again.
fn is_read(error: &Error) -> bool {
    matches!(error, Error::Io { op: "read", .. })
}

/// Runs the steps with a fault, then looks at the volume on a healthy device. Answers how many requests of the fault's
/// kind there were.
fn run(setup: &Setup, steps: &[Step], fault: Option<Fault>) -> Result<[u64; 3], String> {
    let device: Arc<Device> = Arc::new(FaultDevice::new(RecordingDevice::new(setup.format())));
    if let Some(Fault { op, nth, span }) = fault {
        device.fail(op, nth, span, EIO);
    }
    let recording = device.inner();
    let mut history = History::new(Model::new(0), 0);
    match Engine::open(setup, device.clone(), Way::Path) {
        Ok(engine) => {
            // On a failing device even this may fail, and is tried again.
            let model = (0..3).find_map(|_| engine.fresh_model().ok());
            history = History::new(model.unwrap_or_else(|| Model::new(0)), 0);
            run_steps(engine, steps, &mut history, recording)?;
        }
        Err(error) if is_expected(&error) => {}
        Err(error) => return Err(format!("opening: {error}")),
    }
    let seen = [FaultOp::Read, FaultOp::Write, FaultOp::Flush].map(|op| device.seen(op));
    let point = recording.event_count();
    let healthy: Arc<dyn BlockDevice> = Arc::new(recording.inner().clone_image());
    check_silent(&healthy).map_err(|message| format!("before recovery: {message}"))?;
    let mut engine = Engine::open(setup, healthy.clone(), Way::Path).map_err(|error| format!("recovery: {error}"))?;
    let (tree, contents) = engine.found().map_err(|error| error.to_string())?;
    history.judge(point, &Found { tree, contents })?;
    engine.close().map_err(|error| error.to_string())?;
    check_silent(&healthy)?;
    Ok(seen)
}

fn run_steps(
    mut engine: Engine,
    steps: &[Step],
    history: &mut History,
    recording: &RecordingDevice<MemoryDevice>,
) -> Result<(), String> {
    let mut differ = Differ::new(Rules::from_env());
    for (index, step) in steps.iter().enumerate() {
        let at = |message: String| format!("step {index}:\n{}{message}", shrink::show(std::slice::from_ref(step)));
        match engine.run(step, history.model().next_clock()) {
            Ok(got) => {
                let expected = history.apply(step, recording.event_count());
                differ.answer(history.model(), step, &expected, &got).map_err(at)?;
            }
            Err(error) if !is_expected(&error) => return Err(at(format!("not an error of the device: {error}"))),
            Err(_) if !step.op.is_change() => {}
            // A read that failed before anything was changed leaves no trace: the run goes on, and would show one.
            Err(error) if is_read(&error) && !matches!(step.op, Op::Sync | Op::Fsync { .. } | Op::Remount) => {
                if let Op::Open { slot, .. } | Op::OpenTmpfile { slot, .. } = step.op {
                    // What was in the slot was closed first.
                    let close = Step { cred: 0, op: Op::Close { slot } };
                    let _ = history.apply(&close, recording.event_count());
                }
            }
            Err(error) => {
                // Whether it is in effect is open from here on, but not whether it was promised.
                history.apply_failed(step, recording.event_count());
                after_failure(engine, step, &error).map_err(at)?;
                // What trying again and closing may have written.
                history.apply_failed(&Step { cred: 0, op: Op::Sync }, recording.event_count());
                return Ok(());
            }
        }
    }
    match engine.close() {
        Err(error) if !is_expected(&error) => Err(format!("closing: {error}")),
        Err(_) => {
            // Closing may have made durable what nobody had asked for yet.
            history.apply_failed(&Step { cred: 0, op: Op::Sync }, recording.event_count());
            Ok(())
        }
        Ok(()) => {
            history.apply(&Step { cred: 0, op: Op::Sync }, recording.event_count()).expect("sync in the model");
            Ok(())
        }
    }
}

/// Reads go on or fail for the device's sake; once the volume has said shutdown it stays so, and closing is safe.
fn after_failure(mut engine: Engine, step: &Step, error: &Error) -> Result<(), String> {
    if let Err(error) = engine.found()
        && !is_expected(&error)
    {
        return Err(format!("reading after the failure: {error}"));
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
    } else if matches!(step.op, Op::Sync | Op::Fsync { .. }) && sync.is_ok() && !is_read(error) {
        return Err("a failed sync was tried again and called good".into());
    }
    match engine.close() {
        Err(error) if !is_expected(&error) => Err(format!("closing: {error}")),
        _ => Ok(()),
    }
}

fn check(test: &str, block_size: u32, span: FaultSpan) {
    let count = if rng::is_long() { 150 } else { 60 };
    let seed = rng::seed_or(u64::from(block_size));
    let mut setup = Setup::new(block_size, 16 << 20);
    setup.log_size = Some(256 << 10);
    // Small, so that there are reads to fail.
    setup.options.cache_size = 1 << 20;
    let profile = Profile { sync_percent: 12, ..Profile::crash() };
    let (steps, _) = generate::run(seed, count, profile);
    let seen = run(&setup, &steps, None).unwrap_or_else(|message| panic!("without a fault: {message}"));
    assert!(seen[1] > 0 && seen[2] > 0, "nothing to fail: {seen:?}");
    let budget = if rng::is_long() { u64::MAX } else { 150 };
    for (op, seen) in [FaultOp::Read, FaultOp::Write, FaultOp::Flush].into_iter().zip(seen) {
        let stride = seen.div_ceil(budget).max(1);
        for nth in (1..=seen).step_by(stride as usize) {
            let fault = Fault { op, nth, span };
            let go = |steps: &[Step]| catch(|| run(&setup, steps, Some(fault)).map(|_| ()));
            let Err(message) = go(&steps) else { continue };
            let small = quietly(|| shrink::shrink(&steps, 150, |steps| go(steps).is_err()));
            panic!(
                "{fault:?}: {message}\n{}\nshrunk to {} steps: {}\n{}",
                rng::replay_line("myriad-engine", &format!("fault::{test}"), seed, ""),
                small.len(),
                quietly(|| go(&small)).err().unwrap_or_default(),
                shrink::show(&small)
            );
        }
    }
}

#[test]
fn one_request_fails() {
    check("one_request_fails", 4096, FaultSpan::Once);
}

#[test]
fn one_request_fails_on_small_blocks() {
    check("one_request_fails_on_small_blocks", 512, FaultSpan::Once);
}

#[test]
fn the_device_fails_for_good() {
    check("the_device_fails_for_good", 4096, FaultSpan::Forever);
}

/// mkfs says so when it cannot write, and leaves nothing that opens as a volume with damage.
#[test]
fn mkfs_fails_cleanly() {
    let setup = Setup::new(4096, 16 << 20);
    let device = Arc::new(FaultDevice::new(MemoryDevice::new(setup.size)));
    Fs::format_device(device.clone(), None, &setup.mkfs_options()).unwrap();
    let seen = [FaultOp::Write, FaultOp::Flush].map(|op| (op, device.seen(op)));
    for (op, seen) in seen {
        for nth in 1..=seen {
            let device = Arc::new(FaultDevice::new(MemoryDevice::new(setup.size)));
            device.fail(op, nth, FaultSpan::Once, EIO);
            let made = Fs::format_device(device.clone(), None, &setup.mkfs_options());
            assert!(matches!(made, Err(Error::Io { .. })), "{op:?} {nth}: {made:?}");
        }
    }
}
