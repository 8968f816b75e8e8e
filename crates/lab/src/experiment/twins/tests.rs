//! The statistics on made-up rounds whose truth is known, by seed.

use super::*;
use crate::workloads::random::Random;

/// Rounds with so much noise in each run, and what a clock has beside: rounds that are slower as a whole, and now and then a run that
/// something else disturbed. `planted` is a ratio.
fn rounds(count: usize, noise: f64, planted: f64, random: &mut Random) -> Vec<Round> {
    (0..count)
        .map(|_| {
            let whole = (0.2 * random.normal()).exp();
            let mut run = || {
                let disturbed = if random.below(50) == 0 { 1.0 + random.unit() } else { 1.0 };
                whole * disturbed * (noise * random.normal()).exp()
            };
            let (first, second, alone) = (run(), run(), run());
            Round { first, second, slowed: Some((alone * planted, alone * (planted - 1.0))) }
        })
        .collect()
}

/// Of so many trials the share that is called different, and the share of intervals of A' over A that leave out 1.
fn called(trials: usize, count: usize, noise: f64, planted: f64, seed: u64) -> (f64, f64) {
    let mut random = Random::new(seed);
    let (mut differ, mut apart) = (0, 0);
    for _ in 0..trials {
        let comparison = Comparison::of(&rounds(count, noise, planted, &mut random)).unwrap();
        differ += usize::from(comparison.slowed.unwrap().differs);
        apart += usize::from(comparison.same.low > 1.0 || comparison.same.high < 1.0);
    }
    (differ as f64 / trials as f64, apart as f64 / trials as f64)
}

/// As docs/lab.md says: fewer than 1 in 100 rows, where the interval alone would call some 5.
#[test]
fn a_against_a_is_silent() {
    for (count, noise) in [(6, 0.02), (20, 0.05)] {
        let (differ, apart) = called(1_000, count, noise, 1.0, 17);
        assert!(differ < 0.01, "{differ} of rows of {count} rounds differ, seed 17");
        assert!((0.03..0.08).contains(&apart), "{apart} of intervals of {count} rounds leave out 1, seed 17");
    }
}

/// With as many rounds as are called for, and not with a quarter of them.
#[test]
fn a_slowdown_of_5_percent_is_found_four_times_in_five() {
    for noise in [0.02, 0.03, 0.05] {
        let count = usize::try_from(rounds_needed(noise, 5.0)).unwrap();
        let (found, _) = called(200, count, noise, 1.05, 23);
        assert!((0.75..0.95).contains(&found), "{found} found in {count} rounds with noise {noise}, seed 23");
    }
    let few = usize::try_from(rounds_needed(0.05, 5.0)).unwrap() / 4;
    let (found, _) = called(200, few, 0.05, 1.05, 23);
    assert!(found < 0.5, "{found} found in {few} rounds, seed 23");
}

/// What docs/lab.md has in its table.
#[test]
fn rounds_for_5_percent() {
    assert_eq!([0.005, 0.01, 0.02, 0.03, 0.05, 0.1].map(|noise| rounds_needed(noise, 5.0)), [6, 6, 8, 16, 45, 178]);
}

#[test]
fn the_noise_of_a_run_is_seen_in_the_interval() {
    let mut random = Random::new(4);
    for noise in [0.01, 0.04] {
        let mean = (0..100).map(|_| Comparison::of(&rounds(20, noise, 1.0, &mut random)).unwrap().noise()).sum::<f64>();
        assert!((0.8..1.25).contains(&(mean / 100.0 / noise)), "{mean} for {noise}");
    }
}

/// Both are needed: the interval that leaves out 1, and the ratio beyond the floor.
#[test]
fn what_differs_less_than_a_and_a_does_not_differ() {
    let round = |second, slowed| Round { first: 1.0, second, slowed: Some((slowed, 0.0)) };
    let differs =
        |second: f64, slowed: f64| Comparison::of(&[round(second, slowed); 6]).unwrap().slowed.unwrap().differs;
    assert!(differs(1.0, 1.05) && differs(1.0, 0.95));
    assert!(!differs(1.0, 1.0));
    assert!(!differs(1.04, 1.03) && !differs(0.96, 0.95), "the interval leaves out 1, but A and A' lie farther apart");
    let wide = [0.9, 1.2, 0.95, 1.3, 1.1, 1.0].map(|slowed| round(1.0, slowed));
    assert!(!Comparison::of(&wide).unwrap().slowed.unwrap().differs, "beyond the floor, but the interval holds 1");
    assert_eq!(Comparison::of(&[round(1.0, 1.0); 5]), None);
    let only_twins = Comparison::of(&[Round { slowed: None, ..round(1.25, 1.0) }; 6]).unwrap();
    assert_eq!((only_twins.floor(), only_twins.slowed), (1.25, None));
    let other_way = Comparison::of(&[round(0.8, 1.0); 6]).unwrap();
    assert_eq!(other_way.floor(), 1.25);
}
