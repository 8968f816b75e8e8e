//! Volumes that runs start from: made once, closed cleanly or as a power cut leaves them, and shared by all runs.

use crate::machine::{Engine, Way};
use crate::setup::{Devices, Setup};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_sim::compare::Differ;
use myriad_sim::model::Model;
use myriad_sim::op::{Answer, Op, Step, Value};
use myriad_sim::shrink;
use std::sync::Arc;

/// A volume and what it holds.
pub struct Base {
    pub setup: Setup,
    main: MemoryDevice,
    log: Option<MemoryDevice>,
    /// As the volume was closed, or synced before the power cut.
    pub model: Model,
    /// Whether it was closed.
    pub is_closed: bool,
}

impl Base {
    /// A fresh volume on which these steps were run.
    pub fn new(setup: Setup, steps: &[Step]) -> Result<Self, String> {
        Self::made(setup, steps, true)
    }

    /// As [`Base::new`], but power fails after a sync: the log has to be replayed.
    pub fn crashed(setup: Setup, steps: &[Step]) -> Result<Self, String> {
        Self::made(setup, steps, false)
    }

    fn made(setup: Setup, steps: &[Step], close: bool) -> Result<Self, String> {
        let (main, log) = setup.format_all();
        let base = Self { setup, main, log, model: Model::new(0), is_closed: true };
        let devices = base.devices();
        let mut engine = Engine::open(&base.setup, devices.clone(), Way::Path).map_err(|error| error.to_string())?;
        let mut model = engine.fresh_model().map_err(|error| error.to_string())?;
        let mut differ = Differ::new(base.setup.rules());
        for step in steps {
            run_step(&mut engine, step, &mut differ, &mut Plain(&mut model))?;
        }
        if close {
            engine.close().map_err(|error| error.to_string())?;
        } else {
            run_step(&mut engine, &Step { cred: 0, op: Op::Sync }, &mut differ, &mut Plain(&mut model))?;
        }
        let image = |device: &Arc<dyn BlockDevice>, size: u64| {
            let image = MemoryDevice::new(size);
            let mut buf = vec![0; 64 << 10];
            for at in (0..size).step_by(buf.len()) {
                let len = (size - at).min(buf.len() as u64) as usize;
                device.read(at, &mut buf[..len]).and_then(|()| image.write(at, &buf[..len])).expect("memory");
            }
            image
        };
        let log = devices.log.as_ref().map(|log| image(log, log.size()));
        let main = image(&devices.main, devices.main.size());
        if !close {
            // What closing writes is not in the images.
            engine.close().map_err(|error| error.to_string())?;
        }
        let _ = model.apply(&Step { cred: 0, op: Op::Remount });
        Ok(Self { main, log, model, is_closed: close, ..base })
    }

    /// The devices, as the volume was closed; changes stay in these.
    pub fn devices(&self) -> Devices {
        let image = |device: &MemoryDevice| Arc::new(device.clone_image()) as Arc<dyn BlockDevice>;
        Devices { main: image(&self.main), log: self.log.as_ref().map(image) }
    }

    /// As [`Base::devices`], with the type they have.
    pub fn images(&self) -> Vec<MemoryDevice> {
        [Some(&self.main), self.log.as_ref()].into_iter().flatten().map(MemoryDevice::clone_image).collect()
    }
}

/// What follows a run step by step: a model, or the history of one.
pub trait Follower {
    fn model(&self) -> &Model;
    fn apply(&mut self, step: &Step) -> Answer;
}

struct Plain<'a>(&'a mut Model);

impl Follower for Plain<'_> {
    fn model(&self) -> &Model {
        self.0
    }

    fn apply(&mut self, step: &Step) -> Answer {
        self.0.apply(step)
    }
}

/// Runs a step on both, and holds the answers against each other. The model never runs out of space: what the volume
/// refuses for lack of it must not have happened, and of a short write only the beginning.
pub fn run_step(
    engine: &mut Engine,
    step: &Step,
    differ: &mut Differ,
    follower: &mut dyn Follower,
) -> Result<(), String> {
    let at = |message: String| format!("{}{message}", shrink::show(std::slice::from_ref(step)));
    let got = engine.run(step, follower.model().next_clock()).map_err(|error| at(error.to_string()))?;
    if got == Err(myriad_sim::errno::Errno::NOSPC) {
        if let Op::Open { slot, .. } | Op::OpenTmpfile { slot, .. } = step.op {
            // What was in the slot was closed first.
            let _ = follower.apply(&Step { cred: 0, op: Op::Close { slot } });
        }
        return Ok(());
    }
    let short = short_write(step, &got);
    let step = short.as_ref().unwrap_or(step);
    let expected = follower.apply(step);
    differ.answer(follower.model(), step, &expected, &got).map_err(at)
}

/// The write that was done, if it was a shorter one than was asked for.
pub fn short_write(step: &Step, got: &Answer) -> Option<Step> {
    match (&step.op, got) {
        (&Op::Write { slot, offset, len, tag }, &Ok(Value::Count(count))) if count < len as u64 => {
            Some(Step { cred: step.cred, op: Op::Write { slot, offset, len: count as usize, tag } })
        }
        _ => None,
    }
}
