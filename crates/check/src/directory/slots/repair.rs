//! Repair of directories of kind `slots`: names stay in their slots; runs, counts and records of extents are written anew.
//!
//! The place of a block in the map says whether it holds slots or records. If the map does not have whole extents, the repair puts the blocks of
//! slots that can be read into a new map, in their order, with new blocks for the records.

use super::check::{run_of, used_slots};
use crate::directory::fix::{Added, NewMap, Pass, blocks_of, push_entry};
use crate::directory::names::covered;
use crate::options::CheckError;
use crate::repair::build::write;
use crate::repair::volume::Repair;
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::slots::{
    DirExtent, EXTENT_BLOCKS, ExtentsHeader, SLOT_BYTES, SlotBlockHeader, SlotHeader, SlotLayout, tag_of,
};
use myriad_format::{BlockKind, FileBlock, FsBlock, Ino, header};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// What the extents of a directory hold.
struct Counts {
    layout: SlotLayout,
    records: Vec<DirExtent>,
}

impl Counts {
    fn new(layout: SlotLayout, extents: u64) -> Self {
        Self { layout, records: vec![DirExtent::zeroed(); extents as usize] }
    }

    fn add(&mut self, slot_block: u64, names: u32) {
        let record = &mut self.records[(slot_block / EXTENT_BLOCKS) as usize];
        record.names.set(record.names.get() + names as u16);
        record.used |= u8::from(names > 0) << (slot_block % EXTENT_BLOCKS);
    }

    fn names(&self) -> u64 {
        self.records.iter().map(|record| u64::from(record.names.get())).sum()
    }

    /// Fills a block of records, the one at a file block, behind its common header.
    fn fill(&self, file_block: u64, bytes: &mut [u8]) {
        bytes[ExtentsHeader::SIZE..].fill(0);
        let head = ExtentsHeader::read_mut(bytes);
        head.extents.set(if file_block == 0 { self.records.len() as u32 } else { 0 });
        head.reserved.set(0);
        let first = file_block / self.layout.span_blocks() * self.layout.extents;
        let records = self.records.iter().skip(first as usize).take(self.layout.extents as usize);
        let rooms = bytes[ExtentsHeader::SIZE..].chunks_exact_mut(DirExtent::SIZE);
        rooms.zip(records).for_each(|(room, record)| room.copy_from_slice(record.as_bytes()));
    }
}

/// Puts a directory right; hands the directories that it names to the queue.
pub(in crate::directory) fn visit(
    repair: &mut Repair<'_>,
    directory: Ino,
    mut pass: Pass,
    queue: &mut VecDeque<Ino>,
) -> Result<(), CheckError> {
    let raw = repair.raw(directory)?;
    let layout = repair.slot_layout();
    let (extents, new_map) = repair.whole_extents(directory, &raw)?;
    let end = extents.last().map_or(0, |extent| extent.end().0);
    let mut counts = Counts::new(layout, layout.extents_in(end).expect("whole extents"));
    for (file_block, block) in blocks_of(&extents) {
        if let Some(slot_block) = layout.slot_block(file_block) {
            let names = repair.visit_slot_block(directory, slot_block, block, &mut pass, queue)?;
            counts.add(slot_block, names);
        }
    }
    for (file_block, block) in blocks_of(&extents).filter(|(at, _)| layout.slot_block(*at).is_none()) {
        repair.write_records(directory, &counts, file_block, block)?;
    }
    pass.live = counts.names() * SLOT_BYTES as u64;
    repair.finish_directory(directory, pass, extents, new_map, (0, false))
}

/// The names of a directory as packed entries, a run a block, as far as they can be read; and whether each is torn.
pub(in crate::directory) fn runs(
    repair: &mut Repair<'_>,
    directory: Ino,
    raw: &RawInode,
) -> Result<Vec<(Vec<u8>, bool)>, CheckError> {
    let layout = repair.slot_layout();
    let mut runs = Vec::new();
    let mut buf = repair.reader.new_buffer();
    let (extents, _) = repair.blocks_of_map(directory, raw);
    for (_, block) in blocks_of(&extents) {
        let Some(is_torn) = repair.read_torn(directory, block, BlockKind::DirSlots, &mut buf) else { continue };
        let mut run = Vec::new();
        for (entry, _) in used_slots(&repair.hasher, layout, &buf).filter_map(|(_, entry)| entry.ok()) {
            push_entry(&mut run, entry.ino, entry.file_type, entry.tag, entry.name);
        }
        runs.push((run, is_torn));
    }
    Ok(runs)
}

/// Adds names in new extents at the end of a directory that has been visited. The blocks of records that change with that are
/// written elsewhere, so that the directory is as it was until its inode names the new map.
pub(in crate::directory) fn append(repair: &mut Repair<'_>, directory: Ino, added: &[Added]) -> Result<(), CheckError> {
    repair.change_directories()?;
    let raw = repair.raw(directory)?;
    let layout = repair.slot_layout();
    let (extents, nodes) = repair.blocks_of_map(directory, &raw);
    let mut left: Vec<(FsBlock, u64)> = nodes.into_iter().map(|node| (node, 1)).collect();
    let mut slot_blocks = Vec::new();
    for (file_block, block) in blocks_of(&extents) {
        match layout.slot_block(file_block) {
            Some(_) => slot_blocks.push(block),
            None => left.push((block, 1)),
        }
    }
    let old = slot_blocks.len();
    let mut buf = repair.reader.new_buffer();
    let mut names = added.iter();
    while names.len() > 0 || slot_blocks.len() as u64 % EXTENT_BLOCKS > 0 {
        let block = repair.take(None)?;
        layout.init(&mut buf, repair.reader.volume, directory.0, block);
        let mut count = 0;
        for (slot, item) in names.by_ref().take(layout.slots).enumerate() {
            let (_, name) = buf[layout.offset(slot)..].split_at_mut(SlotHeader::SIZE);
            name[..item.name.len()].copy_from_slice(&item.name);
            let head = SlotHeader::read_mut(&mut buf[layout.offset(slot)..]);
            head.ino.set(item.ino.0);
            head.name_len = item.name.len() as u8;
            head.file_type = item.file_type;
            head.tag.set(tag_of(repair.hasher.hash(&item.name)));
            count += 1;
        }
        settle(layout, &mut buf, count);
        write(&repair.reader, block, &mut buf)?;
        slot_blocks.push(block);
    }
    let mut counts = Counts::new(layout, slot_blocks.len() as u64 / EXTENT_BLOCKS);
    for (slot_block, &block) in slot_blocks.iter().enumerate() {
        if repair.reader.read(block, BlockKind::DirSlots, directory.0, &mut buf).is_ok() {
            counts.add(slot_block as u64, SlotBlockHeader::read(&buf).names.get());
        }
    }
    let mut whole = Vec::new();
    let mut slots = slot_blocks.into_iter();
    for file_block in 0..layout.file_blocks(counts.records.len() as u64) {
        let block = match layout.slot_block(file_block) {
            Some(_) => slots.next().expect("as many as there are places"),
            None => {
                let block = repair.take(None)?;
                header::init(&mut buf, BlockKind::DirExtents, repair.reader.volume, directory.0, block);
                counts.fill(file_block, &mut buf);
                write(&repair.reader, block, &mut buf)?;
                block
            }
        };
        repair.add_to_map(&mut whole, FileBlock(file_block), block);
    }
    let tree = repair.build_map(directory, &whole)?;
    let pass = Pass { live: counts.names() * SLOT_BYTES as u64, ..Pass::default() };
    repair.finish_directory(directory, pass, whole, Some(NewMap { tree, left }), (0, false))?;
    for (index, Added { name, ino, file_type }) in added.iter().enumerate() {
        let hash = repair.hasher.hash(name);
        let position = old * layout.slots + index;
        repair.count_added(directory, *ino, *file_type, hash, position as u32)?;
    }
    Ok(())
}

impl Repair<'_> {
    fn slot_layout(&self) -> SlotLayout {
        SlotLayout::new(self.reader.block_size())
    }

    /// Writes a block of records, unless it says what it shall.
    fn write_records(
        &mut self,
        directory: Ino,
        counts: &Counts,
        file_block: u64,
        block: FsBlock,
    ) -> Result<(), CheckError> {
        let mut buf = self.reader.new_buffer();
        let is_sound = self.reader.read(block, BlockKind::DirExtents, directory.0, &mut buf).is_ok();
        if !is_sound {
            self.act(format!("directory {directory}: wrote the records of its extents at block {file_block} anew"));
            header::init(&mut buf, BlockKind::DirExtents, self.reader.volume, directory.0, block);
        }
        let before = buf.clone();
        counts.fill(file_block, &mut buf);
        if !is_sound || buf != before {
            write(&self.reader, block, &mut buf)?;
        }
        Ok(())
    }

    /// Extents of a map of whole extents of slots; if they are not what they were, also the tree of a map of them, and what the
    /// directory has no longer.
    fn whole_extents(&mut self, directory: Ino, raw: &RawInode) -> Result<(Vec<Extent>, Option<NewMap>), CheckError> {
        let layout = self.slot_layout();
        let (extents, nodes) = self.blocks_of_map(directory, raw);
        let mapped = extents.iter().map(|extent| u64::from(extent.length)).sum();
        let whole = layout.extents_in(mapped).filter(|_| covered(&extents) == mapped);
        if whole.is_some_and(|whole| whole <= layout.extents_max()) {
            return Ok((extents, None));
        }
        self.act(format!("directory {directory}: put its blocks of slots into a new map"));
        let mut buf = self.reader.new_buffer();
        let mut left: Vec<(FsBlock, u64)> = nodes.into_iter().map(|node| (node, 1)).collect();
        let mut kept = Vec::new();
        let most = layout.extents_max() * EXTENT_BLOCKS;
        for (_, block) in blocks_of(&extents) {
            let is_one = self.read_torn(directory, block, BlockKind::DirSlots, &mut buf).is_some();
            if is_one && (kept.len() as u64) < most {
                kept.push(block);
            } else {
                left.push((block, 1));
            }
        }
        while kept.len() as u64 % EXTENT_BLOCKS > 0 {
            let block = self.take(None)?;
            layout.init(&mut buf, self.reader.volume, directory.0, block);
            write(&self.reader, block, &mut buf)?;
            kept.push(block);
        }
        let mut whole = Vec::new();
        let mut kept = kept.into_iter();
        let end = layout.file_blocks(kept.len() as u64 / EXTENT_BLOCKS);
        for file_block in 0..end {
            let block = match layout.slot_block(file_block) {
                Some(_) => kept.next().expect("as many as there are places"),
                // What it says comes with the names.
                None => self.take(None)?,
            };
            self.add_to_map(&mut whole, FileBlock(file_block), block);
        }
        let tree = self.build_map(directory, &whole)?;
        Ok((whole, Some(NewMap { tree, left })))
    }

    /// Puts a block of slots right; how many names it has.
    fn visit_slot_block(
        &mut self,
        directory: Ino,
        slot_block: u64,
        block: FsBlock,
        pass: &mut Pass,
        queue: &mut VecDeque<Ino>,
    ) -> Result<u32, CheckError> {
        let layout = self.slot_layout();
        let mut buf = self.reader.new_buffer();
        let Some(is_torn) = self.read_torn(directory, block, BlockKind::DirSlots, &mut buf) else {
            self.act(format!("directory {directory}: block {slot_block} of its slots is lost"));
            layout.init(&mut buf, self.reader.volume, directory.0, block);
            write(&self.reader, block, &mut buf)?;
            return Ok(0);
        };
        let before = buf.clone();
        let mut names = 0;
        for (slot, entry) in used_slots(&self.hasher.clone(), layout, &before) {
            let at = layout.offset(slot);
            let (entry, hash) = match entry {
                Ok(found) => found,
                Err(_) => {
                    self.act(format!("directory {directory}: dropped what is in slot {slot} of block {slot_block}"));
                    SlotHeader::read_mut(&mut buf[at..]).ino.set(0);
                    continue;
                }
            };
            match self.judge(directory, &entry, hash, is_torn, pass, queue) {
                Err(why) => {
                    self.act(format!("directory {directory}: dropped {}: {why}", entry.name.escape_ascii()));
                    SlotHeader::read_mut(&mut buf[at..]).ino.set(0);
                }
                Ok(file_type) => {
                    let head = SlotHeader::read_mut(&mut buf[at..]);
                    head.file_type = file_type;
                    head.tag.set(tag_of(hash));
                    names += 1;
                    let position = slot_block * layout.slots as u64 + slot as u64;
                    self.set_first_identity(entry.ino, directory, hash, position as u32)?;
                }
            }
        }
        settle(layout, &mut buf, names);
        if buf != before || is_torn {
            write(&self.reader, block, &mut buf)?;
        }
        Ok(names)
    }
}

/// Sets the runs of a block of slots and its count as the slots in use imply.
fn settle(layout: SlotLayout, block: &mut [u8], names: u32) {
    SlotBlockHeader::read_mut(block).names.set(names);
    for slot in 0..layout.slots {
        if let Some(run) = run_of(layout, block, slot) {
            SlotHeader::read_mut(&mut block[layout.offset(slot)..]).run = run;
        }
    }
}
