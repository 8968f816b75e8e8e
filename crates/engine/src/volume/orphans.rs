//! The list of orphans: inodes of which the next opening has something to free if it comes before we are done ourselves.
//!
//! On disk it is a list of inode numbers, as of a checkpoint (`order/orphan_list.rs`). In memory it also says why each is on it
//! ([`Reason`]), because what may be done about an inode depends on that, and a file may be on it for several reasons at once: unnamed, and in the middle of a
//! flush that has mapped blocks past its size. Giving it a name ends the first, not the second.
//!
//! Invariants
//!   1. While a file is on the list for [`Reason::Ahead`], the blocks past the size that its inode has are the file's data. Only the
//!      flush that put them there, or the next opening, may judge otherwise.
//!   2. An inode that is freed is on the list for no reason: the number may be another file's a moment later.
//!
//! Reasons change with the inode locked exclusively, and inside the gate, so that a checkpoint has the list as of its inodes.

use super::{Share, Volume};
use crate::error::Result;
use crate::locks::{Mutex, Rank};
use crate::order::OrphanList;
use myriad_format::Ino;
use myriad_format::superblock::Superblock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Why an inode is on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    /// It has no name: it lives while somebody has it open, or until all its blocks are freed.
    Nameless = 1,
    /// A truncation that takes several transactions has not freed all that lies past the size. It is under way, or had to stop
    /// because the host had no room.
    Cut = 2,
    /// A flush that takes several transactions has mapped blocks past the size, which comes with the last one.
    Ahead = 4,
    /// It was on the list when the volume was opened: for which of these reasons, the inode has to tell.
    Found = 8,
    /// A directory has lost its last entry and gives up its blocks, in several transactions.
    Emptied = 16,
}

/// The list in memory.
#[derive(Default)]
pub(crate) struct Orphans {
    /// Reasons, as a set of bits, by inode number. None is empty.
    listed: Mutex<{ Rank::Leaf as u8 }, BTreeMap<u64, u8>>,
    /// Those of them that are too damaged to be freed.
    stuck: Mutex<{ Rank::Leaf as u8 }, BTreeSet<u64>>,
    /// Freeing one was refused that nobody has open, for want of frames or of room on the host: whoever has time for it, or lacks the space, tries again.
    has_put_off: AtomicBool,
    /// Blocks of the list that the last checkpoint wrote.
    written_blocks: AtomicUsize,
}

impl Orphans {
    pub fn note(&self, ino: Ino, reason: Reason) {
        *self.listed.lock().entry(ino.0).or_default() |= reason as u8;
    }

    /// This reason holds no longer. Others may.
    pub fn settle(&self, ino: Ino, reason: Reason) {
        let mut listed = self.listed.lock();
        if let Some(reasons) = listed.get_mut(&ino.0) {
            *reasons &= !(reason as u8);
            if *reasons == 0 {
                listed.remove(&ino.0);
            }
        }
    }

    /// The inode is being freed.
    pub fn forget(&self, ino: Ino) {
        let was_listed = self.listed.lock().remove(&ino.0).is_some();
        if was_listed {
            // What lacked frames then may have them now.
            self.stuck.lock().remove(&ino.0);
        }
    }

    pub fn is_listed(&self, ino: Ino) -> bool {
        self.listed.lock().contains_key(&ino.0)
    }

    pub fn has(&self, ino: Ino, reason: Reason) -> bool {
        self.listed.lock().get(&ino.0).is_some_and(|reasons| reasons & reason as u8 != 0)
    }

    /// All that are listed, for whatever reason. Most reasons are those of a file that has a name.
    pub fn numbers(&self) -> BTreeSet<u64> {
        self.listed.lock().keys().copied().collect()
    }

    /// Those that are known to have no name.
    pub fn nameless(&self) -> BTreeSet<u64> {
        let listed = self.listed.lock();
        listed.iter().filter(|&(_, reasons)| reasons & Reason::Nameless as u8 != 0).map(|(&ino, _)| ino).collect()
    }

    /// A checkpoint has the list in so many blocks.
    pub fn note_written(&self, blocks: usize) {
        self.written_blocks.store(blocks, Ordering::Relaxed);
    }

    pub fn note_stuck(&self, ino: Ino) {
        self.stuck.lock().insert(ino.0);
    }

    pub fn note_put_off(&self) {
        self.has_put_off.store(true, Ordering::Relaxed);
    }

    /// Whether freeing one has been put off, for who tries again.
    pub fn take_put_off(&self) -> bool {
        self.has_put_off.load(Ordering::Relaxed) && self.has_put_off.swap(false, Ordering::Relaxed)
    }

    /// Those that can be freed, as far as is known.
    pub fn sound(&self) -> Vec<Ino> {
        self.without_stuck(&self.numbers())
    }

    /// As [`Self::sound`], of those that have no name: what lies past the end of another may be of data that is not flushed yet.
    pub fn sound_nameless(&self) -> Vec<Ino> {
        self.without_stuck(&self.nameless())
    }

    fn without_stuck(&self, numbers: &BTreeSet<u64>) -> Vec<Ino> {
        let stuck = self.stuck.lock();
        numbers.difference(&stuck).copied().map(Ino).collect()
    }
}

impl Volume {
    /// Free blocks that nobody else may take, so that every checkpoint to come finds room for the list of orphans.
    ///
    /// A checkpoint writes the list anew before the old one is free. So there must be room for two lists, the one that is written
    /// included. Each counts with one block more than it takes today. That block is for inodes that come on the list before anybody
    /// looks at the free blocks again: several operations that looked at the same time, and files that are on it during a flush or
    /// a truncation, for which nobody looks.
    pub(super) fn orphan_list_blocks(&self) -> usize {
        if self.soft.is_some() {
            // It writes no list.
            return 0;
        }
        let listed = self.orphans.listed.lock().len();
        let list = OrphanList::blocks_for(listed, self.cache.block_size()) + 1;
        list.max((2 * list).saturating_sub(self.orphans.written_blocks.load(Ordering::Relaxed)))
    }

    /// Whether a file can lose its last name now. If it has to live on, the list of orphans needs room for it. An operation that
    /// takes blocks for itself, as a rename does, need not ask: it was admitted beside what the list needs.
    #[inline]
    pub fn has_room_for_orphan(&self, ino: Ino) -> bool {
        self.has_spare(Share::Last) || self.soft.is_some() || !self.files.may_be_kept(ino)
    }

    /// Reads the list as the last checkpoint wrote it.
    pub fn load_orphans(&self, superblock: &Superblock) -> Result<()> {
        let list = OrphanList::read(&self.look(), superblock)?;
        *self.orphans.listed.lock() = list.numbers().iter().map(|&ino| (ino, Reason::Found as u8)).collect();
        self.orphans.note_written(list.blocks());
        self.checkpointer.lock().orphan_list = list;
        Ok(())
    }
}
