//! Pass "inodes": each group's header and inodes; what every inode holds but directories' contents.
//!
//! Where a group has its inodes is a choice: `chunks` checks chunks and the tree that records them, `table` the table and its
//! bitmap. What is here is the same for both.

mod chunks;
pub(crate) mod table;

pub(crate) use chunks::decode_chunk;

use crate::attributes::check_attributes;
use crate::context::Context;
use crate::extents::check_map;
use crate::findings::number;
use crate::io::Damage;
use crate::report::Place;
use crate::slots::{bad_inode, inode_at, inodes_of};
use crate::table::{SlotInfo, Span};
use myriad_format::choices::Inodes;
use myriad_format::group::{GroupHeader, HEADER_BLOCK, RESERVE_MAX, RegionSummary};
use myriad_format::inode::{RawInode, S_IFLNK, S_IFREG, TARGET_MAX, fork};
use myriad_format::{AgBlock, AgNo, BlockKind, Corrupt, FsBlock, Ino};
use std::sync::atomic::Ordering::Relaxed;

/// What the pass learned of a group.
#[derive(Default)]
pub(crate) struct GroupFacts {
    /// Header and region summaries, if they can be believed.
    pub header: Option<(GroupHeader, Vec<RegionSummary>)>,
    pub inode_blocks: u64,
    pub inodes_used: u64,
    /// Directories by region of the group.
    pub directories: Vec<u32>,
    /// Initialised inode blocks, ascending.
    pub runs: Vec<Run>,
    /// Their slots; `None` if there was no room for them.
    pub spans: Option<Vec<Span>>,
    /// Directories, ascending, until they are taken.
    pub directory_inos: Vec<Ino>,
}

/// A run of initialised inode blocks.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub start: FsBlock,
    pub count: u32,
    /// A bit for each that is sound.
    known: u64,
    /// It holds an inode.
    pub is_used: bool,
}

impl GroupFacts {
    /// Slots that a table of the group's inodes has.
    pub fn slot_count(&self, context: &Context<'_>) -> u64 {
        let blocks: u64 = self.runs.iter().filter(|run| run.is_used).map(|run| u64::from(run.count)).sum();
        blocks * u64::from(context.geometry.slots_per_block())
    }
}

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
        Inodes::Bucket => unreachable!("`Choices::read` refuses buckets"),
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

/// A block of inodes as it was read.
struct Block<'a> {
    /// What of it can be believed; `None`: nothing.
    bytes: Option<&'a [u8]>,
    /// The units of it that cannot be, if it is made of units.
    bad_units: Vec<u32>,
    /// What is wrong with the rest.
    damage: Vec<Damage>,
}

/// Reads a run of inode blocks and hands each to `f`, with its place in the run.
fn for_each_block(context: &Context<'_>, start: FsBlock, count: usize, mut f: impl FnMut(usize, Block<'_>)) {
    let reader = &context.reader;
    let block_size = reader.block_size();
    let mut bytes = vec![0; count * block_size];
    // One read for the whole run; block by block when that fails, to name the one that cannot be read.
    let whole = reader.read_device(start, &mut bytes).is_ok();
    for (index, buf) in bytes.chunks_exact_mut(block_size).enumerate() {
        let block = start.offset_by(index as u64);
        let found = match context.choices.inodes {
            Inodes::Static => table::read_block(reader, block, whole, buf),
            Inodes::Dynamic | Inodes::Bucket => chunks::read_block(reader, block, whole, buf),
        };
        f(index, found);
    }
}

/// Hands every inode of a run to `f` that the check accepted.
pub(crate) fn for_each_inode(context: &Context<'_>, run: Run, mut f: impl FnMut(Ino, &RawInode)) {
    for_each_block(context, run.start, run.count as usize, |index, Block { bytes, damage, .. }| {
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

/// Checks an inode that [`RawInode::check`] accepted, and takes it into the facts about its group.
fn take_inode(
    context: &Context<'_>,
    (block, slot): (FsBlock, u32),
    raw: &RawInode,
    (data, attributes): (&[u8], &[u8]),
    infos: &mut [SlotInfo],
    facts: &mut GroupFacts,
) {
    let ino = context.geometry.ino(block, slot);
    check_inode(context, ino, raw, data, attributes);
    infos[slot as usize] = SlotInfo::of(raw);
    facts.inodes_used += 1;
    if raw.is_dir() {
        facts.directory_inos.push(ino);
        let region = context.geometry.ag_block_of(block).0 >> context.geometry.region_bits;
        facts.directories[region as usize] += 1;
    }
}

/// Notes a run of blocks that have been looked at, and their slots as long as there is room for them.
fn take_run(context: &Context<'_>, start: FsBlock, known: u64, infos: &[SlotInfo], facts: &mut GroupFacts) {
    let slots = context.geometry.slots_per_block();
    let is_used = infos.iter().any(SlotInfo::is_used);
    facts.runs.push(Run { start, count: infos.len() as u32 / slots, known, is_used });
    if !is_used {
        return;
    }
    let Some(spans) = &mut facts.spans else { return };
    let held = context.slots_held.fetch_add(infos.len() as u64, Relaxed) + infos.len() as u64;
    if held <= context.slots_max {
        spans.push(Span::new(start, infos, slots));
    } else {
        // All of the group comes later.
        context.slots_held.fetch_sub(facts.slot_count(context), Relaxed);
        facts.spans = None;
    }
}

fn check_inode(context: &Context<'_>, ino: Ino, raw: &RawInode, data: &[u8], attributes: &[u8]) {
    let place = Place::Inode(ino);
    let size = raw.size.get();
    let bad = |corrupt: Corrupt| context.damage(place, Damage::from(corrupt));
    if raw.file_type() == S_IFLNK && !(1..=TARGET_MAX).contains(&size) {
        bad(bad_inode(ino, "size", size));
    }
    let is_inline = raw.fork_code() == fork::INLINE;
    if !is_inline && !data.is_empty() {
        bad(bad_inode(ino, "data_len", data.len() as u64));
    }
    let fits = match raw.fork_code() {
        fork::INLINE if !raw.is_dir() => size == data.len() as u64,
        fork::SHORT_LINK => size <= raw.fork_room() as u64,
        fork::NONE => size == 0 || raw.file_type() == S_IFREG,
        _ => true,
    };
    if !fits {
        context.report(
            number::INODE_SIZE,
            place,
            format!("size {size} does not fit its contents of {} bytes", data.len()),
        );
    }
    // A directory's blocks are followed, and counted, by the pass over names.
    if !raw.is_dir() {
        let blocks = check_map(context, ino, raw, |extent| context.note_data(&extent)).blocks
            + check_attributes(context, ino, raw, attributes);
        check_blocks(context, ino, raw, blocks);
    }
}

/// Compares an inode's count of blocks with what was found.
pub(crate) fn check_blocks(context: &Context<'_>, ino: Ino, raw: &RawInode, blocks: u64) {
    if raw.block_total() != blocks {
        let message = format!("says it has {} blocks, {blocks} were found", raw.block_total());
        context.report_leftover(number::INODE_BLOCKS, Place::Inode(ino), message);
    }
}
