//! An open file: its data, and what happens when it is closed.

use super::Session;
use crate::error::{Errno, Result};
use crate::file::{self, OpenFile};
use crate::inode;
use crate::namei::Guarded;
use crate::planted::{Bug, planted};
use crate::types::*;
use crate::volume::{Reason, Volume};
use myriad_format::inode::flag;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An open file. Dropping it closes it; a file without names lives until then.
///
/// It is read and written at any place, or, with the traits of `std::io`, from one place on:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use myriad_engine::{Cred, Fs, OpenOptions};
/// use std::io::{BufRead, BufReader, Seek, Write};
///
/// let session = Fs::in_memory(64 << 20)?.session(Cred::root());
/// let mut file = session.open("list", OpenOptions { read: true, ..OpenOptions::CREATE })?;
/// writeln!(file, "apples")?;
/// writeln!(file, "pears")?;
/// file.rewind()?;
/// let lines: Vec<String> = BufReader::new(&file).lines().collect::<Result<_, _>>()?;
/// assert_eq!(lines, ["apples", "pears"]);
/// let mut bytes = [0; 5];
/// file.read_at(&mut bytes, 7)?;
/// assert_eq!(&bytes, b"pears");
/// # Ok(())
/// # }
/// ```
pub struct File {
    pub(super) session: Session,
    pub(super) file: Arc<OpenFile>,
    pub(super) options: OpenOptions,
    /// Where `Read` and `Write` go on, in bytes.
    pub(super) position: Mutex<u64>,
}

impl File {
    fn volume(&self) -> &Volume {
        self.session.volume()
    }

    /// The file itself, for operations by node.
    pub fn node(&self) -> Node {
        self.file.node()
    }

    /// Its attributes now.
    pub fn stat(&self) -> Result<Stat> {
        self.session.stat_node(self.node())
    }

    /// Drops this handle and leaves the file open, also without a name, until [`Fs::release`](super::Fs::release).
    pub fn hold(self) -> Node {
        self.file.opens.fetch_add(1, Ordering::AcqRel);
        self.node()
    }

    fn check_data(&self, writes: bool) -> Result<()> {
        let allowed = if writes { self.options.write || self.options.append } else { self.options.read };
        if !allowed {
            return Err(Errno::BADF.into());
        }
        self.session.fs.inner.check_process()
    }

    /// Reads up to `buf.len()` bytes; fewer only at the end of the file. EBADF if it is not open for reading, EISDIR for
    /// a directory.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.check_data(false)?;
        if self.is_dir()? {
            return Err(Errno::ISDIR.into());
        }
        let count = file::read(self.volume(), &self.file, buf, offset, self.options.dont_cache)?;
        if !self.options.no_atime {
            self.session.ops().accessed(self.node());
        }
        Ok(count)
    }

    fn is_dir(&self) -> Result<bool> {
        // Asked once: a file opened for writing is none.
        if self.options.write || self.options.append {
            return Ok(false);
        }
        let look = self.volume().look();
        Ok(inode::read_node(&look, self.node())?.is_dir())
    }

    /// Writes `buf` at `offset` (with `append`: at the end); returns the bytes written, fewer than all only when the
    /// volume became full, the largest size was reached, or an error came half-way. ENOSPC, EFBIG, EBADF.
    ///
    /// After an error none of `buf` is in the file, with two exceptions: the volume was shut down; or more had to be done for the bytes before
    /// the write returned, and they are in the file without that. They had to be durable (order `sync`, or a handle that syncs); or the file had been
    /// cut to nothing, and the host became full while they were taken.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.put(buf, offset, self.options.append)
    }

    fn put(&self, buf: &[u8], offset: u64, append: bool) -> Result<usize> {
        self.check_data(true)?;
        let dont_cache = self.options.dont_cache;
        if !buf.is_empty() {
            self.session.take_capabilities(self.node())?;
        }
        let count = file::write(self.volume(), &self.session.cred, &self.file, buf, offset, append, dont_cache)?;
        if self.options.sync && !(planted(Bug::SyncedNameForgotten) && offset == 0) {
            self.sync()?;
        }
        Ok(count)
    }

    /// As [`Self::write_at`], at `offset` even with `append`, for a caller who has looked where the end is; also of a file
    /// that may only be appended to.
    pub fn write_placed(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.put(buf, offset, false)
    }

    /// Sets the size, in bytes: bytes that are cut off are gone, bytes that are added read as zero. EINVAL if the file is not open for
    /// writing, EPERM if it may only be appended to, EFBIG beyond [`Fs::file_size_max`](super::Fs::file_size_max).
    pub fn truncate(&self, size: u64) -> Result<()> {
        if !self.options.write && !self.options.append {
            return Err(Errno::INVAL.into());
        }
        self.session.fs.inner.check_process()?;
        self.check_append_only()?;
        self.session.take_capabilities(self.node())?;
        file::truncate(self.volume(), &self.session.cred, &self.file, size)
    }

    /// Whether it is flagged so that its content may only be added to (chattr(1), `a`).
    pub fn is_append_only(&self) -> Result<bool> {
        let look = self.volume().look();
        Ok(inode::read_node(&look, self.node())?.has_flag(flag::APPEND))
    }

    fn check_append_only(&self) -> Result<()> {
        let look = self.volume().look();
        let raw = inode::read_node(&look, self.node())?;
        if raw.has_flag(flag::APPEND | flag::IMMUTABLE) { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    /// Allocates, or gives back, the blocks of `length` bytes from byte `offset` on, as fallocate(2). ENOSPC, EFBIG; EINVAL for a length of 0;
    /// EBADF if the file is not open for writing.
    pub fn allocate(&self, mode: AllocateMode, offset: u64, length: u64) -> Result<()> {
        if length == 0 {
            return Err(Errno::INVAL.into());
        }
        self.check_data(true)?;
        if matches!(mode, AllocateMode::Punch | AllocateMode::Zero { .. }) {
            self.check_append_only()?;
        }
        self.session.take_capabilities(self.node())?;
        file::allocate(self.volume(), &self.session.cred, &self.file, mode, offset, length)
    }

    /// The first byte at or after `offset` that is data; ENXIO if there is none, or if `offset` is not inside the file.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        file::seek(self.volume(), &self.file, offset, false)
    }

    /// The first byte at or after `offset` that is in a hole; the end of the file counts as one. ENXIO if `offset` is not inside the file.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        file::seek(self.volume(), &self.file, offset, true)
    }

    /// Changes attributes: the size first, then all others together or none. Who may not change all of them changes none. If there is no
    /// room for the others, the size has changed.
    pub fn set_attr(&self, attr: SetAttr) -> Result<Stat> {
        let rest = SetAttr { size: None, ..attr };
        let is_size_alone = rest == SetAttr::default();
        if let Some(size) = attr.size {
            if !is_size_alone {
                self.check_rest(&rest)?;
            }
            self.truncate(size)?;
        }
        if is_size_alone { self.stat() } else { self.session.ops().set_attr(self.node(), &rest) }
    }

    /// Whether all of `rest` may be changed, before anything is.
    fn check_rest(&self, rest: &SetAttr) -> Result<()> {
        let look = self.volume().look();
        let _lock = self.volume().lock_shared(self.file.ino);
        let raw = inode::read_node(&look, self.node())?;
        let guarded = Guarded::new(&look, self.file.ino, &raw)?;
        self.session.ops().check_change(&guarded.subject(), rest)
    }

    /// Makes the file's data, attributes and name durable. `Error::Io` if the device fails, and then all changes of the volume are refused.
    pub fn sync(&self) -> Result<()> {
        self.session.fs.inner.check_process()?;
        if self.volume().options.read_only {
            return Ok(());
        }
        self.volume().counters.bump(crate::counters::Count::fsyncs);
        file::flush(self.volume(), &self.file)?;
        self.volume().commit_file(self.file.ino)
    }

    /// As [`Self::sync`]: attributes and name become durable as well, and a file without them would be of no use.
    pub fn sync_data(&self) -> Result<()> {
        self.sync()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let volume = self.session.volume();
        // Another thread of the parent may have had the locks when it forked: nobody would ever give them back.
        if volume.check_process().is_err() {
            return;
        }
        let reclaim = {
            let _look = volume.look();
            let _lock = volume.lock_exclusive(self.file.ino);
            let last = self.file.opens.fetch_sub(1, Ordering::AcqRel) == 1;
            if last {
                volume.files.forget_if_idle(&self.file, volume.epoch.current());
            }
            // If it has no name, nobody opens or names it any more.
            last && (volume.orphans.has(self.file.ino, Reason::Nameless)
                || planted(Bug::AheadReclaimed) && volume.orphans.is_listed(self.file.ino))
        };
        if reclaim {
            // A failure leaves an orphan, for a later try or for the next opening.
            let _ = crate::ops::finish_nameless(volume, self.node());
        }
    }
}
