//! Filling frames with metadata: from the device, with what the log still holds laid over it.

use super::ahead::Run;
use super::{Cache, flag};
use crate::counters::Count;
use crate::error::{Error, Result};
use crate::planted::{Bug, planted};
use myriad_device::AlignedBuf;
use myriad_format::{BlockKind, FsBlock, Geometry, header, unit};
use myriad_log::{Applied, Overlay};
use std::sync::atomic::Ordering;

impl Cache {
    /// Fills a frame. `ahead` becomes what was read with the block, if it was not read alone.
    pub(super) fn load(
        &self,
        block: FsBlock,
        kind: BlockKind,
        bytes: &mut [u8],
        index: u32,
        ahead: &mut Option<Run>,
    ) -> Result<()> {
        let offset = block.0 << self.block_bits;
        *ahead = self.read_along(block, kind);
        match ahead {
            Some(run) => {
                let at = ((block.0 - run.start.0) << self.block_bits) as usize;
                bytes.copy_from_slice(&run.bytes[at..][..bytes.len()]);
            }
            None => self.device.read(offset, bytes).map_err(|source| Error::io("read", offset, source))?,
        }
        if self.has_overlay.load(Ordering::Acquire) {
            let mut overlay = self.overlay.write();
            if let Some(applied) = lay_over(&overlay, &self.volume, block, kind, bytes) {
                // Before the overlay lets go: what was not what somebody took it for still is what the log says.
                header::verify(bytes, kind, &self.volume, block)?;
                let header = self.arena.header(index);
                // A reader never brings it home: there the overlay stays, and the frame may be evicted and filled again. And a block that was
                // forgotten before its frame was filled: whoever forgot it looks for it there, to hold the log's tail until that lasts.
                if !self.read_only && header.flags.load(Ordering::Acquire) & flag::DEAD == 0 {
                    overlay.remove(block);
                    header.unhomed.add_logged(applied.mask, applied.lsn);
                    header.flags.fetch_or(flag::AWAY, Ordering::Relaxed);
                    self.recovered.lock().push(index);
                }
                return Ok(());
            }
        }
        if planted(Bug::TornSuperblock) && kind == BlockKind::Superblock {
            header::seal(bytes, 0);
        }
        header::verify(bytes, kind, &self.volume, block)?;
        Ok(())
    }

    /// Hands the metadata blocks of a run to `f`, with their place in it, until it returns false. Who looks at more blocks
    /// than the cache may have room for, inside the gate where nothing is evicted, asks so for them: once frames are few,
    /// blocks that are not here are read past the cache, some at a time. Nobody may change the blocks meanwhile.
    pub fn pass_over(
        &self,
        start: FsBlock,
        count: u64,
        kind: BlockKind,
        f: &mut dyn FnMut(u64, &[u8]) -> Result<bool>,
    ) -> Result<bool> {
        /// Bytes read at a time.
        const RUN_BYTES: usize = 64 << 10;
        let mut run: Option<(u64, AlignedBuf)> = None;
        for at in 0..count {
            let block = start.offset_by(at);
            if self.has_room() || self.find(block).is_some() {
                let frame = self.get(block, kind)?;
                if !f(at, &frame.read())? {
                    return Ok(false);
                }
                continue;
            }
            let blocks = |run: &AlignedBuf| (run.len() >> self.block_bits) as u64;
            if run.as_ref().is_none_or(|(first, run)| !(*first..first + blocks(run)).contains(&at)) {
                let length = (count - at).min((RUN_BYTES >> self.block_bits).max(1) as u64);
                let mut bytes = AlignedBuf::zeroed((length as usize) << self.block_bits);
                let offset = block.0 << self.block_bits;
                self.device.read(offset, &mut bytes).map_err(|source| Error::io("read", offset, source))?;
                run = Some((at, bytes));
            }
            let (first, bytes) = run.as_mut().expect("just read");
            let from = ((at - *first) as usize) << self.block_bits;
            let bytes = &mut bytes[from..from + self.block_size()];
            self.counters.bump(Count::blocks_touched);
            self.counters.bump(Count::cache_misses);
            lay_over(&self.overlay.read(), &self.volume, block, kind, bytes);
            // Somebody may have put it into the cache meanwhile, and taken from the overlay what belongs to it. Nothing
            // leaves the cache while we are inside the gate: what is not there now was not there when it was read.
            if self.find(block).is_some() {
                let frame = self.get(block, kind)?;
                if !f(at, &frame.read())? {
                    return Ok(false);
                }
                continue;
            }
            header::verify(bytes, kind, &self.volume, block)?;
            if !f(at, bytes)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As [`Self::pass_over`], of one block.
    pub fn read_past<R>(&self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let (mut f, mut result) = (Some(f), None);
        self.pass_over(block, 1, kind, &mut |_, bytes| {
            result = f.take().map(|f| f(bytes));
            Ok(true)
        })?;
        Ok(result.expect("one block is handed out once"))
    }

    /// Brings a block that the log has changes for into the cache, whatever its kind. Inside the gate.
    pub fn fetch_recovered(&self, block: FsBlock) -> Result<()> {
        // The log holds a block's first granule whenever the block was made or changed kind; if it does not, the home
        // copy tells.
        let mut bytes = AlignedBuf::zeroed(self.block_size());
        let offset = block.0 << self.block_bits;
        self.device.read(offset, &mut bytes).map_err(|source| Error::io("read", offset, source))?;
        if self.overlay.write().apply(block, &mut bytes).is_none() {
            return Ok(());
        }
        let magic = myriad_format::BlockHeader::read(&bytes).magic.get();
        let kind = BlockKind::from_magic(magic).ok_or(myriad_format::Corrupt::BlockKind {
            block,
            expected: "a metadata block",
            found: magic,
        })?;
        match self.get(block, kind) {
            // Another thread has freed it meanwhile: the log has no changes for it any more, and its home may be anything.
            Err(_) if !self.overlay.read().contains(block) => Ok(()),
            got => got.map(|_| ()),
        }
    }

    /// What is to go home of a block of units that cannot be fetched, because one of them was damaged below the log: what the log has
    /// of the others, and the damaged one as it is. `None`: it is no block of units, or the log has nothing of it any more.
    pub fn image_with_damage(&self, geometry: &Geometry, block: FsBlock) -> Result<Option<AlignedBuf>> {
        let mut bytes = AlignedBuf::zeroed(self.block_size());
        let offset = block.0 << self.block_bits;
        self.device.read(offset, &mut bytes).map_err(|source| Error::io("read", offset, source))?;
        let overlay = self.overlay.read();
        let mut laid = bytes.to_vec();
        overlay.apply(block, &mut laid);
        let Some(kind) = unit::kind_of(geometry, &self.volume, block, &bytes, &laid) else { return Ok(None) };
        Ok(overlay.apply_to_units(block, kind, &self.volume, &mut bytes).map(|_| bytes))
    }

    /// Frames filled from the log since the last call.
    pub fn take_recovered(&self) -> Vec<u32> {
        std::mem::take(&mut self.recovered.lock())
    }

    pub fn has_overlay(&self) -> bool {
        self.has_overlay.load(Ordering::Relaxed)
    }

    pub fn overlay_done(&self) {
        if self.overlay.read().is_empty() {
            self.has_overlay.store(false, Ordering::Release);
        }
    }
}

/// Lays what the log has of a block over its home copy, and seals what now stands, so that the same verification holds as for
/// any block. A home copy with a header may be torn, and its checksum wrong; the log sets right what was torn. A unit is
/// never torn: one that was damaged, and of which the log has not all, stays damaged.
fn lay_over(
    overlay: &Overlay,
    volume: &[u8; 16],
    block: FsBlock,
    kind: BlockKind,
    bytes: &mut [u8],
) -> Option<Applied> {
    if kind.is_of_units() {
        return overlay.apply_to_units(block, kind, volume, bytes);
    }
    let applied = overlay.apply(block, bytes)?;
    header::seal_at(bytes, volume, block, applied.lsn.0);
    Some(applied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::MkfsOptions;
    use crate::volume::testing;
    use myriad_device::{BlockDevice, MemoryDevice};
    use myriad_format::Corrupt;
    use myriad_format::choices::{Choices, Directory, Inodes, Space};
    use myriad_format::superblock::state;
    use myriad_format::unit::UNIT_SIZE;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    /// A device that lost power after each of these files was made and committed. What is new goes home with its commit; what changes in it later
    /// is in the log.
    fn crashed(names: &[&str]) -> MemoryDevice {
        crashed_as(&MkfsOptions::default(), names)
    }

    fn crashed_as(options: &MkfsOptions, names: &[&str]) -> MemoryDevice {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        crate::mkfs::format(device.clone(), None, options).unwrap();
        let volume = testing::open(device.clone());
        volume.write_superblock(state::IN_USE).unwrap();
        for name in names {
            testing::new_file(&volume, name.as_bytes());
            volume.commit_now().unwrap();
        }
        device.clone_image()
    }

    /// Who took a block for one of another kind was refused, as he should be, and what the log had for it was gone: the next
    /// one read, and built upon, what was home.
    #[test]
    fn a_look_that_fails_takes_nothing_from_the_log() {
        let volume = testing::open(Arc::new(crashed(&["a", "b"])));
        let cache = &volume.cache;
        let logged = || -> Vec<FsBlock> { cache.overlay.read().blocks().map(|(block, _)| block).collect() };
        let before = logged();
        assert!(!before.is_empty());
        let look = volume.look();
        for &block in &before {
            assert!(cache.get(block, BlockKind::Attributes).is_err());
        }
        assert_eq!(logged(), before);
        before.into_iter().for_each(|block| cache.fetch_recovered(block).unwrap());
        assert!(logged().is_empty());
        drop(look);
    }

    /// A block of units, of which kind, and as it is at home.
    type AtHome = (FsBlock, BlockKind, Vec<u8>);

    /// A device that lost power with changes of blocks of units that only its log has; and those blocks.
    fn crashed_units() -> (Arc<MemoryDevice>, Vec<AtHome>) {
        let choices = Choices {
            directory: Directory::Linear,
            space: Space::Bitmap,
            inodes: Inodes::Static,
            ..Choices::default()
        };
        let device = Arc::new(crashed_as(&MkfsOptions { choices, ..MkfsOptions::default() }, &["a", "b"]));
        let volume = testing::open(device.clone());
        let logged: Vec<FsBlock> = volume.cache.overlay.read().blocks().map(|(block, _)| block).collect();
        let at_home = |block: FsBlock| {
            let mut home = vec![0; 4096];
            device.read(block.0 << 12, &mut home).unwrap();
            let kind = BlockKind::of(&home).filter(|kind| kind.is_of_units())?;
            Some((block, kind, home))
        };
        let logged = logged.into_iter().filter_map(at_home).collect();
        (device, logged)
    }

    /// The log had a change of one unit of a block, and a bit of another unit had rotted at home. Reading the block sealed all of
    /// it, and the rotten unit went home under a checksum that was right.
    #[test]
    fn a_damaged_unit_below_the_log_stays_damaged() {
        let (device, logged) = crashed_units();
        let mut kinds = BTreeSet::new();
        for (block, kind, mut home) in logged {
            let applied = {
                let volume = testing::open(device.clone());
                let overlay = volume.cache.overlay.read();
                overlay.apply(block, &mut home.clone()).unwrap()
            };
            let Some(unit) = (0..8).find(|unit| applied.mask >> (unit * 8) & 0xff == 0) else { continue };
            kinds.insert(kind.name());
            let damaged = Arc::new(device.clone_image());
            home[unit * UNIT_SIZE + 100] ^= 1;
            damaged.write(block.0 << 12, &home).unwrap();
            let volume = testing::open(damaged.clone());
            let is_wrong = |error: Error| matches!(&error, Error::Corrupt(found) if matches!(**found, Corrupt::UnitCrc { unit: bad, .. } if bad as usize == unit));
            {
                let _look = volume.look();
                assert!(volume.cache.pass_over(block, 1, kind, &mut |_, _| Ok(true)).is_err_and(is_wrong), "{kind:?}");
                assert!(volume.cache.fetch_recovered(block).is_err_and(is_wrong), "{kind:?}");
            }
            assert!(volume.cache.overlay.read().contains(block), "the log keeps what it has of it");
            drop(volume);
            let mut after = vec![0; 4096];
            damaged.read(block.0 << 12, &mut after).unwrap();
            assert!(after == home);
            let volume = testing::open(damaged.clone());
            volume.cache.overlay.read().apply_to_units(block, kind, &volume.cache.volume, &mut home).unwrap();
            assert!(volume.checkpointer.lock().settle(&volume).unwrap(), "the volume goes on: {kind:?}");
            assert!(!volume.cache.has_overlay());
            assert!(volume.cache.fetch_recovered(block).is_ok() && volume.cache.get(block, kind).is_err_and(is_wrong));
            damaged.read(block.0 << 12, &mut after).unwrap();
            assert!(after == home, "what the log had is home, and the damaged unit is as it was");
        }
        assert!(kinds.len() >= 3, "{kinds:?}");
    }

    /// As [`a_damaged_unit_below_the_log_stays_damaged`], where the first unit is gone and does not say what the block is: the checkpoint took that for a
    /// block with a header, and failed.
    #[test]
    fn units_go_home_without_the_first_one() {
        let (device, logged) = crashed_units();
        for (block, kind, mut home) in logged {
            let damaged = Arc::new(device.clone_image());
            home[..UNIT_SIZE].fill(0);
            damaged.write(block.0 << 12, &home).unwrap();
            let volume = testing::open(damaged.clone());
            volume.cache.overlay.read().apply_to_units(block, kind, &volume.cache.volume, &mut home).unwrap();
            assert!(volume.checkpointer.lock().settle(&volume).unwrap(), "the volume goes on: {kind:?}");
            let mut after = vec![0; 4096];
            damaged.read(block.0 << 12, &mut after).unwrap();
            assert!(after == home, "what the log had of the others is home: {kind:?}");
        }
    }

    /// Without frames for it, what the log has stays in the overlay, and the volume is not taken for settled.
    #[test]
    fn without_frames_the_overlay_stays() {
        let volume = testing::open(Arc::new(crashed(&["a", "b"])));
        let cache = &volume.cache;
        // A checkpoint itself looks at some blocks.
        volume.commit_now().unwrap();
        let logged = cache.overlay.read().blocks().count();
        assert!(logged > 0);
        let mut taken = Vec::new();
        while cache.free_frames() > 4 {
            taken.push(cache.take_private_inside().unwrap());
        }
        assert!(!volume.checkpointer.lock().settle(&volume).unwrap());
        assert_eq!(cache.overlay.read().blocks().count(), logged);
        taken.into_iter().for_each(|index| cache.drop_private(index));
        assert!(volume.checkpointer.lock().settle(&volume).unwrap());
        assert!(!cache.has_overlay());
    }

    /// The checkpointer brought blocks into the cache that the log had changes for. Another thread freed one of them after its kind had been
    /// found out; then its home alone was read, which a crash had torn, and the volume was shut down.
    #[test]
    #[cfg(debug_assertions)]
    fn a_block_that_is_freed_while_it_is_fetched_is_no_damage() {
        use crate::schedule;
        let crashed = crashed(&["a", "b", "c"]);
        let logged: Vec<FsBlock> = {
            let volume = testing::open(Arc::new(crashed.clone_image()));
            volume.cache.overlay.read().blocks().map(|(block, _)| block).filter(|block| block.0 > 0).collect()
        };
        assert!(!logged.is_empty());
        for block in &logged {
            let end = (block.0 + 1) << 12;
            let mut byte = [0];
            crashed.read(end - 1, &mut byte).unwrap();
            crashed.write(end - 1, &[!byte[0]]).unwrap();
        }
        for seed in 0..100 {
            let volume = testing::open(Arc::new(crashed.clone_image()));
            let cache = &volume.cache;
            let needed = std::sync::Mutex::new(Vec::new());
            let fetch = || {
                let _look = volume.look();
                for &block in &logged {
                    cache.fetch_recovered(block).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                }
            };
            let free = || {
                let _look = volume.look();
                for &block in &logged {
                    needed.lock().unwrap().push(cache.kill(block));
                }
            };
            schedule::run(schedule::Turns { seed, one_in: 1 }, vec![Box::new(fetch), Box::new(free)]);
            // Whoever frees a block keeps its record until that lasts, or somebody else still does.
            let _look = volume.look();
            for (&block, needed) in logged.iter().zip(needed.into_inner().unwrap()) {
                let is_held = |index| cache.arena.header(index).unhomed.is_any();
                let is_kept =
                    needed.is_some() || cache.overlay.read().contains(block) || cache.find(block).is_some_and(is_held);
                assert!(is_kept, "seed {seed}: nothing keeps what the log has of {block:?}");
            }
        }
    }
}
