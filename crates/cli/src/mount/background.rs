//! The background check: what a crash under order `softdep` has left behind, found and given back while the volume is mounted.
//!
//! A volume of that order opens at once after a crash. Blocks and inodes may then be in use for nothing, and nothing else is wrong
//! (docs/design/soft-updates.md). A thread of the daemon holds a moment of the volume, checks it as `fsck --online` does, and has the
//! engine give back what was found. Because it works while others do, it takes no more than a share of a processor: after each piece of
//! work it rests for as long as that share asks.
//!
//! If it finds anything else, it gives nothing back, notes in the volume that a check is needed, and says so.

use super::log::Log;
use super::moment::{MOMENTS_MAX, device_number, file_for_images};
use crate::show::name::count;
use anyhow::{Result, anyhow, ensure};
use myriad_check::{Online, Options, Progress, check_moment};
use myriad_engine::{Error, Fs, GivenBack, HeldMoment};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Most that before-images may take of TMPDIR.
const ROOM: u64 = 1 << 30;
/// Longest rest at a time.
const REST_MAX: Duration = Duration::from_secs(5);
/// Rest before a moment that could not be held is asked for again, at first and at most: each time it doubles.
const MOMENT_REST_MIN: Duration = Duration::from_millis(100);
const MOMENT_REST_MAX: Duration = Duration::from_secs(60);

/// The thread, which ends when this is dropped.
pub struct BackgroundCheck {
    pace: Arc<Pace>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundCheck {
    /// Begins, if a crash may have left something behind. `share`: percent of a processor, 0 for none. `device`: the mount's, as stat(2)
    /// has it, where before-images must not lie.
    pub fn begin(fs: &Fs, share: u32, device: &str, name: String, log: Arc<Log>) -> Option<Self> {
        if share == 0 || !fs.has_leftovers() || fs.info().read_only {
            return None;
        }
        let pace = Arc::new(Pace::new(share));
        let (fs, device, its_pace, its_log) = (fs.clone(), device.to_owned(), Arc::clone(&pace), Arc::clone(&log));
        let its_name = name.clone();
        let run = move || {
            match check(&fs, &its_pace, &device) {
            Ok(Outcome::GivenBack(given)) => its_log.info(&format!("{its_name}: {}", sentence(&given))),
            Ok(Outcome::Damaged(first)) => its_log.error(&format!(
                "{its_name}: the background check found damage: {first}; unmount it and run myriad fsck -y: until then it will not be \
                 mounted for writing again"
            )),
            Ok(Outcome::Ended) => {}
            Err(why) => its_log.warning(&format!(
                "{its_name}: what the crash left behind was not given back: {why:#}; the next mount tries again"
            )),
        }
        };
        let thread = thread::Builder::new().name("myriad-check".into()).spawn(run);
        match thread {
            Ok(thread) => Some(Self { pace, thread: Some(thread) }),
            Err(error) => {
                log.warning(&format!("{name}: no background check: {error}"));
                None
            }
        }
    }
}

impl Drop for BackgroundCheck {
    fn drop(&mut self) {
        self.pace.stop();
        if let Some(thread) = self.thread.take() {
            // A panic has been told of.
            let _ = thread.join();
        }
    }
}

/// How a background check ended.
enum Outcome {
    GivenBack(GivenBack),
    /// With the first finding that is no leftover.
    Damaged(String),
    /// The volume is being closed.
    Ended,
}

fn sentence(given: &GivenBack) -> String {
    let GivenBack { blocks, inodes, links, left } = *given;
    if *given == GivenBack::default() {
        return "the crash had left nothing behind".into();
    }
    let (blocks, inodes, links) = (count(blocks, "block"), count(inodes, "inode"), count(links, "link count"));
    let what = format!("gave back what the crash had left behind: {blocks}, {inodes}, {links}");
    match left {
        0 => what,
        left => format!("{what}; {left} more can only be put right by myriad fsck -p, unmounted"),
    }
}

fn check(fs: &Fs, pace: &Pace, device: &str) -> Result<Outcome> {
    let mut given = GivenBack::default();
    let mut lost = String::new();
    for _ in 0..MOMENTS_MAX {
        let Some(held) = hold_moment(fs, pace, device)? else { return Ok(Outcome::Ended) };
        let moment = held.moment()?;
        let progress = |_: Progress| pace.rest();
        let options = Options { threads: 1, leftovers: true, progress: Some(&progress), ..Options::default() };
        let report = match check_moment(&moment, &options) {
            Ok(Online::Checked(report)) => {
                lost.clear();
                report
            }
            Ok(Online::GivenUp(why)) => {
                lost = why;
                continue;
            }
            Err(_) if pace.is_stopped() => return Ok(Outcome::Ended),
            Err(error) => return Err(error.into()),
        };
        if report.damage_count > 0 {
            fs.ask_for_check()?;
            let first = report.findings.iter().find(|finding| !finding.is_leftover);
            return Ok(Outcome::Damaged(first.map_or_else(String::new, ToString::to_string)));
        }
        let more = match fs.give_back(held, &report.leftovers) {
            Ok(more) => more,
            Err(Error::Closed) => return Ok(Outcome::Ended),
            Err(error) => return Err(error.into()),
        };
        given = GivenBack {
            blocks: given.blocks + more.blocks,
            inodes: given.inodes + more.inodes,
            links: given.links + more.links,
            left: more.left,
        };
        if given.left <= report.leftovers.others {
            return Ok(Outcome::GivenBack(given));
        }
        // Something changed while it was looked for.
    }
    if lost.is_empty() { Ok(Outcome::GivenBack(given)) } else { Err(anyhow!(lost)) }
}

/// Holds a moment as soon as there can be one; `None` if the volume is being closed first. Only one is held at a time, and a very busy
/// volume has none: neither lasts, and no later mount looks before the next one.
fn hold_moment(fs: &Fs, pace: &Pace, device: &str) -> Result<Option<HeldMoment>> {
    let mut rest = MOMENT_REST_MIN;
    loop {
        let file = file_for_images(ROOM, "name another directory in TMPDIR")?;
        ensure!(device != device_number(&file)?, "TMPDIR lies on the volume itself");
        match fs.hold_moment(file) {
            Ok(held) => return Ok(Some(held)),
            Err(Error::Closed) => return Ok(None),
            Err(Error::InUse(_)) if pace.rest_for(rest) => rest = (rest * 2).min(MOMENT_REST_MAX),
            Err(Error::InUse(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Keeps work to a share of the time.
struct Pace {
    /// Percent, 1 to 100.
    share: u32,
    /// Since when it has worked; `None` once it is to end.
    since: Mutex<Option<Instant>>,
    ending: Condvar,
}

impl Pace {
    fn new(share: u32) -> Self {
        Self { share: share.clamp(1, 100), since: Mutex::new(Some(Instant::now())), ending: Condvar::new() }
    }

    /// Rests for as long as the work since the last rest asks; false if there is to be no more.
    fn rest(&self) -> bool {
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(begun) = *since else { return false };
        let rest = (begun.elapsed() * (100 - self.share) / self.share).min(REST_MAX);
        // Shorter ones than the scheduler keeps to gather.
        rest < Duration::from_millis(2) || self.rest_locked(since, rest)
    }

    /// Rests for so long; false if there is to be no more work.
    fn rest_for(&self, rest: Duration) -> bool {
        self.rest_locked(self.since.lock().unwrap_or_else(PoisonError::into_inner), rest)
    }

    fn rest_locked(&self, since: MutexGuard<'_, Option<Instant>>, rest: Duration) -> bool {
        let rested = self.ending.wait_timeout_while(since, rest, |since| since.is_some());
        let (mut since, _) = rested.unwrap_or_else(PoisonError::into_inner);
        if let Some(begun) = &mut *since {
            *begun = Instant::now();
        }
        since.is_some()
    }

    fn stop(&self) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.ending.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use myriad_device::MemoryDevice;
    use myriad_engine::{MkfsOptions, MountOptions, Order};
    use myriad_format::choices::Profile;

    /// Somebody else's check held a moment just when this one began, and that ended it for as long as the volume was mounted: what the crash
    /// had left stayed lost. A volume that was too busy for a moment just then did the same.
    #[test]
    fn it_waits_while_somebody_else_holds_a_moment() {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let choices = Profile::parse("ffs").unwrap().choices;
        let mkfs = MkfsOptions { choices, order: Order::Soft, ..MkfsOptions::default() };
        Fs::format_device(device.clone(), None, &mkfs).unwrap();
        let options = MountOptions { cache_size: 8 << 20, ..MountOptions::default() };
        let fs = Fs::open_device(device, None, options).unwrap();
        let held = fs.hold_moment(file_for_images(1 << 20, "").unwrap()).unwrap();
        let pace = Pace::new(100);
        thread::scope(|scope| {
            let checking = scope.spawn(|| check(&fs, &pace, ""));
            // By then it has been refused.
            thread::sleep(Duration::from_millis(100));
            drop(held);
            assert!(matches!(checking.join().unwrap().unwrap(), Outcome::GivenBack(_)));
            let _held = fs.hold_moment(file_for_images(1 << 20, "").unwrap()).unwrap();
            let checking = scope.spawn(|| check(&fs, &pace, ""));
            pace.stop();
            assert!(matches!(checking.join().unwrap().unwrap(), Outcome::Ended));
        });
    }

    #[test]
    fn it_rests_until_it_is_told_to_end() {
        let pace = Arc::new(Pace::new(1));
        assert!(pace.rest());
        thread::sleep(Duration::from_millis(60));
        let resting = Arc::clone(&pace);
        // It would rest for five seconds.
        let thread = thread::spawn(move || resting.rest());
        pace.stop();
        assert!(!thread.join().unwrap());
        assert!(pace.is_stopped() && !pace.rest());
    }

    #[test]
    fn the_sentence_says_what_is_left() {
        let mut given = GivenBack { blocks: 7, inodes: 2, links: 1, left: 0 };
        assert_eq!(sentence(&given), "gave back what the crash had left behind: 7 blocks, 2 inodes, 1 link count");
        given.left = 1;
        assert!(sentence(&given).ends_with("; 1 more can only be put right by myriad fsck -p, unmounted"));
        assert_eq!(sentence(&GivenBack::default()), "the crash had left nothing behind");
    }
}
