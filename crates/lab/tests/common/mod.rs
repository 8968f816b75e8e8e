//! What suites of the lab's tests share.

use myriad_lab::experiment::{Experiment, Place, Scale, Suite};
use std::path::Path;

/// These suites on these targets, tiny, once; each phase is checked.
pub fn experiment(folder: &Path, suites: &[&str], places: &[&str]) -> Experiment {
    let suite = |name: &&str| Suite::named(name).unwrap();
    Experiment {
        suites: suites.iter().map(suite).collect(),
        scale: Scale(0.001),
        places: places.iter().map(|name| Place::parse(name).unwrap()).collect(),
        factors: Vec::new(),
        absent: Vec::new(),
        set: Vec::new(),
        asked: Vec::new(),
        runs: 1,
        seed: 7,
        out: None,
        resume: false,
        trace: None,
        folder: folder.to_owned(),
        exe: "/nowhere".into(),
        age: 0,
        memory_bytes: None,
        sparse: true,
        check_each: true,
        twin: false,
        slowdown: None,
        quiet: true,
    }
}
