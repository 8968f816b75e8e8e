//! B+ trees over metadata blocks: free space by start and by length, inode chunks, extents.
//!
//! A `Tree` is a value: kind, root, level and owner. Whoever owns the tree stores root and level and writes them back
//! after an operation that changes them. Layout: `myriad_format::btree`.
//!
//! Invariants
//!   1. Keys rise strictly from left to right. No node is empty, but the root of an empty tree, which is a leaf.
//!   2. An inner root has at least two entries.
//!   3. A separator is at most the smallest key to its right and greater than every key to its left. Above leaves it
//!      has as many trailing zero bits as that allows, so records may shrink and grow under it (`rekey`).
//!   4. Refused for lack of space means unchanged: nodes are counted and allocated before the first byte changes. After
//!      any other error in the middle of a change the caller has to shut down.
//!
//! Every node is checked when it is visited (kind and checksum by the store; owner, level, count, child here), each
//! step goes a level down, and scans insist on rising keys: a hostile tree yields `Corrupt`, never a loop or a panic.
//!
//! Locking: the owner's lock (group or inode) is held around every call.

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use crate::edit::{BlockEdit, BlockRead, BlockStore, NewBlock, NodeSource};
use crate::error::{Result, refuse};
use myriad_format::btree::{ChildEntry, LEVEL_MAX, NodeHeader, TreeKind};
use myriad_format::{Corrupt, FsBlock, header};
use rustix::io::Errno;
use std::mem::offset_of;
use std::ops::ControlFlow;

/// Largest record of any tree.
pub(crate) const RECORD_MAX: usize = 32;
const BODY: usize = NodeHeader::SIZE;
const LEVELS: usize = LEVEL_MAX as usize + 1;

/// A record by value, padded with zeros.
pub(crate) type Record = [u8; RECORD_MAX];

/// What reading a node gives before the store's own errors are added.
type Checked<T> = std::result::Result<T, Corrupt>;

/// Key of a record: its first 8 bytes, shifted right as the kind says.
pub(crate) fn key_of(kind: TreeKind, record: &[u8]) -> u64 {
    word(record, 0) >> kind.key_shift
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    pub kind: TreeKind,
    pub root: FsBlock,
    /// Levels below the root.
    pub level: u16,
    /// Inode or group number in the header of every node.
    pub owner: u64,
}

/// A checked node: what it holds is packed from `BODY` on.
struct Node<'a> {
    bytes: &'a [u8],
    block: FsBlock,
    count: usize,
    stride: usize,
    shift: u32,
}

impl<'a> Node<'a> {
    fn key(&self, index: usize) -> u64 {
        word(self.bytes, BODY + index * self.stride) >> self.shift
    }

    fn item(&self, index: usize) -> &'a [u8] {
        &self.bytes[BODY + index * self.stride..][..self.stride]
    }

    fn child(&self, index: usize, limit: u64) -> Checked<FsBlock> {
        let child = word(self.bytes, BODY + index * self.stride + 8);
        if child == 0 || child >= limit {
            return Err(Corrupt::TreeNode { block: self.block, field: "child", value: child });
        }
        Ok(FsBlock(child))
    }

    /// First of the items from `first` on whose key is greater than `key`.
    fn upper(&self, first: usize, key: u64) -> usize {
        let (mut base, mut len) = (first, self.count - first);
        // Without a branch on the comparison: the probes of a binary search cannot be predicted.
        while len > 1 {
            let half = len / 2;
            base += usize::from(self.key(base + half - 1) <= key) * half;
            len -= half;
        }
        base + usize::from(len == 1 && self.key(base) <= key)
    }

    /// First item whose key is at least `key`.
    fn lower(&self, key: u64) -> usize {
        if key == 0 { 0 } else { self.upper(0, key - 1) }
    }

    fn find(&self, key: u64) -> Option<usize> {
        let after = self.upper(0, key);
        (after > 0 && self.key(after - 1) == key).then(|| after - 1)
    }

    /// Entry of an inner node to follow for `key`; the first counts as minus infinity.
    fn entry_for(&self, key: u64) -> usize {
        self.upper(1, key) - 1
    }
}

/// An inner node on the way to a leaf.
#[derive(Clone, Copy)]
struct Step {
    block: FsBlock,
    /// Entry followed.
    index: usize,
    count: usize,
}

/// Steps by level; that of level 0 is unused.
struct Path([Step; LEVELS]);

impl Path {
    fn new() -> Self {
        Self([Step { block: FsBlock::NONE, index: 0, count: 0 }; LEVELS])
    }
}

/// Where a descent arrived: keys from `low` up to, not including, `high` belong into this leaf.
struct Leaf {
    block: FsBlock,
    low: u64,
    high: Option<u64>,
}

/// What the removal of a record changes.
struct Removal {
    path: Path,
    leaf: FsBlock,
    /// Where in the leaf the record lies.
    at: usize,
    /// By level.
    fates: [Fate; LEVELS],
}

/// What becomes of a node that lost an item.
#[derive(Clone, Copy)]
enum Fate {
    Stays,
    /// It is empty: freed.
    Goes,
    /// Its items go to the left neighbour; with the separator between them.
    IntoLeft(FsBlock, u64),
    /// It takes the right neighbour's items.
    TakesRight(FsBlock, u64),
}

impl Tree {
    /// A new, empty tree.
    pub fn create<S: BlockStore, N: NodeSource<S>>(
        kind: TreeKind,
        owner: u64,
        store: &mut S,
        source: &mut N,
    ) -> Result<Self> {
        let root = source.allocate(store)?;
        Self::create_at(kind, owner, store, root)
    }

    /// A new, empty tree whose root the caller has placed.
    pub fn create_at<S: BlockStore>(kind: TreeKind, owner: u64, store: &mut S, root: NewBlock) -> Result<Self> {
        let tree = Self { kind, root: root.block, level: 0, owner };
        tree.init(store, root, 0, &[])?;
        Ok(tree)
    }

    pub fn get<S: BlockRead>(&self, store: &mut S, key: u64) -> Result<Option<Record>> {
        let leaf = self.descend(store, key, |_, _| ())?;
        self.visit(store, leaf.block, 0, |node| Ok(node.find(key).map(|at| padded(node.item(at)))))
    }

    /// The record with the largest key up to `key`.
    pub fn floor<S: BlockRead>(&self, store: &mut S, key: u64) -> Result<Option<Record>> {
        let leaf = self.descend(store, key, |_, _| ())?;
        let mut found = self.visit(store, leaf.block, 0, |node| match node.upper(0, key).checked_sub(1) {
            // In a node that is not sorted the search may end anywhere.
            Some(at) if node.key(at) > key => Err(unsorted(node, node.key(at))),
            at => Ok(at.map(|at| padded(node.item(at)))),
        })?;
        if found.is_none() && leaf.low > 0 {
            self.for_each_back_from(store, leaf.low - 1, |record| {
                found = Some(padded(record));
                ControlFlow::Break(())
            })?;
        }
        Ok(found)
    }

    /// The record with the smallest key from `key` on.
    pub fn ceiling<S: BlockRead>(&self, store: &mut S, key: u64) -> Result<Option<Record>> {
        let mut found = None;
        self.for_each_from(store, key, |record| {
            found = Some(padded(record));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    pub fn first<S: BlockRead>(&self, store: &mut S) -> Result<Option<Record>> {
        self.ceiling(store, 0)
    }

    pub fn last<S: BlockRead>(&self, store: &mut S) -> Result<Option<Record>> {
        self.floor(store, u64::MAX)
    }

    /// Records in a tree that is a single leaf; `None` for a deeper one.
    pub fn leaf_count<S: BlockRead>(&self, store: &mut S) -> Result<Option<usize>> {
        if self.level > 0 {
            return Ok(None);
        }
        self.visit(store, self.root, 0, |node| Ok(Some(node.count)))
    }

    /// Visits the records from `key` on, in rising order, until `f` breaks. `f` must not use the store.
    pub fn for_each_from<S: BlockRead>(
        &self,
        store: &mut S,
        mut key: u64,
        mut f: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut last = None;
        loop {
            let leaf = self.descend(store, key, |_, _| ())?;
            let flow = self.visit(store, leaf.block, 0, |node| {
                for index in node.lower(key)..node.count {
                    let at = node.key(index);
                    // In a node that is not sorted the search may end anywhere.
                    if at < key || last.is_some_and(|last| at <= last) {
                        return Err(unsorted(node, at));
                    }
                    last = Some(at);
                    if f(node.item(index)).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(ControlFlow::Continue(()))
            })?;
            match leaf.high {
                Some(high) if flow.is_continue() => key = high,
                _ => return Ok(()),
            }
        }
    }

    /// Visits the records up to `key`, in falling order, until `f` breaks. `f` must not use the store.
    pub fn for_each_back_from<S: BlockRead>(
        &self,
        store: &mut S,
        mut key: u64,
        mut f: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut last = None;
        loop {
            let leaf = self.descend(store, key, |_, _| ())?;
            let flow = self.visit(store, leaf.block, 0, |node| {
                for index in (0..node.upper(0, key)).rev() {
                    let at = node.key(index);
                    if at > key || last.is_some_and(|last| at >= last) {
                        return Err(unsorted(node, at));
                    }
                    last = Some(at);
                    if f(node.item(index)).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(ControlFlow::Continue(()))
            })?;
            if flow.is_break() || leaf.low == 0 {
                return Ok(());
            }
            key = leaf.low - 1;
        }
    }

    /// Adds a record whose key is not there yet.
    pub fn insert<S: BlockStore, N: NodeSource<S>>(
        &mut self,
        store: &mut S,
        source: &mut N,
        record: &[u8],
    ) -> Result<()> {
        let kind = self.kind;
        assert_eq!(record.len(), kind.record_size);
        let key = key_of(kind, record);
        let mut path = Path::new();
        let leaf = self.descend(store, key, |level, step| path.0[usize::from(level)] = step)?;
        let (mut at, count) = self.visit(store, leaf.block, 0, |node| match node.find(key) {
            Some(_) => Err(unsorted(node, key)),
            None => Ok((node.upper(0, key), node.count)),
        })?;
        if count < self.max_at(store, 0) {
            return store.change(leaf.block, kind.block, |edit| insert_item(edit, at, record));
        }

        let inner_max = self.max_at(store, 1);
        let height = usize::from(self.level) + 1;
        let full = 1 + (1..height).take_while(|&level| path.0[level].count >= inner_max).count();
        let grows = full == height;
        if grows && self.level == LEVEL_MAX {
            return refuse(Errno::NOSPC);
        }
        let mut fresh = [NewBlock::free(FsBlock::NONE); LEVELS + 1];
        let need = full + usize::from(grows);
        for index in 0..need {
            match source.allocate(store) {
                // A free-space tree that offers our own nodes is damaged.
                Ok(NewBlock { block, .. }) if block == leaf.block || path.0.iter().any(|step| step.block == block) => {
                    return Err(Corrupt::TreeNode { block, field: "free block", value: block.0 }.into());
                }
                Ok(node) => fresh[index] = node,
                Err(error) => {
                    for node in &fresh[..index] {
                        source.free(store, node.block)?;
                    }
                    return Err(error);
                }
            }
        }

        let mut entry = padded(record);
        let mut len = kind.record_size;
        let mut block = leaf.block;
        for (level, &right) in fresh[..full].iter().enumerate() {
            let separator = self.split(store, block, level as u16, right, at, &entry[..len])?;
            entry = padded(&child_entry(separator, right.block));
            len = ChildEntry::SIZE;
            if level + 1 < height {
                at = path.0[level + 1].index + 1;
                block = path.0[level + 1].block;
            }
        }
        if grows {
            let mut entries = [0; 2 * ChildEntry::SIZE];
            entries[..16].copy_from_slice(&child_entry(0, self.root));
            entries[16..].copy_from_slice(&entry[..16]);
            self.init(store, fresh[full], self.level + 1, &entries)?;
            self.root = fresh[full].block;
            self.level += 1;
            Ok(())
        } else {
            store.change(block, kind.block, |edit| insert_item(edit, at, &entry[..len]))
        }
    }

    /// Overwrites the record with the same key; `false` if there is none.
    pub fn replace<S: BlockStore>(&self, store: &mut S, record: &[u8]) -> Result<bool> {
        assert_eq!(record.len(), self.kind.record_size);
        let key = key_of(self.kind, record);
        let leaf = self.descend(store, key, |_, _| ())?;
        let Some(at) = self.visit(store, leaf.block, 0, |node| Ok(node.find(key)))? else { return Ok(false) };
        store.change(leaf.block, self.kind.block, |edit| edit.put(BODY + at * record.len(), record))?;
        Ok(true)
    }

    /// Overwrites the record at key `old` with one of another key; `false` if there is none. As long as the new key
    /// belongs into the same leaf, no node comes or goes.
    pub fn rekey<S: BlockStore, N: NodeSource<S>>(
        &mut self,
        store: &mut S,
        source: &mut N,
        old: u64,
        record: &[u8],
    ) -> Result<bool> {
        assert_eq!(record.len(), self.kind.record_size);
        let new = key_of(self.kind, record);
        let leaf = self.descend(store, old, |_, _| ())?;
        let found = self.visit(store, leaf.block, 0, |node| {
            let Some(at) = node.find(old) else { return Ok(None) };
            if new != old && node.find(new).is_some() {
                return Err(unsorted(node, new));
            }
            Ok(Some((at, node.lower(new))))
        })?;
        let Some((at, target)) = found else { return Ok(false) };
        if new < leaf.low || leaf.high.is_some_and(|high| new >= high) {
            self.insert(store, source, record)?;
            return self.remove(store, source, old);
        }
        let stride = record.len();
        store.change(leaf.block, self.kind.block, |edit| {
            let place = |index: usize| BODY + index * stride;
            // `target` counts the old record where it lies before it.
            let target = if target > at { target - 1 } else { target };
            if target > at {
                edit.copy_within(place(at + 1), place(at), (target - at) * stride);
            } else {
                edit.copy_within(place(target), place(target + 1), (at - target) * stride);
            }
            edit.put(place(target), record);
        })?;
        Ok(true)
    }

    /// Reads what a removal of the record at `key` has to read. `false` if there is none.
    pub fn read_ahead_of_remove<S: BlockRead>(&self, store: &mut S, key: u64) -> Result<bool> {
        Ok(self.removal(store, key)?.is_some())
    }

    #[inline(always)]
    fn removal<S: BlockRead>(&self, store: &mut S, key: u64) -> Result<Option<Removal>> {
        let mut path = Path::new();
        let leaf = self.descend(store, key, |level, step| path.0[usize::from(level)] = step)?;
        let found = self.visit(store, leaf.block, 0, |node| Ok(node.find(key).map(|at| (at, node.count))))?;
        let Some((at, mut count)) = found else { return Ok(None) };
        let mut fates = [Fate::Stays; LEVELS];
        for level in 0..self.level {
            let parent = path.0[usize::from(level) + 1];
            let fate = self.fate(store, level, count - 1, parent)?;
            if matches!(fate, Fate::Stays) {
                break;
            }
            fates[usize::from(level)] = fate;
            count = parent.count;
            if level + 1 == self.level && count == 2 && matches!(fate, Fate::Goes) {
                self.visit_next_roots(store, parent)?;
            }
        }
        Ok(Some(Removal { path, leaf: leaf.block, at, fates }))
    }

    /// Visits what becomes the root when the root, of two children, loses the one that `root` leads to: of the children's neighbours nobody has
    /// looked at this one. Should it have a single child itself, that is the root then.
    #[cold]
    fn visit_next_roots<S: BlockRead>(&self, store: &mut S, root: Step) -> Result<()> {
        let limit = store.geometry().block_count;
        let mut level = self.level;
        let mut next = self.visit(store, root.block, level, |node| Ok(Some(node.child(1 - root.index, limit)?)))?;
        while let Some(block) = next {
            level -= 1;
            next = self.visit(store, block, level, |node| {
                if level > 0 && node.count == 1 { Ok(Some(node.child(0, limit)?)) } else { Ok(None) }
            })?;
        }
        Ok(())
    }

    /// Removes the record at `key`; `false` if there is none. Nodes that become empty are freed, and small neighbours
    /// joined.
    pub fn remove<S: BlockStore, N: NodeSource<S>>(&mut self, store: &mut S, source: &mut N, key: u64) -> Result<bool> {
        // All that has to be read is read before the first change.
        let Some(Removal { path, leaf, mut at, fates }) = self.removal(store, key)? else { return Ok(false) };

        let mut freed = Vec::new();
        let mut block = leaf;
        for (level, fate) in fates.into_iter().enumerate() {
            let stride = self.stride_at(level as u16);
            if !matches!(fate, Fate::Goes) {
                store.change(block, self.kind.block, |edit| remove_item(edit, at, stride))?;
            }
            let Some(&Step { block: parent, index, .. }) = path.0.get(level + 1) else { break };
            match fate {
                Fate::Stays => break,
                Fate::Goes => {
                    freed.push(block);
                    at = index;
                }
                Fate::IntoLeft(left, separator) => {
                    self.join(store, level as u16, left, block, separator)?;
                    freed.push(block);
                    at = index;
                }
                Fate::TakesRight(right, separator) => {
                    self.join(store, level as u16, block, right, separator)?;
                    freed.push(right);
                    at = index + 1;
                }
            }
            block = parent;
        }
        if block == self.root && self.level > 0 {
            self.lower_root(store, &mut freed)?;
        }
        for block in freed {
            store.forget(block);
            source.free(store, block)?;
        }
        Ok(true)
    }

    /// Frees every node, the root included; the tree is then no more.
    pub fn free_all<S: BlockStore, N: NodeSource<S>>(&mut self, store: &mut S, source: &mut N) -> Result<()> {
        self.check_level()?;
        let mut last = None;
        self.free_below(store, source, self.root, self.level, &mut last)?;
        self.root = FsBlock::NONE;
        self.level = 0;
        Ok(())
    }

    fn free_below<S: BlockStore, N: NodeSource<S>>(
        &self,
        store: &mut S,
        source: &mut N,
        block: FsBlock,
        level: u16,
        last: &mut Option<u64>,
    ) -> Result<()> {
        if level == 0 {
            self.visit(store, block, 0, |node| {
                if node.count > 0 {
                    // A leaf met twice would not rise: this ends the walk of a tree that is none.
                    if last.is_some_and(|last| node.key(0) <= last) || node.key(node.count - 1) < node.key(0) {
                        return Err(unsorted(node, node.key(0)));
                    }
                    *last = Some(node.key(node.count - 1));
                }
                Ok(())
            })?;
        } else {
            let limit = store.geometry().block_count;
            let children = self.visit(store, block, level, |node| {
                (0..node.count).map(|index| node.child(index, limit)).collect::<Checked<Vec<_>>>()
            })?;
            for child in children {
                self.free_below(store, source, child, level - 1, last)?;
            }
        }
        store.forget(block);
        source.free(store, block)
    }

    fn check_level(&self) -> Checked<()> {
        if self.level > LEVEL_MAX {
            return Err(Corrupt::TreeNode { block: self.root, field: "root level", value: u64::from(self.level) });
        }
        Ok(())
    }

    fn stride_at(&self, level: u16) -> usize {
        if level == 0 { self.kind.record_size } else { ChildEntry::SIZE }
    }

    fn max_at<S: BlockRead>(&self, store: &S, level: u16) -> usize {
        let block_size = store.geometry().block_size();
        if level == 0 { self.kind.leaf_max(block_size) } else { self.kind.inner_max(block_size) }
    }

    fn open<'a>(&self, bytes: &'a [u8], block: FsBlock, level: u16) -> Checked<Node<'a>> {
        header::verify_owner(bytes, block, self.owner)?;
        let head = NodeHeader::read(bytes);
        if head.level.get() != level {
            return Err(Corrupt::TreeNode { block, field: "level", value: u64::from(head.level.get()) });
        }
        let count = usize::from(head.count.get());
        let stride = self.stride_at(level);
        let may_be_empty = level == 0 && self.level == 0;
        if count * stride > bytes.len() - BODY || (count == 0 && !may_be_empty) {
            return Err(Corrupt::TreeNode { block, field: "count", value: count as u64 });
        }
        Ok(Node { bytes, block, count, stride, shift: if level == 0 { self.kind.key_shift } else { 0 } })
    }

    fn visit<S: BlockRead, R>(
        &self,
        store: &mut S,
        block: FsBlock,
        level: u16,
        f: impl FnOnce(&Node<'_>) -> Checked<R>,
    ) -> Result<R> {
        Ok(store.read(block, self.kind.block, |bytes| f(&self.open(bytes, block, level)?))??)
    }

    /// Finds the leaf for `key`; `note` gets the inner nodes on the way.
    fn descend<S: BlockRead>(&self, store: &mut S, key: u64, mut note: impl FnMut(u16, Step)) -> Result<Leaf> {
        self.check_level()?;
        let limit = store.geometry().block_count;
        let mut leaf = Leaf { block: self.root, low: 0, high: None };
        for level in (1..=self.level).rev() {
            let block = leaf.block;
            leaf.block = self.visit(store, block, level, |node| {
                let index = node.entry_for(key);
                if index > 0 {
                    leaf.low = node.key(index);
                }
                if index + 1 < node.count {
                    leaf.high = Some(node.key(index + 1));
                }
                note(level, Step { block, index, count: node.count });
                node.child(index, limit)
            })?;
        }
        Ok(leaf)
    }

    fn init<S: BlockStore>(&self, store: &mut S, node: NewBlock, level: u16, items: &[u8]) -> Result<()> {
        store.init(node, self.kind.block, self.owner, |edit| {
            edit.put(offset_of!(NodeHeader, level), &level.to_le_bytes());
            set_count(edit, items.len() / self.stride_at(level));
            edit.put(BODY, items);
        })
    }

    /// Splits the full node `left` while inserting `entry` at `at`; the upper part goes to `right`. Returns the
    /// separator between them.
    fn split<S: BlockStore>(
        &self,
        store: &mut S,
        left: FsBlock,
        level: u16,
        right: NewBlock,
        at: usize,
        entry: &[u8],
    ) -> Result<u64> {
        let stride = entry.len();
        let (cut, upper, separator) = self.visit(store, left, level, |node| {
            // Appending fills nodes: records that arrive in order leave nine tenths behind them.
            let cut = if at == node.count { node.count - node.count / 10 } else { node.count / 2 };
            let mut upper = node.bytes[BODY + cut * stride..BODY + node.count * stride].to_vec();
            let goes_right = at > cut || at == node.count;
            if goes_right {
                let place = (at - cut) * stride;
                upper.splice(place..place, entry.iter().copied());
            }
            let before = if !goes_right && at == cut { entry } else { node.item(cut - 1) };
            let first = word(&upper, 0) >> node.shift;
            let separator = if level == 0 { roundest(word(before, 0) >> node.shift, first) } else { first };
            Ok((cut, upper, separator))
        })?;
        let stays_left = upper.len() / stride + cut == self.max_at(store, level);
        self.init(store, right, level, &upper)?;
        store.change(left, self.kind.block, |edit| {
            set_count(edit, cut);
            if stays_left {
                insert_item(edit, at, entry);
            }
        })?;
        Ok(separator)
    }

    /// What becomes of a node of `level`, below `parent`, when `rest` items are left in it. Two neighbours join when
    /// they fill at most three quarters of a node together, so that the next insertion does not split them again.
    fn fate<S: BlockRead>(&self, store: &mut S, level: u16, rest: usize, parent: Step) -> Result<Fate> {
        let max = self.max_at(store, level);
        if rest == 0 {
            return Ok(Fate::Goes);
        }
        if rest > max * 3 / 8 {
            return Ok(Fate::Stays);
        }
        let limit = store.geometry().block_count;
        let index = parent.index;
        let (left, right) = self.visit(store, parent.block, level + 1, |node| {
            let left = if index > 0 { Some((node.child(index - 1, limit)?, node.key(index))) } else { None };
            let right =
                if index + 1 < node.count { Some((node.child(index + 1, limit)?, node.key(index + 1))) } else { None };
            Ok((left, right))
        })?;
        let room = max * 3 / 4 - rest;
        if let Some((left, separator)) = left
            && self.visit(store, left, level, |node| Ok(node.count))? <= room
        {
            return Ok(Fate::IntoLeft(left, separator));
        }
        if let Some((right, separator)) = right
            && self.visit(store, right, level, |node| Ok(node.count))? <= room
        {
            return Ok(Fate::TakesRight(right, separator));
        }
        Ok(Fate::Stays)
    }

    /// Appends the items of `right` to `left`.
    fn join<S: BlockStore>(
        &self,
        store: &mut S,
        level: u16,
        left: FsBlock,
        right: FsBlock,
        separator: u64,
    ) -> Result<()> {
        let mut items =
            self.visit(store, right, level, |node| Ok(node.bytes[BODY..BODY + node.count * node.stride].to_vec()))?;
        if level > 0 {
            // The first entry's key meant minus infinity; in the middle of a node it counts.
            items[..8].copy_from_slice(&separator.to_le_bytes());
        }
        let stride = self.stride_at(level);
        store.change(left, self.kind.block, |edit| {
            let count = count(edit);
            edit.put(BODY + count * stride, &items);
            set_count(edit, count + items.len() / stride);
        })
    }

    /// Takes away roots with a single child; a root without any becomes an empty leaf. The removal has visited all of them.
    fn lower_root<S: BlockStore>(&mut self, store: &mut S, freed: &mut Vec<FsBlock>) -> Result<()> {
        let limit = store.geometry().block_count;
        while self.level > 0 {
            let root = self.root;
            let (kept, child) = store.read(root, self.kind.block, |bytes| {
                let count = usize::from(NodeHeader::read(bytes).count.get());
                (count, FsBlock(word(bytes, BODY + 8)))
            })?;
            match kept {
                0 => {
                    store.change(root, self.kind.block, |edit| edit.put(offset_of!(NodeHeader, level), &[0, 0]))?;
                    self.level = 0;
                }
                1 if child.0 == 0 || child.0 >= limit => {
                    return Err(Corrupt::TreeNode { block: root, field: "child", value: child.0 }.into());
                }
                1 => {
                    freed.push(root);
                    self.root = child;
                    self.level -= 1;
                }
                _ => break,
            }
        }
        Ok(())
    }
}

fn padded(bytes: &[u8]) -> Record {
    let mut record = [0; RECORD_MAX];
    record[..bytes.len()].copy_from_slice(bytes);
    record
}

fn child_entry(key: u64, child: FsBlock) -> [u8; ChildEntry::SIZE] {
    let mut entry = ChildEntry::zeroed();
    entry.key.set(key);
    entry.child.set(child.0);
    let mut bytes = [0; ChildEntry::SIZE];
    *ChildEntry::read_mut(&mut bytes) = entry;
    bytes
}

/// The number with the most trailing zero bits that is greater than `left` and at most `right`.
fn roundest(left: u64, right: u64) -> u64 {
    if left >= right {
        return right;
    }
    right >> (63 - (left ^ right).leading_zeros()) << (63 - (left ^ right).leading_zeros())
}

fn count(edit: &BlockEdit<'_>) -> usize {
    usize::from(NodeHeader::read(edit.bytes()).count.get())
}

fn set_count(edit: &mut BlockEdit<'_>, count: usize) {
    edit.put(offset_of!(NodeHeader, count), &(count as u16).to_le_bytes());
}

fn insert_item(edit: &mut BlockEdit<'_>, at: usize, item: &[u8]) {
    let count = count(edit);
    let place = BODY + at * item.len();
    edit.copy_within(place, place + item.len(), (count - at) * item.len());
    edit.put(place, item);
    set_count(edit, count + 1);
}

fn remove_item(edit: &mut BlockEdit<'_>, at: usize, stride: usize) {
    let count = count(edit);
    let place = BODY + at * stride;
    edit.copy_within(place + stride, place, (count - at - 1) * stride);
    set_count(edit, count - 1);
}

#[cold]
fn unsorted(node: &Node<'_>, key: u64) -> Corrupt {
    Corrupt::TreeNode { block: node.block, field: "key", value: key }
}
