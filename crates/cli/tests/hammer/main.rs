//! Two programs of two threads each hammer one directory and one file of a mount, in rounds. After each round all meet:
//! names and bytes of each thread must be its model's, counts must balance, all is removed, and then volume and daemon
//! must be as they were. `scripts/suites hammer --minutes N` is the long form.
//!
//! The seed gives each thread the same work, not the same interleaving.
//!
//! Nobody knows in which order the threads' requests took effect. To record all calls and search for an order that explains them
//! (linearizability checking) is exact for a few hundred operations, and hopeless for an hour of them. Locks around what is
//! compared would keep anything from colliding. So what a thread owns, its names and records in directory, blocks and pages that
//! all share, is compared with its model exactly. Of what threads fight for, only that is asked which holds in every order: the
//! errnos that can be, sums of what succeeded, versions that never go back, one holder of a lock. A wrong answer that keeps all
//! sums and belongs to nobody can pass. Renames over names that may or may not exist are left out, because their sums would have
//! slack.

#[path = "../common/mod.rs"]
mod common;
mod contested;
mod owned;
mod shared;
mod watch;
mod worker;

use common::child;
use common::mount::MountPlace;
use contested::{LOCKS, MOVED, NAMES, REPLACED, SIDES, counter_name, lock_name, whole};
use myriad_sim::rng::{Rng, number};
use shared::{BLOCKS_END, COUNTER, FILE};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use watch::Watch;
use worker::{MARK, Outcome, THREADS, Tally};

const VOLUME: u64 = 512 << 20;
const PROGRAMS: usize = shared::ALL / THREADS;
/// Operations of each thread between two meetings, in the long form: a few seconds.
const LONG_ROUND: u64 = 20_000;

/// A round that takes so long has stopped.
const HANG: Duration = Duration::from_secs(600);

/// In a child process: which program it is, and the directory.
const CHILD_INDEX: &str = "MYRIAD_HAMMER_INDEX";
const CHILD_DIRECTORY: &str = "MYRIAD_HAMMER_DIRECTORY";

/// Not a test of its own: in a child process, one of the two programs.
#[test]
fn child_works() {
    let (Some(index), Some(directory)) = (number(CHILD_INDEX), std::env::var_os(CHILD_DIRECTORY)) else { return };
    worker::run(index as usize, Path::new(&directory)).unwrap();
}

#[test]
fn two_programs_of_two_threads_on_one_directory_and_one_file() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: each program has the directory as its root, which takes root");
    }
    let Some(place) = MountPlace::with_chosen_volume(VOLUME) else { return };
    let more = std::env::var("MYRIAD_MOUNT_OPTIONS").unwrap_or_default();
    // A small cache, so that it is full soon and what grows then is something else.
    place.mount(&format!("-o {}", ["acl,cachesize=32M", &more].join(",").trim_end_matches(',')));
    let length = match number("MYRIAD_MINUTES") {
        Some(minutes) => Length { rounds: u64::MAX, round: LONG_ROUND, time: Duration::from_secs(60 * minutes) },
        None => Length { rounds: 5, round: 500, time: Duration::MAX },
    };
    let outcome = hammer(place.mounted("shared"), length, Some(Watch::new(&place)));
    if let Err(error) = outcome {
        panic!("{error}");
    }
    place.umount();
    place.assert_sound();
}

/// The same on a directory of the host: shows whether it is the hammer that is wrong.
#[test]
fn the_hammer_on_a_directory_of_the_host() {
    let directory = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: each program has the directory as its root, which takes root");
    }
    hammer(directory.path().join("shared"), Length { rounds: 2, round: 700, time: Duration::MAX }, None).unwrap();
}

struct Length {
    rounds: u64,
    /// Operations of each thread in a round.
    round: u64,
    /// No round begins later.
    time: Duration,
}

fn hammer(directory: PathBuf, length: Length, mut watch: Option<Watch>) -> Outcome {
    let seed = number("MYRIAD_SEED").unwrap_or_else(|| std::process::id().into());
    let replay = format!("replay: MYRIAD_SEED={seed} cargo test -p myriad --test hammer -- --nocapture");
    println!("{replay}");
    make_directory(&directory)?;
    let mut crew = (0..PROGRAMS).map(|index| Program::start(index, &directory)).collect::<Result<Vec<_>, _>>()?;
    let (begin, mut seeds, mut told, mut rounds) = (Instant::now(), Rng::new(seed), 0, 0);
    let mut tell = |rounds: u64, watch: &Option<Watch>, is_last: bool| {
        let minutes = begin.elapsed().as_secs() / 60;
        if minutes > told || is_last {
            told = minutes;
            let operations = rounds * length.round * shared::ALL as u64;
            let levels = watch.as_ref().map(|watch| format!(", {}", watch.report())).unwrap_or_default();
            println!(
                "{:.1} min: {rounds} rounds, {operations} operations{levels}",
                begin.elapsed().as_secs_f64() / 60.0
            );
        }
    };
    while rounds < length.rounds && begin.elapsed() < length.time {
        let done = round(&directory, &mut crew, seeds.next_u64(), length.round);
        let done = done.and_then(|()| watch.as_mut().map_or(Ok(()), Watch::look));
        done.map_err(|error| format!("round {rounds}: {error}\n{replay}"))?;
        rounds += 1;
        tell(rounds, &watch, false);
    }
    tell(rounds, &watch, true);
    drop(crew);
    fs::remove_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))
}

fn make_directory(directory: &Path) -> Outcome {
    let made = fs::create_dir(directory).and_then(|()| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
    });
    made.map_err(|error| format!("{}: {error}", directory.display()))
}

fn round(directory: &Path, crew: &mut [Program], seed: u64, count: u64) -> Outcome {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    prepare(directory).map_err(failed)?;
    let mut total = Tally::default();
    for answer in all(crew, &format!("work {seed} {count}"))? {
        total.merge(&Tally::from_line(&answer).ok_or_else(|| format!("a program answers {answer}"))?);
    }
    all(crew, "check")?;
    judge(directory, &mut total)?;
    clear(directory).map_err(failed)
}

/// Gives all an order, and waits for all answers: this is where they meet.
fn all(crew: &mut [Program], order: &str) -> Result<Vec<String>, String> {
    for program in crew.iter_mut() {
        writeln!(program.orders, "{order}").map_err(|error| format!("a program takes no orders: {error}"))?;
    }
    // All of them, so that the first complaint does not hide the cause.
    let answers: Vec<_> = crew.iter_mut().map(Program::answer).collect();
    let complaints: Vec<&str> = answers.iter().filter_map(|answer| answer.as_ref().err().map(String::as_str)).collect();
    if complaints.is_empty() { answers.into_iter().collect() } else { Err(complaints.join("\n")) }
}

/// What a round begins with.
fn prepare(directory: &Path) -> std::io::Result<()> {
    File::create_new(directory.join(FILE))?.set_len(BLOCKS_END)?;
    for name in LOCKS.map(counter_name).iter().map(String::as_str).chain([COUNTER]) {
        fs::write(directory.join(name), 0_u64.to_le_bytes())?;
    }
    for name in REPLACED {
        fs::write(directory.join(name), whole(shared::ALL as u32, 1, 100))?;
    }
    for side in SIDES {
        fs::create_dir(directory.join(side))?;
    }
    let [files @ .., last] = MOVED;
    for name in files {
        fs::write(directory.join(SIDES[0]).join(name), name)?;
    }
    fs::create_dir(directory.join(SIDES[0]).join(last))
}

/// With everybody at rest and gone from the directory: what is there is what was made.
fn judge(directory: &Path, total: &mut Tally) -> Outcome {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let equal = |what: &str, found: i64, expected: i64| {
        if found == expected { Ok(()) } else { Err(format!("{what}: {found} found, {expected} by all tallies")) }
    };
    let listed: Vec<_> = fs::read_dir(directory).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    let mut names: Vec<String> = listed.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let contested = |is_dir: bool| {
        let there = listed.iter().filter(|entry| NAMES.iter().any(|&name| entry.file_name() == name));
        there.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) == is_dir).count() as i64
    };
    equal("contested directories", contested(true), total.get("directories"))?;
    equal("contested files and links", contested(false), total.get("files"))?;
    // By its name each is found as well, and by no other.
    let by_name = NAMES.iter().filter(|name| fs::symlink_metadata(directory.join(name)).is_ok()).count() as i64;
    equal("contested names looked up", by_name, contested(true) + contested(false))?;
    names.retain(|name| !NAMES.contains(&name.as_str()));
    let seats = (0..shared::ALL).map(|thread| format!("seat{thread}"));
    let mut expected: Vec<String> = [FILE, COUNTER].iter().chain(&REPLACED).chain(&SIDES).map(|&s| s.into()).collect();
    expected.extend(LOCKS.map(counter_name).into_iter().chain(seats));
    expected.sort();
    if names != expected {
        return Err(format!("the names {names:?} are left, and should be {expected:?}"));
    }
    let links = fs::metadata(directory).map_err(failed)?.nlink() as i64;
    equal("links of the directory", links, 2 + contested(true) + SIDES.len() as i64)?;

    let counted = |name: &str| -> Result<i64, String> {
        let bytes = fs::read(directory.join(name)).map_err(failed)?;
        bytes.try_into().map(i64::from_le_bytes).map_err(|bytes| format!("{name} is {bytes:?}"))
    };
    for lock in LOCKS {
        equal(&lock_name(lock), counted(&counter_name(lock))?, total.get(lock))?;
    }
    equal("counted under fcntl locks", counted(COUNTER)?, total.get(COUNTER))?;
    for name in MOVED {
        for (side, expected) in SIDES.iter().zip([1 - total.get(name), total.get(name)]) {
            let is_there = fs::symlink_metadata(directory.join(side).join(name)).is_ok();
            equal(&format!("{side}/{name}"), is_there.into(), expected)?;
        }
    }
    let last = MOVED[MOVED.len() - 1];
    for (side, directories) in SIDES.iter().zip([1 - total.get(last), total.get(last)]) {
        let links = fs::metadata(directory.join(side)).map_err(failed)?.nlink() as i64;
        equal(&format!("links of {side}"), links, 2 + directories)?;
    }

    let file = File::options().read(true).write(true).open(directory.join(FILE)).map_err(failed)?;
    shared::harvest(&file, total)?;
    equal("appended records", total.get("harvested"), total.get("appended"))?;
    equal("numbers of appended records", total.get("harvested-numbers"), total.get("appended-numbers"))
}

/// Removes all but the directory itself, for it is the programs' root.
fn clear(directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    match fs::read_dir(directory)?.next() {
        None => Ok(()),
        Some(left) => Err(std::io::Error::other(format!("{:?} is listed, though all was removed", left?.file_name()))),
    }
}

/// A program at work.
struct Program {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Program {
    fn start(index: usize, directory: &Path) -> Result<Self, String> {
        let (child, orders, answers) = child::start(MARK, |command| {
            command.env(CHILD_INDEX, index.to_string()).env(CHILD_DIRECTORY, directory);
        })?;
        Ok(Self { child, orders, answers })
    }

    fn answer(&mut self) -> Result<String, String> {
        let said = self.answers.recv_timeout(HANG).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                format!("a program has not answered for {} s: something hangs", HANG.as_secs())
            }
            RecvTimeoutError::Disconnected => "a program has died".to_owned(),
        })?;
        match said.split_once(' ').unwrap_or((&said, "")) {
            ("done", tally) => Ok(tally.trim().to_owned()),
            (_, complaint) => Err(complaint.to_owned()),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Its descriptors keep the mount.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
