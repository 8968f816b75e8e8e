//! Which parts of the tables of checksums are needed, because there is data in the blocks that they cover.

use myriad_format::checksum::PARTS;
use myriad_format::extent::Extent;
use myriad_format::group::FIXED_BLOCKS;
use myriad_format::{AgNo, Geometry};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Parts of the groups' tables that data needs, a bit a part.
pub(crate) struct NeededParts {
    groups: Vec<AtomicU64>,
}

impl NeededParts {
    /// For the groups in use; none on a volume without checksums.
    pub fn new(geometry: &Geometry, ag_used: u32) -> Self {
        let groups = if geometry.has_checksums { ag_used } else { 0 };
        Self { groups: (0..groups).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Notes an extent of data, which lies in one group.
    pub fn note(&self, geometry: &Geometry, extent: &Extent) {
        let ag = geometry.ag_of(extent.start);
        let Some(parts) = self.groups.get(ag.0 as usize) else { return };
        let part = |block| {
            let (table, _) = geometry.checksum_of(block);
            geometry.checksum_part_of(ag, geometry.ag_block_of(table).0 - FIXED_BLOCKS)
        };
        let (first, last) = (part(extent.start), part(extent.start.offset_by(u64::from(extent.length) - 1)));
        parts.fetch_or(u64::MAX >> (PARTS - 1 - last) & u64::MAX << first, Relaxed);
    }

    pub fn of(&self, ag: AgNo) -> u64 {
        self.groups.get(ag.0 as usize).map_or(0, |parts| parts.load(Relaxed))
    }
}
