//! The index of a directory: every record must be where lookup finds it, and the records must be the live entries.

use super::blocks::{for_each_block, position};
use crate::context::Context;
use crate::directory::entries::{name_at, parse};
use crate::directory::names::{find_block, report_equal_hashes};
use crate::findings::number;
use crate::io::Damage;
use crate::report::Place;
use myriad_format::dir::{
    DEPTH_MAX, IndexHeader, IndexRecord, LINE_RECORDS, LINE_SIZE, OVERFLOWED, home_line, leaf_lines, node_bits, pointer,
};
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::{BlockKind, Corrupt, FsBlock, Ino};
use std::collections::HashMap;

/// Most entries that are listed one by one when index and entries differ; beyond, the counts are reported.
const LISTED_MAX: u64 = 1 << 20;

/// Sum of a digest over a set of (tag, position, inode): equal sets have equal sums, different ones practically never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    pub count: u64,
    low: u64,
    high: u64,
}

impl Digest {
    pub fn add(&mut self, tag: u32, position: u32, ino: Ino) {
        let word = u64::from(tag) << 32 | u64::from(position);
        self.count += 1;
        self.low = self.low.wrapping_add(mix(word ^ mix(ino.0 ^ 0x9e37_79b9_7f4a_7c15)));
        self.high = self.high.wrapping_add(mix(mix(word ^ 0xc2b2_ae3d_27d4_eb4f) ^ ino.0));
    }
}

/// The finaliser of splitmix64.
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Fields of the index root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    level: u8,
    pub depth: u8,
    pub room_head: u32,
    pub entry_blocks: u32,
}

/// Why an index root is not believed.
pub(crate) enum BadRoot {
    Damage(Damage),
    Shape { level: u8, depth: u8 },
}

impl Root {
    /// Reads the root at a block, and all of that block.
    pub fn read(context: &Context<'_>, ino: Ino, root: FsBlock) -> Result<(Self, Vec<u8>), BadRoot> {
        let mut buf = context.reader.new_buffer();
        context.reader.read(root, BlockKind::DirIndex, ino.0, &mut buf).map_err(BadRoot::Damage)?;
        let header = IndexHeader::read(&buf);
        let (level, depth) = (header.level, header.depth);
        let is_leaf = level == 0 && depth == 0;
        if depth > DEPTH_MAX || !(is_leaf || level == root_level(depth, context.geometry.block_bits)) {
            return Err(BadRoot::Shape { level, depth });
        }
        let root = Self { level, depth, room_head: header.room_head.get(), entry_blocks: header.entry_blocks.get() };
        Ok((root, buf))
    }
}

/// An index whose nodes have been walked and whose blocks are claimed.
pub(crate) struct Index {
    /// `None`: the root cannot be read.
    pub root: Option<Root>,
    /// Blocks, leaves included.
    pub blocks: u64,
    /// Number and block of each leaf.
    leaves: Vec<(u32, FsBlock)>,
}

struct NodeWalk<'a> {
    context: &'a Context<'a>,
    ino: Ino,
    depth: u8,
    index: Index,
}

impl Index {
    /// Claims the blocks of an index and finds its leaves.
    pub fn walk(context: &Context<'_>, ino: Ino, root: FsBlock) -> Self {
        let place = Place::Inode(ino);
        let mut index = Self { root: None, blocks: 0, leaves: Vec::new() };
        if !context.claim(root, 1, place, "directory index") {
            return index;
        }
        index.blocks = 1;
        let (found, buf) = match Root::read(context, ino, root) {
            Ok(found) => found,
            Err(BadRoot::Damage(damage)) => {
                context.damage(place, damage);
                return index;
            }
            Err(BadRoot::Shape { level, depth }) => {
                let message = format!("the index root has level {level} and depth {depth}");
                context.report(number::INDEX_SHAPE, place, message);
                return index;
            }
        };
        let Root { level, depth, .. } = found;
        index.root = Some(found);
        if level == 0 {
            index.leaves.push((0, root));
            return index;
        }
        let mut walk = NodeWalk { context, ino, depth, index };
        walk.node(&buf, level, 0);
        walk.index
    }

    /// Compares the records with the entries, whose digest is known.
    pub fn compare(&self, context: &Context<'_>, ino: Ino, raw: &RawInode, entries: Digest, extents: &[Extent]) {
        let Some(root) = self.root else { return };
        let place = Place::Inode(ino);
        let mut depths: HashMap<u32, u8> = HashMap::with_capacity(self.leaves.len());
        let mut digest = Digest::default();
        let mut buf = context.reader.new_buffer();
        for &(number, block) in &self.leaves {
            if let Some(depth) = self.check_leaf(context, ino, raw, (number, block), &mut buf, &mut digest, extents) {
                depths.insert(number, depth);
            }
        }
        let shared_out = check_depths(&depths, root.depth).and_then(|()| match depths.len() == self.leaves.len() {
            true => check_shares(&depths, root.depth),
            // What cannot be read has been told.
            false => Ok(()),
        });
        if let Err(why) = shared_out {
            context.report(number::INDEX_SHAPE, place, why);
        }
        if digest != entries {
            self.list_differences(context, ino, entries.count, digest.count, extents);
        }
    }

    /// Checks one leaf and adds its records up; its depth, if it can be read.
    #[allow(clippy::too_many_arguments)]
    fn check_leaf(
        &self,
        context: &Context<'_>,
        ino: Ino,
        raw: &RawInode,
        (number, block): (u32, FsBlock),
        buf: &mut [u8],
        digest: &mut Digest,
        extents: &[Extent],
    ) -> Option<u8> {
        let place = Place::Inode(ino);
        if let Err(damage) = context.reader.read(block, BlockKind::DirIndex, ino.0, buf) {
            context.damage(place, damage);
            return None;
        }
        let header = IndexHeader::read(buf);
        let depth = header.depth;
        if header.level != 0 {
            let corrupt = Corrupt::DirIndex { ino, block, field: "level", value: u64::from(header.level) };
            context.damage(place, corrupt.into());
            return None;
        }
        let root_depth = self.root.map_or(0, |root| root.depth);
        if depth > root_depth || u64::from(number) >= 1 << depth {
            context.report(
                number::INDEX_SHAPE,
                place,
                format!("leaf {block} at number {number} has depth {depth} of {root_depth}"),
            );
            return None;
        }
        let lines = leaf_lines(buf.len());
        let overflowed: Vec<bool> = (0..lines).map(|line| line_of(buf, line).0).collect();
        let mut tags: Vec<(u32, u32)> = Vec::new();
        for line in 0..lines {
            for record in line_of(buf, line).1 {
                let (tag, position) = (record.tag.get(), record.position.get());
                let record_ino = Ino(record.ino.get() & !OVERFLOWED);
                if record_ino.is_none() {
                    continue;
                }
                digest.add(tag, position, record_ino);
                tags.push((tag, position));
                let home = home_line(tag, lines);
                let distance = (line + lines - home) % lines;
                let reached = (0..distance).all(|step| overflowed[(home + step) % lines]);
                if u64::from(tag) & ((1 << depth) - 1) != u64::from(number) || !reached {
                    let message = format!(
                        "leaf {block} line {line}: the record of position {position} is not where its tag {tag:#x} leads"
                    );
                    context.report(number::INDEX_PLACE, place, message);
                }
            }
        }
        // Equal tags always meet in one leaf, so twins and equal names show here.
        tags.sort_unstable();
        for pair in tags.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            self.check_equal_tags(context, ino, raw, pair[0].1, pair[1].1, extents);
        }
        Some(depth)
    }

    fn check_equal_tags(&self, context: &Context<'_>, ino: Ino, raw: &RawInode, a: u32, b: u32, extents: &[Extent]) {
        let (Some(a), Some(b)) = (name_of(context, a, extents), name_of(context, b, extents)) else { return };
        if context.hasher.hash(&a) == context.hasher.hash(&b) {
            report_equal_hashes(context, ino, raw, &a, &b);
        }
    }

    /// Names what is on one side only.
    fn list_differences(&self, context: &Context<'_>, ino: Ino, entries: u64, records: u64, extents: &[Extent]) {
        let place = Place::Inode(ino);
        if entries.max(records) > LISTED_MAX {
            let message = format!("{entries} entries and {records} index records do not agree");
            context.report(number::INDEX_MISSING, place, message);
            return;
        }
        let mut buf = context.reader.new_buffer();
        let mut in_entries: Vec<(u32, u32, u64)> = Vec::new();
        let made = entry_blocks_made(Some(self.root.as_ref()));
        for_each_block(context, ino, extents, made, |file_block, block| {
            let bytes = block.map_or(&[][..], |(_, bytes)| bytes);
            for entry in parse(bytes).map_while(Result::ok).filter(|entry| !entry.ino.is_none()) {
                let position = position(file_block, entry.offset, context.reader.block_size());
                in_entries.push((entry.tag, position as u32, entry.ino.0));
            }
        });
        let mut in_index: Vec<(u32, u32, u64)> = Vec::new();
        for &(_, block) in &self.leaves {
            if context.reader.read(block, BlockKind::DirIndex, ino.0, &mut buf).is_err() {
                continue;
            }
            for line in 0..leaf_lines(buf.len()) {
                let records = line_of(&buf, line).1.into_iter();
                in_index.extend(
                    records
                        .map(|record| (record.tag.get(), record.position.get(), record.ino.get() & !OVERFLOWED))
                        .filter(|record| record.2 != 0),
                );
            }
        }
        in_entries.sort_unstable();
        in_index.sort_unstable();
        for missing in difference(&in_entries, &in_index) {
            let place = Place::Entry { directory: ino, position: u64::from(missing.1) };
            context.report(
                number::INDEX_MISSING,
                place,
                format!("the entry of inode {} is not in the index", missing.2),
            );
        }
        for stale in difference(&in_index, &in_entries) {
            let message =
                format!("the index has a record for position {} and inode {}, which no entry has", stale.1, stale.2);
            context.report(number::INDEX_STALE, place, message);
        }
    }
}

impl NodeWalk<'_> {
    /// Follows the pointers of a node; `prefix` are the number's bits above this node's. The level falls by one each
    /// time, and each block is claimed, so this ends.
    fn node(&mut self, node: &[u8], level: u8, prefix: u64) {
        let context = self.context;
        let place = Place::Inode(self.ino);
        let bits = node_bits(context.geometry.block_bits);
        let shift = bits * (u32::from(level) - 1);
        for at in 0..1_usize << bits {
            let child = pointer(node, at);
            if child == 0 {
                if prefix == 0 && at == 0 {
                    context.report(number::INDEX_SHAPE, place, "the first pointer of the index is 0");
                }
                continue;
            }
            let number = prefix << bits | at as u64;
            if number << shift >= 1 << self.depth {
                context.report(
                    number::INDEX_SHAPE,
                    place,
                    format!("pointer {number} at level {level} is beyond depth {}", self.depth),
                );
                continue;
            }
            let child = FsBlock(child);
            if !context.claim(child, 1, place, "directory index") {
                continue;
            }
            self.index.blocks += 1;
            if level == 1 {
                self.index.leaves.push((number as u32, child));
                continue;
            }
            let mut buf = context.reader.new_buffer();
            if let Err(damage) = context.reader.read(child, BlockKind::DirIndex, self.ino.0, &mut buf) {
                context.damage(place, damage);
                continue;
            }
            let found = IndexHeader::read(&buf).level;
            if found != level - 1 {
                let corrupt =
                    Corrupt::DirIndex { ino: self.ino, block: child, field: "level", value: u64::from(found) };
                context.damage(place, corrupt.into());
                continue;
            }
            self.node(&buf, level - 1, number);
        }
    }
}

/// How many entry blocks were made, by what is known of the index: one without an index, none if its root cannot be read.
pub(crate) fn entry_blocks_made(index: Option<Option<&Root>>) -> u64 {
    index.map_or(1, |root| root.map_or(0, |root| u64::from(root.entry_blocks)))
}

/// Level of a root that is no leaf, in an index of this depth: the smallest whose nodes have enough pointers.
pub(crate) fn root_level(depth: u8, block_bits: u32) -> u8 {
    u32::from(depth).div_ceil(node_bits(block_bits)).max(1) as u8
}

/// Whether a line has overflowed, and its records.
fn line_of(leaf: &[u8], line: usize) -> (bool, [&IndexRecord; LINE_RECORDS]) {
    let at = IndexHeader::SIZE + line * LINE_SIZE;
    let records = std::array::from_fn(|index| IndexRecord::read(&leaf[at + index * IndexRecord::SIZE..]));
    (records[0].ino.get() & OVERFLOWED != 0, records)
}

/// No leaf may lie in another's share: where a number with its top bit cleared leads, the depth must reach that bit.
fn check_depths(depths: &HashMap<u32, u8>, root_depth: u8) -> Result<(), String> {
    for &number in depths.keys().filter(|&&number| number != 0) {
        let bit = 31 - number.leading_zeros();
        let mut other = number;
        while other != 0 {
            other &= !(1 << (31 - other.leading_zeros()));
            if let Some(&depth) = depths.get(&other) {
                if u32::from(depth) <= bit {
                    return Err(format!(
                        "the leaf at number {other} with depth {depth} of {root_depth} covers the one at number {number}"
                    ));
                }
                break;
            }
        }
    }
    Ok(())
}

/// Leaves that do not lie in each other's shares must have all hashes between them. A name is listed that has the hash of none, and is not found, nor can
/// it be made.
fn check_shares(depths: &HashMap<u32, u8>, root_depth: u8) -> Result<(), String> {
    let shares: u64 = depths.values().map(|&depth| 1 << (root_depth - depth)).sum();
    if shares != 1 << root_depth {
        return Err(format!("the leaves have {shares} of {} shares of the hashes", 1_u64 << root_depth));
    }
    Ok(())
}

fn name_of(context: &Context<'_>, position: u32, extents: &[Extent]) -> Option<Vec<u8>> {
    let mut buf = context.reader.new_buffer();
    let byte = u64::from(position) * 8;
    let block = find_block(extents, byte / buf.len() as u64)?;
    context.reader.read_raw(block, &mut buf).ok()?;
    let at = (byte % buf.len() as u64) as usize;
    name_at(&buf, at).map(<[u8]>::to_vec)
}

/// What sorted `a` has and sorted `b` lacks.
fn difference(a: &[(u32, u32, u64)], b: &[(u32, u32, u64)]) -> Vec<(u32, u32, u64)> {
    let mut rest = b.iter().peekable();
    let mut only = Vec::new();
    for item in a {
        while rest.next_if(|other| *other < item).is_some() {}
        if rest.next_if(|other| *other == item).is_none() {
            only.push(*item);
        }
    }
    only
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message about leaves with these numbers and depths, of an index of depth 2.
    fn judged(leaves: &[(u32, u8)]) -> Result<(), String> {
        let depths = leaves.iter().copied().collect();
        check_depths(&depths, 2).and_then(|()| check_shares(&depths, 2))
    }

    /// A pointer was missing to a leaf that had no record: nothing differed from the entries.
    #[test]
    fn leaves_have_all_hashes_between_them() {
        assert_eq!(judged(&[(0, 0)]), Ok(()));
        assert_eq!(judged(&[(0, 1), (1, 2), (3, 2)]), Ok(()));
        assert_eq!(judged(&[(0, 1), (1, 2)]), Err("the leaves have 3 of 4 shares of the hashes".to_owned()));
        assert_eq!(judged(&[(0, 2), (1, 1)]), Err("the leaves have 3 of 4 shares of the hashes".to_owned()));
        assert!(judged(&[(0, 1), (2, 2), (1, 1)]).is_err_and(|why| why.contains("covers")));
    }
}
