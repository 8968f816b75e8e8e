//! Samples into tables and JSON lines.

use crate::provenance::Provenance;
use crate::provider::Side;
use crate::runner::Sample;
use crate::stats;
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::Path;

/// A line of a result file: one workload on one target in one round, and all that is needed to judge it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub provenance: Provenance,
    pub seed: u64,
    pub options: serde_json::Value,
    pub samples: Vec<Sample>,
}

/// Appends lines to a file, each as soon as it is known, so that an interrupted run keeps what it had.
pub struct ResultFile {
    file: std::fs::File,
}

impl ResultFile {
    pub fn append_to(path: &Path) -> Result<Self> {
        // What begins otherwise is no file of results: a volume, perhaps.
        let mut first = [0];
        let found = path.is_file().then(|| std::fs::File::open(path).ok()).flatten();
        let is_other =
            found.is_some_and(|mut file| file.read(&mut first).is_ok_and(|count| first[..count] != b"{"[..count]));
        ensure!(!is_other, "{} holds no results: name another file", path.display());
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        Ok(Self { file: file.with_context(|| format!("opening {}", path.display()))? })
    }

    pub fn push(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        Ok(self.file.write_all(&line)?)
    }
}

/// A target as tables name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub label: String,
    pub side: Side,
}

/// One row a phase and target: medians over the runs, the range of times, requests per operation.
pub fn detail(samples: &[Sample], columns: &[Column]) -> Table {
    let mut table = table(&[
        "workload",
        "phase",
        "target",
        "ops",
        "us/op",
        "least",
        "most",
        "sync",
        "MiB/s",
        "reads/op",
        "writes/op",
        "written/op",
        "flushes",
        "blocks/op",
    ]);
    for (workload, phase) in phases(samples) {
        for column in columns {
            let runs = select(samples, &workload, &phase, &column.label);
            let Some(first) = runs.first() else { continue };
            let times: Vec<f64> = runs.iter().map(|sample| sample.us_per_op()).collect();
            let median = |value: &dyn Fn(&Sample) -> Option<f64>| median_of(&runs, value);
            let per_op = |count: fn(&Sample) -> Option<u64>| {
                number(median(&|sample| Some(count(sample)? as f64 / sample.ops.max(1) as f64)))
            };
            table.add_row(vec![
                workload.clone(),
                phase.clone(),
                column.label.clone(),
                first.ops.to_string(),
                number(stats::median(&times)),
                number(stats::quantile(&times, 0.0)),
                number(stats::quantile(&times, 1.0)),
                number(median(&|sample| Some(sample.sync_us_per_op()))),
                number(median(&|sample| (sample.bytes > 0).then(|| sample.bytes_per_second() / f64::from(1 << 20)))),
                per_op(|sample| sample.counters.reads),
                per_op(|sample| sample.counters.writes),
                per_op(|sample| sample.counters.written_bytes),
                number(median(&|sample| sample.counters.flushes.map(|flushes| flushes as f64))),
                per_op(|sample| sample.counters.blocks_touched),
            ]);
        }
    }
    table
}

/// One row a phase: median us per operation of each target, how many times faster ours is than the best kernel file system
/// with its 95% interval (of few rounds their range), and device writes.
pub fn comparison(samples: &[Sample], columns: &[Column], seed: u64) -> Table {
    let mut header = vec!["workload".to_owned(), "phase".to_owned(), "ops".to_owned()];
    header.extend(columns.iter().map(|column| format!("{} us/op", column.label)));
    let rounds = samples.iter().map(|sample| sample.run).max().map_or(0, |last| last as usize + 1);
    header.extend(["best kernel", "ratio", stats::ends(rounds), "its writes/op", "our writes/op"].map(str::to_owned));
    let mut table = table(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for (workload, phase) in phases(samples) {
        let of = |column: &Column| select(samples, &workload, &phase, &column.label);
        let times = |runs: &[&Sample]| runs.iter().map(|sample| sample.us_per_op()).collect::<Vec<f64>>();
        let median_time = |column: &Column| stats::median(&times(&of(column)));
        let writes_per_op = |column: &Column| {
            number(median_of(&of(column), &|sample| Some(sample.counters.writes? as f64 / sample.ops.max(1) as f64)))
        };
        let mut row = vec![workload.clone(), phase.clone()];
        let some = columns.iter().find_map(|column| of(column).first().map(|sample| sample.ops));
        row.push(some.map_or("-".to_owned(), |ops| ops.to_string()));
        row.extend(columns.iter().map(|column| number(median_time(column))));
        let kernels: Vec<&Column> =
            columns.iter().filter(|column| column.side == Side::Kernel && median_time(column).is_some()).collect();
        let best = kernels.iter().min_by(|a, b| {
            f64::total_cmp(&median_time(a).unwrap_or(f64::INFINITY), &median_time(b).unwrap_or(f64::INFINITY))
        });
        let ours = columns.iter().find(|column| column.side == Side::Ours && median_time(column).is_some());
        let ratio = ours.and_then(|ours| {
            let rivals: Vec<Vec<f64>> = kernels.iter().map(|kernel| times(&of(kernel))).collect();
            let rivals: Vec<&[f64]> = rivals.iter().map(Vec::as_slice).collect();
            stats::speedup(&rivals, &times(&of(ours)), seed)
        });
        row.push(best.map_or("-".to_owned(), |best| best.label.clone()));
        row.push(number(ratio.map(|ratio| ratio.value)));
        row.push(ratio.map_or("-".to_owned(), |ratio| between(ratio, rounds, |end| number(Some(end)))));
        row.push(best.map_or("-".to_owned(), |best| writes_per_op(best)));
        row.push(ours.map_or("-".to_owned(), writes_per_op));
        table.add_row(row);
    }
    table
}

/// Space that metadata takes; `None` if nothing was measured.
pub fn metadata(samples: &[Sample], columns: &[Column]) -> Option<Table> {
    let mut table = table(&["target", "metadata bytes/file", "with inode tables of mkfs"]);
    let mut rows = 0;
    for column in columns {
        let runs: Vec<&Sample> =
            samples.iter().filter(|sample| sample.target == column.label && sample.metadata.is_some()).collect();
        if runs.is_empty() {
            continue;
        }
        rows += 1;
        table.add_row(vec![
            column.label.clone(),
            number(median_of(&runs, &|sample| sample.metadata.map(|metadata| metadata.bytes_per_file))),
            number(median_of(&runs, &|sample| sample.metadata.map(|metadata| metadata.bytes_per_file_with_tables))),
        ]);
    }
    (rows > 0).then_some(table)
}

/// Workloads and phases in order of first appearance.
fn phases(samples: &[Sample]) -> Vec<(String, String)> {
    let mut phases = Vec::new();
    for sample in samples {
        let phase = (sample.workload.clone(), sample.phase.clone());
        if !phases.contains(&phase) {
            phases.push(phase);
        }
    }
    phases
}

/// A target's runs of a phase, by round.
fn select<'a>(samples: &'a [Sample], workload: &str, phase: &str, target: &str) -> Vec<&'a Sample> {
    let wanted = |sample: &&Sample| sample.workload == workload && sample.phase == phase && sample.target == target;
    let mut runs: Vec<&Sample> = samples.iter().filter(wanted).collect();
    runs.sort_by_key(|sample| sample.run);
    runs
}

fn median_of(runs: &[&Sample], value: &dyn Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = runs.iter().filter_map(|sample| value(sample)).collect();
    stats::median(&values)
}

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.to_vec());
    for (index, column) in table.column_iter_mut().enumerate() {
        let named = matches!(
            header[index],
            "workload" | "phase" | "target" | "setting" | "best kernel" | "95%" | "least to most"
        );
        column.set_cell_alignment(if named { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding((0, 2));
    }
    table
}

/// The ends of an estimate; a dash for those of one round, which says nothing of others.
pub(crate) fn between(estimate: stats::Estimate, rounds: usize, write: impl Fn(f64) -> String) -> String {
    if rounds > 1 { format!("{} to {}", write(estimate.low), write(estimate.high)) } else { "-".to_owned() }
}

/// Three significant digits, which is more than a measurement holds; a dash for what is not known.
pub(crate) fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.001 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::Counters;

    fn sample(target: &str, run: u32, us_per_op: u64) -> Sample {
        Sample {
            workload: "dir".into(),
            phase: "create".into(),
            target: target.into(),
            run,
            ops: 1000,
            bytes: 0,
            elapsed_ns: us_per_op * 1_000_000,
            sync_ns: 0,
            counters: Counters { writes: Some(us_per_op * 100), ..Counters::default() },
            metadata: None,
            slowed: None,
        }
    }

    fn columns() -> Vec<Column> {
        let column = |label: &str, side| Column { label: label.into(), side };
        vec![
            column("ext4", Side::Kernel),
            column("xfs", Side::Kernel),
            column("myriad", Side::Ours),
            column("sqlite", Side::Other),
        ]
    }

    /// The best kernel file system is the rival, SQLite is not; missing samples are dashes.
    #[test]
    fn comparison_table() {
        let of = |runs: u32| {
            let samples = (0..runs).flat_map(|run| {
                [sample("ext4", run, 40), sample("xfs", run, 24), sample("myriad", run, u64::from(2 + run % 2))]
            });
            let text = comparison(&samples.collect::<Vec<_>>(), &columns(), 1).to_string();
            let words = text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
            (text.lines().next().unwrap().to_owned(), words)
        };
        let (header, row) = of(6);
        assert!(header.contains("95%"), "{header}");
        assert_eq!(row, "dir create 1000 40.0 24.0 2.50 - xfs 9.60 8.00 to 12.0 2.40 0.250");
        let (header, row) = of(5);
        assert!(header.contains("least to most") && !header.contains("95%"), "{header}");
        assert_eq!(row, "dir create 1000 40.0 24.0 2.00 - xfs 12.0 8.00 to 12.0 2.40 0.200");
        assert_eq!(of(1).1, "dir create 1000 40.0 24.0 2.00 - xfs 12.0 - 2.40 0.200");
    }

    #[test]
    fn detail_table() {
        let samples = [sample("ext4", 0, 40), sample("ext4", 1, 20), sample("ext4", 2, 30)];
        let text = detail(&samples, &columns()).to_string();
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            words,
            ["dir", "create", "ext4", "1000", "30.0", "20.0", "40.0", "0", "-", "-", "3.00", "-", "-", "-"]
        );
        assert!(metadata(&samples, &columns()).is_none());
    }

    #[test]
    fn numbers() {
        let cases = [
            (0.0, "0"),
            (0.00012, "1.2e-4"),
            (0.0123, "0.012"),
            (3.456, "3.46"),
            (34.56, "34.6"),
            (3456.7, "3457"),
            (-12.34, "-12.3"),
        ];
        for (value, text) in cases {
            assert_eq!(number(Some(value)), text);
        }
        assert_eq!(number(None), "-");
    }

    #[test]
    fn result_file_appends_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let record = Record {
            provenance: Provenance::now(),
            seed: 5,
            options: serde_json::json!({"threads": 1}),
            samples: vec![sample("ext4", 0, 1)],
        };
        ResultFile::append_to(&path).unwrap().push(&record).unwrap();
        ResultFile::append_to(&path).unwrap().push(&record).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines, [record.clone(), record]);
        let keys = serde_json::from_str::<serde_json::Value>(text.lines().next().unwrap()).unwrap();
        for key in ["date", "commit", "kernel", "cpu", "options", "seed", "samples"] {
            assert!(keys.get(key).is_some(), "{key}");
        }
    }
}
