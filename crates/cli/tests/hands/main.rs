//! Every verb with everything that may stand where something else was meant. Whatever comes of it: nothing that was not
//! named as what is to change is other than it was, a volume is never written over, what was to be copied is whole or the
//! run has failed, and who has failed says what it was about. `MYRIAD_LONG` tries every row with every kind, else each row
//! meets some and each kind does.

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod kinds;
mod rows;

use bench::{Bench, Ran, Seen, Tree, words};
use common::Place;
use kinds::{Kind, Lands, shown};
use myriad_sim::rng::is_long;
use rows::{Content, ROWS, Row, THE_REST};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One in so many pairs of row and kind is tried without `MYRIAD_LONG`; those that write to volumes all are.
const SHARE: usize = 24;

#[test]
fn every_verb_has_rows() {
    let help = Place::new().line("--help").ok();
    let commands = help.text().split("Commands:").nth(1).expect("a list of verbs").to_owned();
    let lines = commands.lines().skip(1).take_while(|line| !line.trim().is_empty());
    let lines = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let verbs: BTreeSet<&str> = lines.map(|line| line.split_whitespace().next().unwrap()).collect();
    let tried: BTreeSet<&str> = ROWS.iter().map(|row| row.line.split(' ').next().unwrap()).collect();
    assert_eq!(verbs, tried, "a row for each verb");
}

#[test]
fn wrong_operands_cost_nothing() {
    judge(None);
}

#[test]
fn wrong_operands_cost_nothing_where_not_all_may_be_read() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    judge(Some(65534));
}

fn judge(user: Option<u32>) {
    let is_long = is_long();
    let only = std::env::var("MYRIAD_HANDS").ok();
    let bench = Bench::new(user);
    let kinds = kinds::all(bench.has_hosts());
    let mut findings = Vec::new();
    let mut count = 0;
    for (number, row) in ROWS.iter().enumerate() {
        for (index, kind) in kinds.iter().enumerate() {
            let arguments = words(row.line, &kind.operand);
            let line = arguments.iter().map(|word| shown(word)).collect::<Vec<_>>().join(" ");
            let is_dangerous = is_copy(row) && kind.precious.is_some() && user.is_none();
            let is_chosen = match &only {
                Some(only) => line.contains(only.as_str()),
                None => is_long || is_dangerous || (number + index) % SHARE == 0,
            };
            if !is_chosen || has_no_end(row, kind) {
                continue;
            }
            count += 1;
            let ran = bench.run(&arguments, row.line.contains('#'));
            let after = bench.look();
            let found = [look_at(&bench, row, kind, &ran, &after), words_of(row, kind, &ran)].concat();
            if only.is_some() {
                println!("{line}\n{ran:#?}");
            }
            for finding in found {
                println!("{line}: {finding}\n    {}", ran.err.trim_end());
                findings.push(format!("{line}: {finding}"));
            }
            bench.restore(&after);
        }
    }
    println!("{count} commands, {} findings", findings.len());
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

/// Whether a row may write over a file of the host.
fn is_copy(row: &Row) -> bool {
    let verbs = ["cp h.txt #", "cp v.img:/f #", "export --tar --replace", "mkfs #", "bench", "lab"];
    verbs.iter().any(|verb| row.line.starts_with(verb))
}

/// What reads until nothing more comes, of what never ends.
fn has_no_end(row: &Row, kind: &Kind) -> bool {
    let reads = row.line.contains('@') && (row.line.starts_with("cp") || row.line.starts_with("import"));
    reads && (kind.operand == "/dev/full" || kind.operand == "/dev/stdout")
        // A directory with no end of its own below it.
        || kind.operand == "."  && row.line.contains("-r")
}

/// What became of the files.
fn look_at(bench: &Bench, row: &Row, kind: &Kind, ran: &Ran, after: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    let is_done = ran.code == Some(0);
    let may: Vec<PathBuf> =
        row.may.iter().map(|place| meant(&words(place, &kind.operand).pop().unwrap_or_default())).collect();
    let landing = match kind.lands {
        Lands::At(place) => Some(PathBuf::from(place)),
        _ => None,
    };
    let may_change = |path: &Path| may.iter().any(|may| path.starts_with(may)) || landing.as_deref() == Some(path);
    for (path, seen) in bench.pristine() {
        let now = after.get(path);
        if now == Some(seen) {
            continue;
        }
        let what = if now.is_none() { "is gone" } else { "was changed" };
        let is_image = path.extension().is_some_and(|suffix| suffix == "img" || suffix == "dev");
        if !is_image {
            if !(is_done && may_change(path)) {
                findings.push(format!("{} {what}", path.display()));
            }
            continue;
        }
        let is_repaired = row.line.starts_with("fsck") && row.line.contains('#') && may_change(path);
        if is_repaired && now.is_some_and(|now| same_length(now, seen)) {
            continue;
        }
        if now.is_none_or(|now| !same_length(now, seen)) {
            findings.push(format!("{}, a volume, {what}", path.display()));
            continue;
        }
        let names = match bench.changed_names(path) {
            Ok(names) => names,
            Err(error) => {
                findings.push(format!("{} {what}: {error}", path.display()));
                continue;
            }
        };
        for name in names {
            let place = PathBuf::from(format!("{}:{}", path.display(), String::from_utf8_lossy(&name)));
            let is_new = !bench.had_name(path, &name);
            let is_rest = is_new && row.may.contains(&THE_REST);
            if !is_rest && !(is_done && (is_new || may_change(&place))) {
                findings.push(format!("{} was {}", place.display(), if is_new { "made" } else { "changed" }));
            }
        }
    }
    if !is_done && !row.may.contains(&THE_REST) {
        let new = after.keys().filter(|path| !bench.pristine().contains_key(*path));
        findings.extend(new.map(|path| format!("{} was left behind", path.display())));
    }
    if let (true, Some((expected, found))) = (is_done, copied(bench, row, kind, ran, after))
        && found.as_deref() != Some(expected.as_slice())
    {
        let found = found.map(|found| String::from_utf8_lossy(&found[..found.len().min(100)]).into_owned());
        findings.push(format!("succeeded, and the copy holds {found:?}"));
    }
    findings
}

/// The path that an operand leads to, as far as the links of the folder go.
fn meant(operand: &OsStr) -> PathBuf {
    let bytes = operand.as_bytes();
    let place = bytes.strip_prefix(b"to-w:").map(|path| [b"w.img:", path].concat());
    Path::new(OsStr::from_bytes(place.as_deref().unwrap_or(bytes))).components().collect()
}

fn same_length(one: &Seen, other: &Seen) -> bool {
    matches!((one, other), (Seen::File(one, _), Seen::File(other, _)) if one.len() == other.len())
}

/// What a copy should hold, and does.
fn copied(bench: &Bench, row: &Row, kind: &Kind, ran: &Ran, after: &Tree) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let read = |place: &OsStr| match place.as_bytes().windows(2).any(|pair| pair == b":/") {
        true => {
            let ran = bench.run(&[OsString::from("cat"), place.to_owned()], false);
            (ran.code == Some(0)).then_some(ran.out)
        }
        false => match after.get(Path::new(place)) {
            Some(Seen::File(bytes, _)) => Some(bytes.to_vec()),
            _ => None,
        },
    };
    match row.content {
        Content::Other => None,
        Content::To(place) => Some((kind.content.clone()?, read(OsStr::new(place)))),
        Content::From(name) => {
            let Some(Seen::File(expected, _)) = bench.pristine().get(Path::new(name)) else { panic!("no {name}") };
            let found = match kind.lands {
                Lands::Pipe => Some(ran.piped.clone()),
                Lands::Stdout => Some(ran.out.clone()),
                Lands::Nowhere => return None,
                Lands::At(place) => read(OsStr::new(place)),
                Lands::There => {
                    let inside = Path::new(&kind.operand).join(name);
                    read(&kind.operand).or_else(|| read(inside.components().collect::<PathBuf>().as_os_str()))
                }
            };
            Some((expected.to_vec(), found))
        }
    }
}

/// What was said, and how the run ended.
fn words_of(row: &Row, kind: &Kind, ran: &Ran) -> Vec<String> {
    let mut findings = Vec::new();
    let Some(code) = ran.code else { return vec!["hung".into()] };
    if !(0..=16).contains(&code) || ran.err.contains("panicked") {
        findings.push(format!("ended with {code}"));
    }
    // A difference is an answer, a finding of fsck another.
    let is_answer = |verb: &str, said: &str| row.line.starts_with(verb) && code < 8 && ran.err.contains(said);
    if code == 0 || is_answer("verify", "differences") || row.line.starts_with("fsck") && code < 8 {
        return findings;
    }
    if !names_it(&shown(&kind.operand), &ran.err) {
        findings.push("does not name the operand".into());
    }
    let has_next = ["; ", "write IMAGE", "--help", "[possible values"].iter().any(|next| ran.err.contains(next));
    if !has_next && !is_plain(&ran.err) {
        findings.push("names no next step".into());
    }
    findings
}

/// Whether an operand was named as it was given, or the part of it that was wrong: the image, or the directory above.
fn names_it(operand: &str, said: &str) -> bool {
    if operand == "''" {
        return ["''", "``", "`:/", "a value is required"].iter().any(|shown| said.contains(shown));
    }
    if operand == "-" && said.contains("standard input") {
        return true;
    }
    let operand = operand.trim_end_matches('/');
    let last = operand.rsplit('/').next().filter(|last| !last.is_empty());
    let image = operand.rfind(":/").map(|colon| &operand[..colon]).filter(|image| !image.is_empty());
    let above = operand.rfind('/').map(|slash| &operand[..slash]).filter(|above| !above.is_empty());
    let parts = [Some(operand), image, above, last].into_iter().flatten();
    // What was wrong may have been something else: a target that is full, the mount point, the name of an option's value.
    let others = ["No space left", "none-such", "used.img", "dir: Permission denied", "--log-device", "invalid UTF-8"];
    parts.chain(others).any(|part| said.contains(part))
}

/// Errors that say themselves what to do.
fn is_plain(said: &str) -> bool {
    [
        "File exists",
        "database or disk is full",
        "is not a directory",
        "unable to open",
        "Too many levels",
        "Input/output error",
        "resource busy",
        "No such device",
        "No such file",
        "Not a directory",
        "Is a directory",
        "File name too long",
        "Permission denied",
        "Invalid argument",
    ]
    .iter()
    .any(|plain| said.contains(plain))
}
