//! Writes into pages, and the flush that gives the pages their blocks.
//!
//! When a page becomes dirty, the file reserves the blocks that its flush needs in the worst case: one for the data, and some for nodes of the
//! map (`map::promises` says how many). The flush gives back what it did not need. So a flush reserves nothing, and never runs out of blocks in the
//! middle of its change. A write into space that was reserved before takes nodes even from the blocks held back for other uses, down to 16.
//!
//! To promise fewer nodes does not do. With one node for every sixteenth page, 2,500 scattered pages needed 850 nodes and had 160, and the volume
//! was shut down. The price of promising enough: on a nearly full volume a scattered write asks for two to four blocks a page, and is refused if
//! flushing all dirty files does not make that room. To flush page by page, up to the first one without room, would let fsync refuse what
//! a write had accepted. Maps without nodes would undo this. `tests/full.rs`, `scattered_*`, fails without it.

use super::fragments;
use super::load::load;
use super::part::part_of;
use super::read::InPlace;
use super::{FileData, OpenFile};
use crate::cache::Placed;
use crate::checksums;
use crate::counters::Count;
use crate::dir::BlockSource;
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::map::{self, Mapping};
use crate::namei::Guarded;
use crate::order::Txn;
use crate::order::soft::Due;
use crate::perm;
use crate::placement;
use crate::planted::{Bug, planted};
use crate::types::Cred;
use crate::volume::{Reason, Share, Volume, transact};
use myriad_format::extent::{Extent, LENGTH_MAX};
use myriad_format::inode::RawInode;
use myriad_format::{FileBlock, FsBlock, Ino};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::little_endian::{I64, U16, U64};

/// Data of whole new files that may wait for a commit, in units of what the background thread begins to write at. Enough
/// that their maker does not wait while the disk keeps up, little enough that the same frames serve again and again.
const ORDERED_MAX: u64 = 3;

/// Blocks in one piece that data with checksums looks for, before it takes what there is: at 4 KiB what one request to the
/// device has.
const RUN_BLOCKS: u32 = 256;

/// For fewer frames a flush that makes room begins no transaction.
const DIRECT_FRAMES_MIN: usize = 32;

/// Bytes written under one hold of the data lock.
const WRITE_PART: usize = 4 << 20;

/// A dirty page on its way to a block.
#[derive(Clone, Copy)]
pub(crate) struct Page {
    /// File block.
    pub block: u64,
    pub frame: u32,
    /// Of its bytes, on a volume with checksums.
    pub checksum: u32,
}

/// Pages of a file that are to get blocks.
#[derive(Clone, Copy)]
pub(crate) struct ToMap<'p> {
    pub pages: &'p [Page],
    /// The size that the file is to have.
    pub size: u64,
    /// See [`FileData`].
    pub reach: Option<FileBlock>,
    /// All of them in this transaction, whatever that takes of the log. Else the first ones, for which it has asked for enough, and one
    /// at least.
    pub all: bool,
}

/// Puts the content of a new file into private frames. Outside the gate.
pub(crate) fn fill(volume: &Volume, content: &[u8]) -> Result<Vec<Page>> {
    let block_size = volume.cache.block_size();
    let mut pages = Vec::with_capacity(content.len().div_ceil(block_size));
    for (block, part) in content.chunks(block_size).enumerate() {
        match take_frame(volume) {
            Ok(frame) => {
                let mut bytes = volume.cache.arena.write(frame);
                bytes[..part.len()].copy_from_slice(part);
                bytes[part.len()..].fill(0);
                drop(bytes);
                pages.push(Page { block: block as u64, frame, checksum: checksums::of_page(volume, frame) });
            }
            Err(error) => {
                for page in pages {
                    volume.cache.drop_private(page.frame);
                }
                return Err(error);
            }
        }
    }
    Ok(pages)
}

/// Notes that memory is ahead of the inode: the file is on the list of dirty ones until its flush.
pub(super) fn set_ahead(volume: &Volume, file: &Arc<OpenFile>, data: &mut FileData, changed: bool) {
    file.size.store(data.size, Ordering::Relaxed);
    file.pages.store(data.pages.len() as u64, Ordering::Relaxed);
    file.emptied.store(data.emptied, Ordering::Relaxed);
    if changed || !file.ahead.load(Ordering::Relaxed) {
        let now = volume.now();
        file.mtime.store(now, Ordering::Relaxed);
        file.ctime.store(now, Ordering::Relaxed);
    }
    if !file.ahead.load(Ordering::Relaxed) {
        file.ahead_since.store(volume.ticks(), Ordering::Relaxed);
    }
    file.ahead.store(true, Ordering::Release);
    if !data.listed {
        data.listed = true;
        volume.files.dirty.lock().push(file.clone());
    }
}

/// How often room is made for a page: other threads may be quicker to take it.
const ROOM_TRIES: u32 = 16;

/// A private frame for a page; makes room if the cache has none to spare.
fn take_frame(volume: &Volume) -> Result<u32> {
    for _ in 0..ROOM_TRIES {
        if let Some(frame) = volume.cache.take_private() {
            return Ok(frame);
        }
        if let Err(error @ Error::HostFull(_)) = volume.try_make_room() {
            return Err(error);
        }
    }
    Err(Errno::NOMEM.into())
}

/// The page of a file block, made and filled if need be: `whole` if the caller overwrites all of it. A caller who gives
/// space back may have the last of it for that: `share`.
pub(super) fn page(
    volume: &Volume,
    file: &OpenFile,
    data: &mut FileData,
    block: u64,
    whole: bool,
    share: Share,
) -> Result<u32> {
    if let Some(&frame) = data.pages.get(&block) {
        return Ok(frame);
    }
    if volume.geometry.fragments() > 1 {
        fragments::hold_run(volume, file, data, block, share)?;
    }
    let raw = || inode::read_node(&volume.look(), file.node());
    let nodes = data.nodes.for_page(&volume.geometry, file.ino, raw, &data.pages, block)?;
    let mut promised = nodes.count;
    if let Err(error) = volume.reserve(promised, share) {
        promised = match super::read::in_place(volume, file, data, block)? {
            None => return Err(error),
            // A block that is written again needs no promise: overwriting works on a full volume.
            Some(InPlace::Written) => 0,
            // One that is written for the first time cuts an extent that says so.
            Some(InPlace::Reserved) => nodes.to_reserved,
        };
        if promised > 0 {
            volume.reserve(promised, Share::Reserved)?;
        }
    }
    let filled = (|| {
        let frame = take_frame(volume)?;
        let block_size = volume.cache.block_size() as u64;
        if !whole {
            let start = block * block_size;
            let mut content = vec![0; block_size as usize];
            if start < data.size
                && !data.emptied
                && let Err(error) = super::read::read_clean(volume, file, data, start, &mut content, true)
            {
                volume.cache.drop_private(frame);
                return Err(error);
            }
            // A crash may have left bytes there of a write whose size never arrived.
            let held = data.size.saturating_sub(start).min(block_size) as usize;
            content[held..].fill(0);
            volume.cache.arena.write(frame).copy_from_slice(&content);
        }
        Ok(frame)
    })();
    match filled {
        Ok(frame) => {
            data.promised += promised;
            data.nodes.note(&nodes, promised);
            data.pages.insert(block, frame);
            volume.files.dirty_pages.fetch_add(1, Ordering::Relaxed);
            Ok(frame)
        }
        Err(error) => {
            volume.unreserve(promised);
            Err(error)
        }
    }
}

/// Before a file grows past its last block's end without writing there: what that block holds past the old size must be
/// zero from now on.
pub(super) fn clear_tail(volume: &Volume, file: &OpenFile, data: &mut FileData) -> Result<()> {
    let block_size = volume.cache.block_size() as u64;
    let block = data.size / block_size;
    if data.size % block_size != 0
        && !planted(Bug::StaleBytes)
        && !data.pages.contains_key(&block)
        && super::read::is_written(volume, file, data, block)?
    {
        page(volume, file, data, block, false, Share::Last)?;
    }
    Ok(())
}

/// Writes `buf` at `offset`, or at the end if `append`; returns the bytes written, fewer than all when space ran
/// out half-way, the largest size was reached, or an error came half-way. `passing`: the cache need not keep them.
pub(crate) fn write(
    volume: &Volume,
    cred: &Cred,
    file: &Arc<OpenFile>,
    buf: &[u8],
    offset: u64,
    append: bool,
    passing: bool,
) -> Result<usize> {
    volume.check_running()?;
    if volume.options.read_only {
        return Err(Errno::ROFS.into());
    }
    volume.counters.bump(Count::writes);
    if buf.is_empty() {
        return Ok(0);
    }
    if !append && offset >= map::size_max(&volume.geometry) {
        // As with Linux, what is refused leaves the set-id bits.
        return Err(Errno::FBIG.into());
    }
    drop_set_id(volume, cred, file)?;
    // What several append at once lies there one after the other, however long it is.
    let parts = buf.len().div_ceil(WRITE_PART);
    let _alone = (append && parts > 1).then(|| file.appending.write());
    let _shared = (append && parts == 1).then(|| file.appending.read());
    // In parts, so that a buffer larger than the cache finds its way out between them.
    let mut done = 0;
    for part in buf.chunks(WRITE_PART) {
        let taken = match take_part(volume, file, part, offset.saturating_add(done as u64), append, passing) {
            Ok(taken) => taken,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        };
        if let Err(error) = settle_write(volume, file) {
            // The part is in the file for all that, and waits for a later flush. An append that did not say so would be made again.
            if done > 0 && !append {
                break;
            }
            return Err(error);
        }
        done += taken;
        if taken < part.len() {
            break;
        }
    }
    before_return(volume, file)?;
    Ok(done)
}

/// The end of an operation on a file's content: makes it durable where order `sync` promises that. Without the file's data lock. After
/// an error the change is there, and not durable.
pub(super) fn before_return(volume: &Volume, file: &Arc<OpenFile>) -> Result<()> {
    if volume.returns_data() && !planted(Bug::SyncDataForgotten) {
        flush(volume, file)?;
        volume.before_return()?;
    }
    Ok(())
}

/// Puts a part of a write into pages. How many of its bytes: of an error none.
fn take_part(
    volume: &Volume,
    file: &Arc<OpenFile>,
    buf: &[u8],
    offset: u64,
    append: bool,
    passing: bool,
) -> Result<usize> {
    if volume.files.is_over_bound.load(Ordering::Relaxed) {
        volume.commit_for_room()?;
        volume.files.is_over_bound.store(false, Ordering::Relaxed);
    }
    if file.writes_through(volume.epoch.current()) {
        // What it takes is flushed before it returns. If the host has no room to begin that, nothing is taken.
        drop(volume.begin_giving(0)?);
    }
    let put = || {
        let mut data = file.data.write();
        data.passing = passing;
        load(volume, file, &mut data)?;
        let offset = if append { data.size } else { offset };
        let size_max = map::size_max(&volume.geometry);
        if offset >= size_max {
            return Err(Errno::FBIG.into());
        }
        let length = (buf.len() as u64).min(size_max - offset) as usize;
        let cleared = if offset > data.size { clear_tail(volume, file, &mut data) } else { Ok(()) };
        let written = cleared
            .map_err(|error| (0, error))
            .and_then(|()| write_pages(volume, file, &mut data, &buf[..length], offset));
        let done = *written.as_ref().unwrap_or_else(|(done, _)| done);
        if done > 0 {
            data.size = data.size.max(offset + done as u64);
            set_ahead(volume, file, &mut data, true);
        } else {
            drop_strays(volume, file, &mut data);
        }
        match written {
            Ok(done) => Ok(done),
            Err((0, error)) => Err(error),
            Err((done, _)) => Ok(done),
        }
    };
    match put() {
        Err(Error::Refused(Errno::NOSPC)) if crate::ops::reclaim_put_off(volume) | volume.has_promises() => {
            // What another file's flush meets, whoever syncs that file is told; here as below.
            let _ = flush_all(volume);
            put()
        }
        written => written,
    }
}

/// Flushes what a write has put into pages, if that must not wait, and keeps dirty data within bounds.
fn settle_write(volume: &Volume, file: &Arc<OpenFile>) -> Result<()> {
    let dirty = volume.files.dirty_pages.load(Ordering::Relaxed);
    if file.writes_through(volume.epoch.current()) {
        // Not for later, though it is in the file: the next checkpoint would show the cut, and nothing of what the write had answered for.
        flush(volume, file)?;
    }
    match bound_dirty(volume, file, dirty) {
        // What was taken is in the file. It stays dirty until the host has room; the next write is refused, and whoever syncs is told.
        Err(Error::HostFull(_)) => volume.files.is_over_bound.store(true, Ordering::Relaxed),
        bounded => bounded?,
    }
    Ok(())
}

/// Keeps dirty data, of which there were so many pages, within bounds.
fn bound_dirty(volume: &Volume, file: &Arc<OpenFile>, dirty: u64) -> Result<()> {
    if volume.live.allocates_at_write() {
        flush(volume, file)?;
    }
    if dirty > volume.limits.dirty_pages_max {
        let _ = flush_all(volume);
        volume.commit_for_room()?;
    } else if dirty > volume.limits.dirty_pages_due {
        volume.wake_background(true);
    }
    Ok(())
}

fn write_pages(
    volume: &Volume,
    file: &OpenFile,
    data: &mut FileData,
    buf: &[u8],
    offset: u64,
) -> std::result::Result<usize, (usize, Error)> {
    let block_size = volume.cache.block_size();
    let mut done = 0;
    while done < buf.len() {
        let at = offset + done as u64;
        let within = (at % block_size as u64) as usize;
        let length = (block_size - within).min(buf.len() - done);
        let block = at / block_size as u64;
        let whole = length == block_size;
        let frame = page(volume, file, data, block, whole, Share::Common).map_err(|error| (done, error))?;
        volume.cache.arena.write(frame)[within..within + length].copy_from_slice(&buf[done..done + length]);
        done += length;
    }
    Ok(done)
}

/// A write by anybody but user 0 takes set-id bits away.
pub(super) fn drop_set_id(volume: &Volume, cred: &Cred, file: &OpenFile) -> Result<()> {
    if cred.is_root() {
        return Ok(());
    }
    let node = file.node();
    let needed = {
        let look = volume.look();
        let raw = inode::read_node(&look, node)?;
        raw.mode.get() & (perm::S_ISUID | perm::S_ISGID) != 0
    };
    if !needed {
        return Ok(());
    }
    let has_changed = transact(volume, 0, |txn| {
        let _lock = volume.lock_exclusive(file.ino);
        let mut raw = inode::read_node(&txn.look, node)?;
        let guarded = Guarded::new(&txn.look, file.ino, &raw)?;
        let mode = perm::mode_after_write(cred, &guarded.subject());
        let has_changed = raw.mode.get() != mode;
        raw.mode = U16::new(mode);
        inode::write(txn, file.ino, &raw)?;
        Ok(has_changed)
    })?;
    if has_changed {
        // Also if it cannot be made durable: the mode is another one all the same.
        volume.files.tell_changed(node);
        volume.before_return()?;
    }
    Ok(())
}

/// Flushes the dirty files that nobody is using right now: for whoever needs space while holding a file's data lock. A file that cannot
/// be flushed stays dirty, and is told of when it is synced.
pub(crate) fn flush_idle(volume: &Volume) -> Result<()> {
    flush_tried(volume, &Enter::Throttled)
}

/// As [`flush_idle`], for whoever makes room in the cache. It begins with no frames but the reserve, and leaves half of that: what it
/// has changed has to be evicted before more can be flushed.
pub(crate) fn flush_idle_for_room(volume: &Volume) -> Result<()> {
    flush_tried(volume, &Enter::Direct)
}

fn flush_tried(volume: &Volume, enter: &Enter) -> Result<()> {
    let files = volume.files.dirty.lock().clone();
    for file in files {
        if let Some(data) = file.data.try_write() {
            let _ = flush_locked(volume, &file, data, enter);
        }
    }
    unlist_flushed(volume);
    volume.check_not_shut_down()
}

/// What was flushed leaves the list of dirty files.
fn unlist_flushed(volume: &Volume) {
    volume.files.dirty.lock().retain(|file| match file.data.try_write() {
        Some(mut data) if !file.ahead.load(Ordering::Acquire) => {
            data.listed = false;
            false
        }
        None => !planted(Bug::BusyUnlisted),
        Some(_) => true,
    });
}

/// Keeps data that waits for the open epoch's commit within bounds: past the first the background thread begins to
/// write, past the second the caller waits for it.
pub(crate) fn bound_ordered(volume: &Volume) -> Result<()> {
    let waiting = volume.epoch.ordered_count.load(Ordering::Relaxed);
    if waiting > volume.limits.dirty_pages_due * ORDERED_MAX {
        volume.commit_for_room()?;
    } else if waiting > volume.limits.dirty_pages_due {
        volume.wake_background(false);
    }
    Ok(())
}

/// Flushes every dirty file. The caller holds no data lock. They stay on the list until they are flushed: whoever comes
/// meanwhile waits for those that somebody else is flushing.
pub(crate) fn flush_all(volume: &Volume) -> Result<()> {
    let files = volume.files.dirty.lock().clone();
    flush_each(volume, files)
}

/// As [`flush_all`], of the files whose data is due.
pub(crate) fn flush_due(volume: &Volume, due: Due) -> Result<()> {
    let is_due = |file: &&Arc<OpenFile>| due.is_data(file.ahead_since.load(Ordering::Relaxed));
    let files: Vec<_> = volume.files.dirty.lock().iter().filter(is_due).cloned().collect();
    if files.is_empty() { Ok(()) } else { flush_each(volume, files) }
}

fn flush_each(volume: &Volume, mut files: Vec<Arc<OpenFile>>) -> Result<()> {
    // By number: neighbours in the inode table get neighbouring blocks.
    files.sort_by_key(|file| file.ino);
    let mut result = Ok(());
    for file in files {
        let flushed = flush(volume, &file);
        if result.is_ok() {
            result = flushed;
        }
    }
    unlist_flushed(volume);
    result
}

/// Gives a file's dirty pages their blocks and brings its inode up to date. Durable after the next checkpoint.
pub(crate) fn flush(volume: &Volume, file: &Arc<OpenFile>) -> Result<()> {
    if planted(Bug::FlushNotAwaited) && file.data.try_write().is_none() {
        return Ok(());
    }
    flush_locked(volume, file, file.data.write(), &Enter::Throttled)
}

/// How a flush begins its transactions.
pub(super) enum Enter {
    /// As any operation: it may have to wait for a checkpoint.
    Throttled,
    /// For whoever makes room, perhaps for a checkpoint. ENOMEM, with the rest left dirty, once it has used up half of the reserve of
    /// frames, or what one checkpoint takes.
    Direct,
}

fn flush_locked(
    volume: &Volume,
    file: &Arc<OpenFile>,
    mut data: crate::locks::RwLockWriteGuard<'_, FileData>,
    enter: &Enter,
) -> Result<()> {
    if !file.ahead.load(Ordering::Acquire) {
        return Ok(());
    }
    if file.is_dead() {
        drop_pages(volume, file, &mut data);
        return Ok(());
    }
    volume.counters.bump(Count::delalloc_flushes);
    volume.counters.add(Count::delalloc_pages, data.pages.len() as u64);
    loop {
        match flush_pages(volume, file, &mut data, enter) {
            Ok(Flushed::Some) => {}
            Ok(Flushed::All) => break,
            Ok(Flushed::Gone) => {
                drop_pages(volume, file, &mut data);
                return Ok(());
            }
            // It stays dirty: reads go on, and a later flush may have better luck unless the volume is shut down.
            Err(error) => return Err(error),
        }
    }
    data.emptied = false;
    volume.files.note_flush();
    file.ahead.store(false, Ordering::Release);
    drop(data);
    volume.files.forget_if_idle(file, volume.epoch.current());
    Ok(())
}

/// What a transaction of a flush has done.
pub(super) enum Flushed {
    Some,
    All,
    /// Nothing: the file's inode is being freed.
    Gone,
}

/// Flushes a file's pages in one transaction, and its size and times. A list of many runs, each of which may change a leaf of
/// the file's map, goes in several; of data with checksums, which overwrites out of place, a list of many pages. So does one that
/// changes more of the log than a transaction has been granted. Those before the last show no size that was not there; a file that has pages mapped past it is on the list of orphans, so
/// that the next opening frees them if the last part never came.
pub(super) fn flush_pages(
    volume: &Volume,
    file: &Arc<OpenFile>,
    data: &mut FileData,
    enter: &Enter,
) -> Result<Flushed> {
    let (mut txn, pages) = begin_part(volume, data, enter)?;
    let node = file.node();
    // Else data would be held back, and then once more what points to it.
    txn.count_from(file.ahead_since.load(Ordering::Relaxed));
    let result = (|txn: &mut Txn<'_>| {
        let _lock = volume.lock_exclusive(file.ino);
        if file.is_dead() {
            return Ok(None);
        }
        let mut raw = inode::read_node(&txn.look, node)?;
        let mut source = BlockSource::new(placement::beside(volume, file.ino));
        if data.emptied {
            // Before the first of it is freed: then it is too late for an error.
            map::read_ahead(txn, &raw, file.ino, FileBlock(0))?;
            crate::ops::free_all(txn, file.ino, &mut raw)?;
        }
        let to_map = ToMap { pages: &pages, size: data.size, reach: data.reach, all: data.emptied };
        let mapped = map_pages(txn, &mut source, file.ino, &mut raw, to_map)?;
        let pages = &pages[..mapped.len()];
        let is_last = pages.len() == data.pages.len();
        // Not before it is certain that these pages come into the inode.
        if is_last && data.size > 0 {
            file.note_content(volume.epoch.current(), data.emptied);
        } else if data.emptied {
            file.note_cut(true);
        }
        source.settle(&mut raw);
        if is_last {
            raw.size = U64::new(data.size);
            raw.mtime = I64::new(file.mtime.load(Ordering::Relaxed));
            raw.ctime = I64::new(file.ctime.load(Ordering::Relaxed).max(raw.ctime.get()));
            if mem::take(&mut data.mapped_past) {
                volume.orphans.settle(file.ino, Reason::Ahead);
            }
        } else if pages.last().is_some_and(|page| page.block * volume.cache.block_size() as u64 >= raw.size.get()) {
            data.mapped_past = true;
            volume.orphans.note(file.ino, Reason::Ahead);
        }
        inode::write(txn, file.ino, &raw)?;
        publish_pages(txn, file.ino, mapped, data.passing);
        Ok(Some(pages))
    })(&mut txn);
    let Some(pages) = txn.finish(result)? else { return Ok(Flushed::Gone) };
    let is_last = pages.len() == data.pages.len();
    volume.files.dirty_pages.fetch_sub(pages.len() as u64, Ordering::Relaxed);
    if is_last {
        data.pages.clear();
        data.reach = None;
    } else {
        for page in pages {
            data.pages.remove(&page.block);
        }
    }
    return_promises(volume, data);
    Ok(if is_last { Flushed::All } else { Flushed::Some })
}

/// Begins a transaction of a flush, with the pages that go in it: as many as it has frames for. If the log has little left, what goes
/// in it may be less; but first it waits for a checkpoint.
fn begin_part<'a>(volume: &'a Volume, data: &FileData, enter: &Enter) -> Result<(Txn<'a>, Vec<Page>)> {
    let part = part_of(volume, data.pages.keys().copied(), data.emptied, usize::MAX);
    let (mut frames, mut log_bytes) = (part.frames, part.log_bytes);
    let mut has_waited = false;
    let page = |(&block, &frame)| Page { block, frame, checksum: checksums::of_page(volume, frame) };
    let mut pages: Vec<Page> = data.pages.iter().take(part.pages).map(page).collect();
    loop {
        let (mut txn, may_take) = match enter {
            // What blocks it may need, its pages were promised.
            Enter::Throttled => {
                let mut txn = volume.begin_giving(0)?;
                // What cannot be parted goes all the same.
                let may_take = txn.may_take(frames) || data.emptied;
                (txn, may_take)
            }
            Enter::Direct => {
                let mut txn = Txn::enter(volume);
                let may_take = txn.may_take_of_reserve(frames);
                if !may_take && (data.emptied || frames <= DIRECT_FRAMES_MIN) {
                    return Err(Errno::NOMEM.into());
                }
                (txn, may_take)
            }
        };
        if may_take {
            // What cannot be parted goes all the same, here as well.
            let least = if data.emptied { log_bytes } else { log_bytes.min(volume.limits.part_log_bytes_max / 8) };
            if txn.ask_log(log_bytes) >= least || has_waited {
                return Ok((txn, pages));
            }
            drop(txn);
            if matches!(enter, Enter::Direct) {
                return Err(Errno::NOMEM.into());
            }
            volume.commit_for_room()?;
            has_waited = true;
            continue;
        }
        drop(txn);
        let part = part_of(volume, pages.iter().map(|page| page.block), data.emptied, frames / 2);
        pages.truncate(part.pages);
        (frames, log_bytes) = (part.frames, part.log_bytes);
    }
}

/// Maps runs of neighbouring pages of a file, allocating where nothing is mapped; for the first of them, as many as went in, the blocks, with
/// the frames that are to become their content.
pub(crate) fn map_pages(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    ino: Ino,
    raw: &mut RawInode,
    to_map: ToMap<'_>,
) -> Result<Vec<Placed>> {
    let volume = txn.volume();
    let has_fragments = volume.geometry.fragments() > 1;
    let mut pages = to_map.pages;
    if has_fragments {
        // That is what costs: these go all.
        pages = &pages[..fragments::give(txn, source, ino, raw, to_map)?];
    }
    let mut writes = Vec::with_capacity(pages.len());
    // Of the run mapped last: the file block after it, and the block after it.
    let mut last = None;
    let mut at = 0;
    while at < pages.len() {
        let first = pages[at].block;
        let mut length = 1;
        while at + length < pages.len() && pages[at + length].block == first + length as u64 {
            length += 1;
        }
        let run = &pages[at..at + length];
        at += length;
        let mut done = 0;
        while done < run.len() {
            if !to_map.all && !has_fragments && !writes.is_empty() && txn.is_long() {
                return Ok(writes);
            }
            let block = FileBlock(run[done].block);
            let left = (run.len() - done) as u64;
            let (start, count) = match map::lookup(&mut &txn.look, raw, ino, block)? {
                Mapping::Mapped(extent) => {
                    let skip = block.0 - extent.file_block.0;
                    let count = left.min(u64::from(extent.length) - skip);
                    let start = extent.start.offset_by(skip);
                    if extent.unwritten {
                        if volume.geometry.has_checksums {
                            checksums::read_ahead(txn, start, count)?;
                        }
                        map::mark_written(txn, source, raw, ino, block..FileBlock(block.0 + count))?;
                        (start, count)
                    } else if volume.geometry.has_checksums && !planted(Bug::OverwriteInPlace) {
                        // Where what is replaced lay is no better than any other place.
                        source.goal = last.map_or(source.goal, |(_, next)| next);
                        overwrite(txn, source, ino, raw, block, left, extent)?
                    } else {
                        (start, count)
                    }
                }
                Mapping::Hole { until } => {
                    let want = left.min(until.0 - block.0).min(u64::from(LENGTH_MAX)) as u32;
                    let (goal, want) = placement::data(txn, ino, raw, block, want, last)?;
                    source.goal = goal;
                    let (start, count) = allocate_run(txn, goal, want)?;
                    let extent = Extent { file_block: block, start, length: count, unwritten: false };
                    map::insert(txn, source, raw, ino, extent)?;
                    (start, u64::from(count))
                }
            };
            for i in 0..count {
                writes.push(Placed { block: start.0 + i, frame: run[done + i as usize].frame });
            }
            if volume.geometry.has_checksums {
                let sums: Vec<u32> = run[done..done + count as usize].iter().map(|page| page.checksum).collect();
                checksums::store(txn, start, &sums)?;
            }
            last = Some((FileBlock(block.0 + count), start.offset_by(count)));
            done += count as usize;
        }
    }
    Ok(writes)
}

/// Takes up to `want` blocks for data. Where overwriting leaves holes everywhere, what is written in one go must not end up
/// in them as long as there are longer runs.
fn allocate_run(txn: &mut Txn<'_>, goal: FsBlock, want: u32) -> Result<(FsBlock, u32)> {
    let volume = txn.volume();
    let min = if volume.geometry.has_checksums { want.min(RUN_BLOCKS) } else { 1 };
    match volume.allocate_data(txn, goal, min, want) {
        Err(Error::Refused(Errno::NOSPC)) if min > 1 => volume.allocate_data(txn, goal, 1, want),
        found => found,
    }
}

/// Where data with checksums goes that overwrites `extent` from `block` on: a committed state has the checksums of what it
/// holds now, so new blocks take its place, and that of what follows it in the run of `left` pages; the old ones are freed
/// with the same transaction. Blocks that no committed state knows stay. Returns the first block and how many.
fn overwrite(
    txn: &mut Txn<'_>,
    source: &mut BlockSource,
    ino: Ino,
    raw: &mut RawInode,
    block: FileBlock,
    left: u64,
    mut extent: Extent,
) -> Result<(FsBlock, u64)> {
    let volume = txn.volume();
    let epoch = volume.epoch.current();
    let place = |extent: &Extent, at: FileBlock| extent.start.offset_by(at.0 - extent.file_block.0);
    let is_new = |block| volume.cache.is_unwritten_since(block, epoch);
    let most = left.min(u64::from(LENGTH_MAX));
    let in_extent = most.min(extent.end().0 - block.0);
    let start = place(&extent, block);
    let new = (0..in_extent).take_while(|&i| is_new(start.offset_by(i))).count();
    if new > 0 {
        return Ok((start, new as u64));
    }
    // As long as can be, whatever pieces the old blocks lie in. Space reserved ahead is used where it is.
    let mut end = FileBlock(block.0 + 1);
    while end.0 - block.0 < most {
        if end >= extent.end() {
            match map::lookup(&mut &txn.look, raw, ino, end)? {
                Mapping::Mapped(next) if next.unwritten => break,
                Mapping::Mapped(next) => extent = next,
                Mapping::Hole { until } => {
                    end = FileBlock(until.0.min(block.0 + most));
                    continue;
                }
            }
        }
        if is_new(place(&extent, end)) {
            break;
        }
        end.0 += 1;
    }
    let (target, length) = allocate_run(txn, source.goal, (end.0 - block.0) as u32)?;
    let mut freed = Vec::new();
    let range = block..FileBlock(block.0 + u64::from(length));
    map::remove_all(txn, source, raw, ino, range, &mut freed)?;
    for (start, length) in freed {
        txn.block_free(start, length);
    }
    map::insert(txn, source, raw, ino, Extent { file_block: block, start: target, length, unwritten: false })?;
    Ok((target, u64::from(length)))
}

/// The frames of mapped pages become their blocks' cached content, which the epoch's commit waits for. The last step of
/// a transaction, when nothing can fail any more: until then the frames are the file's own, and with an error still are.
pub(crate) fn publish_pages(txn: &mut Txn<'_>, ino: Ino, mut mapped: Vec<Placed>, passing: bool) {
    let volume = txn.volume();
    let epoch = volume.epoch.current();
    for Placed { block, frame } in &mut mapped {
        *frame = volume.cache.publish(*frame, FsBlock(*block), passing, epoch);
    }
    txn.order_data(ino, &mapped);
}

/// Marks a file whose inode is being freed.
pub(crate) fn mark_dead(file: &OpenFile) {
    file.dead.store(true, Ordering::Release);
}

/// Gives back what a gone file holds in memory. Outside the gate.
pub(crate) fn discard(volume: &Volume, file: &OpenFile) {
    let mut data = file.data.write();
    drop_pages(volume, file, &mut data);
}

fn drop_pages(volume: &Volume, file: &OpenFile, data: &mut FileData) {
    volume.counters.add(Count::delalloc_cancelled, data.pages.len() as u64);
    volume.files.dirty_pages.fetch_sub(data.pages.len() as u64, Ordering::Relaxed);
    for (_, frame) in std::mem::take(&mut data.pages) {
        volume.cache.drop_private(frame);
    }
    data.nodes.after(&volume.geometry, &data.pages);
    volume.unreserve(std::mem::take(&mut data.promised));
    file.ahead.store(false, Ordering::Release);
}

/// After a change that failed: pages made on the way to it, in a file that is clean, are on no list and would stay for
/// ever. What they hold is what the device has, or zeros for it.
pub(super) fn drop_strays(volume: &Volume, file: &OpenFile, data: &mut FileData) {
    if !file.ahead.load(Ordering::Acquire) {
        drop_pages(volume, file, data);
    }
}

/// Drops the pages of the blocks in `range`.
pub(super) fn drop_page_range(volume: &Volume, data: &mut FileData, range: std::ops::Range<u64>) {
    let gone: Vec<u64> = data.pages.range(range).map(|(&block, _)| block).collect();
    for block in &gone {
        let frame = data.pages.remove(block).expect("just listed");
        volume.cache.drop_private(frame);
    }
    volume.counters.add(Count::delalloc_cancelled, gone.len() as u64);
    volume.files.dirty_pages.fetch_sub(gone.len() as u64, Ordering::Relaxed);
    return_promises(volume, data);
}

/// Promises are not kept by page; what the remaining pages cannot need goes back.
fn return_promises(volume: &Volume, data: &mut FileData) {
    let needed = data.nodes.after(&volume.geometry, &data.pages);
    if data.promised > needed {
        volume.unreserve(data.promised - needed);
        data.promised = needed;
    }
}
