//! An image file or a block device of the host.
//!
//! Requests go past the host's cache where it allows that, and through it elsewhere; whoever cares asks `is_direct`.
//! A single request is one system call in the calling thread, which is what a cache miss wants; a batch goes through
//! a ring or the thread pool.
//!
//! Durability. `returned` counts changes that have returned, `flushed` is its value at the start of the last flush
//! that succeeded. When the two are equal at the start of a durable write, everything that returned before it is
//! durable already, so the write needs only be durable itself: one RWF_DSYNC write, which a disk with FUA serves
//! without emptying its cache. This is the commit record after a flush of the log body. In all other cases: write,
//! then flush.
//!
//! A failed flush is final. The kernel tells of lost pages once, drops them, and answers the next flush with success;
//! so the device remembers, and refuses all later ones. Flushes take turns for the same reason: of two at once, only
//! one would hear of the loss.
//!
//! Not here: retries of failed requests, and any waiting for a lock.

#![deny(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::batch::{self, Target, Transfer};
use crate::error::{ForkedChild, InUse, OpenError, check_end, check_range, is_full, of_flush};
use crate::lock::{LockKind, LockRange, find_mount, lock_alone, set_lock};
use crate::loops::{self, Behind};
use crate::pool::Pool;
use crate::uring::Rings;
use crate::{AlignedBuf, BlockDevice, Counters, DeviceCounters, Discards, ReadRequest, WriteRequest};

/// Threads that serve batches without io_uring, beside the caller's own.
const POOL_THREADS: usize = 4;

/// Alignment of direct I/O that every disk of the last fifteen years takes.
const ALIGNMENT_SAFE: usize = 4096;

/// Alignment in bytes that is tried first where the host does not tell.
const ALIGNMENT_MIN: usize = 512;

/// Chooses the backend where [`IoBackend::Auto`] leaves it open: "uring" or "threads".
const BACKEND_VARIABLE: &str = "MYRIAD_IO_BACKEND";

/// What the opener intends to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// Whether requests go past the host's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Where the host allows it.
    #[default]
    Auto,
    Never,
    /// Opening fails where the host does not allow it. (A host that accepts direct I/O at opening and refuses it later
    /// is served through its cache all the same.)
    Require,
}

/// What serves batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoBackend {
    /// What the environment variable `MYRIAD_IO_BACKEND` says ("uring", "threads"); else io_uring where the host
    /// allows it, threads elsewhere.
    #[default]
    Auto,
    /// Opening fails where io_uring is refused.
    Uring,
    Threads,
}

/// How to open or create; the default is what a mount wants.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    pub direct: DirectIo,
    pub backend: IoBackend,
    /// Where the device begins in the file, in bytes: a volume inside a partitioned image.
    pub offset: u64,
    /// Size of the device in bytes; all the rest of the file if not given. `create` ignores it.
    pub length: Option<u64>,
    /// For `create`: fail with `AlreadyExists` if the path exists in any form.
    pub exclusive: bool,
}

/// A device in a file of the host. Closing it gives up its lock.
pub struct FileDevice {
    path: PathBuf,
    target: Target,
    /// A block device's descriptor that keeps the kernel and other programs from claiming it. It goes with the lock, at once,
    /// where the descriptor of `target` stays for as long as anybody may use it.
    claim: Mutex<Option<File>>,
    access: Access,
    is_block_device: bool,
    /// Of a loop device the file that it lies on, which is locked with it.
    behind: Option<Behind>,
    /// A regular file that had holes when it was opened.
    is_sparse: bool,
    /// The host has said that it takes no discards.
    refuses_discards: AtomicBool,
    /// In bytes, a multiple of the alignment or not.
    length: u64,
    rings: Option<Rings>,
    /// Started by the first batch that needs it.
    pool: OnceLock<Pool>,
    owner_pid: u32,
    returned: AtomicU64,
    flushed: AtomicU64,
    /// True after a flush has failed. Held while flushing.
    flush_failed: Mutex<bool>,
    /// Whether the host is known to keep RWF_DSYNC's promise.
    dsync: AtomicBool,
    counters: Counters,
}

impl FileDevice {
    /// Opens an existing file or block device with default options.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self, OpenError> {
        Self::open_with(path, access, &FileOptions::default())
    }

    /// Opens an existing file or block device. It takes no lock; see [`FileDevice::lock_exclusive`]. A block device
    /// opened for writing is claimed from the kernel, though, so that it cannot be mounted at the same time.
    ///
    /// Errors: `InUse` when the kernel has the block device mounted or claimed; `Unsuitable` for what is neither a
    /// file nor a block device, and for an offset or length that the file does not reach; the host's own.
    pub fn open_with(path: impl AsRef<Path>, access: Access, options: &FileOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        // Before opening: that of a pipe would wait, that of a tape would wind.
        let metadata = path.metadata().map_err(|error| OpenError::io(path, "open", error))?;
        let is_block_device = metadata.file_type().is_block_device();
        if !is_block_device && !metadata.is_file() {
            return Err(OpenError::unsuitable(path, "neither a regular file nor a block device"));
        }
        let open = |flags| {
            let mut file = OpenOptions::new();
            file.read(true).write(access == Access::ReadWrite).custom_flags(flags).open(path)
        };
        let claim = (is_block_device && access == Access::ReadWrite).then(|| open(libc::O_EXCL)).transpose();
        let claim = claim.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => InUse { path: path.to_owned(), holder: find_mount(metadata.rdev()) }.into(),
            _ => OpenError::io(path, "open", error),
        })?;
        let file = open(0).map_err(|error| OpenError::io(path, "open", error))?;
        let device = Self::from_file(path, file, access, options)?;
        *device.claim.lock() = claim;
        if access == Access::ReadWrite && !device.is_direct() {
            device.target.forget_cached().map_err(|error| OpenError::io(path, "flush", error))?;
        }
        Ok(device)
    }

    /// Creates an image of `size` bytes, sparse: it takes no space until written. The device holds the exclusive lock.
    ///
    /// Without `exclusive`, an existing image is locked first and then emptied, so one that is in use is left alone;
    /// with an `offset`, what lies before it is kept and the rest is discarded. An existing block device serves as
    /// it is, if it is large enough; its contents are left alone.
    ///
    /// Errors: `InUse`, `Unsuitable` as for [`FileDevice::open_with`], `AlreadyExists` as an `Io`; the host's own.
    pub fn create(path: impl AsRef<Path>, size: u64, options: &FileOptions) -> Result<Self, OpenError> {
        Self::claim(path, size, options)?.empty()
    }

    /// Has the host give all of its room to a device in a regular file now, so that no write meets a full host later. What the
    /// file holds stays. Errors: `Unsuitable` for a block device, which has its room; the host's own, among them that it has too
    /// little room, or cannot do this.
    pub fn preallocate(&self) -> Result<(), OpenError> {
        if self.is_block_device {
            return Err(OpenError::unsuitable(&self.path, "a block device has all of its room already"));
        }
        let (file, start) = (&self.target.file, self.target.start);
        rustix::fs::fallocate(file, FallocateFlags::empty(), start, self.length)
            .map_err(|error| OpenError::io(&self.path, "preallocate", error))
    }

    /// The first half of [`FileDevice::create`]: all that can be refused is, and nothing is lost yet. Of a file, all from the offset to
    /// its end is locked: a volume behind the new one would be cut off.
    pub fn claim(path: impl AsRef<Path>, size: u64, options: &FileOptions) -> Result<Claim, OpenError> {
        let path = path.as_ref();
        let options = FileOptions { length: Some(size), ..options.clone() };
        let end = options.offset.checked_add(size).filter(|&end| i64::try_from(end).is_ok());
        let end = end.ok_or_else(|| OpenError::unsuitable(path, "larger than a file can be"))?;
        let existing = path.symlink_metadata();
        if existing.is_ok() && !options.exclusive {
            let metadata = path.metadata().map_err(|error| OpenError::io(path, "open", error))?;
            if !metadata.is_file() {
                let device = Self::open_with(path, Access::ReadWrite, &options)?;
                device.lock_exclusive()?;
                return Ok(Claim { device, image: None });
            }
        }
        let mut open = OpenOptions::new();
        // Not `truncate`: nothing may be lost before the lock is ours.
        let open =
            open.read(true).write(true).create(true).truncate(false).create_new(options.exclusive || existing.is_err());
        let file = open.open(path).map_err(|error| OpenError::io(path, "create", error))?;
        let range = LockRange { start: options.offset, length: 0 };
        lock_alone(&file, path, range).inspect_err(|error| {
            // One that was made here goes again, unless somebody else has begun to use it already.
            if existing.is_err() && !matches!(error, OpenError::InUse(_)) {
                let _ = std::fs::remove_file(path);
            }
        })?;
        let length_before = file.metadata().map_err(|error| OpenError::io(path, "examine", error))?.len();
        let image = file.try_clone().map_err(|error| OpenError::io(path, "open", error))?;
        let made = existing.is_err().then(|| path.to_owned());
        let image = Image { file: image, made, start: options.offset, end, length_before, emptied: false };
        if length_before < end {
            // What the host has no room for is refused here, while the old content is there.
            image.file.set_len(end).map_err(|error| OpenError::io(path, "set the size of", error))?;
        }
        Ok(Claim { device: Self::from_file(path, file, Access::ReadWrite, &options)?, image: Some(image) })
    }

    fn from_file(path: &Path, mut file: File, access: Access, options: &FileOptions) -> Result<Self, OpenError> {
        let metadata = file.metadata().map_err(|error| OpenError::io(path, "examine", error))?;
        let is_block_device = metadata.file_type().is_block_device();
        let file_size = if is_block_device {
            file.seek(SeekFrom::End(0)).map_err(|error| OpenError::io(path, "find the size of", error))?
        } else {
            metadata.len()
        };
        let available = file_size.checked_sub(options.offset).ok_or_else(|| {
            OpenError::unsuitable(path, format!("offset {} lies past the end, {file_size} bytes", options.offset))
        })?;
        let length = options.length.unwrap_or(available);
        if length > available {
            let reason = format!("{length} bytes wanted at offset {}, {available} bytes there", options.offset);
            return Err(OpenError::unsuitable(path, reason));
        }
        let rules = settle_rules(path, &file, is_block_device, options)?;
        let rings = start_rings(path, options.backend)?;
        let dsync = is_block_device || keeps_dsync(&file);
        let behind = is_block_device.then(|| loops::behind(metadata.rdev(), access == Access::ReadWrite)).flatten();
        Ok(Self {
            path: path.to_owned(),
            length,
            target: Target::new(file, options.offset, rules.alignment, rules.memory_alignment, rules.direct),
            claim: Mutex::new(None),
            access,
            is_block_device,
            behind,
            // Units of 512 bytes, whatever the host's blocks are.
            is_sparse: !is_block_device && metadata.blocks().saturating_mul(512) < metadata.len(),
            refuses_discards: AtomicBool::new(false),
            rings,
            pool: OnceLock::new(),
            owner_pid: std::process::id(),
            // Whatever a killed predecessor left in the disk's cache counts as returned and not flushed.
            returned: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            flush_failed: Mutex::new(false),
            dsync: AtomicBool::new(dsync),
            counters: Counters::default(),
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it was opened for.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether requests go past the host's cache. May turn false at the first I/O, on a host that accepts direct I/O
    /// only in name.
    pub fn is_direct(&self) -> bool {
        self.target.is_direct()
    }

    /// Whether this is a block device of the host.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// What serves batches: "io_uring" or "threads".
    pub fn backend_name(&self) -> &'static str {
        if self.rings.is_some() { "io_uring" } else { "threads" }
    }

    /// Process that opened the device. In a forked child of it every request fails with [`ForkedChild`].
    pub fn owner_pid(&self) -> u32 {
        self.owner_pid
    }

    /// Fails with [`ForkedChild`] in a process other than the one that opened the device.
    pub fn check_owner(&self) -> Result<(), ForkedChild> {
        // One short system call, against at least one long one for the request.
        let pid = std::process::id();
        if pid == self.owner_pid { Ok(()) } else { Err(ForkedChild { owner_pid: self.owner_pid, pid }) }
    }

    /// Makes this the only opener, or turns a shared lock into that; without waiting.
    ///
    /// Errors: `InUse` with the holder where it can be found; `Unsuitable` when opened read-only; the host's own (file
    /// systems without locks answer ENOLCK).
    pub fn lock_exclusive(&self) -> Result<(), OpenError> {
        if self.access == Access::ReadOnly {
            return Err(OpenError::unsuitable(&self.path, "opened read-only, so it cannot be locked for writing"));
        }
        self.set_lock(LockKind::Exclusive)
    }

    /// Keeps writers out, and lets other readers in; turns an exclusive lock into that. Does not wait. Errors as for
    /// [`FileDevice::lock_exclusive`].
    pub fn lock_shared(&self) -> Result<(), OpenError> {
        self.set_lock(LockKind::Shared)
    }

    /// Gives up the lock, and the claim to a block device for good; closing does too.
    pub fn unlock(&self) -> Result<(), OpenError> {
        self.set_lock(LockKind::Unlocked)?;
        *self.claim.lock() = None;
        Ok(())
    }

    fn set_lock(&self, kind: LockKind) -> Result<(), OpenError> {
        // A child would change the lock of its parent.
        self.check_owner().map_err(|error| OpenError::io(&self.path, "lock", error))?;
        let range = LockRange { start: self.target.start, length: self.length };
        if kind == LockKind::Exclusive && !self.is_block_device {
            return lock_alone(&self.target.file, &self.path, range);
        }
        set_lock(&self.target.file, &self.path, range, kind)?;
        let Some(behind) = &self.behind else { return Ok(()) };
        let range_behind = LockRange { start: behind.start.saturating_add(range.start), ..range };
        set_lock(&behind.file, &self.path, range_behind, kind).inspect_err(|_| {
            // It is refused in any case; closing gives up what this does not.
            let _ = set_lock(&self.target.file, &self.path, range, LockKind::Unlocked);
        })
    }

    fn check_range(&self, offset: u64, length: u64) -> io::Result<()> {
        Ok(check_range(self.size(), self.target.alignment(), offset, length)?)
    }

    fn check_writable(&self) -> io::Result<()> {
        self.check_owner()?;
        if self.access == Access::ReadOnly { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    /// Makes all transfers, in flight together.
    fn run(&self, mut transfers: Vec<Transfer<'_>>) -> io::Result<()> {
        if let [transfer] = &mut transfers[..] {
            return transfer.run(&self.target);
        }
        if let Some(result) = self.rings.as_ref().and_then(|rings| rings.run(&self.target, &mut transfers)) {
            return result;
        }
        let transfers: Vec<_> = transfers.into_iter().map(Mutex::new).collect();
        let first_error = Mutex::new(None);
        self.pool.get_or_init(|| Pool::new(POOL_THREADS)).run(transfers.len(), &|index| {
            if first_error.lock().is_some() {
                return;
            }
            if let Err(error) = transfers[index].lock().run(&self.target) {
                first_error.lock().get_or_insert(error);
            }
        });
        first_error.into_inner().map_or(Ok(()), Err)
    }

    /// To be called after a change has been made, and before the call that made it returns.
    fn note_change(&self) {
        self.returned.fetch_add(1, Ordering::AcqRel);
    }

    fn all_flushed(&self) -> bool {
        let returned = self.returned.load(Ordering::Acquire);
        self.flushed.load(Ordering::Acquire) >= returned
    }

    /// One write that is durable in itself, after all that had returned was flushed. False if the host cannot do that; then nothing is
    /// promised.
    fn write_dsync(&self, offset: u64, buf: &[u8]) -> io::Result<bool> {
        let mut failed = self.flush_failed.lock();
        refuse_after(*failed)?;
        match batch::write_whole(&self.target, offset, buf, true) {
            Ok(()) => Ok(true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                self.dsync.store(false, Ordering::Relaxed);
                Ok(false)
            }
            // Past the host's cache, what finds no room was not taken, and of older writes nothing was left to flush. A plain write tells
            // of it in a way that harms nothing, or finds room by now; the flush after it decides.
            Err(error) if is_full(&error) && self.is_direct() => Ok(false),
            Err(error) => {
                // Which of the two failed, the write or the flush within it, is not told.
                *failed = true;
                Err(of_flush(error))
            }
        }
    }
}

impl Drop for FileDevice {
    /// Closing gives up the lock only with the last descriptor of the open file, and a child that another thread has
    /// forked and that has not come to its `exec` holds one too: whoever opens the volume next would find it in use.
    fn drop(&mut self) {
        // In a forked child this refuses: the lock is the parent's.
        let _ = self.unlock();
    }
}

impl BlockDevice for FileDevice {
    fn size(&self) -> u64 {
        self.length & !(self.target.alignment() as u64 - 1)
    }

    fn alignment(&self) -> usize {
        self.target.alignment()
    }

    fn take_units(&self, unit: usize) -> io::Result<bool> {
        if unit % self.alignment() == 0 {
            return Ok(true);
        }
        if self.is_block_device {
            return Ok(false);
        }
        self.target.take_any_size(self.access == Access::ReadWrite).map(|()| true)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check_owner()?;
        self.check_range(offset, buf.len() as u64)?;
        batch::read_whole(&self.target, offset, buf)?;
        self.counters.read(1, buf.len() as u64);
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        self.check_range(offset, buf.len() as u64)?;
        let result = batch::write_whole(&self.target, offset, buf, false);
        self.note_change();
        result?;
        self.counters.write(1, buf.len() as u64);
        Ok(())
    }

    fn write_many(&self, writes: &[WriteRequest<'_>]) -> io::Result<()> {
        self.check_writable()?;
        for request in writes {
            self.check_range(request.offset, request.len_bytes())?;
        }
        let result = self.run(batch::split_writes(&self.target, writes));
        self.note_change();
        result?;
        self.counters.write(writes.len(), writes.iter().map(WriteRequest::len_bytes).sum());
        Ok(())
    }

    fn read_many(&self, reads: &mut [ReadRequest<'_>]) -> io::Result<()> {
        self.check_owner()?;
        for request in reads.iter() {
            self.check_range(request.offset, request.buf.len() as u64)?;
        }
        let (count, bytes) = (reads.len(), reads.iter().map(|request| request.buf.len() as u64).sum());
        self.run(batch::split_reads(&self.target, reads))?;
        self.counters.read(count, bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.check_owner()?;
        if self.access == Access::ReadOnly {
            return Ok(());
        }
        let mut failed = self.flush_failed.lock();
        refuse_after(*failed)?;
        let returned = self.returned.load(Ordering::Acquire);
        if let Err(error) = rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.target.file)) {
            *failed = true;
            return Err(of_flush(error.into()));
        }
        self.flushed.store(returned, Ordering::Release);
        self.counters.flush();
        Ok(())
    }

    fn write_durable(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        self.check_range(offset, buf.len() as u64)?;
        if self.dsync.load(Ordering::Relaxed) && self.all_flushed() && self.write_dsync(offset, buf)? {
            self.counters.write(1, buf.len() as u64);
            self.counters.flush();
            return Ok(());
        }
        self.write(offset, buf)?;
        self.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.check_writable()?;
        check_end(self.size(), offset, length)?;
        // Whole sectors only: a block device takes no other, and a file would write zeros into the others.
        let alignment = self.target.alignment() as u64;
        let start = offset.next_multiple_of(alignment);
        let end = (offset + length) & !(alignment - 1);
        if start < end && !self.refuses_discards.load(Ordering::Relaxed) {
            let position = self.target.start + start;
            let result = if self.is_block_device {
                crate::discard::discard_device(&self.target.file, position, end - start)
            } else {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.target.file, punch, position, end - start))
            };
            self.note_change();
            match result {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.refuses_discards.store(true, Ordering::Relaxed),
                Err(error) => return Err(error.into()),
            }
        }
        self.counters.discard();
        Ok(())
    }

    /// A sparse image takes them always. Of one that had no holes when it was opened, somebody has allocated all on purpose: so
    /// that its volume cannot run out of the host's space.
    fn discards(&self) -> Discards {
        match self.refuses_discards.load(Ordering::Relaxed) {
            true => Discards::Never,
            false if self.is_sparse => Discards::Always,
            false => Discards::OnRequest,
        }
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}

/// A place for a new image, by [`FileDevice::claim`]: locked, and of the size it will have, with all that was there still in
/// it. Dropped, it leaves a file as it was.
pub struct Claim {
    /// `None` for a block device. The first to go: a file is as it was before the device gives up its lock.
    image: Option<Image>,
    device: FileDevice,
}

struct Image {
    file: File,
    /// To remove it by, if there was none.
    made: Option<PathBuf>,
    start: u64,
    end: u64,
    length_before: u64,
    emptied: bool,
}

impl Claim {
    /// The device to be, for a look at what it demands.
    pub fn device(&self) -> &FileDevice {
        &self.device
    }

    /// Whether it is in a file that was not there before.
    pub fn is_new(&self) -> bool {
        self.image.as_ref().is_some_and(|image| image.made.is_some())
    }

    /// Does away with what a file holds. The contents of a block device, and of a device that was opened, are left alone.
    pub fn empty(mut self) -> Result<FileDevice, OpenError> {
        if let Some(image) = &mut self.image {
            // A new one has nothing to lose, and goes if this fails.
            image.emptied = image.made.is_none();
            let result = image.file.set_len(image.start).and_then(|()| image.file.set_len(image.end));
            let path = &self.device.path;
            result
                .and_then(|()| image.file.sync_all())
                .map_err(|error| OpenError::io(path, "set the size of", error))?;
            sync_parent(path);
            image.emptied = true;
        }
        Ok(self.device)
    }
}

/// Of a device that is open and locked, taken as it is.
impl From<FileDevice> for Claim {
    fn from(device: FileDevice) -> Self {
        Self { image: None, device }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // If it stays, or stays longer, nothing is lost.
        let _ = match &self.made {
            _ if self.emptied => Ok(()),
            Some(path) => std::fs::remove_file(path),
            // A program that takes no lock may have written something there since.
            None if self.length_before < self.end && !has_data_behind(&self.file, self.length_before) => {
                self.file.set_len(self.length_before)
            }
            None => Ok(()),
        };
        // The device keeps the lock on its own bytes. What lies behind them is free for other volumes, at the latest once it is closed.
        let behind = LockRange { start: self.end, length: 0 };
        let _ = set_lock(&self.file, Path::new(""), behind, LockKind::Unlocked);
    }
}

/// Whether a file holds data behind the host's block in which a byte lies, as far as the host tells.
fn has_data_behind(file: &File, offset: u64) -> bool {
    const BLOCK_MAX: u64 = 64 << 10;
    let behind = rustix::fs::SeekFrom::Data(offset.next_multiple_of(BLOCK_MAX));
    !matches!(rustix::fs::seek(file, behind), Err(Errno::NXIO))
}

fn refuse_after(flush_failed: bool) -> io::Result<()> {
    if flush_failed {
        return Err(io::Error::other("an earlier flush failed, and what it should have kept may be lost"));
    }
    Ok(())
}

/// Makes the directory entry durable. Best effort: a directory that may not be read cannot be synced.
fn sync_parent(path: &Path) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(directory) = File::open(parent) {
        let _ = directory.sync_all();
    }
}

/// File systems whose RWF_DSYNC write ends in their own fsync, or in a FUA write that replaces it. Others, network and
/// FUSE file systems among them, take a write and a flush.
fn keeps_dsync(file: &File) -> bool {
    const EXT: u64 = 0xEF53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683E;
    rustix::fs::fstatfs(file).is_ok_and(|info| matches!(info.f_type as u64, EXT | XFS | BTRFS))
}

fn start_rings(path: &Path, backend: IoBackend) -> Result<Option<Rings>, OpenError> {
    let backend = match (backend, std::env::var(BACKEND_VARIABLE).as_deref()) {
        (IoBackend::Auto, Ok("threads")) => IoBackend::Threads,
        (IoBackend::Auto, Ok("uring")) => IoBackend::Uring,
        (backend, _) => backend,
    };
    match backend {
        IoBackend::Threads => Ok(None),
        IoBackend::Auto => Ok(Rings::new().ok()),
        IoBackend::Uring => Rings::new().map(Some).map_err(|error| OpenError::io(path, "use io_uring for", error)),
    }
}

/// How requests have to be shaped; all in bytes.
#[derive(Clone, Copy)]
struct Rules {
    alignment: usize,
    memory_alignment: usize,
    direct: bool,
}

/// Finds out what the host demands of direct I/O, and turns it on if it can be had.
fn settle_rules(path: &Path, file: &File, is_block_device: bool, options: &FileOptions) -> Result<Rules, OpenError> {
    let sector_size = if is_block_device {
        let size = rustix::fs::ioctl_blksszget(file);
        size.map_err(|error| OpenError::io(path, "find the sector size of", error))? as usize
    } else {
        1
    };
    let buffered = Rules { alignment: sector_size, memory_alignment: 1, direct: false };
    if options.offset % sector_size as u64 != 0 {
        let reason = format!("offset {} is not a multiple of the sector size, {sector_size}", options.offset);
        return Err(OpenError::unsuitable(path, reason));
    }
    if options.direct == DirectIo::Never {
        return Ok(buffered);
    }
    match try_direct(file, sector_size, options.offset) {
        Ok(Some(rules)) => Ok(rules),
        Ok(None) if options.direct == DirectIo::Require => {
            Err(OpenError::unsuitable(path, "the host does not allow direct I/O here"))
        }
        Ok(None) => Ok(buffered),
        Err(error) => Err(OpenError::io(path, "read", error)),
    }
}

/// Puts the file into direct mode with the finest alignment that a read proves to work; `None`, and ordinary mode, if
/// there is none. Where statx tells nothing (before Linux 6.1) a read of a hole can prove too much; then the first I/O
/// that is refused ends direct mode.
fn try_direct(file: &File, sector_size: usize, offset: u64) -> io::Result<Option<Rules>> {
    let Some((told_alignment, told_memory_alignment)) = told_direct_rules(file) else { return Ok(None) };
    let ordinary = rustix::fs::fcntl_getfl(file)?;
    match rustix::fs::fcntl_setfl(file, ordinary | OFlags::DIRECT) {
        Ok(()) => {}
        Err(Errno::INVAL) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let finest = told_alignment.max(sector_size).max(ALIGNMENT_MIN);
    let usable =
        |alignment: &usize| *alignment >= finest && alignment.is_power_of_two() && offset % *alignment as u64 == 0;
    for alignment in [finest, ALIGNMENT_SAFE].into_iter().filter(usable) {
        let mut probe = AlignedBuf::zeroed(alignment);
        match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut probe[..], offset)) {
            // An unreadable first sector is for whoever reads it to report.
            Ok(_) | Err(Errno::IO) => {
                let memory_alignment = if told_memory_alignment == 0 { alignment } else { told_memory_alignment };
                return Ok(Some(Rules { alignment, memory_alignment, direct: true }));
            }
            Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    rustix::fs::fcntl_setfl(file, ordinary)?;
    Ok(None)
}

/// What statx tells of direct I/O: alignment of offsets and of memory, zeros where it tells nothing, `None` where it
/// says that there is no direct I/O.
fn told_direct_rules(file: &File) -> Option<(usize, usize)> {
    // STATX_DIOALIGN, Linux 6.1.
    let wanted = StatxFlags::from_bits_retain(0x2000);
    let Ok(told) = rustix::fs::statx(file, c"", rustix::fs::AtFlags::EMPTY_PATH, wanted) else {
        return Some((0, 0));
    };
    if told.stx_mask & wanted.bits() == 0 {
        return Some((0, 0));
    }
    let (offset, memory) = (told.stx_dio_offset_align as usize, told.stx_dio_mem_align as usize);
    (offset != 0 && memory.is_power_of_two() && memory <= crate::BUFFER_ALIGNMENT).then_some((offset, memory))
}

#[cfg(test)]
mod tests;
