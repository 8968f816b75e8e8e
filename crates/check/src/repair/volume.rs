//! The volume under repair, which all repairs share: what was found, what waits to be written, the inode block at hand,
//! and the free blocks.

use super::build::{Fill, flush, node_count, write};
use super::pending::{Changed, Salvaged};
use super::room::Room;
use crate::blocks::Blocks;
use crate::directory::Made;
use crate::io::Reader;
use crate::options::{CheckError, Progress};
use myriad_format::btree::INODE_CHUNKS;
use myriad_format::choices::Choices;
use myriad_format::inode::RawInode;
use myriad_format::superblock::{NO_MOUNT, Superblock, state as volume_state};
use myriad_format::{AgBlock, AgNo, BlockKind, FsBlock, Geometry, Ino, Lsn, NameHasher};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// An inode that was found.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    pub(crate) ino: Ino,
    /// Names found; of a directory: subdirectories found.
    pub(crate) names: u32,
    pub(crate) file_type: u8,
    pub(crate) state: u8,
}

/// Bits of `Item::state`.
pub(crate) mod state {
    /// A directory that a name leads to, or a file with a name.
    pub const NAMED: u8 = 1;
    /// A directory whose entries have been read.
    pub const VISITED: u8 = 2;
    /// Its link count on disk was 0.
    pub const NO_LINKS: u8 = 4;
    /// Freed: no inode any more.
    pub const GONE: u8 = 8;
    /// A directory to which the root leads by names that directories say are their own (`Repair::find_homes`).
    pub const AT_HOME: u8 = 16;
}

/// Most sentences about what was done.
pub(crate) const ACTIONS_MAX: usize = 1000;

pub(crate) struct Repair<'a> {
    pub(crate) reader: Arc<Reader>,
    pub(crate) superblock: Superblock,
    pub(crate) choices: Choices,
    pub(crate) geometry: Geometry,
    pub(crate) hasher: NameHasher,
    pub(crate) ag_used: u32,
    pub(crate) blocks: Blocks,
    /// Blocks among which are all that several inodes have.
    pub(crate) contested: Blocks,
    /// Start and end of what maps share with `contested`, for each inode that was asked for.
    pub(crate) shared: RefCell<BTreeMap<Ino, Vec<(FsBlock, FsBlock)>>>,
    /// Inode chunks: first block, number of blocks (all initialised) and of those beyond that hold nothing yet.
    pub(crate) chunks: BTreeMap<FsBlock, Chunk>,
    /// How many blocks of each group's inode table are initialised.
    pub(crate) tables: BTreeMap<AgNo, u32>,
    /// A part of the log is lost: trees of inodes lack what only it had.
    pub(crate) are_trees_old: bool,
    /// The log, once the groups are written.
    pub(super) unmade_log: Option<super::UnmadeLog>,
    /// Where a log that is made anew begins, and so ends.
    pub(super) log_begins: Lsn,
    /// Blocks of inodes that were torn.
    pub(crate) torn: BTreeSet<FsBlock>,
    /// Inodes of these whose names were not found where they say.
    pub(crate) doubted: BTreeSet<Ino>,
    /// Nodes of the inode trees that were found, which are nobody else's.
    pub(crate) inode_trees: BTreeSet<FsBlock>,
    /// Ascending by number.
    pub(crate) items: Vec<Item>,
    /// File maps to be written anew.
    pub(crate) maps: BTreeMap<Ino, Salvaged>,
    /// Roots of directories' indexes, until their directories have been written anew: nothing else says how many blocks of entries
    /// each has made. They are nobody else's.
    pub(crate) roots: BTreeMap<Ino, FsBlock>,
    /// How many those were whose roots had to make room for something.
    pub(crate) made: BTreeMap<Ino, Made>,
    /// Names that lie behind the last entry block or node of a directory, by what they name.
    pub(crate) beyond: BTreeMap<Ino, (Ino, Vec<u8>)>,
    /// Blocks that inodes name and that do not say so themselves: somebody else's, or nobody's.
    pub(crate) suspects: Vec<(Ino, FsBlock)>,
    /// Inodes in the list of orphans, as far as it can be believed.
    pub(crate) orphans: BTreeSet<Ino>,
    /// Directories whose new maps and indexes are not named yet.
    pub(crate) changed: Vec<Changed>,
    /// Start and length of what no inode names any more, once the directories are changed and the block at hand is durable.
    pub(crate) left: Vec<(FsBlock, u64)>,
    /// The inode block at hand.
    pub(crate) at_hand: Option<(FsBlock, Vec<u8>, bool)>,
    /// What blocks are taken from.
    pub(crate) room: Room,
    /// What was taken for something that there may be no room for.
    pub(crate) taken: Option<BTreeSet<FsBlock>>,
    pub(crate) now: i64,
    /// Compatible features of which the volume has something.
    pub(crate) features: u64,
    pub(crate) actions: Vec<String>,
    pub(crate) progress: Option<&'a (dyn Fn(Progress) -> bool + Sync)>,
    /// What was told of it last.
    pub(crate) told: f64,
    /// How many directories there are, and how many have been visited.
    pub(crate) directories: u64,
    pub(crate) visited: u64,
    /// Directories at home have been marked.
    pub(crate) are_homes_known: bool,
    /// Blocks of file data, and those among them that no checksum vouches for: on a volume with checksums.
    pub(crate) data: Blocks,
    pub(crate) unvouched: Blocks,
}

#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) count: u32,
    pub(crate) initialised: u32,
    /// By a tree; else a search found it.
    pub(crate) is_named: bool,
}

impl Chunk {
    /// Those of its blocks that hold inodes.
    pub(crate) fn blocks(self, start: FsBlock) -> impl Iterator<Item = FsBlock> {
        (0..u64::from(self.initialised)).map(move |at| start.offset_by(at))
    }
}

impl Repair<'_> {
    pub(crate) fn flush(&self) -> Result<(), CheckError> {
        flush(self.reader.device())
    }

    /// Before the first change: a volume whose repair is cut short was not closed cleanly, whatever it was before, and has
    /// these groups. The copies stay as they are.
    pub(crate) fn mark_in_use(&self) -> Result<(), CheckError> {
        let mut sb = in_use(self.superblock);
        sb.ag_high_water.set(self.ag_used);
        write_superblock(&self.reader, sb, AgNo(0))?;
        self.flush()
    }

    /// Tells how far the repair is, a thousand times at most. It goes on whatever the answer is, to a volume that is whole: the
    /// look after it will ask again.
    pub(crate) fn tick(&mut self, phase: &'static str, done: u64, total: u64, from: f64, to: f64) {
        const STEP: f64 = 0.001;
        let part = done as f64 / total.max(1) as f64;
        let fraction = from + (to - from) * part.min(1.0);
        if let Some(progress) = self.progress
            && fraction >= self.told + STEP
        {
            self.told = fraction;
            progress(Progress { phase, fraction });
        }
    }

    pub(crate) fn act(&mut self, what: impl Into<String>) {
        if self.actions.len() < ACTIONS_MAX {
            self.actions.push(what.into());
        }
    }

    pub(crate) fn item(&mut self, ino: Ino) -> Option<&mut Item> {
        let index = self.items.binary_search_by_key(&ino, |item| item.ino).ok()?;
        Some(&mut self.items[index]).filter(|item| item.state & state::GONE == 0)
    }

    pub(crate) fn block_of(&self, item: &Item) -> FsBlock {
        self.geometry.locate(item.ino).map_or(FsBlock::NONE, |(block, _)| block)
    }

    /// The inodes of a group that are in use.
    pub(crate) fn items_in(&self, ag: AgNo) -> impl Iterator<Item = &Item> {
        let first = self.geometry.fs_block(ag, AgBlock(0));
        let end = first.offset_by(u64::from(self.geometry.blocks_in(ag)));
        // Inode numbers ascend with blocks.
        let items = &self.items[self.items.partition_point(|item| self.block_of(item) < first)..];
        let items = &items[..items.partition_point(|item| self.block_of(item) < end)];
        items.iter().filter(|item| item.state & state::GONE == 0)
    }

    /// Takes one free block; in group `ag` only, if given.
    pub(crate) fn take(&mut self, ag: Option<AgNo>) -> Result<FsBlock, CheckError> {
        self.take_if_any(ag)?.ok_or(CheckError::NoRoom)
    }

    /// Takes so many free blocks, or none if there are fewer.
    pub(crate) fn take_all(&mut self, count: usize) -> Result<Option<Vec<FsBlock>>, CheckError> {
        let mut blocks = Vec::with_capacity(count);
        while blocks.len() < count {
            let Some(block) = self.take_if_any(None)? else {
                self.release(blocks.into_iter().map(|block| (block, 1)));
                return Ok(None);
            };
            blocks.push(block);
        }
        Ok(Some(blocks))
    }

    /// As [`Self::take_all`]. If there are too few, it also takes blocks that nobody needs once all is written, and
    /// says that it did. If even these are not enough, it takes none of them.
    pub(crate) fn take_over(
        &mut self,
        count: usize,
        spent: &[(FsBlock, u64)],
    ) -> Result<Option<(Vec<FsBlock>, bool)>, CheckError> {
        if let Some(places) = self.take_all(count)? {
            return Ok(Some((places, false)));
        }
        self.release(spent.iter().copied());
        let places = self.take_all(count)?;
        if places.is_none() {
            self.claim_again(spent);
        }
        Ok(places.map(|places| (places, true)))
    }

    /// Takes blocks back that were released and that nobody has taken since.
    pub(crate) fn claim_again(&mut self, runs: &[(FsBlock, u64)]) {
        for &(start, length) in runs {
            self.blocks.claim(start, length);
            self.room.claimed(self.geometry.ag_of(start), length, &self.geometry);
        }
    }

    /// Writes something in new blocks, and nothing else before it has all of them. If there are too few, it has none,
    /// and nothing has changed. What groups need for their own trees is not for this.
    pub(crate) fn if_room(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), CheckError>,
    ) -> Result<bool, CheckError> {
        self.taken = Some(BTreeSet::new());
        self.room.keep_in_any_case(self.needed_by_groups());
        let written = write(self);
        let taken = self.taken.take().unwrap_or_default();
        self.room.keep_in_any_case(Vec::new());
        match written {
            Err(CheckError::NoRoom) => {
                self.release(taken.into_iter().map(|block| (block, 1)));
                Ok(false)
            }
            written => written.map(|()| true),
        }
    }

    /// How many blocks each group needs for its own trees, if they are full.
    fn needed_by_groups(&self) -> Vec<u64> {
        /// For the trees of free space, which are small where little is free.
        const FREE_NODES: u64 = 4;
        let mut chunks = vec![0; self.ag_used as usize];
        self.chunks.keys().for_each(|&start| chunks[self.geometry.ag_of(start).0 as usize] += 1);
        let free_nodes = if self.geometry.has_bitmap { 0 } else { FREE_NODES };
        let inode_nodes = |count| match self.geometry.has_table() {
            true => 0,
            false => node_count(INODE_CHUNKS, count, self.reader.block_size(), Fill::Full) as u64,
        };
        chunks.into_iter().map(|count| inode_nodes(count) + free_nodes).collect()
    }

    pub(crate) fn take_if_any(&mut self, ag: Option<AgNo>) -> Result<Option<FsBlock>, CheckError> {
        loop {
            let Some(from) = (if ag.is_some() { ag } else { self.spare_group()? }) else { return Ok(None) };
            let block = self.room.take_in(from, &self.blocks, &self.geometry);
            if block.is_some() || ag.is_some() {
                self.taken.iter_mut().for_each(|taken| taken.extend(block));
                return Ok(block);
            }
        }
    }

    /// How full the nodes of something new are that takes at most so many blocks. The engine fills an index fuller than
    /// a repair that has room: where there is none, what is written anew must not take more than what it replaces.
    pub(crate) fn fill_for(&mut self, blocks: u64) -> Fill {
        if self.can_spare(blocks) { Fill::Ample } else { Fill::Full }
    }

    /// Whether groups can spare so many blocks besides what is kept for their own trees.
    fn can_spare(&mut self, blocks: u64) -> bool {
        self.ag_used < self.geometry.ag_count || self.room.can_spare(blocks, self.ag_used, &self.blocks, &self.geometry)
    }

    /// A group that can spare a block: its own trees are written last, from what is left in it.
    fn spare_group(&mut self) -> Result<Option<AgNo>, CheckError> {
        loop {
            let ag = self.room.spare_group(self.ag_used, &self.blocks, &self.geometry);
            if ag.is_some() {
                return Ok(ag);
            }
            if !self.left.is_empty() {
                self.settle()?;
            } else if self.use_another_group()? {
                // Its blocks come next.
            } else if self.room.keep_less() {
                // All groups again, for a part of what was kept.
            } else if !self.roots.is_empty() {
                self.give_up_roots();
            } else {
                return Ok(None);
            }
        }
    }

    /// Takes the first group into use that was never used, if there is one.
    pub(crate) fn use_another_group(&mut self) -> Result<bool, CheckError> {
        if self.ag_used == self.geometry.ag_count {
            return Ok(false);
        }
        let ag = AgNo(self.ag_used);
        self.ag_used += 1;
        self.claim_fixed(ag);
        if self.geometry.has_table() {
            self.tables.insert(ag, 0);
        }
        // Before anything lies in it: a repair cut short leaves a volume that knows of the group.
        self.mark_in_use()?;
        self.act(format!("took group {ag} into use"));
        Ok(true)
    }

    pub(crate) fn claim_fixed(&self, ag: AgNo) {
        let fixed = self.geometry.first_data_block(ag).min(self.geometry.blocks_in(ag));
        self.blocks.claim(self.geometry.fs_block(ag, AgBlock(0)), u64::from(fixed));
    }

    /// Changes an inode in its block, which stays at hand until another one is asked for.
    pub(crate) fn change_inode(&mut self, ino: Ino, f: impl FnOnce(&mut RawInode)) -> Result<(), CheckError> {
        let Some((block, slot)) = self.geometry.locate(ino) else { return Ok(()) };
        self.load_at_hand(block)?;
        if let Some((_, buf, dirty)) = &mut self.at_hand {
            let raw = RawInode::read_mut(&mut buf[self.geometry.inode_offset(slot)..]);
            let before = *raw;
            f(raw);
            *dirty |= *raw != before;
        }
        Ok(())
    }

    pub(crate) fn raw(&mut self, ino: Ino) -> Result<RawInode, CheckError> {
        let mut raw = RawInode::zeroed();
        self.change_inode(ino, |found| raw = *found)?;
        Ok(raw)
    }

    pub(crate) fn load_at_hand(&mut self, block: FsBlock) -> Result<(), CheckError> {
        if self.at_hand.as_ref().is_some_and(|(at, ..)| *at == block) {
            return Ok(());
        }
        self.store_at_hand()?;
        let mut buf = self.reader.new_buffer();
        self.reader
            .read_raw(block, &mut buf)
            .map_err(|damage| CheckError::Repair(format!("inode block {block} cannot be read again: {damage:?}")))?;
        self.at_hand = Some((block, buf, false));
        Ok(())
    }

    /// Makes all changes of inodes durable, and gives back what none of them names any more.
    pub(crate) fn settle(&mut self) -> Result<(), CheckError> {
        self.change_directories()?;
        self.store_at_hand()?;
        self.flush()?;
        let left = std::mem::take(&mut self.left);
        self.release(left);
        Ok(())
    }

    /// Gives blocks back: their groups may have some to spare again.
    pub(crate) fn release(&mut self, runs: impl IntoIterator<Item = (FsBlock, u64)>) {
        for (start, length) in runs {
            if let Some(taken) = &mut self.taken {
                let released: Vec<FsBlock> = taken.range(start..start.offset_by(length)).copied().collect();
                released.iter().for_each(|block| _ = taken.remove(block));
            }
            let count = self.blocks.release(start, length);
            self.room.released(self.geometry.ag_of(start), count, &self.geometry);
        }
    }

    pub(crate) fn store_at_hand(&mut self) -> Result<(), CheckError> {
        if let Some((block, mut buf, true)) = self.at_hand.take() {
            write(&self.reader, block, &mut buf)?;
        }
        Ok(())
    }
}

/// What says that a volume is being repaired: it was not closed cleanly, and nobody has it mounted.
pub(crate) fn in_use(mut sb: Superblock) -> Superblock {
    let log_end = sb.log_end();
    sb.state.set(volume_state::IN_USE);
    sb.mount_nonce.set(NO_MOUNT);
    // Until the log is made anew, it is the one that the volume knows.
    sb.set_log_end(log_end);
    sb
}

pub(crate) fn write_superblock(reader: &Reader, mut sb: Superblock, ag: AgNo) -> Result<(), CheckError> {
    let block = reader.geometry.fs_block(ag, AgBlock(0));
    sb.header.magic.set(BlockKind::Superblock.magic());
    sb.header.address.set(block.0);
    let mut buf = reader.new_buffer();
    buf[..Superblock::SIZE].copy_from_slice(sb.as_bytes());
    write(reader, block, &mut buf)
}
