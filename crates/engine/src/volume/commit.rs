//! How a thread has a checkpoint made and waits for it, and what a checkpoint writes of the volume's own: totals, and what groups give back.

use super::Volume;
use crate::counters::Count;
use crate::edit::BlockStore;
use crate::error::{Error, Result};
use crate::order::checkpointer::Checkpointer;
use crate::order::{self, Txn};
use crate::planted::{Bug, planted};
use crate::schedule;
use crate::types::Order;
use myriad_format::superblock::Superblock;
use myriad_format::{AgNo, BlockKind, FsBlock, Ino};
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use zerocopy::little_endian::{U32, U64};

impl Volume {
    /// Makes everything that was done before the call durable.
    pub fn commit_now(&self) -> Result<()> {
        self.commit_through(self.epoch.current())
    }

    /// Waits until `epoch` is durable, making the checkpoint if nobody else does.
    pub fn commit_through(&self, epoch: u64) -> Result<()> {
        let epoch = epoch - u64::from(planted(Bug::CommitEpochOff));
        // The epoch may end before the checkpointer is asked about it.
        schedule::pause();
        let run = |checkpointer: &mut Checkpointer| checkpointer.run(self);
        if !order::commit_through(&self.checkpointer, epoch, |checkpointer| checkpointer.durable, run)? {
            // True also of a volume that was closed meanwhile.
            return self.check_not_shut_down();
        }
        if !self.options.background {
            self.give_back(false);
        }
        Ok(())
    }

    /// As [`Self::commit_now`], for whoever can go on with most of it: order `softdep` makes everything durable but what depends on a block that cannot
    /// be read. Why that could not be read, if anything was left out; an error only if the volume was shut down, or the host has no room.
    pub fn commit_what_can_be_read(&self) -> Result<Option<Error>> {
        match self.commit_now() {
            Err(error @ (Error::Io(_) | Error::Corrupt(_))) if self.check_not_shut_down().is_ok() => Ok(Some(error)),
            committed => committed.map(|()| None),
        }
    }

    /// As [`Self::commit_now`], for the room that it makes: the caller looks afterwards whether that is enough, and has an error of its own if it is not. That
    /// some block cannot be read is none.
    pub fn commit_for_room(&self) -> Result<()> {
        self.commit_what_can_be_read().map(drop)
    }

    /// Makes a file durable, and a name by which it is found. Order `softdep` writes no more than that; the others make everything durable.
    pub fn commit_file(&self, file: Ino) -> Result<()> {
        match &self.soft {
            Some(soft) if self.order == Order::Soft => match self.commit_needed_by(soft, file) {
                Err(Error::Io(_) | Error::Corrupt(_)) if self.check_not_shut_down().is_ok() => {
                    // What the device answered a while ago is no answer to this fsync.
                    soft.unreadable.forget();
                    self.commit_needed_by(soft, file)
                }
                done => done,
            },
            _ => self.commit_now(),
        }
    }

    /// The end of an operation that changed metadata: in order `sync` this makes the change durable. Outside the gate, without locks that the
    /// checkpointer's comes after.
    #[inline]
    pub fn before_return(&self) -> Result<()> {
        if self.order == Order::Sync { self.make_returned_durable() } else { Ok(()) }
    }

    #[cold]
    fn make_returned_durable(&self) -> Result<()> {
        let epoch = self.epoch.current() - u64::from(planted(Bug::SyncEpochOff));
        schedule::pause();
        let run = |checkpointer: &mut Checkpointer| checkpointer.run_before_return(self);
        if !order::commit_through(&self.checkpointer, epoch, |checkpointer| checkpointer.returned, run)? {
            return self.check_not_shut_down();
        }
        Ok(())
    }

    /// Whether file data is durable when a write returns.
    #[inline]
    pub fn returns_data(&self) -> bool {
        self.order == Order::Sync && self.live.syncs_data()
    }

    /// Whether anything waits for a commit, or a commit for room on the host.
    pub fn has_uncommitted(&self) -> bool {
        // A checkpoint that begins takes what waits out of its place.
        let checkpointer = self.checkpointer.lock();
        checkpointer.is_cut_short() || !self.epoch.is_empty() || self.soft.as_ref().is_some_and(|soft| !soft.is_clean())
    }

    pub fn wake_background(&self, flush: bool) {
        if self.options.background {
            self.wake.ask(flush);
        }
    }

    /// Has some of what soft updates hold written.
    pub fn wake_to_shed(&self) {
        self.wake.ask_to_shed();
    }

    /// Has the host give memory ahead of its use, until the volume closes (`cache/warm.rs`).
    pub fn keep_warm(&self) {
        let mut done = 0;
        while let Some(frames) = self.cache.warm.next(done) {
            // A host that does not know the request gives memory at the first use, as ever.
            if (done == 0 && self.names.warm_up().is_err()) || self.cache.warm_up(done..frames).is_err() {
                return;
            }
            done = frames;
        }
    }

    /// What a checkpoint changes itself, behind the closed gate: blocks that groups let go, and totals. `orphan_root` is the
    /// first block of the list of orphans.
    pub fn prepare_capture(&self, txn: &mut Txn<'_>, orphan_root: Option<FsBlock>) -> Result<()> {
        for block in std::mem::take(&mut *self.groups.stray_blocks.lock()) {
            txn.block_free(block, 1);
        }
        // Blocks that the groups' trees let go are neither free nor used until they are in limbo.
        let ahead = self.groups.inodes_ahead.lock().iter().map(|&(ag, _)| ag).collect::<Vec<_>>();
        for ag in ahead {
            // It is on the list below.
            drop(self.group(&txn.look, AgNo(ag))?);
        }
        let giving = self.giving_groups();
        self.groups.giving.lock().clear();
        self.counters.add(Count::checkpoint_groups, giving.len() as u64);
        for number in giving {
            let released = match self.groups.mirrors[number as usize].lock().as_mut() {
                Some(space) => {
                    // Chunks become empty until the gate is closed; those are the next checkpoint's.
                    space.is_listed = space.has_empty_chunks();
                    if space.is_listed {
                        self.groups.giving.lock().push(number);
                    }
                    space.catch_up(txn)?;
                    let before = space.free_blocks();
                    let released = space.take_released(txn)?;
                    self.totals
                        .free_blocks
                        .fetch_add(i64::from(space.free_blocks()) - i64::from(before), Ordering::Relaxed);
                    released
                }
                None => continue,
            };
            for block in released {
                txn.block_free(block, 1);
            }
        }
        let free = self.totals.free_blocks.load(Ordering::Relaxed) as u64;
        let parts = self.totals.free_parts.load(Ordering::Relaxed) as u64;
        let inodes = self.totals.inodes_used.load(Ordering::Relaxed) as u64;
        let directories = self.totals.directories.load(Ordering::Relaxed) as u64;
        let orphan_root = orphan_root.map_or(0, |block| block.0);
        let high_water = self.groups.high_water.load(Ordering::Relaxed);
        let features = self.features.load(Ordering::Relaxed);
        let leftovers = self.leftovers.load(Ordering::Relaxed);
        let generation = self.generations.load(Ordering::Relaxed);
        txn.change(FsBlock(0), BlockKind::Superblock, |edit| {
            let mut new = *Superblock::read(edit.bytes());
            new.free_blocks = U64::new(free);
            new.free_parts = U64::new(parts);
            new.inodes_used = U64::new(inodes);
            new.directories = U64::new(directories);
            new.orphan_root = U64::new(orphan_root);
            new.ag_high_water = U32::new(high_water);
            new.features_compatible = U64::new(features);
            new.leftovers = leftovers;
            new.last_order = U32::new(self.order as u32);
            if generation != self.first_generation.load(Ordering::Relaxed) {
                new.next_generation = U32::new(generation);
            }
            if new != *Superblock::read(edit.bytes()) {
                // All of these fields, whichever has changed: a superblock at home may be older than what of the log is left.
                let new = zerocopy::IntoBytes::as_bytes(&new);
                let parts = offset_of!(Superblock, free_parts)..offset_of!(Superblock, exchange_source);
                if self.geometry.fragments() > 1 {
                    edit.put(parts.start, &new[parts]);
                }
                for range in [
                    offset_of!(Superblock, features_compatible)..offset_of!(Superblock, features_read_only),
                    offset_of!(Superblock, ag_high_water)..offset_of!(Superblock, state),
                    offset_of!(Superblock, orphan_root)..offset_of!(Superblock, chunk_blocks),
                    offset_of!(Superblock, next_generation)..offset_of!(Superblock, table_every),
                ] {
                    edit.put(range.start, &new[range.clone()]);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{MkfsOptions, MountOptions};
    use crate::volume::testing;
    use crate::volume::transact;
    use myriad_device::{AlignedBuf, BlockDevice, MemoryDevice};
    use myriad_format::AgBlock;
    use myriad_sim::rng::is_long;
    use std::sync::Arc;

    /// A volume of so many of the smallest groups, all made.
    fn many_groups(groups: u32) -> Volume {
        let options = MkfsOptions { block_size: 512, ag_size: Some(64 << 10), ..MkfsOptions::default() };
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(u64::from(groups) * (64 << 10)));
        let log: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(8 << 20));
        crate::mkfs::format(device.clone(), Some(log.clone()), &options).unwrap();
        let mut block = AlignedBuf::zeroed(512);
        device.read(0, &mut block).unwrap();
        let superblock = Superblock::decode(&block, FsBlock(0)).unwrap();
        let options = MountOptions { background: false, cache_size: 64 << 20, ..MountOptions::default() };
        let log = crate::mkfs::log_place(&superblock, &device, Some(&log)).unwrap();
        let volume = Volume::assemble(device, log, superblock, options).unwrap();
        volume.load_totals(&superblock);
        for ag in (0..groups).map(AgNo) {
            let goal = volume.geometry.fs_block(ag, AgBlock(volume.geometry.first_data_block(ag)));
            transact(&volume, 1, |txn| volume.allocate_extent(txn, goal, 1, 1)).unwrap();
        }
        assert_eq!(volume.high_water(), groups);
        volume.commit_now().unwrap();
        volume
    }

    /// Each checkpoint took the lock of each group that was ever used, with the gate closed.
    #[test]
    fn a_checkpoint_looks_at_the_groups_that_have_something_for_it() {
        let groups = if is_long() { 16_000 } else { 600 };
        let volume = many_groups(groups);
        let looked_at = || {
            let counts = volume.counters.snapshot();
            counts.into_iter().find(|&(name, _)| name == "checkpoint_groups").unwrap().1
        };
        let before = looked_at();
        let start = std::time::Instant::now();
        for i in 0..100 {
            testing::new_file(&volume, format!("file {i}").as_bytes());
            volume.commit_now().unwrap();
        }
        println!("{groups} groups: 100 checkpoints in {:?}, {} looked at", start.elapsed(), looked_at() - before);
        assert!(looked_at() - before < 200);
    }
}
