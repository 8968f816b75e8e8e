//! What programs have been promised: kept outside the volume, looked at after each recovery.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// Of a path of the volume.
#[derive(Clone, Debug)]
pub enum Promise {
    /// It has one of these contents: the last synced, and what was being put in its place.
    File(Vec<u64>),
    /// It has this content or is not there: its removal is not synced.
    FileOrNothing(u64),
    /// Its removal is synced.
    Nothing,
    /// It is a tree like this one of the host.
    Tree(PathBuf),
    /// A database, and the rows that are committed.
    Rows(Vec<u64>),
    /// A repository, and the last commit that is synced.
    Commit(String),
}

#[derive(Default)]
pub struct Ledger(Mutex<BTreeMap<PathBuf, Promise>>);

pub fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl Ledger {
    pub fn get(&self, path: &Path) -> Option<Promise> {
        self.0.lock().unwrap().get(path).cloned()
    }

    pub fn put(&self, path: &Path, promise: Promise) {
        self.0.lock().unwrap().insert(path.into(), promise);
    }

    /// Nothing is known any more of a path and of what is below it.
    pub fn forget(&self, path: &Path) {
        self.0.lock().unwrap().retain(|kept, _| !kept.starts_with(path));
    }

    /// Looks at everything that was promised; what is broken, and how many promises there were.
    pub fn check(&self, top: &Path) -> (Vec<String>, usize) {
        let promises = self.0.lock().unwrap();
        let broken = promises.iter().filter_map(|(path, promise)| {
            let error = check(&top.join(path), promise).err()?;
            Some(format!("{}: {error}", path.display()))
        });
        (broken.collect(), promises.len())
    }
}

fn check(path: &Path, promise: &Promise) -> Result<(), String> {
    let read = || fs::read(path).map(|bytes| (hash(&bytes), bytes.len()));
    match promise {
        Promise::File(contents) => match read() {
            Ok((hash, _)) if contents.contains(&hash) => Ok(()),
            Ok((_, len)) => Err(format!("has {len} bytes that were never synced")),
            Err(error) => Err(error.to_string()),
        },
        Promise::FileOrNothing(content) => match read() {
            Ok((hash, _)) if hash == *content => Ok(()),
            Ok((_, len)) => Err(format!("has {len} bytes that were never synced")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.to_string()),
        },
        Promise::Nothing => match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => Err(format!("is there again: {other:?}")),
        },
        Promise::Tree(source) => same_tree(source, path),
        Promise::Rows(rows) => check_rows(path, rows),
        Promise::Commit(commit) => check_commit(path, commit),
    }
}

fn same_tree(source: &Path, target: &Path) -> Result<(), String> {
    let said = Command::new("diff").args(["-rq", "--no-dereference"]).args([source, target]).output();
    let said = said.map_err(|error| format!("diff: {error}"))?;
    if said.status.success() { Ok(()) } else { Err(text(&said.stdout) + &text(&said.stderr)) }
}

/// Integrity, and each number of the arguments that is not there.
const CHECK_ROWS: &str = "
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
said = database.execute('PRAGMA integrity_check').fetchall()
if said != [('ok',)]: sys.exit('integrity: %s' % said)
there = {id for id, in database.execute('SELECT id FROM t')}
lost = [id for id in map(int, sys.stdin) if id not in there]
if lost: sys.exit('committed and lost: %s' % lost)
";

fn check_rows(path: &Path, rows: &[u64]) -> Result<(), String> {
    let list = rows.iter().map(|row| format!("{row}\n")).collect::<String>();
    let mut command = Command::new("python3");
    command.args(["-c", CHECK_ROWS]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = command.spawn().and_then(|mut child| {
        io::Write::write_all(&mut child.stdin.take().expect("a pipe"), list.as_bytes())?;
        child.wait_with_output()
    });
    let said = said.map_err(|error| format!("python3: {error}"))?;
    if said.status.success() { Ok(()) } else { Err(text(&said.stderr)) }
}

fn check_commit(path: &Path, commit: &str) -> Result<(), String> {
    for arguments in [&["fsck", "--full", "--no-dangling"][..], &["merge-base", "--is-ancestor", commit, "HEAD"]] {
        let said = git(path).args(arguments).output().map_err(|error| format!("git: {error}"))?;
        if !said.status.success() {
            return Err(format!("git {}: {}{}", arguments.join(" "), text(&said.stdout), text(&said.stderr)));
        }
    }
    Ok(())
}

/// git in a repository, without anybody's configuration, syncing whatever it writes.
pub fn git(repository: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(repository).args([
        "-c",
        "core.fsync=all",
        "-c",
        "gc.auto=0",
        "-c",
        "init.defaultBranch=main",
    ]);
    for (key, value) in [("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_NOSYSTEM", "1")] {
        command.env(key, value);
    }
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "nobody").env(format!("GIT_{who}_EMAIL"), "nobody@example.com");
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().chars().take(500).collect()
}
