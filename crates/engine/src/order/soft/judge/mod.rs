//! Which facts a round may show: each only if all that it depends on lasted before the round.
//!
//! ```text
//! entry names an inode     the inode lasts, with links for all names that then may last; the directory's size covers the entry.
//!                          A directory: its parent has a link for it. In another one's place: the inode's data lasts as well.
//!                          No other entry of the same name lasts. An inode that has other names: the directory is reached by what lasts.
//! entry names it no more   it is to go, or all names that it has last; a directory: its identity, too
//! entry names another one  if the new one is a directory that lasts by another name, or the old one a directory that lives by another: with their identities,
//!                          and a note
//! inode begins             its bit lasts as taken, its place in the table as initialised; in a new block of the table at once (`fill`)
//! inode ends               no name of it lasts
//! links                    as many as there are, and as names that are gone still last
//! identity                 the entry that it says lasts, in a directory that is reached by what lasts; or no name of the directory does. Its old name is to
//!                          name nothing else
//! pointer                  the block's bit lasts as taken, and what is in it lasts
//! size of a file           its last block lasts, where it ends inside one; nothing that lasts leads to a block that the file has given up
//! attributes               what they lie in lasts, and its bits as taken; the superblock says that the volume has some, and which groups are made
//! mode, owner and flags    if the attributes show that came with them
//! size of a directory      all its blocks are mapped
//! ```
//!
//! Two entries that exchange what they name wait for each other by these rules. They show together, in a round that says so first (`exchange`). So do an entry
//! and identities.
//!
//! Each part of this folder has the rules of one kind of fact, under the names of the structures of McKusick and Ganger whose place it takes:
//!
//! | part | judges | theirs |
//! |---|---|---|
//! | `entries` | names that come and go | pagedep, diradd, mkdir, dirrem, newdirblk |
//! | `notes` | names that show only with a note | - |
//! | `inodes` | inodes that begin and end, their links and identities | inodedep, freefile |
//! | `attributes` | where attributes lie, and what came with them | - |
//! | `sizes` | sizes of files and directories | of allocdirect, allocindir |
//! | `pointers` | pointers in inodes and in blocks of pointers | allocdirect, allocindir, indirdep |
//! | `bits` | what is taken, and what is made | bmsafemap, newblk |
//! | `fill` | what new blocks show that nothing leads to | - |
//!
//! What is given back (freeblks, freefrag) is no fact of an image: `super::Freed` waits for it.
//!
//! Invariants
//!   1. A fact shows only if all that it depends on lasted before the round. So a round may leave out any unit, and any of its sectors may be missing. What new
//!      blocks show before that (`fill`), nothing that lasts leads to.
//!   2. A unit of which something cannot be judged stays as it lasts.

mod attributes;
mod bits;
mod entries;
mod fill;
mod inodes;
mod notes;
mod pointers;
mod sizes;

use super::State;
use super::image::{Image, Judged};
use super::shadow::Shadow;
use crate::cache::{FrameRead, kind_code};
use crate::error::{Error, Result};
use crate::order::Look;
use crate::order::facts;
use myriad_format::exchange::ExchangedName;
use myriad_format::inode::RawInode;
use myriad_format::superblock::Superblock;
use myriad_format::table::{INODE_SIZE, UNIT_INODES, UNIT_SLOTS};
use myriad_format::unit::UNIT_SIZE;
use myriad_format::{BlockKind, FsBlock, Geometry, Ino};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Names of an inode, or subdirectories of a directory, that differ between what is and what lasts.
#[derive(Clone, Copy)]
struct Pending {
    added: u32,
    removed: u32,
    /// Of those added, how many this round shows.
    shown: u32,
}

/// An inode of the table with its pointers.
#[derive(Clone, Copy)]
struct Inode([u8; INODE_SIZE]);

impl Inode {
    fn raw(&self) -> &RawInode {
        RawInode::read(&self.0)
    }

    fn is_used(&self) -> bool {
        self.raw().mode.get() != 0
    }

    fn identity(&self) -> (u64, u64, u32) {
        let raw = self.raw();
        (raw.parent.get(), raw.name_hash.get(), raw.entry_position.get())
    }
}

/// A unit of a directory.
struct Place {
    dir: Ino,
    block: FsBlock,
    unit: usize,
}

/// Data that waits to be written.
#[derive(Default)]
pub(super) struct WaitingData {
    /// Its blocks: what points to them does not show.
    pub blocks: HashSet<u64>,
    /// Its files: they show in no other one's place.
    pub inodes: HashSet<u64>,
}

/// The two states of a volume, while the gate is closed.
pub(super) struct Judge<'a> {
    look: &'a Look<'a>,
    geometry: Geometry,
    state: &'a State,
    data: &'a WaitingData,
    /// Changes wait for each other: names of files may go before others last, and a name may be there twice.
    is_forced: bool,
    /// Groups that what lasts of the superblock says are made, and whether those are all that there are.
    made: u32,
    are_groups_made: bool,
    /// What lasts of the superblock says all features that the volume has.
    has_features: bool,
    /// How many new names of an inode this round shows, and how many of new subdirectories of a directory.
    shown_names: HashMap<u64, u32>,
    shown_subdirectories: HashMap<u64, u32>,
    /// Inodes with attributes in blocks that are new, and those with blocks of pointers that do not last as they are; of these, those whose blocks
    /// of pointers still lead, as they last, to blocks that the inode has given up.
    new_attributes: HashSet<u64>,
    open_maps: HashSet<u64>,
    old_maps: HashSet<u64>,
    /// Groups of whose table blocks are new, and whether blocks of groups are that make groups.
    new_tables: HashSet<u32>,
    has_new_groups: bool,
    /// Groups whose header does not last as it is, and how many blocks of their tables it says are initialised, as it lasts.
    marks: HashMap<u32, u32>,
    /// New blocks show at once what is safe when the mark of their group shows. Inodes that new blocks of tables show like that, as they are, and the new blocks that
    /// their pointers lead to (`fill`).
    pub fills: bool,
    filled: HashSet<u64>,
    filled_blocks: HashSet<u64>,
    /// Two entries that exchange in this round what they name, or what is noted of one.
    exchange: Option<[ExchangedName; 2]>,
    /// What is known of directories: whether what lasts reaches them. Many names lie in one, and many directories below another.
    anchored: RefCell<HashMap<u64, bool>>,
    /// An entry does not show because it is to be noted.
    pub has_unnoted: bool,
}

/// The inodes of a unit of a block of a table.
pub(super) fn inodes_of(geometry: &Geometry, block: FsBlock, number: usize) -> impl Iterator<Item = Ino> {
    (1..=UNIT_INODES).map(move |index| geometry.ino(block, number as u32 * UNIT_SLOTS + index))
}

impl<'a> Judge<'a> {
    pub fn new(look: &'a Look<'a>, state: &'a State, data: &'a WaitingData, is_forced: bool) -> Result<Self> {
        let mut judge = Self {
            look,
            geometry: look.volume.geometry,
            state,
            data,
            is_forced,
            made: 0,
            are_groups_made: false,
            has_features: false,
            shown_names: HashMap::new(),
            shown_subdirectories: HashMap::new(),
            new_attributes: HashSet::new(),
            open_maps: HashSet::new(),
            old_maps: HashSet::new(),
            new_tables: HashSet::new(),
            has_new_groups: false,
            marks: HashMap::new(),
            fills: false,
            filled: HashSet::new(),
            filled_blocks: HashSet::new(),
            exchange: None,
            anchored: RefCell::default(),
            has_unnoted: false,
        };
        let of_superblock = |bytes: &[u8]| {
            let superblock = Superblock::read(bytes);
            (superblock.ag_high_water.get(), superblock.features_compatible.get())
        };
        // On a volume that was just made, nothing of it lasts.
        if let Some((made, features)) = judge.lasting(FsBlock(0), BlockKind::Superblock, 0..UNIT_SIZE, of_superblock)? {
            let wanted = look.volume.features.load(Ordering::Relaxed);
            judge.made = made;
            judge.are_groups_made = made == look.volume.high_water();
            judge.has_features = wanted & !features == 0;
        }
        for (&block, shadow) in &state.shadows {
            judge.gather(block, shadow);
        }
        Ok(judge)
    }
}

impl Judge<'_> {
    /// This round shows an exchange.
    pub fn exchange(&mut self, names: [ExchangedName; 2]) {
        self.exchange = Some(names);
    }

    /// Whether the superblock lasts.
    pub fn has_superblock(&self) -> bool {
        self.made > 0
    }

    /// The frame of a block.
    pub fn frame(&self, shadow: &Shadow) -> FrameRead<'_> {
        self.look.volume.cache.arena.read(shadow.frame)
    }

    /// Whether an entry, or an inode, changes with an exchange that this round shows.
    fn is_exchanged(&self, is_one: impl Fn(&ExchangedName) -> bool) -> bool {
        self.exchange.as_ref().is_some_and(|names| names.iter().any(is_one))
    }

    /// What of a block that has changed others depend on.
    fn gather(&mut self, block: u64, shadow: &Shadow) {
        match shadow.kind {
            BlockKind::Attributes if shadow.is_new => drop(self.new_attributes.insert(shadow.owner)),
            BlockKind::Pointers => {
                self.open_maps.insert(shadow.owner);
                if self.leads_to_old(shadow) {
                    self.old_maps.insert(shadow.owner);
                }
            }
            BlockKind::InodeTable if shadow.is_new => {
                self.new_tables.insert(self.geometry.ag_of(FsBlock(block)).0);
            }
            BlockKind::Group | BlockKind::BlockBitmap | BlockKind::InodeBitmap => {
                self.has_new_groups |= shadow.is_new;
                if shadow.kind == BlockKind::Group {
                    self.note_mark(block, shadow);
                }
            }
            _ => {}
        }
    }

    fn names(&self, ino: Ino) -> Pending {
        let count = self.state.pending.names(ino.0);
        let shown = self.shown_names.get(&ino.0).copied().unwrap_or(0);
        Pending { added: count.added, removed: count.removed, shown }
    }

    fn subdirectories(&self, dir: Ino) -> Pending {
        let count = self.state.pending.subdirectories(dir.0);
        let shown = self.shown_subdirectories.get(&dir.0).copied().unwrap_or(0);
        Pending { added: count.added, removed: count.removed, shown }
    }

    /// A block as it is. One that could not be read lately is asked for again only if somebody else has brought it into the cache. Behind the closed gate nobody
    /// evicts, and there may be more directories on the way to the root than there are frames: so once they are few, it goes past the cache.
    fn read<R>(&self, block: FsBlock, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let volume = self.look.volume;
        let unreadable = &volume.soft().unreadable;
        if let Some(error) = unreadable.find(block, volume.ticks())
            && volume.cache.find_loaded(block, kind_code(kind), 0).is_none()
        {
            return Err(error);
        }
        volume.cache.read_past(block, kind, f).inspect_err(|error| unreadable.note(block, error, volume.ticks()))
    }

    /// A part of a block, of whole words, as it lasts; `None`: the block is new.
    fn lasting<R>(
        &self,
        block: FsBlock,
        kind: BlockKind,
        part: Range<usize>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        match self.state.shadows.get(&block.0) {
            Some(shadow) if shadow.is_new => Ok(None),
            Some(shadow) => {
                let mut bytes = self.look.volume.cache.arena.read(shadow.frame)[part.clone()].to_vec();
                shadow.lasting.lay_over(part.start, &mut bytes);
                Ok(Some(f(&bytes)))
            }
            None => self.read(block, kind, |bytes| f(&bytes[part])).map(Some),
        }
    }

    pub fn root(&self) -> Ino {
        self.look.volume.root
    }

    /// An inode as it is.
    pub fn raw(&self, ino: Ino) -> Result<RawInode> {
        Ok(*self.inodes(ino)?.1.raw())
    }

    /// Where an inode lies.
    pub fn block_of(&self, ino: Ino) -> Option<u64> {
        self.geometry.locate(ino).map(|(block, _)| block.0)
    }

    /// An inode as it lasts, and as it is. An empty one if its block is new.
    fn inodes(&self, ino: Ino) -> Result<(Inode, Inode)> {
        let (block, slot) = self.geometry.locate(ino).ok_or(myriad_format::Corrupt::NoInode { ino })?;
        let at = self.geometry.inode_offset(slot);
        let part = at..at + INODE_SIZE;
        let copy = |bytes: &[u8]| Inode(bytes.try_into().expect("an inode's bytes"));
        let current = self.read(block, BlockKind::InodeTable, |bytes| copy(&bytes[part.clone()]))?;
        // Most have not changed: then they are not read twice.
        let lasting = match self.state.shadows.contains_key(&block.0) {
            true => self.lasting(block, BlockKind::InodeTable, part, copy)?,
            false => Some(Inode(current.0)),
        };
        Ok((lasting.unwrap_or(Inode([0; INODE_SIZE])), current))
    }

    /// The image of a block: as it is, but for what is not safe. A unit stays as it lasts, as if its sector were never to arrive, if what says whether it may
    /// show cannot be read. Of a new block there is no image then.
    pub fn image(&mut self, block: u64, shadow: &Shadow) -> Result<Image> {
        let geometry = self.geometry;
        // Of which it may have to show more links, though nothing of it differs.
        let has_names = |number: usize| {
            shadow.kind == BlockKind::InodeTable
                && inodes_of(&geometry, FsBlock(block), number).any(|ino| self.state.pending.has(ino.0))
        };
        let mut image = Image::new(shadow, &self.look.volume.cache.arena.read(shadow.frame), has_names);
        for unit in &mut image.units {
            match (self.judge_unit(FsBlock(block), shadow, unit), unit.lasting) {
                (Err(error @ (Error::Io(_) | Error::Corrupt(_))), Some(lasting)) => {
                    unit.image = lasting;
                    image.unreadable.get_or_insert(error);
                }
                (judged, _) => judged?,
            }
        }
        Ok(image)
    }

    /// Undoes what is not safe in a unit of an image.
    fn judge_unit(&mut self, block: FsBlock, shadow: &Shadow, judged: &mut Judged) -> Result<()> {
        let lasting = judged.lasting.as_ref().map(|bytes| &bytes[..]);
        let mut found = Vec::new();
        facts::between(shadow.kind, lasting, &judged.image, &mut |fact| found.push(fact));
        let (number, unit) = (judged.number, &mut judged.image[..]);
        match shadow.kind {
            BlockKind::LinearEntries => {
                let place = Place { dir: Ino(shadow.owner), block, unit: number };
                self.judge_entries(&place, &found, unit, lasting)?;
            }
            BlockKind::InodeTable => self.judge_inodes(block, number, &found, unit, lasting)?,
            BlockKind::Pointers => {
                let is_filled = self.filled_blocks.contains(&block.0);
                self.judge_pointers(Ino(shadow.owner), is_filled, &found, unit, lasting)?;
            }
            BlockKind::Group | BlockKind::Superblock if self.waits_for_new_blocks(block, shadow.kind) => {
                for fact in &found {
                    facts::undo(unit, lasting, fact);
                }
            }
            _ => {}
        }
        facts::settle(shadow.kind, unit);
        Ok(())
    }
}
