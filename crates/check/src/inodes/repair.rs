//! Repair, first half: which inodes there are, and which blocks each of them owns.

use crate::attributes::ACL_NAMES;
use crate::directory::may_have_body;
use crate::io::Damage;
use crate::map::pointers::{self, InodePointers};
use crate::map::{Map, map_of};
use crate::options::CheckError;
use crate::repair::build::{Fill, node_count, write, write_tree};
use crate::repair::pending::{BuiltMap, Salvaged};
use crate::repair::volume::{Item, Repair, state};
use crate::slots::{inode_at, is_type};
use crate::tree::walk;
use crate::visitor::Visitor;
use myriad_format::btree;
use myriad_format::choices::{self, Inodes};
use myriad_format::extent::{Extent, RawExtent};
use myriad_format::fork::{AttributeRoot, Fork, InlineExtents, TreeRoot};
use myriad_format::inode::{RawInode, S_IFDIR, S_IFLNK, S_IFREG, TARGET_MAX, flag, fork, generation_at};
use myriad_format::superblock::feature;
use myriad_format::table::{INODE_SIZE, POINTERS_OFFSET};
use myriad_format::unit::{self, UNIT_SIZE, UnitHeader};
use myriad_format::xattr::{self, AttrBlockHeader, AttrIter, LIST_MAX};
use myriad_format::{BlockHeader, BlockKind, FileBlock, FsBlock, Ino, header};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use zerocopy::IntoBytes;

/// Reads whatever of a tree can be read.
pub(crate) struct Salvage<'a> {
    pub repair: &'a Repair<'a>,
    pub record: &'a mut dyn FnMut(&[u8]),
    /// Where nodes are to be claimed: for which inode, and those that were.
    pub nodes: Option<(Ino, Vec<FsBlock>)>,
    /// Blocks in the places of nodes to be claimed that do not say that they are such.
    pub strangers: Vec<FsBlock>,
    pub damaged: bool,
    /// A node cannot be read as a whole, and nothing of it is missing: it has to be written elsewhere.
    pub is_worn: bool,
    /// Nodes followed where none are claimed: each only once.
    pub followed: HashSet<FsBlock>,
}

/// Kinds of blocks of directories that say whose they are as a whole, and are in the directory's map.
const ENTRIES: [BlockKind; 4] = [BlockKind::DirEntries, BlockKind::DirSlots, BlockKind::DirExtents, BlockKind::DirTree];

/// The attribute that lets a program run with rights which its user does not have.
const CAPABILITIES: &[u8] = b"security.capability";

/// The attributes in an inode's body.
#[derive(Default)]
pub(crate) struct InBody {
    pub attributes: Vec<u8>,
    /// There were more, or may have been.
    pub is_part: bool,
}

/// A chain of attribute blocks, as far as it is right.
#[derive(Default)]
struct Chain {
    /// Its blocks, which nobody else has.
    blocks: Vec<FsBlock>,
    /// Bytes of the list up to the end of each of the first of them.
    ends: Vec<usize>,
    /// Bytes of the list, up to the end of the last attribute that is right.
    kept: usize,
    names: HashSet<Vec<u8>>,
    is_whole: bool,
}

impl<'a> Salvage<'a> {
    pub fn new(repair: &'a Repair<'a>, nodes: Option<Ino>, record: &'a mut dyn FnMut(&[u8])) -> Self {
        Self {
            repair,
            record,
            nodes: nodes.map(|ino| (ino, Vec::new())),
            strangers: Vec::new(),
            damaged: false,
            is_worn: false,
            followed: HashSet::new(),
        }
    }

    /// Reads the map of an inode. `pointers` reads those behind the inode.
    fn read_map(&mut self, ino: Ino, raw: &RawInode, pointers: impl FnOnce() -> InodePointers) {
        let Repair { reader, geometry, .. } = self.repair;
        match map_of(geometry, ino, raw, pointers) {
            Ok(Map::None) => {}
            Ok(Map::Inline(extents)) => extents.iter().for_each(|extent| (self.record)(extent.as_bytes())),
            Ok(Map::Tree(tree)) => walk(reader, &tree, self),
            Ok(Map::Pointers(list)) => pointers::walk(reader, ino, pointers::bits_of(geometry, raw), &list, self),
            Err(_) => self.damaged = true,
        }
    }
}

impl Visitor for Salvage<'_> {
    fn node(&mut self, block: FsBlock) -> bool {
        let geometry = &self.repair.geometry;
        let ok = match &mut self.nodes {
            None => block.0 < geometry.block_count && self.followed.insert(block),
            Some((ino, nodes)) => {
                let ok = geometry.is_data_range(block, 1)
                    && geometry.ag_of(block).0 < self.repair.ag_used
                    && !self.repair.is_to_leave(*ino, false, block)
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

    fn stranger(&mut self, block: FsBlock) {
        if let Some((_, nodes)) = &mut self.nodes {
            // It was claimed just now, for its reading. Whose it is, the maps that are still to come may say.
            nodes.pop();
            self.repair.blocks.release(block, 1);
            self.strangers.push(block);
        }
    }

    fn part(&mut self, is_whole: bool) -> bool {
        self.is_worn |= is_whole;
        self.damaged |= !is_whole;
        true
    }
}

impl Repair<'_> {
    /// What of the old volume is not to be believed, for a part of the log is lost.
    pub(crate) fn distrust(&mut self) {
        match self.choices.inodes {
            // How far a table is initialised is found without a header.
            Inodes::Static => {}
            Inodes::Dynamic | Inodes::Bucket => self.distrust_trees(),
        }
    }

    /// Finds the inodes there are, puts their own fields right, and takes what they own.
    pub(crate) fn find_inodes(&mut self) -> Result<(), CheckError> {
        match self.choices.inodes {
            Inodes::Static => self.find_in_tables()?,
            Inodes::Dynamic | Inodes::Bucket => self.find_in_chunks()?,
        }
        self.items.sort_unstable_by_key(|item| item.ino);
        self.claim_roots();
        self.claim_suspects();
        Ok(())
    }

    /// Keeps blocks without an owner to which inodes on the device still lead, until none leads there. Call it when all
    /// owners are known: an inode that is older than what it names would take the blocks of another one.
    fn claim_suspects(&mut self) {
        for (ino, block) in std::mem::take(&mut self.suspects) {
            if self.blocks.claim(block, 1).is_some() {
                continue;
            }
            match self.maps.get_mut(&ino) {
                Some(salvaged) => salvaged.nodes.push(block),
                None => self.left.push((block, 1)),
            }
        }
    }

    /// Puts an inode's own fields right and takes its blocks. Its data length and attributes as they shall be; `None` if
    /// it cannot be one.
    pub(crate) fn take_inode(
        &mut self,
        ino: Ino,
        raw: &mut RawInode,
        data: &[u8],
        in_body: InBody,
    ) -> Option<(usize, Vec<u8>)> {
        if !is_type(raw.mode.get()) {
            return None;
        }
        raw.flags.set(raw.flags.get() & flag::KNOWN);
        let is_sized = raw.size.get() <= i64::MAX as u64;
        if !is_sized {
            raw.size.set(0);
        }
        raw.check(ino).ok()?;
        if raw.is_dir() && raw.fork_code() == fork::INLINE && !may_have_body(self.choices.directory) {
            Fork::None.encode(raw);
        }
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
        let block_size = self.reader.block_size() as u64;
        let (mut extents, nodes, is_damaged) = self.take_map(ino, raw);
        let is_listed = self.orphans.contains(&ino);
        let written_end = extents.iter().rfind(|extent| !extent.unwritten).map_or(0, |extent| extent.end().0);
        if raw.file_type() == S_IFREG && raw.has_map() && !is_sized && !is_listed {
            // It ends where its contents do.
            raw.size.set(written_end.saturating_mul(block_size).min(i64::MAX as u64));
        }
        let needed = raw.size.get().div_ceil(block_size);
        // Written blocks past the end come from an unfinished truncation or append: free them, for they would show when
        // the file grows. Blocks that were only allocated there stay. The list of orphans should name such files, but it may be lost, or older
        // than the inodes.
        let is_shrinking = raw.file_type() == S_IFREG && written_end > needed;
        let bits = pointers::bits_of(&self.geometry, raw);
        let before = if is_shrinking { extents.clone() } else { Vec::new() };
        let past = match is_shrinking {
            true if bits > 0 => pointers::fit(bits, &mut extents, needed),
            true => cut(&mut extents, needed),
            false => Vec::new(),
        };
        let is_cut = is_shrinking && extents != before;
        let written = extents.iter().filter(|extent| !extent.unwritten);
        let covered = written.fold(0, |end, extent| if extent.file_block.0 == end { extent.end().0 } else { end });
        if raw.file_type() == S_IFLNK && raw.has_map() && covered < needed {
            // A part of a target leads somewhere else.
            for extent in &extents {
                self.blocks.release(extent.start, u64::from(extent.length));
            }
            for &node in &nodes {
                self.blocks.release(node, 1);
            }
            return None;
        }
        let (attributes, attribute_blocks) = self.take_attributes(ino, raw, in_body);
        let blocks = extents.iter().map(|extent| u64::from(extent.length)).sum::<u64>();
        if is_damaged || is_cut {
            self.act(match is_damaged {
                true => format!("inode {ino}: its file map was damaged; {blocks} blocks are left"),
                false => format!("inode {ino}: blocks past its end were freed"),
            });
            // Until the map is written anew, the inode keeps what there is, and what its map names is nobody else's.
            self.maps.insert(ino, Salvaged { extents, past, nodes, blocks: blocks + attribute_blocks });
        } else {
            raw.set_block_total(blocks + nodes.len() as u64 + attribute_blocks);
        }
        if raw.has_flag(flag::IMMUTABLE | flag::APPEND) {
            self.features |= feature::COMPATIBLE_FLAGGED;
        }
        if let Some(root) = raw.index_root().filter(|_| raw.is_dir_in_blocks()) {
            self.roots.insert(ino, root);
        }
        Some((data_len, attributes))
    }

    /// The extents of an inode that nobody else has, its tree's nodes, and whether anything had to go.
    fn take_map(&mut self, ino: Ino, raw: &RawInode) -> (Vec<Extent>, Vec<FsBlock>, bool) {
        let geometry = self.geometry;
        let bits = pointers::bits_of(&geometry, raw);
        let mut found: Vec<Extent> = Vec::new();
        let mut damaged = false;
        let mut end = 0;
        let mut record = |bytes: &[u8]| match Extent::decode(RawExtent::read(bytes), &geometry, ino) {
            Ok(extent) if extent.file_block.0 >= end => {
                end = extent.end().0;
                found.push(extent);
            }
            _ => damaged = true,
        };
        let mut salvage = Salvage::new(self, Some(ino), &mut record);
        salvage.read_map(ino, raw, || pointers::of_inode(&self.reader, ino));
        let Salvage { nodes, strangers, damaged: is_map_damaged, is_worn, .. } = salvage;
        let nodes = nodes.map_or_else(Vec::new, |(_, nodes)| nodes);
        self.suspects.extend(strangers.into_iter().map(|block| (ino, block)));
        damaged |= is_map_damaged || is_worn;
        if raw.fork_code() == fork::BLOCKS && raw.index_root().is_none() {
            // Without a block it is no map.
            damaged |= found.is_empty();
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
            let free = self.leave_to_others(ino, raw.is_dir(), free);
            damaged |= free != [(extent.start, u64::from(extent.length))];
            for (start, length) in free {
                self.blocks.claim(start, length);
                let file_block = FileBlock(extent.file_block.0 + (start.0 - extent.start.0));
                extents.push(Extent { file_block, start, length: length as u32, unwritten: extent.unwritten });
            }
        }
        if bits > 0 {
            let lost = pointers::fit(bits, &mut extents, u64::MAX);
            damaged |= !lost.is_empty();
            lost.into_iter().for_each(|(start, length)| _ = self.blocks.release(start, length));
        }
        (extents, nodes, damaged)
    }

    /// Takes from runs of blocks those that say that they are another inode's: in order of their numbers an inode with a stale map could come
    /// first, and the directory or map whose block it is would lose it. A directory has only blocks that say that they are its own: in place of
    /// any other it would have an empty one, written over what the file has there whose it is.
    fn leave_to_others(&self, ino: Ino, is_dir: bool, runs: Vec<(FsBlock, u64)>) -> Vec<(FsBlock, u64)> {
        let mut left: Vec<(FsBlock, u64)> = Vec::new();
        for (start, length) in runs {
            if self.contested.first_in(start, length).is_none() {
                left.push((start, length));
                continue;
            }
            let is_its = |&block: &FsBlock| !self.is_to_leave(ino, is_dir, block);
            for block in (0..length).map(|at| start.offset_by(at)).filter(is_its) {
                match left.last_mut() {
                    Some((start, length)) if start.offset_by(*length) == block => *length += 1,
                    _ => left.push((block, 1)),
                }
            }
        }
        left
    }

    /// Whether any part of a block says that it is a directory's, and which. Its checksum may be wrong.
    fn says_it_is(&self, directory: Ino, block: FsBlock, bytes: &[u8]) -> bool {
        ENTRIES.into_iter().any(|kind| self.reader.is_headed(block, kind, directory.0, bytes))
            || self.owners_of_units(block, bytes).any(|owner| owner == directory)
    }

    /// Whose the sound units of a block are that hold entries of a directory or pointers.
    fn owners_of_units(&self, block: FsBlock, bytes: &[u8]) -> impl Iterator<Item = Ino> {
        bytes.chunks_exact(UNIT_SIZE).enumerate().filter_map(move |(number, bytes)| {
            let kind =
                BlockKind::of(bytes).filter(|kind| matches!(kind, BlockKind::LinearEntries | BlockKind::Pointers))?;
            unit::verify_one(bytes, kind, &self.reader.volume, block, number as u32).ok()?;
            Some(Ino(UnitHeader::read(bytes).owner.get()))
        })
    }

    /// Whose a sound block is that holds entries of a directory or nodes of a map.
    fn owner_of_block(&self, block: FsBlock, bytes: &[u8]) -> Option<Ino> {
        let kind = BlockKind::of(bytes).filter(|kind| *kind == BlockKind::ExtentTree || ENTRIES.contains(kind))?;
        header::verify(bytes, kind, &self.reader.volume, block).ok()?;
        Some(Ino(BlockHeader::read(bytes).owner.get()))
    }

    /// Whether a block that is not only an inode's is not for it: the block says that it is another one's, which has it, for it holds entries of a directory,
    /// or nodes or pointers of a map, as a whole or in units, and says whose; or the inode is a directory, and nothing there says that it is its own.
    fn is_to_leave(&self, ino: Ino, is_dir: bool, block: FsBlock) -> bool {
        if self.contested.first_in(block, 1).is_none() {
            return false;
        }
        let mut buf = self.reader.new_buffer();
        if self.reader.read_raw(block, &mut buf).is_err() && !self.reader.read_sectors(block, &mut buf) {
            return is_dir;
        }
        if is_dir && !self.says_it_is(ino, block, &buf) {
            return true;
        }
        let owners: BTreeSet<Ino> = self.owners_of_units(block, &buf).chain(self.owner_of_block(block, &buf)).collect();
        !owners.contains(&ino) && owners.into_iter().any(|owner| self.has_block(owner, block))
    }

    /// Whether the map of an inode, as it is on the device, leads to a contested block, or by way of it. A map is walked once, however many
    /// of its blocks are asked for.
    fn has_block(&self, ino: Ino, block: FsBlock) -> bool {
        let mut shared = self.shared.borrow_mut();
        let runs = shared.entry(ino).or_insert_with(|| self.contested_runs(ino));
        let before = runs.partition_point(|(start, _)| *start <= block);
        before > 0 && block < runs[before - 1].1
    }

    /// Start and end of each run that the map of an inode, as it is on the device, has of contested blocks, its nodes among them.
    fn contested_runs(&self, ino: Ino) -> Vec<(FsBlock, FsBlock)> {
        let Some((raw, bytes)) = self.on_device(ino) else { return Vec::new() };
        let mut runs = Vec::new();
        self.for_each_mapped(ino, &raw, &bytes, &mut |start, length| {
            self.contested.for_each_run(start, length, |start, length| {
                runs.push((start, start.offset_by(length)));
                true
            });
        });
        runs.sort_unstable();
        // Those of a damaged map may lie one in the other.
        runs.dedup_by(|next, run| {
            let is_joined = next.0 <= run.1;
            if is_joined {
                run.1 = run.1.max(next.1);
            }
            is_joined
        });
        runs
    }

    /// Start and length of all that the map of an inode leads to, and of its nodes. `bytes`: the inode's block.
    fn for_each_mapped(&self, ino: Ino, raw: &RawInode, bytes: &[u8], add: &mut dyn FnMut(FsBlock, u64)) {
        let geometry = self.geometry;
        let mut record = |bytes: &[u8]| {
            let extent = Extent::decode(RawExtent::read(bytes), &geometry, ino).ok();
            if let Some(extent) = extent.filter(|extent| !extent.unwritten) {
                add(extent.start, extent.length.into());
            }
        };
        let mut salvage = Salvage::new(self, None, &mut record);
        salvage.read_map(ino, raw, || pointers::in_block(&self.reader, ino, bytes));
        let nodes = salvage.followed;
        nodes.into_iter().for_each(|node| add(node, 1));
    }

    /// What an inode leads to that no check has looked at, because its block is torn: it may be another one's as well.
    pub(crate) fn contest_all_of(&mut self, ino: Ino, raw: &RawInode, bytes: &[u8]) {
        let mut runs = Vec::new();
        self.for_each_mapped(ino, raw, bytes, &mut |start, length| runs.push((start, length)));
        runs.into_iter().for_each(|(start, length)| _ = self.contested.claim(start, length));
    }

    /// An inode as it is on the device, and the bytes of its block.
    fn on_device(&self, ino: Ino) -> Option<(RawInode, Vec<u8>)> {
        let (place, slot) = self.geometry.locate(ino)?;
        let bytes = match self.geometry.has_table() {
            true => {
                let mut buf = self.reader.new_buffer();
                self.reader.read_inodes(place, &mut buf).ok().map(|()| buf)
            }
            false => self.block_with(place, slot),
        }?;
        let raw = *inode_at(&self.geometry, &bytes, slot);
        (is_type(raw.mode.get()) && raw.check(ino).is_ok()).then_some((raw, bytes))
    }

    /// Whether the map of an inode, as it is on the device, can be followed to its end: no node leads to another one twice.
    pub(crate) fn can_follow(&self, ino: Ino, raw: &RawInode) -> bool {
        let mut record = |_: &[u8]| {};
        let mut salvage = Salvage::new(self, None, &mut record);
        salvage.read_map(ino, raw, || pointers::of_inode(&self.reader, ino));
        !salvage.damaged
    }

    /// Inodes of a block have been changed: what was remembered of their maps does not count any more.
    pub(crate) fn forget_shared(&mut self, block: FsBlock) {
        for slot in self.geometry.inode_slots() {
            self.shared.get_mut().remove(&self.geometry.ino(block, slot));
        }
    }

    /// The attributes in the body that can be read, or, if there are none, those of a chain of blocks; of a damaged one those before the damage.
    /// Flags follow.
    fn take_attributes(&mut self, ino: Ino, raw: &mut RawInode, mut in_body: InBody) -> (Vec<u8>, u64) {
        // What a repair has copied to a block, and is there to stay if that cannot be read.
        if !raw.has_flag(flag::ATTR_BODY)
            && raw.attribute_root().is_some_and(|root| self.is_copy(ino, root.block, &in_body.attributes))
        {
            in_body.attributes.clear();
        }
        let mut names: HashSet<Vec<u8>> = HashSet::new();
        let mut kept = Vec::new();
        for (name, value) in AttrIter::new(&in_body.attributes).map_while(Result::ok) {
            if self.may_have(ino, name) && names.insert(name.to_vec()) {
                xattr::push(&mut kept, name, value);
            }
        }
        let mut are_lost = in_body.is_part || kept.len() < in_body.attributes.len();
        let mut blocks = 0;
        if let Some(root) = raw.attribute_root() {
            let chain = self.read_chain(ino, root, &names);
            // Who has attributes in the body shows only those.
            let is_hidden = !kept.is_empty();
            blocks = chain.blocks.len();
            if is_hidden || !chain.is_whole {
                blocks = if is_hidden { 0 } else { self.cut_chain(ino, &chain).unwrap_or(0) };
                self.left.extend(chain.blocks[blocks..].iter().map(|&block| (block, 1)));
                raw.set_attribute_root((blocks > 0).then_some(AttributeRoot { count: blocks as u16, ..root }));
                self.act(match blocks {
                    0 if is_hidden => {
                        format!("inode {ino}: its attribute blocks, hidden by those in its body, are gone")
                    }
                    0 => format!("inode {ino}: its attribute blocks were damaged and are gone"),
                    _ => format!("inode {ino}: its attribute blocks were damaged; kept the attributes before that"),
                });
            }
            if blocks > 0 {
                names.extend(chain.names);
            }
            are_lost |= is_hidden || !chain.is_whole;
        }
        if are_lost && raw.has_flag(flag::HAS_ACL) && !names.contains(ACL_NAMES[0]) {
            withdraw_acl_mask(raw);
        }
        let has_acl = names.iter().any(|name| ACL_NAMES.contains(&name.as_slice()));
        let mut flags = raw.flags.get() & !(flag::ATTR_BODY | flag::HAS_ACL);
        flags |= if kept.is_empty() { 0 } else { flag::ATTR_BODY } | if has_acl { flag::HAS_ACL } else { 0 };
        raw.flags.set(flags);
        self.features |= if names.is_empty() { 0 } else { feature::COMPATIBLE_XATTR };
        self.features |= if has_acl { feature::COMPATIBLE_ACL } else { 0 };
        (kept, blocks as u64)
    }

    /// Whether an inode may have an attribute. Capabilities of one that nothing vouches for may be a user's own.
    fn may_have(&self, ino: Ino, name: &[u8]) -> bool {
        xattr::has_namespace(name) && (name != CAPABILITIES || self.may_have_rights(ino))
    }

    /// Whether a block holds this list of attributes and nothing else.
    fn is_copy(&self, ino: Ino, block: FsBlock, list: &[u8]) -> bool {
        let mut buf = self.reader.new_buffer();
        self.reader.read(block, BlockKind::Attributes, ino.0, &mut buf).is_ok() && {
            let length = AttrBlockHeader::read(&buf).length.get() as usize;
            buf[AttrBlockHeader::SIZE..].get(..length) == Some(list)
        }
    }

    /// Reads and claims a chain, in which no name may be among `others`.
    fn read_chain(&mut self, ino: Ino, root: AttributeRoot, others: &HashSet<Vec<u8>>) -> Chain {
        let mut chain = Chain::default();
        let mut list = Vec::new();
        let mut buf = self.reader.new_buffer();
        let mut next = root.block;
        while next != FsBlock::NONE {
            let fits = self.geometry.is_data_range(next, 1) && self.geometry.ag_of(next).0 < self.ag_used;
            // An inode counts no more of them: of empty ones there may be any number.
            let is_long = chain.blocks.len() == usize::from(u16::MAX) || list.len() > LIST_MAX;
            if !fits || is_long || self.blocks.first_in(next, 1).is_some() {
                break;
            }
            let is_read = self.reader.read(next, BlockKind::Attributes, ino.0, &mut buf).is_ok();
            let head = AttrBlockHeader::read(&buf);
            let length = head.length.get() as usize;
            let is_next = head.index.get() as usize == chain.ends.len();
            if !is_read || !is_next || length > buf.len() - AttrBlockHeader::SIZE {
                self.suspects.push((ino, next));
                break;
            }
            self.blocks.claim(next, 1);
            chain.blocks.push(next);
            list.extend_from_slice(&buf[AttrBlockHeader::SIZE..][..length]);
            chain.ends.push(list.len());
            next = FsBlock(head.next.get());
        }
        let mut kept = Vec::new();
        for (name, value) in AttrIter::new(&list).map_while(Result::ok) {
            xattr::push(&mut kept, name, value);
            let is_new = self.may_have(ino, name) && !others.contains(name) && kept.len() <= LIST_MAX;
            if !is_new || !chain.names.insert(name.to_vec()) {
                break;
            }
            chain.kept = kept.len();
        }
        chain.is_whole =
            next == FsBlock::NONE && chain.ends.len() == usize::from(root.count) && chain.kept == list.len();
        chain
    }

    /// Ends a damaged chain behind the last attribute that is kept, and returns how many blocks it has then. Only the
    /// header of its last block changes, which lies in one sector, so the next repair finds all that this one has kept.
    fn cut_chain(&self, ino: Ino, chain: &Chain) -> Result<usize, CheckError> {
        if chain.kept == 0 {
            return Ok(0);
        }
        let last = chain.ends.partition_point(|&end| end < chain.kept);
        let start = if last == 0 { 0 } else { chain.ends[last - 1] };
        let mut buf = self.reader.new_buffer();
        let reread = self.reader.read(chain.blocks[last], BlockKind::Attributes, ino.0, &mut buf);
        reread.map_err(|damage| CheckError::Repair(format!("attributes cannot be read again: {damage:?}")))?;
        let head = AttrBlockHeader::read_mut(&mut buf);
        head.length.set((chain.kept - start) as u32);
        head.next.set(0);
        write(&self.reader, chain.blocks[last], &mut buf)?;
        Ok(last + 1)
    }

    /// Writes the file maps that were damaged. All inodes' blocks are known by now. New trees are durable before an inode
    /// names one, and that is before anything is written over what only an old map names: power lost in between costs no extent.
    /// Where there is no room for a tree, other maps go first and give back what they named.
    pub(crate) fn write_maps(&mut self) -> Result<(), CheckError> {
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
                self.change_inode(ino, |raw| raw.set_block_total(blocks))?;
                self.set_map(ino, &extents, tree)?;
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
    fn squeeze_in(&mut self, ino: Ino, salvaged: &mut Salvaged) -> Result<BuiltMap, CheckError> {
        let mut tree = self.map_tree(ino, &salvaged.extents, Fill::Full)?;
        if tree.is_none() {
            self.release(std::mem::take(&mut salvaged.past));
            tree = self.map_tree(ino, &salvaged.extents, Fill::Full)?;
        }
        if tree.is_none() {
            self.release(std::mem::take(&mut salvaged.nodes).into_iter().map(|node| (node, 1)));
            tree = self.map_tree(ino, &salvaged.extents, Fill::Full)?;
        }
        tree.ok_or(CheckError::NoRoom)
    }

    /// Writes the nodes of a map: its tree, if the extents do not fit the inode, or its blocks of pointers; `None` if
    /// there is no room for them.
    fn map_tree(&mut self, ino: Ino, extents: &[Extent], fill: Fill) -> Result<Option<BuiltMap>, CheckError> {
        let raw = self.raw(ino)?;
        if self.geometry.map == choices::Map::Blocks {
            let bits = pointers::bits_of(&self.geometry, &raw);
            let need = pointers::node_count(&self.geometry, bits, extents);
            let Some(places) = self.take_all(need)? else { return Ok(None) };
            let list = pointers::build(&self.reader, ino, bits, extents, places)?;
            return Ok(Some(BuiltMap::Pointers { list, nodes: need as u64 }));
        }
        let inline_max = if raw.is_dir() { 1 } else { raw.fork_room() / 16 };
        if extents.len() <= inline_max {
            return Ok(Some(BuiltMap::InFork));
        }
        let block_size = self.reader.block_size();
        let mut fill = fill;
        let mut need = node_count(btree::EXTENTS, extents.len(), block_size, fill);
        if fill == Fill::Ample {
            // The search for more would take what is kept, and the roots of indexes.
            fill = self.fill_for(need as u64);
            need = node_count(btree::EXTENTS, extents.len(), block_size, fill);
        }
        let Some(mut places) = self.take_all(need)? else { return Ok(None) };
        let records: Vec<u8> = extents.iter().flat_map(|extent| extent.encode().as_bytes().to_vec()).collect();
        let (root, level) = write_tree(&self.reader, btree::EXTENTS, ino.0, &records, fill, &mut || {
            places.pop().ok_or_else(|| CheckError::Repair("a tree took more nodes than were counted".to_owned()))
        })?;
        Ok(Some(BuiltMap::Tree { root: TreeRoot { block: root, level }, nodes: need as u64 }))
    }

    /// Puts a map into an inode in place of what it has: extents, or the nodes that lead to them. Fork and pointers of an inode lie in
    /// one sector.
    pub(crate) fn set_map(&mut self, ino: Ino, extents: &[Extent], built: BuiltMap) -> Result<(), CheckError> {
        self.change_inode(ino, |raw| {
            fork_of(raw, extents, &built).encode(raw);
            raw.set_block_total(raw.block_total() + built.nodes());
        })?;
        let list = match &built {
            BuiltMap::Pointers { list, .. } => list.as_bytes(),
            _ => &[],
        };
        self.set_pointers(ino, list);
        Ok(())
    }

    /// Writes what is behind an inode of a table, which has just been changed: pointers, and zeros where it has none.
    pub(crate) fn set_pointers(&mut self, ino: Ino, list: &[u8]) {
        if let (Some((_, at)), Some((_, buf, dirty))) = (self.geometry.pointers_place(ino), &mut self.at_hand) {
            let pointers = &mut buf[at..][..INODE_SIZE - POINTERS_OFFSET];
            pointers.fill(0);
            pointers[..list.len()].copy_from_slice(list);
            *dirty = true;
        }
    }

    /// Writes the nodes of a map that does not fit the inode.
    pub(crate) fn build_map(&mut self, ino: Ino, extents: &[Extent]) -> Result<BuiltMap, CheckError> {
        self.map_tree(ino, extents, Fill::Ample)?.ok_or(CheckError::NoRoom)
    }

    /// Frees an inode: its slot, its body, its blocks. What is in its place stays.
    pub(crate) fn free_inode(&mut self, ino: Ino) -> Result<(), CheckError> {
        let raw = self.raw(ino)?;
        let (extents, nodes) = self.blocks_of_map(ino, &raw);
        self.left.extend(extents.iter().map(|extent| (extent.start, u64::from(extent.length))));
        self.left.extend(nodes.into_iter().map(|node| (node, 1)));
        if let Some(AttributeRoot { block: mut next, count }) = raw.attribute_root() {
            let mut buf = self.reader.new_buffer();
            for _ in 0..count {
                self.left.push((next, 1));
                if self.reader.read(next, BlockKind::Attributes, ino.0, &mut buf).is_err() {
                    break;
                }
                next = FsBlock(AttrBlockHeader::read(&buf).next.get());
            }
        }
        self.leave_root(ino);
        match self.choices.inodes {
            Inodes::Static => self.free_in_table(ino)?,
            Inodes::Dynamic | Inodes::Bucket => self.free_in_chunk(ino, &raw)?,
        }
        if let Some(item) = self.item(ino) {
            item.state |= state::GONE;
        }
        Ok(())
    }

    /// Extents and tree nodes of a map that has been put right.
    pub(crate) fn blocks_of_map(&self, ino: Ino, raw: &RawInode) -> (Vec<Extent>, Vec<FsBlock>) {
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
        let geometry = self.geometry;
        let mut extents = Vec::new();
        let mut nodes = Vec::new();
        let mut record = |bytes: &[u8]| extents.extend(Extent::decode(RawExtent::read(bytes), &geometry, ino).ok());
        // What is at hand may be newer than what is on the device.
        let at_hand =
            self.at_hand.as_ref().filter(|(at, ..)| geometry.locate(ino).is_some_and(|(block, _)| block == *at));
        let list = || match at_hand {
            Some((_, bytes, _)) => pointers::in_block(&self.reader, ino, bytes),
            None => pointers::of_inode(&self.reader, ino),
        };
        match map_of(&geometry, ino, raw, list) {
            Ok(Map::None) | Err(_) => {}
            Ok(Map::Inline(raws)) => raws.iter().for_each(|raw| record(raw.as_bytes())),
            Ok(Map::Tree(tree)) => walk(&self.reader, &tree, &mut Collect(&mut nodes, &mut record)),
            Ok(Map::Pointers(list)) => {
                let bits = pointers::bits_of(&geometry, raw);
                pointers::walk(&self.reader, ino, bits, &list, &mut Collect(&mut nodes, &mut record));
            }
        }
        (extents, nodes)
    }

    /// A new inode at any place, or at the one that is wanted, if that is free; `None` if there is no place for one. It
    /// is durable before anything else counts it as used: what was in its place could come back.
    pub(crate) fn make_inode(&mut self, mode: u16, wanted: Option<Ino>) -> Result<Option<Ino>, CheckError> {
        self.store_at_hand()?;
        let wanted = wanted.and_then(|ino| self.geometry.locate(ino));
        let place = match self.choices.inodes {
            Inodes::Static => self.place_in_tables(wanted)?,
            Inodes::Dynamic | Inodes::Bucket => self.place_in_chunks(wanted)?,
        };
        let Some((block, slot)) = place else { return Ok(None) };
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
        if self.choices.inodes == Inodes::Dynamic {
            self.use_slot(slot);
        }
        let index = self.items.partition_point(|item| item.ino < ino);
        let item = Item { ino, names: 0, file_type: (mode >> 12) as u8, state: 0 };
        match self.items.get_mut(index) {
            Some(old) if old.ino == ino => *old = item,
            _ => self.items.insert(index, item),
        }
        Ok(Some(ino))
    }
}

/// The fork of an inode with these extents, or with a map that leads to them. The root of a directory's index stays, for its counts.
fn fork_of(raw: &RawInode, extents: &[Extent], built: &BuiltMap) -> Fork {
    let index = raw.index_root().unwrap_or(FsBlock::NONE);
    let list: Vec<RawExtent> = extents.iter().map(Extent::encode).collect();
    match built {
        BuiltMap::Pointers { .. } if extents.is_empty() && index.is_none() => Fork::None,
        BuiltMap::Pointers { .. } => Fork::Blocks { index },
        BuiltMap::Tree { root, .. } if raw.is_dir() => Fork::DirectoryTree { index, tree: *root },
        BuiltMap::Tree { root, .. } => Fork::Tree(*root),
        BuiltMap::InFork if raw.is_dir() => Fork::Directory { index, extent: list.first().copied() },
        BuiltMap::InFork if list.is_empty() => Fork::None,
        BuiltMap::InFork => Fork::Extents(InlineExtents::new(&list).expect("it has no tree, so they fit the fork")),
    }
}

/// If an access ACL is lost, its mask stands where the rights of the owning group do without one, and may be wider than they were.
fn withdraw_acl_mask(raw: &mut RawInode) {
    raw.mode.set(raw.mode.get() & !0o070);
}

/// Takes from a map what lies past the first `needed` blocks of its file, but for what was only allocated there; start and length of that.
fn cut(extents: &mut Vec<Extent>, needed: u64) -> Vec<(FsBlock, u64)> {
    let mut left = Vec::new();
    extents.retain_mut(|extent| {
        if extent.unwritten {
            return true;
        }
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
