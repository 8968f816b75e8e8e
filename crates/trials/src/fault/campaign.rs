//! Every fault of many runs.

use super::run::{Fault, OPS, Outcome, Seen, run};
use crate::crash::base::Base;
use crate::crash::classes::{Amount, Shape, small};
use crate::table::{Promise, Row};
use crate::verdict::{catch, quietly};
use myriad_device::{FaultKind, FaultOp, FaultSpan};
use myriad_sim::generate::{Generator, Profile};
use myriad_sim::model::Model;
use myriad_sim::op::Step;
use myriad_sim::threads::{FAILURES_MAX, try_all};
use myriad_sim::{sequences, shrink};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const SHRINK_RUNS: usize = 120;

/// The kinds of fault, with the names the report has for them. None of a device: what is allocated is refused.
pub const KINDS: [(&str, Option<FaultKind>, FaultSpan); 10] = [
    ("EIO once", Some(FaultKind::Fail(EIO)), FaultSpan::Once),
    ("EIO from then on", Some(FaultKind::Fail(EIO)), FaultSpan::Forever),
    ("ENOSPC", Some(FaultKind::Fail(ENOSPC)), FaultSpan::Once),
    ("short", Some(FaultKind::Short), FaultSpan::Once),
    ("corrupted", Some(FaultKind::Corrupted { sector: 0 }), FaultSpan::Once),
    ("misdirected", Some(FaultKind::Misdirected { bytes: 0 }), FaultSpan::Once),
    ("lost", Some(FaultKind::Lost), FaultSpan::Once),
    ("panic", Some(FaultKind::Panic), FaultSpan::Once),
    ("no space once", None, FaultSpan::Once),
    ("no space from then on", None, FaultSpan::Forever),
];

/// Faults by kind and by what came of them.
#[derive(Default)]
pub struct Counts {
    counts: [[AtomicU64; Outcome::ALL.len()]; KINDS.len()],
}

impl Counts {
    pub fn of(&self, kind: usize, outcome: Outcome) -> u64 {
        self.counts[kind][outcome as usize].load(Ordering::Relaxed)
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().flatten().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// Runs, by seed: the sequences' tree, remounts among the operations so that there is something to read.
pub fn seeds(amount: Amount) -> Vec<u64> {
    match amount {
        // With checksums and closed, and not closed.
        Amount::Brief => vec![1, 4],
        Amount::Short => (1..=10).collect(),
        Amount::Long => (1..=220).collect(),
    }
}

/// Where the log of a run's volume lies, and whether the volume was closed before. Otherwise its log has to be replayed, if it has one, so
/// that recovery meets the faults, too.
fn volume(row: Row, seed: u64) -> (Shape, bool) {
    // The shape comes from the last two bits of the seed.
    (Shape::of_seed(seed), seed / 4 % 2 == 0 || Promise::of(row.order) != Promise::Prefix)
}

fn steps(seed: u64, model: &Model) -> Vec<Step> {
    let profile = Profile { sync_percent: 12, burst_every: 60, burst_max: 30, remount_every: 20, ..Profile::crash() };
    let (mut generator, mut model) = (Generator::new(seed, profile), model.clone());
    let next = |_| {
        let step = generator.next(&model);
        let _ = model.apply(&step);
        step
    };
    (0..70).map(next).collect()
}

/// All faults of a run that asks for these.
fn faults(seen: Seen) -> Vec<(usize, Fault)> {
    let mut faults = Vec::new();
    for (number, (_, kind, span)) in KINDS.into_iter().enumerate() {
        let Some(kind) = kind else {
            faults.extend((1..=seen.allocations).map(|nth| (number, Fault::Space { nth, span })));
            continue;
        };
        for (on_log, seen) in [false, true].into_iter().zip(seen.requests) {
            for (op, seen) in OPS.into_iter().zip(seen) {
                // A flush has no bytes: it fails or is lost.
                let is_odd =
                    op == FaultOp::Flush && !matches!(kind, FaultKind::Fail(EIO) | FaultKind::Lost | FaultKind::Panic);
                // Nobody runs out of space by reading.
                if is_odd || op == FaultOp::Read && kind == FaultKind::Fail(ENOSPC) {
                    continue;
                }
                // Each in another place.
                let kind_of = |nth| match kind {
                    FaultKind::Corrupted { .. } => FaultKind::Corrupted { sector: nth },
                    FaultKind::Misdirected { .. } => FaultKind::Misdirected { bytes: 1024 * (1 + nth % 61) },
                    kind => kind,
                };
                // A device that leaves out one flush makes up for it at the next.
                let span = if op == FaultOp::Flush && kind == FaultKind::Lost { FaultSpan::Forever } else { span };
                faults.extend((1..=seen).map(|nth| {
                    let kind = kind_of(nth);
                    (number, Fault::Request { on_log, op, nth, span, kind })
                }));
            }
        }
    }
    faults
}

/// Makes every fault of the runs of `seeds` on volumes of this row, on so many threads, until `is_over`. Failures come shrunk.
pub fn inject(
    row: Row,
    counts: &Counts,
    seeds: &[u64],
    threads: usize,
    is_over: impl Fn() -> bool + Sync,
) -> Vec<String> {
    try_all(seeds, threads, FAILURES_MAX, &is_over, |_, &seed| inject_one(row, counts, seed, &is_over))
}

fn inject_one(row: Row, counts: &Counts, seed: u64, is_over: &impl Fn() -> bool) -> Result<(), String> {
    let replay = row.replay_line(&format!("fault/{seed}"));
    let (shape, is_closed) = volume(row, seed);
    let make = if is_closed { Base::new } else { Base::crashed };
    let base = make(small(row, shape), &sequences::prelude())?;
    let steps = steps(seed, &base.model);
    let (seen, _) = run(&base, &steps, None).map_err(|message| format!("without a fault: {message}\n{replay}"))?;
    for (number, fault) in faults(seen) {
        if is_over() {
            return Ok(());
        }
        let outcome = Cell::new(Outcome::Harmless);
        let go = |steps: &[Step]| catch(|| run(&base, steps, Some(fault)).map(|(_, came)| outcome.set(came)));
        let Err(message) = go(&steps) else {
            counts.counts[number][outcome.get() as usize].fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let small = quietly(|| shrink::shrink(&steps, SHRINK_RUNS, |steps| go(steps).is_err()));
        return Err(format!(
            "{fault:?}: {message}\n{replay}\nshrunk to {} steps: {}\n{}",
            small.len(),
            quietly(|| go(&small)).err().unwrap_or_default(),
            shrink::show(&small)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Each volume with checksums of data had a log to be replayed, and no misread data was ever looked at: a misread log may excuse it.
    #[test]
    fn volumes_of_all_shapes_are_closed_or_not() {
        let made: HashSet<_> = seeds(Amount::Short).into_iter().map(|seed| volume(Row::default(), seed)).collect();
        for shape in Shape::ALL {
            for is_closed in [false, true] {
                assert!(made.contains(&(shape, is_closed)), "{shape:?}, closed: {is_closed}");
            }
        }
        let brief: HashSet<_> = seeds(Amount::Brief).into_iter().map(|seed| volume(Row::default(), seed)).collect();
        assert!(brief.contains(&(Shape::Summed, true)) && brief.iter().any(|(_, is_closed)| !is_closed), "{brief:?}");
    }

    /// Nothing made an allocation fail in the middle of an operation: admission says no before.
    #[test]
    fn space_runs_out_at_every_allocation() {
        let counts = Counts::default();
        assert_eq!(inject(Row::default(), &counts, &[1], 1, || false), Vec::<String>::new());
        for (index, (name, kind, _)) in KINDS.iter().enumerate() {
            let told = counts.of(index, Outcome::Error);
            assert!(told > 10, "{name}: {told} told of");
            let others: u64 = Outcome::ALL.iter().map(|outcome| counts.of(index, *outcome)).sum::<u64>() - told;
            assert!(kind.is_some() || others < 10, "{name}: {others} not told of");
        }
    }
}
