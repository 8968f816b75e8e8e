//! Which facts a round may show: each only if all that it depends on lasted before the round.
//!
//! ```text
//! entry names an inode     the inode lasts, with links for all names that then may last; the directory's size covers the entry.
//!                          A directory: its parent has a link for it. In another one's place: the inode's data lasts as well.
//!                          No other entry of the same name lasts. An inode that has other names: the directory is reached by what lasts.
//! entry names it no more   it is to go, or all names that it has last; a directory: its identity, too
//! entry names another one  if the new one is a directory that lasts by another name, or the old one a directory that lives by another: with their identities,
//!                          and a note
//! inode begins             its bit lasts as taken, its place in the table as initialised
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

use super::State;
use super::image::{Image, Judged};
use super::pending::DIRECTORY;
use super::shadow::Shadow;
use crate::cache::FrameRead;
use crate::dir;
use crate::error::{Error, Result};
use crate::order::Look;
use crate::order::facts::{self, Fact, Named, Part};
use crate::planted::{Bug, planted};
use myriad_format::dir::EntryHeader;
use myriad_format::exchange::ExchangedName;
use myriad_format::fork::AttributeRoot;
use myriad_format::group::{GroupHeader, HEADER_BLOCK};
use myriad_format::inode::{RawInode, S_IFLNK};
use myriad_format::pointers::{self, BLOCK, Pointer, RawPointer};
use myriad_format::superblock::Superblock;
use myriad_format::table::{DIRECT, INODE_SIZE, POINTERS_OFFSET, UNIT_INODES};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::xattr::AttrBlockHeader;
use myriad_format::{AgBlock, BlockKind, FileBlock, FsBlock, Geometry, Ino};
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

/// The two states of a volume, while the gate is closed.
pub(super) struct Judge<'a> {
    look: &'a Look<'a>,
    geometry: Geometry,
    state: &'a State,
    /// Data that this round writes.
    data: &'a HashSet<u64>,
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
    /// Two entries that exchange in this round what they name, or what is noted of one.
    exchange: Option<[ExchangedName; 2]>,
    /// An entry does not show because it is to be noted.
    pub has_unnoted: bool,
}

impl<'a> Judge<'a> {
    pub fn new(look: &'a Look<'a>, state: &'a State, data: &'a HashSet<u64>, is_forced: bool) -> Result<Self> {
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
            exchange: None,
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

    /// Whether a name of an exchange may name what it is to name.
    pub fn may_be_named(&self, name: &ExchangedName) -> Result<bool> {
        let named = Named { ino: Ino(name.ino.get()), file_type: name.file_type };
        let unit = name.at.get() as usize / UNIT_SIZE;
        let place = Place { dir: Ino(name.dir.get()), block: FsBlock(name.block.get()), unit };
        self.may_name(named, &place, true)
    }

    /// Whether an entry that names another inode than before may show only with a note: the name would be a second one of a directory until the identity
    /// follows, or from the identity on.
    pub fn needs_note(&self, old: Named, new: Named) -> Result<bool> {
        let is_exempt = self.is_forced || planted(Bug::SoftTaken);
        Ok(!is_exempt && (self.is_moving(new)? && self.names(new.ino).removed > 0 || self.is_moving(old)?))
    }

    /// Whether it is a directory that has another name of its own than the one that lasts.
    pub fn is_moving(&self, named: Named) -> Result<bool> {
        if named.file_type != DIRECTORY {
            return Ok(false);
        }
        let (lasting, current) = self.inodes(named.ino)?;
        Ok(lasting.is_used()
            && current.is_used()
            && lasting.raw().generation == current.raw().generation
            && current.raw().nlink.get() > 0
            && lasting.identity() != current.identity())
    }

    /// Whether it is no directory, or one of this name.
    pub fn is_at_home(&self, named: Named, dir: Ino, hash: u64) -> Result<bool> {
        if named.file_type != DIRECTORY {
            return Ok(true);
        }
        let (parent, own_hash, _) = self.inodes(named.ino)?.1.identity();
        Ok((parent, own_hash) == (dir.0, hash))
    }

    /// Block and byte of the entry that the identity of a directory, with this inode, says; `None` if it is not reached by that in what lasts.
    pub fn home_of(&self, dir: Ino, raw: &RawInode) -> Result<Option<(FsBlock, usize)>> {
        if self.names(dir).added > 0 || !self.is_anchored(Ino(raw.parent.get()))? {
            return Ok(None);
        }
        // Where its last rename has put it. A search goes through all of the directory, and all operations wait.
        let home = self.look.volume.soft().home_of(dir);
        let place = home.map_or(Ok(None), |home| dir::place_of(self.look, dir, raw, home))?;
        if place.is_some() { Ok(place) } else { dir::place_of_own_name(self.look, dir, raw) }
    }

    /// The hash of the name of an entry of a directory's block.
    pub fn hash_at(&self, block: &[u8], at: usize) -> u64 {
        let length = usize::from(EntryHeader::read(&block[at..]).name_len);
        self.look.volume.hasher.hash(&block[at + EntryHeader::SIZE..][..length])
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
            BlockKind::Group | BlockKind::BlockBitmap | BlockKind::InodeBitmap => self.has_new_groups |= shadow.is_new,
            _ => {}
        }
    }

    /// Whether a block of pointers, as it lasts, leads to a block that is not there any more.
    fn leads_to_old(&self, shadow: &Shadow) -> bool {
        if shadow.is_new {
            return false;
        }
        let frame = self.frame(shadow);
        let mut leads = false;
        for number in shadow.lasting.units() {
            let unit = &frame[number * UNIT_SIZE..][..UNIT_SIZE];
            let lasting = shadow.lasting.unit(number, unit);
            facts::between(shadow.kind, Some(&lasting), unit, &mut |fact| {
                leads |= matches!(fact, Fact::Pointer { old, new, .. } if self.gives_up(old, new));
            });
        }
        leads
    }

    /// Whether a pointer led to content that it does not lead to any more.
    fn gives_up(&self, old: u64, new: u64) -> bool {
        let ((start, length), (start_now, length_now)) =
            (Pointer::run_of(old, &self.geometry), Pointer::run_of(new, &self.geometry));
        let is_kept =
            |index| new != 0 && start == start_now && index < length_now && !Pointer::is_unwritten(new, index);
        old != 0 && (0..length).any(|index| !Pointer::is_unwritten(old, index) && !is_kept(index))
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
            None => self.look.read(block, kind, |bytes| f(&bytes[part])).map(Some),
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

    /// Whether an inode is as it lasts, and so are its names; and the directory that its identity says is reached by what lasts. A name that is gone
    /// may still be there, and a link for it.
    pub fn lasts(&self, ino: Ino) -> Result<bool> {
        let (mut lasting, current) = self.inodes(ino)?;
        let links = lasting.raw().nlink.get().min(current.raw().nlink.get());
        RawInode::read_mut(&mut lasting.0).nlink.set(links);
        let is_same = lasting.0 == current.0 && current.is_used();
        let parent = Ino(current.raw().parent.get());
        Ok(is_same && (planted(Bug::SoftFsyncUnreached) || self.names(ino).added == 0 && self.is_anchored(parent)?))
    }

    /// An inode as it lasts, and as it is. An empty one if its block is new.
    fn inodes(&self, ino: Ino) -> Result<(Inode, Inode)> {
        let (block, slot) = self.geometry.locate(ino).ok_or(myriad_format::Corrupt::NoInode { ino })?;
        let at = self.geometry.inode_offset(slot);
        let part = at..at + INODE_SIZE;
        let copy = |bytes: &[u8]| Inode(bytes.try_into().expect("an inode's bytes"));
        let lasting = self.lasting(block, BlockKind::InodeTable, part.clone(), copy)?;
        let current = self.look.read(block, BlockKind::InodeTable, |bytes| copy(&bytes[part]))?;
        Ok((lasting.unwrap_or(Inode([0; INODE_SIZE])), current))
    }

    /// Whether a bit lasts as taken. It is, in memory.
    fn is_taken(&self, ag: u32, start: u32, index: u32) -> bool {
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

    fn is_block_taken(&self, block: FsBlock) -> bool {
        let ag = self.geometry.ag_of(block);
        self.is_taken(ag.0, self.geometry.block_bitmap_start(ag), self.geometry.ag_block_of(block).0)
    }

    /// Whether the blocks that an inode's attributes lie in last as taken. They are a chain, and lie anywhere.
    fn are_attributes_taken(&self, inode: &RawInode) -> Result<bool> {
        let Some(AttributeRoot { mut block, count }) = inode.attribute_root() else { return Ok(true) };
        for _ in 0..count {
            if planted(Bug::SoftAttributesLate) {
                break;
            }
            if !self.geometry.is_data_range(block, 1) || !self.is_block_taken(block) {
                return Ok(false);
            }
            let next = |bytes: &[u8]| FsBlock(AttrBlockHeader::read(bytes).next.get());
            block = self.look.read(block, BlockKind::Attributes, next)?;
        }
        Ok(true)
    }

    /// Whether what a pointer leads to lasts.
    fn is_pointer_safe(&self, word: u64) -> bool {
        let (start, length) = Pointer::run_of(word, &self.geometry);
        (0..length).all(|index| self.is_block_safe(start.0 + u64::from(index), Pointer::is_unwritten(word, index)))
    }

    /// Whether one block of what a pointer leads to lasts.
    fn is_block_safe(&self, block: u64, is_unwritten: bool) -> bool {
        let is_written = is_unwritten
            || (!self.data.contains(&block) || planted(Bug::SoftDataLate))
                && self.state.shadows.get(&block).is_none_or(|shadow| !shadow.is_new || planted(Bug::SoftBlockLate));
        is_written && self.is_block_taken(FsBlock(block))
    }

    /// Whether a new name of an inode may show, in a unit of a directory.
    fn may_name(&self, named: Named, place: &Place, is_replacing: bool) -> Result<bool> {
        if planted(Bug::SoftEntryEarly) {
            return Ok(true);
        }
        let (lasting, current) = self.inodes(named.ino)?;
        if !lasting.is_used() || lasting.raw().generation != current.raw().generation || !self.is_covered(place)? {
            return Ok(false);
        }
        let names = self.names(named.ino);
        if named.file_type == DIRECTORY {
            let (parent, parent_now) = self.inodes(place.dir)?;
            let subdirectories = self.subdirectories(place.dir);
            let more = subdirectories.removed + subdirectories.shown;
            let have = parent_now.raw().nlink.get().saturating_add(more).saturating_sub(subdirectories.added);
            // One with no name at all may only appear where its identity says that it is.
            let is_at_home = names.removed > 0 || lasting.identity() == current.identity();
            let may_move = names.removed == 0 || self.is_anchored(place.dir)?;
            return Ok(is_at_home && may_move && parent.raw().nlink.get() > have);
        }
        let had = current.raw().nlink.get().saturating_add(names.removed).saturating_sub(names.added);
        let have = had.saturating_add(names.shown);
        if had > 0 && !self.is_anchored(place.dir)? {
            // Other names of it may go once this one lasts, so it must be one by which the inode is found.
            return Ok(false);
        }
        let is_whole = !is_replacing
            || planted(Bug::SoftWhole)
            || lasting.0[POINTERS_OFFSET..] == current.0[POINTERS_OFFSET..]
                && lasting.raw().size == current.raw().size
                && !self.open_maps.contains(&named.ino.0);
        Ok(is_whole && lasting.raw().nlink.get() > have)
    }

    /// Whether a name of an inode that is gone may be missing.
    fn may_vanish(&self, named: Named, dir: Ino, tag: u32) -> Result<bool> {
        Ok(self.may_go(named, dir, tag)? && (!self.is_moving(named)? || planted(Bug::SoftLastName)))
    }

    /// As [`Self::may_vanish`], given that a directory's identity follows.
    pub fn may_go(&self, named: Named, dir: Ino, tag: u32) -> Result<bool> {
        let (lasting, current) = self.inodes(named.ino)?;
        // Of a directory that goes, and that a rename has left two names, its own goes last: the other one alone would be nobody's.
        let (parent, hash, _) = lasting.identity();
        let is_own = named.file_type == DIRECTORY && parent == dir.0 && hash as u32 == tag;
        let goes = !current.is_used() || current.raw().nlink.get() == 0;
        if goes && is_own && self.names(named.ino).removed > 1 && !self.is_forced {
            return Ok(false);
        }
        // A directory has one name, which its identity says: it is not found by any other, so nothing makes it go first.
        let is_forced = self.is_forced && !current.raw().is_dir();
        if planted(Bug::SoftLastName) || is_forced || goes {
            return Ok(true);
        }
        // How many names last its links do not say: power loss may have left it more.
        Ok(self.names(named.ino).added == 0)
    }

    /// Whether a directory can be reached from the root by what lasts: its name and its identity do, and those of all above it.
    fn is_anchored(&self, mut dir: Ino) -> Result<bool> {
        if self.is_forced {
            return Ok(true);
        }
        let root = self.look.volume.root;
        let mut left = self.look.volume.totals.inodes_used.load(Ordering::Relaxed);
        while dir != root {
            let (lasting, current) = self.inodes(dir)?;
            let lasts = lasting.is_used() && lasting.identity() == current.identity() && self.names(dir).added == 0;
            left -= 1;
            if !lasts || left < 0 {
                return Ok(false);
            }
            dir = Ino(current.raw().parent.get());
        }
        Ok(true)
    }

    /// Whether the size that lasts of a directory covers a unit of it.
    fn is_covered(&self, place: &Place) -> Result<bool> {
        let (lasting, current) = self.inodes(place.dir)?;
        // It may have given up a block and got another one in its place.
        let is_mapped =
            facts::pointers_of(&lasting.0).eq(facts::pointers_of(&current.0)) && !self.open_maps.contains(&place.dir.0);
        if is_mapped && lasting.raw().size == current.raw().size {
            return Ok(lasting.is_used());
        }
        // Only those that its inode points to are looked for; the others come once the directory has stopped growing.
        let found = facts::pointers_of(&lasting.0).take(DIRECT).position(|word| word & BLOCK == place.block.0);
        let per_block = (self.geometry.block_size() / UNIT_SIZE) as u64;
        let end = |file_block: usize| (file_block as u64 * per_block + place.unit as u64 + 1) * UNIT_SIZE as u64;
        Ok(found.is_some_and(|file_block| end(file_block) <= lasting.raw().size.get()))
    }

    /// The pointer to a block of a file, given the inode and how blocks of pointers are read; 0 if nothing is mapped there.
    fn pointer(
        &self,
        inode: &Inode,
        at: FileBlock,
        read: impl Fn(FsBlock, Range<usize>) -> Result<u64>,
    ) -> Result<u64> {
        let Some(way) = self.geometry.way(at) else { return Ok(0) };
        let mut word = facts::pointers_of(&inode.0).nth(way.root).unwrap_or(0);
        for level in 0..way.depth {
            if word == 0 {
                return Ok(0);
            }
            let at = pointers::offset(way.index(level));
            word = read(FsBlock(word & BLOCK), at..at + RawPointer::SIZE)?;
        }
        Ok(word)
    }

    /// Whether a block of a directory is mapped by what lasts, given the inode.
    fn is_mapped(&self, inode: &Inode, at: FileBlock) -> Result<bool> {
        let lasting = |block, part| {
            let word = |bytes: &[u8]| RawPointer::read(bytes).word.get();
            Ok(self.lasting(block, BlockKind::Pointers, part, word)?.unwrap_or(0))
        };
        Ok(self.pointer(inode, at, lasting)? != 0)
    }

    /// Whether the file that an inode was, as it lasts, has another size as it is.
    fn is_resized(was: &Inode, is: &Inode) -> bool {
        was.is_used()
            && was.raw().generation == is.raw().generation
            && !is.raw().is_dir()
            && was.raw().size != is.raw().size
    }

    /// Whether a file was cut, or grew, inside a block that does not last as it is: behind the smaller size, where there are zeros now or what
    /// was written since, the device may have bytes of before the cut, or of a write whose size power loss has taken. All of the file then
    /// stays as it lasts.
    fn is_edge_open(&self, was: &Inode, is: &Inode) -> Result<bool> {
        let size = is.raw().size.get().min(was.raw().size.get());
        let is_inside = size % self.geometry.block_size() as u64 != 0;
        if planted(Bug::SoftCut) || !is_inside || !Self::is_resized(was, is) {
            return Ok(false);
        }
        let current = |block, part: Range<usize>| {
            self.look.read(block, BlockKind::Pointers, |bytes| RawPointer::read(&bytes[part]).word.get())
        };
        let edge = size >> self.geometry.block_bits;
        let bits = self.geometry.file_fragment_bits(is.raw().file_type());
        let word = self.pointer(is, FileBlock(edge >> bits), current)?;
        let (start, length) = Pointer::run_of(word, &self.geometry);
        let index = edge & ((1 << bits) - 1);
        Ok(word != 0 && index < length.into() && self.data.contains(&(start.0 + index)))
    }
}

/// The inodes of a unit of a block of a table.
pub(super) fn inodes_of(geometry: &Geometry, block: FsBlock, number: usize) -> impl Iterator<Item = Ino> {
    (1..=UNIT_INODES).map(move |index| geometry.ino(block, number as u32 * 4 + index))
}

/// One inode of a unit of a table, of which an image is made.
struct InodeUnit<'a> {
    ino: Ino,
    /// Where it lies in the unit.
    at: usize,
    names: Pending,
    /// The facts of it that do not last.
    found: Vec<&'a Fact>,
    /// The unit as the image shows it.
    unit: &'a mut [u8],
    lasting: Option<&'a [u8]>,
}

impl<'a> InodeUnit<'a> {
    fn part(&self, is_wanted: fn(&Part) -> bool) -> Option<&'a Fact> {
        self.found.iter().copied().find(|fact| matches!(fact, Fact::Inode { part, .. } if is_wanted(part)))
    }

    fn raw(&self) -> &RawInode {
        RawInode::read(&self.unit[self.at..])
    }

    fn raw_mut(&mut self) -> &mut RawInode {
        RawInode::read_mut(&mut self.unit[self.at..])
    }

    /// It as the image shows it.
    fn shown(&self) -> Inode {
        self.inode(self.unit)
    }

    /// It as it lasts; `None`: its block is new.
    fn lasting(&self) -> Option<Inode> {
        self.lasting.map(|lasting| self.inode(lasting))
    }

    fn inode(&self, unit: &[u8]) -> Inode {
        Inode(unit[self.at..self.at + INODE_SIZE].try_into().expect("an inode's bytes"))
    }

    /// The image shows what was before the fact.
    fn undo(&mut self, fact: &Fact) {
        facts::undo(self.unit, self.lasting, fact);
    }

    fn undo_pointers(&mut self) {
        for fact in self.found.iter().filter(|fact| matches!(fact, Fact::Pointer { .. })) {
            facts::undo(self.unit, self.lasting, fact);
        }
    }
}

/// A unit of a directory.
struct Place {
    dir: Ino,
    block: FsBlock,
    unit: usize,
}

impl Judge<'_> {
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
            BlockKind::Pointers => self.judge_pointers(Ino(shadow.owner), &found, unit, lasting)?,
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

    /// Whether blocks are new that the header of a group, or the superblock, may say are there: those of the group's table, or of groups.
    fn waits_for_new_blocks(&self, block: FsBlock, kind: BlockKind) -> bool {
        match kind {
            BlockKind::Group => self.new_tables.contains(&self.geometry.ag_of(block).0) && !planted(Bug::SoftMark),
            _ => self.has_new_groups,
        }
    }

    fn judge_entries(&mut self, place: &Place, found: &[Fact], unit: &mut [u8], lasting: Option<&[u8]>) -> Result<()> {
        for fact in found {
            let Fact::Entry { at, tag, old, new } = *fact else { continue };
            assert!(at.is_some(), "a name that lasts has lost its place: {fact:?}");
            let at = at.map(|at| place.unit * UNIT_SIZE + at);
            let is_exchanged = self.is_exchanged(|name| {
                (name.block.get(), Some(name.at.get() as usize)) == (place.block.0, at)
                    && new.is_some_and(|new| new.ino.0 == name.ino.get())
            });
            if let (false, Some(old), Some(new)) = (is_exchanged, old, new)
                && self.needs_note(old, new)?
            {
                self.has_unnoted = true;
                facts::undo(unit, lasting, fact);
                continue;
            }
            let may_name = is_exchanged
                || match new {
                    // The name would be there twice.
                    Some(_) if old.is_none() && !self.is_forced && self.state.pending.is_gone(place.dir.0, tag) => {
                        false
                    }
                    Some(named) => self.may_name(named, place, old.is_some())?,
                    None => true,
                };
            let may_vanish = is_exchanged
                || match old {
                    Some(named) => self.may_vanish(named, place.dir, tag)?,
                    None => true,
                };
            if !may_name || !may_vanish {
                facts::undo(unit, lasting, fact);
                continue;
            }
            if let Some(named) = new {
                *self.shown_names.entry(named.ino.0).or_default() += 1;
                if named.file_type == DIRECTORY {
                    *self.shown_subdirectories.entry(place.dir.0).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    fn judge_inodes(
        &self,
        block: FsBlock,
        number: usize,
        found: &[Fact],
        unit: &mut [u8],
        lasting: Option<&[u8]>,
    ) -> Result<()> {
        let places = [UnitHeader::SIZE, UnitHeader::SIZE + INODE_SIZE];
        for (at, ino) in places.into_iter().zip(inodes_of(&self.geometry, block, number)) {
            let of_it = found
                .iter()
                .filter(|fact| match **fact {
                    Fact::Inode { at: its, .. } => its == at,
                    Fact::Pointer { inode, .. } => inode == Some(at),
                    _ => false,
                })
                .collect();
            self.judge_inode(InodeUnit { ino, at, names: self.names(ino), found: of_it, unit: &mut *unit, lasting })?;
        }
        Ok(())
    }

    fn judge_inode(&self, mut inode: InodeUnit<'_>) -> Result<()> {
        if let Some(died) = inode.part(|part| *part == Part::Died) {
            let is_named = inode.names.removed > 0;
            if is_named {
                inode.undo(died);
            }
            // A bit that damage has freed may have let another inode begin in its place.
            if is_named || inode.part(|part| *part == Part::Born).is_none() {
                return Ok(());
            }
        }
        let is = inode.shown();
        if !is.is_used() {
            return Ok(());
        }
        let is_unsafe =
            |fact: &&Fact| matches!(**fact, Fact::Pointer { new, .. } if new != 0 && !self.is_pointer_safe(new));
        let unsafe_pointers: Vec<&Fact> = inode.found.iter().copied().filter(is_unsafe).collect();
        if let Some(born) = inode.part(|part| *part == Part::Born)
            && !self.may_begin(&inode, !unsafe_pointers.is_empty())?
        {
            inode.undo(born);
            return Ok(());
        }
        let are_attributes_hidden = self.hide_attributes(&mut inode, &is)?;
        // What the inode's own pointers lead to changes together with its size, unless they have to stay.
        let keeps_old_block = are_attributes_hidden
            || self.old_maps.contains(&inode.ino.0)
            || unsafe_pointers.iter().any(|fact| matches!(fact, Fact::Pointer { old, .. } if *old != 0));
        let is_size_hidden = self.hide_size(&mut inode, &is, keeps_old_block)?;
        // Otherwise all its pointers are as they last.
        if !is_size_hidden && !are_attributes_hidden {
            unsafe_pointers.into_iter().for_each(|fact| inode.undo(fact));
        }
        self.judge_identity(&mut inode)?;
        self.judge_directory_size(&mut inode)?;
        let shown = self.shown_links(&inode);
        inode.raw_mut().nlink.set(shown);
        Ok(())
    }

    /// Whether the attributes that an inode has show, given the inode as it is.
    fn may_have_attributes(&self, ino: Ino, is: &RawInode) -> Result<bool> {
        let is_known = self.has_features && self.are_groups_made;
        Ok(is_known && !self.new_attributes.contains(&ino.0) && self.are_attributes_taken(is)?)
    }

    /// Whether an inode may begin.
    fn may_begin(&self, inode: &InodeUnit<'_>, has_unsafe_pointers: bool) -> Result<bool> {
        let (place, slot) = self.geometry.locate(inode.ino).expect("an inode of a table");
        let ag = self.geometry.ag_of(place);
        let index = self.geometry.table_index(place, slot).expect("an inode of a table");
        let header = self.geometry.fs_block(ag, AgBlock(HEADER_BLOCK));
        let inode_blocks = |bytes: &[u8]| GroupHeader::read(bytes).inode_blocks.get();
        let made = self.lasting(header, BlockKind::Group, 0..UNIT_SIZE, inode_blocks)?;
        let end = self.geometry.table_start(ag) + made.unwrap_or(0);
        // A link without its target, and a file without its ACL, are no links and files.
        let raw = inode.raw();
        let is_whole = (raw.file_type() != S_IFLNK || !has_unsafe_pointers)
            && (raw.attribute_root().is_none() || self.may_have_attributes(inode.ino, raw)?);
        Ok(is_whole
            && self.is_taken(ag.0, self.geometry.inode_bitmap_start(ag), index)
            && self.geometry.ag_block_of(place).0 < end)
    }

    /// Shows size and pointers of a file as they last, if it was cut or grew inside a block that does not last as it is, or was cut and written
    /// again and `keeps_old_block`: no new size shows over old blocks. Whether it was. `is`: the inode as it is.
    fn hide_size(&self, inode: &mut InodeUnit<'_>, is: &Inode, keeps_old_block: bool) -> Result<bool> {
        let Some(was) = inode.lasting() else { return Ok(false) };
        let must_hide = keeps_old_block && Self::is_resized(&was, is) || self.is_edge_open(&was, is)?;
        if !must_hide {
            return Ok(false);
        }
        inode.raw_mut().size = was.raw().size;
        inode.undo_pointers();
        Ok(true)
    }

    /// Shows attributes, with mode and owner, and guards as they last, unless what they need lasts; whether it hid attributes. `is`: the inode as it is.
    fn hide_attributes(&self, inode: &mut InodeUnit<'_>, is: &Inode) -> Result<bool> {
        let attributes = inode.part(|part| *part == Part::Attributes);
        let hidden = match attributes {
            Some(attributes) if !self.may_have_attributes(inode.ino, is.raw())? => Some(attributes),
            _ => None,
        };
        if let Some(attributes) = hidden {
            inode.undo(attributes);
        }
        if let Some(guards) = inode.part(|part| matches!(part, Part::Guards { .. }))
            && !self.has_features
        {
            inode.undo(guards);
        }
        Ok(hidden.is_some())
    }

    fn judge_identity(&self, inode: &mut InodeUnit<'_>) -> Result<()> {
        let Some(identity) = inode.part(|part| *part == Part::Identity) else { return Ok(()) };
        let is_exchanged = self.is_exchanged(|name| name.ino.get() == inode.ino.0);
        let is_reached = is_exchanged || inode.names.added == 0 && self.is_anchored(Ino(inode.raw().parent.get()))?;
        // The name that it lasts by would be a second one.
        let is_to_note =
            !is_exchanged && self.state.pending.is_replaced(inode.ino.0) && !self.is_forced && !planted(Bug::SoftTaken);
        // While no name lasts, there is none that it could be wrong about.
        if inode.names.removed > 0 && (!is_reached || is_to_note) && !planted(Bug::SoftIdentity) {
            inode.undo(identity);
        }
        Ok(())
    }

    /// A directory's size grows once all blocks that it then covers are mapped.
    fn judge_directory_size(&self, inode: &mut InodeUnit<'_>) -> Result<()> {
        if !inode.raw().is_dir() {
            return Ok(());
        }
        let size = inode.raw().size.get();
        // One that begins had nothing.
        let lasted = inode.lasting().filter(|_| inode.part(|part| *part == Part::Born).is_none());
        let old = lasted.map_or(0, |lasting| lasting.raw().size.get());
        if size <= old {
            return Ok(());
        }
        let shown = inode.shown();
        let last = FileBlock((size - 1) >> self.geometry.block_bits);
        let first = FileBlock(old >> self.geometry.block_bits);
        let mut is_mapped = true;
        for block in first.0..=last.0 {
            is_mapped &= self.is_mapped(&shown, FileBlock(block))?;
        }
        if !is_mapped && !planted(Bug::SoftSize) {
            inode.raw_mut().size.set(old);
            // Blocks behind its size are no blocks of a directory.
            inode.undo_pointers();
        }
        Ok(())
    }

    /// The links that an inode shows: also those of names and subdirectories that are gone, and last.
    fn shown_links(&self, inode: &InodeUnit<'_>) -> u32 {
        let links = inode.raw().nlink.get();
        let removed = inode.names.removed;
        if planted(Bug::SoftLinksLow) {
            links
        } else if !inode.raw().is_dir() {
            links.saturating_add(removed)
        } else if links > 0 {
            links.saturating_add(self.subdirectories(inode.ino).removed)
        } else if removed > 0 {
            // It goes, and is named as long as its name lasts.
            inode.lasting().map_or(0, |lasting| lasting.raw().nlink.get())
        } else {
            0
        }
    }

    fn judge_pointers(&self, owner: Ino, found: &[Fact], unit: &mut [u8], lasting: Option<&[u8]>) -> Result<()> {
        let (was, is) = self.inodes(owner)?;
        // What a directory's size covers must be mapped.
        let may_clear = !is.raw().is_dir() || was.raw().size == is.raw().size;
        let is_edge_open = self.is_edge_open(&was, &is)?;
        for fact in found {
            let Fact::Pointer { new, .. } = *fact else { continue };
            let may = !is_edge_open && if new == 0 { may_clear } else { self.is_pointer_safe(new) };
            if !may {
                facts::undo(unit, lasting, fact);
            }
        }
        Ok(())
    }
}
