//! The reliability report as `scripts/reliability --ci` makes it; `MYRIAD_LONG=1`: as with `--long`.

use myriad_format::choices::{Choices, PROFILES};
use myriad_sim::rng;
use myriad_trials::crash::classes::Amount;
use myriad_trials::report::{Part, Plan, Report};
use myriad_trials::table::{self, Promise};

#[test]
fn nothing_is_lost() {
    let (amount, states, faults) =
        if rng::is_long() { (Amount::Long, 1_000_000, 100_000) } else { (Amount::Short, 50_000, 5_000) };
    let mut rows = table::asked();
    if !rng::is_long() {
        // The default and what differs from it at one seam, and the profiles; without a log the default and FFS, where rounds must undo
        // something with fragments.
        let default = Choices::default().all();
        let ffs = PROFILES.iter().find(|profile| profile.name == "ffs").expect("a profile of the table").choices;
        rows.retain(|row| {
            let flips = row.choices.all().into_iter().filter(|choice| !default.contains(choice)).count();
            let is_profile = PROFILES.iter().any(|profile| profile.choices == row.choices);
            let keeps_names = Promise::of(row.order) == Promise::Prefix;
            let is_asked = row.is_default() || row.choices == ffs || keeps_names && (flips <= 1 || is_profile);
            is_asked && (row.fragments > 1) == (Promise::of(row.order) == Promise::Usable)
        });
    }
    let report = Report::make(&Plan {
        rows: &rows,
        amount,
        parts: &Part::ALL,
        threads: 2,
        is_over: &|_| false,
        progress: &|_| {},
    });
    println!("{report}");
    assert!(report.violations.is_empty(), "{} violations", report.violations.len());
    assert!(report.states() >= states, "{} states are fewer than {states}", report.states());
    assert!(report.faults() >= faults, "{} faults are fewer than {faults}", report.faults());
}
