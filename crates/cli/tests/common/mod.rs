//! Runs the program in a directory of its own, and says what it did.
#![allow(dead_code, reason = "each test file uses what it needs")]

pub mod child;
pub mod host;
pub mod map;
pub mod mount;

use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, OpenOptions, Session};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_myriad");

pub struct Place {
    directory: TempDir,
}

/// What a run said and how it ended.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("this test's names are UTF-8")
    }

    pub fn lines(&self) -> Vec<&str> {
        self.text().lines().collect()
    }

    /// The run ended with `code`, and told the user all of `said`.
    #[track_caller]
    pub fn expect(self, code: i32, said: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        for said in said {
            assert!(self.err.contains(said), "not said: {said}\n{self:#?}");
        }
        assert!(!self.err.contains("panicked"), "{self:#?}");
        self
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.err, "", "{self:#?}");
        self.expect(0, &[])
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

impl Place {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory for the test") }
    }

    /// With a volume `vol.img` of `size` bytes, the user's own as by `myriad mkfs`.
    pub fn with_volume(size: u64) -> Self {
        let place = Self::new();
        let (root_uid, root_gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let options = MkfsOptions { root_uid, root_gid, ..MkfsOptions::default() };
        Fs::format(&place.path("vol.img"), Some(size), &options).expect("format");
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A copy of the program here, which every user may run: the checkout may lie where others may not go.
    pub fn program_for_all(&self) -> PathBuf {
        let (directory, program) = (self.path(""), self.path("program"));
        copy_program(&program);
        for path in [&directory, &program] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("modes");
        }
        program
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).expect("write");
    }

    pub fn command<S: AsRef<OsStr>>(&self, program: impl AsRef<OsStr>, arguments: &[S]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.directory.path()).env("TZ", "UTC").env("COLUMNS", "100");
        // Sockets of daemons; whatever goes wrong stays in here.
        command.env("MYRIAD_RUNTIME_DIR", self.path("run"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `myriad` with these arguments.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Answer {
        answer(self.command(PROGRAM, arguments).spawn().expect("start"))
    }

    /// Runs `myriad` with the words of a line.
    pub fn line(&self, line: &str) -> Answer {
        self.run(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Changes the volume through the library.
    pub fn change<T>(&self, work: impl FnOnce(&Session) -> T) -> T {
        let fs = Fs::open(&self.path("vol.img"), MountOptions::default()).expect("open");
        let result = work(&fs.session(Cred { umask: 0, ..Cred::root() }));
        fs.close().expect("close");
        result
    }

    /// The volume is sound, whatever happened to it.
    #[track_caller]
    pub fn assert_sound(&self) {
        self.line("fsck -n vol.img").expect(0, &[]);
    }
}

pub fn answer(child: Child) -> Answer {
    use std::os::unix::process::ExitStatusExt;
    let output = child.wait_with_output().expect("the program ends");
    let code = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0));
    Answer { code, out: output.stdout, err: String::from_utf8_lossy(&output.stderr).into_owned() }
}

/// Makes a file with these contents.
pub fn put(session: &Session, path: impl AsRef<[u8]>, contents: &[u8]) {
    let options = OpenOptions { write: true, create: true, mode: 0o644, ..OpenOptions::default() };
    let file = session.open(path.as_ref(), options).expect("create");
    assert_eq!(file.write_at(contents, 0).expect("write"), contents.len());
}

/// Bytes of a file of the host.
pub fn bytes(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("read");
    bytes
}

/// Copies the program. By another process: a file that this one has written may still be open in what a thread has just started, and is
/// not run then (ETXTBSY).
pub fn copy_program(target: &std::path::Path) {
    let copied = Command::new("cp").arg(PROGRAM).arg(target).status().expect("cp");
    assert!(copied.success(), "copy the program");
}
