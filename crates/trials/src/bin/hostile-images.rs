//! Runs hostile images from the command line: the long forms, a single mutant, the reliability report. The last line of
//! standard output is one JSON object. Exit status: 0 no failure, 1 some, 2 a wrong argument.

use myriad_trials::hostile::{Config, bases, run};
use std::process::ExitCode;

#[global_allocator]
static MEMORY: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, usize::MAX);

/// All that a run may hold at any time. Bases, images and engines of a few threads take below 100 MiB; what a size from
/// a hostile image asks for would be more.
const MEMORY_MAX: usize = 1 << 30;

const USAGE: &str = "Usage: hostile-images [--seed N] [--from N] [--count N] [--threads N] [--check-every N]
                      [--change-every N] [--repair-every N] [--failures-max N] [--verbose]

Opens, reads, checks, changes and repairs damaged volumes and reports each that makes the engine or the check panic,
hang, write where it must not, or contradict each other. --from N --count 1 --verbose shows one again.";

fn main() -> ExitCode {
    let config = match parse(std::env::args().skip(1)) {
        Ok(Some(config)) => config,
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
    let bases = match bases::all() {
        Ok(bases) => bases,
        Err(error) => {
            eprintln!("hostile-images: making the base volumes: {error}");
            return ExitCode::FAILURE;
        }
    };
    let summary = run(&bases, &config);
    for failure in &summary.failures {
        println!("{failure}");
        let (seed, index) = (config.seed, failure.index);
        println!(
            "replay: cargo run -p myriad-trials --bin hostile-images -- --seed {seed} --from {index} --count 1 --verbose"
        );
    }
    println!("{}", summary.to_json());
    if summary.failure_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `None`: help was asked for.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Config>, String> {
    let mut config = Config::default();
    while let Some(option) = arguments.next() {
        match option.as_str() {
            "--help" | "-h" => return Ok(None),
            "--verbose" => {
                config.verbose = true;
                continue;
            }
            _ => {}
        }
        let value = arguments.next().ok_or_else(|| format!("{option}: a number must follow"))?;
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
    Ok(Some(config))
}
