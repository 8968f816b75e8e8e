//! Random lookups in a directory whose entries are hard links, so that inodes stay in memory whatever its size: Sweeney and others 1996,
//! Figure 4.

use super::names::{NameStyle, push_name};
use super::plan::{Plan, Verb};
use super::random::Random;
use super::{Phase, Workload};

#[derive(Clone, Debug)]
pub struct Links {
    pub entries: u64,
    /// Names of a file.
    pub links: u64,
    pub lookups: u64,
    pub seed: u64,
}

impl Links {
    fn push_dir(out: &mut Vec<u8>, thread: usize) {
        push_name(out, NameStyle::Numeric, b'd', thread as u64, 0);
    }

    fn push_entry(&self, out: &mut Vec<u8>, thread: usize, entry: u64) {
        Self::push_dir(out, thread);
        out.push(b'/');
        push_name(out, NameStyle::Numeric, b'n', entry, self.seed);
    }
}

impl Workload for Links {
    fn name(&self) -> &'static str {
        "lookup"
    }

    fn phases(&self) -> Vec<Phase> {
        let make = |name| Phase { reported: false, links: true, ..Phase::new(name, true) };
        vec![make("mkdir"), make("link"), Phase { cold: true, links: true, ..Phase::new("lookup", false) }]
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        let mut plan = Plan::default();
        if phase.name == "mkdir" {
            plan.push(Verb::Mkdir, |out| Self::push_dir(out, thread));
            return plan;
        }
        plan.push(Verb::Enter, |out| Self::push_dir(out, thread));
        if phase.name == "link" {
            for entry in 0..self.entries {
                let file = entry / self.links * self.links;
                if entry == file {
                    plan.push(Verb::Create, |out| self.push_entry(out, thread, entry));
                } else {
                    plan.push_link(|out| self.push_entry(out, thread, file), |out| self.push_entry(out, thread, entry));
                }
            }
            return plan;
        }
        let mut random = Random::stream(self.seed, "lookup", thread);
        for _ in 0..self.lookups {
            let entry = random.below(self.entries);
            plan.push(Verb::Stat, |out| self.push_entry(out, thread, entry));
        }
        plan
    }
}
