//! Free space that goes back to the host: by the verbs, on a mount, and by fstrim(8).

mod common;

use common::host::Loop;
use common::mount::{MountPlace, wait_until};
use common::{Answer, Place, put};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

const VOLUME: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

/// What the host has for an image, in bytes.
fn taken(image: &Path) -> u64 {
    fs::metadata(image).unwrap().blocks() * 512
}

/// A volume with a file of 16 MiB and some that stay.
fn filled(place: &Place) -> u64 {
    place.change(|session| {
        put(session, "/large", &vec![7; 16 << 20]);
        put(session, "/kept", &vec![8; 1 << 20]);
    });
    let full = taken(&place.path("vol.img"));
    assert!(full > 17 * MIB);
    full
}

fn assert_kept(place: &Place) {
    assert!(place.line("cat vol.img:/kept").ok().out == vec![8; 1 << 20]);
    place.assert_sound();
}

#[test]
fn an_image_gets_smaller_when_files_go_unless_it_is_told_not_to() {
    for (option, goes) in [("", true), ("--no-discard", false)] {
        let place = Place::with_volume(VOLUME);
        let full = filled(&place);
        place.line(&format!("rm {option} vol.img:/large")).ok();
        let left = taken(&place.path("vol.img"));
        assert!(if goes { left + 15 * MIB < full } else { left + MIB > full }, "{option}: {full} to {left} bytes");
        assert_kept(&place);
    }
}

#[test]
fn trim_gives_back_what_is_free_and_says_how_much() {
    let place = Place::with_volume(VOLUME);
    let full = filled(&place);
    place.line("rm --no-discard vol.img:/large").ok();
    assert!(place.line("trim -m 1G vol.img").ok().text().starts_with("vol.img: 0 bytes given back; the image takes "));
    assert!(taken(&place.path("vol.img")) + MIB > full);
    let told = place.line("trim --json vol.img").ok().json();
    assert_eq!(told["target"], "vol.img");
    assert!(told["trimmed"].as_u64().unwrap() > 48 * MIB, "{told}");
    assert!(told["image_bytes"].as_u64().unwrap() + 15 * MIB < full, "{told}");
    assert!(taken(&place.path("vol.img")) + 15 * MIB < full);
    // The rest is done whatever is wrong with one of them.
    let said = place.line("trim none.img vol.img").expect(1, &["none.img: No such file or directory"]);
    assert!(said.text().contains("given back; the image takes"), "{said:?}");
    assert_kept(&place);
}

#[test]
fn trim_refuses_what_is_not_a_volume_or_in_use() {
    let place = Place::with_volume(VOLUME);
    place.write("file", &[1; 1 << 20]);
    fs::create_dir(place.path("dir")).unwrap();
    place.line("trim").expect(2, &["<IMAGE|DIRECTORY>"]);
    place.line("trim file").expect(1, &["file: not a Myriad volume"]);
    place.line("trim dir").expect(1, &["dir: not mounted"]);
    place.line("trim --minimum x vol.img").expect(2, &["x"]);
    let fs = myriad_engine::Fs::open(&place.path("vol.img"), myriad_engine::MountOptions::default()).unwrap();
    place.line("trim vol.img").expect(1, &["vol.img: in use by process"]);
    drop(fs);
    assert_eq!(fs::read(place.path("file")).unwrap(), [1; 1 << 20]);
}

#[test]
fn a_mounted_volume_gives_back_what_is_removed_by_itself() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    for (option, goes) in [("-o commit=0.05", true), ("-o commit=0.05,nodiscard", false)] {
        let full = filled(&place);
        place.mount(option);
        fs::remove_file(place.mounted("large")).unwrap();
        let image = place.path("vol.img");
        if goes {
            wait_until("the image gets smaller", || taken(&image) + 15 * MIB < full);
        }
        place.umount();
        assert_eq!(taken(&image) + 15 * MIB < full, goes, "{option}: {full} to {} bytes", taken(&image));
        assert_kept(&place);
        place.line("trim vol.img").ok();
    }
}

#[test]
fn a_mounted_volume_is_trimmed_by_its_daemon() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    let full = filled(&place);
    place.mount("-o nodiscard");
    fs::remove_file(place.mounted("large")).unwrap();
    // By its image, and by the directory.
    assert!(place.line("trim -m 1G vol.img").ok().text().contains("vol.img: 0 bytes"));
    assert!(place.line("trim --json mnt").ok().json()["trimmed"].as_u64().unwrap() > 48 * MIB);
    assert!(taken(&place.path("vol.img")) + 15 * MIB < full);
    assert!(fs::read(place.mounted("kept")).unwrap() == vec![8; 1 << 20]);
    place.umount();
    place.mount("-o ro");
    place.line("trim mnt").expect(1, &["Read-only file system"]);
    place.umount();
    assert_kept(&place);
}

/// What fstrim(8) says of a mount; `None` without it.
fn fstrim(place: &MountPlace, user: Option<&str>, options: &[&str]) -> Option<Answer> {
    let mut command = match user {
        Some(user) => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--clear-groups", "fstrim"]);
            command
        }
        None => Command::new("fstrim"),
    };
    command.arg("-v").args(options).arg(place.path("mnt")).stdout(Stdio::piped()).stderr(Stdio::piped());
    match command.spawn() {
        Ok(child) => Some(common::answer(child)),
        Err(error) => {
            println!("skipped: fstrim: {error}");
            None
        }
    }
}

#[test]
fn fstrim_works_on_a_mount() {
    let Some(place) = MountPlace::with_volume(VOLUME) else { return };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may trim");
        return;
    }
    for kind in ["fuseblk", "fuse"] {
        let full = filled(&place);
        let mounted = place.line(&format!("mount -o nodiscard,allow_other,kind={kind} vol.img mnt"));
        if mounted.code != 0 {
            println!("skipped: {}", mounted.err);
            continue;
        }
        fs::remove_file(place.mounted("large")).unwrap();
        let Some(refused) = fstrim(&place, Some("65534"), &[]) else { return };
        refused.expect(1, &["not permitted"]);
        let text = |options: &[&str]| fstrim(&place, None, options).unwrap().ok().text().to_owned();
        assert!(text(&["-m", "1G"]).contains("0 B (0 bytes) trimmed"));
        assert!(text(&["-o", "0", "-l", "1M"]).contains("bytes) trimmed"));
        assert!(taken(&place.path("vol.img")) + 2 * MIB > full, "the first MiB is all that may have gone");
        let told = text(&[]);
        let bytes: u64 = told.split(['(', ' ']).find_map(|word| word.parse().ok().filter(|&n: &u64| n > 4096)).unwrap();
        assert!(bytes > 46 * MIB && bytes < VOLUME, "{told}");
        assert!(taken(&place.path("vol.img")) + 15 * MIB < full);
        fstrim(&place, None, &["-o", "65M"]).unwrap().expect(1, &["Invalid argument"]);
        place.umount();
        assert_kept(&place);
    }
}

/// A volume on a block device keeps what it has until it is asked.
#[test]
fn a_block_device_is_trimmed_on_request() {
    let place = Place::new();
    fs::File::create(place.path("disk")).unwrap().set_len(VOLUME).unwrap();
    fs::set_permissions(place.path("disk"), fs::Permissions::from_mode(0o600)).unwrap();
    let Some(device) = Loop::over(&place.path("disk")) else { return };
    let name = &device.0;
    place.line(&format!("mkfs --quiet {name}")).ok();
    place.write("file", &vec![7; 16 << 20]);
    place.line(&format!("cp file {name}:/large")).ok();
    let full = taken(&place.path("disk"));
    place.line(&format!("rm {name}:/large")).ok();
    assert!(taken(&place.path("disk")) + MIB > full);
    let told = place.line(&format!("trim --json {name}")).ok().json();
    assert!(told["trimmed"].as_u64().unwrap() > 48 * MIB && told["image_bytes"].is_null(), "{told}");
    assert!(taken(&place.path("disk")) + 15 * MIB < full);
    place.line(&format!("fsck -n {name}")).expect(0, &[]);
}

/// A file system of the host that makes no holes in files, gone with the test.
struct Ram(std::path::PathBuf);

impl Drop for Ram {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Nothing is lost where the host takes no space back: freeing goes on without, and who asks is told.
#[test]
fn a_host_that_takes_nothing_back_is_told_of() {
    let place = Place::new();
    let ram = Ram(place.path("ram"));
    fs::create_dir(&ram.0).unwrap();
    let mounted = Command::new("mount").args(["-t", "ramfs", "none"]).arg(&ram.0).stderr(Stdio::null()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: no ramfs to be had");
        return;
    }
    place.line("mkfs --quiet --size 64M ram/vol.img").ok();
    place.write("file", &vec![7; 4 << 20]);
    place.line("cp file ram/vol.img:/large").ok();
    place.line("cp file ram/vol.img:/kept").ok();
    place.line("rm ram/vol.img:/large").ok();
    place.line("trim ram/vol.img").expect(1, &["ram/vol.img: the host takes no space back here; keep the image on"]);
    assert!(place.line("cat ram/vol.img:/kept").ok().out == vec![7; 4 << 20]);
    place.line("fsck -n ram/vol.img").expect(0, &[]);
}
