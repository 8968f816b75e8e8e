//! Whether a directory lies below another one, for a rename that gives a directory another parent: none may go below itself.
//!
//! The parents that inodes say lead from a directory to the root, and two renames at once could each move a directory below the other's. So renames between
//! directories hold the rename lock, and while one does, the tree keeps its shape. Inside its transaction a rename walks up [`STEPS_INSIDE`] directories, which
//! is enough for nearly every tree. It must not walk further: each step may wait for the device while checkpoints and all other renames wait, and it may take
//! a frame, of which those inside the gate may need the last ones for changes that they have begun.
//!
//! If the way is longer, the rename ends its transaction without a change. It walks outside, a few steps at a time, and notes what the count of moves was
//! before it began ([`Ancestry`]). Then it begins again. If the count is still the same under the rename lock, no directory has got another parent, and what it
//! has found holds. That is so though it held no lock meanwhile: the directory at the way's beginning has not been removed, as its node says, so none above it
//! was empty. If others move directories all the time, the rename takes a turn for its second walk (`Volume::moves_turn`), for which they wait outside.

use super::Ops;
use super::rename::Before;
use crate::error::{Errno, Error, Result};
use crate::inode;
use crate::order::Look;
use crate::types::Node;
use crate::way_up::{STEPS_AT_A_TIME, WayUp};
use myriad_format::Ino;
use std::sync::atomic::Ordering;

/// Directories that one rename passes inside its transaction, with both ends together. A rename takes fewer than 40 other frames.
pub(super) const STEPS_INSIDE: usize = 24;

/// Whether `directory` is `ancestor` or lies below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub directory: Node,
    pub ancestor: Ino,
}

/// What a walk outside has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ancestry {
    pub question: Question,
    is_below: bool,
    /// `Volume::directory_moves` before the walk.
    moves: u64,
}

impl Ops<'_> {
    /// Answers inside the transaction of a rename, under the rename lock; `None`: the way is longer than `steps`, which are counted, and nothing is known of it.
    pub(super) fn is_below(
        &self,
        look: &Look<'_>,
        question: Question,
        before: &Before,
        steps: &mut usize,
    ) -> Result<Option<bool>> {
        let moves = self.volume.directory_moves.load(Ordering::Acquire);
        let is_it = |known: &&Ancestry| known.question == question && known.moves == moves;
        if let Some(known) = before.ancestries.iter().flatten().find(is_it) {
            return Ok(Some(known.is_below));
        }
        let mut way = WayUp::from(Ino(question.directory.ino));
        loop {
            if way.at() == question.ancestor {
                return Ok(Some(true));
            }
            if way.at() == self.volume.root {
                return Ok(Some(false));
            }
            if *steps == 0 {
                return Ok(None);
            }
            *steps -= 1;
            way.step(look)?;
        }
    }

    /// Finds the answer outside, as of the count of moves that it says.
    pub(super) fn find_ancestry(&self, question: Question) -> Result<Ancestry> {
        let moves = self.volume.directory_moves.load(Ordering::Acquire);
        let is_below = match self.walk_up(question) {
            Ok(is_below) => is_below,
            // Part of the way may have been as it was before a move, and part as after it. As of these moves it means nothing, and is asked again.
            Err(Error::Corrupt(_)) if self.moves_now() != moves => false,
            Err(error) => return Err(error),
        };
        Ok(Ancestry { question, is_below, moves })
    }

    fn walk_up(&self, Question { directory, ancestor }: Question) -> Result<bool> {
        let mut way = WayUp::from(Ino(directory.ino));
        loop {
            let look = self.volume.look();
            let _lock = self.volume.lock_shared(Ino(directory.ino));
            if inode::read_node(&look, directory)?.nlink.get() == 0 {
                return Err(Errno::NOENT.into());
            }
            for _ in 0..STEPS_AT_A_TIME {
                if way.at() == ancestor {
                    return Ok(true);
                }
                if way.at() == self.volume.root {
                    return Ok(false);
                }
                way.step(&look)?;
            }
        }
    }

    /// The count of moves, once all that have begun have ended.
    fn moves_now(&self) -> u64 {
        let _look = self.volume.look();
        let _rename = self.volume.rename_lock.lock();
        self.volume.directory_moves.load(Ordering::Acquire)
    }
}
