//! The daemon of a mount killed under programs at work, again and again; then mounted, checked, and everything that was
//! synced looked at. `scripts/kills` is the long form. What fills up or fails below a mount, also under programs, is in
//! `devices.rs`; what SQLite takes for synced, in `sqlite.rs`.
//!
//! The trials cut power below the engine, exactly and by the hundred thousand. Here the whole program is tried: a
//! daemon that dies by SIGKILL with requests of git, SQLite or tar in flight, and a mount that replaces the dead one. Programs
//! record, outside of the mount, what a sync promised them and what they are about to break. After each kill the image must be
//! sound to `fsck -n`, mount again over the dead mount, be sound to `fsck --online`, and keep every promise. In orders `sync` and
//! `softdep` space may be in use for nothing; that the daemon gives back, and anything else that it finds is a failure. The seed gives the
//! same programs, work and moments, but not the same interleaving, so a failure may need several runs of its seed. A device that
//! fails by itself is tried at every request below the engine (`scripts/reliability`).

#[path = "../common/mod.rs"]
mod common;
mod devices;
mod ledger;
mod programs;
mod sqlite;

use common::mount::{MountPlace, Signal, is_alive, kill, mkfs_words, wait_until};
use ledger::Ledger;
use myriad_check::{Options, check};
use myriad_device::{Access, FileDevice};
use myriad_format::choices::Order;
use myriad_sim::rng::{is_long, number};
use programs::{Job, PROGRAMS, Program, Random};
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const VOLUME: u64 = 1 << 30;
/// After so many kills a volume is old enough; the next ones get a new one.
const KILLS_A_VOLUME: u64 = 10;
/// What the daemon says, beside the image.
const LOG: &str = "daemon.log";

#[test]
fn what_was_synced_survives_every_kill() {
    let is_long = is_long();
    let count = number("MYRIAD_KILLS").unwrap_or(if is_long { 100 } else { 5 });
    let seed = number("MYRIAD_SEED").unwrap_or_else(|| std::process::id().into());
    let words = mkfs_words();
    println!(
        "replay: MYRIAD_MKFS='{words}' MYRIAD_SEED={seed} MYRIAD_KILLS={count} cargo test -p myriad --test kills -- --nocapture"
    );
    let able = able_programs();
    let mut total = Total::default();
    let mut random = Random::new(seed);
    while total.ends < count {
        let Some(place) = MountPlace::with_chosen_volume(VOLUME) else { return };
        let series = Series::new(&place, "vol.img", &able);
        place.mount("");
        for _ in 0..KILLS_A_VOLUME.min(count - total.ends) {
            let daemon = place.daemon();
            let drops_caches = random.below(2) == 0;
            let recover = || {
                wait_until("the daemon is gone", || !is_alive(daemon));
                if drops_caches {
                    // Where only root of the host may, they stay.
                    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
                }
            };
            series.end_once(&mut random, is_long || count > 5, &mut total, || kill(daemon, Signal::KILL), recover);
        }
        place.umount();
        if series.leaves_space {
            // The background check may not have come to its end.
            total.failures.extend(series.damage());
            place.line("fsck -p vol.img");
        }
        place.assert_sound();
    }
    println!("{}", total.report("kills", seed));
    total.judge();
}

/// Programs that are installed; a line about each other.
fn able_programs() -> Vec<&'static Program> {
    let (able, unable): (Vec<_>, Vec<_>) = PROGRAMS.iter().partition(|program| program.lacks().is_none());
    for program in unable {
        println!("skipped: {}, for {} is not installed", program.name, program.lacks().unwrap_or_default());
    }
    able
}

#[derive(Default)]
struct Total {
    /// How often the mount ended.
    ends: u64,
    promises: usize,
    steps: u64,
    /// Milliseconds from the order to mount until the volume answers.
    mounts: Vec<u128>,
    failures: Vec<String>,
}

impl Total {
    fn judge(&self) {
        assert!(self.promises > 0, "nothing was promised, so nothing was looked at");
        assert!(self.failures.is_empty(), "{:#?}", self.failures);
    }

    fn report(&mut self, ends: &str, seed: u64) -> String {
        self.mounts.sort_unstable();
        let (median, longest) = (self.mounts[self.mounts.len() / 2], self.mounts[self.mounts.len() - 1]);
        let slow = self.mounts.iter().filter(|&&mount| mount > 1000).count();
        format!(
            "{} {ends}, seed {seed}: {} steps of programs, {} promises looked at, {} failures; mounted again in {median} ms (median), \
             {longest} ms (longest), {slow} over a second",
            self.ends,
            self.steps,
            self.promises,
            self.failures.len()
        )
    }
}

/// The ends that one volume's mounts come to.
struct Series<'a> {
    place: &'a MountPlace,
    image: &'a str,
    able: &'a [&'a Program],
    ledger: Ledger,
    /// A kill may leave blocks and inodes that are in use for nothing, which a thread of the next mount gives back.
    leaves_space: bool,
}

impl<'a> Series<'a> {
    fn new(place: &'a MountPlace, image: &'a str, able: &'a [&'a Program]) -> Self {
        make_tree(&place.path("source"));
        let mut tar = Command::new("tar");
        // Without it nobody unpacks.
        let _ = tar.arg("-C").arg(place.path("source")).arg("-cf").arg(place.path("tar")).arg(".").status();
        let info = place.line(&format!("info --json {image}")).ok().json();
        let order = info["order"].as_str().and_then(Order::named).expect("an order");
        assert!(order != Order::None, "order none promises nothing of the time after a kill");
        Self { place, image, able, ledger: Ledger::default(), leaves_space: order.goes_by_rounds() }
    }

    /// What is wrong with the image that a kill has left.
    fn damage(&self) -> Option<String> {
        if !self.leaves_space {
            return self.complaint(&format!("fsck -n {}", self.image));
        }
        let image = FileDevice::open(self.place.path(self.image), Access::ReadOnly).expect("an image");
        let report = check(Arc::new(image), None, &Options::default()).expect("a volume");
        let damage = report.findings.iter().filter(|finding| !finding.is_leftover).map(ToString::to_string);
        (report.damage_count > 0).then(|| format!("{}: {:#?}", self.image, damage.collect::<Vec<_>>()))
    }

    /// What is wrong with the mounted volume.
    fn damage_online(&self) -> Option<String> {
        if !self.leaves_space {
            return self.complaint("fsck --online mnt");
        }
        // The daemon looks by itself, and says what it finds.
        let log = fs::read_to_string(self.place.path(LOG)).unwrap_or_default();
        log.contains("found damage").then_some(log)
    }

    /// What a command says that ought to be silent.
    fn complaint(&self, line: &str) -> Option<String> {
        let said = self.place.line(line);
        (said.code != 0 || !said.out.is_empty()).then(|| format!("{line}: {said:?}"))
    }

    /// `end` ends the mount on `mnt` under programs at work, `recover` gets the place ready for the next one.
    fn end_once(
        &self,
        random: &mut Random,
        is_long: bool,
        total: &mut Total,
        end: impl FnOnce(),
        recover: impl FnOnce(),
    ) {
        total.ends += 1;
        let mut programs: Vec<&Program> = self.able.to_vec();
        while programs.len() > 3 {
            programs.swap_remove(random.below(programs.len() as u64) as usize);
        }
        let names = programs.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
        let wait = Duration::from_millis(random.below(if is_long { 3000 } else { 700 }));
        let (steps, ended, children) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
        let complaints: Vec<String> = std::thread::scope(|scope| {
            let mut running = Vec::new();
            for program in &programs {
                let (seed, steps, ended, children) = (random.below(1 << 40), &steps, &ended, &children);
                running.push(scope.spawn(move || {
                    let (top, source, archive) =
                        (self.place.path("mnt"), self.place.path("source"), self.place.path("tar"));
                    let (source, archive) = (&*source, &*archive);
                    let job = Job { top: &top, ledger: &self.ledger, source, archive, seed, steps, children };
                    let outcome = (program.run)(&job);
                    // What fails on a live mount is a failure of its own.
                    let was_live = !ended.load(Relaxed);
                    outcome.err().filter(|_| was_live).map(|error| format!("{} on a live mount: {error}", program.name))
                }));
            }
            std::thread::sleep(wait);
            // They have work for longer than this; one that found something wrong has ended.
            let early = |(name, child): &mut (&str, Child)| {
                let status = child.try_wait().expect("a child")?;
                Some(format!("{name} on a live mount: {status}"))
            };
            let mut complaints: Vec<String> = children.lock().unwrap().iter_mut().filter_map(early).collect();
            ended.store(true, Relaxed);
            end();
            complaints.extend(running.into_iter().filter_map(|thread| thread.join().unwrap()));
            complaints
        });
        for (_, mut child) in children.into_inner().unwrap() {
            let _ = child.kill();
            let _ = child.wait();
        }
        recover();
        let mut broken = complaints;
        broken.extend(self.damage());
        let start = Instant::now();
        let log = self.place.path(LOG);
        let mounted = self.place.line(&format!("mount -o logfile={} {} mnt", log.display(), self.image));
        total.mounts.push(start.elapsed().as_millis());
        assert_eq!(mounted.code, 0, "after end {}: {mounted:?}", total.ends);
        let online = self.damage_online();
        let (lost, promises) = self.ledger.check(&self.place.path("mnt"));
        broken.extend(online.into_iter().chain(lost));
        total.promises += promises;
        total.steps += steps.load(Relaxed);
        let run = format!("end {} after {} ms under {names}", total.ends, wait.as_millis());
        println!(
            "{run}: {} steps, {promises} promises, {} ms",
            steps.load(Relaxed),
            total.mounts[total.mounts.len() - 1]
        );
        total.failures.extend(broken.into_iter().map(|what| format!("{run}: {what}")));
    }
}

/// A tree as archives hold them: many small files, some empty, links of both kinds, modes.
fn make_tree(top: &Path) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let mut random = Random::new(7);
    for directory in 0..12 {
        let directory = top.join(format!("{}/{directory}", directory % 3));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..25 {
            let path = directory.join(format!("file {file}"));
            fs::write(&path, vec![file; random.below(12_000) as usize]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + u32::from(file))).unwrap();
        }
        fs::hard_link(directory.join("file 1"), directory.join("also file 1")).unwrap();
        symlink("file 2", directory.join("to file 2")).unwrap();
    }
}
