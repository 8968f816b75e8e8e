//! The verbs that change files beside GNU's tools of the same names: each row's command line on a tree of the host by GNU's
//! program, and on the same tree in a volume by the verb. Both succeed or both fail, both say the same with -v and ask the
//! same questions, and the trees are the same afterwards; once with the volume open here, and once mounted.
//! `MYRIAD_CHANGING=TEXT` runs the rows that hold this text alone, and shows all that was said.

mod apart;
#[path = "../common/mod.rs"]
mod common;
mod json;
mod rows;
mod side;

use common::mount::MountPlace;
use common::{Answer, PROGRAM, Place, answer};
use rows::{Compared, ROWS, Row};
use side::{Tree, When};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

const VOLUME: u64 = 64 << 20;

#[test]
fn verbs_change_what_gnu_changes() {
    judge(&Place::with_volume(VOLUME), None);
}

#[test]
fn verbs_change_on_a_mount_what_gnu_changes() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    judge(&place, Some(&place));
}

/// The version of GNU's tools whose words ours are.
const WORDS_OF: &str = "9.1";

/// The version of the host's tools, if they are GNU's.
fn version() -> Option<String> {
    let said = Command::new("rm").arg("--version").output().ok()?;
    let first = String::from_utf8_lossy(&said.stdout).lines().next()?.to_owned();
    first.contains("GNU coreutils").then(|| first.rsplit(' ').next().unwrap_or_default().to_owned())
}

fn judge(place: &Place, mount: Option<&MountPlace>) {
    let Some(version) = version() else { return println!("skipped: rm here is not GNU's") };
    let has_words = version == WORDS_OF;
    if !has_words {
        println!("skipped: what is said; GNU's tools here are {version}, ours speak as {WORDS_OF}");
    }
    let only = std::env::var("MYRIAD_CHANGING").ok();
    let is_root = rustix::process::geteuid().is_root();
    let is_chosen = |row: &Row| only.as_ref().is_none_or(|only| row.line.contains(only.as_str()));
    let rows: Vec<&Row> = ROWS.iter().filter(|row| is_chosen(row)).collect();
    let rows: Vec<&Row> = rows.into_iter().filter(|row| is_root || row.compared != Compared::AsRoot).collect();
    if !is_root {
        println!("skipped: rows that give files away, which only root may");
    }
    let start = SystemTime::now();
    let host = place.path("host");
    fs::create_dir(&host).unwrap();
    side::furnish(&place.path("base"));
    for number in 0..rows.len() {
        let copy = host.join(format!("r{number}"));
        side::copy(&place.path("base"), &copy);
        // Reading has changed them.
        side::set_times(&place.path("base"));
        side::set_times(&copy);
        place.line(&format!("import -q base vol.img:/r{number}")).ok();
    }
    if let Some(mount) = mount {
        mount.mount("");
    }
    let mut findings = Vec::new();
    let mut answers = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let theirs = run(place, row, &host, None, &format!("r{number}"));
        let ours = run(place, row, &place.path(""), Some(PROGRAM), &format!("vol.img:/r{number}"));
        answers.push((theirs, ours));
    }
    if let Some(mount) = mount {
        mount.umount();
    }
    place.assert_sound();
    let inside = side::look_inside(place, rows.len(), start);
    for (number, row) in rows.iter().enumerate() {
        let (theirs, ours) = &answers[number];
        let expected = side::look(&host.join(format!("r{number}")), start);
        let found = [said(row, number, has_words, theirs, ours), differing(row, &expected, &inside[number])].concat();
        if only.is_some() || !found.is_empty() {
            for (whose, answer) in [("GNU's", theirs), ("ours", ours)] {
                let out = String::from_utf8_lossy(&answer.out);
                println!("{}: {whose}: {}\n{out}{}", row.line, answer.code, answer.err);
            }
        }
        findings.extend(found.into_iter().map(|finding| format!("{}: {finding}", row.line)));
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

/// Runs a row in `folder`, its tree being `tree`: the verb of `program`, or GNU's own.
fn run(place: &Place, row: &Row, folder: &Path, program: Option<&str>, tree: &str) -> Answer {
    let (tree, base) = (format!("{tree}/"), format!("{}/", place.path("base").display()));
    let words = row.line.split(' ').map(|word| word.replace('_', " ").replace("@/", &tree).replace("%/", &base));
    let words: Vec<String> = words.collect();
    let script = format!("umask {:03o}; exec \"$0\" \"$@\"", row.umask);
    let mut command = place.command("sh", &["-c", &script]);
    command.args(program).args(&words).current_dir(folder).env("LC_ALL", "C").env("TZ", "CET-1CEST,M3.5.0,M10.5.0/3");
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("start");
    // Who asks nothing does not read.
    let _ = child.stdin.take().unwrap().write_all(row.input.unwrap_or_default().as_bytes());
    answer(child)
}

/// What was said otherwise, as far as it can be the same.
fn said(row: &Row, number: usize, has_words: bool, theirs: &Answer, ours: &Answer) -> Vec<String> {
    let mut findings = Vec::new();
    if !(0..=2).contains(&ours.code) || ours.err.contains("panicked") {
        findings.push(format!("ended with {}", ours.code));
    }
    if row.compared != Compared::NotTheCode && (theirs.code == 0) != (ours.code == 0) {
        findings.push(format!("ended with {}, and GNU's with {}", ours.code, theirs.code));
    }
    let as_ours = |text: &str| text.replace(&format!("r{number}/"), &format!("vol.img:/r{number}/"));
    // Directories are read in different orders.
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let (expected, found) = (lines(&as_ours(&String::from_utf8_lossy(&theirs.out))), lines(ours.text()));
    if has_words && expected != found {
        findings.push(format!("said {found:?}, and GNU's {expected:?}"));
    }
    let has_failed = theirs.code != 0 || ours.code != 0;
    if row.input.is_some() && !has_failed && as_ours(&theirs.err) != ours.err {
        findings.push(format!("asked {:?}, and GNU's {:?}", ours.err, as_ours(&theirs.err)));
    }
    if row.line.starts_with("ch") && row.line.contains(" -f ") && ours.err != theirs.err {
        findings.push(format!("was not silent: {}", ours.err));
    }
    findings
}

fn differing(row: &Row, expected: &Tree, found: &Tree) -> Vec<String> {
    let plain = |tree: &Tree| {
        let mut tree = tree.clone();
        if row.compared != Compared::WithAccessTimes {
            tree.values_mut().for_each(|seen| seen.atime = When::Now);
        }
        tree
    };
    let (expected, mut found) = (plain(expected), plain(found));
    for (name, seen) in &mut found {
        // Whether the host notes that a directory was listed, or a link followed, is its own affair.
        let is_noted = expected.get(name).is_some_and(|seen| seen.atime == When::Now);
        match (seen.mode >> 12, expected.get(name)) {
            (0o4, Some(expected)) => seen.atime = expected.atime,
            (0o12, _) if is_noted => seen.atime = When::Now,
            _ => {}
        }
    }
    let names = expected.keys().chain(found.keys()).collect::<std::collections::BTreeSet<_>>();
    let differing = names.into_iter().filter(|name| expected.get(*name) != found.get(*name));
    differing
        .map(|name| {
            let shown = |tree: &Tree| tree.get(name).map(|seen| format!("{:o} {seen:?}", seen.mode));
            format!("/{}: {:?}, and GNU's {:?}", name.escape_ascii(), shown(&found), shown(&expected))
        })
        .collect()
}
