//! unlink, rmdir, and what happens to a file when its last name and its last handle are gone.

use super::leftovers::settle_before_moving;
use super::{Ops, touch_dir};
use crate::counters::Count;
use crate::dir::{self, BlockSource, Name};
use crate::error::{Errno, Error, Result};
use crate::file::OpenFile;
use crate::inode;
use crate::map::{self, FILE_END};
use crate::namei::Guarded;
use crate::order::Txn;
use crate::perm;
use crate::placement;
use crate::planted::{Bug, planted};
use crate::types::{Node, Time};
use crate::volume::{Reason, Volume, transact};
use crate::xattr;
use myriad_format::inode::{RawInode, S_IFLNK, S_IFREG};
use myriad_format::{Corrupt, FileBlock, FsBlock, Ino};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::little_endian::{I64, U32, U64};

impl Ops<'_> {
    /// Removes a name of a file that is not a directory.
    pub fn unlink(&self, parent: Node, name: &[u8]) -> Result<()> {
        self.volume.counters.bump(Count::unlinks);
        self.remove_name(parent, name, false, None)
    }

    /// As [`Self::unlink`], if the name still is `file`'s; ESTALE if it is another's.
    pub fn unlink_only(&self, parent: Node, name: &[u8], file: Node) -> Result<()> {
        self.volume.counters.bump(Count::unlinks);
        self.remove_name(parent, name, false, Some(file))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Node, name: &[u8]) -> Result<()> {
        self.volume.counters.bump(Count::rmdirs);
        settle_before_moving(self.volume, [(parent, self.name(name))])?;
        self.remove_name(parent, name, true, None)
    }

    fn remove_name(&self, node: Node, name: &[u8], directory: bool, only: Option<Node>) -> Result<()> {
        let parent = Ino(node.ino);
        let name = self.name(name);
        let volume = self.volume;
        let remove = |is_settled: bool| {
            transact(volume, 0, |txn| {
                let mut dir = RawInode::zeroed();
                let entry = self.lock_entry(txn, node, &mut dir, name)?;
                let ino = entry.hit.ino;
                let mut raw = inode::read(&txn.look, ino)?;
                if volume.is_leftover(ino, &raw, parent, name.hash) {
                    return Err(Errno::NOENT.into());
                }
                if only.is_some_and(|only| only != inode::node(ino, &raw)) {
                    return Err(Errno::STALE.into());
                }
                let victim = Guarded::new(&txn.look, ino, &raw)?;
                perm::may_delete(self.cred, &entry.guarded.subject(), &victim.subject())?;
                match (raw.is_dir(), directory) {
                    (true, false) => return Err(Errno::ISDIR.into()),
                    (false, true) => return Err(Errno::NOTDIR.into()),
                    (true, true) if !dir::is_empty(&txn.look, ino, &raw)? => return Err(Errno::NOTEMPTY.into()),
                    _ => {}
                }
                if directory && txn.look.keeps_others(ino, is_settled)? {
                    return Ok(None);
                }
                if (raw.is_dir() || raw.nlink.get() == 1) && !volume.has_room_for_orphan(ino) {
                    return Err(Errno::NOSPC.into());
                }
                let ending = ending_of(txn, ino, &raw)?;
                dir::remove(txn, parent, &mut dir, name, entry.hit)?;
                let now = volume.now();
                touch_dir(&mut dir, now);
                if directory {
                    dir.nlink = U32::new(dir.nlink.get().saturating_sub(1));
                }
                inode::write(txn, parent, &dir)?;
                self.forget_name(parent, name, ino, &raw);
                let victim = inode::node(ino, &raw);
                let gone = drop_link(txn, (parent, name), ino, &mut raw, ending, now)?;
                Ok(Some((victim, gone, emptied(volume, parent, &dir))))
            })
        };
        let (victim, gone, emptied) = volume.once_settled(|is_settled| volume.removing(|| remove(is_settled)))?;
        let finish = || {
            finish_emptied(volume, emptied)?;
            finish_gone(volume, gone)?;
            if planted(Bug::SyncRemovalForgotten) { Ok(()) } else { volume.before_return() }
        };
        finish().inspect_err(|_| volume.files.tell_changed(victim))
    }
}

/// What is left to do, outside the transaction, for a file that lost its last name.
pub(crate) enum Gone {
    /// It has other names, or is gone already.
    Done,
    /// Somebody has it open.
    Open,
    /// It is an orphan now; its blocks are still to be freed.
    Reclaim(Node),
    /// Dirty data of a file that is gone.
    Discard(Arc<OpenFile>),
}

/// Does what [`Gone`] says. The name is gone whatever comes of that, so it is no error if the file is too damaged to be freed: it
/// stays on the list of orphans. Outside the gate.
pub(crate) fn finish_gone(volume: &Volume, gone: Gone) -> Result<()> {
    match gone {
        Gone::Done | Gone::Open => Ok(()),
        Gone::Reclaim(node) => finish_nameless(volume, node),
        Gone::Discard(file) => {
            crate::file::discard(volume, &file);
            Ok(())
        }
    }
}

/// Frees a file without a name that nobody has open any more. If that is refused for now, it is put off ([`reclaim_put_off`]). Outside the gate.
pub(crate) fn finish_nameless(volume: &Volume, node: Node) -> Result<()> {
    match reclaim(volume, node) {
        Err(Error::Refused(Errno::NOMEM)) => {
            volume.orphans.note_put_off();
            Ok(())
        }
        Err(error @ Error::HostFull(_)) => {
            volume.orphans.note_put_off();
            Err(error)
        }
        reclaimed => pass_stuck(volume, Ino(node.ino), reclaimed),
    }
}

/// Tries once more to free the files without a name of which that was put off; whether there were any. What cannot be freed now either waits for the
/// next try. Outside the gate, without a file's data lock.
pub(crate) fn reclaim_put_off(volume: &Volume) -> bool {
    let has_put_off = volume.orphans.take_put_off();
    if has_put_off && reclaim_each(volume, volume.orphans.sound_nameless(), finish_nameless).is_err() {
        volume.orphans.note_put_off();
    }
    has_put_off
}

/// The directory, if it has lost its last entry and not its blocks, which are many.
#[inline]
pub(crate) fn emptied(volume: &Volume, dir: Ino, raw: &RawInode) -> Option<Node> {
    dir::has_idle_blocks(volume, raw).then(|| inode::node(dir, raw))
}

/// Has a directory that was emptied give up its blocks. The entry is gone whatever comes of that, so it is no error if something
/// is in the way: closing the volume tries again, and the next opening. Outside the gate.
pub(crate) fn finish_emptied(volume: &Volume, emptied: Option<Node>) -> Result<()> {
    match emptied.map_or(Ok(()), |node| give_up(volume, node)) {
        Err(error) if volume.check_running().is_err() => Err(error),
        _ => Ok(()),
    }
}

/// What becomes of an inode that loses a link, if nobody has it open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It has other links.
    Lives,
    /// It is freed with the link.
    Freed,
    /// It becomes an orphan: perhaps more than one transaction should free it, or it is damaged.
    Orphaned,
}

/// How an inode ends when it loses a link: to be asked before the first change, for this reads what freeing it has to read. The inode is
/// locked exclusively.
pub(crate) fn ending_of(txn: &mut Txn<'_>, ino: Ino, raw: &RawInode) -> Result<Ending> {
    let volume = txn.volume();
    if !raw.is_dir() && raw.nlink.get() != 1 {
        return match raw.nlink.get() {
            0 => Err(Corrupt::Inode { ino, field: "nlink", value: 0 }.into()),
            _ => Ok(Ending::Lives),
        };
    }
    let is_small = match raw.is_dir() {
        true if dir::is_large(volume, raw) => Ok(false),
        true => dir::read_ahead_of_clear(&txn.look, ino, raw).map(|()| true),
        false => map::fits_one_txn(txn, raw, ino),
    };
    // A link that stays an orphan, because its slot cannot be given back, keeps its target: without one it is no link.
    let is_link = raw.file_type() == S_IFLNK;
    let is_freed = matches!(is_small, Ok(true))
        && xattr::read_ahead(&txn.look, ino, raw).is_ok()
        && (!is_link || volume.read_ahead_of_inode(txn, ino, raw).is_ok());
    Ok(if is_freed { Ending::Freed } else { Ending::Orphaned })
}

/// Reads what has to be read, besides its map, to free an inode.
fn read_ahead(txn: &mut Txn<'_>, ino: Ino, raw: &RawInode) -> Result<()> {
    xattr::read_ahead(&txn.look, ino, raw)?;
    txn.volume().read_ahead_of_inode(txn, ino, raw)
}

/// Takes one link from an inode (a directory: its only one), whose name `lost` is gone, and frees it if that was the last and nobody has
/// it open. The inode is locked exclusively.
pub(crate) fn drop_link(
    txn: &mut Txn<'_>,
    lost: (Ino, Name<'_>),
    ino: Ino,
    raw: &mut RawInode,
    ending: Ending,
    now: Time,
) -> Result<Gone> {
    let volume = txn.volume();
    raw.nlink = U32::new(if raw.is_dir() { 0 } else { raw.nlink.get() - 1 });
    raw.ctime = I64::new(now);
    if ending == Ending::Lives {
        let (dir, name) = lost;
        if raw.parent.get() == dir.0 && raw.name_hash.get() == name.hash {
            // Whoever remembers the name, and has not locked its directory, believes the identity.
            raw.name_hash = U64::new(!name.hash);
        }
        inode::write(txn, ino, raw)?;
        return Ok(Gone::Done);
    }
    if volume.files.is_kept(ino, raw.generation.get()) {
        if !planted(Bug::OrphanLeaked) {
            volume.orphans.note(ino, Reason::Nameless);
        }
        inode::write(txn, ino, raw)?;
        return Ok(Gone::Open);
    }
    // While its number is its own: whoever is given it next must not find this file under it.
    let dirty = volume.files.take(ino);
    let is_freed = ending == Ending::Freed && {
        free_content(txn, ino, raw)?;
        volume.free_inode(txn, ino, raw)?
    };
    if !is_freed {
        volume.orphans.note(ino, Reason::Nameless);
        inode::write(txn, ino, raw)?;
        keep_dead(volume, dirty);
        return Ok(Gone::Reclaim(inode::node(ino, raw)));
    }
    Ok(match dirty {
        Some(file) => {
            crate::file::mark_dead(&file);
            Gone::Discard(file)
        }
        None => Gone::Done,
    })
}

/// From here on nobody flushes what a file has in memory, to blocks that are going; it is discarded with the inode, which
/// is locked exclusively.
fn keep_dead(volume: &Volume, file: Option<Arc<OpenFile>>) {
    if let Some(file) = file {
        crate::file::mark_dead(&file);
        volume.files.keep_dead(file);
    }
}

/// Frees what an inode has whose extents fit one transaction.
fn free_content(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode) -> Result<()> {
    if raw.is_dir() {
        dir::clear(txn, ino, raw)?;
    } else {
        free_all(txn, ino, raw)?;
    }
    xattr::free(txn, ino, raw)?;
    // It may be on the list for a flush that was going on.
    txn.volume().orphans.forget(ino);
    Ok(())
}

/// Frees up to `max` extents from the front. True when none is left.
fn free_extents(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode, max: usize) -> Result<bool> {
    if !map::is_mapped(raw) {
        return Ok(true);
    }
    free_range(txn, ino, raw, FileBlock(0), max).map(|left| left.is_none())
}

/// Unmaps and frees all that a file has, which is so little that one transaction can do it.
pub(crate) fn free_all(txn: &mut Txn<'_>, ino: Ino, raw: &mut RawInode) -> Result<()> {
    // What cannot be read ends one call, and is the error of the next.
    while !free_extents(txn, ino, raw, usize::MAX)? {}
    Ok(())
}

/// Unmaps and frees what lies at and behind `from`, up to `max` extents; where to go on, if there is more. As with [`map::remove`], what
/// cannot be read is an error only where nothing was freed before.
pub(crate) fn free_range(
    txn: &mut Txn<'_>,
    ino: Ino,
    raw: &mut RawInode,
    from: FileBlock,
    max: usize,
) -> Result<Option<FileBlock>> {
    free_mapped(txn, ino, raw, |txn, source, raw, freed| {
        map::remove(txn, source, raw, ino, from..FILE_END, max.min(1 << 20), freed)
    })
}

/// As [`free_range`], of what a flush had written when the power went: blocks that were only allocated behind a file's end stay, for a sync may have answered
/// for them. Of the parts of a block with fragments none stays alone.
pub(crate) fn free_written(
    txn: &mut Txn<'_>,
    ino: Ino,
    raw: &mut RawInode,
    from: FileBlock,
    max: usize,
) -> Result<Option<FileBlock>> {
    if txn.volume().geometry.fragments() > 1 {
        return free_range(txn, ino, raw, from, max);
    }
    free_mapped(txn, ino, raw, |txn, source, raw, freed| map::remove_written(txn, source, raw, ino, from, max, freed))
}

/// Frees the blocks that `remove` unmaps.
fn free_mapped<'t, R>(
    txn: &mut Txn<'t>,
    ino: Ino,
    raw: &mut RawInode,
    remove: impl FnOnce(&mut Txn<'t>, &mut BlockSource, &mut RawInode, &mut Vec<(FsBlock, u32)>) -> Result<R>,
) -> Result<R> {
    let mut source = BlockSource::new(placement::beside(txn.volume(), ino));
    let mut freed = Vec::new();
    let left = remove(txn, &mut source, raw, &mut freed)?;
    source.settle(raw);
    for (start, length) in freed {
        txn.block_free(start, length);
    }
    Ok(left)
}

/// Frees an orphan that nobody has open, in as many transactions as it takes. Nothing to do if somebody else has done
/// it; the number may be another orphan's by then. Outside the gate.
///
/// A file that has a name is on the list because a truncation or a flush of it takes several transactions. Whoever does that
/// ends it; what a flush has mapped past the size is data that a sync may have answered for. So of such a file something is
/// freed only if an earlier opening of the volume has left it, or a truncation that is not under way: nobody has the file
/// open.
pub(crate) fn reclaim(volume: &Volume, node: Node) -> Result<()> {
    let ino = Ino(node.ino);
    // How far what lies behind the end of a file with a name has been looked at.
    let mut seen = FileBlock(0);
    loop {
        let mut dead = None;
        let done = transact(volume, 0, |txn| {
            let _lock = volume.lock_exclusive(ino);
            if !volume.orphans.is_listed(ino) || volume.files.is_open(ino) {
                return Ok(true);
            }
            let mut raw = match inode::read_node(&txn.look, node) {
                Err(Error::Refused(Errno::STALE)) => return Ok(true),
                raw => raw?,
            };
            if raw.nlink.get() > 0 && raw.is_dir() {
                // It was emptied, and whoever did that, or the next opening, has it give up its blocks.
                return Ok(true);
            }
            if raw.nlink.get() > 0 {
                let has = |reason| volume.orphans.has(ino, reason);
                // Dirty data may have its blocks past the size that the inode has. Nobody makes any of a file that is not open.
                let is_ahead = volume.files.find(ino).is_some_and(|file| file.ahead.load(Ordering::Acquire));
                let is_left = (has(Reason::Found) || has(Reason::Cut)) && !has(Reason::Ahead) && !is_ahead;
                if !is_left && !planted(Bug::AheadReclaimed) {
                    return Ok(true);
                }
                if raw.file_type() != S_IFREG {
                    return Err(Corrupt::Inode { ino, field: "mode of an orphan", value: raw.mode.get().into() }.into());
                }
                let end = FileBlock(raw.size.get().div_ceil(volume.geometry.block_size() as u64));
                let max = map::runs_per_txn(&volume.geometry);
                let left = match has(Reason::Cut) {
                    true => free_range(txn, ino, &mut raw, end, max)?,
                    false => free_written(txn, ino, &mut raw, end.max(seen), max)?,
                };
                inode::write(txn, ino, &raw)?;
                if left.is_none() {
                    volume.orphans.settle(ino, Reason::Found);
                    volume.orphans.settle(ino, Reason::Cut);
                }
                seen = left.unwrap_or(seen);
                return Ok(left.is_none());
            }
            // While its number is its own: whoever is given it next must not find this file under it. A transaction may run twice.
            let take = || volume.files.take(ino).inspect(|file| crate::file::mark_dead(file));
            dead = dead.take().or_else(take).or_else(|| volume.files.take_dead(ino));
            read_ahead(txn, ino, &raw)?;
            let is_small = if raw.is_dir() {
                txn.ask_log(volume.limits.part_log_bytes_max);
                dir::give_up_part(txn, ino, &mut raw)?
            } else {
                free_extents(txn, ino, &mut raw, map::runs_per_txn(&volume.geometry))?
            };
            if !is_small {
                inode::write(txn, ino, &raw)?;
                return Ok(false);
            }
            free_content(txn, ino, &mut raw)?;
            let is_freed = volume.free_inode(txn, ino, &raw)?;
            if !is_freed {
                // The next try finds that before it changes anything.
                volume.orphans.note(ino, Reason::Nameless);
                inode::write(txn, ino, &raw)?;
            }
            Ok(is_freed)
        });
        // Whatever came of that, nobody reads or flushes what it has in memory: frames that the rest may need, and promises.
        if let Some(file) = dead {
            crate::file::discard(volume, &file);
        }
        if done? {
            break;
        }
    }
    volume.counters.bump(Count::orphans_reclaimed);
    Ok(())
}

/// Has an emptied directory that has a name give up its blocks, in as many transactions as it takes, or until somebody makes an
/// entry in it or removes it. Outside the gate.
fn give_up(volume: &Volume, node: Node) -> Result<()> {
    let ino = Ino(node.ino);
    // Once it has entries again: how far what it kept has been put in order.
    let mut listed = 0;
    // Who has taken blocks off the list of those with room puts them back himself: another one, who also gives up and may settle it, knows
    // only of his own.
    let mut has_begun = false;
    loop {
        let done = transact(volume, 0, |txn| {
            let _lock = volume.lock_exclusive(ino);
            if !has_begun && !volume.orphans.is_listed(ino) {
                return Ok(true);
            }
            let mut raw = match inode::read_node(&txn.look, node) {
                Err(Error::Refused(Errno::STALE)) => return Ok(true),
                raw => raw?,
            };
            if raw.nlink.get() == 0 || !raw.is_dir() {
                return Ok(true);
            }
            txn.ask_log(volume.limits.part_log_bytes_max);
            has_begun = true;
            let done = dir::give_up_emptied(txn, ino, &mut raw, &mut listed)?;
            inode::write(txn, ino, &raw)?;
            if done {
                volume.orphans.settle(ino, Reason::Emptied);
                volume.orphans.settle(ino, Reason::Found);
            }
            Ok(done)
        })?;
        if done {
            return Ok(());
        }
    }
}

/// Frees all orphans that nobody has open: at opening, what a crash left; at closing, what could not be freed before. One
/// that is damaged, or for which there are no frames, stays on the list: no reason to keep everybody from the volume. Of a damaged one
/// that is large, what lies before the damage is freed; the transaction that meets it first has changed nothing.
pub(crate) fn reclaim_orphans(volume: &Volume) -> Result<()> {
    let numbers = volume.orphans.numbers().into_iter().map(Ino);
    reclaim_each(volume, numbers, |volume, node| pass_stuck(volume, Ino(node.ino), reclaim(volume, node)))
}

fn reclaim_each(
    volume: &Volume,
    numbers: impl IntoIterator<Item = Ino>,
    finish: impl Fn(&Volume, Node) -> Result<()>,
) -> Result<()> {
    for ino in numbers {
        let found = || -> Result<Option<(Node, bool)>> {
            let look = volume.look();
            let _lock = volume.lock_shared(ino);
            if !volume.orphans.is_listed(ino) {
                return Ok(None);
            }
            let raw = inode::read(&look, ino)?;
            Ok(Some((inode::node(ino, &raw), raw.is_dir() && raw.nlink.get() > 0)))
        };
        match found() {
            Ok(None) => {}
            Ok(Some((node, true))) => pass_stuck(volume, ino, give_up(volume, node))?,
            Ok(Some((node, false))) => finish(volume, node)?,
            Err(error) => pass_stuck(volume, ino, Err(error))?,
        }
    }
    Ok(())
}

/// What came of freeing an orphan. One that is damaged, or for which there are no frames, is noted as such: nobody waits for it.
fn pass_stuck(volume: &Volume, ino: Ino, reclaimed: Result<()>) -> Result<()> {
    match reclaimed {
        Err(Error::Corrupt(_) | Error::Io(_) | Error::Refused(Errno::NOMEM)) if volume.check_running().is_ok() => {
            volume.orphans.note_stuck(ino);
            Ok(())
        }
        other => other,
    }
}
