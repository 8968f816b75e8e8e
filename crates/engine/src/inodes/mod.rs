//! Where the inodes of an allocation group lie (seam "inodes"): in chunks made when they are needed (`chunks`), or in a table of fixed
//! size (`table`).
//!
//! Callers hold the group's lock and write its header afterwards.

pub(crate) mod chunks;
mod heads;
mod table;

use crate::edit::{BlockRead, BlockStore};
use crate::error::Result;
use crate::space::blocks::Blocks;
use crate::space::pool::Pool;
use chunks::Chunks;
use myriad_format::group::GroupHeader;
use myriad_format::{AgBlock, Corrupt, FsBlock};
use std::collections::BTreeSet;
use table::Table;

/// The inodes of a group.
pub(crate) enum Inodes {
    Chunks(Chunks),
    Table(Table),
}

impl Inodes {
    /// Makes what records the inodes of a group that has none.
    pub fn create<S: BlockStore>(pool: &Pool, store: &mut S) -> Result<Self> {
        Ok(if pool.geometry.has_table() {
            Self::Table(Table::create(pool, store)?)
        } else {
            Self::Chunks(Chunks::create(pool, store)?)
        })
    }

    pub fn load(pool: &Pool, head: &GroupHeader) -> std::result::Result<Self, Corrupt> {
        Ok(if pool.geometry.has_table() {
            Self::Table(Table::load(pool, head)?)
        } else {
            Self::Chunks(Chunks::load(pool, head)?)
        })
    }

    /// Writes what the group's header says of them into an image of it.
    pub fn save(&self, pool: &Pool, head: &mut GroupHeader) {
        match self {
            Self::Chunks(chunks) => chunks.save(pool, head),
            Self::Table(table) => table.save(head),
        }
    }

    /// Takes an inode where the last one near there was taken, if that is known and there is another one. Nothing changes of what the
    /// group's header says but how many inodes are used.
    pub fn allocate_hinted<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        near: AgBlock,
    ) -> Result<Option<(AgBlock, u32)>> {
        match self {
            Self::Chunks(chunks) => chunks.allocate_hinted(pool, store, near),
            Self::Table(_) => Ok(None),
        }
    }

    /// Takes an inode, as `AgSpace::allocate_inode`, after [`Self::allocate_hinted`] has found none.
    pub fn allocate<S: BlockStore>(
        &mut self,
        blocks: &mut Blocks,
        store: &mut S,
        near: AgBlock,
        grow: bool,
    ) -> Result<Option<(AgBlock, u32)>> {
        match self {
            Self::Chunks(chunks) => chunks.allocate(blocks, store, near, grow),
            Self::Table(table) => table.allocate(&blocks.pool, store, near),
        }
    }

    /// Takes `count` consecutive slots behind slot `inode` for its body; `None` if there is no room, as in a table, whose inodes have no bodies.
    pub fn allocate_body<S: BlockStore>(
        &mut self,
        blocks: &mut Blocks,
        store: &mut S,
        block: AgBlock,
        inode: u32,
        count: u32,
    ) -> Result<Option<u32>> {
        match self {
            Self::Chunks(chunks) => chunks.allocate_body(blocks, store, block, inode, count),
            Self::Table(_) => Ok(None),
        }
    }

    /// As `AgSpace::read_ahead_of_inode`.
    pub fn read_ahead<S: BlockRead>(
        &self,
        pool: &Pool,
        store: &mut S,
        block: AgBlock,
        slot: u32,
        slots: u32,
    ) -> Result<()> {
        match self {
            Self::Chunks(chunks) => chunks.read_ahead(pool, store, block, slots),
            Self::Table(table) => table.read_ahead(pool, store, block, slot),
        }
    }

    /// Gives back an inode and the `body` (first slot, number of slots) it had.
    #[inline]
    pub fn free<S: BlockStore>(
        &mut self,
        blocks: &mut Blocks,
        store: &mut S,
        block: AgBlock,
        slot: u32,
        body: Option<(u32, u32)>,
    ) -> Result<()> {
        match self {
            Self::Chunks(chunks) => chunks.free(blocks, store, block, slot, body),
            Self::Table(table) => table.free(&blocks.pool, store, block, slot, body),
        }
    }

    pub fn free_body<S: BlockStore>(
        &mut self,
        blocks: &mut Blocks,
        store: &mut S,
        block: AgBlock,
        first: u32,
        count: u32,
    ) -> Result<()> {
        match self {
            Self::Chunks(chunks) => chunks.free_body(blocks, store, block, first, count),
            Self::Table(table) => table.no_body(&blocks.pool, block, first),
        }
    }

    /// Whether chunks may have become empty.
    pub fn has_empty_chunks(&self) -> bool {
        match self {
            Self::Chunks(chunks) => chunks.has_empty_chunks(),
            Self::Table(_) => false,
        }
    }

    /// The first blocks of those, which it forgets.
    pub fn take_empty(&mut self) -> BTreeSet<u32> {
        match self {
            Self::Chunks(chunks) => chunks.take_empty(),
            Self::Table(_) => BTreeSet::new(),
        }
    }

    /// The chunk that begins there may be empty.
    pub fn note_empty(&mut self, start: u32) {
        if let Self::Chunks(chunks) = self {
            chunks.note_empty(start);
        }
    }

    /// Gives up to `max` empty chunks up, as `AgSpace::release_empty_chunks`.
    pub fn release_empty<S: BlockStore>(
        &mut self,
        blocks: &mut Blocks,
        store: &mut S,
        max: usize,
        freed: &mut Vec<(FsBlock, u32)>,
    ) -> Result<()> {
        match self {
            Self::Chunks(chunks) => chunks.release_empty(blocks, store, max, freed),
            Self::Table(_) => Ok(()),
        }
    }

    /// How many are taken, where a bitmap says so.
    pub fn recount<S: BlockRead>(&mut self, pool: &Pool, store: &mut S) -> Result<Option<u32>> {
        match self {
            Self::Chunks(_) => Ok(None),
            Self::Table(table) => table.recount(pool, store).map(Some),
        }
    }

    /// As `AgSpace::holds_inode`.
    pub fn holds<S: BlockRead>(&mut self, pool: &Pool, store: &mut S, block: AgBlock, slot: u32) -> Result<bool> {
        match self {
            Self::Chunks(chunks) => chunks.holds(pool, store, block, slot),
            Self::Table(table) => table.holds(pool, store, block, slot),
        }
    }
}
