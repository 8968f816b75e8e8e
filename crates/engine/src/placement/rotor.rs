//! `rotor`: each directory in another region, as FFS had it before Orlov.
//!
//! The rule of FFS: among all cylinder groups with at least the average number of free inodes, take the one with the fewest
//! directories, the first such group from group 0 on. While all groups are alike, that is one group after the other, and parent
//! and child lie far from each other: what XFS means by "directories are spread over the allocation groups" (1996, 5.1).
//!
//! Up to `SCAN_MAX` regions within reach, this is that rule. FFS had all summaries in one table in memory and looked at all of
//! them for each directory. Ours are in the headers of their groups, so on a larger volume each search looks at the next
//! `SCAN_MAX` regions after the last one chosen, and goes on beyond only as long as all of them are fuller than the average.

use super::{Placement, Reach, SCAN_MAX, Summary, fewest};
use myriad_format::RegionNo;
use std::sync::atomic::Ordering;

impl Placement {
    pub(super) fn next_of_all(&self, reach: Reach, summary: &mut impl FnMut(RegionNo) -> Summary) -> RegionNo {
        let is_whole = reach.count <= SCAN_MAX;
        let start = if is_whole { 0 } else { self.rotor.load(Ordering::Relaxed) % reach.count };
        let chosen = fewest(start, reach.count, reach, summary).unwrap_or(RegionNo(start));
        self.rotor.store(chosen.0 + 1, Ordering::Relaxed);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Averages;
    use crate::types::{DirPref, PlacementPolicy};
    use myriad_format::Geometry;

    fn placement(ag_count: u32) -> Placement {
        let geometry = Geometry {
            block_bits: 12,
            ag_bits: 15,
            region_bits: 13,
            ag_count,
            block_count: u64::from(ag_count) << 15,
            chunk_blocks: 8,
            has_checksums: false,
            has_bitmap: false,
            table_every: 0,
            map: myriad_format::choices::Map::Extents,
        };
        Placement::new(&geometry, PlacementPolicy::Rotor, DirPref::default(), 7)
    }

    fn averages(ag_count: u32) -> Averages {
        let regions = 4 * u64::from(ag_count);
        Averages { free_blocks: regions * 8000, used_blocks: regions * 192, directories: 0, high_water: ag_count }
    }

    #[test]
    fn the_region_with_fewest_directories_is_taken() {
        let p = placement(4);
        let summary = |region: RegionNo| Summary { free_blocks: 8000, directories: 20 - region.0 };
        assert_eq!(p.choose(Some(RegionNo(1)), averages(4), summary).0, 15);
        let summary = |region: RegionNo| Summary { free_blocks: 8000, directories: u32::from(region.0 != 3) };
        assert_eq!(p.choose(None, averages(4), summary).0, 3);
    }

    #[test]
    fn one_region_after_the_other_while_they_are_alike() {
        // 16 regions are looked at as a whole, 1200 are not.
        for ag_count in [4, 300] {
            let p = placement(ag_count);
            let mut directories = vec![0_u32; 4 * ag_count as usize];
            let all = directories.len() as u32;
            for i in 0..2 * all {
                let summary =
                    |region: RegionNo| Summary { free_blocks: 8000, directories: directories[region.0 as usize] };
                let chosen = p.choose(Some(RegionNo(1)), averages(ag_count), summary);
                assert_eq!(chosen.0, i % all);
                directories[chosen.0 as usize] += 1;
            }
        }
    }

    /// The first 600 of 1200 regions are fuller than the average: more than one search looks at as a rule.
    #[test]
    fn full_regions_are_passed_over_however_many_they_are() {
        let p = placement(300);
        let summary = |region: RegionNo| Summary {
            free_blocks: if region.0 < 600 { 100 } else { 8100 },
            directories: u32::from(region.0 != 700),
        };
        assert_eq!(p.choose(None, averages(300), summary).0, 600, "what it looked at before is enough");
        assert_eq!(p.choose(None, averages(300), summary).0, 700);
        assert_eq!(p.choose(None, averages(300), summary).0, 701);
    }
}
