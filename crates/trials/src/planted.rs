//! Each planted bug in turn, and which part of the machinery finds it.

use crate::crash::campaign::Campaign;
use crate::crash::classes::{Amount, Class, RunId, What, runs};
use crate::crash::known::{Counts, Known};
use crate::fault::campaign::{self, inject};
use crate::paused::{self, hold_everywhere};
use crate::replay;
use crate::schedules::meet_all;
use crate::table::Row;
use myriad_engine::Order;
use myriad_engine::planted::{Bug, plant};
use myriad_format::choices::{MYRIAD, PROFILES};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// The volumes that a bug is in: those that the default chooses, or those of order `softdep` or `sync`.
fn row(bug: Bug) -> Row {
    let ffs = PROFILES.iter().find(|profile| profile.name == "ffs").expect("a profile of the table");
    match bug.name().split_once('-') {
        Some(("soft", _)) => Row { choices: ffs.choices, order: Order::Soft, fragments: 1 },
        Some(("sync", _)) => Row { choices: ffs.choices, order: Order::Sync, fragments: 1 },
        _ => Row { choices: MYRIAD.choices, order: Order::Log, fragments: 1 },
    }
}

/// Who found a bug, and what it said.
pub struct Finding {
    pub bug: Bug,
    pub finder: &'static str,
    pub message: String,
    /// The line in the message, followed, leads to the same failure.
    pub replays: bool,
}

/// Looks at volumes of a row, and says what it found.
type Look = fn(Row) -> Vec<String>;

/// Those who look, in this order: the cheapest first.
const FINDERS: [(&str, Look); 9] = [
    ("sequences of one operation", |row| explore(runs(row, Class::One, Amount::Short))),
    ("threads that meet", |row| meet(row, 1..25)),
    ("faults", |row| inject(row, &campaign::Counts::default(), &[1, 2], 2, || false)),
    ("sequences of two operations", |row| explore(runs(row, Class::Two, Amount::Short))),
    ("more faults", |row| inject(row, &campaign::Counts::default(), &[3, 4, 5, 6, 7, 8], 2, || false)),
    ("random runs", |row| explore(seeds(row, Class::Random, 60))),
    ("a checkpoint held", |row| {
        let held = |seed| hold_everywhere(row, seed, &Known::default(), &Counts::default()).err();
        (1..=3).filter(|_| paused::holds(&row)).find_map(held).into_iter().collect()
    }),
    ("more threads that meet", |row| meet(row, 25..121)),
    ("an old, almost full volume", |row| explore(seeds(row, Class::Aged, 8))),
];

fn meet(row: Row, seeds: Range<u64>) -> Vec<String> {
    meet_all(row, seeds, 2, &AtomicU64::new(0), || false).into_iter().collect()
}

fn seeds(row: Row, class: Class, count: u64) -> Vec<RunId> {
    let long = runs(row, class, Amount::Long).into_iter();
    let first = long.filter(|run| matches!(run.what, What::Seed(seed) if seed <= count));
    first.map(|run| RunId { amount: Amount::Short, ..run }).collect()
}

fn explore(runs: Vec<RunId>) -> Vec<String> {
    // One failure is enough, and need not be small.
    let mut campaign = Campaign::default();
    (campaign.failures_max, campaign.shrink_runs) = (1, 0);
    campaign.run(&runs, 2, || false, |_| {})
}

fn replays(row: Row, message: &str) -> bool {
    let first = |message: &str| message.lines().next().map(str::to_owned);
    let name = message.lines().find_map(|line| line.strip_prefix(&row.replay_line("")));
    let failures = name.and_then(|name| replay::replay(row, name)).unwrap_or_default();
    failures.iter().any(|failure| first(failure) == first(message))
}

/// Plants the bug and asks one after the other until somebody finds it.
pub fn find(bug: Bug) -> Option<Finding> {
    plant(Some(bug));
    let found = FINDERS.iter().find_map(|(finder, look)| {
        let message = look(row(bug)).into_iter().next()?;
        let replays = replays(row(bug), &message);
        Some(Finding { bug, finder, message, replays })
    });
    plant(None);
    found
}
