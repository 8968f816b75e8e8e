//! Checksums of file data (`myriad_format::checksum`): looked up with a file's map, changed in the transaction that maps
//! the data.
//!
//! Invariants, on a volume that has them
//!   1. Of every block that a committed state maps as written data of a file, its table has the checksum of what the
//!      device holds there. So data only goes to blocks that no committed state maps as written (`file::map_pages`).
//!   2. What the table says of other blocks means nothing.
//!
//! Locking: parts of the table are made under the group's lock; a checksum is changed under the latch of its block.

use crate::edit::BlockStore;
use crate::error::Result;
use crate::order::{Look, Txn};
use crate::volume::Volume;
use myriad_format::checksum::{self, offset};
use myriad_format::group::FIXED_BLOCKS;
use myriad_format::{BlockKind, FsBlock, header};

/// The checksum of a file's dirty page, on a volume that has them; the frame is the caller's alone.
pub(crate) fn of_page(volume: &Volume, frame: u32) -> u32 {
    if volume.geometry.has_checksums { checksum::of(&volume.cache.arena.read_private(frame)) } else { 0 }
}

/// Appends the checksums of `count` blocks of one group.
pub(crate) fn load(look: &Look<'_>, start: FsBlock, count: u64, sums: &mut Vec<u32>) -> Result<()> {
    let geometry = &look.volume.geometry;
    let owner = u64::from(geometry.ag_of(start).0);
    let mut done = 0;
    while done < count {
        let (table, first) = geometry.checksum_of(start.offset_by(done));
        let part = (count - done).min(u64::from(geometry.checksums_per_block() - first)) as u32;
        look.read_at(table, BlockKind::Checksums, offset(first), |bytes| {
            header::verify_owner(bytes, table, owner)?;
            sums.extend((first..first + part).map(|index| checksum::read(bytes, index)));
            Ok::<_, myriad_format::Corrupt>(())
        })??;
        done += u64::from(part);
    }
    Ok(())
}

/// Reads what [`store`] will change. The parts of the table that are not made yet are left out.
pub(crate) fn read_ahead(txn: &mut Txn<'_>, start: FsBlock, count: u64) -> Result<()> {
    let volume = txn.volume();
    let group = volume.group(&txn.look, volume.geometry.ag_of(start))?;
    group.as_ref().expect("just loaded").read_checksums(txn, volume.geometry.ag_block_of(start), count as u32)
}

/// Sets the checksums of blocks of one group, `start` and those after it.
pub(crate) fn store(txn: &mut Txn<'_>, start: FsBlock, sums: &[u32]) -> Result<()> {
    let geometry = txn.volume().geometry;
    let ag = geometry.ag_of(start);
    let (first, _) = geometry.checksum_of(start);
    let (last, _) = geometry.checksum_of(start.offset_by(sums.len() as u64 - 1));
    let index = |table| geometry.ag_block_of(table).0 - FIXED_BLOCKS;
    txn.volume().with_group(txn, ag, |space, txn| space.make_checksums(txn, index(first), index(last)))?;
    let mut rest = sums;
    let mut at = start;
    while !rest.is_empty() {
        let (table, first) = geometry.checksum_of(at);
        let count = rest.len().min((geometry.checksums_per_block() - first) as usize);
        let (part, later) = rest.split_at(count);
        txn.change(table, BlockKind::Checksums, |edit| {
            for (place, sum) in edit.range_mut(offset(first), count * 4).chunks_exact_mut(4).zip(part) {
                place.copy_from_slice(&sum.to_le_bytes());
            }
        })?;
        rest = later;
        at = at.offset_by(count as u64);
    }
    Ok(())
}
