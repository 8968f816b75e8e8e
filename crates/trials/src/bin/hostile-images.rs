//! Runs hostile images from the command line: the long forms, a single mutant, the reliability report. The last line of
//! standard output is one JSON object. Exit status: 0 no failure, 1 some, 2 a wrong argument.

use myriad_format::choices::Choices;
use myriad_trials::hostile::{Config, Summary, bases, run};
use myriad_trials::table;
use std::process::ExitCode;

#[global_allocator]
static MEMORY: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, usize::MAX);

/// All that a run may hold at any time. Bases, images and engines of a few threads take below 100 MiB; what a size from
/// a hostile image asks for would be more.
const MEMORY_MAX: usize = 1 << 30;

const USAGE: &str = "Usage: hostile-images [--choices SEAM=CHOICE,...] [--seed N] [--from N] [--count N] [--threads N]
                      [--check-every N] [--change-every N] [--repair-every N] [--failures-max N] [--verbose]

Opens, reads, checks, changes and repairs damaged volumes and reports each that makes the engine or the check panic,
hang, write where it must not, or contradict each other. --from N --count 1 --verbose shows one again.

Without --choices, volumes of the default, and a tenth of the count for each other set of choices that this build has. With them,
volumes of these choices, in every order that they can be written in.";

/// Of volumes of other choices than the default's, so many times fewer images.
const OTHERS: u64 = 10;

fn main() -> ExitCode {
    let (config, parts) = match parse(std::env::args().skip(1)) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("hostile-images: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // Beyond it an allocation fails, and with it the process.
    MEMORY.set_limit(MEMORY_MAX).expect("nothing is allocated yet");
    let mut summary = Summary { seed: config.seed, ..Summary::default() };
    for part in &parts {
        let bases = match bases::all(&part.set) {
            Ok(bases) => bases,
            Err(error) => {
                eprintln!("hostile-images: making the base volumes, {}: {error}", table::name_of(&part.set));
                return ExitCode::FAILURE;
            }
        };
        let config = Config { count: config.count.div_ceil(part.share), ..config.clone() };
        let found = run(&bases, &config);
        println!("{}: {} images, {} failures", table::name_of(&part.set), found.images, found.failure_count);
        found.failures.iter().for_each(|failure| println!("{failure}"));
        summary.merge(found);
    }
    println!("{}", summary.to_json());
    if summary.failure_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Volumes of these choices; of the count, one part in `share`.
struct Part {
    set: Choices,
    share: u64,
}

/// `None`: help was asked for.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<(Config, Vec<Part>)>, String> {
    let mut config = Config::default();
    let part = |set| Part { set, share: if set == Choices::default() { 1 } else { OTHERS } };
    let mut parts: Vec<Part> = table::sets(&table::rows()).into_iter().map(part).collect();
    while let Some(option) = arguments.next() {
        match option.as_str() {
            "--help" | "-h" => return Ok(None),
            "--verbose" => {
                config.verbose = true;
                continue;
            }
            _ => {}
        }
        let value = arguments.next().ok_or_else(|| format!("{option}: a value must follow"))?;
        if option == "--choices" {
            let sets = table::sets(&table::select(&value)?).into_iter();
            parts = sets.map(|set| Part { set, share: 1 }).collect();
            continue;
        }
        let number: u64 = value.parse().map_err(|_| format!("{option}: {value} is not a number"))?;
        match option.as_str() {
            "--seed" => config.seed = number,
            "--from" => config.from = number,
            "--count" => config.count = number,
            "--threads" => config.threads = usize::try_from(number).unwrap_or(1).clamp(1, 1024),
            "--check-every" => config.check_every = number,
            "--change-every" => config.change_every = number,
            "--repair-every" => config.repair_every = number,
            "--failures-max" => config.failures_max = usize::try_from(number).unwrap_or(usize::MAX),
            _ => return Err(format!("{option}: no such option")),
        }
    }
    Ok(Some((config, parts)))
}
