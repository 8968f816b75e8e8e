//! Where new directories go (seam "placement"): the policies, one file each, over placement regions.
//!
//! `dirpref` is Orlov's rule, which keeps a directory near its parent; `rotor` is what FFS did before it, which spreads
//! directories over the volume. Both choose among cylinder groups in the papers. Here a *region* plays the cylinder group;
//! docs/decisions/0008-placement-regions.md argues why, and lists the differences that dynamic inodes and large volumes ask for.
//! Inodes take blocks, so the rules on free inodes fall together with those on free blocks. A search looks at `SCAN_MAX` regions
//! at most if it can, and only at groups in use and the next few: a volume of 16 TiB has half a million regions.
//!
//! The policy and its numbers may change while the volume is open ([`Placement::set_policy`]): the next directory goes by the new
//! ones. What a region has is not forgotten then: `contiguous` is counted under either policy.
//!
//! The policies are pure: summaries in, preference out. They do no I/O, and hold no lock while they ask for a summary. `goals` is
//! what operations ask, and reads the summaries for them. No other file of the engine decides near what something is to lie.

mod dirpref;
mod goals;
mod rotor;

pub(crate) use goals::{data, directory, inode};

use crate::locks::{Rank, RwLock};
use crate::types::{DirPref, PlacementPolicy};
use myriad_format::superblock::{Superblock, placement as code};
use myriad_format::{Geometry, RegionNo};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Where the new directories of a volume go unless an option says so: as mkfs noted.
pub(crate) fn usual_policy(superblock: &Superblock) -> PlacementPolicy {
    if superblock.placement == code::SPREAD { PlacementPolicy::Rotor } else { PlacementPolicy::DirPref }
}

/// Regions looked at before a search takes the best so far.
const SCAN_MAX: u32 = 256;
/// Untouched groups beyond those in use that a search may open up.
const FRESH_GROUPS: u32 = 2;

/// What the policies read of a region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    pub free_blocks: u32,
    pub directories: u32,
}

/// What the policies read of the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Averages {
    pub free_blocks: u64,
    /// In use by files, directories and what describes them.
    pub used_blocks: u64,
    pub directories: u64,
    /// Groups in use.
    pub high_water: u32,
}

/// Regions that a search may reach, and what they have on average.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Regions 0 to `count` may be chosen.
    count: u32,
    /// Free blocks of a region of the whole volume.
    average_free: u64,
    /// Directories of a region within reach.
    average_dirs: u64,
}

pub(crate) struct Placement {
    geometry: Geometry,
    policy: RwLock<{ Rank::Leaf as u8 }, (PlacementPolicy, DirPref)>,
    random: AtomicU64,
    /// Where `rotor` begins on a volume that is too large to look at as a whole.
    rotor: AtomicU32,
    /// Directories made in a region without files in between, as Orlov's `contigdirs`; in memory only.
    contiguous: Box<[AtomicU8]>,
}

impl Placement {
    pub fn new(geometry: &Geometry, policy: PlacementPolicy, dirpref: DirPref, seed: u64) -> Self {
        let regions = geometry.region_count() as usize;
        Self {
            geometry: *geometry,
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
    ) -> RegionNo {
        let (policy, numbers) = *self.policy.read();
        let groups = averages.high_water.saturating_add(FRESH_GROUPS).min(self.geometry.ag_count);
        let count = (groups * self.geometry.regions_per_ag()).min(self.geometry.region_count()).max(1);
        let reach = Reach {
            count,
            average_free: averages.free_blocks / u64::from(self.geometry.region_count()).max(1),
            average_dirs: averages.directories / u64::from(count),
        };
        let chosen = match policy {
            PlacementPolicy::Rotor => self.next_of_all(reach, &mut summary),
            PlacementPolicy::DirPref => self.preferred(parent, reach, averages, numbers, &mut summary),
        };
        assert!(chosen.0 < count, "a policy chooses within its reach");
        // It saturates.
        let _ =
            self.contiguous[chosen.0 as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
        chosen
    }
}

/// Among regions with at least average free space, the one with the fewest directories, first in the order of the scan, which
/// begins at `start`. Once it has found one, it looks at `SCAN_MAX` regions and no more; it looks at `most` in any case at most.
fn fewest(start: u32, most: u32, reach: Reach, summary: &mut impl FnMut(RegionNo) -> Summary) -> Option<RegionNo> {
    let mut best: Option<(u32, RegionNo)> = None;
    for i in 0..reach.count.min(most) {
        if best.is_some() && i >= SCAN_MAX {
            break;
        }
        let region = RegionNo((start + i) % reach.count);
        let now = summary(region);
        if u64::from(now.free_blocks) >= reach.average_free && best.is_none_or(|(fewest, _)| now.directories < fewest) {
            best = Some((now.directories, region));
            if now.directories == 0 {
                break;
            }
        }
    }
    best.map(|(_, region)| region)
}
