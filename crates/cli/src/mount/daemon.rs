//! The process that has a volume open and mounted, from opening to closing.

use super::background::BackgroundCheck;
use super::control::{self, Listener, Mounted, Status};
use super::detach;
use super::log::{Level, Log};
use super::options::Settings;
use super::prometheus;
use super::stats::{self, Figures, kind_text};
use super::users;
use crate::failure::{At, Failure, host_error, image_name};
use crate::interrupt::{self, Interrupted};
use crate::limits;
use crate::volume::Guard;
use crate::volume::device::explain_open;
use anyhow::Result;
use myriad_device::{Access, BlockDevice, FileDevice, FileOptions, OpenError};
use myriad_engine::{Error, Fs};
use myriad_fuse::{Handle, mounts};
use rustix::fs::Mode;
use rustix::io::Errno;
use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// What is to be mounted.
pub struct Job {
    /// Both absolute; nothing here depends on the working directory.
    pub image: PathBuf,
    pub mount_point: PathBuf,
    pub settings: Settings,
    /// Somebody waits for word that the mount is live, and then wants to hear no more.
    pub is_detached: bool,
    pub least: Level,
}

/// Files that a daemon has open at least: the image, the kernel's queues, its control socket, and whoever asks by it.
const OPEN_FILES_MIN: u64 = 64;

/// Refuses to serve with so few descriptors that nobody could ask the daemon anything, not even to unmount.
fn check_open_files() -> Result<()> {
    match limits::raise_open_files() {
        Some(most) if most < OPEN_FILES_MIN => {
            let what = format!("the limit of open files is {most}, and a daemon needs {OPEN_FILES_MIN}");
            Err(Failure::new("mount", what, "raise it (ulimit -n)").into())
        }
        _ => Ok(()),
    }
}

/// Damaged blocks that are told of; a disk that is failing as a whole must not fill the log.
const DAMAGE_MAX: usize = 1000;

/// Has each damaged block of data told of once.
fn tell_damage(fs: &Fs, name: String, log: Arc<Log>) {
    let told = Mutex::new(HashSet::new());
    fs.on_damaged_data(move |damage| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < DAMAGE_MAX && told.insert(damage.block) {
            log.error(&format!("{name}: {damage}; myriad fsck -n --scrub names the files that are damaged"));
        }
    });
}

/// Has it told when the host has no room for the image, and when it has again.
fn tell_host_full(fs: &Fs, name: String, log: Arc<Log>) {
    fs.on_host_full(move |is_full| {
        if is_full {
            log.error(&format!(
                "{name}: the file system of the host that holds the image has no room; nothing becomes durable until there is: \
                 changes are kept in memory, and refused when that is full"
            ));
        } else {
            log.info(&format!("{name}: the host has room for the image again; nothing was lost"));
        }
    });
}

/// Mounts the volume and serves it until it is unmounted.
pub fn run(job: Job) -> Result<()> {
    let Job { image, mount_point, mut settings, is_detached, least } = job;
    // What it makes is nobody else's to read, and no directory is kept from being unmounted.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    std::env::set_current_dir("/").at("/")?;
    check_open_files()?;
    let log = Arc::new(Log::stderr(least));
    if let Some(file) = &settings.log_file {
        Guard::Always.check(file)?;
        log.to_file(file).at(image_name(file))?;
    }
    let access = if settings.engine.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let options = FileOptions { offset: settings.offset, length: settings.size_limit, ..FileOptions::default() };
    let device = open(&image, access, &options)?;
    let log_device = settings.engine.log_device.as_deref();
    let log_device = log_device.map(|path| open(path, access, &FileOptions::default())).transpose()?;
    let listener = Listener::bind(&image, settings.offset)?;
    let shared = |device: &Arc<FileDevice>| Arc::clone(device) as Arc<dyn BlockDevice>;
    let fs = Fs::open_device(shared(&device), log_device.as_ref().map(shared), settings.engine.clone());
    let fs = fs.map_err(|error| match error {
        Error::Option(refused) if refused.option == "log-device" && settings.engine.log_device.is_none() => {
            let what = "its log lies on a device of its own";
            Failure::new(image_name(&image), what, "name that device with -o logdev=DEVICE").into()
        }
        error => Err::<(), _>(error).at(image_name(&image)).expect_err("an error stays one"),
    })?;
    tell_damage(&fs, image_name(&image), Arc::clone(&log));
    tell_host_full(&fs, image_name(&image), Arc::clone(&log));
    let info = fs.info();
    settings.fuse.read_only = info.read_only;
    let shows_otherwise = shown_otherwise(&settings.fuse, &fs);
    if settings.debug {
        settings.fuse.request_log = Some(Box::new(io::stderr()));
    }
    let mount = myriad_fuse::mount(fs, &mount_point, settings.fuse)
        .map_err(|error| Failure::new(image_name(&image), error.to_string(), ""))?;
    let handle = mount.handle();
    // All is home then, and others may have the image. If it cannot be closed, a request that goes on may still write, until the
    // process ends and its locks with it.
    handle.on_closed({
        let (devices, log) = ([Some(Arc::clone(&device)), log_device], Arc::clone(&log));
        move || {
            for device in devices.into_iter().flatten() {
                if let Err(error) = device.unlock() {
                    log.warning(&error.to_string());
                }
            }
        }
    });
    let made =
        handle.entry().map_err(|error| Failure::new(image_name(&mount_point), error.to_string(), "mount it again"))?;
    let status = Status {
        pid: std::process::id(),
        image: image.clone(),
        offset: settings.offset,
        mount_point: mount_point.clone(),
        device: made.device.clone(),
        source: made.source.clone(),
        read_only: info.read_only,
        shows_otherwise,
    };
    let about = status.clone();
    handle.add_figures("stats.json", move |stats, fs| format!("{}\n", stats::collect(&about, stats, fs)));
    let about = status.clone();
    handle.add_figures("stats.prom", move |stats, fs| {
        prometheus::text(&Figures::new(stats::collect(&about, stats, fs)), &about)
    });
    let server = listener
        .serve(Mounted { status, handle: handle.clone(), device: Arc::clone(&device), is_logging: settings.debug })
        .at("control")?;
    let kind = handle.kind().clone();
    let (volume, device_number) = (handle.fs().clone(), made.device.clone());
    unmount_on_signal(handle, &mount_point, Arc::clone(&log)).at("signals")?;
    if is_detached {
        detach::report_ready(|| {
            if settings.log_file.is_none() {
                log.to_system();
            }
        })
        .at("detaching")?;
    }
    let name = image_name(&image);
    if info.recovered {
        log.info(&format!("{name}: was not closed cleanly; recovered"));
    }
    let as_what = kind_text(kind.name(), kind.why_no_sync().as_deref());
    log.info(&format!("{name}: mounted on {} as {as_what}", image_name(&mount_point)));
    let background =
        BackgroundCheck::begin(&volume, settings.background_check, &device_number, name.clone(), Arc::clone(&log));
    let served = mount.serve().map_err(|error| error.to_string());
    drop(background);
    if let Some(why) = volume.shut_down_reason() {
        log.error(&format!("{name}: was shut down: {why}"));
    }
    match &served {
        Ok(()) => log.info(&format!("{name}: unmounted and closed")),
        Err(error) => log.error(&format!("{name}: {error}; the next mount recovers it")),
    }
    server.announce(served.clone());
    served.map_err(|error| Failure::new(name, error, "the next mount recovers it").into())
}

/// Opens and locks. One that is just being closed by its daemon is waited for.
fn open(path: &Path, access: Access, options: &FileOptions) -> Result<Arc<FileDevice>> {
    std::fs::metadata(path).at(image_name(path))?;
    let device = FileDevice::open_with(path, access, options).map_err(explain_open)?;
    let lock = || match access {
        Access::ReadOnly => device.lock_shared(),
        Access::ReadWrite => device.lock_exclusive(),
    };
    match lock() {
        Err(OpenError::InUse(_)) => {
            control::await_closing(path, Interrupted::check)?;
            lock()
        }
        other => other,
    }
    .map_err(explain_open)?;
    Ok(Arc::new(device))
}

/// The options by which a mount shows files otherwise than they are (`Status::shows_otherwise`).
fn shown_otherwise(options: &myriad_fuse::Options, fs: &Fs) -> Vec<String> {
    let all = [
        ("noxattr", options.no_xattr && fs.has_xattrs()),
        ("uid", options.uid.is_some()),
        ("gid", options.gid.is_some()),
        ("umask", options.umask.is_some()),
    ];
    all.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.to_owned()).collect()
}

/// SIGTERM, SIGINT and SIGHUP unmount. While files are open the mount goes out of sight at once and the daemon stays until they
/// are closed. Each further signal tries again, and makes durable what was written since: what could not be unmounted a
/// week ago may be by now, and only SIGKILL is meant to lose anything.
fn unmount_on_signal(handle: Handle, mount_point: &Path, log: Arc<Log>) -> io::Result<()> {
    let (mut signals, sender) = UnixStream::pair()?;
    for signal in interrupt::signals() {
        signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
    }
    interrupt::never_abruptly();
    // One that came while the volume was opened.
    if Interrupted::received().is_some() {
        (&sender).write_all(&[0])?;
    }
    let place = image_name(mount_point);
    let wait = move || {
        while signals.read_exact(&mut [0]).is_ok() {
            log.info(&format!("{place}: asked to end by a signal"));
            unmount_and_stay(&handle, &place, &log);
        }
    };
    thread::Builder::new().name("myriad-signals".into()).spawn(wait).map(|_| ())
}

/// Takes the mount out of sight. Serving ends by itself when nobody uses it any more.
fn unmount_and_stay(handle: &Handle, place: &str, log: &Log) {
    match handle.fs().sync() {
        // What is left to do is being done.
        Err(Error::Closed) => return,
        Err(error) => log.error(&format!("{place}: {error}")),
        Ok(()) => {}
    }
    let result = match handle.unmount(false) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
            let users = mounts::mounted_at(handle.mount_point()).ok().flatten();
            let users = users.map(|mount| users::list_users(&users::users(&mount))).unwrap_or_default();
            log.warning(&format!("{place}: still in use by {users}; its daemon ends with them"));
            handle.unmount(true)
        }
        // By an earlier signal, or by somebody else.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
            log.info(&format!("{place}: unmounted already; its daemon ends with the last user"));
            Ok(())
        }
        result => result,
    };
    if let Err(error) = result {
        log.error(&format!("{place}: cannot be unmounted: {}", host_error(&error)));
    }
}
