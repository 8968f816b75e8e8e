//! Programs at work on a mount, until it dies under them. Each records in the ledger what it may count on, after the sync
//! that promises it, and before it breaks such a promise itself.

use crate::ledger::{Ledger, Promise, git, hash};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Random(pub u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// What a program works with.
pub struct Job<'a> {
    /// Where the volume is mounted.
    pub top: &'a Path,
    pub ledger: &'a Ledger,
    /// A tree of the host and an archive of it.
    pub source: &'a Path,
    pub archive: &'a Path,
    pub seed: u64,
    /// Things done, of all programs.
    pub steps: &'a AtomicU64,
    /// Processes that do not end by themselves when their files fail.
    pub children: &'a Mutex<Vec<(&'static str, Child)>>,
}

type Outcome = Result<(), String>;

/// A program: its name, what it needs, and what it does until something fails.
pub struct Program {
    pub name: &'static str,
    needs: &'static [&'static str],
    pub run: fn(&Job) -> Outcome,
}

pub const PROGRAMS: &[Program] = &[
    Program { name: "files", needs: &[], run: files },
    Program { name: "tar", needs: &["tar", "diff", "rm"], run: tar },
    Program { name: "sqlite", needs: &["python3"], run: sqlite },
    Program { name: "git", needs: &["git", "find", "rm"], run: git_commits },
    Program { name: "cc", needs: &["cc"], run: cc },
    Program { name: "dbench", needs: &["dbench"], run: dbench },
    Program { name: "fsx", needs: &["fsx"], run: fsx },
];

impl Program {
    /// What is missing for it, if anything.
    pub fn lacks(&self) -> Option<&'static str> {
        self.needs.iter().copied().find(|name| which(name).is_none())
    }
}

/// Where a program is: on the path, or where `scripts/suites` builds those of others.
pub fn which(name: &str) -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_BIN_EXE_myriad")).ancestors().nth(2).map(|target| target.join("suites/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(built).map(|directory| directory.join(name)).find(|file| file.is_file())
}

fn failed(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("{what}: {error}")
}

/// Of what a program says, so much is read. git(1) complains of a directory on a dead mount for as long as anybody listens.
const COMPLAINTS_MAX: u64 = 64 << 10;

fn run(command: &mut Command) -> Outcome {
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = started.map_err(failed(format!("{command:?}")))?;
    let mut said = Vec::new();
    // At the end nobody listens any more: a program that goes on gets SIGPIPE.
    child
        .stderr
        .take()
        .map_or(Ok(0), |errors| errors.take(COMPLAINTS_MAX).read_to_end(&mut said))
        .map_err(failed("reading"))?;
    match child.wait().map_err(failed(format!("{command:?}")))?.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&said))),
    }
}

/// A directory synced is all names durable; that of the mount's root, everything.
fn sync(directory: &Path) -> Outcome {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed(directory.display()))
}

/// Writes, replaces and removes files, and syncs each alone.
fn files(job: &Job) -> Outcome {
    let mut random = Random::new(job.seed);
    for step in 0.. {
        let directory = PathBuf::from(format!("files/{}", random.below(8)));
        let path = directory.join(random.below(60).to_string());
        let target = job.top.join(&path);
        fs::create_dir_all(job.top.join(&directory)).map_err(failed("mkdir"))?;
        let mut bytes = vec![0; random.below(40_000) as usize];
        bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        let write = |target: &Path, bytes: &[u8]| {
            let mut file = File::create(target)?;
            for piece in bytes.chunks(9000) {
                file.write_all(piece)?;
            }
            if step % 3 == 0 { file.sync_data() } else { file.sync_all() }
        };
        match random.below(10) {
            0..=4 => {
                job.ledger.forget(&path);
                write(&target, &bytes).map_err(failed("write"))?;
                job.ledger.put(&path, Promise::File(vec![hash(&bytes)]));
            }
            5..=6 => {
                let new = target.with_extension("new");
                write(&new, &bytes).map_err(failed("write"))?;
                match job.ledger.get(&path) {
                    Some(Promise::File(old)) => {
                        job.ledger.put(&path, Promise::File(old.into_iter().chain([hash(&bytes)]).collect()));
                    }
                    _ => job.ledger.forget(&path),
                }
                fs::rename(&new, &target).map_err(failed("rename"))?;
                sync(&job.top.join(&directory))?;
                job.ledger.put(&path, Promise::File(vec![hash(&bytes)]));
            }
            7..=8 => {
                if let Some(Promise::File(contents)) = job.ledger.get(&path)
                    && let [content] = contents[..]
                {
                    job.ledger.put(&path, Promise::FileOrNothing(content));
                    fs::remove_file(&target).map_err(failed("unlink"))?;
                    if random.below(2) == 0 {
                        sync(&job.top.join(&directory))?;
                        job.ledger.put(&path, Promise::Nothing);
                    }
                }
            }
            _ if random.below(4) == 0 => {
                job.ledger.forget(&directory);
                fs::remove_dir_all(job.top.join(&directory)).map_err(failed("rm"))?;
            }
            _ => {}
        }
        job.steps.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Unpacks trees and removes them again.
fn tar(job: &Job) -> Outcome {
    for number in 0.. {
        let path = PathBuf::from(format!("tar/{}", (job.seed + number) % 4));
        let target = job.top.join(&path);
        job.ledger.forget(&path);
        run(Command::new("rm").arg("-rf").arg(&target))?;
        fs::create_dir_all(&target).map_err(failed("mkdir"))?;
        run(Command::new("tar").arg("-xf").arg(job.archive).arg("-C").arg(&target))?;
        sync(job.top)?;
        job.ledger.put(&path, Promise::Tree(job.source.into()));
        job.steps.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Transactions, and a line for each that was committed. In mode `delete`, SQLite removes its journal, opens the directory to
/// sync it, and takes a directory that it cannot open for synced: `sqlite.rs`. Whether it could, we see by opening the
/// directory ourselves afterwards: a mount that is dead stays dead until all programs have ended.
const ROWS: &str = "
import os, sqlite3, sys
path, mode, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = sqlite3.connect(path, isolation_level=None)
database.execute('PRAGMA journal_mode = ' + mode)
database.execute('PRAGMA synchronous = EXTRA')
database.execute('CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, data BLOB)')
last = database.execute('SELECT coalesce(max(id), 0) FROM t').fetchone()[0]
while True:
    count = last % 7 * (seed % 5 + 1) + 1
    database.execute('BEGIN')
    for id in range(last + 1, last + 1 + count):
        database.execute('INSERT INTO t VALUES (?, ?)', (id, bytes([id % 256]) * (id % 3000)))
    database.execute('COMMIT')
    if mode == 'delete': os.close(os.open(os.path.dirname(path), os.O_RDONLY))
    print(last + 1, count, flush=True)
    last += count
";

fn sqlite(job: &Job) -> Outcome {
    let mode = ["wal", "delete", "truncate", "persist"][(job.seed % 4) as usize];
    let path = PathBuf::from(format!("sqlite {mode}.db"));
    let mut command = Command::new("python3");
    command.args(["-c", ROWS]).arg(job.top.join(&path)).args([mode, &job.seed.to_string()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed("python3"))?;
    let Some(Promise::Rows(mut rows)) = job.ledger.get(&path).or(Some(Promise::Rows(Vec::new()))) else {
        return Err("another promise for a database".into());
    };
    for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
        let line = line.map_err(failed("python3"))?;
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [first, count] = numbers[..] else { return Err(format!("python3 says {line}")) };
        rows.extend(first..first + count);
        job.ledger.put(&path, Promise::Rows(rows.clone()));
        job.steps.fetch_add(1, Relaxed);
    }
    let said = child.wait_with_output().map_err(failed("python3"))?;
    Err(format!("sqlite {mode}: {}", String::from_utf8_lossy(&said.stderr)))
}

fn git_commits(job: &Job) -> Outcome {
    let path = PathBuf::from("repository");
    let repository = job.top.join(&path);
    let mut random = Random::new(job.seed);
    if job.ledger.get(&path).is_none() {
        // What a kill left of one that was never synced.
        run(Command::new("rm").arg("-rf").arg(&repository))?;
        fs::create_dir_all(&repository).map_err(failed("mkdir"))?;
        run(git(&repository).args(["init", "-q"]))?;
        // git syncs what it commits, not what it begins with.
        sync(job.top)?;
    }
    // What git keeps another git away with, of one that was killed.
    let locks = ["(", "-name", "*.lock", "-o", "-name", "packed-refs.new", ")", "-delete"];
    run(Command::new("find").arg(repository.join(".git")).args(locks))?;
    for step in 0.. {
        for _ in 0..random.below(8) + 1 {
            let directory = repository.join(format!("d{}", random.below(5)));
            fs::create_dir_all(&directory).map_err(failed("mkdir"))?;
            let text = format!("{} {step}\n", random.below(1000)).repeat(random.below(500) as usize);
            fs::write(directory.join(random.below(20).to_string()), text).map_err(failed("write"))?;
        }
        run(git(&repository).args(["add", "-A"]))?;
        run(git(&repository).args(["commit", "-q", "--allow-empty", "-m", &format!("step {step}")]))?;
        if random.below(8) == 0 {
            run(git(&repository).args(["gc", "-q"]))?;
        }
        let head = git(&repository).args(["rev-parse", "HEAD"]).output().map_err(failed("git"))?;
        // git syncs files, not the directories in which it renames them.
        sync(&repository.join(".git"))?;
        if !head.status.success() {
            return Err(format!("git rev-parse: {}", String::from_utf8_lossy(&head.stderr)));
        }
        job.ledger.put(&path, Promise::Commit(String::from_utf8_lossy(&head.stdout).trim().into()));
        job.steps.fetch_add(1, Relaxed);
    }
    Ok(())
}

fn cc(job: &Job) -> Outcome {
    let mut random = Random::new(job.seed);
    fs::create_dir_all(job.top.join("cc")).map_err(failed("mkdir"))?;
    loop {
        let path = PathBuf::from(format!("cc/{}.o", random.below(20)));
        let object = job.top.join(&path);
        let source = object.with_extension("c");
        let functions = (0..random.below(30) + 1).map(|n| format!("int f{n}(int a) {{ return a * {n}; }}\n"));
        fs::write(&source, functions.collect::<String>()).map_err(failed("write"))?;
        job.ledger.forget(&path);
        run(Command::new("cc").arg("-c").arg(&source).arg("-o").arg(&object))?;
        File::open(&object).and_then(|file| file.sync_all()).map_err(failed("sync"))?;
        let bytes = fs::read(&object).map_err(failed("read"))?;
        job.ledger.put(&path, Promise::File(vec![hash(&bytes)]));
        job.steps.fetch_add(1, Relaxed);
    }
}

/// A load without a promise: what it leaves is for the check.
fn load(job: &Job, name: &'static str, mut command: Command) -> Outcome {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    job.children.lock().unwrap().push((name, child.map_err(failed(name))?));
    job.steps.fetch_add(1, Relaxed);
    Ok(())
}

fn dbench(job: &Job) -> Outcome {
    let directory = job.top.join("dbench");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).map_err(failed("mkdir"))?;
    let mut command = Command::new("dbench");
    command.args(["-t", "60", "-D"]).arg(&directory).arg("2");
    load(job, "dbench", command)
}

fn fsx(job: &Job) -> Outcome {
    let mut command = Command::new(which("fsx").expect("looked for before"));
    command
        .args(["-q", "-N", "1000000", "-S", &job.seed.to_string()])
        .arg(job.top.join(format!("fsx{}", job.seed % 3)));
    load(job, "fsx", command)
}
