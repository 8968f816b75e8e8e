//! Medians and intervals: pure functions.

use crate::workloads::random::Random;
use serde::Serialize;

/// Of fewer rounds even the whole range of their ratios is no 95% interval.
pub const ROUNDS_LEAST: u32 = 6;

/// What the ends of an estimate of so many rounds are.
pub fn ends(rounds: usize) -> &'static str {
    if rounds < ROUNDS_LEAST as usize { "least to most" } else { "95%" }
}

/// An estimate with a 95% interval, or where the rounds are too few for one, with the least and the most of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Median; the mean of the middle two for an even count. `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Quantile by linear interpolation between order statistics (`fraction` 0 is the least, 1 the greatest).
pub fn quantile(values: &[f64], fraction: f64) -> Option<f64> {
    let sorted = sorted(values);
    let last = sorted.len().checked_sub(1)?;
    let position = fraction.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    Some(sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64))
}

/// Resamples behind a bootstrap interval: its ends move by well under 1% between seeds.
const RESAMPLES: usize = 4000;

/// How many times faster `ours` is than the best of `rivals`: ratio of medians, 95% percentile bootstrap. Of fewer than [`ROUNDS_LEAST`]
/// rounds the ends are the least and the greatest ratio of a round.
///
/// `ours[i]` and every `rivals[r][i]` come from round i. Whole rounds are drawn, so what disturbed a round disturbs all its
/// targets alike, and the best rival is chosen anew in each resample, so that its choice is part of the interval.
/// `None` without values, or when the rounds do not line up.
pub fn speedup(rivals: &[&[f64]], ours: &[f64], seed: u64) -> Option<Estimate> {
    let rounds = ours.len();
    if rounds == 0 || rivals.is_empty() || rivals.iter().any(|rival| rival.len() != rounds) {
        return None;
    }
    let ratio = |pick: &[usize]| {
        let median_of = |values: &[f64]| {
            let drawn: Vec<f64> = pick.iter().map(|&round| values[round]).collect();
            median(&drawn).expect("at least one round")
        };
        let best = rivals.iter().map(|rival| median_of(rival)).fold(f64::INFINITY, f64::min);
        best / median_of(ours)
    };
    let all: Vec<usize> = (0..rounds).collect();
    if rounds < ROUNDS_LEAST as usize {
        let each: Vec<f64> = all.iter().map(|&round| ratio(&[round])).collect();
        return Some(Estimate { value: ratio(&all), low: quantile(&each, 0.0)?, high: quantile(&each, 1.0)? });
    }
    let mut random = Random::new(seed);
    let resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let pick: Vec<usize> = (0..rounds).map(|_| random.below(rounds as u64) as usize).collect();
            ratio(&pick)
        })
        .collect();
    Some(Estimate {
        value: ratio(&all),
        low: quantile(&resampled, 0.025).expect("resamples"),
        high: quantile(&resampled, 0.975).expect("resamples"),
    })
}

/// Median with its 95% percentile bootstrap: `values[i]` comes from round i, and whole rounds are drawn. `None` without values.
///
/// The analysis has the same function (`analysis/myriad_lab/twins.py`) and gives the same digits.
pub fn median_by_rounds(values: &[f64], seed: u64) -> Option<Estimate> {
    let sorted = sorted(values);
    let rounds = sorted.len();
    let value = median(&sorted)?;
    let mut random = Random::new(seed);
    let mut pick = vec![0; rounds];
    let resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            pick.fill_with(|| random.below(rounds as u64) as usize);
            // Ranks are in the order of their values.
            pick.sort_unstable();
            (sorted[pick[(rounds - 1) / 2]] + sorted[pick[rounds / 2]]) / 2.0
        })
        .collect();
    Some(Estimate { value, low: quantile(&resampled, 0.025)?, high: quantile(&resampled, 0.975)? })
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn quantiles() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 0.25), Some(2.0));
        assert_eq!(quantile(&values, 0.9), Some(4.6));
        assert_eq!(quantile(&values, 1.0), Some(5.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn speedup_takes_the_best_rival() {
        let estimate = speedup(&[&[40.0; 5], &[20.0; 5]], &[2.0; 5], 1).unwrap();
        assert_eq!(estimate, Estimate { value: 10.0, low: 10.0, high: 10.0 });
    }

    #[test]
    fn speedup_interval_holds_the_value_and_is_reproducible() {
        let rival = [20.0, 22.0, 19.0, 30.0, 21.0, 21.0];
        let ours = [2.0, 2.1, 1.9, 2.2, 2.0, 2.0];
        let estimate = speedup(&[&rival], &ours, 7).unwrap();
        assert_eq!(estimate.value, 10.5);
        assert!(estimate.low <= estimate.value && estimate.value <= estimate.high);
        assert!(estimate.low >= 19.0 / 2.2 && estimate.high <= 30.0 / 1.9);
        assert_eq!(speedup(&[&rival], &ours, 7), Some(estimate));
    }

    /// A disturbance that slows a whole round slows all its targets: drawn by rounds, the ratio does not move.
    #[test]
    fn speedup_is_paired_by_round() {
        for rounds in [3, 9] {
            let slow = |time: f64| (0..rounds).map(|round| if round % 3 == 2 { 10.0 * time } else { time }).collect();
            let (rival, ours): (Vec<f64>, Vec<f64>) = (slow(10.0), slow(1.0));
            let estimate = speedup(&[&rival], &ours, 3).unwrap();
            assert_eq!((estimate.low, estimate.high), (10.0, 10.0));
        }
    }

    /// Of five rounds the widest that a bootstrap can give holds the median 15 times in 16.
    #[test]
    fn few_rounds_have_a_range_and_no_interval() {
        let (near, far) = ([20.0, 30.0, 10.0, 40.0, 20.0], [30.0, 20.0, 20.0, 30.0, 30.0]);
        let estimate = speedup(&[&near, &far], &[2.0; 5], 1).unwrap();
        assert_eq!(estimate, Estimate { value: 10.0, low: 5.0, high: 15.0 });
        assert_eq!((ends(5), ends(6)), ("least to most", "95%"));
    }

    /// The analysis has the same test with the same digits.
    #[test]
    fn medians_with_their_intervals() {
        assert_eq!(median_by_rounds(&[], 1), None);
        assert_eq!(median_by_rounds(&[2.0; 3], 1), Some(Estimate { value: 2.0, low: 2.0, high: 2.0 }));
        let values: [f64; 40] = std::array::from_fn(|value| (value * value) as f64);
        let estimate = median_by_rounds(&values, 1).unwrap();
        // The ends differ between seeds here.
        assert_eq!(estimate, Estimate { value: 380.5, low: 195.712_500_000_000_1, high: 676.0 });
        let mut turned = values;
        turned.rotate_left(3);
        assert_eq!(median_by_rounds(&turned, 1), Some(estimate), "the order of rounds says nothing");
    }

    #[test]
    fn speedup_refuses_rounds_that_do_not_line_up() {
        assert_eq!(speedup(&[&[1.0, 2.0]], &[1.0], 1), None);
        assert_eq!(speedup(&[], &[1.0], 1), None);
        assert_eq!(speedup(&[&[]], &[], 1), None);
    }
}
