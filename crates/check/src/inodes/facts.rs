//! What the pass over inodes learns of a group, and how it takes a block and an inode into that, wherever the inodes lie.

use crate::attributes::check_attributes;
use crate::context::Context;
use crate::findings::number;
use crate::io::{Damage, Reader};
use crate::map::check_map;
use crate::report::Place;
use crate::slots::bad_inode;
use crate::table::{SlotInfo, Span};
use myriad_format::group::{GroupHeader, RegionSummary};
use myriad_format::inode::{RawInode, S_IFLNK, S_IFREG, TARGET_MAX, flag, fork};
use myriad_format::leftovers::BlockCount;
use myriad_format::superblock::feature;
use myriad_format::{Corrupt, FsBlock, Ino};
use std::sync::PoisonError;
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
    pub known: u64,
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

/// A block of inodes as it was read.
pub(super) struct Block<'a> {
    /// What of it can be believed; `None`: nothing.
    pub bytes: Option<&'a [u8]>,
    /// The units of it that cannot be, if it is made of units.
    pub bad_units: Vec<u32>,
    /// What is wrong with the rest.
    pub damage: Vec<Damage>,
}

/// How a block of inodes is read, or looked at if that is done already.
pub(super) type ReadBlock = for<'b> fn(&Reader, FsBlock, bool, &'b mut [u8]) -> Block<'b>;

/// Reads a run of inode blocks and hands each to `f`, with its place in the run.
pub(super) fn for_each_block(
    reader: &Reader,
    read_block: ReadBlock,
    start: FsBlock,
    count: usize,
    mut f: impl FnMut(usize, Block<'_>),
) {
    let block_size = reader.block_size();
    let mut bytes = vec![0; count * block_size];
    // One read for the whole run; block by block when that fails, to name the one that cannot be read.
    let whole = reader.read_device(start, &mut bytes).is_ok();
    for (index, buf) in bytes.chunks_exact_mut(block_size).enumerate() {
        let block = start.offset_by(index as u64);
        f(index, read_block(reader, block, whole, buf));
    }
}

/// Checks an inode that [`RawInode::check`] accepted, and takes it into the facts about its group.
pub(super) fn take_inode(
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
    if raw.has_flag(flag::IMMUTABLE | flag::APPEND) {
        context.features.fetch_or(feature::COMPATIBLE_FLAGGED, Relaxed);
    }
    if raw.is_dir() {
        facts.directory_inos.push(ino);
        let region = context.geometry.ag_block_of(block).0 >> context.geometry.region_bits;
        facts.directories[region as usize] += 1;
    }
}

/// Notes a run of blocks that have been looked at, and their slots as long as there is room for them.
pub(super) fn take_run(context: &Context<'_>, start: FsBlock, known: u64, infos: &[SlotInfo], facts: &mut GroupFacts) {
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
        let (mut written_end, mut covered) = (0, 0);
        let map = check_map(context, ino, raw, |extent| {
            if !extent.unwritten {
                written_end = extent.end().0;
                covered = if extent.file_block.0 == covered { written_end } else { covered };
            }
            context.note_data(&extent);
        });
        let needed = size.div_ceil(context.reader.block_size() as u64);
        if raw.file_type() == S_IFREG && written_end > needed && !context.may_have_leftovers() {
            context.past_end.lock().unwrap_or_else(PoisonError::into_inner).insert(ino);
        }
        if raw.file_type() == S_IFLNK && raw.has_map() && covered < needed {
            let message = format!("only {covered} of the {needed} blocks with where the link leads were written");
            context.report(number::INODE_SIZE, place, message);
        }
        check_blocks(context, ino, raw, map.blocks + check_attributes(context, ino, raw, attributes));
    }
}

/// Compares an inode's count of blocks with what was found.
pub(crate) fn check_blocks(context: &Context<'_>, ino: Ino, raw: &RawInode, blocks: u64) {
    if raw.block_total() != blocks {
        let message = format!("says it has {} blocks, {blocks} were found", raw.block_total());
        context.report_leftover(number::INODE_BLOCKS, Place::Inode(ino), message, |all| {
            let (generation, said) = (raw.generation.get(), raw.block_total());
            all.block_counts.push(BlockCount { ino, generation, said, found: blocks });
        });
    }
}
