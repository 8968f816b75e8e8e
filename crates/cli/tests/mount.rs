//! The life of a mount: live when the command returns, closed when the other one does, whatever happens between.

mod common;

use common::mount::{MountPlace, Signal, TYPES, is_alive, kill, wait_until};
use common::{PROGRAM, Place, answer};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

const VOLUME: u64 = 64 << 20;

#[test]
fn a_mount_is_live_and_its_end_closes_the_image() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    fs::write(place.mounted("file"), b"by the kernel").unwrap();
    let image = place.path("vol.img").canonicalize().unwrap();
    let line = place.mount_line("mnt").expect("it is mounted");
    assert!(line[0] == image.to_str().unwrap() && TYPES.contains(&&*line[1]), "{line:?}");
    assert!(line[2].split(',').any(|option| option == "rw"), "{line:?}");
    let status = place.status();
    assert_eq!(status["image"], image.to_str().unwrap());
    assert_eq!(status["mount_point"], place.path("mnt").canonicalize().unwrap().to_str().unwrap());
    let shown = place.line("mount").ok();
    assert!(shown.text().contains("vol.img"), "{}", shown.text());
    let daemon = place.daemon();
    place.umount();
    // No waiting: the image is closed.
    place.assert_sound();
    assert_eq!(place.line("info --json vol.img").ok().json()["state"], "clean");
    assert_eq!(place.line("cat vol.img:/file").ok().out, b"by the kernel");
    assert!(place.mount_line("mnt").is_none());
    // Others may have mounts on this machine.
    let shown = place.line("mount").ok();
    assert!(!shown.text().contains(image.to_str().unwrap()), "{}", shown.text());
    assert_eq!(fs::read_dir(place.path("run")).unwrap().count(), 0, "the socket is gone");
    wait_until("the daemon ends", || !is_alive(daemon));
    place.line("umount mnt").expect(1, &["mnt: not mounted"]);
    // By its image.
    place.mount("-o noatime");
    assert!(place.mount_line("mnt").unwrap()[2].contains("noatime"));
    place.line("umount vol.img").ok();
    place.assert_sound();
}

#[test]
fn wrong_command_lines_mount_nothing() {
    let place = Place::with_volume(VOLUME);
    fs::create_dir(place.path("mnt")).unwrap();
    place.write("file", b"");
    let cases: &[(&str, i32, &[&str])] = &[
        ("mount vol.img", 2, &["<DIRECTORY>"]),
        ("mount vol.img mnt -o ro,cachsize=1G", 2, &["unknown option `cachsize`; did you mean `cachesize`?"]),
        (
            "mount vol.img mnt -o order=fast",
            2,
            &["option `order`: `fast` is no choice of order; this build has: none, sync, softdep, log"],
        ),
        ("mount vol.img mnt -o offset", 2, &["needs a value: offset=BYTES"]),
        ("mount vol.img none", 1, &["none: No such file or directory"]),
        ("mount vol.img file", 1, &["file: not a directory"]),
        ("mount none.img mnt", 1, &["none.img: No such file or directory"]),
        ("mount file mnt", 1, &["not a Myriad volume"]),
        ("mount vol.img mnt -o offset=1G", 1, &["vol.img: offset 1073741824 lies past the end"]),
        ("mount vol.img mnt -o offset=4K", 1, &["not a Myriad volume"]),
        ("mount vol.img mnt -o sizelimit=1M", 2, &["the image is truncated"]),
        ("mount vol.img mnt -o logfile=none/log", 1, &["none/log: No such file"]),
        ("umount none", 1, &["none: No such file"]),
        ("umount mnt", 1, &["mnt: not mounted; myriad mount shows what is"]),
        ("umount /proc", 1, &["/proc: not a Myriad volume but proc is mounted there; use umount(8)"]),
    ];
    for (line, code, said) in cases {
        // What is said of a truncated image is no usage error, but the daemon's code is the command's.
        let code = if line.contains("sizelimit") { 1 } else { *code };
        place.line(line).expect(code, said);
    }
    place.assert_sound();
}

#[test]
fn a_killed_daemon_leaves_a_directory_that_can_be_mounted_on_at_once() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let file = fs::File::create(place.mounted("synced")).unwrap();
    (&file).write_all(b"safe").unwrap();
    file.sync_all().unwrap();
    drop(file);
    let daemon = place.daemon();
    kill(daemon, Signal::KILL);
    wait_until("the daemon is gone", || !is_alive(daemon));
    place.mount("");
    assert_eq!(fs::read(place.mounted("synced")).unwrap(), b"safe");
    assert_ne!(place.daemon(), daemon);
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let here = place.path("mnt").canonicalize().unwrap();
    let mounts = table.lines().filter(|line| line.split(' ').nth(1) == here.to_str()).count();
    assert_eq!(mounts, 1, "the dead mount is not below the new one");
    place.umount();
    assert_eq!(fs::read_dir(place.path("run")).unwrap().count(), 0, "nor is its socket left");
    place.assert_sound();
}

#[test]
fn mounting_waits_for_a_daemon_that_is_closing() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let daemon = place.daemon();
    let mut file = fs::File::create(place.mounted("file")).unwrap();
    // The mount goes at once; the daemon stays for the file.
    kill(daemon, Signal::TERM);
    wait_until("it is unmounted", || place.mount_line("mnt").is_none());
    let waiting = place.command(PROGRAM, &["mount", "vol.img", "mnt"]).spawn().unwrap();
    file.write_all(b"the last word").unwrap();
    drop(file);
    answer(waiting).ok();
    assert_eq!(fs::read(place.mounted("file")).unwrap(), b"the last word");
    assert_ne!(place.daemon(), daemon);
    place.umount();
    place.assert_sound();
}

/// It was waited for until the file was closed.
#[test]
fn a_signal_ends_a_mount_that_waits_for_another_daemon() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let daemon = place.daemon();
    let file = fs::File::create(place.mounted("file")).unwrap();
    kill(daemon, Signal::TERM);
    wait_until("it is unmounted", || place.mount_line("mnt").is_none());
    for arguments in [&["mount", "vol.img", "mnt"][..], &["mount", "-f", "vol.img", "mnt"]] {
        let mut waiting = place.command(PROGRAM, arguments).spawn().unwrap();
        thread::sleep(Duration::from_secs(1));
        assert!(waiting.try_wait().unwrap().is_none(), "it waits");
        kill(waiting.id() as i32, Signal::TERM);
        wait_until("it ends", || waiting.try_wait().unwrap().is_some());
        answer(waiting).expect(143, &["interrupted"]);
    }
    assert!(is_alive(daemon) && place.mount_line("mnt").is_none());
    drop(file);
    wait_until("the daemon ends", || !is_alive(daemon));
    place.assert_sound();
}

/// Such a signal came to nothing, and the mount stayed.
#[test]
fn a_signal_that_comes_while_a_mount_begins_ends_it() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    assert!(place.command("mkfifo", &["log"]).status().unwrap().success());
    // Opened before the volume is: it waits for a reader.
    let mut mount = place.command(PROGRAM, &["mount", "-fv", "-o", "logfile=log", "vol.img", "mnt"]).spawn().unwrap();
    thread::sleep(Duration::from_secs(1));
    assert!(mount.try_wait().unwrap().is_none());
    kill(mount.id() as i32, Signal::TERM);
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("asked to end by a signal") && log.contains("unmounted and closed"), "{log}");
    answer(mount).expect(0, &[]);
    assert!(place.mount_line("mnt").is_none());
    assert_eq!(place.line("info --json vol.img").ok().json()["state"], "clean");
    place.assert_sound();
}

/// Its daemon was never asked, and what was written there not made durable.
#[test]
fn what_is_mounted_out_of_sight_is_synced() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can mount something over it");
    }
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("-o commit=0");
    fs::write(place.mounted("file"), b"synced").unwrap();
    let daemon = place.daemon();
    assert!(place.command("mount", &["-t", "tmpfs", "over", "mnt"]).status().unwrap().success());
    place.line("sync").expect(0, &["mnt: cannot be seen from here", "run myriad sync where it can be seen"]);
    kill(daemon, Signal::KILL);
    wait_until("the daemon is gone", || !is_alive(daemon));
    for _ in ["tmpfs", "ours"] {
        assert!(place.command("umount", &["mnt"]).status().unwrap().success());
    }
    assert_eq!(place.line("cat vol.img:/file").ok().out, b"synced");
    // There is nobody left to ask.
    place.line("sync").ok();
    place.assert_sound();
}

/// Requests name a caller's first group alone. Who belonged to a setgid directory's group by a further one lost setgid on what
/// he made there.
#[test]
fn members_by_a_further_group_make_setgid_files() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can be another user");
    }
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    place.mount("-o allow_other");
    let shared = place.mounted("shared");
    fs::create_dir(&shared).unwrap();
    std::os::unix::fs::chown(&shared, None, Some(4242)).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o2777)).unwrap();
    let make = "use Fcntl; umask 0; sysopen(F, $ARGV[0], O_CREAT | O_WRONLY, 02755) or die $!";
    for (groups, mode) in [("--groups=1,4242,7", 0o2755), ("--groups=1,7", 0o755)] {
        let file = shared.join(groups);
        let arguments = ["--reuid=65534", "--regid=65534", groups, "perl", "-e", make, file.to_str().unwrap()];
        answer(place.command("setpriv", &arguments).spawn().unwrap()).ok();
        let found = fs::metadata(&file).unwrap();
        assert_eq!((found.mode() & 0o7777, found.gid()), (mode, 4242), "{groups}");
    }
    place.umount();
    place.assert_sound();
}

#[test]
fn a_second_user_is_refused_naming_the_first() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    fs::create_dir(place.path("mnt2")).unwrap();
    fs::create_dir(place.path("tree")).unwrap();
    place.mount("");
    let here = place.path("mnt").canonicalize().unwrap();
    let held = format!("vol.img: mounted on {} by process {}; ", here.display(), place.daemon());
    for (line, code) in [
        ("mount vol.img mnt2", 1),
        ("mount -o ro vol.img mnt2", 1),
        ("mkfs --force vol.img", 1),
        ("fsck -y vol.img", 8),
        ("verify vol.img tree", 1),
        ("debug vol.img superblock", 1),
    ] {
        place.line(line).expect(code, &[&held, "unmount it with myriad umount"]);
    }
    assert!(place.mount_line("mnt2").is_none());
    place.umount();
    place.assert_sound();
}

#[test]
fn a_mount_in_use_stays_and_names_who_uses_it() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    fs::write(place.mounted("file"), b"still here").unwrap();
    let user = place.command("sleep", &["1000"]).current_dir(place.mounted("")).stdout(Stdio::null()).spawn();
    let mut user = user.unwrap();
    place.line("umount mnt").expect(1, &[&format!("in use by process {} (sleep)", user.id()), "--lazy"]);
    assert_eq!(fs::read(place.mounted("file")).unwrap(), b"still here");
    let daemon = place.daemon();
    place.line("umount --lazy mnt").ok();
    assert!(place.mount_line("mnt").is_none());
    assert!(is_alive(daemon), "it serves who still uses the mount");
    user.kill().unwrap();
    user.wait().unwrap();
    wait_until("the daemon ends with its last user", || !is_alive(daemon));
    place.assert_sound();
    assert_eq!(place.line("cat vol.img:/file").ok().out, b"still here");
}

/// A `df` that looked at that moment was a reason to refuse.
#[test]
fn an_unmount_waits_for_who_is_just_passing_by() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let passing = fs::File::open(place.mounted("")).unwrap();
    let umount = place.command(PROGRAM, &["umount", "mnt"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(passing);
    answer(umount).ok();
    place.assert_sound();
}

#[test]
fn signals_unmount_and_close() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    fs::write(place.mounted("file"), b"kept").unwrap();
    let daemon = place.daemon();
    kill(daemon, Signal::TERM);
    wait_until("the daemon ends", || !is_alive(daemon));
    assert!(place.mount_line("mnt").is_none());
    assert_eq!(place.line("info --json vol.img").ok().json()["state"], "clean");
    assert_eq!(place.line("cat vol.img:/file").ok().out, b"kept");
    // A terminal that closes is one, unless nohup(1) has the daemon pass over it.
    let with_signal = |how: &str| {
        let arguments = [how, PROGRAM, "mount", "-o", "logfile=log", "vol.img", "mnt"];
        answer(place.command("env", &arguments).spawn().unwrap()).ok();
        place.daemon()
    };
    let daemon = with_signal("--default-signal=HUP");
    fs::write(place.mounted("file"), b"kept").unwrap();
    kill(daemon, Signal::HUP);
    wait_until("the daemon ends", || !is_alive(daemon));
    assert_eq!(place.line("info --json vol.img").ok().json()["state"], "clean");
    let daemon = with_signal("--ignore-signal=HUP");
    kill(daemon, Signal::HUP);
    assert_eq!(fs::read(place.mounted("file")).unwrap(), b"kept");
    kill(daemon, Signal::INT);
    wait_until("the daemon ends", || !is_alive(daemon));
    // With a file open the mount goes at once, and the daemon with the file.
    place.mount("");
    let daemon = place.daemon();
    let mut file = fs::File::options().append(true).open(place.mounted("file")).unwrap();
    kill(daemon, Signal::TERM);
    wait_until("it is unmounted", || place.mount_line("mnt").is_none());
    file.write_all(b" to the end").unwrap();
    drop(file);
    wait_until("the daemon ends", || !is_alive(daemon));
    assert_eq!(place.line("cat vol.img:/file").ok().out, b"kept to the end");
    place.assert_sound();
}

/// Every signal but the first ended the daemon on the spot, though the first one had come to nothing long ago: whatever was
/// not synced was lost.
#[test]
fn each_signal_tries_to_unmount() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can mount something over it");
    }
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let log = || fs::read_to_string(place.path("log")).unwrap();
    place.mount("-o logfile=log,commit=0");
    let daemon = place.daemon();
    assert!(place.command("mount", &["-t", "tmpfs", "over", "mnt"]).status().unwrap().success());
    for signals in 1..=3 {
        kill(daemon, Signal::TERM);
        wait_until("the signal is seen", || log().matches("cannot be unmounted").count() == signals);
    }
    assert!(is_alive(daemon));
    assert!(place.command("umount", &["mnt"]).status().unwrap().success());
    fs::write(place.mounted("file"), b"not synced").unwrap();
    let file = fs::File::options().append(true).open(place.mounted("file")).unwrap();
    kill(daemon, Signal::TERM);
    wait_until("it is unmounted", || place.mount_line("mnt").is_none());
    (&file).write_all(b", and more").unwrap();
    kill(daemon, Signal::TERM);
    wait_until("the signal is seen", || log().contains("its daemon ends with the last user"));
    (&file).write_all(b" and more").unwrap();
    drop(file);
    wait_until("the daemon ends", || !is_alive(daemon));
    assert_eq!(place.line("info --json vol.img").ok().json()["state"], "clean");
    assert_eq!(place.line("cat vol.img:/file").ok().out, b"not synced, and more and more");
    place.assert_sound();
}

/// A daemon that was mounted with another directory for sockets is not found; its image was still open when the command
/// returned.
#[test]
fn an_unmount_waits_for_a_daemon_that_it_does_not_find() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let elsewhere = |line: &str| {
        let arguments: Vec<&str> = line.split(' ').collect();
        let mut command = place.command(PROGRAM, &arguments);
        command.env("MYRIAD_RUNTIME_DIR", place.path("elsewhere"));
        command.spawn().unwrap()
    };
    place.mount("");
    let daemon = place.daemon();
    fs::write(place.mounted("file"), b"kept").unwrap();
    fs::metadata(place.mounted("")).unwrap();
    kill(daemon, Signal::STOP);
    let mut umount = elsewhere("umount mnt");
    wait_until("it is unmounted", || place.mount_line("mnt").is_none());
    std::thread::sleep(std::time::Duration::from_millis(300));
    let has_returned = umount.try_wait().unwrap().is_some();
    kill(daemon, Signal::CONT);
    assert!(!has_returned, "the image is open");
    answer(umount).ok();
    assert_eq!(place.line("info --json vol.img").ok().json()["state"], "clean");
    place.assert_sound();
    // Beside a dead mount of the same image, and of one whose image cannot be told.
    place.mount("");
    let dead = place.daemon();
    kill(dead, Signal::KILL);
    wait_until("the daemon is gone", || !is_alive(dead));
    fs::create_dir(place.path("mnt2")).unwrap();
    place.line("mount vol.img mnt2 -o fsname=name").ok();
    answer(elsewhere("umount mnt")).ok();
    answer(elsewhere("umount mnt2")).expect(0, &["mnt2: unmounted, but whether its daemon"]);
    wait_until("the volume is closed", || place.line("fsck -n vol.img").code == 0);
}

/// `dirsync` did nothing, and `sync` nothing but for what was written to files.
#[test]
fn names_are_durable_when_the_mount_says_so() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    // What a crash would leave now.
    let durable = |path: &str| {
        fs::copy(place.path("vol.img"), place.path("copy.img")).unwrap();
        place.line(&format!("stat --json copy.img:{path}"))
    };
    let change = |path: &str| {
        fs::create_dir(place.mounted("dir")).unwrap();
        assert_eq!(durable("/dir").code, 0, "{path}: mkdir");
        fs::write(place.mounted("dir/file"), b"").unwrap();
        assert_eq!(durable("/dir/file").code, 0, "{path}: mknod");
        symlink("file", place.mounted("dir/symlink")).unwrap();
        assert_eq!(durable("/dir/symlink").code, 0, "{path}: symlink");
        fs::hard_link(place.mounted("dir/file"), place.mounted("dir/link")).unwrap();
        assert_eq!(durable("/dir/link").code, 0, "{path}: link");
        fs::rename(place.mounted("dir/link"), place.mounted("dir/moved")).unwrap();
        assert_eq!((durable("/dir/link").code, durable("/dir/moved").code), (1, 0), "{path}: rename");
        for name in ["dir/moved", "dir/symlink", "dir/file"] {
            fs::remove_file(place.mounted(name)).unwrap();
        }
        assert_eq!(durable("/dir/file").code, 1, "{path}: unlink");
        fs::remove_dir(place.mounted("dir")).unwrap();
        assert_eq!(durable("/dir").code, 1, "{path}: rmdir");
    };
    for options in ["dirsync", "sync", "dirsync,open"] {
        place.mount(&format!("-o commit=0,{options}"));
        change(options);
        if options == "sync" {
            let file = place.mounted("file");
            fs::write(&file, b"text").unwrap();
            assert_eq!(durable("/file").ok().json()["size"], 4);
            fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
            assert_eq!(durable("/file").ok().json()["mode"], "0640");
            fs::File::options().write(true).open(&file).unwrap().set_len(100_000).unwrap();
            assert_eq!(durable("/file").ok().json()["size"], 100_000);
        }
        place.umount();
    }
    if rustix::process::geteuid().is_root() {
        // The daemon learns of a remount.
        place.mount("-o commit=0");
        fs::create_dir(place.mounted("before")).unwrap();
        assert_eq!(durable("/before").code, 1, "not durable, or this test shows nothing");
        place.line("mount vol.img mnt -o remount,sync").ok();
        change("remount");
        let stays = "option `dirsync` stays as it is until the volume is mounted anew";
        place.line("mount vol.img mnt -o remount,dirsync").expect(0, &[stays]);
        place.line("mount vol.img mnt -o remount,async").ok();
        fs::create_dir(place.mounted("after")).unwrap();
        assert_eq!(durable("/after").code, 1);
        place.umount();
    }
    place.assert_sound();
}

#[test]
fn the_directory_of_figures_has_what_stats_gives() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let read = |name: &str| fs::read_to_string(place.mounted(".myriad").join(name)).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(place.mounted(".myriad")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["counters", "stats", "stats.json", "stats.prom"]);
    let json: serde_json::Value = serde_json::from_str(&read("stats.json")).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json), keys(&place.line("stats --json mnt").ok().json()));
    assert_eq!(json["pid"], place.daemon());
    let described =
        |text: &str| text.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(described(&read("stats.prom")), described(place.line("stats --prometheus mnt").ok().text()));
    place.umount();
    // It can be done without.
    place.mount("-o nostats");
    assert!(!place.mounted(".myriad").exists());
    fs::write(place.mounted(".myriad"), b"mine").unwrap();
    place.umount();
}

/// The kernel is given a path to unmount, where something else may be by then.
#[test]
fn what_is_mounted_over_a_volume_stays() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can mount something over it");
    }
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("-o logfile=log");
    let daemon = place.daemon();
    assert!(place.command("mount", &["-t", "tmpfs", "over", "mnt"]).status().unwrap().success());
    fs::write(place.mounted("above"), b"").unwrap();
    place.line("umount vol.img").expect(1, &["over (tmpfs) is mounted over it"]);
    kill(daemon, Signal::TERM);
    wait_until("the signal is seen", || fs::read_to_string(place.path("log")).unwrap().contains("cannot be unmounted"));
    assert!(place.mounted("above").exists() && is_alive(daemon));
    assert!(place.command("umount", &["mnt"]).status().unwrap().success());
    place.line("umount vol.img").ok();
    wait_until("the daemon ends", || !is_alive(daemon));
    place.assert_sound();
}

#[test]
fn the_foreground_tells_what_happens() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let daemon = place.command(PROGRAM, &["mount", "-f", "-v", "vol.img", "mnt", "-o", "debug"]).spawn().unwrap();
    wait_until("it is mounted", || place.mount_line("mnt").is_some());
    fs::create_dir(place.mounted("dir")).unwrap();
    kill(i32::try_from(daemon.id()).unwrap(), Signal::INT);
    let answer = answer(daemon).expect(0, &["info: ", "vol.img: mounted on", "unmounted and closed", "MKDIR"]);
    assert_eq!(answer.out, b"");
    place.line("ls vol.img:/dir").ok();
}

#[test]
fn a_log_file_gets_what_the_system_log_would() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("-o logfile=log");
    place.umount();
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("vol.img: mounted on") && log.contains("unmounted and closed"), "{log}");
}

#[test]
fn read_only_mounts_may_be_many() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.line("mkdir vol.img:/dir").ok();
    let before = common::bytes(&place.path("vol.img"));
    fs::create_dir(place.path("mnt2")).unwrap();
    place.mount("-o ro");
    place.line("mount -r vol.img mnt2").ok();
    let error = fs::write(place.mounted("file"), b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(place.path("mnt2/dir").is_dir());
    assert!(place.mount_line("mnt2").unwrap()[2].split(',').any(|option| option == "ro"));
    // Readers of the image itself need not ask anybody; who wants to change it is refused.
    assert_eq!(place.line("ls vol.img").ok().lines(), ["dir"]);
    place.line("mkdir vol.img:/new").expect(1, &["Read-only file system"]);
    place.line("umount vol.img").expect(1, &["mounted more than once: on ", "mnt2; name a directory"]);
    place.line("umount mnt mnt2").ok();
    assert!(common::bytes(&place.path("vol.img")) == before, "not a byte was written");
}

#[test]
fn a_volume_may_begin_anywhere_in_its_image() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let head = vec![0xa5; 1 << 20];
    let disk = [&head[..], &common::bytes(&place.path("vol.img")), &head].concat();
    place.write("disk.img", &disk);
    place.line("mount disk.img mnt -o offset=1M,sizelimit=64M").ok();
    fs::write(place.mounted("file"), vec![7; 5 << 20]).unwrap();
    // Verbs mean a volume at the image's beginning, and this is another one.
    place.line("ls disk.img").expect(1, &["disk.img: in use by process"]);
    let shown = place.line("mount").ok();
    assert!(shown.text().contains("disk.img at 1048576"), "{}", shown.text());
    fs::create_dir(place.path("mnt2")).unwrap();
    place.line("mount disk.img mnt2 -o offset=1M").expect(1, &["disk.img: mounted on ", "mnt by process"]);
    place.line("umount disk.img").ok();
    let after = common::bytes(&place.path("disk.img"));
    let volume = VOLUME as usize;
    assert!(after[..1 << 20] == head && after[(1 << 20) + volume..] == head, "only the volume was written");
    place.write("vol.img", &after[1 << 20..(1 << 20) + volume]);
    place.assert_sound();
    assert_eq!(place.line("stat --json vol.img:/file").ok().json()["size"], 5 << 20);
}

#[test]
fn mount_and_umount_call_it_by_other_names() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let call = |name: &str, arguments: &[&str]| {
        let link = place.path(name);
        let _ = symlink(PROGRAM, &link);
        answer(place.command(&link, arguments).spawn().unwrap())
    };
    let image = place.path("vol.img");
    let image = image.to_str().unwrap();
    call("mount.fuse.myriad", &[image, "mnt", "-f", "-o", "rw"]).ok();
    assert!(place.mount_line("mnt").is_none(), "-f is fake");
    call("mount.fuse.myriad", &[image, "mnt", "-n", "-o", "rw,quota"]).expect(2, &["unknown option `quota`"]);
    let options = "rw,noexec,nosuid,nodev,nofail,_netdev,user=joe,x-systemd.automount";
    call("mount.fuse.myriad", &[image, "mnt", "-s", "-v", "-n", "-t", "fuse.myriad", "-o", options]).ok();
    let line = place.mount_line("mnt").expect("it is mounted");
    assert!(line[0] == image && TYPES.contains(&&*line[1]), "{line:?}");
    assert!(line[2].starts_with("rw,nosuid,nodev,noexec,"), "{line:?}");
    call("umount.fuse.myriad", &["mnt", "-n", "-t", "fuse.myriad"]).ok();
    place.assert_sound();
    call("mount.myriad", &[image, "mnt"]).ok();
    let line = place.mount_line("mnt").expect("it is mounted");
    let is_restricted = line[2].contains("nosuid") && line[2].contains("nodev");
    assert_ne!(rustix::process::geteuid().is_root(), is_restricted, "as every file system that root mounts: {line:?}");
    call("umount.myriad", &["mnt"]).ok();
    place.assert_sound();
    if !rustix::process::geteuid().is_root() {
        // fusermount3 does not know these words.
        return;
    }
    // By our own command a volume is a stranger's.
    place.mount("-o strictatime,diratime");
    let line = place.mount_line("mnt").expect("it is mounted");
    assert!(line[2].starts_with("rw,nosuid,nodev,user_id="), "{line:?}");
    call("umount.fuseblk.myriad", &["mnt", "-n", "-t", "fuseblk.myriad"]).ok();
    place.assert_sound();
}

/// As a user has it at a desk: an image of one's own, mounted by the set-uid helper, for nobody else.
#[test]
fn a_plain_user_mounts_and_unmounts() {
    const NOBODY: u32 = 65534;
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    if let Some(reason) = common::mount::for_all::why_no_helper() {
        return println!("skipped: {reason}");
    }
    if let Err(reason) = common::mount::for_all::let_all_mount(&place.path("")) {
        return println!("skipped: {reason}");
    }
    let program = place.program_for_all();
    fs::create_dir(place.path("home")).unwrap();
    std::os::unix::fs::chown(place.path("home"), Some(NOBODY), Some(NOBODY)).unwrap();
    let as_user = |script: &str| {
        let mut command = place.command("sh", &["-euc", script]);
        command.env("m", &program).env("MYRIAD_RUNTIME_DIR", place.path("home/run"));
        std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
        std::os::unix::process::CommandExt::gid(&mut command, NOBODY);
        answer(command.current_dir(place.path("home")).spawn().unwrap())
    };
    as_user("$m mkfs --quiet --size 64M own.img && mkdir own && $m mount own.img own").ok();
    let table = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let own = place.path("home/own");
    let line = table.lines().find(|line| line.split(' ').nth(1) == own.to_str()).expect("it is mounted");
    assert!(line.contains("nosuid,nodev") && line.contains("user_id=65534"), "{line}");
    // Not even the super-user looks in.
    let refused = fs::metadata(&own).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
    as_user("echo text >own/file && chmod 400 own/file && ! (echo more >>own/file) 2>&-").ok();
    assert_eq!(as_user("$m cat own.img:/file; $m mount").ok().lines()[0], "text");
    as_user("$m mount --quiet own.img own").expect(1, &["own.img: mounted on "]);
    as_user("$m umount own && $m fsck -n own.img && $m cat own.img:/file && ! mountpoint -q own")
        .expect(0, &["own.img: sound"]);
    // Others' volumes stay others'.
    as_user("$m mount ../vol.img own").expect(1, &["vol.img: ", "ermission denied"]);
}

#[test]
fn a_remount_changes_the_kernel_s_part() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may remount");
        return;
    }
    let helper = place.path("mount.fuse.myriad");
    symlink(PROGRAM, &helper).unwrap();
    let image = place.path("vol.img");
    let remount = |options: &str| {
        let arguments = [image.to_str().unwrap(), "mnt", "-o", options];
        answer(place.command(&helper, &arguments).spawn().unwrap())
    };
    let options = || place.mount_line("mnt").expect("it is mounted")[2].clone();
    remount("rw,remount").expect(1, &["mnt: no Myriad volume is mounted there"]);
    place.mount("-o noexec,commit=0");
    fs::write(place.mounted("file"), b"written before").unwrap();
    // With what the kernel shows, as mount(8) does.
    let shown = "nosuid,nodev,noatime,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576";
    remount(&format!("ro,noexec,{shown},remount")).ok();
    assert!(options().starts_with("ro,nosuid,nodev,noexec,"), "{}", options());
    assert_eq!(fs::write(place.mounted("file"), b"x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(place.status()["read_only"], true);
    // Durable, though nobody asked: a copy of the image has it.
    fs::copy(&image, place.path("copy.img")).unwrap();
    assert_eq!(place.line("cat copy.img:/file").ok().out, b"written before");
    // What is not spoken of stays, what contradicts itself is as the last word says.
    remount("remount,exec").ok();
    assert!(options().starts_with("ro,nosuid,nodev,noatime"), "{}", options());
    remount("remount,ro,rw").ok();
    assert!(options().starts_with("rw,nosuid,nodev,noatime"), "{}", options());
    fs::write(place.mounted("file"), b"written after").unwrap();
    assert_eq!(place.status()["read_only"], false);
    let open = fs::File::create(place.mounted("open")).unwrap();
    remount("remount,ro").expect(1, &["mnt: changing the mount on", "close the files that are open for writing"]);
    drop(open);
    for (options, code, said) in [
        ("remount,relatime", 1, "option `relatime` stays as it is; myriad tune changes it"),
        ("remount,noatime", 0, ""),
        ("remount,cachesize=1G", 1, "option `cachesize=1G` stays as it is; mount the volume anew"),
        ("remount,rdonly", 2, "unknown option `rdonly`"),
        ("remount,commit=x", 2, "option `commit`"),
        ("remount,_netdev,x-systemd.automount", 0, ""),
    ] {
        remount(options).expect(code, &[said]);
    }
    assert!(options().starts_with("rw,"), "{}", options());
    place.umount();
    place.assert_sound();
    assert_eq!(place.line("cat vol.img:/file").ok().out, b"written after");
    place.mount("-o ro");
    remount("remount,rw")
        .expect(1, &["its daemon has the volume open for reading only; unmount it and mount it again"]);
}

fn control_socket(place: &Place) -> PathBuf {
    let sockets: Vec<_> = fs::read_dir(place.path("run")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [socket] = &sockets[..] else { panic!("{sockets:?}") };
    socket.clone()
}

#[test]
fn the_control_socket_is_private_and_takes_any_bytes() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let socket = &control_socket(&place);
    let metadata = fs::symlink_metadata(socket).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(place.path("run")).unwrap().mode() & 0o777, 0o700);
    let long = vec![b'x'; 1 << 20];
    for (bytes, said) in [
        (&b"\n"[..], "not a line of JSON"),
        (b"\xff\0\n", "not a line of JSON"),
        (b"{\"myriad\":9,\"do\":\"status\"}\n", "version 9"),
        (b"{\"myriad\":1,\"do\":\"reboot\"}\n", "no request `reboot`"),
        (&long, "a line of more than 4096 bytes"),
    ] {
        let mut stream = UnixStream::connect(socket).unwrap();
        // It need not read all of what it refuses.
        let _ = stream.write_all(bytes);
        let mut reply = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut reply);
        // A reset may overtake the answer to more than it reads.
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.contains(said) || reply.is_empty() && bytes.len() > 4096, "{reply}");
    }
    // Connections that say nothing, and more than it has room for, do not keep it from answering.
    let _idle: Vec<_> = (0..20).map(|_| UnixStream::connect(socket).unwrap()).collect();
    place.line("stats --json mnt").ok();
    place.umount();
    place.assert_sound();
}

/// Each unmount that was refused stayed among those who wait for the end, and the 257th one was not let in.
#[test]
fn who_no_longer_waits_does_not_keep_a_volume_mounted() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let socket = control_socket(&place);
    let watch = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(b"{\"myriad\":1,\"do\":\"watch\"}\n").unwrap();
        let mut reply = String::new();
        BufReader::new(&stream).read_line(&mut reply).unwrap();
        assert!(reply.contains("\"ok\""), "{reply}");
        stream
    };
    for _ in 0..256 {
        drop(watch());
    }
    let waiting: Vec<_> = (0..256).map(|_| watch()).collect();
    // Nor do those who still wait: then the image's lock shows when it is closed.
    place.umount();
    place.assert_sound();
    for stream in waiting {
        let mut reply = String::new();
        BufReader::new(&stream).read_line(&mut reply).unwrap();
        assert!(reply.contains("\"ok\""), "{reply}");
    }
}

/// Such a command was told that too many ask, and did nothing; on a mounted volume every verb begins with asking.
#[test]
fn a_command_waits_until_the_daemon_has_room_for_it() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let socket = control_socket(&place);
    let mut idle: Vec<_> = (0..32).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for line in ["ls vol.img", "sync vol.img", "fsck --online mnt"] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let mut child = place.command(PROGRAM, &arguments).spawn().unwrap();
        thread::sleep(Duration::from_secs(1));
        assert!(child.try_wait().unwrap().is_none(), "{line} did not wait");
        idle.pop();
        answer(child).expect(0, &[]);
        idle.push(UnixStream::connect(&socket).unwrap());
    }
    drop(idle);
    place.umount();
    place.assert_sound();
}

/// Takes a daemon's place, and keeps its answers to `requests` back for a time.
fn answer_late(socket: &Path, requests: &'static [&'static str], time: Duration) {
    let daemon = socket.with_extension("daemon");
    fs::rename(socket, &daemon).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    let pass_on = move |stream: UnixStream, daemon: PathBuf| -> std::io::Result<()> {
        let (mut line, mut reply) = (String::new(), Vec::new());
        BufReader::new(&stream).read_line(&mut line)?;
        let mut asked = UnixStream::connect(daemon)?;
        asked.write_all(line.as_bytes())?;
        let mut replies = BufReader::new(asked);
        replies.read_until(b'\n', &mut reply)?;
        if requests.iter().any(|request| line.contains(request)) {
            thread::sleep(time);
        }
        (&stream).write_all(&reply)?;
        // More follows where that was asked for.
        std::io::copy(&mut replies, &mut &stream).map(drop)
    };
    thread::spawn(move || {
        for stream in listener.incoming() {
            let daemon = daemon.clone();
            thread::spawn(move || pass_on(stream.unwrap(), daemon));
        }
    });
}

/// Ten seconds, and it was said to answer no more: of a slow device that has much to write, though all went well.
#[test]
fn what_takes_the_daemon_long_is_waited_for() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let time = Duration::from_secs(11);
    answer_late(&control_socket(&place), &["\"sync\"", "\"remounted\"", "label="], time);
    let helper = place.path("mount.fuse.myriad");
    symlink(PROGRAM, &helper).unwrap();
    let start = Instant::now();
    let begin = |line: &str| {
        let arguments: Vec<&str> = line.split(' ').collect();
        place.command(PROGRAM, &arguments).spawn().unwrap()
    };
    let mut children = vec![begin("sync vol.img"), begin("mkdir vol.img:/new"), begin("tune -q mnt label=slow")];
    if rustix::process::geteuid().is_root() {
        children.push(place.command(&helper, &["vol.img", "mnt", "-o", "remount,sync"]).spawn().unwrap());
    }
    // Whoever does not want to wait need not.
    for line in ["sync vol.img", "mkdir vol.img:/other", "tune -q mnt label=other"] {
        let child = begin(line);
        thread::sleep(Duration::from_secs(2));
        kill(child.id() as i32, Signal::INT);
        answer(child).expect(130, &["interrupted"]);
        assert!(start.elapsed() < time, "{line} did not end");
    }
    for child in children {
        answer(child).ok();
    }
    assert!(start.elapsed() >= time);
    assert!(place.mounted("new").is_dir());
    // It would be asked to sync once more, and forced it is not.
    let daemon = place.daemon();
    place.line("umount --force mnt").ok();
    wait_until("the daemon is gone", || !is_alive(daemon));
    place.assert_sound();
}

/// Without a directory of one's own for them, sockets are sought in /tmp, where somebody else may have made that directory: with a socket that
/// lets nobody in, every verb waited for ever.
#[test]
fn sockets_in_a_directory_of_somebody_elses_are_not_asked() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket};
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    fs::create_dir(place.path("theirs")).unwrap();
    let path = place.path("theirs/1-2-at0-1.sock");
    let new = || socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let (listener, waiting) = (new(), new());
    let address = SocketAddrUnix::new(&path).unwrap();
    bind(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    connect(&waiting, &address).unwrap();
    let ask = |directory: &str| {
        let mut command = place.command(PROGRAM, &["mount"]);
        command.env("MYRIAD_RUNTIME_DIR", place.path(directory));
        answer(command.spawn().unwrap()).expect(0, &[]);
    };
    let give = |owner, mode| {
        std::os::unix::fs::chown(place.path("theirs"), Some(owner), None).unwrap();
        fs::set_permissions(place.path("theirs"), PermissionsExt::from_mode(mode)).unwrap();
        ask("theirs");
    };
    give(4242, 0o700);
    give(0, 0o777);
    symlink("theirs", place.path("link")).unwrap();
    fs::set_permissions(place.path("theirs"), PermissionsExt::from_mode(0o700)).unwrap();
    ask("link");
}

/// A name that is no text was another one in the table of mounts, and the mount was not taken for that of its image.
#[test]
fn an_image_may_have_any_name() {
    use std::os::unix::ffi::OsStrExt;
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    // Other tests read the table of mounts as text.
    if let Err(reason) = common::mount::for_all::let_all_mount(&place.path("")) {
        return println!("skipped: {reason}");
    }
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.img");
    fs::rename(place.path("vol.img"), place.path("").join(name)).unwrap();
    let run = |words: &[&std::ffi::OsStr]| place.run(words);
    for options in ["kind=auto", "kind=fuse"] {
        run(&["mount".as_ref(), "-o".as_ref(), options.as_ref(), name, "mnt".as_ref()]).ok();
        let table = fs::read("/proc/thread-self/mountinfo").unwrap();
        assert!(table.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{options}");
        run(&["mount".as_ref(), name, "mnt".as_ref()]).expect(1, &["mounted on "]);
        run(&["umount".as_ref(), name]).ok();
        run(&["fsck".as_ref(), "-n".as_ref(), name]).expect(0, &["sound: "]);
    }
}

/// A walk or a removal through a mount has a directory open for each level of a tree, and was refused where the process may not have as many
/// open, though it may ask for more.
#[test]
fn a_mounted_tree_is_deeper_than_files_may_be_open() {
    const DEPTH: usize = 100;
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.change(|session| {
        for depth in 1..=DEPTH {
            session.mkdir(&"/d".repeat(depth), 0o755).unwrap();
        }
    });
    place.mount("");
    let limited = |line: &str| {
        let script = format!("ulimit -Sn 64 && exec {PROGRAM} {line}");
        answer(place.command("sh", &["-c", &*script]).spawn().unwrap()).ok()
    };
    assert_eq!(limited("find vol.img:/d").lines().len(), DEPTH);
    limited("rm -r vol.img:/d");
    place.umount();
    place.assert_sound();
}

/// Verbs that ask all daemons passed over one that did not answer, as long as another one did: `sync` was a success that lost data.
#[test]
fn a_daemon_that_does_not_answer_is_told_of_beside_others() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let odd = UnixListener::bind(place.path("run/1-2-at0-77.sock")).unwrap();
    thread::spawn(move || {
        for stream in odd.incoming() {
            // Whoever has asked may be gone.
            let _ = stream.unwrap().write_all(b"no answer\n");
        }
    });
    let said = ["/run/1-2-at0-77.sock", "an answer that is none"];
    for line in ["sync --json", "df", "mount"] {
        let answer = place.line(line).expect(1, &said);
        assert!(answer.text().contains("vol.img"), "the other one is asked: {answer:?}");
    }
    fs::remove_file(place.path("run/1-2-at0-77.sock")).unwrap();
    place.umount();
}

/// The kernel has whoever unmounts last wait for the daemon, and no signal ends that.
#[test]
fn a_lazy_unmount_does_not_wait_for_a_daemon_that_is_stopped() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    // By its image, the daemon was asked whether it has that.
    for target in ["mnt", "vol.img"] {
        place.mount("");
        let daemon = place.daemon();
        kill(daemon, Signal::STOP);
        let mut umount = place.command(PROGRAM, &["umount", "--lazy", target]).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        let has_returned = loop {
            match umount.try_wait().unwrap() {
                None if Instant::now() < end => thread::sleep(Duration::from_millis(10)),
                ended => break ended.is_some(),
            }
        };
        kill(daemon, Signal::CONT);
        assert!(has_returned, "it waits");
        answer(umount).expect(0, &[]);
        assert!(place.mount_line("mnt").is_none());
        wait_until("the daemon ends", || !is_alive(daemon));
        place.assert_sound();
    }
}

/// Of a volume that is mounted twice, its image does not say which mount is meant, whoever is asked.
#[test]
fn an_image_that_is_mounted_twice_is_not_unmounted_by_its_name() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    fs::create_dir(place.path("mnt2")).unwrap();
    place.mount("-o ro");
    place.line("mount -o ro vol.img mnt2").ok();
    for line in ["umount vol.img", "umount --lazy vol.img", "umount --force vol.img"] {
        place.line(line).expect(1, &["mounted more than once: on ", "/mnt2; name a directory"]);
    }
    place.line("umount mnt2").ok();
    place.line("umount --force vol.img").ok();
    assert!(place.mount_line("mnt").is_none());
}

/// All daemons were asked whose a mount is, and one that was stopped was waited for. If the mount's own daemon was dead, the other one was
/// then taken for it.
#[test]
fn a_daemon_that_is_stopped_holds_up_no_other_mount() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    fs::create_dir(place.path("mnt2")).unwrap();
    place.line("mkfs -q --size 64M other.img").ok();
    place.mount("");
    let daemon = place.daemon();
    place.line("mount other.img mnt2").ok();
    let shown = place.line("mount --json").ok();
    let mounts = shown.lines().into_iter().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let is_other =
        |mount: &serde_json::Value| mount["image"].as_str().is_some_and(|image| image.ends_with("/other.img"));
    let other = { mounts }.find(is_other).expect("it is mounted")["pid"].as_u64().unwrap() as i32;
    kill(other, Signal::STOP);
    kill(daemon, Signal::KILL);
    wait_until("the daemon is gone", || !is_alive(daemon));
    let answer = place.line("umount mnt");
    kill(other, Signal::CONT);
    answer.expect(0, &[]);
    assert!(place.mount_line("mnt").is_none());
    place.line("umount mnt2").ok();
}

#[test]
fn whose_a_mount_is_daemons_of_other_images_are_not_asked() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let other = UnixListener::bind(place.path("run/0-0-at0-77.sock")).unwrap();
    other.set_nonblocking(true).unwrap();
    for line in ["sync mnt", "trim mnt", "umount mnt"] {
        place.line(line).expect(0, &[]);
        let asked = other.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(asked, Err(ErrorKind::WouldBlock), "{line}");
    }
    // An image that has another name by now may be anybody's.
    fs::remove_file(place.path("run/0-0-at0-77.sock")).unwrap();
    place.mount("");
    fs::rename(place.path("vol.img"), place.path("renamed.img")).unwrap();
    place.line("sync mnt").ok();
    place.umount();
}

/// It could not be asked anything, not even to unmount.
#[test]
fn a_daemon_has_files_to_spare() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let limited = |limit: &str, line: &str| {
        let shell = format!("ulimit {limit}; exec {PROGRAM} {line}");
        answer(place.command("sh", &["-c", &shell]).spawn().unwrap())
    };
    limited("-Sn 16", "mount vol.img mnt").ok();
    place.status();
    place.line("info vol.img").ok();
    place.umount();
    limited("-n 40", "mount vol.img mnt").expect(1, &["the limit of open files is 40", "ulimit -n"]);
    assert!(place.mount_line("mnt").is_none());
}

/// It was listed no more, and kept its directory.
#[test]
fn a_mount_whose_daemon_was_killed_is_listed_as_dead() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let daemon = place.daemon();
    kill(daemon, Signal::KILL);
    wait_until("the daemon is gone", || !is_alive(daemon));
    let shown = place.line("mount").expect(0, &["mnt: its daemon was killed; unmount it with myriad umount "]);
    let is_dead = |line: &&str| line.contains("vol.img") && line.contains("dead");
    assert!(shown.lines().iter().any(is_dead), "{shown:?}");
    place.mount("");
    assert!(!place.line("mount").ok().text().contains("dead"));
    place.umount();
}
