//! Order `none`: every changed block goes home, in no order, and a flush follows. Nothing is promised about a crash in between: fsck has to
//! look before the volume is changed again.

use super::checkpoint::{close_epoch, is_away, write_frames};
use super::checkpointer::{Checkpointer, Pending};
use super::epoch::ClosedEpoch;
use crate::cache::{FrameHeader, Placed, flag};
use crate::counters::Count;
use crate::error::Result;
use crate::volume::Volume;
use std::sync::atomic::Ordering;

impl Checkpointer {
    pub(super) fn run_none(&mut self, volume: &Volume) -> Result<()> {
        volume.counters.bump(Count::checkpoints);
        self.release(volume)?;
        volume.release_empty_chunks()?;
        let closed = volume.cache.gate.close();
        let ClosedEpoch { number, dirty, freed, ordered } =
            close_epoch(volume, &closed, self.released.len(), &mut self.orphan_list)?;
        let cache = &volume.cache;
        let mut home = Vec::with_capacity(dirty.len());
        for index in dirty {
            let header = cache.arena.header(index);
            let flags = header.flags.fetch_and(!(flag::LISTED | flag::FRESH), Ordering::Relaxed);
            if flags & flag::DEAD != 0 {
                continue;
            }
            header.mask.store(0, Ordering::Relaxed);
            header.unhomed.set_whole();
            home.push(Placed { block: header.block.load(Ordering::Relaxed), frame: index });
        }
        drop(closed);
        volume.counters.add(Count::checkpoint_data_blocks, ordered.len() as u64);
        home.sort_unstable();
        let pending = Pending { number, freed, ordered, home, sealed: None, body_len: 0, has_unflushed: true };
        debug_assert!(self.pending.is_none(), "no epoch closes before the last one is home");
        self.pending = Some(pending);
        self.finish_none(volume)
    }

    pub(super) fn finish_none(&mut self, volume: &Volume) -> Result<()> {
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
        let lsn_of = |Placed { block, .. }, header: &FrameHeader| {
            // The open epoch may have changed it again: what its block is to hold in the end is in the frame.
            (is_away(header) && header.block.load(Ordering::Relaxed) == block).then_some(0)
        };
        // Only order log has moments to keep anything for.
        write_frames(volume, &mut self.staging, &pending.home, lsn_of, |_| ())?;
        volume.device_flush()
    }
}
