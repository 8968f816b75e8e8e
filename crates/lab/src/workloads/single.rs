//! One directory at a given size: the micro-benchmarks of dirhash (Dowse and Malone 2002, Figures 2 to 6).
//!
//! A small directory is measured in several copies one after the other, so that no phase is over before it began. No absent name is
//! asked for twice, as in the paper.

use super::names::{NameStyle, push_name};
use super::plan::{Plan, Verb};
use super::random::Random;
use super::{Phase, Workload};

#[derive(Clone, Debug)]
pub struct Single {
    pub entries: u64,
    pub seed: u64,
}

/// Operations of a phase at least.
const OPS_MIN: u64 = 1_000;

impl Single {
    fn copies(&self) -> u64 {
        OPS_MIN.div_ceil(self.entries.max(1))
    }

    fn push_dir(out: &mut Vec<u8>, thread: usize, copy: u64) {
        push_name(out, NameStyle::Numeric, b'd', (thread as u64) << 32 | copy, 0);
    }

    fn each(&self, thread: usize, verb: Verb, kind: u8, order: impl Fn(u64) -> Vec<u64>) -> Plan {
        let mut plan = Plan::default();
        for copy in 0..self.copies() {
            plan.push(Verb::Enter, |out| Self::push_dir(out, thread, copy));
            for entry in order(copy) {
                plan.push(verb, |out| {
                    Self::push_dir(out, thread, copy);
                    out.push(b'/');
                    push_name(out, NameStyle::Numeric, kind, entry, self.seed);
                });
            }
        }
        plan
    }

    fn dirs(&self, thread: usize, verb: Verb) -> Plan {
        let mut plan = Plan::default();
        for copy in 0..self.copies() {
            plan.push(verb, |out| Self::push_dir(out, thread, copy));
        }
        plan
    }
}

impl Workload for Single {
    fn name(&self) -> &'static str {
        "dirhash"
    }

    fn phases(&self) -> Vec<Phase> {
        let quietly = |name| Phase { reported: false, ..Phase::new(name, true) };
        vec![
            quietly("mkdir"),
            Phase::new("create", true),
            Phase::new("stat_sequential", false),
            Phase::new("stat_random", false),
            Phase::new("stat_absent", false),
            Phase::new("remove", true),
            // Fails if something is left in there.
            quietly("rmdir"),
        ]
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        let in_order = |_| (0..self.entries).collect();
        let shuffled = |copy| Random::stream(self.seed, "single", copy as usize).permutation(self.entries);
        match phase.name.as_str() {
            "mkdir" => self.dirs(thread, Verb::Mkdir),
            "create" => self.each(thread, Verb::Create, b'f', in_order),
            "stat_sequential" => self.each(thread, Verb::Stat, b'f', in_order),
            "stat_random" => self.each(thread, Verb::Stat, b'f', shuffled),
            "stat_absent" => self.each(thread, Verb::StatMissing, b'a', shuffled),
            "remove" => self.each(thread, Verb::Unlink, b'f', in_order),
            "rmdir" => self.dirs(thread, Verb::Rmdir),
            other => unreachable!("phase {other} is not of this workload"),
        }
    }
}
