//! What a crash costs: opening a volume whose log is full, and checking it, for volumes of more and more files.
//!
//! A volume is filled, brought home, and changed all over until its log holds as much as it ever does (the engine brings
//! blocks home from half full on). Then its device takes no more writes: that is the crash, and it can be had again after
//! each opening, for recovery itself writes one sector. Direct I/O, so what is read comes from the disk.

use crate::interrupt;
use crate::provenance::Provenance;
use crate::report;
use crate::schedule;
use crate::stats;
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::Table;
use myriad_device::{Access, BlockDevice, FaultDevice, FaultOp, FaultSpan, FileDevice};
use myriad_engine::options::parse_size;
use myriad_engine::{Cred, Errno, Fs, MkfsOptions, MountOptions, Session, SetAttr};
use serde::Serialize;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What to measure, and how.
#[derive(Debug, Args, Serialize)]
pub struct Recovery {
    /// Files of each volume
    #[arg(long, value_name = "N,...", default_value = "10k,100k,1M", value_delimiter = ',', value_parser = crate::numbers::parse_some)]
    entries: Vec<u64>,
    /// Openings of each volume after a crash
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Log of each volume
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    log_size: u64,
    /// Memory for cached blocks
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    cachesize: u64,
    /// Where images are made, one at a time: 10M files take 5 GB
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Which files change, and in which order
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// One JSON object, with every sample
    #[arg(long)]
    json: bool,
}

/// Files of a directory.
const FILES: u64 = 1000;
/// Files among which changes are spread: more have blocks go home for want of cache before the log is full.
const CHANGED_MAX: u64 = 500_000;

/// A device that can be cut off from what changes it.
type Device = Arc<FaultDevice<FileDevice>>;

/// One volume's results.
#[derive(Debug, Serialize)]
struct Row {
    entries: u64,
    log_bytes: u64,
    /// Of each opening and the first look at a file.
    open_seconds: Vec<f64>,
    open_read_bytes: u64,
    check_seconds: f64,
    check_seconds_per_million: f64,
    check_memory_bytes: u64,
}

impl Recovery {
    pub fn run(&self, out: &mut dyn Write, quiet: bool) -> Result<()> {
        let provenance = Provenance::now();
        let bar = schedule::progress(self.entries.len() as u64, quiet);
        let folder = tempfile::tempdir_in(&self.folder).with_context(|| self.folder.display().to_string())?;
        let mut rows = Vec::new();
        for &entries in &self.entries {
            let image = folder.path().join("volume");
            rows.push(self.measure(&image, entries).with_context(|| format!("{entries} files"))?);
            std::fs::remove_file(&image)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        if self.json {
            let record = serde_json::json!({ "provenance": provenance, "options": self, "volumes": rows });
            writeln!(out, "{record}")?;
            return Ok(());
        }
        writeln!(
            out,
            "{}; {}; {} CPUs; commit {}",
            provenance.kernel, provenance.cpu, provenance.cpus, provenance.commit
        )?;
        writeln!(out, "{} openings of each, seed {}, cachesize {} MiB", self.runs, self.seed, self.cachesize >> 20)?;
        writeln!(out, "{}", table(&rows).trim_fmt())?;
        Ok(())
    }

    fn options(&self) -> MountOptions {
        // Without a thread that would make checkpoints between the crash and the measurement.
        MountOptions {
            cache_size: self.cachesize,
            background: false,
            commit_interval_ms: 0,
            seed: Some(self.seed),
            ..MountOptions::default()
        }
    }

    fn measure(&self, image: &Path, entries: u64) -> Result<Row> {
        let size = (entries * 600 + (4 << 30)).next_multiple_of(1 << 30);
        let options = MkfsOptions { seed: Some(self.seed), log_size: Some(self.log_size), ..MkfsOptions::default() };
        Fs::format(image, Some(size), &options)?;
        let log_bytes = self.make_and_crash(image, entries)?;
        let mut row = Row {
            entries,
            log_bytes,
            open_seconds: Vec::new(),
            open_read_bytes: 0,
            check_seconds: 0.0,
            check_seconds_per_million: 0.0,
            check_memory_bytes: 0,
        };
        for _ in 0..self.runs {
            interrupt::check()?;
            let device = open(image)?;
            let start = Instant::now();
            let fs = Fs::open_device(device.clone(), None, self.options())?;
            let session = fs.session(Cred::root());
            session.stat(&*path(entries / 2))?;
            row.open_seconds.push(start.elapsed().as_secs_f64());
            row.open_read_bytes = device.counters().read_bytes;
            ensure!(fs.info().recovered, "there was nothing to recover");
            drop(session);
            crash(&device, fs);
        }
        check(image, &mut row)?;
        Ok(row)
    }

    /// Fills a volume, then its log. Returns what the log holds when the crash comes.
    fn make_and_crash(&self, image: &Path, entries: u64) -> Result<u64> {
        let device = open(image)?;
        let fs = Fs::open_device(device.clone(), None, self.options())?;
        let session = fs.session(Cred::root());
        for file in 0..entries {
            if file % FILES == 0 {
                interrupt::check()?;
                session.mkdir(&*format!("/d{}", file / FILES), 0o755)?;
            }
            session.create(&*path(file), 0o644)?;
        }
        fs.drop_caches()?;
        let full = fs.info().log_size * 45 / 100;
        let (mut random, mut last) = (self.seed | 1, 0);
        loop {
            interrupt::check()?;
            for _ in 0..entries.min(20_000) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                change(&session, (random >> 33) % entries.min(CHANGED_MAX), random as u16 & 0o777)?;
            }
            fs.sync()?;
            let used = fs.levels().log_used.context("the log is in use by somebody else")?;
            // It shrinks where one checkpoint is large beside it.
            if used >= full || used < last {
                drop(session);
                crash(&device, fs);
                return Ok(used);
            }
            last = used;
        }
    }
}

fn path(file: u64) -> String {
    format!("/d{}/file{file}", file / FILES)
}

fn change(session: &Session, file: u64, mode: u16) -> Result<()> {
    let attr = SetAttr { mode: Some(mode), ..SetAttr::default() };
    session.set_attr(&*path(file), attr)?;
    Ok(())
}

fn open(image: &Path) -> Result<Device> {
    let device = FileDevice::open(image, Access::ReadWrite)?;
    device.lock_exclusive()?;
    Ok(Arc::new(FaultDevice::new(device)))
}

/// Nothing reaches the device any more; then the volume goes.
fn crash(device: &Device, fs: Fs) {
    device.fail(FaultOp::Write, 1, FaultSpan::Forever, Errno::IO.raw_os_error());
    drop(fs);
}

/// Checks the volume as the crash left it, in a process of its own, whose memory is looked at until it ends.
fn check(image: &Path, row: &mut Row) -> Result<()> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.args(["fsck", "-n", "--json"]).arg(image).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("fsck")?;
    let status = format!("/proc/{}/status", child.id());
    while child.try_wait()?.is_none() {
        if let Some(peak) = std::fs::read_to_string(&status).ok().as_deref().and_then(peak_bytes) {
            row.check_memory_bytes = row.check_memory_bytes.max(peak);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let report: Value = serde_json::from_slice(&child.wait_with_output()?.stdout).context("the report of fsck")?;
    ensure!(report["sound"] == true, "the check found something after the crash: {report}");
    row.check_seconds = report["seconds"].as_f64().context("the report of fsck says no time")?;
    row.check_seconds_per_million = row.check_seconds * 1e6 / row.entries as f64;
    Ok(())
}

/// The most memory that a process has had, from its `status`.
fn peak_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn table(rows: &[Row]) -> Table {
    let header = ["files", "log MiB", "open ms", "longest", "read MiB", "check s", "s a million", "check peak MiB"];
    let mut table = report::table(&header);
    for row in rows {
        let median = stats::median(&row.open_seconds).unwrap_or_default() * 1e3;
        let longest = row.open_seconds.iter().copied().fold(0.0, f64::max) * 1e3;
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / (1 << 20) as f64);
        table.add_row([
            row.entries.to_string(),
            mib(row.log_bytes),
            format!("{median:.1}"),
            format!("{longest:.1}"),
            mib(row.open_read_bytes),
            format!("{:.2}", row.check_seconds),
            format!("{:.2}", row.check_seconds_per_million),
            mib(row.check_memory_bytes),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_a_process_is_read() {
        let peak = peak_bytes(&std::fs::read_to_string("/proc/self/status").unwrap()).unwrap();
        assert!(peak > 1 << 20, "{peak}");
        assert_eq!(peak_bytes("VmPeak:\t  10 kB\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(peak_bytes("VmPeak: 10 kB\n"), None);
    }
}
