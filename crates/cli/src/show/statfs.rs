//! Totals of a volume, as programs read them.

use myriad_engine::StatFs;
use myriad_format::dir::NAME_MAX;
use serde_json::{Map, Value};

/// Totals of a volume, in bytes and numbers of inodes.
pub fn put_statfs(object: &mut Map<String, Value>, statfs: &StatFs) {
    let unit = u64::from(statfs.block_size);
    for (key, value) in [
        ("block_size", unit),
        ("size", statfs.blocks * unit),
        ("used", (statfs.blocks - statfs.free_blocks) * unit),
        ("available", statfs.available_blocks * unit),
        ("inodes_used", statfs.inodes_used),
        ("inodes_free", statfs.inodes_free),
        ("directories", statfs.directories),
    ] {
        object.insert(key.into(), value.into());
    }
}

/// What `put_statfs` wrote.
pub fn get_statfs(object: &Value) -> StatFs {
    let number = |key| object.get(key).and_then(Value::as_u64).unwrap_or(0);
    let unit = number("block_size").max(1);
    StatFs {
        block_size: u32::try_from(unit).unwrap_or(u32::MAX),
        blocks: number("size") / unit,
        free_blocks: (number("size") - number("used").min(number("size"))) / unit,
        available_blocks: number("available") / unit,
        inodes_used: number("inodes_used"),
        inodes_free: number("inodes_free"),
        directories: number("directories"),
        name_max: NAME_MAX as u32,
    }
}
