//! Repair of inodes in chunks: what a group's tree names, what a search of the group finds, and the records of a new tree.

use super::check::decode_chunk;
use crate::context::is_tree_block;
use crate::inodes::repair::{InBody, Salvage};
use crate::io::{Damage, LSN_BELIEVED};
use crate::options::CheckError;
use crate::repair::build::write;
use crate::repair::volume::{Chunk, Item, Repair, state};
use crate::slots::{body_parts, inode_at, inodes_of};
use crate::tree::{Tree, walk};
use myriad_format::btree;
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::inode::{
    BodyHeader, ChunkRecord, InodeBlockHeader, RawInode, S_IFBLK, S_IFCHR, S_IFLNK, flag, fork,
};
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{AgBlock, AgNo, BlockHeader, BlockKind, Corrupt, FsBlock, Ino, SLOT_SIZE, header};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// A block of inodes as it is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Sound,
    /// Header and address are right, the checksum is not: some sectors are older than others, each whole, or cannot be read.
    Torn,
    Lost,
}

/// A block of inodes whose inodes are being taken.
struct Taking {
    block: FsBlock,
    is_sound: bool,
    before: Vec<u8>,
    bytes: Vec<u8>,
    /// What zeros stand for, because it cannot be read.
    missing: Vec<Range<usize>>,
    /// Slots of those that were taken.
    used: HashSet<u32>,
    /// Slots of those that were not yet, with the slots of their bodies.
    rest: Vec<(u32, Range<u32>)>,
}

/// Records of a group's chunks, and how many inode blocks those have.
#[derive(Default)]
pub(crate) struct ChunkRecords {
    pub records: Vec<u8>,
    pub blocks: u32,
}

impl Repair<'_> {
    /// Trees of inodes may be older than what was synced, for a part of the log is lost: takes what they name, and has every group searched. The next
    /// repair does so, too, if this one is cut short: the log says that something is lost until the groups are written.
    pub(crate) fn distrust_trees(&mut self) {
        for ag in (0..self.ag_used).map(AgNo) {
            self.chunks_of_tree(ag);
        }
        self.leave_what_is_others();
        self.are_trees_old = true;
    }

    /// A block of an old tree's chunk that can be read, and is none of inodes, has become somebody else's. What the chunk had not initialised becomes a chunk
    /// of its own.
    fn leave_what_is_others(&mut self) {
        for (start, Chunk { count, initialised, .. }) in std::mem::take(&mut self.chunks) {
            self.keep_runs(start, initialised, true);
            self.keep_runs(start.offset_by(u64::from(initialised)), count - initialised, false);
        }
    }

    fn keep_runs(&mut self, start: FsBlock, count: u32, is_initialised: bool) {
        let mut buf = self.reader.new_buffer();
        let mut run = None;
        for block in (0..u64::from(count)).map(|at| start.offset_by(at)) {
            let is_others = self.state_of(block) == Found::Lost && self.reader.read_raw(block, &mut buf).is_ok();
            if is_others {
                self.release([(block, 1)]);
                run = None;
                continue;
            }
            let first = *run.get_or_insert(block);
            let chunk = self.chunks.entry(first).or_insert(Chunk { count: 0, initialised: 0, is_named: true });
            chunk.count += 1;
            chunk.initialised += u32::from(is_initialised);
        }
    }

    /// Leaves to the search what chunks had not initialised when the trees were written. Blocks that came into use since are blocks of inodes. The others hold
    /// what they held before, maybe as a user wrote it, and no tree says that of any of them. Not before those that trees name are taken: an old one may lead
    /// to blocks that are inodes' by now.
    fn leave_rest_to_search(&mut self) {
        let rests = self.chunks.iter().filter(|(_, chunk)| chunk.initialised == 0);
        let rests: Vec<(FsBlock, u64)> = rests.map(|(&start, chunk)| (start, u64::from(chunk.count))).collect();
        self.release(rests);
        self.chunks.retain(|_, chunk| chunk.initialised > 0);
    }

    /// Finds the inodes in chunks: those that trees name, and where a tree cannot be believed those that a search finds.
    pub(crate) fn find_in_chunks(&mut self) -> Result<(), CheckError> {
        let mut searched = Vec::new();
        for ag in (0..self.ag_used).map(AgNo) {
            if self.are_trees_old || !self.chunks_of_tree(ag) {
                searched.push(ag);
            }
            self.tick("repairing inodes", u64::from(ag.0) + 1, u64::from(self.ag_used), 0.0, 0.1);
        }
        let why = if self.are_trees_old { "a part of the log is lost" } else { "its inode tree is damaged" };
        // What a tree names comes first, and of the rest what was written last: a search also finds inodes that are long gone, and
        // whose blocks others have. So may a tree, if a part of the log is lost: then those it names come in this order, too. Of each the
        // sound blocks come first: where a torn one claims the same extent it is the torn one that loses. Last comes what nothing vouches
        // for in torn ones. What a sound one has that a tree names is nobody's inode block, whatever it looks like: reserved blocks keep
        // what they held.
        let mut named: Vec<FsBlock> = self.chunks.iter().flat_map(|(&start, chunk)| chunk.blocks(start)).collect();
        if self.are_trees_old {
            let believed = |lsn: &u64| *lsn <= LSN_BELIEVED;
            named.sort_by_cached_key(|&block| std::cmp::Reverse(Some(self.lsn_of(block)).filter(believed)));
        }
        let named = self.with_states(named, 0.1, 0.2);
        named.iter().filter(|(_, state)| *state == Found::Torn).for_each(|&(block, _)| self.contest_all_in(block));
        let torn = self.take_sound(named, 0.2, 0.3)?;
        if self.are_trees_old {
            self.leave_rest_to_search();
        }
        for (done, &ag) in searched.iter().enumerate() {
            self.act(format!("searched group {ag} for inode blocks: {why}"));
            self.search_chunks(ag);
            self.tick("repairing inodes", done as u64 + 1, searched.len() as u64, 0.3, 0.4);
        }
        let mut held = self.take_torn(torn)?;
        let found = self.chunks.iter().filter(|(_, chunk)| !chunk.is_named);
        let mut found: Vec<FsBlock> = found.flat_map(|(&start, chunk)| chunk.blocks(start)).collect();
        found.sort_by_cached_key(|&block| std::cmp::Reverse(self.lsn_of(block)));
        let found = self.with_states(found, 0.4, 0.45);
        let torn = self.take_sound(found, 0.45, 0.5)?;
        held.extend(self.take_torn(torn)?);
        for mut taking in held {
            self.take_rest(&mut taking);
            self.store_taken(taking)?;
        }
        // What nobody else has of the old trees stays as it is until the headers name new ones.
        let (blocks, geometry) = (&self.blocks, &self.geometry);
        self.inode_trees.retain(|&node| is_tree_block(geometry.ag_block_of(node)) || blocks.claim(node, 1).is_none());
        Ok(())
    }

    /// Nobody has looked yet at what the inodes of a torn block lead to. It is not to be given to others unseen.
    fn contest_all_in(&mut self, block: FsBlock) {
        let bytes = self.read_block(block).0;
        for (slot, _) in inodes_of(&self.geometry, &bytes).inodes {
            let (ino, raw) = (self.geometry.ino(block, slot), *inode_at(&self.geometry, &bytes, slot));
            if raw.check(ino).is_ok() {
                self.contest_all_of(ino, &raw, &bytes);
            }
        }
    }

    fn with_states(&mut self, blocks: Vec<FsBlock>, from: f64, to: f64) -> Vec<(FsBlock, Found)> {
        let total = blocks.len() as u64;
        let state = |(done, block)| {
            self.tick("repairing inodes", done as u64, total, from, to);
            (block, self.state_of(block))
        };
        blocks.into_iter().enumerate().map(state).collect()
    }

    /// Takes the inodes of blocks that are sound, and makes lost ones empty; those that are torn.
    fn take_sound(&mut self, blocks: Vec<(FsBlock, Found)>, from: f64, to: f64) -> Result<Vec<FsBlock>, CheckError> {
        let total = blocks.len() as u64;
        let mut torn = Vec::new();
        for (done, (block, state)) in blocks.into_iter().enumerate() {
            self.tick("repairing inodes", done as u64, total, from, to);
            match state {
                Found::Sound => self.take_block(block)?,
                Found::Torn => torn.push(block),
                Found::Lost => {
                    self.act(format!("inode block {block} is lost; made empty"));
                    self.make_empty(block)?;
                }
            }
        }
        Ok(torn)
    }

    /// Takes the inodes of torn blocks whose names are where they say; what is left. Where a sector is lost or older than its neighbours, a body may lie
    /// there without its inode, and holds what a user wrote: that may look like an inode with any rights and blocks.
    fn take_torn(&mut self, blocks: Vec<FsBlock>) -> Result<Vec<Taking>, CheckError> {
        let named = self.with_names(&blocks)?;
        let mut held = Vec::new();
        for block in blocks {
            self.act(format!("inode block {block} was torn; kept what its sectors hold"));
            self.torn.insert(block);
            let Some(mut taking) = self.open_block(block, false)? else { continue };
            let ino = |slot| self.geometry.ino(block, slot);
            let (first, last): (Vec<_>, _) =
                std::mem::take(&mut taking.rest).into_iter().partition(|(slot, _)| named.contains(&ino(*slot)));
            self.doubted.extend(last.iter().map(|(slot, _)| ino(*slot)));
            taking.rest = first;
            self.take_rest(&mut taking);
            taking.rest = last;
            if taking.rest.is_empty() {
                self.store_taken(taking)?;
            } else {
                held.push(taking);
            }
        }
        Ok(held)
    }

    /// Of the inodes of torn blocks, those that have the names that they say are theirs. Nobody can write the hash of a name into a body without the
    /// volume's key. The root needs no name.
    fn with_names(&mut self, blocks: &[FsBlock]) -> Result<HashSet<Ino>, CheckError> {
        let mut wanted: BTreeMap<Ino, HashSet<(Ino, u64)>> = BTreeMap::new();
        for &block in blocks {
            let (bytes, _) = self.read_block(block);
            let slots = inodes_of(&self.geometry, &bytes);
            for slot in slots.inodes.into_iter().map(|(slot, _)| slot).chain(slots.bad_bodies) {
                let raw = inode_at(&self.geometry, &bytes, slot);
                let find = (self.geometry.ino(block, slot), raw.name_hash.get());
                wanted.entry(Ino(raw.parent.get())).or_default().insert(find);
            }
        }
        let mut named = HashSet::from([Ino(self.superblock.root_ino.get())]);
        for (directory, finds) in wanted {
            named.extend(self.named_by(directory, &finds)?);
        }
        Ok(named)
    }

    /// Those of some inodes that a directory, as it is on the device, names by names of which they give the hashes.
    fn named_by(&mut self, directory: Ino, finds: &HashSet<(Ino, u64)>) -> Result<Vec<Ino>, CheckError> {
        let Some((block, slot)) = self.geometry.locate(directory) else { return Ok(Vec::new()) };
        if self.state_of(block) == Found::Lost {
            return Ok(Vec::new());
        }
        let (bytes, _) = self.read_block(block);
        let raw = *inode_at(&self.geometry, &bytes, slot);
        let found = inodes_of(&self.geometry, &bytes).inodes.into_iter().find(|(at, _)| *at == slot);
        let has_names = |body: &Range<u32>| raw.fork_code() != fork::INLINE || !body.is_empty();
        let is_right = raw.is_dir() && raw.check(directory).is_ok() && found.is_some_and(|(_, body)| has_names(&body));
        if !is_right || !self.can_follow(directory, &raw) {
            return Ok(Vec::new());
        }
        // Its body is read from here: not all of the block may be readable.
        self.at_hand = Some((block, bytes, false));
        let names = self.names_in(directory, &raw);
        self.at_hand = None;
        let mut names = names?;
        names.retain(|name| finds.contains(name));
        Ok(names.into_iter().map(|(ino, _)| ino).collect())
    }

    /// Chunks that the group's inode tree names; whether all of the tree could be read.
    fn chunks_of_tree(&mut self, ag: AgNo) -> bool {
        let block = self.geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
        let mut buf = self.reader.new_buffer();
        // It is written anew in any case, and what is left of it says where the tree is.
        if self.reader.read_part(block, BlockKind::Group, u64::from(ag.0), &mut buf).is_err() {
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
        let mut salvage = Salvage::new(self, None, &mut collect);
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
    /// short may have torn what it had found. A user may have written any of them into a file that is gone since: so inodes that trees name come before
    /// those found here, and those found here have no rights to run as others ([`Self::withdraw_rights`]).
    fn search_chunks(&mut self, ag: AgNo) {
        let first = self.geometry.fs_block(ag, AgBlock(0));
        let mut run: Option<(FsBlock, u32)> = None;
        let mut runs = Vec::new();
        for at in u64::from(self.geometry.first_data_block(ag))..u64::from(self.geometry.blocks_in(ag)) {
            let block = first.offset_by(at);
            let is_inodes = self.blocks.first_in(block, 1).is_none()
                && self.state_of(block) != Found::Lost
                && self.lsn_of(block) <= LSN_BELIEVED;
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

    fn make_empty(&mut self, block: FsBlock) -> Result<(), CheckError> {
        let mut buf = self.reader.new_buffer();
        header::init(&mut buf, BlockKind::Inode, self.reader.volume, u64::from(self.geometry.ag_of(block).0), block);
        set_masks(&mut buf, &HashSet::new());
        write(&self.reader, block, &mut buf)
    }

    /// Puts the inodes of a sound block right and takes what they own.
    fn take_block(&mut self, block: FsBlock) -> Result<(), CheckError> {
        let Some(mut taking) = self.open_block(block, true)? else { return Ok(()) };
        self.take_rest(&mut taking);
        self.store_taken(taking)
    }

    /// What there is of a block, with zeros for what cannot be read; which bytes these are.
    fn read_block(&self, block: FsBlock) -> (Vec<u8>, Vec<Range<usize>>) {
        let mut bytes = self.reader.new_buffer();
        let missing = self.reader.read_with_gaps(block, &mut bytes);
        (bytes, missing)
    }

    /// Sorts out the inodes of a block; `None` if nothing of it can be read.
    fn open_block(&mut self, block: FsBlock, is_sound: bool) -> Result<Option<Taking>, CheckError> {
        let (bytes, missing) = self.read_block(block);
        if missing.iter().map(Range::len).sum::<usize>() == bytes.len() {
            return Ok(None);
        }
        let slots = inodes_of(&self.geometry, &bytes);
        if let Some(&slot) = slots.ring.first() {
            let ino = self.geometry.ino(block, slot);
            let what = format!(
                "inode {ino} and others of block {block} may lie in each other's bodies, and which are true cannot be told"
            );
            if self.is_named(ino) {
                // Nothing of this block has been changed.
                return Err(CheckError::Repair(format!("{what}: remove them, or their attributes, by name")));
            }
            // A removed file's block, too, may hold whatever its owner wrote: that is not to end every repair.
            self.act(format!("{what}; only a search found them, and they are gone"));
        }
        let bad = slots.bad_bodies.into_iter().map(|slot| (slot, 0..0));
        let rest = slots.inodes.into_iter().chain(bad).collect();
        Ok(Some(Taking { block, is_sound, before: bytes.clone(), bytes, missing, used: HashSet::new(), rest }))
    }

    /// Puts those inodes of a block right that were not taken yet, and takes what they own.
    fn take_rest(&mut self, taking: &mut Taking) {
        let Taking { block, bytes: buf, missing, used, rest, .. } = taking;
        let block = *block;
        for (slot, body) in std::mem::take(rest) {
            let ino = self.geometry.ino(block, slot);
            let mut raw = *inode_at(&self.geometry, buf, slot);
            // Zeros stand for what cannot be read.
            let first_missing = |bytes: Range<usize>| {
                let begins = missing.iter().find(|missing| missing.start < bytes.end && missing.end > bytes.start);
                begins.map(|missing| missing.start.saturating_sub(bytes.start))
            };
            let start = slot as usize * SLOT_SIZE;
            if first_missing(start..start + SLOT_SIZE).is_some() {
                self.act(format!("inode {ino}: a part of it cannot be read; it is gone"));
                continue;
            }
            if self.doubted.contains(&ino) && matches!(raw.file_type(), S_IFCHR | S_IFBLK) {
                // Nobody's to open who might have made it up.
                raw.mode.set(raw.file_type());
                (raw.uid, raw.gid) = (U32::ZERO, U32::ZERO);
                self.act(format!(
                    "inode {ino}: a device in a torn block, and no name vouches for it; it is for user 0 alone"
                ));
            }
            self.withdraw_rights(ino, &mut raw);
            let (data, attributes) = body_parts(buf, &body);
            let data = data.to_vec();
            let mut in_body = InBody { attributes: attributes.to_vec(), is_part: false };
            if body.is_empty() && (raw.body_slots > 0 || raw.fork_code() == fork::INLINE) {
                drop_body(&mut raw);
                in_body.is_part = true;
                self.act(format!("inode {ino} lost its body"));
            }
            if !body.is_empty() {
                let start = body.start as usize * SLOT_SIZE + BodyHeader::SIZE;
                let end = start + data.len();
                let is_target = raw.file_type() == S_IFLNK && raw.fork_code() == fork::INLINE;
                if is_target && first_missing(start..end).is_some() {
                    self.act(format!("inode {ino}: where the link leads cannot be read; it is gone"));
                    continue;
                }
                if let Some(kept) = first_missing(end..end + in_body.attributes.len()) {
                    self.act(format!("inode {ino}: a part of its attributes cannot be read"));
                    in_body.attributes.truncate(kept);
                    in_body.is_part = true;
                }
            }
            let Some((data_len, attributes)) = self.take_inode(ino, &mut raw, &data, in_body) else {
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
    }

    /// Writes a block whose inodes have been taken.
    fn store_taken(&mut self, mut taking: Taking) -> Result<(), CheckError> {
        set_masks(&mut taking.bytes, &taking.used);
        if taking.bytes != taking.before || !taking.is_sound {
            write(&self.reader, taking.block, &mut taking.bytes)?;
            self.forget_shared(taking.block);
        }
        Ok(())
    }

    /// A block of a known chunk, if there is an inode in a slot of it. The block may be torn: its sectors are whole.
    pub(crate) fn block_with(&self, block: FsBlock, slot: u32) -> Option<Vec<u8>> {
        if !self.is_chunk(block) || self.state_of(block) == Found::Lost {
            return None;
        }
        let (bytes, missing) = self.read_block(block);
        let start = slot as usize * SLOT_SIZE;
        let is_read = missing.iter().all(|missing| missing.end <= start || start + SLOT_SIZE <= missing.start);
        let slots = inodes_of(&self.geometry, &bytes);
        let has_inode = slots.inodes.iter().any(|(at, _)| *at == slot) || slots.bad_bodies.contains(&slot);
        (is_read && has_inode).then_some(bytes)
    }

    /// Whether a block lies in what a known chunk has initialised.
    fn is_chunk(&self, block: FsBlock) -> bool {
        let chunk = self.chunks.range(..=block).next_back();
        chunk.is_some_and(|(start, chunk)| block.0 < start.0 + u64::from(chunk.initialised))
    }

    /// Whether a tree says that there are inodes where this one is; in a table there are always.
    pub(crate) fn is_named(&self, ino: Ino) -> bool {
        let Some((block, _)) = self.geometry.locate(ino) else { return false };
        let chunk = self.chunks.range(..=block).next_back();
        self.geometry.has_table() || chunk.is_some_and(|(_, chunk)| chunk.is_named)
    }

    /// Whether an inode may have rights that are not its user's: not one that only a search found, nor one of a torn block whose name was not found. A user
    /// may have written either.
    pub(crate) fn may_have_rights(&self, ino: Ino) -> bool {
        self.is_named(ino) && !self.doubted.contains(&ino)
    }

    /// Whether an inode lies in a block that was torn.
    pub(crate) fn is_in_torn(&self, ino: Ino) -> bool {
        self.geometry.locate(ino).is_some_and(|(block, _)| self.torn.contains(&block))
    }

    /// From which byte on the data in a body may be older than its inode, or another's: from the end of the inode's sector on, if the block was torn.
    pub(crate) fn body_torn_from(&self, ino: Ino, raw: &RawInode) -> usize {
        let Some((_, slot)) = self.geometry.locate(ino).filter(|_| self.is_in_torn(ino)) else { return usize::MAX };
        let end = (slot as usize * SLOT_SIZE / UNIT_SIZE + 1) * UNIT_SIZE;
        let data = usize::from(raw.body_first.get()) * SLOT_SIZE + BodyHeader::SIZE;
        // One of an earlier build may lie before its inode, in whatever sector.
        if data < slot as usize * SLOT_SIZE { 0 } else { end.saturating_sub(data) }
    }

    /// Takes the set-user-ID and set-group-ID bits from a file that may not have them. Its capabilities go with its attributes.
    fn withdraw_rights(&mut self, ino: Ino, raw: &mut RawInode) {
        const SET_IDS: u16 = 0o6000;
        if raw.is_dir() || raw.mode.get() & SET_IDS == 0 || self.may_have_rights(ino) {
            return;
        }
        raw.mode.set(raw.mode.get() & !SET_IDS);
        let why =
            if self.is_named(ino) { "in a torn block, and no name vouches for it" } else { "only a search found it" };
        self.act(format!("inode {ino}: {why}; it has no set-user-ID and set-group-ID bits any more"));
    }

    /// A free slot in a chunk, or the first one of a new chunk, if there is room for one.
    pub(crate) fn place_in_chunks(
        &mut self,
        wanted: Option<(FsBlock, u32)>,
    ) -> Result<Option<(FsBlock, u32)>, CheckError> {
        if let Some((block, slot)) = wanted.filter(|&(block, _)| self.is_chunk(block)) {
            self.load_at_hand(block)?;
            if self.is_slot_free(slot) {
                return Ok(Some((block, slot)));
            }
        }
        let blocks: Vec<FsBlock> = self.chunks.iter().flat_map(|(start, chunk)| chunk.blocks(*start)).collect();
        for block in blocks {
            self.load_at_hand(block)?;
            if let Some(slot) = (1..self.geometry.slots_per_block()).find(|&slot| self.is_slot_free(slot)) {
                return Ok(Some((block, slot)));
            }
        }
        let Some(block) = self.take_if_any(None)? else { return Ok(None) };
        self.make_empty(block)?;
        self.chunks.insert(block, Chunk { count: 1, initialised: 1, is_named: false });
        Ok(Some((block, 1)))
    }

    /// Takes a slot of the block at hand out of the map of free ones.
    pub(crate) fn use_slot(&mut self, slot: u32) {
        if let Some((_, buf, dirty)) = &mut self.at_hand {
            let head = InodeBlockHeader::read_mut(buf);
            head.free_mask[slot as usize / 8] &= !(1 << (slot % 8));
            head.free_count.set(head.free_count.get() - 1);
            *dirty = true;
        }
    }

    /// Frees the slots of an inode and of its body.
    pub(crate) fn free_in_chunk(&mut self, ino: Ino, raw: &RawInode) -> Result<(), CheckError> {
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
        Ok(())
    }

    fn is_slot_free(&self, slot: u32) -> bool {
        self.at_hand
            .as_ref()
            .is_some_and(|(_, buf, _)| InodeBlockHeader::read(buf).free_mask[slot as usize / 8] >> (slot % 8) & 1 == 1)
    }

    /// Records of a group's chunks, with masks from their blocks. A chunk without inodes is given up.
    pub(crate) fn chunk_records(&mut self, ag: AgNo) -> Result<ChunkRecords, CheckError> {
        let first = self.geometry.fs_block(ag, AgBlock(0));
        let end = first.offset_by(u64::from(self.geometry.blocks_in(ag)));
        let chunks: Vec<(FsBlock, Chunk)> =
            self.chunks.range(first..end).map(|(&start, &chunk)| (start, chunk)).collect();
        let mut inodes = ChunkRecords::default();
        let mut buf = self.reader.new_buffer();
        for (start, chunk) in chunks {
            let mut record = ChunkRecord::zeroed();
            record.start.set(u64::from(self.geometry.ag_block_of(start).0));
            record.count = chunk.count as u8;
            record.initialised = chunk.initialised as u8;
            let (mut free_mask, mut used_mask) = (0_u64, 0_u64);
            for at in 0..chunk.initialised {
                let block = start.offset_by(u64::from(at));
                self.reader.read(block, BlockKind::Inode, u64::from(ag.0), &mut buf).map_err(|damage| {
                    CheckError::Repair(format!("inode block {block} cannot be read again: {damage:?}"))
                })?;
                let free = u32::from(InodeBlockHeader::read(&buf).free_count.get());
                free_mask |= u64::from(free > 0) << at;
                used_mask |= u64::from(free < self.geometry.slots_per_block() - 1) << at;
            }
            if used_mask == 0 {
                self.release([(start, u64::from(chunk.count))]);
                continue;
            }
            record.free_mask.set(free_mask);
            record.used_mask.set(used_mask);
            inodes.blocks += chunk.count;
            inodes.records.extend_from_slice(record.as_bytes());
        }
        Ok(inodes)
    }
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
