//! What a mount's image lies on fills up or fails: clean errors, nothing synced lost, and all is well once there is room, or the
//! host's file system is back.

use crate::common::answer;
use crate::common::host::{Loop, command};
use crate::common::mount::{MountPlace, is_alive, wait_until};
use crate::ledger::{Ledger, Promise, hash};
use crate::programs::Random;
use crate::{Series, Total, able_programs};
use myriad_sim::rng::{is_long, number};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system of the host below a place, until it is dropped.
struct Host {
    path: PathBuf,
}

impl Host {
    /// `None`, and a line that says why, where there is no right to mount one.
    fn new(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).unwrap();
        let made = command("mount", &["-t", "tmpfs", "-o", "size=24m", "none"], &path);
        if let Err(error) = made {
            println!("skipped: a small file system of the host cannot be mounted: {error}");
            return None;
        }
        Some(Self { path })
    }

    fn enlarge(&self) {
        command("mount", &["-o", "remount,size=256m"], &self.path).expect("it can be enlarged");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = command("umount", &["-l"], &self.path);
    }
}

/// Writes files, syncs each, and records what was synced, until one fails.
fn fill(top: &Path, ledger: &Ledger) -> io::Error {
    for number in 0..400_u64 {
        let path = PathBuf::from(format!("file {number}"));
        let bytes = vec![number as u8 + 1; 200_000 + number as usize];
        let written = File::create(top.join(&path)).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        match written {
            Ok(()) => ledger.put(&path, Promise::File(vec![hash(&bytes)])),
            Err(error) => return error,
        }
    }
    panic!("80 MB fit into a file system of 24");
}

/// A host without room is told of by ENOSPC and in the daemon's log, and costs nothing: the mount goes on, and so do programs
/// once there is room.
fn filled(place: &MountPlace, host: &Host, image: &str) {
    place.line(&format!("mount -o logfile={} {image} mnt", place.path("daemon.log").display())).ok();
    let ledger = Ledger::default();
    let top = place.path("mnt");
    let no_room = Some(rustix::io::Errno::NOSPC.raw_os_error());
    let error = fill(&top, &ledger);
    assert_eq!(error.raw_os_error(), no_room, "{error}");
    let (broken, promises) = ledger.check(&top);
    assert_eq!((broken, promises > 10), (vec![], true), "reads go on");
    let log = || fs::read_to_string(place.path("daemon.log")).unwrap();
    assert_eq!(log().matches("the file system of the host that holds the image has no room").count(), 1);
    // What is not synced is taken as long as there is memory for it; syncing it is refused, as often as it is tried.
    fs::write(top.join("later"), b"kept in memory").expect("it is taken");
    for _ in 0..2 {
        let refused = File::open(top.join("later")).and_then(|file| file.sync_all()).expect_err("there is no room");
        assert_eq!(refused.raw_os_error(), no_room, "{refused}");
    }
    host.enlarge();
    File::open(top.join("later")).and_then(|file| file.sync_all()).expect("there is room");
    ledger.put(Path::new("later"), Promise::File(vec![hash(b"kept in memory")]));
    assert!(log().contains("the host has room for the image again"));
    let (broken, _) = ledger.check(&top);
    assert_eq!(broken, [""; 0]);
    place.umount();
    place.line(&format!("fsck -n {image}")).expect(0, &["sound"]);
    place.line(&format!("mount {image} mnt")).ok();
    assert_eq!(ledger.check(&top).0, [""; 0]);
    place.umount();
}

#[test]
fn a_sparse_image_whose_host_is_full() {
    let Some(place) = MountPlace::with_volume(64 << 20) else { return };
    let Some(host) = Host::new(place.path("host")) else { return };
    place.line("mkfs --quiet --size 128M host/vol.img").ok();
    filled(&place, &host, "host/vol.img");
}

/// Nobody ends a mount while the host is full unless he forces it; and the daemon of one that the kernel has ended waits while somebody makes room. Nothing is lost
/// then.
#[test]
fn an_umount_while_the_host_is_full() {
    let Some(place) = MountPlace::with_volume(64 << 20) else { return };
    let Some(host) = Host::new(place.path("host")) else { return };
    place.line("mkfs --quiet --size 128M host/vol.img").ok();
    place.line("mount host/vol.img mnt").ok();
    let ledger = Ledger::default();
    let top = place.path("mnt");
    fill(&top, &ledger);
    fs::write(top.join("later"), b"kept in memory").expect("it is taken");
    place.line("umount mnt").expect(1, &["no room", "--force"]);
    let daemon = place.daemon();
    let umount = place.command("umount", &["-i", "mnt"]).spawn().expect("start");
    wait_until("it is out of sight", || place.mount_line("mnt").is_none());
    host.enlarge();
    answer(umount).ok();
    wait_until("the daemon is gone", || !is_alive(daemon));
    place.line("fsck -n host/vol.img").expect(0, &["sound"]);
    place.line("mount host/vol.img mnt").ok();
    assert_eq!(fs::read(top.join("later")).expect("nothing is lost"), b"kept in memory");
    assert_eq!(ledger.check(&top).0, [""; 0]);
}

/// A loop device says now ENOSPC and now EIO when its own host is full, so the volume may be shut down. Nothing synced is lost.
#[test]
fn a_block_device_without_room_behind_it() {
    let Some(place) = MountPlace::with_volume(64 << 20) else { return };
    let Some(host) = Host::new(place.path("host")) else { return };
    let Some(device) = Loop::new(&host.path.join("backing"), 128 << 20) else { return };
    place.line(&format!("mkfs --quiet --force {}", device.0)).ok();
    let ledger = Ledger::default();
    let top = place.path("mnt");
    place.line(&format!("mount {} mnt", device.0)).ok();
    let error = fill(&top, &ledger);
    let (no_room, failed) = (rustix::io::Errno::NOSPC.raw_os_error(), rustix::io::Errno::IO.raw_os_error());
    assert!([Some(no_room), Some(failed)].contains(&error.raw_os_error()), "{error}");
    let (broken, promises) = ledger.check(&top);
    assert_eq!((broken, promises > 10), (vec![], true), "reads go on");
    host.enlarge();
    let umounted = place.line("umount mnt");
    if umounted.code != 0 {
        umounted.expect(1, &["the next mount recovers it"]);
    }
    place.line(&format!("fsck -n {}", device.0)).expect(0, &["sound"]);
    place.line(&format!("mount {} mnt", device.0)).ok();
    assert_eq!(ledger.check(&top).0, [""; 0]);
    fs::write(top.join("later"), b"x").expect("there is room");
    place.umount();
    place.line(&format!("fsck -n {}", device.0)).expect(0, &["sound"]);
}

/// An ext4 of the host below a place, until it is dropped.
struct Ext4 {
    path: PathBuf,
    device: Loop,
}

impl Ext4 {
    /// `None`, and a line that says why, where it cannot be made and shut down.
    fn new(place: &MountPlace, size: u64) -> Option<Self> {
        let device = Loop::new(&place.path("backing"), size)?;
        for (program, needed) in [("mkfs.ext4", "e2fsprogs"), ("python3", "python3")] {
            if Command::new(program).arg("-V").output().is_err() {
                println!("skipped: {needed} is not installed");
                return None;
            }
        }
        command("mkfs.ext4", &["-q", "-m", "0", "-E", "nodiscard"], Path::new(&device.0))
            .expect("a device to write on");
        let host = Self { path: place.path("host"), device };
        fs::create_dir(&host.path).unwrap();
        host.mount();
        Some(host)
    }

    fn mount(&self) {
        command("mount", &["-t", "ext4", &self.device.0], &self.path).expect("an ext4 to mount");
    }

    fn umount(&self) {
        // The kernel lets go of what an ended daemon's ring held a little later.
        wait_until("nobody uses it", || command("umount", &[], &self.path).is_ok());
    }

    /// Every request fails from now on, and what its log had not yet is gone.
    fn shut_down(&self) {
        const WITHOUT_THE_LOG: &str = "import fcntl,os,struct,sys\n\
            fcntl.ioctl(os.open(sys.argv[1],os.O_RDONLY),0x8004587d,struct.pack('I',2))";
        command("python3", &["-c", WITHOUT_THE_LOG], &self.path).expect("ext4 can be shut down");
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = command("umount", &["-l"], &self.path);
    }
}

/// The host's file system goes away under the image while programs work, as if its disk had been pulled out; then it is back.
#[test]
fn a_host_that_fails_under_programs() {
    let is_long = is_long();
    let count = if is_long { 20 } else { 3 };
    let seed = number("MYRIAD_SEED").unwrap_or_else(|| std::process::id().into());
    println!("replay: MYRIAD_SEED={seed} cargo test -p myriad --test kills fails_under -- --nocapture");
    let Some(place) = MountPlace::with_volume(64 << 20) else { return };
    let Some(host) = Ext4::new(&place, 2 << 30) else { return };
    place.line("mkfs --quiet --size 1G host/vol.img").ok();
    let able = able_programs();
    let series = Series::new(&place, "host/vol.img", &able);
    let mut random = Random::new(seed);
    let mut total = Total::default();
    place.line("mount host/vol.img mnt").ok();
    for _ in 0..count {
        let recover = || {
            let refused = fs::write(place.mounted("later"), b"x").expect_err("no change is taken any more");
            assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{refused}");
            place.line("umount mnt").expect(1, &["the next mount recovers it"]);
            host.umount();
            host.mount();
        };
        series.end_once(&mut random, is_long, &mut total, || host.shut_down(), recover);
    }
    place.umount();
    place.line("fsck -n host/vol.img").expect(0, &["sound"]);
    println!("{}", total.report("failures of the host", seed));
    total.judge();
}

/// On ext4 a commit record is one write that is durable in itself. Where it goes into a hole of the image and the host is full, that was
/// taken for a failed flush: the volume was shut down.
#[test]
fn a_commit_record_for_which_the_host_has_no_room() {
    let Some(place) = MountPlace::with_volume(64 << 20) else { return };
    let Some(host) = Ext4::new(&place, 24 << 20) else { return };
    place.line("mkfs --quiet --size 128M host/vol.img").ok();
    place.line("mount host/vol.img mnt").ok();
    let path = place.mounted("file");
    fs::write(&path, [1; 4096]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    let ballast = host.path.join("ballast");
    let fill = || {
        let mut file = File::options().create(true).append(true).open(&ballast).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        file.sync_all().unwrap();
    };
    // Twice: what was set aside for the first one's blocks is free once they are written.
    fill();
    fill();
    let overwrite = |number: u32| {
        file.write_all_at(&[number as u8; 4096], 0)?;
        file.sync_data()
    };
    let error = (0..4000).find_map(|number| overwrite(number).err()).expect("the log finds no room");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()), "{error}");
    assert_eq!(fs::read(&path).unwrap().len(), 4096, "reads go on");
    overwrite(2).expect_err("there is no room still");
    fs::remove_file(&ballast).unwrap();
    overwrite(3).expect("there is room");
    fs::write(place.mounted("later"), b"x").expect("the volume was not shut down");
    drop(file);
    place.umount();
    place.line("fsck -n host/vol.img").expect(0, &["sound"]);
    place.line("mount host/vol.img mnt").ok();
    assert_eq!(fs::read(&path).unwrap(), [3; 4096]);
    place.umount();
    host.umount();
}
