//! What callers do with the directories they list, to tell them no more than they will ask for.
//!
//! The kernel always asks for the first entries of a directory with attributes, and never says whether anybody wanted them:
//! `find -type f` does not, `du` does. Attributes cost the reading of every inode, and in the kernel a node for each.
//! So who lists gets the attributes of directories, which a walk asks for next, and of other files once it has looked up
//! as much as one in [`WANTED`] of those that it was told the names of.
//!
//! A caller is a thread, by its number in requests. All of this is guesses: one lost, or given to another thread, costs time alone.

use std::sync::atomic::{AtomicU64, Ordering};

/// Callers remembered; two with the same place take it from each other.
const CALLERS: usize = 256;
/// Look-ups of one in so many files listed without attributes ask for the attributes of the next.
const WANTED: u64 = 32;
/// A caller that has begun to list as many directories walks a tree.
const WALK: u64 = 2;

/// Of the word of a caller, from below: its number; files listed without attributes; files looked up; directories
/// listed.
const LISTED_SHIFT: u32 = 32;
const LOOKED_SHIFT: u32 = 44;
const WALKED_SHIFT: u32 = 56;
const COUNT_MAX: u64 = (1 << 12) - 1;
const WALKED_MAX: u64 = (1 << 8) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Habits {
    pid: u32,
    listed: u64,
    looked: u64,
    walked: u64,
}

impl Habits {
    fn unpack(word: u64) -> Self {
        Self {
            pid: word as u32,
            listed: word >> LISTED_SHIFT & COUNT_MAX,
            looked: word >> LOOKED_SHIFT & COUNT_MAX,
            walked: word >> WALKED_SHIFT,
        }
    }

    fn pack(mut self) -> u64 {
        // What was long ago counts less.
        while self.listed > COUNT_MAX || self.looked > COUNT_MAX {
            self.listed /= 2;
            self.looked /= 2;
        }
        let walked = self.walked.min(WALKED_MAX);
        u64::from(self.pid) | self.listed << LISTED_SHIFT | self.looked << LOOKED_SHIFT | walked << WALKED_SHIFT
    }
}

pub(super) struct Callers([AtomicU64; CALLERS]);

impl Callers {
    pub fn new() -> Self {
        Self([const { AtomicU64::new(0) }; CALLERS])
    }

    fn update(&self, pid: u32, change: impl FnOnce(&mut Habits)) {
        let place = &self.0[pid as usize % CALLERS];
        let mut habits = Habits::unpack(place.load(Ordering::Relaxed));
        if habits.pid != pid {
            habits = Habits { pid, listed: 0, looked: 0, walked: 0 };
        }
        change(&mut habits);
        place.store(habits.pack(), Ordering::Relaxed);
    }

    fn of(&self, pid: u32) -> Option<Habits> {
        let habits = Habits::unpack(self.0[pid as usize % CALLERS].load(Ordering::Relaxed));
        (habits.pid == pid).then_some(habits)
    }

    /// The caller has looked up a file that is no directory.
    pub fn looked_up(&self, pid: u32) {
        self.update(pid, |habits| habits.looked += 1);
    }

    /// The caller begins to list a directory.
    pub fn begins_listing(&self, pid: u32) {
        self.update(pid, |habits| habits.walked += 1);
    }

    /// The caller was told of so many files that are no directories, without their attributes.
    pub fn told_names(&self, pid: u32, files: usize) {
        self.update(pid, |habits| habits.listed += files as u64);
    }

    /// Whether the caller is likely to ask for the attributes of the files that it lists.
    pub fn wants_attributes(&self, pid: u32) -> bool {
        self.of(pid).is_some_and(|habits| habits.looked * WANTED > habits.listed)
    }

    /// Whether the caller is likely to list the directories that it finds.
    pub fn walks(&self, pid: u32) -> bool {
        self.of(pid).is_some_and(|habits| habits.walked >= WALK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_up_what_it_lists_gets_attributes() {
        let callers = Callers::new();
        assert!(!callers.wants_attributes(7) && !callers.walks(7));
        callers.begins_listing(7);
        callers.told_names(7, 320);
        for _ in 0..10 {
            callers.looked_up(7);
        }
        assert!(!callers.wants_attributes(7), "ten of 320 are a few");
        callers.looked_up(7);
        assert!(callers.wants_attributes(7) && !callers.walks(7));
        callers.begins_listing(7);
        assert!(callers.walks(7));
        // Another thread in the same place.
        assert!(!callers.wants_attributes(7 + CALLERS as u32));
        callers.looked_up(7 + CALLERS as u32);
        assert!(!callers.wants_attributes(7) && !callers.walks(7));
    }

    #[test]
    fn counts_stay_in_their_places() {
        let callers = Callers::new();
        callers.told_names(u32::MAX, 1_000_000);
        for _ in 0..1000 {
            callers.begins_listing(u32::MAX);
        }
        let habits = callers.of(u32::MAX).unwrap();
        assert_eq!((habits.pid, habits.looked, habits.walked), (u32::MAX, 0, WALKED_MAX));
        assert!(habits.listed > COUNT_MAX / 2);
        for _ in 0..10_000 {
            callers.looked_up(u32::MAX);
        }
        let habits = callers.of(u32::MAX).unwrap();
        assert!(callers.wants_attributes(u32::MAX) && habits.looked <= COUNT_MAX && habits.walked == WALKED_MAX);
    }
}
