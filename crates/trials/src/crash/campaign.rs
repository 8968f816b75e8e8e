//! Many runs on several threads, and what they found.

use super::classes::{Class, RunId, depth, steps, with_base};
use super::explore::Explorer;
use super::known::{Counts, Known};
use crate::verdict::{catch, quietly};
use myriad_sim::op::Step;
use myriad_sim::shrink;
use myriad_sim::threads::{FAILURES_MAX, try_all};

/// What all runs share.
pub struct Campaign {
    /// Failures after which it stops.
    pub failures_max: usize,
    /// Runs that shrinking one failure may take.
    pub shrink_runs: usize,
    judged: Known,
    contents: Known,
    counts: [Counts; Class::ALL.len()],
}

impl Default for Campaign {
    fn default() -> Self {
        let (judged, contents) = (Known::default(), Known::default());
        Self { failures_max: FAILURES_MAX, shrink_runs: 120, judged, contents, counts: Default::default() }
    }
}

impl Campaign {
    pub fn counts(&self, class: Class) -> &Counts {
        &self.counts[class as usize]
    }

    /// Distinct states looked at, over all classes.
    pub fn distinct(&self) -> u64 {
        Class::ALL.iter().map(|class| self.counts(*class).distinct()).sum()
    }

    /// Does the runs on so many threads, until `is_over`; failures come shrunk, with the line that replays them. `progress` is told where
    /// a class begins.
    pub fn run(
        &self,
        runs: &[RunId],
        threads: usize,
        is_over: impl Fn() -> bool + Sync,
        progress: impl Fn(Class) + Sync,
    ) -> Vec<String> {
        try_all(runs, threads, self.failures_max, is_over, |number, run| {
            if number == 0 || runs[number - 1].class != run.class {
                progress(run.class);
            }
            self.attempt(run)
        })
    }

    fn attempt(&self, run: &RunId) -> Result<(), String> {
        let all = with_base(run, |base| Ok(steps(run, base)))?;
        let explore = |campaign: &Self, steps: &[Step]| {
            let explorer = Explorer {
                depth: depth(run),
                judged: &campaign.judged,
                contents: &campaign.contents,
                counts: campaign.counts(run.class),
            };
            catch(|| with_base(run, |base| explorer.explore(base, steps, run.seed())))
        };
        let Err(message) = explore(self, &all) else { return Ok(()) };
        let again = |steps: &[Step]| explore(&Self::default(), steps);
        let small = quietly(|| shrink::shrink(&all, self.shrink_runs, |steps| again(steps).is_err()));
        let last = quietly(|| again(&small)).err().unwrap_or_else(|| "does not fail by itself".into());
        Err(format!(
            "{message}\n{}\nshrunk to {} steps: {last}\n{}",
            run.row.replay_line(&run.name()),
            small.len(),
            shrink::show(&small)
        ))
    }
}
