//! Loop devices: one file that two nodes lead to. Whoever opens an image file, and whoever opens a loop device over it, hold locks that do not know of each
//! other, so each side looks for the other one here.
//!
//! What the kernel tells in `/sys/block/loopN` is all that is asked. Where it tells nothing, as in a container without `/sys`, nothing is found.

use crate::lock::{LockRange, is_claimed};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SECTOR: u64 = 512;

/// What a loop device, or a partition of one, lies on. A lock is taken on it beside that of the device.
pub(crate) struct Behind {
    pub file: File,
    /// Where the device begins in the file.
    pub start: u64,
}

/// The file behind a block device with this number; `None` if it is no loop device, or the file cannot be opened: it may be gone, or another user's.
pub(crate) fn behind(device: u64, is_for_writing: bool) -> Option<Behind> {
    let numbers = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let own = fs::canonicalize(numbers).ok()?;
    let (whole, first) = match own.join("partition").exists() {
        true => (own.parent()?, number(&own, "start")?.checked_mul(SECTOR)?),
        false => (own.as_path(), 0),
    };
    let start = number(whole, "loop/offset")?.checked_add(first)?;
    let file = OpenOptions::new().read(true).write(is_for_writing).open(path_behind(whole)?).ok()?;
    file.metadata().ok()?.is_file().then_some(Behind { file, start })
}

/// A loop device over a part of a file that somebody has in use, by its number and its node: mounted, or opened as its only user.
pub(crate) fn over(file: &File, range: LockRange) -> io::Result<Option<(u64, PathBuf)>> {
    let own = file.metadata()?;
    // Few systems have any: then this is one look at a directory.
    let Ok(devices) = fs::read_dir("/sys/block") else { return Ok(None) };
    for device in devices.flatten().filter(|device| device.file_name().as_bytes().starts_with(b"loop")) {
        let whole = device.path();
        let is_own = |path: PathBuf| fs::metadata(path).is_ok_and(|it| (it.dev(), it.ino()) == (own.dev(), own.ino()));
        if !path_behind(&whole).is_some_and(is_own) {
            continue;
        }
        let (Some(start), Some(sectors)) = (number(&whole, "loop/offset"), number(&whole, "size")) else { continue };
        if sectors == 0 || !range.overlaps(start, start.saturating_add(sectors * SECTOR - 1)) {
            continue;
        }
        let node = Path::new("/dev").join(device.file_name());
        // Of one that cannot be opened nobody here can tell.
        if is_claimed(&node).unwrap_or(false) {
            return Ok(Some((fs::metadata(&node)?.rdev(), node)));
        }
    }
    Ok(None)
}

fn path_behind(whole: &Path) -> Option<PathBuf> {
    let text = fs::read(whole.join("loop/backing_file")).ok()?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(text.strip_suffix(b"\n").unwrap_or(&text))))
}

fn number(directory: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(directory.join(name)).ok()?.trim_end().parse().ok()
}
