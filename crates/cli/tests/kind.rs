//! As what the kernel has a mount, `fuse` or `fuseblk`, and what whoever mounts, syncs and unmounts sees of it.

mod common;

use common::host::Loop;
use common::mount::for_all::let_all_mount;
use common::mount::{MountPlace, Signal, TYPES, is_alive, kill, try_kill, wait_until};
use common::{PROGRAM, answer};
use rustix::mount::UnmountFlags;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

const VOLUME: u64 = 64 << 20;

/// What `myriad info --json` says of a mounted volume.
#[track_caller]
fn info(place: &MountPlace, image: &str) -> Value {
    place.line(&format!("info --json {image}")).ok().json()
}

/// The mount is `fuseblk`; otherwise says why the test is skipped.
#[track_caller]
fn is_block(place: &MountPlace) -> bool {
    let info = info(place, "vol.img");
    if info["kind"] == "fuse" {
        println!("skipped: no fuseblk here: {}", info["why_no_sync"]);
    }
    info["kind"] == "fuseblk"
}

/// Loop devices that stand for mounts of an image.
fn handles_of(image: &Path) -> usize {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let backing = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    backing.filter(|name| name.contains(&format!("myriad {}", image.display()))).count()
}

#[test]
fn commands_say_what_the_kernel_passes_on() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    for (options, asked) in [("", None), ("-o kind=fuse,logfile=log", Some("fuse"))] {
        place.mount(options);
        let about = info(&place, "vol.img");
        let kind = about["kind"].as_str().unwrap();
        assert!(asked.is_none_or(|asked| asked == kind), "{about}");
        let line = place.mount_line("mnt").unwrap();
        assert_eq!(line[..2], [place.path("vol.img").to_str().unwrap().to_owned(), format!("{kind}.myriad")]);
        assert!(TYPES.contains(&&*line[1]));
        let stats = place.line("stats --json mnt").ok().json();
        assert_eq!((&stats["kind"], &stats["why_no_sync"]), (&about["kind"], &about["why_no_sync"]));
        let said = match about["why_no_sync"].as_str() {
            None => "fuseblk: sync, syncfs and umount wait until everything is durable".to_owned(),
            Some(why) => format!("{kind}: sync and syncfs do not reach it ({why}); sync DIRECTORY does"),
        };
        for shown in ["info vol.img", "stats mnt"] {
            let shown = place.line(shown).ok();
            assert!(shown.text().contains(&said), "{}", shown.text());
        }
        place.umount();
        place.assert_sound();
    }
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("as fuse: sync and syncfs do not reach it (kind=fuse was asked for)"), "{log}");
}

/// The system's own umount, not ours: when it returns the image is closed, unlocked, and no device is left.
#[test]
fn the_systems_umount_waits_for_the_volume() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("-o commit=0");
    if !is_block(&place) {
        return place.umount();
    }
    let image = place.path("vol.img");
    assert_eq!(handles_of(&image), 1);
    for i in 0..1000 {
        fs::write(place.mounted(&i.to_string()), b"content").unwrap();
    }
    rustix::mount::unmount(place.path("mnt"), UnmountFlags::empty()).unwrap();
    // No waiting. Its daemon may still be there, but has nothing to do with the image any more.
    assert_eq!(info(&place, "vol.img")["state"], "clean");
    place.line("mkdir vol.img:/new").ok();
    place.assert_sound();
    assert_eq!(handles_of(&image), 0);
}

/// What holds a block device is the daemon, and until it had ended nothing else could be made of the device.
#[test]
fn a_block_device_is_free_when_umount_returns() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let Some(attached) = Loop::over(&place.path("vol.img")) else { return };
    let device = attached.0.as_str();
    let claim = || fs::File::options().read(true).write(true).custom_flags(libc_o_excl()).open(device);
    for kind in ["auto", "fuse"] {
        place.line(&format!("mount {device} mnt -o kind={kind}")).ok();
        assert_eq!(place.mount_line("mnt").unwrap()[0], device);
        fs::write(place.mounted("file"), kind).unwrap();
        assert!(claim().is_err(), "nobody else may have it");
        place.line(&format!("umount {device}")).ok();
        drop(claim().unwrap_or_else(|error| panic!("{kind}: {error}")));
    }
    place.line(&format!("mount {device} mnt")).ok();
    if info(&place, device)["kind"] == "fuseblk" {
        rustix::mount::unmount(place.path("mnt"), UnmountFlags::empty()).unwrap();
        drop(claim().unwrap());
    } else {
        place.umount();
    }
    // Its daemon may have the last descriptor of it for a moment: it goes with that.
    attached.detach();
    place.assert_sound();
}

/// On a file system of large sectors direct I/O takes no block of a volume of small ones: it could not be opened at all.
#[test]
fn blocks_may_be_smaller_than_the_sectors_below_the_host() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.write("letter", b"dear all");
    // Its size is no whole number of such sectors, either.
    place.line("mkfs -q --block-size 1K --size 16385K small.img").ok();
    place.line("cp letter small.img:/letter").ok();
    fs::File::create(place.path("disk")).and_then(|file| file.set_len(256 << 20)).unwrap();
    let Some(disk) = Loop::with_sectors(&place.path("disk"), 4096) else { return };
    let host = place.path("host");
    fs::create_dir(&host).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        place.command(program, arguments).status().is_ok_and(|status| status.success())
    };
    if !run("mkfs.ext4", &["-q", &disk.0]) || !run("mount", &[&disk.0, "host"]) {
        return println!("skipped: ext4 over a loop device with sectors of 4096 bytes");
    }
    // Tests of the whole must not leave it mounted.
    let ended = std::panic::catch_unwind(|| {
        fs::copy(place.path("small.img"), host.join("small.img")).unwrap();
        assert_eq!(place.line("cat host/small.img:/letter").ok().text(), "dear all");
        place.line("mount host/small.img mnt").ok();
        fs::write(place.mounted("more"), vec![7; 100_000]).unwrap();
        place.line("fsck --online mnt").expect(0, &[]);
        place.umount();
        place.line("fsck -n host/small.img").expect(0, &[]);
        place.line("cp -a host/small.img:/more more").ok();
        assert!(fs::read(place.path("more")).unwrap() == [7; 100_000]);
        place.line("mkfs -q --block-size 8K --fragments 8 --profile ffs --size 16385K host/new.img").ok();
        place.line("cp letter host/new.img:/letter").ok();
        place.line("fsck -n host/new.img").expect(0, &[]);
    });
    assert!(run("umount", &["host"]));
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    // A device has no cache that would do.
    fs::copy(place.path("small.img"), place.path("disk")).unwrap();
    drop(disk);
    let Some(disk) = Loop::with_sectors(&place.path("disk"), 4096) else { return };
    let device = &disk.0;
    let said = "its blocks have 1024 bytes, and the device takes no less than 4096; copy it into a file";
    for (line, code) in
        [("mount DEVICE mnt", 1), ("cat DEVICE:/letter", 1), ("cp letter DEVICE:/x", 1), ("fsck DEVICE", 8)]
    {
        place.line(&line.replace("DEVICE", device)).expect(code, &[said]);
    }
    place.line(&format!("mkfs -f --block-size 1K {device}")).expect(2, &["sectors are 4096 bytes; use at least that"]);
    // What a log is written in is no less than that.
    place.line(&format!("mkfs -q -f --block-size 1K --size 16M --log-device {device} logged.img")).ok();
    place.line(&format!("cp --log-device {device} letter logged.img:/letter")).ok();
    place.line(&format!("fsck -n --log-device {device} logged.img")).expect(0, &[]);
}

/// A loop device and the file behind it are two nodes, and each was opened while the other one was in use: two writers, and a volume that no check could mend.
#[test]
fn an_image_and_a_loop_device_over_it_are_one_volume() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let Some(attached) = Loop::over(&place.path("vol.img")) else { return };
    let device = attached.0.as_str();
    place.write("letter", b"dear all");
    for (mounted, other) in [(device, "vol.img"), ("vol.img", device)] {
        place.line(&format!("mount {mounted} mnt")).ok();
        fs::write(place.mounted("file"), mounted).unwrap();
        let refused = [
            format!("cp letter {other}:/letter"),
            format!("mkfs -f {other}"),
            format!("fsck -y {other}"),
            format!("mount {other} other"),
        ];
        fs::create_dir_all(place.path("other")).unwrap();
        for line in refused {
            let answer = place.line(&line);
            assert!(answer.code != 0 && answer.err.contains("in use"), "{line}: {}: {}", answer.code, answer.err);
        }
        place.line(&format!("umount {mounted}")).ok();
        assert_eq!(place.line(&format!("cat {other}:/file")).ok().text(), mounted);
    }
    // The kernel's own file systems hold no lock on the file.
    let made = place.command("mkfs.ext4", &["-q", device]).status();
    let mounts = || place.command("mount", &[device, "mnt"]).status().is_ok_and(|status| status.success());
    if !made.is_ok_and(|status| status.success()) || !mounts() {
        return println!("skipped: ext4 over the loop device");
    }
    fs::write(place.mounted("file"), "ext4").unwrap();
    let answer = place.line("mkfs -f vol.img");
    assert!(answer.code != 0 && answer.err.contains("mounted at"), "{}: {}", answer.code, answer.err);
    assert!(place.command("umount", &["mnt"]).status().unwrap().success());
    // A loop device that nobody uses is in nobody's way.
    place.line("mkfs -q -f vol.img").ok();
    attached.detach();
    place.assert_sound();
}

fn libc_o_excl() -> i32 {
    i32::try_from(rustix::fs::OFlags::EXCL.bits()).unwrap()
}

#[test]
fn nothing_is_left_of_a_daemon_that_was_killed() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let block = is_block(&place);
    let image = place.path("vol.img");
    let daemon = place.daemon();
    let user = place.command("sleep", &["1000"]).current_dir(place.mounted("")).stdout(Stdio::null()).spawn();
    let mut user = user.unwrap();
    kill(daemon, Signal::KILL);
    wait_until("the daemon is gone", || !is_alive(daemon));
    // Beside the dead mount, in which somebody still works, the volume is mounted anew; each has a device of its own.
    place.mount("");
    fs::write(place.mounted("file"), b"new").unwrap();
    assert_eq!(handles_of(&image), if block { 2 } else { 0 });
    user.kill().unwrap();
    user.wait().unwrap();
    wait_until("the dead mount goes with its user", || handles_of(&image) == usize::from(block));
    kill(place.daemon(), Signal::KILL);
    wait_until("it answers with errors", || fs::metadata(place.mounted("file")).is_err());
    place.umount();
    wait_until("the device goes with the mount", || handles_of(&image) == 0);
    place.assert_sound();
}

/// Who unmounts a mount of type `fuseblk` waits for its server whatever signals come. A daemon that waits for itself must not
/// keep its own descriptors open by that once it is killed, or it could never end.
#[test]
fn a_daemon_that_is_unmounting_can_be_killed() {
    let Some(place) = MountPlace::with_volume(512 << 20) else { return };
    for round in 0..3 {
        place.mount("-o commit=0,cachesize=256M");
        if round == 0 && !is_block(&place) {
            return place.umount();
        }
        let daemon = place.daemon();
        // Closing brings all of these home.
        for i in 0..3000 {
            fs::create_dir(place.mounted(&format!("{round}-{i}"))).unwrap();
        }
        kill(daemon, Signal::TERM);
        wait_until("it is unmounted", || place.mount_line("mnt").is_none());
        // It may have ended before.
        let _ = try_kill(daemon, Signal::KILL);
        wait_until("the daemon ends", || !is_alive(daemon));
        wait_until("the device goes with it", || handles_of(&place.path("vol.img")) == 0);
    }
    place.mount("");
    place.umount();
    place.assert_sound();
}

/// In a mount namespace of its own, in which there are no loop devices, as in most containers.
#[test]
fn without_loop_devices_mounts_are_plain() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    place.mount("");
    let may_choose = is_block(&place);
    place.umount();
    if !may_choose {
        return;
    }
    let script = "mount --bind /dev/null /dev/loop-control
        \"$0\" mount vol.img mnt
        grep \"$PWD/mnt fuse.myriad rw,\" /proc/mounts
        \"$0\" info vol.img | grep 'fuse: .*/dev/loop-control'
        echo text >mnt/file
        \"$0\" umount mnt
        \"$0\" mount -o kind=fuseblk vol.img mnt";
    let arguments = ["--mount", "--propagation", "private", "sh", "-euc", script, PROGRAM];
    let answer = answer(place.command("unshare", &arguments).spawn().unwrap());
    assert!(answer.err.contains("vol.img: as fuseblk: /dev/loop-control: "), "{answer:?}");
    assert!(answer.err.contains("leave out kind=fuseblk") && answer.code == 1, "{answer:?}");
    assert_eq!(place.line("cat vol.img:/file").ok().out, b"text\n");
    place.assert_sound();
}

/// Two volumes in one image are two file systems, whatever device they lie on.
#[test]
fn volumes_side_by_side_are_told_apart() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let one = common::bytes(&place.path("vol.img"));
    place.write("disk.img", &[&one[..], &one[..]].concat());
    fs::create_dir(place.path("mnt2")).unwrap();
    place.line("mount disk.img mnt -o sizelimit=64M").ok();
    place.line("mount disk.img mnt2 -o offset=64M").ok();
    fs::write(place.mounted("first"), b"").unwrap();
    fs::write(place.path("mnt2/second"), b"").unwrap();
    assert!(!place.mounted("second").exists() && !place.path("mnt2/first").exists());
    place.line("umount mnt").ok();
    assert!(place.path("mnt2/second").exists());
    place.line("umount mnt2").ok();
}

/// In a user namespace whoever made it is root: unshare -Urm, containers without root. What was mounted there is not seen from
/// outside, and mounting the volume once more waited for its daemon to close it.
#[test]
fn root_of_a_user_namespace_mounts() {
    const NOBODY: u32 = 65534;
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can be another user");
    }
    if let Err(reason) = let_all_mount(&place.path("")) {
        return println!("skipped: {reason}");
    }
    let program = place.program_for_all();
    fs::create_dir(place.path("home")).unwrap();
    std::os::unix::fs::chown(place.path("home"), Some(NOBODY), Some(NOBODY)).unwrap();
    let as_user = |words: &[&str]| {
        let mut command = place.command(words[0], &words[1..]);
        command.env("m", &program).env("MYRIAD_RUNTIME_DIR", place.path("home/run"));
        std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
        std::os::unix::process::CommandExt::gid(&mut command, NOBODY);
        answer(command.current_dir(place.path("home")).spawn().unwrap())
    };
    let inside = |script: &str| as_user(&["unshare", "--user", "--map-root-user", "--mount", "sh", "-euc", script]);
    let outside = |script: &str| as_user(&["sh", "-euc", script]);
    let may = inside("true");
    if may.code != 0 {
        return println!("skipped: {}", may.err.trim());
    }
    // The number of who makes a volume outside is no number inside.
    outside("$m mkfs --quiet --size 64M own.img && mkdir own").ok();
    let shown = inside(
        "$m mount own.img own; ! touch own/file 2>&-; umount own; while ! $m fsck -n own.img 2>&-; do sleep 0.1; done
         $m mount -o uid=0,gid=0 own.img own; echo text >own/file; chmod 600 own/file; cp -a own/file own/copy; $m ls own.img:/
         $m info own.img | grep fuse:; umount own; while ! $m fsck -n own.img 2>&-; do sleep 0.1; done
         $m mount -o kind=fuseblk own.img own 2>&1 || $m mount -o uid=0,gid=0 own.img own",
    );
    let shown = shown.ok();
    let shown = shown.text();
    assert!(shown.contains("copy\nfile\n") && shown.contains("in a user namespace nothing can be mounted"), "{shown}");
    assert!(shown.contains("as fuseblk: ") && shown.contains("leave out kind=fuseblk"), "{shown}");
    // It is mounted, but not here.
    let said =
        format!("own.img: mounted on {}, in another mount namespace, by process ", place.path("home/own").display());
    for line in ["mount own.img own", "ls own.img:/", "umount own.img", "mkfs --force own.img"] {
        let answer = outside(&format!("$m {line}")).expect(1, &[&said]);
        let daemon = answer.err.rsplit(' ').next().unwrap().trim();
        assert_eq!(fs::read_to_string(format!("/proc/{daemon}/comm")).unwrap(), "program\n", "{answer:?}");
    }
    let said = outside("$m umount own.img").err;
    kill(said.rsplit(' ').next().unwrap().trim().parse().unwrap(), Signal::TERM);
    // Which is waited for, as it is closing.
    wait_until("it is closed", || outside("$m fsck -n own.img").code == 0);
    assert_eq!(outside("$m cat own.img:/file").ok().out, b"text\n");
}
