//! Fragments for a file's dirty pages (FFS: `ffs_realloccg`).
//!
//! On a volume with fragments a page is one fragment. Before a flush maps its pages, it gives each file block that has such a page a *run* of fragments
//! with room for them. All that is new in a run reads as zeros. To map a page is then only to say that its fragment is written, and fragments that
//! nobody wrote read as zeros and cost no write.
//!
//! ```text
//! the file goes on behind the block,      a whole block
//!   or no direct pointer leads to it
//! a direct pointer leads to it            as many fragments as reach the last page
//! it has a shorter run                    longer, if what follows is free; else another run takes its place
//! ```
//!
//! For example, 5 KiB in a file of a volume with blocks of 8 KiB and fragments of 1 KiB take a run of five fragments. When the file grows to 7 KiB and the
//! two fragments behind the run are free, the run becomes seven long; if they are not, seven fragments are taken elsewhere.
//!
//! A run that moves is written anew as a whole, in the transaction that frees the old run. So all its content must be in dirty pages by then: an
//! operation that makes a page for a fragment behind the end of a run first makes pages of all fragments of that run (`hold_run`). The blocks for a moved
//! run were promised: the first page of a file block is promised a whole block (`map::promises`).

use super::delalloc::{Enter, Flushed, ToMap, flush_pages, page, set_ahead};
use super::{FileData, OpenFile};
use crate::dir::BlockSource;
use crate::error::Result;
use crate::inode;
use crate::map;
use crate::order::Txn;
use crate::placement;
use crate::volume::{Share, Volume};
use myriad_format::extent::Extent;
use myriad_format::inode::RawInode;
use myriad_format::pointers::Pointer;
use myriad_format::{Corrupt, FileBlock, FsBlock, Ino};
use std::ops::Range;
use std::sync::Arc;

/// Of the run that was mapped last: the file block after it, and the block after it.
type Last = Option<(FileBlock, FsBlock)>;

/// The first fragment of the file block of a fragment.
fn first_of(volume: &Volume, fragment: u64) -> u64 {
    fragment >> volume.geometry.fragment_bits << volume.geometry.fragment_bits
}

/// Fragments of a run that have content.
fn written(run: &Pointer) -> impl Iterator<Item = u64> + use<> {
    let unwritten = run.unwritten;
    (0..u64::from(run.length)).filter(move |index| unwritten >> index & 1 == 0)
}

/// Before a page is made for a fragment: if that lies behind the run of its file block, makes pages of what the run has.
pub(super) fn hold_run(
    volume: &Volume,
    file: &OpenFile,
    data: &mut FileData,
    fragment: u64,
    share: Share,
) -> Result<()> {
    if data.emptied || !map::may_be_part(&volume.geometry, FileBlock(fragment)) {
        return Ok(());
    }
    let first = first_of(volume, fragment);
    let run = {
        let look = volume.look();
        let raw = inode::read_node(&look, file.node())?;
        map::run_of(&mut &look, &raw, file.ino, FileBlock(first))?
    };
    if let Some(run) = run.filter(|run| fragment - first >= run.length.into()) {
        for index in written(&run) {
            page(volume, file, data, first + index, false, share)?;
        }
    }
    Ok(())
}

/// Gives runs to the file blocks in which pages lie: for how many of the pages.
pub(super) fn give(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    ino: Ino,
    raw: &mut RawInode,
    ToMap { pages, size, reach, all }: ToMap<'_>,
) -> Result<usize> {
    let volume = txn.volume();
    let geometry = volume.geometry;
    let fragments = u64::from(geometry.fragments());
    let end = size.div_ceil(volume.cache.block_size() as u64);
    let mut last = None;
    // Whole blocks side by side that are holes.
    let mut holes = 0..0;
    let mut given = 0;
    for of_block in pages.chunk_by(|a, b| first_of(volume, a.block) == first_of(volume, b.block)) {
        let first = first_of(volume, of_block[0].block);
        if !all && given > 0 && txn.is_long() {
            break;
        }
        given += of_block.len();
        let run = map::run_of(&mut &txn.look, raw, ino, FileBlock(first))?;
        let reached = reach.filter(|reach| first_of(volume, reach.0) == first).map_or(first, |reach| reach.0);
        let need = reached.max(of_block[of_block.len() - 1].block) - first + 1;
        if run.is_some_and(|run| need <= run.length.into()) {
            continue;
        }
        let is_part = map::may_be_part(&geometry, FileBlock(first)) && end <= first + fragments;
        let want = if is_part { need } else { fragments };
        if run.is_none() && want == fragments {
            if holes.end != first {
                fill_whole(txn, source, ino, raw, holes, &mut last)?;
                holes = first..first;
            }
            holes.end += fragments;
            continue;
        }
        fill_whole(txn, source, ino, raw, std::mem::replace(&mut holes, 0..0), &mut last)?;
        match run {
            None => place(txn, source, ino, raw, first, want as u32, &mut last)?,
            Some(run) if stretch(txn, ino, raw, first, &run, want as u32)? => {}
            Some(run) => {
                let is_dirty = |index| of_block.iter().any(|page| page.block == first + index);
                if let Some(lost) = written(&run).find(|&index| !is_dirty(index)) {
                    // Never, unless it is damaged: see `hold_run`.
                    return Err(Corrupt::Pointer { ino, at: FileBlock(first + lost), word: run.block.0 }.into());
                }
                replace(txn, source, ino, raw, first, want as u32)?;
            }
        }
    }
    fill_whole(txn, source, ino, raw, holes, &mut last)?;
    Ok(given)
}

/// Maps file blocks that are holes, as a whole, to unwritten blocks.
fn fill_whole(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    ino: Ino,
    raw: &mut RawInode,
    mut holes: Range<u64>,
    last: &mut Last,
) -> Result<()> {
    while holes.start < holes.end {
        let length = fill_some(txn, source, ino, raw, holes.clone(), last)?;
        holes.start += u64::from(length);
    }
    Ok(())
}

/// As [`fill_whole`], the first of them, as many as lie side by side; how many fragments those have.
fn fill_some(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    ino: Ino,
    raw: &mut RawInode,
    holes: Range<u64>,
    last: &mut Last,
) -> Result<u32> {
    let volume = txn.volume();
    let want = (holes.end - holes.start).min(u64::from(map::run_max(&volume.geometry))) as u32;
    let (goal, want) = placement::data(txn, ino, raw, FileBlock(holes.start), want, *last)?;
    source.goal = goal;
    let (start, length) = volume.allocate_whole(txn, goal, want >> volume.geometry.fragment_bits)?;
    insert(txn, source, ino, raw, holes.start, start, length)?;
    *last = Some((FileBlock(holes.start + u64::from(length)), start.offset_by(length.into())));
    Ok(length)
}

/// Maps the first `length` fragments of a file block that is a hole.
fn place(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    ino: Ino,
    raw: &mut RawInode,
    first: u64,
    length: u32,
    last: &mut Last,
) -> Result<()> {
    let (goal, _) = placement::data(txn, ino, raw, FileBlock(first), length, *last)?;
    source.goal = goal;
    let start = txn.volume().allocate_run(txn, goal, length, false)?;
    insert(txn, source, ino, raw, first, start, length)?;
    *last = Some((FileBlock(first + u64::from(length)), start.offset_by(length.into())));
    Ok(())
}

fn insert(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    ino: Ino,
    raw: &mut RawInode,
    first: u64,
    start: FsBlock,
    length: u32,
) -> Result<()> {
    let extent = Extent { file_block: FileBlock(first), start, length, unwritten: true };
    map::insert(txn, source, raw, ino, extent)
}

/// Makes a run longer where it is, if what follows is free; whether it was.
fn stretch(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode, first: u64, run: &Pointer, want: u32) -> Result<bool> {
    let volume = txn.volume();
    let fragments = volume.geometry.fragments();
    let has_room = (run.block.0 % u64::from(fragments)) as u32 + want <= fragments;
    let more = want - run.length;
    if !has_room || !volume.take_if_free(txn, run.block.offset_by(run.length.into()), more)? {
        return Ok(false);
    }
    map::lengthen(txn, raw, ino, FileBlock(first), more)?;
    Ok(true)
}

/// Another run, all of it unwritten, takes the place of the one that a file block has, which is freed.
fn replace(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    ino: Ino,
    raw: &mut RawInode,
    first: u64,
    want: u32,
) -> Result<()> {
    let volume = txn.volume();
    let fragments = volume.geometry.fragments();
    let (goal, _) = placement::data(txn, ino, raw, FileBlock(first), want, None)?;
    let start = if want == fragments {
        volume.allocate_whole(txn, goal, 1)?.0
    } else {
        volume.allocate_run(txn, goal, want, true)?
    };
    let mut freed = Vec::new();
    let range = FileBlock(first)..FileBlock(first + u64::from(fragments));
    map::remove_all(txn, source, raw, ino, range, &mut freed)?;
    for (start, length) in freed {
        txn.block_free(start, length);
    }
    insert(txn, source, ino, raw, first, start, want)
}

/// What became of a hole.
pub(super) enum Filled {
    /// It is mapped up to `end`, where the next block would be `block_after`. Of the promise for the hole, which counts file blocks as a
    /// whole, `met` is needed no more: all fragments from the first of its file block up to `end`.
    Up { end: FileBlock, block_after: FsBlock, met: u64 },
    /// The run before it has content and cannot grow where it is: [`move_run`], so that it has this fragment.
    MustMove(FileBlock),
}

/// Maps some of a hole of a file to unwritten fragments.
pub(super) fn fill(
    txn: &mut Txn<'_>,
    ino: Ino,
    raw: &mut RawInode,
    hole: Range<FileBlock>,
    mut last: Last,
) -> Result<Filled> {
    let volume = txn.volume();
    let fragments = u64::from(volume.geometry.fragments());
    let mut source = BlockSource::new(placement::beside(volume, ino));
    let first = first_of(volume, hole.start.0);
    // Whole blocks, but for the one in which the hole ends, if that may be a part.
    let rest = first_of(volume, hole.end.0);
    let whole_end = match map::may_be_part(&volume.geometry, FileBlock(rest)) {
        true => rest,
        false => hole.end.0.next_multiple_of(fragments),
    };
    let met;
    if let Some(run) = map::run_of(&mut &txn.look, raw, ino, FileBlock(first))? {
        let want = if whole_end > first { fragments } else { hole.end.0 - first } as u32;
        met = want;
        if !stretch(txn, ino, raw, first, &run, want)? {
            if written(&run).next().is_some() {
                return Ok(Filled::MustMove(FileBlock(first + u64::from(want) - 1)));
            }
            replace(txn, &mut source, ino, raw, first, want)?;
        }
        let run = map::run_of(&mut &txn.look, raw, ino, FileBlock(first))?;
        last = run.map(|run| (FileBlock(first + u64::from(want)), run.block.offset_by(run.length.into())));
    } else if whole_end > first {
        met = fill_some(txn, &mut source, ino, raw, first..whole_end, &mut last)?;
    } else {
        met = (hole.end.0 - first) as u32;
        place(txn, &mut source, ino, raw, first, met, &mut last)?;
    }
    source.settle(raw);
    let (end, block_after) = last.expect("something was mapped");
    Ok(Filled::Up { end, block_after, met: met.into() })
}

/// Moves the run of a file block, which has content, to where it has room for fragment `reach`. The caller has a promise for that. If it
/// fails, the pages that were made of the run are flushed to where it lies: once the promise is gone, nobody may move it.
pub(super) fn move_run(volume: &Volume, file: &Arc<OpenFile>, data: &mut FileData, reach: FileBlock) -> Result<()> {
    hold_run(volume, file, data, reach.0, Share::Common)?;
    data.reach = Some(reach);
    set_ahead(volume, file, data, true);
    let flushed = loop {
        match flush_pages(volume, file, data, &Enter::Throttled) {
            Ok(Flushed::Some) => {}
            flushed => break flushed,
        }
    };
    data.reach = None;
    if matches!(flushed?, Flushed::All) { check_reach(volume, file, reach) } else { Ok(()) }
}

/// Whoever has a run moved goes on where he was: if it still does not reach so far, he would come here again and again.
pub(super) fn check_reach(volume: &Volume, file: &OpenFile, reach: FileBlock) -> Result<()> {
    let look = volume.look();
    let raw = inode::read_node(&look, file.node())?;
    let first = first_of(volume, reach.0);
    let run = map::run_of(&mut &look, &raw, file.ino, FileBlock(first))?;
    if run.is_some_and(|run| reach.0 - first < run.length.into()) {
        return Ok(());
    }
    Err(Corrupt::Pointer { ino: file.ino, at: reach, word: run.map_or(0, |run| run.block.0) }.into())
}
