//! `myriad lab` as a user has it: the list, a run with factors that goes to a file, a mounted volume among the targets.

mod common;

use common::Place;
use serde_json::Value;
use std::fs;

/// Lines of a file of samples, and its header.
fn samples(place: &Place, name: &str) -> (Value, Vec<Value>) {
    let text = fs::read_to_string(place.path(name)).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    (lines.next().unwrap()["header"].clone(), lines.collect())
}

#[test]
fn the_list_names_suites_targets_and_factors() {
    let listed = Place::new().line("lab list").ok();
    for name in ["postmark", "listrates", "disk2001", "sqlite", "placement", "paper"] {
        assert!(listed.text().contains(name), "{name}");
    }
}

#[test]
fn all_combinations_of_the_factors_are_in_the_file_and_what_is_absent_is_named() {
    let place = Place::new();
    let line = "lab run simplefs tar --scale 0.002 --runs 2 --target process,disk2001 \
                --factors namecache,placement,paint=red/blue --set alloc=write --check --out samples.jsonl --quiet";
    let told = place.line(line).ok();
    assert!(told.text().contains("absent: paint=red/blue: there is no such option"), "{}", told.text());
    let (header, lines) = samples(&place, "samples.jsonl");
    assert_eq!(header["absent"][0]["factor"], "paint=red/blue");
    // Phases of the two suites, targets, combinations, runs.
    assert_eq!(lines.len(), (4 + 3) * 2 * 4 * 2);
    assert!(lines.iter().all(|line| line["schema"] == 1 && line["options"]["alloc"] == "write"));
    assert!(lines.iter().all(|line| line["options"]["placement"] == line["factors"]["placement"]));
    place.line(line).expect(1, &["samples.jsonl", "--resume"]);
    place.line(&format!("{line} --resume")).ok();
    assert_eq!(samples(&place, "samples.jsonl").1, lines);
    place.line(&format!("{line} --resume --seed 2")).expect(1, &["another experiment"]);
}

#[test]
fn a_mounted_volume_does_what_a_volume_in_process_does() {
    let place = Place::new();
    place
        .line("lab run andrew netnews --scale 0.01 --runs 1 --target process,mount --check --out samples.jsonl --quiet")
        .ok();
    let (header, lines) = samples(&place, "samples.jsonl");
    if let Some(why) = header["left_out"].get("mount") {
        eprintln!("skipped: mount: {why}");
        return;
    }
    let of = |target: &str| {
        let mut counts: Vec<String> = lines
            .iter()
            .filter(|line| line["target"] == target)
            .map(|line| format!("{} {} {}", line["workload"], line["phase"], line["count"]))
            .collect();
        counts.sort();
        counts
    };
    assert_eq!(of("mount"), of("process"));
    assert_eq!(of("mount").len(), 6 + 4);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let place = Place::new();
    for (line, code, said) in [
        ("lab run tra", 1, "there is no suite `tra`"),
        ("lab run tar --target zfs", 1, "`zfs` is no target"),
        ("lab run tar --scale 0", 2, "1 is the papers' size"),
        ("lab run tar --resume", 2, "--out"),
        ("lab run tar --factors cachesize", 1, "cachesize takes any value"),
        ("lab run tar --factors alloc --set alloc=write", 1, "alloc cannot be set and flipped"),
        ("lab run tar --set colour=red", 1, "there is no such option"),
    ] {
        place.line(line).expect(code, &[said]);
    }
}
