//! Ageing: files made, removed and made again until free space and directories have the holes of a file system in use.
//!
//! So many files of 1 to 32 KiB, 64 to a directory. Then twice as many times one of them, drawn at random, is replaced by one of another
//! size. In the end every second one, drawn at random, is removed: what is left lies between what became free.

use super::plan::{Plan, Verb};
use super::random::Random;
use super::{Phase, Workload};
use std::io::Write;

#[derive(Clone, Copy, Debug)]
pub struct Ageing {
    pub files: u64,
    pub seed: u64,
}

const FILES_PER_DIR: u64 = 64;
const SIZE_MAX: u64 = 32 << 10;

impl Ageing {
    /// Names that it has at once, at most.
    pub fn names(self) -> u64 {
        self.files + self.files / FILES_PER_DIR + 2
    }

    /// Bytes in whole blocks that it has at once, at most.
    pub fn bytes(self) -> u64 {
        self.files * SIZE_MAX
    }

    fn push_dir(out: &mut Vec<u8>, slot: u64) {
        write!(out, "aged/d{}", slot / FILES_PER_DIR).expect("a vector takes all");
    }

    /// What is in a slot has the number of its making in its name.
    fn push_file(out: &mut Vec<u8>, slot: u64, making: u64) {
        Self::push_dir(out, slot);
        write!(out, "/f{making}").expect("a vector takes all");
    }
}

impl Workload for Ageing {
    fn name(&self) -> &'static str {
        "ageing"
    }

    fn phases(&self) -> Vec<Phase> {
        vec![Phase { reported: false, ..Phase::new("age", true) }]
    }

    fn plan(&self, _phase: &Phase, thread: usize) -> Plan {
        let mut plan = Plan::default();
        let mut random = Random::stream(self.seed, "ageing", thread);
        plan.push(Verb::Mkdir, |out| out.extend(b"aged"));
        let mut here: Vec<u64> = Vec::new();
        let mut makings = 0;
        let write = |plan: &mut Plan, random: &mut Random, slot: u64, makings: &mut u64| {
            let (making, size) = (*makings, 1 + random.below(SIZE_MAX));
            *makings += 1;
            plan.push_sized(Verb::WriteFile, |out| Self::push_file(out, slot, making), size, making);
            making
        };
        for slot in 0..self.files {
            if slot % FILES_PER_DIR == 0 {
                plan.push(Verb::Mkdir, |out| Self::push_dir(out, slot));
            }
            here.push(write(&mut plan, &mut random, slot, &mut makings));
        }
        for _ in 0..2 * self.files {
            let slot = random.below(self.files);
            let old = here[slot as usize];
            plan.push(Verb::Unlink, |out| Self::push_file(out, slot, old));
            here[slot as usize] = write(&mut plan, &mut random, slot, &mut makings);
        }
        for &slot in &random.permutation(self.files)[..(self.files / 2) as usize] {
            plan.push(Verb::Unlink, |out| Self::push_file(out, slot, here[slot as usize]));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Only what is there is removed, and half of it is left.
    #[test]
    fn half_is_left_between_what_became_free() {
        let ageing = Ageing { files: 200, seed: 5 };
        let phase = &ageing.phases()[0];
        let plan = ageing.plan(phase, 0);
        assert_eq!(plan, ageing.plan(phase, 0));
        let mut there = BTreeSet::new();
        for op in plan.iter() {
            match op.verb {
                Verb::Unlink => assert!(there.remove(op.path.bytes()), "{}", op.path.display()),
                _ => assert!(there.insert(op.path.bytes()), "{}", op.path.display()),
            }
            assert!(there.len() as u64 <= ageing.names() && op.size <= SIZE_MAX);
        }
        assert_eq!(there.len(), 1 + 4 + 100);
        assert_eq!(plan.ops(), 1 + 4 + 200 + 2 * 400 + 100);
    }
}
