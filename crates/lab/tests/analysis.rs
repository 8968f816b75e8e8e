//! The tests of the analysis in `analysis/`, which is Python: `scripts/lab-report --test` runs them. Where its packages are not installed
//! they are skipped, with the reason; `scripts/test` installs them beforehand where it may.

use std::path::Path;
use std::process::Command;

/// The script's status where something that it needs is missing.
const MISSING: i32 = 2;

#[test]
fn the_analysis_passes_its_own_tests() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = repository.join("scripts/lab-report");
    let output = Command::new(&script).args(["--no-install", "--test"]).output().expect("bash is there");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(MISSING) && complained.starts_with("lab-report: ") {
        return println!("skipped: tests of the analysis: {}", complained.trim().trim_start_matches("lab-report: "));
    }
    assert!(output.status.success(), "{said}{complained}");
    // pytest's own count, so that a suite that has lost its tests is seen: `107 passed in 60.2s`.
    let summary = said.lines().last().unwrap_or_default();
    let passed = summary.split(" passed").next().and_then(|text| text.rsplit(' ').next()?.parse().ok()).unwrap_or(0);
    assert!(passed > 50, "{said}");
    println!("{summary}");
    // SKIPPED [5] tests/test_browser.py: the reason
    for line in said.lines().filter(|line| line.starts_with("SKIPPED ")) {
        println!("skipped: {}", line.split_once(": ").map_or(line, |(_, reason)| reason));
    }
}
