//! A tree of directories with files: create, walk, stat by path, remove.

use super::names::{NameStyle, push_name};
use super::plan::{Plan, Verb};
use super::random::Random;
use super::{Content, Phase, Workload};

#[derive(Clone, Debug)]
pub struct Tree {
    /// Of each thread.
    pub dirs: u64,
    /// In each directory.
    pub files: u64,
    /// Bytes of each file; 0 makes them empty.
    pub size: u64,
    /// Subdirectories of a directory, as long as there are.
    pub fan: u64,
    /// Random stats of each kind, per thread.
    pub lookups: u64,
    pub batch: usize,
    pub names: NameStyle,
    pub cold: bool,
    pub threads: usize,
    pub seed: u64,
    /// Only create: what metadata costs in space.
    pub meta: bool,
}

impl Tree {
    /// Directory `index` lies in directory `(index - 1) / fan`; 0 is the thread's top.
    fn push_dir(&self, out: &mut Vec<u8>, thread: usize, index: u64) {
        if index == 0 {
            push_name(out, NameStyle::Numeric, b't', thread as u64, 0);
        } else {
            self.push_dir(out, thread, (index - 1) / self.fan);
            out.push(b'/');
            push_name(out, self.names, b'd', index, self.seed);
        }
    }

    fn push_file(&self, out: &mut Vec<u8>, thread: usize, dir: u64, file: u64) {
        self.push_dir(out, thread, dir);
        out.push(b'/');
        push_name(out, self.names, b'f', dir * self.files + file, self.seed);
    }

    /// Directories depth first, as tar and cp make them.
    fn depth_first(&self) -> Vec<u64> {
        let mut order = Vec::new();
        let mut stack = vec![0];
        while let Some(dir) = stack.pop() {
            order.push(dir);
            let first = dir * self.fan + 1;
            stack.extend(
                (first..first + self.fan).take_while(|&child| child < self.dirs).collect::<Vec<_>>().into_iter().rev(),
            );
        }
        order
    }

    fn create(&self, thread: usize) -> Plan {
        let mut plan = Plan::default();
        for dir in self.depth_first() {
            plan.push(Verb::Mkdir, |out| self.push_dir(out, thread, dir));
            plan.push(Verb::Enter, |out| self.push_dir(out, thread, dir));
            for file in 0..self.files {
                let path = |out: &mut Vec<u8>| self.push_file(out, thread, dir, file);
                match self.size {
                    0 => plan.push(Verb::Create, path),
                    size => plan.push_sized(Verb::WriteFile, path, size, (dir * self.files + file) * 509),
                }
            }
        }
        plan
    }

    fn whole(&self, verb: Verb, thread: usize) -> Plan {
        let mut plan = Plan::default();
        plan.push_sized(verb, |out| self.push_dir(out, thread, 0), self.dirs * (self.files + 1), 0);
        plan
    }

    fn lookups(&self, phase: &str, thread: usize, verb: Verb) -> Plan {
        let mut plan = Plan::default();
        let mut random = Random::stream(self.seed, phase, thread);
        for _ in 0..self.lookups {
            let dir = random.below(self.dirs);
            // A name of another directory is missing here.
            let file = random.below(self.files.max(1))
                + if verb == Verb::StatMissing { self.dirs * self.files + 1 } else { 0 };
            plan.push(verb, |out| self.push_file(out, thread, dir, file));
        }
        plan
    }
}

impl Workload for Tree {
    fn name(&self) -> &'static str {
        if self.meta { "meta" } else { "tree" }
    }

    fn phases(&self) -> Vec<Phase> {
        let read = |name: &str| Phase { cold: self.cold, ..Phase::new(name, false) };
        if self.meta {
            return vec![Phase::new("create", true)];
        }
        let mut phases = vec![Phase::new("create", true), read("walk")];
        // Without files there is nothing to look up by path.
        if self.files > 0 {
            phases.push(read("stat"));
            phases.push(Phase { batch: Some(self.batch), ..read("stat_many") });
            phases.push(read("stat_missing"));
        }
        phases.push(Phase { cold: self.cold, ..Phase::new("remove", true) });
        phases
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        match phase.name.as_str() {
            "create" => self.create(thread),
            "walk" => self.whole(Verb::Walk, thread),
            "stat" | "stat_many" => self.lookups("stat", thread, Verb::Stat),
            "stat_missing" => self.lookups("stat_missing", thread, Verb::StatMissing),
            "remove" => self.whole(Verb::RemoveTree, thread),
            other => unreachable!("phase {other} is not of this workload"),
        }
    }

    fn content(&self) -> Option<Content> {
        let threads = self.threads as u64;
        let files = threads * self.dirs * self.files;
        self.meta.then(|| Content {
            files,
            directories: threads * self.dirs,
            block_bytes: files * self.size.next_multiple_of(4096),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn small() -> Tree {
        Tree {
            dirs: 30,
            files: 4,
            size: 100,
            fan: 3,
            lookups: 40,
            batch: 8,
            names: NameStyle::Numeric,
            cold: false,
            threads: 1,
            seed: 3,
            meta: false,
        }
    }

    fn plan(tree: &Tree, phase: &str) -> Plan {
        let phase = tree.phases().into_iter().find(|candidate| candidate.name == phase).unwrap();
        tree.plan(&phase, 0)
    }

    #[test]
    fn parents_come_before_children() {
        let plan = plan(&small(), "create");
        let mut made = HashSet::new();
        for op in plan.iter().filter(|op| op.verb != Verb::Enter) {
            let path = op.path.bytes().to_vec();
            if let Some(slash) = path.iter().rposition(|&byte| byte == b'/') {
                assert!(made.contains(&path[..slash]), "{}", op.path.display());
            }
            assert!(made.insert(path));
        }
        assert_eq!(made.len(), 30 * 5);
        assert_eq!(plan.ops(), 30 * 5);
    }

    #[test]
    fn lookups_hit_and_miss() {
        let tree = small();
        let made = plan(&tree, "create");
        let made: HashSet<&[u8]> = made.iter().map(|op| op.path.bytes()).collect();
        assert!(plan(&tree, "stat").iter().all(|op| made.contains(op.path.bytes())));
        assert!(plan(&tree, "stat_missing").iter().all(|op| !made.contains(op.path.bytes())));
    }

    #[test]
    fn walk_and_remove_count_the_whole_tree() {
        assert_eq!(plan(&small(), "walk").ops(), 150);
        assert_eq!(plan(&small(), "remove").ops(), 150);
    }

    #[test]
    fn plans_are_the_same_again() {
        let tree = small();
        for phase in tree.phases() {
            assert_eq!(tree.plan(&phase, 0), tree.plan(&phase, 0));
        }
    }

    #[test]
    fn content_rounds_up_to_blocks() {
        let content = Tree { meta: true, threads: 2, ..small() }.content().unwrap();
        assert_eq!(content, Content { files: 240, directories: 60, block_bytes: 240 * 4096 });
    }
}
