//! `tree` beside tree(1), where that is installed.

use super::{Bench, Row, row};
use std::process::Command;

const ROWS: &[Row] = &[
    row("tree @"),
    row("tree -a @"),
    row("tree -d @"),
    row("tree -ad @"),
    row("tree -f @/sub"),
    row("tree -i @/sub"),
    row("tree -if @/sub"),
    row("tree -L 1 @"),
    row("tree -L 2 @"),
    row("tree -I *.o @/sub"),
    row("tree -I *.o|deep @/sub"),
    row("tree -P *.o @/sub"),
    row("tree -P *.o|o* @/sub"),
    row("tree --noreport @/sub"),
    row("tree --dirsfirst @"),
    row("tree -r @/sub"),
    row("tree -r --dirsfirst @/sub"),
    row("tree -t @/many"),
    row("tree -v @/many"),
    row("tree -F @"),
    row("tree -Q @/sub"),
    row("tree -n @/sub"),
    row("tree -x @/sub"),
    row("tree -p @/sub/deep"),
    row("tree -pug @"),
    row("tree -pugD @/many"),
    row("tree --timefmt=%%Y/%%m -D @/many"),
    row("tree @/sub @/many"),
    // Of an empty directory alone tree(1) says `0 directories`, and with --noreport it puts an empty line into its JSON: no rows.
    row("tree -J @/sub"),
    row("tree -J -pug @/sub"),
    row("tree -J -d @/sub"),
    row("tree -J -L 1 @/sub"),
];

#[test]
fn tree_draws_what_tree_draws() {
    if Command::new("tree").arg("--version").output().is_err() {
        println!("skipped: tree is not installed");
        return;
    }
    Bench::new().compare(ROWS, |_, out| out);
}

/// Sizes of directories are each file system's own.
#[test]
fn sizes_and_forms() {
    let bench = Bench::new();
    for (line, expected) in [
        ("tree -ish --noreport vol.img:/t/many", "[   5]  file1\n"),
        ("tree -i --si --noreport -P big vol.img:/t", "[300k]  big\n"),
        ("tree -C -P program --noreport vol.img:/t", "\u{1b}[01;32mprogram\u{1b}[0m\n"),
    ] {
        let shown = bench.place.line(line).ok();
        let text = shown.text();
        assert!(text.contains(expected), "{line}\n{text}");
    }
    let json = bench.place.line("tree --json -L 1 vol.img:/t/sub").ok();
    let depths: Vec<u64> = json
        .lines()
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["depth"].as_u64().unwrap())
        .collect();
    assert_eq!(depths, [0, 1, 1, 1, 1, 1, 1, 1]);
    let nested = bench.place.line("tree -J vol.img:/t").ok().json();
    assert_eq!((&nested[1]["directories"], &nested[1]["files"]), (&10.into(), &39.into()));
    let several = bench.place.line("tree -J -L 1 vol.img:/t/sub vol.img:/t/empty").ok().json();
    assert_eq!((&several[1]["name"], &several[2]["directories"]), (&"vol.img:/t/empty".into(), &3.into()));
    assert!(bench.place.line("tree vol.img:/t/empty").ok().text().ends_with("\n\n1 directory, 0 files\n"));
    bench.place.line("tree -L 0 vol.img").expect(2, &["0 is not in 1.."]);
    bench.place.line("tree vol.img:/none").expect(1, &["vol.img:/none: No such file"]);
    // A place that is not there is an object too, wherever it stands.
    for (line, failed, count) in [
        ("tree -J vol.img:/none", 0, 2),
        ("tree -J vol.img:/none vol.img:/t/empty", 0, 3),
        ("tree -J vol.img:/t/empty none.img", 1, 3),
    ] {
        let said = bench.place.line(line).expect(1, &["No such file"]).out;
        let drawn: serde_json::Value = serde_json::from_slice(&said).unwrap();
        assert!(drawn[failed]["error"].as_str().unwrap().contains("No such file"), "{line}: {drawn}");
        assert_eq!(drawn.as_array().unwrap().len(), count, "{line}: {drawn}");
    }
}
