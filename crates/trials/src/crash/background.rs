//! What a crash left behind, given back while the volume is open, as the daemon of a mount does it.

use crate::machine::{Engine, Way};
use crate::setup::{Devices, Setup};
use myriad_check::{Online, Options, check_moment};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;

/// Most that before-images may take.
const ROOM: u64 = 64 << 20;

/// Opens a volume, has what a check of a moment finds given back, and closes it. Whether all of it was; a repair has to take away
/// the rest.
pub(super) fn give_back(setup: &Setup, devices: &Devices) -> Result<bool, String> {
    let mut engine = Engine::open(setup, devices.clone(), Way::Path).map_err(|error| format!("opening: {error}"))?;
    let fs = engine.fs();
    if !fs.has_leftovers() {
        engine.close().map_err(|error| format!("closing: {error}"))?;
        return Ok(true);
    }
    let file = memfd_create("before-images", MemfdFlags::CLOEXEC).map_err(|error| error.to_string())?;
    ftruncate(&file, ROOM).map_err(|error| error.to_string())?;
    let held = fs.hold_moment(File::from(file)).map_err(|error| format!("a moment: {error}"))?;
    let moment = held.moment().map_err(|error| error.to_string())?;
    let options = Options { threads: 1, leftovers: true, ..Options::default() };
    let report = match check_moment(&moment, &options).map_err(|error| format!("check of a moment: {error}"))? {
        Online::Checked(report) => report,
        Online::GivenUp(why) => return Err(format!("the moment was given up: {why}")),
    };
    if let Some(damage) = report.findings.iter().find(|finding| !finding.is_leftover) {
        return Err(format!("check of a moment: {damage}"));
    }
    let given = fs.give_back(held, &report.leftovers).map_err(|error| format!("giving back: {error}"))?;
    engine.close().map_err(|error| format!("closing: {error}"))?;
    Ok(given.left == 0)
}
