//! `cp` beside cp(1), and `import` and `export` beside what they were asked for.
//!
//! Each row of `rows` is a command line of cp(1). It is run on the host; then `myriad cp` does the same in all three
//! directions: into a volume, out of one, and inside one. How they end, what `-v` prints and the trees that come of it have to
//! be the same.

mod closing;
#[path = "../common/mod.rs"]
mod common;
mod look;
mod rows;
mod trees;

use common::mount::MountPlace;
use common::{Answer, Place};
use look::{Seen, look};
use myriad_sim::rng::is_long;
use myriad_sim::threads::try_all;
use rows::{ROWS, Row, SETUP};
use rustix::fs::{Mode, OFlags};
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

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
        judge(true, if is_long() { 1 } else { MOUNTED_SHARE });
    }
}

/// Tries one in `share` of the rows, some at a time: most of what they take is waiting for the disk.
fn judge(is_mounted: bool, share: usize) {
    const AT_A_TIME: usize = 6;
    let only = std::env::var("MYRIAD_COPYING").ok();
    let is_chosen = |(number, row): &(usize, &'static Row)| match &only {
        Some(only) => row.line.contains(only.as_str()),
        None => number % share == 0,
    };
    let rows: Vec<&Row> = ROWS.iter().enumerate().filter(is_chosen).map(|(_, row)| row).collect();
    let pattern = pattern();
    let findings = try_all(
        &rows,
        AT_A_TIME,
        rows.len(),
        || false,
        |_, row| {
            let found = compare(&pattern, row, is_mounted);
            if found.is_empty() { Ok(()) } else { Err(found.join("\n\n")) }
        },
    );
    assert!(findings.is_empty(), "\n{}", findings.join("\n\n"));
}

/// Does a row in all directions; what differs from what cp(1) does.
fn compare(pattern: &Place, row: &Row, is_mounted: bool) -> Vec<String> {
    if row.is_for_root && !rustix::process::geteuid().is_root() {
        println!("skipped: cp {}: not for another user than root", row.line);
        return Vec::new();
    }
    let expected = run(pattern, row, Direction::Host, false);
    let directions: &[Direction] = match row.is_inside {
        true => &[Direction::Inside],
        false => &[Direction::In, Direction::Out, Direction::Inside],
    };
    let mut findings = Vec::new();
    for &direction in directions {
        let found = run(pattern, row, direction, is_mounted);
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
    findings
}

/// A mount was detached while files were copied into it. From then on a directory of the volume was the host's of that path: its files were
/// replaced, and the copy said that all was well.
#[test]
fn a_copy_into_a_mount_that_is_detached_stays_off_the_host() {
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    place.mount("");
    let target = place.path("target").display().to_string();
    shell(
        &place,
        &format!("mkdir -p {target} mnt{target}; mkfifo first; echo volume > second; echo host > target/second"),
    );
    let operand = format!("vol.img:{target}");
    let mut copy = place.command(common::PROGRAM, &["cp", "first", "second", "-t", &operand]);
    let copy = copy.spawn().expect("start");
    // It can be opened like this once somebody reads it.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK;
    let deadline = Instant::now() + Duration::from_secs(60);
    let pipe = loop {
        match rustix::fs::open(place.path("first"), flags, Mode::empty()) {
            Ok(pipe) => break pipe,
            Err(error) => assert!(Instant::now() < deadline, "nobody reads the pipe: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    place.line("umount --lazy mnt").ok();
    std::fs::File::from(pipe).write_all(b"content").expect("somebody reads it");
    let answer = common::answer(copy);
    assert_ne!(answer.code, 0, "{answer:?}");
    assert_eq!(std::fs::read_to_string(place.path("target/second")).expect("the host's"), "host\n");
    assert_eq!(std::fs::read_dir(place.path("target")).expect("the host's").count(), 1);
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

/// cp(1) wants whole paths for symbolic links, and what it makes leads nowhere once a volume is mounted somewhere else.
#[test]
fn symbolic_links_lead_from_one_file_to_the_other() {
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    shell(&place, "mkdir -p s/d/e t/in; echo a > s/a; echo f > s/d/e/f; echo old > t/a; ln -s s/d way; ln -s a s/link");
    for name in ["s", "t"] {
        place.line(&format!("import -q {name} vol.img:/{name}")).ok();
    }
    place.line("ln -s s/d vol.img:/way").ok();
    for is_mounted in [false, true] {
        if is_mounted {
            place.mount("");
        }
        let out = format!("vol.img:/t/{is_mounted}");
        place.line(&format!("mkdir {out}")).ok();
        let target = |name: &str| place.line(&format!("readlink {out}/{name}")).ok().text().trim_end().to_owned();
        place.line(&format!("cp -s vol.img:/s/a {out}/link")).ok();
        assert_eq!(target("link"), "../../s/a");
        // By the directories as they are, not by links to them.
        place.line(&format!("cp -s vol.img:/way/e/f {out}")).ok();
        assert_eq!(target("f"), "../../s/d/e/f");
        let said = place.line(&format!("cp -rsv vol.img:/s {out}/tree")).ok();
        assert!(said.lines().contains(&&*format!("'vol.img:/s/d/e/f' -> '{out}/tree/d/e/f'")), "{said:?}");
        assert_eq!(
            (target("tree/d/e/f"), target("tree/link")),
            ("../../../../../s/d/e/f".into(), "../../../s/link".into())
        );
        assert_eq!(place.line(&format!("cat {out}/tree/d/e/f {out}/tree/link")).ok().text(), "f\na\n");
        place
            .line(&format!("cp -s vol.img:/s/d/e/f {out}/link"))
            .expect(1, &["is there already; give -f to replace it"]);
        place.line(&format!("cp -sf vol.img:/s/d/e/f {out}/link")).ok();
        assert_eq!(target("link"), "../../s/d/e/f");
        let said = place.line(&format!("cp -sbv vol.img:/s/a {out}/link")).ok();
        assert_eq!(said.text(), format!("'vol.img:/s/a' -> '{out}/link' (backup: '{out}/link~')\n"));
        for line in ["cp -s s/a vol.img:/t/x", "cp -l s/a vol.img:/t/x", "cp -l vol.img:/s/a x", "cp -l - vol.img:/t/x"]
        {
            place.line(line).expect(2, &["is not in the same volume as", "leave out -l or -s to copy it"]);
        }
    }
    place.umount();
    place.assert_sound();
}

/// A copy that is made of links takes no room for contents, and is no copy of them.
#[test]
fn hard_links_share_what_they_are_names_of() {
    let place = Place::with_volume(16 << 20);
    shell(&place, "mkdir -p s/d; head -c 1000000 /dev/urandom > s/large; echo x > s/d/x; ln s/d/x s/y");
    place.line("import -q s vol.img:/s").ok();
    place.line("cp -al vol.img:/s vol.img:/copy").ok();
    let ino = |path: &str| place.line(&format!("stat -c %i:%h vol.img:/{path}")).ok().text().to_owned();
    for name in ["large", "d/x", "y"] {
        assert_eq!(ino(&format!("s/{name}")), ino(&format!("copy/{name}")), "{name}");
    }
    place.line("verify -q vol.img:/copy s").ok();
    place.line("fsck -n vol.img").expect(0, &[]);
}

/// Without times, a file that was there under the first name of two, and that is as long, was taken for the copy of an earlier run: the second name became
/// one more of it.
#[test]
fn a_second_name_is_none_of_a_file_that_was_there() {
    let place = Place::with_volume(16 << 20);
    // Files come before directories, so `a` is the first name.
    shell(&place, "mkdir -p s/d old; echo new > s/a; ln s/a s/d/b; echo old > old/a");
    place.line("cp -r old vol.img:/s").ok();
    place.line("cp -rnd s vol.img:/").expect(1, &["d/b: the first of its names was there"]);
    assert_eq!(place.line("cat vol.img:/s/a").ok().text(), "old\n");
    assert_eq!(place.line("ls vol.img:/s/d").ok().text(), "");
    // What is there under the second one stays as well, and is nothing to be told of.
    place.line("cp s/d/b vol.img:/s/d/b").ok();
    place.line("cp -rnd s vol.img:/").ok();
    assert_eq!(place.line("cat vol.img:/s/d/b").ok().text(), "new\n");
    // With times they say which file it is.
    place.line("cp -a s vol.img:/t").ok();
    place.line("rm vol.img:/t/d/b").ok();
    place.line("cp -an s/. vol.img:/t").ok();
    assert_eq!(place.line("stat -c %h vol.img:/t/d/b").ok().text(), "2\n");
}

/// Where a file has an ACL, the group's bits of its mode are the most that anybody has whom it names: of a copy without the ACL they were the group's.
#[test]
fn no_group_gets_what_an_acl_gave_to_others() {
    let place = Place::with_volume(16 << 20);
    shell(
        &place,
        "umask 022; mkdir s t; echo old > s/f; chmod 640 s/f; setfacl -m u:1234:rw,g::r s/f; cp -a s/f t/f; echo new > new",
    );
    place.line("import -q s vol.img:/s").ok();
    let mode = |line: &str| place.line(line).ok().text().trim().to_owned();
    assert_eq!(mode("stat -c %a vol.img:/s/f"), "660");
    place.line("cp new vol.img:/s/f").ok();
    assert_eq!(mode("stat -c %a vol.img:/s/f"), "640");
    place.line("cp new t/f").ok();
    shell(&place, "test $(stat -c %a t/f) = 640");
    // A file system without ACLs.
    let program = env!("CARGO_BIN_EXE_myriad");
    let copy =
        format!("mkdir r; unshare -m sh -c 'mount -t ramfs r r; {program} cp -a s r; echo $?; stat -c %a r/s/f'");
    let output = std::process::Command::new("sh").args(["-c", &copy]).current_dir(place.path(".")).output().unwrap();
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() && !told.contains("myriad") {
        return println!("skipped: a copy to a file system without ACLs: {told}");
    }
    // As with cp(1), who wanted the modes kept has not got them.
    assert!(said.trim() == "1\n640" && told.contains("could not be kept"), "{said}{told}");
}

/// As with cp(1): who asks for extended attributes by their name wants all of them, who asks for everything what there can be.
#[test]
fn attributes_that_a_target_refuses_are_an_error_to_who_named_them() {
    let place = Place::with_volume(16 << 20);
    shell(&place, "mkdir r; echo text > f; setfattr -n user.k -v v f");
    place.line("cp -a f vol.img:/f").ok();
    let program = env!("CARGO_BIN_EXE_myriad");
    let copy = |options: &str, source: &str| {
        let script = format!("mount -t ramfs r r && {program} cp {options} {source} r/g; echo $?; cat r/g");
        let output = std::process::Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .current_dir(place.path("."))
            .output()
            .unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (said, told) = copy("", "f");
    if said.trim() != "0\ntext" {
        return println!("skipped: a copy to a file system without attributes: {said}{told}");
    }
    for source in ["f", "vol.img:/f"] {
        for (options, status) in [
            ("-a", 0),
            ("--preserve=all", 0),
            ("--preserve=xattr", 1),
            ("--preserve=context", 1),
            ("-a --preserve=xattr", 1),
            ("-a --no-preserve=xattr", 0),
        ] {
            let (said, told) = copy(options, source);
            let is_told = told.contains("1 extended attributes could not be kept; the first: user.k of g");
            assert_eq!(
                (said, is_told),
                (format!("{status}\ntext\n"), !options.contains("no-")),
                "{options} {source}: {told}"
            );
        }
    }
}

/// What is made in a directory with a default ACL has one of its own, and the users whom that names had rights which the source denies.
#[test]
fn no_user_gets_by_a_default_acl_what_a_source_denies() {
    const FILES: &[&str] = &["small", "large", "holes", "fifo", "d", "d/in", "d/e", "d/e/in"];
    let Some(place) = MountPlace::with_volume(64 << 20) else { return };
    shell(
        &place,
        "umask 022; mkdir -p s/d/e t; cd s; echo new > small; echo new > d/in; echo new > d/e/in; mkfifo fifo
         head -c 300000 /dev/urandom > large; truncate -s 1M holes; printf x | dd of=holes bs=1 seek=500000 conv=notrunc status=none
         chmod 660 small large holes fifo d/in d/e/in; chmod 770 d d/e; cp -a . ../old; cp -a . ../flat; cd ..
         rm -r flat/d; touch -d @5 old/small old/large old/holes; setfacl -d -m u:1234:rwx,g::r t",
    );
    for name in ["s", "t"] {
        place.line(&format!("import -q {name} vol.img:/{name}")).ok();
    }
    let mut findings = Vec::new();
    let mut judge = |line: &str, made: &str, files: &[&str], is_inherited: bool| {
        let look = |file: &str| {
            let said = place.command("getfacl", &["-n", "--skip-base", &format!("{made}/{file}")]).output().unwrap();
            let mode = place.path(made).join(file).symlink_metadata().unwrap();
            (said.stdout.is_empty(), std::os::unix::fs::MetadataExt::mode(&mode) & 0o777)
        };
        for &file in files {
            let expected = if ["d", "d/e"].contains(&file) { 0o770 } else { 0o660 };
            let (is_bare, mode) = look(file);
            if is_bare == is_inherited || !is_inherited && mode != expected {
                findings.push(format!("{line}: {file}: {mode:o}, bare: {is_bare}"));
            }
        }
    };
    for (target, is_mounted) in [("vol.img:/t", false), ("vol.img:/t", true), ("t", false)] {
        let kind = if is_mounted { "mounted" } else { "closed" };
        let at = |name: &str| format!("{target}/{kind}-{name}");
        if is_mounted {
            place.mount("");
        }
        let mut lines = vec![format!("cp -a s {}", at("a")), format!("cp -rp vol.img:/s {}", at("p"))];
        lines.push(format!("cp -r s {}", at("plain")));
        match target {
            "t" => lines.push(format!("export -q vol.img:/s {}", at("export"))),
            _ => {
                lines.push(format!("import -q s {}", at("import")));
                for option in ["update", "replace"] {
                    place.line(&format!("cp -r --preserve=timestamps old {}", at(option))).ok();
                    place.line(&format!("import -q --{option} flat {}", at(option))).ok();
                }
            }
        }
        lines.iter().for_each(|line| drop(place.line(line).ok()));
        if !is_mounted {
            place.mount("");
        }
        let seen = |name: &str| format!("{}/{kind}-{name}", target.replace("vol.img:", "mnt"));
        for line in &lines {
            let made = seen(line.rsplit_once('-').unwrap().1);
            judge(line, &made, FILES, line.ends_with("plain"));
        }
        if target != "t" {
            for option in ["update", "replace"] {
                judge(option, &seen(option), &["small", "large", "holes"], false);
            }
        }
        place.umount();
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    place.assert_sound();
}

/// A file that is written anew, without its own ACL, got the one that the directory hands down.
#[test]
fn no_user_gets_by_a_default_acl_what_a_replaced_file_denied() {
    let place = Place::with_volume(16 << 20);
    shell(&place, "umask 022; mkdir t; echo old > t/f; chmod 660 t/f; setfacl -d -m u:1234:rwx,g::r t; echo new > new");
    place.line("import -q t vol.img:/t").ok();
    place.line("cp new t/f").ok();
    place.line("cp new vol.img:/t/f").ok();
    place.line("export -q vol.img:/t out").ok();
    for file in ["t/f", "out/f"] {
        shell(
            &place,
            &format!("test -z \"$(getfacl --skip-base {file})\"; test $(stat -c %a {file}) = 660; grep -q new {file}"),
        );
    }
}

/// `cp -b x~ x` would make the backup of `x` under the name of the file that it copies.
#[test]
fn no_backup_takes_the_place_of_the_source() {
    let place = Place::with_volume(16 << 20);
    shell(&place, "mkdir s t; echo new > s/x~; echo old > s/x; echo in > t/x");
    place.line("import -q s vol.img:/s").ok();
    for (line, code) in [
        ("cp -b vol.img:/s/x~ vol.img:/s/x", 1),
        ("cp -b s/x~ s/x", 1),
        ("cp -b -T vol.img:/s/x~ vol.img:/s/x", 1),
        ("cp --backup=numbered vol.img:/s/x~ vol.img:/s/x", 0),
        ("cp -b s/x~ vol.img:/s/x", 0),
    ] {
        let said: &[&str] = if code == 0 { &[] } else { &["the backup of what it replaces would take its name"] };
        place.line(line).expect(code, said);
    }
    let kept = place.line("cat vol.img:/s/x~ vol.img:/s/x vol.img:/s/x.~1~ vol.img:/s/x.~2~").ok();
    assert_eq!(kept.text(), "new\nnew\nold\nnew\n");
    place.line("cp -bn s/x vol.img:/s").expect(2, &["leave out one of -b and -n"]);
}

/// cp(1) makes the directories of what it then cannot copy.
#[test]
fn parents_of_what_is_not_copied_are_not_made() {
    let place = Place::with_volume(16 << 20);
    shell(&place, "mkdir -p s/d/e t; echo x > s/d/f; ln -s ../s t/up");
    place.line("import -q s vol.img:/s").ok();
    place.line("mkdir vol.img:/t").ok();
    for (line, code, said) in [
        ("cp --parents SOURCE/d/none TARGET", 1, "d/none: No such file or directory"),
        ("cp --parents SOURCE/none/x TARGET", 1, "No such file or directory"),
        ("cp --parents SOURCE/d/e TARGET", 1, "is a directory; copy it with -r or -a"),
        ("cp --parents SOURCE/d/../d/f TARGET", 1, "leads out of the target by `..`"),
    ] {
        for (source, target) in [("s", "vol.img:/t"), ("vol.img:/s", "t"), ("vol.img:/s", "vol.img:/t")] {
            let line = line.replace("SOURCE", source).replace("TARGET", target);
            place.line(&line).expect(code, &[said]);
        }
    }
    assert_eq!(place.line("ls vol.img:/t").ok().text(), "");
    assert_eq!(std::fs::read_dir(place.path("t")).unwrap().count(), 1);
    let absolute = place.path("s/d/f").canonicalize().unwrap();
    let words = ["cp", "--parents", absolute.to_str().unwrap(), "vol.img:/t"];
    place.run(&words).ok();
    assert_eq!(place.line(&format!("cat vol.img:/t{}", absolute.display())).ok().text(), "x\n");
}

/// A slash behind the new name, or directories that were still to be made, and it was copied until the volume was full.
#[test]
fn no_directory_is_copied_into_itself() {
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    shell(&place, "mkdir -p s/c/d; echo x > s/c/f; ln -s c/d s/way");
    place.line("import -q s vol.img:/s").ok();
    for is_mounted in [false, true] {
        if is_mounted {
            place.mount("");
        }
        for line in [
            "cp -r TOPs TOPs",
            "cp -r TOPs TOPs/new",
            "cp -r TOPs TOPs/new/",
            "cp -r TOPs/ TOPs/c/new//",
            "cp -r TOPs/c/. TOPs/c/d/",
            "cp -rT TOPs/c TOPs/c/d/",
            "cp -r TOPs/c TOPs/way/",
            "cp -rT TOPs/c TOPs/way/new/",
            "cp -r --parents TOPs/c TOPs/c",
            "cp -r --parents TOPs/c TOPs/c/d",
            "cp -r --parents TOPs/c TOPs/c/d/",
            "cp -r vol.img:/ vol.img:/backup",
            "cp -r vol.img:/ vol.img:/backup/",
            "cp -r vol.img:/. vol.img:/s/c/d/",
            "cp -rT vol.img:/ vol.img:/s/new/",
        ] {
            for top in ["vol.img:/", ""] {
                place.line(&line.replace("TOP", top)).expect(1, &["one inside the other"]);
            }
        }
        // What begins like it is another directory.
        let beside = format!("vol.img:/s2{is_mounted}/");
        place.line(&format!("cp -r vol.img:/s {beside}")).ok();
        place.line(&format!("cp -r --parents vol.img:/s/c {beside}c")).ok();
        place.line(&format!("rm -r {beside}")).ok();
        assert_eq!(place.line("find vol.img --json").ok().lines().len(), 6);
    }
    place.umount();
    place.assert_sound();
    assert_eq!(look(&place.path("s")).len(), 5);
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

/// What a killed run left under a file's name was newer than its source, and so the next run left it as it was: the first half of a file.
#[test]
fn what_a_killed_run_has_begun_is_not_newer_than_its_source() {
    let place = Place::with_volume(512 << 20);
    shell(&place, "mkdir out; head -c 100000000 /dev/urandom > big; touch -d '1 hour ago' big");
    place.line("cp -a big vol.img:/big").ok();
    let mut copy = place.command(common::PROGRAM, &["cp", "-au", "vol.img:/big", "out/"]).spawn().unwrap();
    let begun = || {
        let files = place.path("out").read_dir().unwrap().flatten();
        files.filter_map(|file| file.metadata().ok()).any(|found| found.len() > 0)
    };
    while !begun() && copy.try_wait().unwrap().is_none() {}
    copy.kill().unwrap();
    copy.wait().unwrap();
    shell(&place, "test ! -e out/big || cmp big out/big");
    place.line("cp -au vol.img:/big out/").ok();
    shell(&place, "cmp big out/big");
    // A new file is made as one: nobody is asked, and nothing is kept beside it.
    place.line("cp -aub vol.img:/big new").ok();
    shell(&place, "cmp big new; test ! -e new~");
}
