//! Pass "inodes": each group's header and inodes; what every inode holds but directories' contents.
//!
//! Where a group has its inodes is a choice: `chunks` checks chunks and the tree that records them, `table` the table and its
//! bitmap. What is here is the same for both.

mod chunks;
mod facts;
mod repair;
mod table;

pub(crate) use chunks::ChunkRecords;
pub(crate) use facts::{GroupFacts, Run, check_blocks};

use crate::context::Context;
use crate::report::Place;
use crate::slots::{inode_at, inodes_of};
use crate::table::{SlotInfo, Span};
use facts::{Block, ReadBlock, for_each_block};
use myriad_format::choices::Inodes;
use myriad_format::group::{GroupHeader, HEADER_BLOCK, RESERVE_MAX, RegionSummary};
use myriad_format::inode::RawInode;
use myriad_format::{AgBlock, AgNo, BlockKind, Corrupt, Ino};

/// Checks a group's inodes.
pub(crate) fn check_group(context: &Context<'_>, ag: AgNo) -> GroupFacts {
    let place = Place::Group(ag);
    let geometry = &context.geometry;
    let mut facts = GroupFacts {
        directories: vec![0; geometry.regions_per_ag() as usize],
        spans: Some(Vec::new()),
        ..GroupFacts::default()
    };
    let block = geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
    let mut buf = context.reader.new_buffer();
    if let Err(damage) = context.reader.read(block, BlockKind::Group, u64::from(ag.0), &mut buf) {
        context.damage(place, damage);
        return facts;
    }
    let header = *GroupHeader::read(&buf);
    match decode_header(context, ag, &header) {
        Ok(()) => {}
        Err(corrupt) => {
            context.damage(place, corrupt.into());
            return facts;
        }
    }
    let summaries = buf[GroupHeader::SIZE..]
        .chunks_exact(RegionSummary::SIZE)
        .take(header.region_count.get() as usize)
        .map(|bytes| *RegionSummary::read(bytes))
        .collect();
    facts.header = Some((header, summaries));

    match context.choices.inodes {
        Inodes::Dynamic => chunks::check_group(context, ag, &header, &mut facts),
        Inodes::Static => table::check_group(context, ag, &header, &mut facts),
        Inodes::Bucket => unreachable!("`Superblock::choices` refuses buckets"),
    }
    facts
}

/// Fields of a group header that others rely on.
fn decode_header(context: &Context<'_>, ag: AgNo, header: &GroupHeader) -> Result<(), Corrupt> {
    let geometry = &context.geometry;
    let blocks = geometry.blocks_in(ag);
    let regions = blocks.div_ceil(geometry.region_blocks());
    let fields = [
        ("ag", header.ag.get(), ag.0),
        ("block_count", header.block_count.get(), blocks),
        ("region_count", header.region_count.get(), regions),
    ];
    for (field, value, expected) in fields {
        if value != expected {
            return Err(Corrupt::Group { ag, field, value: u64::from(value) });
        }
    }
    if header.reserve_count.get() as usize > RESERVE_MAX {
        return Err(Corrupt::Group { ag, field: "reserve_count", value: u64::from(header.reserve_count.get()) });
    }
    Ok(())
}

/// Hands every inode of a run to `f` that the check accepted.
pub(crate) fn for_each_inode(context: &Context<'_>, run: Run, mut f: impl FnMut(Ino, &RawInode)) {
    let read_block: ReadBlock = match context.choices.inodes {
        Inodes::Static => table::read_block,
        Inodes::Dynamic | Inodes::Bucket => chunks::read_block,
    };
    for_each_block(&context.reader, read_block, run.start, run.count as usize, |index, Block { bytes, damage, .. }| {
        let block = run.start.offset_by(index as u64);
        // It was told of the others.
        if run.known >> index & 1 == 1 {
            damage.into_iter().for_each(|damage| context.damage(Place::Block(block), damage));
        }
        let Some(bytes) = bytes else { return };
        for (slot, _) in inodes_of(&context.geometry, bytes).inodes {
            let ino = context.geometry.ino(block, slot);
            let raw = inode_at(&context.geometry, bytes, slot);
            if raw.check(ino).is_ok() {
                f(ino, raw);
            }
        }
    });
}

/// The slots of a run, once more.
pub(crate) fn read_span(context: &Context<'_>, run: Run) -> Span {
    let slots = context.geometry.slots_per_block();
    let mut infos = vec![SlotInfo::default(); (run.count * slots) as usize];
    for_each_inode(context, run, |ino, raw| {
        if let Some((block, slot)) = context.geometry.locate(ino) {
            infos[(block.0 - run.start.0) as usize * slots as usize + slot as usize] = SlotInfo::of(raw);
        }
    });
    Span::new(run.start, &infos, slots)
}
