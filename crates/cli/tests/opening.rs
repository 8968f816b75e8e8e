//! How verbs come to a volume: waiting for one that is in use, and by the directory where one is mounted.

mod common;

use common::mount::MountPlace;
use common::{Place, answer, put};
use myriad_engine::{Fs, MountOptions};
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

/// Starts a run, which says on standard error whom it waits for: its first line.
fn waiting(place: &Place, line: &str) -> (Child, String, BufReader<std::process::ChildStderr>) {
    let mut child = place.command(common::PROGRAM, &line.split(' ').collect::<Vec<_>>()).spawn().expect("start");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut first = String::new();
    said.read_line(&mut first).expect("a line");
    (child, first, said)
}

fn hold(place: &Place) -> Fs {
    Fs::open(&place.path("vol.img"), MountOptions::default()).expect("open")
}

#[test]
fn a_verb_that_waits_goes_on_once_the_volume_is_free() {
    let place = Place::with_volume(16 << 20);
    place.change(|session| put(session, "/f", b"here"));
    for line in [
        "cat --wait vol.img:/f",
        "info --wait=1000 vol.img",
        "mkdir --wait vol.img:/d",
        "debug --wait vol.img superblock",
    ] {
        let fs = hold(&place);
        let (child, first, mut rest) = waiting(&place, line);
        // Not always this process: one that another test is just starting has the file open, too.
        let is_told = first.contains("in use by process ") && first.contains("; waiting until it is done");
        assert!(is_told, "{line}: {first}");
        fs.close().unwrap();
        let mut more = String::new();
        std::io::Read::read_to_string(&mut rest, &mut more).unwrap();
        assert_eq!(more, "", "{line}: it is said once");
        let answer = answer(child).expect(0, &[]);
        if line.starts_with("cat") {
            assert_eq!(answer.text(), "here");
        }
    }
    place.line("ls vol.img:/d").ok();
}

#[test]
fn patience_ends() {
    let place = Place::with_volume(16 << 20);
    let fs = hold(&place);
    place.line("cat vol.img:/f").expect(1, &["in use by process"]);
    let refused = place.line("ls --wait=0 vol.img").expect(1, &["in use by process"]);
    assert!(!refused.err.contains("waiting"), "{refused:?}");
    place
        .line("ls --wait=0.3 vol.img")
        .expect(1, &["waiting until it is done", "wait until it is done with the volume (as --wait does), or"]);
    place
        .line("mkfs -f --size 16M vol.img")
        .expect(1, &["in use by process", "wait until it is done with the volume, or unmount it"]);
    let quiet = place.line("-q ls --wait=0.3 vol.img").expect(1, &[]);
    assert_eq!(quiet.err.lines().count(), 1, "{quiet:?}");
    place.line("ls --wait=soon vol.img").expect(2, &["not a number of seconds"]);
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let (child, ..) = waiting(&place, "ls --wait vol.img");
        let begun = Instant::now();
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        answer(child).expect(128 + signal.as_raw(), &[]);
        assert!(begun.elapsed() < Duration::from_secs(30), "it ended long after the signal");
    }
    fs.close().unwrap();
}

#[test]
fn a_verb_that_waits_takes_a_volume_that_is_mounted_meanwhile() {
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    place.change(|session| put(session, "/f", b"here"));
    place.mount("");
    // No need to wait.
    assert_eq!(place.line("cat --wait vol.img:/f").ok().text(), "here");
    // This one works on no mounted volume.
    let (child, first, _rest) = waiting(&place, "verify --wait vol.img mnt");
    assert!(first.contains("waiting until it is done"), "{first}");
    place.umount();
    answer(child).expect(1, &[]);
}

#[test]
fn a_mount_point_stands_for_the_volume_that_is_mounted_there() {
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    place.change(|session| {
        session.mkdir("/doc", 0o755).unwrap();
        put(session, "/doc/f", b"here");
    });
    for options in ["", "-r"] {
        place.mount(options);
        assert!(place.line("ls mnt").ok().lines().contains(&"doc"));
        assert_eq!(place.line("ls mnt/:/doc").ok().text(), "f\n");
        assert_eq!(place.line("cat mnt:/doc/f").ok().text(), "here");
        assert!(place.line("df mnt").ok().text().contains("mnt"));
        assert!(place.line("info mnt").ok().text().contains("mounted"));
        place.line("cp mnt:/doc/f out").ok();
        let said = format!("a directory in the volume that is mounted on {}", place.path("mnt").display());
        let next = format!("write {}:/doc", place.path("mnt").display());
        place.line("ls mnt/doc").expect(1, &[&said, &next]);
        match options {
            "" => drop(place.line("cp out mnt:/g").ok()),
            _ => drop(place.line("cp out mnt:/h").expect(1, &["Read-only file system"])),
        }
        place.umount();
        place.line("ls mnt").expect(1, &["a directory of the host, not an image"]);
    }
    assert_eq!(place.line("cat vol.img:/g").ok().text(), "here");
}

#[test]
fn a_second_mount_on_one_directory_is_refused() {
    let Some(place) = MountPlace::with_volume(16 << 20) else { return };
    place.line("mkfs -q --size 16M other.img").ok();
    place.mount("");
    let who = format!("vol.img is mounted there by process {}", place.daemon());
    place.line("mount other.img mnt").expect(1, &["mnt: ", &who, "myriad umount"]);
    place.line("mount -f other.img mnt").expect(1, &[&who]);
    place.umount();
    place.line("mount other.img mnt").ok();
    place.umount();
}

/// The image was named, and no place in it: the message was about a file of the host that is not there.
#[test]
fn a_forgotten_colon_or_slash_is_shown_where_it_belongs() {
    let place = Place::with_volume(16 << 20);
    place.write("f", b"x");
    for (line, code, meant) in [
        ("ls vol.img/x", 1, "write vol.img:/x"),
        ("ls vol.img:x/y", 1, "write vol.img:/x/y"),
        ("find vol.img/x/", 1, "write vol.img:/x/"),
        ("stat vol.img:", 2, "write vol.img:/"),
        ("mount vol.img:/d .", 1, "the volume itself is to be named; write vol.img\n"),
        ("mount vol.im .", 1, "vol.im: No such file or directory; check the name; myriad mkfs makes a volume\n"),
        ("info vol.img:/", 1, "the volume itself is to be named; write vol.img\n"),
        ("cat vol.img", 2, "write vol.img:/"),
        ("mkdir vol.img/docs", 2, "write vol.img:/docs"),
        ("mkdir none.img", 2, "write IMAGE:/path"),
        ("import . vol.img:docs", 2, "write vol.img:/docs"),
        ("export vol.img:docs out", 1, "write vol.img:/docs"),
        ("cp f vol.img/docs", 1, "write vol.img:/docs"),
        ("cp f vol.img:docs", 2, "write vol.img:/"),
        ("cp vol.img/f out", 1, "write vol.img:/f"),
        ("cp vol.img:f out", 1, "write vol.img:/f"),
        ("cp none out", 1, "none: No such file or directory; check the name"),
    ] {
        place.line(line).expect(code, &[meant]);
    }
    assert!(!place.path("out").exists());
}

#[test]
fn a_size_that_no_file_of_the_host_can_have_is_told_with_the_largest() {
    let place = Place::new();
    let largest = |size: &str| {
        let answer = place.line(&format!("mkfs --size {size} big.img"));
        assert!(!place.path("big.img").exists(), "nothing is left of it");
        let (_, at_most) = answer.err.split_once(" has ").unwrap_or_else(|| panic!("{answer:?}"));
        let bytes =
            at_most.split(['(', ' ']).find_map(|word| word.parse::<u64>().ok().filter(|bytes| *bytes > 1 << 20));
        answer.expect(1, &["big.img: a file on that file system has ", "give a smaller --size"]);
        bytes.expect("a number of bytes")
    };
    // No file system holds a file of 8 EiB.
    let most = largest("8E");
    let file = std::fs::File::create(place.path("largest")).unwrap();
    file.set_len(most).unwrap();
    assert!(most == i64::MAX as u64 || file.set_len(most + 1).is_err(), "{most} is not the largest");
}

/// With twenty operands it was said twenty times, and waited for as often.
#[test]
fn a_volume_in_use_is_told_of_once_in_a_run() {
    let place = Place::with_volume(16 << 20);
    let fs = hold(&place);
    for line in [
        "rm vol.img:/a vol.img:/b vol.img:/c",
        "touch vol.img:/a vol.img:/b",
        "mkdir vol.img:/a vol.img:/b",
        "chmod 600 vol.img:/a vol.img:/b",
        "cat vol.img:/a vol.img:/b",
        "cp vol.img:/a vol.img:/b .",
    ] {
        let said = place.line(line).expect(1, &["vol.img: in use by process"]).err;
        assert_eq!(said.matches("in use").count(), 1, "{line}: {said}");
    }
    let summary = place.line("rm --json vol.img:/a vol.img:/b vol.img:/c").json();
    assert_eq!(summary["errors"], 3, "they count all the same: {summary}");
    fs.close().unwrap();
}
