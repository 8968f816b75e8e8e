//! What repairs of directories of every kind share: entries put right in place, and what becomes of a directory once its entries are known.

use super::entries::{Entry, entry_at, length_at, next_entry};
use super::indexed::build::{Record, index_blocks_max, plan_index, write_index};
use super::indexed::position;
use crate::options::CheckError;
use crate::repair::build::write;
use crate::repair::pending::{BuiltMap, Changed};
use crate::repair::volume::{Repair, state};
use crate::slots::body_parts;
use myriad_format::dir::{ENTRIES_OFFSET, EntryHeader, entry_size};
use myriad_format::extent::Extent;
use myriad_format::fork::{AttributeRoot, Fork};
use myriad_format::inode::{BodyHeader, RawInode, S_IFDIR, flag, fork};
use myriad_format::xattr::AttrBlockHeader;
use myriad_format::{BlockKind, FileBlock, FsBlock, Ino, NameHasher, SLOT_SIZE, header};
use std::collections::{HashMap, VecDeque};

/// Of a second hash, which tells twins from names that are there twice.
const OTHER_KEY: [u8; 16] = *b"the other hasher";

pub(crate) const DIR_TYPE: u8 = (S_IFDIR >> 12) as u8;

/// A name to be added to a directory.
#[derive(Clone)]
pub(crate) struct Added {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
    pub(crate) file_type: u8,
}

/// A new map, and what the directory has no longer then.
pub(crate) struct NewMap {
    pub(crate) tree: BuiltMap,
    pub(crate) left: Vec<(FsBlock, u64)>,
}

/// A directory as its entries are read.
#[derive(Default)]
pub(crate) struct Pass {
    pub(crate) live: u64,
    pub(crate) records: Vec<Record>,
    /// Of names: their hashes, and the other ones.
    pub(crate) hashes: HashMap<u64, u32>,
    /// Two names share their hash.
    pub(crate) has_twins: bool,
    /// Head of the new list of blocks with room.
    pub(crate) room_head: u32,
    /// Blocks of an index that is to be replaced, which the new one may be written over where there is no other room.
    pub(crate) old_index: Vec<(FsBlock, u64)>,
}

/// Adds an entry to packed ones, as long as its name needs; the byte at which it begins.
pub(crate) fn push_entry(bytes: &mut Vec<u8>, ino: Ino, file_type: u8, tag: u32, name: &[u8]) -> usize {
    let (at, size) = (bytes.len(), entry_size(name.len()));
    bytes.resize(at + size, 0);
    let head = EntryHeader::read_mut(&mut bytes[at..]);
    head.ino.set(ino.0);
    head.length.set(size as u16);
    head.name_len = name.len() as u8;
    head.file_type = file_type;
    head.tag.set(tag);
    bytes[at + EntryHeader::SIZE..][..name.len()].copy_from_slice(name);
    at
}

/// The blocks of a map, each with its file block.
pub(crate) fn blocks_of(extents: &[Extent]) -> impl Iterator<Item = (u64, FsBlock)> + '_ {
    extents.iter().flat_map(|extent| {
        (0..u64::from(extent.length)).map(|at| (extent.file_block.0 + at, extent.start.offset_by(at)))
    })
}

impl Repair<'_> {
    /// Data in the body of an inode that has one.
    pub(crate) fn data_in_body(&mut self, ino: Ino, raw: &RawInode) -> Result<Vec<u8>, CheckError> {
        let (block, _) = self.geometry.locate(ino).expect("items have a block");
        self.body_data(block, usize::from(raw.body_first.get()) * SLOT_SIZE)
    }

    /// Data of the body that begins at a byte of an inode block.
    pub(crate) fn body_data(&mut self, block: FsBlock, at: usize) -> Result<Vec<u8>, CheckError> {
        self.load_at_hand(block)?;
        let Some((_, buf, _)) = &self.at_hand else { return Ok(Vec::new()) };
        let len = usize::from(BodyHeader::read(&buf[at..]).data_len.get());
        Ok(buf[at + BodyHeader::SIZE..][..len].to_vec())
    }

    /// Puts packed entries right in place; how many bytes of them can be kept. An entry may lie in two sectors of which one
    /// is older, or zeros where it could not be read. It goes by itself, with what lies before the next one that can be told by its tag if it
    /// does not say where that begins; and those behind it are held to what torn ones are, as are those that end past `torn_from`.
    pub(crate) fn fix_entries(
        &mut self,
        directory: Ino,
        file_block: FileBlock,
        bytes: &mut [u8],
        mut torn_from: usize,
        pass: &mut Pass,
        queue: &mut VecDeque<Ino>,
    ) -> Result<usize, CheckError> {
        let mut at = 0;
        while at < bytes.len() {
            let byte = at + ENTRIES_OFFSET;
            let Ok(length) = length_at(bytes, at) else {
                let Some(next) = next_entry(bytes, at, &self.hasher) else {
                    self.act(format!("directory {directory}: cut entry block {file_block} at byte {byte}"));
                    return Ok(at);
                };
                let skipped = next - at;
                self.act(format!(
                    "directory {directory}: dropped {skipped} bytes at byte {byte} of entry block {file_block}"
                ));
                EntryHeader::read_mut(&mut bytes[at..]).length.set(skipped as u16);
                free_entry(&mut bytes[at..next]);
                torn_from = 0;
                at = next;
                continue;
            };
            let Ok(entry) = entry_at(bytes, at) else {
                self.act(format!("directory {directory}: dropped what is at byte {byte} of entry block {file_block}"));
                free_entry(&mut bytes[at..at + length]);
                torn_from = 0;
                at += length;
                continue;
            };
            if entry.ino.is_none() {
                at += length;
                continue;
            }
            let position = position(file_block, at as u32, self.reader.block_size());
            let hash = self.hasher.hash(entry.name);
            let name = entry.name.escape_ascii().to_string();
            match self.judge(directory, &entry, hash, at + length > torn_from, pass, queue) {
                Err(why) => {
                    self.act(format!("directory {directory}: dropped {name}: {why}"));
                    free_entry(&mut bytes[at..at + length]);
                }
                Ok(file_type) => {
                    let ino = entry.ino;
                    let head = EntryHeader::read_mut(&mut bytes[at..]);
                    head.file_type = file_type;
                    head.tag.set(hash as u32);
                    pass.live += length as u64;
                    pass.records.push(Record { tag: hash as u32, position: position as u32, ino: ino.0 });
                    self.set_first_identity(ino, directory, hash, position as u32)?;
                }
            }
            at += length;
        }
        Ok(at)
    }

    /// Whether an entry may stay, with which type; what it names is counted.
    pub(crate) fn judge(
        &mut self,
        directory: Ino,
        entry: &Entry<'_>,
        hash: u64,
        is_torn: bool,
        pass: &mut Pass,
        queue: &mut VecDeque<Ino>,
    ) -> Result<u8, &'static str> {
        let root = Ino(self.superblock.root_ino.get());
        if self.item(entry.ino).is_none() {
            return Err("its inode does not exist");
        }
        if is_torn && !self.is_believed(directory, entry, hash) {
            return Err("it is torn");
        }
        let item = *self.item(entry.ino).expect("it exists");
        let file_type = item.file_type;
        if file_type == DIR_TYPE && (entry.ino == root || entry.ino == directory || item.state & state::NAMED != 0) {
            return Err("the directory has a name already");
        }
        if file_type == DIR_TYPE && self.is_second_name(directory, entry.ino, hash) {
            return Err("the directory has another name, which it says is its own");
        }
        // Names that share their hash share this one, too, only if they are the same.
        let other_hash = NameHasher::new(OTHER_KEY).hash(entry.name) as u32;
        let is_twin = match pass.hashes.get(&hash) {
            Some(&other) if other == other_hash => return Err("the name is there twice"),
            other => other.is_some(),
        };
        let item = self.item(entry.ino).expect("it exists");
        item.state |= state::NAMED;
        if file_type == DIR_TYPE {
            queue.push_back(entry.ino);
            if let Some(parent) = self.item(directory) {
                parent.names += 1;
            }
        } else {
            item.names += 1;
        }
        pass.hashes.insert(hash, other_hash);
        pass.has_twins |= is_twin;
        Ok(file_type)
    }

    /// Whether an entry of a torn block is one that was written as it is. The inode may know better than the tag, which may be
    /// one that a repair was about to put right.
    pub(crate) fn is_believed(&mut self, directory: Ino, entry: &Entry<'_>, hash: u64) -> bool {
        entry.tag == hash as u32 || self.is_identity(directory, entry.ino, hash)
    }

    /// Whether an inode says that this is its name.
    pub(crate) fn is_identity(&mut self, directory: Ino, ino: Ino, hash: u64) -> bool {
        self.raw(ino).is_ok_and(|raw| raw.parent.get() == directory.0 && raw.name_hash.get() == hash)
    }

    /// Whether a name of a directory is not its own: it says that it has another one, and the root leads to that. A rename that power loss has
    /// cut short leaves such a name, and its old one, beside the new one that was perhaps synced (order `softdep`).
    fn is_second_name(&mut self, directory: Ino, ino: Ino, hash: u64) -> bool {
        // What cannot be read is met again on the way, and told then.
        !self.is_identity(directory, ino, hash)
            && self.find_homes().is_ok()
            && self.item(ino).is_some_and(|item| item.state & state::AT_HOME != 0)
    }

    /// Makes the first name found the identity, so that it describes a name that exists.
    pub(crate) fn set_first_identity(
        &mut self,
        ino: Ino,
        parent: Ino,
        hash: u64,
        position: u32,
    ) -> Result<(), CheckError> {
        let is_first = self.item(ino).is_some_and(|item| item.file_type == DIR_TYPE || item.names == 1);
        if is_first { self.set_identity(ino, parent, hash, position) } else { Ok(()) }
    }

    pub(crate) fn set_identity(&mut self, ino: Ino, parent: Ino, hash: u64, position: u32) -> Result<(), CheckError> {
        self.change_inode(ino, |raw| {
            raw.parent.set(parent.0);
            raw.name_hash.set(hash);
            raw.entry_position.set(position);
        })
    }

    /// Writes the index; what the inode says about the directory follows. `end`: entry blocks made.
    pub(crate) fn finish_directory(
        &mut self,
        directory: Ino,
        mut pass: Pass,
        extents: Vec<Extent>,
        new_map: Option<NewMap>,
        (end, has_index): (u64, bool),
    ) -> Result<(), CheckError> {
        /// Most directories that wait for a flush: it takes as long as very many of them.
        const CHANGED_MAX: usize = 1024;
        let raw = self.raw(directory)?;
        let attribute_blocks = raw.attribute_root().map_or(0, |root| u64::from(root.count));
        if extents.is_empty() {
            // No entry block: an empty directory. Its map may have been a tree without records.
            match new_map {
                Some(new_map) => self.left.extend(new_map.left),
                None => self.left.extend(self.blocks_of_map(directory, &raw).1.into_iter().map(|node| (node, 1))),
            }
            self.change_inode(directory, |raw| {
                Fork::None.encode(raw);
                raw.size.set(0);
                raw.set_block_total(attribute_blocks);
            })?;
            self.set_pointers(directory, &[]);
            self.leave_root(directory);
            return Ok(());
        }
        let mapped: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
        let mut total = mapped + attribute_blocks;
        total += match &new_map {
            Some(NewMap { tree, .. }) => tree.nodes(),
            None => self.blocks_of_map(directory, &raw).1.len() as u64,
        };
        let attributes = self.take_out_attributes(directory)?;
        total += u64::from(attributes.is_some());
        let mut index_root = FsBlock::NONE;
        if has_index {
            let counts = (pass.room_head, end as u32);
            let fill = self.fill_for(index_blocks_max(pass.records.len(), self.reader.block_size()));
            let plan = plan_index(&self.reader, &mut pass.records, fill)?;
            // After this nothing is without room any more.
            let (places, is_over) = self.take_over(plan.blocks, &pass.old_index)?.ok_or(CheckError::NoRoom)?;
            total += places.len() as u64;
            index_root = write_index(&self.reader, directory.0, &pass.records, counts, plan, places)?;
            self.left.extend(pass.old_index.iter().filter(|_| !is_over));
        }
        let map = new_map.map(|NewMap { tree, left }| {
            // Not sooner: the next block may be taken from what is left.
            self.left.extend(left);
            (extents, tree)
        });
        self.leave_root(directory);
        let Pass { live, has_twins, .. } = pass;
        self.changed.push(Changed { ino: directory, map, index_root, attributes, live, total, has_twins });
        if self.changed.len() >= CHANGED_MAX { self.change_directories() } else { Ok(()) }
    }

    /// Copies the attributes in the body of a directory, whose names are about to leave it, to a block of their own.
    pub(crate) fn take_out_attributes(&mut self, directory: Ino) -> Result<Option<FsBlock>, CheckError> {
        let raw = self.raw(directory)?;
        if raw.fork_code() != fork::INLINE || !raw.has_flag(flag::ATTR_BODY) {
            return Ok(None);
        }
        let Some((_, bytes, _)) = &self.at_hand else { return Ok(None) };
        let first = u32::from(raw.body_first.get());
        let list = body_parts(bytes, &(first..first + u32::from(raw.body_slots))).1.to_vec();
        let block = self.take(None)?;
        let mut buf = self.reader.new_buffer();
        header::init(&mut buf, BlockKind::Attributes, self.reader.volume, directory.0, block);
        AttrBlockHeader::read_mut(&mut buf).length.set(list.len() as u32);
        // There is room: beside a body there are the slots of the block's header and of the inode, and they are longer than
        // this header.
        buf[AttrBlockHeader::SIZE..][..list.len()].copy_from_slice(&list);
        write(&self.reader, block, &mut buf)?;
        Ok(Some(block))
    }

    /// Lets directories name their new maps and indexes, which are durable before: power lost in between leaves each as it was
    /// or as it shall be. An index without its contents is no loss, but one that an earlier repair left in its place may count
    /// fewer entry blocks than there are by now. A body, which may lie in another sector than its inode, stays as it is until
    /// the inode is durable that looks for names and attributes elsewhere.
    pub(crate) fn change_directories(&mut self) -> Result<(), CheckError> {
        if self.changed.is_empty() {
            return Ok(());
        }
        self.flush()?;
        let mut moved = Vec::new();
        for Changed { ino, map, index_root, attributes, live, total, has_twins } in std::mem::take(&mut self.changed) {
            if self.raw(ino)?.fork_code() == fork::INLINE {
                moved.push(ino);
            }
            if let Some((extents, built)) = map {
                self.set_map(ino, &extents, built)?;
            }
            self.change_inode(ino, |raw| {
                raw.set_index_root(index_root);
                raw.size.set(live);
                raw.set_block_total(total);
                set_twins(raw, has_twins);
                if let Some(block) = attributes {
                    raw.flags.set(raw.flags.get() & !flag::ATTR_BODY);
                    raw.set_attribute_root(Some(AttributeRoot { block, count: 1 }));
                }
            })?;
        }
        if !moved.is_empty() {
            self.store_at_hand()?;
            self.flush()?;
        }
        moved.into_iter().try_for_each(|ino| self.empty_body(ino))
    }

    /// Takes the data out of an inode's body, and the attributes, which are elsewhere; its slots stay the inode's.
    pub(crate) fn empty_body(&mut self, ino: Ino) -> Result<(), CheckError> {
        let raw = self.raw(ino)?;
        if let Some((_, buf, dirty)) = &mut self.at_hand {
            let at = usize::from(raw.body_first.get()) * SLOT_SIZE;
            let head = BodyHeader::read_mut(&mut buf[at..]);
            head.data_len.set(0);
            head.attr_len.set(0);
            *dirty = true;
        }
        Ok(())
    }

    /// Counts a name that was added to a directory, and makes it the identity of what it names.
    pub(crate) fn count_added(
        &mut self,
        directory: Ino,
        ino: Ino,
        file_type: u8,
        hash: u64,
        position: u32,
    ) -> Result<(), CheckError> {
        self.set_identity(ino, directory, hash, position)?;
        let counted = if file_type == DIR_TYPE { directory } else { ino };
        if let Some(item) = self.item(counted) {
            item.names += 1;
        }
        Ok(())
    }

    /// Adds a block to the end of a map.
    pub(crate) fn add_to_map(&self, extents: &mut Vec<Extent>, file_block: FileBlock, block: FsBlock) {
        let extent = Extent { file_block, start: block, length: 1, unwritten: false };
        match extents.last_mut() {
            Some(last)
                if last.end() == extent.file_block
                    && last.start.0 + u64::from(last.length) == block.0
                    && self.geometry.is_data_range(last.start, u64::from(last.length) + 1) =>
            {
                last.length += 1
            }
            _ => extents.push(extent),
        }
    }
}

/// Says that a directory has twins, if it does; it may say so without.
pub(crate) fn set_twins(raw: &mut RawInode, has_twins: bool) {
    if has_twins {
        raw.flags.set(raw.flags.get() | flag::HASH_TWINS);
    }
}

/// Leaves nothing of an entry but its length.
pub(crate) fn free_entry(entry: &mut [u8]) {
    entry[..8].fill(0);
    entry[10..].fill(0);
}
