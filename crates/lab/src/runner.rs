//! Runs a workload on a target, phase by phase: plans made before the clock starts, the final sync timed, counters read
//! before and after.
//!
//! Time of a phase is from the moment all threads are ready to the last one's end, and the sync after it. With several
//! threads, us per operation is that span over the operations of all: what a whole machine's operation costs.

use crate::interrupt;
use crate::slowdown::{Padding, Slowdown, Slowed, WallClock};
use crate::targets::{Counters, Durability, Target, Usage, Worker};
use crate::workloads::plan::{Buffer, Contents, Op, PathZ, Plan, Verb};
use crate::workloads::{Content, Phase, Workload};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One phase on one target, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub workload: String,
    pub phase: String,
    pub target: String,
    /// Round, from 0.
    pub run: u32,
    pub ops: u64,
    /// Of file content.
    pub bytes: u64,
    pub elapsed_ns: u64,
    /// The sync after the phase.
    pub sync_ns: u64,
    pub counters: Counters,
    /// What the files take beyond their own blocks, by statfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Where a slowdown was planted: what it came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowed: Option<Slowed>,
}

/// Space that a tree's metadata takes, per file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// (used after - used before - sizes in whole blocks of 4 KiB) / files. Below zero where small files share blocks.
    pub bytes_per_file: f64,
    /// The same with what mkfs had set aside for these inodes.
    pub bytes_per_file_with_tables: f64,
}

impl Metadata {
    pub fn new(before: Usage, after: Usage, content: Content) -> Self {
        let grown = after.used_bytes as f64 - before.used_bytes as f64 - content.block_bytes as f64;
        let tables = (after.table_bytes_per_inode * (content.files + content.directories)) as f64;
        let files = content.files.max(1) as f64;
        Self { bytes_per_file: grown / files, bytes_per_file_with_tables: (grown + tables) / files }
    }
}

impl Sample {
    /// Microseconds per operation, with the sync.
    pub fn us_per_op(&self) -> f64 {
        (self.elapsed_ns + self.sync_ns) as f64 / 1e3 / self.ops.max(1) as f64
    }

    /// The sync's share of it.
    pub fn sync_us_per_op(&self) -> f64 {
        self.sync_ns as f64 / 1e3 / self.ops.max(1) as f64
    }

    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / ((self.elapsed_ns + self.sync_ns).max(1) as f64 / 1e9)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    pub threads: usize,
    pub durability: Durability,
    pub seed: u64,
    /// Planted in every phase.
    pub slowdown: Option<Slowdown>,
}

/// Runs `phases` in order; `done` gets each reported sample as it comes.
pub fn run(
    target: &dyn Target,
    workload: &dyn Workload,
    phases: &[Phase],
    options: RunOptions,
    label: (&str, u32),
    done: &mut dyn FnMut(Sample) -> Result<()>,
) -> Result<()> {
    let content = workload.content();
    for phase in phases {
        interrupt::check()?;
        if !can_run(target, phase) {
            continue;
        }
        let measure = || -> Result<Sample> {
            let before = content.map(|content| target.usage().map(|usage| (content, usage))).transpose()?;
            let mut sample = run_phase(target, workload, phase, options, label)?;
            if let Some((content, before)) = before {
                sample.metadata = Some(Metadata::new(before, target.usage()?, content));
            }
            Ok(sample)
        };
        let sample = measure().with_context(|| format!("{} {} on {}", workload.name(), phase.name, label.0))?;
        if phase.reported {
            done(sample)?;
        }
    }
    Ok(())
}

/// Whether the target has what the phase asks for.
pub fn can_run(target: &dyn Target, phase: &Phase) -> bool {
    (!phase.random_access || target.has_random_access()) && (!phase.links || target.has_links())
}

/// Runs one phase; `label` names the target and the round in the sample.
pub fn run_phase(
    target: &dyn Target,
    workload: &dyn Workload,
    phase: &Phase,
    options: RunOptions,
    (label, run): (&str, u32),
) -> Result<Sample> {
    let plans: Vec<Plan> = (0..options.threads).map(|thread| workload.plan(phase, thread)).collect();
    let request_bytes_max = plans.iter().map(Plan::request_bytes_max).max().unwrap_or(0);
    let contents = Contents::new(options.seed, request_bytes_max);
    target.begin(phase.changes)?;
    if phase.cold {
        target.drop_caches()?
    } else {
        target.warm_up()?
    }
    let before = target.counters()?;
    target.phase_begins(&phase.name);
    let gate = Gate::new(plans.len());
    let work = |plan: &Plan| -> Result<Span> {
        let _leave = gate.leave_on_drop();
        let mut span = None;
        target.with_worker(&mut |worker| {
            let mut runner = PlanRunner::new(plan, &contents, phase.batch, options, request_bytes_max);
            gate.wait()?;
            let start = Instant::now();
            runner.run(worker)?;
            worker.finish()?;
            let end = Instant::now();
            span = Some(Span { start, end, slowed: runner.padding.map(Padding::slowed) });
            Ok(())
        })?;
        span.context("the target did no work")
    };
    let spans: Vec<Result<Span>> = match plans.as_slice() {
        [plan] => vec![work(plan)],
        plans => std::thread::scope(|scope| {
            let threads: Vec<_> = plans.iter().map(|plan| scope.spawn(|| work(plan))).collect();
            threads.into_iter().map(|thread| thread.join().expect("workers do not panic")).collect()
        }),
    };
    let spans = first_real_error(spans)?;
    let start = spans.iter().map(|span| span.start).min().context("no threads")?;
    let end = spans.iter().map(|span| span.end).max().context("no threads")?;
    let mut sync = Duration::ZERO;
    if phase.changes {
        let start = Instant::now();
        target.sync()?;
        sync = start.elapsed();
    }
    let counters = target.counters()?.since(&before);
    target.phase_ends();
    Ok(Sample {
        workload: workload.name().to_owned(),
        phase: phase.name.clone(),
        target: label.to_owned(),
        run,
        ops: plans.iter().map(Plan::ops).sum(),
        bytes: plans.iter().map(Plan::bytes).sum(),
        elapsed_ns: nanoseconds(end - start),
        sync_ns: nanoseconds(sync),
        counters,
        metadata: None,
        slowed: spans.into_iter().filter_map(|span| span.slowed).reduce(Slowed::with),
    })
}

/// When a thread did its share.
struct Span {
    start: Instant,
    end: Instant,
    slowed: Option<Slowed>,
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("a phase takes less than five centuries")
}

/// Another thread failed before all were ready.
#[derive(Debug)]
struct GateFailed;

impl std::fmt::Display for GateFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another thread failed")
    }
}

impl std::error::Error for GateFailed {}

/// All values, or the error that began it.
fn first_real_error<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let mut values = Vec::new();
    let mut consequence = None;
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) if error.is::<GateFailed>() => consequence = Some(error),
            Err(error) => return Err(error),
        }
    }
    consequence.map_or(Ok(values), Err)
}

/// Lets threads start together, or not at all.
struct Gate {
    missing: AtomicUsize,
    failed: AtomicBool,
}

/// Releases those who wait for a thread that failed or panicked. Once all have come in, leaving means nothing.
struct Leave<'a>(&'a Gate);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if self.0.missing.load(Ordering::Acquire) > 0 {
            self.0.failed.store(true, Ordering::Release);
        }
    }
}

impl Gate {
    fn new(threads: usize) -> Self {
        Self { missing: AtomicUsize::new(threads), failed: AtomicBool::new(false) }
    }

    fn wait(&self) -> Result<()> {
        self.missing.fetch_sub(1, Ordering::AcqRel);
        while self.missing.load(Ordering::Acquire) > 0 {
            if self.failed.load(Ordering::Acquire) {
                return Err(GateFailed.into());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn leave_on_drop(&self) -> Leave<'_> {
        Leave(self)
    }
}

/// Operations between two looks at the interrupt flag.
const CHECK_OPS: usize = 1024;

/// One thread's way through its plan.
struct PlanRunner<'a> {
    plan: &'a Plan,
    contents: &'a Contents,
    durability: Durability,
    buffer: Buffer,
    /// With `stat_many`: all the paths, gathered before the clock starts.
    paths: Vec<PathZ<'a>>,
    batch: Option<usize>,
    unsynced: u32,
    padding: Option<Padding<WallClock>>,
}

impl<'a> PlanRunner<'a> {
    fn new(
        plan: &'a Plan,
        contents: &'a Contents,
        batch: Option<usize>,
        RunOptions { durability, slowdown, .. }: RunOptions,
        request_bytes_max: u64,
    ) -> Self {
        let paths = match batch {
            Some(_) => plan.iter().filter(|op| op.verb == Verb::Stat).map(|op| op.path).collect(),
            None => Vec::new(),
        };
        // One byte more than the longest file, so that a longer one is noticed.
        let buffer = Buffer::new(request_bytes_max + 1);
        let padding = slowdown.map(|slowdown| Padding::new(slowdown, WallClock::new()));
        Self { plan, contents, durability, buffer, paths, batch, unsynced: 0, padding }
    }

    fn run(&mut self, worker: &mut dyn Worker) -> Result<()> {
        if let Some(batch) = self.batch {
            if let Some(op) = self.plan.iter().find(|op| op.verb == Verb::Enter) {
                worker.enter(op.path)?;
            }
            for paths in self.paths.chunks(batch.max(1)) {
                interrupt::check()?;
                match self.padding.as_mut().filter(|padding| padding.is_of(Verb::Stat)) {
                    Some(padding) => padding.around(|| worker.stat_many(paths))?,
                    None => worker.stat_many(paths)?,
                }
                worker.done();
            }
            return Ok(());
        }
        for (index, op) in self.plan.iter().enumerate() {
            if index % CHECK_OPS == 0 {
                interrupt::check()?;
            }
            self.padded_step(worker, op).with_context(|| match op.path.bytes() {
                b"" => format!("{:?} of {} bytes at {}", op.verb, op.size, op.offset),
                _ => format!("{:?} {}", op.verb, op.path.display()),
            })?;
        }
        Ok(())
    }

    fn padded_step(&mut self, worker: &mut dyn Worker, op: Op<'_>) -> Result<()> {
        let Some(mut padding) = self.padding.take_if(|padding| padding.is_of(op.verb)) else {
            return self.step(worker, op);
        };
        let done = padding.around(|| self.step(worker, op));
        self.padding = Some(padding);
        done
    }

    fn step(&mut self, worker: &mut dyn Worker, op: Op<'_>) -> Result<()> {
        let counted = |found: u64| {
            ensure!(found == op.size, "{found} entries where {} should be", op.size);
            Ok(())
        };
        match op.verb {
            Verb::Enter => worker.enter(op.path)?,
            Verb::Create => worker.create(op.path)?,
            Verb::Mkdir => worker.mkdir(op.path)?,
            Verb::Unlink => worker.unlink(op.path)?,
            Verb::Rmdir => worker.rmdir(op.path)?,
            Verb::Rename => worker.rename(op.path, op.target)?,
            Verb::Stat => {
                std::hint::black_box(worker.stat(op.path)?);
            }
            Verb::StatMissing => worker.stat_missing(op.path)?,
            Verb::List => counted(worker.list(op.path)?)?,
            Verb::ListStat => counted(worker.list_stat(op.path)?)?,
            Verb::StatListed | Verb::UnlinkListed => {
                let mut paths = Vec::new();
                worker.names(op.path, &mut paths)?;
                let paths = paths.split_inclusive(|&byte| byte == 0).map(PathZ::new);
                counted(paths.clone().count() as u64)?;
                return paths.into_iter().try_for_each(|path| self.step_listed(worker, op.verb, path));
            }
            Verb::Walk => counted(worker.walk(op.path)?)?,
            Verb::Find => counted(worker.find(op.path)?)?,
            Verb::RemoveTree => counted(worker.remove_tree(op.path)?)?,
            Verb::WriteFile => {
                let sync = self.durability == Durability::Every(1);
                worker.write_file(op.path, self.contents.at(op.offset, op.size), sync)?;
            }
            Verb::ReadFile => {
                let length = worker.read_file(op.path, self.buffer.get())?;
                counted(length as u64)?;
                self.check_content(op.offset, length)?;
            }
            Verb::Link => worker.link(op.path, op.target)?,
            Verb::Utime => worker.utime(op.path)?,
            Verb::Append => worker.append(op.path, self.contents.at(op.offset, op.size))?,
            Verb::CreateSized => worker.create_sized(op.path, op.size)?,
            Verb::OpenNew => worker.open(op.path, true)?,
            Verb::OpenOld => worker.open(op.path, false)?,
            Verb::WriteAt => worker.write_at(self.contents.at(op.offset, op.size), op.offset)?,
            Verb::ReadAt => {
                let length = op.size as usize;
                worker.read_at(&mut self.buffer.get()[..length], op.offset)?;
                self.check_content(op.offset, length)?;
            }
        }
        worker.done();
        self.settle(worker, op.verb)
    }

    fn step_listed(&mut self, worker: &mut dyn Worker, verb: Verb, path: PathZ<'_>) -> Result<()> {
        match verb {
            Verb::UnlinkListed => worker.unlink(path)?,
            _ => {
                std::hint::black_box(worker.stat(path)?);
            }
        }
        worker.done();
        self.settle(worker, verb)
    }

    fn check_content(&mut self, offset: u64, length: usize) -> Result<()> {
        let right = self.contents.matches(offset, &self.buffer.get()[..length]);
        ensure!(right, "read bytes that were not written there");
        Ok(())
    }

    fn settle(&mut self, worker: &mut dyn Worker, verb: Verb) -> Result<()> {
        let Durability::Every(ops) = self.durability else { return Ok(()) };
        // A file written with sync is durable already.
        if !verb.changes() || ops == 1 && verb == Verb::WriteFile {
            return Ok(());
        }
        self.unsynced += 1;
        if self.unsynced >= ops {
            worker.settle()?;
            self.unsynced = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_what_grew_beyond_the_data() {
        let usage = |used_bytes| Usage { used_bytes, table_bytes_per_inode: 256 };
        let content = Content { files: 100, directories: 25, block_bytes: 100 * 4096 };
        let metadata = Metadata::new(usage(1_000_000), usage(1_000_000 + 100 * 4096 + 30_000), content);
        assert_eq!(metadata, Metadata { bytes_per_file: 300.0, bytes_per_file_with_tables: 620.0 });
    }

    #[test]
    fn an_error_wins_over_its_consequence() {
        let results: Vec<Result<()>> = vec![Err(GateFailed.into()), Err(anyhow::anyhow!("disk full")), Ok(())];
        assert_eq!(first_real_error(results).unwrap_err().to_string(), "disk full");
        assert!(first_real_error(vec![Ok(1), Err(GateFailed.into())]).is_err());
    }

    #[test]
    fn gate_opens_for_all_or_fails() {
        let gate = Gate::new(2);
        drop(gate.leave_on_drop());
        assert!(gate.wait().is_err());
        assert!(gate.wait().is_ok());
    }

    /// A thread that came in last and had little to do could leave before the others had seen that all were in; they took
    /// that for a failure.
    #[test]
    fn leaving_an_open_gate_is_no_failure() {
        let gate = Gate::new(1);
        gate.wait().unwrap();
        drop(gate.leave_on_drop());
        assert!(!gate.failed.load(Ordering::Acquire));
    }

    /// The shape that result files have: a change here breaks what reads them.
    #[test]
    fn sample_as_json() {
        let sample = Sample {
            workload: "dir".into(),
            phase: "create".into(),
            target: "ext4".into(),
            run: 2,
            ops: 1000,
            bytes: 0,
            elapsed_ns: 20_000_000,
            sync_ns: 1_000_000,
            counters: Counters { writes: Some(31), ..Counters::default() },
            metadata: None,
            slowed: None,
        };
        let json = serde_json::to_value(&sample).unwrap();
        let expected = serde_json::json!({
            "workload": "dir", "phase": "create", "target": "ext4", "run": 2, "ops": 1000, "bytes": 0,
            "elapsed_ns": 20_000_000, "sync_ns": 1_000_000,
            "counters": {
                "reads": null, "read_bytes": null, "writes": 31, "written_bytes": null, "flushes": null,
                "blocks_touched": null
            }
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Sample>(json).unwrap(), sample);
        assert_eq!((sample.us_per_op(), sample.sync_us_per_op()), (21.0, 1.0));
    }
}
