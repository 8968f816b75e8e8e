//! What GNU's tools have no equal of, or do otherwise.

use crate::common::mount::{MountPlace, is_alive, kill, wait_until};
use crate::common::{Answer, PROGRAM, Place, answer, copy_program, put};
use myriad_engine::SetAttr;
use myriad_format::inode::flag;
use serde_json::Value;
use std::io::Write;

const VOLUME: u64 = 16 << 20;

pub fn furnished() -> Place {
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
pub fn with_input(place: &Place, line: &str, input: &str) -> Answer {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut command = place.command(PROGRAM, &words);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    answer(child)
}

pub fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
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
    // As the type of which the kernel tells the daemon no sync.
    let options = "-o commit=0,kind=fuse";
    place.mount(options);
    for (number, target) in ["vol.img", "mnt"].into_iter().enumerate() {
        std::fs::write(place.mounted(&format!("f{number}")), b"content").unwrap();
        let said = place.line(&format!("sync --json {target}")).ok();
        assert!(objects(said.text())[0]["image"].as_str().unwrap().ends_with("vol.img"), "{said:?}");
        let daemon = place.daemon();
        kill(daemon, rustix::process::Signal::KILL);
        wait_until("the daemon is gone", || !is_alive(daemon));
        place.line("umount mnt").ok();
        place.mount(options);
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
        kill(i32::try_from(child.id()).unwrap(), rustix::process::Signal::INT);
        // Its standard input stays open until then.
        wait_until("it ends", || child.try_wait().unwrap().is_some());
        drop(input);
        let said = answer(child);
        assert_eq!(said.code, 130, "{line}: {said:?}");
    }
    assert_eq!(place.line("cat vol.img:/f vol.img:/new").ok().out, b"file\nbegun");
    place.assert_sound();
}

/// More names than are listed at once, each of which goes before the next is looked at.
#[test]
fn large_directories_are_worked_through() {
    const COUNT: usize = 5000;
    // Through a mount only their owner changes their mode.
    let own = SetAttr { uid: Some(rustix::process::geteuid().as_raw()), ..SetAttr::default() };
    let fill = |session: &myriad_engine::Session| {
        session.mkdir("/many", 0o755).unwrap();
        session.set_attr("/many", own).unwrap();
        for number in 0..COUNT {
            let file = format!("/many/file {number}");
            put(session, &file, b"");
            session.set_attr(&file, own).unwrap();
        }
    };
    let work = |place: &Place| {
        let changed = |line: &str| place.line(line).ok().lines().len();
        assert_eq!(changed("chmod -Rc 700 vol.img:/many"), COUNT + 1);
        if rustix::process::geteuid().is_root() {
            assert_eq!(changed("chgrp -Rc 7 vol.img:/many"), COUNT + 1);
        } else {
            println!("skipped: chgrp, for only root may take any group");
        }
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
    copy_program(&place.path("myriad"));
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

/// The first file that could not go ended it, and what came after stayed.
#[test]
fn one_file_that_stays_keeps_no_other() {
    let place = Place::with_volume(VOLUME);
    place.change(|session| {
        session.mkdir("/d", 0o755).unwrap();
        session.mkdir("/d/sub", 0o755).unwrap();
        for name in ["/d/a", "/d/b", "/d/c", "/d/sub/a", "/d/sub/b"] {
            put(session, name, b"");
        }
        for name in ["/d/b", "/d/sub/a"] {
            session.set_attr(name, SetAttr { flags: Some(flag::IMMUTABLE), ..SetAttr::default() }).unwrap();
        }
    });
    let said = place.line("rm -r vol.img:/d").expect(1, &["vol.img:/d/b: Operation not permitted; the file is"]);
    assert!(said.err.contains("vol.img:/d/sub/a: ") && said.err.lines().count() == 2, "{said:?}");
    let mut left = place.line("find vol.img:/d").ok().lines().iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
    left.sort_unstable();
    assert_eq!(left, ["vol.img:/d", "vol.img:/d/b", "vol.img:/d/sub", "vol.img:/d/sub/a"]);
    // With -f chmod says nothing of such files, wherever it meets them.
    assert_eq!(place.line("chmod -R 700 vol.img:/d").expect(1, &[]).err.lines().count(), 2);
    assert_eq!(place.line("chmod -Rf 700 vol.img:/d").expect(1, &[]).err, "");
    assert_eq!(place.line("chown -Rf 7 vol.img:/d").expect(1, &[]).err, "");
    place.assert_sound();
}

/// GNU's mv has these since version 9.3 and 9.5.
#[test]
fn mv_replaces_what_update_says() {
    let place = Place::with_volume(VOLUME);
    place.change(|session| {
        for (name, second) in [("/old", 1), ("/new", 2)] {
            put(session, name, name.as_bytes());
            let mtime = Some(myriad_engine::SetTime::At(second * 1_000_000_000));
            session.set_attr(name, SetAttr { mtime, ..SetAttr::default() }).unwrap();
        }
    });
    let names = || place.line("ls vol.img").ok().text().replace('\n', " ");
    place.line("mv --update=none-fail vol.img:/new vol.img:/old").expect(1, &["vol.img:/old: File exists"]);
    place.line("mv --update=none vol.img:/new vol.img:/old").ok();
    place.line("mv --update vol.img:/old vol.img:/new").ok();
    assert_eq!(names(), "new old ");
    place.line("mv --update=none-fail vol.img:/new vol.img:/free").ok();
    place.line("mv --update=all vol.img:/old vol.img:/free").ok();
    assert_eq!(names(), "free ");
    assert_eq!(place.line("cat vol.img:/free").ok().out, b"/old");
}

/// Without files, and as far as the input went when a signal came.
#[test]
fn tee_says_what_it_wrote() {
    let place = furnished();
    assert_eq!(with_input(&place, "tee", "copied").ok().out, b"copied");
    let mut command = place.command(PROGRAM, &["tee", "--json", "vol.img:/f", "mnt:/x"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"begun").unwrap();
    // The other file is told of once the volume is open, and before anything is read.
    let mut told = [0; 8];
    std::io::Read::read_exact(child.stderr.as_mut().unwrap(), &mut told).unwrap();
    // Long enough that what waits in the pipe is read; should it not be, fewer bytes are told.
    std::thread::sleep(std::time::Duration::from_millis(300));
    kill(i32::try_from(child.id()).unwrap(), rustix::process::Signal::INT);
    wait_until("it ends", || child.try_wait().unwrap().is_some());
    drop(input);
    let said = answer(child);
    let lines = objects(said.text());
    let content = place.line("cat vol.img:/f").ok().out;
    assert_eq!((said.code, &lines[0]["bytes"]), (130, &content.len().into()), "{said:?}");
    assert_eq!((&lines[1]["changed"], &lines[1]["complete"]), (&1.into(), &false.into()), "{said:?}");
    assert!(b"begun".starts_with(&content));
}

/// `mv -b x~ x` and `ln -b x~ x` made the backup of `x` under the name of the file that was to be moved or linked, whose content
/// was gone then.
#[test]
fn no_backup_takes_the_place_of_what_is_moved_or_linked() {
    let place = Place::with_volume(VOLUME);
    place.change(|session| {
        session.mkdir("/s", 0o755).unwrap();
        put(session, "/s/x~", b"new\n");
        put(session, "/s/x", b"old\n");
        session.link("/s/x~", "/s/other").unwrap();
        session.symlink(b"s", "/link").unwrap();
    });
    for verb in ["mv", "ln"] {
        for operands in [
            "-b vol.img:/s/x~ vol.img:/s/x",
            "-b -T vol.img:/s/x~ vol.img:/s/x",
            "-S ~ vol.img:/link/x~ vol.img:/s/x",
            "--backup=simple vol.img:/s/x~ vol.img:/link/x",
        ] {
            place
                .line(&format!("{verb} {operands}"))
                .expect(1, &["x~: the backup of what it replaces would take its name"]);
        }
    }
    let told = |files: &str| place.line(&format!("cat {files}")).ok().text().to_owned();
    assert_eq!(told("vol.img:/s/x~ vol.img:/s/x vol.img:/s/other"), "new\nold\nnew\n");
    place.line("ln --backup=numbered vol.img:/s/x~ vol.img:/s/x").ok();
    assert_eq!(told("vol.img:/s/x~ vol.img:/s/x vol.img:/s/x.~1~"), "new\nnew\nold\n");
    // A file that has another name too loses nothing with this one.
    place.line("mv --backup=simple vol.img:/s/other vol.img:/s/x.~1~").ok();
    assert_eq!(told("vol.img:/s/x.~1~ vol.img:/s/x.~1~~"), "new\nold\n");
}
