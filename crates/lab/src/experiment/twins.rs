//! A target against itself: how far apart two measurements of the same lie, and whether a slowdown that was planted is found.
//!
//! In each round a target runs as A and as A', and with a planted slowdown a third time, side by side and in random order. So
//! what disturbs a round disturbs them alike, and what is compared are ratios within a round. The estimate is the median of the rounds'
//! ratios; its 95% interval draws whole rounds.
//!
//! The noise floor of a row is the farther end of the interval of A' over A, up or down. What was slowed is compared with the
//! geometric mean of A and A' of its round. It differs if its interval leaves out 1 *and* the ratio lies beyond the row's floor. The
//! interval alone calls 5 in 100 rows different in which nothing is; with the floor it is fewer than 1 in 100, so that of a suite of 30
//! rows one is false in one of three experiments at most. The tests of this file measure that, and the rounds that 5% need.
//!
//! The analysis judges by the same rules (`analysis/myriad_lab/twins.py`).

use super::results::Line;
use super::rows::{self, RowKey};
use crate::report;
use crate::slowdown::Slowed;
use crate::stats::{self, Estimate, ROUNDS_LEAST};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;

/// Which of those that are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Twin {
    #[serde(rename = "a")]
    First,
    #[serde(rename = "b")]
    Second,
    #[serde(rename = "slowed")]
    Slowed,
}

impl Twin {
    /// Those of a run.
    pub fn of(twin: bool, slowed: bool) -> Vec<Option<Self>> {
        match (twin, slowed) {
            (false, _) => vec![None],
            (true, false) => vec![Some(Self::First), Some(Self::Second)],
            (true, true) => vec![Some(Self::First), Some(Self::Second), Some(Self::Slowed)],
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            Self::First => "A",
            Self::Second => "A'",
            Self::Slowed => "A slowed",
        }
    }
}

/// The same resamples every time, and in the analysis.
const SEED: u64 = 1;

/// What the statistics say of one row on one target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    pub rounds: usize,
    /// A' over A.
    pub same: Estimate,
    pub slowed: Option<Found>,
}

/// Of the one that was slowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Its time over that of A and A'.
    pub ratio: Estimate,
    /// What the driver added to the phase, as a ratio; 1: the phase lacks the operation.
    pub planted: f64,
    pub differs: bool,
}

/// One round: A, A', and what was slowed with what that added to it, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub first: f64,
    pub second: f64,
    pub slowed: Option<(f64, f64)>,
}

impl Comparison {
    /// `None`: too few rounds to say anything.
    pub fn of(rounds: &[Round]) -> Option<Self> {
        if rounds.len() < ROUNDS_LEAST as usize {
            return None;
        }
        let median = |values: Vec<f64>| stats::median_by_rounds(&values, SEED);
        let same = median(rounds.iter().map(|round| round.second / round.first).collect())?;
        let slowed: Option<Vec<(f64, f64)>> = rounds
            .iter()
            .map(|round| {
                let (slowed, added) = round.slowed?;
                Some((slowed / (round.first * round.second).sqrt(), slowed / (slowed - added)))
            })
            .collect();
        let slowed = match slowed {
            Some(pairs) => {
                let (ratios, planted): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
                let ratio = median(ratios)?;
                let excludes = ratio.low > 1.0 || ratio.high < 1.0;
                let differs = excludes && ratio.value.ln().abs() > floor(same).ln();
                Some(Found { ratio, planted: stats::median(&planted)?, differs })
            }
            None => None,
        };
        Some(Self { rounds: rounds.len(), same, slowed })
    }

    /// As a ratio, at least 1.
    pub fn floor(&self) -> f64 {
        floor(self.same)
    }

    /// Standard deviation of the logarithm of one run, from how long the interval is.
    pub fn noise(&self) -> f64 {
        let half = (self.same.high / self.same.low).ln() / 2.0;
        half * (self.rounds as f64).sqrt() / (NORMAL_95 * MEDIAN_SPREAD * std::f64::consts::SQRT_2)
    }
}

/// The farther end, up or down.
fn floor(same: Estimate) -> f64 {
    same.high.max(1.0 / same.low)
}

const NORMAL_95: f64 = 1.96;
/// Of normal values: standard deviation of a median over that of a mean.
const MEDIAN_SPREAD: f64 = 1.253;

/// Rounds that find a difference of so many percent four times in five, where a run has this noise.
pub fn rounds_needed(noise: f64, percent: f64) -> u64 {
    let rounds = (ROUNDS_SPREAD * noise / (percent / 100.0).ln_1p()).powi(2).ceil();
    (rounds as u64).max(u64::from(ROUNDS_LEAST))
}

/// Found by trying: with it the tests below find four in five, for noise from 1 to 5%.
const ROUNDS_SPREAD: f64 = 6.5;

/// The rows of these samples that have twins, in the order of their table; a row without any seconds (a modelled device that was asked for
/// nothing) is not among them.
fn compared(lines: &[Line]) -> Vec<(RowKey, &str, Option<Comparison>)> {
    type Seconds = BTreeMap<Twin, (f64, f64)>;
    let mut groups = BTreeMap::<(RowKey, &str), BTreeMap<u32, Seconds>>::new();
    for line in lines {
        let (Some(twin), Some(seconds)) = (line.twin, line.seconds.filter(|&seconds| seconds > 0.0)) else { continue };
        let added = line.slowed.as_ref().map_or(0.0, |Slowed { added_ns, .. }| *added_ns as f64 / 1e9);
        let rounds = groups.entry((RowKey::of(line), &line.target)).or_default();
        rounds.entry(line.run).or_default().insert(twin, (seconds, added));
    }
    let mut rows = Vec::new();
    for key in rows::in_order(lines) {
        let of_key = groups.iter().filter(|((row, _), _)| *row == key);
        for ((_, target), rounds) in of_key {
            let round = |of: &Seconds| {
                let (first, second) = (of.get(&Twin::First)?.0, of.get(&Twin::Second)?.0);
                Some(Round { first, second, slowed: of.get(&Twin::Slowed).copied() })
            };
            let whole: Vec<Round> = rounds.values().filter_map(round).collect();
            rows.push((key.clone(), *target, Comparison::of(&whole)));
        }
    }
    rows
}

/// A table of the rows with twins, and what it shows. Nothing if there are none.
pub fn tell(lines: &[Line], out: &mut dyn Write) -> Result<()> {
    let rows = compared(lines);
    if rows.is_empty() {
        return Ok(());
    }
    let slowdown = lines.iter().find_map(|line| line.slowed.as_ref().filter(|slowed| slowed.percent > 0.0));
    let keys: Vec<RowKey> = rows.iter().map(|(key, ..)| key.clone()).collect();
    let mut header = rows::header(&keys);
    header.extend(["target", "rounds", "A'/A", "95%", "floor", "5% needs"]);
    if slowdown.is_some() {
        header.extend(["slowed/A", "95%", "planted", "verdict"]);
    }
    let mut table = report::table(&header);
    for (key, target, comparison) in &rows {
        let mut cells = key.cells(&keys);
        cells.push((*target).to_owned());
        match comparison {
            Some(comparison) => {
                cells.push(comparison.rounds.to_string());
                cells.extend(written(comparison.same));
                cells.push(percent(comparison.floor()));
                cells.push(rounds_needed(comparison.noise(), 5.0).to_string());
                if let Some(found) = comparison.slowed {
                    cells.extend(written(found.ratio));
                    cells.push(percent(found.planted));
                    cells.push(if found.differs { "differs" } else { "no difference seen" }.to_owned());
                }
            }
            None => cells.push(format!("fewer than {ROUNDS_LEAST}")),
        }
        table.add_row(cells);
    }
    writeln!(out, "\nA against A\n{}", table.trim_fmt())?;
    let known: Vec<&Comparison> = rows.iter().filter_map(|(_, _, comparison)| comparison.as_ref()).collect();
    let apart = known.iter().filter(|one| one.same.low > 1.0 || one.same.high < 1.0).count();
    writeln!(out, "{apart} of {} intervals of A'/A leave out 1; by chance 5 in 100 do", known.len())?;
    if let Some(slowdown) = slowdown {
        let found = known.iter().filter_map(|one| one.slowed.as_ref());
        let (with, without): (Vec<&Found>, Vec<&Found>) = found.partition(|found| found.planted > 1.0);
        let differ = |rows: &[&Found]| rows.iter().filter(|found| found.differs).count();
        writeln!(
            out,
            "{}:{}% differs in {} of {} rows that have the operation, and in {} of {} others; by chance fewer than 1 in 100 do",
            slowdown.operation,
            slowdown.percent,
            differ(&with),
            with.len(),
            differ(&without),
            without.len()
        )?;
    }
    Ok(())
}

fn written(estimate: Estimate) -> [String; 2] {
    [format!("{:.3}", estimate.value), format!("{:.3}-{:.3}", estimate.low, estimate.high)]
}

/// A ratio's distance from 1.
fn percent(ratio: f64) -> String {
    format!("{:.1}%", 100.0 * (ratio - 1.0))
}

#[cfg(test)]
mod tests;
