//! Order `softdep`: soft updates (McKusick and Ganger 1999; Dowse and Malone 2002, 2.1). Nothing is logged; blocks go to their places in
//! such an order, and in such a form, that after a crash the volume can be used at once.
//!
//! For every block whose changes are not all on the device there is a *shadow*: the words of 8 bytes in which the device has something else (`shadow`).
//! So two states are known at any time: the volume as it *is*, in the frames, and as it *lasts*, in the frames with the shadows laid over them.
//! What has changed in between are facts (`super::facts`), found by comparing the two, unit by unit where there are such words. Names that
//! differ are counted by what they name (`pending`), from round to round: only blocks that have changed since are compared.
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
//! rename      1 one more link 2 new entry                 3 old entry gone  4 one link less
//!             1 one more link 2 new entry     3 identity  4 old entry gone  5 one link less         (of a directory)
//! exchange    1 one more link 2 both entries, noted in the superblock meanwhile         3 one link less
//! ```
//!
//! New blocks of inode tables, and those that only inodes in them lead to, show at once what waits elsewhere: nothing that lasts leads there before the mark
//! of their group does (`judge::fill`).
//!
//! The structures of McKusick and Ganger are here in this form:
//!
//! | theirs | here |
//! |---|---|
//! | bmsafemap, newblk | bits in the shadow of a bitmap; shadows of blocks that are new |
//! | inodedep | the shadow of a block of the inode table |
//! | diradd, dirrem, mkdir | entries that differ between a directory's block and its shadow |
//! | allocdirect, allocindir, indirdep | pointers that differ; the shadow of a block of pointers is their safe copy |
//! | freeblks, freefile | [`Freed`] |
//! | freefrag | [`Freed`]: fragments that another run has taken the place of, or that were cut off |
//!
//! `census` counts them under their names, but for `freefrag`, which it counts as `freeblks`.
//!
//! What is freed (blocks, slots of inodes) waits until nothing that lasts points to it ([`Freed`]). A block of a directory or of pointers
//! that is freed may still be pointed to: what its shadow said of its names and pointers stays as a *ghost* until it is given back.
//!
//! Invariants
//!   1. A block without a shadow is on the device as it is in memory, down to times and counts.
//!   2. A frame whose block has a shadow stays in the cache.
//!   3. In what lasts, each name that can be reached names an inode that is there, no inode has fewer links than names, and each pointer leads
//!      to a block that is taken, was written, and has no other owner. A file that has a name in memory, and that was reached by what lasts
//!      when all lasted, or by an fsync, is reached by what lasts.
//!   4. A name that lasts and is gone in memory keeps its place in its unit ([`Soft::holds`]), so that it can be undone.
//!
//! After a crash there may be more in use than has a name, and links may be too many; `check` says which findings those are.
//!
//! Locking: the state is a leaf; the checkpointer takes it out while the gate is closed, to look at frames beside it. So who asks about the state is
//! inside the gate or has the checkpointer; anybody else might find nothing there.

mod ask;
mod census;
mod delays;
mod exchange;
mod filled;
mod image;
mod judge;
mod limits;
mod needs;
mod pending;
mod round;
mod shadow;
#[cfg(test)]
mod tests;
mod unreadable;
mod words;

pub(crate) use ask::SETTLE_TRIES;
pub(crate) use delays::{Delays, Due};
pub(crate) use exchange::Exchanged;
pub(crate) use needs::Wanted;
pub(super) use round::Goal;

use super::facts;
use super::images::Images;
use crate::cache::{Arena, Placed};
use crate::dir::OwnName;
use crate::edit::Before;
use crate::locks::{Mutex, Rank};
use crate::types::{Clock, MountOptions, Time};
use census::{Census, Kind, Tally};
use myriad_format::exchange::ExchangedName;
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{BlockKind, FsBlock, Geometry, Ino};
use pending::{Pending, Step};
use shadow::{Ghost, MODE, Shadow};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use unreadable::Unreadable;

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
    shadows: BTreeMap<u64, Box<Shadow>>,
    /// What is left of shadows of blocks that were freed.
    ghosts: BTreeMap<u64, Ghost>,
    /// Blocks of directories among the two: directory and block.
    directories: BTreeSet<(u64, u64)>,
    /// Names that had changed when the blocks that are not stale were last looked at.
    pending: Pending,
    /// Blocks that have changed since they were last compared, or whose shadow may not be needed any more.
    stale: Vec<u64>,
    /// Blocks that the last round has filled (`judge::fill`), until the next one begins.
    filled: Vec<u64>,
    /// Bytes that shadows and ghosts take, and those that the next round may add.
    memory: u64,
    reserve: u64,
    freed: Vec<Freed>,
    /// Bytes of those.
    freed_bytes: u64,
    /// The exchange of names that waits.
    exchange: Option<exchange::Exchange>,
    /// A round of what is due has left a name out that shows only with a note.
    has_due_note: bool,
}

/// What orders `sync` and `softdep` know of an open volume.
pub(crate) struct Soft {
    state: Mutex<{ Rank::Leaf as u8 }, State>,
    /// Apart from the state, which rounds take out: it is read at any time.
    census: Mutex<{ Rank::Leaf as u8 }, Census>,
    /// Fsyncs that wait, by the order in which they came.
    fsyncs: Mutex<{ Rank::Leaf as u8 }, BTreeMap<u64, Wanted>>,
    next_fsync: AtomicU64,
    /// How often the tree has changed its shape (`exchange`).
    shapes: AtomicU64,
    /// Renames since all names lasted that may leave one to be noted.
    to_note: AtomicU64,
    /// Names of their own that directories have got since then, by directory (`exchange`).
    homes: Mutex<{ Rank::Leaf as u8 }, HashMap<u64, OwnName>>,
    /// Files that have taken names of other ones since then which live on by other names (`ask`).
    takers: Mutex<{ Rank::Leaf as u8 }, HashSet<u64>>,
    /// File data that waits to be written, by block.
    data: Mutex<{ Rank::Leaf as u8 }, HashMap<u64, Data>>,
    /// Inodes that wait to be given back.
    inodes_waiting: AtomicU64,
    /// Bytes of all this (`limits`): now, and at most so far.
    bytes: AtomicU64,
    bytes_peak: AtomicU64,
    /// The same with what the next round may add: now, at most so far, and as many as there should be.
    held: AtomicU64,
    held_peak: AtomicU64,
    limit: AtomicU64,
    /// Frames that must stay in the cache: now, and as many as there should be.
    frames: AtomicU64,
    frames_limit: u64,
    /// Units that were compared with what lasts of them.
    compared: AtomicU64,
    pub unreadable: Unreadable,
    /// A change was cut off by a panic: some frame holds the half of one.
    is_spoiled: AtomicBool,
}

/// A round on its way. It stays when the host has no room for a write of it, and is written again.
pub(super) struct Round {
    /// Blocks of which it has an image, in order; so many of them are in `images`, or were.
    blocks: Vec<u64>,
    copied: usize,
    /// Images that are being written. They are made of frames and shadows a part at a time.
    images: Images,
    /// Blocks whose images were written. Others were freed before.
    written: Vec<u64>,
    /// Dependencies that it found, and those that it shows.
    tally: Tally,
    /// It looked at a part of what waits.
    is_partial: bool,
    /// File data, sorted.
    data: Vec<Placed>,
    /// Data was written before that no flush has covered yet, to which images may point.
    has_unflushed: bool,
    /// Two names that exchange in it what they name, or what is noted of a name that a directory takes or leaves: it is noted while its images are written.
    exchange: Option<[ExchangedName; 2]>,
    /// It is the exchange that waits.
    ends_exchange: bool,
    /// Images of the blocks that the exchange changes, of which all must be written once it is noted. They are made when the round begins, and stay
    /// until the note is gone: if the host has no room in between, other operations go on, and may free one of the blocks.
    kept: Images,
}

impl Freed {
    /// Whether a block is one of those given up.
    fn has(&self, block: u64) -> bool {
        self.extents.iter().any(|&(start, length)| (start.0..start.0 + u64::from(length)).contains(&block))
    }
}

impl State {
    fn is_clean(&self) -> bool {
        self.shadows.is_empty() && self.freed.is_empty()
    }

    /// Changes the shadow of a block, if it has one.
    fn with_shadow<R>(&mut self, block: u64, f: impl FnOnce(&mut Shadow) -> R) -> Option<R> {
        let shadow = self.shadows.get_mut(&block)?;
        let (memory, reserve) = (shadow.memory(), shadow.reserve());
        let result = f(shadow);
        self.memory = self.memory + shadow.memory() - memory;
        self.reserve = self.reserve + shadow.reserve() - reserve;
        Some(result)
    }

    /// The block is to be looked at behind the closed gate, if it has a shadow.
    fn make_stale(&mut self, block: u64) {
        if let Some(shadow) = self.shadows.get_mut(&block).filter(|shadow| !shadow.is_stale) {
            shadow.is_stale = true;
            self.stale.push(block);
        }
    }

    fn add(&mut self, block: FsBlock, shadow: Shadow) {
        if shadow.kind == BlockKind::LinearEntries {
            self.directories.insert((shadow.owner, block.0));
        }
        self.memory += shadow.memory();
        self.reserve += shadow.reserve();
        let old = self.shadows.insert(block.0, Box::new(shadow));
        assert!(old.is_none(), "block {} is new, and was changed before", block.0);
        self.make_stale(block.0);
    }

    /// Takes a shadow away; the names that had changed in it count no more.
    fn remove(&mut self, block: u64, geometry: &Geometry) -> Option<Box<Shadow>> {
        self.recount(block, Box::default(), geometry);
        let shadow = self.shadows.remove(&block)?;
        self.memory -= shadow.memory();
        self.reserve -= shadow.reserve();
        self.directories.remove(&(shadow.owner, block));
        Some(shadow)
    }

    /// The names that differ in a block of a directory are these now.
    fn recount(&mut self, block: u64, changes: Box<[shadow::Change]>, geometry: &Geometry) {
        let swap = |shadow: &mut Shadow| (shadow.owner, std::mem::replace(&mut shadow.changes, changes));
        let Some((dir, old)) = self.with_shadow(block, swap) else { return };
        let new = &self.shadows[&block].changes;
        new.iter().for_each(|change| self.pending.change(dir, change, Step::Begins));
        old.iter().for_each(|change| self.pending.change(dir, change, Step::Ends));
        let named =
            old.iter().flat_map(|change| [change.named_before(), change.named_now()]).flatten().map(|named| named.ino);
        self.look_again(named.chain((!old.is_empty()).then_some(Ino(dir))), geometry);
    }

    /// Names of inodes wait no more: what kept the shadows of their blocks may be gone.
    fn look_again(&mut self, inos: impl IntoIterator<Item = Ino>, geometry: &Geometry) {
        for ino in inos {
            if let (false, Some((block, _))) = (self.pending.has(ino.0), geometry.locate(ino)) {
                self.make_stale(block.0);
            }
        }
    }

    /// A block was freed that what lasts may still lead to.
    fn add_ghost(&mut self, block: u64, ghost: Ghost) {
        ghost.names().iter().for_each(|&(_, named)| self.pending.left(ghost.owner, named, Step::Begins));
        if ghost.is_of_directory() {
            self.directories.insert((ghost.owner, block));
        }
        self.memory += ghost.memory();
        self.ghosts.insert(block, ghost);
    }

    fn remove_ghost(&mut self, block: u64, geometry: &Geometry) -> Option<Ghost> {
        let ghost = self.ghosts.remove(&block)?;
        self.memory -= ghost.memory();
        self.directories.remove(&(ghost.owner, block));
        ghost.names().iter().for_each(|&(_, named)| self.pending.left(ghost.owner, named, Step::Ends));
        let named = ghost.names().iter().map(|(_, named)| named.ino);
        self.look_again(named.chain([Ino(ghost.owner)]), geometry);
        Some(ghost)
    }

    /// Those blocks are nobody's any more: names in them have gone.
    fn forget_ghosts(&mut self, extents: &[(FsBlock, u32)], geometry: &Geometry) {
        for &(start, length) in extents {
            let gone: Vec<u64> =
                self.ghosts.range(start.0..start.0 + u64::from(length)).map(|(&block, _)| block).collect();
            for block in gone {
                self.remove_ghost(block, geometry);
            }
        }
    }

    /// The image of a block lasts, or was not written.
    fn arrived(&mut self, block: u64, is_written: bool, geometry: &Geometry) {
        if is_written && self.with_shadow(block, Shadow::arrived).is_some() {
            self.make_stale(block);
        }
        // It may have been freed meanwhile.
        if let Some(mut ghost) = self.remove_ghost(block, geometry) {
            let sent = ghost.sent.take().filter(|_| is_written);
            ghost.lasting = sent.unwrap_or(ghost.lasting);
            self.add_ghost(block, ghost);
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
            shapes: AtomicU64::new(0),
            to_note: AtomicU64::new(0),
            homes: Mutex::default(),
            takers: Mutex::default(),
            data: Mutex::default(),
            inodes_waiting: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bytes_peak: AtomicU64::new(0),
            held: AtomicU64::new(0),
            held_peak: AtomicU64::new(0),
            limit: AtomicU64::new(limits::limit_of(options)),
            frames: AtomicU64::new(0),
            frames_limit: limits::frames_limit(options, block_size),
            compared: AtomicU64::new(0),
            unreadable: Unreadable::default(),
            is_spoiled: AtomicBool::new(false),
        }
    }

    /// A block has changed, which is in this frame: what of it the device has is kept. True if nothing was kept before. Its latch is held.
    pub(in crate::order) fn changed(
        &self,
        block: FsBlock,
        kind: BlockKind,
        frame: u32,
        before: &Before,
        bytes: &[u8],
        as_of: AsOf<'_>,
    ) -> bool {
        let mut words = before.differences(bytes).peekable();
        // An inode whose name has changed may have to show more links, though nothing of it differs.
        if words.peek().is_none() && kind != BlockKind::InodeTable {
            return false;
        }
        let mut state = self.state.lock();
        let is_first = !state.shadows.contains_key(&block.0);
        if is_first {
            state.add(block, Shadow::new(kind, shadow::owner_of(kind, bytes), frame, None));
        }
        state.with_shadow(block.0, |shadow| {
            words.for_each(|(at, word)| shadow.keep(at, word));
            shadow.edits += 1;
            shadow.since = Some(match (shadow.since, as_of.early) {
                (Some(since), Some(early)) => since.min(early),
                (Some(since), None) => since,
                (None, _) => as_of.time(),
            });
        });
        state.make_stale(block.0);
        self.weigh(&state);
        is_first
    }

    /// Whether something of a block waits to last: it is in use.
    pub(in crate::order) fn holds_block(&self, block: FsBlock) -> bool {
        self.state.lock().shadows.contains_key(&block.0)
    }

    /// A block is new, in this frame.
    pub(in crate::order) fn begun(&self, block: FsBlock, kind: BlockKind, owner: u64, frame: u32, as_of: AsOf<'_>) {
        let mut shadow = Shadow::new(kind, owner, frame, Some(as_of.time()));
        shadow.is_new = true;
        let mut state = self.state.lock();
        state.add(block, shadow);
        self.weigh(&state);
    }

    /// A block is being freed, and its frame about to be let go.
    pub fn forgotten(&self, block: FsBlock, arena: &Arena, geometry: &Geometry) {
        let Some(frame) = self.state.lock().shadows.get(&block.0).map(|shadow| shadow.frame) else { return };
        let bytes = arena.read(frame);
        let mut state = self.state.lock();
        if let Some(ghost) = state.remove(block.0, geometry).and_then(|shadow| Ghost::of(&shadow, &bytes)) {
            state.add_ghost(block.0, ghost);
        }
        self.weigh(&state);
    }

    /// A change was cut off by a panic: no image is made of a frame any more.
    pub(in crate::order) fn spoil(&self) {
        self.is_spoiled.store(true, Ordering::Relaxed);
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
        state.shadows.get(&block.0).is_none_or(|shadow| shadow.had_bits(at, MODE))
    }

    /// Somebody wants a file to last, which has been flushed.
    pub fn wants(&self, file: Wanted) -> u64 {
        let ticket = self.next_fsync.fetch_add(1, Ordering::Relaxed);
        self.fsyncs.lock().insert(ticket, file);
        ticket
    }

    /// What is wanted.
    pub fn wanted(&self) -> BTreeMap<u64, Wanted> {
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
    pub(in crate::order) fn add_data(&self, ino: Ino, writes: &[Placed], as_of: AsOf<'_>) {
        let since = as_of.time();
        let mut data = self.data.lock();
        for &Placed { block, .. } in writes {
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

    /// Whether something that was freed waits until nothing that lasts points to it.
    pub fn has_freed(&self) -> bool {
        !self.state.lock().freed.is_empty()
    }

    /// Dependencies by kind, and the memory that is held for them.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.census.lock().counters();
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        all.extend([("soft_bytes_now", of(&self.bytes)), ("soft_bytes_peak", of(&self.bytes_peak))]);
        all.extend([("soft_held_now", of(&self.held)), ("soft_held_peak", of(&self.held_peak))]);
        all.push(("soft_units_compared", of(&self.compared)));
        all
    }

    /// Whether the name with this tag, which is gone, lasts in a unit of a directory's block, which holds this: nothing else may take its place, and
    /// it does not move.
    pub fn holds(&self, block: FsBlock, number: usize, unit: &[u8], tag: u32) -> bool {
        let state = self.state.lock();
        state.shadows.get(&block.0).is_some_and(|shadow| shadow.has_gone_name(number, unit, tag))
    }

    /// Whether the name with this tag, which is about to go, lasts: its entry stays in its place then.
    pub fn keeps(&self, block: FsBlock, number: usize, unit: &[u8], tag: u32) -> bool {
        let state = self.state.lock();
        state.shadows.get(&block.0).is_none_or(|shadow| shadow.has_lasting_name(number, unit, tag))
    }

    /// Whether blocks of a directory have changed, and are not all as they last.
    pub fn has_changed(&self, dir: Ino) -> bool {
        self.state.lock().directories.range((dir.0, 0)..=(dir.0, u64::MAX)).next().is_some()
    }

    /// Whether a name of a directory is not as it lasts, or not as it is about to. The directory is locked.
    pub fn has_changed_name(&self, arena: &Arena, dir: Ino, tag: u32) -> bool {
        let blocks: Vec<u64> =
            self.state.lock().directories.range((dir.0, 0)..=(dir.0, u64::MAX)).map(|&(_, block)| block).collect();
        blocks.into_iter().any(|block| {
            let frame = {
                let state = self.state.lock();
                let is_there = |ghost: &Ghost| ghost.all_names().any(|&(other, _)| other == tag);
                if state.ghosts.get(&block).is_some_and(is_there) {
                    return true;
                }
                state.shadows.get(&block).map(|shadow| shadow.frame)
            };
            frame.is_some_and(|frame| {
                let bytes = arena.read(frame);
                let state = self.state.lock();
                state.shadows.get(&block).is_some_and(|shadow| shadow.has_changed_name(&bytes, tag))
            })
        })
    }

    /// What names of a directory name as they last, of units that have changed since: all names, or those with a tag. The directory is locked.
    fn lasting_names(&self, arena: &Arena, dir: Ino, tag: Option<u32>) -> Vec<Ino> {
        let mut found = Vec::new();
        let mut add =
            |other: u32, named: facts::Named| found.extend((tag.is_none_or(|tag| tag == other)).then_some(named.ino));
        let blocks: Vec<u64> =
            self.state.lock().directories.range((dir.0, 0)..=(dir.0, u64::MAX)).map(|&(_, block)| block).collect();
        for block in blocks {
            let frame = {
                let state = self.state.lock();
                state
                    .ghosts
                    .get(&block)
                    .into_iter()
                    .flat_map(Ghost::all_names)
                    .for_each(|&(tag, named)| add(tag, named));
                state.shadows.get(&block).map(|shadow| shadow.frame)
            };
            let Some(frame) = frame else { continue };
            let bytes = arena.read(frame);
            let state = self.state.lock();
            let Some(shadow) = state.shadows.get(&block) else { continue };
            for (number, unit) in bytes.chunks_exact(UNIT_SIZE).enumerate() {
                shadow.names_of_changed(number, unit, &mut add);
            }
        }
        found
    }
}
