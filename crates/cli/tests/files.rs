//! The verbs on a volume, end to end.

mod common;

use common::{Place, put};
use myriad_engine::{SetAttr, SetTime};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const VOLUME: u64 = 64 << 20;

/// A volume with a few files of every kind that a listing may meet.
fn furnished() -> Place {
    let place = Place::with_volume(VOLUME);
    place.change(|session| {
        session.mkdir("/docs", 0o755).unwrap();
        session.mkdir("/docs/old", 0o700).unwrap();
        session.mkdir("/empty", 0o755).unwrap();
        put(session, "/docs/a.txt", b"alpha\n");
        put(session, "/docs/b.txt", b"beta\0\xff\n");
        put(session, "/docs/old/c.o", &[7; 100_000]);
        put(session, "/docs/.hidden", b"");
        session.symlink(b"docs/a.txt", "/link").unwrap();
        session.link("/docs/a.txt", "/alias").unwrap();
        let old = SetAttr { mtime: Some(SetTime::At(86_400_000_000_000)), ..SetAttr::default() };
        session.set_attr("/docs/old/c.o", old).unwrap();
    });
    place
}

#[test]
fn mkfs_makes_what_info_shows() {
    let place = Place::new();
    let made = place.line("mkfs vol.img --size 1G -b 8K -L spool --root-mode 0700 --root-owner 7:8 --json").ok().json();
    assert_eq!(std::fs::metadata(place.path("vol.img")).unwrap().len(), 1 << 30);
    let info = place.line("info --json vol.img").ok().json();
    assert_eq!(made["uuid"], info["uuid"]);
    for (field, value) in [
        ("block_size", 8192.into()),
        ("label", "spool".into()),
        ("state", "clean".into()),
        ("order", serde_json::Value::from("log")),
    ] {
        assert_eq!(info[field], value, "{field}");
    }
    assert!(info["size"].as_u64().unwrap() <= 1 << 30 && info["available"].as_u64().unwrap() > 900 << 20);
    let root = place.line("stat --json vol.img:/").ok().json();
    assert_eq!((&root["mode"], &root["uid"], &root["gid"]), (&"0700".into(), &7.into(), &8.into()));
    let shown = place.line("info vol.img").ok();
    assert!(shown.text().contains("Label:") && shown.text().contains("spool"), "{}", shown.text());
    place.line("mkfs vol.img").expect(1, &["holds a Myriad volume"]);
    place.line("mkfs vol.img --force -q").ok();
    assert_ne!(place.line("info --json vol.img").ok().json()["uuid"], info["uuid"]);
    place.assert_sound();
}

#[test]
fn a_seed_makes_the_same_volume_twice() {
    let place = Place::new();
    place.line("mkfs a.img --size 64M --seed 5 -q").ok();
    place.line("mkfs b.img --size 64M --seed 5 -q").ok();
    let uuid = |name: &str| place.line(&format!("info --json {name}")).ok().json()["uuid"].clone();
    assert_eq!(uuid("a.img"), uuid("b.img"));
}

#[test]
fn listings() {
    let place = furnished();
    let cases: &[(&str, &[&str])] = &[
        ("ls vol.img", &["alias", "docs", "empty", "link"]),
        ("ls -r vol.img:/", &["link", "empty", "docs", "alias"]),
        ("ls vol.img:/docs", &["a.txt", "b.txt", "old"]),
        ("ls -A vol.img:/docs", &[".hidden", "a.txt", "b.txt", "old"]),
        ("ls -a vol.img:/docs", &[".", "..", ".hidden", "a.txt", "b.txt", "old"]),
        ("ls -S vol.img:/docs/a.txt vol.img:/docs/old/c.o", &["vol.img:/docs/old/c.o", "vol.img:/docs/a.txt"]),
        ("ls -t vol.img:/docs/old/c.o vol.img:/docs/a.txt", &["vol.img:/docs/a.txt", "vol.img:/docs/old/c.o"]),
        ("ls -d vol.img:/docs", &["vol.img:/docs"]),
        (
            "ls -R vol.img",
            &[
                "vol.img:/:",
                "alias",
                "docs",
                "empty",
                "link",
                "",
                "vol.img:/docs:",
                "a.txt",
                "b.txt",
                "old",
                "",
                "vol.img:/docs/old:",
                "c.o",
                "",
                "vol.img:/empty:",
            ],
        ),
        ("ls vol.img:/empty", &[]),
        ("find vol.img:/docs -name *.txt", &["vol.img:/docs/a.txt", "vol.img:/docs/b.txt"]),
        ("find vol.img -type l", &["vol.img:/link"]),
        ("find vol.img -type f -size +90k", &["vol.img:/docs/old/c.o"]),
        ("find vol.img -mtime +365", &["vol.img:/docs/old/c.o"]),
        ("find vol.img -empty -type d", &["vol.img:/empty"]),
        ("find vol.img -maxdepth 0", &["vol.img:/"]),
        ("find vol.img -mindepth 3", &["vol.img:/docs/old/c.o"]),
        ("find vol.img -path /docs/o* -maxdepth 2", &["vol.img:/docs/old"]),
    ];
    for (line, expected) in cases {
        let answer = place.line(line).ok();
        let mut lines = answer.lines();
        if line.starts_with("find") {
            lines.sort_unstable();
        }
        assert_eq!(lines, *expected, "{line}");
    }
    let long = place.line("ls -ln vol.img").ok();
    let link = long.lines().into_iter().find(|line| line.contains("link")).unwrap().to_owned();
    assert!(link.starts_with("lrwxrwxrwx 1 0 0") && link.ends_with("link -> docs/a.txt"), "{link}");
    let alias = long.lines().into_iter().find(|line| line.contains("alias")).unwrap().to_owned();
    assert!(alias.starts_with("-rw-r--r-- 2 0 0"), "{alias}");
    let old = place.line("ls -l vol.img:/docs/old").ok();
    assert!(old.text().contains(" 100000 Jan  2  1970 c.o"), "{}", old.text());
    let zeros = place.line("find vol.img:/docs -name a* -print0").ok();
    assert_eq!(zeros.out, b"vol.img:/docs/a.txt\0");
}

#[test]
fn contents_come_out_byte_for_byte() {
    let place = furnished();
    assert_eq!(
        place.line("cat vol.img:/docs/a.txt vol.img:/docs/b.txt vol.img:/link").ok().out,
        b"alpha\nbeta\0\xff\nalpha\n"
    );
    assert_eq!(place.line("cat vol.img:/docs/old/c.o").ok().out, [7; 100_000]);
    let mixed = place.line("cat vol.img:/docs/a.txt vol.img:/none vol.img:/docs vol.img:/alias");
    let mixed =
        mixed.expect(1, &["myriad: vol.img:/none: No such file or directory; ", "vol.img:/docs: Is a directory"]);
    assert_eq!(mixed.out, b"alpha\nalpha\n", "the rest was done");
}

#[test]
fn changes() {
    let place = furnished();
    for (line, code, said) in [
        ("mkdir vol.img:/a/b/c", 1, "mkdir -p makes the directories above it too"),
        ("mkdir -p vol.img:/a/b/c", 0, ""),
        ("mkdir -p vol.img:/a/b/c vol.img:/a/d/", 0, ""),
        ("mkdir vol.img:/docs", 1, "vol.img:/docs: File exists"),
        ("mkdir -p vol.img:/docs/a.txt", 1, "vol.img:/docs/a.txt: File exists"),
        ("mkdir -p -m 1770 vol.img://sticky/", 0, ""),
        ("ln vol.img:/docs/b.txt vol.img:/a", 0, ""),
        ("ln -s /no/where vol.img:/a/dangling", 0, ""),
        (
            "ln vol.img:/docs vol.img:/more",
            1,
            "vol.img:/docs: is a directory, which can have one name only; make a symbolic link",
        ),
        ("ln vol.img:/none vol.img:/more", 1, "vol.img:/none: No such file"),
        ("mv vol.img:/a/b.txt vol.img:/a/d", 0, ""),
        ("mv -n vol.img:/alias vol.img:/link", 0, ""),
        ("mv vol.img:/alias vol.img:/link", 0, ""),
        ("mv vol.img:/link vol.img:/empty vol.img:/a", 0, ""),
        ("mv vol.img:/a vol.img:/docs vol.img:/none", 2, "not a directory"),
        (
            "mv vol.img:/docs vol.img:/docs/old",
            1,
            "vol.img:/docs to vol.img:/docs/old/docs: a directory cannot be moved into itself",
        ),
        ("mv --exchange vol.img:/a/d vol.img:/a/link", 0, ""),
        ("rm vol.img:/docs", 1, "myriad rm -r removes it"),
        ("rm vol.img:/none", 1, "No such file"),
        ("rm -f vol.img:/none vol.img:/a/dangling", 0, ""),
        ("rm -rf vol.img:/", 1, "the root of the volume cannot be removed"),
        ("rm -r vol.img:/docs", 0, ""),
    ] {
        place.line(line).expect(code, &[said]);
    }
    let mut left = place
        .line("find vol.img")
        .ok()
        .lines()
        .into_iter()
        .map(|line| line.replace("vol.img:", ""))
        .collect::<Vec<_>>();
    left.sort_unstable();
    assert_eq!(left, ["/", "/a", "/a/b", "/a/b/c", "/a/d", "/a/empty", "/a/link", "/a/link/b.txt", "/sticky"]);
    assert_eq!(place.line("cat vol.img:/a/d").ok().out, b"alpha\n");
    assert_eq!(place.line("stat --json vol.img:/sticky").ok().json()["mode"], "1770");
    assert_eq!(place.line("stat --json vol.img:/a/d").ok().json()["nlink"], 1, "its other name is gone");
    place.assert_sound();
}

/// The second of two files of one name took the place of the first.
#[test]
fn one_mv_does_not_replace_what_it_moved() {
    let place = Place::with_volume(VOLUME);
    place.change(|session| {
        for directory in ["/a", "/b", "/dir"] {
            session.mkdir(directory, 0o755).unwrap();
        }
        put(session, "/a/x", b"1");
        put(session, "/b/x", b"2");
    });
    let said = "vol.img:/b/x: will not replace vol.img:/dir/x, which was just made from vol.img:/a/x";
    place.line("mv vol.img:/a/x vol.img:/b/x vol.img:/dir").expect(1, &[said]);
    assert_eq!(place.line("cat vol.img:/dir/x vol.img:/b/x").ok().out, b"12");
    // Another run may.
    place.line("mv vol.img:/b/x vol.img:/dir").ok();
    assert_eq!(place.line("cat vol.img:/dir/x").ok().out, b"2");
    place.assert_sound();
}

#[test]
fn space() {
    let place = furnished();
    let du = place.line("du -s -b --apparent-size vol.img").ok();
    assert_eq!(du.text(), "100023\tvol.img:/\n", "a second name does not count again");
    let all = place.line("du -a -b --apparent-size vol.img:/docs").ok();
    assert!(all.lines().contains(&"100000\tvol.img:/docs/old/c.o"), "{}", all.text());
    assert_eq!(*all.lines().last().unwrap(), "100013\tvol.img:/docs", "the whole comes last");
    let taken = place.line("du -s --json vol.img").ok().json();
    assert!(taken["bytes"].as_u64().unwrap() >= 100_000);
    let df = place.line("df --json vol.img").ok().json();
    // The rest is held back, for removals and for the engine itself.
    let (sum, size) = (df["used"].as_u64().unwrap() + df["available"].as_u64().unwrap(), df["size"].as_u64().unwrap());
    assert!(sum < size && sum > size / 20 * 19, "{df}");
    assert_eq!(df["directories"], 4);
    assert!(place.line("df -h vol.img").ok().lines()[0].starts_with("Volume"));
    assert!(place.line("df -i vol.img").ok().text().contains("IUse%"));
    let stats = place.line("stats --json --counters vol.img").ok().json();
    assert_eq!((&stats["by_type"]["directory"], &stats["by_type"]["regular_file"]), (&4.into(), &4.into()));
    assert_eq!(stats["content"], 100_023);
}

#[test]
fn names_of_any_bytes_survive() {
    let place = Place::with_volume(VOLUME);
    let name = b"/caf\xe9\n\x1b[2J";
    place.change(|session| put(session, name, b"x"));
    let argument =
        |verb: &str| [OsStr::new(verb).to_owned(), OsStr::from_bytes(&[b"vol.img:", &name[..]].concat()).to_owned()];
    assert_eq!(place.run(&argument("cat")).ok().out, b"x");
    assert_eq!(place.line("ls vol.img").ok().out, b"caf\xe9\n\x1b[2J\n", "a pipe gets the bytes");
    let listed = place.line("ls --json vol.img").ok().json();
    assert_eq!(listed["name_hex"], "636166e90a1b5b324a");
    assert_eq!(listed["name"], "caf\u{fffd}\n\u{1b}[2J");
    place.run(&argument("mkdir")).expect(1, &["vol.img:$'/caf\\351\\n\\033[2J': File exists"]);
    place.run(&argument("rm")).ok();
    assert_eq!(place.line("ls vol.img").ok().out, b"");
}

#[test]
fn debug_shows_what_is_there() {
    let place = furnished();
    for (line, shown) in [
        ("debug vol.img superblock", &["superblock: intact", "block_bits", "12"][..]),
        ("debug vol.img block 0", &["superblock, intact", "ag_blocks"]),
        ("debug vol.img block 1", &["group header, intact", "region 0", "free_blocks"]),
        ("debug vol.img inode /docs/a.txt", &["nlink", "body"]),
        ("debug vol.img lookup /docs/old/c.o", &["/docs/old/c.o: regular file", "read block", "blocks read"]),
        ("debug vol.img log", &["anchor 0", "Tail:", "To replay:"]),
    ] {
        let answer = place.line(line).ok();
        for shown in shown {
            assert!(answer.text().contains(shown), "{line} does not show {shown}:\n{}", answer.text());
        }
    }
    place.line("debug vol.img block 99999999").expect(2, &["no such block; the volume has"]);
    place.line("debug vol.img inode 32").expect(1, &["can have no such inode"]);
    place.line("debug vol.img lookup /none").expect(1, &["vol.img:/none: No such file"]);
    place.line("debug --json vol.img block 1").ok().json();
    place.line("debug --json vol.img superblock").ok().json();
}

#[test]
fn a_map_shows_where_things_lie() {
    let place = furnished();
    let shown = place.line("debug vol.img map").ok();
    let text = shown.text();
    for shown in ["D directories, i inodes of files", "regions of ", "lie in the region of their parent"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    let json = place.line("debug --json vol.img map").ok().json();
    let count =
        |field: &str| json["rows"].as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>();
    let listed = place.line("find vol.img:/ -type d").ok().text().lines().count() as u64;
    assert_eq!((count("directories"), json["directories"].as_u64()), (listed, Some(listed - 1)), "{json}");

    place.line("debug vol.img map --out a.svg --out a.PNG --title <&>").ok();
    let svg = std::fs::read_to_string(place.path("a.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("<title>&lt;&amp;&gt;</title>") && svg.ends_with("</svg>\n"));
    let png = std::fs::read(place.path("a.PNG")).unwrap();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");

    place.line("debug vol.img map --out b.jpg").expect(2, &["b.jpg: a picture's name ends in .svg or .png"]);
    place.line("debug vol.img map --out vol.img").expect(2, &["ends in .svg or .png"]);
    place
        .line("debug vol.img map --out b.svg --out a.svg")
        .expect(1, &["a.svg: is there already; --force writes over it"]);
    assert!(!place.path("b.svg").exists(), "nothing is drawn that another refusal stops");
    place.line("debug vol.img map --force --out a.svg").ok();
    std::fs::create_dir(place.path("d.svg")).unwrap();
    place.line("debug vol.img map --force --out d.svg").expect(1, &["d.svg: is a directory"]);
    place.line("debug vol.img map --out none/a.svg").expect(1, &["none/a.svg: No such file"]);
    std::fs::copy(place.path("vol.img"), place.path("v.png")).unwrap();
    place.line("debug vol.img map --force --out v.png").expect(1, &["v.png: is a Myriad volume"]);
    place.line("debug vol.img map --title x").expect(2, &["--out"]);
    place.line("debug none.img map").expect(1, &["none.img"]);
    let pipe = place.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    place.line("debug pipe map").expect(1, &["pipe: "]);
}

#[test]
fn a_volume_without_colons_in_its_name_is_not_the_only_one() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("c:/x")).unwrap();
    place.line("mkfs c:/x/v.img --size 64M -q").ok();
    place.line("mkdir -p c:/x/v.img:/a:/b").ok();
    assert_eq!(place.line("ls c:/x/v.img:/a:").ok().lines(), ["b"]);
    assert_eq!(place.line("ls -d c:/x/v.img:/a:/b").ok().lines(), ["c:/x/v.img:/a:/b"]);
}

/// `rm -rf vol.img:/build/*` removed nothing, said nothing and ended well: the shell replaces no names in a volume.
#[test]
fn a_pattern_that_no_shell_has_replaced_is_told_of() {
    let place = furnished();
    for line in ["rm -rf vol.img:/docs/*", "rm vol.img:/docs/[a-z]?", "cat vol.img:/docs/*.txt"] {
        place.line(line).expect(1, &["the shell sees no names in a volume: myriad find -name"]);
    }
    place.line("rm -f vol.img:/none").ok();
}
