//! What is done to one image: everything a user could do to a volume that somebody sent.
//!
//! The judgement: no panic, no more requests or cache look-ups than a volume of this size can need, no write where none
//! was asked for, and one opinion between engine and check: a volume that the check finds sound must be one that the
//! engine reads without an error, before a repair and after it.

use crate::hostile::bases::mount_options;
use crate::hostile::device::Watched;
use crate::setup::Devices;
use crate::verdict::check_silent;
use myriad_check::{CheckError, KINDS, Options, Report, check, number};

const _: () = assert!(KINDS.len() <= u64::BITS as usize);
use myriad_device::MemoryDevice;
use myriad_engine::{Cred, Error, Fs, OpenOptions, RenameMode, Session, SetAttr, Stat, XattrMode};
use myriad_sim::rng::Rng;
use std::sync::Arc;

/// Requests that reading or checking a volume of a few MiB may take. A sound one takes a few thousand.
const REQUESTS_MAX: u64 = 200_000;
/// Cache look-ups of the same: a sound base takes below 100,000.
const TOUCHES_MAX: u64 = 20_000_000;
/// Files that a walk may show: the largest base has about 3,000.
const FILES_MAX: usize = 50_000;
/// Bytes read of a file at each place.
const READ_SIZE: usize = 2048;

/// What to do beyond opening and reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Open for changes too, and change this and that.
    pub change: bool,
    /// Run the check.
    pub check: bool,
    /// Repair, check again, and let the engine read and change the result.
    pub repair: bool,
}

/// What became of an image; counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The engine opened it for reading.
    pub opened: bool,
    /// Files the walk showed.
    pub files: u64,
    /// Errors that the engine reported while reading.
    pub errors: u64,
    /// The check ran to its end, and what it found.
    pub checked: bool,
    pub findings: u64,
    /// Opened for changes; operations that succeeded and failed.
    pub changed: bool,
    pub done: u64,
    pub refused: u64,
    /// Kinds of findings that a repair has put right: a bit for each of [`KINDS`].
    pub kinds: u64,
    /// Repair made it sound; or said that it cannot.
    pub repaired: bool,
    pub unrepairable: bool,
}

/// Does all that `plan` says to a copy of `image`. What must not happen is an `Err`; a panic passes through.
pub fn examine(image: &MemoryDevice, plan: Plan, rng: &mut Rng) -> Result<Facts, String> {
    let mut facts = Facts::default();
    let first = read_everything(image, &mut facts, rng)?;
    if plan.check || plan.repair {
        let device = Arc::new(Watched::new(image.clone_image(), false, REQUESTS_MAX));
        let report = check(device.clone(), None, &options(false));
        complain(&device, "check")?;
        match report {
            Ok(report) => {
                facts.checked = true;
                facts.findings = report.finding_count;
                if report.finding_count == 0
                    && let Some(error) = first
                {
                    return Err(format!("the check finds nothing, the engine says: {error}"));
                }
                if plan.repair {
                    in_parts(&device, &report)?;
                }
            }
            Err(error) => cannot_check(&error)?,
        }
    }
    if plan.change {
        let device = Arc::new(Watched::new(image.clone_image(), true, REQUESTS_MAX));
        if let Ok(fs) = open(&device, false) {
            facts.changed = true;
            change(fs, &mut facts, rng)?;
        }
        complain(&device, "changing")?;
    }
    if plan.repair {
        repair(image, &mut facts, rng)?;
    }
    Ok(facts)
}

fn options(repair: bool) -> Options<'static> {
    // Data is compared too, so that what the check finds sound is what the engine reads; to repair, it is taken as it is.
    Options { repair, scrub: true, accept_contents: true, threads: 1, findings_max: 200, now: 5, ..Options::default() }
}

/// The check that holds the slots of no group finds the same.
fn in_parts(device: &Arc<Watched>, report: &Report) -> Result<(), String> {
    let parts = check(device.clone(), None, &Options { slots_max: 0, ..options(false) });
    complain(device, "check in parts")?;
    match parts {
        Ok(parts) if (parts.finding_count, parts.totals) == (report.finding_count, report.totals) => Ok(()),
        Ok(parts) => {
            Err(format!("in parts the check finds {}, as a whole {}", parts.finding_count, report.finding_count))
        }
        Err(error) => Err(format!("in parts: {error}")),
    }
}

fn complain(device: &Watched, doing: &str) -> Result<(), String> {
    device.complaint().map_or(Ok(()), |what| Err(format!("{doing}: {what}")))
}

/// Reasons not to check that a hostile image may give.
fn cannot_check(error: &CheckError) -> Result<(), String> {
    match error {
        CheckError::Foreign
        | CheckError::Superblock(_)
        | CheckError::Unconfirmed(_)
        | CheckError::NoCopy(_)
        | CheckError::CutShort { .. }
        | CheckError::Sectors { .. }
        | CheckError::Incompatible(_)
        | CheckError::NoLogDevice
        | CheckError::ForeignLog
        | CheckError::OtherLog
        | CheckError::Log(_)
        | CheckError::Repair(_)
        | CheckError::NoRoom => Ok(()),
        CheckError::Io { .. } | CheckError::Cancelled | CheckError::Unverified => {
            Err(format!("the check stopped: {error}"))
        }
    }
}

fn open(device: &Arc<Watched>, read_only: bool) -> myriad_engine::Result<Fs> {
    Fs::open_device(device.clone(), None, mount_options(read_only))
}

/// Errors that reading a sound volume does not give, kept: the first, and how many.
struct Errors<'a> {
    first: Option<String>,
    count: &'a mut u64,
}

impl Errors<'_> {
    fn note<T>(&mut self, what: &str, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(Error::Refused(_)) => None,
            Err(error) => {
                *self.count += 1;
                self.first.get_or_insert_with(|| format!("{what}: {error}"));
                None
            }
        }
    }
}

/// Opens read-only, walks, and reads whatever the walk shows; the first error, if any.
fn read_everything(image: &MemoryDevice, facts: &mut Facts, rng: &mut Rng) -> Result<Option<String>, String> {
    let device = Arc::new(Watched::new(image.clone_image(), false, REQUESTS_MAX));
    let opened = open(&device, true);
    complain(&device, "opening")?;
    let fs = match opened {
        Ok(fs) => fs,
        Err(error) => return Ok(Some(error.to_string())),
    };
    facts.opened = true;
    let mut errors = Errors { first: None, count: &mut facts.errors };
    facts.files = look_around(&fs, &mut errors, rng)?;
    let first = errors.first;
    let touched = fs.counters().iter().find(|(name, _)| *name == "blocks_touched").map_or(0, |(_, count)| *count);
    if touched > TOUCHES_MAX {
        return Err(format!("reading {} files took {touched} look-ups of blocks", facts.files));
    }
    drop(fs);
    complain(&device, "reading")?;
    Ok(first)
}

fn look_around(fs: &Fs, errors: &mut Errors<'_>, rng: &mut Rng) -> Result<u64, String> {
    let _ = (fs.info(), fs.statfs());
    let session = fs.session(Cred::root());
    let mut files = 0;
    let Some(walk) = errors.note("walk", session.walk("/")) else { return Ok(0) };
    for entry in walk {
        files += 1;
        if files > FILES_MAX {
            return Err(format!("a walk showed more than {FILES_MAX} files"));
        }
        let Some(entry) = errors.note("walk", entry.map_err(Error::from)) else { continue };
        read_one(&session, &entry.path, &entry.stat, errors, rng);
    }
    Ok(files as u64)
}

fn read_one(session: &Session, path: &[u8], stat: &Stat, errors: &mut Errors<'_>, rng: &mut Rng) {
    let node = stat.node();
    // By path too, but not each: paths of a deep tree are long.
    if !path.is_empty() && rng.percent(15) {
        errors.note("lstat", session.lstat(path));
    }
    if rng.percent(40) {
        let names = errors.note("list of attributes", session.list_xattr_node(node)).unwrap_or_default();
        for name in names {
            errors.note("attribute", session.get_xattr_node(node, &name));
        }
    }
    match stat.mode & 0o170000 {
        0o040000 => {
            let cookie = if rng.percent(50) { rng.below(100) } else { rng.next_u64() >> rng.below(64) };
            errors.note("readdir", session.read_dir_at(node, cookie, 5));
            errors.note("lookup", session.lookup(node, b"a name that is not there"));
            errors.note("parent", session.parent_of(node));
        }
        0o120000 => {
            errors.note("readlink", session.readlink_node(node));
            if rng.percent(20) {
                errors.note("stat through a link", session.stat(path));
            }
        }
        0o100000 => {
            let options = OpenOptions { read: true, ..OpenOptions::default() };
            let Some(file) = errors.note("open", session.open_node(node, options)) else { return };
            let mut buf = [0; READ_SIZE];
            errors.note("read", file.read_at(&mut buf, 0));
            if stat.size > READ_SIZE as u64 {
                errors.note("read", file.read_at(&mut buf, stat.size - READ_SIZE as u64 / 2));
                errors.note("read", file.read_at(&mut buf, rng.below(stat.size)));
            }
            // Data and holes, one after the other, as cp does.
            let mut at = 0;
            for _ in 0..3 {
                let Some(data) = errors.note("seek", file.seek_data(at)) else { break };
                let Some(hole) = errors.note("seek", file.seek_hole(data)) else { break };
                errors.note("read", file.read_at(&mut buf, data));
                at = hole;
            }
        }
        _ => {}
    }
}

/// Some of every operation, then close. Errors are as good as success; only panics and endless work are not.
fn change(fs: Fs, facts: &mut Facts, rng: &mut Rng) -> Result<(), String> {
    let session = fs.session(Cred::root());
    let mut paths = Vec::new();
    let mut shown = 0;
    if let Ok(walk) = session.walk("/") {
        for entry in walk {
            shown += 1;
            if shown > FILES_MAX {
                return Err(format!("a walk showed more than {FILES_MAX} files"));
            }
            if let Ok(entry) = entry {
                paths.push(entry.path);
            }
        }
    }
    if paths.is_empty() {
        paths.push(Vec::new());
    }
    for step in 0..14 {
        let path = rng.pick(&paths).clone();
        let other = [rng.pick(&paths).clone(), format!("/new {step}").into_bytes()].concat();
        let result = match rng.below(16) {
            0 | 1 => session.create(&other, 0o644).map(drop),
            2 => session.mkdir(&other, 0o755).map(drop),
            3 => session.unlink(&path),
            4 => session.rmdir(&path),
            5 => session.rename(&path, &other, RenameMode::Replace),
            6 => session.rename(&path, rng.pick(&paths), RenameMode::Exchange),
            7 => session.link(&path, &other),
            8 | 9 => write_some(&session, &path, rng),
            10 => session.symlink(&[b't'; 100], &other).map(drop),
            11 => session.set_xattr(&path, b"user.new", &vec![7; 1 + rng.index(3000)], XattrMode::Set),
            12 => session.set_attr(&path, SetAttr { size: Some(rng.below(1 << 16)), ..SetAttr::default() }).map(drop),
            13 => session.set_attr(&path, SetAttr { mode: Some(0o600), uid: Some(1), ..SetAttr::default() }).map(drop),
            14 => session.remove_tree(&path, &mut |_| true).map(drop),
            _ => fs.sync(),
        };
        match result {
            Ok(()) => facts.done += 1,
            Err(_) => facts.refused += 1,
        }
    }
    for round in 0..2 {
        let _ = fs.sync();
        if round == 0 {
            let _ = fs.drop_caches();
        }
    }
    drop(session);
    let _ = fs.close();
    Ok(())
}

fn write_some(session: &Session, path: &[u8], rng: &mut Rng) -> myriad_engine::Result<()> {
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let file = session.open(path, options)?;
    let bytes = vec![b'w'; 1 + rng.index(5000)];
    file.write_at(&bytes, rng.below(1 << 14))?;
    if rng.percent(50) {
        file.truncate(rng.below(1 << 13))?;
    }
    if rng.percent(50) {
        file.sync()?;
    }
    Ok(())
}

fn repair(image: &MemoryDevice, facts: &mut Facts, rng: &mut Rng) -> Result<(), String> {
    let copy = image.clone_image();
    let device = Arc::new(Watched::new(copy, true, 4 * REQUESTS_MAX));
    let report = check(device.clone(), None, &options(true));
    complain(&device, "repair")?;
    match report {
        Ok(report) if report.is_sound() => {
            for finding in report.findings {
                let index = KINDS.iter().position(|kind| kind.number == finding.number).expect("a kind of the table");
                facts.kinds |= 1 << index;
            }
        }
        Ok(report) if lacks_room(&report) => {
            facts.unrepairable = true;
            return Ok(());
        }
        Ok(report) => {
            let left: Vec<String> = report.remaining.iter().map(ToString::to_string).collect();
            return Err(format!("repair left: {}", left.join("; ")));
        }
        Err(error) => {
            facts.unrepairable = true;
            return cannot_check(&error);
        }
    }
    facts.repaired = true;
    let device = Arc::into_inner(device).expect("nobody else has it");
    let repaired = device.into_image();
    silent(repaired.clone_image(), "a second check")?;
    let mut read = Facts::default();
    if let Some(error) = read_everything(&repaired, &mut read, rng)? {
        return Err(format!("after repair the engine says: {error}"));
    }
    // Whoever goes on with it must be able to.
    let device = Arc::new(Watched::new(repaired, true, REQUESTS_MAX));
    let fs = open(&device, false).map_err(|error| format!("after repair, opening for changes: {error}"))?;
    change(fs, facts, rng)?;
    complain(&device, "changing a repaired volume")?;
    let device = Arc::into_inner(device).expect("nobody else has it");
    silent(device.into_image(), "a check of the repaired volume after changes")
}

/// Whether all that a repair has left is inodes for whose names there was no room, as it says itself.
fn lacks_room(report: &Report) -> bool {
    report.remaining.iter().all(|left| left.number == number::UNREFERENCED)
        && report.actions.iter().any(|action| action.contains("without a name, for there was no room"))
}

fn silent(image: MemoryDevice, what: &str) -> Result<(), String> {
    check_silent(&Devices::from(Arc::new(image))).map_err(|message| format!("{what}: {message}"))
}
