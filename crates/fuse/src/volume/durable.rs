//! What is to be durable when: before an answer, with `sync` and `dirsync`, or through an opening with O_SYNC; once the mount is read-only; before the volume is
//! shut down.
//!
//! The kernel knows these words, and follows each write by an FSYNC under `sync`; the rest it leaves to the server.

use super::caller::{Capability, has_capability};
use super::{VolumeService, errno, writers};
use crate::mounts;
use crate::wire::{InHeader, IoctlIn, going};
use myriad_engine::{Errno, FileType, Node};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) struct Durable {
    names: AtomicBool,
    /// Attributes and space as well.
    changes: AtomicBool,
    /// As the kernel had it when it was made.
    mount: OnceLock<mounts::Entry>,
}

impl Durable {
    pub fn new<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let durable = Self { names: AtomicBool::new(false), changes: AtomicBool::new(false), mount: OnceLock::new() };
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
    /// Which mount is served, if that could be found out.
    pub fn set_mount(&self, mount: Option<&mounts::Entry>) {
        if let Some(mount) = mount {
            // Once, before it is served.
            let _ = self.durable.mount.set(mount.clone());
        }
    }

    /// The kernel may have the mount otherwise than before.
    pub fn remounted(&self, mount: &mounts::Entry) {
        self.durable.set(mount.options.iter().map(String::as_str));
        // Before what has moved until then is made durable.
        self.fs.hold_access_times(mount.is_read_only());
        // A host without room is tried again at the next change of a mount, and by the commits in between. Any other error shuts the volume
        // down, and is told of there. Each time: it may have been writable in between, and nobody looked. Where nothing has changed that is one flush.
        if mount.is_read_only() {
            let _ = self.fs.sync();
        }
    }

    /// Whether nothing may be changed through the mount, as far as that can be found out.
    pub(super) fn is_mounted_read_only(&self) -> bool {
        let mount = self.durable.mount.get();
        let mount = mount.and_then(|mount| mounts::of(&mount.device, &mount.source).ok().flatten());
        mount.is_some_and(|mount| mount.is_read_only())
    }

    /// The shutdown ioctl: as if the power were cut, but for what its caller wants to be durable first. A mount that is
    /// read-only had that coming when it became so.
    pub(super) fn shut_down(&self, header: &InHeader, args: &IoctlIn) -> Result<(), Errno> {
        if !has_capability(header, Capability::Administrate) {
            return Err(Errno::PERM);
        }
        // Whoever cannot be asked how gets the most.
        let how = going_down(header.pid, args.arg).filter(|_| !self.is_mounted_read_only());
        let how = how.unwrap_or(going::FLUSH_ALL);
        let flushed = match how {
            going::FLUSH_ALL => self.fs.sync().map_err(errno),
            going::FLUSH_LOG => self.make_durable(self.kernel.root()),
            going::FLUSH_NOTHING => Ok(()),
            _ => return Err(Errno::INVAL),
        };
        self.fs.shut_down("it was told to by the shutdown ioctl");
        flushed
    }

    pub(super) fn makes_names_durable(&self) -> bool {
        self.durable.names.load(Ordering::Relaxed)
    }

    /// A name was made, moved or removed.
    pub(super) fn changed_names(&self) -> Result<(), Errno> {
        if !self.makes_names_durable() {
            return Ok(());
        }
        // One directory's sync makes all names durable, and of files nothing else.
        self.make_durable(self.kernel.root())
    }

    /// A file was changed otherwise than by a write.
    pub(super) fn changed_file(&self, node: Node) -> Result<(), Errno> {
        if self.durable.changes.load(Ordering::Relaxed) { self.make_durable(node) } else { Ok(()) }
    }

    /// The same, through a handle that may say that it was opened with O_SYNC or O_DSYNC: then it is as with `sync`, as on the kernel's file
    /// systems.
    pub(super) fn changed_through(&self, handle: u64, node: Node) -> Result<(), Errno> {
        if writers::is_sync(handle) { self.make_durable(node) } else { self.changed_file(node) }
    }

    /// A file or directory is durable after, and so are all names and attributes; of a file in order `softdep`, those that lead to it.
    pub(super) fn make_durable(&self, node: Node) -> Result<(), Errno> {
        match self.kernel.stat_node(node).map_err(errno)?.file_type() {
            FileType::File | FileType::Directory => self.file(node, super::data::READ)?.sync(),
            _ => self.fs.sync(),
        }
        .map_err(errno)
    }
}

/// The argument of the shutdown ioctl. By its number it only returns something, so the kernel does not send what it points to: it
/// is read where it lies, in the thread that waits for our answer. `None` if that cannot be.
fn going_down(pid: u32, address: u64) -> Option<u32> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok().filter(|_| pid != 0)?;
    let mut word = [0; 4];
    memory.read_exact_at(&mut word, address).ok()?;
    Some(u32::from_ne_bytes(word))
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
