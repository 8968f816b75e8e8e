//! What operations ask: near which block a new inode should lie. The allocator takes the next best place from there.

use super::{Averages, SCAN_MAX, Summary};
use crate::error::Result;
use crate::order::Txn;
use crate::volume::Volume;
use myriad_format::{AgBlock, AgNo, FsBlock, Ino, RegionNo};
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
        used_inodes: volume.totals.inodes_used.load(Ordering::Relaxed).max(0) as u64,
        directories: volume.totals.directories.load(Ordering::Relaxed).max(0) as u64,
        high_water: volume.high_water(),
    };
    let from = (parent != volume.root).then(|| geometry.region_of(block));
    let mut failed = None;
    let mut summaries = Summaries::new(volume);
    let choice = volume.placement.choose(from, averages, |region| match summaries.of(txn, region) {
        Ok(summary) => summary,
        Err(error) => {
            failed.get_or_insert(error);
            Summary::FULL
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    volume.counters.bump(choice.counts_as);
    if from == Some(choice.region) {
        return Ok(block);
    }
    Ok(FsBlock(u64::from(choice.region.0) << geometry.region_bits))
}

/// For the inode of anything else: beside its parent's.
pub(crate) fn inode(volume: &Volume, parent: Ino) -> FsBlock {
    volume.block_of(parent)
}

/// For what belongs to an inode and has no better place: what maps it, its attributes, the entries of a directory.
pub(crate) fn beside(volume: &Volume, ino: Ino) -> FsBlock {
    volume.block_of(ino)
}

/// What the headers of groups say of their regions, for one search.
pub(super) struct Summaries {
    /// Regions looked at.
    count: u32,
    /// Of a volume with inode tables, none of whose groups is in use.
    inodes: Option<u32>,
}

impl Summaries {
    pub fn new(volume: &Volume) -> Self {
        let geometry = &volume.geometry;
        Self { count: 0, inodes: geometry.has_table().then(|| geometry.table_inodes(AgNo(0))) }
    }

    pub fn of(&mut self, txn: &mut Txn<'_>, region: RegionNo) -> Result<Summary> {
        let volume = txn.volume();
        let geometry = &volume.geometry;
        let ag = geometry.ag_of_region(region);
        if ag.0 >= volume.high_water() {
            let free_blocks = if self.inodes.is_some() {
                geometry.usable_blocks_in(ag)
            } else {
                geometry.region_blocks().min(geometry.blocks_in(ag))
            };
            let free_inodes = self.inodes.map_or(u32::MAX, |_| geometry.table_inodes(ag));
            return Ok(Summary { free_blocks, free_inodes, directories: 0 });
        }
        let at = AgBlock((region.0 & (geometry.regions_per_ag() - 1)) << geometry.region_bits);
        if at.0 >= geometry.blocks_in(ag) {
            return Ok(Summary::FULL);
        }
        self.count += 1;
        // Inside the gate nothing is evicted, and the headers of all groups of a large volume might not fit the cache.
        if self.count > SCAN_MAX && !volume.is_group_loaded(ag) {
            return Ok(Summary::FULL);
        }
        // This only asks which place is the best: the allocator passes over a group that cannot be read as well.
        let found = volume.with_group_if_readable(txn, ag, |space| {
            let (free_blocks, directories) = space.region(at);
            let free_inodes = |_| geometry.table_inodes(ag).saturating_sub(space.inodes_used());
            let free_inodes = self.inodes.map_or(u32::MAX, free_inodes);
            Summary { free_blocks, free_inodes, directories }
        })?;
        Ok(found.unwrap_or(Summary::FULL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::MkfsOptions;
    use crate::volume::{testing, transact};
    use myriad_device::MemoryDevice;
    use std::sync::Arc;

    /// A group of which a damaged header says that it has more inodes in use than its table has: the free ones were a number below zero.
    #[test]
    fn a_group_that_counts_too_many_inodes_has_none_free() {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let choices = myriad_format::choices::Profile::parse("ffs").unwrap().choices;
        crate::mkfs::format(device.clone(), None, &MkfsOptions { choices, ..MkfsOptions::default() }).unwrap();
        let volume = testing::open(device);
        let found = transact(&volume, 0, |txn| {
            volume.with_group(txn, AgNo(0), |space, _| {
                space.count_ahead(1 << 20);
                Ok(())
            })?;
            Summaries::new(&volume).of(txn, RegionNo(0))
        });
        assert_eq!(found.unwrap().free_inodes, 0);
    }
}
