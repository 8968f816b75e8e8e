//! What happens to a tree: it is unpacked, searched, read, built from, accessed at random, removed.
//!
//! One generator for tar, the ports tree, Andrew, a build, a kernel tree, `node_modules`, training sets and listrates: a [`Shape`], how many
//! copies of it, and the steps in their order.

use super::plan::{Plan, Verb};
use super::random::{Random, mix};
use super::shape::Shape;
use super::{Phase, Workload};
use std::io::Write;
use std::sync::Arc;

/// What a phase does to every copy of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Directories, then nothing in them.
    Mkdirs,
    /// The files into directories that are there.
    Copy,
    /// Directories and files, depth first, as tar does it.
    Unpack,
    /// The same with holes for contents: for steps that ask for metadata only.
    UnpackHoles,
    /// All names.
    Find,
    /// All names with attributes.
    Stat,
    /// Every file, in the order in which they were made.
    Read,
    /// Every file once, in random order.
    ReadRandom,
    /// Every file read, and an object of its size written into a tree of objects.
    Build,
    /// Everything removed.
    Remove,
    /// The tree of objects removed.
    RemoveObjects,
    /// Attributes of files drawn anew each time.
    Access(Draw, Verb),
    /// The same files as in the phase of this kind before it.
    AccessAgain(Draw, Verb),
    /// New files in directories drawn.
    CreateIn(Draw),
}

/// How files or directories are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    Uniform,
    /// Zipf's law with exponent 1, over a random order.
    Zipf,
}

/// A step under the name of its phase.
#[derive(Clone, Debug)]
pub struct Named {
    pub phase: &'static str,
    pub step: Step,
    /// Drop caches first.
    pub cold: bool,
    /// In the results; the others only prepare.
    pub reported: bool,
}

impl Named {
    pub const fn new(phase: &'static str, step: Step) -> Self {
        Self { phase, step, cold: false, reported: true }
    }

    pub const fn cold(self) -> Self {
        Self { cold: true, ..self }
    }

    pub const fn unreported(self) -> Self {
        Self { reported: false, ..self }
    }
}

#[derive(Clone, Debug)]
pub struct TreeWork {
    pub name: &'static str,
    pub shape: Arc<Shape>,
    pub copies: u64,
    pub steps: Vec<Named>,
    /// Of each phase that draws.
    pub accesses: u64,
    pub seed: u64,
}

impl Step {
    fn changes(self) -> bool {
        match self {
            Self::Find | Self::Stat | Self::Read | Self::ReadRandom => false,
            Self::Access(_, verb) | Self::AccessAgain(_, verb) => verb.changes(),
            _ => true,
        }
    }
}

/// Draws numbers below a bound.
struct Drawer {
    /// Cumulated weights; empty for uniform draws.
    cumulated: Vec<f64>,
    order: Vec<u64>,
    count: u64,
}

impl Drawer {
    fn new(draw: Draw, count: u64, seed: u64) -> Self {
        if draw == Draw::Uniform {
            return Self { cumulated: Vec::new(), order: Vec::new(), count };
        }
        let mut sum = 0.0;
        let cumulated = (1..=count)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        Self { cumulated, order: Random::stream(seed, "ranks", 0).permutation(count), count }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let Some(total) = self.cumulated.last() else { return random.below(self.count) };
        let wanted = random.unit() * total;
        let rank = self.cumulated.partition_point(|&sum| sum <= wanted);
        self.order[rank.min(self.order.len() - 1)]
    }
}

impl TreeWork {
    fn top(&self, thread: usize, copy: u64) -> String {
        format!("t{thread}c{copy}")
    }

    fn tops(&self, thread: usize) -> impl Iterator<Item = String> + '_ {
        (0..self.copies).map(move |copy| self.top(thread, copy))
    }

    /// Where a file's content begins.
    fn place(file: usize) -> u64 {
        mix(file as u64) >> 20
    }

    /// Files and directories of one copy.
    fn entries(&self) -> u64 {
        self.shape.dir_count() + self.shape.files().len() as u64
    }

    fn push_unpacked(&self, plan: &mut Plan, top: &str, dirs: bool, verb: Option<Verb>) {
        for dir in self.shape.depth_first() {
            if dirs {
                plan.push(Verb::Mkdir, |out| self.shape.push_dir(out, top, dir));
            }
            let Some(verb) = verb else { continue };
            plan.push(Verb::Enter, |out| self.shape.push_dir(out, top, dir));
            for file in self.shape.files_of(dir) {
                let size = self.shape.files()[file].size;
                plan.push_sized(verb, |out| self.shape.push_file(out, top, file), size, Self::place(file));
            }
        }
    }

    fn push_reads(&self, plan: &mut Plan, top: &str, order: impl Iterator<Item = u64>) {
        for file in order {
            let file = file as usize;
            let size = self.shape.files()[file].size;
            plan.push_sized(Verb::ReadFile, |out| self.shape.push_file(out, top, file), size, Self::place(file));
        }
    }

    fn push_built(&self, plan: &mut Plan, top: &str) {
        let objects = format!("{top}.o");
        for dir in self.shape.depth_first() {
            plan.push(Verb::Mkdir, |out| self.shape.push_dir(out, &objects, dir));
            for file in self.shape.files_of(dir) {
                self.push_reads(plan, top, std::iter::once(file as u64));
                let size = self.shape.files()[file].size;
                plan.push_sized(
                    Verb::WriteFile,
                    |out| self.shape.push_file(out, &objects, file),
                    size,
                    Self::place(file),
                );
            }
        }
    }

    fn push_accesses(&self, plan: &mut Plan, top: &str, draw: Draw, verb: Verb, stream: &str) {
        let files = self.shape.files().len() as u64;
        let drawer = Drawer::new(draw, files, self.seed);
        let mut random = Random::stream(self.seed, stream, 0);
        for _ in 0..self.accesses {
            let file = drawer.draw(&mut random) as usize;
            plan.push(verb, |out| self.shape.push_file(out, top, file));
        }
    }

    fn push_creates(&self, plan: &mut Plan, top: &str, draw: Draw, phase: &str) {
        let drawer = Drawer::new(draw, self.shape.dir_count(), self.seed);
        let mut random = Random::stream(self.seed, phase, 0);
        for number in 0..self.accesses {
            let dir = drawer.draw(&mut random) as u32;
            plan.push(Verb::Create, |out| {
                self.shape.push_dir(out, top, dir);
                write!(out, "/new{number}.{phase}").expect("a vector takes all");
            });
        }
    }

    fn push_step(&self, plan: &mut Plan, step: Step, top: &str, phase: &str) {
        let files = self.shape.files().len() as u64;
        let whole = |plan: &mut Plan, verb, top: &str| {
            plan.push_sized(verb, |out| out.extend_from_slice(top.as_bytes()), self.entries(), 0);
        };
        match step {
            Step::Mkdirs => self.push_unpacked(plan, top, true, None),
            Step::Copy => self.push_unpacked(plan, top, false, Some(Verb::WriteFile)),
            Step::Unpack => self.push_unpacked(plan, top, true, Some(Verb::WriteFile)),
            Step::UnpackHoles => self.push_unpacked(plan, top, true, Some(Verb::CreateSized)),
            Step::Find => whole(plan, Verb::Find, top),
            Step::Stat => whole(plan, Verb::Walk, top),
            Step::Read => self.push_reads(plan, top, 0..files),
            Step::ReadRandom => {
                let order = Random::stream(self.seed, top, 0).permutation(files);
                self.push_reads(plan, top, order.into_iter());
            }
            Step::Build => self.push_built(plan, top),
            Step::Remove => whole(plan, Verb::RemoveTree, top),
            Step::RemoveObjects => whole(plan, Verb::RemoveTree, &format!("{top}.o")),
            Step::Access(draw, verb) | Step::AccessAgain(draw, verb) => {
                self.push_accesses(plan, top, draw, verb, &format!("{draw:?} {verb:?}"));
            }
            Step::CreateIn(draw) => self.push_creates(plan, top, draw, phase),
        }
    }
}

impl Workload for TreeWork {
    fn name(&self) -> &'static str {
        self.name
    }

    fn phases(&self) -> Vec<Phase> {
        let phase = |named: &Named| Phase {
            cold: named.cold,
            reported: named.reported,
            ..Phase::new(named.phase, named.step.changes())
        };
        self.steps.iter().map(phase).collect()
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        let named = self.steps.iter().find(|named| named.phase == phase.name).expect("a phase of this workload");
        let mut plan = Plan::default();
        for top in self.tops(thread) {
            self.push_step(&mut plan, named.step, &top, named.phase);
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::shape::Sizes;
    use std::collections::{HashMap, HashSet};

    fn work(steps: Vec<Named>) -> TreeWork {
        let sizes = Sizes { mu: 7.0, sigma: 1.0, most: 1 << 20 };
        let shape = Arc::new(Shape::source(20, 200, sizes, ".c", 3));
        TreeWork { name: "tree", shape, copies: 3, steps, accesses: 5_000, seed: 3 }
    }

    fn plan(work: &TreeWork, name: &str) -> Plan {
        let phase = work.phases().into_iter().find(|phase| phase.name == name).unwrap();
        assert_eq!(work.plan(&phase, 0), work.plan(&phase, 0));
        work.plan(&phase, 0)
    }

    #[test]
    fn reads_ask_for_what_was_unpacked() {
        let work = work(vec![
            Named::new("unpack", Step::Unpack),
            Named::new("read", Step::ReadRandom),
            Named::new("build", Step::Build),
            Named::new("remove", Step::Remove),
        ]);
        let unpack = plan(&work, "unpack");
        assert_eq!(unpack.ops(), 3 * 220);
        let made: HashMap<&[u8], (u64, u64)> = unpack
            .iter()
            .filter(|op| op.verb == Verb::WriteFile)
            .map(|op| (op.path.bytes(), (op.size, op.offset)))
            .collect();
        for op in plan(&work, "read").iter().chain(plan(&work, "build").iter().filter(|op| op.verb == Verb::ReadFile)) {
            assert_eq!(made[op.path.bytes()], (op.size, op.offset));
        }
        assert_eq!((plan(&work, "read").ops(), plan(&work, "remove").ops()), (600, 660));
        assert_eq!(plan(&work, "build").ops(), 3 * 420);
    }

    #[test]
    fn a_tree_in_two_steps_is_the_tree_in_one() {
        let work = work(vec![
            Named::new("mkdir", Step::Mkdirs),
            Named::new("copy", Step::Copy),
            Named::new("unpack", Step::Unpack),
        ]);
        let paths = |name: &str| -> HashSet<Vec<u8>> {
            plan(&work, name).iter().filter(|op| op.verb != Verb::Enter).map(|op| op.path.bytes().to_vec()).collect()
        };
        let (mut both, copied) = (paths("mkdir"), paths("copy"));
        both.extend(copied);
        assert_eq!(both, paths("unpack"));
    }

    #[test]
    fn zipf_prefers_few_and_again_is_the_same() {
        let access = |draw| Step::Access(draw, Verb::Stat);
        let work = work(vec![
            Named::new("zipf", access(Draw::Zipf)),
            Named::new("uniform", access(Draw::Uniform)),
            Named::new("again", Step::AccessAgain(Draw::Zipf, Verb::Stat)),
            Named::new("create", Step::CreateIn(Draw::Zipf)),
        ]);
        let most = |name: &str| {
            let mut counts = HashMap::<Vec<u8>, u64>::new();
            for op in plan(&work, name).iter() {
                *counts.entry(op.path.bytes().to_vec()).or_default() += 1;
            }
            *counts.values().max().unwrap()
        };
        // Of 200 ranks the first has 1 / 5.88 of the weight: 850 of 5,000, where a uniform draw gives 25.
        assert!((750..950).contains(&most("zipf")), "{}", most("zipf"));
        assert!(most("uniform") < 60);
        assert_eq!(plan(&work, "zipf"), plan(&work, "again"));
        assert_eq!(most("create"), 1, "a name is made once");
    }
}
