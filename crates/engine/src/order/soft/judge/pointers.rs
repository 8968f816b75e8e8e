//! Pointers: `allocdirect` in an inode, `allocindir` in a block of pointers, whose safe copy (`indirdep`) is its shadow.
//!
//! Invariants
//!   1. A pointer shows only if each block of what it leads to lasts as taken, and what is in that block lasts, unless the pointer says that it is unwritten;
//!      or in a new block that nothing that lasts leads to (`fill`).
//!   2. In a block of pointers a pointer of a directory ends only once the directory's size, as it lasts, does not cover it; that of a file without names
//!      once no name of it lasts.

use super::Judge;
use crate::error::Result;
use crate::order::facts::{self, Fact};
use crate::order::soft::shadow::Shadow;
use crate::planted::{Bug, planted};
use myriad_format::pointers::Pointer;
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{BlockKind, FsBlock, Ino};

impl Judge<'_> {
    pub(super) fn judge_pointers(
        &self,
        owner: Ino,
        is_filled: bool,
        found: &[Fact],
        unit: &mut [u8],
        lasting: Option<&[u8]>,
    ) -> Result<()> {
        let (was, is) = self.inodes(owner)?;
        // What a directory's size covers must be mapped.
        let may_clear =
            (!is.raw().is_dir() || was.raw().size == is.raw().size) && !self.must_stay_whole(owner, is.raw());
        let is_edge_open = self.is_edge_open(&was, &is)?;
        for fact in found {
            let Fact::Pointer { old, new, .. } = *fact else { continue };
            // What a directory's size covers is mapped by what has been given up, and not yet by what takes its place.
            let is_hole = || is.raw().is_dir() && old != 0 && self.is_map_changing(new);
            let is_safe =
                || !is_hole() && if is_filled { self.fills_pointer(owner, new) } else { self.is_pointer_safe(new) };
            let may = !is_edge_open && if new == 0 { may_clear } else { is_safe() };
            if !may {
                facts::undo(unit, lasting, fact);
            }
        }
        Ok(())
    }

    /// Whether what a pointer leads to lasts.
    pub(super) fn is_pointer_safe(&self, word: u64) -> bool {
        let (start, length) = Pointer::run_of(word, &self.geometry);
        (0..length).all(|index| self.is_block_safe(start.0 + u64::from(index), Pointer::is_unwritten(word, index)))
    }

    /// Whether a pointer leads to a block of pointers that is not as it lasts.
    fn is_map_changing(&self, word: u64) -> bool {
        let (start, _) = Pointer::run_of(word, &self.geometry);
        let shadow = self.state.shadows.get(&start.0);
        shadow.is_some_and(|shadow| shadow.kind == BlockKind::Pointers && shadow.has_changed())
    }

    /// Whether one block of what a pointer leads to lasts.
    fn is_block_safe(&self, block: u64, is_unwritten: bool) -> bool {
        let is_written = is_unwritten
            || (!self.data.blocks.contains(&block) || planted(Bug::SoftDataLate))
                && self.state.shadows.get(&block).is_none_or(|shadow| !shadow.is_new || planted(Bug::SoftBlockLate));
        is_written && self.is_block_taken(FsBlock(block))
    }

    /// Whether a block of pointers, as it lasts, leads to a block that is not there any more.
    pub(super) fn leads_to_old(&self, shadow: &Shadow) -> bool {
        if shadow.is_new {
            return false;
        }
        let frame = self.frame(shadow);
        let mut leads = false;
        for number in shadow.lasting.units() {
            let unit = &frame[number * UNIT_SIZE..][..UNIT_SIZE];
            let lasting = shadow.lasting.unit(number, unit);
            facts::between(shadow.kind, Some(&lasting), unit, &mut |fact| {
                leads |= matches!(fact, Fact::Pointer { old, new, .. } if self.gives_up(old, new));
            });
        }
        leads
    }

    /// Whether a pointer led to content that it does not lead to any more.
    fn gives_up(&self, old: u64, new: u64) -> bool {
        let ((start, length), (start_now, length_now)) =
            (Pointer::run_of(old, &self.geometry), Pointer::run_of(new, &self.geometry));
        let is_kept =
            |index| new != 0 && start == start_now && index < length_now && !Pointer::is_unwritten(new, index);
        old != 0 && (0..length).any(|index| !Pointer::is_unwritten(old, index) && !is_kept(index))
    }
}
