//! A tree on the host and the same in a volume, and what one finds in each.

use crate::common::Place;
use myriad_engine::{Cred, FileType, Fs, MountOptions, OpenOptions};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// A file, as far as two file systems have the same of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Type and bits.
    pub mode: u32,
    pub owner: (u32, u32),
    /// Of all but directories.
    pub nlink: u64,
    /// Data or link target.
    pub content: Vec<u8>,
    pub mtime: When,
    pub atime: When,
}

/// A time in nanoseconds; one of the test's own is like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Now,
    At(i64),
}

impl When {
    fn of(time: i64, start: SystemTime) -> Self {
        let start = start.duration_since(UNIX_EPOCH).expect("it is after 1970").as_nanos() as i64;
        // The kernel's clock for files may be a tick late.
        if (start - 1_000_000_000..start + 86_400_000_000_000).contains(&time) { Self::Now } else { Self::At(time) }
    }
}

pub type Tree = BTreeMap<Vec<u8>, Seen>;

/// Makes the tree of all rows.
pub fn furnish(top: &Path) {
    let path = |name: &str| top.join(name);
    for (directory, mode) in
        [("", 0o755), ("d", 0o755), ("d/sub", 0o700), ("empty", 0o755), ("chain", 0o755), ("chain/one", 0o750)]
    {
        fs::create_dir(path(directory)).expect("a directory");
        fs::set_permissions(path(directory), PermissionsExt::from_mode(mode)).expect("chmod");
    }
    fs::create_dir(path("shared")).expect("a directory");
    for (name, content, mode) in [
        ("f", "a file of some bytes\n", 0o644),
        ("g", "another\n", 0o600),
        ("empty-file", "", 0o644),
        ("run", "#!/bin/sh\n", 0o4755),
        ("open", "x", 0o666),
        ("kept", "new", 0o644),
        ("kept.~3~", "old", 0o644),
        ("d/b", "beta", 0o640),
        ("d/it's", "quoted", 0o644),
        ("d/sub/deep", "deep", 0o644),
        ("chain/one/file", "x", 0o644),
    ] {
        fs::write(path(name), content).expect("write");
        fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).expect("chmod");
    }
    File::create(path("hole")).and_then(|file| file.set_len(70_000)).expect("a hole");
    fs::set_permissions(path("hole"), PermissionsExt::from_mode(0o644)).expect("chmod");
    fs::hard_link(path("f"), path("hard")).expect("a link");
    for (target, link) in [("f", "link"), ("d", "to-d"), ("missing", "dangling"), ("../g", "d/up")] {
        symlink(target, path(link)).expect("a symbolic link");
    }
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o644));
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), kind, mode, 0).expect("a pipe");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path("g"), Some(3), Some(9)).expect("chown");
        std::os::unix::fs::chown(path("shared"), Some(0), Some(9)).expect("chown");
    }
    fs::set_permissions(path("shared"), PermissionsExt::from_mode(0o2775)).expect("chmod");
    set_times(top);
}

/// Old ones, so that what changes them shows; `g` is newer than the rest.
pub fn set_times(top: &Path) {
    for entry in fs::read_dir(top).expect("a list") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_dir() {
            set_times(&entry.path());
        }
        let day = if entry.file_name() == "g" { 12_000 } else { 11_000 };
        set_time(&entry.path(), day);
    }
    set_time(top, 11_000);
}

fn set_time(path: &Path, day: i64) {
    let time = rustix::fs::Timespec { tv_sec: day * 86_400, tv_nsec: 123_456_789 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).expect("times");
}

/// A copy of the tree, with everything.
pub fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp").success());
}

/// Another user than root has to give himself the right to look; what there was before.
fn open_up(path: &Path, found: &Metadata, rights: u32) -> Option<(PathBuf, Permissions)> {
    if found.mode() & rights == rights || rustix::process::geteuid().is_root() {
        return None;
    }
    fs::set_permissions(path, Permissions::from_mode(found.mode() & 0o7777 | rights)).expect("chmod");
    Some((path.to_owned(), found.permissions()))
}

fn close_again((path, permissions): (PathBuf, Permissions)) {
    fs::set_permissions(path, permissions).expect("chmod");
}

/// What is at and below a directory of the host.
pub fn look(top: &Path, start: SystemTime) -> Tree {
    let mut tree = Tree::new();
    let mut stack = vec![top.to_owned()];
    let mut closed = Vec::new();
    while let Some(path) = stack.pop() {
        let Ok(found) = path.symlink_metadata() else { continue };
        if found.is_dir() {
            closed.extend(open_up(&path, &found, 0o500));
            stack.extend(fs::read_dir(&path).expect("a list").map(|entry| entry.expect("an entry").path()));
        }
        let seen = Seen {
            mode: found.mode(),
            owner: (found.uid(), found.gid()),
            nlink: if found.is_dir() { 0 } else { found.nlink() },
            content: Vec::new(),
            mtime: When::of(found.mtime() * 1_000_000_000 + found.mtime_nsec(), start),
            atime: When::of(found.atime() * 1_000_000_000 + found.atime_nsec(), start),
        };
        let below = path.strip_prefix(top).expect("it is below").as_os_str().as_bytes().to_vec();
        tree.insert(below, seen);
    }
    // After all times are known, which reading changes.
    for (name, seen) in &mut tree {
        let path = top.join(std::ffi::OsStr::from_bytes(name));
        seen.content = match seen.mode >> 12 {
            0o12 => fs::read_link(&path).expect("a link").as_os_str().as_bytes().to_vec(),
            0o10 => {
                let found = path.symlink_metadata().expect("it is there");
                let was_closed = open_up(&path, &found, 0o400);
                let content = fs::read(&path).expect("its content");
                was_closed.into_iter().for_each(close_again);
                content
            }
            _ => Vec::new(),
        };
    }
    closed.into_iter().for_each(close_again);
    tree
}

/// What is at and below the directories `r0`, `r1` and so on of the volume.
pub fn look_inside(place: &Place, count: usize, start: SystemTime) -> Vec<Tree> {
    let fs =
        Fs::open(&place.path("vol.img"), MountOptions { read_only: true, ..MountOptions::default() }).expect("open");
    let session = fs.session(Cred::root());
    let look = |number: usize| {
        let mut tree = Tree::new();
        let Ok(walk) = session.walk(&format!("/r{number}")) else { return tree };
        for step in walk {
            let entry = step.unwrap_or_else(|failed| panic!("{}", failed.error));
            let stat = entry.stat;
            let content = match stat.file_type() {
                FileType::Symlink => session.readlink_node(stat.node()).expect("a link"),
                FileType::File => {
                    let file = session.open_node(stat.node(), OpenOptions::READ).expect("open");
                    let mut content = vec![0; stat.size as usize];
                    assert_eq!(file.read_at(&mut content, 0).expect("read"), content.len());
                    content
                }
                _ => Vec::new(),
            };
            let seen = Seen {
                mode: stat.mode.into(),
                owner: (stat.uid, stat.gid),
                nlink: if stat.is_dir() { 0 } else { stat.nlink.into() },
                content,
                mtime: When::of(stat.mtime, start),
                atime: When::of(stat.atime, start),
            };
            tree.insert(entry.path, seen);
        }
        tree
    };
    let trees = (0..count).map(look).collect();
    drop(session);
    fs.close().expect("close");
    trees
}
