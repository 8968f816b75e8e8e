//! A mail folder of MH, as Dowse and Malone measured it: messages with numbers for names in one directory, made in the order
//! in which an old folder holds them, numbered anew from 1 without gaps (`folder -pack`), and removed.
//!
//! Of the paper's folder the count is known, not the names. Numbers here have gaps of the same mean as a folder from which
//! almost half was deleted; the order is one of sorted runs, for a directory's free places were filled in between.

use super::plan::{Plan, Verb};
use super::random::Random;
use super::{Phase, Workload};
use std::io::Write;

#[derive(Clone, Debug)]
pub struct Folder {
    /// In each thread's folder.
    pub messages: u64,
    /// Bytes of each.
    pub size: u64,
    pub seed: u64,
}

/// The highest number is the count of messages times this, over a hundred: 60,000 for the paper's 33,164.
const NUMBERS_PERCENT: u64 = 181;
/// Messages of a run in order, on the average.
const RUN_MEAN: u64 = 200;

impl Folder {
    /// The numbers of a thread's messages, in order: each of those up to the highest with the same chance.
    fn numbers(&self, thread: usize) -> Vec<u64> {
        let mut random = Random::stream(self.seed, "numbers", thread);
        let highest = self.messages * NUMBERS_PERCENT / 100;
        let mut missing = self.messages;
        (1..=highest)
            .filter(|number| {
                let is_one = random.below(highest + 1 - number) < missing;
                missing -= u64::from(is_one);
                is_one
            })
            .collect()
    }

    /// The same in the order of the directory.
    fn as_held(&self, thread: usize) -> Vec<u64> {
        let numbers = self.numbers(thread);
        let mut random = Random::stream(self.seed, "order", thread);
        let mut runs = Vec::new();
        let mut rest = &numbers[..];
        while !rest.is_empty() {
            let (run, after) = rest.split_at(rest.len().min(1 + random.below(2 * RUN_MEAN - 1) as usize));
            runs.push(run);
            rest = after;
        }
        random.shuffle(&mut runs);
        runs.concat()
    }

    fn push_folder(out: &mut Vec<u8>, thread: usize) {
        write!(out, "folder{thread}").expect("a vector takes all");
    }

    fn push_message(out: &mut Vec<u8>, thread: usize, number: u64) {
        Self::push_folder(out, thread);
        write!(out, "/{number}").expect("a vector takes all");
    }
}

impl Workload for Folder {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn phases(&self) -> Vec<Phase> {
        let mkdir = Phase { reported: false, ..Phase::new("mkdir", true) };
        vec![mkdir, Phase::new("create", true), Phase::new("pack", true), Phase::new("remove", true)]
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        let mut plan = Plan::default();
        let folder = |out: &mut Vec<u8>| Self::push_folder(out, thread);
        match phase.name.as_str() {
            "mkdir" => plan.push(Verb::Mkdir, folder),
            "create" => {
                plan.push(Verb::Enter, folder);
                for number in self.as_held(thread) {
                    plan.push_sized(Verb::WriteFile, |out| Self::push_message(out, thread, number), self.size, number);
                }
            }
            "pack" => {
                plan.push(Verb::Enter, folder);
                // No name is in the way: those below were packed before, and a number never rises.
                for (number, packed) in
                    self.numbers(thread).into_iter().zip(1..).filter(|(number, packed)| number != packed)
                {
                    let path = |number| move |out: &mut Vec<u8>| Self::push_message(out, thread, number);
                    plan.push_rename(path(number), path(packed));
                }
            }
            "remove" => plan.push_sized(Verb::RemoveTree, folder, self.messages + 1, 0),
            other => unreachable!("no phase {other}"),
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const FOLDER: Folder = Folder { messages: 33_164, size: 2048, seed: 3 };

    fn plan(name: &str) -> Plan {
        let phase = FOLDER.phases().into_iter().find(|phase| phase.name == name).unwrap();
        FOLDER.plan(&phase, 0)
    }

    fn number(path: &[u8]) -> u64 {
        std::str::from_utf8(path).unwrap().rsplit('/').next().unwrap().parse().unwrap()
    }

    #[test]
    fn packing_leaves_numbers_without_gaps() {
        let create = plan("create");
        let made: Vec<u64> =
            create.iter().filter(|op| op.verb == Verb::WriteFile).map(|op| number(op.path.bytes())).collect();
        let mut there: BTreeSet<u64> = made.iter().copied().collect();
        assert_eq!((made.len(), there.len()), (33_164, 33_164));
        assert!(there.iter().all(|number| (1..=60_026).contains(number)));
        let sorted = made.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((32_800..33_100).contains(&sorted), "{sorted} of neighbours are in order");
        for op in plan("pack").iter().filter(|op| op.verb == Verb::Rename) {
            assert!(there.remove(&number(op.path.bytes())), "{op:?}: is not there");
            assert!(there.insert(number(op.target.bytes())), "{op:?}: is in the way");
        }
        assert!(there.into_iter().eq(1..=33_164));
        assert_eq!(plan("remove").ops(), 33_165);
    }

    #[test]
    fn plans_are_the_same_again_and_differ_by_thread() {
        for phase in FOLDER.phases() {
            assert_eq!(FOLDER.plan(&phase, 1), FOLDER.plan(&phase, 1));
        }
        assert_ne!(FOLDER.numbers(0), FOLDER.numbers(1));
    }
}
