//! What is done first with a file's data: its size is read, and what a truncation left past it is freed.

use super::{FileData, OpenFile};
use crate::error::Result;
use crate::inode;
use crate::ops::free_range;
use crate::volume::{Reason, Volume, transact};
use myriad_format::FileBlock;

/// Extents freed in one transaction.
pub(super) const EXTENTS_PER_TXN: usize = 256;

/// Loads the size from the inode at the first use of the data lock.
pub(super) fn load(volume: &Volume, file: &OpenFile, data: &mut FileData) -> Result<()> {
    if !data.loaded {
        let look = volume.look();
        let raw = inode::read_node(&look, file.node())?;
        data.size = raw.size.get();
        data.has_rest = volume.orphans.has(file.ino, Reason::Cut);
        data.loaded = true;
    }
    if data.has_rest {
        // What it grows by must read as zeros.
        let end = data.size.div_ceil(volume.cache.block_size() as u64);
        free_rest(volume, file, FileBlock(end))?;
        data.has_rest = false;
    }
    Ok(())
}

/// Frees what a truncation has left at and behind `from`, in as many transactions as it takes.
pub(super) fn free_rest(volume: &Volume, file: &OpenFile, from: FileBlock) -> Result<()> {
    let mut left = Some(from);
    while let Some(from) = left {
        left = transact(volume, 0, |txn| {
            let _lock = volume.lock_exclusive(file.ino);
            let mut raw = inode::read_node(&txn.look, file.node())?;
            let left = free_range(txn, file.ino, &mut raw, from, EXTENTS_PER_TXN)?;
            inode::write(txn, file.ino, &raw)?;
            if left.is_none() {
                volume.orphans.settle(file.ino, Reason::Cut);
            }
            Ok(left)
        })?;
    }
    Ok(())
}
