//! Every suite and every target, tiny: each does what its workload says, and a target that does nothing is found out.

use myriad_lab::experiment::{Experiment, Line, Outcome, Place, SUITES, Scale, Suite, factors};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn experiment(folder: &Path, suites: &[&str], places: &[&str]) -> Experiment {
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
        folder: folder.to_owned(),
        exe: "/nowhere".into(),
        check_each: true,
        quiet: true,
    }
}

fn run(experiment: &Experiment) -> Outcome {
    let outcome = experiment.run().unwrap();
    assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    outcome
}

/// What a line is about, and the operations it counts.
fn counts(outcome: &Outcome, target: &str) -> BTreeMap<(String, Option<u64>, String), u64> {
    let of = outcome.lines.iter().filter(|line| line.target == target);
    of.map(|line| ((line.workload.clone(), line.size, line.phase.clone()), line.count)).collect()
}

/// Operations of each reported phase, by the workloads' own word.
fn expected(suites: &[&str], has_rows: bool) -> BTreeMap<(String, Option<u64>, String), u64> {
    let mut expected = BTreeMap::new();
    for item in suites.iter().flat_map(|name| Suite::named(name).unwrap().items(Scale(0.001), 7)) {
        for phase in item.workload.phases().iter().filter(|phase| phase.reported) {
            if !has_rows || !phase.links && !phase.random_access {
                let ops = item.workload.plan(phase, 0).ops();
                assert!(ops > 0);
                expected.insert((item.name.to_owned(), item.size, phase.name.clone()), ops);
            }
        }
    }
    expected
}

#[test]
fn every_suite_does_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let suites: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    let outcome = run(&experiment(folder.path(), &suites, &["process", "disk2001", "sqlite"]));
    for target in ["process", "disk2001"] {
        assert_eq!(counts(&outcome, target), expected(&suites, false), "{target}");
    }
    assert_eq!(counts(&outcome, "sqlite"), expected(&suites, true));
    for line in &outcome.lines {
        let modelled = line.target == "disk2001";
        assert_eq!(line.clock, if modelled { "modelled" } else { "wall" });
        assert!(line.seconds.is_some_and(|seconds| seconds >= 0.0 && (modelled || seconds > 0.0)), "{line:?}");
        let counted = line.target != "sqlite";
        assert_eq!((line.device.writes.is_some(), line.device.seek_blocks.is_some()), (counted, counted));
    }
    // Time was taken where something was written.
    let wrote = |line: &&Line| line.clock == "modelled" && line.device.writes > Some(0);
    assert!(outcome.lines.iter().filter(wrote).count() > 30);
    assert!(outcome.lines.iter().filter(wrote).all(|line| line.seconds > Some(0.0001)));
    assert!(folder.path().read_dir().unwrap().next().is_none(), "nothing is left behind");
}

#[test]
fn every_target_is_asked_for_the_same() {
    // The build's own folder: a file system that allows direct I/O, most likely.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let suites = ["folder", "netnews", "tar"];
    // A mount wants the program: crates/cli/tests/lab.rs.
    let places: Vec<&str> = Place::all().into_iter().map(Place::name).filter(|name| *name != "mount").collect();
    let outcome = run(&experiment(folder.path(), &suites, &places));
    for place in &places {
        if outcome.header.left_out.contains_key(*place) {
            eprintln!("left out: {place}: {}", outcome.header.left_out[*place]);
            continue;
        }
        assert_eq!(counts(&outcome, place), expected(&suites, *place == "sqlite"), "{place}");
    }
    for place in ["process", "disk1996", "disk2001", "ssd", "object", "sqlite"] {
        assert!(!outcome.header.left_out.contains_key(place), "{place} needs nothing of the machine");
    }
}

/// The same on every machine and every time: requests, distances and seconds.
#[test]
fn modelled_time_is_the_same_again() {
    let folder = tempfile::tempdir().unwrap();
    let numbers = || {
        let mut experiment = experiment(folder.path(), &["ports", "postmark"], &["disk2001", "disk1996"]);
        experiment.scale = Scale(0.01);
        experiment.runs = 2;
        let lines = run(&experiment).lines;
        lines.into_iter().map(|line| (line.order, line.phase, line.seconds, line.device)).collect::<Vec<_>>()
    };
    let first = numbers();
    assert_eq!(first, numbers());
    assert!(first.len() > 10);
}

/// Placement near the parent is what Orlov measured: on a disk with an arm it is faster, and the arm goes less far.
#[test]
fn a_factor_shows_in_the_time_of_a_disk_of_2001() {
    let folder = tempfile::tempdir().unwrap();
    let mut experiment = experiment(folder.path(), &["ports"], &["disk2001"]);
    experiment.scale = Scale(0.2);
    experiment.asked = vec!["dirpref=old/new".into(), "dirhash=off/nonsense".into()];
    (experiment.factors, experiment.absent) = factors(&experiment.asked).unwrap();
    let outcome = run(&experiment);
    assert_eq!(outcome.header.absent.len(), 1, "{:?}", outcome.header.absent);
    let of = |choice: &str| {
        let line = outcome.lines.iter().find(|line| line.factors["dirpref"] == choice && line.phase == "unpack");
        line.map(|line| (line.seconds.unwrap(), line.device.seek_blocks.unwrap())).unwrap()
    };
    let (near, far) = (of("new"), of("old"));
    assert!(near.0 < far.0 && near.1 < far.1, "{near:?} {far:?}");
    let options = &outcome.lines[0].options;
    assert_eq!(options["dirpref"], outcome.lines[0].factors["dirpref"]);
    assert!(options.len() > 20, "all options are in a sample");
}

#[test]
fn what_was_interrupted_goes_on_and_becomes_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("samples.jsonl");
    let mut experiment = experiment(folder.path(), &["ports", "folder"], &["disk2001", "ssd"]);
    experiment.runs = 2;
    experiment.out = Some(out.clone());
    let key = |lines: &[Line]| -> BTreeSet<(u64, String)> {
        lines
            .iter()
            .map(|line| (line.order, format!("{} {} {:?} {:?}", line.workload, line.phase, line.seconds, line.device)))
            .collect()
    };
    let whole = key(&run(&experiment).lines);
    assert!(experiment.run().is_err(), "a file that is there is not written over");
    let text = std::fs::read(&out).unwrap();
    std::fs::write(&out, &text[..text.len() / 2]).unwrap();
    experiment.resume = true;
    let resumed = run(&experiment);
    assert_eq!(key(&resumed.lines), whole);
    let lines = std::fs::read_to_string(&out).unwrap().lines().count();
    assert_eq!(lines, 1 + whole.len(), "each sample is in the file once");
    // Nothing is left to do.
    assert_eq!(run(&experiment).lines.len(), whole.len());
    experiment.seed = 8;
    assert!(experiment.run().unwrap_err().to_string().contains("another experiment"));
}
