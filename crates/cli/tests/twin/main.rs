//! Programs of system calls by several processes and users, on a mount and on an ext4 of the host, one step at a time: the
//! same answers, times and trees. `scripts/suites twin` is the long form.
//!
//! A step is done by the process that it names, on both sides, and the next begins when both have answered. So a program
//! comes out the same each time, and one that shows a difference is made shorter until nothing can be left out.

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod crew;
mod known;
mod look;
mod worker;

use calls::{ACTORS, ALL, Call, Profile, ROOTS, Step, observed, program};
use common::host::{Loop, command};
use common::mount::{MountPlace, mkfs_words};
use crew::Process;
use known::{Difference, KNOWN, Then, What};
use myriad_sim::rng::{self, number};
use myriad_sim::shrink::shrink;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// In a child process: which of the actors it is.
const CHILD_INDEX: &str = "MYRIAD_TWIN_INDEX";

const VOLUME: u64 = 512 << 20;

/// A way to mount, and what is its like on ext4.
#[derive(Clone, Copy, Debug)]
struct Set {
    name: &'static str,
    options: &'static str,
    ext4: &'static str,
    profile: Profile,
    /// A part of the quick form.
    is_quick: bool,
}

const EVERYBODY: Set = Set {
    name: "others",
    options: "allow_other",
    ext4: "noatime",
    profile: Profile { actors: ALL, acls: false },
    is_quick: true,
};

const SETS: &[Set] = &[
    Set { name: "default", options: "", profile: Profile { actors: ROOTS, acls: false }, ..EVERYBODY },
    EVERYBODY,
    Set { name: "acl", options: "allow_other,acl", ext4: "noatime", profile: WITH_ACLS, ..EVERYBODY },
    Set { name: "open", options: "allow_other,open", ..EVERYBODY },
    Set { name: "daemon_checks", options: "allow_other,nodefault_permissions", ..EVERYBODY },
    Set {
        name: "daemon_checks_acl",
        options: "allow_other,nodefault_permissions,acl",
        ext4: "noatime",
        profile: WITH_ACLS,
        ..EVERYBODY
    },
    Set { name: "writeback", options: "allow_other,writeback", ..EVERYBODY },
    Set { name: "direct_io", options: "allow_other,direct_io", ..EVERYBODY },
    Set { name: "relatime", options: "allow_other,relatime", ext4: "relatime", ..EVERYBODY },
    Set { name: "ring", options: "allow_other,acl,transport=ring", ext4: "noatime", profile: WITH_ACLS, ..EVERYBODY },
    Set { name: "classic", options: "allow_other,transport=classic,nobeside", is_quick: false, ..EVERYBODY },
    Set {
        name: "sync",
        options: "allow_other,sync,dirsync",
        ext4: "noatime,sync,dirsync",
        is_quick: false,
        ..EVERYBODY
    },
    Set { name: "no_timeouts", options: "allow_other,entry_timeout=0,attr_timeout=0", is_quick: false, ..EVERYBODY },
    Set { name: "at_write", options: "allow_other,alloc=write,nonamecache", is_quick: false, ..EVERYBODY },
    Set {
        name: "small_cache",
        options: "allow_other,acl,cachesize=32M,open,writeback",
        ext4: "noatime",
        profile: WITH_ACLS,
        is_quick: false,
    },
];

const WITH_ACLS: Profile = Profile { actors: ALL, acls: true };

/// Not a test of its own: in a child process, one of the actors.
#[test]
fn child_works() {
    let Some(index) = number(CHILD_INDEX) else { return };
    worker::run(index as usize).unwrap();
}

/// One of the two file systems, and the processes that work there.
struct Side {
    /// Where it is mounted.
    top: PathBuf,
    processes: Vec<Process>,
}

impl Side {
    fn new(top: PathBuf) -> Result<Self, String> {
        let processes = (0..ACTORS.len()).map(Process::start).collect::<Result<_, _>>()?;
        Ok(Self { top, processes })
    }

    fn directory(&self) -> PathBuf {
        self.top.join("program")
    }

    /// A fresh directory for a program.
    fn clear(&self) -> Result<(), String> {
        let directory = self.directory();
        let make = || {
            myriad_sim::host::remove(&directory)?;
            fs::create_dir(&directory)?;
            fs::set_permissions(&directory, Permissions::from_mode(0o777))?;
            worker::populate(&directory)
        };
        make().map_err(|error| format!("{}: {error}", directory.display()))
    }
}

/// How a program ended.
enum End {
    /// Without a difference but known ones, after so many steps.
    Same(usize),
    Different(Finding),
}

struct Finding {
    /// What it is, without numbers: the same findings are told once.
    kind: String,
    /// All of it.
    said: String,
}

struct Twin {
    set: &'static Set,
    options: String,
    sides: [Side; 2],
    /// How often each known difference was met.
    hits: Vec<u64>,
    tick: Duration,
}

impl Twin {
    fn all(
        &mut self,
        actors: &[usize],
        order: impl Fn(&mut Process, &Path) -> Result<(), String>,
    ) -> Result<[Vec<String>; 2], String> {
        for side in &mut self.sides {
            let directory = side.directory();
            for &actor in actors {
                order(&mut side.processes[actor], &directory)?;
            }
        }
        let [ours, theirs] = &mut self.sides;
        let answers = |side: &mut Side| -> Result<Vec<_>, String> {
            actors.iter().map(|&actor| side.processes[actor].answer()).collect()
        };
        Ok([answers(ours)?, answers(theirs)?])
    }

    /// Runs the steps of a program that are in `kept`.
    fn run(&mut self, seed: u64, count: usize, kept: &[usize]) -> Result<End, String> {
        let profile = self.set.profile;
        let steps = program(seed, profile, count);
        // Files must be closed on both sides before the directories go.
        self.sides.iter().try_for_each(Side::clear)?;
        self.all(profile.actors, |process, directory| process.begin(seed, profile, count, directory))?;
        let watched = observed();
        let is_timed = seed.is_multiple_of(4);
        let is_mapping = |call: &Call| matches!(call, Call::Map { .. });
        let mut before = self.sides.each_ref().map(|side| look::stamps(&side.directory(), &watched));
        for (done, &index) in kept.iter().enumerate() {
            let step = &steps[index];
            // When mapped stores move times is the kernel's choice.
            if is_timed && is_mapping(&step.call) {
                continue;
            }
            if is_timed {
                self.wait_for_a_tick();
            }
            if self.is_left_out(step) {
                continue;
            }
            let answers = self.all(&[step.actor], |process, _| process.order(&format!("step {index}")))?;
            let [ours, theirs] = answers.map(|mut answer| answer.remove(0));
            match self.judge(step, What::Answer, &ours, &theirs, "") {
                Verdict::Same => {}
                Verdict::Stop => return Ok(End::Same(done)),
                Verdict::Found(finding) => return Ok(End::Different(finding)),
            }
            if is_timed {
                let now = self.sides.each_ref().map(|side| look::stamps(&side.directory(), &watched));
                let moved: [_; 2] = std::array::from_fn(|side| look::moved(&before[side], &now[side]));
                before = now;
                if let Some(end) = self.judge_times(step, done, &moved) {
                    return Ok(end);
                }
            }
            if index % 100 == 99 || done + 1 == kept.len() {
                let [ours, theirs] = self.sides.each_ref().map(|side| look::tree(&side.directory()));
                let (ours, theirs) = (ours?, theirs?);
                let paths: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).cloned().collect();
                for path in paths {
                    let of = |tree: &BTreeMap<String, String>| tree.get(&path).cloned().unwrap_or("nothing".into());
                    match self.judge(step, What::Tree, &of(&ours), &of(&theirs), &path) {
                        Verdict::Same => {}
                        Verdict::Stop => return Ok(End::Same(done)),
                        Verdict::Found(finding) => return Ok(End::Different(finding)),
                    }
                }
                if is_timed {
                    before = self.sides.each_ref().map(|side| look::stamps(&side.directory(), &watched));
                }
            }
        }
        Ok(End::Same(kept.len()))
    }

    fn is_left_out(&mut self, step: &Step) -> bool {
        let options = format!(",{},", self.options);
        let known = known::find(&Difference { options: &options, step, what: What::Before, ours: "", theirs: "" });
        known.inspect(|&known| self.hits[known] += 1).is_some()
    }

    fn judge_times(&mut self, step: &Step, done: usize, moved: &[BTreeMap<&'static str, [bool; 3]>; 2]) -> Option<End> {
        for (path, ours) in &moved[0] {
            let Some(theirs) = moved[1].get(path) else { continue };
            for (at, name) in ["modification", "change", "access"].into_iter().enumerate() {
                let say = |moved: bool| if moved { format!("{name} moved") } else { format!("{name} stayed") };
                match self.judge(step, What::Times, &say(ours[at]), &say(theirs[at]), path) {
                    Verdict::Same => {}
                    Verdict::Stop => return Some(End::Same(done)),
                    Verdict::Found(finding) => return Some(End::Different(finding)),
                }
            }
        }
        None
    }

    fn judge(&mut self, step: &Step, what: What, ours: &str, theirs: &str, path: &str) -> Verdict {
        if ours == theirs {
            return Verdict::Same;
        }
        let options = format!(",{},", self.options);
        let difference = Difference { options: &options, step, what, ours, theirs };
        if let Some(known) = known::find(&difference) {
            self.hits[known] += 1;
            return if KNOWN[known].then == Then::Ends { Verdict::Stop } else { Verdict::Same };
        }
        let actor = ACTORS[step.actor].name;
        let call = format!("{:?}", step.call);
        let name = call.split([' ', '{']).next().unwrap_or_default();
        let kind = match what {
            What::Tree => {
                format!("tree: {} / {}", kind_of(&differing(ours, theirs)), kind_of(&differing(theirs, ours)))
            }
            _ => format!("{what:?} {name}: {} / {}", kind_of(ours), kind_of(theirs)),
        };
        let what = if path.is_empty() { format!("{what:?}") } else { format!("{what:?} of {path}") };
        let said = format!("{what} after {actor}: {call}\n    mount: {ours}\n    ext4:  {theirs}");
        Verdict::Found(Finding { kind, said })
    }

    /// Until the clock that times are taken from has moved.
    fn wait_for_a_tick(&self) {
        let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let start = now();
        while now() == start {
            std::thread::sleep(self.tick / 2);
        }
    }
}

enum Verdict {
    Same,
    Stop,
    Found(Finding),
}

/// The words of `one` that `other` does not have at their place.
fn differing(one: &str, other: &str) -> String {
    let other: Vec<&str> = other.split(' ').collect();
    let words = one.split(' ').enumerate().filter(|(at, word)| other.get(*at) != Some(word));
    words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

/// Without what differs from one case to the next.
fn kind_of(said: &str) -> String {
    let plain: String = said.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    plain.split("00").collect::<String>().chars().take(60).collect()
}

/// What has been found in all sets.
#[derive(Default)]
struct Report {
    findings: BTreeMap<String, (u64, String)>,
    hits: Vec<u64>,
    programs: u64,
    steps: u64,
}

/// The places that all sets are run in.
struct Ground {
    place: MountPlace,
    device: Loop,
}

impl Ground {
    /// `None`, and a line that says why, where one of the two cannot be mounted.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: acting as other users, and an ext4 on a loop device, take root");
            return None;
        }
        let place = MountPlace::with_volume(VOLUME)?;
        if Command::new("mkfs.ext4").arg("-V").output().is_err() {
            println!("skipped: e2fsprogs is not installed");
            return None;
        }
        let device = Loop::new(&place.path("backing"), 2 << 30)?;
        let made = command("mkfs.ext4", &["-q", "-E", "nodiscard,lazy_itable_init=1"], Path::new(&device.0));
        made.expect("a device to write on");
        fs::create_dir(place.path("ext4")).unwrap();
        // Everybody goes through here.
        fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).unwrap();
        Some(Self { place, device })
    }

    /// A mount of each kind, for as long as `work` takes.
    fn with(&self, set: &'static Set, work: impl FnOnce(&mut Twin)) {
        let more = std::env::var("MYRIAD_MOUNT_OPTIONS").unwrap_or_default();
        let options = ["suid,dev", set.options, &more].map(str::to_owned);
        let options = options.into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(",");
        let (ours, theirs) = (self.place.path("mnt"), self.place.path("ext4"));
        command("mount", &["-t", "ext4", "-o", set.ext4, &self.device.0], &theirs).expect("an ext4 to mount");
        let host = Unmounted(&theirs);
        self.place.line(&format!("mkfs --quiet --force {} vol.img", mkfs_words())).ok();
        self.place.mount(&format!("-o {options}"));
        fs::set_permissions(&ours, Permissions::from_mode(0o755)).unwrap();
        let sides = [ours, theirs.clone()].map(|top| Side::new(top).expect("processes"));
        let tick = rustix::time::clock_getres(rustix::time::ClockId::RealtimeCoarse);
        let tick = Duration::from_nanos(tick.tv_nsec as u64);
        let mut twin = Twin { set, options, sides, hits: vec![0; KNOWN.len()], tick };
        work(&mut twin);
        drop(twin);
        drop(host);
        self.place.umount();
        self.place.assert_sound();
    }
}

/// An ext4, which is unmounted when this is dropped.
struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = command("umount", &["-l"], self.0);
    }
}

/// Why a set cannot be run here.
fn lacks(set: &Set) -> Option<&'static str> {
    let ring = fs::read_to_string("/sys/module/fuse/parameters/enable_uring").unwrap_or_default();
    (set.options.contains("transport=ring") && ring.trim() != "Y").then_some("the kernel's ring is not switched on")
}

/// So many findings are made shorter and told in full.
const TOLD: usize = 6;

#[test]
fn a_mount_answers_as_ext4() {
    let is_long = rng::is_long();
    let minutes = number("MYRIAD_MINUTES");
    let (programs, count) = match (is_long, minutes) {
        (_, Some(_)) => (u64::MAX, 600),
        (true, None) => (60, 600),
        (false, None) => (number("MYRIAD_PROGRAMS").unwrap_or(6), 300),
    };
    let only = std::env::var("MYRIAD_TWIN_SET").ok();
    let first = rng::seed_or(1);
    let programs =
        if std::env::var_os("MYRIAD_SEED").is_some() && minutes.is_none() && number("MYRIAD_PROGRAMS").is_none() {
            1
        } else {
            programs
        };
    let count = number("MYRIAD_OPERATIONS").map_or(count, |count| count as usize);
    let Some(ground) = Ground::new() else { return };
    let chosen: Vec<&Set> = SETS
        .iter()
        .filter(|set| match &only {
            Some(only) => set.name == only,
            None => set.is_quick || is_long || minutes.is_some(),
        })
        .filter(|set| match lacks(set) {
            None => true,
            Some(reason) => {
                println!("skipped: {}: {reason}", set.name);
                false
            }
        })
        .collect();
    assert!(!chosen.is_empty(), "no such set: {only:?}");
    let mut report = Report { hits: vec![0; KNOWN.len()], ..Report::default() };
    for set in &chosen {
        let begin = Instant::now();
        let end = minutes.map(|minutes| begin + Duration::from_secs(60 * minutes) / chosen.len() as u32);
        let before = (report.programs, report.steps);
        ground.with(set, |twin| run_set(twin, first, programs, count, end, &mut report));
        println!(
            "{}: {} programs, {} steps, {:.1} s",
            set.name,
            report.programs - before.0,
            report.steps - before.1,
            begin.elapsed().as_secs_f64()
        );
    }
    println!("{} programs, {} steps", report.programs, report.steps);
    for (known, hits) in KNOWN.iter().zip(&report.hits) {
        println!("known ({:?}), {hits} times: {}: {}", known.because, known.name, known.reason);
    }
    let told: Vec<String> =
        report.findings.iter().map(|(kind, (count, said))| format!("{count} times: {kind}\n{said}")).collect();
    assert!(told.is_empty(), "{} kinds of differences\n\n{}", told.len(), told.join("\n\n"));
    // What no program meets any more is no difference.
    if only.is_none() && (is_long || minutes.is_some_and(|minutes| minutes >= 10)) {
        let stale: Vec<&str> =
            KNOWN.iter().zip(&report.hits).filter(|(_, hits)| **hits == 0).map(|(known, _)| known.name).collect();
        assert!(stale.is_empty(), "known differences that nothing meets: {stale:?}");
    }
}

fn run_set(twin: &mut Twin, first: u64, programs: u64, count: usize, end: Option<Instant>, report: &mut Report) {
    let all: Vec<usize> = (0..count).collect();
    for seed in first..first.saturating_add(programs) {
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        let set = twin.set;
        let replay = || {
            let more = format!("MYRIAD_TWIN_SET={} MYRIAD_OPERATIONS={count}", set.name);
            rng::replay_line("myriad", "twin::a_mount_answers_as_ext4", seed, &more)
        };
        let outcome = twin.run(seed, count, &all).unwrap_or_else(|error| panic!("{error}\n{}", replay()));
        report.programs += 1;
        match outcome {
            End::Same(steps) => report.steps += steps as u64,
            End::Different(finding) => {
                let told = report.findings.len();
                let kind = finding.kind.clone();
                if let Some((times, _)) = report.findings.get_mut(&kind) {
                    *times += 1;
                    continue;
                }
                let mut said = format!("{}\n{}", finding.said, replay());
                if told < TOLD {
                    let kept = shrink(
                        &all,
                        200,
                        |kept| matches!(twin.run(seed, count, kept), Ok(End::Different(found)) if found.kind == kind),
                    );
                    if let Ok(End::Different(found)) = twin.run(seed, count, &kept) {
                        said = format!("{}\n{}\nshrunk to {} steps:\n", found.said, replay(), kept.len());
                    }
                    let steps = program(seed, set.profile, count);
                    for index in kept {
                        let Step { actor, call } = &steps[index];
                        said += &format!("    {index}: {}: {call:?}\n", ACTORS[*actor].name);
                    }
                }
                println!("{kind}\n{said}");
                report.findings.insert(kind, (1, said));
            }
        }
    }
    report.hits.iter_mut().zip(&twin.hits).for_each(|(all, hits)| *all += hits);
    twin.hits.fill(0);
}
