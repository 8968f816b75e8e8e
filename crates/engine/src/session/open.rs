//! Opening files.

use super::{AsPath, File, Session};
use crate::error::{Errno, Error, Result};
use crate::file::{self, OpenFile};
use crate::inode;
use crate::namei::Guarded;
use crate::ops::NewFile;
use crate::perm;
use crate::types::*;
use myriad_format::Ino;
use myriad_format::inode::{RawInode, S_IFREG};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Session {
    /// Opens a regular file, or a directory for reading its attributes.
    pub fn open(&self, path: &(impl AsPath + ?Sized), options: OpenOptions) -> Result<File> {
        let path = path.as_path_bytes();
        if !options.create {
            return self.at_path(path, !options.no_follow, |node| self.open_node(node, options));
        }
        if path.last() == Some(&b'/') {
            let place = self.by_path(|_| self.target(&mut self.volume().look(), path))?;
            let exists = place.name.is_empty() && options.exclusive;
            return Err(if exists { Errno::EXIST } else { Errno::ISDIR }.into());
        }
        // A file may appear or vanish between looking and making: go round until one of the two has worked.
        for _ in 0..100 {
            let opened = self.at_path(path, !options.no_follow && !options.exclusive, |node| {
                if options.exclusive {
                    return Err(Errno::EXIST.into());
                }
                if self.stat_node(node)?.is_dir() {
                    return Err(Errno::ISDIR.into());
                }
                self.open_node(node, options)
            });
            match opened {
                Err(Error::Refused(Errno::NOENT)) => {}
                result => return result,
            }
            let made = self.by_path(|ops| {
                let place = self.creation_place(path, !options.no_follow && !options.exclusive)?;
                let new = NewFile { mode: S_IFREG | options.mode & 0o7777, ..NewFile::default() };
                ops.make(place.parent, &place.name, &new)
            });
            match made {
                // Who makes a file may open it whatever its mode says.
                Ok(stat) => match self.open_unchecked(stat.node(), options) {
                    // Removed already.
                    Err(Error::Refused(Errno::STALE)) => {}
                    result => return result,
                },
                Err(Error::Refused(Errno::EXIST)) if !options.exclusive => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::BUSY.into())
    }

    /// An unnamed file in the directory `path`; [`Session::link_file`] can name it.
    pub fn open_tmpfile(&self, path: &(impl AsPath + ?Sized), mode: u16) -> Result<File> {
        let made = self.at_path(path.as_path_bytes(), true, |node| self.ops().make_tmpfile(node, mode))?;
        let file = self.opened(made, OpenOptions::READ_WRITE);
        file.file.linkable.store(true, Ordering::Release);
        Ok(file)
    }

    /// An unnamed file in `directory`.
    pub fn open_tmpfile_at(&self, directory: Node, mode: u16) -> Result<File> {
        let made = self.ops().make_tmpfile(directory, mode)?;
        Ok(self.opened(made, OpenOptions::READ_WRITE))
    }

    /// Opens a node; `create`, `exclusive` and `mode` play no part.
    pub fn open_node(&self, node: Node, options: OpenOptions) -> Result<File> {
        let file = {
            let look = self.volume().look();
            let _lock = self.volume().lock_shared(Ino(node.ino));
            let raw = inode::read_node(&look, node)?;
            if inode::is_link(&raw) {
                return Err(Errno::LOOP.into());
            }
            let guarded = Guarded::new(&look, Ino(node.ino), &raw)?;
            perm::check_open(self.judged(), &guarded.subject(), &options)?;
            let writes = options.write || options.append || options.truncate;
            if writes && self.volume().options.read_only {
                return Err(Errno::ROFS.into());
            }
            if !raw.is_dir() && !inode::is_file(&raw) {
                // What stands behind a FIFO, socket or device is the kernel's, not ours.
                return Err(Errno::NXIO.into());
            }
            self.handle(Ino(node.ino), &raw, options)?
        };
        if options.truncate {
            self.take_capabilities(node)?;
            file::truncate(self.volume(), &self.cred, &file.file, 0)?;
        }
        Ok(file)
    }

    pub(super) fn open_unchecked(&self, node: Node, options: OpenOptions) -> Result<File> {
        let look = self.volume().look();
        let _lock = self.volume().lock_shared(Ino(node.ino));
        let raw = inode::read_node(&look, node)?;
        self.handle(Ino(node.ino), &raw, options)
    }

    /// A handle; ESTALE if the file is gone. The inode is locked, so that it cannot be freed under us.
    pub(super) fn handle(&self, ino: Ino, raw: &RawInode, options: OpenOptions) -> Result<File> {
        let volume = self.volume();
        if inode::is_gone(volume, ino, raw) {
            return Err(Errno::STALE.into());
        }
        Ok(self.opened(volume.files.open(ino, raw.generation.get()), options))
    }

    /// The handle of a file that was opened for it.
    fn opened(&self, file: Arc<OpenFile>, options: OpenOptions) -> File {
        self.volume().counters.bump(crate::counters::Count::opens);
        File { session: self.again(), file, options, position: Mutex::new(0) }
    }
}
