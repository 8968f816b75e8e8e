//! What a mount's image lies on fills up or fails: clean errors, nothing synced lost, and all is well once there is room.

use crate::common::mount::MountPlace;
use crate::ledger::{Ledger, Promise, hash};
use std::fs::{self, File};
use std::io::{self, Write};
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

fn command(program: &str, arguments: &[&str], path: &Path) -> Result<String, String> {
    let said = Command::new(program).args(arguments).arg(path).output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if said.status.success() { Ok(text(&said.stdout)) } else { Err(text(&said.stderr)) }
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

/// The volume `image` is mounted, and what it lies on becomes full.
fn filled(place: &MountPlace, host: &Host, image: &str) {
    let ledger = Ledger::default();
    let top = place.path("mnt");
    place.line(&format!("mount {image} mnt")).ok();
    let error = fill(&top, &ledger);
    // The volume itself has room: this is the host's device failing.
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    let (broken, promises) = ledger.check(&top);
    assert_eq!((broken, promises > 10), (vec![], true), "reads go on");
    let refused = fs::write(top.join("later"), b"x").expect_err("no change is taken any more");
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{refused}");
    let said = place.line("umount mnt").expect(1, &["the next mount recovers it"]);
    assert!(said.err.contains("shut down") || said.err.contains("device"), "{said:?}");
    place.line(&format!("fsck -n {image}")).expect(0, &["sound"]);
    host.enlarge();
    place.line(&format!("mount {image} mnt")).ok();
    let (broken, _) = ledger.check(&top);
    assert_eq!(broken, [""; 0]);
    fs::write(top.join("later"), b"x").expect("there is room");
    place.umount();
    place.line(&format!("fsck -n {image}")).expect(0, &["sound"]);
}

#[test]
fn a_sparse_image_whose_host_is_full() {
    let Some(place) = MountPlace::with_volume(64 << 20) else { return };
    let Some(host) = Host::new(place.path("host")) else { return };
    place.line("mkfs --quiet --size 128M host/vol.img").ok();
    filled(&place, &host, "host/vol.img");
}

#[test]
fn a_block_device_that_fails_its_writes() {
    let Some(place) = MountPlace::with_volume(64 << 20) else { return };
    let Some(host) = Host::new(place.path("host")) else { return };
    let backing = host.path.join("backing");
    File::create(&backing).and_then(|file| file.set_len(128 << 20)).unwrap();
    let device = match command("losetup", &["--find", "--show"], &backing) {
        Ok(device) => device,
        Err(error) => return println!("skipped: no loop device can be had: {error}"),
    };
    struct Loop(String);
    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").args(["-d", &self.0]).status();
        }
    }
    let device = Loop(device);
    place.line(&format!("mkfs --quiet --force {}", device.0)).ok();
    filled(&place, &host, &device.0);
}
