//! Damage to the pointers of files (`map=blockmap`), on volumes that the engine wrote: the check names it, a repair puts it right, and the engine
//! reads what is left.

mod blocks;
mod fragments;

use myriad_check::{Options, Report, check};
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_engine::{Clock, Cred, Fs, MkfsOptions, MountOptions, Session};
use myriad_format::superblock::Superblock;
use myriad_format::{FsBlock, Geometry, header};
use std::sync::Arc;

/// A volume that the engine wrote and closed.
struct Written {
    device: Arc<MemoryDevice>,
    geometry: Geometry,
    volume: [u8; 16],
}

impl Written {
    /// A volume of so many bytes, which `write` fills.
    fn new(size: u64, options: &MkfsOptions, write: impl FnOnce(&Session)) -> Self {
        let device = Arc::new(MemoryDevice::new(size));
        Fs::format_device(device.clone(), None, options).expect("mkfs");
        let mut block = vec![0; 4096];
        device.read(0, &mut block).unwrap();
        let superblock = *Superblock::read(&block);
        let written = Self { device, geometry: superblock.geometry(), volume: superblock.volume() };
        written.with_session(write);
        let report = written.check(false);
        assert!(report.is_sound(), "{:#?}", report.findings);
        written
    }

    /// Opens the volume, does something with it, and closes it.
    fn with_session<R>(&self, f: impl FnOnce(&Session) -> R) -> R {
        let options = MountOptions {
            background: false,
            cache_size: 16 << 20,
            clock: Clock::Manual(Arc::default()),
            ..MountOptions::default()
        };
        let fs = Fs::open_device(self.device.clone(), None, options).expect("the volume opens");
        let session = fs.session(Cred::root());
        let result = f(&session);
        drop(session);
        fs.close().unwrap();
        result
    }

    fn check(&self, repair: bool) -> Report {
        let options = Options { threads: 1, repair, ..Options::default() };
        check(self.device.clone(), None, &options).expect("the check runs")
    }

    /// The check has `expected` among its findings; a repair leaves a sound volume. The first report.
    fn mend(&self, what: &str, expected: u32) -> Report {
        let found = self.check(false);
        assert!(found.findings.iter().any(|finding| finding.number == expected), "{what}: {:#?}", found.findings);
        let report = self.check(true);
        assert!(report.is_sound(), "{what}: {:#?}", report.remaining);
        let report = self.check(false);
        assert!(report.is_sound(), "{what}, after repair: {:#?}", report.findings);
        found
    }

    fn read(&self, block: FsBlock) -> Vec<u8> {
        let mut bytes = vec![0; self.geometry.block_size()];
        self.device.read(block.0 << self.geometry.block_bits, &mut bytes).unwrap();
        bytes
    }

    fn write(&self, block: FsBlock, bytes: &[u8]) {
        self.device.write(block.0 << self.geometry.block_bits, bytes).unwrap();
    }

    /// Changes a block, and makes its checksums right again.
    fn change<R>(&self, block: FsBlock, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut bytes = self.read(block);
        let result = f(&mut bytes);
        header::reseal(&mut bytes, &self.volume, block);
        self.write(block, &bytes);
        result
    }
}
