//! Everything once, and what came of it.

use crate::crash::campaign::Campaign;
use crate::crash::classes::{Amount, Class, RunId, runs, sequence_count};
use crate::crash::known::{Counts as CrashCounts, Known};
use crate::crash::plan::Kind;
use crate::damage;
use crate::fault::campaign::{Counts as FaultCounts, KINDS, inject, seeds};
use crate::fault::run::Outcome;
use crate::full::{Fill, Filling};
use crate::machine::Way;
use crate::model::{Compared, RUN};
use crate::paused::{hold_everywhere, holds};
use crate::schedules::meet_all;
use crate::table::{Promise, Row};
use crate::verdict::cpu_seconds;
use myriad_sim::threads::{FAILURES_MAX, try_all};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// A part of the work, which can be done by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Held,
    Meetings,
    Faults,
    Full,
    Answers,
    Damage,
    Cuts,
}

impl Part {
    pub const ALL: [Self; 7] =
        [Self::Held, Self::Meetings, Self::Faults, Self::Full, Self::Answers, Self::Damage, Self::Cuts];

    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Meetings => "meetings",
            Self::Faults => "faults",
            Self::Full => "full",
            Self::Answers => "answers",
            Self::Damage => "damage",
            Self::Cuts => "cuts",
        }
    }

    /// What is told when it begins; of power cuts that is what each class does.
    fn sentence(self) -> &'static str {
        match self {
            Self::Held => "checkpoints held",
            Self::Meetings => "threads that meet",
            Self::Faults => "faults",
            Self::Full => "full volumes",
            Self::Answers => "answers held against the model's",
            Self::Damage => "every field at its limits",
            Self::Cuts => "power cuts",
        }
    }
}

/// What to do.
pub struct Plan<'a> {
    /// On which volumes.
    pub rows: &'a [Row],
    pub amount: Amount,
    pub parts: &'a [Part],
    pub threads: usize,
    /// Whether to go on to the next row, by the number of the row: looked at between runs.
    pub is_over: &'a (dyn Fn(usize) -> bool + Sync),
    /// Told when a part begins.
    pub progress: &'a (dyn Fn(&str) + Sync),
}

/// What was done, and what went wrong.
#[derive(Default)]
pub struct Report {
    crashes: Campaign,
    paused: CrashCounts,
    /// Meetings of threads that were planned, and states after power loss that they were judged by.
    met: (u64, AtomicU64),
    faults: FaultCounts,
    /// Fillings, and operations that they accepted.
    filled: (u64, u64),
    /// Runs whose answers were compared with the model's.
    compared: u64,
    damaged: damage::Counts,
    rows: Vec<Tried>,
    stopped: bool,
    /// The parts that were left out.
    left_out: Vec<Part>,
    cpu_seconds: f64,
    images: Option<Images>,
    pub violations: Vec<String>,
}

/// What was done on volumes of one row.
struct Tried {
    row: Row,
    states: u64,
    faults: u64,
    fillings: u64,
    compared: u64,
    damaged: u64,
    cpu_seconds: f64,
    violations: usize,
}

/// Images that were mutated elsewhere.
#[derive(Clone, Copy, Default)]
struct Images {
    count: u64,
    harmful: u64,
    kinds_repaired: u64,
    cpu_seconds: f64,
}

impl Report {
    /// Runs everything that the plan says.
    pub fn make(plan: &Plan<'_>) -> Self {
        let mut report = Self::default();
        let before = cpu_seconds();
        for (number, row) in plan.rows.iter().enumerate() {
            let start = report.tried(*row);
            report.try_row(*row, plan, &|| (plan.is_over)(number));
            let end = report.tried(*row);
            report.stopped |= (plan.is_over)(number);
            report.rows.push(Tried {
                row: *row,
                states: end.states - start.states,
                faults: end.faults - start.faults,
                fillings: end.fillings - start.fillings,
                compared: end.compared - start.compared,
                damaged: end.damaged - start.damaged,
                cpu_seconds: end.cpu_seconds - start.cpu_seconds,
                violations: end.violations - start.violations,
            });
        }
        report.left_out = Part::ALL.into_iter().filter(|part| !plan.parts.contains(part)).collect();
        report.cpu_seconds = cpu_seconds() - before;
        report
    }

    /// What was done so far, on all volumes.
    fn tried(&self, row: Row) -> Tried {
        Tried {
            row,
            states: self.states(),
            faults: self.faults(),
            fillings: self.filled.0,
            compared: self.compared,
            damaged: self.damaged.cases,
            cpu_seconds: cpu_seconds(),
            violations: self.violations.len(),
        }
    }

    /// Everything on volumes of one row.
    fn try_row(&mut self, row: Row, plan: &Plan<'_>, is_over: &(dyn Fn() -> bool + Sync)) {
        let amount = plan.amount.of(&row);
        let name = row.name();
        let progress = |part: &str| (plan.progress)(&format!("{name}: {part}"));
        for part in Part::ALL.into_iter().filter(|part| plan.parts.contains(part)) {
            if part == Part::Held && !holds(&row) {
                continue;
            }
            progress(part.sentence());
            match part {
                Part::Held => self.hold(row, amount, is_over),
                Part::Meetings => {
                    let count = amount.pick(20, 100, 5000);
                    self.met.0 += count;
                    self.violations.extend(meet_all(row, 1..1 + count, plan.threads, &self.met.1, is_over));
                }
                Part::Faults => {
                    self.violations.extend(inject(row, &self.faults, &seeds(amount), plan.threads, is_over));
                }
                Part::Full => self.fill(row, amount, plan.threads, is_over),
                Part::Answers => self.compare(row, amount, plan.threads, is_over),
                Part::Damage => self.violations.extend(damage::all(row, amount, &mut self.damaged, is_over)),
                // The last, for it takes longest: a run that is ended early has done all else.
                Part::Cuts => self.cut(row, amount, plan.threads, is_over, &progress),
            }
        }
    }

    /// Power cuts. All classes in one list: one whose last run is long does not keep the other threads waiting.
    fn cut(
        &mut self,
        row: Row,
        amount: Amount,
        threads: usize,
        is_over: &(dyn Fn() -> bool + Sync),
        progress: &(dyn Fn(&str) + Sync),
    ) {
        let classes = Class::of(Promise::of(row.order)).iter();
        let mut all: Vec<RunId> = classes.flat_map(|&class| runs(row, class, amount)).collect();
        if amount != Amount::Long {
            // Single runs of the last classes take longest: begun last, each would leave the other threads without work.
            all.reverse();
        }
        self.violations.extend(self.crashes.run(&all, threads, is_over, |class| progress(class.sentence())));
    }

    fn hold(&mut self, row: Row, amount: Amount, is_over: &(dyn Fn() -> bool + Sync)) {
        let contents = Known::default();
        for seed in 1..=amount.pick(1, 2, 60) {
            if is_over() {
                break;
            }
            if let Err(message) = hold_everywhere(row, seed, &contents, &self.paused) {
                self.violations.push(format!("seed {seed}: {message}"));
                break;
            }
        }
    }

    fn fill(&mut self, row: Row, amount: Amount, threads: usize, is_over: &(dyn Fn() -> bool + Sync)) {
        let (filled, accepted) = (AtomicU64::new(0), AtomicU64::new(0));
        self.violations.extend(try_all(&fills(row, amount), threads, FAILURES_MAX, is_over, |_, fill| {
            accepted.fetch_add(fill.run()?, Ordering::Relaxed);
            filled.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }));
        self.filled = (self.filled.0 + filled.into_inner(), self.filled.1 + accepted.into_inner());
    }

    fn compare(&mut self, row: Row, amount: Amount, threads: usize, is_over: &(dyn Fn() -> bool + Sync)) {
        let run = |seed: u64| {
            let block_size = [4096, 512, 65536, 1024][seed as usize % 4];
            let way = if seed % 2 == 0 { Way::Path } else { Way::Mixed };
            Compared { row, block_size, way, seed }
        };
        let runs: Vec<Compared> = (1..=amount.pick(1, 2, 100)).map(run).collect();
        let compared = AtomicU64::new(0);
        self.violations.extend(try_all(&runs, threads, FAILURES_MAX, is_over, |_, run| {
            compared.fetch_add(1, Ordering::Relaxed);
            run.run()
        }));
        self.compared += compared.into_inner();
    }

    /// Adds a line of JSON that another program printed: `images` mutated, of which `failures` did harm, `kinds_repaired` in
    /// them, and the `cpu_seconds` that it took.
    pub fn include(&mut self, line: &str) -> Result<(), String> {
        let value: serde_json::Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let missing = |name: &str| format!("no number named {name:?} in it");
        let number = |name: &str| value[name].as_u64().ok_or_else(|| missing(name));
        let (count, harmful, kinds) = (number("images")?, number("failures")?, number("kinds_repaired")?);
        let cpu_seconds = value["cpu_seconds"].as_f64().ok_or_else(|| missing("cpu_seconds"))?;
        let all = self.images.get_or_insert_default();
        all.count += count;
        all.harmful += harmful;
        all.kinds_repaired = all.kinds_repaired.max(kinds);
        all.cpu_seconds += cpu_seconds;
        if harmful > 0 {
            self.violations.push(format!("{harmful} of {count} hostile images did harm; its own output says which"));
        }
        Ok(())
    }

    /// Distinct states that losing power left, of all classes.
    pub fn states(&self) -> u64 {
        self.crashes.distinct() + self.paused.distinct()
    }

    pub fn faults(&self) -> u64 {
        self.faults.total()
    }

    /// What a form that was not stopped, and is whole, has too little of. It stands for volumes of the default.
    pub fn lacks(&self, amount: Amount) -> Option<String> {
        let (states, faults) = amount.pick((0, 0), (50_000, 5_000), (1_000_000, 100_000));
        let is_whole = self.rows.iter().any(|tried| tried.row == Row::default());
        let is_partial = self.stopped || !self.left_out.is_empty();
        let is_enough = is_partial || !is_whole || self.states() >= states && self.faults() >= faults;
        (!is_enough).then(|| format!("fewer than {states} states or {faults} faults, which this form stands for"))
    }
}

/// The fillings of volumes of this row.
fn fills(row: Row, amount: Amount) -> Vec<Fill> {
    let threads = amount.pick(1..=1, 1..=2, 1..=2);
    Filling::ALL
        .iter()
        .flat_map(|&filling| threads.clone().map(move |threads| Fill { row, filling, threads }))
        .collect()
}

fn number(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn crash_row(out: &mut String, name: &str, counts: &CrashCounts) -> fmt::Result {
    write!(out, "  {name:<42} {:>7}", number(&counts.runs))?;
    counts.states.iter().try_for_each(|count| write!(out, " {:>9}", number(count)))?;
    writeln!(out, " {:>9} {:>9}", number(&counts.recoveries), counts.distinct())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        writeln!(out, "Volumes on trial: by the choices that mkfs takes, and the order")?;
        let width = self.rows.iter().map(|tried| tried.row.name().len()).max().unwrap_or(0).max(10);
        let columns = ["states", "faults", "fillings", "compared", "damaged", "seconds", "violations"];
        write!(out, "  {:<width$}", "")?;
        columns.iter().try_for_each(|column| write!(out, " {column:>10}"))?;
        writeln!(out)?;
        for tried in &self.rows {
            let Tried { row, states, faults, fillings, compared, damaged, cpu_seconds, violations } = tried;
            write!(out, "  {:<width$} {states:>10} {faults:>10} {fillings:>10}", row.name())?;
            writeln!(out, " {compared:>10} {damaged:>10} {cpu_seconds:>10.0} {violations:>10}")?;
        }
        writeln!(out, "\nDistinct states after losing power, each recovered, judged and checked")?;
        write!(out, "  {:<42} {:>7}", "", "runs")?;
        Kind::ALL.iter().try_for_each(|kind| write!(out, " {:>9}", kind.name()))?;
        writeln!(out, " {:>9} {:>9}", "again", "all")?;
        for class in Class::ALL {
            crash_row(&mut out, class.sentence(), self.crashes.counts(class))?;
        }
        crash_row(&mut out, "a checkpoint held, threads beside it", &self.paused)?;
        writeln!(out, "  {:<42} {:>67}", "together", self.states())?;
        let counts = || Class::ALL.map(|class| self.crashes.counts(class));
        let sum = |of: fn(&CrashCounts) -> u64| counts().into_iter().map(of).sum::<u64>();
        writeln!(
            out,
            "  prefix: all that was written had arrived; subset: some writes; torn: a part of one; scattered: any sectors;"
        )?;
        writeln!(out, "  again: power was lost once more, during recovery, repair, or what is given back in use")?;
        writeln!(out, "  judged again for another moment: {}", sum(|counts| number(&counts.again)))?;
        writeln!(out, "  worked on after recovery: {}", sum(|counts| number(&counts.continued)))?;
        for class in Class::ALL {
            if let Some(all) = sequence_count(class) {
                let runs = number(&self.crashes.counts(class).runs);
                writeln!(
                    out,
                    "  {}: {runs} runs, {all} sequences with the log inside, as many with it apart, and as many with checksums",
                    class.sentence()
                )?;
            }
        }
        let (met, states) = (self.met.0, number(&self.met.1));
        writeln!(out, "\nThreads that meet in files: {met} orders, {states} states after losing power")?;
        writeln!(out, "\nFaults injected, and what came of them")?;
        write!(out, "  {:<21}", "")?;
        Outcome::ALL.iter().try_for_each(|outcome| write!(out, " {:>28}", outcome.name()))?;
        writeln!(out)?;
        for (index, (name, ..)) in KINDS.iter().enumerate() {
            write!(out, "  {name:<21}")?;
            Outcome::ALL.iter().try_for_each(|outcome| write!(out, " {:>28}", self.faults.of(index, *outcome)))?;
            writeln!(out)?;
        }
        writeln!(out, "  together {}", self.faults())?;
        let (fillings, accepted) = self.filled;
        writeln!(out, "\nVolumes filled to the last block and emptied: {fillings}, by {accepted} operations")?;
        let steps = self.compared * RUN as u64;
        writeln!(out, "Operations whose answers were compared with the model's: {steps}")?;
        let damage::Counts { cases, kinds } = self.damaged;
        writeln!(out, "Fields set to their limits, blocks torn or gone: {cases}, of {kinds} kinds of blocks")?;
        match self.images {
            Some(Images { count, harmful, .. }) => writeln!(out, "Hostile images: {count}, harmful {harmful}")?,
            None => writeln!(out, "Hostile images: not part of this run")?,
        }
        let known = myriad_check::KINDS.iter().filter(|kind| kind.can_repair).count();
        let all = myriad_check::KINDS.len();
        write!(out, "Kinds of damage that check tells apart: {all}; that it knows how to repair: {known}")?;
        match self.images {
            Some(Images { kinds_repaired, .. }) => writeln!(out, "; repaired in these images: {kinds_repaired}")?,
            None => writeln!(out)?,
        }
        let images = self.images.map_or(0.0, |images| images.cpu_seconds);
        write!(out, "Processor time: {:.0} s", self.cpu_seconds + images)?;
        if images > 0.0 {
            write!(out, ", {images:.0} s of it for hostile images")?;
        }
        writeln!(out, "{}", if self.stopped { ", stopped before the end" } else { "" })?;
        if !self.left_out.is_empty() {
            writeln!(
                out,
                "Not of this run: {}",
                self.left_out.iter().map(|part| part.name()).collect::<Vec<_>>().join(", ")
            )?;
        }
        writeln!(out, "Violations: {}", self.violations.len())?;
        self.violations.iter().try_for_each(|violation| writeln!(out, "\n{violation}"))?;
        f.write_str(&out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the images took was left out, though the report had their number.
    #[test]
    fn processor_time_is_that_of_all() {
        let mut report = Report { cpu_seconds: 30.0, ..Report::default() };
        assert!(report.to_string().contains("\nProcessor time: 30 s\n"));
        report.include(r#"{"images": 7, "failures": 0, "kinds_repaired": 3, "cpu_seconds": 12.25}"#).unwrap();
        let shown = report.to_string();
        assert!(shown.contains("\nProcessor time: 42 s, 12 s of it for hostile images\n"), "{shown}");
        assert!(shown.contains("\nHostile images: 7, harmful 0\n"), "{shown}");
        assert!(shown.contains("; repaired in these images: 3\n"), "{shown}");
        assert!(
            report.include(r#"{"images": 7, "failures": 0, "kinds_repaired": 3}"#).unwrap_err().contains("cpu_seconds")
        );
    }
}
