//! Interleaving: every round runs every workload on every target once, and the order of targets turns from round to round,
//! so that drift of the machine meets them all alike.

use crate::interrupt;
use crate::provider::Provider;
use crate::runner::{self, RunOptions, Sample};
use crate::workloads::random::Random;
use crate::workloads::{Phase, Workload};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

/// A workload and the phases of it that run.
pub struct Selected {
    pub workload: Box<dyn Workload>,
    pub phases: Vec<Phase>,
}

/// Order of `count` targets in a round: a random one of the seed, turned by one place a round, so that with as many rounds
/// as targets each has had every place once.
pub fn order(count: usize, round: u32, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    Random::stream(seed, "order", 0).shuffle(&mut order);
    if count > 0 {
        order.rotate_left(round as usize % count);
    }
    order
}

/// Progress on standard error, if that is a terminal and nobody wants quiet: never redrawn by a thread of its own, which would take time from
/// what is measured.
pub fn progress(steps: u64, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("[{wide_bar}] {pos}/{len} {msg}, {eta} left");
    ProgressBar::new(steps).with_style(style.expect("the template is sound").progress_chars("=> "))
}

/// One round of the workloads; `done` gets the samples of each workload on each target.
pub fn round(
    providers: &mut [Box<dyn Provider>],
    workloads: &[Selected],
    options: RunOptions,
    round: u32,
    bar: &ProgressBar,
    done: &mut dyn FnMut(Vec<Sample>) -> Result<()>,
) -> Result<()> {
    for Selected { workload, phases } in workloads {
        for index in order(providers.len(), round, options.seed) {
            interrupt::check()?;
            let provider = &mut providers[index];
            let label = provider.label().to_owned();
            bar.set_message(format!("round {}: {} on {label}", round + 1, workload.name()));
            bar.tick();
            let target = provider.make().with_context(|| format!("making {label}"))?;
            let mut samples = Vec::new();
            runner::run(target.as_ref(), workload.as_ref(), phases, options, (&label, round), &mut |sample| {
                samples.push(sample);
                Ok(())
            })?;
            target.close().with_context(|| format!("closing {label}"))?;
            done(samples)?;
            bar.inc(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_every_place_once() {
        for place in 0..4 {
            let mut had: Vec<usize> = (0..4).map(|round| order(4, round, 11)[place]).collect();
            had.sort_unstable();
            assert_eq!(had, [0, 1, 2, 3]);
        }
        assert_eq!(order(4, 5, 11), order(4, 1, 11));
        assert!(order(0, 3, 1).is_empty());
    }
}
