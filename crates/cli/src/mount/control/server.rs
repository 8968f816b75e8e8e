//! The daemon's end: a thread that accepts, and one for each connection, of which there is a greatest number.

use super::descriptor::Receiver;
use super::place::{ImageName, make_directory};
use super::protocol::{CROWDED, IS_MOUNTED, REQUEST_MAX, Request, Status, read_line, reply};
use crate::failure::{At, image_name};
use crate::mount::moment::device_number;
use crate::mount::stats;
use crate::verbs::info::Facts;
use crate::verbs::trim::trim_volume;
use crate::verbs::tune::{tune_volume, values};
use anyhow::Result;
use myriad_device::FileDevice;
use myriad_fuse::{Handle, mounts};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::geteuid;
use serde_json::{Value, json};
use std::fs::{File, Permissions};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Connections at a time. A watcher keeps its connection but no thread.
const CONNECTIONS_MAX: usize = 32;
/// Watchers at a time.
const WATCHERS_MAX: usize = 256;
/// How long a peer may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a daemon answers for.
pub struct Mounted {
    pub status: Status,
    pub handle: Handle,
    pub device: Arc<FileDevice>,
    /// Requests are logged elsewhere already.
    pub is_logging: bool,
}

impl Mounted {
    /// Whoever asks may not see the mount: it may be in another mount namespace than his.
    fn status(&self) -> Result<Value, String> {
        let mut status = self.status.json();
        status[IS_MOUNTED] =
            mounts::of(&self.status.device, &self.status.source).map_err(|error| error.to_string())?.is_some().into();
        Ok(status)
    }

    fn info(&self) -> Result<Value> {
        let facts = Facts::of_mounted(&self.status.image, &self.device, &self.handle)?;
        Ok(json!({ "json": facts.json(), "lines": facts.lines() }))
    }
}

/// A socket on which nobody is answered yet.
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// For the volume at `offset` of an image.
    pub fn bind(image: &Path, offset: u64) -> Result<Self> {
        let name = ImageName::of(image).at(image_name(image))?;
        let directory = make_directory()?;
        name.clear_left_behind(&directory);
        let path = directory.join(name.socket(offset));
        // It gets its name, over whatever a process of the same number left behind, when it can be connected to.
        let nameless = path.with_extension("new");
        match std::fs::remove_file(&nameless) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).at(image_name(&nameless)),
            _ => {}
        }
        let socket = UnixListener::bind(&nameless).at(image_name(&nameless))?;
        // Its directory is closed to others in any case.
        std::fs::set_permissions(&nameless, Permissions::from_mode(0o600)).at(image_name(&nameless))?;
        std::fs::rename(&nameless, &path).at(image_name(&path))?;
        Ok(Self { socket, path })
    }

    /// Answers from here on.
    pub fn serve(self, mounted: Mounted) -> io::Result<Server> {
        let shared = Arc::new(Shared {
            is_logging: AtomicBool::new(mounted.is_logging),
            mounted,
            connections: AtomicUsize::new(0),
            watchers: Mutex::new(Watchers::Waiting(Vec::new())),
        });
        let server = Server { shared: Arc::clone(&shared), path: self.path };
        let accept = move || {
            for stream in self.socket.incoming() {
                match stream {
                    Ok(stream) => shared.welcome(stream),
                    // Out of descriptors, most likely: better slow than busy.
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        thread::Builder::new().name("myriad-control".into()).spawn(accept)?;
        Ok(server)
    }
}

/// A socket in use.
pub struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
}

impl Server {
    /// The volume is closed, or could not be: tells all who watch, and whoever asks from here on.
    pub fn announce(self, result: std::result::Result<(), String>) {
        // It may be gone with the host's directory for such files.
        let _ = std::fs::remove_file(&self.path);
        let line = reply(result.map(|()| json!({})));
        let mut watchers = self.shared.watchers.lock().expect("nobody panics holding it");
        if let Watchers::Waiting(waiting) = std::mem::replace(&mut *watchers, Watchers::Told(line.clone())) {
            for mut watcher in waiting {
                // Who left does not want to know.
                let _ = watcher.write_all(line.as_bytes());
            }
        }
    }
}

struct Shared {
    mounted: Mounted,
    connections: AtomicUsize,
    watchers: Mutex<Watchers>,
    is_logging: AtomicBool,
}

/// Those who asked to be told when the volume is closed.
enum Watchers {
    Waiting(Vec<UnixStream>),
    /// The reply, once it is closed. Between that and the end of the process others may still ask.
    Told(String),
}

impl Watchers {
    /// Whether one more may wait. Those who do not wait any more, as after an unmount of what is in use, make room.
    fn have_room(&mut self) -> bool {
        let Self::Waiting(waiting) = self else { return true };
        waiting.retain(|watcher| !has_hung_up(watcher));
        waiting.len() < WATCHERS_MAX
    }
}

impl Shared {
    fn welcome(self: &Arc<Self>, mut stream: UnixStream) {
        let peer = rustix::net::sockopt::socket_peercred(&stream);
        if !peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid()) {
            return;
        }
        if self.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            let _ = stream.write_all(reply(Err(CROWDED.into())).as_bytes());
            return;
        }
        let shared = Arc::clone(self);
        let answer = move || {
            // Whoever hangs up early has no use for an error.
            let _ = shared.answer(stream);
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        };
        if thread::Builder::new().name("myriad-answer".into()).spawn(answer).is_err() {
            self.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut reader = BufReader::new(Receiver::new(&stream));
        let request = match read_line(&mut reader, REQUEST_MAX) {
            Ok(line) => Request::parse(&line),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(error.to_string()),
            Err(error) => return Err(error),
        };
        let file = reader.into_inner().file;
        let answer = match request {
            Ok(Request::Status) => self.mounted.status(),
            Ok(Request::Stats) => {
                let Mounted { status, handle, .. } = &self.mounted;
                Ok(stats::collect(status, &handle.stats(), handle.fs()))
            }
            Ok(Request::Info) => self.mounted.info().map_err(|error| error.to_string()),
            Ok(Request::Sync) => self.mounted.handle.fs().sync().map(|()| json!({})).map_err(|error| error.to_string()),
            Ok(Request::Trim { minimum }) => trim_volume(self.mounted.handle.fs(), minimum)
                .map(|trimmed| json!({ "trimmed": trimmed }))
                .map_err(|error| error.to_string()),
            Ok(Request::Tune { settings }) => {
                let fs = self.mounted.handle.fs();
                tune_volume(fs, &settings).map(|()| values(fs))
            }
            Ok(Request::Remounted) => {
                self.mounted.handle.remounted().map(|()| json!({})).map_err(|error| error.to_string())
            }
            Ok(Request::Watch) => return self.watch(stream),
            Ok(Request::Log) => return self.log(stream),
            Ok(Request::Hold) => return self.hold(stream, file),
            Err(error) => Err(error),
        };
        stream.write_all(reply(answer).as_bytes())
    }

    fn watch(&self, mut stream: UnixStream) -> io::Result<()> {
        let mut watchers = self.watchers.lock().expect("nobody panics holding it");
        if !watchers.have_room() {
            return stream.write_all(reply(Err("too many commands wait for the volume".into())).as_bytes());
        }
        // Under the lock, so that the second reply cannot overtake it.
        stream.write_all(reply(Ok(json!({}))).as_bytes())?;
        match &mut *watchers {
            Watchers::Waiting(waiting) => waiting.push(stream),
            Watchers::Told(line) => stream.write_all(line.as_bytes())?,
        }
        Ok(())
    }

    /// Holds the state of the moment until the peer hangs up, also by being killed.
    fn hold(&self, mut stream: UnixStream, file: Option<File>) -> io::Result<()> {
        let held = match file {
            // Writing to it would wait for the very checkpoint that writes to it.
            Some(file) if device_number(&file)? == self.mounted.status.device => {
                Err("the file for before-images lies on the volume itself; name another directory in TMPDIR".into())
            }
            Some(file) => self.mounted.handle.fs().hold_moment(file).map_err(|error| error.to_string()),
            None => Err("no file for before-images came with the request".into()),
        };
        let held = match held {
            Ok(held) => held,
            Err(error) => return stream.write_all(reply(Err(error)).as_bytes()),
        };
        let block_size = self.mounted.handle.fs().info().block_size;
        let value = json!({ "log_position": held.lsn.0, "time": held.time, "block_size": block_size });
        stream.write_all(reply(Ok(value)).as_bytes())?;
        let result = wait_for_end(&mut stream);
        // Before the connection: a peer that waits for its end may ask for the next moment.
        drop(held);
        result
    }

    /// Sends a line for each request of the kernel until the peer hangs up.
    fn log(&self, mut stream: UnixStream) -> io::Result<()> {
        if self.is_logging.swap(true, Ordering::AcqRel) {
            return stream.write_all(reply(Err("somebody else reads the log of requests".into())).as_bytes());
        }
        let result = (|| {
            stream.write_all(reply(Ok(json!({}))).as_bytes())?;
            let sink = stream.try_clone()?;
            sink.set_nonblocking(true)?;
            self.mounted.handle.set_request_log(Some(Box::new(Lossy::new(sink))));
            wait_for_end(&mut stream)
        })();
        self.mounted.handle.set_request_log(None);
        self.is_logging.store(false, Ordering::Release);
        result
    }
}

/// Whether the peer, which has nothing more to say, has closed its end.
fn has_hung_up(stream: &UnixStream) -> bool {
    match recv(stream, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, length)) => length == 0,
        Err(Errno::AGAIN | Errno::INTR) => false,
        // It was reset.
        Err(_) => true,
    }
}

/// Returns once the peer has closed its end.
fn wait_for_end(stream: &mut UnixStream) -> io::Result<()> {
    loop {
        match stream.read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // The other half of it does not block, so neither does this one.
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(50)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A writer of lines that never waits: a reader who is too slow loses lines, and is told how many.
struct Lossy<W> {
    sink: W,
    /// What is left of a line that was written in part.
    rest: Vec<u8>,
    lost: u64,
}

impl<W: Write> Lossy<W> {
    fn new(sink: W) -> Self {
        Self { sink, rest: Vec::new(), lost: 0 }
    }

    /// Writes what is left; false if not all of it went.
    fn drain(&mut self) -> io::Result<bool> {
        while !self.rest.is_empty() {
            match self.sink.write(&self.rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.rest.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl<W: Write> Write for Lossy<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.drain()? {
            self.lost += line.iter().filter(|&&byte| byte == b'\n').count() as u64;
            return Ok(line.len());
        }
        if self.lost > 0 {
            self.rest = format!("# {} lines lost\n", std::mem::take(&mut self.lost)).into_bytes();
        }
        self.rest.extend_from_slice(line);
        self.drain()?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time while there is room.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room).min(3);
            if count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_has_gone_makes_room_for_who_wants_to_wait() {
        let (kept, peers): (Vec<_>, Vec<_>) = (0..WATCHERS_MAX).map(|_| UnixStream::pair().unwrap()).unzip();
        let mut watchers = Watchers::Waiting(kept);
        assert!(!watchers.have_room());
        drop(peers);
        assert!(watchers.have_room());
        assert!(matches!(watchers, Watchers::Waiting(waiting) if waiting.is_empty()));
        assert!(Watchers::Told(String::new()).have_room());
    }

    #[test]
    fn a_slow_reader_loses_whole_lines_and_hears_of_it() {
        let mut lossy = Lossy::new(Narrow { taken: Vec::new(), room: 8 });
        for line in ["one\n", "three\n", "five\nsix\n"] {
            lossy.write_all(line.as_bytes()).unwrap();
        }
        lossy.sink.room = 1000;
        lossy.write_all(b"seven\n").unwrap();
        assert_eq!(String::from_utf8(lossy.sink.taken).unwrap(), "one\nthree\n# 2 lines lost\nseven\n");
    }
}
