//! Names that have gone while the bytes of their entries keep their places (order `softdep`), by their tags.
//!
//! A name may come again only once the order lets go of the entry that it had, so a search that does not find it must learn
//! that there is such an entry. It goes by tags, as the order does. When the order lets go of an entry nobody tells the hash: the
//! order is asked when it matters, and what it has let go of is forgotten when room is needed, or when nothing of the directory waits.

/// Names that are remembered at most. While there are more the order is asked about every name, which takes longer.
const GONE_MAX: u64 = 4096;
/// So many further names have to go before the order is asked again which of those that are remembered it holds.
const TRY_AFTER: u32 = 1024;

pub(super) struct Gone {
    /// Tags and units.
    names: Vec<(u32, u32)>,
    names_max: usize,
    /// Names that have gone and found no room here.
    more: u32,
}

impl Gone {
    fn names_max(entries_max: u64) -> usize {
        entries_max.min(GONE_MAX) as usize
    }

    /// Bytes for a directory with so many entries at most.
    pub fn bytes_for(entries_max: u64) -> u64 {
        (Self::names_max(entries_max) * size_of::<(u32, u32)>()) as u64
    }

    pub fn new(entries_max: u64) -> Self {
        let names_max = Self::names_max(entries_max);
        Self { names: Vec::with_capacity(names_max), names_max, more: 0 }
    }

    /// Nothing of the directory waits.
    pub fn forget(&mut self) {
        self.names.clear();
        self.more = 0;
    }

    /// A name of a unit has gone. `is_held`: whether the order holds an entry with a tag in a unit.
    pub fn note(&mut self, tag: u32, unit: u32, is_held: impl Fn(u32, u32) -> bool) {
        if self.names.len() == self.names_max && self.more % TRY_AFTER == 0 {
            self.names.retain(|&(tag, unit)| is_held(tag, unit));
        }
        if self.names.len() < self.names_max {
            self.names.push((tag, unit));
        } else {
            self.more += 1;
        }
    }

    /// Whether an entry with this tag may keep its place.
    pub fn may_hold(&self, tag: u32, is_held: impl Fn(u32, u32) -> bool) -> bool {
        self.more > 0 || self.names.iter().any(|&(other, unit)| other == tag && is_held(tag, unit))
    }

    /// Bytes that it has, by its own capacity.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        (self.names.capacity() * size_of::<(u32, u32)>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_remembered_and_what_is_not_is_forgotten() {
        let mut gone = Gone::new(4);
        // The order lets go of what has an odd tag.
        let is_held = |tag: u32, unit: u32| tag % 2 == 0 && unit == tag + 1;
        (0..4).for_each(|tag| gone.note(tag, tag + 1, is_held));
        assert!(gone.may_hold(2, is_held) && !gone.may_hold(3, is_held) && !gone.may_hold(7, is_held));
        (10..13).for_each(|tag| gone.note(tag, tag + 1, is_held));
        assert_eq!((gone.names.len(), gone.more), (4, 0));
        assert!([0, 2, 12].iter().all(|&tag| gone.may_hold(tag, is_held)));
        assert!(!gone.may_hold(13, is_held) && !gone.may_hold(1, is_held));
        // One is forgotten for each that comes, until all are held: then any name might be.
        (20..28).for_each(|tag| gone.note(2 * tag, 2 * tag + 1, is_held));
        assert!(gone.more > 0 && gone.may_hold(1, is_held));
        assert_eq!(gone.bytes(), Gone::bytes_for(4));
        gone.forget();
        assert!(!gone.may_hold(2, is_held));
    }
}
