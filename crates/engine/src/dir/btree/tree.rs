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
use myriad_format::dir_tree::{DirTreeChild, LEVEL_MAX, OFFSET_SIZE, fan_out, leaf_room};
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

    /// Reads of the directory's map what a further node reads.
    pub fn read_end(&self, look: &Look<'_>) -> Result<()> {
        let nodes = nodes(self.raw, look.volume.cache.block_size());
        map::lookup(&mut &*look, self.raw, self.dir, FileBlock(nodes))?;
        match nodes.checked_sub(1) {
            Some(last) => mapped(&mut &*look, self.dir, self.raw, last as u32).map(drop),
            None => Ok(()),
        }
    }

    /// What the removal of the entry with a key changes, to whose leaf the way leads; `None`: it is the last one. All of that is read here, so
    /// whoever cannot do it has changed nothing.
    ///
    /// A node of which more than half is in use is left alone, one that has nothing left goes; any other joins a neighbour if a quarter of what they
    /// become stays free. It may as well be left alone: so a neighbour that is damaged is in nobody's way, nor is what has to be read to give up its
    /// place. Only of a node that has to go all must be sound.
    pub fn removal(&self, look: &Look<'_>, path: &Path, key: u64) -> Result<Option<Removal>> {
        // Nodes below this one have nothing but what leads to the entry.
        let Some(at) = path.steps.iter().rposition(|step| step.count > 1) else { return Ok(None) };
        let joined = self.joins(look, path, at, key).and_then(|joins| self.removal_with(look, path, at, joins));
        joined.or_else(|_| self.removal_with(look, path, at, Vec::new())).map(Some)
    }

    /// Which nodes join from `at` up, where the node loses the entry or what leads to it.
    fn joins(&self, look: &Look<'_>, path: &Path, mut at: usize, key: u64) -> Result<Vec<Join>> {
        let room = leaf_room(look.volume.cache.block_size());
        let mut joins = Vec::new();
        let Step { place, level, count, .. } = path.steps[at];
        let mut used = match level {
            0 => self.read(look, place, |leaf| {
                let entry = leaf.entry(leaf.find(key)?)?;
                let length = entry.end() - entry.offset + OFFSET_SIZE;
                let is_small = leaf.used().saturating_sub(length) * 2 <= room;
                Ok(if is_small { leaf.taken()? - length } else { room })
            })?,
            _ => (count - 1) * DirTreeChild::SIZE,
        };
        while at > 0
            && used * 2 <= room
            && let Some(join) = self.join(look, path.steps[at].place, used, path.steps[at - 1])?
        {
            used = (join.parent.count - 1) * DirTreeChild::SIZE;
            at -= 1;
            joins.push(join);
        }
        Ok(joins)
    }

    /// How a node of which so many bytes will be in use joins the one before or behind it under the same parent, if there is room.
    fn join(&self, look: &Look<'_>, place: Place, used: usize, parent: Step) -> Result<Option<Join>> {
        let children = self.read(look, parent.place, |node| Ok(node.children()))?;
        let index = parent.child;
        for left in [index.checked_sub(1), Some(index).filter(|&left| left + 1 < children.len())].into_iter().flatten()
        {
            let is_left = left == index;
            let other = self.child_place(look, children[if is_left { left + 1 } else { left }].1)?;
            if other.node == place.node {
                return Err(parent.place.corrupt("child", u64::from(other.node)));
            }
            let taken = self.read(look, other, |node| {
                if node.level + 1 != parent.level {
                    return Err(other.corrupt("level", u64::from(node.level)));
                }
                node.taken()
            })?;
            if (used + taken) * 4 <= leaf_room(look.volume.cache.block_size()) * 3 {
                let (into, from) = if is_left { (place, other) } else { (other, place) };
                return Ok(Some(Join { parent, left, into, from, key: children[left + 1].0 }));
            }
        }
        Ok(None)
    }

    /// What a removal changes in which these nodes join.
    fn removal_with(&self, look: &Look<'_>, path: &Path, at: usize, joins: Vec<Join>) -> Result<Removal> {
        let all = nodes(self.raw, look.volume.cache.block_size());
        let (mut pulled, mut moves) = (Vec::new(), Vec::new());
        let below = path.steps[at + 1..].iter().map(|step| step.place.node);
        let mut dropped: Vec<u32> = below.chain(joins.iter().map(|join| join.from.node)).collect();
        if dropped.is_empty() {
            return Ok(Removal { at, joins, pulled, moves, kept: all });
        }
        let root = path.steps[0];
        if at == joins.len() && root.level > 0 && root.count == 2 {
            // The root is to have one child, and takes that one's contents. If nothing has joined that, it may have one child itself.
            let mut next = match joins.last() {
                Some(join) => Some(join.into.node),
                None => Some(self.read(look, root.place, |node| Ok(node.child(1 - root.child).1))?),
            };
            let mut level = root.level;
            while let Some(child) = next {
                let place = self.child_place(look, child)?;
                level -= 1;
                next = self.read(look, place, |node| {
                    if node.level != level {
                        return Err(place.corrupt("level", u64::from(node.level)));
                    }
                    let is_sole = joins.is_empty() && level > 0 && node.count == 1;
                    Ok(is_sole.then(|| node.child(0).1))
                })?;
                dropped.push(child);
                pulled.push(place);
            }
        }
        dropped.sort_unstable();
        if let Some(pair) = dropped.windows(2).find(|pair| pair[0] == pair[1]) {
            // Two ways lead there.
            return Err(self.child_place(look, pair[0])?.corrupt("child", u64::from(pair[0])));
        }
        // Not the root, which is none of them.
        let kept = all - dropped.len() as u64;
        let mut holes = dropped.iter().copied().filter(|&node| u64::from(node) < kept);
        for last in kept..all {
            if dropped.binary_search(&(last as u32)).is_err()
                && let Some(hole) = holes.next()
            {
                let from = self.child_place(look, last as u32)?;
                let level = self.read(look, from, |node| Ok(node.level))?;
                let key = self.some_key(look, from)?;
                self.parent_of(look, from, level, key)?;
                moves.push(Move { from, to: self.child_place(look, hole)?, level, key });
            }
        }
        map::read_ahead(&mut &*look, self.raw, self.dir, FileBlock(kept))?;
        Ok(Removal { at, joins, pulled, moves, kept })
    }

    /// Where a node lies that another one leads to.
    fn child_place(&self, look: &Look<'_>, node: u32) -> Result<Place> {
        let place = self.place(look, node)?;
        let all = nodes(self.raw, look.volume.cache.block_size());
        if node == 0 || u64::from(node) >= all { Err(place.corrupt("child", u64::from(node))) } else { Ok(place) }
    }

    /// A key that belongs below a node, or into it. It does so still when others have joined the node.
    fn some_key(&self, look: &Look<'_>, mut place: Place) -> Result<u64> {
        for _ in 0..=LEVEL_MAX {
            let found = self.read(look, place, |node| match node.is_leaf() {
                true if node.count == 0 => Err(place.corrupt("count", 0)),
                true => Ok(Ok(node.entry(0)?.key())),
                false => Ok(Err(node.child(0).1)),
            })?;
            match found {
                Ok(key) => return Ok(key),
                Err(child) => place = self.child_place(look, child)?,
            }
        }
        Err(place.corrupt("level", u64::from(LEVEL_MAX)))
    }

    /// The node that leads to one of a level, to which a key belongs; and which of its children that is.
    fn parent_of(&self, look: &Look<'_>, child: Place, level: u8, key: u64) -> Result<(Place, usize)> {
        let (path, index) = self.descend_to(look, key, level + 1, &mut |above| {
            let index = if above.is_leaf() { None } else { Some(above.child_for(key)) };
            let index = index.filter(|&index| above.child(index).1 == child.node);
            index.ok_or_else(|| above.place.corrupt("child", u64::from(child.node)))
        })?;
        Ok((path.leaf(), index))
    }
}

/// What a removal changes, all of which has been read.
pub(super) struct Removal {
    /// The step of the way whose node loses the entry, or the child below which nothing else is.
    at: usize,
    /// Nodes that join then, from that one up.
    joins: Vec<Join>,
    /// Children whose contents the root takes, one after the other: it has no other.
    pulled: Vec<Place>,
    /// Nodes that take the places of some that go.
    moves: Vec<Move>,
    /// Nodes that the directory has then.
    kept: u64,
}

/// A node that takes in the one behind it, under the same parent.
struct Join {
    parent: Step,
    /// Which child of the parent it is.
    left: usize,
    into: Place,
    from: Place,
    /// By which the parent leads to the other one.
    key: u64,
}

/// A node, to which a key belongs, and where it moves.
struct Move {
    from: Place,
    to: Place,
    level: u8,
    key: u64,
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

    /// Removes the entry with a key, to whose leaf the way leads.
    pub fn remove(&mut self, path: &Path, key: u64, removal: &Removal) -> Result<()> {
        let Step { place, level, count, child } = path.steps[removal.at];
        if level == 0 {
            self.edit(place, |edit| node::remove_entry(edit, place, key))??;
        } else {
            self.edit(place, |edit| node::remove_child(edit, level, count, child))?;
        }
        for &Join { parent, left, into, from, key } in &removal.joins {
            self.txn.volume().counters.bump(Count::dir_merges);
            let bytes = self.read(from, |node| Ok(node.bytes.to_vec()))?;
            self.edit(into, |edit| node::append(edit, into, &Node::read(&bytes, from)?, key))??;
            self.edit(parent.place, |edit| node::remove_child(edit, parent.level, parent.count, left + 1))?;
        }
        for &child in &removal.pulled {
            let bytes = self.read(child, |node| Ok(node.bytes.to_vec()))?;
            self.edit(path.steps[0].place, |edit| node::copy_contents(edit, &bytes))?;
        }
        for moved in &removal.moves {
            self.move_node(moved)?;
        }
        if removal.kept == self.nodes() {
            return Ok(());
        }
        self.set_nodes(removal.kept);
        free_blocks(self.txn, &mut self.source, self.dir, self.raw, FileBlock(removal.kept))
    }

    /// Moves a node to the place of one that nothing leads to any more.
    fn move_node(&mut self, moved: &Move) -> Result<()> {
        let &Move { from, to, level, key } = moved;
        let tree = Tree { dir: self.dir, raw: self.raw };
        let (above, index) = tree.parent_of(&self.txn.look, from, level, key)?;
        let bytes = self.read(from, |node| Ok(node.bytes.to_vec()))?;
        self.edit(to, |edit| node::copy_contents(edit, &bytes))?;
        self.edit(above, |edit| node::put_child(edit, index, to.node))
    }
}
