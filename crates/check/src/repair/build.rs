//! Writes trees and directory indexes from nothing: what a sound volume can always derive from its records.

use crate::directory::indexed::index::root_level;
use crate::io::Reader;
use crate::options::CheckError;
use myriad_device::BlockDevice;
use myriad_format::btree::{ChildEntry, NodeHeader, TreeKind};
use myriad_format::dir::{
    DEPTH_MAX, IndexHeader, IndexRecord, LINE_RECORDS, LINE_SIZE, OVERFLOWED, encode_pointer, home_line, leaf_lines,
    node_bits,
};
use myriad_format::{BlockKind, FsBlock, header};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use zerocopy::IntoBytes;

/// Where the next block comes from.
pub(super) type Take<'a> = dyn FnMut() -> Result<FsBlock, CheckError> + 'a;

pub(super) fn write(reader: &Reader, block: FsBlock, buf: &mut [u8]) -> Result<(), CheckError> {
    let offset = block.0 << reader.geometry.block_bits;
    reader.write(block, buf).map_err(|source| CheckError::Io { op: "write", offset, source })
}

/// What a write of several blocks ended in.
pub(super) fn written(reader: &Reader, result: Result<(), (FsBlock, std::io::Error)>) -> Result<(), CheckError> {
    result.map_err(|(block, source)| CheckError::Io {
        op: "write",
        offset: block.0 << reader.geometry.block_bits,
        source,
    })
}

pub(super) fn flush(device: &dyn BlockDevice) -> Result<(), CheckError> {
    device.flush().map_err(|source| CheckError::Io { op: "flush", offset: 0, source })
}

/// How full new nodes and leaves are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// Three quarters, so that the first changes after a repair do not split them all.
    Ample,
    /// All of it, where there is no room for more nodes.
    Full,
}

impl Fill {
    fn of(self, max: usize) -> usize {
        match self {
            Self::Ample => (max * 3 / 4).max(2),
            Self::Full => max,
        }
    }
}

/// Nodes of each level of a tree of so many records, from the leaves up.
fn level_counts(kind: TreeKind, records: usize, block_size: usize, fill: Fill) -> impl Iterator<Item = usize> {
    let leaves = records.div_ceil(fill.of(kind.leaf_max(block_size))).max(1);
    let above = move |&nodes: &usize| (nodes > 1).then(|| nodes.div_ceil(fill.of(kind.inner_max(block_size))));
    std::iter::successors(Some(leaves), above)
}

/// Nodes that a tree of so many records takes.
pub(super) fn node_count(kind: TreeKind, records: usize, block_size: usize, fill: Fill) -> usize {
    level_counts(kind, records, block_size, fill).sum()
}

/// Levels above the leaves of a tree of so many records.
pub(super) fn level_of(kind: TreeKind, records: usize, block_size: usize, fill: Fill) -> usize {
    level_counts(kind, records, block_size, fill).count() - 1
}

/// Writes a tree of sorted records (packed, `kind.record_size` bytes each); its root and level.
pub(super) fn write_tree(
    reader: &Reader,
    kind: TreeKind,
    owner: u64,
    records: &[u8],
    fill: Fill,
    take: &mut Take<'_>,
) -> Result<(FsBlock, u8), CheckError> {
    let mut items = records.to_vec();
    let mut size = kind.record_size;
    let mut root = FsBlock::NONE;
    let mut top = 0;
    for (level, nodes) in level_counts(kind, records.len() / size, reader.block_size(), fill).enumerate() {
        let count = items.len() / size;
        let mut above = Vec::new();
        for node in 0..nodes {
            let part = &items[count * node / nodes * size..count * (node + 1) / nodes * size];
            let block = take()?;
            let mut buf = reader.new_buffer();
            header::init(&mut buf, kind.block, reader.volume, owner, block);
            let head = NodeHeader::read_mut(&mut buf);
            head.level.set(level as u16);
            head.count.set((part.len() / size) as u16);
            buf[NodeHeader::SIZE..][..part.len()].copy_from_slice(part);
            write(reader, block, &mut buf)?;
            (root, top) = (block, level as u8);
            if nodes == 1 {
                break;
            }
            let word = u64::from_le_bytes(part[..8].try_into().expect("a record has eight bytes"));
            let mut entry = ChildEntry::zeroed();
            entry.key.set(if level == 0 { word >> kind.key_shift } else { word });
            entry.child.set(block.0);
            above.extend_from_slice(entry.as_bytes());
        }
        (items, size) = (above, ChildEntry::SIZE);
    }
    Ok((root, top))
}

/// A record of a directory index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub tag: u32,
    pub position: u32,
    pub ino: u64,
}

/// A leaf to be: its number, its depth, its records.
type Leaf = (u32, u8, std::ops::Range<usize>);

/// Writes the index of directory `owner`; its root and number of blocks.
pub(super) fn write_index(
    reader: &Reader,
    owner: u64,
    records: &mut [Record],
    (room_head, entry_blocks): (u32, u32),
    take: &mut Take<'_>,
) -> Result<(FsBlock, u64), CheckError> {
    // Leaves share low bits: in the order of reversed tags each is a run.
    records.sort_unstable_by_key(|record| record.tag.reverse_bits());
    let lines = leaf_lines(reader.block_size());
    let mut leaves = Vec::new();
    split(records, 0..records.len(), 0, 0, Fill::Ample.of(lines * LINE_RECORDS), lines * LINE_RECORDS, &mut leaves)?;
    let depth = leaves.iter().map(|leaf| leaf.1).max().unwrap_or(0);

    if depth == 0 {
        // One leaf is its own root.
        let root = take()?;
        let mut leaf = reader.new_buffer();
        header::init(&mut leaf, BlockKind::DirIndex, reader.volume, owner, root);
        for record in records.iter() {
            place(&mut leaf, lines, record);
        }
        let head = IndexHeader::read_mut(&mut leaf);
        head.room_head.set(room_head);
        head.entry_blocks.set(entry_blocks);
        write(reader, root, &mut leaf)?;
        return Ok((root, 1));
    }
    let root = take()?;
    let bits = node_bits(reader.geometry.block_bits);
    let top = root_level(depth, reader.geometry.block_bits);
    let mut blocks = 1;
    let mut nodes: BTreeMap<(u8, u32), (FsBlock, Vec<u8>)> = BTreeMap::new();
    for (number, leaf_depth, range) in leaves {
        let block = take()?;
        blocks += 1;
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
            let prefix = if level == top { 0 } else { number >> (bits * u32::from(level)) };
            let (at, node) = match nodes.entry((level, prefix)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let at = if level == top { root } else { take()? };
                    blocks += u64::from(level != top);
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
    Ok((root, blocks))
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
