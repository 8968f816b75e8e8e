//! What the device has of a block that has changed: its shadow, and what is left of it when the block is freed.
//!
//! A shadow holds no copy of the block. It holds the words in which the block as it lasts differs from its frame, and, while an image of it is on its way,
//! those in which the image does. Whoever changes a block adds the words that he changes ([`Shadow::keep`]), as they were before, to both.

use super::words::Words;
use crate::inode::ATTRIBUTE_ROOT;
use crate::order::facts::{self, Fact, Named};
use crate::types::Time;
use myriad_format::inode::RawInode;
use myriad_format::pointers::{BLOCK, Pointer};
use myriad_format::table::{INODE_SIZE, POINTERS_OFFSET};
use myriad_format::unit::{UNIT_SIZE, UnitHeader};
use myriad_format::{BlockHeader, BlockKind, Geometry, Ino};
use std::mem::offset_of;
use std::num::NonZero;

/// Words of the largest blocks.
const WORDS_MAX: u32 = 8192;
/// Bytes that a name takes that has changed, here and where names are counted.
const NAME: u64 = (size_of::<Change>() + 2 * size_of::<u64>() * 3) as u64;

/// A block as the device has it, of which memory has something newer.
pub(super) struct Shadow {
    pub kind: BlockKind,
    /// The block is new, and what the device has there means nothing.
    pub is_new: bool,
    /// It is listed as one to be looked at behind the closed gate ([`super::State::stale`]).
    pub is_stale: bool,
    /// The frame that has it as it is.
    pub frame: u32,
    /// Changes since it was last looked at behind the closed gate; and, while it is new, words that they changed.
    pub edits: u32,
    new_words: u32,
    /// Whose it is.
    pub owner: u64,
    /// What of it lasts and is not so in the frame.
    pub lasting: Words,
    /// The image of it that is on its way: what of that is not so in the frame.
    pub sent: Option<Box<Words>>,
    /// When it changed first since an image showed all of it (`delays`). `None`: nothing of it needs a write for its own sake.
    pub since: Option<Time>,
    /// Of a directory's block: the names that had changed when it was last looked at.
    pub changes: Box<[Change]>,
}

/// A name that differs between a directory's block and what lasts of it.
#[derive(Clone, Copy)]
pub(super) struct Change {
    old: Option<NonZero<u64>>,
    new: Option<NonZero<u64>>,
    pub tag: u32,
    old_type: u8,
    new_type: u8,
}

impl Change {
    fn of(fact: &Fact) -> Option<Self> {
        let Fact::Entry { tag, old, new, .. } = *fact else { return None };
        let ino = |named: Option<Named>| named.and_then(|named| NonZero::new(named.ino.0));
        let file_type = |named: Option<Named>| named.map_or(0, |named| named.file_type);
        Some(Self { old: ino(old), new: ino(new), tag, old_type: file_type(old), new_type: file_type(new) })
    }

    pub fn named_before(&self) -> Option<Named> {
        self.old.map(|ino| Named { ino: Ino(ino.get()), file_type: self.old_type })
    }

    pub fn named_now(&self) -> Option<Named> {
        self.new.map(|ino| Named { ino: Ino(ino.get()), file_type: self.new_type })
    }
}

/// Whose a block is, given its bytes.
pub(super) fn owner_of(kind: BlockKind, bytes: &[u8]) -> u64 {
    if kind.is_of_units() { UnitHeader::read(bytes).owner.get() } else { BlockHeader::read(bytes).owner.get() }
}

impl Shadow {
    pub fn new(kind: BlockKind, owner: u64, frame: u32, since: Option<Time>) -> Self {
        let (lasting, sent, changes) = (Words::default(), None, Box::default());
        Self {
            kind,
            is_new: false,
            is_stale: false,
            frame,
            edits: 0,
            new_words: 0,
            owner,
            lasting,
            sent,
            since,
            changes,
        }
    }

    /// Bytes of memory that it takes, beside the map that it lies in.
    pub fn memory(&self) -> u64 {
        let sent = self.sent.as_ref().map_or(0, |sent| size_of::<Words>() as u64 + sent.memory());
        (size_of::<Self>() + size_of_val(&*self.changes)) as u64 + self.lasting.memory() + sent
    }

    /// Bytes that the next round may add: the words in which its image is not as the frame, and names that it finds to have changed.
    pub fn reserve(&self) -> u64 {
        let words = match (&self.sent, self.is_new) {
            (Some(_), _) => 0,
            (None, true) => u64::from(self.new_words) * Words::EACH,
            (None, false) => self.lasting.memory(),
        };
        let names = if self.kind == BlockKind::LinearEntries { u64::from(self.edits) * NAME } else { 0 };
        words + names
    }

    /// A word at a byte of the block has changed: this is what it was.
    pub fn keep(&mut self, at: usize, word: &[u8]) {
        if self.is_new {
            self.new_words = (self.new_words + 1).min(WORDS_MAX);
        } else {
            self.lasting.keep(at, word);
        }
        if let Some(sent) = &mut self.sent {
            sent.keep(at, word);
        }
    }

    /// Its image is on the device.
    pub fn arrived(&mut self) {
        if let Some(sent) = self.sent.take() {
            (self.lasting, self.is_new, self.new_words) = (*sent, false, 0);
        }
    }

    /// Whether anything of it differs from what lasts.
    pub fn has_changed(&self) -> bool {
        self.is_new || !self.lasting.is_empty()
    }

    /// Units in which it differs from what lasts.
    pub fn changed_units(&self, block_size: usize) -> Vec<usize> {
        if self.is_new { (0..block_size / UNIT_SIZE).collect() } else { self.lasting.units().collect() }
    }

    /// A unit as it lasts, given that of the frame.
    pub fn lasting_unit(&self, number: usize, frame: &[u8]) -> Option<[u8; UNIT_SIZE]> {
        (!self.is_new).then(|| self.lasting.unit(number, frame))
    }

    /// The words by which units of it differ from the frame: those that last, and those of the image on its way.
    fn both(&self) -> impl Iterator<Item = &Words> {
        (!self.is_new).then_some(&self.lasting).into_iter().chain(self.sent.as_deref())
    }

    /// Whether a word of it lasts with any of these bits, given that it has none of them now.
    pub fn lasts_with(&self, at: usize, bits: u64) -> bool {
        !self.is_new && self.lasting.word(at).is_some_and(|word| word & bits != 0)
    }

    /// As [`Self::lasts_with`], or is about to.
    pub fn had_bits(&self, at: usize, bits: u64) -> bool {
        self.both().any(|words| words.word(at).is_some_and(|word| word & bits != 0))
    }

    /// What names name that last in one of its units, or are about to; nothing of a unit in which those are the same as now. `unit` is that of the frame.
    pub fn names_of_changed(&self, number: usize, unit: &[u8], mut f: impl FnMut(u32, Named)) {
        for words in self.both().filter(|words| words.has_unit(number)) {
            facts::live(&words.unit(number, unit)).for_each(|(entry, named)| f(entry.tag, named));
        }
    }

    /// Whether a name lasts in one of its units, or is about to, that is not there now.
    pub fn has_gone_name(&self, number: usize, unit: &[u8], tag: u32) -> bool {
        // Counted, for a forged image may have a tag twice in a unit. One that has come back, elsewhere in the unit, is there: what it left behind, the order
        // had let go of before.
        let count = |unit: &[u8]| facts::live(unit).filter(|(entry, _)| entry.tag == tag).count();
        let now = count(unit);
        self.both().filter(|words| words.has_unit(number)).any(|words| count(&words.unit(number, unit)) > now)
    }

    /// Whether a name that is there now lasts, or is about to.
    pub fn has_lasting_name(&self, number: usize, unit: &[u8], tag: u32) -> bool {
        self.both().any(|words| facts::live(&words.unit(number, unit)).any(|(entry, _)| entry.tag == tag))
    }

    /// Whether a name of it is not as it lasts, or not as it is about to, given the block as it is.
    pub fn has_changed_name(&self, frame: &[u8], tag: u32) -> bool {
        let mut has_changed = false;
        for (number, unit) in frame.chunks_exact(UNIT_SIZE).enumerate() {
            let mut look = |lasting: Option<&[u8]>| {
                facts::between(self.kind, lasting, unit, &mut |fact| {
                    has_changed |= matches!(fact, Fact::Entry { tag: other, .. } if other == tag);
                });
            };
            if self.is_new {
                look(None);
            }
            self.both().filter(|words| words.has_unit(number)).for_each(|words| look(Some(&words.unit(number, unit))));
        }
        has_changed
    }

    /// The names that differ, given the block as it is.
    pub fn find_changes(&self, frame: &[u8]) -> Box<[Change]> {
        let mut changes = Vec::new();
        for number in self.changed_units(frame.len()) {
            let unit = &frame[number * UNIT_SIZE..][..UNIT_SIZE];
            let lasting = self.lasting_unit(number, unit);
            facts::between(self.kind, lasting.as_ref().map(|unit| &unit[..]), unit, &mut |fact| {
                changes.extend(Change::of(&fact));
            });
        }
        changes.into()
    }

    /// Whether a pointer lasts in it that leads to a block that `is_freed`. Nothing points there now, so the pointer is a word that has changed.
    pub fn points_to(&self, geometry: &Geometry, is_freed: impl Fn(u64) -> bool) -> bool {
        let leads_there = |at: usize, word: u64| match self.kind {
            BlockKind::Pointers => at % UNIT_SIZE >= UnitHeader::SIZE && leads_to(word, geometry, &is_freed),
            BlockKind::InodeTable => {
                let Some(offset) = (at % UNIT_SIZE).checked_sub(UnitHeader::SIZE) else { return false };
                let of_inode = offset % INODE_SIZE;
                let mode = self.lasting.word(at - of_inode);
                let is_used = || mode.is_none_or(|word| word & MODE != 0);
                match of_inode {
                    // Attributes go with the first of their blocks.
                    ATTRIBUTE_ROOT => is_freed(word & BLOCK) && is_used(),
                    POINTERS_OFFSET.. => leads_to(word, geometry, &is_freed) && is_used(),
                    _ => false,
                }
            }
            _ => false,
        };
        !self.is_new && self.lasting.all().any(|(at, word)| word & BLOCK != 0 && leads_there(at, word))
    }
}

/// Whether a pointer leads to a block, or a fragment of one, that `is_freed`.
fn leads_to(word: u64, geometry: &Geometry, is_freed: impl Fn(u64) -> bool) -> bool {
    let (start, length) = Pointer::run_of(word, geometry);
    (0..u64::from(length)).any(|index| is_freed(start.0 + index))
}

/// Of the first word of an inode, its mode: 0 where no inode is.
pub(super) const MODE: u64 = 0xFFFF;
const _: () = assert!(offset_of!(RawInode, mode) == 0 && ATTRIBUTE_ROOT % 8 == 0);

/// What lasts of a block that was freed, and matters as long as it may be reached.
pub(super) enum Remains {
    /// Of a directory's block: its names.
    Names(Box<[(u32, Named)]>),
    /// Of a block of pointers: those that lead somewhere.
    Pointers(Box<[u64]>),
}

impl Remains {
    fn of(kind: BlockKind, block: &[u8]) -> Self {
        let units = block.chunks_exact(UNIT_SIZE);
        match kind {
            BlockKind::LinearEntries => {
                Self::Names(units.flat_map(facts::live).map(|(entry, named)| (entry.tag, named)).collect())
            }
            _ => {
                let words = units.flat_map(|unit| unit[UnitHeader::SIZE..].chunks_exact(8));
                let pointers = words.map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
                Self::Pointers(pointers.filter(|&word| word != 0).collect())
            }
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Names(names) => size_of_val(&**names),
            Self::Pointers(words) => size_of_val(&**words),
        }
    }
}

/// The shadow of a block that was freed: its frame is gone.
pub(super) struct Ghost {
    pub owner: u64,
    pub lasting: Remains,
    /// What of it an image holds that is on its way.
    pub sent: Option<Remains>,
}

impl Ghost {
    /// What a shadow leaves, given its frame; nothing if nobody finds the block, or what it held makes no difference.
    pub fn of(shadow: &Shadow, frame: &[u8]) -> Option<Self> {
        let is_pointed_to = matches!(shadow.kind, BlockKind::LinearEntries | BlockKind::Pointers);
        (is_pointed_to && !shadow.is_new).then(|| {
            let remains = |words: &Words| {
                let mut block = frame.to_vec();
                words.lay_over(0, &mut block);
                Remains::of(shadow.kind, &block)
            };
            let sent = shadow.sent.as_deref().map(remains);
            Self { owner: shadow.owner, lasting: remains(&shadow.lasting), sent }
        })
    }

    pub fn is_of_directory(&self) -> bool {
        matches!(self.lasting, Remains::Names(_))
    }

    pub fn memory(&self) -> u64 {
        (size_of::<Self>() + self.lasting.memory() + self.sent.as_ref().map_or(0, Remains::memory)) as u64
    }

    /// The names that last in it.
    pub fn names(&self) -> &[(u32, Named)] {
        match &self.lasting {
            Remains::Names(names) => names,
            Remains::Pointers(_) => &[],
        }
    }

    /// The names that last in it, or are about to.
    pub fn all_names(&self) -> impl Iterator<Item = &(u32, Named)> {
        let sent = match &self.sent {
            Some(Remains::Names(names)) => &**names,
            _ => &[],
        };
        self.names().iter().chain(sent)
    }

    /// Whether a pointer lasts in it that leads to a block that `is_freed`.
    pub fn points_to(&self, geometry: &Geometry, is_freed: impl Fn(u64) -> bool) -> bool {
        match &self.lasting {
            Remains::Names(_) => false,
            Remains::Pointers(words) => words.iter().any(|&word| leads_to(word, geometry, &is_freed)),
        }
    }
}
