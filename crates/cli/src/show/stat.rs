//! Attributes of a file as a JSON object: the same fields wherever a verb shows a file.

use super::mode;
use myriad_engine::{FileType, Stat};
use rustix::fs::{major, minor};
use serde_json::{Map, Value};

/// Bytes in the unit of `Stat::blocks`.
pub const BLOCK_UNIT: u64 = 512;

/// Adds the fields of `stat`. Times are nanoseconds since 1970; `allocated` is in bytes.
pub fn put(object: &mut Map<String, Value>, stat: &Stat) {
    let file_type = stat.file_type();
    object.insert("ino".into(), stat.ino.into());
    object.insert("generation".into(), stat.generation.into());
    object.insert("type".into(), mode::json_name(file_type).into());
    object.insert("mode".into(), format!("{:04o}", stat.mode & 0o7777).into());
    object.insert("nlink".into(), stat.nlink.into());
    object.insert("uid".into(), stat.uid.into());
    object.insert("gid".into(), stat.gid.into());
    object.insert("size".into(), stat.size.into());
    object.insert("allocated".into(), allocated(stat).into());
    if let Some((major, minor)) = device(stat) {
        object.insert("major".into(), major.into());
        object.insert("minor".into(), minor.into());
    }
    for (key, time) in
        [("atime_ns", stat.atime), ("mtime_ns", stat.mtime), ("ctime_ns", stat.ctime), ("btime_ns", stat.btime)]
    {
        object.insert(key.into(), time.into());
    }
    object.insert("flags".into(), stat.flags.into());
}

/// Bytes allocated.
pub fn allocated(stat: &Stat) -> u64 {
    stat.blocks.saturating_mul(BLOCK_UNIT)
}

/// Major and minor number of a device node.
pub fn device(stat: &Stat) -> Option<(u32, u32)> {
    let is_device = matches!(stat.file_type(), FileType::CharDevice | FileType::BlockDevice);
    is_device.then(|| (major(stat.rdev), minor(stat.rdev)))
}
