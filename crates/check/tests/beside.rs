//! A look beside a writer is of one committed state, or of none.

mod common;

use common::meddled;
use myriad_check::{Options, check, check_beside};
use myriad_device::{BlockDevice, FaultDevice, FaultOp, FaultSpan, MemoryDevice};
use myriad_engine::{Cred, Fs, MkfsOptions, MountOptions, Order};
use myriad_format::superblock::{Superblock, state};
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

/// A mount that has committed nothing yet was taken for one without a log.
#[test]
fn before_the_first_commit_all_is_home() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    Fs::format_device(device.clone(), None, &MkfsOptions { seed: Some(1), ..MkfsOptions::default() }).unwrap();
    let options =
        MountOptions { cache_size: 4 << 20, commit_interval_ms: 0, background: false, ..MountOptions::default() };
    let fs = Fs::open_device(device.clone(), None, options).unwrap();
    assert_eq!(beside(&device, 1000, || {}), Some((0, 1)));
    let session = fs.session(Cred::root());
    session.create("not committed", 0o600).unwrap();
    assert_eq!(beside(&device, 1000, || {}), Some((0, 1)));
    // The first commit, during the first look: the second one is of what it made.
    let syncing = fs.clone();
    let mut looks = 0;
    let seen = beside(&device, 5, move || {
        looks += 1;
        if looks == 1 {
            session.create("committed", 0o600).unwrap();
            syncing.sync().unwrap();
        }
    });
    assert_eq!(seen, Some((0, 3)));
}

/// A mount that leaves the log alone, of a volume that others used with it: nothing tells from the moment at which it has
/// emptied the log.
#[test]
fn without_its_log_nothing_tells() {
    let (device, fs) = volume(Order::Log);
    fs.session(Cred::root()).remove_tree("d3", &mut |_| true).unwrap();
    fs.sync().unwrap();
    let crashed = device.clone_image();
    for nth in 1.. {
        let device = Arc::new(crashed.clone_image());
        let failing = Arc::new(FaultDevice::new(device.clone()));
        failing.fail(FaultOp::Write, nth, FaultSpan::Forever, 5);
        let options = MountOptions { order: Some(Order::None), background: false, ..MountOptions::default() };
        let opened = Fs::open_device(failing, None, options);
        let seen = beside(&device, 1000, || {});
        match opened {
            Ok(_) => {
                assert_eq!(seen, None);
                assert!(nth > 5, "{nth} writes");
                break;
            }
            Err(_) => assert!(seen.is_none_or(|(findings, _)| findings == 0), "write {nth}: {seen:?}"),
        }
    }
}

/// A repair empties the log and marks the volume as in use, as a mount under the log would.
#[test]
fn beside_a_repair_nothing_tells() {
    let (device, fs) = volume(Order::Log);
    fs.close().unwrap();
    // The first group's header: found, and written last.
    device.write(4096 + 100, &[0x55; 64]).unwrap();
    let mut in_use = 0;
    for nth in 1.. {
        let device = Arc::new(device.clone_image());
        let failing = Arc::new(FaultDevice::new(device.clone()));
        failing.fail(FaultOp::Write, nth, FaultSpan::Forever, 5);
        let options = Options { repair: true, threads: 1, ..Options::default() };
        let is_cut = check(failing, None, &options).is_err();
        let mut bytes = vec![0; Superblock::SIZE];
        device.read(0, &mut bytes).unwrap();
        if Superblock::read(&bytes).state.get() == state::IN_USE {
            assert_eq!(beside(&device, 1000, || {}), None, "write {nth}");
            in_use += 1;
        }
        if !is_cut {
            break;
        }
    }
    assert!(in_use >= 5, "{in_use} cuts");
}

#[test]
fn without_a_log_nothing_tells() {
    let (device, fs) = volume(Order::None);
    assert_eq!(beside(&device, 1000, || {}), None);
    fs.close().unwrap();
    assert_eq!(beside(&device, 1000, || {}), Some((0, 1021)));
}
