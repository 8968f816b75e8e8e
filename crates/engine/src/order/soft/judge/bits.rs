//! Bits of blocks and inodes that are taken (`bmsafemap`, `newblk`), and what headers of groups and the superblock say is made.
//!
//! Invariants
//!   1. Bits are never undone: a bit that is taken may always show, and one is given back only once nothing that lasts points there (`Freed`).
//!   2. A bit lasts as taken only in a group that the superblock, as it lasts, says is made.
//!   3. The header of a group says that blocks of its table are there, and the superblock that groups are, only once all of these blocks last.

use super::Judge;
use crate::planted::{Bug, planted};
use myriad_format::{AgBlock, BlockKind, FsBlock};

impl Judge<'_> {
    /// Whether a bit lasts as taken. It is, in memory.
    pub(super) fn is_taken(&self, ag: u32, start: u32, index: u32) -> bool {
        if planted(Bug::SoftBitLate) {
            return true;
        }
        if ag >= self.made {
            return false;
        }
        let place = self.geometry.bit_place(index);
        let block = self.geometry.fs_block(myriad_format::AgNo(ag), AgBlock(start + place.block));
        match self.state.shadows.get(&block.0) {
            None => true,
            Some(shadow) => {
                let word = shadow.lasting.word(place.byte / 8 * 8);
                let is_free = |word: u64| word.to_le_bytes()[place.byte % 8] >> place.bit & 1 == 1;
                !shadow.is_new && !word.is_some_and(is_free)
            }
        }
    }

    pub(super) fn is_block_taken(&self, block: FsBlock) -> bool {
        let ag = self.geometry.ag_of(block);
        self.is_taken(ag.0, self.geometry.block_bitmap_start(ag), self.geometry.ag_block_of(block).0)
    }

    /// Whether blocks are new that the header of a group, or the superblock, may say are there: those of the group's table, or of groups.
    pub(super) fn waits_for_new_blocks(&self, block: FsBlock, kind: BlockKind) -> bool {
        match kind {
            BlockKind::Group => self.new_tables.contains(&self.geometry.ag_of(block).0) && !planted(Bug::SoftMark),
            _ => self.has_new_groups,
        }
    }
}
