//! The runs of a map, looked at one after another.

use crate::error::Result;
use crate::inode;
use crate::map::{self, FILE_END, Mapping};
use crate::types::Node;
use crate::volume::Volume;
use myriad_format::{FileBlock, Ino};
use std::ops::{ControlFlow, Range};

/// Calls `f` with each run and hole of a file's or a directory's map that begins in `range`, the first one cut to begin there, until it
/// breaks: with what. A map may be larger than the cache, and what is looked at inside the gate cannot be evicted, so it is looked at in
/// several stays. Between two of them it may change, unless the caller holds a lock that keeps it as it is.
pub(crate) fn for_each_run<T>(
    volume: &Volume,
    node: Node,
    range: Range<FileBlock>,
    mut f: impl FnMut(FileBlock, Mapping) -> ControlFlow<T>,
) -> Result<Option<T>> {
    let ino = Ino(node.ino);
    let mut at = range.start;
    while at < range.end {
        let look = volume.look();
        let _lock = volume.lock_shared(ino);
        let raw = inode::read_node(&look, node)?;
        for _ in 0..map::looks_per_stay(&volume.geometry) {
            if at >= range.end {
                break;
            }
            let mapping = if map::is_mapped(&raw) {
                map::lookup(&mut &look, &raw, ino, at)?
            } else {
                Mapping::Hole { until: FILE_END }
            };
            let begins = std::mem::replace(&mut at, mapping.end());
            if let ControlFlow::Break(result) = f(begins, mapping) {
                return Ok(Some(result));
            }
        }
    }
    Ok(None)
}
