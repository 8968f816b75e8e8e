//! The verbs that look, against the programs whose options they take: one tree on the host and in a volume, the same command
//! lines on both, the same lines out. `@` in a command line is the tree: `t` for the program of the host, `vol.img:/t` for ours.

mod cat;
#[path = "../common/mod.rs"]
mod common;
mod df;
mod du;
mod find;
mod ls;
mod readlink;
mod stat;
mod tree;

use common::{Answer, PROGRAM, Place, answer};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How the lines of both sides are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Order,
    /// In no order: directories have their own.
    Sorted,
}

/// A command line and what of its output is compared. `%` stands for a space in a word.
struct Row {
    line: &'static str,
    /// The host's, where it has to be another one.
    host: Option<&'static str>,
    by: By,
}

const fn row(line: &'static str) -> Row {
    Row { line, host: None, by: By::Order }
}

const fn sorted(line: &'static str) -> Row {
    Row { line, host: None, by: By::Sorted }
}

/// As [`other`], where the two list in orders of their own.
const fn other_sorted(line: &'static str, host: &'static str) -> Row {
    Row { line, host: Some(host), by: By::Sorted }
}

/// Another line for the host's program, for the reason beside the row.
const fn other(line: &'static str, host: &'static str) -> Row {
    Row { line, host: Some(host), by: By::Order }
}

/// A tree on the host and its copy in a volume.
struct Bench {
    place: Place,
}

impl Bench {
    fn new() -> Self {
        let place = Place::with_volume(64 << 20);
        furnish(&place.path("t"));
        place.line("import t vol.img:/t -q").ok();
        Self { place }
    }

    fn ours(&self, line: &str) -> Answer {
        self.run(Path::new(PROGRAM), &words(line, "vol.img:/t"))
    }

    fn theirs(&self, line: &str) -> Answer {
        let words = words(line, "t");
        self.run(Path::new(&words[0]), &words[1..])
    }

    fn run(&self, program: &Path, words: &[OsString]) -> Answer {
        let mut command = self.place.command(program, words);
        command
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm")
            .env_remove("COLORTERM")
            .env_remove("LS_COLORS")
            .env_remove("COLUMNS")
            .env_remove("QUOTING_STYLE");
        answer(command.spawn().expect("start"))
    }

    /// Runs every row on both sides; all rows that differ are told of together.
    #[track_caller]
    fn compare(&self, rows: &[Row], map: impl Fn(&str, Vec<u8>) -> Vec<u8>) {
        let mut differ = Vec::new();
        for row in rows {
            let theirs = self.theirs(row.host.unwrap_or(row.line));
            let ours = self.ours(row.line);
            let (ours_seen, theirs_seen) =
                (seen(row.by, &map(row.line, ours.out.clone())), seen(row.by, &map(row.line, theirs.out.clone())));
            let codes = (ours.code.min(1), theirs.code.min(1));
            if ours_seen != theirs_seen || codes.0 != codes.1 {
                let (ours_only, theirs_only) =
                    (lines_missing(&ours_seen, &theirs_seen), lines_missing(&theirs_seen, &ours_seen));
                differ.push(format!(
                    "{}\n--- ours, exit {}\n{ours_only}{}--- theirs, exit {}\n{theirs_only}{}",
                    row.line, ours.code, ours.err, theirs.code, theirs.err,
                ));
            }
        }
        assert!(differ.is_empty(), "{} of {} rows differ\n{}", differ.len(), rows.len(), differ.join("\n====\n"));
    }
}

/// A few of the lines that the other side does not have; of all, if they are the same in another order.
fn lines_missing(one: &[u8], other: &[u8]) -> String {
    let lines = |text: &[u8]| text.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (one, other) = (lines(one), lines(other));
    let missing: Vec<&Vec<u8>> = one.iter().filter(|line| !other.contains(line)).collect();
    let told = if missing.is_empty() { one.iter().collect() } else { missing };
    told.iter().take(12).map(|line| format!("{}\n", line.escape_ascii())).collect()
}

/// The words of a line, with `place` for `@` at the start of a word.
fn words(line: &str, place: &str) -> Vec<OsString> {
    let word = |word: &str| {
        let word = word.replace('%', " ").replace("\u{1}", "%");
        OsString::from(match word.strip_prefix('@') {
            Some(rest) => format!("{place}{rest}"),
            None => word,
        })
    };
    line.split_whitespace().map(|text| word(&text.replace("%%", "\u{1}"))).collect()
}

/// Output with the tree's name as the host has it, for comparison.
fn seen(by: By, out: &[u8]) -> Vec<u8> {
    let text = replace(&replace(out, b"vol.img:/t", b"t"), b"vol.img:", b"");
    match by {
        By::Order => text,
        By::Sorted => {
            let end = if text.contains(&0) { 0 } else { b'\n' };
            let mut lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == end).collect();
            lines.sort_unstable();
            lines.concat()
        }
    }
}

fn replace(bytes: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(what.len()).position(|window| window == what) {
        replaced.extend(&rest[..at]);
        replaced.extend(by);
        rest = &rest[at + what.len()..];
    }
    replaced.extend(rest);
    replaced
}

/// Makes the tree: files of several sizes with holes and without, links of both kinds, FIFOs, modes, times, odd names.
fn furnish(top: &Path) {
    let put = |name: &str, bytes: &[u8]| fs::write(top.join(name), bytes).expect("write");
    for name in ["", "sub", "sub/deep", "sub/deep/deeper", "empty", "Z", ".dot", "sticky", "open", "many"] {
        fs::create_dir(top.join(name)).expect("mkdir");
    }
    put("empty-file", b"");
    put("hello.txt", b"hello\n");
    put("b.tar.gz", &[1; 5000]);
    put("a.c", b"int x;\n\n\n\n\tint y;\n");
    put("no-end", b"the last line has no end");
    put("control", b"a\tb\x01\x7f\x80\xff\r\n\n\n\x89\n");
    put("big", &vec![0x5a; 300_000]);
    put("sub/one", &[2; 1000]);
    put("sub/two.o", &[3; 1024]);
    put("sub/deep/three.o", &[4; 1025]);
    put("sub/deep/deeper/four", &[5; 70_000]);
    put(".hidden", b"x");
    put(".dot/inside", b"inside");
    put("backup~", b"old");
    put("Z/upper", b"U");
    for name in ["file1", "file2", "file10", "file9", "a-1.9", "a-1.10"] {
        put(&format!("many/{name}"), name.as_bytes());
    }
    for name in ["with space", "it's", "quo\"te", "new\nline", "größe", "back\\slash", "-dash", "{}", "*"] {
        put(name, name.as_bytes());
    }
    put("program", b"#!/bin/sh\n");
    let hole = File::create(top.join("hole")).expect("create");
    hole.set_len(1_000_000).expect("set_len");
    hole.write_all_at(b"end", 999_997).expect("write");
    for (target, link) in [
        ("hello.txt", "link"),
        ("sub", "link-dir"),
        ("nowhere", "broken"),
        ("../hello.txt", "sub/up"),
        ("loop", "loop"),
        ("deep/../one", "sub/around"),
        ("link-dir/one", "chain"),
    ] {
        symlink(target, top.join(link)).expect("symlink");
    }
    fs::hard_link(top.join("hello.txt"), top.join("sub/hard")).expect("link");
    for (name, mode) in [("fifo", 0o600), ("sub/fifo2", 0o644)] {
        rustix::fs::mknodat(rustix::fs::CWD, top.join(name), rustix::fs::FileType::Fifo, mode.into(), 0)
            .expect("mkfifo");
    }
    for (name, mode) in [
        ("program", 0o755),
        ("big", 0o4755),
        ("b.tar.gz", 0o2711),
        ("sticky", 0o1777),
        ("open", 0o777),
        ("empty", 0o700),
        ("a.c", 0o640),
        // Another user than root must still be able to copy it.
        ("no-end", if rustix::process::geteuid().is_root() { 0o000 } else { 0o400 }),
        ("empty-file", 0o600),
    ] {
        fs::set_permissions(top.join(name), Permissions::from_mode(mode)).expect("chmod");
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(top.join("hole"), Some(12345), Some(54321)).expect("chown");
        std::os::unix::fs::chown(top.join("program"), Some(1), Some(2)).expect("chown");
    }
    set_times(top);
}

/// Gives every file times of its own: the same in every run, but for some that are as young as the run.
fn set_times(top: &Path) {
    let mut ahead = vec![top.to_owned()];
    let mut paths = Vec::new();
    while let Some(path) = ahead.pop() {
        if path.symlink_metadata().expect("stat").is_dir() {
            ahead.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("entry").path()));
        }
        paths.push(path);
    }
    // What is in a directory before it.
    paths.sort();
    let day = Duration::from_secs(86_400);
    for (index, path) in paths.iter().enumerate().rev() {
        let index = index as u32;
        let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789) + day * (index * 37);
        let young = SystemTime::now() - day / 2 - day * (index % 7);
        let modified = if index % 3 == 0 { young } else { old };
        let read = old + day;
        let time = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            rustix::fs::Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() }
        };
        let times = rustix::fs::Timestamps { last_access: time(read), last_modification: time(modified) };
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).expect("utimens");
    }
}

/// docs/json.md tells of every field that a verb prints, in the verb's section or among those it names: attributes, `df`.
#[test]
fn every_field_is_documented() {
    let bench = Bench::new();
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let document = fs::read_to_string(document).expect("docs/json.md");
    let section = |name: &str| {
        let start = document.find(&format!("\n## {name}\n")).unwrap_or_else(|| panic!("no section about {name}"));
        document[start + 3..].split("\n## ").next().expect("a section").to_owned()
    };
    let (attributes, totals) = (section("Attributes of a file"), section("df"));
    for line in [
        "ls -la --json vol.img:/t",
        "tree --json vol.img:/t",
        "find --json vol.img:/t",
        "stat --json vol.img:/t vol.img:/t/link",
        "stat -f --json vol.img",
        "du -c --time --json vol.img:/t",
        "df --json vol.img",
        "readlink --json vol.img:/t/link",
        "readlink -f --json vol.img:/t/link",
        "stats --json --counters vol.img",
        "info --json vol.img",
        "trim --json vol.img",
        "tune --json vol.img",
        "tune --json vol.img label=x",
        "verify --json vol.img:/t .",
        "fsck -n --scrub --json vol.img",
        "debug --json vol.img superblock",
        "debug --json vol.img block 0",
        "debug --json vol.img inode /t",
        "debug --json vol.img lookup /t",
        "debug --json vol.img log",
    ] {
        let verb = line.split(' ').next().expect("a verb");
        let own = section(verb);
        let answer = bench.place.line(line);
        // Volume and directory differ for `verify`, which is no error.
        assert!(answer.err.is_empty() && !answer.out.is_empty(), "{line}: {answer:?}");
        for value in answer.lines() {
            let value: Value = serde_json::from_str(value).expect("a value");
            for field in fields(&value) {
                let word = format!("`{field}`");
                let is_told = own.contains(&word)
                    || own.contains("the attributes") && attributes.contains(&word)
                    || own.contains("fields of `df`") && totals.contains(&word);
                assert!(is_told, "{line}: {field}");
            }
        }
    }
}

/// The names of all fields of an object and of those inside, but of objects whose fields the document does not list one by one.
fn fields(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(values) => values.iter().flat_map(fields).collect(),
        Value::Object(object) => {
            let is_listed = |name: &str| !["by_type", "counters", "fields"].contains(&name);
            let inner = object.iter().filter(|(name, _)| is_listed(name)).flat_map(|(_, value)| fields(value));
            object.keys().map(String::as_str).chain(inner).collect()
        }
        _ => Vec::new(),
    }
}

/// A name that is not UTF-8.
fn odd_name() -> OsString {
    OsString::from_vec(b"caf\xe9".to_vec())
}

#[test]
fn names_that_are_no_text_come_out_as_they_are() {
    let bench = Bench::new();
    let place = &bench.place;
    fs::create_dir(place.path("odd")).expect("mkdir");
    fs::write(place.path("odd").join(odd_name()), b"x").expect("write");
    place.line("import odd vol.img:/odd -q").ok();
    for (line, expected) in [
        ("find vol.img:/odd -type f", &b"vol.img:/odd/caf\xe9\n"[..]),
        ("ls vol.img:/odd", b"caf\xe9\n"),
        ("ls -Q vol.img:/odd", b"\"caf\\351\"\n"),
        ("du --inodes -a vol.img:/odd", b"1\tvol.img:/odd/caf\xe9\n2\tvol.img:/odd\n"),
        ("tree --noreport vol.img:/odd", b"vol.img:/odd\n\xe2\x94\x94\xe2\x94\x80\xe2\x94\x80 caf\\351\n"),
    ] {
        assert_eq!(place.line(line).ok().out.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{line}");
    }
    let word = [b"vol.img:/odd/", odd_name().as_bytes()].concat();
    let arguments = [OsStr::new("stat"), OsStr::new("-c"), OsStr::new("%N %s"), OsStr::from_bytes(&word)];
    assert_eq!(place.run(&arguments).ok().text(), "'vol.img:/odd/caf'$'\\351' 1\n");
}
