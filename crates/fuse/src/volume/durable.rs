//! `sync` and `dirsync`: changes that are durable before they are answered.
//!
//! The kernel knows these words, and follows each write by an FSYNC under `sync`; the rest it leaves to the server.

use super::{VolumeService, errno};
use myriad_engine::{Errno, FileType, Node};
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) struct Durable {
    names: AtomicBool,
    /// Attributes and space as well.
    changes: AtomicBool,
}

impl Durable {
    pub fn new<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let durable = Self { names: AtomicBool::new(false), changes: AtomicBool::new(false) };
        durable.set(words);
        durable
    }

    /// As these words of a mount say; of two that contradict each other the later one counts.
    fn set<'a>(&self, words: impl Iterator<Item = &'a str>) {
        let (mut sync, mut dirsync) = (false, false);
        for word in words {
            match word {
                "sync" => sync = true,
                "async" => sync = false,
                "dirsync" => dirsync = true,
                _ => {}
            }
        }
        self.names.store(sync || dirsync, Ordering::Relaxed);
        self.changes.store(sync, Ordering::Relaxed);
    }
}

impl VolumeService {
    /// The mount is had otherwise from now on.
    pub fn set_durable<'a>(&self, words: impl Iterator<Item = &'a str>) {
        self.durable.set(words);
    }

    /// A name was made, moved or removed.
    pub(super) fn changed_names(&self) -> Result<(), Errno> {
        if !self.durable.names.load(Ordering::Relaxed) {
            return Ok(());
        }
        // One directory's sync makes all names durable, and of files nothing else.
        self.make_durable(self.kernel.root())
    }

    /// A file was changed otherwise than by a write.
    pub(super) fn changed_file(&self, node: Node) -> Result<(), Errno> {
        if self.durable.changes.load(Ordering::Relaxed) { self.make_durable(node) } else { Ok(()) }
    }

    /// A file or directory is durable after, and so are all names and attributes.
    pub(super) fn make_durable(&self, node: Node) -> Result<(), Errno> {
        match self.kernel.stat_node(node).map_err(errno)?.file_type() {
            FileType::File | FileType::Directory => self.file(node, super::data::READ)?.sync(),
            _ => self.fs.sync(),
        }
        .map_err(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_word_counts() {
        for (words, expected) in [
            ("rw,noatime", (false, false)),
            ("dirsync", (true, false)),
            ("sync", (true, true)),
            ("sync,async", (false, false)),
            ("dirsync,sync,async", (true, false)),
        ] {
            let durable = Durable::new(words.split(','));
            let found = (durable.names.load(Ordering::Relaxed), durable.changes.load(Ordering::Relaxed));
            assert_eq!(found, expected, "{words}");
        }
    }
}
