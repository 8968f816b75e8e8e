//! Listing directories.

use super::{AsPath, Session};
use crate::error::{Errno, Error, Result};
use crate::types::*;
use myriad_format::Ino;
use std::collections::VecDeque;

/// Entries asked for at a time.
pub(super) const READ_DIR_BATCH: usize = 512;

impl Session {
    /// Entries of a directory, without "." and "..".
    pub fn read_dir(&self, path: &(impl AsPath + ?Sized)) -> Result<ReadDir> {
        self.at_path(path.as_path_bytes(), true, |node| self.read_dir_node(node))
    }

    /// Entries of a directory, without "." and "..".
    pub fn read_dir_node(&self, directory: Node) -> Result<ReadDir> {
        let mut first = Vec::new();
        self.ops().read_dir(directory, 0, 64, &mut first)?;
        self.ops().accessed(directory);
        let cookie = first.last().map_or(0, |entry| entry.cookie);
        Ok(ReadDir { session: self.again(), directory, cookie, entries: first.into(), done: false })
    }

    /// Up to `max` entries after `cookie` (0: from the start); an empty answer is the end. A cookie stays valid whatever
    /// is made or removed in the directory.
    pub fn read_dir_at(&self, directory: Node, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        // Who goes on with a directory will most likely get as many as asked for.
        let mut entries = Vec::with_capacity(if cookie == 0 { 0 } else { max.min(READ_DIR_BATCH) });
        self.ops().read_dir(directory, cookie, max, &mut entries)?;
        self.ops().accessed(directory);
        Ok(entries)
    }

    /// As [`Session::read_dir_at`], with the attributes of each file (`None`: damaged, or in a directory that may not be searched, as [`Session::lookup`]
    /// says).
    pub fn read_dir_plus_at(&self, directory: Node, cookie: u64, max: usize) -> Result<Vec<(DirEntry, Option<Stat>)>> {
        let entries = self.ops().read_dir_plus(directory, cookie, max)?;
        self.ops().accessed(directory);
        Ok(entries)
    }

    /// The attributes of those `wanted` of the files that entries of `directory` name. `None` for one that is not wanted, whose name has
    /// gone meanwhile or is another file's by now, or that is damaged, and in a directory that may not be searched, as [`Session::lookup`] says: an answer has
    /// the number of its entry.
    pub fn stat_entries(
        &self,
        directory: Node,
        entries: &[DirEntry],
        wanted: impl Fn(&DirEntry) -> bool,
    ) -> Vec<Option<Stat>> {
        self.ops().stat_entries(directory, entries, wanted)
    }

    /// Reads the blocks into memory that a listing of the directories among `entries` will need, in a few large requests instead of many
    /// small ones. For a walk that will list them soon. A block that cannot be read is passed over; the listing will report it.
    pub fn read_ahead_directories<'e>(&self, entries: impl IntoIterator<Item = &'e DirEntry>) {
        let directories: Vec<Ino> = entries
            .into_iter()
            .filter(|entry| entry.file_type == FileType::Directory)
            .map(|entry| Ino(entry.ino))
            .collect();
        self.ops().fetch_directories(&directories);
    }

    /// As [`Session::read_ahead_directories`], for the content of the files of up to 64 KiB among `entries`.
    pub fn read_ahead_files<'e>(&self, entries: impl IntoIterator<Item = &'e DirEntry>) {
        let files: Vec<Ino> =
            entries.into_iter().filter(|entry| entry.file_type == FileType::File).map(|entry| Ino(entry.ino)).collect();
        self.ops().fetch_files(&files);
    }
}

/// Iterator over a directory's entries, in the order of their positions: that in which they were made, but for reused
/// places.
pub struct ReadDir {
    session: Session,
    directory: Node,
    cookie: u64,
    entries: VecDeque<DirEntry>,
    done: bool,
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.entries.is_empty() && !self.done {
            match self.session.read_dir_at(self.directory, self.cookie, READ_DIR_BATCH) {
                Ok(entries) => {
                    self.done = entries.is_empty();
                    self.cookie = entries.last().map_or(self.cookie, |entry| entry.cookie);
                    self.entries = entries.into();
                }
                // The directory went while it was listed: it has no more entries.
                Err(Error::Refused(Errno::STALE)) => self.done = true,
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        self.entries.pop_front().map(Ok)
    }
}
