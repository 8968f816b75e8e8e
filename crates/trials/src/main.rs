//! The reliability report from the command line. `scripts/reliability --help` says how.

use myriad_trials::crash::classes::Amount;
use myriad_trials::report::{Part, Plan, Report};
use myriad_trials::table::{self, Row};
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
Usage: myriad-trials [--ci | --long] [--choices SEAM=CHOICE,...] [--parts PART,...] [--minutes N] [--threads N]
                     [--include FILE]
       myriad-trials [--choices SEAM=CHOICE,...] --replay RUN
       myriad-trials --rows
       myriad-trials --planted [--only BUG]

  --ci            the form that tests run; this is the default
  --long          at least a million states and a hundred thousand faults
  --choices TEXT  only volumes with these choices, such as directory=indexed,order=none; without it all of --rows
  --parts TEXT    only these: held, meetings, faults, full, answers, damage, cuts, in this order; without it all of them
  --rows          list the choices and orders that are tried
  --minutes N     begin nothing new after so many minutes, and report what there is; all rows get the same time
  --threads N     1 without it
  --include FILE  add the last line of FILE, JSON with `images`, `failures`, `kinds_repaired` and `cpu_seconds`, to the report
  --replay RUN    one run, as the report of its failure names it
  --planted       plant each of the known bugs and say who finds it (feature planted-bugs)
  --only BUG      the one of this name

Exit status: 0 no violation, 1 some, or too few states or faults, 2 a wrong argument.";

struct Arguments {
    amount: Amount,
    parts: Vec<Part>,
    minutes: Option<u64>,
    threads: usize,
    include: Option<String>,
    replay: Option<String>,
    planted: bool,
    only: Option<String>,
    rows: Vec<Row>,
    list: bool,
}

/// `None`: help was asked for.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut parsed = Arguments {
        amount: Amount::Short,
        parts: Part::ALL.to_vec(),
        minutes: None,
        threads: 1,
        include: None,
        replay: None,
        planted: false,
        only: None,
        rows: table::rows(),
        list: false,
    };
    while let Some(option) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{option}: a value must follow"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is not a number"));
        match option.as_str() {
            "--help" | "-h" => return Ok(None),
            "--ci" => parsed.amount = Amount::Short,
            "--long" => parsed.amount = Amount::Long,
            "--planted" => parsed.planted = true,
            "--minutes" => parsed.minutes = Some(number(value()?)?),
            "--threads" => parsed.threads = number(value()?)?.clamp(1, 256) as usize,
            "--include" => parsed.include = Some(value()?),
            "--choices" => parsed.rows = table::select(&value()?)?,
            "--parts" => parsed.parts = parts(&value()?)?,
            "--rows" => parsed.list = true,
            "--only" => parsed.only = Some(value()?),
            "--replay" => parsed.replay = Some(value()?),
            _ => return Err(format!("{option}: no such option")),
        }
    }
    Ok(Some(parsed))
}

fn parts(text: &str) -> Result<Vec<Part>, String> {
    let part = |name: &str| Part::ALL.into_iter().find(|part| part.name() == name);
    let names = Part::ALL.map(Part::name).join(", ");
    text.split(',').map(|name| part(name).ok_or_else(|| format!("{name}: no such part; there are {names}"))).collect()
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("myriad-trials: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if arguments.planted {
        return planted(arguments.only.as_deref());
    }
    if arguments.list {
        let names: String = arguments.rows.iter().map(|row| format!("{}\n", row.name())).collect();
        // Who reads them may have seen enough.
        let _ = std::io::stdout().write_all(names.as_bytes());
        return ExitCode::SUCCESS;
    }
    if let Some(name) = &arguments.replay {
        return replay(arguments.rows[0], name);
    }
    report(&arguments)
}

fn report(arguments: &Arguments) -> ExitCode {
    let start = Instant::now();
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let count = arguments.rows.len() as u32;
    let plan = Plan {
        rows: &arguments.rows,
        amount: arguments.amount,
        parts: &arguments.parts,
        threads: arguments.threads,
        is_over: &|row| limit.is_some_and(|limit| start.elapsed() > limit * (row as u32 + 1) / count),
        progress: &|part| eprintln!("{:>5} s  {part}", start.elapsed().as_secs()),
    };
    let mut report = Report::make(&plan);
    let mut included = Ok(());
    if let Some(path) = &arguments.include {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        included = text.and_then(|text| report.include(text.lines().next_back().unwrap_or_default()));
    }
    println!("{report}");
    if let (Err(why), Some(path)) = (included, &arguments.include) {
        eprintln!("myriad-trials: --include {path}: {why}");
        return ExitCode::from(2);
    }
    if let Some(why) = report.lacks(arguments.amount) {
        eprintln!("myriad-trials: {why}");
        return ExitCode::FAILURE;
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(row: Row, name: &str) -> ExitCode {
    let Some(failures) = myriad_trials::replay::replay(row, name) else {
        let row = row.name();
        eprintln!("myriad-trials: {name} names no run with {row}; a report's line `replay:` does");
        return ExitCode::from(2);
    };
    failures.iter().for_each(|failure| println!("{failure}"));
    if failures.is_empty() {
        println!("{name}: nothing wrong");
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}

#[cfg(feature = "planted-bugs")]
fn planted(only: Option<&str>) -> ExitCode {
    use myriad_engine::planted::Bug;
    let bugs: Vec<Bug> = Bug::ALL.iter().copied().filter(|bug| only.is_none_or(|only| bug.name() == only)).collect();
    if bugs.is_empty() {
        let names: Vec<&str> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        eprintln!("myriad-trials: no bug of this name; there are {}", names.join(" "));
        return ExitCode::from(2);
    }
    // Panics are findings here, and are told as such.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    for &bug in &bugs {
        let start = Instant::now();
        let found = myriad_trials::planted::find(bug);
        println!("{}: {}", bug.name(), bug.sentence());
        match found {
            Some(finding) => {
                println!("  found by {} after {:.1} s:", finding.finder, start.elapsed().as_secs_f64());
                finding.message.lines().take(3).for_each(|line| println!("    {}", line.trim()));
                if !finding.replays {
                    println!("  WHICH ITS REPLAY DOES NOT FIND");
                    missed += 1;
                }
            }
            None => {
                println!("  NOT FOUND after {:.1} s", start.elapsed().as_secs_f64());
                missed += 1;
            }
        }
    }
    println!("{} planted, {missed} not found, or not by the replay", bugs.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(not(feature = "planted-bugs"))]
fn planted(_: Option<&str>) -> ExitCode {
    eprintln!("myriad-trials: built without the feature planted-bugs; scripts/reliability --planted builds it with");
    ExitCode::from(2)
}
