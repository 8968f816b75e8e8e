//! Inodes in chunks (`inodes=dynamic`; Sweeney et al. 1996, 5.4): chunks of inode blocks in the group's inode tree, slots in the blocks' masks.
//!
//! A chunk's record changes only when one of its blocks becomes full or stops to be, is first used or becomes empty. The
//! slots in between are taken and given in the block alone, found through a hint per region: the common allocation
//! touches no tree.
//!
//! Slots are taken lowest first, blocks of a chunk in order: inodes made one after the other lie in one order on disk.

use crate::btree::{Tree, key_of};
use crate::edit::{BlockEdit, BlockRead, BlockStore, NewBlock, NodeSource};
use crate::error::{Error, Result, refuse};
use crate::inode::GONE;
use crate::inodes::heads;
use crate::space::blocks::Blocks;
use crate::space::pool::Pool;
use myriad_format::btree::{INODE_CHUNKS, LEVEL_MAX};
use myriad_format::group::{FIRST_INODE_TREE_BLOCK, GroupHeader, HEADER_BLOCK};
use myriad_format::inode::{ChunkRecord, InodeBlockHeader};
use myriad_format::{AgBlock, BlockKind, Corrupt, FsBlock, Ino, header};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::ops::ControlFlow;

/// Slot of a block's header.
const HEADER_SLOT: u32 = 0;

/// Chunks looked at on each side of the goal before a new one is made.
const NEAR_STEPS: usize = 10;

/// Bit i: slot i of an inode block.
pub(crate) type Slots = [u64; 8];

/// What is remembered in memory to find slots and empty chunks without a search. All of it may be lost.
struct Hints {
    /// For each region an inode block that had a free slot when last seen.
    blocks: Vec<Option<AgBlock>>,
    /// First blocks of chunks that may have no used slot.
    empty: BTreeSet<u32>,
    /// A search of the whole tree found no free slot, and none has been freed since.
    exhausted: bool,
}

/// Which way a search goes through the chunks of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Towards {
    Start,
    End,
}

/// Nodes of the inode tree are common blocks of the group. Freed ones wait for the checkpoint outside, so that no new
/// node is ever in a block that the committed state uses.
struct Nodes<'a> {
    blocks: &'a mut Blocks,
    goal: AgBlock,
}

impl<S: BlockStore> NodeSource<S> for Nodes<'_> {
    fn allocate(&mut self, store: &mut S) -> Result<NewBlock> {
        let mut unreadable = None;
        match self.blocks.allocate(store, self.goal, 1, 1, &mut unreadable)? {
            Some((block, _)) => Ok(NewBlock::free(self.blocks.pool.geometry.fs_block(self.blocks.pool.ag, block))),
            None => unreadable.map_or_else(|| refuse(Errno::NOSPC), Err),
        }
    }

    fn free(&mut self, store: &mut S, block: FsBlock) -> Result<()> {
        self.blocks.free_node(store, block)
    }
}

/// The chunks of a group.
pub(crate) struct Chunks {
    pub tree: Tree,
    /// Blocks in chunks.
    pub blocks: u32,
    hints: Hints,
}

impl Chunks {
    /// Makes the tree of a group without chunks.
    pub fn create<S: BlockStore>(pool: &Pool, store: &mut S) -> Result<Self> {
        let root = pool.geometry.fs_block(pool.ag, AgBlock(FIRST_INODE_TREE_BLOCK));
        Ok(Self::of(pool, Tree::create_at(INODE_CHUNKS, u64::from(pool.ag.0), store, NewBlock::free(root))?, 0))
    }

    /// Those that a group's header names.
    pub fn load(pool: &Pool, head: &GroupHeader) -> std::result::Result<Self, Corrupt> {
        let check = |field, value: u32, sound: bool| {
            if sound { Ok(value) } else { Err(Corrupt::Group { ag: pool.ag, field, value: u64::from(value) }) }
        };
        let (root, level) = (head.inode_root.get(), u16::from(head.inode_level));
        check("inode_root", root, root > HEADER_BLOCK && root < pool.block_count)?;
        check("level", u32::from(level), level <= LEVEL_MAX)?;
        let blocks = head.inode_blocks.get();
        check("inode_blocks", blocks, blocks <= pool.block_count)?;
        let root = pool.geometry.fs_block(pool.ag, AgBlock(root));
        Ok(Self::of(pool, Tree { kind: INODE_CHUNKS, root, level, owner: u64::from(pool.ag.0) }, blocks))
    }

    fn of(pool: &Pool, tree: Tree, blocks: u32) -> Self {
        let regions = pool.block_count.div_ceil(pool.geometry.region_blocks()) as usize;
        Self { tree, blocks, hints: Hints { blocks: vec![None; regions], empty: BTreeSet::new(), exhausted: false } }
    }

    /// Writes them into an image of the group's header.
    pub fn save(&self, pool: &Pool, head: &mut GroupHeader) {
        head.inode_root.set(pool.geometry.ag_block_of(self.tree.root).0);
        head.inode_level = self.tree.level as u8;
        head.inode_blocks.set(self.blocks);
    }

    /// Takes a free slot of the block that had one in the region of `near` when last seen.
    pub fn allocate_hinted<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        near: AgBlock,
    ) -> Result<Option<(AgBlock, u32)>> {
        let Some(hint) = self.hints.blocks[pool.region_index(near)] else { return Ok(None) };
        Ok(self.take_slots(pool, store, hint, HEADER_SLOT, 1)?.map(|slot| (hint, slot)))
    }

    /// Takes a free inode slot, after [`Self::allocate_hinted`] has found none: in the region of `near` if there is one close to `near`;
    /// else, if `grow`, in a new chunk near it; else anywhere in the group.
    pub fn allocate<S: BlockStore>(
        &mut self,
        blocks: &mut Blocks,
        store: &mut S,
        near: AgBlock,
        grow: bool,
    ) -> Result<Option<(AgBlock, u32)>> {
        let region = blocks.pool.region_index(near);
        let hint = self.hints.blocks[region].take();
        // The chunk filled last goes on, wherever it lies: among many full ones the search near `near` would miss it.
        let mut chunk = match hint {
            Some(hint) => self.chunk_of(&blocks.pool, store, hint)?.filter(has_room),
            None => None,
        };
        if chunk.is_none() {
            chunk = self.chunk_near(&blocks.pool, store, near)?;
        }
        if chunk.is_none() && grow {
            chunk = self.add_chunk(blocks, store, near)?;
        }
        if chunk.is_none() && !self.hints.exhausted {
            chunk = self.find_chunk(&blocks.pool, store, 0, Towards::End, usize::MAX, has_room)?;
            self.hints.exhausted = chunk.is_none();
        }
        let Some(chunk) = chunk else { return Ok(None) };
        let (block, slot) = self.allocate_in(&blocks.pool, store, chunk)?;
        self.hints.blocks[region] = Some(block);
        Ok(Some((block, slot)))
    }

    /// Reads the record of the chunk that a block belongs to, if that changes when so many slots of the block are given back: where the
    /// block is full, or has no other inodes.
    pub fn read_ahead<S: BlockRead>(&self, pool: &Pool, store: &mut S, block: AgBlock, slots: u32) -> Result<()> {
        let at = pool.geometry.fs_block(pool.ag, block);
        let free = store.read(at, BlockKind::Inode, |bytes| InodeBlockHeader::read(bytes).free_count.get())?;
        let is_marked = free == 0 || u32::from(free) + slots >= pool.geometry.slots_per_block() - 1;
        if is_marked { self.chunk_of(pool, store, block).map(drop) } else { Ok(()) }
    }

    /// Takes `count` consecutive free slots of an inode block for the body of an inode of the block; the first of them. They lie behind
    /// the inode's slot (`heads` says why).
    pub fn allocate_body<S: BlockStore>(
        &mut self,
        blocks: &Blocks,
        store: &mut S,
        block: AgBlock,
        inode: u32,
        count: u32,
    ) -> Result<Option<u32>> {
        assert!(count > 0 && count < blocks.pool.geometry.slots_per_block());
        let first = self.take_slots(&blocks.pool, store, block, inode, count)?;
        assert!(first.is_none_or(|first| first > inode), "a body before its inode");
        Ok(first)
    }

    /// Empties an inode's slot, and gives it back with the `body` (first slot, number of slots) that the inode had.
    pub fn free<S: BlockStore>(
        &mut self,
        blocks: &mut Blocks,
        store: &mut S,
        block: AgBlock,
        slot: u32,
        body: Option<(u32, u32)>,
    ) -> Result<()> {
        let mut runs = [(slot, 1), (0, 0)];
        Self::check_run(&blocks.pool, block, slot, 1)?;
        if body.is_none() && flip_slot(&blocks.pool, store, block, Flip::Give(slot))?.is_some() {
            self.note_given(&blocks.pool, block);
            return Ok(());
        }
        if let Some((first, count)) = body {
            Self::check_run(&blocks.pool, block, first, count)?;
            runs[1] = (first, count);
        }
        self.give_slots(&blocks.pool, store, block, &runs, Some(slot))
    }

    /// Gives back the slots of a body.
    pub fn free_body<S: BlockStore>(
        &mut self,
        blocks: &Blocks,
        store: &mut S,
        block: AgBlock,
        first: u32,
        count: u32,
    ) -> Result<()> {
        Self::check_run(&blocks.pool, block, first, count)?;
        self.give_slots(&blocks.pool, store, block, &[(first, count)], None)
    }

    /// Whether chunks may have become empty.
    pub fn has_empty_chunks(&self) -> bool {
        !self.hints.empty.is_empty()
    }

    /// Forgets them, and says where they begin.
    pub fn take_empty(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.hints.empty)
    }

    /// The chunk that begins there may have become empty.
    pub fn note_empty(&mut self, start: u32) {
        self.hints.empty.insert(start);
    }

    /// Removes up to `max` chunks that have no used slot; their blocks are added to `freed` and are the caller's to
    /// free once that is durable.
    pub fn release_empty<S: BlockStore>(
        &mut self,
        blocks: &mut Blocks,
        store: &mut S,
        max: usize,
        freed: &mut Vec<(FsBlock, u32)>,
    ) -> Result<()> {
        let mut left = max;
        while left > 0
            && let Some(start) = self.hints.empty.pop_first()
        {
            let Some(record) = self.tree.get(store, u64::from(start))? else { continue };
            let chunk = self.decode_chunk(&blocks.pool, &record)?;
            if chunk.used_mask.get() != 0 {
                continue;
            }
            let count = u32::from(chunk.count);
            let Some(inode_blocks) = self.blocks.checked_sub(count) else {
                return Err(blocks.pool.corrupt("inode_blocks", self.blocks));
            };
            let goal = blocks.pool.geometry.ag_block_of(self.tree.root);
            self.tree.remove(store, &mut Nodes { blocks, goal }, u64::from(start))?;
            self.blocks = inode_blocks;
            for hint in &mut self.hints.blocks {
                *hint = hint.filter(|hint| !(start..start + count).contains(&hint.0));
            }
            for block in start..start + u32::from(chunk.initialised) {
                store.forget(blocks.pool.geometry.fs_block(blocks.pool.ag, AgBlock(block)));
            }
            freed.push((blocks.pool.geometry.fs_block(blocks.pool.ag, AgBlock(start)), count));
            left -= 1;
        }
        Ok(())
    }

    /// Visits every chunk of the group.
    #[cfg(test)]
    pub fn for_each_chunk<S: BlockRead>(
        &self,
        pool: &Pool,
        store: &mut S,
        mut f: impl FnMut(&ChunkRecord),
    ) -> Result<()> {
        self.find_chunk(pool, store, 0, Towards::End, usize::MAX, |chunk| {
            f(chunk);
            false
        })?;
        Ok(())
    }

    /// As `AgSpace::holds_inode`.
    pub fn holds<S: BlockRead>(&self, pool: &Pool, store: &mut S, block: AgBlock, slot: u32) -> Result<bool> {
        if self.chunk_of(pool, store, block)?.is_none() {
            return Ok(false);
        }
        let at = pool.geometry.fs_block(pool.ag, block);
        let bodies_follow = pool.geometry.bodies_follow;
        store.read(at, BlockKind::Inode, |bytes| heads::Block { bytes, bodies_follow }.is_inode(slot))
    }

    /// The nearest chunk of the region of `near` with room, among a few on either side.
    fn chunk_near<S: BlockRead>(&self, pool: &Pool, store: &mut S, near: AgBlock) -> Result<Option<ChunkRecord>> {
        let region = pool.region_index(near);
        let here = |chunk: &ChunkRecord| {
            (chunk.start.get() >> pool.geometry.region_bits) as usize == region && has_room(chunk)
        };
        let left = self.find_chunk(pool, store, near.0, Towards::Start, NEAR_STEPS, here)?;
        let right = self.find_chunk(pool, store, near.0 + 1, Towards::End, NEAR_STEPS, here)?;
        Ok([left, right].into_iter().flatten().min_by_key(|chunk| chunk.start.get().abs_diff(u64::from(near.0))))
    }

    /// The first chunk that `fits` among at most `steps` from `from` on, towards one of the group's ends.
    fn find_chunk<S: BlockRead>(
        &self,
        pool: &Pool,
        store: &mut S,
        from: u32,
        towards: Towards,
        mut steps: usize,
        mut fits: impl FnMut(&ChunkRecord) -> bool,
    ) -> Result<Option<ChunkRecord>> {
        let mut found = Ok(None);
        let look = |record: &[u8]| {
            match self.decode_chunk(pool, record) {
                Ok(chunk) if fits(&chunk) => found = Ok(Some(chunk)),
                Ok(_) => {}
                Err(error) => found = Err(error),
            }
            steps -= 1;
            if steps == 0 || !matches!(found, Ok(None)) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match towards {
            Towards::Start => self.tree.for_each_back_from(store, u64::from(from), look)?,
            Towards::End => self.tree.for_each_from(store, u64::from(from), look)?,
        }
        Ok(found?)
    }

    /// Makes a chunk near `near`; `None` for lack of space.
    fn add_chunk<S: BlockStore>(
        &mut self,
        blocks: &mut Blocks,
        store: &mut S,
        near: AgBlock,
    ) -> Result<Option<ChunkRecord>> {
        let want = blocks.pool.geometry.chunk_blocks;
        let want = want.min(blocks.longest(store, want)?);
        if want == 0 {
            return Ok(None);
        }
        let mut unreadable = None;
        let Some((start, count)) = blocks.allocate(store, near, want, want, &mut unreadable)? else {
            return unreadable.map_or(Ok(None), Err);
        };
        let mut chunk = ChunkRecord::zeroed();
        chunk.start.set(u64::from(start.0));
        chunk.count = count as u8;
        let goal = blocks.pool.geometry.ag_block_of(self.tree.root);
        match self.tree.insert(store, &mut Nodes { blocks, goal }, &bytes_of(&chunk)) {
            Ok(()) => {}
            Err(Error::Refused(Errno::NOSPC)) => {
                // Nothing was written to the blocks, so they are free again at once.
                blocks.free(store, start, count)?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        self.blocks += count;
        self.hints.exhausted = false;
        Ok(Some(chunk))
    }

    /// Takes a slot in a chunk that has room.
    fn allocate_in<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        mut chunk: ChunkRecord,
    ) -> Result<(AgBlock, u32)> {
        let first = chunk.start.get() as u32;
        if chunk.free_mask.get() != 0 {
            let block = AgBlock(first + chunk.free_mask.get().trailing_zeros());
            return match self.take_slots(pool, store, block, HEADER_SLOT, 1)? {
                Some(slot) => Ok((block, slot)),
                None => Err(bad_block(pool, block, "free_mask", 0).into()),
            };
        }
        let index = chunk.initialised;
        let block = AgBlock(first + u32::from(index));
        let slots = pool.geometry.slots_per_block();
        // A block of 512 bytes has three slots to give, so one used never fills it.
        chunk.initialised += 1;
        chunk.free_mask.set(1 << index);
        chunk.used_mask.set(chunk.used_mask.get() | 1 << index);
        let found = self.tree.replace(store, &bytes_of(&chunk))?;
        self.expect_chunk(found, block)?;
        store.init(
            NewBlock::free(pool.geometry.fs_block(pool.ag, block)),
            BlockKind::Inode,
            u64::from(pool.ag.0),
            |edit| {
                let head = InodeBlockHeader::read_mut(edit.range_mut(0, InodeBlockHeader::SIZE));
                head.slot_count.set(slots as u16);
                head.free_count.set(slots as u16 - 2);
                for (at, word) in run(2, slots - 2).into_iter().enumerate() {
                    head.free_mask[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
                }
            },
        )?;
        Ok((block, 1))
    }

    /// Takes the first run of `count` free slots of a block behind slot `after`; `None` if it has no such run.
    fn take_slots<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        block: AgBlock,
        after: u32,
        count: u32,
    ) -> Result<Option<u32>> {
        if count == 1
            && let Some(slot) = flip_slot(pool, store, block, Flip::Take { after })?
        {
            return Ok(Some(slot));
        }
        let mut taken = None;
        self.change_slots(pool, store, block, None, |free, free_count| {
            let behind: Slots = std::array::from_fn(|at| free[at] & !slots_before(after + 1, at));
            taken = first_run(&behind, count);
            let Some(first) = taken else { return Ok(free_count) };
            (first..first + count).for_each(|slot| free[slot as usize / 64] &= !bit_of(slot));
            Ok(free_count - count)
        })?;
        Ok(taken)
    }

    /// Gives back slots, each so many from the first on. The inode in `gone` ends with that.
    fn give_slots<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        block: AgBlock,
        runs: &[(u32, u32)],
        gone: Option<u32>,
    ) -> Result<()> {
        self.change_slots(pool, store, block, gone, |free, mut free_count| {
            for slot in runs.iter().flat_map(|&(first, count)| first..first + count) {
                let word = &mut free[slot as usize / 64];
                if *word & bit_of(slot) != 0 {
                    return Err(bad_block(pool, block, "slot freed twice", u64::from(slot)));
                }
                *word |= bit_of(slot);
                free_count += 1;
            }
            Ok(free_count)
        })?;
        self.note_given(pool, block);
        Ok(())
    }

    /// A block has got a free slot.
    fn note_given(&mut self, pool: &Pool, block: AgBlock) {
        self.hints.exhausted = false;
        let region = pool.region_index(block);
        self.hints.blocks[region].get_or_insert(block);
    }

    /// Changes which slots of an inode block are free: `change` gets them and how many they are, and gives their new number. The chunk's
    /// record comes first where that says something else then: what refuses has changed nothing. The slot `gone` is emptied in the same
    /// change.
    fn change_slots<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        block: AgBlock,
        gone: Option<u32>,
        change: impl FnOnce(&mut Slots, u32) -> std::result::Result<u32, Corrupt>,
    ) -> Result<()> {
        let at = pool.geometry.fs_block(pool.ag, block);
        let most = pool.geometry.slots_per_block() - 1;
        // Mostly the record stays as it is, and the block is looked at once.
        let with_record = store.change(at, BlockKind::Inode, |edit| {
            let (mut free, old_count) = slots_in(pool, block, edit.bytes())?;
            let count = change(&mut free, old_count)?;
            if (old_count == 0, old_count == most) != (count == 0, count == most) {
                return Ok(Some((free, count)));
            }
            if count != old_count {
                put_slots(pool, edit, &free, count, gone);
            }
            Ok::<_, Corrupt>(None)
        })??;
        if let Some((free, count)) = with_record {
            self.mark_block(pool, store, block, count > 0, count < most)?;
            store.change(at, BlockKind::Inode, |edit| put_slots(pool, edit, &free, count, gone))?;
        }
        Ok(())
    }

    /// Free slots of an inode block.
    #[cfg(test)]
    pub fn slots_of<S: BlockRead>(&self, pool: &Pool, store: &mut S, block: AgBlock) -> Result<(Slots, u32)> {
        let at = pool.geometry.fs_block(pool.ag, block);
        Ok(store.read(at, BlockKind::Inode, |bytes| slots_in(pool, block, bytes))??)
    }

    /// The chunk that an initialised inode block belongs to.
    fn chunk_of<S: BlockRead>(&self, pool: &Pool, store: &mut S, block: AgBlock) -> Result<Option<ChunkRecord>> {
        let record = self.tree.floor(store, u64::from(block.0))?;
        let chunk = record.map(|record| self.decode_chunk(pool, &record)).transpose()?;
        Ok(chunk.filter(|chunk| chunk.start.get() + u64::from(chunk.initialised) > u64::from(block.0)))
    }

    /// Writes a block's two bits in its chunk's record.
    fn mark_block<S: BlockStore>(
        &mut self,
        pool: &Pool,
        store: &mut S,
        block: AgBlock,
        free: bool,
        used: bool,
    ) -> Result<()> {
        let chunk = self.chunk_of(pool, store, block)?;
        let Some(mut chunk) = chunk else { return self.expect_chunk(false, block) };
        let bit = 1 << (u64::from(block.0) - chunk.start.get());
        let set = |mask: u64, on: bool| if on { mask | bit } else { mask & !bit };
        chunk.free_mask.set(set(chunk.free_mask.get(), free));
        chunk.used_mask.set(set(chunk.used_mask.get(), used));
        let found = self.tree.replace(store, &bytes_of(&chunk))?;
        self.expect_chunk(found, block)?;
        if chunk.used_mask.get() == 0 {
            self.hints.empty.insert(chunk.start.get() as u32);
        }
        Ok(())
    }

    fn decode_chunk(&self, pool: &Pool, record: &[u8]) -> std::result::Result<ChunkRecord, Corrupt> {
        let chunk = *ChunkRecord::read(record);
        let start = chunk.start.get();
        let initialised = u32::from(chunk.initialised);
        let bits = if initialised < 64 { (1u64 << initialised) - 1 } else { u64::MAX };
        let sound = start >= u64::from(pool.first_block)
            && start < u64::from(pool.block_count)
            && (1..=64).contains(&chunk.count)
            && start + u64::from(chunk.count) <= u64::from(pool.block_count)
            && chunk.initialised <= chunk.count
            && (chunk.free_mask.get() | chunk.used_mask.get()) & !bits == 0;
        if !sound {
            let value = key_of(INODE_CHUNKS, record);
            return Err(Corrupt::TreeNode { block: self.tree.root, field: "chunk", value });
        }
        Ok(chunk)
    }

    fn expect_chunk(&self, found: bool, block: AgBlock) -> Result<()> {
        if found {
            return Ok(());
        }
        Err(Corrupt::TreeNode { block: self.tree.root, field: "missing chunk", value: u64::from(block.0) }.into())
    }

    /// Slots named by an inode on disk: they must be slots of a block, past its header.
    fn check_run(pool: &Pool, block: AgBlock, first: u32, count: u32) -> Result<()> {
        let slots = pool.geometry.slots_per_block();
        if first == 0 || count == 0 || first.checked_add(count).is_none_or(|end| end > slots) {
            return Err(bad_block(pool, block, "slot", u64::from(first)).into());
        }
        Ok(())
    }
}

/// What becomes of one slot of a block.
#[derive(Clone, Copy)]
enum Flip {
    /// The first free one behind this slot is taken.
    Take { after: u32 },
    /// It is given back.
    Give(u32),
}

/// Takes a slot of a block, or gives one back; it is empty then. `None` where that would change what the chunk's record says
/// of the block, or cannot be: nothing has changed then, and the way for any number of slots does it, or refuses.
fn flip_slot<S: BlockStore>(pool: &Pool, store: &mut S, block: AgBlock, flip: Flip) -> Result<Option<u32>> {
    let is_given = matches!(flip, Flip::Give(_));
    let some = 1..pool.geometry.slots_per_block() - 1;
    let flipped = store.change(pool.geometry.fs_block(pool.ag, block), BlockKind::Inode, |edit| {
        let before = free_count_in(pool, block, edit.bytes())?;
        let after = if is_given { before + 1 } else { before.wrapping_sub(1) };
        if !some.contains(&before) || !some.contains(&after) {
            return Ok(None);
        }
        let (words, []) = InodeBlockHeader::read(edit.bytes()).free_mask.as_chunks() else {
            unreachable!("whole words")
        };
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let slot = match flip {
            Flip::Give(slot) => slot,
            Flip::Take { after: last } => {
                let behind = |at: usize| word(at) & !slots_before(last + 1, at);
                let Some(at) = (0..words.len()).find(|&at| behind(at) != 0) else { return Ok(None) };
                at as u32 * 64 + behind(at).trailing_zeros()
            }
        };
        let at = slot as usize / 64;
        let (old, bit) = (word(at), bit_of(slot));
        if is_given && old & bit != 0 {
            return Ok(None);
        }
        empty(pool, edit, slot);
        // With what shares its word: a part of a word is put byte by byte.
        let count_word = offset_of!(InodeBlockHeader, free_count);
        let mut counts = [0; 8];
        counts.copy_from_slice(&edit.bytes()[count_word..count_word + 8]);
        counts[..2].copy_from_slice(&(after as u16).to_le_bytes());
        edit.put(count_word, &counts);
        edit.put(offset_of!(InodeBlockHeader, free_mask) + at * 8, &(old ^ bit).to_le_bytes());
        Ok::<_, Corrupt>(Some(slot))
    })?;
    Ok(flipped?)
}

/// Free slots of an inode block, checked, and how many they are.
fn slots_in(pool: &Pool, block: AgBlock, bytes: &[u8]) -> std::result::Result<(Slots, u32), Corrupt> {
    let free_count = free_count_in(pool, block, bytes)?;
    let (words, []) = InodeBlockHeader::read(bytes).free_mask.as_chunks() else { unreachable!("whole words") };
    Ok((std::array::from_fn(|at| u64::from_le_bytes(words[at])), free_count))
}

/// How many slots of an inode block are free, checked against those that are.
fn free_count_in(pool: &Pool, block: AgBlock, bytes: &[u8]) -> std::result::Result<u32, Corrupt> {
    header::verify_owner(bytes, pool.geometry.fs_block(pool.ag, block), u64::from(pool.ag.0))?;
    let head = InodeBlockHeader::read(bytes);
    let slots = pool.geometry.slots_per_block();
    if u32::from(head.slot_count.get()) != slots {
        return Err(bad_block(pool, block, "slot_count", u64::from(head.slot_count.get())));
    }
    let (words, []) = head.free_mask.as_chunks() else { unreachable!("whole words") };
    let first = u64::from_le_bytes(words[0]);
    let mut counted = first.count_ones();
    // The header's own slot is never free.
    let mut stray = first & (!slots_before(slots, 0) | 1);
    // Those of the usual blocks fit the first word.
    if words[1..].iter().fold(0, |any, word| any | u64::from_le_bytes(*word)) != 0 {
        for (at, word) in words.iter().enumerate().skip(1) {
            let free = u64::from_le_bytes(*word);
            counted += free.count_ones();
            stray |= free & !slots_before(slots, at);
        }
    }
    let free_count = u32::from(head.free_count.get());
    if stray != 0 || free_count != counted {
        return Err(bad_block(pool, block, "free_count", u64::from(free_count)));
    }
    Ok(free_count)
}

/// Writes which slots of a block are free, where that differs, and empties the slot `gone` and those that were free and are not.
fn put_slots(pool: &Pool, edit: &mut BlockEdit<'_>, free: &Slots, count: u32, gone: Option<u32>) {
    let (before, []) = InodeBlockHeader::read(edit.bytes()).free_mask.as_chunks() else { unreachable!("whole words") };
    let taken: Slots = std::array::from_fn(|at| u64::from_le_bytes(before[at]) & !free[at]);
    for (at, &word) in taken.iter().enumerate() {
        let mut left = word;
        while left != 0 {
            empty(pool, edit, at as u32 * 64 + left.trailing_zeros());
            left &= left - 1;
        }
    }
    if let Some(slot) = gone {
        empty(pool, edit, slot);
    }
    edit.put(offset_of!(InodeBlockHeader, free_count), &(count as u16).to_le_bytes());
    edit.put_changed(offset_of!(InodeBlockHeader, free_mask), free.map(u64::to_le_bytes).as_flattened());
}

/// Makes a slot one of no inode. A free slot may have kept what a user put into a body there; once taken, it is not to be mistaken for an
/// inode before its owner writes it.
#[inline(always)]
fn empty(pool: &Pool, edit: &mut BlockEdit<'_>, slot: u32) {
    let at = pool.geometry.inode_offset(slot);
    if edit.bytes()[at..at + GONE.len()] != GONE {
        edit.put(at, &GONE);
    }
}

/// The bit of a slot in its word.
fn bit_of(slot: u32) -> u64 {
    1 << (slot % 64)
}

fn has_room(chunk: &ChunkRecord) -> bool {
    chunk.free_mask.get() != 0 || chunk.initialised < chunk.count
}

/// `count` slots from `first`, as far as a block can have them.
pub(super) fn run(first: u32, count: u32) -> Slots {
    let end = first.saturating_add(count);
    std::array::from_fn(|at| slots_before(end, at) & !slots_before(first, at))
}

/// Word `at` of the slots before `end`.
fn slots_before(end: u32, at: usize) -> u64 {
    match end.saturating_sub(at as u32 * 64) {
        count @ 0..64 => (1 << count) - 1,
        _ => u64::MAX,
    }
}

/// First of `count` consecutive slots that are all in `free`.
fn first_run(free: &Slots, count: u32) -> Option<u32> {
    let mut length = 0;
    for (at, &word) in free.iter().enumerate() {
        if count == 1 || word == 0 {
            if word != 0 {
                return Some(at as u32 * 64 + word.trailing_zeros());
            }
            length = 0;
            continue;
        }
        for bit in 0..64 {
            length = if word >> bit & 1 == 1 { length + 1 } else { 0 };
            if length == count {
                return Some(at as u32 * 64 + bit + 1 - count);
            }
        }
    }
    None
}

fn bytes_of(chunk: &ChunkRecord) -> [u8; ChunkRecord::SIZE] {
    let mut bytes = [0; ChunkRecord::SIZE];
    *ChunkRecord::read_mut(&mut bytes) = *chunk;
    bytes
}

#[cold]
fn bad_block(pool: &Pool, block: AgBlock, field: &'static str, value: u64) -> Corrupt {
    let block = pool.geometry.fs_block(pool.ag, block);
    Corrupt::Inode { ino: Ino(block.0 * u64::from(pool.geometry.slots_per_block())), field, value }
}
