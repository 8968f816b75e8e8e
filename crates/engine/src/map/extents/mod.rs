//! A map of extents (`map=extents`): in the inode's fork, or in a B+ tree whose root the fork holds.
//!
//! ```text
//! NONE <-> EXTENTS (up to 2; 1 beside an attribute root) <-> TREE
//! NONE <-> DIRECTORY (index root, 1 extent)              <-> DIRECTORY_TREE
//! ```
//!
//! The functions change a copy of the inode that the caller writes back, also after an error: a refusal for lack of space
//! leaves what the map says as it was, but may have split an extent in two that say the same.
//!
//! Invariants
//!   1. Extents are sorted by file block and do not overlap; none is longer than `LENGTH_MAX`.
//!   2. The inode's `blocks` counts the extents' blocks and the tree's nodes, besides what others put there.
//!   3. A map that fits the fork lies in the fork, unless `leave_attr_room` has just moved it out.
//!   4. An emptied map is NONE; that of a directory that still has an index is DIRECTORY with an extent of zeros.
//!
//! Not here: forks that are no map (INLINE, SHORT_LINK, devices): they are `Corrupt` to us.

#[cfg(test)]
mod tests;

use super::mapping::{FILE_END, Mapping};
use crate::btree::Tree;
use crate::edit::{BlockRead, BlockStore, NewBlock, NodeSource};
use crate::error::Result;
use myriad_format::btree::EXTENTS;
use myriad_format::extent::{Extent, LENGTH_MAX, RawExtent};
use myriad_format::fork::{Fork, InlineExtents, TreeRoot};
use myriad_format::inode::RawInode;
use myriad_format::{Corrupt, FileBlock, FsBlock, Geometry, Ino};
use std::ops::{ControlFlow, Range};

/// Most extents a fork holds.
const INLINE_MAX: usize = InlineExtents::MAX;

type Checked<T> = std::result::Result<T, Corrupt>;

/// Extents in the fork.
#[derive(Clone, Copy)]
struct Inline {
    extents: [Extent; INLINE_MAX],
    count: usize,
}

#[derive(Clone, Copy)]
enum Root {
    Inline(Inline),
    Tree(Tree),
}

/// Levels of the tree that maps the file; 0: it has none.
pub(super) fn levels(inode: &RawInode, ino: Ino, geometry: &Geometry) -> Result<u64> {
    match Root::read(inode, ino, geometry)? {
        Root::Inline(_) => Ok(0),
        Root::Tree(tree) => Ok(u64::from(tree.level) + 1),
    }
}

/// Whether the extents fit the fork, so that they are few.
pub(super) fn fits_one_txn(inode: &RawInode, ino: Ino) -> Result<bool> {
    Ok(!matches!(Fork::decode(inode, ino)?, Fork::Tree(_) | Fork::DirectoryTree { .. }))
}

/// What `file_block` of the file is.
pub(super) fn lookup<S: BlockRead>(
    store: &mut S,
    inode: &RawInode,
    ino: Ino,
    file_block: FileBlock,
) -> Result<Mapping> {
    let geometry = store.geometry();
    let root = Root::read(inode, ino, &geometry)?;
    if let Some(extent) = root.floor(store, ino, file_block)?
        && extent.end() > file_block
    {
        return Ok(Mapping::Mapped(extent));
    }
    match root.ceiling(store, ino, file_block)? {
        None => Ok(Mapping::Hole { until: FILE_END }),
        Some(extent) if extent.file_block > file_block => Ok(Mapping::Hole { until: extent.file_block }),
        // The floor would have been this one, were the tree in order.
        Some(extent) => Err(impossible(ino, &extent).into()),
    }
}

/// As `map::read_ahead`.
pub(super) fn read_ahead<S: BlockRead>(store: &mut S, inode: &RawInode, ino: Ino, from: FileBlock) -> Result<()> {
    for_each_from(store, inode, ino, from, |_| ControlFlow::Continue(()))?;
    let geometry = store.geometry();
    let Root::Tree(tree) = Root::read(inode, ino, &geometry)? else { return Ok(()) };
    // The leaf before may take in what is left of the first one.
    let mut left = EXTENTS.leaf_max(geometry.block_size());
    tree.for_each_back_from(store, from.0, |_| match left.checked_sub(1) {
        Some(less) => {
            left = less;
            ControlFlow::Continue(())
        }
        None => ControlFlow::Break(()),
    })
}

/// Visits the extents that end after `from`, in order, until `f` breaks. `f` must not use the store.
fn for_each_from<S: BlockRead>(
    store: &mut S,
    inode: &RawInode,
    ino: Ino,
    from: FileBlock,
    mut f: impl FnMut(Extent) -> ControlFlow<()>,
) -> Result<()> {
    let geometry = store.geometry();
    let root = Root::read(inode, ino, &geometry)?;
    match root {
        Root::Inline(inline) => {
            for extent in inline.list() {
                if extent.end() > from && f(*extent).is_break() {
                    break;
                }
            }
            Ok(())
        }
        Root::Tree(tree) => {
            let start = root.floor(store, ino, from)?.map_or(from, |extent| extent.file_block);
            let mut end = FileBlock(0);
            let mut damage = Ok(());
            tree.for_each_from(store, start.0, |record| match decode(record, &geometry, ino) {
                Ok(extent) if extent.file_block < end => {
                    damage = Err(impossible(ino, &extent));
                    ControlFlow::Break(())
                }
                Ok(extent) => {
                    end = extent.end();
                    if end > from { f(extent) } else { ControlFlow::Continue(()) }
                }
                Err(corrupt) => {
                    damage = Err(corrupt);
                    ControlFlow::Break(())
                }
            })?;
            Ok(damage?)
        }
    }
}

/// Maps a hole to `extent`. It joins its neighbours where they continue each other.
pub(super) fn insert<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    extent: Extent,
) -> Result<()> {
    assert!(extent.length > 0 && extent.length <= LENGTH_MAX && extent.end() <= FILE_END);
    edit(store, source, inode, ino, |map| map.add(extent))
}

/// As `map::remove`.
pub(super) fn remove<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    range: Range<FileBlock>,
    max_extents: usize,
    freed: &mut Vec<(FsBlock, u32)>,
) -> Result<Option<FileBlock>> {
    assert!(max_extents > 0);
    edit(store, source, inode, ino, |map| map.cut(range, max_extents, freed))
}

/// Makes the unwritten blocks of `range` written ones.
pub(super) fn mark_written<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    range: Range<FileBlock>,
) -> Result<()> {
    edit(store, source, inode, ino, |map| map.write(range))
}

/// Moves the extents into a tree if they lie where an attribute root would; to be called before `ATTR_BLOCKS` is set.
pub(super) fn leave_attr_room<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
) -> Result<()> {
    edit(store, source, inode, ino, |map| match map.root {
        Root::Inline(inline) if inline.count > 1 => map.plant(&inline),
        _ => Ok(()),
    })
}

impl Inline {
    fn empty() -> Self {
        let none = Extent { file_block: FileBlock(0), start: FsBlock::NONE, length: 0, unwritten: false };
        Self { extents: [none; INLINE_MAX], count: 0 }
    }

    fn list(&self) -> &[Extent] {
        &self.extents[..self.count]
    }

    fn find(&self, file_block: FileBlock) -> Option<usize> {
        self.list().iter().position(|extent| extent.file_block == file_block)
    }

    fn insert(&mut self, at: usize, extent: Extent) {
        self.extents.copy_within(at..self.count, at + 1);
        self.extents[at] = extent;
        self.count += 1;
    }

    fn remove(&mut self, at: usize) {
        self.extents.copy_within(at + 1..self.count, at);
        self.count -= 1;
    }
}

impl Root {
    fn read(inode: &RawInode, ino: Ino, geometry: &Geometry) -> Checked<Self> {
        let bad = |field, value| Err(Corrupt::Inode { ino, field, value });
        let tree = |root: TreeRoot| {
            if root.block.is_none() || root.block.0 >= geometry.block_count {
                return bad("tree root", root.block.0);
            }
            Ok(Self::Tree(Tree { kind: EXTENTS, root: root.block, level: u16::from(root.level), owner: ino.0 }))
        };
        let mut inline = Inline::empty();
        match Fork::decode(inode, ino)? {
            Fork::None => {}
            Fork::Extents(extents) => {
                for raw in extents.list() {
                    let extent = Extent::decode(raw, geometry, ino)?;
                    if inline.list().last().is_some_and(|last| last.end() > extent.file_block) {
                        return Err(impossible(ino, &extent));
                    }
                    inline.insert(inline.count, extent);
                }
            }
            Fork::Directory { extent, .. } => {
                if let Some(raw) = extent {
                    inline.insert(0, Extent::decode(&raw, geometry, ino)?);
                }
            }
            Fork::Tree(root) | Fork::DirectoryTree { tree: root, .. } => return tree(root),
            Fork::Device(_) | Fork::Inline | Fork::ShortLink(_) | Fork::Blocks { .. } => {
                return bad("fork_kind", u64::from(inode.fork_kind));
            }
        }
        Ok(Self::Inline(inline))
    }

    /// Puts the map into the inode. The root of a directory's index stays.
    fn write(&self, inode: &mut RawInode) {
        let index = inode.index_root().unwrap_or(FsBlock::NONE);
        let fork = match self {
            Self::Tree(tree) => {
                let tree = TreeRoot { block: tree.root, level: tree.level as u8 };
                if inode.is_dir() { Fork::DirectoryTree { index, tree } } else { Fork::Tree(tree) }
            }
            Self::Inline(inline) if inline.count == 0 && index.is_none() => Fork::None,
            Self::Inline(inline) if inode.is_dir() => {
                Fork::Directory { index, extent: inline.list().first().map(Extent::encode) }
            }
            Self::Inline(inline) => {
                let mut raw = [RawExtent::zeroed(); INLINE_MAX];
                raw.iter_mut().zip(inline.list()).for_each(|(raw, extent)| *raw = extent.encode());
                Fork::Extents(InlineExtents::new(&raw[..inline.count]).expect("no more than a fork holds"))
            }
        };
        fork.encode(inode);
    }

    /// The extent that starts at `file_block` or last before it.
    fn floor<S: BlockRead>(&self, store: &mut S, ino: Ino, file_block: FileBlock) -> Result<Option<Extent>> {
        match self {
            Self::Inline(inline) => {
                Ok(inline.list().iter().rev().find(|extent| extent.file_block <= file_block).copied())
            }
            Self::Tree(tree) => {
                let Some(record) = tree.floor(store, file_block.0)? else { return Ok(None) };
                Ok(Some(decode(&record, &store.geometry(), ino)?))
            }
        }
    }

    /// The extent that starts at `file_block` or first after it.
    fn ceiling<S: BlockRead>(&self, store: &mut S, ino: Ino, file_block: FileBlock) -> Result<Option<Extent>> {
        match self {
            Self::Inline(inline) => Ok(inline.list().iter().find(|extent| extent.file_block >= file_block).copied()),
            Self::Tree(tree) => {
                let Some(record) = tree.ceiling(store, file_block.0)? else { return Ok(None) };
                Ok(Some(decode(&record, &store.geometry(), ino)?))
            }
        }
    }
}

/// Counts the nodes that come and go.
struct Nodes<'a, N> {
    inner: &'a mut N,
    count: i64,
}

impl<S: BlockStore, N: NodeSource<S>> NodeSource<S> for Nodes<'_, N> {
    fn allocate(&mut self, store: &mut S) -> Result<NewBlock> {
        let node = self.inner.allocate(store)?;
        self.count += 1;
        Ok(node)
    }

    fn free(&mut self, store: &mut S, block: FsBlock) -> Result<()> {
        self.count -= 1;
        self.inner.free(store, block)
    }
}

/// A map open for change.
struct Editor<'a, S, N> {
    store: &'a mut S,
    nodes: Nodes<'a, N>,
    root: Root,
    ino: Ino,
    /// Extents the fork has room for.
    inline_max: usize,
    /// Blocks mapped and unmapped so far.
    blocks: i64,
    /// The tree lost a record and may fit the fork again.
    shrunk: bool,
}

/// Opens the map, runs `f`, and puts into the inode what has become of the map.
fn edit<S: BlockStore, N: NodeSource<S>, R>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    f: impl FnOnce(&mut Editor<'_, S, N>) -> Result<R>,
) -> Result<R> {
    let geometry = store.geometry();
    let root = Root::read(inode, ino, &geometry)?;
    let inline_max = if inode.is_dir() { 1 } else { inode.fork_room() / RawExtent::SIZE };
    let nodes = Nodes { inner: source, count: 0 };
    let mut map = Editor { store, nodes, root, ino, inline_max, blocks: 0, shrunk: false };
    let mut result = f(&mut map);
    if map.shrunk && result.is_ok() {
        result = map.fold().and(result);
    }
    let (root, change) = (map.root, map.blocks + map.nodes.count);
    root.write(inode);
    inode.add_blocks(change);
    result
}

impl<S: BlockStore, N: NodeSource<S>> Editor<'_, S, N> {
    fn add(&mut self, new: Extent) -> Result<()> {
        let left = self.root.floor(self.store, self.ino, new.file_block)?;
        let right = self.root.ceiling(self.store, self.ino, new.file_block)?;
        if left.is_some_and(|left| left.end() > new.file_block)
            || right.is_some_and(|right| right.file_block < new.end())
        {
            return Err(impossible(self.ino, &new).into());
        }
        let left = left.filter(|left| continues(left, &new));
        let joined = left.map_or(new, |left| Extent { length: left.length + new.length, ..left });
        let right = right.filter(|right| continues(&joined, right));
        match (left, right) {
            (None, None) => self.insert(new)?,
            (Some(_), None) => self.replace(joined)?,
            (None, Some(right)) => self.rekey(right.file_block, Extent { length: new.length + right.length, ..new })?,
            (Some(_), Some(right)) => {
                self.remove(right.file_block)?;
                self.replace(Extent { length: joined.length + right.length, ..joined })?;
            }
        }
        self.blocks += i64::from(new.length);
        Ok(())
    }

    fn cut(
        &mut self,
        range: Range<FileBlock>,
        max_extents: usize,
        freed: &mut Vec<(FsBlock, u32)>,
    ) -> Result<Option<FileBlock>> {
        let mut at = range.start;
        for done in 0..max_extents {
            let extent = match self.first_from(at) {
                Ok(extent) => extent.filter(|extent| extent.file_block < range.end),
                // It is the first thing that the next call finds.
                Err(_) if done > 0 => return Ok(Some(at)),
                Err(error) => return Err(error),
            };
            let Some(extent) = extent else { return Ok(None) };
            let from = extent.file_block.max(at);
            let to = extent.end().min(range.end);
            let head = part(&extent, extent.file_block, from);
            let tail = part(&extent, to, extent.end());
            match (head, tail) {
                (None, None) => match self.remove(extent.file_block) {
                    Ok(()) => {}
                    // So is this: a removal reads all that it has to before its first change, the next root included.
                    Err(_) if done > 0 => return Ok(Some(at)),
                    Err(error) => return Err(error),
                },
                (Some(head), None) => self.replace(head)?,
                (None, Some(tail)) => self.rekey(extent.file_block, tail)?,
                (Some(head), Some(tail)) => {
                    // The insertion may be refused; until then nothing has changed.
                    self.insert(tail)?;
                    self.replace(head)?;
                }
            }
            let length = (to.0 - from.0) as u32;
            freed.push((extent.start.offset_by(from.0 - extent.file_block.0), length));
            self.blocks -= i64::from(length);
            at = to;
            if at >= range.end {
                return Ok(None);
            }
        }
        Ok(Some(at))
    }

    fn write(&mut self, range: Range<FileBlock>) -> Result<()> {
        let mut at = range.start;
        while at < range.end
            && let Some(extent) = self.first_from(at)?.filter(|extent| extent.file_block < range.end)
        {
            at = extent.end();
            if !extent.unwritten {
                continue;
            }
            let from = extent.file_block.max(range.start);
            let to = extent.end().min(range.end);
            let head = part(&extent, extent.file_block, from);
            let tail = part(&extent, to, extent.end());
            let Some(middle) = part(&extent, from, to) else { continue };
            let middle = Extent { unwritten: false, ..middle };

            // A writer that goes through space reserved ahead moves the border between two extents.
            if head.is_none()
                && let Some(tail) = tail
                && let Some(left) = self.left_of(&middle)?
            {
                self.rekey(extent.file_block, tail)?;
                self.replace(Extent { length: left.length + middle.length, ..left })?;
                continue;
            }
            // Each refusal in between leaves unwritten extents that say what one said before.
            if let Some(tail) = tail {
                self.insert(tail)?;
                self.replace(Extent { length: extent.length - tail.length, ..extent })?;
            }
            if let Some(head) = head {
                self.insert(middle)?;
                self.replace(head)?;
            } else {
                self.replace(middle)?;
            }
            self.settle(middle)?;
        }
        Ok(())
    }

    /// Joins an extent of the map with its neighbours.
    fn settle(&mut self, mut extent: Extent) -> Result<()> {
        let right = self.root.ceiling(self.store, self.ino, extent.end())?;
        if let Some(right) = right.filter(|right| continues(&extent, right)) {
            self.remove(right.file_block)?;
            extent.length += right.length;
            self.replace(extent)?;
        }
        if let Some(left) = self.left_of(&extent)? {
            self.remove(extent.file_block)?;
            self.replace(Extent { length: left.length + extent.length, ..left })?;
        }
        Ok(())
    }

    /// The extent that `extent` continues.
    fn left_of(&mut self, extent: &Extent) -> Result<Option<Extent>> {
        let Some(before) = extent.file_block.0.checked_sub(1) else { return Ok(None) };
        let left = self.root.floor(self.store, self.ino, FileBlock(before))?;
        Ok(left.filter(|left| continues(left, extent)))
    }

    /// The extent that `at` lies in, or the first after it.
    fn first_from(&mut self, at: FileBlock) -> Result<Option<Extent>> {
        let around = self.root.floor(self.store, self.ino, at)?.filter(|extent| extent.end() > at);
        if around.is_some() {
            return Ok(around);
        }
        self.root.ceiling(self.store, self.ino, at)
    }

    fn insert(&mut self, extent: Extent) -> Result<()> {
        match &mut self.root {
            Root::Inline(inline) if inline.count < self.inline_max => {
                let at = inline.list().partition_point(|other| other.file_block < extent.file_block);
                inline.insert(at, extent);
                return Ok(());
            }
            Root::Inline(inline) => {
                let inline = *inline;
                self.plant(&inline)?;
            }
            Root::Tree(_) => {}
        }
        let Root::Tree(tree) = &mut self.root else { unreachable!("planted above") };
        tree.insert(self.store, &mut self.nodes, &encode(&extent))
    }

    /// Moves the extents of the fork into a tree.
    fn plant(&mut self, inline: &Inline) -> Result<()> {
        let mut tree = Tree::create(EXTENTS, self.ino.0, self.store, &mut self.nodes)?;
        for extent in inline.list() {
            tree.insert(self.store, &mut self.nodes, &encode(extent))?;
        }
        self.root = Root::Tree(tree);
        Ok(())
    }

    /// Moves the extents back into the fork if they fit.
    fn fold(&mut self) -> Result<()> {
        let Root::Tree(mut tree) = self.root else { return Ok(()) };
        let Some(count) = tree.leaf_count(self.store)?.filter(|&count| count <= self.inline_max) else { return Ok(()) };
        let mut inline = Inline::empty();
        let mut at = FileBlock(0);
        for _ in 0..count {
            let Some(extent) = self.root.ceiling(self.store, self.ino, at)? else { break };
            inline.insert(inline.count, extent);
            at = extent.end();
        }
        tree.free_all(self.store, &mut self.nodes)?;
        self.root = Root::Inline(inline);
        Ok(())
    }

    fn remove(&mut self, file_block: FileBlock) -> Result<()> {
        let found = match &mut self.root {
            Root::Inline(inline) => inline.find(file_block).map(|at| inline.remove(at)).is_some(),
            Root::Tree(tree) => {
                self.shrunk = true;
                tree.remove(self.store, &mut self.nodes, file_block.0)?
            }
        };
        self.expect(found, file_block)
    }

    fn replace(&mut self, extent: Extent) -> Result<()> {
        let found = match &mut self.root {
            Root::Inline(inline) => inline.find(extent.file_block).map(|at| inline.extents[at] = extent).is_some(),
            Root::Tree(tree) => tree.replace(self.store, &encode(&extent))?,
        };
        self.expect(found, extent.file_block)
    }

    /// Puts an extent in the place of the one at `old`; no other lies between them.
    fn rekey(&mut self, old: FileBlock, extent: Extent) -> Result<()> {
        let found = match &mut self.root {
            Root::Inline(inline) => inline.find(old).map(|at| inline.extents[at] = extent).is_some(),
            Root::Tree(tree) => tree.rekey(self.store, &mut self.nodes, old.0, &encode(&extent))?,
        };
        self.expect(found, old)
    }

    /// A search found the extent; if it is not there to be changed, the tree is out of order.
    fn expect(&self, found: bool, file_block: FileBlock) -> Result<()> {
        if found {
            return Ok(());
        }
        Err(Corrupt::Inode { ino: self.ino, field: "order of extents", value: file_block.0 }.into())
    }
}

/// Whether `right` is what `left` would be if it were longer.
fn continues(left: &Extent, right: &Extent) -> bool {
    left.end() == right.file_block
        && left.start.offset_by(u64::from(left.length)) == right.start
        && left.unwritten == right.unwritten
        && left.length + right.length <= LENGTH_MAX
}

/// The part of `extent` from `from` to `to`, if there is any.
fn part(extent: &Extent, from: FileBlock, to: FileBlock) -> Option<Extent> {
    (from < to).then(|| Extent {
        file_block: from,
        start: extent.start.offset_by(from.0 - extent.file_block.0),
        length: (to.0 - from.0) as u32,
        ..*extent
    })
}

fn encode(extent: &Extent) -> [u8; RawExtent::SIZE] {
    let mut bytes = [0; RawExtent::SIZE];
    *RawExtent::read_mut(&mut bytes) = extent.encode();
    bytes
}

fn decode(record: &[u8], geometry: &Geometry, ino: Ino) -> Checked<Extent> {
    Extent::decode(RawExtent::read(record), geometry, ino)
}

#[cold]
fn impossible(ino: Ino, extent: &Extent) -> Corrupt {
    let raw = extent.encode();
    Corrupt::Extent { ino, word0: raw.word0.get(), word1: raw.word1.get() }
}
