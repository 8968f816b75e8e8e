//! Benchmarks that others wrote, packaged by Debian: driven as workloads, so that what they find stands beside what ours find.
//!
//! ```text
//! drive      starts a program, notes when each of its phases begins, asks the device meanwhile, syncs after it
//! watch      counts what a directory sees made and removed while a program runs, without asking the program
//! bonnie     bonnie++: a large file by blocks, then empty files in order and at random
//! postmark   a pool of small files, transactions, removal
//! fs_mark    files made, without syncs and with one each
//! fio        a large file by requests, in order and at random
//! dbench     the operations of a file server's clients, as long as the clock says
//! ```
//!
//! Invariants
//!   1. A sample of a program is written only if the program's own count is what it was told to do, and the target shows that it was done:
//!      names or bytes that are there afterwards or, of what a program removes again, that the kernel saw made and removed.
//!   2. A program that is not installed, and a target without a directory, are left out by name with the reason.

mod bonnie;
mod dbench;
mod drive;
mod fio;
mod fs_mark;
mod postmark;
mod watch;

pub use bonnie::Bonnie;
pub use dbench::Dbench;
pub use drive::{Measured, run};
pub use fio::Fio;
pub use fs_mark::FsMark;
pub use postmark::Postmark;

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A benchmark of somebody else's, with its parameters.
pub trait Tool: Send + Sync {
    /// Of the workload, in samples.
    fn name(&self) -> &'static str;
    /// The program, and Debian's package that has it.
    fn program(&self) -> (&'static str, &'static str);
    /// What it reports, in the order in which it does it.
    fn phases(&self) -> Vec<&'static str>;
    /// The calls of the program. It works in `directory`; `scratch` lies on no target, for files that tell it what to do.
    fn calls(&self, directory: &Path, scratch: &Path) -> Result<Vec<Call>>;
    /// What it did, by its own word, after all calls. Fails unless that is what it was told to do and what the target shows.
    fn judge(&self, directory: &Path, ran: &[Ran]) -> Result<Vec<Said>>;
    /// Why it cannot be run here; `None`: it can.
    fn missing(&self) -> Option<String> {
        let (program, package) = self.program();
        crate::compare::kernel::find_in_path(program).is_none().then(|| format!("not installed: apt install {package}"))
    }
}

/// One call of a program.
#[derive(Debug, Default)]
pub struct Call {
    pub arguments: Vec<String>,
    /// Where it works, if not in the target's own directory: its current directory, and what is watched and looked at.
    pub place: Option<PathBuf>,
    /// Begin of what it writes when a phase begins, to standard error or, with `marks_in_output`, to standard output; in order. Without any
    /// the call is one phase.
    pub marks: &'static [&'static str],
    pub marks_in_output: bool,
    /// Drop caches first.
    pub cold: bool,
    /// It removes again what it makes: files that come and go are counted while it runs.
    pub watch: Watching,
    /// Note the largest file as each phase begins.
    pub look: bool,
}

/// Where files are counted that come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watching {
    #[default]
    Nowhere,
    /// In the directory and in those that are made in it.
    Here,
    /// Only in those that are made in it.
    Below,
}

/// What a call came to.
#[derive(Debug, Default)]
pub struct Ran {
    pub output: String,
    /// From each phase's begin to the next one's, or to the end.
    pub spans: Vec<Duration>,
    /// What the directory saw while it ran.
    pub seen: watch::Seen,
    /// The largest file in the directory soon after each phase began, where it was asked for; nothing if it was gone by then.
    pub largest: Vec<Held>,
    /// Bytes that it passed to `write`, by the kernel's count; `None`: the kernel does not say.
    pub written: Option<u64>,
}

/// What a program says of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    pub count: u64,
    /// Of file content.
    pub bytes: u64,
    /// By its own clock, where that is fine enough: then it counts, and not the lab's, which has the program's start in it.
    pub seconds: Option<f64>,
    /// Operations or bytes a second, as it prints them.
    pub rate: Option<f64>,
}

impl Said {
    fn counted(count: u64, bytes: u64) -> Self {
        Self { count, bytes, seconds: None, rate: None }
    }
}

/// Files in a directory and below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub names: u64,
    pub bytes: u64,
    /// Bytes that the file system says it keeps for them.
    pub allocated: u64,
}

impl Held {
    /// What there is below `directory`.
    fn below(directory: &Path) -> Result<Self> {
        let mut held = Self::default();
        for entry in directory.read_dir().with_context(|| format!("reading {}", directory.display()))? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name == "lost+found") {
                continue;
            }
            held.add(Self::of(&path)?);
            if path.is_dir() {
                held.add(Self::below(&path)?);
            }
        }
        Ok(held)
    }

    fn add(&mut self, more: Self) {
        self.names += more.names;
        self.bytes += more.bytes;
        self.allocated += more.allocated;
    }

    /// A file's, and nothing for a directory.
    fn of(path: &Path) -> Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let metadata = path.symlink_metadata().with_context(|| format!("looking at {}", path.display()))?;
        let (bytes, allocated) = if metadata.is_file() { (metadata.size(), metadata.blocks() * 512) } else { (0, 0) };
        Ok(Self { names: 1, bytes, allocated })
    }

    /// Of a file that a program has written as a whole.
    fn check_whole(&self, bytes: u64) -> Result<()> {
        ensure!(
            self.bytes == bytes && self.allocated >= bytes,
            "its file has {} bytes and takes {} where {bytes} were written: it did not do what it was asked",
            self.bytes,
            self.allocated
        );
        Ok(())
    }

    /// The largest file right in `directory`.
    fn largest_in(directory: &Path) -> Result<Self> {
        let mut largest = Self::default();
        for entry in directory.read_dir()? {
            // What is removed between the two looks is not the largest.
            let one = Self::of(&entry?.path()).unwrap_or_default();
            if one.bytes > largest.bytes {
                largest = one;
            }
        }
        Ok(largest)
    }
}

/// The number behind `label` in a line of `text`.
fn number_after(text: &str, label: &str) -> Result<u64> {
    let found = text.lines().find_map(|line| line.trim().strip_prefix(label));
    let word = found.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).with_context(|| format!("it does not say how many `{}`", label.trim()))
}

/// What a program says it did must be what it was told to do.
fn as_told(what: &str, said: u64, told: u64) -> Result<()> {
    ensure!(said == told, "it says {said} {what} where it was told {told}: it did not do what it was asked");
    Ok(())
}

/// What a program says it did must be what the target shows.
fn as_shown(what: &str, said: u64, shown: u64) -> Result<()> {
    ensure!(said == shown, "it says {said} {what} and the target shows {shown}: it did not do what it was asked");
    Ok(())
}

fn utf8(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}

/// A directory of a program's own on the target.
fn subdirectory(directory: &Path, name: &str) -> Result<PathBuf> {
    let made = directory.join(name);
    std::fs::create_dir(&made).with_context(|| format!("making {}", made.display()))?;
    Ok(made)
}
