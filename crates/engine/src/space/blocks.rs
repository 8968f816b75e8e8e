//! The door to the record of a group's free blocks: trees or a bitmap. The group and its inodes take blocks through it.

use super::bitmap::Bitmap;
use super::pool::{Pool, Wanted};
use super::trees::Trees;
use crate::edit::{BlockRead, BlockStore};
use crate::error::{Error, Result};
use myriad_format::group::{FIXED_BLOCKS, GroupHeader};
use myriad_format::{AgBlock, Corrupt, FsBlock};

/// How a group's free blocks are recorded.
pub(super) enum Record {
    Trees(Trees),
    Bitmap(Bitmap),
}

/// The blocks of a group: what is free among them.
pub(crate) struct Blocks {
    pub pool: Pool,
    pub(super) record: Record,
}

impl Blocks {
    /// Makes the record of a group of which nothing is free.
    pub(super) fn create<S: BlockStore>(pool: Pool, store: &mut S) -> Result<Self> {
        let record = if pool.geometry.has_bitmap {
            Record::Bitmap(Bitmap::create(&pool, store)?)
        } else {
            Record::Trees(Trees::create(&pool, store)?)
        };
        Ok(Self { pool, record })
    }

    pub(super) fn load(pool: Pool, head: &GroupHeader) -> std::result::Result<Self, Corrupt> {
        let record = if pool.geometry.has_bitmap {
            Record::Bitmap(Bitmap::load(&pool))
        } else {
            Record::Trees(Trees::load(&pool, head)?)
        };
        Ok(Self { pool, record })
    }

    pub(super) fn save(&self, head: &mut GroupHeader) {
        head.free_blocks.set(self.pool.free_blocks);
        head.free_parts.set(self.pool.free_parts);
        match &self.record {
            Record::Trees(trees) => trees.save(&self.pool, head),
            Record::Bitmap(_) => {}
        }
    }

    /// Free blocks that are held back.
    pub(super) fn reserved(&self) -> u32 {
        match &self.record {
            Record::Trees(trees) => trees.reserve.count as u32,
            Record::Bitmap(_) => 0,
        }
    }

    /// As [`super::AgSpace::allocate`], but the header is not written.
    pub fn allocate<S: BlockStore>(
        &mut self,
        store: &mut S,
        goal: AgBlock,
        min: u32,
        max: u32,
        unreadable: &mut Option<Error>,
    ) -> Result<Option<(AgBlock, u32)>> {
        self.allocate_if(store, goal, min, max, |_, _| true, unreadable)
    }

    /// As [`Self::allocate`], if `is_good` says so of what was chosen.
    pub fn allocate_if<S: BlockStore>(
        &mut self,
        store: &mut S,
        goal: AgBlock,
        min: u32,
        max: u32,
        is_good: impl FnOnce(&mut S, (u32, u32)) -> bool,
        unreadable: &mut Option<Error>,
    ) -> Result<Option<(AgBlock, u32)>> {
        let pool = &mut self.pool;
        assert!(min > 0 && min <= max && goal.0 < pool.block_count);
        let wanted = Wanted { goal: goal.0.max(pool.first_block), min, max };
        let found = match &mut self.record {
            Record::Trees(trees) => trees.allocate(pool, store, wanted, is_good, unreadable)?,
            Record::Bitmap(bitmap) => bitmap.allocate(pool, store, wanted, is_good, unreadable)?,
        };
        Ok(found.map(|(start, length)| (AgBlock(start), length)))
    }

    /// The bitmap of a volume with fragments, which has no other record, and the counts that go with it.
    pub(super) fn fragments(&mut self) -> (&mut Bitmap, &mut Pool) {
        match &mut self.record {
            Record::Bitmap(bitmap) => (bitmap, &mut self.pool),
            Record::Trees(_) => unreachable!("the superblock was checked"),
        }
    }

    /// As [`super::AgSpace::free`], but the header is not written.
    pub fn free<S: BlockStore>(&mut self, store: &mut S, start: AgBlock, length: u32) -> Result<()> {
        let pool = &mut self.pool;
        let end = start.0.checked_add(length);
        if length == 0 || start.0 < pool.first_block || end.is_none_or(|end| end > pool.block_count) {
            return Err(Corrupt::DoubleFree { ag: pool.ag, start: start.0, length }.into());
        }
        match &mut self.record {
            Record::Trees(trees) => trees.free(pool, store, start.0, length),
            Record::Bitmap(bitmap) => bitmap.free(pool, store, start.0, length),
        }
    }

    /// As [`super::AgSpace::read_ahead_of_free`].
    pub(super) fn read_ahead_of_free<S: BlockRead>(&self, store: &mut S, start: AgBlock, length: u32) -> Result<()> {
        match &self.record {
            Record::Trees(trees) => trees.read_ahead_of_free(&self.pool, store, start.0, length),
            Record::Bitmap(bitmap) => bitmap.read_ahead_of_free(&self.pool, store, start.0, length),
        }
    }

    /// Counts anew what a bitmap says is free.
    pub fn recount<S: BlockRead>(&mut self, store: &mut S) -> Result<()> {
        match &mut self.record {
            Record::Trees(_) => Ok(()),
            Record::Bitmap(bitmap) => bitmap.recount(&mut self.pool, store),
        }
    }

    /// Makes sure that the next change finds what it needs to be recorded.
    pub(super) fn prepare<S: BlockStore>(&mut self, store: &mut S) -> Result<()> {
        match &mut self.record {
            Record::Trees(trees) => trees.refill(&mut self.pool, store),
            Record::Bitmap(_) => Ok(()),
        }
    }

    /// Length of the longest extent that the next allocation finds; `enough` may stand for any that is longer.
    pub fn longest<S: BlockStore>(&mut self, store: &mut S, enough: u32) -> Result<u32> {
        self.prepare(store)?;
        match &mut self.record {
            Record::Trees(trees) => trees.longest(&self.pool, store),
            Record::Bitmap(bitmap) => bitmap.longest(&self.pool, store, enough),
        }
    }

    /// As [`super::AgSpace::free_after`].
    pub(super) fn free_after<S: BlockRead>(&mut self, store: &mut S, block: AgBlock) -> Result<Option<(AgBlock, u32)>> {
        let found = match &mut self.record {
            Record::Trees(trees) => trees.free_after(&self.pool, store, block.0)?,
            Record::Bitmap(bitmap) => bitmap.free_after(&self.pool, store, block.0)?,
        };
        Ok(found.map(|(start, length)| (AgBlock(start), length)))
    }

    /// Whether more is held back than the record needs.
    pub(super) fn is_to_be_trimmed(&self) -> bool {
        match &self.record {
            Record::Trees(trees) => trees.is_to_be_trimmed(),
            Record::Bitmap(_) => false,
        }
    }

    /// Lets go of what is held back beyond the need.
    pub(super) fn trim(&mut self) -> Result<()> {
        match &mut self.record {
            Record::Trees(trees) => trees.trim(&mut self.pool),
            Record::Bitmap(_) => Ok(()),
        }
    }

    /// Takes back a node of a tree of the group that the store has forgotten. Where the committed state may use it, and it is none of the
    /// fixed blocks, it must not be used before the next checkpoint.
    pub fn free_node<S: BlockStore>(&mut self, store: &mut S, block: FsBlock) -> Result<()> {
        let at = self.pool.own(block)?;
        match &mut self.record {
            Record::Trees(trees) if at < FIXED_BLOCKS => trees.keep_node(&mut self.pool, store, block),
            // The tree's first block: it stays at its fixed place, unused.
            Record::Bitmap(_) if at < FIXED_BLOCKS => Ok(()),
            _ => {
                self.pool.released.push(block);
                Ok(())
            }
        }
    }
}
