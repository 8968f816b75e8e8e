//! A news server with a traditional spool, as Swartz's benchmark replays one in the simplified form of Seltzer and others: articles come
//! in and are linked into further groups (unbatch), and the oldest go (expire).
//!
//! The papers give no sizes. Here a spool of 2,000 groups, two to four levels deep, takes 50,000 articles in two rounds; sizes are
//! log-normal around 2 KB; one article in ten is in one to three groups more. After each round the older half of what is there goes.

use super::plan::{Plan, Verb};
use super::random::{Random, mix};
use super::{Phase, Workload};
use std::io::Write;

#[derive(Clone, Debug)]
pub struct Netnews {
    pub groups: u64,
    pub articles: u64,
    pub seed: u64,
}

const ROUNDS: u64 = 2;

/// A name of an article: its group, and its running number there.
type Name = (u64, u64);

#[derive(Default)]
struct Run {
    /// One for each round.
    unbatch: Vec<Plan>,
    expire: Vec<Plan>,
}

impl Netnews {
    /// Directories above a group's own, which are named by the last digits of its number: one to three of them.
    fn push_levels(out: &mut Vec<u8>, thread: usize, group: u64, levels: u64) {
        write!(out, "news{thread}").expect("a vector takes all");
        for level in 1..=levels {
            write!(out, "/h{}", group % 10_u64.pow(level as u32)).expect("a vector takes all");
        }
    }

    fn levels(group: u64) -> u64 {
        1 + mix(group) % 3
    }

    fn push_group(out: &mut Vec<u8>, thread: usize, group: u64) {
        Self::push_levels(out, thread, group, Self::levels(group));
        write!(out, "/group{group}").expect("a vector takes all");
    }

    fn push_article(out: &mut Vec<u8>, thread: usize, (group, number): Name) {
        Self::push_group(out, thread, group);
        write!(out, "/{number}").expect("a vector takes all");
    }

    fn spool(&self, thread: usize) -> Plan {
        let mut plan = Plan::default();
        let mut made = std::collections::HashSet::new();
        let mut mkdir = |path: Vec<u8>| {
            if made.insert(path.clone()) {
                plan.push(Verb::Mkdir, |out| out.extend_from_slice(&path));
            }
        };
        let path = |push: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            push(&mut out);
            out
        };
        for group in 0..self.groups {
            for level in 0..=Self::levels(group) {
                mkdir(path(&|out| Self::push_levels(out, thread, group, level)));
            }
            mkdir(path(&|out| Self::push_group(out, thread, group)));
        }
        plan
    }

    fn run(&self, thread: usize) -> Run {
        let mut random = Random::stream(self.seed, "netnews", thread);
        let mut next = vec![1_u64; self.groups as usize];
        let mut take = |group: u64| {
            next[group as usize] += 1;
            (group, next[group as usize] - 1)
        };
        let mut there: std::collections::VecDeque<Vec<Name>> = Default::default();
        let mut run = Run::default();
        for round in 0..ROUNDS {
            let mut plan = Plan::default();
            for article in 0..self.articles / ROUNDS {
                let first = take(random.below(self.groups));
                let size = ((7.6 + 0.8 * random.normal()).exp() as u64).min(64 << 10);
                let place = mix(round << 32 | article) >> 20;
                plan.push_sized(Verb::WriteFile, |out| Self::push_article(out, thread, first), size, place);
                let mut names = vec![first];
                if random.below(10) == 0 {
                    for _ in 0..1 + random.below(3) {
                        let other = take(random.below(self.groups));
                        plan.push_link(
                            |out| Self::push_article(out, thread, first),
                            |out| Self::push_article(out, thread, other),
                        );
                        names.push(other);
                    }
                }
                there.push_back(names);
            }
            run.unbatch.push(plan);
            let mut plan = Plan::default();
            for names in there.drain(..there.len() / 2) {
                for name in names {
                    plan.push(Verb::Unlink, |out| Self::push_article(out, thread, name));
                }
            }
            run.expire.push(plan);
        }
        run
    }
}

impl Workload for Netnews {
    fn name(&self) -> &'static str {
        "netnews"
    }

    fn phases(&self) -> Vec<Phase> {
        let phase = |name: String, reported| Phase { reported, links: true, ..Phase::new(name, true) };
        let mut phases = vec![phase("spool".to_owned(), false)];
        for round in 1..=ROUNDS {
            phases.push(phase(format!("unbatch{round}"), true));
            phases.push(phase(format!("expire{round}"), true));
        }
        phases
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        if phase.name == "spool" {
            return self.spool(thread);
        }
        let (name, round) = phase.name.split_at(phase.name.len() - 1);
        let round: usize = round.parse().expect("phases end in their round");
        let mut run = self.run(thread);
        let plans = if name == "unbatch" { &mut run.unbatch } else { &mut run.expire };
        plans.swap_remove(round - 1)
    }
}
