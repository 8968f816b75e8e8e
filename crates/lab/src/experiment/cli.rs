//! The verb `myriad lab`.

use super::factors::{Factor, described, factors};
use super::places::Place;
use super::results::Line;
use super::run::{Experiment, Outcome};
use super::suites::{SUITES, Scale, Suite};
use crate::interrupt;
use crate::report;
use crate::stats;
use anyhow::{Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use myriad_engine::options::{self, Row, TABLE, Value, Values};
use std::collections::BTreeMap;
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
    /// Every suite, tiny, on every target there is, in a few minutes
    Quick(Quick),
}

#[derive(Debug, Args)]
struct Run {
    /// Suites to run, or `all`
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
    /// How often each cell is run, each time with a seed of its own
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
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
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// Options to flip, in all combinations: NAME, NAME=CHOICE/CHOICE, or `paper` for the four of Dowse and Malone
    #[arg(long, value_name = "FACTOR,...", value_delimiter = ',')]
    factors: Vec<String>,
    /// Options of all volumes
    #[arg(long, value_name = "NAME=VALUE,...", value_delimiter = ',')]
    set: Vec<String>,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Write every sample to this file, as JSON lines; it must not exist
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Go on with the file where an earlier run of the same experiment ended
    #[arg(long, requires = "out")]
    resume: bool,
    /// Where images are made; for the kernel's file systems its file system must allow direct I/O
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    folder: PathBuf,
    /// Count what a target holds after every phase, not only at the end; quick always does
    #[arg(long)]
    check: bool,
    /// Write samples as JSON lines to standard output instead of a table
    #[arg(long)]
    json: bool,
}

fn parse_scale(text: &str) -> Result<Scale, String> {
    match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= 10.0 => Ok(Scale(scale)),
        _ => Err("write a number above 0, at most 10: 1 is the papers' size".to_owned()),
    }
}

impl Lab {
    /// Runs it and writes what came of it to `out`. A signal ends it with [`interrupt::Interrupted`], after cleaning up.
    pub fn run(self, out: &mut dyn Write, quiet: bool) -> Result<()> {
        interrupt::watch()?;
        let outcome = match self.what {
            What::List => list(out),
            What::Run(run) => {
                let suites = suites(&run.suites)?;
                let places = places(&run.target)?;
                run_experiment(suites, places, run.scale, run.runs, run.common, out, quiet)
            }
            What::Quick(quick) => {
                let places = if quick.target.is_empty() { Place::all() } else { places(&quick.target)? };
                let common = Common { check: true, ..quick.common };
                run_experiment(SUITES.iter().collect(), places, quick.scale, quick.runs, common, out, quiet)
            }
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
        let known = || SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
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

fn run_experiment(
    suites: Vec<&'static Suite>,
    places: Vec<Place>,
    scale: Scale,
    runs: u32,
    common: Common,
    out: &mut dyn Write,
    quiet: bool,
) -> Result<()> {
    let (factors, absent): (Vec<Factor>, _) = factors(&common.factors).map_err(|why| anyhow!(why))?;
    let set = settings(&common.set)?;
    if let Some((row, _)) = set.iter().find(|(row, _)| factors.iter().any(|factor| factor.row.name == row.name)) {
        bail!("{} cannot be set and flipped", row.name);
    }
    let experiment = Experiment {
        suites,
        scale,
        places,
        factors,
        absent,
        set,
        asked: [common.factors, common.set].concat(),
        runs,
        seed: common.seed,
        out: common.out,
        resume: common.resume,
        folder: std::path::absolute(&common.folder)?,
        exe: std::env::current_exe()?,
        check_each: common.check,
        quiet,
    };
    let outcome = experiment.run()?;
    if common.json {
        for line in &outcome.lines {
            writeln!(out, "{}", serde_json::to_string(line)?)?;
        }
    } else {
        tell(&outcome, out)?;
    }
    ensure!(
        outcome.failed.is_empty(),
        "{} of the cells failed, and have no samples:\n  {}",
        outcome.failed.len(),
        outcome.failed.join("\n  ")
    );
    Ok(())
}

fn list(out: &mut dyn Write) -> Result<()> {
    writeln!(out, "Suites:")?;
    for suite in &SUITES {
        writeln!(out, "  {:<13} {} ({})", suite.name, suite.about, suite.source)?;
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
    Ok(())
}

/// A row a phase and setting of the factors, a column a target.
fn table(lines: &[Line]) -> comfy_table::Table {
    type Key = (String, u64, String, String);
    let mut targets: Vec<&str> = Vec::new();
    let mut rows: Vec<Key> = Vec::new();
    let mut times = BTreeMap::<(Key, &str), Vec<f64>>::new();
    for line in lines {
        if !targets.contains(&line.target.as_str()) {
            targets.push(&line.target);
        }
        let setting: Vec<String> = line.factors.iter().map(|(name, choice)| format!("{name}={choice}")).collect();
        let key = (line.workload.clone(), line.size.unwrap_or(0), line.phase.clone(), setting.join(" "));
        if let Some(seconds) = line.seconds {
            times.entry((key.clone(), &line.target)).or_default().push(seconds * 1e6 / line.count.max(1) as f64);
        }
        if !rows.contains(&key) {
            rows.push(key);
        }
    }
    targets.sort_by_key(|name| Place::all().iter().position(|place| place.name() == *name));
    // Phases of a workload stay in the order in which they ran.
    let order: Vec<(String, u64)> = rows.iter().map(|row| (row.0.clone(), row.1)).collect();
    let suite_of = |workload: &str| lines.iter().find(|line| line.workload == workload).map(|line| line.suite.clone());
    rows.sort_by_key(|row| {
        let suite = suite_of(&row.0);
        let suite = SUITES.iter().position(|one| Some(one.name) == suite.as_deref());
        (suite, row.0.clone(), row.1, order.iter().position(|one| *one == (row.0.clone(), row.1)))
    });
    let mut header = vec!["workload", "size", "phase"];
    if rows.iter().any(|row| !row.3.is_empty()) {
        header.push("setting");
    }
    let settings = header.len() == 4;
    header.extend(&targets);
    let mut table = report::table(&header);
    for row in rows {
        let mut cells = vec![row.0.clone(), if row.1 == 0 { String::new() } else { row.1.to_string() }, row.2.clone()];
        if settings {
            cells.push(row.3.clone());
        }
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
