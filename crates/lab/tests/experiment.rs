//! Every suite and every target, tiny: each does what its workload says, and a target that does nothing is found out.

mod common;

use common::experiment;
use myriad_lab::experiment::{Experiment, Line, Outcome, Place, SUITES, Scale, Suite, Twin, Work, factors};
use myriad_lab::slowdown::Slowdown;
use std::collections::{BTreeMap, BTreeSet};

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

/// Operations of each reported phase that the target can be measured in, by the workloads' own word.
fn expected(suites: &[&str], target: &str) -> BTreeMap<(String, Option<u64>, String), u64> {
    let (has_rows, is_read_only) = (target == "sqlite", Place::parse(target).unwrap().is_read_only());
    let mut expected = BTreeMap::new();
    for item in suites.iter().flat_map(|name| Suite::named(name).unwrap().items(Scale(0.001), 7)) {
        let Work::Ours(workload) = &item.work else { panic!("{} is a program", item.name) };
        for phase in workload.phases().iter().filter(|phase| phase.reported) {
            if !(has_rows && (phase.links || phase.random_access) || is_read_only && phase.changes) {
                let ops = workload.plan(phase, 0).ops();
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
    for target in ["process", "disk2001", "sqlite"] {
        assert_eq!(counts(&outcome, target), expected(&suites, target), "{target}");
    }
    for line in &outcome.lines {
        let modelled = line.target == "disk2001";
        assert_eq!(line.clock, if modelled { "modelled" } else { "wall" });
        assert!(line.seconds.is_some_and(|seconds| seconds >= 0.0 && (modelled || seconds > 0.0)), "{line:?}");
        // SQLite's device counts where it has one of its own.
        let counted = line.target != "sqlite";
        assert!(line.device.writes.is_some() || !counted, "{line:?}");
        assert_eq!(line.device.seek_blocks.is_some(), counted);
    }
    // Time was taken where something was written.
    let wrote = |line: &&Line| line.clock == "modelled" && line.device.writes > Some(0);
    assert!(outcome.lines.iter().filter(wrote).count() > 30);
    assert!(outcome.lines.iter().filter(wrote).all(|line| line.seconds > Some(0.0001)));
    assert!(folder.path().read_dir().unwrap().next().is_none(), "nothing is left behind");
}

/// Targets in a folder of the build's own: on a file system that allows direct I/O, most likely. All that are there are run.
fn run_in_build_folder(suites: &[&str], places: &[&str], age: u64) -> Outcome {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let outcome = run(&Experiment { age, ..experiment(folder.path(), suites, places) });
    for (place, why) in &outcome.header.left_out {
        eprintln!("left out: {place}: {why}");
    }
    for place in &outcome.header.targets {
        assert_eq!(counts(&outcome, place), expected(suites, place), "{place}");
    }
    assert!(folder.path().read_dir().unwrap().next().is_none(), "nothing is left behind");
    let loops = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!loops.contains(folder.path().to_str().unwrap()), "{loops}");
    outcome
}

/// Whether a loop device holds an image in the build's folder.
fn has_loop_devices() -> bool {
    let devices = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path().join("loop/backing_file"));
    devices.filter_map(|path| std::fs::read_to_string(path).ok()).any(|file| file.contains("/myriad-lab-"))
}

#[test]
fn every_suite_on_every_target_that_is_mounted() {
    let suites: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    // A mount wants the program: crates/cli/tests/lab.rs. fuse2fs is unmounted at the end of each phase that changes something; two suites
    // on it, below, take as long as all of these.
    let mounted: Vec<&str> = Place::all()
        .into_iter()
        .filter(|place| place.mounts() && !matches!(place, Place::Mount | Place::Sqlite | Place::Fuse2fs))
        .map(Place::name)
        .collect();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: file systems are mounted by root");
    }
    let outcome = run_in_build_folder(&suites, &mounted, 0);
    assert!(!has_loop_devices(), "loop devices are left behind");
    // What a file system was asked reached its own device, and no other's was counted: after a cold start a file is read once, or with what
    // lies around it, and not much more.
    for line in outcome.lines.iter().filter(|line| !["tmpfs", "dwarfs"].contains(&line.target.as_str())) {
        let device = line.device;
        assert!(device.reads.is_some() && device.flushes.is_some(), "{line:?}");
        if line.workload == "training" && line.phase == "write" {
            assert!(device.written_bytes >= Some(line.bytes) && device.flushes > Some(0), "{line:?}");
        }
        if line.workload == "training" && line.phase == "epoch_cold" {
            assert!(device.read_bytes > Some(line.bytes / 2) && device.written_bytes < Some(16 << 20), "{line:?}");
        }
    }
}

/// An aged file system holds what ageing left in it, and does what a fresh one does.
#[test]
fn every_target_is_asked_for_the_same_after_ageing() {
    let places: Vec<&str> = Place::all().into_iter().map(Place::name).filter(|name| *name != "mount").collect();
    let outcome = run_in_build_folder(&["netnews", "tar"], &places, 40);
    for place in ["process", "disk1996", "disk2001", "ssd", "object", "sqlite"] {
        assert!(!outcome.header.left_out.contains_key(place), "{place} needs nothing of the machine");
    }
}

/// Its server ends with each phase that changes something, and took what was in memory along.
#[test]
fn a_warm_phase_of_fuse2fs_finds_all_in_memory() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tar = experiment(folder.path(), &["tar"], &["process", "fuse2fs"]);
    let outcome = run(&Experiment { check_each: false, ..tar });
    if let Some(why) = outcome.header.left_out.get("fuse2fs") {
        return eprintln!("skipped: fuse2fs: {why}");
    }
    let found = outcome.lines.iter().find(|line| line.target == "fuse2fs" && line.phase == "find").unwrap();
    assert_eq!(found.device.reads, Some(0), "{found:?}");
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

/// Both twins of a run are asked for the same, to the request; another run is another seed.
#[test]
fn twins_do_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let twins = Experiment { twin: true, runs: 2, ..experiment(folder.path(), &["netnews", "folder"], &["disk2001"]) };
    let outcome = run(&twins);
    let of = |twin: Twin| {
        let lines = outcome.lines.iter().filter(|line| line.twin == Some(twin));
        let mut lines: Vec<String> = lines
            .map(|line| {
                let Line { workload, phase, run, count, seconds, device, blocks_touched, .. } = line;
                format!("{run} {workload} {phase} {count} {seconds:?} {device:?} {blocks_touched:?}")
            })
            .collect();
        lines.sort();
        lines
    };
    let first = of(Twin::First);
    assert!(first.len() > 6 && first.len() * 2 == outcome.lines.len());
    assert_eq!(first, of(Twin::Second));
}

/// The slowed one does the same operations, and what it waited is at least the share of what they took; the others read the clock as often
/// and wait for nothing.
#[test]
fn a_planted_slowdown_counts_what_it_adds() {
    let folder = tempfile::tempdir().unwrap();
    let slowdown = Slowdown::parse("unlink:50%").unwrap();
    let planted = Experiment {
        twin: true,
        slowdown: Some(slowdown),
        ..experiment(folder.path(), &["dirhash", "tar"], &["process", "sqlite"])
    };
    let outcome = run(&planted);
    let mut seen = BTreeMap::new();
    for line in &outcome.lines {
        let slowed = line.slowed.as_ref().unwrap();
        assert_eq!(slowed.operation, "unlink");
        let is_slowed = line.twin == Some(Twin::Slowed);
        assert_eq!(slowed.percent, if is_slowed { 50.0 } else { 0.0 });
        if is_slowed {
            assert!(slowed.added_ns >= slowed.took_ns / 2, "{line:?}");
            assert!(line.seconds.unwrap() * 1e9 >= (slowed.took_ns + slowed.added_ns) as f64, "{line:?}");
        } else {
            assert_eq!(slowed.added_ns, 0, "{line:?}");
        }
        if line.phase == "create" || line.phase == "unpack" {
            assert_eq!(slowed.calls, 0, "{line:?}");
        }
        let key = (line.target.clone(), line.workload.clone(), line.size, line.phase.clone());
        seen.entry(key).or_insert_with(Vec::new).push((line.count, slowed.calls));
    }
    assert!(seen.values().all(|twins| twins.len() == 3 && twins.iter().all(|one| *one == twins[0])), "{seen:#?}");
    let removed = seen.iter().filter(|((_, workload, _, phase), _)| workload == "dirhash" && phase == "remove");
    let calls: Vec<(u64, u64)> = removed.map(|(_, twins)| twins[0]).collect();
    assert!(calls.len() >= 4 && calls.iter().all(|(count, calls)| count == calls), "{calls:?}");
}

/// The thing, the place, and the next step.
#[test]
fn a_slowdown_that_nothing_would_show_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |suite: &str, place: &str, slow: &str| {
        let slowdown = Some(Slowdown::parse(slow).unwrap());
        let experiment =
            Experiment { twin: true, slowdown, ..experiment(folder.path(), &[suite], &["process", place]) };
        experiment.run().unwrap_err().to_string()
    };
    let modelled = refused("tar", "disk2001", "mkdir:5%");
    assert!(
        modelled.starts_with("--slow mkdir:5%: disk2001 ") && modelled.contains("targets with a clock"),
        "{modelled}"
    );
    let absent = refused("tar", "sqlite", "rename:5%");
    assert!(absent.starts_with("--slow rename:5%: no measured phase does that"), "{absent}");
    assert!(absent.contains("write_file") && !absent.contains("rename,"), "{absent}");
    let theirs = refused("tools/fio", "sqlite", "write_at:5%");
    assert!(theirs.contains("tools/fio") && theirs.contains("other than tools"), "{theirs}");
}
