//! What programs read of changes and of errors, and what GNU's tools do not do.

use crate::common::mount::MountPlace;
use crate::common::{Answer, PROGRAM, Place, answer, put};
use serde_json::{Value, json};
use std::io::Write;

const VOLUME: u64 = 16 << 20;

fn furnished() -> Place {
    let place = Place::with_volume(VOLUME);
    place.change(furnish);
    place
}

fn furnish(session: &myriad_engine::Session) {
    session.mkdir("/d", 0o755).unwrap();
    put(session, "/f", b"file\n");
    put(session, "/d/g", b"inside\n");
    session.symlink(b"d", "/to-d").unwrap();
}

/// Runs a line with this on standard input.
fn with_input(place: &Place, line: &str, input: &str) -> Answer {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut command = place.command(PROGRAM, &words);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    answer(child)
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Each line is run on the volume as the lines before it left it: what it says of files.
#[test]
fn changes_are_told_as_json() {
    let place = furnished();
    let file = |change: &str, path: &str| json!({ "change": change, "image": "vol.img", "path": path });
    let with = |mut object: Value, fields: Value| {
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    let owner = |uid: u32, before: u32| json!({ "uid": uid, "gid": 7, "uid_before": before, "gid_before": before });
    let cases: &[(&str, &str, Vec<Value>)] = &[
        (
            "mkdir -p --json vol.img:/a/b",
            "",
            ["/a", "/a/b"].map(|path| with(file("created", path), json!({ "type": "directory" }))).to_vec(),
        ),
        ("mv --json vol.img:/f vol.img:/h", "", vec![with(file("renamed", "/h"), json!({ "path_before": "/f" }))]),
        (
            "mv --json --exchange vol.img:/h vol.img:/a",
            "",
            vec![with(file("exchanged", "/a"), json!({ "path_before": "/h" }))],
        ),
        (
            "mv --json --exchange -q vol.img:/h vol.img:/a",
            "",
            vec![with(file("exchanged", "/a"), json!({ "path_before": "/h" }))],
        ),
        ("ln --json vol.img:/h vol.img:/i", "", vec![with(file("linked", "/i"), json!({ "target": "/h" }))]),
        (
            "ln -sb --json x vol.img:/i",
            "",
            vec![with(file("created", "/i"), json!({ "type": "symbolic_link", "target": "x", "backup": "/i~" }))],
        ),
        (
            "touch --json -d @5 vol.img:/h vol.img:/new",
            "",
            [("touched", "/h"), ("created", "/new")]
                .map(|(change, path)| {
                    with(file(change, path), json!({ "atime_ns": 5_000_000_000_u64, "mtime_ns": 5_000_000_000_u64 }))
                })
                .to_vec(),
        ),
        (
            "chmod --json 600 vol.img:/h vol.img:/h",
            "",
            vec![with(file("mode", "/h"), json!({ "mode": "0600", "mode_before": "0644" }))],
        ),
        ("chown --json 5:7 vol.img:/h", "", vec![with(file("owner", "/h"), owner(5, 0))]),
        (
            "truncate --json -s +4 vol.img:/h",
            "",
            vec![with(file("size", "/h"), json!({ "size": 9, "size_before": 5 }))],
        ),
        (
            "tee -a --json vol.img:/h vol.img:/new",
            "more",
            ["/h", "/new"].map(|path| with(file("written", path), json!({ "bytes": 4, "appended": true }))).to_vec(),
        ),
        ("sync --json vol.img", "", vec![file("synced", "/")]),
        (
            "rm -r --json vol.img:/d",
            "",
            vec![
                with(file("removed", "/d/g"), json!({ "type": "regular_file" })),
                with(file("removed", "/d"), json!({ "type": "directory" })),
            ],
        ),
        ("rm -f --json vol.img:/none", "", vec![]),
    ];
    for (line, input, expected) in cases {
        let verb = line.split(' ').next().unwrap();
        let answer = with_input(&place, line, input).ok();
        let mut said = objects(answer.text());
        let sum = said.pop().expect("a line that sums up");
        assert!(sum["seconds"].is_f64(), "{sum}");
        let sum = without(sum, "seconds");
        let count = expected.len();
        assert_eq!(sum, json!({ "verb": verb, "changed": count, "errors": 0, "complete": true }), "{line}");
        let expected: Vec<Value> =
            expected.iter().map(|object| with(json!({ "verb": verb }), object.clone())).collect();
        assert_eq!(said, expected, "{line}");
    }
    place.assert_sound();
}

fn without(mut object: Value, field: &str) -> Value {
    object.as_object_mut().unwrap().remove(field);
    object
}

#[test]
fn errors_are_told_as_json() {
    let place = furnished();
    let missing = json!({ "place": "vol.img:/none", "what": "No such file or directory",
        "next": "myriad ls shows what is there", "kind": "error" });
    let said = place.line("rm --json vol.img:/none vol.img:/f").expect(1, &[]);
    assert_eq!(objects(&said.err), [json!({ "error": missing })]);
    let lines = objects(said.text());
    assert_eq!((&lines[0]["path"], &lines[1]["errors"], &lines[1]["changed"]), (&"/f".into(), &1.into(), &1.into()));
    // Verbs that only look speak so, too.
    let said = place.line("stat --json vol.img:/none").expect(1, &[]);
    assert_eq!(objects(&said.err), [json!({ "error": missing })]);
    for (line, code, what) in [
        ("chmod --json rwx vol.img:/d", 2, "`rwx` is not a mode"),
        ("rm --json", 2, "the following required arguments were not provided: <IMAGE:/path>..."),
        ("remov --json vol.img:/d", 2, "there is no verb `remov`"),
        ("mv --json vol.img:/d", 2, "where is it to go?"),
    ] {
        let said = place.line(line).expect(code, &[]);
        let [error] = &objects(&said.err)[..] else { panic!("{said:?}") };
        assert_eq!(error["error"]["kind"], "usage", "{said:?}");
        assert!(error["error"]["what"].as_str().unwrap().starts_with(what), "{said:?}");
        assert!(said.out.is_empty(), "nothing was done: {said:?}");
    }
    // Files may be named like the option.
    place.line("rm -- --json").expect(2, &["error: "]);
}

/// Through a mount a directory named with a dot at its end was emptied, and with a slash a link to it removed.
#[test]
fn rm_removes_nothing_by_another_name() {
    let place = furnished();
    let check = |place: &Place| {
        for name in ["/d/.", "/d/..", "/d/sub/.."] {
            let said = place.line(&format!("rm -rf vol.img:{name}"));
            said.expect(1, &["cannot be removed"]);
        }
        for how in ["-r", "-rv", "-d"] {
            let said = place.line(&format!("rm {how} vol.img:/to-d/"));
            said.expect(
                1,
                &["vol.img:/to-d/: a symbolic link to a directory", "without the slash the link is removed"],
            );
        }
        assert_eq!(place.line("cat vol.img:/to-d/g").ok().out, b"inside\n");
    };
    check(&place);
    let Some(mounted) = MountPlace::with_volume(VOLUME) else { return };
    mounted.change(furnish);
    mounted.mount("");
    check(&mounted);
    mounted.umount();
}

/// GNU's rm asks whether a directory is to go in which something stays, and then fails.
#[test]
fn what_cannot_be_removed_is_not_asked_about() {
    let place = furnished();
    let said = with_input(&place, "rm -ri vol.img:/d", "y\nn\ny\n");
    let asked = "rm: descend into directory 'vol.img:/d'? rm: remove regular file 'vol.img:/d/g'? ";
    assert_eq!((said.code, &*said.err), (0, asked));
    assert_eq!(place.line("cat vol.img:/d/g").ok().out, b"inside\n");
}

#[test]
fn a_mounted_volume_is_synced_by_either_name() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("-o commit=0");
    for (number, target) in ["vol.img", "mnt"].into_iter().enumerate() {
        std::fs::write(place.mounted(&format!("f{number}")), b"content").unwrap();
        let said = place.line(&format!("sync --json {target}")).ok();
        assert!(objects(said.text())[0]["image"].as_str().unwrap().ends_with("vol.img"), "{said:?}");
        let daemon = place.daemon();
        crate::common::mount::kill(daemon, rustix::process::Signal::KILL);
        crate::common::mount::wait_until("the daemon is gone", || !crate::common::mount::is_alive(daemon));
        place.line("umount mnt").ok();
        place.mount("-o commit=0");
        assert_eq!(std::fs::read(place.mounted(&format!("f{number}"))).unwrap(), b"content", "{target}");
    }
    place.umount();
    place.assert_sound();
    place.write("other", b"no volume");
    place.line("sync other").expect(1, &["other: not a Myriad volume; name a volume"]);
    place.line("sync none").expect(1, &["none: No such file"]);
}

/// As of any command in a pipe.
#[test]
fn tee_ends_with_its_reader() {
    let place = furnished();
    let (gone, stdout) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(gone);
    let mut command = place.command(PROGRAM, &["tee", "vol.img:/f"]);
    command.stdin(std::process::Stdio::piped()).stdout(std::os::fd::OwnedFd::from(stdout));
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"some").unwrap();
    let said = answer(child);
    assert_eq!((said.code, &*said.err), (141, ""));
    place.assert_sound();
}

/// Its user waits no longer: at the first signal, and not only after the next answer.
#[test]
fn questions_end_with_a_signal() {
    let place = furnished();
    for line in ["rm -i vol.img:/f", "tee vol.img:/new"] {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = place.command(PROGRAM, &words);
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        if line.starts_with("rm") {
            let mut asked = [0; 8];
            std::io::Read::read_exact(child.stderr.as_mut().unwrap(), &mut asked).unwrap();
        } else {
            // It has begun when it hands on what it has read.
            let mut input = &input;
            input.write_all(b"begun").unwrap();
            let mut copied = [0; 5];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut copied).unwrap();
        }
        crate::common::mount::kill(i32::try_from(child.id()).unwrap(), rustix::process::Signal::INT);
        let said = answer(child);
        assert_eq!(said.code, 130, "{line}: {said:?}");
        drop(input);
    }
    assert_eq!(place.line("cat vol.img:/f vol.img:/new").ok().out, b"file\nbegun");
    place.assert_sound();
}

/// More names than are listed at once, each of which goes before the next is looked at.
#[test]
fn large_directories_are_worked_through() {
    const COUNT: usize = 5000;
    let fill = |session: &myriad_engine::Session| {
        session.mkdir("/many", 0o755).unwrap();
        (0..COUNT).for_each(|number| put(session, format!("/many/file {number}"), b""));
    };
    let work = |place: &Place| {
        let changed = |line: &str| place.line(line).ok().lines().len();
        assert_eq!(changed("chmod -Rc 700 vol.img:/many"), COUNT + 1);
        assert_eq!(changed("chgrp -Rc 7 vol.img:/many"), COUNT + 1);
        assert_eq!(changed("rm -rv vol.img:/many"), COUNT + 1);
        assert_eq!(place.line("ls vol.img").ok().text(), "");
    };
    let place = Place::with_volume(4 * VOLUME);
    place.change(fill);
    work(&place);
    place.assert_sound();
    let Some(mounted) = MountPlace::with_volume(4 * VOLUME) else { return };
    mounted.change(fill);
    mounted.mount("");
    work(&mounted);
    mounted.umount();
    mounted.assert_sound();
}

/// Files that he makes, that is; of the image he may change everything.
#[test]
fn a_plain_users_files_are_his() {
    const USER: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let place = furnished();
    // The checkout may lie where other users may not go.
    std::fs::copy(PROGRAM, place.path("myriad")).unwrap();
    let own = |path: &std::path::Path| std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    own(&place.path(""));
    own(&place.path("vol.img"));
    let run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = place.command(place.path("myriad"), &words);
        std::os::unix::process::CommandExt::uid(&mut command, USER).env("TZ", "UTC");
        answer(command.spawn().unwrap())
    };
    for line in [
        "touch vol.img:/touched",
        "tee vol.img:/teed",
        "truncate -s 1 vol.img:/cut",
        "mkdir vol.img:/made",
        "ln -s x vol.img:/link",
    ] {
        run(line).ok();
        let path = line.rsplit(' ').next().unwrap();
        assert_eq!(place.line(&format!("stat --json {path}")).ok().json()["uid"], USER, "{line}");
    }
    // Who may write the image may do anything in it, with what is another's, too.
    run("chmod 600 vol.img:/f").ok();
    run("chown 7:8 vol.img:/f").ok();
    let stat = place.line("stat --json vol.img:/f").ok().json();
    assert_eq!((&stat["mode"], &stat["uid"], &stat["gid"]), (&"0600".into(), &7.into(), &8.into()));
    place.assert_sound();
}
