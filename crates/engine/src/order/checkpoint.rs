//! Checkpoints: the open epoch is closed and made durable, by `log`, `soft` or `none`.
//!
//! One checkpoint is made at a time: the thread that makes it holds the checkpointer's lock throughout. Another thread that wants to sync
//! waits for that lock. When it gets it, the checkpoint that was just made usually covers its changes too, and it returns: this is group
//! commit (`group_commit`).
//!
//! When the host has no room for a write (`Error::HostFull`) before the commit record is written, nothing is lost. The epoch stays closed
//! (`Pending`) and the volume goes on in memory. The next thread that asks for a checkpoint first writes the pending one again, from its
//! beginning. Each of its writes can be repeated: file data lies in frames that stay until they are written, fresh blocks and the
//! checkpoint's body were copied, and blocks on their way home stay on the list of blocks that are away. Any other error of a write, and
//! every error of a flush, shuts the volume down.

use super::Txn;
use super::checkpointer::{Checkpointer, Homing};
use super::epoch::ClosedEpoch;
use super::images::Images;
use super::orphan_list::OrphanList;
use super::soft::{Due, Goal, Soft, Wanted};
use crate::cache::{Closed, FrameHeader, Placed, flag};
use crate::counters::Count;
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use crate::types::Order;
use crate::volume::Volume;
use myriad_device::{AlignedBuf, WriteRequest};
use myriad_format::{FsBlock, header};
use myriad_log::LogPlace;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Whether a frame holds changes of its block that are not home.
pub(super) fn is_away(header: &FrameHeader) -> bool {
    header.flags.load(Ordering::Relaxed) & flag::DEAD == 0 && header.unhomed.is_any()
}

/// Writes frames (sorted by block) home, sealed, in long requests. `lsn_of` is asked under the frame's latch with
/// which LSN it is to be sealed; `None` leaves it out. `before` is told of those that are about to be written.
pub(super) fn write_frames(
    volume: &Volume,
    staging: &mut AlignedBuf,
    frames: &[Placed],
    mut lsn_of: impl FnMut(Placed, &FrameHeader) -> Option<u64>,
    mut before: impl FnMut(&[Placed]),
) -> Result<()> {
    let cache = &volume.cache;
    let block_size = cache.block_size();
    for batch in frames.chunks(volume.stage(staging, frames.len())) {
        let mut written = Vec::with_capacity(batch.len());
        for &placed in batch {
            let bytes = cache.arena.read(placed.frame);
            let Some(lsn) = lsn_of(placed, cache.arena.header(placed.frame)) else { continue };
            let at = written.len() * block_size;
            let image = &mut staging[at..at + block_size];
            image.copy_from_slice(&bytes);
            header::seal_at(image, &cache.volume, FsBlock(placed.block), lsn);
            written.push(placed);
        }
        before(&written);
        volume.write_blocks(&written, &staging[..written.len() * block_size])?;
        for &Placed { block, frame } in &written {
            cache.came_home(block, frame);
        }
        volume.counters.add(Count::blocks_homed, written.len() as u64);
    }
    Ok(())
}

/// Seals images and writes them to their places, in long requests.
pub(super) fn write_images(volume: &Volume, images: &mut Images, lsn: u64) -> Result<()> {
    if images.blocks.is_empty() {
        return Ok(());
    }
    images.blocks.sort_unstable();
    for at in 0..images.blocks.len() {
        let (Placed { block, .. }, image) = images.blocks[at];
        header::seal_at(images.get_mut(image), &volume.cache.volume, FsBlock(block), lsn);
    }
    let parts: Vec<&[u8]> = images.blocks.iter().map(|&(_, image)| images.get(image)).collect();
    let block_of = |i: usize| images.blocks[i].0.block;
    let request = |run: Range<usize>| WriteRequest {
        offset: block_of(run.start) << volume.geometry.block_bits,
        parts: &parts[run],
    };
    let requests: Vec<_> = volume.write_runs(parts.len(), block_of).into_iter().map(request).collect();
    volume.write_requests(&requests)
}

/// Ends the open epoch behind the closed gate, and begins the next one.
/// Freed extents that are `waiting` for the trees, and those of this epoch, count in the next one as long as they wait: each
/// checkpoint names them, and whoever frees faster than they are put into the trees is held up.
pub(super) fn close_epoch<'a>(
    volume: &'a Volume,
    closed: &'a Closed<'a>,
    waiting: usize,
    orphan_list: &mut OrphanList,
) -> Result<ClosedEpoch> {
    // Whoever was inside while the gate was being closed may have ended in the middle of his changes.
    volume.check_not_shut_down()?;
    let mut txn = Txn::behind(volume, closed);
    // Without a checkpoint nothing says when a list and what it lists are as of the same moment: the check finds what soft updates leave.
    let orphans = if volume.soft.is_some() { BTreeSet::new() } else { volume.orphans.numbers() };
    let prepared =
        orphan_list.write(&mut txn, orphans).and_then(|()| volume.prepare_capture(&mut txn, orphan_list.root()));
    txn.finish(prepared)?;
    let epoch = &volume.epoch;
    let waiting = waiting + epoch.freed.lock().limbo.len();
    epoch.cost.reset(waiting);
    epoch.ordered_count.store(0, Ordering::Relaxed);
    Ok(ClosedEpoch {
        number: epoch.advance(closed),
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
    /// Empties a log that will not be written to, so that no later opening replays it over newer blocks: everything that it
    /// holds goes home, and only when it is empty does anything change there. Blocks that it held as freed are in no tree
    /// until the first checkpoint after that.
    pub fn retire_log(&mut self, volume: &Volume, place: &LogPlace) -> Result<()> {
        volume.unbroken(|| self.retire_log_running(volume, place))
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
            self.write_home(volume, Homing::All)
        });
        judged(volume, result)
    }

    pub(super) fn check_running(&self, volume: &Volume) -> Result<()> {
        if self.is_closed { Err(Error::Closed) } else { volume.check_not_shut_down() }
    }

    /// Ends the making of checkpoints, having settled the volume, to which nobody makes changes any more. False if it
    /// would not settle. If the host has no room, nothing has ended, and it can be tried again.
    pub fn close(&mut self, volume: &Volume) -> Result<bool> {
        if let Some(soft) = &volume.soft {
            soft.unreadable.forget();
        }
        let settled = self.settle(volume);
        self.is_closed = !matches!(settled, Err(Error::HostFull(_)));
        settled
    }

    /// The volume could not be marked as closed for lack of room on the host: it goes on.
    pub fn reopen(&mut self) {
        self.is_closed = false;
    }

    /// Makes everything changed so far durable.
    pub fn run(&mut self, volume: &Volume) -> Result<()> {
        self.run_to(volume, Goal::All)
    }

    /// Order `sync`: makes durable what operations that have ended promise.
    pub fn run_before_return(&mut self, volume: &Volume) -> Result<()> {
        self.run_to(volume, Goal::Returned)
    }

    /// Order `softdep`: makes files durable, and names by which they are reached.
    pub fn run_for(&mut self, volume: &Volume, files: &[Wanted]) -> Result<()> {
        self.run_to(volume, Goal::Files(files))
    }

    /// Order `softdep`: makes rounds of what is due, if anything is, or if the host had no room for the last round.
    pub fn run_due(&mut self, volume: &Volume, due: Due, has_due: bool) -> Result<()> {
        if has_due || self.round.is_some() { self.run_to(volume, Goal::Due(due)) } else { Ok(()) }
    }

    fn run_to(&mut self, volume: &Volume, mut goal: Goal<'_>) -> Result<()> {
        self.check_running(volume)?;
        let result = volume.unbroken(|| {
            if self.pending.is_some() {
                self.finish(volume)?;
            }
            match volume.order {
                Order::Log => self.run_log(volume).map(|()| None),
                Order::Soft => self.run_soft(volume, &mut goal),
                // Each operation promises that all lasts which others did before it: what cannot be read ends this. So it is asked for twice.
                Order::Sync => match self.run_soft(volume, &mut goal)? {
                    None => Ok(None),
                    Some(_) => {
                        volume.soft().unreadable.forget();
                        self.run_soft(volume, &mut goal)?.map_or(Ok(None), Err)
                    }
                },
                Order::None => self.run_none(volume).map(|()| None),
            }
        });
        if !goal.is_partial() {
            volume.files.forget_cut(volume.epoch.current());
        }
        judged(volume, result)?.map_or(Ok(()), Err)
    }

    /// Writes the closed epoch.
    pub(super) fn finish(&mut self, volume: &Volume) -> Result<()> {
        match volume.order {
            Order::Log => self.finish_log(volume),
            Order::Sync | Order::Soft => unreachable!("it closes no epoch ahead of its rounds"),
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
            self.fetch_overlay(volume, Homing::All)?;
            self.away.append(&mut volume.cache.take_recovered());
            self.write_home(volume, Homing::All)?;
            settled = self.is_settled()
                && volume.epoch.is_empty()
                && !volume.cache.has_overlay()
                && volume.soft.as_ref().is_none_or(Soft::is_clean);
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

    /// Puts blocks that a durable epoch freed into the free-space trees, as many as are good for one checkpoint, however often it is asked
    /// before that.
    pub(super) fn release(&mut self, volume: &Volume) -> Result<()> {
        self.released.sort_unstable();
        volume.to_host.grow_old();
        let epoch = volume.epoch.current();
        if self.release_cost.0 != epoch {
            self.release_cost = (epoch, 0);
        }
        let most = volume.limits.part_log_bytes_max - self.release_cost.1.min(volume.limits.part_log_bytes_max);
        let (done, cost) = volume.release_blocks(&self.released, most)?;
        self.release_cost.1 += cost;
        self.released.drain(..done);
        Ok(())
    }

    pub(super) fn write_ordered(&mut self, volume: &Volume, ordered: &[Placed]) -> Result<()> {
        if ordered.is_empty() {
            return Ok(());
        }
        volume.write_data(ordered, &mut self.staging)?;
        volume.cache.let_pass();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::{Home, home_of};
    use super::*;
    use crate::cache::Sweep;
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
            assert!(matches!(home_of(header, block), Home::Write));
            cache.kill(FsBlock(block));
            assert!(matches!(home_of(header, block), Home::Gone));
            cache.sweep(Sweep::Everything);
            let pages: Vec<u32> = std::iter::from_fn(|| cache.take_private().filter(|&page| page != index)).collect();
            assert_eq!(header.flags.load(Ordering::Relaxed), flag::DATA | flag::PRIVATE);
            assert!(matches!(home_of(header, block), Home::Gone));
            pages.into_iter().for_each(|page| cache.drop_private(page));
        }
    }
}
