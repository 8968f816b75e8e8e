//! `cp` beside cp(1), and `import` and `export` beside what they were asked for.
//!
//! Each row of `rows` is a command line of cp(1). It is run on the host; then `myriad cp` does the same in all three
//! directions: into a volume, out of one, and inside one. How they end, what `-v` prints and the trees that come of it have to
//! be the same.

#[path = "../common/mod.rs"]
mod common;
mod look;
mod rows;
mod trees;

use common::{Answer, Place};
use look::{Seen, look};
use rows::{ROWS, Row, SETUP};
use std::io::Write;
use std::process::Stdio;
use std::sync::OnceLock;

/// Where source and target of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// Both on the host: cp(1) itself.
    Host,
    In,
    Out,
    Inside,
}

impl Direction {
    fn operand(self, word: &str) -> String {
        if let Some((option, value)) = word.split_once('=') {
            return format!("{option}={}", self.operand(value));
        }
        let is_place = |name: &str| word == name || word.starts_with(&format!("{name}/"));
        let in_volume = match self {
            Self::Host => false,
            Self::In => is_place("t"),
            Self::Out => is_place("s"),
            Self::Inside => is_place("s") || is_place("t"),
        };
        if in_volume { format!("v.img:/{word}") } else { word.to_owned() }
    }
}

/// How a run ended.
struct Ran {
    is_ok: bool,
    told: Vec<String>,
    tree: Vec<Seen>,
    answer: Answer,
}

/// A folder with `s` and `t`, both also in a volume.
fn furnish() -> Place {
    static PATTERN: OnceLock<Place> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        let place = Place::new();
        shell(&place, SETUP);
        place.line("mkfs -q --size 16M v.img").ok();
        place.line("import -q s v.img:/s").ok();
        place.line("import -q t v.img:/t").ok();
        place
    });
    let place = Place::new();
    shell(&place, &format!("cp -a --sparse=always {}/. .", pattern.path("").display()));
    place
}

fn shell(place: &Place, script: &str) {
    let answer = common::answer(place.command("sh", &["-ec", script]).spawn().expect("a shell"));
    assert_eq!(answer.code, 0, "{script}: {answer:?}");
}

fn run(row: &Row, direction: Direction) -> Ran {
    let place = furnish();
    let words: Vec<String> = row.line.split(' ').map(|word| direction.operand(word)).collect();
    let mut command = match direction {
        Direction::Host => place.command("cp", &words),
        _ => place.command(common::PROGRAM, &[&["cp".to_owned()], &words[..]].concat()),
    };
    let mut child = command.env("LC_ALL", "C.UTF-8").stdin(Stdio::piped()).spawn().expect("start");
    // Who does not ask need not read.
    let _ = child.stdin.take().expect("a pipe").write_all(row.answers.as_bytes());
    let answer = common::answer(child);
    if direction == Direction::Inside {
        place.line("fsck -n v.img").expect(0, &[]);
    }
    if direction == Direction::In || direction == Direction::Inside {
        shell(&place, "rm -rf t");
        place.line("export -q v.img:/t t").ok();
    }
    let told = String::from_utf8_lossy(&answer.out).replace("v.img:/", "");
    let mut told: Vec<String> = told.lines().map(str::to_owned).collect();
    told.sort();
    Ran { is_ok: answer.code == 0, told, tree: look(&place.path("t")), answer }
}

#[test]
fn cp_does_what_cp_does() {
    let only = std::env::var("MYRIAD_COPYING").ok();
    let mut findings = Vec::new();
    for row in ROWS.iter().filter(|row| only.as_ref().is_none_or(|only| row.line.contains(only.as_str()))) {
        let expected = run(row, Direction::Host);
        for direction in [Direction::In, Direction::Out, Direction::Inside] {
            let found = run(row, direction);
            assert!(!found.answer.err.contains("panicked"), "{}: {:?}", row.line, found.answer);
            let mut differences = Vec::new();
            if found.is_ok != expected.is_ok {
                differences.push(format!("ended with {}, cp with {}", found.answer.code, expected.answer.code));
            }
            if found.told != expected.told && !row.is_untold {
                differences.push(format!("printed {:#?}, cp {:#?}", found.told, expected.told));
            }
            differences.extend(look::compare(&expected.tree, &found.tree));
            if !differences.is_empty() {
                let said = (found.answer.err.trim_end(), expected.answer.err.trim_end());
                findings.push(format!("cp {} ({direction:?}): {}\n{said:?}", row.line, differences.join("\n    ")));
            }
        }
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n\n"));
}
