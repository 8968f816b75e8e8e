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

use common::mount::MountPlace;
use common::{Answer, Place};
use look::{Seen, look};
use rows::{ROWS, Row, SETUP};
use std::io::Write;
use std::process::Stdio;

/// One in so many rows is tried on a mounted volume, too, without `MYRIAD_LONG`.
const MOUNTED_SHARE: usize = 7;

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
fn pattern() -> Place {
    let place = Place::new();
    shell(&place, SETUP);
    place.line("mkfs -q --size 4M v.img").ok();
    place.line("import -q s v.img:/s").ok();
    place.line("import -q t v.img:/t").ok();
    place
}

fn shell(place: &Place, script: &str) {
    let answer = common::answer(place.command("sh", &["-ec", script]).spawn().expect("a shell"));
    assert_eq!(answer.code, 0, "{script}: {answer:?}");
}

fn run(pattern: &Place, row: &Row, direction: Direction, is_mounted: bool) -> Ran {
    // Should it be mounted still when this fails, it is not for long.
    let place = MountPlace { place: Place::new() };
    shell(&place, &format!("cp -a --sparse=always {}/. .; mkdir mnt", pattern.path("").display()));
    if is_mounted {
        place.line("mount v.img mnt").ok();
    }
    let words: Vec<String> = row.line.split(' ').map(|word| direction.operand(word)).collect();
    let mut command = match direction {
        Direction::Host => place.command("cp", &words),
        _ => place.command(common::PROGRAM, &[&["cp".to_owned()], &words[..]].concat()),
    };
    let mut child = command.env("LC_ALL", "C.UTF-8").stdin(Stdio::piped()).spawn().expect("start");
    // Who does not ask need not read.
    let _ = child.stdin.take().expect("a pipe").write_all(row.answers.as_bytes());
    let answer = common::answer(child);
    if is_mounted {
        place.umount();
    }
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
    judge(false, 1);
}

#[test]
fn cp_does_what_cp_does_on_a_mounted_volume() {
    if MountPlace::with_volume(16 << 20).is_some() {
        judge(true, if std::env::var_os("MYRIAD_LONG").is_some() { 1 } else { MOUNTED_SHARE });
    }
}

/// Tries one in `share` of the rows.
fn judge(is_mounted: bool, share: usize) {
    let only = std::env::var("MYRIAD_COPYING").ok();
    let pattern = pattern();
    let mut findings = Vec::new();
    let is_chosen = |(number, row): &(usize, &Row)| match &only {
        Some(only) => row.line.contains(only.as_str()),
        None => number % share == 0,
    };
    let is_root = rustix::process::geteuid().is_root();
    for (_, row) in ROWS.iter().enumerate().filter(is_chosen) {
        if row.is_for_root && !is_root {
            println!("skipped: cp {}: not for another user than root", row.line);
            continue;
        }
        let expected = run(&pattern, row, Direction::Host, false);
        for direction in [Direction::In, Direction::Out, Direction::Inside] {
            let found = run(&pattern, row, direction, is_mounted);
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

/// What the host has at the end of a link of the volume is not meant, also where the kernel shows the volume to everybody.
#[test]
fn links_of_a_volume_lead_nowhere_else() {
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    shell(&place, "mkdir s; ln -s /etc/passwd s/passwd; ln -s /in s/in; ln -s ../../../../etc s/etc; ln -s .. s/up");
    place.line("import -q s vol.img:/s").ok();
    place.change(|session| common::put(session, "/in", b"here"));
    for is_mounted in [false, true] {
        if is_mounted {
            place.mount("");
        }
        let answer = place.line("cp -rLv vol.img:/s out");
        let loops = "s/up/s: leads back to a directory that it is in; left out";
        let answer =
            answer.expect(1, &["s/passwd: is a symbolic link that leads to nothing", "s/etc: is a symbolic", loops]);
        assert!(answer.lines().contains(&"'vol.img:/s/in' -> 'out/in'"), "{answer:?}");
        assert_eq!(std::fs::read(place.path("out/in")).unwrap(), b"here");
        assert!(!place.path("out/passwd").exists() && !place.path("out/etc").exists());
        shell(&place, "rm -r out");
    }
    place.umount();
}

/// Blocks of 512 bytes, as cp(1) makes of the same.
#[test]
fn holes_are_found_kept_or_filled() {
    let place = Place::new();
    shell(
        &place,
        "mkdir s; truncate -s 1M s/holes; printf x | dd of=s/holes bs=1 seek=500000 conv=notrunc status=none
         head -c 200000 /dev/zero > s/small; head -c 3000000 /dev/zero > s/large; printf x >> s/small; printf x >> s/large
         truncate -s 300000 s/empty; printf begin > s/end; truncate -s 100000 s/end",
    );
    place.line("mkfs -q --size 64M vol.img").ok();
    for when in ["auto", "always", "never"] {
        shell(&place, &format!("rm -rf host back; cp -r --sparse={when} s host"));
        place.line(&format!("cp -r --sparse={when} s vol.img:/{when}")).ok();
        place.line(&format!("cp -r --sparse={when} vol.img:/{when} back")).ok();
        shell(&place, "diff -r s back");
        for name in ["holes", "small", "large", "empty", "end"] {
            let blocks = |path: String| std::os::unix::fs::MetadataExt::blocks(&place.path(&path).metadata().unwrap());
            let (ours, theirs) = (blocks(format!("back/{name}")), blocks(format!("host/{name}")));
            // File systems keep the beginning of a small file elsewhere.
            assert!(ours.abs_diff(theirs) <= 16, "{when}: {name} has {ours} blocks, cp's has {theirs}");
            let stat = place.line(&format!("stat --json vol.img:/{when}/{name}")).ok().json();
            let inside = stat["allocated"].as_u64().expect("a number") / 512;
            assert!(
                inside.abs_diff(theirs) <= 16,
                "{when}: {name} has {inside} blocks in the volume, cp's has {theirs}"
            );
        }
    }
    place.line("fsck -n vol.img").expect(0, &[]);
    for option in ["--reflink", "--reflink=always"] {
        place.line(&format!("cp {option} s/small vol.img:/x")).expect(2, &["--reflink=auto"]);
    }
}
