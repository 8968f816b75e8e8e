//! Pass "space": runs last, when all other owners are known. The two trees of a group against each other, against the
//! owners, and against the header's counts.

use crate::context::{Context, is_tree_block};
use crate::findings::number;
use crate::inodes::GroupFacts;
use crate::report::Place;
use crate::tree::{Tree, check_tree};
use myriad_format::btree::{FREE_BY_LENGTH, FREE_BY_START};
use myriad_format::group::{FIRST_BY_START_BLOCK, FIXED_BLOCKS, GroupHeader};
use myriad_format::{AgBlock, AgNo};

/// Checks a group's free space; how many blocks are free.
pub(crate) fn check_group(context: &Context<'_>, ag: AgNo, facts: &GroupFacts) -> u64 {
    let place = Place::Group(ag);
    let Some((header, summaries)) = &facts.header else { return 0 };
    let geometry = &context.geometry;
    let blocks = geometry.blocks_in(ag);
    let first = geometry.fs_block(ag, AgBlock(0));

    let mut by_start: Vec<(u32, u32)> = Vec::new();
    let mut by_length: Vec<(u32, u32)> = Vec::new();
    let mut sound = true;
    if let Some(root) = context.group_block(ag, "by_start_root", header.by_start_root.get()) {
        let tree = Tree { kind: FREE_BY_START, owner: u64::from(ag.0), root, level: u16::from(header.by_start_level) };
        sound &= check_tree(context, &tree, place, &mut |record| by_start.push(halves(record))).sound;
    }
    if let Some(root) = context.group_block(ag, "by_length_root", header.by_length_root.get()) {
        let tree =
            Tree { kind: FREE_BY_LENGTH, owner: u64::from(ag.0), root, level: u16::from(header.by_length_level) };
        sound &= check_tree(context, &tree, place, &mut |record| {
            let (length, start) = halves(record);
            by_length.push((start, length));
        })
        .sound;
    }
    by_length.sort_unstable();
    if sound && by_start != by_length {
        let message = format!("{} extents by start and {} by length are not the same", by_start.len(), by_length.len());
        context.report(number::SPACE_DIFFERS, place, message);
    }

    let reserve = check_reserve(context, ag, header);
    let mut free: Vec<(u32, u32)> = Vec::with_capacity(by_start.len());
    let mut end = 0;
    for (start, length) in by_start {
        let inside = start >= geometry.first_data_block(ag)
            && length > 0
            && start.checked_add(length).is_some_and(|end| end <= blocks);
        if !inside || start < end {
            context.report(number::SPACE_EXTENT, place, format!("the free extent {start} + {length} is impossible"));
            continue;
        }
        if start == end && !free.is_empty() {
            context.report(
                number::SPACE_EXTENT,
                place,
                format!("the free extent {start} + {length} touches the one before"),
            );
        }
        end = start + length;
        free.push((start, length));
        if let Some(block) = context.blocks.first_in(first.offset_by(u64::from(start)), u64::from(length)) {
            context.report(number::BLOCK_TWICE, place, format!("block {block} is free and has an owner"));
        }
    }
    check_counts(context, ag, header, summaries, &free, &reserve, facts);
    check_leaks(context, ag, &free);
    free.iter().map(|&(_, length)| u64::from(length)).sum::<u64>() + reserve.len() as u64
}

fn halves(record: &[u8]) -> (u32, u32) {
    let word = u64::from_le_bytes(record[..8].try_into().expect("eight bytes"));
    ((word >> 32) as u32, word as u32)
}

/// The blocks of the reserve, claimed.
fn check_reserve(context: &Context<'_>, ag: AgNo, header: &GroupHeader) -> Vec<u32> {
    let place = Place::Group(ag);
    let mut reserve = Vec::new();
    for block in header.reserve.iter().take(header.reserve_count.get() as usize).map(|block| block.get()) {
        let inside = (FIRST_BY_START_BLOCK..context.geometry.blocks_in(ag)).contains(&block);
        if !inside {
            context.report(number::RESERVE, place, format!("the reserve holds block {block}"));
        } else if context.claim_in_group(context.geometry.fs_block(ag, AgBlock(block)), place, "reserve") {
            reserve.push(block);
        }
    }
    reserve
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
    let total: u64 = free.iter().map(|&(_, length)| u64::from(length)).sum::<u64>() + reserve.len() as u64;
    if u64::from(header.free_blocks.get()) != total {
        let message = format!("{total} blocks are free, the header says {}", header.free_blocks);
        context.report(number::GROUP_FREE, place, message);
    }
    for (name, stored, found) in [
        ("inode blocks", header.inode_blocks.get(), facts.inode_blocks),
        ("inodes", header.inodes_used.get(), facts.inodes_used),
        ("directories", header.directories.get(), facts.directories.iter().map(|&count| u64::from(count)).sum()),
    ] {
        if u64::from(stored) != found {
            context.report(number::GROUP_INODES, place, format!("{found} {name}, the header says {stored}"));
        }
    }
    let by_region = free_by_region(free, reserve, context.geometry.region_bits, summaries.len());
    for (index, summary) in summaries.iter().enumerate() {
        let directories = facts.directories.get(index).copied().unwrap_or(0);
        if (summary.free_blocks.get(), summary.directories.get()) != (by_region[index], directories) {
            let message = format!(
                "region {index} has {} free blocks and {directories} directories, its summary says {} and {}",
                by_region[index], summary.free_blocks, summary.directories
            );
            context.report(number::REGION, place, message);
        }
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
    let (mut leaked, mut first_leak) = (0_u64, None);
    let mut gap = |from: u64, to: u64| {
        if from >= to {
            return;
        }
        context.blocks.for_each_gap(first.offset_by(from), to - from, |start, length| {
            leaked += length;
            first_leak.get_or_insert((start, length));
            true
        });
    };
    let mut at = u64::from(geometry.first_data_block(ag));
    for &(start, length) in free {
        gap(at, u64::from(start));
        at = u64::from(start) + u64::from(length);
    }
    gap(at, u64::from(geometry.blocks_in(ag)));
    for block in (0..FIXED_BLOCKS.min(geometry.blocks_in(ag))).map(AgBlock).filter(|&block| is_tree_block(block)) {
        let block = geometry.fs_block(ag, block);
        if !context.is_fixed_taken(block) {
            leaked += 1;
            first_leak.get_or_insert((block, 1));
        }
    }
    if let Some((start, length)) = first_leak {
        let message = format!("{leaked} blocks are neither free nor in use, the first {length} at block {start}");
        context.report(number::BLOCK_LEAKED, Place::Group(ag), message);
    }
}
