//! Tridgell's dbench 4: what one client asked of a file server, as recorded in the load that the package brings, for so many seconds.
//!
//! The time is given and the operations are counted, so a run's `count` is its own. Whether they were done is seen twice. What it counts,
//! kind by kind, must be a stretch of its load; and the target must hold the names that the load leaves at the end of that stretch. It
//! stands still in between, and a warm-up of a fifth of the time is not counted, so a handful of operations may be off.

use super::{Call, Held, Ran, Said, Tool, subdirectory, utf8};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::path::Path;

#[derive(Clone, Debug)]
pub struct Dbench {
    pub seconds: u64,
}

const LOAD: &str = "/usr/share/dbench/client.txt";
const FOLDER: &str = "dbench";
/// Operations that were under way as it stopped, or as its warm-up ended.
const OFF_MOST: u64 = 8;

/// Kinds of operations: as the load names them, and as the result does.
const KINDS: [(&str, &str); 16] = [
    ("NTCreateX", "NTCreateX"),
    ("Close", "Close"),
    ("Rename", "Rename"),
    ("Unlink", "Unlink"),
    ("Deltree", "Deltree"),
    ("Mkdir", "Mkdir"),
    ("QUERY_PATH_INFORMATION", "Qpathinfo"),
    ("QUERY_FILE_INFORMATION", "Qfileinfo"),
    ("QUERY_FS_INFORMATION", "Qfsinfo"),
    ("SET_FILE_INFORMATION", "Sfileinfo"),
    ("FIND_FIRST", "Find"),
    ("WriteX", "WriteX"),
    ("ReadX", "ReadX"),
    ("LockX", "LockX"),
    ("UnlockX", "UnlockX"),
    ("Flush", "Flush"),
];

type Counts = [u64; KINDS.len()];

/// Its table of operations, and the megabytes a second of its last line.
fn parse(output: &str) -> Result<(Counts, f64)> {
    let (_, table) = output.split_once("Operation      Count").context("there is no table of operations")?;
    let mut counts = Counts::default();
    for line in table.lines() {
        let mut words = line.split_whitespace();
        let Some(kind) = words.next().and_then(|word| KINDS.iter().position(|kind| kind.1 == word)) else { continue };
        counts[kind] = words.next().and_then(|word| word.parse().ok()).context("a kind of operation has no count")?;
    }
    let rate = table.lines().find_map(|line| line.strip_prefix("Throughput "));
    let rate = rate.and_then(|rest| rest.split_whitespace().next()).and_then(|word| word.parse().ok());
    Ok((counts, rate.context("it does not say its throughput")?))
}

/// A line of the load.
struct Step<'a> {
    kind: usize,
    words: Vec<&'a str>,
}

fn read_load(text: &str) -> Result<Vec<Step<'_>>> {
    let step = |line: &'_ str| -> Option<usize> {
        let word = line.split_whitespace().next()?;
        KINDS.iter().position(|kind| kind.0 == word)
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let kind = step(line).with_context(|| format!("its load has a line that is not known: {line}"))?;
            Ok(Step { kind, words: line.split_whitespace().collect() })
        })
        .collect()
}

/// Where in the load, which begins again at its end, as many operations end that are of these kinds; and how many are off.
fn stretch(load: &[Step], counts: &Counts) -> Result<(usize, u64)> {
    ensure!(!load.is_empty(), "its load is empty");
    let total = usize::try_from(counts.iter().sum::<u64>())?;
    let mut window = Counts::default();
    (0..total).for_each(|at| window[load[at % load.len()].kind] += 1);
    let off = |window: &Counts| window.iter().zip(counts).map(|(one, other)| one.abs_diff(*other)).sum::<u64>();
    let mut best = (total, off(&window));
    for start in 0..load.len() {
        if best.1 == 0 {
            break;
        }
        window[load[start].kind] -= u64::from(total > 0);
        window[load[(start + total) % load.len()].kind] += u64::from(total > 0);
        let found = off(&window);
        if found < best.1 {
            best = (start + 1 + total, found);
        }
    }
    Ok((best.0 % load.len(), best.1))
}

/// Names that the load has made and not removed when its first `end` lines are done.
fn names_after(load: &[Step], end: usize) -> usize {
    let path = |word: &str| word.trim_matches('"').to_ascii_lowercase();
    let mut there = BTreeSet::new();
    for Step { kind, words } in &load[..end] {
        if words.last() != Some(&"NT_STATUS_OK") {
            continue;
        }
        match (KINDS[*kind].0, &words[1..]) {
            // Disposition 1 opens what is there.
            ("NTCreateX", [name, _, disposition, ..]) if *disposition != "0x1" => drop(there.insert(path(name))),
            ("Mkdir", [name, ..]) => drop(there.insert(path(name))),
            ("Unlink", [name, ..]) => drop(there.remove(&path(name))),
            ("Rename", [name, new, ..]) => {
                there.remove(&path(name));
                there.insert(path(new));
            }
            ("Deltree", [name, ..]) => there.retain(|held| !held.starts_with(&path(name))),
            _ => {}
        }
    }
    there.len()
}

impl Tool for Dbench {
    fn name(&self) -> &'static str {
        "dbench"
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("dbench", "dbench")
    }

    fn phases(&self) -> Vec<&'static str> {
        vec!["load"]
    }

    fn calls(&self, directory: &Path, _scratch: &Path) -> Result<Vec<Call>> {
        let folder = utf8(&subdirectory(directory, FOLDER)?)?;
        let seconds = self.seconds.to_string();
        let words = ["-t", &seconds, "--skip-cleanup", "-D", &folder, "-c", LOAD, "1"];
        Ok(vec![Call { arguments: words.map(str::to_owned).to_vec(), ..Call::default() }])
    }

    fn judge(&self, directory: &Path, ran: &[Ran]) -> Result<Vec<Said>> {
        let run = ran.first().context("no call")?;
        let (counts, rate) = parse(&run.output)?;
        let count = counts.iter().sum();
        ensure!(count > 0, "it did no operation");
        let text = std::fs::read_to_string(LOAD).with_context(|| format!("reading {LOAD}"))?;
        let load = read_load(&text)?;
        let (end, off) = stretch(&load, &counts)?;
        ensure!(off <= OFF_MOST, "its {count} operations are no stretch of its load: {off} are off");
        let left = names_after(&load, end);
        let held = Held::below(&directory.join(FOLDER))?;
        ensure!(
            held.names.abs_diff(left as u64) <= OFF_MOST,
            "the target holds {} names where its {count} operations leave {left}: it did not do what it was asked",
            held.names
        );
        Ok(vec![Said { count, bytes: 0, seconds: Some(self.seconds as f64), rate: Some(rate) }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: &str = r#"Deltree "\clients\client1" NT_STATUS_OK
Mkdir "\clients" NT_STATUS_OK
NTCreateX "\clients\client1" 0x1 0x2 1 NT_STATUS_OK
Close 1 NT_STATUS_OK
NTCreateX "\clients\client1\A" 0x40 0x1 2 NT_STATUS_OBJECT_NAME_NOT_FOUND
NTCreateX "\clients\client1\A" 0x40 0x2 3 NT_STATUS_OK
WriteX 3 0 100 100 NT_STATUS_OK
Close 3 NT_STATUS_OK
Rename "\clients\client1\a" "\clients\client1\B" NT_STATUS_OK
NTCreateX "\clients\client1\C" 0x40 0x2 4 NT_STATUS_OK
Unlink "\clients\client1\B" 0x6 NT_STATUS_OK
"#;

    fn counts_of(load: &[Step], from: usize, count: usize) -> Counts {
        let mut counts = Counts::default();
        (from..from + count).for_each(|at| counts[load[at % load.len()].kind] += 1);
        counts
    }

    #[test]
    fn a_stretch_of_the_load_is_found_and_its_names_are_counted() {
        let load = read_load(SHORT).unwrap();
        // From the start, after a warm-up, and round the end.
        for (from, count) in [(0, 1), (0, 11), (3, 6), (9, 8), (0, 30), (5, 25)] {
            let (end, off) = stretch(&load, &counts_of(&load, from, count)).unwrap();
            assert_eq!(off, 0, "{from} {count}");
            assert_eq!(counts_of(&load, end + 2 * load.len() - count, count), counts_of(&load, from, count));
        }
        let mut counts = counts_of(&load, 0, 11);
        counts[11] += 20;
        assert!(stretch(&load, &counts).unwrap().1 >= 20);
        let names: Vec<usize> = (0..=load.len()).map(|end| names_after(&load, end)).collect();
        assert_eq!(names, [0, 0, 1, 2, 2, 2, 3, 3, 3, 3, 4, 3]);
        assert!(read_load("Sleep 3\n").is_err());
    }

    #[test]
    fn what_it_printed_is_read() {
        let (counts, rate) = parse(include_str!("../../tests/tools/dbench.txt")).unwrap();
        let expected = [6621, 4920, 282, 1289, 1, 1, 5979, 1127, 1080, 550, 2286, 3668, 10_430, 22, 22, 469];
        assert_eq!(counts, expected);
        assert!((rate - 116.5).abs() < 1e-9, "{rate}");
        assert!(parse("dbench version 4.00\n").unwrap_err().to_string().contains("no table"));
    }
}
