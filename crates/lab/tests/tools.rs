//! Benchmarks of others: each is run for real, tiny, where it is installed; and a program that prints what one of them printed once, and
//! does nothing, is found out.

mod common;

use anyhow::Result;
use common::experiment;
use myriad_lab::experiment::{Experiment, Outcome, Scale, Suite, Work};
use myriad_lab::targets::sys_calls::SysCalls;
use myriad_lab::tools::{self, Bonnie, Call, Dbench, Fio, FsMark, Postmark, Ran, Said, Tool};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What the sample of a phase has to say: operations and bytes; `None`: as many as there was time for.
fn expected(tool: &str, phase: &str, size: Option<u64>) -> Option<(u64, u64)> {
    const MIB: u64 = 1 << 20;
    Some(match (tool, phase) {
        ("bonnie++", "write" | "read") => (128, MIB),
        ("bonnie++", "rewrite") => (256, 2 * MIB),
        ("bonnie++", "seeks") => (8, 8 * 8192),
        ("bonnie++", _) => (1024, 0),
        ("postmark_tool", "create") => (size?, 0),
        ("postmark_tool", "transactions") => (2 * size?, 0),
        ("fs_mark", "create") => (10, 10 * 4096),
        ("fs_mark", "create_synced") => (8, 8 * 4096),
        ("fio", "write" | "read") => (128, MIB),
        ("fio", "random_read" | "random_write") => (8, 8 * 8192),
        _ => return None,
    })
}

fn check(outcome: &Outcome, place: &str) {
    for item in Suite::named("tools").unwrap().items(Scale(0.001), 7) {
        let Work::Theirs(tool) = &item.work else { panic!("{} is no program", item.name) };
        let of = |line: &&myriad_lab::experiment::Line| {
            line.target == place && line.workload == item.name && line.size == item.size
        };
        let lines: Vec<_> = outcome.lines.iter().filter(of).collect();
        if let Some(why) = tool.missing() {
            assert!(lines.is_empty());
            assert_eq!(outcome.header.left_out[&format!("tools {}", item.name)], why);
            eprintln!("skipped: {} is {why}", item.name);
            continue;
        }
        let phases: Vec<&str> = lines.iter().map(|line| line.phase.as_str()).collect();
        assert_eq!(phases, tool.phases(), "{} on {place}", item.name);
        // Of a handful of files two phases may begin before the lab gets to read that they do.
        assert!(lines.iter().filter_map(|line| line.seconds).sum::<f64>() > 0.0, "{lines:?}");
        for line in lines {
            assert!(line.count > 0 && line.seconds >= Some(0.0) && line.clock == "wall", "{line:?}");
            assert!(line.suite == "tools" && line.tool.is_some(), "{line:?}");
            if let Some(expected) = expected(&line.workload, &line.phase, line.size) {
                assert_eq!((line.count, line.bytes), expected, "{line:?}");
            }
        }
    }
}

#[test]
fn each_is_run_where_it_is_installed() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: file systems are mounted by root");
    }
    // Where none is installed, a run says so and ends.
    let items = Suite::named("tools").unwrap().items(Scale(0.001), 7);
    let missing = items.iter().filter_map(|item| match &item.work {
        Work::Theirs(tool) => tool.missing().map(|why| format!("{} is {why}", item.name)),
        Work::Ours(_) => None,
    });
    let missing: Vec<String> = missing.collect();
    if missing.len() == items.len() {
        return missing.iter().for_each(|what| eprintln!("skipped: {what}"));
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Aged, so that a program finds names of others in its target.
    let places = ["folder", "tmpfs", "ext4", "process"];
    let outcome = Experiment { age: 20, ..experiment(folder.path(), &["tools"], &places) }.run().unwrap();
    assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    for place in ["folder", "tmpfs", "ext4"] {
        match outcome.header.left_out.get(place) {
            Some(why) => eprintln!("skipped: {place}: {why}"),
            None => check(&outcome, place),
        }
    }
    assert!(outcome.header.left_out["tools on process"].contains("needs a directory"));
    assert!(outcome.lines.iter().all(|line| line.target != "process"));
    // The device below a folder is everybody's; that of a file system of one's own counts.
    assert!(outcome.lines.iter().filter(|line| line.target == "folder").all(|line| line.device.writes.is_none()));
    let synced = outcome.lines.iter().find(|line| line.target == "ext4" && line.phase == "create_synced");
    assert!(synced.is_none_or(|line| line.device.flushes >= Some(8)), "{synced:?}");
    assert!(folder.path().read_dir().unwrap().next().is_none(), "nothing is left behind");
}

#[test]
fn targets_without_a_directory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = experiment(folder.path(), &["tools/fio"], &["process", "disk2001"]).run().unwrap_err().to_string();
    for part in ["nothing is left to be run", "tools on process", "tools on disk2001", "needs a directory"] {
        assert!(refused.contains(part), "{refused}");
    }
}

/// Nobody has it.
struct Nowhere;

impl Tool for Nowhere {
    fn name(&self) -> &'static str {
        "nowhere"
    }
    fn program(&self) -> (&'static str, &'static str) {
        ("no-such-benchmark", "no-such-package")
    }
    fn phases(&self) -> Vec<&'static str> {
        vec!["all"]
    }
    fn calls(&self, _: &Path, _: &Path) -> Result<Vec<Call>> {
        panic!("it is not there to be called")
    }
    fn judge(&self, _: &Path, _: &[Ran]) -> Result<Vec<Said>> {
        panic!("it did not run")
    }
}

#[test]
fn what_is_not_installed_is_named_with_its_package() {
    assert_eq!(Nowhere.missing().unwrap(), "not installed: apt install no-such-package");
    let target = Target::new();
    let refused = tools::run(&target.calls, &Nowhere, None).unwrap_err().to_string();
    assert_eq!(refused, "not installed: apt install no-such-package");
}

/// A directory as a target.
struct Target {
    calls: SysCalls,
    /// Where programs are that only talk.
    programs: tempfile::TempDir,
}

impl Target {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let calls = SysCalls::new(folder.path(), false).with_drop_caches(Box::new(|| Ok(())));
        Self { calls: calls.with_guard(Box::new(folder)), programs: tempfile::tempdir().unwrap() }
    }

    /// Why a tool whose program is this script was not believed.
    fn refusal(&self, tool: &dyn Tool, script: &str) -> String {
        let program = self.programs.path().join(tool.program().0);
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let refused = tools::run(&self.calls, tool, Some(self.programs.path())).unwrap_err();
        format!("{refused:#}")
    }
}

/// What a tool printed once (tests/tools).
fn recorded(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tools").join(name);
    format!("cat '{}'", path.display())
}

/// What Bonnie++ says as its phases begin.
const MARKS: &str = "cat >&2 <<'TEXT'
Writing intelligently...done
Rewriting...done
Reading intelligently...done
start 'em...done...
Create files in sequential order...done.
Stat files in sequential order...done.
Delete files in sequential order...done.
Create files in random order...done.
Stat files in random order...done.
Delete files in random order...done.
TEXT
";

/// The worst of all benchmarks is one that does nothing: each of them printed all of this when it did its work.
#[test]
fn a_program_that_only_talks_is_found_out() {
    let bonnie = Bonnie { mib: 1, kibi_files: 1, seeks: 8, seed: 7 };
    let postmark = Postmark { files: 50, transactions: 50, seed: 42 };
    let fio = Fio { bytes: 1 << 20, requests: 8, seed: 7 };
    let jobs = ["write", "read", "randread", "randwrite"];
    let fio_says: String =
        jobs.map(|job| format!("*--rw={job}\\ *) {};;\n", recorded(&format!("fio-{job}.json")))).concat();
    let cases: [(&dyn Tool, String); 5] = [
        (&bonnie, format!("{MARKS}{}", recorded("bonnie++.txt"))),
        (&postmark, recorded("postmark.txt")),
        (&FsMark { files: 10, synced: 10 }, recorded("fs_mark.txt")),
        (&fio, format!("case \"$* \" in\n{fio_says}esac")),
        (&Dbench { seconds: 2 }, recorded("dbench.txt")),
    ];
    for (tool, script) in cases {
        // Its load is in the package.
        if let (Some(why), "dbench") = (tool.missing(), tool.name()) {
            eprintln!("skipped: dbench is {why}");
            continue;
        }
        let refused = Target::new().refusal(tool, &script);
        // The last where the host does not tell a user what a program has written.
        let ways = ["did not do what it was asked", "looking at", "nothing says that it did what it was asked"];
        let found_out = ways.iter().any(|way| refused.contains(way));
        assert!(found_out, "{}: {refused}", tool.name());
    }
}

/// A program that did something else than it was told, ended with an error, or said nothing.
#[test]
fn a_program_that_does_something_else_is_found_out() {
    let tool = Postmark { files: 51, transactions: 50, seed: 42 };
    for (script, why) in [
        (recorded("postmark.txt"), "it says 50 files at first where it was told 51"),
        ("echo no space left >&2; exit 3".to_owned(), "exit status: 3): no space left"),
        ("echo hello".to_owned(), "it never said `Creating files...`"),
        ("echo 'Creating files... Performing transactions Deleting files...'".to_owned(), "it does not say"),
    ] {
        let refused = Target::new().refusal(&tool, &script);
        assert!(refused.contains(why), "{refused}");
    }
    let refused = Target::new().refusal(&FsMark { files: 11, synced: 11 }, &recorded("fs_mark.txt"));
    assert!(refused.contains("it says 10 files where it was told 11"), "{refused}");
    let half = format!("{} | sed 's/ReadX          [0-9]*/ReadX 77/'", recorded("dbench.txt"));
    if (Dbench { seconds: 2 }).missing().is_none() {
        let refused = Target::new().refusal(&Dbench { seconds: 2 }, &half);
        assert!(refused.contains("no stretch of its load"), "{refused}");
    }
}
