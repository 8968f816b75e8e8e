//! The on-disk hash index of a directory: an extendible hash (Fagin et al. 1979) whose table is sparse.
//!
//! The table is an array of pointers to leaves, kept in a radix tree of nodes and addressed by the low `depth` bits of
//! the tag. Pointer p exists only if some leaf's records share more low bits than p's top set bit; a pointer that is
//! missing stands for the one with its top bit cleared. So a split writes exactly one pointer, and doubling the table
//! writes none: `depth` grows by one.
//!
//! Invariants
//!   1. A leaf of depth d holds records whose tags agree in their low d bits, and the pointer for these bits leads to it.
//!   2. A record lies in its home line or in one reached from it over lines marked as overflowed.
//!
//! Locking: the directory's inode lock. Not here: what a record names; `dir` confirms hits.

use crate::counters::Count;
use crate::dir::{BlockSource, Probe};
use crate::edit::{BlockEdit, BlockStore, NewBlock};
use crate::error::{Errno, Error, Result};
use crate::order::{Look, Txn};
use myriad_format::dir::{
    DEPTH_MAX, IndexHeader, IndexRecord, LINE_RECORDS, LINE_SIZE, LIST_END, OVERFLOWED, encode_pointer, home_line,
    leaf_lines, node_bits, pointer,
};
use myriad_format::{BlockKind, Corrupt, FsBlock, Ino, header};
use zerocopy::little_endian::{U32, U64};

/// Lines that an insertion looks at before it splits the leaf.
const PROBE_MAX: usize = 8;

/// A record of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub tag: u32,
    pub position: u32,
    pub ino: Ino,
}

fn corrupt(dir: Ino, block: FsBlock, field: &'static str, value: u64) -> Error {
    Corrupt::DirIndex { ino: dir, block, field, value }.into()
}

/// The index header of a verified block of this directory.
fn header_of(bytes: &[u8], dir: Ino, block: FsBlock) -> Result<&IndexHeader> {
    header::verify_owner(bytes, block, dir.0)?;
    let header = IndexHeader::read(bytes);
    // Nodes above those that have the last of the bits are in no sound index, and no tag could be shifted by theirs.
    let bits = node_bits(bytes.len().trailing_zeros());
    if bits * u32::from(header.level.saturating_sub(1)) >= u32::from(DEPTH_MAX) {
        return Err(corrupt(dir, block, "level", u64::from(header.level)));
    }
    if header.depth > DEPTH_MAX {
        return Err(corrupt(dir, block, "depth", u64::from(header.depth)));
    }
    Ok(header)
}

/// What the root of an index says of the directory's entry blocks.
#[derive(Clone, Copy)]
pub(crate) struct Root {
    /// Head of the list of those with room, as [`IndexHeader`] has it.
    pub room_head: u32,
    /// How many there are.
    pub entry_blocks: u32,
}

/// The leaf responsible for `tag`.
#[inline]
pub(crate) fn find_leaf(look: &Look<'_>, dir: Ino, root: FsBlock, tag: u32) -> Result<FsBlock> {
    Ok(find_leaf_and_root(look, dir, root, tag)?.0)
}

/// Reads a leaf.
pub(crate) fn check_leaf(look: &Look<'_>, dir: Ino, leaf: FsBlock) -> Result<()> {
    look.read(leaf, BlockKind::DirIndex, |bytes| header_of(bytes, dir, leaf).map(drop))?
}

/// The leaf responsible for `tag`, and what its root says beside the way to it.
#[inline]
pub(crate) fn find_leaf_and_root(look: &Look<'_>, dir: Ino, root: FsBlock, tag: u32) -> Result<(FsBlock, Root)> {
    let bits = node_bits(look.volume.geometry.block_bits);
    let first = look.read(root, BlockKind::DirIndex, |bytes| {
        let header = header_of(bytes, dir, root)?;
        let said = Root { room_head: header.room_head.get(), entry_blocks: header.entry_blocks.get() };
        if header.level == 0 {
            return Ok::<_, Error>((0, 0, root.0, said));
        }
        let index = tag & mask(header.depth);
        if header.level == 1 {
            // The common case: all in one block, looked at once.
            return match sole_pointer(bytes, bits, index) {
                0 => Err(corrupt(dir, root, "pointer", 0)),
                leaf => Ok((0, 0, leaf, said)),
            };
        }
        Ok((header.level, header.depth, root_pointer(bytes, bits, header.level, index), said))
    })?;
    let (level, depth, mut next, said) = first?;
    if level == 0 {
        return Ok((FsBlock(next), said));
    }
    let mut index = tag & mask(depth);
    loop {
        let found = descend(look, dir, next, level, index)?;
        if let Some(leaf) = found {
            return Ok((leaf, said));
        }
        if index == 0 {
            return Err(corrupt(dir, root, "pointer", 0));
        }
        index &= !(1 << (31 - index.leading_zeros()));
        next = look.read(root, BlockKind::DirIndex, |bytes| root_pointer(bytes, bits, level, index))?;
    }
}

/// The pointer of a root of level 1 for `index`, or for the one that stands for it.
fn sole_pointer(bytes: &[u8], bits: u32, mut index: u32) -> u64 {
    loop {
        let found = root_pointer(bytes, bits, 1, index);
        if found != 0 || index == 0 {
            return found;
        }
        index &= !(1 << (31 - index.leading_zeros()));
    }
}

/// The root's pointer on the way to pointer `index` of the table; 0 if there is none.
fn root_pointer(bytes: &[u8], bits: u32, level: u8, index: u32) -> u64 {
    let at = (index >> (bits * u32::from(level - 1))) as usize;
    if at >> bits == 0 { pointer(bytes, at) } else { 0 }
}

fn mask(depth: u8) -> u32 {
    (1_u32 << depth) - 1
}

/// Follows pointer `index` from the root's child `next` down. `None`: some node or the pointer is missing.
fn descend(look: &Look<'_>, dir: Ino, next: u64, level: u8, index: u32) -> Result<Option<FsBlock>> {
    let bits = node_bits(look.volume.geometry.block_bits);
    let mut block = next;
    for below in (1..level).rev() {
        if block == 0 {
            return Ok(None);
        }
        let at = (index >> (bits * u32::from(below - 1))) as usize & ((1 << bits) - 1);
        let node = FsBlock(block);
        block = look.read(node, BlockKind::DirIndex, |bytes| {
            let header = header_of(bytes, dir, node)?;
            if header.level != below {
                return Err(corrupt(dir, node, "level", u64::from(header.level)));
            }
            Ok(pointer(bytes, at))
        })??;
    }
    Ok((block != 0).then_some(FsBlock(block)))
}

fn record_at(bytes: &[u8], line: usize, place: usize) -> &IndexRecord {
    IndexRecord::read(&bytes[record_offset(line, place)..])
}

fn record_offset(line: usize, place: usize) -> usize {
    IndexHeader::SIZE + line * LINE_SIZE + place * IndexRecord::SIZE
}

/// Calls `f` with every record of a leaf that has this tag, until it breaks.
fn probe<R>(bytes: &[u8], tag: u32, mut f: impl FnMut(usize, Record) -> Option<R>) -> Option<R> {
    let lines = leaf_lines(bytes.len());
    let mut line = home_line(tag, lines);
    for _ in 0..lines {
        for place in 0..LINE_RECORDS {
            let record = record_at(bytes, line, place);
            if record.tag.get() == tag {
                let ino = record.ino.get() & !OVERFLOWED;
                if ino != 0 {
                    let found = Record { tag, position: record.position.get(), ino: Ino(ino) };
                    if let Some(result) = f(record_offset(line, place), found) {
                        return Some(result);
                    }
                }
            }
        }
        if record_at(bytes, line, 0).ino.get() & OVERFLOWED == 0 {
            return None;
        }
        line = (line + 1) % lines;
    }
    None
}

/// Records with this tag in the leaf where it belongs, at most `found.len()`; the number there are.
#[inline]
pub(crate) fn find_in(look: &Look<'_>, dir: Ino, leaf: FsBlock, tag: u32, found: &mut [Record]) -> Result<usize> {
    look.volume.counters.bump(Count::dir_index_probes);
    let home = record_offset(home_line(tag, leaf_lines(look.volume.cache.block_size())), 0);
    look.read_at(leaf, BlockKind::DirIndex, home, |bytes| {
        let header = header_of(bytes, dir, leaf)?;
        if header.level != 0 {
            return Err(corrupt(dir, leaf, "level", u64::from(header.level)));
        }
        let mut count = 0;
        probe(bytes, tag, |_, record| {
            if count < found.len() {
                found[count] = record;
            }
            count += 1;
            None::<()>
        });
        Ok(count)
    })?
}

/// The leaf of `tag`, and where in it the search begins: for batches, which load both before they search.
pub(crate) fn place(look: &Look<'_>, dir: Ino, root: FsBlock, tag: u32) -> Result<Probe> {
    let block = find_leaf(look, dir, root, tag)?;
    let lines = leaf_lines(look.volume.cache.block_size());
    Ok(Probe { block, offset: record_offset(home_line(tag, lines), 0) })
}

/// Puts a record into a leaf; false if no line within reach has room.
fn put(edit: &mut BlockEdit<'_>, record: Record, reach: usize) -> bool {
    let lines = leaf_lines(edit.bytes().len());
    let home = home_line(record.tag, lines);
    // Without a division, which would take as long as all the rest.
    let wrapped = |line: usize| if line < lines { line } else { line - lines };
    for step in 0..reach.min(lines) {
        let line = wrapped(home + step);
        let empty = (0..LINE_RECORDS).find(|&place| record_at(edit.bytes(), line, place).ino.get() & !OVERFLOWED == 0);
        let Some(place) = empty else { continue };
        for passed in 0..step {
            let at = record_offset(wrapped(home + passed), 0);
            let ino = IndexRecord::read(&edit.bytes()[at..]).ino.get();
            if ino & OVERFLOWED == 0 {
                IndexRecord::read_mut(edit.range_mut(at, IndexRecord::SIZE)).ino = U64::new(ino | OVERFLOWED);
            }
        }
        let at = record_offset(line, place);
        let kept = IndexRecord::read(&edit.bytes()[at..]).ino.get() & OVERFLOWED;
        let raw = IndexRecord::read_mut(edit.range_mut(at, IndexRecord::SIZE));
        raw.tag = U32::new(record.tag);
        raw.position = U32::new(record.position);
        raw.ino = U64::new(record.ino.0 | kept);
        return true;
    }
    false
}

fn all_records(bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::with_capacity(leaf_lines(bytes.len()) * LINE_RECORDS);
    for line in 0..leaf_lines(bytes.len()) {
        for place in 0..LINE_RECORDS {
            let raw = record_at(bytes, line, place);
            let ino = raw.ino.get() & !OVERFLOWED;
            if ino != 0 {
                records.push(Record { tag: raw.tag.get(), position: raw.position.get(), ino: Ino(ino) });
            }
        }
    }
    records
}

/// Makes an index of one leaf. The directory has one entry block, with room or not.
pub(crate) fn create(txn: &mut Txn<'_>, source: &mut BlockSource, dir: Ino, records: &[Record]) -> Result<FsBlock> {
    let root = source.allocate(txn)?;
    txn.init(NewBlock::free(root), BlockKind::DirIndex, dir.0, |edit| {
        let header = IndexHeader::read_mut(edit.range_mut(0, IndexHeader::SIZE));
        header.room_head = U32::new(LIST_END);
        header.entry_blocks = U32::new(1);
    })?;
    let mut root = root;
    for &record in records {
        insert(txn, source, dir, &mut root, record, None)?;
    }
    Ok(root)
}

/// Adds a record; splits leaves and grows the table as needed. `root` may change. `leaf` is where the record belongs, if that
/// is known.
pub(crate) fn insert(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    dir: Ino,
    root: &mut FsBlock,
    record: Record,
    mut leaf: Option<FsBlock>,
) -> Result<()> {
    loop {
        let leaf = match leaf.take() {
            Some(leaf) => leaf,
            None => find_leaf(&txn.look, dir, *root, record.tag)?,
        };
        if txn.change(leaf, BlockKind::DirIndex, |edit| put(edit, record, PROBE_MAX))? {
            return Ok(());
        }
        split(txn, source, dir, root, leaf, record.tag)?;
    }
}

/// Splits a leaf in two by the next bit of the tag.
#[cold]
fn split(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    dir: Ino,
    root: &mut FsBlock,
    leaf: FsBlock,
    tag: u32,
) -> Result<()> {
    txn.volume().counters.bump(Count::dir_leaf_splits);
    let (leaf_depth, old) = txn.look.read(leaf, BlockKind::DirIndex, |bytes| {
        Ok::<_, Error>((header_of(bytes, dir, leaf)?.depth, bytes.to_vec()))
    })??;
    let top = txn.look.read(*root, BlockKind::DirIndex, |bytes| header_of(bytes, dir, *root).copied())??;
    // A root that is a leaf counts the depth of the whole, which is its own.
    let depth = if top.level == 0 { leaf_depth } else { top.depth };
    if leaf_depth >= DEPTH_MAX {
        // More than a leaf's worth of names share 30 bits of a keyed hash: no accident, and no room.
        return Err(Error::Refused(Errno::NOSPC));
    }
    if leaf_depth == depth {
        grow(txn, source, dir, root, leaf == *root)?;
    }

    let bit = 1_u32 << leaf_depth;
    let sibling = source.allocate(txn)?;
    let [stay, moved] = halves(&old, bit);
    let fill = |edit: &mut BlockEdit<'_>, half: &[u8]| {
        IndexHeader::read_mut(edit.range_mut(0, IndexHeader::SIZE)).depth = leaf_depth + 1;
        edit.range_mut(IndexHeader::SIZE, half.len() - IndexHeader::SIZE).copy_from_slice(&half[IndexHeader::SIZE..]);
    };
    txn.init(NewBlock::free(sibling), BlockKind::DirIndex, dir.0, |edit| fill(edit, &moved))?;
    txn.change(leaf, BlockKind::DirIndex, |edit| fill(edit, &stay))?;
    set_pointer(txn, source, dir, *root, (tag & (bit - 1)) | bit, sibling)
}

/// Shares the records of a leaf between two, by a bit of their tags. Nearly all lie in their home line, and keep their place in it,
/// since nothing else can have it; those that an overflow had put elsewhere are put anew.
fn halves(old: &[u8], bit: u32) -> [Vec<u8>; 2] {
    let mut halves = [vec![0; old.len()], vec![0; old.len()]];
    let lines = leaf_lines(old.len());
    let mut displaced = Vec::new();
    for line in 0..lines {
        for place in 0..LINE_RECORDS {
            let raw = record_at(old, line, place);
            let ino = raw.ino.get() & !OVERFLOWED;
            if ino == 0 {
                continue;
            }
            let tag = raw.tag.get();
            if home_line(tag, lines) == line {
                let half = &mut halves[usize::from(tag & bit != 0)];
                let at = record_offset(line, place);
                let kept = IndexRecord::read_mut(&mut half[at..at + IndexRecord::SIZE]);
                *kept = *raw;
                kept.ino = U64::new(ino);
            } else {
                displaced.push(Record { tag, position: raw.position.get(), ino: Ino(ino) });
            }
        }
    }
    for record in displaced {
        let mut unmarked = 0;
        let half = &mut halves[usize::from(record.tag & bit != 0)];
        let fits = put(&mut BlockEdit::new(half, &mut unmarked), record, usize::MAX);
        assert!(fits, "half a leaf fits a leaf");
    }
    halves
}

/// Doubles the table. A leaf as root gets a node above it; a full radix tree gets a level.
fn grow(txn: &mut Txn<'_>, source: &mut BlockSource, dir: Ino, root: &mut FsBlock, root_is_leaf: bool) -> Result<()> {
    txn.volume().counters.bump(Count::dir_doublings);
    let bits = node_bits(txn.volume().geometry.block_bits);
    let top = txn.look.read(*root, BlockKind::DirIndex, |bytes| *IndexHeader::read(bytes))?;
    if !root_is_leaf && u32::from(top.depth) < bits * u32::from(top.level) {
        return txn.change(*root, BlockKind::DirIndex, |edit| {
            IndexHeader::read_mut(edit.range_mut(0, IndexHeader::SIZE)).depth = top.depth + 1;
        });
    }
    let node = source.allocate(txn)?;
    let old = *root;
    txn.init(NewBlock::free(node), BlockKind::DirIndex, dir.0, |edit| {
        let header = IndexHeader::read_mut(edit.range_mut(0, IndexHeader::SIZE));
        header.level = top.level + 1;
        header.depth = top.depth + 1;
        header.room_head = top.room_head;
        header.entry_blocks = top.entry_blocks;
        let (at, bytes) = encode_pointer(0, old.0);
        edit.put(at, &bytes);
    })?;
    txn.change(old, BlockKind::DirIndex, |edit| {
        let header = IndexHeader::read_mut(edit.range_mut(0, IndexHeader::SIZE));
        header.room_head = U32::new(0);
        header.entry_blocks = U32::new(0);
        if header.level > 0 {
            header.depth = 0;
        }
    })?;
    *root = node;
    Ok(())
}

/// Writes pointer `index`, making the nodes on the way.
fn set_pointer(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    dir: Ino,
    root: FsBlock,
    index: u32,
    target: FsBlock,
) -> Result<()> {
    let bits = node_bits(txn.volume().geometry.block_bits);
    let level = txn.look.read(root, BlockKind::DirIndex, |bytes| header_of(bytes, dir, root).copied())??.level;
    let mut node = root;
    for at_level in (1..=level).rev() {
        let at = (index >> (bits * u32::from(at_level - 1))) as usize & ((1 << bits) - 1);
        if at_level == 1 {
            let (offset, bytes) = encode_pointer(at, target.0);
            return txn.change(node, BlockKind::DirIndex, |edit| edit.put(offset, &bytes));
        }
        let mut child = FsBlock(txn.look.read(node, BlockKind::DirIndex, |bytes| pointer(bytes, at))?);
        if child.is_none() {
            child = source.allocate(txn)?;
            txn.init(NewBlock::free(child), BlockKind::DirIndex, dir.0, |edit| {
                IndexHeader::read_mut(edit.range_mut(0, IndexHeader::SIZE)).level = at_level - 1;
            })?;
            let (offset, bytes) = encode_pointer(at, child.0);
            txn.change(node, BlockKind::DirIndex, |edit| edit.put(offset, &bytes))?;
        }
        node = child;
    }
    Err(corrupt(dir, root, "level", u64::from(level)))
}

/// Changes the record of one entry: `ino` `None` removes it. False if there is none. It is in the leaf given with the root, if that
/// is known.
pub(crate) fn update(
    txn: &mut Txn<'_>,
    dir: Ino,
    (root, leaf): (FsBlock, FsBlock),
    tag: u32,
    position: u32,
    ino: Option<Ino>,
) -> Result<bool> {
    let leaf = if leaf == FsBlock::NONE { find_leaf(&txn.look, dir, root, tag)? } else { leaf };
    txn.change(leaf, BlockKind::DirIndex, |edit| {
        let found = probe(edit.bytes(), tag, |at, record| (record.position == position).then_some(at));
        let Some(at) = found else { return false };
        let raw = IndexRecord::read_mut(edit.range_mut(at, IndexRecord::SIZE));
        let kept = raw.ino.get() & OVERFLOWED;
        if ino.is_none() {
            *raw = IndexRecord::zeroed();
        }
        raw.ino = U64::new(ino.map_or(0, |ino| ino.0) | kept);
        true
    })
}

/// What takes the leaf with the highest number out of an index: the leaf it was split from has its share again.
pub(crate) struct Merge {
    leaf: FsBlock,
    /// The leaf it was split from.
    other: FsBlock,
    /// The depth that `other` has again.
    depth: u8,
    /// Nodes from the root to the leaf, and the pointer in each that leads there.
    way: Vec<(FsBlock, usize)>,
}

/// Finds the leaf with the highest number, if there is more than one. Neither it nor the leaf it was split from may have
/// records. Only looks.
pub(crate) fn last_leaf(look: &Look<'_>, dir: Ino, root: FsBlock) -> Result<Option<Merge>> {
    let bits = node_bits(look.volume.geometry.block_bits);
    let top = look.read(root, BlockKind::DirIndex, |bytes| header_of(bytes, dir, root).copied())??;
    let mut way = Vec::with_capacity(usize::from(top.level));
    let (mut node, mut number) = (root, 0_u64);
    for level in (1..=top.level).rev() {
        let (at, child) = look.read(node, BlockKind::DirIndex, |bytes| {
            let header = header_of(bytes, dir, node)?;
            if header.level != level {
                return Err(corrupt(dir, node, "level", u64::from(header.level)));
            }
            let last = (0..1_usize << bits).rev().map(|at| (at, pointer(bytes, at))).find(|&(_, child)| child != 0);
            last.ok_or_else(|| corrupt(dir, node, "pointer", 0))
        })??;
        way.push((node, at));
        number = number << bits | at as u64;
        node = FsBlock(child);
    }
    if number == 0 {
        return Ok(None);
    }
    if number >> top.depth != 0 {
        return Err(corrupt(dir, root, "pointer", number));
    }
    // With no higher number left, either leaf has the depth of the split that parted them.
    let number = number as u32;
    let depth = (31 - number.leading_zeros()) as u8;
    let other = find_leaf(look, dir, root, number & !(1 << depth))?;
    for leaf in [node, other] {
        look.read(leaf, BlockKind::DirIndex, |bytes| {
            let header = header_of(bytes, dir, leaf)?;
            let wrong = match (header.level, all_records(bytes).first()) {
                (0, None) if header.depth == depth + 1 => return Ok(()),
                (0, None) => ("depth", u64::from(header.depth)),
                (0, Some(record)) => ("record", u64::from(record.position)),
                (level, _) => ("level", u64::from(level)),
            };
            Err(corrupt(dir, leaf, wrong.0, wrong.1))
        })??;
    }
    Ok(Some(Merge { leaf: node, other, depth, way }))
}

/// Takes a leaf out of an index, and the nodes that then have no pointer.
pub(crate) fn merge(txn: &mut Txn<'_>, source: &mut BlockSource, merge: Merge) -> Result<()> {
    let Merge { leaf, other, depth, mut way } = merge;
    txn.change(other, BlockKind::DirIndex, |edit| {
        IndexHeader::read_mut(edit.range_mut(0, IndexHeader::SIZE)).depth = depth;
    })?;
    let mut gone = leaf;
    while let Some((node, at)) = way.pop() {
        source.free(txn, gone);
        let (offset, bytes) = encode_pointer(at, 0);
        let is_empty = txn.change(node, BlockKind::DirIndex, |edit| {
            edit.put(offset, &bytes);
            (0..at).all(|at| pointer(edit.bytes(), at) == 0)
        })?;
        if !is_empty {
            break;
        }
        gone = node;
    }
    Ok(())
}

/// Calls `f` with every block of the index, leaves included.
pub(crate) fn for_each_block(look: &Look<'_>, dir: Ino, root: FsBlock, f: &mut impl FnMut(FsBlock)) -> Result<()> {
    let level = look.read(root, BlockKind::DirIndex, |bytes| header_of(bytes, dir, root).copied())??.level;
    // No sound index has more blocks than the volume; pointers that meet in a few blocks could make a walk of ages.
    let mut left = look.volume.geometry.block_count;
    visit(look, dir, root, level, &mut |block| {
        left = left.saturating_sub(1);
        f(block);
        left > 0
    })
}

fn visit(look: &Look<'_>, dir: Ino, block: FsBlock, level: u8, f: &mut dyn FnMut(FsBlock) -> bool) -> Result<()> {
    if level > 0 {
        let count = 1_usize << node_bits(look.volume.geometry.block_bits);
        let children = look.read(block, BlockKind::DirIndex, |bytes| {
            let header = header_of(bytes, dir, block)?;
            if header.level != level {
                return Err(corrupt(dir, block, "level", u64::from(header.level)));
            }
            Ok((0..count).map(|at| pointer(bytes, at)).filter(|&child| child != 0).collect::<Vec<_>>())
        })??;
        for child in children {
            if level == 1 {
                if !f(FsBlock(child)) {
                    return Err(corrupt(dir, block, "pointer", child));
                }
            } else {
                visit(look, dir, FsBlock(child), level - 1, f)?;
            }
        }
    }
    if f(block) { Ok(()) } else { Err(corrupt(dir, block, "pointer", block.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namei;
    use crate::ops::{NewFile, Ops};
    use crate::types::{Cred, MkfsOptions, MountOptions};
    use crate::volume::Volume;
    use crate::volume::transact;
    use myriad_device::{AlignedBuf, BlockDevice, MemoryDevice};
    use myriad_format::inode::{S_IFDIR, S_IFREG};
    use myriad_format::superblock::Superblock;
    use std::sync::Arc;

    /// With large blocks, tags were shifted by more bits than they have: a panic where overflows are checked.
    #[test]
    fn a_root_that_claims_more_levels_than_tags_have_bits_for_is_corrupt() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
        let options = MkfsOptions { block_size: 16384, ..MkfsOptions::default() };
        crate::mkfs::format(device.clone(), None, &options).unwrap();
        let mut block = AlignedBuf::zeroed(16384);
        device.read(0, &mut block).unwrap();
        let superblock = Superblock::decode(&block, FsBlock(0)).unwrap();
        let options = MountOptions { background: false, cache_size: 32 << 20, ..MountOptions::default() };
        let log = crate::mkfs::log_place(&superblock, &device, None).unwrap();
        let volume = Volume::assemble(device, log, superblock, options).unwrap();
        volume.load_totals(&superblock);
        let cred = Cred::root();
        let ops = Ops { volume: &volume, cred: &cred, caller: &cred };
        let root = namei::root(&volume.look()).unwrap();
        let dir = ops.make(root, b"d", &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap().node();
        let new = NewFile { mode: S_IFREG | 0o644, ..NewFile::default() };
        for i in 0..300 {
            ops.make(dir, format!("{i:08}").as_bytes(), &new).unwrap();
        }
        let raw = crate::inode::read_node(&volume.look(), dir).unwrap();
        let index = crate::dir::indexed::index_root(&raw).unwrap();
        // 11 bits a level, of 30: three levels are the most.
        for level in 4..=u8::MAX {
            transact(&volume, 0, |txn| {
                txn.change(index, BlockKind::DirIndex, |edit| {
                    let header = IndexHeader::read_mut(edit.range_mut(0, IndexHeader::SIZE));
                    (header.level, header.depth) = (level, DEPTH_MAX);
                    let (at, bytes) = encode_pointer(0, index.0);
                    edit.put(at, &bytes);
                })
            })
            .unwrap();
            let found = ops.lookup(dir, b"00000000").unwrap_err();
            let is_level = |found: &Error| matches!(found, Error::Corrupt(what) if matches!(**what, Corrupt::DirIndex { field: "level", .. }));
            assert!(is_level(&found), "{found}");
        }
    }
}
