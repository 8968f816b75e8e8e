//! Entries: `diradd`, `mkdir` and `dirrem`, in blocks that are `pagedep` and `newdirblk`.
//!
//! Invariants
//!   1. An entry shows only if the inode that it names lasts, with one link more than there are names that may then last; or in a new block, which begins to be
//!      reached together with the inode (`fill`).
//!   2. It shows only in a unit that the size and the pointers of its directory cover, as they last ([`Judge::is_covered`]); and one for whose sake another
//!      name may go only in a directory that is reached by what lasts ([`Judge::is_anchored`]).
//!   3. An entry is gone only if no other name of its inode waits to be added, or the inode goes.
//!   4. Of one directory no two entries of a name last.

use super::{Inode, Judge, Place};
use crate::error::Result;
use crate::order::facts::{self, Fact, Named};
use crate::order::soft::pending::DIRECTORY;
use crate::planted::{Bug, planted};
use myriad_format::Ino;
use myriad_format::pointers::BLOCK;
use myriad_format::table::{DIRECT, POINTERS_OFFSET};
use myriad_format::unit::UNIT_SIZE;
use std::collections::HashSet;

impl Judge<'_> {
    pub(super) fn judge_entries(
        &mut self,
        place: &Place,
        found: &[Fact],
        unit: &mut [u8],
        lasting: Option<&[u8]>,
    ) -> Result<()> {
        for fact in found {
            let Fact::Entry { at, tag, old, new } = *fact else { continue };
            assert!(at.is_some(), "a name that lasts has lost its place: {fact:?}");
            let at = at.map(|at| place.unit * UNIT_SIZE + at);
            let is_exchanged = self.is_exchanged(|name| {
                (name.block.get(), Some(name.at.get() as usize)) == (place.block.0, at)
                    && new.is_some_and(|new| new.ino.0 == name.ino.get())
            });
            if let (false, Some(old), Some(new)) = (is_exchanged, old, new)
                && self.needs_note(old, new)?
            {
                self.has_unnoted = true;
                facts::undo(unit, lasting, fact);
                continue;
            }
            let may_name = is_exchanged
                || match new {
                    // The name would be there twice.
                    Some(_) if old.is_none() && !self.is_forced && self.state.pending.is_gone(place.dir.0, tag) => {
                        false
                    }
                    Some(named) => self.may_name(named, place, old.is_some())?,
                    None => true,
                };
            let may_vanish = is_exchanged
                || match old {
                    Some(named) => self.may_vanish(named, place.dir, tag)?,
                    None => true,
                };
            if !may_name || !may_vanish {
                facts::undo(unit, lasting, fact);
                continue;
            }
            if let Some(named) = new {
                *self.shown_names.entry(named.ino.0).or_default() += 1;
                if named.file_type == DIRECTORY {
                    *self.shown_subdirectories.entry(place.dir.0).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    /// Whether a new name of an inode may show, in a unit of a directory.
    pub(super) fn may_name(&self, named: Named, place: &Place, is_replacing: bool) -> Result<bool> {
        if planted(Bug::SoftEntryEarly) {
            return Ok(true);
        }
        let is_filled = self.fills_name(named.ino, place);
        let both = |ino| -> Result<(Inode, Inode)> {
            let (lasting, current) = self.inodes(ino)?;
            Ok(if is_filled { (current, current) } else { (lasting, current) })
        };
        let (lasting, current) = both(named.ino)?;
        let has_begun = lasting.is_used() && lasting.raw().generation == current.raw().generation;
        let may_be_reached = is_filled || self.is_marked(named.ino) && self.is_covered(place)?;
        if !has_begun || !may_be_reached {
            return Ok(false);
        }
        let names = self.names(named.ino);
        if named.file_type == DIRECTORY {
            let (parent, parent_now) = both(place.dir)?;
            let subdirectories = self.subdirectories(place.dir);
            let more = subdirectories.removed + subdirectories.shown;
            let have = parent_now.raw().nlink.get().saturating_add(more).saturating_sub(subdirectories.added);
            // One with no name at all may only appear where its identity says that it is.
            let is_at_home = names.removed > 0 || lasting.identity() == current.identity();
            let may_move = names.removed == 0 || self.is_anchored(place.dir)?;
            return Ok(is_at_home && may_move && parent.raw().nlink.get() > have);
        }
        let had = current.raw().nlink.get().saturating_add(names.removed).saturating_sub(names.added);
        let have = had.saturating_add(names.shown);
        if had > 0 && !self.is_anchored(place.dir)? {
            // Other names of it may go once this one lasts, so it must be one by which the inode is found.
            return Ok(false);
        }
        let is_whole = !is_replacing
            || planted(Bug::SoftWhole)
            || lasting.0[POINTERS_OFFSET..] == current.0[POINTERS_OFFSET..]
                && lasting.raw().size == current.raw().size
                && !self.open_maps.contains(&named.ino.0)
                && !self.data.inodes.contains(&named.ino.0);
        Ok(is_whole && lasting.raw().nlink.get() > have)
    }

    /// Whether a name of an inode that is gone may be missing.
    fn may_vanish(&self, named: Named, dir: Ino, tag: u32) -> Result<bool> {
        Ok(self.may_go(named, dir, tag)? && (!self.is_moving(named)? || planted(Bug::SoftLastName)))
    }

    /// As [`Self::may_vanish`], given that a directory's identity follows.
    pub fn may_go(&self, named: Named, dir: Ino, tag: u32) -> Result<bool> {
        let (lasting, current) = self.inodes(named.ino)?;
        // Of a directory that goes, and that a rename has left two names, its own goes last: the other one alone would be nobody's.
        let (parent, hash, _) = lasting.identity();
        let is_own = named.file_type == DIRECTORY && parent == dir.0 && hash as u32 == tag;
        let goes = !current.is_used() || current.raw().nlink.get() == 0;
        if goes && is_own && self.names(named.ino).removed > 1 && !self.is_forced {
            return Ok(false);
        }
        // A directory has one name, which its identity says: it is not found by any other, so nothing makes it go first.
        let is_forced = self.is_forced && !current.raw().is_dir();
        if planted(Bug::SoftLastName) || is_forced || goes {
            return Ok(true);
        }
        // How many names last its links do not say: power loss may have left it more.
        Ok(self.names(named.ino).added == 0)
    }

    /// Whether a directory can be reached from the root by what lasts: its name and its identity do, and those of all above it.
    /// What is found holds for all directories on the way, as long as the round is judged.
    pub(super) fn is_anchored(&self, dir: Ino) -> Result<bool> {
        if self.is_forced {
            return Ok(true);
        }
        let mut known = self.anchored.borrow_mut();
        let (mut at, mut way) = (dir, HashSet::new());
        let is_reached = loop {
            if at == self.root() {
                break true;
            }
            if let Some(&is_reached) = known.get(&at.0) {
                break is_reached;
            }
            let (lasting, current) = self.inodes(at)?;
            let is_there = lasting.is_used() && self.is_marked(at);
            let lasts = is_there && lasting.identity() == current.identity() && self.names(at).added == 0;
            // Only damage makes a way come back to itself.
            if !way.insert(at.0) || !lasts {
                break false;
            }
            at = Ino(current.raw().parent.get());
        };
        known.extend(way.into_iter().map(|dir| (dir, is_reached)));
        known.insert(dir.0, is_reached);
        Ok(is_reached)
    }

    /// Whether the size that lasts of a directory covers a unit of it.
    fn is_covered(&self, place: &Place) -> Result<bool> {
        let (lasting, current) = self.inodes(place.dir)?;
        // It may have given up a block and got another one in its place.
        let is_mapped =
            facts::pointers_of(&lasting.0).eq(facts::pointers_of(&current.0)) && !self.open_maps.contains(&place.dir.0);
        if is_mapped && lasting.raw().size == current.raw().size {
            return Ok(lasting.is_used());
        }
        // Only those that its inode points to are looked for; the others come once the directory has stopped growing.
        let found = facts::pointers_of(&lasting.0).take(DIRECT).position(|word| word & BLOCK == place.block.0);
        let per_block = (self.geometry.block_size() / UNIT_SIZE) as u64;
        let end = |file_block: usize| (file_block as u64 * per_block + place.unit as u64 + 1) * UNIT_SIZE as u64;
        Ok(found.is_some_and(|file_block| end(file_block) <= lasting.raw().size.get()))
    }
}
