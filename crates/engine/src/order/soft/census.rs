//! Dependencies, counted by the structures that McKusick and Ganger keep for them (`inodedep`, `diradd`, ...).
//!
//! We keep no such structures: dependencies are found by comparing what is with what lasts. So they are counted where that is done, when a round makes its images. Of
//! each kind there are five numbers:
//!
//! ```text
//! total        found by a round, and not left undone by the round before
//! now          of those found by the last round what it left undone
//! peak         most that one round found
//! written      shown by a round that lasts
//! rolled_back  undone in the image of a block that was to be written
//! ```
//!
//! A change that is taken back before a round comes is no dependency, and is counted nowhere. There is no `freefrag`: fragments
//! that wait to be given back are counted as `freeblks`.

use crate::order::facts::{self, Fact};
use myriad_format::inode::S_IFDIR;
use myriad_format::unit::UnitHeader;
use myriad_format::{BlockKind, table::INODE_SIZE};

macro_rules! kinds {
    ($($kind:ident $name:literal $about:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kind { $(#[doc = $about] $kind,)* }

        const NAMES: &[[&str; 5]] = &[$([
            concat!("soft_", $name, "_total"),
            concat!("soft_", $name, "_now"),
            concat!("soft_", $name, "_peak"),
            concat!("soft_", $name, "_written"),
            concat!("soft_", $name, "_rolled_back"),
        ],)*];
    };
}

kinds! {
    PageDep "pagedep" "A block of a directory in which names have changed.";
    InodeDep "inodedep" "An inode that has changed in more than values.";
    BmSafeMap "bmsafemap" "A block of a bitmap with bits that were taken.";
    NewBlk "newblk" "A block that was taken.";
    AllocDirect "allocdirect" "A pointer of an inode to a new block.";
    IndirDep "indirdep" "A block of pointers that has changed.";
    AllocIndir "allocindir" "A pointer of such a block to a new one.";
    DirAdd "diradd" "A name that was added, or names another inode.";
    MkDir "mkdir" "A name of a directory among them.";
    DirRem "dirrem" "A name that is gone, or names another inode.";
    NewDirBlk "newdirblk" "A new block of a directory.";
    FreeBlks "freeblks" "Blocks that one transaction gave up.";
    FreeFile "freefile" "An inode that was given up.";
}

const KINDS: usize = NAMES.len();
/// Those that rounds count. The others are counted when they begin to wait and when they are given back.
const OF_ROUNDS: usize = Kind::FreeBlks as usize;

/// How many of each kind.
pub(super) type Counts = [u64; KINDS];

/// What a round found, and what of it the images show.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    pub found: Counts,
    pub shown: Counts,
}

#[derive(Clone, Copy, Default)]
struct Numbers {
    total: u64,
    now: u64,
    peak: u64,
    written: u64,
    rolled_back: u64,
}

/// The numbers since the volume was opened.
#[derive(Default)]
pub(super) struct Census {
    kinds: [Numbers; KINDS],
}

impl Census {
    /// What a round has found.
    pub fn found(&mut self, found: &Counts) {
        for (numbers, &found) in self.kinds.iter_mut().zip(found).take(OF_ROUNDS) {
            numbers.total += found.saturating_sub(numbers.now);
            numbers.peak = numbers.peak.max(found);
            numbers.now = found;
        }
    }

    /// A round lasts. One that looked at a part of what waits has not told what it found.
    pub fn written(&mut self, tally: &Tally, is_partial: bool) {
        for ((numbers, found), shown) in self.kinds.iter_mut().zip(tally.found).zip(tally.shown).take(OF_ROUNDS) {
            // An image may show what is not so any more: a link that is one too many.
            let shown = shown.min(found);
            numbers.written += shown;
            numbers.rolled_back += found - shown;
            if is_partial {
                numbers.total += shown.saturating_sub(numbers.now);
                numbers.now = numbers.now.saturating_sub(shown);
            } else {
                numbers.now = found - shown;
            }
        }
    }

    /// Something waits to be given back.
    pub fn waits(&mut self, kind: Kind, count: u64) {
        let numbers = &mut self.kinds[kind as usize];
        numbers.total += count;
        numbers.now += count;
        numbers.peak = numbers.peak.max(numbers.now);
    }

    /// It was given back.
    pub fn given_back(&mut self, kind: Kind, count: u64) {
        let numbers = &mut self.kinds[kind as usize];
        numbers.now -= count;
        numbers.written += count;
    }

    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let of_kind = |(names, numbers): (&[&'static str; 5], &Numbers)| {
            let Numbers { total, now, peak, written, rolled_back } = *numbers;
            names.iter().copied().zip([total, now, peak, written, rolled_back]).collect::<Vec<_>>()
        };
        NAMES.iter().zip(&self.kinds).flat_map(of_kind).collect()
    }
}

/// A unit that a round looks at.
pub(super) struct Unit<'a> {
    /// `None`: its block is new.
    pub lasting: Option<&'a [u8]>,
    pub current: &'a [u8],
    pub image: &'a [u8],
}

impl Tally {
    /// Adds a block: the facts between the device and memory (`found`), and between the device and the image (`shown`). Units that are not
    /// among `units` have not changed.
    pub fn add<'a>(&mut self, kind: BlockKind, is_new: bool, units: impl Iterator<Item = Unit<'a>>) {
        if !facts::has_facts(kind) {
            return;
        }
        let (mut found, mut shown) = (0, 0);
        let mut has_taken = false;
        for unit in units {
            let facts_of = |bytes: &[u8]| {
                let mut all = Vec::new();
                facts::between(kind, unit.lasting, bytes, &mut |fact| all.push(fact));
                all
            };
            let (of_current, of_image) = (facts_of(unit.current), facts_of(unit.image));
            of_current.iter().for_each(|fact| count(kind, fact, &mut self.found));
            of_image.iter().for_each(|fact| count(kind, fact, &mut self.shown));
            if kind == BlockKind::InodeTable {
                for at in [UnitHeader::SIZE, UnitHeader::SIZE + INODE_SIZE] {
                    let of_it = |all: &[Fact]| all.iter().filter(|fact| inode_of(fact) == Some(at)).count();
                    let (found, shown) = (of_it(&of_current), of_it(&of_image));
                    self.whole(Kind::InodeDep, found, shown);
                }
            }
            has_taken |= of_current.iter().any(|fact| matches!(fact, Fact::Taken { .. }));
            found += of_current.len();
            shown += of_image.len();
        }
        match kind {
            BlockKind::LinearEntries => {
                self.whole(Kind::PageDep, found, shown);
                if is_new {
                    self.whole(Kind::NewDirBlk, 1, 1);
                }
            }
            BlockKind::Pointers => self.whole(Kind::IndirDep, found, shown),
            BlockKind::BlockBitmap | BlockKind::InodeBitmap if has_taken => self.whole(Kind::BmSafeMap, found, shown),
            _ => {}
        }
    }

    /// One of something that shows whole or counts as undone.
    fn whole(&mut self, kind: Kind, found: usize, shown: usize) {
        self.found[kind as usize] += u64::from(found > 0);
        self.shown[kind as usize] += u64::from(found > 0 && shown >= found);
    }
}

fn inode_of(fact: &Fact) -> Option<usize> {
    match *fact {
        Fact::Inode { at, .. } => Some(at),
        Fact::Pointer { inode, .. } => inode,
        _ => None,
    }
}

fn count(kind: BlockKind, fact: &Fact, counts: &mut Counts) {
    let mut add = |kind: Kind, count: u32| counts[kind as usize] += u64::from(count);
    match *fact {
        Fact::Entry { old, new, .. } => {
            if let Some(new) = new {
                add(Kind::DirAdd, 1);
                add(Kind::MkDir, u32::from(u16::from(new.file_type) == S_IFDIR >> 12));
            }
            add(Kind::DirRem, u32::from(old.is_some()));
        }
        Fact::Pointer { inode, new, .. } if new != 0 => {
            add(if inode.is_some() { Kind::AllocDirect } else { Kind::AllocIndir }, 1);
        }
        Fact::Taken { bits, .. } if kind == BlockKind::BlockBitmap => add(Kind::NewBlk, bits.count_ones()),
        _ => {}
    }
}
