//! Rounds: images of what has changed are made behind the closed gate, written, flushed, and are then what lasts.
//!
//! A commit makes rounds until all that was changed before it lasts. Others go on changing things between rounds; after some, the gate
//! stays closed, so that a commit ends.
//!
//! An operation of order `sync` drives the same rounds before it returns, outside the gate and without locks. It ends once all but hints
//! lasts ([`Goal::Returned`]): counts, and bits of what was given back, stay for the next commit. Operations that end meanwhile wait for
//! the checkpointer, and then usually find that the rounds of another one have had their changes.
//!
//! An fsync of order `softdep` makes rounds of the blocks that its file needs ([`Goal::Files`]); what else has changed is left out, which a round may do with
//! any block. Threads that sync files at the same time share them.
//!
//! Where changes are held back (`delays`), a visit makes rounds of the blocks that are due ([`Goal::Due`]).
//!
//! A block of which something is still undone is put off if all that is new of it are values, such as times and sizes: the round that shows the
//! rest writes them as well. If nothing else is to be written, it is written all the same, for something may wait for them.
//!
//! Judging a change may need a block that nobody has changed. For example, a new name of a file shows only if the directories above it last, and the inode of one
//! of them may lie in a bad sector. The unit with the name then stays as it lasts, which a round may do with any unit. All else is written, and a commit ends with
//! the error once nothing more can be; the volume goes on. An fsync succeeds if its file does not need that block. In order `sync` every operation needs all
//! that was done before it: there the volume is shut down.

use super::census::{Kind, Tally};
use super::delays::Along;
use super::image::Image;
use super::judge::{Judge, WaitingData, inodes_of};
use super::needs::{Needs, Wanted};
use super::shadow::{MODE, Shadow};
use super::words::Words;
use super::{Due, Freed, Round, Soft, State, exchange};
use crate::cache::{Closed, Placed, Sweep};
use crate::counters::Count;
use crate::dir;
use crate::error::{Error, Result};
use crate::inode;
use crate::order::checkpoint::{close_epoch, write_images};
use crate::order::checkpointer::Checkpointer;
use crate::order::epoch::{ClosedEpoch, join_neighbours};
use crate::order::facts;
use crate::order::images::Images;
use crate::order::{Look, Txn};
use crate::planted::{Bug, planted};
use crate::volume::{Volume, log_open_error};
use myriad_format::exchange::ExchangedName;
use myriad_format::superblock::Superblock;
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{BlockKind, FsBlock, Ino};
use myriad_log::LogError;
use std::sync::atomic::Ordering;

/// What rounds are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::order) enum Goal<'a> {
    /// Everything lasts.
    All,
    /// These files last, and are reached from the root by what lasts (`needs`).
    Files(&'a [Wanted]),
    /// What has waited long enough is written, as far as it may show.
    Due(Due),
    /// All lasts that operations of order `sync` promise when they return: everything but hints.
    Returned,
}

impl Goal<'_> {
    /// Whether its rounds leave out blocks in which something has changed.
    pub(in crate::order) fn is_partial(self) -> bool {
        matches!(self, Goal::Files(_) | Goal::Due(_))
    }
}

/// Bytes of images that are copied at a time: some long writes.
const COPIED_MAX: usize = 4 << 20;
/// Rounds of a commit that let others change things in between.
const OPEN_ROUNDS: usize = 8;

/// A round that has begun, and what is known of it behind the closed gate.
struct Begun {
    round: Round,
    /// The epoch that it closed.
    epoch: u64,
    /// All lasts already that it is made for.
    is_clean: bool,
    /// What could not be read, and was needed to judge what the round leaves out.
    unreadable: Option<Error>,
}

impl Begun {
    /// Whether it has nothing to write.
    fn is_empty(&self) -> bool {
        self.round.blocks.is_empty() && self.round.data.is_empty()
    }
}

impl Checkpointer {
    /// Makes rounds until its goal is reached. An fsync may have to make everything durable: then `goal` says so afterwards. If something cannot be read
    /// that says whether a change may show, the change stays undone, and the result is that error, once all else lasts.
    pub(in crate::order) fn run_soft(&mut self, volume: &Volume, goal: &mut Goal<'_>) -> Result<Option<Error>> {
        volume.counters.bump(Count::checkpoints);
        if self.round.is_some() {
            self.finish_round(volume, false)?;
        }
        self.release(volume)?;
        let mut held = None;
        let mut rounds = 0;
        let mut was_empty = false;
        // Names that are gone may be missing though no other name of what they named lasts.
        let mut is_forced = false;
        loop {
            let is_open = held.is_none();
            let has_given = is_open && self.give_back(volume)?;
            let closed = held.take().unwrap_or_else(|| volume.cache.gate.close());
            let mut begun = self.begin(volume, &closed, is_forced, *goal)?;
            let is_empty = begun.is_empty();
            if is_empty && begun.is_clean && is_reached(volume, &closed, is_open, *goal) {
                return self.end_rounds(volume, closed, begun, *goal, rounds, is_open).map(|()| None);
            }
            if let (true, Goal::Files(files)) = (is_empty, *goal) {
                // They wait for more than was looked for.
                volume.data_unflushed.fetch_or(begun.round.has_unflushed, Ordering::AcqRel);
                volume.counters.add(Count::soft_fsyncs_of_all, files.len() as u64);
                (*goal, rounds) = (Goal::All, 0);
                continue;
            }
            // What is undone waits for something that a round writes, unless two rounds in turn find nothing to write.
            let is_stuck = is_empty && !begun.is_clean && (is_forced || was_empty && !has_given);
            if let (true, Some(error)) = (is_stuck, begun.unreadable.take()) {
                volume.data_unflushed.fetch_or(begun.round.has_unflushed, Ordering::AcqRel);
                return Ok(Some(error));
            }
            if is_stuck && is_forced {
                // Nothing that this program does brings it here; what a damaged volume says of itself may.
                let source = std::io::Error::other("changes wait for each other; run fsck");
                return Err(Error::host("order of writes", source));
            }
            // Only threads that meet between `holds_another` and their change can make two entries wait for each other: then names may go before others last,
            // as in FFS.
            is_forced = is_stuck;
            volume.counters.add(Count::soft_forced, u64::from(is_forced));
            was_empty = is_empty;
            rounds += 1;
            // What others change in between waits for nobody, and is not to be forced.
            let stays_closed = rounds >= OPEN_ROUNDS || begun.round.exchange.is_some() || is_forced;
            self.round = Some(begun.round);
            held = stays_closed.then_some(closed);
            self.finish_round(volume, stays_closed)?;
            if planted(Bug::SyncOneRound) && *goal == Goal::Returned {
                return Ok(None);
            }
        }
    }

    /// Closes the open epoch, and makes the images of a round.
    fn begin(&mut self, volume: &Volume, closed: &Closed<'_>, is_forced: bool, goal: Goal<'_>) -> Result<Begun> {
        let epoch = close_epoch(volume, closed, self.released.len(), &mut self.orphan_list)?;
        // From here on they may become anything.
        self.keep(volume, epoch.freed.forgotten.blocks().iter().map(|block| block.0));
        begin_round(volume, closed, epoch, is_forced, goal)
    }

    /// The goal is reached: opens the gate, flushes what the goal promises, and notes which epochs are durable.
    fn end_rounds(
        &mut self,
        volume: &Volume,
        closed: Closed<'_>,
        begun: Begun,
        goal: Goal<'_>,
        rounds: usize,
        is_open: bool,
    ) -> Result<()> {
        let soft = volume.soft();
        // What is still to be released is nobody's by the device, and somebody's soon.
        if goal == Goal::All && soft.is_clean() && self.released.is_empty() {
            self.begin_wanted(volume, &closed);
        }
        if !goal.is_partial() {
            soft.all_names_last();
        }
        drop(closed);
        let has_unflushed = begun.round.has_unflushed;
        match goal {
            Goal::Returned | Goal::Due(_) if has_unflushed => volume.data_unflushed.store(true, Ordering::Release),
            Goal::All | Goal::Files(_) if has_unflushed || rounds == 0 => volume.device_flush()?,
            _ => {}
        }
        let durable = begun.epoch + 1;
        match goal {
            Goal::All => (self.durable, self.returned) = (durable, durable),
            Goal::Returned => self.returned = durable,
            Goal::Files(_) | Goal::Due(_) => {}
        }
        if goal == Goal::All && !is_open {
            // Whoever commits for want of space finds what was freed.
            self.give_back(volume)?;
        }
        Ok(())
    }

    /// Writes a round, and notes that it lasts.
    fn finish_round(&mut self, volume: &Volume, is_closed: bool) -> Result<()> {
        let mut round = self.round.take().expect("a round has begun");
        let written = self.write_round(volume, &mut round);
        if !is_closed {
            volume.cache.let_pass();
        }
        if written.is_err() {
            self.round = Some(round);
            return written;
        }
        let soft = volume.soft();
        soft.census.lock().written(&round.tally, round.is_partial);
        let mut state = soft.state.lock();
        if round.ends_exchange {
            state.exchange = None;
        }
        round.written.sort_unstable();
        for &block in &round.blocks {
            let is_written = round.written.binary_search(&block).is_ok();
            state.arrived(block, is_written, &volume.geometry);
        }
        soft.weigh(&state);
        Ok(())
    }

    fn write_round(&mut self, volume: &Volume, round: &mut Round) -> Result<()> {
        if round.exchange.is_some() && round.kept.blocks.is_empty() {
            // The first time: the gate is closed since the round began.
            round.keep_exchange(volume)?;
        }
        if round.has_unflushed {
            volume.device_flush()?;
            round.has_unflushed = false;
        }
        if !round.data.is_empty() {
            volume.write_data(&round.data, &mut self.staging)?;
        }
        self.keep(volume, round.blocks.iter().copied());
        if round.exchange.is_some() {
            self.keep(volume, [0].into_iter());
            note_exchange(volume, round.exchange)?;
            write_images(volume, &mut round.kept, 0)?;
        }
        // After an error the part that it befell is written again.
        while round.copy_images(volume)? {
            write_images(volume, &mut round.images, 0)?;
            round.written.extend(round.images.blocks.iter().map(|(placed, _)| placed.block));
            round.images.clear();
        }
        if !planted(Bug::SoftNoFlush) && !planted(Bug::SyncNoFlush) {
            volume.device_flush()?;
        }
        if round.exchange.is_some() {
            note_exchange(volume, None)?;
            round.written.extend(round.kept.blocks.iter().map(|(placed, _)| placed.block));
        }
        volume.data_unflushed.store(false, Ordering::Release);
        volume.counters.bump(Count::soft_rounds);
        volume.counters.add(Count::soft_images, round.written.len() as u64);
        Ok(())
    }

    /// Gives back what was freed and nothing that lasts points to; whether there was anything. Outside the gate.
    fn give_back(&mut self, volume: &Volume) -> Result<bool> {
        let soft = volume.soft();
        let ready = {
            let mut state = soft.state.lock();
            let all = std::mem::take(&mut state.freed);
            let (ready, waiting): (Vec<Freed>, Vec<Freed>) =
                all.into_iter().partition(|freed| is_free(volume, &state, freed));
            state.freed = waiting;
            for freed in &ready {
                state.freed_bytes -= freed.bytes();
                state.forget_ghosts(&freed.extents, &volume.geometry);
            }
            soft.weigh(&state);
            ready
        };
        let has_any = !ready.is_empty();
        {
            let mut census = soft.census.lock();
            for freed in &ready {
                census.given_back(Kind::FreeBlks, u64::from(!freed.extents.is_empty()));
                census.given_back(Kind::FreeFile, freed.inodes.len() as u64);
            }
        }
        let (mut extents, mut inodes) = (Vec::new(), Vec::new());
        for mut freed in ready {
            extents.append(&mut freed.extents);
            inodes.append(&mut freed.inodes);
        }
        join_neighbours(&mut extents);
        self.note_freed(&extents);
        while !extents.is_empty() {
            let (done, _) = volume.release_blocks(&extents, volume.limits.part_log_bytes_max)?;
            extents.drain(..done);
            if done == 0 {
                // For want of frames, which the round makes.
                self.released.append(&mut extents);
            }
        }
        let mut rest = &inodes[..];
        while !rest.is_empty() {
            if !volume.cache.has_room() {
                volume.cache.sweep(Sweep::ForRoom);
            }
            let mut txn = Txn::enter(volume);
            // Each may be in a group of its own, with a header and a bitmap. So few need not ask.
            let mut batch = &rest[..rest.len().min(64)];
            while !txn.may_take(2 * batch.len()) {
                batch = &batch[..batch.len() / 2];
            }
            let result = batch.iter().try_for_each(|&ino| volume.release_inode(&mut txn, ino));
            txn.finish(result)?;
            soft.inodes_waiting.fetch_sub(batch.len() as u64, Ordering::Relaxed);
            rest = &rest[batch.len()..];
        }
        Ok(has_any)
    }
}

impl Round {
    /// Makes the next images that are to be written, if there are none: of the blocks as they are, what the image of each has kept laid over it. Of a
    /// block that was freed meanwhile there is none. False if there are no more.
    fn copy_images(&mut self, volume: &Volume) -> Result<bool> {
        while self.images.blocks.len() << volume.geometry.block_bits < COPIED_MAX {
            let Some(&block) = self.blocks.get(self.copied) else { break };
            self.copied += 1;
            if self.kept.blocks.iter().all(|(kept, _)| kept.block != block) {
                push_image(volume, &mut self.images, block)?;
            }
        }
        Ok(!self.images.blocks.is_empty())
    }

    /// Makes the images of the blocks that the exchange changes.
    fn keep_exchange(&mut self, volume: &Volume) -> Result<()> {
        let blocks = exchange::blocks_of(self.exchange.as_ref(), &volume.geometry);
        blocks.into_iter().try_for_each(|block| push_image(volume, &mut self.kept, block))
    }
}

/// Makes the image of a block, if it has one in this round and was not freed since.
fn push_image(volume: &Volume, images: &mut Images, block: u64) -> Result<()> {
    let soft = volume.soft();
    let Some(frame) = soft.state.lock().shadows.get(&block).map(|shadow| shadow.frame) else { return Ok(()) };
    let bytes = volume.cache.arena.read(frame);
    if soft.is_spoiled.load(Ordering::Relaxed) {
        return Err(Error::Shutdown);
    }
    let state = soft.state.lock();
    if let Some(sent) = state.shadows.get(&block).and_then(|shadow| shadow.sent.as_ref()) {
        let image = images.push(block, frame, &bytes);
        sent.lay_over(0, image);
    }
    Ok(())
}

/// Makes the images of a round. The gate is closed.
fn begin_round(
    volume: &Volume,
    closed: &Closed<'_>,
    epoch: ClosedEpoch,
    is_forced: bool,
    goal: Goal<'_>,
) -> Result<Begun> {
    settle_frames(volume, &epoch.dirty);
    let soft = volume.soft();
    let mut state = std::mem::take(&mut *soft.state.lock());
    let gone: Vec<_> = state
        .freed
        .iter()
        .filter(|freed| is_free(volume, &state, freed))
        .flat_map(|freed| freed.extents.clone())
        .collect();
    state.forget_ghosts(&gone, &volume.geometry);
    state.settle_filled(&volume.geometry);
    look_at_stale(volume, soft, &mut state);

    let data = waiting_data(soft, &epoch.ordered, goal);
    let txn = Txn::behind(volume, closed);
    let mut judged = Judged { is_exchange_left: true, ..Judged::default() };
    let result = judge_round(&txn.look, &state, &data, is_forced, goal).map(|all| judged = all);
    let result: Result<()> = txn.finish(result);
    let ordered = match goal {
        Goal::Files(_) | Goal::Due(_) => take_needed(volume, soft, epoch.ordered, goal, judged.needs.as_ref()),
        _ => epoch.ordered,
    };
    if judged.images.is_empty() && ordered.is_empty() {
        judged.images = std::mem::take(&mut judged.put_off);
    }
    {
        // What is ordered for these blocks from now on is other data, for a later round.
        let mut waiting = soft.data.lock();
        for Placed { block, .. } in &ordered {
            waiting.remove(block);
        }
    }
    let mut round = Round {
        blocks: Vec::new(),
        copied: 0,
        images: Images::new(volume.cache.block_size()),
        written: Vec::new(),
        tally: judged.tally,
        is_partial: goal.is_partial(),
        data: ordered,
        has_unflushed: volume.data_unflushed.swap(false, Ordering::AcqRel),
        exchange: judged.exchange,
        ends_exchange: judged.ends_exchange,
        kept: Images::new(volume.cache.block_size()),
    };
    if !judged.is_exchange_left {
        state.exchange = None;
    }
    state.has_due_note = match goal {
        Goal::Due(_) => state.has_due_note || judged.has_unnoted,
        Goal::Files(_) => state.has_due_note,
        Goal::All | Goal::Returned => false,
    };
    let (needs, unreadable) = (judged.needs.take(), judged.unreadable.take());
    if result.is_ok() {
        round.blocks = mark_sent(&mut state, judged);
    }
    let is_clean = match goal {
        Goal::Files(_) => needs.is_some_and(|needs| needs.is_there) && round.data.is_empty(),
        // Nothing is promised: what has nothing to show waits for others to become due.
        Goal::Due(_) => true,
        Goal::All => state.shadows.is_empty(),
        Goal::Returned => {
            state.shadows.values().all(|shadow| waits_for_commit(volume, shadow, goal) || !shadow.has_changed())
        }
    };
    soft.weigh(&state);
    *soft.state.lock() = state;
    if result.is_ok() && !round.is_partial {
        soft.census.lock().found(&round.tally.found);
    }
    result.map(|()| Begun { round, epoch: epoch.number, is_clean, unreadable })
}

/// Whether rounds whose files and blocks last have reached their goal, too. The gate is closed.
fn is_reached(volume: &Volume, closed: &Closed<'_>, is_open: bool, goal: Goal<'_>) -> bool {
    match goal {
        // What was freed is given back as well, unless others keep this from its end.
        Goal::All => !is_open || volume.soft().is_clean(),
        // Before they were begun somebody looked; others may have taken the name away since, after giving the file another one.
        Goal::Files(files) => have_their_names(volume, closed, files),
        Goal::Due(_) | Goal::Returned => true,
    }
}

/// Whether files have the names that their identities say, by which rounds have judged that they are reached, and where whoever wanted them looked. A file
/// that had several may have lost that one; nothing says then which it has. What cannot be read says nothing either. Each look is at one unit of a
/// directory, whatever the directory has: all operations wait for it. The gate is closed, and the state in its place.
fn have_their_names(volume: &Volume, closed: &Closed<'_>, files: &[Wanted]) -> bool {
    let txn = Txn::behind(volume, closed);
    let place =
        |wanted: &Wanted| dir::place_of(&txn.look, wanted.file, &inode::read(&txn.look, wanted.file)?, wanted.name);
    let have_all = files.iter().all(|wanted| place(wanted).is_ok_and(|place| place.is_some()));
    txn.finish(Ok(())).is_ok() && have_all
}

/// Takes the frames of a closed epoch off its lists: their next change belongs to another epoch.
fn settle_frames(volume: &Volume, dirty: &[u32]) {
    for &index in dirty {
        let header = volume.cache.arena.header(index);
        let listed = crate::cache::flag::LISTED | crate::cache::flag::FRESH;
        header.flags.fetch_and(!listed, Ordering::Relaxed);
        header.mask.store(0, Ordering::Relaxed);
    }
}

/// What was judged of the blocks that have changed.
#[derive(Default)]
struct Judged {
    /// Blocks of which the round writes an image, and what the image keeps of what lasted.
    images: Vec<(u64, Box<Words>)>,
    /// The same of blocks that can wait for a round that shows more of them.
    put_off: Vec<(u64, Box<Words>)>,
    /// Blocks that are as their images are.
    whole: Vec<u64>,
    /// Only with a planted bug: blocks that are taken to last as they are.
    left_out: Vec<u64>,
    tally: Tally,
    /// What the files need that the round is made for.
    needs: Option<Needs>,
    /// What the round notes, whether that is the exchange that waits, and whether one waits at all.
    exchange: Option<[ExchangedName; 2]>,
    ends_exchange: bool,
    is_exchange_left: bool,
    /// A name was left out because it is to be noted.
    has_unnoted: bool,
    /// The first error of those that kept something from being judged.
    unreadable: Option<Error>,
    /// One of them befell a block of what is noted.
    cuts_note: bool,
    /// One of them befell a new block of a round that fills such.
    cuts_filling: bool,
    /// Blocks that are filled.
    filled: Vec<u64>,
}

impl Judged {
    /// Keeps the error if something cannot be read: what waits for that is left out, and the round goes on. Other errors end it.
    fn spare<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ (Error::Io(_) | Error::Corrupt(_))) => {
                self.unreadable.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Judges all blocks that the round is made for. If a block of what is to be noted cannot be judged, nothing is noted: with a note all of its blocks are written.
/// In the same way nothing is filled if a new block cannot be judged.
fn judge_round(look: &Look<'_>, state: &State, data: &WaitingData, is_forced: bool, goal: Goal<'_>) -> Result<Judged> {
    let mut judge = Judge::new(look, state, data, is_forced)?;
    let is_exchange_left = exchange::waiting(state, &judge).is_some();
    let mut judged = Judged { is_exchange_left, ..Judged::default() };
    if !goal.is_partial() {
        find_note(state, &judge, &mut judged)?;
    }
    let fills = goal == Goal::All && judged.exchange.is_none() && !is_forced;
    if judged.exchange.is_some() || fills {
        match judged.exchange {
            Some(names) => judge.exchange(names),
            None => judge.begin_filling(),
        }
        judge_blocks(look.volume, state, judge, goal, &mut judged)?;
        if !judged.cuts_note && !judged.cuts_filling {
            return Ok(judged);
        }
        judge = Judge::new(look, state, data, is_forced)?;
        judged = Judged { is_exchange_left, ..Judged::default() };
    }
    judge_blocks(look.volume, state, judge, goal, &mut judged)?;
    Ok(judged)
}

/// What a round of everything notes: the exchange that waits, or a name that a directory takes or leaves.
fn find_note(state: &State, judge: &Judge<'_>, judged: &mut Judged) -> Result<()> {
    judged.exchange = judged.spare(exchange::ready(state, judge))?.flatten();
    judged.ends_exchange = judged.exchange.is_some();
    if judged.exchange.is_none() {
        judged.exchange = judged.spare(exchange::taken(state, judge))?.flatten();
    }
    Ok(())
}

/// Judges the blocks that the round is made for, given what it notes.
fn judge_blocks(
    volume: &Volume,
    state: &State,
    mut judge: Judge<'_>,
    goal: Goal<'_>,
    judged: &mut Judged,
) -> Result<()> {
    let along = match goal {
        Goal::Due(due) => Along::with(due, state, &volume.geometry),
        _ => Along::default(),
    };
    let noted = exchange::blocks_of(judged.exchange.as_ref(), &volume.geometry);
    if let Goal::Files(files) = goal {
        judged.needs = judged.spare(Needs::of(&judge, state, files))?.flatten();
    }
    let is_filling = |shadow: &Shadow| judge.fills && shadow.is_new && shadow.kind == BlockKind::InodeTable;
    let (first, others): (Vec<_>, Vec<_>) = state.shadows.iter().partition(|(_, shadow)| is_filling(shadow));
    for (at, &(&block, shadow)) in first.iter().chain(&others).enumerate() {
        let is_needed = match goal {
            Goal::Files(_) => judged.needs.as_ref().is_some_and(|needs| needs.blocks.contains(&block)),
            Goal::Due(due) => due.is_block(shadow.kind, shadow.since) || along.has(block, shadow, &volume.geometry),
            _ => true,
        };
        let is_late =
            planted(Bug::SoftAttributesLate) && matches!(goal, Goal::Due(_)) && shadow.kind == BlockKind::BlockBitmap;
        // The superblock is written apart, with a note of the exchange.
        let is_apart = judged.exchange.is_some() && shadow.kind == BlockKind::Superblock;
        if !is_needed || is_apart || is_late || waits_for_commit(volume, shadow, goal) {
            if planted(Bug::SoftDueLeftOut) && matches!(goal, Goal::Due(_)) {
                judged.left_out.push(block);
            }
            continue;
        }
        let mut image = judge.image(block, shadow);
        let has_all = image.as_ref().is_ok_and(|image| image.unreadable.is_none());
        judged.cuts_note |= !has_all && noted.contains(&block);
        if let Ok(image) = &mut image {
            judged.spare(image.unreadable.take().map_or(Ok(()), Err))?;
        }
        judged.cuts_filling |= judge.fills && shadow.is_new && image.is_err();
        if let Some(image) = judged.spare(image)? {
            if at < first.len() {
                judge.fill(block, &image);
            }
            judged.add(volume.soft(), block, shadow, &image, goal);
        }
    }
    judged.has_unnoted = judge.has_unnoted;
    judged.filled = judge.filled_blocks().collect();
    Ok(())
}

impl Judged {
    /// Adds the image of a block.
    fn add(&mut self, soft: &Soft, block: u64, shadow: &Shadow, image: &Image, goal: Goal<'_>) {
        soft.compared.fetch_add(image.units.len() as u64, Ordering::Relaxed);
        self.tally.add(shadow.kind, shadow.is_new, image.counted());
        let is_whole = image.is_whole();
        if is_whole {
            self.whole.push(block);
        }
        if !image.differs() || matches!(goal, Goal::Due(_)) && image.has_only_remains() {
            // The next image that has more of it to write takes its remains along.
            return;
        }
        let can_wait = !matches!(goal, Goal::Files(_)) && image.has_only_values() && !is_whole;
        let list = if can_wait { &mut self.put_off } else { &mut self.images };
        list.push((block, Box::new(image.words())));
    }
}

/// Notes in the shadows that their images are on their way; the blocks that have one.
fn mark_sent(state: &mut State, judged: Judged) -> Vec<u64> {
    let mut blocks = Vec::with_capacity(judged.images.len());
    for (block, image) in judged.images {
        blocks.push(block);
        state.with_shadow(block, |shadow| shadow.sent = Some(image)).expect("it has an image");
    }
    state.filled = judged.filled;
    for block in judged.left_out {
        let left_out = |shadow: &mut Shadow| (shadow.is_new, shadow.lasting) = (false, Words::default());
        state.with_shadow(block, left_out).expect("it was left out");
        state.make_stale(block);
    }
    for block in judged.whole {
        state.shadows.get_mut(&block).expect("it has an image").since = None;
    }
    blocks
}

/// Notes an exchange in the superblock on the device, which is as it lasts, or takes the note away.
fn note_exchange(volume: &Volume, names: Option<[ExchangedName; 2]>) -> Result<()> {
    if planted(Bug::SoftExchange) {
        return Ok(());
    }
    let note = |superblock: &mut Superblock| superblock.set_exchange(names);
    myriad_log::change_superblock(&*volume.device, volume.superblock.volume(), note).map_err(|error| match error {
        LogError::Io { op: "write", offset, source } => volume.write_error(offset, source),
        LogError::Io { op, offset, source } => volume.io_error(op, offset, source),
        error => log_open_error(error),
    })
}

/// Data that waits to be written, whether or not the round writes it.
fn waiting_data(soft: &Soft, ordered: &[Placed], goal: Goal<'_>) -> WaitingData {
    let all = soft.data.lock();
    let mut waiting = WaitingData::default();
    for &Placed { block, .. } in ordered {
        let data = all.get(&block);
        let is_young = matches!((goal, data), (Goal::Due(due), Some(data)) if !due.is_data(data.since));
        if !(is_young && planted(Bug::SoftDueData)) {
            waiting.blocks.insert(block);
            waiting.inodes.extend(data.map(|data| data.ino));
        }
    }
    waiting
}

/// Of data to be written, that of the files that are needed, or what is due; the rest waits for the next round.
fn take_needed(
    volume: &Volume,
    soft: &Soft,
    ordered: Vec<Placed>,
    goal: Goal<'_>,
    needs: Option<&Needs>,
) -> Vec<Placed> {
    let all = soft.data.lock();
    let is_needed = |&Placed { block, .. }: &Placed| match (goal, all.get(&block)) {
        (Goal::Due(due), data) => data.is_none_or(|data| due.is_data(data.since)),
        (_, data) => {
            !planted(Bug::SoftFsyncData)
                && needs.is_some_and(|needs| data.is_none_or(|data| needs.inodes.contains(&data.ino)))
        }
    };
    let (needed, rest): (Vec<_>, Vec<_>) = ordered.into_iter().partition(is_needed);
    drop(all);
    let mut waiting = volume.epoch.ordered.lock();
    waiting.extend(rest);
    volume.epoch.ordered_count.store(waiting.len() as u64, Ordering::Relaxed);
    needed
}

/// Whether nothing that the rounds are made for has changed in a block. The gate is closed.
fn waits_for_commit(volume: &Volume, shadow: &Shadow, goal: Goal<'_>) -> bool {
    let may_be_hints = matches!(
        shadow.kind,
        BlockKind::Superblock | BlockKind::Group | BlockKind::BlockBitmap | BlockKind::InodeBitmap
    );
    if !matches!(goal, Goal::Files(_) | Goal::Returned) || !may_be_hints || shadow.is_new {
        return false;
    }
    let frame = volume.cache.arena.read(shadow.frame);
    let has_only_hints = |number: usize| {
        let unit = &frame[number * UNIT_SIZE..][..UNIT_SIZE];
        facts::has_only_hints(shadow.kind, Some(&shadow.lasting.unit(number, unit)), unit)
    };
    shadow.lasting.units().all(has_only_hints)
}

/// Looks again at the blocks that have changed since, or that what lasts has changed of: names in them are counted anew, and shadows of
/// blocks that last as they are go. Those of inodes stay as long as names of them differ: a name may come and go, and leave the inode as
/// it was, which must show more links all the same. The gate is closed.
fn look_at_stale(volume: &Volume, soft: &Soft, state: &mut State) {
    let arena = &volume.cache.arena;
    let mut compared = 0;
    // Inodes after all names. Looking at a block of inodes makes no other one stale.
    for are_inodes in [false, true] {
        let is_one = |state: &State, block: u64| {
            state.shadows.get(&block).is_some_and(|shadow| (shadow.kind == BlockKind::InodeTable) == are_inodes)
        };
        let stale = std::mem::take(&mut state.stale);
        let (stale, others): (Vec<u64>, Vec<u64>) = stale.into_iter().partition(|&block| is_one(state, block));
        state.stale = others;
        for block in stale {
            let frame = arena.read(state.shadows[&block].frame);
            let look_again = |shadow: &mut Shadow| {
                (shadow.is_stale, shadow.edits) = (false, 0);
                let units = shadow.changed_units(frame.len()).len();
                shadow.lasting.drop_equal(&frame);
                let is_of_names = shadow.kind == BlockKind::LinearEntries;
                (units, is_of_names.then(|| shadow.find_changes(&frame)))
            };
            let (units, changes) = state.with_shadow(block, look_again).expect("just listed");
            compared += units;
            if let Some(changes) = changes {
                state.recount(block, changes, &volume.geometry);
            }
            let shadow = &state.shadows[&block];
            let has_names = || {
                let units = 0..frame.len() / UNIT_SIZE;
                units
                    .flat_map(|unit| inodes_of(&volume.geometry, FsBlock(block), unit))
                    .any(|ino| state.pending.has(ino.0))
            };
            let is_needed = shadow.has_changed() || are_inodes && has_names();
            if !is_needed {
                let shadow = state.remove(block, &volume.geometry).expect("just looked at");
                arena.header(shadow.frame).unhomed.clear();
            }
        }
    }
    state.stale.clear();
    soft.compared.fetch_add(compared as u64, Ordering::Relaxed);
}

/// Whether nothing that lasts points to what was freed.
fn is_free(volume: &Volume, state: &State, freed: &Freed) -> bool {
    if planted(Bug::SoftReuse) {
        return true;
    }
    let is_there = |block: u64, shadow: &Shadow| {
        let is_at = |ino: &Ino| match volume.geometry.locate(*ino) {
            Some((at, slot)) => at.0 == block && shadow.lasts_with(volume.geometry.inode_offset(slot), MODE),
            None => false,
        };
        shadow.points_to(&volume.geometry, |block| freed.has(block))
            || shadow.kind == BlockKind::InodeTable && freed.inodes.iter().any(is_at)
    };
    let may_find = |block: &u64| {
        state.shadows.get(block).is_some_and(|shadow| is_there(*block, shadow))
            || state.ghosts.get(block).is_some_and(|ghost| ghost.points_to(&volume.geometry, |block| freed.has(block)))
    };
    // A freed block of pointers needs no look: another block that the same transaction changed pointed to it.
    !freed.from.iter().filter(|&&block| !freed.has(block)).any(may_find)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{NewFile, Ops};
    use crate::types::{Cred, LinkRules, MkfsOptions, Order, XattrMode};
    use crate::volume::testing;
    use myriad_device::MemoryDevice;
    use myriad_format::choices::Profile;
    use myriad_format::inode::S_IFDIR;
    use std::sync::Arc;

    fn volume(device: Arc<MemoryDevice>, block_size: u32) -> Volume {
        let choices = Profile::parse("ffs").unwrap().choices;
        let options = MkfsOptions { choices, block_size, order: Order::Soft, ..MkfsOptions::default() };
        crate::mkfs::format(device.clone(), None, &options).unwrap();
        testing::open(device)
    }

    /// What a thread that syncs a file asks for, having looked for its name.
    fn wanted(volume: &Volume, file: Ino) -> Wanted {
        let look = volume.look();
        let name = dir::own_name(&look, file, &inode::read(&look, file).unwrap()).unwrap().expect("it has the name");
        Wanted { file, name }
    }

    /// Data was written over in memory while a round wrote it. The end of the round took the newer data for written as well, and no visit found it due.
    #[test]
    fn data_that_is_ordered_while_a_round_is_written_waits() {
        let volume = volume(Arc::new(MemoryDevice::new(8 << 20)), 4096);
        let file = testing::new_file(&volume, b"file");
        let write = |bytes| {
            crate::file::write(&volume, &Cred::root(), &file, bytes, 0, false, false).unwrap();
            crate::file::flush(&volume, &file).unwrap();
        };
        let waiting = || volume.soft().data.lock().len();
        write(b"older");
        assert_eq!(waiting(), 1);
        let mut checkpointer = volume.checkpointer.lock();
        let closed = volume.cache.gate.close();
        let epoch = close_epoch(&volume, &closed, 0, &mut checkpointer.orphan_list).unwrap();
        checkpointer.round = Some(begin_round(&volume, &closed, epoch, false, Goal::All).unwrap().round);
        drop(closed);
        std::thread::scope(|scope| drop(scope.spawn(|| write(b"newer"))));
        checkpointer.finish_round(&volume, false).unwrap();
        assert_eq!(waiting(), 1, "the newer data");
        checkpointer.run(&volume).unwrap();
        assert_eq!(waiting(), 0);
    }

    /// After an fsync had looked for its file's name, another thread gave the file one in another directory, and took the first one away. The rounds ended once
    /// the file lasted there and the directory of its first name did. Looking again after that is too late: the file may have a third name by then, which its
    /// identity says.
    #[test]
    fn rounds_for_a_file_do_not_end_by_a_name_that_it_has_lost() {
        let volume = volume(Arc::new(MemoryDevice::new(8 << 20)), 4096);
        let ops = Ops { volume: &volume, cred: &Cred::root(), caller: &Cred::root() };
        let root = crate::namei::root(&volume.look()).unwrap();
        let file = testing::new_file(&volume, b"f");
        let new = NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() };
        let dir = ops.make(root, b"d", &new).unwrap().node();
        let wanted = wanted(&volume, file.ino);
        ops.link(file.node(), dir, b"f", LinkRules::default()).unwrap();
        ops.unlink(root, b"f").unwrap();
        volume.checkpointer.lock().run_for(&volume, &[wanted]).unwrap();
        assert!(volume.counters.snapshot().contains(&("soft_fsyncs_of_all", 1)));
        assert!(volume.soft().is_clean());
    }

    /// While what could not be read may name a directory, its number stays nobody's when it goes, and that it went was noted only with the number: nobody knew
    /// that its inode had named the block of its attributes, which was given away while the directory lasted still.
    #[test]
    fn attributes_of_a_directory_wait_for_its_end_though_its_number_stays() {
        for is_kept in [false, true] {
            let volume = volume(Arc::new(MemoryDevice::new(8 << 20)), 4096);
            let ops = Ops { volume: &volume, cred: &Cred::root(), caller: &Cred::root() };
            let root = crate::namei::root(&volume.look()).unwrap();
            let new = NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() };
            let dir = ops.make(root, b"d", &new).unwrap().node();
            ops.set_xattr(dir, b"user.k", &[7; 900], XattrMode::Set).unwrap();
            volume.commit_now().unwrap();
            if is_kept {
                volume.note_second_names(false);
            }
            ops.rmdir(root, b"d").unwrap();
            let state = volume.soft().state.lock();
            let freed = state.freed.iter().filter(|freed| !freed.extents.is_empty());
            assert!(freed.clone().count() > 0, "it had a block");
            assert!(freed.clone().all(|freed| !is_free(&volume, &state, freed)), "number kept: {is_kept}");
        }
    }
}
