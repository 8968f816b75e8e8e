//! The first steps with a file's data: its size is read from the inode, and blocks that an earlier truncation left past that size are freed.

use super::{FileData, OpenFile, Rest, for_each_run};
use crate::error::Result;
use crate::inode;
use crate::map::{self, FILE_END, Mapping};
use crate::ops::{free_range, free_written};
use crate::order::Txn;
use crate::volume::{Reason, Volume, transact};
use myriad_format::inode::RawInode;
use myriad_format::{FileBlock, Ino};
use std::ops::ControlFlow;

/// Loads the size from the inode at the first use of the data lock.
pub(super) fn load_size(volume: &Volume, file: &OpenFile, data: &mut FileData) -> Result<()> {
    if data.loaded {
        return Ok(());
    }
    let look = volume.look();
    let raw = inode::read_node(&look, file.node())?;
    data.size = raw.size.get();
    // Found on the list of orphans: the opening could not free what a cut, or a flush, had left when the power went.
    let is_listed = [Reason::Cut, Reason::Found].iter().any(|&reason| volume.orphans.has(file.ino, reason));
    data.rest = match volume.options.read_only {
        false if is_listed => Rest::Some,
        false if volume.may_have_leftovers => Rest::Unknown,
        _ => Rest::None,
    };
    data.loaded = true;
    Ok(())
}

/// As [`load_size`], for whoever changes the file.
pub(super) fn load(volume: &Volume, file: &OpenFile, data: &mut FileData) -> Result<()> {
    load_size(volume, file, data)?;
    let end = FileBlock(data.size.div_ceil(volume.cache.block_size() as u64));
    if data.rest == Rest::Unknown {
        data.rest = if has_rest(volume, file, end)? { Rest::Some } else { Rest::None };
    }
    if data.rest == Rest::Some {
        // What it grows by must read as zeros.
        // A flush that power loss has cut leaves written blocks; what a truncation leaves that began in this use of the volume is all to go.
        let free = if volume.orphans.has(file.ino, Reason::Cut) { free_range } else { free_written };
        free_rest(volume, file, end, free)?;
        data.rest = Rest::None;
    }
    Ok(())
}

/// Frees a part of what a file has from a block on; where to go on.
type Free = fn(&mut Txn<'_>, Ino, &mut RawInode, FileBlock, usize) -> Result<Option<FileBlock>>;

/// Frees what a truncation or a flush has left at and behind `from`, in as many transactions as it takes.
pub(super) fn free_rest(volume: &Volume, file: &OpenFile, from: FileBlock, free: Free) -> Result<()> {
    let mut left = Some(from);
    while let Some(from) = left {
        left = transact(volume, 0, |txn| {
            let _lock = volume.lock_exclusive(file.ino);
            let mut raw = inode::read_node(&txn.look, file.node())?;
            let left = free(txn, file.ino, &mut raw, from, map::runs_per_txn(&volume.geometry))?;
            inode::write(txn, file.ino, &raw)?;
            if left.is_none() {
                volume.orphans.settle(file.ino, Reason::Cut);
                volume.orphans.settle(file.ino, Reason::Found);
            }
            Ok(left)
        })?;
    }
    Ok(())
}

/// Whether a file has blocks with content at or behind `end`, its end. The list of orphans does not say what power loss has left in order `softdep`.
fn has_rest(volume: &Volume, file: &OpenFile, end: FileBlock) -> Result<bool> {
    let found = for_each_run(volume, file.node(), end..FILE_END, |_, mapping| match mapping {
        // Reserved ahead, and zeros.
        Mapping::Mapped(extent) if extent.unwritten => ControlFlow::Continue(()),
        Mapping::Mapped(_) => ControlFlow::Break(()),
        Mapping::Hole { .. } => ControlFlow::Continue(()),
    })?;
    Ok(found.is_some())
}
