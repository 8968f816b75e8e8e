//! Order `log`: an epoch becomes durable as one all-or-nothing record of a write-ahead log.
//!
//! For epoch N (crash safety is argued case by case in docs/design/crash-safety.md):
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
//! due with 64 MiB of such blocks (`Cost::hot_blocks`), or they would take as much memory as the cache.
//!
//! With neither data nor fresh blocks, 3 and 4 are one write and one flush.

pub(super) mod cost;
pub(super) mod forgotten;
#[cfg(test)]
mod tests;

use super::checkpoint::{close_epoch, is_away, write_frames, write_images};
use super::checkpointer::{Checkpointer, Homing, Pending};
use super::epoch::{ClosedEpoch, join_neighbours};
use crate::cache::{FrameHeader, Placed, Sweep, flag};
use crate::counters::Count;
use crate::error::{Errno, Error, Result};
use crate::planted::{Bug, planted};
use crate::types::Discard;
use crate::volume::Volume;
use myriad_device::WriteRequest;
use myriad_format::{FsBlock, Lsn};
use myriad_log::LogPlace;
use std::sync::atomic::Ordering;

/// What is to be done about a frame that was seen to hold logged changes of a block.
pub(super) enum Home {
    /// Write it.
    Write,
    /// The open epoch has changed it.
    Later,
    /// It holds none any more. Its block was forgotten, and the frame may have become a file's private page: written home,
    /// that would lie in place of what the committed state has there.
    Gone,
}

/// The log position that a frame's changes need for as long as they are not home.
fn needed_by(header: &FrameHeader) -> Option<Lsn> {
    if is_away(header) { header.unhomed.logged_from() } else { None }
}

/// Under the frame's latch.
pub(super) fn home_of(header: &FrameHeader, block: u64) -> Home {
    match needed_by(header) {
        None => Home::Gone,
        Some(_) if header.mask.load(Ordering::Relaxed) != 0 || header.block.load(Ordering::Relaxed) != block => {
            Home::Later
        }
        Some(_) => Home::Write,
    }
}

impl Checkpointer {
    pub(super) fn retire_log_running(&mut self, volume: &Volume, place: &LogPlace) -> Result<()> {
        if self.log.is_none() {
            return Ok(());
        }
        self.fetch_overlay(volume, Homing::All)?;
        if volume.cache.has_overlay() {
            return Err(Errno::NOMEM.into());
        }
        self.away.append(&mut volume.cache.take_recovered());
        self.write_home(volume, Homing::All)?;
        volume.device_flush()?;
        if let Some(log) = self.log.take() {
            myriad_log::format(place, log.head()).map_err(|error| volume.log_error(error))?;
        }
        self.settle(volume)?;
        Ok(())
    }

    pub(super) fn run_log(&mut self, volume: &Volume) -> Result<()> {
        volume.counters.bump(Count::checkpoints);
        self.away.append(&mut volume.cache.take_recovered());
        self.write_hot_again(volume)?;
        self.make_log_room(volume)?;
        self.release(volume)?;
        volume.release_empty_chunks()?;

        let closed = volume.cache.gate.close();
        let ClosedEpoch { number, dirty, mut freed, ordered } =
            close_epoch(volume, &closed, self.released.len(), &mut self.orphan_list)?;
        if dirty.is_empty() && freed.limbo.is_empty() && freed.forgotten.blocks().is_empty() && ordered.is_empty() {
            drop(closed);
            self.durable = number + 1;
            // Data written straight to its place may still be in the device's cache.
            return volume.device_flush();
        }
        self.capture(volume, &dirty);
        volume.epoch.cost.set_away(self.away.len());
        drop(closed);
        volume.counters.add(Count::checkpoint_data_blocks, ordered.len() as u64);
        volume.counters.add(Count::checkpoint_fresh_blocks, self.fresh.blocks.len() as u64);
        self.needed = freed.forgotten.needed();
        join_neighbours(&mut freed.limbo);
        if planted(Bug::DiscardBeforeCommit) && volume.live.now().discard == Discard::Always {
            let bits = volume.geometry.block_bits;
            let discard =
                |&(start, length): &(FsBlock, u32)| volume.device.discard(start.0 << bits, u64::from(length) << bits);
            let _ = freed.limbo.iter().try_for_each(discard);
        }
        for &block in freed.forgotten.blocks() {
            self.builder.revoke(block);
        }
        // What an earlier epoch freed and nobody has put into the trees yet is still pending.
        for &(start, length) in freed.limbo.iter().chain(&self.released) {
            self.builder.pending(start, length);
        }

        let has_unflushed = !self.fresh.blocks.is_empty();
        let body_len = self.builder.body_len();
        let (home, sealed) = (Vec::new(), None);
        debug_assert!(self.pending.is_none(), "no epoch closes before the last one is durable");
        self.pending = Some(Pending { number, freed, ordered, home, sealed, body_len, has_unflushed });
        self.finish_log(volume)
    }

    /// Makes the closed epoch durable: steps 3 to 5.
    pub(super) fn finish_log(&mut self, volume: &Volume) -> Result<()> {
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
        let head = self.log.as_ref().expect("order log has a log").head();
        volume.log_end.store(head.0, Ordering::Relaxed);
        self.durable = number + 1;
        self.needed = None;
        // Before they can be allocated, and written as what nobody looks at.
        self.keep(volume, freed.forgotten.blocks().iter().map(|block| block.0));
        self.note_freed(&freed.limbo);
        self.released.append(&mut freed.limbo);
        self.move_tail(volume);
        // Not flushed yet, so only the next checkpoint moves the tail past them.
        match self.write_hot(volume) {
            // They hold the tail, and the next checkpoint begins with them.
            Err(Error::HostFull(_)) => {}
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
        let before = log.head().0.saturating_sub(capacity / 4 - capacity / 16);
        volume.epoch.cost.expect_home(is_full_soon.then_some(Lsn(before)));
    }

    /// Whether the cache is full of blocks that are away.
    fn is_crowded(&self, volume: &Volume) -> bool {
        self.away.len() * 3 > volume.cache.frame_count()
    }

    /// Copies what the closing epoch changed. The gate is closed: nothing moves.
    fn capture(&mut self, volume: &Volume, dirty: &[u32]) {
        let cache = &volume.cache;
        let head = self.log.as_ref().expect("order log has a log").head();
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
            if header.unhomed.logged_from().is_some_and(|lsn| self.homing.includes(lsn)) {
                // It holds the log's tail, and operations touch it too often for it to go home in between.
                self.hot.push(block.0, index, &bytes);
            }
            header.unhomed.add_logged(mask, head);
            self.builder.record(block, mask, &bytes);
            if flags & flag::AWAY == 0 {
                header.flags.fetch_or(flag::AWAY, Ordering::Relaxed);
                self.away.push(index);
            }
        }
    }

    /// Brings blocks home while the log is more than half full, or the cache is full of blocks that are away.
    fn make_log_room(&mut self, volume: &Volume) -> Result<()> {
        let log = self.log.as_ref().expect("order log has a log");
        let (room, capacity, head) = (log.room(), log.capacity(), log.head().0);
        let crowded = self.is_crowded(volume);
        // What one checkpoint may take is half the ring in whole units; there is never room for more.
        let is_short = room < log.checkpoint_max();
        let old = if head > capacity / 4 { Homing::Before(Lsn(head - capacity / 4)) } else { Homing::None };
        self.homing = match (crowded, is_short) {
            (true, _) => Homing::All,
            (false, true) => old,
            (false, false) => Homing::None,
        };
        if self.homing != Homing::None {
            self.write_home(volume, self.homing)?;
        }
        // After that: what is home by now can give way to it.
        if is_short && old != Homing::None && volume.cache.has_overlay() {
            self.fetch_overlay(volume, old)?;
            self.write_home(volume, self.homing)?;
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

    /// Reads the blocks that only the log knows and that are to go home: those for which there are frames. The others stay in the overlay,
    /// which holds the log's tail.
    pub(super) fn fetch_overlay(&mut self, volume: &Volume, homing: Homing) -> Result<()> {
        /// Blocks read at a time.
        const BATCH: usize = 256;
        if !volume.cache.has_overlay() {
            return Ok(());
        }
        let mut blocks: Vec<u64> = {
            let overlay = volume.cache.overlay.read();
            overlay.blocks().filter(|&(_, lsn)| homing.includes(lsn)).map(|(block, _)| block.0).collect()
        };
        blocks.sort_unstable();
        let mut rest = &blocks[..];
        while !rest.is_empty() {
            let batch;
            (batch, rest) = rest.split_at(self.frames_to_fetch(volume)?.min(BATCH).min(rest.len()));
            let mut damaged = Vec::new();
            let look = super::Look::enter(volume);
            let fetched = batch.iter().try_for_each(|&block| match volume.cache.fetch_recovered(FsBlock(block)) {
                Err(error @ Error::Corrupt(_)) => {
                    damaged.push((FsBlock(block), error));
                    Ok(())
                }
                fetched => fetched,
            });
            drop(look);
            self.away.append(&mut volume.cache.take_recovered());
            self.write_damaged_home(volume, damaged)?;
            match fetched {
                // Others were faster.
                Err(Error::Refused(Errno::NOMEM)) => break,
                Ok(()) if batch.is_empty() => break,
                fetched => fetched?,
            }
        }
        volume.cache.overlay_done();
        Ok(())
    }

    /// Writes blocks of units home that cannot be fetched, because a unit of theirs was damaged below the log. That unit stays damaged,
    /// and the volume goes on: they are as damaged as they would be had the log nothing of them. In between nobody writes to
    /// a block that is freed: only a checkpoint makes it one that may hold something else.
    fn write_damaged_home(&mut self, volume: &Volume, damaged: Vec<(FsBlock, Error)>) -> Result<()> {
        if damaged.is_empty() {
            return Ok(());
        }
        let mut written = Vec::new();
        for (block, error) in damaged {
            let Some(image) = volume.cache.image_with_damage(&volume.geometry, block)? else {
                if volume.cache.overlay.read().contains(block) {
                    return Err(error);
                }
                // It was freed meanwhile.
                continue;
            };
            self.keep(volume, std::iter::once(block.0));
            let offset = block.0 << volume.geometry.block_bits;
            volume.write_requests(&[WriteRequest { offset, parts: &[&image] }])?;
            written.push(block);
        }
        volume.device_flush()?;
        // Whoever has read such a block as it was before lays over it what the log has, and needs it for that until he leaves.
        drop(volume.cache.gate.close());
        // From here on the log's tail may pass them.
        let mut overlay = volume.cache.overlay.write();
        for block in written {
            overlay.remove(block);
        }
        Ok(())
    }

    /// How many frames what is fetched may take: those that operations inside the gate do not need, or where there are none, a few of
    /// theirs, which are free again before the next are taken. Where frames are few, or many of them away, what can be written home is, and gives way.
    fn frames_to_fetch(&mut self, volume: &Volume) -> Result<usize> {
        // Not what makes checkpoints when it finds nothing to evict: this is one.
        volume.cache.sweep(Sweep::ForRoom);
        if volume.cache.spare_frames() == 0 || self.is_crowded(volume) {
            self.write_home(volume, Homing::All)?;
            volume.cache.sweep(Sweep::ForRoom);
        }
        match volume.cache.spare_frames() {
            0 => Ok(volume.cache.free_frames() / 8),
            spare => Ok(spare),
        }
    }

    /// Writes the blocks home that are to go there, but for those that the open epoch has changed. What is written holds all that the log has
    /// of its block, so it is sealed with the log's head: whoever has to search a damaged log lays nothing older over it.
    pub(super) fn write_home(&mut self, volume: &Volume, homing: Homing) -> Result<()> {
        let cache = &volume.cache;
        let seal = self.next_lsn();
        let mut keep = Vec::with_capacity(self.away.len());
        let mut home = Vec::new();
        for index in std::mem::take(&mut self.away) {
            let header = cache.arena.header(index);
            // A sweep may have given a dead frame to another block meanwhile; what counts is what it holds now.
            match needed_by(header) {
                None => {
                    header.flags.fetch_and(!flag::AWAY, Ordering::Relaxed);
                }
                Some(lsn) if homing.includes(lsn) => {
                    home.push(Placed { block: header.block.load(Ordering::Relaxed), frame: index })
                }
                Some(_) => keep.push(index),
            }
        }
        home.sort_unstable();
        home.dedup();
        let lsn_of = |Placed { block, frame }, header: &FrameHeader| match home_of(header, block) {
            Home::Write => Some(seal),
            Home::Later => {
                keep.push(frame);
                None
            }
            Home::Gone => None,
        };
        let mut staging = std::mem::take(&mut self.staging);
        let written = write_frames(volume, &mut staging, &home, lsn_of, |frames| {
            self.keep(volume, frames.iter().map(|placed| placed.block))
        });
        self.staging = staging;
        if written.is_err() {
            // Those that did not arrive still hold the log's tail.
            keep.extend(home.iter().map(|placed| placed.frame));
        }
        self.away = keep;
        written
    }

    fn write_fresh(&mut self, volume: &Volume) -> Result<()> {
        let lsn = self.next_lsn();
        write_images(volume, &mut self.fresh, lsn)?;
        for &(Placed { block, frame }, _) in &self.fresh.blocks {
            volume.cache.written(block, frame);
        }
        self.fresh.clear();
        Ok(())
    }

    /// Writes blocks home whose changes had been in the log only.
    fn write_hot(&mut self, volume: &Volume) -> Result<()> {
        let lsn = self.next_lsn();
        let blocks: Vec<u64> = self.hot.blocks.iter().map(|(placed, _)| placed.block).collect();
        self.keep(volume, blocks.into_iter());
        write_images(volume, &mut self.hot, lsn)?;
        volume.counters.add(Count::blocks_homed, self.hot.blocks.len() as u64);
        for &(Placed { block, frame }, _) in &self.hot.blocks {
            volume.cache.came_home(block, frame);
        }
        self.hot.clear();
        Ok(())
    }

    /// Blocks for which the host had no room when the last checkpoint wanted to bring them home. Their copies are what that one made durable, and
    /// no other epoch has been closed since. Where the log is about to be full, the host must take them first: its tail cannot pass them.
    fn write_hot_again(&mut self, volume: &Volume) -> Result<()> {
        match self.write_hot(volume) {
            Err(Error::HostFull(source)) => {
                let log = self.log.as_ref().expect("order log has a log");
                if log.room() < log.capacity() / 3 {
                    return Err(Error::HostFull(source));
                }
                // The next checkpoint that wants room copies them anew.
                self.hot.clear();
                Ok(())
            }
            written => written,
        }
    }

    /// What images are sealed with.
    fn next_lsn(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.head().0)
    }

    /// Tells the log how far its tail may move: to the oldest change that is not home.
    pub(super) fn move_tail(&mut self, volume: &Volume) {
        let cache = &volume.cache;
        let log = self.log.as_mut().expect("order log has a log");
        // Nothing leaves the overlay or is forgotten unseen: what a forgotten block needs is noted under this lock, and
        // a block taken from the overlay is on the list of recovered frames before the overlay's lock is free again.
        let freed = volume.epoch.freed.lock();
        let overlay = cache.overlay.read().oldest();
        self.away.append(&mut cache.take_recovered());
        let away = self.away.iter().filter_map(|&index| needed_by(cache.arena.header(index)));
        let needed = [self.needed, freed.forgotten.needed(), overlay].into_iter().flatten().chain(away).min();
        log.set_tail(needed.map_or(log.head(), |lsn| lsn.min(log.head())));
    }
}
