//! The modelled machine of 2001 takes what its paper measured.

mod common;

use common::experiment;
use myriad_engine::options;
use myriad_lab::experiment::{Experiment, Line, Scale, factors};
use std::collections::BTreeMap;

/// Microseconds of the processor an operation: by phase, and with dirhash or without.
fn costs(lines: &[Line], size: u64) -> BTreeMap<(String, String), f64> {
    let of = lines.iter().filter(|line| line.size == Some(size));
    let us = |line: &Line| line.processor_seconds.unwrap() * 1e6 / line.count as f64;
    of.map(|line| ((line.phase.clone(), line.factors["dirhash"].clone()), us(line))).collect()
}

/// Dowse and Malone 2002, 3.2 and Figures 2 to 4. Four figures are charged, and nine results follow.
#[test]
fn a_machine_of_2001_takes_what_the_paper_says() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = Experiment {
        scale: Scale(0.01),
        factors: factors(&["dirhash".to_owned()]).unwrap().0,
        set: vec![options::read("profile=ffs").unwrap().unwrap()],
        ..experiment(folder.path(), &["dirhash"], &["machine2001"])
    }
    .run()
    .unwrap();
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
    let (few, many) = (costs(&outcome.lines, 100), costs(&outcome.lines, 1000));
    let cost =
        |of: &BTreeMap<(String, String), f64>, phase: &str, dirhash: &str| of[&(phase.to_owned(), dirhash.to_owned())];
    for (phase, dirhash, paper) in [
        ("create", "on", 50.0),
        ("remove", "on", 35.0),
        ("remove", "off", 45.0),
        ("stat_sequential", "on", 7.0),
        ("stat_sequential", "off", 9.0),
    ] {
        for of in [&few, &many] {
            let here = cost(of, phase, dirhash);
            println!("{phase} with dirhash={dirhash}: {here:.1} us, the paper {paper}");
            assert!((0.7..1.3).contains(&(here / paper)), "{phase}, dirhash={dirhash}: {here} us, the paper {paper}");
        }
    }
    // Ten times the names: nothing more with dirhash, and much without.
    for phase in ["create", "stat_random", "stat_absent"] {
        assert!(cost(&many, phase, "on") < 1.1 * cost(&few, phase, "on"), "{phase}");
    }
    for phase in ["stat_random", "stat_absent"] {
        assert!(cost(&many, phase, "off") > 3.0 * cost(&few, phase, "off"), "{phase}");
    }
    // The drive takes its own time.
    let created = outcome.lines.iter().find(|line| line.phase == "create").unwrap();
    assert!(created.seconds > created.processor_seconds);
}
