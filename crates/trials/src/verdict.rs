//! What the checker says of a volume, panics as errors, and the time that it all took.

use crate::setup::Devices;
use myriad_check::{Options, Report, Totals, check, number};
use myriad_engine::{AsPath, OpenOptions, Session};
use myriad_sim::model::content::first_not_zero;
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;

/// The checker has nothing to say about the volume, nor about the data in it if that has checksums.
pub fn check_silent(devices: &Devices) -> Result<(), String> {
    let options = Options { threads: 1, scrub: true, ..Options::default() };
    let report =
        check(devices.main.clone(), devices.log.clone(), &options).map_err(|error| format!("check: {error}"))?;
    if report.is_sound() {
        return Ok(());
    }
    let shown = report.findings.iter().take(10).map(|finding| format!("\n  {finding}"));
    Err(format!("check finds {} things wrong:{}", report.finding_count, shown.collect::<String>()))
}

/// The checker finds no more on the volume than what power loss may leave in order `softdep`.
pub fn check_usable(devices: &Devices) -> Result<(), String> {
    usable(&look(devices)?)
}

/// As [`check_usable`], of a volume that was closed: closing waits until no directory has a second name.
pub fn check_closed(devices: &Devices) -> Result<(), String> {
    let report = look(devices)?;
    usable(&report)?;
    match report.findings.iter().find(|finding| finding.number == number::DIRECTORY_TWICE) {
        Some(second) => Err(format!("check finds on a volume that was closed:\n  {second}")),
        None => Ok(()),
    }
}

fn look(devices: &Devices) -> Result<Report, String> {
    let options = Options { threads: 1, ..Options::default() };
    check(devices.main.clone(), devices.log.clone(), &options).map_err(|error| format!("check: {error}"))
}

/// Makes a file `size` bytes long, which is no less than it has. All from byte `end` on, to which it was written, must read as zeros, whether
/// it is gained now or was before; where the first byte is that does not.
pub fn grow(
    session: &Session,
    path: &(impl AsPath + ?Sized),
    end: u64,
    size: u64,
) -> myriad_engine::Result<Option<u64>> {
    let file = session.open(path, OpenOptions::READ_WRITE)?;
    file.truncate(size)?;
    let mut gained = vec![0xee; (size - end) as usize];
    file.read_at(&mut gained, end)?;
    Ok(first_not_zero(&gained).map(|at| end + at as u64))
}

/// As [`check_usable`]; and a check may repair what power loss has left. Whether there was anything.
pub fn mend_usable(devices: &Devices) -> Result<bool, String> {
    // Orders without a log have no checksums of data that a scrub could compare.
    let options = Options { threads: 1, repair: true, new_log: true, ..Options::default() };
    let report =
        check(devices.main.clone(), devices.log.clone(), &options).map_err(|error| format!("check: {error}"))?;
    usable(&report)?;
    if !report.is_sound() {
        return Err(remains(&report));
    }
    Ok(report.finding_count > 0)
}

fn usable(report: &Report) -> Result<(), String> {
    // Of the volume as it was found, also if it has been repaired since.
    if report.damage_count == 0 {
        return Ok(());
    }
    let damage = report.findings.iter().filter(|finding| !finding.is_leftover).take(10);
    let shown = damage.map(|finding| format!("\n  {finding}")).collect::<String>();
    Err(format!("check finds {} things damaged:{shown}", report.damage_count))
}

fn remains(report: &Report) -> String {
    let shown = report.remaining.iter().take(10).map(|finding| format!("\n  {finding}"));
    format!("{} things remain after repair:{}", report.remaining_count, shown.collect::<String>())
}

/// Whether the checker reports something of this kind.
pub fn finds(devices: &Devices, number: u32) -> bool {
    look(devices).is_ok_and(|report| report.findings.iter().any(|finding| finding.number == number))
}

/// Check may repair, take the data as it is, and begin a new log; afterwards it has nothing to say. What there is then.
pub fn repair(devices: &Devices) -> Result<Totals, String> {
    let options =
        Options { threads: 1, repair: true, scrub: true, accept_contents: true, new_log: true, ..Options::default() };
    let report =
        check(devices.main.clone(), devices.log.clone(), &options).map_err(|error| format!("repair: {error}"))?;
    if !report.is_sound() {
        return Err(remains(&report));
    }
    check_silent(devices)?;
    Ok(report.totals)
}

thread_local! {
    /// Place and message of the last panic of this thread that [`quietly`] kept silent.
    static SILENCED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work`; a panic becomes an error with its message, and within [`quietly`] with its place as well.
pub fn catch<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    SILENCED.with(|silenced| silenced.take());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("(no message)");
        let placed = SILENCED.with(|silenced| silenced.take());
        Err(format!("panic: {}", placed.as_deref().unwrap_or(message)))
    })
}

/// Nothing is printed of the panics in `work`: while shrinking, the same one would come a hundred times.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    // The hook is the process's: two threads that swap it at once could leave the silent one behind.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| {
        SILENCED.with(|silenced| *silenced.borrow_mut() = Some(info.to_string().replace('\n', " ")));
    }));
    let result = work();
    std::panic::set_hook(hook);
    result
}

/// Time of the processor that this process has taken.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
