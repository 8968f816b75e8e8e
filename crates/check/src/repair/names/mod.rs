//! Repair, second half: directories from the root down, what nobody names, and the counts that follow from names.

mod btree;
mod indexed;
mod linear;

use super::build::{Record, write, write_index};
use super::inodes::BuiltMap;
use super::{Item, Repair, state};
use crate::context::directory_kind;
use crate::directory::entries::{Entry, entry_at, length_at};
use crate::directory::indexed::position;
use crate::options::CheckError;
use crate::slots::{body_parts, inode_at};
use myriad_format::choices::Directory;
use myriad_format::dir::{ENTRIES_OFFSET, EntryHeader, LIST_END};
use myriad_format::extent::Extent;
use myriad_format::fork::{AttributeRoot, Fork};
use myriad_format::inode::{BodyHeader, RawInode, S_IFDIR, flag, fork};
use myriad_format::xattr::AttrBlockHeader;
use myriad_format::{BlockKind, FileBlock, FsBlock, Ino, NameHasher, SLOT_SIZE, header};
use std::collections::{HashMap, HashSet, VecDeque};

/// Of a second hash, which tells twins from names that are there twice.
const OTHER_KEY: [u8; 16] = *b"the other hasher";

const DIR_TYPE: u8 = (S_IFDIR >> 12) as u8;

/// A name to be added to a directory.
#[derive(Clone)]
struct Added {
    name: Vec<u8>,
    ino: Ino,
    file_type: u8,
}

/// What a directory in blocks becomes.
pub(super) struct Changed {
    ino: Ino,
    /// Extents and the tree that holds them, if they are not what they were.
    map: Option<(Vec<Extent>, Option<BuiltMap>)>,
    index_root: FsBlock,
    /// Block of the attributes that lay in the body, if the names leave it.
    attributes: Option<FsBlock>,
    live: u64,
    total: u64,
    has_twins: bool,
}

/// The tree of a new map, if there has to be one, and what the directory has no longer then.
struct NewMap {
    tree: Option<BuiltMap>,
    left: Vec<(FsBlock, u64)>,
}

/// Directories that the root does not lead to.
#[derive(Default)]
struct Strays {
    /// How often each is named by others that have not been visited yet, if it is.
    names: HashMap<Ino, u32>,
    /// One that names each.
    above: HashMap<Ino, Ino>,
    /// Those that no other one names.
    tops: VecDeque<Ino>,
}

/// A directory as its entries are read.
#[derive(Default)]
struct Pass {
    live: u64,
    records: Vec<Record>,
    /// Of names: their hashes, and the other ones.
    hashes: HashMap<u64, u32>,
    /// Two names share their hash.
    has_twins: bool,
    /// Head of the new list of blocks with room.
    room_head: u32,
}

impl Repair<'_> {
    /// Reads every directory that the root leads to; what cannot be an entry goes.
    pub(super) fn walk_names(&mut self) -> Result<(), CheckError> {
        self.directories = self.items.iter().filter(|item| item.file_type == DIR_TYPE).count() as u64;
        let root = Ino(self.superblock.root_ino.get());
        let is_dir = self.item(root).is_some_and(|item| item.file_type == DIR_TYPE);
        if !is_dir {
            let root = self.make_inode(S_IFDIR | 0o755, Some(root))?;
            self.superblock.root_ino.set(root.0);
            self.act(format!("the root directory was lost; made an empty one, inode {root}"));
        }
        let root = Ino(self.superblock.root_ino.get());
        if let Some(item) = self.item(root) {
            item.state |= state::NAMED;
        }
        self.set_identity(root, root, 0, 0)?;
        self.visit_below(root, None)?;
        self.attach_strays(root)
    }

    /// Visits a directory and all below it.
    fn visit_below(&mut self, top: Ino, mut strays: Option<&mut Strays>) -> Result<(), CheckError> {
        let mut queue = VecDeque::from([top]);
        while let Some(directory) = queue.pop_front() {
            if let Some(strays) = &mut strays {
                self.leave_out(directory, strays)?;
            }
            self.visit(directory, &mut queue)?;
        }
        Ok(())
    }

    fn visit(&mut self, directory: Ino, queue: &mut VecDeque<Ino>) -> Result<(), CheckError> {
        match self.item(directory) {
            Some(item) if item.state & state::VISITED == 0 => item.state |= state::VISITED,
            _ => return Ok(()),
        }
        self.visited += 1;
        self.tick("repairing names", self.visited, self.directories, 0.5, 0.8);
        let pass = Pass { room_head: LIST_END, ..Pass::default() };
        match directory_kind(&self.superblock) {
            Directory::Linear => self.visit_linear(directory, pass, queue),
            Directory::Tree => self.visit_btree(directory, pass, queue),
            _ => self.visit_indexed(directory, pass, queue),
        }
    }

    /// Data of the body that begins at a byte of an inode block.
    fn body_data(&mut self, block: FsBlock, at: usize) -> Result<Vec<u8>, CheckError> {
        self.load_at_hand(block)?;
        let Some((_, buf, _)) = &self.at_hand else { return Ok(Vec::new()) };
        let len = usize::from(BodyHeader::read(&buf[at..]).data_len.get());
        Ok(buf[at + BodyHeader::SIZE..][..len].to_vec())
    }

    /// Puts packed entries right in place; how many bytes of them can be kept. An entry may lie in two sectors of which one
    /// is older: it goes by itself if it says where the next one begins, and those behind it are held to what torn ones are.
    fn fix_entries(
        &mut self,
        directory: Ino,
        file_block: FileBlock,
        bytes: &mut [u8],
        mut is_torn: bool,
        pass: &mut Pass,
        queue: &mut VecDeque<Ino>,
    ) -> Result<usize, CheckError> {
        let mut at = 0;
        while at < bytes.len() {
            let byte = at + ENTRIES_OFFSET;
            let Ok(length) = length_at(bytes, at) else {
                self.act(format!("directory {directory}: cut entry block {file_block} at byte {byte}"));
                return Ok(at);
            };
            let Ok(entry) = entry_at(bytes, at) else {
                self.act(format!("directory {directory}: dropped what is at byte {byte} of entry block {file_block}"));
                free_entry(&mut bytes[at..at + length]);
                is_torn = true;
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
            match self.judge(directory, &entry, hash, is_torn, pass, queue) {
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
    fn judge(
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
        let item = self.item(entry.ino).expect("it exists");
        let file_type = item.file_type;
        if file_type == DIR_TYPE && (entry.ino == root || entry.ino == directory || item.state & state::NAMED != 0) {
            return Err("the directory has a name already");
        }
        // Names that share their hash share this one, too, only if they are the same.
        let other_hash = NameHasher::new(OTHER_KEY).hash(entry.name) as u32;
        let is_twin = match pass.hashes.get(&hash) {
            Some(&other) if other == other_hash => return Err("the name is there twice"),
            other => other.is_some(),
        };
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
    fn is_believed(&mut self, directory: Ino, entry: &Entry<'_>, hash: u64) -> bool {
        let is_identity = |raw: RawInode| raw.parent.get() == directory.0 && raw.name_hash.get() == hash;
        entry.tag == hash as u32 || self.raw(entry.ino).is_ok_and(is_identity)
    }

    /// Makes the first name found the identity, so that it describes a name that exists.
    fn set_first_identity(&mut self, ino: Ino, parent: Ino, hash: u64, position: u32) -> Result<(), CheckError> {
        let is_first = self.item(ino).is_some_and(|item| item.file_type == DIR_TYPE || item.names == 1);
        if is_first { self.set_identity(ino, parent, hash, position) } else { Ok(()) }
    }

    fn set_identity(&mut self, ino: Ino, parent: Ino, hash: u64, position: u32) -> Result<(), CheckError> {
        self.change_inode(ino, |raw| {
            raw.parent.set(parent.0);
            raw.name_hash.set(hash);
            raw.entry_position.set(position);
        })
    }

    /// Writes the index; what the inode says about the directory follows. `end`: entry blocks made.
    fn finish_directory(
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
            return self.change_inode(directory, |raw| {
                Fork::None.encode(raw);
                raw.size.set(0);
                raw.set_block_total(attribute_blocks);
            });
        }
        let mapped: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
        let mut total = mapped + attribute_blocks;
        total += match &new_map {
            Some(NewMap { tree, .. }) => tree.as_ref().map_or(0, BuiltMap::nodes),
            None => self.blocks_of_map(directory, &raw).1.len() as u64,
        };
        let mut index_root = FsBlock::NONE;
        if has_index {
            let reader = self.reader.clone();
            let counts = (pass.room_head, end as u32);
            let blocks;
            (index_root, blocks) =
                write_index(&reader, directory.0, &mut pass.records, counts, &mut || self.take(None))?;
            total += blocks;
        }
        let attributes = self.take_out_attributes(directory)?;
        total += u64::from(attributes.is_some());
        let map = new_map.map(|NewMap { tree, left }| {
            // Not sooner: the next block may be taken from what is left.
            self.left.extend(left);
            (extents, tree)
        });
        let Pass { live, has_twins, .. } = pass;
        self.changed.push(Changed { ino: directory, map, index_root, attributes, live, total, has_twins });
        if self.changed.len() >= CHANGED_MAX { self.change_directories() } else { Ok(()) }
    }

    /// Copies the attributes in the body of a directory, whose names are about to leave it, to a block of their own. One that has
    /// attributes in blocks as well, which no engine writes, keeps both.
    fn take_out_attributes(&mut self, directory: Ino) -> Result<Option<FsBlock>, CheckError> {
        let raw = self.raw(directory)?;
        if raw.fork_code() != fork::INLINE || !raw.has_flag(flag::ATTR_BODY) || raw.has_flag(flag::ATTR_BLOCKS) {
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
    pub(super) fn change_directories(&mut self) -> Result<(), CheckError> {
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

    /// Takes the data out of an inode's body, and attributes that are elsewhere; its slots stay the inode's. Attributes that are
    /// not, which is hardly ever, move up.
    fn empty_body(&mut self, ino: Ino) -> Result<(), CheckError> {
        let raw = self.raw(ino)?;
        if let Some((_, buf, dirty)) = &mut self.at_hand {
            let at = usize::from(raw.body_first.get()) * SLOT_SIZE;
            let head = BodyHeader::read_mut(&mut buf[at..]);
            let (data, attributes) = (usize::from(head.data_len.get()), usize::from(head.attr_len.get()));
            head.data_len.set(0);
            if raw.has_flag(flag::ATTR_BODY) {
                let body = at + BodyHeader::SIZE;
                buf.copy_within(body + data..body + data + attributes, body);
            } else {
                head.attr_len.set(0);
            }
            *dirty = true;
        }
        Ok(())
    }

    /// What no name leads to: directories first, for what lies below them has a name there.
    fn attach_strays(&mut self, root: Ino) -> Result<(), CheckError> {
        let mut added: Vec<Added> = Vec::new();
        let is_unvisited = |item: &Item| item.file_type == DIR_TYPE && item.state & (state::VISITED | state::GONE) == 0;
        let unvisited: Vec<Ino> = self.items.iter().filter(|item| is_unvisited(item)).map(|item| item.ino).collect();
        let mut strays = Strays::default();
        for &directory in &unvisited {
            for child in self.peek(directory)? {
                *strays.names.entry(child).or_default() += 1;
                strays.above.insert(child, directory);
            }
        }
        strays.tops.extend(unvisited.iter().copied().filter(|ino| !strays.names.contains_key(ino)));
        let mut rest = unvisited.into_iter().peekable();
        loop {
            while rest.next_if(|&ino| !self.is_stray(ino)).is_some() {}
            let Some(&first) = rest.peek() else { break };
            // Where no top is left there are only circles, and what lies below them: any directory of a circle will do.
            let top = strays.tops.pop_front().unwrap_or_else(|| self.in_circle(first, &strays));
            if !self.is_stray(top) {
                // It has been visited, from a circle or from another top: what is torn names it only then.
                continue;
            }
            if self.item(top).is_some_and(|item| item.state & state::NO_LINKS != 0) {
                self.leave_out(top, &mut strays)?;
                self.free_inode(top)?;
                continue;
            }
            if let Some(item) = self.item(top) {
                item.state |= state::NAMED;
            }
            added.push(stray(top, DIR_TYPE));
            self.visit_below(top, Some(&mut strays))?;
        }
        let strays: Vec<Item> = self
            .items
            .iter()
            .copied()
            .filter(|item| item.file_type != DIR_TYPE && item.names == 0 && item.state & state::GONE == 0)
            .collect();
        for item in strays {
            if item.state & state::NO_LINKS != 0 {
                self.free_inode(item.ino)?;
            } else {
                added.push(stray(item.ino, item.file_type));
            }
        }
        if added.is_empty() {
            return Ok(());
        }
        let home = self.lost_and_found(root)?;
        self.act(format!("moved {} inodes to /lost+found", added.len()));
        self.append(home, &added)
    }

    /// A directory of the circle that an unvisited one lies in or below.
    fn in_circle(&mut self, mut directory: Ino, strays: &Strays) -> Ino {
        let mut met = HashSet::new();
        while met.insert(directory)
            && let Some(&above) = strays.above.get(&directory)
            && self.is_stray(above)
        {
            directory = above;
        }
        directory
    }

    /// Whether no name has led to it so far.
    fn is_stray(&mut self, ino: Ino) -> bool {
        self.item(ino).is_some_and(|item| item.state & state::NAMED == 0)
    }

    /// Counts out what an unvisited directory names, before it is visited or freed: each directory is looked into twice, however
    /// they name each other.
    fn leave_out(&mut self, directory: Ino, strays: &mut Strays) -> Result<(), CheckError> {
        for child in self.peek(directory)? {
            if let Some(names) = strays.names.get_mut(&child) {
                // A medium that reads otherwise the second time is no reason to stop.
                *names = names.saturating_sub(1);
                if *names == 0 {
                    strays.tops.push_back(child);
                }
            }
        }
        Ok(())
    }

    /// Other unvisited directories that an unvisited directory names, as far as can be read.
    fn peek(&mut self, directory: Ino) -> Result<Vec<Ino>, CheckError> {
        let raw = self.raw(directory)?;
        let runs = match directory_kind(&self.superblock) {
            Directory::Linear => self.runs_linear(directory, &raw),
            Directory::Tree => self.runs_btree(directory, &raw)?,
            _ => self.runs_indexed(directory, &raw)?,
        };
        let mut children = Vec::new();
        for (run, mut is_torn) in runs {
            // As `fix_entries` goes through them.
            let mut at = 0;
            while at < run.len()
                && let Ok(length) = length_at(&run, at)
            {
                let entry = entry_at(&run, at);
                at += length;
                let Ok(entry) = entry else {
                    is_torn = true;
                    continue;
                };
                let is_other = entry.ino != directory
                    && self
                        .item(entry.ino)
                        .is_some_and(|item| item.file_type == DIR_TYPE && item.state & state::VISITED == 0);
                if is_other && (!is_torn || self.is_believed(directory, &entry, self.hasher.hash(entry.name))) {
                    children.push(entry.ino);
                }
            }
        }
        Ok(children)
    }

    /// The directory for strays, made if need be.
    fn lost_and_found(&mut self, root: Ino) -> Result<Ino, CheckError> {
        self.change_directories()?;
        let names = self.names_of(root)?;
        for attempt in 0..1000 {
            let name = if attempt == 0 { b"lost+found".to_vec() } else { format!("lost+found.{attempt}").into_bytes() };
            match names.get(&name) {
                Some(&ino) if self.item(ino).is_some_and(|item| item.file_type == DIR_TYPE) => return Ok(ino),
                Some(_) => {}
                None => {
                    let ino = self.make_inode(S_IFDIR | 0o700, None)?;
                    // Before it has a name.
                    self.store_at_hand()?;
                    self.flush()?;
                    if let Some(item) = self.item(ino) {
                        item.state |= state::NAMED | state::VISITED;
                    }
                    self.append(root, &[Added { name, ino, file_type: DIR_TYPE }])?;
                    return Ok(ino);
                }
            }
        }
        Err(CheckError::Repair("every name for a lost+found directory is taken by something else".to_owned()))
    }

    /// Names of a directory that has been visited.
    fn names_of(&mut self, directory: Ino) -> Result<HashMap<Vec<u8>, Ino>, CheckError> {
        let raw = self.raw(directory)?;
        let mut names = HashMap::new();
        let mut collect = |bytes: &[u8]| {
            for entry in
                crate::directory::entries::parse(bytes).map_while(Result::ok).filter(|entry| !entry.ino.is_none())
            {
                names.insert(entry.name.to_vec(), entry.ino);
            }
        };
        let kind = directory_kind(&self.superblock);
        if kind == Directory::Linear {
            self.runs_linear(directory, &raw).iter().for_each(|(run, _)| collect(run));
        } else if kind == Directory::Tree {
            self.runs_btree(directory, &raw)?.iter().for_each(|(run, _)| collect(run));
        } else if raw.fork_code() == fork::INLINE {
            let (block, _) = self.geometry.locate(directory).expect("items have a block");
            let data = self.body_data(block, usize::from(raw.body_first.get()) * SLOT_SIZE)?;
            collect(&data);
        } else {
            for (_, _, bytes) in self.entry_blocks(directory)? {
                collect(&bytes);
            }
        }
        Ok(names)
    }

    /// Adds names at the end of a directory.
    fn append(&mut self, directory: Ino, added: &[Added]) -> Result<(), CheckError> {
        match directory_kind(&self.superblock) {
            Directory::Linear => self.append_linear(directory, added),
            Directory::Tree => self.append_btree(directory, added),
            _ => self.append_indexed(directory, added),
        }
    }

    /// Counts a name that was added to a directory, and makes it the identity of what it names.
    fn count_added(
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
    fn add_to_map(&self, extents: &mut Vec<Extent>, file_block: FileBlock, block: FsBlock) {
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

    /// Link counts, now that every name is known.
    pub(super) fn settle_links(&mut self) -> Result<(), CheckError> {
        for index in 0..self.items.len() {
            let item = self.items[index];
            if item.state & state::GONE != 0 {
                continue;
            }
            let links = if item.file_type == DIR_TYPE { item.names.saturating_add(2) } else { item.names };
            let Some((block, slot)) = self.geometry.locate(item.ino) else { continue };
            self.load_at_hand(block)?;
            let differs = self
                .at_hand
                .as_ref()
                .is_some_and(|(_, buf, _)| inode_at(&self.geometry, buf, slot).nlink.get() != links);
            if differs {
                self.change_inode(item.ino, |raw| raw.nlink.set(links))?;
            }
        }
        Ok(())
    }
}

/// Says that a directory has twins, if it does; it may say so without.
fn set_twins(raw: &mut RawInode, has_twins: bool) {
    if has_twins {
        raw.flags.set(raw.flags.get() | flag::HASH_TWINS);
    }
}

/// Leaves nothing of an entry but its length.
fn free_entry(entry: &mut [u8]) {
    entry[..8].fill(0);
    entry[10..].fill(0);
}

/// A stray's name in lost+found: its number.
fn stray(ino: Ino, file_type: u8) -> Added {
    Added { name: format!("#{ino}").into_bytes(), ino, file_type }
}
