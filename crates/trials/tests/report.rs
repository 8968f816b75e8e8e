//! The reliability report as `scripts/reliability --ci` makes it; `MYRIAD_LONG=1`: as with `--long`.

use myriad_sim::rng;
use myriad_trials::crash::classes::Amount;
use myriad_trials::report::{Plan, Report};
use myriad_trials::table;

#[test]
fn nothing_is_lost() {
    let (amount, states, faults) =
        if rng::is_long() { (Amount::Long, 1_000_000, 100_000) } else { (Amount::Short, 50_000, 5_000) };
    let report =
        Report::make(&Plan { rows: &table::asked(), amount, threads: 2, is_over: &|_| false, progress: &|_| {} });
    println!("{report}");
    assert!(report.violations.is_empty(), "{} violations", report.violations.len());
    assert!(report.states() >= states, "{} states are fewer than {states}", report.states());
    assert!(report.faults() >= faults, "{} faults are fewer than {faults}", report.faults());
}
