//! The verb `myriad lab`.

use super::analysis;
use super::factors::{Factor, described, factors};
use super::memory::LEFT_BYTES_MIN;
use super::places::Place;
use super::replay;
use super::results::{Line, ResultFile};
use super::rows::{self, RowKey};
use super::run::{Experiment, Outcome};
use super::suites::{Item, SUITES, Scale, Suite, Work};
use super::twins::{self, Twin};
use crate::disk::{PRESETS, Preset};
use crate::interrupt;
use crate::report;
use crate::slowdown::Slowdown;
use crate::stats;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use myriad_engine::options::{self, Row, TABLE, Value, Values, parse_size};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

/// Run the papers' workloads with options flipped, beside other file systems, and keep every sample.
#[derive(Debug, Args)]
pub struct Lab {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Suites, targets and factors of this build, and what is missing here
    List,
    /// Run suites, and write each sample to a file
    Run(Run),
    /// Every suite, tiny, on every target there is, in a few minutes; then a page with pictures
    Quick(Quick),
    /// Ask modelled devices how long they take for what `lab run --trace` has recorded
    Replay(Replay),
    /// Make a page of samples: the papers' tables and figures with our numbers, what is claimed and what was found
    Report(Report),
}

#[derive(Debug, Args)]
struct Run {
    /// Suites to run, or `all`: those of the papers and of today. `tools` are benchmarks of others, as far as they are installed
    #[arg(required = true, value_name = "SUITE")]
    suites: Vec<String>,
    /// Size of the workloads; 1 is that of the papers
    #[arg(long, value_name = "S", default_value = "0.1", value_parser = parse_scale)]
    scale: Scale,
    /// Targets, in turn
    #[arg(
        long,
        visible_alias = "targets",
        value_name = "TARGET,...",
        value_delimiter = ',',
        default_value = "process"
    )]
    target: Vec<String>,
    /// How often each cell is run, each time with a seed of its own [with --twin: 20]
    #[arg(
        long,
        value_name = "N",
        default_value = "4",
        default_value_if("twin", "true", "20"),
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    runs: u32,
    /// Run each target against itself too, right after one another in each run: how far apart two measurements of the same lie
    #[arg(long)]
    twin: bool,
    /// Run each target a third time, with one operation so much slower, and say whether that is found; for example create:5%
    #[arg(long, value_name = "OPERATION:PERCENT", requires = "twin", value_parser = Slowdown::parse)]
    slow: Option<Slowdown>,
    /// Options to flip, in all combinations: NAME, NAME=CHOICE/CHOICE, or `paper` for the four of Dowse and Malone
    #[arg(long, value_name = "FACTOR,...", value_delimiter = ',')]
    factors: Vec<String>,
    /// Write every sample to this file, as JSON lines; it must not exist. A name that ends in .zst compresses them
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Go on with the file where an earlier run of the same experiment ended
    #[arg(long, requires = "out")]
    resume: bool,
    /// Record what the device of each volume in this process is asked, in a file a cell of this directory, for `lab replay`
    #[arg(long, value_name = "DIRECTORY")]
    trace: Option<PathBuf>,
    /// Count what a target holds after every phase, not only at the end
    #[arg(long)]
    check: bool,
    /// Leave images as holes, anew for each cell, instead of writing the blocks of one for each target once
    #[arg(long)]
    sparse: bool,
    /// Write samples as JSON lines to standard output instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Quick {
    /// Size of the workloads; 1 is that of the papers
    #[arg(long, value_name = "S", default_value = "0.01", value_parser = parse_scale)]
    scale: Scale,
    /// Targets, in turn [default: all that there are]
    #[arg(long, visible_alias = "targets", value_name = "TARGET,...", value_delimiter = ',')]
    target: Vec<String>,
    /// How often each cell is run, each time with a seed of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Where samples, page and pictures go; made if need be, and it must not hold samples yet
    #[arg(long, value_name = "DIRECTORY", default_value = "lab-quick")]
    out: PathBuf,
    /// Go on in the directory where an earlier `lab quick` ended
    #[arg(long)]
    resume: bool,
    /// Install nothing: without what the analysis needs there is no page, and the last lines say what is missing
    #[arg(long)]
    no_install: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, Args)]
struct Common {
    /// Options of all volumes
    #[arg(long, value_name = "NAME=VALUE,...", value_delimiter = ',')]
    set: Vec<String>,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Age each volume or file system first with so many files, made, replaced and half removed
    #[arg(long, value_name = "FILES", default_value = "0", value_parser = clap::value_parser!(u64).range(..=100_000_000))]
    age: u64,
    /// Take memory from the machine until so much is left for kernel and user space together; caches of volumes and SQLite get half of it
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<u64>,
    /// Where images are made; for the kernel's file systems its file system must allow direct I/O
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    folder: PathBuf,
}

#[derive(Debug, Args)]
struct Replay {
    /// Recordings (*.trace.zst), or directories of them
    #[arg(required = true, value_name = "RECORDING")]
    recordings: Vec<PathBuf>,
    /// Devices to ask; a machine for recordings of its own alone [default: all but machines]
    #[arg(long, visible_alias = "devices", value_name = "DEVICE,...", value_delimiter = ',', value_parser = parse_device)]
    device: Vec<&'static Preset>,
    /// Write the samples to this file, as `lab run` does; it must not exist
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write samples as JSON lines to standard output instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Report {
    /// Files of samples (*.jsonl, *.jsonl.gz, *.jsonl.zst), or directories of them; without any: what is claimed and expected
    #[arg(value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// Where the page goes, with its pictures (figures/*.png) and numbers (data/*.csv); made if need be
    #[arg(long, value_name = "DIRECTORY", default_value = "lab-report")]
    out: PathBuf,
    /// The target that others are compared with [default: mount, or else process]
    #[arg(long, value_name = "TARGET")]
    ours: Option<String>,
    /// Each build is a target of its own, as in mount@1a2b3c4, so that builds can be compared
    #[arg(long)]
    by_commit: bool,
    /// TOML with lines CLAIM = 'what we know of why', shown beside the verdicts
    #[arg(long, value_name = "FILE")]
    notes: Option<PathBuf>,
    /// Install nothing; say what is missing
    #[arg(long, conflicts_with = "setup")]
    no_install: bool,
    /// Install what the analysis needs, and end
    #[arg(long, exclusive = true)]
    setup: bool,
}

fn parse_scale(text: &str) -> Result<Scale, String> {
    match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= 10.0 => Ok(Scale(scale)),
        _ => Err("write a number above 0, at most 10: 1 is the papers' size".to_owned()),
    }
}

fn parse_device(name: &str) -> Result<&'static Preset, String> {
    Preset::named(name).ok_or_else(|| {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        format!("there is no such device; there are {}", names.join(", "))
    })
}

fn parse_memory(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(bytes) if bytes < LEFT_BYTES_MIN => {
            Err(format!("less than {} MiB endanger the machine", LEFT_BYTES_MIN >> 20))
        }
        other => other,
    }
}

impl Lab {
    /// Whether its samples are in a file by which it goes on where it was ended.
    pub fn can_be_resumed(&self) -> bool {
        match &self.what {
            What::Run(run) => run.out.is_some(),
            What::Quick(_) => true,
            What::List | What::Replay(_) | What::Report(_) => false,
        }
    }

    /// Runs it and writes what came of it to `out`. A signal ends it with [`interrupt::Interrupted`], after cleaning up.
    pub fn run(self, out: &mut dyn Write, quiet: bool) -> Result<()> {
        interrupt::watch()?;
        let outcome = match self.what {
            What::List => list(out),
            What::Run(run) => run.run(out, quiet),
            What::Quick(quick_run) => quick(quick_run, out, quiet),
            What::Replay(again) => again.run(out),
            What::Report(report) => report.run(out),
        };
        // A program we started got the signal too, and its failure came first.
        outcome.map_err(|error| interrupt::check().err().unwrap_or(error))
    }
}

fn suites(names: &[String]) -> Result<Vec<&'static Suite>> {
    if names == ["all"] {
        return Ok(SUITES.iter().collect());
    }
    let named = |name: &String| {
        let known = || Suite::all().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
        Suite::named(name).ok_or_else(|| anyhow!("there is no suite `{name}`; there are {}, or `all`", known()))
    };
    names.iter().map(named).collect()
}

fn places(names: &[String]) -> Result<Vec<Place>> {
    let places: Vec<Place> =
        names.iter().map(|name| Place::parse(name).map_err(|why| anyhow!(why))).collect::<Result<_>>()?;
    for (at, place) in places.iter().enumerate() {
        let repeated = places[..at].iter().any(|earlier| earlier.name() == place.name());
        ensure!(!repeated, "{} is named twice; --runs shows the noise", place.name());
    }
    Ok(places)
}

/// Options that all volumes have.
fn settings(texts: &[String]) -> Result<Vec<(&'static Row, Value)>> {
    let read = |text: &String| {
        let name = text.split_once('=').map_or(text.as_str(), |(name, _)| name);
        let read = options::read(text).unwrap_or_else(|| Err(options::unknown(name)));
        let (row, value) = read.map_err(|why| anyhow!("{text}: {why}"))?;
        // It would be overwritten unasked.
        ensure!(!matches!(row.values, Values::Path), "{text}: a volume that is measured has its log in its image");
        Ok((row, value))
    };
    texts.iter().map(read).collect()
}

impl Common {
    /// What holds for all targets, in words.
    fn conditions(&self) -> Vec<String> {
        let age = (self.age > 0).then(|| format!("age={}", self.age));
        age.into_iter().chain(self.memory.map(|bytes| format!("memory={}M", bytes >> 20))).collect()
    }

    /// These options for volumes of a profile, whatever profile they name.
    fn of_profile(&self, profile: &str) -> Self {
        let is_other = |text: &&String| text.split_once('=').is_none_or(|(name, _)| name != "profile");
        let profile = format!("profile={profile}");
        Self {
            set: std::iter::once(profile).chain(self.set.iter().filter(is_other).cloned()).collect(),
            ..self.clone()
        }
    }

    /// An experiment with these options, checked.
    fn experiment(&self, asked: &[String], quiet: bool) -> Result<Experiment> {
        let (factors, absent): (Vec<Factor>, _) = factors(asked).map_err(|why| anyhow!(why))?;
        let set = settings(&self.set)?;
        if let Some((row, _)) = set.iter().find(|(row, _)| factors.iter().any(|factor| factor.row.name == row.name)) {
            bail!("{} cannot be set and flipped", row.name);
        }
        Ok(Experiment {
            suites: Vec::new(),
            scale: Scale(1.0),
            places: Vec::new(),
            factors,
            absent,
            set,
            asked: [asked, &self.set, &self.conditions()].concat(),
            age: self.age,
            memory_bytes: self.memory,
            runs: 1,
            seed: self.seed,
            out: None,
            resume: false,
            trace: None,
            folder: std::path::absolute(&self.folder)?,
            exe: std::env::current_exe()?,
            sparse: false,
            check_each: false,
            twin: false,
            slowdown: None,
            quiet,
        })
    }
}

impl Run {
    fn run(self, out: &mut dyn Write, quiet: bool) -> Result<()> {
        ensure!(
            !self.twin || self.runs >= stats::ROUNDS_LEAST,
            "--runs {}: with --twin {} at least; of fewer no interval is known",
            self.runs,
            stats::ROUNDS_LEAST
        );
        let shared = self.common.experiment(&self.factors, quiet)?;
        let words = [(self.sparse, SPARSE), (self.check, CHECK), (self.twin, "twin"), (self.trace.is_some(), "trace")];
        let words = words.into_iter().filter(|(asked, _)| *asked).map(|(_, word)| word.to_owned());
        let asked = words.chain(self.slow.map(|slowdown| format!("slow={slowdown}")));
        let experiment = Experiment {
            suites: suites(&self.suites)?,
            places: places(&self.target)?,
            scale: self.scale,
            runs: self.runs,
            out: self.out,
            resume: self.resume,
            trace: self.trace,
            sparse: self.sparse,
            check_each: self.check,
            twin: self.twin,
            slowdown: self.slow,
            asked: shared.asked.iter().cloned().chain(asked).collect(),
            ..shared
        };
        let outcome = experiment.run()?;
        write_outcome(&outcome, self.json, out)?;
        all_done(&outcome)
    }
}

fn write_outcome(outcome: &Outcome, as_json: bool, out: &mut dyn Write) -> Result<()> {
    if !as_json {
        return tell(outcome, out);
    }
    for line in &outcome.lines {
        writeln!(out, "{}", serde_json::to_string(line)?)?;
    }
    Ok(())
}

impl Replay {
    fn run(self, out: &mut dyn Write) -> Result<()> {
        if let Some(path) = self.out.as_ref().filter(|path| path.exists()) {
            bail!("{} is there already; name another file", path.display());
        }
        let devices = if self.device.is_empty() { replay::devices() } else { self.device };
        let (mut headers, mut lines) = (Vec::new(), Vec::new());
        for path in replay::recordings(&self.recordings)? {
            interrupt::check()?;
            let (header, samples) = replay::replay(&path, &devices)?;
            headers.push((path, header));
            lines.extend(samples);
        }
        let (first, header) = headers.first().cloned().context("no recordings")?;
        if let Some((other, _)) = headers.iter().find(|(_, other)| *other != header) {
            bail!("{} and {} are of different runs; replay them one after the other", first.display(), other.display());
        }
        lines.sort_by_key(|line| line.order);
        let outcome = Outcome { header, lines, failed: Vec::new() };
        if let Some(path) = &self.out {
            let mut file = ResultFile::create(path, &outcome.header)?;
            file.add(&outcome.lines)?;
            file.finish()?;
        }
        write_outcome(&outcome, self.json, out)
    }
}

/// Conditions as a file of samples has them.
const SPARSE: &str = "sparse";
const CHECK: &str = "check";

/// Fails if a cell did.
fn all_done(outcome: &Outcome) -> Result<()> {
    ensure!(
        outcome.failed.is_empty(),
        "{} of the cells failed, and have no samples:\n  {}",
        outcome.failed.len(),
        outcome.failed.join("\n  ")
    );
    Ok(())
}

/// Suites that show what mechanisms are worth, and how many times the scale of the others they need for it.
const MECHANISMS: [&str; 3] = ["ports", "folder", "tar"];
const MECHANISMS_SCALE_TIMES: f64 = 5.0;
/// Beside those of the paper: it has the largest effect on a disk with an arm.
const MECHANISMS_FACTORS: [&str; 2] = ["paper", "placement=rotor/dirpref"];
const SAMPLES: [&str; 2] = ["targets.jsonl.zst", "mechanisms.jsonl.zst"];

/// Every suite on every target; then the mechanisms of the papers flipped on FFS's structures and a disk of 2001; then the page.
fn quick(asked: Quick, out: &mut dyn Write, quiet: bool) -> Result<()> {
    let Quick { scale, target, runs, out: folder, resume, no_install, common } = asked;
    let quick = |common: &Common, factors: &[String], name: &str| -> Result<Experiment> {
        let made = common.experiment(factors, quiet)?;
        let conditions = [SPARSE, CHECK].map(str::to_owned);
        let asked = [made.asked, conditions.to_vec()].concat();
        Ok(Experiment {
            runs,
            resume,
            sparse: true,
            check_each: true,
            scale,
            asked,
            out: Some(folder.join(name)),
            ..made
        })
    };
    let all = Experiment {
        suites: SUITES.iter().collect(),
        places: if target.is_empty() { Place::all() } else { places(&target)? },
        ..quick(&common, &[], SAMPLES[0])?
    };
    let mechanisms = Experiment {
        suites: suites(&MECHANISMS.map(str::to_owned))?,
        places: places(&["disk2001".to_owned()])?,
        scale: Scale((scale.0 * MECHANISMS_SCALE_TIMES).min(1.0)),
        ..quick(&common.of_profile("ffs"), &MECHANISMS_FACTORS.map(str::to_owned), SAMPLES[1])?
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let outcome = all.run()?;
    tell(&outcome, out)?;
    all_done(&outcome)?;
    let outcome = mechanisms.run()?;
    writeln!(out, "\nMechanisms: volumes of profile ffs, with options flipped")?;
    tell(&outcome, out)?;
    all_done(&outcome)?;
    let samples = SAMPLES.map(|name| folder.join(name));
    match analysis::page(&samples, &folder, &[], !no_install) {
        Ok(page) => show(&page, out),
        Err(error) if error.is::<interrupt::Interrupted>() => Err(error),
        Err(error) => {
            let named = folder.display();
            writeln!(out, "\nleft out: the page and its pictures: {error:#}")?;
            writeln!(out, "The samples are in {named}; the page is made by: myriad lab report {named} --out {named}")?;
            Ok(())
        }
    }
}

fn show(page: &analysis::Page, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n{}", page.said.trim_end())?;
    writeln!(out, "{} pictures:", page.pictures.len())?;
    for picture in &page.pictures {
        writeln!(out, "  {}", picture.display())?;
    }
    writeln!(out, "the page: {}", page.html.display())?;
    Ok(())
}

impl Report {
    fn run(self, out: &mut dyn Write) -> Result<()> {
        if self.setup {
            return Ok(write!(out, "{}", analysis::set_up()?)?);
        }
        let mut more: Vec<OsString> = Vec::new();
        if let Some(ours) = &self.ours {
            more.extend(["--ours".into(), ours.into()]);
        }
        if self.by_commit {
            more.push("--by-commit".into());
        }
        if let Some(notes) = &self.notes {
            more.extend(["--notes".into(), notes.into()]);
        }
        show(&analysis::page(&self.results, &self.out, &more, !self.no_install)?, out)
    }
}

fn list(out: &mut dyn Write) -> Result<()> {
    writeln!(out, "Suites:")?;
    for suite in Suite::all() {
        let items = suite.items(Scale(0.001), 1);
        let missing = |item: &Item| match &item.work {
            Work::Theirs(tool) => tool.missing(),
            Work::Ours(_) => None,
        };
        // Of all of them one may be there.
        let why = items.iter().map(missing).collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().next());
        let missing = why.map(|why| format!(" [not here: {why}]")).unwrap_or_default();
        writeln!(out, "  {:<14} {} ({}){missing}", suite.name, suite.about, suite.source)?;
    }
    writeln!(out, "\nTargets:")?;
    for place in Place::all() {
        let missing = place.missing(1 << 30).map(|why| format!(" [not here: {why}]")).unwrap_or_default();
        writeln!(out, "  {:<13} {}{missing}", place.name(), place.about())?;
    }
    writeln!(out, "\nFactors, each a row of the table that myriad tune shows:")?;
    for row in TABLE.iter().filter(|row| !matches!(row.values, Values::Path)) {
        writeln!(out, "  {:<16} {} ({})", row.name, described(row), row.source)?;
    }
    writeln!(out, "  {:<16} the four of Dowse and Malone 2002, as far as this build has them", "paper")?;
    Ok(())
}

fn tell(outcome: &Outcome, out: &mut dyn Write) -> Result<()> {
    let header = &outcome.header;
    let machine = &header.machine;
    writeln!(out, "{}; {}; {} CPUs; commit {}", machine.kernel, machine.cpu, machine.cores, header.commit)?;
    writeln!(
        out,
        "scale {}, seed {}; medians of microseconds an operation, final sync included",
        header.scale, header.base_seed
    )?;
    let modelled: Vec<&str> = Place::all().into_iter().filter(|place| place.is_modelled()).map(Place::name).collect();
    writeln!(out, "on {}: the device's time as a model has it, and no other", modelled.join(", "))?;
    for (target, why) in &header.left_out {
        writeln!(out, "left out: {target}: {why}")?;
    }
    for absent in &header.absent {
        writeln!(out, "absent: {}: {}", absent.factor, absent.why)?;
    }
    writeln!(out, "{}", table(&outcome.lines).trim_fmt())?;
    twins::tell(&outcome.lines, out)
}

/// A row a phase and setting of the factors, a column a target. Of twins the first.
fn table(lines: &[Line]) -> comfy_table::Table {
    let mut targets: Vec<&str> = Vec::new();
    let mut times = BTreeMap::<(RowKey, &str), Vec<f64>>::new();
    for line in lines.iter().filter(|line| line.twin.is_none_or(|twin| twin == Twin::First)) {
        if !targets.contains(&line.target.as_str()) {
            targets.push(&line.target);
        }
        if let Some(seconds) = line.seconds {
            let key = (RowKey::of(line), line.target.as_str());
            times.entry(key).or_default().push(seconds * 1e6 / line.count.max(1) as f64);
        }
    }
    targets.sort_by_key(|name| Place::all().iter().position(|place| place.name() == *name));
    let rows = rows::in_order(lines);
    let mut table = report::table(&[&rows::header(&rows)[..], &targets[..]].concat());
    for row in &rows {
        let mut cells = row.cells(&rows);
        for target in &targets {
            let values = times.get(&(row.clone(), *target));
            cells.push(report::number(values.and_then(|values| stats::median(values))));
        }
        table.add_row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_is_sound() {
        Lab::augment_args(clap::Command::new("lab")).debug_assert();
    }

    #[test]
    fn scales() {
        assert_eq!(parse_scale("0.25"), Ok(Scale(0.25)));
        for text in ["0", "-1", "11", "much", "NaN", "inf"] {
            assert!(parse_scale(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_that_there_are_not_are_refused_with_those_there_are() {
        let refused = suites(&["tra".to_owned()]).map(drop).unwrap_err().to_string();
        assert!(refused.contains("`tra`") && refused.contains("postmark"), "{refused}");
        assert_eq!(suites(&["all".to_owned()]).unwrap().len(), SUITES.len());
        let refused = places(&["zfs".to_owned()]).unwrap_err().to_string();
        assert!(refused.contains("`zfs`") && refused.contains("disk2001"), "{refused}");
        assert!(places(&["process".to_owned(), "process".to_owned()]).is_err());
        assert!(settings(&["colour=red".to_owned()]).is_err());
        assert!(settings(&["logdev=/dev/null".to_owned()]).is_err());
    }

    #[test]
    fn the_list_has_everything() {
        let mut out = Vec::new();
        list(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for name in ["dirhash", "listrates", "disk1996", "btrfs", "placement", "dirpref/rotor", "off/on", "paper"] {
            assert!(text.contains(name), "{name}");
        }
    }
}
