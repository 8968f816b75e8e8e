//! One of the two programs: its threads, and how it is told what to do.
//!
//! A line on its input begins each half of a round, and lines on its output answer: `work SEED COUNT` has both threads
//! do so many operations and tell their tallies; `check` has them look, with everybody at rest, at what is theirs.

use crate::contested::Contested;
use crate::owned::Owned;
use crate::shared::Shared;
use myriad_sim::rng::Rng;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::Path;

pub const THREADS: usize = 2;
/// What lines of a worker begin with, among those of the test harness.
pub const MARK: &str = "hammer: ";

pub type Outcome = Result<(), String>;

/// What was done, by name; the sums over all threads must be what is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<String, i64>);

impl Tally {
    pub fn add(&mut self, what: impl Into<String>, count: i64) {
        *self.0.entry(what.into()).or_default() += count;
    }

    pub fn get(&self, what: &str) -> i64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, &count)| self.add(what, count));
    }

    pub fn to_line(&self) -> String {
        self.0.iter().map(|(what, count)| format!("{what}={count}")).collect::<Vec<_>>().join(" ")
    }

    pub fn from_line(line: &str) -> Option<Self> {
        let pairs = line.split_whitespace().map(|pair| {
            let (what, count) = pair.split_once('=')?;
            Some((what.to_owned(), count.parse().ok()?))
        });
        pairs.collect::<Option<_>>().map(Self)
    }
}

/// One thread's work of a round.
struct Hand {
    rng: Rng,
    owned: Owned,
    contested: Contested,
    shared: Shared,
}

impl Hand {
    fn new(thread: usize, seed: u64) -> Result<Self, String> {
        let mut rng = Rng::new(seed ^ (thread as u64) << 56);
        Ok(Self {
            owned: Owned::new(thread, rng.next_u64()),
            contested: Contested::new(thread, rng.split())?,
            shared: Shared::new(thread, rng.split())?,
            rng,
        })
    }

    fn work(&mut self, count: u64) -> Result<Tally, String> {
        for _ in 0..count {
            match self.rng.below(100) {
                0..35 => self.owned.step()?,
                35..65 => self.contested.step()?,
                _ => self.shared.step()?,
            }
        }
        let mut tally = self.contested.tally.clone();
        tally.merge(&self.shared.tally);
        Ok(tally)
    }

    fn check(mut self) -> Outcome {
        self.shared.check()?;
        self.owned.finish()
    }
}

/// The life of a worker: its root directory becomes the shared one.
pub fn run(index: usize, directory: &Path) -> Outcome {
    let become_root = || -> rustix::io::Result<()> {
        rustix::process::chroot(directory)?;
        rustix::process::chdir("/")?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        Ok(())
    };
    become_root().map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut hands: Vec<Hand> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["work", seed, count] => {
                let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{line}: {error}"));
                let (seed, count) = (number(seed)?, number(count)?);
                let made = (0..THREADS).map(|thread| Hand::new(index * THREADS + thread, seed));
                made.collect::<Result<_, _>>().and_then(|made| {
                    hands = made;
                    let mut total = Tally::default();
                    on_threads(hands.iter_mut().collect(), |hand| hand.work(count))?
                        .iter()
                        .for_each(|t| total.merge(t));
                    Ok(total.to_line())
                })
            }
            ["check"] => on_threads(std::mem::take(&mut hands), Hand::check).map(|_| String::new()),
            _ => Err(format!("no such order: {line}")),
        };
        let said = match answer {
            Ok(said) => format!("{MARK}done {said}"),
            Err(error) => format!("{MARK}failed {}", error.replace('\n', " ")),
        };
        println!("{said}");
        std::io::stdout().flush().map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn on_threads<H: Send, T: Send>(hands: Vec<H>, work: impl Fn(H) -> Result<T, String> + Sync) -> Result<Vec<T>, String> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = hands.into_iter().map(|hand| scope.spawn(move || work(hand))).collect();
        let panicked = |_| Err("a thread panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}
