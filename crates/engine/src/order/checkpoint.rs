//! Checkpoints: an epoch closed and made durable.
//!
//! Order `log`, for epoch N (crash safety is argued case by case in docs/design/crash-safety.md):
//!
//!  1. blocks logged long ago go home, so that the log's tail can move;
//!  2. the gate closes; the changed granules are copied into the checkpoint, freshly allocated blocks whole; it opens;
//!  3. file data, fresh blocks (both go where no committed state looks) and the checkpoint's body are written;
//!  4. flush; commit record, durable;
//!  5. blocks that epoch N freed go to the free-space trees (a change of epoch N + 1), and the tail moves.
//!
//! The tail may not pass the oldest record of a block that is not home, and a block goes home only while the open epoch has not
//! changed it. Superblock, group headers and busy directories change in every epoch, so they would hold the tail for ever. Once
//! the oldest record of such a block is older than a quarter of the log, or frames that are away crowd the cache, step 2 copies
//! the whole block, and the copy goes home after the commit. XFS logs such blocks again instead, so that their records are young.
//! That was built first and replaced: it takes room in the log exactly when there is little. For the copies' sake a checkpoint is
//! due with 64 MiB of such blocks (`OpenEpoch::hot_blocks`), or they would take as much memory as the cache.
//!
//! With neither data nor fresh blocks, 3 and 4 are one write and one flush.
//!
//! Order `none` writes every changed block home and flushes; nothing is promised about a crash in between.
//!
//! The host may have no room for one of these writes (`Error::HostFull`). Before the commit record that costs nothing: the epoch
//! stays closed ([`Pending`]), the volume goes on in memory, and whoever wants the next checkpoint first writes this one again,
//! all of it. Each of its writes may be repeated: data lies in frames that stay until they are written, fresh blocks and the
//! checkpoint's body in copies. Blocks on their way home stay on the list of those that are away. Any other error of a
//! write, and every error of a flush, shuts the volume down.
//!
//! One checkpoint at a time: the checkpointer's lock is held throughout. Whoever wants a sync and finds it held waits,
//! and then usually finds its epoch durable: that is group commit.

use crate::cache::{Closed, FrameHeader, flag};
use crate::counters::Count;
use crate::error::{Error, Result};
use crate::order::moment::Held;
use crate::order::{Freed, Txn};
use crate::planted::{Bug, planted};
use crate::types::{Discard, Order};
use crate::volume::{Volume, WRITE_MAX};
use myriad_device::{AlignedBuf, WriteRequest};
use myriad_format::log::PendingFree;
use myriad_format::{FsBlock, Lsn, header};
use myriad_log::{Checkpoint, Log, LogPlace, Sealed};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What only the maker of checkpoints touches. Its lock does not remember a panic of who had it: what changes something here for
/// others to go on from runs in [`Volume::unbroken`].
pub(crate) struct Checkpointer {
    pub(super) log: Option<Log>,
    builder: Checkpoint,
    /// Frames with logged changes not yet home.
    away: Vec<u32>,
    /// Fresh blocks, copied while the gate was closed. Their frames stay until they are home.
    fresh: Images,
    /// Blocks that go home once their epoch is durable.
    hot: Images,
    /// Blocks whose logged changes are older than this position are to go home: there is little room in the log or the cache.
    home_before: u64,
    /// Through which file data and blocks that go home are written.
    staging: AlignedBuf,
    /// Extents freed by a durable epoch that have not reached the trees yet.
    released: Vec<(FsBlock, u32)>,
    /// Epochs below this one are durable.
    pub durable: u64,
    /// Log position that blocks forgotten in the epoch being committed still need.
    needed_lsn: u64,
    /// A closed epoch that is not durable.
    pending: Option<Pending>,
    /// The volume is closed: there are no further checkpoints.
    is_closed: bool,
    /// A committed state that somebody reads, and how many there were.
    pub(super) held: Option<Held>,
    pub(super) moments: u64,
}

/// Blocks as they were when their epoch closed. Many lie in one buffer: each in its own page-aligned one would take twice the
/// memory.
struct Images {
    /// Block, frame, and which image it is.
    blocks: Vec<(u64, u32, usize)>,
    buffers: Vec<AlignedBuf>,
    block_size: usize,
}

/// Buffers of images that are kept for the next checkpoint: 32 MiB, not a burst's worth for ever.
const BUFFERS_KEPT: usize = 32;

impl Images {
    fn new(block_size: usize) -> Self {
        Self { blocks: Vec::new(), buffers: Vec::new(), block_size }
    }

    /// The buffer of an image, and where in it.
    fn place(&self, image: usize) -> (usize, Range<usize>) {
        let per_buffer = WRITE_MAX / self.block_size;
        let start = image % per_buffer * self.block_size;
        (image / per_buffer, start..start + self.block_size)
    }

    fn push(&mut self, block: u64, frame: u32, bytes: &[u8]) {
        let image = self.blocks.len();
        let (buffer, range) = self.place(image);
        if buffer == self.buffers.len() {
            self.buffers.push(AlignedBuf::zeroed(WRITE_MAX));
        }
        self.buffers[buffer][range].copy_from_slice(bytes);
        self.blocks.push((block, frame, image));
    }

    fn get(&self, image: usize) -> &[u8] {
        let (buffer, range) = self.place(image);
        &self.buffers[buffer][range]
    }

    fn get_mut(&mut self, image: usize) -> &mut [u8] {
        let (buffer, range) = self.place(image);
        &mut self.buffers[buffer][range]
    }

    /// Forgets all images.
    fn clear(&mut self) {
        let (used, _) = self.place(self.blocks.len());
        self.buffers.truncate((used + 1).max(self.buffers.len() / 2).min(BUFFERS_KEPT));
        self.blocks.clear();
    }
}

/// What an epoch changed, taken when it closed.
struct ClosedEpoch {
    number: u64,
    dirty: Vec<u32>,
    freed: Freed,
    /// File data: block and frame.
    ordered: Vec<(u64, u32)>,
}

/// A closed epoch on its way to the device. It stays when the host has no room for a write of it, and is written again.
struct Pending {
    number: u64,
    freed: Freed,
    /// File data: block and frame, sorted.
    ordered: Vec<(u64, u32)>,
    /// Order `none`: changed blocks and their frames, sorted.
    home: Vec<(u64, u32)>,
    /// Order `log`: the checkpoint, once it has its place in the log, and the length of its body.
    sealed: Option<Sealed>,
    body_len: u64,
    /// Order `log`: what was written before the commit record needs a flush of its own.
    has_unflushed: bool,
}

/// Ends the open epoch behind the closed gate, and begins the next one.
/// Freed extents that are `waiting` for the trees, and those of this epoch, count in the next one as long as they wait: each
/// checkpoint names them, and whoever frees faster than they are put into the trees is held up.
fn close_epoch<'a>(volume: &'a Volume, closed: &'a Closed<'a>, waiting: usize) -> Result<ClosedEpoch> {
    // Whoever was inside while the gate was being closed may have ended in the middle of his changes.
    volume.check_not_shut_down()?;
    let mut txn = Txn::behind(volume, closed);
    let prepared = volume.prepare_capture(&mut txn);
    txn.finish(prepared)?;
    let epoch = &volume.epoch;
    let waiting = waiting + epoch.freed.lock().limbo.len();
    epoch.log_bytes.store((waiting * PendingFree::SIZE) as u64, Ordering::Relaxed);
    epoch.ordered_count.store(0, Ordering::Relaxed);
    epoch.fresh_blocks.store(0, Ordering::Relaxed);
    epoch.again_blocks.store(0, Ordering::Relaxed);
    epoch.hot_blocks.store(0, Ordering::Relaxed);
    Ok(ClosedEpoch {
        number: epoch.number.fetch_add(1, Ordering::Release),
        dirty: epoch.take_dirty(),
        freed: std::mem::take(&mut *epoch.freed.lock()),
        ordered: {
            let mut ordered = std::mem::take(&mut *epoch.ordered.lock());
            ordered.sort_unstable();
            ordered.dedup();
            ordered
        },
    })
}

/// Joins extents that touch.
fn join_neighbours(extents: &mut Vec<(FsBlock, u32)>) {
    extents.sort_unstable();
    extents.dedup_by(|next, joined| {
        let touches = joined.0.0 + u64::from(joined.1) == next.0.0 && joined.1.checked_add(next.1).is_some();
        if touches {
            joined.1 += next.1;
        }
        touches
    });
}

/// Whether a frame holds changes of its block that are not home.
fn is_away(header: &FrameHeader) -> bool {
    header.flags.load(Ordering::Relaxed) & flag::DEAD == 0 && header.unhomed.load(Ordering::Relaxed) != 0
}

/// What is to be done about a frame that was seen to hold logged changes of a block.
enum Home {
    /// Write it, sealed with this LSN.
    Write(u64),
    /// The open epoch has changed it.
    Later,
    /// It holds none any more. Its block was forgotten, and the frame may have become a file's private page, whose header
    /// still names that block: written home, it would lie in place of what the committed state has there.
    Gone,
}

/// Under the frame's latch.
fn home_of(header: &FrameHeader, block: u64) -> Home {
    if !is_away(header) {
        return Home::Gone;
    }
    if header.mask.load(Ordering::Relaxed) != 0 || header.block.load(Ordering::Relaxed) != block {
        return Home::Later;
    }
    Home::Write(header.first_lsn.load(Ordering::Relaxed))
}

/// Writes frames (block, frame; sorted) home, sealed, in long requests. `lsn_of` is asked under the frame's latch with
/// which LSN it is to be sealed; `None` leaves it out. `before` is told of those that are about to be written.
fn write_frames(
    volume: &Volume,
    staging: &mut AlignedBuf,
    frames: &[(u64, u32)],
    mut lsn_of: impl FnMut(u64, u32, &FrameHeader) -> Option<u64>,
    mut before: impl FnMut(&[(u64, u32)]),
) -> Result<()> {
    let cache = &volume.cache;
    let block_size = cache.block_size();
    for batch in frames.chunks(volume.stage(staging, frames.len())) {
        let mut written = Vec::with_capacity(batch.len());
        for &(block, index) in batch {
            let bytes = cache.arena.read(index);
            let Some(lsn) = lsn_of(block, index, cache.arena.header(index)) else { continue };
            let at = written.len() * block_size;
            let image = &mut staging[at..at + block_size];
            image.copy_from_slice(&bytes);
            header::seal_at(image, &cache.volume, FsBlock(block), lsn);
            written.push((block, index));
        }
        before(&written);
        volume.write_blocks(&written, &staging[..written.len() * block_size])?;
        for &(block, index) in &written {
            cache.came_home(block, index);
        }
        volume.counters.add(Count::blocks_homed, written.len() as u64);
    }
    Ok(())
}

/// Seals images and writes them to their places, in long requests.
fn write_images(volume: &Volume, images: &mut Images, lsn: u64) -> Result<()> {
    if images.blocks.is_empty() {
        return Ok(());
    }
    images.blocks.sort_unstable();
    for at in 0..images.blocks.len() {
        let (block, .., image) = images.blocks[at];
        header::seal_at(images.get_mut(image), &volume.cache.volume, FsBlock(block), lsn);
    }
    let parts: Vec<&[u8]> = images.blocks.iter().map(|&(.., image)| images.get(image)).collect();
    let block_of = |i: usize| images.blocks[i].0;
    let request = |run: Range<usize>| WriteRequest {
        offset: block_of(run.start) << volume.geometry.block_bits,
        parts: &parts[run],
    };
    let requests: Vec<_> = volume.write_runs(parts.len(), block_of).into_iter().map(request).collect();
    volume.write_requests(&requests)
}

/// Whatever ends in the middle of what the checkpointer does shuts the volume down, unless the host had no room: that leaves
/// everything as it was, to be done again.
fn judged<T>(volume: &Volume, result: Result<T>) -> Result<T> {
    match &result {
        Ok(_) => volume.note_host_full(false),
        Err(Error::HostFull(_)) => volume.note_host_full(true),
        Err(error) => volume.shut_down(error),
    }
    result
}

impl Checkpointer {
    pub fn new(log: Option<Log>, pending: Vec<(FsBlock, u32)>, block_size: usize) -> Self {
        Self {
            log,
            builder: Checkpoint::new(block_size),
            away: Vec::new(),
            fresh: Images::new(block_size),
            hot: Images::new(block_size),
            home_before: 0,
            staging: AlignedBuf::default(),
            released: pending,
            durable: 1,
            needed_lsn: u64::MAX,
            pending: None,
            is_closed: false,
            held: None,
            moments: 0,
        }
    }

    /// Blocks freed durably that are in no tree yet.
    pub fn released_blocks(&self) -> u64 {
        self.released.iter().map(|&(_, length)| u64::from(length)).sum()
    }

    /// Bytes of the log that recovery would read.
    pub fn log_used(&self) -> Option<u64> {
        self.log.as_ref().map(Log::used)
    }

    /// Empties a log that will not be written to, so that no later opening replays it over newer blocks: everything that it
    /// holds goes home, and only when it is empty does anything change there. Blocks that it held as freed are in no tree
    /// until the first checkpoint after that.
    pub fn retire_log(&mut self, volume: &Volume, place: &LogPlace) -> Result<()> {
        volume.unbroken(|| self.retire_log_running(volume, place))
    }

    fn retire_log_running(&mut self, volume: &Volume, place: &LogPlace) -> Result<()> {
        let Some(log) = self.log.take() else { return Ok(()) };
        self.fetch_overlay(volume, u64::MAX)?;
        self.away.append(&mut volume.cache.take_recovered());
        self.write_home(volume, u64::MAX)?;
        volume.device_flush()?;
        myriad_log::format(place, log.head()).map_err(|error| volume.log_error(error))?;
        self.settle(volume)?;
        Ok(())
    }

    /// Puts durably freed blocks into the trees at once, for whoever waits for space.
    pub fn release_now(&mut self, volume: &Volume) -> Result<()> {
        self.check_running(volume)?;
        let result = volume.unbroken(|| self.release(volume));
        judged(volume, result)
    }

    /// Writes home what can be, so that it can be evicted.
    pub fn bring_home(&mut self, volume: &Volume) -> Result<()> {
        // What a failed checkpoint logged is not durable, and must not go home.
        self.check_running(volume)?;
        if volume.order != Order::Log {
            return Ok(());
        }
        self.away.append(&mut volume.cache.take_recovered());
        let result = volume.unbroken(|| {
            if self.pending.is_some() {
                // The log does not have its changes.
                self.finish(volume)?;
            }
            self.write_home(volume, u64::MAX)
        });
        judged(volume, result)
    }

    /// Whether some logged change is not home yet, or blocks wait for the trees.
    fn is_settled(&self) -> bool {
        self.away.is_empty() && self.released.is_empty()
    }

    fn check_running(&self, volume: &Volume) -> Result<()> {
        if self.is_closed { Err(Error::Closed) } else { volume.check_not_shut_down() }
    }

    /// Ends the making of checkpoints, having settled the volume, to which nobody makes changes any more. False if it
    /// would not settle. If the host has no room, nothing has ended, and it can be tried again.
    pub fn close(&mut self, volume: &Volume) -> Result<bool> {
        let settled = self.settle(volume);
        self.is_closed = !matches!(settled, Err(Error::HostFull(_)));
        settled
    }

    /// Makes everything changed so far durable.
    pub fn run(&mut self, volume: &Volume) -> Result<()> {
        self.check_running(volume)?;
        let result = volume.unbroken(|| {
            if self.pending.is_some() {
                self.finish(volume)?;
            }
            match volume.order {
                Order::Log => self.run_log(volume),
                Order::None => self.run_none(volume),
            }
        });
        volume.files.forget_cut(volume.epoch.current());
        judged(volume, result)
    }

    /// Writes the closed epoch.
    fn finish(&mut self, volume: &Volume) -> Result<()> {
        match volume.order {
            Order::Log => self.finish_log(volume),
            Order::None => self.finish_none(volume),
        }
    }

    /// Makes everything durable and brings everything home, so that the log is empty and the trees know all free space.
    /// False if operations that go on beside it kept it from getting there.
    pub fn settle(&mut self, volume: &Volume) -> Result<bool> {
        self.check_running(volume)?;
        let result = volume.unbroken(|| self.settle_running(volume));
        judged(volume, result)
    }

    fn settle_running(&mut self, volume: &Volume) -> Result<bool> {
        let mut settled = false;
        // Each run may leave work for the next: frees wait for their own epoch, chunks for their last inode. A long list of
        // freed blocks goes to the trees in as many runs as it takes.
        let mut rounds = 8;
        while rounds > 0 {
            let waiting = self.released.len();
            self.run(volume)?;
            self.fetch_overlay(volume, u64::MAX)?;
            self.away.append(&mut volume.cache.take_recovered());
            self.write_home(volume, u64::MAX)?;
            settled = self.is_settled() && volume.epoch.is_empty();
            if settled {
                break;
            }
            rounds -= u32::from(self.released.len() >= waiting);
        }
        if !planted(Bug::SkipFlush) {
            volume.device_flush()?;
        }
        if self.log.is_some() {
            self.move_tail(volume);
        }
        if let Some(log) = &mut self.log {
            log.write_anchor().map_err(|error| volume.log_error(error))?;
        }
        Ok(settled)
    }

    fn run_log(&mut self, volume: &Volume) -> Result<()> {
        volume.counters.bump(Count::checkpoints);
        self.away.append(&mut volume.cache.take_recovered());
        self.make_log_room(volume)?;
        self.release(volume)?;
        volume.release_empty_chunks()?;

        let closed = volume.cache.gate.close();
        let ClosedEpoch { number, dirty, mut freed, ordered } = close_epoch(volume, &closed, self.released.len())?;
        if dirty.is_empty() && freed.limbo.is_empty() && freed.revokes.is_empty() && ordered.is_empty() {
            drop(closed);
            self.durable = number + 1;
            // Data written straight to its place may still be in the device's cache.
            return volume.device_flush();
        }
        self.capture(volume, &dirty);
        volume.epoch.away_blocks.store(self.away.len() as u64, Ordering::Relaxed);
        drop(closed);
        volume.counters.add(Count::checkpoint_data_blocks, ordered.len() as u64);
        volume.counters.add(Count::checkpoint_fresh_blocks, self.fresh.blocks.len() as u64);
        self.needed_lsn = freed.needed_lsn;
        join_neighbours(&mut freed.limbo);
        if planted(Bug::DiscardBeforeCommit) && volume.options.discard == Discard::Always {
            let bits = volume.geometry.block_bits;
            let discard =
                |&(start, length): &(FsBlock, u32)| volume.device.discard(start.0 << bits, u64::from(length) << bits);
            let _ = freed.limbo.iter().try_for_each(discard);
        }
        for &block in &freed.revokes {
            self.builder.revoke(block);
        }
        // What an earlier epoch freed and nobody has put into the trees yet is still pending.
        for &(start, length) in freed.limbo.iter().chain(&self.released) {
            self.builder.pending(start, length);
        }

        let has_unflushed = !self.fresh.blocks.is_empty();
        let body_len = self.builder.body_len();
        let (home, sealed) = (Vec::new(), None);
        self.pending = Some(Pending { number, freed, ordered, home, sealed, body_len, has_unflushed });
        self.finish_log(volume)
    }

    /// Makes the closed epoch durable: steps 3 to 5.
    fn finish_log(&mut self, volume: &Volume) -> Result<()> {
        let mut pending = self.pending.take().expect("an epoch is closed");
        let committed = self.commit(volume, &mut pending);
        let Pending { number, mut freed, sealed, body_len, .. } = match committed {
            Ok(()) => pending,
            Err(error) => {
                self.pending = Some(pending);
                return Err(error);
            }
        };
        let sealed = sealed.expect("it was committed");
        volume.counters.add(Count::checkpoint_bytes, body_len);
        self.builder = sealed.recycle();
        self.durable = number + 1;
        self.needed_lsn = u64::MAX;
        // Before they can be allocated, and written as what nobody looks at.
        self.keep(volume, freed.revokes.iter().map(|block| block.0));
        self.note_freed(&freed.limbo);
        self.released.append(&mut freed.limbo);
        self.move_tail(volume);
        // Not flushed yet, so only the next checkpoint moves the tail past them.
        match self.write_hot(volume) {
            // They hold the tail, and go home when there is room. These copies will be old by then.
            Err(Error::HostFull(_)) => self.hot.clear(),
            written => written?,
        }
        self.expect_home(volume);
        Ok(())
    }

    /// Writes data, fresh blocks and the checkpoint. If the host has no room, all of it can be done again.
    fn commit(&mut self, volume: &Volume, pending: &mut Pending) -> Result<()> {
        if planted(Bug::HomeBeforeCommit) {
            self.write_hot(volume)?;
        }
        self.write_ordered(volume, &pending.ordered)?;
        self.write_fresh(volume)?;
        if pending.sealed.is_none() {
            let time = volume.now();
            let log = self.log.as_ref().expect("order log has a log");
            pending.sealed = Some(log.seal(&mut self.builder, time).map_err(|error| volume.log_error(error))?);
        }
        let sealed = pending.sealed.as_ref().expect("just sealed");
        let log = self.log.as_mut().expect("order log has a log");
        pending.has_unflushed |= volume.data_unflushed.swap(false, Ordering::AcqRel);
        if pending.has_unflushed {
            log.write_body(sealed).map_err(|error| volume.log_error(error))?;
            if !planted(Bug::NoBarrier) {
                volume.device_flush()?;
            }
            log.write_commit(sealed).map_err(|error| volume.log_error(error))
        } else {
            log.write_all(sealed).map_err(|error| volume.log_error(error))?;
            // Blocks written home before this checkpoint must be durable before the tail passes them. When the log is
            // on the volume's own device, its flush was theirs.
            if volume.log_is_external { volume.device_flush() } else { Ok(()) }
        }
    }

    /// What the next checkpoint will bring home, if operations fill the log as fast as they may.
    fn expect_home(&self, volume: &Volume) {
        let log = self.log.as_ref().expect("order log has a log");
        let capacity = log.capacity();
        let is_full_soon = log.room() < log.checkpoint_max() + capacity / 8;
        // A little of the next epoch's own length on top.
        let before = if is_full_soon { log.head().0.saturating_sub(capacity / 4 - capacity / 16) } else { 0 };
        volume.epoch.home_before.store(before, Ordering::Relaxed);
    }

    /// Whether the cache is full of blocks that are away.
    fn is_crowded(&self, volume: &Volume) -> bool {
        self.away.len() * 3 > volume.cache.frame_count()
    }

    /// Copies what the closing epoch changed. The gate is closed: nothing moves.
    fn capture(&mut self, volume: &Volume, dirty: &[u32]) {
        let cache = &volume.cache;
        let head = self.log.as_ref().expect("order log has a log").head().0;
        self.builder.clear();
        for &index in dirty {
            let header = cache.arena.header(index);
            let flags = header.flags.fetch_and(!flag::LISTED, Ordering::Relaxed);
            if flags & flag::DEAD != 0 {
                continue;
            }
            let block = FsBlock(header.block.load(Ordering::Relaxed));
            let bytes = cache.arena.read(index);
            if flags & flag::FRESH != 0 {
                self.fresh.push(block.0, index, &bytes);
                header.flags.fetch_and(!flag::FRESH, Ordering::Relaxed);
                header.flags.fetch_or(flag::DATA_DIRTY, Ordering::Relaxed);
                header.mask.store(0, Ordering::Relaxed);
                continue;
            }
            let mask = header.mask.swap(0, Ordering::Relaxed);
            if mask == 0 {
                continue;
            }
            let unhomed = header.unhomed.load(Ordering::Relaxed);
            if unhomed == 0 {
                header.first_lsn.store(head, Ordering::Relaxed);
            } else if header.first_lsn.load(Ordering::Relaxed) < self.home_before {
                // It holds the log's tail, and operations touch it too often for it to go home in between.
                self.hot.push(block.0, index, &bytes);
            }
            header.unhomed.store(unhomed | mask, Ordering::Relaxed);
            self.builder.record(block, mask, &bytes);
            if flags & flag::AWAY == 0 {
                header.flags.fetch_or(flag::AWAY, Ordering::Relaxed);
                self.away.push(index);
            }
        }
    }

    /// Puts blocks that a durable epoch freed into the free-space trees, as many as are good for one checkpoint.
    fn release(&mut self, volume: &Volume) -> Result<()> {
        self.released.sort_unstable();
        volume.to_host.grow_old();
        let done = volume.release_blocks(&self.released)?;
        self.released.drain(..done);
        Ok(())
    }

    /// Brings blocks home while the log is more than half full, or the cache is full of blocks that are away.
    fn make_log_room(&mut self, volume: &Volume) -> Result<()> {
        let log = self.log.as_ref().expect("order log has a log");
        let (room, capacity, head) = (log.room(), log.capacity(), log.head().0);
        let crowded = self.is_crowded(volume);
        // What one checkpoint may take is half the ring in whole units; there is never room for more.
        self.home_before = match (crowded, room < log.checkpoint_max()) {
            (true, _) => u64::MAX,
            (false, true) => head.saturating_sub(capacity / 4),
            (false, false) => 0,
        };
        if self.home_before > 0 {
            if !crowded {
                self.fetch_overlay(volume, self.home_before)?;
            }
            self.write_home(volume, self.home_before)?;
        }
        // The commit that follows flushes these home writes, and only the next one may use the room they make. When
        // that would be too late, flush and move the tail now.
        if room < capacity / 3 {
            if !planted(Bug::SkipFlush) {
                volume.device_flush()?;
            }
            self.move_tail(volume);
            let log = self.log.as_mut().expect("order log has a log");
            log.write_anchor().map_err(|error| volume.log_error(error))?;
            volume.counters.bump(Count::log_stalls);
        }
        Ok(())
    }

    /// Reads blocks that only the log knows from before `before`, so that they can be written home.
    fn fetch_overlay(&mut self, volume: &Volume, before: u64) -> Result<()> {
        if !volume.cache.has_overlay() {
            return Ok(());
        }
        let mut blocks: Vec<u64> = {
            let overlay = volume.cache.overlay.read();
            overlay.blocks().filter(|(_, lsn)| lsn.0 < before).map(|(block, _)| block.0).collect()
        };
        blocks.sort_unstable();
        for batch in blocks.chunks(256) {
            // Not what makes checkpoints when it finds nothing to evict: this is one.
            volume.cache.sweep(false);
            let look = super::Look::enter(volume);
            for &block in batch {
                volume.cache.fetch_recovered(FsBlock(block))?;
            }
            drop(look);
            self.away.append(&mut volume.cache.take_recovered());
            if self.is_crowded(volume) {
                self.write_home(volume, u64::MAX)?;
            }
        }
        volume.cache.overlay_done();
        Ok(())
    }

    /// Writes home the blocks whose logged changes are older than `before` and that the open epoch has not touched.
    fn write_home(&mut self, volume: &Volume, before: u64) -> Result<()> {
        let cache = &volume.cache;
        let mut keep = Vec::with_capacity(self.away.len());
        let mut home: Vec<(u64, u32)> = Vec::new();
        for index in std::mem::take(&mut self.away) {
            let header = cache.arena.header(index);
            // A sweep may have given a dead frame to another block meanwhile; what counts is what it holds now.
            if !is_away(header) {
                header.flags.fetch_and(!flag::AWAY, Ordering::Relaxed);
                continue;
            }
            if header.first_lsn.load(Ordering::Relaxed) < before {
                home.push((header.block.load(Ordering::Relaxed), index));
            } else {
                keep.push(index);
            }
        }
        home.sort_unstable();
        home.dedup();
        let lsn_of = |block, index, header: &FrameHeader| match home_of(header, block) {
            Home::Write(lsn) => Some(lsn),
            Home::Later => {
                keep.push(index);
                None
            }
            Home::Gone => None,
        };
        let mut staging = std::mem::take(&mut self.staging);
        let written = write_frames(volume, &mut staging, &home, lsn_of, |frames| {
            self.keep(volume, frames.iter().map(|&(block, _)| block))
        });
        self.staging = staging;
        if written.is_err() {
            // Those that did not arrive still hold the log's tail.
            keep.extend(home.iter().map(|&(_, index)| index));
        }
        self.away = keep;
        written
    }

    fn write_ordered(&mut self, volume: &Volume, ordered: &[(u64, u32)]) -> Result<()> {
        if ordered.is_empty() {
            return Ok(());
        }
        volume.write_data(ordered, &mut self.staging)?;
        volume.cache.let_pass();
        Ok(())
    }

    fn write_fresh(&mut self, volume: &Volume) -> Result<()> {
        let lsn = self.next_lsn();
        write_images(volume, &mut self.fresh, lsn)?;
        for &(block, frame, _) in &self.fresh.blocks {
            volume.cache.written(block, frame);
        }
        self.fresh.clear();
        Ok(())
    }

    /// Writes blocks home whose changes had been in the log only.
    fn write_hot(&mut self, volume: &Volume) -> Result<()> {
        let lsn = self.next_lsn();
        let blocks: Vec<u64> = self.hot.blocks.iter().map(|&(block, ..)| block).collect();
        self.keep(volume, blocks.into_iter());
        write_images(volume, &mut self.hot, lsn)?;
        volume.counters.add(Count::blocks_homed, self.hot.blocks.len() as u64);
        for &(block, frame, _) in &self.hot.blocks {
            volume.cache.came_home(block, frame);
        }
        self.hot.clear();
        Ok(())
    }

    /// What images are sealed with.
    fn next_lsn(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.head().0)
    }

    /// Tells the log how far its tail may move: to the oldest change that is not home.
    fn move_tail(&mut self, volume: &Volume) {
        let cache = &volume.cache;
        let log = self.log.as_mut().expect("order log has a log");
        // Nothing leaves the overlay or is forgotten unseen: what a forgotten block needs is noted under this lock, and
        // a block taken from the overlay is on the list of recovered frames before the overlay's lock is free again.
        let freed = volume.epoch.freed.lock();
        let mut tail = log.head().0.min(self.needed_lsn).min(freed.needed_lsn);
        if let Some(lsn) = cache.overlay.read().oldest() {
            tail = tail.min(lsn.0);
        }
        self.away.append(&mut cache.take_recovered());
        for &index in &self.away {
            let header = cache.arena.header(index);
            if is_away(header) {
                tail = tail.min(header.first_lsn.load(Ordering::Relaxed));
            }
        }
        log.set_tail(Lsn(tail));
    }

    fn run_none(&mut self, volume: &Volume) -> Result<()> {
        volume.counters.bump(Count::checkpoints);
        self.release(volume)?;
        volume.release_empty_chunks()?;
        let closed = volume.cache.gate.close();
        let ClosedEpoch { number, dirty, freed, ordered } = close_epoch(volume, &closed, self.released.len())?;
        let cache = &volume.cache;
        let mut home: Vec<(u64, u32)> = Vec::with_capacity(dirty.len());
        for index in dirty {
            let header = cache.arena.header(index);
            let flags = header.flags.fetch_and(!(flag::LISTED | flag::FRESH), Ordering::Relaxed);
            if flags & flag::DEAD != 0 {
                continue;
            }
            header.mask.store(0, Ordering::Relaxed);
            // Not home until written: keeps the sweeper away.
            header.unhomed.store(u64::MAX, Ordering::Relaxed);
            header.first_lsn.store(0, Ordering::Relaxed);
            home.push((header.block.load(Ordering::Relaxed), index));
        }
        drop(closed);
        volume.counters.add(Count::checkpoint_data_blocks, ordered.len() as u64);
        home.sort_unstable();
        let pending = Pending { number, freed, ordered, home, sealed: None, body_len: 0, has_unflushed: true };
        self.pending = Some(pending);
        self.finish_none(volume)
    }

    fn finish_none(&mut self, volume: &Volume) -> Result<()> {
        let mut pending = self.pending.take().expect("an epoch is closed");
        if let Err(error) = self.write_all_home(volume, &pending) {
            self.pending = Some(pending);
            return Err(error);
        }
        volume.data_unflushed.store(false, Ordering::Release);
        self.durable = pending.number + 1;
        self.released.append(&mut pending.freed.limbo);
        Ok(())
    }

    fn write_all_home(&mut self, volume: &Volume, pending: &Pending) -> Result<()> {
        self.write_ordered(volume, &pending.ordered)?;
        let lsn_of = |block, _, header: &FrameHeader| {
            // The open epoch may have changed it again: what its block is to hold in the end is in the frame.
            (is_away(header) && header.block.load(Ordering::Relaxed) == block).then_some(0)
        };
        // Only order log has moments to keep anything for.
        write_frames(volume, &mut self.staging, &pending.home, lsn_of, |_| ())?;
        volume.device_flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;
    use crate::volume::testing;
    use myriad_device::{FaultDevice, FaultOp, FaultSpan, MemoryDevice};
    use myriad_format::BlockKind;
    use std::sync::Arc;

    /// A write home that failed outside of a checkpoint was forgotten: the log's tail passed the blocks, and a volume that was
    /// closed then was said to be clean.
    #[test]
    fn what_did_not_get_home_holds_the_tail() {
        let device = Arc::new(FaultDevice::new(MemoryDevice::new(16 << 20)));
        let volume = testing::volume(device.clone());
        for i in 0..200 {
            testing::new_file(&volume, format!("file {i}").as_bytes());
        }
        volume.commit_now().unwrap();
        let mut checkpointer = volume.checkpointer.lock();
        let away = checkpointer.away.clone();
        assert!(away.len() > 3);
        device.fail(FaultOp::Write, 1, FaultSpan::Once, Errno::IO.raw_os_error());
        assert!(checkpointer.bring_home(&volume).is_err());
        assert!(away.iter().all(|index| checkpointer.away.contains(index)));
        assert!(volume.check_not_shut_down().is_err());
    }

    /// A block whose changes the log does not have must not go home: a crash would show it without the rest of its epoch.
    #[test]
    fn what_is_not_in_the_log_does_not_go_home() {
        let device = Arc::new(FaultDevice::new(MemoryDevice::new(16 << 20)));
        let volume = testing::volume(device.clone());
        volume.commit_now().unwrap();
        testing::new_file(&volume, b"a");
        device.fail(FaultOp::Write, 1, FaultSpan::Once, Errno::NOSPC.raw_os_error());
        assert!(matches!(volume.commit_now(), Err(Error::HostFull(_))));
        let mut checkpointer = volume.checkpointer.lock();
        let number = checkpointer.pending.as_ref().expect("it is still to be written").number;
        checkpointer.bring_home(&volume).unwrap();
        assert!(checkpointer.pending.is_none() && checkpointer.durable > number && checkpointer.away.is_empty());
    }

    /// A checkpoint that waited for whoever was inside took the half of his change that an error had ended, and made it durable.
    #[test]
    fn who_ends_in_the_middle_while_the_gate_is_being_closed_is_in_no_checkpoint() {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let volume = testing::volume(device.clone());
        testing::new_file(&volume, b"a");
        volume.commit_now().unwrap();
        testing::new_file(&volume, b"b");
        let checkpoints = || volume.counters.snapshot().into_iter().find(|&(name, _)| name == "checkpoints");
        let begun = checkpoints();
        let mut txn = volume.begin(0).unwrap();
        std::thread::scope(|scope| {
            let committing = scope.spawn(|| volume.commit_now());
            // It has begun, and was told that all is well; it waits for this transaction.
            while checkpoints() == begun {
                std::thread::yield_now();
            }
            let block = volume.block_of(volume.root);
            crate::edit::BlockStore::change(&mut txn, block, BlockKind::Inode, |edit| {
                edit.put(edit.bytes().len() - 8, b"half of ");
            })
            .unwrap();
            assert!(txn.finish(Err::<(), _>(Error::from(Errno::IO))).is_err());
            assert!(committing.join().unwrap().is_err());
        });
        // What the next opening finds is as of the last checkpoint.
        let after = testing::open(Arc::new(device.clone_image()));
        let look = after.look();
        let block = after.block_of(after.root);
        let tail = look.read(block, BlockKind::Inode, |bytes| bytes[bytes.len() - 8..].to_vec()).unwrap();
        assert_ne!(tail, b"half of ");
    }

    /// Between being listed and being written home, a block was freed, and its frame became a file's private page: that
    /// page was written over the block, which the committed state still had.
    #[test]
    fn a_frame_that_became_a_page_does_not_go_home() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
        for i in 0..200 {
            testing::new_file(&volume, format!("file {i}").as_bytes());
        }
        volume.commit_now().unwrap();
        let cache = &volume.cache;
        let listed = volume.checkpointer.lock().away.clone();
        assert!(listed.len() > 3);
        for index in listed {
            let header = cache.arena.header(index);
            let block = header.block.load(Ordering::Relaxed);
            assert!(matches!(home_of(header, block), Home::Write(_)));
            cache.kill(FsBlock(block));
            assert!(matches!(home_of(header, block), Home::Gone));
            cache.sweep(true);
            let pages: Vec<u32> = std::iter::from_fn(|| cache.take_private().filter(|&page| page != index)).collect();
            assert_eq!(header.flags.load(Ordering::Relaxed), flag::DATA | flag::PRIVATE);
            assert!(matches!(home_of(header, block), Home::Gone));
            pages.into_iter().for_each(|page| cache.drop_private(page));
        }
    }
}
