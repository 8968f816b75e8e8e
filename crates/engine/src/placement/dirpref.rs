//! `dirpref=new`: a directory near its parent, by Orlov's rule.
//!
//! First-level directories, whose parent is the root, are spread: from a random region on, the one with the fewest directories
//! among those with at least average free space. Any other directory goes into its parent's region, or the next one on that has
//! neither too many directories nor too little free space nor too many directories made in a row. If none is left, any region
//! with an average of free inodes will do.
//!
//! How much is too much has two forms ([`DirPrefRule`]): that of 2001, and that of FreeBSD 9.3. Two numbers say what a directory
//! is expected to need ([`DirPref`]): so many files of such a size. newfs has them as `-g` and `-h`.

use super::{Choice, Placement, Reach, Summary, fewest};
use crate::counters::Count;
use crate::types::{DirPref, DirPrefRule};
use myriad_format::RegionNo;
use std::sync::atomic::Ordering;

/// What a region may have for one more directory to be put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// Fewer directories than this.
    dirs_max: u64,
    /// At least as many free blocks and inodes.
    free_min: u64,
    inodes_min: u64,
    /// Fewer directories made in a row than this.
    contiguous_max: u64,
}

impl Limits {
    /// For regions of so many blocks, with room for so many inodes.
    fn new(blocks: u64, inodes: u64, block_size: u64, reach: Reach, numbers: DirPref) -> Self {
        // The option table's ranges keep the product below 2^61.
        let dir_size = (numbers.average_file_size * numbers.average_files_per_dir).max(reach.dir_size);
        let least = |average: u64, of: u64| match numbers.rule {
            DirPrefRule::Orlov => average.saturating_sub(of / 4),
            DirPrefRule::FreeBsd9 => (average - average / 4).max(1),
        };
        let room = match numbers.rule {
            DirPrefRule::Orlov => blocks,
            DirPrefRule::FreeBsd9 => reach.average_free,
        };
        // A directory that takes nothing: any number fits, as many as the counter counts.
        let fit = (room * block_size).checked_div(dir_size).unwrap_or(u64::MAX).min(255);
        // Without an expectation of files, there is none of inodes.
        let by_inodes = inodes.checked_div(numbers.average_files_per_dir).unwrap_or(u64::MAX);
        Self {
            dirs_max: (reach.average_dirs + inodes / 16).min(inodes),
            free_min: least(reach.average_free, blocks),
            inodes_min: least(reach.average_inodes, inodes),
            contiguous_max: fit.min(by_inodes).max(1),
        }
    }
}

impl Placement {
    pub(super) fn preferred(
        &self,
        parent: Option<RegionNo>,
        reach: Reach,
        numbers: DirPref,
        summary: &mut impl FnMut(RegionNo) -> Summary,
    ) -> Choice {
        let Some(parent) = parent else {
            let start = (self.random() % u64::from(reach.count)) as u32;
            let region = fewest(start, reach.scan_max, reach, summary).unwrap_or(RegionNo(start));
            return Choice { region, counts_as: Count::placed_first_level };
        };
        let blocks = u64::from(self.geometry.region_blocks());
        let limits = Limits::new(blocks, self.region_inodes, self.geometry.block_size() as u64, reach, numbers);
        // A parent may lie beyond reach if the volume's high-water mark was read before it was made.
        let parent = RegionNo(parent.0.min(reach.count - 1));
        let mut backstop = None;
        for i in 0..reach.count.min(reach.scan_max) {
            let region = RegionNo((parent.0 + i) % reach.count);
            let now = summary(region);
            let (free, inodes) = (u64::from(now.free_blocks), u64::from(now.free_inodes));
            let contiguous = u64::from(self.contiguous[region.0 as usize].load(Ordering::Relaxed));
            if u64::from(now.directories) < limits.dirs_max
                && free >= limits.free_min
                && inodes >= limits.inodes_min
                && contiguous < limits.contiguous_max
            {
                let counts_as = if i == 0 { Count::placed_near } else { Count::placed_past };
                return Choice { region, counts_as };
            }
            // Orlov asks for free inodes only. Where those are made of blocks, that is for free blocks.
            let (left, average) =
                if self.table_inodes.is_some() { (inodes, reach.average_inodes) } else { (free, reach.average_free) };
            if backstop.is_none() && left >= average && left > 0 {
                backstop = Some(region);
            }
        }
        Choice { region: backstop.unwrap_or(parent), counts_as: Count::placed_backstop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Averages, testing};
    use crate::types::PlacementPolicy;

    fn placement(numbers: DirPref) -> Placement {
        Placement::new(&testing::geometry(4), PlacementPolicy::DirPref, numbers, 7)
    }

    fn averages() -> Averages {
        Averages { free_blocks: 16 * 8000, used_blocks: 16 * 192, used_inodes: 0, directories: 0, high_water: 4 }
    }

    fn region(free_blocks: u32, directories: u32) -> Summary {
        Summary { free_blocks, free_inodes: u32::MAX, directories }
    }

    #[test]
    fn children_stay_near_until_too_many_follow_each_other() {
        let p = placement(DirPref::default());
        let mut seen = std::collections::BTreeMap::new();
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..100 {
            let choice = p.choose(Some(RegionNo(5)), averages(), |_| region(8000, 0));
            *seen.entry(choice.region.0).or_insert(0) += 1;
            *counts.entry(choice.counts_as as u32).or_insert(0) += 1;
        }
        // 32 MiB / (64 files of 16 KiB) = 32 in a row.
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(5, 32), (6, 32), (7, 32), (8, 4)]);
        let (near, past) = (Count::placed_near as u32, Count::placed_past as u32);
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(near, 32), (past, 68)]);
        p.note_file(RegionNo(5));
        assert_eq!(p.choose(Some(RegionNo(5)), averages(), |_| region(8000, 0)).region.0, 5);
    }

    #[test]
    fn full_regions_are_passed_over() {
        let p = placement(DirPref::default());
        let summary = |at: RegionNo| region(if at.0 < 9 { 10 } else { 8000 }, 1);
        assert_eq!(p.choose(Some(RegionNo(5)), averages(), summary).region.0, 9);
        // All have too many directories: the first with average room.
        let summary = |at: RegionNo| region(if at.0 < 9 { 10 } else { 8000 }, u32::MAX - 1);
        let choice = p.choose(Some(RegionNo(5)), averages(), summary);
        assert_eq!((choice.region.0, choice.counts_as), (9, Count::placed_backstop));
        // And with none anywhere, the parent's.
        let choice = p.choose(Some(RegionNo(5)), averages(), |_| Summary::FULL);
        assert_eq!((choice.region.0, choice.counts_as), (5, Count::placed_backstop));
    }

    fn reach(average_free: u64, average_inodes: u64, average_dirs: u64, dir_size: u64) -> Reach {
        Reach { count: 32, scan_max: 32, average_free, average_inodes, average_dirs, dir_size }
    }

    /// Worked by hand: 8 KiB blocks, groups of 8 MiB (1024 blocks) with 2048 inodes, newfs's 64 files of 16 KiB.
    #[test]
    fn limits_are_those_of_the_papers() {
        let usual = DirPref::default();
        let limits = |reach, numbers| Limits::new(1024, 2048, 8192, reach, numbers);
        // An empty volume: 8 MiB / 1 MiB = 8, 2048 / 64 = 32; 0 + 2048 / 16 = 128; 2000 - 2048 / 4, 1000 - 1024 / 4.
        let empty = reach(1000, 2000, 0, 0);
        let of_2001 = limits(empty, usual);
        assert_eq!(of_2001, Limits { dirs_max: 128, free_min: 744, inodes_min: 1488, contiguous_max: 8 });
        // 9.3: three quarters of the averages; 1000 blocks of 8 KiB hold seven directories of 1 MiB.
        let later = DirPref { rule: DirPrefRule::FreeBsd9, ..usual };
        let of_later = Limits { free_min: 750, inodes_min: 1500, contiguous_max: 7, ..of_2001 };
        assert_eq!(limits(empty, later), of_later);
        // More files are expected than there are inodes for; and nothing is expected at all.
        let many = DirPref { average_file_size: 1, average_files_per_dir: 1000, ..usual };
        assert_eq!(limits(empty, many).contiguous_max, 2);
        let none = DirPref { average_files_per_dir: 0, ..usual };
        assert_eq!(limits(empty, none).contiguous_max, 255);
        // Directories that take 4 MiB each at present; of half a group less than expected.
        assert_eq!(limits(reach(1000, 2000, 0, 4 << 20), usual).contiguous_max, 2);
        assert_eq!(limits(reach(1000, 2000, 0, 512 << 10), usual).contiguous_max, 8);
        // Larger than a group, as an option may have it.
        let huge = DirPref { average_file_size: 1 << 40, average_files_per_dir: 1 << 20, ..usual };
        assert_eq!(limits(empty, huge).contiguous_max, 1);
        // Full: Orlov takes any group then, 9.3 none.
        let full = reach(100, 500, 300, 1 << 20);
        let of_full = Limits { dirs_max: 300 + 128, free_min: 0, inodes_min: 0, contiguous_max: 8 };
        assert_eq!(limits(full, usual), of_full);
        assert_eq!(limits(reach(0, 0, 4000, 0), usual).dirs_max, 2048, "no more than inodes");
        let of_none = limits(reach(0, 0, 0, 0), later);
        assert_eq!((of_none.free_min, of_none.inodes_min, of_none.contiguous_max), (1, 1, 1));
    }

    /// 6,596 directories, those of the OpenBSD ports tree, each in the one made before, on an empty volume of such groups. Before any
    /// file, eight fit a group. With a file in each, as many do as may be in one group: 128 and the average, which grows to 6.
    #[test]
    fn a_skeleton_of_directories_spreads_and_one_with_files_does_not() {
        let mut geometry = placement(DirPref::default()).geometry;
        (geometry.block_bits, geometry.ag_bits, geometry.region_bits) = (13, 10, 10);
        (geometry.ag_count, geometry.block_count) = (991, 991 << 10);
        for (files, expected) in [(0, 825), (1, 51)] {
            let mut p = Placement::new(&geometry, PlacementPolicy::DirPref, DirPref::default(), 7);
            (p.table_inodes, p.region_inodes) = (Some(991 * 2048), 2048);
            let mut directories = vec![0_u32; 991];
            let mut parent = RegionNo(0);
            for made in 0..6596 {
                let averages = Averages {
                    free_blocks: 991 * 1000,
                    used_blocks: 991 * 24,
                    used_inodes: 0,
                    directories: made,
                    high_water: 991,
                };
                let summary = |at: RegionNo| Summary {
                    free_blocks: 1000,
                    free_inodes: 2040,
                    directories: directories[at.0 as usize],
                };
                parent = p.choose(Some(parent), averages, summary).region;
                directories[parent.0 as usize] += 1;
                (0..files).for_each(|_| p.note_file(parent));
            }
            let groups = directories.iter().filter(|&&count| count > 0).count();
            assert_eq!(groups, expected, "{files} files a directory");
        }
    }

    #[test]
    fn numbers_change_what_comes_next() {
        let p = placement(DirPref::default());
        let made = |count: usize| {
            let chosen = (0..count).map(|_| p.choose(Some(RegionNo(5)), averages(), |_| region(8000, 0)).region.0);
            chosen.fold(std::collections::BTreeMap::new(), |mut seen, region| {
                *seen.entry(region).or_insert(0) += 1;
                seen
            })
        };
        assert_eq!(made(32).into_iter().collect::<Vec<_>>(), [(5, 32)]);
        p.set_policy(PlacementPolicy::DirPref, DirPref { average_file_size: 8192, ..DirPref::default() });
        assert_eq!(made(32).into_iter().collect::<Vec<_>>(), [(5, 32)], "64 of half the size fit");
        p.set_policy(PlacementPolicy::Rotor, DirPref::default());
        assert_eq!(made(1).into_iter().collect::<Vec<_>>(), [(0, 1)]);
    }
}
