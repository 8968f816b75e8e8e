//! What callers do with the directories they list, to tell them no more than they will ask for, and that before they ask.
//!
//! The kernel always asks for the first entries of a directory with attributes, and never says whether anybody wanted them:
//! `find -type f` does not, `du` does. Attributes cost the reading of every inode, and in the kernel a node for each.
//! So who lists gets the attributes of directories, which a walk asks for next, and of other files once it has looked up
//! as much as one in [`LOOKED_UP`] of those that it was told the names of. Who lists directory after directory has the
//! next ones read ahead, and who reads what it lists, as `tar` and `grep -r` do, the content of files.
//!
//! A caller is a thread, by its number in requests. All of this is guesses: one lost, or given to another thread, costs time alone.
//!
//! Most servers always answer with attributes; then a walk by names alone reads every inode. Without any, each file costs a
//! LOOKUP of those who want them. By this rule they pay with LOOKUPs for the first directories, and for at most one in
//! [`LOOKED_UP`] of what they list without attributes. `tar` of a cold tree makes 21 thousand requests of the device instead of
//! 86 thousand. A kernel that said why it lists would undo this.

use std::sync::atomic::{AtomicU64, Ordering};

/// Callers remembered; two with the same place take it from each other.
const CALLERS: usize = 256;
/// Look-ups of one in so many files listed without attributes ask for the attributes of the next.
const LOOKED_UP: u64 = 32;
/// Reading one in so many of the files listed asks for the content of the next.
const READ: u64 = 2;
/// A caller that has begun to list as many directories walks a tree.
const WALK: u64 = 2;

const COUNT_BITS: u32 = 16;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// For each caller how much of something it was offered, and how much of it it took.
struct Tally([AtomicU64; CALLERS]);

impl Tally {
    fn new() -> Self {
        Self([const { AtomicU64::new(0) }; CALLERS])
    }

    /// Of the word of a caller, from below: its number, what was offered, what was taken.
    fn of(&self, pid: u32) -> (u64, u64) {
        let word = self.0[pid as usize % CALLERS].load(Ordering::Relaxed);
        if word as u32 == pid { (word >> 32 & COUNT_MAX, word >> (32 + COUNT_BITS)) } else { (0, 0) }
    }

    fn add(&self, pid: u32, offered: u64, taken: u64) {
        let (before, taken_before) = self.of(pid);
        // Who takes what it was not offered knew of it otherwise.
        let mut offered = before + offered;
        let mut taken = (taken_before + taken).min(offered);
        // What was long ago counts less.
        while offered > COUNT_MAX {
            offered /= 2;
            taken /= 2;
        }
        let word = u64::from(pid) | offered << 32 | taken << (32 + COUNT_BITS);
        self.0[pid as usize % CALLERS].store(word, Ordering::Relaxed);
    }

    /// Whether the caller has taken more than one in `part`.
    fn takes(&self, pid: u32, part: u64) -> bool {
        let (offered, taken) = self.of(pid);
        taken * part > offered
    }
}

pub(super) struct Callers {
    /// Files listed without attributes, and looked up.
    attributes: Tally,
    /// Files listed, and read.
    content: Tally,
    /// Directories listed.
    directories: Tally,
}

impl Callers {
    pub fn new() -> Self {
        Self { attributes: Tally::new(), content: Tally::new(), directories: Tally::new() }
    }

    /// The caller begins to list a directory.
    pub fn begins_listing(&self, pid: u32) {
        self.directories.add(pid, 1, 0);
    }

    /// The caller was told of so many files that are no directories, of some of them with attributes.
    pub fn told(&self, pid: u32, files: usize, with_attributes: usize) {
        self.attributes.add(pid, (files - with_attributes) as u64, 0);
        self.content.add(pid, files as u64, 0);
    }

    /// The caller has looked up a file that is no directory.
    pub fn looked_up(&self, pid: u32) {
        self.attributes.add(pid, 0, 1);
    }

    /// The caller begins to read a file.
    pub fn begins_reading(&self, pid: u32) {
        self.content.add(pid, 0, 1);
    }

    /// Whether the caller is likely to ask for the attributes of the files that it lists.
    pub fn wants_attributes(&self, pid: u32) -> bool {
        self.attributes.takes(pid, LOOKED_UP)
    }

    /// Whether the caller is likely to read the files that it lists.
    pub fn wants_content(&self, pid: u32) -> bool {
        self.content.takes(pid, READ)
    }

    /// Whether the caller is likely to list the directories that it finds.
    pub fn walks(&self, pid: u32) -> bool {
        self.directories.of(pid).0 >= WALK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_get_what_they_take() {
        let callers = Callers::new();
        let habits = |pid| (callers.walks(pid), callers.wants_attributes(pid), callers.wants_content(pid));
        assert_eq!(habits(7), (false, false, false));
        callers.begins_listing(7);
        callers.told(7, 330, 10);
        for _ in 0..10 {
            callers.looked_up(7);
        }
        assert_eq!(habits(7), (false, false, false), "ten of 320 are a few");
        callers.looked_up(7);
        assert_eq!(habits(7), (false, true, false));
        callers.begins_listing(7);
        for _ in 0..165 {
            callers.begins_reading(7);
        }
        assert_eq!(habits(7), (true, true, false));
        callers.begins_reading(7);
        assert_eq!(habits(7), (true, true, true));
        // Another thread in the same place.
        let other = 7 + CALLERS as u32;
        assert_eq!(habits(other), (false, false, false));
        callers.begins_listing(other);
        assert_eq!((habits(other), habits(7)), ((false, false, false), (false, true, true)));
    }

    #[test]
    fn counts_stay_in_their_places() {
        let tally = Tally::new();
        tally.add(u32::MAX, 0, 1);
        assert_eq!(tally.of(u32::MAX), (0, 0));
        tally.add(u32::MAX, 1_000_000, 0);
        tally.add(u32::MAX, 0, 1_000_000);
        let (offered, taken) = tally.of(u32::MAX);
        assert!(offered > COUNT_MAX / 2 && offered <= COUNT_MAX && taken == offered, "{offered} {taken}");
        assert_eq!(tally.of(u32::MAX - CALLERS as u32), (0, 0));
    }
}
