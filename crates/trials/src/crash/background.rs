//! What a crash left behind, given back while the volume is open, as the daemon of a mount does it.

use crate::machine::{Engine, Way};
use crate::setup::{Devices, Setup};
use myriad_check::{Online, Options, check_moment};
use myriad_engine::{Cred, Error, Fs, GivenBack, OpenOptions, Order, SetAttr, SetTime};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;

/// Most that before-images may take.
const ROOM: u64 = 64 << 20;
/// Files that come and go beside a check.
const FILES: u32 = 8;

/// Opens a volume, has what a check of a moment finds given back, and closes it. Whether all of it was; a repair has to take away
/// the rest.
pub(super) fn give_back(setup: &Setup, devices: &Devices) -> Result<bool, String> {
    let mut engine = Engine::open(setup, devices.clone(), Way::Path).map_err(|error| format!("opening: {error}"))?;
    let is_all = !engine.fs().has_leftovers() || give_back_beside(engine.fs(), || Ok(()))?.left == 0;
    engine.close().map_err(|error| format!("closing: {error}"))?;
    Ok(is_all)
}

/// Opens a volume that was written in another order in order `log`, has what a check of a moment finds given back twice, while files come and go, and loses
/// power. The next opening, which names no order, closes it. Whether all of it was given back.
pub(super) fn give_back_in_log(setup: &Setup, devices: &Devices) -> Result<bool, String> {
    let mut logged = setup.clone();
    logged.options.order = Some(Order::Log);
    let engine = Engine::open(&logged, devices.clone(), Way::Path).map_err(|error| format!("opening: {error}"))?;
    let fs = engine.fs();
    let say = |error: Error| format!("working beside a check: {error}");
    let root = fs.session(Cred::root());
    let before = root.stat("/").map_err(say)?;
    // The run may have made the root immutable.
    root.set_attr("/", SetAttr { flags: Some(0), ..SetAttr::default() }).map_err(say)?;
    let mut given = GivenBack::default();
    for look in 0..2 {
        given = give_back_beside(fs, || {
            (0..FILES).try_for_each(|file| make(fs, &format!("beside{look}.{file}")).map_err(say))?;
            (0..FILES / 2).try_for_each(|file| remove(fs, &format!("beside{look}.{file}")).map_err(say))?;
            fs.sync().map_err(say)
        })?;
        (0..FILES).try_for_each(|file| remove(fs, &format!("beside{look}.{file}")).map_err(say))?;
    }
    let mtime = Some(SetTime::At(before.mtime));
    root.set_attr("/", SetAttr { mtime, ..SetAttr::default() }).map_err(say)?;
    root.set_attr("/", SetAttr { flags: Some(before.flags), ..SetAttr::default() }).map_err(say)?;
    fs.sync().map_err(say)?;
    fs.shut_down("power is lost");
    drop((root, engine));
    let opened = Engine::open(setup, devices.clone(), Way::Path);
    let mut engine = opened.map_err(|error| format!("opening after order log: {error}"))?;
    if engine.fs().info().order != Order::Log {
        return Err(format!("order log was in force, and is {:?} after a crash", engine.fs().info().order));
    }
    engine.close().map_err(|error| format!("closing: {error}"))?;
    Ok(given.left == 0)
}

/// Has what a check of a moment finds given back, after `work` has been done beside it.
fn give_back_beside(fs: &Fs, work: impl FnOnce() -> Result<(), String>) -> Result<GivenBack, String> {
    let file = memfd_create("before-images", MemfdFlags::CLOEXEC).map_err(|error| error.to_string())?;
    ftruncate(&file, ROOM).map_err(|error| error.to_string())?;
    let held = fs.hold_moment(File::from(file)).map_err(|error| format!("a moment: {error}"))?;
    work()?;
    let moment = held.moment().map_err(|error| error.to_string())?;
    let options = Options { threads: 1, leftovers: true, ..Options::default() };
    let report = match check_moment(&moment, &options).map_err(|error| format!("check of a moment: {error}"))? {
        Online::Checked(report) => report,
        Online::GivenUp(why) => return Err(format!("the moment was given up: {why}")),
    };
    if let Some(damage) = report.findings.iter().find(|finding| !finding.is_leftover) {
        return Err(format!("check of a moment: {damage}"));
    }
    fs.give_back(held, &report.leftovers).map_err(|error| format!("giving back: {error}"))
}

/// Makes a file, unless there is no room.
fn make(fs: &Fs, name: &str) -> Result<(), Error> {
    let how = OpenOptions { write: true, create: true, mode: 0o600, ..OpenOptions::default() };
    let made = fs.session(Cred::root()).open(name, how).and_then(|file| file.write_at(&[1; 3000], 0));
    unless_refused(made.map(drop))
}

/// Removes a file, if it is there.
fn remove(fs: &Fs, name: &str) -> Result<(), Error> {
    unless_refused(fs.session(Cred::root()).unlink(name))
}

fn unless_refused(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Refused(_)) => Ok(()),
        result => result,
    }
}
