//! The hash table: where entries lie, by the keyed hashes of their names.
//!
//! Open addressing with linear probing, in two levels: an array of arrays of [`ARRAY`] slots, so that no allocation is large. A
//! slot holds the position of an entry, and 8 bits of its name's hash, its *mark*; what its name is, the directory's own block
//! says. The slots of a name are its *chain*: from its home to the first slot that is empty.
//!
//! ```text
//! home of "b" --> [ 17: "a" ] [ deleted ] [ 90: "b" ] [ empty ]      "b" is there; a name with the same home that is none
//!                                                                    of the two is not: the chain has ended
//! ```
//!
//! Invariants
//!   1. A name's position lies in its chain: no empty slot lies between its home and its slot.
//!   2. `used` counts the slots that are not empty, deleted ones among them. It is less than the number of slots, so every
//!      chain ends.
//!   3. No deleted slot lies right before an empty one: it would make chains longer for nothing.

/// Slots of an array of the second level.
const ARRAY: usize = 256;
/// Bytes of an array, and of the pointer to it.
const ARRAY_BYTES: u64 = (size_of::<Array>() + size_of::<Box<Array>>()) as u64;

/// An array of the second level.
#[derive(Clone)]
struct Array {
    values: [u32; ARRAY],
    /// Without them every slot of a chain would have to be compared with the entry that it is for, in a block of the directory:
    /// where three quarters are in use that is eight of them for a name that is not there. The paper's slots have none.
    marks: [u8; ARRAY],
}

/// Never used, or reclaimed.
const EMPTY: u32 = u32::MAX;
/// Held an entry, and may be inside a chain.
const DELETED: u32 = u32::MAX - 1;
/// Positions are below this: some 32 GiB of directory, in units of 8 bytes.
pub(super) const POSITIONS_MAX: u64 = DELETED as u64;

/// What a home does not tell of a hash: its high bits choose that.
fn mark_of(hash: u64) -> u8 {
    hash as u8
}

pub(super) struct Slots {
    #[expect(clippy::vec_box, reason = "each array is allocated by itself")]
    arrays: Vec<Box<Array>>,
    used: usize,
}

impl Slots {
    /// Arrays of a table for so many entries at most: a third of its slots stay empty even then.
    pub fn arrays_for(entries_max: u64) -> u64 {
        (3 * entries_max).div_ceil(2).div_ceil(ARRAY as u64).max(1)
    }

    /// Bytes of so many arrays.
    pub fn bytes_for(arrays: u64) -> u64 {
        arrays * ARRAY_BYTES
    }

    /// An empty table.
    pub fn new(arrays: u64) -> Self {
        let empty = || Box::new(Array { values: [EMPTY; ARRAY], marks: [0; ARRAY] });
        Self { arrays: (0..arrays).map(|_| empty()).collect(), used: 0 }
    }

    pub fn arrays(&self) -> usize {
        self.arrays.len()
    }

    fn len(&self) -> usize {
        self.arrays.len() * ARRAY
    }

    fn at(&self, slot: usize) -> u32 {
        self.arrays[slot / ARRAY].values[slot % ARRAY]
    }

    fn mark_at(&self, slot: usize) -> u8 {
        self.arrays[slot / ARRAY].marks[slot % ARRAY]
    }

    fn put(&mut self, slot: usize, value: u32) {
        self.arrays[slot / ARRAY].values[slot % ARRAY] = value;
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.len() { 0 } else { slot + 1 }
    }

    fn before(&self, slot: usize) -> usize {
        if slot == 0 { self.len() - 1 } else { slot - 1 }
    }

    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.len() as u128) >> 64) as usize
    }

    /// Numbers and values of a chain's slots.
    fn chain(&self, hash: u64) -> impl Iterator<Item = (usize, u32)> {
        let mut slot = self.home(hash);
        std::iter::from_fn(move || {
            let value = self.at(slot);
            let this = slot;
            slot = self.after(slot);
            (value != EMPTY).then_some((this, value))
        })
    }

    /// Positions in the chain of a hash that may be the hash's; adds to `passed` how many slots there are up to each.
    pub fn like(&self, hash: u64, passed: &mut u64) -> impl Iterator<Item = u32> {
        self.chain(hash).filter_map(move |(slot, value)| {
            *passed += 1;
            (value != DELETED && self.mark_at(slot) == mark_of(hash)).then_some(value)
        })
    }

    /// Adds a position. False, with nothing done, if three quarters of the slots are in use: chains would become long.
    #[must_use]
    pub fn add(&mut self, hash: u64, position: u32) -> bool {
        if self.used >= self.len() / 4 * 3 {
            return false;
        }
        debug_assert!(u64::from(position) < POSITIONS_MAX);
        let mut at = self.home(hash);
        while self.at(at) < DELETED {
            at = self.after(at);
        }
        self.used += usize::from(self.at(at) == EMPTY);
        self.put(at, position);
        self.arrays[at / ARRAY].marks[at % ARRAY] = mark_of(hash);
        true
    }

    fn find(&self, hash: u64, position: u32) -> Option<usize> {
        self.chain(hash).find(|&(_, value)| value == position).map(|(slot, _)| slot)
    }

    /// Takes the position of a name away; false if it is not there. Deleted slots at the end of a chain become empty, those
    /// before this one as well.
    #[must_use]
    pub fn remove(&mut self, hash: u64, position: u32) -> bool {
        let Some(slot) = self.find(hash, position) else { return false };
        self.put(slot, DELETED);
        let mut end = slot;
        while self.at(end) == DELETED {
            end = self.after(end);
        }
        if self.at(end) == EMPTY {
            let mut last = self.before(end);
            while self.at(last) == DELETED {
                self.put(last, EMPTY);
                self.used -= 1;
                last = self.before(last);
            }
        }
        true
    }

    /// Puts another position in the place of one; false if it is not there.
    #[must_use]
    pub fn replace(&mut self, hash: u64, position: u32, with: u32) -> bool {
        let Some(slot) = self.find(hash, position) else { return false };
        self.put(slot, with);
        true
    }

    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.used
    }

    #[cfg(test)]
    fn count(&self, is: impl Fn(u32) -> bool) -> usize {
        (0..self.len()).filter(|&slot| is(self.at(slot))).count()
    }

    /// Checks the invariants that can be seen without names.
    #[cfg(test)]
    pub fn assert_sound(&self) {
        assert_eq!(self.used, self.count(|value| value != EMPTY));
        for slot in 0..self.len() {
            let is_idle = self.at(slot) == DELETED && self.at(self.after(slot)) == EMPTY;
            assert!(!is_idle, "slot {slot} is deleted at the end of a chain");
        }
    }

    /// Bytes that it has, by its own capacities.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        let arrays: usize = self.arrays.iter().map(|array| size_of_val(&**array)).sum();
        (self.arrays.capacity() * size_of::<Box<Array>>() + arrays) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash with this home in a table of one array.
    fn hash(home: u64) -> u64 {
        home << 56
    }

    fn live(slots: &Slots, hash: u64) -> Vec<u32> {
        slots.like(hash, &mut 0).collect()
    }

    #[test]
    fn chains_go_on_over_what_was_removed_and_around_the_end() {
        let mut slots = Slots::new(1);
        for position in 0..6 {
            assert!(slots.add(hash(253), position));
        }
        assert_eq!(live(&slots, hash(253)), [0, 1, 2, 3, 4, 5]);
        assert!(slots.remove(hash(253), 1) && slots.remove(hash(253), 3));
        assert_eq!(live(&slots, hash(253)), [0, 2, 4, 5]);
        assert!(!slots.remove(hash(253), 3), "it is not there");
        assert!(!slots.remove(hash(100), 2), "it has another home");
        assert_eq!(slots.used(), 6);
        // Deleted slots are used again before empty ones.
        assert!(slots.add(hash(253), 9));
        assert_eq!((slots.used(), live(&slots, hash(253))), (6, vec![0, 9, 2, 4, 5]));
        slots.assert_sound();
    }

    /// The paper's fifth issue (FFSOPT 3.5): only deleted slots behind the removed one were reclaimed.
    #[test]
    fn all_deleted_slots_at_the_end_of_a_chain_become_empty() {
        let mut slots = Slots::new(1);
        for position in 0..8 {
            assert!(slots.add(hash(250), position));
        }
        for position in [3, 5, 6, 4] {
            assert!(slots.remove(hash(250), position));
        }
        assert_eq!(slots.used(), 8, "a live one ends the chain");
        assert!(slots.remove(hash(250), 7));
        assert_eq!(slots.used(), 3, "the whole run is reclaimed, not what came behind the last one removed");
        slots.assert_sound();
        assert!((0..3).all(|position| slots.remove(hash(250), position)));
        assert_eq!(slots.used(), 0);
    }

    #[test]
    fn only_what_has_the_mark_is_looked_at() {
        let mut slots = Slots::new(1);
        for position in 0..20 {
            assert!(slots.add(hash(9) | u64::from(position % 10), position));
        }
        let mut passed = 0;
        assert_eq!(slots.like(hash(9) | 3, &mut passed).collect::<Vec<_>>(), [3, 13]);
        assert_eq!(passed, 20);
        assert_eq!(slots.like(hash(9) | 10, &mut 0).count(), 0);
        // A slot that is used again has the mark of whoever has it now.
        assert!(slots.remove(hash(9) | 3, 3) && slots.add(hash(9) | 77, 20));
        assert_eq!(slots.like(hash(9) | 77, &mut 0).collect::<Vec<_>>(), [20]);
    }

    #[test]
    fn a_quarter_of_the_slots_stays_empty() {
        let mut slots = Slots::new(2);
        let taken = (0..1000).filter(|&i| slots.add(u64::from(i) << 54, i)).count();
        assert_eq!((taken, slots.used()), (384, 384));
        // Slots that hold what was deleted count, as long as they are inside chains.
        assert!(slots.remove(0, 0));
        assert!(slots.used() == 384 && !slots.add(0, 1000));
    }

    /// Random changes against a list: what is there is found, what is not is not, and slots are counted.
    #[test]
    fn random_changes_agree_with_a_list() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            state >> 33
        };
        let mut slots = Slots::new(3);
        let mut all: Vec<(u64, u32)> = Vec::new();
        for step in 0..40_000_u32 {
            // Few homes, so that chains are long and grow together.
            let hash = (random() % 40) << 58;
            if random() % 2 == 0 && all.len() < 450 {
                assert_eq!(slots.add(hash, step), slots.used() <= 576);
                all.push((hash, step));
            } else if !all.is_empty() {
                let (hash, position) = all.swap_remove(random() as usize % all.len());
                if step % 3 == 0 {
                    assert!(slots.replace(hash, position, step));
                    all.push((hash, step));
                } else {
                    assert!(slots.remove(hash, position));
                    assert!(!slots.remove(hash, position));
                }
            }
            if step % 64 == 0 {
                slots.assert_sound();
                assert!(all.iter().all(|&(hash, position)| live(&slots, hash).contains(&position)));
                assert_eq!(slots.count(|value| value < DELETED), all.len());
            }
        }
    }
}
