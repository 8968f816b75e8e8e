//! Volumes that are full, or may not be changed.

use super::{open, read_write};
use crate::common::{self, Mounted, mounted};
use crate::skip_without_mounts;
use myriad_fuse::Options;
use rustix::fs as unix;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

/// A file that leaves no room for these bytes, open.
fn fill(mount: &Mounted, bytes: &[u8]) -> File {
    let mut file = File::create(mount.path("file")).unwrap();
    let error = (0..1000).find_map(|_| file.write_all(bytes).err()).expect("256 MiB hold no 1000");
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    file
}

#[test]
fn a_full_volume_says_so_at_the_write() {
    skip_without_mounts!();
    let mount = mounted();
    let bytes = vec![7; 1 << 20];
    drop(fill(&mount, &bytes));
    fs::remove_file(mount.path("file")).unwrap();
    fs::write(mount.path("file"), &bytes).unwrap();
    mount.unmount();
}

/// The kernel says that it is done with a file after it was removed, and others ask for its space in between.
#[test]
fn the_space_of_a_removed_file_is_waited_for() {
    skip_without_mounts!();
    let mount = mounted();
    let bytes = vec![7; 1 << 20];
    let file = fill(&mount, &bytes);
    fs::remove_file(mount.path("file")).unwrap();
    let closes = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        drop(file);
    });
    fs::write(mount.path("other"), &bytes).unwrap();
    closes.join().unwrap();
    // Not for ever: somebody may have it open for long.
    let file = fill(&mount, &bytes);
    fs::remove_file(mount.path("file")).unwrap();
    let refused = fs::write(mount.path("third"), &bytes).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    drop(file);
    mount.unmount();
}

#[test]
fn read_only_volumes_stay_as_they_are() {
    skip_without_mounts!();
    let mount = mounted();
    fs::write(mount.path("file"), b"content").unwrap();
    let mount = mount.remount(Options { read_only: true, ..Options::default() });
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"content");
    assert_eq!(open(&mount.path("new"), read_write()).err(), Some(Errno::ROFS));
    assert_eq!(unix::unlink(mount.path("file")), Err(Errno::ROFS));
    let line = format!("{} {} ro,", mount.root().display(), mount.fs_type());
    assert!(fs::read_to_string("/proc/mounts").unwrap().contains(&line));
    mount.unmount();
}
