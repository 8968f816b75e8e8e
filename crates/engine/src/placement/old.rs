//! `dirpref=old`: what FFS did before Orlov.
//!
//! Among all cylinder groups with at least the average number of free inodes, take the one with the fewest directories, the first
//! such group from group 0 on. While all groups are alike, that is one group after the other, and parent and child lie far from
//! each other.
//!
//! It looks at all regions within reach for each directory, as FFS does in its table of summaries. Ours are in the headers of the
//! groups, of which one search reads [`super::SCAN_MAX`] at most: a group that it leaves out this time counts as full.

use super::{Choice, Placement, Reach, Summary, fewest};
use crate::counters::Count;
use myriad_format::RegionNo;

impl Placement {
    pub(super) fn fewest_of_all(&self, reach: Reach, summary: &mut impl FnMut(RegionNo) -> Summary) -> Choice {
        // Free inodes alone decide, where there is a table of them.
        let reach = Reach { average_free: if self.table_inodes.is_some() { 0 } else { reach.average_free }, ..reach };
        let region = fewest(0, u32::MAX, reach, summary).unwrap_or(RegionNo(0));
        Choice { region, counts_as: Count::placed_spread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Averages, testing};
    use crate::types::{DirPref, DirPrefVersion, PlacementPolicy};

    fn placement(ag_count: u32) -> Placement {
        let old = DirPref { version: DirPrefVersion::Old, ..DirPref::default() };
        Placement::new(&testing::geometry(ag_count), PlacementPolicy::DirPref, old, 7)
    }

    fn choose(p: &Placement, ag_count: u32, summary: impl Fn(u32) -> (u32, u32)) -> u32 {
        let regions = 4 * u64::from(ag_count);
        let averages = Averages {
            free_blocks: regions * 8000,
            used_blocks: regions * 192,
            used_inodes: 0,
            directories: 0,
            high_water: ag_count,
        };
        let summary = |region: RegionNo| {
            let (free_blocks, directories) = summary(region.0);
            Summary { free_blocks, free_inodes: u32::MAX, directories }
        };
        p.choose(Some(RegionNo(1)), averages, summary).region.0
    }

    #[test]
    fn the_region_with_fewest_directories_is_taken() {
        let p = placement(4);
        assert_eq!(choose(&p, 4, |region| (8000, 20 - region)), 15);
        assert_eq!(choose(&p, 4, |region| (8000, u32::from(region != 3))), 3);
    }

    /// However many there are: FFS looks at all of them.
    #[test]
    fn one_region_after_the_other_while_they_are_alike() {
        for ag_count in [4, 300] {
            let p = placement(ag_count);
            let mut directories = vec![0_u32; 4 * ag_count as usize];
            let all = directories.len() as u32;
            for i in 0..2 * all {
                let chosen = choose(&p, ag_count, |region| (8000, directories[region as usize]));
                assert_eq!(chosen, i % all);
                directories[chosen as usize] += 1;
            }
        }
    }

    #[test]
    fn full_regions_are_passed_over_however_many_they_are() {
        let p = placement(300);
        let summary = |region| (if region < 600 { 100 } else { 8100 }, u32::from(region != 700));
        assert_eq!(choose(&p, 300, summary), 700);
    }
}
