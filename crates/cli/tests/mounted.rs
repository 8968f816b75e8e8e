//! The verbs on a volume that a daemon has mounted: through it, with its state, and with the same answers.

mod common;

use common::mount::{MountPlace, Signal, is_alive, kill, wait_until};
use common::{PROGRAM, put};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Stdio;

const VOLUME: u64 = 64 << 20;

/// A volume with files of every kind, those of user 0 among them.
fn furnished() -> Option<MountPlace> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: of files that are user 0's, others see less through a mount");
        return None;
    }
    let place = MountPlace::with_volume(VOLUME)?;
    place.change(|session| {
        session.mkdir("/docs", 0o755).unwrap();
        session.mkdir("/docs/old", 0o750).unwrap();
        session.mkdir("/docs/old/deep", 0o755).unwrap();
        session.mkdir("/empty", 0o755).unwrap();
        put(session, "/docs/a.txt", b"alpha\n");
        put(session, "/docs/b.txt", b"beta\0\xff\n");
        put(session, "/docs/old/c.o", &[7; 100_000]);
        put(session, "/docs/.hidden", b"");
        put(session, "/docs/old/deep/caf\u{e9}\n", b"odd");
        session.symlink(b"docs/a.txt", "/link").unwrap();
        session.symlink(b"/docs", "/absolute").unwrap();
        session.symlink(b"../../../../../../../docs/b.txt", "/docs/outward").unwrap();
        session.symlink(b"/no/such", "/dangling").unwrap();
        session.link("/docs/a.txt", "/alias").unwrap();
        session.mknod("/pipe", 0o010_640, 0).unwrap();
        session.set_xattr("/docs/a.txt", b"user.note", b"x", Default::default()).unwrap();
    });
    Some(place)
}

/// A new volume was said to change all the time until its first commit.
#[test]
fn a_new_mount_can_be_looked_at() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    place.line("fsck -n vol.img").expect(0, &["looking at its last commit", "sound: 0 files"]);
    place.umount();
    place.mount("-o order=none");
    place.line("fsck -n vol.img").expect(8, &["in use, and"]);
    place.umount();
}

/// Lines that only look, over everything that verbs have options for.
const LOOKS: &[&str] = &[
    "ls vol.img",
    "ls -la vol.img",
    "ls -lan vol.img:/docs",
    "ls -R vol.img:/",
    "ls -liRA vol.img",
    "ls -S vol.img:/docs",
    "ls vol.img:/link vol.img:/absolute",
    "ls -l vol.img:/absolute/",
    "ls -a vol.img:/absolute/old",
    "ls -d vol.img:/docs vol.img:/none",
    "cat vol.img:/docs/a.txt vol.img:/link vol.img:/absolute/b.txt vol.img:/docs/outward",
    "cat vol.img:/docs/old/c.o",
    "cat vol.img:/docs",
    "cat vol.img:/pipe",
    "cat vol.img:/dangling",
    "cat vol.img:/docs/a.txt/x",
    "find vol.img",
    "find vol.img:/docs -type f",
    "find vol.img -maxdepth 1",
    "find vol.img:/absolute -name *.txt",
    "find vol.img:/absolute/ -size +1k",
    "find vol.img:/none",
    "find -L vol.img -type f ( -name *.txt -o -empty ) -printf %p:%l:%s:%Y\\n",
    "find vol.img -depth -xtype f -o -name old -prune",
    "find vol.img -empty -ls",
    "find vol.img:/docs -newer vol.img:/docs/a.txt",
    "tree -apug vol.img",
    "tree -J vol.img:/docs",
    "readlink vol.img:/link vol.img:/docs/outward vol.img:/docs/a.txt",
    "readlink -f vol.img:/link vol.img:/absolute/old vol.img:/docs/outward",
    "readlink -e vol.img:/dangling",
    "ls -lF --color=always vol.img",
    "ls -L vol.img:/link vol.img:/absolute",
    "cat -A vol.img:/docs/a.txt vol.img:/docs/b.txt",
    "stat -c %N:%s:%A:%h:%o vol.img:/link vol.img:/docs",
    "du vol.img",
    "du -a vol.img:/docs",
    "du -sb vol.img:/docs/old vol.img:/link",
    "du --apparent-size vol.img:/",
    "stat vol.img:/ vol.img:/docs/a.txt vol.img:/pipe vol.img:/link",
    "stat -L vol.img:/link vol.img:/absolute",
    "stat vol.img:/../docs/../../docs",
    "export vol.img:/none x",
    "export vol.img:/link x",
];

/// The same that print JSON: but for what only the engine knows, and the kernel does not tell.
const LOOKS_JSON: &[&str] = &[
    "ls -la --json vol.img:/docs",
    "find --json vol.img",
    "stat --json vol.img:/docs/a.txt",
    "tree --json vol.img",
    "du --json vol.img",
];

fn without_what_the_kernel_does_not_tell(out: &[u8]) -> Vec<Value> {
    let lines = out.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let object = |line: &[u8]| {
        let mut value: Value = serde_json::from_slice(line).expect("a line of JSON");
        let object = value.as_object_mut().expect("an object");
        for field in ["generation", "flags", "btime_ns"] {
            object.remove(field);
        }
        value
    };
    lines.map(object).collect()
}

#[test]
fn looking_through_a_mount_shows_what_looking_at_the_image_shows() {
    let Some(place) = furnished() else { return };
    let look = || LOOKS.iter().map(|line| place.line(line)).collect::<Vec<_>>();
    let look_json = || {
        let answers = LOOKS_JSON.iter().map(|line| without_what_the_kernel_does_not_tell(&place.line(line).ok().out));
        answers.collect::<Vec<_>>()
    };
    let (before, before_json) = (look(), look_json());
    place.mount("");
    let (mounted, mounted_json) = (look(), look_json());
    for ((line, before), mounted) in LOOKS.iter().zip(&before).zip(&mounted) {
        let plain = |answer: &common::Answer| {
            // The kernel does not tell when a file was made.
            let text = String::from_utf8_lossy(&answer.out).into_owned();
            text.lines().filter(|line| !line.starts_with(" Birth:")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!((before.code, plain(before), &before.err), (mounted.code, plain(mounted), &mounted.err), "{line}");
    }
    for ((line, before), mounted) in LOOKS_JSON.iter().zip(&before_json).zip(&mounted_json) {
        assert_eq!(before, mounted, "{line}");
    }
    let df = |place: &MountPlace| place.line("df --json vol.img").ok().json();
    let df_mounted = df(&place);
    let info = place.line("info --json vol.img").ok().json();
    assert_eq!(info["state"], "mounted");
    assert!(place.line("info vol.img").ok().text().contains("mounted on "));
    place.umount();
    assert_eq!(df(&place), df_mounted);
    let after = place.line("info --json vol.img").ok().json();
    assert_eq!(
        (&after["uuid"], &after["order"], &after["features"]),
        (&info["uuid"], &info["order"], &info["features"])
    );
}

/// Lines that change, each of which may lean on those before; some are refused.
const CHANGES: &[&str] = &[
    "mkdir vol.img:/new vol.img:/docs",
    "mkdir -p -m 700 vol.img:/x/y/z",
    "mkdir -p vol.img:/absolute/made",
    "mkdir vol.img:/none/made",
    "mkdir vol.img:/",
    "ln vol.img:/docs/a.txt vol.img:/new",
    "ln vol.img:/link vol.img:/new/link2",
    "ln vol.img:/docs vol.img:/new/dir",
    "ln -s /etc/passwd vol.img:/passwd",
    "ln -s x vol.img:/passwd",
    "cp text vol.img:/passwd",
    "cp -r text dir vol.img:/new",
    "cp -r vol.img:/docs/old vol.img:/x/copy",
    "cp vol.img:/link vol.img:/x/followed",
    "cp -n text vol.img:/docs/a.txt",
    "find vol.img:/x -depth -name copy -delete",
    "find vol.img:/x/copy -delete -print",
    "find vol.img:/new -name link2 -delete",
    "cp vol.img:/docs vol.img:/docs/old",
    "cp -r vol.img:/docs vol.img:/docs/old",
    "cp -aT dir vol.img:/x/archive",
    "mv vol.img:/docs/b.txt vol.img:/x/y",
    "mv -n vol.img:/alias vol.img:/link",
    "mv --exchange vol.img:/alias vol.img:/link",
    "mv vol.img:/x vol.img:/x/y/z",
    "mv vol.img:/none vol.img:/x",
    "mv vol.img:/ vol.img:/x",
    "rm vol.img:/docs/.hidden vol.img:/none",
    "rm vol.img:/docs",
    "rm -r vol.img:/",
    "rm -rf vol.img:/docs/old vol.img:/none",
    "rm vol.img:/absolute",
    "import dir vol.img:/imported",
    "import dir vol.img:/imported",
    "import --replace dir vol.img:/imported",
    "import tree.tar vol.img:/from/tar",
    "import tree.tar vol.img:/tar",
    "import dir vol.img:/link",
];

#[test]
fn changing_through_a_mount_changes_what_changing_the_image_changes() {
    let Some(place) = furnished() else { return };
    // Times differ, and so may inode numbers.
    let tree = || {
        let lines = place.line("find --json vol.img").ok();
        let mut files = without_what_the_kernel_does_not_tell(&lines.out);
        for file in &mut files {
            let object = file.as_object_mut().unwrap();
            object.retain(|key, _| !key.ends_with("time_ns") && !["ino", "allocated"].contains(&key.as_str()));
        }
        files.sort_by_key(|file| file["path"].as_str().map(str::to_owned));
        files
    };
    place.write("text", b"from the host");
    fs::create_dir_all(place.path("dir/sub")).unwrap();
    fs::write(place.path("dir/sub/f"), vec![1; 70_000]).unwrap();
    fs::hard_link(place.path("dir/sub/f"), place.path("dir/g")).unwrap();
    symlink("/nowhere", place.path("dir/s")).unwrap();
    place.line("mkfs --quiet --size 64M other.img").ok();
    place.line("import --quiet dir other.img:/").ok();
    place.line("export --quiet other.img tree.tar").ok();
    let image = common::bytes(&place.path("vol.img"));
    let change = || {
        let quiet = |line: &&str| place.line(&format!("{line} --quiet"));
        CHANGES.iter().map(quiet).map(|answer| (answer.code, answer.err)).collect::<Vec<_>>()
    };
    let directly = (change(), tree());
    place.assert_sound();
    place.write("vol.img", &image);
    place.mount("");
    let passwd = fs::read("/etc/passwd").unwrap();
    let mounted = (change(), tree());
    for ((line, directly), mounted) in CHANGES.iter().zip(&directly.0).zip(&mounted.0) {
        assert_eq!(directly.0, mounted.0, "{line}: {directly:?} {mounted:?}");
        assert_eq!(directly.1.is_empty(), mounted.1.is_empty(), "{line}: {directly:?} {mounted:?}");
    }
    assert_eq!(directly.1, mounted.1);
    assert_eq!(fs::read("/etc/passwd").unwrap(), passwd, "no link leads to the host");
    assert!(!place.mounted("absolute").exists() && place.mounted("new/text").exists());
    place.umount();
    assert_eq!(tree(), mounted.1);
    place.assert_sound();
}

#[test]
fn verbs_see_what_is_not_yet_on_the_disk() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("-o commit=0");
    fs::write(place.mounted("fresh"), b"still in memory").unwrap();
    assert_eq!(place.line("cat vol.img:/fresh").ok().out, b"still in memory");
    let size = place.line("stat --json vol.img:/fresh").ok().json()["size"].clone();
    assert_eq!(size, 15);
    // And the other way round, at once.
    place.line("mv vol.img:/fresh vol.img:/renamed").ok();
    assert!(!place.mounted("fresh").exists());
    assert_eq!(fs::read(place.mounted("renamed")).unwrap(), b"still in memory");
    place.line("export --quiet vol.img out").ok();
    assert_eq!(common::bytes(&place.path("out/renamed")), b"still in memory");
    // A verb that has changed something returns when that is durable.
    let daemon = place.daemon();
    kill(daemon, Signal::KILL);
    wait_until("the daemon is gone", || !is_alive(daemon));
    place.line("umount mnt").ok();
    assert_eq!(place.line("cat vol.img:/renamed").ok().out, b"still in memory");
    place.assert_sound();
}

#[test]
fn what_is_mounted_inside_is_not_the_volumes() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: into what a user has mounted, fusermount3 may not look");
    }
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.line("mkfs --quiet --size 64M inner.img").ok();
    place.line("mkdir vol.img:/in").ok();
    place.mount("");
    place.line("mount inner.img mnt/in").ok();
    fs::write(place.mounted("in/secret"), b"").unwrap();
    place.line("ls vol.img:/in").expect(1, &["vol.img:/in: "]);
    place.line("rm -r vol.img:/in").expect(1, &["vol.img:/in: "]);
    assert!(place.mounted("in/secret").exists());
    place.line("umount mnt").expect(1, &["in use"]);
    place.line("umount mnt/in mnt").ok();
    place.assert_sound();
}

/// Mounts `mount WORDS`, which `MountPlace` takes away again; not everybody may.
fn host_mount(place: &MountPlace, words: &[&str]) -> bool {
    let mounted = place.command("mount", words).output().expect("mount");
    if !mounted.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&mounted.stderr));
    }
    mounted.status.success()
}

/// An import went into the tmpfs that was mounted there, said that all was well, and was gone with the tmpfs.
#[test]
fn nothing_is_imported_into_what_is_mounted_inside() {
    let Some(place) = furnished() else { return };
    fs::create_dir_all(place.path("source/docs/old")).unwrap();
    fs::create_dir_all(place.path("source/empty")).unwrap();
    for file in ["source/docs/new", "source/docs/old/new", "source/empty/new"] {
        place.write(file, b"new");
    }
    place.mount("");
    if !host_mount(&place, &["-t", "tmpfs", "none", "mnt/docs"]) {
        return;
    }
    for line in
        ["import source mnt:/", "import --replace source mnt:/", "cp -rT source mnt:/", "cp -r source/docs mnt:/"]
    {
        let said = ["docs: ", "something else is mounted there"];
        place.line(line).expect(1, if line.ends_with("docs mnt:/") { &[] } else { &said });
        assert_eq!(fs::read_dir(place.mounted("docs")).unwrap().count(), 0, "{line}");
    }
    assert_eq!(fs::read(place.mounted("empty/new")).unwrap(), b"new");
    place.line("umount mnt").expect(1, &["in use"]);
    let umount = place.command("umount", &["mnt/docs"]).status().unwrap();
    assert!(umount.success());
    place.umount();
    place.assert_sound();
}

/// An archive lacked what had something mounted on it, and nobody said so; and a file that was mounted on another was taken for the volume's.
#[test]
fn an_export_says_what_is_hidden_by_other_mounts() {
    let Some(place) = furnished() else { return };
    place.write("foreign", b"of the host");
    place.mount("");
    if !host_mount(&place, &["-t", "tmpfs", "none", "mnt/docs/old"])
        || !host_mount(&place, &["--bind", "foreign", "mnt/docs/b.txt"])
    {
        return;
    }
    fs::write(place.mounted("docs/old/secret"), b"x").unwrap();
    let said = [
        "docs/old: something is mounted on it; what the volume has there is left out",
        "docs/b.txt: something is mounted on it",
    ];
    for line in ["export mnt out.tar", "export mnt out", "cp -r mnt:/docs copy"] {
        let said = if line.starts_with("cp") { [&said[0][5..], &said[1][5..]] } else { said };
        place.line(line).expect(1, &said);
    }
    let listed = place.command("tar", &["-tf", "out.tar"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("docs/a.txt") && !listed.contains("secret") && !listed.contains("b.txt"), "{listed}");
    for copy in ["out/docs", "copy"] {
        assert!(place.path(copy).join("a.txt").exists());
        assert!(!place.path(copy).join("b.txt").exists() && !place.path(copy).join("old").exists(), "{copy}");
    }
    // Who leaves out what is mounted gets the directory, as from cp(1), and no error.
    place.line("cp -rx mnt:/docs alone").ok();
    assert_eq!(fs::read_dir(place.path("alone/old")).unwrap().count(), 0);
    fs::create_dir_all(place.path("host/inside")).unwrap();
    if host_mount(&place, &["-t", "tmpfs", "none", "host/inside"]) {
        fs::write(place.path("host/inside/secret"), b"x").unwrap();
        place.line("import -qx host mnt:/host").ok();
        assert_eq!(fs::read_dir(place.mounted("host/inside")).unwrap().count(), 0);
    }
}

/// The kernel said that the volume is full, and umount ended the mount of an image that the host had no room for: what was not synced was lost.
#[test]
fn a_full_host_is_told_of_and_keeps_the_mount() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    fs::create_dir(place.path("host")).unwrap();
    if !host_mount(&place, &["-t", "tmpfs", "-o", "size=16m", "none", "host"]) {
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        place.line("mkfs -q --size 64M host/h.img").ok();
        place.line("mount host/h.img mnt").ok();
        place.write("host/filler", &vec![1; 13 << 20]);
        let content = vec![7; 1 << 20];
        for number in 0..4 {
            // Some are taken, and nothing of them is durable.
            let _ = fs::write(place.mounted(&number.to_string()), &content);
        }
        let taken: Vec<u32> =
            (0..4).filter(|n| fs::read(place.mounted(&n.to_string())).is_ok_and(|it| it == content)).collect();
        assert!(taken.len() > 1, "{taken:?}");
        place.line("sync mnt").expect(1, &["h.img: the host's file system has no room"]);
        place.line("umount mnt").expect(1, &["h.img: the host's file system has no room", "--force"]);
        fs::remove_file(place.path("host/filler")).unwrap();
        place.line("umount mnt").ok();
        for number in taken {
            assert!(place.line(&format!("cat host/h.img:/{number}")).ok().out == content, "{number}");
        }
        place.line("fsck -n host/h.img").expect(0, &[]);
    });
    place.line("umount --force mnt");
    assert!(place.command("umount", &["host"]).status().unwrap().success());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// What a mount hides, or shows in place of what is, was taken for the files' own: a copy had no attributes, or another owner and mode, and nothing said so.
#[test]
fn what_a_mount_does_not_show_is_not_lost_in_silence() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let shell = |script: &str| {
        let status = place.command("sh", &["-ec", script]).status().unwrap();
        assert!(status.success(), "{script}");
    };
    shell("mkdir s; echo text > s/f; chmod 4755 s/f; setfattr -n user.k -v v s/f");
    place.line("import -q s vol.img:/s").ok();
    let keeping =
        ["cp -a vol.img:/s out", "cp -a vol.img:/s vol.img:/t", "export vol.img:/s out", "export vol.img:/s out.tar"];
    for (options, named, but) in [
        ("noxattr", "noxattr", "cp -r"),
        ("uid=1000,umask=077", "uid, umask", "cp -r"),
        ("gid=7", "gid", "cp -r --preserve=mode,timestamps"),
    ] {
        place.mount(&format!("-o {options}"));
        for line in keeping {
            let answer = place.line(line).expect(1, &["vol.img: mounted at", named, "unmount it first"]);
            assert!(!place.path("out").join("f").exists() && !place.path("out.tar").exists(), "{line}: {}", answer.err);
            shell("test -z \"$(ls | grep myriad-new)\"");
        }
        // What ended as a whole stream would pass for a backup of nothing.
        let answer = place.line("export --compress gzip vol.img:/s -").expect(1, &[named, "unmount it first"]);
        assert!(answer.out.is_empty());
        place.line(&format!("{but} vol.img:/s plain")).ok();
        place.umount();
        shell("grep -q text plain/f; rm -rf plain out");
    }
    place.line("cp -a vol.img:/s out").ok();
    shell("getfattr -n user.k out/f; test $(stat -c %a out/f) = 4755; rm -r out");
    // Nothing is hidden where nothing is.
    place.line("rm -r vol.img:/s").ok();
    place.line("mkfs -q -f --size 64M vol.img").ok();
    place.change(|session| put(session, "/f", b"text"));
    place.mount("-o noxattr");
    place.line("cp -a vol.img:/f out").ok();
    place.umount();
}

/// An image was emptied while a daemon had it mounted, and what it had was gone.
#[test]
fn an_image_in_a_volume_is_not_emptied_while_it_is_mounted() {
    let Some(place) = furnished() else { return };
    place.line("mkfs -q --size 16M inner.img").ok();
    place.line("cp inner.img vol.img:/inner.img").ok();
    place.line("ln -s inner.img vol.img:/way").ok();
    let lines = [
        "tee vol.img:/inner.img",
        "tee vol.img:/way",
        "truncate -s 0 vol.img:/inner.img",
        "truncate -s -4096 vol.img:/way",
        "ln -f vol.img:/docs/a.txt vol.img:/inner.img",
        "ln -sf docs vol.img:/inner.img",
    ];
    let judge = |said: &str| {
        for line in lines {
            place.line(line).expect(1, &[": is ", said]);
            assert_eq!(place.line("stat -c %s:%F vol.img:/inner.img").ok().text(), "16777216:regular file\n", "{line}");
        }
    };
    // What is a volume, and is not in use, is left alone as well.
    judge("name another file");
    place.mount("");
    judge("name another file");
    fs::create_dir(place.path("inner")).unwrap();
    place.line("mount mnt/inner.img inner").ok();
    judge("in use");
    fs::write(place.path("inner/f"), b"kept").unwrap();
    place.line("umount inner").ok();
    place.line("fsck -n mnt/inner.img").expect(0, &[]);
    // What loses nothing is nothing to be refused, nor is what is no volume.
    place.line("truncate -s +4096 vol.img:/inner.img").ok();
    for line in [
        "tee vol.img:/docs/a.txt",
        "tee vol.img:/link",
        "truncate -s 0 vol.img:/docs/a.txt",
        "ln -sf docs vol.img:/way",
    ] {
        place.line(line).ok();
    }
    place.umount();
    place.assert_sound();
}

#[test]
fn figures_are_live() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    for index in 0..20 {
        fs::write(place.mounted(&format!("f{index}")), vec![7; 10_000]).unwrap();
    }
    let _ = fs::metadata(place.mounted("none"));
    let by_directory = place.line("stats --json mnt").ok().json();
    let by_image = place.line("stats --json vol.img").ok().json();
    let count = |stats: &Value, name: &str| {
        let requests = stats["requests"].as_array().unwrap();
        let found = requests.iter().find(|request| request["name"] == name);
        found.map_or(0, |request| request["count"].as_u64().unwrap())
    };
    assert!(count(&by_directory, "LOOKUP") >= 20, "{by_directory}");
    assert!(count(&by_image, "LOOKUP") >= count(&by_directory, "LOOKUP"));
    let lookup = by_image["requests"].as_array().unwrap().iter().find(|request| request["name"] == "LOOKUP").unwrap();
    let latency: u64 = lookup["latency"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(latency, lookup["count"].as_u64().unwrap());
    assert_eq!(by_image["bytes_written"], 200_000);
    assert!(by_image["counters"]["creates"].as_u64().unwrap() >= 20, "{by_image}");
    assert!(by_image["cache_used"].as_u64().unwrap() > 0 && by_image["available"].as_u64().unwrap() > 0);
    let shown = place.line("stats --once --counters mnt").ok();
    for word in ["LOOKUP", "WRITE", "Cache:", "In memory only:", "creates"] {
        assert!(shown.text().contains(word), "{}", shown.text());
    }
    let metrics = place.line("stats --prometheus mnt").ok();
    let device = metrics.text().lines().find(|line| line.starts_with("myriad_written_bytes_total{")).unwrap();
    assert!(device.ends_with(" 200000") && device.contains("vol.img"), "{device}");
    for line in metrics.text().lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("myriad_") && name.ends_with('}') && value.parse::<f64>().is_ok(), "{line}");
    }
    place.umount();
    place.line("stats --once vol.img").expect(1, &["vol.img: not mounted"]);
    assert_eq!(place.line("stats --json vol.img").ok().json()["by_type"]["regular_file"], 20);
}

#[test]
fn requests_are_logged_on_demand() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let mut reader = place.command(PROGRAM, &["stats", "--log", "mnt"]).spawn().unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    // Until it listens, requests go by unseen.
    let made = std::thread::scope(|scope| {
        let (sender, done) = std::sync::mpsc::channel::<()>();
        let place = &place;
        scope.spawn(move || {
            let mut index = 0;
            while done.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                fs::create_dir(place.mounted(&format!("d{index}"))).unwrap();
                index += 1;
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("MKDIR"))).unwrap().unwrap();
        drop(sender);
        line
    });
    assert!(made.contains("MKDIR"), "{made}");
    place.line("stats --log mnt").expect(1, &["somebody else reads the log of requests"]);
    kill(i32::try_from(reader.id()).unwrap(), Signal::INT);
    assert_eq!(reader.wait().unwrap().code(), Some(0), "Ctrl-C is how it is ended");
    drop(lines);
    place.umount();
    place.assert_sound();
}

/// Directories were listed and names removed by their paths, and a link in the place of a directory led to another's files.
#[test]
fn find_removes_nothing_where_a_link_leads_by_now() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.change(|session| {
        for directory in ["/alice", "/m", "/m/0", "/m/1", "/m/2"] {
            session.mkdir(directory, 0o755).unwrap();
        }
        for path in ["/alice/a", "/alice/b", "/m/0/a", "/m/1/a", "/m/2/a"] {
            put(session, path, b"");
        }
    });
    place.mount("");
    // Of the directory in hand the content has been listed; of the others it has not.
    let swap = "[ -e swapped ] || for m in mnt/m/?; do mv $m $m-moved; ln -s ../alice $m; done; touch swapped";
    let words = ["find", "vol.img:/m", "-type", "f", "-exec", "sh", "-c", swap, ";", "-print", "-delete"];
    let found = place.run(&words).expect(1, &["vol.img:/m/0: Not a directory", "vol.img:/m/2: Not a directory"]);
    assert_eq!(found.lines().len(), 1, "{found:?}");
    let left = place.line("find vol.img -name [ab]").ok();
    let mut left = left.lines();
    left.sort_unstable();
    let moved = ["vol.img:/m/0-moved/a", "vol.img:/m/1-moved/a", "vol.img:/m/2-moved/a"];
    assert_eq!(left, [&["vol.img:/alice/a", "vol.img:/alice/b"][..], &moved].concat());
    place.umount();
    place.assert_sound();
}

/// They had the limit that we raise for ourselves.
#[test]
fn commands_of_find_have_the_limits_that_it_was_given() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let script = format!("ulimit -Sn 77; exec {PROGRAM} find vol.img -maxdepth 0 -exec sh -c 'ulimit -Sn' ';'");
    let found = common::answer(place.command("sh", &["-c", &*script]).spawn().unwrap()).ok();
    assert_eq!(found.text(), "77\n");
    place.umount();
}

#[test]
fn files_made_through_a_mount_are_the_callers() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    place.line("mkdir -m 1750 vol.img:/dir").ok();
    let metadata = fs::metadata(place.mounted("dir")).unwrap();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!((metadata.mode() & 0o7777, metadata.uid(), metadata.gid()), (0o1750, uid, gid));
    place.umount();
}

/// What it had made was found again, and copied below itself.
#[test]
fn a_mount_is_not_imported_into_itself() {
    let Some(place) = furnished() else { return };
    place.mount("");
    place.line("mkdir -p vol.img:/docs/copy/below").ok();
    for (source, target) in [("mnt", "docs/copy"), ("mnt", "new"), ("mnt/docs", "docs"), ("mnt/docs", "docs/new")] {
        let said = format!("vol.img:/{target}: is inside {source}, the directory to import");
        // What is to be deleted is no part of the source, so it must be refused first.
        for options in ["", "--update --delete", "--update --delete --dry-run", "--update --delete --exclude none"] {
            let before = place.line("tree vol.img:/").ok();
            place.line(&format!("import {options} {source} vol.img:/{target}")).expect(1, &[&said]);
            assert_eq!(place.line("tree vol.img:/").ok().text(), before.text(), "{options}");
        }
    }
    // What is imported would not be in itself, and be deleted.
    let said = "vol.img:/: is above mnt/docs, the directory to import";
    place.line("import --update --delete mnt/docs vol.img:/").expect(1, &[said]);
    // Beside it there is room.
    place.line("import -q mnt/docs vol.img:/docs-too").ok();
    assert_eq!(place.line("cat vol.img:/docs-too/a.txt").ok().out, b"alpha\n");
    place.umount();
    place.assert_sound();
}

/// By the name of the mount, the image was taken for any other file, and grew while it was copied.
#[test]
fn an_image_is_not_copied_into_itself_by_its_mount() {
    let Some(place) = furnished() else { return };
    place.mount("");
    fs::create_dir(place.path("around")).unwrap();
    fs::hard_link(place.path("vol.img"), place.path("around/image")).unwrap();
    place
        .line("import around mnt:/in")
        .expect(1, &["around/image: is the image that it would be imported into; left out"]);
    place
        .line("cp -r around mnt:/copy")
        .expect(1, &["around/image: is the image of the volume that it would go to; left out"]);
    assert_eq!(place.line("ls vol.img:/in vol.img:/copy").ok().text().matches("image").count(), 0);
    place.umount();
}

/// Where a file's data is, the kernel asks the daemon before it sends what programs have stored in a mapping: they were copied
/// as the holes that the volume still had.
#[test]
fn a_file_that_a_program_has_mapped_is_copied_whole() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    const SIZE: usize = 40 << 20;
    for options in ["", "-o open", "-o writeback"] {
        place.mount(options);
        let path = place.mounted("file");
        fs::File::create(&path).unwrap().set_len(SIZE as u64).unwrap();
        let script = "import mmap,os,sys\nf=os.open(sys.argv[1],os.O_RDWR)\nm=mmap.mmap(f,0)\nm[30000000:30000006]=b'stored'\n\
            print('stored',flush=True)\nsys.stdin.readline()\n";
        let mut python = std::process::Command::new("python3");
        let python = python.arg("-c").arg(script).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut storing = match python.spawn() {
            Ok(child) => child,
            Err(error) => return println!("skipped: python3: {error}"),
        };
        let mut line = String::new();
        BufReader::new(storing.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "stored\n");
        let mut expected = vec![0; SIZE];
        expected[30_000_000..30_000_006].copy_from_slice(b"stored");
        let copy = place.path("copy");
        place.line("cp vol.img:/file copy").ok();
        assert!(fs::read(&copy).unwrap() == expected, "{options}");
        let blocks = fs::metadata(&copy).unwrap().blocks();
        assert!(blocks < 1000, "{options}: the holes are filled: {blocks}");
        fs::remove_file(copy).unwrap();
        drop(storing.stdin.take());
        assert!(storing.wait().unwrap().success());
        place.umount();
    }
}

/// mkfs sent people to --force on a live volume, and the word for a mount point was one for a directory below it.
#[test]
fn what_is_not_for_a_mounted_volume_says_that_it_is_mounted() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    std::fs::create_dir(place.path("source")).unwrap();
    place.line("mkfs vol.img").expect(1, &["mounted on"]);
    place.line("mkfs --force vol.img").expect(1, &["mounted on"]);
    let said = place.line("debug mnt superblock");
    assert!(said.code != 0 && said.err.contains("mnt"), "{said:?}");
    place.line("verify mnt source").expect(1, &["a volume is mounted there; name its image"]);
    place.umount();
}

/// Without an operand df shows what is mounted, and where.
#[test]
fn df_finds_the_volumes_that_are_mounted() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let mount_point = place.path("mnt").canonicalize().unwrap();
    let mount_point = mount_point.to_str().unwrap();
    // Root sees those of other tests, too.
    let row = |line: &str| {
        let shown = place.line(line);
        shown
            .lines()
            .iter()
            .find(|row| row.ends_with(mount_point))
            .map(|row| row.split_whitespace().next().unwrap().to_owned())
    };
    assert_eq!(row("df"), None);
    place.change(|session| put(session, "/f", b"f"));
    place.mount("");
    assert!(row("df -h").unwrap().ends_with("/vol.img"));
    let rows = place.line("df --json").expect(0, &[]);
    let rows = rows.lines().into_iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let found: Vec<Value> = rows.filter(|row| row["mount_point"] == mount_point).collect();
    let named = place.line("df --json vol.img:/f").ok().json();
    assert_eq!((found.len(), &found[0]["size"]), (1, &named["size"]));
    let shown = place.line("df").ok();
    let (heading, shown) = (shown.lines()[0], shown.lines()[1]);
    let column = heading.find("Mounted on").unwrap();
    assert!(shown[column..].starts_with('/') && shown[..column].ends_with(' '), "{heading}\n{shown}");
    let target = place.line("df --output=target vol.img").ok();
    assert_eq!(target.lines(), ["Mounted on", mount_point]);
    place.line("df vol.img:/none").expect(1, &["vol.img:/none: No such file"]);
    place.umount();
    let none = place.line("df");
    assert!(none.code == 0 && (none.err.contains("no volume is mounted") || !none.out.is_empty()), "{none:?}");
}

/// A path below a mount point, where a place in a volume is wanted, is what people write first.
#[test]
fn paths_below_a_mount_point_are_understood() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.change(|session| {
        session.mkdir("/d", 0o777).unwrap();
        put(session, "/d/f", b"text");
        put(session, "/d/empty", b"");
        session.symlink(b"d", "/link").unwrap();
    });
    place.mount("");
    fs::create_dir(place.path("out")).unwrap();
    symlink("mnt", place.path("here")).unwrap();
    let mount_point = place.path("mnt").canonicalize().unwrap();
    for (line, code, path) in [
        ("rm mnt/d/f", 2, "/d/f"),
        ("rm -r mnt/link", 2, "/link"),
        ("rm here/d/f", 2, "/d/f"),
        ("cat mnt/d/f", 2, "/d/f"),
        ("tee mnt/d/new", 2, "/d/new"),
        ("tee mnt/none/new", 2, "/none/new"),
        ("mv mnt/d/f mnt/d/g", 2, "/d/f"),
        ("chmod 600 mnt/d/f", 2, "/d/f"),
        ("import out mnt/d", 2, "/d"),
        ("import out mnt", 2, "/"),
        ("ls mnt/d", 1, "/d"),
        ("ls mnt/d/f", 1, "/d/f"),
        ("stat mnt/d/empty", 1, "/d/empty"),
    ] {
        let said = place.line(line).expect(code, &[]).err;
        let meant = format!("; write {}:{path}\n", mount_point.display());
        assert!(said.contains(&meant), "{line}: not {meant}{said}");
    }
    // Where a whole volume is wanted, that is named.
    let meant = format!("lies in the volume that is mounted on {0}; name {0}\n", mount_point.display());
    for (line, code) in [
        ("fsck mnt/d", 8),
        ("fsck --online mnt/d", 8),
        ("info mnt/d", 1),
        ("debug mnt/d superblock", 1),
        ("stats mnt/d", 1),
        ("trim mnt/d", 1),
        ("tune mnt/d", 1),
        ("umount mnt/d", 1),
    ] {
        place.line(line).expect(code, &[&meant]);
    }
    let online = format!("myriad fsck --online {} checks it as it is", mount_point.display());
    place.line("fsck mnt").expect(8, &["mnt: mounted on ", &online]);
    place.line("rm out/f").expect(2, &["write IMAGE:/path\n"]);
    place.umount();
    place.line("rm mnt/d/f").expect(2, &["write IMAGE:/path\n"]);
}
