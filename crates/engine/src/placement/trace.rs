//! The rules of the papers, written down a second time and held against what a volume does.

use super::Placement;
use crate::namei;
use crate::ops::{NewFile, Ops};
use crate::types::{AllocateMode, Cred, DirPref, DirPrefRule, DirPrefVersion, MkfsOptions, Node, PlacementPolicy};
use crate::volume::{Volume, testing};
use myriad_device::MemoryDevice;
use myriad_format::choices::Profile;
use myriad_format::inode::{S_IFDIR, S_IFREG};
use myriad_format::{AgBlock, AgNo, Ino, RegionNo};
use std::sync::Arc;

/// A cylinder group of the papers.
#[derive(Default)]
struct CylinderGroup {
    free: u64,
    /// On a volume with tables of inodes; elsewhere 0.
    inodes: u64,
    directories: u64,
    contiguous: u64,
}

/// The rules of the papers as they stand there, for groups of `fpg` blocks and `ipg` inodes.
struct Papers {
    groups: Vec<CylinderGroup>,
    ipg: u64,
    fpg: u64,
    bsize: u64,
    /// Whether there are tables of inodes. Else free inodes are free blocks (decision 0008).
    has_tables: bool,
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

    /// Orlov's, for a child of the root: of the groups with at least the average of free inodes and blocks, the one with the
    /// fewest directories.
    fn first_level(&self, from: usize) -> usize {
        let (avgbfree, avgifree) = (self.average(|group| group.free), self.average(|group| group.inodes));
        let fits = |&i: &usize| self.groups[i].free >= avgbfree && self.groups[i].inodes >= avgifree;
        self.scan(from).filter(fits).min_by_key(|&i| self.groups[i].directories).unwrap_or(from)
    }

    /// The one before Orlov: it asks for free inodes only.
    fn old(&self) -> usize {
        if !self.has_tables {
            return self.first_level(0);
        }
        let avgifree = self.average(|group| group.inodes);
        let fits = |&i: &usize| self.groups[i].inodes >= avgifree;
        self.scan(0).filter(fits).min_by_key(|&i| self.groups[i].directories).unwrap()
    }

    /// Orlov's, for a directory whose parent is not the root.
    fn near(&self, parent: usize, numbers: DirPref) -> usize {
        let (avgfilesize, avgfpdir) = (numbers.average_file_size, numbers.average_files_per_dir);
        let (avgbfree, avgndir) = (self.average(|group| group.free), self.average(|group| group.directories));
        let maxndir = (avgndir + self.ipg / 16).min(self.ipg);
        let cgsize = self.fpg * self.bsize;
        let curdirsize = if self.has_tables {
            (cgsize - avgbfree * self.bsize).checked_div(avgndir).unwrap_or(0)
        } else {
            // Without the rounding of two averages.
            let sum = |of: fn(&CylinderGroup) -> u64| self.groups.iter().map(of).sum::<u64>();
            let all = self.fpg * self.groups.len() as u64 - self.overhead;
            (all - sum(|group| group.free)) * self.bsize / sum(|group| group.directories)
        };
        let dirsize = curdirsize.max(avgfilesize * avgfpdir);
        let avgifree = self.average(|group| group.inodes);
        let minifree = match (self.has_tables, numbers.rule) {
            (false, _) => 0,
            (true, DirPrefRule::Orlov) => avgifree.saturating_sub(self.ipg / 4),
            (true, DirPrefRule::FreeBsd9) => (avgifree - avgifree / 4).max(1),
        };
        let (minbfree, maxcontigdirs) = match numbers.rule {
            DirPrefRule::Orlov => (avgbfree.saturating_sub(self.fpg / 4), (cgsize / dirsize).min(255)),
            DirPrefRule::FreeBsd9 => ((avgbfree - avgbfree / 4).max(1), (avgbfree * self.bsize / dirsize).min(255)),
        };
        let maxcontigdirs = maxcontigdirs.min(self.ipg.checked_div(avgfpdir).unwrap_or(u64::MAX));
        let maxcontigdirs = maxcontigdirs.max(1);
        let fits = |i: &usize| {
            let group = &self.groups[*i];
            group.directories < maxndir
                && group.free >= minbfree
                && group.inodes >= minifree
                && group.contiguous < maxcontigdirs
        };
        let backstop = |i: &usize| {
            if self.has_tables { self.groups[*i].inodes >= avgifree } else { self.groups[*i].free >= avgbfree }
        };
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
        let (blocks, used) =
            volume.with_group(&mut txn, ag, |space, _| Ok((space.region(AgBlock(at)), space.inodes_used()))).unwrap();
        (group.free, group.directories) = (u64::from(blocks.0), u64::from(blocks.1));
        group.inodes = if papers.has_tables { u64::from(geometry.table_inodes(ag) - used) } else { 0 };
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
    let new = DirPref::default();
    let old = DirPref { version: DirPrefVersion::Old, ..new };
    let later = DirPref { rule: DirPrefRule::FreeBsd9, ..new };
    let small = DirPref { average_file_size: 1024, average_files_per_dir: 16, ..new };
    let no_files = DirPref { average_files_per_dir: 0, ..new };
    let many = DirPref { average_file_size: 100, average_files_per_dir: 2000, ..later };
    let runs = [
        (new, mixed),
        (new, crowded),
        (new, large),
        (old, mixed),
        (old, crowded),
        (later, mixed),
        (later, large),
        (small, mixed),
        (no_files, mixed),
        (many, mixed),
    ];
    for (seed, (numbers, load)) in (1..).zip(runs) {
        for profile in ["myriad", "ffs"] {
            follow(profile, numbers, load, seed);
        }
    }
}

fn follow(profile: &str, numbers: DirPref, load: Load, seed: u64) {
    let mut rng = myriad_sim::rng::Rng::new(seed);
    let device = Arc::new(MemoryDevice::new(192 << 20));
    let mut size = MkfsOptions { ag_size: Some(64 << 20), region_size: 4 << 20, ..MkfsOptions::default() };
    let has_tables = profile == "ffs";
    if has_tables {
        // Groups of the size that regions have there, and so few inodes that they decide, too.
        size.choices = Profile::parse(profile).unwrap().choices;
        (size.ag_size, size.bytes_per_inode, size.log_size) = (Some(4 << 20), 8 << 10, Some(1 << 20));
    }
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
    volume.placement = Placement::new(&volume.geometry, PlacementPolicy::DirPref, numbers, seed);
    let dice = Placement::new(&volume.geometry, PlacementPolicy::DirPref, numbers, seed);

    let geometry = volume.geometry;
    let region_of = |node: Node| geometry.region_of(geometry.locate(Ino(node.ino)).unwrap().0).0 as usize;
    let regions = geometry.region_count() as usize;
    let mut papers = Papers {
        groups: (0..regions).map(|_| CylinderGroup::default()).collect(),
        ipg: if has_tables { geometry.table_inodes(AgNo(0)).into() } else { 1024 * 31 / 8 },
        fpg: 1024,
        bsize: 4096,
        has_tables,
        overhead: geometry.block_count - volume.usable_blocks,
    };
    let mut directories = vec![root];
    let (mut first, mut moved) = (0, 0);
    for step in 0..3000_u32 {
        look(&volume, &mut papers);
        if papers.average(|group| group.free) <= papers.fpg / 4
            || has_tables && papers.average(|group| group.inodes) <= papers.ipg / 4
        {
            // From here on a full group is good enough for Orlov's rule, and the allocator goes to another.
            break;
        }
        let parent =
            if rng.percent(load.in_root) { root } else { directories[rng.index(directories.len().min(load.parents))] };
        let near = region_of(parent);
        if rng.percent(load.directories) {
            let expected = match (numbers.version, parent == root) {
                (DirPrefVersion::Old, _) => papers.old(),
                (DirPrefVersion::New, true) => papers.first_level((dice.random() % regions as u64) as usize),
                (DirPrefVersion::New, false) => papers.near(near, numbers),
            };
            papers.groups[expected].contiguous += 1;
            let made = make(&volume, parent, &step.to_string(), S_IFDIR | 0o755);
            let found = region_of(made);
            assert_eq!(found, expected, "{profile}, {numbers:?}, seed {seed}, step {step}: its parent is in {near}");
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
    let count = |name| volume.counters.snapshot().into_iter().find(|(found, _)| *found == name).unwrap().1 as usize;
    if numbers.version == DirPrefVersion::New {
        // The backstop may be the parent's region.
        let (past, backstop) = (count("placed_past"), count("placed_backstop"));
        assert!((past..=past + backstop).contains(&moved), "{profile}, {numbers:?}: {past}, {backstop}, {moved}");
    }
    println!(
        "{profile}, {numbers:?}, {load:?}: of {} directories, {first} in the root, {moved} not in the region of theirs",
        directories.len()
    );
}

/// XFS: one group after the other, wherever the parent is.
#[test]
fn rotor_takes_the_groups_in_turn() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let options = MkfsOptions { ag_size: Some(8 << 20), region_size: 1 << 20, ..MkfsOptions::default() };
    crate::mkfs::format(device.clone(), None, &options).unwrap();
    let mut volume = testing::open(device);
    volume.placement = Placement::new(&volume.geometry, PlacementPolicy::Rotor, DirPref::default(), 1);
    let ops = Ops { volume: &volume, cred: &Cred::root(), caller: &Cred::root() };
    let mut parent = namei::root(&volume.look()).unwrap();
    for i in 0..24_u32 {
        let new = NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() };
        let made = ops.make(parent, i.to_string().as_bytes(), &new).unwrap().node();
        assert_eq!(volume.geometry.ag_of(volume.block_of(Ino(made.ino))), AgNo(i % 8));
        if i % 3 == 0 {
            parent = made;
        }
    }
}
