//! The command's end: finding daemons and asking them.

use super::descriptor;
use super::place::{ImageName, PATIENCE, connect, pid_of, sockets};
use super::protocol::{CROWDED, IS_MOUNTED, REPLY_MAX, Request, Status, parse_reply, read_line};
use crate::failure::{At, Failure, host_error, image_name};
use crate::mount::below::below_mount;
use crate::volume::place::unreachable_name;
use anyhow::Result;
use myriad_fuse::{mounts, real_path};
use rustix::process::geteuid;
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Between two tries of one that has no room for a further connection.
const PAUSE: Duration = Duration::from_millis(50);

/// A daemon that has answered.
pub struct Daemon {
    socket: PathBuf,
    pub status: Status,
}

/// What a daemon says after its reply.
pub type Stream = BufReader<UnixStream>;

/// What a daemon answers, or refuses with; `None` if there is none.
type Answer<T> = Option<Result<T, String>>;

impl Daemon {
    /// `None` if nobody of ours listens there: a socket left behind by a daemon that was killed, or another user's.
    fn at_socket(socket: PathBuf) -> Result<Option<Self>> {
        let Some((value, _)) = exchange(&socket, Request::Status)? else { return Ok(None) };
        let status = Status::parse(&value).ok_or_else(|| garbled(&socket, "not a status"))?;
        Ok(Some(Self { socket, status }))
    }

    pub fn ask(&self, request: Request) -> Result<Value> {
        Ok(self.follow(request)?.0)
    }

    /// The reply, and the connection on which more follows.
    pub fn follow(&self, request: Request) -> Result<(Value, Stream)> {
        exchange(&self.socket, request)?.ok_or_else(|| self.gone())
    }

    /// The connection on which it will say that it has closed the volume; `None` if it lets nobody else wait for that.
    pub fn watch(&self) -> Result<Option<Stream>> {
        let line = Request::Watch.line();
        let answer = until_let_in(|| Ok(()), || exchange_once(&self.socket, &line))?;
        let answer = answer.ok_or_else(|| self.gone())?;
        Ok(answer.ok().map(|(_, stream)| stream))
    }

    /// Has the daemon hold the state of this moment for as long as the connection lasts. Before-images go to `file`.
    pub fn hold(&self, file: &File, keep_waiting: impl Fn() -> Result<()>) -> Result<(Value, UnixStream)> {
        let send = |stream: &mut UnixStream| descriptor::send(stream, Request::Hold.line().as_bytes(), file);
        // A checkpoint that is being made comes first, however long it takes.
        self.await_answer(send, keep_waiting)
    }

    /// As [`Self::ask`], of what may take the daemon long.
    pub fn ask_for_long(&self, request: Request, keep_waiting: impl Fn() -> Result<()>) -> Result<Value> {
        let line = request.line();
        Ok(self.await_answer(|stream| stream.write_all(line.as_bytes()), keep_waiting)?.0)
    }

    /// Makes all of the volume durable. `kept_back`: what came of asking the kernel for what it had gathered, which is to be asked first; it does not hand the
    /// call on. The daemon says more of an error: to the kernel a full host is ENOSPC, as a full volume is.
    pub fn sync(&self, kept_back: myriad_engine::Result<()>, keep_waiting: impl Fn() -> Result<()>) -> Result<()> {
        self.ask_for_long(Request::Sync, keep_waiting)?;
        kept_back.at(image_name(&self.status.mount_point))
    }

    fn await_answer(
        &self,
        send: impl Fn(&mut UnixStream) -> io::Result<()>,
        keep_waiting: impl Fn() -> Result<()>,
    ) -> Result<(Value, UnixStream)> {
        let failed = |error: io::Error| unanswered(&self.socket, &error);
        let answer = until_let_in(&keep_waiting, || {
            let Some(mut stream) = connect_to_ours(&self.socket)? else { return Ok(None) };
            unless_refused(send(&mut stream)).map_err(failed)?;
            let kept = stream.try_clone().map_err(failed)?;
            let answer = await_reply(BufReader::new(stream), &keep_waiting)?;
            Ok(answer.map(|answer| answer.map(|value| (value, kept))))
        });
        match answer? {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(what)) => Err(Failure::new(image_name(&self.status.image), what, "").into()),
            None => Err(self.gone()),
        }
    }

    /// Whether nobody answers for it any more.
    pub fn has_gone(&self) -> Result<bool> {
        Ok(connect_to_ours(&self.socket)?.is_none())
    }

    fn gone(&self) -> anyhow::Error {
        let place = image_name(&self.status.mount_point);
        Failure::new(place, format!("process {}, which had it mounted, has gone", self.status.pid), "").into()
    }

    /// Whether the kernel still has its mount; after an unmount a daemon takes its time to close the volume.
    pub fn is_mounted(&self) -> Result<bool> {
        Ok(self.mount()?.is_some())
    }

    /// Whether it serves a mount that cannot be seen from here, in a mount namespace of its own.
    pub fn is_elsewhere(&self) -> Result<bool> {
        if self.is_mounted()? {
            return Ok(false);
        }
        // Asked now: since it was found, it may have been unmounted here.
        let answer = exchange(&self.socket, Request::Status)?;
        Ok(answer.is_some_and(|(status, _)| status[IS_MOUNTED] == true))
    }

    /// What to tell whoever cannot see its mount from here.
    fn elsewhere(&self, image: &Path) -> anyhow::Error {
        let Status { pid, mount_point, .. } = &self.status;
        let place = image_name(mount_point);
        let what = format!("mounted on {place}, in another mount namespace, by process {pid}");
        Failure::new(image_name(image), what, format!("unmount it there, or by kill {pid}")).into()
    }

    /// Its mount, while the kernel has it.
    pub fn mount(&self) -> Result<Option<mounts::Entry>> {
        mounts::of(&self.status.device, &self.status.source).at("/proc/self/mountinfo")
    }
}

/// A connection to whoever listens there, if that is one of us.
fn connect_to_ours(socket: &Path) -> Result<Option<UnixStream>> {
    let stream = match connect(socket) {
        Ok(stream) => stream,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied => {
                    Ok(None)
                }
                _ => Err(unanswered(socket, &error)),
            };
        }
    };
    let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(io::Error::from).at(image_name(socket))?;
    // Another user's answer could lead root's hand anywhere.
    if !peer.uid.is_root() && peer.uid != geteuid() {
        return Ok(None);
    }
    Ok(Some(stream))
}

fn exchange(socket: &Path, request: Request) -> Result<Option<(Value, Stream)>> {
    let line = request.line();
    match until_let_in(|| Ok(()), || exchange_once(socket, &line))? {
        None => Ok(None),
        Some(Ok(answer)) => Ok(Some(answer)),
        Some(Err(what)) => Err(Failure::new(image_name(socket), what, "").into()),
    }
}

/// Asks again for a while as long as the daemon has its greatest number of connections: others are about to end.
fn until_let_in<T>(keep_waiting: impl Fn() -> Result<()>, ask: impl Fn() -> Result<Answer<T>>) -> Result<Answer<T>> {
    let end = Instant::now() + PATIENCE;
    loop {
        match ask()? {
            Some(Err(what)) if what == CROWDED && Instant::now() < end => {
                keep_waiting()?;
                thread::sleep(PAUSE);
            }
            answer => return Ok(answer),
        }
    }
}

/// Of a request that was not read: whoever has hung up may have said why before.
fn unless_refused(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent,
    }
}

fn exchange_once(socket: &Path, line: &str) -> Result<Answer<(Value, Stream)>> {
    let Some(stream) = connect_to_ours(socket)? else { return Ok(None) };
    let mut stream = BufReader::new(stream);
    let sent = unless_refused(stream.get_mut().write_all(line.as_bytes()));
    let answer = sent.and_then(|()| next_line(&mut stream));
    let answer = match answer {
        // It was ending as we asked.
        Ok(answer) if answer.is_empty() => return Ok(None),
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            return Ok(None);
        }
        answer => answer.map_err(|error| unanswered(socket, &error))?,
    };
    let answer = parse_reply(&answer).map_err(|what| garbled(socket, &what))?;
    Ok(Some(answer.map(|value| (value, stream))))
}

fn next_line(stream: &mut Stream) -> io::Result<Vec<u8>> {
    read_line(stream, REPLY_MAX)
}

/// The reply that follows the first one, however long it takes; `None` if the daemon has gone without it.
pub fn await_reply(mut stream: Stream, keep_waiting: impl Fn() -> Result<()>) -> Result<Option<Result<Value, String>>> {
    // Short, so that a signal is seen.
    stream.get_ref().set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut line = Vec::new();
    loop {
        keep_waiting()?;
        let room = REPLY_MAX.saturating_sub(line.len() as u64);
        match (&mut stream).take(room).read_until(b'\n', &mut line) {
            Ok(_) if line.is_empty() => return Ok(None),
            Ok(_) => return Ok(parse_reply(&line).ok()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // It was killed.
            Err(_) => return Ok(None),
        }
    }
}

fn unanswered(socket: &Path, error: &io::Error) -> anyhow::Error {
    let process = pid_of(socket).map_or_else(|| "its process".to_owned(), |pid| format!("process {pid}"));
    let what = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the daemon does not answer".to_owned(),
        _ => host_error(error),
    };
    Failure::new(image_name(socket), what, format!("see what {process} is doing")).into()
}

fn garbled(socket: &Path, what: &str) -> anyhow::Error {
    let next = "use the version of myriad that mounted the volume";
    Failure::new(image_name(socket), format!("an answer that is none: {what}"), next).into()
}

/// Whoever listens: the daemons that answer, and an error for each that does not.
fn ask_all(image: Option<&ImageName>) -> Vec<Result<Daemon>> {
    sockets(image).into_iter().filter_map(|socket| Daemon::at_socket(socket).transpose()).collect()
}

/// Every daemon of this user and of root, in the order of their sockets. One that does not answer is an error of its own, for it may
/// have what the others have not.
pub fn all() -> Vec<Result<Daemon>> {
    ask_all(None)
}

/// Mounts of ours whose daemon was killed: the kernel has them yet, and on a socket that it left behind nobody listens. `answering`: the
/// devices of mounts whose daemons are there. The mounts themselves are not asked: one whose daemon is stopped would have us wait.
pub fn dead(answering: &[String]) -> Result<Vec<mounts::Entry>> {
    let has_died = |mount: &mounts::Entry| {
        let sockets = ImageName::of(&mount.source).map(|image| sockets(Some(&image))).unwrap_or_default();
        sockets.iter().any(|socket| matches!(connect_to_ours(socket), Ok(None)))
    };
    let mounts = mounts::mounts().at("/proc/self/mountinfo")?.into_iter();
    Ok(mounts.filter(|mount| mount.is_ours() && !answering.contains(&mount.device) && has_died(mount)).collect())
}

/// The daemons that have volumes in an image open; an error only if none of them answers.
pub fn of_image(image: &Path) -> Result<Vec<Daemon>> {
    let image = ImageName::of(image).map_err(|error| unreachable_name(image, error))?;
    let (mut daemons, mut error) = (Vec::new(), None);
    for answer in ask_all(Some(&image)) {
        match answer {
            Ok(daemon) => daemons.push(daemon),
            Err(failed) => error = error.or(Some(failed)),
        }
    }
    match error {
        Some(error) if daemons.is_empty() => Err(error),
        _ => Ok(daemons),
    }
}

/// The daemon that has the volume at the beginning of an image mounted; of a directory, the one that is mounted there.
pub fn mount_of(image: &Path) -> Result<Option<Daemon>> {
    if image.is_dir() {
        return mounted_on(image);
    }
    for daemon in of_image(image)? {
        if daemon.status.offset == 0 && daemon.is_mounted()? {
            return Ok(Some(daemon));
        }
    }
    Ok(None)
}

/// The daemon of a mount of ours, if it can be asked: one of those that have the image, so that nobody waits for a daemon of another
/// one. Only if none of them has this mount may it be any: a source may be another name (`fsname=`), and images are renamed.
pub fn of_mount(mount: &mounts::Entry) -> Result<Option<Daemon>> {
    let image = ImageName::of(&mount.source);
    let of_image = image.map(|image| sockets(Some(&image))).unwrap_or_default();
    let daemon = first_of_mount(mount, &of_image);
    // Where nobody listens any more, a daemon of the image was killed.
    if !matches!(daemon, Ok(None)) || of_image.iter().any(|socket| matches!(connect_to_ours(socket), Ok(None))) {
        return daemon;
    }
    let mut others = sockets(None);
    others.retain(|socket| !of_image.contains(socket));
    first_of_mount(mount, &others)
}

/// The first of these daemons that has a mount. If none says that it has, one that does not answer may be the one.
fn first_of_mount(mount: &mounts::Entry, sockets: &[PathBuf]) -> Result<Option<Daemon>> {
    let mut error = None;
    for socket in sockets {
        match Daemon::at_socket(socket.clone()) {
            Ok(Some(daemon)) if daemon.status.is_of(mount) => return Ok(Some(daemon)),
            Ok(_) => {}
            Err(failed) => error = error.or(Some(failed)),
        }
    }
    error.map_or(Ok(None), Err)
}

/// The daemon that has a volume mounted: named by the directory or by its image. `None`: an image that none has.
pub fn of_target(target: &Path) -> Result<Option<Daemon>> {
    let path = real_path(target).at(image_name(target))?;
    if !path.is_dir() {
        return mount_of(&path);
    }
    let next = "name the directory that a volume is mounted on, or its image";
    let not_mounted = |what: String| Failure::new(image_name(target), what, next);
    match mounts::mounted_at(&path).at("/proc/self/mountinfo")? {
        None => Err(inside_mount(target).unwrap_or_else(|| not_mounted("not mounted".into())).into()),
        Some(mount) if !mount.is_ours() => {
            Err(not_mounted(format!("not a Myriad volume but {} is mounted there", mount.fs_type)).into())
        }
        Some(mount) => match of_mount(&mount)? {
            Some(daemon) => Ok(Some(daemon)),
            None => {
                let what = "its daemon does not answer, or is not yours to ask";
                Err(Failure::new(image_name(target), what, "ask as the user who mounted it, or as root").into())
            }
        },
    }
}

fn mounted_on(directory: &Path) -> Result<Option<Daemon>> {
    let path = real_path(directory).at(image_name(directory))?;
    let mount = mounts::mounted_at(&path).at("/proc/self/mountinfo")?;
    let Some(mount) = mount.filter(mounts::Entry::is_ours) else { return Ok(None) };
    match of_mount(&mount)? {
        Some(daemon) => Ok(Some(daemon)),
        None => {
            let what = format!("{} is mounted there by a process that is not found", image_name(&mount.source));
            Err(Failure::new(image_name(directory), what, "ask as the user who mounted it").into())
        }
    }
}

/// Of a file of a mounted volume, where a whole volume is to be named: what that would be.
pub fn inside_mount(path: &Path) -> Option<Failure> {
    let (mount_point, below) = below_mount(path)?;
    let mount_point = image_name(&mount_point);
    let what = format!("lies in the volume that is mounted on {mount_point}");
    (!below.as_os_str().is_empty()).then(|| Failure::new(image_name(path), what, format!("name {mount_point}")))
}

/// An error about an image that is in use says more if a daemon of ours has it mounted.
pub fn or_mounted(image: &Path, error: anyhow::Error) -> anyhow::Error {
    let Ok(daemons) = of_image(image) else { return error };
    let Some(Daemon { status, .. }) = daemons.into_iter().find(|daemon| daemon.is_mounted().unwrap_or(false)) else {
        return or_elsewhere(image, error);
    };
    let mount_point = image_name(&status.mount_point);
    let what = format!("mounted on {mount_point} by process {}", status.pid);
    Failure::new(image_name(image), what, format!("unmount it with myriad umount {mount_point}")).into()
}

/// The same if a daemon has it mounted where it cannot be seen from here.
pub fn or_elsewhere(image: &Path, error: anyhow::Error) -> anyhow::Error {
    let Ok(daemons) = of_image(image) else { return error };
    let elsewhere = daemons.into_iter().find(|daemon| daemon.is_elsewhere().unwrap_or(false));
    elsewhere.map_or(error, |daemon| daemon.elsewhere(image))
}

/// Waits until daemons that have an image open but no longer mounted have closed it.
pub fn await_closing(image: &Path, keep_waiting: impl Fn() -> Result<()>) -> Result<()> {
    for daemon in of_image(image)? {
        // Who is mounted elsewhere may be so for ever.
        if daemon.is_mounted()? || daemon.is_elsewhere()? {
            continue;
        }
        // One that has gone since it was found has closed it.
        if let Some((_, stream)) = exchange(&daemon.socket, Request::Watch)? {
            // Whether it could is the business of whoever unmounted it.
            let _ = await_reply(stream, &keep_waiting)?;
        }
    }
    Ok(())
}
