//! Transactions: how an operation looks at metadata and changes it.

use super::log::cost::Cost;
use crate::cache::{Closed, Entered, FRAMES_UNASKED, Frame, FrameHeader, FrameWrite, Leaving, Placed, flag, kind_code};
use crate::counters::Count;
use crate::edit::{Before, BlockEdit, BlockRead, BlockStore, NewBlock, Origin};
use crate::error::{Errno, Result};
#[cfg(debug_assertions)]
use crate::order::facts;
use crate::order::soft::{AsOf, Freed, Soft};
use crate::thread_slot::thread_slot;
use crate::types::Time;
use crate::volume::{FramesWanted, PANICKED, Share, Volume};
use myriad_format::{BlockKind, Corrupt, FsBlock, Geometry, Ino, header};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, IntoBytes};

// A file that another thread-local holds may be closed after these are gone: then there is nothing spare.
thread_local! {
    static SPARE: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
    static SPARE_BEFORE: Cell<Before> = Cell::default();
}

/// Where a transaction or a reader stands: inside the gate, or behind it, closed, with everybody else outside.
enum Standing<'a> {
    Inside(Entered<'a>),
    Closed { _closed: &'a Closed<'a> },
}

/// Frames in which an operation has found blocks, so that the step that changes a block need not find it again. It knows the last
/// two of each group of kinds: the inode of a directory and that of its file, the root of an index and a leaf. What it says
/// is a guess, which the frame's own header confirms; so nobody has to keep it up to date.
#[derive(Default)]
struct Met([Cell<[u32; 2]>; 4]);

impl Met {
    #[inline(always)]
    fn of(&self, code: u32) -> &Cell<[u32; 2]> {
        &self.0[code as usize % self.0.len()]
    }
}

/// Inside the gate, to look only.
pub(crate) struct Look<'a> {
    pub volume: &'a Volume,
    standing: Standing<'a>,
    met: Met,
    /// Flushes of files that had ended before.
    pub flushes: u64,
}

impl<'a> Look<'a> {
    #[inline]
    fn new(volume: &'a Volume, standing: Standing<'a>) -> Self {
        Self { volume, standing, met: Met::default(), flushes: volume.files.flushes() }
    }

    /// The frame of a block: found in the cache, unless this operation has found it there before.
    #[inline(always)]
    fn frame(&self, block: FsBlock, kind: BlockKind, offset: usize) -> Result<Frame<'a>> {
        // Here, where most callers' kind is a constant.
        let code = kind_code(kind);
        let [last, _] = self.met.of(code).get();
        let cache = &self.volume.cache;
        if let Some(frame) = cache.still_in(last, block, code) {
            return Ok(frame);
        }
        match self.other_frame(block, code, offset) {
            Some(index) => Ok(cache.frame(index)),
            None => self.load_frame(block, kind, code),
        }
    }

    /// The frame of a block that is in the cache, but not where this operation has found one last. Apart from the many places that ask,
    /// and without a `Result`, which would go through memory.
    #[inline(never)]
    fn other_frame(&self, block: FsBlock, code: u32, offset: usize) -> Option<u32> {
        let met = self.met.of(code);
        let [last, other] = met.get();
        let cache = &self.volume.cache;
        if cache.still_in(other, block, code).is_some() {
            met.set([other, last]);
            return Some(other);
        }
        let index = cache.find_loaded(block, code, offset)?;
        met.set([index, last]);
        Some(index)
    }

    /// As [`Self::frame`], of a block that has to be loaded.
    #[cold]
    fn load_frame(&self, block: FsBlock, kind: BlockKind, code: u32) -> Result<Frame<'a>> {
        let frame = self.volume.cache.load_kind(block, kind)?;
        let [last, _] = self.met.of(code).get();
        self.met.of(code).set([frame.index, last]);
        Ok(frame)
    }

    pub fn enter(volume: &'a Volume) -> Self {
        Self::new(volume, Standing::Inside(volume.cache.gate.enter(0)))
    }

    /// Leaves the gate and enters again, for a long way that may take more frames, and wait for the device more often, than one operation may inside. Nothing
    /// that was found there holds afterwards, and no lock may be held.
    #[cold]
    pub fn step_out(&mut self) {
        let volume = self.volume;
        let Standing::Inside(entered) = &mut self.standing else {
            unreachable!("nobody walks a long way behind the gate")
        };
        entered.step_out(|| {
            if !volume.cache.has_room() {
                volume.make_room_quietly();
            }
        });
        self.met = Met::default();
        self.flushes = volume.files.flushes();
    }

    #[inline]
    pub fn read<R>(&self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.read_at(block, kind, 0, f)
    }

    /// As [`Self::read`], when `f` begins at `offset`.
    #[inline]
    pub fn read_at<R>(&self, block: FsBlock, kind: BlockKind, offset: usize, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let frame = self.frame(block, kind, offset)?;
        Ok(f(&frame.read()))
    }

    /// Copies what lies at `offset` of a block, of inodes.
    #[inline]
    pub fn copy_met<T: FromBytes + IntoBytes>(
        &self,
        block: FsBlock,
        kind: BlockKind,
        offset: usize,
        value: &mut T,
    ) -> Result<()> {
        self.frame(block, kind, offset)?.copy(offset, value);
        Ok(())
    }

    /// As [`Self::copy_met`], of a block that this operation has not found before, and will not ask for again.
    #[inline]
    pub fn copy_at<T: FromBytes + IntoBytes>(
        &self,
        block: FsBlock,
        kind: BlockKind,
        offset: usize,
        value: &mut T,
    ) -> Result<()> {
        self.volume.cache.get_at(block, kind, offset)?.copy(offset, value);
        Ok(())
    }
}

/// One operation's changes. Metadata bytes change only through its methods.
///
/// There is no undo: an operation refuses before its first change. An error after it shuts the volume down, so that no
/// checkpoint ever makes half an operation durable.
pub(crate) struct Txn<'a> {
    pub look: Look<'a>,
    dirty: Vec<u32>,
    cost: Cost,
    /// Frames that it has asked for.
    frames: usize,
    /// Bytes of log that it has asked for, and that the open epoch counts until its end.
    log_bytes: Option<u64>,
    changed: bool,
    finished: bool,
    /// It asked for more frames than there are: room is made for that many, and not only for a few.
    asked_in_vain: bool,
    /// Order `softdep`: what it gives up, and from where.
    given_up: Option<Box<Freed>>,
    /// Order `softdep`: its changes bring up to date what had changed then, and count as made then.
    as_of: Option<Time>,
    /// The thread was unwinding already when the transaction began.
    unwinding: bool,
}

/// Kept while somebody changes a block's bytes; dropped in place only by a panic. Nobody knows then what of them has changed: the
/// block must not go home.
struct Changing<'t> {
    header: &'t FrameHeader,
    changed: &'t mut bool,
    soft: Option<&'t Soft>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.header.mask.store(u64::MAX, Ordering::Relaxed);
        if self.header.flags.load(Ordering::Relaxed) & flag::LOADED == 0 {
            // A new one, for whose bytes others would wait.
            self.header.flags.fetch_or(flag::DEAD, Ordering::Release);
        }
        *self.changed = true;
        if let Some(soft) = self.soft {
            soft.spoil();
        }
    }
}

/// A frame's bytes, open for change.
#[inline(always)]
fn edit_of<'t>(kind: BlockKind, bytes: &'t mut FrameWrite<'_>, mask: &'t mut u64) -> BlockEdit<'t> {
    match kind {
        // Whoever stats copies them without the latch.
        BlockKind::Inode | BlockKind::InodeTable => BlockEdit::shared(bytes.share(), mask),
        _ => BlockEdit::new(bytes, mask),
    }
}

impl<'a> Txn<'a> {
    pub fn enter(volume: &'a Volume) -> Self {
        Self::new(Look::enter(volume))
    }

    /// Enters, and counts on `blocks` free blocks until the end. Whether they are there, [`Volume::begin`] finds out.
    #[inline(always)]
    pub fn reserving(volume: &'a Volume, blocks: u64) -> Self {
        let entered = volume.cache.gate.enter(blocks as u32);
        Self::new(Look::new(volume, Standing::Inside(entered)))
    }

    /// A transaction of the checkpointer itself, behind the closed gate.
    pub fn behind(volume: &'a Volume, closed: &'a Closed<'a>) -> Self {
        Self::new(Look::new(volume, Standing::Closed { _closed: closed }))
    }

    #[inline(always)]
    fn new(look: Look<'a>) -> Self {
        Self {
            look,
            dirty: Vec::new(),
            cost: Cost::default(),
            frames: 0,
            log_bytes: None,
            changed: false,
            finished: false,
            asked_in_vain: false,
            given_up: None,
            as_of: None,
            unwinding: std::thread::panicking(),
        }
    }

    pub fn volume(&self) -> &'a Volume {
        self.look.volume
    }

    /// What it changes has been waiting since then.
    pub fn count_from(&mut self, since: Time) {
        self.as_of = Some(since);
    }

    fn as_of(&self) -> AsOf<'a> {
        AsOf { clock: &self.volume().options.clock, early: self.as_of }
    }

    /// Ends the transaction with the operation's result: an error after a change is the end of all changes.
    pub fn finish<T>(mut self, result: Result<T>) -> Result<T> {
        self.ends_with(&result);
        result
    }

    /// As [`Self::finish`], for whoever drops it next where it lies: it is large.
    #[inline]
    pub fn ends_with<T>(&mut self, result: &Result<T>) {
        self.finished = true;
        if let Err(error) = result
            && self.changed
        {
            self.volume().shut_down(error);
        }
    }

    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// Whether it may run once more after it has found no frame for a block.
    pub fn can_run_again(&self) -> bool {
        !self.changed && !self.asked_in_vain
    }

    /// Reserves further blocks until the end; false, with nothing reserved, if they are not there.
    pub fn try_reserve(&mut self, blocks: u64, share: Share) -> bool {
        let volume = self.volume();
        match &mut self.look.standing {
            Standing::Inside(entered) => {
                entered.add_weight(blocks as u32);
                let fits = volume.has_spare(share);
                if !fits {
                    entered.sub_weight(blocks as u32);
                }
                fits
            }
            Standing::Closed { .. } => unreachable!("what the checkpointer allocates behind the gate is accounted for"),
        }
    }

    /// To be asked before the first change: whether it may take so many frames, which are kept for it until the end. False, with none
    /// kept, if there are not so many.
    pub fn may_take(&mut self, frames: usize) -> bool {
        frames <= FRAMES_UNASKED || self.ask(frames, Leaving::Reserve)
    }

    /// As [`Self::may_take`]. Without so many frames, or while room is made for somebody else, ENOMEM; `wanted` says how many, and room
    /// is made for them (`Volume::with_frames`).
    pub fn ask_frames(&mut self, frames: usize, wanted: &FramesWanted) -> Result<()> {
        if frames <= FRAMES_UNASKED || wanted.may_have(self.volume()) && self.may_take(frames) {
            return Ok(());
        }
        wanted.note(frames);
        self.asked_in_vain = true;
        Err(Errno::NOMEM.into())
    }

    /// As [`Self::may_take`], for who works to make room: from the reserve, of which half is left.
    pub fn may_take_of_reserve(&mut self, frames: usize) -> bool {
        self.ask(frames, Leaving::HalfOfReserve)
    }

    fn ask(&mut self, frames: usize, leaving: Leaving) -> bool {
        debug_assert!(!self.changed, "who finds no frames must not have changed anything");
        debug_assert!(matches!(self.look.standing, Standing::Inside(_)), "a sweep sees nobody who has asked");
        let fits = self.volume().cache.ask(frames, leaving);
        self.frames += if fits { frames } else { 0 };
        fits
    }

    /// Notes that the granules in `mask` of a frame changed.
    #[inline]
    fn note(&mut self, index: u32, header: &FrameHeader, mask: u64) {
        if mask == 0 {
            return;
        }
        self.changed = true;
        let flags = header.flags.load(Ordering::Relaxed);
        if flags & flag::FRESH == 0 {
            let volume = self.volume();
            self.cost.mark(header, mask, &volume.epoch.cost);
        }
        if flags & flag::LISTED == 0 {
            header.flags.fetch_or(flag::LISTED, Ordering::Relaxed);
            self.list(index);
        }
    }

    /// Adds a frame to those that it was the first to change in this epoch. Most operations find all of theirs listed.
    #[inline(never)]
    fn list(&mut self, index: u32) {
        if self.dirty.capacity() == 0 {
            self.dirty = SPARE.try_with(Cell::take).unwrap_or_default();
        }
        self.dirty.push(index);
    }

    /// To be asked before the first change, by who may change much and can end early: how many of `wanted` bytes of log it may take
    /// ([`Self::is_long`]). The open epoch counts them at once, so that all who are inside the gate together fit one checkpoint. They may be
    /// none. Then it takes what one step does, like any operation.
    pub fn ask_log(&mut self, wanted: u64) -> u64 {
        debug_assert!(!self.changed && self.log_bytes.is_none(), "what others are to know of, it has not done yet");
        debug_assert!(matches!(self.look.standing, Standing::Inside(_)), "no epoch ends meanwhile");
        let volume = self.volume();
        let granted = volume.epoch.cost.charge(wanted, volume.limits.epoch_max.log_bytes);
        self.log_bytes = Some(granted);
        granted
    }

    /// True if one more step could exceed the log bytes granted. The caller ends this transaction and continues in another one.
    pub fn is_long(&self) -> bool {
        let limits = &self.volume().limits;
        self.cost.log_bytes + limits.step_log_bytes > self.log_bytes.unwrap_or(limits.part_log_bytes_max)
    }

    /// Bytes of log that its changes take.
    pub fn log_cost(&self) -> u64 {
        self.cost.log_bytes
    }

    /// Frees blocks: they go to limbo until this epoch is durable.
    pub fn block_free(&mut self, start: FsBlock, length: u32) {
        self.changed = true;
        let volume = self.volume();
        if volume.soft.is_some() {
            self.given_up().extents.push((start, length));
        } else {
            volume.epoch.freed.lock().limbo.push((start, length));
            self.cost.extent_freed();
        }
        volume.totals.free_blocks.fetch_add(i64::from(length), Ordering::Relaxed);
        volume.counters.add(Count::blocks_freed, u64::from(length));
    }

    /// Gives up an inode, whose slot is empty. False: the slot can be another's at once.
    pub fn inode_free(&mut self, ino: Ino) -> bool {
        let volume = self.volume();
        let must_wait = volume.soft.as_ref().is_some_and(|soft| soft.has_inode(&volume.geometry, ino));
        if must_wait {
            self.given_up().inodes.push(ino);
        }
        must_wait
    }

    fn given_up(&mut self) -> &mut Freed {
        self.given_up.get_or_insert_default()
    }

    /// Order `softdep`: keeps what the device has of a block that has changed, whose latch is still held.
    fn keep_lasting(
        &mut self,
        soft: &Soft,
        block: FsBlock,
        kind: BlockKind,
        index: u32,
        (before, bytes): (&Before, &[u8]),
    ) {
        if soft.changed(block, kind, index, before, bytes, self.as_of()) {
            self.volume().cache.arena.header(index).unhomed.set_whole();
        }
        if matches!(kind, BlockKind::InodeTable | BlockKind::Pointers) {
            let from = &mut self.given_up().from;
            if from.last() != Some(&block.0) {
                from.push(block.0);
            }
        }
    }

    /// File data that must be on the device before this epoch's commit.
    pub fn order_data(&mut self, ino: Ino, writes: &[Placed]) {
        if let Some(soft) = &self.volume().soft {
            soft.add_data(ino, writes, self.as_of());
        }
        let epoch = &self.volume().epoch;
        let mut ordered = epoch.ordered.lock();
        ordered.extend_from_slice(writes);
        epoch.ordered_count.store(ordered.len() as u64, Ordering::Relaxed);
    }

    /// The part of [`BlockStore::change`] that is not the same in the orders that keep what a block was.
    #[cold]
    fn change_keeping<R>(
        &mut self,
        soft: &Soft,
        frame: Frame<'a>,
        block: FsBlock,
        kind: BlockKind,
        f: impl FnOnce(&mut BlockEdit<'_>) -> R,
    ) -> R {
        let mut bytes = frame.write();
        let mut before = SPARE_BEFORE.try_with(Cell::take).unwrap_or_default();
        before.begin(bytes.len());
        #[cfg(debug_assertions)]
        let was = facts::has_facts(kind).then(|| bytes.to_vec());
        let mut mask = 0;
        let header = bytes.header();
        let changing = Changing { header, changed: &mut self.changed, soft: Some(soft) };
        let result = f(&mut edit_of(kind, &mut bytes, &mut mask).keeping(Some(&mut before)));
        std::mem::forget(changing);
        #[cfg(debug_assertions)]
        was.iter().for_each(|was| facts::check_explained(kind, block, was, &bytes));
        self.keep_lasting(soft, block, kind, frame.index, (&before, &bytes));
        let _ = SPARE_BEFORE.try_with(|spare| spare.set(before));
        // Noted under the latch: whoever writes the block home afterwards sees the mask.
        self.note(frame.index, header, mask);
        result
    }

    fn init_block<R>(
        &mut self,
        NewBlock { block, origin }: NewBlock,
        kind: BlockKind,
        owner: u64,
        f: impl FnOnce(&mut BlockEdit<'_>) -> R,
    ) -> Result<R> {
        let volume = self.volume();
        if volume.soft.as_ref().is_some_and(|soft| soft.holds_block(block)) {
            // A device that has lost a write, or a damaged volume, says so.
            let (ag, field) = (volume.geometry.ag_of(block), "free block, which is in use,");
            return Err(Corrupt::Group { ag, field, value: block.0 }.into());
        }
        let as_of = self.as_of();
        let frame = volume.cache.create(block, kind)?;
        if origin == Origin::Reused {
            // Not before it has a frame: without one it stays freed.
            volume.epoch.freed.lock().forgotten.take_back(block);
        }
        let mut bytes = frame.write();
        header::init(&mut bytes, kind, volume.cache.volume, owner, block);
        let mut mask = u64::MAX;
        let header = bytes.header();
        let changing = Changing { header, changed: &mut self.changed, soft: volume.soft.as_ref() };
        if origin == Origin::Free {
            self.cost.block_made();
            header.flags.fetch_or(flag::FRESH, Ordering::Relaxed);
        }
        let result = f(&mut BlockEdit::new(&mut bytes, &mut mask));
        std::mem::forget(changing);
        header.flags.fetch_or(flag::LOADED, Ordering::Release);
        if let Some(soft) = &volume.soft {
            soft.begun(block, kind, owner, frame.index, as_of);
            header.unhomed.set_whole();
        }
        self.note(frame.index, header, mask);
        Ok(result)
    }
}

impl BlockRead for Txn<'_> {
    fn geometry(&self) -> Geometry {
        self.volume().geometry
    }

    #[inline]
    fn read<R>(&mut self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.look.read(block, kind, f)
    }
}

impl BlockStore for Txn<'_> {
    #[inline]
    fn epoch(&self) -> Option<u64> {
        Some(self.volume().epoch.current())
    }

    #[inline]
    fn change<R>(&mut self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&mut BlockEdit<'_>) -> R) -> Result<R> {
        let frame = self.look.frame(block, kind, 0)?;
        if let Some(soft) = &self.volume().soft {
            return Ok(self.change_keeping(soft, frame, block, kind, f));
        }
        let mut bytes = frame.write();
        #[cfg(debug_assertions)]
        let was = facts::has_facts(kind).then(|| bytes.to_vec());
        let mut mask = 0;
        let header = bytes.header();
        let changing = Changing { header, changed: &mut self.changed, soft: None };
        let result = f(&mut edit_of(kind, &mut bytes, &mut mask));
        std::mem::forget(changing);
        #[cfg(debug_assertions)]
        was.iter().for_each(|was| facts::check_explained(kind, block, was, &bytes));
        // Noted under the latch: whoever writes the block home afterwards sees the mask.
        self.note(frame.index, header, mask);
        Ok(result)
    }

    fn init<R>(
        &mut self,
        block: NewBlock,
        kind: BlockKind,
        owner: u64,
        f: impl FnOnce(&mut BlockEdit<'_>) -> R,
    ) -> Result<R> {
        self.init_block(block, kind, owner, f)
    }

    fn forget(&mut self, block: FsBlock) {
        self.changed = true;
        self.cost.block_forgotten();
        let volume = self.volume();
        if let Some(soft) = &volume.soft {
            soft.forgotten(block, &volume.cache.arena, &volume.geometry);
        }
        // Under the lock: the checkpointer, which works out how far the log's tail may move, sees the block's unhomed
        // changes either in its frame or among what was forgotten.
        let mut freed = volume.epoch.freed.lock();
        let needed = volume.cache.forget(block);
        freed.forgotten.add(block, needed);
    }
}

impl BlockRead for &Look<'_> {
    fn geometry(&self) -> Geometry {
        self.volume.geometry
    }

    #[inline]
    fn read<R>(&mut self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Look::read(self, block, kind, f)
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        let volume = self.volume();
        if !self.finished {
            if std::thread::panicking() && !self.unwinding {
                // Also without a change of a block: what mirrors blocks, such as a group's space, may be changed by halves.
                volume.shut_down(&PANICKED);
            } else if self.changed {
                // An early return in the middle of a change.
                volume.shut_down(&"an operation ended with an error in the middle of a change");
            }
        }
        if let (Some(soft), Some(freed)) = (&volume.soft, self.given_up.take())
            && (!freed.extents.is_empty() || !freed.inodes.is_empty())
        {
            soft.freed(*freed);
        }
        if !self.dirty.is_empty() {
            volume.epoch.dirty[thread_slot()].lock().append(&mut self.dirty);
            let _ = SPARE.try_with(|spare| spare.set(std::mem::take(&mut self.dirty)));
        }
        volume.epoch.cost.add(&self.cost);
        // After that: in between it counts twice, and never not at all.
        if let Some(charged) = self.log_bytes {
            volume.epoch.cost.end_charge(charged);
        }
        if self.frames > 0 {
            volume.cache.asked_end(self.frames);
        }
    }
}
