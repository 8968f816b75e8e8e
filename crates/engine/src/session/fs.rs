//! A volume as a whole: making, opening, syncing and closing it.

use super::NEXT_SESSION;
use super::Session;
use super::file::File;
use super::life::{Mounted, run_background, run_search, spawn};
use crate::cache::Sweep;
use crate::counters::Count;
use crate::error::{DamagedData, Errno, Error, Result, Truncated};
use crate::file;
use crate::mkfs;
use crate::ops::{give_back, reclaim_put_off, settle_second_names};
use crate::order::moment::HeldMoment;
use crate::planted::{Bug, planted};
use crate::types::*;
use crate::volume::Volume;
use myriad_device::{Access, BlockDevice, Claim, FileDevice, FileOptions, MemoryDevice, OpenError};
use myriad_format::leftovers::Leftovers;
use myriad_format::superblock::{Superblock, feature, state};
use myriad_format::{FsBlock, Ino};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Cache of a volume in memory, in bytes: what is not in it is a copy away.
const IN_MEMORY_CACHE: u64 = 16 << 20;

/// An open volume. Cheap to clone; closed cleanly by [`Fs::close`], for all clones, or when the last clone, session and
/// file are gone.
#[derive(Clone)]
pub struct Fs {
    pub(super) inner: Arc<Mounted>,
}

fn open_error(error: OpenError) -> Error {
    match error {
        OpenError::InUse(in_use) => Error::in_use(in_use.to_string()),
        other => Error::Open(Box::new(other)),
    }
}

fn open_log_device(path: Option<&Path>, access: Access) -> Result<Option<Arc<dyn BlockDevice>>> {
    let Some(path) = path else { return Ok(None) };
    let device = FileDevice::open(path, access).map_err(open_error)?;
    lock(&device, access)?;
    Ok(Some(Arc::new(device)))
}

fn lock(device: &FileDevice, access: Access) -> Result<()> {
    match access {
        Access::ReadOnly => device.lock_shared(),
        Access::ReadWrite => device.lock_exclusive(),
    }
    .map_err(open_error)
}

/// The superblock. A damaged one is an error that names `fsck`, which restores it from a copy.
fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let sector = device.alignment().max(4096).min(device.size() as usize).max(512);
    let mut bytes = myriad_device::AlignedBuf::zeroed(sector);
    if device.size() < sector as u64 {
        return Err(Error::Foreign);
    }
    device.read(0, &mut bytes).map_err(|source| Error::io("read", 0, source))?;
    if planted(Bug::TornSuperblock) {
        myriad_format::header::seal(&mut bytes, 0);
    }
    Ok(Superblock::decode(&bytes, FsBlock(0))?)
}

/// A volume that is about to be made, by [`Fs::prepare`]. Dropped, it leaves the place as it was.
pub struct Formatting<'o> {
    claim: Claim,
    log: Option<Arc<dyn BlockDevice>>,
    superblock: Superblock,
    options: &'o MkfsOptions,
}

impl Formatting<'_> {
    /// Whether it is in a file that was not there before.
    pub fn is_new(&self) -> bool {
        self.claim.is_new()
    }

    /// Makes the volume: what was there is lost. A new file goes again if that fails.
    pub fn make(self) -> Result<()> {
        let is_new = self.is_new();
        let device = Arc::new(self.claim.empty().map_err(open_error)?);
        let preallocated = if self.options.preallocate { device.preallocate().map_err(open_error) } else { Ok(()) };
        let made = preallocated.and_then(|()| mkfs::make(device.clone(), self.log, self.superblock, self.options));
        if made.is_err() && is_new {
            // While it is locked, so it is nobody else's. If it stays, the first error says it all.
            let _ = std::fs::remove_file(device.path());
        }
        made
    }
}

impl Fs {
    /// Makes a volume in an image file or on a block device. A file that is missing is made. It gets `size` bytes, and is sparse unless the
    /// options have it preallocated; with `None` it keeps the size that it has. The file's former content is lost, unless the options are refused.
    ///
    /// [`Error::Option`] names the option that cannot be, and why; [`Error::InUse`] if another process has the file open.
    pub fn format(path: &Path, size: Option<u64>, options: &MkfsOptions) -> Result<()> {
        Self::prepare(path, size, options)?.make()
    }

    /// The first half of [`Fs::format`]: locks the place and refuses what cannot be, while all that is there is still as it was. Who must
    /// not overwrite something looks now, for nobody else can make a volume there any more.
    pub fn prepare<'o>(path: &Path, size: Option<u64>, options: &'o MkfsOptions) -> Result<Formatting<'o>> {
        let log = open_log_device(options.log_device.as_deref(), Access::ReadWrite)?;
        let claim = match size {
            Some(size) => FileDevice::claim(path, size, &FileOptions::default()).map_err(open_error)?,
            None => {
                let device = FileDevice::open(path, Access::ReadWrite).map_err(open_error)?;
                lock(&device, Access::ReadWrite)?;
                device.into()
            }
        };
        let superblock = mkfs::plan(claim.device(), log.as_deref(), options)?;
        if options.preallocate {
            // What the host has no room for is refused while the old content is there.
            claim.device().preallocate().map_err(open_error)?;
        }
        Ok(Formatting { claim, log, superblock, options })
    }

    /// A new volume of `size` bytes in memory, open: for tests, and for what need not outlive the program. It takes memory as it
    /// fills, and gives it back as files go; the rest goes with its last clone, session and file. Error if it is too small for a volume.
    ///
    /// ```
    /// # fn main() -> myriad_engine::Result<()> {
    /// use myriad_engine::{Cred, Fs};
    ///
    /// let session = Fs::in_memory(64 << 20)?.session(Cred::root());
    /// session.mkdir("notes", 0o755)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_memory(size: u64) -> Result<Self> {
        let device = Arc::new(MemoryDevice::new(size));
        // Nothing of it is there after a crash, so there is nothing that a log could make whole.
        let options = MkfsOptions { log_size: Some(0), order: Order::None, ..MkfsOptions::default() };
        Self::format_device(device.clone(), None, &options)?;
        Self::open_device(device, None, MountOptions { cache_size: IN_MEMORY_CACHE, ..MountOptions::default() })
    }

    /// Makes a volume on a device already open.
    pub fn format_device(
        device: Arc<dyn BlockDevice>,
        log: Option<Arc<dyn BlockDevice>>,
        options: &MkfsOptions,
    ) -> Result<()> {
        mkfs::format(device, log, options)
    }

    /// Opens a volume; recovers it first if it was not closed cleanly. A second writer is refused with
    /// [`Error::InUse`], which names the first.
    pub fn open(path: &Path, options: MountOptions) -> Result<Self> {
        let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let device = FileDevice::open(path, access).map_err(open_error)?;
        lock(&device, access)?;
        let log = open_log_device(options.log_device.as_deref(), access)?;
        Self::open_device(Arc::new(device), log, options)
    }

    /// Opens a volume on devices already open (tests, volume managers). The caller sees to it that nobody else writes.
    pub fn open_device(
        device: Arc<dyn BlockDevice>,
        log: Option<Arc<dyn BlockDevice>>,
        options: MountOptions,
    ) -> Result<Self> {
        let superblock = read_superblock(&*device)?;
        let block = 1 << superblock.block_bits;
        for (device, unit) in [(Some(&device), block), (log.as_ref(), myriad_format::log::unit(block))] {
            if let Some(device) = device
                && !mkfs::takes(&**device, unit as u64)?
            {
                return Err(Error::Sectors { block: unit as u32, sector: device.alignment() as u32 });
            }
        }
        let mut options = options;
        let unknown = superblock.features_read_only.get() & !feature::READ_ONLY_KNOWN;
        if unknown != 0 || superblock.state.get() == state::SEALED {
            options.read_only = true;
        }
        let end = superblock.block_count.get() << superblock.block_bits;
        if end > device.size() {
            return Err(Truncated { found: device.size(), needed: end }.into());
        }
        let place = mkfs::log_place(&superblock, &device, log.as_ref())?;
        let volume = Volume::assemble(device, place.clone(), superblock, options)?;
        volume.recover(place.as_ref())?;
        // Before the threads: if one cannot be started, this ends the others.
        let inner = Arc::new(Mounted { volume: Arc::new(volume), background: Mutex::new(Vec::new()) });
        let volume = &inner.volume;
        if volume.options.background && !volume.options.read_only {
            inner.background.lock().push(spawn("myriad-log", volume, run_background)?);
            inner.background.lock().push(spawn("myriad-warm", volume, Volume::keep_warm)?);
            if volume.second_names.may_be() {
                inner.background.lock().push(spawn("myriad-names", volume, run_search)?);
            }
        }
        Ok(Self { inner })
    }

    #[inline]
    pub(crate) fn volume(&self) -> &Volume {
        &self.inner.volume
    }

    /// A view of the volume for one user.
    pub fn session(&self, cred: Cred) -> Session {
        Session { fs: self.clone(), cred, checked: false, number: NEXT_SESSION.fetch_add(1, Ordering::Relaxed) }
    }

    /// A view of the volume for one user whose permissions the caller has checked already, as the kernel does for a mount. New files belong
    /// to `cred`, and set-id bits go by it. Only inode flags, such as immutable, still refuse anything.
    pub fn session_checked(&self, cred: Cred) -> Session {
        Session { checked: true, ..self.session(cred) }
    }

    /// Has files live on without a name while `keeper` holds them. Set once, before the volume is used.
    pub fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        // A second keeper would not know what the first one holds.
        assert!(self.volume().files.keeper.set(keeper).is_ok(), "a volume has one keeper");
    }

    /// Calls `tell` at each read of data whose checksum is wrong; the reader gets its error as well. Set once. `tell`
    /// must not use the volume.
    pub fn on_damaged_data(&self, tell: impl Fn(DamagedData) + Send + Sync + 'static) {
        assert!(self.volume().on_damage.set(Box::new(tell)).is_ok(), "one is told of damage");
    }

    /// Calls `tell(true)` when the host has no room for a write of the volume ([`Error::HostFull`]), and `tell(false)` when it has room
    /// again. Set once. `tell` must not use the volume.
    pub fn on_host_full(&self, tell: impl Fn(bool) + Send + Sync + 'static) {
        assert!(self.volume().on_host_full.set(Box::new(tell)).is_ok(), "one is told of a full host");
    }

    /// Ends what [`Keeper::hold`] or [`File::hold`] began: without other handles, the file is gone.
    pub fn release(&self, node: Node) {
        let file = self.volume().files.find(Ino(node.ino)).filter(|file| file.generation == node.generation);
        if let Some(file) = file {
            let (session, options) = (self.session(Cred::root()), OpenOptions::default());
            drop(File { session, file, options, position: Mutex::new(0) });
        }
    }

    /// Whether reading may move an access time.
    pub fn moves_access_times(&self) -> bool {
        self.volume().live.moves_atime()
    }

    /// Until it is told otherwise, reading moves no access times, whatever [`MountOptions::atime`] says: for a volume that was opened for
    /// writing and is shown for reading only.
    pub fn hold_access_times(&self, hold: bool) {
        self.volume().live.hold_atime(hold);
    }

    /// Refuses all changes from now on, as after a device error; what was not synced is lost.
    pub fn shut_down(&self, reason: &str) {
        self.volume().shut_down(&reason);
    }

    /// Makes everything done so far durable: data, names, attributes.
    pub fn sync(&self) -> Result<()> {
        let volume = self.volume();
        if volume.options.read_only {
            return Ok(());
        }
        self.inner.check_process()?;
        volume.counters.bump(Count::syncs);
        // What could be flushed is durable, whatever became of the rest.
        let flushed = file::flush_all(volume);
        reclaim_put_off(volume);
        if let Some(soft) = &volume.soft {
            soft.unreadable.forget();
        }
        let committed = volume.commit_now();
        flushed.and(committed)
    }

    /// Makes durable the changes that are due by now, on a volume of order `softdep` that holds changes back by their kind
    /// ([`MountOptions::file_delay_ms`]). A volume opened with [`MountOptions::background`] does this by itself once a second. False if
    /// this volume holds nothing back.
    pub fn write_due(&self) -> Result<bool> {
        self.inner.check_process()?;
        if self.volume().options.read_only { Ok(false) } else { self.volume().write_due() }
    }

    /// Gives free space back to the host: of the volume's bytes in `range`, each free extent of at least `minimum` bytes. The holes of
    /// an image are made, a block device is told what it need not keep. Returns how many bytes that were, whether or not the host had
    /// space for all of them. Everything done so far is durable then, but for files' data that has no blocks yet.
    ///
    /// EINVAL if the range begins past the volume's end, EOPNOTSUPP if the host cannot do it, EROFS.
    ///
    /// ```
    /// # fn main() -> myriad_engine::Result<()> {
    /// let fs = myriad_engine::Fs::in_memory(64 << 20)?;
    /// assert!(fs.trim(0..u64::MAX, 0)? > 32 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn trim(&self, range: std::ops::Range<u64>, minimum: u64) -> Result<u64> {
        self.inner.check_process()?;
        self.volume().trim(range, minimum)
    }

    /// Holds the state of this moment for a reader (an online check) while changes go on. Before a block is written over, its old content goes to
    /// `file`, a regular file, up to the size that it has. When it is full, the moment is given up, and changes still go on.
    pub fn hold_moment(&self, file: std::fs::File) -> Result<HeldMoment> {
        self.inner.check_process()?;
        settle_second_names(self.volume())?;
        HeldMoment::begin(Arc::clone(&self.inner.volume), file)
    }

    /// Whether a crash under order `sync` or `softdep` may have left directories with a second name. As long as that is so, whoever removes or moves
    /// a directory waits until a thread has looked at all directories: on a large volume for minutes. Once it is no longer so, it stays that way.
    pub fn may_have_second_names(&self) -> bool {
        self.volume().second_names.may_be()
    }

    /// Whether a crash under order `softdep` may have left blocks, inodes or links behind that are in use for nothing, so that a check of a
    /// held moment is worth its time.
    pub fn has_leftovers(&self) -> bool {
        self.volume().has_leftovers()
    }

    /// Gives back the blocks, inodes and links that a check of a held moment found in use for nothing, while others use the volume. This ends
    /// the moment, because findings can be applied only once. It is durable when this returns; if nothing is left over then, the superblock
    /// says so as well.
    pub fn give_back(&self, held: HeldMoment, found: &Leftovers) -> Result<GivenBack> {
        self.inner.check_process()?;
        let left_behind = held.left_behind;
        let given = give_back(held, found)?;
        match given.left {
            0 => self.volume().nothing_is_left(left_behind)?,
            _ => self.sync()?,
        }
        Ok(given)
    }

    /// Notes that a check found damage on the volume in use. It can be read and changed until it is closed; the next opening for changes is
    /// refused with [`Error::Unchecked`] until a check has looked at all of it.
    pub fn ask_for_check(&self) -> Result<()> {
        self.inner.check_process()?;
        self.volume().ask_for_check()
    }

    /// Makes all changes durable and closes the volume, for all clones and sessions. The device is then marked as not in use. Clones and
    /// sessions may still read. Operations that change anything, and [`Fs::sync`], are refused with [`Error::Closed`] from then on.
    ///
    /// EBUSY if files are open, or if other threads do not stop writing; the volume then stays open for all, and what was done before is
    /// durable all the same. If another error has shut the volume down, the next opening recovers all that was synced. To close a closed
    /// volume does nothing.
    pub fn close(self) -> Result<()> {
        if self.volume().files.open_handles() > 0 && !self.volume().is_closed() {
            // The process may end as if this were the end.
            self.sync()?;
            return Err(Errno::BUSY.into());
        }
        self.inner.close()
    }

    /// Writes everything home, drops clean cached blocks and forgets names that were looked up, so that the next accesses read the device
    /// (for measurements).
    pub fn drop_caches(&self) -> Result<()> {
        let volume = self.volume();
        if !volume.options.read_only {
            file::flush_all(volume)?;
            volume.checkpointer.lock().settle(volume)?;
        }
        volume.cache.sweep(Sweep::Everything);
        volume.dir_hashes.drop_all();
        volume.names.clear();
        Ok(())
    }
}
