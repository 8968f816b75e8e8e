//! Repair, first half: which inodes there are and which blocks are theirs.

use super::build::{Fill, node_count, write, write_tree};
use super::{Chunk, Item, Repair, no_room, state};
use crate::attributes::{ACL_NAMES, chain_root};
use crate::context::is_tree_block;
use crate::extents::{Map, map_of};
use crate::inodes::decode_chunk;
use crate::io::Damage;
use crate::run::CheckError;
use crate::slots::{body_parts, inode_at, is_type, slots_of};
use crate::tree::{Tree, Visitor, walk};
use myriad_format::btree;
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::inode::{
    BodyHeader, ChunkRecord, InodeBlockHeader, RawInode, S_IFDIR, S_IFLNK, S_IFREG, TARGET_MAX, flag, fork,
    generation_at,
};
use myriad_format::xattr::{self, AttrBlockHeader, AttrIter, LIST_MAX};
use myriad_format::{AgBlock, AgNo, BlockHeader, BlockKind, Corrupt, FileBlock, FsBlock, Ino, SLOT_SIZE, header};
use std::collections::{BTreeMap, HashSet};
use zerocopy::IntoBytes;

/// A block of inodes as it is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Sound,
    /// Header and address are right, the checksum is not: some sectors are older than others, each whole, or cannot be read.
    Torn,
    Lost,
}

/// What is left of a damaged file map.
pub(super) struct Salvaged {
    extents: Vec<Extent>,
    /// Start and length of what the file had past its end.
    past: Vec<(FsBlock, u64)>,
    /// Nodes of the old tree, which is there until the new one is.
    nodes: Vec<FsBlock>,
    /// Blocks of these extents, and of attributes.
    blocks: u64,
}

/// Reads whatever of a tree can be read.
struct Salvage<'a> {
    repair: &'a Repair<'a>,
    record: &'a mut dyn FnMut(&[u8]),
    /// Nodes claimed, where nodes are to be claimed.
    nodes: Option<Vec<FsBlock>>,
    damaged: bool,
    /// Nodes followed where none are claimed: each only once.
    followed: HashSet<FsBlock>,
}

impl Visitor for Salvage<'_> {
    fn node(&mut self, block: FsBlock) -> bool {
        let geometry = &self.repair.geometry;
        let ok = match &mut self.nodes {
            None => block.0 < geometry.block_count && self.followed.insert(block),
            Some(nodes) => {
                let ok = geometry.is_data_range(block, 1)
                    && geometry.ag_of(block).0 < self.repair.ag_used
                    && self.repair.blocks.claim(block, 1).is_none();
                if ok {
                    nodes.push(block);
                }
                ok
            }
        };
        self.damaged |= !ok;
        ok
    }

    fn record(&mut self, record: &[u8]) {
        (self.record)(record);
    }

    fn damage(&mut self, _: Damage) {
        self.damaged = true;
    }
}

impl Repair<'_> {
    /// Trees of inodes may be older than what was synced, for a part of the log is lost: takes what they name, and then makes
    /// sure that every group is searched, also by the next repair if this one is cut short.
    pub(super) fn distrust_trees(&mut self) -> Result<(), CheckError> {
        for ag in (0..self.ag_used).map(AgNo) {
            self.chunks_of_tree(ag);
        }
        (0..self.ag_used).try_for_each(|ag| self.blank_header(AgNo(ag)))?;
        self.flush()?;
        let chunks: Vec<(FsBlock, Chunk)> = self.chunks.iter().map(|(&start, &chunk)| (start, chunk)).collect();
        for (start, mut chunk) in chunks {
            // Blocks that came into use since.
            let is_used = |at: u32| self.state_of(start.offset_by(u64::from(at))) != Found::Lost;
            let used = (chunk.initialised..chunk.count).rfind(|&at| is_used(at));
            chunk.initialised = used.map_or(chunk.initialised, |last| last + 1);
            self.chunks.insert(start, chunk);
        }
        self.are_trees_old = true;
        Ok(())
    }

    pub(super) fn find_inodes(&mut self) -> Result<(), CheckError> {
        let mut searched = Vec::new();
        for ag in (0..self.ag_used).map(AgNo) {
            if self.are_trees_old || !self.chunks_of_tree(ag) {
                searched.push(ag);
            }
            self.tick("repairing inodes", u64::from(ag.0) + 1, u64::from(self.ag_used), 0.0, 0.1);
        }
        let why = if self.are_trees_old { "a part of the log is lost" } else { "its inode tree is damaged" };
        // What a tree names comes first, and of the rest what was written last: a search also finds inodes that are long gone, and
        // whose blocks others have. Of each the sound blocks come first: where a torn one claims the same extent it is the torn
        // one that loses. What a sound one has that a tree names is nobody's inode block, whatever it looks like: reserved
        // blocks keep what they held.
        let named: Vec<FsBlock> = self.chunks.iter().flat_map(|(&start, chunk)| chunk.blocks(start)).collect();
        let torn = self.take_sound(named, 0.1, 0.3)?;
        for (done, &ag) in searched.iter().enumerate() {
            self.act(format!("searched group {ag} for inode blocks: {why}"));
            self.search_chunks(ag);
            self.tick("repairing inodes", done as u64 + 1, searched.len() as u64, 0.3, 0.4);
        }
        self.take_torn(torn)?;
        let found = self.chunks.iter().filter(|(_, chunk)| !chunk.is_named);
        let mut found: Vec<FsBlock> = found.flat_map(|(&start, chunk)| chunk.blocks(start)).collect();
        found.sort_by_cached_key(|&block| std::cmp::Reverse(self.lsn_of(block)));
        let torn = self.take_sound(found, 0.4, 0.5)?;
        self.take_torn(torn)?;
        self.items.sort_unstable_by_key(|item| item.ino);
        // What nobody else has of the old trees stays as it is until the headers name new ones.
        let (blocks, geometry) = (&self.blocks, &self.geometry);
        self.inode_trees.retain(|&node| is_tree_block(geometry.ag_block_of(node)) || blocks.claim(node, 1).is_none());
        Ok(())
    }

    /// Takes the inodes of blocks that are sound, and makes lost ones empty; those that are torn.
    fn take_sound(&mut self, blocks: Vec<FsBlock>, from: f64, to: f64) -> Result<Vec<FsBlock>, CheckError> {
        let total = blocks.len() as u64;
        let mut torn = Vec::new();
        for (done, block) in blocks.into_iter().enumerate() {
            self.tick("repairing inodes", done as u64, total, from, to);
            match self.state_of(block) {
                Found::Sound => self.take_block(block, true)?,
                Found::Torn => torn.push(block),
                Found::Lost => {
                    self.act(format!("inode block {block} is lost; made empty"));
                    self.make_empty(block)?;
                }
            }
        }
        Ok(torn)
    }

    fn take_torn(&mut self, blocks: Vec<FsBlock>) -> Result<(), CheckError> {
        for block in blocks {
            self.act(format!("inode block {block} was torn; kept what its sectors hold"));
            self.take_block(block, false)?;
        }
        Ok(())
    }

    /// Chunks that the group's inode tree names; whether all of the tree could be read.
    fn chunks_of_tree(&mut self, ag: AgNo) -> bool {
        let block = self.geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
        let mut buf = self.reader.new_buffer();
        if self.reader.read(block, BlockKind::Group, u64::from(ag.0), &mut buf).is_err() {
            return false;
        }
        let head = GroupHeader::read(&buf);
        let (root, level) = (head.inode_root.get(), head.inode_level);
        let ag_blocks = self.geometry.blocks_in(ag);
        if root <= HEADER_BLOCK || root >= ag_blocks {
            return false;
        }
        let root = self.geometry.fs_block(ag, AgBlock(root));
        let tree = Tree { kind: btree::INODE_CHUNKS, owner: u64::from(ag.0), root, level: u16::from(level) };
        let mut records = Vec::new();
        let mut complete = true;
        let mut collect = |bytes: &[u8]| records.push(*ChunkRecord::read(bytes));
        let mut salvage =
            Salvage { repair: self, record: &mut collect, nodes: None, damaged: false, followed: HashSet::new() };
        walk(&self.reader, &tree, &mut salvage);
        complete &= !salvage.damaged;
        let Salvage { followed, .. } = salvage;
        let is_inside =
            |node: &FsBlock| self.geometry.ag_of(*node) == ag && self.geometry.ag_block_of(*node).0 > HEADER_BLOCK;
        self.inode_trees.extend(followed.into_iter().filter(is_inside));
        let mut end = 0;
        for mut record in records {
            // The masks are rebuilt; only the extent matters here.
            record.free_mask.set(0);
            record.used_mask.set(0);
            let Some(chunk_end) = decode_chunk(&record, ag_blocks, end) else {
                complete = false;
                continue;
            };
            end = chunk_end;
            let start = self.geometry.fs_block(ag, AgBlock(record.start.get() as u32));
            let (count, initialised) = (u32::from(record.count), u32::from(record.initialised));
            let chunk = Chunk { count, initialised, is_named: true };
            let holds_any = chunk.blocks(start).any(|block| self.state_of(block) != Found::Lost);
            if chunk.initialised > 0 && !holds_any {
                // The record is older than what its blocks are used for now.
                continue;
            }
            if self.blocks.first_in(start, u64::from(chunk.count)).is_some() {
                // Part of it is somebody else's: what is left is found by the search.
                complete = false;
                continue;
            }
            self.blocks.claim(start, u64::from(chunk.count));
            self.chunks.insert(start, chunk);
        }
        complete
    }

    /// Looks at every block of a group for inode blocks that no known chunk has: torn ones, too, for a repair that was cut
    /// short may have torn what it had found.
    fn search_chunks(&mut self, ag: AgNo) {
        let first = self.geometry.fs_block(ag, AgBlock(0));
        let mut run: Option<(FsBlock, u32)> = None;
        let mut runs = Vec::new();
        for at in u64::from(self.geometry.first_data_block(ag))..u64::from(self.geometry.blocks_in(ag)) {
            let block = first.offset_by(at);
            let is_inodes = self.blocks.first_in(block, 1).is_none() && self.state_of(block) != Found::Lost;
            run = match run {
                Some((start, count)) if is_inodes && count < 64 => Some((start, count + 1)),
                ended => {
                    runs.extend(ended);
                    is_inodes.then_some((block, 1))
                }
            };
        }
        runs.extend(run);
        for (start, count) in runs {
            self.blocks.claim(start, u64::from(count));
            self.chunks.insert(start, Chunk { count, initialised: count, is_named: false });
        }
    }

    /// When a block was written last, by its own word.
    fn lsn_of(&self, block: FsBlock) -> u64 {
        let mut buf = self.reader.new_buffer();
        self.reader.read_raw(block, &mut buf).map_or(0, |_| BlockHeader::read(&buf).lsn.get())
    }

    fn state_of(&self, block: FsBlock) -> Found {
        let mut buf = self.reader.new_buffer();
        let owner = u64::from(self.geometry.ag_of(block).0);
        match self.reader.read(block, BlockKind::Inode, owner, &mut buf) {
            Ok(()) => Found::Sound,
            Err(Damage::Unreadable { .. }) if !self.reader.read_sectors(block, &mut buf) => Found::Lost,
            Err(Damage::Corrupt(Corrupt::BlockCrc { .. }) | Damage::Unreadable { .. }) => {
                let head = BlockHeader::read(&buf);
                let is_ours = head.magic.get() == BlockKind::Inode.magic()
                    && head.volume == self.reader.volume
                    && head.address.get() == block.0
                    && head.owner.get() == owner;
                if is_ours { Found::Torn } else { Found::Lost }
            }
            Err(_) => Found::Lost,
        }
    }

    pub(super) fn make_empty(&mut self, block: FsBlock) -> Result<(), CheckError> {
        let mut buf = self.reader.new_buffer();
        header::init(&mut buf, BlockKind::Inode, self.reader.volume, u64::from(self.geometry.ag_of(block).0), block);
        set_masks(&mut buf, &HashSet::new());
        write(&self.reader, block, &mut buf)
    }

    /// Puts the inodes of a block right and takes what they own.
    fn take_block(&mut self, block: FsBlock, is_sound: bool) -> Result<(), CheckError> {
        let mut buf = self.reader.new_buffer();
        if self.reader.read_raw(block, &mut buf).is_err() && !self.reader.read_sectors(block, &mut buf) {
            return Ok(());
        }
        let before = buf.clone();
        let slots = slots_of(&buf);
        let mut used: HashSet<u32> = HashSet::new();
        let all = slots.inodes.into_iter().chain(slots.bad_bodies.into_iter().map(|slot| (slot, 0..0)));
        for (slot, body) in all {
            let ino = self.geometry.ino(block, slot);
            let mut raw = *inode_at(&buf, slot);
            if body.is_empty() && (raw.body_slots > 0 || raw.fork_code() == fork::INLINE) {
                drop_body(&mut raw);
                self.act(format!("inode {ino} lost its body"));
            }
            let (data, attributes) = body_parts(&buf, &body);
            let (data, attributes) = (data.to_vec(), attributes.to_vec());
            let Some((data_len, attributes)) = self.take_inode(ino, &mut raw, &data, attributes) else {
                self.act(format!("inode {ino} was impossible and is gone"));
                continue;
            };
            if !body.is_empty() {
                let bytes = &mut buf[body.start as usize * SLOT_SIZE..body.end as usize * SLOT_SIZE];
                let head = BodyHeader::read_mut(bytes);
                head.data_len.set(data_len as u16);
                head.attr_len.set(attributes.len() as u16);
                bytes[BodyHeader::SIZE + data_len..][..attributes.len()].copy_from_slice(&attributes);
                used.extend(body);
            }
            buf[slot as usize * SLOT_SIZE..][..SLOT_SIZE].copy_from_slice(raw.as_bytes());
            used.insert(slot);
            let no_links = if raw.nlink.get() == 0 { state::NO_LINKS } else { 0 };
            self.items.push(Item { ino, names: 0, file_type: (raw.mode.get() >> 12) as u8, state: no_links });
        }
        set_masks(&mut buf, &used);
        if buf != before || !is_sound {
            write(&self.reader, block, &mut buf)?;
        }
        Ok(())
    }

    /// Puts an inode's own fields right and takes its blocks. Its data length and attributes as they shall be; `None` if
    /// it cannot be one.
    fn take_inode(
        &mut self,
        ino: Ino,
        raw: &mut RawInode,
        data: &[u8],
        attributes: Vec<u8>,
    ) -> Option<(usize, Vec<u8>)> {
        if !is_type(raw.mode.get()) {
            return None;
        }
        raw.flags.set(raw.flags.get() & flag::KNOWN);
        if raw.size.get() > i64::MAX as u64 {
            raw.size.set(0);
        }
        raw.check(ino).ok()?;
        let code = raw.fork_code();
        let mut data_len = data.len();
        match (code, raw.file_type()) {
            (fork::INLINE, S_IFDIR) => {}
            (fork::INLINE, _) => raw.size.set(data_len as u64),
            _ => data_len = 0,
        }
        if code == fork::NONE && raw.file_type() != S_IFREG {
            raw.size.set(0);
        }
        if raw.file_type() == S_IFLNK {
            let short = code != fork::SHORT_LINK || raw.size.get() <= raw.fork_room() as u64;
            if !(1..=TARGET_MAX).contains(&raw.size.get()) || !short {
                return None;
            }
        }
        let needed = raw.size.get().div_ceil(self.reader.block_size() as u64);
        let (mut extents, nodes, is_damaged) = self.take_map(ino, raw);
        let is_shrinking = raw.file_type() == S_IFREG && self.orphans.contains(&ino);
        let past = if is_shrinking { cut(&mut extents, needed) } else { Vec::new() };
        let covered =
            extents.iter().fold(0, |end, extent| if extent.file_block.0 == end { extent.end().0 } else { end });
        if is_damaged && raw.file_type() == S_IFLNK && covered < needed {
            // A part of a target leads somewhere else.
            extents.iter().for_each(|extent| self.blocks.release(extent.start, u64::from(extent.length)));
            nodes.iter().for_each(|&node| self.blocks.release(node, 1));
            return None;
        }
        let (attributes, attribute_blocks) = self.take_attributes(ino, raw, attributes);
        let blocks = extents.iter().map(|extent| u64::from(extent.length)).sum::<u64>();
        if is_damaged || !past.is_empty() {
            self.act(match is_damaged {
                true => format!("inode {ino}: its file map was damaged; {blocks} blocks are left"),
                false => format!("inode {ino}: blocks past its end were freed"),
            });
            // Until the map is written anew, the inode keeps what there is, and what its map names is nobody else's.
            self.maps.insert(ino, Salvaged { extents, past, nodes, blocks: blocks + attribute_blocks });
        } else {
            raw.set_block_total(blocks + nodes.len() as u64 + attribute_blocks);
        }
        Some((data_len, attributes))
    }

    /// The extents of an inode that nobody else has, its tree's nodes, and whether anything had to go.
    fn take_map(&mut self, ino: Ino, raw: &RawInode) -> (Vec<Extent>, Vec<FsBlock>, bool) {
        let geometry = self.geometry;
        let mut found: Vec<Extent> = Vec::new();
        let mut damaged = false;
        let mut end = 0;
        let mut nodes = Vec::new();
        let mut record = |bytes: &[u8]| match Extent::decode(RawExtent::read(bytes), &geometry, ino) {
            Ok(extent) if extent.file_block.0 >= end => {
                end = extent.end().0;
                found.push(extent);
            }
            _ => damaged = true,
        };
        match map_of(raw) {
            Map::None => {}
            Map::Inline(extents) => extents.iter().for_each(|extent| record(extent.as_bytes())),
            Map::Tree { root, level } => {
                let tree = Tree { kind: btree::EXTENTS, owner: ino.0, root, level: u16::from(level) };
                let mut salvage = Salvage {
                    repair: self,
                    record: &mut record,
                    nodes: Some(Vec::new()),
                    damaged: false,
                    followed: HashSet::new(),
                };
                walk(&self.reader, &tree, &mut salvage);
                let tree_damaged = salvage.damaged;
                nodes = salvage.nodes.unwrap_or_default();
                damaged |= tree_damaged;
            }
        }
        let mut extents = Vec::new();
        for extent in found {
            if geometry.ag_of(extent.start).0 >= self.ag_used || (raw.is_dir() && extent.unwritten) {
                damaged = true;
                continue;
            }
            // What nobody has yet; the first owner keeps the rest.
            let mut free = Vec::new();
            self.blocks.for_each_gap(extent.start, u64::from(extent.length), |start, length| {
                free.push((start, length));
                true
            });
            damaged |= free != [(extent.start, u64::from(extent.length))];
            for (start, length) in free {
                self.blocks.claim(start, length);
                let file_block = FileBlock(extent.file_block.0 + (start.0 - extent.start.0));
                extents.push(Extent { file_block, start, length: length as u32, unwritten: extent.unwritten });
            }
        }
        (extents, nodes, damaged)
    }

    /// The attributes in the body that can be read; a damaged chain of blocks goes as a whole. Flags follow.
    fn take_attributes(&mut self, ino: Ino, raw: &mut RawInode, mut in_body: Vec<u8>) -> (Vec<u8>, u64) {
        // What a repair has copied to a block, and is there to stay if that cannot be read.
        if !raw.has_flag(flag::ATTR_BODY)
            && chain_root(raw).is_some_and(|(first, _)| self.is_copy(ino, first, &in_body))
        {
            in_body.clear();
        }
        let mut names: HashSet<Vec<u8>> = HashSet::new();
        let mut kept = Vec::new();
        for (name, value) in AttrIter::new(&in_body).map_while(Result::ok) {
            if xattr::has_namespace(name) && names.insert(name.to_vec()) {
                xattr::push(&mut kept, name, value);
            }
        }
        let mut blocks = Vec::new();
        if let Some((first, count)) = chain_root(raw) {
            match self.read_chain(ino, first, count, &mut blocks, &names) {
                Some(found) => names.extend(found),
                None => {
                    for block in blocks.drain(..) {
                        self.blocks.release(block, 1);
                    }
                    raw.flags.set(raw.flags.get() & !flag::ATTR_BLOCKS);
                    raw.fork[24..].fill(0);
                    self.act(format!("inode {ino}: its attribute blocks were damaged and are gone"));
                }
            }
        }
        let has_acl = names.iter().any(|name| ACL_NAMES.contains(&name.as_slice()));
        let mut flags = raw.flags.get() & !(flag::ATTR_BODY | flag::HAS_ACL);
        flags |= if kept.is_empty() { 0 } else { flag::ATTR_BODY } | if has_acl { flag::HAS_ACL } else { 0 };
        raw.flags.set(flags);
        self.has_xattr |= !names.is_empty();
        self.has_acl |= has_acl;
        (kept, blocks.len() as u64)
    }

    /// Whether a block holds this list of attributes and nothing else.
    fn is_copy(&self, ino: Ino, block: FsBlock, list: &[u8]) -> bool {
        let mut buf = self.reader.new_buffer();
        self.reader.read(block, BlockKind::Attributes, ino.0, &mut buf).is_ok() && {
            let length = AttrBlockHeader::read(&buf).length.get() as usize;
            buf[AttrBlockHeader::SIZE..].get(..length) == Some(list)
        }
    }

    /// Reads and claims a chain; the names in it, none of which is among `others`. `None` if anything is wrong with it.
    fn read_chain(
        &self,
        ino: Ino,
        mut next: FsBlock,
        count: u64,
        blocks: &mut Vec<FsBlock>,
        others: &HashSet<Vec<u8>>,
    ) -> Option<HashSet<Vec<u8>>> {
        let mut list = Vec::new();
        let mut buf = self.reader.new_buffer();
        while next != FsBlock::NONE {
            let fits = self.geometry.is_data_range(next, 1) && self.geometry.ag_of(next).0 < self.ag_used;
            if !fits || list.len() > LIST_MAX || self.blocks.claim(next, 1).is_some() {
                return None;
            }
            blocks.push(next);
            self.reader.read(next, BlockKind::Attributes, ino.0, &mut buf).ok()?;
            let head = AttrBlockHeader::read(&buf);
            let length = head.length.get() as usize;
            if head.index.get() as usize != blocks.len() - 1 || length > buf.len() - AttrBlockHeader::SIZE {
                return None;
            }
            list.extend_from_slice(&buf[AttrBlockHeader::SIZE..][..length]);
            next = FsBlock(head.next.get());
        }
        if blocks.len() as u64 != count || list.len() > LIST_MAX {
            return None;
        }
        let mut names = HashSet::new();
        for attribute in AttrIter::new(&list) {
            let (name, _) = attribute.ok()?;
            if !xattr::has_namespace(name) || others.contains(name) || !names.insert(name.to_vec()) {
                return None;
            }
        }
        Some(names)
    }

    /// Writes the file maps that were damaged. All inodes' blocks are known by now. New trees are durable before an inode
    /// names one, and that is before anything is written over what only an old map names: power lost in between costs no extent.
    /// Where there is no room for a tree, other maps go first and give back what they named.
    pub(super) fn write_maps(&mut self) -> Result<(), CheckError> {
        let mut rest = std::mem::take(&mut self.maps);
        while !rest.is_empty() {
            let mut built = Vec::new();
            let mut waiting = BTreeMap::new();
            for (ino, salvaged) in rest {
                match self.map_tree(ino, &salvaged.extents, Fill::Ample)? {
                    Some(tree) => built.push((ino, salvaged, tree)),
                    None => _ = waiting.insert(ino, salvaged),
                }
            }
            if built.is_empty()
                && let Some((ino, mut salvaged)) = waiting.pop_first()
            {
                let tree = self.squeeze_in(ino, &mut salvaged)?;
                built.push((ino, salvaged, tree));
            }
            self.flush()?;
            let mut left = Vec::new();
            for (ino, Salvaged { extents, past, nodes, blocks }, tree) in built {
                self.change_inode(ino, |raw| {
                    raw.set_block_total(blocks);
                    set_map(raw, &extents, tree);
                })?;
                left.extend(past);
                left.extend(nodes.into_iter().map(|node| (node, 1)));
            }
            self.store_at_hand()?;
            self.flush()?;
            self.release(left);
            rest = waiting;
        }
        Ok(())
    }

    /// The tree of a map for which a full volume has no room: full nodes; then also where the file had blocks past its end, which
    /// nobody misses. The last resort is the old tree's place: power lost before the inode names the new one costs the file's map.
    fn squeeze_in(&mut self, ino: Ino, salvaged: &mut Salvaged) -> Result<Option<BuiltTree>, CheckError> {
        let mut tree = self.map_tree(ino, &salvaged.extents, Fill::Full)?;
        if tree.is_none() {
            self.release(std::mem::take(&mut salvaged.past));
            tree = self.map_tree(ino, &salvaged.extents, Fill::Full)?;
        }
        if tree.is_none() {
            self.release(std::mem::take(&mut salvaged.nodes).into_iter().map(|node| (node, 1)));
            tree = self.map_tree(ino, &salvaged.extents, Fill::Full)?;
        }
        tree.ok_or_else(no_room)
    }

    /// Writes the tree of a map, if the extents do not fit the inode; `None` if there is no room for it.
    fn map_tree(&mut self, ino: Ino, extents: &[Extent], fill: Fill) -> Result<Option<Option<BuiltTree>>, CheckError> {
        let raw = self.raw(ino)?;
        let inline_max = if raw.is_dir() { 1 } else { raw.fork_room() / 16 };
        if extents.len() <= inline_max {
            return Ok(Some(None));
        }
        let need = node_count(btree::EXTENTS, extents.len(), self.reader.block_size(), fill);
        let Some(mut places) = self.take_all(need)? else { return Ok(None) };
        let records: Vec<u8> = extents.iter().flat_map(|extent| extent.encode().as_bytes().to_vec()).collect();
        let (root, level) = write_tree(&self.reader, btree::EXTENTS, ino.0, &records, fill, &mut || {
            places.pop().ok_or_else(|| CheckError::Repair("a tree took more nodes than were counted".to_owned()))
        })?;
        Ok(Some(Some(BuiltTree { root, level, nodes: need as u64 })))
    }

    /// Writes the tree of a map that does not fit the inode.
    pub(super) fn build_map(&mut self, ino: Ino, extents: &[Extent]) -> Result<Option<BuiltTree>, CheckError> {
        self.map_tree(ino, extents, Fill::Ample)?.ok_or_else(no_room)
    }

    /// Frees an inode: its slot, its body, its blocks. What is in its place stays.
    pub(super) fn free_inode(&mut self, ino: Ino) -> Result<(), CheckError> {
        let raw = self.raw(ino)?;
        let (extents, nodes) = self.blocks_of_map(ino, &raw);
        self.left.extend(extents.iter().map(|extent| (extent.start, u64::from(extent.length))));
        self.left.extend(nodes.into_iter().map(|node| (node, 1)));
        if let Some((mut next, count)) = chain_root(&raw) {
            let mut buf = self.reader.new_buffer();
            for _ in 0..count {
                self.left.push((next, 1));
                if self.reader.read(next, BlockKind::Attributes, ino.0, &mut buf).is_err() {
                    break;
                }
                next = FsBlock(AttrBlockHeader::read(&buf).next.get());
            }
        }
        let Some((block, slot)) = self.geometry.locate(ino) else { return Ok(()) };
        let first = u32::from(raw.body_first.get());
        let body = first..first + u32::from(raw.body_slots);
        // The map of free slots lies in one sector. Were the inode written as well, it could be gone and its body's slots in use: a
        // body holds what a user wrote, and that may look like inodes.
        self.load_at_hand(block)?;
        if let Some((_, buf, dirty)) = &mut self.at_hand {
            let head = InodeBlockHeader::read_mut(buf);
            for slot in body.chain([slot]) {
                head.free_mask[slot as usize / 8] |= 1 << (slot % 8);
            }
            let free: u32 = head.free_mask.iter().map(|byte| byte.count_ones()).sum();
            head.free_count.set(free as u16);
            *dirty = true;
        }
        if let Some(item) = self.item(ino) {
            item.state |= state::GONE;
        }
        Ok(())
    }

    /// Extents and tree nodes of a map that has been put right.
    pub(super) fn blocks_of_map(&self, ino: Ino, raw: &RawInode) -> (Vec<Extent>, Vec<FsBlock>) {
        let geometry = self.geometry;
        let mut extents = Vec::new();
        let mut nodes = Vec::new();
        match map_of(raw) {
            Map::None => {}
            Map::Inline(raws) => {
                extents.extend(raws.iter().filter_map(|raw| Extent::decode(raw, &geometry, ino).ok()));
            }
            Map::Tree { root, level } => {
                struct Collect<'a>(&'a mut Vec<FsBlock>, &'a mut dyn FnMut(&[u8]));
                impl Visitor for Collect<'_> {
                    fn node(&mut self, block: FsBlock) -> bool {
                        self.0.push(block);
                        true
                    }
                    fn record(&mut self, record: &[u8]) {
                        (self.1)(record);
                    }
                    fn damage(&mut self, _: Damage) {}
                }
                let tree = Tree { kind: btree::EXTENTS, owner: ino.0, root, level: u16::from(level) };
                let mut record =
                    |bytes: &[u8]| extents.extend(Extent::decode(RawExtent::read(bytes), &geometry, ino).ok());
                walk(&self.reader, &tree, &mut Collect(&mut nodes, &mut record));
            }
        }
        (extents, nodes)
    }

    /// A new inode in any free slot, or in a new chunk. It is durable before its slot counts as used: what was in its place
    /// could come back.
    pub(super) fn make_inode(&mut self, mode: u16, wanted: Option<Ino>) -> Result<Ino, CheckError> {
        self.store_at_hand()?;
        let is_chunk = |repair: &Self, block: FsBlock| {
            repair
                .chunks
                .range(..=block)
                .next_back()
                .is_some_and(|(start, chunk)| block.0 < start.0 + u64::from(chunk.initialised))
        };
        let wanted = wanted.and_then(|ino| self.geometry.locate(ino)).filter(|&(block, _)| is_chunk(self, block));
        let mut place = None;
        if let Some((block, slot)) = wanted {
            self.load_at_hand(block)?;
            place = self.is_slot_free(slot).then_some((block, slot));
        }
        if place.is_none() {
            let blocks: Vec<FsBlock> = self.chunks.iter().flat_map(|(start, chunk)| chunk.blocks(*start)).collect();
            for block in blocks {
                self.load_at_hand(block)?;
                if let Some(slot) = (1..self.geometry.slots_per_block()).find(|&slot| self.is_slot_free(slot)) {
                    place = Some((block, slot));
                    break;
                }
            }
        }
        let (block, slot) = match place {
            Some(place) => place,
            None => {
                let block = self.take(None)?;
                self.make_empty(block)?;
                self.chunks.insert(block, Chunk { count: 1, initialised: 1, is_named: false });
                (block, 1)
            }
        };
        let ino = self.geometry.ino(block, slot);
        let now = self.now;
        self.change_inode(ino, |raw| {
            *raw = RawInode::zeroed();
            raw.mode.set(mode);
            // As who opens the volume begins: not from what the slot has, which may be anything.
            raw.generation.set(generation_at(now));
            for time in [&mut raw.mtime, &mut raw.ctime, &mut raw.atime, &mut raw.btime] {
                time.set(now);
            }
        })?;
        self.store_at_hand()?;
        self.flush()?;
        self.load_at_hand(block)?;
        if let Some((_, buf, dirty)) = &mut self.at_hand {
            let head = InodeBlockHeader::read_mut(buf);
            head.free_mask[slot as usize / 8] &= !(1 << (slot % 8));
            head.free_count.set(head.free_count.get() - 1);
            *dirty = true;
        }
        let index = self.items.partition_point(|item| item.ino < ino);
        let item = Item { ino, names: 0, file_type: (mode >> 12) as u8, state: 0 };
        match self.items.get_mut(index) {
            Some(old) if old.ino == ino => *old = item,
            _ => self.items.insert(index, item),
        }
        Ok(ino)
    }

    fn is_slot_free(&self, slot: u32) -> bool {
        self.at_hand
            .as_ref()
            .is_some_and(|(_, buf, _)| InodeBlockHeader::read(buf).free_mask[slot as usize / 8] >> (slot % 8) & 1 == 1)
    }
}

/// A file's tree of extents that has been written.
pub(super) struct BuiltTree {
    root: FsBlock,
    level: u8,
    pub nodes: u64,
}

/// Puts a map into an inode in place of what it has: its extents, or the tree that holds them. The root of a directory's
/// index stays, for its counts.
pub(super) fn set_map(raw: &mut RawInode, extents: &[Extent], tree: Option<BuiltTree>) {
    let is_dir = raw.is_dir();
    let at = if is_dir { 8 } else { 0 };
    let room = raw.fork_room();
    raw.fork[at..room].fill(0);
    if let Some(BuiltTree { root, level, nodes }) = tree {
        raw.fork[at..at + 8].copy_from_slice(&root.0.to_le_bytes());
        raw.fork[at + 8] = level;
        raw.set_fork(if is_dir { fork::DIRECTORY_TREE } else { fork::TREE }, 0);
        raw.set_block_total(raw.block_total() + nodes);
        return;
    }
    for (index, extent) in extents.iter().enumerate() {
        raw.fork[at + index * 16..][..16].copy_from_slice(extent.encode().as_bytes());
    }
    match (is_dir, extents.is_empty()) {
        (true, _) => raw.set_fork(fork::DIRECTORY, 0),
        (false, true) => raw.set_fork(fork::NONE, 0),
        (false, false) => raw.set_fork(fork::EXTENTS, extents.len()),
    }
}

/// Takes from a map what lies past the first `needed` blocks of its file; start and length of that.
fn cut(extents: &mut Vec<Extent>, needed: u64) -> Vec<(FsBlock, u64)> {
    let mut left = Vec::new();
    extents.retain_mut(|extent| {
        let kept = needed.saturating_sub(extent.file_block.0).min(u64::from(extent.length));
        let gone = u64::from(extent.length) - kept;
        if gone > 0 {
            left.push((extent.start.offset_by(kept), gone));
            extent.length = kept as u32;
        }
        kept > 0
    });
    left
}

/// Takes away an inode's body and what announced it.
fn drop_body(raw: &mut RawInode) {
    raw.body_slots = 0;
    raw.body_first.set(0);
    raw.flags.set(raw.flags.get() & !flag::ATTR_BODY);
    if raw.fork_code() == fork::INLINE {
        raw.set_fork(fork::NONE, 0);
        raw.size.set(0);
    }
}

/// Writes an inode block's map of free slots.
fn set_masks(buf: &mut [u8], used: &HashSet<u32>) {
    let slots = (buf.len() / SLOT_SIZE) as u32;
    let head = InodeBlockHeader::read_mut(buf);
    head.free_mask = [0; 64];
    let mut free = 0;
    for slot in (1..slots).filter(|slot| !used.contains(slot)) {
        head.free_mask[slot as usize / 8] |= 1 << (slot % 8);
        free += 1;
    }
    head.free_count.set(free);
    head.slot_count.set(slots as u16);
}
