//! The reliability report as `scripts/reliability --ci` makes it; `MYRIAD_LONG=1`: as with `--long`.

use myriad_format::choices::PROFILES;
use myriad_sim::rng;
use myriad_trials::crash::classes::Amount;
use myriad_trials::report::{Plan, Report};
use myriad_trials::table::{self, Promise};

#[test]
fn nothing_is_lost() {
    let (amount, states, faults) =
        if rng::is_long() { (Amount::Long, 1_000_000, 100_000) } else { (Amount::Short, 50_000, 5_000) };
    let mut rows = table::asked();
    if !rng::is_long() {
        // Without a log the default and FFS; the other trials go through the rest.
        let ffs = PROFILES.iter().find(|profile| profile.name == "ffs").expect("a profile of the table").choices;
        rows.retain(|row| row.is_default() || row.choices == ffs || Promise::of(row.order) == Promise::Prefix);
    }
    let report = Report::make(&Plan { rows: &rows, amount, threads: 2, is_over: &|_| false, progress: &|_| {} });
    println!("{report}");
    assert!(report.violations.is_empty(), "{} violations", report.violations.len());
    assert!(report.states() >= states, "{} states are fewer than {states}", report.states());
    assert!(report.faults() >= faults, "{} faults are fewer than {faults}", report.faults());
}
