//! A map of pointers (`map=blockmap`): 15 behind the inode in the table, and blocks of pointers to which the last three of them lead.
//!
//! ```text
//! inode  0 .. 11   -> file blocks
//!        12        -> pointers -> file blocks
//!        13        -> pointers -> pointers -> file blocks
//!        14        -> pointers -> pointers -> pointers -> file blocks
//! ```
//!
//! For example, with blocks of 4 KiB a block of pointers has 496. File block 11 is pointer 11 of the inode. File block 100 is pointer 88 of
//! the block that pointer 12 leads to. File block 600 is behind pointer 13: 600 - 12 - 496 = 92, so it is pointer 92 of the first block below.
//!
//! The pointers of an inode lie beside it in its block of the table, and are changed there at once. The copy of the inode that callers hold
//! has only the kind of its fork and the number of its blocks.
//!
//! Invariants
//!   1. A block of pointers has at least one that is not 0. So has an inode whose fork is BLOCKS, except a directory that has an index.
//!   2. The inode's `blocks` counts the blocks mapped and the blocks of pointers, besides what others put there.
//!   3. The pointers of an inode whose fork is not BLOCKS mean nothing: the first insertion clears them.
//!
//! On a volume with fragments all functions of the door count in fragments, also for files. A pointer of a file leads to a whole block of
//! fragments; a direct pointer may also lead to the first few fragments of a block, and the rest of that block is a hole. A fragment with content
//! lies behind others that have content or read as zeros. `run_of` and `lengthen` are for `file::fragments`, which gives files their
//! fragments.
//!
//! A refusal for lack of space changes nothing: an insertion takes all blocks of pointers that it needs before its first change.

#[cfg(test)]
mod tests;

use super::mapping::{FILE_END, Mapping};
use crate::edit::{BlockEdit, BlockRead, BlockStore, NewBlock, NodeSource};
use crate::error::Result;
use myriad_format::extent::Extent;
use myriad_format::fork::Fork;
use myriad_format::inode::RawInode;
use myriad_format::pointers::{self, Pointer, RawPointer, Span, Way};
use myriad_format::table::{DIRECT, POINTERS};
use myriad_format::{BlockKind, Corrupt, FileBlock, FsBlock, Geometry, Ino, header};
use std::ops::Range;
use zerocopy::IntoBytes;

/// Most blocks that the map of a file has whose blocks one transaction frees.
const ONE_TXN_MAX: u64 = 1024;

/// Some pointers side by side: those of an inode, or of a block of pointers.
#[derive(Clone, Copy)]
enum Array {
    /// Block of the table, and byte of the first pointer.
    Inode(FsBlock, usize),
    Node(FsBlock),
}

impl Array {
    fn of_inode(geometry: &Geometry, ino: Ino) -> Result<Self> {
        let (block, at) = geometry.pointers_place(ino).ok_or(Corrupt::NoInode { ino })?;
        Ok(Self::Inode(block, at))
    }

    /// What its pointers to file blocks lead to, which have so many fragments.
    fn span(&self, bits: u32) -> Span {
        Span { fragments: 1 << bits, is_whole: matches!(self, Self::Node(_)) }
    }

    fn offset(&self, index: usize) -> usize {
        match self {
            Self::Inode(_, at) => at + index * RawPointer::SIZE,
            Self::Node(_) => pointers::offset(index),
        }
    }

    /// Looks at the pointers; `f` gets the one that is asked for by its index.
    fn read<S: BlockRead, R>(
        &self,
        store: &mut S,
        ino: Ino,
        f: impl FnOnce(&dyn Fn(usize) -> RawPointer) -> R,
    ) -> Result<R> {
        let at = |bytes: &[u8], index| *RawPointer::read(&bytes[self.offset(index)..]);
        match *self {
            Self::Inode(block, _) => store.read(block, BlockKind::InodeTable, |bytes| f(&|index| at(bytes, index))),
            Self::Node(block) => store.read(block, BlockKind::Pointers, |bytes| {
                header::verify_owner(bytes, block, ino.0)?;
                Ok(f(&|index| at(bytes, index)))
            })?,
        }
    }

    fn change<S: BlockStore>(&self, store: &mut S, f: impl FnOnce(&mut BlockEdit<'_>)) -> Result<()> {
        match *self {
            Self::Inode(block, _) => store.change(block, BlockKind::InodeTable, f),
            Self::Node(block) => store.change(block, BlockKind::Pointers, f),
        }
    }

    /// Sets pointers from `first` on.
    fn put<S: BlockStore>(
        &self,
        store: &mut S,
        first: usize,
        pointers: impl IntoIterator<Item = RawPointer>,
    ) -> Result<()> {
        self.change(store, |edit| {
            for (index, pointer) in (first..).zip(pointers) {
                edit.put(self.offset(index), pointer.as_bytes());
            }
        })
    }
}

/// What lies on the way to a file block.
enum End {
    /// The pointer to it is this one of these, which has so many behind it. `until`: what the next one leads to that is not 0.
    Reached { array: Array, index: usize, behind: usize, until: FileBlock },
    /// A pointer on the way is 0: nothing is mapped before this block.
    Hole { until: FileBlock },
}

/// The arrays on the way to a file block, each with the index of the pointer that leads on; as far as there are any.
struct Steps {
    way: Way,
    steps: [(Array, usize); pointers::DEPTH_MAX + 1],
    count: usize,
}

impl Steps {
    fn list(&self) -> &[(Array, usize)] {
        &self.steps[..self.count]
    }

    /// Whether they lead to the pointer of the file block itself.
    fn is_whole(&self) -> bool {
        self.count == self.way.depth + 1
    }
}

/// log2 of the fragments of what the inode's pointers lead to.
fn bits_of(geometry: &Geometry, inode: &RawInode) -> u32 {
    geometry.file_fragment_bits(inode.file_type())
}

/// Of its file block, the fragment that this one of the file is.
fn within(fragment: u64, bits: u32) -> u32 {
    (fragment & ((1 << bits) - 1)) as u32
}

fn check_fork(inode: &RawInode, ino: Ino) -> Result<bool> {
    match Fork::decode(inode, ino)? {
        Fork::None => Ok(false),
        Fork::Blocks { .. } => Ok(true),
        _ => Err(Corrupt::Inode { ino, field: "fork_kind", value: u64::from(inode.fork_kind) }.into()),
    }
}

/// Goes as far towards a file block as pointers lead.
fn go<S: BlockRead>(store: &mut S, ino: Ino, way: Way, at: FileBlock) -> Result<Steps> {
    let geometry = store.geometry();
    let first = (Array::of_inode(&geometry, ino)?, way.root);
    let mut steps = Steps { way, steps: [first; pointers::DEPTH_MAX + 1], count: 1 };
    for level in 0..way.depth {
        let (array, index) = steps.steps[level];
        let raw = array.read(store, ino, |pointer| pointer(index))?;
        let at = FileBlock(geometry.node_span(&way, level, at).start);
        let Some(block) = Pointer::decode_inner(raw, &geometry, ino, at)? else { break };
        steps.steps[level + 1] = (Array::Node(block), way.index(level));
        steps.count += 1;
    }
    Ok(steps)
}

/// First file block that a pointer leads to: pointer `index` of the array at the end of `steps`.
fn leads_to(geometry: &Geometry, steps: &Steps, at: FileBlock, index: usize) -> u64 {
    match steps.count {
        1 => geometry.root_span(index).start,
        count => {
            let level = count - 2;
            let below = steps.way.depth - 1 - level;
            geometry.node_span(&steps.way, level, at).start + index as u64 * geometry.pointer_span(below)
        }
    }
}

fn find<S: BlockRead>(store: &mut S, inode: &RawInode, ino: Ino, at: FileBlock) -> Result<End> {
    let geometry = store.geometry();
    let past = End::Hole { until: FILE_END };
    if !check_fork(inode, ino)? {
        return Ok(past);
    }
    let Some(way) = geometry.way(at) else { return Ok(past) };
    let steps = go(store, ino, way, at)?;
    let (array, index) = steps.list()[steps.count - 1];
    let count = if steps.count == 1 { POINTERS } else { geometry.pointers_per_block() };
    let is_set = |raw: RawPointer| raw.word.get() != 0;
    let (is_there, next) = array.read(store, ino, |pointer| {
        (is_set(pointer(index)), (index + 1..count).find(|&index| is_set(pointer(index))))
    })?;
    // Where the next pointer of the same array leads; behind the last, where the array ends.
    let until = FileBlock(match next {
        Some(next) => leads_to(&geometry, &steps, at, next),
        None if steps.count == 1 => FILE_END.0,
        None => geometry.node_span(&way, steps.count - 2, at).end,
    });
    if is_there && steps.is_whole() {
        let end = if steps.count == 1 { DIRECT } else { count };
        return Ok(End::Reached { array, index, behind: end - index - 1, until });
    }
    Ok(End::Hole { until })
}

/// What `file_block` of the file is: of what is mapped, the run that begins with it, as far as one block has its pointers.
pub(super) fn lookup<S: BlockRead>(
    store: &mut S,
    inode: &RawInode,
    ino: Ino,
    file_block: FileBlock,
) -> Result<Mapping> {
    let geometry = store.geometry();
    let bits = bits_of(&geometry, inode);
    let fragment = |block: FileBlock| FileBlock(if block == FILE_END { block.0 } else { block.0 << bits });
    let (array, index, behind, until) = match find(store, inode, ino, FileBlock(file_block.0 >> bits))? {
        End::Hole { until } => return Ok(Mapping::Hole { until: fragment(until) }),
        End::Reached { array, index, behind, until } => (array, index, behind, until),
    };
    let extent = array.read(store, ino, |pointer| {
        let first = pointer(index);
        let Some(decoded) = Pointer::decode_data(first, &geometry, ino, file_block, array.span(bits))? else {
            return Err(Corrupt::Pointer { ino, at: file_block, word: 0 });
        };
        if within(file_block.0, bits) >= decoded.length {
            return Ok(None);
        }
        let run = decoded.run(&geometry, file_block, 1 << bits, (index + 1..=index + behind).map(pointer));
        if geometry.is_data_range(run.start, u64::from(run.length)) {
            Ok(Some(run))
        } else {
            Err(Corrupt::Pointer { ino, at: file_block, word: first.word.get() })
        }
    })??;
    Ok(extent.map_or(Mapping::Hole { until: fragment(until) }, Mapping::Mapped))
}

/// Whether so few blocks are mapped that one transaction frees them.
pub(super) fn fits_one_txn<S: BlockRead>(store: &mut S, inode: &RawInode, ino: Ino) -> Result<bool> {
    if !check_fork(inode, ino)? {
        return Ok(true);
    }
    let geometry = store.geometry();
    let array = Array::of_inode(&geometry, ino)?;
    let (is_deep, node) = array.read(store, ino, |pointer| {
        ((DIRECT + 1..POINTERS).any(|index| pointer(index).word.get() != 0), pointer(DIRECT))
    })?;
    if is_deep || inode.block_total() > ONE_TXN_MAX {
        return Ok(false);
    }
    if let Some(node) = Pointer::decode_inner(node, &geometry, ino, FileBlock(DIRECT as u64))? {
        // It has to be read by whoever frees all.
        Array::Node(node).read(store, ino, |_| ())?;
    }
    Ok(true)
}

/// The parts of `range` whose pointers lie side by side in one array.
fn pieces(geometry: Geometry, range: Range<u64>) -> impl Iterator<Item = (Way, Range<u64>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let way = geometry.way(FileBlock(at))?;
        let end = match way.depth {
            0 => DIRECT as u64,
            depth => geometry.node_span(&way, depth - 1, FileBlock(at)).end,
        };
        let piece = at..end.min(range.end);
        at = piece.end;
        Some((way, piece))
    })
}

/// Maps a hole to `extent`.
pub(super) fn insert<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    extent: Extent,
) -> Result<()> {
    let geometry = store.geometry();
    let bits = bits_of(&geometry, inode);
    let end = extent.end().0;
    debug_assert!(within(extent.file_block.0, bits) == 0, "file blocks begin with their first fragment");
    let range = extent.file_block.0 >> bits..end.div_ceil(1 << bits);
    if range.end > geometry.pointed_blocks_max() {
        return Err(Corrupt::Inode { ino, field: "file block", value: range.end }.into());
    }
    let is_new = !check_fork(inode, ino)?;
    let missing = missing_nodes(store, is_new, ino, range.clone())?;
    let mut nodes = Vec::with_capacity(missing);
    for _ in 0..missing {
        match source.allocate(store) {
            Ok(node) => nodes.push(node),
            Err(error) => {
                for NewBlock { block, .. } in nodes {
                    source.free(store, block)?;
                }
                return Err(error);
            }
        }
    }
    // The first of them is to be the first in the file.
    nodes.reverse();
    if is_new {
        Array::of_inode(&geometry, ino)?.put(store, 0, [RawPointer::zeroed(); POINTERS])?;
        Fork::Blocks { index: FsBlock::NONE }.encode(inode);
    }
    inode.add_blocks(missing as i64 + i64::from(extent.length));
    for (way, piece) in pieces(geometry, range) {
        let at = FileBlock(piece.start);
        let mut steps = go(store, ino, way, at)?;
        while !steps.is_whole() {
            let (array, index) = steps.list()[steps.count - 1];
            let node = nodes.pop().ok_or(Corrupt::Inode { ino, field: "pointers", value: piece.start })?;
            store.init(node, BlockKind::Pointers, ino.0, |_| ())?;
            array.put(store, index, [Pointer::new(node.block, 1, false).encode(&geometry)])?;
            steps.steps[steps.count] = (Array::Node(node.block), way.index(steps.count - 1));
            steps.count += 1;
        }
        let (array, index) = steps.list()[steps.count - 1];
        let pointer = |block: u64| {
            let from = block << bits;
            let length = (end - from).min(1 << bits) as u32;
            debug_assert!(length == 1 << bits || way.depth == 0, "only direct pointers lead to parts of a block");
            let start = extent.start.offset_by(from - extent.file_block.0);
            Pointer::new(start, length, extent.unwritten).encode(&geometry)
        };
        array.put(store, index, piece.map(pointer))?;
    }
    Ok(())
}

/// How many blocks of pointers an insertion at `range` has to make; it is damage if anything is mapped there.
fn missing_nodes<S: BlockRead>(store: &mut S, is_new: bool, ino: Ino, range: Range<u64>) -> Result<usize> {
    let geometry = store.geometry();
    let mut count = 0;
    // Where those that were counted end, by level from the file blocks on.
    let mut ends = [0; pointers::DEPTH_MAX];
    for (way, piece) in pieces(geometry, range) {
        let at = FileBlock(piece.start);
        let there = if is_new {
            1
        } else {
            let steps = go(store, ino, way, at)?;
            if steps.is_whole() {
                let (array, index) = steps.list()[steps.count - 1];
                let length = (piece.end - piece.start) as usize;
                let taken = array.read(store, ino, |pointer| {
                    let mut set = (index..index + length).map(|index| pointer(index).word.get()).zip(piece.clone());
                    set.find(|&(word, _)| word != 0)
                })?;
                if let Some((word, at)) = taken {
                    return Err(Corrupt::Pointer { ino, at: FileBlock(at), word }.into());
                }
            }
            steps.count
        };
        for level in there - 1..way.depth {
            let end = geometry.node_span(&way, level, at).end;
            let counted = &mut ends[way.depth - 1 - level];
            if *counted < end {
                *counted = end;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// As `map::remove`.
pub(super) fn remove<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    range: Range<FileBlock>,
    max_runs: usize,
    freed: &mut Vec<(FsBlock, u32)>,
) -> Result<Option<FileBlock>> {
    let bits = bits_of(&store.geometry(), inode);
    let mut at = range.start;
    let (mut runs, mut has_changed) = (0, false);
    while at < range.end {
        let extent = match lookup(store, inode, ino, at) {
            Ok(Mapping::Hole { until }) => {
                // Power loss may have left blocks of pointers in it that lead nowhere. They would stay for ever, and the inode keep a
                // map that maps nothing.
                if check_fork(inode, ino)? {
                    let nodes = free_empty(store, source, ino, FileBlock(at.0 >> bits))?;
                    inode.add_blocks(-nodes);
                    has_changed |= nodes > 0;
                }
                at = until;
                continue;
            }
            Ok(Mapping::Mapped(_)) if runs == max_runs => break,
            Ok(Mapping::Mapped(extent)) => extent,
            // It is the first thing that the next call finds.
            Err(_) if has_changed => break,
            Err(error) => return Err(error),
        };
        runs += 1;
        has_changed = true;
        let whole = range.end.0.min(extent.end().0) >> bits;
        if bits > 0 && (within(at.0, bits) > 0 || whole <= at.0 >> bits) {
            at = cut(store, source, inode, ino, at..range.end, freed)?;
            continue;
        }
        let length = if bits > 0 { (whole << bits) - at.0 } else { u64::from(extent.length).min(range.end.0 - at.0) };
        let length = length as u32;
        let nodes = clear(store, source, ino, FileBlock(at.0 >> bits), length >> bits)?;
        inode.add_blocks(-(i64::from(length) + nodes));
        note_freed(freed, extent.start, length);
        at = FileBlock(at.0 + u64::from(length));
    }
    close(store, inode, ino)?;
    Ok((at < range.end).then_some(at))
}

/// As `map::read_ahead`.
pub(super) fn read_ahead<S: BlockRead>(store: &mut S, inode: &RawInode, ino: Ino, from: FileBlock) -> Result<()> {
    let mut at = from;
    while at < FILE_END {
        at = match lookup(store, inode, ino, at)? {
            Mapping::Hole { until } => until,
            Mapping::Mapped(extent) => extent.end(),
        };
    }
    Ok(())
}

fn note_freed(freed: &mut Vec<(FsBlock, u32)>, start: FsBlock, length: u32) {
    match freed.last_mut() {
        Some((last, count)) if last.offset_by(u64::from(*count)) == start => *count += length,
        _ => freed.push((start, length)),
    }
}

/// Unmaps those fragments of the file block of `range.start` that lie in `range`; where the next file block begins, or the range ends. A run keeps its
/// beginning: what is unmapped before its end reads as zero, and so does the end of a block that a block of pointers leads to. If nothing of it
/// is left, it is freed as a whole.
fn cut<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    range: Range<FileBlock>,
    freed: &mut Vec<(FsBlock, u32)>,
) -> Result<FileBlock> {
    let bits = bits_of(&store.geometry(), inode);
    let block = FileBlock(range.start.0 >> bits);
    let next = FileBlock(((block.0 + 1) << bits).min(range.end.0));
    let (array, index, pointer) = pointer_of(store, inode, ino, block)?;
    let from = within(range.start.0, bits);
    let end = ((next.0 - (block.0 << bits)) as u32).min(pointer.length);
    let rest = pointer.unwritten | pointers::mask(from, end);
    let is_direct = matches!(array, Array::Inode(..));
    if from == 0 && end == pointer.length {
        let nodes = clear(store, source, ino, block, 1)?;
        inode.add_blocks(-(i64::from(end) + nodes));
        note_freed(freed, pointer.block, end);
    } else if is_direct && end == pointer.length {
        let left = Pointer { length: from, unwritten: rest & pointers::mask(0, from), ..pointer };
        array.put(store, index, [left.encode(&store.geometry())])?;
        inode.add_blocks(-i64::from(end - from));
        note_freed(freed, pointer.block.offset_by(from.into()), end - from);
    } else if rest != pointer.unwritten {
        array.put(store, index, [Pointer { unwritten: rest, ..pointer }.encode(&store.geometry())])?;
    }
    Ok(next)
}

/// The pointer to a file block, which is not 0, and where it lies.
fn pointer_of<S: BlockRead>(
    store: &mut S,
    inode: &RawInode,
    ino: Ino,
    block: FileBlock,
) -> Result<(Array, usize, Pointer)> {
    let geometry = store.geometry();
    let bits = bits_of(&geometry, inode);
    let End::Reached { array, index, .. } = find(store, inode, ino, block)? else {
        return Err(Corrupt::Pointer { ino, at: block, word: 0 }.into());
    };
    let raw = array.read(store, ino, |pointer| pointer(index))?;
    match Pointer::decode_data(raw, &geometry, ino, FileBlock(block.0 << bits), array.span(bits))? {
        Some(pointer) => Ok((array, index, pointer)),
        None => Err(Corrupt::Pointer { ino, at: block, word: 0 }.into()),
    }
}

/// The run that the file block with a fragment of a file lies in: its first fragment, and how many there are; `None` if it has none.
pub(super) fn run_of<S: BlockRead>(
    store: &mut S,
    inode: &RawInode,
    ino: Ino,
    file_block: FileBlock,
) -> Result<Option<Pointer>> {
    let bits = bits_of(&store.geometry(), inode);
    let block = FileBlock(file_block.0 >> bits);
    match find(store, inode, ino, block)? {
        End::Hole { .. } => Ok(None),
        End::Reached { .. } => pointer_of(store, inode, ino, block).map(|(.., pointer)| Some(pointer)),
    }
}

/// Adds `more` fragments, which lie behind it and are unwritten, to the run of the file block with a fragment of a file.
pub(super) fn lengthen<S: BlockStore>(
    store: &mut S,
    inode: &mut RawInode,
    ino: Ino,
    file_block: FileBlock,
    more: u32,
) -> Result<()> {
    let bits = bits_of(&store.geometry(), inode);
    let (array, index, pointer) = pointer_of(store, inode, ino, FileBlock(file_block.0 >> bits))?;
    let length = pointer.length + more;
    let unwritten = pointer.unwritten | pointers::mask(pointer.length, length);
    array.put(store, index, [Pointer { length, unwritten, ..pointer }.encode(&store.geometry())])?;
    inode.add_blocks(more.into());
    Ok(())
}

/// Clears pointers, which lie side by side, and frees the blocks of pointers that have no other; how many those are.
fn clear<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    ino: Ino,
    at: FileBlock,
    length: u32,
) -> Result<i64> {
    let geometry = store.geometry();
    let way = geometry.way(at).ok_or(Corrupt::Inode { ino, field: "file block", value: at.0 })?;
    let steps = go(store, ino, way, at)?;
    let (array, index) = steps.list()[steps.count - 1];
    array.put(store, index, std::iter::repeat_n(RawPointer::zeroed(), length as usize))?;
    free_empty(store, source, ino, at)
}

/// Frees the blocks of pointers on the way to a file block that have no pointer; how many those are.
fn free_empty<S: BlockStore, N: NodeSource<S>>(store: &mut S, source: &mut N, ino: Ino, at: FileBlock) -> Result<i64> {
    let geometry = store.geometry();
    let Some(way) = geometry.way(at) else { return Ok(0) };
    let steps = go(store, ino, way, at)?;
    let mut freed = 0;
    for pair in steps.list().windows(2).rev() {
        let [(parent, index), (Array::Node(node), _)] = *pair else { break };
        if has_any(store, Array::Node(node), geometry.pointers_per_block(), ino)? {
            break;
        }
        store.forget(node);
        source.free(store, node)?;
        freed += 1;
        parent.put(store, index, [RawPointer::zeroed()])?;
    }
    Ok(freed)
}

fn has_any<S: BlockRead>(store: &mut S, array: Array, count: usize, ino: Ino) -> Result<bool> {
    array.read(store, ino, |pointer| (0..count).any(|index| pointer(index).word.get() != 0))
}

/// An inode that maps nothing any more has no map, unless it is a directory's that has an index.
fn close<S: BlockRead>(store: &mut S, inode: &mut RawInode, ino: Ino) -> Result<()> {
    if check_fork(inode, ino)? && inode.index_root().is_none() {
        let array = Array::of_inode(&store.geometry(), ino)?;
        if !has_any(store, array, POINTERS, ino)? {
            Fork::None.encode(inode);
        }
    }
    Ok(())
}

/// Makes the unwritten blocks of `range` written ones.
pub(super) fn mark_written<S: BlockStore>(
    store: &mut S,
    inode: &RawInode,
    ino: Ino,
    range: Range<FileBlock>,
) -> Result<()> {
    let geometry = store.geometry();
    let bits = bits_of(&geometry, inode);
    let mut at = range.start;
    while at < range.end {
        let extent = match lookup(store, inode, ino, at)? {
            Mapping::Hole { until } => {
                at = until;
                continue;
            }
            Mapping::Mapped(extent) => extent,
        };
        let end = extent.end().0.min(range.end.0);
        if extent.unwritten {
            let blocks = at.0 >> bits..end.div_ceil(1 << bits);
            let (array, index, _) = pointer_of(store, inode, ino, FileBlock(blocks.start))?;
            let words: Vec<RawPointer> = array.read(store, ino, |pointer| {
                (index..).take((blocks.end - blocks.start) as usize).map(pointer).collect()
            })?;
            let mut written = Vec::with_capacity(words.len());
            for (raw, block) in words.into_iter().zip(blocks) {
                let first = block << bits;
                let pointer = Pointer::decode(raw, &geometry, ino, FileBlock(first))?;
                let pointer = pointer.ok_or(Corrupt::Pointer { ino, at: FileBlock(first), word: 0 })?;
                let (from, to) = (at.0.max(first) - first, end.min(first + u64::from(pointer.length)) - first);
                let unwritten = pointer.unwritten & !pointers::mask(from as u32, to as u32);
                written.push(Pointer { unwritten, ..pointer }.encode(&geometry));
            }
            array.put(store, index, written)?;
        }
        at = FileBlock(end);
    }
    Ok(())
}
