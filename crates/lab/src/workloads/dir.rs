//! Many entries in one directory: create, stat, list, rename, unlink.

use super::names::{NameStyle, push_name};
use super::plan::{Plan, Verb};
use super::random::Random;
use super::{Phase, Workload};
use serde::Serialize;

/// In which order entries go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum UnlinkOrder {
    Random,
    /// As they were made.
    Sequential,
}

#[derive(Clone, Debug)]
pub struct Dir {
    /// In each directory.
    pub entries: u64,
    /// Of each thread; threads never share one.
    pub dirs: u64,
    /// Random stats of each kind, per thread.
    pub lookups: u64,
    /// Paths given to the target at once in `stat_many`.
    pub batch: usize,
    pub names: NameStyle,
    pub unlink_order: UnlinkOrder,
    pub cold: bool,
    pub seed: u64,
}

/// Entries that `list` and `list_stat` read at least, so that a small directory's time is not that of one call.
const LISTED_MIN: u64 = 100_000;

impl Dir {
    fn push_dir(&self, out: &mut Vec<u8>, thread: usize, dir: u64) {
        push_name(out, NameStyle::Numeric, b'd', thread as u64 * self.dirs + dir, 0);
    }

    /// Entry `index` of a thread, counted through its directories one after the other.
    fn push_entry(&self, out: &mut Vec<u8>, thread: usize, kind: u8, index: u64) {
        self.push_dir(out, thread, index / self.entries);
        out.push(b'/');
        push_name(out, self.names, kind, index % self.entries, self.seed);
    }

    fn directories(&self, thread: usize, verb: Verb) -> Plan {
        let mut plan = Plan::default();
        for dir in 0..self.dirs {
            plan.push(verb, |out| self.push_dir(out, thread, dir));
        }
        plan
    }

    /// With one directory, all paths lie in it and a C program holds it open; with several in random order, it does not.
    fn enter_only(&self, plan: &mut Plan, thread: usize) {
        if self.dirs == 1 {
            plan.push(Verb::Enter, |out| self.push_dir(out, thread, 0));
        }
    }

    fn in_order(&self, thread: usize, mut push: impl FnMut(&mut Plan, u64)) -> Plan {
        let mut plan = Plan::default();
        for dir in 0..self.dirs {
            plan.push(Verb::Enter, |out| self.push_dir(out, thread, dir));
            for entry in 0..self.entries {
                push(&mut plan, dir * self.entries + entry);
            }
        }
        plan
    }

    fn shuffled(&self, phase: &str, thread: usize, mut push: impl FnMut(&mut Plan, u64)) -> Plan {
        let mut plan = Plan::default();
        self.enter_only(&mut plan, thread);
        for index in Random::stream(self.seed, phase, thread).permutation(self.entries * self.dirs) {
            push(&mut plan, index);
        }
        plan
    }

    fn lookups(&self, phase: &str, thread: usize, verb: Verb, kind: u8) -> Plan {
        let mut plan = Plan::default();
        self.enter_only(&mut plan, thread);
        let mut random = Random::stream(self.seed, phase, thread);
        for _ in 0..self.lookups {
            let index = random.below(self.entries * self.dirs);
            plan.push(verb, |out| self.push_entry(out, thread, kind, index));
        }
        plan
    }

    fn lists(&self, thread: usize, verb: Verb) -> Plan {
        let mut plan = Plan::default();
        let passes = if self.cold { 1 } else { LISTED_MIN.div_ceil((self.entries * self.dirs).max(1)) };
        for _ in 0..passes {
            for dir in 0..self.dirs {
                plan.push_sized(verb, |out| self.push_dir(out, thread, dir), self.entries, 0);
            }
        }
        plan
    }
}

impl Workload for Dir {
    fn name(&self) -> &'static str {
        "dir"
    }

    fn phases(&self) -> Vec<Phase> {
        let read = |name: &str| Phase { cold: self.cold, ..Phase::new(name, false) };
        vec![
            Phase { reported: false, ..Phase::new("mkdir", true) },
            Phase::new("create", true),
            read("stat"),
            Phase { batch: Some(self.batch), ..read("stat_many") },
            read("stat_missing"),
            read("list"),
            read("list_stat"),
            Phase::new("rename", true),
            Phase::new("unlink", true),
            // Fails if something is left in there.
            Phase { reported: false, ..Phase::new("rmdir", true) },
        ]
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        match phase.name.as_str() {
            "mkdir" => self.directories(thread, Verb::Mkdir),
            "rmdir" => self.directories(thread, Verb::Rmdir),
            "create" => self.in_order(thread, |plan, index| {
                plan.push(Verb::Create, |out| self.push_entry(out, thread, b'f', index));
            }),
            // The same paths in both: what batching gains is the difference.
            "stat" | "stat_many" => self.lookups("stat", thread, Verb::Stat, b'f'),
            "stat_missing" => self.lookups("stat_missing", thread, Verb::StatMissing, b'm'),
            "list" => self.lists(thread, Verb::List),
            "list_stat" => self.lists(thread, Verb::ListStat),
            "rename" => self.shuffled("rename", thread, |plan, index| {
                plan.push_rename(
                    |out| self.push_entry(out, thread, b'f', index),
                    |out| self.push_entry(out, thread, b'r', index),
                );
            }),
            "unlink" => {
                let push =
                    |plan: &mut Plan, index| plan.push(Verb::Unlink, |out| self.push_entry(out, thread, b'r', index));
                match self.unlink_order {
                    UnlinkOrder::Random => self.shuffled("unlink", thread, push),
                    UnlinkOrder::Sequential => self.in_order(thread, push),
                }
            }
            other => unreachable!("phase {other} is not of this workload"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn small() -> Dir {
        Dir {
            entries: 50,
            dirs: 2,
            lookups: 30,
            batch: 8,
            names: NameStyle::Random,
            unlink_order: UnlinkOrder::Random,
            cold: false,
            seed: 9,
        }
    }

    fn plan(dir: &Dir, phase: &str, thread: usize) -> Plan {
        let phase = dir.phases().into_iter().find(|candidate| candidate.name == phase).unwrap();
        dir.plan(&phase, thread)
    }

    #[test]
    fn plans_are_the_same_again_and_move_with_the_seed() {
        let dir = small();
        for phase in dir.phases() {
            assert_eq!(dir.plan(&phase, 1), dir.plan(&phase, 1), "{}", phase.name);
        }
        assert_ne!(plan(&dir, "stat", 0), plan(&Dir { seed: 10, ..dir.clone() }, "stat", 0));
    }

    /// What unlink removes is what rename left, of what create made; threads touch nothing in common.
    #[test]
    fn phases_fit_together() {
        let dir = small();
        let set = |phase: &str, thread, target: bool| -> HashSet<Vec<u8>> {
            let plan = plan(&dir, phase, thread);
            let ops = plan.iter().filter(|op| op.verb != Verb::Enter);
            ops.map(|op| if target { op.target } else { op.path }.bytes().to_vec()).collect()
        };
        let created = set("create", 0, false);
        assert_eq!(created.len(), 100);
        assert_eq!(created, set("rename", 0, false));
        assert_eq!(set("rename", 0, true), set("unlink", 0, false));
        assert!(set("stat", 0, false).is_subset(&created));
        assert!(set("stat_missing", 0, false).is_disjoint(&created));
        assert!(created.is_disjoint(&set("create", 1, false)));
    }

    #[test]
    fn lists_count_entries() {
        assert_eq!(plan(&small(), "list", 0).ops(), 100_000);
        assert_eq!(plan(&Dir { cold: true, ..small() }, "list_stat", 0).ops(), 100);
    }
}
