//! Near what the data of a file lies: its first blocks beside its inode, others after the blocks that they follow in the file. So who
//! writes a file piece by piece lengthens its last run, whatever was flushed in between.
//!
//! With `map=blockmap` a file is divided into *sections*, as FFS has them: as many blocks as one block of pointers leads to, and the
//! direct ones before. A section begins anew where the pointer is the first of its block, or follows a hole. Those that the direct
//! pointers and the first block of pointers lead to lie in the inode's group. A later one lies in the first group with at least
//! average free space, from the inode's group on, moved by one group a section. So a large file leaves room beside the small ones,
//! and fills no group.

use super::goals::{Summaries, beside};
use super::{FRESH_GROUPS, SCAN_MAX};
use crate::counters::Count;
use crate::error::Result;
use crate::map::{self, Mapping};
use crate::order::Txn;
use myriad_format::choices::Map;
use myriad_format::inode::RawInode;
use myriad_format::table::DIRECT;
use myriad_format::{AgBlock, AgNo, FileBlock, FsBlock, Geometry, Ino, RegionNo};
use std::sync::atomic::Ordering;

/// For `want` blocks of data from file block `at` on, which is a hole: near what they go, and how many of them. `last` is the run
/// that was mapped just before: the file block after it and the block after it.
pub(crate) fn data(
    txn: &mut Txn<'_>,
    ino: Ino,
    raw: &RawInode,
    at: FileBlock,
    want: u32,
    last: Option<(FileBlock, FsBlock)>,
) -> Result<(FsBlock, u32)> {
    let geometry = txn.volume().geometry;
    let section = match geometry.map {
        Map::Extents => None,
        Map::Blocks => Some(Section::of(&geometry, at)),
    };
    let want = section.map_or(want, |section| u64::from(want).min(section.end.0 - at.0) as u32);
    if section.is_none_or(|section| section.first != at)
        && let Some(next) = following(txn, ino, raw, at, last)?
    {
        return Ok((next, want));
    }
    let goal = match section.filter(|section| section.number > 0) {
        None => beside(txn.volume(), ino),
        Some(section) => far(txn, ino, section)?,
    };
    Ok((goal, want))
}

/// The block after the one that `at` follows in the file, if that is mapped.
fn following(
    txn: &mut Txn<'_>,
    ino: Ino,
    raw: &RawInode,
    at: FileBlock,
    last: Option<(FileBlock, FsBlock)>,
) -> Result<Option<FsBlock>> {
    if let Some((_, next)) = last.filter(|&(end, _)| end == at) {
        return Ok(Some(next));
    }
    if at.0 == 0 || !map::is_mapped(raw) {
        return Ok(None);
    }
    let before = FileBlock(at.0 - 1);
    Ok(match map::lookup(&mut &txn.look, raw, ino, before)? {
        Mapping::Mapped(extent) => Some(extent.start.offset_by(at.0 - extent.file_block.0)),
        Mapping::Hole { .. } => None,
    })
}

/// A section of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Section {
    /// The file blocks in which it begins and ends.
    first: FileBlock,
    end: FileBlock,
    /// How many groups after the inode's it begins to look for room; 0: in that group.
    number: u64,
}

impl Section {
    fn of(geometry: &Geometry, at: FileBlock) -> Self {
        let bits = geometry.fragment_bits;
        let (direct, each) = ((DIRECT as u64) << bits, (geometry.pointers_per_block() as u64) << bits);
        let Some(behind) = at.0.checked_sub(direct) else {
            return Self { first: FileBlock(0), end: FileBlock(direct), number: 0 };
        };
        let first = at.0 - behind % each;
        let number = if behind < each { 0 } else { at.0 / each };
        Self { first: FileBlock(first), end: FileBlock(first + each), number }
    }
}

/// Where a section begins that does not lie in the inode's group.
fn far(txn: &mut Txn<'_>, ino: Ino, section: Section) -> Result<FsBlock> {
    let volume = txn.volume();
    let geometry = volume.geometry;
    let own = beside(volume, ino);
    volume.counters.bump(Count::data_sections);
    let groups = u64::from(volume.high_water().saturating_add(FRESH_GROUPS).min(geometry.ag_count));
    let average = volume.totals.free_blocks.load(Ordering::Relaxed).max(0) as u64 / u64::from(geometry.ag_count);
    let mut summaries = Summaries::new(volume);
    for i in 0..groups.min(u64::from(SCAN_MAX)) {
        let ag = AgNo(((u64::from(geometry.ag_of(own).0) + section.number + i) % groups) as u32);
        // With inode tables, a group is one region.
        // In the middle of a flush: what cannot be asked of a group is no error.
        let Ok(summary) = summaries.of(txn, RegionNo(ag.0)) else { continue };
        if u64::from(summary.free_blocks) >= average {
            return Ok(geometry.fs_block(ag, AgBlock(geometry.first_data_block(ag))));
        }
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{AllocateMode, Cred, MkfsOptions, Node};
    use crate::volume::{Volume, testing};
    use myriad_device::MemoryDevice;
    use std::sync::Arc;

    fn volume(profile: &str) -> Volume {
        let mut options = MkfsOptions { ag_size: Some(1 << 20), block_size: 512, ..MkfsOptions::default() };
        if profile == "ffs" {
            options.choices = myriad_format::choices::Profile::parse(profile).unwrap().choices;
        }
        let device = Arc::new(MemoryDevice::new(16 << 20));
        crate::mkfs::format(device.clone(), None, &options).unwrap();
        testing::open(device)
    }

    /// The runs of a file: first file block, first block, length.
    fn runs(volume: &Volume, node: Node) -> Vec<(u64, u64, u64)> {
        let ino = Ino(node.ino);
        let raw = crate::inode::read_node(&volume.look(), node).unwrap();
        let (mut at, mut found) = (FileBlock(0), Vec::<(u64, u64, u64)>::new());
        while at.0 < raw.size.get().div_ceil(512) {
            at = match map::lookup(&mut &volume.look(), &raw, ino, at).unwrap() {
                Mapping::Hole { until } => until,
                Mapping::Mapped(extent) => {
                    match found.last_mut() {
                        Some(run) if run.0 + run.2 == extent.file_block.0 && run.1 + run.2 == extent.start.0 => {
                            run.2 += u64::from(extent.length);
                        }
                        _ => found.push((extent.file_block.0, extent.start.0, extent.length.into())),
                    }
                    extent.end()
                }
            };
        }
        found
    }

    fn write(volume: &Volume, node: Node, offset: u64, length: usize) {
        let file = volume.files.open(Ino(node.ino), node.generation());
        crate::file::write(volume, &Cred::root(), &file, &vec![7; length], offset, false, false).unwrap();
        crate::file::flush(volume, &file).unwrap();
    }

    fn make(volume: &Volume, name: &[u8]) -> Node {
        let file = testing::new_file(volume, name);
        file.node()
    }

    /// 62 pointers are a block of 512 bytes: sections of 62 blocks behind the first 12.
    #[test]
    fn sections_lie_as_ffs_lays_them() {
        let volume = volume("ffs");
        let node = make(&volume, b"large");
        write(&volume, node, 0, 512 * (12 + 3 * 62));
        let runs = runs(&volume, node);
        let group = |block: u64| block / 2048;
        let begins: Vec<(u64, u64)> = runs.iter().map(|&(at, block, _)| (at, group(block))).collect();
        let in_group = |at: u64| begins.iter().rev().find(|run| run.0 <= at).unwrap().1;
        // What 12 pointers and the first block of them lead to is with the inode; block 74 begins one group on (74 div 62), block
        // 136 two.
        for (at, expected) in [(0, 0), (11, 0), (12, 0), (73, 0), (74, 1), (135, 1), (136, 2), (197, 2)] {
            assert_eq!(in_group(at), expected, "block {at} of {runs:?}");
        }
        let count = |name| volume.counters.snapshot().into_iter().find(|(found, _)| *found == name).unwrap().1;
        assert_eq!(count("data_sections"), 2);
    }

    /// A section that is not the first, and behind a hole: as many groups on as sections fit before it.
    #[test]
    fn what_follows_a_hole_begins_a_section() {
        let volume = volume("ffs");
        let node = make(&volume, b"sparse");
        write(&volume, node, 512 * 100, 512);
        write(&volume, node, 512 * 101, 512);
        let runs = runs(&volume, node);
        let [(100, first, 1), (101, second, 1)] = runs[..] else { panic!("{runs:?}") };
        // The blocks of pointers that lead there lie in between.
        assert_eq!((first / 2048, second), (1, first + 3));
    }

    /// Two files that grow in turn, flushed after each block, would otherwise both take the block next to the inodes.
    #[test]
    fn what_is_appended_lies_after_what_it_follows() {
        for profile in ["ffs", "myriad"] {
            let volume = volume(profile);
            let (one, other) = (make(&volume, b"one"), make(&volume, b"other"));
            write(&volume, one, 0, 512 * 8);
            write(&volume, other, 0, 512);
            let first = runs(&volume, one)[0];
            // What comes free is nearer to the inode than what follows the file.
            let file = volume.files.open(Ino(one.ino), one.generation());
            crate::file::allocate(&volume, &Cred::root(), &file, AllocateMode::Punch, 0, 512 * 4).unwrap();
            for _ in 0..3 {
                volume.commit_now().unwrap();
            }
            write(&volume, one, 512 * 8, 512);
            let last = *runs(&volume, one).last().unwrap();
            let end = last.1 + last.2;
            assert!(end > first.1 + 8, "{profile}: {last:?} after {first:?}");
        }
    }
}
