//! Inodes: `inodedep`, and `freefile` for those that end.
//!
//! Invariants
//!   1. An inode begins only if its bit lasts as taken, and its block as one of the table's; or in a new block, behind the mark (`fill`). There it does not last for
//!      anybody else, until the mark does ([`Judge::is_marked`]).
//!   2. It ends only once no name of it lasts, and gives nothing up before.
//!   3. It shows no fewer links than there are names of it in memory, and names that are gone and last ([`Judge::shown_links`]).
//!   4. A directory says that it has a name only once that name lasts, or while it has none that lasts, or with a note (`notes`).

use super::{Inode, Judge, Pending, inodes_of};
use crate::error::Result;
use crate::order::facts::{self, Fact, Part};
use crate::planted::{Bug, planted};
use myriad_format::inode::{RawInode, S_IFLNK};
use myriad_format::table::INODE_SIZE;
use myriad_format::unit::UnitHeader;
use myriad_format::{FsBlock, Ino};

/// One inode of a unit of a table, of which an image is made.
pub(super) struct InodeUnit<'a> {
    pub(super) ino: Ino,
    /// Where it lies in the unit.
    at: usize,
    names: Pending,
    /// The facts of it that do not last.
    found: Vec<&'a Fact>,
    /// The unit as the image shows it.
    unit: &'a mut [u8],
    lasting: Option<&'a [u8]>,
}

impl<'a> InodeUnit<'a> {
    pub(super) fn part(&self, is_wanted: fn(&Part) -> bool) -> Option<&'a Fact> {
        self.found.iter().copied().find(|fact| matches!(fact, Fact::Inode { part, .. } if is_wanted(part)))
    }

    pub(super) fn raw(&self) -> &RawInode {
        RawInode::read(&self.unit[self.at..])
    }

    pub(super) fn raw_mut(&mut self) -> &mut RawInode {
        RawInode::read_mut(&mut self.unit[self.at..])
    }

    /// It as the image shows it.
    pub(super) fn shown(&self) -> Inode {
        self.inode(self.unit)
    }

    /// It as it lasts; `None`: its block is new.
    pub(super) fn lasting(&self) -> Option<Inode> {
        self.lasting.map(|lasting| self.inode(lasting))
    }

    pub(super) fn inode(&self, unit: &[u8]) -> Inode {
        Inode(unit[self.at..self.at + INODE_SIZE].try_into().expect("an inode's bytes"))
    }

    /// The image shows what was before the fact.
    pub(super) fn undo(&mut self, fact: &Fact) {
        facts::undo(self.unit, self.lasting, fact);
    }

    /// Whether a pointer leads elsewhere that leads somewhere as it lasts.
    pub(super) fn replaces_pointer(&self) -> bool {
        self.found.iter().any(|fact| matches!(**fact, Fact::Pointer { old, new, .. } if old != 0 && new != 0))
    }

    pub(super) fn undo_pointers(&mut self) {
        for fact in self.found.iter().filter(|fact| matches!(fact, Fact::Pointer { .. })) {
            facts::undo(self.unit, self.lasting, fact);
        }
    }
}

impl Judge<'_> {
    /// Whether an inode is as it lasts, and so are its names; and the directory that its identity says is reached by what lasts. A name that is gone
    /// may still be there, and a link for it.
    pub fn lasts(&self, ino: Ino) -> Result<bool> {
        let (mut lasting, current) = self.inodes(ino)?;
        let links = lasting.raw().nlink.get().min(current.raw().nlink.get());
        RawInode::read_mut(&mut lasting.0).nlink.set(links);
        let is_same = lasting.0 == current.0 && current.is_used() && self.is_marked(ino);
        let parent = Ino(current.raw().parent.get());
        Ok(is_same && (planted(Bug::SoftFsyncUnreached) || self.names(ino).added == 0 && self.is_anchored(parent)?))
    }

    pub(super) fn judge_inodes(
        &self,
        block: FsBlock,
        number: usize,
        found: &[Fact],
        unit: &mut [u8],
        lasting: Option<&[u8]>,
    ) -> Result<()> {
        let places = [UnitHeader::SIZE, UnitHeader::SIZE + INODE_SIZE];
        for (at, ino) in places.into_iter().zip(inodes_of(&self.geometry, block, number)) {
            let of_it = found
                .iter()
                .filter(|fact| match **fact {
                    Fact::Inode { at: its, .. } => its == at,
                    Fact::Pointer { inode, .. } => inode == Some(at),
                    _ => false,
                })
                .collect();
            self.judge_inode(InodeUnit { ino, at, names: self.names(ino), found: of_it, unit: &mut *unit, lasting })?;
        }
        Ok(())
    }

    fn judge_inode(&self, mut inode: InodeUnit<'_>) -> Result<()> {
        if let Some(died) = inode.part(|part| *part == Part::Died) {
            let is_named = inode.names.removed > 0;
            if is_named {
                inode.undo(died);
            }
            // A bit that damage has freed may have let another inode begin in its place.
            if is_named || inode.part(|part| *part == Part::Born).is_none() {
                return Ok(());
            }
        }
        let is = inode.shown();
        if !is.is_used() {
            return Ok(());
        }
        if let Some(lasting) = inode.lasting
            && self.must_stay_whole(inode.ino, is.raw())
        {
            let shown = self.shown_links(&inode);
            let its = inode.at..inode.at + INODE_SIZE;
            inode.unit[its.clone()].copy_from_slice(&lasting[its]);
            inode.raw_mut().nlink.set(shown);
            return Ok(());
        }
        let is_filling = self.fills && inode.lasting.is_none();
        let is_safe = |word| if is_filling { self.fills_pointer(inode.ino, word) } else { self.is_pointer_safe(word) };
        let is_unsafe = |fact: &&Fact| matches!(**fact, Fact::Pointer { new, .. } if new != 0 && !is_safe(new));
        let unsafe_pointers: Vec<&Fact> = inode.found.iter().copied().filter(is_unsafe).collect();
        if let Some(born) = inode.part(|part| *part == Part::Born)
            && !self.may_begin(&inode, !unsafe_pointers.is_empty())?
        {
            inode.undo(born);
            return Ok(());
        }
        // Attributes may have taken the place of a link's target, which lies in a block now, and stays there.
        let is_target_open = is.raw().file_type() == S_IFLNK && !unsafe_pointers.is_empty();
        let are_attributes_hidden = self.hide_attributes(&mut inode, &is, is_target_open)?;
        // What the inode's own pointers lead to changes together with its size, unless they have to stay.
        let keeps_old_block = are_attributes_hidden
            || self.old_maps.contains(&inode.ino.0)
            || unsafe_pointers.iter().any(|fact| matches!(fact, Fact::Pointer { old, .. } if *old != 0));
        let is_size_hidden = self.hide_size(&mut inode, &is, keeps_old_block)?;
        // Otherwise all its pointers are as they last.
        if !is_size_hidden && !are_attributes_hidden {
            unsafe_pointers.into_iter().for_each(|fact| inode.undo(fact));
        }
        if is_target_open && let Some(moved) = inode.part(|part| *part == Part::Fork) {
            // The attributes have gone again.
            inode.undo_pointers();
            inode.undo(moved);
        }
        self.judge_identity(&mut inode)?;
        self.judge_directory_size(&mut inode)?;
        let shown = self.shown_links(&inode);
        inode.raw_mut().nlink.set(shown);
        Ok(())
    }

    /// Whether a file that has no name any more is to stay as it lasts, because a name of it does. What it has is given up in several transactions
    /// where that is much: a crash in between would leave the name with a part of it, in the place of which a rename has put another file.
    pub(super) fn must_stay_whole(&self, ino: Ino, current: &RawInode) -> bool {
        current.nlink.get() == 0 && self.names(ino).removed > 0 && !planted(Bug::SoftCutEarly)
    }

    /// Whether an inode may begin.
    fn may_begin(&self, inode: &InodeUnit<'_>, has_unsafe_pointers: bool) -> Result<bool> {
        let (place, slot) = self.geometry.locate(inode.ino).expect("an inode of a table");
        let ag = self.geometry.ag_of(place);
        let index = self.geometry.table_index(place, slot).expect("an inode of a table");
        // A link without its target, and a file without its ACL, are no links and files.
        let raw = inode.raw();
        let is_whole = (raw.file_type() != S_IFLNK || !has_unsafe_pointers)
            && (raw.attribute_root().is_none() || self.may_have_attributes(inode.ino, raw)?);
        let is_filling = self.fills && inode.lasting.is_none();
        let is_ready = || self.is_taken(ag.0, self.geometry.inode_bitmap_start(ag), index) && self.is_marked(inode.ino);
        Ok(is_whole && (is_filling || is_ready()))
    }

    fn judge_identity(&self, inode: &mut InodeUnit<'_>) -> Result<()> {
        let Some(identity) = inode.part(|part| *part == Part::Identity) else { return Ok(()) };
        let is_exchanged = self.is_exchanged(|name| name.ino.get() == inode.ino.0);
        let is_reached = is_exchanged || inode.names.added == 0 && self.is_anchored(Ino(inode.raw().parent.get()))?;
        // The name that it lasts by would be a second one.
        let is_to_note =
            !is_exchanged && self.state.pending.is_replaced(inode.ino.0) && !self.is_forced && !planted(Bug::SoftTaken);
        // While no name lasts, there is none that it could be wrong about.
        if inode.names.removed > 0 && (!is_reached || is_to_note) && !planted(Bug::SoftIdentity) {
            inode.undo(identity);
        }
        Ok(())
    }

    /// The links that an inode shows: also those of names and subdirectories that are gone, and last.
    fn shown_links(&self, inode: &InodeUnit<'_>) -> u32 {
        let links = inode.raw().nlink.get();
        let removed = inode.names.removed;
        if planted(Bug::SoftLinksLow) {
            links
        } else if !inode.raw().is_dir() {
            links.saturating_add(removed)
        } else if links > 0 {
            links.saturating_add(self.subdirectories(inode.ino).removed)
        } else if removed > 0 {
            // It goes, and is named as long as its name lasts.
            inode.lasting().map_or(0, |lasting| lasting.raw().nlink.get())
        } else {
            0
        }
    }
}
