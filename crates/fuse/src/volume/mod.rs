//! A volume as a server: each request is one call of the engine.
//!
//! Permissions are the kernel's affair with `default_permissions`: the engine is told who asks, for owners and set-id
//! bits, and refuses nothing but what inode flags forbid. Without it, the engine checks, and supplementary groups are
//! read from /proc.
//!
//! All changes to a mounted volume come through here, so the kernel may keep names and attributes as long as it likes;
//! every answer to a change carries the attributes after it.

mod appends;
mod attributes;
mod caller;
mod callers;
mod data;
mod directories;
mod doubts;
mod durable;
#[cfg(test)]
mod meetings;
mod names;
#[cfg(test)]
mod raw;
#[cfg(test)]
mod regressions;
mod settling;
mod special;
mod tellings;
mod untaken;
mod writers;

use crate::answer::Answer;
use crate::kind::Kind;
use crate::negotiate::Agreement;
use crate::nodes::Nodes;
use crate::options::Options;
use crate::request::{Dialect, Operation, Request};
use crate::service::Service;
use crate::stats::{Recorder, Stats};
use crate::transport::Notifier;
use crate::wire::{Attr, AttrOut, EntryOut, ROOT, opcode};
use appends::Gaps;
use callers::Callers;
use doubts::Doubts;
use durable::Durable;
use myriad_engine::{Cred, Errno, Error, FileType, Fs, Keeper, Node, Session, Stat, schedule};
use parking_lot::Mutex;
use settling::Settling;
use special::Special;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tellings::Tellings;
use writers::Writers;

/// Handlers answer with a length or an errno.
type Reply = Result<usize, Errno>;

/// How long the kernel may use the attributes of a file whose number of blocks is an estimate.
const UNSETTLED: Duration = Duration::from_secs(1);

pub struct VolumeService {
    fs: Fs,
    /// For what the kernel does on its own account.
    kernel: Session,
    nodes: Arc<Nodes>,
    callers: Callers,
    tellings: Tellings,
    gaps: Mutex<Gaps>,
    durable: Durable,
    doubts: Doubts,
    settling: Arc<Settling>,
    writers: Writers,
    agreement: Agreement,
    settings: Settings,
    special: Option<Special>,
    recorder: Recorder,
    notifier: Arc<Notifier>,
    kind: Kind,
    transport: &'static str,
}

/// What answers depend on, of the options.
struct Settings {
    default_permissions: bool,
    uid: Option<u32>,
    gid: Option<u32>,
    umask: Option<u16>,
    entry_timeout: Duration,
    attr_timeout: Duration,
    no_xattr: bool,
    direct_io: bool,
    /// Nobody can change anything, nor ever could.
    read_only: bool,
    block_size: u32,
}

impl VolumeService {
    pub fn new(
        fs: Fs,
        options: &Options,
        agreement: Agreement,
        notifier: Notifier,
        kind: Kind,
        transport: &'static str,
    ) -> Self {
        let kernel = fs.session_checked(Cred { umask: 0, ..Cred::root() });
        let nodes = Arc::new(Nodes::new(kernel.root()));
        let notifier = Arc::new(notifier);
        fs.set_keeper(Arc::new(Kept { nodes: nodes.clone(), notifier: notifier.clone() }));
        let settings = Settings {
            default_permissions: options.default_permissions,
            uid: options.uid,
            gid: options.gid,
            umask: options.umask,
            // Where the kernel does not check whether a directory may be searched, each step of a path must ask us.
            entry_timeout: if options.default_permissions || agreement.acl {
                options.entry_timeout
            } else {
                Duration::ZERO
            },
            attr_timeout: options.attr_timeout,
            no_xattr: options.no_xattr,
            direct_io: options.direct_io,
            read_only: fs.info().read_only,
            block_size: fs.info().block_size,
        };
        // A file of that name in the volume goes first.
        let settling = Arc::<Settling>::default();
        let name_is_free = kernel.lookup(kernel.root(), special::DIRECTORY).is_err();
        let special = (options.stats_dir && name_is_free).then(Special::default);
        Self {
            fs,
            kernel,
            nodes,
            callers: Callers::new(),
            tellings: Tellings::new(),
            gaps: Mutex::default(),
            durable: Durable::new(options.kernel_options.iter().map(String::as_str)),
            doubts: Doubts::new(Arc::clone(&notifier), Arc::clone(&settling)),
            settling,
            writers: Writers::default(),
            agreement,
            settings,
            special,
            recorder: Recorder::default(),
            notifier,
            kind,
            transport,
        }
    }

    /// Nobody serves any more: the kernel is told nothing either.
    pub fn end_notices(&self) {
        self.doubts.end();
        self.notifier.end();
    }

    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    pub fn stats(&self) -> Stats {
        let (kind, why_no_sync) = (self.kind.name(), self.kind.why_no_sync());
        Stats { nodes: self.nodes.count(), transport: self.transport, kind, why_no_sync, ..self.recorder.snapshot() }
    }

    /// One more file in the hidden directory, if there is one.
    pub fn add_figures(&self, name: &'static str, make: impl Fn(&Stats, &Fs) -> String + Send + Sync + 'static) {
        if let Some(special) = &self.special {
            special.add(name, Box::new(make));
        }
    }

    /// Lets go of all that the kernel, which is gone, held.
    pub fn release_all(&self) {
        self.settling.end_all();
        for node in self.nodes.forget_all() {
            self.fs.release(node);
        }
    }

    // ---- what handlers share ----

    /// The node that the kernel means. It may ask for one that it was not told of: by a file handle it gave out earlier
    /// (open_by_handle_at), and then compares generations itself.
    fn node(&self, id: u64) -> Result<Node, Errno> {
        match self.nodes.find(id) {
            Some(node) => Ok(node),
            None => self.kernel.node(id).map_err(errno),
        }
    }

    fn forget(&self, id: u64, lookups: u64) {
        if let Some(special) = self.special.as_ref().filter(|_| Special::is_one(id)) {
            special.forget(id, lookups);
        } else if let Some(node) = self.nodes.forget(id, lookups) {
            // Another request may come in between.
            schedule::pause();
            self.fs.release(node);
            self.nodes.held().remove();
        }
    }

    fn attr(&self, stat: &Stat) -> Attr {
        let (atime, atimensec) = split_time(stat.atime);
        let (mtime, mtimensec) = split_time(stat.mtime);
        let (ctime, ctimensec) = split_time(stat.ctime);
        Attr {
            ino: stat.ino,
            size: stat.size,
            blocks: stat.blocks,
            atime,
            mtime,
            ctime,
            atimensec,
            mtimensec,
            ctimensec,
            mode: u32::from(self.shown_mode(stat)),
            nlink: stat.nlink,
            uid: self.settings.uid.unwrap_or(stat.uid),
            gid: self.settings.gid.unwrap_or(stat.gid),
            rdev: kernel_device(stat.rdev),
            blksize: self.settings.block_size.max(4096),
            flags: 0,
        }
    }

    fn shown_mode(&self, stat: &Stat) -> u16 {
        self.settings.umask.map_or(stat.mode, |umask| stat.file_type().mode_bits() | 0o777 & !umask)
    }

    /// How long the attributes hold.
    fn attr_timeout(&self, stat: &Stat) -> Duration {
        let may_be_unsettled = stat.size > 0 && stat.file_type() == FileType::File;
        if may_be_unsettled && self.fs.are_blocks_estimated(stat) {
            return UNSETTLED.min(self.settings.attr_timeout);
        }
        self.settings.attr_timeout
    }

    /// An answer that tells the kernel of an inode; the caller has said so to `nodes`.
    fn entry(&self, stat: &Stat) -> EntryOut {
        let (entry_valid, attr_valid) = (self.settings.entry_timeout, self.attr_timeout(stat));
        let nodeid = self.nodes.id(stat.node());
        EntryOut {
            nodeid,
            // Of the root the kernel knows none. By another one it takes it for a new file with the number of an old one, and all of the
            // mount for gone.
            generation: if nodeid == ROOT { 0 } else { u64::from(stat.generation) },
            entry_valid: entry_valid.as_secs(),
            entry_valid_nsec: entry_valid.subsec_nanos(),
            attr_valid: attr_valid.as_secs(),
            attr_valid_nsec: attr_valid.subsec_nanos(),
            attr: self.attr(stat),
        }
    }

    fn attr_out(&self, stat: &Stat) -> AttrOut {
        let valid = self.attr_timeout(stat);
        AttrOut { attr_valid: valid.as_secs(), attr_valid_nsec: valid.subsec_nanos(), dummy: 0, attr: self.attr(stat) }
    }

    fn dispatch(&self, request: &Request<'_>, out: &mut [u8]) -> Answer {
        HOST_WAS_FULL.set(false);
        let header = &request.header;
        if Special::is_one(header.nodeid)
            && let Some(special) = &self.special
            && let Some(answer) = special.answer(self, request, out)
        {
            return answer;
        }
        match &request.operation {
            Operation::Lookup { name } => self.lookup(header, name, out).into(),
            Operation::Forget { lookups } => {
                self.forget(header.nodeid, *lookups);
                Answer::Nothing
            }
            Operation::BatchForget { nodes } => {
                for one in nodes.clone() {
                    self.forget(one.nodeid, one.nlookup);
                }
                Answer::Nothing
            }
            Operation::GetAttr => self.get_attr(header, out).into(),
            Operation::Statx { .. } => self.statx(header, out).into(),
            Operation::SetAttr(args) => self.set_attr(header, args, out).into(),
            Operation::ReadLink => self.read_link(header, out).into(),
            Operation::Symlink { name, target } => self.symlink(header, name, target, out).into(),
            Operation::MkNod { name, args } => self.make_node(header, name, args, out).into(),
            Operation::MkDir { name, args } => self.make_dir(header, name, args, out).into(),
            Operation::Unlink { name } => self.unlink(header, name).into(),
            Operation::RmDir { name } => self.remove_dir(header, name).into(),
            Operation::Rename { name, new_parent, new_name, flags } => {
                self.rename(header, name, *new_parent, new_name, *flags).into()
            }
            Operation::Link { node, name } => self.link(header, *node, name, out).into(),
            Operation::Open(args) => self.open(header, args, out).into(),
            Operation::Create { name, args } => self.create(header, name, args, out).into(),
            Operation::TmpFile(args) => self.make_tmpfile(header, args, out).into(),
            Operation::Read(args) => self.read(header, args, out).into(),
            Operation::Write { args, data } => self.write(header, args, data, out).into(),
            Operation::Release(args) => {
                self.writers.closed(header.nodeid, args.fh);
                Answer::Bytes(0)
            }
            // A directory lives by its lookup count, so there is nothing to let go of.
            Operation::ReleaseDir => Answer::Bytes(0),
            // Nothing is to be done at close; the kernel remembers, and asks no more.
            Operation::Flush => Answer::Error(Errno::NOSYS),
            Operation::Fsync => self.fsync(header).into(),
            Operation::FsyncDir => self.fsync(header).into(),
            Operation::SyncFs => self.fs.sync().map(|()| 0).map_err(errno).into(),
            Operation::OpenDir => self.open_dir(header, out).into(),
            Operation::ReadDir { args, plus } => self.read_dir(header, args, *plus, out).into(),
            Operation::StatFs => self.stat_fs(out).into(),
            Operation::GetXattr { name, size } => self.get_xattr(header, name, *size, out).into(),
            Operation::SetXattr { name, value, args } => self.set_xattr(header, name, value, args).into(),
            Operation::ListXattr { size } => self.list_xattr(header, *size, out).into(),
            Operation::RemoveXattr { name } => self.remove_xattr(header, name).into(),
            Operation::Access { mask } => self.access(header, *mask).into(),
            Operation::Fallocate(args) => self.fallocate(header, args).into(),
            Operation::Lseek(args) => self.seek(header, args, out).into(),
            Operation::CopyFileRange { args, wide } => self.copy_range(header, args, *wide, out).into(),
            Operation::Ioctl { args, data } => self.ioctl(header, args, data, out).into(),
            // The owner of this service ends it.
            Operation::Destroy => Answer::Error(Errno::NOSYS),
            // No request takes long enough to be worth it; the kernel remembers, and sends no more.
            Operation::Interrupt => Answer::Error(Errno::NOSYS),
            // A second INIT is nothing a kernel sends.
            Operation::Init(_) => Answer::Error(Errno::INVAL),
            Operation::Other => Answer::Error(Errno::NOSYS),
        }
    }
}

impl Service for VolumeService {
    fn dialect(&self) -> Dialect {
        Dialect { short_setxattr: !self.agreement.setxattr_ext }
    }

    fn answer(&self, request: &Request<'_>, out: &mut [u8]) -> Answer {
        self.note_telling(request);
        // From then on all is refused before anything is changed.
        let was_shut_down = self.fs.shut_down_reason().is_some();
        let mut answer = self.dispatch(request, out);
        // Another request may come in between.
        schedule::pause();
        if answer == Answer::Error(Errno::NOSPC) && self.may_find_space() {
            self.nodes.held().retry(|| {
                answer = self.dispatch(request, out);
                answer != Answer::Error(Errno::NOSPC) || !self.may_find_space()
            });
        }
        // Also of a write that failed half-way.
        self.nodes.tell_changed(|id| self.notifier.attributes_changed(id));
        match answer {
            Answer::Bytes(_) => self.outdate_tellings(request),
            Answer::Error(errno) if !was_shut_down => self.doubt(request, errno),
            Answer::Error(_) | Answer::Nothing => {}
        }
        answer
    }

    /// Where the volume has no space, nothing was changed. Where the host has none, what was asked may be done, though it is not durable:
    /// asked again, the name to be made would be there already. Which of them it was, the request that this thread has answered last found
    /// out: the host may have room again by now.
    fn may_find_space(&self) -> bool {
        !HOST_WAS_FULL.get()
    }

    fn waits_for_answers(&self) -> bool {
        self.doubts.wait_for_answers()
    }

    fn not_taken(&self, request: &Request<'_>, answer: &[u8]) {
        self.take_back(request, answer);
        self.doubt(request, Errno::IO);
    }

    fn answered(&self, unique: u64) {
        self.doubts.tell_of(unique);
    }

    fn answers_apart(&self, opcode: u32) -> bool {
        match opcode {
            // It may wait until the kernel has sent what it holds of the file.
            opcode::RENAME | opcode::RENAME2 if self.agreement.writeback => true,
            // Where they are about a directory they wait until all directories were looked at.
            opcode::RENAME | opcode::RENAME2 | opcode::RMDIR => self.fs.may_have_second_names(),
            _ => false,
        }
    }

    fn panicked(&self) {
        self.fs.shut_down("an earlier request failed in the middle (a fault of this program; see its messages)");
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }
}

/// What the engine asks and tells of the inodes that the kernel knows.
struct Kept {
    nodes: Arc<Nodes>,
    notifier: Arc<Notifier>,
}

impl Keeper for Kept {
    fn hold(&self, node: Node) -> bool {
        self.nodes.hold(node)
    }

    fn attributes_changed(&self, node: Node) {
        self.nodes.attributes_changed(node);
    }

    fn given_back(&self, node: Node) {
        // At once. The kernel may first wait for an inode that it is dropping, and with it for an answer to what it sends of a file: the thread
        // that gives back serves nobody. Threads that serve come here as well, but of directories only, of which the kernel has nothing to send.
        self.notifier.attributes_changed(self.nodes.id(node));
    }
}

thread_local! {
    /// The host had no room for something that the thread's latest request wanted.
    static HOST_WAS_FULL: Cell<bool> = const { Cell::new(false) };
}

/// An answer has only a number for two reasons why there is no space.
fn errno(error: Error) -> Errno {
    if matches!(error, Error::HostFull(_)) {
        HOST_WAS_FULL.set(true);
    }
    error.errno()
}

/// Seconds, in two's complement before 1970, and nanoseconds.
fn split_time(time: i64) -> (u64, u32) {
    const NS: i64 = 1_000_000_000;
    (time.div_euclid(NS) as u64, time.rem_euclid(NS) as u32)
}

/// The other way; a time beyond what 64 bits of nanoseconds hold becomes the nearest that they do.
fn join_time(sec: u64, nsec: u32) -> i64 {
    (sec as i64).saturating_mul(1_000_000_000).saturating_add(i64::from(nsec))
}

/// makedev(3)'s form to the kernel's 32 bits: 12 of major, 20 of minor.
fn kernel_device(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// The kernel's 32 bits to makedev(3)'s form.
fn device_of(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev & 0xf_ff00) >> 8, rdev & 0xff | (rdev >> 12) & 0xf_ff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_devices_go_both_ways() {
        for time in [0, 1, -1, 999_999_999, -1_000_000_000, i64::MAX, i64::MIN + 1_000_000_000] {
            let (sec, nsec) = split_time(time);
            assert_eq!(join_time(sec, nsec), time);
        }
        assert_eq!(join_time(i64::MAX as u64, 0), i64::MAX);
        for (major, minor) in [(0, 0), (8, 1), (4095, 0xf_ffff), (1, 256)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(device_of(kernel_device(device)), device, "{major}:{minor}");
        }
        assert_eq!(kernel_device(rustix::fs::makedev(8, 1)), 0x801);
    }
}
