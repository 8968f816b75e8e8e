//! File content: many small files; one big one, sequentially and at random.

use super::names::{NameStyle, push_name};
use super::plan::{Plan, Verb};
use super::random::{Random, mix};
use super::{Phase, Workload};

#[derive(Clone, Debug)]
pub struct Files {
    /// Small files of each thread; 0 leaves these phases out.
    pub files: u64,
    /// Small files have 0 to this many bytes, uniformly.
    pub size_max: u64,
    /// Bytes of each thread's big file; 0 leaves these phases out.
    pub big: u64,
    /// Request sizes in the big file.
    pub requests: Vec<u64>,
    /// Random requests of each kind at most.
    pub random_requests_max: u64,
    pub names: NameStyle,
    pub cold: bool,
    pub seed: u64,
}

/// Small files in a directory, as a maildir or a cache with subfolders has them.
const FILES_PER_DIR: u64 = 1000;

impl Files {
    fn push_dir(&self, out: &mut Vec<u8>, thread: usize, dir: u64) {
        push_name(out, NameStyle::Numeric, b'd', thread as u64 * self.files.div_ceil(FILES_PER_DIR) + dir, 0);
    }

    fn push_small(&self, out: &mut Vec<u8>, thread: usize, index: u64) {
        self.push_dir(out, thread, index / FILES_PER_DIR);
        out.push(b'/');
        push_name(out, self.names, b'f', index, self.seed);
    }

    fn size(&self, thread: usize, index: u64) -> u64 {
        mix(self.seed ^ mix(index << 8 | thread as u64)) % (self.size_max + 1)
    }

    fn small(&self, phase: &str, thread: usize, verb: Verb) -> Plan {
        let mut plan = Plan::default();
        let order = match verb {
            Verb::WriteFile => (0..self.files).collect(),
            _ => Random::stream(self.seed, phase, thread).permutation(self.files),
        };
        for index in order {
            if verb == Verb::WriteFile && index % FILES_PER_DIR == 0 {
                plan.push(Verb::Enter, |out| self.push_dir(out, thread, index / FILES_PER_DIR));
            }
            let place = mix(index) >> 20;
            plan.push_sized(verb, |out| self.push_small(out, thread, index), self.size(thread, index), place);
        }
        plan
    }

    fn big(&self, phase: &str, thread: usize) -> Plan {
        let (pattern, request) = phase.split_once('@').expect("a big-file phase");
        let request: u64 = request.parse().expect("its request size");
        let mut plan = Plan::default();
        let path = |out: &mut Vec<u8>| {
            push_name(out, NameStyle::Numeric, b'b', request, 0);
            push_name(out, NameStyle::Numeric, b't', thread as u64, 0);
        };
        let requests = self.big / request;
        let (verb, open) = match pattern {
            "seq_write" => (Verb::WriteAt, Verb::OpenNew),
            "rand_write" => (Verb::WriteAt, Verb::OpenOld),
            _ => (Verb::ReadAt, Verb::OpenOld),
        };
        plan.push(open, path);
        if pattern.starts_with("seq") {
            for index in 0..requests {
                plan.push_sized(verb, |_| {}, request, index * request);
            }
        } else {
            let mut random = Random::stream(self.seed, phase, thread);
            for _ in 0..requests.min(self.random_requests_max) {
                plan.push_sized(verb, |_| {}, request, random.below(requests) * request);
            }
        }
        plan
    }
}

impl Workload for Files {
    fn name(&self) -> &'static str {
        "file"
    }

    fn phases(&self) -> Vec<Phase> {
        let mut phases = Vec::new();
        if self.files > 0 {
            phases.push(Phase { reported: false, ..Phase::new("mkdir", true) });
            phases.push(Phase::new("write", true));
            phases.push(Phase { cold: self.cold, ..Phase::new("read", false) });
        }
        for request in self.requests.iter().filter(|&&request| request <= self.big) {
            for (pattern, changes) in
                [("seq_write", true), ("seq_read", false), ("rand_write", true), ("rand_read", false)]
            {
                let phase = Phase::new(format!("{pattern}@{request}"), changes);
                phases.push(Phase { cold: self.cold && !changes, random_access: true, ..phase });
            }
        }
        phases
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        match phase.name.as_str() {
            "mkdir" => {
                let mut plan = Plan::default();
                for dir in 0..self.files.div_ceil(FILES_PER_DIR) {
                    plan.push(Verb::Mkdir, |out| self.push_dir(out, thread, dir));
                }
                plan
            }
            "write" => self.small("write", thread, Verb::WriteFile),
            "read" => self.small("read", thread, Verb::ReadFile),
            big => self.big(big, thread),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn small() -> Files {
        Files {
            files: 40,
            size_max: 9000,
            big: 1 << 20,
            requests: vec![4096, 65536],
            random_requests_max: 100,
            names: NameStyle::Numeric,
            cold: false,
            seed: 4,
        }
    }

    fn plan(files: &Files, phase: &str) -> Plan {
        let phase = files.phases().into_iter().find(|candidate| candidate.name == phase).unwrap();
        files.plan(&phase, 0)
    }

    #[test]
    fn reads_ask_for_what_was_written() {
        let files = small();
        let writes = plan(&files, "write");
        let written: HashMap<&[u8], (u64, u64)> = writes
            .iter()
            .filter(|op| op.verb == Verb::WriteFile)
            .map(|op| (op.path.bytes(), (op.size, op.offset)))
            .collect();
        let reads = plan(&files, "read");
        assert_eq!((written.len(), reads.ops()), (40, 40));
        assert!(reads.iter().all(|op| written[op.path.bytes()] == (op.size, op.offset)));
        assert!(written.values().any(|&(size, _)| size > 4096) && written.values().all(|&(size, _)| size <= 9000));
    }

    #[test]
    fn big_file_requests() {
        let files = small();
        assert_eq!(plan(&files, "seq_write@65536").bytes(), 1 << 20);
        assert_eq!(plan(&files, "rand_read@4096").ops(), 100);
        assert_eq!(plan(&files, "rand_read@65536").ops(), 16);
        let inside =
            plan(&files, "rand_write@4096").iter().all(|op| op.offset % 4096 == 0 && op.offset + op.size <= 1 << 20);
        assert!(inside);
    }

    #[test]
    fn plans_are_the_same_again() {
        let files = small();
        for phase in files.phases() {
            assert_eq!(files.plan(&phase, 2), files.plan(&phase, 2));
        }
    }

    #[test]
    fn parts_can_be_left_out() {
        assert!(Files { files: 0, ..small() }.phases().iter().all(|phase| phase.random_access));
        assert!(Files { big: 0, ..small() }.phases().iter().all(|phase| !phase.random_access));
    }
}
