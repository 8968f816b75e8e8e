//! The check of a group's chunks, and of the tree that records them.

use crate::context::Context;
use crate::findings::number;
use crate::inodes::facts::{Block, GroupFacts, for_each_block, take_inode, take_run};
use crate::io::Reader;
use crate::report::Place;
use crate::slots::{Slots, body_parts, inode_at, inodes_of};
use crate::table::SlotInfo;
use crate::tree::{Tree, check_tree};
use myriad_format::btree;
use myriad_format::group::{FIXED_BLOCKS, GroupHeader};
use myriad_format::inode::{ChunkRecord, InodeBlockHeader};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock};

/// Checks a group's tree of chunks, and the chunks.
pub(crate) fn check_group(context: &Context<'_>, ag: AgNo, header: &GroupHeader, facts: &mut GroupFacts) {
    let place = Place::Group(ag);
    let geometry = &context.geometry;
    let Some(root) = context.group_block(ag, "inode_root", header.inode_root.get()) else { return };
    let tree = Tree { kind: btree::INODE_CHUNKS, owner: u64::from(ag.0), root, level: u16::from(header.inode_level) };
    let mut chunks = Vec::new();
    let mut end = 0;
    check_tree(context, &tree, place, &mut |record| {
        let record = *ChunkRecord::read(record);
        match decode_chunk(&record, geometry.blocks_in(ag), end) {
            None => context.report(
                number::CHUNK,
                place,
                format!("the record of the inode chunk at {} is impossible", record.start),
            ),
            Some(chunk_end) => {
                end = chunk_end;
                chunks.push(record);
            }
        }
    });
    for record in chunks {
        let start = geometry.fs_block(ag, AgBlock(record.start.get() as u32));
        if context.claim(start, u64::from(record.count), place, "inode chunk") {
            facts.inode_blocks += u64::from(record.count);
            check_chunk(context, ag, start, &record, facts);
        }
    }
}

/// End of a chunk, group-relative; `None` if the record is impossible or the chunk begins before `after`.
pub(crate) fn decode_chunk(record: &ChunkRecord, ag_blocks: u32, after: u64) -> Option<u64> {
    let end = record.start.get().checked_add(u64::from(record.count))?;
    let initialised = u32::from(record.initialised);
    let mask = if initialised == 64 { u64::MAX } else { 1_u64.checked_shl(initialised)? - 1 };
    let sound = record.start.get() >= u64::from(FIXED_BLOCKS)
        && record.start.get() >= after
        && end <= u64::from(ag_blocks)
        && (1..=64).contains(&record.count)
        && record.initialised <= record.count
        && (record.free_mask.get() | record.used_mask.get()) & !mask == 0;
    sound.then_some(end)
}

fn check_chunk(context: &Context<'_>, ag: AgNo, start: FsBlock, record: &ChunkRecord, facts: &mut GroupFacts) {
    let place = Place::Group(ag);
    let count = usize::from(record.initialised);
    if count == 0 {
        return;
    }
    let slots = context.geometry.slots_per_block() as usize;
    let mut infos = vec![SlotInfo::default(); count * slots];
    let (mut free_mask, mut used_mask, mut known) = (0_u64, 0_u64, 0_u64);
    for_each_block(&context.reader, read_block, start, count, |index, Block { bytes, damage, .. }| {
        let block = start.offset_by(index as u64);
        damage.into_iter().for_each(|damage| context.damage(Place::Block(block), damage));
        let Some(bytes) = bytes else { return };
        let (free, used) = check_block(context, block, bytes, &mut infos[index * slots..][..slots], facts);
        free_mask |= u64::from(free) << index;
        used_mask |= u64::from(used) << index;
        known |= 1 << index;
    });
    if record.free_mask.get() & known != free_mask || record.used_mask.get() & known != used_mask {
        let message = format!(
            "the inode chunk at {start} has masks {:#x} {:#x}, its blocks say {free_mask:#x} {used_mask:#x}",
            record.free_mask, record.used_mask
        );
        context.report(number::CHUNK_MASK, place, message);
    }
    take_run(context, start, known, &infos, facts);
}

/// Verifies an inode block; `is_read`: `buf` has it as it is on the device.
pub(crate) fn read_block<'a>(reader: &Reader, block: FsBlock, is_read: bool, buf: &'a mut [u8]) -> Block<'a> {
    let owner = u64::from(reader.geometry.ag_of(block).0);
    let read = if is_read { Ok(reader.lay_over(block, buf)) } else { reader.read_raw(block, buf) };
    match read.and_then(|overlaid| reader.verify(block, BlockKind::Inode, owner, buf, overlaid)) {
        Ok(()) => Block { bytes: Some(buf), bad_units: Vec::new(), damage: Vec::new() },
        Err(damage) => Block { bytes: None, bad_units: Vec::new(), damage: vec![damage] },
    }
}

/// Whether the block has free slots, and used ones.
fn check_block(
    context: &Context<'_>,
    block: FsBlock,
    buf: &[u8],
    infos: &mut [SlotInfo],
    facts: &mut GroupFacts,
) -> (bool, bool) {
    let place = Place::Block(block);
    let header = InodeBlockHeader::read(buf);
    let slot_count = context.geometry.slots_per_block();
    let free_mask = header.free_mask;
    let is_free = |slot: u32| free_mask[slot as usize / 8] >> (slot % 8) & 1 == 1;
    let free = (1..slot_count).filter(|&slot| is_free(slot)).count() as u32;
    let set: u32 = free_mask.iter().map(|byte| byte.count_ones()).sum();
    if set != free || u32::from(header.free_count.get()) != free || u32::from(header.slot_count.get()) != slot_count {
        let message = format!(
            "{free} slots of {slot_count} are free; the header says {} of {} and its map has {set}",
            header.free_count, header.slot_count
        );
        context.report(number::SLOT_MAP, place, message);
    }
    // What a free slot holds is nobody's business: it may be what is left of a body.
    let Slots { inodes, bad_bodies, ring, stray } = inodes_of(&context.geometry, buf);
    for slot in stray {
        context.report(number::SLOT_MAP, place, format!("slot {slot} is in use by nobody"));
    }
    for slot in bad_bodies {
        let before = if context.geometry.bodies_follow { ", before it" } else { "" };
        let message = format!("its body lies outside the block{before} or on another inode");
        context.report(number::SLOT_SHARED, Place::Inode(context.geometry.ino(block, slot)), message);
    }
    for slot in ring {
        let message = "it and other inodes may lie in each other's bodies: which are true cannot be told".to_owned();
        context.report(number::SLOT_SHARED, Place::Inode(context.geometry.ino(block, slot)), message);
    }
    for (slot, body) in inodes {
        let ino = context.geometry.ino(block, slot);
        let raw = inode_at(&context.geometry, buf, slot);
        if let Err(corrupt) = raw.check(ino) {
            context.damage(Place::Inode(ino), corrupt.into());
            continue;
        }
        take_inode(context, (block, slot), raw, body_parts(buf, &body), infos, facts);
    }
    (free > 0, free < slot_count - 1)
}
