//! Near what directories, inodes and data lie (seam "placement"): the policies, one file each, over placement regions.
//!
//! ```text
//! dirpref  a new directory near its parent, by Orlov's rule (dirpref=new)
//! old      in the region with the fewest directories, as FFS had it before Orlov (dirpref=old)
//! rotor    in the next allocation group in turn, as XFS has it
//! data     blocks of files: after what they follow; sections of FFS
//! ```
//!
//! In the papers the first two choose among cylinder groups. On a volume with inode tables each allocation group is one region, and plays
//! the cylinder group: the rules are those of the papers to the letter, but that a group may be chosen only once those before it are in
//! use, and that with fragments all free ones count, where FFS counts blocks that are free as a whole. On other volumes a *region* plays the cylinder group; docs/decisions/0008-placement-regions.md argues why, and lists the
//! differences that dynamic inodes and large volumes ask for. There inodes take blocks, so the rules on free inodes fall together with
//! those on free blocks.
//!
//! The policy and its numbers may change while the volume is open ([`Placement::set_policy`]): the next directory goes by the new
//! ones. What a region has is not forgotten then: `contiguous` is counted under any policy.
//!
//! The policies are pure: summaries in, preference out. They do no I/O, and hold no lock while they ask for a summary. `goals` is
//! what operations ask, and reads the summaries for them. No other file of the engine decides near what something is to lie.

mod data;
mod dirpref;
mod goals;
mod old;
mod rotor;
#[cfg(test)]
mod trace;

pub(crate) use data::data;
pub(crate) use goals::{beside, directory, inode};

use crate::counters::Count;
use crate::locks::{Rank, RwLock};
use crate::types::{DirPref, DirPrefVersion, PlacementPolicy};
use myriad_format::superblock::{Superblock, placement as code};
use myriad_format::{AgNo, Geometry, RegionNo};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Where the new directories of a volume go unless an option says so: as mkfs noted.
pub(crate) fn usual_policy(superblock: &Superblock) -> PlacementPolicy {
    if superblock.placement == code::SPREAD { PlacementPolicy::Rotor } else { PlacementPolicy::DirPref }
}

/// Regions that a search looks at in any case. Their groups' headers fit the cache beside what else an operation reads.
const SCAN_MAX: u32 = 256;
/// Untouched groups beyond those in use that a search may open up.
const FRESH_GROUPS: u32 = 2;

/// What the policies read of a region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    pub free_blocks: u32,
    /// Where inodes are made of blocks: more than any rule asks for.
    pub free_inodes: u32,
    pub directories: u32,
}

impl Summary {
    /// A region that no rule chooses.
    const FULL: Self = Self { free_blocks: 0, free_inodes: 0, directories: u32::MAX };
}

/// What the policies read of the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Averages {
    pub free_blocks: u64,
    /// In use by files, directories and what describes them.
    pub used_blocks: u64,
    pub used_inodes: u64,
    pub directories: u64,
    /// Groups in use.
    pub high_water: u32,
}

/// Regions that a search may reach, and what they have on average.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Regions 0 to `count` may be chosen.
    count: u32,
    /// Most of them that a search looks at, where its rule may stop before it has seen all.
    scan_max: u32,
    /// Free blocks and inodes of a region of the whole volume. Where inodes are made of blocks, `average_inodes` is 0.
    average_free: u64,
    average_inodes: u64,
    average_dirs: u64,
    /// Bytes that a directory takes with its files at present.
    dir_size: u64,
}

/// Where a new directory goes, and by which part of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub region: RegionNo,
    pub counts_as: Count,
}

pub(crate) struct Placement {
    geometry: Geometry,
    policy: RwLock<{ Rank::Leaf as u8 }, (PlacementPolicy, DirPref)>,
    random: AtomicU64,
    /// The group in which `rotor` puts the next directory.
    rotor: AtomicU32,
    /// Inodes in the tables of all groups; `None`: inodes are made of blocks.
    table_inodes: Option<u64>,
    /// Inodes for which a region has room.
    region_inodes: u64,
    /// Directories made in a region without files in between, as Orlov's `contigdirs`; in memory only.
    contiguous: Box<[AtomicU8]>,
}

impl Placement {
    pub fn new(geometry: &Geometry, policy: PlacementPolicy, dirpref: DirPref, seed: u64) -> Self {
        let regions = geometry.region_count() as usize;
        let (table_inodes, region_inodes) = if geometry.has_table() {
            let last = AgNo(geometry.ag_count - 1);
            let others = u64::from(last.0) * u64::from(geometry.table_inodes(AgNo(0)));
            (Some(others + u64::from(geometry.table_inodes(last))), u64::from(geometry.table_inodes(AgNo(0))))
        } else {
            // What a region of FFS would have as a table: decision 0008.
            (None, u64::from(geometry.region_blocks()) * u64::from(geometry.slots_per_block() - 1) / 8)
        };
        Self {
            geometry: *geometry,
            table_inodes,
            region_inodes,
            policy: RwLock::new((policy, dirpref)),
            random: AtomicU64::new(seed | 1),
            rotor: AtomicU32::new(0),
            contiguous: (0..regions).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// Directories go by these from now on.
    pub fn set_policy(&self, policy: PlacementPolicy, dirpref: DirPref) {
        *self.policy.write() = (policy, dirpref);
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
    ) -> Choice {
        let (policy, numbers) = *self.policy.read();
        let chosen = match (policy, numbers.version) {
            (PlacementPolicy::Rotor, _) => self.in_turn(averages.high_water, &mut summary),
            (PlacementPolicy::DirPref, DirPrefVersion::Old) => self.fewest_of_all(self.reach(averages), &mut summary),
            (PlacementPolicy::DirPref, DirPrefVersion::New) => {
                self.preferred(parent, self.reach(averages), numbers, &mut summary)
            }
        };
        // It saturates.
        let _ = self.contiguous[chosen.region.0 as usize]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
        chosen
    }

    fn reach(&self, averages: Averages) -> Reach {
        let geometry = &self.geometry;
        let all = geometry.region_count().max(1);
        let groups = averages.high_water.saturating_add(FRESH_GROUPS).min(geometry.ag_count);
        let count = (groups * geometry.regions_per_ag()).clamp(1, all);
        let average_free = averages.free_blocks / u64::from(all);
        let block_size = geometry.block_size() as u64;
        let (average_dirs, dir_size, scan_max) = if self.table_inodes.is_some() {
            let average_dirs = averages.directories / u64::from(all);
            let used = u64::from(geometry.region_blocks()).saturating_sub(average_free) * block_size;
            (average_dirs, used.checked_div(average_dirs), u32::MAX)
        } else {
            let used = averages.used_blocks * block_size;
            (averages.directories / u64::from(count), used.checked_div(averages.directories), SCAN_MAX)
        };
        Reach {
            count,
            scan_max,
            average_free,
            average_inodes: self.table_inodes.unwrap_or(0).saturating_sub(averages.used_inodes) / u64::from(all),
            average_dirs,
            dir_size: dir_size.unwrap_or(0),
        }
    }
}

/// Among regions with at least average free space, the one with the fewest directories, first in the order of the scan, which
/// begins at `start`. Once it has found one, it looks at `scan_max` regions and no more.
fn fewest(start: u32, scan_max: u32, reach: Reach, summary: &mut impl FnMut(RegionNo) -> Summary) -> Option<RegionNo> {
    let mut best: Option<(u32, RegionNo)> = None;
    for i in 0..reach.count {
        if best.is_some() && i >= scan_max {
            break;
        }
        let region = RegionNo((start + i) % reach.count);
        let now = summary(region);
        let is_eligible =
            u64::from(now.free_blocks) >= reach.average_free && u64::from(now.free_inodes) >= reach.average_inodes;
        if is_eligible && best.is_none_or(|(fewest, _)| now.directories < fewest) {
            best = Some((now.directories, region));
            if now.directories == 0 {
                break;
            }
        }
    }
    best.map(|(_, region)| region)
}

#[cfg(test)]
mod testing {
    use myriad_format::Geometry;

    /// Groups of 128 MiB, each of four regions, without tables of inodes.
    pub fn geometry(ag_count: u32) -> Geometry {
        Geometry {
            block_bits: 12,
            ag_bits: 15,
            region_bits: 13,
            ag_count,
            block_count: u64::from(ag_count) << 15,
            chunk_blocks: 8,
            has_checksums: false,
            bodies_follow: true,
            has_bitmap: false,
            table_every: 0,
            map: myriad_format::choices::Map::Extents,
            fragment_bits: 0,
        }
    }
}
