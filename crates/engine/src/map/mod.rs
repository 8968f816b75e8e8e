//! Where the blocks of a file, a link or a directory lie. This is the door of the seam `map`: each function asks the map that the volume has.
//!
//! ```text
//! extents/   runs of blocks in the inode's fork, then in a B+ tree
//! blocks/    a pointer for each block behind the inode, then blocks of pointers
//! ```
//!
//! Other code does not look at a fork to find out which blocks are mapped, how many blocks a change can take, or whether one transaction can
//! free them all: it asks here. The functions change a copy of the inode, and the caller writes the copy back, also after an error.
//!
//! A directory's map lies beside the root of its index, which belongs to the directory. The map and the directory agree on one thing: the fork
//! of an inode without any block mapped is NONE, unless it is a directory that still has an index.
//!
//! Locking: the inode's lock is held, exclusively by an operation that changes the map.
//! Not here: where blocks come from and go to (`space`, limbo); size and times of the file.

mod blocks;
mod extents;
mod mapping;
mod promises;

pub(crate) use mapping::{FILE_END, Mapping};
pub(crate) use promises::{Promised, promise_of_new};

use crate::cache::FRAMES_UNASKED;
use crate::edit::{BlockRead, BlockStore, NodeSource};
use crate::error::Result;
use myriad_format::choices::Map;
use myriad_format::extent::{Extent, LENGTH_MAX};
use myriad_format::inode::RawInode;
use myriad_format::pointers::Pointer;
use myriad_format::table::DIRECT;
use myriad_format::{FileBlock, FsBlock, Geometry, Ino};
use std::ops::Range;

/// Of pointers, each run may end with its block, and the next one may have parents of its own: so few of them keep an operation within the frames
/// that it need not ask for.
const POINTER_RUNS: usize = FRAMES_UNASKED / 2;

/// How many runs to look at in one stay inside the gate, where nothing can be evicted for what is read: a map may be larger than the cache.
pub(crate) fn looks_per_stay(geometry: &Geometry) -> usize {
    match geometry.map {
        Map::Extents => 1024,
        Map::Blocks => POINTER_RUNS,
    }
}

/// How many runs to unmap in one transaction.
pub(crate) fn runs_per_txn(geometry: &Geometry) -> usize {
    match geometry.map {
        Map::Extents => 256,
        Map::Blocks => POINTER_RUNS,
    }
}

/// Of so many blocks of files, one is for a node of a tree of extents: enough where free space lies in runs of a few dozen blocks.
const BLOCKS_PER_NODE: u64 = 1024;

/// What `file_block` of the file is.
pub(crate) fn lookup<S: BlockRead>(
    store: &mut S,
    inode: &RawInode,
    ino: Ino,
    file_block: FileBlock,
) -> Result<Mapping> {
    match store.geometry().map {
        Map::Extents => extents::lookup(store, inode, ino, file_block),
        Map::Blocks => blocks::lookup(store, inode, ino, file_block),
    }
}

/// Maps a hole to `extent`, which has no more blocks than [`run_max`] unless its pages were promised what it takes. One of a directory ends
/// before [`directory_blocks_max`].
pub(crate) fn insert<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    extent: Extent,
) -> Result<()> {
    debug_assert!(
        !inode.is_dir() || extent.end().0 <= directory_blocks_max(&store.geometry()),
        "whoever adds to a directory has asked for its end"
    );
    match store.geometry().map {
        Map::Extents => extents::insert(store, source, inode, ino, extent),
        Map::Blocks => blocks::insert(store, source, inode, ino, extent),
    }
}

/// Unmaps the blocks of `range`, from the front, at most `max_extents` runs. What was mapped there is appended to
/// `freed`. Returns the file block to go on from, or `None` when all of the range is done. What cannot be read is an error only where nothing
/// was unmapped before; else it ends the work there, and is the error of the next call.
pub(crate) fn remove<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    range: Range<FileBlock>,
    max_extents: usize,
    freed: &mut Vec<(FsBlock, u32)>,
) -> Result<Option<FileBlock>> {
    assert!(max_extents > 0);
    match store.geometry().map {
        Map::Extents => extents::remove(store, source, inode, ino, range, max_extents, freed),
        Map::Blocks => blocks::remove(store, source, inode, ino, range, max_extents, freed),
    }
}

/// As [`remove`], all of `range`; what cannot be read is an error, also in the middle.
pub(crate) fn remove_all<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    range: Range<FileBlock>,
    freed: &mut Vec<(FsBlock, u32)>,
) -> Result<()> {
    let mut next = Some(range.start);
    while let Some(start) = next {
        next = remove(store, source, inode, ino, start..range.end, usize::MAX, freed)?;
    }
    Ok(())
}

/// As [`remove`], of all from `from` on that is written, up to `max_extents` extents, and what is allocated beside them stays.
pub(crate) fn remove_written<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    from: FileBlock,
    max_extents: usize,
    freed: &mut Vec<(FsBlock, u32)>,
) -> Result<Option<FileBlock>> {
    let most_looks = looks_per_stay(&store.geometry());
    let (mut at, mut looks) = (from, 0);
    while at < FILE_END && is_mapped(inode) {
        if freed.len() >= max_extents || looks >= most_looks {
            return Ok(Some(at));
        }
        looks += 1;
        let next = lookup(store, inode, ino, at).and_then(|mapping| match mapping {
            Mapping::Hole { until } => Ok(until),
            Mapping::Mapped(extent) if extent.unwritten => Ok(extent.end()),
            Mapping::Mapped(extent) => {
                let left = remove(store, source, inode, ino, at..extent.end(), usize::MAX, freed)?;
                Ok(left.unwrap_or(extent.end()))
            }
        });
        at = match next {
            Ok(next) => next,
            Err(_) if !freed.is_empty() => return Ok(Some(at)),
            Err(error) => return Err(error),
        };
    }
    Ok(None)
}

/// Reads what unmapping all blocks from `from` on has to read, so that whoever changes something before meets no damage then.
pub(crate) fn read_ahead<S: BlockRead>(store: &mut S, inode: &RawInode, ino: Ino, from: FileBlock) -> Result<()> {
    if !is_mapped(inode) {
        return Ok(());
    }
    match store.geometry().map {
        Map::Extents => extents::read_ahead(store, inode, ino, from),
        Map::Blocks => blocks::read_ahead(store, inode, ino, from),
    }
}

/// Makes the unwritten blocks of `range` written ones.
pub(crate) fn mark_written<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
    range: Range<FileBlock>,
) -> Result<()> {
    match store.geometry().map {
        Map::Extents => extents::mark_written(store, source, inode, ino, range),
        Map::Blocks => blocks::mark_written(store, inode, ino, range),
    }
}

/// On a volume with fragments: the run that the file block with a fragment of a file lies in; `None` if it has none.
pub(crate) fn run_of<S: BlockRead>(
    store: &mut S,
    inode: &RawInode,
    ino: Ino,
    file_block: FileBlock,
) -> Result<Option<Pointer>> {
    blocks::run_of(store, inode, ino, file_block)
}

/// On a volume with fragments: adds `more`, which lie behind it and are unwritten, to the run of the file block with a fragment of a file.
pub(crate) fn lengthen<S: BlockStore>(
    store: &mut S,
    inode: &mut RawInode,
    ino: Ino,
    file_block: FileBlock,
    more: u32,
) -> Result<()> {
    blocks::lengthen(store, inode, ino, file_block, more)
}

/// Whether this file block of a file may have less than all of its fragments.
pub(crate) fn may_be_part(geometry: &Geometry, file_block: FileBlock) -> bool {
    file_block.0 >> geometry.fragment_bits < DIRECT as u64
}

/// Moves what lies where an attribute root would; to be called before the inode gets one.
pub(crate) fn leave_attr_room<S: BlockStore, N: NodeSource<S>>(
    store: &mut S,
    source: &mut N,
    inode: &mut RawInode,
    ino: Ino,
) -> Result<()> {
    match store.geometry().map {
        Map::Extents if inode.has_map() => extents::leave_attr_room(store, source, inode, ino),
        Map::Extents | Map::Blocks => Ok(()),
    }
}

/// Whether anything is mapped, or a directory has an index.
pub(crate) fn is_mapped(inode: &RawInode) -> bool {
    inode.has_map()
}

/// Whether one transaction can unmap all that is mapped, beside what else it has to do.
#[inline]
pub(crate) fn fits_one_txn<S: BlockRead>(store: &mut S, inode: &RawInode, ino: Ino) -> Result<bool> {
    if !is_mapped(inode) {
        return Ok(true);
    }
    match store.geometry().map {
        Map::Extents => extents::fits_one_txn(inode, ino),
        Map::Blocks => blocks::fits_one_txn(store, inode, ino),
    }
}

/// Bytes that the largest file has: every offset is a signed 64-bit number, and a map may end before.
pub(crate) fn size_max(geometry: &Geometry) -> u64 {
    match geometry.map {
        Map::Extents => i64::MAX as u64,
        Map::Blocks => geometry.pointed_blocks_max() << (geometry.block_bits + geometry.fragment_bits),
    }
}

/// Blocks that the map of the largest directory reaches. On a volume with fragments each is one fragment, where those of a file are whole
/// blocks of them. Tests of this crate are to come there.
pub(crate) fn directory_blocks_max(geometry: &Geometry) -> u64 {
    match geometry.map {
        Map::Extents => i64::MAX as u64 >> geometry.block_bits,
        Map::Blocks if cfg!(test) => 21,
        Map::Blocks => geometry.pointed_blocks_max(),
    }
}

/// Most blocks that may be mapped at once by a change that has reserved `MAP_BLOCKS` for the nodes of the map.
pub(crate) fn run_max(geometry: &Geometry) -> u32 {
    match geometry.map {
        Map::Extents => LENGTH_MAX,
        // At worst three blocks of pointers to file blocks, and on the way to them two of a double and two of a triple one.
        Map::Blocks => (2 * geometry.pointers_per_block() as u32) << geometry.fragment_bits,
    }
}

/// Of the blocks that are said to be available, those for nodes of a file's map that lead to less than they could; one for each [`blocks_per_node`] is counted
/// apart.
pub(crate) fn nodes_at_first(geometry: &Geometry) -> u64 {
    match geometry.map {
        Map::Extents => 0,
        // The double and the triple block of pointers, and on each of two levels the last block. With fragments, one of them may break a block.
        Map::Blocks => 4 + (u64::from(geometry.fragments()) - 1),
    }
}

/// Of so many blocks that are said to be available, one is for a node of the map that will lead to the others.
pub(crate) fn blocks_per_node(geometry: &Geometry) -> u64 {
    match geometry.map {
        Map::Extents => BLOCKS_PER_NODE,
        Map::Blocks => (geometry.pointers_per_block() as u64 - 1) << geometry.fragment_bits,
    }
}
