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
            (DirPref::New, Some(parent)) => self.near(parent, count, average_free, average_dirs, &mut summary),
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
        summary: &mut impl FnMut(RegionNo) -> Summary,
    ) -> RegionNo {
        let blocks = u64::from(self.geometry.region_blocks());
        let block_size = self.geometry.block_size() as u64;
        let inodes = blocks * u64::from(self.geometry.slots_per_block() - 1) / 8;
        let dirs_max = (average_dirs + inodes / 16).min(inodes);
        let free_min = average_free.saturating_sub(blocks / 4);
        let used = blocks.saturating_sub(average_free) * block_size;
        let dir_size = (AVERAGE_FILE_SIZE * AVERAGE_FILES_PER_DIR).max(used.checked_div(average_dirs).unwrap_or(0));
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

    fn placement(policy: DirPref) -> Placement {
        let geometry = Geometry {
            block_bits: 12,
            ag_bits: 15,
            region_bits: 13,
            ag_count: 4,
            block_count: 1 << 17,
            chunk_blocks: 8,
            has_checksums: false,
        };
        Placement::new(&geometry, policy, 7)
    }

    fn averages() -> Averages {
        Averages { free_blocks: 16 * 8000, directories: 0, high_water: 4 }
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
}
