//! `placement=rotor`: each directory in the next allocation group in turn.
//!
//! XFS has it so (1996, 5.1: "a new directory goes to another group than its parent"): groups are large, and what lies in one
//! directory keeps together, so that threads in different directories meet in no group. A group without room for inodes is passed
//! over. The turn begins at group 0 with each opening.

use super::{Choice, Placement, Summary};
use crate::counters::Count;
use myriad_format::{AgNo, RegionNo};
use std::sync::atomic::Ordering;

impl Placement {
    pub(super) fn in_turn(&self, high_water: u32, summary: &mut impl FnMut(RegionNo) -> Summary) -> Choice {
        let geometry = &self.geometry;
        // The first group that was never used has its turn after the last that was.
        let groups = high_water.saturating_add(1).min(geometry.ag_count);
        let first = self.rotor.load(Ordering::Relaxed) % groups;
        let regions_of = |ag: AgNo| {
            let first = ag.0 * geometry.regions_per_ag();
            (first..(first + geometry.regions_per_ag()).min(geometry.region_count())).map(RegionNo)
        };
        let mut has_room = |&region: &RegionNo| {
            let now = summary(region);
            now.free_blocks >= geometry.chunk_blocks && now.free_inodes > 0
        };
        let turns = (0..groups.min(super::SCAN_MAX)).map(|i| AgNo((first + i) % groups));
        let found = turns.map(|ag| (ag, regions_of(ag).find(&mut has_room))).find(|(_, region)| region.is_some());
        let (ag, region) = match found {
            Some((ag, Some(region))) => (ag, region),
            _ => (AgNo(first), RegionNo(first * geometry.regions_per_ag())),
        };
        self.rotor.store(ag.0 + 1, Ordering::Relaxed);
        Choice { region, counts_as: Count::placed_spread }
    }
}
