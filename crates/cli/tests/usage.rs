//! Command lines that are wrong are refused before anything is opened, in words that say what would be right.

mod common;

use common::{PROGRAM, Place, answer};
use myriad_device::{Access, FileDevice};
use std::os::unix::fs::symlink;

#[test]
fn wrong_command_lines_are_refused() {
    let place = Place::new();
    place.write("data", b"precious");
    let cases: &[(&str, i32, &[&str])] = &[
        ("", 2, &["Usage"]),
        ("xyzzy", 2, &["there is no verb `xyzzy`; myriad help lists them all"]),
        ("ls", 2, &["IMAGE"]),
        ("ls --no-such-option x", 2, &["--no-such-option"]),
        ("cat vol.img", 2, &["`vol.img` names no path in a volume; write IMAGE:/path"]),
        ("cat vol.img:x", 2, &["write IMAGE:/path"]),
        ("rm :/x", 2, &["`:/x` names no image"]),
        ("rm", 2, &["IMAGE:/path"]),
        ("mv vol.img:/a", 2, &["myriad: vol.img:/a: where is it to go?; name the new name"]),
        ("imort dir vol.img:/", 2, &["there is no verb `imort`; did you mean `import`?"]),
        ("unmount mnt", 2, &["there is no verb `unmount`; did you mean `umount`?"]),
        ("help imort", 2, &["did you mean `import`?"]),
        ("ln vol.img:/a", 2, &["where is the link to be?"]),
        ("ln -r vol.img:/a vol.img:/b", 2, &["--symbolic"]),
        ("chmod 755", 2, &["`755`: of which file?; name files"]),
        ("chmod vol.img:/f", 2, &["of which file?"]),
        ("chmod rwx vol.img:/f", 2, &["`rwx` is not a mode; write it in octal, as in 0755, or as in u=rwx,go=rX"]),
        ("chmod 755 f", 2, &["`f` names no path in a volume; write IMAGE:/path"]),
        ("chown no-such-user-here vol.img:/f", 2, &["knows no user"]),
        ("chgrp no-such-group-here vol.img:/f", 2, &["knows no group"]),
        ("truncate vol.img:/f", 2, &["--size"]),
        ("truncate -s lots vol.img:/f", 2, &["is not a size"]),
        ("truncate -s 1 -r vol.img:/g vol.img:/f", 2, &["with --reference a size must be relative"]),
        ("rm -v --json vol.img:/f", 2, &["cannot be used with"]),
        ("mv -t b.img:/ a.img:/x", 2, &["not on the same volume as b.img:/"]),
        ("mv a.img:/x b.img:/y", 2, &["myriad: a.img:/x: not on the same volume as b.img:/y; copy it with myriad cp"]),
        ("ln a.img:/x b.img:/y", 2, &["use ln -s"]),
        ("ln x b.img:/y", 2, &["with -s the target may be any text"]),
        ("mkdir -m 999 vol.img:/x", 2, &["write it in octal"]),
        ("mkfs", 2, &["<IMAGE>"]),
        ("mkfs new.img", 2, &["myriad: new.img: does not exist yet; say how large to make it with --size"]),
        ("mkfs new.img --size 12Q", 2, &["`12Q` is not a size; write a number and K, M, G"]),
        ("mkfs new.img --size 99999999999999999999", 2, &["more than 16E"]),
        ("mkfs new.img --size 1G --block-size 3000", 2, &["power of two from 512 to 64K"]),
        (
            "mkfs new.img --size 1G --order sync",
            2,
            &["order=sync is never safe with space=btree", "nothing was changed"],
        ),
        (
            "mkfs new.img --size 1G --order softdep",
            2,
            &["order=softdep is never safe with space=btree", "nothing was changed"],
        ),
        (
            "mkfs new.img --size 1G --order fast",
            2,
            &["`fast` is no choice of order; this build has: none, sync, softdep, log"],
        ),
        (
            "mkfs new.img --size 1G --directory append",
            2,
            &["directory=append", "is not in this build, which has: linear, slots, btree, indexed"],
        ),
        (
            "mkfs new.img --size 1G --space bitmaps",
            2,
            &["`bitmaps` is no choice of space; this build has: bitmap, btree"],
        ),
        ("mkfs new.img --size 1G --profile direct", 2, &["profile direct", "is not in this build: it wants"]),
        (
            "mkfs new.img --size 1G --profile zfs",
            2,
            &["`zfs` is no profile; this build has: myriad, xfs, ffs, simplefs"],
        ),
        ("bench dir new.img,directory=append", 1, &["directory=append", "is not in this build"]),
        ("mkfs new.img --size 1G --root-owner no-such-user-here", 2, &["knows no user"]),
        ("ls --cachesize lots vol.img", 2, &["is not a size"]),
        ("find vol.img -type x", 2, &["write letters"]),
        ("find vol.img -size +k", 2, &["is not a size"]),
        ("find vol.img -mtime soon", 2, &["is not an age"]),
        ("find vol.img -exec rm", 2, &["find: -exec: the end of its command is missing"]),
        (
            "rm -r vol.img:/x --order fast",
            2,
            &["`fast` is no choice of order; this build has: none, sync, softdep, log"],
        ),
        ("completions tcsh", 2, &["tcsh"]),
        ("debug vol.img", 2, &["Usage"]),
        ("debug vol.img block x", 2, &["invalid digit"]),
        ("fsck", 16, &["<IMAGE>"]),
        ("fsck -n -y vol.img", 16, &["cannot be used with"]),
        ("fsck --no-such-option vol.img", 16, &["--no-such-option"]),
        ("-q fsck -C3 none.img", 8, &["none.img: No such file"]),
    ];
    for (line, code, said) in cases {
        place.line(line).expect(*code, said);
    }
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 1, "nothing was made");
    assert_eq!(common::bytes(&place.path("data")), b"precious");
}

#[test]
fn help_is_had_in_both_ways() {
    let place = Place::new();
    for (asked, same) in [("help", "--help"), ("help chmod", "chmod --help"), ("help bench dir", "bench dir --help")] {
        let said = place.line(asked).ok();
        assert!(!said.text().is_empty());
        assert_eq!(said.text(), place.line(same).ok().text(), "{asked}");
    }
}

/// A date that no time of a volume holds was wrapped by nobody, and told by nobody.
#[test]
fn dates_beyond_the_times_of_a_volume_are_told() {
    let place = Place::with_volume(16 << 20);
    for date in ["-d 2500-01-01", "-d @99999999999", "-t 250001010000", "-d 1500-01-01"] {
        let said = place.line(&format!("touch {date} vol.img:/f"));
        said.expect(2, &["is past what the times of a volume hold, 1677-09-21 to 2262-04-11"]);
    }
    assert_eq!(place.line("ls vol.img").ok().text(), "", "nothing was made");
}

#[test]
fn images_that_cannot_be_opened_are_named() {
    let place = Place::new();
    place.write("empty", b"");
    std::fs::create_dir(place.path("dir")).unwrap();
    for verb in ["ls", "df", "info", "stats", "find", "du"] {
        place
            .line(&format!("{verb} none.img"))
            .expect(1, &["myriad: none.img", "No such file or directory; check the name"]);
    }
    place.line("rm none.img:/x none.img:/y").expect(1, &["none.img: No such file"]);
    place.line("ls empty").expect(1, &["an empty file, not a Myriad volume; make a volume in it"]);
    place.line("cat dir:/x").expect(1, &["dir: a directory of the host, not an image"]);
    place.line("cat none:/a/b:/x").expect(1, &["none:/a/b: No such file"]);
    place.line("fsck none.img").expect(8, &["No such file"]);
    place.line("fsck dir").expect(8, &["dir: a directory of the host, not an image"]);
    place.line("fsck /dev/null").expect(8, &["neither a regular file nor a block device"]);
}

#[test]
fn what_is_there_is_not_overwritten() {
    let place = Place::new();
    let mut ext4 = vec![0; 1 << 20];
    ext4[1080..1082].copy_from_slice(b"\x53\xef");
    place.write("ext4", &ext4);
    place.write("letter", b"dear all");
    let mut late = vec![0; 3 << 20];
    late[(3 << 20) - 1] = 1;
    place.write("late", &late);
    place.write("volume", &[b"MYSB".to_vec(), vec![0; 4092]].concat());
    for (name, what) in [
        ("ext4", "holds an ext2, ext3 or ext4 file system"),
        ("letter", "holds 8 bytes of data that are not a volume"),
        ("late", "holds 3145728 bytes of data"),
        ("volume", "holds a Myriad volume"),
    ] {
        let before = common::bytes(&place.path(name));
        place.line(&format!("mkfs {name} --size 1G")).expect(1, &[what, "--force overwrites it; nothing was changed"]);
        assert_eq!(common::bytes(&place.path(name)), before);
        place.line(&format!("mkfs none --size 1G --log-device {name}")).expect(1, &[name, what]);
    }
    assert!(!place.path("none").exists());
    place.line("mkfs /dev/null --size 1G").expect(2, &["neither a regular file nor a block device"]);
}

#[test]
fn a_volume_in_use_is_refused_naming_the_holder() {
    let place = Place::new();
    place.write("vol.img", &[0; 1 << 20]);
    let holder = FileDevice::open(place.path("vol.img"), Access::ReadWrite).unwrap();
    holder.lock_exclusive().unwrap();
    let pid = format!("vol.img: in use by process {}", std::process::id());
    for (line, code) in
        [("info vol.img", 1), ("debug vol.img superblock", 1), ("debug vol.img block 0", 1), ("fsck -y vol.img", 8)]
    {
        let answer = place.line(line).expect(code, &[&pid, "; wait until it is done with the volume, or unmount it"]);
        assert_eq!(answer.err.matches("vol.img").count(), 1, "the image is named once: {answer:?}");
    }
    drop(holder);
    place.line("info vol.img").expect(1, &["vol.img: not a Myriad volume; check the name"]);
    place.line("debug vol.img superblock").expect(1, &["no superblock of a Myriad volume, and no copy"]);
    let next =
        "check the name; if it is one, its superblock is lost, and every copy of it (a volume of one group has none)";
    place.line("debug vol.img superblock").expect(1, &[next, "restore it from a backup"]);
    place.line("fsck -n vol.img").expect(8, &[next, "restore it from a backup"]);
}

#[test]
fn it_answers_to_the_names_that_mount_and_fsck_call() {
    let place = Place::new();
    place.write("vol.img", &[0; 1 << 20]);
    for (name, arguments, code, said) in [
        ("mkfs.myriad", &["new.img"][..], 2, "does not exist yet"),
        ("fsck.myriad", &["-a", "-C0", "none.img"], 8, "No such file"),
        ("fsck.myriad", &["-T", "-C-3", "-n", "vol.img"], 8, "check the name"),
        ("fsck.myriad", &["-C"], 16, "<IMAGE>"),
    ] {
        let link = place.path(name);
        let _ = symlink(PROGRAM, &link);
        answer(place.command(&link, arguments).spawn().unwrap()).expect(code, &[said]);
    }
}

/// A volume crashes with a full log, is opened and checked; what is printed is of that, and nothing is left behind.
#[test]
fn recovery_is_measured() {
    let place = Place::new();
    let said = place
        .line("bench recovery --entries 3k --runs 2 --cachesize 64M --log-size 8196K --folder . --json --quiet")
        .ok()
        .json();
    let [volume] = &said["volumes"].as_array().unwrap()[..] else { panic!("{said}") };
    assert_eq!((&volume["entries"], volume["open_seconds"].as_array().unwrap().len()), (&3000.into(), 2));
    // A log was emptied from a quarter on, where its half was no whole number of units.
    for (measured, least) in [("log_bytes", 7 << 19), ("open_read_bytes", 7 << 19), ("check_memory_bytes", 1 << 20)] {
        assert!(volume[measured].as_u64().unwrap() > least, "{measured}: {volume}");
    }
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0);
}

/// What is wrong, and what to write instead.
#[test]
fn messages_name_the_way_out() {
    let place = Place::with_volume(16 << 20);
    place.write("note", b"no archive");
    place.line("mkfs --size 10 new.img").expect(2, &["the least is 512K (524288 bytes); write a number and K, M"]);
    place.line("mkfs --size 63K -b 512 new.img").expect(2, &["the least is 64K"]);
    assert!(!place.path("new.img").exists());
    let next = "between the host and a volume, copy it with myriad cp, then remove it where it was";
    place.line("mv note vol.img:/note").expect(2, &["`note` names no path in a volume", next]);
    place.line("mv vol.img:/note note").expect(2, &[next]);
    let said = place.line("import note vol.img:/").expect(1, &["note: archive: is not a tar archive"]).err;
    assert_eq!(said.lines().count(), 1, "nothing was done: {said}");
}
