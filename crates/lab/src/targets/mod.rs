//! Targets: what is measured. Each does what a good program would do with it, and nothing less than was asked.

pub mod in_process;
pub mod packed;
pub mod served;
pub mod sqlite;
pub mod sys_calls;

use crate::workloads::plan::PathZ;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How much may be lost if the machine stops during a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Everything since the phase began: one sync at its end.
    End,
    /// At most this many operations; 1: each is durable when it returns.
    Every(u32),
}

/// Totals since some fixed point in the past; a phase's figures are differences. `None`: the target cannot tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub reads: Option<u64>,
    pub read_bytes: Option<u64>,
    pub writes: Option<u64>,
    pub written_bytes: Option<u64>,
    pub flushes: Option<u64>,
    /// Blocks an operation looked at, cached or not.
    pub blocks_touched: Option<u64>,
    /// Bytes between the end of each request and the start of the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seek_bytes: Option<u64>,
    /// Nanoseconds that a modelled device says it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_ns: Option<u64>,
    /// Nanoseconds of these that the processor of a modelled machine was charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_ns: Option<u64>,
    /// Everything else that the target counts, by its own names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, u64>,
}

impl Counters {
    /// What happened since `earlier`. Counters that stood still are left out of `others`.
    pub fn since(&self, earlier: &Self) -> Self {
        let difference = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let others = self.others.iter().filter_map(|(name, &now)| {
            let change = now.saturating_sub(earlier.others.get(name).copied().unwrap_or(0));
            (change > 0).then(|| (name.clone(), change))
        });
        Self {
            reads: difference(self.reads, earlier.reads),
            read_bytes: difference(self.read_bytes, earlier.read_bytes),
            writes: difference(self.writes, earlier.writes),
            written_bytes: difference(self.written_bytes, earlier.written_bytes),
            flushes: difference(self.flushes, earlier.flushes),
            blocks_touched: difference(self.blocks_touched, earlier.blocks_touched),
            seek_bytes: difference(self.seek_bytes, earlier.seek_bytes),
            modelled_ns: difference(self.modelled_ns, earlier.modelled_ns),
            processor_ns: difference(self.processor_ns, earlier.processor_ns),
            others: others.collect(),
        }
    }
}

/// Space in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub used_bytes: u64,
    /// Bytes that mkfs set aside for each inode and `used_bytes` therefore never shows (ext4's inode tables).
    pub table_bytes_per_inode: u64,
}

/// A place to work in, empty when it is made.
pub trait Target: Sync {
    /// Calls `work` with one thread's way in. A callback, so that an implementation can keep what the way in borrows from
    /// (a connection for its statements) on its own stack.
    fn with_worker(&self, work: &mut dyn FnMut(&mut dyn Worker) -> Result<()>) -> Result<()>;
    /// Makes everything done so far durable.
    fn sync(&self) -> Result<()>;
    /// Empties the caches, after a sync: the next accesses read the device. Called when no worker is at work.
    fn drop_caches(&self) -> Result<()>;
    fn counters(&self) -> Result<Counters>;
    fn usage(&self) -> Result<Usage>;
    /// How many names there are in all: files, directories, further names of files; without the root.
    fn names(&self) -> Result<u64>;
    /// Whether `read_at` and `write_at` exist.
    fn has_random_access(&self) -> bool {
        true
    }
    /// Where any program can work in it; `None`: it has no path.
    fn directory(&self) -> Option<&std::path::Path> {
        None
    }
    /// Before each phase, outside of what is measured; the phase `changes` what is there, or only looks.
    fn begin(&self, _changes: bool) -> Result<()> {
        Ok(())
    }
    /// After `begin`, outside of what is measured, where a phase does not want empty caches: a target that lost its own at a sync, or has never
    /// read what others have written, reads all once. They have it in memory from the phases before.
    fn warm_up(&self) -> Result<()> {
        Ok(())
    }
    /// What is measured of a phase begins: where a recording is made, it says so there.
    fn phase_begins(&self, _name: &str) {}
    fn phase_ends(&self) {}
    /// Whether phases that change only prepare: what is measured cannot be changed.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Whether a file can have several names.
    fn has_links(&self) -> bool {
        true
    }
    /// Syncs, and gives back what it holds.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One thread's operations. Paths are relative to the target's root.
pub trait Worker {
    /// The next paths lie mostly in this directory.
    fn enter(&mut self, _directory: PathZ) -> Result<()> {
        Ok(())
    }
    /// An operation is over, or a batch of them.
    fn done(&mut self) {}
    /// Makes an empty regular file that did not exist.
    fn create(&mut self, path: PathZ) -> Result<()>;
    fn mkdir(&mut self, path: PathZ) -> Result<()>;
    fn unlink(&mut self, path: PathZ) -> Result<()>;
    fn rmdir(&mut self, path: PathZ) -> Result<()>;
    fn rename(&mut self, source: PathZ, target: PathZ) -> Result<()>;
    /// Attributes of a file that is there; the size, to have something to use.
    fn stat(&mut self, path: PathZ) -> Result<u64>;
    /// Fails unless the file is missing.
    fn stat_missing(&mut self, path: PathZ) -> Result<()>;
    /// Attributes of many files, by the best means there is.
    fn stat_many(&mut self, paths: &[PathZ]) -> Result<()> {
        for &path in paths {
            std::hint::black_box(self.stat(path)?);
        }
        Ok(())
    }
    /// Number of entries, having seen each one's name.
    fn list(&mut self, directory: PathZ) -> Result<u64>;
    /// The same, having seen each one's attributes.
    fn list_stat(&mut self, directory: PathZ) -> Result<u64>;
    /// Puts the path of each entry, with the NUL that system calls want, into `paths`.
    fn names(&mut self, directory: PathZ, paths: &mut Vec<u8>) -> Result<()>;
    /// Number of files below and with `directory`, having seen each one's attributes.
    fn walk(&mut self, directory: PathZ) -> Result<u64>;
    /// The same, having seen each one's name.
    fn find(&mut self, directory: PathZ) -> Result<u64>;
    /// Removes `directory` and all below it; the number removed.
    fn remove_tree(&mut self, directory: PathZ) -> Result<u64>;
    /// Makes a file with this content; with `sync`, durable before it returns.
    fn write_file(&mut self, path: PathZ, content: &[u8], sync: bool) -> Result<()>;
    /// Reads a whole file; its length, which must fit.
    fn read_file(&mut self, path: PathZ, buf: &mut [u8]) -> Result<usize>;
    /// Opens the file that `read_at` and `write_at` use; `new` makes it.
    fn open(&mut self, path: PathZ, new: bool) -> Result<()>;
    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<()>;
    fn write_at(&mut self, content: &[u8], offset: u64) -> Result<()>;
    /// Another name of a file.
    fn link(&mut self, path: PathZ, name: PathZ) -> Result<()>;
    /// Sets the times of last access and change to now.
    fn utime(&mut self, path: PathZ) -> Result<()>;
    /// Adds to the end of a file.
    fn append(&mut self, path: PathZ, content: &[u8]) -> Result<()>;
    /// Makes a file of `size` bytes that are all a hole.
    fn create_sized(&mut self, path: PathZ, size: u64) -> Result<()>;
    /// Makes durable what this worker has done so far.
    fn settle(&mut self) -> Result<()>;
    /// Hands over what is still the worker's own (an open transaction, an open file); part of the timed phase.
    fn finish(&mut self) -> Result<()>;
}

/// Adds the path of an entry of `directory`, as [`Worker::names`] hands it out.
fn push_path(paths: &mut Vec<u8>, directory: PathZ, name: &[u8]) {
    for part in [directory.bytes(), b"/", name, b"\0"] {
        paths.extend(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_differences() {
        let others = |value| [("splits".to_owned(), value), ("merges".to_owned(), 3)].into();
        let earlier = Counters { reads: Some(10), writes: None, others: others(5), ..Counters::default() };
        let now = Counters { reads: Some(25), writes: Some(4), others: others(7), ..Counters::default() };
        let change = now.since(&earlier);
        assert_eq!((change.reads, change.writes), (Some(15), None));
        assert_eq!(change.others, [("splits".to_owned(), 2)].into());
    }
}
