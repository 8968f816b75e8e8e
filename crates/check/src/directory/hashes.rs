//! Names of a directory against each other, for kinds without an index that would bring equal ones together.
//!
//! They are compared by their hashes, which are held in memory, for so many at a time (`HELD_MAX`).

use super::names::report_equal_hashes;
use crate::context::Context;
use myriad_format::Ino;
use myriad_format::inode::RawInode;

/// Hashes of names held at a time, each with the place of its entry. The directory is read once more for each further part.
const HELD_MAX: usize = if cfg!(debug_assertions) { 1 << 10 } else { 1 << 20 };

/// Hashes of names, and where each is: of all names, or of those whose hash belongs to a part.
pub(super) struct Hashes {
    held: Vec<(u64, u64)>,
    count: usize,
    /// Which, of how many.
    part: Option<(u64, u64)>,
}

impl Hashes {
    pub fn new() -> Self {
        Self { held: Vec::new(), count: 0, part: None }
    }

    pub fn add(&mut self, hash: u64, place: u64) {
        self.count += 1;
        match self.part {
            Some((part, parts)) if hash % parts == part => self.held.push((hash, place)),
            None if self.count <= HELD_MAX => self.held.push((hash, place)),
            _ => {}
        }
    }

    /// Reports names that are there twice, and twins of which no flag tells. `name_at` reads the name at a place; `add_all` adds
    /// all names once more, if they were too many to be held.
    pub fn compare(
        self,
        context: &Context<'_>,
        ino: Ino,
        raw: &RawInode,
        name_at: impl Fn(u64) -> Option<Vec<u8>>,
        add_all: impl Fn(&mut Self),
    ) {
        let parts = self.count.div_ceil(HELD_MAX).next_power_of_two() as u64;
        if parts == 1 {
            return self.compare_held(context, ino, raw, &name_at);
        }
        for part in 0..parts {
            let mut hashes = Self { held: Vec::new(), count: 0, part: Some((part, parts)) };
            add_all(&mut hashes);
            hashes.compare_held(context, ino, raw, &name_at);
        }
    }

    fn compare_held(
        mut self,
        context: &Context<'_>,
        ino: Ino,
        raw: &RawInode,
        name_at: &impl Fn(u64) -> Option<Vec<u8>>,
    ) {
        self.held.sort_unstable();
        for pair in self.held.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            if let (Some(a), Some(b)) = (name_at(pair[0].1), name_at(pair[1].1)) {
                report_equal_hashes(context, ino, raw, &a, &b);
            }
        }
    }
}
