//! Workloads: from parameters and a seed to phases, and from a phase to each thread's operations. No clock and no I/O in
//! here, so every target is asked for exactly the same.

pub mod ageing;
pub mod bonnie;
pub mod clusters;
pub mod dir;
pub mod file;
pub mod folder;
pub mod links;
pub mod names;
pub mod netnews;
pub mod numbered;
pub mod plan;
pub mod postmark;
pub mod random;
pub mod shape;
pub mod single;
pub mod tree;
pub mod trees;

use anyhow::{Result, bail};
use plan::Plan;
use std::collections::BTreeSet;

/// A stretch of operations that is timed as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    pub name: String,
    /// Changes the volume: ends in a sync, which is timed.
    pub changes: bool,
    /// Drop caches first.
    pub cold: bool,
    /// Paths of the plan go to the target many at once.
    pub batch: Option<usize>,
    /// In the report; the others only prepare.
    pub reported: bool,
    /// Asks for reads and writes inside a file.
    pub random_access: bool,
    /// Asks for second names of files.
    pub links: bool,
}

impl Phase {
    fn new(name: impl Into<String>, changes: bool) -> Self {
        Self {
            name: name.into(),
            changes,
            cold: false,
            batch: None,
            reported: true,
            random_access: false,
            links: false,
        }
    }
}

/// A generator.
pub trait Workload: Sync {
    fn name(&self) -> &'static str;
    /// In order of running; each may count on the changes of those before.
    fn phases(&self) -> Vec<Phase>;
    /// A phase's operations for one thread: the same on every call.
    fn plan(&self, phase: &Phase, thread: usize) -> Plan;
    /// Files and their content once every phase up to the first reported one has run, for `meta` figures.
    fn content(&self) -> Option<Content> {
        None
    }
}

/// What a tree holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub files: u64,
    pub directories: u64,
    /// Sizes, each rounded up to 4 KiB.
    pub block_bytes: u64,
}

/// Keeps the phases named in `wanted` (all, if empty) and those that later ones build on. Unknown names are refused.
pub fn select(phases: Vec<Phase>, wanted: &[String]) -> Result<Vec<Phase>> {
    if wanted.is_empty() {
        return Ok(phases);
    }
    let known: BTreeSet<&str> = phases.iter().filter(|phase| phase.reported).map(|phase| phase.name.as_str()).collect();
    if let Some(stranger) = wanted.iter().find(|name| !known.contains(name.as_str())) {
        bail!("no phase named {stranger}; there are {}", known.into_iter().collect::<Vec<_>>().join(", "));
    }
    let last = phases.iter().rposition(|phase| wanted.contains(&phase.name)).expect("every wanted phase is known");
    Ok(phases
        .into_iter()
        .take(last + 1)
        .filter(|phase| phase.changes || wanted.contains(&phase.name))
        .map(|phase| Phase { reported: phase.reported && wanted.contains(&phase.name), ..phase })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_keeps_what_later_phases_need() {
        let phases = vec![
            Phase::new("create", true),
            Phase::new("stat", false),
            Phase::new("rename", true),
            Phase::new("unlink", true),
        ];
        let chosen = select(phases.clone(), &["rename".to_owned()]).unwrap();
        let names: Vec<(&str, bool)> = chosen.iter().map(|phase| (phase.name.as_str(), phase.reported)).collect();
        assert_eq!(names, [("create", false), ("rename", true)]);
        assert_eq!(select(phases.clone(), &[]).unwrap(), phases);
        let message = select(phases, &["chmod".to_owned()]).unwrap_err().to_string();
        assert_eq!(message, "no phase named chmod; there are create, rename, stat, unlink");
    }
}
