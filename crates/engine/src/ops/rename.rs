//! rename: replace, no-replace, exchange, and with a whiteout left behind.

use super::ancestors::{Ancestry, Question, STEPS_INSIDE};
use super::create::Whiteout;
use super::leftovers::settle_before_moving;
use super::unlink::{Ending, Gone, drop_link, emptied, ending_of, finish_emptied, finish_gone};
use super::{Ops, touch_dir};
use crate::counters::Count;
use crate::dir::{self, Hit, Name, NewEntry, OwnName, Room, Search};
use crate::error::{Errno, Error, Result};
use crate::file::OpenFile;
use crate::inode;
use crate::namei::Guarded;
use crate::order::soft::{Exchanged, SETTLE_TRIES, Soft};
use crate::order::{Look, Txn};
use crate::perm;
use crate::planted::{Bug, planted};
use crate::types::{FileType, Node, RenameMode, Time, check_name};
use crate::volume::{OPERATION_BLOCKS, transact};
use myriad_format::Ino;
use myriad_format::inode::{NLINK_MAX, RawInode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::little_endian::{I64, U32, U64};

/// How often a rename that waits for others (`must_wait`) makes everything durable before it is refused. Of several at a time one is done each time, so with
/// a few threads that do nothing else none is refused.
const RESHAPE_TRIES: u32 = 64;

/// One end of a rename: a directory and a name in it.
#[derive(Clone, Copy)]
struct End<'n> {
    /// The directory as it was found, and its number.
    node: Node,
    dir: Ino,
    name: Name<'n>,
}

impl Ops<'_> {
    /// Moves a name. The old target, if any, loses its name in the same atomic change. `slashes`: source or target was
    /// given with a slash behind it, so that only a directory will do.
    pub fn rename(
        &self,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        mode: RenameMode,
        slashes: (bool, bool),
    ) -> Result<()> {
        self.volume.counters.bump(Count::renames);
        let (source, target) = (self.end(from), self.end(to));
        settle_before_moving(self.volume, [source, target].map(|end| (end.node, end.name)))?;
        // What replaces a file must be whole when it does: its data goes into the checkpoint that has the rename. Once is
        // enough: what is written meanwhile belongs to nobody's promise.
        let mut before = Before::default();
        let mut left_out = None;
        let mut turn = None;
        loop {
            let blocks = if mode.leaves_whiteout() { self.volume.blocks_to_create() } else { OPERATION_BLOCKS };
            let renamed = transact(self.volume, blocks, |txn| {
                // Two renames of directories at once could each move one below the other. Under soft updates at most one exchange may wait to be durable.
                let waits = mode == RenameMode::Exchange && self.volume.soft.is_some();
                let is_alone = source.dir != target.dir || waits;
                let _rename = is_alone.then(|| self.volume.rename_lock.lock());
                self.rename_inside(txn, source, target, mode, slashes, &before)
            })?;
            match renamed {
                Renamed::Done { gone, emptied, changed } => {
                    let finish = || {
                        finish_emptied(self.volume, emptied)?;
                        finish_gone(self.volume, gone)?;
                        if planted(Bug::SyncRenameForgotten) { Ok(()) } else { self.volume.before_return() }
                    };
                    let tell = |_: &Error| {
                        changed.into_iter().flatten().for_each(|node| self.volume.files.tell_changed(node));
                    };
                    return finish().inspect_err(tell);
                }
                Renamed::FlushFirst(file) => {
                    crate::file::flush(self.volume, &file)?;
                    before.flushed = [before.flushed[1], Some(file.node())];
                }
                Renamed::WalkFirst(question) => {
                    if before.ancestries.iter().flatten().any(|known| known.question == question) {
                        // In vain: others move directories.
                        turn.get_or_insert_with(|| self.volume.moves_turn.lock());
                        before.has_turn = true;
                    }
                    let mut others = before.ancestries.into_iter().flatten().filter(|known| known.question != question);
                    before.ancestries = [others.next_back(), Some(self.find_ancestry(question)?)];
                }
                Renamed::AwaitTurn => drop(self.volume.moves_turn.lock()),
                Renamed::SettleFirst { is_reshaping } => {
                    if let Some(error) = left_out {
                        return Err(error);
                    }
                    let shapes = self.volume.soft.as_ref().map(Soft::shapes);
                    left_out = self.volume.commit_what_can_be_read()?;
                    // What was left out is not durable, but may be nothing that the rename waits for: it looks once more.
                    if left_out.is_none() {
                        before.has_made_durable(shapes, is_reshaping);
                    }
                }
            }
        }
    }

    fn end<'n>(&self, (node, name): (Node, &'n [u8])) -> End<'n> {
        End { node, dir: Ino(node.ino), name: self.name(name) }
    }

    fn rename_inside(
        &self,
        txn: &mut Txn<'_>,
        source: End<'_>,
        target: End<'_>,
        mode: RenameMode,
        slashes: (bool, bool),
        before: &Before,
    ) -> Result<Renamed> {
        let volume = self.volume;
        let mut known: (Option<Ino>, Option<Ino>) = (None, None);
        loop {
            let mut locks = volume.lock_many([Some(source.dir), Some(target.dir), known.0, known.1]);
            let mut source_dir = RawInode::zeroed();
            let source_guard = self.directory(&txn.look, source.node, &mut source_dir)?;
            let (mut target_dir, target_guard);
            if source.node == target.node {
                target_dir = source_dir;
                target_guard = Guarded::new(&txn.look, target.dir, &target_dir)?;
            } else {
                target_dir = RawInode::zeroed();
                target_guard = self.directory(&txn.look, target.node, &mut target_dir)?;
            }
            check_name(source.name.bytes)?;
            let source_hit = dir::search(&txn.look, source.dir, &source_dir, source.name)?.hit.ok_or(Errno::NOENT)?;
            check_name(target.name.bytes)?;
            let target_search = dir::search(&txn.look, target.dir, &target_dir, target.name)?;
            let target_hit = target_search.hit;
            let found = (Some(source_hit.ino), target_hit.map(|hit| hit.ino));
            // Their locks may come before those held: then all are taken in order, and it is looked again.
            let is_locked =
                found == known || [found.0, found.1].into_iter().flatten().all(|ino| volume.lock_also(&mut locks, ino));
            if !is_locked {
                known = found;
                continue;
            }
            let ends = Ends {
                source,
                target,
                source_guard: &source_guard,
                target_guard: &target_guard,
                source_hit,
                target_hit,
                mode,
                slashes,
                before,
            };
            return self.rename_locked(txn, ends, target_search, (&mut source_dir, &mut target_dir));
        }
    }

    /// The two directories are locked, and so is what the names lead to.
    #[inline(always)]
    fn rename_locked(
        &self,
        txn: &mut Txn<'_>,
        ends: Ends<'_>,
        target_search: Search,
        (source_dir, target_dir): (&mut RawInode, &mut RawInode),
    ) -> Result<Renamed> {
        let (volume, mode) = (self.volume, ends.mode);
        if mode.keeps_target() && ends.target_hit.is_some() {
            return Err(Errno::EXIST.into());
        }
        if mode == RenameMode::Exchange && ends.target_hit.is_none() {
            return Err(Errno::NOENT.into());
        }
        let moved = inode::read(&txn.look, ends.source_hit.ino)?;
        let replaced = match ends.target_hit {
            Some(hit) => Some((hit, inode::read(&txn.look, hit.ino)?)),
            None => None,
        };
        let mut inodes = Inodes { source_dir, target_dir, moved, replaced };
        let plan = match self.judge_rename(txn, &ends, target_search, &inodes)? {
            Verdict::Go(plan) => plan,
            Verdict::End(renamed) => return Ok(renamed),
        };

        // From here on nothing is refused.
        let now = volume.now();
        if let Some(soft) = &volume.soft {
            if plan.is_reshaping {
                soft.reshaped();
            }
            if plan.is_to_note {
                soft.count_rename_to_note();
            }
            if mode != RenameMode::Exchange && inodes.replaced.as_ref().is_some_and(|(_, raw)| lives_on(raw)) {
                soft.note_taker(ends.source_hit.ino);
            }
            keep_homes(soft, &ends, &inodes, &plan);
        }
        (inodes.source_dir.nlink, inodes.target_dir.nlink) = plan.links;
        let gone = match inodes.replaced {
            Some(replaced) if mode == RenameMode::Exchange => {
                self.exchange_names(txn, &ends, &mut inodes, replaced, now)?;
                Gone::Done
            }
            _ => self.move_name(txn, &ends, &mut inodes, plan, now)?,
        };
        let (source, ino) = (ends.source, ends.source_hit.ino);
        inodes.moved.ctime = I64::new(now);
        inode::write(txn, ino, &inodes.moved)?;
        self.forget_moved(&ends, source, ino, &inodes.moved);
        write_directories(txn, &ends, &mut inodes, now)?;
        let replaced = inodes.replaced.as_ref().map(|(hit, raw)| inode::node(hit.ino, raw));
        let changed = [Some(inode::node(ino, &inodes.moved)), replaced];
        let emptied = emptied(volume, source.dir, inodes.directory_left(&ends));
        Ok(Renamed::Done { gone, emptied, changed })
    }

    /// Whether a rename goes on, and how. The errors come in the order of Linux (do_renameat2, vfs_rename), so that programs see those they know.
    #[inline(always)]
    fn judge_rename(&self, txn: &mut Txn<'_>, ends: &Ends<'_>, search: Search, inodes: &Inodes<'_>) -> Result<Verdict> {
        let (source, target, mode) = (ends.source, ends.target, ends.mode);
        let (moved, replaced) = (&inodes.moved, &inodes.replaced);
        let is_leftover = |ino, raw: &RawInode, end: End<'_>| self.volume.is_leftover(ino, raw, end.dir, end.name.hash);
        if is_leftover(ends.source_hit.ino, moved, source)
            || replaced.as_ref().is_some_and(|(hit, raw)| is_leftover(hit.ino, raw, target))
        {
            return Err(Errno::NOENT.into());
        }
        let places = self.check_kinds_and_places(&txn.look, ends, inodes)?;
        if replaced.as_ref().is_some_and(|(hit, _)| hit.ino == ends.source_hit.ino) {
            // Two names of one file: POSIX says to do nothing.
            return Ok(Verdict::NOTHING);
        }
        self.check_permissions(&txn.look, ends, inodes)?;
        match places {
            Places::AreGood => {}
            // Only for who may do it at all.
            Places::Ask(question) => return Ok(Verdict::End(Renamed::WalkFirst(question))),
            Places::AwaitTurn => return Ok(Verdict::End(Renamed::AwaitTurn)),
        }
        if let Some((hit, raw)) = replaced
            && raw.is_dir()
            && mode != RenameMode::Exchange
            && !dir::is_empty(&txn.look, hit.ino, raw)?
        {
            return Err(Errno::NOTEMPTY.into());
        }
        let links = links_after_rename(ends, inodes)?;
        if let Some(file) = self.must_flush(ends, inodes) {
            return Ok(Verdict::End(Renamed::FlushFirst(file)));
        }
        if planted(Bug::RenameLost) && replaced.is_none() {
            return Ok(Verdict::NOTHING);
        }
        let is_reshaping = moved.is_dir() && !ends.is_same_dir() || mode == RenameMode::Exchange;
        // A directory takes a name that names something, or leaves one that still does.
        let has_dir =
            moved.is_dir() || mode == RenameMode::Exchange && replaced.as_ref().is_some_and(|(_, raw)| raw.is_dir());
        let is_to_note = has_dir && (replaced.is_some() || mode.leaves_whiteout());
        if (is_reshaping && self.must_wait(ends)) || (is_to_note && self.is_one_to_note()) {
            return if ends.before.waited < RESHAPE_TRIES {
                Ok(Verdict::End(Renamed::SettleFirst { is_reshaping: true }))
            } else {
                Err(Errno::BUSY.into())
            };
        }
        if self.must_settle(&txn.look, ends, &search, inodes)? {
            return Ok(Verdict::End(Renamed::SettleFirst { is_reshaping: false }));
        }
        let room = match replaced {
            Some(_) => None,
            None => Some(dir::prepare(&txn.look, target.dir, inodes.target_dir, target.name, search)?),
        };
        let ending = match replaced {
            Some((hit, raw)) if mode != RenameMode::Exchange => ending_of(txn, hit.ino, raw)?,
            _ => Ending::Lives,
        };
        if mode != RenameMode::Exchange && !mode.leaves_whiteout() {
            dir::read_ahead_of_remove(&txn.look, source.dir, inodes.source_dir, ends.source_hit)?;
        }
        let whiteout = match mode.leaves_whiteout() {
            true => Some(Whiteout::reserve(self, txn, source.dir, inodes.source_dir, ends.source_guard)?),
            false => None,
        };
        Ok(Verdict::Go(Plan { is_reshaping, is_to_note, links, room, ending, whiteout }))
    }

    /// Refuses what asks for a directory and has none, and to move a directory below itself.
    #[inline(always)]
    fn check_kinds_and_places(&self, look: &Look<'_>, ends: &Ends<'_>, inodes: &Inodes<'_>) -> Result<Places> {
        let is_exchange = ends.mode == RenameMode::Exchange;
        let (moved, replaced) = (&inodes.moved, &inodes.replaced);
        let target_is_dir = replaced.as_ref().is_some_and(|(_, raw)| raw.is_dir());
        if is_exchange && ends.slashes.1 && !target_is_dir {
            return Err(Errno::NOTDIR.into());
        }
        if !moved.is_dir() && (ends.slashes.0 || ends.slashes.1 && !is_exchange) {
            return Err(Errno::NOTDIR.into());
        }
        if ends.is_same_dir() || !moved.is_dir() && !target_is_dir {
            return Ok(Places::AreGood);
        }
        self.check_ways_up(look, ends, inodes)
    }

    /// Refuses to move a directory below itself, or below what it replaces. A directory takes part, and the two names are in different ones.
    fn check_ways_up(&self, look: &Look<'_>, ends: &Ends<'_>, inodes: &Inodes<'_>) -> Result<Places> {
        if !ends.before.has_turn && self.volume.moves_turn.is_locked() {
            return Ok(Places::AwaitTurn);
        }
        let mut places = Places::AreGood;
        let mut steps = STEPS_INSIDE;
        let mut is_below = |directory, ancestor| {
            let question = Question { directory, ancestor };
            let answer = self.is_below(look, question, ends.before, &mut steps)?;
            if answer.is_none() {
                places = Places::Ask(question);
            }
            Ok::<_, Error>(answer.unwrap_or(false))
        };
        if inodes.moved.is_dir() && is_below(ends.target.node, ends.source_hit.ino)? {
            return Err(Errno::INVAL.into());
        }
        if let Some((hit, raw)) = &inodes.replaced
            && raw.is_dir()
            && is_below(ends.source.node, hit.ino)?
        {
            return Err(if ends.mode == RenameMode::Exchange { Errno::INVAL } else { Errno::NOTEMPTY }.into());
        }
        Ok(places)
    }

    /// Whether the caller may take the old name away, and make the new one; and whether what is replaced is of the kind of what replaces it.
    #[inline(always)]
    fn check_permissions(&self, look: &Look<'_>, ends: &Ends<'_>, inodes: &Inodes<'_>) -> Result<()> {
        let is_exchange = ends.mode == RenameMode::Exchange;
        let (moved, replaced) = (&inodes.moved, &inodes.replaced);
        let victim = Guarded::new(look, ends.source_hit.ino, moved)?;
        perm::may_delete(self.cred, &ends.source_guard.subject(), &victim.subject())?;
        match replaced {
            None => perm::may_access(self.cred, &ends.target_guard.subject(), perm::WRITE | perm::EXECUTE)?,
            Some((hit, raw)) => {
                let victim = Guarded::new(look, hit.ino, raw)?;
                perm::may_delete(self.cred, &ends.target_guard.subject(), &victim.subject())?;
                match (moved.is_dir(), raw.is_dir()) {
                    _ if is_exchange => {}
                    (true, false) => return Err(Errno::NOTDIR.into()),
                    (false, true) => return Err(Errno::ISDIR.into()),
                    _ => {}
                }
            }
        }
        if ends.is_same_dir() {
            return Ok(());
        }
        // A directory that changes its parent has its ".." rewritten: that needs write permission on it.
        let other = replaced.as_ref().filter(|_| is_exchange).map(|(hit, raw)| (hit.ino, raw));
        for (ino, raw) in [(ends.source_hit.ino, moved)].into_iter().chain(other) {
            if raw.is_dir() {
                crate::namei::check_access(look, self.cred, ino, raw, perm::WRITE)?;
            }
        }
        Ok(())
    }

    /// A file that is to replace another one, and has data in memory. Found only under the locks: the target may have come a moment ago.
    #[inline(always)]
    fn must_flush(&self, ends: &Ends<'_>, inodes: &Inodes<'_>) -> Option<Arc<OpenFile>> {
        let replaced = inodes.replaced.as_ref();
        let other = replaced.filter(|_| ends.mode == RenameMode::Exchange).map(|(hit, _)| hit.ino);
        let mut replacing = replaced.is_some().then_some(ends.source_hit.ino).into_iter().chain(other);
        replacing.find_map(|ino| {
            let is_ahead = |file: &Arc<OpenFile>| {
                !ends.before.flushed.contains(&Some(file.node())) && file.ahead.load(Ordering::Acquire)
            };
            self.volume.files.find(ino).filter(is_ahead)
        })
    }

    /// Each of two names leads to what the other one led to.
    fn exchange_names(
        &self,
        txn: &mut Txn<'_>,
        ends: &Ends<'_>,
        inodes: &mut Inodes<'_>,
        (hit, mut other): (Hit, RawInode),
        now: Time,
    ) -> Result<()> {
        let (source, target, source_hit) = (ends.source, ends.target, ends.source_hit);
        if let Some(soft) = &self.volume.soft {
            let (a, b) = (source_hit.ino, hit.ino);
            let end = |end: End<'_>, old, new| Exchanged { dir: end.dir, hash: end.name.hash, old, new };
            soft.exchanged([end(source, a, b), end(target, b, a)], self.volume.ticks());
        }
        let (moved_type, other_type) = (type_code(&inodes.moved), type_code(&other));
        dir::replace(txn, target.dir, inodes.target_dir, target.name, hit, source_hit.ino, moved_type)?;
        dir::replace(txn, source.dir, inodes.source_dir, source.name, source_hit, hit.ino, other_type)?;
        set_identity(&mut inodes.moved, target, hit.position);
        set_identity(&mut other, source, source_hit.position);
        other.ctime = I64::new(now);
        inode::write(txn, hit.ino, &other)?;
        self.forget_moved(ends, target, hit.ino, &other);
        Ok(())
    }

    /// As [`Self::forget_name`], for a name that an inode has lost to another one, which the inode says by now: if it is a directory, others may have to walk up
    /// again (`ancestors`).
    fn forget_moved(&self, ends: &Ends<'_>, end: End<'_>, ino: Ino, raw: &RawInode) {
        self.forget_name(end.dir, end.name, ino, raw);
        if raw.is_dir() && !ends.is_same_dir() {
            self.volume.directory_moves.fetch_add(1, Ordering::Release);
        }
    }

    /// The new name is there before the old one goes; within one transaction nobody sees both. A removal may end a `linear`
    /// directory before units that are empty: in the other order, the place found for the new name could be gone.
    #[inline(always)]
    fn move_name(
        &self,
        txn: &mut Txn<'_>,
        ends: &Ends<'_>,
        inodes: &mut Inodes<'_>,
        plan: Plan,
        now: Time,
    ) -> Result<Gone> {
        let (source, target) = (ends.source, ends.target);
        let mut source_hit = ends.source_hit;
        let moved_type = type_code(&inodes.moved);
        if let Some(room) = &plan.room {
            let entry = NewEntry { name: target.name, ino: source_hit.ino, file_type: moved_type };
            let position = dir::insert(txn, target.dir, inodes.target_dir, entry, room)?;
            set_identity(&mut inodes.moved, target, position);
            if ends.is_same_dir() {
                source_hit = dir::again(&txn.look, source.dir, inodes.target_dir, source.name, source_hit)?;
            }
        } else if let Some((hit, _)) = inodes.replaced {
            dir::replace(txn, target.dir, inodes.target_dir, target.name, hit, source_hit.ino, moved_type)?;
            set_identity(&mut inodes.moved, target, hit.position);
        }
        let removal_dir = inodes.directory_left(ends);
        if let Some(whiteout) = plan.whiteout {
            let code = FileType::CharDevice.code();
            dir::replace(txn, source.dir, removal_dir, source.name, source_hit, whiteout.ino, code)?;
            whiteout.finish(txn, source.dir, source.name, source_hit.position)?;
        } else {
            dir::remove(txn, source.dir, removal_dir, source.name, source_hit)?;
        }
        match inodes.replaced {
            Some((hit, mut raw)) => {
                self.forget_name(target.dir, target.name, hit.ino, &raw);
                drop_link(txn, (target.dir, target.name), hit.ino, &mut raw, plan.ending, now)
            }
            None => Ok(Gone::Done),
        }
    }

    /// Whether a rename that changes the tree's shape has to wait until what was changed before is durable: no other one does while an exchange
    /// or a name to be noted waits, and an exchange begins with the shape that is durable, and with both names as they last (`order::soft`, exchange).
    fn must_wait(&self, ends: &Ends<'_>) -> bool {
        let Some(soft) = &self.volume.soft else { return false };
        let lasts = |end: End<'_>| !soft.has_changed_name(&self.volume.cache.arena, end.dir, end.name.tag());
        let is_known = ends.mode != RenameMode::Exchange
            || ends.before.shapes == Some(soft.shapes()) && lasts(ends.source) && lasts(ends.target);
        !is_known || soft.has_exchange() || soft.to_note() > 0
    }

    /// Whether a name may wait to be noted, or an exchange. One note is about one name: a directory that took a second one meanwhile would have the identity
    /// of that, and the first would not show until it is noted as well.
    fn is_one_to_note(&self) -> bool {
        self.volume.soft.as_ref().is_some_and(|soft| soft.has_exchange() || soft.to_note() > 0)
    }

    /// Whether what a rename takes from its places must first be durable elsewhere. Of a directory in its way it asks each time, and of a file whose other name
    /// waits for another file's; of other names not for ever.
    fn must_settle(&self, look: &Look<'_>, ends: &Ends<'_>, search: &Search, inodes: &Inodes<'_>) -> Result<bool> {
        let is_settled = ends.before.settled >= SETTLE_TRIES;
        if let Some((hit, raw)) = &inodes.replaced {
            let must_wait = match raw.is_dir() {
                true => look.keeps_others(hit.ino, is_settled)?,
                false => lives_on(raw) && look.is_taker(hit.ino, is_settled)?,
            };
            if must_wait {
                return Ok(true);
            }
        }
        if is_settled {
            return Ok(false);
        }
        if let Some((hit, raw)) = &inodes.replaced {
            // What has other names has them on the device once that was asked for, but for those that others have moved since (`is_taker`).
            let links = if raw.is_dir() || ends.before.has_settled() { 1 } else { raw.nlink.get() };
            if look.holds_another(ends.target.dir, ends.target.name.tag(), hit.ino, links)? {
                return Ok(true);
            }
        } else if dir::is_held(look, ends.target.dir, ends.target.name, search)? {
            return Ok(true);
        }
        Ok(ends.mode.leaves_whiteout()
            && look.holds_another(ends.source.dir, ends.source.name.tag(), ends.source_hit.ino, 1)?)
    }
}

/// Keeps where directories that the rename moves get names of their own: a round that notes another name of one asks for it.
fn keep_homes(soft: &Soft, ends: &Ends<'_>, inodes: &Inodes<'_>, plan: &Plan) {
    if inodes.moved.is_dir() {
        let target = ends.target_hit.as_ref().map(OwnName::of_hit).or(plan.room.as_ref().map(OwnName::of_room));
        let target = target.expect("the entry of another name, or room for one");
        soft.keep_home(ends.source_hit.ino, target, plan.is_to_note);
    }
    if let Some((hit, raw)) = &inodes.replaced
        && ends.mode == RenameMode::Exchange
        && raw.is_dir()
    {
        soft.keep_home(hit.ino, OwnName::of_hit(&ends.source_hit), plan.is_to_note);
    }
}

/// Links of the source's and of the target's directory once the rename is done.
fn links_after_rename(ends: &Ends<'_>, inodes: &Inodes<'_>) -> Result<(U32, U32)> {
    let (is_exchange, same_dir) = (ends.mode == RenameMode::Exchange, ends.is_same_dir());
    let target_is_dir = inodes.replaced.as_ref().is_some_and(|(_, raw)| raw.is_dir());
    // Directories that the target's directory gets and loses; in an exchange the other one has them.
    let comes = i32::from(inodes.moved.is_dir() && !same_dir);
    let goes = i32::from(target_is_dir && (!is_exchange || !same_dir));
    let target = links_after(inodes.target_dir, comes - goes)?;
    let back = if is_exchange { goes } else { 0 };
    let source = links_after(inodes.source_dir, back - comes)?;
    Ok((source, target))
}

/// Links of a directory once it has `change` more directories in it.
fn links_after(dir: &RawInode, change: i32) -> Result<U32> {
    let links = dir.nlink.get();
    if change > 0 && links >= NLINK_MAX {
        return Err(Errno::MLINK.into());
    }
    Ok(U32::new(links.saturating_add_signed(change)))
}

/// Writes the directories as ones that were changed now.
fn write_directories(txn: &mut Txn<'_>, ends: &Ends<'_>, inodes: &mut Inodes<'_>, now: Time) -> Result<()> {
    touch_dir(inodes.target_dir, now);
    inode::write(txn, ends.target.dir, inodes.target_dir)?;
    if !ends.is_same_dir() {
        touch_dir(inodes.source_dir, now);
        inode::write(txn, ends.source.dir, inodes.source_dir)?;
    }
    Ok(())
}

/// Whether a directory would go below itself.
enum Places {
    AreGood,
    /// This is to be found out first. Of two questions it is the last one.
    Ask(Question),
    /// Another rename has its turn to find that out.
    AwaitTurn,
}

/// What becomes of an attempt at a rename.
enum Verdict {
    /// It ends here, and nothing has changed.
    End(Renamed),
    /// It is done, in this way. Nothing has changed but that what it needs is reserved.
    Go(Plan),
}

impl Verdict {
    const NOTHING: Self = Self::End(Renamed::NOTHING);
}

/// How a rename that nothing refuses is done.
struct Plan {
    /// A directory changes its parent, or two names are exchanged.
    is_reshaping: bool,
    /// A name may show only with a note.
    is_to_note: bool,
    /// Links that the source's and the target's directory then have.
    links: (U32, U32),
    /// Where the new name goes, if it replaces none.
    room: Option<Room>,
    /// What becomes of the file whose name it takes.
    ending: Ending,
    whiteout: Option<Whiteout>,
}

/// How an attempt at a rename ended.
enum Renamed {
    Done {
        gone: Gone,
        /// The source's directory, if it was emptied.
        emptied: Option<Node>,
        /// What was moved, and what it replaced.
        changed: [Option<Node>; 2],
    },
    /// Nothing has changed: the file is to replace another one and has data in memory.
    FlushFirst(Arc<OpenFile>),
    /// Nothing has changed: what was changed before must be durable first, because the tree changes its shape (`must_wait`), or for the sake of what the
    /// rename takes from its places (`must_settle`).
    SettleFirst { is_reshaping: bool },
    /// Nothing has changed: a directory moves, and the way up from where it goes is long (`ancestors`).
    WalkFirst(Question),
    /// Nothing has changed: a directory moves, and another rename walks such a way.
    AwaitTurn,
}

impl Renamed {
    /// There was nothing to do.
    const NOTHING: Self = Self::Done { gone: Gone::Done, emptied: None, changed: [None; 2] };
}

/// A rename whose directories and inodes are locked.
struct Ends<'n> {
    source: End<'n>,
    target: End<'n>,
    source_guard: &'n Guarded,
    target_guard: &'n Guarded,
    source_hit: Hit,
    target_hit: Option<Hit>,
    mode: RenameMode,
    slashes: (bool, bool),
    before: &'n Before,
}

impl Ends<'_> {
    fn is_same_dir(&self) -> bool {
        self.source.dir == self.target.dir
    }
}

/// The inodes that a rename changes.
struct Inodes<'i> {
    /// Within one directory, only the target's is changed and written.
    source_dir: &'i mut RawInode,
    target_dir: &'i mut RawInode,
    moved: RawInode,
    replaced: Option<(Hit, RawInode)>,
}

impl Inodes<'_> {
    /// The directory that loses the old name. The new name's insertion may have changed where it keeps its entries.
    fn directory_left(&mut self, ends: &Ends<'_>) -> &mut RawInode {
        if ends.is_same_dir() { self.target_dir } else { self.source_dir }
    }
}

/// What has been done for a rename before it is tried again.
#[derive(Clone, Copy, Default)]
pub(super) struct Before {
    /// The files that have been flushed for it. Their numbers may be others' by now.
    flushed: [Option<Node>; 2],
    /// How often all that was changed before has been made durable, by what asked for it.
    waited: u32,
    settled: u32,
    /// The shape of the tree when that was done last (`Soft::shapes`).
    shapes: Option<u64>,
    /// What was found out about the directories above its two ends.
    pub(super) ancestries: [Option<Ancestry>; 2],
    /// Nobody else begins to move a directory until it has ended.
    has_turn: bool,
}

impl Before {
    /// All that was changed before is durable, with a tree of this shape, because a rename asked for it that `is_reshaping` or not.
    fn has_made_durable(&mut self, shapes: Option<u64>, is_reshaping: bool) {
        self.shapes = shapes;
        let tries = if is_reshaping { &mut self.waited } else { &mut self.settled };
        *tries += 1;
    }

    fn has_settled(&self) -> bool {
        self.waited + self.settled > 0
    }
}

/// A file's type as an entry has it.
fn type_code(raw: &RawInode) -> u8 {
    (raw.mode.get() >> 12) as u8
}

/// Whether a file that loses a name has other ones.
fn lives_on(raw: &RawInode) -> bool {
    !raw.is_dir() && raw.nlink.get() > 1
}

fn set_identity(raw: &mut RawInode, end: End<'_>, position: u32) {
    raw.parent = U64::new(end.dir.0);
    raw.name_hash = U64::new(end.name.hash);
    raw.entry_position = U32::new(position);
}

/// For tests of long ways.
#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// One attempt at a rename, given what was found out before.
    pub(in crate::ops) fn attempt_move(
        ops: &Ops<'_>,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        known: Option<Ancestry>,
    ) -> Result<Attempt> {
        let before = Before { ancestries: [None, known], ..Before::default() };
        transact(ops.volume, OPERATION_BLOCKS, |txn| {
            let _rename = ops.volume.rename_lock.lock();
            ops.rename_inside(txn, ops.end(from), ops.end(to), RenameMode::Replace, (false, false), &before)
        })
        .map(Attempt)
    }

    pub(in crate::ops) struct Attempt(Renamed);

    pub(in crate::ops) fn is_walk_first(attempt: &Attempt) -> bool {
        matches!(attempt.0, Renamed::WalkFirst(_))
    }

    pub(in crate::ops) fn is_waiting_for_a_turn(attempt: &Attempt) -> bool {
        matches!(attempt.0, Renamed::AwaitTurn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::NewFile;
    use crate::types::{Cred, LinkRules, MkfsOptions, Order};
    use crate::volume::{Volume, testing};
    use myriad_device::MemoryDevice;
    use myriad_format::choices::Profile;
    use myriad_format::inode::S_IFDIR;
    use std::sync::LazyLock;

    /// Root's operations on a volume, and its root directory.
    fn as_root(volume: &Volume) -> (Ops<'_>, Node) {
        static ROOT: LazyLock<Cred> = LazyLock::new(Cred::root);
        (Ops { volume, cred: &ROOT, caller: &ROOT }, crate::namei::root(&volume.look()).unwrap())
    }

    /// Whether there was something to replace was found out before the locks were taken. A target that came in between
    /// was replaced by a file whose data was only in memory: power loss left neither.
    #[test]
    fn a_target_that_has_just_come_is_replaced_by_a_whole_file() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
        let (ops, root) = as_root(&volume);
        let source = testing::new_file(&volume, b"new");
        crate::file::write(&volume, ops.cred, &source, b"content", 0, false, false).unwrap();
        testing::new_file(&volume, b"old");
        let end = |name| ops.end((root, name));
        // As if the target had come after every look at it but the last.
        let attempt = || {
            transact(&volume, OPERATION_BLOCKS, |txn| {
                let before = Before::default();
                ops.rename_inside(txn, end(b"new"), end(b"old"), RenameMode::Replace, (false, false), &before)
            })
            .unwrap()
        };
        assert!(matches!(attempt(), Renamed::FlushFirst(file) if file.ino == source.ino));
        assert!(source.ahead.load(Ordering::Relaxed), "nothing has changed");
        ops.rename((root, b"new"), (root, b"old"), RenameMode::Replace, (false, false)).unwrap();
        assert!(!source.ahead.load(Ordering::Relaxed), "flushed on the way");
        assert_eq!(ops.lookup(root, b"old").unwrap().ino, source.ino.0);
    }

    /// The source that had been flushed was removed, and another file with its number came under its name: it replaced
    /// the target though its data was only in memory.
    #[test]
    fn what_has_been_flushed_is_not_what_has_its_number() {
        let volume = testing::volume(Arc::new(MemoryDevice::new(16 << 20)));
        let (ops, root) = as_root(&volume);
        testing::new_file(&volume, b"old");
        let file = testing::new_file(&volume, b"new");
        let flushed = file.node();
        file.opens.fetch_sub(1, Ordering::Relaxed);
        volume.files.forget_if_idle(&file, volume.epoch.current());
        ops.unlink(root, b"new").unwrap();
        let file = testing::new_file(&volume, b"new");
        let node = file.node();
        assert!(node.ino == flushed.ino && node.generation != flushed.generation);
        crate::file::write(&volume, ops.cred, &file, b"content", 0, false, false).unwrap();
        let end = |name| ops.end((root, name));
        let attempt = transact(&volume, OPERATION_BLOCKS, |txn| {
            let before = Before { flushed: [None, Some(flushed)], ..Before::default() };
            ops.rename_inside(txn, end(b"new"), end(b"old"), RenameMode::Replace, (false, false), &before)
        });
        assert!(matches!(attempt.unwrap(), Renamed::FlushFirst(file) if file.node() == node));
    }

    /// A volume of order `softdep`.
    fn soft_volume() -> Volume {
        let device = Arc::new(MemoryDevice::new(8 << 20));
        let choices = Profile::parse("ffs").unwrap().choices;
        let options = MkfsOptions { choices, order: Order::Soft, ..MkfsOptions::default() };
        crate::mkfs::format(device.clone(), None, &options).unwrap();
        testing::open(device)
    }

    /// Between the commit before an exchange and its locks, another thread gave one of the two names to another file. The exchange went on, and its note
    /// found no name that it was about: one of the two showed as before, beside the other as after.
    #[test]
    fn an_exchange_begins_with_both_names_as_they_last() {
        let volume = soft_volume();
        let (ops, root) = as_root(&volume);
        let end = |name| ops.end((root, name));
        let exchange = |(a, b)| {
            transact(&volume, OPERATION_BLOCKS, |txn| {
                let _rename = volume.rename_lock.lock();
                let before = Before { shapes: volume.soft.as_ref().map(Soft::shapes), waited: 1, ..Before::default() };
                ops.rename_inside(txn, end(a), end(b), RenameMode::Exchange, (false, false), &before)
            })
            .unwrap()
        };
        for (name, names) in [("source", (&b"x"[..], &b"y"[..])), ("target", (b"y", b"x"))] {
            for file in [&b"x"[..], b"y", b"saved"] {
                testing::new_file(&volume, file);
            }
            volume.commit_now().unwrap();
            ops.rename((root, b"saved"), (root, b"x"), RenameMode::Replace, (false, false)).unwrap();
            assert!(matches!(exchange(names), Renamed::SettleFirst { is_reshaping: true }), "{name}");
            volume.commit_now().unwrap();
            assert!(matches!(exchange(names), Renamed::Done { .. }), "{name}");
            volume.commit_now().unwrap();
            [&b"x"[..], b"y"].into_iter().for_each(|file| ops.unlink(root, file).unwrap());
        }
    }

    /// Two files, each with two names, and two threads: each moves a name of one file over a name of the other. Once everything was durable neither asked again,
    /// and each entry waited for the other one: a forced round let names go, and a cut in it left a file without any.
    #[test]
    fn names_that_two_files_take_from_each_other_wait_for_no_ring() {
        let volume = soft_volume();
        let (ops, root) = as_root(&volume);
        let [d1, d2, d3, d4] = [&b"d1"[..], b"d2", b"d3", b"d4"].map(|name| {
            let made = ops.make(root, name, &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap();
            Node { ino: made.ino, generation: made.generation }
        });
        for (name, first, second) in [(&b"f"[..], d1, d2), (b"v", d3, d4)] {
            let file = testing::new_file(&volume, name);
            ops.link(file.node(), second, b"n", LinkRules::default()).unwrap();
            ops.rename((root, name), (first, b"n"), RenameMode::Replace, (false, false)).unwrap();
        }
        volume.commit_now().unwrap();
        let settled = |from, to, settled| {
            transact(&volume, OPERATION_BLOCKS, |txn| {
                let _rename = volume.rename_lock.lock();
                let (from, to) = (ops.end((from, b"n")), ops.end((to, b"n")));
                let before = Before { settled, ..Before::default() };
                ops.rename_inside(txn, from, to, RenameMode::Replace, (false, false), &before)
            })
        };
        assert!(matches!(settled(d4, d2, 1), Ok(Renamed::Done { .. })), "of v, over one of f");
        assert!(matches!(settled(d1, d3, 1), Ok(Renamed::SettleFirst { is_reshaping: false })), "of f, over one of v");
        assert!(
            matches!(settled(d1, d3, SETTLE_TRIES), Err(Error::Refused(Errno::BUSY))),
            "however often it has asked"
        );
        volume.commit_now().unwrap();
        assert!(matches!(settled(d1, d3, 1), Ok(Renamed::Done { .. })), "v has its name now");
        volume.commit_now().unwrap();
        let forced = volume.counters.snapshot().into_iter().find(|(name, _)| *name == "soft_forced");
        assert_eq!(forced, Some(("soft_forced", 0)));
    }

    /// A directory took a name while an exchange waited that had given it one. It had the identity of the later name before the exchange showed, and the name that
    /// it lasted by was nobody's.
    #[test]
    fn a_directory_takes_no_second_name_while_an_exchange_waits() {
        let volume = soft_volume();
        let (ops, root) = as_root(&volume);
        for name in [&b"d"[..], b"e"] {
            ops.make(root, name, &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap();
        }
        testing::new_file(&volume, b"a");
        ops.rename((root, b"a"), (root, b"d"), RenameMode::Exchange, (false, false)).unwrap();
        let attempt = || {
            transact(&volume, OPERATION_BLOCKS, |txn| {
                let _rename = volume.rename_lock.lock();
                let (from, to) = (ops.end((root, b"a")), ops.end((root, b"e")));
                ops.rename_inside(txn, from, to, RenameMode::Replace, (false, false), &Before::default())
            })
            .unwrap()
        };
        assert!(matches!(attempt(), Renamed::SettleFirst { is_reshaping: true }));
        volume.commit_now().unwrap();
        assert!(matches!(attempt(), Renamed::Done { .. }));
    }

    /// How often a rename had waited for other renames counted against what it asked for next, and it went on unasked.
    #[test]
    fn a_rename_that_has_waited_for_others_still_asks_what_its_target_keeps() {
        let volume = soft_volume();
        let (ops, root) = as_root(&volume);
        let mkdir = |parent, name: &[u8]| {
            let made = ops.make(parent, name, &NewFile { mode: S_IFDIR | 0o755, ..NewFile::default() }).unwrap();
            Node { ino: made.ino, generation: made.generation }
        };
        mkdir(root, b"source");
        let parent = mkdir(root, b"parent");
        let target = mkdir(parent, b"target");
        mkdir(target, b"moved");
        volume.commit_now().unwrap();
        ops.rename((target, b"moved"), (root, b"moved"), RenameMode::Replace, (false, false)).unwrap();
        let attempt = |before| {
            transact(&volume, OPERATION_BLOCKS, |txn| {
                let _rename = volume.rename_lock.lock();
                let (from, to) = (ops.end((root, b"source")), ops.end((parent, b"target")));
                ops.rename_inside(txn, from, to, RenameMode::Replace, (false, false), &before)
            })
        };
        let has_waited = Before { waited: RESHAPE_TRIES - 1, ..Before::default() };
        assert!(matches!(attempt(has_waited), Ok(Renamed::SettleFirst { is_reshaping: false })));
        // It went on unasked, and what the directory had was lost with it if power failed then. A removal asks the same.
        let has_asked = || Before { settled: SETTLE_TRIES, ..Before::default() };
        assert!(matches!(attempt(has_asked()), Err(Error::Refused(Errno::BUSY))));
        let busy = volume.look().keeps_others(Ino(target.ino), true);
        assert!(matches!(busy, Err(Error::Refused(Errno::BUSY))));
        volume.commit_now().unwrap();
        assert!(matches!(attempt(has_asked()), Ok(Renamed::Done { .. })));
    }
}
