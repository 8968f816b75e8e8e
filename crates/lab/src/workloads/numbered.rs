//! simplefs's test: numbered empty files in one directory are made, listed, replaced in two interleaved passes, and removed.

use super::plan::{Plan, Verb};
use super::{Phase, Workload};
use std::io::Write;

#[derive(Clone, Debug)]
pub struct Numbered {
    pub files: u64,
}

impl Numbered {
    fn push_dir(out: &mut Vec<u8>, thread: usize) {
        write!(out, "n{thread}").expect("a vector takes all");
    }

    /// `5.txt`, and `5_1.txt` for what replaces it.
    fn push_file(out: &mut Vec<u8>, thread: usize, index: u64, is_new: bool) {
        Self::push_dir(out, thread);
        write!(out, "/{index}{}.txt", if is_new { "_1" } else { "" }).expect("a vector takes all");
    }
}

impl Workload for Numbered {
    fn name(&self) -> &'static str {
        "simplefs"
    }

    fn phases(&self) -> Vec<Phase> {
        vec![
            Phase { reported: false, ..Phase::new("mkdir", true) },
            Phase::new("create", true),
            Phase::new("list", false),
            Phase::new("replace", true),
            Phase { reported: false, ..Phase::new("list_again", false) },
            Phase::new("remove", true),
            Phase { reported: false, ..Phase::new("rmdir", true) },
        ]
    }

    fn plan(&self, phase: &Phase, thread: usize) -> Plan {
        let mut plan = Plan::default();
        let dir = |out: &mut Vec<u8>| Self::push_dir(out, thread);
        match phase.name.as_str() {
            "mkdir" => plan.push(Verb::Mkdir, dir),
            "rmdir" => plan.push(Verb::Rmdir, dir),
            "list" | "list_again" => plan.push_sized(Verb::List, dir, self.files, 0),
            name => {
                plan.push(Verb::Enter, dir);
                let passes = if name == "replace" { 2 } else { 1 };
                for index in (0..passes).flat_map(|pass| (pass..self.files).step_by(passes as usize)) {
                    let path = |is_new| move |out: &mut Vec<u8>| Self::push_file(out, thread, index, is_new);
                    match name {
                        "create" => plan.push(Verb::Create, path(false)),
                        "replace" => {
                            plan.push(Verb::Unlink, path(false));
                            plan.push(Verb::Create, path(true));
                        }
                        _ => plan.push(Verb::Unlink, path(true)),
                    }
                }
            }
        }
        plan
    }
}
