//! Draws mutants as the test does, from a base and a seed; opens, reads, changes, checks and repairs what comes out.

#![no_main]

use libfuzzer_sys::fuzz_target;
use myriad_sim::rng::Rng;
use myriad_trials::hostile::bases::{self, Base};
use myriad_trials::hostile::exercise::{Plan, examine};
use myriad_trials::hostile::mutate::mutate;
use myriad_trials::table;
use std::sync::LazyLock;

/// Volumes of every set of choices that mkfs makes.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let sets = table::sets(&table::rows());
    sets.iter().flat_map(|set| bases::all(set).expect("sound volumes to start from")).collect()
});

fuzz_target!(|input: (u8, u64, u8)| {
    let (base, seed, plan) = input;
    let base = &BASES[usize::from(base) % BASES.len()];
    let mut rng = Rng::new(seed);
    let mutant = mutate(base, &mut rng);
    let plan = Plan { change: plan & 1 != 0, check: plan & 2 != 0, repair: plan & 4 != 0 };
    if let Err(complaint) = examine(&mutant.image, plan, &mut rng) {
        panic!("{complaint}: {:?}", mutant.story);
    }
});
