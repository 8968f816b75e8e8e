//! Directories of kind `btree`: entries in the body of the inode, or in the leaves of a tree that is walked in the order of its keys.
//!
//! Names with one tag lie side by side, so names are compared with each other tag by tag: no more is held than the names of one.

use crate::context::Context;
use crate::directory::AHEAD_MAX;
use crate::directory::entries::{BadEntry, Entry, is_name};
use crate::directory::names::{At, Names, Sums, covered, find_block, report_bad_entry, report_equal_hashes};
use crate::directory::{Checked, Dir};
use crate::findings::number;
use crate::io::{Damage, Reader};
use crate::map::for_each_extent;
use crate::report::Place;
use myriad_format::dir_tree::{
    DirNodeHeader, DirTreeEntry, LEVEL_MAX, NODE_OFFSET, OFFSET_SIZE, child_at, fan_out, key, leaf_room, offset_at,
};
use myriad_format::extent::Extent;
use myriad_format::inode::{RawInode, fork};
use myriad_format::{BlockKind, Corrupt, FileBlock, Ino};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// The entry at an offset of a leaf or of a body, free or live, and its number.
pub(crate) fn entry_at(bytes: &[u8], at: usize) -> Result<(Entry<'_>, u16), BadEntry> {
    let bad = |field, value| Err(BadEntry { offset: at as u32, field, value });
    let rest = bytes.get(at..).unwrap_or_default();
    if rest.len() < DirTreeEntry::SIZE {
        return bad("room", rest.len() as u64);
    }
    let header = DirTreeEntry::read(rest);
    let Some(name) = rest[DirTreeEntry::SIZE..].get(..usize::from(header.name_len)) else {
        return bad("name_len", u64::from(header.name_len));
    };
    let ino = Ino(header.ino.get());
    if !ino.is_none() && name.is_empty() {
        return bad("name_len", 0);
    }
    if !ino.is_none() && !is_name(name) {
        return bad("name", u64::from(name[0]));
    }
    let length = (DirTreeEntry::SIZE + name.len()) as u16;
    let entry = Entry { offset: at as u32, length, ino, name, file_type: header.file_type, tag: header.tag.get() };
    Ok((entry, header.number.get()))
}

/// The entries of a body, free and live; ends after the first bad one.
pub(crate) fn body_entries(data: &[u8]) -> impl Iterator<Item = Result<(Entry<'_>, u16), BadEntry>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < data.len()).then(|| {
            let result = entry_at(data, at);
            at = result.as_ref().map_or(data.len(), |(entry, _)| at + usize::from(entry.length));
            result
        })
    })
}

/// What a walk through a tree meets.
pub(crate) enum Met<'a> {
    /// A live entry, its number, and the node that has it.
    Entry { node: u32, entry: &'a Entry<'a>, number: u16 },
    /// A node cannot be read, or is impossible.
    Damage(Damage),
    /// An entry is impossible.
    Bad { node: u32, bad: BadEntry },
    /// A finding of another number.
    Finding { number: u32, message: String },
}

/// A directory in blocks.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    pub reader: &'a Reader,
    pub ino: Ino,
    pub extents: &'a [Extent],
    /// Nodes, by the size of the directory.
    pub nodes: u64,
}

/// Where a node belongs.
#[derive(Clone, Copy)]
struct Bounds {
    /// Keys from here on, and before there.
    lower: u64,
    upper: Option<u64>,
    /// The level that its parent asks for; none of the root.
    level: Option<u8>,
}

impl Tree<'_> {
    /// Walks through the nodes from the root, and hands what it meets to `f`.
    pub fn walk(&self, f: &mut dyn FnMut(Met<'_>)) {
        // Whatever the size says, there are not more nodes than blocks.
        let nodes = self.nodes.min(covered(self.extents)).min(self.reader.geometry.block_count);
        let mut met = vec![false; nodes as usize];
        self.visit(0, Bounds { lower: 0, upper: None, level: None }, &mut met, f);
        if let Some(lost) = met.iter().position(|met| !met) {
            let count = met.iter().filter(|met| !**met).count();
            let message = format!("{count} nodes are not in the directory's tree, node {lost} for one");
            f(Met::Finding { number: number::INDEX_SHAPE, message });
        }
    }

    fn visit(&self, node: u32, bounds: Bounds, met: &mut [bool], f: &mut dyn FnMut(Met<'_>)) {
        let shape = |message| Met::Finding { number: number::INDEX_SHAPE, message };
        match met.get_mut(node as usize) {
            Some(met) if !*met => *met = true,
            Some(_) => return f(shape(format!("two nodes lead to node {node}"))),
            None => return f(shape(format!("node {node} lies behind the end of the directory"))),
        }
        let Some(block) = find_block(self.extents, u64::from(node)) else { return };
        let mut buf = self.reader.new_buffer();
        if let Err(damage) = self.reader.read(block, BlockKind::DirTree, self.ino.0, &mut buf) {
            return f(Met::Damage(damage));
        }
        let header = DirNodeHeader::read(&buf);
        let (level, count) = (header.level, usize::from(header.count.get()));
        let mut impossible = |field, value| {
            f(Met::Damage(Corrupt::DirIndex { ino: self.ino, block, field, value }.into()));
        };
        if level > LEVEL_MAX {
            return impossible("level", u64::from(level));
        }
        let most = if level == 0 { leaf_room(buf.len()) / OFFSET_SIZE } else { fan_out(buf.len()) };
        if count > most || level > 0 && count == 0 {
            return impossible("count", count as u64);
        }
        let heap = header.heap.get() as usize;
        if level == 0 && (heap > buf.len() || heap < NODE_OFFSET + count * OFFSET_SIZE) {
            return impossible("heap", heap as u64);
        }
        if bounds.level.is_some_and(|expected| expected != level) {
            return f(shape(format!("node {node} has level {level}, and its parent asks for another")));
        }
        let is_root = bounds.level.is_none();
        if level > 0 && is_root && count == 1 || level == 0 && !is_root && count == 0 {
            f(shape(format!("node {node} has level {level} and {count} of what it holds: too few")));
        }
        if level == 0 {
            self.visit_leaf(node, &buf, bounds, f)
        } else {
            self.visit_children(node, &buf, bounds, met, f)
        }
    }

    fn visit_children(&self, node: u32, bytes: &[u8], bounds: Bounds, met: &mut [bool], f: &mut dyn FnMut(Met<'_>)) {
        let header = DirNodeHeader::read(bytes);
        let count = usize::from(header.count.get());
        let child = |index| {
            let child = child_at(bytes, index);
            (child.key.get(), child.child.get())
        };
        let mut before = bounds.lower;
        for index in 0..count {
            let (key, number) = child(index);
            // The first one's is 0, which says nothing: its keys begin where the node's do.
            let is_in_order = if index == 0 { key == 0 } else { key > before };
            if !is_in_order || bounds.upper.is_some_and(|upper| key >= upper) {
                let message = format!("node {node}: key {key:#x} of child {index} is out of order");
                f(Met::Finding { number: number::TREE_NODE, message });
            }
            before = before.max(key);
            let lower = if index == 0 { bounds.lower } else { key };
            let upper = if index + 1 < count { Some(child(index + 1).0) } else { bounds.upper };
            self.visit(number, Bounds { lower, upper, level: Some(header.level - 1) }, met, f);
        }
    }

    fn visit_leaf(&self, node: u32, bytes: &[u8], bounds: Bounds, f: &mut dyn FnMut(Met<'_>)) {
        let header = DirNodeHeader::read(bytes);
        let (count, heap) = (usize::from(header.count.get()), header.heap.get() as usize);
        let mut ranges = Vec::with_capacity(count);
        let mut next = bounds.lower;
        for index in 0..count {
            let at = offset_at(bytes, index);
            let (entry, number) = match entry_at(bytes, at) {
                Ok((entry, _)) if entry.ino.is_none() => {
                    f(Met::Bad { node, bad: BadEntry { offset: at as u32, field: "ino", value: 0 } });
                    continue;
                }
                Ok(_) if at < heap => {
                    f(Met::Bad { node, bad: BadEntry { offset: at as u32, field: "place", value: at as u64 } });
                    continue;
                }
                Ok(entry) => entry,
                Err(bad) => {
                    f(Met::Bad { node, bad });
                    continue;
                }
            };
            ranges.push((at, at + usize::from(entry.length)));
            let key = key(entry.tag, number);
            if key < next || bounds.upper.is_some_and(|upper| key >= upper) {
                let name = entry.name.escape_ascii();
                let message = format!("{name} has key {key:#x}, and lies in node {node} where keys are others");
                f(Met::Finding { number: number::INDEX_PLACE, message });
            }
            next = next.max(key + 1);
            f(Met::Entry { node, entry: &entry, number });
        }
        ranges.sort_unstable();
        let live: usize = ranges.iter().map(|(start, end)| end - start).sum();
        let entry_block = |message| Met::Finding { number: number::ENTRY_BLOCK, message };
        if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            f(entry_block(format!("node {node}: two entries share bytes")));
        }
        if live != header.live.get() as usize && ranges.len() == count {
            f(entry_block(format!("node {node}: its entries have {live} bytes, its header says {}", header.live)));
        }
    }
}

/// Where an entry lies: its offset in the directory, in words of 8 bytes. Identities say nothing of it.
fn at(context: &Context<'_>, node: u32, entry: &Entry<'_>) -> At {
    let byte = u64::from(node) * context.reader.block_size() as u64 + u64::from(entry.offset);
    At { place: byte / 8, position: 0 }
}

/// The names with one tag: by their hashes, of which those that are equal are looked at.
#[derive(Default)]
struct Run {
    tag: u32,
    names: HashMap<u64, Vec<u8>>,
}

impl Run {
    fn add(&mut self, context: &Context<'_>, ino: Ino, raw: &RawInode, entry: &Entry<'_>, hash: u64) {
        if entry.tag != self.tag {
            self.tag = entry.tag;
            self.names.clear();
        }
        if let Some(other) = self.names.insert(hash, entry.name.to_vec()) {
            report_equal_hashes(context, ino, raw, &other, entry.name);
        }
    }
}

/// Checks a directory whose blocks have been claimed.
pub(in crate::directory) fn check(names: &Names<'_>, dir: Dir<'_>, extents: &[Extent], sums: &mut Sums) -> Checked {
    let context = names.context;
    let Dir { ino, raw, body: data } = dir;
    let place = Place::Inode(ino);
    let size = raw.size.get();
    if let Some(root) = raw.index_root() {
        context.damage(place, Corrupt::Inode { ino, field: "index root", value: root.0 }.into());
    }
    if !raw.is_dir_in_blocks() {
        if size != data.len() as u64 {
            context.report(number::INODE_SIZE, place, format!("size {size}, its body has {} bytes", data.len()));
        }
        check_body(names, ino, raw, data, sums);
        return Checked { is_whole: true, ..Checked::default() };
    }
    let block_size = context.reader.block_size() as u64;
    let nodes = size / block_size;
    let mapped: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
    let covered = covered(extents);
    if size % block_size != 0 || nodes == 0 || covered < nodes || covered != mapped || mapped - nodes > AHEAD_MAX {
        let message = format!("size {size} is not that of nodes in the {mapped} blocks of the directory");
        context.report(number::INODE_SIZE, place, message);
    }
    let mut is_whole = true;
    let mut run = Run::default();
    Tree { reader: &context.reader, ino, extents, nodes }.walk(&mut |met| match met {
        Met::Entry { node, entry, .. } => {
            let hash = context.hasher.hash(entry.name);
            run.add(context, ino, raw, entry, hash);
            names.check_name(ino, entry, at(context, node, entry), hash, sums);
        }
        Met::Damage(damage) => {
            is_whole = false;
            context.damage(place, damage);
        }
        Met::Bad { node, bad } => report_bad_entry(context, ino, FileBlock(u64::from(node)), bad.offset, &bad),
        Met::Finding { number, message } => context.report(number, place, message),
    });
    Checked { made: nodes, is_whole, unmapped: 0 }
}

fn check_body(names: &Names<'_>, ino: Ino, raw: &RawInode, data: &[u8], sums: &mut Sums) {
    let context = names.context;
    let mut met: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut keys = HashMap::new();
    for entry in body_entries(data) {
        let (entry, number) = match entry {
            Err(bad) => {
                report_bad_entry(context, ino, FileBlock(0), bad.offset, &bad);
                continue;
            }
            Ok(entry) if entry.0.ino.is_none() => continue,
            Ok(entry) => entry,
        };
        let hash = context.hasher.hash(entry.name);
        if let Some(other) = met.insert(hash, entry.name.to_vec()) {
            report_equal_hashes(context, ino, raw, &other, entry.name);
        }
        if let Some(other) = keys.insert(key(entry.tag, number), entry.name) {
            let message = format!("{} has the key of {}", entry.name.escape_ascii(), other.escape_ascii());
            context.report(number::INDEX_PLACE, Place::Inode(ino), message);
        }
        names.check_name(ino, &entry, at(context, 0, &entry), hash, sums);
    }
}

/// Hands the entries of a directory that has been checked to `f`. `left_out`: what of its map is believed, if not all of it
/// could be read.
pub(in crate::directory) fn entries_again(
    context: &Context<'_>,
    Dir { ino, raw, body: data }: Dir<'_>,
    left_out: Option<(Vec<Extent>, u64)>,
    f: &mut dyn FnMut(&Entry<'_>, At),
) {
    if raw.fork_code() == fork::INLINE {
        for (entry, _) in body_entries(data).map_while(Result::ok).filter(|(entry, _)| !entry.ino.is_none()) {
            f(&entry, at(context, 0, &entry));
        }
        return;
    }
    if !raw.is_dir_in_blocks() {
        return;
    }
    let is_told = left_out.is_some();
    let (extents, nodes) = left_out.unwrap_or_else(|| map_again(context, ino, raw));
    Tree { reader: &context.reader, ino, extents: &extents, nodes }.walk(&mut |met| match met {
        Met::Entry { node, entry, .. } => f(entry, at(context, node, entry)),
        Met::Damage(damage) if !is_told => context.damage(Place::Inode(ino), damage),
        _ => {}
    });
}

/// Extents of a directory that was checked, and how many nodes its size says.
fn map_again(context: &Context<'_>, ino: Ino, raw: &RawInode) -> (Vec<Extent>, u64) {
    let mut extents = Vec::new();
    for_each_extent(&context.reader, ino, raw, |extent| extents.push(extent));
    (extents, raw.size.get() / context.reader.block_size() as u64)
}

/// Hands the live entries of a directory that was checked to `f`, as they lie; what cannot be read is left out.
pub(in crate::directory) fn for_each_entry(context: &Context<'_>, dir: Dir<'_>, f: &mut dyn FnMut(&Entry<'_>)) {
    let Dir { ino, raw, .. } = dir;
    if raw.fork_code() == fork::INLINE {
        return entries_again(context, dir, None, &mut |entry, _| f(entry));
    }
    let (extents, nodes) = map_again(context, ino, raw);
    let mut buf = context.reader.new_buffer();
    for node in 0..nodes.min(covered(&extents)) {
        let Some(block) = find_block(&extents, node) else { continue };
        if context.reader.read(block, BlockKind::DirTree, ino.0, &mut buf).is_ok() {
            leaf_entries(&buf).flatten().for_each(|(entry, _)| f(&entry));
        }
        if context.cancelled.load(Relaxed) {
            return;
        }
    }
}

/// The live entries of a leaf, by its offsets, of which those outside the block are left out; none of an inner node.
pub(crate) fn leaf_entries(node: &[u8]) -> impl Iterator<Item = Result<(Entry<'_>, u16), BadEntry>> {
    let header = DirNodeHeader::read(node);
    let count = if header.level == 0 { usize::from(header.count.get()) } else { 0 };
    (0..count.min(leaf_room(node.len()) / OFFSET_SIZE)).map(|index| match entry_at(node, offset_at(node, index)) {
        Ok((entry, _)) if entry.ino.is_none() => Err(BadEntry { offset: entry.offset, field: "ino", value: 0 }),
        other => other,
    })
}
