//! Runs an experiment: cell after cell, each on a target made for it.

use super::audit::Ledger;
use super::cells::{Cell, Combination, cells, usable};
use super::factors::{Absent, Factor, values};
use super::memory::Reserve;
use super::places::{Place, Places, base_options};
use super::replay;
use super::results::{DeviceUse, Header, Line, MODELLED, Machine, ResultFile, SCHEMA, ToolSays, WALL};
use super::suites::{Item, Scale, Suite, Work};
use super::twins::Twin;
use crate::compare::kernel::enter_mount_namespace;
use crate::interrupt::{self, Interrupted};
use crate::provenance::{self, Provenance};
use crate::runner::{RunOptions, Sample, can_run, run_phase};
use crate::schedule;
use crate::slowdown::Slowdown;
use crate::targets::sys_calls::lies_on;
use crate::targets::{Durability, Target};
use crate::tools;
use crate::workloads::Workload;
use crate::workloads::ageing::Ageing;
use anyhow::{Context, Result, bail, ensure};
use myriad_engine::options::{Row, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What is to be run.
pub struct Experiment {
    pub suites: Vec<&'static Suite>,
    pub scale: Scale,
    pub places: Vec<Place>,
    pub factors: Vec<Factor>,
    pub absent: Vec<Absent>,
    /// Options of all volumes.
    pub set: Vec<(&'static Row, Value)>,
    /// Factors and options as they were asked for.
    pub asked: Vec<String>,
    pub runs: u32,
    pub seed: u64,
    pub out: Option<PathBuf>,
    pub resume: bool,
    /// Where recordings of requests go, one a cell.
    pub trace: Option<PathBuf>,
    /// Where images are made.
    pub folder: PathBuf,
    /// This program.
    pub exe: PathBuf,
    /// Files of the ageing before each cell; 0: none.
    pub age: u64,
    /// Memory that kernel and user space share; `None`: the machine's.
    pub memory_bytes: Option<u64>,
    /// Images are holes, for each cell anew, instead of one a target whose blocks are written once.
    pub sparse: bool,
    /// Count what a target holds after each phase that changes it, not only after the last.
    pub check_each: bool,
    /// Each target runs against itself.
    pub twin: bool,
    /// With `twin`: a third time with this planted.
    pub slowdown: Option<Slowdown>,
    pub quiet: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    pub header: Header,
    /// Of this time and, resumed, of those before.
    pub lines: Vec<Line>,
    /// Cells that failed, with the reason.
    pub failed: Vec<String>,
}

/// An item of a suite.
type SuiteItem = (&'static Suite, Item);

impl Experiment {
    /// Runs it, on a thread of its own: that thread leaves for a mount namespace of its own.
    pub fn run(&self) -> Result<Outcome> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.run_here());
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Everything random in a run follows from this.
    fn seed_of(&self, run: u32) -> u64 {
        self.seed.wrapping_add(u64::from(run))
    }

    fn works(&self, run: u32) -> Vec<SuiteItem> {
        let seed = self.seed_of(run);
        let of = |&suite: &&'static Suite| suite.items(self.scale, seed).into_iter().map(move |item| (suite, item));
        self.suites.iter().flat_map(of).collect()
    }

    fn ageing(&self, run: u32) -> Ageing {
        Ageing { files: self.age, seed: self.seed_of(run) }
    }

    /// Options of a suite's volumes, without the factors'.
    fn base(&self, suite: &Suite) -> myriad_engine::options::Options {
        let papers = (suite.cache_bytes as f64 * self.scale.0) as u64;
        // Of a memory that all share, a third: in the rest the kernel keeps names and inodes of a mount, and the mount a table of them.
        let cache_bytes = self.memory_bytes.map_or(papers, |bytes| bytes / 3);
        let mut options = base_options(cache_bytes.max(CACHE_BYTES_MIN));
        let profile = self.set.iter().filter(|(row, _)| row.name == "profile");
        let others = self.set.iter().filter(|(row, _)| row.name != "profile");
        profile.chain(others).for_each(|(row, value)| row.set(&mut options, value.clone()));
        options
    }

    fn run_here(&self) -> Result<Outcome> {
        let works = self.works(0);
        ensure!(!works.is_empty(), "no suite was named");
        self.slowdown.map_or(Ok(()), |slowdown| can_be_planted(slowdown, &works, &self.places))?;
        self.trace.as_ref().map_or(Ok(()), |_| can_be_recorded(&self.places))?;
        let ageing = self.ageing(0);
        let names = works.iter().map(|(_, item)| item.names).max().unwrap_or(0) + ageing.names() + 1_000;
        let bytes = works.iter().map(|(_, item)| item.bytes).max().unwrap_or(0) + ageing.bytes();
        // Room for metadata of every kind, and so that a table of inodes, one for 8 KiB, has enough of them.
        let volume_bytes = (bytes / 2 * 3 + names * (10 << 10)).next_multiple_of(64 << 20).max(VOLUME_BYTES_MIN);
        let (mut places, mut left_out) = (Vec::new(), BTreeMap::new());
        for &place in &self.places {
            match place.missing(volume_bytes) {
                Some(why) => drop(left_out.insert(place.name().to_owned(), why)),
                None => places.push(place),
            }
        }
        ensure!(!places.is_empty(), "no target is left: {left_out:?}");
        left_out.extend(without(&works, &places));
        let (combinations, refused) = match places.iter().any(|place| place.is_ours()) {
            true => usable(&self.factors, &self.base(works[0].0)),
            false => (Vec::new(), Vec::new()),
        };
        let twins = Twin::of(self.twin, self.slowdown.is_some());
        let all = cells(works.len(), &places, combinations.len(), self.runs, &twins, self.seed);
        ensure!(!all.is_empty(), "no combination of these factors makes a volume: {refused:?}");
        let is_measured = |cell: &Cell| reported(&works[cell.item].1, cell.place) > 0;
        let why = || left_out.iter().map(|(what, why)| format!("{what}: {why}")).collect::<Vec<_>>().join("; ");
        ensure!(all.iter().any(is_measured), "nothing is left to be run: {}", why());
        let header = self.header(&places, [&self.absent[..], &refused[..]].concat(), left_out);
        let expected = |order: u64| {
            let cell = all.get(usize::try_from(order).ok()?)?;
            Some(reported(&works[cell.item].1, cell.place))
        };
        let is_root = rustix::process::geteuid().is_root();
        ensure!(self.memory_bytes.is_none() || is_root, "--memory needs root: it takes memory from the whole machine");
        if is_root && (self.memory_bytes.is_some() || places.iter().any(|place| place.mounts())) {
            enter_mount_namespace()?;
        }
        let folder = tempfile::Builder::new().prefix("myriad-lab-").tempdir_in(&self.folder);
        let folder = folder.with_context(|| format!("making a folder in {}", self.folder.display()))?;
        let mut reserve = self.memory_bytes.map(|bytes| Reserve::leave(bytes, folder.path())).transpose()?;
        let mut made = Places::new(folder.path(), self.exe.clone(), volume_bytes, names, self.sparse);
        made.ensure_room(&places)?;
        // After all that can refuse the run: a file without samples would be in the way of the next.
        let (mut file, done) = match &self.out {
            Some(path) if self.resume && path.exists() => {
                let (file, done) = ResultFile::resume(path, &header, expected)?;
                (Some(file), done)
            }
            Some(path) => (Some(ResultFile::create(path, &header)?), BTreeMap::new()),
            None => (None, BTreeMap::new()),
        };
        let bar = schedule::progress(all.len() as u64, self.quiet);
        bar.inc(done.len() as u64);
        bar.reset_eta();
        let (mut works, mut works_of) = (works, 0);
        let mut outcome = Outcome { header, lines: done.values().flatten().cloned().collect(), failed: Vec::new() };
        for cell in all.iter().filter(|cell| !done.contains_key(&(cell.order as u64))) {
            interrupt::check()?;
            if cell.run != works_of {
                (works, works_of) = (self.works(cell.run), cell.run);
            }
            let work = &works[cell.item];
            if reported(&work.1, cell.place) == 0 {
                bar.inc(1);
                continue;
            }
            bar.set_message(format!("run {}: {} on {}", cell.run + 1, work.1.name, cell.place.name()));
            bar.tick();
            let available = reserve.as_mut().map(Reserve::hold).transpose()?;
            let recorder = match &self.trace {
                Some(folder) => Some(replay::record(folder, self.resume, cell, work, &outcome.header)?),
                None => None,
            };
            made.record_next(recorder.clone());
            let measured = self.run_cell(cell, work, &combinations, available, &mut made);
            match measured.and_then(|lines| reserve.as_ref().map_or(Ok(()), Reserve::check).map(|()| lines)) {
                Ok(lines) => {
                    recorder.map_or(Ok(()), |recorder| replay::finish(&recorder, &lines))?;
                    if let Some(file) = &mut file {
                        file.add(&lines)?;
                    }
                    outcome.lines.extend(lines);
                }
                Err(error) => {
                    recorder.map_or(Ok(()), |recorder| recorder.abandon()).context("removing a recording")?;
                    if error.is::<Interrupted>() {
                        return Err(error);
                    }
                    outcome.failed.push(format!("{error:#}"));
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        file.map_or(Ok(()), ResultFile::finish)?;
        drop(made);
        folder.close().context("removing the temporary folder")?;
        outcome.lines.sort_by_key(|line| line.order);
        Ok(outcome)
    }

    fn header(&self, places: &[Place], absent: Vec<Absent>, left_out: BTreeMap<String, String>) -> Header {
        let Provenance { commit, kernel, cpu, cpus, memory_bytes, .. } = Provenance::now();
        Header {
            scale: self.scale.0,
            base_seed: self.seed,
            commit,
            program: provenance::program(),
            folder: lies_on(&self.folder),
            machine: Machine { kernel, cpu, cores: cpus as u64, memory_bytes },
            suites: self.suites.iter().map(|suite| suite.name.to_owned()).collect(),
            targets: places.iter().map(|place| place.name().to_owned()).collect(),
            asked: self.asked.clone(),
            absent,
            left_out,
        }
    }

    fn run_cell(
        &self,
        cell: &Cell,
        (suite, item): &SuiteItem,
        combinations: &[Combination],
        available_bytes: Option<u64>,
        made: &mut Places,
    ) -> Result<Vec<Line>> {
        let seed = self.seed_of(cell.run);
        let combination = cell.combination.map(|index| &combinations[index]);
        let mut options = self.base(suite);
        let factors: BTreeMap<String, String> = combination
            .map(|one| one.factors.iter().map(|(name, choice)| ((*name).to_owned(), choice.clone())).collect())
            .unwrap_or_default();
        if let Some(combination) = combination {
            let cache_size = options.mount.cache_size;
            options = combination.options.clone();
            // The combinations are made with the first suite's memory, unless memory is one of the factors.
            if !factors.contains_key("cachesize") {
                options.mount.cache_size = cache_size;
            }
        }
        let place = || {
            let named: Vec<String> = factors.iter().map(|(name, choice)| format!(" {name}={choice}")).collect();
            let size = item.size.map(|size| format!(" of {size}")).unwrap_or_default();
            let twin = cell.twin.map(|twin| format!(" ({})", twin.label())).unwrap_or_default();
            let on = format!("{}{}{twin}", cell.place.name(), named.concat());
            format!("{} {}{size} on {on}, run {}", suite.name, item.name, cell.run)
        };
        let started = provenance::now();
        let samples = self.measure(cell, item, &options, made).with_context(place)?;
        let options: BTreeMap<String, String> = match combination {
            Some(_) => values(&options).into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            None => BTreeMap::new(),
        };
        let line = |(sample, tool): &(Sample, Option<ToolSays>)| {
            let counters = &sample.counters;
            let wall = (sample.elapsed_ns + sample.sync_ns) as f64 / 1e9;
            let (seconds, clock) = match counters.modelled_ns {
                Some(ns) => (ns as f64 / 1e9, MODELLED),
                None => (wall, WALL),
            };
            Line {
                schema: SCHEMA,
                suite: suite.label().to_owned(),
                workload: item.name.to_owned(),
                phase: sample.phase.clone(),
                target: cell.place.name().to_owned(),
                factors: factors.clone(),
                options: options.clone(),
                seed,
                run: cell.run,
                order: cell.order as u64,
                count: sample.ops,
                bytes: sample.bytes,
                seconds: Some(seconds),
                clock: clock.to_owned(),
                device: DeviceUse {
                    reads: counters.reads,
                    writes: counters.writes,
                    read_bytes: counters.read_bytes,
                    written_bytes: counters.written_bytes,
                    flushes: counters.flushes,
                    seek_blocks: counters.seek_bytes.map(|bytes| bytes / 4096),
                },
                blocks_touched: counters.blocks_touched,
                processor_seconds: counters.processor_ns.map(|ns| ns as f64 / 1e9),
                available_bytes,
                started: started.clone(),
                size: item.size,
                tool: *tool,
                twin: cell.twin,
                slowed: sample.slowed.clone(),
            }
        };
        Ok(samples.iter().map(line).collect())
    }

    fn measure(
        &self,
        cell: &Cell,
        item: &Item,
        options: &myriad_engine::options::Options,
        made: &mut Places,
    ) -> Result<Vec<(Sample, Option<ToolSays>)>> {
        let seed = self.seed_of(cell.run);
        let target = made.make(cell.place, options, seed).context("making it")?;
        let ageing = self.ageing(cell.run);
        let first: Option<&dyn Workload> = if self.age > 0 { Some(&ageing) } else { None };
        let of_target = target.as_ref();
        // All twins read the clock as often.
        let slowdown = self.slowdown.map(|one| if cell.twin == Some(Twin::Slowed) { one } else { one.none() });
        let run_options = RunOptions { threads: 1, durability: Durability::End, seed, slowdown };
        let samples = match &item.work {
            Work::Ours(workload) => {
                let workloads: Vec<&dyn Workload> = first.into_iter().chain([workload.as_ref()]).collect();
                let samples = run_checked(of_target, &workloads, run_options, self.check_each)?;
                samples.into_iter().map(|sample| (sample, None)).collect()
            }
            Work::Theirs(tool) => {
                run_checked(of_target, &first.into_iter().collect::<Vec<_>>(), run_options, self.check_each)?;
                let measured = tools::run(of_target, tool.as_ref(), None)?;
                measured.into_iter().map(|one| of_tool(item.name, one)).collect()
            }
        };
        target.close().context("closing it")?;
        Ok(samples)
    }
}

/// Fails unless requests on all of these can be recorded.
fn can_be_recorded(places: &[Place]) -> Result<()> {
    match places.iter().find(|place| !place.can_be_recorded()) {
        Some(place) => bail!(
            "--trace records volumes in this process, and the device of {} is not in it; name process or a modelled device",
            place.name()
        ),
        None => Ok(()),
    }
}

/// Fails unless a slowdown of these workloads on these targets shows somewhere.
fn can_be_planted(slowdown: Slowdown, works: &[SuiteItem], places: &[Place]) -> Result<()> {
    if let Some(place) = places.iter().find(|place| place.is_modelled()) {
        bail!(
            "--slow {slowdown}: {} counts the device's time as a model has it, and waiting costs none of that; name targets with a clock: \
             process, mount, a kernel's file system",
            place.name()
        );
    }
    let mut done = BTreeSet::new();
    for (suite, item) in works {
        let Work::Ours(workload) = &item.work else {
            bail!("--slow {slowdown}: the lab does not make the calls of {}; name suites other than tools", suite.name);
        };
        for phase in workload.phases().iter().filter(|phase| phase.reported) {
            done.extend(workload.plan(phase, 0).iter().filter_map(|op| op.verb.name()));
        }
    }
    ensure!(
        done.contains(slowdown.operation()),
        "--slow {slowdown}: no measured phase does that; name one of what they do: {}",
        Vec::from_iter(done).join(", ")
    );
    Ok(())
}

/// What is named here and cannot be run, with the reason: programs that are not installed, and targets that no program can work in.
fn without(works: &[SuiteItem], places: &[Place]) -> BTreeMap<String, String> {
    let mut without = BTreeMap::new();
    for (suite, item) in works {
        let Work::Theirs(tool) = &item.work else { continue };
        if let Some(why) = tool.missing() {
            without.insert(format!("{} {}", suite.label(), item.name), why);
        }
        for place in places.iter().filter(|place| !place.has_directory()) {
            let why =
                "a program of its own needs a directory that it can write to: mount, a kernel's file system, folder";
            without.insert(format!("{} on {}", suite.label(), place.name()), why.to_owned());
        }
    }
    without
}

/// A phase of somebody else's program as a sample.
fn of_tool(workload: &str, one: tools::Measured) -> (Sample, Option<ToolSays>) {
    let sample = Sample {
        workload: workload.to_owned(),
        phase: one.phase.to_owned(),
        target: String::new(),
        run: 0,
        ops: one.said.count,
        bytes: one.said.bytes,
        elapsed_ns: (one.seconds * 1e9) as u64,
        sync_ns: 0,
        counters: one.counters,
        metadata: None,
        slowed: None,
    };
    (sample, Some(ToolSays { seconds: one.said.seconds, rate: one.said.rate }))
}

/// Runs the phases of workloads one after the other, and fails unless the target holds what it should then. The samples of the
/// reported phases.
pub(super) fn run_checked(
    target: &dyn Target,
    workloads: &[&dyn Workload],
    run_options: RunOptions,
    each: bool,
) -> Result<Vec<Sample>> {
    let (mut samples, mut ledger) = (Vec::new(), Ledger::default());
    let phases =
        workloads.iter().flat_map(|&workload| workload.phases().into_iter().map(move |phase| (workload, phase)));
    for (workload, phase) in phases.filter(|(_, phase)| can_run(target, phase)) {
        let phase = &phase;
        interrupt::check()?;
        let sample = run_phase(target, workload, phase, run_options, ("", 0)).with_context(|| phase.name.clone())?;
        if phase.changes {
            ledger.add(&workload.plan(phase, 0));
        }
        if each {
            ledger.check(target).with_context(|| format!("after {}", phase.name))?;
        }
        if phase.reported && !(phase.changes && target.is_read_only()) {
            samples.push(sample);
        }
    }
    ledger.check(target)?;
    Ok(samples)
}

/// How many samples a cell has.
fn reported(item: &Item, place: Place) -> usize {
    // What a row of a database cannot do is known without one.
    let workload = match &item.work {
        Work::Ours(workload) => workload,
        Work::Theirs(tool) if place.has_directory() && tool.missing().is_none() => return tool.phases().len(),
        Work::Theirs(_) => return 0,
    };
    let can =
        |phase: &&crate::workloads::Phase| !matches!(place, Place::Sqlite) || !phase.random_access && !phase.links;
    let can = |phase: &&crate::workloads::Phase| can(phase) && !(place.is_read_only() && phase.changes);
    workload.phases().iter().filter(can).filter(|phase| phase.reported).count()
}

/// The engine takes no less.
const CACHE_BYTES_MIN: u64 = 4 << 20;
/// All of the kernel's take this.
const VOLUME_BYTES_MIN: u64 = 1 << 30;

#[cfg(test)]
mod tests;
