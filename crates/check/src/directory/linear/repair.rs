//! Repair of directories of kind `linear`: a unit that is not believed becomes an empty one, and its neighbours stay as they are.
//!
//! Entries stay in their units, but for one whose tag another one of its unit has: it goes into a new unit at the end. Its old
//! block stays as it was; a copy without the entry takes its place, once the directory leads to the copy and to the new unit.
//! Nothing says where a unit belongs but the map, so blocks behind a hole of it move up.

use super::check::units_of;
use crate::directory::entries::{entry_at, length_at};
use crate::directory::fix::{Added, NewMap, Pass, blocks_of, free_entry};
use crate::options::CheckError;
use crate::repair::build::write;
use crate::repair::volume::Repair;
use myriad_format::dir::{EntryHeader, UNITS_MAX, clear_unit, entry_size};
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::unit::{UNIT_ROOM, UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, FileBlock, FsBlock, Ino, header};
use std::collections::VecDeque;

/// Puts a directory right; hands the directories that it names to the queue.
pub(in crate::directory) fn visit(
    repair: &mut Repair<'_>,
    directory: Ino,
    mut pass: Pass,
    queue: &mut VecDeque<Ino>,
) -> Result<(), CheckError> {
    let raw = repair.raw(directory)?;
    let (mut extents, mut new_map) = repair.close_up(directory, &raw)?;
    let block_size = repair.reader.block_size();
    let per_block = (block_size / UNIT_SIZE) as u64;
    let blocks: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
    // The size says which units of the last block are in use, if it fits the map.
    let said = raw.size.get() / UNIT_SIZE as u64;
    let units = if said.div_ceil(per_block) == blocks { said } else { blocks * per_block };
    let (mut crowded, mut placed, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for (at, block) in blocks_of(&extents) {
        let now = repair.visit_units(directory, block, (at * per_block, units), &mut pass, queue, &mut crowded)?;
        if now != block {
            left.push((block, 1));
        }
        repair.add_to_map(&mut placed, FileBlock(at), now);
    }
    pass.live = units * UNIT_SIZE as u64;
    if !crowded.is_empty() {
        let (new_extents, more) = repair.add_units(directory, placed, &crowded, &mut pass)?;
        let tree = repair.build_map(directory, &new_extents)?;
        let nodes = repair.blocks_of_map(directory, &raw).1;
        left.extend(new_map.map_or_else(Vec::new, |map| map.left));
        left.extend(nodes.into_iter().map(|node| (node, 1)));
        left.sort_unstable();
        left.dedup();
        new_map = Some(NewMap { tree, left });
        extents = new_extents;
        repair.act(format!(
            "directory {directory}: moved {more} names to new units, for others of theirs have their tags"
        ));
        for Added { name, ino, .. } in &crowded {
            let hash = repair.hasher.hash(name);
            repair.set_first_identity(*ino, directory, hash, 0)?;
        }
    }
    repair.finish_directory(directory, pass, extents, new_map, (0, false))
}

/// The entries of a directory, unit by unit, as far as they are believed. None is torn: a device writes a unit as one.
pub(in crate::directory) fn runs(
    repair: &mut Repair<'_>,
    directory: Ino,
    raw: &RawInode,
) -> Result<Vec<(Vec<u8>, bool)>, CheckError> {
    let mut runs = Vec::new();
    let mut buf = repair.reader.new_buffer();
    let (extents, _) = repair.blocks_of_map(directory, raw);
    for (_, block) in blocks_of(&extents) {
        if repair.reader.read_raw(block, &mut buf).is_ok() || repair.reader.read_sectors(block, &mut buf) {
            let units = units_of(&repair.reader, directory, block, &buf);
            runs.extend(units.into_iter().flatten().map(|unit| (unit.to_vec(), false)));
        }
    }
    Ok(runs)
}

/// Adds names in new units at the end of a directory that has been visited.
pub(in crate::directory) fn append(repair: &mut Repair<'_>, directory: Ino, added: &[Added]) -> Result<(), CheckError> {
    repair.change_directories()?;
    let raw = repair.raw(directory)?;
    let (extents, nodes) = repair.blocks_of_map(directory, &raw);
    let mut pass = Pass { has_twins: false, ..Pass::default() };
    let (extents, _) = repair.add_units(directory, extents, added, &mut pass)?;
    let tree = repair.build_map(directory, &extents)?;
    let left = nodes.into_iter().map(|node| (node, 1)).collect();
    repair.finish_directory(directory, pass, extents, Some(NewMap { tree, left }), (0, false))?;
    for Added { name, ino, file_type } in added {
        let hash = repair.hasher.hash(name);
        repair.count_added(directory, *ino, *file_type, hash, 0)?;
    }
    Ok(())
}

impl Repair<'_> {
    /// Extents of a directory from file block 0 on without holes, and as many as it may have; if they are not what they were,
    /// also the tree of a map of them, and what the directory has no longer.
    fn close_up(&mut self, directory: Ino, raw: &RawInode) -> Result<(Vec<Extent>, Option<NewMap>), CheckError> {
        let (extents, nodes) = self.blocks_of_map(directory, raw);
        let most = UNITS_MAX * UNIT_SIZE as u64 / self.reader.block_size() as u64;
        let mut whole: Vec<Extent> = Vec::new();
        let mut left: Vec<(FsBlock, u64)> = Vec::new();
        let mut end = 0;
        for extent in &extents {
            if end + u64::from(extent.length) > most {
                left.push((extent.start, u64::from(extent.length)));
                continue;
            }
            whole.push(Extent { file_block: FileBlock(end), unwritten: false, ..*extent });
            end += u64::from(extent.length);
        }
        if whole == extents {
            return Ok((whole, None));
        }
        left.extend(nodes.into_iter().map(|node| (node, 1)));
        self.act(format!("directory {directory}: closed the gaps between its entry blocks"));
        let tree = self.build_map(directory, &whole)?;
        Ok((whole, Some(NewMap { tree, left })))
    }

    /// Puts the units of a block right, of which the first has number `first`; those from number `units` on are to be empty.
    /// Names for which there is no place in their unit are added to `crowded`: then the block stays as it is, and the units
    /// without these names are in a new one. Where the units are now.
    fn visit_units(
        &mut self,
        directory: Ino,
        block: FsBlock,
        (first, units): (u64, u64),
        pass: &mut Pass,
        queue: &mut VecDeque<Ino>,
        crowded: &mut Vec<Added>,
    ) -> Result<FsBlock, CheckError> {
        let crowded_before = crowded.len();
        let mut buf = self.reader.new_buffer();
        if self.reader.read_raw(block, &mut buf).is_err() {
            self.reader.read_sectors(block, &mut buf);
        }
        let before = buf.clone();
        let are_sound: Vec<bool> =
            units_of(&self.reader, directory, block, &buf).into_iter().map(|unit| unit.is_ok()).collect();
        for (index, unit) in buf.chunks_exact_mut(UNIT_SIZE).enumerate() {
            let number = first + index as u64;
            if !are_sound[index] {
                self.act(format!("directory {directory}: unit {number} is lost"));
                init_unit(unit, directory);
            } else if number >= units {
                clear_unit(unit);
            } else {
                self.fix_unit(directory, number, &mut unit[UnitHeader::SIZE..], pass, queue, crowded)?;
            }
        }
        let now = if crowded.len() > crowded_before { self.take(None)? } else { block };
        if buf != before {
            write(&self.reader, now, &mut buf)?;
        }
        Ok(now)
    }

    /// Puts the entries of a unit right in place.
    fn fix_unit(
        &mut self,
        directory: Ino,
        number: u64,
        bytes: &mut [u8],
        pass: &mut Pass,
        queue: &mut VecDeque<Ino>,
        crowded: &mut Vec<Added>,
    ) -> Result<(), CheckError> {
        let mut at = 0;
        let mut tags = Vec::new();
        while at < bytes.len() {
            let Ok(length) = length_at(bytes, at) else {
                self.act(format!("directory {directory}: cut unit {number} at byte {at} of its entries"));
                cut_unit(bytes, at);
                return Ok(());
            };
            let next = at + length;
            let Ok(entry) = entry_at(bytes, at) else {
                self.act(format!(
                    "directory {directory}: dropped what is at byte {at} of the entries of unit {number}"
                ));
                free_entry(&mut bytes[at..next]);
                at = next;
                continue;
            };
            if entry.ino.is_none() {
                at = next;
                continue;
            }
            let hash = self.hasher.hash(entry.name);
            let name = entry.name.to_vec();
            let ino = entry.ino;
            match self.judge(directory, &entry, hash, false, pass, queue) {
                Err(why) => {
                    self.act(format!("directory {directory}: dropped {}: {why}", name.escape_ascii()));
                    free_entry(&mut bytes[at..next]);
                }
                Ok(file_type) if tags.contains(&(hash as u32)) => {
                    free_entry(&mut bytes[at..next]);
                    crowded.push(Added { name, ino, file_type });
                }
                Ok(file_type) => {
                    tags.push(hash as u32);
                    let head = EntryHeader::read_mut(&mut bytes[at..]);
                    head.file_type = file_type;
                    head.tag.set(hash as u32);
                    self.set_first_identity(ino, directory, hash, 0)?;
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Writes names into new blocks at the end of a map; the map with them, and how many names those are. The size in `pass`
    /// follows.
    fn add_units(
        &mut self,
        directory: Ino,
        mut extents: Vec<Extent>,
        added: &[Added],
        pass: &mut Pass,
    ) -> Result<(Vec<Extent>, usize), CheckError> {
        let block_size = self.reader.block_size();
        let mut next = extents.last().map_or(0, |extent| extent.end().0);
        let mut names = added.iter().peekable();
        while names.peek().is_some() {
            let block = self.take(None)?;
            let mut buf = self.reader.new_buffer();
            header::init(&mut buf, BlockKind::LinearEntries, self.reader.volume, directory.0, block);
            for unit in buf.chunks_exact_mut(UNIT_SIZE) {
                clear_unit(unit);
                let bytes = &mut unit[UnitHeader::SIZE..];
                let mut tags = Vec::new();
                let (mut at, mut last) = (0, 0);
                while let Some(item) = names.peek() {
                    let (size, tag) = (entry_size(item.name.len()), self.hasher.hash(&item.name) as u32);
                    if at + size > UNIT_ROOM || tags.contains(&tag) {
                        break;
                    }
                    let head = EntryHeader::read_mut(&mut bytes[at..]);
                    head.ino.set(item.ino.0);
                    head.length.set(size as u16);
                    head.name_len = item.name.len() as u8;
                    head.file_type = item.file_type;
                    head.tag.set(tag);
                    bytes[at + EntryHeader::SIZE..][..item.name.len()].copy_from_slice(&item.name);
                    tags.push(tag);
                    (last, at) = (at, at + size);
                    names.next();
                }
                if at > 0 {
                    EntryHeader::read_mut(&mut bytes[last..]).length.set((UNIT_ROOM - last) as u16);
                }
            }
            write(&self.reader, block, &mut buf)?;
            self.add_to_map(&mut extents, FileBlock(next), block);
            next += 1;
        }
        pass.live = next * block_size as u64;
        Ok((extents, added.len()))
    }
}

/// Makes a unit an empty one of a directory. Its checksum comes with the write.
fn init_unit(unit: &mut [u8], directory: Ino) {
    unit.fill(0);
    let head = UnitHeader::read_mut(unit);
    head.magic.set(BlockKind::LinearEntries.magic());
    head.owner.set(directory.0);
    clear_unit(unit);
}

/// Makes what lies behind a byte of a unit's entries a free entry, or, if it is too short to be one, part of the last entry
/// before it.
fn cut_unit(bytes: &mut [u8], at: usize) {
    let rest = bytes.len() - at;
    if rest >= EntryHeader::SIZE {
        bytes[at..].fill(0);
        EntryHeader::read_mut(&mut bytes[at..]).length.set(rest as u16);
        return;
    }
    let mut last = 0;
    while let Ok(length) = length_at(bytes, last) {
        if last + length >= at {
            break;
        }
        last += length;
    }
    let length = bytes.len() - last;
    EntryHeader::read_mut(&mut bytes[last..]).length.set(length as u16);
}
