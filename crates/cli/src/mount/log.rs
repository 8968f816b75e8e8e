//! What a daemon has to tell: to standard error in the foreground, else to the system's log or to a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
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
    System(UnixDatagram),
    /// A host without a system log.
    Nowhere,
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
        let connected = UnixDatagram::unbound().and_then(|socket| {
            socket.connect(SYSTEM_LOG)?;
            // A log that is not read must not hold up the volume.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        self.set(connected.map_or(Sink::Nowhere, Sink::System));
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
            Sink::System(socket) => {
                socket.send(format!("<{}>myriad[{process}]: {text}", level as u8).as_bytes()).map(|_| ())
            }
            Sink::Nowhere => Ok(()),
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
}
