//! Truncation, preallocation, holes, and where data lies.

use super::delalloc::{self, drop_page_range, page, set_ahead};
use super::fragments::{self, Filled};
use super::load::{free_rest, load, load_size};
use super::{FileData, OpenFile, Rest, for_each_run};
use crate::counters::Count;
use crate::dir::BlockSource;
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::locks::RwLockWriteGuard;
use crate::map::{self, Mapping};
use crate::ops::free_range;
use crate::placement;
use crate::types::{AllocateMode, Cred};
use crate::volume::{MAP_BLOCKS, Reason, Share, Volume, transact, transact_giving, transact_reaching};
use myriad_format::FileBlock;
use myriad_format::extent::Extent;
use myriad_format::inode::S_IFREG;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use zerocopy::little_endian::{I64, U64};

/// Sets the size of a file. What is cut off is gone; what is added reads as zero. The times change even if the size does
/// not.
pub(crate) fn truncate(volume: &Volume, cred: &Cred, file: &Arc<OpenFile>, size: u64) -> Result<()> {
    volume.check_running()?;
    if volume.options.read_only {
        return Err(Errno::ROFS.into());
    }
    volume.counters.bump(Count::truncates);
    if size > map::size_max(&volume.geometry) {
        return Err(Errno::FBIG.into());
    }
    delalloc::drop_set_id(volume, cred, file)?;
    let mut data = file.data.write();
    load(volume, file, &mut data)?;
    let result = truncate_locked(volume, file, &mut data, size);
    finish_change(volume, file, data, result)
}

/// Ends a change of a file's size or blocks.
fn finish_change(
    volume: &Volume,
    file: &Arc<OpenFile>,
    mut data: RwLockWriteGuard<'_, FileData>,
    result: Result<()>,
) -> Result<()> {
    if result.is_err() {
        delalloc::drop_strays(volume, file, &mut data);
        return result;
    }
    let through = data.size > 0 && file.writes_through(volume.epoch.current());
    drop(data);
    if through {
        delalloc::flush(volume, file)?;
    }
    delalloc::before_return(volume, file)
}

fn truncate_locked(volume: &Volume, file: &Arc<OpenFile>, data: &mut FileData, size: u64) -> Result<()> {
    if size >= data.size {
        // Growing is a change of the size only; the next flush carries it.
        if size > data.size {
            delalloc::clear_tail(volume, file, data)?;
        }
        data.size = size;
        set_ahead(volume, file, data, true);
        return Ok(());
    }
    let block_size = volume.cache.block_size() as u64;
    let first_gone = size.div_ceil(block_size);
    let within = (size % block_size) as usize;
    // First what may fail: a cut that is refused has cut nothing.
    let tail = if within != 0 && is_data(volume, file, data, size / block_size)? {
        Some(page(volume, file, data, size / block_size, false, Share::Last)?)
    } else {
        None
    };
    if size == 0 && (data.emptied || empty_late(volume, file)?) {
        // The extents go with the flush that brings the new content: a crash in between finds old or new, not nothing.
        volume.counters.bump(Count::deferred_truncates);
        drop_page_range(volume, data, 0..u64::MAX);
        data.emptied = true;
        data.size = 0;
        set_ahead(volume, file, data, true);
        return Ok(());
    }
    if data.emptied {
        // The inode still has the old content, until the flush that brings the new one: of that alone something is cut.
        if let Some(frame) = tail {
            volume.cache.arena.write(frame)[within..].fill(0);
        }
        drop_page_range(volume, data, first_gone..u64::MAX);
        data.size = size;
        set_ahead(volume, file, data, true);
        return Ok(());
    }
    let left = transact(volume, 0, |txn| {
        let _lock = volume.lock_exclusive(file.ino);
        let mut raw = inode::read_node(&txn.look, file.node())?;
        // The inode's size falls with its extents; dirty pages below it follow at the flush.
        raw.size = U64::new(raw.size.get().min(size));
        raw.mtime = I64::new(volume.now());
        raw.ctime = raw.mtime;
        let left = free_range(txn, file.ino, &mut raw, FileBlock(first_gone), map::runs_per_txn(&volume.geometry))?;
        inode::write(txn, file.ino, &raw)?;
        if size == 0 {
            file.note_cut(true);
        }
        if left.is_some() {
            // A crash before the rest is gone must not bring it back: the orphan list remembers.
            volume.orphans.note(file.ino, Reason::Cut);
        }
        Ok(left)
    })?;
    if let Some(frame) = tail {
        // The rest of the last block must be zero when the file grows again.
        volume.cache.arena.write(frame)[within..].fill(0);
    }
    drop_page_range(volume, data, first_gone..u64::MAX);
    data.size = size;
    set_ahead(volume, file, data, true);
    if let Some(from) = left
        && let Err(error) = free_rest(volume, file, from, free_range)
    {
        volume.check_not_shut_down().map_err(|_| error)?;
        // The file has its size. What lies past it goes before the file grows again, or when nobody has it open.
        data.rest = Rest::Some;
    }
    Ok(())
}

/// Whether the file has so few extents that one transaction can free them with the flush of what follows. If so, notes
/// whether the inode has old content until then.
fn empty_late(volume: &Volume, file: &OpenFile) -> Result<bool> {
    let look = volume.look();
    let raw = inode::read_node(&look, file.node())?;
    let late = map::fits_one_txn(&mut &look, &raw, file.ino)?;
    if late {
        file.note_cut(raw.size.get() == 0);
    }
    Ok(late)
}

/// Whether a block holds bytes that may not be zero.
fn is_data(volume: &Volume, file: &OpenFile, data: &FileData, block: u64) -> Result<bool> {
    Ok(data.pages.contains_key(&block) || super::read::is_written(volume, file, data, block)?)
}

/// fallocate(2).
pub(crate) fn allocate(
    volume: &Volume,
    cred: &Cred,
    file: &Arc<OpenFile>,
    mode: AllocateMode,
    offset: u64,
    length: u64,
) -> Result<()> {
    volume.check_running()?;
    if volume.options.read_only {
        return Err(Errno::ROFS.into());
    }
    let end = range_end(volume, offset, length)?;
    delalloc::drop_set_id(volume, cred, file)?;
    // The map must be the inode's, and not one that the next flush will void.
    let mut data = loop {
        delalloc::flush(volume, file)?;
        let mut data = file.data.write();
        load(volume, file, &mut data)?;
        if !data.emptied {
            break data;
        }
    };
    let result = allocate_locked(volume, file, &mut data, mode, offset..end);
    finish_change(volume, file, data, result)
}

fn allocate_locked(
    volume: &Volume,
    file: &Arc<OpenFile>,
    data: &mut FileData,
    mode: AllocateMode,
    range: Range<u64>,
) -> Result<()> {
    let Range { start, end } = range;
    match mode {
        AllocateMode::Extend | AllocateMode::KeepSize => {
            let promised = promise_holes(volume, file, start, end, false)?;
            fill_holes(volume, file, data, start..end, promised, Share::Common)?;
        }
        AllocateMode::Punch => punch(volume, file, data, start, end)?,
        AllocateMode::Zero { .. } => {
            // Before anything goes: without room for it all, the content stays.
            let promised = promise_holes(volume, file, start, end, true)?;
            punch(volume, file, data, start, end).inspect_err(|_| volume.unreserve(promised))?;
            // The content is gone: what others have taken since must not be in the way.
            fill_holes(volume, file, data, start..end, promised, Share::Last)?;
        }
    }
    let grows = matches!(mode, AllocateMode::Extend | AllocateMode::Zero { keep_size: false });
    if grows && end > data.size {
        delalloc::clear_tail(volume, file, data)?;
        data.size = end;
    }
    set_ahead(volume, file, data, true);
    Ok(())
}

/// Promises blocks for the holes of a range of bytes: all or nothing, as far as that can be known. With `punched`, also
/// for the blocks that lie in it as a whole, which will be holes first, and for what the map may take then; what they free, a checkpoint must
/// give back. How many; ENOSPC if there are not so many.
fn promise_holes(volume: &Volume, file: &OpenFile, offset: u64, end: u64, punched: bool) -> Result<u64> {
    let block_size = volume.cache.block_size() as u64;
    let first = FileBlock(offset / block_size);
    let last = FileBlock(end.div_ceil(block_size));
    if last.0 - first.0 > volume.statfs().free_blocks + volume.geometry.block_count {
        return Err(Errno::NOSPC.into());
    }
    let whole = if punched { offset.div_ceil(block_size)..end / block_size } else { 0..0 };
    let mut wanted = if punched { MAP_BLOCKS } else { 0 };
    // With fragments, a file block of which one is wanted may take a whole block: the run that it has may have to move. It is promised once.
    let fragments = u64::from(volume.geometry.fragments());
    let mut promised_to = 0;
    let mut want = |from: u64, to: u64| {
        if from < to {
            let end = to.next_multiple_of(fragments);
            wanted += end.saturating_sub((from - from % fragments).max(promised_to));
            promised_to = end;
        }
    };
    // The data lock keeps the map as it is.
    for_each_run(volume, file.node(), first..last, |at, mapping| {
        let until = mapping.end().0.min(last.0);
        match mapping {
            Mapping::Mapped(_) => want(at.0.max(whole.start), until.min(whole.end)),
            Mapping::Hole { .. } => want(at.0, until),
        }
        ControlFlow::<()>::Continue(())
    })?;
    volume.reserve(wanted, Share::Common)?;
    Ok(wanted)
}

/// Allocates unwritten extents for the holes of a range of bytes, for which `promised` blocks have been promised.
fn fill_holes(
    volume: &Volume,
    file: &Arc<OpenFile>,
    data: &mut FileData,
    range: Range<u64>,
    mut promised: u64,
    share: Share,
) -> Result<()> {
    let block_size = volume.cache.block_size() as u64;
    let mut at = FileBlock(range.start / block_size);
    let last = FileBlock(range.end.div_ceil(block_size));
    let mut after = None;
    while at < last {
        let mut must_move = None;
        let filled = transact_reaching(volume, MAP_BLOCKS, share, |txn| {
            let _lock = volume.lock_exclusive(file.ino);
            let mut raw = inode::read_node(&txn.look, file.node())?;
            let next = match map::lookup(&mut &txn.look, &raw, file.ino, at)? {
                Mapping::Mapped(extent) => {
                    after = Some((extent.end(), extent.start.offset_by(extent.length.into())));
                    return Ok((extent.end(), 0));
                }
                Mapping::Hole { until } => until.min(last),
            };
            if volume.geometry.fragments() > 1 {
                return match fragments::fill(txn, file.ino, &mut raw, at..next, after)? {
                    Filled::Up { end, block_after, met } => {
                        after = Some((end, block_after));
                        inode::write(txn, file.ino, &raw)?;
                        Ok((end, met))
                    }
                    Filled::MustMove(reach) => {
                        must_move = Some(reach);
                        Ok((at, 0))
                    }
                };
            }
            let want = (next.0 - at.0).min(u64::from(map::run_max(&volume.geometry))) as u32;
            let (goal, want) = placement::data(txn, file.ino, &raw, at, want, after)?;
            let mut source = BlockSource::new(goal);
            let (start, length) = volume.allocate_extent(txn, goal, 1, want)?;
            let extent = Extent { file_block: at, start, length, unwritten: true };
            map::insert(txn, &mut source, &mut raw, file.ino, extent)?;
            source.settle(&mut raw);
            inode::write(txn, file.ino, &raw)?;
            let end = FileBlock(at.0 + u64::from(length));
            after = Some((end, start.offset_by(length.into())));
            Ok((end, u64::from(length)))
        });
        let (next, met) = filled.inspect_err(|_| volume.unreserve(promised))?;
        if let Some(reach) = must_move {
            fragments::move_run(volume, file, data, reach).inspect_err(|_| volume.unreserve(promised))?;
        }
        // What has its blocks is no promise any more: counted twice, half of the volume would be all of it.
        let kept = promised.min(met);
        volume.unreserve(kept);
        promised -= kept;
        at = next;
    }
    volume.unreserve(promised);
    Ok(())
}

/// Makes a range of bytes a hole: whole blocks are freed, the edges zeroed.
fn punch(volume: &Volume, file: &Arc<OpenFile>, data: &mut FileData, offset: u64, end: u64) -> Result<()> {
    let block_size = volume.cache.block_size() as u64;
    // Past the size there may be blocks preallocated, and no bytes.
    let (first, last) = (offset.div_ceil(block_size), end / block_size);
    // The edges' pages first, which may fail. Their bytes only when the first transaction is done, and so are the pages between: it may be
    // refused for want of room, and another thread may have written these pages since the flush.
    let mut edges = if first > last {
        vec![edge(volume, file, data, offset..end)?]
    } else {
        let head = edge(volume, file, data, offset..(first * block_size).min(end))?;
        vec![head, edge(volume, file, data, (last * block_size).max(offset)..end)?]
    };
    let mut zero_edges = || {
        for (frame, bytes) in edges.drain(..).flatten() {
            volume.cache.arena.write(frame)[bytes].fill(0);
        }
    };
    let mut from = (first < last).then_some(FileBlock(first));
    while let Some(start) = from {
        from = transact_giving(volume, MAP_BLOCKS, |txn| {
            let _lock = volume.lock_exclusive(file.ino);
            let mut raw = inode::read_node(&txn.look, file.node())?;
            let mut source = BlockSource::new(placement::beside(volume, file.ino));
            let mut freed = Vec::new();
            let range = start..FileBlock(last);
            let max = map::runs_per_txn(&volume.geometry);
            let left = map::remove(txn, &mut source, &mut raw, file.ino, range, max, &mut freed)?;
            source.settle(&mut raw);
            for (start, length) in freed {
                txn.block_free(start, length);
            }
            inode::write(txn, file.ino, &raw)?;
            Ok(left)
        })?;
        zero_edges();
        drop_page_range(volume, data, start.0..from.map_or(last, |from| from.0));
    }
    zero_edges();
    Ok(())
}

/// A part of one block that is to become zero: its page, and which bytes of that. None if there is nothing but zeros.
fn edge(
    volume: &Volume,
    file: &Arc<OpenFile>,
    data: &mut FileData,
    part: Range<u64>,
) -> Result<Option<(u32, Range<usize>)>> {
    let block_size = volume.cache.block_size() as u64;
    let block = part.start / block_size;
    if part.is_empty() || !is_data(volume, file, data, block)? {
        return Ok(None);
    }
    let frame = page(volume, file, data, block, false, Share::Last)?;
    let within = |at: u64| (at - block * block_size) as usize;
    Ok(Some((frame, within(part.start)..within(part.end))))
}

/// First byte of data (`hole` false) or of a hole (`hole` true) at or after `offset`.
pub(crate) fn seek(volume: &Volume, file: &Arc<OpenFile>, offset: u64, hole: bool) -> Result<u64> {
    let mut data = file.data.write();
    load_size(volume, file, &mut data)?;
    if offset >= data.size {
        return Err(Errno::NXIO.into());
    }
    let block_size = volume.cache.block_size() as u64;
    let blocks = data.size.div_ceil(block_size);
    let first = offset / block_size;
    if inode::read_node(&volume.look(), file.node())?.file_type() != S_IFREG {
        return Err(Errno::INVAL.into());
    }
    let found = if data.emptied {
        begins_in(&data, first..blocks, false, hole)
    } else {
        // The data lock keeps the map as it is.
        for_each_run(volume, file.node(), FileBlock(first)..FileBlock(blocks), |at, mapping| {
            let is_data = matches!(mapping, Mapping::Mapped(extent) if !extent.unwritten);
            match begins_in(&data, at.0..mapping.end().0.min(blocks), is_data, hole) {
                Some(block) => ControlFlow::Break(block),
                None => ControlFlow::Continue(()),
            }
        })?
    };
    match found {
        Some(block) => Ok(offset.max(block * block_size)),
        None if hole => Ok(data.size),
        None => Err(Errno::NXIO.into()),
    }
}

/// The first block of data, or of a hole, in a run of blocks that are data by the file's map or not. Pages are data in any case.
fn begins_in(data: &FileData, run: Range<u64>, is_data: bool, hole: bool) -> Option<u64> {
    let mut pages = data.pages.range(run.clone()).map(|(&page, _)| page);
    match (is_data, hole) {
        (true, true) => None,
        (true, false) => Some(run.start),
        (false, false) => pages.next(),
        (false, true) => run.into_iter().find(|&block| pages.next() != Some(block)),
    }
}

/// The end of a range of bytes; EFBIG past the largest size.
fn range_end(volume: &Volume, offset: u64, length: u64) -> Result<u64> {
    let size_max = map::size_max(&volume.geometry);
    offset.checked_add(length).filter(|&end| end <= size_max).ok_or(Error::Refused(Errno::FBIG))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Cost;
    use crate::types::{MkfsOptions, Order};
    use crate::volume::testing;
    use myriad_device::{FaultDevice, FaultOp, FaultSpan, MemoryDevice};
    use myriad_format::choices::Profile;

    /// Zeroing the end of a whole block makes it a hole, and for that the run of the rest, which has content, may have to move to a whole block.
    /// Only the fragments that are zeroed were promised.
    #[test]
    fn a_file_block_of_which_the_end_is_zeroed_is_promised_as_a_whole() {
        let device = Arc::new(MemoryDevice::new(8 << 20));
        let choices = Profile::parse("ffs").unwrap().choices;
        let mkfs =
            MkfsOptions { choices, block_size: 4096, fragments: 8, order: Order::Soft, ..MkfsOptions::default() };
        crate::mkfs::format(device.clone(), None, &mkfs).unwrap();
        let volume = testing::open(device);
        let file = testing::new_file(&volume, b"file");
        delalloc::write(&volume, &Cred::root(), &file, &[1; 12 << 10], 0, false, false).unwrap();
        delalloc::flush(&volume, &file).unwrap();
        let promised = |start: u64, end: u64| {
            let promised = promise_holes(&volume, &file, start, end, true).unwrap();
            volume.unreserve(promised);
            promised
        };
        assert_eq!(promised(2560, 4096), MAP_BLOCKS + 8);
        assert_eq!(promised(2560, 8192), MAP_BLOCKS + 16);
        assert_eq!(promised(0, 12 << 10), MAP_BLOCKS + 24);
        // Each of them once, though its fragments are some mapped and some not.
        punch(&volume, &file, &mut file.data.write(), 6144, 7168).unwrap();
        assert_eq!(promised(0, 12 << 10), MAP_BLOCKS + 24);
    }

    /// Making a hole dropped the pages in it before its transaction began. That was refused for want of room on the host, and what
    /// another thread had written since the flush at the beginning was gone: reads found what the device had. So did zeroing what lies
    /// around whole blocks.
    #[test]
    fn a_hole_that_is_refused_leaves_what_another_thread_wrote() {
        let device = Arc::new(FaultDevice::new(MemoryDevice::new(16 << 20)));
        let volume = testing::volume(device.clone());
        let file = testing::new_file(&volume, b"file");
        let put = |byte| delalloc::write(&volume, &Cred::root(), &file, &[byte; 3 << 12], 0, false, false).unwrap();
        put(1);
        delalloc::flush(&volume, &file).unwrap();
        volume.commit_now().unwrap();
        // The other thread, after the flush.
        put(2);
        // So much waits that whoever begins makes a checkpoint first, which the host has no room for.
        testing::new_file(&volume, b"other");
        volume.epoch.cost.add(&Cost { log_bytes: u64::MAX / 4, ..Cost::default() });
        device.fail(FaultOp::Write, 1, FaultSpan::Once, Errno::NOSPC.raw_os_error());
        let mut data = file.data.write();
        assert!(matches!(punch(&volume, &file, &mut data, 100, 12_000), Err(Error::HostFull(_))));
        drop(data);
        let mut bytes = [0; 3 << 12];
        super::super::read(&volume, &file, &mut bytes, 0, false).unwrap();
        assert!(bytes == [2; 3 << 12]);
        // There is room again.
        let mut data = file.data.write();
        punch(&volume, &file, &mut data, 100, 12_000).unwrap();
        drop(data);
        super::super::read(&volume, &file, &mut bytes, 0, false).unwrap();
        let (before, rest) = bytes.split_at(100);
        let (hole, after) = rest.split_at(12_000 - 100);
        assert!(before.iter().chain(after).all(|&byte| byte == 2) && hole.iter().all(|&byte| byte == 0));
    }

    /// Zeroing made a hole of what it covered, and then found no room to fill it: the blocks of the map had not been promised. What was there was
    /// gone, though the caller was told that there was no space.
    #[test]
    fn zeroing_that_is_refused_leaves_the_content() {
        let mut refused = 0;
        for left in 0..40 {
            let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
            let file = testing::new_file(&volume, b"file");
            delalloc::write(&volume, &Cred::root(), &file, &[1; 3 << 12], 0, false, false).unwrap();
            delalloc::flush(&volume, &file).unwrap();
            volume.commit_now().unwrap();
            let mut taken = volume.statfs().available_blocks;
            volume.reserve(taken, Share::Common).unwrap();
            while volume.reserve(1, Share::Common).is_ok() {
                taken += 1;
            }
            volume.unreserve(left);
            let zeroed = allocate(&volume, &Cred::root(), &file, AllocateMode::Zero { keep_size: true }, 0, 3 << 12);
            let mut bytes = [9; 3 << 12];
            super::super::read(&volume, &file, &mut bytes, 0, false).unwrap();
            match zeroed {
                Ok(()) => assert!(bytes == [0; 3 << 12], "{left} left"),
                Err(Error::Refused(Errno::NOSPC)) => assert!(bytes == [1; 3 << 12], "{left} left"),
                Err(error) => panic!("{left} left: {error}"),
            }
            refused += u32::from(zeroed.is_err());
            volume.unreserve(taken - left);
        }
        assert!((1..40).contains(&refused), "{refused} refused");
    }
}
