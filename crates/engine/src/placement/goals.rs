//! What operations ask: near which block a new inode or new data should lie. The allocator takes the next best place from there.

use super::{Averages, Summary};
use crate::error::Result;
use crate::order::Txn;
use crate::volume::Volume;
use myriad_format::{AgBlock, FsBlock, Ino, RegionNo};
use std::sync::atomic::Ordering;

/// For the inode of a new directory: where the policy puts it.
pub(crate) fn directory(txn: &mut Txn<'_>, parent: Ino) -> Result<FsBlock> {
    let volume = txn.volume();
    let block = volume.block_of(parent);
    let geometry = &volume.geometry;
    let free_blocks = volume.totals.free_blocks.load(Ordering::Relaxed).max(0) as u64;
    let averages = Averages {
        free_blocks,
        used_blocks: volume.usable_blocks.saturating_sub(free_blocks),
        directories: volume.totals.directories.load(Ordering::Relaxed).max(0) as u64,
        high_water: volume.high_water(),
    };
    let from = (parent != volume.root).then(|| geometry.region_of(block));
    let mut failed = None;
    let region = volume.placement.choose(from, averages, |region| match summary(txn, region) {
        Ok(summary) => summary,
        Err(error) => {
            failed.get_or_insert(error);
            Summary::default()
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if from == Some(region) {
        return Ok(block);
    }
    Ok(FsBlock(u64::from(region.0) << geometry.region_bits))
}

/// For the inode of anything else: beside its parent's.
pub(crate) fn inode(volume: &Volume, parent: Ino) -> FsBlock {
    volume.block_of(parent)
}

/// For blocks of an inode, its data and what maps it: right after the run of blocks that was taken for it last, or beside the
/// inode.
pub(crate) fn data(volume: &Volume, ino: Ino, previous: Option<(FsBlock, u64)>) -> FsBlock {
    previous.map_or_else(|| volume.block_of(ino), |(start, length)| start.offset_by(length))
}

fn summary(txn: &mut Txn<'_>, region: RegionNo) -> Result<Summary> {
    let volume = txn.volume();
    let geometry = &volume.geometry;
    let ag = geometry.ag_of_region(region);
    if ag.0 >= volume.high_water() {
        let free = u64::from(geometry.region_blocks()).min(u64::from(geometry.blocks_in(ag))) as u32;
        return Ok(Summary { free_blocks: free, directories: 0 });
    }
    let at = AgBlock((region.0 & (geometry.regions_per_ag() - 1)) << geometry.region_bits);
    if at.0 >= geometry.blocks_in(ag) {
        return Ok(Summary { free_blocks: 0, directories: u32::MAX });
    }
    volume.with_group(txn, ag, |space, _| {
        let (free_blocks, directories) = space.region(at);
        Ok(Summary { free_blocks, directories })
    })
}
