//! Many mutants, counted.

use crate::hostile::bases::Base;
use crate::hostile::exercise::{Facts, Plan, examine};
use crate::hostile::mutate::{Class, mutate};
use crate::table;
use crate::verdict::{catch, cpu_seconds, quietly};
use myriad_format::choices::Choices;
use myriad_sim::rng::Rng;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    /// Mutants `from..from + count` of the seed.
    pub from: u64,
    pub count: u64,
    pub threads: usize,
    /// Every so many mutants are also checked, changed, repaired; 0: never.
    pub check_every: u64,
    pub change_every: u64,
    pub repair_every: u64,
    /// Failures kept with their story.
    pub failures_max: usize,
    /// Tell of each mutant on stderr before it is looked at.
    pub verbose: bool,
}

impl Default for Config {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            seed: 1,
            from: 0,
            count: 1000,
            threads,
            check_every: 4,
            change_every: 8,
            repair_every: 16,
            failures_max: 20,
            verbose: false,
        }
    }
}

impl Config {
    /// The line that does one of its mutants again.
    fn replay(&self, choices: &Choices, index: u64) -> String {
        let Self { seed, check_every, change_every, repair_every, .. } = self;
        format!(
            "replay: cargo run -p myriad-trials --bin hostile-images -- --choices {} --seed {seed} --from {index} --count 1 \
             --verbose --check-every {check_every} --change-every {change_every} --repair-every {repair_every}",
            table::name_of(choices)
        )
    }
}

/// A mutant that did what none may.
#[derive(Clone, Debug)]
pub struct Failure {
    pub index: u64,
    pub base: &'static str,
    pub class: Class,
    pub story: Vec<String>,
    /// A panic's message with its place, or what else was wrong.
    pub what: String,
    /// The line that shows it again.
    pub replay: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mutant {} of \"{}\" ({}): {}", self.index, self.base, self.class.name(), self.what)?;
        self.story.iter().try_for_each(|line| write!(f, "\n    {line}"))?;
        write!(f, "\n{}", self.replay)
    }
}

/// Counts of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub seed: u64,
    pub images: u64,
    /// By class, in the order of [`Class::ALL`].
    pub by_class: [u64; Class::ALL.len()],
    /// Images that opened; files shown; errors that reading reported.
    pub opened: u64,
    pub files: u64,
    pub errors: u64,
    pub checked: u64,
    /// Checked images without a finding: the damage did not matter.
    pub silent: u64,
    pub changed: u64,
    pub operations: u64,
    pub repaired: u64,
    pub unrepairable: u64,
    /// Kinds of findings that were put right: a bit for each of `myriad_check::KINDS`.
    pub kinds: u64,
    pub failure_count: u64,
    pub failures: Vec<Failure>,
    pub seconds: f64,
    /// Time of the processor that the whole process took meanwhile.
    pub cpu_seconds: f64,
}

impl Summary {
    /// Adds what another run counted.
    pub fn merge(&mut self, other: Self) {
        self.images += other.images;
        self.by_class.iter_mut().zip(other.by_class).for_each(|(count, more)| *count += more);
        self.opened += other.opened;
        self.files += other.files;
        self.errors += other.errors;
        self.checked += other.checked;
        self.silent += other.silent;
        self.changed += other.changed;
        self.operations += other.operations;
        self.repaired += other.repaired;
        self.unrepairable += other.unrepairable;
        self.kinds |= other.kinds;
        self.failure_count += other.failure_count;
        self.failures.extend(other.failures);
        self.seconds += other.seconds;
        self.cpu_seconds += other.cpu_seconds;
    }

    fn add(&mut self, class: Class, facts: &Facts) {
        self.images += 1;
        self.by_class[Class::ALL.iter().position(|&other| other == class).expect("one of all")] += 1;
        self.opened += u64::from(facts.opened);
        self.files += facts.files;
        self.errors += facts.errors;
        self.checked += u64::from(facts.checked);
        self.silent += u64::from(facts.checked && facts.findings == 0);
        self.changed += u64::from(facts.changed);
        self.operations += facts.done + facts.refused;
        self.repaired += u64::from(facts.repaired);
        self.unrepairable += u64::from(facts.unrepairable);
        self.kinds |= facts.kinds;
    }

    /// One line that a program can read: JSON.
    pub fn to_json(&self) -> String {
        let classes: Vec<String> = Class::ALL
            .iter()
            .zip(self.by_class)
            .map(|(class, count)| format!("\"{}\":{count}", class.name()))
            .collect();
        format!(
            "{{\"test\":\"hostile images\",\"seed\":{},\"images\":{},\"failures\":{},\"opened\":{},\"files\":{},\"errors\":{},\
             \"checked\":{},\"silent\":{},\"changed\":{},\"operations\":{},\"repaired\":{},\"unrepairable\":{},\
             \"kinds_repaired\":{},\"seconds\":{:.1},\"cpu_seconds\":{:.3},\"classes\":{{{}}}}}",
            self.seed,
            self.images,
            self.failure_count,
            self.opened,
            self.files,
            self.errors,
            self.checked,
            self.silent,
            self.changed,
            self.operations,
            self.repaired,
            self.unrepairable,
            self.kinds.count_ones(),
            self.seconds,
            self.cpu_seconds,
            classes.join(",")
        )
    }
}

/// Longest time for one mutant before the run is given up: not a measure of speed, but how a hang that asks the device
/// for nothing becomes a failure with a name.
const HANG: Duration = Duration::from_secs(120);

/// A hang kills the process, after it has said which mutant it was.
fn watch(current: &[(AtomicU64, AtomicU64)], done: &AtomicBool, start: Instant, seed: u64) {
    while !done.load(Relaxed) {
        std::thread::park_timeout(Duration::from_millis(500));
        let now = start.elapsed().as_millis() as u64;
        for (index, since) in current {
            let since = since.load(Relaxed);
            if since != 0 && now.saturating_sub(since) > HANG.as_millis() as u64 {
                eprintln!("hostile: seed {seed}, mutant {} hangs", index.load(Relaxed));
                std::process::abort();
            }
        }
    }
}

/// Runs them all, on several threads. The outcome does not depend on how many.
pub fn run(bases: &[Base], config: &Config) -> Summary {
    quietly(|| run_all(bases, config))
}

fn run_all(bases: &[Base], config: &Config) -> Summary {
    let (start, cpu_before) = (Instant::now(), cpu_seconds());
    let summary = Mutex::new(Summary { seed: config.seed, ..Summary::default() });
    let next = AtomicU64::new(0);
    let finished = AtomicBool::new(false);
    let current: Vec<(AtomicU64, AtomicU64)> = (0..config.threads.max(1)).map(|_| Default::default()).collect();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&current, &finished, start, config.seed));
        let workers: Vec<_> = current
            .iter()
            .map(|(running, since)| {
                let (summary, next) = (&summary, &next);
                scope.spawn(move || {
                    loop {
                        let at = next.fetch_add(1, Relaxed);
                        if at >= config.count {
                            break;
                        }
                        let index = config.from + at;
                        running.store(index, Relaxed);
                        since.store((start.elapsed().as_millis() as u64).max(1), Relaxed);
                        one(bases, config, index, summary);
                    }
                    since.store(0, Relaxed);
                })
            })
            .collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        finished.store(true, Relaxed);
        watcher.thread().unpark();
        // Not of what is under trial, which is caught: of what makes the images.
        ends.into_iter().for_each(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    let mut summary = summary.into_inner().expect("no worker panics with the lock");
    summary.failures.sort_by_key(|failure| failure.index);
    summary.seconds = start.elapsed().as_secs_f64();
    summary.cpu_seconds = cpu_seconds() - cpu_before;
    summary
}

fn one(bases: &[Base], config: &Config, index: u64, summary: &Mutex<Summary>) {
    let mut rng = Rng::new(config.seed.rotate_left(32) ^ index);
    let mut drawn = rng.below(bases.iter().map(|base| base.shape.weight).sum());
    let base = bases
        .iter()
        .find(|base| {
            let is_it = drawn < base.shape.weight;
            drawn = drawn.saturating_sub(base.shape.weight);
            is_it
        })
        .expect("the weights add up");
    let is_due = |every: u64| every > 0 && index % every == 0;
    let plan = Plan {
        change: is_due(config.change_every),
        check: is_due(config.check_every),
        repair: is_due(config.repair_every),
    };
    let mutant = mutate(base, &mut rng);
    if config.verbose {
        eprintln!("mutant {index} of \"{}\" ({}): {:?}", base.shape.name, mutant.class.name(), mutant.story);
    }
    let result = catch(|| examine(&mutant.image, plan, &mut rng));
    let mut summary = summary.lock().expect("no worker panics with the lock");
    let what = match result {
        Ok(facts) => return summary.add(mutant.class, &facts),
        Err(what) => what,
    };
    let failure = Failure {
        index,
        base: base.shape.name,
        class: mutant.class,
        story: mutant.story,
        what,
        replay: config.replay(&base.choices, index),
    };
    summary.add(failure.class, &Facts::default());
    summary.failure_count += 1;
    if summary.failures.len() < config.failures_max {
        summary.failures.push(failure);
    }
}
