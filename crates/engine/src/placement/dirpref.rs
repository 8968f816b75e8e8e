//! `dirpref`: a directory near its parent, by Orlov's rule.
//!
//! First-level directories, whose parent is the root, are spread: from a random region on, the one with the fewest directories
//! among those with at least average free space. Any other directory goes into its parent's region, or the next one on that has
//! neither too many directories nor too little free space nor too many directories made in a row. If none is left, any region
//! with average free space will do.
//!
//! How much is too much has two forms ([`DirPrefRule`]): that of 2001, and that of FreeBSD 9.3. Two numbers say what a directory
//! is expected to need ([`DirPref`]): so many files of such a size. newfs has them as `-g` and `-h`.

use super::{Averages, Placement, Reach, SCAN_MAX, Summary, fewest};
use crate::types::{DirPref, DirPrefRule};
use myriad_format::{Geometry, RegionNo};
use std::sync::atomic::Ordering;

/// What a region may have for one more directory to be put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// Fewer directories than this.
    dirs_max: u64,
    /// At least as many free blocks.
    free_min: u64,
    /// Fewer directories made in a row than this.
    contiguous_max: u64,
}

impl Limits {
    fn new(geometry: &Geometry, reach: Reach, averages: Averages, numbers: DirPref) -> Self {
        let blocks = u64::from(geometry.region_blocks());
        let block_size = geometry.block_size() as u64;
        // What a region of FFS would have as a table: decision 0008.
        let inodes = blocks * u64::from(geometry.slots_per_block() - 1) / 8;
        // What a directory takes with its files at present, where that is more than expected.
        let present = (averages.used_blocks * block_size).checked_div(averages.directories).unwrap_or(0);
        // The option table's ranges keep the product below 2^61.
        let dir_size = (numbers.average_file_size * numbers.average_files_per_dir).max(present);
        let average_free = reach.average_free;
        let (free_min, room) = match numbers.rule {
            DirPrefRule::Orlov => (average_free.saturating_sub(blocks / 4), blocks),
            DirPrefRule::FreeBsd9 => ((average_free - average_free / 4).max(1), average_free),
        };
        // A directory that takes nothing: any number fits, as many as the counter counts.
        let fit = (room * block_size).checked_div(dir_size).unwrap_or(u64::MAX).min(255);
        // Without an expectation of files, there is none of inodes.
        let by_inodes = inodes.checked_div(numbers.average_files_per_dir).unwrap_or(u64::MAX);
        Self {
            dirs_max: (reach.average_dirs + inodes / 16).min(inodes),
            free_min,
            contiguous_max: fit.min(by_inodes).max(1),
        }
    }
}

impl Placement {
    pub(super) fn preferred(
        &self,
        parent: Option<RegionNo>,
        reach: Reach,
        averages: Averages,
        numbers: DirPref,
        summary: &mut impl FnMut(RegionNo) -> Summary,
    ) -> RegionNo {
        let Some(parent) = parent else {
            let start = (self.random() % u64::from(reach.count)) as u32;
            return fewest(start, SCAN_MAX, reach, summary).unwrap_or(RegionNo(start));
        };
        let limits = Limits::new(&self.geometry, reach, averages, numbers);
        // A parent may lie beyond reach if the volume's high-water mark was read before it was made.
        let parent = RegionNo(parent.0.min(reach.count - 1));
        let mut fallback = None;
        for i in 0..reach.count.min(SCAN_MAX) {
            let region = RegionNo((parent.0 + i) % reach.count);
            let now = summary(region);
            let free = u64::from(now.free_blocks);
            let contiguous = u64::from(self.contiguous[region.0 as usize].load(Ordering::Relaxed));
            if u64::from(now.directories) < limits.dirs_max
                && free >= limits.free_min
                && contiguous < limits.contiguous_max
            {
                return region;
            }
            if fallback.is_none() && free >= reach.average_free && free > 0 {
                fallback = Some(region);
            }
        }
        fallback.unwrap_or(parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namei;
    use crate::ops::{NewFile, Ops};
    use crate::types::{AllocateMode, Cred, MkfsOptions, Node, PlacementPolicy};
    use crate::volume::{Volume, testing};
    use myriad_device::MemoryDevice;
    use myriad_format::inode::{S_IFDIR, S_IFREG};
    use myriad_format::{AgBlock, Ino};
    use std::sync::Arc;

    fn placement(numbers: DirPref) -> Placement {
        let geometry = Geometry {
            block_bits: 12,
            ag_bits: 15,
            region_bits: 13,
            ag_count: 4,
            block_count: 1 << 17,
            chunk_blocks: 8,
            has_checksums: false,
            has_bitmap: false,
            table_every: 0,
            map: myriad_format::choices::Map::Extents,
        };
        Placement::new(&geometry, PlacementPolicy::DirPref, numbers, 7)
    }

    fn averages() -> Averages {
        Averages { free_blocks: 16 * 8000, used_blocks: 16 * 192, directories: 0, high_water: 4 }
    }

    #[test]
    fn children_stay_near_until_too_many_follow_each_other() {
        let p = placement(DirPref::default());
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..100 {
            let region = p.choose(Some(RegionNo(5)), averages(), |_| Summary { free_blocks: 8000, directories: 0 });
            *seen.entry(region.0).or_insert(0) += 1;
        }
        // 32 MiB / (64 files of 16 KiB) = 32 in a row.
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(5, 32), (6, 32), (7, 32), (8, 4)]);
        p.note_file(RegionNo(5));
        assert_eq!(p.choose(Some(RegionNo(5)), averages(), |_| Summary { free_blocks: 8000, directories: 0 }).0, 5);
    }

    #[test]
    fn full_regions_are_passed_over() {
        let p = placement(DirPref::default());
        let summary = |region: RegionNo| Summary { free_blocks: if region.0 < 9 { 10 } else { 8000 }, directories: 1 };
        assert_eq!(p.choose(Some(RegionNo(5)), averages(), summary).0, 9);
    }

    /// The numbers of the paper's worked example: groups of 8 MB with 2048 inodes on an empty volume.
    #[test]
    fn limits_are_those_of_the_papers() {
        // 2048 blocks of 4 KiB, 31 of them inodes each: an eighth would be 7936 inodes.
        let geometry = Geometry {
            block_bits: 12,
            ag_bits: 14,
            region_bits: 11,
            ag_count: 4,
            block_count: 1 << 16,
            chunk_blocks: 8,
            has_checksums: false,
            has_bitmap: false,
            table_every: 0,
            map: myriad_format::choices::Map::Extents,
        };
        let reach = Reach { count: 32, average_free: 2000, average_dirs: 3 };
        let empty = Averages { free_blocks: 32 * 2000, used_blocks: 0, directories: 0, high_water: 4 };
        let usual = DirPref::default();
        let limits = |averages, numbers| Limits::new(&geometry, reach, averages, numbers);
        let of_2001 = limits(empty, usual);
        assert_eq!(of_2001, Limits { dirs_max: 3 + 496, free_min: 2000 - 512, contiguous_max: 8 });
        let later = DirPref { rule: DirPrefRule::FreeBsd9, ..usual };
        // 2000 blocks of 4 KiB hold seven directories of 1 MiB.
        assert_eq!(limits(empty, later), Limits { free_min: 1500, contiguous_max: 7, ..of_2001 });
        // More files are expected than there are inodes for; and nothing is expected at all.
        let many = DirPref { average_file_size: 1, average_files_per_dir: 1000, ..usual };
        assert_eq!(limits(empty, many).contiguous_max, 7);
        let none = DirPref { average_files_per_dir: 0, ..usual };
        assert_eq!(limits(empty, none).contiguous_max, 255);
        // Directories that take 4 MiB each at present.
        let used = Averages { used_blocks: 10_240, directories: 10, ..empty };
        assert_eq!(limits(used, usual).contiguous_max, 2);
        // Larger than a region, as an option may have it.
        let huge = DirPref { average_file_size: 1 << 40, average_files_per_dir: 1 << 20, ..usual };
        assert_eq!(limits(empty, huge).contiguous_max, 1);
        let full = Reach { average_free: 0, ..reach };
        assert_eq!(Limits::new(&geometry, full, empty, later).free_min, 1, "a full region is none to choose");
    }

    #[test]
    fn numbers_change_what_comes_next() {
        let p = placement(DirPref::default());
        let made = |count: usize| {
            let summary = |_| Summary { free_blocks: 8000, directories: 0 };
            let chosen = (0..count).map(|_| p.choose(Some(RegionNo(5)), averages(), summary).0);
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

    /// A cylinder group of the papers.
    struct CylinderGroup {
        free: u64,
        directories: u64,
        contiguous: u64,
    }

    /// The rules of the papers as they stand there, for groups of `fpg` blocks and `ipg` inodes. Free inodes are free
    /// blocks (decision 0008).
    struct Papers {
        groups: Vec<CylinderGroup>,
        ipg: u64,
        fpg: u64,
        bsize: u64,
        /// Of all blocks, those that cannot be allocated.
        overhead: u64,
    }

    impl Papers {
        fn average(&self, of: impl Fn(&CylinderGroup) -> u64) -> u64 {
            self.groups.iter().map(of).sum::<u64>() / self.groups.len() as u64
        }

        fn scan(&self, from: usize) -> impl Iterator<Item = usize> + use<> {
            (from..self.groups.len()).chain(0..from)
        }

        /// Of the groups with at least the average of free inodes and blocks, the one with the fewest directories.
        fn fewest(&self, from: usize) -> usize {
            let average = self.average(|group| group.free);
            let eligible = self.scan(from).filter(|&i| self.groups[i].free >= average);
            eligible.min_by_key(|&i| self.groups[i].directories).unwrap_or(from)
        }

        /// Orlov's, for a directory whose parent is not the root.
        fn near(&self, parent: usize, numbers: DirPref) -> usize {
            let (avgfilesize, avgfpdir) = (numbers.average_file_size, numbers.average_files_per_dir);
            let (avgbfree, avgndir) = (self.average(|group| group.free), self.average(|group| group.directories));
            let maxndir = (avgndir + self.ipg / 16).min(self.ipg);
            let cgsize = self.fpg * self.bsize;
            // Without the rounding of two averages.
            let sum = |of: fn(&CylinderGroup) -> u64| self.groups.iter().map(of).sum::<u64>();
            let all = self.fpg * self.groups.len() as u64 - self.overhead;
            let curdirsize = (all - sum(|group| group.free)) * self.bsize / sum(|group| group.directories);
            let dirsize = curdirsize.max(avgfilesize * avgfpdir);
            let (minbfree, maxcontigdirs) = match numbers.rule {
                DirPrefRule::Orlov => (avgbfree.saturating_sub(self.fpg / 4), (cgsize / dirsize).min(255)),
                DirPrefRule::FreeBsd9 => ((avgbfree - avgbfree / 4).max(1), (avgbfree * self.bsize / dirsize).min(255)),
            };
            let maxcontigdirs = maxcontigdirs.min(self.ipg.checked_div(avgfpdir).unwrap_or(u64::MAX));
            let maxcontigdirs = maxcontigdirs.max(1);
            let fits = |i: &usize| {
                let group = &self.groups[*i];
                group.directories < maxndir && group.free >= minbfree && group.contiguous < maxcontigdirs
            };
            let backstop = |i: &usize| self.groups[*i].free >= avgbfree;
            self.scan(parent).find(fits).or_else(|| self.scan(parent).find(backstop)).unwrap()
        }
    }

    #[derive(Clone, Copy, Debug)]
    struct Load {
        /// Percent of what is made in the root.
        in_root: u64,
        /// Percent of directories, among files.
        directories: u64,
        /// Bytes of a file, at most.
        bytes: u64,
        /// The first directories, the root among them, in which everything is made.
        parents: usize,
    }

    /// What the volume says of its regions now.
    fn look(volume: &Volume, papers: &mut Papers) {
        let geometry = &volume.geometry;
        let mut txn = crate::order::Txn::enter(volume);
        for (i, group) in papers.groups.iter_mut().enumerate() {
            let ag = geometry.ag_of_region(RegionNo(i as u32));
            let at = (i as u32 % geometry.regions_per_ag()) << geometry.region_bits;
            let (free, directories) =
                volume.with_group(&mut txn, ag, |space, _| Ok(space.region(AgBlock(at)))).unwrap();
            (group.free, group.directories) = (u64::from(free), u64::from(directories));
        }
        txn.finish(Ok(())).unwrap();
    }

    /// Directories and files in random order, on a volume all of which is in use: each directory lies where the papers put it.
    #[test]
    fn directories_lie_where_the_papers_put_them() {
        let mixed = Load { in_root: 15, directories: 40, bytes: 100 << 10, parents: usize::MAX };
        // So many in one region, with files between them, that it has more than its share of directories.
        let crowded = Load { in_root: 1, directories: 30, bytes: 0, parents: 2 };
        // Directories larger than expected.
        let large = Load { in_root: 15, directories: 3, bytes: 100 << 10, parents: usize::MAX };
        let usual = DirPref::default();
        let later = DirPref { rule: DirPrefRule::FreeBsd9, ..usual };
        let small = DirPref { average_file_size: 1024, average_files_per_dir: 16, ..usual };
        let no_files = DirPref { average_files_per_dir: 0, ..usual };
        let many = DirPref { average_file_size: 100, average_files_per_dir: 2000, ..later };
        let orlov = PlacementPolicy::DirPref;
        let runs = [
            (orlov, usual, mixed),
            (orlov, usual, crowded),
            (orlov, usual, large),
            (PlacementPolicy::Rotor, usual, mixed),
            (PlacementPolicy::Rotor, usual, crowded),
            (orlov, later, mixed),
            (orlov, later, large),
            (orlov, small, mixed),
            (orlov, no_files, mixed),
            (orlov, many, mixed),
        ];
        for (seed, (policy, numbers, load)) in (1..).zip(runs) {
            let mut rng = myriad_sim::rng::Rng::new(seed);
            let device = Arc::new(MemoryDevice::new(192 << 20));
            let size = MkfsOptions { ag_size: Some(64 << 20), region_size: 4 << 20, ..MkfsOptions::default() };
            crate::mkfs::format(device.clone(), None, &size).unwrap();
            let mut volume = testing::open(device);
            let cred = Cred::root();
            let root = namei::root(&volume.look()).unwrap();
            let make = |volume: &Volume, parent: Node, name: &str, mode: u16| {
                let ops = Ops { volume, cred: &cred, caller: &cred };
                ops.make(parent, name.as_bytes(), &NewFile { mode, ..NewFile::default() }).unwrap().node()
            };
            for i in 0.. {
                make(&volume, root, &format!("first {i}"), S_IFDIR | 0o755);
                if volume.high_water() == volume.geometry.ag_count {
                    break;
                }
            }
            // What was counted in memory goes, and the dice are thrown as the volume will.
            volume.placement = Placement::new(&volume.geometry, policy, numbers, seed);
            let dice = Placement::new(&volume.geometry, policy, numbers, seed);

            let region_of = |node: Node| volume.geometry.region_of(volume.block_of(Ino(node.ino))).0 as usize;
            let regions = volume.geometry.region_count() as usize;
            let mut papers = Papers {
                groups: (0..regions).map(|_| CylinderGroup { free: 0, directories: 0, contiguous: 0 }).collect(),
                ipg: 1024 * 31 / 8,
                fpg: 1024,
                bsize: 4096,
                overhead: volume.geometry.block_count - volume.usable_blocks,
            };
            let mut directories = vec![root];
            let (mut first, mut moved) = (0, 0);
            for step in 0..3000_u32 {
                look(&volume, &mut papers);
                if papers.average(|group| group.free) <= papers.fpg / 4 {
                    // From here on a full group is good enough for Orlov's rule, and the allocator goes to another.
                    break;
                }
                let parent = if rng.percent(load.in_root) {
                    root
                } else {
                    directories[rng.index(directories.len().min(load.parents))]
                };
                let near = region_of(parent);
                if rng.percent(load.directories) {
                    let expected = match (policy, parent == root) {
                        (PlacementPolicy::Rotor, _) => papers.fewest(0),
                        (PlacementPolicy::DirPref, true) => papers.fewest((dice.random() % regions as u64) as usize),
                        (PlacementPolicy::DirPref, false) => papers.near(near, numbers),
                    };
                    papers.groups[expected].contiguous += 1;
                    let made = make(&volume, parent, &step.to_string(), S_IFDIR | 0o755);
                    let found = region_of(made);
                    assert_eq!(
                        found, expected,
                        "{policy:?}, {numbers:?}, seed {seed}, step {step}: its parent is in {near}"
                    );
                    first += usize::from(parent == root);
                    moved += usize::from(parent != root && found != near);
                    directories.push(made);
                } else {
                    let node = make(&volume, parent, &step.to_string(), S_IFREG | 0o644);
                    if load.bytes > 0 {
                        let file = volume.files.open(Ino(node.ino), node.generation());
                        let length = 1 + rng.below(load.bytes);
                        crate::file::allocate(&volume, &cred, &file, AllocateMode::Extend, 0, length).unwrap();
                    }
                    let group = &mut papers.groups[near];
                    group.contiguous = group.contiguous.saturating_sub(1);
                }
                if step % 100 == 0 {
                    volume.commit_now().unwrap();
                }
            }
            println!(
                "{policy:?}, {numbers:?}, {load:?}: of {} directories, {first} in the root, {moved} not in the region of theirs",
                directories.len()
            );
        }
    }
}
