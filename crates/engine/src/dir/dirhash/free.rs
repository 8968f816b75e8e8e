//! How much of each unit of a directory is free, and the first unit with so much.
//!
//! A unit's free bytes are counted in words of 8 and altogether, wherever in the unit they are: a new name's entry has room once the
//! others were moved together. A unit with `i` free words is of *class* `i`; the last class has all units that take any name.
//!
//! In order `softdep` the entry of a name that has gone keeps its bytes for a while. Such bytes are not free: the unit is *charged* for
//! them. The order does not say when it lets go of an entry, so a charge may be too high for a while, and never too low. Whoever looks at
//! the unit puts the charge right ([`FreeSpace::recharge`]).
//!
//! Invariants
//!   1. `first[i]` is the lowest unit of class `i`, or [`NONE`].
//!   2. Behind `units` nothing is counted.
//!   3. What is free of a unit, what it is charged for and what its names need are together the whole unit.

use myriad_format::dir::{NAME_MAX, entry_size};

const LARGEST: usize = FreeSpace::LARGEST;
/// Classes of units: by their free words, and the last one with as many as any name needs, or more.
const CLASSES: usize = LARGEST + 1;
/// Bytes of a word.
pub(super) const WORD: usize = 8;
/// Free words of a unit without entries.
const WHOLE: u8 = (myriad_format::unit::UNIT_ROOM / WORD) as u8;
/// No unit.
const NONE: u32 = u32::MAX;

pub(crate) struct FreeSpace {
    /// Free words of each unit there is room for.
    words: Box<[u8]>,
    /// Words that each unit is charged for. Empty where no entry keeps its bytes.
    charged: Box<[u8]>,
    /// Units that are charged for something.
    charged_units: u32,
    /// Where the search for a charged unit goes on.
    next_charged: u32,
    units: u32,
    first: [u32; CLASSES],
}

fn class_of(words: u8) -> usize {
    usize::from(words).min(LARGEST)
}

impl FreeSpace {
    /// Words of the largest entry: 16 bytes and a name of 255.
    pub const LARGEST: usize = entry_size(NAME_MAX) / WORD;

    /// Units that a summary made for `units` has room for.
    pub fn capacity_for(units: u64) -> u64 {
        (3 * units).div_ceil(2)
    }

    /// Bytes of a summary made for `units`, whose entries may keep their bytes or not.
    pub fn bytes_for(units: u64, keeps_gone: bool) -> u64 {
        Self::capacity_for(units) * (1 + u64::from(keeps_gone))
    }

    /// All of so many units, without entries.
    pub fn new(units: u32, keeps_gone: bool) -> Self {
        let capacity = Self::capacity_for(units.into()) as usize;
        let words = vec![WHOLE; capacity].into_boxed_slice();
        let charged = vec![0; if keeps_gone { capacity } else { 0 }].into_boxed_slice();
        let mut first = [NONE; CLASSES];
        if units > 0 {
            first[LARGEST] = 0;
        }
        Self { words, charged, charged_units: 0, next_charged: 0, units, first }
    }

    pub fn units(&self) -> u32 {
        self.units
    }

    pub fn capacity(&self) -> usize {
        self.words.len()
    }

    pub fn words_of(&self, unit: u32) -> u8 {
        self.words[unit as usize]
    }

    /// Words that a unit is charged for.
    pub fn charged(&self, unit: u32) -> u8 {
        self.charged.get(unit as usize).copied().unwrap_or(0)
    }

    pub fn charged_units(&self) -> u32 {
        self.charged_units
    }

    /// Whether a unit has no name, and is charged for an entry.
    pub fn is_only_charged(&self, unit: u32) -> bool {
        let charged = self.charged(unit);
        charged > 0 && self.words_of(unit) + charged == WHOLE
    }

    /// The next unit of a class from one on.
    fn next_of(&self, class: usize, from: u32) -> u32 {
        let rest = &self.words[from as usize..self.units as usize];
        rest.iter().position(|&words| class_of(words) == class).map_or(NONE, |at| from + at as u32)
    }

    fn set(&mut self, unit: u32, words: u8) {
        let (old, new) = (class_of(self.words[unit as usize]), class_of(words));
        self.words[unit as usize] = words;
        if old == new {
            return;
        }
        if self.first[old] == unit {
            self.first[old] = self.next_of(old, unit + 1);
        }
        if self.first[new] == NONE || self.first[new] > unit {
            self.first[new] = unit;
        }
    }

    /// An entry of a unit takes so many words. False if they are not there.
    #[must_use]
    pub fn take(&mut self, unit: u32, words: usize) -> bool {
        let left = (unit < self.units).then(|| usize::from(self.words_of(unit)).checked_sub(words)).flatten();
        left.map(|left| self.set(unit, left as u8)).is_some()
    }

    /// An entry of a unit gives so many words back. False if the unit cannot have so many.
    #[must_use]
    pub fn give(&mut self, unit: u32, words: usize) -> bool {
        let sum = (unit < self.units).then(|| usize::from(self.words_of(unit)) + words);
        let sum = sum.filter(|&sum| sum + usize::from(self.charged(unit)) <= usize::from(WHOLE));
        sum.map(|sum| self.set(unit, sum as u8)).is_some()
    }

    /// The entry of a name that has gone keeps so many words, which were free without it. False if they were not.
    #[must_use]
    pub fn charge(&mut self, unit: u32, words: usize) -> bool {
        let charged = usize::from(self.charged(unit)) + words;
        self.recharge(unit, charged)
    }

    /// Entries of a unit keep so many words, as it was just seen. False if it cannot have so many.
    #[must_use]
    pub fn recharge(&mut self, unit: u32, words: usize) -> bool {
        let old = self.charged(unit);
        if unit >= self.units || usize::from(old) == words {
            return unit < self.units;
        }
        let left = (usize::from(self.words_of(unit)) + usize::from(old)).checked_sub(words);
        let (Some(left), Some(charged)) = (left, self.charged.get_mut(unit as usize)) else { return false };
        *charged = words as u8;
        self.charged_units = self.charged_units + u32::from(old == 0) - u32::from(words == 0);
        self.set(unit, left as u8);
        true
    }

    /// No entry keeps its bytes any more.
    pub fn give_back(&mut self) {
        while let Some(unit) = self.next_charged() {
            let is_right = self.recharge(unit, 0);
            assert!(is_right, "a unit can always have what it is charged for");
        }
    }

    /// The charged units take turns: the next one, if there is any.
    pub fn next_charged(&mut self) -> Option<u32> {
        if self.charged_units == 0 {
            return None;
        }
        let charged = &self.charged[..self.units as usize];
        let from = (self.next_charged as usize).min(charged.len());
        let is_charged = |&words: &u8| words > 0;
        let unit = match charged[from..].iter().position(is_charged) {
            Some(at) => from + at,
            None => charged.iter().position(is_charged).expect("one of them is charged"),
        } as u32;
        self.next_charged = unit + 1;
        Some(unit)
    }

    /// Units with room for so many words, in the order in which they are to be tried: the class with the least that suffices,
    /// in it the lowest unit.
    pub fn candidates(&self, words: usize) -> impl Iterator<Item = u32> {
        let first = self.first;
        (words..CLASSES).flat_map(move |class| {
            let mut next = first[class];
            std::iter::from_fn(move || {
                let unit = (next != NONE).then_some(next)?;
                next = self.next_of(class, unit + 1);
                Some(unit)
            })
        })
    }

    /// A unit is there behind the others. False if there is no room for it here.
    #[must_use]
    pub fn grow(&mut self) -> bool {
        if self.units as usize == self.words.len() {
            return false;
        }
        let unit = self.units;
        // What is behind the end is not charged: `truncate` has seen to that.
        self.words[unit as usize] = WHOLE;
        self.units += 1;
        if self.first[LARGEST] == NONE {
            self.first[LARGEST] = unit;
        }
        true
    }

    /// Units up to the last one that has an entry, or is charged for one.
    pub fn used(&self) -> u32 {
        let words = &self.words[..self.units as usize];
        words.iter().rposition(|&words| words != WHOLE).map_or(0, |last| last as u32 + 1)
    }

    /// Units behind `units` are dropped; none of them has entries. False if one has.
    #[must_use]
    pub fn truncate(&mut self, units: u32) -> bool {
        if units < self.used() {
            return false;
        }
        self.units = self.units.min(units);
        if self.first[LARGEST] != NONE && self.first[LARGEST] >= self.units {
            self.first[LARGEST] = NONE;
        }
        true
    }

    /// Whether a unit whose names leave so many words, of which entries keep so many, has them here, is charged for what is kept, and
    /// is in its class and in no other.
    pub fn agrees(&self, unit: u32, words: usize, kept: usize) -> bool {
        let charged = usize::from(self.charged(unit));
        if unit >= self.units || usize::from(self.words_of(unit)) + charged != words || charged < kept {
            return false;
        }
        let class = class_of(self.words_of(unit));
        self.first.iter().enumerate().all(|(other, &first)| match other == class {
            true => first <= unit,
            false => first != unit,
        })
    }

    /// Bytes that it has, by its own capacity.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        (self.words.len() + self.charged.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl FreeSpace {
        fn assert_sound(&self) {
            for class in 0..CLASSES {
                assert_eq!(self.first[class], self.next_of(class, 0), "class {class}");
            }
            let charged = self.charged.iter().filter(|&&words| words > 0).count();
            assert_eq!(self.charged_units as usize, charged, "behind the end nothing is charged");
            for (&words, &charged) in self.words.iter().zip(&self.charged) {
                assert!(words + charged <= WHOLE, "{words} and {charged}");
            }
        }
    }

    #[test]
    fn the_fullest_unit_that_has_room_is_taken() {
        let mut free = FreeSpace::new(4, false);
        assert_eq!((CLASSES, WHOLE), (35, 62));
        assert_eq!(free.candidates(34).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(free.take(0, 57) && free.take(1, 50) && free.take(2, 57) && free.take(3, 30));
        free.assert_sound();
        // 5, 12, 5 and 32 are free.
        assert_eq!(free.candidates(3).collect::<Vec<_>>(), [0, 2, 1, 3]);
        assert_eq!(free.candidates(6).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(free.candidates(33).collect::<Vec<_>>(), []);
        assert!(!free.take(0, 6), "so much is not there");
        assert!(free.give(3, 2));
        // The paper's fourth issue (FFSOPT 3.5): the last class has what has more than the largest entry needs, too.
        assert_eq!(free.candidates(34).collect::<Vec<_>>(), [3]);
        assert!(free.give(3, 28) && !free.give(3, 1));
        assert_eq!(free.candidates(34).collect::<Vec<_>>(), [3]);
        free.assert_sound();
    }

    #[test]
    fn units_come_and_go_at_the_end() {
        let mut free = FreeSpace::new(2, false);
        assert!(free.take(0, 40) && free.take(1, 40));
        assert!(free.grow() && !free.grow(), "there is room for half as many more");
        assert_eq!((free.units(), free.used(), free.first[LARGEST]), (3, 2, 2));
        assert!(free.truncate(2));
        assert_eq!((free.units(), free.first[LARGEST]), (2, NONE));
        assert!(!free.truncate(1), "it has entries");
        assert!(free.give(1, 40) && free.truncate(1));
        assert!(!free.take(1, 1), "it is not there");
        free.assert_sound();
        assert!(free.grow());
        assert_eq!(free.words_of(1), WHOLE);
        free.assert_sound();
    }

    #[test]
    fn what_a_unit_is_charged_for_is_not_free_until_it_is_given_back() {
        let mut free = FreeSpace::new(3, true);
        assert_eq!(free.bytes(), FreeSpace::bytes_for(3, true));
        assert!((0..3).all(|unit| free.take(unit, 60)));
        // A name of 3 words goes, whose entry had 4.
        assert!(free.give(1, 3) && free.charge(1, 4));
        assert_eq!((free.words_of(1), free.charged(1), free.charged_units()), (1, 4, 1));
        assert_eq!(free.candidates(2).collect::<Vec<_>>(), [0, 2]);
        assert!(free.agrees(1, 5, 4) && free.agrees(1, 5, 0), "the order may have let go of it");
        assert!(!free.agrees(1, 5, 5) && !free.agrees(1, 1, 0) && !free.agrees(0, 2, 1));
        assert!(!free.give(1, 58), "what keeps its bytes and what is given are more than the unit");
        assert!(!free.charge(0, 3) && free.charge(2, 2));
        // They take turns.
        assert_eq!([(); 4].map(|()| free.next_charged()), [1, 2, 1, 2].map(Some));
        assert!(free.recharge(1, 0) && !free.recharge(1, 6) && !free.recharge(3, 0));
        free.assert_sound();
        assert_eq!(free.candidates(5).collect::<Vec<_>>(), [1]);
        free.give_back();
        assert_eq!((free.next_charged(), free.words_of(2)), (None, 2));
        // A unit without names is in use while it is charged.
        assert!(free.give(2, 60) && free.charge(2, 62));
        assert_eq!((free.used(), free.truncate(2)), (3, false));
        free.give_back();
        assert!(free.truncate(2) && free.grow());
        free.assert_sound();
    }

    #[test]
    fn random_changes_keep_the_first_of_each_class() {
        let mut state = 1_u64;
        let mut random = |limit: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as usize % limit
        };
        let mut free = FreeSpace::new(40, true);
        for _ in 0..20_000 {
            match random(7) {
                0 => drop(free.grow()),
                1 => drop(free.truncate(free.used())),
                _ if free.units() == 0 => {}
                2 => {
                    let unit = random(free.units() as usize) as u32;
                    let (words, had) = (random(20), free.words_of(unit) + free.charged(unit));
                    assert_eq!(free.recharge(unit, words), words <= usize::from(had));
                    if random(50) == 0 {
                        free.give_back();
                    }
                }
                way => {
                    let (unit, words) = (random(free.units() as usize) as u32, 3 + random(30));
                    let had = free.words_of(unit);
                    let done = if way < 5 { free.take(unit, words) } else { free.give(unit, words) };
                    assert_eq!(done, free.words_of(unit) != had);
                }
            }
            free.assert_sound();
        }
    }
}
