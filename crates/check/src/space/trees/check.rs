//! Reads the two trees of a group's free extents, and holds each against the other.

use crate::context::Context;
use crate::findings::number;
use crate::report::Place;
use crate::space::free::Free;
use crate::tree::{Tree, check_tree};
use myriad_format::btree::{FREE_BY_LENGTH, FREE_BY_START};
use myriad_format::group::{FIRST_BY_START_BLOCK, GroupHeader};
use myriad_format::{AgBlock, AgNo};

/// Reads both trees, which hold the same, and the reserve.
pub(crate) fn read(context: &Context<'_>, ag: AgNo, header: &GroupHeader) -> Free {
    let place = Place::Group(ag);
    let geometry = &context.geometry;
    let blocks = geometry.blocks_in(ag);
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
    }
    Free { extents: free, reserve }
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
