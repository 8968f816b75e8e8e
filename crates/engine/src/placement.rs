//! Where new directories go (seam "placement"): dirpref over placement regions.
//!
//! Orlov's rule of 2001 and its predecessor, with differences that dynamic inodes and large volumes ask for;
//! docs/decisions/0008-placement-regions.md argues them. A region plays the cylinder group. Inodes take blocks, so the
//! rules on free inodes fall together with those on free blocks. A search looks at `SCAN_MAX` regions at most, and only
//! at groups in use and the next few: a volume of 16 TiB has half a million regions.
//!
//! Pure policy: summaries in, preference out.

use crate::types::DirPref;
use myriad_format::{Geometry, RegionNo};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Regions looked at before a search takes the best so far.
const SCAN_MAX: u32 = 256;
/// Untouched groups beyond those in use that a search may open up.
const FRESH_GROUPS: u32 = 2;
/// Expected bytes of a file and files of a directory: newfs' defaults.
const AVERAGE_FILE_SIZE: u64 = 16384;
const AVERAGE_FILES_PER_DIR: u64 = 64;

/// What the policy reads of a region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    pub free_blocks: u32,
    pub directories: u32,
}

/// What the policy reads of the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Averages {
    pub free_blocks: u64,
    /// In use by files, directories and what describes them.
    pub used_blocks: u64,
    pub directories: u64,
    /// Groups in use.
    pub high_water: u32,
}

pub(crate) struct Placement {
    geometry: Geometry,
    policy: DirPref,
    random: AtomicU64,
    /// Directories made in a region without files in between, as Orlov's `contigdirs`; in memory only.
    contiguous: Box<[AtomicU8]>,
}

impl Placement {
    pub fn new(geometry: &Geometry, policy: DirPref, seed: u64) -> Self {
        let regions = geometry.region_count() as usize;
        Self {
            geometry: *geometry,
            policy,
            random: AtomicU64::new(seed | 1),
            contiguous: (0..regions).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    fn random(&self) -> u64 {
        // splitmix64
        let mut z = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Notes that a file was made in a region: directories may follow again.
    #[inline]
    pub fn note_file(&self, region: RegionNo) {
        if let Some(count) = self.contiguous.get(region.0 as usize)
            && count.load(Ordering::Relaxed) > 0
        {
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        }
    }

    /// The region for a new directory whose parent lies in `parent` (`None`: the root's child).
    pub fn choose(
        &self,
        parent: Option<RegionNo>,
        averages: Averages,
        mut summary: impl FnMut(RegionNo) -> Summary,
    ) -> RegionNo {
        let groups = (averages.high_water + FRESH_GROUPS).min(self.geometry.ag_count);
        let count = (groups * self.geometry.regions_per_ag()).min(self.geometry.region_count()).max(1);
        let all = u64::from(self.geometry.region_count()).max(1);
        let average_free = averages.free_blocks / all;
        let average_dirs = averages.directories / u64::from(count);
        let chosen = match (self.policy, parent) {
            (DirPref::Old, _) => self.fewest(0, count, average_free, &mut summary).unwrap_or(RegionNo(0)),
            (DirPref::New, None) => {
                let start = (self.random() % u64::from(count)) as u32;
                self.fewest(start, count, average_free, &mut summary).unwrap_or(RegionNo(start))
            }
            (DirPref::New, Some(parent)) => {
                // What a directory takes with its files at present, where that is more than expected.
                let used = averages.used_blocks * self.geometry.block_size() as u64;
                let dir_size = (AVERAGE_FILE_SIZE * AVERAGE_FILES_PER_DIR)
                    .max(used.checked_div(averages.directories).unwrap_or(0));
                self.near(parent, count, average_free, average_dirs, dir_size, &mut summary)
            }
        };
        let _ =
            self.contiguous[chosen.0 as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
        chosen
    }

    /// Among regions with at least average free space, the one with the fewest directories, first in scan order.
    fn fewest(
        &self,
        start: u32,
        count: u32,
        average_free: u64,
        summary: &mut impl FnMut(RegionNo) -> Summary,
    ) -> Option<RegionNo> {
        let mut best: Option<(u32, RegionNo)> = None;
        for i in 0..count.min(SCAN_MAX) {
            let region = RegionNo((start + i) % count);
            let now = summary(region);
            if u64::from(now.free_blocks) >= average_free && best.is_none_or(|(fewest, _)| now.directories < fewest) {
                best = Some((now.directories, region));
                if now.directories == 0 {
                    break;
                }
            }
        }
        best.map(|(_, region)| region)
    }

    /// Orlov: the parent's region, or the next one on that is neither too full nor has too many directories.
    fn near(
        &self,
        parent: RegionNo,
        count: u32,
        average_free: u64,
        average_dirs: u64,
        dir_size: u64,
        summary: &mut impl FnMut(RegionNo) -> Summary,
    ) -> RegionNo {
        let blocks = u64::from(self.geometry.region_blocks());
        let block_size = self.geometry.block_size() as u64;
        let inodes = blocks * u64::from(self.geometry.slots_per_block() - 1) / 8;
        let dirs_max = (average_dirs + inodes / 16).min(inodes);
        let free_min = average_free.saturating_sub(blocks / 4);
        let contiguous_max = (blocks * block_size / dir_size).min(255).min(inodes / AVERAGE_FILES_PER_DIR).max(1);
        let mut fallback = None;
        for i in 0..count.min(SCAN_MAX) {
            let region = RegionNo((parent.0.min(count - 1) + i) % count);
            let now = summary(region);
            let free = u64::from(now.free_blocks);
            let contiguous = self.contiguous[region.0 as usize].load(Ordering::Relaxed);
            if u64::from(now.directories) < dirs_max && free >= free_min && u64::from(contiguous) < contiguous_max {
                return region;
            }
            if fallback.is_none() && free >= average_free && free > 0 {
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
    use crate::types::{AllocateMode, Cred, MkfsOptions, Node};
    use crate::volume::{Volume, testing};
    use myriad_device::MemoryDevice;
    use myriad_format::inode::{S_IFDIR, S_IFREG};
    use myriad_format::{AgBlock, Ino};
    use std::sync::Arc;

    fn placement(policy: DirPref) -> Placement {
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
        Placement::new(&geometry, policy, 7)
    }

    fn averages() -> Averages {
        Averages { free_blocks: 16 * 8000, used_blocks: 16 * 192, directories: 0, high_water: 4 }
    }

    #[test]
    fn children_stay_near_until_too_many_follow_each_other() {
        let p = placement(DirPref::New);
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
        let p = placement(DirPref::New);
        let summary = |region: RegionNo| Summary { free_blocks: if region.0 < 9 { 10 } else { 8000 }, directories: 1 };
        assert_eq!(p.choose(Some(RegionNo(5)), averages(), summary).0, 9);
    }

    #[test]
    fn old_policy_takes_the_region_with_fewest_directories() {
        let p = placement(DirPref::Old);
        let summary = |region: RegionNo| Summary { free_blocks: 8000, directories: 20 - region.0 };
        assert_eq!(p.choose(Some(RegionNo(1)), averages(), summary).0, 15);
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
        fn near(&self, parent: usize) -> usize {
            let (avgbfree, avgndir) = (self.average(|group| group.free), self.average(|group| group.directories));
            let maxndir = (avgndir + self.ipg / 16).min(self.ipg);
            let minbfree = avgbfree.saturating_sub(self.fpg / 4);
            let cgsize = self.fpg * self.bsize;
            // Without the rounding of two averages.
            let sum = |of: fn(&CylinderGroup) -> u64| self.groups.iter().map(of).sum::<u64>();
            let all = self.fpg * self.groups.len() as u64 - self.overhead;
            let curdirsize = (all - sum(|group| group.free)) * self.bsize / sum(|group| group.directories);
            let dirsize = curdirsize.max(16384 * 64);
            let maxcontigdirs = (cgsize / dirsize).min(255).min(self.ipg / 64).max(1);
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
        let runs = [(DirPref::New, mixed), (DirPref::New, crowded), (DirPref::New, large), (DirPref::Old, mixed)];
        for (seed, (policy, load)) in (1..).zip(runs) {
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
            volume.placement = Placement::new(&volume.geometry, policy, seed);
            let dice = Placement::new(&volume.geometry, policy, seed);

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
                        (DirPref::Old, _) => papers.fewest(0),
                        (DirPref::New, true) => papers.fewest((dice.random() % regions as u64) as usize),
                        (DirPref::New, false) => papers.near(near),
                    };
                    papers.groups[expected].contiguous += 1;
                    let made = make(&volume, parent, &step.to_string(), S_IFDIR | 0o755);
                    let found = region_of(made);
                    assert_eq!(found, expected, "{policy:?}, seed {seed}, step {step}: its parent is in {near}");
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
                "{policy:?}, {load:?}: of {} directories, {first} in the root, {moved} not in the region of theirs",
                directories.len()
            );
        }
    }
}
