//! Pass "names": a directory's entries, its list of blocks with room, its index; and every name against its inode.
//!
//! Index and entries are compared without holding either in memory: both sides add up a digest of each (tag, position,
//! inode). Only when the sums differ are the two listed and compared.

pub(crate) mod entries;
pub(crate) mod index;

use crate::attributes::check_attributes;
use crate::context::Context;
use crate::extents::{check_map, for_each_extent};
use crate::findings::number;
use crate::inodes::check_blocks;
use crate::io::Damage;
use crate::report::Place;
use crate::slots::inode_at;
use crate::table::{SlotTable, identity_digest, slot_bit};
use entries::{Entry, parse};
use index::{Digest, Index, Root};
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader, LIST_END};
use myriad_format::extent::Extent;
use myriad_format::inode::{RawInode, fork};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The directories of the volume and where each was found named.
pub(crate) struct Directories {
    pub inos: Vec<Ino>,
    /// The directory that names it; 0 until found.
    parents: Vec<AtomicU64>,
}

impl Directories {
    pub fn new(inos: Vec<Ino>) -> Self {
        let parents = inos.iter().map(|_| AtomicU64::new(0)).collect();
        Self { inos, parents }
    }

    pub fn index(&self, ino: Ino) -> Option<usize> {
        self.inos.binary_search(&ino).ok()
    }

    pub fn parent(&self, index: usize) -> Ino {
        Ino(self.parents[index].load(Relaxed))
    }

    /// Notes that `parent` names the directory; `false` if another entry did already.
    fn name(&self, index: usize, parent: Ino) -> bool {
        self.parents[index].compare_exchange(0, parent.0, Relaxed, Relaxed).is_ok()
    }
}

/// What a directory's pass needs.
pub(crate) struct Names<'a> {
    pub context: &'a Context<'a>,
    pub slots: &'a SlotTable<'a>,
    pub directories: &'a Directories,
    /// Names of inodes whose slots are not at hand will be compared later.
    pub has_more: bool,
    /// Entry blocks of directories of which something had to be left out, which was told: extents and how many were made.
    pub left_out: &'a Mutex<HashMap<Ino, (Vec<Extent>, u64)>>,
}

/// Sums over a directory's live entries.
#[derive(Default)]
struct Sums {
    live: u64,
    digest: Digest,
    subdirectories: u32,
}

impl Names<'_> {
    pub fn check_directory(&self, ino: Ino, raw: &RawInode, data: &[u8], attributes: &[u8]) {
        let context = self.context;
        let place = Place::Inode(ino);
        let mut sums = Sums::default();
        let mut extents: Vec<Extent> = Vec::new();
        let mut blocks = check_attributes(context, ino, raw, attributes);
        let map = check_map(context, ino, raw, |extent| extents.push(extent));
        blocks += map.blocks;
        let mut index = None;
        if let Some(root) = raw.index_root() {
            let walked = Index::walk(context, ino, root);
            blocks += walked.blocks;
            index = Some(walked);
        }
        match raw.fork_code() {
            fork::INLINE => {
                let (live, mut names) = self.check_entries(ino, FileBlock(0), data, &mut sums);
                sums.live += live;
                self.check_unique(ino, raw, data, &mut names);
            }
            _ if raw.is_dir_in_blocks() => {
                let (made, is_whole) = self.check_blocks(ino, raw, &extents, index.as_ref(), &mut sums);
                let is_whole = is_whole && map.is_sound && index.as_ref().is_none_or(|index| index.root.is_some());
                if self.has_more && !is_whole {
                    let mut left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
                    left_out.insert(ino, (extents.clone(), made));
                }
            }
            _ => {}
        }
        if let Some(index) = &index {
            index.compare(context, ino, raw, sums.digest, &extents);
        }
        if raw.size.get() != sums.live {
            let message = format!("size {}, its live entries have {} bytes", raw.size, sums.live);
            context.report(number::INODE_SIZE, place, message);
        }
        check_blocks(context, ino, raw, blocks);
        context.entries.fetch_add(sums.digest.count, Relaxed);
        self.count_directory(ino, sums.subdirectories);
    }

    /// As [`Self::check_directory`] of one that has been checked, for the names of inodes whose slots were not at hand then.
    pub fn check_part(&self, ino: Ino, raw: &RawInode, data: &[u8]) {
        let context = self.context;
        let block_size = context.reader.block_size();
        let own = self.slots.find(ino);
        let mut subdirectories = 0_u32;
        let mut check = |file_block: FileBlock, bytes: &[u8]| {
            for entry in parse(bytes).flatten().filter(|entry| !entry.ino.is_none()) {
                let is_subdirectory = own.is_some() && self.directories.index(entry.ino).is_some();
                subdirectories = subdirectories.saturating_add(u32::from(is_subdirectory));
                if self.slots.covers(entry.ino) {
                    let position = position(file_block, entry.offset, block_size);
                    self.check_target(ino, &entry, position, context.hasher.hash(entry.name));
                }
            }
        };
        match raw.fork_code() {
            fork::INLINE => check(FileBlock(0), data),
            _ if raw.is_dir_in_blocks() => {
                let left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner).get(&ino).cloned();
                let is_told = left_out.is_some();
                let (extents, made) = left_out.unwrap_or_else(|| {
                    let root = raw.index_root().map(|root| Root::read(context, ino, root).ok().map(|(root, _)| root));
                    let mut extents = Vec::new();
                    for_each_extent(&context.reader, ino, raw, |extent| extents.push(extent));
                    (extents, entry_blocks_made(root.as_ref().map(Option::as_ref)))
                });
                for_each_block(context, ino, &extents, made, |file_block, block| match block {
                    Ok((_, bytes)) => check(file_block, bytes),
                    Err(bad) if !is_told => bad.report(context, ino, file_block),
                    Err(_) => {}
                });
            }
            _ => {}
        }
        self.count_directory(ino, subdirectories);
    }

    fn count_directory(&self, ino: Ino, subdirectories: u32) {
        if let Some(slot) = self.slots.find(ino) {
            // An orphan keeps no link, not even its own two.
            let own = if slot.state() & slot_bit::NO_LINKS != 0 { 0 } else { 2 };
            slot.found(own + subdirectories);
        }
    }

    /// Entry blocks and the list of those with room; how many blocks were made, and whether all could be read. Blocks mapped
    /// past those hold nothing yet.
    fn check_blocks(
        &self,
        ino: Ino,
        raw: &RawInode,
        extents: &[Extent],
        index: Option<&Index>,
        sums: &mut Sums,
    ) -> (u64, bool) {
        let context = self.context;
        let place = Place::Inode(ino);
        let block_size = context.reader.block_size();
        let mut with_room: HashMap<u32, u32> = HashMap::new();
        let said = entry_blocks_made(index.map(|index| index.root.as_ref()));
        // A position has 32 bits.
        let most = (1_u64 << 35) / block_size as u64;
        if said > most {
            context.report(number::INDEX_SHAPE, place, format!("the index says that {said} entry blocks were made"));
        }
        let made = said.min(most);
        let mut covered = 0;
        for extent in extents {
            if extent.file_block.0 != covered {
                break;
            }
            covered = extent.end().0;
        }
        let is_readable = index.is_none_or(|index| index.root.is_some());
        if is_readable && (made == 0 || covered < made) {
            context.report(number::INDEX_SHAPE, place, format!("of {made} entry blocks made {covered} are mapped"));
        }
        for _ in extents.iter().filter(|extent| extent.unwritten) {
            context.report(number::EXTENT, place, "a directory has an unwritten extent");
        }
        let mut is_whole = made == said;
        for_each_block(context, ino, extents, made, |file_block, block| {
            let (header, bytes) = match block {
                Ok(block) => block,
                Err(bad) => {
                    is_whole = false;
                    return bad.report(context, ino, file_block);
                }
            };
            let (live, mut names) = self.check_entries(ino, file_block, bytes, sums);
            sums.live += live;
            if index.is_none() {
                self.check_unique(ino, raw, bytes, &mut names);
            }
            if u64::from(header.live.get()) != live {
                let message =
                    format!("entry block {file_block}: {live} bytes are live, its header says {}", header.live);
                context.report(number::ENTRY_BLOCK, place, message);
            }
            if index.is_some() && header.next_room.get() != 0 {
                with_room.insert(file_block.0 as u32, header.next_room.get());
            }
        });
        let head = index.and_then(|index| index.root.as_ref()).map_or(LIST_END, |root| root.room_head);
        if let Err(why) = check_room(head, with_room) {
            context.report(number::ROOM_LIST, place, why);
        }
        (made, is_whole)
    }

    /// Checks packed entries; bytes of the live ones, and (hash, offset) of each.
    fn check_entries(&self, ino: Ino, file_block: FileBlock, bytes: &[u8], sums: &mut Sums) -> (u64, Vec<(u64, u32)>) {
        let context = self.context;
        let mut live = 0;
        let mut names = Vec::new();
        for entry in parse(bytes) {
            match entry {
                Err(bad) => {
                    let offset = bad.offset + ENTRIES_OFFSET as u32;
                    let corrupt =
                        Corrupt::DirEntry { ino, block: file_block, offset, field: bad.field, value: bad.value };
                    context.damage(Place::Inode(ino), corrupt.into());
                }
                Ok(entry) if entry.ino.is_none() => {}
                Ok(entry) => {
                    live += u64::from(entry.length);
                    let position = position(file_block, entry.offset, context.reader.block_size());
                    let hash = context.hasher.hash(entry.name);
                    names.push((hash, entry.offset));
                    sums.digest.add(entry.tag, position as u32, entry.ino);
                    self.check_name(ino, &entry, position, hash, sums);
                }
            }
        }
        (live, names)
    }

    /// One live entry against the inode it names.
    fn check_name(&self, ino: Ino, entry: &Entry<'_>, position: u64, hash: u64, sums: &mut Sums) {
        let context = self.context;
        let place = Place::Entry { directory: ino, position };
        let name = entry.name.escape_ascii();
        if entry.tag != hash as u32 {
            let message = format!("{name}: tag {:#x} stored, {:#x} computed", entry.tag, hash as u32);
            context.report(number::ENTRY_TAG, place, message);
        }
        if let Some(index) = self.directories.index(entry.ino) {
            sums.subdirectories = sums.subdirectories.saturating_add(1);
            let is_root = entry.ino.0 == context.superblock.root_ino.get();
            if is_root || !self.directories.name(index, ino) {
                context.report(
                    number::DIRECTORY_TWICE,
                    place,
                    format!("{name} is one more name of directory {}", entry.ino),
                );
            }
        }
        if self.slots.covers(entry.ino) {
            self.check_target(ino, entry, position, hash);
        }
    }

    /// One live entry against the slot that it names, which is at hand if it exists.
    fn check_target(&self, ino: Ino, entry: &Entry<'_>, position: u64, hash: u64) {
        let context = self.context;
        let place = Place::Entry { directory: ino, position };
        let name = entry.name.escape_ascii();
        let Some(slot) = self.slots.find(entry.ino) else {
            context.report(number::NO_INODE, place, format!("{name} names inode {}, which does not exist", entry.ino));
            return;
        };
        if slot.file_type() != entry.file_type {
            let message =
                format!("{name} has type {}, its inode {} has {}", entry.file_type, entry.ino, slot.file_type());
            context.report(number::ENTRY_TYPE, place, message);
        }
        if self.directories.index(entry.ino).is_none() {
            slot.found(1);
        }
        if slot.identity() == identity_digest(ino.0, hash, position as u32) {
            slot.set(slot_bit::IDENTITY);
        } else if slot.file_type() != 4 {
            self.check_stale_identity(ino, entry, position, hash);
        }
    }

    /// A file's identity may describe a name that is gone, for it had several; but not this entry at a wrong place.
    fn check_stale_identity(&self, ino: Ino, entry: &Entry<'_>, position: u64, hash: u64) {
        let Some((block, slot)) = self.context.geometry.locate(entry.ino) else { return };
        let mut buf = self.context.reader.new_buffer();
        if self.context.reader.read_inodes(block, &mut buf).is_err() {
            return;
        }
        let raw = inode_at(&self.context.geometry, &buf, slot);
        if raw.parent.get() == ino.0 && raw.name_hash.get() == hash {
            let place = Place::Entry { directory: ino, position };
            let name = entry.name.escape_ascii();
            let message = format!("inode {} says that {name} is at position {}", entry.ino, raw.entry_position);
            self.context.report(number::IDENTITY, place, message);
        }
    }

    /// Names of one run of entries, by hash: a directory without index is small.
    fn check_unique(&self, ino: Ino, raw: &RawInode, bytes: &[u8], names: &mut [(u64, u32)]) {
        names.sort_unstable();
        for pair in names.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            let name = |offset: u32| entries::name_at(bytes, offset as usize).unwrap_or_default();
            index::report_equal_hashes(self.context, ino, raw, name(pair[0].1), name(pair[1].1));
        }
    }
}

/// Why an entry block is left out.
pub(crate) enum BadBlock {
    Damage(Damage),
    /// Where its entries end is impossible.
    Tail(usize),
}

impl BadBlock {
    fn report(self, context: &Context<'_>, ino: Ino, file_block: FileBlock) {
        let place = Place::Inode(ino);
        match self {
            Self::Damage(damage) => context.damage(place, damage),
            Self::Tail(tail) => {
                let message = format!("entry block {file_block}: tail {tail} is impossible");
                context.report(number::ENTRY_BLOCK, place, message);
            }
        }
    }
}

/// How many entry blocks were made, by what is known of the index: one without an index, none if its root cannot be read.
pub(crate) fn entry_blocks_made(index: Option<Option<&Root>>) -> u64 {
    index.map_or(1, |root| root.map_or(0, |root| u64::from(root.entry_blocks)))
}

/// Hands the entry blocks that were made to `f`: header and packed entries. Blocks mapped past those hold nothing yet.
pub(crate) fn for_each_block(
    context: &Context<'_>,
    ino: Ino,
    extents: &[Extent],
    made: u64,
    mut f: impl FnMut(FileBlock, Result<(&EntryBlockHeader, &[u8]), BadBlock>),
) {
    let mut buf = context.reader.new_buffer();
    for extent in extents.iter().filter(|extent| !extent.unwritten && extent.file_block.0 < made) {
        let length = u64::from(extent.length).min(made - extent.file_block.0);
        for offset in 0..length {
            let file_block = FileBlock(extent.file_block.0 + offset);
            match context.reader.read(extent.start.offset_by(offset), BlockKind::DirEntries, ino.0, &mut buf) {
                Err(damage) => f(file_block, Err(BadBlock::Damage(damage))),
                Ok(()) => {
                    let header = EntryBlockHeader::read(&buf);
                    let tail = header.tail.get() as usize;
                    let is_possible = (ENTRIES_OFFSET..=buf.len()).contains(&tail);
                    let entries = is_possible.then(|| (header, &buf[ENTRIES_OFFSET..tail]));
                    f(file_block, entries.ok_or(BadBlock::Tail(tail)));
                }
            }
            if context.cancelled.load(Relaxed) {
                return;
            }
        }
    }
}

/// Position of the entry at `offset` bytes into the entries of a block.
pub(crate) fn position(file_block: FileBlock, offset: u32, block_size: usize) -> u64 {
    (file_block.0 * block_size as u64 + ENTRIES_OFFSET as u64 + u64::from(offset)) / 8
}

/// The volume block that holds a file block.
pub(crate) fn find_block(extents: &[Extent], file_block: u64) -> Option<FsBlock> {
    let after = extents.partition_point(|extent| extent.file_block.0 <= file_block);
    let extent = extents[..after].last()?;
    let offset = file_block - extent.file_block.0;
    (offset < u64::from(extent.length)).then(|| extent.start.offset_by(offset))
}

/// Follows the list of blocks with room from its head; `blocks` are those that say they are on it, and what is next.
fn check_room(head: u32, mut blocks: HashMap<u32, u32>) -> Result<(), String> {
    let mut at = head;
    while at != LIST_END {
        // A block leaves the map when it is met, so a circle ends here.
        let Some(next) = at.checked_sub(1).and_then(|block| blocks.remove(&block)) else {
            return Err(format!("the list of blocks with room leads to {at}, which is not on it or was met before"));
        };
        at = next;
    }
    match blocks.keys().min() {
        None => Ok(()),
        Some(block) => Err(format!("entry block {block} says it is on the list of blocks with room, and is not")),
    }
}
