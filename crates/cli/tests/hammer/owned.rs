//! Names that one thread alone uses, in the directory that all share: they must agree exactly with the model.

use crate::worker::Outcome;
use myriad_sim::Errno;
use myriad_sim::compare::{Differ, Rules};
use myriad_sim::generate::{Generator, Profile};
use myriad_sim::host::{Direct, add_tree, remove};
use myriad_sim::model::{Model, ROOT};
use myriad_sim::op::{Answer, Op, Step, Value};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The root directory of these processes is the shared one.
const TOP: &str = "/";

pub struct Owned {
    /// What each of this thread's names begins with.
    tag: [u8; 2],
    generator: Generator,
    model: Model,
    direct: Direct,
    differ: Differ,
    steps: u64,
}

impl Owned {
    pub fn new(thread: usize, seed: u64) -> Self {
        let profile = Profile {
            root_only: true,
            confined: true,
            sync_percent: 0,
            remount_every: 0,
            burst_every: 400,
            burst_max: 120,
            inodes_max: 60,
            offset_max: 60_000,
            len_max: 9000,
            // The kernel's flags and devices are of mount options, not of who meets whom.
            flags: false,
            special: false,
            huge: false,
            ..Profile::default()
        };
        let mut model = Model::new(0);
        model.size_max = i64::MAX as u64;
        Self {
            tag: [b'0' + thread as u8, b'~'],
            generator: Generator::new(seed, profile),
            model,
            direct: Direct::default(),
            differ: Differ::new(Rules { times: false, flags: false, ..Rules::ALL }),
            steps: 0,
        }
    }

    pub fn step(&mut self) -> Outcome {
        let step = self.generator.next(&self.model);
        let step = self.adopt(step);
        let expected = self.model.apply(&step);
        let mut got = self.direct.run(step.op.clone());
        // While the kernel takes attributes that another thread has asked for, it may show older ones for a moment.
        while let Op::Stat { .. } = &step.op {
            let again = self.direct.run(step.op.clone());
            let same = again == got;
            got = again;
            if same {
                break;
            }
        }
        // When a name goes, the kernel counts a link off by itself. Told by another thread's question of the lower count
        // already, it takes a file of one name for one of none, until somebody asks again.
        if let Op::LinkFile { slot, .. } = &step.op
            && expected.is_ok()
            && got == Err(Errno::NOENT)
        {
            let _ = self.direct.run(Op::HandleStat { slot: *slot });
            got = self.direct.run(step.op.clone());
        }
        if let (Op::ReadDir { path }, Ok(Value::Entries(entries))) = (&step.op, &mut got)
            && self.model.find(path) == Some(ROOT)
        {
            entries.retain(|entry| entry.name.starts_with(&self.tag));
        }
        self.steps += 1;
        self.judge(&step, &expected, &got)
    }

    fn judge(&mut self, step: &Step, expected: &Answer, got: &Answer) -> Outcome {
        let judged = self.differ.answer(&self.model, step, expected, got);
        judged.map_err(|error| format!("own step {}, {:?}: {error}", self.steps, step.op))
    }

    /// The step with this thread's own names. What would look at or change the shared directory itself, whose attributes
    /// are everybody's, lists it instead.
    fn adopt(&self, mut step: Step) -> Step {
        let own = |path: &mut Vec<u8>| {
            let names = path.split(|&byte| byte == b'/').map(|name| self.own(name)).collect::<Vec<_>>();
            *path = names.join(&b'/');
        };
        if let Op::Symlink { target, .. } = &mut step.op {
            own(target);
        }
        step.op.paths_mut().into_iter().for_each(own);
        if step.op.paths().iter().any(|path| self.model.find(path) == Some(ROOT)) {
            step.op = Op::ReadDir { path: TOP.into() };
        }
        step
    }

    fn own(&self, name: &[u8]) -> Vec<u8> {
        if matches!(name, b"" | b"." | b"..") || name.starts_with(&self.tag) {
            return name.to_vec();
        }
        // Names of about the greatest length keep theirs.
        let kept = if name.len() < 250 { name } else { &name[self.tag.len()..] };
        [&self.tag, kept].concat()
    }

    /// With everybody at rest: the tree is the model's. Then it goes.
    pub fn finish(self) -> Outcome {
        let Self { tag, model, direct, mut differ, .. } = self;
        let failed = |error: std::io::Error| format!("own names: {error}");
        let mut tree: Vec<_> = model.tree().into_iter().take(1).collect();
        let mut names = Vec::new();
        for entry in std::fs::read_dir(TOP).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if name.as_bytes().starts_with(&tag) {
                add_tree(Path::new(TOP), name.as_bytes().to_vec(), &mut tree).map_err(failed)?;
                names.push(name.as_bytes().to_vec());
            }
        }
        // The shared directory's own attributes are those of all.
        differ.tree(&model, &tree).map_err(|error| format!("own tree: {error}"))?;
        drop(direct);
        names.iter().try_for_each(|name| remove(&Path::new(TOP).join(OsStr::from_bytes(name)))).map_err(failed)
    }
}
