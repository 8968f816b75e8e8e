//! Bonnie++ 1.01: one large file by blocks, then empty files in one directory, in order and at random.
//!
//! Names of the test in order begin with a number of seven digits, those of the random test end with it; up to twelve random letters make
//! up the rest. The test in order asks for files, and removes them, in the order of the directory's listing, as Bonnie++ does. The phases that move single characters are left out: they measure the C library.

use super::plan::{Plan, Verb};
use super::random::Random;
use super::{Phase, Workload};
use std::io::Write;

#[derive(Clone, Debug)]
pub struct Bonnie {
    /// Bytes of the large file.
    pub bytes: u64,
    pub files: u64,
    pub seeks: u64,
    pub seed: u64,
}

const BLOCK: u64 = 8192;

impl Bonnie {
    fn push_dir(out: &mut Vec<u8>, thread: usize) {
        write!(out, "bonnie{thread}").expect("a vector takes all");
    }

    fn push_name(&self, out: &mut Vec<u8>, thread: usize, index: u64, numbers_first: bool) {
        Self::push_dir(out, thread);
        out.push(b'/');
        if numbers_first {
            write!(out, "{index:07}").expect("a vector takes all");
        }
        let mut random = Random::stream(self.seed, "letters", index as usize);
        for _ in 0..random.below(13) {
            out.push(b'a' + random.below(26) as u8);
        }
        if !numbers_first {
            write!(out, "{index:07}").expect("a vector takes all");
        }
    }

    fn files(&self, thread: usize, phase: &str) -> Plan {
        let mut plan = Plan::default();
        plan.push(Verb::Enter, |out| Self::push_dir(out, thread));
        let in_order = phase.starts_with("sequential");
        if in_order && phase != "sequential_create" {
            let verb = if phase.ends_with("stat") { Verb::StatListed } else { Verb::UnlinkListed };
            plan.push_sized(verb, |out| Self::push_dir(out, thread), self.files, 0);
            return plan;
        }
        let verb = match phase.rsplit('_').next() {
            Some("create") => Verb::Create,
            Some("stat") => Verb::Stat,
            _ => Verb::Unlink,
        };
        let order = if in_order || verb == Verb::Create {
            (0..self.files).collect()
        } else {
            Random::stream(self.seed, phase, thread).permutation(self.files)
        };
        for index in order {
            plan.push(verb, |out| self.push_name(out, thread, index, in_order));
        }
        plan
    }

    fn large(&self, thread: usize, phase: &str) -> Plan {
        let mut plan = Plan::default();
        let open = if phase == "write" { Verb::OpenNew } else { Verb::OpenOld };
        plan.push(open, |out| write!(out, "large{thread}").expect("a vector takes all"));
        let blocks = self.bytes / BLOCK;
        let mut push = |verb, block: u64| plan.push_sized(verb, |_| {}, BLOCK, block * BLOCK);
        match phase {
            "write" => (0..blocks).for_each(|block| push(Verb::WriteAt, block)),
            "read" => (0..blocks).for_each(|block| push(Verb::ReadAt, block)),
            "rewrite" => {
                for block in 0..blocks {
                    push(Verb::ReadAt, block);
                    push(Verb::WriteAt, block);
                }
            }
            _ => {
                let mut random = Random::stream(self.seed, phase, thread);
                for _ in 0..self.seeks {
                    let block = random.below(blocks);
                    push(Verb::ReadAt, block);
                    if random.below(10) == 0 {
                        push(Verb::WriteAt, block);
                    }
                }
            }
        }
        plan
    }
}

impl Workload for Bonnie {
    fn name(&self) -> &'static str {
        "bonnie"
    }

    fn phases(&self) -> Vec<Phase> {
        let large = |name, changes, cold| Phase { random_access: true, cold, ..Phase::new(name, changes) };
        let mut phases = vec![
            large("write", true, false),
            large("rewrite", true, true),
            large("read", false, true),
            large("seeks", true, true),
            Phase { reported: false, ..Phase::new("mkdir", true) },
        ];
        for kind in ["sequential", "random"] {
            phases.push(Phase::new(format!("{kind}_create"), true));
            phases.push(Phase::new(format!("{kind}_stat"), false));
            phases.push(Phase::new(format!("{kind}_delete"), true));
        }
        phases
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        match phase.name.as_str() {
            "mkdir" => {
                let mut plan = Plan::default();
                plan.push(Verb::Mkdir, |out| Self::push_dir(out, thread));
                plan
            }
            name if phase.random_access => self.large(thread, name),
            name => self.files(thread, name),
        }
    }
}
