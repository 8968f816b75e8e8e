//! Before an operation begins: it waits until cache, log and volume have room for it, and reserves its blocks.
//!
//! An operation that ran out of space in its middle would shut the volume down, so it must know before it begins. To look at the number of free blocks
//! is not enough: two threads that look at the same time both see the same last blocks. So an operation first adds its reservation to the
//! reservations of all, and then looks whether all of them fit, with sequential consistency. Of two operations that do this together, each
//! sees the other's reservation.
//!
//! A reservation lies in the word of the gate that its operation writes in any case (`cache/gate.rs`), so it costs no further write to memory that
//! processors share. The words of all slots are summed only when few blocks are left (`PLENTY`). Then an operation may be refused because
//! another one has reserved more than it will take; so before it is refused, it makes a checkpoint and looks again. Blocks that an operation
//! could use but does not need, it reserves while it runs (`Txn::try_reserve`). If operations on names often asked for more than 128
//! blocks, all of them would write the one word for large reservations, and another way would be needed.

use super::Volume;
use crate::cache::{FRAMES_UNASKED, LIGHT_SUM_MAX, Sweep};
use crate::counters::Count;
use crate::error::{Errno, Error, Result};
use crate::order::{Look, Txn};
use crate::schedule;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Blocks that one operation may allocate for metadata: directory, index, extent tree, attributes.
pub(crate) const OPERATION_BLOCKS: u64 = 24;
/// Nodes that one change in the middle of a file's map may need: two more extents, each of which may split every level
/// of a tree of three and add one.
pub(crate) const MAP_BLOCKS: u64 = 8;
/// Blocks that always remain for operations that give space back: two of them at a time.
const HELD_BACK_MIN: i64 = 2 * MAP_BLOCKS as i64;
const HELD_BACK_MAX: i64 = 256;
/// With more blocks than this to spare, after promises and the large reservations, an operation need not look at what each
/// of the others has reserved: all small reservations fit, for any number of threads, beside what is held back and as much
/// again for a list of orphans.
const PLENTY: i64 = 16_384;
/// On a volume with fragments: with fewer blocks than this to spare, one block is taken from a part wherever there is one, before a whole
/// block is broken for it. More than all threads that look at the same time can break.
const BREAKING_MIN: i64 = 1024;
/// Checkpoints that one thread waits for while it wants space, and those of them one after another that may bring nothing.
const FIND_ROUNDS: usize = 1000;
const VAIN_ROUNDS: usize = 8;
/// How often an operation that found no frame has room made, and runs again.
const ROOM_TRIES: u32 = 8;
/// How often an operation has room made for the frames that it asks for: while it has its turn, many others that each take a few
/// may be quicker.
const FRAMES_TRIES: usize = 16;
const _: () = assert!(PLENTY >= LIGHT_SUM_MAX as i64 + 2 * HELD_BACK_MAX);

/// How deep an operation may reach into the free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Down to the blocks held back.
    Common,
    /// Down to what giving back takes: it writes where it has its space already.
    Reserved,
    /// Down to what checkpoints need for the list of orphans: it gives space back, and may need a little for that.
    Last,
}

/// What an operation says that finds too few frames ([`Txn::ask_frames`]), and whether room has been made for it.
#[derive(Default)]
pub(crate) struct FramesWanted {
    count: Cell<usize>,
    has_turn: Cell<bool>,
}

impl FramesWanted {
    /// Of who cannot run again: it gets them at once or not at all.
    pub fn at_once() -> Self {
        Self { has_turn: Cell::new(true), ..Self::default() }
    }

    /// Whether it may be given many: nobody has room made for himself, unless it is this one.
    pub fn may_have(&self, volume: &Volume) -> bool {
        self.has_turn.get() || !volume.frames_turn.is_locked()
    }

    pub fn note(&self, frames: usize) {
        self.count.set(frames);
    }
}

impl Volume {
    /// Begins an operation that changes metadata and may allocate up to `blocks` blocks, which are reserved until its end:
    /// waits for room in cache, log and volume; ENOSPC if there is none. 0 blocks: it allocates nothing. As [`transact`] does.
    #[cfg(test)]
    pub fn begin(&self, blocks: u64) -> Result<Txn<'_>> {
        self.begin_with(blocks, Share::Common)
    }

    /// As [`Self::begin`], for an operation that gives space back, or has a promise for what it takes: it works on a full
    /// volume.
    pub fn begin_giving(&self, blocks: u64) -> Result<Txn<'_>> {
        self.begin_with(blocks, Share::Last)
    }

    fn begin_with(&self, blocks: u64, share: Share) -> Result<Txn<'_>> {
        self.admit()?;
        let txn = self.enter_reserving(blocks)?;
        if blocks == 0 || self.has_plenty() {
            return Ok(txn);
        }
        drop(txn);
        self.begin_scarce(blocks, share)
    }

    /// Has an operation wait for what it needs before it enters the gate, room in cache and log.
    #[inline]
    fn admit(&self) -> Result<()> {
        self.check_running()?;
        if self.options.read_only {
            return Err(Errno::ROFS.into());
        }
        if !self.cache.has_room() || self.epoch.cost.exceeds(&self.limits.epoch_due) {
            self.throttle()?;
        }
        if let Some(soft) = &self.soft {
            self.make_room_in(soft)?;
        }
        Ok(())
    }

    /// Enters the gate, and asks again: the volume may have been closed while it was.
    #[inline(always)]
    fn enter_reserving(&self, blocks: u64) -> Result<Txn<'_>> {
        let txn = Txn::reserving(self, blocks);
        self.check_running()?;
        Ok(txn)
    }

    /// Each who wants space reserves it first and then looks whether all reservations together fit: two who look at the
    /// same time see each other.
    #[cold]
    fn begin_scarce(&self, blocks: u64, share: Share) -> Result<Txn<'_>> {
        for attempt in 0..3 {
            let txn = self.enter_reserving(blocks)?;
            if self.has_spare(share) {
                return Ok(txn);
            }
            drop(txn);
            match attempt {
                0 => self.find_space(blocks, share)?,
                // Promises are for the worst case: once the data has its blocks, more may fit. Who has a promise himself
                // is a flush.
                1 if share == Share::Common && self.has_promises() => {
                    crate::file::flush_idle(self)?;
                    self.find_space(blocks, share)?;
                }
                _ => break,
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Begins an operation that only looks.
    #[inline]
    pub fn look(&self) -> Look<'_> {
        if !self.cache.has_room() {
            self.make_room_quietly();
        }
        Look::enter(self)
    }

    /// Free blocks that neither a promise nor an operation under way counts on, less those that `share` leaves.
    fn spare_blocks(&self, share: Share) -> i64 {
        // In this order: a reservation becomes a promise or an allocation before it ends, and is at worst seen twice.
        let under_way = self.cache.gate.weight() as i64;
        let promised = self.totals.reserved_blocks.load(Ordering::SeqCst);
        let ready = self.totals.ready_blocks.load(Ordering::SeqCst);
        let left = match share {
            Share::Common => self.held_back() + self.orphan_list_blocks() as i64,
            Share::Reserved => HELD_BACK_MIN + self.orphan_list_blocks() as i64,
            Share::Last => self.orphan_list_blocks() as i64,
        };
        ready - promised - under_way - left
    }

    /// Blocks that one new file can still be given, those of its map not counted; with fragments, all of whole file blocks. What waits in limbo counts: whoever
    /// wants it has it by a checkpoint.
    pub fn available_blocks(&self) -> u64 {
        let parts = self.totals.free_parts.load(Ordering::Relaxed);
        let free = self.totals.free_blocks.load(Ordering::Relaxed) - parts - self.held_by_groups();
        let promised = self.totals.reserved_blocks.load(Ordering::Relaxed);
        let nodes = MAP_BLOCKS + crate::map::nodes_at_first(&self.geometry);
        let left = free - promised - self.held_back() - self.orphan_list_blocks() as i64 - nodes as i64;
        let left = left.max(0) as u64;
        let left = left - left.div_ceil(crate::map::blocks_per_node(&self.geometry));
        left - left % u64::from(self.geometry.fragments())
    }

    /// Whether so few whole blocks are left that one block of metadata must not break one while there are parts of others.
    pub fn is_scarce(&self) -> bool {
        !self.has_plenty() && self.spare_blocks(Share::Last) < BREAKING_MIN
    }

    /// Whether all reservations, the caller's included, can be met.
    pub fn has_spare(&self, share: Share) -> bool {
        self.has_plenty() || self.spare_blocks(share) >= 0
    }

    fn has_plenty(&self) -> bool {
        // In this order, as above.
        let large = self.cache.gate.heavy() as i64;
        let promised = self.totals.reserved_blocks.load(Ordering::SeqCst);
        self.totals.ready_blocks.load(Ordering::SeqCst) - promised - large > PLENTY
    }

    /// Blocks that only operations which give back may dip into: splitting an extent can need a node.
    fn held_back(&self) -> i64 {
        ((self.geometry.block_count / 64) as i64).clamp(HELD_BACK_MIN, HELD_BACK_MAX)
    }

    /// Blocks that making a file may take: its directory's, and a chunk of inodes.
    pub fn blocks_to_create(&self) -> u64 {
        OPERATION_BLOCKS + u64::from(self.geometry.chunk_blocks)
    }

    #[cold]
    fn throttle(&self) -> Result<()> {
        if !self.cache.has_room() {
            self.make_room()?;
        }
        // What others have charged takes room, but is no reason for a checkpoint before it has been changed.
        let is_due = self.epoch.cost.has_changed_more_than(&self.limits.epoch_due);
        if is_due {
            self.wake_background(false);
        }
        if (is_due && !self.options.background) || self.epoch.cost.exceeds(&self.limits.epoch_max) {
            self.counters.bump(Count::log_stalls);
            self.commit_for_room()?;
            self.await_release()?;
        }
        Ok(())
    }

    /// Waits as long as what was freed and has not reached the trees makes an epoch that has hardly begun too long: every checkpoint puts a part
    /// of it there. One checkpoint for each who wants to free more would not do, for that may be more than it puts there. What others change
    /// or charge meanwhile is not waited for: they may go on without end.
    fn await_release(&self) -> Result<()> {
        let mut in_vain = 0;
        while self.epoch.cost.waiting() > self.limits.epoch_max.log_bytes && in_vain < VAIN_ROUNDS {
            let before = self.epoch.cost.waiting();
            self.commit_for_room()?;
            in_vain = if self.epoch.cost.waiting() < before { 0 } else { in_vain + 1 };
        }
        Ok(())
    }

    /// Evicts; when nothing can be evicted, makes a checkpoint and brings blocks home first.
    fn make_room(&self) -> Result<()> {
        if self.find_frames(0)? || self.cache.free_frames() > 64 { Ok(()) } else { Err(Errno::NOMEM.into()) }
    }

    /// Makes room for an operation that may ask for `frames` ([`Txn::may_take`]). Somebody else may take it before.
    pub fn make_room_for(&self, frames: usize) -> Result<()> {
        let fits = frames <= self.cache.ask_max() && self.find_frames(frames)?;
        if fits { Ok(()) } else { Err(Errno::NOMEM.into()) }
    }

    /// Runs an operation that may ask for many frames, before its first change ([`Txn::ask_frames`]). If they are not there it is
    /// refused with ENOMEM; then it waits for its turn, room is made for it, and it runs again. Until its end nobody else gets many.
    pub fn with_frames<T>(&self, mut operation: impl FnMut(&FramesWanted) -> Result<T>) -> Result<T> {
        let wanted = FramesWanted::default();
        let mut turn = None;
        for _ in 0..FRAMES_TRIES {
            match operation(&wanted) {
                Err(Error::Refused(Errno::NOMEM)) if wanted.count.get() > 0 => {
                    turn.get_or_insert_with(|| self.frames_turn.lock());
                    wanted.has_turn.set(true);
                    self.make_room_for(wanted.count.take())?;
                }
                result => return result,
            }
        }
        Err(Errno::NOMEM.into())
    }

    /// Evicts until more than `frames` are to spare. False if so many cannot go.
    fn find_frames(&self, frames: usize) -> Result<bool> {
        for round in 0..8 {
            self.cache.sweep(Sweep::ForFrames(frames));
            if self.cache.spare_frames() > frames {
                return Ok(true);
            }
            if self.options.read_only || self.check_running().is_err() {
                break;
            }
            if round > 0 {
                crate::file::flush_idle_for_room(self)?;
            }
            self.commit_for_room()?;
            let mut checkpointer = self.checkpointer.lock();
            checkpointer.bring_home(self)?;
        }
        Ok(false)
    }

    /// Evicts what it takes for so many blocks that somebody has read, and would like to stay. Outside the gate.
    pub fn make_room_to_keep(&self, blocks: usize) {
        if self.cache.spare_frames() < blocks {
            self.cache.sweep(Sweep::ForFrames(blocks));
        }
    }

    pub fn make_room_quietly(&self) {
        // A failure shows in what needs the room.
        let _ = self.try_make_room();
    }

    /// As [`Self::make_room_quietly`], for who says why there is none.
    pub fn try_make_room(&self) -> Result<()> {
        self.cache.sweep(Sweep::ForRoom);
        if self.cache.has_free_frames() || self.options.read_only { Ok(()) } else { self.make_room() }
    }

    /// Waits for freed blocks to become free for others, until there are `blocks` to spare or no more come. Others may take at once what comes:
    /// as long as some wait, so does the caller, but not without end for one that never ends freeing and taking.
    #[cold]
    fn find_space(&self, blocks: u64, share: Share) -> Result<()> {
        let mut in_vain = 0;
        for _ in 0..FIND_ROUNDS {
            let before = self.totals.ready_blocks.load(Ordering::Relaxed);
            self.commit_for_room()?;
            self.checkpointer.lock().release_now(self)?;
            schedule::pause();
            let has_come = self.totals.ready_blocks.load(Ordering::Relaxed) > before;
            in_vain = if has_come { 0 } else { in_vain + 1 };
            let is_end = !has_come && !self.has_freed_waiting() || in_vain == VAIN_ROUNDS;
            if is_end || self.spare_blocks(share) >= blocks as i64 {
                break;
            }
        }
        Ok(())
    }

    /// Whether blocks that were freed wait for a checkpoint, or for frames, before anybody may take them.
    fn has_freed_waiting(&self) -> bool {
        let in_limbo = !self.epoch.freed.lock().limbo.is_empty();
        // A round takes what waits out of its place while it begins.
        let checkpointer = self.checkpointer.lock();
        in_limbo || checkpointer.released_blocks() > 0 || self.soft.as_ref().is_some_and(|soft| soft.has_freed())
    }

    /// Runs a removal, which needs no block of its own. If it is refused because the list of orphans might not fit with one more, it
    /// gets another try once all free blocks are in their groups.
    pub fn removing<T>(&self, remove: impl Fn() -> Result<T>) -> Result<T> {
        match remove() {
            Err(Error::Refused(Errno::NOSPC)) => {
                self.find_space(0, Share::Last)?;
                remove()
            }
            done => done,
        }
    }

    /// Promises `blocks` to a file's dirty data; ENOSPC if they are not there.
    pub fn reserve(&self, blocks: u64, share: Share) -> Result<()> {
        for attempt in 0..2 {
            self.totals.reserved_blocks.fetch_add(blocks as i64, Ordering::SeqCst);
            if self.has_spare(share) {
                return Ok(());
            }
            self.totals.reserved_blocks.fetch_sub(blocks as i64, Ordering::SeqCst);
            if attempt == 0 {
                self.find_space(blocks, share)?;
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Whether dirty data holds promises. They are for the worst case: once the data has its blocks, more may fit.
    pub fn has_promises(&self) -> bool {
        self.totals.reserved_blocks.load(Ordering::Relaxed) > 0
    }

    pub fn unreserve(&self, blocks: u64) {
        self.totals.reserved_blocks.fetch_sub(blocks as i64, Ordering::Relaxed);
    }
}

/// Runs `f` as one transaction that may take `blocks` blocks. If others inside the gate have taken the last frames before its first change, it runs once
/// more when room has been made.
#[inline]
pub(crate) fn transact<'a, T>(volume: &'a Volume, blocks: u64, f: impl FnMut(&mut Txn<'a>) -> Result<T>) -> Result<T> {
    transact_reaching(volume, blocks, Share::Common, f)
}

/// As [`transact`], for an operation that may reach so deep into the free blocks.
#[inline]
pub(crate) fn transact_reaching<'a, T>(
    volume: &'a Volume,
    blocks: u64,
    share: Share,
    mut f: impl FnMut(&mut Txn<'a>) -> Result<T>,
) -> Result<T> {
    let mut tries = 0;
    loop {
        // As `begin`. But the transaction is made where it stays: it is large, and each hand that it goes through copies it.
        volume.admit()?;
        let mut txn = Txn::reserving(volume, blocks);
        volume.check_running()?;
        if blocks > 0 && !volume.has_plenty() {
            drop(txn);
            txn = volume.begin_scarce(blocks, share)?;
        }
        let result = f(&mut txn);
        txn.ends_with(&result);
        if result.is_ok() || tries == ROOM_TRIES || !lacks_frames(&result, &txn) {
            return result;
        }
        drop(txn);
        volume.make_room_for(FRAMES_UNASKED)?;
        tries += 1;
    }
}

/// Whether an operation ended before its first change because a block found no frame.
#[cold]
fn lacks_frames<T>(result: &Result<T>, txn: &Txn<'_>) -> bool {
    matches!(result, Err(Error::Refused(Errno::NOMEM))) && txn.can_run_again()
}

/// As [`transact`], for an operation that gives space back: it works on a full volume.
pub(crate) fn transact_giving<'a, T>(
    volume: &'a Volume,
    blocks: u64,
    f: impl FnOnce(&mut Txn<'a>) -> Result<T>,
) -> Result<T> {
    let mut txn = volume.begin_giving(blocks)?;
    let result = f(&mut txn);
    txn.finish(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::{BlockStore, NewBlock};
    use crate::volume::testing;
    use myriad_device::MemoryDevice;
    use myriad_format::{BlockKind, FsBlock};
    use std::sync::Arc;

    fn volume() -> Volume {
        testing::volume(Arc::new(MemoryDevice::new(16 << 20)))
    }

    /// Two flushes inside the gate had asked for all that an epoch may take, again and again. Whoever began beside them found it full, and made checkpoint
    /// after checkpoint for freed blocks that did not wait at all.
    #[test]
    #[cfg(debug_assertions)]
    fn what_flushes_ask_for_is_not_waited_for_as_what_was_freed() {
        for seed in 1..=20 {
            let volume = volume();
            let count = |name| volume.counters.snapshot().into_iter().find(|&(known, _)| known == name).unwrap().1;
            let flush = || {
                for _ in 0..40 {
                    let mut txn = volume.begin_giving(0).unwrap();
                    txn.ask_log(volume.limits.part_log_bytes_max);
                    (0..4).for_each(|_| schedule::pause());
                    txn.finish(Ok(())).unwrap();
                }
            };
            let change = |prefix: &str| {
                for i in 0..20 {
                    testing::new_file(&volume, format!("{prefix} {i}").as_bytes());
                }
            };
            let before = (count("checkpoints"), count("log_stalls"));
            let turns = schedule::Turns { seed, one_in: 2 };
            let (one, other) = (|| change("one"), || change("other"));
            schedule::run(turns, vec![Box::new(flush), Box::new(flush), Box::new(one), Box::new(other)]);
            let (checkpoints, stalls) = (count("checkpoints") - before.0, count("log_stalls") - before.1);
            assert!(stalls > 0, "seed {seed}: nobody found the epoch full");
            assert!(checkpoints <= stalls, "seed {seed}: {checkpoints} checkpoints for {stalls} stalls");
        }
    }

    /// Space was looked at when an operation began and taken later: threads that began together on a full volume each saw
    /// the same last blocks, and the one that came last found none in the middle of its change.
    #[test]
    fn who_begins_has_reserved() {
        let volume = volume();
        let spare = volume.spare_blocks(Share::Common) as u64;
        let held_back = volume.held_back() as u64;
        let first = volume.begin(spare - 10).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut second = volume.begin(10).unwrap();
                let refused = !second.try_reserve(1, Share::Common) && !second.try_reserve(held_back + 1, Share::Last);
                refused && second.try_reserve(held_back, Share::Last)
            });
            assert!(other.join().unwrap());
        });
        drop(first);
        assert_eq!(volume.spare_blocks(Share::Common) as u64, spare);
        drop(volume.begin(spare).unwrap());
    }

    /// Others inside the gate had taken the last frames. An operation that needed one, and had changed nothing, answered ENOMEM.
    #[test]
    fn an_operation_that_finds_no_frame_before_its_first_change_runs_again() {
        let volume = volume();
        testing::new_file(&volume, b"file");
        assert!(volume.checkpointer.lock().settle(&volume).unwrap());
        volume.cache.sweep(Sweep::Everything);
        let mut taken = Vec::new();
        let mut runs = 0;
        let root = volume.root;
        let found = transact(&volume, 0, |txn| {
            runs += 1;
            if runs == 1 {
                taken.extend(std::iter::from_fn(|| volume.cache.take_private_inside().ok()));
            }
            let found = crate::inode::read(&txn.look, root);
            taken.drain(..).for_each(|frame| volume.cache.drop_private(frame));
            found
        });
        assert!(found.is_ok() && runs == 2, "{runs} runs: {:?}", found.err());
        // One that asks for frames has its own way.
        let mut runs = 0;
        let wanted = FramesWanted::default();
        let asked = transact(&volume, 0, |txn| {
            runs += 1;
            txn.ask_frames(volume.cache.frame_count(), &wanted)
        });
        assert!(matches!(asked, Err(Error::Refused(Errno::NOMEM))) && runs == 1);
    }

    /// A block was to be made anew and found no frame: it was taken for one that was not freed, and nothing said any more that its older records count no more.
    #[test]
    fn a_block_that_finds_no_frame_stays_freed() {
        let volume = volume();
        let block = FsBlock(volume.geometry.block_count - 1);
        let is_freed = || volume.epoch.freed.lock().forgotten.blocks().contains(&block);
        let mut txn = volume.begin(1).unwrap();
        let made = txn.init(NewBlock::free(block), BlockKind::Attributes, 0, |_| ());
        txn.finish(made).unwrap();
        volume.commit_now().unwrap();
        let mut txn = volume.begin(0).unwrap();
        txn.forget(block);
        txn.finish(Ok(())).unwrap();
        assert!(is_freed());
        let mut txn = volume.begin(1).unwrap();
        let taken: Vec<u32> = std::iter::from_fn(|| volume.cache.take_private_inside().ok()).collect();
        let made = txn.init(NewBlock::reused(block), BlockKind::Attributes, 0, |_| ());
        taken.into_iter().for_each(|frame| volume.cache.drop_private(frame));
        assert!(matches!(txn.finish(made), Err(Error::Refused(Errno::NOMEM))) && volume.check_running().is_ok());
        assert!(is_freed());
        let mut txn = volume.begin(1).unwrap();
        let made = txn.init(NewBlock::reused(block), BlockKind::Attributes, 0, |_| ());
        txn.finish(made).unwrap();
        assert!(!is_freed());
    }

    /// Two who each saw the same free frames both went in, and the one that came last found none in the middle of its change.
    #[test]
    fn frames_that_are_asked_for_are_nobody_elses() {
        let volume = volume();
        let spare = volume.cache.spare_frames();
        let mut first = volume.begin(0).unwrap();
        assert!(!first.may_take(spare + 1) && first.may_take(spare - 70));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut second = volume.begin(0).unwrap();
                !second.may_take(71) && second.may_take(70) && !second.may_take(65) && second.may_take_of_reserve(100)
            });
            assert!(other.join().unwrap());
        });
        drop(first);
        assert_eq!(volume.cache.spare_frames(), spare);
        let wanted = FramesWanted::default();
        assert!(volume.begin(0).unwrap().ask_frames(spare + 1, &wanted).is_err());
        assert_eq!(wanted.count.get(), spare + 1);
    }

    /// Of two that each wanted most of the cache, one took the room that was made for the other, time after time.
    #[test]
    fn room_for_many_frames_is_made_for_one_at_a_time() {
        let volume = volume();
        let many = FRAMES_UNASKED + 1;
        let turn = volume.frames_turn.lock();
        let ask = |frames, wanted: &FramesWanted| volume.begin(0).unwrap().ask_frames(frames, wanted);
        let wanted = FramesWanted::default();
        assert!(ask(many, &wanted).is_err() && ask(many - 1, &wanted).is_ok());
        assert_eq!(wanted.count.get(), many);
        wanted.has_turn.set(true);
        assert!(ask(many, &wanted).is_ok());
        drop(turn);
        assert!(ask(many, &FramesWanted::default()).is_ok());
    }

    /// While there was plenty nobody asked how much it was that others had reserved: two who wanted most of it both got in.
    #[test]
    fn large_reservations_are_judged_though_there_is_plenty() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(128 << 20)));
        let spare = volume.spare_blocks(Share::Common);
        volume.reserve((spare - PLENTY - 500) as u64, Share::Common).unwrap();
        assert!(volume.has_plenty());
        let large = PLENTY as u64 - 500;
        let first = volume.begin(large).unwrap();
        assert!(!volume.has_plenty());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let second = volume.enter_reserving(large).unwrap();
                assert!(!volume.has_spare(Share::Common));
                drop(second);
                let mut small = volume.begin(24).unwrap();
                !small.try_reserve(large, Share::Common) && small.try_reserve(500, Share::Common)
            });
            assert!(other.join().unwrap());
        });
        drop(first);
        assert!(volume.has_plenty());
    }

    /// Who had looked before the volume was closed, and then waited at the gate, went in.
    #[test]
    fn who_waited_at_the_gate_while_the_volume_was_closed_is_refused() {
        let volume = volume();
        let closed = volume.cache.gate.close();
        std::thread::scope(|scope| {
            // As if it had just been told that the volume is open.
            let waiting = scope.spawn(|| volume.enter_reserving(8).map(drop));
            volume.refuse_changes(&closed);
            drop(closed);
            assert!(matches!(waiting.join().unwrap(), Err(Error::Closed)));
        });
        assert_eq!(volume.cache.gate.weight(), 0);
        volume.check_not_shut_down().unwrap();
    }

    #[test]
    fn promises_and_operations_share_what_there_is() {
        let volume = volume();
        let spare = volume.spare_blocks(Share::Common) as u64;
        volume.reserve(spare - 24, Share::Common).unwrap();
        let mut operation = volume.begin(24).unwrap();
        assert!(!operation.try_reserve(1, Share::Common));
        drop(operation);
        assert!(matches!(volume.begin(25).err(), Some(Error::Refused(Errno::NOSPC))));
        volume.unreserve(1);
        volume.begin(25).unwrap();
    }
}
