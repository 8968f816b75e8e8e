//! Repair of directories of kind `indexed`: entries keep their positions, the index and the list of blocks with room are
//! written anew.

use super::blocks::position;
use super::build::Record;
use crate::directory::AHEAD_MAX;
use crate::directory::entries::parse;
use crate::directory::fix::{Added, NewMap, Pass, blocks_of, push_entry, set_twins};
use crate::io::Damage;
use crate::options::CheckError;
use crate::repair::build::write;
use crate::repair::volume::Repair;
use myriad_format::choices::Directory;
use myriad_format::dir::{ENTRIES_OFFSET, EntryBlockHeader, EntryHeader, IndexHeader, LIST_END, entry_size};
use myriad_format::extent::Extent;
use myriad_format::inode::{BodyHeader, RawInode, fork};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino, SLOT_SIZE, header};
use std::collections::{HashSet, VecDeque};

/// How many entry blocks a directory has made, by its own word.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    count: u64,
    /// The root that says so is torn.
    is_torn: bool,
}

impl Made {
    /// Whether it can be so of a directory with so many blocks mapped. No engine maps more than a few ahead.
    fn can_be(self, mapped: u64) -> bool {
        !self.is_torn || (self.count..=self.count + AHEAD_MAX).contains(&mapped)
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
    match raw.fork_code() {
        fork::INLINE => {
            let at = usize::from(raw.body_first.get()) * SLOT_SIZE;
            let (block, _) = repair.geometry.locate(directory).expect("items have a block");
            let mut data = repair.body_data(block, at)?;
            let torn_from = repair.body_torn_from(directory, &raw);
            let mut len = repair.fix_entries(directory, FileBlock(0), &mut data, torn_from, &mut pass, queue)?;
            // Attributes follow the data, maybe in another sector: they stay where they are as long as a free entry can
            // take the place of what was cut.
            let rest = &mut data[len..];
            if rest.len() >= EntryHeader::SIZE && rest.len() % 8 == 0 {
                let length = rest.len() as u16;
                rest.fill(0);
                EntryHeader::read_mut(rest).length.set(length);
                len = data.len();
            }
            repair.load_at_hand(block)?;
            if let Some((_, buf, dirty)) = &mut repair.at_hand {
                let head = BodyHeader::read_mut(&mut buf[at..]);
                let (old, attributes) = (usize::from(head.data_len.get()), usize::from(head.attr_len.get()));
                head.data_len.set(len as u16);
                let body = at + BodyHeader::SIZE;
                buf.copy_within(body + old..body + old + attributes, body + len);
                buf[body..body + len].copy_from_slice(&data[..len]);
                *dirty = true;
            }
            repair.change_inode(directory, |raw| {
                raw.size.set(pass.live);
                set_twins(raw, pass.has_twins);
            })
        }
        _ if raw.is_dir_in_blocks() => repair.visit_blocks(directory, pass, queue),
        _ => repair.change_inode(directory, |raw| {
            raw.size.set(0);
            raw.set_fork(fork::NONE, 0);
        }),
    }
}

/// The entries of a directory that has not been visited, in runs, as far as they can be read; and whether each is torn.
pub(in crate::directory) fn runs(
    repair: &mut Repair<'_>,
    directory: Ino,
    raw: &RawInode,
) -> Result<Vec<(Vec<u8>, bool)>, CheckError> {
    let mut runs: Vec<(Vec<u8>, bool)> = Vec::new();
    match raw.fork_code() {
        fork::INLINE => {
            runs.push((repair.data_in_body(directory, raw)?, repair.is_in_torn(directory)));
        }
        _ if raw.is_dir_in_blocks() => {
            let (extents, _) = repair.blocks_of_map(directory, raw);
            let mut buf = repair.reader.new_buffer();
            for (_, block) in blocks_of(&extents) {
                if let Some(is_torn) = repair.read_entry_block(directory, block, &mut buf) {
                    let tail = (EntryBlockHeader::read(&buf).tail.get() as usize).clamp(ENTRIES_OFFSET, buf.len());
                    runs.push((buf[ENTRIES_OFFSET..tail].to_vec(), is_torn));
                }
            }
        }
        _ => {}
    }
    Ok(runs)
}

/// Adds names at the end of a directory, in new entry blocks. A directory in the body moves to block 0, where its
/// entries keep their positions.
pub(in crate::directory) fn append(repair: &mut Repair<'_>, directory: Ino, added: &[Added]) -> Result<(), CheckError> {
    repair.change_directories()?;
    let raw = repair.raw(directory)?;
    let block_size = repair.reader.block_size();
    let (mut extents, nodes) = repair.blocks_of_map(directory, &raw);
    let mut blocks: Vec<(u64, FsBlock, Vec<u8>)> = repair.entry_blocks(directory)?;
    let old_index = raw.index_root();
    if raw.fork_code() == fork::INLINE {
        blocks.push((0, FsBlock::NONE, repair.data_in_body(directory, &raw)?));
    }
    // Blocks mapped past the last one made hold nothing: a new block takes the first free number after all of them.
    let mut next = extents.last().map_or(0, |extent| extent.end().0).max(blocks.last().map_or(0, |block| block.0 + 1));
    let mut grown: HashSet<u64> = blocks.iter().filter(|block| block.1.is_none()).map(|block| block.0).collect();
    let mut placed = Vec::new();
    for item in added {
        let size = entry_size(item.name.len());
        let fits = blocks.last().is_some_and(|block| block.2.len() + size <= block_size - ENTRIES_OFFSET);
        if !fits {
            blocks.push((next, FsBlock::NONE, Vec::new()));
            grown.insert(next);
            next += 1;
        }
        let (file_block, _, bytes) = blocks.last_mut().expect("just made");
        let hash = repair.hasher.hash(&item.name);
        let at = push_entry(bytes, item.ino, item.file_type, hash as u32, &item.name);
        placed.push((item.ino, hash, position(FileBlock(*file_block), at as u32, block_size) as u32, item.file_type));
    }
    for (file_block, block, _) in blocks.iter_mut().filter(|block| grown.contains(&block.0)) {
        *block = repair.take(None)?;
        repair.add_to_map(&mut extents, FileBlock(*file_block), *block);
    }
    let mut pass = Pass { room_head: LIST_END, ..Pass::default() };
    let end = blocks.last().map_or(0, |block| block.0 + 1);
    let has_index = old_index.is_some() || end > 1;
    // Blocks that were mapped ahead and now lie below the end become empty ones, and come last. Not so one that could
    // be read before and cannot be now: another repair may find its names.
    let count = blocks.len();
    let known: HashSet<u64> = blocks.iter().map(|block| block.0).collect();
    let made = repair.blocks_made(directory, &raw);
    let is_unmade = |file_block: u64| (made..end).contains(&file_block) && !known.contains(&file_block);
    let unmade = blocks_of(&extents).filter(|(file_block, _)| is_unmade(*file_block));
    blocks.extend(unmade.map(|(file_block, block)| (file_block, block, Vec::new())));
    let mut heads = Vec::with_capacity(blocks.len());
    for (file_block, _, bytes) in &blocks {
        let live_before = pass.live;
        for entry in parse(bytes).map_while(Result::ok).filter(|entry| !entry.ino.is_none()) {
            let position = position(FileBlock(*file_block), entry.offset, block_size);
            pass.live += u64::from(entry.length);
            pass.records.push(Record { tag: entry.tag, position: position as u32, ino: entry.ino.0 });
        }
        let live = (pass.live - live_before) as usize;
        let free = block_size - ENTRIES_OFFSET - live;
        heads.push((live as u32, enlist(&mut pass, FileBlock(*file_block), free, block_size, has_index)));
    }
    let mut left: Vec<(FsBlock, u64)> = nodes.into_iter().map(|node| (node, 1)).collect();
    let mut index = repair.index_blocks(directory, old_index).into_iter();
    // Its root, the first, says how many blocks of entries there are until another one is named.
    left.extend(index.next().map(|root| (root, 1)));
    pass.old_index = index.map(|block| (block, 1)).collect();
    let tree = repair.build_map(directory, &extents)?;
    repair.finish_directory(directory, pass, extents, Some(NewMap { tree, left }), (end, has_index))?;
    // Not sooner: there is room for all of it, and the index is not named yet.
    for (number, ((_, block, bytes), (live, link))) in blocks.iter().zip(heads).enumerate() {
        if number == count {
            // They may have had these names: power lost before they are elsewhere would cost them.
            repair.settle()?;
        }
        let mut buf = repair.reader.new_buffer();
        header::init(&mut buf, BlockKind::DirEntries, repair.reader.volume, directory.0, *block);
        let head = EntryBlockHeader::read_mut(&mut buf);
        head.tail.set((ENTRIES_OFFSET + bytes.len()) as u32);
        head.live.set(live);
        head.next_room.set(link);
        buf[ENTRIES_OFFSET..][..bytes.len()].copy_from_slice(bytes);
        write(&repair.reader, *block, &mut buf)?;
    }
    placed
        .into_iter()
        .try_for_each(|(ino, hash, position, file_type)| repair.count_added(directory, ino, file_type, hash, position))
}

impl Repair<'_> {
    fn visit_blocks(&mut self, directory: Ino, mut pass: Pass, queue: &mut VecDeque<Ino>) -> Result<(), CheckError> {
        let (extents, new_map) = self.close_holes(directory)?;
        let raw = self.raw(directory)?;
        let old_root = raw.index_root();
        let end = extents.last().map_or(0, |extent| extent.end().0);
        let made = self.made.remove(&directory).or_else(|| self.made_by(directory, old_root?));
        let made = made.filter(|made| made.can_be(end)).map(|made| made.count);
        // A position has 32 bits.
        let most = (1_u64 << 35) / self.reader.block_size() as u64;
        let made = made.unwrap_or(u64::MAX).min(most);
        let mut end = 0;
        let has_index = old_root.is_some() || extents.last().is_some_and(|extent| extent.end().0 > 1);
        for extent in &extents {
            for offset in 0..u64::from(extent.length) {
                let file_block = FileBlock(extent.file_block.0 + offset);
                let block = extent.start.offset_by(offset);
                if file_block.0 >= made {
                    self.look_beyond(directory, file_block, block)?;
                } else if self.visit_block(directory, file_block, block, has_index, &mut pass, queue)? {
                    end = file_block.0 + 1;
                }
            }
        }
        self.finish_directory(directory, pass, extents, new_map, (end, has_index))
    }

    /// Remembers the names of a block that is mapped behind the last one that was made. Without a log, or where it is
    /// lost, the root that says how many were made may be older than the block. But what the block has may also be long
    /// gone: a name counts if what it names says that this is its own, and if by the end nothing else names that.
    fn look_beyond(&mut self, directory: Ino, file_block: FileBlock, block: FsBlock) -> Result<(), CheckError> {
        let mut buf = self.reader.new_buffer();
        if self.reader.read(block, BlockKind::DirEntries, directory.0, &mut buf).is_err() {
            return Ok(());
        }
        let tail = (EntryBlockHeader::read(&buf).tail.get() as usize).clamp(ENTRIES_OFFSET, buf.len());
        for entry in parse(&buf[ENTRIES_OFFSET..tail]).map_while(Result::ok) {
            if self.item(entry.ino).is_none() {
                continue;
            }
            let hash = self.hasher.hash(entry.name);
            let position = position(file_block, entry.offset, buf.len()) as u32;
            if self.is_identity(directory, entry.ino, hash) && self.raw(entry.ino)?.entry_position.get() == position {
                self.beyond.insert(entry.ino, (directory, entry.name.to_vec()));
            }
        }
        Ok(())
    }

    /// How many entry blocks a directory has made, as the root of its index says; without one, the blocks themselves say it.
    fn made_by(&self, directory: Ino, root: FsBlock) -> Option<Made> {
        let mut buf = self.reader.new_buffer();
        let is_torn = self.read_torn(directory, root, BlockKind::DirIndex, &mut buf)?;
        let made = Made { count: u64::from(IndexHeader::read(&buf).entry_blocks.get()), is_torn };
        // There is always one.
        (made.count > 0).then_some(made)
    }

    /// Keeps the roots of indexes, as long as nothing else says how many blocks of entries their directories have made.
    /// Call it when all else that inodes own is known.
    pub(crate) fn claim_roots(&mut self) {
        let mut roots = std::mem::take(&mut self.roots);
        if self.choices.directory != Directory::Indexed {
            // A damaged inode may say that it has one.
            return;
        }
        roots.retain(|&ino, &mut root| {
            let is_root = self.geometry.is_data_range(root, 1)
                && self.geometry.ag_of(root).0 < self.ag_used
                && self.made_by(ino, root).is_some();
            is_root && self.blocks.claim(root, 1).is_none()
        });
        self.roots = roots;
    }

    /// Gives back the old root of a directory that has a new index, or that is removed. Call it once the inode says so,
    /// and not sooner: the next block that is taken may be this one.
    pub(crate) fn leave_root(&mut self, directory: Ino) {
        self.left.extend(self.roots.remove(&directory).map(|root| (root, 1)));
    }

    /// Where there is no other room left, the counts in roots are remembered and their blocks given away.
    pub(crate) fn give_up_roots(&mut self) {
        let roots = std::mem::take(&mut self.roots);
        for (&ino, &root) in &roots {
            self.made.extend(self.made_by(ino, root).map(|made| (ino, made)));
        }
        self.release(roots.into_values().map(|root| (root, 1)));
    }

    /// Extents of a directory in blocks and, if they are new, the tree of a map of them. They go from file block 0 without
    /// holes. A hole, where extents were lost, is filled with empty entry blocks, so that later entries keep their positions;
    /// what lies beyond too large a one, or one for which there is no room, is given up.
    fn close_holes(&mut self, directory: Ino) -> Result<(Vec<Extent>, Option<NewMap>), CheckError> {
        /// Most blocks that are filled in, unless more than that are left.
        const FILLED_MAX: u64 = 1024;
        let raw = self.raw(directory)?;
        let (extents, nodes) = self.blocks_of_map(directory, &raw);
        let filled_max = FILLED_MAX.max(extents.iter().map(|extent| u64::from(extent.length)).sum());
        let mut whole: Vec<Extent> = Vec::new();
        let mut left: Vec<(FsBlock, u64)> = nodes.into_iter().map(|node| (node, 1)).collect();
        let (mut end, mut filled) = (0, 0);
        let mut rest = extents.iter();
        for extent in rest.by_ref() {
            let hole = extent.file_block.0 - end;
            let fillers = if filled + hole <= filled_max { self.take_all(hole as usize)? } else { None };
            let Some(fillers) = fillers else {
                left.push((extent.start, u64::from(extent.length)));
                break;
            };
            filled += hole;
            for (file_block, start) in (end..extent.file_block.0).map(FileBlock).zip(fillers) {
                let mut buf = self.reader.new_buffer();
                header::init(&mut buf, BlockKind::DirEntries, self.reader.volume, directory.0, start);
                EntryBlockHeader::read_mut(&mut buf).tail.set(ENTRIES_OFFSET as u32);
                write(&self.reader, start, &mut buf)?;
                whole.push(Extent { file_block, start, length: 1, unwritten: false });
            }
            whole.push(*extent);
            end = extent.end().0;
        }
        left.extend(rest.map(|extent| (extent.start, u64::from(extent.length))));
        if whole == extents {
            return Ok((whole, None));
        }
        self.act(format!("directory {directory}: filled {filled} lost entry blocks with empty ones"));
        let tree = self.build_map(directory, &whole)?;
        Ok((whole, Some(NewMap { tree, left })))
    }

    /// Puts one entry block right; whether it is one that was ever made.
    fn visit_block(
        &mut self,
        directory: Ino,
        file_block: FileBlock,
        block: FsBlock,
        has_index: bool,
        pass: &mut Pass,
        queue: &mut VecDeque<Ino>,
    ) -> Result<bool, CheckError> {
        let mut buf = self.reader.new_buffer();
        let Some(is_torn) = self.read_entry_block(directory, block, &mut buf) else {
            return self.lose_block(directory, file_block, block, has_index, pass);
        };
        let before = buf.clone();
        let block_size = buf.len();
        let tail = (EntryBlockHeader::read(&buf).tail.get() as usize).clamp(ENTRIES_OFFSET, block_size);
        let mut entries = buf[ENTRIES_OFFSET..tail].to_vec();
        let live_before = pass.live;
        let torn_from = if is_torn { 0 } else { usize::MAX };
        let len = self.fix_entries(directory, file_block, &mut entries, torn_from, pass, queue)?;
        buf[ENTRIES_OFFSET..][..len].copy_from_slice(&entries[..len]);
        buf[ENTRIES_OFFSET + len..].fill(0);
        let live = (pass.live - live_before) as usize;
        let head = EntryBlockHeader::read_mut(&mut buf);
        head.tail.set((ENTRIES_OFFSET + len) as u32);
        head.live.set(live as u32);
        head.next_room.set(enlist(pass, file_block, block_size - ENTRIES_OFFSET - live, block_size, has_index));
        if buf != before || is_torn {
            write(&self.reader, block, &mut buf)?;
        }
        Ok(true)
    }

    fn read_entry_block(&self, directory: Ino, block: FsBlock, buf: &mut [u8]) -> Option<bool> {
        self.read_torn(directory, block, BlockKind::DirEntries, buf)
    }

    /// Reads a block of a directory, and says whether it is torn: its checksum is wrong, or some of its sectors cannot
    /// be read and are zeros here, while all else in its header is right. `None` if it is of another kind.
    pub(crate) fn read_torn(&self, directory: Ino, block: FsBlock, kind: BlockKind, buf: &mut [u8]) -> Option<bool> {
        match self.reader.read(block, kind, directory.0, buf) {
            Ok(()) => return Some(false),
            Err(Damage::Corrupt(Corrupt::BlockCrc { .. })) => {}
            Err(Damage::Unreadable { .. }) if self.reader.read_sectors(block, buf) => {}
            Err(_) => return None,
        }
        self.reader.is_headed(block, kind, directory.0, buf).then_some(true)
    }

    /// An entry block of which nothing can be read becomes an empty one: the positions of the others stay.
    fn lose_block(
        &mut self,
        directory: Ino,
        file_block: FileBlock,
        block: FsBlock,
        has_index: bool,
        pass: &mut Pass,
    ) -> Result<bool, CheckError> {
        self.act(format!("directory {directory}: entry block {file_block} is lost"));
        let mut buf = self.reader.new_buffer();
        header::init(&mut buf, BlockKind::DirEntries, self.reader.volume, directory.0, block);
        let size = buf.len();
        let head = EntryBlockHeader::read_mut(&mut buf);
        head.tail.set(ENTRIES_OFFSET as u32);
        head.next_room.set(enlist(pass, file_block, size - ENTRIES_OFFSET, size, has_index));
        write(&self.reader, block, &mut buf)?;
        Ok(true)
    }

    /// The names of a visited directory, without those behind the last block that it has made.
    pub(in crate::directory) fn names_made(&mut self, directory: Ino) -> Result<HashSet<Vec<u8>>, CheckError> {
        let mut names = HashSet::new();
        for (_, _, bytes) in self.entry_blocks(directory)? {
            names.extend(parse(&bytes).map_while(Result::ok).map(|entry| entry.name.to_vec()));
        }
        Ok(names)
    }

    /// Entry blocks of a visited directory: file block, place, bytes of the entries.
    fn entry_blocks(&mut self, directory: Ino) -> Result<Vec<(u64, FsBlock, Vec<u8>)>, CheckError> {
        let raw = self.raw(directory)?;
        if !raw.is_dir_in_blocks() {
            return Ok(Vec::new());
        }
        let (extents, _) = self.blocks_of_map(directory, &raw);
        let mut buf = self.reader.new_buffer();
        let made = self.blocks_made(directory, &raw);
        let mut blocks = Vec::new();
        for extent in extents {
            for at in 0..u64::from(extent.length) {
                let (file_block, block) = (extent.file_block.0 + at, extent.start.offset_by(at));
                if file_block < made && self.reader.read(block, BlockKind::DirEntries, directory.0, &mut buf).is_ok() {
                    let tail = (EntryBlockHeader::read(&buf).tail.get() as usize).clamp(ENTRIES_OFFSET, buf.len());
                    blocks.push((file_block, block, buf[ENTRIES_OFFSET..tail].to_vec()));
                }
            }
        }
        Ok(blocks)
    }

    /// Entry blocks of a visited directory; all that are mapped where no index says how many there are.
    fn blocks_made(&self, directory: Ino, raw: &RawInode) -> u64 {
        raw.index_root().and_then(|root| self.made_by(directory, root)).map_or(u64::MAX, |made| made.count)
    }

    /// Blocks of an index that this repair wrote, its root first.
    fn index_blocks(&self, directory: Ino, root: Option<FsBlock>) -> Vec<FsBlock> {
        let mut blocks = Vec::new();
        let mut rest: Vec<FsBlock> = root.into_iter().collect();
        let mut buf = self.reader.new_buffer();
        while let Some(block) = rest.pop() {
            if self.reader.read(block, BlockKind::DirIndex, directory.0, &mut buf).is_err() {
                continue;
            }
            blocks.push(block);
            if IndexHeader::read(&buf).level > 0 {
                let pointers = 1 << myriad_format::dir::node_bits(self.geometry.block_bits);
                rest.extend(
                    (0..pointers)
                        .map(|at| FsBlock(myriad_format::dir::pointer(&buf, at)))
                        .filter(|block| !block.is_none()),
                );
            }
        }
        blocks
    }
}

/// Puts a block on the new list of blocks with room, if it has a quarter of itself free; its link.
fn enlist(pass: &mut Pass, file_block: FileBlock, free: usize, block_size: usize, has_index: bool) -> u32 {
    if !has_index || free < block_size / 4 {
        return 0;
    }
    std::mem::replace(&mut pass.room_head, file_block.0 as u32 + 1)
}
