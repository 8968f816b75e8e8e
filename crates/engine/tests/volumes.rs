//! Volumes as a whole: opened in every way, small caches, full logs, logs of their own.

use myriad_check::{CheckError, Options as CheckOptions, check};
use myriad_device::{Access, BlockDevice, FileDevice, MemoryDevice};
use myriad_engine::{
    Allocation, Clock, Cred, DirPref, DirPrefVersion, Errno, Error, Fs, MkfsOptions, MountOptions, OpenOptions, Order,
    PlacementPolicy, RenameMode, Truncated,
};
use myriad_format::choices::{Choices, PROFILES};
use myriad_format::superblock::Superblock;
use myriad_format::{Ino, header};
use std::sync::Arc;

fn device(size: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(size))
}

fn formatted(size: u64, options: &MkfsOptions) -> Arc<MemoryDevice> {
    let device = device(size);
    Fs::format_device(device.clone(), None, options).unwrap();
    device
}

/// Small, and with nothing going on behind the test's back.
fn quiet() -> MountOptions {
    MountOptions { background: false, commit_interval_ms: 0, cache_size: 8 << 20, ..MountOptions::default() }
}

fn open(device: &Arc<MemoryDevice>, options: MountOptions) -> Fs {
    Fs::open_device(device.clone(), None, options).unwrap()
}

/// What power loss leaves when everything written so far has arrived.
fn crashed(device: &Arc<MemoryDevice>) -> Arc<MemoryDevice> {
    Arc::new(device.clone_image())
}

fn assert_sound(device: &Arc<MemoryDevice>, log: Option<Arc<dyn BlockDevice>>) {
    let report = check(device.clone(), log, &CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}

fn assert_sound_image(path: &std::path::Path) {
    let image = FileDevice::open(path, Access::ReadOnly).unwrap();
    let report = check(Arc::new(image), None, &CheckOptions::default()).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}

const WRITE: OpenOptions = OpenOptions { create: true, mode: 0o644, ..OpenOptions::READ_WRITE };

/// A volume of order none that was not closed cleanly was opened for writing as if it were sound.
#[test]
fn an_unordered_volume_that_was_not_closed_is_checked_before_it_is_changed() {
    for log_size in [Some(0), None] {
        let device = formatted(64 << 20, &MkfsOptions { order: Order::None, log_size, ..MkfsOptions::default() });
        let fs = open(&device, quiet());
        let session = fs.session(Cred::root());
        for i in 0..50 {
            session.create(&format!("{i}"), 0o644).unwrap();
        }
        fs.sync().unwrap();
        let synced = crashed(&device);
        // Blocks that are freed and in no tree yet, and damage of what the last checkpoint had begun to write.
        session.unlink("7").unwrap();
        fs.sync().unwrap();
        let damaged = crashed(&device);
        let mut block = vec![0; 4096];
        device.read(0, &mut block).unwrap();
        let geometry = Superblock::read(&block).geometry();
        let (inodes, slot) = geometry.locate(Ino(session.stat("8").unwrap().ino)).unwrap();
        damaged.read(inodes.0 * 4096, &mut block).unwrap();
        block[slot as usize * 128 + 16] = 9;
        header::seal(&mut block, 0);
        damaged.write(inodes.0 * 4096, &block).unwrap();
        drop((session, fs));

        for (image, is_damaged) in [(synced, false), (damaged, true)] {
            for order in [None, Some(Order::None), Some(Order::Log).filter(|_| log_size.is_none())] {
                let opened = Fs::open_device(image.clone(), None, MountOptions { order, ..quiet() });
                let error = opened.err().expect("refused");
                assert!(matches!(error, Error::Unchecked) && error.errno() == Errno::UCLEAN, "{error}");
                assert!(error.to_string().contains("myriad fsck -p"));
            }
            let before = image.clone_image();
            let fs = open(&image, MountOptions { read_only: true, ..quiet() });
            assert_eq!(fs.session(Cred::root()).stat("9").unwrap().size, 0);
            drop(fs);
            // Looking is no repair, and changes nothing.
            let looked = check(image.clone(), None, &CheckOptions::default()).unwrap();
            assert_eq!(looked.is_sound(), !is_damaged);
            let (mut was, mut is) = (vec![0; 4096], vec![0; 4096]);
            before.read(0, &mut was).unwrap();
            image.read(0, &mut is).unwrap();
            assert_eq!(was, is);
            assert!(matches!(Fs::open_device(image.clone(), None, quiet()), Err(Error::Unchecked)));

            let repair = CheckOptions { repair: true, ..CheckOptions::default() };
            let report = check(image.clone(), None, &repair).unwrap();
            assert!(report.is_sound() && report.repaired == is_damaged, "{:?}", report.remaining);
            assert!(is_damaged || !report.actions.is_empty());
            let fs = open(&image, quiet());
            fs.session(Cred::root()).create("new", 0o644).unwrap();
            fs.close().unwrap();
            assert_sound(&image, None);
        }
    }
}

/// A background check had asked for a check of the whole volume, and power was lost while the log alone had it: the next opening replayed that, and then wrote
/// what the superblock had said at home over it.
#[test]
fn a_check_that_the_log_asks_for_is_made() {
    let device = formatted(64 << 20, &MkfsOptions::default());
    let fs = open(&device, quiet());
    fs.session(Cred::root()).create("f", 0o644).unwrap();
    fs.ask_for_check().unwrap();
    let image = crashed(&device);
    for order in [None, None, Some(Order::None)] {
        let opened = Fs::open_device(image.clone(), None, MountOptions { order, ..quiet() });
        assert!(matches!(opened.map(drop), Err(Error::Unchecked)), "{order:?}");
    }
    let readable = open(&image, MountOptions { read_only: true, ..quiet() });
    readable.session(Cred::root()).stat("f").unwrap();
    // Who looks is told of it, too: `info` and `fsck -n` said that the next opening for changes would recover the volume.
    assert!(readable.info().is_check_asked_for);
    assert!(check(image.clone(), None, &CheckOptions::default()).unwrap().was_asked_for);
    assert_sound(&image, None);
    assert!(matches!(Fs::open_device(image.clone(), None, quiet()).map(drop), Err(Error::Unchecked)));
    let report = check(image.clone(), None, &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
    assert!(report.is_sound() && !report.actions.is_empty());
    let fs = open(&image, quiet());
    assert!(!fs.has_leftovers() && !fs.info().is_check_asked_for);
    fs.session(Cred::root()).stat("f").unwrap();
    fs.close().unwrap();
    assert!(!check(image.clone(), None, &CheckOptions::default()).unwrap().was_asked_for);
    assert_sound(&image, None);
}

/// A volume that was opened in order `log`, and lost power, went on in the order before that one, which its superblock named at home.
#[test]
fn the_order_in_force_is_the_next_one_after_a_crash() {
    let ffs = PROFILES.iter().find(|profile| profile.name == "ffs").expect("a profile of the table").choices;
    for (choices, before) in
        [(Choices::default(), Order::None), (ffs, Order::None), (ffs, Order::Sync), (ffs, Order::Soft)]
    {
        let options = MkfsOptions { choices, order: before, log_size: Some(1 << 20), ..MkfsOptions::default() };
        let device = formatted(64 << 20, &options);
        let fs = open(&device, MountOptions { order: Some(Order::Log), ..quiet() });
        let opened = crashed(&device);
        fs.session(Cred::root()).create("f", 0o644).unwrap();
        fs.sync().unwrap();
        for (image, files) in [(opened, 0), (crashed(&device), 1)] {
            let fs = open(&image, quiet());
            assert_eq!(fs.info().order, Order::Log, "after {before:?}, {files} files");
            assert_eq!(fs.session(Cred::root()).read_dir("/").unwrap().count(), files);
            fs.close().unwrap();
            assert_sound(&image, None);
        }
    }
}

/// A volume of an order that this version does not write was taken for one of none.
#[test]
fn an_order_that_is_not_known_is_named() {
    for (order, name) in [(1, "1"), (2, "2"), (4, "4")] {
        let device = formatted(16 << 20, &MkfsOptions::default());
        let mut block = vec![0; 4096];
        device.read(0, &mut block).unwrap();
        Superblock::read_mut(&mut block).last_order.set(order);
        header::seal(&mut block, 0);
        device.write(0, &block).unwrap();
        for read_only in [false, true] {
            let error = Fs::open_device(device.clone(), None, MountOptions { read_only, ..quiet() }).err().unwrap();
            let message = error.to_string();
            assert!(message.contains("order") && message.contains(name), "{message}");
        }
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        assert!(check(device.clone(), None, &repair).is_err(), "{order}");
    }
}

#[test]
fn a_log_left_behind_is_not_replayed_over_newer_blocks() {
    let device = formatted(64 << 20, &MkfsOptions::default());
    let fs = open(&device, quiet());
    let session = fs.session(Cred::root());
    for i in 0..300 {
        session.create(&format!("old{i}"), 0o644).unwrap();
    }
    fs.sync().unwrap();
    // The log holds all of it. The volume goes on without one, and stops in the middle.
    let second = crashed(&device);
    let fs = open(&second, MountOptions { order: Some(Order::None), ..quiet() });
    assert!(fs.info().recovered);
    let session = fs.session(Cred::root());
    for i in 0..300 {
        session.rename(&format!("old{i}"), &format!("new{i}"), RenameMode::Replace).unwrap();
    }
    fs.sync().unwrap();
    fs.sync().unwrap();
    let third = crashed(&second);
    let logged = MountOptions { order: Some(Order::Log), ..quiet() };
    let unchecked = Fs::open_device(third.clone(), None, logged.clone());
    assert!(matches!(unchecked, Err(Error::Unchecked)), "what changed it last promises nothing of its state");
    let report = check(third.clone(), None, &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
    assert!(report.is_sound(), "{:?}", report.remaining);
    let fs = open(&third, logged);
    let session = fs.session(Cred::root());
    assert_eq!(session.read_dir("/").unwrap().filter(|e| e.as_ref().unwrap().name.starts_with(b"new")).count(), 300);
    drop(session);
    fs.close().unwrap();
    assert_sound(&third, None);
}

#[test]
fn files_larger_than_the_cache_pass_through_it() {
    for allocation in [Allocation::Delayed, Allocation::AtWrite] {
        let device = formatted(256 << 20, &MkfsOptions::default());
        let fs = open(&device, MountOptions { allocation, ..quiet() });
        let session = fs.session(Cred::root());
        let pattern = |i: usize| -> Vec<u8> { (0..1 << 20).map(|at| (at * 7 + i * 13) as u8).collect() };
        let file = session.open("big", WRITE).unwrap();
        let whole: Vec<u8> = (0..40).flat_map(pattern).collect();
        assert_eq!(file.write_at(&whole, 0).unwrap(), whole.len());
        let other = session.open("other", WRITE).unwrap();
        for i in 0..40 {
            assert_eq!(other.write_at(&pattern(i), (i as u64) << 20).unwrap(), 1 << 20);
        }
        let mut back = vec![0; whole.len()];
        for file in [&file, &other] {
            assert_eq!(file.read_at(&mut back, 0).unwrap(), whole.len());
            assert!(back == whole, "contents differ");
        }
        drop((file, other, session));
        fs.close().unwrap();
        assert_sound(&device, None);
        let fs = open(&device, quiet());
        let file = fs.session(Cred::root()).open("big", OpenOptions { read: true, ..OpenOptions::default() }).unwrap();
        let mut small = vec![0; 5000];
        for at in (0..whole.len()).step_by(5000) {
            let count = file.read_at(&mut small, at as u64).unwrap();
            assert!(small[..count] == whole[at..at + count], "at {at}");
        }
    }
}

#[test]
fn a_cache_full_of_changes_makes_room() {
    let device = formatted(512 << 20, &MkfsOptions::default());
    let fs = open(&device, MountOptions { cache_size: 4 << 20, ..quiet() });
    let session = fs.session(Cred::root());
    session.mkdir("d", 0o755).unwrap();
    for i in 0..40_000 {
        session.create(&format!("d/file-with-a-name-{i}"), 0o644).unwrap();
    }
    assert_eq!(session.read_dir("d").unwrap().count(), 40_000);
    for i in (0..40_000).rev() {
        session.unlink(&format!("d/file-with-a-name-{i}")).unwrap();
    }
    drop(session);
    fs.close().unwrap();
    assert_sound(&device, None);
}

#[test]
fn space_comes_back_to_the_block() {
    for block_size in [512, 4096, 65536] {
        let device = formatted(1 << 30, &MkfsOptions { block_size, ..MkfsOptions::default() });
        let fs = open(&device, quiet());
        let session = fs.session(Cred::root());
        fs.sync().unwrap();
        let before = fs.statfs().unwrap();
        for d in 0..20 {
            session.mkdir(&format!("d{d}"), 0o755).unwrap();
            for f in 0..200 {
                let file = session.open(&format!("d{d}/f{f}"), WRITE).unwrap();
                file.write_at(&vec![d as u8; f * 97], 0).unwrap();
            }
            session.symlink(&[b't'; 300], &format!("d{d}/link")).unwrap();
            session.set_xattr(&format!("d{d}"), b"user.big", &vec![7; 20_000], Default::default()).unwrap();
        }
        fs.sync().unwrap();
        for d in 0..20 {
            assert_eq!(session.remove_tree(&format!("d{d}"), &mut |_| true).unwrap(), 202);
        }
        fs.sync().unwrap();
        fs.sync().unwrap();
        let after = fs.statfs().unwrap();
        assert_eq!((before.free_blocks, before.inodes_used), (after.free_blocks, after.inodes_used), "{block_size}");
        drop(session);
        fs.close().unwrap();
        assert_sound(&device, None);
    }
}

#[test]
fn a_log_on_its_own_device() {
    let (device, log) = (device(64 << 20), device(4 << 20));
    let options = MkfsOptions::default();
    Fs::format_device(device.clone(), Some(log.clone()), &options).unwrap();
    let without = Fs::open_device(device.clone(), None, quiet()).map(drop);
    assert!(matches!(&without, Err(Error::Option(refused)) if refused.option == "log-device"), "{without:?}");
    let fs = Fs::open_device(device.clone(), Some(log.clone()), quiet()).unwrap();
    assert!(fs.info().log_external);
    let session = fs.session(Cred::root());
    for i in 0..5000 {
        session.create(&format!("f{i}"), 0o644).unwrap();
    }
    fs.sync().unwrap();
    let (second, second_log) = (crashed(&device), crashed(&log));
    let fs = Fs::open_device(second.clone(), Some(second_log.clone()), quiet()).unwrap();
    assert!(fs.info().recovered);
    assert_eq!(fs.session(Cred::root()).read_dir("/").unwrap().count(), 5000);
    fs.close().unwrap();
    assert_sound(&second, Some(second_log));
}

/// A log that was put back from an older copy was replayed over what is newer: at once, or after the next crash.
#[test]
fn a_log_of_another_state_is_refused() {
    let (device, log) = (device(64 << 20), device(4 << 20));
    Fs::format_device(device.clone(), Some(log.clone()), &MkfsOptions::default()).unwrap();
    let open = |device: &Arc<MemoryDevice>, log: &Arc<MemoryDevice>, read_only| {
        Fs::open_device(device.clone(), Some(log.clone()), MountOptions { read_only, ..quiet() })
    };
    let make = |fs: &Fs, name: &str| {
        fs.session(Cred::root()).create(name, 0o644).unwrap();
        fs.sync().unwrap();
    };
    let fs = open(&device, &log, false).unwrap();
    make(&fs, "before");
    let older = crashed(&log);
    make(&fs, "between");
    fs.close().unwrap();
    let (closed, of_closed) = (crashed(&device), crashed(&log));
    let fs = open(&device, &log, false).unwrap();
    make(&fs, "after");
    let (in_use, newest) = (crashed(&device), crashed(&log));
    for (device, log) in [(&in_use, &older), (&closed, &older), (&closed, &newest)] {
        for read_only in [false, true] {
            let refused = open(device, log, read_only).map(drop).unwrap_err().to_string();
            assert!(refused.contains("it is of another state of the volume"), "{refused}");
        }
        let report = check(device.clone(), Some(log.clone()), &CheckOptions::default()).unwrap();
        assert!(report.findings.iter().any(|found| found.message.contains("another state")), "{report:?}");
        // Whoever has the right one should name that.
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        let refused = check(device.clone(), Some(log.clone()), &repair);
        assert!(matches!(refused, Err(CheckError::OtherLog)), "{refused:?}");
        let repaired = [device, log].map(crashed);
        let options = CheckOptions { new_log: true, ..repair };
        check(repaired[0].clone(), Some(repaired[1].clone()), &options).unwrap();
        open(&repaired[0], &repaired[1], false).unwrap().close().unwrap();
        assert_sound(&repaired[0], Some(repaired[1].clone()));
    }
    for (device, log, files) in [(in_use, newest, 3), (closed, of_closed, 2)] {
        let fs = open(&device, &log, false).unwrap();
        assert_eq!(fs.session(Cred::root()).read_dir("/").unwrap().count(), files);
        fs.close().unwrap();
        assert_sound(&device, Some(log));
    }
}

#[test]
fn a_reader_sees_what_the_log_holds_and_writes_nothing() {
    let device = formatted(64 << 20, &MkfsOptions::default());
    let fs = open(&device, quiet());
    fs.session(Cred::root()).mkdir("d", 0o755).unwrap();
    fs.sync().unwrap();
    let image = crashed(&device);
    let writes = image.counters().writes;
    let reader = open(&image, MountOptions { read_only: true, ..quiet() });
    let session = reader.session(Cred::root());
    assert!(session.stat("d").unwrap().is_dir());
    let refused = session.mkdir("e", 0o755);
    assert!(matches!(refused, Err(Error::Refused(Errno::ROFS))), "{refused:?}");
    drop(session);
    reader.close().unwrap();
    assert_eq!(image.counters().writes, writes);
}

/// The same seed makes the same volume id: what the log of an earlier life of the image held looked valid.
#[test]
fn a_volume_made_again_with_its_seed_is_empty() {
    let clock = Arc::new(std::sync::atomic::AtomicI64::new(1));
    let mkfs = MkfsOptions { seed: Some(5), clock: Clock::Manual(clock.clone()), ..MkfsOptions::default() };
    let device = formatted(64 << 20, &mkfs);
    let work = |device: &Arc<MemoryDevice>, names: &[&str]| {
        let options = MountOptions { seed: Some(5), clock: Clock::Manual(clock.clone()), ..quiet() };
        let fs = open(device, options);
        let session = fs.session(Cred::root());
        for name in names {
            session.mkdir(name, 0o755).unwrap();
            fs.sync().unwrap();
        }
        let listed = session.read_dir("/").unwrap().count();
        (crashed(device), listed)
    };
    let (device, _) = work(&device, &["a", "b", "c", "d", "e", "f", "g", "h"]);
    Fs::format_device(device.clone(), None, &mkfs).unwrap();
    assert_sound(&device, None);
    let (device, listed) = work(&device, &[]);
    assert_eq!(listed, 0);
    // Again as in the earlier life, up to where its second checkpoint would follow.
    let (device, _) = work(&device, &["a"]);
    let (device, listed) = work(&device, &[]);
    assert_eq!(listed, 1);
    let mut log = vec![0; 8 << 20];
    device.read(0, &mut log).unwrap();
    let headers = log.chunks(4096).filter(|unit| unit.starts_with(b"MYLC")).count();
    assert!(headers <= 2, "{headers} checkpoints in the log of a volume that has made one or two");
    assert_sound(&device, None);
}

#[test]
fn a_truncated_image_says_what_is_missing() {
    let device = formatted(64 << 20, &MkfsOptions::default());
    let mut start = vec![0; 4096];
    device.read(0, &mut start).unwrap();
    let short = self::device(1 << 20);
    short.write(0, &start).unwrap();
    let error = Fs::open_device(short, None, quiet()).err().unwrap();
    assert!(
        matches!(&error, Error::Truncated(sizes) if **sizes == Truncated { found: 0x10_0000, needed: 0x400_0000 }),
        "{error}"
    );
    assert!(error.to_string().contains("1048576 of 67108864 bytes are there; get a whole copy"));
}

/// Each batch listed the directory from its beginning, over all the blocks that were empty by then: the work grew with
/// the square of the number of files.
#[test]
fn removing_a_tree_lists_each_block_once() {
    // Small blocks, so that there are many of them.
    let device = formatted(256 << 20, &MkfsOptions { block_size: 512, ..MkfsOptions::default() });
    let fs = open(&device, MountOptions { cache_size: 64 << 20, ..quiet() });
    let session = fs.session(Cred::root());
    let touched = |work: &mut dyn FnMut()| {
        let count = || fs.counters().iter().find(|(name, _)| *name == "blocks_touched").unwrap().1;
        let before = count();
        work();
        count() - before
    };
    let make = || {
        session.mkdir("d", 0o755).unwrap();
        for i in 0..40_000 {
            session.create(&format!("d/a-file-with-a-name-of-some-length-{i}"), 0o644).unwrap();
        }
    };
    make();
    let dir = session.resolve("d").unwrap();
    let one_by_one = touched(&mut || {
        for entry in session.read_dir("d").unwrap().collect::<Vec<_>>() {
            session.unlink_at(dir, &entry.unwrap().name).unwrap();
        }
    });
    session.rmdir("d").unwrap();
    make();
    let as_a_tree = touched(&mut || assert_eq!(session.remove_tree("d", &mut |_| true).unwrap(), 40_001));
    assert!(as_a_tree < one_by_one * 21 / 20, "{as_a_tree} blocks touched, {one_by_one} by names known before");
}

#[test]
fn trees_are_removed_whatever_they_hold() {
    let device = formatted(64 << 20, &MkfsOptions::default());
    let fs = open(&device, quiet());
    let session = fs.session(Cred::root());
    for d in 0..3 {
        let mut path = format!("top{d}");
        session.mkdir(&path, 0o755).unwrap();
        for depth in 0..30 {
            for name in ["a", "b", "zz"] {
                session.create(&format!("{path}/{name}{depth}"), 0o644).unwrap();
            }
            session.mkdir(&format!("{path}/empty"), 0o755).unwrap();
            path += "/m";
            session.mkdir(&path, 0o755).unwrap();
        }
    }
    assert_eq!(session.remove_tree("top0", &mut |_| true).unwrap(), 1 + 30 * 5);
    let cancelled = session.remove_tree("top1", &mut |_| false);
    assert!(cancelled.is_ok(), "asked every 256 files only");
    session.create("top2/m/m/z", 0o644).unwrap();
    // A directory into which somebody makes names while it is emptied.
    let mut made = 0;
    session.mkdir("busy", 0o755).unwrap();
    for i in 0..600 {
        session.create(&format!("busy/{i}"), 0o644).unwrap();
    }
    let other = fs.session(Cred::root());
    let removed = session.remove_tree("busy", &mut |_| {
        other.create(&format!("busy/new{made}"), 0o644).unwrap();
        made += 1;
        true
    });
    assert_eq!(removed.unwrap(), 601 + made);
    drop((session, other));
    fs.close().unwrap();
    assert_sound(&device, None);
}

#[test]
fn a_walk_says_where_it_could_not_go_and_goes_on() {
    let device = formatted(64 << 20, &MkfsOptions::default());
    let fs = open(&device, quiet());
    let session = fs.session(Cred::root());
    for (dir, mode) in [("a", 0o755), ("a/secret", 0o700), ("b", 0o755)] {
        session.mkdir(dir, mode).unwrap();
        session.create(&format!("{dir}/f"), 0o644).unwrap();
    }
    let user = fs.session(Cred { uid: 1000, gid: 1000, ..Cred::root() });
    let steps: Vec<_> = user.walk("/").unwrap().collect();
    let errors: Vec<_> = steps.iter().filter_map(|step| step.as_ref().err()).collect();
    assert_eq!(errors.len(), 1);
    assert_eq!((&errors[0].path[..], errors[0].error.errno()), (&b"a/secret"[..], Errno::ACCESS));
    assert!(errors[0].to_string().starts_with("a/secret: "));
    let paths: Vec<_> = steps.iter().flatten().map(|entry| entry.path.clone()).collect();
    assert!(paths.contains(&b"a/secret".to_vec()) && paths.contains(&b"b/f".to_vec()), "{paths:?}");
}

#[test]
fn rotor_and_old_dirpref_spread_and_dirpref_gathers() {
    let regions = |placement, version| {
        let options = MkfsOptions { ag_size: Some(16 << 20), region_size: 1 << 20, ..MkfsOptions::default() };
        let device = formatted(256 << 20, &options);
        let dirpref = DirPref { version, ..DirPref::default() };
        let fs = open(&device, MountOptions { placement: Some(placement), dirpref, seed: Some(3), ..quiet() });
        let session = fs.session(Cred::root());
        session.mkdir("top", 0o755).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for i in 0..12 {
            let dir = format!("top/d{i}");
            session.mkdir(&dir, 0o755).unwrap();
            for f in 0..4 {
                session.create(&format!("{dir}/f{f}"), 0o644).unwrap();
            }
            // 32 inode slots a block of 4 KiB, 256 blocks a region.
            seen.insert(session.stat(&dir).unwrap().ino / 32 / 256);
        }
        seen.len()
    };
    let rotor = regions(PlacementPolicy::Rotor, DirPrefVersion::New);
    let [old, new] =
        [DirPrefVersion::Old, DirPrefVersion::New].map(|version| regions(PlacementPolicy::DirPref, version));
    assert!(new <= 3 && rotor == 12 && old == 12, "rotor spreads over {rotor} regions, dirpref over {old} and {new}");
}

#[test]
fn sixteen_tebibytes_are_made_in_a_moment() {
    let device = device(16 << 40);
    Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
    assert!(device.allocated_bytes() < 4 << 20, "{} bytes", device.allocated_bytes());
    let fs = open(&device, quiet());
    let session = fs.session(Cred::root());
    for d in 0..50 {
        session.mkdir(&format!("d{d}"), 0o755).unwrap();
        session.open(&format!("d{d}/f"), WRITE).unwrap().write_at(&[1; 10_000], 1 << 62).unwrap();
    }
    drop(session);
    fs.close().unwrap();
    assert_sound(&device, None);
}

#[test]
fn a_forgotten_close_is_a_clean_close() {
    let device = formatted(64 << 20, &MkfsOptions::default());
    {
        let fs = open(&device, MountOptions { background: true, ..quiet() });
        let session = fs.session(Cred::root());
        session.open("f", WRITE).unwrap().write_at(b"kept", 0).unwrap();
    }
    let fs = open(&device, quiet());
    assert!(!fs.info().recovered);
    assert_eq!(fs.session(Cred::root()).stat("f").unwrap().size, 4);
}

/// Names are looked up without a lock while their inodes are freed and used again for others: an answer is always about
/// the file that the name means, or that there is none.
#[test]
fn a_name_never_answers_for_another_file() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let device = formatted(64 << 20, &MkfsOptions::default());
    let fs = open(&device, MountOptions { cache_size: 8 << 20, ..MountOptions::default() });
    let root = Cred { umask: 0, ..Cred::root() };
    fs.session(root.clone()).mkdir("d", 0o755).unwrap();
    // The mode tells which name a file was made for.
    let names: Vec<String> = (0..0o200).map(|mode| format!("d/f{mode}")).collect();
    let stop = AtomicBool::new(false);
    let seen = [const { AtomicU64::new(0) }; 2];
    std::thread::scope(|scope| {
        let readers: Vec<_> = seen
            .iter()
            .map(|seen| {
                let session = fs.session(root.clone());
                let (names, stop) = (&names, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let one_by_one: Vec<_> = names.iter().map(|name| session.stat(name)).collect();
                        for answers in [one_by_one, session.stat_many(names)] {
                            for (mode, stat) in answers.into_iter().enumerate() {
                                match stat {
                                    Ok(stat) => assert_eq!(usize::from(stat.mode & 0o777), mode, "{stat:?}"),
                                    Err(error) => assert_eq!(error.errno(), Errno::NOENT, "{error}"),
                                }
                                seen.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                })
            })
            .collect();
        let session = fs.session(root.clone());
        let mut random = 1_u64;
        // Until both readers have had their turns, unless one of them has failed.
        let waits = || seen.iter().any(|seen| seen.load(Ordering::Relaxed) < 1000);
        let mut changes = 0;
        while changes < 60_000 || waits() && !readers.iter().any(|reader| reader.is_finished()) {
            changes += 1;
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let mode = (random >> 33) as usize % names.len();
            if session.create(&names[mode], mode as u16).is_err() {
                session.unlink(&names[mode]).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    fs.close().unwrap();
    assert_sound(&device, None);
}

#[test]
fn levels_tell_what_is_in_memory_only() {
    let device = formatted(64 << 20, &MkfsOptions::default());
    let fs = open(&device, quiet());
    let session = fs.session(Cred::root());
    let file = session.open("file", WRITE).unwrap();
    file.write_at(&[7; 20_000], 0).unwrap();
    let dirty = fs.levels();
    assert_eq!(dirty.dirty_data, 5 * 4096);
    assert!(dirty.dirty_log > 0 && dirty.cache_used > 0 && dirty.cache_used <= dirty.cache_size, "{dirty:?}");
    fs.sync().unwrap();
    let clean = fs.levels();
    assert_eq!((clean.dirty_data, clean.dirty_log), (0, 0));
    assert!(clean.log_used.unwrap() > dirty.log_used.unwrap(), "{dirty:?} {clean:?}");
    let options = MkfsOptions { log_size: Some(0), order: Order::None, ..MkfsOptions::default() };
    assert_eq!(open(&formatted(64 << 20, &options), quiet()).levels().log_used, None);
}

/// The number removed was looked at after files only: where each directory has one, it was never a round one then, and nobody
/// was asked whether to go on.
#[test]
fn removing_a_tree_asks_now_and_then_whatever_its_shape() {
    let device = formatted(64 << 20, &MkfsOptions::default());
    let fs = open(&device, quiet());
    let session = fs.session(Cred::root());
    for files in 0..3 {
        session.mkdir("top", 0o755).unwrap();
        for directory in 0..600 {
            session.mkdir(&format!("top/{directory}"), 0o755).unwrap();
            for file in 0..files {
                session.create(&format!("top/{directory}/{file}"), 0o644).unwrap();
            }
        }
        let mut told = Vec::new();
        let cancelled = session.remove_tree("top", &mut |removed| {
            told.push(removed);
            told.len() < 2
        });
        assert!(matches!(cancelled, Err(Error::Cancelled)), "{files} files");
        assert!(matches!(told[..], [256..300, 512..600]), "{told:?}");
        session.remove_tree("top", &mut |_| true).unwrap();
    }
    drop(session);
    fs.close().unwrap();
    assert_sound(&device, None);
}

/// An image was emptied before the options were looked at.
#[test]
fn what_cannot_be_made_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    Fs::format(&path, Some(32 << 20), &MkfsOptions::default()).unwrap();
    let before = std::fs::read(&path).unwrap();
    let good = MkfsOptions::default();
    for (size, options) in [
        (64 << 20, MkfsOptions { ag_size: Some(3 << 20), ..good.clone() }),
        (16 << 20, MkfsOptions { label: "x".repeat(64), ..good.clone() }),
        (64 << 20, MkfsOptions { log_device: Some(directory.path().join("missing")), ..good.clone() }),
        (64 << 20, MkfsOptions { log_size: Some(0), ..good.clone() }),
        (1 << 10, good.clone()),
        // More than any host's file has room for.
        (i64::MAX as u64 & !511, good.clone()),
    ] {
        assert!(Fs::format(&path, Some(size), &options).is_err(), "{size} {options:?}");
        assert!(std::fs::read(&path).unwrap() == before, "{size} {options:?}");
    }
    Fs::format(&path, Some(16 << 20), &good).unwrap();
    assert_eq!(path.metadata().unwrap().len(), 16 << 20);
    assert_sound_image(&path);
}

/// A device for the log may be larger than a log can be; only part of it is used then.
#[test]
fn a_log_has_a_largest_size() {
    let device = device(16 << 20);
    let log: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(5 << 30));
    let too_large = MkfsOptions { log_size: Some(5 << 30), ..MkfsOptions::default() };
    let refused = Fs::format_device(device.clone(), Some(log.clone()), &too_large);
    assert!(matches!(&refused, Err(Error::Option(bad)) if bad.option == "log-size"), "{refused:?}");
    Fs::format_device(device.clone(), Some(log.clone()), &MkfsOptions::default()).unwrap();
    let fs = Fs::open_device(device.clone(), Some(log.clone()), quiet()).unwrap();
    fs.session(Cred::root()).create("file", 0o644).unwrap();
    fs.close().unwrap();
    assert_sound(&device, Some(log));
}

/// What is written in any order within memory lies in one piece: blocks are chosen when all of it is known. Chosen at each
/// write, they lie in the order of the writes.
#[test]
fn random_writes_within_memory_lie_in_one_piece() {
    const BLOCKS: usize = 512;
    for (allocation, requests) in [(Allocation::Delayed, 1..6), (Allocation::AtWrite, 200..2 * BLOCKS as u64)] {
        let device = formatted(64 << 20, &MkfsOptions::default());
        let fs = open(&device, MountOptions { allocation, cache_size: 32 << 20, ..quiet() });
        let session = fs.session(Cred::root());
        let file = session.open("file", WRITE).unwrap();
        // 211 is prime to the number of blocks: each once.
        for block in (0..BLOCKS).map(|i| i * 211 % BLOCKS) {
            assert_eq!(file.write_at(&[block as u8; 4096], block as u64 * 4096).unwrap(), 4096);
        }
        file.sync().unwrap();
        fs.drop_caches().unwrap();
        let mut content = vec![0; BLOCKS * 4096];
        let before = device.counters().reads;
        assert_eq!(file.read_at(&mut content, 0).unwrap(), content.len());
        let reads = device.counters().reads - before;
        assert!(requests.contains(&reads), "{allocation:?}: {reads} requests for {BLOCKS} blocks");
        for (block, content) in content.chunks(4096).enumerate() {
            assert!(content.iter().all(|&byte| byte == block as u8), "block {block}");
        }
    }
}
