//! A committed state held for a reader while changes go on: what an online check looks at.
//!
//! Right after a commit the device and the log together are that commit's state, whatever operations do in memory
//! (docs/design/crash-safety.md). From then on the checkpointer keeps before-images ([`BeforeImages`]) of all that the reader
//! may ask for and that is about to be written over:
//!
//!  - the live part of the log, copied at once: the ring moves on with each commit;
//!  - metadata blocks that go home (`write_home`, `write_images`);
//!  - metadata blocks that an epoch freed, when it is durable: from then on they may become anything, and what becomes of them
//!    is written as a fresh block or as file data, which are not looked at here.
//!
//! All other writes go to blocks that were free or file data at the moment. Of file data no image is kept. Where it has
//! checksums it is never written over in its place, so until it is freed it is what it was; that it was freed is recorded, when
//! the epoch that did it is durable, and the reader passes over it. Where it has none, what a read gives says nothing anyway.
//!
//! Under orders `softdep` and `sync` there is no log to copy. The moment begins when a commit finds, behind the closed gate, that nothing waits to be
//! written: the device is then what memory is. From then on each round keeps what it writes over, and what was freed since the last one.
//!
//! So nothing waits but one commit, for the copy of the log; frees are not held back, and a block of metadata costs one more
//! read, the first time that it is written over. Whatever goes wrong ends the moment, never a checkpoint.
//!
//! Locking: all of it under the checkpointer's lock.

use crate::cache::Closed;
use crate::counters::Count;
use crate::error::{Error, Result};
use crate::order::checkpointer::{Checkpointer, Held};
use crate::types::{Order, Time};
use crate::volume::Volume;
use myriad_device::{AlignedBuf, BeforeImages, BlockDevice, Moment, Part, ReadRequest};
use myriad_format::{FsBlock, Lsn};
use myriad_log::Log;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Commits of these orders that may end with something still waiting, before the volume is said to be too busy.
const SOFT_COMMITS: u32 = 8;

/// Bytes read at a time to be kept.
const READ_MAX: u64 = 4 << 20;

/// A committed state of a volume that goes on being changed, held until this is dropped or the volume is closed.
pub struct HeldMoment {
    volume: Arc<Volume>,
    number: u64,
    file: File,
    log: Option<Arc<dyn BlockDevice>>,
    /// Where the log ended; 0 without one.
    pub lsn: Lsn,
    pub time: Time,
    /// Inodes that were on the list of orphans because they have no name: somebody has them open, or is freeing them.
    pub(crate) nameless: BTreeSet<u64>,
    /// How often something had been left behind.
    pub(crate) left_behind: u64,
}

impl HeldMoment {
    /// Makes everything done so far durable, but for files' data that has no blocks yet, and holds that state. Before-images
    /// go to `file`, up to the size it has. One at a time.
    pub(crate) fn begin(volume: Arc<Volume>, file: File) -> Result<Self> {
        let refuse = |option, reason: &str| Err(Error::bad_option(option, reason));
        if volume.options.read_only {
            return refuse("read-only", "nothing changes the volume; look at its device");
        }
        if volume.order == Order::None {
            return refuse(
                "order",
                "without an order of writes the device has no state that could be held; unmount the volume",
            );
        }
        let mut checkpointer = volume.checkpointer.lock();
        // Before the moment: of what is left meanwhile a check may or may not find anything.
        let left_behind = volume.left_behind.load(Ordering::SeqCst);
        if checkpointer.held.is_some() {
            return Err(Error::in_use("somebody else holds a moment of the volume; wait for that check to end"));
        }
        if volume.order.goes_by_rounds() {
            checkpointer.hold_soft(&volume, &file)?;
        } else {
            checkpointer.run(&volume)?;
            checkpointer.hold(&volume, &file)?;
        }
        let number = checkpointer.moments;
        let nameless = checkpointer.held.as_ref().map(|held| held.nameless.clone()).unwrap_or_default();
        let log = checkpointer.log.as_ref();
        let lsn = log.map_or(Lsn(0), Log::head);
        let log = log.filter(|_| volume.log_is_external).map(|log| Arc::clone(&log.place().device));
        drop(checkpointer);
        let time = volume.now();
        Ok(Self { volume, number, file, log, lsn, time, nameless, left_behind })
    }

    /// The volume of which it is a moment.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The devices at the moment.
    pub fn moment(&self) -> io::Result<Moment> {
        let device = Arc::clone(&self.volume.device);
        Moment::new(self.file.try_clone()?, self.volume.cache.block_size(), device, self.log.clone())
    }
}

impl Drop for HeldMoment {
    fn drop(&mut self) {
        self.volume.checkpointer.lock().let_go(self.number);
    }
}

impl Checkpointer {
    /// Begins a moment, right after a commit.
    fn hold(&mut self, volume: &Volume, file: &File) -> Result<()> {
        let failed = |source| Error::host("before-images", source);
        let log = self.log.as_ref().expect("order log has a log");
        let block_size = volume.cache.block_size();
        let mut images = BeforeImages::new(file.try_clone().map_err(failed)?, block_size).map_err(failed)?;
        let part = if volume.log_is_external { Part::Log } else { Part::Volume };
        let device = &log.place().device;
        for (offset, length) in log.live() {
            let mut at = offset;
            while at < offset + length {
                let size = (offset + length - at).min(READ_MAX);
                let mut bytes = AlignedBuf::zeroed(size as usize);
                device.read(at, &mut bytes).map_err(|source| volume.io_error("read", at, source))?;
                let first = at / block_size as u64;
                let blocks: Vec<u64> = (first..first + size / block_size as u64).collect();
                images.keep(part, &blocks, &bytes).map_err(failed)?;
                at += size;
            }
        }
        self.begin_moment(volume, images);
        Ok(())
    }

    fn begin_moment(&mut self, volume: &Volume, images: BeforeImages) {
        self.moments += 1;
        self.held = Some(Held { number: self.moments, images, nameless: volume.orphans.nameless() });
    }

    /// As [`Self::hold`], under orders `softdep` and `sync`.
    fn hold_soft(&mut self, volume: &Volume, file: &File) -> Result<()> {
        let failed = |source| Error::host("before-images", source);
        let file = file.try_clone().map_err(failed)?;
        self.to_hold = Some(BeforeImages::new(file, volume.cache.block_size()).map_err(failed)?);
        let held = (0..SOFT_COMMITS).try_for_each(|_| if self.held.is_some() { Ok(()) } else { self.run(volume) });
        self.to_hold = None;
        held?;
        if self.held.is_none() {
            return Err(Error::in_use("the volume changes faster than it is written; try again when it is less busy"));
        }
        Ok(())
    }

    /// Nothing waits to be written, and the gate is closed: a moment that is wanted begins here.
    pub(super) fn begin_wanted(&mut self, volume: &Volume, _: &Closed<'_>) {
        if let Some(images) = self.to_hold.take() {
            self.begin_moment(volume, images);
        }
    }

    /// Ends a moment, unless it is over.
    fn let_go(&mut self, number: u64) {
        if self.held.as_ref().is_some_and(|held| held.number == number) {
            self.held = None;
        }
    }

    /// Ends the moment that is held, and tells its reader why.
    pub fn give_up_moment(&mut self, why: &str) {
        if let Some(held) = self.held.take() {
            held.images.give_up(why);
        }
    }

    /// Records what a durable epoch freed, before it may become something else.
    pub(super) fn note_freed(&mut self, freed: &[(FsBlock, u32)]) {
        let Some(held) = &mut self.held else { return };
        let runs = freed.iter().map(|&(start, length)| (start.0, u64::from(length)));
        if let Err(error) = held.images.note_freed(runs) {
            self.give_up_moment(&error.to_string());
        }
    }

    /// Keeps what blocks of the volume hold, before they are written over or may become something else.
    pub(super) fn keep(&mut self, volume: &Volume, blocks: impl Iterator<Item = u64>) {
        let Some(held) = &mut self.held else { return };
        let mut blocks: Vec<u64> = blocks.filter(|&block| !held.images.has(Part::Volume, block)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let bits = volume.geometry.block_bits;
        let kept = blocks.chunks((READ_MAX >> bits) as usize).try_for_each(|blocks| {
            let mut bytes = AlignedBuf::zeroed(blocks.len() << bits);
            let mut requests = Vec::new();
            let mut rest = &mut bytes[..];
            for run in blocks.chunk_by(|one, other| one + 1 == *other) {
                let (buf, after) = rest.split_at_mut(run.len() << bits);
                requests.push(ReadRequest { offset: run[0] << bits, buf });
                rest = after;
            }
            volume.device.read_many(&mut requests)?;
            held.images.keep(Part::Volume, blocks, &bytes)
        });
        match kept {
            Ok(()) => volume.counters.add(Count::before_images, blocks.len() as u64),
            Err(error) => self.give_up_moment(&error.to_string()),
        }
    }
}
