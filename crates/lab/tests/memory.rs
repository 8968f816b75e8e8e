//! An experiment with little memory for all. It has a program of its own: what other tests give back would be too much.

mod common;

use common::experiment;
use myriad_lab::experiment::{Experiment, Outcome};

fn available_bytes() -> u64 {
    let table = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// The memory was taken by a file system in the experiment's folder, which was removed while that was mounted: the samples were there, and the
/// run ended with an error instead of its table.
#[test]
fn memory_that_was_taken_is_given_back_before_the_folder_goes() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: memory can only be taken by root");
    }
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let memory_bytes = Some(available_bytes() - (128 << 20));
        Experiment { memory_bytes, ..experiment(folder.path(), &["simplefs"], &["process"]) }.run()
    };
    // Others on the machine may give memory back in the middle of it: then the cell has no samples.
    let is_undisturbed =
        |outcome: &Outcome| !outcome.failed.iter().any(|error| error.contains("have become available"));
    let outcome = (0..10).map(|_| run().unwrap()).find(is_undisturbed).expect("a run that nobody disturbs");
    assert!(outcome.failed.is_empty() && !outcome.lines.is_empty(), "{:?}", outcome.failed);
    assert!(folder.path().read_dir().unwrap().next().is_none(), "nothing is left behind");
}
