//! Mounts a volume through FUSE, with a transport of our own.
//!
//! [`mount`] mounts and shakes hands with the kernel; [`Mount::serve`] answers requests until the mount is gone, and closes
//! the volume. `docs/design/mount.md` tells what is asked of the kernel and why that is safe.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use myriad_engine::{Fs, MountOptions};
//! let fs = Fs::open("vol.img".as_ref(), MountOptions::default())?;
//! let options = myriad_fuse::Options { source: "vol.img".into(), ..Default::default() };
//! let mount = myriad_fuse::mount(fs, "/mnt".as_ref(), options)?;
//! let handle = mount.handle();
//! std::thread::spawn(move || handle.unmount(false)); // whenever it is time
//! mount.serve()?;
//! # Ok(())
//! # }
//! ```
//!
//! **Invariant:** no other crate knows the FUSE protocol.
#![deny(unsafe_code)]

mod answer;
mod block;
mod error;
mod held;
mod helper;
mod kind;
mod mount_point;
pub mod mounts;
mod negotiate;
mod nodes;
mod null;
mod options;
mod remount;
mod request;
mod service;
mod stats;
mod transport;
mod unmount;
mod volume;
mod watch;
mod wire;

pub use error::{MountError, ServeError};
pub use kind::{Kind, KindChoice};
pub use null::{NullHandle, NullMount, mount_null};
pub use options::{Options, TransportChoice};
pub use remount::{can_remount, remount};
pub use request::{DecodeError, Dialect, Forgets, Operation, Request, decode};
pub use stats::{LATENCY_BUCKETS, RequestStats, Stats};
pub use unmount::{How, clear_mount_point, real_path, unmount};
pub use wire::{InHeader, InitIn};

use mount_point::MountPoint;
use myriad_engine::{Cred, Errno, Error, Fs};
use negotiate::{Agreement, Wishes, negotiate};
use parking_lot::Mutex;
use service::Service;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::{Classic, Device, Message, Notifier, Queues, Transport, Uring};
use volume::VolumeService;
use wire::OutHeader;
use zerocopy::IntoBytes;

/// Mounts a volume. Requests wait until [`Mount::serve`] answers them.
pub fn mount(fs: Fs, mount_point: &Path, mut options: Options) -> Result<Mount, MountError> {
    options.read_only |= fs.info().read_only;
    let log = options.request_log.take();
    let owner = options.uid.or_else(|| fs.session(Cred::root()).stat("/").ok().map(|root| root.uid));
    let owns_root = owner == Some(rustix::process::geteuid().as_raw());
    let served = Served { has_acls: fs.has_acls(), owns_root, may_wait_long: fs.may_have_second_names() };
    let connection = Connection::new(mount_point, &options, served)?;
    let Connection { mount_point, kind, transport, notifier, agreement } = connection;
    let service = VolumeService::new(fs, &options, agreement, notifier, kind, transport.name());
    service.recorder().set_log(log);
    service.set_mount(mount_point.entry().ok());
    let shared = Shared { service, mount_point, end: Mutex::default() };
    Ok(Mount { handle: Handle { shared: Arc::new(shared) }, transport: Some(transport) })
}

/// A mounted volume that is not served yet. Dropped without being served, it is unmounted.
pub struct Mount {
    handle: Handle,
    transport: Option<Box<dyn Transport>>,
}

impl Mount {
    /// Answers requests until the mount is gone; then closes the volume.
    pub fn serve(mut self) -> Result<(), ServeError> {
        let transport = self.transport.take().expect("a mount is served once");
        let shared = Arc::clone(&self.handle.shared);
        let handle = self.handle();
        // Without it, a remount that nobody tells us of shows in the next checkpoint.
        let watch = watch::Watch::begin(move || drop(handle.remounted())).ok();
        let served = transport.run(shared.clone());
        drop(watch);
        let served_well = served.is_ok();
        if !served_well {
            shared.mount_point.abort();
        }
        shared.mount_point.end();
        // Why it ended comes first: the volume stays open for a request that never ends.
        served.and(shared.close(served_well).map_err(ServeError::Close))
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.transport.take().is_some() {
            // Nobody will answer: without this, the mount point would be dead. And nobody must be waited for.
            self.handle.shared.service.end_notices();
            let _ = self.handle.shared.mount_point.unmount(true);
        }
    }
}

/// Speaks to a mount from other threads.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    service: VolumeService,
    mount_point: MountPoint,
    end: Mutex<End>,
}

/// What becomes of the volume when its mount is gone.
#[derive(Default)]
struct End {
    /// What came of closing it; taken by the end of serving.
    closed: Option<Result<(), Error>>,
    /// Called once it is closed, while who unmounted still waits.
    on_closed: Option<Box<dyn FnOnce() + Send>>,
}

/// How long a request or the background check may keep the volume open when the kernel says that no request will follow.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// How long closing waits for room on the host before it gives up what was not synced.
const HOST_FULL_WAIT: Duration = Duration::from_secs(30);

impl Shared {
    /// Closes the volume, or says what came of closing it before. `tell`: others may have the image from then on.
    fn close(&self, tell: bool) -> Result<(), Error> {
        let mut end = self.end.lock();
        let closed = end.closed.take().unwrap_or_else(|| {
            self.service.end_notices();
            self.close_in_time()
        });
        if tell
            && closed.is_ok()
            && let Some(on_closed) = end.on_closed.take()
        {
            on_closed();
        }
        closed
    }

    /// Closes the volume. Waits a little for whoever is still at work: requests whose answer nobody waits for (pages that were being read
    /// ahead, before Linux 6.18; those of a ring that ended with an error), and the check in the background. If the host has no room for
    /// what is not durable yet, waits for somebody to make some.
    fn close_in_time(&self) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            // Also what a request has had held meanwhile.
            self.service.release_all();
            let closed = self.service.fs().clone().close();
            let (wait, interval) = match &closed {
                Err(Error::HostFull(_)) => (HOST_FULL_WAIT, Duration::from_millis(100)),
                Err(error) if error.errno() == Errno::BUSY => (LAST_REQUESTS, Duration::from_millis(10)),
                _ => return closed,
            };
            if start.elapsed() >= wait {
                return closed;
            }
            std::thread::sleep(interval);
        }
    }

    /// The kernel has unmounted the file system and waits, and umount(2) with it. The answer is passed over there, so what went
    /// wrong is said again when serving ends.
    fn destroy(&self) -> Result<usize, Errno> {
        let closed = self.close(true);
        let answer = closed.as_ref().map(|()| 0).map_err(Error::errno);
        // If somebody is still at work, the end of serving tries again.
        if answer != Err(Errno::BUSY) {
            self.end.lock().closed = Some(closed);
        }
        answer
    }
}

impl Service for Shared {
    fn answer(&self, request: &Request<'_>, out: &mut [u8]) -> answer::Answer {
        match request.operation {
            Operation::Destroy => self.destroy().into(),
            _ => self.service.answer(request, out),
        }
    }

    fn may_find_space(&self) -> bool {
        self.service.may_find_space()
    }

    fn answers_apart(&self, opcode: u32) -> bool {
        self.service.answers_apart(opcode)
    }

    fn waits_for_answers(&self) -> bool {
        self.service.waits_for_answers()
    }

    fn not_taken(&self, request: &Request<'_>, answer: &[u8]) {
        self.service.not_taken(request, answer);
    }

    fn answered(&self, unique: u64) {
        self.service.answered(unique);
    }

    fn panicked(&self) {
        self.service.panicked();
    }

    fn recorder(&self) -> &stats::Recorder {
        self.service.recorder()
    }
}

impl Handle {
    pub fn fs(&self) -> &Fs {
        self.shared.service.fs()
    }

    pub fn mount_point(&self) -> &Path {
        self.shared.mount_point.path()
    }

    /// Major and minor number of the mount's device, as in /proc/self/mountinfo; an error if it was gone before it was served.
    pub fn device(&self) -> io::Result<&str> {
        self.shared.mount_point.device()
    }

    /// The mount as the kernel had it when it was made; an error as for [`Handle::device`].
    pub fn entry(&self) -> io::Result<&mounts::Entry> {
        self.shared.mount_point.entry()
    }

    /// As what the kernel has it.
    pub fn kind(&self) -> &Kind {
        self.shared.service.kind()
    }

    /// Has this done once the volume is closed. Where umount(2) waits for us, it returns after that.
    pub fn on_closed(&self, work: impl FnOnce() + Send + 'static) {
        self.shared.end.lock().on_closed = Some(Box::new(work));
    }

    pub fn stats(&self) -> Stats {
        self.shared.service.stats()
    }

    /// One more file in the hidden directory, if there is one; its content is made when its name is looked up.
    pub fn add_figures(&self, name: &'static str, make: impl Fn(&Stats, &Fs) -> String + Send + Sync + 'static) {
        self.shared.service.add_figures(name, make);
    }

    /// Unmounts. `lazy`: at once, though files are open; they stay usable until they are closed.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        self.shared.mount_point.unmount(lazy)
    }

    /// Looks how the kernel has the mount: after a remount, what it leaves to the server (`sync`) may have changed, and what
    /// was written before it became read-only is to be durable.
    pub fn remounted(&self) -> io::Result<()> {
        let mount = self.entry()?;
        if let Some(mount) = mounts::of(&mount.device, &mount.source)? {
            self.shared.service.remounted(&mount);
        }
        Ok(())
    }

    /// From now on, a line for every request; `None` ends it.
    pub fn set_request_log(&self, log: Option<Box<dyn Write + Send>>) {
        self.shared.service.recorder().set_log(log);
    }
}

/// What a mount depends on, of the volume.
struct Served {
    has_acls: bool,
    /// Who mounts owns the root, as it is shown.
    owns_root: bool,
    /// Requests about directories may wait until all directories were looked at.
    may_wait_long: bool,
}

/// A mount whose INIT is answered, and how its requests come.
struct Connection {
    mount_point: MountPoint,
    kind: Kind,
    transport: Box<dyn Transport>,
    notifier: Notifier,
    agreement: Agreement,
}

impl Connection {
    fn new(path: &Path, options: &Options, served: Served) -> Result<Self, MountError> {
        let Served { has_acls, owns_root, may_wait_long } = served;
        let writeback = options.writeback && !options.direct_io;
        let queues = match options.transport {
            // A rename waits there for what the kernel sends, in a place of a queue that may have no other.
            TransportChoice::Ring if writeback => {
                return Err(MountError::Option {
                    option: "writeback".into(),
                    reason: "takes the classic transport; leave out transport=ring".into(),
                });
            }
            // Nor has the ring threads beside those that serve: two requests that wait would keep all others of a processor waiting.
            TransportChoice::Auto if writeback || may_wait_long => None,
            TransportChoice::Ring => Some(Queues::build().map_err(MountError::Ring)?),
            TransportChoice::Auto => Queues::build().ok(),
            TransportChoice::Classic => None,
        };
        let wishes = Wishes::new(options, has_acls, owns_root, queues.is_some());
        let (mount_point, device, kind) = MountPoint::mount(path, options)?;
        let start = || {
            let agreement = shake_hands(&device, wishes)?;
            Ok((agreement, device.notifier().map_err(MountError::Device)?))
        };
        match start() {
            Ok((agreement, notifier)) => {
                let transport: Box<dyn Transport> = match queues.filter(|_| agreement.ring) {
                    Some(queues) => Box::new(Uring::new(device, queues, options.beside)),
                    None => Box::new(Classic::new(device, options.threads, options.beside)),
                };
                Ok(Self { mount_point, kind, transport, notifier, agreement })
            }
            Err(error) => {
                // First, or the unmount would wait for an answer.
                drop(device);
                let _ = mount_point.unmount(true);
                Err(error)
            }
        }
    }
}

/// Answers INIT, the first request.
fn shake_hands(device: &Device, wishes: Wishes) -> Result<Agreement, MountError> {
    let mut buf = vec![0; transport::BUFFER_SIZE];
    loop {
        let len = match device.receive(&mut buf).map_err(MountError::Device)? {
            Message::Bytes(len) => len,
            Message::Nothing => continue,
            Message::Gone => return Err(MountError::Device(io::ErrorKind::NotConnected.into())),
        };
        let (header, theirs) = match decode(&buf[..len], Dialect::default()) {
            Ok(Request { header, operation: Operation::Init(theirs) }) => (header, theirs),
            // Nothing comes before INIT.
            _ => return Err(MountError::Device(io::ErrorKind::InvalidData.into())),
        };
        let (major, minor) = (theirs.major, theirs.minor);
        if major < wire::MAJOR || major == wire::MAJOR && minor < wire::MINOR_MIN {
            return Err(MountError::Protocol { major, minor });
        }
        // A newer major version asks again when told which one we speak.
        let (answer, agreement) = negotiate(&theirs, wishes);
        let head =
            OutHeader { len: (size_of::<OutHeader>() + size_of_val(&answer)) as u32, error: 0, unique: header.unique };
        device.send(&[head.as_bytes(), answer.as_bytes()].concat()).map_err(MountError::Device)?;
        if major == wire::MAJOR {
            return Ok(agreement);
        }
    }
}
