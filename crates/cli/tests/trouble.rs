//! What goes wrong in the field: a message that names thing, place and next step, the right exit code, nothing lost.

mod common;

use common::{PROGRAM, Place, answer, bytes, put};
use myriad_engine::{Cred, Errno, Error, Fs, MkfsOptions, MountOptions, OpenOptions, Order};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;

const VOLUME: u64 = 64 << 20;

fn with_letter() -> Place {
    let place = Place::with_volume(VOLUME);
    place.change(|session| put(session, "/letter", b"dear all"));
    place
}

#[track_caller]
fn assert_letter(place: &Place) {
    assert_eq!(place.line("cat vol.img:/letter").ok().out, b"dear all");
    place.assert_sound();
}

#[test]
fn full_volume() {
    let place = Place::with_volume(4 << 20);
    place.change(|session| {
        put(session, "/letter", b"dear all");
        let options = OpenOptions { write: true, create: true, mode: 0o600, ..OpenOptions::default() };
        let file = session.open("/filler", options).unwrap();
        let mut offset = 0;
        // Large pieces, then small ones: until not a block is left.
        for size in [1 << 20, 64 << 10, 4 << 10] {
            while let Ok(length) = file.write_at(&vec![1; size], offset) {
                offset += length as u64;
            }
        }
        for number in 0.. {
            match session.create(&format!("/small{number}"), 0o600) {
                Ok(_) => (),
                Err(Error::Refused(Errno::NOSPC)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let mut refused = None;
    // A few more names may fit where a file did not.
    for number in 0..10_000 {
        let answer = place.line(&format!("mkdir vol.img:/directory{number}"));
        if answer.code != 0 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("a full volume refuses at last");
    refused.expect(1, &["myriad: vol.img:/directory", "No space left on device; the volume is full: remove files"]);
    assert_letter(&place);
    place.line("rm -f vol.img:/filler").ok();
    place.line("mkdir vol.img:/fits").ok();
    assert_letter(&place);
}

/// Each small file waiting for its block was promised a second one for its extents, which it did not need; an import ended
/// with a fifth of the volume free.
#[test]
fn small_files_fill_a_volume_to_the_brim() {
    let place = Place::with_volume(16 << 20);
    place.change(|session| {
        for number in 0.. {
            let options = OpenOptions { write: true, create: true, mode: 0o600, ..OpenOptions::default() };
            let written = session.open(&format!("/{number}"), options).and_then(|file| file.write_at(&[7; 4096], 0));
            match written {
                Ok(length) => assert_eq!(length, 4096),
                Err(Error::Refused(Errno::NOSPC)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    });
    let df = place.line("df --json vol.img").ok().json();
    let available = df["available"].as_u64().unwrap();
    assert!(available < 1 << 20, "{available} bytes are free");
    place.assert_sound();
}

#[test]
fn read_only_image() {
    let place = with_letter();
    let program = place.program_for_all();
    std::fs::set_permissions(place.path("vol.img"), PermissionsExt::from_mode(0o444)).unwrap();
    let before = bytes(&place.path("vol.img"));
    let run = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = place.command(&program, &words);
        if rustix::process::geteuid().is_root() {
            // Permission bits do not bind root.
            command.uid(65534).gid(65534);
        }
        answer(command.spawn().unwrap())
    };
    assert_eq!(run("cat vol.img:/letter").ok().out, b"dear all");
    for line in ["rm vol.img:/letter", "mkdir vol.img:/x", "mv vol.img:/letter vol.img:/x"] {
        run(line).expect(1, &["vol.img: Permission denied; this needs permission to read the image, and to write it"]);
    }
    run("mkfs --force vol.img").expect(1, &["Permission denied"]);
    run("fsck -n vol.img").expect(0, &[]);
    run("fsck -y vol.img").expect(8, &["Permission denied"]);
    assert_eq!(bytes(&place.path("vol.img")), before);
}

#[test]
fn truncated_image() {
    let place = with_letter();
    let file = std::fs::File::options().write(true).open(place.path("vol.img")).unwrap();
    file.set_len(VOLUME / 2).unwrap();
    let said = format!("vol.img: the image is truncated: {} of {VOLUME} bytes are there; get a whole copy", VOLUME / 2);
    for (line, code) in [("ls vol.img", 1), ("info vol.img", 1), ("fsck -n vol.img", 8)] {
        place.line(line).expect(code, &[&said]);
    }
    for length in [VOLUME / 2, 4096, 100] {
        file.set_len(length).unwrap();
        let before = bytes(&place.path("vol.img"));
        for line in ["ls vol.img", "cat vol.img:/letter", "rm vol.img:/letter", "info vol.img", "df vol.img"] {
            place.line(line).expect(1, &["myriad: vol.img"]);
        }
        let checked = place.line("fsck -n vol.img");
        assert!(checked.code & (4 | 8) != 0 && !checked.err.contains("panicked"), "{checked:?}");
        assert!(bytes(&place.path("vol.img")) == before, "nothing was written to {length} bytes");
    }
    place.line("info vol.img").expect(1, &["too short to be a Myriad volume"]);
}

#[test]
fn foreign_image() {
    let place = Place::new();
    for (name, contents) in
        [("zeros", vec![0; 1 << 20]), ("noise", (0..1 << 20).map(|i: u32| (i.wrapping_mul(i) >> 7) as u8).collect())]
    {
        place.write(name, &contents);
        for line in ["ls", "info", "stats", "df", "find", "du"] {
            place
                .line(&format!("{line} {name}"))
                .expect(1, &[name, "not a Myriad volume; check the name; if it was one, myriad fsck looks for a copy"]);
        }
        place.line(&format!("rm -rf {name}:/x")).expect(1, &["not a Myriad volume"]);
        place.line(&format!("fsck -y {name}")).expect(8, &[name]);
        assert!(bytes(&place.path(name)) == contents);
    }
}

#[test]
fn damaged_superblock() {
    let whole = with_letter();
    let mut image = bytes(&whole.path("vol.img"));
    image[200] ^= 0xff;
    let place = Place::new();
    place.write("vol.img", &image);
    for line in ["ls vol.img", "info vol.img", "rm vol.img:/letter"] {
        place.line(line).expect(1, &["vol.img: ", "checksum", "; run myriad fsck"]);
    }
    // With a copy it is a finding, without one there is no volume to check.
    let found = place.line("fsck -n vol.img");
    assert!(matches!(found.code, 4 | 8), "{found:?}");
    assert!(bytes(&place.path("vol.img")) == image, "nothing was changed");
    place.line("debug vol.img superblock");
}

#[test]
fn damaged_group_header_is_repaired() {
    let place = with_letter();
    let mut image = bytes(&place.path("vol.img"));
    image[4096 + 56] ^= 1;
    place.write("vol.img", &image);
    let found = place.line("fsck -n vol.img").expect(4, &["run myriad fsck -y"]);
    assert!(found.text().contains("block 1") || found.text().contains("group 0"), "{found:?}");
    assert!(bytes(&place.path("vol.img")) == image, "-n changes nothing");
    let report = place.line("fsck -n --json vol.img").expect(4, &[]).json();
    assert_eq!((&report["sound"], &report["repaired"]), (&false.into(), &false.into()));
    place.line("fsck -y vol.img").expect(1, &["repaired"]);
    place.line("fsck -y vol.img").expect(0, &["sound"]);
    assert_letter(&place);
}

/// A file system was made where a volume had been, and a copy of the superblock was left. `fsck -y` repaired the volume, and
/// with it destroyed the file system.
#[test]
fn what_was_made_over_a_volume_is_not_repaired_unasked() {
    let place = Place::with_volume(3 << 30);
    let file = std::fs::OpenOptions::new().write(true).open(place.path("vol.img")).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    file.write_all_at(b"\x53\xef", 1080).unwrap();
    let start = || {
        let mut head = vec![0; 1 << 20];
        std::fs::File::open(place.path("vol.img")).unwrap().read_exact_at(&mut head, 0).unwrap();
        head
    };
    let before = start();
    let found = place.line("fsck -n vol.img").expect(4, &[]);
    assert!(found.text().contains("a copy was used"), "{found:?}");
    // It used to send the user to `fsck -y`, which refuses.
    let said = "but it holds an ext2, ext3 or ext4 file system; myriad fsck -y --force restores";
    assert!(found.err.contains(said) && !found.err.contains("run myriad fsck -y"), "{found:?}");
    for line in ["fsck -y vol.img", "fsck -p vol.img", "fsck -p --force vol.img"] {
        place.line(line).expect(8, &["vol.img: holds an ext2, ext3 or ext4 file system", "-y --force restores"]);
        assert!(start() == before, "{line}: nothing was changed");
    }
    place.line("fsck -y --force vol.img").expect(1, &["repaired"]);
    place.assert_sound();
}

/// The marks stayed where the new volume did not write: once its first block was damaged, `fsck -y` took it for what had been
/// there before, and refused.
#[test]
fn a_new_volume_bears_no_marks_of_what_was_there() {
    const SIZE: u64 = 256 << 20;
    let place = Place::new();
    let marks: [(u64, &[u8]); 8] = [
        (0x10040, b"_BHRfS_M"),
        (0x20000 + 37 * 1024, &0x00ba_b10c_u64.to_le_bytes()),
        (0x255c, b"\x54\x19\x01\x00"),
        (SIZE - (64 << 10), b"\xfc\x4e\x2b\xa9"),
        (0x4000, b"SKUL\xba\xbe"),
        (1 << 20, b"\x0d\xd0\x01\xc0"),
        (SIZE - 1024, b"Intel Raid ISM Cfg Sig. "),
        (SIZE - (128 << 10) + 5 * 1024, &0x00ba_b10c_u64.to_be_bytes()),
    ];
    let make = || {
        let file = std::fs::File::create(place.path("vol.img")).unwrap();
        file.set_len(SIZE).unwrap();
        for (offset, bytes) in marks {
            file.write_all_at(bytes, offset).unwrap();
        }
        file
    };
    let is_there = |file: &std::fs::File, (offset, bytes): (u64, &[u8])| {
        let mut found = vec![0; bytes.len()];
        std::fs::File::open(place.path("vol.img")).unwrap().read_exact_at(&mut found, offset).unwrap();
        assert_eq!(file.metadata().unwrap().len(), SIZE);
        found == bytes
    };
    let file = make();
    place.line("mkfs vol.img").expect(1, &["vol.img: holds a btrfs file system", "--force"]);
    // Nor is anything lost by a volume that is not made.
    assert_ne!(place.line("mkfs --force --ag-size 1K vol.img").code, 0);
    assert!(marks.into_iter().all(|mark| is_there(&file, mark)));
    place.line("mkfs --force vol.img").expect(0, &["vol.img: volume"]);
    for mark in marks {
        assert!(!is_there(&file, mark), "{mark:x?}");
    }
    place.assert_sound();
}

#[test]
fn damaged_directory_names_its_place() {
    let place = with_letter();
    let root = place.line("debug --json vol.img inode /").ok().json();
    let offset = root["block"].as_u64().unwrap() as usize * 4096;
    let mut image = bytes(&place.path("vol.img"));
    image[offset + 2000] ^= 1;
    place.write("vol.img", &image);
    let block = format!("block {}", root["block"]);
    place.line("ls vol.img").expect(1, &[&block, "run myriad fsck"]);
    place.line("fsck -n vol.img").expect(4, &[]);
}

/// Walks passed over files whose inode was damaged: an export lacked them, and said nothing.
#[test]
fn damaged_inodes_are_told_by_all_who_walk() {
    let place = Place::with_volume(VOLUME);
    place.change(|session| {
        for number in 0..200 {
            put(session, format!("/{number}"), b"dear all");
        }
    });
    let inode = place.line("debug --json vol.img inode /150").ok().json();
    let root = place.line("debug --json vol.img inode /").ok().json();
    assert_ne!(inode["block"], root["block"], "the root is to be read");
    let mut image = bytes(&place.path("vol.img"));
    image[inode["block"].as_u64().unwrap() as usize * 4096 + 1000] ^= 1;
    place.write("vol.img", &image);
    let block = format!("block {}", inode["block"]);
    for line in ["ls -l vol.img", "find vol.img", "du -s vol.img", "stats vol.img", "export vol.img all.tar"] {
        place.line(line).expect(1, &[&block, "checksum", "run myriad fsck"]);
    }
    // They say where, and go on with the rest.
    for (line, said) in [
        ("find vol.img", "vol.img:/150: "),
        ("du -a vol.img", "vol.img:/150: "),
        ("export vol.img more.tar", "31 failed"),
        ("stats vol.img", "vol.img:/1"),
    ] {
        place.line(line).expect(1, &[said]);
    }
    // With a depth, what came after the damaged one in its directory was left out.
    for line in ["find vol.img", "find vol.img --maxdepth 1"] {
        let found = String::from_utf8(place.line(line).expect(1, &["vol.img:/150: "]).out).unwrap();
        assert!(found.contains("/199\n") && !found.contains("/150\n"), "{line}: {found}");
    }
}

/// What looks like a checkpoint that power cut short, at the log's head, was erased by readers too, who may not write.
#[test]
fn a_torn_checkpoint_does_not_keep_readers_out() {
    let place = Place::new();
    place.line("mkfs vol.img --size 64M --seed 1 -q").ok();
    for name in ["a", "b", "c"] {
        place.line(&format!("mkdir vol.img:/{name}")).ok();
    }
    let older = bytes(&place.path("vol.img"));
    // The same identity again: the older log's headers belong where the next ones will be.
    place.line("mkfs vol.img --force --seed 1 -q").ok();
    place.line("mkdir vol.img:/a").ok();
    let mut image = bytes(&place.path("vol.img"));
    let mut torn = 0;
    for (new, old) in image.chunks_mut(4096).zip(older.chunks(4096)) {
        if old.starts_with(b"MYLC") && !new.starts_with(b"MYLC") {
            new.copy_from_slice(old);
            torn += 1;
        }
    }
    assert!(torn > 0, "the older log had more in it, and mkfs has erased it");
    place.write("vol.img", &image);
    assert_eq!(place.line("ls vol.img").ok().out, b"a\n");
    place.assert_sound();
    assert!(bytes(&place.path("vol.img")) == image, "readers change nothing");
}

#[test]
fn busy_image() {
    let place = with_letter();
    let pid = format!("vol.img: in use by process {}", std::process::id());
    let fs = Fs::open(&place.path("vol.img"), MountOptions::default()).unwrap();
    for (line, code) in [
        ("cat vol.img:/letter", 1),
        ("rm vol.img:/letter", 1),
        ("info vol.img", 1),
        ("mkfs vol.img --force", 1),
        ("fsck vol.img", 8),
        ("fsck -y vol.img", 8),
    ] {
        place.line(line).expect(code, &[&pid]);
    }
    fs.close().unwrap();
    let reader = Fs::open(&place.path("vol.img"), MountOptions { read_only: true, ..MountOptions::default() }).unwrap();
    place.line("ls vol.img").ok();
    place.line("rm vol.img:/letter").expect(1, &["in use by process"]);
    reader.close().unwrap();
    assert_letter(&place);
}

/// A look beside a writer is of the last commit: what it has not committed does not show, and does not disturb.
#[test]
fn checking_beside_a_writer() {
    let place = with_letter();
    let fs =
        Fs::open(&place.path("vol.img"), MountOptions { commit_interval_ms: 0, ..MountOptions::default() }).unwrap();
    let session = fs.session(Cred::root());
    for number in 0..300 {
        session.create(&format!("/committed {number}"), 0o600).unwrap();
    }
    fs.sync().unwrap();
    session.remove_tree("/letter", &mut |_| true).unwrap();
    session.mkdir("/not committed", 0o700).unwrap();
    let said = ["in use by process", "looking at its last commit", "sound: 301 files"];
    place.line("fsck -n vol.img").expect(0, &said);
    fs.sync().unwrap();
    let report = place.line("fsck -n --json vol.img").expect(0, &[]).json();
    assert_eq!((&report["sound"], &report["totals"]["inodes"]), (&true.into(), &302.into()));
    drop(session);
    fs.close().unwrap();
    place.line("fsck -n vol.img").expect(0, &["sound"]);
}

#[test]
fn impossible_options() {
    let place = Place::new();
    for (options, said) in [
        ("--log-size 0 --order log", ["vol.img: ", "option --"]),
        ("--ag-size 3M", ["--ag-size", "`3M` is not a power of two from 32K"]),
        ("--region-size 3M", ["--region-size", "`3M` is not a power of two from 512"]),
        ("--log-size 2G", ["vol.img: ", "option --log-size"]),
        ("--size 1K", ["vol.img: ", "--size"]),
    ] {
        let size = if options.contains("--size") { "" } else { "--size 64M" };
        place.line(&format!("mkfs vol.img {size} {options}")).expect(2, &said);
        assert!(!place.path("vol.img").exists(), "{options}: what could not be made is not left behind");
    }
    let options = MkfsOptions { log_size: Some(0), order: Order::None, ..MkfsOptions::default() };
    Fs::format(&place.path("vol.img"), Some(VOLUME), &options).unwrap();
    place.change(|session| put(session, "/letter", b"dear all"));
    let said = ["option --order", "this volume has no log; use order=none, or make it anew with a log"];
    place.line("rm --order log vol.img:/letter").expect(2, &said);
    assert_letter(&place);
}

/// A verb that changes a volume takes each order that the volume has room for; two of them could not be asked for.
#[test]
fn a_verb_writes_in_any_order_that_the_volume_has_room_for() {
    let place = Place::new();
    place.line("mkfs --quiet --size 64M --profile ffs --log-size 0 vol.img").ok();
    for order in ["none", "sync", "softdep", "log"] {
        let line = place.line(&format!("mkdir --order {order} vol.img:/{order}"));
        if order == "log" {
            line.expect(2, &["use order=none or sync or softdep, or make it anew with a log"]);
            continue;
        }
        line.ok();
        let info = place.line("info --json vol.img").ok().json();
        assert_eq!(info["order"], order, "{info}");
    }
    let help = place.line("import --help").ok();
    for said in
        ["none:", "any; after a crash fsck has to look", "softdep:", "soft updates: no block before what it depends on"]
    {
        assert!(help.text().contains(said), "{}", help.text());
    }
}

/// A background check had found damage, and the log alone had that when the writer was killed. `info` and `fsck -n` said that the next opening for changes would
/// recover the volume, and it was refused.
#[test]
fn who_looks_is_told_of_a_check_that_the_log_alone_asks_for() {
    let place = Place::new();
    Fs::format(&place.path("open.img"), Some(VOLUME), &MkfsOptions::default()).unwrap();
    let fs = Fs::open(&place.path("open.img"), MountOptions::default()).unwrap();
    let session = fs.session(Cred::root());
    put(&session, "/letter", b"dear all");
    fs.sync().unwrap();
    fs.ask_for_check().unwrap();
    // As its writer's end at this moment would leave it.
    std::fs::copy(place.path("open.img"), place.path("vol.img")).unwrap();
    drop((session, fs));
    let found = "a background check found damage";
    place.line("mkdir vol.img:/d").expect(1, &["vol.img"]);
    let info = place.line("info vol.img").ok();
    assert!(info.text().contains(found), "{}", info.text());
    place.line("fsck -n vol.img").expect(0, &["sound", found, "myriad fsck -p lets it be changed again"]);
    place.line("fsck -p vol.img").expect(0, &["sound"]);
    place.line("mkdir vol.img:/d").ok();
    assert_letter(&place);
}

/// A volume without a log whose writer was killed was changed further as if it were sound.
#[test]
fn a_volume_without_a_log_that_was_not_closed_is_checked_first() {
    let place = Place::new();
    let options = MkfsOptions { log_size: Some(0), order: Order::None, ..MkfsOptions::default() };
    Fs::format(&place.path("open.img"), Some(VOLUME), &options).unwrap();
    let fs = Fs::open(&place.path("open.img"), MountOptions::default()).unwrap();
    let session = fs.session(Cred::root());
    put(&session, "/letter", b"dear all");
    fs.sync().unwrap();
    // As its writer's end at this moment would leave it.
    std::fs::copy(place.path("open.img"), place.path("vol.img")).unwrap();
    drop((session, fs));
    let next = ["vol.img", "not closed cleanly", "myriad fsck -p", "read-only"];
    for line in ["rm vol.img:/letter", "mkdir vol.img:/d", "cp vol.img:/letter vol.img:/copy"] {
        place.line(line).expect(1, &next);
    }
    place.line("cat vol.img:/letter").expect(0, &[]);
    place.line("fsck -n vol.img").expect(0, &["sound", "myriad fsck -p lets it be changed again"]);
    place.line("mkdir vol.img:/d").expect(1, &next);
    let checked = place.line("fsck -p vol.img").expect(0, &["sound"]);
    assert!(String::from_utf8_lossy(&checked.out).contains("it may be changed again"), "{checked:#?}");
    place.line("mkdir vol.img:/d").ok();
    place.line("fsck -p vol.img").expect(0, &["closed cleanly"]);
    assert_letter(&place);
}

/// An image was emptied before the options were looked at, so that a slip of the pen cost the volume that was there.
#[test]
fn what_cannot_be_made_costs_nothing() {
    let place = with_letter();
    place.write("tiny", b"");
    for options in [
        "--size 1G --ag-size 3M",
        "--size 1K",
        "--size 64M --region-size 3M",
        "--size 64M --log-device missing",
        "--size 64M --log-device tiny",
        "--size 8191P",
    ] {
        assert_ne!(place.line(&format!("mkfs --force vol.img {options}")).code, 0, "{options}");
        assert_eq!(place.path("vol.img").metadata().unwrap().len(), VOLUME, "{options}");
        assert_letter(&place);
    }
    // A device for the log that is larger than any log serves in part.
    let log = std::fs::File::create(place.path("log")).unwrap();
    log.set_len(5 << 30).unwrap();
    place
        .line("mkfs --force vol.img --size 64M --log-device log --log-size 5G")
        .expect(2, &["--log-size", "not a size from 0 to 4G"]);
    assert_letter(&place);
    place.line("mkfs -q --force vol.img --size 64M --log-device log").ok();
    place.line("fsck -n --log-device log vol.img").expect(0, &["sound"]);
}

#[test]
fn an_interrupted_reader_closes_cleanly() {
    let place = with_letter();
    place.change(|session| {
        session.create("/huge", 0o600).unwrap();
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        session.open("/huge", options).unwrap().truncate(1 << 40).unwrap();
    });
    for (signal, code) in [(rustix::process::Signal::INT, 130), (rustix::process::Signal::HUP, 129)] {
        let arguments = ["--default-signal=HUP", PROGRAM, "cat", "vol.img:/huge"];
        let mut child = place.command("env", &arguments).spawn().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        pipe.read_exact(&mut [0; 1 << 16]).unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).unwrap();
        let rest = std::io::copy(&mut pipe, &mut std::io::sink()).unwrap();
        assert!(rest < 1 << 34, "it stops at the next piece, not at the end");
        answer(child).expect(code, &["interrupted"]);
        assert_letter(&place);
    }
}

#[test]
fn an_interrupted_change_keeps_the_volume_whole() {
    let place = Place::with_volume(512 << 20);
    place.change(|session| {
        put(session, "/letter", b"dear all");
        session.mkdir("/tree", 0o755).unwrap();
        for number in 0..200_000 {
            session.create(&format!("/tree/{number}"), 0o600).unwrap();
        }
    });
    let child = place.command(PROGRAM, &["rm", "-r", "vol.img:/tree"]).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    std::thread::sleep(std::time::Duration::from_millis(60));
    // It may have come to its end before.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    let answer = answer(child);
    assert!(matches!(answer.code, 0 | 130), "{answer:?}");
    let left = place.line("df --json vol.img").ok().json()["inodes_used"].as_u64().unwrap();
    assert_eq!(answer.code == 0, left == 2, "{left} inodes are left");
    assert_eq!(place.line("info --json vol.img").ok().json()["state"], "clean");
    assert_letter(&place);
}

/// Turns one bit over in the block of the image that begins with these bytes.
fn damage(place: &Place, begins: &[u8]) {
    let mut image = bytes(&place.path("vol.img"));
    let at = image.chunks(4096).position(|block| block.starts_with(begins)).expect("the data is in the image") * 4096;
    image[at + 4095] ^= 8;
    place.write("vol.img", &image);
}

/// The sentence that sums a check up.
fn last_line(answer: &common::Answer) -> &str {
    answer.err.lines().last().unwrap_or_default()
}

#[test]
fn damaged_data() {
    let place = Place::new();
    place.line("mkfs --quiet --size 64M --data-checksums vol.img").ok();
    let features = place.line("info --json vol.img").ok().json()["features"].clone();
    assert_eq!(features, serde_json::json!(["data_checksums"]));
    place.change(|session| {
        session.mkdir("/post", 0o755).unwrap();
        put(session, "/post/letter", &[b"dear".repeat(1024), b"all!".repeat(1024), b"yours".repeat(1000)].concat());
        put(session, "/post/parcel", b"intact");
    });
    place.line("fsck -n --scrub vol.img").expect(0, &["all compared with their checksums; 0 damaged", "sound"]);
    damage(&place, b"all!");
    let answer = place.line("cat vol.img:/post/letter");
    let said = ["vol.img:/post/letter: inode ", "the data at byte 4096 (block ", "restore the file from a copy"];
    answer.expect(1, &said);
    assert_eq!(place.line("cat vol.img:/post/parcel").ok().out, b"intact");
    place.line("fsck -n vol.img").expect(0, &["sound"]);
    for line in ["fsck -n --scrub vol.img", "fsck -y --scrub vol.img", "fsck -p --scrub vol.img"] {
        let answer = place.line(line).expect(4, &["1 damaged", "1 finding of damaged contents; restore those files"]);
        let expected = "/post/letter: bytes 4096 to 8191: the contents are not what was written: their checksum is wrong \
                        [data-checksum 180]";
        assert_eq!(answer.lines(), [expected], "{line}");
    }
    let json = place.line("fsck -n --scrub --json vol.img").expect(4, &[]).json();
    let finding = &json["findings"][0];
    assert_eq!(
        (&finding["path"], &finding["offset"], &finding["length"]),
        (&"/post/letter".into(), &4096.into(), &4096.into())
    );
    assert_eq!(json["scrub"]["damaged_blocks"], 1);
    // Findings that are not printed count as well.
    let told = place.line("fsck -n --scrub --findings-max 0 vol.img");
    told.expect(4, &["1 finding of damaged contents; restore those files"]);
    let whole = bytes(&place.path("vol.img"));
    // In the copy of the superblock that group 1 has.
    let mut torn = whole.clone();
    torn[(16 << 20) + 300] ^= 1;
    place.write("vol.img", &torn);
    for options in ["", " --findings-max 0"] {
        let found = place.line(&format!("fsck -n{options} vol.img"));
        assert!(last_line(&found).ends_with("run myriad fsck -y to repair"), "{found:?}");
        let found = place.line(&format!("fsck -n --scrub{options} vol.img"));
        assert!(last_line(&found).ends_with("copy what can be read, then run myriad fsck -y"), "{found:?}");
    }
    let mended = place.line("fsck -y --scrub --findings-max 0 vol.img").expect(5, &[]);
    let expected = "all repaired but for 1 of damaged contents; restore those files from a copy, or remove them";
    assert!(last_line(&mended).ends_with(expected), "{mended:?}");
    place.write("vol.img", &whole);
    place.line("fsck -n --scrub --accept-contents vol.img").expect(16, &["--no"]);
    let taken = place.line("fsck -y --scrub --accept-contents vol.img").expect(1, &["all repaired"]);
    assert!(taken.text().contains("blocks of data taken as they are, as was asked for: 1"), "{taken:?}");
    place.line("cat vol.img:/post/letter").expect(0, &[]);
    place.line("fsck -n --scrub vol.img").expect(0, &["0 damaged", "sound"]);
}

/// The damaged file came as zeros, and the archive took the place of a good one.
#[test]
fn an_archive_that_is_not_whole_replaces_none() {
    let place = Place::new();
    place.line("mkfs --quiet --size 64M --data-checksums vol.img").ok();
    place.change(|session| put(session, "/letter", &[vec![7; 1 << 20], b"all!".repeat(1024)].concat()));
    place.line("export -q vol.img all.tar").ok();
    let good = bytes(&place.path("all.tar"));
    damage(&place, b"all!");
    let said = ["vol.img:/letter: ", "all.tar: stays as it is: what was to replace it is not whole"];
    place.line("export --replace vol.img all.tar").expect(1, &said);
    assert!(bytes(&place.path("all.tar")) == good);
    let names = std::fs::read_dir(place.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.filter(|name| name.to_string_lossy().contains("all.tar")).count() == 1, "nothing is left behind");
    // What can be had is better than nothing.
    place.line("export vol.img more.tar").expect(1, &["vol.img:/letter: "]);
    assert!(place.path("more.tar").exists());
}

#[test]
fn a_scrub_without_checksums_says_that_nothing_was_compared() {
    let place = with_letter();
    damage(&place, b"dear all");
    place
        .line("fsck -n --scrub vol.img")
        .expect(0, &["1 block of file data read, the volume has no checksums of them, contents could not be compared"]);
}

/// A small file system of the host, with room for so many MiB, until it is dropped.
struct SmallHost(std::path::PathBuf);

impl SmallHost {
    /// In a directory `host`; `None`, and a line that says why, where it cannot be mounted.
    fn mount(place: &Place, size: u32) -> Option<Self> {
        let host = place.path("host");
        std::fs::create_dir(&host).unwrap();
        let options = format!("size={size}m");
        let mounted = common::host::command("mount", &["-t", "tmpfs", "-o", &options, "none"], &host);
        let failed = |error: &String| println!("skipped: a small file system of the host cannot be mounted: {error}");
        mounted.inspect_err(failed).ok().map(|_| Self(host))
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = common::host::command("umount", &["-l"], &self.0);
    }
}

/// An import whose last part finds no room on the host was summed up as if all of it had been done, and later with the numbers of all
/// that it had begun.
#[test]
fn what_the_host_has_no_room_for_is_not_said_to_be_imported() {
    let place = Place::new();
    let Some(_host) = SmallHost::mount(&place, 6) else { return };
    std::fs::create_dir(place.path("source")).unwrap();
    for number in 0..100 {
        place.write(&format!("source/{number}"), &[7; 100_000]);
    }
    place.line("mkfs --quiet --size 64M host/vol.img").ok();
    let said = place.line("import --json source host/vol.img:/all");
    let said = said.expect(1, &["has no room", "make room there and try again"]);
    let summary = said.json();
    assert_eq!((&summary["files"], &summary["complete"]), (&0.into(), &false.into()), "{said:?}");
}

/// Of an archive that was cut short as well, only that was told, and that what came before was there: the volume had not been closed then.
#[test]
fn what_the_host_has_no_room_for_is_not_said_to_be_there() {
    let place = Place::new();
    let Some(_host) = SmallHost::mount(&place, 6) else { return };
    std::fs::create_dir(place.path("source")).unwrap();
    for number in 0..20 {
        place.write(&format!("source/{number}"), &[7; 100_000]);
    }
    let tar = place.command("tar", &["-cf", "whole.tar", "source"]).status().expect("tar");
    assert!(tar.success());
    let whole = bytes(&place.path("whole.tar"));
    place.write("cut.tar", &whole[..whole.len() * 9 / 10]);
    place.line("mkfs --quiet --size 64M host/vol.img").ok();
    // All the room that there is.
    let mut filler = std::fs::File::create(place.path("host/filler")).unwrap();
    while std::io::Write::write(&mut filler, &[7; 4096]).is_ok_and(|count| count > 0) {}
    for line in ["import cut.tar host/vol.img:/all", "import --json cut.tar host/vol.img:/all"] {
        let said = place.line(line).expect(1, &["ends at byte", "has no room", "make room there and try again"]);
        assert!(!said.err.contains("is there; the rest is not"), "{said:?}");
    }
    // As long as all can be written, it is there.
    drop(filler);
    std::fs::remove_file(place.path("host/filler")).unwrap();
    let said = place.line("import cut.tar host/vol.img:/all").expect(1, &["ends at byte", "is there; the rest is not"]);
    assert!(!said.err.contains("has no room"), "{said:?}");
    place.line("fsck -n host/vol.img").expect(0, &[]);
}

/// The summary counted, and told as there, a file that was begun; of an archive even all that went into it.
#[test]
fn what_the_host_has_no_room_for_is_not_said_to_be_exported() {
    let place = Place::with_volume(VOLUME);
    let Some(_host) = SmallHost::mount(&place, 3) else { return };
    place.change(|session| (1..=5).for_each(|number| put(session, format!("/{number}"), &[7; 1_000_000])));
    let said = place.line("export vol.img host/all");
    let said =
        said.expect(1, &["No space left on device; make room there", "exporting stopped after ", "not complete"]);
    let is_whole = |number: &usize| {
        let found = place.path(&format!("host/all/{number}")).metadata();
        found.is_ok_and(|found| found.len() == 1_000_000)
    };
    let files = (1..=5).filter(is_whole).count();
    assert!((1..5).contains(&files), "{said:?}");
    assert!(said.err.contains(&format!("exporting stopped after {files}: ")), "{said:?}");
    assert!(said.err.contains(&format!("({files} files")), "{said:?}");
    std::fs::remove_dir_all(place.path("host/all")).unwrap();
    let said = place.line("export --json vol.img host/all.tar").expect(1, &["No space left on device"]);
    assert!(!said.err.contains("stopped after"), "{said:?}");
    assert_eq!((&said.json()["files"], &said.json()["bytes"]), (&0.into(), &0.into()), "{said:?}");
    assert!(!place.path("host/all.tar").exists());
    let said =
        place.line("cp -r --json vol.img:/ host/copy").expect(1, &["No space left on device", "make room there"]);
    assert_eq!(said.json()["files"], files, "{said:?}");
}

/// With its input from a file, and its output to another.
fn run_with(place: &Place, words: &[&str], input: &str, output: &str) -> common::Answer {
    let mut command = place.command(PROGRAM, words);
    command.stdin(std::fs::File::open(place.path(input)).unwrap());
    command.stdout(std::fs::File::options().write(true).open(output).unwrap());
    answer(command.spawn().unwrap())
}

/// All that came was lost with it.
#[test]
fn tee_goes_on_when_standard_output_fails() {
    let place = Place::with_volume(VOLUME);
    let text: String = (0..50_000).map(|number| format!("{number}\n")).collect();
    place.write("text", text.as_bytes());
    let said = run_with(&place, &["tee", "vol.img:/teed"], "text", "/dev/full");
    let said = said.expect(1, &["myriad: standard output: No space left on device"]);
    assert_eq!(said.err.matches("standard output").count(), 1, "{said:?}");
    assert!(place.line("cat vol.img:/teed").ok().out == text.as_bytes());
}

#[test]
fn answers_that_nobody_gets_are_no_success() {
    let place = with_letter();
    for line in ["--help", "--version", "mkfs --help", "cat vol.img:/letter", "ls -l vol.img"] {
        let words: Vec<&str> = line.split(' ').collect();
        let said = run_with(&place, &words, "vol.img", "/dev/full");
        said.expect(1, &["myriad: standard output: No space left on device"]);
    }
    let said = run_with(&place, &["ls", "--json", "vol.img"], "vol.img", "/dev/full");
    let error: serde_json::Value = serde_json::from_str(&said.err).unwrap();
    assert_eq!(error["error"]["place"], "standard output");
}

/// SIGXFSZ ended the program, and left what it had begun.
#[test]
fn a_limit_of_file_sizes_is_an_error() {
    let place = Place::with_volume(VOLUME);
    place.change(|session| put(session, "/large", &[7; 2_000_000]));
    place.write("source", &[7; 2_000_000]);
    let limited = |line: &str| {
        let shell = format!("ulimit -f 2000; exec {PROGRAM} {line}");
        answer(place.command("sh", &["-c", &shell]).spawn().unwrap())
    };
    let names = || {
        let entries = std::fs::read_dir(place.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
        entries.collect::<std::collections::BTreeSet<_>>()
    };
    let before = names();
    limited("cat vol.img:/large > here").expect(1, &["standard output: File too large"]);
    std::fs::remove_file(place.path("here")).unwrap();
    limited("cp vol.img:/large there").expect(1, &["there: File too large"]);
    limited("export vol.img all.tar").expect(1, &["all.tar: File too large"]);
    limited("mkfs --size 64M new.img").expect(1, &["new.img: "]);
    assert_eq!(names(), before, "nothing is left behind");
    // The image is longer than the limit.
    limited("cp source vol.img:/copy").expect(1, &["vol.img", "raise the limit of file sizes (ulimit -f)"]);
    place.assert_sound();
    assert_eq!(place.line("ls vol.img").ok().lines(), ["large"]);
}

/// It was refused after all was done, for memory that it did not need.
#[test]
fn a_volume_is_made_with_little_memory() {
    let place = Place::new();
    let shell = format!("ulimit -v 400000; {PROGRAM} mkfs --quiet --size 64M vol.img && {PROGRAM} ls vol.img");
    answer(place.command("sh", &["-c", &shell]).spawn().unwrap()).ok();
}

/// Forcing a repair was offered on what had never been a volume.
#[test]
fn a_repair_is_offered_only_where_there_was_a_volume() {
    let mut head = vec![0; 4096];
    head[1080..1082].copy_from_slice(b"\x53\xef");
    let place = Place::with_volume(VOLUME);
    place.write("other.img", &[&head[..], &vec![0; 1 << 20]].concat());
    let said = ["other.img: holds an ext2", "no copy of a superblock of ours is on it"];
    let said = place.line("fsck -y other.img").expect(8, &said);
    assert!(!said.err.contains("--force"), "{said:?}");
    let image = std::fs::File::options().write(true).open(place.path("vol.img")).unwrap();
    image.write_all_at(&head, 0).unwrap();
    place.line("fsck -y vol.img").expect(8, &["holds an ext2", "-y --force restores the old volume"]);
}

/// The next step fits what is wrong: of these names it was said that one before the last is no directory, or to check them.
#[test]
fn the_next_step_is_one_for_what_is_wrong() {
    let place = with_letter();
    place.line("mkdir vol.img:/d").ok();
    place.line("mv vol.img:/d vol.img:/letter").expect(1, &["where a directory is needed, there is something else"]);
    for line in ["rm vol.img:/letter/", "mv vol.img:/letter vol.img:/missing/"] {
        place.line(line).expect(1, &["a slash at the end asks for a directory"]);
    }
    place.line(&format!("ls vol.img:/{}", "a/".repeat(2500))).expect(1, &["and a path 4095"]);
    place.line("import vol.img:/d vol.img:/e").expect(2, &["myriad cp -r vol.img:/d vol.img:/e"]);
    place.line("debug vol.img lookup vol.img:/d").expect(2, &["leave the volume out: /d"]);
}

/// A link that leads back is not followed for ever.
#[test]
fn a_listing_that_follows_links_ends() {
    let place = Place::with_volume(VOLUME);
    place.line("mkdir -p vol.img:/d/e").ok();
    place.line("ln -s /d vol.img:/d/e/up").ok();
    let listed = place.line("ls -LR vol.img:/d").expect(1, &["vol.img:/d/e/up: leads back to a directory above it"]);
    assert_eq!(listed.text(), "vol.img:/d:\ne\n\nvol.img:/d/e:\nup\n");
}

/// What is missing is named, and what to do about it: it was "check the name" of an image that nobody had made yet.
#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let place = with_letter();
    place.line("mkfs --size 16M nowhere/new.img").expect(
        1,
        &["myriad: nowhere/new.img: No such file or directory; there is no directory nowhere: make it first"],
    );
    place.line("mount vol.img nowhere").expect(1, &["myriad: nowhere: No such file or directory; make it with mkdir"]);
    place.line("ls missing.img").expect(1, &["missing.img: No such file or directory; check the name"]);
    let program = place.program_for_all();
    std::fs::create_dir(place.path("closed")).unwrap();
    std::fs::set_permissions(place.path("closed"), PermissionsExt::from_mode(0o555)).unwrap();
    let mut command = place.command(&program, &["mkfs", "--size", "16M", "closed/new.img"]);
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let said = "closed/new.img: Permission denied; this needs permission to make files in closed";
    answer(command.spawn().unwrap()).expect(1, &[said]);
}

/// A copy of one file that failed was said to have stopped "after .", and what was before that to be there.
#[test]
fn a_single_file_that_cannot_be_copied_stops_after_nothing() {
    let place = with_letter();
    let answer = place.line("cp vol.img:/letter /dev/full").expect(1, &["/dev/full: No space left on device"]);
    assert!(!answer.err.contains("stopped"), "{answer:?}");
}

/// A new log was written over any file without a known mark.
#[test]
fn a_new_log_is_not_written_over_somebodys_data() {
    let place = Place::new();
    place.write("log", &vec![0; 16 << 20]);
    place.line("mkfs -q --size 64M --log-device log vol.img").ok();
    let letters = "dear all\n".repeat(1 << 20).into_bytes();
    place.write("letters", &letters);
    place.line("fsck -y --new-log --log-device letters vol.img").expect(8, &["letters: holds", "--force"]);
    assert_eq!(bytes(&place.path("letters")), letters);
    place.line("fsck -n --log-device log vol.img").expect(0, &[]);
    std::fs::create_dir(place.path("mnt")).unwrap();
    place.line("mount vol.img mnt").expect(1, &["vol.img: its log lies on a device of its own", "-o logdev=DEVICE"]);
}

/// A log that was put back from an older copy was taken for the volume's.
#[test]
fn a_log_of_another_state_is_named() {
    let place = Place::new();
    place.write("log", &vec![0; 16 << 20]);
    place.write("letter", b"dear all\n");
    place.line("mkfs -q --size 64M --log-device log vol.img").ok();
    place.line("cp --log-device log letter vol.img:/first").ok();
    std::fs::copy(place.path("log"), place.path("older")).unwrap();
    place.line("cp --log-device log letter vol.img:/second").ok();
    let said = ["another state of the volume", "fsck"];
    place.line("cp --log-device older letter vol.img:/third").expect(1, &said);
    let found = place.line("fsck -n --log-device older vol.img").expect(4, &[]);
    assert!(String::from_utf8_lossy(&found.out).contains("another state of the volume"), "{found:?}");
    place.line("fsck -y --log-device older vol.img").expect(8, &["name the right --log-device", "--new-log"]);
    place.line("fsck -n --log-device log vol.img").expect(0, &["sound"]);
    place.line("cp --log-device log letter vol.img:/third").ok();
    place.line("fsck -y --new-log --log-device older vol.img").expect(1, &[]);
    place.line("fsck -n --log-device older vol.img").expect(0, &["sound"]);
    let listed = String::from_utf8(place.line("ls --log-device older vol.img:/").ok().out).unwrap();
    assert_eq!(listed, "first\nsecond\nthird\n");
}
