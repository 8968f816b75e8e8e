//! Pass "space", the last one, when all other owners of blocks are known. It compares the blocks that a group calls free with the owners, and both
//! with the counts in the group's header.
//!
//! How a group records free blocks is a choice: `trees` reads two trees that hold the same extents, `bitmap` one bit a block. This file has what is
//! the same for both.

mod bitmap;
mod free;
mod repair;
mod trees;

use crate::context::{Context, counted_anew, for_repair, is_tree_block};
use crate::findings::number;
use crate::inodes::GroupFacts;
use crate::report::Place;
use free::Free;
use myriad_format::choices::Space;
use myriad_format::group::{FIRST_INODE_TREE_BLOCK, FIXED_BLOCKS, GroupHeader};
use myriad_format::{AgBlock, AgNo, FsBlock, Geometry};
use std::sync::PoisonError;

/// Free blocks, and how many of them are fragments of blocks that are partly used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub blocks: u64,
    pub parts: u64,
}

impl Counted {
    /// What is free in a group, given the free extents, each as long as can be, and the reserve.
    pub fn of(geometry: &Geometry, free: &[(u32, u32)], reserve: &[u32]) -> Self {
        let bits = geometry.fragment_bits;
        let whole = |&(start, length): &(u32, u32)| {
            let first = u64::from(start).div_ceil(1 << bits);
            ((u64::from(start) + u64::from(length)) >> bits).saturating_sub(first) << bits
        };
        let blocks = free.iter().map(|&(_, length)| u64::from(length)).sum::<u64>();
        let parts = blocks - free.iter().map(whole).sum::<u64>();
        Self { blocks: blocks + reserve.len() as u64, parts }
    }
}

/// Checks a group's free space; what of it is free.
pub(crate) fn check_group(context: &Context<'_>, ag: AgNo, facts: &GroupFacts) -> Counted {
    let Some((header, summaries)) = &facts.header else { return Counted::default() };
    let Free { extents, reserve } = match context.choices.space {
        Space::Trees => trees::read(context, ag, header),
        Space::Bitmap => bitmap::read(context, ag, header),
    };
    let first = context.geometry.fs_block(ag, AgBlock(0));
    for &(start, length) in &extents {
        if let Some(block) = context.blocks.first_in(first.offset_by(u64::from(start)), u64::from(length)) {
            context.report(number::BLOCK_TWICE, Place::Group(ag), format!("block {block} is free and has an owner"));
        }
    }
    check_counts(context, ag, header, summaries, &extents, &reserve, facts);
    check_leaks(context, ag, &extents);
    Counted::of(&context.geometry, &extents, &reserve)
}

/// Whether one of a group's first blocks is a node of a tree of the group or in its reserve, on every sound volume.
pub(crate) fn holds_tree(geometry: &Geometry, block: AgBlock) -> bool {
    let is_of_inodes = block.0 == FIRST_INODE_TREE_BLOCK;
    is_tree_block(block) && !geometry.has_bitmap && !(is_of_inodes && geometry.has_table())
}

fn check_counts(
    context: &Context<'_>,
    ag: AgNo,
    header: &GroupHeader,
    summaries: &[myriad_format::group::RegionSummary],
    free: &[(u32, u32)],
    reserve: &[u32],
    facts: &GroupFacts,
) {
    let place = Place::Group(ag);
    let counted = Counted::of(&context.geometry, free, reserve);
    for (what, stored, found) in [
        ("blocks are free", header.free_blocks.get(), counted.blocks),
        ("free fragments lie in partly used blocks", header.free_parts.get(), counted.parts),
    ] {
        if u64::from(stored) != found {
            let message = format!("{found} {what}, the header says {stored}");
            context.report_leftover(number::GROUP_FREE, place, message, counted_anew);
        }
    }
    for (name, stored, found) in [
        ("inode blocks", header.inode_blocks.get(), facts.inode_blocks),
        ("inodes", header.inodes_used.get(), facts.inodes_used),
        ("directories", header.directories.get(), facts.directories.iter().map(|&count| u64::from(count)).sum()),
    ] {
        if u64::from(stored) != found {
            let message = format!("{found} {name}, the header says {stored}");
            context.report_leftover(number::GROUP_INODES, place, message, counted_anew);
        }
    }
    let by_region = free_by_region(free, reserve, context.geometry.region_bits, summaries.len());
    // Nothing but these counts says how many directories there are, so an opening cannot count them anew.
    let mut surplus =
        i64::from(header.directories.get()) - facts.directories.iter().map(|&count| i64::from(count)).sum::<i64>();
    for (index, summary) in summaries.iter().enumerate() {
        let directories = facts.directories.get(index).copied().unwrap_or(0);
        if (summary.free_blocks.get(), summary.directories.get()) != (by_region[index], directories) {
            let message = format!(
                "region {index} has {} free blocks and {directories} directories, its summary says {} and {}",
                by_region[index], summary.free_blocks, summary.directories
            );
            context.report_leftover(number::REGION, place, message, |all| {
                let too_many = i64::from(summary.directories.get()) - i64::from(directories);
                surplus -= too_many;
                let start = AgBlock((index << context.geometry.region_bits) as u32);
                if too_many != 0 {
                    all.directories.push((context.geometry.fs_block(ag, start), too_many));
                }
            });
        }
    }
    if surplus != 0
        && let Some(leftovers) = &context.leftovers
    {
        for_repair(&mut leftovers.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Free blocks of each region: what of the free extents and the reserve lies in it.
pub(crate) fn free_by_region(free: &[(u32, u32)], reserve: &[u32], region_bits: u32, regions: usize) -> Vec<u32> {
    let mut by_region = vec![0_u32; regions];
    for &(start, length) in free {
        let end = u64::from(start) + u64::from(length);
        let mut at = u64::from(start);
        while at < end {
            let region = at >> region_bits;
            let stop = end.min((region + 1) << region_bits);
            if let Some(count) = by_region.get_mut(region as usize) {
                *count += (stop - at) as u32;
            }
            at = stop;
        }
    }
    for &block in reserve {
        if let Some(count) = by_region.get_mut((block >> region_bits) as usize) {
            *count += 1;
        }
    }
    by_region
}

/// Blocks that are neither free nor anybody's.
fn check_leaks(context: &Context<'_>, ag: AgNo, free: &[(u32, u32)]) {
    let geometry = &context.geometry;
    let first = geometry.fs_block(ag, AgBlock(0));
    let mut leaked: Vec<(FsBlock, u32)> = Vec::new();
    let mut gap = |from: u64, to: u64| {
        if from >= to {
            return;
        }
        context.blocks.for_each_gap(first.offset_by(from), to - from, |start, length| {
            leaked.push((start, length as u32));
            true
        });
    };
    let mut at = u64::from(geometry.first_data_block(ag));
    for &(start, length) in free {
        gap(at, u64::from(start));
        at = u64::from(start) + u64::from(length);
    }
    gap(at, u64::from(geometry.blocks_in(ag)));
    for block in (0..FIXED_BLOCKS.min(geometry.blocks_in(ag))).map(AgBlock) {
        if !holds_tree(geometry, block) {
            continue;
        }
        let block = geometry.fs_block(ag, block);
        if !context.is_fixed_taken(block) {
            leaked.push((block, 1));
        }
    }
    if let Some(&(start, length)) = leaked.first() {
        let count: u64 = leaked.iter().map(|&(_, length)| u64::from(length)).sum();
        let message = format!("{count} blocks are neither free nor in use, the first {length} at block {start}");
        context.report_leftover(number::BLOCK_LEAKED, Place::Group(ag), message, |all| all.blocks.extend(leaked));
    }
}
