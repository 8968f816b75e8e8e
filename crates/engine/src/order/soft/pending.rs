//! Names that differ between the volume in memory and the volume on the device, counted by the inode that they name. How many links an image must
//! show, and which names it may show or drop, depends on all names of an inode, in whatever directory they are.
//!
//! The counts are kept from round to round. When a block of a directory has changed since the last round, the names that it had added are taken away
//! and the block is looked at again. No other block is.

use super::shadow::Change;
use crate::order::facts::Named;
use myriad_format::inode::S_IFDIR;
use std::collections::HashMap;
use std::hash::Hash;

/// File type of a directory in an entry.
pub(super) const DIRECTORY: u8 = (S_IFDIR >> 12) as u8;

/// Names of an inode, or subdirectories of a directory, that differ between what is and what lasts.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub added: u32,
    pub removed: u32,
}

#[derive(Default)]
pub(super) struct Pending {
    names: HashMap<u64, Count>,
    subdirectories: HashMap<u64, Count>,
    /// Directories and tags of entries that are gone and last.
    gone: HashMap<(u64, u32), u32>,
    /// Directories of which a name lasts that names something else now.
    replaced: HashMap<u64, u32>,
}

/// Whether what is counted begins to wait, or waits no more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Begins,
    Ends,
}

impl Step {
    fn apply(self, count: &mut u32) {
        *count = match self {
            Self::Begins => *count + 1,
            Self::Ends => count.checked_sub(1).expect("it was counted"),
        };
    }

    /// Counts in an entry of a map; those of nothing go.
    fn count<K: Eq + Hash + Copy, C: Default + PartialEq>(
        self,
        map: &mut HashMap<K, C>,
        key: K,
        of: impl FnOnce(&mut C) -> &mut u32,
    ) {
        let count = map.entry(key).or_default();
        self.apply(of(count));
        if *count == C::default() {
            map.remove(&key);
        }
    }
}

impl Pending {
    pub fn names(&self, ino: u64) -> Count {
        self.names.get(&ino).copied().unwrap_or_default()
    }

    pub fn subdirectories(&self, dir: u64) -> Count {
        self.subdirectories.get(&dir).copied().unwrap_or_default()
    }

    /// Whether an entry of a directory with this tag is gone, and lasts.
    pub fn is_gone(&self, dir: u64, tag: u32) -> bool {
        self.gone.contains_key(&(dir, tag))
    }

    /// Whether a name that a directory lasts by names something else now.
    pub fn is_replaced(&self, dir: u64) -> bool {
        self.replaced.contains_key(&dir)
    }

    /// Whether any name differs of what an inode is named by, or names.
    pub fn has(&self, ino: u64) -> bool {
        self.names.contains_key(&ino) || self.subdirectories.contains_key(&ino)
    }

    /// Counts a name of a directory that has changed.
    pub fn change(&mut self, dir: u64, change: &Change, step: Step) {
        if change.named_now().is_none() {
            step.count(&mut self.gone, (dir, change.tag), |count| count);
        }
        if let Some(new) = change.named_now() {
            self.count(dir, new, step, |count| &mut count.added);
        }
        if let Some(old) = change.named_before() {
            self.count(dir, old, step, |count| &mut count.removed);
            if old.file_type == DIRECTORY && change.named_now().is_some() {
                step.count(&mut self.replaced, old.ino.0, |count| count);
            }
        }
    }

    /// Counts a name that lasts, in a block that is a directory's no more.
    pub fn left(&mut self, dir: u64, named: Named, step: Step) {
        self.count(dir, named, step, |count| &mut count.removed);
    }

    fn count(&mut self, dir: u64, named: Named, step: Step, of: fn(&mut Count) -> &mut u32) {
        step.count(&mut self.names, named.ino.0, of);
        if named.file_type == DIRECTORY {
            step.count(&mut self.subdirectories, dir, of);
        }
    }

    /// Bytes of memory, with what a table has free.
    pub fn memory(&self) -> u64 {
        let counts = (self.names.len() + self.subdirectories.len()) * size_of::<(u64, Count)>();
        let gone = self.gone.len() * size_of::<((u64, u32), u32)>();
        let all = counts + gone + self.replaced.len() * size_of::<(u64, u32)>();
        (all * 3 / 2) as u64
    }
}
