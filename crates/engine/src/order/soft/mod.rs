//! Order `softdep`: soft updates (McKusick and Ganger 1999; Dowse and Malone 2002, 2.1). Nothing is logged; blocks go to their places in
//! such an order, and in such a form, that after a crash the volume can be used at once.
//!
//! For every block whose changes are not all on the device there is a *shadow*: the block as the device has it. So two states are
//! known at any time: the volume as it *is*, in the frames, and as it *lasts*, in the shadows, and in the frames of all blocks that have
//! none. What has changed in between are facts (`super::facts`), found by comparing the two.
//!
//! Changes reach the device in *rounds* (`round`). In a round the gate is closed; of each block with a shadow an image is made, in which
//! the facts that are not safe yet are undone (`judge`); the gate opens; the images are written, and one flush follows. Then the images
//! are what lasts. So nobody ever sees an undone value, no image shows half an operation, and what a round may show depends only on
//! what lasted before it: any of its sectors may be missing after a crash, and no matter which.
//!
//! ```text
//! create      1 bits taken    2 inode                     3 entry
//! append      1 bits, data    2 pointer
//! unlink      1 entry gone    2 inode empty, or one link less          (then the slot and the blocks are given back)
//! rename      1 one more link 2 new entry  3 (identity)  4 old entry gone  5 one link less
//! ```
//!
//! The structures of McKusick and Ganger are here in this form:
//!
//! | theirs | here |
//! |---|---|
//! | bmsafemap, newblk | bits in the shadow of a bitmap; blocks whose shadow lasts as nothing |
//! | inodedep | the shadow of a block of the inode table |
//! | diradd, dirrem, mkdir | entries that differ between a directory's block and its shadow |
//! | allocdirect, allocindir, indirdep | pointers that differ; the shadow of a block of pointers is their safe copy |
//! | freeblks, freefile | [`Freed`] |
//! | freefrag | [`Freed`]: fragments that another run has taken the place of, or that were cut off |
//!
//! `census` counts them under their names.
//!
//! What is freed (blocks, slots of inodes) waits until nothing that lasts points to it ([`Freed`]). A block of a directory or of pointers
//! that is freed may still be pointed to: its shadow stays as a *ghost* until it is given back, for the names in it last as long.
//!
//! Invariants
//!   1. A block without a shadow is on the device as it is in memory, down to times and counts.
//!   2. A frame whose block has a shadow stays in the cache.
//!   3. In what lasts, each name that can be reached names an inode that is there, no inode has fewer links than names, and each pointer leads
//!      to a block that is taken, was written, and has no other owner. A file that has a name in memory, and had one that lasts, has one
//!      that lasts.
//!   4. A name that lasts and is gone in memory keeps its place in its unit ([`Soft::holds`]), so that it can be undone.
//!
//! After a crash there may be more in use than has a name, and links may be too many; `check` says which findings those are.
//!
//! Locking: the state is a leaf; the checkpointer takes it out while the gate is closed, to look at frames beside it.

mod ask;
mod census;
mod delays;
mod judge;
mod limits;
mod needs;
mod round;

pub(crate) use ask::SETTLE_TRIES;
pub(crate) use delays::{Delays, Due};
pub(super) use round::Goal;

use super::facts;
use super::images::Images;
use crate::locks::{Mutex, Rank};
use crate::types::{Clock, MountOptions, Time};
use census::{Census, Kind, Tally};
use myriad_format::inode::RawInode;
use myriad_format::pointers::Pointer;
use myriad_format::table::INODE_SIZE;
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{BlockKind, FsBlock, Geometry, Ino};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// A block as the device has it, of which memory has something newer.
struct Shadow {
    kind: BlockKind,
    /// Whose it is, of a block of units.
    owner: u64,
    /// The frame that has it as it is.
    frame: u32,
    /// `None`: the block is new, and what the device has there means nothing.
    lasting: Option<Box<[u8]>>,
    /// The image of it that is on its way.
    sent: Option<Box<[u8]>>,
    /// When it changed first since an image showed all of it (`delays`). `None`: nothing of it needs a write for its own sake.
    since: Option<Time>,
}

/// File data that waits to be written.
struct Data {
    ino: u64,
    since: Time,
}

/// When a change was made, as far as it matters to when it is due.
#[derive(Clone, Copy)]
pub(in crate::order) struct AsOf<'a> {
    pub clock: &'a Clock,
    /// It brings up to date what had changed before; `None`: it is made now.
    pub early: Option<Time>,
}

impl AsOf<'_> {
    fn time(self) -> Time {
        self.early.unwrap_or_else(|| self.clock.ticks())
    }
}

/// What one transaction gave up: it can be taken again once nothing that lasts points to it.
#[derive(Default)]
pub(super) struct Freed {
    pub extents: Vec<(FsBlock, u32)>,
    pub inodes: Vec<Ino>,
    /// Blocks of inodes or pointers that the transaction changed: what pointed there was among them.
    pub from: Vec<u64>,
}

#[derive(Default)]
struct State {
    shadows: BTreeMap<u64, Shadow>,
    /// Shadows of blocks that were freed.
    ghosts: BTreeMap<u64, Shadow>,
    /// Blocks of directories among the two, by directory.
    directories: HashMap<u64, BTreeSet<u64>>,
    freed: Vec<Freed>,
    /// Bytes of those.
    freed_bytes: u64,
    /// Files that lost one name of several: their identity may say a name that they do not have any more.
    unsure: HashSet<u64>,
}

/// What orders `sync` and `softdep` know of an open volume.
pub(crate) struct Soft {
    state: Mutex<{ Rank::Leaf as u8 }, State>,
    /// Apart from the state, which rounds take out: it is read at any time.
    census: Mutex<{ Rank::Leaf as u8 }, Census>,
    /// Fsyncs that wait, by the order in which they came.
    fsyncs: Mutex<{ Rank::Leaf as u8 }, BTreeMap<u64, Ino>>,
    next_fsync: AtomicU64,
    /// File data that waits to be written, by block.
    data: Mutex<{ Rank::Leaf as u8 }, HashMap<u64, Data>>,
    /// Inodes that wait to be given back.
    inodes_waiting: AtomicU64,
    /// Bytes that are held (`limits`): now, at most so far, and as many as there should be.
    held: AtomicU64,
    held_peak: AtomicU64,
    limit: AtomicU64,
    block_size: usize,
}

/// A round on its way. It stays when the host has no room for a write of it, and is written again.
pub(super) struct Round {
    images: Images,
    /// Dependencies that it found, and those that it shows.
    tally: Tally,
    /// It looked at a part of what waits.
    is_partial: bool,
    /// File data: block and frame, sorted.
    data: Vec<(u64, u32)>,
    /// Data was written before that no flush has covered yet, to which images may point.
    has_unflushed: bool,
}

impl Freed {
    /// Whether a block is one of those given up.
    fn has(&self, block: u64) -> bool {
        self.extents.iter().any(|&(start, length)| (start.0..start.0 + u64::from(length)).contains(&block))
    }
}

fn owner_of(kind: BlockKind, bytes: &[u8]) -> u64 {
    if kind.is_of_units() { UnitHeader::read(bytes).owner.get() } else { 0 }
}

impl Shadow {
    /// What the device has of it, and what it is about to have.
    fn both(&self) -> impl Iterator<Item = &[u8]> {
        self.lasting.iter().chain(&self.sent).map(|bytes| &**bytes)
    }

    /// What the names that last in it name.
    fn names(&self) -> impl Iterator<Item = facts::Named> {
        let units = self.lasting.iter().flat_map(|bytes| bytes.chunks_exact(UNIT_SIZE));
        units.flat_map(facts::live).map(|(_, named)| named)
    }

    /// Whether a name lasts in one of its units, or is about to.
    fn has_name(&self, unit: usize, tag: u32) -> bool {
        let unit = unit * UNIT_SIZE..(unit + 1) * UNIT_SIZE;
        self.both().any(|bytes| facts::live(&bytes[unit.clone()]).any(|(entry, _)| entry.tag == tag))
    }

    /// Whether anything that lasts in it points to one of these blocks, or is one of these inodes.
    fn points_to(
        &self,
        freed: &Freed,
        geometry: &Geometry,
        slot_of: impl Fn(Ino) -> Option<(u64, usize)>,
        block: u64,
    ) -> bool {
        let Some(bytes) = &self.lasting else { return false };
        let is_freed = |word: u64| {
            let (start, length) = Pointer::run_of(word, geometry);
            word != 0 && (0..u64::from(length)).any(|index| freed.has(start.0 + index))
        };
        match self.kind {
            BlockKind::InodeTable => {
                let is_there = freed.inodes.iter().any(|&ino| {
                    slot_of(ino).is_some_and(|(at, offset)| at == block && bytes[offset..offset + 2] != [0; 2])
                });
                is_there
                    || bytes
                        .chunks_exact(UNIT_SIZE)
                        .flat_map(|unit| unit[UnitHeader::SIZE..].chunks_exact(INODE_SIZE))
                        .any(|inode| {
                            let raw = RawInode::read(inode);
                            let root = (raw.mode.get() != 0).then(|| raw.attribute_root()).flatten();
                            facts::pointers_of(inode).any(is_freed) || root.is_some_and(|root| freed.has(root.block.0))
                        })
            }
            BlockKind::Pointers => bytes
                .chunks_exact(UNIT_SIZE)
                .flat_map(|unit| unit[UnitHeader::SIZE..].chunks_exact(8))
                .any(|word| is_freed(u64::from_le_bytes(word.try_into().expect("8 bytes")))),
            _ => false,
        }
    }
}

impl State {
    /// Bytes of the copies of blocks that are kept.
    fn bytes(&self) -> u64 {
        let all = self.shadows.values().chain(self.ghosts.values());
        all.flat_map(Shadow::both).map(|bytes| bytes.len() as u64).sum()
    }

    /// What the device has of a block that has changed, or was freed.
    fn shadow(&self, block: u64) -> Option<&Shadow> {
        self.shadows.get(&block).or_else(|| self.ghosts.get(&block))
    }

    fn is_clean(&self) -> bool {
        self.shadows.is_empty() && self.freed.is_empty()
    }

    fn add(&mut self, block: FsBlock, shadow: Shadow) {
        if shadow.kind == BlockKind::LinearEntries {
            self.directories.entry(shadow.owner).or_default().insert(block.0);
        }
        let old = self.shadows.insert(block.0, shadow);
        assert!(old.is_none(), "block {} is new, and was changed before", block.0);
    }

    /// Takes a block off the list of its directory.
    fn unlist(&mut self, block: u64, shadow: &Shadow) {
        if shadow.kind == BlockKind::LinearEntries
            && let Some(blocks) = self.directories.get_mut(&shadow.owner)
        {
            blocks.remove(&block);
            if blocks.is_empty() {
                self.directories.remove(&shadow.owner);
            }
        }
    }

    /// Those blocks are nobody's any more: names in them have gone.
    fn forget_ghosts(&mut self, extents: &[(FsBlock, u32)]) {
        for &(start, length) in extents {
            let gone: Vec<u64> =
                self.ghosts.range(start.0..start.0 + u64::from(length)).map(|(&block, _)| block).collect();
            for block in gone {
                let ghost = self.ghosts.remove(&block).expect("just listed");
                self.unlist(block, &ghost);
            }
        }
    }
}

impl Soft {
    pub fn new(block_size: usize, options: &MountOptions) -> Self {
        Self {
            state: Mutex::default(),
            census: Mutex::default(),
            fsyncs: Mutex::default(),
            next_fsync: AtomicU64::new(0),
            data: Mutex::default(),
            inodes_waiting: AtomicU64::new(0),
            held: AtomicU64::new(0),
            held_peak: AtomicU64::new(0),
            limit: AtomicU64::new(limits::limit_of(options)),
            block_size,
        }
    }

    /// A block is about to change, which is in this frame: what of it the device has is kept. True if it was not kept before.
    pub(in crate::order) fn before(
        &self,
        block: FsBlock,
        kind: BlockKind,
        frame: u32,
        bytes: &[u8],
        as_of: AsOf<'_>,
    ) -> bool {
        let mut state = self.state.lock();
        if let Some(shadow) = state.shadows.get_mut(&block.0) {
            shadow.since = Some(match (shadow.since, as_of.early) {
                (Some(since), Some(early)) => since.min(early),
                (Some(since), None) => since,
                (None, _) => as_of.time(),
            });
            return false;
        }
        let (lasting, since) = (Some(bytes.into()), Some(as_of.time()));
        state.add(block, Shadow { kind, owner: owner_of(kind, bytes), frame, lasting, sent: None, since });
        self.weigh(&state);
        true
    }

    /// A block is new, in this frame.
    pub(in crate::order) fn begun(&self, block: FsBlock, kind: BlockKind, owner: u64, frame: u32, as_of: AsOf<'_>) {
        let since = Some(as_of.time());
        let mut state = self.state.lock();
        state.add(block, Shadow { kind, owner, frame, lasting: None, sent: None, since });
        self.weigh(&state);
    }

    /// A block is being freed. Its frame is dead.
    pub fn forgotten(&self, block: FsBlock) {
        let mut state = self.state.lock();
        let Some(shadow) = state.shadows.remove(&block.0) else { return };
        let is_pointed_to = matches!(shadow.kind, BlockKind::LinearEntries | BlockKind::Pointers);
        if shadow.lasting.is_some() && is_pointed_to {
            state.ghosts.insert(block.0, shadow);
        } else {
            state.unlist(block.0, &shadow);
        }
        self.weigh(&state);
    }

    /// What a transaction has given up.
    pub(in crate::order) fn freed(&self, freed: Freed) {
        self.inodes_waiting.fetch_add(freed.inodes.len() as u64, Ordering::Relaxed);
        {
            let mut census = self.census.lock();
            census.waits(Kind::FreeBlks, u64::from(!freed.extents.is_empty()));
            census.waits(Kind::FreeFile, freed.inodes.len() as u64);
        }
        let mut state = self.state.lock();
        state.freed_bytes += freed.bytes();
        state.freed.push(freed);
        self.weigh(&state);
    }

    /// Whether an inode that was just cleared lasts, or is about to. If not, no name of it does, either, and its slot can be taken again.
    pub(in crate::order) fn has_inode(&self, geometry: &Geometry, ino: Ino) -> bool {
        let Some((block, slot)) = geometry.locate(ino) else { return true };
        let at = geometry.inode_offset(slot);
        let state = self.state.lock();
        state.shadows.get(&block.0).is_none_or(|shadow| shadow.both().any(|bytes| bytes[at..at + 2] != [0; 2]))
    }

    /// A file loses one name of several.
    pub fn lost_a_name(&self, ino: Ino) {
        let mut state = self.state.lock();
        state.unsure.insert(ino.0);
        self.weigh(&state);
    }

    /// Somebody wants a file to last, which has been flushed.
    pub fn wants(&self, file: Ino) -> u64 {
        let ticket = self.next_fsync.fetch_add(1, Ordering::Relaxed);
        self.fsyncs.lock().insert(ticket, file);
        ticket
    }

    /// What is wanted.
    pub fn wanted(&self) -> BTreeMap<u64, Ino> {
        self.fsyncs.lock().clone()
    }

    /// These have what they wanted, or were told that they cannot have it.
    pub fn are_done<'a>(&self, tickets: impl IntoIterator<Item = &'a u64>) {
        let mut fsyncs = self.fsyncs.lock();
        for ticket in tickets {
            fsyncs.remove(ticket);
        }
    }

    /// Data of a file is to be written to these blocks.
    pub(in crate::order) fn has_data(&self, ino: Ino, writes: &[(u64, u32)], as_of: AsOf<'_>) {
        let since = as_of.time();
        let mut data = self.data.lock();
        for &(block, _) in writes {
            let earlier = data.get(&block).map_or(since, |data| data.since.min(since));
            data.insert(block, Data { ino: ino.0, since: earlier });
        }
    }

    pub fn inodes_waiting(&self) -> u64 {
        self.inodes_waiting.load(Ordering::Relaxed)
    }

    pub fn is_clean(&self) -> bool {
        self.state.lock().is_clean()
    }

    /// Dependencies by kind, and the memory that is held for them.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.census.lock().counters();
        let held = self.held.load(Ordering::Relaxed);
        all.extend([("soft_held_now", held), ("soft_held_peak", self.held_peak.load(Ordering::Relaxed))]);
        all
    }

    /// Whether the name with this tag, which is gone, lasts in a unit of a directory's block: nothing else may take its place, and it does
    /// not move.
    pub fn holds(&self, block: FsBlock, unit: usize, tag: u32) -> bool {
        let state = self.state.lock();
        state.shadows.get(&block.0).is_some_and(|shadow| shadow.has_name(unit, tag))
    }

    /// Whether the name with this tag, which is about to go, lasts: its entry stays in its place then.
    pub fn keeps(&self, block: FsBlock, unit: usize, tag: u32) -> bool {
        let state = self.state.lock();
        state.shadows.get(&block.0).is_none_or(|shadow| shadow.has_name(unit, tag))
    }

    /// Whether blocks of a directory have changed, and are not all as they last.
    pub fn has_changed(&self, dir: Ino) -> bool {
        self.state.lock().directories.contains_key(&dir.0)
    }

    /// What names of a directory name as they last, of blocks that have changed since: all names, or those with a tag.
    fn lasting_names(&self, dir: Ino, tag: Option<u32>) -> Vec<Ino> {
        let state = self.state.lock();
        let blocks = state.directories.get(&dir.0).into_iter().flatten();
        let shadows = blocks.filter_map(|block| state.shadow(*block));
        let names = shadows
            .flat_map(|shadow| shadow.both().flat_map(|bytes| bytes.chunks_exact(UNIT_SIZE)).flat_map(facts::live));
        names.filter(|(entry, _)| tag.is_none_or(|tag| tag == entry.tag)).map(|(_, named)| named.ino).collect()
    }
}
