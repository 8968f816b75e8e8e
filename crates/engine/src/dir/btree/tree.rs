//! The tree of a directory: the way down, splits, merges, and which file blocks its nodes have.
//!
//! Nodes are linked downwards only. Whoever goes on from a leaf to the next one goes down again, by the key at which the next
//! one begins: that costs the two or three blocks above, which are in the cache, and a split or merge changes no neighbour.
//!
//! The root stays in file block 0. When it is full, its contents move to a new node, its only child, which is split; when it has
//! one child left, it takes the child's contents. All other nodes are file blocks 1, 2, ... without gaps: when one is given up,
//! the last one moves to its place, and the directory becomes shorter.

use super::node::{self, Node, Place};
use crate::counters::Count;
use crate::dir::{BlockSource, free_blocks, is_in_blocks};
use crate::edit::{BlockEdit, BlockRead, BlockStore, NewBlock};
use crate::error::Result;
use crate::map::{self, Mapping};
use crate::order::{Look, Txn};
use crate::volume::{Share, Volume};
use myriad_format::dir_tree::{LEVEL_MAX, OFFSET_SIZE, fan_out, leaf_room};
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Ino};
use std::mem;
use zerocopy::little_endian::U64;

/// Most blocks that a directory maps ahead of its growth.
pub(super) const AHEAD_MAX: u64 = 64;

/// Nodes of the largest directory, if its map reaches so far. Tests are to come there.
pub(super) const NODES_MAX: u64 = if cfg!(test) { 64 } else { u32::MAX as u64 };

/// A directory, and its inode as it was read.
#[derive(Clone, Copy)]
pub(super) struct Tree<'a> {
    pub dir: Ino,
    pub raw: &'a RawInode,
}

/// A node on the way down.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub place: Place,
    level: u8,
    /// Entries or children.
    count: usize,
    /// The child that the way leads to; of the last node 0.
    child: usize,
}

/// The way from the root to a leaf.
#[derive(Clone)]
pub(super) struct Path {
    pub steps: Vec<Step>,
    /// Keys from this one on belong to the next leaf.
    pub end: Option<u64>,
}

impl Path {
    pub fn leaf(&self) -> Place {
        self.steps.last().expect("a way has a root").place
    }
}

/// Nodes of a directory in blocks.
pub(super) fn nodes(raw: &RawInode, block_size: usize) -> u64 {
    raw.size.get() / block_size as u64
}

/// Nodes of the largest directory of a volume.
fn nodes_max(volume: &Volume) -> u64 {
    NODES_MAX.min(map::directory_blocks_max(&volume.geometry))
}

/// The volume block of a file block.
fn mapped<S: BlockRead>(store: &mut S, dir: Ino, raw: &RawInode, node: u32) -> Result<FsBlock> {
    let block = FileBlock(u64::from(node));
    if !is_in_blocks(raw) {
        return Err(Corrupt::Inode { ino: dir, field: "fork_kind", value: u64::from(raw.fork_kind) }.into());
    }
    match map::lookup(store, raw, dir, block)? {
        Mapping::Mapped(extent) => Ok(extent.start.offset_by(block.0 - extent.file_block.0)),
        Mapping::Hole { .. } => Err(Corrupt::DirEntry { ino: dir, block, offset: 0, field: "block", value: 0 }.into()),
    }
}

impl Tree<'_> {
    pub fn place(&self, look: &Look<'_>, node: u32) -> Result<Place> {
        Ok(Place { dir: self.dir, node, block: mapped(&mut &*look, self.dir, self.raw, node)? })
    }

    pub fn read<R>(&self, look: &Look<'_>, place: Place, f: impl FnOnce(&Node<'_>) -> Result<R>) -> Result<R> {
        look.read(place.block, BlockKind::DirTree, |bytes| f(&Node::read(bytes, place)?))?
    }

    /// The way to the leaf where a key belongs.
    pub fn descend(&self, look: &Look<'_>, key: u64) -> Result<Path> {
        Ok(self.descend_to(look, key, 0, &mut |_| Ok(()))?.0)
    }

    /// As [`Self::descend`], and what `f` makes of the leaf.
    pub fn descend_and<R>(
        &self,
        look: &Look<'_>,
        key: u64,
        f: &mut dyn FnMut(&Node<'_>) -> Result<R>,
    ) -> Result<(Path, R)> {
        self.descend_to(look, key, 0, f)
    }

    /// The way to the node of a level below which a key belongs, and what `f` makes of that node.
    fn descend_to<R>(
        &self,
        look: &Look<'_>,
        key: u64,
        until: u8,
        f: &mut dyn FnMut(&Node<'_>) -> Result<R>,
    ) -> Result<(Path, R)> {
        let all = nodes(self.raw, look.volume.cache.block_size());
        let mut path = Path { steps: Vec::with_capacity(4), end: None };
        let (mut node, mut expected) = (0, None);
        loop {
            let place = self.place(look, node)?;
            let (step, next) = self.read(look, place, |node| {
                if expected.is_some_and(|level| level != node.level) {
                    return Err(place.corrupt("level", u64::from(node.level)));
                }
                let mut step = Step { place, level: node.level, count: node.count, child: 0 };
                if node.level <= until {
                    return Ok((step, Err(f(node)?)));
                }
                step.child = node.child_for(key);
                let end = (step.child + 1 < node.count).then(|| node.child(step.child + 1).0);
                Ok((step, Ok((node.child(step.child).1, end))))
            })?;
            path.steps.push(step);
            let (child, end) = match next {
                Ok(next) => next,
                Err(made) => return Ok((path, made)),
            };
            if child == 0 || u64::from(child) >= all {
                return Err(place.corrupt("child", u64::from(child)));
            }
            path.end = end.or(path.end);
            (node, expected) = (child, Some(step.level - 1));
        }
    }

    /// Whether the leaf at the end of a way can be split, whatever that splits above it.
    pub fn may_split(&self, look: &Look<'_>, path: &Path) -> bool {
        let block_size = look.volume.cache.block_size();
        let root = path.steps[0];
        let may_push_down = root.level < LEVEL_MAX || root.count + 2 <= fan_out(block_size);
        // A leaf may become three; each level above it, and what the root has, takes one more.
        may_push_down && nodes(self.raw, block_size) + path.steps.len() as u64 + 2 <= nodes_max(look.volume)
    }
}

/// A change of a tree.
pub(super) struct Change<'t, 'v> {
    pub txn: &'t mut Txn<'v>,
    pub dir: Ino,
    pub raw: &'t mut RawInode,
    pub source: BlockSource,
}

impl Change<'_, '_> {
    fn block_size(&self) -> usize {
        self.txn.volume().cache.block_size()
    }

    fn nodes(&self) -> u64 {
        nodes(self.raw, self.block_size())
    }

    fn set_nodes(&mut self, nodes: u64) {
        self.raw.size = U64::new(nodes * self.block_size() as u64);
    }

    fn read<R>(&self, place: Place, f: impl FnOnce(&Node<'_>) -> Result<R>) -> Result<R> {
        Tree { dir: self.dir, raw: self.raw }.read(&self.txn.look, place, f)
    }

    fn edit<R>(&mut self, place: Place, f: impl FnOnce(&mut BlockEdit<'_>) -> R) -> Result<R> {
        self.txn.change(place.block, BlockKind::DirTree, f)
    }

    /// Adds a node behind the last one. Blocks are mapped in runs that grow with the directory, so that a large one has few
    /// extents.
    pub fn add_node(&mut self, f: impl FnOnce(&mut BlockEdit<'_>)) -> Result<Place> {
        let made = self.nodes();
        let block = FileBlock(made);
        let hole = match is_in_blocks(self.raw) {
            true => map::lookup(&mut &self.txn.look, self.raw, self.dir, block)?,
            false => Mapping::Hole { until: map::FILE_END },
        };
        let at = match hole {
            Mapping::Mapped(extent) => extent.start.offset_by(block.0 - extent.file_block.0),
            Mapping::Hole { .. } => {
                let near = match made.checked_sub(1) {
                    Some(last) => mapped(&mut &self.txn.look, self.dir, self.raw, last as u32)?.offset_by(1),
                    None => self.source.goal,
                };
                // A name for which there might be no further node was refused.
                let left = nodes_max(self.txn.volume()).saturating_sub(made).max(1);
                let run = (made / 4).clamp(1, AHEAD_MAX).min(left) as u32;
                // The operation has reserved one; without room for the run, one will do.
                let want = if self.txn.try_reserve(u64::from(run - 1), Share::Common) { run } else { 1 };
                let (start, length) = self.txn.volume().allocate_extent(self.txn, near, 1, want)?;
                let extent = Extent { file_block: block, start, length, unwritten: false };
                map::insert(self.txn, &mut self.source, self.raw, self.dir, extent)?;
                start
            }
        };
        self.set_nodes(made + 1);
        // What is mapped behind the last node has never held one: a directory that becomes shorter gives up all behind its end.
        self.txn.init(NewBlock::free(at), BlockKind::DirTree, self.dir.0, f)?;
        Ok(Place { dir: self.dir, node: made as u32, block: at })
    }

    /// Adds an entry to the leaf at the end of a way.
    pub fn insert(&mut self, mut path: Path, key: u64, entry: &[u8]) -> Result<()> {
        if self.insert_in_leaf(path.leaf(), key, entry)? {
            return Ok(());
        }
        self.txn.volume().counters.bump(Count::dir_leaf_splits);
        if path.steps.len() == 1 {
            self.push_down(&mut path)?;
        }
        let mut added = self.split_leaf(path.leaf(), key, entry)?;
        let mut at = path.steps.len() - 1;
        loop {
            at -= 1;
            let Step { place, child, level, .. } = path.steps[at];
            let mut children = self.read(place, |node| Ok(node.children()))?;
            children.splice(child + 1..child + 1, added);
            if children.len() <= fan_out(self.block_size()) {
                return self.edit(place, |edit| node::write_children(edit, level, &children, child + 1));
            }
            if at == 0 {
                // Its contents are the child's now, which is split.
                self.push_down(&mut path)?;
                at = 1;
            }
            let mut right = children.split_off(children.len() / 2);
            let first = mem::replace(&mut right[0].0, 0);
            let new = self.add_node(|edit| node::write_children(edit, level, &right, 0))?;
            let from = (child + 1).min(children.len());
            let place = path.steps[at].place;
            self.edit(place, |edit| node::write_children(edit, level, &children, from))?;
            added = vec![(first, new.node)];
        }
    }

    /// Whether there was room.
    fn insert_in_leaf(&mut self, place: Place, key: u64, entry: &[u8]) -> Result<bool> {
        let moved = self.edit(place, |edit| node::insert_entry(edit, place, key, entry))??;
        self.txn.volume().counters.add(Count::dir_compactions, u64::from(moved == Some(true)));
        Ok(moved.is_some())
    }

    /// Moves the contents of the root to a new node, its only child. The way leads there.
    fn push_down(&mut self, path: &mut Path) -> Result<()> {
        let root = path.steps[0];
        let (level, bytes) = self.read(root.place, |node| Ok((node.level, node.bytes.to_vec())))?;
        let new = self.add_node(|edit| node::copy_contents(edit, &bytes))?;
        self.edit(root.place, |edit| node::write_children(edit, level + 1, &[(0, new.node)], 0))?;
        path.steps.insert(1, Step { place: new, ..root });
        path.steps[0] = Step { level: level + 1, count: 1, child: 0, ..root };
        Ok(())
    }

    /// Splits a leaf so that both halves, with a new entry that it has no room for, differ least in bytes; children that its
    /// parent gets. Beside a long entry there may be room neither for what is before it nor for what is behind: then it gets a
    /// leaf of its own.
    fn split_leaf(&mut self, place: Place, key: u64, entry: &[u8]) -> Result<Vec<(u64, u32)>> {
        let room = leaf_room(self.block_size());
        let (entries, keys, index) = self.read(place, |leaf| {
            let keys = (0..leaf.count).map(|index| Ok(leaf.entry(index)?.key())).collect::<Result<Vec<u64>>>()?;
            let entries = leaf.entries()?;
            node::check_fit(place, &entries, leaf.live(), leaf.bytes.len())?;
            Ok((entries, keys, leaf.lower_bound(key)?))
        })?;
        let size = |entry: &[u8]| entry.len() + OFFSET_SIZE;
        let new = size(entry);
        let total: usize = entries.iter().map(|entry| size(entry)).sum::<usize>() + new;
        // Each way to cut: how many entries stay, and whether the new one is among those that do.
        let (mut best, mut left): (Option<(usize, usize, bool)>, usize) = (None, 0);
        for kept in 0..=entries.len() {
            for takes_new in [false, true] {
                let fits_order = if takes_new { kept >= index } else { kept <= index };
                let bytes = left + if takes_new { new } else { 0 };
                let other = total - bytes;
                if fits_order && bytes > 0 && other > 0 && bytes <= room && other <= room {
                    let differ = bytes.abs_diff(other);
                    if best.is_none_or(|(least, ..)| differ < least) {
                        best = Some((differ, kept, takes_new));
                    }
                }
            }
            left += entries.get(kept).map_or(0, |entry| size(entry));
        }
        match best {
            Some((_, kept, takes_new)) => {
                let mut right = entries[kept..].to_vec();
                let mut first = keys.get(kept).copied();
                if !takes_new {
                    right.insert(index - kept, entry.to_vec());
                    first = if index == kept { Some(key) } else { first };
                }
                let new = self.add_node(|edit| node::write_leaf(edit, &right))?;
                self.edit(place, |edit| node::cut_leaf(edit, place, kept))??;
                if takes_new && !self.insert_in_leaf(place, key, entry)? {
                    return Err(place.corrupt("live", 0));
                }
                Ok(vec![(first.expect("the right half is not empty"), new.node)])
            }
            None => {
                let middle = self.add_node(|edit| node::write_leaf(edit, &[entry.to_vec()]))?;
                let right = self.add_node(|edit| node::write_leaf(edit, &entries[index..]))?;
                self.edit(place, |edit| node::cut_leaf(edit, place, index))??;
                Ok(vec![(key, middle.node), (keys[index], right.node)])
            }
        }
    }

    /// Removes the entry with a key, to whose leaf the way leads. False, with nothing changed: it is the last one.
    ///
    /// A node of which more than half is in use is left alone, one that has nothing left goes; any other joins a neighbour if a
    /// quarter of what they become stays free.
    pub fn remove(&mut self, path: &Path, key: u64) -> Result<bool> {
        // Nodes below this one have nothing but what leads to the entry.
        let Some(mut at) = path.steps.iter().rposition(|step| step.count > 1) else { return Ok(false) };
        let mut dropped: Vec<u32> = path.steps[at + 1..].iter().map(|step| step.place.node).collect();
        let Step { place, level, count, child } = path.steps[at];
        if level == 0 {
            let is_half_full = self.edit(place, |edit| node::remove_entry(edit, place, key))??;
            if is_half_full {
                return Ok(true);
            }
        } else {
            self.edit(place, |edit| node::remove_child(edit, level, count, child))?;
        }
        while at > 0 && self.merge(path.steps[at].place, path.steps[at - 1], &mut dropped)? {
            at -= 1;
        }
        if !dropped.is_empty() {
            self.pull_up(path.steps[0].place, &mut dropped)?;
            self.close_up(&mut dropped)?;
        }
        Ok(true)
    }

    /// Joins a node that has become smaller with the one before or behind it under the same parent, if there is reason to.
    fn merge(&mut self, place: Place, parent: Step, dropped: &mut Vec<u32>) -> Result<bool> {
        if self.read(place, |node| Ok(node.is_half_full()))? {
            return Ok(false);
        }
        let (count, children) = self.read(parent.place, |node| Ok((node.count, node.children())))?;
        let index = parent.child;
        for left in [index.checked_sub(1), Some(index).filter(|&left| left + 1 < count)].into_iter().flatten() {
            let pair = [children[left].1, children[left + 1].1];
            let [into, from] = self.places(pair)?;
            if into.node == from.node {
                return Err(parent.place.corrupt("child", u64::from(from.node)));
            }
            let (kept, mut from_bytes) = (self.read(into, |node| Ok(node.used()))?, Vec::new());
            let taken = self.read(from, |node| {
                if node.level + 1 != parent.level {
                    return Err(from.corrupt("level", u64::from(node.level)));
                }
                from_bytes = node.bytes.to_vec();
                Ok(node.used())
            })?;
            if (kept + taken) * 4 > leaf_room(self.block_size()) * 3 {
                continue;
            }
            self.txn.volume().counters.bump(Count::dir_merges);
            let key = children[left + 1].0;
            self.edit(into, |edit| node::append(edit, into, &Node::read(&from_bytes, from)?, key))??;
            self.edit(parent.place, |edit| node::remove_child(edit, parent.level, count, left + 1))?;
            dropped.push(from.node);
            return Ok(true);
        }
        Ok(false)
    }

    fn places(&self, nodes: [u32; 2]) -> Result<[Place; 2]> {
        let all = self.nodes();
        let tree = Tree { dir: self.dir, raw: self.raw };
        let place = |node: u32| {
            let place = tree.place(&self.txn.look, node)?;
            if node == 0 || u64::from(node) >= all { Err(place.corrupt("child", u64::from(node))) } else { Ok(place) }
        };
        Ok([place(nodes[0])?, place(nodes[1])?])
    }

    /// Gives a root with one child the child's contents.
    fn pull_up(&mut self, root: Place, dropped: &mut Vec<u32>) -> Result<()> {
        loop {
            let sole =
                self.read(root, |node| Ok((node.level > 0 && node.count == 1).then(|| (node.child(0).1, node.level))))?;
            let Some((child, level)) = sole else { return Ok(()) };
            let [place, _] = self.places([child; 2])?;
            let bytes = self.read(place, |node| {
                if node.level + 1 != level {
                    Err(place.corrupt("level", u64::from(node.level)))
                } else {
                    Ok(node.bytes.to_vec())
                }
            })?;
            self.edit(root, |edit| node::copy_contents(edit, &bytes))?;
            dropped.push(child);
        }
    }

    /// Gives up nodes that nothing leads to: the last ones move to their places, and the directory ends behind the nodes that are
    /// left.
    fn close_up(&mut self, dropped: &mut [u32]) -> Result<()> {
        dropped.sort_unstable();
        let all = self.nodes();
        let twice = dropped.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        if let Some(node) = twice {
            // Two ways lead there.
            let [place, _] = self.places([node; 2])?;
            return Err(place.corrupt("child", u64::from(node)));
        }
        // Not the root, which is none of them.
        let kept = all - dropped.len() as u64;
        let mut holes = dropped.iter().copied().filter(|&node| u64::from(node) < kept);
        for last in kept..all {
            if dropped.binary_search(&(last as u32)).is_err()
                && let Some(hole) = holes.next()
            {
                self.move_node(last as u32, hole)?;
            }
        }
        self.set_nodes(kept);
        free_blocks(self.txn, &mut self.source, self.dir, self.raw, FileBlock(kept))
    }

    /// The key of an entry below a node, or in it.
    fn some_key(&self, mut place: Place) -> Result<u64> {
        for _ in 0..=LEVEL_MAX {
            let found = self.read(place, |node| match node.is_leaf() {
                true if node.count == 0 => Err(place.corrupt("count", 0)),
                true => Ok(Ok(node.entry(0)?.key())),
                false => Ok(Err(node.child(0).1)),
            })?;
            match found {
                Ok(key) => return Ok(key),
                Err(child) => [place, _] = self.places([child; 2])?,
            }
        }
        Err(place.corrupt("level", u64::from(LEVEL_MAX)))
    }

    /// Moves a node to the place of one that is given up.
    fn move_node(&mut self, node: u32, hole: u32) -> Result<()> {
        let [from, to] = self.places([node, hole])?;
        let (level, bytes) = self.read(from, |node| Ok((node.level, node.bytes.to_vec())))?;
        let key = self.some_key(from)?;
        let tree = Tree { dir: self.dir, raw: self.raw };
        let (path, index) = tree.descend_to(&self.txn.look, key, level + 1, &mut |above| {
            let index = if above.is_leaf() { None } else { Some(above.child_for(key)) };
            let index = index.filter(|&index| above.child(index).1 == node);
            index.ok_or_else(|| above.place.corrupt("child", u64::from(node)))
        })?;
        let parent = path.leaf();
        self.edit(to, |edit| node::copy_contents(edit, &bytes))?;
        self.edit(parent, |edit| node::put_child(edit, index, hole))
    }
}
