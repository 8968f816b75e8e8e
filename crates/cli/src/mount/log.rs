//! What a daemon has to tell: to standard error in the foreground, else to the system's log or to a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Where syslogd and journald listen.
const SYSTEM_LOG: &str = "/dev/log";

/// How much a message matters; the numbers are syslog's, of its facility `daemon`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Error = 27,
    Warning = 28,
    Info = 30,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

enum Sink {
    Stderr,
    File(File),
    System(SystemLog),
}

/// The host's log. It may be started, or started anew, after the daemon: then another socket has its name.
struct SystemLog {
    path: PathBuf,
    socket: Option<UnixDatagram>,
}

impl SystemLog {
    fn new(path: &Path) -> Self {
        let mut log = Self { path: path.to_owned(), socket: None };
        // A host without one now may have one later.
        let _ = log.connect();
        log
    }

    fn connect(&mut self) -> io::Result<&UnixDatagram> {
        self.socket = None;
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.path)?;
        // A log that is not read must not hold up the volume.
        socket.set_nonblocking(true)?;
        Ok(self.socket.insert(socket))
    }

    /// As syslog(3): where nobody listens any more, to who listens there now.
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let sent = self.socket.as_ref().map(|socket| socket.send(message));
        match sent {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            None | Some(Err(_)) => self.connect()?.send(message).map(|_| ()),
        }
    }
}

pub struct Log {
    sink: Mutex<Sink>,
    /// Nothing that matters less is told.
    least: Level,
}

impl Log {
    pub fn stderr(least: Level) -> Self {
        Self { sink: Mutex::new(Sink::Stderr), least }
    }

    /// Appends to a file from here on.
    pub fn to_file(&self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        self.set(Sink::File(file));
        Ok(())
    }

    pub fn to_system(&self) {
        self.set(Sink::System(SystemLog::new(Path::new(SYSTEM_LOG))));
    }

    fn set(&self, sink: Sink) {
        *self.sink.lock().expect("nobody panics holding it") = sink;
    }

    pub fn tell(&self, level: Level, text: &str) {
        if level > self.least {
            return;
        }
        let process = std::process::id();
        // Whoever does not get a message cannot be told so.
        let _ = match &mut *self.sink.lock().expect("nobody panics holding it") {
            Sink::Stderr => writeln!(io::stderr(), "myriad[{process}]: {}: {text}", level.name()),
            Sink::File(file) => {
                let now = crate::show::time::full(crate::show::time::now());
                file.write_all(format!("{now} myriad[{process}]: {}: {text}\n", level.name()).as_bytes())
            }
            Sink::System(log) => log.send(format!("<{}>myriad[{process}]: {text}", level as u8).as_bytes()),
        };
    }

    pub fn error(&self, text: &str) {
        self.tell(Level::Error, text);
    }

    pub fn warning(&self, text: &str) {
        self.tell(Level::Warning, text);
    }

    pub fn info(&self, text: &str) {
        self.tell(Level::Info, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_what_matters_enough() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = Log::stderr(Level::Warning);
        log.to_file(&path).unwrap();
        log.error("one");
        log.info("two");
        log.warning("three");
        let text = std::fs::read_to_string(path).unwrap();
        let said: Vec<&str> = text.lines().map(|line| line.split("]: ").nth(1).unwrap()).collect();
        assert_eq!(said, ["error: one", "warning: three"]);
    }

    /// A daemon that was there before the log, or that outlived it, told nobody anything any more.
    #[test]
    fn a_log_that_comes_later_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = Log::stderr(Level::Info);
        log.set(Sink::System(SystemLog::new(&path)));
        log.error("to nobody");
        for text in ["one", "two"] {
            let listener = UnixDatagram::bind(&path).unwrap();
            listener.set_nonblocking(true).unwrap();
            log.error(text);
            let mut message = [0; 64];
            let length = listener.recv(&mut message).unwrap_or_else(|error| panic!("{text} is not told: {error}"));
            assert!(message[..length].ends_with(format!("]: {text}").as_bytes()), "{text}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
