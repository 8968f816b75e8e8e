//! Small files alone or with large ones between them, each read once in the order in which they were made: Lensing and others 2013, 3.2.2.

use super::names::{NameStyle, push_name};
use super::plan::{Plan, Verb};
use super::random::mix;
use super::{Phase, Workload};

#[derive(Clone, Debug)]
pub struct Clusters {
    /// Small files; as many large ones, where there are any.
    pub files: u64,
    pub small_bytes: u64,
    /// 0: none.
    pub large_bytes: u64,
    /// A directory for each small file, or one for all.
    pub own_dirs: bool,
}

impl Clusters {
    fn dir(&self, index: u64) -> u64 {
        if self.own_dirs { index } else { 0 }
    }

    fn push(&self, out: &mut Vec<u8>, thread: usize, index: u64, kind: Option<u8>) {
        push_name(out, NameStyle::Numeric, b'd', (thread as u64) << 32 | self.dir(index), 0);
        if let Some(kind) = kind {
            out.push(b'/');
            push_name(out, NameStyle::Numeric, kind, index, 0);
        }
    }
}

impl Workload for Clusters {
    fn name(&self) -> &'static str {
        match (self.own_dirs, self.large_bytes > 0) {
            (true, false) => "small_files_1",
            (true, true) => "small_files_2",
            (false, false) => "small_files_3",
            (false, true) => "small_files_4",
        }
    }

    fn phases(&self) -> Vec<Phase> {
        vec![Phase::new("write", true), Phase { cold: true, ..Phase::new("read", false) }]
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        let mut plan = Plan::default();
        for index in 0..self.files {
            let place = mix(index) >> 20;
            if phase.name == "read" {
                let path = |out: &mut Vec<u8>| self.push(out, thread, index, Some(b's'));
                plan.push_sized(Verb::ReadFile, path, self.small_bytes, place);
                continue;
            }
            if self.own_dirs || index == 0 {
                plan.push(Verb::Mkdir, |out| self.push(out, thread, index, None));
            }
            plan.push_sized(Verb::WriteFile, |out| self.push(out, thread, index, Some(b's')), self.small_bytes, place);
            if self.large_bytes > 0 {
                let path = |out: &mut Vec<u8>| self.push(out, thread, index, Some(b'l'));
                plan.push_sized(Verb::WriteFile, path, self.large_bytes, place);
            }
        }
        plan
    }
}
