//! Each planted bug in turn, and which part of the machinery finds it.

use crate::crash::campaign::Campaign;
use crate::crash::classes::{Amount, Class, RunId, What, runs};
use crate::crash::known::{Counts, Known};
use crate::fault::campaign::{self, inject};
use crate::paused::hold_everywhere;
use crate::replay;
use crate::schedules::meet_all;
use crate::table::Row;
use myriad_engine::Order;
use myriad_engine::planted::{Bug, plant};
use myriad_format::choices::MYRIAD;
use std::sync::atomic::AtomicU64;

/// Where the bugs are: in what the default chooses, for the most part.
const ROW: Row = Row { choices: MYRIAD.choices, order: Order::Log };

/// Who found a bug, and what it said.
pub struct Finding {
    pub bug: Bug,
    pub finder: &'static str,
    pub message: String,
    /// The line in the message, followed, leads to the same failure.
    pub replays: bool,
}

/// Looks, and says what it found.
type Look = fn() -> Vec<String>;

/// Those who look, in this order: the cheapest first.
const FINDERS: [(&str, Look); 7] = [
    ("sequences of one operation", || explore(runs(ROW, Class::One, Amount::Short))),
    ("faults", || inject(ROW, &campaign::Counts::default(), &[1, 2], 2, || false)),
    ("sequences of two operations", || explore(runs(ROW, Class::Two, Amount::Short))),
    ("random runs", || explore(seeds(Class::Random, 60))),
    ("a checkpoint held", || {
        let held = |seed| hold_everywhere(ROW, seed, &Known::default(), &Counts::default()).err();
        (1..=3).find_map(held).into_iter().collect()
    }),
    ("threads that meet", || meet_all(ROW, 1..121, 2, &AtomicU64::new(0), || false).into_iter().collect()),
    ("an old, almost full volume", || explore(seeds(Class::Aged, 8))),
];

fn seeds(class: Class, count: u64) -> Vec<RunId> {
    let long = runs(ROW, class, Amount::Long).into_iter();
    let first = long.filter(|run| matches!(run.what, What::Seed(seed) if seed <= count));
    first.map(|run| RunId { amount: Amount::Short, ..run }).collect()
}

fn explore(runs: Vec<RunId>) -> Vec<String> {
    // One failure is enough, and need not be small.
    let mut campaign = Campaign::default();
    (campaign.failures_max, campaign.shrink_runs) = (1, 0);
    campaign.run(&runs, 2, || false)
}

fn replays(message: &str) -> bool {
    let first = |message: &str| message.lines().next().map(str::to_owned);
    let name = message.lines().find_map(|line| line.strip_prefix(&replay::line(&ROW, "")));
    let failures = name.and_then(|name| replay::replay(ROW, name)).unwrap_or_default();
    failures.iter().any(|failure| first(failure) == first(message))
}

/// Plants the bug and asks one after the other until somebody finds it.
pub fn find(bug: Bug) -> Option<Finding> {
    plant(Some(bug));
    let found = FINDERS.iter().find_map(|(finder, look)| {
        let message = look().into_iter().next()?;
        let replays = replays(&message);
        Some(Finding { bug, finder, message, replays })
    });
    plant(None);
    found
}
