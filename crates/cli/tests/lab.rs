//! `myriad lab` as a user has it: the list, a run with factors that goes to a file, a mounted volume among the targets.

mod common;

use common::{PROGRAM, Place};
use serde_json::Value;
use std::fs;

/// Lines of a file of samples, and its header.
fn samples(place: &Place, name: &str) -> (Value, Vec<Value>) {
    let bytes = fs::read(place.path(name)).unwrap();
    let text = if name.ends_with(".zst") { zstd::decode_all(&bytes[..]).unwrap() } else { bytes };
    let text = String::from_utf8(text).unwrap();
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
                --factors namecache,placement,paint=red/blue --set alloc=write --check --sparse --out samples.jsonl --quiet";
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
    // Compressed it is the same, and small.
    place.line(&line.replace("samples.jsonl", "samples.jsonl.zst")).ok();
    assert_eq!(samples(&place, "samples.jsonl.zst").1.len(), lines.len());
    let bytes = |name: &str| fs::metadata(place.path(name)).unwrap().len();
    assert!(bytes("samples.jsonl.zst") * 20 < bytes("samples.jsonl"), "{} bytes", bytes("samples.jsonl.zst"));
    place.line(&format!("{line} --resume --seed 2")).expect(1, &["another experiment"]);
    // Looking after each phase leaves other things in memory.
    place.line(&format!("{} --resume", line.replace("--check ", ""))).expect(1, &["its asked is"]);
    assert_eq!(header["asked"].as_array().unwrap()[3..], ["alloc=write", "sparse", "check"]);
}

/// Twins on a modelled device are the same to the digit; by a clock, what was slowed has its columns. A run is not gone on with without them.
#[test]
fn twins_show_the_noise_and_what_was_slowed() {
    let place = Place::new();
    let exact = place.line("lab run folder --scale 0.001 --twin --runs 6 --target disk2001 --json --quiet").ok();
    assert!(exact.text().lines().filter(|line| line.contains("\"twin\":\"b\"")).count() >= 6 * 3, "{}", exact.text());
    let modelled = place.line("lab run folder --scale 0.001 --twin --runs 6 --target disk2001 --quiet").ok();
    assert!(modelled.text().contains("\nA against A\n"), "{}", modelled.text());
    assert!(modelled.text().contains("\n0 of "), "{}", modelled.text());
    let line = "lab run dirhash --scale 0.002 --twin --slow create:900% --runs 6 --sparse --out samples.jsonl --quiet";
    let told = place.line(line).ok();
    let text = told.text();
    assert!(
        text.contains("slowed/A") && text.contains("verdict") && text.contains("create:900% differs in "),
        "{text}"
    );
    let (header, lines) = samples(&place, "samples.jsonl");
    assert_eq!(header["asked"], serde_json::json!(["sparse", "twin", "slow=create:900%"]));
    let of = |twin: &str| lines.iter().filter(|line| line["twin"] == twin).count();
    assert!(of("a") > 0 && of("a") == of("b") && of("a") == of("slowed") && of("a") * 3 == lines.len());
    place.line(&line.replace("create", "unlink")).expect(1, &["samples.jsonl", "--resume"]);
    place.line(&format!("{} --resume", line.replace("create", "unlink"))).expect(1, &["its asked is"]);
}

/// Every suite, on a volume that was aged first.
#[test]
fn a_mounted_volume_does_what_a_volume_in_process_does() {
    let place = Place::new();
    place
        .line("lab run all --scale 0.001 --runs 1 --target process,mount --age 20 --check --sparse --out samples.jsonl --quiet")
        .ok();
    let (header, lines) = samples(&place, "samples.jsonl");
    assert_eq!(header["asked"][0], "age=20");
    if let Some(why) = header["left_out"].get("mount") {
        eprintln!("skipped: mount: {why}");
        return;
    }
    let of = |target: &str| {
        let mut counts: Vec<String> = lines
            .iter()
            .filter(|line| line["target"] == target)
            .map(|line| format!("{} {} {} {}", line["workload"], line["size"], line["phase"], line["count"]))
            .collect();
        counts.sort();
        counts
    };
    assert_eq!(of("mount"), of("process"));
    assert!(of("mount").len() > 60);
    // Counted where it came to: on the loop device below the mount.
    let written = |line: &&Value| line["target"] == "mount" && line["device"]["writes"].as_u64() > Some(0);
    assert!(lines.iter().filter(written).count() > 20);
}

/// The whole way, tiny: samples, page, pictures. Where the analysis is not installed its absence is said, and all else is there.
#[test]
fn quick_ends_with_pictures_or_says_why_not() {
    let place = Place::new();
    let line =
        "lab quick --scale 0.001 --target process,disk2001,sqlite --set profile=xfs,alloc=write --no-install --quiet";
    let told = place.line(line).ok();
    let text = told.text();
    let (_, lines) = samples(&place, "lab-quick/targets.jsonl.zst");
    assert!(lines.len() > 150, "{}", lines.len());
    let (header, lines) = samples(&place, "lab-quick/mechanisms.jsonl.zst");
    assert_eq!(
        header["asked"],
        serde_json::json!(["paper", "placement=rotor/dirpref", "profile=ffs", "alloc=write", "sparse", "check"])
    );
    assert!(lines.iter().all(|line| line["options"]["alloc"] == "write"));
    assert!(lines.iter().all(|line| line["options"]["profile"] == "ffs" && line["target"] == "disk2001"));
    let flipped = lines[0]["factors"].as_object().unwrap().len();
    let absent =
        header["absent"].as_array().unwrap().iter().filter(|one| !one["factor"].as_str().unwrap().contains(','));
    assert_eq!(flipped + absent.count(), 5, "{header}");
    place.line("lab quick --target process --quiet").expect(1, &["lab-quick/targets.jsonl.zst", "--resume"]);
    if let Some((_, why)) = text.split_once("left out: the page and its pictures: ") {
        assert!(why.contains("--setup") || why.contains("apt-get install"), "{why}");
        assert!(text.trim_end().ends_with("myriad lab report lab-quick --out lab-quick"), "{text}");
        return println!("skipped: the page: {}", why.lines().next().unwrap_or_default());
    }
    let named: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  lab-quick/figures/")).collect();
    assert!(named.len() > 10 && named.iter().any(|name| name.contains("triangles")), "{named:?}");
    for name in named {
        assert!(fs::read(place.path("lab-quick/figures").join(name)).unwrap().starts_with(b"\x89PNG"), "{name}");
    }
    assert!(text.ends_with("the page: lab-quick/index.html\n"), "{text}");
    assert!(fs::read_to_string(place.path("lab-quick/index.html")).unwrap().contains("</html>"));
}

/// A user without Python, or without what the analysis needs: what is missing is named, and the next step is a command that there is.
#[test]
fn a_report_that_cannot_be_made_says_what_is_missing_and_the_next_step() {
    let place = Place::new();
    // As if nobody had set it up yet.
    let mut command = place.command(PROGRAM, &["lab", "report", "--no-install"]);
    let answer = common::answer(command.env("CARGO_TARGET_DIR", place.path("empty")).spawn().unwrap());
    answer.expect(1, &["are not installed: myriad lab report --setup"]);
    place.line("lab report --setup --no-install").expect(2, &["--setup"]);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let place = Place::new();
    for (line, code, said) in [
        ("lab run tra", 1, "there is no suite `tra`"),
        ("lab run tar --target zfs", 1, "`zfs` is no target"),
        ("lab run tar --scale 0", 2, "1 is the papers' size"),
        ("lab run tar --resume", 2, "--out"),
        ("lab run tar --memory 16M", 2, "less than 256 MiB"),
        ("lab run tar --factors cachesize", 1, "cachesize takes any value"),
        ("lab run tar --factors alloc --set alloc=write", 1, "alloc cannot be set and flipped"),
        ("lab quick --set dirhash=off", 1, "dirhash cannot be set and flipped"),
        // What is refused leaves no file that the next run would stumble over.
        ("lab run tar --folder none --out refused.jsonl", 1, "making a folder in"),
        ("lab run tar --sparse --out refused.jsonl --folder none", 1, "making a folder in"),
        ("lab run tar --set colour=red", 1, "there is no such option"),
        ("lab run tar --slow mkdir:5%", 2, "--twin"),
        ("lab run tar --twin --runs 5", 1, "with --twin 6 at least"),
        ("lab run tar --twin --slow make:5%", 2, "`make` is no operation; there are create, mkdir"),
        ("lab run tar --twin --slow mkdir:0%", 2, "a number above 0, at most 1000, as in mkdir:5%"),
        ("lab run tar --twin --slow mkdir:5% --target disk2001", 1, "name targets with a clock"),
        ("lab run tar --twin --slow rename:5%", 1, "no measured phase does that; name one of what they do: find,"),
    ] {
        place.line(line).expect(code, &[said]);
    }
}
