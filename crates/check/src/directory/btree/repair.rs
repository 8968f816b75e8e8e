//! Repair of directories of kind `btree`: a tree that is as it should be stays, any other is made anew from the entries of all leaves
//! that can be read.
//!
//! The new tree lies in new blocks, and the directory leads to it only once it is durable. Names keep their numbers, unless two
//! with one tag have the same: then all with that tag are numbered again.

use super::check::{Met, Tree, entry_at, leaf_entries};
use crate::directory::AHEAD_MAX;
use crate::directory::entries::Entry;
use crate::directory::fix::{Added, NewMap, Pass, blocks_of, push_entry, set_twins};
use crate::directory::names::find_block;
use crate::options::CheckError;
use crate::repair::build::{Fill, write};
use crate::repair::pending::BuiltMap;
use crate::repair::volume::Repair;
use myriad_format::dir_tree::{
    DirNodeHeader, DirTreeChild, DirTreeEntry, LEVEL_MAX, NODE_OFFSET, NUMBER_BITS, OFFSET_SIZE, child_at, fan_out,
    key, leaf_room, tree_entry_size,
};
use myriad_format::extent::Extent;
use myriad_format::inode::{BodyHeader, RawInode, fork};
use myriad_format::{BlockKind, FileBlock, FsBlock, Ino, SLOT_SIZE, header};
use std::collections::{HashSet, VecDeque};
use std::ops::Range;

/// An entry, taken out of its node.
struct Kept {
    name: Vec<u8>,
    ino: Ino,
    file_type: u8,
    tag: u32,
    number: u16,
    /// Its node is torn.
    is_torn: bool,
}

impl Kept {
    fn new(entry: &Entry<'_>, number: u16, is_torn: bool) -> Self {
        let Entry { ino, name, file_type, tag, .. } = *entry;
        Self { name: name.to_vec(), ino, file_type, tag, number, is_torn }
    }

    fn entry(&self) -> Entry<'_> {
        let Self { ref name, ino, file_type, tag, .. } = *self;
        Entry { offset: 0, length: 0, ino, name, file_type, tag }
    }

    /// Bytes that it takes in a leaf.
    fn size(&self) -> usize {
        tree_entry_size(self.name.len()) + OFFSET_SIZE
    }
}

/// Keys from one on, and before another one if there is one.
type Keys = (u64, Option<u64>);

/// A child to which an inner node leads.
struct Way {
    node: u64,
    level: u8,
    keys: Keys,
}

/// A leaf behind the last node of its directory, and which keys its parents say that it has.
struct Beyond {
    bytes: Vec<u8>,
    keys: Keys,
}

/// What a node of a new tree holds.
enum Contents {
    /// So many of the entries, in their order.
    Leaf(std::ops::Range<usize>),
    /// Keys, and the numbers of the children among the nodes of the level below.
    Inner(Vec<(u64, usize)>),
}

/// Puts a directory right; hands the directories that it names to the queue.
pub(in crate::directory) fn visit(
    repair: &mut Repair<'_>,
    directory: Ino,
    mut pass: Pass,
    queue: &mut VecDeque<Ino>,
) -> Result<(), CheckError> {
    let raw = repair.raw(directory)?;
    if raw.fork_code() == fork::INLINE {
        return repair.visit_body(directory, &raw, pass, queue);
    }
    let (extents, map_nodes) = repair.blocks_of_map(directory, &raw);
    repair.look_beyond_the_tree(directory, &raw, &extents)?;
    let (found, mut is_sound) = repair.find_entries(directory, &raw, &extents);
    let mut kept = Vec::with_capacity(found.len());
    for mut found in found {
        let hash = repair.hasher.hash(&found.name);
        match repair.judge(directory, &found.entry(), hash, found.is_torn, &mut pass, queue) {
            Err(why) => {
                is_sound = false;
                repair.act(format!("directory {directory}: dropped {}: {why}", found.name.escape_ascii()));
            }
            Ok(file_type) => {
                is_sound &= found.file_type == file_type && found.tag == hash as u32;
                (found.file_type, found.tag) = (file_type, hash as u32);
                repair.set_first_identity(found.ino, directory, hash, 0)?;
                kept.push(found);
            }
        }
    }
    if is_sound || extents.is_empty() {
        pass.live = raw.size.get();
        return repair.finish_directory(directory, pass, extents, None, (0, false));
    }
    let mut left: Vec<(FsBlock, u64)> = map_nodes.into_iter().map(|node| (node, 1)).collect();
    left.extend(extents.iter().map(|extent| (extent.start, u64::from(extent.length))));
    repair.act(format!("directory {directory}: wrote its tree anew, with {} names", kept.len()));
    repair.write_tree(directory, pass, kept, left)
}

/// The entries of a directory, node by node, as far as they are believed, in the form of other kinds; and whether each node is
/// torn.
pub(in crate::directory) fn runs(
    repair: &mut Repair<'_>,
    directory: Ino,
    raw: &RawInode,
) -> Result<Vec<(Vec<u8>, bool)>, CheckError> {
    if raw.fork_code() == fork::INLINE {
        let data = repair.data_in_body(directory, raw)?;
        return Ok(vec![(packed(&body_of(&data)), repair.is_in_torn(directory))]);
    }
    let (extents, _) = repair.blocks_of_map(directory, raw);
    let found = repair.find_entries(directory, raw, &extents).0;
    let (torn, whole): (Vec<Kept>, Vec<Kept>) = found.into_iter().partition(|entry| entry.is_torn);
    Ok(vec![(packed(&whole), false), (packed(&torn), true)])
}

/// Adds names to a directory that has been visited.
pub(in crate::directory) fn append(repair: &mut Repair<'_>, directory: Ino, added: &[Added]) -> Result<(), CheckError> {
    repair.change_directories()?;
    let raw = repair.raw(directory)?;
    let (extents, nodes) = repair.blocks_of_map(directory, &raw);
    let mut entries = if raw.fork_code() == fork::INLINE {
        body_of(&repair.data_in_body(directory, &raw)?)
    } else {
        repair.find_entries(directory, &raw, &extents).0
    };
    for Added { name, ino, file_type } in added {
        let tag = repair.hasher.hash(name) as u32;
        let (name, ino, file_type) = (name.clone(), *ino, *file_type);
        entries.push(Kept { name, ino, file_type, tag, number: 0, is_torn: false });
    }
    let mut left: Vec<(FsBlock, u64)> = nodes.into_iter().map(|node| (node, 1)).collect();
    left.extend(extents.iter().map(|extent| (extent.start, u64::from(extent.length))));
    repair.write_tree(directory, Pass::default(), entries, left)?;
    added.iter().try_for_each(|Added { name, ino, file_type }| {
        repair.count_added(directory, *ino, *file_type, repair.hasher.hash(name), 0)
    })
}

impl Repair<'_> {
    /// The entries of a directory in blocks, and whether its tree is as it should be. If it is not, all leaves are believed that
    /// can be read, whatever leads to them. Not those behind the last node: a block that is mapped ahead may hold what a leaf had
    /// long ago. But nodes lead there if the size is older than they are, and what they lead to is the tree's.
    fn find_entries(&self, directory: Ino, raw: &RawInode, extents: &[Extent]) -> (Vec<Kept>, bool) {
        let block_size = self.reader.block_size() as u64;
        let nodes = raw.size.get() / block_size;
        let mapped: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
        let end = extents.last().map_or(0, |extent| extent.end().0);
        let until = self.end_of_nodes(raw, extents);
        if until.is_some() && end == mapped && mapped >= nodes && raw.size.get() % block_size == 0 {
            let (mut found, mut is_sound) = (Vec::new(), true);
            Tree { reader: &self.reader, ino: directory, extents, nodes }.walk(&mut |met| match met {
                Met::Entry { entry, number, .. } => found.push(Kept::new(entry, number, false)),
                _ => is_sound = false,
            });
            if is_sound {
                return (found, true);
            }
        }
        let mut found = Vec::new();
        self.each_node(directory, extents, 0..until.unwrap_or(u64::MAX), &mut |bytes, is_torn| {
            found.extend(leaf_entries(bytes).flatten().map(|(entry, number)| Kept::new(&entry, number, is_torn)));
        });
        for Beyond { bytes, keys } in until.map_or_else(Vec::new, |until| self.led_beyond(directory, extents, until)) {
            let entries = leaf_entries(&bytes).flatten().filter(|(entry, number)| {
                let key = key(entry.tag, *number);
                keys.0 <= key && keys.1.is_none_or(|upper| key < upper)
            });
            found.extend(entries.map(|(entry, number)| Kept::new(&entry, number, false)));
        }
        (found, false)
    }

    /// Where the nodes of a directory end by its size, if that can be so. Holes leave the size true. One with which the map ends too far behind
    /// the last node says nothing.
    fn end_of_nodes(&self, raw: &RawInode, extents: &[Extent]) -> Option<u64> {
        let nodes = raw.size.get() / self.reader.block_size() as u64;
        let end = extents.last().map_or(0, |extent| extent.end().0);
        Some(nodes).filter(|&nodes| nodes > 0 && end <= nodes + AHEAD_MAX)
    }

    /// The leaves behind the last node to which the inner nodes of a directory lead, from those before it on. Torn ones lead nowhere: they may be
    /// half of what they were.
    fn led_beyond(&self, directory: Ino, extents: &[Extent], nodes: u64) -> Vec<Beyond> {
        let mut ways = Vec::new();
        self.each_node(directory, extents, 0..nodes, &mut |bytes, is_torn| {
            if !is_torn {
                push_ways(bytes, (0, None), &mut ways);
            }
        });
        let (mut leaves, mut met) = (Vec::new(), HashSet::new());
        let mut buf = self.reader.new_buffer();
        while let Some(Way { node, level, keys }) = ways.pop() {
            if node < nodes || !met.insert(node) {
                continue;
            }
            let Some(block) = find_block(extents, node) else { continue };
            let is_read = self.reader.read(block, BlockKind::DirTree, directory.0, &mut buf).is_ok();
            if !is_read || DirNodeHeader::read(&buf).level != level {
                continue;
            }
            if level == 0 {
                leaves.push(Beyond { bytes: buf.clone(), keys });
            } else {
                push_ways(&buf, keys, &mut ways);
            }
        }
        leaves
    }

    /// Remembers the names in leaves behind the last node to which no node leads: the inode and the leaf's parent may be older than
    /// the leaf. But what it has may also be long gone: a name counts if what it names says that this is its own, and if by the end nothing
    /// else names that.
    fn look_beyond_the_tree(&mut self, directory: Ino, raw: &RawInode, extents: &[Extent]) -> Result<(), CheckError> {
        let Some(nodes) = self.end_of_nodes(raw, extents) else { return Ok(()) };
        let mut names = Vec::new();
        self.each_node(directory, extents, nodes..u64::MAX, &mut |bytes, is_torn| {
            if !is_torn {
                names.extend(leaf_entries(bytes).flatten().map(|(entry, _)| (entry.ino, entry.name.to_vec())));
            }
        });
        for (ino, name) in names {
            let hash = self.hasher.hash(&name);
            if self.item(ino).is_some() && self.is_identity(directory, ino, hash) {
                self.beyond.insert(ino, (directory, name));
            }
        }
        Ok(())
    }

    /// Hands the nodes of a directory in some file blocks to `f`, as far as they can be read, and whether each is torn.
    fn each_node(&self, directory: Ino, extents: &[Extent], range: Range<u64>, f: &mut dyn FnMut(&[u8], bool)) {
        let mut buf = self.reader.new_buffer();
        for (_, block) in blocks_of(extents).filter(|(file_block, _)| range.contains(file_block)) {
            if let Some(is_torn) = self.read_torn(directory, block, BlockKind::DirTree, &mut buf) {
                f(&buf, is_torn);
            }
        }
    }

    /// Gives a directory a new tree of these entries; `left` is what it has no longer then. Where there is no other room the new one takes the old
    /// one's place: power lost before the inode names it costs the directory's names.
    fn write_tree(
        &mut self,
        directory: Ino,
        mut pass: Pass,
        mut entries: Vec<Kept>,
        mut left: Vec<(FsBlock, u64)>,
    ) -> Result<(), CheckError> {
        let (mut is_in_place, mut tree) = (false, BuiltMap::InFork);
        entries.sort_by_key(|entry| key(entry.tag, entry.number));
        number_again(&mut entries);
        let mut extents = Vec::new();
        if !entries.is_empty() {
            let count = |levels: &[Vec<Contents>]| levels.iter().map(Vec::len).sum::<usize>();
            let mut levels = plan(&entries, self.reader.block_size(), Fill::Ample);
            if self.fill_for(count(&levels) as u64) == Fill::Full {
                levels = plan(&entries, self.reader.block_size(), Fill::Full);
            }
            let places;
            (places, is_in_place) = self.take_over(count(&levels), &left)?.ok_or(CheckError::NoRoom)?;
            for (number, &block) in places.iter().enumerate() {
                self.add_to_map(&mut extents, FileBlock(number as u64), block);
            }
            // Nothing is written over the old tree before there is room for all.
            tree = match self.build_map(directory, &extents) {
                Err(CheckError::NoRoom) if is_in_place => {
                    self.release(places.into_iter().map(|block| (block, 1)));
                    self.claim_again(&left);
                    return Err(CheckError::NoRoom);
                }
                tree => tree?,
            };
            // The root is the first block, then come the leaves and what is above them, level by level.
            let mut firsts = vec![1_usize];
            for level in &levels[..levels.len() - 1] {
                firsts.push(firsts.last().expect("it begins with one") + level.len());
            }
            let root = levels.len() - 1;
            let mut order = vec![(root, 0)];
            order.extend((0..root).flat_map(|level| (0..levels[level].len()).map(move |index| (level, index))));
            for (&(level, index), block) in order.iter().zip(places) {
                let mut buf = self.reader.new_buffer();
                header::init(&mut buf, BlockKind::DirTree, self.reader.volume, directory.0, block);
                match &levels[level][index] {
                    Contents::Leaf(range) => write_leaf(&mut buf, &entries[range.clone()]),
                    Contents::Inner(children) => {
                        write_children(&mut buf, level as u8, firsts[level - 1], children);
                    }
                }
                write(&self.reader, block, &mut buf)?;
            }
            pass.live = (order.len() * self.reader.block_size()) as u64;
        }
        if is_in_place {
            left.clear();
        }
        self.finish_directory(directory, pass, extents, Some(NewMap { tree, left }), (0, false))?;
        // What was released is given to nobody else before.
        if is_in_place { self.settle() } else { Ok(()) }
    }

    /// Puts the entries of a body right in place. One that goes becomes a free one.
    fn visit_body(
        &mut self,
        directory: Ino,
        raw: &RawInode,
        mut pass: Pass,
        queue: &mut VecDeque<Ino>,
    ) -> Result<(), CheckError> {
        let at = usize::from(raw.body_first.get()) * SLOT_SIZE;
        let (block, _) = self.geometry.locate(directory).expect("items have a block");
        let mut data = self.body_data(block, at)?;
        let torn_from = self.body_torn_from(directory, raw);
        let mut keys = HashSet::new();
        let (mut byte, mut len) = (0, data.len());
        while byte < data.len() {
            let start = byte;
            let (entry, mut number) = match entry_at(&data, start) {
                Ok(found) => found,
                Err(bad) => {
                    // An entry whose name is none says where the next one begins; any other says nothing.
                    let length = tree_entry_size(data.get(start + 10).map_or(0, |&len| usize::from(len)));
                    if bad.field == "name" && start + length <= data.len() {
                        self.act(format!("directory {directory}: dropped what is at byte {start} of its body"));
                        free_entry(&mut data[start..start + length]);
                        byte = start + length;
                        continue;
                    }
                    self.act(format!("directory {directory}: cut its body at byte {start}"));
                    len = fill(&mut data, start);
                    break;
                }
            };
            byte = start + usize::from(entry.length);
            if entry.ino.is_none() {
                continue;
            }
            let hash = self.hasher.hash(entry.name);
            let (name, ino) = (entry.name.to_vec(), entry.ino);
            match self.judge(directory, &entry, hash, byte > torn_from, &mut pass, queue) {
                Err(why) => {
                    self.act(format!("directory {directory}: dropped {}: {why}", name.escape_ascii()));
                    free_entry(&mut data[start..byte]);
                }
                Ok(file_type) => {
                    while !keys.insert(key(hash as u32, number)) {
                        number = number.wrapping_add(1);
                    }
                    let head = DirTreeEntry::read_mut(&mut data[start..]);
                    head.file_type = file_type;
                    head.tag.set(hash as u32);
                    head.number.set(number);
                    self.set_first_identity(ino, directory, hash, 0)?;
                }
            }
        }
        self.load_at_hand(block)?;
        if let Some((_, buf, dirty)) = &mut self.at_hand {
            let head = BodyHeader::read_mut(&mut buf[at..]);
            let (old, attributes) = (usize::from(head.data_len.get()), usize::from(head.attr_len.get()));
            head.data_len.set(len as u16);
            let body = at + BodyHeader::SIZE;
            buf.copy_within(body + old..body + old + attributes, body + len);
            buf[body..body + len].copy_from_slice(&data[..len]);
            *dirty = true;
        }
        self.change_inode(directory, |raw| {
            raw.size.set(len as u64);
            set_twins(raw, pass.has_twins);
        })
    }
}

/// The live entries of a body, up to the first that is none.
fn body_of(data: &[u8]) -> Vec<Kept> {
    let live = super::check::body_entries(data).map_while(Result::ok).filter(|(entry, _)| !entry.ino.is_none());
    live.map(|(entry, number)| Kept::new(&entry, number, false)).collect()
}

/// Entries one after the other as other kinds of directories have them.
fn packed(entries: &[Kept]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        push_entry(&mut bytes, entry.ino, entry.file_type, entry.tag, &entry.name);
    }
    bytes
}

/// The children of an inner node whose own keys are known; none of a leaf, or of a node that cannot be one.
fn push_ways(node: &[u8], (lower, upper): Keys, ways: &mut Vec<Way>) {
    let header = DirNodeHeader::read(node);
    let count = usize::from(header.count.get());
    if !(1..=LEVEL_MAX).contains(&header.level) || count > fan_out(node.len()) {
        return;
    }
    for index in 0..count {
        let child = child_at(node, index);
        let next = (index + 1 < count).then(|| child_at(node, index + 1).key.get());
        let keys = (child.key.get().max(lower), next.into_iter().chain(upper).min());
        ways.push(Way { node: u64::from(child.child.get()), level: header.level - 1, keys });
    }
}

/// Numbers the names of each tag from 0 on if two of them have one number. Of more than there are numbers, the last go: the check
/// then finds what they named, and nobody can make so many without the key of the hash.
fn number_again(entries: &mut Vec<Kept>) {
    let mut at = 0;
    while at < entries.len() {
        let tag = entries[at].tag;
        let end = at + entries[at..].iter().take_while(|entry| entry.tag == tag).count();
        let run = &mut entries[at..end];
        if run.windows(2).any(|pair| pair[0].number == pair[1].number) {
            for (number, entry) in run.iter_mut().enumerate() {
                entry.number = number as u16;
            }
        }
        at = end;
        if run.len() > 1 << NUMBER_BITS {
            let excess = run.len() - (1 << NUMBER_BITS);
            entries.drain(end - excess..end);
            at = end - excess;
        }
    }
}

/// The nodes of a tree of sorted entries, level by level. Nodes that are filled to three quarters are not split by the next name that is added.
fn plan(entries: &[Kept], block_size: usize, fill: Fill) -> Vec<Vec<Contents>> {
    let room = leaf_room(block_size);
    let mut leaves: Vec<Contents> = Vec::new();
    let mut keys: Vec<u64> = Vec::new();
    let (mut start, mut used) = (0, 0);
    for (index, entry) in entries.iter().enumerate() {
        if used > 0 && (used + entry.size() > room || fill == Fill::Ample && used * 4 > room * 3) {
            leaves.push(Contents::Leaf(start..index));
            (start, used) = (index, 0);
        }
        if used == 0 {
            keys.push(key(entry.tag, entry.number));
        }
        used += entry.size();
    }
    leaves.push(Contents::Leaf(start..entries.len()));
    let mut levels = vec![leaves];
    while keys.len() > 1 {
        let children: Vec<(u64, usize)> = keys.iter().copied().zip(0..).collect();
        let groups: Vec<&[(u64, usize)]> = children.chunks(fill.of(fan_out(block_size))).collect();
        keys = groups.iter().map(|group| group[0].0).collect();
        let contents = |group: &[(u64, usize)]| Contents::Inner([&[(0, group[0].1)], &group[1..]].concat());
        levels.push(groups.into_iter().map(contents).collect());
    }
    levels
}

fn write_leaf(buf: &mut [u8], entries: &[Kept]) {
    let mut heap = buf.len();
    for (index, entry) in entries.iter().enumerate() {
        heap -= tree_entry_size(entry.name.len());
        let head = DirTreeEntry::read_mut(&mut buf[heap..]);
        head.ino.set(entry.ino.0);
        head.number.set(entry.number);
        head.name_len = entry.name.len() as u8;
        head.file_type = entry.file_type;
        head.tag.set(entry.tag);
        buf[heap + DirTreeEntry::SIZE..][..entry.name.len()].copy_from_slice(&entry.name);
        let at = NODE_OFFSET + index * OFFSET_SIZE;
        buf[at..at + OFFSET_SIZE].copy_from_slice(&(heap as u16).to_le_bytes());
    }
    let live = buf.len() - heap;
    let head = DirNodeHeader::read_mut(buf);
    head.count.set(entries.len() as u16);
    head.heap.set(heap as u32);
    head.live.set(live as u32);
}

fn write_children(buf: &mut [u8], level: u8, first: usize, children: &[(u64, usize)]) {
    for (index, &(key, child)) in children.iter().enumerate() {
        let record = DirTreeChild::read_mut(&mut buf[NODE_OFFSET + index * DirTreeChild::SIZE..]);
        record.key.set(key);
        record.child.set((first + child) as u32);
    }
    let head = DirNodeHeader::read_mut(buf);
    head.level = level;
    head.count.set(children.len() as u16);
}

/// Makes an entry of a body a free one of the same length.
fn free_entry(entry: &mut [u8]) {
    let len = entry.len() - DirTreeEntry::SIZE;
    entry.fill(0);
    DirTreeEntry::read_mut(entry).name_len = len as u8;
}

/// Fills a body with free entries from a byte on, so that the attributes behind it can stay where they are; how many bytes of the
/// data that leaves: what is too short for an entry goes.
fn fill(data: &mut [u8], mut at: usize) -> usize {
    const LONGEST: usize = DirTreeEntry::SIZE + u8::MAX as usize;
    while data.len() - at >= DirTreeEntry::SIZE {
        let rest = data.len() - at;
        let length = match rest {
            _ if rest <= LONGEST => rest,
            // What is left over must be long enough for one.
            _ => (rest - DirTreeEntry::SIZE).min(LONGEST),
        };
        free_entry(&mut data[at..at + length]);
        at += length;
    }
    at
}
