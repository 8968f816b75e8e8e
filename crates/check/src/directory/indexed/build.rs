//! Writes the index of a directory anew.

use super::index::root_level;
use crate::io::Reader;
use crate::options::CheckError;
use crate::repair::build::{Fill, write};
use myriad_format::dir::{
    DEPTH_MAX, IndexHeader, IndexRecord, LINE_RECORDS, LINE_SIZE, OVERFLOWED, encode_pointer, home_line, leaf_lines,
    node_bits,
};
use myriad_format::{BlockKind, FsBlock, header};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// A record of a directory index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub tag: u32,
    pub position: u32,
    pub ino: u64,
}

/// A leaf to be: its number, its depth, its records.
type Leaf = (u32, u8, std::ops::Range<usize>);

/// Most blocks that an index of so many records takes, whatever their tags: nearly always.
pub(crate) fn index_blocks_max(records: usize, block_size: usize) -> u64 {
    (3 + 4 * records / (leaf_lines(block_size) * LINE_RECORDS)) as u64
}

/// What an index is to be.
pub(crate) struct IndexPlan {
    leaves: Vec<Leaf>,
    depth: u8,
    /// How many it takes.
    pub blocks: usize,
}

/// Sorts the records of an index, and shares them out among its leaves.
pub(crate) fn plan_index(reader: &Reader, records: &mut [Record], fill: Fill) -> Result<IndexPlan, CheckError> {
    // Leaves share low bits: in the order of reversed tags each is a run.
    records.sort_unstable_by_key(|record| record.tag.reverse_bits());
    let lines = leaf_lines(reader.block_size());
    let mut leaves = Vec::new();
    split(records, 0..records.len(), 0, 0, fill.of(lines * LINE_RECORDS), lines * LINE_RECORDS, &mut leaves)?;
    let depth = leaves.iter().map(|leaf| leaf.1).max().unwrap_or(0);
    let bits = reader.geometry.block_bits;
    let levels = if depth == 0 { 0 } else { root_level(depth, bits) };
    let nodes: BTreeSet<(u8, u32)> =
        leaves.iter().flat_map(|leaf| (1..=levels).map(|level| (level, prefix(leaf.0, level, levels, bits)))).collect();
    Ok(IndexPlan { blocks: leaves.len() + nodes.len(), leaves, depth })
}

/// What the leaves below a node of an index share: the node's number in its level.
fn prefix(leaf: u32, level: u8, top: u8, block_bits: u32) -> u32 {
    if level == top { 0 } else { leaf >> (node_bits(block_bits) * u32::from(level)) }
}

/// Writes the index of directory `owner`, whose records have been sorted, into so many blocks as were planned; its root.
pub(crate) fn write_index(
    reader: &Reader,
    owner: u64,
    records: &[Record],
    (room_head, entry_blocks): (u32, u32),
    IndexPlan { leaves, depth, .. }: IndexPlan,
    places: Vec<FsBlock>,
) -> Result<FsBlock, CheckError> {
    let lines = leaf_lines(reader.block_size());
    let mut places = places.into_iter();
    let mut take = || places.next().expect("as many as were planned");
    if depth == 0 {
        // One leaf is its own root.
        let root = take();
        let mut leaf = reader.new_buffer();
        header::init(&mut leaf, BlockKind::DirIndex, reader.volume, owner, root);
        for record in records.iter() {
            place(&mut leaf, lines, record);
        }
        let head = IndexHeader::read_mut(&mut leaf);
        head.room_head.set(room_head);
        head.entry_blocks.set(entry_blocks);
        write(reader, root, &mut leaf)?;
        return Ok(root);
    }
    let root = take();
    let bits = node_bits(reader.geometry.block_bits);
    let top = root_level(depth, reader.geometry.block_bits);
    let mut nodes: BTreeMap<(u8, u32), (FsBlock, Vec<u8>)> = BTreeMap::new();
    for (number, leaf_depth, range) in leaves {
        let block = take();
        let mut leaf = reader.new_buffer();
        header::init(&mut leaf, BlockKind::DirIndex, reader.volume, owner, block);
        IndexHeader::read_mut(&mut leaf).depth = leaf_depth;
        for record in &records[range] {
            place(&mut leaf, lines, record);
        }
        write(reader, block, &mut leaf)?;
        let mut child = block;
        for level in 1..=top {
            let slot = number >> (bits * u32::from(level - 1)) & ((1 << bits) - 1);
            let prefix = prefix(number, level, top, reader.geometry.block_bits);
            let (at, node) = match nodes.entry((level, prefix)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let at = if level == top { root } else { take() };
                    let mut node = reader.new_buffer();
                    header::init(&mut node, BlockKind::DirIndex, reader.volume, owner, at);
                    IndexHeader::read_mut(&mut node).level = level;
                    entry.insert((at, node))
                }
            };
            let (offset, bytes) = encode_pointer(slot as usize, child.0);
            node[offset..offset + bytes.len()].copy_from_slice(&bytes);
            child = *at;
        }
    }
    for ((level, _), (at, mut node)) in nodes {
        if level == top {
            let head = IndexHeader::read_mut(&mut node);
            head.depth = depth;
            head.room_head.set(room_head);
            head.entry_blocks.set(entry_blocks);
        }
        write(reader, at, &mut node)?;
    }
    Ok(root)
}

/// Splits records that share the low `depth` bits `number` until each leaf has room left.
fn split(
    records: &[Record],
    range: std::ops::Range<usize>,
    number: u32,
    depth: u8,
    fill: usize,
    max: usize,
    leaves: &mut Vec<Leaf>,
) -> Result<(), CheckError> {
    if range.len() <= fill || (depth == DEPTH_MAX && range.len() <= max) {
        leaves.push((number, depth, range));
        return Ok(());
    }
    if depth == DEPTH_MAX {
        return Err(CheckError::Repair("more names of a directory share a hash than an index can hold".to_owned()));
    }
    let middle = range.start + records[range.clone()].partition_point(|record| record.tag >> depth & 1 == 0);
    split(records, range.start..middle, number, depth + 1, fill, max, leaves)?;
    split(records, middle..range.end, number | 1 << depth, depth + 1, fill, max, leaves)
}

/// Puts a record where lookup finds it. There is room: a leaf gets no more records than it has places.
fn place(leaf: &mut [u8], lines: usize, record: &Record) {
    let mut line = home_line(record.tag, lines);
    loop {
        let at = IndexHeader::SIZE + line * LINE_SIZE;
        for slot in 0..LINE_RECORDS {
            let found = IndexRecord::read_mut(&mut leaf[at + slot * IndexRecord::SIZE..]);
            let bit = found.ino.get() & OVERFLOWED;
            if found.ino.get() == bit {
                found.tag.set(record.tag);
                found.position.set(record.position);
                found.ino.set(record.ino | bit);
                return;
            }
        }
        let first = IndexRecord::read_mut(&mut leaf[at..]);
        first.ino.set(first.ino.get() | OVERFLOWED);
        line = (line + 1) % lines;
    }
}
