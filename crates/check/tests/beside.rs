//! A look beside a writer is of one committed state, or of none.

use myriad_check::{Options, check_beside};
use myriad_device::{BlockDevice, DeviceCounters, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, Order};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A device on which somebody else does something at every so many reads.
struct Meddled<F> {
    device: Arc<MemoryDevice>,
    reads: AtomicU64,
    every: u64,
    meddle: Mutex<F>,
}

impl<F: FnMut() + Send> BlockDevice for Meddled<F> {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn alignment(&self) -> usize {
        self.device.alignment()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.reads.fetch_add(1, Relaxed) % self.every == self.every - 1 {
            (self.meddle.lock().unwrap())();
        }
        self.device.read(offset, buf)
    }
    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("a look writes nothing")
    }
    fn flush(&self) -> io::Result<()> {
        panic!("a look flushes nothing")
    }
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        panic!("a look discards nothing")
    }
    fn counters(&self) -> DeviceCounters {
        self.device.counters()
    }
}

fn volume(order: Order) -> (Arc<MemoryDevice>, Fs) {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let options = MkfsOptions { order, seed: Some(1), ..MkfsOptions::default() };
    Fs::format_device(device.clone(), None, &options).unwrap();
    let options =
        MountOptions { cache_size: 4 << 20, commit_interval_ms: 0, background: false, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    let session = fs.session(Cred::root());
    for directory in 0..20 {
        session.mkdir(&format!("d{directory}"), 0o755).unwrap();
        for file in 0..50 {
            session.create(&format!("d{directory}/f{file}"), 0o644).unwrap();
        }
    }
    fs.sync().unwrap();
    (device, fs)
}

fn beside(device: &Arc<MemoryDevice>, every: u64, meddle: impl FnMut() + Send + 'static) -> Option<(u64, u64)> {
    let meddled = Meddled { device: device.clone(), reads: AtomicU64::new(0), every, meddle: Mutex::new(meddle) };
    let device: Arc<dyn BlockDevice> = Arc::new(meddled);
    let report = check_beside(&device, None, &Options { threads: 1, ..Options::default() }).unwrap()?;
    Some((report.finding_count, report.totals.inodes))
}

#[test]
fn uncommitted_changes_do_not_show() {
    let (device, fs) = volume(Order::Log);
    let session = fs.session(Cred::root());
    let mut number = 0;
    // Removals and creations in memory, all through the look; nothing of it is committed.
    let seen = beside(&device, 3, move || {
        number += 1;
        // Few enough that nothing commits by itself.
        if number <= 4 {
            session.remove_tree(&format!("d{number}"), &mut |_| true).unwrap();
            session.create(&format!("new {number}"), 0o600).unwrap();
        }
    });
    assert_eq!(seen, Some((0, 1021)));
    fs.sync().unwrap();
    assert!(matches!(beside(&device, 1000, || {}), Some((0, inodes)) if inodes != 1021));
}

#[test]
fn a_commit_in_between_is_noticed() {
    let (device, fs) = volume(Order::Log);
    let session = fs.session(Cred::root());
    let mut number = 0;
    let syncing = fs.clone();
    let seen = beside(&device, 20, move || {
        number += 1;
        let _ = session.create(&format!("new {number}"), 0o600);
        syncing.drop_caches().unwrap();
    });
    assert_eq!(seen, None);

    // One commit, during the first look: the second one is of what it made.
    let session = fs.session(Cred::root());
    let syncing = fs.clone();
    let mut once = true;
    let seen = beside(&device, 30, move || {
        if std::mem::take(&mut once) {
            session.remove_tree("d3", &mut |_| true).unwrap();
            syncing.sync().unwrap();
        }
    });
    assert!(matches!(seen, Some((0, _))), "{seen:?}");
}

#[test]
fn without_a_log_nothing_tells() {
    let (device, fs) = volume(Order::None);
    assert_eq!(beside(&device, 1000, || {}), None);
    fs.close().unwrap();
    assert_eq!(beside(&device, 1000, || {}), Some((0, 1021)));
}
