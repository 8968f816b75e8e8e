//! What a meeting is judged by: what an owner reads, what a volume would be after losing power, and the state of a moment that is held.

use super::script::BLOCKS_MAX;
use super::{COMMON, Worker, text, with_room};
use crate::setup::Devices;
use crate::table::Promise;
use crate::verdict::{check_closed, check_silent, grow};
use myriad_check as check;
use myriad_engine::schedule;
use myriad_engine::{Cred, Errno, Error, Fs, OpenOptions};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl Worker<'_> {
    pub fn look_at_moment(&mut self) -> Result<(), String> {
        let Some(held) = self.holding.take() else { return Ok(()) };
        let promise = self.promise();
        schedule::undisturbed(|| {
            let moment = held.moment().map_err(|error| error.to_string())?;
            let options = check::Options { threads: 1, ..check::Options::default() };
            let report = match check::check_moment(&moment, &options).map_err(|error| format!("check: {error}"))? {
                check::Online::Checked(report) => report,
                check::Online::GivenUp(why) => return Err(format!("the moment was given up: {why}")),
            };
            match report.findings.iter().find(|found| promise == Promise::Prefix || !found.is_leftover) {
                Some(found) => Err(format!("check of a moment: {found}")),
                None => Ok(()),
            }
        })
    }

    /// What the owner reads is what he has written.
    pub fn look(&mut self, file: usize) -> Result<(), String> {
        let Some(owned) = self.open(file)? else { return Ok(()) };
        let what = format!("file {file}, {:?}", owned.path);
        let size = owned.handle().stat().map_err(text)?.size;
        let mut found = vec![0xee; owned.bytes.len() + 1];
        let count = with_room(|_| owned.handle().read_at(&mut found, 0)).map_err(|error| format!("{what}: {error}"))?;
        compare(&what, size, &found[..count], &owned.bytes)
    }

    /// Loses power now, in thought.
    pub fn power_cut(&self) -> Result<(), String> {
        if self.promise() == Promise::Repair {
            return Ok(());
        }
        schedule::undisturbed(|| {
            for (devices, left) in self.table.media.after_power_cut() {
                self.after(devices).map_err(|error| format!("after power loss that left {left}: {error}"))?;
                self.table.states.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    /// What losing power in the middle of requests has left can be opened and closed, and the check finds no more than it may. What the threads
    /// have there is not known: each was somewhere in a step.
    pub fn judge_sudden(&self) -> Result<(), String> {
        if self.promise() == Promise::Repair {
            return Ok(());
        }
        schedule::undisturbed(|| {
            for (devices, left) in self.table.media.take_sudden() {
                let told = |error| format!("after power loss in the middle of things that left {left}: {error}");
                self.table.setup.open(devices.clone()).and_then(Fs::close).map_err(|error| told(text(error)))?;
                self.check(&devices).map_err(told)?;
                self.table.states.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    fn after(&self, devices: Devices) -> Result<(), String> {
        let fs = self.table.setup.open(devices.clone()).map_err(text)?;
        self.compare_with(&fs, false)?;
        self.grow(&fs)?;
        fs.close().map_err(text)?;
        self.check(&devices)
    }

    pub fn check(&self, devices: &Devices) -> Result<(), String> {
        let judge = if self.promise() == Promise::Prefix { check_silent } else { check_closed };
        judge(devices)
    }

    /// This thread's files grow: what they gain reads as zero, whatever a flush that was cut short had mapped there.
    fn grow(&self, fs: &Fs) -> Result<(), String> {
        let session = fs.session(Cred::root());
        let most = (BLOCKS_MAX + 1) * u64::from(self.table.setup.block_size);
        for path in self.files.iter().flatten().filter_map(|owned| owned.path.as_ref()) {
            let grown = session.stat(path).and_then(|stat| grow(&session, path, stat.size, most));
            match grown {
                // Its name was not synced.
                Ok(None) | Err(Error::Refused(Errno::NOENT)) => {}
                Ok(Some(at)) => return Err(format!("{path}: grown to {most} bytes, byte {at} is not zero")),
                Err(error) => return Err(format!("{path}: {error}")),
            }
        }
        Ok(())
    }

    /// What must be there of this thread's: `all`, or what was synced.
    pub fn compare_with(&self, fs: &Fs, all: bool) -> Result<(), String> {
        let session = fs.session(Cred::root());
        for owned in self.files.iter().flatten().filter(|owned| all || owned.synced) {
            let Some(path) = &owned.path else { continue };
            let told = |error: Error| format!("{path}: {error}");
            let file = session.open(path, OpenOptions::READ).map_err(told)?;
            let mut found = vec![0xee; owned.bytes.len() + 1];
            let count = file.read_at(&mut found, 0).map_err(told)?;
            compare(path, file.stat().map_err(told)?.size, &found[..count], &owned.bytes)?;
        }
        self.lane.as_ref().map_or(Ok(()), |lane| lane.compare_with(fs, all))?;
        if self.names_changed && !all {
            return Ok(());
        }
        let prefix = format!("{}-", self.thread);
        let mut found = BTreeSet::new();
        for dir in [self.dir(), COMMON.into()] {
            for entry in session.read_dir(&dir).map_err(text)? {
                let name = String::from_utf8_lossy(&entry.map_err(text)?.name).into_owned();
                if name.starts_with(&prefix) {
                    found.insert(format!("{dir}/{name}"));
                }
            }
        }
        let expected: BTreeSet<String> = self.files.iter().flatten().filter_map(|owned| owned.path.clone()).collect();
        if found == expected { Ok(()) } else { Err(format!("names {found:?} instead of {expected:?}")) }
    }
}

fn compare(what: &str, size: u64, found: &[u8], expected: &[u8]) -> Result<(), String> {
    if size != expected.len() as u64 {
        return Err(format!("{what}: {size} bytes instead of {}", expected.len()));
    }
    if found.len() != expected.len() {
        return Err(format!("{what}: {} of {} bytes were read", found.len(), expected.len()));
    }
    compare_bytes(what, found, expected)
}

/// As [`compare`], of as many bytes.
pub(super) fn compare_bytes(what: &str, found: &[u8], expected: &[u8]) -> Result<(), String> {
    // Most are as they should be, which is seen sooner than where they are not.
    let place = || found.iter().zip(expected).position(|(found, expected)| found != expected);
    match (found != expected).then(place).flatten() {
        None => Ok(()),
        Some(at) => {
            Err(format!("{what}: byte {at} of {} is {:#x} instead of {:#x}", expected.len(), found[at], expected[at]))
        }
    }
}
