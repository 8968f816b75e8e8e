//! Walks B+ trees without trusting them. The check follows each node once (its block is claimed first) and reports what
//! is out of order; repair follows what it can and is told what was lost.

use crate::context::{Context, for_repair};
use crate::io::{Damage, Reader};
use crate::map::pointers::{self, InodePointers};
use crate::report::Place;
use crate::visitor::Visitor;
use myriad_format::btree::{ChildEntry, LEVEL_MAX, NodeHeader, TreeKind};
use myriad_format::{BlockKind, Corrupt, FsBlock, Ino};
use zerocopy::little_endian::U64;

/// A tree to walk.
#[derive(Clone, Copy)]
pub(crate) struct Tree {
    pub kind: TreeKind,
    pub owner: u64,
    pub root: FsBlock,
    pub level: u16,
}

/// Walks a tree; records come in order unless damage was reported.
pub(crate) fn walk(reader: &Reader, tree: &Tree, visitor: &mut dyn Visitor) {
    if tree.level > LEVEL_MAX {
        visitor.damage(Corrupt::TreeNode { block: tree.root, field: "level", value: u64::from(tree.level) }.into());
        return;
    }
    let mut walk = Walk { reader, tree, visitor, last: None };
    walk.node(tree.root, tree.level, None, None, true);
}

struct Walk<'a> {
    reader: &'a Reader,
    tree: &'a Tree,
    visitor: &'a mut dyn Visitor,
    /// Key of the record before.
    last: Option<u64>,
}

impl Walk<'_> {
    /// Walks a node whose keys must lie in `low..high`. Recursion is bounded by the level, which falls by one each time.
    fn node(&mut self, block: FsBlock, level: u16, low: Option<u64>, high: Option<u64>, is_root: bool) {
        if !self.visitor.node(block) {
            return;
        }
        let mut buf = self.reader.new_buffer();
        let mut part = match self.reader.read_part(block, self.tree.kind.block, self.tree.owner, &mut buf) {
            Ok(part) => part,
            Err(damage) => {
                self.visitor.stranger(block);
                self.visitor.damage(damage);
                return;
            }
        };
        let size = if level == 0 { self.tree.kind.record_size } else { ChildEntry::SIZE };
        let header = NodeHeader::read(&buf);
        let count = usize::from(header.count.get());
        // What is behind the last record or entry is nothing that could be missing.
        if let Some(damage) = part.worn.take()
            && !self.visitor.part(part.has(0..NodeHeader::SIZE + count * size))
        {
            self.visitor.damage(damage);
            return;
        }
        let is_there = |index: usize| {
            let at = NodeHeader::SIZE + index * size;
            part.has(at..at + size)
        };
        let max = if level == 0 { self.tree.kind.leaf_max(buf.len()) } else { self.tree.kind.inner_max(buf.len()) };
        let bad = |field, value| Damage::from(Corrupt::TreeNode { block, field, value });
        if header.level.get() != level {
            self.visitor.damage(bad("level", u64::from(header.level.get())));
            return;
        }
        // Only a root leaf may be empty, and an inner root chooses between at least two children.
        let min = match (is_root, level) {
            (true, 0) => 0,
            (true, _) => 2,
            (false, _) => 1,
        };
        if !(min..=max).contains(&count) {
            self.visitor.damage(bad("count", count as u64));
            return;
        }
        let body = &buf[NodeHeader::SIZE..];
        if level == 0 {
            let records = body.chunks_exact(size).take(count).enumerate();
            for (_, record) in records.filter(|&(index, _)| is_there(index)) {
                let word = u64::from_le_bytes(record[..8].try_into().expect("eight bytes"));
                let key = word >> self.tree.kind.key_shift;
                let in_order = self.last.is_none_or(|last| last < key);
                if !in_order || low.is_some_and(|low| key < low) || high.is_some_and(|high| key >= high) {
                    self.visitor.damage(bad("key", key));
                    return;
                }
                self.last = Some(key);
                self.visitor.record(record);
            }
            return;
        }
        let entries: Vec<(usize, u64, u64)> = body
            .chunks_exact(ChildEntry::SIZE)
            .take(count)
            .map(ChildEntry::read)
            .enumerate()
            .filter(|&(index, _)| is_there(index))
            .map(|(index, entry): (usize, &ChildEntry)| (index, U64::get(entry.key), U64::get(entry.child)))
            .collect();
        drop(buf);
        for (at, &(index, key, child)) in entries.iter().enumerate() {
            let child_low = if index == 0 { low } else { Some(key) };
            let child_high = entries.get(at + 1).map_or(high, |&(_, next, _)| Some(next));
            let ordered = match (child_low, child_high) {
                (Some(low), Some(high)) => low < high,
                _ => true,
            };
            let inside =
                low.is_none_or(|low| child_low >= Some(low)) && high.is_none_or(|high| key < high || index == 0);
            if !ordered || !inside {
                self.visitor.damage(bad("key", key));
                return;
            }
            if child == 0 || child >= self.reader.geometry.block_count {
                self.visitor.damage(bad("child", child));
                continue;
            }
            self.node(FsBlock(child), level - 1, child_low, child_high, false);
        }
    }
}

/// The check's walk: claims each node, reports damage at `place`, and says whether all was sound.
pub(crate) fn check_tree(
    context: &Context<'_>,
    tree: &Tree,
    place: Place,
    record: &mut dyn FnMut(&[u8]),
) -> TreeResult {
    let result = TreeResult { nodes: 0, sound: true };
    let mut visitor = Checking { context, kind: tree.kind.block, owner: tree.owner, place, record, result };
    walk(&context.reader, tree, &mut visitor);
    visitor.result
}

/// As [`check_tree`], of the pointers of an inode.
pub(crate) fn check_pointers(
    context: &Context<'_>,
    ino: Ino,
    bits: u32,
    list: &InodePointers,
    record: &mut dyn FnMut(&[u8]),
) -> TreeResult {
    let (place, result) = (Place::Inode(ino), TreeResult { nodes: 0, sound: true });
    let mut visitor = Checking { context, kind: BlockKind::Pointers, owner: ino.0, place, record, result };
    pointers::walk(&context.reader, ino, bits, list, &mut visitor);
    visitor.result
}

pub(crate) struct TreeResult {
    pub nodes: u64,
    pub sound: bool,
}

struct Checking<'a, 'b> {
    context: &'a Context<'b>,
    kind: BlockKind,
    owner: u64,
    place: Place,
    record: &'a mut dyn FnMut(&[u8]),
    result: TreeResult,
}

impl Visitor for Checking<'_, '_> {
    fn node(&mut self, block: FsBlock) -> bool {
        self.result.nodes += 1;
        let taken = self.context.claim_node(block, self.kind, self.owner, self.place);
        self.result.sound &= taken;
        taken
    }

    fn record(&mut self, record: &[u8]) {
        (self.record)(record);
    }

    fn damage(&mut self, damage: Damage) {
        self.result.sound = false;
        self.context.damage(self.place, damage);
    }

    fn empty(&mut self, block: FsBlock) {
        // All that it leads to is not safe yet, or has gone.
        let corrupt = Corrupt::TreeNode { block, field: "pointers", value: 0 };
        self.context.report_leftover(corrupt.number(), self.place, corrupt.to_string(), for_repair);
    }
}
