//! Pass "inodes": each group's header, inode tree and inode blocks; what every inode holds but directories' contents.

use crate::attributes::check_attributes;
use crate::context::Context;
use crate::extents::check_map;
use crate::findings::number;
use crate::io::Damage;
use crate::report::Place;
use crate::slots::{Slots, bad_inode, body_parts, inode_at, slots_of};
use crate::table::{SlotInfo, Span};
use crate::tree::{Tree, check_tree};
use myriad_format::btree;
use myriad_format::group::{FIXED_BLOCKS, GroupHeader, HEADER_BLOCK, RESERVE_MAX, RegionSummary};
use myriad_format::inode::{ChunkRecord, InodeBlockHeader, RawInode, S_IFLNK, S_IFREG, TARGET_MAX, fork};
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
    /// A bit for each that could be read.
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

    let Some(root) = context.group_block(ag, "inode_root", header.inode_root.get()) else { return facts };
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
            check_chunk(context, ag, start, &record, &mut facts);
        }
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
    for_each_block(context, ag, start, count, |index, buf| {
        let block = start.offset_by(index as u64);
        match buf {
            Err(damage) => context.damage(Place::Block(block), damage),
            Ok(buf) => {
                let (free, used) = check_block(context, block, buf, &mut infos[index * slots..][..slots], facts);
                free_mask |= u64::from(free) << index;
                used_mask |= u64::from(used) << index;
                known |= 1 << index;
            }
        }
    });
    if record.free_mask.get() & known != free_mask || record.used_mask.get() & known != used_mask {
        let message = format!(
            "the inode chunk at {start} has masks {:#x} {:#x}, its blocks say {free_mask:#x} {used_mask:#x}",
            record.free_mask, record.used_mask
        );
        context.report(number::CHUNK_MASK, place, message);
    }
    let is_used = infos.iter().any(SlotInfo::is_used);
    facts.runs.push(Run { start, count: count as u32, known, is_used });
    if !is_used {
        return;
    }
    let Some(spans) = &mut facts.spans else { return };
    let held = context.slots_held.fetch_add(infos.len() as u64, Relaxed) + infos.len() as u64;
    if held <= context.slots_max {
        spans.push(Span::new(start, &infos, slots as u32));
    } else {
        // All of the group comes later.
        context.slots_held.fetch_sub(facts.slot_count(context), Relaxed);
        facts.spans = None;
    }
}

/// Reads a run of inode blocks and hands each to `f`, with its place in the run.
fn for_each_block(
    context: &Context<'_>,
    ag: AgNo,
    start: FsBlock,
    count: usize,
    mut f: impl FnMut(usize, Result<&[u8], Damage>),
) {
    let block_size = context.reader.block_size();
    let mut bytes = vec![0; count * block_size];
    // One read for the whole run; block by block when that fails, to name the one that cannot be read.
    let whole = context.reader.read_device(start, &mut bytes).is_ok();
    for (index, buf) in bytes.chunks_exact_mut(block_size).enumerate() {
        let block = start.offset_by(index as u64);
        let read = if whole { Ok(context.reader.lay_over(block, buf)) } else { context.reader.read_raw(block, buf) };
        let verified =
            read.and_then(|overlaid| context.reader.verify(block, BlockKind::Inode, u64::from(ag.0), buf, overlaid));
        f(index, verified.map(|()| &*buf));
    }
}

/// Hands every inode of a run to `f` that the check accepted.
pub(crate) fn for_each_inode(context: &Context<'_>, run: Run, mut f: impl FnMut(Ino, &RawInode)) {
    let ag = context.geometry.ag_of(run.start);
    for_each_block(context, ag, run.start, run.count as usize, |index, buf| {
        let block = run.start.offset_by(index as u64);
        let buf = match buf {
            Ok(buf) => buf,
            Err(damage) => {
                // It was told of the others.
                if run.known >> index & 1 == 1 {
                    context.damage(Place::Block(block), damage);
                }
                return;
            }
        };
        for (slot, _) in slots_of(buf).inodes {
            let ino = context.geometry.ino(block, slot);
            let raw = inode_at(buf, slot);
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
    let Slots { inodes, bad_bodies, stray } = slots_of(buf);
    for slot in stray {
        context.report(number::SLOT_MAP, place, format!("slot {slot} is in use by nobody"));
    }
    for slot in bad_bodies {
        let message = "its body lies outside the block or on another inode".to_owned();
        context.report(number::SLOT_SHARED, Place::Inode(context.geometry.ino(block, slot)), message);
    }
    for (slot, body) in inodes {
        let ino = context.geometry.ino(block, slot);
        let raw = inode_at(buf, slot);
        if let Err(corrupt) = raw.check(ino) {
            context.damage(Place::Inode(ino), corrupt.into());
            continue;
        }
        let (data, attributes) = body_parts(buf, &body);
        check_inode(context, ino, raw, data, attributes);
        infos[slot as usize] = SlotInfo::of(raw);
        facts.inodes_used += 1;
        if raw.is_dir() {
            facts.directory_inos.push(ino);
            let region = context.geometry.ag_block_of(block).0 >> context.geometry.region_bits;
            facts.directories[region as usize] += 1;
        }
    }
    (free > 0, free < slot_count - 1)
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
        context.report(number::INODE_BLOCKS, Place::Inode(ino), message);
    }
}
