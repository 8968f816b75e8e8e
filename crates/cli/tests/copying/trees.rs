//! `import` and `export` of what was chosen, and of what differs.

use super::common::mount::MountPlace;
use super::common::{Answer, Place};
use super::look::{Seen, compare, look};
use super::shell;
use std::path::Path;

/// A source, and an earlier state of it.
const TREES: &str = r#"
    umask 022; mkdir -p s/d/e s/new s/cache s/swap2 t/d/gone/deep t/old t/cache t/swap1 t/d/keep.o.d
    echo same > s/same; echo same > t/same; echo ONE > s/content; echo one > t/content
    echo longer > s/size; echo short > t/size; echo time > s/time; echo TIME > t/time
    echo mode > s/mode; echo mode > t/mode; echo c > s/d/c; echo C > t/d/c; echo n > s/new/n; echo e > s/d/e/e
    echo x > s/cache/x; echo x > t/cache/y; echo o > s/d/a.o; echo oo > t/d/b.o; echo p > t/d/gone/p; echo o > t/d/gone/deep/o.o
    echo q > t/old/q; echo f > s/swap1; echo f > t/swap1/f; echo f > s/swap2/f; echo f > t/swap2
    ln -s here s/link; ln -s there t/link; ln -s x s/tofile; echo file > t/tofile
    echo h > s/h; ln s/h s/d/h; echo h > t/h; echo h > t/d/h
    find s t -exec touch -h -d '2010-01-01 00:00:00.25' {} +
    chmod 600 s/mode; touch -d '2011-01-01' t/time
"#;

fn furnish(place: &Place) {
    shell(place, TREES);
    place.line("mkfs -q --size 16M vol.img").ok();
    place.line("import -q t vol.img:/t").ok();
}

/// What is in the volume.
fn exported(place: &Place, from: &str) -> Vec<Seen> {
    shell(place, "rm -rf seen");
    place.line(&format!("export -q {from} seen")).ok();
    look(&place.path("seen"))
}

/// Whether the tests' own patterns, `*.o` and `/cache/`, leave a file out.
fn is_excluded(path: &Path) -> bool {
    path.starts_with("cache") || path.ancestors().any(|path| path.extension().is_some_and(|end| end == "o"))
}

/// The source as it is, with what is excluded as it was; but contents that nobody could tell apart are the old ones.
fn expected(place: &Place, excludes: bool) -> Vec<Seen> {
    let (source, target) = (look(&place.path("s")), look(&place.path("t")));
    let is_excluded = |file: &&Seen| excludes && is_excluded(&file.path);
    let mut all: Vec<Seen> = source.iter().filter(|file| !is_excluded(file)).cloned().collect();
    all.extend(target.iter().filter(is_excluded).cloned());
    if excludes {
        // What is excluded keeps the directories that it is in.
        for path in ["d/gone", "d/gone/deep"] {
            let directory = target.iter().find(|file| file.path == Path::new(path)).unwrap();
            // They lost something, and nobody gave them their time again.
            let what = directory.what.split(' ').take(2).collect::<Vec<_>>().join(" ");
            let is_touched = path == "d/gone";
            all.push(if is_touched { Seen { what, ..directory.clone() } } else { directory.clone() });
        }
    }
    for name in ["content", "d/c"] {
        let old = target.iter().find(|file| file.path == Path::new(name)).unwrap();
        *all.iter_mut().find(|file| file.path == old.path).unwrap() = old.clone();
    }
    all.sort();
    all
}

fn told(answer: &Answer) -> Vec<&str> {
    let mut lines = answer.lines();
    lines.sort_unstable();
    lines
}

fn check_updates(place: &Place, target: &str) {
    let before = exported(place, target);
    for options in ["--exclude *.o --exclude /cache/", ""] {
        let line = format!("import --update --delete {options} s {target}");
        let dry = place.line(&format!("{line} -n -q")).ok();
        let dry_summary = place.line(&format!("{line} --dry-run -q --json")).ok().json();
        if !options.is_empty() {
            assert_eq!(compare(&before, &exported(place, target)), [""; 0], "a dry run changes nothing");
        }
        let wet = place.line(&format!("{line} -v -q")).ok();
        assert_eq!(told(&dry), told(&wet), "{line}");
        let lines = told(&wet);
        let deleted = lines.iter().filter(|line| line.starts_with("deleting ")).count();
        assert_eq!(dry_summary["deleted"], deleted, "{lines:?}");
        let differences = compare(&expected(place, !options.is_empty()), &exported(place, target));
        assert!(differences.is_empty(), "{line}: {differences:#?}\n{lines:#?}");
        let again = place.line(&format!("{line} -q --json")).ok().json();
        let keys = ["files", "directories", "symlinks", "hard_links", "others", "deleted", "bytes"];
        assert_eq!(keys.map(|key| again[key].as_u64()), [Some(0); 7], "nothing is left to do: {again}");
    }
}

#[test]
fn a_volume_becomes_as_the_source_is() {
    let place = Place::new();
    furnish(&place);
    check_updates(&place, "vol.img:/t");
    place.assert_sound();
}

#[test]
fn a_mounted_volume_becomes_as_the_source_is() {
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    shell(&place, "rm vol.img");
    furnish(&place);
    place.mount("");
    check_updates(&place, "vol.img:/t");
    place.umount();
    place.assert_sound();
}

/// A directory in sync is not counted, one that differs is; and a dry run says that it was one.
#[test]
fn an_update_counts_what_differs() {
    let place = Place::new();
    shell(&place, "mkdir -p s/d s/e; echo x > s/d/x; touch -d 2020-01-01 s/d/x s/d s/e s");
    place.line("mkfs -q --size 16M vol.img").ok();
    place.line("import -q s vol.img:/t").ok();
    place
        .line("import --update --delete s vol.img:/t")
        .expect(0, &["myriad: updated 0 entries, 0 in", "; 1 there already"]);
    shell(&place, "touch -d 2021-01-01 s/e; rm s/d/x; touch -d 2020-01-01 s/d");
    let dry = place.line("import --update --delete -n s vol.img:/t").expect(0, &["; 1 would be deleted"]);
    assert!(dry.err.starts_with("myriad: would have updated 1 entry (1 directory), "), "{dry:?}");
    let wet = place.line("import --update --delete s vol.img:/t").expect(0, &["myriad: updated ", "; 1 deleted"]);
    assert!(!wet.err.contains("would"), "{wet:?}");
    place.line("import --update --delete s vol.img:/t").expect(0, &["updated 0 entries"]);
    shell(&place, "mkdir out");
    place.line("export -q vol.img:/t out").ok();
    place.line("export --update vol.img:/t out").expect(0, &["myriad: updated 0 entries"]);
}

/// They would come back as others than they went.
#[test]
fn dates_past_what_a_volume_holds_are_told_of_once() {
    let place = Place::new();
    shell(&place, "mkdir s; echo x > s/a; echo x > s/b; touch -d 2020-01-01 s/a s/b s");
    shell(
        &place,
        "tar -cf near.tar s; tar --format=pax --mtime=2500-01-01 -cf far.tar s/a s/b; touch -d 2500-01-01 s/b",
    );
    place.line("mkfs -q --size 16M vol.img").ok();
    place.line("import -q near.tar vol.img:/near").ok();
    let said = place.line("import near.tar vol.img:/again").expect(0, &["imported"]).err;
    assert!(!said.contains("past"), "{said}");
    let expected = "myriad: 2 files have times past what a volume holds, 1677-09-21 to 2262-04-11, and got the nearest; the first is s/a\n";
    let said = place.line("import far.tar vol.img:/far").expect(0, &[expected]).err;
    assert_eq!(said.matches("past what").count(), 1, "{said}");
    let time = place.line("stat -c %y vol.img:/far/s/a").ok();
    assert!(time.text().starts_with("2262-04-11"), "{time:?}");
    // Of the second run nothing is made.
    let said = place.line("import --update far.tar vol.img:/far").expect(0, &["updated 0 entries"]).err;
    assert!(!said.contains("past"), "{said}");
    let kept = std::fs::metadata(place.path("s/b")).unwrap().modified().unwrap();
    if kept.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() < 16_000_000_000 {
        println!("skipped: the host holds no such dates");
        return;
    }
    place.line("import s vol.img:/s").expect(0, &["1 file has times past what", "the first is b\n"]);
}

#[test]
fn update_alone_deletes_nothing_and_delete_needs_it() {
    let place = Place::new();
    furnish(&place);
    let answer = place.line("import -q --update s vol.img:/t");
    answer.expect(1, &["vol.img:/t/swap1: is a directory", "vol.img:/t/swap2: is there, and is not a directory"]);
    place.line("cat vol.img:/t/old/q vol.img:/t/size vol.img:/t/new/n").ok();
    place.line("import --delete s vol.img:/t").expect(2, &["--update"]);
    place.line("import --update --replace s vol.img:/t").expect(2, &["--replace"]);
    place.assert_sound();
}

/// What could not be asked for in the source was as good as missing.
#[test]
fn what_the_source_does_not_show_is_not_deleted() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let place = Place::new();
    shell(&place, "mkdir -p s/closed s/open; echo 1 > s/closed/f; echo 2 > s/open/g; chmod 755 . s s/open");
    place.line("mkfs -q --size 16M vol.img").ok();
    place.line("import -q s vol.img:/").ok();
    shell(&place, "chmod 700 s/closed; rm s/open/g; chmod 666 vol.img");
    shell(&place, &format!("cp {} program; chmod 755 program", super::common::PROGRAM));
    let mut command = place.command(place.path("program"), &["import", "--update", "--delete", "s", "vol.img:/"]);
    let answer = super::common::answer(command.uid(65534).gid(65534).spawn().expect("start"));
    answer.expect(1, &["s/closed: Permission denied"]);
    assert_eq!(place.line("cat vol.img:/closed/f").ok().text(), "1\n");
    place.line("cat vol.img:/open/g").expect(1, &["No such file"]);
    place.assert_sound();
}

#[test]
fn archives_take_what_makes_sense_for_them() {
    let place = Place::new();
    furnish(&place);
    shell(
        &place,
        "tar --format=pax -cf s.tar -C s .; mkdir plain; cp -a s/. plain; rm -r plain/cache plain/d/a.o; touch -d '2010-01-01 00:00:00.25' plain/d",
    );
    let lines = place.line("import -qv --exclude *.o --exclude /cache/ s.tar vol.img:/a").ok();
    assert!(lines.lines().contains(&"d/c") && !lines.lines().iter().any(|line| line.contains("cache")), "{lines:?}");
    assert_eq!(compare(&look(&place.path("plain")), &exported(&place, "vol.img:/a")), [""; 0]);
    let again = place.line("import -q --json --update --exclude *.o --exclude /cache/ s.tar vol.img:/a").ok().json();
    assert_eq!((again["files"].as_u64(), again["hard_links"].as_u64()), (Some(0), Some(0)), "{again}");
    place.line("import -qn s.tar vol.img:/b").ok();
    place.line("ls vol.img:/b").expect(1, &["No such file"]);
    let next = "is for directories, and an archive is none";
    place.line("import --update --delete s.tar vol.img:/a").expect(2, &["s.tar: --delete", next]);
    place.line("import -x s.tar vol.img:/a").expect(2, &["s.tar: --one-file-system", next]);
    place.line("import --exclude / s vol.img:/a").expect(2, &["give a name"]);
    place.assert_sound();
}

#[test]
fn exports_take_what_is_chosen() {
    let place = Place::new();
    furnish(&place);
    place.line("import -q s vol.img:/s").ok();
    shell(
        &place,
        "mkdir plain; cp -a s/. plain; rm -r plain/cache plain/d/a.o; touch -d '2010-01-01 00:00:00.25' plain/d",
    );
    let excludes = "--exclude *.o --exclude /cache/";
    let dry = place.line(&format!("export -qn {excludes} vol.img:/s out")).ok();
    assert!(!place.path("out").exists(), "a dry run makes nothing");
    let wet = place.line(&format!("export -qv {excludes} vol.img:/s out")).ok();
    assert_eq!(told(&dry), told(&wet));
    assert_eq!(compare(&look(&place.path("plain")), &look(&place.path("out"))), [""; 0]);
    // An archive has the same.
    let dry = place.line(&format!("export -qn {excludes} vol.img:/s out.tar")).ok();
    assert!(!place.path("out.tar").exists(), "a dry run makes nothing");
    assert_eq!(told(&dry), told(&wet));
    let wet = place.line(&format!("export -qv {excludes} vol.img:/s out.tar")).ok();
    assert_eq!(told(&dry), told(&wet));
    shell(&place, "mkdir unpacked; tar -xpf out.tar -C unpacked");
    assert_eq!(compare(&look(&place.path("plain")), &look(&place.path("unpacked"))), [""; 0]);
    // What is printed of an archive on standard output goes beside it.
    let answer = place.line("export -v vol.img:/s/new -").expect(0, &["n\n"]);
    assert_eq!(answer.out.len() % 512, 0, "an archive and nothing else");
    // To a directory that is there.
    shell(&place, "rm -r out; cp -a t out; rm -r out/swap1 out/swap2");
    let summary = place.line("export -q --json --update vol.img:/s out").ok().json();
    assert_eq!(summary["skipped"].as_u64(), Some(4), "same, content, d/c and h are not written again: {summary}");
    assert_eq!(std::fs::read(place.path("out/content")).unwrap(), b"one\n");
    assert_eq!(std::fs::read(place.path("out/size")).unwrap(), b"longer\n");
    place.line("export --update vol.img:/s out.tar").expect(2, &["--update is for directories"]);
}

#[test]
fn archives_of_other_kinds_are_refused_by_name() {
    let place = Place::new();
    furnish(&place);
    for name in ["x.zip", "x.tar.bz2", "X.7Z"] {
        let answer = place.line(&format!("export vol.img:/ {name}"));
        answer.expect(2, &[name, "are not written here", ".tar.gz", "--tar"]);
        assert!(!place.path(name).exists(), "{name}");
    }
    std::fs::create_dir(place.path("y.zip")).unwrap();
    place.line("export -q vol.img:/t y.zip").ok();
    place.line("export -q --tar vol.img:/t x.zip").ok();
    for source in ["s/same", "x.png"] {
        std::fs::write(place.path("x.png"), vec![7; 4096]).unwrap();
        let answer = place.line(&format!("import {source} vol.img:/n"));
        answer.expect(1, &[source, "is not a tar archive (plain, gzip, zstd or xz)", "myriad cp"]);
    }
    shell(&place, "printf 'PK\\003\\004 and more' > z; printf 'BZh91AY&SY' > b; printf '7z\\274\\257\\047\\034' > s7");
    place.line("import z vol.img:/n").expect(1, &["is a zip archive", "unpack it"]);
    place.line("import s7 vol.img:/n").expect(1, &["is a 7z archive", "unpack it"]);
    place.line("import b vol.img:/n").expect(1, &["bzip2"]);
}

/// Every field of the summary is there, whatever was done.
#[test]
fn summaries_have_all_their_fields() {
    let place = Place::new();
    furnish(&place);
    let keys = [
        "verb",
        "files",
        "directories",
        "symlinks",
        "hard_links",
        "others",
        "bytes",
        "skipped",
        "differing",
        "left_out",
        "deleted",
        "unreadable",
        "errors",
        "complete",
        "seconds",
    ];
    let check = |line: &str, code: i32, numbers: [u64; 4], is_complete: bool| {
        let answer = place.line(line).expect(code, &[]);
        let summary = answer.json();
        let mut found: Vec<&str> = summary.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = keys.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{line}");
        assert_eq!(summary["verb"], line.split(' ').next().unwrap());
        let fields = ["files", "bytes", "skipped", "errors"].map(|key| summary[key].as_u64().unwrap());
        assert_eq!((fields, summary["complete"].as_bool()), (numbers, Some(is_complete)), "{line}: {answer:?}");
    };
    check("cp --json s/same s/none s/size s/d vol.img:/", 1, [2, 12, 0, 2], true);
    check("cp --json -n s/same s/new/n vol.img:/", 0, [1, 2, 1, 0], true);
    check("cp --json -r s/cache s/new vol.img:/", 0, [2, 4, 0, 0], true);
    check("import -q --json s/new vol.img:/in", 0, [1, 2, 0, 0], true);
    check("import -q --json --skip-existing s/new vol.img:/in", 0, [0, 0, 1, 0], true);
    check("export -q --json vol.img:/in out", 0, [1, 2, 0, 0], true);
    check("export -q --json vol.img:/in out.tar", 0, [1, 2, 0, 0], true);
    // Nothing has begun.
    for line in ["cp --json s/same none.img:/x", "import --json none vol.img:/x", "export --json vol.img:/none out"] {
        assert_eq!(place.line(line).expect(1, &[]).text(), "", "{line}");
    }
}

/// A directory that was there kept the ACLs that it had, and with them went on what the source denies.
#[test]
fn a_directory_that_was_there_has_no_acl_that_its_source_has_not() {
    let Some(place) = MountPlace::with_volume(64 << 20) else { return };
    shell(
        &place,
        "umask 022; mkdir -p s/d t/d; echo x > s/d/f; setfacl -m u:1234:rwx t/d; setfacl -d -m u:1234:rwx t/d; chmod 750 s/d; cp -a t u",
    );
    for name in ["a", "b", "c"] {
        place.line(&format!("import -q t vol.img:/{name}")).ok();
    }
    place.line("cp -a s/d u/").ok();
    place.line("cp -a s/d vol.img:/a/").ok();
    place.line("import -q --update s vol.img:/b").ok();
    place.mount("");
    place.line("cp -a s/d vol.img:/c/").ok();
    for made in ["u/d", "mnt/a/d", "mnt/b/d", "mnt/c/d"] {
        shell(&place, &format!("test -z \"$(getfacl --skip-base {made})\"; test $(stat -c %a {made}) = 750"));
    }
    place.umount();
    place.assert_sound();
}
