//! Postmark 1.5 as Katcher wrote it: a pool of small files, transactions on them, and the removal of the rest.
//!
//! Sizes are uniform from 500 to 10,000 bytes. A transaction reads a file or adds to one, then makes a file or deletes one, each with
//! the same chance. Names are the numbers of creation, all in one directory. There are as many transactions as files at first, for the
//! paper does not say how many there were.

use super::plan::{Plan, Verb};
use super::random::{Random, mix};
use super::{Phase, Workload};
use std::io::Write;

#[derive(Clone, Debug)]
pub struct Postmark {
    pub files: u64,
    pub transactions: u64,
    pub seed: u64,
}

const SIZES: std::ops::RangeInclusive<u64> = 500..=10_000;

#[derive(Clone, Copy, Debug)]
struct File {
    number: u64,
    size: u64,
}

impl File {
    fn place(self) -> u64 {
        mix(self.number) >> 20
    }
}

/// What the three phases do; the later ones follow from what the earlier ones left.
#[derive(Default)]
struct Run {
    create: Plan,
    transactions: Plan,
    delete: Plan,
}

impl Postmark {
    fn push_file(out: &mut Vec<u8>, thread: usize, number: u64) {
        write!(out, "pool{thread}/{number}").expect("a vector takes all");
    }

    fn run(&self, thread: usize) -> Run {
        let mut random = Random::stream(self.seed, "postmark", thread);
        let mut run = Run::default();
        let mut pool: Vec<File> = Vec::new();
        let mut next = 0;
        let enter = |plan: &mut Plan| {
            plan.push(Verb::Enter, |out| write!(out, "pool{thread}").expect("a vector takes all"));
        };
        [&mut run.create, &mut run.transactions, &mut run.delete].into_iter().for_each(enter);
        let mut create = |plan: &mut Plan, pool: &mut Vec<File>, random: &mut Random| {
            let file = File { number: next, size: SIZES.start() + random.below(SIZES.end() - SIZES.start() + 1) };
            next += 1;
            plan.push_sized(Verb::WriteFile, |out| Self::push_file(out, thread, file.number), file.size, file.place());
            pool.push(file);
        };
        for _ in 0..self.files {
            create(&mut run.create, &mut pool, &mut random);
        }
        let plan = &mut run.transactions;
        for _ in 0..self.transactions {
            if pool.is_empty() {
                create(plan, &mut pool, &mut random);
            }
            let chosen = random.below(pool.len() as u64) as usize;
            let file = &mut pool[chosen];
            let path = |number| move |out: &mut Vec<u8>| Self::push_file(out, thread, number);
            if random.below(2) == 0 || file.size == *SIZES.end() {
                plan.push_sized(Verb::ReadFile, path(file.number), file.size, file.place());
            } else {
                let more = 1 + random.below(SIZES.end() - file.size);
                plan.push_sized(Verb::Append, path(file.number), more, file.place() + file.size);
                file.size += more;
            }
            if random.below(2) == 0 {
                create(plan, &mut pool, &mut random);
            } else {
                let gone = pool.swap_remove(random.below(pool.len() as u64) as usize);
                plan.push(Verb::Unlink, path(gone.number));
            }
        }
        for file in pool {
            run.delete.push(Verb::Unlink, |out| Self::push_file(out, thread, file.number));
        }
        run
    }
}

impl Workload for Postmark {
    fn name(&self) -> &'static str {
        "postmark"
    }

    fn phases(&self) -> Vec<Phase> {
        let mkdir = Phase { reported: false, ..Phase::new("mkdir", true) };
        vec![mkdir, Phase::new("create", true), Phase::new("transactions", true), Phase::new("delete", true)]
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        match phase.name.as_str() {
            "mkdir" => {
                let mut plan = Plan::default();
                plan.push(Verb::Mkdir, |out| write!(out, "pool{thread}").expect("a vector takes all"));
                plan
            }
            "create" => self.run(thread).create,
            "transactions" => self.run(thread).transactions,
            "delete" => self.run(thread).delete,
            other => unreachable!("phase {other} is not of this workload"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Every operation finds its file, as large as it left it; at the end there is none.
    #[test]
    fn operations_fit_together() {
        let postmark = Postmark { files: 500, transactions: 2_000, seed: 42 };
        let run = postmark.run(0);
        assert_eq!((run.create.ops(), run.transactions.ops()), (500, 4_000));
        let mut sizes = HashMap::new();
        let mut verbs = HashMap::<Verb, u64>::new();
        for op in run.create.iter().chain(run.transactions.iter()).chain(run.delete.iter()) {
            let name = op.path.bytes().to_vec();
            *verbs.entry(op.verb).or_default() += 1;
            match op.verb {
                Verb::Enter => {}
                Verb::WriteFile => assert!(SIZES.contains(&op.size) && sizes.insert(name, op.size).is_none()),
                Verb::ReadFile => assert_eq!(sizes[&name], op.size),
                Verb::Append => *sizes.get_mut(&name).unwrap() += op.size,
                Verb::Unlink => assert!(sizes.remove(&name).is_some()),
                other => panic!("{other:?}"),
            }
        }
        assert!(sizes.is_empty() && sizes.values().all(|size| SIZES.contains(size)));
        for verb in [Verb::ReadFile, Verb::Append] {
            assert!((850..1_150).contains(&verbs[&verb]), "{verb:?}: {}", verbs[&verb]);
        }
        assert_eq!(postmark.run(0).delete, run.delete);
    }
}
