//! Every workload on every target, small: each does what was asked, counts what was counted, and leaves nothing behind.
//! The runner checks contents, counts of entries and missing names by itself; nothing here looks at times.

use myriad_engine::{MkfsOptions, MountOptions, Order};
use myriad_lab::provider::{self, Provider, VolumeOptions};
use myriad_lab::runner::{RunOptions, Sample};
use myriad_lab::schedule::{self, Selected};
use myriad_lab::targets::Durability;
use myriad_lab::workloads::Workload;
use myriad_lab::workloads::dir::{Dir, UnlinkOrder};
use myriad_lab::workloads::file::Files;
use myriad_lab::workloads::folder::Folder;
use myriad_lab::workloads::names::NameStyle;
use myriad_lab::workloads::tree::Tree;
use std::collections::BTreeMap;
use std::path::Path;

const THREADS: usize = 2;

fn workloads(names: NameStyle) -> Vec<Selected> {
    let (seed, cold, batch, lookups) = (7, false, 16, 50);
    let dir = Dir { entries: 12, dirs: 2, lookups, batch, names, unlink_order: UnlinkOrder::Random, cold, seed };
    let sequential = Dir { dirs: 1, unlink_order: UnlinkOrder::Sequential, ..dir.clone() };
    let tree =
        Tree { dirs: 6, files: 3, size: 100, fan: 4, lookups, batch, names, cold, threads: THREADS, seed, meta: false };
    let meta = Tree { size: 0, meta: true, ..tree.clone() };
    let files = Files {
        files: 20,
        size_max: 20_000,
        big: 1 << 17,
        requests: vec![4096, 1 << 16],
        random_requests_max: 10,
        names,
        cold,
        seed,
    };
    let folder = Folder { messages: 40, size: 100, seed };
    let all: Vec<Box<dyn Workload>> =
        vec![Box::new(dir), Box::new(sequential), Box::new(tree), Box::new(meta), Box::new(files), Box::new(folder)];
    all.into_iter().map(|workload| Selected { phases: workload.phases(), workload }).collect()
}

fn run(mut providers: Vec<Box<dyn Provider>>, durability: Durability, names: NameStyle) -> Vec<Sample> {
    let options = RunOptions { threads: THREADS, durability, seed: 7, slowdown: None };
    let bar = indicatif::ProgressBar::hidden();
    let mut samples = Vec::new();
    // Syncing each operation takes its time; two rounds of it would show no more.
    let rounds = if durability == Durability::End { 2 } else { 1 };
    for round in 0..rounds {
        let mut done = |fresh: Vec<Sample>| {
            samples.extend(fresh);
            Ok(())
        };
        schedule::round(&mut providers, &workloads(names), options, round, &bar, &mut done).unwrap();
    }
    samples
}

fn parse(text: &str, durability: Durability) -> Box<dyn Provider> {
    let volume = VolumeOptions {
        size: Some(64 << 20),
        mkfs: MkfsOptions { seed: Some(7), ..MkfsOptions::default() },
        mount: MountOptions { order: Some(Order::Log), cache_size: 16 << 20, ..MountOptions::default() },
    };
    provider::parse(text, &volume, durability, false, false).unwrap()
}

/// Operations by phase, of one target.
fn ops(samples: &[Sample], target: &str) -> BTreeMap<String, Vec<u64>> {
    let mut ops = BTreeMap::<String, Vec<u64>>::new();
    for sample in samples.iter().filter(|sample| sample.target == target) {
        ops.entry(format!("{} {}", sample.workload, sample.phase)).or_default().push(sample.ops);
    }
    ops
}

fn is_empty(folder: &Path) -> bool {
    folder.read_dir().unwrap().next().is_none()
}

#[test]
fn directory_and_database_do_the_same_work() {
    for (durability, names) in [
        (Durability::End, NameStyle::Numeric),
        (Durability::Every(1), NameStyle::Random),
        (Durability::Every(7), NameStyle::Long),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let database = format!("sqlite:{path}/db");
        let samples = run(vec![parse(path, durability), parse(&database, durability)], durability, names);
        let directory = ops(&samples, path);
        assert!(directory["tree walk"].iter().all(|&ops| ops == 2 * 6 * 4));
        assert_eq!(directory["dir unlink"][..2], [48, 24]);
        let mut without_big_file = directory;
        without_big_file.retain(|phase, _| !phase.contains('@'));
        assert_eq!(ops(&samples, &database), without_big_file);
        assert!(samples.iter().filter(|sample| sample.workload == "meta").all(|sample| sample.metadata.is_some()));
        assert!(is_empty(folder.path()));
    }
}

#[test]
fn direct_io_reads_what_it_wrote() {
    // The build's own folder: a file system that is no tmpfs, most likely.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let direct = format!("direct:{}", folder.path().display());
    let samples = run(vec![parse(&direct, Durability::End)], Durability::End, NameStyle::Numeric);
    assert!(samples.iter().any(|sample| sample.phase == "rand_read@4096" && sample.bytes == 2 * 10 * 4096));
}

#[test]
fn volume_does_what_a_directory_does() {
    for durability in [Durability::End, Durability::Every(1), Durability::Every(7)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let image = format!("{path}/image");
        let providers = vec![parse(path, durability), parse(&image, durability)];
        let samples = run(providers, durability, NameStyle::Random);
        assert_eq!(ops(&samples, &image), ops(&samples, path));
        let counted = |sample: &&Sample| sample.target == image && sample.counters.blocks_touched.is_some();
        assert!(samples.iter().any(|sample| counted(&sample) && sample.counters.writes.is_some()));
        assert!(is_empty(folder.path()));
    }
}
