//! A look beside a writer is of one committed state, or of none.

mod common;

use common::meddled;
use myriad_check::{Options, check_beside};
use myriad_device::MemoryDevice;
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, Order};
use std::sync::{Arc, Mutex};

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
    let device = meddled(device.clone(), every, Arc::new(Mutex::new(meddle)));
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
