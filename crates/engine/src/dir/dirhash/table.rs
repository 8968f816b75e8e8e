//! The hash of one directory: its names, and where it has room.
//!
//! Every change says whether the hash still has room for itself and agrees with what it is told; if not, the hash is dropped, and
//! made anew at the next access (`DirHashes::change`).

use super::free::FreeSpace;
use super::gone::Gone;
use super::slots::{POSITIONS_MAX, Slots};
use crate::error;
use std::sync::atomic::{AtomicU32, Ordering};

/// No entry is expected to be asked for next.
const NOTHING: u32 = u32::MAX;

/// How large a directory is, for the size of its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Units, or entry blocks.
    pub pieces: u64,
    /// Entries of the shortest names that fit a piece.
    pub entries_max: u64,
    /// Bytes of a piece, those of its header among them.
    pub piece_size: u64,
    /// Whether its free space is summarised: where entries may be moved together.
    pub sums_free: bool,
    /// Whether entries may keep their places when their names have gone.
    pub keeps_gone: bool,
}

/// What a directory has, as it is shown to whoever makes its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Noted<'n> {
    /// A name, where its entry lies, the words that the entry takes, and of which piece.
    Name { name: &'n [u8], position: u32, words: usize, piece: u64 },
    /// The entry of a name that has gone keeps its place in a piece, and so many words of it.
    Gone { tag: u32, words: usize, piece: u64 },
}

impl Shape {
    fn arrays(self) -> u64 {
        Slots::arrays_for(self.pieces * self.entries_max)
    }

    /// Whether the hash can say where each entry lies.
    fn is_in_reach(self) -> bool {
        self.pieces * (self.piece_size / 8) < POSITIONS_MAX
    }

    /// Bytes of tables; `None` for a directory that is too large for any hash.
    pub fn bytes(self) -> Option<u64> {
        let free = if self.sums_free { FreeSpace::bytes_for(self.pieces, self.keeps_gone) } else { 0 };
        let gone = if self.keeps_gone { Gone::bytes_for(self.pieces * self.entries_max) } else { 0 };
        self.is_in_reach().then(|| Slots::bytes_for(self.arrays()) + free + gone)
    }
}

/// Why a hash is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Useless {
    /// Three quarters of its slots are in use, or it has no room for one more unit; or the directory has less than an eighth of
    /// what there is room for.
    Outgrown,
    /// It does not say what the directory says.
    Wrong,
}

pub(crate) type Kept = Result<(), Useless>;

fn right(is_right: bool) -> Kept {
    if is_right { Ok(()) } else { Err(Useless::Wrong) }
}

fn fits(has_room: bool) -> Kept {
    if has_room { Ok(()) } else { Err(Useless::Outgrown) }
}

pub(crate) struct Table {
    slots: Slots,
    free: Option<FreeSpace>,
    gone: Option<Gone>,
    names: u64,
    /// Pieces that there can be: all positions in them are below [`POSITIONS_MAX`].
    pieces_max: u64,
    /// Where the entry begins that will be asked for next if somebody asks for one after the other.
    expected: AtomicU32,
}

impl Table {
    /// For an empty directory of this shape, which has a size in bytes.
    pub fn new(shape: Shape) -> Self {
        Self {
            slots: Slots::new(shape.arrays()),
            free: shape.sums_free.then(|| FreeSpace::new(shape.pieces as u32, shape.keeps_gone)),
            gone: shape.keeps_gone.then(|| Gone::new(shape.pieces * shape.entries_max)),
            names: 0,
            pieces_max: POSITIONS_MAX / (shape.piece_size / 8),
            expected: AtomicU32::new(NOTHING),
        }
    }

    pub fn names(&self) -> u64 {
        self.names
    }

    pub fn free(&self) -> &FreeSpace {
        self.free.as_ref().expect("asked of kinds whose free space is summarised")
    }

    /// Hands the positions that may be a hash's to `f` until it returns true: first that of the entry behind the last one
    /// that was found, if it is among them, and says so. Who asks for names in the order in which they lie finds each at once.
    /// Returns how many slots were looked at.
    pub fn find(&self, hash: u64, mut f: impl FnMut(u32, bool) -> error::Result<bool>) -> error::Result<u64> {
        let mut passed = 0;
        let expected = self.expected.load(Ordering::Relaxed);
        if self.slots.like(hash, &mut passed).any(|position| position == expected) && f(expected, true)? {
            return Ok(passed);
        }
        passed = 0;
        for position in self.slots.like(hash, &mut passed) {
            if f(position, false)? {
                break;
            }
        }
        Ok(passed)
    }

    /// A name was found whose entry takes so many words: the next one may be asked for next.
    pub fn found(&self, position: u32, words: usize) {
        self.expected.store(position.wrapping_add(words as u32), Ordering::Relaxed);
    }

    /// A name that the directory has, found while the hash is made.
    pub fn note(&mut self, noted: Noted<'_>, home_of: impl Fn(&[u8]) -> u64) -> Kept {
        match noted {
            Noted::Name { name, position, words, piece } => self.added(home_of(name), position, words, piece),
            Noted::Gone { tag, words, piece } => self.gone_from(tag, words, piece, |_, _| true),
        }
    }

    /// Nothing of the directory waits: no entry of a name that has gone keeps its place any more.
    pub fn nothing_waits(&mut self) {
        if let Some(gone) = &mut self.gone {
            gone.forget();
        }
        if let Some(free) = &mut self.free {
            free.give_back();
        }
    }

    /// The entry of a name that has gone keeps its place in a piece, and so many words of it. `is_held`: whether one with a tag does so in a
    /// piece.
    pub fn gone_from(&mut self, tag: u32, words: usize, piece: u64, is_held: impl Fn(u32, u32) -> bool) -> Kept {
        if let Some(gone) = &mut self.gone {
            gone.note(tag, piece as u32, is_held);
        }
        right(self.free.as_mut().is_none_or(|free| free.charge(piece as u32, words)))
    }

    /// Entries of a piece whose names have gone keep so many words, as was just seen.
    pub fn recharge(&mut self, piece: u64, words: usize) -> Kept {
        right(self.free.as_mut().is_none_or(|free| free.recharge(piece as u32, words)))
    }

    /// The next piece in turn that is charged for entries whose names have gone: they may have been let go of.
    pub fn next_charged(&mut self) -> Option<u64> {
        self.free.as_mut().and_then(FreeSpace::next_charged).map(u64::from)
    }

    /// Whether an entry with this tag may keep its place though its name has gone.
    pub fn may_hold(&self, tag: u32, is_held: impl Fn(u32, u32) -> bool) -> bool {
        self.gone.as_ref().is_some_and(|gone| gone.may_hold(tag, is_held))
    }

    /// A name was added, whose entry takes so many words of a piece.
    pub fn added(&mut self, hash: u64, position: u32, words: usize, piece: u64) -> Kept {
        fits(piece < self.pieces_max && self.slots.add(hash, position))?;
        self.names += 1;
        right(self.free.as_mut().is_none_or(|free| free.take(piece as u32, words)))
    }

    /// A name has gone.
    pub fn removed(&mut self, hash: u64, position: u32, words: usize, piece: u64) -> Kept {
        right(self.slots.remove(hash, position))?;
        self.names = self.names.checked_sub(1).ok_or(Useless::Wrong)?;
        right(self.free.as_mut().is_none_or(|free| free.give(piece as u32, words)))
    }

    /// An entry was moved inside its piece.
    pub fn moved(&mut self, hash: u64, from: u32, to: u32) -> Kept {
        right(self.slots.replace(hash, from, to))
    }

    /// A piece without entries is there behind the others.
    pub fn grown(&mut self) -> Kept {
        fits(self.free.as_mut().is_none_or(FreeSpace::grow))
    }

    /// The directory has so many pieces now; those that are gone had no entries.
    pub fn truncated(&mut self, pieces: u64) -> Kept {
        let Some(free) = &mut self.free else { return Ok(()) };
        right(free.truncate(pieces as u32))?;
        fits(pieces >= free.capacity() as u64 / 8 || self.slots.arrays() == 1)
    }

    /// Compares with what a piece says of itself: the hash of each name and where it lies, the words that these leave, and those of them
    /// that entries keep whose names have gone.
    pub fn agrees(&self, names: impl Iterator<Item = (u64, u32)>, piece: u64, words: usize, kept: usize) -> Kept {
        for (hash, position) in names {
            right(self.slots.like(hash, &mut 0).filter(|&other| other == position).count() == 1)?;
        }
        right(self.free.as_ref().is_none_or(|free| free.agrees(piece as u32, words, kept)))
    }

    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.slots.bytes() + self.free.as_ref().map_or(0, FreeSpace::bytes) + self.gone.as_ref().map_or(0, Gone::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(pieces: u64) -> Shape {
        Shape { pieces, entries_max: 20, piece_size: 512, sums_free: true, keeps_gone: false }
    }

    fn spread(i: u64) -> u64 {
        i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The charge is worked out before anything is allocated: it is what is allocated then.
    #[test]
    fn what_is_charged_is_what_is_allocated() {
        for pieces in [1, 5, 128, 1000, 8191] {
            for sums_free in [true, false] {
                let shape = Shape { sums_free, keeps_gone: sums_free, ..shape(pieces) };
                assert_eq!(shape.bytes(), Some(Table::new(shape).bytes()), "{shape:?}");
            }
        }
        assert_eq!(shape(1 << 30).bytes(), None, "positions have 31 bits");
    }

    #[test]
    fn a_hash_is_dropped_when_three_quarters_of_its_slots_are_in_use() {
        let mut table = Table::new(shape(50));
        // 1536 slots: 150 % of 1000 entries, rounded up.
        for i in 0..1152 {
            assert_eq!(table.added(spread(i), i as u32, 1, i % 50), Ok(()), "{i}");
        }
        assert_eq!(table.added(spread(2000), 2000, 1, 0), Err(Useless::Outgrown));
    }

    #[test]
    fn a_hash_is_dropped_when_the_directory_is_half_as_large_again() {
        let mut table = Table::new(shape(50));
        assert!((50..75).all(|_| table.grown() == Ok(())));
        assert_eq!(table.grown(), Err(Useless::Outgrown));
    }

    #[test]
    fn a_hash_is_dropped_when_an_eighth_is_left() {
        let mut table = Table::new(shape(64));
        // Room for 96.
        assert_eq!((table.truncated(13), table.truncated(12)), (Ok(()), Ok(())));
        assert_eq!(table.truncated(11), Err(Useless::Outgrown));
        // One array is not worth that.
        let mut small = Table::new(shape(8));
        assert_eq!((small.slots.arrays(), small.truncated(0)), (1, Ok(())));
    }

    #[test]
    fn what_does_not_agree_is_said() {
        let mut table = Table::new(shape(5));
        assert_eq!(table.added(7, 2, 3, 0), Ok(()));
        assert_eq!(table.agrees([(7, 2)].into_iter(), 0, 59, 0), Ok(()));
        assert_eq!(table.agrees([(7, 2)].into_iter(), 0, 58, 0), Err(Useless::Wrong));
        assert_eq!(table.agrees([(7, 4)].into_iter(), 0, 59, 0), Err(Useless::Wrong));
        assert_eq!(table.moved(7, 3, 4), Err(Useless::Wrong));
        assert_eq!(table.removed(7, 3, 3, 0), Err(Useless::Wrong));
        assert_eq!(table.truncated(0), Err(Useless::Wrong), "a unit that has entries goes");
        assert_eq!(table.removed(7, 2, 3, 0), Ok(()));
        assert_eq!(table.removed(7, 2, 3, 0), Err(Useless::Wrong));
        assert_eq!(table.names(), 0);
    }

    /// The paper's third issue (FFSOPT 3.5) was a typo that disabled this.
    #[test]
    fn who_asks_in_order_is_answered_first() {
        let mut table = Table::new(shape(5));
        // Three names with one home, which lie one after the other.
        for position in [2, 5, 8] {
            assert_eq!(table.added(7, position, 3, 0), Ok(()));
        }
        let first = |table: &Table| {
            let mut first = None;
            table
                .find(7, |slot, is_expected| {
                    first.get_or_insert((slot, is_expected));
                    Ok(false)
                })
                .unwrap();
            first
        };
        assert_eq!(first(&table), Some((2, false)));
        table.found(5, 3);
        assert_eq!(first(&table), Some((8, true)));
        // The one that is expected has another home.
        table.found(8, 3);
        assert_eq!(first(&table), Some((2, false)));
    }
}
