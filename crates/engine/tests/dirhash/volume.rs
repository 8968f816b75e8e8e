//! The volume of these tests: one directory, into which one file is linked by many names.

use myriad_engine::options::read_for_tune;
use myriad_engine::{Cred, Fs, Node, RenameMode, Session};
use myriad_trials::setup::{Devices, Setup};
use myriad_trials::verdict::check_silent;

/// A volume with a directory `d`, and a file to be linked into directories.
pub struct Volume {
    pub device: Devices,
    pub fs: Fs,
    pub session: Session,
    pub dir: Node,
    pub file: Node,
}

impl Volume {
    pub fn new(setup: &Setup) -> Self {
        let device = setup.format_devices();
        let fs = setup.open(device.clone()).unwrap();
        let session = fs.session(Cred::root());
        let dir = session.mkdir("d", 0o755).unwrap();
        let file = session.create("f", 0o644).unwrap();
        Self { device, fs, session, dir, file }
    }

    pub fn link(&self, name: &[u8]) {
        self.session.link_at(self.file, self.dir, name).unwrap();
    }

    pub fn unlink(&self, name: &[u8]) {
        self.session.unlink_at(self.dir, name).unwrap();
    }

    pub fn rename(&self, from: &[u8], to: &[u8]) {
        let path = |name: &[u8]| [b"d/", name].concat();
        self.session.rename(&path(from), &path(to), RenameMode::NoReplace).unwrap();
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.session.lookup(self.dir, name).is_ok()
    }

    pub fn listed(&self) -> Vec<Vec<u8>> {
        self.session.read_dir("d").unwrap().map(|entry| entry.unwrap().name).collect()
    }

    pub fn size(&self) -> u64 {
        self.session.stat("d").unwrap().size
    }

    pub fn count(&self, name: &str) -> u64 {
        self.fs.counters().into_iter().find(|(other, _)| *other == name).map(|(_, count)| count).unwrap()
    }

    pub fn hashes(&self) -> (u64, u64) {
        let levels = self.fs.levels();
        (levels.dirhash_count, levels.dirhash_used)
    }

    pub fn tune(&self, setting: &str) {
        self.fs.tune(&read_for_tune([setting]).unwrap()).unwrap();
    }

    pub fn close(self) {
        assert_eq!(self.count("dirhash_mismatches"), 0);
        drop(self.session);
        self.fs.close().unwrap();
        check_silent(&self.device).unwrap();
    }
}

/// A name of eight digits.
pub fn name(i: u32) -> Vec<u8> {
    format!("{i:08}").into_bytes()
}
