//! A folder with everything that may stand where something else was meant, what it looked like, and what it is again.

use crate::common::{copy_program, host, put};
use crate::kinds::PIPED;
use myriad_device::{Access, FileDevice};
use myriad_engine::{Cred, FileType, Fs, MkfsOptions, MountOptions};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A bound for what hangs, not for what is slow.
const PATIENCE: Duration = Duration::from_secs(120);
const VOLUME: u64 = 2 << 20;

/// A file of the host as a bystander sees it.
#[derive(Clone, PartialEq, Eq)]
pub enum Seen {
    File(Arc<Vec<u8>>, u32),
    Directory,
    Link(PathBuf),
    Other,
}

pub type Tree = BTreeMap<PathBuf, Seen>;

/// What a run did.
#[derive(Debug)]
pub struct Ran {
    /// `None`: it had to be killed.
    pub code: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
    /// What came out of the pipe.
    pub piped: Vec<u8>,
}

pub struct Bench {
    folder: TempDir,
    /// A copy of the program, in a folder of its own: the checkout may lie where other users may not go.
    program: TempDir,
    pristine: Tree,
    /// The trees of the volumes, by the names of their images.
    volumes: BTreeMap<PathBuf, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Whoever has volumes in use.
    _holders: Vec<FileDevice>,
    /// File systems of the host below the folder, gone before it.
    mounts: Vec<PathBuf>,
    user: Option<u32>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        for mount in &self.mounts {
            let _ = host::command("umount", &["-l"], mount);
        }
    }
}

impl Bench {
    /// `user`: who runs the commands, if not the user of the test.
    pub fn new(user: Option<u32>) -> Self {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let path = |name: &str| folder.path().join(name);
        let options = || MkfsOptions { seed: Some(7), ..MkfsOptions::default() };
        for name in ["v.img", "w.img", "used.img", "read.img", "trunc.img", "damaged.img", "full.img"] {
            Fs::format(&path(name), Some(VOLUME), &options()).expect("format");
            furnish(&path(name), None);
        }
        Fs::format(&path("lost.img"), Some(VOLUME), &MkfsOptions { ag_size: Some(VOLUME / 2), ..options() }).unwrap();
        furnish(&path("lost.img"), None);
        File::create(path("log.dev")).and_then(|file| file.set_len(1 << 20)).unwrap();
        let log = Some(path("log.dev"));
        Fs::format(&path("ext.img"), Some(VOLUME), &MkfsOptions { log_device: log.clone(), ..options() }).unwrap();
        furnish(&path("ext.img"), log);
        fill(&path("full.img"));
        File::options().write(true).open(path("trunc.img")).and_then(|file| file.set_len(VOLUME / 2)).unwrap();
        for (name, offset) in [("damaged.img", 100), ("lost.img", 0)] {
            let file = File::options().write(true).open(path(name)).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[7; 200], offset).unwrap();
        }
        for (name, content) in [("h.txt", "host\n"), ("h2.txt", "host\n"), ("empty", "")] {
            fs::write(path(name), content).unwrap();
        }
        for directory in ["dir", "dir2"] {
            fs::create_dir(path(directory)).unwrap();
            fs::write(path(directory).join("g"), "inside\n").unwrap();
        }
        for (target, link) in [
            ("w.img", "to-w"),
            ("used.img", "to-used"),
            ("h2.txt", "to-h2"),
            ("nowhere", "dangling"),
            ("circle", "circle"),
        ] {
            symlink(target, path(link)).unwrap();
        }
        make_pipe(&path("fifo"));
        drop(std::os::unix::net::UnixListener::bind(path("sock")).unwrap());
        let holder = |name: &str, access| FileDevice::open(path(name), access).unwrap();
        let (used, read) = (holder("used.img", Access::ReadWrite), holder("read.img", Access::ReadOnly));
        used.lock_exclusive().unwrap();
        read.lock_shared().unwrap();
        let program = tempfile::tempdir().expect("a directory for the program");
        fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755)).unwrap();
        copy_program(&program.path().join("myriad"));
        let (pristine, volumes, mounts) = (Tree::new(), BTreeMap::new(), Vec::new());
        let mut bench = Self { folder, program, pristine, volumes, _holders: vec![used, read], mounts, user };
        bench.mount_hosts();
        if let Some(user) = user {
            bench.give_to(user);
        }
        if bench.has_hosts() {
            host::command("mount", &["-o", "remount,ro"], &bench.path("ro")).expect("it is a file system of its own");
        }
        bench.pristine = bench.look();
        for name in ["v.img", "w.img", "full.img", "no-room/s.img"] {
            if bench.path(name).exists() {
                bench.volumes.insert(name.into(), names(&bench.path(name)).expect("it is sound"));
            }
        }
        bench
    }

    /// A read-only file system and a full one of the host, each with a volume, where the test may mount them.
    fn mount_hosts(&mut self) {
        for name in ["ro", "no-room"] {
            let path = self.path(name);
            fs::create_dir(&path).unwrap();
            if let Err(error) = host::command("mount", &["-t", "tmpfs", "-o", "size=3m", "none"], &path) {
                println!("not tried: a read-only and a full file system of the host: {error}");
                fs::remove_dir(&path).unwrap();
                return;
            }
            self.mounts.push(path);
        }
        for (name, content) in [("ro/g", "inside\n"), ("ro/h.txt", "host\n")] {
            fs::write(self.path(name), content).unwrap();
        }
        for image in ["ro/s.img", "no-room/s.img"] {
            let options = MkfsOptions { seed: Some(7), ..MkfsOptions::default() };
            Fs::format(&self.path(image), Some(VOLUME), &options).expect("format");
            furnish(&self.path(image), None);
        }
        let mut rest = File::create(self.path("no-room/rest")).unwrap();
        while rest.write(&[7; 4096]).is_ok() {}
    }

    /// Whether there are file systems of the host that are read-only and full.
    pub fn has_hosts(&self) -> bool {
        self.mounts.len() == 2
    }

    /// All is the user's, but for what he may not read.
    fn give_to(&self, user: u32) {
        fs::set_permissions(self.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut below: Vec<PathBuf> = self.look().into_keys().map(|path| self.folder.path().join(path)).collect();
        below.push(self.folder.path().to_owned());
        for path in below {
            std::os::unix::fs::lchown(&path, Some(user), Some(user)).unwrap();
        }
        for name in ["w.img", "h2.txt", "dir"] {
            std::os::unix::fs::lchown(self.path(name), Some(0), Some(0)).unwrap();
            fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn pristine(&self) -> &Tree {
        &self.pristine
    }

    /// Everything in the folder but what the program keeps for itself.
    pub fn look(&self) -> Tree {
        let mut tree = Tree::new();
        let mut buffer = Vec::new();
        let mut stack = vec![PathBuf::new()];
        while let Some(directory) = stack.pop() {
            for entry in fs::read_dir(self.folder.path().join(&directory)).unwrap() {
                let entry = entry.unwrap();
                let path = directory.join(entry.file_name());
                if path == Path::new("run") {
                    continue;
                }
                let metadata = entry.metadata().unwrap();
                let seen = if metadata.is_dir() {
                    stack.push(path.clone());
                    Seen::Directory
                } else if metadata.is_symlink() {
                    Seen::Link(fs::read_link(entry.path()).unwrap())
                } else if metadata.is_file() {
                    buffer.clear();
                    File::open(entry.path()).and_then(|mut file| file.read_to_end(&mut buffer)).unwrap();
                    let bytes = match self.pristine.get(&path) {
                        Some(Seen::File(before, _)) if **before == buffer => Arc::clone(before),
                        _ => Arc::new(buffer.clone()),
                    };
                    Seen::File(bytes, metadata.permissions().mode())
                } else {
                    Seen::Other
                };
                tree.insert(path, seen);
            }
        }
        tree
    }

    /// What differs between the names in a volume and what they were: made, changed, removed.
    pub fn changed_names(&self, image: &Path) -> Result<Vec<Vec<u8>>, String> {
        let before = self.volumes.get(image).ok_or("it must not change at all")?;
        let after = names(&self.path(image))?;
        let all = before.keys().chain(after.keys());
        let mut changed: Vec<_> = all.filter(|name| before.get(*name) != after.get(*name)).cloned().collect();
        changed.dedup();
        Ok(changed)
    }

    pub fn had_name(&self, image: &Path, name: &[u8]) -> bool {
        self.volumes.get(image).is_some_and(|names| names.contains_key(name))
    }

    /// Undoes all that differs.
    pub fn restore(&self, after: &Tree) {
        let new = after.keys().filter(|path| !self.pristine.contains_key(*path));
        for path in new.collect::<Vec<_>>().into_iter().rev() {
            let path = self.path(path);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
        for (path, seen) in self.pristine.iter().filter(|(path, seen)| after.get(*path) != Some(*seen)) {
            let path = self.path(path);
            match seen {
                Seen::File(bytes, mode) => {
                    // In its place, for whoever has it open.
                    if !path.symlink_metadata().is_ok_and(|found| found.is_file()) {
                        let _ = fs::remove_file(&path);
                    }
                    write_sparse(&path, bytes).unwrap();
                    fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
                }
                Seen::Directory => fs::create_dir_all(&path).unwrap(),
                Seen::Link(target) => {
                    let _ = fs::remove_file(&path);
                    symlink(target, &path).unwrap();
                }
                Seen::Other if path == self.path("fifo") => {
                    let _ = fs::remove_file(&path);
                    make_pipe(&path);
                }
                Seen::Other => {
                    let _ = fs::remove_file(&path);
                    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
                }
            }
        }
    }

    /// Runs the program. Whoever writes to `fifo`, or, if `is_written`, reads from it, is there.
    pub fn run(&self, arguments: &[OsString], is_written: bool) -> Ran {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(PIPED).expect("it fits");
        drop(writer);
        let mut command = Command::new(self.program.path().join("myriad"));
        command.args(arguments).current_dir(self.folder.path()).env("TZ", "UTC");
        command.env("MYRIAD_RUNTIME_DIR", self.path("run"));
        command.stdin(reader).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let fifo = scope
                .spawn(|| if is_written { drain(&self.path("fifo"), &done) } else { feed(&self.path("fifo"), &done) });
            let mut child = command.spawn().expect("start");
            let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
            let out = scope.spawn(|| all(out.into()));
            let err = scope.spawn(|| all(err.into()));
            let end = Instant::now() + PATIENCE;
            let status = loop {
                match child.try_wait().expect("it is ours") {
                    Some(status) => break Some(status),
                    None if Instant::now() > end => {
                        let _ = child.kill();
                        let _ = child.wait();
                        break None;
                    }
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            done.store(true, Relaxed);
            let code = status.map(|status| status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)));
            let err = String::from_utf8_lossy(&err.join().unwrap()).into_owned();
            Ran { code, out: out.join().unwrap(), err, piped: fifo.join().unwrap() }
        })
    }
}

/// Writes what is not zeros: a host may have no room for the rest.
fn write_sparse(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = File::create(path)?;
    file.set_len(bytes.len() as u64)?;
    for (number, part) in bytes.chunks(4096).enumerate().filter(|(_, part)| part.iter().any(|&byte| byte != 0)) {
        std::os::unix::fs::FileExt::write_all_at(&file, part, number as u64 * 4096)?;
    }
    Ok(())
}

fn all(pipe: OwnedFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = File::from(pipe).read_to_end(&mut bytes);
    bytes
}

fn make_pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o666), 0)
        .expect("a pipe");
}

fn open_pipe(path: &Path, write: bool) -> Option<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(!write).write(write).custom_flags(flags).open(path).ok()?;
    // It may have been replaced.
    file.metadata().ok()?.file_type().is_fifo().then_some(file)
}

/// Gives a reader of the pipe, if one comes, something to read.
fn feed(path: &Path, done: &AtomicBool) -> Vec<u8> {
    while !done.load(Relaxed) {
        if let Some(mut file) = open_pipe(path, true) {
            let _ = file.write_all(PIPED);
            return Vec::new();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Vec::new()
}

fn drain(path: &Path, done: &AtomicBool) -> Vec<u8> {
    let Some(mut file) = open_pipe(path, false) else { return Vec::new() };
    let mut bytes = Vec::new();
    loop {
        let is_last = done.load(Relaxed);
        let _ = file.read_to_end(&mut bytes);
        if is_last {
            return bytes;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn furnish(image: &Path, log_device: Option<PathBuf>) {
    let fs = Fs::open(image, MountOptions { log_device, ..MountOptions::default() }).expect("open");
    let session = fs.session(Cred { umask: 0, ..Cred::root() });
    for directory in ["/d", "/d/e", "/into"] {
        session.mkdir(directory, 0o755).unwrap();
    }
    put(&session, "/f", b"file\n");
    put(&session, "/d/g", b"inside\n");
    session.symlink(b"f", "/link").unwrap();
    session.symlink(b"nowhere", "/dangling").unwrap();
    session.mknod("/fifo", 0o010_644, 0).unwrap();
    drop(session);
    fs.close().expect("close");
}

fn fill(image: &Path) {
    let fs = Fs::open(image, MountOptions::default()).expect("open");
    let session = fs.session(Cred { umask: 0, ..Cred::root() });
    let options = myriad_engine::OpenOptions { write: true, create: true, mode: 0o644, ..Default::default() };
    for size in [64 << 10, 4 << 10, 512] {
        let Ok(file) = session.open(&format!("/fill{size}"), options) else { break };
        let mut offset = 0;
        while let Ok(count @ 1..) = file.write_at(&vec![7; size], offset) {
            offset += count as u64;
        }
    }
    drop(session);
    fs.close().expect("close");
}

/// Every file of a volume, with what it holds.
fn names(image: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let said = |error: myriad_engine::Error| error.to_string();
    let fs = Fs::open(image, MountOptions { read_only: true, ..MountOptions::default() }).map_err(said)?;
    let session = fs.session(Cred::root());
    let mut names = BTreeMap::new();
    for step in session.walk("/").map_err(said)? {
        let entry = step.map_err(|failed| failed.error.to_string())?;
        let mut content = entry.stat.mode.to_le_bytes().to_vec();
        match entry.stat.file_type() {
            FileType::File => {
                let file = session.open_node(entry.stat.node(), myriad_engine::OpenOptions::READ).map_err(said)?;
                let start = content.len();
                content.resize(start + entry.stat.size as usize, 0);
                file.read_at(&mut content[start..], 0).map_err(said)?;
            }
            FileType::Symlink => content.extend(session.readlink_node(entry.stat.node()).map_err(said)?),
            _ => {}
        }
        names.insert([&b"/"[..], &entry.path].concat(), content);
    }
    drop(session);
    fs.close().map_err(said)?;
    Ok(names)
}

/// The words of a line, the operand put in.
pub fn words(line: &str, operand: &OsStr) -> Vec<OsString> {
    let word = |word: &str| {
        let mut bytes = Vec::new();
        for byte in word.bytes() {
            match byte {
                b'@' | b'#' => bytes.extend_from_slice(operand.as_bytes()),
                byte => bytes.push(byte),
            }
        }
        OsStr::from_bytes(&bytes).to_owned()
    };
    line.split_whitespace().map(word).collect()
}
