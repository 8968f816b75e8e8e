//! How many names a workload leaves, counted from its plans without a look at any target.

use crate::targets::Target;
use crate::workloads::plan::{Plan, Verb};
use anyhow::{Result, ensure};

/// Names that there should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    names: i64,
}

impl Ledger {
    /// What is left after a plan was done.
    pub fn add(&mut self, plan: &Plan) {
        for op in plan.iter() {
            self.names += match op.verb {
                Verb::Create | Verb::Mkdir | Verb::Link | Verb::WriteFile | Verb::CreateSized | Verb::OpenNew => 1,
                Verb::Unlink | Verb::Rmdir => -1,
                Verb::RemoveTree | Verb::UnlinkListed => -(op.size as i64),
                // No generator renames over a name.
                _ => 0,
            };
        }
    }

    /// Fails unless the target holds as many names.
    pub fn check(self, target: &dyn Target) -> Result<()> {
        let found = target.names()?;
        ensure!(
            i64::try_from(found)? == self.names,
            "the target holds {found} names where the workload says it left {}: it did not do what it was asked",
            self.names
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted() {
        let mut plan = Plan::default();
        let path = |out: &mut Vec<u8>| out.push(b'x');
        for verb in [Verb::Mkdir, Verb::Enter, Verb::Create, Verb::Stat, Verb::OpenNew, Verb::WriteAt, Verb::Unlink] {
            plan.push(verb, path);
        }
        plan.push_link(path, path);
        plan.push_rename(path, path);
        let mut ledger = Ledger::default();
        ledger.add(&plan);
        assert_eq!(ledger.names, 3);
        plan.push_sized(Verb::RemoveTree, path, 3, 0);
        let mut ledger = Ledger::default();
        ledger.add(&plan);
        assert_eq!(ledger.names, 0);
    }
}
