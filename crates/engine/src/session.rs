//! The library's API: volumes, sessions, files.

use crate::cache::ProcessMark;
use crate::dir::Name;
use crate::error::{DamagedData, Errno, Error, Result};
use crate::file::{self, OpenFile};
use crate::inode;
use crate::mkfs;
use crate::namei::{self, Guarded, Target};
use crate::ops::{Content, NewFile, Ops, RESOLVE_AGAIN, reclaim_orphans};
use crate::order::Look;
use crate::order::moment::HeldMoment;
use crate::perm;
use crate::planted::{Bug, planted};
use crate::types::*;
use crate::volume::Volume;
use myriad_device::{Access, BlockDevice, FileDevice, FileOptions, OpenError};
use myriad_format::inode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, flag};
use myriad_format::superblock::{Superblock, feature, seam};
use myriad_format::{BlockKind, Corrupt, FsBlock, Ino};
use myriad_log::LogPlace;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// An open volume. Cheap to clone; closed cleanly by [`Fs::close`], or when the last clone, session and file are gone.
#[derive(Clone)]
pub struct Fs {
    inner: Arc<Mounted>,
}

struct Mounted {
    volume: Arc<Volume>,
    background: Mutex<Vec<JoinHandle<()>>>,
    /// Process that opened the volume: a forked child must not touch it.
    opener: ProcessMark,
    pid: u32,
    closed: std::sync::atomic::AtomicBool,
}

fn open_error(error: OpenError) -> Error {
    match error {
        OpenError::InUse(in_use) => Error::InUse(in_use.to_string()),
        other => Error::Io { op: "open", offset: 0, source: other.into() },
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

impl Fs {
    /// Makes a volume in an image file or on a block device. The file is made if missing and set to `size` bytes
    /// (sparse); `None` takes its existing size. What it held is lost.
    pub fn format(path: &Path, size: Option<u64>, options: &MkfsOptions) -> Result<()> {
        let device = match size {
            Some(size) => FileDevice::create(path, size, &FileOptions::default()).map_err(open_error)?,
            None => {
                let device = FileDevice::open(path, Access::ReadWrite).map_err(open_error)?;
                lock(&device, Access::ReadWrite)?;
                device
            }
        };
        let log = open_log_device(options.log_device.as_deref(), Access::ReadWrite)?;
        mkfs::format(Arc::new(device), log, options)
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
        let mut options = options;
        let unknown = superblock.features_read_only.get() & !feature::READ_ONLY_KNOWN;
        if unknown != 0 || superblock.state.get() == seam::STATE_SEALED {
            options.read_only = true;
        }
        let end = superblock.block_count.get() << superblock.block_bits;
        if end > device.size() {
            return Err(Error::Truncated { found: device.size(), needed: end });
        }
        let place = mkfs::log_place(&superblock, &device, log.as_ref())?;
        let volume = Volume::assemble(device, place.clone(), superblock, options)?;
        volume.recover(place.as_ref())?;
        let volume = Arc::new(volume);
        let background = if volume.options.background && !volume.options.read_only {
            vec![spawn("myriad-log", &volume, run_background)?, spawn("myriad-warm", &volume, Volume::keep_warm)?]
        } else {
            Vec::new()
        };
        Ok(Self {
            inner: Arc::new(Mounted {
                volume,
                background: Mutex::new(background),
                opener: ProcessMark::new().map_err(|source| Error::Io {
                    op: "memory for a mark",
                    offset: 0,
                    source,
                })?,
                pid: std::process::id(),
                closed: std::sync::atomic::AtomicBool::new(false),
            }),
        })
    }

    fn volume(&self) -> &Volume {
        &self.inner.volume
    }

    /// A view of the volume for one user.
    pub fn session(&self, cred: Cred) -> Session {
        Session { fs: self.clone(), cred, checked: false, number: NEXT_SESSION.fetch_add(1, Ordering::Relaxed) }
    }

    /// A view of the volume for one user whose permissions somebody else checks: the kernel, for a mount. What is made is
    /// `cred`'s and set-id bits go by it; nothing is refused but by inode flags.
    pub fn session_checked(&self, cred: Cred) -> Session {
        Session { checked: true, ..self.session(cred) }
    }

    /// Has files live on without a name while `keeper` holds them. Set once, before the volume is used.
    pub fn set_keeper(&self, keeper: Arc<dyn Keeper>) {
        // A second keeper would not know what the first one holds.
        assert!(self.volume().files.keeper.set(keeper).is_ok(), "a volume has one keeper");
    }

    /// Has `tell` told of each read of data whose checksum is wrong, besides the error that its reader gets. Set once; it
    /// must not use the volume.
    pub fn on_damaged_data(&self, tell: impl Fn(DamagedData) + Send + Sync + 'static) {
        assert!(self.volume().on_damage.set(Box::new(tell)).is_ok(), "one is told of damage");
    }

    /// Ends what [`Keeper::hold`] or [`File::hold`] began: without other handles, the file is gone.
    pub fn release(&self, node: Node) {
        let file = self.volume().files.find(Ino(node.ino)).filter(|file| file.generation == node.generation);
        if let Some(file) = file {
            drop(File { session: self.session(Cred::root()), file, options: OpenOptions::default() });
        }
    }

    /// Whether `stat.blocks` is an estimate: the file has data that has no blocks yet, some of it perhaps over blocks
    /// that are there. For a file whose data is all new, the number is right but for the blocks of a long map.
    pub fn are_blocks_estimated(&self, stat: &Stat) -> bool {
        let block_bits = self.volume().geometry.block_bits;
        self.volume().files.unflushed_sectors(stat.node(), block_bits).is_some_and(|sectors| sectors != stat.blocks)
    }

    /// Refuses all changes from now on, as after a device error; what was not synced is lost.
    pub fn shut_down(&self, reason: &str) {
        let source = std::io::Error::other(reason.to_owned());
        self.volume().shut_down(&Error::Io { op: "use", offset: 0, source });
    }

    /// Whether some file has had an access control list.
    pub fn has_acls(&self) -> bool {
        let volume = self.volume();
        let bits = volume.superblock.features_compatible.get() | volume.features.load(Ordering::Relaxed);
        bits & feature::COMPATIBLE_ACL != 0
    }

    /// Makes everything done so far durable: data, names, attributes.
    pub fn sync(&self) -> Result<()> {
        let volume = self.volume();
        if volume.options.read_only {
            return Ok(());
        }
        self.inner.check_process()?;
        volume.counters.bump(crate::counters::Count::syncs);
        file::flush_all(volume)?;
        volume.commit_now()
    }

    /// Holds the state of this moment for a reader (an online check) while changes go on. What changed blocks held goes to
    /// `file`, a regular one, up to the size it has: when that is full the moment is given up, and changes still go on.
    pub fn hold_moment(&self, file: std::fs::File) -> Result<HeldMoment> {
        self.inner.check_process()?;
        HeldMoment::begin(Arc::clone(&self.inner.volume), file)
    }

    /// Syncs and closes. EBUSY, and the volume stays open, if files are open.
    pub fn close(self) -> Result<()> {
        if self.volume().files.open_handles() > 0 {
            return Err(Errno::BUSY.into());
        }
        self.inner.close()
    }

    /// Totals of the volume.
    pub fn statfs(&self) -> Result<StatFs> {
        Ok(self.volume().statfs())
    }

    /// Writes everything home and drops clean cached blocks, so that the next accesses read the device (for
    /// measurements).
    pub fn drop_caches(&self) -> Result<()> {
        let volume = self.volume();
        if !volume.options.read_only {
            file::flush_all(volume)?;
            volume.checkpointer.lock().settle(volume)?;
        }
        volume.cache.sweep(true);
        Ok(())
    }

    /// Every counter with its name, in a fixed order; the device's own (`device_...`) last.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.volume().counters.snapshot();
        let device = self.volume().device.counters();
        all.extend([
            ("device_reads", device.reads),
            ("device_read_bytes", device.read_bytes),
            ("device_writes", device.writes),
            ("device_written_bytes", device.written_bytes),
            ("device_flushes", device.flushes),
            ("device_discards", device.discards),
        ]);
        all
    }

    /// What `info` shows.
    pub fn info(&self) -> VolumeInfo {
        let volume = self.volume();
        let sb = &volume.superblock;
        let block = u64::from(volume.statfs().block_size);
        let label_len = sb.label.iter().position(|&byte| byte == 0).unwrap_or(sb.label.len());
        VolumeInfo {
            uuid: sb.header.volume,
            label: String::from_utf8_lossy(&sb.label[..label_len]).into_owned(),
            block_size: block as u32,
            block_count: sb.block_count.get(),
            ag_size: u64::from(sb.ag_blocks.get()) * block,
            ag_count: sb.ag_count.get(),
            region_size: u64::from(sb.region_blocks.get()) * block,
            log_size: sb.log_blocks.get() * block,
            log_external: volume.log_is_external,
            order: volume.order,
            read_only: volume.options.read_only,
            recovered: volume.recovered,
            made: sb.made_time.get(),
            cache_size: volume.options.cache_size,
        }
    }

    /// How full memory and log are at this moment.
    pub fn levels(&self) -> Levels {
        let volume = self.volume();
        let block = volume.cache.block_size() as u64;
        let frames = volume.cache.frame_count() as u64;
        Levels {
            cache_size: frames * block,
            cache_used: frames.saturating_sub(volume.cache.free_frames() as u64) * block,
            dirty_data: volume.files.dirty_pages.load(Ordering::Relaxed) * block,
            dirty_log: volume.epoch.log_bytes.load(Ordering::Relaxed),
            // A checkpoint in progress has it: not worth waiting for.
            log_used: volume.checkpointer.try_lock().and_then(|checkpointer| checkpointer.log_used()),
        }
    }

    /// Why the volume refuses changes, if an earlier device error shut it down.
    pub fn shut_down_reason(&self) -> Option<String> {
        self.volume().shut_down_reason()
    }
}

impl Mounted {
    fn check_process(&self) -> Result<()> {
        if self.opener.is_ours() {
            return Ok(());
        }
        Err(Error::InUse(format!(
            "the volume was opened by process {}; a forked child must open it itself once its parent has closed it",
            self.pid
        )))
    }

    fn close(&self) -> Result<()> {
        self.check_process()?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        {
            let mut wake = self.volume.wake.0.lock();
            wake.stop = true;
            self.volume.wake.1.notify_one();
        }
        self.volume.cache.warm.stop();
        for thread in std::mem::take(&mut *self.background.lock()) {
            // The log's returns after its checkpoint; a panic there has shut the volume down.
            let _ = thread.join();
        }
        self.volume.unmount()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nobody is left to tell; what was synced is safe, and the next opening recovers the rest.
        let _ = self.close();
    }
}

fn spawn(name: &str, volume: &Arc<Volume>, run: fn(&Volume)) -> Result<JoinHandle<()>> {
    let volume = volume.clone();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&volume));
    thread.map_err(|source| Error::Io { op: "start a background thread", offset: 0, source })
}

/// Makes checkpoints when operations ask for them, and at least every commit interval.
fn run_background(volume: &Volume) {
    let interval = volume.options.commit_interval_ms;
    loop {
        let flush = {
            let mut wake = volume.wake.0.lock();
            let mut timed_out = false;
            while !wake.wanted && !wake.stop && !timed_out {
                timed_out = if interval == 0 {
                    volume.wake.1.wait(&mut wake);
                    false
                } else {
                    volume.wake.1.wait_for(&mut wake, Duration::from_millis(interval)).timed_out()
                };
            }
            if wake.stop {
                return;
            }
            wake.wanted = false;
            timed_out || std::mem::take(&mut wake.flush)
        };
        if volume.check_running().is_err() {
            continue;
        }
        // An error has shut the volume down; its next user is told.
        if flush && file::flush_all(volume).is_err() {
            continue;
        }
        if !flush || !volume.epoch.is_empty() {
            let _ = volume.commit_now();
        }
    }
}

impl Volume {
    /// Brings an assembled volume to life: totals, orphans, and, for a writer, the mark that it is in use.
    fn recover(&self, log: Option<&LogPlace>) -> Result<()> {
        let look = self.look();
        // What the log laid over it has passed no checksum of its own.
        let superblock =
            look.read(FsBlock(0), BlockKind::Superblock, |bytes| Superblock::decode(bytes, FsBlock(0)))??;
        drop(look);
        if superblock.geometry() != self.geometry || superblock.root_ino != self.superblock.root_ino {
            return Err(
                Corrupt::Superblock { field: "block_count in the log", value: superblock.block_count.get() }.into()
            );
        }
        self.load_totals(&superblock);
        self.load_orphans(&superblock)?;
        if !self.options.read_only {
            self.write_superblock(seam::STATE_IN_USE)?;
            if let (Order::None, Some(log)) = (self.order, log) {
                self.checkpointer.lock().retire_log(self, log)?;
            }
            reclaim_orphans(self)?;
        }
        Ok(())
    }

    /// Brings everything home and marks the volume clean.
    fn unmount(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        // Whoever opens it next knows nothing of a reader.
        self.checkpointer.lock().give_up_moment("the volume was closed");
        self.check_running()?;
        file::flush_all(self)?;
        let orphans: Vec<u64> = self.orphans.lock().iter().copied().collect();
        for ino in orphans {
            crate::ops::reclaim(self, Ino(ino))?;
        }
        // Not settled, it stays marked as in use, and the next opening recovers what the log holds.
        if self.checkpointer.lock().settle(self)? { self.write_superblock(seam::STATE_CLEAN) } else { Ok(()) }
    }
}

/// The superblock. A damaged one is an error that names `fsck`, which restores it from a copy.
fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let sector = device.alignment().max(4096).min(device.size() as usize).max(512);
    let mut bytes = myriad_device::AlignedBuf::zeroed(sector);
    if device.size() < sector as u64 {
        return Err(Error::Foreign);
    }
    device.read(0, &mut bytes).map_err(|source| Error::Io { op: "read", offset: 0, source })?;
    if planted(Bug::TornSuperblock) {
        myriad_format::header::seal(&mut bytes, 0);
    }
    Ok(Superblock::decode(&bytes, FsBlock(0))?)
}

/// How full memory and log are at a moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Room for cached blocks, and how much of it holds some.
    pub cache_size: u64,
    pub cache_used: u64,
    /// File data that is in memory only.
    pub dirty_data: u64,
    /// What the changes of metadata since the last checkpoint will take in the log.
    pub dirty_log: u64,
    /// Of the log, what a recovery would read; `None` without a log, and while a checkpoint is being written.
    pub log_used: Option<u64>,
}

/// Facts about an open volume.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    pub uuid: [u8; 16],
    pub label: String,
    /// Bytes.
    pub block_size: u32,
    pub block_count: u64,
    /// Bytes of an allocation group, and how many there are.
    pub ag_size: u64,
    pub ag_count: u32,
    /// Bytes of a placement region.
    pub region_size: u64,
    /// Bytes; 0 without a log.
    pub log_size: u64,
    /// The log lies on a device of its own.
    pub log_external: bool,
    pub order: Order,
    pub read_only: bool,
    /// Opening found a log to replay.
    pub recovered: bool,
    pub made: Time,
    /// Bytes of memory for cached blocks.
    pub cache_size: u64,
}

/// One user's view of a volume: every operation, by path or by node.
///
/// Paths are bytes, relative to the root, with or without a leading slash; `..`, `.` and symbolic links are resolved as
/// POSIX says (40 links at most, then ELOOP). A session may be used by several threads.
pub struct Session {
    fs: Fs,
    cred: Cred,
    /// Permissions were checked by the caller.
    checked: bool,
    /// Tells who may use what a thread remembers: those with the same volume and user.
    number: u64,
}

static NEXT_SESSION: AtomicU64 = AtomicU64::new(1);

/// The directory part of a path, and what it resolved to.
struct Memo {
    /// Number of the session that resolved it; 0: nothing yet.
    session: u64,
    /// Generation of the name space for which this holds.
    generation: u64,
    parent: Ino,
    path: Vec<u8>,
}

/// Sessions of which a thread remembers the last directory, by number.
const MEMOS: usize = 4;

thread_local! {
    static MEMO: RefCell<[Memo; MEMOS]> = const {
        RefCell::new([const { Memo { session: 0, generation: 0, parent: Ino(0), path: Vec::new() } }; MEMOS])
    };
}

/// Who keeps files alive that have neither name nor handle: a mount, for the inodes that its kernel knows.
pub trait Keeper: Send + Sync {
    /// Asked when a file loses its last name and nobody has it open. True: it counts as open until [`Fs::release`].
    /// Called with the inode locked; must not call the volume.
    fn hold(&self, node: Node) -> bool;
}

/// Anything that can be a path.
pub trait AsPath {
    fn as_path_bytes(&self) -> &[u8];
}

impl<T: AsRef<[u8]> + ?Sized> AsPath for T {
    fn as_path_bytes(&self) -> &[u8] {
        self.as_ref()
    }
}

/// Splits a path whose last component is a plain name; `None` for those that need the slow way.
#[inline]
fn split_plain(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let (dir, name) = path.split_at(at);
    let plain = !name.is_empty() && name.len() <= 255 && name != b"." && name != b".." && path.len() < 4096;
    plain.then_some((dir, name))
}

impl Session {
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    fn volume(&self) -> &Volume {
        self.fs.volume()
    }

    fn ops(&self) -> Ops<'_> {
        Ops { volume: self.volume(), cred: self.judged(), caller: &self.cred, resolved: None }
    }

    /// For whom permissions are checked: nobody is refused what was granted already.
    fn judged(&self) -> &Cred {
        static ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new(), umask: 0 };
        if self.checked { &ROOT } else { &self.cred }
    }

    /// Runs an operation on names given by path. Between finding their directories and locking them, those may have been
    /// removed and their numbers used again: then the paths are resolved anew.
    fn by_path<T>(&self, f: impl Fn(Ops<'_>) -> Result<T>) -> Result<T> {
        loop {
            let resolved = Some(self.volume().namespace_generation.load(Ordering::Acquire));
            match f(Ops { resolved, ..self.ops() }) {
                Err(Error::Refused(RESOLVE_AGAIN)) => {}
                result => return result,
            }
        }
    }

    /// The root directory.
    pub fn root(&self) -> Node {
        let look = self.volume().look();
        let generation = inode::read(&look, self.volume().root).map_or(0, |raw| raw.generation.get());
        Node { ino: self.volume().root.0, generation }
    }

    fn node_of(&self, look: &Look<'_>, ino: Ino) -> Result<Node> {
        Ok(inode::node(ino, &inode::read(look, ino)?))
    }

    // ---- resolution ----

    /// The directory of a path and its last component.
    #[inline]
    fn target<'p>(&self, look: &Look<'_>, path: &'p [u8]) -> Result<Place<'p>> {
        if let Some((dir, name)) = split_plain(path) {
            let parent = self.parent(look, path, dir)?;
            return Ok(Place { parent, name: name.into(), must_be_dir: false, ends_in_dot: false });
        }
        Ok(namei::resolve_parent(look, self.judged(), self.volume().root, path)?.into())
    }

    /// The directory `dir`, which `path` begins with; its user may search it.
    #[inline]
    fn parent(&self, look: &Look<'_>, path: &[u8], dir: &[u8]) -> Result<Ino> {
        let generation = self.volume().namespace_generation.load(Ordering::Acquire);
        let at = self.number as usize % MEMOS;
        let known = MEMO.with_borrow(|memos| {
            let memo = &memos[at];
            let hit = memo.session == self.number && memo.generation == generation && memo.path == dir;
            hit.then_some(memo.parent)
        });
        if let Some(parent) = known {
            self.volume().counters.bump(crate::counters::Count::parent_memo_hits);
            return Ok(parent);
        }
        let parent = namei::resolve_parent(look, self.judged(), self.volume().root, path)?.parent;
        MEMO.with_borrow_mut(|memos| {
            let memo = &mut memos[at];
            (memo.session, memo.generation, memo.parent) = (self.number, generation, parent);
            memo.path.clear();
            memo.path.extend_from_slice(dir);
        });
        Ok(parent)
    }

    fn resolve_ino(&self, look: &Look<'_>, path: &[u8], follow: bool) -> Result<Ino> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        namei::resolve(look, self.judged(), self.volume().root, path, follow)
    }

    fn resolve_node(&self, path: &[u8], follow: bool) -> Result<Node> {
        let look = self.volume().look();
        let ino = self.resolve_ino(&look, path, follow)?;
        self.node_of(&look, ino)
    }

    /// Where a new name would go. `taken` is what to say for paths that end in "." or "..", or name the root.
    fn new_name<'p>(&self, path: &'p [u8], taken: Errno, dir_ok: bool) -> Result<Place<'p>> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let look = self.volume().look();
        let place = self.target(&look, path)?;
        if place.name.is_empty() {
            return Err(taken.into());
        }
        if place.must_be_dir && !dir_ok {
            // "name/" cannot be made, only found: the kernel's answers.
            let stat = self.ops().lookup_inside(&look, place.parent, &place.name);
            return Err(match stat {
                Ok(_) => taken.into(),
                Err(error) => error,
            });
        }
        Ok(place)
    }

    /// The node that a path names; a final symbolic link is followed.
    pub fn resolve(&self, path: &(impl AsPath + ?Sized)) -> Result<Node> {
        self.resolve_node(path.as_path_bytes(), true)
    }

    // ---- by path ----

    /// Attributes; a final symbolic link is followed.
    #[inline]
    pub fn stat(&self, path: &(impl AsPath + ?Sized)) -> Result<Stat> {
        let stat = self.lstat(path)?;
        if stat.mode & S_IFMT != S_IFLNK {
            return Ok(stat);
        }
        let look = self.volume().look();
        let ino = self.resolve_ino(&look, path.as_path_bytes(), true)?;
        Ok(self.ops().stat_of(ino, &inode::read(&look, ino)?))
    }

    /// Attributes; a final symbolic link is not followed (unless the path ends in a slash).
    #[inline]
    pub fn lstat(&self, path: &(impl AsPath + ?Sized)) -> Result<Stat> {
        let path = path.as_path_bytes();
        self.volume().counters.bump(crate::counters::Count::stats);
        let look = self.volume().look();
        self.lstat_inside(&look, path)
    }

    #[inline]
    fn lstat_inside(&self, look: &Look<'_>, path: &[u8]) -> Result<Stat> {
        if let Some((dir, name)) = split_plain(path) {
            let parent = self.parent(look, path, dir)?;
            let name = Name { bytes: name, hash: self.volume().hasher.hash(name) };
            // The directory was found, or is remembered, as one that this user may search.
            if let Some(stat) = self.ops().lookup_known(look, parent, name) {
                return Ok(stat);
            }
            return self.ops().lookup_name(look, parent, name);
        }
        let ino = self.resolve_ino(look, path, false)?;
        Ok(self.ops().stat_of(ino, &inode::read(look, ino)?))
    }

    /// `lstat` of many paths: lookups overlap their waits for memory. Results are in the order of `paths`.
    pub fn stat_many<P: AsPath>(&self, paths: &[P]) -> Vec<Result<Stat>> {
        let mut results = Vec::with_capacity(paths.len());
        for batch in paths.chunks(STAT_BATCH) {
            let look = self.volume().look();
            let mut names = [None; STAT_BATCH];
            for (target, path) in names.iter_mut().zip(batch) {
                let path = path.as_path_bytes();
                *target = split_plain(path).and_then(|(dir, name)| {
                    let parent = self.parent(&look, path, dir).ok()?;
                    Some((parent, Name { bytes: name, hash: self.volume().hasher.hash(name) }))
                });
            }
            let found = self.ops().lookup_batch(&look, &names);
            self.volume().counters.add(crate::counters::Count::stats, batch.len() as u64);
            for (path, found) in batch.iter().zip(found) {
                results.push(match found {
                    Some(stat) => Ok(stat),
                    None => self.lstat_inside(&look, path.as_path_bytes()),
                });
            }
        }
        results
    }

    /// Makes an empty regular file; EEXIST if the name is taken. `mode` has permission bits only.
    pub fn create(&self, path: &(impl AsPath + ?Sized), mode: u16) -> Result<Node> {
        self.mknod(path, S_IFREG | mode & 0o7777, 0)
    }

    pub fn mkdir(&self, path: &(impl AsPath + ?Sized), mode: u16) -> Result<Node> {
        self.by_path(|ops| {
            let place = self.new_name(path.as_path_bytes(), Errno::EXIST, true)?;
            let new = NewFile { mode: S_IFDIR | mode & 0o7777, ..NewFile::default() };
            Ok(ops.make(place.parent, &place.name, &new)?.node())
        })
    }

    /// FIFO, socket, device node or regular file: `mode` has the type bits (0 is a regular file).
    pub fn mknod(&self, path: &(impl AsPath + ?Sized), mode: u16, rdev: u64) -> Result<Node> {
        self.by_path(|ops| {
            let place = self.new_name(path.as_path_bytes(), Errno::EXIST, false)?;
            Ok(ops.make(place.parent, &place.name, &node_kind(mode, rdev)?)?.node())
        })
    }

    pub fn symlink(&self, target: &[u8], path: &(impl AsPath + ?Sized)) -> Result<Node> {
        check_target(target)?;
        self.by_path(|ops| {
            let place = self.new_name(path.as_path_bytes(), Errno::EXIST, false)?;
            let new = NewFile { mode: S_IFLNK | 0o777, target, ..NewFile::default() };
            Ok(ops.make(place.parent, &place.name, &new)?.node())
        })
    }

    pub fn readlink(&self, path: &(impl AsPath + ?Sized)) -> Result<Vec<u8>> {
        self.ops().readlink(self.resolve_node(path.as_path_bytes(), false)?)
    }

    /// A second name for a file (not a directory). A final symbolic link in `source` is linked itself.
    pub fn link(&self, source: &(impl AsPath + ?Sized), target: &(impl AsPath + ?Sized)) -> Result<()> {
        self.by_path(|ops| {
            let node = self.resolve_node(source.as_path_bytes(), false)?;
            let place = self.new_name(target.as_path_bytes(), Errno::EXIST, false)?;
            ops.link(node, place.parent, &place.name, false).map(|_| ())
        })
    }

    pub fn unlink(&self, path: &(impl AsPath + ?Sized)) -> Result<()> {
        self.by_path(|ops| {
            let place = self.old_name(path.as_path_bytes(), Errno::ISDIR, Errno::ISDIR)?;
            if place.must_be_dir {
                let stat = self.ops().lookup(place.parent, &place.name)?;
                return Err(if stat.is_dir() { Errno::ISDIR } else { Errno::NOTDIR }.into());
            }
            ops.unlink(place.parent, &place.name)
        })
    }

    pub fn rmdir(&self, path: &(impl AsPath + ?Sized)) -> Result<()> {
        self.by_path(|ops| {
            let place = self.old_name(path.as_path_bytes(), Errno::INVAL, Errno::NOTEMPTY)?;
            ops.rmdir(place.parent, &place.name)
        })
    }

    /// An existing name; `dot` and `dotdot` are what to say for paths that end so. The root is busy.
    fn old_name<'p>(&self, path: &'p [u8], dot: Errno, dotdot: Errno) -> Result<Place<'p>> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let look = self.volume().look();
        let place = self.target(&look, path)?;
        if place.name.is_empty() {
            let ends_in_dotdot = path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty()) == Some(b"..");
            return Err(match (place.ends_in_dot, ends_in_dotdot) {
                (true, _) => dot,
                (_, true) => dotdot,
                _ => Errno::BUSY,
            }
            .into());
        }
        Ok(place)
    }

    pub fn rename(
        &self,
        source: &(impl AsPath + ?Sized),
        target: &(impl AsPath + ?Sized),
        mode: RenameMode,
    ) -> Result<()> {
        let (source, target) = (source.as_path_bytes(), target.as_path_bytes());
        if source.is_empty() || target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        self.by_path(|ops| {
            // Both directories are found before either name is judged.
            let (from, to) = {
                let look = self.volume().look();
                (self.target(&look, source)?, self.target(&look, target)?)
            };
            if from.name.is_empty() {
                return Err(Errno::BUSY.into());
            }
            if to.name.is_empty() {
                return Err(if mode == RenameMode::NoReplace { Errno::EXIST } else { Errno::BUSY }.into());
            }
            let slashes = (from.must_be_dir, to.must_be_dir);
            ops.rename((from.parent, &from.name), (to.parent, &to.name), mode, slashes)
        })
    }

    /// Changes attributes, all or none. Follows a final symbolic link; [`Session::set_attr_node`] does not.
    pub fn set_attr(&self, path: &(impl AsPath + ?Sized), attr: SetAttr) -> Result<Stat> {
        self.set_attr_node(self.resolve_node(path.as_path_bytes(), true)?, attr)
    }

    pub fn get_xattr(&self, path: &(impl AsPath + ?Sized), name: &[u8]) -> Result<Vec<u8>> {
        self.get_xattr_node(self.resolve_node(path.as_path_bytes(), true)?, name)
    }

    pub fn set_xattr(&self, path: &(impl AsPath + ?Sized), name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.set_xattr_node(self.resolve_node(path.as_path_bytes(), true)?, name, value, mode)
    }

    pub fn list_xattr(&self, path: &(impl AsPath + ?Sized)) -> Result<Vec<Vec<u8>>> {
        self.list_xattr_node(self.resolve_node(path.as_path_bytes(), true)?)
    }

    pub fn remove_xattr(&self, path: &(impl AsPath + ?Sized), name: &[u8]) -> Result<()> {
        self.remove_xattr_node(self.resolve_node(path.as_path_bytes(), true)?, name)
    }

    /// Permission check as access(2): `mask` of 4 read, 2 write, 1 execute or search; 0 for existence.
    pub fn access(&self, path: &(impl AsPath + ?Sized), mask: u8) -> Result<()> {
        self.access_node(self.resolve_node(path.as_path_bytes(), true)?, mask)
    }

    /// Opens a regular file, or a directory for reading its attributes.
    pub fn open(&self, path: &(impl AsPath + ?Sized), options: OpenOptions) -> Result<File> {
        let path = path.as_path_bytes();
        if !options.create {
            let node = self.resolve_node(path, !options.no_follow)?;
            return self.open_node(node, options);
        }
        if path.last() == Some(&b'/') {
            let look = self.volume().look();
            let place = self.target(&look, path)?;
            let exists = place.name.is_empty() && options.exclusive;
            return Err(if exists { Errno::EXIST } else { Errno::ISDIR }.into());
        }
        // A file may appear or vanish between looking and making: go round until one of the two has worked.
        for _ in 0..100 {
            match self.resolve_node(path, !options.no_follow && !options.exclusive) {
                Ok(_) if options.exclusive => return Err(Errno::EXIST.into()),
                Ok(node) => {
                    if self.stat_node(node)?.is_dir() {
                        return Err(Errno::ISDIR.into());
                    }
                    return self.open_node(node, options);
                }
                Err(Error::Refused(Errno::NOENT)) => {}
                Err(error) => return Err(error),
            }
            let made = self.by_path(|ops| {
                let place = self.creation_place(path, !options.no_follow && !options.exclusive)?;
                let new = NewFile { mode: S_IFREG | options.mode & 0o7777, ..NewFile::default() };
                ops.make(place.parent, &place.name, &new)
            });
            match made {
                // Who makes a file may open it whatever its mode says.
                Ok(stat) => return self.open_unchecked(stat.node(), options),
                Err(Error::Refused(Errno::EXIST)) if !options.exclusive => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Where O_CREAT makes the file: a dangling link's target, if links are followed.
    fn creation_place<'p>(&self, path: &'p [u8], follow: bool) -> Result<Place<'p>> {
        let look = self.volume().look();
        let mut place = self.target(&look, path)?;
        for _ in 0..40 {
            if place.name.is_empty() {
                return Err(Errno::ISDIR.into());
            }
            let Ok(ino) = self.ops().find_inside(&look, place.parent, &place.name) else { return Ok(place) };
            let raw = inode::read(&look, ino)?;
            if !follow || !inode::is_link(&raw) {
                return Ok(place);
            }
            let link = inode::link_target(&look, ino, &raw)?;
            let target = namei::resolve_parent(&look, self.judged(), place.parent, &link)?;
            if target.must_be_dir {
                return Err(Errno::ISDIR.into());
            }
            place = target.into();
        }
        Err(Errno::LOOP.into())
    }

    /// An unnamed file in the directory `path`; [`Session::link_file`] can name it.
    pub fn open_tmpfile(&self, path: &(impl AsPath + ?Sized), mode: u16) -> Result<File> {
        let node = self.resolve_node(path.as_path_bytes(), true)?;
        let made = self.ops().make_tmpfile(Ino(node.ino), mode)?;
        let file = self.open_unchecked(made, OpenOptions { read: true, write: true, ..OpenOptions::default() })?;
        file.file.linkable.store(true, Ordering::Release);
        Ok(file)
    }

    /// An unnamed file in `directory`.
    pub fn open_tmpfile_at(&self, directory: Node, mode: u16) -> Result<File> {
        self.check_node(directory)?;
        let made = self.ops().make_tmpfile(Ino(directory.ino), mode)?;
        self.open_unchecked(made, OpenOptions { read: true, write: true, ..OpenOptions::default() })
    }

    /// Names an unnamed file, or gives a named one a further name.
    pub fn link_file(&self, file: &File, path: &(impl AsPath + ?Sized)) -> Result<()> {
        self.by_path(|ops| {
            let place = self.new_name(path.as_path_bytes(), Errno::EXIST, false)?;
            let linkable = file.file.linkable.load(Ordering::Acquire);
            ops.link(file.node(), place.parent, &place.name, linkable)?;
            // Once named, it is like any other file: gone when its last name and its last handle are.
            file.file.linkable.store(false, Ordering::Release);
            Ok(())
        })
    }

    /// Entries of a directory, without "." and "..".
    pub fn read_dir(&self, path: &(impl AsPath + ?Sized)) -> Result<ReadDir> {
        let node = self.resolve_node(path.as_path_bytes(), true)?;
        self.read_dir_node(node)
    }

    /// Every file at and below `path`, a directory before its content, with attributes.
    pub fn walk(&self, path: &(impl AsPath + ?Sized)) -> Result<Walk> {
        let stat = self.lstat(path)?;
        Ok(Walk { session: self.again(), pending: VecDeque::from([Step::File(WalkEntry { path: Vec::new(), stat })]) })
    }

    /// Removes `path` and all below it. `progress` is called with the number removed so far and may cancel by returning
    /// false ([`Error::Cancelled`]); what was removed stays removed.
    pub fn remove_tree(&self, path: &(impl AsPath + ?Sized), progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        let place = self.old_name(path.as_path_bytes(), Errno::INVAL, Errno::NOTEMPTY)?;
        let stat = self.ops().lookup(place.parent, &place.name)?;
        if !stat.is_dir() {
            self.ops().unlink(place.parent, &place.name)?;
            return Ok(1);
        }
        self.remove_directory(Emptying::new(place.parent, &place.name, stat.node()), progress)
    }

    fn remove_directory(&self, top: Emptying, progress: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        let mut removed = 0;
        // A stack, not recursion: trees may be deeper than ours.
        let mut stack = vec![top];
        while let Some(level) = stack.last_mut() {
            let dir = Ino(level.node.ino);
            let Some(entry) = level.next(self)? else {
                match self.ops().rmdir(level.parent, &level.name) {
                    // Others have made names behind our back. We go on for as long as a round finds something.
                    Err(Error::Refused(Errno::NOTEMPTY)) if level.cookie > 0 => {
                        level.cookie = 0;
                        continue;
                    }
                    result => result?,
                }
                stack.pop();
                removed += 1;
                continue;
            };
            if entry.file_type == FileType::Directory {
                let child = self.ops().lookup(dir, &entry.name)?;
                if child.is_dir() && child.size > 0 {
                    stack.push(Emptying::new(dir, &entry.name, child.node()));
                    continue;
                }
                self.ops().rmdir(dir, &entry.name)?;
            } else {
                self.ops().unlink(dir, &entry.name)?;
            }
            removed += 1;
            if removed % 256 == 0 && !progress(removed) {
                return Err(Error::Cancelled);
            }
        }
        Ok(removed)
    }

    // ---- by node ----

    pub fn lookup(&self, parent: Node, name: &[u8]) -> Result<Stat> {
        if name == b"." || name == b".." {
            let node = if name == b"." { parent } else { self.parent_of(parent)? };
            return self.stat_node(node);
        }
        self.check_node(parent)?;
        self.ops().lookup(Ino(parent.ino), name)
    }

    /// ESTALE unless the node is still what it was.
    fn check_node(&self, node: Node) -> Result<()> {
        let look = self.volume().look();
        inode::read_node(&look, node).map(|_| ())
    }

    /// The parent of a directory (the root's is the root).
    pub fn parent_of(&self, directory: Node) -> Result<Node> {
        let look = self.volume().look();
        let raw = inode::read_node(&look, directory)?;
        if !raw.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        self.node_of(&look, Ino(raw.parent.get()))
    }

    /// The node that has an inode number now.
    pub fn node(&self, ino: u64) -> Result<Node> {
        let look = self.volume().look();
        if self.volume().geometry.locate(Ino(ino)).is_none() {
            return Err(Errno::STALE.into());
        }
        self.node_of(&look, Ino(ino))
    }

    pub fn stat_node(&self, node: Node) -> Result<Stat> {
        self.ops().stat_node(node)
    }

    /// Changes attributes, all or none.
    pub fn set_attr_node(&self, node: Node, attr: SetAttr) -> Result<Stat> {
        if let Some(size) = attr.size {
            let file = {
                let look = self.volume().look();
                let _lock = self.volume().lock_shared(Ino(node.ino));
                let raw = inode::read_node(&look, node)?;
                match raw.mode.get() & S_IFMT {
                    S_IFREG => {}
                    S_IFDIR => return Err(Errno::ISDIR.into()),
                    _ => return Err(Errno::INVAL.into()),
                }
                let guarded = Guarded::new(&look, Ino(node.ino), &raw)?;
                perm::check_truncate(self.judged(), &guarded.subject())?;
                self.handle(Ino(node.ino), raw.generation.get(), OpenOptions { write: true, ..OpenOptions::default() })
            };
            file::truncate(self.volume(), &self.cred, &file.file, size)?;
        }
        let rest = SetAttr { size: None, ..attr };
        if rest == SetAttr::default() && attr.size.is_some() {
            self.stat_node(node)
        } else {
            self.ops().set_attr(node, &rest)
        }
    }

    pub fn mknod_at(&self, parent: Node, name: &[u8], mode: u16, rdev: u64) -> Result<Stat> {
        self.check_node(parent)?;
        self.ops().make(Ino(parent.ino), name, &node_kind(mode, rdev)?)
    }

    pub fn mkdir_at(&self, parent: Node, name: &[u8], mode: u16) -> Result<Stat> {
        self.check_node(parent)?;
        let new = NewFile { mode: S_IFDIR | mode & 0o7777, ..NewFile::default() };
        self.ops().make(Ino(parent.ino), name, &new)
    }

    pub fn symlink_at(&self, target: &[u8], parent: Node, name: &[u8]) -> Result<Stat> {
        check_target(target)?;
        self.check_node(parent)?;
        self.ops().make(Ino(parent.ino), name, &NewFile { mode: S_IFLNK | 0o777, target, ..NewFile::default() })
    }

    /// Makes a file with its content and attributes in one transaction: after a crash it is there whole, or not at all.
    /// The same as `mknod_at` or `symlink_at`, a write, and `set_attr_node`, with their errors; and EINVAL for content
    /// that its type cannot have, or a size in `attr`. Content of more than 1 MiB (less in a small cache) is written
    /// after the name is made, and a crash may leave part of it.
    pub fn create_with(&self, parent: Node, name: &[u8], new: &CreateWith<'_>) -> Result<Stat> {
        self.check_node(parent)?;
        let mut file = if new.mode & S_IFMT == S_IFLNK {
            check_target(new.content)?;
            NewFile { mode: S_IFLNK | 0o777, target: new.content, ..NewFile::default() }
        } else {
            node_kind(new.mode, new.rdev)?
        };
        if new.attr.size.is_some() || !new.content.is_empty() && !matches!(file.mode & S_IFMT, S_IFREG | S_IFLNK) {
            return Err(Errno::INVAL.into());
        }
        if new.attr != SetAttr::default() {
            file.attr = Some(&new.attr);
        }
        let data = if file.mode & S_IFMT == S_IFREG { new.content } else { &[] };
        let volume = self.volume();
        if data.len() > CREATE_WITH_MAX.min(volume.cache.frame_count() / 8 * volume.cache.block_size()) {
            return self.create_long(parent, name, &NewFile { attr: None, ..file }, new);
        }
        volume.check_running()?;
        let pages = file::fill(volume, data)?;
        file.content = Content { size: data.len() as u64, pages: &pages, passing: new.dont_cache };
        let made = self.ops().make(Ino(parent.ino), name, &file);
        if made.is_err() {
            // Published last of all, the frames are still ours.
            for page in pages {
                volume.cache.drop_private(page.frame);
            }
            return made;
        }
        file::bound_ordered(volume)?;
        made
    }

    fn create_long(&self, parent: Node, name: &[u8], file: &NewFile<'_>, new: &CreateWith<'_>) -> Result<Stat> {
        let node = self.ops().make(Ino(parent.ino), name, file)?.node();
        let options = OpenOptions { write: true, dont_cache: new.dont_cache, ..OpenOptions::default() };
        let filled = self.open_unchecked(node, options).and_then(|file| {
            let written = file.write_at(new.content, 0)?;
            if written < new.content.len() { Err(Errno::NOSPC.into()) } else { Ok(()) }
        });
        let done = filled.and_then(|()| {
            if new.attr == SetAttr::default() { self.stat_node(node) } else { self.set_attr_node(node, new.attr) }
        });
        if done.is_err() {
            // The error in hand says more than one about this.
            let _ = self.unlink_at(parent, name);
        }
        done
    }

    pub fn link_at(&self, node: Node, parent: Node, name: &[u8]) -> Result<Stat> {
        self.check_node(parent)?;
        // A kernel that checks permissions also knows which of its unnamed files may get a name.
        self.ops().link(node, Ino(parent.ino), name, self.checked)
    }

    pub fn unlink_at(&self, parent: Node, name: &[u8]) -> Result<()> {
        self.check_node(parent)?;
        self.ops().unlink(Ino(parent.ino), name)
    }

    pub fn rmdir_at(&self, parent: Node, name: &[u8]) -> Result<()> {
        self.check_node(parent)?;
        self.ops().rmdir(Ino(parent.ino), name)
    }

    pub fn rename_at(&self, source: Node, name: &[u8], target: Node, new_name: &[u8], mode: RenameMode) -> Result<()> {
        self.check_node(source)?;
        self.check_node(target)?;
        self.ops().rename((Ino(source.ino), name), (Ino(target.ino), new_name), mode, (false, false))
    }

    pub fn readlink_node(&self, node: Node) -> Result<Vec<u8>> {
        self.ops().readlink(node)
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
            self.handle(Ino(node.ino), raw.generation.get(), options)
        };
        if options.truncate {
            file::truncate(self.volume(), &self.cred, &file.file, 0)?;
        }
        Ok(file)
    }

    fn open_unchecked(&self, node: Node, options: OpenOptions) -> Result<File> {
        let look = self.volume().look();
        let _lock = self.volume().lock_shared(Ino(node.ino));
        let raw = inode::read_node(&look, node)?;
        Ok(self.handle(Ino(node.ino), raw.generation.get(), options))
    }

    /// A handle. The inode is locked, so that it cannot be freed under us.
    fn handle(&self, ino: Ino, generation: u32, options: OpenOptions) -> File {
        self.volume().counters.bump(crate::counters::Count::opens);
        File { session: self.again(), file: self.volume().files.open(ino, generation), options }
    }

    /// The same view once more, which may use what a thread remembers for this one.
    fn again(&self) -> Session {
        Session { fs: self.fs.clone(), cred: self.cred.clone(), checked: self.checked, number: self.number }
    }

    /// Entries of a directory, without "." and "..".
    pub fn read_dir_node(&self, directory: Node) -> Result<ReadDir> {
        let mut first = Vec::new();
        self.ops().read_dir(directory, 0, 64, &mut first)?;
        let cookie = first.last().map_or(0, |entry| entry.cookie);
        Ok(ReadDir { session: self.again(), directory, cookie, entries: first.into(), done: false })
    }

    /// Up to `max` entries after `cookie` (0: from the start); an empty answer is the end. A cookie stays valid whatever
    /// is made or removed in the directory.
    pub fn read_dir_at(&self, directory: Node, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.ops().read_dir(directory, cookie, max, &mut entries)?;
        Ok(entries)
    }

    /// As [`Session::read_dir_at`], with the attributes of each file (`None`: gone meanwhile).
    pub fn read_dir_plus_at(&self, directory: Node, cookie: u64, max: usize) -> Result<Vec<(DirEntry, Option<Stat>)>> {
        let entries = self.read_dir_at(directory, cookie, max)?;
        let stats = self.ops().stat_entries(Ino(directory.ino), &entries);
        Ok(entries.into_iter().zip(stats).collect())
    }

    /// The attributes of the files that entries of `directory` name (`None`: gone meanwhile).
    pub fn stat_entries(&self, directory: Node, entries: &[DirEntry]) -> Vec<Option<Stat>> {
        self.ops().stat_entries(Ino(directory.ino), entries)
    }

    pub fn get_xattr_node(&self, node: Node, name: &[u8]) -> Result<Vec<u8>> {
        self.ops().get_xattr(node, name)
    }

    pub fn set_xattr_node(&self, node: Node, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.ops().set_xattr(node, name, value, mode)
    }

    pub fn list_xattr_node(&self, node: Node) -> Result<Vec<Vec<u8>>> {
        self.ops().list_xattr(node)
    }

    pub fn remove_xattr_node(&self, node: Node, name: &[u8]) -> Result<()> {
        self.ops().remove_xattr(node, name)
    }

    pub fn access_node(&self, node: Node, mask: u8) -> Result<()> {
        self.ops().access(node, mask)
    }
}

/// A resolved directory and a name in it.
struct Place<'p> {
    parent: Ino,
    name: std::borrow::Cow<'p, [u8]>,
    must_be_dir: bool,
    ends_in_dot: bool,
}

impl From<Target> for Place<'_> {
    fn from(target: Target) -> Self {
        Self {
            parent: target.parent,
            name: target.name.into(),
            must_be_dir: target.must_be_dir,
            ends_in_dot: target.ends_in_dot,
        }
    }
}

/// A link's target must be a path: ENOENT if it is empty, ENAMETOOLONG from 4096 bytes on.
fn check_target(target: &[u8]) -> Result<()> {
    match target.len() {
        0 => Err(Errno::NOENT.into()),
        1..4096 => Ok(()),
        _ => Err(Errno::NAMETOOLONG.into()),
    }
}

/// What mknod(2) makes of a mode.
fn node_kind(mode: u16, rdev: u64) -> Result<NewFile<'static>> {
    let kind = if mode & S_IFMT == 0 { S_IFREG } else { mode & S_IFMT };
    match kind {
        S_IFDIR => Err(Errno::PERM.into()),
        S_IFLNK => Err(Errno::INVAL.into()),
        _ => Ok(NewFile { mode: kind | mode & 0o7777, rdev, ..NewFile::default() }),
    }
}

/// An open file. Dropping it closes it; a file without names lives until then.
pub struct File {
    session: Session,
    file: Arc<OpenFile>,
    options: OpenOptions,
}

impl File {
    fn volume(&self) -> &Volume {
        self.session.volume()
    }

    pub fn node(&self) -> Node {
        Node { ino: self.file.ino.0, generation: self.file.generation }
    }

    pub fn stat(&self) -> Result<Stat> {
        self.session.stat_node(self.node())
    }

    /// Leaves the file open without this handle, until [`Fs::release`].
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
    /// volume filled up half-way. ENOSPC, EFBIG, EBADF.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.check_data(true)?;
        let OpenOptions { append, dont_cache, .. } = self.options;
        let count = file::write(self.volume(), &self.session.cred, &self.file, buf, offset, append, dont_cache)?;
        if self.options.sync {
            self.sync()?;
        }
        Ok(count)
    }

    /// Sets the size: what is cut off is gone, what is added reads as zero.
    pub fn truncate(&self, size: u64) -> Result<()> {
        if !self.options.write && !self.options.append {
            return Err(Errno::INVAL.into());
        }
        self.session.fs.inner.check_process()?;
        self.check_append_only()?;
        file::truncate(self.volume(), &self.session.cred, &self.file, size)
    }

    fn check_append_only(&self) -> Result<()> {
        let look = self.volume().look();
        let raw = inode::read_node(&look, self.node())?;
        if raw.has_flag(flag::APPEND | flag::IMMUTABLE) { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    /// Allocates, or gives back, the blocks of a range of bytes.
    pub fn allocate(&self, mode: AllocateMode, offset: u64, length: u64) -> Result<()> {
        if length == 0 {
            return Err(Errno::INVAL.into());
        }
        self.check_data(true)?;
        if matches!(mode, AllocateMode::Punch | AllocateMode::Zero { .. }) {
            self.check_append_only()?;
        }
        file::allocate(self.volume(), &self.session.cred, &self.file, mode, offset, length)
    }

    /// First data at or after `offset`; ENXIO if there is none, or past the end.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        file::seek(self.volume(), &self.file, offset, false)
    }

    /// First hole at or after `offset`; the end of the file counts as one. ENXIO past the end.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        file::seek(self.volume(), &self.file, offset, true)
    }

    pub fn set_attr(&self, attr: SetAttr) -> Result<Stat> {
        if let Some(size) = attr.size {
            self.truncate(size)?;
        }
        let rest = SetAttr { size: None, ..attr };
        if rest == SetAttr::default() { self.stat() } else { self.session.ops().set_attr(self.node(), &rest) }
    }

    /// Makes data, attributes and the file's name durable.
    pub fn sync(&self) -> Result<()> {
        self.session.fs.inner.check_process()?;
        if self.volume().options.read_only {
            return Ok(());
        }
        self.volume().counters.bump(crate::counters::Count::fsyncs);
        file::flush(self.volume(), &self.file)?;
        self.volume().commit_now()
    }

    /// Makes data and size durable.
    pub fn sync_data(&self) -> Result<()> {
        self.sync()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let reclaim = {
            let volume = self.session.volume();
            let _look = volume.look();
            let _lock = volume.lock_exclusive(self.file.ino);
            let last = self.file.opens.fetch_sub(1, Ordering::AcqRel) == 1;
            if last {
                volume.files.forget_if_idle(&self.file);
            }
            last && volume.orphans.lock().contains(&self.file.ino.0)
        };
        if reclaim {
            let volume = self.session.volume();
            file::mark_dead_if_unnamed(volume, &self.file);
            // A failure leaves an orphan for the next mount.
            let _ = crate::ops::reclaim(volume, self.file.ino);
            if self.file.is_dead() {
                volume.files.take(self.file.ino);
                file::discard(volume, &self.file);
            }
        }
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

/// Names looked up together: more loads in flight than a core can wait for.
const STAT_BATCH: usize = 32;

/// Content that `create_with` takes into its transaction, in bytes.
const CREATE_WITH_MAX: usize = 1 << 20;

/// A directory that is being emptied.
struct Emptying {
    parent: Ino,
    name: Vec<u8>,
    node: Node,
    /// How far it has been listed: entries do not move, so nothing is listed twice.
    cookie: u64,
    entries: VecDeque<DirEntry>,
}

impl Emptying {
    fn new(parent: Ino, name: &[u8], node: Node) -> Self {
        Self { parent, name: name.to_vec(), node, cookie: 0, entries: VecDeque::new() }
    }

    /// The next entry; `None` at the end of the directory.
    fn next(&mut self, session: &Session) -> Result<Option<DirEntry>> {
        if self.entries.is_empty() {
            let mut entries = session.read_dir_at(self.node, self.cookie, 2 * READ_DIR_BATCH)?;
            self.cookie = entries.last().map_or(self.cookie, |entry| entry.cookie);
            // Neighbours among inodes one after the other, also where entries lie in places used before.
            entries.sort_unstable_by_key(|entry| entry.ino);
            self.entries = entries.into();
        }
        Ok(self.entries.pop_front())
    }
}

/// Entries asked for at a time.
const READ_DIR_BATCH: usize = 512;

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
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        self.entries.pop_front().map(Ok)
    }
}

/// Iterator over a tree: a directory before its content.
pub struct Walk {
    session: Session,
    pending: VecDeque<Step>,
}

enum Step {
    File(WalkEntry),
    /// A name whose inode cannot be read.
    Damaged(WalkError),
    /// The rest of a directory's content.
    Content {
        path: Vec<u8>,
        node: Node,
        cookie: u64,
    },
}

/// One file of a walk.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// Path relative to where the walk began; empty for the beginning itself.
    pub path: Vec<u8>,
    pub stat: Stat,
}

/// Something that a walk could not read. The walk goes on with the rest of the tree.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", String::from_utf8_lossy(path))]
pub struct WalkError {
    /// The file, or the directory, relative to where the walk began.
    pub path: Vec<u8>,
    #[source]
    pub error: Error,
}

impl From<WalkError> for Error {
    fn from(error: WalkError) -> Self {
        error.error
    }
}

impl Iterator for Walk {
    type Item = std::result::Result<WalkEntry, WalkError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.pending.pop_front()? {
                Step::File(entry) => {
                    if entry.stat.is_dir() {
                        let node = entry.stat.node();
                        self.pending.push_front(Step::Content { path: entry.path.clone(), node, cookie: 0 });
                    }
                    return Some(Ok(entry));
                }
                Step::Damaged(error) => return Some(Err(error)),
                Step::Content { path, node, cookie } => {
                    let entries = match self.session.read_dir_plus_at(node, cookie, READ_DIR_BATCH) {
                        Ok(entries) => entries,
                        // The directory went while we walked.
                        Err(Error::Refused(Errno::STALE | Errno::NOENT)) => continue,
                        Err(error) => return Some(Err(WalkError { path, error })),
                    };
                    let Some((last, _)) = entries.last() else { continue };
                    let cookie = last.cookie;
                    self.pending.push_front(Step::Content { path: path.clone(), node, cookie });
                    for (entry, stat) in entries.into_iter().rev() {
                        let mut child = Vec::with_capacity(path.len() + 1 + entry.name.len());
                        child.extend_from_slice(&path);
                        if !child.is_empty() {
                            child.push(b'/');
                        }
                        child.extend_from_slice(&entry.name);
                        // Gone meanwhile, or damaged: looking the name up tells which. A walk that passed over damage
                        // would make backups that lack files and say nothing.
                        let stat = match stat.map_or_else(|| self.session.lookup(node, &entry.name), Ok) {
                            Ok(stat) => stat,
                            Err(Error::Refused(Errno::STALE | Errno::NOENT)) => continue,
                            Err(error) => {
                                self.pending.push_front(Step::Damaged(WalkError { path: child, error }));
                                continue;
                            }
                        };
                        self.pending.push_front(Step::File(WalkEntry { path: child, stat }));
                    }
                }
            }
        }
    }
}
