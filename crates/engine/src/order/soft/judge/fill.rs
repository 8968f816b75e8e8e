//! New blocks that show at once what is not safe yet: blocks of inode tables behind the mark, up to which the header of their group says that the table is
//! initialised, and the blocks of directories and of pointers that new inodes in them lead to.
//!
//! Example: `mkdir d; create d/f`, with both inodes in a block `t` of the table that was never used, and the name `f` in a new block `b`:
//!
//! ```text
//! 1   bits, data;  t: the inodes d, with its pointer to b, and f;  b: the name f       nobody believes t, so nothing leads to any of it
//! 2   the mark     t and b, as they are there, begin to last in one moment             the header's mark is in one sector
//! 3   the name d
//! ```
//!
//! In the first round all is shown that is safe *if this round arrives whole, and the mark of the group with it*. The mark shows in a round after that one,
//! so it finds all of that there. It is one sector, so all inodes behind it begin together, and so do the names of them in blocks that only they lead to.
//!
//! Why is it safe? Call a group's new blocks of inodes, and the new blocks that they lead to, a *filling*. Nothing that lasts leads to it before the mark
//! does. What leads out of it is one of these:
//!
//! - a pointer to a block whose bit, and content, is of the same round or lasts. A group that the superblock may not have made yet when the mark shows is not led to, unless it is the
//!   same group, which is nothing without the superblock;
//! - a name of an inode in the same filling. Names of others are undone here, and judged in a later round as any name.
//!
//! What the mark uncovers is whole, then: directories that nobody names yet, with names in them whose inodes are there. To everybody else an inode
//! behind the mark does not last until the mark does ([`Judge::is_marked`]): so the name of the topmost of these directories comes after it. Once the round has
//! arrived, changes of these blocks are judged against what is in them, as those of any block.
//!
//! While the round is written, others may free a block that an inode of the filling leads to; the round then leaves it out. Its pointer is in the filling all
//! the same. The next round finds that out behind the closed gate (`super::super::filled`), and takes the filling for not written.
//!
//! Invariants
//!   1. Only rounds of everything fill blocks: then all that changed is in the round.
//!   2. A filling is of one group: nothing in it depends on another mark.

use super::{Judge, Place};
use crate::order::facts;
use crate::order::soft::image::Image;
use crate::order::soft::shadow::Shadow;
use crate::planted::{Bug, planted};
use myriad_format::group::GroupHeader;
use myriad_format::inode::RawInode;
use myriad_format::pointers::Pointer;
use myriad_format::table::INODE_SIZE;
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{AgNo, FsBlock, Ino};

impl Judge<'_> {
    /// Blocks that are filled in this round.
    pub fn filled_blocks(&self) -> impl Iterator<Item = u64> {
        self.filled_blocks.iter().copied()
    }

    /// This round fills new blocks. New blocks of tables are judged before all others.
    pub fn begin_filling(&mut self) {
        self.fills = true;
    }

    /// Notes the mark of a group whose header has changed.
    pub(super) fn note_mark(&mut self, block: u64, shadow: &Shadow) {
        let frame = self.frame(shadow);
        let mark = |unit: &[u8]| GroupHeader::read(unit).inode_blocks.get();
        let lasting = shadow.lasting_unit(0, &frame[..UNIT_SIZE]).map_or(0, |unit| mark(&unit));
        drop(frame);
        self.marks.insert(self.geometry.ag_of(FsBlock(block)).0, lasting);
    }

    /// Whether the block of an inode lasts as initialised. It is, in memory.
    pub(super) fn is_marked(&self, ino: Ino) -> bool {
        let Some((block, _)) = self.geometry.locate(ino) else { return false };
        let ag = self.geometry.ag_of(block);
        let end = |&mark: &u32| self.geometry.table_start(ag) + mark;
        let is_behind = self.marks.get(&ag.0).map(end).is_some_and(|end| self.geometry.ag_block_of(block).0 >= end);
        ag.0 < self.made && (!is_behind || planted(Bug::SoftFillUnmarked))
    }

    fn group_of(&self, ino: Ino) -> Option<AgNo> {
        self.geometry.locate(ino).map(|(block, _)| self.geometry.ag_of(block))
    }

    /// Whether a pointer of an inode in a filling leads to nothing that another mark, or the superblock, has to show first. Everything else is in this round.
    pub(super) fn fills_pointer(&self, owner: Ino, word: u64) -> bool {
        let (start, _) = Pointer::run_of(word, &self.geometry);
        let ag = self.geometry.ag_of(start);
        ag.0 < self.made || self.group_of(owner) == Some(ag)
    }

    /// Whether a block of a directory in a filling may name an inode at once: it begins with the same mark.
    pub(super) fn fills_name(&self, named: Ino, place: &Place) -> bool {
        self.filled_blocks.contains(&place.block.0)
            && [named, place.dir].iter().all(|ino| self.filled.contains(&ino.0))
            && self.group_of(named) == self.group_of(place.dir)
    }

    /// Notes what the image of a new block of a table shows, and the new blocks that this leads to.
    pub fn fill(&mut self, block: u64, image: &Image) {
        self.filled_blocks.insert(block);
        for unit in &image.units {
            let geometry = self.geometry;
            let inos = super::inodes_of(&geometry, FsBlock(block), unit.number);
            let shown = unit.image[UnitHeader::SIZE..].chunks_exact(INODE_SIZE);
            let current = unit.current[UnitHeader::SIZE..].chunks_exact(INODE_SIZE);
            for ((ino, shown), current) in inos.zip(shown).zip(current) {
                self.fill_inode(ino, shown, current);
            }
        }
    }

    /// One that waits for something else, in part, names nothing in this round, and is not named.
    fn fill_inode(&mut self, ino: Ino, shown: &[u8], current: &[u8]) {
        for word in facts::pointers_of(shown).filter(|&word| word != 0) {
            let (start, length) = Pointer::run_of(word, &self.geometry);
            let shadows = self.state.shadows.range(start.0..start.0 + u64::from(length));
            self.filled_blocks.extend(shadows.filter(|(_, shadow)| shadow.is_new).map(|(&block, _)| block));
        }
        if RawInode::read(shown).mode.get() != 0 && shown == current {
            self.filled.insert(ino.0);
        }
    }
}
